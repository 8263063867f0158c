"""What shard servers write into the log of the server that has started them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from divgrpc_client import Client
from support.data.served_index import random_points
from support.processes.running_server import RunningServer, eventually

POINTS = random_points(200, dims=8, seed=9)
QUERIES = POINTS[:5] + 0.2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("logs")
    options = ("--shards", "2", "--workers", "1", "--log-level", "debug", "--log-format", "json")
    with RunningServer(folder, "--data-dir", str(folder / "data"), *options) as running:
        yield running


def entries(server: RunningServer, **fields: object) -> list[dict[str, Any]]:
    """Return the entries of the log that have these fields."""
    lines = map(json.loads, server.log.splitlines())
    return [entry for entry in lines if fields.items() <= entry.items()]


def places_asked(server: RunningServer, request_id: str) -> set[int]:
    """Return the places whose shard servers have logged a call for a request of a client."""
    calls = entries(server, event="call", method="Ask", request_id=request_id, code="OK", replica=0)
    return {call["place"] for call in calls}


@pytest.mark.parametrize("method", ["Query", "Evaluate"])
def test_calls_of_shards_have_the_request_id_of_the_client(
    server: RunningServer, method: str
) -> None:
    """There is a line at each place, which it names; the line of the client's call has no place."""
    with Client(server.target, timeout=60) as client:
        client.build("points", POINTS, replace=True)
        if method == "Query":
            client.query("points", QUERIES, request_id=method)
        else:
            relevant = [[number] for number in range(len(QUERIES))]
            [*client.evaluate("points", QUERIES, relevant=relevant, ks=[3], request_id=method)]
    eventually(lambda: places_asked(server, method) == {0, 1})
    eventually(lambda: entries(server, request_id=method, method=method))
    (call,) = entries(server, request_id=method, method=method)
    assert "place" not in call
