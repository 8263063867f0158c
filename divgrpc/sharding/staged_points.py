"""Encodes points of a build that is under way, on any machine that has its staging folder.

A builder offers the hash functions and the points of one shard after another (`staged_arrays`).
Whoever has the folder of a shard then encodes the rows that the builder asks for, with the same
bytes as the builder itself. The offer ends when all points of the shard are encoded.
"""

from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from divgrpc.builder.encoder import EncodedRows, rows_per_block
from divgrpc.builder.hash_functions import HashFunctions
from divgrpc.builder.row_encoder import RowEncoder
from divgrpc.parameters import BuildParameters
from divgrpc.search.arrays import with_points
from divgrpc.sharding import staged_arrays
from divgrpc.sharding.layouts import ENCODE_REPLY, STAGED_REQUEST
from divgrpc.sharding.messages import Buffer
from divgrpc.sharding.staged_arrays import StagedArrays, check_rows, columns_of
from divgrpc.storage.arrays import ArrayEntry, ArrayFolder
from divgrpc.storage.writers import MemoryStore
from divgrpc.vectors import Rows

# The operation of `StagedBuild` that these points answer.
ENCODE: Final = "encode"
# The file that describes the offer.
OFFER: Final = "encoding.json"


def offered(
    folder: Path, stage: ArrayFolder, functions: HashFunctions, points: Rows
) -> AbstractContextManager[None]:
    """In the block, let others encode points.

    folder: has the files of the points, which are finished. stage: has the arrays of `functions`.

    Raises `StorageFullError`.
    """
    arrays = {name: staged_arrays.sync(stage, name) for name in functions.arrays}
    for name, array in with_points({}, points).items():
        arrays[name] = folder / f"{name}.npy", ArrayEntry(array.dtype.name, array.shape, 0)
    document = {
        "shape": points.shape,
        "rows_max": rows_per_block(points, functions.arrays["hyperplanes"].shape[1]),
        "parameters": asdict(functions.parameters),
        "functions": [*functions.arrays],
    }
    return staged_arrays.offered(folder, OFFER, arrays, document)


def pack_block(folder: str, block: range) -> bytes:
    """Return the message that asks for the rows of a block.

    folder: path of the folder with the points; it begins with the name of the staging folder.
    """
    return STAGED_REQUEST.pack(columns_of(folder, block))


def unpack_encoded(reply: Buffer) -> EncodedRows:
    """Return the encoded rows in the reply to a message; raises `InvalidArgumentError`."""
    columns = ENCODE_REPLY.unpack(reply)
    return columns["cells"], columns["terms"], columns["codes"]


class StagedPoints:
    """The points of a shard that is being built, for one thread."""

    def __init__(self, folder: Path) -> None:
        """Open the points; raises `IndexNotFoundError` as `StagedArrays` does."""
        self._arrays = StagedArrays(folder, OFFER)
        document = self._arrays.document
        store = MemoryStore()
        functions = {}
        for name in document["functions"]:
            entry = self._arrays.entry(name)
            functions[name] = store.create(name, entry.dtype, entry.shape)
            functions[name][...] = self._arrays.read(name)
        self._rows, self._dims = document["shape"]
        self._rows_max = document["rows_max"]
        self._encoder = RowEncoder(functions, BuildParameters(**document["parameters"]))

    def answer(self, message: Buffer) -> bytes:
        """Encode the rows of a block, as `pack_block` asks for them.

        Raises `InvalidArgumentError` for a message that is malformed or does not fit the points,
        and `IndexNotFoundError` if the build is over.
        """
        limits = (self._rows, self._rows_max)
        block = check_rows(STAGED_REQUEST.unpack(message)["rows"], *limits)
        rows = self._arrays.read_rows(block.start, block.stop, self._dims)
        cells, terms, codes = self._encoder.encode(rows)
        return ENCODE_REPLY.pack({"cells": cells, "terms": terms, "codes": codes})
