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

from divgrpc.errors import IndexDamagedError
from divgrpc.platforms import reserve
from divgrpc.storage.arrays import full_disk_errors
from divgrpc.types import WritesInfo

# Folder of the writes to a generation, in its folder (`divgrpc.writes.layout`).
WRITES: Final = "writes"
# File in this folder that exists once something was written.
LAYOUT: Final = "LAYOUT"
PUBLISHED: Final = "PUBLISHED"
LOG: Final = "log"
LOG_SUFFIX: Final = ".wal"
LAYOUTS: Final = "layouts"
_NUMBER_BYTES: Final = 8
# The unit of `st_blocks`.
_BLOCK_BYTES: Final = 512
_NUMBERS: Final = ("sequence", "layout", "live", "rows", "unmerged", "nonzeros", "boot", "absent")
_BOOT: Final = _NUMBERS.index("boot")
_NO_BOOT: Final = 1
_BOOT_FILE: Final = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def boot_number() -> int:
    """Return a number that differs after each start of the system; 1 where there is none."""
    try:
        return _NO_BOOT + zlib.crc32(_BOOT_FILE.read_bytes())
    except OSError:
        return _NO_BOOT


class Published:
    """Numbers about a collection, in a mapped file.

    sequence: number of the last record that readers may show. The writer sets it when the record is
        as durable as its caller asked.
    layout: number of the current layout, whose files are complete.
    live, rows, unmerged: number of points; of rows, deleted ones included; of points that were
        written since the last merge.
    nonzeros: number of stored values of all points.
    boot: the start of the system in which the writer has set the numbers.
    absent: number of points without a vector; a file of an earlier version lacks this number.
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
            elif os.fstat(descriptor).st_size < size:
                size = _NUMBER_BYTES * (_BOOT + 1)
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
    def acknowledged(self) -> int:
        """Number of a write that the log or a merge must have; 0 if no number is certain.

        The writer stores the number after the record. So the log has the record until the next
        loss of power, even if it was never synced.
        """
        return self.sequence if self.is_certain else 0

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
        numbers = {"absent": 0} | dict(zip(_NUMBERS, self._numbers, strict=False))
        del numbers["boot"]
        return numbers

    @property
    def is_current(self) -> bool:
        """Whether the numbers were set since the system started."""
        return self._numbers[_BOOT] == boot_number()

    @property
    def is_certain(self) -> bool:
        """Whether no loss of power can have changed the numbers since they were set.

        Where the system does not say when it started, nothing is certain.
        """
        return self.is_current and boot_number() != _NO_BOOT

    def publish(self, sequence: int, **numbers: int) -> None:
        """Set numbers by name, the sequence number after the others."""
        for name, value in numbers.items():
            self._numbers[_NUMBERS.index(name)] = value
        self._numbers[0] = sequence
        self._numbers[_BOOT] = boot_number()

    def info(self, folder: Path) -> WritesInfo | None:
        """Return the description of the writes in `folder`; None if there were none yet."""
        sequence, _, live, rows, unmerged, *_ = self._numbers
        if not sequence:
            return None
        return WritesInfo(sequence, unmerged, rows - live, bytes_in(folder / LOG))


def open_published(folder: Path) -> Published | None:
    """Map the file in the folder of the writes; return None if it is missing or too short."""
    # A loss of power may leave an empty file.
    with suppress(OSError, ValueError):
        return Published(folder)
    return None


def bytes_in(log: Path) -> int:
    """Return the bytes of the files of a log, reserved ones included."""
    size = 0
    # The writer may remove files meanwhile, or the whole folder.
    with suppress(FileNotFoundError):
        for file in os.scandir(log):
            with suppress(FileNotFoundError):
                size += file.stat().st_size
    return size


def bytes_below(folder: Path) -> int:
    """Return the bytes on the disk of all files below a folder; files may go meanwhile."""
    size = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                status = os.stat(os.path.join(path, name), follow_symlinks=False)
                size += status.st_blocks * _BLOCK_BYTES
    return size


class Writes(NamedTuple):
    """The numbers of points of a generation and of their values, and a description of its writes.

    live, nonzeros, absent: as in `Published`.
    info: None if nothing was written yet.
    """

    live: int
    nonzeros: int
    absent: int
    info: WritesInfo | None


def read_writes(generation: Path) -> Writes | None:
    """Return the writes to a generation, whose folder is given; None if nothing was written.

    Raises `IndexDamagedError`.
    """
    published = open_published(generation / WRITES) if was_written(generation) else None
    if published is None:
        return None
    live, nonzeros, absent = (published.numbers[name] for name in ("live", "nonzeros", "absent"))
    return Writes(live, nonzeros, absent, published.info(generation / WRITES))


def is_recovered(generation: Path) -> bool:
    """Whether a generation has no writes, or had a writer since the system started.

    generation: its folder. Raises `IndexDamagedError`.
    """
    if not was_written(generation):
        return True
    published = open_published(generation / WRITES)
    return published is not None and published.is_current


def was_written(generation: Path) -> bool:
    """Return whether there were writes to a generation, whose folder is given.

    Raises `IndexDamagedError` if there were, and the file LAYOUT is missing.
    """
    folder = generation / WRITES
    if (folder / LAYOUT).exists():
        return True
    if not had_layout(folder):
        return False
    # A first write may have made the file meanwhile.
    if (folder / LAYOUT).exists():
        return True
    raise IndexDamagedError(
        "the layout of the writes is missing; `divgrpc doctor` says what is lost, and repairs the"
        " index"
    )


def had_layout(folder: Path) -> bool:
    """Return whether the file LAYOUT was once in the folder of the writes.

    The first write makes it, and so does a build with points that lack a vector. It is on the disk
    before there are files of the log, other layouts than 1, and numbers of layouts in PUBLISHED.
    """
    published = open_published(folder)
    return (
        (published is not None and published.layout > 0)
        or any((folder / LOG).glob(f"*{LOG_SUFFIX}"))
        or any(layout.name != "1" for layout in (folder / LAYOUTS).glob("*"))
    )
