"""Build, QueryStream and evaluations on grpc's sync stack.

gRPC draws the requests on a thread of its own while the caller's thread reads the responses. The
two meet in a queue (Build's chunks wait for `accepted`) or a semaphore (a stream's window); both
are let go at the end, so that the drawing thread never outlives its call.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue

import grpc
from google.rpc.status_pb2 import Status

from divgrpc.types import IndexInfo, Progress, QueryResult
from divgrpc_client.messages.evaluation_parts import EvaluationParts, RequestT, ResponseT, RowT
from divgrpc_client.messages.pipelines import Pipeline
from divgrpc_client.messages.upload import BuildEvents, Upload
from divgrpc_client.messages.vectors import VectorsLike
from divgrpc_client.rpc.call import Call
from divgrpc_client.rpc.feeds import Feed
from divgrpc_client.rpc.stalls import StallError, Watchdog
from divgrpc_protos.v1 import index_pb2, query_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub


def build(
    stub: DiverseIndexStub,
    call: Call,
    upload: Upload,
    progress: Callable[[Progress], object] | None,
    idle_timeout: float,
) -> IndexInfo:
    """Send an upload, tell of its progress, and return the index."""
    accepted: SimpleQueue[int] = SimpleQueue()

    def messages() -> Iterator[index_pb2.BuildRequest]:
        yield upload.header
        if chunk_bytes := accepted.get():
            yield from upload.chunks(chunk_bytes)

    events = BuildEvents(accepted.put, progress)
    with Watchdog(idle_timeout, lambda: True) as watchdog:
        feed = Feed(messages(), watchdog.touch)
        rpc = stub.Build(iter(feed), timeout=call.seconds_left(), metadata=call.metadata)
        try:
            for response in watchdog.watched(rpc):
                events.take(response)
        except StallError as stall:
            raise call.stalled(idle_timeout) from stall
        except grpc.RpcError as error:
            raise feed.failure or call.failed(error) from error
        finally:
            accepted.put(0)
            rpc.cancel()
    if events.info is None:
        raise feed.failure or call.broken("the build ended without a result")
    return events.info


def query(
    stub: DiverseIndexStub,
    call: Call,
    pipeline: Pipeline,
    queries: Iterable[VectorsLike],
    idle_timeout: float,
) -> Iterator[QueryResult]:
    """Send queries as the window allows, and yield their results in order."""
    window = threading.Semaphore(pipeline.in_flight)
    over = threading.Event()

    def messages() -> Iterator[query_pb2.QueryStreamRequest]:
        for item in queries:
            window.acquire()
            if over.is_set():
                return
            yield pipeline.request(item)

    with Watchdog(idle_timeout, lambda: pipeline.due) as watchdog:
        feed = Feed(messages(), watchdog.touch)
        rpc = stub.QueryStream(iter(feed), timeout=call.seconds_left(), metadata=call.metadata)
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
            raise feed.failure or call.failed(error) from error
        finally:
            over.set()
            window.release()
            rpc.cancel()
    if feed.failure or pipeline.unanswered:
        raise feed.failure or call.broken("the stream ended before every query was answered")


def evaluate(
    method: "grpc.UnaryStreamMultiCallable[RequestT, ResponseT]",
    call: Call,
    evaluation: EvaluationParts[RequestT, ResponseT, RowT],
    idle_timeout: float,
) -> Iterator[RowT]:
    """Send what is evaluated, tell of progress, and yield rows; who stops asking ends the call."""
    for message in evaluation.messages():
        with Watchdog(idle_timeout, lambda: True) as watchdog:
            rpc = method(message, timeout=call.seconds_left(), metadata=call.metadata)
            try:
                for response in watchdog.watched(rpc):
                    yield from evaluation.take(response)
            except StallError as stall:
                raise call.stalled(idle_timeout) from stall
            except grpc.RpcError as error:
                raise call.failed(error, evaluation.has_begun) from error
            finally:
                rpc.cancel()
        if evaluation.is_torn:
            raise call.unsettled()
    yield from evaluation.rows()
