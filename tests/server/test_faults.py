"""The status of calls if workers die or hang, queues are full or resources run out."""

import asyncio
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from divgrpc import Index
from divgrpc_client import AsyncClient, Client
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import index_pb2, query_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.checks.status_details import code_of_failure, failure
from support.data.served_index import DIMS, place, random_points
from support.processes.running_server import RunningServer, alive, cpu_seconds, eventually
from support.requests.manual_uploads import Held, chunk, commit, header, refusal

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
DEADLINE = grpc.StatusCode.DEADLINE_EXCEEDED
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING


class Served(NamedTuple):
    """A server with an index `small`, and clients that are connected to it."""

    server: RunningServer
    stub: DiverseIndexStub
    client: Client

    def await_workers(self, count: int) -> None:
        """Wait until `count` workers are up."""
        eventually(lambda: self.client.server_info().workers_ready == count, 30)


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Served]:
    """Run a server with an index `small`."""
    data = folder / "data"
    Index.build(random_points(300), path=data / "small")
    with (
        RunningServer(folder, "--data-dir", str(data), *arguments) as server,
        server.channel() as channel,
        Client(server.target, timeout=30, retries=False) as client,
    ):
        yield Served(server, DiverseIndexStub(channel), client)


def fixtures_of(name: str, *arguments: str, workers: int = 1) -> tuple[Any, Any]:
    """Return two fixtures: a module's server, and this server after its workers have started."""

    @pytest.fixture(scope="module", name=f"{name}_server")
    def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
        folder = tmp_path_factory.mktemp(name)
        with serving(folder, "--workers", str(workers), *arguments) as service:
            yield service

    @pytest.fixture(name=name)
    def ready(request: pytest.FixtureRequest) -> Served:
        service: Served = request.getfixturevalue(f"{name}_server")
        service.await_workers(workers)
        return service

    return started, ready


pair_server, pair = fixtures_of("pair", workers=2)
single_server, single = fixtures_of("single", "--worker-wait", "0.1")
# Queries wait for a worker for long, because a busy machine may start one slowly.
strict_server, strict = fixtures_of(
    *("strict", "--worker-wait", "60", "--worker-silence", "1"),
    *("--queue-calls", "4", "--upload-idle", "0.3"),
)


def query(rows: int = 1, seed: int = 0) -> query_pb2.QueryRequest:
    points = random_points(rows, seed=seed)
    return query_pb2.QueryRequest(index="small", queries=encode_dense(points))


def long_batch() -> query_pb2.QueryRequest:
    """Return a batch that keeps a worker busy for minutes."""
    batch = query(rows=4_000)
    batch.selector, batch.k = query_pb2.SELECTOR_QP_RELAX, 50
    return batch


def computing(pids: Sequence[int]) -> int:
    """Return the id of the first of these processes that begins to compute."""
    before = {pid: cpu_seconds(pid) for pid in pids}
    busy: list[int] = []

    def looked() -> list[int]:
        busy.extend(pid for pid in pids if cpu_seconds(pid) > before[pid] + 0.2)
        return busy

    eventually(looked, 30)
    return busy[0]


def health(server: RunningServer) -> int:
    with server.channel() as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=30).status)


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
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
    soft, hard = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (limit, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, kind, (soft, hard))


def await_front(stub: DiverseIndexStub, calls: int = 1) -> None:
    """Wait until the front has received `calls` queries that the stub has sent.

    Queries wait in a queue of their own. For each call of another method, the front takes one query
    from this queue, so `calls` calls of GetServerInfo suffice.
    """
    for _ in range(calls):
        stub.GetServerInfo(index_pb2.GetServerInfoRequest(), timeout=30)


def asking(client: Client, stop: threading.Event) -> int:
    """Send queries until `stop` is set, and return how many were sent. Any failure is raised."""
    calls = 0
    rng = np.random.default_rng(threading.get_ident() % 1000)
    while not stop.is_set():
        rows = 40 if calls % 10 == 0 else 1
        client.query("small", rng.standard_normal((rows, DIMS)))
        calls += 1
    return calls


def kill_worker(pair: Served, position: int) -> None:
    """Kill a worker and wait until it is gone; its successor may be ready just as soon."""
    pid = pair.server.kill("worker", position)
    eventually(lambda: pid not in pair.server.pids("worker"))


def test_killing_one_of_two_workers_fails_no_call(pair: Served) -> None:
    """No call fails although the client does not retry."""
    stop = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        loads = [threads.submit(asking, pair.client, stop) for _ in range(2)]
        try:
            for turn in range(2):
                pair.await_workers(2)
                time.sleep(0.5)
                kill_worker(pair, turn)
            pair.await_workers(2)
            time.sleep(0.5)
        finally:
            stop.set()
        assert sum(load.result() for load in loads) > 100


def test_a_query_that_ends_workers_is_tried_twice(pair: Served) -> None:
    """After the second worker's death the call is UNAVAILABLE, and the query is refused later."""
    guilty = long_batch()
    call = pair.stub.Query.future(guilty, timeout=60)
    workers = pair.server.pids("worker")
    for _ in range(2):
        victim = computing(workers)
        os.kill(victim, signal.SIGKILL)
        workers.remove(victim)
    details = failure(call.result)
    assert details.code == UNAVAILABLE
    assert details.retry_after
    pair.await_workers(2)
    details = failure(pair.stub.Query, guilty, timeout=10)
    assert (details.code, details.reason) == (grpc.StatusCode.INTERNAL, "ENDS_WORKERS")
    assert len(pair.stub.Query(query(), timeout=10).ids) == 10


def test_a_truncated_file_costs_at_most_one_worker(pair: Served) -> None:
    """Other workers check the files before they retry the call; all calls end as DATA_LOSS."""
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
        assert failure(pair.stub.Query, batch, timeout=20).code == grpc.StatusCode.DATA_LOSS
    assert pair.server.log.count("worker lost") <= deaths + 1
    assert pair.client.build("cut", random_points(50), replace=True).generation == 2
    assert pair.client.query("cut", np.ones(DIMS)).generation == 2


def test_a_worker_that_hangs_is_replaced(strict: Served) -> None:
    """A call ends at its deadline; one with a later deadline is answered by the new worker."""
    (hanging,) = strict.server.pids("worker")
    with stopped(hanging):
        patient = strict.stub.Query.future(query(), timeout=60)
        assert code_of_failure(strict.stub.Query, query(seed=1), timeout=0.3) == DEADLINE
        assert len(patient.result().ids) == 10
        assert not alive(hanging)
    assert strict.server.pids("worker") != [hanging]


def test_a_full_queue_refuses_queries(strict: Served) -> None:
    """The query is refused as RESOURCE_EXHAUSTED with a retry delay, and other services answer."""
    with stopped(*strict.server.pids("worker")):
        calls = [strict.stub.Query.future(query(seed=seed), timeout=60) for seed in range(4)]
        await_front(strict.stub, 4)
        details = failure(strict.stub.Query, query(seed=9), timeout=10)
        assert (details.code, details.reason) == (RESOURCE_EXHAUSTED, "QUEUE_FULL")
        assert details.retry_after
        assert health(strict.server) == SERVING
    for call in calls:
        assert len(call.result().ids) == 10


def test_a_full_queue_slows_a_stream_down(strict: Served) -> None:
    """Every query of a stream is answered, though the queue holds fewer calls than the window."""
    messages = (
        query_pb2.QueryStreamRequest(correlation_id=number, query=query(seed=number))
        for number in range(64)
    )
    with stopped(*strict.server.pids("worker")):
        answers = strict.stub.QueryStream(messages, timeout=60)
        await_front(strict.stub, 2)
        unary = strict.stub.Query.future(query(), timeout=60)
        await_front(strict.stub, 3)
    responses = list(answers)
    assert sorted(response.correlation_id for response in responses) == list(range(64))
    assert all(response.HasField("response") for response in responses)
    assert len(unary.result().ids) == 10


def test_an_idle_upload_is_ended(strict: Served) -> None:
    """After `--upload-idle` seconds the call is DEADLINE_EXCEEDED and leaves no file."""
    folder, upload = strict.server.folder / "data", Held(strict.stub, "still")
    upload.send(chunk(np.ones((3, DIMS))))
    eventually(lambda: set(os.listdir(folder)) > {".lock", "small"})
    assert failure(list, upload.call).code == DEADLINE
    eventually(lambda: set(os.listdir(folder)) == {".lock", "small"})


def test_a_server_without_workers_is_unhealthy(single: Served) -> None:
    """Without workers health is NOT_SERVING, and queries wait for a moment before UNAVAILABLE."""
    # Without the fork server, a new worker takes seconds.
    single.server.kill("forkserver")
    single.server.kill("worker")
    eventually(lambda: health(single.server) == NOT_SERVING)
    details = failure(single.stub.Query, query(), timeout=10)
    assert (details.code, bool(details.retry_after)) == (UNAVAILABLE, True)
    assert not single.client.server_info().workers_ready
    eventually(lambda: health(single.server) == SERVING, 30)
    assert len(single.stub.Query(query(), timeout=10).ids) == 10


def test_a_long_batch_does_not_refuse_small_queries(single: Served) -> None:
    """A batch occupies the only worker, while single queries arrive 0.4 seconds apart."""
    whole = single.stub.Query.future(long_batch(), timeout=4)
    refusals = []
    while not whole.done():
        call = single.stub.Query.future(query(), timeout=0.5)
        refusals += [call] if call.code() == RESOURCE_EXHAUSTED else []
        time.sleep(0.4)
    assert not refusals
    assert whole.code() == DEADLINE


def test_a_full_disk_ends_a_build(single: Served) -> None:
    """The build is RESOURCE_EXHAUSTED and leaves no file; the old generation is still served."""
    # No file of a builder, which is forked from this process, may grow beyond this size. This has
    # the same effect as a full disk.
    with limited(single.server.pids("forkserver")[0], resource.RLIMIT_FSIZE, 200_000):
        chunks = [chunk(random_points(1_000)) for _ in range(5)]
        details = refusal(single.stub, header("small", replace=True), *chunks, commit(5_000))
    assert (details.code, details.reason) == (RESOURCE_EXHAUSTED, "STORAGE_FULL")
    assert single.client.query("small", np.ones(DIMS)).generation == 1
    eventually(lambda: not list((single.server.folder / "data").glob(".small*")))


def test_a_supervisor_without_descriptors(single: Served) -> None:
    """Until descriptors are free again, the supervisor refuses builds and starts no process."""
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
    """The front refuses calls that need descriptors, and connects to its workers again later."""
    await_front(single.stub)
    starts = single.server.log.count("kernels are warm")
    with limited(single.server.pids("front")[0], resource.RLIMIT_NOFILE, 3):
        details = refusal(single.stub, header("newer"), chunk(np.ones((3, DIMS))), commit(3))
        assert (details.code, bool(details.retry_after)) == (RESOURCE_EXHAUSTED, True)
        assert failure(single.stub.Query, query(1_000), timeout=20).code == RESOURCE_EXHAUSTED
        single.server.kill("worker")
        single.await_workers(0)
        eventually(lambda: single.server.log.count("kernels are warm") == starts + 1, 30)
    single.await_workers(1)
    assert single.client.query("small", np.ones(DIMS)).generation == 1


def test_excess_queries_are_cancelled_and_do_not_delay_other_methods(tmp_path: Path) -> None:
    """If more than --pending-calls queries are pending, gRPC itself ends queries as CANCELLED."""
    with serving(tmp_path, "--pending-calls", "1") as service:
        await_front(service.stub)
        with stopped(*service.server.pids("front")):
            flood = [service.stub.Query.future(query(), timeout=60) for _ in range(300)]
            info = service.stub.GetServerInfo.future(index_pb2.GetServerInfoRequest(), timeout=60)
        assert info.result().workers_ready
        codes = {call.code() for call in flood}
        assert codes == {grpc.StatusCode.OK, grpc.StatusCode.CANCELLED}


def test_a_burst_of_a_client_is_answered(tmp_path: Path) -> None:
    """The calls that gRPC would end as CANCELLED wait in the client."""

    async def scene(target: str) -> None:
        async with AsyncClient(target, timeout=60, retries=False) as client:
            row = np.ones(DIMS)
            results = await asyncio.gather(*(client.query("small", row) for _ in range(500)))
            assert {result.generation for result in results} == {1}

    with serving(tmp_path, "--workers", "1") as service:
        asyncio.run(scene(service.server.target))


def test_calls_that_outlast_the_grace_are_in_the_log(tmp_path: Path) -> None:
    """Each call that is ended after the grace period has an access line, but no traceback."""
    with serving(tmp_path, "--workers", "1", "--grace", "0.1") as service:
        server = service.server
        with stopped(*server.pids("worker")):
            calls = [service.stub.Query.future(query(), timeout=60) for _ in range(3)]
            await_front(service.stub, 3)
            server.process.send_signal(signal.SIGTERM)
            codes = [call.code() for call in calls]
            server.process.wait(20)
        # If a call arrives after the server has stopped taking calls, gRPC ends it and it is not
        # logged.
        count = codes.count(grpc.StatusCode.UNAVAILABLE)
        assert count > 0
        assert server.log.count('"CANCELLED"') == count
        assert "Traceback" not in server.log


def test_descriptors_do_not_leak(server: RunningServer, client: Client) -> None:
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
