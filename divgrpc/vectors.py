"""Check dense or sparse rows from callers, copy them to float32, and scale them for the metric.

Under the metric cosine, rows are scaled to unit length. A row of zeros has no direction: queries
refuse it, and a build refuses or skips it. Under the other metrics rows are not scaled, but their
length is limited to `LENGTH_MAX`, so that sums of squares do not overflow float32.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc.arrays import read_only
from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.kernels import normalise
from divgrpc.parameters.suggestions import stacking_hint
from divgrpc.types import FloatArray, IntArray, Metric
from divgrpc.types.records import PointLabels

# Maximum Euclidean length of a row. float32 can hold the sum of the squares of ten million such
# lengths.
LENGTH_MAX: Final = 1e15

_FLOAT32_MAX: Final = float(np.finfo(np.float32).max)


def within_float32(number: float) -> np.float32:
    """Return the finite float32 nearest to a limit, so that a huge limit does not overflow."""
    return np.float32(min(max(number, -_FLOAT32_MAX), _FLOAT32_MAX))


@dataclass(frozen=True, slots=True, eq=False)
class SparseRows:
    """Compressed sparse rows (CSR), n rows of `dims` columns.

    `indptr` (n + 1,) int64 begins at 0 and never decreases. The slice indptr[i]:indptr[i + 1] of
    `indices` (int32) holds the columns of row i, strictly increasing. The same slice of `values`
    (float32) holds the values in these columns.
    """

    indptr: IntArray
    indices: npt.NDArray[np.int32]
    values: FloatArray
    dims: int

    @classmethod
    def of(cls, matrix: sparse.csr_array) -> "SparseRows":
        """Copy a scipy matrix; duplicate entries are summed."""
        matrix = matrix.copy()
        matrix.sum_duplicates()
        with np.errstate(over="ignore"):
            values = np.array(matrix.data, np.float32)
        indices = np.array(matrix.indices, np.int32)
        return cls(np.array(matrix.indptr, np.int64), indices, values, matrix.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and the number of columns."""
        return len(self), self.dims

    @property
    def matrix(self) -> sparse.csr_array:
        """The rows as a scipy matrix, which shares memory if scipy allows it."""
        return sparse.csr_array((self.values, self.indices, self.indptr), shape=self.shape)

    def __len__(self) -> int:
        return max(0, len(self.indptr) - 1)

    def __getitem__(self, rows: slice | npt.NDArray[np.generic]) -> "SparseRows":
        """Return rows by a slice (a view), or by an array of row numbers or bools (a copy)."""
        if not isinstance(rows, slice):
            # Do not index with scipy, which takes time for every row of the matrix.
            numbers = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
            starts = self.indptr[numbers]
            sizes = self.indptr[numbers + 1] - starts
            indptr = np.concatenate(([0], np.cumsum(sizes)))
            places = np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], sizes)
            return SparseRows(indptr, self.indices[places], self.values[places], self.dims)
        start, stop, step = rows.indices(len(self))
        if step != 1:
            return self[np.arange(start, stop, step)]
        first, last = self.indptr[start], self.indptr[max(start, stop)]
        return SparseRows(
            self.indptr[start : max(start, stop) + 1] - first,
            self.indices[first:last],
            self.values[first:last],
            self.dims,
        )

    def __matmul__(
        self, other: npt.NDArray[np.floating] | sparse.csr_array
    ) -> npt.NDArray[np.floating]:
        product = self.matrix @ other
        return np.asarray(product.toarray() if sparse.issparse(product) else product)


Rows: TypeAlias = FloatArray | SparseRows
# Rows that callers may pass: arrays, nested lists, and scipy matrices that have `tocsr`.
RowsLike: TypeAlias = npt.ArrayLike | SparseRows | sparse.sparray | sparse.spmatrix
# Labels that callers may pass: a matrix, or what `get` and `scroll` return.
LabelsLike: TypeAlias = RowsLike | PointLabels


def no_rows(dims: int, *, sparse: bool) -> Rows:
    """Return a matrix of `dims` columns without rows."""
    if not sparse:
        return np.empty((0, dims), np.float32)
    return SparseRows(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32), dims)


def as_rows(
    field_name: str,
    values: object,
    dims: int | None,
    *,
    single: bool = True,
    row_numbers: range | IntArray | None = None,
) -> Rows:
    """Copy `values` to an (n, d) float32 matrix or to `SparseRows`; a list may have sparse rows.

    Infinite values and NaN are allowed here; `prepare` refuses them. A single vector becomes a
    matrix of one row, and an empty list a matrix without rows; both are refused if `single` is
    false. Raises `InvalidArgumentError` with the field `field_name` if `values` is not a matrix of
    `dims` columns. If `dims` is None, any number of columns is allowed. Error messages name rows by
    `row_numbers`, by default from 0 on.
    """
    if isinstance(values, SparseRows):
        rows: Rows = _check_sparse(field_name, values)
    elif hasattr(values, "tocsr"):
        rows = _from_scipy(field_name, values, single=single)
    elif isinstance(values, list) and values and all(hasattr(row, "tocsr") for row in values):
        rows = _from_list(field_name, values)
    else:
        rows = _from_dense(field_name, values, single=single, row_numbers=row_numbers)
    if dims is not None and rows.shape[1] != dims:
        raise invalid(field_name, f"must have {dims} columns, got {rows.shape[1]}")
    return rows


def prepare(
    field_name: str, rows: Rows, metric: Metric, *, row_numbers: range | IntArray | None = None
) -> int:
    """Check `rows`, and under cosine scale them in place to unit length.

    Under cosine, returns the place of the first row of zeros; without such a row and under other
    metrics, returns -1. Raises `InvalidArgumentError` with the field `field_name` if a row has a
    value that is not finite or, under metrics other than cosine, is longer than `LENGTH_MAX`. Error
    messages name rows by `row_numbers` (n,), by default 0 to n - 1.
    """
    numbers = range(len(rows)) if row_numbers is None else row_numbers
    if metric == "cosine":
        if isinstance(rows, SparseRows):
            bad, zero = normalise.normalise_sparse(rows.indptr, rows.values)
        else:
            bad, zero = normalise.normalise(rows)
        if bad >= 0:
            raise invalid(
                field_name,
                f"row {numbers[bad]} has a value that is not finite"
                f"{_first_fault(rows[bad : bad + 1])}",
            )
        return int(zero)
    bad_rows = np.flatnonzero(~(lengths(rows) <= LENGTH_MAX))
    if len(bad_rows):
        bad = bad_rows[0]
        place = _first_fault(rows[bad : bad + 1])
        fault = "has a value that is not finite" if place else f"is longer than {LENGTH_MAX:.0e}"
        raise invalid(field_name, f"row {numbers[bad]} {fault}{place}")
    return -1


def _first_fault(row: Rows) -> str:
    """Return text that names the first value of `row` (1, d) that is not finite, or ""."""
    values = row.values if isinstance(row, SparseRows) else row[0]
    places = np.flatnonzero(~np.isfinite(values))
    if not len(places):
        return ""
    column = row.indices[places[0]] if isinstance(row, SparseRows) else places[0]
    return f": column {column} holds {values[places[0]]}"


def draw_numbers(rows: int, count: int, rng: np.random.Generator) -> IntArray:
    """Draw at most `count` distinct numbers from 0 to `rows` - 1, in ascending order."""
    return np.sort(rng.choice(rows, min(count, rows), replace=False))


def concatenate_rows(parts: list[Rows]) -> Rows:
    """Concatenate one or more parts, either all dense or all sparse."""
    dense = [part for part in parts if not isinstance(part, SparseRows)]
    if dense:
        return np.concatenate(dense)
    sparse_parts = [part for part in parts if isinstance(part, SparseRows)]
    ends = np.cumsum([0, *(len(part.indices) for part in sparse_parts)])
    starts = [part.indptr[:-1] + end for part, end in zip(sparse_parts, ends[:-1], strict=True)]
    return SparseRows(
        np.concatenate([*starts, ends[-1:]]),
        np.concatenate([part.indices for part in sparse_parts]),
        np.concatenate([part.values for part in sparse_parts]),
        sparse_parts[0].dims,
    )


def query_rows(field_name: str, values: object, dims: int, metric: Metric) -> Rows:
    """Return queries as new rows, checked and scaled for the metric.

    Raises the errors of `as_rows` and `prepare`, and `InvalidArgumentError` for a row of zeros
    under cosine.
    """
    rows = as_rows(field_name, values, dims)
    zero = prepare(field_name, rows, metric)
    if zero >= 0:
        raise invalid(field_name, f"row {zero} is all zeros, which has no direction")
    return rows


def any_number(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return an (n,) bool mask of the rows with at least one nonzero value."""
    if not isinstance(rows, SparseRows):
        return np.asarray(rows.any(axis=1))
    ends = np.concatenate(([0], np.cumsum(rows.values != 0)))
    return np.asarray(np.diff(ends[rows.indptr]) > 0)


def lengths(rows: Rows) -> FloatArray:
    """Return the Euclidean length of each row, (n,) float32; infinite if its square overflows."""
    if isinstance(rows, SparseRows):
        squares = np.empty(len(rows))
        normalise.squares_sparse(read_only(rows.indptr), read_only(rows.values), squares)
        with np.errstate(over="ignore"):
            return np.sqrt(squares.astype(np.float32))
    result = np.empty(len(rows), np.float32)
    # Pass a read-only array, because numba would compile the kernel once more for a writable one.
    normalise.lengths(read_only(rows), result)
    return result


def _check_sparse(field_name: str, rows: SparseRows) -> SparseRows:
    _check_dtypes(field_name, rows)
    indptr, indices = np.array(rows.indptr, np.int64), np.asarray(rows.indices)
    # Compare adjacent values, because a difference of two int64 values may overflow.
    if indptr[:1].tolist() != [0] or indptr[-1] != len(indices) or (indptr[1:] < indptr[:-1]).any():
        raise invalid(
            f"{field_name}.indptr", "must begin at 0, never decrease and end at the values"
        )
    if len(indices) and (indices.min() < 0 or indices.max() >= min(rows.dims, 2**31)):
        raise invalid(f"{field_name}.indices", "must be from 0 to the number of columns less one")
    rises = indices[1:] > indices[:-1]
    if len(indptr) > 2:
        row_starts = indptr[1:-1]
        rises[row_starts[(row_starts > 0) & (row_starts < len(indices))] - 1] = True
    if not rises.all():
        raise invalid(f"{field_name}.indices", "must be strictly increasing within each row")
    if len(rows.values) != len(indices):
        raise invalid(f"{field_name}.values", "must have the length of the indices")
    values = np.array(rows.values, np.float32)
    return SparseRows(indptr, indices.astype(np.int32), values, rows.dims)


def _check_dtypes(field_name: str, rows: SparseRows) -> None:
    for part, kinds in (("indptr", "iu"), ("indices", "iu"), ("values", "fiub")):
        array = np.asarray(getattr(rows, part))
        if array.ndim != 1 or array.dtype.kind not in kinds:
            numbers = "numbers" if part == "values" else "whole numbers"
            raise invalid(f"{field_name}.{part}", f"must be one row of {numbers}")
    if not isinstance(rows.dims, int):
        raise invalid(field_name, "must have a whole number of columns")


def _from_scipy(field_name: str, values: object, *, single: bool) -> SparseRows:
    if isinstance(values, sparse.csr_array | sparse.csr_matrix) and values.ndim == 2:
        # scipy's checks take longer than many a search. They still name faults and sort columns.
        arrays = (values.indptr, values.indices, values.data)
        with suppress(InvalidArgumentError), np.errstate(over="ignore"):
            rows = _check_sparse(field_name, SparseRows(*arrays, int(values.shape[1])))
            if len(rows) == values.shape[0]:
                return rows
    try:
        # Check the arrays of the matrix, because scipy does not check them when it converts it.
        if hasattr(values, "check_format"):
            values.check_format(full_check=True)
        matrix = sparse.csr_array(values)
        matrix.check_format(full_check=True)
    except (ValueError, TypeError) as error:
        raise invalid(field_name, f"is malformed: {error}") from None
    if matrix.dtype.kind not in "fiub":
        raise invalid(field_name, "must be a matrix of numbers")
    if matrix.ndim == 1 and single:
        matrix = sparse.csr_array(matrix.reshape(1, -1))
    if matrix.ndim != 2:
        raise invalid(
            field_name,
            f"must have rows and columns, got a single vector of {matrix.shape[0]}"
            " columns; matrix[[0]] is a matrix of one row",
        )
    return SparseRows.of(matrix)


def _from_list(field_name: str, values: list[object]) -> Rows:
    """Return the rows of several sparse matrices."""
    parts: list[Rows] = [_from_scipy(field_name, value, single=True) for value in values]
    counts = {part.shape[1] for part in parts}
    if len(counts) > 1:
        raise invalid(field_name, f"must all have the same number of columns, got {sorted(counts)}")
    return concatenate_rows(parts)


def _from_dense(
    field_name: str, values: object, *, single: bool, row_numbers: range | IntArray | None
) -> FloatArray:
    if type(values) is np.ndarray and values.ndim == 2 and values.dtype == np.float32:
        # The usual case, without the checks below, which take time that counts for a single row.
        return np.array(values, order="C")
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise invalid(field_name, "must not have masked entries")
    try:
        numbers = np.asarray(values)
        if numbers.dtype == np.float32:
            matrix = np.array(numbers, order="C", ndmin=2)
        elif numbers.dtype.kind in "fiub":
            with np.errstate(over="ignore"):
                matrix = np.array(numbers, np.float32, order="C", ndmin=2)
        else:
            raise TypeError(numbers.dtype)  # noqa: TRY301  # handled like a failed conversion
    except (TypeError, ValueError):
        hint = stacking_hint(values, row_numbers)
        raise invalid(field_name, f"must be a matrix of numbers{hint}") from None
    if numbers.ndim == 1 and not single:
        raise invalid(
            field_name,
            f"must be a matrix of rows, got a single vector of {len(numbers)} numbers;"
            f" {field_name}[None] is a matrix of one row",
        )
    if matrix.ndim != 2:
        raise invalid(field_name, f"must have rows and columns, got {matrix.ndim} axes")
    return matrix if numbers.shape != (0,) else np.empty((0, 0), np.float32)
