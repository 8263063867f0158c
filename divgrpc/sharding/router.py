"""Turns calls of users into rounds of messages to shards, and the replies into results."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from divgrpc.arrays import Array
from divgrpc.engine import Engine
from divgrpc.parameters import QueryParameters
from divgrpc.sharding.gathering_engine import GatheringEngine
from divgrpc.sharding.rounds import Exchange, Round, Transcript, UnansweredError
from divgrpc.storage.generations import Generation
from divgrpc.storage.manifest import Manifest
from divgrpc.types import QueryResult
from divgrpc.types.filters import Filter
from divgrpc.types.records import IdArray
from divgrpc.vectors import RowsLike

ResultT = TypeVar("ResultT")
# What a caller wants of an index; the server and `divgrpc.Index` call an engine in the same way.
Call: TypeAlias = Callable[[Engine], ResultT]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A query of a caller, as `Engine.answer` takes it: one of the calls that a router serves.

    condition: a filter that `divgrpc.columns.filters.as_filter` has checked, or None.
    exclude_ids: ids of points that no result may be.
    """

    queries: RowsLike
    parameters: QueryParameters
    condition: Filter | None = None
    exclude_ids: Sequence[int] | Sequence[str] | IdArray = ()

    def __call__(self, engine: Engine) -> QueryResult:
        """Answer the query."""
        passing = engine.passing(self.condition, self.exclude_ids)
        return engine.answer(self.queries, self.parameters, passing)


class Router:
    """Answers calls by rounds of messages to shards. Any thread may use it.

    A call is computed anew with all replies so far, until no reply is missing. So the router keeps
    nothing of a call between its rounds, and another router, in another process, may go on with it.
    """

    def __init__(
        self,
        manifest: Manifest,
        shared: Mapping[str, Array],
        rows: Sequence[int],
        name: str = "",
        folder: Path | None = None,
    ) -> None:
        """Take the manifest of the whole generation, and what all shards share.

        rows: number of points of each shard. name: the name of the index, which its page tokens
            tell from others. folder: as in `Engine`.
        """
        self._generation = Generation(manifest, dict(shared))
        self._rows, self._name, self._folder = tuple(rows), name, folder
        self._local = threading.local()

    def begin(self, call: Call[ResultT]) -> Round | ResultT:
        """Return the first round of a call, or its result.

        Raises the errors of the call, such as those of `Engine.answer`, and `LimitExceededError`
        for more candidates than the shards may send.
        """
        return self.go_on(call, ())

    def go_on(self, call: Call[ResultT], exchanges: Iterable[Exchange]) -> Round | ResultT:
        """Return the next round of a call, or its result, given all rounds so far."""
        engine = self._engine
        engine.transcript = Transcript(exchanges)
        try:
            return call(engine)
        except UnansweredError as error:
            return error.round

    def answer(self, call: Call[ResultT], ask: Callable[[str, int, bytes], bytes]) -> ResultT:
        """Answer a call by as many rounds as it takes.

        ask: returns the reply to a message, given the name of the operation and the shard.
        """
        exchanges: list[Exchange] = []
        while True:
            step = self.go_on(call, exchanges)
            if not isinstance(step, Round):
                return step
            messages = step.messages.items()
            replies = {shard: ask(step.name, shard, message) for shard, message in messages}
            exchanges.append(Exchange(step, replies))

    @property
    def _engine(self) -> GatheringEngine:
        """The engine of this thread."""
        engine: GatheringEngine | None = getattr(self._local, "engine", None)
        if engine is None:
            engine = GatheringEngine(self._generation, self._rows, self._name, self._folder)
            self._local.engine = engine
        return engine
