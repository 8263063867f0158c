"""What a front does with jobs: it passes an evaluation on, though its process ends at any frame."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from divgrpc.errors import IndexChangedError, UnavailableError
from divgrpc_protos.v1 import index_pb2
from divgrpc_server.codec.statuses import (
    EngineUnreachableError,
    PlacesMissingError,
    QueueFullError,
    ShardsMissingError,
    status_of,
)
from divgrpc_server.config import Config
from divgrpc_server.front import job_rounds as front_rounds
from divgrpc_server.front import jobs
from divgrpc_server.front.refusals import RefusedError
from divgrpc_server.front.sharded_pool import Shards
from divgrpc_server.ipc import control, job_frames, job_rounds, rounds
from divgrpc_server.ipc.errors import FrameError
from divgrpc_server.ipc.job_frames import Frame, StagedGeneration

Frames = list[tuple[Frame, bytes]]
TAG = "r-1"

PROGRESS: Frames = [(Frame.EVENT, b"progress")]
ROWS: Frames = [(Frame.COMMIT, b""), (Frame.EVENT, b"row 1"), (Frame.EVENT, b"row 2")]
END: Frames = [(Frame.RESULT, b"")]
WHOLE = PROGRESS + ROWS + END


async def append(messages: list[bytes], message: bytes) -> None:
    messages.append(message)


def relay(
    *processes: Frames,
    messages: list[bytes] | None = None,
    shards: Shards | None = None,
    write: Callable[[bytes], Awaitable[None]] | None = None,
    prepare: Callable[[bytes], Awaitable[None]] | None = None,
) -> list[bytes]:
    """Relay an evaluation to processes that send these frames; return what was passed on.

    messages: gets what was passed on, also if the evaluation fails. shards: answers rounds. write:
    is the caller, who otherwise reads all messages. prepare: lets workers open a generation.
    """
    remaining: Iterator[Frames] = iter(processes)
    messages = [] if messages is None else messages

    class Channel:
        """A supervisor that has a process for each request."""

        def send(self, message: control.Message) -> None:
            front_end, process_end = job_frames.pair()
            with process_end:
                frames = next(remaining)
                for kind, payload in frames:
                    job_frames.send(process_end, kind, payload)
                # Otherwise it waits for the front.
                if not frames or frames[-1][0] not in (Frame.ASK, Frame.STAGED):
                    # Or else the system would drop what the front has not read.
                    process_end.shutdown(socket.SHUT_WR)
                links.append(process_end.dup())
            front.handle(control.Message("job", message.number), front_end.detach())

    async def run() -> None:
        caller = write or partial(append, messages)
        await front.relay(jobs.Evaluation(Frame.EVALUATE, b"request", caller), TAG)

    channel: Any = Channel()
    links: list[socket.socket] = []
    front = jobs.Jobs(Config(), channel, Mock(prepare=prepare), Path("/nowhere"), shards)
    try:
        asyncio.run(run())
    finally:
        for link in links:
            link.close()
        assert next(remaining, None) is None
    return messages


@pytest.mark.parametrize("count", range(len(WHOLE)))
def test_a_process_that_ends_at_any_frame_costs_no_row(count: int) -> None:
    """The second process starts over, and the caller gets each row once."""
    messages = relay(WHOLE[:count], WHOLE)
    assert [message for message in messages if message != b"progress"] == [b"row 1", b"row 2"]


def test_two_processes_that_end() -> None:
    with pytest.raises(UnavailableError, match="two evaluators ended"):
        relay(WHOLE[:3], WHOLE[:-1])


def test_rows_that_are_too_large_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets them as they come. If the process then ends, no other one starts over."""
    monkeypatch.setattr(jobs, "_ROWS_BYTES_MAX", 12)
    row: Frames = [(Frame.EVENT, b"row 3")]
    messages: list[bytes] = []
    with pytest.raises(UnavailableError, match="ended while it sent its rows"):
        relay(PROGRESS + ROWS + 2 * row, messages=messages)
    assert messages == [b"progress", b"row 1", b"row 2", b"row 3", b"row 3"]
    assert relay(PROGRESS + ROWS + row + END) == [b"progress", b"row 1", b"row 2", b"row 3"]


# Builds that workers open before they are published.

STAGED: Frames = [(Frame.STAGED, b"points/.points.staging-0")]


def test_progress_is_passed_on_while_workers_open_a_build() -> None:
    """It may take minutes, and a caller who hears nothing gives up."""
    messages: list[bytes] = []

    async def prepare(generation: bytes) -> None:
        assert generation == STAGED[0][1]
        async with asyncio.timeout(20):
            while not messages:
                await asyncio.sleep(0.01)

    assert relay(STAGED + PROGRESS + END, messages=messages, prepare=prepare) == [b"progress"]


def test_a_build_that_cannot_be_opened_is_not_published() -> None:
    async def prepare(_: bytes) -> None:
        raise UnavailableError("no replica of shard 1 can open the build")

    with pytest.raises(UnavailableError, match="no replica of shard 1"):
        relay(STAGED, prepare=prepare)


# Rounds of messages to shards.


def ask(number: int, messages: dict[int, bytes]) -> Frames:
    """Return the frames of a round."""
    packed = rounds.pack_round(messages)
    return [(Frame.ASK, part) for part in job_rounds.parts_of(number, packed)]


class Answers:
    """Shards that answer rounds, or fail with the errors one after another."""

    def __init__(self, *errors: Exception) -> None:
        self.rounds: list[dict[int, bytes]] = []
        # Whether the last round was to wait for servers that are down.
        self.waits: bool | None = None
        # Why the engine cannot be reached.
        self.fault = ""
        self._errors = iter(errors)

    async def ask(
        self, messages: dict[int, bytes], seconds: float, *, waits: bool, **terms: object
    ) -> dict[int, bytes]:
        """Return the reply of each shard."""
        assert terms == {"tag": TAG, "is_job": True}
        self.waits = waits
        assert seconds > 0
        self.rounds.append(messages)
        for error in self._errors:
            raise error
        return {shard: message.upper() for shard, message in messages.items()}

    async def prepare(self, generation: StagedGeneration) -> None:
        """Refuse, because no build is under way."""
        raise AssertionError(generation)

    @property
    def room_bytes(self) -> None:
        """Nobody counts memory."""

    async def await_engine(self) -> None:
        """Fail if the engine cannot be reached."""
        if self.fault:
            raise EngineUnreachableError(self.fault)

    async def await_places(self) -> None:
        """Fail, because a place has no server."""
        raise PlacesMissingError([1], 2)


def test_a_caller_who_reads_no_progress_delays_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest progress is dropped meanwhile, and rows wait."""
    monkeypatch.setattr(jobs, "_PROGRESS_MAX", 2)
    passed: list[bytes] = []
    shards = Answers()

    async def write(message: bytes) -> None:
        while message == b"progress" and not shards.rounds:
            await asyncio.sleep(0.001)
        passed.append(message)

    process = 9 * PROGRESS + ask(1, {0: b"find"}) + ROWS + END
    relay(process, shards=shards, write=write)
    assert shards.rounds == [{0: b"find"}]
    assert passed[-2:] == [b"row 1", b"row 2"]
    assert set(passed[:-2]) == {b"progress"}
    assert len(passed) < 9


def test_shards_are_asked_while_progress_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of several frames are put together, also if those of two rounds alternate."""
    monkeypatch.setattr(job_rounds, "_PART_BYTES_MAX", 5)
    first, second = ask(7, {0: b"a message", 2: b"another"}), ask(8, {1: b"a third"})
    assert min(len(first), len(second)) > 3
    alternate = [frame for pair in zip(first, second, strict=False) for frame in pair]
    rest = first[len(second) :] + second[len(first) :]
    shards = Answers()
    assert relay(PROGRESS + alternate + rest + ROWS + END, shards=shards) == [
        b"progress", b"row 1", b"row 2",
    ]  # fmt: skip
    assert sorted(map(len, shards.rounds)) == [1, 2]
    assert {0: b"a message", 2: b"another"} in shards.rounds
    assert shards.waits


def test_a_shard_that_is_missing_ends_the_call() -> None:
    """No second process tries the same; this one waits for replies, and is ended."""
    with pytest.raises(ShardsMissingError):
        relay(PROGRESS + ask(1, {0: b""}), shards=Answers(ShardsMissingError([0])))


def test_a_replaced_index_is_evaluated_by_a_second_process() -> None:
    error, question = IndexChangedError("the index was replaced"), ask(1, {0: b""})
    messages = relay(PROGRESS + question, question + ROWS + END, shards=Answers(error))
    assert messages == [b"progress", b"row 1", b"row 2"]
    with pytest.raises(IndexChangedError):
        relay(question, question, shards=Answers(error, error))


def test_shards_without_room_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation of an hour does not end because a queue was full for a moment."""
    monkeypatch.setattr(front_rounds, "_PAUSE_SECONDS", 0.01)
    full = RefusedError(status_of(QueueFullError("full"), "").SerializeToString())
    shards = Answers(full, QueueFullError("a server has ended the call"))
    question = rounds.Round({0: b"a"}, may_lack=False)
    assert asyncio.run(front_rounds._replies(shards, question, TAG)) == {0: b"A"}
    assert shards.rounds == [{0: b"a"}] * 3
    other = RefusedError(status_of(UnavailableError("no worker"), "").SerializeToString())
    with pytest.raises(RefusedError):
        asyncio.run(front_rounds._replies(Answers(other), question, TAG))


@pytest.mark.parametrize(
    ("errors", "reason"),
    [([], None), ([ShardsMissingError([0])], "shard 0"), ([IndexChangedError("gone")], "gone")],
)
def test_a_builder_gets_the_reason_why_shards_do_not_answer(
    errors: list[Exception], reason: str | None
) -> None:
    """It does not wait for a server of a shard, and does the work itself."""
    frames: list[tuple[Frame, bytes]] = []

    async def run() -> None:
        has_replied = asyncio.Event()

        async def send(kind: Frame, payload: bytes) -> None:
            frames.append((kind, payload))
            has_replied.set()

        job = front_rounds.JobRounds(shards, TAG, send, has_replied.set)
        packed = rounds.pack_round({0: b"a"}, may_lack=True)
        for part in job_rounds.parts_of(5, packed):
            job.add(part)
        await has_replied.wait()
        assert job.error is None
        await job.close()

    shards = Answers(*errors)
    asyncio.run(run())
    assert shards.waits is False
    ((kind, payload),) = frames
    message = job_rounds.Assembly().add(payload)
    assert message is not None
    assert (kind, message[0]) == (Frame.REPLIES, 5)
    replies = rounds.unpack_round(message[1])
    if reason is None:
        assert (replies.messages, rounds.refusal_of(replies)) == ({0: b"A"}, None)
    else:
        assert reason in str(rounds.refusal_of(replies))


def test_a_server_without_shards_asks_nobody() -> None:
    with pytest.raises(FrameError, match="has none"):
        relay(ask(1, {0: b""}))


@pytest.mark.parametrize(
    ("fault", "error"), [("", PlacesMissingError), ("the head is gone", EngineUnreachableError)]
)
def test_a_build_that_no_shard_could_answer_from_starts_no_builder(
    tmp_path: Path, fault: str, error: type[Exception]
) -> None:
    channel, shards = Mock(), Answers()
    shards.fault = fault
    front = jobs.Jobs(Config(), channel, Mock(), tmp_path, shards)
    build = jobs.BuildOnce(index_pb2.BuildOnceRequest(index="points").SerializeToString())
    with pytest.raises(error):
        asyncio.run(front.relay(build, "tag"))
    assert channel.mock_calls == []


def test_a_part_without_a_number_is_refused() -> None:
    with pytest.raises(FrameError, match="3 bytes"):
        relay([(Frame.ASK, b"abc")], shards=Answers())
