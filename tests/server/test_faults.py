"""Workers that die or hang, queues that fill, callers that leave: who is told what."""

import os
import resource
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from divgrpc import Index
from divgrpc_client import Client
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import index_pb2, query_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.manual_uploads import Held, chunk, commit, header, refusal
from support.running_server import RunningServer, alive, cpu_seconds, eventually
from support.served_index import DIMS, random_points
from support.status_details import details_of

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
DEADLINE = grpc.StatusCode.DEADLINE_EXCEEDED
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[RunningServer]:
    """Run a server that has an index `small`."""
    data = folder / "data"
    if not data.exists():
        Index.build(random_points(300), path=data / "small")
    with RunningServer(folder, "--data-dir", str(data), *arguments) as server:
        yield server


def query(rows: int = 1, seed: int = 0) -> query_pb2.QueryRequest:
    """Return a query of `small`."""
    points = random_points(rows, seed=seed)
    return query_pb2.QueryRequest(index="small", queries=encode_dense(points))


def long_batch() -> query_pb2.QueryRequest:
    """Return a query that is work for minutes."""
    batch = query(rows=4_000)
    batch.selector, batch.k = query_pb2.SELECTOR_QP_RELAX, 50
    return batch


def computing(pids: Sequence[int]) -> int:
    """Return whichever of idle processes begins to compute first."""
    before = {pid: cpu_seconds(pid) for pid in pids}
    busy: list[int] = []

    def looked() -> list[int]:
        busy.extend(pid for pid in pids if cpu_seconds(pid) > before[pid] + 0.2)
        return busy

    eventually(looked, 30)
    return busy[0]


def health(server: RunningServer) -> int:
    """Return what the server's health service says."""
    with server.channel() as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=5).status)


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Keep processes from running for as long as the block lasts."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            if alive(pid):
                os.kill(pid, signal.SIGCONT)


def taken_in(stub: DiverseIndexStub, calls: int = 1) -> None:
    """Wait until the front has seen so many queries made on the stub's connection.

    Queries wait in a line of their own, of which it takes one for each call of another line.
    """
    for _ in range(calls):
        stub.GetServerInfo(index_pb2.GetServerInfoRequest(), timeout=5)


def workers_ready(client: Client, count: int) -> bool:
    """Tell whether so many workers are up."""
    return client.server_info().workers_ready == count


def asking(client: Client, stop: threading.Event) -> int:
    """Ask until told to stop; returns how often. Any failure is raised."""
    calls = 0
    rng = np.random.default_rng(threading.get_ident() % 1000)
    while not stop.is_set():
        rows = 40 if calls % 10 == 0 else 1
        client.query("small", rng.standard_normal((rows, DIMS)))
        calls += 1
    return calls


def test_a_killed_worker_costs_no_call(tmp_path: Path) -> None:
    """With two workers and no retries in the client, killing workers fails no call."""
    stop = threading.Event()
    with (
        serving(tmp_path, "--workers", "2") as server,
        Client(server.target, timeout=30, retries=False) as client,
        ThreadPoolExecutor(2) as threads,
    ):
        loads = [threads.submit(asking, client, stop) for _ in range(2)]
        try:
            for turn in range(2):
                eventually(lambda: workers_ready(client, 2), 30)
                server.kill("worker", turn % 2)
                eventually(lambda: not workers_ready(client, 2), 10)
            eventually(lambda: workers_ready(client, 2), 30)
        finally:
            stop.set()
        assert sum(load.result() for load in loads) > 100


def test_a_query_that_ends_workers_is_tried_twice(tmp_path: Path) -> None:
    """The second death is UNAVAILABLE; the same query again is refused without a try."""
    with (
        serving(tmp_path, "--workers", "2") as server,
        server.channel() as channel,
        Client(server.target, timeout=30) as client,
    ):
        stub = DiverseIndexStub(channel)
        guilty = long_batch()
        call = stub.Query.future(guilty, timeout=60)
        workers = server.pids("worker")
        for _ in range(2):
            killed = computing(workers)
            os.kill(killed, signal.SIGKILL)
            workers.remove(killed)
        with pytest.raises(grpc.RpcError) as caught:
            call.result()
        details = details_of(caught.value)
        assert details.code == UNAVAILABLE
        assert details.retry_after
        eventually(lambda: workers_ready(client, 2), 30)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Query(guilty, timeout=10)
        details = details_of(caught.value)
        assert (details.code, details.reason) == (grpc.StatusCode.INTERNAL, "ENDS_WORKERS")
        assert len(stub.Query(query(), timeout=10).ids) == 10


def test_a_file_that_is_cut_short_under_the_workers(tmp_path: Path) -> None:
    """Whoever reads it dies, the others look first: the call is DATA_LOSS, as all after it are."""
    with (
        serving(tmp_path, "--workers", "2") as server,
        server.channel() as channel,
        Client(server.target, timeout=30) as client,
    ):
        stub = DiverseIndexStub(channel)
        calls = [stub.Query.future(query(seed=seed), timeout=20) for seed in range(40)]
        assert all(call.result() for call in calls)
        os.truncate(tmp_path / "data" / "small" / "1" / "vectors.npy", 4096)
        for _ in range(5):
            with pytest.raises(grpc.RpcError) as caught:
                stub.Query(query(300), timeout=20)
            assert details_of(caught.value).code == grpc.StatusCode.DATA_LOSS
        assert server.log.count("worker lost") <= 1
        assert client.build("small", random_points(50), replace=True).generation == 2
        assert client.query("small", np.ones(DIMS)).generation == 2


def test_a_worker_that_hangs_is_replaced(tmp_path: Path) -> None:
    """Its callers hear DEADLINE_EXCEEDED, or get their answer from another worker."""
    arguments = ("--workers", "1", "--worker-silence", "1")
    with serving(tmp_path, *arguments) as server, server.channel() as channel:
        stub = DiverseIndexStub(channel)
        (hanging,) = server.pids("worker")
        with stopped(hanging):
            patient = stub.Query.future(query(), timeout=60)
            with pytest.raises(grpc.RpcError) as caught:
                stub.Query(query(seed=1), timeout=0.3)
            assert caught.value.code() == DEADLINE
            assert len(patient.result().ids) == 10
            assert not alive(hanging)
        assert server.pids("worker") != [hanging]


def test_no_worker_is_unavailable_and_not_healthy(tmp_path: Path) -> None:
    """While none is up, health says NOT_SERVING, and queries wait a little, then fail."""
    arguments = ("--workers", "1", "--worker-wait", "0.1")
    with (
        serving(tmp_path, *arguments) as server,
        server.channel() as channel,
        Client(server.target) as client,
    ):
        server.kill("worker")
        eventually(lambda: health(server) == NOT_SERVING)
        with pytest.raises(grpc.RpcError) as caught:
            DiverseIndexStub(channel).Query(query(), timeout=10)
        details = details_of(caught.value)
        assert details.code == UNAVAILABLE
        assert details.retry_after
        assert not client.server_info().workers_ready
        eventually(lambda: health(server) == SERVING, 30)
        assert len(DiverseIndexStub(channel).Query(query(), timeout=10).ids) == 10


def test_a_full_queue_is_refused(tmp_path: Path) -> None:
    """RESOURCE_EXHAUSTED with a time to wait; health and administration still answer."""
    arguments = ("--workers", "1", "--queue-calls", "4")
    with serving(tmp_path, *arguments) as server, server.channel() as channel:
        stub = DiverseIndexStub(channel)
        with stopped(*server.pids("worker")):
            waiting = [stub.Query.future(query(seed=seed), timeout=60) for seed in range(4)]
            taken_in(stub, 4)
            with pytest.raises(grpc.RpcError) as caught:
                stub.Query(query(seed=9), timeout=10)
            details = details_of(caught.value)
            assert (details.code, details.reason) == (EXHAUSTED, "QUEUE_FULL")
            assert details.retry_after
            assert health(server) == SERVING
        for call in waiting:
            assert len(call.result().ids) == 10


def test_a_batch_refuses_no_small_query(tmp_path: Path) -> None:
    """The only worker has work for minutes; callers of one query, far apart, are not sent away."""
    with serving(tmp_path, "--workers", "1") as server, server.channel() as channel:
        stub = DiverseIndexStub(channel)
        whole = stub.Query.future(long_batch(), timeout=4)
        refused = []
        while not whole.done():
            single = stub.Query.future(query(), timeout=0.5)
            refused += [single] if single.code() == EXHAUSTED else []
            time.sleep(0.4)
        assert not refused
        assert whole.code() == DEADLINE


def test_a_flood_is_cut_before_the_front_and_holds_up_nothing_else(tmp_path: Path) -> None:
    """Beyond --pending-calls gRPC ends queries as CANCELLED; administration waits elsewhere."""
    with serving(tmp_path, "--pending-calls", "1") as server, server.channel() as channel:
        stub = DiverseIndexStub(channel)
        taken_in(stub)
        with stopped(*server.pids("front")):
            flood = [stub.Query.future(query(), timeout=60) for _ in range(300)]
            info = stub.GetServerInfo.future(index_pb2.GetServerInfoRequest(), timeout=60)
        assert info.result().workers_ready
        codes = {call.code() for call in flood}
        assert codes == {grpc.StatusCode.OK, grpc.StatusCode.CANCELLED}


def test_an_upload_that_stands_still(tmp_path: Path) -> None:
    """DEADLINE_EXCEEDED after the limit, and nothing is left behind."""
    with serving(tmp_path, "--upload-idle", "0.3") as server, server.channel() as channel:
        held = Held(DiverseIndexStub(channel), "still")
        held.send(chunk(np.ones((3, DIMS))))
        with pytest.raises(grpc.RpcError) as caught:
            list(held.call)
        assert details_of(caught.value).code == DEADLINE
        eventually(lambda: set(os.listdir(tmp_path / "data")) == {".lock", "small"})


def test_no_room_for_an_index(tmp_path: Path) -> None:
    """A full disk is RESOURCE_EXHAUSTED, nothing is left, and the old generation serves."""
    with (
        serving(tmp_path) as server,
        server.channel() as channel,
        Client(server.target, timeout=30) as client,
    ):
        # No file of a builder may grow beyond this, as if there were no room for more.
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (200_000, 200_000))
        rows = [chunk(random_points(1_000)) for _ in range(5)]
        steps = [header("small", replace=True), *rows, commit(5_000)]
        details = refusal(DiverseIndexStub(channel), *steps)
        assert (details.code, details.reason) == (EXHAUSTED, "STORAGE_FULL")
        assert client.query("small", np.ones(DIMS)).generation == 1
        eventually(lambda: not list((tmp_path / "data").glob(".small*")))


def test_calls_that_outlast_the_grace_are_in_the_log(tmp_path: Path) -> None:
    """Each has its access line, and none leaves a traceback."""
    arguments = ("--workers", "1", "--grace", "0.1")
    with serving(tmp_path, *arguments) as server, server.channel() as channel:
        stub = DiverseIndexStub(channel)
        with stopped(*server.pids("worker")):
            calls = [stub.Query.future(query(), timeout=60) for _ in range(3)]
            taken_in(stub, 3)
            server.process.send_signal(signal.SIGTERM)
            codes = [call.code() for call in calls]
            server.process.wait(20)
        # gRPC itself ends a call that comes to a server which has stopped taking calls.
        begun = codes.count(grpc.StatusCode.UNAVAILABLE)
        assert begun > 0
        assert server.log.count('"CANCELLED"') == begun
        assert "Traceback" not in server.log


def test_a_supervisor_without_descriptors(tmp_path: Path) -> None:
    """It refuses builds and starts nobody, and once it has descriptors again all is well."""
    with (
        serving(tmp_path, "--workers", "1") as server,
        server.channel() as channel,
        Client(server.target, timeout=30) as client,
    ):
        pid = server.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
        stub = DiverseIndexStub(channel)
        details = refusal(stub, header("new"), chunk(np.ones((3, DIMS))), commit(3))
        assert (details.code, bool(details.retry_after)) == (UNAVAILABLE, True)
        server.kill("worker")
        eventually(lambda: "cannot start a child" in server.log)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        eventually(lambda: workers_ready(client, 1), 30)
        assert client.build("new", random_points(50)).generation == 1
        assert client.query("small", np.ones(DIMS)).generation == 1


def test_a_front_without_descriptors(tmp_path: Path) -> None:
    """What it cannot take in it refuses, and asks for its workers again."""
    with (
        serving(tmp_path, "--workers", "1") as server,
        server.channel() as channel,
        Client(server.target, timeout=30) as client,
    ):
        stub = DiverseIndexStub(channel)
        taken_in(stub)
        (pid,) = server.pids("front")
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
        details = refusal(stub, header("new"), chunk(np.ones((3, DIMS))), commit(3))
        assert (details.code, bool(details.retry_after)) == (EXHAUSTED, True)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Query(query(1_000), timeout=20)
        assert details_of(caught.value).code == EXHAUSTED
        server.kill("worker")
        eventually(lambda: server.log.count("kernels are warm") == 2, 30)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        eventually(lambda: workers_ready(client, 1), 30)
        assert client.query("small", np.ones(DIMS)).generation == 1


def test_descriptors_do_not_leak(server: RunningServer, client: Client) -> None:
    """Large queries, builds and cancelled calls leave no descriptor open."""
    client.build("leaky", random_points(400))

    def descriptors() -> list[int]:
        pids = [server.process.pid, *server.pids("front"), *server.pids("worker")]
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]

    def exercise() -> None:
        for _ in range(5):
            client.query("leaky", random_points(1_500), k=20, timeout=60)
        client.build("leaky", random_points(400), replace=True)
        for _ in range(4):
            client.query("leaky", np.ones(DIMS))

    exercise()
    before = descriptors()
    exercise()
    exercise()
    eventually(lambda: np.all(np.array(descriptors()) <= np.array(before) + 1))
