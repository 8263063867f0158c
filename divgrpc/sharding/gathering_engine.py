"""An engine whose points are on shards, and whose methods raise where replies are missing.

A row is the key of a point here: its integer id, or the key of its text id. A searcher numbers the
points that it has gathered.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, read_only
from divgrpc.columns.annotations import INDPTR
from divgrpc.columns.filters import Flags
from divgrpc.columns.ids import as_integers, encode_texts, is_texts
from divgrpc.columns.reader import RowReader, ValueNumbers
from divgrpc.engine import Engine
from divgrpc.errors import DivgrpcError, IndexDamagedError, invalid
from divgrpc.labels.prediction import LabelSets
from divgrpc.metrics import ListDistances, PointCategories, Topics, list_distances
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.parameters.predict import PredictParameters
from divgrpc.quotas.bounds import QuotaColumn
from divgrpc.search.arrays import Answers
from divgrpc.search.passing import PassingRows
from divgrpc.search.quota_population import Population
from divgrpc.search.reports import ids_of
from divgrpc.search.results import joined
from divgrpc.sharding import checks, finding, layouts
from divgrpc.sharding.finding import FilterCounts, PassingSomewhere, Restriction, columns_of
from divgrpc.sharding.gathered_columns import (
    UNREADABLE,
    GatheredColumns,
    GatheredValues,
    check_rows,
    reading,
)
from divgrpc.sharding.gathered_labels import GatheredLabels
from divgrpc.sharding.gathering import NO_ATTRIBUTES, GatheringSearcher
from divgrpc.sharding.limited_cache import LimitedCache
from divgrpc.sharding.messages import Buffer, Layout
from divgrpc.sharding.part_points import PartPoints
from divgrpc.sharding.partial import without
from divgrpc.sharding.quota_filters import no_forbidden, same_values
from divgrpc.sharding.rounds import ShardFaultError, Transcript, UnansweredError
from divgrpc.storage.generations import Generation
from divgrpc.stored_points import ResultT, RowsT
from divgrpc.types import FloatArray, IntArray, LabelResult, QueryResult
from divgrpc.types.filters import Condition, Filter
from divgrpc.types.quotas import Quota, Quotas
from divgrpc.types.records import IdArray, Parts, Records, SparseVectors
from divgrpc.vectors import RowsLike, SparseRows, as_rows, query_rows

# A router has no points.
_NO_POINTS: Final[dict[str, Array]] = {"ids": read_only(np.empty(0, np.int64))}
Ids: TypeAlias = Sequence[int] | Sequence[str] | IdArray
# Maximum number of bytes of the different values of points that are kept.
_VALUE_BYTES_MAX: Final = 16 << 20
_NO_PARTS: Final = np.zeros(len(Parts._fields), np.uint8)
# Maximum number of bytes of the messages of an evaluation to one shard in a round.
_MESSAGE_BYTES_MAX: Final = 16 << 20
# Maximum number of stored numbers that an evaluation lets a shard read in a round, except for one
# query. A shard answers a round at once, and other queries wait meanwhile.
_NUMBERS_MAX: Final = 1 << 30


class GatheringEngine(Engine):
    """An engine whose points are on shards. One thread at a time may use it.

    Its methods raise `UnansweredError` where the transcript lacks replies of shards.
    """

    is_divided = True

    def __init__(
        self,
        generation: Generation,
        rows: Sequence[int],
        name: str = "",
        folder: Path | None = None,
    ) -> None:
        """Take what a router reads of a generation; see `Engine` for `name` and `folder`.

        rows: number of points of each shard.
        """
        self._shard_rows = rows
        # The shards that answers leave out, and the share of the points that is searched.
        self.missing: tuple[int, ...] = ()
        self.coverage = 1.0
        self._router_part = generation
        self._partial: GatheringEngine | None = None
        whole = replace(generation, arrays=generation.arrays | _NO_POINTS)
        super().__init__(whole, name, folder)
        self._description = layouts.describe_reply(
            self.manifest.attributes, has_texts=self._has_texts, has_payloads=self._has_payloads
        )
        self._counts = layouts.count_reply(self._description)
        self._filter_counts = FilterCounts(self._n_cells)
        self._columns = GatheredColumns(self.arrays, self.manifest.attributes, self.dims)
        self._values = GatheredValues(self._columns, layouts.values_reply(self._description))
        # The different values of points that pass a filter, by the filter and attributes.
        self._populations: LimitedCache[dict[str, Array]] = LimitedCache(_VALUE_BYTES_MAX)
        self._stored = layouts.get_reply(self._description, tuple(self.manifest.arrays))
        self._widths = {"vectors": self.dims, "sizes": 1 + len(Parts._fields)}
        self.transcript = Transcript()

    def _make_searcher(self, generation: Generation) -> GatheringSearcher:
        manifest = generation.manifest
        # A sparse value has a column too.
        value_bytes = 4 if manifest.points == "dense" else 8
        self._gathering = GatheringSearcher(
            generation.arrays, manifest.parameters, manifest.dims, self._shard_rows,
            tuple(manifest.arrays),
            row_bytes=value_bytes * -(-manifest.nonzeros // max(1, manifest.rows)),
        )  # fmt: skip
        return self._gathering

    def without_shards(
        self, missing: Sequence[int], open_part: Callable[[int], Generation]
    ) -> "GatheringEngine":
        """Return an engine that leaves out some shards; it is kept until others are left out.

        missing: the numbers of the shards, which ascend. Another shard must have points.
        open_part: returns what `partial.without` reads of a shard.
        """
        engine = self._partial
        if engine is None or engine.missing != tuple(missing):
            part = without(self._router_part, map(open_part, missing))
            rows = [0 if shard in missing else n for shard, n in enumerate(self._shard_rows)]
            engine = GatheringEngine(part, rows, self._name, self._folder)
            engine.missing, engine.coverage = tuple(missing), sum(rows) / max(1, self.rows)
            self._partial = engine
        engine.defaults = self.defaults
        return engine

    @property
    def transcript(self) -> Transcript:
        """The replies that are known for the current call."""
        return self._gathering.transcript

    @transcript.setter
    def transcript(self, transcript: Transcript) -> None:
        """Begin a call, or begin it anew, with these replies."""
        self._use(transcript)
        self._gathering.attributes = NO_ATTRIBUTES
        # The shard and the sizes of points by their keys, as far as replies have them.
        self._known: dict[int, tuple[int, list[int]]] = {}

    def _use(self, transcript: Transcript) -> None:
        """Use these replies for a part of the current call."""
        self._gathering.transcript = transcript
        self._values.clear()

    def passing(self, condition: Filter | None, exclude_ids: Ids = ()) -> PassingRows | None:
        """Return the points that pass a filter and have none of `exclude_ids`.

        Raises `UnansweredError` if the shards have not yet counted them.
        """
        most = LIMITS["exclude_ids_max"]
        if len(exclude_ids) > most:
            raise invalid("exclude_ids", f"must be at most {most}, got {len(exclude_ids)}")
        excluded = self._plain_ids(exclude_ids, "exclude_ids")
        if condition is None and not excluded:
            return None
        filters = () if condition is None else (condition,)
        return self._count_points(Restriction(filters, excluded))

    def _count_points(self, restriction: Restriction) -> PassingSomewhere:
        """Return the points that meet a restriction; raises `UnansweredError`.

        Their numbers are kept for the next query with the same filters, because the points of a
        generation never change.
        """
        columns = restriction.columns
        if counts := self._filter_counts.get(restriction):
            return PassingSomewhere(restriction, *counts, self._count_points)
        total, cells = 0, np.zeros(self._n_cells, np.int32)
        replies = self._replies("count", columns, layouts.COUNT_REQUEST, self._counts)
        for shard, reply in replies.items():
            rows, most = reply["count"].tolist(), self._shard_rows[shard]
            in_cells = reply["cells"]
            if len(rows) != 1 or not 0 <= rows[0] <= most or in_cells.shape != cells.shape:
                raise ShardFaultError(shard, "message has an impossible count")
            if len(cells) and (in_cells.min() < 0 or in_cells.sum() != rows[0]):
                raise ShardFaultError(shard, "message has an impossible count of a cell")
            total, cells = total + rows[0], cells + in_cells
        cells = read_only(cells)
        self._filter_counts.keep(restriction, total, cells)
        return PassingSomewhere(restriction, total, cells, self._count_points)

    @property
    def _all_rows(self) -> PassingSomewhere:
        cells = np.diff(self.arrays.get("cell_starts", np.zeros(1, np.int64)))
        counts = cells.astype(np.int32)
        return PassingSomewhere(Restriction(), self.rows, counts, self._count_points)

    def _plain_ids(self, ids: Ids, field: str) -> list[int] | list[str]:
        """Return ids as integers or texts, checked as one index checks them."""
        if not len(ids):
            return []
        if not self._has_texts:
            integers: list[int] = as_integers(ids, field).tolist()
            return integers
        if not is_texts(ids):
            raise invalid(field, "must be texts, as the ids of this index are")
        return [text.decode() for text in encode_texts(ids, field)]

    def answer_each(
        self, answer: Callable[[RowsT], ResultT], rows: RowsT, *, is_block: bool = False
    ) -> list[ResultT]:
        """Answer all rows in the same rounds; raises `TooManyRowsError` if shards send too much."""
        whole, results = self.transcript, []
        for place in range(len(rows)):
            finding.check_batch(0 if is_block else place, whole.vector_bytes)
            part = whole.part()
            self._use(part)
            try:
                results.append(answer(rows[place : place + 1]))
            except UnansweredError:
                continue
            except DivgrpcError:
                # An earlier row may raise another error first.
                if whole.is_complete:
                    raise
                break
            finally:
                whole.add(part)
        self._use(whole)
        whole.check()
        return results

    # Points by their ids, or in the order of their keys.

    def rows_of_ids(self, ids: Ids, field: str) -> IntArray:
        """Return the key (m,) of each id, -1 for an id that no point has."""
        plain = self._plain_ids(ids, field)
        columns: dict[str, Array] = {"parts": _NO_PARTS}
        if self._has_texts:
            texts = [str(text).encode() for text in plain]
            columns["texts"] = np.frombuffer(b"".join(texts), np.uint8)
            columns["ends"] = np.cumsum([len(text) for text in texts], dtype=np.int64)
        else:
            columns["ids"] = np.array(plain, np.int64)
        keys = np.full(len(plain), -1)
        if len(plain):
            for reply in self._locate(columns, len(keys)):
                keys[reply["places"]] = reply["ids"]
        return keys

    def _locate(self, columns: Mapping[str, Array], id_count: int) -> list[dict[str, Array]]:
        """Return replies to a `GET_REQUEST` for `id_count` ids alone, and note what they say."""
        replies = self._replies("get", columns, layouts.GET_REQUEST, self._stored)
        for shard, reply in replies.items():
            self._note(shard, reply, id_count)
        return list(replies.values())

    def _note(self, shard: int, reply: Mapping[str, Array], id_count: int = 0) -> None:
        """Note the shard and the sizes of the points in a reply; see `checks.check_stored`."""
        checks.check_stored(shard, reply, id_count)
        for key, sizes in zip(reply["ids"].tolist(), reply["sizes"].tolist(), strict=True):
            self._known[key] = shard, sizes

    def rows_of_keys(self, keys: IntArray) -> IntArray:
        """Return each key (m,), -1 for a key that no point has."""
        unknown = np.unique([key for key in keys.tolist() if key not in self._known])
        if len(unknown):
            self._locate({"parts": _NO_PARTS, "ids": unknown}, len(unknown))
        return np.array([key if key in self._known else -1 for key in keys.tolist()], np.int64)

    def keys_of_results(self, ids: IntArray) -> IntArray:
        """Return the keys (m,) of results of a searcher."""
        return ids

    def rows_to_compare(self, rows: IntArray) -> IntArray:
        """Return the rows in the searcher of the points with the keys `rows` (m,)."""
        keys = np.unique(rows)
        owners = np.array([self._known[key][0] for key in keys.tolist()], np.int64)
        places = {shard: np.flatnonzero(owners == shard) for shard in np.unique(owners).tolist()}
        messages = {
            shard: layouts.FETCH_REQUEST.pack({"ids": keys[part]}) for shard, part in places.items()
        }
        replies, numbers = self._replies_to("fetch", messages), np.empty(len(keys), np.int64)
        for shard, part in places.items():
            points = checks.unpack_points(shard, replies[shard], keys[part], self._widths)
            numbers[part] = self._gathering.hold(keys[part], points)
        return numbers[np.searchsorted(keys, rows)]

    def following(
        self, key: int, count: int, passing: PassingRows | None = None
    ) -> tuple[IntArray, IntArray]:
        """Return the keys of the next points, twice, as `StoredPoints.following` returns rows."""
        columns: dict[str, Array] = {"after": np.array([key]), "count": np.array([count])}
        columns |= columns_of(passing)
        replies = self._replies("scroll", columns, layouts.SCROLL_REQUEST, layouts.SCROLL_REPLY)
        for shard, reply in replies.items():
            self._note(shard, reply)
        keys = np.sort(np.concatenate([reply["ids"] for reply in replies.values()]))[:count]
        return keys, keys

    def bytes_of_rows(self, rows: IntArray, parts: Parts) -> IntArray:
        """Return an upper bound of the bytes that the record of each point takes in a message.

        rows: (m,) keys that a method of this engine has returned.
        """
        sizes = np.array([self._known[key][1] for key in rows.tolist()], np.int64)
        totals: IntArray = sizes.reshape(-1, 1 + len(parts)) @ np.array([True, *parts])
        return totals

    def records(self, rows: IntArray, parts: Parts) -> Records:
        """Return the points with these keys (m,)."""
        columns: dict[str, Array] = {"parts": np.array(parts, np.uint8), "ids": np.unique(rows)}
        replies = self._replies("get", columns, layouts.GET_REQUEST, self._stored)
        arrays = self._columns.joined(self._stored, list(replies.values()))
        with reading():
            points = PartPoints(self.manifest, arrays, len(arrays["ids"]))
            return points.records(check_rows(rows, points.rows_of_keys(rows)), parts)

    def _vectors(self, rows: IntArray) -> FloatArray | SparseVectors:
        vectors = self.records(rows, Parts(vectors=True, attributes=False, payload=False)).vectors
        assert vectors is not None  # noqa: S101  # the parts have them
        return vectors

    def _replies(
        self, name: str, columns: Mapping[str, Array], request: Layout, reply: Layout
    ) -> dict[int, dict[str, Array]]:
        """Return the columns of the replies of all shards; raises `UnansweredError`."""
        shards = [shard for shard, rows in enumerate(self._shard_rows) if rows]
        messages = self._replies_to(name, dict.fromkeys(shards, request.pack(columns)))
        widths = self._widths
        return {
            shard: checks.unpack(reply, shard, part, widths) for shard, part in messages.items()
        }

    def _replies_to(self, name: str, messages: Mapping[int, bytes]) -> Mapping[int, Buffer]:
        """Return the reply to each message by shard; raises `UnansweredError`."""
        replies = self.transcript.ask(name, messages)
        self.transcript.check()
        assert replies is not None  # noqa: S101  # no reply is missing
        return replies

    # Values for quotas.

    def answer(
        self,
        queries: RowsLike,
        parameters: QueryParameters,
        passing: PassingRows | None = None,
        quotas: Quotas | None = None,
        *,
        as_points: bool = False,
    ) -> QueryResult:
        """Answer queries as `Engine.answer` does; each round has the messages about all rows."""
        answer = partial(super().answer, as_points=as_points)
        numbers = NO_ATTRIBUTES if quotas is None else self._numbers_of(quotas.names)
        if self._has_texts and (quotas is not None or not self._needs_columns(parameters)):
            numbers = np.append(np.int32(layouts.TEXTS), numbers)
        self._gathering.attributes = numbers
        if quotas is None:
            return answer(queries, parameters, passing)
        rows = as_rows("queries", queries, self.dims)
        if not 1 < len(rows) <= LIMITS["query_rows_max"]:
            return answer(rows, parameters, passing, quotas)
        self.check_queries(rows)
        return joined(self.answer_each(lambda row: answer(row, parameters, passing, quotas), rows))

    def _narrow(self, condition: Condition, passing: PassingRows | None) -> PassingRows:
        return self._within(passing).that_pass(Filter(must=(condition,)))

    def _within(self, passing: PassingRows | None) -> PassingSomewhere:
        every = self._all_rows if passing is None else passing
        assert isinstance(every, PassingSomewhere)  # noqa: S101  # routers make no other kind
        return every

    def _numbers(self, name: str, rows: IntArray) -> ValueNumbers:
        return self._numbers_at(name, self._searcher.keys_of(rows))

    def _numbers_at(self, name: str, rows: IntArray) -> ValueNumbers:
        self._take_values()
        places = self._values.reader.ids.rows_of_keys(rows)
        unknown = rows[places < 0]
        if len(unknown):
            parts = np.array(Parts(vectors=False, payload=False), np.uint8)
            columns: dict[str, Array] = {"parts": parts, "ids": np.unique(unknown)}
            replies = self._replies("get", columns, layouts.GET_REQUEST, self._stored)
            self._values.add(replies.values())
            places = check_rows(rows, self._values.reader.ids.rows_of_keys(rows))
        with reading():
            return self._values.reader.numbers(name, places)

    def _take_values(self) -> None:
        """Read the values that came with points."""
        if messages := self._gathering.take_values():
            layout, widths = self._values.layout, self._widths
            self._values.add([checks.unpack(layout, *message, widths) for message in messages])

    def _population(self, quotas: Sequence[Quota], every: PassingRows) -> Population:
        within = self._within(every)
        with reading():
            arrays = self._values_within(within, quotas)
            places = np.arange(len(arrays["keys"]))
            # Readers keep words, so they are not kept.
            reader = RowReader(arrays, len(places), self.manifest.attributes)
            values = tuple(QuotaColumn(*reader.numbers(q.attribute, places)) for q in quotas)

        def select(flags: Flags) -> PassingRows:
            # All points with flags have the same values.
            return within.that_pass(same_values(quotas, values, int(np.argmax(flags))))

        return Population(values, arrays["keys"], arrays["members"], select)

    def _values_within(self, within: PassingSomewhere, quotas: Sequence[Quota]) -> dict[str, Array]:
        """Return the different values of points, kept as `_count_points` keeps numbers."""
        numbers = self._numbers_of([quota.attribute for quota in quotas])
        filters = within.restriction.key
        arrays = self._populations.get((filters, numbers.tobytes()))
        if filters is not None and arrays is not None:
            return arrays
        columns = within.columns | {"attributes": numbers}
        replies = self._replies("count", columns, layouts.COUNT_REQUEST, self._counts)
        arrays = self._columns.joined(self._counts, list(replies.values()))
        if arrays["members"].sum() != within.count:
            raise IndexDamagedError(UNREADABLE)
        size = sum(arrays[column.name].nbytes for column in self._counts.columns)
        if filters is not None and size <= _VALUE_BYTES_MAX:
            self._populations.put((filters, numbers.tobytes()), arrays, len(filters) + size)
        return arrays

    def _numbers_of(self, names: Sequence[str]) -> npt.NDArray[np.int32]:
        """Return the numbers of attributes, ascending."""
        known = [attribute.name for attribute in self.manifest.attributes]
        return np.unique([known.index(name) for name in names]).astype(np.int32)

    @property
    def _n_cells(self) -> int:
        """The number of cells, 0 without cells."""
        return max(0, len(self.arrays.get("cell_starts", ())) - 1)

    def _without_forbidden(self, quotas: Quotas, every: PassingRows) -> PassingRows:
        population, within = self._population(quotas.quotas, every), self._within(every)
        allowed = no_forbidden(quotas.quotas, population.columns)
        return within.that_pass(allowed) if tuple(allowed) else within

    def predict(
        self,
        documents: RowsLike,
        parameters: PredictParameters,
        passing: PassingRows | None = None,
    ) -> LabelResult:
        """Predict labels as `Engine` does, and say which shards were left out."""
        result = super().predict(documents, parameters, passing)
        return replace(result, coverage=self.coverage, missing_shards=self.missing)

    @property
    def label_sets(self) -> LabelSets | None:
        """The label sets of the points, by their keys; None without them."""
        if self.labels is None or INDPTR not in self.manifest.arrays:
            return None
        return GatheredLabels(self.records, self.labels.count)

    def _voters(self, keys: IntArray) -> IntArray:
        return keys

    # What evaluations ask of points.

    def topics_within(self, passing: PassingRows | None) -> Topics:
        """Return the topics of the categories of the points that pass; None stands for all."""
        columns, request = columns_of(passing), layouts.TOPICS_REQUEST
        replies = self._replies("topics", columns, request, layouts.TOPICS_REPLY)
        for shard, reply in replies.items():
            checks.check_counts(shard, reply, self._shard_rows[shard])
        parts = zip(*(reply.values() for reply in replies.values()), strict=True)
        return Topics.of_counts(*(np.concatenate(part).astype(np.int64) for part in parts))

    def topics_with(self, topics: Topics, ids: IntArray) -> Topics:
        """Return topics of `topics_within` such that they judge results with these ids (nq, k)."""
        return topics.with_labels(self.categories_of(ids))

    def categories_of(self, ids: IntArray, passing: PassingRows | None = None) -> PointCategories:
        """Return the categories and sub-topics of the points with these ids, of any shape.

        Ids that no point has are left out, and so are those of points that do not pass.
        """
        unique_ids = np.unique(ids[ids >= 0])
        columns, request = columns_of(passing) | {"ids": unique_ids}, layouts.CATEGORIES_REQUEST
        replies = self._replies("categories", columns, request, layouts.CATEGORIES_REPLY)
        for shard, reply in replies.items():
            checks.check_categories(shard, reply, unique_ids)
        parts = zip(*(reply.values() for reply in replies.values()), strict=True)
        keys, categories, subtopics = map(np.concatenate, parts)
        if len(np.unique(keys)) < len(keys):
            raise IndexDamagedError("several shards have the same point")
        return PointCategories.of(categories, subtopics, keys)

    def flags_of(self, ids: IntArray, passing: PassingRows, field: str) -> Flags:
        """Return whether the points with these ids (m,) pass, as `StoredPoints.flags_of` does."""
        self.categories_of(ids).rows(ids, field)
        return np.isin(ids, self.categories_of(ids, passing).ids)

    @property
    def label_counts(self) -> IntArray | None:
        """The number of points that have each label, (L,) int64; None without label sets."""
        if self.labels is None or INDPTR not in self.manifest.arrays:
            return None
        counts = np.zeros(self.labels.count, np.int64)
        replies = self._replies("labels", {}, layouts.LABELS_REQUEST, layouts.LABELS_REPLY)
        for shard, reply in replies.items():
            checks.check_labels(shard, reply, len(counts), self._shard_rows[shard])
            counts[reply["labels"]] += reply["counts"]
        return counts

    def rows_together(
        self,
        parameters: QueryParameters,
        queries: RowsLike,
        passing: PassingRows | None = None,
        *,
        as_points: bool = False,
    ) -> int:
        """Return how many of the query rows shards may be asked about at once, at least 1."""
        open_points = self.rows if passing is None else passing.count
        count = None if passing is None else passing.count
        indptr = getattr(queries, "indptr", None)
        plan = self.plan(parameters, dense=indptr is None and not as_points, passing=count)
        values = self.dims if indptr is None else int(np.diff(indptr).max(initial=0))
        # A message has the query, the margins, and the numbers and distances of cells.
        values += len(self.arrays["hyperplanes"].T) + len(self.arrays.get("cell_starts", ()))
        size = 8 * values + sum(column.nbytes for column in columns_of(passing).values())
        most = self._gathering.rows_together(plan, open_points)
        share = max(self._shard_rows) / max(1, self.rows)
        most = min(most, int(_NUMBERS_MAX / max(1, share * self.manifest.nonzeros)))
        return max(1, min(most, _MESSAGE_BYTES_MAX // size))

    def distances(self, queries: RowsLike, ids: IdArray) -> ListDistances:
        """Measure distances of results (nq, k), by their keys, as `StoredPoints.distances` does."""
        matrix, keys = query_rows("queries", queries, self.dims, self.metric), ids.astype(np.int64)
        if isinstance(matrix, SparseRows):
            matrix = matrix.matrix
        present = np.unique(keys[keys >= 0])
        points: Any = np.zeros((1, self.dims), np.float32)
        if len(present):
            vectors = self.vectors_at(present)
            points = vectors.matrix if isinstance(vectors, SparseRows) else vectors
        places = np.where(keys < 0, -1, np.searchsorted(present, keys))
        return list_distances(points, matrix, places, self.metric)

    # What results have beside ids.

    def _columns_of(self, answers: Answers, parameters: QueryParameters) -> dict[str, Any]:
        """Return the columns of a result that have ids, and those that stored values fill.

        They say which shards were left out.
        """
        needs_columns = self._needs_columns(parameters)
        if needs_columns or self._has_texts:
            keys = [answers.ids.ravel(), answers.plain_ids.ravel()]
            if self._has_texts:
                keys += answers.copies
                keys += [ids for one in answers.explanations for ids in ids_of(one)]
            every = np.concatenate(keys)
            reader = None if needs_columns else self._reader_of_texts(every)
            self._reader = reader or self._reader_of(every)
        with reading():
            columns = super()._columns_of(answers, parameters)
        columns |= {"coverage": self.coverage, "missing_shards": self.missing}
        return columns

    def _needs_columns(self, parameters: QueryParameters) -> bool:
        """Return whether results have columns of points beside text ids."""
        has_values = parameters.with_attributes or parameters.with_report
        return parameters.with_payload or bool(has_values and self.manifest.attributes)

    def _reader_of_texts(self, keys: IntArray) -> RowReader | None:
        """Return a reader of text ids, None if not all came with points; as `_reader_of`."""
        self._take_values()
        reader = self._values.reader
        is_known = reader.ids.rows_of_keys(np.unique(keys[keys >= 0])) >= 0
        return reader if is_known.all() else None

    def _reader_of(self, keys: IntArray) -> RowReader:
        """Return a reader of the points with these keys; negative ones are padding."""
        columns = {"ids": np.unique(keys[keys >= 0])}
        replies = self._replies("describe", columns, layouts.DESCRIBE_REQUEST, self._description)
        return self._columns.reader(self._description, list(replies.values()))

    def _ids_of(self, keys: IntArray) -> IdArray:
        if not self._has_texts:
            return keys
        return self._reader.ids.of_results(self._rows_of_keys(keys))

    def _rows_of_keys(self, keys: IntArray) -> IntArray:
        rows = np.where(keys < 0, -1, self._reader.ids.rows_of_keys(keys))
        return check_rows(keys, rows)
