"""Opens an index with the writes to it."""

from pathlib import Path

from divgrpc.engine import Engine
from divgrpc.storage.generations import IndexFolder, open_generation
from divgrpc.storage.manifest import MANIFEST
from divgrpc.storage.published import was_written
from divgrpc.writes.replica import Replica


def open_engine(path: Path | str) -> Engine:
    """Open the current generation in the folder of an index, or a generation in its own folder.

    If there were writes to the index, returns a snapshot of it as it is now. Raises the errors of
    `open_index`.
    """
    index = open_index(path)
    return index.snapshot() if isinstance(index, Replica) else index


def open_index(path: Path | str) -> Engine | Replica:
    """Do what `open_engine` does; if there were writes, return an object that follows later ones.

    Verifies all checksums. Raises `IndexNotFoundError`, `IndexDamagedError` and `OtherFormatError`.
    """
    folder = Path(path).absolute()
    if (folder / MANIFEST).exists():
        return _open_folder(folder)
    # A generation that is removed meanwhile seems to have no writes.
    return IndexFolder(folder).read_current(_open_folder)


def _open_folder(folder: Path) -> Engine | Replica:
    """Open the generation in `folder`, with the writes to it."""
    engine = Engine(open_generation(folder), folder.parent.name, folder.parent)
    if not was_written(folder):
        return engine
    return Replica(engine, folder)
