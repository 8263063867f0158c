"""Makes indexes from a snapshot.

All indexes are made in staging folders, which a crash leaves behind and the next build removes. If
the whole snapshot was read and its digest is right, renames make them current.
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from divgrpc.backup.archive import ArchiveReader, Member
from divgrpc.backup.contents import (
    DESCRIPTION,
    DESCRIPTION_BYTES_MAX,
    Contents,
    SnapshotEntry,
)
from divgrpc.backup.snapshots import PIPE
from divgrpc.collection import Collection
from divgrpc.errors import IndexDamagedError, invalid
from divgrpc.storage.arrays import full_disk_errors, sync_folder
from divgrpc.storage.generations import (
    POINTER,
    Staging,
    read_manifest,
    staging,
    write_pointer,
)
from divgrpc.storage.meter import Meter, OnProgress
from divgrpc.storage.published import was_written
from divgrpc.writes.layout import WritesFolder


def restore_snapshot(
    file: Path | str,
    folder: Path | str,
    *,
    replace: bool = False,
    on_progress: OnProgress | None = None,
) -> list[SnapshotEntry]:
    """Make all indexes of a snapshot in a data directory; return their new states.

    Either all indexes are made, or none and nothing is changed; if the process is killed while it
    renames the finished indexes, some may be made. Restore only snapshots from people you trust:
    like the files of an index, they are searched by compiled code. A server that runs on the data
    directory serves them at once. If root restores, the files belong to the owner of the data
    directory. An index keeps the number of its generation, unless the data directory has this index
    with the same number or a later one: then it gets the next number, because the numbers of an
    index only grow.

    file: a file that `write_snapshot` has made, or "-" for standard input.
    folder: a data directory; it is made if it does not exist.
    replace: replace indexes that exist.
    on_progress: called with the number of MiB that were read of each index.

    Raises `InvalidArgumentError` if the file cannot be opened, `IndexDamagedError` if it is not a
    snapshot or is damaged, `OtherFormatError` if a later release made it, `IndexExistsError`,
    `BuildUnderWayError` and `StorageFullError`.
    """
    root = Path(folder).absolute()
    if (root / POINTER).exists():
        raise invalid("folder", f"must be a data directory, and {folder} is the folder of an index")
    with ExitStack() as stack:
        archive = ArchiveReader(stack.enter_context(_open(file)))
        restorations: list[_Restoration] = []
        while (member := archive.read_member()) is not None:
            contents = _read_contents(archive, member)
            target = root / contents.entry.name
            if target.exists() and not target.is_dir():
                raise invalid("folder", f"has a file named {contents.entry.name}: move it away")
            stage = stack.enter_context(staging(target, replace=replace))
            restorations.append(_Restoration(stage, contents))
            restorations[-1].read(archive, on_progress)
        if not restorations:
            raise IndexDamagedError("the snapshot holds no index")
        for restoration in restorations:
            restoration.recover()
        return [restoration.publish() for restoration in restorations]


@contextmanager
def _open(file: Path | str) -> Iterator[BinaryIO]:
    if str(file) == PIPE:
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(Path(file).open("rb"))
        except OSError as error:
            raise invalid("file", f"cannot be read: {file}: {error.strerror}") from error
        yield stream


def _read_contents(archive: ArchiveReader, member: Member) -> Contents:
    name, _, file = member.name.partition("/")
    if file != DESCRIPTION or member.size > DESCRIPTION_BYTES_MAX:
        raise IndexDamagedError("the file is not a snapshot, or it is damaged")
    contents = Contents.from_json(b"".join(archive.read_blocks(member)))
    if contents.entry.name != name:
        raise IndexDamagedError("the snapshot is damaged: a description has invalid names")
    return contents


@contextmanager
def _name_errors() -> Iterator[None]:
    """Convert errors about names, which only a snapshot of somebody else's making can cause."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
            raise IndexDamagedError(
                "the snapshot is damaged: names contradict one another"
            ) from None
        raise


class _Restoration:
    """An index that is being made in a staging folder, which has the form of an index folder."""

    def __init__(self, stage: Staging, contents: Contents) -> None:
        self._stage, self._entry, self._files = stage, contents.entry, contents.files
        self._folder = stage.folder / str(contents.entry.generation)

    def read(self, archive: ArchiveReader, on_progress: OnProgress | None) -> None:
        """Write the files of the index, which follow its description in the archive."""
        meter = Meter(on_progress, f"restoring {self._entry.name}", self._entry.bytes)
        for file in self._files:
            expected = Member(f"{self._entry.name}/{file.name}", file.size)
            if archive.read_member() != expected:
                raise IndexDamagedError("the snapshot is damaged: a file is missing")
            path = self._stage.folder / file.name
            with full_disk_errors(), _name_errors():
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as target:
                    for block in archive.read_blocks(file):
                        target.write(block)
                        meter.add(len(block))
                    target.flush()
                    os.fsync(target.fileno())

    def recover(self) -> None:
        """Apply the log, and give files room for later writes, as after a crash."""
        manifest = read_manifest(self._folder)
        if manifest.generation != self._entry.generation:
            raise IndexDamagedError("the snapshot is damaged: the manifest has another number")
        if was_written(self._folder):
            writes = WritesFolder(self._folder)
            info = writes.read_info()
            assert info is not None  # noqa: S101  # `was_written` says so
            writes.point_files(manifest).reserve(info.items[1])
            writes.log.folder.mkdir(exist_ok=True)
            write_pointer(self._stage.folder, self._entry.generation)
            with Collection.open(self._stage.folder) as collection:
                if collection.sequence != self._entry.sequence:
                    raise IndexDamagedError(
                        f"the snapshot of index {self._entry.name!r} ends with write"
                        f" {collection.sequence}, and not with {self._entry.sequence}"
                    )
        self._give_to_owner(self._stage.folder)
        for folder, _, _ in os.walk(self._folder):
            sync_folder(Path(folder))

    def publish(self) -> SnapshotEntry:
        """Make the index current."""
        root = self._stage.folder.parent
        number = self._stage.adopt(self._folder)
        self._give_to_owner(root / self._entry.name)
        return SnapshotEntry(self._entry.name, number, self._entry.sequence, self._entry.bytes)

    @staticmethod
    def _give_to_owner(folder: Path) -> None:
        """If this is root, let a server that is not root write to the files in a folder."""
        if os.geteuid():
            return
        owner = folder.parent.stat()
        for path in (folder, *folder.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
