"""A server whose answers a test sets, for faults that a real server shows too rarely.

The server accepts real connections, records the requests, and fails when the test says so.
"""

# ruff: noqa: N802  # methods have the names of the contract

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NoReturn

import grpc
import numpy as np
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_health.v1.health import HealthServicer
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from divgrpc_protos import arrays
from divgrpc_protos.v1 import (
    attributes_pb2,
    diagnose_pb2,
    diversify_pb2,
    evaluate_pb2,
    index_pb2,
    points_pb2,
    query_pb2,
    writes_pb2,
)
from divgrpc_protos.v1.diverse_index_pb2_grpc import (
    DiverseIndexServicer,
    add_DiverseIndexServicer_to_server,
)

K = 3


def answer(request: query_pb2.QueryRequest, generation: int) -> query_pb2.QueryResponse:
    """Answer a row whose first value is x with the ids 10 x, 10 x + 1 and 10 x + 2."""
    rows = arrays.decode(request.queries)
    assert isinstance(rows, np.ndarray)
    count = len(rows)
    first = rows[:, 0].astype(np.int64)
    return query_pb2.QueryResponse(
        generation=generation,
        offsets=range(0, K * count + 1, K),
        ids=(10 * first[:, None] + np.arange(K)).ravel().tolist(),
        scores=[0.5] * K * count,
        selection_scores=[0.25] * K * count,
        stats=query_pb2.QueryStats(
            points_hashed=[7] * count,
            buckets_probed=[0] * count,
            points_scored=[7] * count,
            candidates=[5] * count,
        ),
        parameters=query_pb2.EffectiveParameters(
            k=K,
            selector=query_pb2.SELECTOR_GREEDY,
            variant=query_pb2.VARIANT_CORRECTED,
            search=query_pb2.SEARCH_SCAN,
            sampling=query_pb2.SAMPLING_UNIFORM,
        ),
        warnings=[query_pb2.WarningInfo(code="A_WARNING", message="A sentence.", field="k")],
    )


def row(number: int) -> evaluate_pb2.EvaluateRow:
    """Return a row of an evaluation; row 1 is a choice by folds."""
    return evaluate_pb2.EvaluateRow(
        number=number,
        generation=4,
        search=query_pb2.SEARCH_AUTO,
        parameters=answer(
            query_pb2.QueryRequest(queries=arrays.encode_dense(np.ones((1, 1)))), 1
        ).parameters,
        metrics=[evaluate_pb2.EvaluateMetric(name="h_score", value=0.5, low=0.25, high=0.75)],
        h_of_means=0.625,
        microseconds=evaluate_pb2.EvaluateTimes(mean=1, p50=2, p90=3, p99=4),
        queries=2,
        short=1,
        on_front=not number,
        by_fold=[0, 0] * number,
        values=[evaluate_pb2.EvaluateValues(name="h_score", values=[0.25, 0.75])],
    )


def status(code: int, message: str, *details: Message) -> status_pb2.Status:
    """Return a status with details."""
    message_with_details = status_pb2.Status(code=code, message=message)
    for detail in details:
        message_with_details.details.add().Pack(detail)
    return message_with_details


class ScriptedIndex(DiverseIndexServicer):
    """A servicer whose behaviour a test sets by attributes, which also record the requests."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.metadata: dict[str, str | bytes] = {}
        self.peers: set[str] = set()  # the connections of queries
        self.seconds_left = 0.0
        self.queries: list[query_pb2.QueryRequest] = []
        self.time_limits: list[int] = []  # of the queries of streams
        self.evaluations: list[evaluate_pb2.EvaluateRequest] = []
        self.upload: list[index_pb2.BuildRequest] = []
        self.write_ids: list[str] = []
        # Status codes with which the next calls fail, and the packed details of these failures.
        self.failures: list[grpc.StatusCode] = []
        self.packed_details = b""
        # The generations that the next answers report. When one is left, it is used for all further
        # answers.
        self.generations = [1]
        # The size of the groups in which queries of a stream are answered, each in reverse order.
        self.turn_round = 1
        self.chunk_bytes = 1024
        self.silent = False
        # If true, a build ends without sending its result.
        self.forgets = False
        self.asked = threading.Event()
        self.cancelled = threading.Event()

    def _begin(self, method: str, context: grpc.ServicerContext) -> None:
        self.calls[method] += 1
        self.metadata = dict(context.invocation_metadata())
        seconds = context.time_remaining()
        self.seconds_left = -1.0 if seconds is None else seconds
        if not context.add_callback(self.cancelled.set):
            self.cancelled.set()  # the call has ended already
        self.asked.set()
        if self.failures:
            if self.packed_details:
                details = ("grpc-status-details-bin", self.packed_details)
                context.set_trailing_metadata((details,))
            context.abort(self.failures.pop(0), "on command")
        if self.silent:
            self.cancelled.wait()

    def _generation(self) -> int:
        return self.generations.pop(0) if len(self.generations) > 1 else self.generations[0]

    def Query(
        self, request: query_pb2.QueryRequest, context: grpc.ServicerContext
    ) -> query_pb2.QueryResponse:
        """Record a query and answer it, or fail if the test says so."""
        self._begin("Query", context)
        self.peers.add(context.peer())
        self.queries.append(request)
        return answer(request, self._generation())

    def QueryStream(
        self,
        request_iterator: Iterator[query_pb2.QueryStreamRequest],
        context: grpc.ServicerContext,
    ) -> Iterator[query_pb2.QueryStreamResponse]:
        """Answer in groups in reverse order; a query whose first value is negative is refused."""
        self._begin("QueryStream", context)
        requests: list[query_pb2.QueryStreamRequest] = []
        for request in request_iterator:
            if request.withdraw:
                withdrawn = [
                    item for item in requests if item.correlation_id == request.correlation_id
                ]
                requests = [item for item in requests if item not in withdrawn]
                yield from map(self._withdrawn, withdrawn)
                continue
            self.queries.append(request.query)
            self.time_limits.append(request.time_limit_ms)
            requests.append(request)
            if len(requests) == self.turn_round:
                yield from map(self._outcome, reversed(requests))
                requests = []
        yield from map(self._outcome, reversed(requests))

    def _withdrawn(self, request: query_pb2.QueryStreamRequest) -> query_pb2.QueryStreamResponse:
        info = error_details_pb2.ErrorInfo(reason="WITHDRAWN", domain="divgrpc")
        error = status(code_pb2.CANCELLED, "withdrawn", info)
        return query_pb2.QueryStreamResponse(correlation_id=request.correlation_id, error=error)

    def _outcome(self, request: query_pb2.QueryStreamRequest) -> query_pb2.QueryStreamResponse:
        response = query_pb2.QueryStreamResponse(correlation_id=request.correlation_id)
        rows = arrays.decode(request.query.queries)
        if isinstance(rows, np.ndarray) and rows[0, 0] < 0:
            violation = error_details_pb2.BadRequest.FieldViolation(field="k", description="no")
            details = error_details_pb2.BadRequest(field_violations=[violation])
            response.error.CopyFrom(status(code_pb2.INVALID_ARGUMENT, "refused", details))
        else:
            response.response.CopyFrom(answer(request.query, self._generation()))
        return response

    def Get(
        self, request: points_pb2.GetRequest, context: grpc.ServicerContext
    ) -> points_pb2.GetResponse:
        """Return the requested ids without anything else."""
        self._begin("Get", context)
        points = points_pb2.PointRecords(ids=request.ids, string_ids=request.string_ids)
        return points_pb2.GetResponse(generation=self._generation(), points=points)

    def Diversify(
        self, request: diversify_pb2.DiversifyRequest, context: grpc.ServicerContext
    ) -> diversify_pb2.DiversifyResponse:
        """Pick the first candidate."""
        self._begin("Diversify", context)
        return diversify_pb2.DiversifyResponse(
            places=[0], scores=request.scores[:1], selection_scores=[1], diversity=0.15
        )

    def DiversifyStream(
        self, request: diversify_pb2.DiversifyStreamRequest, context: grpc.ServicerContext
    ) -> Iterator[diversify_pb2.DiversifyStreamResponse]:
        """Pick the candidates in their order."""
        self._begin("DiversifyStream", context)
        for place in range(request.request.vectors.dense.rows):
            yield diversify_pb2.DiversifyStreamResponse(
                rank=place, places=[place], scores=[0], selection_scores=[0]
            )

    def Count(
        self, _: points_pb2.CountRequest, context: grpc.ServicerContext
    ) -> points_pb2.CountResponse:
        """Count no points."""
        self._begin("Count", context)
        return points_pb2.CountResponse(generation=self._generation())

    def Scroll(
        self, request: points_pb2.ScrollRequest, context: grpc.ServicerContext
    ) -> points_pb2.ScrollResponse:
        """Return three pages, each with its number as the only id."""
        self._begin("Scroll", context)
        page = int(request.page_token or 0)
        return points_pb2.ScrollResponse(
            generation=self._generation(),
            points=points_pb2.PointRecords(ids=[page]),
            next_page_token=str(page + 1) if page < 2 else "",
        )

    def Upsert(
        self, request: writes_pb2.UpsertRequest, context: grpc.ServicerContext
    ) -> writes_pb2.UpsertResponse:
        """Return the number of ids."""
        self.write_ids.append(request.write_id)
        self._begin("Upsert", context)
        rows = _count_ids(request)
        return writes_pb2.UpsertResponse(generation=self._generation(), sequence=1, rows=rows)

    def Delete(
        self, request: writes_pb2.DeleteRequest, context: grpc.ServicerContext
    ) -> writes_pb2.DeleteResponse:
        """Return the number of ids."""
        self.write_ids.append(request.write_id)
        self._begin("Delete", context)
        rows = _count_ids(request)
        return writes_pb2.DeleteResponse(generation=self._generation(), sequence=1, rows=rows)

    def WriteStream(
        self,
        request_iterator: Iterator[writes_pb2.WriteStreamRequest],
        context: grpc.ServicerContext,
    ) -> Iterator[writes_pb2.WriteStreamResponse]:
        """Return the number of ids of each write."""
        self._begin("WriteStream", context)
        for number, request in enumerate(request_iterator, 1):
            response = writes_pb2.WriteStreamResponse(correlation_id=request.correlation_id)
            is_upsert = request.HasField("upsert")
            write = request.upsert if is_upsert else request.delete
            outcome = response.upsert if is_upsert else response.delete
            outcome.sequence, outcome.rows = number, _count_ids(write)
            self.write_ids.append(write.write_id)
            yield response

    def Compact(
        self, _request: writes_pb2.CompactRequest, context: grpc.ServicerContext
    ) -> Iterator[writes_pb2.CompactResponse]:
        """Report progress, and say that there was something to merge."""
        self._begin("Compact", context)
        yield writes_pb2.CompactResponse(progress=index_pb2.BuildProgress(stage="copying"))
        result = writes_pb2.CompactResult(generation=self._generation(), merged=True)
        yield writes_pb2.CompactResponse(done=result)

    def Retrain(
        self, _request: writes_pb2.RetrainRequest, context: grpc.ServicerContext
    ) -> Iterator[writes_pb2.RetrainResponse]:
        """Report progress, and say that the index was built anew."""
        self._begin("Retrain", context)
        yield writes_pb2.RetrainResponse(progress=index_pb2.BuildProgress(stage="copying"))
        result = writes_pb2.RetrainResult(generation=self._generation(), retrained=True)
        yield writes_pb2.RetrainResponse(done=result)

    def Build(
        self, request_iterator: Iterator[index_pb2.BuildRequest], context: grpc.ServicerContext
    ) -> Iterator[index_pb2.BuildResponse]:
        """Record the messages, report progress, and return an index."""
        self._begin("Build", context)
        self.upload = [next(request_iterator)]
        event = index_pb2.BuildAccepted(chunk_bytes=self.chunk_bytes)
        yield index_pb2.BuildResponse(accepted=event)
        for request in request_iterator:
            self.upload.append(request)
            count = len(self.upload)
            yield index_pb2.BuildResponse(
                progress=index_pb2.BuildProgress(stage="receiving", rows_done=count)
            )
        if self.upload[-1].HasField("commit") and not self.forgets:
            yield index_pb2.BuildResponse(done=self._info(self.upload[0].header.index))

    def AddAttributes(
        self,
        request_iterator: Iterator[attributes_pb2.AddAttributesRequest],
        context: grpc.ServicerContext,
    ) -> Iterator[attributes_pb2.AddAttributesResponse]:
        """Record the messages, and return an index."""
        self._begin("AddAttributes", context)
        self.attributes = [next(request_iterator)]
        event = index_pb2.BuildAccepted(chunk_bytes=self.chunk_bytes)
        yield attributes_pb2.AddAttributesResponse(accepted=event)
        self.attributes.extend(request_iterator)
        info = self._info(self.attributes[0].header.index)
        yield attributes_pb2.AddAttributesResponse(done=info)

    def _info(self, name: str) -> index_pb2.IndexInfo:
        parameters = index_pb2.BuildParameters(
            hash_family=index_pb2.HASH_FAMILY_LSH_DIV, centred=False, n_tables=4
        )
        array = index_pb2.ArrayInfo(name="codes", dtype="uint64", shape=[4, 9], bytes=288)
        return index_pb2.IndexInfo(
            name=name,
            generation=2,
            rows=9,
            dims=3,
            parameters=parameters,
            auto_search=query_pb2.SEARCH_SCAN,
            search_costs=[query_pb2.SearchCost(search=query_pb2.SEARCH_EXACT, recall=1.0)],
            arrays=[array],
        )

    def GetIndex(
        self, request: index_pb2.GetIndexRequest, context: grpc.ServicerContext
    ) -> index_pb2.GetIndexResponse:
        """Return an index of the given name."""
        self._begin("GetIndex", context)
        return index_pb2.GetIndexResponse(index=self._info(request.index))

    def ListIndexes(
        self, request: index_pb2.ListIndexesRequest, context: grpc.ServicerContext
    ) -> index_pb2.ListIndexesResponse:
        """Return three indexes, one per page."""
        self._begin("ListIndexes", context)
        page = int(request.page_token or 0)
        token = str(page + 1) if page < 2 else ""
        infos = [self._info(f"index-{page}")]
        return index_pb2.ListIndexesResponse(indexes=infos, next_page_token=token)

    def DeleteIndex(
        self, request: index_pb2.DeleteIndexRequest, context: grpc.ServicerContext
    ) -> index_pb2.DeleteIndexResponse:
        """Return a generation without deleting anything."""
        self._begin(f"DeleteIndex {request.index}", context)
        return index_pb2.DeleteIndexResponse(generation=2)

    def GetServerInfo(
        self, request: index_pb2.GetServerInfoRequest, context: grpc.ServicerContext
    ) -> index_pb2.GetServerInfoResponse:
        """Return information about a server."""
        self._begin(type(request).__name__, context)
        return index_pb2.GetServerInfoResponse(
            version="1.2", durable=True, fronts=1, workers=2, limits={"k_max": 9}
        )

    def _unimplemented(self, request: Message, context: grpc.ServicerContext) -> NoReturn:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, type(request).__name__)

    BuildOnce = PredictLabels = EvaluateLabels = _unimplemented

    def Diagnose(
        self, request: diagnose_pb2.DiagnoseRequest, context: grpc.ServicerContext
    ) -> Iterator[diagnose_pb2.DiagnoseResponse]:
        """Report progress, and return a diagnosis of as many points as were to be sampled."""
        self._begin("Diagnose", context)
        yield diagnose_pb2.DiagnoseResponse(progress=index_pb2.BuildProgress(stage="counting"))
        yield diagnose_pb2.DiagnoseResponse(done=diagnose_pb2.Diagnosis(sampled=request.sample))

    def Evaluate(
        self, request: evaluate_pb2.EvaluateRequest, context: grpc.ServicerContext
    ) -> Iterator[evaluate_pb2.EvaluateResponse]:
        """Report progress, and return two rows; the second is a choice by folds."""
        self._begin("Evaluate", context)
        self.evaluations.append(request)
        progress = evaluate_pb2.EvaluateProgress(queries_done=1, queries_total=2, seconds_left=3)
        yield evaluate_pb2.EvaluateResponse(progress=progress)
        for number in range(2):
            yield evaluate_pb2.EvaluateResponse(row=row(number))


def _count_ids(write: writes_pb2.UpsertRequest | writes_pb2.DeleteRequest) -> int:
    return len(write.ids) + len(write.string_ids)


@contextmanager
def serving(index: ScriptedIndex, health: HealthServicer | None = None) -> Iterator[str]:
    """Serve on a free port and yield the address. Without `health`, there is no health service."""
    with ThreadPoolExecutor(8) as threads:
        server = grpc.server(threads)
        add_DiverseIndexServicer_to_server(index, server)
        if health is not None:
            add_HealthServicer_to_server(health, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            index.cancelled.set()
            server.stop(0).wait(60)
