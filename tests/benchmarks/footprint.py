"""What processes hold in memory, from the kernel's own accounts of their mappings.

Three kinds. *Anonymous*: heaps, stacks, what was copied on write; only swap could take it away.
*Shared memory*: memfds and /dev/shm, no better for being files in name. *Files*: pages
of the page cache that somebody maps. A file page that one process alone maps counts as private,
and as dirty until it is written back, whoever wrote it; still the kernel may take it whenever it
wants, which is why an index is mapped and not read. So private memory is given twice: strictly, all
of it, and without the pages of files.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_INTERVAL: Final = 0.05


@dataclass(frozen=True)
class Held:
    """Bytes that processes hold privately, and those that no file stands behind."""

    private: int = 0
    unbacked: int = 0

    def __add__(self, other: "Held") -> "Held":
        return Held(self.private + other.private, self.unbacked + other.unbacked)


@dataclass(frozen=True)
class Moment:
    """What processes held at a time, by role, so many seconds after watching began."""

    seconds: float = 0.0
    held: dict[str, Held] = field(default_factory=dict)

    @property
    def total(self) -> Held:
        """What they held together."""
        return sum(self.held.values(), Held())


@dataclass
class Peak:
    """The moments of the most private memory, and of the most without pages of files."""

    private: Moment = field(default_factory=Moment)
    unbacked: Moment = field(default_factory=Moment)
    samples: int = 0

    def note(self, moment: Moment) -> None:
        """Take a sample."""
        self.samples += 1
        if moment.total.private > self.private.total.private:
            self.private = moment
        if moment.total.unbacked > self.unbacked.total.unbacked:
            self.unbacked = moment


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


def by_role(pid: int) -> dict[str, Held]:
    """Return what a process and all below it hold, by role."""
    total: dict[str, Held] = {}
    for each, role in family(pid).items():
        total[role] = total.get(role, Held()) + held(each)
    return total


@contextmanager
def watching(pid: int) -> Iterator[Peak]:
    """Sample a process and all below it until the block ends."""
    peak, over, start = Peak(), threading.Event(), time.monotonic()

    def watch() -> None:
        while not over.is_set():
            begun = time.monotonic()
            peak.note(Moment(begun - start, by_role(pid)))
            over.wait(max(0.0, _INTERVAL - (time.monotonic() - begun)))

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
