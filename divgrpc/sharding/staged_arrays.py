"""Arrays that a builder offers to other machines while its build is under way.

A builder stores arrays in its staging folder and offers them: it syncs them, and describes them in
a file of the staging folder. Whoever has the folder may read them until the file goes.

The arrays are read, not mapped: a build that is cancelled removes its files, and to read a mapped
file that another machine has removed ends the process.
"""

import errno
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.errors import IndexNotFoundError, invalid
from divgrpc.sharding.layouts import STAGED_REQUEST
from divgrpc.sharding.messages import Buffer, Layout
from divgrpc.storage.arrays import (
    HEADER_BYTES,
    ArrayEntry,
    ArrayFolder,
    sync_folder,
    write_synced,
)
from divgrpc.storage.shards import SHARDS
from divgrpc.vectors import Rows, SparseRows
from divgrpc.version import VERSION

# How systems say that a file is not there; the last one is of a network file system.
_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


@contextmanager
def offered(
    folder: Path,
    file_name: str,
    arrays: Mapping[str, tuple[Path, ArrayEntry]],
    document: Mapping[str, object],
) -> Iterator[None]:
    """In the block, let others read arrays.

    folder, file_name: the staging folder or that of a shard in it, and the file that describes the
        offer.
    arrays: by the name that the offer gives them, the file of each, which is synced, and its entry.
    document: what else others must know.

    Raises `StorageFullError`.
    """
    entries = {}
    for name, (path, entry) in arrays.items():
        entries[name] = {"path": os.path.relpath(path, folder), **asdict(entry)}
    description = folder / file_name
    write_synced(description, json.dumps({"version": VERSION, **document, "arrays": entries}))
    sync_folder(folder)
    try:
        yield
    finally:
        description.unlink(missing_ok=True)


def sync(store: ArrayFolder, name: str) -> tuple[Path, ArrayEntry]:
    """Let other machines see an array that is being written; return its file and its entry."""
    entry = store.sync(name)
    sync_folder(store.folder)
    return store.folder / f"{name}.npy", entry


def is_offered(folder: Path, file_name: str) -> bool:
    """Return whether the arrays that a file describes are offered."""
    try:
        return (folder / file_name).exists()
    except OSError:  # as network file systems raise it
        return False


def columns_of(folder: str, rows: range) -> dict[str, Array]:
    """Return the columns of a `STAGED_REQUEST` for rows in a staging folder of this name."""
    bounds = np.array([rows.start, rows.stop])
    return {"folder": np.frombuffer(folder.encode(), np.uint8), "rows": bounds}


def folder_of(message: Buffer, layout: Layout = STAGED_REQUEST) -> str:
    """Return the name of the staging folder in a message; raises `InvalidArgumentError`."""
    return layout.unpack(message)["folder"].tobytes().decode(errors="replace")


def check_rows(bounds: Array, row_count: int, rows_max: int) -> range:
    """Return the rows that a message asks for.

    bounds: as in the message. row_count: the number of rows of the build. rows_max: the maximum
    number of rows of a message.

    Raises `InvalidArgumentError`.
    """
    if len(bounds) != 2:
        raise invalid("rows", f"must have two numbers, got {len(bounds)}")
    start, stop = map(int, bounds)
    if not 0 <= start < stop <= row_count:
        limit = f"must be within the {row_count} rows of the build"
        raise invalid("rows", f"{limit}, got {start} to {stop}")
    if stop - start > rows_max:
        raise invalid("rows", f"must be at most {rows_max}, got {stop - start}")
    return range(start, stop)


class StagedArrays:
    """The arrays of one offer in `folder`; `document` is what else it says."""

    def __init__(self, folder: Path, file_name: str) -> None:
        """Open the arrays that a file in the staging folder describes.

        Raises `IndexNotFoundError` if the file is not there, or if a builder of another version
        offers the arrays: its arithmetic may be another.
        """
        self.folder, self._file_name = folder, file_name
        # With the name of the staging folder, if it is that of a shard.
        is_shard = folder.parent.name == SHARDS
        self._name = "/".join(folder.parts[-3:]) if is_shard else folder.name
        with self._absence_errors():
            self.document: dict[str, Any] = json.loads((folder / file_name).read_bytes())
        if self.document.get("version") != VERSION:
            offer = f"a build of version {self.document.get('version')} offers the points"
            raise IndexNotFoundError(f"{offer} in {self._name}, and this is {VERSION}")
        self._entries: dict[str, ArrayEntry] = {}
        self._paths: dict[str, Path] = {}
        for name, entry in self.document["arrays"].items():
            self._paths[name] = folder / entry["path"]
            shape = tuple(entry["shape"])
            self._entries[name] = ArrayEntry(entry["dtype"], shape, entry["crc32"])

    @property
    def files(self) -> dict[str, tuple[Path, ArrayEntry]]:
        """The file of each array, which may be longer, and its entry."""
        return {name: (path, self._entries[name]) for name, path in self._paths.items()}

    def is_offered(self) -> bool:
        """Return whether the arrays are still offered."""
        return is_offered(self.folder, self._file_name)

    def entry(self, name: str) -> ArrayEntry:
        """Return the dtype and shape of an array."""
        return self._entries[name]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        """Return rows of an array; raises `IndexNotFoundError` if the build is over."""
        entry = self._entries[name]
        stop = entry.shape[0] if stop is None else stop
        dtype, width = np.dtype(entry.dtype), math.prod(entry.shape[1:])
        first = HEADER_BYTES + start * width * dtype.itemsize
        values = self._values(self._paths[name], dtype, (stop - start) * width, first)
        return values.reshape(stop - start, *entry.shape[1:])

    def read_rows(self, start: int, stop: int, dims: int, prefix: str = "") -> Rows:
        """Return points, dense or sparse, whose arrays have names that begin with `prefix`."""
        if f"{prefix}vectors" in self._entries:
            return self.read(f"{prefix}vectors", start, stop)
        return self.read_sparse(start, stop, dims, prefix)

    def read_sparse(self, start: int, stop: int, dims: int, prefix: str = "") -> SparseRows:
        """Return sparse rows of `dims` columns; values that are not stored are 1."""
        indptr = self.read(f"{prefix}indptr", start, stop + 1)
        first, last = int(indptr[0]), int(indptr[-1])
        indices = self.read(f"{prefix}indices", first, last)
        if f"{prefix}values" in self._entries:
            values = self.read(f"{prefix}values", first, last)
        else:
            values = np.ones(last - first, np.float32)
        return SparseRows(indptr - first, indices, values, dims)

    def read_file(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return a float32 array of this shape in a file of the staging folder without a header."""
        return self._values(self.folder / name, np.float32, math.prod(shape), 0).reshape(shape)

    def _values(self, path: Path, dtype: npt.DTypeLike, count: int, offset: int) -> Array:
        with self._absence_errors():
            # Before memory is taken, because a message says how many there are.
            if path.stat().st_size < offset + count * np.dtype(dtype).itemsize:
                name = f"{path.name} in {self._name}"
                raise IndexNotFoundError(f"{name} ends before its rows")
            return np.fromfile(path, dtype, count, offset=offset)

    @contextmanager
    def _absence_errors(self) -> Iterator[None]:
        """Convert an `OSError` about files that are not there to `IndexNotFoundError`."""
        try:
            yield
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            message = f"no build offers the points in {self._name} here"
            raise IndexNotFoundError(message) from error
