"""Copies of shards on a disk of this machine, for servers that mount the data folder by a network.

    <cache>/<index>.<generation>.<shard>.<crc32>/       manifest.json, shared/ and shards/<shard>/
    <cache>/<index>.<generation>.<shard>.<crc32>.part/  a copy that is being made
    <cache>/.<index>.<shard>.lock                       locked (flock) while a process uses copies

A copy has the layout of the generation's folder, with one of its shards. The checksum is that of
the manifest of the whole generation, which has the checksums of all its files. So a name stands for
the same bytes for ever, also after an index was deleted and built again.

A copy is made under another name and renamed, so a process that is killed leaves no copy that is
incomplete. All checksums are compared whenever a copy is opened.

The processes of a machine share the copies. Those that open one share its lock, and one that makes
or removes copies has the lock alone. A copy stays mapped after its removal.
"""

import contextlib
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from divgrpc.errors import DivgrpcError, IndexDamagedError, IndexNotFoundError, StorageFullError
from divgrpc.parameters import INDEX_NAME
from divgrpc.platforms import wait_for_lock
from divgrpc.sharding.files import open_shard_part
from divgrpc.storage.arrays import damage_errors, full_disk_errors, sync_folder
from divgrpc.storage.generations import Generation, IndexFolder, read_manifest, staging_path
from divgrpc.storage.manifest import MANIFEST, Manifest
from divgrpc.storage.shards import shard_files

_PART: Final = ".part"
_COPIED_BYTES: Final = 1 << 22
_NAME: Final = re.compile(
    rf"({INDEX_NAME.pattern})\.(\d+)\.(?P<shard>\d+)\.([0-9a-f]{{8}})({re.escape(_PART)})?"
)


class Report(Protocol):
    """Takes what happened to a copy; `reason` is "" unless something is wrong."""

    def __call__(self, event: str, shard: str, reason: str) -> None:
        """Take an event; `shard` is the name of the copy."""


class ShardCopies:
    """The copies in one folder, for the indexes in another."""

    def __init__(self, folder: Path, root: Path, report: Report) -> None:
        """Take the folder of the copies and the folder of the indexes."""
        self._folder, self._root, self._report = folder, root, report

    def open(self, index: str, generation: int, shard: int) -> Generation:
        """Open the copy of a shard, after making it if there is none.

        A damaged copy is made again, once. If no copy can be written, the shard is opened where it
        is. Raises `IndexDamagedError` if the copy is damaged again, or the original cannot be read,
        and `OtherFormatError`.
        """
        return self._open(self._root / index / str(generation), index, generation, shard)

    def prepare(self, folder: Path, index: str, shard: int) -> Generation:
        """Open the copy of a shard of a build that is complete in `folder`, after making it.

        The build keeps its number when it is published, so `open` finds the same copy. Raises as
        `open` does.
        """
        return self._open(folder, index, read_manifest(folder).generation, shard)

    def _open(self, source: Path, index: str, generation: int, shard: int) -> Generation:
        text = _read(source / MANIFEST)
        copy = self._folder / f"{index}.{generation}.{shard}.{zlib.crc32(text):08x}"
        try:
            with self._lock(index, shard, is_shared=True), contextlib.suppress(IndexDamagedError):
                return open_shard_part(copy, shard)
            with self._lock(index, shard):
                return self._open_or_make(source, copy, text, shard)
        except (OSError, StorageFullError) as error:
            self._report("a shard has no copy, and is read where it is", copy.name, str(error))
        return open_shard_part(source, shard)

    def _open_or_make(self, source: Path, copy: Path, text: bytes, shard: int) -> Generation:
        """Open a copy, after making it if it is missing or damaged. The lock must be held."""
        if not copy.exists():
            self._make(source, copy, text, shard)
        try:
            return open_shard_part(copy, shard)
        except IndexDamagedError as error:
            self._report("a copy is damaged, and is made again", copy.name, str(error))
        shutil.rmtree(copy)
        self._make(source, copy, text, shard)
        try:
            return open_shard_part(copy, shard)
        except IndexDamagedError as error:
            shutil.rmtree(copy)
            raise IndexDamagedError(f"in a new copy, {error}") from error

    def _make(self, source: Path, copy: Path, text: bytes, shard: int) -> None:
        """Copy the files of a shard; raises `IndexDamagedError`, `StorageFullError`, `OSError`."""
        start_time = time.monotonic()
        part = copy.with_name(copy.name + _PART)
        # A process that was killed may have left this folder.
        shutil.rmtree(part, ignore_errors=True)
        try:
            with full_disk_errors():
                part.mkdir()
                (part / MANIFEST).write_bytes(text)
            for name in shard_files(source, Manifest.from_json(text), shard):
                _copy(source / name, part / name)
            for folder in {path.parent for path in part.rglob("*")}:
                sync_folder(folder)
            os.rename(part, copy)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        seconds = time.monotonic() - start_time
        self._report(f"a shard was copied in {seconds:.1f} s", copy.name, "")

    def remove_stale(self) -> None:
        """Remove the copies of generations that are not current any more, and unfinished ones.

        Waits for the processes that are making copies. What cannot be removed is reported.
        """
        try:
            stale = [match for match in self._matches() if self._is_stale(match)]
            for index, shard in sorted({(match[1], int(match["shard"])) for match in stale}):
                with self._lock(index, shard):
                    self._remove_stale(index, shard)
        except OSError as error:
            self._report("old copies cannot be removed", "", str(error))

    def _remove_stale(self, index: str, shard: int) -> None:
        """Remove the stale copies of a shard of an index, whose lock must be held."""
        # List the folders again, because they may have changed before this process had the lock.
        for match in self._matches():
            if (match[1], int(match["shard"])) == (index, shard) and self._is_stale(match):
                shutil.rmtree(self._folder / match[0])
                self._report("an old copy was removed", match[0], "")

    def _matches(self) -> list[re.Match[str]]:
        with contextlib.suppress(FileNotFoundError):
            return [match for name in os.listdir(self._folder) if (match := _NAME.fullmatch(name))]
        return []

    def _is_stale(self, match: re.Match[str]) -> bool:
        """Return whether a folder is no copy of the current generation of its index."""
        name, generation, _, checksum, part = match.groups()
        if part is None and self._is_prepared(name, int(generation)):
            return False
        try:
            index = IndexFolder(self._root / name)
            number = index.current()
            text = _read(index.path / str(number) / MANIFEST)
        except IndexNotFoundError:
            return self._is_mounted()
        except (DivgrpcError, OSError):
            return False  # the pointer or the manifest cannot be read now
        is_current = (number, f"{zlib.crc32(text):08x}") == (int(generation), checksum)
        return part is not None or not is_current

    def _is_prepared(self, name: str, generation: int) -> bool:
        """Return whether a build of an index is under way that may get this number."""
        index = self._root / name
        prefix = staging_path(index, "").name
        try:
            # In the order of a build: it writes to a staging folder, renames it, and points to it.
            is_staged = any(entry.startswith(prefix) for entry in os.listdir(self._root))
            if not is_staged and not (index / str(generation)).exists():
                return False
            return generation > IndexFolder(index).current()
        except IndexNotFoundError:
            return True
        except (DivgrpcError, OSError):
            return True  # it is not known now

    def _is_mounted(self) -> bool:
        """Return whether the data folder has any entry; an empty mount point has none.

        A data folder whose indexes were all deleted has the lock of its server.
        """
        try:
            return any(self._root.iterdir())
        except OSError:
            return False

    @contextlib.contextmanager
    def _lock(self, index: str, shard: int, *, is_shared: bool = False) -> Iterator[None]:
        """Lock the copies of a shard of an index; waits for others. Raises `OSError`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f".{index}.{shard}.lock").open("ab") as file:
            wait_for_lock(file, is_shared=is_shared)
            yield


def _read(path: Path) -> bytes:
    """Return the text of the manifest of a whole generation; raises `IndexDamagedError`."""
    try:
        with damage_errors("the manifest"):
            return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise IndexDamagedError("the manifest is missing") from None


def _copy(source: Path, target: Path) -> None:
    """Copy a file and sync it, so that an error of the disk is raised here.

    A page that the system could not write would be read as other bytes later, after the checksums
    were compared. Raises `IndexDamagedError` for the source, and `StorageFullError` or `OSError`
    for the target.
    """
    with full_disk_errors():
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb", buffering=0) as file:
            for block in _blocks(source):
                view = memoryview(block)
                while view:
                    view = view[file.write(view) :]
            os.fsync(file.fileno())


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file; raises `IndexDamagedError`."""
    try:
        with damage_errors(f"file {path.name}"), path.open("rb", buffering=0) as file:
            while block := file.read(_COPIED_BYTES):
                yield block
    except (FileNotFoundError, NotADirectoryError):
        raise IndexDamagedError(f"file {path.name} is missing") from None
