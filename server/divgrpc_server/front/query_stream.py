"""A front's side of QueryStream: many queries under way on one call.

One task reads and hands over; the call's own task writes answers as they come. A query counts from
when it is read until its answer is written, and no more are read than the window allows: a caller
who sends too fast or reads too slowly is held up by gRPC's own flow control.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from functools import partial

from google.protobuf.message import DecodeError
from google.rpc import status_pb2

from divgrpc.errors import DivgrpcError, UnavailableError
from divgrpc_protos.v1 import query_pb2
from divgrpc_server.codec.statuses import status_of
from divgrpc_server.front.jobs import RefusedError, Stream
from divgrpc_server.front.pool import Pool
from divgrpc_server.front.worker_link import Call
from divgrpc_server.ipc.packets import Op, Outcome, Reply


class QueryStream:
    """One QueryStream call."""

    def __init__(
        self,
        stream: Stream,
        pool: Pool,
        *,
        window: int,
        deadline: float,
        request_id: str,
        heard: Callable[[bytes], None],
    ) -> None:
        """Take what hears of each message as it is read."""
        self._stream = stream
        self._pool = pool
        self._window = window
        self._deadline = deadline
        self._request_id = request_id
        self._heard = heard
        self._numbers = itertools.count()
        self._calls: dict[int, Call | None] = {}
        self._answers: deque[bytes] = deque()
        self._in_flight = 0
        self._answered = asyncio.Event()
        self._room = asyncio.Event()
        self._failure: Exception | None = None
        self._reader: asyncio.Task[None] | None = None
        self._draining = False

    async def run(self) -> None:
        """Serve the call to its end.

        Raises `RefusedError` where a message cannot be parsed, `UnavailableError` after `drain`.
        """
        reader = self._reader = asyncio.create_task(self._read())
        reader.add_done_callback(lambda _: self._answered.set())
        try:
            while not self._over(reader):
                await self._answered.wait()
                self._answered.clear()
                await self._write()
                if self._failure is not None:
                    raise self._failure
            if reader.cancelled():
                raise UnavailableError("the server is going down")
        finally:
            reader.cancel()
            for call in self._calls.values():
                if call is not None:
                    self._pool.withdraw(call)
            await asyncio.gather(reader, return_exceptions=True)

    def _over(self, reader: "asyncio.Task[None]") -> bool:
        """Tell whether everything is read and answered; raises what ended the reading early."""
        if not reader.done():
            return False
        if not self._draining:
            reader.result()
        return self._in_flight == 0

    def drain(self) -> None:
        """Read nothing more; answer what was read, then end the call."""
        self._draining = True
        if self._reader is not None:
            self._reader.cancel()

    async def _read(self) -> None:
        while True:
            while self._in_flight >= self._window:
                self._room.clear()
                await self._room.wait()
            message = await self._stream.read()
            if not isinstance(message, bytes):  # aio.EOF
                return
            self._in_flight += 1
            self._heard(message)
            self._submit(message)

    def _submit(self, message: bytes) -> None:
        number = next(self._numbers)
        self._calls[number] = None
        deliver = partial(self._deliver, number, message)
        try:
            call = self._pool.submit(Op.STREAM, message, self._deadline, self._request_id, deliver)
        except DivgrpcError as error:
            status = status_of(error, self._request_id)
            deliver(Reply(0, Outcome.STATUS, status.SerializeToString()))
            return
        if number in self._calls:
            self._calls[number] = call

    def _deliver(self, number: int, message: bytes, reply: Reply) -> None:
        del self._calls[number]
        if reply.outcome == Outcome.ANSWER:
            self._answers.append(reply.payload)
        else:
            self._fail(message, status_pb2.Status.FromString(reply.payload))
        self._answered.set()

    def _fail(self, message: bytes, status: status_pb2.Status) -> None:
        """Answer one query with an error, or end the stream where it has no name."""
        try:
            number = query_pb2.QueryStreamRequest.FromString(message).correlation_id
        except DecodeError:
            self._failure = RefusedError(status)
            return
        answer = query_pb2.QueryStreamResponse(correlation_id=number, error=status)
        self._answers.append(answer.SerializeToString())

    async def _write(self) -> None:
        while self._answers:
            await self._stream.write(self._answers.popleft())
            self._in_flight -= 1
            self._room.set()
