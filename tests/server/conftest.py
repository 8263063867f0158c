"""A small index on the session's server, and a stub for calls that the client would never send."""

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from divgrpc_client.messages import evaluate
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.data.served_index import EVALUATED_ROWS, ROWS, Served, place, random_points
from support.processes.running_server import RunningServer, eventually, index_folders


@pytest.fixture(scope="session")
def served_index(server: RunningServer) -> Served:
    """Build the index that most tests query."""
    points = random_points(ROWS + 64)
    place(server, "served", points[:ROWS])
    return Served("served", points[:ROWS], points[ROWS:])


@pytest.fixture(scope="session")
def channel(server: RunningServer) -> Iterator[grpc.Channel]:
    """Yield a channel to the session's server."""
    with server.channel() as bare:
        yield bare


@pytest.fixture(scope="session")
def stub(channel: grpc.Channel) -> DiverseIndexStub:
    """Return the generated stub, which clients in other languages also use."""
    return DiverseIndexStub(channel)


@pytest.fixture(scope="session")
def evaluated_name(server: RunningServer) -> str:
    """Build an index with categories, sub-topics and ids."""
    rows = np.arange(EVALUATED_ROWS)
    labels: dict[str, Any] = {"categories": rows % 3, "subtopics": rows // 3 % 4}
    place(server, "evaluated", random_points(EVALUATED_ROWS), ids=rows * 3, **labels)
    return "evaluated"


@pytest.fixture(params=[None, 3_000], ids=["one", "several"])
def one_message_or_several(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client send an evaluation in one message, and then in messages of some kilobytes."""
    if request.param:
        monkeypatch.setattr(evaluate, "MESSAGE_BYTES", request.param)


@pytest.fixture
def clean(server: RunningServer) -> Iterator[str]:
    """Yield the name of an index to build; afterwards check that no folder of the index is left."""
    yield "clean"
    eventually(lambda: not index_folders(server, "clean"))
