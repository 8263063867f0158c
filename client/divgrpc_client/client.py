"""The client on grpc's sync stack: safe to share between threads, not across a fork.

Everything but the waiting is shared with `divgrpc_client.async_client`: what a call sends
(`requests`, `batches`, `pipelines`, `uploads`), what comes of it (`responses`), how it fails
(`calls`).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Self, TypeVar, Unpack

import grpc
import numpy.typing as npt

from divgrpc.evaluation import FOLDS
from divgrpc.search.results import ResultT
from divgrpc.types import (
    EvaluateLabelRow,
    EvaluateRow,
    IndexInfo,
    LabelResult,
    Progress,
    QueryResult,
)
from divgrpc_client import streams
from divgrpc_client.messages import arguments, responses
from divgrpc_client.messages import upload as uploads
from divgrpc_client.messages.batches import Batch, PredictBatch, QueryBatch
from divgrpc_client.messages.evaluate import Evaluation
from divgrpc_client.messages.evaluate_labels import LabelEvaluation
from divgrpc_client.messages.labels import ModelLike
from divgrpc_client.messages.options import (
    BuildOptions,
    GridOptions,
    LabelGridOptions,
    PredictOptions,
    QueryOptions,
    spelled_out,
)
from divgrpc_client.messages.pipelines import Pipeline
from divgrpc_client.messages.requests import build_message, next_page
from divgrpc_client.messages.responses import ServerInfo
from divgrpc_client.messages.vectors import VectorsLike
from divgrpc_client.rpc import health
from divgrpc_client.rpc.call import Call
from divgrpc_client.rpc.channels import ChannelOption, Pool, Settings
from divgrpc_protos.v1 import index_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class _Connection(NamedTuple):
    channel: grpc.Channel
    stub: DiverseIndexStub
    watch: "grpc.UnaryStreamMultiCallable[bytes, bytes]"


def _connect(settings: Settings) -> _Connection:
    options = settings.channel_options()
    if settings.credentials is None:
        channel = grpc.insecure_channel(settings.target, options)
    else:
        channel = grpc.secure_channel(settings.target, settings.credentials, options)
    return _Connection(channel, DiverseIndexStub(channel), channel.unary_stream(health.WATCH))


class Client:
    """Asks a divgrpc server at `target`, such as ``"localhost:50051"``.

    It connects at the first call. `timeout` is in seconds, the deadline of calls that are given
    none (Build, QueryStream and Evaluate have none); `idle_timeout` is how long one of those may
    stand still. Read-only calls are retried when the server is unavailable, unless
    `retries` is False. `channels` is the number of connections that calls take turns on: several
    fronts of one server are reached only by several. `credentials` make the channels secure;
    `options` are gRPC's own channel arguments.

    Every method raises `RpcError` when its call fails, `InvalidArgumentError` for arguments that
    cannot be sent, and `ClientStateError` after `close` or in a forked child. Every method takes a
    `timeout` for this call (infinity for none) and a `request_id` that the server's log will show.
    """

    def __init__(
        self,
        target: str,
        *,
        channels: int = 1,
        timeout: float = 2.0,
        idle_timeout: float = 60.0,
        retries: bool = True,
        credentials: grpc.ChannelCredentials | None = None,
        options: Sequence[ChannelOption] = (),
    ) -> None:
        self._target = target
        self._timeout = arguments.duration("timeout", timeout)
        self._idle_timeout = arguments.duration("idle_timeout", idle_timeout)
        self._pool = Pool(Settings(target, channels, retries, credentials, options), _connect)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; calls under way end as cancelled, later ones are refused."""
        for connection in self._pool.close():
            connection.channel.close()

    @spelled_out
    def build(
        self,
        name: str,
        vectors: VectorsLike,
        *,
        ids: npt.ArrayLike | None = None,
        categories: npt.ArrayLike | None = None,
        subtopics: npt.ArrayLike | None = None,
        labels: VectorsLike | None = None,
        label_model: ModelLike = None,
        label_names: Sequence[str] | None = None,
        hierarchy: npt.ArrayLike | None = None,
        roots: Sequence[int] | None = None,
        replace: bool = False,
        progress: Callable[[Progress], object] | None = None,
        timeout: float | None = None,
        request_id: str | None = None,
        **options: Unpack[BuildOptions],
    ) -> IndexInfo:
        """Build an index on the server and return what became of it; it serves from then on.

        `vectors` (rows, dims) may be any array, memory-mapped or not, or a sparse matrix of
        scipy's; rows travel in chunks as float32, or as float16 if they are. `ids` (rows,) are 0
        or above and unique, by default 0, 1, ...; `categories` and `subtopics` (rows,) are -1 for
        none. `labels` (rows, L): what is not 0 is a label of the row's; `label_model` is "leml", to
        train one, or a pair of label factors (L, r) and feature map (dims, r); `label_names` (L,);
        `hierarchy` (m, 2) are edges from parent to child, from the `roots` down, nodes below L
        being the labels. An index of that name is replaced only with `replace`. `progress` is
        called as the build goes on. If it raises, or the call is interrupted, the build is
        cancelled and nothing is left behind. There is no deadline, only the limit on standing
        still.
        """
        upload = uploads.upload(
            name,
            vectors,
            options,
            ids=ids,
            categories=categories,
            subtopics=subtopics,
            labels=labels,
            label_model=label_model,
            label_names=label_names,
            hierarchy=hierarchy,
            roots=roots,
            replace=replace,
        )
        call = Call("Build", self._target, timeout=timeout, request_id=request_id)
        stub = self._pool.take().stub
        return streams.build(stub, call, upload, progress, self._idle_timeout)

    @spelled_out
    def query(
        self,
        name: str,
        queries: VectorsLike,
        *,
        timeout: float | None = None,
        request_id: str | None = None,
        **options: Unpack[QueryOptions],
    ) -> QueryResult:
        """Return, for each row of `queries`, `k` results near it and different from one another.

        `queries` is (rows, dims), or (dims,) for one row, dense or sparse whatever the index is. A
        batch too large for one message travels in several and comes back as one result, of one
        generation.
        """
        call = self._call("Query", timeout, request_id)
        batch = QueryBatch(name, queries, options)
        return _ask_all(call, self._pool.take().stub.Query, batch)

    @spelled_out
    def predict_labels(
        self,
        name: str,
        documents: VectorsLike,
        *,
        timeout: float | None = None,
        request_id: str | None = None,
        **options: Unpack[PredictOptions],
    ) -> LabelResult:
        """Return, for each of `documents`, `top_k` labels that suit it and differ from one another.

        `documents` are what `query` takes as queries, and travel in the same way. The index must
        have been built with labels.
        """
        call = self._call("PredictLabels", timeout, request_id)
        batch = PredictBatch(name, documents, options)
        return _ask_all(call, self._pool.take().stub.PredictLabels, batch)

    @spelled_out
    def query_stream(
        self,
        name: str,
        queries: Iterable[VectorsLike],
        *,
        in_flight: int = 64,
        timeout: float | None = None,
        request_id: str | None = None,
        **options: Unpack[QueryOptions],
    ) -> Iterator[QueryResult]:
        """Return the result of each item of `queries`, in their order, over one stream.

        An item is what `query` takes, as much as fits one message. Items are drawn on another
        thread, and at most `in_flight` of them are on the way at a time. One that fails raises its
        error in its turn and ends the stream. There is no deadline, only the limit on standing
        still.
        """
        call = Call("QueryStream", self._target, timeout=timeout, request_id=request_id)
        pipeline = Pipeline(name, options, in_flight)
        stub = self._pool.take().stub
        return streams.query(stub, call, pipeline, queries, self._idle_timeout)

    @spelled_out
    def evaluate(
        self,
        name: str,
        queries: VectorsLike,
        categories: npt.ArrayLike | None = None,
        *,
        relevant: Sequence[npt.ArrayLike] | None = None,
        folds: int = FOLDS,
        set_default: bool = False,
        per_query: bool = False,
        progress: Callable[[Progress], object] | None = None,
        timeout: float | None = None,
        request_id: str | None = None,
        **options: Unpack[GridOptions],
    ) -> Iterator[EvaluateRow]:
        """Return what each setting of a grid reaches on `queries` (rows, dims), as rows of a table.

        Relevant are the points of a query's category, `categories` (rows,), or those whose ids
        `relevant` lists for it. Settings come in the grid's order, k first, then a row for each
        choice by `folds` among them, 0 for none: those have `by_fold`. With `set_default` the best
        choice becomes the index's default for Query. With `per_query` rows have the numbers of
        every query. `progress` is called as it goes on. Queries too large for one message travel in
        several, and cannot set a default. Whoever stops asking for rows ends the call. There is no
        deadline, only the limit on standing still.
        """
        rest = {"folds": folds, "set_default": set_default, "per_query": per_query}
        evaluation = Evaluation(
            name, queries, categories, options, rest, relevant=relevant, progress=progress
        )
        call = Call("Evaluate", self._target, timeout=timeout, request_id=request_id)
        method = self._pool.take().stub.Evaluate
        return streams.evaluate(method, call, evaluation, self._idle_timeout)

    @spelled_out
    def evaluate_labels(
        self,
        name: str,
        documents: VectorsLike,
        labels: VectorsLike,
        *,
        folds: int = FOLDS,
        set_default: bool = False,
        per_document: bool = False,
        progress: Callable[[Progress], object] | None = None,
        timeout: float | None = None,
        request_id: str | None = None,
        **options: Unpack[LabelGridOptions],
    ) -> Iterator[EvaluateLabelRow]:
        """Return what each setting of a prediction reaches on `documents` (rows, dims).

        What is not 0 in `labels` (rows, L) is a true label. All as in `evaluate`, but `set_default`
        keeps the threshold of the best choice of each mode, and with `per_document` rows have the
        numbers and the labels of every document.
        """
        rest = {"folds": folds, "set_default": set_default, "per_document": per_document}
        evaluation = LabelEvaluation(name, documents, labels, options, rest, progress=progress)
        call = Call("EvaluateLabels", self._target, timeout=timeout, request_id=request_id)
        method = self._pool.take().stub.EvaluateLabels
        return streams.evaluate(method, call, evaluation, self._idle_timeout)

    def get_index(
        self, name: str, *, timeout: float | None = None, request_id: str | None = None
    ) -> IndexInfo:
        """Return what an index is: its parameters, what Build chose and measured, its arrays."""
        call = self._call("GetIndex", timeout, request_id)
        request = build_message(index_pb2.GetIndexRequest, {"index": name})
        response = _ask(call, self._pool.take().stub.GetIndex, request)
        return responses.index_info(response.index)

    def list_indexes(
        self, *, timeout: float | None = None, request_id: str | None = None
    ) -> tuple[IndexInfo, ...]:
        """Return all indexes in the order of their names."""
        call = self._call("ListIndexes", timeout, request_id)
        method = self._pool.take().stub.ListIndexes
        found: list[IndexInfo] = []
        request: index_pb2.ListIndexesRequest | None = index_pb2.ListIndexesRequest()
        while request is not None:
            response = _ask(call, method, request)
            found.extend(map(responses.index_info, response.indexes))
            request = next_page(response)
        return tuple(found)

    def delete_index(
        self, name: str, *, timeout: float | None = None, request_id: str | None = None
    ) -> int:
        """Delete an index and return the generation that served last.

        Queries under way finish on it.
        """
        call = self._call("DeleteIndex", timeout, request_id)
        request = build_message(index_pb2.DeleteIndexRequest, {"index": name})
        return _ask(call, self._pool.take().stub.DeleteIndex, request).generation

    def server_info(
        self, *, timeout: float | None = None, request_id: str | None = None
    ) -> ServerInfo:
        """Return what the server says of itself: version, workers, limits."""
        call = self._call("GetServerInfo", timeout, request_id)
        request = index_pb2.GetServerInfoRequest()
        return responses.server_info(_ask(call, self._pool.take().stub.GetServerInfo, request))

    def wait_until_ready(
        self, *, timeout: float | None = 30.0, request_id: str | None = None
    ) -> None:
        """Wait until the server answers queries, whether or not it has been started yet.

        Raises `RpcError` with `DEADLINE_EXCEEDED` where that takes longer than `timeout`.
        """
        call = Call("Watch", self._target, timeout=timeout, request_id=request_id)
        while not self._serving(call):
            time.sleep(health.PAUSE_SECONDS)

    def _serving(self, call: Call) -> bool:
        # False: the server went away while it was watched, or before it was ready.
        watch = self._pool.take().watch(
            health.WATCH_REQUEST,
            timeout=call.seconds_left(),
            metadata=call.metadata,
            wait_for_ready=True,
        )
        try:
            return health.SERVING in watch
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return False
            raise call.failed(error) from error
        finally:
            watch.cancel()

    def _call(self, method: str, timeout: float | None, request_id: str | None) -> Call:
        seconds = self._timeout if timeout is None else timeout
        return Call(method, self._target, timeout=seconds, request_id=request_id)


def _ask(
    call: Call, method: "grpc.UnaryUnaryMultiCallable[RequestT, ResponseT]", request: RequestT
) -> ResponseT:
    try:
        return method(request, timeout=call.seconds_left(), metadata=call.metadata)
    except grpc.RpcError as error:
        raise call.failed(error) from error


def _ask_all(
    call: Call,
    method: "grpc.UnaryUnaryMultiCallable[RequestT, ResponseT]",
    batch: Batch[RequestT, ResponseT, ResultT],
) -> ResultT:
    """Ask the parts of a batch until one generation has answered them all."""
    while (request := batch.next_request()) is not None:
        batch.accept(_ask(call, method, request))
    result = batch.result()
    if result is None:
        raise call.unsettled()
    return result
