"""If the front or supervisor hangs up during a call, the builder or evaluator exits."""

import threading

import pytest

from divgrpc_server.ipc import control, job_frames
from divgrpc_server.ipc.job_calls import ending_on_hang_up


@pytest.mark.parametrize("position", [0, 1], ids=["front", "supervisor"])
def test_a_hang_up_ends_the_process(monkeypatch: pytest.MonkeyPatch, position: int) -> None:
    has_ended = threading.Event()
    monkeypatch.setattr("os._exit", lambda code: has_ended.set() if code == 1 else None)
    front, supervisor = job_frames.pair(), job_frames.pair()
    watch = ending_on_hang_up(front[1], control.Channel(supervisor[1]))
    with front[1], supervisor[1], front[0], supervisor[0], watch:
        assert not has_ended.wait(0.05)
        (front, supervisor)[position][0].close()
        assert has_ended.wait(10)


def test_a_hang_up_after_the_work_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    has_ended = threading.Event()
    monkeypatch.setattr("os._exit", lambda _: has_ended.set())
    front, supervisor = job_frames.pair(), job_frames.pair()
    with front[1], supervisor[1]:
        with ending_on_hang_up(front[1], control.Channel(supervisor[1])):
            pass
        front[0].close()
        supervisor[0].close()
        assert not has_ended.wait(0.05)
