"""How good answers were under load: some of them beside those of exact search, asked afterwards."""

import contextlib
import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import grpc
import numpy as np

from divgrpc import metrics
from divgrpc.errors import InvalidArgumentError
from divgrpc.types import IntArray
from divgrpc_client.load.points import Points
from divgrpc_client.load.sessions import Session, ask_raw
from divgrpc_client.load.traffic import Call
from divgrpc_client.messages.requests import enum_value
from divgrpc_client.messages.responses import label_result, query_result
from divgrpc_client.rpc.errors import RpcError
from divgrpc_protos.arrays import take
from divgrpc_protos.v1 import predict_pb2, query_pb2

Request: TypeAlias = query_pb2.QueryRequest | predict_pb2.PredictLabelsRequest
Response: TypeAlias = query_pb2.QueryResponse | predict_pb2.PredictLabelsResponse
RequestT = TypeVar("RequestT", bound=Request)

# The same query answered in four ways, as `gap_closed` has them.
LISTS: Final = ("found", "exact", "nearest", "exhaustive")
# A server that is slow to compare must not keep a run from its end; what is left is left out.
_SECONDS_MAX: Final = 60.0


@dataclass
class _Seen:
    """`objective` and `h` have a row of four, as `LISTS` has them, for every row of `call`."""

    call: Call
    points: Points
    objective: list[list[float]] = field(default_factory=list)
    h: list[list[float]] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return the means; None for what was not measured."""
        table = np.array(self.objective).reshape(-1, len(LISTS))
        found, _, nearest, exhaustive = table.T
        return {
            "call": self.call.name,
            "rows": len(table),
            "gap_closed": _known(metrics.gap_closed(found, nearest, exhaustive)),
            "objective": _means(self.objective),
            "h": _means(self.h),
        }


def compare_with_exact(
    session: Session, replies: Sequence[tuple[int, int, bytes]]
) -> dict[str, Any] | None:
    """Ask each query again with exact search, all else the same, and compare the results.

    `replies` are kind of call, message and reply. Returns `rows` compared, `same_ids`, the mean
    share of the exact results that were found too, `same_lists`, the share of rows that are equal
    in every place, and rows left out: `replaced`, because another generation answered them, and
    `unanswered`, with the first `refusal`. Where a call's points are known `measured` has J, the
    share of the gap closed (nearest neighbours and the exhaustive `marginal` greedy are asked for
    too) and h; `unmeasured` are rows for which one of those was not answered. None where there is
    nothing to compare.
    """
    comparison = _Comparison(session)
    end = time.monotonic() + _SECONDS_MAX
    with grpc.insecure_channel(session.target) as channel:
        for kind, message, reply in replies:
            if time.monotonic() > end or session.interrupted:
                break
            comparison.add(channel, kind, message, reply)
    return comparison.figures()


class _Comparison:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._shares: list[float] = []
        self._equal = self._replaced = self._unanswered = self._unmeasured = 0
        self._refusal = ""
        self._seen = {
            kind: _Seen(call, call.points)
            for kind, call in enumerate(session.calls)
            if call.points is not None
        }

    def add(self, channel: grpc.Channel, kind: int, message: int, reply: bytes) -> None:
        """Compare one reply."""
        session = self._session
        call = session.calls[kind]
        request, found = _read(call.method, session.messages[kind][message], reply)
        rows = len(found.offsets) - 1
        method = "PredictLabels" if call.method == "PredictLabels" else "Query"

        def ask(one: Request) -> Response:
            answer = ask_raw(channel, session.target, method, one.SerializeToString())
            return type(found).FromString(answer)

        try:
            answers = [found, ask(exact(request))]
        except RpcError as error:
            self._unanswered += rows
            self._refusal = self._refusal or str(error)
            return
        if isinstance(request, query_pb2.QueryRequest) and kind in self._seen:
            with contextlib.suppress(RpcError):
                answers += [ask(nearest(request)), ask(exhaustive(request))]
        if len({answer.generation for answer in answers}) > 1:
            self._replaced += rows
            return
        lists = [_lists(answer) for answer in answers]
        if kind in self._seen and len(lists) < len(LISTS):
            self._unmeasured += rows
        elif len(lists) == len(LISTS):
            try:
                self._measure(kind, message, found.parameters.diversity, lists)
            except InvalidArgumentError:  # ids that its points have not, so it is another index
                self._replaced += rows
                return
        for own, best in zip(*lists[:2], strict=True):
            self._equal += np.array_equal(own, best)
            held = best[best >= 0]
            self._shares.append(float(np.isin(held, own).mean()) if len(held) else 1.0)

    def _measure(
        self, kind: int, message: int, diversity: float, lists: list[list[IntArray]]
    ) -> None:
        """Measure the lists of every row of a message, in each of the four ways."""
        seen = self._seen[kind]
        call, points = seen.call, seen.points
        metric = self._session.metrics[call.index]
        rows = call.drawn(self._session.settings.seed)[message].tolist()
        objectives, hs = [], []
        for row, ways in zip(rows, zip(*lists, strict=True), strict=True):
            query = take(call.vectors, row, row + 1)
            objectives.append([points.objective(query, ids, diversity, metric) for ids in ways])
            if call.categories is not None:
                hs.append([points.h(ids, int(call.categories[row])) for ids in ways])
        seen.objective += objectives
        seen.h += hs

    def figures(self) -> dict[str, Any] | None:
        shares = self._shares
        if not shares and not self._replaced and not self._unanswered:
            return None
        return {
            "rows": len(shares),
            "same_ids": float(np.mean(shares)) if shares else None,
            "same_lists": self._equal / len(shares) if shares else None,
            "replaced": self._replaced,
            "unanswered": self._unanswered,
            "unmeasured": self._unmeasured,
            "refusal": self._refusal,
            "measured": [seen.figures() for seen in self._seen.values()],
        }


def exact(request: RequestT) -> RequestT:
    """Return a request with search exact and no limit of the hash stage."""
    made = copy.deepcopy(request)
    _set(made, search="exact")
    made.hash_limit = 0
    if isinstance(made, query_pb2.QueryRequest):
        made.ClearField("epsilon")
    return made


def nearest(request: query_pb2.QueryRequest) -> query_pb2.QueryRequest:
    """Return a request for the plain nearest neighbours."""
    made = exact(request)
    # These are of other selectors.
    made.ClearField("variant")
    made.ClearField("rounding")
    _set(made, selector="nearest")
    return made


def exhaustive(request: query_pb2.QueryRequest) -> query_pb2.QueryRequest:
    """Return a request for what the true greedy of J picks of all points."""
    made = nearest(request)
    _set(made, selector="greedy", variant="marginal")
    made.candidates_limit = 0
    return made


def _set(request: Request, **chosen: str) -> None:
    for name, word in chosen.items():
        setattr(request, name, enum_value(request.DESCRIPTOR.fields_by_name[name], word))


def _read(method: str, request: bytes, reply: bytes) -> tuple[Request, Response]:
    """Return what was asked and answered, whichever call it came by."""
    if method == "PredictLabels":
        return (
            predict_pb2.PredictLabelsRequest.FromString(request),
            predict_pb2.PredictLabelsResponse.FromString(reply),
        )
    if method == "QueryStream":
        return (
            query_pb2.QueryStreamRequest.FromString(request).query,
            query_pb2.QueryStreamResponse.FromString(reply).response,
        )
    return query_pb2.QueryRequest.FromString(request), query_pb2.QueryResponse.FromString(reply)


def _lists(answer: Response) -> list[IntArray]:
    """Return the results of each row, in order, -1 where there are fewer than were wanted."""
    if isinstance(answer, query_pb2.QueryResponse):
        return list(query_result(answer).ids)
    return list(label_result(answer).labels)


def _means(rows: Sequence[Sequence[float]]) -> dict[str, float | None] | None:
    """Return the mean of each way over the rows where it is known; None without rows."""
    if not rows:
        return None
    columns = zip(*rows, strict=True)
    return {way: _known(metrics.mean(column)) for way, column in zip(LISTS, columns, strict=True)}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
