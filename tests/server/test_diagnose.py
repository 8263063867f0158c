"""Diagnoses over the wire are those of this process."""

from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from divgrpc import Field, Index
from divgrpc.errors import IndexNotFoundError, UnfitIndexError
from divgrpc.types import Diagnosis, Progress
from divgrpc_client import Client
from support.checks.refusals import failing, refused
from support.data.served_index import place, random_points, twin
from support.processes.both_clients import Stack
from support.processes.running_server import RunningServer

ROWS = 600
POINTS = np.concatenate([random_points(400), random_points(200)])
ATTRIBUTES: dict[str, Any] = {
    "brand": [None if row % 4 == 0 else f"b{row % 3}" for row in range(ROWS)],
    "count": [row % 5 for row in range(ROWS)],
    "price": (np.arange(ROWS) % 3) / 8,
    "sold": [row % 2 == 0 for row in range(ROWS)],
    "tags": [["x", "y", "z"][: row % 4] for row in range(ROWS)],
}


@pytest.fixture(params=["sync", "aio"])
def ask(request: pytest.FixtureRequest, server: RunningServer) -> Stack:
    """Return each of the two clients, connected to the session's server."""
    return Stack(server.target, is_async=request.param == "aio")


@pytest.fixture(scope="module")
def core(server: RunningServer) -> Index:
    return place(server, "diagnosed", POINTS, attributes=ATTRIBUTES)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"attributes": list(ATTRIBUTES), "sample": 200, "seed": 5},
        {"attributes": "brand", "filter": Field("price") < 0.2},
    ],
    ids=str,
)
def test_diagnoses_equal_those_in_process(ask: Stack, core: Index, options: dict[str, Any]) -> None:
    reports: list[Progress] = []
    result: Diagnosis = ask("diagnose", "diagnosed", progress=reports.append, **options)
    # NaN differs from itself, but its text does not.
    assert repr(result) == repr(core.diagnose(**options))
    assert reports[0].rows_done == 0
    assert reports[-1].stage == "answering queries"
    assert reports[-1].rows_done == reports[-1].rows_total
    if "attributes" in options:
        values = [copies.value for copies in result.by_value]
        assert {type(value) for value in values} <= {str, int, float, bool, type(None)}


def test_written_points_are_diagnosed(
    client: Client, server: RunningServer, tmp_path: Path
) -> None:
    client.build("diagnosed-writes", POINTS[:300], replace=True)
    client.upsert("diagnosed-writes", [300, 301, 5], POINTS[[10, 10, 10]])
    client.delete("diagnosed-writes", [0, 1])
    diagnosis = client.diagnose("diagnosed-writes")
    assert (diagnosis.rows, diagnosis.sequence) == (300, 2)
    with twin(server, "diagnosed-writes", tmp_path) as collection:
        assert repr(collection.diagnose()) == repr(diagnosis)


def test_an_index_without_points_is_unfit(client: Client) -> None:
    client.build("diagnosed-empty", POINTS[:2], replace=True)
    client.delete("diagnosed-empty", [0, 1])
    with failing(grpc.StatusCode.FAILED_PRECONDITION, UnfitIndexError, field="index"):
        client.diagnose("diagnosed-empty")
    with failing(grpc.StatusCode.NOT_FOUND, IndexNotFoundError):
        client.diagnose("absent")


def test_bad_arguments_are_not_sent(client: Client) -> None:
    for options, field in (
        ({"sample": 0}, "sample"),
        ({"sample": 10_001}, "sample"),
        ({"seed": -1}, "seed"),
        ({"attributes": ["a", "a"]}, "attributes"),
        ({"filter": {"must": 3}}, "filter"),
    ):
        arguments: dict[str, Any] = options
        with refused(field):
            client.diagnose("diagnosed", **arguments)
