"""Opens an index with the writes to it."""

from functools import partial
from pathlib import Path

from divgrpc.engine import Engine
from divgrpc.storage.generations import IndexFolder, open_generation
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


def open_index(path: Path | str, *, is_merged: bool = False) -> Engine | MergedReplica:
    """Do what `open_engine` does; if there were writes, return an object that follows later ones.

    Verifies all checksums. Raises `IndexNotFoundError`, `IndexDamagedError` and `OtherFormatError`.
    """
    folder = Path(path).absolute()
    open_folder = partial(_open_folder, MergedReplica if is_merged else Replica)
    if (folder / MANIFEST).exists():
        return open_folder(folder)
    # A generation that is removed meanwhile seems to have no writes.
    return IndexFolder(folder).read_current(open_folder)


def _open_folder(kind: type[MergedReplica], folder: Path) -> Engine | MergedReplica:
    """Open the generation in `folder`, with the writes to it."""
    engine = Engine(open_generation(folder), folder.parent.name, folder.parent)
    return kind(engine, folder) if was_written(folder) else engine
