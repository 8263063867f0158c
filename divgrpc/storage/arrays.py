"""Each array is stored as one standard `.npy` file.

The header always has `HEADER_BYTES` bytes, so the data begin at a fixed offset. The header is first
written with 0 rows, and is written again when the number of rows is known. Disk space is reserved
before data are written through a memory mapping. Without this reservation, a full disk would end
the process with SIGBUS instead of raising an error. The checksum is the CRC-32 of the data without
the header. It is updated with each appended block of rows, or computed when an array that was
filled in place is closed.
"""

import contextlib
import errno
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, release
from divgrpc.errors import IndexDamagedError, StorageFullError
from divgrpc.platforms import reserve, sync_data, write_at

HEADER_BYTES: Final = 128
_MAGIC: Final = b"\x93NUMPY\x01\x00"
_DISK_FULL_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# These errors mean that the process lacks file descriptors or memory. The index files may be
# intact, so these errors are not reported as damage.
_PROCESS_ERRORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_CHECKSUM_BLOCK_BYTES: Final = 1 << 24
# Maximum number of bytes of disk space to reserve beyond the rows received so far. On a file system
# in memory, reserved space takes memory.
_RESERVE_AHEAD_BYTES: Final = 1 << 26
_SYNC_BYTES: Final = 1 << 28
_COPIED_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ArrayEntry:
    """Entry of one array in the manifest; `crc32` is the checksum of the array's data."""

    dtype: str
    shape: tuple[int, ...]
    crc32: int

    @property
    def bytes(self) -> int:
        """Size of the data in bytes, without the header."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@contextlib.contextmanager
def full_disk_errors(subject: str = "the index") -> Iterator[None]:
    """Convert an `OSError` about a full disk, quota or file size to `StorageFullError`.

    subject: what is being stored, for the message.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL_ERRORS:
            raise StorageFullError(f"no room left to store {subject}") from error
        raise


@contextlib.contextmanager
def damage_errors(subject: str) -> Iterator[None]:
    """Convert an `OSError` about an unreadable file to `IndexDamagedError`.

    The message begins with `subject`. Two kinds of errors are raised unchanged: errors about a
    missing file, and errors caused by a lack of file descriptors or memory.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        if error.errno in _PROCESS_ERRORS:
            raise
        raise IndexDamagedError(f"{subject} cannot be read") from error


def check_room(path: Path, size: int) -> None:
    """Raise `StorageFullError` if the file system of `path` lacks room for `size` bytes."""
    file_system = os.statvfs(path)
    if size > file_system.f_bavail * file_system.f_frsize:
        raise StorageFullError("no room left to store the index")


def write_synced(path: Path, text: str) -> None:
    """Write a file and sync it to the disk; raises `StorageFullError`."""
    with full_disk_errors(), path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def link_or_copy(source: Path, target: Path, entry: ArrayEntry) -> None:
    """Make `target` a hard link of an array file or, where links are not possible, a synced copy.

    A file that is longer than its entry is copied without the rest. Raises `StorageFullError`.
    """
    size = HEADER_BYTES + entry.bytes
    if source.stat().st_size == size:
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    with full_disk_errors(), source.open("rb") as reader, target.open("xb") as writer:
        while block := reader.read(min(_COPIED_BYTES, size - writer.tell())):
            writer.write(block)
        writer.flush()
        os.fsync(writer.fileno())


def sync_folder(path: Path) -> None:
    """Sync the names of the files in a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ArrayFile:
    """An array file that is being written, either with `append` or in place with `fill`."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, row_shape: tuple[int, ...]) -> None:
        self._path = path
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._row_shape = row_shape
        self._rows = 0
        self._crc = 0
        self._file = path.open("xb+", buffering=0)
        self._mapping: Array | None = None
        self._expected_bytes = self._reserved_bytes = self._bytes_to_sync = 0
        self._write_header()
        self._file.seek(HEADER_BYTES)

    def expect(self, rows: int) -> None:
        """Announce the total number of rows; raises `StorageFullError` if the rows do not fit.

        Space is reserved step by step as rows arrive, at most `_RESERVE_AHEAD_BYTES` ahead. So
        rows that never arrive take little space.
        """
        check_room(self._path, self._bytes(rows))
        self._expected_bytes = HEADER_BYTES + self._bytes(rows)

    def append(self, block: Array) -> None:
        """Append the rows of `block` (m, *row_shape)."""
        data = np.ascontiguousarray(block, self._dtype)
        if data.shape[1:] != self._row_shape:
            raise ValueError(f"rows of shape {data.shape[1:]} in an array of {self._row_shape}")
        view = _bytes_of(data)
        self._crc = zlib.crc32(view, self._crc)
        end = HEADER_BYTES + self._bytes(self._rows + len(data))
        if self._reserved_bytes < end < self._expected_bytes:
            self._reserve(min(self._expected_bytes, end + _RESERVE_AHEAD_BYTES))
        with full_disk_errors():
            while view:
                view = view[self._file.write(view) :]
        self._rows += len(data)
        self._bytes_to_sync += data.nbytes
        if self._bytes_to_sync >= _SYNC_BYTES:
            # Sync regularly, because a single sync at the end of a large upload would take so long
            # that the upload would seem to hang.
            with full_disk_errors():
                sync_data(self._file.fileno())
            self._bytes_to_sync = 0

    def fill(self, rows: int) -> Array:
        """Return an array with `rows` rows, mapped from the file, to be written in place."""
        self._reserve(HEADER_BYTES + max(1, self._bytes(rows)))
        self._rows = rows
        self._write_header()
        self._mapping = map_array(self._path, self._dtype, (rows, *self._row_shape), "r+")
        return self._mapping

    def read(self) -> Array:
        """Return the rows appended so far, read-only and mapped from the file."""
        return map_array(self._path, self._dtype, (self._rows, *self._row_shape), "r")

    def sync(self) -> ArrayEntry:
        """Write the header and all rows so far to the disk; return their entry, without checksum.

        Until the file is closed, it may be longer.
        """
        with full_disk_errors():
            self._write_header()
            os.fsync(self._file.fileno())
        return ArrayEntry(self._dtype.name, (self._rows, *self._row_shape), 0)

    def close(self) -> ArrayEntry:
        """Write the final header, free unused space, sync, and return the manifest entry."""
        if self._mapping is not None:
            self._crc = checksum_of(self._mapping)
            self._mapping = None
        shape = (self._rows, *self._row_shape)
        entry = ArrayEntry(self._dtype.name, shape, self._crc)
        with full_disk_errors():
            self._write_header()
            self._file.truncate(HEADER_BYTES + entry.bytes)
            os.fsync(self._file.fileno())
        self._file.close()
        return entry

    def discard(self) -> None:
        """Close without finishing the file."""
        self._mapping = None
        self._file.close()

    def _bytes(self, rows: int) -> int:
        return rows * int(np.prod(self._row_shape, dtype=np.int64)) * self._dtype.itemsize

    def _reserve(self, size: int) -> None:
        with full_disk_errors():
            reserve(self._file.fileno(), size)
        self._reserved_bytes = size

    def _write_header(self) -> None:
        header = _header(self._dtype, (self._rows, *self._row_shape))
        with full_disk_errors():
            write_at(self._file.fileno(), header, 0)


class ArrayFolder:
    """A folder of array files that are being written; a store of a build and of a merge."""

    def __init__(self, folder: Path) -> None:
        """Create the folder, whose parent must exist."""
        self.folder = folder
        self._files: dict[str, ArrayFile] = {}
        folder.mkdir()

    @property
    def names(self) -> list[str]:
        """The names of the arrays that are being written."""
        return [*self._files]

    def begin(
        self, name: str, dtype: npt.DTypeLike, row_shape: tuple[int, ...], rows: int = 0
    ) -> None:
        """Create an array for `append`; raises `StorageFullError` if `rows` rows do not fit."""
        file = ArrayFile(self.folder / f"{name}.npy", dtype, row_shape)
        self._files[name] = file
        if rows:
            file.expect(rows)

    def append(self, name: str, block: Array) -> None:
        """Append rows to an array that `begin` created."""
        self._files[name].append(block)

    def read(self, name: str) -> Array:
        """Return the rows appended so far, read-only."""
        return self._files[name].read()

    def create(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        """Return a new array of this shape to write in place, mapped from its file."""
        self.begin(name, dtype, shape[1:])
        return self._files[name].fill(shape[0])

    def drop(self, name: str) -> None:
        """Remove an array that is being written."""
        self._files.pop(name).discard()
        (self.folder / f"{name}.npy").unlink()

    def sync(self, name: str) -> ArrayEntry:
        """Let other machines see the rows of an array so far; return their entry, as `sync` does.

        Raises `StorageFullError`.
        """
        return self._files[name].sync()

    def close(self) -> dict[str, ArrayEntry]:
        """Finish and sync all arrays; return their entries."""
        entries = {name: file.close() for name, file in self._files.items()}
        self._files.clear()
        return entries

    def discard(self) -> None:
        """Remove the folder, unless it was renamed."""
        for file in self._files.values():
            file.discard()
        shutil.rmtree(self.folder, ignore_errors=True)


def map_array(
    path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...], mode: Literal["r", "r+", "c"]
) -> Array:
    """Map the data of a file; if the array has no elements, allocate it instead.

    With mode "c", writes change memory of this process alone, and not the file.
    """
    if 0 in shape:
        empty = np.empty(shape, dtype)
        # In mode "r", make the array read-only like a mapping, because kernels accept only
        # read-only arrays of an index.
        empty.setflags(write=mode != "r")
        return empty
    # A text, because numpy resolves the links of a `Path`, which takes longer than the mapping.
    array = np.memmap(str(path), dtype, mode=mode, offset=HEADER_BYTES, shape=shape)
    return array.view(np.ndarray)


def open_array(
    path: Path,
    entry: ArrayEntry,
    *,
    verify: bool,
    mode: Literal["r", "c"] = "r",
    grows: bool = False,
) -> Array:
    """Map a finished array file, read-only unless `mode` is "c".

    The length and the header of the file are always compared with `entry`; if `grows`, the file may
    be longer. The checksum is compared only if `verify` is true. Raises `IndexDamagedError` if a
    comparison fails, or if the file is missing or cannot be read.
    """
    try:
        with damage_errors(f"array {path.stem}"), path.open("rb") as file:
            header, size = file.read(HEADER_BYTES), os.fstat(file.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError):
        raise IndexDamagedError(f"array {path.stem} is missing") from None
    dtype = np.dtype(entry.dtype).newbyteorder("<")
    # Compare the header as bytes, which detects every change of the header.
    least = HEADER_BYTES + entry.bytes
    if header != _header(dtype, entry.shape) or size < least or (size > least and not grows):
        raise IndexDamagedError(f"array {path.stem} does not match the manifest")
    array = map_array(path, dtype, entry.shape, mode)
    if verify:
        # Pages of a mapping that only reads can be dropped meanwhile.
        checked = array if mode == "r" else map_array(path, dtype, entry.shape, "r")
        if checksum_of(checked) != entry.crc32:
            raise IndexDamagedError(f"array {path.stem} does not match its checksum")
    return array


def checksum_of(array: Array, crc: int = 0) -> int:
    """Return the CRC-32 of a C-contiguous array's bytes; drop the pages of a mapping meanwhile.

    crc: the checksum of the bytes before it.
    """
    view = _bytes_of(array)
    for start in range(0, len(view), _CHECKSUM_BLOCK_BYTES):
        crc = zlib.crc32(view[start : start + _CHECKSUM_BLOCK_BYTES], crc)
        release(array)
    return crc


def checksum_in_file(
    path: Path, start: int, size: int, on_read: Callable[[int], None] | None = None
) -> int:
    """Return the CRC-32 of `size` bytes of a file from the offset `start`, or up to its end.

    The bytes are read and not mapped, because a mapped block that the disk cannot read would end
    the process. `on_read` is called with the length of each block. Raises `OSError`.
    """
    crc = 0
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while size > 0 and (block := file.read(min(size, _CHECKSUM_BLOCK_BYTES))):
            crc = zlib.crc32(block, crc)
            size -= len(block)
            if on_read is not None:
                on_read(len(block))
    return crc


def header_of(entry: ArrayEntry) -> bytes:
    """Return the header of an array file."""
    return _header(np.dtype(entry.dtype), entry.shape)


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    fields = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    length = HEADER_BYTES - len(_MAGIC) - 2
    return _MAGIC + length.to_bytes(2, "little") + repr(fields).ljust(length - 1).encode() + b"\n"


def _bytes_of(array: Array) -> memoryview:
    # Arrays without elements are handled separately, because their memoryview cannot be cast.
    return memoryview(array.reshape(-1).view(np.uint8)) if array.size else memoryview(b"")  # type: ignore[arg-type]  # ndarray is a Buffer from Python 3.12 on
