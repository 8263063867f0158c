"""Bytes that no process of a server should send end their sender, and no process that reads them.

`tests/fuzzing` changes frames at random.
"""

import math
import os
import random

import pytest
from google.rpc import code_pb2, status_pb2

from divgrpc_protos.v1 import writes_pb2
from divgrpc_server.config import Config
from divgrpc_server.ipc import job_frames, packets
from divgrpc_server.ipc.errors import FrameError
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request
from divgrpc_server.ipc.write_batches import Kind, pack_messages
from divgrpc_server.logging import logs
from divgrpc_server.writer.calls import calls_of
from fuzzing.mutants import run
from fuzzing.targets import FRAMES, TARGETS
from support.processes.pool_harness import Stage, answer, on_stage, packet, settle
from support.requests.mutators import change_bytes

CREDITS = packets.pack_credits(1, 0)
REPLY = packets.pack_reply(Reply(1, Outcome.ANSWER, b"answer"))
BROKEN_REPLIES = [
    b"\1",
    CREDITS + b"x",
    CREDITS + REPLY[:-1],
    CREDITS + REPLY + b"x",
    CREDITS + packets.pack_reply(Reply(1, 77, b"")),
]


@pytest.mark.parametrize("name", FRAMES)
def test_changed_frames_are_read_or_refused(name: str) -> None:
    """Most of the changed frames are refused, and all are read in a moment."""
    assert run(name, count=500, seed=1) < 5
    target, draw = TARGETS[name], random.Random(1)
    refused = 0
    for _ in range(200):
        try:
            target.read(change_bytes(draw, draw.choice(target.seeds)))
        except FrameError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize("number", range(len(BROKEN_REPLIES)))
@on_stage()
async def test_a_front_replaces_a_worker_that_sends_nonsense(stage: Stage, number: int) -> None:
    """Its call is tried once more, by another worker."""
    first = stage.attach(1)
    call = stage.ask(b"call")
    await packet(first)
    first.send(BROKEN_REPLIES[number])
    await settle()
    assert stage.reports == [1]
    second = stage.attach(2)
    answer(second, *await packet(second))
    assert (await call).outcome == Outcome.ANSWER


@pytest.mark.parametrize("length", [3, 100])
def test_a_memory_file_is_as_long_as_its_item(length: int) -> None:
    """A reader closes it, also if it is too short."""
    request = Request(1, math.inf, Op.QUERY, "tag", bytes(length))
    item = memoryview(packets.pack_request(request, in_memfd=True))
    before = len(os.listdir("/proc/self/fd"))
    with packets.memory_file(bytes(10)) as memfd:
        copy = os.dup(memfd)
    if length > 10:
        with pytest.raises(FrameError):
            packets.unpack_requests(item, copy)
    else:
        assert packets.unpack_requests(item, copy) == [request]
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_memory_file_without_an_item_is_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with packets.memory_file(b"left over") as memfd:
        copy = os.dup(memfd)
    assert packets.unpack_replies(memoryview(CREDITS + REPLY), copy)[0].payload == b"answer"
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_broken_batch_of_writes_is_answered() -> None:
    """The writer goes on, and the last answer ends the stream with INTERNAL."""
    delete = writes_pb2.DeleteRequest(index="points", ids=[1])
    message = writes_pb2.WriteStreamRequest(delete=delete).SerializeToString()
    batch = pack_messages([message, message])
    log = logs.configure(Config(log_level="error"), "test")
    for cut in range(1, len(message)):
        first, last = calls_of(Request(1, math.inf, Op.WRITES, "tag", batch[:-cut]), log)
        assert first.outcome is None
        assert last.outcome is not None
        assert last.outcome.kind == Kind.STATUS
        assert status_pb2.Status.FromString(last.outcome.payload).code == code_pb2.INTERNAL


@pytest.mark.parametrize("kind", [0, 99])
def test_a_frame_of_an_unknown_kind_is_refused(kind: int) -> None:
    near, far = job_frames.pair()
    with near, far:
        near.sendall(job_frames._HEAD.pack(0, kind))
        for read in (job_frames.peek, job_frames.receive):
            with pytest.raises(FrameError):
                read(far)


def test_a_frame_that_is_too_long_is_refused_before_it_arrives() -> None:
    near, far = job_frames.pair()
    with near, far:
        near.sendall(job_frames._HEAD.pack(2**32 - 1, job_frames.Frame.EVENT))
        with pytest.raises(FrameError):
            job_frames.receive(far)
