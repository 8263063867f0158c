"""The parts of the clients that depend on gRPC's sync stack: connections, streams, watchdogs.

`async_stack` defines the same names for grpc.aio. `divgrpc_client.calls` uses either module, so
both must have the same interface. The coroutines of this module block where those of `async_stack`
suspend. So `run` completes a coroutine in one step, and no event loop is needed.

gRPC iterates over requests in a separate thread while the caller's thread reads the responses. The
thread of gRPC waits for the caller's thread in a `Handoff` or a `Window`. At the end of a call, the
caller's thread releases both, so that the thread of gRPC does not outlive the call.
"""

import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, Self, TypeVar

import grpc

from divgrpc_client.rpc.channels import CALLS_MAX, WATCH, ChannelSettings, Places
from divgrpc_client.rpc.errors import StallError
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Connection(NamedTuple):
    """A channel with its stub, and the places of calls in flight.

    Writes have their own, because they wait for another process of the server.
    """

    channel: grpc.Channel
    stub: DiverseIndexStub
    watch: "grpc.UnaryStreamMultiCallable[bytes, bytes]"
    places: "Window"
    write_places: "Window"

    def check_owner(self) -> None:
        """Do nothing: any thread may use a channel."""

    async def close(self) -> None:
        """Close the channel and cancel its calls."""
        self.places.close()
        self.write_places.close()
        self.channel.close()


def connect(settings: ChannelSettings) -> Connection:
    """Return a new connection; gRPC opens it at the first call."""
    options = settings.channel_options()
    credentials = settings.channel_credentials()
    if credentials is None:
        channel = grpc.insecure_channel(settings.peer.target, options)
    else:
        channel = grpc.secure_channel(settings.peer.target, credentials, options)
    stub, places = DiverseIndexStub(channel), (Window(CALLS_MAX), Window(CALLS_MAX))
    return Connection(channel, stub, channel.unary_stream(WATCH), *places)


def run(coroutine: Awaitable[ResultT]) -> ResultT:
    """Run a coroutine that blocks and never suspends, and return its result."""
    # An event loop of this thread would take over our async generators, and close them at its end.
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        next(iter(coroutine.__await__()))
    except StopIteration as end:
        result: ResultT = end.value
        return result
    except RuntimeError as error:
        # Python replaces these two errors in a coroutine by RuntimeError. A caller's `progress` may
        # raise them.
        if isinstance(error.__cause__, StopIteration | StopAsyncIteration):
            raise error.__cause__ from None
        raise
    finally:
        sys.set_asyncgen_hooks(*hooks)
    raise RuntimeError("a coroutine of the sync stack suspended")


def run_iterator(results: AsyncGenerator[ResultT, None]) -> Iterator[ResultT]:
    """Yield the results of an async generator that blocks and never suspends.

    No result may be None.
    """
    try:
        while (result := run(_following(results))) is not None:
            yield result
    finally:
        run(results.aclose())


async def _following(results: AsyncGenerator[ResultT, None]) -> ResultT | None:
    """Return the next result, or None at the end.

    `run` hides an `anext` in this coroutine from the hooks of an event loop in this thread.
    """
    return await anext(results, None)


async def result(answer: ResultT) -> ResultT:
    """Return `answer`; a blocking call has already ended."""
    return answer


async def sleep(seconds: float) -> None:
    """Wait for some seconds."""
    time.sleep(seconds)


class Window(Places):
    """Limits the number of calls in flight, or of queries of a stream that await results."""

    def __init__(self, places: int) -> None:
        self._places = threading.Semaphore(places)
        self.release = self._places.release

    async def acquire(self) -> None:
        """Wait until another query may be sent."""
        self._places.acquire()

    async def acquire_within(self, seconds: float | None) -> bool:
        """Wait as `acquire` does; return False if this takes longer than `seconds`.

        Raises `ClientStateError` after `close`.
        """
        if not self._places.acquire(timeout=seconds):
            return False
        if self.is_closed:
            self.release()  # the next call that waits fails too
        self.check_open()
        return True


class Handoff(Generic[ItemT]):
    """Passes one value from the thread that reads responses to the thread that writes requests."""

    def __init__(self) -> None:
        self._values = SimpleQueue[ItemT]()
        self.put = self._values.put

    async def get(self) -> ItemT:
        """Wait for the value."""
        return self._values.get()


async def iterate(items: Iterable[ItemT]) -> AsyncGenerator[ItemT, None]:
    """Yield the items of a caller."""
    for item in items:
        yield item


class Watchdog:
    """Ends a call if no message is sent or received for `seconds` while `due()` is true.

    The time that the caller spends between two responses does not count. A separate thread cancels
    the call.
    """

    def __init__(self, seconds: float, due: Callable[[], bool]) -> None:
        self._seconds = seconds
        self._due = due
        self._call: Any = None
        self._waiting = False
        self._last_move_seconds = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="divgrpc-watchdog", daemon=True)
        self._cancelled = False

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._done.set()

    def touch(self) -> None:
        """Restart the time limit, because a message was sent or received."""
        self._last_move_seconds = time.monotonic()

    async def watched(self, call: Any) -> AsyncGenerator[Any, None]:  # noqa: ANN401  # gRPC's call
        """Yield the responses of a call; raises `StallError` if the next response is overdue."""
        self._call = call
        while True:
            self.touch()
            self._waiting = True
            try:
                response = next(call)
            except StopIteration:
                return
            except grpc.RpcError as error:
                if self._cancelled:
                    raise StallError from error
                raise
            finally:
                self._waiting = False
            yield response

    def _watch(self) -> None:
        remaining = self._seconds
        while not self._done.wait(min(remaining, threading.TIMEOUT_MAX)):
            remaining = self._last_move_seconds + self._seconds - time.monotonic()
            if not (self._waiting and self._due()):
                remaining = self._seconds
            elif remaining <= 0:
                self._cancel()
                return

    def _cancel(self) -> None:
        self._cancelled = True
        if self._call is not None:
            self._call.cancel()


class FirstStatus:
    """Returns the error of a call unchanged: the sync stack keeps the server's status."""

    def __init__(self, call: object) -> None:
        """Accept the call, for the interface of the class in `async_stack`."""

    def of(self, error: grpc.RpcError) -> grpc.RpcError:
        """Return the error."""
        return error
