"""The clients send a write again that the server has refused for lack of room."""

import random
import time
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2

from divgrpc.errors import MergesBehindError
from divgrpc_client.rpc.call import RpcCall
from support.checks.refusals import failing
from support.processes.both_clients import Stack
from support.processes.scripted_server import ScriptedIndex, status

FULL = grpc.StatusCode.RESOURCE_EXHAUSTED
ROW = np.ones((1, 4), np.float32)


def refuse(script: ScriptedIndex, times: int, retry_after: float | None) -> None:
    """Let the next calls fail as they do at a server that has no room."""
    script.failures = [FULL] * times
    details: list[Any] = [error_details_pb2.ErrorInfo(reason="MERGES_BEHIND")]
    if retry_after is not None:
        delay = Duration()
        delay.FromNanoseconds(int(retry_after * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    script.packed_details = status(FULL.value[0], "on command", *details).SerializeToString()


@pytest.mark.parametrize(("method", "arguments"), [("upsert", (1, ROW)), ("delete", (1,))])
def test_a_refused_write_is_sent_again(
    call: Stack, script: ScriptedIndex, method: str, arguments: tuple[object, ...]
) -> None:
    """It has the same name each time, and comes no earlier than the server says."""
    refuse(script, 5, 0.05)
    start = time.monotonic()
    assert call(method, "images", *arguments).rows == 1
    assert time.monotonic() - start >= 5 * 0.05
    assert len(script.write_ids) == 6
    assert len(set(script.write_ids)) == 1
    assert script.write_ids[0]


@pytest.mark.parametrize(
    ("retry_after", "options"),
    [
        (None, {}),  # waiting does not help
        (30.0, {"timeout": 20}),  # the deadline is earlier
        (0.01, {"settings": {"retries": False}}),
    ],
)
def test_a_write_that_cannot_succeed_is_sent_once(
    call: Stack, script: ScriptedIndex, retry_after: float | None, options: dict[str, Any]
) -> None:
    refuse(script, 9, retry_after)
    with failing(FULL, MergesBehindError, reason="MERGES_BEHIND"):
        call("upsert", "images", 1, ROW, **options)
    assert len(script.write_ids) == 1


def test_a_refused_write_is_sent_until_its_deadline(
    call: Stack, script: ScriptedIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that the deadline cuts off ends otherwise, so the deadline falls into a long pause."""
    monkeypatch.setattr(random, "uniform", lambda low, _high: low)
    refuse(script, 10_000, 1.0)
    with failing(FULL, MergesBehindError, reason="MERGES_BEHIND"):
        call("upsert", "images", 1, ROW, timeout=4.5)
    assert len(script.write_ids) > 3


def test_a_refused_query_is_not_sent_again(call: Stack, script: ScriptedIndex) -> None:
    """A query has a caller who waits, and a full queue does not become shorter by repetition."""
    refuse(script, 1, 0.01)
    with failing(FULL):
        call("query", "images", ROW)
    assert script.calls["Query"] == 1


def test_a_pause_beyond_the_deadline_ends_with_the_refusal(
    call: Stack, script: ScriptedIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine was busy, so the pause took longer than it should."""
    refuse(script, 2, 0.01)
    monkeypatch.setattr(RpcCall, "is_late", True)
    with failing(FULL, MergesBehindError, reason="MERGES_BEHIND"):
        call("upsert", "images", 1, ROW)
    assert len(script.write_ids) == 1
