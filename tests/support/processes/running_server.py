"""A real server for tests, started as users start it and observed from outside."""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

# One front by default, so that tests do the same on machines of any size.
_COMMON = ("--listen", "127.0.0.1:0", "--fronts", "1")
START_SECONDS = 120.0  # a first start compiles every kernel
STOP_SECONDS = 20.0
# A script that replaces itself with a program (`exec`). Linux kills the program if its parent dies.
# SIGINT works even if a shell runs the tests in the background with SIGINT ignored.
_TIE = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    sys.exit("whoever started this is gone")
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[2], sys.argv[2:])
"""


def tied(command: Sequence[str]) -> list[str]:
    """Return a command that runs `command`, dies with its parent and obeys Ctrl-C."""
    return [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), *command]


class RunningServer:
    """A context manager that runs `divgrpc-server` on a free port and logs to `folder`."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        python: str | Path = sys.executable,
        inside: Callable[[Sequence[str]], list[str]] = list,
    ) -> None:
        """Start the server; `inside` returns the command that runs a command on another host."""
        self.folder = folder
        self._log_path = folder / "server.log"
        command = [str(python), "-m", "divgrpc_server", *_COMMON, *arguments]
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                tied(inside(command)),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **(environment or {})},
            )
        self.target = ""

    def __enter__(self) -> Self:
        try:
            self.target = self._await_address()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def log(self) -> str:
        """What the server has logged so far."""
        return self._log_path.read_text(errors="replace")

    def channel(self) -> grpc.Channel:
        """Return a new channel to the server."""
        return grpc.insecure_channel(self.target)

    def terminate(self) -> None:
        """Send SIGTERM to the server and return at once."""
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        """Stop the server and return its exit code."""
        if self.process.poll() is None:
            self.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        code = self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def pids(self, role: str) -> list[int]:
        """Return the process ids of the fronts, workers or builders, oldest first."""
        return [pid for pid in children(self.process.pid) if _role(pid) == role]

    def kill(self, role: str, position: int = 0) -> int:
        """Kill one process of a role and return its id."""
        pid = self.pids(role)[position]
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_all(self) -> None:
        """Kill all processes; the supervisor comes first, so that it replaces none."""
        pids = [self.process.pid, *children(self.process.pid)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _await_address(self) -> str:
        output = self.process.stdout
        assert output is not None
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            ready = selector.select(START_SECONDS)
        line = output.readline() if ready else ""
        if not line.startswith("serving "):
            raise RuntimeError(f"the server did not come up:\n{self.log}")
        return line.split()[1]


def _role(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " ").split()
    except OSError:
        return ""
    roles = [word.removeprefix("divgrpc-") for word in words if word.startswith("divgrpc-")]
    return roles[0] if roles else ""


def children(pid: int) -> list[int]:
    """Return the process ids of the children of a process; none if it has ended.

    Those of its main thread come first, the oldest before the others.
    """
    pids: list[int] = []
    # A thread may end while its file is read.
    with suppress(OSError):
        for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name)):
            pids += map(int, (task / "children").read_text().split())
    return pids


def descendants(pid: int) -> list[int]:
    """Return the process ids of the children of a process, and of theirs, and so on."""
    return [one for child in children(pid) for one in (child, *descendants(child))]


def index_folders(server: RunningServer, name: str) -> list[Path]:
    """Return the folders of an index, including staging folders."""
    data = server.folder / "data"
    return [entry for entry in data.iterdir() if entry.name.lstrip(".").split(".")[0] == name]


def alive(pid: int) -> bool:
    """Tell whether any thread of a process runs.

    The first thread may be a zombie while others still end, which keep the files open.
    """
    return any(_state(task) not in "ZX" for task in Path("/proc").glob(f"{pid}/task/*"))


def _state(task: Path) -> str:
    """Return the state of a thread, X (dead) if it is gone."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, summed over its threads."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, numbers[11:13])) / os.sysconf("SC_CLK_TCK")


def eventually(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Poll a condition until it is true, and fail the test after `seconds` seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was awaited did not come true"
        time.sleep(0.01)
