"""Quality under load: sampled answers are compared with answers of exact search."""

from typing import Any

import grpc
import numpy as np
import pytest

from divgrpc_client import Client
from divgrpc_client.load import Call, Settings, constant, run_load
from divgrpc_client.load.calls import Method
from divgrpc_client.load.quality import compare_with_exact
from divgrpc_client.load.session import Session
from support.processes.running_server import RunningServer
from support.processes.scripted_server import ScriptedIndex, serving

RNG = np.random.default_rng(5)
BASE = RNG.standard_normal((200, 8), dtype=np.float32)
QUERIES = RNG.standard_normal((12, 8), dtype=np.float32)
SAMPLED = Settings(warm_up=0, quality=1, seed=3)


@pytest.mark.parametrize("method", ["Query", "QueryStream"])
def test_exact_answers_are_the_same(server: RunningServer, client: Client, method: Method) -> None:
    """An exact search finds all ids. A hash limit loses the same share of ids as in `query`."""
    client.build("compared", BASE, replace=True)
    exact: dict[str, Any] = {"search": "exact", "hash_limit": 0}
    limited: dict[str, Any] = {"search": "tables", "hash_limit": 10, "candidates_limit": 10}
    found = {}
    for name, options in (("exact", exact), ("limited", limited)):
        call = Call("compared", QUERIES, options, method=method, batch=12)
        quality = run_load(server.target, [call], constant(40, 1), SAMPLED)["quality"]
        assert quality["rows"] == 40 * 12
        found[name] = quality["same_ids"]
    assert found["exact"] == 1
    answers = client.query("compared", QUERIES, **limited).ids
    best = client.query("compared", QUERIES, **{**limited, **exact}).ids
    shares = [np.isin(row, own).mean() for own, row in zip(answers, best, strict=True)]
    assert found["limited"] == pytest.approx(np.mean(shares))
    assert found["limited"] < 1
    client.delete_index("compared")


def test_answers_that_cannot_be_compared_are_left_out(script: ScriptedIndex) -> None:
    rows = np.eye(6, dtype=np.float32)
    with serving(script) as target, Session(target, [Call("images", rows)], SAMPLED) as session:
        answers = [
            (session.calls[kind].method, session.messages[kind][message], reply)
            for kind, message, reply in session.run(constant(40, 1)).replies[:10]
        ]
        script.failures = [grpc.StatusCode.RESOURCE_EXHAUSTED] * 4
        script.generations = [2, 2, 1]
        quality = compare_with_exact(target, answers, lambda: False)
        assert compare_with_exact(target, [], lambda: False) is None
        asked = script.calls["Query"]
        assert compare_with_exact(target, answers, lambda: True) is None
        assert script.calls["Query"] == asked
    assert quality is not None
    assert (quality["unanswered"], quality["replaced"], quality["rows"]) == (4, 2, 4)
    assert "on command" in quality["refusal"]
