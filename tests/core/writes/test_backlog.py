"""Writes while a merge is held back: they wait or are refused, and the log stays short."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from divgrpc import Collection, Index
from divgrpc.errors import LimitExceededError, MergesBehindError
from divgrpc.parameters.limits import LIMITS
from divgrpc.storage.layouts import LayoutInfo
from divgrpc.types import Points, WriteResult
from divgrpc.writes import layout
from divgrpc.writes.committer import Committer
from divgrpc.writes.log import Log
from divgrpc.writes.requests import Delete, Upsert
from support.data.stamped_points import vectors_of
from support.data.written_points import (
    Model,
    Point,
    a_collection,
    check_points,
    drawn_points,
    upsert,
)
from support.processes.running_server import eventually

POINTS = drawn_points(120, 7)
OLD: Model = dict(enumerate(POINTS[:20]))
BYTES_MAX = 40_000
PAYLOAD_BYTES = 1_000


class Gate:
    """Holds merges back until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_reached, self.is_open = threading.Event(), threading.Event()
        write_layout = layout.WritesFolder.merge

        def merge(*arguments: Any) -> LayoutInfo:  # noqa: ANN401  # those of `merge`
            self.is_reached.set()
            assert self.is_open.wait(30)
            return write_layout(*arguments)

        monkeypatch.setattr(layout.WritesFolder, "merge", merge)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Build a collection and write to it once, because the first write makes a layout.

    The layout has room for fewer rows than a layout usually has.
    """
    monkeypatch.setattr(layout, "_LATER_ROWS_MAX", 60)
    with a_collection(tmp_path / "points", OLD) as collection:
        upsert(collection, {1: POINTS[50]})
        assert collection.compact()
    return tmp_path / "points"


@pytest.fixture
def gate(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:  # noqa: ARG001  # first
    """Lower the limit, and hold merges back."""
    monkeypatch.setitem(LIMITS, "unmerged_bytes_max", BYTES_MAX)
    gate = Gate(monkeypatch)
    yield gate
    gate.is_open.set()


def bytes_unmerged(path: Path) -> int:
    """Return the bytes of the records since the last merge."""
    folder = layout.WritesFolder(path / "1")
    info = folder.read_info()
    assert info is not None
    return sum(len(body) for _, body in Log(path / "1" / "writes" / "log").read(info.sequence))


def large_point(number: int) -> Point:
    return Point(POINTS[number % 100].vector, payload=b"%d" % number * PAYLOAD_BYTES)


def request(number: int, payload_bytes: int = PAYLOAD_BYTES) -> Upsert:
    vectors = [list(POINTS[number % 100].vector)]
    payloads = [b"x" * payload_bytes]
    return Upsert([1_000 + number], vectors, {}, payloads, write_id=f"write {number}")


def test_a_collection_waits_for_a_merge(path: Path, gate: Gate) -> None:
    """Queries go on meanwhile, and the write is made when the merge has ended."""
    model: Model = OLD | {1: POINTS[50]}
    with Collection.open(path) as collection, ThreadPoolExecutor(1) as threads:
        for number in range(100, 200):
            writing = threads.submit(upsert, collection, {number: large_point(number)})
            wait([writing], timeout=0.5)
            if not writing.done():
                break
            model[number] = large_point(number)
        assert not writing.done()
        assert gate.is_reached.is_set()
        assert BYTES_MAX - 4 * PAYLOAD_BYTES < bytes_unmerged(path) <= BYTES_MAX
        check_points(collection, model)
        check_points(Index.open(path), model)
        gate.is_open.set()
        assert writing.result() == collection.sequence
        model[number] = large_point(number)
        check_points(collection, model)
    with Collection.open(path) as again:
        check_points(again, model)


def open_committer(path: Path) -> Committer:
    """Open a collection as a server does."""
    engine = Index.open(path)._engine
    return Committer(engine, path, has_queries=False, waits_for_merges=False)


def fill(committer: Committer) -> int:
    """Write until a write is refused; return its number."""
    for number in range(1_000):
        try:
            assert committer.commit(request(number)).rows == 1
        except MergesBehindError:
            return number
    raise AssertionError("no write was refused")


def send_until_made(committer: Committer, upsert: Upsert) -> WriteResult:
    """Send a write again until it is not refused; return its result."""
    results: list[WriteResult] = []

    def is_made() -> bool:
        (outcome,) = committer.commit_all([upsert])
        assert isinstance(outcome, WriteResult | MergesBehindError)
        if isinstance(outcome, WriteResult):
            results.append(outcome)
        return bool(results)

    eventually(is_made)
    return results[0]


@pytest.fixture(params=["bytes", "rows"])
def committer(
    request: pytest.FixtureRequest, path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Committer]:
    """Open a collection as a server does, with room for few bytes or few rows."""
    if request.param == "rows":
        monkeypatch.setitem(LIMITS, "unmerged_bytes_max", 2**28)
    opened = open_committer(path)
    yield opened
    gate.is_open.set()
    opened.close()


def test_a_server_refuses_a_write_until_a_merge_ends(
    path: Path, gate: Gate, committer: Committer
) -> None:
    """A refused write leaves nothing behind, and is made once when it is sent again."""
    number = fill(committer)
    assert gate.is_reached.wait(30)
    sequence, unmerged = committer.sequence, bytes_unmerged(path)
    assert number > 5
    if LIMITS["unmerged_bytes_max"] == BYTES_MAX:
        assert BYTES_MAX - 2 * PAYLOAD_BYTES < unmerged <= BYTES_MAX

    # A write that was made is answered, and no write overtakes the one that is refused.
    first, large, small = committer.commit_all([request(0), request(number), Delete([1])])
    assert isinstance(first, WriteResult)
    assert isinstance(large, MergesBehindError)
    assert isinstance(small, MergesBehindError)
    assert (committer.sequence, bytes_unmerged(path)) == (sequence, unmerged)
    assert Index.open(path).count() == len(OLD) + number

    gate.is_open.set()
    result = send_until_made(committer, request(number))
    assert committer.commit(request(number)) == result
    assert result.sequence == committer.sequence == sequence + 1
    assert Index.open(path).count() == len(OLD) + number + 1


def test_deletions_are_limited_too(path: Path, gate: Gate) -> None:
    """Records without rows take memory while they are read, and time at each start."""
    committer = open_committer(path)
    deletions = [Delete([900], write_id=f"{number:0100}") for number in range(1_000)]
    outcomes = committer.commit_all(deletions)
    kinds = [type(outcome) for outcome in outcomes]
    count = kinds.count(WriteResult)
    assert count > 10
    assert kinds == [WriteResult] * count + [MergesBehindError] * (1_000 - count)
    assert "send the same write again shortly" in str(outcomes[-1])
    assert bytes_unmerged(path) <= BYTES_MAX
    gate.is_open.set()
    committer.close()


@pytest.mark.parametrize("waits", [False, True])
def test_a_write_above_the_limit_never_waits(path: Path, gate: Gate, *, waits: bool) -> None:
    """A merge would not make room for it."""
    gate.is_open.set()
    engine = Index.open(path)._engine
    committer = Committer(engine, path, waits_for_merges=waits)
    payloads = [b"x" * BYTES_MAX]
    with pytest.raises(LimitExceededError, match=f"may take at most {BYTES_MAX}$") as fault:
        committer.commit(Upsert([5], [[1.0] * 6], {}, payloads))
    assert not isinstance(fault.value, MergesBehindError)
    assert bytes_unmerged(path) == 0
    committer.close()


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_layout_has_room_for_all_rows_of_the_one_before(
    kind: Points, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another release may give a layout more room, and it fills up while the next is written."""
    path, ids = tmp_path / "points", list(range(20))
    monkeypatch.setattr(layout, "_later_values", lambda *_: 2_000)
    Collection.build(vectors_of(ids, 0, kind), ids=ids, path=path, metric="euclidean").close()
    with Collection.open(path) as collection:
        collection.upsert([3], vectors_of([3], 1, kind))
        monkeypatch.setattr(layout, "_LATER_ROWS_MAX", 10)
        monkeypatch.setattr(layout, "_later_values", lambda *_: 100)
        gate = Gate(monkeypatch)
        with ThreadPoolExecutor(1) as threads:
            merging = threads.submit(collection.compact)
            assert gate.is_reached.wait(30)
            for number in range(100, 300):
                collection.upsert([number], vectors_of([number], 2, kind))
            gate.is_open.set()
            assert merging.result()
        assert len(collection) == 220
        collection.upsert([4], vectors_of([4], 3, kind))
        assert len(collection) == 220
