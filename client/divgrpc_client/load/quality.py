"""How good answers were under load: some of them beside those of exact search, asked afterwards."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import grpc
import numpy as np

from divgrpc_client.load.sessions import Session, ask_raw
from divgrpc_client.requests import enum_value
from divgrpc_protos.v1 import predict_pb2, query_pb2

Request: TypeAlias = query_pb2.QueryRequest | predict_pb2.PredictLabelsRequest
Response: TypeAlias = query_pb2.QueryResponse | predict_pb2.PredictLabelsResponse

_MESSAGES: Final[dict[str, tuple[type[Request], type[Response], str]]] = {
    "Query": (query_pb2.QueryRequest, query_pb2.QueryResponse, "ids"),
    "PredictLabels": (
        predict_pb2.PredictLabelsRequest,
        predict_pb2.PredictLabelsResponse,
        "labels",
    ),
}


def compare_with_exact(
    session: Session, replies: Sequence[tuple[int, int, bytes]]
) -> dict[str, Any] | None:
    """Ask each query again with exact search, all else the same, and compare the results.

    `replies` are kind of call, message and reply. Returns `rows` compared, `same_ids`, the mean
    share of the exact results that were found too, `same_lists`, the share of rows that are equal
    in every place, and `replaced`: rows left out because another generation answered them. None
    where there is nothing to compare.
    """
    shares: list[float] = []
    equal = replaced = 0
    with grpc.insecure_channel(session.target) as channel:
        for kind, message, reply in replies:
            method = session.calls[kind].method
            request_type, response_type, column = _MESSAGES[method]
            request = exact(request_type.FromString(session.messages[kind][message]))
            answer = ask_raw(channel, session.target, method, request.SerializeToString())
            found, wanted = (response_type.FromString(each) for each in (reply, answer))
            if found.generation != wanted.generation:
                replaced += len(found.offsets) - 1
                continue
            for own, best in zip(_rows(found, column), _rows(wanted, column), strict=True):
                equal += own == best
                shares.append(len(set(own) & set(best)) / len(best) if best else 1.0)
    if not shares and not replaced:
        return None
    return {
        "rows": len(shares),
        "same_ids": float(np.mean(shares)) if shares else None,
        "same_lists": equal / len(shares) if shares else None,
        "replaced": replaced,
    }


def exact(request: Request) -> Request:
    """Return a request with search exact and no limit of the hash stage."""
    field = request.DESCRIPTOR.fields_by_name["search"]
    request.search = enum_value(field, "exact")  # type: ignore[assignment]  # a number is an enum's value
    request.hash_limit = 0
    if isinstance(request, query_pb2.QueryRequest):
        request.ClearField("epsilon")
    return request


def _rows(response: Response, column: str) -> list[list[int]]:
    values, offsets = list(getattr(response, column)), list(response.offsets)
    return [values[a:b] for a, b in pairwise(offsets)]
