"""The calls and the bytes that a front holds for the writer are limited."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from divgrpc import Index
from divgrpc_client import Client
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import index_pb2, writes_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.checks.status_details import failure
from support.data.served_index import random_points
from support.processes.running_server import RunningServer

CALLS, BYTES = 4, 300_000
POINTS = random_points(100, dims=8, seed=2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run a server with a short queue; its writer is up."""
    folder: Path = tmp_path_factory.mktemp("full")
    Index.build(POINTS, path=folder / "data" / "points")
    limits = ("--queue-calls", str(CALLS), "--queue-bytes", str(BYTES))
    with RunningServer(folder, "--data-dir", str(folder / "data"), *limits) as server:
        with Client(server.target, timeout=30) as client:
            client.wait_until_ready(timeout=60)
            client.delete("points", 99)
        yield server


@pytest.fixture
def stub(server: RunningServer) -> Iterator[DiverseIndexStub]:
    with server.channel() as channel:
        yield DiverseIndexStub(channel)


@contextmanager
def stopped_writer(server: RunningServer) -> Iterator[None]:
    """Let the writer answer nothing."""
    (pid,) = server.pids("writer")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def upsert(number: int, payload_bytes: int = 1) -> writes_pb2.UpsertRequest:
    """Return an upsert of points with payloads of `payload_bytes` in all."""
    count = -(-payload_bytes // 50_000)
    return writes_pb2.UpsertRequest(
        index="points",
        ids=range(number, number + count),
        vectors=encode_dense(POINTS[:count]),
        payloads=[b"x" * (payload_bytes // count)] * count,
        write_id=f"write {number}",
    )


def await_front(stub: DiverseIndexStub, calls: int) -> None:
    """Wait until the front has received `calls` writes; it takes calls of each method in turn."""
    for _ in range(calls):
        stub.GetServerInfo(index_pb2.GetServerInfoRequest(), timeout=30)


def check_refused(stub: DiverseIndexStub, request: writes_pb2.UpsertRequest) -> None:
    details = failure(stub.Upsert, request, timeout=20)
    assert (details.code, details.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert details.retry_after == 0.1


def test_a_front_holds_a_number_of_writes(server: RunningServer, stub: DiverseIndexStub) -> None:
    """Queries go on, and a client sends the refused write again until there is room."""
    client = Client(server.target, timeout=30)
    with client, ThreadPoolExecutor(1) as threads:
        with stopped_writer(server):
            calls = [stub.Upsert.future(upsert(1_000 + n), timeout=60) for n in range(CALLS)]
            await_front(stub, CALLS)
            check_refused(stub, upsert(2_000))
            sending = threads.submit(client.upsert, "points", 3_000, POINTS[:1])
            wait([sending], timeout=0.5)
            assert not sending.done()
            assert client.query("points", POINTS[0], k=1).counts[0] == 1
        sequences = [call.result().sequence for call in calls]
        assert len(set(sequences)) == CALLS
        assert sending.result().sequence > max(sequences)
        assert client.get("points", [2_000]).ids.tolist() == []


def test_a_front_holds_a_number_of_bytes(server: RunningServer, stub: DiverseIndexStub) -> None:
    with stopped_writer(server):
        large = stub.Upsert.future(upsert(4_000, 200_000), timeout=60)
        await_front(stub, 1)
        check_refused(stub, upsert(5_000, 150_000))
        small = stub.Upsert.future(upsert(6_000), timeout=60)
        await_front(stub, 1)
        assert not small.done()
    assert large.result().rows == 4
    assert small.result().rows == 1
