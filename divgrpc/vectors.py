"""Rows that come in, dense or sparse: checked, copied, made what the metric works on.

Cosine works on unit rows and refuses rows of zeros, which have no direction. The other metrics
work on rows as they are, up to a length whose square float32 can hold and add up.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc.arrays import read_only, release
from divgrpc.errors import InvalidArgumentError
from divgrpc.kernels import normalise
from divgrpc.parameters.suggestions import stacking_hint
from divgrpc.types import FloatArray, IntArray, Metric

# Squares of what is so long can be added up ten million times in float32.
LONGEST: Final = 1e15
_TAKEN_AT_ONCE: Final = 256
_BLOCK_ROWS: Final = 8_192
_BLOCK_FLOATS: Final = 1 << 23

_FLOAT32_MAX: Final = float(np.finfo(np.float32).max)
_MALFORMED: Final = {
    normalise.BAD_INDPTR: ("indptr", "must begin at 0, never decrease and end at the values"),
    normalise.BAD_ORDER: ("indices", "must be strictly increasing within each row"),
    normalise.BAD_RANGE: ("indices", "must be from 0 to the number of columns less one"),
}


def within_float32(number: float) -> np.float32:
    """Return the nearest finite float32: a limit beyond all scores stays one, without a warning."""
    return np.float32(min(max(number, -_FLOAT32_MAX), _FLOAT32_MAX))


@dataclass(frozen=True, slots=True, eq=False)
class SparseRows:
    """Compressed sparse rows of `dims` columns.

    `indptr` (n + 1,) int64 from 0 up; row i owns indices[indptr[i]:indptr[i + 1]] int32, strictly
    increasing, and as many `values` float32.
    """

    indptr: IntArray
    indices: npt.NDArray[np.int32]
    values: FloatArray
    dims: int

    @classmethod
    def of(cls, matrix: sparse.csr_array) -> "SparseRows":
        """Return a copy of scipy's matrix, with what it stores twice added up."""
        matrix = matrix.copy()
        matrix.sum_duplicates()
        with np.errstate(over="ignore"):
            values = np.array(matrix.data, np.float32)
        indices = np.array(matrix.indices, np.int32)
        return cls(np.array(matrix.indptr, np.int64), indices, values, matrix.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), self.dims

    @property
    def matrix(self) -> sparse.csr_array:
        """The same numbers as scipy's, not copied where scipy allows."""
        return sparse.csr_array((self.values, self.indices, self.indptr), shape=self.shape)

    def __len__(self) -> int:
        return max(0, len(self.indptr) - 1)

    def __getitem__(self, rows: slice | npt.NDArray[np.generic]) -> "SparseRows":
        """Return some rows: consecutive ones share memory, those of an array are copied."""
        if not isinstance(rows, slice):
            # scipy's own would look at every row there is, however few are wanted.
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
# What callers may give: arrays, nested lists, and whatever of scipy's has `tocsr`.
RowsLike: TypeAlias = npt.ArrayLike | SparseRows | sparse.sparray | sparse.spmatrix


def as_rows(field_name: str, given: object, dims: int | None, *, single: bool = True) -> Rows:
    """Return a new (n, d) float32 matrix or `SparseRows`, finite or not.

    A single vector is a row, unless `single` is False. Raises `InvalidArgumentError` naming
    `field_name` where `given` is no matrix of `dims` columns.
    """
    if isinstance(given, SparseRows):
        rows: Rows = _checked(field_name, given)
    elif hasattr(given, "tocsr"):
        rows = _of_scipy(field_name, given, single=single)
    else:
        rows = _as_matrix(field_name, given, single=single)
    if dims is not None and rows.shape[1] != dims:
        raise InvalidArgumentError(
            field_name, f"{field_name} must have {dims} columns, got {rows.shape[1]}"
        )
    return rows


def prepare(field_name: str, rows: Rows, metric: Metric, *, first_row: int = 0) -> int:
    """Make `rows` in place what the metric works on; returns the first row of zeros, or -1.

    Only cosine looks for zeros. `first_row` is the number of the first in messages. Raises
    `InvalidArgumentError` naming `field_name` where a row is not finite, or too long.
    """
    if metric == "cosine":
        if isinstance(rows, SparseRows):
            bad, zero = normalise.normalise_sparse(rows.indptr, rows.values)
        else:
            bad, zero = normalise.normalise(rows)
        if bad >= 0:
            raise InvalidArgumentError(
                field_name,
                f"{field_name} row {first_row + bad} has a value that is not finite"
                f"{_where(rows[bad : bad + 1])}",
            )
        return int(zero)
    wrong = np.flatnonzero(~(lengths(rows) <= LONGEST))
    if len(wrong):
        where = _where(rows[wrong[0] : wrong[0] + 1])
        fault = "has a value that is not finite" if where else f"is longer than {LONGEST:.0e}"
        raise InvalidArgumentError(
            field_name, f"{field_name} row {first_row + wrong[0]} {fault}{where}"
        )
    return -1


def _where(row: Rows) -> str:
    """Return which column of one row holds the first value that is not finite, or ""."""
    values = row.values if isinstance(row, SparseRows) else row[0]
    places = np.flatnonzero(~np.isfinite(values))
    if not len(places):
        return ""
    column = row.indices[places[0]] if isinstance(row, SparseRows) else places[0]
    return f": column {column} holds {values[places[0]]}"


def take(rows: Rows, numbers: IntArray) -> Rows:
    """Return a copy of some rows, ascending, holding few pages of mapped ones at a time."""
    chunks = [
        numbers[at : at + _TAKEN_AT_ONCE] for at in range(0, max(1, len(numbers)), _TAKEN_AT_ONCE)
    ]
    if isinstance(rows, SparseRows):
        parts: list[Rows] = []
        for chunk in chunks:
            parts.append(rows[chunk])
            release_rows(rows)
        return joined(parts)
    taken = np.empty((len(numbers), rows.shape[1]), np.float32)
    for number, chunk in enumerate(chunks):
        start = number * _TAKEN_AT_ONCE
        taken[start : start + len(chunk)] = rows[chunk]
        release_rows(rows)
    return taken


def joined(parts: list[Rows]) -> Rows:
    """Return rows of one kind, one part after the other, one part at least."""
    dense = [part for part in parts if not isinstance(part, SparseRows)]
    if dense:
        return np.concatenate(dense)
    thin = [part for part in parts if isinstance(part, SparseRows)]
    ends = np.cumsum([0, *(len(part.indices) for part in thin)])
    starts = [part.indptr[:-1] + end for part, end in zip(thin, ends[:-1], strict=True)]
    return SparseRows(
        np.concatenate([*starts, ends[-1:]]),
        np.concatenate([part.indices for part in thin]),
        np.concatenate([part.values for part in thin]),
        thin[0].dims,
    )


def block_rows(rows: Rows) -> int:
    """Return how many rows pass through memory at a time: 8,192, or what holds 2^23 numbers."""
    return max(1, min(_BLOCK_ROWS, _BLOCK_FLOATS // mean_width(rows)))


def mean_width(rows: Rows) -> int:
    """Return how many numbers a row holds on the average, rounded up, at least 1."""
    if isinstance(rows, SparseRows):
        return max(1, -(-len(rows.indices) // max(1, len(rows))))
    return int(rows.shape[1])


def release_rows(rows: Rows) -> None:
    """Let go of the pages of mapped rows."""
    if isinstance(rows, SparseRows):
        release(rows.indptr)
        release(rows.indices)
        release(rows.values)
    else:
        release(rows)


def query_rows(field_name: str, given: object, dims: int, metric: Metric) -> Rows:
    """Return new rows ready to be asked for; raises what `as_rows` and `prepare` do."""
    rows = as_rows(field_name, given, dims)
    zero = prepare(field_name, rows, metric)
    if zero >= 0:
        raise InvalidArgumentError(
            field_name, f"{field_name} row {zero} is all zeros, which has no direction"
        )
    return rows


def lengths(rows: Rows) -> FloatArray:
    """Return the Euclidean length of each row, (n,) float32; not finite where its square is not."""
    result = np.empty(len(rows), np.float32)
    # One compiled version does for rows that may be written and for those that may not.
    if isinstance(rows, SparseRows):
        normalise.lengths_sparse(rows.indptr, read_only(rows.values), result)
    else:
        normalise.lengths(read_only(rows), result)
    return result


def _checked(field_name: str, given: SparseRows) -> SparseRows:
    _check_kinds(field_name, given)
    indptr = np.array(given.indptr, np.int64)
    # What int32 cannot hold is out of range and must not become something that is not.
    indices = np.clip(given.indices, -1, np.iinfo(np.int32).max).astype(np.int32)
    if indptr.ndim != 1 or not len(indptr) or indptr[-1] != len(indices):
        fault = normalise.BAD_INDPTR
    else:
        fault = normalise.check_sparse(indptr, indices, given.dims)
    if fault:
        part, rule = _MALFORMED[fault]
        raise InvalidArgumentError(f"{field_name}.{part}", f"{field_name}.{part} {rule}")
    if len(given.values) != len(indices):
        raise InvalidArgumentError(
            f"{field_name}.values", f"{field_name}.values must be as many as the indices"
        )
    return SparseRows(indptr, indices, np.array(given.values, np.float32), given.dims)


def _check_kinds(field_name: str, given: SparseRows) -> None:
    for part, kinds in (("indptr", "iu"), ("indices", "iu"), ("values", "fiub")):
        array = np.asarray(getattr(given, part))
        if array.ndim != 1 or array.dtype.kind not in kinds:
            wanted = "numbers" if part == "values" else "whole numbers"
            raise InvalidArgumentError(
                f"{field_name}.{part}", f"{field_name}.{part} must be one row of {wanted}"
            )
    if not isinstance(given.dims, int):
        raise InvalidArgumentError(field_name, f"{field_name} must have a whole number of columns")


def _of_scipy(field_name: str, given: object, *, single: bool) -> SparseRows:
    try:
        # scipy's own loops trust what the arrays say.
        if hasattr(given, "check_format"):
            given.check_format(full_check=True)
        matrix = sparse.csr_array(given)
        matrix.check_format(full_check=True)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(field_name, f"{field_name} is malformed: {error}") from None
    if matrix.dtype.kind not in "fiub":
        raise InvalidArgumentError(field_name, f"{field_name} must be a matrix of numbers")
    if matrix.ndim == 1 and single:
        matrix = sparse.csr_array(matrix.reshape(1, -1))
    if matrix.ndim != 2:
        raise InvalidArgumentError(
            field_name,
            f"{field_name} must have rows and columns, got a single vector of {matrix.shape[0]}"
            " columns; matrix[[0]] is a row of a matrix with its two dimensions",
        )
    return SparseRows.of(matrix)


def _as_matrix(field_name: str, given: object, *, single: bool) -> FloatArray:
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        raise InvalidArgumentError(field_name, f"{field_name} must not have masked entries")
    try:
        numbers = np.asarray(given)
        if numbers.dtype == np.float32:
            matrix = np.array(numbers, order="C", ndmin=2)
        elif numbers.dtype.kind in "fiub":
            with np.errstate(over="ignore"):
                matrix = np.array(numbers, np.float32, order="C", ndmin=2)
        else:
            raise TypeError(numbers.dtype)  # noqa: TRY301  # joins the conversions that fail by themselves
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            field_name, f"{field_name} must be a matrix of numbers{stacking_hint(given)}"
        ) from None
    if numbers.ndim == 1 and not single:
        raise InvalidArgumentError(
            field_name,
            f"{field_name} must be a matrix of rows, got a single vector of {len(numbers)} numbers;"
            f" {field_name}[None] is a matrix of one row",
        )
    if matrix.ndim != 2:
        raise InvalidArgumentError(
            field_name, f"{field_name} must have rows and columns, got {matrix.ndim} axes"
        )
    return matrix
