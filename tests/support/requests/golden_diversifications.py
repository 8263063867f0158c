"""Requests of Diversify and DiversifyStream for `server/test_golden_wire.py`."""

from typing import Any

from google.protobuf.message import Message

from divgrpc_protos.v1 import diversify_pb2, index_pb2, points_pb2, query_pb2, quotas_pb2
from support.requests.golden_requests import Calls, dense


def calls() -> Calls:
    """Return the recorded calls, by name."""
    request = diversify_pb2.DiversifyRequest
    scores = [0.5, 0.1, 0.9, 0.4, 0.3, 0.8]
    candidates: dict[str, Any] = {"vectors": dense(6), "scores": scores}
    every_parameter = request(
        **candidates,
        k=3,
        diversity=0.4,
        selector=query_pb2.SELECTOR_QP_RELAX,
        variant=query_pb2.VARIANT_CORRECTED,
        rounding=query_pb2.ROUNDING_TOP_K,
        metric=index_pb2.METRIC_EUCLIDEAN,
        duplicate_threshold=0.5,
    )
    requests: dict[str, Message] = {
        "diversify": request(**candidates),
        "diversify with parameters": every_parameter,
        "diversify a query": request(vectors=dense(6), query=dense(1), diversity_auto=True, k=2),
        "diversify near-copies": request(**candidates, duplicate_threshold=-1.0, k=3),
        "diversify within a loss": request(**candidates, lose_at_most=0.2, k=4),
        "diversify stored points": request(
            index="named", string_ids=["n1", "n2", "n3"], scores=[1, 2, 3], k=2
        ),
        "diversify numbered points": request(index="sparse", ids=[553, 532, 546], k=2),
    }
    requests |= _within_quotas(candidates)
    calls: Calls = {name: ("Diversify", [message]) for name, message in requests.items()}
    # How many picks share a message depends on time, so there is one.
    first = diversify_pb2.DiversifyStreamRequest(request=request(**candidates, k=1))
    return {**calls, "stream picks": ("DiversifyStream", [first])}


def _within_quotas(candidates: dict[str, Any]) -> dict[str, Message]:
    """Return requests within quotas that the candidates miss, and in groups."""
    request = diversify_pb2.DiversifyRequest
    brands = points_pb2.AttributeColumn(
        name="brand", keywords=[0, 1, -1, 0, 1, 0], words=["a", "b"]
    )
    return {
        "diversify within quotas": request(
            **candidates,
            k=4,
            attributes=[brands],
            quotas=[quotas_pb2.Quota(attribute="brand", max_each=1)],
            on_infeasible=quotas_pb2.ON_INFEASIBLE_RELAX,
        ),
        "diversify in groups": request(
            **candidates,
            attributes=[brands],
            group_by=quotas_pb2.GroupBy(attribute="brand", groups=2, per_group=2),
        ),
    }
