"""A worker whose loop runs in a thread, while tests act as its fronts."""

import math
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.rpc import code_pb2

from divgrpc import Index
from divgrpc.builder.builder import IndexBuilder
from divgrpc.engine import Engine
from divgrpc.parameters import BuildParameters
from divgrpc.storage.generations import Generation, open_generation, staging
from divgrpc.types import QueryDefault, QueryResult
from divgrpc.vectors import Rows
from divgrpc.writes.opening import open_index
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import query_pb2
from divgrpc_server.codec import results
from divgrpc_server.config import Config
from divgrpc_server.ipc import control
from divgrpc_server.ipc import packets as frames
from divgrpc_server.ipc.job_frames import StagedGeneration
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request
from divgrpc_server.logging import logs
from divgrpc_server.worker import batches, index_cache
from divgrpc_server.worker import process as worker
from divgrpc_server.worker.front_link import FrontLink
from support.data.served_index import DIMS, random_points
from support.processes.fake_front import Front, code_of

FOREVER = math.inf


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[control.Channel]:
    """Run a worker that serves an index `small`, and yield the supervisor's end of its channel."""
    Index.build(random_points(300), path=tmp_path / "small")
    supervisor_end, worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    config = Config(log_level="error")
    me = control.Process(control.Channel(worker_end), config, tmp_path, 1)
    thread = threading.Thread(target=worker.Worker(me, logs.configure(config, "worker")).run)
    thread.start()
    supervisor = control.Channel(supervisor_end)
    yield supervisor
    supervisor.close()
    thread.join(20)
    assert not thread.is_alive()
    worker_end.close()


@pytest.fixture
def front(channel: control.Channel) -> Iterator[Front]:
    """Yield a front of the worker, after a first query that opened the index."""
    one = Front(channel)
    one.send(query(0))
    one.hear_until(0)
    yield one
    one.link.close()


def query(
    number: int, rows: int = 1, *, index: str = "small", deadline: float = FOREVER, k: int = 10
) -> Request:
    message = query_pb2.QueryRequest(
        index=index, queries=encode_dense(random_points(rows, seed=number)), k=k
    )
    return Request(number, deadline, Op.QUERY, "tag", message.SerializeToString())


def test_a_packet_is_answered_together(front: Front) -> None:
    """The replies to a packet are sent in one packet, in order, together with its credit."""
    front.send(query(1), query(2, index="nobody"), query(3))
    packet = front.hear_credit()
    assert (packet.small, packet.large) == (1, 0)
    assert [reply.id for reply in packet.replies] == [1, 2, 3]
    assert code_of(packet.replies[1]) == code_pb2.NOT_FOUND


def test_small_queries_overtake_a_batch(front: Front) -> None:
    front.send(query(1, 10_000))
    front.send(query(2))
    front.send(query(3), query(4))
    assert front.hear_until(1) == [2, 3, 4, 1]


def test_a_request_without_its_memory_file_is_refused(front: Front) -> None:
    """The worker reports RESOURCE_EXHAUSTED and returns the packet's credit."""
    front.link.send(frames.pack_request(query(1, 10_000), in_memfd=True))
    packet = front.hear()
    assert code_of(packet.replies[0]) == code_pb2.RESOURCE_EXHAUSTED
    assert (packet.small, packet.large) == (0, 1)


def test_a_recheck_finds_a_truncated_file(front: Front, tmp_path: Path) -> None:
    """Reading a truncated file would kill the worker, but after RECHECK it reports DATA_LOSS."""
    assert answer_to(front, 1).generation == 1
    front.send(Request(0, FOREVER, Op.RECHECK, "", b"small"))
    front.send(Request(0, FOREVER, Op.RECHECK, "", b"nobody"))
    assert answer_to(front, 2).generation == 1
    os.truncate(tmp_path / "small" / "1" / "vectors.npy", 4096)
    front.send(Request(0, FOREVER, Op.RECHECK, "", b"small"))
    front.send(query(3))
    assert code_of(front.answer()) == code_pb2.DATA_LOSS


def test_a_cancelled_batch_stops(front: Front) -> None:
    front.send(query(1, 10_000))
    front.send(query(2))
    assert [reply.id for reply in front.hear_credit().replies] == [2]
    front.send(Request(1, 0.0, Op.CANCEL, "", b""))
    packet = front.hear()
    assert (packet.large, packet.replies) == (1, [])
    front.send(query(3))
    assert front.hear_until(3) == [3]


def test_a_request_cancelled_before_it_is_started(front: Front) -> None:
    front.send(query(1, 2_000))
    front.send(query(2), query(3))
    front.send(Request(3, 0.0, Op.CANCEL, "", b""))
    front.send(query(4))
    assert front.hear_until(1)[-1] == 1


def test_a_query_withdrawn_while_its_packet_is_answered(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker looks for withdrawals every 8 ms, so at most that much work is done for nothing.

    Each query takes 10 ms. The worker has begun the first when the others are withdrawn.
    """
    starts = slow_down(monkeypatch, 0.01)
    front.send(*(query(number) for number in range(1, 20)))
    starts.wait(1)
    for number in range(2, 20):
        front.send(Request(number, 0.0, Op.CANCEL, "", b""))
    packet = front.hear_credit()
    assert (packet.small, packet.large) == (1, 0)
    assert len(packet.replies) <= 3
    assert packet.replies[0].id == 1


@pytest.mark.parametrize("row_seconds", [0.0001, 0.003])
def test_a_withdrawn_batch_frees_its_worker_after_one_slice(
    front: Front, monkeypatch: pytest.MonkeyPatch, row_seconds: float
) -> None:
    """A slice takes 8 ms or, if that is longer, the time of 8 rows."""
    starts = slow_down(monkeypatch, row_seconds)
    front.send(query(1, 10_000))
    starts.wait(4)
    time.sleep(0.02)
    front.send(Request(1, 0.0, Op.CANCEL, "", b""))
    start = time.monotonic()
    packet = front.hear_credit()
    seconds = time.monotonic() - start
    assert (packet.large, packet.replies) == (1, [])
    slices = len(starts.times)
    assert sum(moment > start for moment in starts.times) <= 1
    # The machine may be busy, so the time has a wide margin; the batch would take a second or more.
    assert seconds < max(0.008, 8 * row_seconds) + 0.3
    front.send(query(2))
    assert front.hear_until(2) == [2]
    assert len(starts.times) == slices + 1


class Starts:
    """The times at which a worker began to answer rows."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def wait(self, count: int) -> None:
        """Wait until rows were begun so many times."""
        while len(self.times) < count:
            time.sleep(0.0005)


def slow_down(monkeypatch: pytest.MonkeyPatch, row_seconds: float) -> Starts:
    """Let each row of a query take so long, and return the times at which rows are begun."""
    starts, answer = Starts(), batches.QueryBatch._answer

    def slow(batch: batches.QueryBatch, index: Engine, rows: Rows, start: int) -> QueryResult:
        starts.times.append(time.monotonic())
        time.sleep(row_seconds * len(rows))
        return answer(batch, index, rows, start)

    monkeypatch.setattr(batches.QueryBatch, "_answer", slow)
    return starts


def test_a_request_past_its_deadline_is_not_started(front: Front) -> None:
    """During a batch, the deadline is checked between slices."""
    front.send(query(1, deadline=time.monotonic() - 1))
    assert code_of(front.answer()) == code_pb2.DEADLINE_EXCEEDED
    front.send(query(2, 10_000, deadline=time.monotonic() + 0.05))
    assert code_of(front.answer()) == code_pb2.DEADLINE_EXCEEDED


def test_credits_come_back_exactly_once(front: Front) -> None:
    front.send(query(1), query(2, 40))
    front.send(query(3, 3_000))
    front.send(query(4, index="nobody"))
    small = large = loan = 0
    reply_ids: set[int] = set()
    while len(reply_ids) < 4 or (small, large) != (2, 1):
        packet = front.hear()
        small, large, loan = small + packet.small, large + packet.large, loan + packet.loan
        reply_ids |= {reply.id for reply in packet.replies}
    assert reply_ids == {1, 2, 3, 4}
    assert loan == 0
    front.send(query(5))
    assert front.hear().small == 1


def test_a_credit_is_lent_before_the_last_slice(front: Front) -> None:
    """The front can send the next batch early, and the loan ends when this batch is answered."""
    front.send(query(1, 3_000))
    packet = front.hear()
    assert packet == (0, 0, [], 1)
    front.send(query(2, 3_000))
    front.send(query(3))
    packets = [front.hear()]
    while sum(packet.large for packet in packets) < 2:
        packets.append(front.hear())
    assert [reply.id for packet in packets for reply in packet.replies] == [1, 3, 2]
    changes = [(packet.large, packet.loan) for packet in packets if packet.large or packet.loan]
    assert changes == [(1, -1), (0, 1), (1, -1)]


def test_a_lent_credit_is_taken_back_if_the_last_slice_fails(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller gets the error, and the credit of the batch is returned together with it."""

    def fail(_: QueryResult) -> bytes:
        raise MemoryError

    monkeypatch.setattr(results, "pack_result", fail)
    front.send(query(1, 3_000))
    assert front.hear().loan == 1
    packet = front.hear_credit()
    assert code_of(packet.replies[0]) == code_pb2.RESOURCE_EXHAUSTED
    assert (packet.large, packet.loan) == (1, -1)


def test_fronts_are_served_in_turn(channel: control.Channel, front: Front) -> None:
    """A second front is answered during a batch of the first, and after the first hangs up."""
    second = Front(channel)
    front.send(query(1, 10_000))
    second.send(query(2))
    assert second.hear_until(2) == [2]
    front.link.close()
    second.send(query(3))
    assert second.hear_until(3) == [3]
    second.link.close()


def test_a_suspect_is_answered_alone(
    channel: control.Channel, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker says that it has begun, and answers no other front until it has replied."""
    replies: list[tuple[int, int]] = []
    reply = FrontLink.reply

    def noted_reply(self: FrontLink, one: Reply) -> None:
        replies.append((one.id, one.outcome))
        reply(self, one)

    monkeypatch.setattr(FrontLink, "reply", noted_reply)
    second = Front(channel)
    front.send(query(1, 10_000)._replace(is_suspect=True))
    assert [one.outcome for one in front.hear().replies] == [Outcome.START]
    second.send(query(2))
    assert second.hear_until(2) == [2]
    front.hear_until(1)
    assert replies == [(1, Outcome.START), (1, Outcome.ANSWER), (2, Outcome.ANSWER)]
    second.link.close()


def test_a_suspect_waits_for_the_opening_of_another_index(
    front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An opening may end the worker, which would then be blamed on the suspect."""
    Index.build(random_points(300), path=tmp_path / "other")
    may_open = threading.Event()

    def open_late(path: Path, **options: Any) -> object:  # noqa: ANN401  # those of `open_index`
        may_open.wait(20)
        return open_index(path, **options)

    monkeypatch.setattr(index_cache, "open_index", open_late)
    front.send(query(1, index="other"))
    front.send(query(2)._replace(is_suspect=True))
    time.sleep(0.1)
    may_open.set()
    replies: list[tuple[int, int]] = []
    while len(replies) < 3:
        replies += [(reply.id, reply.outcome) for reply in front.hear().replies]
    assert replies == [(1, Outcome.ANSWER), (2, Outcome.START), (2, Outcome.ANSWER)]


def test_a_suspect_opens_its_index_alone(
    channel: control.Channel, front: Front, tmp_path: Path
) -> None:
    Index.build(random_points(300), path=tmp_path / "other")
    front.send(query(1, index="other")._replace(is_suspect=True))
    assert [reply.outcome for reply in front.hear().replies] == [Outcome.START]
    assert front.hear_until(1) == [1]
    second = Front(channel)
    second.send(query(2))
    assert second.hear_until(2) == [2]
    second.link.close()


def test_a_suspect_does_not_keep_new_fronts_from_signs_of_life(
    channel: control.Channel, front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a new front would report the worker as silent, and the suspect would be blamed."""
    Index.build(random_points(300), path=tmp_path / "other")
    may_open = threading.Event()

    def open_late(path: Path) -> object:
        may_open.wait(20)
        return open_index(path)

    monkeypatch.setattr(index_cache, "open_index", open_late)
    monkeypatch.setattr(worker, "_ALIVE_SECONDS", 0.01)
    front.send(query(1, index="other")._replace(is_suspect=True))
    assert [reply.outcome for reply in front.hear().replies] == [Outcome.START]
    second = Front(channel)
    second.send(query(2))
    readable, _, _ = select.select([second.link.fileno()], [], [], 10)
    may_open.set()
    assert readable
    assert second.hear_until(2) == [2]
    second.link.close()


def test_a_suspect_can_be_cancelled(front: Front) -> None:
    front.send(query(1, 10_000)._replace(is_suspect=True))
    assert [reply.outcome for reply in front.hear().replies] == [Outcome.START]
    front.send(Request(1, 0.0, Op.CANCEL, "", b""))
    front.send(query(2))
    assert front.hear_until(2) == [2]


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "late"])
def test_a_suspect_that_waits_for_its_index_frees_its_worker(
    front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    """An opening may take minutes, if a shard is copied."""
    Index.build(random_points(300), path=tmp_path / "other")
    may_open = threading.Event()
    openings: list[Path] = []

    def open_late(path: Path, **options: Any) -> object:  # noqa: ANN401  # those of `open_index`
        may_open.wait(20)
        openings.append(path)
        return open_index(path, **options)

    monkeypatch.setattr(index_cache, "open_index", open_late)
    deadline = FOREVER if is_cancelled else time.monotonic() + 0.3
    suspect = query(1, index="other")._replace(is_suspect=True, deadline=deadline)
    front.send(suspect)
    assert [reply.outcome for reply in front.hear().replies] == [Outcome.START]
    if is_cancelled:
        front.send(Request(1, 0.0, Op.CANCEL, "", b""))
    front.send(query(2))
    assert front.hear_until(2) == ([2] if is_cancelled else [1, 2])
    assert openings == []
    may_open.set()


def test_a_suspect_frees_its_worker_if_its_front_ends(
    channel: control.Channel, front: Front
) -> None:
    front.send(query(1, 10_000)._replace(is_suspect=True))
    assert [reply.outcome for reply in front.hear().replies] == [Outcome.START]
    front.link.close()
    second = Front(channel)
    second.send(query(2))
    assert second.hear_until(2) == [2]
    second.link.close()


def test_a_new_generation_answers_at_once(front: Front, tmp_path: Path) -> None:
    """After a publication the old generation answers no query, even without PREPARE."""
    assert answer_to(front, 1).generation == 1
    Index.build(np.eye(DIMS, dtype=np.float32), path=tmp_path / "small", replace=True)
    assert answer_to(front, 2).generation == 2
    front.send(Request(0, FOREVER, Op.REFRESH, "", b"small"))
    assert answer_to(front, 3).generation == 2


def test_a_prepared_generation_is_the_one_that_serves(front: Front, tmp_path: Path) -> None:
    """If a prepared generation is never published, it is not served in place of the next one."""
    with pytest.raises(InterruptedError):
        build_prepared(front, tmp_path, 10, publish=False)
    assert answer_to(front, 11).generation == 1
    build_prepared(front, tmp_path, 20, publish=True)
    assert answer_to(front, 21).generation == 2
    response = answer_to(front, 30, k=50)
    core = Index.open(tmp_path / "small").query(random_points(1, seed=30), k=50)
    assert list(response.ids) == core.ids[0, :40].tolist()


def test_a_generation_that_takes_long_to_open(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the worker opens a generation, it sends signs of life and answers queries."""
    go_on = threading.Event()

    def open_slowly(folder: Path) -> Generation:
        assert go_on.wait(20)
        return open_generation(folder)

    monkeypatch.setattr(index_cache, "open_generation", open_slowly)
    staged = StagedGeneration("small", "staged").pack()
    front.send(Request(1, FOREVER, Op.PREPARE, "", staged))
    # A server that has two addresses is asked twice.
    front.send(Request(3, FOREVER, Op.PREPARE, "", staged))
    assert answer_to(front, 2).generation == 1
    readable, _, _ = select.select([front.link.fileno()], [], [], 10)
    assert readable
    assert bytes(front.link.receive()[0]) == frames.pack_credits(0, 0)
    go_on.set()
    assert front.hear_until(3) == [1, 3]
    assert answer_to(front, 4).generation == 1


def test_a_new_default_applies_to_the_next_query(front: Front, tmp_path: Path) -> None:
    """It applies without opening the index again; a damaged default is DATA_LOSS."""
    default = QueryDefault(diversity=0.9, selector="mmr", variant="corrected", search="exact")
    index = Index.open(tmp_path / "small")
    index.set_default(default)
    effective = answer_to(front, 1).parameters
    assert (effective.selector, effective.diversity) == (query_pb2.SELECTOR_MMR, 0.9)
    index.set_default(None)
    assert answer_to(front, 2).parameters.selector == query_pb2.SELECTOR_GREEDY
    index.set_default(default)
    path = tmp_path / "small" / "1.default.json"
    path.write_text(path.read_text().replace("0.9", "0.8"))
    front.send(query(3))
    assert code_of(front.answer()) == code_pb2.DATA_LOSS


def build_prepared(front: Front, root: Path, number: int, *, publish: bool) -> None:
    """Replace `small` after a worker has prepared it; interrupt the build unless `publish`."""

    def prepare(folder: Path) -> None:
        whole = StagedGeneration("small", folder.name).pack()
        front.send(Request(number, FOREVER, Op.PREPARE, "", whole))
        assert front.hear_until(number) == [number]
        if not publish:
            raise InterruptedError

    with staging(root / "small", replace=True) as stage:
        stage.on_whole = prepare
        builder = IndexBuilder(stage, BuildParameters())
        builder.append(random_points(40, seed=number))
        builder.build()


def answer_to(front: Front, number: int, k: int = 10) -> query_pb2.QueryResponse:
    front.send(query(number, k=k))
    return query_pb2.QueryResponse.FromString(front.answer().payload)


@pytest.mark.parametrize("packet", [b"x", b"x" * 40, b"\xff" * 200])
def test_a_front_that_sends_nonsense_costs_itself_alone(
    channel: control.Channel, front: Front, packet: bytes
) -> None:
    """The worker closes its link, and answers other fronts."""
    other = Front(channel)
    other.link.send(packet)
    assert select.select([other.link], [], [], 20)[0]
    assert len(other.link.receive()[0]) == 0
    other.link.close()
    front.send(query(1))
    assert front.hear_until(1)
