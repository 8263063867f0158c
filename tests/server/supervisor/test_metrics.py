"""The metrics of a server, and the probes beside them."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc.errors import DivgrpcError
from divgrpc_client import Client
from divgrpc_server.monitoring.definitions import BY_NAME, METRICS
from divgrpc_server.supervisor.monitor import State
from support.data.served_index import DIMS, place, random_points
from support.processes import scrapes
from support.processes.running_server import RunningServer, eventually
from support.processes.scrapes import Scrape, fetch, metrics_address

ROWS = random_points(300)
STATE = State(
    has_served=True,
    is_stopping=False,
    fronts_ready=1,
    fronts=1,
    workers_ready=2,
    workers=2,
    kernels_compiled=9,
    kernels=9,
)


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run a server with metrics and an index `counted`."""
    folder = tmp_path_factory.mktemp("metered")
    options = ("--data-dir", str(folder / "data"), "--workers", "2", *scrapes.METRICS)
    with RunningServer(folder, *options) as server:
        place(server, "counted", ROWS)
        yield server


@pytest.fixture(scope="module")
def address(metered: RunningServer) -> str:
    return metrics_address(metered)


def test_calls_queries_and_refusals_are_counted(metered: RunningServer, address: str) -> None:
    before = Scrape(address)
    with Client(metered.target) as client:
        for _ in range(7):
            client.query("counted", ROWS[:3])
        with pytest.raises(DivgrpcError):
            client.query("nobody", ROWS[:1])
    after = Scrape(address)

    def growth(name: str, **labels: str) -> float:
        return after.value(name, **labels) - before.value(name, **labels)

    assert growth("divgrpc_calls_total", method="Query", code="OK") == 7
    assert growth("divgrpc_calls_total", method="Query", code="NOT_FOUND") == 1
    assert growth("divgrpc_refusals_total", reason="INDEX_NOT_FOUND") == 1
    assert growth("divgrpc_call_seconds_count", method="Query") == 8
    assert growth("divgrpc_queries_total", index="counted") == 7
    assert growth("divgrpc_query_rows_total", index="counted") == 21
    assert growth("divgrpc_queue_seconds_count", target="worker") == 8
    assert growth("divgrpc_processing_seconds_count", target="worker") == 8
    # The first part of a call is its wait, and another is the work.
    assert growth("divgrpc_processing_seconds_sum", target="worker") > 0
    assert growth("divgrpc_processing_seconds_sum", target="worker") < growth(
        "divgrpc_call_seconds_sum", method="Query"
    )
    assert after.value("divgrpc_calls_in_flight", method="Query") == 0
    assert "nobody" not in after.text


def test_writes_merges_and_builds_are_counted(metered: RunningServer, address: str) -> None:
    with Client(metered.target) as client:
        client.build("written", ROWS)
        client.upsert("written", [1, 900, 901], ROWS[:3])
        scrape = Scrape(address)
        assert scrape.value("divgrpc_index_points", index="written", state="delta") == 3
        client.delete("written", [901])
        client.compact("written", vacuum=True)
        client.upsert("written", [902], ROWS[:1])
        client.retrain("written")
        scrape = Scrape(address)
        info = client.get_index("written")
    assert scrape.value("divgrpc_writes_total", index="written") == 3
    assert scrape.value("divgrpc_written_rows_total", index="written") == 5
    assert scrape.value("divgrpc_vacuums_total", index="written") == 1
    assert scrape.value("divgrpc_retrains_total", index="written") == 1
    assert scrape.value("divgrpc_index_generation", index="written") == info.generation == 3
    assert scrape.value("divgrpc_index_points", index="written", state="live") == 302
    assert scrape.value("divgrpc_build_stage_seconds_count", stage="hashing") >= 2
    assert scrape.value("divgrpc_builds_in_stage", stage="hashing") == 0
    assert scrape.value("divgrpc_data_bytes") > 0


def test_a_merge_is_counted_with_its_duration(metered: RunningServer, address: str) -> None:
    with Client(metered.target) as client:
        client.build("merged", ROWS)
        client.upsert("merged", [900], ROWS[:1])
        client.compact("merged")
    scrape = Scrape(address)
    assert scrape.value("divgrpc_merges_total", index="merged") == 1
    assert 0 < scrape.value("divgrpc_last_merge_seconds", index="merged") < 60


def test_counters_of_a_killed_worker_are_kept(metered: RunningServer, address: str) -> None:
    """No counter falls, also while the worker is replaced."""
    with Client(metered.target) as client:
        for _ in range(20):
            client.query("counted", ROWS[:1])
        before = Scrape(address)
        ended = before.value("divgrpc_processes_ended_total", role="worker", exit="signal")
        metered.kill("worker")
        scrape, last = Scrape(address), before
        while scrape.value("divgrpc_processes_ended_total", role="worker", exit="signal") == ended:
            last, scrape = scrape, Scrape(address)
            falls = {key for key, n in last.counters().items() if scrape.counters()[key] < n}
            assert falls == set()
    falls = {key for key, n in before.counters().items() if scrape.counters()[key] < n}
    assert falls == set()
    queries = scrape.value("divgrpc_queries_total", index="counted")
    assert queries == before.value("divgrpc_queries_total", index="counted") >= 20
    eventually(lambda: Scrape(address).value("divgrpc_workers_ready") == 2)


def test_a_scrape_has_every_metric_and_no_other(address: str) -> None:
    families = {family.name: family for family in Scrape(address).families}
    assert set(families) == {metric.name.removesuffix("_total") for metric in METRICS}
    for metric in METRICS:
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        assert labels in (set(), set(metric.labels)), metric.name


def test_processes_are_measured_by_role(metered: RunningServer, address: str) -> None:
    scrape = Scrape(address)
    for role in ("supervisor", "front", "forkserver", "worker"):
        private = scrape.value("divgrpc_resident_memory_bytes", role=role, kind="private")
        assert private > 5_000_000
        # A worker that was just forked has used less than Linux counts.
        seconds = scrape.value("divgrpc_cpu_seconds_total", role=role)
        assert seconds > 0 or (role, seconds) == ("worker", 0)
        assert scrape.value("divgrpc_open_descriptors", role=role) > 3
        assert scrape.value("divgrpc_threads", role=role) >= 1
    assert scrape.value("divgrpc_processes", role="worker") == len(metered.pids("worker")) == 2


def test_the_supervisor_still_loads_neither_grpc_nor_a_compiler(
    metered: RunningServer, address: str
) -> None:
    assert fetch(address, "/metrics").code == 200
    maps = Path(f"/proc/{metered.process.pid}/maps").read_text()
    assert "/site-packages/numpy/" in maps
    libraries = ("grpc", "llvmlite", "numba", "scipy")
    assert [name for name in libraries if f"/site-packages/{name}/" in maps] == []


def test_openmetrics_is_served_on_request(address: str) -> None:
    response = fetch(address, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert response.content_type.startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")


def test_requests_that_are_not_for_this_port_get_an_answer(address: str) -> None:
    assert fetch(address, "/").code == 404
    assert fetch(address, "/metrics?name=x").code == 200
    host, port = address.rsplit(":", 1)
    for request, expected in (
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 405"),
        (b"HEAD /livez HTTP/1.1\r\n\r\n", b"HTTP/1.1 200"),
        (b"\x16\x03\x01\r\n\r\n", b"HTTP/1.1 405"),
        (b"GET /" + b"x" * 40_000, b""),
    ):
        with socket.create_connection((host, int(port)), timeout=20) as link:
            link.sendall(request)
            link.shutdown(socket.SHUT_WR)
            received = b""
            try:
                while part := link.recv(65536):
                    received += part
            except ConnectionResetError:
                pass
        assert received[:12] == expected
    assert fetch(address, "/livez") == (200, "ok\n", "text/plain; charset=utf-8")


def test_probes_of_a_server_that_is_ready(address: str) -> None:
    for path in ("/livez", "/readyz", "/startupz"):
        assert fetch(address, path)[:2] == (200, "ok\n")


@pytest.mark.parametrize(
    ("changes", "not_started", "not_ready"),
    [
        ({}, "", ""),
        (
            {"has_served": False, "kernels_compiled": 4},
            "starting: 4 of 9 kernels are compiled, which is done once",
            None,
        ),
        (
            {"has_served": False, "workers_ready": 1},
            "starting: 1 of 2 workers and 1 of 1 fronts are ready",
            None,
        ),
        ({"workers_ready": 0}, "", "no worker is up"),
        ({"fronts_ready": 0}, "", "no front is up"),
        ({"is_stopping": True}, "", "the server is stopping"),
    ],
)
def test_a_probe_says_why_not(
    changes: dict[str, Any], not_started: str, not_ready: str | None
) -> None:
    """A server that has not started is not ready either, for the same reason."""
    state = STATE._replace(**changes)
    assert state.why_not_started() == not_started
    assert state.why_not_ready() == (not_started if not_ready is None else not_ready)


def test_readiness_is_told_from_liveness(tmp_path: Path) -> None:
    """Without a worker the server is alive and started, and not ready."""
    with RunningServer(tmp_path, "--workers", "1", *scrapes.METRICS) as server:
        address = metrics_address(server)
        # Without the fork server, a new worker takes seconds.
        server.kill("forkserver")
        server.kill("worker")
        eventually(lambda: fetch(address, "/readyz").code == 503)
        assert fetch(address, "/livez").code == 200
        assert fetch(address, "/startupz").code == 200
        eventually(lambda: fetch(address, "/readyz").code == 200)


def test_a_port_in_use_ends_the_start_before_anything_is_done(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        command = [sys.executable, "-m", "divgrpc_server", "--listen", "127.0.0.1:0"]
        options = ("--data-dir", str(tmp_path / "data"), "--metrics", f"127.0.0.1:{port}")
        ended = subprocess.run(
            [*command, *options, "--log-format", "json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert f"cannot serve metrics on 127.0.0.1:{port}: " in line
    assert not (tmp_path / "data").exists()


def test_without_the_option_nothing_listens_and_nothing_is_counted(tmp_path: Path) -> None:
    with RunningServer(tmp_path, "--workers", "1") as server:
        assert "metrics" not in server.log
        for role in ("front", "worker"):
            (pid,) = server.pids(role)
            assert "divgrpc-metrics" not in Path(f"/proc/{pid}/maps").read_text()


def test_gauges_exist_for_a_server_without_indexes(tmp_path: Path) -> None:
    with RunningServer(tmp_path, "--workers", "1", *scrapes.METRICS) as server:
        scrape = Scrape(metrics_address(server))
    assert scrape.value("divgrpc_ready") == 1
    assert scrape.value("divgrpc_kernels") == scrape.value("divgrpc_kernels_compiled") > 0
    assert 'divgrpc_processes_ended_total{exit="signal",role="worker"} 0.0' in scrape.text
    assert "divgrpc_index_generation" in BY_NAME
    assert "divgrpc_index_generation{" not in scrape.text


def test_a_damaged_index_is_counted_and_hides_no_other(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with RunningServer(tmp_path, "--data-dir", str(data), *scrapes.METRICS) as server:
        place(server, "whole", np.eye(DIMS, dtype=np.float32))
        place(server, "broken", np.eye(DIMS, dtype=np.float32))
        (data / "broken" / "CURRENT").write_text("nonsense")
        scrape = Scrape(metrics_address(server))
    assert scrape.value("divgrpc_indexes_damaged") == 1
    assert scrape.value("divgrpc_index_points", index="whole", state="live") == DIMS
