"""The stores to which a build writes arrays: a staging folder or memory."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, read_only
from divgrpc.storage.arrays import ArrayEntry, ArrayFolder
from divgrpc.storage.generations import Generation, Staging
from divgrpc.storage.manifest import Manifest
from divgrpc.types import Defaults

_CACHE_LINE_BYTES: Final = 64


def part_of(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Return the arrays whose names begin with `prefix`, with the prefix removed."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


class MemoryStore:
    """A store in memory, for an index that only this process uses."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}
        self._rooms: dict[str, Array] = {}
        self._lengths: dict[str, int] = {}
        self._number = 1
        self._defaults = Defaults()

    def share(self, generation: Generation) -> None:
        """Use the arrays and the defaults of a generation, and the number that follows its own."""
        self._arrays |= generation.arrays
        self._number = generation.manifest.generation + 1
        self._defaults = generation.defaults

    def refuse_writes(self) -> None:
        """Do nothing, because nobody writes to the index."""

    def scratch(self, _name: str) -> "MemoryStore":
        """Return a store for arrays that the generation does not keep."""
        return MemoryStore()

    def discard(self) -> None:
        """Free the arrays."""
        self._arrays, self._rooms, self._lengths = {}, {}, {}

    def begin(
        self, name: str, dtype: npt.DTypeLike, row_shape: tuple[int, ...], rows: int = 0
    ) -> None:
        """Create an array for `append`, with space for `rows` rows."""
        self._rooms[name] = _aligned((rows, *row_shape), dtype)
        self._lengths[name] = 0

    def append(self, name: str, block: Array) -> None:
        """Append rows; if they do not fit, the buffer at least doubles."""
        room, start = self._rooms[name], self._lengths[name]
        stop = start + len(block)
        if stop > len(room):
            larger = _aligned((max(stop, 2 * len(room)), *room.shape[1:]), room.dtype)
            larger[:start] = room[:start]
            self._rooms[name] = room = larger
        room[start:stop] = block
        self._lengths[name] = stop

    def read(self, name: str) -> Array:
        """Return the rows appended so far, read-only."""
        return read_only(self._rooms[name][: self._lengths[name]])

    def create(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        """Return a new array of this shape to be written in place."""
        self._arrays[name] = _aligned(shape, dtype)
        return self._arrays[name]

    def publish(self, manifest: Manifest) -> Generation:
        """Return the generation; complete `manifest` with its number and arrays.

        The number is 1, unless the generation shares arrays.
        """
        arrays = {name: self.read(name) for name in self._rooms}
        arrays |= {name: read_only(array) for name, array in self._arrays.items()}
        # Checksums are 0, because these arrays are never read from files.
        entries = {
            name: ArrayEntry(array.dtype.name, array.shape, crc32=0)
            for name, array in arrays.items()
        }
        manifest = dataclasses.replace(manifest, generation=self._number, arrays=entries)
        return Generation(manifest, arrays, self._defaults)


# A store holds named arrays while a build writes them, by appending rows or in place. Both classes
# have the methods begin, append, read, create, share, refuse_writes, scratch and publish, with the
# same meaning.
Store: TypeAlias = MemoryStore | Staging
# A store whose arrays may be those of no generation.
ArrayStore: TypeAlias = MemoryStore | ArrayFolder


def put(store: ArrayStore, name: str, array: Array) -> None:
    """Write an array into a store."""
    store.begin(name, array.dtype, array.shape[1:], len(array))
    store.append(name, array)


def _aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return an array of zeros aligned to a cache line.

    A wide load (SIMD) from an aligned address reads one cache line instead of two.
    """
    kind = np.dtype(dtype)
    count = math.prod(shape) * kind.itemsize
    memory = np.zeros(count + _CACHE_LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE_BYTES
    return memory[start : start + count].view(kind).reshape(shape)
