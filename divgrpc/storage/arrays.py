"""One array, one standard `.npy` file that any tool can open.

A file begins with a header of exactly `HEADER_BYTES`, so that it can be written first with no rows
and once more when their number is known; data follow at a fixed offset. Space is reserved before
data are written: a full disk is then an error of a call, never a SIGBUS in a mapping. The checksum
is the CRC-32 of the data without the header, kept up while rows arrive.
"""

import contextlib
import errno
import mmap
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from divgrpc.errors import IndexDamagedError, StorageFullError
from divgrpc.platforms import reserve, sync_data

HEADER_BYTES: Final = 128
_MAGIC: Final = b"\x93NUMPY\x01\x00"
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_THE_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_BLOCK_BYTES: Final = 1 << 24
# Room that is made ahead of rows that are announced; in memory-backed folders it is memory.
_AHEAD_BYTES: Final = 1 << 26
_SYNC_BYTES: Final = 1 << 28

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ArrayEntry:
    """What the manifest says of one array; `crc32` is of its data."""

    dtype: str
    shape: tuple[int, ...]
    crc32: int

    @property
    def bytes(self) -> int:
        """Size of the data."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@contextlib.contextmanager
def room_reported() -> Iterator[None]:
    """Turn the operating system's word for a full disk into `StorageFullError`."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise StorageFullError("no room left to store the index") from error
        raise


@contextlib.contextmanager
def damage_reported(what: str) -> Iterator[None]:
    """Turn what the operating system says of files that cannot be read into `IndexDamagedError`.

    That a file is missing is for the caller to judge. A process that is out of descriptors or
    memory says nothing of the files: that passes.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        if error.errno in _NOT_THE_FILES:
            raise
        raise IndexDamagedError(f"{what} cannot be read") from error


class ArrayFile:
    """An array being written: rows are appended, or the whole is created and filled in place."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, row_shape: tuple[int, ...]) -> None:
        self._path = path
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._row_shape = row_shape
        self._rows = 0
        self._crc = 0
        self._file = path.open("xb+", buffering=0)
        self._mapped: Array | None = None
        self._expected_bytes = self._reserved_bytes = self._unsynced = 0
        self._write_header()
        self._file.seek(HEADER_BYTES)

    def expect(self, rows: int) -> None:
        """Prepare for `rows` rows in all.

        Refused where there is no room for them. What is announced and never sent must cost
        nothing, so room is made a stretch at a time as rows arrive.
        """
        file_system = os.fstatvfs(self._file.fileno())
        if self._bytes(rows) > file_system.f_bavail * file_system.f_frsize:
            raise StorageFullError("no room left to store the index")
        self._expected_bytes = HEADER_BYTES + self._bytes(rows)

    def append(self, block: Array) -> None:
        """Write `block`, (rows, *row_shape), behind what is there."""
        data = np.ascontiguousarray(block, self._dtype)
        if data.shape[1:] != self._row_shape:
            raise ValueError(f"rows of shape {data.shape[1:]} in an array of {self._row_shape}")
        view = _bytes_of(data)
        self._crc = zlib.crc32(view, self._crc)
        end = HEADER_BYTES + self._bytes(self._rows + len(data))
        if self._reserved_bytes < end < self._expected_bytes:
            self._reserve(min(self._expected_bytes, end + _AHEAD_BYTES))
        with room_reported():
            while view:
                view = view[self._file.write(view) :]
        self._rows += len(data)
        self._unsynced += data.nbytes
        if self._unsynced >= _SYNC_BYTES:
            # A little at a time: all at the end, a large upload would seem to stand still.
            with room_reported():
                sync_data(self._file.fileno())
            self._unsynced = 0

    def fill(self, rows: int) -> Array:
        """Return the array with `rows` rows as writable memory backed by the file."""
        self._reserve(HEADER_BYTES + max(1, self._bytes(rows)))
        self._rows = rows
        self._write_header()
        self._mapped = map_array(self._path, self._dtype, (rows, *self._row_shape), "r+")
        return self._mapped

    def read(self) -> Array:
        """Return what is written so far, read-only, backed by the file."""
        return map_array(self._path, self._dtype, (self._rows, *self._row_shape), "r")

    def close(self) -> ArrayEntry:
        """Write the final header, cut what was reserved and not used, sync."""
        if self._mapped is not None:
            self._crc = checksum(self._mapped)
            self._mapped = None
        shape = (self._rows, *self._row_shape)
        entry = ArrayEntry(self._dtype.name, shape, self._crc)
        with room_reported():
            self._write_header()
            self._file.truncate(HEADER_BYTES + entry.bytes)
            os.fsync(self._file.fileno())
        self._file.close()
        return entry

    def discard(self) -> None:
        """Close without caring for what was written."""
        self._mapped = None
        self._file.close()

    def _bytes(self, rows: int) -> int:
        return rows * int(np.prod(self._row_shape, dtype=np.int64)) * self._dtype.itemsize

    def _reserve(self, size: int) -> None:
        with room_reported():
            reserve(self._file.fileno(), size)
        self._reserved_bytes = size

    def _write_header(self) -> None:
        header = _header(self._dtype, (self._rows, *self._row_shape))
        with room_reported():
            os.pwrite(self._file.fileno(), header, 0)


def map_array(
    path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...], mode: Literal["r", "r+"]
) -> Array:
    """Map the data of a file; an array without elements is plain memory."""
    if 0 in shape:
        empty = np.empty(shape, dtype)
        # As read-only as a mapping: to a compiled kernel the difference is one of type.
        empty.setflags(write=mode != "r")
        return empty
    mapped = np.memmap(path, dtype, mode=mode, offset=HEADER_BYTES, shape=shape)
    return mapped.view(np.ndarray)


def open_array(path: Path, entry: ArrayEntry, *, verify: bool) -> Array:
    """Map a finished array read-only.

    Length and header are always compared with `entry`, the checksum where `verify` says so. Raises
    `IndexDamagedError`.
    """
    try:
        with damage_reported(f"array {path.stem}"), path.open("rb") as file:
            found = file.read(HEADER_BYTES), os.fstat(file.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError):
        raise IndexDamagedError(f"array {path.stem} is missing") from None
    dtype = np.dtype(entry.dtype).newbyteorder("<")
    # Compared as bytes and never parsed: a header that differs anywhere is not ours.
    if found != (_header(dtype, entry.shape), HEADER_BYTES + entry.bytes):
        raise IndexDamagedError(f"array {path.stem} is not what the manifest says")
    array = map_array(path, dtype, entry.shape, "r")
    if verify and checksum(array) != entry.crc32:
        raise IndexDamagedError(f"array {path.stem} does not match its checksum")
    return array


def read_only(array: Array) -> Array:
    """Return a view that cannot be written, the only kind that kernels are compiled for."""
    view = array.view()
    view.setflags(write=False)
    return view


def release(array: Array) -> None:
    """Let go of the pages of a mapped array; what was written stays with the file.

    Whoever reads a file through a mapping alone is charged for all of its pages until then. Arrays
    that are no mapping are left as they are.
    """
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)


def checksum(array: Array) -> int:
    """Return the CRC-32 of a C-contiguous array's bytes."""
    view, crc = _bytes_of(array), 0
    for start in range(0, len(view), _BLOCK_BYTES):
        crc = zlib.crc32(view[start : start + _BLOCK_BYTES], crc)
        release(array)
    return crc


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    fields = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    room = HEADER_BYTES - len(_MAGIC) - 2
    return _MAGIC + room.to_bytes(2, "little") + repr(fields).ljust(room - 1).encode() + b"\n"


def _bytes_of(array: Array) -> memoryview:
    # A memoryview of an array without elements cannot be cast.
    return memoryview(array.reshape(-1).view(np.uint8)) if array.size else memoryview(b"")  # type: ignore[arg-type]  # ndarray is a Buffer from Python 3.12 on
