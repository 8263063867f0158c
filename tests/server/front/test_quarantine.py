"""How a quarantine identifies queries that ended two workers, and for how long it holds them."""

import pytest

from divgrpc_protos.v1 import predict_pb2, query_pb2
from divgrpc_server.front import quarantine
from divgrpc_server.front.quarantine import Quarantine, index_of
from divgrpc_server.ipc.packets import Op


def query(index: str = "index", k: int = 3) -> bytes:
    return query_pb2.QueryRequest(index=index, k=k).SerializeToString()


def stream_query(number: int, k: int = 3) -> bytes:
    """Return a QueryStream message with the same query as `query` returns."""
    inner = query_pb2.QueryRequest(index="index", k=k)
    return query_pb2.QueryStreamRequest(correlation_id=number, query=inner).SerializeToString()


def test_a_query_is_recognised() -> None:
    """A quarantine does not hold a query that differs from the added one, here in `k`."""
    held = Quarantine(lambda _: None)
    assert not held.holds(Op.QUERY, query())
    held.add(Op.QUERY, query())
    assert held.holds(Op.QUERY, query())
    assert not held.holds(Op.QUERY, query(k=4))


def test_a_query_is_recognised_under_another_correlation_id() -> None:
    held = Quarantine(lambda _: None)
    held.add(Op.STREAM, stream_query(1))
    assert held.holds(Op.STREAM, stream_query(2))
    assert held.holds(Op.QUERY, query())
    assert not held.holds(Op.STREAM, stream_query(1, k=4))


def test_a_prediction_is_recognised() -> None:
    held = Quarantine(lambda _: None)
    request = predict_pb2.PredictLabelsRequest(index="papers", top_k=3).SerializeToString()
    assert index_of(Op.PREDICT, request) == "papers"
    held.add(Op.PREDICT, request)
    assert held.holds(Op.PREDICT, request)


def test_malformed_messages_are_recognised() -> None:
    """Malformed bytes have a fingerprint too, and an empty index name."""
    held = Quarantine(lambda _: None)
    for op in (Op.QUERY, Op.STREAM, Op.PREDICT):
        assert index_of(op, b"\xff") == ""
        held.add(op, b"\xff")
        assert held.holds(op, b"\xff")


def test_a_query_is_held_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding the same query again restarts the minute."""
    now = 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    held = Quarantine(lambda _: None)
    held.add(Op.QUERY, query(k=1))
    held.add(Op.QUERY, query(k=2))
    now += 59.0
    held.add(Op.QUERY, query(k=1))
    assert held.holds(Op.QUERY, query(k=1))
    assert held.holds(Op.QUERY, query(k=2))
    now += 2.0
    assert held.holds(Op.QUERY, query(k=1))
    assert not held.holds(Op.QUERY, query(k=2))
    now += 60.0
    assert not held.holds(Op.QUERY, query(k=1))


def test_a_changed_index_frees_its_queries() -> None:
    stamps = {"index": 1, "other": 1}
    held = Quarantine(stamps.__getitem__)
    held.add(Op.QUERY, query())
    held.add(Op.QUERY, query("other"))
    stamps["index"] = 2
    assert not held.holds(Op.QUERY, query())
    assert held.holds(Op.QUERY, query("other"))
    stamps["index"] = 1
    assert not held.holds(Op.QUERY, query())


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "_ENTRIES_MAX", 3)
    held = Quarantine(lambda _: None)
    for k in range(1, 6):
        held.add(Op.QUERY, query(k=k))
    assert [k for k in range(1, 6) if held.holds(Op.QUERY, query(k=k))] == [3, 4, 5]
