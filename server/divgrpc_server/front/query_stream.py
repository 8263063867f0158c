"""The front's side of QueryStream, which handles many queries concurrently in one call.

One task reads messages and submits them. The task of the call writes answers as they arrive. A
query is in flight from the moment it is read until its answer is written. The window is the maximum
number of queries in flight. While the window or the front's queue is full, no message is read, so
gRPC's flow control slows down a caller that sends too fast or reads too slowly. So no query of a
stream is refused for lack of room.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from functools import partial

from google.protobuf.message import DecodeError

from divgrpc.errors import DivgrpcError, UnavailableError
from divgrpc_protos.v1 import query_pb2
from divgrpc_server.codec.statuses import status_of
from divgrpc_server.front.jobs import Read, RefusedError, Write
from divgrpc_server.front.pool import Pool, PoolCall
from divgrpc_server.ipc.packets import Op, Outcome, Reply


class QueryStream:
    """One QueryStream call."""

    def __init__(
        self,
        read: Read,
        write: Write,
        pool: Pool,
        *,
        window: int,
        deadline: float,
        request_id: str,
        on_message: Callable[[bytes], None],
    ) -> None:
        """Create the stream; `on_message` is called with each message that is read."""
        self._read = read
        self._write = write
        self._pool = pool
        self._window = window
        self._deadline = deadline
        self._request_id = request_id
        self._on_message = on_message
        self._numbers = itertools.count()
        self._calls: dict[int, PoolCall | None] = {}
        self._answers: deque[bytes] = deque()
        self._in_flight = 0
        self._has_news = asyncio.Event()
        self._has_room = asyncio.Event()
        self._failure: Exception | None = None
        self._reader: asyncio.Task[None] | None = None
        self._draining = False

    async def run(self) -> None:
        """Serve the call until it ends.

        Raises `RefusedError` if a message cannot be parsed, and `UnavailableError` after `drain`.
        """
        reader = self._reader = asyncio.create_task(self._read_messages())
        reader.add_done_callback(lambda _: self._has_news.set())
        try:
            while not self._is_over(reader):
                await self._has_news.wait()
                self._has_news.clear()
                await self._write_answers()
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

    def _is_over(self, reader: "asyncio.Task[None]") -> bool:
        """Return whether all messages are read and answered; raises if reading failed."""
        if not reader.done():
            return False
        if not self._draining:
            reader.result()
        return self._in_flight == 0

    def drain(self) -> None:
        """Stop reading, and end the call when the messages read so far are answered."""
        self._draining = True
        if self._reader is not None:
            self._reader.cancel()

    async def _read_messages(self) -> None:
        while True:
            while self._in_flight >= self._window:
                self._has_room.clear()
                await self._has_room.wait()
            message = await self._read()
            if not isinstance(message, bytes):  # aio.EOF
                return
            self._in_flight += 1
            self._on_message(message)
            try:
                await self._pool.wait_for_room(len(message))
            except asyncio.CancelledError:
                if self._draining:
                    self._submit(message)
                raise
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
            self._fail(message, RefusedError(reply.payload))
        self._has_news.set()

    def _fail(self, message: bytes, error: RefusedError) -> None:
        """Answer a query with an error, or end the stream if the message cannot be parsed."""
        try:
            number = query_pb2.QueryStreamRequest.FromString(message).correlation_id
        except DecodeError:
            self._failure = error
            return
        answer = query_pb2.QueryStreamResponse(correlation_id=number, error=error.status)
        self._answers.append(answer.SerializeToString())

    async def _write_answers(self) -> None:
        while self._answers:
            await self._write(self._answers.popleft())
            self._in_flight -= 1
            self._has_room.set()
