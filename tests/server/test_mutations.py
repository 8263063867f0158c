"""A server stands what nobody should send; `support.mutations` sends a hundred thousand."""

import random

import pytest

from divgrpc_protos.v1 import query_pb2
from support.mutations import FORBIDDEN, SHARES, Tally, report, run
from support.mutators import change_bytes, mutated


def test_a_thousand_mutated_requests() -> None:
    """No status that speaks of a fault, no process replaced, and the same answers after."""
    tally = run(1_000, seed=1)
    assert tally.wrong == []
    table = report(tally)
    assert all(method in table for method in SHARES)


def test_requests_are_drawn_by_their_number() -> None:
    """The same draw gives the same bytes, and nearly always others than it was given."""
    request = query_pb2.QueryRequest(index="dense", k=3)
    payload = request.SerializeToString()
    draws = [mutated(random.Random(f"0-{number}"), request) for number in range(200)]
    again = [mutated(random.Random(f"0-{number}"), request) for number in range(200)]
    assert draws == again
    assert sum(draw != payload for draw in draws) > 150
    assert request.SerializeToString() == payload


def test_no_bytes_at_all_can_be_changed() -> None:
    """Every way to change bytes takes an empty message too."""
    draw = random.Random(0)
    assert all(isinstance(change_bytes(draw, b""), bytes) for _ in range(200))


@pytest.mark.parametrize("status", sorted(FORBIDDEN))
def test_what_must_not_be_is_told(status: str) -> None:
    """Each status that speaks of a fault is a violation, with the number of its request."""
    tally = Tally()
    tally.note(17, "Query", status, "why")
    tally.note(18, "Query", "OK")
    assert tally.wrong == [f"request 17, Query: {status} why"]
    assert "| Query" in report(tally)
