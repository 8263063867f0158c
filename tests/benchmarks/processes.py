"""Programs under measurement: started here, stopped here, their CPU time read from /proc."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_START_SECONDS = 60
_STOP_SECONDS = 15


@dataclass(frozen=True)
class Program:
    """A running program: where it listens, and its processes by role."""

    address: str
    roles: dict[str, tuple[int, ...]]

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time used so far, by role."""
        return {role: sum(map(cpu_seconds, pids)) for role, pids in self.roles.items()}


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process's threads, by the scheduler's own nanoseconds."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


@contextmanager
def echo(reply_bytes: int) -> Iterator[Program]:
    """Run the empty echo: it reads a request and answers with that many bytes."""
    command = [sys.executable, "-m", "benchmarks.echo", str(reply_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            yield Program(address, {"front": (process.pid,)})
        finally:
            _stop(process)


@contextmanager
def server(folder: Path, workers: int) -> Iterator[Program]:
    """Run divgrpc-server on the indexes in `folder`/data, its access log in `folder`/log."""
    ready = folder / "ready"
    command = [sys.executable, "-m", "divgrpc_server", "--listen", "127.0.0.1:0"]
    command += ["--data-dir", str(folder / "data"), "--ready-file", str(ready)]
    command += ["--workers", str(workers), "--fronts", "1", "--log-format", "json"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            address = _await_file(ready, process)
            yield Program(address, _roles(process.pid))
        finally:
            _stop(process)


def _await_file(path: Path, process: "subprocess.Popen[bytes]") -> str:
    """Return the text of a file once there is some; a server has no other way to tell its port."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and (text := path.read_text().strip()):
            return text
        time.sleep(0.02)
    raise RuntimeError("the server did not come up; its log says why")


def _roles(supervisor: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {"front": [], "worker": []}
    for pid in _descendants(supervisor):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
        for role, pids in found.items():
            if f"divgrpc-{role}" in command:
                pids.append(pid)
    if not all(found.values()):
        raise RuntimeError(f"expected fronts and workers, found {found}")
    return {role: tuple(pids) for role, pids in found.items()}


def _descendants(pid: int) -> Sequence[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The name before the last parenthesis may hold anything.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _stop(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, 9)
        process.wait()
