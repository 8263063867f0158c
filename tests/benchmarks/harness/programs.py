"""Programs under measurement: start, end, CPU time, and memory as Linux reports it.

Private memory includes file pages that only one process maps. Linux may reclaim such pages. Memory
is therefore reported twice, with all private pages and without file pages. Without file pages,
heaps, stacks, memfds and /dev/shm remain.
"""

import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from support.processes.running_server import RunningServer

_INTERVAL_SECONDS: Final = 0.05
_STOP_SECONDS: Final = 15
_TESTS: Final = str(Path(__file__).parents[2])

# Bytes by kind of memory. "private" counts all private pages. "unbacked" leaves out file pages.
MemoryBytes: TypeAlias = "Counter[str]"
_KINDS: Final = {
    "Private_Clean": "private",
    "Private_Dirty": "private",
    "Pss_Anon": "unbacked",
    "Pss_Shmem": "unbacked",
}


def held(pid: int) -> MemoryBytes:
    """Return the memory of a process by kind; empty if the process has ended."""
    memory: MemoryBytes = Counter()
    # While a process ends, its file can be opened but not read.
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, size = line.partition(":")
            if name in _KINDS:
                memory[_KINDS[name]] += 1024 * int(size.split()[0])
    return memory


def held_by_family(pid: int) -> MemoryBytes:
    """Return the memory of a process and all its descendants by kind."""
    memory, queue = held(pid), [pid]
    while queue:
        with suppress(OSError):
            for task in Path(f"/proc/{queue.pop()}/task").iterdir():
                children = [int(child) for child in (task / "children").read_text().split()]
                memory += sum(map(held, children), Counter())
                queue += children
    return memory


@dataclass
class Watch:
    """Samples of the memory of a process and all its descendants."""

    first: MemoryBytes
    peak: MemoryBytes = field(default_factory=Counter)
    samples: int = 0

    def rise(self, kind: str) -> int:
        """Return by how many bytes of a kind the greatest sample exceeds the first one."""
        return self.peak[kind] - self.first[kind]


@contextmanager
def watching(pid: int) -> Iterator[Watch]:
    """Sample the memory of a process and all its descendants until the block ends."""
    watch, over = Watch(held_by_family(pid)), threading.Event()

    def sample() -> None:
        while not over.wait(_INTERVAL_SECONDS):
            watch.samples += 1
            watch.peak |= held_by_family(pid)  # the greater of both, kind by kind

    watcher = threading.Thread(target=sample)
    watcher.start()
    try:
        yield watch
    finally:
        over.set()
        watcher.join()


def mapped(pid: int, folder: Path) -> dict[str, int]:
    """Return Size, Rss and Pss in bytes, summed over the files in `folder` that a process maps."""
    total, inside = {"Size": 0, "Rss": 0, "Pss": 0}, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in total:
            total[name] += 1024 * int(rest.split()[0]) * inside
        elif "-" in name.split(" ")[0]:
            # The first line of each mapping has its addresses, permissions, offset, device, inode
            # and path.
            inside = f" {folder}/" in line
    return total


@dataclass(frozen=True)
class Program:
    """A running program: its address, process ids by role, and `find`, which reads them anew."""

    address: str
    roles: dict[str, tuple[int, ...]]
    find: Callable[[str], list[int]] = lambda _: []

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time that each role has used so far."""
        return {role: sum(map(cpu_seconds, pids)) for role, pids in self.roles.items()}


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process, from counters of nanoseconds."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end while its file is read.
        with suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


@contextmanager
def echo(reply_bytes: int) -> Iterator[Program]:
    with _service("echo", str(reply_bytes)) as (pid, address):
        yield Program(address, {"front": (pid,)})


@contextmanager
def fan_out(message_bytes: int, reply_bytes: int, shards: int) -> Iterator[Program]:
    """Run a service that asks `shards` echoes for each call."""
    with ExitStack() as stack:
        echoes = [stack.enter_context(echo(reply_bytes)) for _ in range(shards)]
        words = ("fan-out", str(message_bytes), *(one.address for one in echoes))
        pid, address = stack.enter_context(_service(*words))
        shard_pids = tuple(pid for one in echoes for pid in one.roles["front"])
        yield Program(address, {"router": (pid,), "shard": shard_pids})


@contextmanager
def by_hand(
    folder: Path, processes: int, *, ef: int, candidates: int, dial: float
) -> Iterator[Program]:
    """Run `processes` hand-written services on one port, with the files in `folder`."""
    options = ["--ef", str(ef), "--candidates", str(candidates), "--dial", str(dial)]
    with socket.socket() as port, ExitStack() as stack:
        # This socket only reserves the port. It does not listen, so Linux gives it no connections.
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port.bind(("127.0.0.1", 0))
        words = ("by-hand", str(folder), *options, "--port", str(port.getsockname()[1]))
        pids, addresses = zip(
            *(stack.enter_context(_service(*words)) for _ in range(processes)), strict=True
        )
        yield Program(addresses[0], {"service": pids})


@contextmanager
def server(folder: Path, workers: int, *more: str) -> Iterator[Program]:
    """Run divgrpc-server on `folder`/data with more options; its access log is in `folder`."""
    options = ["--data-dir", str(folder / "data"), "--workers", str(workers), "--fronts", "1"]
    with RunningServer(folder, *options, *more, "--log-format", "json") as running:
        roles = {role: tuple(running.pids(role)) for role in ("front", "worker")}
        yield Program(running.target, roles, running.pids)


@contextmanager
def _service(*words: str) -> Iterator[tuple[int, str]]:
    """Run a program of `services` with one BLAS thread, and yield its process id and address."""
    path = os.pathsep.join(filter(None, (_TESTS, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.harness.services", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
