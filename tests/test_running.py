"""What tests are run with: nothing waits for ever, nothing outlives them."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from support.running_server import alive, eventually, tied
from support.timeouts import alarm

ROOT = Path(__file__).parent.parent
_STARTS_A_SERVER = """
import sys
from pathlib import Path
from support.running_server import RunningServer
with RunningServer(Path(sys.argv[1]), "--workers", "1") as server:
    print(server.process.pid, *server.pids("front"), *server.pids("worker"), flush=True)
    sys.stdin.read()
"""


def test_hanging_tests_fail() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"after 0\.05 s"), alarm(0.05):
        threading.Event().wait(60)


def test_servers_die_with_whoever_started_them(tmp_path: Path) -> None:
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
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert told.stdout == "default_int_handler\n"
