"""Build, QueryStream and evaluations on grpc.aio; the twin of `divgrpc_client.streams`.

gRPC draws the requests in a task of its own while the caller's task reads the responses.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from google.rpc.status_pb2 import Status

from divgrpc.types import IndexInfo, Progress, QueryResult
from divgrpc_client.messages.evaluation_parts import EvaluationParts, RequestT, ResponseT, RowT
from divgrpc_client.messages.pipelines import Pipeline
from divgrpc_client.messages.upload import BuildEvents, Upload
from divgrpc_client.messages.vectors import VectorsLike
from divgrpc_client.rpc.call import Call
from divgrpc_client.rpc.feeds import AsyncFeed
from divgrpc_client.rpc.first_status import FirstStatus
from divgrpc_client.rpc.stalls import AsyncWatchdog, StallError
from divgrpc_protos.v1 import index_pb2, query_pb2

if TYPE_CHECKING:
    # The name of the stub over grpc.aio is known to type checkers alone.
    from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexAsyncStub


async def build(
    stub: "DiverseIndexAsyncStub",
    call: Call,
    upload: Upload,
    progress: Callable[[Progress], object] | None,
    idle_timeout: float,
) -> IndexInfo:
    """Send an upload, tell of its progress, and return the index."""
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def messages() -> AsyncIterator[index_pb2.BuildRequest]:
        yield upload.header
        if chunk_bytes := await accepted:
            for chunk in upload.chunks(chunk_bytes):
                yield chunk

    events = BuildEvents(accepted.set_result, progress)
    watchdog = AsyncWatchdog(idle_timeout, lambda: True)
    feed = AsyncFeed(messages(), watchdog.touch)
    rpc = stub.Build(aiter(feed), timeout=call.seconds_left(), metadata=call.metadata)
    status = FirstStatus(rpc)
    try:
        async for response in watchdog.watched(rpc):
            events.take(response)
    except StallError as stall:
        raise call.stalled(idle_timeout) from stall
    except grpc.RpcError as error:
        raise feed.failure or call.failed(status.of(error)) from error
    finally:
        if not accepted.done():
            accepted.set_result(0)
        rpc.cancel()
    if events.info is None:
        raise feed.failure or call.broken("the build ended without a result")
    return events.info


async def query(
    stub: "DiverseIndexAsyncStub",
    call: Call,
    pipeline: Pipeline,
    queries: Iterable[VectorsLike] | AsyncIterable[VectorsLike],
    idle_timeout: float,
) -> AsyncIterator[QueryResult]:
    """Send queries as the window allows, and yield their results in order."""
    window = asyncio.Semaphore(pipeline.in_flight)
    over = asyncio.Event()

    async def messages() -> AsyncIterator[query_pb2.QueryStreamRequest]:
        async for item in _each(queries):
            await window.acquire()
            if over.is_set():
                return
            yield pipeline.request(item)

    watchdog = AsyncWatchdog(idle_timeout, lambda: pipeline.due)
    feed = AsyncFeed(messages(), watchdog.touch)
    rpc = stub.QueryStream(aiter(feed), timeout=call.seconds_left(), metadata=call.metadata)
    status = FirstStatus(rpc)
    try:
        async for response in watchdog.watched(rpc):
            for outcome in pipeline.accept(response):
                window.release()
                if isinstance(outcome, Status):
                    raise call.refused(outcome)
                yield outcome
    except StallError as stall:
        raise call.stalled(idle_timeout) from stall
    except grpc.RpcError as error:
        raise feed.failure or call.failed(status.of(error)) from error
    finally:
        over.set()
        window.release()
        rpc.cancel()
    if feed.failure or pipeline.unanswered:
        raise feed.failure or call.broken("the stream ended before every query was answered")


async def evaluate(
    method: "grpc.aio.UnaryStreamMultiCallable[RequestT, ResponseT]",
    call: Call,
    evaluation: EvaluationParts[RequestT, ResponseT, RowT],
    idle_timeout: float,
) -> AsyncIterator[RowT]:
    """Send what is evaluated, tell of progress, and yield rows; who stops asking ends the call."""
    for message in evaluation.messages():
        watchdog = AsyncWatchdog(idle_timeout, lambda: True)
        rpc = method(message, timeout=call.seconds_left(), metadata=call.metadata)
        try:
            async for response in watchdog.watched(rpc):
                for row in evaluation.take(response):
                    yield row
        except StallError as stall:
            raise call.stalled(idle_timeout) from stall
        except grpc.RpcError as error:
            raise call.failed(error, evaluation.has_begun) from error
        finally:
            rpc.cancel()
        if evaluation.is_torn:
            raise call.unsettled()
    for row in evaluation.rows():
        yield row


async def _each(
    queries: Iterable[VectorsLike] | AsyncIterable[VectorsLike],
) -> AsyncIterator[VectorsLike]:
    if isinstance(queries, AsyncIterable):
        async for item in queries:
            yield item
    else:
        for item in queries:
            yield item
