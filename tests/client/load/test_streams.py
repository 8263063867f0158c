"""QueryStream under load: each query counts as a call, even if its stream breaks."""

import threading
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.load import Call, Settings, constant, run_load
from divgrpc_client.load.report import build_report
from divgrpc_client.load.session import Session
from divgrpc_protos.v1 import query_pb2
from support.processes.scripted_server import ScriptedIndex, serving

QUERIES = np.eye(6, dtype=np.float32)
QUICK = Settings(warm_up=0, channels=2, seed=1)
STREAMED = Call("images", QUERIES, {"k": 3}, method="QueryStream")


class Breaking(ScriptedIndex):
    """A server that ends each stream after `after` queries and never answers one query."""

    def __init__(self, after: int = 10**6, silent_at: int = -1) -> None:
        super().__init__()
        self.after, self.silent_at = after, silent_at
        self.over = threading.Event()

    def QueryStream(  # noqa: N802  # the contract's name
        self,
        request_iterator: Iterator[query_pb2.QueryStreamRequest],
        context: grpc.ServicerContext,
    ) -> Iterator[query_pb2.QueryStreamResponse]:
        """Answer queries in order until the stream is ended."""
        self._begin("QueryStream", context)
        for number, request in enumerate(request_iterator):
            self.queries.append(request.query)
            if number == self.after:
                context.abort(grpc.StatusCode.INTERNAL, "on command")
            if number != self.silent_at:
                yield self._outcome(request)


def test_queries_of_streams_are_calls(script: ScriptedIndex, target: str) -> None:
    script.turn_round = 2
    script.calls.clear()
    settings = Settings(warm_up=0, channels=1, seed=1, timeout=5)
    with Session(target, [STREAMED], settings) as session:
        report = build_report(session.run(constant(100, 1)))
    assert report["codes"] == {"OK": 100}
    assert script.calls["QueryStream"] == 2  # the first one checks the call
    assert "Query" not in script.calls
    assert {query.k for query in script.queries} == {3}
    assert {query.queries.dense.data for query in script.queries} == {r.tobytes() for r in QUERIES}


def test_a_refused_query_does_not_fail_its_stream(target: str) -> None:
    refused = QUERIES.copy()
    refused[0, 0] = -1
    calls = [STREAMED, Call("images", refused[:1], method="QueryStream")]
    with pytest.raises(InvalidArgumentError, match="refused"):
        run_load(target, calls, constant(100, 1), QUICK)
    both = Call("images", refused, method="QueryStream")
    first = both.messages(QUICK.seed)[0]
    assert first != Call("images", refused[:1], method="QueryStream").messages(QUICK.seed)[0]
    report = run_load(target, [both], constant(120, 1), QUICK)
    assert set(report["codes"]) == {"OK", "INVALID_ARGUMENT"}
    assert report["calls"] == 120


def test_a_broken_stream_is_replaced() -> None:
    """Calls that wait on the broken stream get its status, and later calls use a new stream."""
    script = Breaking(after=30)
    settings = Settings(warm_up=0, channels=1, seed=1)
    with serving(script) as target, Session(target, [STREAMED], settings) as session:
        report = build_report(session.run(constant(100, 1)))
    assert report["codes"]["INTERNAL"] >= 1
    assert report["codes"]["OK"] >= 80
    assert script.calls["QueryStream"] >= 4  # one checks the call, one follows each end


def test_a_query_that_is_not_answered_misses_its_deadline() -> None:
    script = Breaking(silent_at=20)
    # The timeout also limits how long a busy machine may take for the other answers.
    settings = Settings(warm_up=0, channels=1, seed=1, timeout=3)
    with serving(script) as target, Session(target, [STREAMED], settings) as session:
        report = build_report(session.run(constant(100, 1)))
    assert report["codes"] == {"OK": 99, "DEADLINE_EXCEEDED": 1}
    assert report["latency"]["max"] >= 3e6
