"""A worker by itself: what it says while it warms up."""

import pytest
from structlog.testing import capture_logs

from divgrpc.kernels import compiling
from divgrpc_server import logs, worker
from divgrpc_server.config import Config


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
