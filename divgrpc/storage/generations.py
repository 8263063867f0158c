"""Index folders hold immutable generations, which are staged, synced and renamed into place.

Each index has a folder. Its lock file and its staging folders are hidden beside this folder:

    <root>/<name>/CURRENT              the number of the current generation
    <root>/<name>/<number>/            manifest.json and one .npy file per array, never changed
    <root>/<name>/<number>/writes/     later writes (`divgrpc.writes.layout`)
    <root>/<name>/<number>.default.json  default parameters (`divgrpc.storage.defaults`)
    <root>/.<name>.staging-<random>/   a generation that is being written
    <root>/.<name>.lock                locked (flock) while a process changes the index

A build writes to its staging folder and syncs the folder to the disk. The build then renames the
folder to the next number, and replaces CURRENT by another rename. The new generation is current
from the second rename on. So a crash at any moment leaves a current generation that is complete. A
crash may also leave staging folders, and generations that never became current. When the lock is
free, no build uses these folders, so `sweep` removes them. It leaves the generations of a folder
without CURRENT, because the file may have been lost: a deletion renames the folder of the index to
the name of a staging folder before it removes files.

A generation may share arrays with the generation before it: its files are hard links of the same
files (`extending`).

Readers take no lock. A reader reads CURRENT and maps the arrays of the generation that CURRENT
names. If CURRENT changes meanwhile, the reader starts again. Old generations are removed at once,
because a memory mapping stays valid after the mapped file is unlinked; for other machines, see
`divgrpc.storage.removal`.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from divgrpc.arrays import Array
from divgrpc.errors import (
    BuildUnderWayError,
    DivgrpcError,
    IndexChangedError,
    IndexDamagedError,
    IndexExistsError,
    IndexNotFoundError,
    StorageInUseError,
    UnsupportedError,
)
from divgrpc.parameters import INDEX_NAME
from divgrpc.platforms import lock_exclusively
from divgrpc.storage.arrays import (
    ArrayEntry,
    ArrayFolder,
    damage_errors,
    full_disk_errors,
    link_or_copy,
    open_array,
    sync_folder,
    write_synced,
)
from divgrpc.storage.build_locks import BuildLock, build_lock
from divgrpc.storage.defaults import (
    default_path,
    is_default,
    read_defaults,
    updated,
    write_defaults,
)
from divgrpc.storage.manifest import MANIFEST, Manifest, renumbered
from divgrpc.storage.published import WRITES, Writes, is_recovered, read_writes, was_written
from divgrpc.storage.removal import remove
from divgrpc.storage.shards import check_whole
from divgrpc.types import Defaults, IndexInfo

POINTER: Final = "CURRENT"
# File in the folder of the writes to a generation, which a process locks while it may write.
WRITER_LOCK: Final = "LOCK"
# File in a data folder, which a server locks.
ROOT_LOCK: Final = ".lock"
STAGING_INFIX: Final = ".staging-"
# Arrays whose files become longer when points are written (`divgrpc.writes.point_files`).
GROWING: Final = frozenset(("vectors", "indices", "values"))
_READ_ATTEMPTS_MAX: Final = 10
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Generation:
    """One build of an index: its manifest, its read-only arrays, and its defaults."""

    manifest: Manifest
    arrays: dict[str, Array]
    defaults: Defaults = field(default_factory=Defaults)


class IndexFolder:
    """The folder of one index."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self.name = self.path.name
        # Every query calls `pointer_stamp`, and `os.stat` of a string is faster than of a `Path`.
        self._pointer = str(self.path / POINTER)

    def pointer_stamp(self) -> tuple[int, int] | None:
        """Return a value that changes with each new generation and each change of defaults.

        Returns None if the folder holds no index. Raises `IndexDamagedError` if the folder cannot
        be read.
        """
        try:
            status = os.stat(self._pointer)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError as error:
            raise IndexDamagedError(f"index {self.name!r} cannot be read") from error
        return status.st_ino, status.st_mtime_ns

    def fresh_stamp(self) -> tuple[int, int] | None:
        """Do what `pointer_stamp` does, and ask a network file system for its latest state.

        Such a system may answer `stat` from memory for seconds, but never the opening of a file.
        """
        with contextlib.suppress(OSError), open(self._pointer, "rb"):
            pass
        return self.pointer_stamp()

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

    def read_info(self, writes_of: Callable[[Path], Writes | None] = read_writes) -> IndexInfo:
        """Return the description of the current generation, without opening all of its arrays.

        writes_of: returns the writes to a generation, given its folder.
        """

        def read(folder: Path) -> IndexInfo:
            manifest = read_manifest(folder)
            info = manifest.info(self.name, read_defaults(folder, manifest))
            if (writes := writes_of(folder)) is not None:
                info = replace(
                    info,
                    rows=writes.live,
                    nonzeros=writes.nonzeros,
                    rows_without_vector=writes.absent,
                    writes=writes.info,
                )
            return info

        return self.read_current(read)

    def open(self) -> Generation:
        """Map the current generation, and check all checksums."""
        return self.read_current(open_generation)

    def set_defaults(self, manifest: Manifest, **changes: Any) -> Defaults:  # noqa: ANN401  # fields
        """Change fields of the current generation's `Defaults`; return the new defaults.

        Readers notice the change because the stamp of CURRENT changes too. Raises
        `IndexChangedError` if `manifest` does not belong to the current generation, and
        `BuildUnderWayError` during a build.
        """
        with build_lock(self.path):
            generation = self.path / str(self.current())
            if read_manifest(generation) != manifest:
                raise IndexChangedError(f"index {self.name!r} was replaced meanwhile")
            defaults = updated(read_defaults(generation, manifest), changes)
            write_defaults(generation, defaults)
            sync_folder(self.path)
            self.touch()
        return defaults

    def touch(self) -> None:
        """Change the stamp of the pointer, so that readers look at the index again."""
        _set_time(self._pointer, self._pointer)

    def delete(self) -> int:
        """Remove the index, damaged or not, and return the number of its current generation.

        If CURRENT is damaged, the greatest number of a generation is returned.
        """
        with build_lock(self.path):
            try:
                number = self.current()
            except IndexDamagedError:
                number = max(generation_numbers(self.path), default=0)
            # Renamed first, because a writer may be adding files to it, and because an interrupted
            # deletion must not leave some of the files.
            removed = staging_path(self.path, secrets.token_hex(8))
            os.rename(self.path, removed)
            sync_folder(self.path.parent)
            remove(removed, self.path.parent)
        return number

    def read_current(self, read: Callable[[Path], _T]) -> _T:
        """Call `read` with the folder of the current generation; retry if CURRENT changed.

        Changes are detected by `pointer_stamp`. The generation number would not suffice: if an
        index is deleted and built again, its generations begin at 1 again.
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
        return stamp is not None and stamp == self.fresh_stamp()


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a generation; raises `IndexDamagedError` and `OtherFormatError`."""
    try:
        with damage_errors("the manifest"):
            return Manifest.from_json((folder / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise IndexDamagedError("the manifest is missing") from None


def open_generation(folder: Path, *, verify: bool = True) -> Generation:
    """Map the arrays of a generation, and compare their headers and lengths with the manifest.

    If `verify` is true, their checksums are compared too. Raises `IndexDamagedError`,
    `OtherFormatError`, and `UnsupportedError` for a generation that is divided among shards.
    """
    manifest = read_manifest(folder)
    check_whole(manifest)
    arrays = {
        name: open_array_of(folder, name, entry, verify=verify)
        for name, entry in manifest.arrays.items()
    }
    return Generation(manifest, arrays, read_defaults(folder, manifest))


def open_array_of(folder: Path, name: str, entry: ArrayEntry, *, verify: bool) -> Array:
    """Map an array of the generation in `folder`; raises `IndexDamagedError`."""
    path = folder / f"{name}.npy"
    try:
        return open_array(path, entry, verify=verify)
    except IndexDamagedError:
        # Later vectors follow those of the generation in the same file. The first write makes its
        # folder before that, perhaps while the generation is opened.
        if name not in GROWING or not (folder / WRITES).exists():
            raise
    return open_array(path, entry, verify=verify, grows=True)


def list_indexes(root: Path) -> list[str]:
    """Return the sorted names of the indexes in the folder `root`."""
    return sorted(
        entry.name
        for entry in os.scandir(root)
        if INDEX_NAME.fullmatch(entry.name) and os.path.exists(os.path.join(entry.path, POINTER))
    )


def indexes_without_pointer(root: Path) -> list[str]:
    """Return the sorted names of the folders in `root` that lack CURRENT, but have a generation."""
    names = []
    for name in filter(INDEX_NAME.fullmatch, sorted(os.listdir(root))):
        # Folders that cannot be read may be something else.
        with contextlib.suppress(OSError):
            if not (root / name / POINTER).exists() and has_generation(root / name):
                names.append(name)
    return names


def indexes_to_recover(root: Path) -> list[str]:
    """Return the names of the indexes that were written to, but not since the system started."""
    names = []
    for name in list_indexes(root):
        # The first call for a damaged index reports it.
        with contextlib.suppress(DivgrpcError):
            index = IndexFolder(root / name)
            if not is_recovered(index.path / str(index.current())):
                names.append(name)
    return names


class Staging(ArrayFolder):
    """A generation that is being written; the context manager `staging` creates it."""

    def __init__(self, folder: Path, lock: BuildLock) -> None:
        self._target, self._lock = folder, lock
        # `discard` removes this folder with all its files, unless `publish` has renamed it.
        super().__init__(staging_path(folder, secrets.token_hex(8)))
        self.generation: Generation | None = None
        # A callback that `publish` calls with the complete staging folder before the generation
        # becomes current, so that readers can open it in advance. If it raises an error, the build
        # fails.
        self.on_whole: Callable[[Path], None] | None = None
        # A callback that `publish` calls with the complete arrays and their manifest, to divide
        # them among shards. It returns the manifest of the divided generation.
        self.divide: Callable[[Path, Manifest], Manifest] | None = None
        self._shared: dict[str, ArrayEntry] = {}
        self._scratch: list[ArrayFolder] = []
        self._defaults = Defaults()

    def share(self, generation: Generation, home: str = "") -> None:
        """Use the arrays and the defaults of the current generation in this one.

        The files are in `home`, in the folder of the generation. They become hard links where the
        file system has them, and copies elsewhere. Raises `StorageFullError`.
        """
        folder = self._target / str(generation.manifest.generation) / home
        self._shared, self._defaults = generation.manifest.arrays, generation.defaults
        for name, entry in self._shared.items():
            link_or_copy(folder / f"{name}.npy", self.folder / f"{name}.npy", entry)

    def keep_defaults(self, manifest: Manifest) -> None:
        """Give the generation the defaults of the current one, whose manifest is given."""
        self._defaults = read_defaults(self._target / str(manifest.generation), manifest)

    @property
    def defaults(self) -> Defaults:
        """The defaults that the generation will have."""
        return self._defaults

    def refuse_writes(self) -> None:
        """Let writers of the index refuse writes, which this generation would not have."""
        self._lock.refuse_writes()

    def scratch(self, name: str) -> ArrayFolder:
        """Return a store, folder `name`, for arrays that are not kept; discard it at the end."""
        with full_disk_errors():
            self._scratch.append(ArrayFolder(self.folder / name))
        return self._scratch[-1]

    def discard(self) -> None:
        """Remove the folder with all its files, unless it was renamed."""
        for scratch in self._scratch:
            scratch.discard()
        super().discard()

    def publish(self, manifest: Manifest) -> Generation:
        """Make this generation the current one; complete `manifest` with its number and arrays.

        Returns the generation, without arrays if it was divided among shards.
        """
        entries = self._shared | self.close()
        number = self._next_number()
        manifest = replace(manifest, generation=number, arrays=entries)
        if self.divide is not None:
            manifest = self.divide(self.folder, manifest)
        write_synced(self.folder / MANIFEST, manifest.to_json())
        sync_folder(self.folder)
        if self.on_whole is not None:
            self.on_whole(self.folder)
        final = self._make_current(self.folder, number)
        if manifest.shards:
            self.generation = Generation(manifest, {}, self._defaults)
        else:
            self.generation = open_generation(final, verify=False)
        self._remove_stale(number)
        return self.generation

    def adopt(self, folder: Path) -> int:
        """Make a complete and synced generation the current one; return its number.

        folder: a folder within the staging folder. Its name is its number, beside it may be a
            defaults file. It keeps its number if this is greater than all numbers of the index, and
            gets the next number otherwise.
        """
        manifest = read_manifest(folder)
        self._defaults = read_defaults(folder, manifest)
        number = max(manifest.generation, self._next_number())
        if number != manifest.generation:
            text = (folder / MANIFEST).read_text(encoding="utf-8")
            write_synced(folder / MANIFEST, renumbered(text, number))
        self._lock.refuse_writes()
        self._make_current(folder, number)
        self._remove_stale(number)
        return number

    def _next_number(self) -> int:
        return 1 + max(generation_numbers(self._target), default=0)

    def _make_current(self, folder: Path, number: int) -> Path:
        """Rename a complete folder to a number, and point to it; return its new path."""
        self._target.mkdir(exist_ok=True)
        final = self._target / str(number)
        os.rename(folder, final)
        write_defaults(final, self._defaults)
        sync_folder(self._target)
        write_pointer(self._target, number)
        return final

    def _remove_stale(self, number: int) -> None:
        for entry in _stale_generations(self._target, number):
            remove(entry, self._target.parent)


def write_pointer(folder: Path, number: int) -> None:
    """Make a generation, whose files are synced, the current one; the build lock must be held."""
    pointer = folder / f"{POINTER}.new"
    write_synced(pointer, f"{number}\n")
    _set_time(pointer, folder / POINTER)
    os.rename(pointer, folder / POINTER)
    sync_pointer(folder)


def sync_pointer(folder: Path) -> None:
    """Let no loss of power bring back an older pointer than the one in the folder of an index.

    A build syncs its pointer, but may end between the rename and the sync. Whatever relies on the
    new generation calls this first.
    """
    sync_folder(folder)
    sync_folder(folder.parent)


def _set_time(pointer: Path | str, before: Path | str) -> None:
    """Give a pointer a later modification time than the one `before` it has, if there is one.

    The stamp of a pointer consists of this time and the inode number. The time is set explicitly to
    make the stamp unique, because timestamps that the file system sets change only every few
    milliseconds, and inode numbers are reused. The clock may have been set back.
    """
    now = time.time_ns()
    with contextlib.suppress(FileNotFoundError):
        now = max(now, os.stat(before).st_mtime_ns + 1)
    os.utime(pointer, ns=(now, now))


@contextlib.contextmanager
def staging(folder: Path, *, replace: bool) -> Iterator[Staging]:
    """Lock an index folder for a build, and yield the `Staging` of its next generation.

    If the generation is not published when the `with` block ends, its files are removed. Raises
    `BuildUnderWayError` if another process holds the lock, and `IndexExistsError` if the index
    exists and `replace` is false.
    """
    folder = Path(folder).absolute()
    with full_disk_errors():
        folder.parent.mkdir(parents=True, exist_ok=True)
    with build_lock(folder) as lock:
        if not replace and (folder / POINTER).exists():
            raise IndexExistsError(f"index {folder.name!r} exists; set replace=True to replace it")
        sweep_index(folder)
        with full_disk_errors():
            stage = Staging(folder, lock)
        try:
            yield stage
        finally:
            stage.discard()


@contextlib.contextmanager
def extending(folder: Path) -> Iterator[tuple[Staging, Generation]]:
    """Lock an index, and yield the `Staging` of its next generation and its current generation.

    The arrays of the current generation are mapped without a test of their checksums. If the next
    generation is not published when the `with` block ends, its files are removed.

    Raises `IndexNotFoundError`, the errors of `open_generation`, `BuildUnderWayError` if another
    process builds or changes the index, and `StorageInUseError` if one has it open for writing.
    Raises `UnsupportedError` if the index was written to or has points without a vector.
    """
    index = IndexFolder(folder)
    index.current()
    with staging(index.path, replace=True) as stage:
        current = index.path / str(index.current())
        # An index that was written to may also be open for writing, but closing it would not help.
        _check_unwritten(current)
        with writer_lock(current):
            _check_unwritten(current)
            yield stage, open_generation(current, verify=False)


def _check_unwritten(generation: Path) -> None:
    if was_written(generation):
        raise UnsupportedError(
            "index",
            f"index {generation.parent.name!r} was written to since it was built, or has points"
            " without a vector, which Build keeps as writes: open it with Collection.open, and add"
            " the attributes of points by their ids there",
        )


def sweep(root: Path) -> list[str]:
    """Remove files that interrupted builds left in `root`; return the names of swept indexes."""
    names = {
        entry.name.removeprefix(".").split(".")[0]
        for entry in os.scandir(root)
        if entry.name.startswith(".") or entry.is_dir()
    }
    swept = []
    for name in sorted(filter(INDEX_NAME.fullmatch, names)):
        # An error in the folder of one index must not prevent the sweep of the others.
        with contextlib.suppress(BuildUnderWayError, OSError), build_lock(root / name):
            if sweep_index(root / name):
                swept.append(name)
    return swept


@contextlib.contextmanager
def lock_root(root: Path) -> Iterator[None]:
    """Lock `root` for this process; raises `StorageInUseError` if another process has locked it."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ROOT_LOCK).open("ab") as file:
        if not lock_exclusively(file):
            raise root_in_use()
        yield


def root_in_use() -> StorageInUseError:
    """Return the error of a data folder that another process has locked."""
    return StorageInUseError("a server or `divgrpc doctor` uses this data folder: stop it first")


def staging_path(folder: Path, suffix: str) -> Path:
    """Return the path of a staging folder of the index in `folder`, which `sweep` removes."""
    return folder.parent / f".{folder.name}{STAGING_INFIX}{suffix}"


@contextlib.contextmanager
def writer_lock(generation: Path) -> Iterator[None]:
    """Keep other processes from writing to a generation; raises `StorageInUseError`."""
    with full_disk_errors():
        (generation / WRITES).mkdir(exist_ok=True)
    with (generation / WRITES / WRITER_LOCK).open("ab") as file:
        if not lock_exclusively(file):
            name = generation.parent.name
            raise StorageInUseError(f"index {name!r} is open for writing: close it first")
        yield


def sweep_index(folder: Path) -> bool:
    """Remove the `leftovers` of an index; the caller must hold the build lock.

    Returns whether a folder was removed.
    """
    stale = leftovers(folder)
    has_folders = any(entry.is_dir() for entry in stale)
    if any(entry.parent == folder and entry.is_dir() for entry in stale):
        # An old generation may be the current one again after a loss of power.
        sync_pointer(folder)
    for entry in stale:
        remove(entry, folder.parent)
    return has_folders


def leftovers(folder: Path) -> list[Path]:
    """Return the files and folders that interrupted builds and deletions of an index left behind.

    These are staging folders, files that were being written, and all generations that are not
    current. Without CURRENT, it is the whole folder if it holds only files of an index and no
    generation. While a process has the build lock, these may be files in use.
    """
    stale = sorted(folder.parent.glob(staging_path(folder, "*").name))
    if not (folder / POINTER).exists() and not has_generation(folder):
        if folder.is_dir() and all(map(is_index_file, os.listdir(folder))):
            stale.append(folder)
        return stale
    draft = folder / f"{POINTER}.new"
    stale += [draft] if draft.exists() else []
    with contextlib.suppress(IndexDamagedError, IndexNotFoundError):
        stale += _stale_generations(folder, IndexFolder(folder).current())
    return stale


def _stale_generations(folder: Path, current: int) -> list[Path]:
    """Return the folders and defaults files of all generations except the current generation."""
    numbers = (str(number) for number in generation_numbers(folder) if number != current)
    files = set(filter(is_default, os.listdir(folder))) - {default_path(folder / str(current)).name}
    return [folder / name for name in (*numbers, *sorted(files))]


def is_index_file(entry: str) -> bool:
    """Return whether the folder of an index may have an entry of this name."""
    return entry.isdigit() or entry.startswith(POINTER) or is_default(entry)


def has_generation(folder: Path) -> bool:
    """Return whether the folder of an index has a generation, which was complete once."""
    return any((folder / str(n) / MANIFEST).exists() for n in generation_numbers(folder))


def generation_numbers(folder: Path) -> list[int]:
    """Return the numbers of the generations in the folder of an index."""
    if not folder.is_dir():
        return []
    return [int(entry) for entry in os.listdir(folder) if entry.isdigit()]
