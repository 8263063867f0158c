"""Picks from a caller's dense candidates in a single call of a kernel.

The results are those of `divgrpc.diversifier.pick_from`, which runs every selector with every
parameter, in several kernels with Python between them. For 100 candidates, that takes longer than
the selection.
"""

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import read_only
from divgrpc.errors import invalid
from divgrpc.kernels.candidates import DPP_RULE, NEAREST_RULE, pick_scored
from divgrpc.kernels.mmr_by_query import pick_by_query
from divgrpc.kernels.records import MMR_RULE
from divgrpc.parameters.diversify import DiversifyParameters
from divgrpc.search.dials import rule_of
from divgrpc.search.selectors import returns_nearest
from divgrpc.types import Diversification, FloatArray, Metric
from divgrpc.vectors import LENGTH_MAX, RowsLike, SparseRows, query_rows

_LENGTH_MAX: Final = np.float32(LENGTH_MAX)


def pick_at_once(
    rows: FloatArray,
    scores: npt.ArrayLike | None,
    query: RowsLike | None,
    parameters: DiversifyParameters,
) -> Diversification | None:
    """Pick in a single call of a kernel, by scores or by a query, faster than `pick_from`.

    Returns None if no kernel can do what the call asks for, or if it refuses the candidates.
    """
    k, dial, rule = _rule_at_once(parameters, len(rows), rows.shape[1])
    if rule is None or (query is not None and (rule, parameters.metric) != (MMR_RULE, "cosine")):
        return None
    vectors = read_only(rows)
    places, picked_scores, values = np.empty(k, np.int64), np.empty(k), np.empty(k, np.float32)
    if query is None:
        is_valid = pick_scored(
            vectors, scores, _LENGTH_MAX, dial, rule, places, picked_scores, values
        )
    else:
        unit = one_query(query, rows.shape[1], "cosine")
        is_valid = pick_by_query(vectors, unit, np.float32(1 - dial), places, picked_scores, values)
    return Diversification(places, picked_scores, values, dial) if is_valid else None


@lru_cache(maxsize=1024)
def _rule_at_once(
    parameters: DiversifyParameters, count: int, width: int
) -> tuple[int, float, int | None]:
    """Return k, the dial, and the rule by which `pick_scored` picks, None if it cannot."""
    effective, rule = parameters.resolve(count, width), None
    keeps_copies = effective.duplicate_threshold is None
    if parameters.metric != "euclidean" and keeps_copies and effective.has_fixed_dial:
        if returns_nearest(effective):
            rule = NEAREST_RULE
        elif effective.selector == "dpp":
            rule = DPP_RULE
        elif effective.selector in {"greedy", "mmr"}:
            rule = rule_of(effective)
    return effective.k, effective.diversity, rule


def one_query(query: RowsLike, dims: int, metric: Metric) -> FloatArray:
    """Return the query as a dense row (1, d), checked and scaled for the metric."""
    prepared = query_rows("query", query, dims, metric)
    if len(prepared) != 1:
        raise invalid("query", f"must be one vector, got {len(prepared)}")
    return prepared.matrix.toarray() if isinstance(prepared, SparseRows) else prepared
