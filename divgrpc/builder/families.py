"""The choice of a hash family under `auto`, by trials on a sample of the points.

From `CELLS_FROM_ROWS` points on, a partition may be worth its build: a trial measures the recall of
a quarter of its cells. Otherwise trials of `lsh_div` and `lsh_sdiv` measure the recall of a scan of
their codes.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from divgrpc.builder.encoder import encode_points, searcher_of
from divgrpc.builder.sample import Sample
from divgrpc.hashing.count_sketch import dims_after
from divgrpc.hashing.hyperplanes import CELLS_FROM_ROWS, MAX_COMPONENTS
from divgrpc.parameters import BuildParameters, QueryParameters
from divgrpc.storage.writers import MemoryStore
from divgrpc.types import HashFamily, Search
from divgrpc.vectors import Rows, draw_numbers, mean_width, take

# A trial has at most 4,096 points and at most 2**21 stored numbers.
_TRIAL_ROWS_MAX: Final = 4_096
_TRIAL_NUMBERS_MAX: Final = 1 << 21
# A default query has 200 candidates. A trial has the same share of its fewer points, at least 10,
# and hashes 4 points per candidate.
_DEFAULT_CANDIDATES: Final = 200
_CANDIDATES_MIN: Final = 10
_HASHED_PER_CANDIDATE: Final = 4
# Fewer points get no trial, because an exact search of them is as fast as any.
_TRIAL_POINTS_MIN: Final = 2_000
# A recall is better if it is greater by more than this.
_RECALL_MARGIN: Final = 0.005
# The share of the cells that a trial of `cells` looks at.
_CELLS_SHARE: Final = 0.25


def choose_family(
    parameters: BuildParameters, points: Rows, queries: Rows | None
) -> tuple[HashFamily, str]:
    """Return the family to build `points` (n, d) with, and the reason in words.

    `auto` is decided by trials; for a named family the reason is empty. `queries` (m, d) are a
    sample of future queries; without them points serve as queries.
    """
    if parameters.hash_family != "auto":
        return parameters.hash_family, ""
    rows, dims = points.shape
    trial = _Trial(parameters, points, queries)
    cells_fit = parameters.n_tables is None and parameters.n_bits is None
    if rows >= CELLS_FROM_ROWS and cells_fit:
        share = trial.recall("cells", "tables")
        if share >= min(parameters.target_recall, 1 - _RECALL_MARGIN):
            return "cells", (
                f"of {trial.rows:,} points a quarter of the cells holds {share:.3f} of the nearest"
            )
    components = parameters.n_components or MAX_COMPONENTS
    if components >= dims_after(dims) or rows < _TRIAL_POINTS_MIN:
        why = "all dimensions are hashed" if rows >= _TRIAL_POINTS_MIN else f"only {rows:,} points"
        return "lsh_div", f"{why}, where components have nothing to add"
    plain, inside = (trial.recall(family, "scan") for family in ("lsh_div", "lsh_sdiv"))
    return "lsh_sdiv" if inside > plain + _RECALL_MARGIN else "lsh_div", (
        f"of {trial.rows:,} points a scan finds {plain:.3f} of the nearest with lsh_div, "
        f"{inside:.3f} with lsh_sdiv"
    )


class _Trial:
    """Small indexes of the same points, one per family, that answer the same queries."""

    def __init__(self, parameters: BuildParameters, points: Rows, queries: Rows | None) -> None:
        count = max(_CANDIDATES_MIN, _TRIAL_NUMBERS_MAX // mean_width(points))
        self.rows = min(len(points), _TRIAL_ROWS_MAX, count)
        rng = np.random.default_rng((parameters.seed, 5))
        self._points = take(points, draw_numbers(len(points), self.rows, rng))
        self._parameters = parameters
        self._queries = queries
        # The same share of the points as in the whole index.
        share = _DEFAULT_CANDIDATES * self.rows // len(points)
        self._candidates = max(min(_CANDIDATES_MIN, self.rows), share)
        self._sample: Sample | None = None

    def recall(self, family: HashFamily, search: Search) -> float:
        """Build a small index and return its recall: the mean share of the nearest points hashed.

        A search of cells looks at a quarter of them, without a hash limit.
        """
        parameters = replace(self._parameters, hash_family=family)
        encoding = encode_points(MemoryStore(), parameters, self._points, lambda *_: None)
        searcher = searcher_of(encoding, self._points)
        if self._sample is None:
            seed, most = parameters.seed, self._candidates
            self._sample = Sample.draw(searcher, seed, most, lambda *_: None, queries=self._queries)
        limit = 0 if family == "cells" else _HASHED_PER_CANDIDATE * self._candidates
        if limit >= self.rows:
            return 1.0
        query = QueryParameters(
            k=1,
            search=search,
            hash_limit=limit,
            n_probes=max(1, int(_CELLS_SHARE * searcher.max_probes)),
        )
        numbers, effective = np.arange(len(self._sample)), query.resolve(self.rows, "exact")
        results = self._sample.measure(searcher, effective, numbers, (self._candidates,))
        return float(np.mean([shares[0] for shares, _ in results]))
