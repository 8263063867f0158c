"""The files with the vectors of a generation, which grow as points are written.

Dense vectors are in one file. Sparse vectors are in two files: one has the columns of all stored
values, and one has these values. The items of a file are rows of dense vectors, or stored values of
sparse ones. The items of later rows follow those of Build. The layout says where sparse rows begin.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.platforms import reserve, sync_data, write_at
from divgrpc.storage.arrays import (
    HEADER_BYTES,
    checksum_of,
    full_disk_errors,
    map_array,
)
from divgrpc.storage.manifest import Manifest
from divgrpc.vectors import Rows, SparseRows


def items_of(vectors: Rows) -> dict[str, Array]:
    """Return the items of rows by the name of their file."""
    if isinstance(vectors, SparseRows):
        return {"indices": vectors.indices, "values": vectors.values}
    return {"vectors": vectors}


def item_count(vectors: Rows) -> int:
    """Return the number of items of rows in each file."""
    return len(vectors.indices) if isinstance(vectors, SparseRows) else len(vectors)


class PointFiles:
    """The files in the folder of a generation."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._dtypes: dict[str, tuple[npt.DTypeLike, tuple[int, ...]]] = {
            "vectors": (np.float32, (manifest.dims,))
        }
        if manifest.points == "sparse":
            self._dtypes = {"indices": (np.int32, ()), "values": (np.float32, ())}

    def sizes(self) -> dict[Path, int]:
        """Return the paths of the files with the bytes of an item."""
        return {
            self._path(name): np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
            for name, (dtype, shape) in self._dtypes.items()
        }

    def map(self, items: int) -> dict[str, Array]:
        """Map the first items of each file, read-only; the files hold as many."""
        return {
            name: map_array(self._path(name), dtype, (items, *shape), "r")
            for name, (dtype, shape) in self._dtypes.items()
        }

    def reserve(self, items: int) -> None:
        """Make the files long enough for so many items; raises `StorageFullError`."""
        for path, item_bytes in self.sizes().items():
            with full_disk_errors():
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    reserve(descriptor, HEADER_BYTES + item_bytes * items)
                    sync_data(descriptor)
                finally:
                    os.close(descriptor)

    def checksums(self, first: int, count: int) -> tuple[int, ...]:
        """Return the checksum of items in each file."""
        arrays = self.map(first + count).values()
        return tuple(checksum_of(array[first:]) for array in arrays)

    def open(self) -> "PointWriter":
        """Open the files, to write items."""
        return PointWriter(list(self.sizes().items()))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.npy"


class PointWriter:
    """The files of the vectors of a generation, open for writing."""

    def __init__(self, files: Sequence[tuple[Path, int]]) -> None:
        """Open files, each given with the bytes of an item."""
        self._files: list[tuple[int, int]] = []
        try:
            for path, item_bytes in files:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                self._files.append((descriptor, item_bytes))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def put(self, vectors: Rows, first: int) -> None:
        """Write the items of rows, the first of which is number `first` of its file."""
        for (descriptor, item_bytes), items in zip(
            self._files, items_of(vectors).values(), strict=True
        ):
            write_at(descriptor, items.tobytes(), HEADER_BYTES + first * item_bytes)

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.pop()[0])
