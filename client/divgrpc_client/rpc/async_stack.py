"""What the clients need of grpc.aio: connections, request streams, and limits on silence.

`sync_stack` has the same names for gRPC's sync stack. `divgrpc_client.calls` uses either module, so
the two must keep the same interface.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

import grpc
import grpc.aio

from divgrpc_client.rpc.call import RpcCall
from divgrpc_client.rpc.channels import WATCH, ChannelSettings
from divgrpc_client.rpc.errors import ClientStateError, StallError
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub

if TYPE_CHECKING:
    # Only type checkers know the name of the stub over grpc.aio.
    from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexAsyncStub

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class Connection(NamedTuple):
    """A channel with its stub, and the event loop that it belongs to."""

    channel: grpc.aio.Channel
    stub: "DiverseIndexAsyncStub"
    watch: "grpc.aio.UnaryStreamMultiCallable[bytes, bytes]"
    loop: asyncio.AbstractEventLoop

    def check_owner(self) -> None:
        """Raise `ClientStateError` in another event loop."""
        if self.loop is not asyncio.get_running_loop():
            raise ClientStateError(
                "this client connected in another event loop; make a new AsyncClient in each"
            )


def connect(settings: ChannelSettings) -> Connection:
    """Return a new connection; gRPC opens it at the first call."""
    options = settings.channel_options()
    if settings.credentials is None:
        channel = grpc.aio.insecure_channel(settings.target, options)
    else:
        channel = grpc.aio.secure_channel(settings.target, settings.credentials, options)
    loop = asyncio.get_running_loop()
    return Connection(channel, DiverseIndexStub(channel), channel.unary_stream(WATCH), loop)


def run(coroutine: Coroutine[Any, Any, ResultT]) -> Coroutine[Any, Any, ResultT]:
    """Return the coroutine of a call, which the caller awaits."""
    return coroutine


def run_iterator(results: AsyncIterator[ResultT]) -> AsyncIterator[ResultT]:
    """Return the iterator of a call, which the caller iterates."""
    return results


async def unary(method: Callable[..., Any], request: object, call: RpcCall) -> Any:  # noqa: ANN401  # any answer
    """Send one message and return the answer."""
    return await call.start(method, request)


async def sleep(seconds: float) -> None:
    """Wait for some seconds."""
    await asyncio.sleep(seconds)


class Window(asyncio.Semaphore):
    """How many queries of a stream may still be sent."""


class Handoff(Generic[ItemT]):
    """Hands one value from the task that reads responses to the task that writes requests."""

    def __init__(self) -> None:
        self._value: asyncio.Future[ItemT] = asyncio.get_running_loop().create_future()

    def put(self, value: ItemT) -> None:
        """Give the value; only the first one counts."""
        if not self._value.done():
            self._value.set_result(value)

    async def get(self) -> ItemT:
        """Wait for the value."""
        return await self._value


async def iterate(items: Iterable[ItemT] | AsyncIterable[ItemT]) -> AsyncIterator[ItemT]:
    """Yield the items of a caller, which may come from either kind of iterable."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


class Watchdog:
    """Ends a call on which nothing moves for `seconds` while `due()` says that something should.

    Time that the caller spends between two responses does not count.
    """

    def __init__(self, seconds: float, due: Callable[[], bool]) -> None:
        self._seconds = seconds
        self._due = due
        self._limit: asyncio.Timeout | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing: each read has its own timeout, which ends with it."""

    def touch(self) -> None:
        """Note that something moved."""
        if self._limit is not None:
            self._limit.reschedule(self._deadline())

    def _deadline(self) -> float | None:
        return asyncio.get_running_loop().time() + self._seconds if self._due() else None

    async def watched(self, call: AsyncIterable[ResponseT]) -> AsyncIterator[ResponseT]:
        """Yield the responses of a call; raises `StallError` if the next one does not come.

        A read that times out cancels its call.
        """
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


class FirstStatus(Generic[RequestT, ResponseT]):
    """The status that the server ended a stream with.

    When a server refuses a stream while the client still writes, grpc.aio receives the status, then
    fails a write, and replaces the status by INTERNAL (grpc issue 36066). Done-callbacks run before
    that, so one of them saves the status.
    """

    def __init__(self, call: "grpc.aio.StreamStreamCall[RequestT, ResponseT]") -> None:
        self._error: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._save)

    def of(self, error: grpc.RpcError) -> grpc.RpcError:
        """Return the error of the server's status, or `error` if the server sent none."""
        return self._error or error

    def _save(self, call: Any) -> None:  # noqa: ANN401  # gRPC types the call as Any
        code = _result_of(call.code())
        if code in (None, grpc.StatusCode.OK) or self._error is not None:
            return
        trailers = _result_of(call.trailing_metadata()) or grpc.aio.Metadata()
        details = _result_of(call.details())
        self._error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, details)


def _result_of(value: Coroutine[Any, Any, ResultT]) -> ResultT | None:
    # The status is there when callbacks run, so these coroutines end without waiting. A callback
    # must not wait: the status would be gone afterwards.
    try:
        value.send(None)
    except StopIteration as end:
        result: ResultT = end.value
        return result
    value.close()
    return None
