"""The command `conformance` checks a server, this process or an adapter, and ends with a code."""

from pathlib import Path

import pytest

from divgrpc.conformance import CHECKS
from divgrpc_client import Client
from support.processes.command_line import Run

ADAPTER = """
from dataclasses import replace

from support.data.memory_store import MemoryStore

class Reversed(MemoryStore):
    name = "reversed"

    def query(self, request):
        answer = super().query(request)
        return replace(answer, scores=[-score for score in answer.scores])
"""


def test_a_server_is_checked_and_keeps_no_index(run: Run, client: Client) -> None:
    before = {info.name for info in client.list_indexes()}
    ran = run("conformance", "--json", "--checks", "zero", "filter")
    assert ran.code == 0
    assert [(check["name"], check["outcome"]) for check in ran.json["checks"]] == [
        ("zero", "passed"),
        ("filter", "passed"),
    ]
    assert ran.json["store"].endswith("over gRPC")
    assert {info.name for info in client.list_indexes()} == before


def test_this_process_is_checked(run: Run) -> None:
    ran = run("conformance", "in-process")
    assert ran.code == 0, ran.out
    assert all(f" {name} " in ran.out for name in CHECKS)
    assert " 0 failed" in ran.out


def test_an_adapter_is_checked(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the current folder is found, and the exit code says that a check failed."""
    (tmp_path / "reversed_store.py").write_text(ADAPTER)
    monkeypatch.chdir(tmp_path)
    ran = run("conformance", "reversed_store:Reversed", "--checks", "repeat", "scores")
    assert ran.code == 5
    assert ran.out.startswith("reversed\n  passed         repeat")
    assert "\n  failed         scores" in ran.out


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("nowhere", "must be server, in-process or MODULE:CLASS, got 'nowhere'"),
        ("no_such_module:Store", "No module named 'no_such_module'"),
        ("json:Store", "module 'json' has no attribute 'Store'"),
    ],
)
def test_an_adapter_that_does_not_exist(run: Run, store: str, message: str) -> None:
    ran = run("conformance", store, "--json")
    assert ran.code == 2
    assert message in ran.error["message"]
    assert ran.fields == ["store"]


def test_unknown_checks_are_refused(run: Run) -> None:
    ran = run("conformance", "in-process", "--checks", "compleat")
    assert ran.code == 2
    assert "complete" in ran.err
