"""The write-ahead log: records in files, with checksums that show damage after a crash.

A file is named after the sequence number of its first record, and is reserved in full when it is
made, so that a full disk raises an error then. The rest of a file is zeros. A record is:

    sequence  uint64, one more than in the record before
    synced    uint64, sequence number of the last record known to be on the disk
    length    uint32, bytes of the body
    checksum  uint32, CRC-32 of the numbers above and the body
    body      `divgrpc.writes.records`, then zeros up to a multiple of eight bytes

A crash may leave a record incomplete at the end of the log. A loss of power may leave any record
incomplete that was not synced, also one before a complete one. The log ends before such a record,
and it is overwritten with all that follows. If a valid record behind an invalid one says that the
invalid one was synced, the file was changed: this is damage, and nothing is overwritten. The same
holds if the invalid record was published since the system started (`Published.acknowledged`).
"""

import itertools
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from divgrpc.errors import IndexDamagedError, StorageFullError
from divgrpc.platforms import reserve, sync_data, write_at
from divgrpc.storage.arrays import full_disk_errors, sync_folder
from divgrpc.storage.published import LOG_SUFFIX, bytes_in

_DRAFT_SUFFIX: Final = ".new"
FILE_BYTES: Final = 16 << 20
_HEAD: Final = struct.Struct("<QQII")
_CHECKED: Final = struct.Struct("<QQI")
_ALIGNMENT_BYTES: Final = 8
# A record behind a broken one has a sequence number at most this far from the last valid one.
_SEQUENCES_AHEAD_MAX: Final = 1 << 32


class Entry(NamedTuple):
    """A record in a file: its numbers, its body, and the offset behind it."""

    sequence: int
    synced: int
    body: bytes
    end: int


def frame(sequence: int, synced: int, body: bytes) -> bytes:
    """Return a record with its head."""
    head = _HEAD.pack(sequence, synced, len(body), _checksum(sequence, synced, body))
    return head + body + b"\0" * (-len(body) % _ALIGNMENT_BYTES)


def entry_at(data: bytes | memoryview, offset: int) -> Entry | None:
    """Return the record at an offset, or None if there is no valid one."""
    if offset + _HEAD.size > len(data):
        return None
    sequence, synced, length, checksum = _HEAD.unpack_from(data, offset)
    start = offset + _HEAD.size
    if not sequence or start + length > len(data):
        return None
    body = bytes(data[start : start + length])
    if _checksum(sequence, synced, body) != checksum:
        return None
    return Entry(sequence, synced, body, start + length + -length % _ALIGNMENT_BYTES)


def entries(data: bytes | memoryview, first: int) -> Iterator[Entry]:
    """Yield the records of a file whose first record has the sequence number `first`.

    Raises `IndexDamagedError` if a record is invalid that was synced.
    """
    offset, sequence = 0, first
    while (entry := entry_at(data, offset)) is not None and entry.sequence == sequence:
        yield entry
        offset, sequence = entry.end, sequence + 1
    if _was_synced(data, offset, sequence):
        raise IndexDamagedError(f"the log is damaged at record {sequence}")


def _was_synced(data: bytes | memoryview, offset: int, sequence: int) -> bool:
    """Return whether a record at or behind an offset says that the record `sequence` was synced."""
    return any(entry.synced >= sequence for _, entry in entries_behind(data, offset, sequence))


def entries_behind(
    data: bytes | memoryview, offset: int, sequence: int
) -> Iterator[tuple[int, Entry]]:
    """Yield the valid records at or behind an offset, numbered `sequence` or more, with offsets."""
    end = len(data) // _ALIGNMENT_BYTES * _ALIGNMENT_BYTES
    numbers = np.frombuffer(data[offset:end], np.uint64)
    likely = (numbers >= sequence) & (numbers < sequence + _SEQUENCES_AHEAD_MAX)
    places = offset + _ALIGNMENT_BYTES * np.flatnonzero(likely)
    for place in places.tolist():
        if (entry := entry_at(data, place)) is not None:
            yield place, entry


def lost_write(sequence: int) -> IndexDamagedError:
    """Return the error of a log that lacks a write which readers may show."""
    return IndexDamagedError(
        f"the log lacks record {sequence}, a write that had returned; `divgrpc doctor` says what is"
        " lost, and repairs the index"
    )


class End(NamedTuple):
    """The end of the records of a file.

    sequence: number of the last record; one less than the first number of the file if it has none.
    offset: where the next record would begin.
    rest: number of bytes from there to the last byte that is not zero: the bytes of a record that
        was not written in full.
    """

    sequence: int
    offset: int
    rest: int


def end_of(data: bytes, first: int) -> End:
    """Return the end of a file whose first record has the number `first`.

    Raises `IndexDamagedError`.
    """
    offset, sequence = 0, first - 1
    for entry in entries(data, first):
        offset, sequence = entry.end, entry.sequence
    rest = memoryview(data)[offset:]
    # Most files end with megabytes of zeros, which numpy tests faster than `rstrip` removes them.
    has_rest = bool(np.frombuffer(rest, np.uint8).any())
    return End(sequence, offset, len(bytes(rest).rstrip(b"\0")) if has_rest else 0)


def _checksum(sequence: int, synced: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_CHECKED.pack(sequence, synced, len(body))))


class Log:
    """The files of a log in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def files(self) -> list[tuple[int, Path]]:
        """Return the files and the sequence numbers of their first records, ascending."""
        paths = self.folder.glob(f"*{LOG_SUFFIX}")
        return sorted((int(path.stem), path) for path in paths if path.stem.isdigit())

    def files_above(self, after: int) -> list[tuple[int, Path]]:
        """Return the last file, and all others that may have records above `after`."""
        files = self.files()
        next_firsts = [first for first, _ in files[1:]]
        needed = [f for f, first in zip(files, next_firsts, strict=False) if first > after + 1]
        return needed + files[-1:]

    def drafts(self) -> list[Path]:
        """Return the files that were being made when a writer ended."""
        return sorted(self.folder.glob(f"*{_DRAFT_SUFFIX}"))

    def read(self, after: int) -> Iterator[tuple[int, bytes]]:
        """Yield the sequence numbers and bodies of all records above `after`.

        Raises `IndexDamagedError` for a damaged file, and for records that are missing.
        """
        files = self.files_above(after)
        sequence = after
        for first, path in files:
            if first > sequence + 1:
                break
            for entry in entries(path.read_bytes(), first):
                if entry.sequence > sequence:
                    yield entry.sequence, entry.body
                    sequence = entry.sequence
        if files and files[-1][0] > sequence + 1:
            raise IndexDamagedError(f"the log lacks record {sequence + 1}")

    def write(self, records: Sequence[Entry]) -> Path:
        """Make a file of records, which keep their numbers; raises `StorageFullError`.

        The caller must sync the folder.
        """
        path = self.folder / f"{records[0].sequence:020d}{LOG_SUFFIX}"
        data = b"".join(frame(entry.sequence, entry.synced, entry.body) for entry in records)
        with full_disk_errors(), path.open("xb") as file:
            reserve(file.fileno(), max(FILE_BYTES, len(data)))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return path

    @property
    def bytes(self) -> int:
        """Bytes of the files, reserved ones included."""
        return bytes_in(self.folder)

    def drop(self, sequence: int) -> None:
        """Remove the files whose records are all at most `sequence`, except the last file."""
        files = self.files()
        for (_, path), (next_first, _) in itertools.pairwise(files):
            if next_first <= sequence + 1:
                path.unlink(missing_ok=True)


class Tail:
    """Reads records that another process appends to a log."""

    def __init__(self, log: Log, sequence: int) -> None:
        """Begin after the record `sequence`."""
        self._log, self.sequence = log, sequence
        self._descriptor, self._offset = -1, 0

    def read(self, last: int) -> Iterator[tuple[int, bytes]]:
        """Yield the records up to the sequence number `last`, which must all be complete.

        Raises `IndexDamagedError` if a record is missing.
        """
        while self.sequence < last:
            entry = self._next() or self._first_elsewhere()
            if entry is None or entry.sequence != self.sequence + 1:
                raise lost_write(self.sequence + 1)
            self._offset = entry.end
            self.sequence += 1
            yield entry.sequence, entry.body

    def _next(self) -> Entry | None:
        if self._descriptor < 0:
            return None
        head = os.pread(self._descriptor, _HEAD.size, self._offset)
        if len(head) < _HEAD.size:
            return None
        length = _HEAD.unpack(head)[2]
        data = os.pread(self._descriptor, _HEAD.size + length, self._offset)
        entry = entry_at(data, 0)
        return None if entry is None else entry._replace(end=self._offset + entry.end)

    def _first_elsewhere(self) -> Entry | None:
        """Open the last file that begins at or before the next record, and return this record."""
        self.close()
        paths = [path for first, path in self._log.files() if first <= self.sequence + 1]
        if paths:
            self._descriptor, self._offset = os.open(paths[-1], os.O_RDONLY | os.O_CLOEXEC), 0
        entry = self._next()
        while entry is not None and entry.sequence <= self.sequence:
            self._offset = entry.end
            entry = self._next()
        return entry

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        """Close the file, which would keep a removed log on the disk.

        A reader drops its `Tail` together with the generation that another one has replaced.
        """
        self.close()


class LogWriter:
    """Appends records to a log. Only one process may have one at a time."""

    def __init__(self, log: Log, sequence: int) -> None:
        """Continue after the record `sequence`, the last valid one."""
        self._log, self.sequence = log, sequence
        self._descriptor, self._offset, self._size = -1, 0, 0
        self._is_synced = True
        # The last record that is known to be on the disk.
        self._synced = 0
        # Held while the file is synced or closed, because another thread may do either.
        self._file_lock = threading.Lock()
        # After an error of the disk nothing is appended, because the state of the file is unknown.
        self.error: BaseException | None = None
        for draft in log.drafts():
            draft.unlink(missing_ok=True)
        files = log.files()
        if files and files[-1][0] <= sequence + 1:
            self._continue(*files[-1])

    def append(self, body: bytes) -> int:
        """Append a record; return its sequence number. Raises `StorageFullError`."""
        self._check()
        data = frame(self.sequence + 1, self._synced, body)
        if self._offset + len(data) > self._size:
            self._begin(max(FILE_BYTES, len(data)))
        try:
            write_at(self._descriptor, data, self._offset)
        except OSError as error:
            self.error = error
            self._check()
        self._offset += len(data)
        self.sequence += 1
        self._is_synced = False
        return self.sequence

    def sync(self) -> None:
        """Sync all records to the disk; raises `StorageFullError`.

        An error is final: nothing can be appended after it. The records before a failed append are
        synced nevertheless, because their writes may have returned.
        """
        with self._file_lock:
            if not self._is_synced:
                # Set first, because a record may be appended while the file is synced.
                self._is_synced, last = True, self.sequence
                try:
                    sync_data(self._descriptor)
                    self._synced = last
                except OSError as error:
                    self.error = error
            self._check()

    def move(self, log: Log) -> None:
        """Continue in a log whose folder is the renamed one of this log."""
        self._log = log

    def close(self) -> None:
        """Close the file, without a sync."""
        with self._file_lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _check(self) -> None:
        if self.error is not None:
            reason = self.error.strerror if isinstance(self.error, OSError) else repr(self.error)
            text = f"the log could not be written ({reason}); the collection is read-only"
            raise StorageFullError(f"{text} until it is opened again") from self.error

    def _continue(self, first: int, path: Path) -> None:
        data = path.read_bytes()
        end = end_of(data, first)
        if end.sequence != self.sequence:
            # A merge has later records than the file: the next record begins a file.
            return
        # The process that made the file may have ended before it synced the name.
        sync_folder(path.parent)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._offset, self._size = end.offset, len(data)
        # The process that appended the last records may have ended before it synced them.
        self._is_synced = False
        if end.rest:
            # Remove the records that were not kept, so that none of them follows the next record,
            # not even after a loss of power.
            write_at(self._descriptor, bytes(end.rest), end.offset)
            self.sync()

    def _begin(self, size: int) -> None:
        """Begin a file of `size` bytes; the records so far are synced first."""
        if self._descriptor >= 0:
            self.sync()
        path = self._log.folder / f"{self.sequence + 1:020d}{LOG_SUFFIX}"
        draft = path.with_suffix(_DRAFT_SUFFIX)
        with full_disk_errors():
            descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            with full_disk_errors():
                reserve(descriptor, size)
                os.fsync(descriptor)
                # From now on the log may have a file with this name, even if an error follows. So
                # the next record begins this file again, and is never in an earlier one.
                self._size = 0
                os.rename(draft, path)
                sync_folder(path.parent)
        except BaseException:
            os.close(descriptor)
            draft.unlink(missing_ok=True)
            raise
        self.close()
        self._descriptor, self._offset, self._size = descriptor, 0, size
