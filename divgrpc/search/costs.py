"""The cost and the recall of each search, by the number of candidates: how `auto` chooses.

Build counts the work of each search (`PoolCost`): points scored, codes, lists and entries read. The
constants below turn the counts into nanoseconds. No clock is read, so neither the speed nor the
load of a machine matters. Two builds on one kind of processor choose alike. On another kind, linear
algebra may give directions with other last digits, which may change a recall in its fourth digit:
the choice is the same unless a figure is that close to its bound. Rounding would only move bounds.

The constants were fitted once to one thread of a server processor with AVX-512: each search was
timed alone, the least of fifteen runs, over 2,000 to 100,000 synthetic points of 32 to 512
dimensions, over 20 Newsgroups and over visual words of CIFAR-100. Predicted times are within a
third of those times. On another machine all constants change by about the same factor, which
changes no choice.
"""

import bisect
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from divgrpc.hashing.count_sketch import dims_after
from divgrpc.hashing.hyperplanes import WORD_BITS, code_bits, code_depth
from divgrpc.parameters import BuildParameters, QueryParameters
from divgrpc.types import (
    EffectiveParameters,
    PoolCost,
    Search,
    SearchCost,
    Sought,
    WarningInfo,
)

if TYPE_CHECKING:
    from divgrpc.storage.manifest import Manifest

# Numbers of candidates for which Build measures cost and recall.
POOLS: Final = (10, 50, 200, 1_000)
# Points hashed per candidate by default.
_HASHED_PER_CANDIDATE: Final = 4

# Nanoseconds per call, per hashed query, and per product of a query's number with a hyperplane's.
_CALL_NS: Final = 12_000.0
_HASHING_NS: Final = 8_000.0
_PROJECTION_NS: Final = 0.13
# Nanoseconds per scored row, and per number in it by the base 2 logarithm of the bytes of all rows
# (interpolated): for rows in order of storage, and for hashed rows, anywhere in memory.
_ROW_NS: Final = 3.0
_NUMBER_NS: Final = ((20, 24, 26), (0.10, 0.18, 1.00))
_HASHED_ROW_NS: Final = 25.0
_HASHED_NUMBER_NS: Final = ((22, 26), (0.15, 0.35))
# Nanoseconds per stored element of a sparse row, for sparse and for dense queries.
_SPARSE_NS: Final = 1.2
_SPARSE_BY_DENSE_NS: Final = 7.0
# Nanoseconds per entry of an inverted list, and per row whose sum over the lists is compared.
_LIST_ENTRY_NS: Final = 1.7
_LIST_SUM_NS: Final = 4.0
# Nanoseconds per 64-bit word of a code: in a scan, by Hamming distance, and cell by cell.
_WORD_NS: Final = 0.6
_HAMMING_WORD_NS: Final = 0.4
_CELL_WORD_NS: Final = 0.7
# Nanoseconds per bucket looked up, cell looked up, and point in a bucket.
_BUCKET_NS: Final = 200.0
_CELL_NS: Final = 350.0
_BUCKET_ENTRY_NS: Final = 5.0
# `auto` takes a search of lower recall if it costs less than this share of the better one.
CHEAPER_RATIO_MAX: Final = 0.8
# Searches in descending order of recall on queries that do not resemble points.
AUTO: Final[tuple[Search, ...]] = ("exact", "scan", "tables")
_AUTO_LABELS: Final[tuple[Search, ...]] = ("exact", "scan", "scan_hamming", "tables")
# A named search gets a warning if its recall misses the target by more than this.
_RECALL_MISS_MAX: Final = 0.1


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of an index that counts are multiplied by.

    width: mean number of stored elements of a point.
    words: 64-bit words of a code.
    planes: hyperplanes that a query is projected onto.
    hashed_dims: numbers of a query that are projected.
    """

    rows: int
    width: float
    words: int
    planes: int
    hashed_dims: float
    sparse: bool
    cells: bool

    @classmethod
    def of(cls, parameters: BuildParameters, rows: int, dims: int, nonzeros: int | None) -> "Shape":
        """Return the sizes of an index; `nonzeros` is None for dense points."""
        bits = code_bits(parameters)
        width = dims if nonzeros is None else nonzeros / rows
        return cls(
            rows=rows,
            width=width,
            words=bits // WORD_BITS,
            planes=bits // code_depth(parameters),
            hashed_dims=dims_after(dims) if nonzeros is None else width,
            sparse=nonzeros is not None,
            cells=parameters.hash_family == "cells",
        )

    @property
    def log_bytes(self) -> float:
        """Base 2 logarithm of the size of all points in bytes."""
        return math.log2(max(1.0, 4.0 * self.rows * self.width))


def nanoseconds(search: Search, cost: PoolCost, shape: Shape, *, dense: bool = True) -> float:
    """Return the cost of one query; for sparse points, `dense` says whether the query is."""
    number = _SPARSE_BY_DENSE_NS if dense else _SPARSE_NS
    if search == "exact":
        if not shape.sparse:
            number = float(np.interp(shape.log_bytes, *_NUMBER_NS))
        sums = shape.rows * _LIST_SUM_NS if cost.entries_read else 0
        lists = cost.entries_read * _LIST_ENTRY_NS + sums
        return _CALL_NS + lists + cost.points_scored * (_ROW_NS + number * shape.width)
    if not shape.sparse:
        number = float(np.interp(shape.log_bytes, *_HASHED_NUMBER_NS))
    word = _HAMMING_WORD_NS if search == "scan_hamming" else _WORD_NS
    if shape.cells:
        word = _CELL_WORD_NS
    total = _CALL_NS + _HASHING_NS + shape.planes * shape.hashed_dims * _PROJECTION_NS
    total += cost.codes_read * shape.words * word
    total += cost.lists_read * (_CELL_NS if shape.cells else _BUCKET_NS)
    total += cost.entries_read * _BUCKET_ENTRY_NS
    return total + cost.points_scored * (_HASHED_ROW_NS + number * shape.width)


def choose(
    costs: dict[Search, PoolCost],
    shape: Shape,
    target_recall: float,
    *,
    dense: bool = True,
    sought: Sought = "dense",
) -> Search:
    """Return the cheapest search that reaches the target; `exact` always does.

    A search of lower recall on queries unlike the points must be clearly cheaper.
    """
    searches = _AUTO_LABELS if sought == "labels" else AUTO
    best = searches[0]
    least = nanoseconds(best, costs[best], shape, dense=dense)
    for search in searches[1:]:
        price = nanoseconds(search, costs[search], shape, dense=dense)
        if reaches(costs[search].recall, target_recall) and price < CHEAPER_RATIO_MAX * least:
            best, least = search, price
    return best


def reaches(recall: float, target_recall: float) -> bool:
    """Tell whether a recall, up to its rounding error, reaches the target."""
    return recall >= target_recall - 1e-9


class SearchTable:
    """The search that `auto` takes, and its probes, by the number of candidates."""

    def __init__(
        self,
        costs: tuple[SearchCost, ...],
        shape: Shape,
        target_recall: float,
        otherwise: tuple[Search, int],
        *,
        sought: Sought = "dense",
        dense: bool = True,
    ) -> None:
        """Make the table from Build's measurements.

        `otherwise`: search and probes of an index without measurements. `dense`: whether queries
        are, whatever the points are.
        """
        self._pools = {cost.search: cost.pools for cost in costs if cost.pools}
        self._sizes = [pool.candidates for pool in self._pools.get("exact", ())]
        self._target, self._otherwise = target_recall, otherwise
        self._choices: list[Search] = [
            choose(
                {search: pools[place] for search, pools in self._pools.items()},
                shape,
                target_recall,
                dense=dense,
                sought=sought,
            )
            for place in range(len(self._sizes))
        ]

    @classmethod
    def of(cls, manifest: "Manifest", sought: Sought, *, dense: bool) -> "SearchTable":
        """Return the table for dense or for sparse queries of an index."""
        costs = manifest.search_costs
        auto = manifest.auto_search
        if manifest.points == "sparse" and dense:
            if manifest.auto_search_dense is not None:
                costs, auto = manifest.search_costs_dense, manifest.auto_search_dense
            else:
                costs = tuple(without_lists(cost, manifest.rows) for cost in costs)
        return cls(
            costs,
            Shape.of(
                manifest.parameters,
                manifest.rows,
                manifest.dims,
                manifest.nonzeros if manifest.points == "sparse" else None,
            ),
            manifest.parameters.target_recall,
            (auto, manifest.n_probes),
            sought=sought,
            dense=dense or manifest.points == "dense",
        )

    def at(self, candidates: int) -> tuple[Search, int]:
        """Return the search that `auto` takes for this many candidates, and the probes of `tables`.

        Between two measured numbers the larger counts. Above the last, `auto` takes `exact`, or the
        scan if it misses at most half of what the target allows.
        """
        if not self._sizes:
            return self._otherwise
        place = bisect.bisect_left(self._sizes, candidates)
        if place < len(self._sizes):
            return self._choices[place], self._pools["tables"][place].n_probes
        half = (1 + self._target) / 2
        safe = self._choices[-1] == "scan" and reaches(self._pools["scan"][-1].recall, half)
        return "scan" if safe else "exact", self._pools["tables"][-1].n_probes

    def _hash_limit(self, candidates: int) -> int:
        """Return how many points to hash for this many candidates; 0 without measurements.

        Interpolated between measured numbers; proportional to them below the first and above the
        last.
        """
        if not self._sizes or not candidates:
            return 0
        limits = [pool.hash_limit for pool in self._pools["scan"]]
        last = min(max(candidates, self._sizes[0]), self._sizes[-1])
        limit = float(np.interp(last, self._sizes, limits))
        return math.ceil(limit * candidates / last)

    def recall(self, search: Search, candidates: int) -> float:
        """Return the measured recall of a search for this many candidates; 1 if unknown."""
        place = bisect.bisect_left(self._sizes, candidates)
        if place == len(self._sizes) or search not in self._pools:
            return 1.0
        return self._pools[search][place].recall

    def resolve(
        self,
        parameters: QueryParameters,
        rows: int,
        width: int,
        sought: Sought,
        nonzeros: int | None = None,
        *,
        most_probes: int,
        duplicate_threshold: float | None = None,
    ) -> EffectiveParameters:
        """Fill in the defaults; `auto` becomes the search for the requested candidates."""
        limits = parameters.resolve(rows, "exact", width, sought, nonzeros)
        pool = pool_of(limits, rows)
        search, n_probes = self.at(pool)
        if parameters.hash_limit is None and parameters.epsilon is None:
            hash_limit = max(limits.hash_limit, self._hash_limit(pool))
            parameters = replace(parameters, hash_limit=hash_limit)
        return parameters.resolve(
            rows,
            search,
            width,
            sought,
            nonzeros,
            probes=(n_probes, most_probes),
            duplicate_threshold=duplicate_threshold,
        )

    def warnings(
        self, parameters: QueryParameters, effective: EffectiveParameters, rows: int
    ) -> tuple[WarningInfo, ...]:
        """Return a warning for a named search whose recall is far below the target."""
        if parameters.search == "auto" or parameters.n_probes is not None:
            return ()
        pool = pool_of(effective, rows)
        recall = self.recall(effective.search, pool)
        if effective.search == "exact" or recall >= self._target - _RECALL_MISS_MAX:
            return ()
        if effective.search != "tables" and not 0 < effective.hash_limit < rows:
            return ()
        sentence = (
            f"search {effective.search} finds about {recall:.2f} of the nearest {pool}, less than "
            f"target_recall {self._target:g}; auto takes {self.at(pool)[0]}"
        )
        return (WarningInfo("TARGET_RECALL_MISSED", sentence, "search"),)


def pool_of(limits: EffectiveParameters, rows: int) -> int:
    """Return how many candidates a query may have.

    A hash limit below the default bounds them too: it counts as four points per candidate.
    """
    candidates = limits.candidates_limit or rows
    if limits.hash_limit:
        candidates = min(candidates, max(limits.k, limits.hash_limit // _HASHED_PER_CANDIDATE))
    return min(candidates, rows)


def without_lists(cost: SearchCost, rows: int) -> SearchCost:
    """Return the cost for dense queries of sparse points, which cannot use inverted lists."""
    if cost.search != "exact":
        return cost
    pools = (replace(pool, points_scored=float(rows), entries_read=0.0) for pool in cost.pools)
    return replace(cost, pools=tuple(pools))
