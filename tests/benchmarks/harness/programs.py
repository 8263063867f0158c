"""Programs under measurement: started here, stopped here, their CPU time read from /proc."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.running_server import RunningServer

_STOP_SECONDS: Final = 15
_TESTS: Final = str(Path(__file__).parents[2])


@dataclass(frozen=True)
class Program:
    """A running program: where it listens, and its processes by role.

    `find` returns the process ids of a role whose processes come and go.
    """

    address: str
    roles: dict[str, tuple[int, ...]]
    find: Callable[[str], list[int]] = lambda _: []

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time used so far, by role."""
        return {role: sum(map(cpu_seconds, pids)) for role, pids in self.roles.items()}


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process's threads, by the scheduler's own nanoseconds."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end meanwhile.
        with suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process has held at a time."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


@contextmanager
def echo(reply_bytes: int) -> Iterator[Program]:
    """Run the empty echo: it reads a request and answers with that many bytes."""
    command = [sys.executable, "-m", "benchmarks.harness.echo", str(reply_bytes)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=_environment()
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            yield Program(address, {"front": (process.pid,)})
        finally:
            _stop(process)


@contextmanager
def by_hand(
    folder: Path, processes: int, *, ef: int, fetched: int, dial: float
) -> Iterator[Program]:
    """Run as many of the services written by hand, on one port, with what `folder` holds."""
    options = ["--ef", str(ef), "--fetched", str(fetched), "--dial", str(dial)]
    command = [sys.executable, "-m", "benchmarks.rivals.by_hand", str(folder), *options]
    with socket.socket() as port, ExitStack() as stack:
        # Held, so that nobody else gets it; only who listens gets connections.
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port.bind(("127.0.0.1", 0))
        command += ["--port", str(port.getsockname()[1])]
        pids, address = [], ""
        for _ in range(processes):
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, env=_environment()
            )
            stack.callback(_stop, process)
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            pids.append(process.pid)
        yield Program(address, {"service": tuple(pids)})


@contextmanager
def server(folder: Path, workers: int, *more: str) -> Iterator[Program]:
    """Run divgrpc-server on the indexes in `folder`/data, its access log going to a file there.

    `more` are options of its command line.
    """
    options = ["--data-dir", str(folder / "data"), "--workers", str(workers), "--fronts", "1"]
    with RunningServer(folder, *options, *more, "--log-format", "json") as running:
        roles = {role: tuple(running.pids(role)) for role in ("front", "worker")}
        yield Program(running.target, roles, running.pids)


def _environment() -> dict[str, str]:
    """Return an environment in which `benchmarks` can be imported, with one thread of BLAS."""
    path = os.pathsep.join(filter(None, (_TESTS, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}


def _stop(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
