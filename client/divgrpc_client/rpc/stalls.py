"""Streams that stand still: noticed on gRPC's sync stack by a thread, on asyncio by a timeout.

Build and QueryStream have no deadline of their own, because how long they may take depends on what
is sent. What they have is a limit on silence: with the other side due to say or take something,
nothing moved for so long.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Protocol, Self, TypeVar

import grpc

ResponseT = TypeVar("ResponseT")
ResponseT_co = TypeVar("ResponseT_co", covariant=True)


class StallError(Exception):
    """Nothing moved; the clients turn it into an `RpcError`."""


class Cancellable(Protocol[ResponseT_co]):
    """A call of the sync stack, as far as its responses go."""

    def __next__(self) -> ResponseT_co:
        """Return the next response."""

    def cancel(self) -> object:
        """End the call."""


class Watchdog:
    """Cancels a call of the sync stack that stands still while its caller waits.

    `due` says whether the other side owes anything. Time that the caller spends between two
    responses does not count.
    """

    def __init__(self, seconds: float, due: Callable[[], bool]) -> None:
        self._seconds = seconds
        self._due = due
        self._call: Cancellable[object] | None = None
        self._waiting = False
        self._moved = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="divgrpc-watchdog", daemon=True)
        self._barked = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()

    def touch(self) -> None:
        """Say that something moved."""
        self._moved = time.monotonic()

    def watched(self, call: "Cancellable[ResponseT]") -> Iterator[ResponseT]:
        """Yield the responses; raises `StallError` when the next does not come."""
        self._call = call
        while True:
            self.touch()
            self._waiting = True
            try:
                response = next(call)
            except StopIteration:
                return
            except grpc.RpcError as error:
                if self._barked:
                    raise StallError from error
                raise
            finally:
                self._waiting = False
            yield response

    def _watch(self) -> None:
        left = self._seconds
        while not self._done.wait(min(left, threading.TIMEOUT_MAX)):
            left = self._moved + self._seconds - time.monotonic()
            if not (self._waiting and self._due()):
                left = self._seconds
            elif left <= 0:
                self._bark()
                return

    def _bark(self) -> None:
        self._barked = True
        if self._call is not None:
            self._call.cancel()


class AsyncWatchdog:
    """The same for grpc.aio, where a read that is given up cancels its call."""

    def __init__(self, seconds: float, due: Callable[[], bool]) -> None:
        self._seconds = seconds
        self._due = due
        self._limit: asyncio.Timeout | None = None

    def touch(self) -> None:
        """Say that something moved."""
        if self._limit is not None:
            self._limit.reschedule(self._deadline())

    def _deadline(self) -> float | None:
        return asyncio.get_running_loop().time() + self._seconds if self._due() else None

    async def watched(self, call: AsyncIterable[ResponseT]) -> AsyncIterator[ResponseT]:
        """Yield the responses; raises `StallError` when the next does not come."""
        responses = aiter(call)
        while True:
            try:
                async with asyncio.timeout_at(self._deadline()) as self._limit:
                    response = await anext(responses)
            except StopAsyncIteration:
                return
            except TimeoutError as error:
                raise StallError from error
            finally:
                self._limit = None
            yield response
