"""A server whose processes are killed by SIGKILL, and what they must not leave behind."""

import os
import random
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from divgrpc.doctor import check_folder
from support.processes.running_server import RunningServer, alive, eventually

# `server` is the supervisor alone, and `all` is every process in a random order.
VICTIMS: Final = (
    *("front", "worker", "writer", "builder", "evaluator", "forkserver", "server", "all"),
)
WORKERS: Final = 2
FRONTS: Final = 2
# Ports below those that Linux gives to connections, so that none of these takes the port of a
# server that starts again.
_PORTS: Final = range(20_000, 32_000)


class KilledServer:
    """A server that starts again on the same port whenever all of it is killed.

    restarts: seconds of each start from the command to SERVING.
    deaths: seconds until all other processes had ended, for each death of the supervisor alone.
    """

    def __init__(self, folder: Path, durability: str, draw: random.Random) -> None:
        self.folder, self._draw = folder, draw
        self._temporary = folder / "temporary"
        self._temporary.mkdir()
        self._durability = durability
        self.restarts: list[float] = []
        self.deaths: list[float] = []
        self._killed: set[int] = set()
        self._target = f"127.0.0.1:{_free_port(draw)}"
        self._server = self._start()

    @property
    def target(self) -> str:
        """host:port, the same after each start."""
        return self._target

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.folder / "data"

    def pids(self, role: str) -> list[int]:
        """Return the process ids of a role, oldest first; none while the server is down."""
        with suppress(OSError):
            return self._server.pids(role)
        return []

    def kill(self, victim: str, begin: Callable[[], object]) -> bool:
        """Kill a process of a role, the supervisor or all; return False if there is none.

        begin: called just before the signal.
        """
        if victim in ("server", "all"):
            begin()
            self._kill_server(with_children=victim == "all")
            return True
        pids = self.pids(victim)
        if pids:
            pid = self._draw.choice(pids)
            self._killed.add(pid)
            begin()
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
        return bool(pids)

    def is_whole(self, role: str) -> bool:
        """Tell whether there are as many processes of a role as there may be, none killed."""
        pids = self.pids(role)
        count = {"worker": WORKERS, "front": FRONTS}.get(role, min(len(pids), 1))
        return len(pids) == count and not self._killed & {*pids}

    def stop(self) -> list[str]:
        """Stop the server; return sentences about what it or its killed processes left behind."""
        processes = self._tree()
        code = self._server.stop()
        faults = [] if code == 0 else [f"the server ended with code {code}"]
        if living := [pid for pid in processes | self._killed if alive(pid)]:
            faults.append(f"processes are left: {living}")
        if names := sorted(os.listdir(self._temporary)):
            faults.append(f"temporary files are left: {names}")
        hidden = sorted(name for name in os.listdir(self.data) if name.startswith("."))
        if hidden != [".lock"]:
            faults.append(f"files are left in the data directory: {hidden}")
        reports = check_folder(self.data)
        bad_reports = [report for report in reports if report.verdict != "ok"]
        return faults + [f"{report.name}: {report.findings}" for report in bad_reports]

    def end(self) -> None:
        """Stop the server whatever its state."""
        self._server.stop()

    def _start(self) -> RunningServer:
        begin = time.monotonic()
        options = ("--data-dir", str(self.data), "--listen", self.target, "--no-access-log")
        counts = ("--workers", str(WORKERS), "--fronts", str(FRONTS))
        server = RunningServer(
            self.folder,
            *(*options, *counts, "--durability", self._durability),
            environment={"TMPDIR": str(self._temporary)},
        )
        # A server prints its address when it is SERVING.
        server.__enter__()
        self.restarts.append(time.monotonic() - begin)
        return server

    def _kill_server(self, *, with_children: bool) -> None:
        processes = self._tree()
        self._killed |= processes
        victims = list(processes) if with_children else [self._server.process.pid]
        self._draw.shuffle(victims)
        begin = time.monotonic()
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._server.stop()  # waits for the supervisor, and closes its output
        eventually(lambda: not any(map(alive, processes)), 20)
        if not with_children:
            self.deaths.append(time.monotonic() - begin)
        self._server = self._start()

    def _tree(self) -> set[int]:
        pid = self._server.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return {pid, *map(int, children)}


def await_process(server: KilledServer, role: str, is_over: Callable[[], bool]) -> bool:
    """Wait until there is a process of a role; return False if there is none when `is_over`."""
    while not server.pids(role):
        if is_over():
            return False
        time.sleep(0.002)
    return True


def _free_port(draw: random.Random) -> int:
    while True:
        port = draw.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
