"""Trains a label model with products that shard servers and this machine compute.

Each product of the training is one matrix, which all shard servers read from a file in the staging
folder, and the sum of what they return for the parts of the rows (`divgrpc.labels.products`). The
sum is added in the order of the parts, so the model is the one that this machine trains alone.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from divgrpc.labels.products import (
    Multiply,
    Operation,
    Sums,
    divide_rows,
    multiply_part,
    sum_of,
)
from divgrpc.labels.training import TrainedLabels, train_on
from divgrpc.labels.training_data import TrainingData
from divgrpc.parameters import LabelParameters
from divgrpc.sharding.messages import Buffer
from divgrpc.sharding.staged_training import MULTIPLY, OfferedTraining, offered, unpack_product
from divgrpc.storage.arrays import ArrayFolder
from divgrpc.storage.writers import ArrayStore
from divgrpc.types import FloatArray, Progress
from divgrpc_server.builder.shard_work import ShardWork

# Fewer parts are multiplied before shard servers have read the matrix.
_PARTS_MIN: Final = 4
# The product of a part has at most 2**23 values (32 MiB), which is what a reply takes.
_PRODUCT_NUMBERS: Final = 2**23
# A part may be begun while at most this many parts before it have no product yet, so that few
# products wait for their turn in the sum.
_PARTS_AHEAD: Final = 16


class ShardTrainer:
    """Trains for `IndexBuilder`; see `divgrpc.builder.label_model.TrainLabels`."""

    def __init__(self, work: ShardWork, stage: ArrayFolder) -> None:
        """Take what divides the work, and the staging folder of the build."""
        self._work, self._stage = work, stage

    def __call__(
        self,
        scratch: ArrayStore,
        data: TrainingData,
        parameters: LabelParameters,
        on_progress: Callable[[Progress], None],
    ) -> TrainedLabels:
        """Train on data that were prepared in a folder of the staging folder."""
        parts = divide_rows(data.documents, data.labels)
        if len(parts) < _PARTS_MIN or not isinstance(scratch, ArrayFolder):
            return train_on(data, parameters, on_progress)
        with offered(self._stage.folder, scratch, data, max(map(len, parts))) as offer:
            return train_on(data, parameters, on_progress, self._multiplier(offer, data))

    def _multiplier(self, offer: OfferedTraining, data: TrainingData) -> Multiply:
        parts = divide_rows(data.documents, data.labels)

        def multiply(operation: Operation, matrix: FloatArray) -> Sums:
            with offer.matrix(matrix) as number:
                task = _ProductTask(offer, data, operation, matrix, number)
                products = self._work.run(task, parts, _PARTS_AHEAD)
                return sum_of(_in_order(products, parts))

        def multiply_columns(operation: Operation, matrix: FloatArray) -> Sums:
            width = max(1, _PRODUCT_NUMBERS // max(data.documents.shape[1], data.labels.dims))
            # Dense documents have so few columns at a time anyway.
            if operation == "squares" or matrix.shape[1] <= width:
                return multiply(operation, matrix)
            starts = range(0, matrix.shape[1], width)
            blocks = (np.ascontiguousarray(matrix[:, start : start + width]) for start in starts)
            return np.hstack([multiply(operation, block) for block in blocks])

        return multiply_columns


class _ProductTask:
    """Multiplies parts of the rows with a matrix."""

    operation = MULTIPLY
    verb = "multiply"

    def __init__(
        self,
        offer: OfferedTraining,
        data: TrainingData,
        operation: Operation,
        matrix: FloatArray,
        number: int,
    ) -> None:
        self._offer, self._data, self._product = offer, data, operation
        self._matrix, self._number = matrix, number
        self._shape = _shape_of(operation, data, matrix.shape[1])

    def pack(self, rows: range) -> bytes:
        """See `Task`."""
        return self._offer.pack(self._product, rows, self._number, self._matrix.shape[1])

    def unpack(self, rows: range, reply: Buffer) -> Sums:
        """See `Task`."""
        product = unpack_product(self._product, reply)
        if product.shape != self._shape:
            raise ValueError(f"its product of rows {rows.start} to {rows.stop} has another shape")
        return product.copy()

    def work(self, rows: range) -> Sums:
        """See `Task`."""
        return multiply_part(
            self._product, self._data.documents, self._data.labels, rows, self._matrix
        )


def _shape_of(operation: Operation, data: TrainingData, columns: int) -> tuple[int, int]:
    """Return the shape of a product with a matrix of so many columns."""
    dims, label_count = data.documents.shape[1], data.labels.dims
    rows = {"features": dims, "labels": label_count, "moments": dims, "squares": columns}
    return rows[operation], columns


def _in_order(products: Iterable[tuple[range, Sums]], parts: Sequence[range]) -> Iterator[Sums]:
    """Yield products, which come in any order, in the order of their parts."""
    waiting: dict[range, Sums] = {}
    order = iter(parts)
    part = next(order, None)
    for finished, product in products:
        waiting[finished] = product
        while part in waiting:
            yield waiting.pop(part)
            part = next(order, None)
