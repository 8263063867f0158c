"""What the clients need of gRPC's sync stack: connections, request streams, limits on silence.

`async_stack` has the same names for grpc.aio. The sync client is generated from the async one, so
the two modules must keep the same interface.

gRPC iterates over requests in a thread of its own while the caller's thread reads the responses.
The threads meet in a `Handoff` or a `Window`. The caller's thread releases both at the end, so that
the other thread never outlives its call.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import grpc

from divgrpc_client.rpc.channels import WATCH, ChannelSettings
from divgrpc_client.rpc.errors import StallError
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub

ItemT = TypeVar("ItemT")
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


class Window(threading.Semaphore):
    """How many queries of a stream may still be sent."""


class Handoff(SimpleQueue[ItemT]):
    """Hands one value from the thread that reads responses to the one that writes requests."""


def iterate(items: Iterable[ItemT]) -> Iterator[ItemT]:
    """Return an iterator over the items of a caller."""
    return iter(items)


class Feed(Generic[RequestT]):
    """A request stream that keeps the error of the caller's data.

    gRPC iterates over requests in a thread of its own, where it would only log that error. A feed
    ends the stream instead. `moved` is called for every request.
    """

    def __init__(self, requests: Iterator[RequestT], moved: Callable[[], None]) -> None:
        self._requests = requests
        self._moved = moved
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[RequestT]:
        try:
            for request in self._requests:
                self._moved()
                yield request
        except Exception as error:  # noqa: BLE001  # the caller's data may raise anything
            self.failure = error


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
        self._moved = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="divgrpc-watchdog", daemon=True)
        self._cancelled = False

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
        """Note that something moved."""
        self._moved = time.monotonic()

    def watched(self, call: "Cancellable[ResponseT]") -> Iterator[ResponseT]:
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
        left = self._seconds
        while not self._done.wait(min(left, threading.TIMEOUT_MAX)):
            left = self._moved + self._seconds - time.monotonic()
            if not (self._waiting and self._due()):
                left = self._seconds
            elif left <= 0:
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
