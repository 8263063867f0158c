"""Workers that die or hang, full queues, callers who leave: the status that each caller gets."""

import os
import resource
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

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
from support.served_index import DIMS, place, random_points
from support.status_details import details_of

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
DEADLINE = grpc.StatusCode.DEADLINE_EXCEEDED
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING


class Served(NamedTuple):
    """A server that has an index `small`, and ways to call it."""

    server: RunningServer
    stub: DiverseIndexStub
    client: Client

    def await_workers(self, count: int) -> None:
        """Wait until `count` workers are up."""
        eventually(lambda: self.client.server_info().workers_ready == count, 30)


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Served]:
    """Run a server."""
    data = folder / "data"
    Index.build(random_points(300), path=data / "small")
    with (
        RunningServer(folder, "--data-dir", str(data), *arguments) as server,
        server.channel() as channel,
        Client(server.target, timeout=30, retries=False) as client,
    ):
        yield Served(server, DiverseIndexStub(channel), client)


@pytest.fixture(scope="module")
def pair_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a server with two workers."""
    with serving(tmp_path_factory.mktemp("pair"), "--workers", "2") as served:
        yield served


@pytest.fixture
def pair(pair_server: Served) -> Served:
    """Return the server with two workers, both of them up."""
    pair_server.await_workers(2)
    return pair_server


@pytest.fixture(scope="module")
def single_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a server with one worker, whose calls hardly wait for it."""
    arguments = ("--workers", "1", "--worker-wait", "0.1")
    with serving(tmp_path_factory.mktemp("single"), *arguments) as served:
        yield served


@pytest.fixture
def single(single_server: Served) -> Served:
    """Return the server with one worker, which is up."""
    single_server.await_workers(1)
    return single_server


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a server with one worker and low limits."""
    limits = ("--worker-silence", "1", "--queue-calls", "4", "--upload-idle", "0.3")
    with serving(tmp_path_factory.mktemp("strict"), "--workers", "1", *limits) as served:
        yield served


@pytest.fixture
def strict(strict_server: Served) -> Served:
    """Return the server with low limits, its worker up."""
    strict_server.await_workers(1)
    return strict_server


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


@contextmanager
def limited(pid: int, kind: int, limit: int) -> Iterator[None]:
    """Lower a soft resource limit of a process for as long as the block lasts."""
    soft, hard = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (limit, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, kind, (soft, hard))


def await_front(stub: DiverseIndexStub, calls: int = 1) -> None:
    """Wait until the front has seen `calls` queries made on the stub's connection.

    Queries wait in a queue of their own; the front takes one for each call of another queue.
    """
    for _ in range(calls):
        stub.GetServerInfo(index_pb2.GetServerInfoRequest(), timeout=5)


def asking(client: Client, stop: threading.Event) -> int:
    """Ask until told to stop; returns how often. Any failure is raised."""
    calls = 0
    rng = np.random.default_rng(threading.get_ident() % 1000)
    while not stop.is_set():
        rows = 40 if calls % 10 == 0 else 1
        client.query("small", rng.standard_normal((rows, DIMS)))
        calls += 1
    return calls


def test_a_killed_worker_costs_no_call(pair: Served) -> None:
    """With two workers and no retries in the client, killing workers fails no call."""
    stop = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        loads = [threads.submit(asking, pair.client, stop) for _ in range(2)]
        try:
            for turn in range(2):
                pair.await_workers(2)
                pair.server.kill("worker", turn)
                pair.await_workers(1)
            pair.await_workers(2)
        finally:
            stop.set()
        assert sum(load.result() for load in loads) > 100


def test_a_query_that_ends_workers_is_tried_twice(pair: Served) -> None:
    """The second death is UNAVAILABLE; the same query again is refused without a try."""
    guilty = long_batch()
    call = pair.stub.Query.future(guilty, timeout=60)
    workers = pair.server.pids("worker")
    for _ in range(2):
        victim = computing(workers)
        os.kill(victim, signal.SIGKILL)
        workers.remove(victim)
    with pytest.raises(grpc.RpcError) as caught:
        call.result()
    details = details_of(caught.value)
    assert details.code == UNAVAILABLE
    assert details.retry_after
    pair.await_workers(2)
    with pytest.raises(grpc.RpcError) as caught:
        pair.stub.Query(guilty, timeout=10)
    details = details_of(caught.value)
    assert (details.code, details.reason) == (grpc.StatusCode.INTERNAL, "ENDS_WORKERS")
    assert len(pair.stub.Query(query(), timeout=10).ids) == 10


def test_a_file_that_is_cut_short_under_the_workers(pair: Served) -> None:
    """The reader dies and the others check first: the call and all after it are DATA_LOSS."""
    place(pair.server, "cut", random_points(300))
    queries = [query(seed=seed) for seed in range(40)]
    for request in queries:
        request.index = "cut"
    assert all(call.result() for call in [pair.stub.Query.future(q, timeout=20) for q in queries])
    deaths = pair.server.log.count("worker lost")
    os.truncate(pair.server.folder / "data" / "cut" / "1" / "vectors.npy", 4096)
    batch = query(300)
    batch.index = "cut"
    for _ in range(5):
        with pytest.raises(grpc.RpcError) as caught:
            pair.stub.Query(batch, timeout=20)
        assert details_of(caught.value).code == grpc.StatusCode.DATA_LOSS
    assert pair.server.log.count("worker lost") <= deaths + 1
    assert pair.client.build("cut", random_points(50), replace=True).generation == 2
    assert pair.client.query("cut", np.ones(DIMS)).generation == 2


def test_a_worker_that_hangs_is_replaced(strict: Served) -> None:
    """Its callers get DEADLINE_EXCEEDED, or their answer from another worker."""
    (hanging,) = strict.server.pids("worker")
    with stopped(hanging):
        patient = strict.stub.Query.future(query(), timeout=60)
        with pytest.raises(grpc.RpcError) as caught:
            strict.stub.Query(query(seed=1), timeout=0.3)
        assert caught.value.code() == DEADLINE
        assert len(patient.result().ids) == 10
        assert not alive(hanging)
    assert strict.server.pids("worker") != [hanging]


def test_a_full_queue_is_refused(strict: Served) -> None:
    """RESOURCE_EXHAUSTED with a time to wait; health and administration still answer."""
    with stopped(*strict.server.pids("worker")):
        calls = [strict.stub.Query.future(query(seed=seed), timeout=60) for seed in range(4)]
        await_front(strict.stub, 4)
        with pytest.raises(grpc.RpcError) as caught:
            strict.stub.Query(query(seed=9), timeout=10)
        details = details_of(caught.value)
        assert (details.code, details.reason) == (EXHAUSTED, "QUEUE_FULL")
        assert details.retry_after
        assert health(strict.server) == SERVING
    for call in calls:
        assert len(call.result().ids) == 10


def test_an_upload_that_stands_still(strict: Served) -> None:
    """DEADLINE_EXCEEDED after the limit, and nothing is left behind."""
    held = Held(strict.stub, "still")
    held.send(chunk(np.ones((3, DIMS))))
    with pytest.raises(grpc.RpcError) as caught:
        list(held.call)
    assert details_of(caught.value).code == DEADLINE
    eventually(lambda: set(os.listdir(strict.server.folder / "data")) == {".lock", "small"})


def test_no_worker_is_unavailable_and_not_healthy(single: Served) -> None:
    """While none is up, health says NOT_SERVING, and queries wait a little, then fail."""
    single.server.kill("worker")
    eventually(lambda: health(single.server) == NOT_SERVING)
    with pytest.raises(grpc.RpcError) as caught:
        single.stub.Query(query(), timeout=10)
    details = details_of(caught.value)
    assert details.code == UNAVAILABLE
    assert details.retry_after
    assert not single.client.server_info().workers_ready
    eventually(lambda: health(single.server) == SERVING, 30)
    assert len(single.stub.Query(query(), timeout=10).ids) == 10


def test_a_batch_refuses_no_small_query(single: Served) -> None:
    """The only worker has work for minutes; callers of one query, far apart, are not refused."""
    whole = single.stub.Query.future(long_batch(), timeout=4)
    refusals = []
    while not whole.done():
        call = single.stub.Query.future(query(), timeout=0.5)
        refusals += [call] if call.code() == EXHAUSTED else []
        time.sleep(0.4)
    assert not refusals
    assert whole.code() == DEADLINE


def test_no_room_for_an_index(single: Served) -> None:
    """A full disk is RESOURCE_EXHAUSTED, nothing is left, and the old generation serves."""
    # No file of a builder may grow beyond this, as if there were no room for more.
    with limited(single.server.process.pid, resource.RLIMIT_FSIZE, 200_000):
        chunks = [chunk(random_points(1_000)) for _ in range(5)]
        details = refusal(single.stub, header("small", replace=True), *chunks, commit(5_000))
    assert (details.code, details.reason) == (EXHAUSTED, "STORAGE_FULL")
    assert single.client.query("small", np.ones(DIMS)).generation == 1
    eventually(lambda: not list((single.server.folder / "data").glob(".small*")))


def test_a_supervisor_without_descriptors(single: Served) -> None:
    """It refuses builds and starts no process, until it has descriptors again."""
    with limited(single.server.process.pid, resource.RLIMIT_NOFILE, 3):
        details = refusal(single.stub, header("new"), chunk(np.ones((3, DIMS))), commit(3))
        assert (details.code, bool(details.retry_after)) == (UNAVAILABLE, True)
        single.server.kill("worker")
        single.await_workers(0)
        eventually(lambda: "cannot start a child" in single.server.log)
    single.await_workers(1)
    assert single.client.build("new", random_points(50)).generation == 1
    assert single.client.query("small", np.ones(DIMS)).generation == 1


def test_a_front_without_descriptors(single: Served) -> None:
    """It refuses what it cannot take in, and asks for its workers again."""
    await_front(single.stub)
    starts = single.server.log.count("kernels are warm")
    with limited(single.server.pids("front")[0], resource.RLIMIT_NOFILE, 3):
        details = refusal(single.stub, header("newer"), chunk(np.ones((3, DIMS))), commit(3))
        assert (details.code, bool(details.retry_after)) == (EXHAUSTED, True)
        with pytest.raises(grpc.RpcError) as caught:
            single.stub.Query(query(1_000), timeout=20)
        assert details_of(caught.value).code == EXHAUSTED
        single.server.kill("worker")
        single.await_workers(0)
        eventually(lambda: single.server.log.count("kernels are warm") == starts + 1, 30)
    single.await_workers(1)
    assert single.client.query("small", np.ones(DIMS)).generation == 1


def test_a_flood_is_cut_before_the_front_and_holds_up_nothing_else(tmp_path: Path) -> None:
    """Beyond --pending-calls gRPC ends queries as CANCELLED; administration waits elsewhere."""
    with serving(tmp_path, "--pending-calls", "1") as served:
        await_front(served.stub)
        with stopped(*served.server.pids("front")):
            flood = [served.stub.Query.future(query(), timeout=60) for _ in range(300)]
            info = served.stub.GetServerInfo.future(index_pb2.GetServerInfoRequest(), timeout=60)
        assert info.result().workers_ready
        codes = {call.code() for call in flood}
        assert codes == {grpc.StatusCode.OK, grpc.StatusCode.CANCELLED}


def test_calls_that_outlast_the_grace_are_in_the_log(tmp_path: Path) -> None:
    """Each has its access line, and none leaves a traceback."""
    with serving(tmp_path, "--workers", "1", "--grace", "0.1") as served:
        server = served.server
        with stopped(*server.pids("worker")):
            calls = [served.stub.Query.future(query(), timeout=60) for _ in range(3)]
            await_front(served.stub, 3)
            server.process.send_signal(signal.SIGTERM)
            codes = [call.code() for call in calls]
            server.process.wait(20)
        # gRPC itself ends a call that comes to a server which has stopped taking calls.
        count = codes.count(grpc.StatusCode.UNAVAILABLE)
        assert count > 0
        assert server.log.count('"CANCELLED"') == count
        assert "Traceback" not in server.log


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
