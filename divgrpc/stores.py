"""Where a build puts its arrays: staged files (`divgrpc.storage.Staging`) or memory."""

import math
from dataclasses import replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from divgrpc.array_files import Array, ArrayEntry, checksum
from divgrpc.manifest import Manifest
from divgrpc.storage import Generation

_CACHE_LINE: Final = 64


class Store(Protocol):
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

    def publish(self, manifest: Manifest) -> Generation:
        """Finish; `manifest` gets its generation number and its arrays."""


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
        return _read_only(self._appended[name][: self._lengths[name]])

    def create(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        """Return a new array of this shape to be written in place."""
        self._arrays[name] = _aligned(shape, dtype)
        return self._arrays[name]

    def publish(self, manifest: Manifest) -> Generation:
        """Finish; an index in memory has one generation, number 1."""
        appended = {name: self.read(name) for name in self._appended}
        arrays = appended | {name: _read_only(array) for name, array in self._arrays.items()}
        entries = {
            name: ArrayEntry(array.dtype.name, array.shape, checksum(array))
            for name, array in arrays.items()
        }
        return Generation(replace(manifest, generation=1, arrays=entries), arrays)


def _read_only(array: Array) -> Array:
    view = array.view()
    view.setflags(write=False)
    return view


def _aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return zeros that begin at a cache line, as a mapped file's do.

    Wide registers are loaded from one line then, not from two.
    """
    kind = np.dtype(dtype)
    count = math.prod(shape) * kind.itemsize
    memory = np.zeros(count + _CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    return memory[start : start + count].view(kind).reshape(shape)
