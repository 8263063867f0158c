"""The parts of the clients that depend on grpc.aio: connections, streams and watchdogs.

`sync_stack` defines the same names for gRPC's sync stack. `divgrpc_client.calls` uses either
module, so both must have the same interface.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

import grpc
import grpc.aio

from divgrpc_client.rpc.channels import CALLS_MAX, WATCH, ChannelSettings, Places
from divgrpc_client.rpc.errors import ClientStateError, StallError
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub

if TYPE_CHECKING:
    # The class exists only for type checkers.
    from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexAsyncStub

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
ResponseT = TypeVar("ResponseT")


class Connection(NamedTuple):
    """A channel, its stub, the places of calls in flight, and the loop that owns the channel.

    Writes have their own places, because they wait for another process of the server.
    """

    channel: grpc.aio.Channel
    stub: "DiverseIndexAsyncStub"
    watch: "grpc.aio.UnaryStreamMultiCallable[bytes, bytes]"
    places: "Window"
    write_places: "Window"
    loop: asyncio.AbstractEventLoop

    def check_owner(self) -> None:
        """Raise `ClientStateError` in another event loop."""
        if self.loop is not asyncio.get_running_loop():
            raise ClientStateError(
                "this client connected in another event loop; make a new AsyncClient in each"
            )

    async def close(self) -> None:
        """Close the channel and cancel its calls."""
        self.places.close()
        self.write_places.close()
        await self.channel.close()


def connect(settings: ChannelSettings) -> Connection:
    """Return a new connection; gRPC opens it at the first call."""
    options = settings.channel_options()
    credentials = settings.channel_credentials()
    if credentials is None:
        channel = grpc.aio.insecure_channel(settings.peer.target, options)
    else:
        channel = grpc.aio.secure_channel(settings.peer.target, credentials, options)
    stub, places = DiverseIndexStub(channel), (Window(CALLS_MAX), Window(CALLS_MAX))
    loop = asyncio.get_running_loop()
    return Connection(channel, stub, channel.unary_stream(WATCH), *places, loop)


def run(coroutine: Coroutine[Any, Any, ResultT]) -> Coroutine[Any, Any, ResultT]:
    """Return the coroutine of a call unchanged; the caller awaits it."""
    return coroutine


def run_iterator(results: AsyncIterator[ResultT]) -> AsyncIterator[ResultT]:
    """Return the asynchronous iterator of a call unchanged; the caller iterates over it."""
    return results


async def result(call: Awaitable[ResultT]) -> ResultT:
    """Wait for the answer of a call with one request, and return it."""
    return await call


async def sleep(seconds: float) -> None:
    """Wait for some seconds."""
    await asyncio.sleep(seconds)


class Window(Places, asyncio.Semaphore):
    """Limits the number of calls in flight, or of queries of a stream that await results."""

    async def acquire_within(self, seconds: float | None) -> bool:
        """Wait for a place; return False if this takes longer than `seconds`.

        Raises `ClientStateError` after `close`.
        """
        try:
            async with asyncio.timeout(seconds if self.locked() else None):
                await self.acquire()
        except TimeoutError:
            return False
        if self.is_closed:
            self.release()  # the next call that waits fails too
        self.check_open()
        return True


class Handoff(Generic[ItemT]):
    """Passes one value from the task that reads responses to the task that writes requests."""

    def __init__(self) -> None:
        self._value: asyncio.Future[ItemT] = asyncio.get_running_loop().create_future()

    def put(self, value: ItemT) -> None:
        """Set the value; later calls have no effect."""
        if not self._value.done():
            self._value.set_result(value)

    async def get(self) -> ItemT:
        """Wait for the value."""
        return await self._value


async def iterate(items: Iterable[ItemT] | AsyncIterable[ItemT]) -> AsyncIterator[ItemT]:
    """Yield the items of an iterable or of an asynchronous iterable."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


class Watchdog:
    """Ends a call if no message is sent or received for `seconds` while `due()` is true.

    The time that the caller spends between two responses does not count.
    """

    def __init__(self, seconds: float, due: Callable[[], bool]) -> None:
        self._seconds = seconds
        self._due = due
        self._limit: asyncio.Timeout | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing, because each read has its own timeout."""

    def touch(self) -> None:
        """Restart the time limit, because a message was sent."""
        if self._limit is not None:
            self._limit.reschedule(self._deadline())

    def _deadline(self) -> float | None:
        return asyncio.get_running_loop().time() + self._seconds if self._due() else None

    async def watched(self, call: AsyncIterable[ResponseT]) -> AsyncIterator[ResponseT]:
        """Yield the responses of a call; raises `StallError` if the next response is overdue.

        A read that times out also cancels the call.
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


class FirstStatus:
    """Saves the status with which the server ended a stream.

    If a server refuses a stream while the client is still writing, grpc.aio receives the status,
    then a write fails, and grpc.aio replaces the status with INTERNAL (grpc issue 36066).
    Done-callbacks run before the replacement, so a done-callback saves the status.
    """

    def __init__(self, call: "grpc.aio.StreamStreamCall[Any, Any]") -> None:
        self._error: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._save)

    def of(self, error: grpc.RpcError) -> grpc.RpcError:
        """Return the error with the server's status, or `error` if the server sent no status."""
        return self._error or error

    def _save(self, call: Any) -> None:  # noqa: ANN401  # gRPC types the call as Any
        code = _result_of(call.code())
        if code in (None, grpc.StatusCode.OK) or self._error is not None:
            return
        trailers = _result_of(call.trailing_metadata()) or grpc.aio.Metadata()
        details = _result_of(call.details())
        self._error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, details)


def _result_of(value: Coroutine[Any, Any, ResultT]) -> ResultT | None:
    # The status is known when done-callbacks run, so these coroutines return without suspending.
    # The callback may not await them in a task, because the status would be replaced before the
    # task runs.
    try:
        value.send(None)
    except StopIteration as end:
        result: ResultT = end.value
        return result
    value.close()
    return None
