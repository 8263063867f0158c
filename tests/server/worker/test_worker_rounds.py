"""The order in which a worker takes up work, and what it reports when it starts."""

import math
import socket
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from divgrpc import compilation
from divgrpc.compilation import Compilation
from divgrpc.kernels import cache_files
from divgrpc_server.config import Config
from divgrpc_server.ipc import control, packets
from divgrpc_server.ipc.packets import Op, Request
from divgrpc_server.logging import logs
from divgrpc_server.worker import kernel_progress
from divgrpc_server.worker import process as worker
from divgrpc_server.worker.front_link import FrontLink
from support.processes.fake_front import Front


def test_a_small_query_is_served_before_a_slice_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker starts a batch, then serves one small packet, and then continues with a slice."""
    supervisor_end, worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    me = control.Process(control.Channel(worker_end), Config(log_level="error"), tmp_path, 1)
    one = worker.Worker(me, logs.configure(me.config, "worker"))
    order: list[int | str] = []

    def serve(_: FrontLink, packet: list[Request]) -> bool:
        order.append(packet[0].id)
        return len(packet[0].payload) > packets.SMALL_MAX

    def serve_slice(*_: object) -> None:
        order.append("slice")
        monkeypatch.setattr(one, "_take_in", lambda: False)

    monkeypatch.setattr(one, "_serve_packet", serve)
    monkeypatch.setattr(one, "_serve_slice", serve_slice)
    with supervisor_end, worker_end:
        front = Front(control.Channel(supervisor_end))
        for number, size in ((1, 100_000), (2, 100), (3, 100)):
            front.send(Request(number, math.inf, Op.QUERY, "tag", bytes(size)))
        one._tasks.append(())  # type: ignore[arg-type]  # a batch with a slice to answer
        one.run()
        front.link.close()
    assert order == [1, 2, "slice"]


_START = Compilation("started", 2, 117, 0.0)
_HALF = Compilation("running", 60, 117, 9.0)
_SOON_AFTER = Compilation("running", 61, 117, 9.1)
_END = Compilation("done", 117, 117, 21.0)


@pytest.mark.parametrize(
    ("states", "log_events", "counts"),
    [
        ([], ["kernels are warm"], []),
        (
            [_START, _HALF, _SOON_AFTER, _END],
            ["compiling kernels, once", "compiling kernels", "compiled", "kernels are warm"],
            [2, 60, 117],
        ),
        (
            [Compilation("uncached", 0, 117, 0.0, "Read-only file system")],
            ["cannot be kept (Read-only file system)", "kernels are warm"],
            [0],
        ),
    ],
    ids=["warm", "first start", "unwritable"],
)
def test_a_worker_reports_the_compilation_of_kernels(
    monkeypatch: pytest.MonkeyPatch,
    states: list[Compilation],
    log_events: list[str],
    counts: list[int],
) -> None:
    """Progress is logged and sent; a single report is sent if all kernels are cached."""
    supervisor_end, worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reports: list[compilation.Report] = []
    monkeypatch.setattr(compilation, "report_to", reports.append)

    def warm_kernels() -> None:
        for state in states:
            reports[0](state)

    monkeypatch.setattr(kernel_progress, "warm_kernels", warm_kernels)
    log = logs.configure(Config(), "worker")
    with supervisor_end, worker_end, capture_logs() as events:
        kernel_progress.warm(control.Channel(worker_end), log)
        worker_end.close()
        messages = []
        while (packet := control.Channel(supervisor_end).receive()) is not None:
            messages.append(packet[0])
    assert len(events) == len(log_events)
    assert all(word in event["event"] for word, event in zip(log_events, events, strict=True))
    total = len(cache_files.kernel_names())
    assert [message.number for message in messages] == [*counts, total]
    assert {message.kind for message in messages} == {"kernels"}
