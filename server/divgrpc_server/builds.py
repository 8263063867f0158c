"""A front's side of Build: asks for a builder and relays between it and the caller.

The messages pass as bytes; only the last event is read, for the name of the index. Before it goes
on to the caller, every worker has been asked to open the new generation.
"""

import asyncio
import itertools
import socket
from typing import Protocol

from google.rpc import status_pb2

from divgrpc.errors import UnavailableError
from divgrpc_protos.v1 import index_pb2
from divgrpc_server import control, frames, uploads
from divgrpc_server.config import Config
from divgrpc_server.pool import Pool
from divgrpc_server.statuses import BuildsFullError, LateError
from divgrpc_server.uploads import Part


class Stream(Protocol):
    """As much of a call's context as a relay needs: raw messages both ways."""

    async def read(self) -> object:
        """Return the caller's next message, bytes, or `aio.EOF`."""

    async def write(self, message: bytes) -> None:
        """Send the caller a message."""


class RefusedError(Exception):
    """Another process of ours made a status, and the call ends with it."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status


class Builds:
    """Starts builders through the supervisor and relays to them."""

    def __init__(self, config: Config, channel: control.Channel, pool: Pool) -> None:
        self._config = config
        self._channel = channel
        self._pool = pool
        self._marks = itertools.count(1)
        self._awaited: dict[int, asyncio.Future[socket.socket]] = {}

    def hear(self, message: control.Message, descriptor: int) -> None:
        """Take the supervisor's answer to a request for a builder."""
        future = self._awaited.pop(message.number, None)
        if message.kind == "refused":
            if future is not None and not future.done():
                future.set_exception(
                    BuildsFullError("as many builds are under way as may be; try again later")
                )
            return
        link = frames.adopt(descriptor)
        link.setblocking(False)
        if future is None or future.done():
            link.close()  # the caller is gone; its builder ends with the link
        else:
            future.set_result(link)

    async def relay(self, stream: Stream, request_id: str) -> None:
        """Serve one Build call to its end.

        Raises `RefusedError` with what the builder says, and errors of ours. Being cancelled, by a
        caller who left or whose deadline passed, ends the builder too.
        """
        with await self._start(request_id) as link:
            await _Relay(stream, link, self._config.upload_idle, self._pool).run()

    async def _start(self, request_id: str) -> socket.socket:
        mark = next(self._marks)
        future: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        self._awaited[mark] = future
        self._channel.send(control.Message("build", mark, request_id))
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                future.result().close()
            raise


class _Relay:
    """One Build call between its caller and its builder."""

    def __init__(self, stream: Stream, link: socket.socket, idle: float, pool: Pool) -> None:
        self._stream = stream
        self._link = link
        self._idle = idle
        self._pool = pool
        self._committed = False
        self._stalled = False
        self._clock: asyncio.TimerHandle | None = None
        self._upload_task: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Relay until the last event."""
        upload = asyncio.ensure_future(self._upload())
        events = asyncio.ensure_future(self._events())
        self._upload_task = upload
        try:
            await asyncio.wait((upload, events), return_when=asyncio.FIRST_COMPLETED)
            if self._stalled:
                raise LateError(f"the upload stood still for {self._idle:g} seconds")
            if not events.done():
                await upload  # raises what ended it early; else the caller has sent all it will
            await events
        finally:
            self._stop_clock()
            upload.cancel()
            events.cancel()
            await asyncio.gather(upload, events, return_exceptions=True)

    async def _upload(self) -> None:
        while True:
            self._start_clock()
            message = await self._stream.read()
            self._stop_clock()
            try:
                if not isinstance(message, bytes):  # aio.EOF
                    await uploads.send_async(self._link, Part.END)
                    return
                await uploads.send_async(self._link, Part.MESSAGE, message)
            except (BrokenPipeError, ConnectionResetError):
                return  # the builder has ended, and `_events` hears why

    async def _events(self) -> None:
        while True:
            try:
                part, payload = await uploads.receive_async(self._link)
            except (EOFError, ConnectionResetError):
                raise UnavailableError("the builder ended before the index was done") from None
            if part == Part.STATUS:
                raise RefusedError(status_pb2.Status.FromString(payload))
            if part == Part.COMMITTED:
                self._committed = True
                self._stop_clock()
                continue
            if part == Part.DONE:
                done = index_pb2.BuildResponse.FromString(payload).done
                await self._pool.refresh(done.name)
            await self._stream.write(payload)
            if part == Part.DONE:
                return

    # The clock of an upload that stands still; a whole upload has nothing left to send.

    def _start_clock(self) -> None:
        if not self._committed:
            loop = asyncio.get_running_loop()
            self._clock = loop.call_later(self._idle, self._stall)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()

    def _stall(self) -> None:
        self._stalled = True
        if self._upload_task is not None:
            self._upload_task.cancel()
