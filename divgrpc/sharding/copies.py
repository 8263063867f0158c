"""Copies of shards on a disk of this machine, for servers that mount the data folder by a network.

    <cache>/<index>.<generation>.<shard>.<crc32>/       manifest.json, shared/ and shards/<shard>/
    <cache>/<index>.<generation>.<shard>.<crc32>.part/  a copy that is being made
    <cache>/.<index>.<shard>.lock                       locked (flock) while a process opens copies
    <cache>/.<index>.<shard>.part.lock                  locked while a process makes one
    <cache>/<staging folder>.<shard>/                   arrays of a build that is under way
    <cache>/<staging folder>.<shard>.part/              a copy of them that is being made
    <cache>/<staging folder>.<shard>.lock               locked while a process makes it

A copy has the layout of the generation's folder, with one of its shards. The checksum is that of
the manifest of the whole generation, which has the checksums of all its files. So a name stands for
the same bytes for ever, also after an index was deleted and built again.

A copy is made under another name and renamed, so a process that is killed leaves no copy that is
incomplete. All checksums are compared whenever a copy is opened.

The processes of a machine share the copies. Those that open one share its lock, and one that
repairs or removes copies has the lock alone. A second lock lets one process at a time make or
remove copies, so copies of the generation before are opened meanwhile. A copy stays mapped after
its removal. Who has both locks alone removes their files if no copy is left. Whoever has waited for
a file that was removed meanwhile locks the new one.

A shard of a build has a copy while the builder offers it (`staged_shards`). Its checksums are
compared once, when the copy is made.
"""

import contextlib
import os
import re
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final, Protocol

from divgrpc.arrays import Array
from divgrpc.errors import DivgrpcError, IndexDamagedError, IndexNotFoundError, StorageFullError
from divgrpc.parameters import INDEX_NAME
from divgrpc.platforms import wait_for_lock
from divgrpc.sharding.files import open_shard_part
from divgrpc.sharding.staged_arrays import StagedArrays, is_offered
from divgrpc.sharding.staged_shards import OFFER
from divgrpc.storage.arrays import (
    ArrayEntry,
    damage_errors,
    full_disk_errors,
    open_array,
    sync_folder,
)
from divgrpc.storage.generations import (
    STAGING_INFIX,
    Generation,
    IndexFolder,
    read_manifest,
    staging_path,
)
from divgrpc.storage.manifest import MANIFEST, Manifest
from divgrpc.storage.mounts import check_mounted
from divgrpc.storage.shards import SHARDS, shard_files

_PART: Final = ".part"
_LOCK: Final = ".lock"
_COPIED_BYTES: Final = 1 << 22
_NAME: Final = re.compile(
    rf"(?P<index>{INDEX_NAME.pattern})\.(\d+)\.(?P<shard>\d+)\.([0-9a-f]{{8}})({re.escape(_PART)})?"
)
_LOCK_NAME: Final = re.compile(
    rf"\.(?P<index>{INDEX_NAME.pattern})\.(?P<shard>\d+)({re.escape(_PART)})?{re.escape(_LOCK)}"
)
_STAGED: Final = re.compile(
    rf"(?P<copy>(?P<staging>\.{INDEX_NAME.pattern}{re.escape(STAGING_INFIX)}[0-9A-Za-z]+)"
    rf"\.(?P<shard>\d+))({re.escape(_PART)}|{re.escape(_LOCK)})?"
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
        # The shards of indexes that threads of this process copy, or wait for others to copy.
        self._copying: list[tuple[str, int]] = []
        self.staged = StagedCopies(folder, root, report)

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
            with self._noting(index, shard), self._lock(index, shard, _PART):
                if not copy.exists():
                    self._make(source, copy, text, shard)
                with self._lock(index, shard):
                    return self._open_or_repair(source, copy, text, shard)
        except (OSError, StorageFullError) as error:
            self._report("a shard has no copy, and is read where it is", copy.name, str(error))
        return open_shard_part(source, shard)

    def is_copying(self, index: str, shard: int) -> bool:
        """Return whether a thread waits for a copy of a shard, which this or another one makes."""
        return (index, shard) in self._copying

    @contextlib.contextmanager
    def _noting(self, index: str, shard: int) -> Iterator[None]:
        """Note for `is_copying` that a thread waits for a copy."""
        self._copying.append((index, shard))
        try:
            yield
        finally:
            self._copying.remove((index, shard))

    def _open_or_repair(self, source: Path, copy: Path, text: bytes, shard: int) -> Generation:
        """Open a copy, after making it again if it is damaged. The locks must be held."""
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
        with _making(copy) as part:
            with full_disk_errors():
                (part / MANIFEST).write_bytes(text)
            for name in shard_files(source, Manifest.from_json(text), shard):
                _copy(source / name, part / name)
        seconds = time.monotonic() - start_time
        self._report(f"a shard was copied in {seconds:.1f} s", copy.name, "")

    def remove_stale(self) -> None:
        """Remove the copies of generations that are not current any more, and unfinished ones.

        Also removes those of builds that are over, and the locks of shards without a copy. Waits
        for the processes that are making copies. What cannot be removed is reported.
        """
        with self._errors_reported(""):
            self.staged.remove_ended()
            stale = {_shard_of(match) for match in self._matches(_NAME) if self._is_stale(match)}
            locked = {_shard_of(match) for match in self._matches(_LOCK_NAME)}
            unused = locked - {_shard_of(match) for match in self._matches(_NAME)}
            for index, shard in sorted(stale | unused):
                # A copy that cannot be removed keeps no other one.
                with (
                    self._errors_reported(f"{index}.{shard}"),
                    self._lock(index, shard, _PART),
                    self._lock(index, shard),
                ):
                    self._remove_stale(index, shard)

    @contextlib.contextmanager
    def _errors_reported(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._report("old copies cannot be removed", name, str(error))

    def _remove_stale(self, index: str, shard: int) -> None:
        """Remove the stale copies of a shard of an index, whose locks must be held.

        If no copy is left, removes the files of the locks too, so nothing may be done with the
        copies afterwards.
        """
        # List the folders again, because they may have changed before this process had the lock.
        matches = [match for match in self._matches(_NAME) if _shard_of(match) == (index, shard)]
        stale = [match for match in matches if self._is_stale(match)]
        for match in stale:
            shutil.rmtree(self._folder / match[0])
            self._report("an old copy was removed", match[0], "")
        if len(stale) == len(matches):
            for part in (_PART, ""):
                self._lock_path(index, shard, part).unlink(missing_ok=True)

    def _matches(self, pattern: re.Pattern[str]) -> list[re.Match[str]]:
        """Return the names in the folder of the copies that match a pattern."""
        return [match for name in _names_in(self._folder) if (match := pattern.fullmatch(name))]

    def _is_stale(self, match: re.Match[str]) -> bool:
        """Return whether a folder is no copy of the current generation of its index."""
        name, generation, _, checksum, part = match.groups()
        if part is None and self._is_prepared(name, int(generation)):
            return False
        try:
            index = IndexFolder(self._root / name)
            number = index.current()
            text = _read(index.path / str(number) / MANIFEST)
            Manifest.from_json(text)
        except IndexNotFoundError:
            return self._is_mounted()
        except (DivgrpcError, OSError):
            return False  # the pointer or the manifest is damaged, or cannot be read now
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
        except (DivgrpcError, OSError):
            return True  # there is no pointer yet, or it cannot be read now

    def _is_mounted(self) -> bool:
        with contextlib.suppress(OSError):
            check_mounted(self._root)
            return True
        return False

    @contextlib.contextmanager
    def _lock(
        self, index: str, shard: int, part: str = "", *, is_shared: bool = False
    ) -> Iterator[None]:
        """Lock the copies of a shard of an index; waits for others. Raises `OSError`.

        part: `_PART` for the lock of those who make and remove copies, which is taken first.
        """
        with _locked(self._lock_path(index, shard, part), is_shared=is_shared):
            yield

    def _lock_path(self, index: str, shard: int, part: str) -> Path:
        return self._folder / f".{index}.{shard}{part}{_LOCK}"


class StagedCopies:
    """The copies of shards of builds that are under way, while builders offer them."""

    def __init__(self, folder: Path, root: Path, report: Report) -> None:
        """Take the folder of the copies and the folder of the indexes."""
        self._folder, self._root, self._report = folder, root, report
        # The copies that threads of this process make, and those that could not be made.
        self._making: set[str] = set()
        self._failed: set[str] = set()

    def open(self, staged: StagedArrays) -> dict[str, Array]:
        """Map the arrays of a copy; a thread makes it if there is none.

        Raises `IndexNotFoundError` if there is no copy yet, or if none can be made.
        """
        name = f"{staged.folder.parts[-3]}.{staged.folder.name}"
        copy, files = self._folder / name, staged.files
        with contextlib.suppress(IndexDamagedError):
            return {
                array: open_array(copy / f"{array}.npy", entry, verify=False, grows=True)
                for array, (_, entry) in files.items()
            }
        if name in self._failed:
            raise IndexNotFoundError(f"the shard {name} cannot be copied, as the log says")
        if name not in self._making:
            self._making.add(name)
            arguments = copy, files, staged.is_offered
            threading.Thread(target=self._make, args=arguments, daemon=True).start()
        raise IndexNotFoundError(f"the shard {name} is being copied")

    def _make(
        self,
        copy: Path,
        files: Mapping[str, tuple[Path, ArrayEntry]],
        is_offered: Callable[[], bool],
    ) -> None:
        """Make a copy, unless another process has made it."""
        start_time = time.monotonic()
        try:
            with _locked(_lock_of(copy)):
                if copy.exists() or not is_offered():
                    return
                with _making(copy) as part:
                    for name, (path, entry) in files.items():
                        target = part / f"{name}.npy"
                        _copy(path, target)
                        # An array that is still open has no checksum.
                        open_array(target, entry, verify=entry.crc32 != 0, grows=True)
            seconds = time.monotonic() - start_time
            self._report(f"a shard of a build was copied in {seconds:.1f} s", copy.name, "")
        except (OSError, StorageFullError, IndexDamagedError) as error:
            if is_offered():
                self._failed.add(copy.name)
                self._report("a shard of a build has no copy", copy.name, str(error))
        finally:
            self._making.discard(copy.name)

    def remove_ended(self) -> bool:
        """Remove the copies of what no builder offers any more; return whether others are left.

        Waits for the processes that are making copies of it.
        """
        # A copy that is finished after this line is among the names below.
        is_making = bool(self._making)
        matches: list[re.Match[str]] = []
        with contextlib.suppress(OSError):
            names = _names_in(self._folder)
            matches = [match for name in names if (match := _STAGED.fullmatch(name))]
        ended = [match for match in matches if not self._is_offered(match)]
        for copy in {self._folder / match["copy"] for match in ended}:
            with contextlib.suppress(OSError), _locked(_lock_of(copy)):
                for path in (copy, copy.with_name(copy.name + _PART)):
                    shutil.rmtree(path, ignore_errors=True)
                _lock_of(copy).unlink(missing_ok=True)
            self._failed.discard(copy.name)
        return is_making or len(matches) > len(ended)

    def _is_offered(self, match: re.Match[str]) -> bool:
        return is_offered(self._root / match["staging"] / SHARDS / match["shard"], OFFER)


def _lock_of(copy: Path) -> Path:
    """Return the file that is locked while a copy of a shard of a build is made or removed."""
    return copy.with_name(copy.name + _LOCK)


@contextlib.contextmanager
def _locked(path: Path, *, is_shared: bool = False) -> Iterator[None]:
    """Lock a file in the folder of the copies; waits for others. Raises `OSError`.

    Who has the lock alone may remove the file at the end of the block.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            wait_for_lock(file, is_shared=is_shared)
            if _is_at(file, path):
                yield
                return


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Return whether an open file is the one at a path, and was not removed meanwhile."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _making(copy: Path) -> Iterator[Path]:
    """Yield a new folder, which gets the name of the copy at the end of the block.

    Raises `StorageFullError` and `OSError`.
    """
    part = copy.with_name(copy.name + _PART)
    # A process that was killed may have left this folder.
    shutil.rmtree(part, ignore_errors=True)
    try:
        with full_disk_errors():
            part.mkdir()
        yield part
        for folder in {path.parent for path in part.rglob("*")}:
            sync_folder(folder)
        os.rename(part, copy)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _shard_of(match: re.Match[str]) -> tuple[str, int]:
    """Return the index and the shard of a copy or a lock."""
    return match["index"], int(match["shard"])


def _names_in(folder: Path) -> list[str]:
    """Return the names in the folder of the copies, which the first copy makes."""
    with contextlib.suppress(FileNotFoundError):
        return os.listdir(folder)
    return []


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
