"""Each kind of call on grpc: one message, a batch, an upload, streams.

Made by `make sync-client`; do not edit.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

import grpc
from google.rpc.status_pb2 import Status

from divgrpc.types import IndexInfo, Progress, QueryResult
from divgrpc_client.messages.batches import Exchange, Pipeline
from divgrpc_client.messages.evaluate import Evaluation, RequestT, ResponseT, RowT
from divgrpc_client.messages.upload import BuildEvents, Upload
from divgrpc_client.messages.vectors import VectorsLike
from divgrpc_client.rpc.call import RpcCall
from divgrpc_client.rpc.channels import SERVING, WATCH_REQUEST
from divgrpc_client.rpc.errors import StallError
from divgrpc_client.rpc.sync_stack import (
    Connection,
    Feed,
    FirstStatus,
    Handoff,
    Watchdog,
    Window,
    iterate,
)
from divgrpc_protos.v1 import index_pb2, query_pb2

if TYPE_CHECKING:
    from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub


MessageT = TypeVar("MessageT")
AnswerT = TypeVar("AnswerT")
ResultT = TypeVar("ResultT")

# Between two attempts to reach a server that is not up: it may refuse at once.
_READY_PAUSE_SECONDS: Final = 0.1


def ask_all(
    call: RpcCall,
    method: "grpc.UnaryUnaryMultiCallable[MessageT, AnswerT]",
    exchange: Exchange[MessageT, AnswerT, ResultT],
) -> ResultT:
    """Send the requests of an exchange one after the other, and return its result."""
    while (request := exchange.next_request()) is not None:
        try:
            answer = method(request, timeout=call.seconds_left(), metadata=call.metadata)
        except grpc.RpcError as error:
            raise call.failed(error) from error
        exchange.accept(answer)
    result = exchange.result()
    if result is None:
        raise call.unsettled()
    return result


def wait_until_ready(call: RpcCall, connection: Callable[[], Connection]) -> None:
    """Wait until the server's health says that it serves."""
    while not _becomes_ready(call, connection().watch):
        time.sleep(_READY_PAUSE_SECONDS)


def _becomes_ready(call: RpcCall, watch: "grpc.UnaryStreamMultiCallable[bytes, bytes]") -> bool:
    """Watch the server's health; False if the server goes away before it is ready."""
    statuses = watch(
        WATCH_REQUEST,
        timeout=call.seconds_left(),
        metadata=call.metadata,
        wait_for_ready=True,
    )
    try:
        for status in statuses:
            if status == SERVING:
                return True
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise call.failed(error) from error
    finally:
        statuses.cancel()
    return False


def build(
    stub: "DiverseIndexStub",
    call: RpcCall,
    upload: Upload,
    progress: Callable[[Progress], object] | None,
    idle_timeout: float,
) -> IndexInfo:
    """Send an upload, report its progress, and return the index.

    The rows wait for the server's `accepted`, which says how large a chunk may be.
    """
    chunk_size = Handoff[int]()

    def messages() -> Iterator[index_pb2.BuildRequest]:
        yield upload.header
        if chunk_bytes := chunk_size.get():
            yield from upload.chunks(chunk_bytes)

    events = BuildEvents(chunk_size.put, progress)
    with Watchdog(idle_timeout, lambda: True) as watchdog:
        feed = Feed(messages(), watchdog.touch)
        rpc = stub.Build(iter(feed), timeout=call.seconds_left(), metadata=call.metadata)
        status = FirstStatus(rpc)
        try:
            for response in watchdog.watched(rpc):
                events.take(response)
        except StallError as stall:
            raise call.stalled(idle_timeout) from stall
        except grpc.RpcError as error:
            raise feed.failure or call.failed(status.of(error)) from error
        finally:
            chunk_size.put(0)
            rpc.cancel()
    if events.info is None:
        raise feed.failure or call.broken("the build ended without a result")
    return events.info


def query(
    stub: "DiverseIndexStub",
    call: RpcCall,
    pipeline: Pipeline,
    queries: Iterable[VectorsLike],
    idle_timeout: float,
) -> Iterator[QueryResult]:
    """Send queries as the window allows, and yield their results in order."""
    window = Window(pipeline.in_flight)
    has_ended = False

    def messages() -> Iterator[query_pb2.QueryStreamRequest]:
        for item in iterate(queries):
            window.acquire()
            if has_ended:
                return
            yield pipeline.request(item)

    with Watchdog(idle_timeout, lambda: pipeline.due) as watchdog:
        feed = Feed(messages(), watchdog.touch)
        rpc = stub.QueryStream(iter(feed), timeout=call.seconds_left(), metadata=call.metadata)
        status = FirstStatus(rpc)
        try:
            for response in watchdog.watched(rpc):
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
            has_ended = True
            window.release()
            rpc.cancel()
    if feed.failure or pipeline.unanswered:
        raise feed.failure or call.broken("the stream ended before every query was answered")


def evaluate(
    method: "grpc.UnaryStreamMultiCallable[RequestT, ResponseT]",
    call: RpcCall,
    evaluation: Evaluation[RequestT, ResponseT, RowT],
    idle_timeout: float,
) -> Iterator[RowT]:
    """Send an evaluation, report its progress, and yield its rows.

    The call ends when the caller stops to iterate.
    """
    for message in evaluation.messages():
        with Watchdog(idle_timeout, lambda: True) as watchdog:
            rpc = method(message, timeout=call.seconds_left(), metadata=call.metadata)
            try:
                for response in watchdog.watched(rpc):
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
