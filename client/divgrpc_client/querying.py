"""The methods of both clients that query an index."""

from collections.abc import AsyncIterable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from divgrpc.columns.quotas import as_quotas
from divgrpc.types import LabelResult, OnInfeasible, QueryResult
from divgrpc.types.filters import FilterLike
from divgrpc.types.quotas import Groups, QuotasLike
from divgrpc.types.records import IdsOf, ShownLike
from divgrpc_client import calls
from divgrpc_client.messages import arguments, batches, filters
from divgrpc_client.messages.options import PredictOptions, QueryOptions, spelled_out
from divgrpc_client.messages.quotas import quota_fields
from divgrpc_client.messages.stream_items import OnError, StreamItem
from divgrpc_client.messages.vectors import QueryLike, VectorsLike
from divgrpc_client.methods import many_results, one_result
from divgrpc_client.rpc import sync_stack
from divgrpc_client.rpc.call import RpcCall
from divgrpc_client.rpc.security import Peer

ResultT = TypeVar("ResultT")


class QueryMethods:
    """Methods that a client inherits."""

    if TYPE_CHECKING:
        _stack = sync_stack
        _peer: Peer
        _timeout: float

        def _ask(
            self,
            method: str,
            exchange: batches.Exchange[Any, Any, ResultT],
            timeout: float | None,
            request_id: str | None,
        ) -> ResultT: ...

        def _link(self) -> calls.Link: ...

    @one_result
    @spelled_out
    def query(
        self,
        name: str,
        queries: QueryLike = None,
        *,
        like: IdsOf = None,
        filter: FilterLike = None,  # noqa: A002  # the word that users expect
        exclude_ids: IdsOf = None,
        quotas: QuotasLike = None,
        group_by: Groups = None,
        on_infeasible: OnInfeasible = "fail",
        already_shown: ShownLike = None,
        paged: bool = False,
        page_token: str | None = None,
        min_sequence: int = 0,
        allow_partial: bool = False,
        timeout: float | None = None,
        request_id: str | None = None,
        **options: Unpack[QueryOptions],
    ) -> QueryResult:
        """Return up to `k` results per row of `queries`, near the row and unlike one another.

        queries: (rows, dims), or (dims,) for one row. Dense and sparse queries are accepted by
            dense and sparse indexes alike.
        like: ids of stored points, instead of `queries`. Each row of the result has points that are
            like one of these points, without the point itself.
        filter: conditions such as `Field("price") < 20`, which all results must pass, or a
            dictionary in the form of Qdrant's filters.
        exclude_ids: ids of points that are not returned, at most 100,000.
        quotas: bounds on the number of results that have each value of an attribute, such as
            `[Quota("brand", max_each=2)]`. Not with the selector `qp_relax`.
        group_by: results in groups with the same value of an attribute, such as
            `GroupBy("brand", groups=5, per_group=2)`. `k` is then groups times per_group. Not with
            `quotas`.
        on_infeasible: what to do if no `k` results meet the quotas. "fail" raises an error. "relax"
            returns results that miss them by as little as possible, with `quota_shortfalls`; no
            value has more results than its quota allows.
        already_shown: ids, or vectors (m, d), of at most 1,000 points that the user has seen.
            Results are neither these points nor their near-copies, and are picked to differ from
            them.
        paged: whether the result is page 1 of several. Its `next_page_token` is then the
            `page_token` of page 2. The query must have one row.
        page_token: the `next_page_token` of the page before, to get the next page of the same
            request. No point is on two pages, even if points are written between them.
        min_sequence: the result must show at least the write of this number.
        allow_partial: whether to answer without the points of shards whose servers are silent. The
            `coverage` of the result is then below 1, and it names the `missing_shards`. No effect
            on queries that need stored points (`like`, `page_token`, ids in `already_shown`).

        Rows that do not fit one message are sent in several. All rows of the result come from one
        generation (one build) of the index; rows of different messages may show different writes.
        Raises `IndexNotFoundError`, `ConditionFailedError` if the index has no write of the number
        `min_sequence` or if no results meet the quotas, and `RpcError` with ABORTED if the index is
        replaced repeatedly during the call.
        """
        restriction = filters.query_filter_fields(filter, exclude_ids)
        fields, options = quota_fields(as_quotas(quotas, group_by, on_infeasible), options)
        restriction |= fields
        restriction["min_sequence"] = arguments.not_negative("min_sequence", min_sequence)
        restriction |= filters.partial_fields(allow_partial)
        restriction |= filters.continuation_fields(
            already_shown, paged=paged, page_token=page_token
        )
        batch = batches.query_batch(name, queries, options, restriction, like)
        return self._ask("Query", batch, timeout, request_id)

    @many_results
    @spelled_out
    def pages(
        self,
        name: str,
        queries: QueryLike = None,
        *,
        like: IdsOf = None,
        filter: FilterLike = None,  # noqa: A002  # the word that users expect
        exclude_ids: IdsOf = None,
        already_shown: ShownLike = None,
        page_token: str | None = None,
        min_sequence: int = 0,
        allow_partial: bool = False,
        timeout: float | None = None,
        request_id: str | None = None,
        **options: Unpack[QueryOptions],
    ) -> Iterator[QueryResult]:
        """Yield one page of `k` results after the other, until the last.

        queries, like: one query row, or one id of a stored point.
        page_token: the `next_page_token` of a page, to begin with the page after it.
        filter, exclude_ids, already_shown, min_sequence, allow_partial: as in `query`.
        timeout: seconds for one page. Default: the client's timeout.

        No point is on two pages, even if points are written meanwhile. Raises the
        errors of `query`.
        """
        restriction = filters.query_filter_fields(filter, exclude_ids)
        restriction["min_sequence"] = arguments.not_negative("min_sequence", min_sequence)
        restriction |= filters.partial_fields(allow_partial)

        def exchange(token: str | None) -> batches.Exchange[Any, Any, QueryResult]:
            fields = filters.continuation_fields(already_shown, paged=True, page_token=token)
            return batches.query_batch(name, queries, options, restriction | fields, like)

        # Errors of arguments are raised by this call, and not when the first page is due.
        first = exchange(page_token)
        seconds = self._timeout if timeout is None else timeout
        new_call = partial(RpcCall, "Query", self._peer, timeout=seconds, request_id=request_id)
        return self._stack.run_iterator(calls.pages(self._link(), new_call, first, exchange))

    @one_result
    @spelled_out
    def predict_labels(
        self,
        name: str,
        documents: VectorsLike,
        *,
        filter: FilterLike = None,  # noqa: A002  # the word that users expect
        allow_partial: bool = False,
        timeout: float | None = None,
        request_id: str | None = None,
        **options: Unpack[PredictOptions],
    ) -> LabelResult:
        """Return up to `top_k` labels per document, relevant to it and unlike one another.

        name: the index, which must have been built with labels.
        documents: (rows, dims), or (dims,) for one document, dense or sparse.
        filter: conditions that points must pass to vote, as in `query`. Only in the mode
            `neighbour_vote`.
        allow_partial: as in `query`, for the points that vote.

        Documents are sent in several messages if necessary, as in `query`. Raises
        `IndexNotFoundError`, and `UnfitIndexError` if the index lacks the labels, model or
        hierarchy that the options need.
        """
        restriction = filters.filter_fields(filter) | filters.partial_fields(allow_partial)
        batch = batches.predict_batch(name, documents, options, restriction)
        return self._ask("PredictLabels", batch, timeout, request_id)

    @many_results
    @spelled_out
    def query_stream(
        self,
        name: str,
        queries: Iterable[StreamItem] | AsyncIterable[StreamItem],
        *,
        filter: FilterLike = None,  # noqa: A002  # the word that users expect
        exclude_ids: IdsOf = None,
        quotas: QuotasLike = None,
        group_by: Groups = None,
        on_infeasible: OnInfeasible = "fail",
        allow_partial: bool = False,
        in_flight: int = 64,
        time_limit: float | None = None,
        on_error: OnError = None,
        timeout: float | None = None,
        request_id: str | None = None,
        **options: Unpack[QueryOptions],
    ) -> Iterator[QueryResult]:
        """Yield the result of each item of `queries`, in the order of the items, over one stream.

        queries: iterable of items that `query` accepts, each small enough for one message (4 MiB).
            A `Withdrawal` withdraws an earlier item, and has no result.
        filter, exclude_ids, quotas, group_by, on_infeasible, allow_partial: as in `query`, for all
            items.
        in_flight: maximum number of items that await results at the same time, at least 1.
        time_limit: seconds after which an item fails with DEADLINE_EXCEEDED, from the moment at
            which the server reads it. Default: the items have no limit of their own.
        on_error: called with the number, from 0, and the `RpcError` of an item that fails and so
            has no result; the stream goes on. Without it, the error is raised, and the stream ends.

        gRPC iterates over `queries` in another thread or, in `AsyncClient`, in another task.
        """
        call = RpcCall("QueryStream", self._peer, timeout=timeout, request_id=request_id)
        restriction = filters.query_filter_fields(filter, exclude_ids)
        fields, options = quota_fields(as_quotas(quotas, group_by, on_infeasible), options)
        fields |= restriction | filters.partial_fields(allow_partial)
        pipeline = batches.QueryPipeline(name, options, fields, in_flight, time_limit)
        results = calls.pipe(self._link(), call, pipeline, queries, on_error=on_error)
        return self._stack.run_iterator(results)
