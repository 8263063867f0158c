"""Memory of processes, from the kernel's accounts of their mappings.

Private memory includes pages of files that one process alone maps, which the kernel may take
whenever it needs them. So it is reported twice: all of it, and without pages of files, which leaves
heaps, stacks, memfds and /dev/shm.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

_INTERVAL_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Held:
    """Bytes that processes hold privately, and those that no file stands behind."""

    private: int = 0
    unbacked: int = 0

    def __add__(self, other: "Held") -> "Held":
        return Held(self.private + other.private, self.unbacked + other.unbacked)


# What processes hold at a time, by role.
Roles: TypeAlias = dict[str, Held]


def total(roles: Roles) -> Held:
    """Return what all roles hold together."""
    return sum(roles.values(), Held())


@dataclass
class Peak:
    """The samples with the most private memory, and with the most without pages of files."""

    private: Roles = field(default_factory=dict)
    unbacked: Roles = field(default_factory=dict)
    samples: int = 0

    def note(self, roles: Roles) -> None:
        """Take a sample."""
        self.samples += 1
        self.private = max(self.private, roles, key=lambda each: total(each).private)
        self.unbacked = max(self.unbacked, roles, key=lambda each: total(each).unbacked)


def held(pid: int) -> Held:
    """Return what one process holds; nothing if it is gone."""
    fields = {"Private_Clean": 0, "Private_Dirty": 0, "Pss_Anon": 0, "Pss_Shmem": 0}
    # Of a process that is on its way out the file opens and cannot be read.
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in fields:
                fields[name] = 1024 * int(rest.split()[0])
    return Held(
        fields["Private_Clean"] + fields["Private_Dirty"],
        fields["Pss_Anon"] + fields["Pss_Shmem"],
    )


def family(pid: int) -> dict[int, str]:
    """Return a process and all below it, each with its role, the word after `divgrpc-`."""
    found, waiting = {}, [pid]
    while waiting:
        parent = waiting.pop()
        with suppress(OSError):
            words = Path(f"/proc/{parent}/cmdline").read_bytes().decode().split("\0")
            roles = [word.removeprefix("divgrpc-") for word in words if word[:8] == "divgrpc-"]
            found[parent] = roles[0] if roles else "supervisor"
            for task in Path(f"/proc/{parent}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
    return found


def by_role(pid: int) -> Roles:
    """Return what a process and all below it hold, by role."""
    roles: Roles = {}
    for process, role in family(pid).items():
        roles[role] = roles.get(role, Held()) + held(process)
    return roles


@contextmanager
def watching(pid: int) -> Iterator[Peak]:
    """Sample a process and all below it until the block ends."""
    peak, over = Peak(), threading.Event()

    def watch() -> None:
        while not over.wait(_INTERVAL_SECONDS):
            peak.note(by_role(pid))

    peak.note(by_role(pid))
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        over.set()
        watcher.join()


def mapped(pid: int, folder: Path) -> dict[str, int]:
    """Return Size, Rss and Pss in bytes, summed over what a process maps of files in `folder`."""
    total, inside = {"Size": 0, "Rss": 0, "Pss": 0}, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in total:
            total[name] += 1024 * int(rest.split()[0]) * inside
        elif "-" in name.split(" ")[0]:
            # The head of a mapping: addresses, rights, offset, device, inode, path.
            inside = f" {folder}/" in line
    return total
