"""The methods of both clients that pick from candidates of the caller."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import numpy.typing as npt

from divgrpc.types import Diversification, OnInfeasible, Pick
from divgrpc.types.quotas import GroupBy, QuotasLike
from divgrpc.types.records import AttributesLike, IdsOf
from divgrpc_client import calls
from divgrpc_client.messages import batches
from divgrpc_client.messages.diversify import (
    QuotaArguments,
    diversification,
    diversify_request,
    picks,
)
from divgrpc_client.messages.options import DiversifyOptions, spelled_out
from divgrpc_client.messages.vectors import VectorsLike
from divgrpc_client.methods import many_results, one_result
from divgrpc_client.rpc import sync_stack
from divgrpc_client.rpc.call import RpcCall
from divgrpc_client.rpc.security import Peer
from divgrpc_protos.v1 import diversify_pb2

ResultT = TypeVar("ResultT")


class DiversifyMethods:
    """Methods that a client inherits."""

    if TYPE_CHECKING:
        _stack = sync_stack
        _peer: Peer
        _timeout: float

        def _link(self) -> calls.Link: ...

        def _ask(
            self,
            method: str,
            exchange: batches.Exchange[Any, Any, ResultT],
            timeout: float | None,
            request_id: str | None,
        ) -> ResultT: ...

    @one_result
    @spelled_out
    def diversify(
        self,
        vectors: VectorsLike | None = None,
        scores: npt.ArrayLike | None = None,
        *,
        query: VectorsLike | None = None,
        name: str | None = None,
        ids: IdsOf = None,
        attributes: AttributesLike = None,
        quotas: QuotasLike = None,
        group_by: GroupBy | None = None,
        on_infeasible: OnInfeasible = "fail",
        timeout: float | None = None,
        request_id: str | None = None,
        **options: Unpack[DiversifyOptions],
    ) -> Diversification:
        """Pick candidates that are relevant and differ from one another; no index is needed.

        vectors: (n, dims) numbers, the vectors of the candidates, dense or sparse. They must fit
            one message of 4 MiB. float16 is sent as float16, any other dtype as float32.
        scores: (n,) numbers, higher for more relevant candidates, on any scale, such as those of a
            reranker. Default: all candidates are equally relevant.
        query: (dims,) numbers, from which relevance is computed as an index does. Instead of
            `scores`, and only with `vectors`.
        name: an index that has the candidates, instead of `vectors`. Its metric applies.
        ids: the ids of the candidates in this index, at most 10,000.
        attributes: one value per candidate, by name, for quotas and groups. Only with `vectors`;
            the points of an index have their attributes.
        quotas: bounds on the number of picks that have each value of an attribute, as in `query`.
        group_by: picks in groups with the same value of an attribute, as in `query`.
        on_infeasible: "fail" raises an error if no `k` picks meet the quotas. "relax" returns picks
            that miss them by as little as possible, with `quota_shortfalls`.

        The result is the same as from `divgrpc.diversify`, which explains the scale of scores.
        Places in the result count the rows of `vectors`, or `ids`. Raises `IndexNotFoundError`, and
        `ConditionFailedError` if no picks meet the quotas.
        """
        limits = QuotaArguments(attributes, quotas, group_by, on_infeasible)
        request = diversify_request(
            options, vectors=vectors, scores=scores, name=name, ids=ids, query=query, limits=limits
        )
        exchange = batches.single(request, diversification)
        return self._ask("Diversify", exchange, timeout, request_id)

    @many_results
    @spelled_out
    def diversify_stream(
        self,
        vectors: VectorsLike | None = None,
        scores: npt.ArrayLike | None = None,
        *,
        query: VectorsLike | None = None,
        name: str | None = None,
        ids: IdsOf = None,
        timeout: float | None = None,
        request_id: str | None = None,
        **options: Unpack[DiversifyOptions],
    ) -> Iterator[Pick]:
        """Yield each pick of `diversify` as soon as it is made, as a `divgrpc.types.Pick`.

        vectors, scores, query, name, ids: as in `diversify`.
        timeout: seconds for the whole call. Default: the client's timeout.

        Shortly before the deadline, the iterator ends with the picks so far. Without quotas and
        groups, and not with the selector `qp_relax` and `lose_at_most`: all these decide by all
        picks together. The call is cancelled if
        the caller stops iterating.
        """
        inner = diversify_request(
            options, vectors=vectors, scores=scores, name=name, ids=ids, query=query
        )
        request = diversify_pb2.DiversifyStreamRequest(request=inner)
        seconds = self._timeout if timeout is None else timeout
        call = RpcCall("DiversifyStream", self._peer, timeout=seconds, request_id=request_id)
        return self._stack.run_iterator(calls.receive(self._link(), call, request, picks))
