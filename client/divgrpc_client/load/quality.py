"""Measures quality under load: compares some of the answers with those of exact search."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import grpc
import numpy as np

from divgrpc.types import IntArray
from divgrpc_client.rpc.call import RpcCall
from divgrpc_client.rpc.channels import SERVICE
from divgrpc_client.rpc.errors import RpcError
from divgrpc_protos.v1 import predict_pb2, query_pb2

Response: TypeAlias = query_pb2.QueryResponse | predict_pb2.PredictLabelsResponse

# The comparison stops after this time, so that a slow server does not delay the end of a run.
# Replies that are left are not compared.
_SECONDS_MAX: Final = 60.0
_CALL_SECONDS: Final = 60.0


def compare_with_exact(
    target: str, answers: Sequence[tuple[str, bytes, bytes]], is_stopped: Callable[[], bool]
) -> dict[str, Any] | None:
    """Repeat each request with exact search, all else the same, and compare the results.

    answers: triples of method, request and reply.

    Returns None if there is nothing to compare, else a dictionary with these entries:

    rows: number of rows compared.
    same_ids: mean share of the exact results that the reply has too.
    same_lists: share of rows with the same results in the same order.
    replaced: number of rows left out because another generation answered the repeated request.
    unanswered: number of rows left out because the repeated request failed.
    refusal: the first error of a repeated request.
    """
    shares: list[float] = []
    same_lists = 0
    skips = {"replaced": 0, "unanswered": 0}
    refusal = ""
    end = time.monotonic() + _SECONDS_MAX
    with grpc.insecure_channel(target) as channel:
        for method, message, reply in answers:
            if time.monotonic() > end or is_stopped():
                break
            answer = _answer(method, reply)
            rows = len(answer.offsets) - 1
            unary = "PredictLabels" if method == "PredictLabels" else "Query"
            try:
                again = send(channel, target, unary, _exact(method, message))
            except RpcError as error:
                skips["unanswered"] += rows
                refusal = refusal or str(error)
                continue
            best = type(answer).FromString(again)
            if best.generation != answer.generation:
                skips["replaced"] += rows
                continue
            for row, exact_row in zip(_lists(answer), _lists(best), strict=True):
                shares.append(float(np.isin(exact_row, row).mean()) if len(exact_row) else 1.0)
                same_lists += np.array_equal(row, exact_row)
    if not shares and not any(skips.values()):
        return None
    return {
        "rows": len(shares),
        "same_ids": float(np.mean(shares)) if shares else None,
        "same_lists": same_lists / len(shares) if shares else None,
        **skips,
        "refusal": refusal,
    }


def send(channel: grpc.Channel, target: str, method: str, request: bytes) -> bytes:
    """Send one serialised request and return the serialised reply; raises `RpcError`."""
    call = RpcCall(method, target, timeout=_CALL_SECONDS, request_id=None)
    path = f"/{SERVICE}/{method}"
    try:
        if method != "QueryStream":
            unary: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
            return unary(request, timeout=call.seconds_left())
        stream: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(path)
        (reply,) = stream(iter([request]), timeout=call.seconds_left())
    except grpc.RpcError as error:
        raise call.failed(error) from None
    response = query_pb2.QueryStreamResponse.FromString(reply)
    if response.HasField("error"):
        raise call.refused(response.error)
    return reply


def _exact(method: str, message: bytes) -> bytes:
    """Return a copy of a request of any method, with exact search and without a hash limit."""
    request: query_pb2.QueryRequest | predict_pb2.PredictLabelsRequest
    if method == "PredictLabels":
        request = predict_pb2.PredictLabelsRequest.FromString(message)
    else:
        if method == "QueryStream":
            request = query_pb2.QueryStreamRequest.FromString(message).query
        else:
            request = query_pb2.QueryRequest.FromString(message)
        request.ClearField("epsilon")
    request.search = query_pb2.SEARCH_EXACT
    request.hash_limit = 0
    return request.SerializeToString()


def _answer(method: str, reply: bytes) -> Response:
    if method == "PredictLabels":
        return predict_pb2.PredictLabelsResponse.FromString(reply)
    if method == "QueryStream":
        return query_pb2.QueryStreamResponse.FromString(reply).response
    return query_pb2.QueryResponse.FromString(reply)


def _lists(answer: Response) -> list[IntArray]:
    """Return the ids or labels of each row, in rank order."""
    ids = answer.ids if isinstance(answer, query_pb2.QueryResponse) else answer.labels
    return np.split(np.array(ids, np.int64), answer.offsets[1:-1])
