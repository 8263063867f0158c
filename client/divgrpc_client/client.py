"""The two clients, which have the same methods over gRPC's sync stack and over grpc.aio.

A method prepares its messages and passes them to a coroutine function in `calls`. `Client` runs the
coroutine to its end at once, because coroutines never suspend on the sync stack. In `AsyncClient`,
the methods that return one result are coroutine functions, so they do nothing until they are
awaited.
"""

from collections.abc import (
    Iterator,
    Sequence,
)
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

import grpc
import numpy.typing as npt

from divgrpc.evaluation import FOLDS
from divgrpc.types import (
    EvaluateLabelRow,
    EvaluateRow,
    IndexInfo,
)
from divgrpc.types.filters import FilterLike
from divgrpc.types.records import (
    AttributesLike,
    AttributeTypes,
    IdsLike,
    NumbersLike,
    PayloadsLike,
    Records,
)
from divgrpc_client import calls
from divgrpc_client.attribute_methods import AttributeMethods
from divgrpc_client.diagnosing import DiagnosisMethods
from divgrpc_client.diversify_methods import DiversifyMethods
from divgrpc_client.messages import arguments, batches, filters, requests, responses
from divgrpc_client.messages import upload as uploads
from divgrpc_client.messages.evaluate import LabelEvaluation, QueryEvaluation
from divgrpc_client.messages.labels import LabelsLike, ModelLike
from divgrpc_client.messages.options import (
    BuildOptions,
    GridOptions,
    LabelGridOptions,
    OnProgress,
    spelled_out,
)
from divgrpc_client.messages.requests import index_name
from divgrpc_client.messages.responses import ServerInfo
from divgrpc_client.messages.vectors import VectorsLike
from divgrpc_client.methods import (
    Awaited,
    Blocking,
    copy_methods,
    make_asynchronous,
    many_results,
    one_result,
)
from divgrpc_client.querying import QueryMethods
from divgrpc_client.rpc import async_stack, sync_stack
from divgrpc_client.rpc.call import RpcCall
from divgrpc_client.rpc.channels import ChannelOption, ChannelSettings, ConnectionPool
from divgrpc_client.rpc.security import TLS, PathLike, peer
from divgrpc_client.writing import WriteMethods
from divgrpc_protos.records import from_message
from divgrpc_protos.v1 import index_pb2, points_pb2

ResultT = TypeVar("ResultT")


class _Methods:
    """The constructor and the methods of both clients; a subclass sets the gRPC stack."""

    # `rpc.sync_stack` or `rpc.async_stack`, which define the same names.
    _stack = sync_stack

    def __init__(
        self,
        target: str,
        *,
        channels: int = 1,
        timeout: float = 2.0,
        idle_timeout: float = 60.0,
        retries: bool = True,
        tls: bool | PathLike | TLS | None = None,
        token: str | Path | None = None,
        insecure: bool = False,
        credentials: grpc.ChannelCredentials | None = None,
        options: Sequence[ChannelOption] = (),
    ) -> None:
        """Set the options of a client; it connects at its first call.

        target: the server's host:port, such as "localhost:50051". Several servers with the same
            indexes are called in turn: "dns:///replicas:50051" means all addresses of a name, and
            "ipv4:10.0.0.1:50051,10.0.0.2:50051" or "ipv6:[::1]:50051,..." means those given.
        channels: number of connections, used in turn. Each connection reaches one front process (a
            process of the server that accepts connections). So a server with several front
            processes needs several connections.
        timeout: seconds until a call fails with DEADLINE_EXCEEDED, retries included. Build,
            AddAttributes, Diagnose, streams and evaluations have no deadline by default.
            `wait_until_ready` has its own default.
        idle_timeout: Build, AddAttributes, Diagnose, streams and evaluations fail with
            DEADLINE_EXCEEDED if no message is sent or received for this many seconds while the
            client waits for the server.
        retries: whether calls that only read, and writes, are repeated if the server is
            unavailable. A call has at most three attempts. A write is also repeated until its
            deadline if the server has no room for it yet.
        tls: True for a server whose certificate is from an authority that gRPC knows, the file of
            another authority, or a `TLS` for more. False turns TLS off. Default: what the
            environment says (DIVGRPC_TLS, DIVGRPC_TLS_CA, DIVGRPC_TLS_CLIENT_CERT,
            DIVGRPC_TLS_CLIENT_KEY, DIVGRPC_TLS_SERVER_NAME), and no TLS if it says nothing.
        token: the token as a text, or the `pathlib.Path` of a file with it, which is read again
            when it changes. Default: what DIVGRPC_TOKEN_FILE or DIVGRPC_TOKEN says.
        insecure: whether to send a token without TLS to another machine.
        credentials: credentials of gRPC for other cases, such as a proxy; not together with `tls`.
        options: channel arguments of gRPC, as pairs of name and value. They override the arguments
            that the client sets.
        """
        has_credentials = credentials is not None
        self._peer = peer(target, tls, token, insecure=insecure, has_credentials=has_credentials)
        self._timeout = arguments.duration("timeout", timeout)
        self._idle_timeout = arguments.duration("idle_timeout", idle_timeout)
        self._retries = retries
        settings = ChannelSettings(self._peer, channels, retries, credentials, options)
        self._pool = ConnectionPool(settings, self._stack.connect)

    @one_result
    @spelled_out
    def build(
        self,
        name: str,
        vectors: VectorsLike,
        *,
        ids: IdsLike = None,
        attributes: AttributesLike = None,
        attribute_types: AttributeTypes = None,
        payloads: PayloadsLike = None,
        categories: NumbersLike = None,
        subtopics: NumbersLike = None,
        labels: LabelsLike | None = None,
        label_model: ModelLike = None,
        label_names: Sequence[str] | None = None,
        hierarchy: npt.ArrayLike | None = None,
        roots: Sequence[int] | None = None,
        replace: bool = False,
        progress: OnProgress = None,
        timeout: float | None = None,
        request_id: str | None = None,
        **options: Unpack[BuildOptions],
    ) -> IndexInfo:
        """Build an index that the server then serves, and return the description of the index.

        name: 1 to 63 characters from a-z, 0-9, _ and -. The first must be a letter or digit.
        vectors: (rows, dims) numbers: an array, memory-mapped or not, or a sparse matrix of scipy.
            Rows are sent in chunks. float16 is sent as float16, any other dtype as float32.
        ids: (rows,) unique whole numbers, 0 or greater, or unique texts of at most 256 bytes, which
            identify points in results. Default: 0 to rows-1.
        attributes: values of the points by the name of an attribute, such as {"brand": [...],
            "price": array}. Each has one value per row: a text, integer, float, bool or time. None
            is a missing value. A list gives a row several values.
        attribute_types: types of some attributes: "keyword", "integer", "float" or "bool". Other
            types are found from the values.
        payloads: (rows,) bytes or texts of at most 65,536 bytes, which `get` and queries return.
            None for a row without a payload.
        categories, subtopics: (rows,) whole numbers, -1 for none. Evaluate uses them to judge
            results.
        labels: (rows, L), dense or sparse. A nonzero number at (i, j) gives row i the label j. The
            `PointLabels` that `get` and `scroll` return are labels too.
        label_model: "leml" trains a model that predicts labels. A ready model is given as a pair of
            label factors (L, r) and feature map (dims, r), or as a `divgrpc.labels.LabelModel`.
            Default: no model; labels are then predicted by the votes of neighbours.
        label_names: (L,) texts of at most 1,024 bytes each.
        hierarchy: (m, 2) edges from parent to child. The nodes 0 to L-1 are the labels.
        roots: the root nodes of the hierarchy.
        replace: replace an existing index of this name. If False, an existing name raises
            `IndexExistsError`.
        progress: called with a `divgrpc.types.Progress` during the build. If it raises, the build
            is cancelled.

        A build that fails or is interrupted leaves nothing on the server. It may raise
        `IndexExistsError`, `BuildUnderWayError`, `StorageFullError` and `UnsupportedError`.
        """
        columns = (ids, attributes, attribute_types, payloads, categories, subtopics)
        upload = uploads.upload(
            name,
            vectors,
            options,
            uploads.RowData(*columns),
            labels=labels,
            label_model=label_model,
            label_names=label_names,
            hierarchy=hierarchy,
            roots=roots,
            replace=replace,
        )
        call = RpcCall("Build", self._peer, timeout=timeout, request_id=request_id)
        return self._stack.run(calls.build(self._link(), call, upload, progress))

    @many_results
    @spelled_out
    def evaluate(
        self,
        name: str,
        queries: VectorsLike,
        categories: npt.ArrayLike | None = None,
        *,
        relevant: Sequence[npt.ArrayLike] | None = None,
        groups: npt.ArrayLike | None = None,
        folds: int = FOLDS,
        set_default: bool = False,
        per_query: bool = False,
        filter: FilterLike = None,  # noqa: A002  # the word that users expect
        progress: OnProgress = None,
        timeout: float | None = None,
        request_id: str | None = None,
        **options: Unpack[GridOptions],
    ) -> Iterator[EvaluateRow]:
        """Measure every setting of a grid on `queries`, and yield a row of figures per setting.

        queries: (rows, dims), dense or sparse.
        categories: (rows,) whole numbers. The points of a query's category are relevant to the
            query.
        relevant: for each row, the ids of the points that are relevant to it. Set either
            `relevant` or `categories`.
        groups: (rows,) whole numbers, the group of each query. Intervals are over groups, and a
            group lies wholly in one fold. Default: the categories if given, else each query alone.
        folds: number of folds for choosing the best setting of each method and search at each k. At
            most one fold per group is used; 0 makes no choice.
        set_default: store the best choice as the index's default for Query, and yield a row for
            this choice with figures of nested folds. The queries must fit one message.
        per_query: whether the rows also have the figures of every single query.
        filter: conditions that all results must pass, as in `query`. Points that do not pass are
            not relevant. Not with `set_default`.
        progress: called with a `divgrpc.types.Progress` during the evaluation.

        Rows come in the order of the grid, in which k varies slowest. Rows for the choices follow,
        with `by_fold` set. The evaluation is cancelled if the caller stops iterating.
        Raises `IndexNotFoundError`, and `UnfitIndexError` if categories are given and the index has
        none.
        """
        flags = {"folds": folds, "set_default": set_default, "per_query": per_query}
        evaluation = QueryEvaluation(
            name,
            queries,
            categories,
            options,
            flags,
            relevant=relevant,
            groups=groups,
            restriction=filters.filter_fields(filter),
            progress=progress,
        )
        call = RpcCall("Evaluate", self._peer, timeout=timeout, request_id=request_id)
        return self._stack.run_iterator(calls.evaluate(self._link(), call, evaluation))

    @many_results
    @spelled_out
    def evaluate_labels(
        self,
        name: str,
        documents: VectorsLike,
        labels: VectorsLike,
        *,
        groups: npt.ArrayLike | None = None,
        folds: int = FOLDS,
        set_default: bool = False,
        per_document: bool = False,
        progress: OnProgress = None,
        timeout: float | None = None,
        request_id: str | None = None,
        **options: Unpack[LabelGridOptions],
    ) -> Iterator[EvaluateLabelRow]:
        """Measure every setting of a grid on labelled `documents`, and yield a row per setting.

        name: the index, which must have been built with labels.
        documents: (rows, dims), dense or sparse.
        labels: (rows, L), dense or sparse. A nonzero number at (i, j) makes j a true label of row
            i.
        groups: (rows,) whole numbers, the group of each document, as in `evaluate`. Default: each
            document alone.
        folds: number of folds for choosing the best setting of each mode, selector and search at
            each top_k; 0 makes no choice.
        set_default: for each mode, store the threshold of the best choice in the index, and yield a
            row for this choice.
        per_document: whether the rows also have the figures and the predicted labels of every
            document.
        progress: called with a `divgrpc.types.Progress` during the evaluation.

        Rows come in the order of the grid. Rows for the choices follow, with `by_fold` set.
        Raises `IndexNotFoundError` and `UnfitIndexError`.
        """
        flags = {"folds": folds, "set_default": set_default, "per_document": per_document}
        data = (name, documents, labels)
        evaluation = LabelEvaluation(*data, options, flags, groups=groups, progress=progress)
        call = RpcCall("EvaluateLabels", self._peer, timeout=timeout, request_id=request_id)
        return self._stack.run_iterator(calls.evaluate(self._link(), call, evaluation))

    @one_result
    @spelled_out
    def get(
        self,
        name: str,
        ids: int | str | Sequence[int] | Sequence[str] | npt.NDArray[Any],
        *,
        with_vectors: bool = False,
        with_attributes: bool = True,
        with_payload: bool = True,
        with_labels: bool = False,
        timeout: float | None = None,
        request_id: str | None = None,
    ) -> Records:
        """Return stored points in the order of `ids`; ids that no point has are left out.

        ids: one id, or at most 10,000, of the kind that the index has.
        with_vectors, with_attributes, with_payload: what to return. Under cosine, vectors have unit
            length.
        with_labels: return labels, categories and sub-topics, if the points of the index have some.

        Raises `IndexNotFoundError`.
        """
        parts = requests.parts(
            vectors=with_vectors,
            attributes=with_attributes,
            payload=with_payload,
            labels=with_labels,
        )
        exchange = batches.single(requests.get(name, ids, parts), responses.point_records)
        return self._ask("Get", exchange, timeout, request_id)

    @one_result
    @spelled_out
    def count(
        self,
        name: str,
        filter: FilterLike = None,  # noqa: A002  # the word that users expect
        *,
        timeout: float | None = None,
        request_id: str | None = None,
    ) -> int:
        """Return the number of points of an index, or the number of points that pass a filter.

        filter: conditions as in `query`.

        Raises `IndexNotFoundError`.
        """
        fields = filters.filter_fields(filter)
        request = points_pb2.CountRequest(index=index_name(name), **fields)
        exchange = batches.single(request, lambda answer: int(answer.count))
        return self._ask("Count", exchange, timeout, request_id)

    @many_results
    @spelled_out
    def scroll(
        self,
        name: str,
        filter: FilterLike = None,  # noqa: A002  # the word that users expect
        *,
        with_vectors: bool = False,
        with_attributes: bool = True,
        with_payload: bool = True,
        with_labels: bool = False,
        page_size: int = 1_000,
        timeout: float | None = None,
        request_id: str | None = None,
    ) -> Iterator[Records]:
        """Yield all points of an index that pass a filter, in pages.

        filter: conditions as in `query`. Default: all points.
        with_vectors, with_attributes, with_payload, with_labels: what to return, as in `get`.
        page_size: maximum number of points on a page, at most 10,000. Pages of large points are
            shorter, because a page fits in one message.
        timeout: seconds for one page. Default: the client's timeout.

        Integer ids ascend. The order of text ids is fixed, but not alphabetical. If the index is
        replaced meanwhile, the pages that follow have points of the new generation. Raises
        `IndexNotFoundError`.
        """
        request = points_pb2.ScrollRequest(
            index=index_name(name),
            page_size=arguments.count("page_size", page_size),
            parts=requests.parts(
                vectors=with_vectors,
                attributes=with_attributes,
                payload=with_payload,
                labels=with_labels,
            ),
            **filters.filter_fields(filter),
        )
        seconds = self._timeout if timeout is None else timeout
        new_call = partial(RpcCall, "Scroll", self._peer, timeout=seconds, request_id=request_id)
        return self._stack.run_iterator(calls.scroll(self._link(), new_call, request))

    @one_result
    @spelled_out
    def get_index(
        self, name: str, *, timeout: float | None = None, request_id: str | None = None
    ) -> IndexInfo:
        """Return the parameters and arrays of an index, and what its build chose and measured.

        Raises `IndexNotFoundError`.
        """
        request = index_pb2.GetIndexRequest(index=index_name(name))
        exchange = batches.single(request, lambda answer: from_message(answer.index, IndexInfo))
        return self._ask("GetIndex", exchange, timeout, request_id)

    @one_result
    @spelled_out
    def list_indexes(
        self, *, timeout: float | None = None, request_id: str | None = None
    ) -> tuple[IndexInfo, ...]:
        """Return the descriptions of all indexes, in the order of their names."""
        return self._ask("ListIndexes", batches.pages(), timeout, request_id)

    @one_result
    @spelled_out
    def delete_index(
        self, name: str, *, timeout: float | None = None, request_id: str | None = None
    ) -> int:
        """Delete an index and return the number of its last generation.

        Queries in progress still finish on that generation. Raises `IndexNotFoundError` and
        `BuildUnderWayError`.
        """
        request = index_pb2.DeleteIndexRequest(index=index_name(name))
        exchange = batches.single(request, lambda answer: int(answer.generation))
        return self._ask("DeleteIndex", exchange, timeout, request_id)

    @one_result
    @spelled_out
    def server_info(
        self, *, timeout: float | None = None, request_id: str | None = None
    ) -> ServerInfo:
        """Return the server's version, workers and limits, and whether its kernels are compiled."""
        request = index_pb2.GetServerInfoRequest()
        exchange = batches.single(request, lambda answer: from_message(answer, ServerInfo))
        return self._ask("GetServerInfo", exchange, timeout, request_id)

    @one_result
    @spelled_out
    def wait_until_ready(
        self, *, timeout: float | None = 30.0, request_id: str | None = None
    ) -> None:
        """Wait until the server is ready for queries; it need not be running yet.

        timeout: seconds to wait. None waits without limit.

        Raises `UnavailableError` after `timeout` seconds. Its `__cause__` is the last obstacle:
        the connection was refused, for example, or the server still compiles its kernels.
        """
        call = RpcCall("Watch", self._peer, timeout=timeout, request_id=request_id)
        return self._stack.run(calls.wait_until_ready(self._link, call))

    @one_result
    def close(self) -> None:
        """Close the connections. Calls in progress are cancelled, and later calls are refused."""
        return self._stack.run(calls.close(self._pool))

    def _ask(
        self,
        method: str,
        exchange: batches.Exchange[Any, Any, ResultT],
        timeout: float | None,
        request_id: str | None,
    ) -> ResultT:
        seconds = self._timeout if timeout is None else timeout
        call = RpcCall(method, self._peer, timeout=seconds, request_id=request_id)
        return self._stack.run(calls.ask_all(self._link(), call, exchange))

    def _link(self) -> calls.Link:
        """Return a `Link` over the next connection."""
        connection = self._pool.take()
        connection.check_owner()
        return calls.Link(self._stack, connection, self._idle_timeout, self._retries)


class Client(
    _Methods,
    QueryMethods,
    WriteMethods,
    AttributeMethods,
    DiagnosisMethods,
    DiversifyMethods,
    Blocking,
):
    """Client of a divgrpc server; its methods may be called from any thread.

    Methods share three arguments. `name` is the name of an index. `timeout` is the maximum duration
    of the whole call in seconds. Its default is the client's `timeout`, except that Build,
    AddAttributes, Diagnose, streams and evaluations have no deadline and `wait_until_ready` has
    30 s.
    `request_id` is printable ASCII text that identifies the call in the server's log.

    Every method raises `RpcError` if its call fails, and `ClientStateError` after `close` or in a
    forked child. If an argument cannot be sent, it raises `InvalidArgumentError` with the code and
    the field that the server's error would have. If the core has a class for an error of the
    server, the `RpcError` is an instance of that class too. So `except IndexNotFoundError` works
    here as it does with an index in the same process.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(
    _Methods,
    QueryMethods,
    WriteMethods,
    AttributeMethods,
    DiagnosisMethods,
    DiversifyMethods,
    Awaited,
):
    """Client of a divgrpc server for asyncio; it belongs to the event loop of its first call.

    It has the options and methods of `Client` and raises the same errors. Await results, and
    iterate `pages`, `query_stream`, `write_stream`, `diversify_stream`, `evaluate` and
    `evaluate_labels` with `async for`.
    """

    _stack = async_stack

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


for _methods in (
    *(_Methods, QueryMethods, WriteMethods, AttributeMethods, DiagnosisMethods, DiversifyMethods),
):
    copy_methods(Client, _methods)
    copy_methods(AsyncClient, _methods)
make_asynchronous(AsyncClient)
