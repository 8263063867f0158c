"""Folders of indexes: immutable generations, staged, synced, renamed.

Theory of operation. An index is a folder. The files that a build needs are hidden beside it:

    <root>/<name>/CURRENT              the number of the current generation
    <root>/<name>/<number>/            manifest.json and one .npy file per array, never changed
    <root>/<name>/<number>.default.json  defaults of calls (`divgrpc.storage.defaults`)
    <root>/.<name>.staging-<random>/   a generation that is being written
    <root>/.<name>.lock                locked (flock) while a process builds or deletes the index

A build writes to its staging folder and syncs it. It renames the folder to the next number, and
then replaces CURRENT by a rename. The old generation is current before that rename, the new one
after it, and a crash at any moment leaves one of the two. A crash may also leave staging folders
and numbers above CURRENT. Once the lock is free, no build uses them, and `sweep` removes them.

Readers take no lock. They read CURRENT and map that generation. A mapping keeps its pages after its
files are unlinked, so old generations are removed at once. If CURRENT changes meanwhile, the reader
begins again.
"""

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.errors import (
    BuildUnderWayError,
    IndexChangedError,
    IndexDamagedError,
    IndexExistsError,
    IndexNotFoundError,
    StorageInUseError,
)
from divgrpc.parameters import INDEX_NAME
from divgrpc.platforms import lock_exclusively
from divgrpc.storage.arrays import (
    ArrayEntry,
    ArrayFile,
    damage_errors,
    full_disk_errors,
    open_array,
    write_synced,
)
from divgrpc.storage.defaults import (
    default_path,
    is_default,
    read_defaults,
    updated,
    write_defaults,
)
from divgrpc.storage.manifest import Manifest
from divgrpc.types import Defaults, IndexInfo

POINTER: Final = "CURRENT"
MANIFEST: Final = "manifest.json"
_READ_ATTEMPTS_MAX: Final = 10
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Generation:
    """One build of an index: its manifest and arrays, read-only, and its defaults."""

    manifest: Manifest
    arrays: dict[str, Array]
    defaults: Defaults = field(default_factory=Defaults)


class IndexFolder:
    """The folder of one index."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self.name = self.path.name
        # A string, because every query calls `pointer_stamp`, and a `Path` would be slower.
        self._pointer = str(self.path / POINTER)

    def pointer_stamp(self) -> tuple[int, int] | None:
        """Return a value that changes with every publish, or None if there is no index."""
        try:
            status = os.stat(self._pointer)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError as error:
            raise IndexDamagedError(f"index {self.name!r} cannot be read") from error
        return status.st_ino, status.st_mtime_ns

    def current(self) -> int:
        """Return the number of the current generation.

        Raises `IndexNotFoundError` and `IndexDamagedError`.
        """
        try:
            with damage_errors(f"the pointer of index {self.name!r}"):
                return int((self.path / POINTER).read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise IndexNotFoundError(f"there is no index {self.name!r}") from None
        except ValueError as error:
            raise IndexDamagedError(f"the pointer of index {self.name!r} is damaged") from error

    def read_info(self) -> IndexInfo:
        """Return the description of the current generation, from its manifest and defaults."""

        def read(folder: Path) -> IndexInfo:
            manifest = read_manifest(folder)
            return manifest.info(self.name, read_defaults(folder, manifest))

        return self._read_current(read)

    def open(self, *, verify: bool = True) -> Generation:
        """Map the current generation; `verify` compares every checksum."""
        return self._read_current(lambda folder: open_generation(folder, verify=verify))

    def set_defaults(self, manifest: Manifest, **changes: Any) -> Defaults:  # noqa: ANN401  # fields
        """Set fields of the `Defaults` of the generation with this `manifest`; return all fields.

        Every reader sees them at once, because the pointer's stamp changes. Raises
        `IndexChangedError` if another generation is current, and `BuildUnderWayError`.
        """
        with _build_lock(self.path):
            generation = self.path / str(self.current())
            if read_manifest(generation) != manifest:
                raise IndexChangedError(f"index {self.name!r} was replaced meanwhile")
            defaults = updated(read_defaults(generation, manifest), changes)
            write_defaults(generation, manifest, defaults)
            _sync_folder(self.path)
            os.utime(self._pointer, ns=(time.time_ns(), time.time_ns()))
        return defaults

    def delete(self) -> int:
        """Remove the index, damaged or not, and return the number of its current generation."""
        with _build_lock(self.path):
            try:
                number = self.current()
            except IndexDamagedError:
                number = max(_numbers(self.path), default=0)
            os.unlink(self.path / POINTER)
            shutil.rmtree(self.path)
        return number

    def _read_current(self, read: Callable[[Path], _T]) -> _T:
        """Call `read` with the current folder, and again if the pointer changed meanwhile.

        The number alone would not show the change, because an index that is deleted and built
        again begins at 1.
        """
        for attempts_left in reversed(range(_READ_ATTEMPTS_MAX)):
            stamp = self.pointer_stamp()
            try:
                value = read(self.path / str(self.current()))
            except (IndexDamagedError, FileNotFoundError):
                if not attempts_left or self._is_unchanged(stamp):
                    raise
            else:
                if not attempts_left or self._is_unchanged(stamp):
                    return value
        raise AssertionError("unreachable")

    def _is_unchanged(self, stamp: tuple[int, int] | None) -> bool:
        return stamp is not None and stamp == self.pointer_stamp()


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest in a generation's folder; raises `IndexDamagedError`."""
    try:
        with damage_errors("the manifest"):
            return Manifest.from_json((folder / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise IndexDamagedError("the manifest is missing") from None


def open_generation(folder: Path, *, verify: bool = True) -> Generation:
    """Map the arrays of a generation's folder and compare them with the manifest.

    `verify` compares checksums too. Raises `IndexDamagedError` and `OtherFormatError`.
    """
    manifest = read_manifest(folder)
    arrays = {
        name: open_array(folder / f"{name}.npy", entry, verify=verify)
        for name, entry in manifest.arrays.items()
    }
    return Generation(manifest, arrays, read_defaults(folder, manifest))


def list_indexes(root: Path) -> list[str]:
    """Return the names of the indexes below `root`, sorted."""
    return sorted(
        entry.name
        for entry in os.scandir(root)
        if INDEX_NAME.fullmatch(entry.name) and os.path.exists(os.path.join(entry.path, POINTER))
    )


class Staging:
    """A generation that is being written. `staging` creates it, and removes it if unpublished."""

    def __init__(self, folder: Path) -> None:
        self._target = folder
        # Everything in the staging folder is removed with it, unless it is published.
        self.folder = folder.parent / f".{folder.name}.staging-{secrets.token_hex(8)}"
        self._files: dict[str, ArrayFile] = {}
        self._entries: dict[str, ArrayEntry] = {}
        self.generation: Generation | None = None
        # Called with the complete folder before it becomes current, so that readers can open it
        # early. An error that it raises ends the build.
        self.on_whole: Callable[[Path], None] | None = None
        self.folder.mkdir(parents=True)

    def begin(
        self, name: str, dtype: npt.DTypeLike, row_shape: tuple[int, ...], rows: int = 0
    ) -> None:
        """Open an array for `append`; raises `StorageFullError` if `rows` rows do not fit."""
        file = ArrayFile(self.folder / f"{name}.npy", dtype, row_shape)
        self._files[name] = file
        if rows:
            file.expect(rows)

    def append(self, name: str, block: Array) -> None:
        """Append rows to an array that `begin` opened."""
        self._files[name].append(block)

    def read(self, name: str) -> Array:
        """Return the rows appended so far, read-only."""
        return self._files[name].read()

    def create(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        """Return a new array of this shape, writable and backed by its file."""
        self.begin(name, dtype, shape[1:])
        return self._files[name].fill(shape[0])

    def publish(self, manifest: Manifest) -> Generation:
        """Make this the current generation; `manifest` gets its number and its arrays."""
        for name in list(self._files):
            self._entries[name] = self._files.pop(name).close()
        number = 1 + max(_numbers(self._target), default=0)
        manifest = replace(manifest, generation=number, arrays=dict(self._entries))
        write_synced(self.folder / MANIFEST, manifest.to_json())
        _sync_folder(self.folder)
        if self.on_whole is not None:
            self.on_whole(self.folder)
        self._target.mkdir(exist_ok=True)
        final = self._target / str(number)
        os.rename(self.folder, final)
        _sync_folder(self._target)
        pointer = self._target / f"{POINTER}.new"
        write_synced(pointer, f"{number}\n")
        # A time in nanoseconds makes the stamp unique. The clock of the file system ticks every few
        # milliseconds, and inodes are used again.
        os.utime(pointer, ns=(time.time_ns(), time.time_ns()))
        os.rename(pointer, self._target / POINTER)
        _sync_folder(self._target)
        _sync_folder(self._target.parent)
        self.generation = open_generation(final, verify=False)
        for entry in _stale_generations(self._target, number):
            _remove(entry)
        return self.generation

    def discard(self) -> None:
        """Remove the staging folder; does nothing after `publish`."""
        for file in self._files.values():
            file.discard()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def staging(folder: Path, *, replace: bool) -> Iterator[Staging]:
    """Hold the build lock of an index folder, and yield the `Staging` of its next generation.

    Raises `BuildUnderWayError` if another build holds the lock, and `IndexExistsError` if the index
    exists and `replace` is false. A generation that is not published when the block ends is
    removed.
    """
    folder = Path(folder).absolute()
    with full_disk_errors():
        folder.parent.mkdir(parents=True, exist_ok=True)
    with _build_lock(folder):
        if not replace and (folder / POINTER).exists():
            raise IndexExistsError(f"index {folder.name!r} exists; set replace=True to replace it")
        _sweep_locked(folder)
        with full_disk_errors():
            stage = Staging(folder)
        try:
            yield stage
        finally:
            stage.discard()


def sweep(root: Path) -> list[str]:
    """Remove the files that dead builds left below `root`; return the names of their indexes."""
    names = {
        entry.name.removeprefix(".").split(".")[0]
        for entry in os.scandir(root)
        if entry.name.startswith(".") or entry.is_dir()
    }
    swept = []
    for name in sorted(filter(INDEX_NAME.fullmatch, names)):
        # An error in the folder of one index must not keep the others from being swept.
        with contextlib.suppress(BuildUnderWayError, OSError), _build_lock(root / name):
            if _sweep_locked(root / name):
                swept.append(name)
    return swept


@contextlib.contextmanager
def lock_root(root: Path) -> Iterator[None]:
    """Lock `root` for this process; raises `StorageInUseError` if another process has the lock."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("ab") as file:
        if not lock_exclusively(file):
            raise StorageInUseError("another server uses this data folder")
        yield


@contextlib.contextmanager
def _build_lock(folder: Path) -> Iterator[None]:
    path = folder.parent / f".{folder.name}.lock"
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            raise IndexNotFoundError(f"there is no index {folder.name!r}") from None
        if not lock_exclusively(descriptor):
            os.close(descriptor)
            raise BuildUnderWayError(f"a build of index {folder.name!r} is under way")
        # The last holder may have unlinked the file that is open here. The next process would not
        # see a lock on it, so open the new file instead.
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                break
        os.close(descriptor)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _sweep_locked(folder: Path) -> bool:
    """Remove staging folders and all but the current generation; the caller holds the lock."""
    stale = list(folder.parent.glob(f".{folder.name}.staging-*"))
    if (folder / POINTER).exists():
        (folder / f"{POINTER}.new").unlink(missing_ok=True)
        with contextlib.suppress(IndexDamagedError):
            stale += _stale_generations(folder, IndexFolder(folder).current())
    elif folder.is_dir() and all(map(_is_index_file, os.listdir(folder))):
        stale.append(folder)
    for entry in stale:
        _remove(entry)
    return any(not is_default(entry.name) for entry in stale)


def _stale_generations(folder: Path, current: int) -> list[Path]:
    """Return the folders of all generations but the current one, and the files of defaults."""
    numbers = (str(number) for number in _numbers(folder) if number != current)
    files = set(filter(is_default, os.listdir(folder))) - {default_path(folder / str(current)).name}
    return [folder / name for name in (*numbers, *sorted(files))]


def _remove(entry: Path) -> None:
    """Remove a folder or a file of defaults, which may be gone."""
    if is_default(entry.name):
        entry.unlink(missing_ok=True)
    else:
        shutil.rmtree(entry, ignore_errors=True)


def _is_index_file(entry: str) -> bool:
    return entry.isdigit() or entry.startswith(POINTER) or is_default(entry)


def _numbers(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return [int(entry) for entry in os.listdir(folder) if entry.isdigit()]


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
