"""The test harness: nothing waits for ever or outlives the tests, and skips are counted."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from support.checks.timeouts import alarm
from support.processes import toolchains
from support.processes.running_server import alive, eventually, tied

ROOT = Path(__file__).parent.parent
_STARTS_A_SERVER = """
import sys
from pathlib import Path
from support.processes.running_server import RunningServer
with RunningServer(Path(sys.argv[1]), "--workers", "1") as server:
    print(server.process.pid, *server.pids("front"), *server.pids("worker"), flush=True)
    sys.stdin.read()
"""


def test_hanging_tests_fail() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"after 0\.05 s"), alarm(0.05):
        threading.Event().wait(60)


def test_servers_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _STARTS_A_SERVER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        text=True,
    ) as starter:
        assert starter.stdout is not None
        pids = [int(pid) for pid in starter.stdout.readline().split()]
        starter.kill()
    assert len(pids) == 3
    eventually(lambda: not any(map(alive, pids)))


def test_interrupts_are_heard() -> None:
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        command = tied([sys.executable, "-c", "import signal; print(signal.getsignal(2).__name__)"])
        process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert process.stdout == "default_int_handler\n"


def test_a_missing_program_skips_and_is_named() -> None:
    toolchains.require("sh", "make")
    with pytest.raises(pytest.skip.Exception, match=r"missing toolchain no-such-program$"):
        toolchains.require("sh", "no-such-program")
    with pytest.raises(pytest.skip.Exception, match=r"missing toolchain node-modules: make it$"):
        toolchains.skip("node-modules", "make it")


@pytest.mark.parametrize(
    ("reasons", "line"),
    [
        ([], "0 tests skipped for a missing toolchain"),
        (["needs DIVGRPC_DATA"], "0 tests skipped for a missing toolchain"),
        (
            ["Skipped: missing toolchain node", "x", "Skipped: missing toolchain go: install it"],
            "2 tests skipped for a missing toolchain: go, node",
        ),
        (
            ["('f.py', 3, 'Skipped: missing toolchain protoc-gen-go')"] * 2,
            "2 tests skipped for a missing toolchain: protoc-gen-go",
        ),
    ],
)
def test_the_summary_counts_missing_toolchains(reasons: list[str], line: str) -> None:
    assert toolchains.summary(reasons) == line
