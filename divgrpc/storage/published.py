"""What the writer of a collection tells its readers, in a file that they map.

The file needs no lock: the writer writes each number by one instruction, and readers that see an
older number show an older state.
"""

import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from divgrpc.types import WritesInfo

# Folder of the writes to a generation, in its folder (`divgrpc.writes.layout`).
WRITES: Final = "writes"
# File in this folder that exists once something was written.
LAYOUT: Final = "LAYOUT"
PUBLISHED: Final = "PUBLISHED"
LOG: Final = "log"
_NUMBER_BYTES: Final = 8
_NUMBERS: Final = ("sequence", "layout", "live", "rows", "unmerged")


class Published:
    """Numbers about a collection, in a mapped file.

    sequence: number of the last record that readers may show. The writer sets it when the record is
        as durable as its caller asked.
    layout: number of the current layout, whose files are complete.
    live, rows, unmerged: number of points; of rows, deleted ones included; of points that were
        written since the last merge.
    """

    def __init__(self, folder: Path, *, writable: bool = False) -> None:
        """Map the file in `folder`, the folder of the writes; a writer creates it."""
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        size = _NUMBER_BYTES * len(_NUMBERS)
        descriptor = os.open(folder / PUBLISHED, flags | os.O_CLOEXEC, 0o666)
        try:
            if writable:
                os.ftruncate(descriptor, size)
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

    def publish(self, sequence: int, **numbers: int) -> None:
        """Set numbers by name, the sequence number last."""
        for name, value in numbers.items():
            self._numbers[_NUMBERS.index(name)] = value
        self._numbers[0] = sequence

    def info(self, folder: Path) -> WritesInfo:
        """Return the description of the writes in `folder`."""
        sequence, _, live, rows, unmerged = self._numbers
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
