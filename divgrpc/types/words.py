"""Choices of parameters as `Literal` types, and the parameters and counts of results."""

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import numpy.typing as npt

Points = Literal["dense", "sparse"]
Sought = Literal["dense", "sparse", "labels"]
Metric = Literal["cosine", "euclidean", "inner_product"]
HashFamily = Literal["lsh_div", "lsh_sdiv", "pca_hash", "cells", "auto"]
Hyperplanes = Literal["orthogonal", "gaussian"]
ZeroVectors = Literal["reject", "skip"]
Search = Literal["auto", "tables", "scan", "scan_hamming", "exact"]
Selector = Literal["nearest", "greedy", "mmr", "rerank", "qp_relax", "dpp", "max_sum"]
# Selectors of labels. `hierarchy` needs an index with a hierarchy.
LabelSelector = Literal[Selector, "hierarchy"]
Variant = Literal["corrected", "printed", "marginal"]
Sampling = Literal["uniform", "nearest"]
Rounding = Literal["exchange", "top_k"]
Mode = Literal["embedding", "neighbour_vote"]
Vote = Literal["weighted", "plain"]
Auto = Literal["auto"]
# Reasons for a dial that was chosen: see `QueryResult`.
DialReason = Literal["loss_bound", "within_bound", "fall_off", "no_choice", "equal_relevance"]
FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
CountArray = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class EffectiveParameters:
    """The parameters that answered a query: defaults filled in, `auto` resolved.

    A `hash_limit` or `candidates_limit` of 0 means no limit, and so does a `max_distance` of None.
    `n_probes` is 0 for a search without buckets or cells. A `duplicate_threshold` of None means
    that near-copies are not collapsed. With `diversity_auto` or `lose_at_most` each row has its own
    dial in `QueryResult.diversities`, and `diversity` is 0.
    """

    k: int
    diversity: float
    selector: Selector
    variant: Variant
    search: Search
    hash_limit: int
    candidates_limit: int
    max_distance: float | None
    sampling: Sampling
    seed: int
    rounding: Rounding
    n_probes: int
    duplicate_threshold: float | None = None
    list_collapsed: bool = False
    diversity_auto: bool = False
    lose_at_most: float | None = None

    @property
    def has_fixed_dial(self) -> bool:
        """Whether all rows have the dial `diversity`."""
        return not self.diversity_auto and self.lose_at_most is None


@dataclass(frozen=True, slots=True)
class EffectiveLabelParameters:
    """The parameters that predicted labels: defaults filled in, `auto` resolved.

    `search` and the limits are those of the search for labels, or in the mode `neighbour_vote` for
    neighbours. `neighbours` is 0 in the mode `embedding`. A limit of 0 means no limit, and a
    `threshold` of None means no threshold.
    """

    top_k: int
    threshold: float | None
    mode: Mode
    neighbours: int
    vote: Vote
    diversity: float
    selector: LabelSelector
    search: Search
    hash_limit: int
    candidates_limit: int
    seed: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QueryStats:
    """Counts of the work for each row of a query; every array is (nq,) uint32.

    `points_hashed` are the distinct points that hashing found, `buckets_probed` the buckets or
    cells looked up, and `points_scored` the points scored exactly. `candidates` are the points that
    the selector chose from. If they are crowded with near-copies, there may be four times
    `parameters.candidates_limit` of them.

    A row whose candidates are crowded may also be searched again with greater limits. `candidates`
    may then be still more, and the first three arrays count the last search only.

    `collapsed` candidates are near-copies of a result. `duplicates` of them are results
    nevertheless, because fewer than k candidates differ.
    """

    points_hashed: CountArray
    buckets_probed: CountArray
    points_scored: CountArray
    candidates: CountArray
    collapsed: CountArray
    duplicates: CountArray

    def __repr__(self) -> str:
        rows = len(self.candidates)
        title = f"QueryStats: {rows:,} {'row' if rows == 1 else 'rows'}"
        if not rows:
            return title
        ranges = [f"{column.name} {_range(getattr(self, column.name))}" for column in fields(self)]
        return f"{title}; {', '.join(ranges)}"


def _range(counts: CountArray) -> str:
    """Return the least and the greatest count, or the one value if all are equal."""
    least, most = int(counts.min()), int(counts.max())
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
