"""Conversion between numpy arrays and the matrices of the contract, for clients and servers.

Decoding compares the lengths of the fields with the shape before it allocates memory. If a length
does not match, decoding raises `MatrixError`, which names the field of the message.
"""

from typing import Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from divgrpc_protos.v1 import points_pb2, vectors_pb2

_T = TypeVar("_T", bound=np.generic)

_DTYPES: Final[dict[int, np.dtype[np.floating]]] = {
    vectors_pb2.DTYPE_UNSPECIFIED: np.dtype("<f4"),
    vectors_pb2.DTYPE_FLOAT32: np.dtype("<f4"),
    vectors_pb2.DTYPE_FLOAT16: np.dtype("<f2"),
}


class MatrixError(ValueError):
    """The contents of a matrix message do not match its shape."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Csr(NamedTuple):
    """Compressed sparse rows.

    `indptr` (rows + 1,) int64 are the row pointers, `indices` (nnz,) uint32 the columns and `data`
    (nnz,) float32 the values. `cols` is the number of columns.
    """

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.uint32]
    data: npt.NDArray[np.float32]
    cols: int


Matrix: TypeAlias = npt.NDArray[np.floating] | Csr


def row_count(matrix: Matrix) -> int:
    """Return the number of rows."""
    return len(matrix.indptr) - 1 if isinstance(matrix, Csr) else matrix.shape[0]


def take(matrix: Matrix, start: int, stop: int) -> Matrix:
    """Return rows `start` to `stop` - 1; their values are a view of the matrix."""
    if not isinstance(matrix, Csr):
        return matrix[start:stop]
    first, last = int(matrix.indptr[start]), int(matrix.indptr[stop])
    return Csr(
        matrix.indptr[start : stop + 1] - first,
        matrix.indices[first:last],
        matrix.data[first:last],
        matrix.cols,
    )


def picked(matrix: Matrix, rows: npt.NDArray[np.int64]) -> Matrix:
    """Return a copy of the rows whose numbers are in `rows`, in the order of `rows`."""
    if not isinstance(matrix, Csr):
        return matrix[rows]
    counts = np.diff(matrix.indptr)[rows]
    ends = np.concatenate(([0], np.cumsum(counts)))
    places = np.arange(ends[-1]) + np.repeat(matrix.indptr[rows] - ends[:-1], counts)
    return Csr(ends, matrix.indices[places], matrix.data[places], matrix.cols)


def filled_places(counts: npt.NDArray[np.integer], width: int) -> npt.NDArray[np.bool_]:
    """Return a (rows, width) mask that is true for the first `counts[i]` places of row i."""
    places: npt.NDArray[np.bool_] = np.arange(width) < counts[:, None]
    return places


def encode(matrix: Matrix, vectors: vectors_pb2.Vectors | None = None) -> vectors_pb2.Vectors:
    """Write a dense or sparse matrix into an empty message, and return it.

    The message is new unless `vectors` is given. A part of a request is faster to write than to
    copy into it.
    """
    if isinstance(matrix, Csr):
        return encode_csr(matrix, vectors)
    return encode_dense(matrix, vectors)


def encode_dense(
    matrix: npt.NDArray[np.floating], vectors: vectors_pb2.Vectors | None = None
) -> vectors_pb2.Vectors:
    """Write a (rows, cols) array as `encode` does.

    The message has float16 values if the array is float16, and float32 values otherwise.
    """
    half = matrix.dtype == np.float16
    # A value that overflows becomes infinite, and the server refuses it.
    with np.errstate(over="ignore"):
        block = np.ascontiguousarray(matrix, dtype="<f2" if half else "<f4")
    vectors = vectors_pb2.Vectors() if vectors is None else vectors
    dense = vectors.dense
    dense.rows, dense.cols = block.shape
    dense.dtype = vectors_pb2.DTYPE_FLOAT16 if half else vectors_pb2.DTYPE_FLOAT32
    dense.data = block.tobytes()
    return vectors


def encode_csr(csr: Csr, vectors: vectors_pb2.Vectors | None = None) -> vectors_pb2.Vectors:
    """Write compressed sparse rows as `encode` does."""
    vectors = vectors_pb2.Vectors() if vectors is None else vectors
    sparse = vectors.sparse
    sparse.rows, sparse.cols = len(csr.indptr) - 1, csr.cols
    sparse.indptr = np.ascontiguousarray(csr.indptr, "<i8").tobytes()
    sparse.indices = np.ascontiguousarray(csr.indices, "<u4").tobytes()
    sparse.data = np.ascontiguousarray(csr.data, "<f4").tobytes()
    sparse.dtype = vectors_pb2.DTYPE_FLOAT32
    return vectors


def decode(vectors: vectors_pb2.Vectors) -> npt.NDArray[np.float32] | Csr:
    """Return the matrix as a (rows, cols) float32 array or as compressed sparse rows.

    Raises `MatrixError` if the shape does not match the data, or if columns are out of range or not
    strictly increasing within a row. Values may be infinite or NaN.
    """
    kind = vectors.WhichOneof("kind")
    if kind == "dense":
        return decode_dense(vectors.dense)
    if kind == "sparse":
        return _decode_csr(vectors.sparse)
    raise MatrixError("", "one of dense and sparse must be set")


def encode_label_sets(sets: Csr) -> points_pb2.LabelSets:
    """Return the labels of rows as a message; the labels are the columns with nonzero values."""
    labels = without_zeros(sets)
    return points_pb2.LabelSets(
        label_count=labels.cols, offsets=labels.indptr.tolist(), ids=labels.indices.tolist()
    )


def without_zeros(matrix: Csr) -> Csr:
    """Return the same matrix without stored zeros."""
    nonzero = matrix.data != 0
    ends = np.concatenate(([0], np.cumsum(nonzero)))[matrix.indptr]
    return Csr(ends, matrix.indices[nonzero], matrix.data[nonzero], matrix.cols)


def decode_label_sets(sets: points_pb2.LabelSets) -> Csr:
    """Return the labels of rows as a sparse matrix with the value 1 for each label.

    Raises `MatrixError` if the offsets do not match the ids, or if labels are out of range or not
    strictly increasing within a row.
    """
    offsets, ids = np.array(sets.offsets, np.int64), np.array(sets.ids, np.uint32)
    if not len(offsets):
        raise MatrixError("offsets", "offsets must be one more than the rows, got none")
    _check_indptr("offsets", offsets)
    if offsets[-1] != len(ids):
        raise MatrixError("offsets", f"offsets must end at the {len(ids)} ids, got {offsets[-1]}")
    _check_indices("ids", ids, offsets, f"label_count = {sets.label_count}", sets.label_count)
    return Csr(offsets, ids, np.ones(len(ids), np.float32), sets.label_count)


def _dtype(field: str, dtype: int) -> np.dtype[np.floating]:
    if dtype not in _DTYPES:
        raise MatrixError(f"{field}.dtype", f"unknown dtype {dtype}")
    return _DTYPES[dtype]


def _numbers(field: str, data: bytes, dtype: np.dtype[_T], count: int) -> npt.NDArray[_T]:
    byte_count = count * dtype.itemsize
    if len(data) != byte_count:
        raise MatrixError(
            field, f"{field} must be {byte_count} bytes for its shape, got {len(data)}"
        )
    return np.frombuffer(data, dtype)


def decode_dense(matrix: vectors_pb2.DenseMatrix) -> npt.NDArray[np.float32]:
    """Return a (rows, cols) float32 array; raises the same errors as `decode`."""
    dtype = _dtype("dense", matrix.dtype)
    # Each read of `data` copies it.
    rows, cols, data = matrix.rows, matrix.cols, matrix.data
    if data and matrix.values:
        raise MatrixError("dense.values", "dense.data and dense.values must not both be set")
    if matrix.values:
        if len(matrix.values) != rows * cols:
            raise MatrixError(
                "dense.values",
                f"dense.values must hold rows * cols = {rows * cols} numbers, "
                f"got {len(matrix.values)}",
            )
        numbers = np.array(matrix.values, dtype=np.float32)
    else:
        numbers = _numbers("dense.data", data, dtype, rows * cols)
    return numbers.reshape(rows, cols).astype(np.float32, copy=False)


def _decode_csr(matrix: vectors_pb2.CsrMatrix) -> Csr:
    dtype = _dtype("sparse", matrix.dtype)
    indptr = _numbers("sparse.indptr", matrix.indptr, np.dtype("<i8"), matrix.rows + 1)
    _check_indptr("sparse.indptr", indptr)
    nnz = int(indptr[-1])
    value_count = len(matrix.data) // dtype.itemsize
    # If indices and data agree, indptr is wrong.
    if len(matrix.indices) == 4 * value_count != 4 * nnz:
        raise MatrixError(
            "sparse.indptr", f"sparse.indptr must end at the {value_count} values, got {nnz}"
        )
    indices = _numbers("sparse.indices", matrix.indices, np.dtype("<u4"), nnz)
    data = _numbers("sparse.data", matrix.data, dtype, nnz)
    _check_indices("sparse.indices", indices, indptr, f"cols = {matrix.cols}", matrix.cols)
    return Csr(indptr, indices, data.astype(np.float32, copy=False), matrix.cols)


def _check_indptr(field: str, indptr: npt.NDArray[np.int64]) -> None:
    # Compare adjacent values, because a difference of two int64 values may overflow.
    if indptr[0] != 0 or (indptr[1:] < indptr[:-1]).any():
        raise MatrixError(field, f"{field} must begin at 0 and never decrease")


def _check_indices(
    field: str, indices: npt.NDArray[np.uint32], indptr: npt.NDArray[np.int64], most: str, cols: int
) -> None:
    """Check that columns are below `cols` and ascend within each row.

    `most` describes the maximum column in error messages.
    """
    nnz = len(indices)
    if nnz and int(indices.max()) >= cols:
        raise MatrixError(field, f"{field} must be below {most}, got {int(indices.max())}")
    steps_up = np.diff(indices.astype(np.int64)) > 0
    row_starts = indptr[1:-1]
    steps_up[row_starts[(row_starts > 0) & (row_starts < nnz)] - 1] = True
    if not steps_up.all():
        raise MatrixError(field, f"{field} must be strictly increasing within each row")
