"""Finds the candidates of a query among the points of all shards.

Three total orders make the candidates independent of how the points are divided. Points that are
found by code are ordered by their distance by code, and then by a priority, or by distance and id;
one limit holds for all shards. Those within the limit are ordered by distance and id, and the
nearest of them are the candidates.

A shard is asked for a few more points than its share of a limit (`share_of`). If it has more, and
if all that it sent are within the limit, it is asked again for as many as the limit allows.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.errors import LimitExceededError
from divgrpc.kernels import records
from divgrpc.search.passing import PassingRows
from divgrpc.search.plan import QueryPlan
from divgrpc.sharding import conditions, layouts
from divgrpc.sharding.hashed_query import HashedQuery
from divgrpc.sharding.layouts import ALL, CELLS, CELLS_BY_CODE, SCAN, TABLES
from divgrpc.sharding.placement import priorities
from divgrpc.sharding.rounds import Transcript
from divgrpc.types import FloatArray, IntArray
from divgrpc.types.filters import Filter
from divgrpc.vectors import Rows, SparseRows, concatenate_rows

_SIGNED: Final = 2**63
_NO_KEYS: Final = np.empty(0, np.int64)


class Restriction(NamedTuple):
    """What points must meet.

    filters: they pass all these filters.
    exclude_ids: they have none of these ids.
    exclude_keys: (m,) they have none of these keys, which ascend.
    """

    filters: tuple[Filter, ...] = ()
    exclude_ids: Sequence[int] | Sequence[str] = ()
    exclude_keys: IntArray = _NO_KEYS

    @property
    def columns(self) -> dict[str, Array]:
        """The columns of requests that say this."""
        encoded = conditions.encode(self.filters, self.exclude_ids)
        return {"filter": np.frombuffer(encoded, np.uint8), "exclude": self.exclude_keys}


class PassingSomewhere(PassingRows):
    """The points of all shards that pass a filter; only the shards know which ones.

    restriction: what these points meet.
    columns: the columns of requests that say this.
    count: number of points that pass.
    cells: (C,) int32 number of these points in each cell; empty without cells.
    """

    def __init__(
        self,
        restriction: Restriction,
        count: int,
        cells: npt.NDArray[np.int32],
        count_points: "Callable[[Restriction], PassingSomewhere]",
    ) -> None:
        """Take what the points meet and how many there are.

        count_points: returns the points that meet another restriction.
        """
        self.restriction, self.columns = restriction, restriction.columns
        self.count, self.cells = count, cells
        self._count_points = count_points

    def without(self, rows: IntArray) -> PassingRows:
        """Return the points that pass, except the points with the keys `rows` (m,)."""
        keys = np.union1d(self.restriction.exclude_keys, rows)
        return self._count_points(self.restriction._replace(exclude_keys=keys))

    def that_pass(self, condition: Filter) -> "PassingSomewhere":
        """Return those of the points that also pass a filter."""
        filters = (*self.restriction.filters, condition)
        return self._count_points(self.restriction._replace(filters=filters))


def columns_of(passing: PassingRows | None) -> dict[str, Array]:
    """Return the columns of requests about points on shards; None stands for all points."""
    if passing is None:
        return {}
    assert isinstance(passing, PassingSomewhere)  # noqa: S101  # routers make no other kind
    return passing.columns


class Candidates(NamedTuple):
    """The candidates of one query.

    ids, distances: (m,) of the candidates, nearest first.
    points: the vectors of the first of them, and what selectors read beside vectors, by the names
        of `FETCH_REPLY`.
    n_hashed, n_probes, n_scored: as in `divgrpc.types.QueryStats`.
    """

    ids: IntArray
    distances: FloatArray
    points: dict[str, Array]
    n_hashed: int
    n_probes: int
    n_scored: int


class _Amounts(NamedTuple):
    """How many points to ask for, by the names of the numbers in `layouts`."""

    rows: int
    vectors: int
    min_points: int = 0
    enough: int = 0

    def share(self, shards: int) -> "_Amounts":
        """Return what one of several shards is asked for at first."""
        return _Amounts(*(amount and share_of(amount, shards) for amount in self))


class _Merged(NamedTuple):
    """Points of all shards.

    ids, codes, distances, tags: (m,) as in `FIND_REPLY`, or empty.
    owners, places: (m,) the shard of each point, and its place in the reply of the shard.
    """

    ids: IntArray
    codes: FloatArray
    distances: FloatArray
    tags: npt.NDArray[np.int32]
    owners: IntArray
    places: IntArray

    def take(self, selection: IntArray) -> "_Merged":
        columns: Any = (column[selection] if len(column) else column for column in self)
        return _Merged(*columns)


class _Replies(NamedTuple):
    """The replies to one question, by shard, and the points in them."""

    columns: Mapping[int, Mapping[str, Array]]
    points: _Merged

    @classmethod
    def of(cls, columns: Mapping[int, Mapping[str, Array]]) -> "_Replies":
        sizes = [len(reply["ids"]) for reply in columns.values()]
        joined: Any = [
            np.concatenate([reply[name] for reply in columns.values()])
            for name in ("ids", "codes", "distances", "tags")
        ]
        owners = np.repeat(np.array(list(columns), np.int64), sizes)
        places = np.concatenate([np.arange(size) for size in sizes])
        return cls(columns, _Merged(*(*joined, owners, places)))

    def sum_of(self, place: int) -> int:
        """Return the sum of a number over the shards."""
        return sum(int(reply["numbers"][place]) for reply in self.columns.values())


def share_of(limit: int, shards: int) -> int:
    """Return how many of the `limit` best points one of several shards is asked for at first.

    If points are placed at random, a shard has more of them once in tens of thousands of queries.
    """
    mean = limit / shards
    return min(limit, math.ceil(mean + 4 * math.sqrt(mean)))


class Finder:
    """Finds candidates of queries with one plan.

    rows: number of points of each shard.
    has_terms: whether codes estimate distances (`Hashing.terms`).
    row_bytes: number of bytes of the vector of a dense point, or of the mean sparse point.
    """

    def __init__(
        self,
        rows: Sequence[int],
        transcript: Transcript,
        plan: QueryPlan,
        passing: PassingRows | None,
        *,
        has_terms: bool,
        row_bytes: int,
    ) -> None:
        self._shards = [shard for shard, count in enumerate(rows) if count]
        self._transcript, self._has_terms, self._row_bytes = transcript, has_terms, row_bytes
        self._plan = plan.kernel
        self._open = sum(rows) if passing is None else passing.count
        self._restriction, self._vectors = columns_of(passing), self.first_vectors

    def find(self, query: HashedQuery, vectors: int) -> Candidates | None:
        """Return the candidates of a query, or None if replies are missing.

        vectors: the number of candidates whose vectors are wanted, the nearest ones.
        """
        self._vectors = vectors
        search, limit = self._plan.search, self._plan.hash_limit
        if query.in_cells == 0:
            n_probes = len(query.cells) if search == records.TABLES else 0
            return Candidates(np.empty(0, np.int64), np.empty(0, np.float32), {}, 0, n_probes, 0)
        if query.in_cells > 0:
            if 0 < limit < query.in_cells:
                candidates = self._by_code(query, CELLS_BY_CODE, limit)
            else:
                candidates = self._nearest(query, CELLS, query.in_cells)
            n_probes = len(query.cells) if search == records.TABLES else 0
            return candidates and candidates._replace(n_probes=n_probes)
        if search == records.TABLES:
            return self._in_tables(query)
        return self._anywhere(query, 0)

    def _anywhere(self, query: HashedQuery, n_probes: int) -> Candidates | None:
        """Find candidates among all points, by code if the plan limits the number of points."""
        limit = self._plan.hash_limit
        if self._plan.search != records.EXACT and 0 < limit < self._open:
            candidates = self._by_code(query, SCAN, limit)
        else:
            candidates = self._nearest(query, ALL, min(self._open, limit or self._open))
        return candidates and candidates._replace(n_probes=n_probes)

    @property
    def first_vectors(self) -> int:
        """The number of candidates whose vectors the selector reads, unless near-copies crowd them.

        A selector that is run outside the kernel reads all.
        """
        plan = self._plan
        is_growing = plan.step == records.GREEDY and plan.candidates_limit > 0
        return plan.candidates_limit if is_growing else self._open

    def _widest(self, n_hashed: int) -> int:
        """Return the number of candidates that the selector needs."""
        plan = self._plan
        return min(n_hashed, plan.pool_limit or plan.candidates_limit or n_hashed)

    # Questions.

    def _ask(self, query: HashedQuery, how: int, amounts: _Amounts) -> _Replies | None:
        """Ask all shards for their share, and return the replies."""
        message = self._message(query, how, amounts.share(len(self._shards)))
        replies = self._transcript.ask("find", dict.fromkeys(self._shards, message))
        return None if replies is None else _Replies.of(_unpacked(replies))

    def _ask_again(
        self, replies: _Replies, again: Iterable[int], message: bytes
    ) -> _Replies | None:
        """Ask some shards for more, and return the replies of all."""
        more = self._transcript.ask("more", dict.fromkeys(again, message))
        if more is None:
            return None
        return _Replies.of({**replies.columns, **_unpacked(more)})

    def _message(self, query: HashedQuery, how: int, amounts: _Amounts) -> bytes:
        """Return the message that asks a shard for points."""
        plan, seed = self._plan, int(self._plan.seed)
        numbers = np.zeros(layouts.REQUEST_NUMBERS, np.int64)
        numbers[layouts.HOW] = how
        numbers[layouts.ROWS], numbers[layouts.VECTORS] = amounts.rows, amounts.vectors
        numbers[layouts.MIN_POINTS], numbers[layouts.ENOUGH] = amounts.min_points, amounts.enough
        numbers[layouts.HAMMING] = plan.search == records.SCAN_HAMMING
        numbers[layouts.PROBES], numbers[layouts.UNIFORM] = plan.n_probes, plan.uniform
        numbers[layouts.SEED] = seed - 2 * _SIGNED if seed >= _SIGNED else seed
        columns: dict[str, Array] = {"numbers": numbers, **self._restriction}
        if how != ALL:
            columns["margins"] = query.margins
        if how in {CELLS, CELLS_BY_CODE}:
            columns |= {"cells": query.cells, "bases": query.bases}
        if isinstance(query.row, SparseRows):
            columns |= {"indices": query.row.indices, "values": query.row.values}
        else:
            columns["dense"] = query.row[0]
        return layouts.FIND_REQUEST.pack(columns)

    # Searches.

    def _nearest(self, query: HashedQuery, how: int, n_hashed: int) -> Candidates | None:
        """Return the nearest of all points, or of all points of the cells."""
        most = self._widest(n_hashed)
        self._check_bytes(min(most, self._vectors), self._row_bytes)
        amounts = _Amounts(most, min(most, self.first_vectors))
        replies = self._ask(query, how, amounts)
        if replies is None:
            return None
        selection = _nearest_of(replies.points, most)
        short = self._short(replies, selection, most)
        if short:
            again = self._ask_again(replies, short, self._message(query, how, amounts))
            if again is None:
                return None
            replies, selection = again, _nearest_of(again.points, most)
        return self._with_points(query, replies, selection, n_hashed)

    def _by_code(self, query: HashedQuery, how: int, limit: int) -> Candidates | None:
        """Return the nearest of the points that are within the limit by code."""
        most = self._widest(limit)
        self._check_bytes(min(most, self._vectors), self._row_bytes)
        amounts = _Amounts(limit, min(most, self.first_vectors))
        replies = self._ask(query, how, amounts)
        if replies is None:
            return None
        within = self._within(replies.points, how, limit)
        short = self._short(replies, within, limit)
        if short:
            again = self._ask_again(replies, short, self._message(query, how, amounts))
            if again is None:
                return None
            replies, within = again, self._within(again.points, how, limit)
        selection = _nearest_within(replies.points, within, most)
        return self._with_points(query, replies, selection, limit)

    def _in_tables(self, query: HashedQuery) -> Candidates | None:
        """Return the nearest of the points of the probed buckets.

        If all buckets hold too few points, candidates are found among all points.
        """
        plan = self._plan
        enough = 0 if plan.uniform else plan.hash_limit
        most = self._widest(min(plan.hash_limit or self._open, self._open))
        amounts = _Amounts(most, min(most, self.first_vectors), plan.min_points, enough)
        replies = self._ask(query, TABLES, amounts)
        if replies is None:
            return None
        stop, short = self._last_probe(replies, amounts.share(len(self._shards)))
        if short:
            again = self._ask_again(replies, short, self._message(query, TABLES, amounts))
            if again is None:
                return None
            replies = again
            stop, _ = self._last_probe(replies, amounts)
        within = self._of_probes(replies.points, stop, enough)
        if np.count_nonzero(replies.points.tags < stop) < plan.min_points:
            return self._anywhere(query, stop)
        selection = _nearest_within(replies.points, within, most)
        candidates = self._with_points(query, replies, selection, len(within))
        return candidates and candidates._replace(n_probes=stop)

    def _last_probe(self, replies: _Replies, amounts: _Amounts) -> tuple[int, list[int]]:
        """Return the number of probes of the search, and the shards that must probe further.

        amounts: what the shards were asked for. The number is meaningless if there are such shards.
        """
        plan = self._plan
        enough = 0 if plan.uniform else plan.hash_limit
        probed, stopped = {}, []
        for shard, reply in replies.columns.items():
            count, probed[shard] = len(reply["ids"]), int(reply["numbers"][layouts.PROBED])
            has_least = probed[shard] >= plan.n_probes and count >= amounts.min_points
            if has_least or 0 < amounts.enough <= count:
                stopped.append(shard)
        known = min((probed[shard] for shard in stopped), default=max(probed.values()))
        counts = np.cumsum(np.bincount(replies.points.tags, minlength=known)[:known])
        ends = (np.arange(1, known + 1) >= plan.n_probes) & (counts >= plan.min_points)
        if enough:
            ends |= counts >= enough
        if ends.any():
            return int(ends.argmax()) + 1, []
        return known, stopped

    def _of_probes(self, points: _Merged, stop: int, enough: int) -> IntArray:
        """Return the places of the points of the first `stop` probes, within the limit."""
        plan, inside = self._plan, np.flatnonzero(points.tags < stop)
        limit = plan.hash_limit
        if not 0 < limit < len(inside):
            return inside
        whole, ids = np.empty(0, np.int64), points.ids
        if enough:
            # Whole buckets are taken until the limit, and a sample of the last one.
            last = points.tags[inside] == stop - 1
            whole, inside = inside[~last], inside[last]
        order = np.argsort(priorities(int(plan.seed), ids[inside]), kind="stable")
        return np.concatenate((whole, inside[order[: limit - len(whole)]]))

    def _within(self, points: _Merged, how: int, limit: int) -> IntArray:
        """Return the places of the `limit` best points by code."""
        if len(points.ids) <= limit:
            return np.arange(len(points.ids))
        codes, plan = points.codes, self._plan
        last = np.partition(codes, limit - 1)[limit - 1]
        below, ties = np.flatnonzero(codes < last), np.flatnonzero(codes == last)
        ids = points.ids[ties]
        estimates = how == CELLS_BY_CODE or (
            self._has_terms and plan.search != records.SCAN_HAMMING
        )
        if estimates:
            order = np.argsort(ids, kind="stable")
        elif plan.uniform:
            order = np.argsort(priorities(int(plan.seed), ids), kind="stable")
        else:
            order = np.lexsort((ids, points.distances[ties]))
        return np.concatenate((below, ties[order[: limit - len(below)]]))

    @staticmethod
    def _short(replies: _Replies, within: IntArray, limit: int) -> list[int]:
        """Return the shards whose next point, which they did not send, may be within the limit."""
        kept = np.bincount(replies.points.owners[within], minlength=1)
        return [
            shard
            for shard, reply in replies.columns.items()
            if len(reply["ids"]) < min(limit, reply["numbers"][layouts.TOTAL])
            and (shard < len(kept) and kept[shard] == len(reply["ids"]))
        ]

    # Vectors.

    def _check_bytes(self, candidates: int, row_bytes: int) -> None:
        """Raise `LimitExceededError` if the vectors of the candidates take too much memory."""
        if candidates * row_bytes <= layouts.VECTOR_BYTES_MAX:
            return
        most = layouts.VECTOR_BYTES_MAX // row_bytes
        raise LimitExceededError(
            f"candidates_limit must be at most {most:,} on several shards, because the vectors of"
            f" {candidates:,} candidates take more than {layouts.VECTOR_BYTES_MAX >> 20} MiB"
        )

    def _with_points(
        self, query: HashedQuery, replies: _Replies, selection: IntArray, n_hashed: int
    ) -> Candidates | None:
        """Return the selected points with their vectors; None if vectors must be fetched first."""
        candidates = replies.points.take(selection)
        self._check_bytes(min(self._vectors, len(selection)), self._row_bytes)
        points = candidates.take(np.arange(min(self._vectors, len(selection))))
        parts: list[tuple[IntArray, Mapping[str, Array]]] = []
        missing: dict[int, IntArray] = {}
        for shard, reply in replies.columns.items():
            nearest, members = reply["nearest"], np.flatnonzero(points.owners == shard)
            vectors = np.full(len(reply["ids"]), -1)
            vectors[nearest] = np.arange(len(nearest))
            vectors = vectors[points.places[members]]
            parts.append((members[vectors >= 0], _taken(reply, vectors[vectors >= 0], query.row)))
            if (vectors < 0).any():
                missing[shard] = members[vectors < 0]
        messages = {
            shard: layouts.FETCH_REQUEST.pack({"ids": points.ids[members]})
            for shard, members in missing.items()
        }
        fetched = self._transcript.ask("fetch", messages)
        if fetched is None:
            return None
        for shard, members in missing.items():
            parts.append((members, layouts.FETCH_REPLY.unpack(fetched[shard])))
        scored = replies.sum_of(layouts.SCORED)
        joined = _joined(parts, query.row.shape[1])
        return Candidates(candidates.ids, candidates.distances, joined, n_hashed, 0, scored)


def _unpacked(replies: Mapping[int, bytes]) -> dict[int, dict[str, Array]]:
    return {shard: layouts.FIND_REPLY.unpack(reply) for shard, reply in replies.items()}


def _nearest_of(points: _Merged, most: int) -> IntArray:
    """Return the places of the nearest points, nearest first."""
    return np.lexsort((points.ids, points.distances))[:most]


def _nearest_within(points: _Merged, places: IntArray, most: int) -> IntArray:
    """Return the nearest of the points at some places, nearest first."""
    return places[_nearest_of(points.take(places), most)]


def _taken(reply: Mapping[str, Array], rows: IntArray, query: Rows) -> dict[str, Array]:
    """Return the vectors of some rows of a reply."""
    columns: dict[str, Array] = {}
    if len(reply["indptr"]):
        part = _sparse(reply, query.shape[1])[rows]
        columns |= {"indptr": part.indptr, "indices": part.indices, "values": part.values}
        columns["squares"] = reply["squares"][rows]
    else:
        columns["vectors"] = reply["vectors"][rows]
    if len(reply["inverse_lengths"]):
        columns["inverse_lengths"] = reply["inverse_lengths"][rows]
    return columns


def _sparse(reply: Mapping[str, Array], dims: int) -> SparseRows:
    return SparseRows(reply["indptr"], reply["indices"], reply["values"], dims)


def _joined(parts: Sequence[tuple[IntArray, Mapping[str, Array]]], dims: int) -> dict[str, Array]:
    """Return the vectors of all parts in the order of the candidates.

    Each part has the places of its candidates, and their vectors.
    """
    places = np.concatenate([part for part, _ in parts])
    order = np.argsort(places)
    columns: dict[str, Array] = {}
    if any(len(part) and len(reply.get("indptr", ())) for part, reply in parts):
        rows = concatenate_rows([_sparse(reply, dims) for part, reply in parts if len(part)])
        assert isinstance(rows, SparseRows)  # noqa: S101  # all parts are
        rows = rows[order]
        columns |= {"indptr": rows.indptr, "indices": rows.indices, "values": rows.values}
    for name in ("vectors", "squares", "inverse_lengths"):
        arrays = [reply[name] for part, reply in parts if len(part) and len(reply.get(name, ()))]
        if arrays:
            columns[name] = np.concatenate(arrays)[order]
    return columns
