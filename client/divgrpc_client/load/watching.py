"""CPU and memory of a server on this machine, found by the port that it listens on."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_PROC: Final = Path("/proc")
_LISTENING: Final = "0A"
# What the processes of divgrpc-server call themselves, before their role.
_PREFIX: Final = "divgrpc-"
_OTHER: Final = "server"
_PROGRAM, _MODULE = "divgrpc-server", "divgrpc_server"


@dataclass(frozen=True, slots=True)
class Use:
    """What the processes of one role used so far: seconds of CPU; bytes of memory now.

    `bytes_own` is what processes have for themselves; `bytes_resident` has the files they map too,
    each file once for every process.
    """

    processes: int = 0
    cpu_seconds: float = 0.0
    bytes_own: int = 0
    bytes_resident: int = 0

    def __add__(self, other: "Use") -> "Use":
        return Use(
            self.processes + other.processes,
            self.cpu_seconds + other.cpu_seconds,
            self.bytes_own + other.bytes_own,
            self.bytes_resident + other.bytes_resident,
        )


class ServerWatch:
    """The processes of a server, those that come and go included."""

    def __init__(self, roots: frozenset[int]) -> None:
        self._roots = roots
        self._seen: dict[int, tuple[str, float]] = {}

    @classmethod
    def at(cls, port: int) -> Self | None:
        """Return the watch of whatever listens on a port here; None where that cannot be seen."""
        sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
        roots = {_top(pid) for pid in _pids() if sockets.intersection(_open_files(pid))}
        # A server in this very process cannot be told from the load.
        return cls(frozenset(roots)) if roots and os.getpid() not in roots else None

    def use(self) -> dict[str, Use]:
        """Return what is used, by role; the CPU of a process that has ended counts on."""
        found: dict[str, Use] = {}
        for pid in sorted({pid for root in self._roots for pid in _tree(root)}):
            with suppress(OSError):
                role, cpu = _role(pid), cpu_seconds(pid)
                own, resident = _memory(pid)
                self._seen[pid] = role, cpu
                found[role] = found.get(role, Use()) + Use(1, 0.0, own, resident)
        for role, cpu in self._seen.values():
            found[role] = found.get(role, Use()) + Use(cpu_seconds=cpu)
        return found


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process's threads, by the scheduler's own nanoseconds."""
    total = 0
    for task in (_PROC / str(pid) / "task").iterdir():
        # A thread may end between the two.
        with suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def _memory(pid: int) -> tuple[int, int]:
    """Return bytes that are a process's own, and all that are resident."""
    told = dict(
        line.split(":", 1) for line in (_PROC / str(pid) / "status").read_text().splitlines()
    )
    own, resident = (int(told.get(name, "0 kB").split()[0]) for name in ("RssAnon", "VmRSS"))
    return own * 1024, resident * 1024


def _inodes(port: int) -> Iterator[str]:
    """Yield the sockets that listen on a port."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROC / "net" / name).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                    yield words[9]


def _pids() -> Iterator[int]:
    return (int(path.name) for path in _PROC.iterdir() if path.name.isdecimal())


def _open_files(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for path in (_PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                yield str(path.readlink())


def _top(pid: int) -> int:
    """Return the process above this one that is still of divgrpc's server."""
    with suppress(OSError):
        parent = int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        words = _command(parent).split("\0")
        if any(word == _MODULE or Path(word).name == _PROGRAM for word in words):
            return _top(parent)
    return pid


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for task in (_PROC / str(pid) / "task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))


def _command(pid: int) -> str:
    return (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace")


def _role(pid: int) -> str:
    words = _command(pid).split("\0")
    roles = [word.removeprefix(_PREFIX) for word in words if word.startswith(_PREFIX)]
    return roles[0] if roles else _OTHER
