"""Encodes points of a build that is under way, on any machine that has its staging folder.

A builder offers the hash functions and the points in its staging folder (`staged_arrays`). Whoever
has the folder then encodes the rows that the builder asks for, with the same bytes as the builder
itself. The offer ends when all points are encoded.
"""

from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from divgrpc.builder.encoder import EncodedRows, rows_per_block
from divgrpc.builder.hash_functions import REACHES, HashFunctions
from divgrpc.builder.row_encoder import RowEncoder
from divgrpc.parameters import BuildParameters
from divgrpc.sharding import staged_arrays
from divgrpc.sharding.layouts import ENCODE_REPLY, STAGED_REQUEST
from divgrpc.sharding.messages import Buffer
from divgrpc.sharding.staged_arrays import StagedArrays, check_rows, columns_of
from divgrpc.storage.arrays import ArrayFolder
from divgrpc.storage.writers import MemoryStore
from divgrpc.vectors import Rows, SparseRows

# The operation of `StagedBuild` that these points answer.
ENCODE: Final = "encode"
# The file that describes the offer.
OFFER: Final = "encoding.json"


def offered(
    stage: ArrayFolder, functions: HashFunctions, points: Rows
) -> AbstractContextManager[None]:
    """In the block, let others encode the points in a staging folder.

    stage: has the arrays of `functions` and `points`.

    Raises `StorageFullError`.
    """
    is_sparse = isinstance(points, SparseRows)
    names = ["indptr", "indices", "values"] if is_sparse else ["vectors"]
    of_functions = [name for name in functions.arrays if name != REACHES]
    arrays = {name: (stage, name) for name in (*names, *of_functions)}
    document = {
        "shape": points.shape,
        "rows_max": rows_per_block(points, functions.arrays["hyperplanes"].shape[1]),
        "parameters": asdict(functions.parameters),
        "functions": of_functions,
    }
    return staged_arrays.offered(stage.folder, OFFER, arrays, document)


def pack_block(folder: str, block: range) -> bytes:
    """Return the message that asks for the rows of a block; `folder` is a staging folder's name."""
    return STAGED_REQUEST.pack(columns_of(folder, block))


def unpack_encoded(reply: Buffer) -> EncodedRows:
    """Return the encoded rows in the reply to a message; raises `InvalidArgumentError`."""
    columns = ENCODE_REPLY.unpack(reply)
    return columns["cells"], columns["terms"], columns["codes"]


class StagedPoints:
    """The points in a staging folder, for one thread."""

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
