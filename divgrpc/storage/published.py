"""Numbers that the writer of a collection gives its readers, in a file that they map.

The file needs no lock: the writer writes each number by one instruction, and readers that see an
older number show an older state.

The file is never synced. After a loss of power its numbers may be older or newer than the log, so
the file also names the start of the system (boot) in which they were written.
"""

import functools
import mmap
import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from divgrpc.platforms import reserve
from divgrpc.storage.arrays import full_disk_errors
from divgrpc.types import WritesInfo

# Folder of the writes to a generation, in its folder (`divgrpc.writes.layout`).
WRITES: Final = "writes"
# File in this folder that exists once something was written.
LAYOUT: Final = "LAYOUT"
PUBLISHED: Final = "PUBLISHED"
LOG: Final = "log"
_NUMBER_BYTES: Final = 8
_NUMBERS: Final = ("sequence", "layout", "live", "rows", "unmerged", "boot")
_BOOT: Final = _NUMBERS.index("boot")
_BOOT_FILE: Final = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def boot_number() -> int:
    """Return a number that differs after each start of the system; 1 where there is none."""
    try:
        return 1 + zlib.crc32(_BOOT_FILE.read_bytes())
    except OSError:
        return 1


class Published:
    """Numbers about a collection, in a mapped file.

    sequence: number of the last record that readers may show. The writer sets it when the record is
        as durable as its caller asked.
    layout: number of the current layout, whose files are complete.
    live, rows, unmerged: number of points; of rows, deleted ones included; of points that were
        written since the last merge.
    boot: the start of the system in which the writer has set the numbers.
    """

    def __init__(self, folder: Path, *, writable: bool = False) -> None:
        """Map the file in `folder`, the folder of the writes; a writer creates it.

        Raises `StorageFullError`.
        """
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        size = _NUMBER_BYTES * len(_NUMBERS)
        descriptor = os.open(folder / PUBLISHED, flags | os.O_CLOEXEC, 0o666)
        try:
            if writable:
                with full_disk_errors():
                    reserve(descriptor, size)
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._memory = mmap.mmap(descriptor, size, access=access)
        finally:
            os.close(descriptor)
        self._numbers = memoryview(self._memory).cast("Q")

    @property
    def sequence(self) -> int:
        """Number of the last record that readers may show."""
        return self._numbers[0]

    @property
    def layout(self) -> int:
        """Number of the current layout."""
        return self._numbers[1]

    @property
    def live(self) -> int:
        """Number of points."""
        return self._numbers[2]

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers by name, without `boot`."""
        return dict(zip(_NUMBERS[:_BOOT], self._numbers, strict=False))

    @property
    def is_current(self) -> bool:
        """Whether the numbers were set since the system started."""
        return self._numbers[_BOOT] == boot_number()

    def publish(self, sequence: int, **numbers: int) -> None:
        """Set numbers by name, the sequence number after the others."""
        for name, value in numbers.items():
            self._numbers[_NUMBERS.index(name)] = value
        self._numbers[0] = sequence
        self._numbers[_BOOT] = boot_number()

    def info(self, folder: Path) -> WritesInfo:
        """Return the description of the writes in `folder`."""
        sequence, _, live, rows, unmerged, _ = self._numbers
        return WritesInfo(sequence, unmerged, rows - live, bytes_in(folder / LOG))


def bytes_in(log: Path) -> int:
    """Return the bytes of the files of a log, reserved ones included."""
    size = 0
    # The writer may remove files meanwhile, or the whole folder.
    with suppress(FileNotFoundError):
        for file in os.scandir(log):
            with suppress(FileNotFoundError):
                size += file.stat().st_size
    return size


class Writes(NamedTuple):
    """The number of points of a generation, and the description of the writes to it."""

    live: int
    info: WritesInfo


def read_writes(generation: Path) -> Writes | None:
    """Return the writes to a generation, whose folder is given; None if nothing was written."""
    folder = generation / WRITES
    if not (folder / LAYOUT).exists():
        return None
    try:
        published = Published(folder)
    except (OSError, ValueError):
        return None
    return Writes(published.live, published.info(folder))


def is_recovered(generation: Path) -> bool:
    """Whether a generation has no writes, or had a writer since the system started.

    generation: its folder.
    """
    folder = generation / WRITES
    if not (folder / LAYOUT).exists():
        return True
    try:
        return Published(folder).is_current
    except (OSError, ValueError):
        return False
