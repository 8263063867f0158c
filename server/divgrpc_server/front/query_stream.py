"""The front's side of QueryStream, which handles many queries concurrently in one call."""

import itertools
from collections.abc import Callable
from functools import partial

from google.protobuf.message import DecodeError

from divgrpc.errors import DivgrpcError
from divgrpc_protos.v1 import query_pb2
from divgrpc_server.codec.statuses import status_of
from divgrpc_server.front.jobs import Read, RefusedError, Write
from divgrpc_server.front.message_stream import MessageStream
from divgrpc_server.front.pool import Pool, PoolCall
from divgrpc_server.ipc.packets import Op, Outcome, Reply


class QueryStream(MessageStream):
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
        self._numbers = itertools.count()
        self._calls: dict[int, PoolCall | None] = {}

    def _withdraw(self) -> None:
        for call in self._calls.values():
            if call is not None:
                self._pool.withdraw(call)

    def _submit(self, message: bytes) -> None:
        number = next(self._numbers)
        self._calls[number] = None
        deliver = partial(self._deliver, number, message)
        try:
            call = self._pool.submit(Op.STREAM, message, self._deadline, self._tag, deliver)
        except DivgrpcError as error:
            status = status_of(error, self._tag)
            deliver(Reply(0, Outcome.STATUS, status.SerializeToString()))
            return
        if number in self._calls:
            self._calls[number] = call

    def _deliver(self, number: int, message: bytes, reply: Reply) -> None:
        del self._calls[number]
        if reply.outcome == Outcome.ANSWER:
            self._answer(reply.payload)
        else:
            self._refuse(message, RefusedError(reply.payload))

    def _refuse(self, message: bytes, error: RefusedError) -> None:
        """Answer a query with an error, or end the stream if the message cannot be parsed."""
        try:
            number = query_pb2.QueryStreamRequest.FromString(message).correlation_id
        except DecodeError:
            self._end(error)
            return
        answer = query_pb2.QueryStreamResponse(correlation_id=number, error=error.status)
        self._answer(answer.SerializeToString())
