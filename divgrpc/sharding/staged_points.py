"""Encodes points of a build that is under way, on any machine that has its staging folder.

A builder stores the hash functions and the points in its staging folder, and offers them: it syncs
them, and describes them in a file. Whoever has the folder then encodes the rows that the builder
asks for, with the same bytes as the builder itself. The file goes when all points are encoded.
"""

import errno
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np

from divgrpc import __version__
from divgrpc.arrays import Array
from divgrpc.builder.encoder import EncodedRows, rows_per_block
from divgrpc.builder.hash_functions import REACHES, HashFunctions
from divgrpc.builder.row_encoder import RowEncoder
from divgrpc.errors import IndexNotFoundError, UnsupportedError, invalid
from divgrpc.parameters import BuildParameters
from divgrpc.sharding.layouts import ENCODE_REPLY, ENCODE_REQUEST
from divgrpc.sharding.messages import Buffer
from divgrpc.storage.arrays import (
    HEADER_BYTES,
    ArrayEntry,
    ArrayFolder,
    sync_folder,
    write_synced,
)
from divgrpc.storage.writers import MemoryStore
from divgrpc.vectors import Rows, SparseRows

# The only operation of `StagedPoints`.
ENCODE: Final = "encode"
_DESCRIPTION: Final = "encoding.json"
# How systems say that a file is not there; the last one is of a network file system.
_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


@contextmanager
def offered(stage: ArrayFolder, functions: HashFunctions, points: Rows) -> Iterator[None]:
    """In the block, let others encode the points in a staging folder.

    stage: has the arrays of `functions` and `points`.

    Raises `StorageFullError`.
    """
    is_sparse = isinstance(points, SparseRows)
    names = ["indptr", "indices", "values"] if is_sparse else ["vectors"]
    of_functions = [name for name in functions.arrays if name != REACHES]
    document = {
        "version": __version__,
        "shape": points.shape,
        "rows_max": rows_per_block(points, functions.arrays["hyperplanes"].shape[1]),
        "parameters": asdict(functions.parameters),
        "functions": of_functions,
        "arrays": {name: asdict(stage.sync(name)) for name in (*names, *of_functions)},
    }
    description = stage.folder / _DESCRIPTION
    write_synced(description, json.dumps(document))
    sync_folder(stage.folder)
    try:
        yield
    finally:
        description.unlink(missing_ok=True)


def is_offered(folder: Path) -> bool:
    """Return whether the points in a staging folder are offered."""
    try:
        return (folder / _DESCRIPTION).exists()
    except OSError:  # as network file systems raise it
        return False


def pack_block(folder: str, block: range) -> bytes:
    """Return the message that asks for the rows of a block; `folder` is a staging folder's name."""
    name = np.frombuffer(folder.encode(), np.uint8)
    return ENCODE_REQUEST.pack({"folder": name, "rows": np.array([block.start, block.stop])})


def folder_of(message: Buffer) -> str:
    """Return the name of the staging folder in a message; raises `InvalidArgumentError`."""
    return ENCODE_REQUEST.unpack(message)["folder"].tobytes().decode(errors="replace")


def unpack_encoded(reply: Buffer) -> EncodedRows:
    """Return the encoded rows in the reply to a message; raises `InvalidArgumentError`."""
    columns = ENCODE_REPLY.unpack(reply)
    return columns["cells"], columns["terms"], columns["codes"]


class StagedPoints:
    """The points in a staging folder, for one thread.

    Its files are read, not mapped: a build that is cancelled removes them, and to read a mapped
    file that another machine has removed ends the process.
    """

    def __init__(self, folder: Path) -> None:
        """Open the points.

        Raises `IndexNotFoundError` if none are offered in `folder`, or if a builder of another
        version offers them: its codes may be others.
        """
        self._folder = folder
        store = MemoryStore()
        with self._absence_errors():
            document = json.loads((folder / _DESCRIPTION).read_bytes())
            if document.get("version") != __version__:
                offer = f"a build of version {document.get('version')} offers the points"
                raise IndexNotFoundError(f"{offer} in {folder.name}, and this is {__version__}")
            self._entries = {
                name: ArrayEntry(entry["dtype"], tuple(entry["shape"]), entry["crc32"])
                for name, entry in document["arrays"].items()
            }
            arrays = {}
            for name in document["functions"]:
                entry = self._entries[name]
                arrays[name] = store.create(name, entry.dtype, entry.shape)
                arrays[name][...] = self._read(name, 0, entry.shape[0])
        self._rows, self._dims = document["shape"]
        self._rows_max = document["rows_max"]
        self._encoder = RowEncoder(arrays, BuildParameters(**document["parameters"]))

    def ask(self, name: str, message: Buffer) -> bytes:
        """Encode the rows of a block, as `pack_block` asks for them.

        name: the operation, as for `ShardCore.ask`.

        Raises `UnsupportedError` for another name, `InvalidArgumentError` for a message that is
        malformed or does not fit the points, and `IndexNotFoundError` if the build is over.
        """
        if name != ENCODE:
            raise UnsupportedError("name", f"must be {ENCODE}, got {name!r:.80}")
        start, stop = self._checked(ENCODE_REQUEST.unpack(message)["rows"])
        with self._absence_errors():
            rows = self._read_rows(start, stop)
        cells, terms, codes = self._encoder.encode(rows)
        return ENCODE_REPLY.pack({"cells": cells, "terms": terms, "codes": codes})

    def _checked(self, rows: Array) -> tuple[int, int]:
        """Return the bounds of a block."""
        if len(rows) != 2:
            raise invalid("rows", f"must have two numbers, got {len(rows)}")
        start, stop = map(int, rows)
        if not 0 <= start < stop <= self._rows:
            limit = f"must be within the {self._rows} rows of the build"
            raise invalid("rows", f"{limit}, got {start} to {stop}")
        if stop - start > self._rows_max:
            raise invalid("rows", f"must be at most {self._rows_max}, got {stop - start}")
        return start, stop

    def _read_rows(self, start: int, stop: int) -> Rows:
        if "vectors" in self._entries:
            return self._read("vectors", start, stop)
        indptr = self._read("indptr", start, stop + 1)
        indices, values = (
            self._read(name, int(indptr[0]), int(indptr[-1])) for name in ("indices", "values")
        )
        return SparseRows(indptr - indptr[0], indices, values, self._dims)

    def _read(self, name: str, start: int, stop: int) -> Array:
        """Return rows of an array."""
        entry = self._entries[name]
        dtype, width = np.dtype(entry.dtype), math.prod(entry.shape[1:])
        first = HEADER_BYTES + start * width * dtype.itemsize
        path = self._folder / f"{name}.npy"
        values = np.fromfile(path, dtype, (stop - start) * width, offset=first)
        return values.reshape(stop - start, *entry.shape[1:])

    @contextmanager
    def _absence_errors(self) -> Iterator[None]:
        """Convert an `OSError` about files that are not there to `IndexNotFoundError`."""
        try:
            yield
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            message = f"no build offers the points in {self._folder.name} here"
            raise IndexNotFoundError(message) from error
