"""The cost model with which `auto` chooses a search for a number of candidates.

Build measures the recall of each search and counts the work of the search in a `PoolCost`, as
numbers of points scored, codes read, buckets or cells read, and entries read. The constants below
convert these counts into nanoseconds. No choice depends on a clock, so neither the speed nor the
load of a machine influences a choice.

Two builds on the same kind of processor choose the same searches. On another kind of processor,
linear algebra may round hyperplanes differently, which can change the fourth digit of a recall. The
choice changes only if a recall is that close to the target, or if a cost is that close to
CHEAPER_RATIO_MAX times another cost.

The constants were fitted once to times of each search alone, on one thread of a server processor
with AVX-512. Each time is the minimum of fifteen runs. The data were 2,000 to 100,000 synthetic
points of 32 to 512 dimensions, 20 Newsgroups, and visual words of CIFAR-100. Predicted times differ
from these times by at most a third. On another machine all constants change by about the same
factor, which changes no choice.
"""

import bisect
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from divgrpc.hashing.count_sketch import dims_after
from divgrpc.hashing.hyperplanes import code_bits, code_depth
from divgrpc.kernels.projection import WORD_BITS
from divgrpc.parameters import BuildParameters, QueryParameters
from divgrpc.types import EffectiveParameters, PoolCost, Search, SearchCost, Sought, WarningInfo

if TYPE_CHECKING:
    from divgrpc.storage.manifest import Manifest

# Numbers of candidates for which Build measures cost and recall.
POOLS: Final = (10, 50, 200, 1_000)
# Default number of hashed points for each candidate.
_HASHED_PER_CANDIDATE: Final = 4

# Nanoseconds that each query takes with any search.
_CALL_NS: Final = 12_000.0
# Additional nanoseconds if a query is hashed: for the query, and for each multiplication of a query
# value by a hyperplane value.
_HASHING_NS: Final = 8_000.0
_PROJECTION_NS: Final = 0.13
# Nanoseconds to score a dense point in exact search, which reads points in the order of storage:
# for each point, and for each of its dimensions. _NUMBER_NS is interpolated linearly: its first
# tuple contains base 2 logarithms of the size of all points in bytes, its second the nanoseconds.
_ROW_NS: Final = 3.0
_NUMBER_NS: Final = ((20, 24, 26), (0.10, 0.18, 1.00))
# Like _ROW_NS and _NUMBER_NS, but for hashed points, which are scattered in memory.
_HASHED_ROW_NS: Final = 25.0
_HASHED_NUMBER_NS: Final = ((22, 26), (0.15, 0.35))
# Nanoseconds for each stored element of a sparse point, for sparse and for dense queries.
_SPARSE_NS: Final = 1.2
_SPARSE_BY_DENSE_NS: Final = 7.0
# Nanoseconds of a search with inverted lists: for each entry read from a list, and for each point
# of the index, because the sum of each point over the lists is compared with a limit.
_LIST_ENTRY_NS: Final = 0.8
_LIST_SUM_NS: Final = 4.0
# Nanoseconds for each 64-bit word of a code: in a scan by estimated distance, in a scan by Hamming
# distance, and in any search of the family `cells`. These three were fitted again when codes were
# stored in tiles. A cell may begin and end within a tile, so its codes cost more.
_WORD_NS: Final = 0.35
_HAMMING_WORD_NS: Final = 0.3
_CELL_WORD_NS: Final = 0.5
# Nanoseconds for each probed bucket, for each probed cell, and for each point in a probed bucket.
_BUCKET_NS: Final = 200.0
_CELL_NS: Final = 350.0
_BUCKET_ENTRY_NS: Final = 5.0
# With a filter, the nearest cells hold fewer of the points that pass, so more cells are read: the
# number without a filter times the share of points that pass to the power of -_CELLS_EXPONENT. An
# exponent of .35 suffices for queries near to points that pass, but not for queries far from them.
_CELLS_EXPONENT: Final = 0.5
# Nanoseconds to read whether the point of a code passes a filter.
_FLAG_NS: Final = 0.3
# Nanoseconds to score a dense point that passes a filter: for each point and for each of its
# dimensions. These points are read in ascending order, so they cost less than hashed points.
_PASSING_ROW_NS: Final = 5.0
_PASSING_NUMBER_NS: Final = 0.12
# `auto` prefers a later search in `AUTO` only if it costs less than this share of an earlier one.
CHEAPER_RATIO_MAX: Final = 0.8
# Searches that `auto` chooses from, for points and for labels, sorted by their recall on queries
# that do not resemble points, highest first.
AUTO: Final[tuple[Search, ...]] = ("exact", "scan", "tables")
_AUTO_LABELS: Final[tuple[Search, ...]] = ("exact", "scan", "scan_hamming", "tables")
# A search named by the caller gets a warning if its recall is below the target by more than this.
_RECALL_MISS_MAX: Final = 0.1


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of an index that the cost model needs.

    rows: number of points.
    width: mean number of stored elements of a point; for dense points the dimensions.
    words: number of 64-bit words in a code.
    planes: number of hyperplanes that a query is projected onto.
    hashed_dims: number of values of a query that are projected onto each hyperplane.
    sparse: whether the points are sparse.
    cells: whether the hash family is `cells`.
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
    """Return the cost of one query in nanoseconds.

    `dense`: whether the query is dense, which matters only if the points are sparse.
    """
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
    """Return `exact`, or a clearly cheaper search whose recall reaches the target.

    Searches are compared in the order of `AUTO`, or `_AUTO_LABELS` for labels. A later search is
    chosen only if it costs less than CHEAPER_RATIO_MAX times the cost of the choice so far.
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
    """Return whether `recall` is at least the target or below it only by a rounding error."""
    return recall >= target_recall - 1e-9


class SearchTable:
    """A table of the search and number of probes that `auto` chooses for a number of candidates."""

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

        `otherwise`: the search and the number of probes to choose if the index has no measurements.
        `dense`: whether queries are dense; the points may be dense or sparse.
        """
        self._pools = {cost.search: cost.pools for cost in costs if cost.pools}
        self._sizes = [pool.candidates for pool in self._pools.get("exact", ())]
        self._target, self._otherwise = target_recall, otherwise
        self._shape, self._dense = shape, dense
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
        costs, auto = manifest.search_costs, manifest.auto_search
        if manifest.points == "sparse" and dense:
            if manifest.auto_search_dense is not None:
                costs, auto = manifest.search_costs_dense, manifest.auto_search_dense
            else:
                costs = tuple(without_lists(cost, manifest.rows) for cost in costs)
        nonzeros = manifest.nonzeros if manifest.points == "sparse" else None
        return cls(
            costs,
            Shape.of(manifest.parameters, manifest.rows, manifest.dims, nonzeros),
            manifest.parameters.target_recall,
            (auto, manifest.n_probes),
            sought=sought,
            dense=dense or nonzeros is None,
        )

    def at(self, candidates: int) -> tuple[Search, int]:
        """Return the search that `auto` chooses for `candidates`, and the number of probes.

        The search is the choice for the smallest measured number of candidates that is at least
        `candidates`. If `candidates` is above all measured numbers, the search is `scan` on two
        conditions: `scan` is the choice for the greatest measured number, and for this number
        `scan` missed at most half as much recall as the target allows. Otherwise, the search is
        `exact`. The returned number of probes is that of the search `tables`, whatever the search.
        """
        if not self._sizes:
            return self._otherwise
        place = bisect.bisect_left(self._sizes, candidates)
        if place < len(self._sizes):
            return self._choices[place], self._pools["tables"][place].n_probes
        strict_target = (1 + self._target) / 2
        scan_suffices = self._choices[-1] == "scan" and reaches(
            self._pools["scan"][-1].recall, strict_target
        )
        return "scan" if scan_suffices else "exact", self._pools["tables"][-1].n_probes

    def _hash_limit(self, candidates: int) -> int:
        """Return the number of points to hash for `candidates`, or 0 without measurements.

        The number is interpolated linearly between measured numbers of candidates. Below the first
        and above the last of these, the number is proportional to `candidates`.
        """
        if not self._sizes or not candidates:
            return 0
        limits = [pool.hash_limit for pool in self._pools["scan"]]
        last = min(max(candidates, self._sizes[0]), self._sizes[-1])
        limit = float(np.interp(last, self._sizes, limits))
        return math.ceil(limit * candidates / last)

    def recall(self, search: Search, candidates: int) -> float:
        """Return the measured recall of a search for `candidates`, or 1 if none was measured."""
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
        """Fill in the defaults; replace search `auto` by the choice for the number of candidates.

        `rows`: number of points or, if a query has a filter, of points that pass. `most_probes`:
        maximum number of buckets or cells that a search can probe.
        """
        limits = parameters.resolve(rows, "exact", width, sought, nonzeros)
        pool = pool_of(limits, rows)
        search, n_probes = self.at(pool)
        if rows < self._shape.rows:
            search, n_probes = self._of_passing(rows, pool, search, n_probes)
        if parameters.hash_limit is None and parameters.epsilon is None:
            hash_limit = max(limits.hash_limit, self._hash_limit(pool))
            parameters = replace(parameters, hash_limit=hash_limit)
        probes = (n_probes, most_probes)
        return parameters.resolve(
            rows, search, width, sought, nonzeros,
            probes=probes, duplicate_threshold=duplicate_threshold,
        )  # fmt: skip

    def _of_passing(
        self, passing: int, pool: int, search: Search, n_probes: int
    ) -> tuple[Search, int]:
        """Return the search and the number of probes if only `passing` points pass a filter.

        `search` and `n_probes` are those without a filter. Other searches than cells and exact
        searches become scans, because few points of a bucket may pass. An exact search of the
        points that pass has a recall of 1, so it is chosen unless the other search is faster.
        """
        shape, share = self._shape, max(1, passing) / self._shape.rows
        more = share**-_CELLS_EXPONENT
        if shape.cells:
            n_probes = math.ceil(n_probes * more)
        elif search != "exact":
            search = "scan"
        place = bisect.bisect_left(self._sizes, pool)
        if search == "exact" or place >= len(self._sizes):
            return search, n_probes
        cost = self._pools[search][place]
        flags = 0.0
        if shape.cells:
            # The codes of the points that pass are copied if the filter is used again and again.
            read = more if search == "tables" else 1.0
            lists_read = min(float(passing), cost.lists_read * read)
            codes_read = cost.codes_read * read * share
            cost = replace(cost, lists_read=lists_read, codes_read=codes_read)
        else:
            flags = _FLAG_NS * shape.rows
        number = _PASSING_NUMBER_NS
        if shape.sparse:
            number = _SPARSE_BY_DENSE_NS if self._dense else _SPARSE_NS
        exact = _CALL_NS + passing * (_PASSING_ROW_NS + number * shape.width)
        other = nanoseconds(search, cost, shape, dense=self._dense) + flags
        return ("exact" if exact <= other else search), n_probes

    def warnings(
        self, parameters: QueryParameters, effective: EffectiveParameters, rows: int
    ) -> tuple[WarningInfo, ...]:
        """Return a warning if the caller named a search whose recall is far below the target.

        Far below means by more than _RECALL_MISS_MAX. If the caller set `n_probes`, there is no
        warning.
        """
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
    """Return the maximum number of candidates of a query.

    The number is the smallest of `candidates_limit`, max(k, hash_limit / 4), and `rows`. A limit of
    0 means no limit.
    """
    candidates = limits.candidates_limit or rows
    if limits.hash_limit:
        candidates = min(candidates, max(limits.k, limits.hash_limit // _HASHED_PER_CANDIDATE))
    return min(candidates, rows)


def without_lists(cost: SearchCost, rows: int) -> SearchCost:
    """Return `cost` for dense queries on sparse points, whose exact search reads all points."""
    if cost.search != "exact":
        return cost
    pools = (replace(pool, points_scored=float(rows), entries_read=0.0) for pool in cost.pools)
    return replace(cost, pools=tuple(pools))
