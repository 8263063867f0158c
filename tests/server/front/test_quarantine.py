"""How long a quarantine holds queries that ended two workers."""

import pytest

from divgrpc_server.front import quarantine
from divgrpc_server.front.quarantine import Quarantine


def test_a_query_is_held_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding the same query again restarts the minute."""
    now = 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    suspects = Quarantine(lambda _: None)
    assert suspects.is_empty
    suspects.add(b"1", "index")
    suspects.add(b"2", "index")
    now += 59.0
    suspects.add(b"1", "index")
    assert not suspects.is_empty
    assert suspects.holds(b"1")
    assert suspects.holds(b"2")
    assert not suspects.holds(b"3")
    now += 2.0
    assert not suspects.is_empty
    assert suspects.holds(b"1")
    assert not suspects.holds(b"2")
    now += 60.0
    assert suspects.is_empty


def test_a_changed_index_frees_its_queries() -> None:
    stamps = {"index": 1, "other": 1}
    suspects = Quarantine(stamps.__getitem__)
    suspects.add(b"1", "index")
    suspects.add(b"2", "other")
    stamps["index"] = 2
    assert not suspects.holds(b"1")
    assert suspects.holds(b"2")
    stamps["index"] = 1
    assert not suspects.holds(b"1")


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "_ENTRIES_MAX", 3)
    suspects = Quarantine(lambda _: None)
    for number in range(5):
        suspects.add(b"%d" % number, "index")
    assert [number for number in range(5) if suspects.holds(b"%d" % number)] == [2, 3, 4]
