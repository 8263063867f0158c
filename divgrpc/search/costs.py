"""What a search costs and finds, by the number of candidates: what `auto` goes by.

Build counts the work of each search (`PoolCost`): points scored, codes, lists and entries read. The
constants below turn counts into nanoseconds. No clock is read, so that neither the speed nor the
load of a machine decides. Two builds on one kind of processor choose alike. Another kind may give
directions from linear algebra other last digits, which may move a recall in its fourth digit: it
chooses alike unless a figure lies that near to its bound. To round figures would only move bounds.

The constants are of one thread of a server processor with AVX-512, fitted once: each search was
timed alone, the least of fifteen runs, over 2,000 to 100,000 made points of 32 to 512 dimensions,
over 20 Newsgroups and over visual words of CIFAR-100. Products of the counts with them come within
a third of those times. On another machine all of them change by about the same factor, which
changes no choice.
"""

import bisect
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from divgrpc.hashing.count_sketch import dims_after
from divgrpc.hashing.hyperplanes import WORD, code_bits, code_depth
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

# Numbers of candidates for which Build measures.
POOLS: Final = (10, 50, 200, 1_000)
# How many times as many points as candidates are hashed by default.
_HASHED: Final = 4

# Nanoseconds: of any call, and of hashing a query, for each product of a number with a hyperplane.
_CALL: Final = 12_000.0
_HASHING: Final = 8_000.0
_PROJECTION: Final = 0.13
# Of a row, and of each of its numbers by how many bytes all rows have (base 2 logarithm): rows in
# order, and hashed rows, which lie apart.
_ROW: Final = 3.0
_IN_ORDER: Final = ((20, 24, 26), (0.10, 0.18, 1.00))
_ROW_APART: Final = 25.0
_APART: Final = ((22, 26), (0.15, 0.35))
# Of each number of sparse rows, for sparse and for dense queries.
_SPARSE: Final = 1.2
_SPARSE_BY_DENSE: Final = 7.0
# Of an entry of a posting list, and of a row whose sum over the lists is looked at.
_POSTING: Final = 1.7
_SUM: Final = 4.0
# Of a word of a code: in one run of all codes, by Hamming distance, and cell by cell.
_WORD: Final = 0.6
_WORD_HAMMING: Final = 0.4
_WORD_IN_CELL: Final = 0.7
# Of a bucket looked up, a cell looked up, and a point that a bucket holds.
_BUCKET: Final = 200.0
_CELL: Final = 350.0
_BUCKET_ENTRY: Final = 5.0
# A search that misses some is taken where it costs less than such a share of one that misses fewer.
CLEARLY_CHEAPER: Final = 0.8
# From what finds everything to what depends most on queries that look like points.
AUTO: Final[tuple[Search, ...]] = ("exact", "scan", "tables")
_AUTO_LABELS: Final[tuple[Search, ...]] = ("exact", "scan", "scan_hamming", "tables")
# A named search whose recall is below the target by more gets a warning.
_BADLY: Final = 0.1


@dataclass(frozen=True, slots=True)
class Shape:
    """What counts are multiplied by.

    `width`: mean of the numbers that a point stores; `words` of a code; `planes`: hyperplanes that
    a query is multiplied with; `hashed_dims`: numbers of a query that they are multiplied with.
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
        """Return it for points of so many numbers in all; `nonzeros` is None of dense points."""
        bits = code_bits(parameters)
        width = dims if nonzeros is None else nonzeros / rows
        return cls(
            rows=rows,
            width=width,
            words=bits // WORD,
            planes=bits // code_depth(parameters),
            hashed_dims=dims_after(dims) if nonzeros is None else width,
            sparse=nonzeros is not None,
            cells=parameters.hash_family == "cells",
        )

    @property
    def log_bytes(self) -> float:
        """Base 2 logarithm of the bytes that all points take."""
        return math.log2(max(1.0, 4.0 * self.rows * self.width))


def nanoseconds(search: Search, cost: PoolCost, shape: Shape, *, dense: bool = True) -> float:
    """Return what one query costs; `dense` says what the query is, where points are sparse."""
    number = _SPARSE_BY_DENSE if dense else _SPARSE
    if search == "exact":
        if not shape.sparse:
            number = float(np.interp(shape.log_bytes, *_IN_ORDER))
        listed = cost.entries_read * _POSTING + (shape.rows * _SUM if cost.entries_read else 0)
        return _CALL + listed + cost.points_scored * (_ROW + number * shape.width)
    if not shape.sparse:
        number = float(np.interp(shape.log_bytes, *_APART))
    word = _WORD_HAMMING if search == "scan_hamming" else _WORD
    if shape.cells:
        word = _WORD_IN_CELL
    total = _CALL + _HASHING + shape.planes * shape.hashed_dims * _PROJECTION
    total += cost.codes_read * shape.words * word
    total += cost.lists_read * (_CELL if shape.cells else _BUCKET)
    total += cost.entries_read * _BUCKET_ENTRY
    return total + cost.points_scored * (_ROW_APART + number * shape.width)


def choose(
    costs: dict[Search, PoolCost],
    shape: Shape,
    target_recall: float,
    *,
    dense: bool = True,
    sought: Sought = "dense",
) -> Search:
    """Return the cheapest search that reaches the target; `exact` always does.

    A search that finds less on queries unlike the points must be clearly cheaper to be taken.
    """
    among = _AUTO_LABELS if sought == "labels" else AUTO
    best, least = among[0], nanoseconds(among[0], costs[among[0]], shape, dense=dense)
    for search in among[1:]:
        price = nanoseconds(search, costs[search], shape, dense=dense)
        if reaches(costs[search].recall, target_recall) and price < CLEARLY_CHEAPER * least:
            best, least = search, price
    return best


def reaches(recall: float, target_recall: float) -> bool:
    """Tell whether a recall, a mean of shares that may have lost its last digit, is enough."""
    return recall >= target_recall - 1e-9


class SearchTable:
    """Which search `auto` takes, and how many probes, for so many candidates."""

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
        """Take what Build measured, and the search and probes of an index that has no such table.

        `dense`: the queries are, whatever the points are.
        """
        self._pools = {cost.search: cost.pools for cost in costs if cost.pools}
        self._sizes = [pool.candidates for pool in self._pools.get("exact", ())]
        self._target, self._otherwise = target_recall, otherwise
        self._taken: list[Search] = [
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
        measured = manifest.search_costs
        taken = manifest.auto_search
        if manifest.points == "sparse" and dense:
            if manifest.auto_search_dense is not None:
                measured, taken = manifest.search_costs_dense, manifest.auto_search_dense
            else:
                measured = tuple(without_lists(cost, manifest.rows) for cost in measured)
        return cls(
            measured,
            Shape.of(
                manifest.parameters,
                manifest.rows,
                manifest.dims,
                manifest.nonzeros if manifest.points == "sparse" else None,
            ),
            manifest.parameters.target_recall,
            (taken, manifest.n_probes),
            sought=sought,
            dense=dense or manifest.points == "dense",
        )

    def at(self, candidates: int) -> tuple[Search, int]:
        """Return the search that `auto` takes for so many candidates, and the probes of `tables`.

        Between two measured numbers the larger counts. Past the last, `exact` is taken, or the scan
        where it misses at most half of what it may.
        """
        if not self._sizes:
            return self._otherwise
        place = bisect.bisect_left(self._sizes, candidates)
        if place < len(self._sizes):
            return self._taken[place], self._pools["tables"][place].n_probes
        half = (1 + self._target) / 2
        safe = self._taken[-1] == "scan" and reaches(self._pools["scan"][-1].recall, half)
        return "scan" if safe else "exact", self._pools["tables"][-1].n_probes

    def _hash_limit(self, candidates: int) -> int:
        """Return how many points to hash for so many candidates, 0 where Build did not say.

        On a line between two measured numbers; as large a share past the last and before the first.
        """
        if not self._sizes or not candidates:
            return 0
        limits = [pool.hash_limit for pool in self._pools["scan"]]
        last = min(max(candidates, self._sizes[0]), self._sizes[-1])
        limit = float(np.interp(last, self._sizes, limits))
        return math.ceil(limit * candidates / last)

    def recall(self, search: Search, candidates: int) -> float:
        """Return what a search is known to find at least, of so many candidates; 1 if unknown."""
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
        """Fill in the defaults; `auto` becomes the search for the candidates that are asked for."""
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
        self, parameters: QueryParameters, wanted: EffectiveParameters, rows: int
    ) -> tuple[WarningInfo, ...]:
        """Return what is to be said of a named search that misses the target badly."""
        if parameters.search == "auto" or parameters.n_probes is not None:
            return ()
        pool = pool_of(wanted, rows)
        recall = self.recall(wanted.search, pool)
        if wanted.search == "exact" or recall >= self._target - _BADLY:
            return ()
        if wanted.search != "tables" and not 0 < wanted.hash_limit < rows:
            return ()
        sentence = (
            f"search {wanted.search} finds about {recall:.2f} of the nearest {pool}, less than "
            f"target_recall {self._target:g}; auto takes {self.at(pool)[0]}"
        )
        return (WarningInfo("TARGET_RECALL_MISSED", sentence, "search"),)


def pool_of(limits: EffectiveParameters, rows: int) -> int:
    """Return how many candidates a query has room for, or fewer where few points are hashed.

    A hash limit below the default is the caller's own bound: what is hashed then is measured by a
    quarter of it.
    """
    candidates = limits.candidates_limit or rows
    if limits.hash_limit:
        candidates = min(candidates, max(limits.k, limits.hash_limit // _HASHED))
    return min(candidates, rows)


def without_lists(cost: SearchCost, rows: int) -> SearchCost:
    """Return the cost of a dense query of sparse points, which no posting lists help."""
    if cost.search != "exact":
        return cost
    pools = (replace(pool, points_scored=float(rows), entries_read=0.0) for pool in cost.pools)
    return replace(cost, pools=tuple(pools))
