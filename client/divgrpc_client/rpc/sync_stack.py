"""What the clients need of gRPC's sync stack: connections, request streams, limits on silence.

`async_stack` has the same names for grpc.aio. `divgrpc_client.calls` uses either module, so the two
must keep the same interface. Here coroutines block where those of `async_stack` suspend. So `run`
takes one to its end in one step, and no event loop is needed.

gRPC iterates over requests in a thread of its own while the caller's thread reads the responses.
The threads meet in a `Handoff` or a `Window`. The caller's thread releases both at the end, so that
the other thread never outlives its call.
"""

import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import grpc

from divgrpc_client.rpc.call import RpcCall
from divgrpc_client.rpc.channels import WATCH, ChannelSettings
from divgrpc_client.rpc.errors import StallError
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
ResponseT_co = TypeVar("ResponseT_co", covariant=True)


class Connection(NamedTuple):
    """A channel with its stub."""

    channel: grpc.Channel
    stub: DiverseIndexStub
    watch: "grpc.UnaryStreamMultiCallable[bytes, bytes]"

    def check_owner(self) -> None:
        """Do nothing: any thread may use a channel."""


def connect(settings: ChannelSettings) -> Connection:
    """Return a new connection; gRPC opens it at the first call."""
    options = settings.channel_options()
    if settings.credentials is None:
        channel = grpc.insecure_channel(settings.target, options)
    else:
        channel = grpc.secure_channel(settings.target, settings.credentials, options)
    return Connection(channel, DiverseIndexStub(channel), channel.unary_stream(WATCH))


def run(coroutine: Awaitable[ResultT]) -> ResultT:
    """Run a coroutine that blocks and never suspends, and return its result."""
    try:
        next(iter(coroutine.__await__()))
    except StopIteration as end:
        result: ResultT = end.value
        return result
    raise RuntimeError("a coroutine of the sync stack suspended")


def run_iterator(results: AsyncGenerator[ResultT, None]) -> Iterator[ResultT]:
    """Yield the results of an async generator that blocks and never suspends."""
    try:
        while True:
            try:
                result = run(anext(results))
            except StopAsyncIteration:
                return
            yield result
    finally:
        run(results.aclose())


async def unary(method: Callable[..., Any], request: object, call: RpcCall) -> Any:  # noqa: ANN401  # any answer
    """Send one message and return the answer."""
    return call.start(method, request)


async def sleep(seconds: float) -> None:
    """Wait for some seconds."""
    time.sleep(seconds)


class Window:
    """How many queries of a stream may still be sent."""

    def __init__(self, places: int) -> None:
        self._places = threading.Semaphore(places)
        self.release = self._places.release

    async def acquire(self) -> None:
        """Take a place."""
        self._places.acquire()


class Handoff(Generic[ItemT]):
    """Hands one value from the thread that reads responses to the one that writes requests."""

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


class Cancellable(Protocol[ResponseT_co]):
    """A call whose responses are read one by one."""

    def __next__(self) -> ResponseT_co:
        """Return the next response."""

    def cancel(self) -> object:
        """End the call."""


class Watchdog:
    """Ends a call on which nothing moves for `seconds` while `due()` says that something should.

    Time that the caller spends between two responses does not count. A thread cancels the call.
    """

    def __init__(self, seconds: float, due: Callable[[], bool]) -> None:
        self._seconds = seconds
        self._due = due
        self._call: Cancellable[object] | None = None
        self._waiting = False
        self._last_move_seconds = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="divgrpc-watchdog", daemon=True)
        self._cancelled = False

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()

    def touch(self) -> None:
        """Note that something moved."""
        self._last_move_seconds = time.monotonic()

    async def watched(self, call: "Cancellable[ResponseT]") -> AsyncGenerator[ResponseT, None]:
        """Yield the responses of a call; raises `StallError` if the next one does not come."""
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
    """The status that the server ended a stream with; the sync stack keeps it as it came."""

    def __init__(self, call: object) -> None:
        """Take the call, as the class for grpc.aio does."""

    def of(self, error: grpc.RpcError) -> grpc.RpcError:
        """Return the error."""
        return error
