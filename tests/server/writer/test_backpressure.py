"""The writer process while merges cannot keep up: it refuses writes, and nothing else waits."""

import math
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import grpc
import pytest
from google.rpc import status_pb2

from divgrpc import Index
from divgrpc.parameters.limits import LIMITS
from divgrpc.storage.layouts import LayoutInfo
from divgrpc.writes import layout
from divgrpc.writes.log import Log, LogWriter
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import writes_pb2
from divgrpc_server.config import Config
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request
from divgrpc_server.ipc.write_batches import Kind, WriteOutcome, pack_messages, unpack_outcomes
from divgrpc_server.logging import logs
from divgrpc_server.writer.collections import Collections
from divgrpc_server.writer.meter import WriteMeter
from support.checks.status_details import details_of_status
from support.data.served_index import random_points
from support.processes.running_server import eventually

ROWS, DIMS = 60, 8
POINTS = random_points(ROWS, dims=DIMS, seed=1)
BYTES_MAX = 50_000


@pytest.fixture
def collections(tmp_path: Path) -> Iterator[Collections]:
    """Return the collections of two indexes, `slow` and `other`, which are written to."""
    opened = Collections(
        tmp_path, "sync", WriteMeter(None), logs.configure(Config(log_level="error"), "writer")
    )
    for name in ("slow", "other"):
        Index.build(POINTS, path=tmp_path / name)
        assert write(opened, upsert(name, "first", 1)).outcome == Outcome.ANSWER
    yield opened
    opened.close()


def upsert(index: str, write_id: str, number: int) -> writes_pb2.UpsertRequest:
    vector = encode_dense(POINTS[number % ROWS][None])
    return writes_pb2.UpsertRequest(
        index=index, ids=[number], vectors=vector, payloads=[b"x" * 2_000], write_id=write_id
    )


def write(collections: Collections, message: writes_pb2.UpsertRequest) -> Reply:
    request = Request(1, math.inf, Op.UPSERT, "tag", message.SerializeToString())
    (reply,) = collections.answer([request])
    return reply


def bytes_unmerged(folder: Path) -> int:
    info = layout.WritesFolder(folder / "1").read_info()
    assert info is not None
    return sum(len(body) for _, body in Log(folder / "1" / "writes" / "log").read(info.sequence))


@pytest.fixture
def may_merge(collections: Collections, monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Lower the limit, and hold merges back until the event is set."""
    assert collections
    monkeypatch.setitem(LIMITS, "unmerged_bytes_max", BYTES_MAX)
    may_merge = Event()
    write_layout = layout.WritesFolder.merge

    def merge(folder: layout.WritesFolder, *arguments: object) -> LayoutInfo:
        assert may_merge.wait(30)
        return write_layout(folder, *arguments)  # type: ignore[arg-type]  # those of `merge`

    monkeypatch.setattr(layout.WritesFolder, "merge", merge)
    yield may_merge
    may_merge.set()


def fill(collections: Collections) -> tuple[int, Reply]:
    """Write points to `slow` until one is refused; return its number and the reply."""
    for number in range(ROWS, 200):
        reply = write(collections, upsert("slow", f"w{number}", number))
        if reply.outcome != Outcome.ANSWER:
            return number, reply
    raise AssertionError("no write was refused")


def test_writes_are_refused_while_a_merge_is_late(
    collections: Collections, may_merge: Event, tmp_path: Path
) -> None:
    number, reply = fill(collections)
    status = status_pb2.Status.FromString(reply.payload)
    details = details_of_status(grpc.StatusCode.RESOURCE_EXHAUSTED, status)
    assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert (details.reason, details.retry_after) == ("MERGES_BEHIND", 0.5)
    assert BYTES_MAX - 3_000 < bytes_unmerged(tmp_path / "slow") <= BYTES_MAX

    # Queries see what was written, and other indexes are written to.
    index = Index.open(tmp_path / "slow")
    assert index.count() == number
    assert index.query(POINTS[1], k=1).sequence == number - ROWS + 1
    assert write(collections, upsert("other", "w", 7)).outcome == Outcome.ANSWER

    may_merge.set()
    replies: list[Reply] = []

    def is_made() -> bool:
        replies.append(write(collections, upsert("slow", f"w{number}", number)))
        return replies[-1].outcome == Outcome.ANSWER

    eventually(is_made)
    again = write(collections, upsert("slow", f"w{number}", number))
    assert again == replies[-1]
    assert writes_pb2.UpsertResponse.FromString(again.payload).sequence == number - ROWS + 2
    assert Index.open(tmp_path / "slow").count() == number + 1


def batch(collections: Collections, names: list[str], numbers: range) -> list[WriteOutcome]:
    """Send upserts of these numbers in a batch of a WriteStream, to the indexes in turn."""
    messages = [
        writes_pb2.WriteStreamRequest(
            correlation_id=number,
            upsert=upsert(names[number % len(names)], f"w{number}", number),
        )
        for number in numbers
    ]
    payload = pack_messages(message.SerializeToString() for message in messages)
    (reply,) = collections.answer([Request(1, math.inf, Op.WRITES, "tag", payload)])
    assert reply.outcome == Outcome.ANSWER
    return list(unpack_outcomes(reply.payload))


def test_writes_of_a_stream_are_put_off_while_a_merge_is_late(
    collections: Collections, may_merge: Event, tmp_path: Path
) -> None:
    """No write overtakes another one to the same index, and writes to other indexes are made."""
    first, _ = fill(collections)
    numbers = range(200, 210)
    outcomes = batch(collections, ["other", "slow"], numbers)
    assert [o.kind for o in outcomes] == [Kind.ANSWER, Kind.PUT_OFF] * 5
    assert {o.payload for o in outcomes[1::2]} == {b""}
    assert Index.open(tmp_path / "slow").count() == first
    assert Index.open(tmp_path / "other").count() == ROWS + 5
    may_merge.set()

    def are_made() -> bool:
        outcomes[:] = batch(collections, ["other", "slow"], numbers)
        return all(o.kind == Kind.ANSWER for o in outcomes)

    eventually(are_made)
    responses = [writes_pb2.WriteStreamResponse.FromString(o.payload) for o in outcomes]
    assert [response.correlation_id for response in responses] == [*numbers]
    sequences = [response.upsert.sequence for response in responses]
    for numbers_of_index in (sequences[::2], sequences[1::2]):
        first_number = numbers_of_index[0]
        assert numbers_of_index == [*range(first_number, first_number + 5)]
    assert Index.open(tmp_path / "slow").count() == first + 5


def test_a_batch_is_committed_with_one_sync(
    collections: Collections, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: list[LogWriter] = []
    sync = LogWriter.sync

    def count(log: LogWriter) -> None:
        syncs.append(log)
        sync(log)

    monkeypatch.setattr(LogWriter, "sync", count)
    outcomes = batch(collections, ["other", "slow"], range(100, 140))
    assert [o.kind for o in outcomes] == [Kind.ANSWER] * 40
    assert len(syncs) == len(set(syncs)) == 2
