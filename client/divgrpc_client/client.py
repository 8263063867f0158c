"""The client on grpc.

Made by `make sync-client`; do not edit.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Final, Self, Unpack

import grpc
import numpy.typing as npt

from divgrpc.evaluation import FOLDS
from divgrpc.types import (
    EvaluateLabelRow,
    EvaluateRow,
    IndexInfo,
    LabelResult,
    Progress,
    QueryResult,
)
from divgrpc_client import calls
from divgrpc_client.messages import arguments, responses
from divgrpc_client.messages import upload as uploads
from divgrpc_client.messages.batches import Pipeline, PredictBatch, QueryBatch
from divgrpc_client.messages.evaluate import LabelEvaluation, QueryEvaluation
from divgrpc_client.messages.labels import ModelLike
from divgrpc_client.messages.options import (
    BuildOptions,
    GridOptions,
    LabelGridOptions,
    PredictOptions,
    QueryOptions,
    spelled_out,
)
from divgrpc_client.messages.requests import index_name, next_page
from divgrpc_client.messages.responses import ServerInfo
from divgrpc_client.messages.vectors import VectorsLike
from divgrpc_client.rpc.call import RpcCall
from divgrpc_client.rpc.channels import ChannelOption, ChannelSettings, ConnectionPool
from divgrpc_client.rpc.sync_stack import Connection, connect
from divgrpc_protos.v1 import index_pb2

# Between two attempts to reach a server that is not up: it may refuse at once.
_READY_PAUSE_SECONDS: Final = 0.1


class Client:
    """Calls a divgrpc server, from any thread.

    target: the server's host:port, such as "localhost:50051".
    channels: number of connections, used in turn. One connection reaches one front process of the
        server, so several are needed to reach several.
    timeout: seconds until a call fails with DEADLINE_EXCEEDED, retries included. Build, QueryStream
        and evaluations have no deadline.
    idle_timeout: seconds without a message until Build, QueryStream or an evaluation fails with
        DEADLINE_EXCEEDED.
    retries: repeat calls that only read if the server is unavailable, up to three attempts.
    credentials: `grpc.ssl_channel_credentials(...)`, for a proxy that speaks TLS. Default: no TLS.
    options: channel arguments of gRPC, as pairs of name and value; they override ours.

    Methods take the `name` of an index; `timeout`, the seconds for the whole call, by default those
    of the client or no deadline; and `request_id`, printable ASCII that the server's log shows.

    It connects at the first call. Every method raises `RpcError` if its call fails,
    `InvalidArgumentError` with the field named if an argument cannot be sent, and
    `ClientStateError` after `close` or in a forked child. Server errors that the core knows are
    also that class: `except IndexNotFoundError` works here as it does in process.
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
        settings = ChannelSettings(target, channels, retries, credentials, options)
        self._pool = ConnectionPool(settings, connect)

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
        """Close the connections. Calls that run end as cancelled; later ones are refused."""
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
        """Build an index on the server, which serves it from then on, and return its description.

        name: 1 to 63 of a-z, 0-9, _ and -; begins with a letter or digit.
        vectors: (rows, dims) numbers: an array, memory-mapped or not, or a sparse matrix of scipy.
            Rows travel in chunks, as float16 if they are float16, otherwise as float32.
        ids: (rows,) unique whole numbers from 0; results name points by them. Default: 0 to rows-1.
        categories, subtopics: (rows,) whole numbers, -1 for none, by which Evaluate judges results.
        labels: (rows, L), dense or sparse: a number other than 0 gives the row that label.
        label_model: "leml" trains a model that predicts labels; or a pair of label factors (L, r)
            and feature map (dims, r); or a `divgrpc.labels.LabelModel`. Default: none, and
            neighbours vote.
        label_names: (L,) texts of at most 1,024 bytes.
        hierarchy: (m, 2) edges from parent to child. Nodes below L are the labels.
        roots: the nodes where the hierarchy begins.
        replace: replace an index of this name. Otherwise its name raises `IndexExistsError`.
        progress: called with `divgrpc.types.Progress` as the build goes on. If it raises, the build
            is cancelled.

        A build that fails, or is interrupted, leaves nothing behind. It may raise
        `IndexExistsError`, `BuildUnderWayError`, `StorageFullError` and `UnsupportedError`.
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
        call = RpcCall("Build", self._target, timeout=timeout, request_id=request_id)
        stub = self._connection().stub
        return calls.build(stub, call, upload, progress, self._idle_timeout)

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
        """Return `k` results for each row of `queries`, near it and different from one another.

        queries: (rows, dims), or (dims,) for one row, dense or sparse, whatever the index holds.

        Rows that do not fit one message travel in several. The result is one result, of one
        generation. Raises `IndexNotFoundError`, and `RpcError` with ABORTED if the index is
        replaced again and again meanwhile.
        """
        call = self._call("Query", timeout, request_id)
        batch = QueryBatch(name, queries, options)
        return calls.ask_all(call, self._connection().stub.Query, batch)

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
        """Return `top_k` labels for each of `documents`, fitting and different from one another.

        name: the index, which must have been built with labels.
        documents: (rows, dims), or (dims,) for one document, dense or sparse.

        Documents travel as the rows of `query` do. Raises `IndexNotFoundError`, and
        `UnfitIndexError` if the index lacks the labels, model or hierarchy that the options need.
        """
        call = self._call("PredictLabels", timeout, request_id)
        batch = PredictBatch(name, documents, options)
        return calls.ask_all(call, self._connection().stub.PredictLabels, batch)

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
        """Yield the result of each item of `queries`, in their order, over one stream.

        queries: items that `query` takes, each small enough for one message (4 MiB).
        in_flight: number of items, 1 or more, that may wait for their results at a time.

        gRPC takes items from `queries` elsewhere than in the caller's own code. An item that fails
        raises its error in its turn, and ends the stream.
        """
        call = RpcCall("QueryStream", self._target, timeout=timeout, request_id=request_id)
        pipeline = Pipeline(name, options, in_flight)
        stub = self._connection().stub
        return calls.query(stub, call, pipeline, queries, self._idle_timeout)

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
        """Yield what each setting of a grid reaches on `queries`, as rows of a table.

        queries: (rows, dims), dense or sparse.
        categories: (rows,) whole numbers; points of a query's category are relevant to it.
        relevant: for each row, the ids of the points that are relevant; instead of categories.
        folds: number of folds by which the best setting of each k is chosen; 0 chooses none.
        set_default: make the best choice the index's default for Query. Not for queries that do not
            fit one message.
        per_query: add the numbers of every query to the rows.
        progress: called with `divgrpc.types.Progress` as the evaluation goes on.

        Rows come in the grid's order, k first, then a row for each choice, which has `by_fold`. The
        evaluation ends when the caller stops to iterate. Raises `IndexNotFoundError`, and
        `UnfitIndexError` if categories are given and the index has none.
        """
        rest = {"folds": folds, "set_default": set_default, "per_query": per_query}
        data = (name, queries, categories)
        evaluation = QueryEvaluation(*data, options, rest, relevant=relevant, progress=progress)
        call = RpcCall("Evaluate", self._target, timeout=timeout, request_id=request_id)
        method = self._connection().stub.Evaluate
        return calls.evaluate(method, call, evaluation, self._idle_timeout)

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
        """Yield what each setting of a grid of predictions reaches on `documents`, as rows.

        name: the index, which must have been built with labels.
        documents: (rows, dims), dense or sparse.
        labels: (rows, L), dense or sparse: a number other than 0 is a true label of the row.
        folds: number of folds by which the best setting is chosen; 0 chooses none.
        set_default: store the threshold of the best choice of each mode in the index.
        per_document: add the numbers and the labels of every document to the rows.
        progress: called with `divgrpc.types.Progress` as the evaluation goes on.

        Rows come in the grid's order, then a row for each choice, which has `by_fold`. Raises
        `IndexNotFoundError` and `UnfitIndexError`.
        """
        rest = {"folds": folds, "set_default": set_default, "per_document": per_document}
        evaluation = LabelEvaluation(name, documents, labels, options, rest, progress=progress)
        call = RpcCall("EvaluateLabels", self._target, timeout=timeout, request_id=request_id)
        method = self._connection().stub.EvaluateLabels
        return calls.evaluate(method, call, evaluation, self._idle_timeout)

    def get_index(
        self, name: str, *, timeout: float | None = None, request_id: str | None = None
    ) -> IndexInfo:
        """Return an index's parameters, what Build chose and measured, and its arrays.

        Raises `IndexNotFoundError`.
        """
        call = self._call("GetIndex", timeout, request_id)
        request = index_pb2.GetIndexRequest(index=index_name(name))
        response = calls.ask(call, self._connection().stub.GetIndex, request)
        return responses.index_info(response.index)

    def list_indexes(
        self, *, timeout: float | None = None, request_id: str | None = None
    ) -> tuple[IndexInfo, ...]:
        """Return the descriptions of all indexes, in the order of their names."""
        call = self._call("ListIndexes", timeout, request_id)
        method = self._connection().stub.ListIndexes
        indexes: list[IndexInfo] = []
        request: index_pb2.ListIndexesRequest | None = index_pb2.ListIndexesRequest()
        while request is not None:
            response = calls.ask(call, method, request)
            indexes.extend(map(responses.index_info, response.indexes))
            request = next_page(response)
        return tuple(indexes)

    def delete_index(
        self, name: str, *, timeout: float | None = None, request_id: str | None = None
    ) -> int:
        """Delete an index and return the number of its last generation.

        Queries that run finish on that generation. Raises `IndexNotFoundError` and
        `BuildUnderWayError`.
        """
        call = self._call("DeleteIndex", timeout, request_id)
        request = index_pb2.DeleteIndexRequest(index=index_name(name))
        response = calls.ask(call, self._connection().stub.DeleteIndex, request)
        return response.generation

    def server_info(
        self, *, timeout: float | None = None, request_id: str | None = None
    ) -> ServerInfo:
        """Return the server's version, workers, limits and the state of its kernels."""
        call = self._call("GetServerInfo", timeout, request_id)
        method, request = self._connection().stub.GetServerInfo, index_pb2.GetServerInfoRequest()
        return responses.server_info(calls.ask(call, method, request))

    def wait_until_ready(
        self, *, timeout: float | None = 30.0, request_id: str | None = None
    ) -> None:
        """Wait until the server answers queries; it need not be started yet.

        Raises `RpcError` with DEADLINE_EXCEEDED after `timeout`; None waits for ever.
        """
        call = RpcCall("Watch", self._target, timeout=timeout, request_id=request_id)
        while not calls.becomes_ready(call, self._connection().watch):
            time.sleep(_READY_PAUSE_SECONDS)

    def _connection(self) -> Connection:
        connection = self._pool.take()
        connection.check_owner()
        return connection

    def _call(self, method: str, timeout: float | None, request_id: str | None) -> RpcCall:
        seconds = self._timeout if timeout is None else timeout
        return RpcCall(method, self._target, timeout=seconds, request_id=request_id)
