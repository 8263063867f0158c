"""How the supervisor finds processes for jobs, and keeps an idle evaluator for the next call."""

import asyncio
import errno
from pathlib import Path
from unittest.mock import Mock

import pytest

from divgrpc_server.config import Config
from divgrpc_server.ipc import job_frames
from divgrpc_server.ipc.control import Kind, Message
from divgrpc_server.supervisor import supervisor as module
from divgrpc_server.supervisor.child import Child
from divgrpc_server.supervisor.supervisor import Supervisor


def waiting() -> Mock:
    """Return a mocked evaluator whose call has ended; like a `Child`, it can cancel its timer."""
    evaluator = Mock(role="evaluator", serial=7, expiry=None, ready=False)
    evaluator.cancel_expiry.side_effect = lambda: Child.cancel_expiry(evaluator)
    evaluator.exited.done.return_value = False
    return evaluator


@pytest.fixture
def idle_seconds(monkeypatch: pytest.MonkeyPatch) -> float:
    """Shorten the time for which an evaluator may be idle, and return this time."""
    monkeypatch.setattr(module, "_EVALUATOR_IDLE_SECONDS", 0.05)
    return 0.05


@pytest.mark.parametrize("is_used", [False, True])
def test_an_evaluator_ends_unless_it_is_used_again(idle_seconds: float, is_used: bool) -> None:
    async def scene() -> None:
        supervisor = Supervisor(Config(), Path("/nowhere"), Mock())
        evaluator, front = waiting(), Mock(role="front")
        supervisor._children[evaluator.serial] = evaluator
        supervisor._handle(evaluator, Message("ready"))
        assert evaluator.ready
        if is_used:
            await supervisor._start_job("evaluator", front, Message("evaluate", 3, "tag"))
            assert evaluator.send.call_args.args[0] == Message("call", 0, "tag")
            assert front.send.call_args.args[0] == Message("job", 3)
            for child in (evaluator, front):
                child.send.call_args.args[1].close()
        await asyncio.sleep(2 * idle_seconds)
        assert evaluator.hang_up.called != is_used
        assert not evaluator.ready

    asyncio.run(scene())


@pytest.mark.parametrize("request_kind", ["evaluate", "renew"])
def test_a_job_without_a_socket_is_refused_and_keeps_no_process(
    monkeypatch: pytest.MonkeyPatch, request_kind: Kind
) -> None:
    monkeypatch.setattr(job_frames, "pair", Mock(side_effect=OSError(errno.EMFILE, "too many")))

    async def scene() -> None:
        supervisor = Supervisor(Config(), Path("/nowhere"), Mock())
        child, front = waiting(), Mock(role="front")
        child.role = "evaluator" if request_kind == "evaluate" else "writer"
        child.ready = True
        supervisor._children[child.serial] = child
        supervisor._handle(front, Message(request_kind, 3, "tag"))
        await asyncio.sleep(0)
        refusal = front.send.call_args.args[0]
        assert (refusal.kind, refusal.number) == ("refused", 3)
        assert child.ready
        assert not child.send.called

    asyncio.run(scene())
