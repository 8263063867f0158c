"""What Linux says about a process: memory, processor time, descriptors and threads."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_KIBIBYTE: Final = 1024
# Positions in /proc/PID/stat, counted from behind the name of the program.
_USER_TICKS, _SYSTEM_TICKS = 11, 12


class Usage(NamedTuple):
    """The use of resources by a process; memory is in bytes."""

    private_bytes: int
    shared_bytes: int
    cpu_seconds: float
    descriptors: int
    threads: int


def read_usage(pid: int) -> Usage | None:
    """Return the usage of a process, or None if it has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        lines = (folder / "status").read_text(encoding="ascii", errors="replace").splitlines()
        status = dict(line.split(":", 1) for line in lines)
        return Usage(
            _bytes_of(status, "RssAnon"),
            _bytes_of(status, "RssFile") + _bytes_of(status, "RssShmem"),
            read_cpu_seconds(pid),
            len(os.listdir(folder / "fd")),
            int(status["Threads"]),
        )
    except (OSError, KeyError):
        return None


def read_cpu_seconds(pid: int) -> float:
    """Return the processor time of a process, also of one that ended and was not waited for.

    Returns 0 if the system does not say.
    """
    with suppress(OSError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        words = text.rpartition(")")[2].split()
        return (int(words[_USER_TICKS]) + int(words[_SYSTEM_TICKS])) / _TICKS
    return 0.0


def read_descendants(pid: int) -> list[int]:
    """Return the ids of the children of a process, of their children, and so on.

    Returns none of a process that has ended, or if the system does not say.
    """
    children: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            # A thread may end meanwhile.
            with suppress(OSError):
                children += map(int, (task / "children").read_text(encoding="ascii").split())
    return [one for child in children for one in (child, *read_descendants(child))]


def _bytes_of(status: dict[str, str], name: str) -> int:
    return int(status[name].split()[0]) * _KIBIBYTE
