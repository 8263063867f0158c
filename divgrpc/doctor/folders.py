"""Finds the indexes of a data folder, makes sure that nothing uses them, and checks each."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from divgrpc.doctor.indexes import check_index
from divgrpc.doctor.repair import repair_index
from divgrpc.doctor.reports import Report
from divgrpc.errors import (
    BuildUnderWayError,
    DivgrpcError,
    IndexChangedError,
    StorageInUseError,
    invalid,
)
from divgrpc.parameters import INDEX_NAME
from divgrpc.platforms import lock_exclusively
from divgrpc.storage.build_locks import build_lock, build_lock_path
from divgrpc.storage.generations import (
    POINTER,
    ROOT_LOCK,
    STAGING_INFIX,
    WRITER_LOCK,
    IndexFolder,
    generation_numbers,
    has_generation,
    is_index_file,
    lock_root,
    root_in_use,
)
from divgrpc.storage.meter import Meter, OnProgress
from divgrpc.storage.published import WRITES

# The check after a repair may find problems that other damage has hidden so far.
_REPAIRS_MAX: Final = 3


def check_folder(
    folder: Path | str,
    *,
    repair: bool = False,
    accept_loss: bool = False,
    on_progress: OnProgress | None = None,
) -> list[Report]:
    """Check all indexes of a data folder, or the index in a folder; return a report of each.

    Without `repair`, nothing is changed. With it, an index is repaired if every problem can be
    corrected without a loss of points, writes or defaults. It is then checked again. `accept_loss`
    also allows repairs that lose some. These repairs keep the damaged files under other names.

    on_progress: called with the number of MiB that were read of each index.

    Raises `InvalidArgumentError` if the folder is neither, `StorageInUseError` if a server uses the
    data folder or an index is open for writing, `BuildUnderWayError` during a build,
    `IndexChangedError` if an index changes during the check, and `StorageFullError` if the disk is
    too full for a repair.
    """
    path = Path(folder).absolute()
    is_index = _is_index(path)
    root = path.parent if is_index else path
    names = [path.name] if is_index else _names(path)
    if not is_index and not names and not (path / ROOT_LOCK).exists():
        raise invalid("folder", f"must be a data folder or the folder of an index, got {folder}")
    with ExitStack() as stack:
        if repair and not is_index:
            stack.enter_context(lock_root(root))
        else:
            stack.enter_context(_locked(root / ROOT_LOCK, root_in_use()))
        for name in names:
            # Refuse before the first index is read, which may take long.
            with _unused(root / name):
                pass
        if repair:
            return [_repair(root / n, on_progress, accept_loss=accept_loss) for n in names]
        return [_check(root / name, on_progress) for name in names]


def _check(index: Path, on_progress: OnProgress | None) -> Report:
    stamp = IndexFolder(index).pointer_stamp()
    with _unused(index):
        report = check_index(index, _meter(index, on_progress))
    with _unused(index):
        # Another process may have made a lock file meanwhile, which `_unused` could not lock.
        if IndexFolder(index).pointer_stamp() != stamp:
            raise IndexChangedError(f"index {index.name!r} was changed during the check")
    return report


def _repair(index: Path, on_progress: OnProgress | None, *, accept_loss: bool) -> Report:
    # The build lock is removed at the end.
    lock = build_lock_path(index)
    repairs = [f"removed {lock.name}"] if lock.exists() else []
    with build_lock(index):
        for attempts_left in reversed(range(_REPAIRS_MAX + 1)):
            with _unused(index, is_locked=True):
                report = check_index(index, _meter(index, on_progress), is_locked=True)
            if not attempts_left or not report.is_curable(accept_loss=accept_loss):
                break
            repairs += repair_index(index, report)
    return replace(report, repairs=tuple(repairs))


def _meter(index: Path, on_progress: OnProgress | None) -> Meter:
    size = 0
    for file in index.rglob("*"):
        with suppress(OSError):
            size += file.stat().st_size
    return Meter(on_progress, f"checking {index.name}", size)


def _is_index(path: Path) -> bool:
    """Whether a folder belongs to an index, even if CURRENT is missing."""
    return (path / POINTER).exists() or has_generation(path)


def _names(root: Path) -> list[str]:
    """Return the names of the indexes in a data folder, also if they have only leftovers."""
    names = set()
    for entry in os.scandir(root) if root.is_dir() else ():
        name = entry.name
        if name.startswith("."):
            if (name.endswith(ROOT_LOCK) and name != ROOT_LOCK) or STAGING_INFIX in name:
                names.add(name[1:].removesuffix(ROOT_LOCK).partition(STAGING_INFIX)[0])
        elif entry.is_dir() and any(map(is_index_file, os.listdir(entry.path))):
            names.add(name)
    return sorted(filter(INDEX_NAME.fullmatch, names))


@contextmanager
def _unused(index: Path, *, is_locked: bool = False) -> Iterator[None]:
    """Keep other processes from changing an index, without changing a file.

    is_locked: whether this process has the build lock. Raises `BuildUnderWayError` and
    `StorageInUseError`.
    """
    with ExitStack() as stack:
        if not is_locked:
            text = f"a build of index {index.name!r} is under way: wait until it ends"
            stack.enter_context(_locked(build_lock_path(index), BuildUnderWayError(text)))
        for number in generation_numbers(index):
            text = f"index {index.name!r} is open for writing: close it first"
            lock = index / str(number) / WRITES / WRITER_LOCK
            stack.enter_context(_locked(lock, StorageInUseError(text)))
        yield


@contextmanager
def _locked(path: Path, error: DivgrpcError) -> Iterator[None]:
    """Lock a file, if it exists, without changing it; raises `error` if it is locked already."""
    try:
        descriptor = _open(path)
    except (FileNotFoundError, NotADirectoryError):
        yield
        return
    try:
        if not lock_exclusively(descriptor):
            raise error
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        # On a network file system, a lock needs a file that is open for writing.
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
