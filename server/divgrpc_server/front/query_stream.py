"""The front's side of QueryStream, which handles many queries concurrently in one call.

Each query has exactly one answer. It is the worker's reply, or an error from the front when the
time limit of the query has passed or the caller has withdrawn it, whichever is first. The front
then withdraws the query from the pool, so no worker goes on with it.
"""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial

from google.protobuf.message import DecodeError

from divgrpc.errors import DivgrpcError, InvalidArgumentError, invalid
from divgrpc_protos.v1 import query_pb2
from divgrpc_server.codec.statuses import LateError, WithdrawnError, status_of
from divgrpc_server.front.jobs import Read, Write
from divgrpc_server.front.message_stream import MessageStream
from divgrpc_server.front.pool import Pool, PoolCall
from divgrpc_server.front.refusals import RefusedError
from divgrpc_server.ipc.packets import Op, Outcome, Reply


class _Query:
    """A query that was read.

    correlation_id: None if the message cannot be parsed.
    late_time: when its time limit passes, in seconds of `time.monotonic`; infinite without a limit.
    error: why the front itself refuses the query, or None.
    call, timer: set while the query is in the pool.
    """

    __slots__ = ("call", "correlation_id", "error", "late_time", "message", "timer")

    def __init__(self, message: bytes, correlation_id: int | None) -> None:
        self.message = message
        self.correlation_id = correlation_id
        self.late_time = math.inf
        self.error: InvalidArgumentError | None = None
        self.call: PoolCall | None = None
        self.timer: asyncio.TimerHandle | None = None


def _read_limit(request: query_pb2.QueryStreamRequest) -> float:
    """Return the time limit of a query in seconds, infinity if it has none.

    Raises `InvalidArgumentError` for a limit of 0, and for a query in a withdrawal.
    """
    if request.withdraw:
        raise invalid("withdraw", "cannot be set together with query or time_limit_ms")
    if not request.HasField("time_limit_ms"):
        return math.inf
    if request.time_limit_ms == 0:
        raise invalid("time_limit_ms", "must be at least 1, got 0; leave it out for no limit")
    return request.time_limit_ms / 1000


class QueryStream(MessageStream[_Query]):
    """One QueryStream call; each query is a call of the pool."""

    def __init__(
        self,
        read: Read,
        write: Write,
        pool: Pool,
        *,
        window: int,
        deadline: float,
        tag: str,
        on_message: Callable[[bytes], None],
    ) -> None:
        """Create the stream; `on_message` is called with each message that is read."""
        super().__init__(read, write, pool.wait_for_room, window=window, on_message=on_message)
        self._pool = pool
        self._deadline = deadline
        self._tag = tag
        # The queries without an answer, by correlation id. Callers may use an id more than once.
        self._queries: defaultdict[int | None, set[_Query]] = defaultdict(set)

    def _withdraw(self) -> None:
        # A copy, because the pool may answer other queries when one is withdrawn.
        for query in [query for queries in self._queries.values() for query in queries]:
            self._take_back(query)

    def _parse(self, message: bytes) -> _Query | None:
        try:
            request = query_pb2.QueryStreamRequest.FromString(message)
        except DecodeError:
            return _Query(message, None)  # the error of the worker ends the stream
        is_query = request.HasField("query") or request.HasField("time_limit_ms")
        if request.withdraw and not is_query:
            for query in list(self._queries.get(request.correlation_id, ())):
                self._give_up(query, WithdrawnError())
            return None
        query = _Query(message, request.correlation_id)
        try:
            query.late_time = time.monotonic() + _read_limit(request)
        except InvalidArgumentError as error:
            query.error = error
        return query

    async def _wait_to_read(self) -> None:
        """Read at once, because the next message may withdraw a query, which makes room."""

    async def _wait_for_turn(self, item: _Query, size: int) -> None:
        if item.late_time == math.inf:
            await super()._wait_for_turn(item, size)
            return
        try:
            async with asyncio.timeout(item.late_time - time.monotonic()):
                await super()._wait_for_turn(item, size)
        except TimeoutError:
            # `_submit` answers the query, and a caller that reads no answers must not get further.
            await self._wait_for_writes()

    def _submit(self, item: _Query) -> None:
        self._queries[item.correlation_id].add(item)
        deliver = partial(self._deliver, item)
        seconds = item.late_time - time.monotonic()
        deadline = min(self._deadline, item.late_time)
        try:
            if item.error is not None:
                raise item.error
            if seconds <= 0:
                raise _late()
            call = self._pool.submit(Op.STREAM, item.message, deadline, self._tag, deliver)
        except DivgrpcError as error:
            self._give_up(item, error)
            return
        if self._is_unanswered(item):
            item.call = call
            if seconds < math.inf:
                loop = asyncio.get_running_loop()
                item.timer = loop.call_later(seconds, self._give_up, item, _late())

    def _is_unanswered(self, query: _Query) -> bool:
        return query in self._queries.get(query.correlation_id, ())

    def _give_up(self, query: _Query, error: DivgrpcError) -> None:
        """Answer a query with an error of the front, unless it has an answer."""
        if not self._is_unanswered(query):
            return
        self._take_back(query)
        status = status_of(error, self._tag)
        self._deliver(query, Reply(0, Outcome.STATUS, status.SerializeToString()))

    def _take_back(self, query: _Query) -> None:
        """Drop a query from the pool; no reply to it arrives afterwards."""
        if query.timer is not None:
            query.timer.cancel()
        if query.call is not None:
            self._pool.withdraw(query.call)

    def _deliver(self, query: _Query, reply: Reply) -> None:
        if query.timer is not None:
            query.timer.cancel()
        queries = self._queries[query.correlation_id]
        queries.remove(query)
        if not queries:
            del self._queries[query.correlation_id]
        if reply.outcome == Outcome.ANSWER:
            self._answer(reply.payload)
            return
        error = RefusedError(reply.payload)
        if query.correlation_id is None:
            self._end(error)
            return
        answer = query_pb2.QueryStreamResponse(
            correlation_id=query.correlation_id, error=error.status
        )
        self._answer(answer.SerializeToString())


def _late() -> LateError:
    return LateError("the time limit of the query passed before its answer was ready")
