"""Trains a label model with products that shard servers and this machine compute.

Each product of the training is one matrix, which all shard servers read from a file in the staging
folder, and the sum of what they return for the parts of the rows (`divgrpc.labels.products`). The
sum is added in the order of the parts, so the model is the one that this machine trains alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from divgrpc.labels.products import (
    Multiply,
    Operation,
    Sums,
    divide_rows,
    multiply_part,
    product_shape,
    sum_of,
)
from divgrpc.labels.training import TrainedLabels, train_on
from divgrpc.labels.training_data import TrainingData
from divgrpc.parameters import LabelParameters
from divgrpc.sharding.messages import Buffer
from divgrpc.sharding.staged_training import (
    MULTIPLY,
    OPERATIONS,
    OfferedTraining,
    offered,
    unpack_product,
)
from divgrpc.storage.arrays import ArrayFolder
from divgrpc.storage.writers import ArrayStore
from divgrpc.types import FloatArray, Progress
from divgrpc_server.builder.shard_work import ShardWork

# Fewer parts are multiplied before shard servers have read the matrix.
_PARTS_MIN: Final = 4
# The product of a part has about 2**23 values (32 MiB) at most, which a reply takes. XᵀX of 4,096
# columns has 2,048 values more.
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
        parts = {name: divide_rows(name, data.documents, data.labels) for name in OPERATIONS}
        if len(parts["features"]) < _PARTS_MIN or not isinstance(scratch, ArrayFolder):
            return train_on(data, parameters, on_progress)
        rows_max = max(len(part) for division in parts.values() for part in division)
        with offered(self._stage.folder, scratch, data, rows_max) as offer:
            return train_on(data, parameters, on_progress, self._multiplier(offer, data, parts))

    def _multiplier(
        self, offer: OfferedTraining, data: TrainingData, parts: Mapping[Operation, list[range]]
    ) -> Multiply:
        def multiply(operation: Operation, matrix: FloatArray) -> Sums:
            with offer.matrix(matrix) as number:
                task = _ProductTask(offer, data, operation, matrix, number)
                products = self._work.run(task, parts[operation], _PARTS_AHEAD)
                return sum_of(operation, _in_order(products, parts[operation]))

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
        sizes = data.documents.shape[1], data.labels.dims, matrix.shape[1]
        self._shape = product_shape(operation, *sizes)

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
