"""Products of documents X (n, d) and labels Y (n, L) with matrices of few columns, for LEML.

Every product takes a matrix with one row for each column of X or Y, and returns such a matrix. So a
product of all rows is the sum of the products of parts of the rows, and whoever has the rows of a
part can compute its product. Parts depend on the data alone, and their products are added in the
order of the parts. A sum is therefore the same, bit for bit, on any number of cores or machines
with processors of one kind.

Within a part, products run over blocks of rows that stay in the cache. Sparse matrices stay sparse.
If d is small, XᵀX (d, d) is computed once, also as a sum over parts. A step of conjugate gradients
is then one dense product, about thirty times faster than two sparse products.
"""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from divgrpc.kernels import leml
from divgrpc.labels.matrices import gram, gram_work, symmetric, triangle_size
from divgrpc.parallel import on_all_cores
from divgrpc.platforms import count_cores
from divgrpc.types import FloatArray
from divgrpc.vectors import Rows, SparseRows

# What is multiplied with a matrix: XᵀY (features), YᵀX (labels) or XᵀX (moments). "squares" is
# VᵀXᵀXV for a matrix V. "gram" is the lower triangle of XᵀX as one row; its matrix (d, 0) is empty.
Operation: TypeAlias = Literal["features", "labels", "moments", "squares", "gram"]
# A product of a part, float32, or float64 for "squares". The sum of products is float64 for "gram".
Sums: TypeAlias = npt.NDArray[np.floating]
# Returns a product of all rows with a matrix.
Multiply: TypeAlias = Callable[[Operation, FloatArray], Sums]

# A part has at least this many stored values, so that its work is worth a message.
_PART_VALUES_MIN: Final = 2**18
# A part has at least this many stored values for each row of its product, so that the sum of the
# products of all parts takes little time.
_VALUES_PER_ROW_MIN: Final = 8
# For XᵀX, a part has at least this many values, and as many as XᵀX, because its product is large.
_GRAM_VALUES_MIN: Final = 2**22
_PARTS_MAX: Final = 64
# But no part has more values than this, so that its product takes a few seconds at most.
_PART_VALUES_MAX: Final = 2**24
# Maximum number of values of the products that exist at a time on this machine (1 GiB).
_PRODUCT_NUMBERS_MAX: Final = 2**28
# Maximum number of values of a matrix or product. For sparse documents, sums do not depend on how
# many columns there are; for dense ones they do, so all who multiply take equally many.
_NUMBERS_MAX: Final = 2**26
_DENSE_NUMBERS_MAX: Final = 2**23
# A block has about this many values of an intermediate product (512 KiB).
_BLOCK_NUMBERS: Final = 2**17
_BLOCK_ROWS_MIN: Final = 64
_BLOCK_ROWS_MAX: Final = 8_192
# XᵀX is kept only if X has at most 4,096 columns, so that XᵀX takes at most 64 MiB, and if XᵀX has
# at most 32 times as many values as X stores. The ratio is 32 because a dense product handles about
# 32 values in the time that a sparse product needs for one stored value.
GRAM_COLUMNS_MAX: Final = 4_096
_GRAM_PER_STORED_MAX: Final = 32


class Products:
    """Products of X and Y with matrices of few columns, in float32."""

    def __init__(
        self, documents: Rows, labels: SparseRows, multiply: Multiply | None = None
    ) -> None:
        """Take `documents` X (n, d) and `labels` Y (n, L); all values in Y are 1.

        multiply: computes products; by default, the cores of this machine do.
        """
        self.documents, self.labels = documents, labels
        self._multiply = multiply or self._multiply_here
        self._gram = self._compute_gram() if _worth_gram(documents) else None

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of documents, features and labels: n, d, L."""
        return len(self.documents), self.documents.shape[1], self.labels.shape[1]

    @property
    def column_count_max(self) -> int:
        """Maximum number of columns of a matrix, except for `squares`."""
        _, features, labels = self.shape
        is_sparse = isinstance(self.documents, SparseRows)
        numbers = _NUMBERS_MAX if is_sparse else _DENSE_NUMBERS_MAX
        return max(1, numbers // max(features, labels))

    def to_features(self, label_factors: FloatArray) -> FloatArray:
        """Return Xᵀ Y H (d, r) for `label_factors` H (L, r)."""
        return self._multiply("features", label_factors)

    def to_labels(self, feature_map: FloatArray) -> FloatArray:
        """Return Yᵀ X V (L, r) for `feature_map` V (d, r)."""
        return self._multiply("labels", feature_map)

    def moments(self, feature_map: FloatArray) -> FloatArray:
        """Return XᵀX V (d, r) for `feature_map` V (d, r)."""
        if self._gram is not None:
            return self._gram @ feature_map
        return self._multiply("moments", feature_map)

    def squares(self, feature_map: FloatArray) -> Sums:
        """Return VᵀXᵀX V (r, r) float64 for `feature_map` V (d, r)."""
        return self._multiply("squares", feature_map)

    def _compute_gram(self) -> FloatArray:
        """Return XᵀX (d, d)."""
        columns = self.shape[1]
        triangle = self._multiply("gram", np.empty((columns, 0), np.float32))
        return symmetric(triangle[0], columns)

    def _multiply_here(self, operation: Operation, matrix: FloatArray) -> Sums:
        def work(part: range) -> Sums:
            return multiply_part(operation, self.documents, self.labels, part, matrix)

        def products() -> Iterator[Sums]:
            parts = divide_rows(operation, self.documents, self.labels)
            # As many products exist at a time as are computed.
            numbers = math.prod(product_shape(operation, *self.shape[1:], matrix.shape[1]))
            step = max(1, min(count_cores(), _PRODUCT_NUMBERS_MAX // numbers))
            for first in range(0, len(parts), step):
                yield from on_all_cores(work, parts[first : first + step])

        return sum_of(operation, products())


def sum_of(operation: Operation, products: Iterator[Sums]) -> Sums:
    """Return the sum of the products of all parts, in their order; may overwrite the first one."""
    total = next(products)
    if operation == "gram":
        total = total.astype(np.float64)
    for product in products:
        total += product
    return total


def product_shape(
    operation: Operation, features: int, labels: int, columns: int
) -> tuple[int, int]:
    """Return the shape of a product with a matrix of so many columns; see `multiply_part`."""
    if operation == "gram":
        return 1, triangle_size(features)
    rows = {"features": features, "labels": labels, "moments": features, "squares": columns}
    return rows[operation], columns


def divide_rows(operation: Operation, documents: Rows, labels: SparseRows) -> list[range]:
    """Return the parts of the rows of X (n, d) and Y (n, L) for a product, in order."""
    rows, columns = documents.shape
    if operation == "gram":
        size = gram_work(documents)
        part_values = max(_GRAM_VALUES_MIN, columns**2)
    else:
        size = _stored_values(documents) + len(labels.indices)
        part_values = max(_PART_VALUES_MIN, _VALUES_PER_ROW_MIN * (columns + labels.dims))
    count = max(min(size // part_values, _PARTS_MAX), -(-size // _PART_VALUES_MAX))
    count = max(1, min(count, rows))
    cuts = [rows * part // count for part in range(count + 1)]
    return [range(start, stop) for start, stop in pairwise(cuts)]


def multiply_part(
    operation: Operation,
    documents: Rows,
    labels: SparseRows,
    part: range,
    matrix: FloatArray,
) -> Sums:
    """Return the product of a part of the rows of X (n, d) and Y (n, L).

    matrix: (d, r) or (L, r) float32, contiguous.

    Returns (d, r) or (L, r) float32; for "squares" (r, r) float64; for "gram" (1, d (d + 1) / 2)
    float32.
    """
    if operation == "gram":
        return gram(documents[part.start : part.stop])[np.newaxis]
    width = matrix.shape[1]
    left = labels if operation == "labels" else documents
    right = labels if operation == "features" else documents
    squares = np.zeros((width, width))
    total = np.zeros((left.shape[1] if operation != "squares" else 0, width), np.float32)
    step = max(_BLOCK_ROWS_MIN, min(_BLOCK_ROWS_MAX, _BLOCK_NUMBERS // max(1, width)))
    for start in range(part.start, part.stop, step):
        block = slice(start, min(start + step, part.stop))
        product = _product(right[block], matrix)
        if operation == "squares":
            squares += product.T @ product
        else:
            _add_transposed(left[block], product, total)
    return squares if operation == "squares" else total


def _product(rows: Rows, matrix: FloatArray) -> FloatArray:
    """Return the product (m, r) of `rows` (m, d) and `matrix` (d, r), on one core."""
    if not isinstance(rows, SparseRows):
        return rows @ matrix
    product = np.empty((len(rows), matrix.shape[1]), np.float32)
    arrays = (rows.indptr, rows.indices, rows.values, matrix)
    leml.sparse_product(*arrays, 0, len(rows), product)
    return product


def _add_transposed(rows: Rows, product: FloatArray, total: FloatArray) -> None:
    """Add the product of transposed `rows` (m, d) and `product` (m, r) to `total` (d, r)."""
    if not isinstance(rows, SparseRows):
        total += rows.T @ product
        return
    leml.add_transposed(rows.indptr, rows.indices, rows.values, product, total)


def _stored_values(documents: Rows) -> int:
    return len(documents.indices) if isinstance(documents, SparseRows) else documents.size


def _worth_gram(documents: Rows) -> bool:
    columns = int(documents.shape[1])
    largest = _GRAM_PER_STORED_MAX * max(1, _stored_values(documents))
    return columns <= GRAM_COLUMNS_MAX and columns**2 <= largest
