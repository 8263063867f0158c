"""Multiplies parts of the data of a training that is under way, for builders of other machines.

A builder offers the data in its staging folder (`staged_arrays`), and writes each matrix to a file
there: one message a part then names the file, and its reply is the product of the part, with the
same bytes as the builder would compute. Nobody but the builder keeps anything between messages, so
a message may be sent again, to anyone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from divgrpc.errors import invalid
from divgrpc.labels.products import GRAM_COLUMNS_MAX, Operation, Sums, multiply_part
from divgrpc.labels.training_data import TrainingData
from divgrpc.parallel import one_blas_thread
from divgrpc.sharding import staged_arrays
from divgrpc.sharding.layouts import (
    COLUMNS,
    FILE,
    MATRIX_NUMBERS,
    MULTIPLY_REPLY,
    OPERATION,
    STAGED_REQUEST,
)
from divgrpc.sharding.messages import Buffer
from divgrpc.sharding.staged_arrays import StagedArrays, check_rows, columns_of
from divgrpc.storage.arrays import ArrayFolder, full_disk_errors
from divgrpc.types import FloatArray
from divgrpc.vectors import SparseRows

# The operation of `StagedBuild` that these data answer.
MULTIPLY: Final = "multiply"
# The file that describes the offer.
OFFER: Final = "training.json"
OPERATIONS: Final[tuple[Operation, ...]] = ("features", "labels", "moments", "squares", "gram")
_LABELS: Final = "labels."


class OfferedTraining:
    """The data of a training that a builder offers, and the matrices that it multiplies them by."""

    def __init__(self, folder: Path) -> None:
        """Take the staging folder."""
        self._folder, self._number = folder, 0

    @contextmanager
    def matrix(self, matrix: FloatArray) -> Iterator[int]:
        """In the block, have `matrix` (d, r) float32 in a file, whose number is returned.

        The file is closed, which is when network file systems let other machines see it. Its name
        is new, so that no machine has looked for it before.

        Raises `StorageFullError`.
        """
        self._number += 1
        path = self._folder / _matrix_name(self._number)
        try:
            with full_disk_errors(), path.open("wb") as file:
                matrix.tofile(file)
            yield self._number
        finally:
            path.unlink(missing_ok=True)

    def pack(self, operation: Operation, part: range, number: int, columns: int) -> bytes:
        """Return the message that asks for the product of a part.

        number: the one of the file with the matrix. columns: the number of columns of the matrix.
        """
        numbers = np.array([OPERATIONS.index(operation), number, columns])
        return STAGED_REQUEST.pack({**columns_of(self._folder.name, part), "matrix": numbers})


@contextmanager
def offered(
    folder: Path, scratch: ArrayFolder, data: TrainingData, rows_max: int
) -> Iterator[OfferedTraining]:
    """In the block, let others multiply the data of a training.

    folder: the staging folder. scratch: a folder in it, which has the documents of `data` and gets
        the labels. rows_max: the maximum number of rows of a part.

    Raises `StorageFullError`.
    """
    is_sparse = isinstance(data.documents, SparseRows)
    names = ["indptr", "indices", "values"] if is_sparse else ["vectors"]
    for name, values in (("indptr", data.labels.indptr), ("indices", data.labels.indices)):
        scratch.begin(_LABELS + name, values.dtype, (), len(values))
        scratch.append(_LABELS + name, values)
        names.append(_LABELS + name)
    document = {
        "shape": [*data.documents.shape, data.labels.dims],
        "rows_max": rows_max,
    }
    arrays = {name: staged_arrays.sync(scratch, name) for name in names}
    with staged_arrays.offered(folder, OFFER, arrays, document):
        yield OfferedTraining(folder)


def unpack_product(operation: Operation, reply: Buffer) -> Sums:
    """Return the product in the reply to a message; raises `InvalidArgumentError`."""
    columns = MULTIPLY_REPLY.unpack(reply)
    product: Sums = columns[_column_of(operation)]
    if not np.isfinite(product).all():
        raise invalid("message", "has numbers that are not finite")
    return product


def _column_of(operation: Operation) -> str:
    return "squares" if operation == "squares" else "product"


class StagedTraining:
    """The data of a training in a staging folder."""

    def __init__(self, folder: Path) -> None:
        """Open the data; raises `IndexNotFoundError` as `StagedArrays` does."""
        self._arrays = StagedArrays(folder, OFFER)
        self._shape: tuple[int, int, int] = tuple(self._arrays.document["shape"])
        self._rows_max = self._arrays.document["rows_max"]

    def answer(self, message: Buffer) -> bytes:
        """Multiply the rows of a part, as `OfferedTraining.pack` asks for it.

        Raises `InvalidArgumentError` for a message that is malformed or does not fit the data, and
        `IndexNotFoundError` if the training is over.
        """
        request = STAGED_REQUEST.unpack(message)
        rows, dims, label_count = self._shape
        part = check_rows(request["rows"], rows, self._rows_max)
        operation, matrix = self._read_matrix(request["matrix"].tolist())
        documents = self._arrays.read_rows(part.start, part.stop, dims)
        labels = self._arrays.read_sparse(part.start, part.stop, label_count, _LABELS)
        with one_blas_thread():
            product = multiply_part(operation, documents, labels, range(len(part)), matrix)
        return MULTIPLY_REPLY.pack({_column_of(operation): product})

    def _read_matrix(self, numbers: list[int]) -> tuple[Operation, FloatArray]:
        """Return the operation and the matrix that a message names."""
        if len(numbers) != MATRIX_NUMBERS:
            raise invalid("matrix", f"must have {MATRIX_NUMBERS} numbers, got {len(numbers)}")
        operation, number, columns = numbers[OPERATION], numbers[FILE], numbers[COLUMNS]
        if not 0 <= operation < len(OPERATIONS):
            last = len(OPERATIONS) - 1
            raise invalid("matrix", f"must have an operation from 0 to {last}, got {operation}")
        name = OPERATIONS[operation]
        _, dims, label_count = self._shape
        if name == "gram" and dims > GRAM_COLUMNS_MAX:
            raise invalid("matrix", f"must have another operation for {dims} features, got {name}")
        least, most = (0, 0) if name == "gram" else (1, max(dims, label_count))
        if number < 1 or not least <= columns <= most:
            limits = f"{least} to {most} columns"
            raise invalid("matrix", f"must have {limits} and a file, got {numbers}")
        rows = label_count if name == "features" else dims
        return name, self._arrays.read_file(_matrix_name(number), (rows, columns))


def _matrix_name(number: int) -> str:
    return f"matrix-{number}"
