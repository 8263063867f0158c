"""Writes snapshots of indexes."""

import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from divgrpc.backup.archive import ArchiveWriter, Member
from divgrpc.backup.capture import Capture, CapturedFile, capture
from divgrpc.backup.contents import DESCRIPTION, Contents, SnapshotEntry
from divgrpc.errors import IndexDamagedError, invalid
from divgrpc.platforms import lock_exclusively
from divgrpc.storage.arrays import full_disk_errors, sync_folder
from divgrpc.storage.generations import (
    POINTER,
    IndexFolder,
    indexes_without_pointer,
    list_indexes,
)
from divgrpc.storage.meter import Meter, OnProgress
from divgrpc.version import VERSION

# Stands for standard output, and for standard input.
PIPE: Final = "-"


def write_snapshot(
    folder: Path | str, file: Path | str, *, on_progress: OnProgress | None = None
) -> list[SnapshotEntry]:
    """Copy an index, or all indexes of a data directory, into one file; return what is in it.

    A server may serve these indexes and write to them meanwhile. Each index is in the snapshot as
    it was at one moment; two indexes may be of different moments. Checksums are compared, so the
    copy of a damaged index fails.

    folder: a data directory, or the folder of an index.
    file: a new file, or "-" for standard output. It appears only once it is complete, and only its
        owner can read it.
    on_progress: called with the number of MiB that were copied of each index.

    Raises `InvalidArgumentError` if the folder has no index or the file exists,
    `IndexDamagedError`, `OtherFormatError`, `IndexChangedError`, `IndexNotFoundError` if an index
    is deleted meanwhile, and `StorageFullError`.
    """
    indexes = _indexes_in(Path(folder).absolute(), folder)
    with _new_file(file) as stream:
        archive = ArchiveWriter(stream)
        entries = [_add_index(archive, index, on_progress) for index in indexes]
        archive.finish()
        return entries


def _indexes_in(path: Path, folder: Path | str) -> list[IndexFolder]:
    if (path / POINTER).exists():
        return [IndexFolder(path)]
    names = list_indexes(path) if path.is_dir() else []
    if not names:
        raise invalid("folder", f"must be a data directory or the folder of an index, got {folder}")
    if lost := indexes_without_pointer(path):
        raise IndexDamagedError(
            f"index {lost[0]!r} lacks the file CURRENT: stop the server and run"
            " `divgrpc doctor --repair`, or copy the other indexes one by one"
        )
    return [IndexFolder(path / name) for name in names]


@contextmanager
def _new_file(file: Path | str) -> Iterator[BinaryIO]:
    """Yield a stream, whose bytes become a file at the end of the `with` block."""
    if str(file) == PIPE:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(file).absolute()
    if path.exists():
        raise invalid("file", f"exists already: {file}")
    if not path.parent.is_dir():
        raise invalid("file", f"must be in a folder that exists, got {file}")
    _remove_drafts(path)
    descriptor, draft = _make_draft(path)
    try:
        with open(descriptor, "wb") as stream:
            yield stream
            with full_disk_errors("the snapshot"):
                stream.flush()
                os.fsync(stream.fileno())
        os.rename(draft, path)
        sync_folder(path.parent)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def _make_draft(path: Path) -> tuple[int, str]:
    """Make a new file beside `path` that only this user can read; return its descriptor and name.

    It is locked, if the file system has locks, so that no other process takes it for a draft that
    was left behind.
    """
    while True:
        descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with suppress(OSError):
            lock_exclusively(descriptor)
        # Another process may have removed it before it was locked.
        if os.path.exists(draft):
            return descriptor, draft
        os.close(descriptor)


def _remove_drafts(path: Path) -> None:
    """Remove the drafts of `path` that processes have left behind which were killed."""
    pattern = re.compile(re.escape(f".{path.name}.") + "[a-z0-9_]{8}")
    for name in filter(pattern.fullmatch, os.listdir(path.parent)):
        # It may be another user's, or gone by now. Without locks, it may be in use.
        with suppress(OSError), open(path.parent / name, "rb+") as draft:
            if lock_exclusively(draft):
                os.unlink(draft.name)


def _add_index(
    archive: ArchiveWriter, index: IndexFolder, on_progress: OnProgress | None
) -> SnapshotEntry:
    with _named_damage(index.name), capture(index) as captured:
        contents = _contents(index.name, captured)
        text = contents.to_json(VERSION)
        archive.add(Member(f"{index.name}/{DESCRIPTION}", len(text)), [text])
        meter = Meter(on_progress, f"copying {index.name}", contents.entry.bytes)
        for file in captured.files:
            member = Member(f"{index.name}/{file.name}", file.member.size)
            archive.add(member, _metered(file, meter))
    return contents.entry


@contextmanager
def _named_damage(name: str) -> Iterator[None]:
    try:
        yield
    except IndexDamagedError as error:
        raise IndexDamagedError(f"index {name!r}: {error}; `divgrpc doctor` says more") from error


def _contents(name: str, captured: Capture) -> Contents:
    files = tuple(file.member for file in captured.files)
    size = sum(file.size for file in files)
    return Contents(SnapshotEntry(name, captured.generation, captured.sequence, size), files)


def _metered(file: CapturedFile, meter: Meter) -> Iterable[bytes]:
    for block in file.read():
        yield block
        meter.add(len(block))
