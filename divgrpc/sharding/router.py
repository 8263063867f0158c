"""Turns queries into rounds of messages to shards, and the replies into the answer."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from divgrpc.arrays import Array, read_only
from divgrpc.columns.ids import as_integers, encode_texts, is_texts
from divgrpc.columns.reader import RowReader
from divgrpc.engine import Engine
from divgrpc.errors import invalid
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.search.arrays import Answers
from divgrpc.search.passing import PassingRows
from divgrpc.search.reports import ids_of
from divgrpc.sharding import conditions, layouts
from divgrpc.sharding.finding import PassingSomewhere
from divgrpc.sharding.gathering import GatheringSearcher
from divgrpc.sharding.rounds import Exchange, Round, Transcript, UnansweredError
from divgrpc.storage.generations import Generation
from divgrpc.storage.manifest import Manifest
from divgrpc.types import IntArray, QueryResult
from divgrpc.types.filters import Filter
from divgrpc.types.records import IdArray
from divgrpc.vectors import RowsLike

_NO_POINTS: Final[Mapping[str, Array]] = {"ids": read_only(np.empty(0, np.int64))}


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A query of a caller, as `Engine.answer` takes it.

    condition: a filter that `divgrpc.columns.filters.as_filter` has checked, or None.
    exclude_ids: ids of points that no result may be.
    """

    queries: RowsLike
    parameters: QueryParameters
    condition: Filter | None = None
    exclude_ids: Sequence[int] | Sequence[str] | IdArray = ()


class Router:
    """Answers queries by rounds of messages to shards. Any thread may use it.

    It keeps nothing of a query between its rounds. So another router, in another process, may go on
    with a query.
    """

    def __init__(
        self, manifest: Manifest, shared: Mapping[str, Array], rows: Sequence[int]
    ) -> None:
        """Take the manifest of the whole generation, and what all shards share.

        rows: number of points of each shard.
        """
        self._generation = Generation(manifest, {**shared, **_NO_POINTS})
        self._rows = tuple(rows)
        self._local = threading.local()

    def begin(self, request: Request) -> Round | QueryResult:
        """Return the first round of a query, or its answer.

        Raises the errors of `Engine.answer`, and `LimitExceededError` for more candidates than the
        shards may send.
        """
        return self.go_on(request, ())

    def go_on(self, request: Request, exchanges: Iterable[Exchange]) -> Round | QueryResult:
        """Return the next round of a query, or its answer, given all rounds so far."""
        engine = self._engine
        engine.transcript = Transcript(exchanges)
        try:
            passing = engine.passing(request.condition, request.exclude_ids)
            return engine.answer(request.queries, request.parameters, passing)
        except UnansweredError as error:
            return error.round

    def answer(self, request: Request, ask: Callable[[str, int, bytes], bytes]) -> QueryResult:
        """Answer a query by as many rounds as it takes.

        ask: returns the reply to a message, given the name of the operation and the shard.
        """
        exchanges: list[Exchange] = []
        while True:
            step = self.go_on(request, exchanges)
            if not isinstance(step, Round):
                return step
            messages = step.messages.items()
            replies = {shard: ask(step.name, shard, message) for shard, message in messages}
            exchanges.append(Exchange(step, replies))

    @property
    def _engine(self) -> "_GatheringEngine":
        """The engine of this thread."""
        engine: _GatheringEngine | None = getattr(self._local, "engine", None)
        if engine is None:
            engine = self._local.engine = _GatheringEngine(self._generation, self._rows)
        return engine


class _GatheringEngine(Engine):
    """An engine whose points are on shards."""

    def __init__(self, generation: Generation, rows: Sequence[int]) -> None:
        self._shard_rows = rows
        super().__init__(generation)
        self._description = layouts.describe_reply(
            self.manifest.attributes, has_texts=self._has_texts, has_payloads=self._has_payloads
        )

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

    @property
    def transcript(self) -> Transcript:
        """The replies that are known for the query that is being answered."""
        return self._gathering.transcript

    @transcript.setter
    def transcript(self, transcript: Transcript) -> None:
        self._gathering.transcript = transcript

    def passing(
        self,
        condition: Filter | None,
        exclude_ids: Sequence[int] | Sequence[str] | IdArray = (),
    ) -> PassingRows | None:
        """Return the points that pass a filter and have none of `exclude_ids`.

        Raises `UnansweredError` if the shards have not yet counted them.
        """
        most = LIMITS["exclude_ids_max"]
        if len(exclude_ids) > most:
            raise invalid("exclude_ids", f"must be at most {most}, got {len(exclude_ids)}")
        encoded = conditions.encode(condition, self._plain_ids(exclude_ids))
        if not encoded:
            return None
        message = layouts.COUNT_REQUEST.pack({"filter": np.frombuffer(encoded, np.uint8)})
        replies = self._ask_all("count", message)
        counts = [layouts.COUNT_REPLY.unpack(reply) for reply in replies.values()]
        total = sum(int(reply["count"][0]) for reply in counts)
        cells: Any = np.sum([reply["cells"] for reply in counts], axis=0, dtype=np.int32)
        return PassingSomewhere(encoded, total, cells)

    def _plain_ids(self, ids: Sequence[int] | Sequence[str] | IdArray) -> list[int] | list[str]:
        """Return excluded ids as integers or texts, checked as one index checks them."""
        if not len(ids):
            return []
        if not self._has_texts:
            integers: list[int] = as_integers(ids, "exclude_ids").tolist()
            return integers
        if not is_texts(ids):
            raise invalid("exclude_ids", "must be texts, as the ids of this index are")
        return [text.decode() for text in encode_texts(ids, "exclude_ids")]

    def _ask_all(self, name: str, message: bytes) -> Mapping[int, bytes]:
        """Return the replies of all shards that have points; raises `UnansweredError`."""
        shards = [shard for shard, rows in enumerate(self._shard_rows) if rows]
        replies = self.transcript.ask(name, dict.fromkeys(shards, message))
        self.transcript.check()
        assert replies is not None  # noqa: S101  # no reply is missing
        return replies

    def _columns_of(self, answers: Answers, parameters: QueryParameters) -> dict[str, Any]:
        """Return the columns of a result that have ids, and those that stored values fill."""
        keys = [answers.ids.ravel()]
        if self._has_texts:
            keys += answers.copies
            keys += [ids for one in answers.explanations for ids in ids_of(one)]
        keys += [answers.plain_ids.ravel()]
        has_columns = self._has_texts or parameters.with_payload
        has_values = parameters.with_attributes or parameters.with_report
        if has_columns or (has_values and self.manifest.attributes):
            self._reader = self._reader_of(np.concatenate(keys))
        return super()._columns_of(answers, parameters)

    def _reader_of(self, keys: IntArray) -> RowReader:
        """Return a reader of the points with these keys; negative ones are padding."""
        message = layouts.DESCRIBE_REQUEST.pack({"ids": np.unique(keys[keys >= 0])})
        replies = self._ask_all("describe", message)
        parts = [self._description.unpack(reply) for reply in replies.values()]
        arrays = dict(self.arrays)
        for column in self._description.columns:
            values = [part[column.name] for part in parts]
            if column.name.endswith("ends"):
                starts = np.cumsum([0, *(int(ends[-1]) if len(ends) else 0 for ends in values)])
                values = [ends + start for ends, start in zip(values, starts, strict=False)]
            arrays[column.name] = np.concatenate(values)
        return RowReader(arrays, len(arrays["ids"]), self.manifest.attributes)

    def _ids_of(self, keys: IntArray) -> IdArray:
        if not self._has_texts:
            return keys
        rows = np.where(keys < 0, -1, self._reader.ids.rows_of_keys(keys))
        return self._reader.ids.of_results(rows)

    def _rows_of_keys(self, keys: IntArray) -> IntArray:
        return self._reader.ids.rows_of_keys(keys)
