"""A server survives malformed requests, which `support.requests.mutations` generates."""

import random

import pytest

from divgrpc_protos.v1 import query_pb2
from support.requests.mutations import FORBIDDEN, SHARES, Tally, report, run
from support.requests.mutators import mutated
from support.requests.named_requests import METHODS


def test_a_thousand_mutated_requests() -> None:
    """No call ends with a forbidden status, no process is replaced, and answers do not change."""
    tally = run(sum(SHARES.values()), seed=1)
    assert tally.wrong == []
    table = report(tally)
    assert all(f"| {method} |" in table for method in SHARES)
    assert set(SHARES) >= set(METHODS)


def test_requests_are_drawn_by_their_number() -> None:
    """The same seed and number give the same bytes, which usually differ from a valid request."""
    request = query_pb2.QueryRequest(index="dense", k=3)
    payload = request.SerializeToString()
    draws = [mutated(random.Random(f"0-{number}"), request) for number in range(200)]
    again = [mutated(random.Random(f"0-{number}"), request) for number in range(200)]
    assert draws == again
    assert sum(draw != payload for draw in draws) > 150
    assert request.SerializeToString() == payload


@pytest.mark.parametrize("status", sorted(FORBIDDEN))
def test_a_forbidden_status_is_reported(status: str) -> None:
    tally = Tally()
    tally.note(17, "Query", status, "why")
    tally.note(18, "Query", "OK")
    assert tally.wrong == [f"request 17, Query: {status} why"]
    assert "| Query" in report(tally)


def test_slow_calls_are_sent_again() -> None:
    tally = Tally()
    tally.time(1, "Query", 0.9)
    tally.time(2, "Query", 1.1)
    tally.time(3, "Build", 1.1)
    assert tally.slow == [2]
    assert tally.seconds == {"Query": 1.1, "Build": 1.1}
