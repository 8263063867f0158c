"""Converts the caller's vectors to matrices that can be cut by rows and sent.

The client checks shapes and types, and the server checks the numbers. If the client checked them,
it would have to read a memory-mapped file twice. Sparse matrices are recognised by their
attributes, so scipy is never imported.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from divgrpc.columns.absence import split_vectors
from divgrpc.errors import invalid
from divgrpc.parameters.suggestions import stacking_hint
from divgrpc_protos import arrays
from divgrpc_protos.arrays import Csr, Matrix, row_count
from divgrpc_protos.v1 import vectors_pb2

Dense: TypeAlias = npt.NDArray[np.floating]

_NUMBER_KINDS: Final = "fiub"
_COLS_MAX: Final = 2**32 - 1  # what the field of the message holds
# Arrays of more bytes than the first number have the allocator keep blocks of the second.
_LARGE_BYTES: Final = 1 << 16
_KEPT_BYTES: Final = 8 << 20


class SparseLike(Protocol):
    """The attributes that the client reads of a sparse matrix, such as a scipy matrix."""

    shape: tuple[int, ...]

    def tocsr(self) -> object:
        """Return the same matrix as compressed sparse rows."""


VectorsLike: TypeAlias = npt.ArrayLike | SparseLike | Csr
# What a caller may pass as `queries`; None together with `like`.
QueryLike: TypeAlias = VectorsLike | None


def as_matrix(
    field: str,
    value: VectorsLike,
    *,
    one_row: bool = False,
    row_numbers: npt.NDArray[np.int64] | None = None,
) -> Matrix:
    """Return the vectors as a two-dimensional array or as compressed sparse rows.

    A two-dimensional array is not copied. With `one_row`, a single vector becomes a matrix of one
    row. A list of sparse matrices becomes one matrix. If a sparse matrix has unsorted or repeated
    entries, a copy is sorted and repeated entries are summed. Raises `InvalidArgumentError` for
    `field` if the shape or the type is wrong; the message names rows by `row_numbers`, by default
    from 0 on.
    """
    if isinstance(value, Csr):
        return value
    if hasattr(value, "tocsr"):
        return _as_csr(field, cast(SparseLike, value), one_row=one_row)
    if isinstance(value, list) and value and all(hasattr(row, "tocsr") for row in value):
        return _joined(field, [_as_csr(field, row, one_row=True) for row in value])
    try:
        array = np.asarray(value)
    except ValueError:
        hint = stacking_hint(value, row_numbers)
        raise invalid(field, f"must be a matrix of numbers{hint}") from None
    if array.dtype.kind not in _NUMBER_KINDS:
        reason = stacking_hint(value, row_numbers) or f", got {array.dtype}"
        raise invalid(field, f"must hold real numbers{reason}")
    if array.ndim == 1 and one_row:
        return array.reshape(1, -1)
    if array.ndim != 2:
        shape = "(rows, dims)" + (" or (dims,)" if one_row else "")
        hint = f"; {field}[None] is a matrix of one row" if array.ndim == 1 else ""
        raise invalid(field, f"must be of shape {shape}, got {array.shape}{hint}")
    return array


def _as_csr(field: str, value: SparseLike, *, one_row: bool) -> Csr:
    # scipy has many sparse formats, and messages have only compressed sparse rows.
    rows = cast("_CsrLike", value.tocsr())
    if len(rows.shape) == 1 and one_row:
        rows = rows.reshape(1, -1).tocsr()
    if len(rows.shape) != 2:
        hint = "matrix[[0]] is a row of a matrix with its two dimensions"
        raise invalid(field, f"must have two dimensions, got {rows.shape}; {hint}")
    if rows.data.dtype.kind not in _NUMBER_KINDS:
        raise invalid(field, f"must hold real numbers, got {rows.data.dtype}")
    if rows.shape[1] > _COLS_MAX:
        raise invalid(field, f"must have at most {_COLS_MAX} columns, got {rows.shape[1]}")
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    with np.errstate(over="ignore"):  # overflows become infinities, which the server refuses
        data = np.asarray(rows.data, np.float32)
    indptr, indices = np.asarray(rows.indptr, np.int64), np.asarray(rows.indices, np.uint32)
    return Csr(indptr, indices, data, int(rows.shape[1]))


def _joined(field: str, parts: list[Csr]) -> Csr:
    counts = {part.cols for part in parts}
    if len(counts) > 1:
        raise invalid(field, f"must all have the same number of columns, got {sorted(counts)}")
    ends = np.cumsum([0, *(len(part.indices) for part in parts)])
    starts = [part.indptr[:-1] + end for part, end in zip(parts, ends[:-1], strict=True)]
    indices, data = ([getattr(part, name) for part in parts] for name in ("indices", "data"))
    indptr = np.concatenate([*starts, ends[-1:]])
    return Csr(indptr, np.concatenate(indices), np.concatenate(data), parts[0].cols)


class _CsrLike(Protocol):
    shape: tuple[int, ...]
    indptr: npt.NDArray[np.integer]
    indices: npt.NDArray[np.integer]
    data: npt.NDArray[np.generic]

    has_canonical_format: bool

    def tocsr(self) -> "_CsrLike": ...

    def reshape(self, rows: int, cols: int) -> "_CsrLike": ...

    def copy(self) -> "_CsrLike": ...

    def sum_duplicates(self) -> None: ...


def number_column(
    name: str, values: npt.ArrayLike, rows: int, dtype: type[np.integer]
) -> npt.NDArray[np.integer]:
    """Return one whole number for each of `rows` rows.

    Raises `InvalidArgumentError` with the field `name`.
    """
    shape = np.shape(values)
    if shape != (rows,):
        raise invalid(name, f"must have one number per row, shape ({rows},), got {shape}")
    return whole_numbers(name, values, dtype)


def whole_numbers(
    field: str, values: npt.ArrayLike, dtype: type[np.integer]
) -> npt.NDArray[np.integer]:
    """Return an array of whole numbers that fit `dtype`; raises for `field` otherwise."""
    array = np.asarray(values)
    if not array.size:
        return array.astype(dtype)
    if array.dtype.kind not in "iu":
        raise invalid(field, f"must be whole numbers, got {array.dtype}")
    limits = np.iinfo(dtype)
    if not limits.min <= int(array.min()) <= int(array.max()) <= limits.max:
        raise invalid(field, f"must be between {limits.min} and {limits.max}")
    return array


def row_ends(matrix: Matrix, limit: int) -> list[int]:
    """Cut a matrix into runs of rows, each of at most `limit` bytes or a single row.

    Returns the ends of the runs in ascending order. The last end is the number of rows. The list is
    empty if the matrix has no rows.
    """
    rows = row_count(matrix)
    if not isinstance(matrix, Csr):
        item_bytes = 2 if matrix.dtype == np.float16 else 4
        step = max(1, limit // max(1, matrix.shape[1] * item_bytes))
        return [min(start + step, rows) for start in range(0, rows, step)]
    # A row takes 8 bytes of indptr. A stored number takes 4 bytes of index and 4 of value.
    bytes_before = matrix.indptr * 8 + np.arange(rows + 1) * 8
    ends: list[int] = []
    start = 0
    while start < rows:
        fits = int(np.searchsorted(bytes_before, bytes_before[start] + limit, side="right")) - 1
        start = min(rows, max(start + 1, fits))
        ends.append(start)
    return ends


@dataclass(frozen=True, slots=True)
class PointVectors:
    """The vectors of the points of a build or an upsert, some of which may have none.

    matrix: the vectors that are there; None if no point has one.
    has_vector: (rows,) whether each point has one; None if all have.
    """

    matrix: Matrix | None
    has_vector: npt.NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, field: str, vectors: "VectorsLike | PointVectors") -> "PointVectors":
        """Check what a caller passes; raises `InvalidArgumentError` for `field`."""
        if isinstance(vectors, PointVectors):
            return vectors
        present, has_vector = split_vectors(vectors)
        if has_vector is None:
            return cls(as_matrix(field, present))
        numbers = np.flatnonzero(has_vector)
        if present is None:
            return cls(None, has_vector)
        matrix = as_matrix(field, present, row_numbers=numbers)
        if row_count(matrix) != len(numbers):
            rule = f"must have one row for each vector that is not None, {len(numbers)}"
            raise invalid(field, f"{rule}, got {row_count(matrix)}")
        return cls(matrix, has_vector)

    def __getitem__(self, rows: slice) -> "PointVectors":
        """Return the points of a slice."""
        start, stop, _ = rows.indices(self.rows)
        if self.has_vector is None:
            return (
                self if self.matrix is None else PointVectors(arrays.take(self.matrix, start, stop))
            )
        before, flags = self.has_vector[:start], self.has_vector[start:stop]
        first, count = int(np.count_nonzero(before)), int(np.count_nonzero(flags))
        if self.matrix is None or not count:
            return PointVectors(None, flags)
        return PointVectors(arrays.take(self.matrix, first, first + count), flags)

    @property
    def rows(self) -> int:
        """The number of points."""
        if self.has_vector is not None:
            return len(self.has_vector)
        return 0 if self.matrix is None else row_count(self.matrix)

    def ends(self, limit: int) -> list[int]:
        """Cut the points into runs as `row_ends` does."""
        ends = [] if self.matrix is None else row_ends(self.matrix, limit)
        if self.has_vector is not None:
            places = np.flatnonzero(self.has_vector)
            ends = sorted({*(int(places[end - 1]) + 1 for end in ends), self.rows})
        return ends

    def fields(self, start: int, stop: int) -> dict[str, Any]:
        """Return the fields of a message with the points `start` to `stop` - 1."""
        if self.has_vector is None:
            return {} if self.matrix is None else {"vectors": encode(self.matrix, start, stop)}
        flags = self.has_vector[start:stop]
        fields: dict[str, Any] = {"rows_without_vector": np.flatnonzero(~flags).tolist()}
        first = int(np.count_nonzero(self.has_vector[:start]))
        count = int(np.count_nonzero(flags))
        if self.matrix is not None and count:
            fields["vectors"] = encode(self.matrix, first, first + count)
        return fields


def encode(
    matrix: Matrix, start: int, stop: int, vectors: vectors_pb2.Vectors | None = None
) -> vectors_pb2.Vectors:
    """Write rows `start` to `stop` into an empty message, a new one by default, and return it."""
    part = arrays.take(matrix, start, stop)
    values = part.data if isinstance(part, Csr) else part
    if values.nbytes > _LARGE_BYTES:
        _raise_allocator_limits()
    return arrays.encode(part, vectors)


@cache
def _raise_allocator_limits() -> None:
    """Have glibc keep the memory of large messages for the next message.

    At first glibc returns a freed block of more than 128 KiB to the system, which then clears new
    pages for each message. After it has freed a larger block, it keeps blocks up to that size.
    """
    bytearray(_KEPT_BYTES)
