"""The front's side of a call that answers many messages: QueryStream or WriteStream.

One task reads messages and submits them. The task of the call writes answers as they arrive. A
message is in flight from the moment it is submitted until its answer is written. The window is the
maximum number of messages in flight. While the window or the front's queue is full, one message
waits and no further message is read, so gRPC's flow control slows down a caller that sends too fast
or reads too slowly. So no message of a stream is refused for lack of room.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from divgrpc.errors import UnavailableError
from divgrpc_server.front.jobs import Read, Write
from divgrpc_server.front.refusals import RefusedError

ItemT = TypeVar("ItemT")


class MessageStream(ABC, Generic[ItemT]):
    """One call. A subclass submits the messages, and appends an answer for each of them.

    `ItemT` is a message in the form in which the subclass submits it.
    """

    def __init__(
        self,
        read: Read,
        write: Write,
        wait_for_room: Callable[[int], Awaitable[None]],
        *,
        window: int,
        on_message: Callable[[bytes], None],
    ) -> None:
        """Create the stream.

        wait_for_room: waits until a message of a size in bytes may be submitted.
        on_message: called with each message that is read.
        """
        self._read = read
        self._write = write
        self._wait_for_room = wait_for_room
        self._window = window
        self._on_message = on_message
        self._answers: deque[bytes] = deque()
        self._in_flight = 0
        self._has_news = asyncio.Event()
        self._has_room = asyncio.Event()
        self._failure: Exception | None = None
        self._reader: asyncio.Task[None] | None = None
        self._draining = False

    @abstractmethod
    def _parse(self, message: bytes) -> ItemT | None:
        """Return a message that was read as an item; None if it needs no answer of its own."""

    @abstractmethod
    def _submit(self, item: ItemT) -> None:
        """Begin to answer a message."""

    @abstractmethod
    def _withdraw(self) -> None:
        """Drop the messages that are not answered, because the call ends."""

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
            self._withdraw()
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
            await self._wait_to_read()
            message = await self._read()
            if not isinstance(message, bytes):  # aio.EOF
                return
            item = self._parse(message)
            if item is None:
                continue
            self._on_message(message)
            try:
                await self._wait_for_turn(item, len(message))
            except asyncio.CancelledError:
                if self._draining:
                    self._begin(item)
                raise
            self._begin(item)

    async def _wait_for_turn(self, _: ItemT, size: int) -> None:
        """Wait until an item, which has `size` bytes, may be submitted."""
        await self._wait_for_window()
        await self._wait_for_room(size)

    async def _wait_to_read(self) -> None:
        """Wait until the next message may be read."""
        await self._wait_for_window()

    async def _wait_for_window(self) -> None:
        while self._in_flight >= self._window:
            self._has_room.clear()
            await self._has_room.wait()

    async def _wait_for_writes(self) -> None:
        """Wait while a window of answers is unwritten, because the caller reads too slowly."""
        while len(self._answers) >= self._window:
            self._has_room.clear()
            await self._has_room.wait()

    def _begin(self, item: ItemT) -> None:
        self._in_flight += 1
        self._submit(item)

    def _answer(self, answer: bytes) -> None:
        """Write an answer when its turn comes."""
        self._answers.append(answer)
        self._has_news.set()

    def _end(self, error: RefusedError) -> None:
        """End the stream with an error, after the answers so far."""
        self._failure = error
        self._has_news.set()

    async def _write_answers(self) -> None:
        while self._answers:
            await self._write(self._answers.popleft())
            self._in_flight -= 1
            self._has_room.set()
