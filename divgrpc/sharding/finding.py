"""Finds the candidates of a query among the points of all shards.

Three total orders make the candidates independent of how the points are divided. Points that are
found by code are ordered by their distance by code, and then by a priority, or by distance and id;
one limit holds for all shards. Those within the limit are ordered by distance and id, and the
nearest of them are the candidates.

A shard is asked for a few more points than its share of a limit (`share_of`). If it has more, and
if all that it sent are within the limit, it is asked again for as many as the limit allows.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.errors import LimitExceededError
from divgrpc.kernels import records, replies
from divgrpc.kernels.records import Plan
from divgrpc.search.passing import PassingRows
from divgrpc.search.plan import QueryPlan
from divgrpc.sharding import conditions, layouts
from divgrpc.sharding.hashed_query import HashedQuery
from divgrpc.sharding.layouts import ALL, CELLS, CELLS_BY_CODE, SCAN, TABLES, VECTOR_BYTES_MAX
from divgrpc.sharding.limited_cache import LimitedCache
from divgrpc.sharding.merging import Candidates, Merger, Question, Replies, Selection, Sources
from divgrpc.sharding.messages import Buffer
from divgrpc.sharding.rounds import Transcript, parts_of
from divgrpc.types import IntArray
from divgrpc.types.filters import Filter
from divgrpc.vectors import SparseRows

_SIGNED: Final = 2**63
# Share of the queries in which a shard is asked again for points.
_AGAIN_SHARE: Final = 0.003
# Maximum number of bytes of filters and of the numbers of points that pass them, which are kept.
_COUNT_BYTES_MAX: Final = 4 << 20
# Maximum number of bytes of the vectors for rows that are answered one by one. Shards are asked for
# more than the candidates of a row, and several times.
_BATCH_BYTES_MAX: Final = 2 * VECTOR_BYTES_MAX
_NO_KEYS: Final = np.empty(0, np.int64)
# What `PoolGrowth.factor` may return.
GROWTHS: Final = (1, 2, 4)


@dataclass(frozen=True, eq=False)
class Restriction:
    """What points must meet.

    filters: they pass all these filters.
    exclude_ids: they have none of these ids.
    exclude_keys: (m,) they have none of these keys, which ascend.
    """

    filters: tuple[Filter, ...] = ()
    exclude_ids: Sequence[int] | Sequence[str] = ()
    exclude_keys: IntArray = field(default_factory=lambda: _NO_KEYS)

    @functools.cached_property
    def _encoded(self) -> bytes:
        return conditions.encode(self.filters, self.exclude_ids)

    @property
    def key(self) -> bytes | None:
        """The filters as bytes; None if ids are excluded, which few queries repeat."""
        return None if self.exclude_ids or len(self.exclude_keys) else self._encoded

    @property
    def columns(self) -> dict[str, Array]:
        """The columns of requests that say this."""
        return {"filter": np.frombuffer(self._encoded, np.uint8), "exclude": self.exclude_keys}


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
        return self._count_points(replace(self.restriction, exclude_keys=keys))

    def that_pass(self, condition: Filter) -> "PassingSomewhere":
        """Return those of the points that also pass a filter."""
        filters = (*self.restriction.filters, condition)
        return self._count_points(replace(self.restriction, filters=filters))


class FilterCounts:
    """The numbers of points that pass filters, kept because many queries repeat a filter."""

    def __init__(self, cells: int) -> None:
        """Keep the numbers of points of an index with so many cells, 0 without cells."""
        self._cells = cells
        # The number of all points; the cells with such points, and their numbers.
        self._counts: LimitedCache[tuple[int, npt.NDArray[np.int32], npt.NDArray[np.int32]]] = (
            LimitedCache(_COUNT_BYTES_MAX)
        )

    def get(self, restriction: Restriction) -> tuple[int, npt.NDArray[np.int32]] | None:
        """Return the numbers of points in all cells and in each; None if they are not kept."""
        key = restriction.key
        counts = None if key is None else self._counts.get(key)
        if counts is None:
            return None
        total, places, numbers = counts
        cells = np.zeros(self._cells, np.int32)
        cells[places] = numbers
        return total, cells

    def keep(self, restriction: Restriction, total: int, cells: npt.NDArray[np.int32]) -> None:
        """Keep the numbers of points, unless ids are excluded."""
        key = restriction.key
        if key is None:
            return
        # Most filters of quotas are on one value, which few points have.
        places = np.flatnonzero(cells).astype(np.int32)
        numbers = cells[places]
        self._counts.put(key, (total, places, numbers), len(key) + places.nbytes + numbers.nbytes)


def columns_of(passing: PassingRows | None) -> dict[str, Array]:
    """Return the columns of requests about points on shards; None stands for all points."""
    if passing is None:
        return {}
    assert isinstance(passing, PassingSomewhere)  # noqa: S101  # routers make no other kind
    return passing.columns


class _Amounts(NamedTuple):
    """How many points to ask for, by the names of the numbers in `layouts`."""

    rows: int
    vectors: int
    min_points: int = 0
    enough: int = 0

    def share(self, shards: int) -> "_Amounts":
        """Return what one of several shards is asked for at first."""
        return _Amounts(*(amount and share_of(amount, shards) for amount in self))


class _Inquiry(NamedTuple):
    """What shards are asked for.

    how: ALL to TABLES of `layouts`.
    rule: how candidates are selected from the replies (`kernels.replies`).
    amounts: how many points are wanted of all shards.
    """

    query: HashedQuery
    how: int
    rule: int
    amounts: _Amounts


@functools.lru_cache(1024)
def share_of(limit: int, shards: int) -> int:
    """Return how many of the `limit` best points one of several shards is asked for at first.

    Points are placed at random, so the number of the best ones on a shard has a binomial
    distribution. In `_AGAIN_SHARE` of the queries, some shard has at least as many of them as it is
    asked for. The quantile is computed by the expansion of Cornish and Fisher.
    """
    if shards == 1:
        return limit
    mean, quantile = limit / shards, NormalDist().inv_cdf(1 - _AGAIN_SHARE / shards)
    skew = (quantile**2 - 1) * (1 - 2 / shards) / 6
    return min(limit, math.ceil(mean + quantile * math.sqrt(mean * (1 - 1 / shards)) + skew))


class TooManyRowsError(LimitExceededError):
    """Shards would send more for the rows of a batch than a router takes."""

    reason = "REPLY_TOO_LARGE"


def rows_together(plan: Plan, open_points: int, row_bytes: int) -> int:
    """Return how many rows of a batch shards may send points for, at least 1.

    open_points: number of points that may be hits. row_bytes: as in `Finder`.
    """
    candidates = plan.pool_limit or plan.candidates_limit or plan.hash_limit or open_points
    if plan.step == records.GREEDY and plan.candidates_limit:
        # A pool grows in later rounds, if near-copies crowd it.
        candidates = plan.candidates_limit
    size = min(candidates, open_points) * row_bytes
    return max(1, VECTOR_BYTES_MAX // max(1, size))


def check_rows(rows: int, plan: Plan, open_points: int, row_bytes: int) -> None:
    """Raise `TooManyRowsError` if shards would send too much for a batch of `rows` rows.

    The other arguments are those of `rows_together`.
    """
    most = rows_together(plan, open_points, row_bytes)
    if rows > most:
        raise _too_many_rows(most, VECTOR_BYTES_MAX)


def check_batch(rows: int, size: int) -> None:
    """Raise `TooManyRowsError` if shards were asked for too much for the first rows of a batch.

    size: the bytes of these vectors (`Transcript.vector_bytes`). One row may have any number.
    """
    if rows > 0 and size > _BATCH_BYTES_MAX:
        raise _too_many_rows(rows, _BATCH_BYTES_MAX)


def _too_many_rows(most: int, size: int) -> TooManyRowsError:
    return TooManyRowsError(
        f"queries must have at most {most:,} rows on several shards, because the vectors of their"
        f" candidates take more than {size >> 20} MiB; send fewer rows at a time"
    )


def check_bytes(candidates: int, row_bytes: int) -> None:
    """Raise `LimitExceededError` if the vectors of the candidates take too much memory."""
    if candidates * row_bytes <= VECTOR_BYTES_MAX:
        return
    most = VECTOR_BYTES_MAX // row_bytes
    raise LimitExceededError(
        f"candidates_limit must be at most {most:,} on several shards, because the vectors of"
        f" {candidates:,} candidates take more than {VECTOR_BYTES_MAX >> 20} MiB"
    )


class Finder:
    """Finds candidates of queries with one plan.

    rows: number of points of each shard.
    has_terms: whether codes estimate distances (`Hashing.terms`).
    row_bytes: number of bytes of the vector of a dense point, or of the mean sparse point.
    attributes: (a,) numbers of attributes whose values shards send with vectors.
    growth: how many times as many vectors as `first_vectors` are asked for (`PoolGrowth`).
    vectors_max: the vectors of further candidates are asked for if these are at most so many.
    values: the messages with these values so far, as `layouts.values_reply`, each with its shard.
    """

    def __init__(
        self,
        rows: Sequence[int],
        transcript: Transcript,
        merger: Merger,
        plan: QueryPlan,
        passing: PassingRows | None,
        *,
        has_terms: bool,
        row_bytes: int,
        attributes: npt.NDArray[np.int32],
        growth: int,
        vectors_max: int,
    ) -> None:
        self.values: list[tuple[int, Buffer]] = []
        self._attributes, self._growth, self._vectors_max = attributes, growth, vectors_max
        self._shards = [shard for shard, count in enumerate(rows) if count]
        self._transcript, self._has_terms, self._row_bytes = transcript, has_terms, row_bytes
        self._merger, self._whole_plan, self._plan = merger, plan, plan.kernel
        self._open = sum(rows) if passing is None else passing.count
        self._restriction, self._vectors = columns_of(passing), self.first_vectors

    def find(self, query: HashedQuery, vectors: int) -> Candidates | None:
        """Return the candidates of a query, or None if replies are missing.

        vectors: the number of candidates whose vectors are wanted, the nearest ones.
        """
        self._vectors = vectors
        search, limit = self._plan.search, self._plan.hash_limit
        n_probes = len(query.cells) if search == records.TABLES else 0
        if query.in_cells == 0:
            return Candidates.none(n_probes)
        if query.in_cells > 0:
            if 0 < limit < query.in_cells:
                return self._by_code(query, CELLS_BY_CODE, n_probes)
            return self._nearest(query, CELLS, query.in_cells, n_probes)
        if search == records.TABLES:
            return self._in_tables(query)
        return self._anywhere(query, 0)

    def _anywhere(self, query: HashedQuery, n_probes: int) -> Candidates | None:
        """Find candidates among all points, by code if the plan limits the number of points."""
        limit = self._plan.hash_limit
        if self._plan.search != records.EXACT and 0 < limit < self._open:
            return self._by_code(query, SCAN, n_probes)
        return self._nearest(query, ALL, min(self._open, limit or self._open), n_probes)

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

    def _inquire(self, query: HashedQuery, how: int, rule: int, amounts: _Amounts) -> _Inquiry:
        """Return an inquiry for the vectors that this call has asked for, or for those of `growth`.

        amounts: as in `_Inquiry`, but with all vectors that may be wanted. Another thread, or this
            one before, may have begun the call with another growth.
        """
        first = self.first_vectors

        def limit(growth: int) -> _Amounts:
            growth = growth if growth * first <= self._vectors_max else 1
            return amounts._replace(vectors=min(amounts.vectors, growth * first))

        def has_asked(amounts: _Amounts) -> bool:
            share = amounts.share(len(self._shards))
            return self._transcript.has_asked("find", self._message(query, how, share))

        limited = limit(self._growth)
        if first < amounts.vectors and not (self._transcript.is_empty or has_asked(limited)):
            limited = next(filter(has_asked, map(limit, GROWTHS)), limited)
        return _Inquiry(query, how, rule, limited)

    def _ask(self, inquiry: _Inquiry) -> Replies | None:
        """Ask all shards for their share, and return the replies."""
        share = inquiry.amounts.share(len(self._shards))
        message = self._message(inquiry.query, inquiry.how, share)
        messages = self._ask_all("find", dict.fromkeys(self._shards, message))
        if messages is None:
            # Nobody knows how many points the buckets of tables have.
            is_limited = (
                inquiry.how != TABLES or self._plan.hash_limit or self._plan.candidates_limit
            )
            vectors = min(len(self._shards) * share.vectors, self._open) if is_limited else 0
            self._transcript.vector_bytes += vectors * self._row_bytes
            return None
        self._transcript.vector_bytes += sum(map(len, messages.values()))
        sources = Sources.of(layouts.FIND_REPLY, messages)
        return self._merger.join(sources, inquiry.rule, (share.rows, share.vectors))

    def _ask_again(
        self, inquiry: _Inquiry, before: Replies, again: Sequence[int]
    ) -> Replies | None:
        """Ask shards for as many points as there may be, and return the replies of all.

        again: numbers of the replies of these shards.
        """
        message = self._message(inquiry.query, inquiry.how, inquiry.amounts)
        shards = [before.sources.shards[number] for number in again]
        more = self._ask_all("more", dict.fromkeys(shards, message))
        if more is None:
            return None
        amounts = before.sizes[:, : replies.POINTS]
        amounts[again] = inquiry.amounts.rows, inquiry.amounts.vectors
        messages = dict(zip(before.sources.shards, before.sources.messages, strict=True))
        sources = Sources.of(layouts.FIND_REPLY, {**messages, **more})
        return self._merger.join(sources, inquiry.rule, amounts)

    def _ask_all(self, name: str, messages: dict[int, bytes]) -> Mapping[int, Buffer] | None:
        """Return the `FIND_REPLY` of each shard, and keep the values that come with it."""
        received = self._transcript.ask(name, messages)
        if received is None or not len(self._attributes):
            return received
        parts = {shard: parts_of(shard, message, 2) for shard, message in received.items()}
        self.values += [(shard, values) for shard, (_, values) in parts.items()]
        return {shard: reply for shard, (reply, _) in parts.items()}

    def _message(self, query: HashedQuery, how: int, amounts: _Amounts) -> bytes:
        """Return the message that asks a shard for points."""
        key = (how, *amounts)
        message = query.messages.get(key)
        if message is None:
            message = query.messages[key] = self._pack(query, how, amounts)
        return message

    def _pack(self, query: HashedQuery, how: int, amounts: _Amounts) -> bytes:
        plan, seed = self._plan, int(self._plan.seed)
        numbers = np.zeros(layouts.REQUEST_NUMBERS, np.int64)
        numbers[layouts.HOW] = how
        numbers[layouts.ROWS], numbers[layouts.VECTORS] = amounts.rows, amounts.vectors
        numbers[layouts.MIN_POINTS], numbers[layouts.ENOUGH] = amounts.min_points, amounts.enough
        numbers[layouts.HAMMING] = plan.search == records.SCAN_HAMMING
        numbers[layouts.PROBES], numbers[layouts.UNIFORM] = plan.n_probes, plan.uniform
        numbers[layouts.SEED] = seed - 2 * _SIGNED if seed >= _SIGNED else seed
        columns: dict[str, Array] = {"numbers": numbers, **self._restriction}
        columns["attributes"] = self._attributes
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

    def _nearest(
        self, query: HashedQuery, how: int, n_hashed: int, n_probes: int
    ) -> Candidates | None:
        """Return the nearest of all points, or of all points of the cells."""
        most = self._widest(n_hashed)
        candidates = self._select(query, how, replies.BY_DISTANCE, most, most)
        return candidates and candidates._replace(n_hashed=n_hashed, n_probes=n_probes)

    def _by_code(self, query: HashedQuery, how: int, n_probes: int) -> Candidates | None:
        """Return the nearest of the points that are within the limit by code."""
        limit = self._plan.hash_limit
        has_estimates = self._has_terms and self._plan.search != records.SCAN_HAMMING
        is_estimate = how == CELLS_BY_CODE or has_estimates
        rule = replies.BY_ESTIMATE if is_estimate else replies.BY_SCORE
        candidates = self._select(query, how, rule, limit, self._widest(limit))
        return candidates and candidates._replace(n_probes=n_probes)

    def _select(
        self, query: HashedQuery, how: int, rule: int, limit: int, most: int
    ) -> Candidates | None:
        """Return at most `most` candidates, of the best `limit` points of all shards."""
        check_bytes(min(most, self._vectors), self._row_bytes)
        inquiry = self._inquire(query, how, rule, _Amounts(limit, most))
        received = self._ask(inquiry)
        if received is None:
            return None
        question = Question(self._whole_plan, rule, limit, most, self._vectors)
        selection = self._merger.select(received, question)
        if selection.n_short:
            again = self._ask_again(inquiry, received, received.short)
            if again is None:
                return None
            selection = self._merger.select(again, question)
        return self._with_vectors(selection)

    def _in_tables(self, query: HashedQuery) -> Candidates | None:
        """Return the nearest of the points of the probed buckets.

        If all buckets hold too few points, candidates are found among all points.
        """
        plan = self._plan
        enough = 0 if plan.uniform else plan.hash_limit
        rule = replies.BY_PROBE if enough else replies.BY_EXTRA_PROBE
        most = self._widest(min(plan.hash_limit or self._open, self._open))
        # A sample of all points that are found is taken of the samples of the shards.
        limit = plan.hash_limit if plan.uniform else 0
        amounts = _Amounts(limit, most, plan.min_points, enough)
        inquiry = self._inquire(query, TABLES, rule, amounts)
        amounts = inquiry.amounts
        received = self._ask(inquiry)
        if received is None:
            return None
        stop, again = self._last_probe(received, amounts.share(len(self._shards)), enough)
        if again:
            received = self._ask_again(inquiry, received, again)
            if received is None:
                return None
            stop, _ = self._last_probe(received, amounts, enough)
        question = Question(self._whole_plan, rule, limit, most, self._vectors)
        selection = self._merger.select(received, question, stop)
        if selection.n_short:
            received = self._ask_again(inquiry, received, received.short)
            if received is None:
                return None
            selection = self._merger.select(received, question, stop)
        if selection.candidates.n_hashed < plan.min_points:
            return self._anywhere(query, stop)
        return self._with_vectors(selection)

    def _last_probe(
        self, received: Replies, amounts: _Amounts, enough: int
    ) -> tuple[int, list[int]]:
        """Return the number of probes of the search, and the replies of shards to ask again.

        amounts: what the shards were asked for. The number is meaningless if there are such shards.
        """
        plan, probed, ended = self._plan, [], []
        for number, sizes in enumerate(received.sizes.tolist()):
            count = sizes[replies.TOTAL]
            probed.append(sizes[replies.PROBED])
            has_least = probed[-1] >= plan.n_probes and count >= amounts.min_points
            if has_least or 0 < amounts.enough <= count:
                ended.append(number)
        known = min((probed[number] for number in ended), default=max(probed))
        stop = self._merger.last_probe(self._whole_plan, received, enough)
        return (stop, []) if stop <= known else (known, ended)

    # Vectors.

    def _with_vectors(self, selection: Selection) -> Candidates | None:
        """Return candidates with their vectors; None if vectors must be fetched first."""
        candidates = selection.candidates
        count = min(self._vectors, len(candidates.ids))
        check_bytes(count, self._row_bytes)
        if not selection.n_absent:
            return candidates
        absent = np.flatnonzero(candidates.places[:count] < 0)
        owners = candidates.owners[absent]
        members = {
            candidates.sources.shards[owner]: absent[owners == owner]
            for owner in np.unique(owners).tolist()
        }
        messages = {
            shard: layouts.FETCH_REQUEST.pack({"ids": candidates.ids[places]})
            for shard, places in members.items()
        }
        fetched = self._transcript.ask("fetch", messages)
        return None if fetched is None else self._merger.add(candidates, members, fetched)
