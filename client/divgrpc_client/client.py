"""The two clients: the same methods over gRPC's sync stack and over grpc.aio.

A method prepares its messages and hands them to a coroutine function in `calls`. `Client` runs the
coroutine at once, since on the sync stack it never suspends. The methods of `AsyncClient` that give
one result are coroutine functions, so nothing of them runs before it is awaited.
"""

from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from functools import wraps
from types import TracebackType
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

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
from divgrpc_client.messages import arguments
from divgrpc_client.messages import upload as uploads
from divgrpc_client.messages.batches import (
    Exchange,
    Pipeline,
    pages,
    predict_batch,
    query_batch,
    single,
)
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
from divgrpc_client.messages.requests import index_name
from divgrpc_client.messages.responses import ServerInfo
from divgrpc_client.messages.vectors import VectorsLike
from divgrpc_client.rpc import async_stack, sync_stack
from divgrpc_client.rpc.call import RpcCall
from divgrpc_client.rpc.channels import ChannelOption, ChannelSettings, ConnectionPool
from divgrpc_protos.records import from_message
from divgrpc_protos.v1 import index_pb2

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


class OneResult(Generic[P, ResultT]):
    """What type checkers see of a method that gives one result."""

    @overload
    def __get__(self, client: "Client", owner: type) -> Callable[P, ResultT]: ...
    @overload
    def __get__(
        self, client: "AsyncClient", owner: type
    ) -> Callable[P, Coroutine[Any, Any, ResultT]]: ...
    def __get__(self, client: object, owner: type) -> object:
        """Only type checkers read this: the methods are plain functions."""


class ManyResults(Generic[P, ResultT]):
    """What type checkers see of a method that yields results."""

    @overload
    def __get__(self, client: "Client", owner: type) -> Callable[P, Iterator[ResultT]]: ...
    @overload
    def __get__(
        self, client: "AsyncClient", owner: type
    ) -> Callable[P, AsyncIterator[ResultT]]: ...
    def __get__(self, client: object, owner: type) -> object:
        """Only type checkers read this: the methods are plain functions."""


_COROUTINE_NAMES: list[str] = []


def one_result(method: Callable[Concatenate[Any, P], ResultT]) -> OneResult[P, ResultT]:
    """Declare a method that `AsyncClient` has as a coroutine function."""
    _COROUTINE_NAMES.append(method.__name__)
    return cast("OneResult[P, ResultT]", method)


def many_results(
    method: Callable[Concatenate[Any, P], Iterator[ResultT]],
) -> ManyResults[P, ResultT]:
    """Declare a method that returns an asynchronous iterator in `AsyncClient`."""
    return cast("ManyResults[P, ResultT]", method)


def _make_coroutines(client: type) -> None:
    """Make coroutine functions of the methods of a client that give one result."""
    for name in _COROUTINE_NAMES:
        setattr(client, name, _awaiting(getattr(client, name)))


def _awaiting(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def awaiting(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401  # any method's
        return await method(*arguments, **options)

    return awaiting


class _Methods:
    """The constructor and the methods; a subclass says over which stack they call."""

    # Either module of `rpc`; the two have the same names.
    _stack = sync_stack

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
        self._pool = ConnectionPool(settings, self._stack.connect)

    @one_result
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
        method = self._connection().stub.Build
        return self._stack.run(
            calls.build(
                self._stack, method, call, upload, progress, idle_timeout=self._idle_timeout
            )
        )

    @one_result
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
        return self._ask("Query", query_batch(name, queries, options), timeout, request_id)

    @one_result
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
        batch = predict_batch(name, documents, options)
        return self._ask("PredictLabels", batch, timeout, request_id)

    @many_results
    @spelled_out
    def query_stream(
        self,
        name: str,
        queries: Iterable[VectorsLike] | AsyncIterable[VectorsLike],
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
        method = self._connection().stub.QueryStream
        results = calls.query(
            self._stack, method, call, pipeline, queries, idle_timeout=self._idle_timeout
        )
        return self._stack.run_iterator(results)

    @many_results
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
        flags = {"folds": folds, "set_default": set_default, "per_query": per_query}
        data = (name, queries, categories)
        evaluation = QueryEvaluation(*data, options, flags, relevant=relevant, progress=progress)
        call = RpcCall("Evaluate", self._target, timeout=timeout, request_id=request_id)
        method = self._connection().stub.Evaluate
        rows = calls.evaluate(
            self._stack, method, call, evaluation, idle_timeout=self._idle_timeout
        )
        return self._stack.run_iterator(rows)

    @many_results
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
        flags = {"folds": folds, "set_default": set_default, "per_document": per_document}
        evaluation = LabelEvaluation(name, documents, labels, options, flags, progress=progress)
        call = RpcCall("EvaluateLabels", self._target, timeout=timeout, request_id=request_id)
        method = self._connection().stub.EvaluateLabels
        rows = calls.evaluate(
            self._stack, method, call, evaluation, idle_timeout=self._idle_timeout
        )
        return self._stack.run_iterator(rows)

    @one_result
    def get_index(
        self, name: str, *, timeout: float | None = None, request_id: str | None = None
    ) -> IndexInfo:
        """Return an index's parameters, what Build chose and measured, and its arrays.

        Raises `IndexNotFoundError`.
        """
        request = index_pb2.GetIndexRequest(index=index_name(name))
        return self._ask("GetIndex", single(request, _index_of), timeout, request_id)

    @one_result
    def list_indexes(
        self, *, timeout: float | None = None, request_id: str | None = None
    ) -> tuple[IndexInfo, ...]:
        """Return the descriptions of all indexes, in the order of their names."""
        return self._ask("ListIndexes", pages(), timeout, request_id)

    @one_result
    def delete_index(
        self, name: str, *, timeout: float | None = None, request_id: str | None = None
    ) -> int:
        """Delete an index and return the number of its last generation.

        Queries that run finish on that generation. Raises `IndexNotFoundError` and
        `BuildUnderWayError`.
        """
        request = index_pb2.DeleteIndexRequest(index=index_name(name))
        return self._ask("DeleteIndex", single(request, _generation_of), timeout, request_id)

    @one_result
    def server_info(
        self, *, timeout: float | None = None, request_id: str | None = None
    ) -> ServerInfo:
        """Return the server's version, workers, limits and the state of its kernels."""
        exchange = single(index_pb2.GetServerInfoRequest(), _server_info_of)
        return self._ask("GetServerInfo", exchange, timeout, request_id)

    @one_result
    def wait_until_ready(
        self, *, timeout: float | None = 30.0, request_id: str | None = None
    ) -> None:
        """Wait until the server answers queries; it need not be started yet.

        Raises `RpcError` with DEADLINE_EXCEEDED after `timeout`; None waits for ever.
        """
        call = RpcCall("Watch", self._target, timeout=timeout, request_id=request_id)
        return self._stack.run(calls.wait_until_ready(self._stack, call, self._connection))

    def _ask(
        self,
        method: str,
        exchange: Exchange[Any, Any, ResultT],
        timeout: float | None,
        request_id: str | None,
    ) -> ResultT:
        seconds = self._timeout if timeout is None else timeout
        call = RpcCall(method, self._target, timeout=seconds, request_id=request_id)
        rpc = getattr(self._connection().stub, method)
        return self._stack.run(calls.ask_all(self._stack, call, rpc, exchange))

    def _connection(self) -> sync_stack.Connection:
        connection = self._pool.take()
        connection.check_owner()
        return connection


class Client(_Methods):
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


class AsyncClient(_Methods):
    """Calls a divgrpc server, on asyncio: it belongs to the event loop of its first call.

    Arguments, methods and errors are those of `Client`. Await the results; iterate `query_stream`,
    `evaluate` and `evaluate_labels` with `async for`.
    """

    _stack = async_stack

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Calls that run end as cancelled; later ones are refused."""
        for connection in self._pool.close():
            await cast(Any, connection.channel).close()


_make_coroutines(AsyncClient)


def _index_of(response: index_pb2.GetIndexResponse) -> IndexInfo:
    return from_message(response.index, IndexInfo)


def _server_info_of(response: index_pb2.GetServerInfoResponse) -> ServerInfo:
    return from_message(response, ServerInfo)


def _generation_of(response: index_pb2.DeleteIndexResponse) -> int:
    return response.generation
