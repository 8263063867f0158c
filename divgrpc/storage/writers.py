"""Where a build puts its arrays: staged files (`divgrpc.storage.generations.Staging`) or memory."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import INDEX_NAME
from divgrpc.storage.arrays import Array, ArrayEntry, read_only
from divgrpc.storage.generations import Generation, staging
from divgrpc.storage.manifest import Manifest

_CACHE_LINE: Final = 64


class Arrays(Protocol):
    """Named arrays of one generation: appended to row by row, or created and filled in place."""

    def begin(
        self, name: str, dtype: npt.DTypeLike, row_shape: tuple[int, ...], rows: int = 0
    ) -> None:
        """Open an array for `append`, with room reserved for `rows` rows."""

    def append(self, name: str, block: Array) -> None:
        """Add rows to an array that was begun."""

    def read(self, name: str) -> Array:
        """Return the rows appended so far, read-only."""

    def create(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        """Return a new array of this shape to be written in place."""


class Store(Arrays, Protocol):
    """The arrays of a generation, and how it is finished."""

    def publish(self, manifest: Manifest) -> Generation:
        """Finish; `manifest` gets its generation number and its arrays."""


class Part:
    """Those arrays of another store whose names begin with `prefix`, without it: an index in one.

    `part_of` finds them again once they are published.
    """

    def __init__(self, whole: Arrays, prefix: str) -> None:
        self._whole = whole
        self._prefix = prefix

    def begin(
        self, name: str, dtype: npt.DTypeLike, row_shape: tuple[int, ...], rows: int = 0
    ) -> None:
        """Open an array for `append`, with room reserved for `rows` rows."""
        self._whole.begin(self._prefix + name, dtype, row_shape, rows)

    def append(self, name: str, block: Array) -> None:
        """Add rows to an array that was begun."""
        self._whole.append(self._prefix + name, block)

    def read(self, name: str) -> Array:
        """Return the rows appended so far, read-only."""
        return self._whole.read(self._prefix + name)

    def create(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        """Return a new array of this shape to be written in place."""
        return self._whole.create(self._prefix + name, dtype, shape)


def part_of(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Return the arrays whose names begin with `prefix`, named without it."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


class MemoryStore:
    """Arrays of an index that lives in this process alone."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}
        self._appended: dict[str, Array] = {}
        self._lengths: dict[str, int] = {}

    def begin(
        self, name: str, dtype: npt.DTypeLike, row_shape: tuple[int, ...], rows: int = 0
    ) -> None:
        """Open an array for `append`, with room for `rows` rows."""
        self._appended[name] = _aligned((rows, *row_shape), dtype)
        self._lengths[name] = 0

    def append(self, name: str, block: Array) -> None:
        """Add rows; twice the room is made where there is too little."""
        room, start = self._appended[name], self._lengths[name]
        stop = start + len(block)
        if stop > len(room):
            grown = _aligned((max(stop, 2 * len(room)), *room.shape[1:]), room.dtype)
            grown[:start] = room[:start]
            self._appended[name] = room = grown
        room[start:stop] = block
        self._lengths[name] = stop

    def read(self, name: str) -> Array:
        """Return the rows appended so far, read-only."""
        return read_only(self._appended[name][: self._lengths[name]])

    def create(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        """Return a new array of this shape to be written in place."""
        self._arrays[name] = _aligned(shape, dtype)
        return self._arrays[name]

    def publish(self, manifest: Manifest) -> Generation:
        """Finish; an index in memory has one generation, number 1."""
        appended = {name: self.read(name) for name in self._appended}
        arrays = appended | {name: read_only(array) for name, array in self._arrays.items()}
        # Memory is not read back: there is nothing that a checksum could be compared with.
        entries = {
            name: ArrayEntry(array.dtype.name, array.shape, crc32=0)
            for name, array in arrays.items()
        }
        return Generation(dataclasses.replace(manifest, generation=1, arrays=entries), arrays)


@contextlib.contextmanager
def store_at(path: Path | str | None, *, replace: bool) -> Iterator[tuple[Store, Path | None]]:
    """Yield where a build goes, and the index's folder: memory has none.

    Raises `InvalidArgumentError`, with the field `path`, where that does not end in a name.
    """
    if path is None:
        yield MemoryStore(), None
        return
    folder = Path(path).absolute()
    if not INDEX_NAME.fullmatch(folder.name):
        raise InvalidArgumentError(
            "path", f"path must end in an index name ({INDEX_NAME.pattern}), got {folder.name!r}"
        )
    with staging(folder, replace=replace) as store:
        yield store, folder


def _aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return zeros that begin at a cache line, as a mapped file's do.

    Wide registers are loaded from one line then, not from two.
    """
    kind = np.dtype(dtype)
    count = math.prod(shape) * kind.itemsize
    memory = np.zeros(count + _CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    return memory[start : start + count].view(kind).reshape(shape)
