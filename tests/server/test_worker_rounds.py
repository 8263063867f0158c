"""What a worker does first, and what it says at its start: nothing is answered here."""

import math
import socket
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from divgrpc.kernels import compiling
from divgrpc_server import control, frames, logs, worker
from divgrpc_server.config import Config
from divgrpc_server.frames import Op, Request
from fronts import Front


def test_a_small_query_goes_before_the_pieces_of_a_batch_that_came_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that has come is read, and a round begins the large one and answers the small one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    me = control.Self(control.Channel(theirs), Config(log_level="error"), tmp_path, 1)
    one = worker.Worker(me, logs.configure(me.config, "worker"))
    order: list[int | str] = []

    def serve(_: worker.Front, packet: list[Request]) -> bool:
        order.append(packet[0].id)
        return len(packet[0].payload) > frames.SMALL_MAX

    def piece(*_: object) -> None:
        order.append("piece")
        monkeypatch.setattr(one, "_take_in", lambda: False)

    monkeypatch.setattr(one, "_serve_packet", serve)
    monkeypatch.setattr(one, "_serve_piece", piece)
    with ours, theirs:
        front = Front(control.Channel(ours))
        for number, size in ((1, 100_000), (2, 100), (3, 100)):
            front.send(Request(number, math.inf, Op.QUERY, "tag", bytes(size)))
        one._batches.append(())  # type: ignore[arg-type]  # of which a piece is due
        one.run()
        front.link.close()
    assert order == [1, 2, "piece"]


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        ([True, True], ["kernels are warm"]),
        ([False, True], ["compiling kernels", "kernels are warm"]),
        ([False, False], ["compiling kernels", "cannot be kept", "kernels are warm"]),
    ],
    ids=["warm", "first start", "unwritable"],
)
def test_a_worker_says_what_warming_costs(
    monkeypatch: pytest.MonkeyPatch, kept: list[bool], told: list[str]
) -> None:
    """It says so where kernels are compiled, and warns where they cannot be kept."""
    answers = iter(kept)
    monkeypatch.setattr(worker, "warm_kernels", lambda: None)
    monkeypatch.setattr(compiling, "is_warm", lambda: next(answers))
    log = logs.configure(Config(), "worker")
    with capture_logs() as events:
        worker.warm(log)
    assert len(events) == len(told)
    assert all(word in event["event"] for word, event in zip(told, events, strict=True))
