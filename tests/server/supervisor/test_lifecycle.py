"""How servers start, replace their processes and end."""

import fcntl
import os
import queue
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from divgrpc import Index
from divgrpc.doctor import check_folder
from divgrpc.errors import UnavailableError
from divgrpc.kernels import cache_files
from divgrpc_client import Client
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import index_pb2, query_pb2, writes_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.checks.status_details import code_of_failure
from support.data.served_index import DIMS, random_points
from support.processes.running_server import STOP_SECONDS, RunningServer, alive, eventually
from support.requests.manual_uploads import Held, chunk

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
QUERY = query_pb2.QueryRequest(index="kept", queries=encode_dense(np.ones((1, DIMS), np.float32)))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    Index.build(random_points(100), path=tmp_path / "data" / "kept")
    return tmp_path / "data"


def all_processes(server: RunningServer) -> list[int]:
    roles = [server.pids(role) for role in ("front", "worker", "builder")]
    return [server.process.pid, *(pid for pids in roles for pid in pids)]


@contextmanager
def serving(data: Path, *arguments: str) -> Iterator[tuple[RunningServer, DiverseIndexStub]]:
    """Run a server with this data folder, and yield it with a stub."""
    options = ("--data-dir", str(data), *arguments)
    with RunningServer(data.parent, *options) as server, server.channel() as channel:
        yield server, DiverseIndexStub(channel)


def run_to_its_end(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a server that must fail to start, and return its exit code and output."""
    return subprocess.run(
        [sys.executable, "-m", "divgrpc_server", "--listen", "127.0.0.1:0", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def embedded_folders(server: RunningServer) -> list[Path]:
    words = server.log.replace('"', " ").split()
    return [Path(word) for word in words if "/divgrpc-" in word]


def test_processes_that_read_messages_keep_freed_memory(tmp_path: Path, data: Path) -> None:
    """A limit of the allocator that the operator sets stays."""
    environment = {"MALLOC_TRIM_THRESHOLD_": "1048576"}
    with RunningServer(tmp_path, "--data-dir", str(data), environment=environment) as server:
        for pid in (*server.pids("front"), *server.pids("worker")):
            variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
            assert "MALLOC_TRIM_THRESHOLD_=1048576" in variables
            assert f"MALLOC_MMAP_THRESHOLD_={16 << 20}" in variables


def test_health_reports_compiled_kernels(tmp_path: Path, data: Path) -> None:
    """While kernels are compiled, health is NOT_SERVING and tells how many are ready.

    The test holds the lock of the kernel cache and writes a file to it, so that to the server it
    looks like another process that compiles kernels.
    """
    folder = tmp_path / "cache" / cache_files.cache_folder().name
    folder.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    target = f"127.0.0.1:{port}"
    arguments = ("--data-dir", str(data), "--listen", target)
    environment = {"DIVGRPC_KERNEL_CACHE": str(folder.parent)}
    with (folder / "lock").open("ab") as lock, grpc.insecure_channel(target) as channel:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = RunningServer(tmp_path, *arguments, environment=environment)
        health = health_pb2_grpc.HealthStub(channel)

        def trailers() -> dict[str, str]:
            answer, call = health.Check.with_call(
                health_pb2.HealthCheckRequest(), timeout=30, wait_for_ready=True
            )
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
            return {key: str(value) for key, value in call.trailing_metadata()}

        total = str(len(cache_files.kernel_names()))
        expected = {"divgrpc-kernels-compiled": "0", "divgrpc-kernels-total": total}
        try:
            eventually(lambda: trailers().items() >= expected.items(), 60)
            name = min(cache_files.kernel_names())
            (folder / cache_files.file_name(name, "any")).touch()
            expected["divgrpc-kernels-compiled"] = "1"
            eventually(lambda: trailers().items() >= expected.items())
            info = DiverseIndexStub(channel).GetServerInfo(
                index_pb2.GetServerInfoRequest(), timeout=10
            )
            assert (info.kernels_compiled, info.kernels_total) == (1, int(total))
        finally:
            server.stop()


def test_roles_are_processes_and_fronts_share_the_port(data: Path) -> None:
    """If a front is killed, another front serves its calls."""
    with serving(data, "--workers", "2", "--fronts", "2") as (server, stub):
        workers = server.pids("worker")
        assert (len(server.pids("front")), len(workers)) == (2, 2)
        upload = Held(stub, "other")
        assert len(server.pids("builder")) == 1
        upload.call.cancel()
        pid = server.kill("front")
        eventually(lambda: len(server.pids("front")) == 2 and pid not in server.pids("front"))
        for _ in range(8):
            with Client(server.target, timeout=30) as client:
                assert client.query("kept", np.ones(DIMS)).counts[0] == 10
        assert server.pids("worker") == workers


def test_the_port_and_the_data_folder_belong_to_one_server(data: Path) -> None:
    """A second server does not start; a front that is replaced uses the same port and workers."""
    with serving(data) as (server, _), Client(server.target, timeout=30) as client:
        second = run_to_its_end("--data-dir", str(data))
        assert second.returncode == 1
        assert "a server or `divgrpc doctor` uses this data folder: stop it first" in second.stderr
        same_port = run_to_its_end("--listen", server.target)
        assert same_port.returncode == 1
        assert "cannot listen" in same_port.stderr
        workers = server.pids("worker")
        server.kill("front")
        client.wait_until_ready(timeout=30)
        assert client.query("kept", np.ones(DIMS)).generation == 1
        assert server.pids("worker") == workers


def test_an_index_that_lost_its_pointer_is_kept(data: Path) -> None:
    """A server that starts names it once, and the doctor repairs it."""
    (data / "kept" / "CURRENT").unlink()
    with serving(data, "--workers", "1") as (server, stub):
        assert code_of_failure(lambda: stub.Query(QUERY, timeout=60)) == grpc.StatusCode.NOT_FOUND
        upload = Held(stub, "other")
        server.kill("builder")
        upload.call.cancel()
        eventually(lambda: not server.pids("builder"))
        assert server.log.count("divgrpc doctor --repair") == 1
    (report,) = check_folder(data, repair=True)
    assert report.verdict == "ok"
    assert Index.open(data / "kept").rows == 100


def test_sigterm_lets_calls_finish(data: Path) -> None:
    """After SIGTERM health is NOT_SERVING, new calls fail, and running calls finish."""
    with serving(data, "--workers", "1") as (server, stub), server.channel() as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        (worker,) = server.pids("worker")
        os.kill(worker, signal.SIGSTOP)
        call = stub.Query.future(QUERY, timeout=60)
        stub.GetServerInfo(index_pb2.GetServerInfoRequest(), timeout=10)
        server.terminate()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with server.channel() as late:
            assert code_of_failure(DiverseIndexStub(late).Query, QUERY, timeout=10) == UNAVAILABLE
        os.kill(worker, signal.SIGCONT)
        assert len(call.result().ids) == 10
        watch.cancel()
        assert server.process.wait(STOP_SECONDS) == 0


def test_calls_builds_and_hanging_workers_end_after_the_grace(data: Path) -> None:
    with serving(data, "--workers", "1", "--grace", "0.2") as (server, stub):
        upload = Held(stub, "unfinished")
        upload.send(chunk(np.ones((3, DIMS))))
        os.kill(server.pids("worker")[0], signal.SIGSTOP)
        call = stub.Query.future(QUERY, timeout=60)
        stub.GetServerInfo(index_pb2.GetServerInfoRequest(), timeout=10)
        everyone = all_processes(server)
        server.terminate()
        code_of_failure(call.result)
        code_of_failure(list, upload.call)
        assert server.process.wait(STOP_SECONDS) == 0
        assert not any(map(alive, everyone))
    assert set(os.listdir(data)) == {".lock", "kept"}


@pytest.mark.parametrize("method", ["QueryStream", "WriteStream"])
def test_a_stream_ends_when_the_server_does(data: Path, method: str) -> None:
    """An idle stream ends as UNAVAILABLE and does not delay the server's end."""
    with serving(data, "--grace", "30") as (server, stub):
        stream: Iterator[object] = (
            open_stream(stub) if method == "QueryStream" else open_write_stream(stub)
        )
        server.terminate()
        assert code_of_failure(next, stream) == UNAVAILABLE
        assert server.process.wait(STOP_SECONDS) == 0


def open_stream(stub: DiverseIndexStub) -> Iterator[query_pb2.QueryStreamResponse]:
    """Return an idle QueryStream whose only query has been answered."""
    steps: queue.SimpleQueue[query_pb2.QueryStreamRequest] = queue.SimpleQueue()
    steps.put(query_pb2.QueryStreamRequest(correlation_id=1, query=QUERY))
    call = stub.QueryStream(iter(steps.get, None), timeout=60)
    assert next(call).correlation_id == 1
    return call


def open_write_stream(stub: DiverseIndexStub) -> Iterator[writes_pb2.WriteStreamResponse]:
    """Return an idle WriteStream whose only write has been made."""
    steps: queue.SimpleQueue[writes_pb2.WriteStreamRequest] = queue.SimpleQueue()
    delete = writes_pb2.DeleteRequest(index="kept", ids=[1])
    steps.put(writes_pb2.WriteStreamRequest(correlation_id=1, delete=delete))
    call = stub.WriteStream(iter(steps.get, None), timeout=60)
    assert next(call).delete.rows == 1
    return call


def _quiet_address() -> str:
    """Return a free address that the system gives to no connection of another test."""
    for port in random.sample(range(20_000, 30_000), 100):
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return f"127.0.0.1:{port}"
    raise AssertionError("no port is free")


def test_a_killed_supervisor_leaves_no_process(data: Path) -> None:
    """All children end, even stopped ones; the port is free; the next start removes old files."""
    with serving(data, "--workers", "2", "--listen", _quiet_address()) as (server, stub):
        upload = Held(stub, "unfinished")
        upload.send(chunk(np.ones((3, DIMS))))
        everyone = all_processes(server)
        os.kill(server.pids("worker")[0], signal.SIGSTOP)
        server.process.kill()
        eventually(lambda: not any(map(alive, everyone)))
        port = int(server.target.rpartition(":")[2])
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    with serving(data) as (server, _), Client(server.target, timeout=30) as client:
        assert set(os.listdir(data)) == {".lock", "kept"}
        assert client.query("kept", np.ones(DIMS)).generation == 1


def test_indexes_in_memory_end_with_the_server(tmp_path: Path) -> None:
    """Without a data folder, indexes are in memory, as the log says, and end with the server.

    The ready file has the server's address, until the server stops.
    """
    ready = tmp_path / "ready"
    with (
        RunningServer(tmp_path, "--ready-file", str(ready)) as server,
        Client(server.target, timeout=30, retries=False) as client,
    ):
        assert ready.read_text() == f"{server.target}\n"
        assert "memory only" in server.log
        assert not client.server_info().durable
        client.build("kept", random_points(50))
        assert client.query("kept", np.ones(DIMS)).generation == 1
        (folder,) = embedded_folders(server)
        assert folder.is_dir()
        assert server.stop() == 0
        assert not folder.exists()
        assert not ready.exists()
        with pytest.raises(UnavailableError):
            client.list_indexes()


def test_the_folder_of_a_killed_server_is_removed(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as first_server:
        (first_folder,) = embedded_folders(first_server)
        first_server.process.kill()
        first_server.process.wait()
        assert first_folder.is_dir()
    second, third = tmp_path / "second", tmp_path / "third"
    second.mkdir()
    third.mkdir()
    with RunningServer(second) as living:
        assert not first_folder.exists()
        with RunningServer(third):
            (folder,) = embedded_folders(living)
            assert folder.is_dir()


def test_a_server_whose_children_cannot_start_gives_up(tmp_path: Path) -> None:
    """The server logs the reason and exits with code 1."""
    broken = tmp_path / "broken" / "numba"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no compiler here')\n")
    process = run_to_its_end(PYTHONPATH=str(broken.parent))
    assert process.returncode == 1
    assert "giving up" in process.stderr
    assert "no compiler here" in process.stderr
    assert "serving" not in process.stdout
