"""Coroutines that make the calls: single requests, builds, query streams and evaluations."""

import itertools
import math
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any, Final, Generic, NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status

from divgrpc.types import Diagnosis, IndexInfo, QueryResult
from divgrpc.types.records import Records
from divgrpc_client.messages import responses
from divgrpc_client.messages.attributes import AttributeUpload
from divgrpc_client.messages.batches import Exchange, Pipeline
from divgrpc_client.messages.diagnose import diagnosis_of
from divgrpc_client.messages.evaluate import Evaluation, RequestT, ResponseT, RowT
from divgrpc_client.messages.options import OnProgress
from divgrpc_client.messages.stream_items import OnError
from divgrpc_client.messages.upload import BuildEvents, Upload
from divgrpc_client.rpc.call import RpcCall
from divgrpc_client.rpc.channels import SERVING, WATCH_REQUEST, WRITES, ConnectionPool
from divgrpc_client.rpc.errors import RpcError, StallError, add_call_attributes
from divgrpc_protos.v1 import diagnose_pb2, points_pb2, writes_pb2

MessageT = TypeVar("MessageT")
AnswerT = TypeVar("AnswerT")
ResultT = TypeVar("ResultT")
ItemT = TypeVar("ItemT")

# Pause of `wait_until_ready` between two attempts. If the server is not running, connections may be
# refused at once. Without a pause, the loop of attempts would keep a core busy.
_READY_PAUSE_SECONDS: Final = 0.1


class Link(NamedTuple):
    """A connection of a client, with the gRPC stack and the time limit of its streams.

    `stack` is the module `rpc.async_stack` or `rpc.sync_stack`. Both define the same names.
    `idle_timeout` is the maximum time in seconds without a message in a stream. `retries` says
    whether calls are repeated.
    """

    stack: ModuleType
    connection: Any
    idle_timeout: float
    retries: bool

    def method(self, call: RpcCall) -> Any:  # noqa: ANN401  # of either stack
        """Return the method of the gRPC stub for a call."""
        return getattr(self.connection.stub, call.method)


class Feed(Generic[MessageT]):
    """A stream of requests that stores an exception raised by the caller's data.

    gRPC iterates over the requests in its own task or thread. An exception that the caller's data
    raises there would only be logged. A feed ends the stream instead and keeps the exception in
    `failure`. `on_request` is called for every request.
    """

    def __init__(self, requests: AsyncIterator[MessageT], on_request: Callable[[], None]) -> None:
        self._requests = requests
        self._on_request = on_request
        self.failure: Exception | None = None

    async def requests(self) -> AsyncIterator[MessageT]:
        """Yield the requests; after an exception, store it and end the stream."""
        try:
            async for request in self._requests:
                self._on_request()
                yield request
        except Exception as error:  # noqa: BLE001  # the caller's data may raise anything
            add_call_attributes(error)
            self.failure = error


async def close(pool: ConnectionPool[Any]) -> None:
    """Close the connections of a pool."""
    for connection in pool.close():
        await connection.close()


async def ask_all(
    link: Link, call: RpcCall, exchange: Exchange[MessageT, AnswerT, ResultT]
) -> ResultT:
    """Send the requests of an exchange one at a time and return the result of the exchange.

    An exchange is a generator that yields requests and receives answers (`messages.batches`). An
    error is raised in the exchange, which may send another request instead. A named write that the
    server refuses for lack of room is sent again after the time that the server says.
    """
    try:
        request = next(exchange)
        while True:
            try:
                answer = await _answer(link, call, request)
            except grpc.RpcError as error:
                failure = _failed(call, error)
                if not await _has_paused(link, call, request, failure):
                    request = exchange.throw(failure)
            else:
                request = exchange.send(answer)
    except StopIteration as end:
        result: ResultT | None = end.value
    if result is None:
        raise call.unsettled()
    return result


async def _answer(link: Link, call: RpcCall, request: object) -> Any:  # noqa: ANN401  # of any method
    """Send a request and return its answer, when the connection has a place for the call.

    Raises `RpcError` if it has none in time, and `ClientStateError` if the client is closed.
    """
    connection = link.connection
    places = connection.write_places if call.method in WRITES else connection.places
    if not await places.acquire_within(call.seconds_to_wait()):
        raise call.overloaded("too many calls of this client wait for answers")
    try:
        return await link.stack.result(call.start(link.method(call), request))
    except Exception as error:
        if not isinstance(error, grpc.RpcError):
            places.check_open()  # gRPC has errors of its own for a channel that is closed
        raise
    finally:
        places.release()


async def _has_paused(link: Link, call: RpcCall, request: object, failure: RpcError) -> bool:
    """Wait until a refused request may be sent again; return False if it is not sent again."""
    is_named_write = bool(getattr(request, "write_id", None))
    seconds = call.pause_after(failure) if link.retries and is_named_write else None
    if seconds is None:
        return False
    await link.stack.sleep(seconds)
    # On a busy machine, a pause may take longer.
    return not call.is_late


def _failed(call: RpcCall, error: grpc.RpcError) -> RpcError:
    """Return the error of a failed call, with gRPC's error as its cause."""
    failure = call.failed(error)
    failure.__cause__ = error
    return failure


async def scroll(
    link: Link, new_call: Callable[[], RpcCall], request: points_pb2.ScrollRequest
) -> AsyncGenerator[Records, None]:
    """Request one page after another and yield their points.

    Each page is a call of its own, which `new_call` makes, so its deadline applies to one page.
    """
    while True:
        call = new_call()
        try:
            response = await _answer(link, call, request)
        except grpc.RpcError as error:
            raise call.failed(error) from error
        yield responses.point_records(response)
        if not response.next_page_token:
            return
        request.page_token = response.next_page_token


async def pages(
    link: Link,
    new_call: Callable[[], RpcCall],
    first: Exchange[Any, Any, QueryResult],
    exchange: Callable[[str], Exchange[Any, Any, QueryResult]],
) -> AsyncGenerator[QueryResult, None]:
    """Request one page of a query after another and yield their results.

    `exchange` makes the exchange for the page that a token continues. Each page is a call of its
    own, which `new_call` makes.
    """
    page = await ask_all(link, new_call(), first)
    while True:
        if page.counts[0]:
            yield page
        if not page.next_page_token:
            return
        page = await ask_all(link, new_call(), exchange(page.next_page_token))


async def wait_until_ready(take_link: Callable[[], Link], call: RpcCall) -> None:
    """Wait until the server's health service reports SERVING.

    Raises `UnavailableError` if the server is not ready at the deadline. Its `__cause__` is the
    last error with the code UNAVAILABLE, or the first error if none has this code.
    """
    obstacle: RpcError | None = None
    while True:
        seconds = call.seconds_left() if obstacle is None else call.seconds_or_unready(obstacle)
        link = take_link()
        latest = await _obstacle(link, call, seconds)
        if latest is None:
            return
        if obstacle is None or latest.code is grpc.StatusCode.UNAVAILABLE:
            obstacle = latest
        await link.stack.sleep(min(_READY_PAUSE_SECONDS, math.inf if seconds is None else seconds))


async def _obstacle(link: Link, call: RpcCall, seconds: float | None) -> RpcError | None:
    """Watch the server's health for `seconds`; return why it is not ready, or None if it is ready.

    The returned error has the code UNAVAILABLE if the reason is known, else DEADLINE_EXCEEDED.
    Other errors are raised, because waiting would not help. For example, the server may lack the
    health service.
    """
    has_answered = False
    # The call does not use `wait_for_ready`, with which gRPC would not report why it cannot
    # connect.
    statuses = link.connection.watch(WATCH_REQUEST, timeout=seconds, metadata=call.metadata)
    try:
        async for status in link.stack.iterate(statuses):
            has_answered = True
            if status == SERVING:
                return None
    except grpc.RpcError as error:
        code = error.code()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and has_answered:
            return call.not_serving()
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return call.failed(error)
        raise call.failed(error) from error
    finally:
        statuses.cancel()
    return call.not_serving()


@asynccontextmanager
async def _stream(
    link: Link, call: RpcCall, messages: AsyncIterator[Any], due: Callable[[], bool]
) -> AsyncIterator[tuple[AsyncIterator[Any], Feed[Any]]]:
    """Send messages while the `with` block reads the responses; yield the responses and the feed.

    At the end the call is cancelled. The server owes a response while `due()` is true.
    """
    async with link.stack.Watchdog(link.idle_timeout, due) as watchdog:
        feed = Feed(messages, watchdog.touch)
        rpc = call.start(link.method(call), link.stack.run_iterator(feed.requests()))
        status = link.stack.FirstStatus(rpc)
        try:
            yield watchdog.watched(rpc), feed
        except StallError as stall:
            raise call.stalled(link.idle_timeout) from stall
        except grpc.RpcError as error:
            raise feed.failure or call.failed(status.of(error)) from error
        finally:
            rpc.cancel()


async def build(
    link: Link, call: RpcCall, upload: Upload | AttributeUpload, progress: OnProgress
) -> IndexInfo:
    """Send an upload, report its progress and return the description of the index.

    The call is Build or AddAttributes. No row is sent before the server's `accepted` event, which
    sets the maximum chunk size.
    """
    chunk_size = link.stack.Handoff()

    async def messages() -> AsyncIterator[Message]:
        yield upload.header
        if chunk_bytes := await chunk_size.get():
            for chunk in upload.chunks(chunk_bytes):
                yield chunk

    events = BuildEvents(chunk_size.put, progress)
    async with _stream(link, call, messages(), lambda: True) as (responses, feed):
        try:
            async for response in responses:
                events.take(response)
        finally:
            chunk_size.put(0)
    if events.info is None:
        raise feed.failure or call.broken("the call ended without a result")
    return events.info


async def renew(
    link: Link,
    call: RpcCall,
    request: writes_pb2.CompactRequest | writes_pb2.RetrainRequest,
    progress: OnProgress,
) -> bool:
    """Make a call of Compact or Retrain and report its progress.

    Returns whether there was anything to do.

    The server has no limit for the time between two events: a merge has only one.
    """
    rpc = call.start(link.method(call), request)
    try:
        async for response in link.stack.iterate(rpc):
            if response.WhichOneof("event") == "done":
                is_compaction = isinstance(response, writes_pb2.CompactResponse)
                return bool(response.done.merged if is_compaction else response.done.retrained)
            if progress is not None:
                progress(responses.progress(response.progress))
    except grpc.RpcError as error:
        raise call.failed(error) from error
    finally:
        rpc.cancel()
    raise call.broken("the call ended without a result")


async def receive(
    link: Link, call: RpcCall, request: Message, read: Callable[[Any], Iterable[ResultT]]
) -> AsyncGenerator[ResultT, None]:
    """Send a request, and yield what `read` returns for each response of its stream."""
    rpc = call.start(link.method(call), request)
    status = link.stack.FirstStatus(rpc)
    try:
        async for response in link.stack.iterate(rpc):
            for item in read(response):
                yield item
    except grpc.RpcError as error:
        raise call.failed(status.of(error)) from error
    finally:
        rpc.cancel()


async def pipe(
    link: Link,
    call: RpcCall,
    pipeline: Pipeline[ItemT, Any, ResultT],
    items: Iterable[ItemT] | AsyncIterable[ItemT],
    *,
    on_error: OnError = None,
) -> AsyncGenerator[ResultT, None]:
    """Send the items of a stream, and yield their results in the order of the items.

    At most `pipeline.in_flight` items await results at the same time. `on_error` is called
    with the number and the error of an item that fails; without it, the error is raised.
    """
    window = link.stack.Window(pipeline.in_flight)
    numbers = itertools.count()
    has_ended = False

    async def messages() -> AsyncIterator[Any]:
        async for item in link.stack.iterate(items):
            message = pipeline.withdrawal_of(item)
            if message is not None:
                yield message
                continue
            await window.acquire()
            if has_ended:
                return
            yield pipeline.request(item)

    async with _stream(link, call, messages(), lambda: pipeline.due) as (responses, feed):
        try:
            async for response in responses:
                for outcome, number in zip(pipeline.accept(response), numbers, strict=False):
                    window.release()
                    if not isinstance(outcome, Status):
                        yield outcome
                    elif on_error is None:
                        raise call.refused(outcome)
                    else:
                        on_error(number, call.refused(outcome))
        finally:
            has_ended = True
            window.release()
    if feed.failure or pipeline.unanswered:
        raise feed.failure or call.broken("the stream ended before every message was answered")


async def diagnose(
    link: Link, call: RpcCall, request: diagnose_pb2.DiagnoseRequest, progress: OnProgress
) -> Diagnosis:
    """Make a call of Diagnose, report its progress, and return the diagnosis."""
    async with link.stack.Watchdog(link.idle_timeout, lambda: True) as watchdog:
        rpc = call.start(link.method(call), request)
        try:
            async for response in watchdog.watched(rpc):
                if response.WhichOneof("event") == "done":
                    return diagnosis_of(response.done)
                if progress is not None:
                    progress(responses.progress(response.progress))
        except StallError as stall:
            raise call.stalled(link.idle_timeout) from stall
        except grpc.RpcError as error:
            raise call.failed(error) from error
        finally:
            rpc.cancel()
    raise call.broken("the call ended without a result")


async def evaluate(
    link: Link, call: RpcCall, evaluation: Evaluation[RequestT, ResponseT, RowT]
) -> AsyncGenerator[RowT, None]:
    """Send an evaluation, report its progress, and yield its rows.

    The call is cancelled if the caller stops iterating.
    """
    for message in evaluation.messages():
        async with link.stack.Watchdog(link.idle_timeout, lambda: True) as watchdog:
            rpc = call.start(link.method(call), message)
            try:
                async for response in watchdog.watched(rpc):
                    for row in evaluation.take(response):
                        yield row
            except StallError as stall:
                raise call.stalled(link.idle_timeout) from stall
            except grpc.RpcError as error:
                raise call.failed(error, evaluation.has_begun) from error
            finally:
                rpc.cancel()
        if evaluation.is_torn:
            raise call.unsettled()
    for row in evaluation.rows():
        yield row
