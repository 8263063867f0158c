"""Opens an index with the writes to it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from divgrpc.engine import Engine
from divgrpc.storage.generations import IndexFolder, open_generation, read_manifest
from divgrpc.storage.manifest import MANIFEST
from divgrpc.storage.published import was_written
from divgrpc.writes.replica import MergedReplica, Replica


def open_engine(path: Path | str, *, is_merged: bool = False) -> Engine:
    """Open the current generation in the folder of an index, or a generation in its own folder.

    is_merged: whether to read only the writes that were merged, as a reader must that does not know
        on which machine the writer runs.

    If there were writes to the index, returns a snapshot of it as it is now. Raises the errors of
    `open_index`.
    """
    index = open_index(path, is_merged=is_merged)
    return index.snapshot() if isinstance(index, MergedReplica) else index


def open_index(
    path: Path | str,
    *,
    is_merged: bool = False,
    open_divided: Callable[[Path], Engine] | None = None,
) -> Engine | MergedReplica:
    """Do what `open_engine` does; if there were writes, return an object that follows later ones.

    open_divided: opens a generation that is divided among shards, given its folder; None to refuse
        it.

    Verifies all checksums. Raises `IndexNotFoundError`, `IndexDamagedError`, `OtherFormatError`,
    and `UnsupportedError` for a divided generation.
    """
    folder = Path(path).absolute()
    kind = MergedReplica if is_merged else Replica
    open_folder = partial(_open_folder, kind, open_divided)
    if (folder / MANIFEST).exists():
        return open_folder(folder)
    # A generation that is removed meanwhile seems to have no writes.
    return IndexFolder(folder).read_current(open_folder)


def _open_folder(
    kind: type[MergedReplica], open_divided: Callable[[Path], Engine] | None, folder: Path
) -> Engine | MergedReplica:
    """Open the generation in `folder`, with the writes to it."""
    if open_divided is not None and read_manifest(folder).shards:
        return open_divided(folder)
    engine = Engine(open_generation(folder), folder.parent.name, folder.parent)
    return kind(engine, folder) if was_written(folder) else engine
