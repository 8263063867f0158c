"""Events about the progress of a job."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from divgrpc.types import Progress
from divgrpc_protos.v1 import index_pb2
from divgrpc_server.ipc import job_frames
from divgrpc_server.ipc.job_frames import Frame
from divgrpc_server.ipc.progress import ProgressEvents


@pytest.fixture
def links() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return the ends of the front and of the process, whose descriptor is above 1,023."""
    front, process = job_frames.pair()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4_096, hard)), hard))
    with front, process:
        os.dup2(process.fileno(), 2_000)
        with socket.socket(fileno=2_000) as high:
            yield front, high
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_new_stage_is_sent_at_once(links: tuple[socket.socket, socket.socket]) -> None:
    front, process = links
    events = ProgressEvents(process, index_pb2.BuildResponse)
    for count in range(100):
        events.report(Progress("copying", count, 100))
    events.report(Progress("writing", 100, 100))
    stages: list[str] = []
    while not stages or stages[-1] != "writing":
        kind, payload = job_frames.receive(front)
        assert kind == Frame.EVENT
        stages.append(index_pb2.BuildResponse.FromString(payload).progress.stage)
    # Events of one stage come at most every tenth of a second.
    assert len(stages) < 50


def test_the_end_of_a_stage_is_sent_at_once(links: tuple[socket.socket, socket.socket]) -> None:
    front, process = links
    events = ProgressEvents(process, index_pb2.BuildResponse)
    for count in (0, 1, 2, 2):
        events.report(Progress("merging", count, 2))
    process.shutdown(socket.SHUT_WR)
    counts = []
    with suppress(EOFError):
        while True:
            _, payload = job_frames.receive(front)
            counts.append(index_pb2.BuildResponse.FromString(payload).progress.rows_done)
    assert counts == [0, 2]


def test_a_full_buffer_drops_events(links: tuple[socket.socket, socket.socket]) -> None:
    front, process = links
    process.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            process.send(b"x" * 4_096)
    process.setblocking(True)
    ProgressEvents(process, index_pb2.BuildResponse).report(Progress("copying", 0, 1))
    process.shutdown(socket.SHUT_WR)
    while data := front.recv(1 << 20):
        assert not data.strip(b"x")


def test_a_front_that_hung_up_ends_the_job(links: tuple[socket.socket, socket.socket]) -> None:
    front, process = links
    front.close()
    with pytest.raises(BrokenPipeError):
        ProgressEvents(process, index_pb2.BuildResponse).report(Progress("copying", 0, 1))
