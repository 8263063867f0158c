"""A program that writes to a collection on a small file system, which fills up again and again.

It is called with the folder of an empty file system. Each write, merge, vacuum and retraining must
either be made as a whole or raise `StorageFullError`.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from divgrpc import Collection, Index
from divgrpc.errors import StorageFullError
from support.data.written_points import (
    DIMS,
    Model,
    a_collection,
    check_exact,
    check_points,
    drawn_points,
    upsert,
)
from support.processes.crashing_writer import SMALL

POINTS = drawn_points(400, 7)
QUERIES = np.random.default_rng(4).normal(size=(2, DIMS)).astype(np.float32)
# Pages that are free when an action begins.
FREE_PAGES = [0, 1, 2, 3, 5, 8, 12, 17, 23, 30, 40, 55, 75, 100, 140, 200]


class _Filler:
    """A file that takes the room of a file system."""

    def __init__(self, folder: Path) -> None:
        self._path, self._folder = folder / "filler", folder

    def leave(self, pages: int) -> None:
        """Fill the file system up to some pages."""
        self.remove()
        status = os.statvfs(self._folder)
        size = (status.f_bavail - pages) * status.f_frsize
        with self._path.open("wb") as file:
            if size > 0:
                os.posix_fallocate(file.fileno(), 0, size)

    def remove(self) -> None:
        """Make room again."""
        self._path.unlink(missing_ok=True)


class _Survivor:
    """A collection, and the points that it must have."""

    def __init__(self, folder: Path) -> None:
        self.filler, self._path = _Filler(folder), folder / "points"
        self.model: Model = dict(enumerate(POINTS[:40]))
        a_collection(self._path, self.model).close()
        self.collection = self._open()
        self._numbers = iter(range(10**9))
        # Numbers of the actions that a full disk refused.
        self.refused = dict.fromkeys(("write", "merge", "vacuum", "retrain", "open"), 0)

    def _open(self) -> Collection:
        collection = Collection.open(self._path)
        # The next write would raise the error of a merge in the background.
        collection.committer.merges_by_itself = False
        return collection

    def write(self) -> None:
        number = next(self._numbers)
        points = {number % 60: POINTS[number % 400], 60 + number % 7: POINTS[number * 3 % 400]}
        upsert(self.collection, points)
        self.model |= points

    def act(self, name: str, action: Callable[[], object], pages: int) -> None:
        """Do something when some pages are free; what was written is there in any case."""
        self.filler.remove()
        # Then there is something to merge and to remove.
        self.write()
        self.filler.leave(pages)
        try:
            action()
        except StorageFullError:
            self.refused[name] += 1
        check_points(self.collection, self.model)
        check_points(Index.open(self._path), self.model)

    def write_much(self) -> None:
        for _ in range(20):
            self.write()

    def vacuum(self) -> None:
        self.collection.compact(vacuum=True)

    def reopen(self, pages: int) -> None:
        """Open the collection again when some pages are free."""
        self.collection.close()
        self.filler.leave(pages)
        try:
            self.collection = self._open()
        except StorageFullError:
            self.refused["open"] += 1
            self.filler.remove()
            self.collection = self._open()
        check_points(self.collection, self.model)
        check_exact(self.collection, self.model, "cosine", QUERIES)


def main(folder: Path) -> None:
    """Let each action meet a full disk in many places."""
    for module, name, value in SMALL:
        setattr(module, name, value)
    survivor = _Survivor(folder)
    for pages in FREE_PAGES:
        survivor.act("write", survivor.write_much, pages)
        survivor.act("merge", survivor.collection.compact, pages)
        survivor.act("vacuum", survivor.vacuum, pages)
        survivor.act("retrain", survivor.collection.retrain, pages)
        survivor.reopen(pages)
    survivor.filler.remove()
    survivor.write()
    survivor.vacuum()
    survivor.reopen(1_000)
    survivor.collection.close()
    refused = survivor.refused
    sys.stdout.write(f"{refused}\n")
    assert all(refused[name] for name in ("write", "merge", "vacuum", "retrain"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
