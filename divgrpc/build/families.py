"""Which hash family `auto` becomes: by trials on some of the points.

A trial of `lsh_div` and `lsh_sdiv` measures the recall of a scan of their codes. From
`CELLS_FROM_ROWS` points on a partition is worth its build. There a trial of `cells` measures the
recall of a quarter of the cells.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from divgrpc.build.encoder import encode_points
from divgrpc.build.sample import Sample
from divgrpc.hashing.count_sketch import dims_after
from divgrpc.hashing.hyperplanes import CELLS_FROM_ROWS, MAX_COMPONENTS
from divgrpc.parameters import BuildParameters, QueryParameters
from divgrpc.search.arrays import readable
from divgrpc.search.searcher import Searcher
from divgrpc.storage.writers import MemoryStore
from divgrpc.types import HashFamily, Search
from divgrpc.vectors import Rows, mean_width, take

# A trial has at most so many points, which hold at most so many numbers.
_TRIAL_ROWS: Final = 4_096
_TRIAL_NUMBERS: Final = 1 << 21
# Candidates of a default query, and how many times as many points are hashed. A trial has fewer of
# both, as it has fewer points.
_CANDIDATES: Final = 200
_LEAST_CANDIDATES: Final = 10
_HASHED: Final = 4
# Fewer points get no trial: an exact search is as fast as any.
_FEWEST_ROWS: Final = 2_000
# A family goes before another where its recall is greater by more.
_BETTER: Final = 0.005
# `auto` becomes cells where this share of them holds as many of the nearest as the target says.
_CELLS_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Family:
    """The family, and a sentence that says why; empty where the caller named the family."""

    family: HashFamily
    reason: str = ""


def choose_family(parameters: BuildParameters, points: Rows, queries: Rows | None) -> Family:
    """Return the family to build, by trials where the parameters say `auto`.

    `queries` are a sample of the queries to come; without them points serve as queries.
    """
    if parameters.hash_family != "auto":
        return Family(parameters.hash_family)
    rows, dims = points.shape
    trial = _Trial(parameters, points, queries)
    cells_fit = parameters.n_tables is None and parameters.n_bits is None
    if rows >= CELLS_FROM_ROWS and cells_fit:
        share = trial.recall("cells", "tables")
        if share >= min(parameters.target_recall, 1 - _BETTER):
            return Family(
                "cells",
                f"of {trial.rows:,} points a quarter of the cells holds {share:.3f} of the nearest",
            )
    components = parameters.n_components or MAX_COMPONENTS
    if components >= dims_after(dims) or rows < _FEWEST_ROWS:
        why = "all dimensions are hashed" if rows >= _FEWEST_ROWS else f"only {rows:,} points"
        return Family("lsh_div", f"{why}, where components have nothing to add")
    plain, inside = (trial.recall(family, "scan") for family in ("lsh_div", "lsh_sdiv"))
    family: HashFamily = "lsh_sdiv" if inside > plain + _BETTER else "lsh_div"
    return Family(
        family,
        f"of {trial.rows:,} points a scan finds {plain:.3f} of the nearest with lsh_div, "
        f"{inside:.3f} with lsh_sdiv",
    )


class _Trial:
    """Small indexes of some of the points, which all answer the same queries."""

    def __init__(self, parameters: BuildParameters, points: Rows, queries: Rows | None) -> None:
        count = max(_LEAST_CANDIDATES, _TRIAL_NUMBERS // mean_width(points))
        self.rows = min(len(points), _TRIAL_ROWS, count)
        rng = np.random.default_rng((parameters.seed, 5))
        chosen = np.sort(rng.choice(len(points), self.rows, replace=False))
        self._points = take(points, chosen)
        self._parameters = parameters
        self._queries = queries
        # The same share of the points as in the whole index.
        share = _CANDIDATES * self.rows // len(points)
        self._candidates = max(min(_LEAST_CANDIDATES, self.rows), share)
        self._sample: Sample | None = None

    def recall(self, family: HashFamily, search: Search) -> float:
        """Return the mean share of the nearest that a search hashes, in a small index of its own.

        A search of cells looks at a quarter of them, with no hash limit.
        """
        parameters = replace(self._parameters, hash_family=family)
        encoded = encode_points(MemoryStore(), parameters, self._points, lambda *_: None)
        arrays = readable(encoded.arrays, self._points)
        searcher = Searcher(arrays, encoded.parameters, self._points.shape[1])
        if self._sample is None:
            seed, most = parameters.seed, self._candidates
            self._sample = Sample.draw(searcher, seed, most, lambda *_: None, queries=self._queries)
        limit = 0 if family == "cells" else _HASHED * self._candidates
        if limit >= self.rows:
            return 1.0
        query = QueryParameters(
            k=1,
            search=search,
            hash_limit=limit,
            n_probes=max(1, int(_CELLS_SHARE * searcher.max_probes)),
        )
        hashed = searcher.hashed(self._sample.queries, query.resolve(self.rows, "exact"))
        marks, shares = np.zeros(self.rows, np.bool_), []
        for number, rows in enumerate(hashed):
            marks[rows] = True
            shares.append(self._sample.shares(number, marks, (self._candidates,))[0])
            marks[rows] = False
        return float(np.mean(shares))
