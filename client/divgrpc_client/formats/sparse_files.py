"""Sparse vectors from files: scipy's CSR .npz, and svmlight.

Both are read without scipy and scikit-learn, which a caller's machine need not have: an .npz of CSR
is four arrays that numpy reads, and svmlight is one regular expression a line. scikit-learn's
reader is faster, but it cannot say which line is wrong, and reads nothing else than we do.
"""

import re
from array import array
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError
from divgrpc_protos.arrays import Csr, Matrix

Array = npt.NDArray[Any]
IndexBase = Literal["auto", "0", "1"]

SVMLIGHT: Final = (".svm", ".svmlight", ".libsvm")
# A label, perhaps the number of a query, and column:value pairs.
_LINE: Final = re.compile(rb"([^\s:]+)(?:\s+qid:\d+)?((?:\s+\d+:[^\s:_]+)*)")
_SCIPY_KEYS: Final = {"format", "shape", "data"}
COLUMN_MAX: Final = 2**31 - 1


def is_scipy(archive: Mapping[str, Array]) -> bool:
    """Tell whether the arrays of an .npz are what `scipy.sparse.save_npz` writes."""
    return set(archive) >= _SCIPY_KEYS and archive["format"].ndim == 0


def from_scipy(path: Path, archive: Mapping[str, Array]) -> Csr:
    """Return the matrix of an .npz that `scipy.sparse.save_npz` wrote, in canonical form.

    What it stores out of order or more than once is sorted and added up. Raises
    `InvalidArgumentError` where it is not CSR, or does not hold together.
    """
    kind = archive["format"].item()
    kind = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
    if kind != "csr":
        raise _wrong(path, f"holds a sparse matrix of format {kind!r}: save it after .tocsr()")
    indptr, indices, data = (archive[name] for name in ("indptr", "indices", "data"))
    shape = archive["shape"]
    whole = all(part.ndim == 1 for part in (indptr, indices, data, shape)) and len(shape) == 2
    if whole:
        rows, cols = map(int, shape)
        whole = (
            len(indptr) == rows + 1
            and indptr.dtype.kind == indices.dtype.kind == "i"
            and data.dtype.kind in "fiub"
            and indptr[0] == 0
            and bool((np.diff(indptr) >= 0).all())
            and indptr[-1] == len(indices) == len(data)
            and (not len(indices) or 0 <= indices.min() <= indices.max() < cols <= COLUMN_MAX)
        )
    if not whole:
        raise _wrong(path, "holds no whole CSR matrix: its shape and its arrays do not agree")
    return canonical(indptr.astype(np.int64), indices, data, cols)


def canonical(indptr: npt.NDArray[np.int64], indices: Array, data: Array, cols: int) -> Csr:
    """Return rows with columns in order; what is stored more than once is added up.

    `indptr` (n + 1,); `indices` and `data` of any order within their rows.
    """
    row = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    if not ((np.diff(indices) > 0) | (np.diff(row) > 0)).all():
        order = np.lexsort((indices, row))
        indices, row, data = indices[order], row[order], data[order]
        first = np.flatnonzero(np.r_[True, (np.diff(indices) > 0) | (np.diff(row) > 0)])
        indices, row, data = indices[first], row[first], np.add.reduceat(data, first)
        indptr = np.searchsorted(row, np.arange(len(indptr))).astype(np.int64)
    with np.errstate(over="ignore"):  # an infinity is the server's to refuse
        return Csr(indptr, indices.astype(np.uint32), data.astype(np.float32), cols)


def read_svmlight(path: Path, *, base: IndexBase = "auto", dims: int | None = None) -> Csr:
    """Return the rows of an svmlight file; labels, `qid` and comments are passed over.

    `base` is the number of the first column; with auto a file that has a column 0 begins there, and
    any other at 1. `dims` is the number of columns, by default as many as the file shows. Raises
    `InvalidArgumentError` naming the first line that is wrong.
    """
    ends, columns, values = array("q", [0]), array("q"), array("f")
    lowest = 0 if base == "0" else 1
    for number, _, pairs in _lines(path):
        words = pairs.replace(b":", b" ").split()
        try:
            row = [*map(int, words[::2])]
            values.extend(map(float, words[1::2]))
        except ValueError:
            raise _wrong(path, f"line {number}: a value is no number") from None
        for before, column in pairwise(row):
            if column <= before:
                raise _wrong(path, f"line {number}: columns must ascend, got {column} last")
        if row and row[-1] > COLUMN_MAX:
            raise _wrong(path, f"line {number}: there is no column {row[-1]}")
        if row and row[0] == 0 and lowest == 1:
            if base == "1":
                raise _wrong(path, f"line {number}: columns are to begin at 1, got 0")
            lowest = 0
        columns.extend(row)
        ends.append(len(columns))
    indices = np.frombuffer(columns, np.int64) - lowest
    shown = int(indices.max()) + 1 if len(indices) else 0
    if dims is not None and shown > dims:
        raise InvalidArgumentError("dims", f"{path} has {shown} columns, more than --dims {dims}")
    return Csr(
        np.frombuffer(ends, np.int64),
        indices.astype(np.uint32),
        np.frombuffer(values, np.float32),
        shown if dims is None else dims,
    )


def read_labels(path: Path) -> npt.NDArray[np.int64]:
    """Return the label of each row of an svmlight file; raises where one is no whole number."""
    labels = array("q")
    for number, label, _ in _lines(path):
        try:
            value = float(label)
            if not value.is_integer():
                raise ValueError  # noqa: TRY301  # as a text that is no number does
            labels.append(int(value))
        except (ValueError, OverflowError):
            text = label.decode("utf-8", "replace")[:40]
            raise _wrong(path, f"line {number}: label {text!r} is no whole number") from None
    return np.array(labels, np.int64)


def _lines(path: Path) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the number, the label and the pairs of each line that has any."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.partition(b"#")[0].strip()
                if not text:
                    continue
                found = _LINE.fullmatch(text)
                if found is None:
                    raise _wrong(path, f"line {number} is not: label column:value column:value ...")
                yield number, found[1], found[2]
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror or error}") from None


def _wrong(path: Path, what: str) -> InvalidArgumentError:
    return InvalidArgumentError("file", f"{path} {what}")


def widened(rows: Matrix, dims: int) -> Matrix:
    """Give svmlight rows the columns of the index: their file shows only those it uses."""
    if isinstance(rows, Csr) and rows.cols < dims:
        return rows._replace(cols=dims)
    return rows
