"""Sparse rows of text: svmlight, and the Extreme Classification Repository's documents with labels.

Both have a row a line, `label,label,... column:value column:value ...`, perhaps with `qid:number`
after the labels; comments begin with #, and empty lines are passed over. svmlight has one label a
row and counts columns from 0 or 1. The repository's files begin with a line of three numbers, rows,
columns and labels, and count both from 0; a row without labels begins with a space. Its small sets
come with files of splits, whose columns are alternative lists of the rows to take, counted from 1.

They are read without scikit-learn, which a client need not have. Its reader is faster, but cannot
say which line is wrong.
"""

import re
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError
from divgrpc_protos.arrays import Csr, Matrix

Array = npt.NDArray[Any]
IndexBase = Literal["auto", "0", "1"]

SVMLIGHT: Final = (".svm", ".svmlight", ".libsvm")
COLUMN_MAX: Final = 2**31 - 1
_HEADER: Final = re.compile(rb"\s*(\d+)\s+(\d+)\s+(\d+)\s*")
_LINE: Final = re.compile(
    rb"(?P<labels>[^\s:,]+(?:\s*,\s*[^\s:,]+)*)?(?:(?:^|\s+)qid:\d+)?"
    rb"(?P<pairs>(?:(?:^|\s+)\d+:[^\s:_]+)*)\s*"
)
_FLOAT32_MAX: Final = float(np.finfo(np.float32).max)
# More digits than an int64 has.
_DIGITS_MAX: Final = 19


class _Sizes(NamedTuple):
    """Rows, columns and labels that a header announces; -1 where there is none."""

    rows: int = -1
    columns: int = -1
    labels: int = -1


def read_svmlight(path: Path, *, base: IndexBase = "auto", dims: int | None = None) -> Csr:
    """Return the rows of an svmlight file; labels, `qid` and comments are passed over.

    `base` is the number of the first column; with auto a file that has a column 0 begins there, and
    any other at 1. `dims` is the number of columns, by default as many as the file shows. Raises
    `InvalidArgumentError` naming the first line that is wrong.
    """
    rows = _Rows(path, "column")
    for number, line in _lines(path):
        if not line.strip():
            continue
        labels, pairs = _split(path, number, line)
        if not labels:
            raise wrong(path, f"line {number} is not: label column:value column:value ...")
        rows.add_pairs(number, pairs, first=int(base == "1"))
    first = rows.least if base == "auto" else int(base)
    return rows.matrix("dims", dims, -1, int(first > 0))


def read_labels(path: Path) -> npt.NDArray[np.int64]:
    """Return the label of each row of an svmlight file; raises where one is no whole number."""
    labels = array("q")
    for number, line in _lines(path):
        if not line.strip():
            continue
        label, _ = _split(path, number, line)
        try:
            value = float(label)
            if not value.is_integer():
                raise ValueError  # noqa: TRY301  # as a text that is no number does
            labels.append(int(value))
        except (ValueError, OverflowError):
            text = label.decode("utf-8", "replace")[:40]
            raise wrong(path, f"line {number}: label {text!r} is no whole number") from None
    return np.array(labels, np.int64)


def read_labelled(
    path: Path,
    *,
    base: IndexBase = "auto",
    dims: int | None = None,
    label_count: int | None = None,
) -> tuple[Csr, Csr]:
    """Return documents (n, d) and labels (n, L) of a text file, with or without a header.

    Labels count from 0, and `base` says where features begin: auto is 0 with a header, and as for
    svmlight without one. `dims` and `label_count` are d and L, by default what the header says,
    else as many as the file shows. Raises `InvalidArgumentError` naming the first wrong line.
    """
    documents, labels = _Rows(path, "feature"), _Rows(path, "label")
    sizes = _Sizes()
    for number, line in _lines(path):
        if number == 1 and (header := _HEADER.fullmatch(line)):
            sizes = _sizes(path, header.groups())
            base = "0" if base == "auto" else base
            continue
        label_text, pairs = _split(path, number, line)
        words = [word.strip() for word in label_text.split(b",") if word]
        if not all(word.isdigit() for word in words):
            raise wrong(path, f"line {number} is not: label,label,... feature:value ...")
        labels.add(number, words, [b"1"] * len(words), most=sizes.labels)
        documents.add_pairs(number, pairs, most=sizes.columns, first=int(base == "1"))
    if sizes.rows not in (-1, documents.count):
        announced = f"{sizes.rows} documents"
        raise wrong(path, f"line 1 announces {announced}, and there are {documents.count}")
    least = documents.least if base == "auto" else int(base)
    return (
        documents.matrix("dims", dims, sizes.columns, int(least > 0)),
        labels.matrix("label_count", label_count, sizes.labels, 0),
    )


def read_split(path: Path, documents: int, column: int = 0) -> npt.NDArray[np.int64]:
    """Return the documents, from 0 up, that one column of a file of splits lists, counted from 1.

    Raises `InvalidArgumentError` naming the first line that has no such column, or in it no number
    from 1 to `documents`, or one that an earlier line has.
    """
    rows = array("q")
    occurrences = np.zeros(documents, np.int64)
    for number, line in _lines(path):
        words = line.split()
        if not words:
            continue
        if not 0 <= column < len(words):
            raise wrong(path, f"line {number} has {len(words)} columns, and no column {column}")
        word = words[column]
        if not (word.isdigit() and len(word) < _DIGITS_MAX) or not 1 <= int(word) <= documents:
            raise wrong(path, f"line {number} must have a number from 1 to {documents}")
        row = int(word) - 1
        if occurrences[row]:
            raise wrong(
                path, f"line {number} has document {row + 1}, as line {occurrences[row]} has"
            )
        occurrences[row] = number
        rows.append(row)
    return np.array(rows, np.int64)


def line_of(path: Path, document: int) -> tuple[int, list[int]]:
    """Return the number of the line of a document, counted from 0, and its features as they stand.

    `read_labelled` must have read the file before.
    """
    lines = (
        (number, match)
        for number, line in _lines(path)
        if (match := _LINE.fullmatch(line)) and not (number == 1 and _HEADER.fullmatch(line))
    )
    number, match = next(islice(lines, document, None))
    return number, [int(pair.partition(b":")[0]) for pair in match["pairs"].split()]


def widened(rows: Matrix, dims: int) -> Matrix:
    """Give rows of text the columns of the index: their file shows only those it uses."""
    if isinstance(rows, Csr) and rows.cols < dims:
        return rows._replace(cols=dims)
    return rows


def canonical(indptr: npt.NDArray[np.int64], indices: Array, data: Array, cols: int) -> Csr:
    """Sort the columns of every row, and add up numbers of the same column.

    `indptr` (n + 1,) int64; `indices` and `data` (nnz,) in any order within a row; `cols` is the
    number of columns.
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


def wrong(path: Path, what: str) -> InvalidArgumentError:
    """Return the error for a file that is not what it should be."""
    return InvalidArgumentError("file", f"{path} {what}")


class _Rows:
    """Sparse rows of a file as they are read; `what` names a column."""

    def __init__(self, path: Path, what: str) -> None:
        self._path, self._what = path, what
        self._ends, self._columns, self._values = array("q", [0]), array("q"), array("f")

    @property
    def count(self) -> int:
        return len(self._ends) - 1

    @property
    def least(self) -> int:
        """The least column, 1 where there is none."""
        return int(np.frombuffer(self._columns, np.int64).min(initial=1))

    def add_pairs(self, number: int, pairs: bytes, *, most: int = -1, first: int = 0) -> None:
        """Add a row of column:value pairs, as `add` does."""
        words = pairs.replace(b":", b" ").split()
        self.add(number, words[::2], words[1::2], most=most, first=first)

    def add(
        self,
        number: int,
        columns: Sequence[bytes],
        values: Sequence[bytes],
        *,
        most: int = -1,
        first: int = 0,
    ) -> None:
        """Add the row of a line; there are `most` columns, -1 for any number, from `first` up."""
        what = self._what
        try:
            row, numbers = [*map(int, columns)], [*map(float, values)]
        except ValueError:
            raise self._wrong(number, "a number is malformed or far too long") from None
        if not all(abs(value) <= _FLOAT32_MAX for value in numbers):
            raise self._wrong(number, "a value is not finite")
        if len(set(row)) < len(row):
            raise self._wrong(number, f"a {what} comes twice")
        if min(row, default=first) < first:
            raise self._wrong(number, f"{what}s are to begin at {first}")
        greatest = max(row, default=-1)
        if greatest > COLUMN_MAX or greatest - first >= most >= 0:
            known = f"line 1 announces {most}" if most >= 0 else "it is too large"
            raise self._wrong(number, f"there is no {what} {greatest}, {known}")
        self._columns.extend(row)
        self._values.extend(numbers)
        self._ends.append(len(self._columns))

    def matrix(self, field: str, dims: int | None, announced: int, first: int) -> Csr:
        """Return the rows, of `dims` columns, else as many as were announced or seen."""
        indices = np.frombuffer(self._columns, np.int64) - first
        shown = int(indices.max()) + 1 if len(indices) else 0
        most = announced if announced >= 0 else shown
        if dims is not None and dims < most:
            flag = f"--{field}" if field == "dims" else field
            raise InvalidArgumentError(
                field, f"{self._path} has {most} {self._what}s, more than {flag} {dims}"
            )
        ends, values = np.array(self._ends, np.int64), np.frombuffer(self._values, np.float32)
        return canonical(ends, indices, values, most if dims is None else dims)

    def _wrong(self, number: int, what: str) -> InvalidArgumentError:
        return wrong(self._path, f"line {number}: {what}")


def _sizes(path: Path, words: Sequence[bytes]) -> _Sizes:
    if max(map(len, words)) >= _DIGITS_MAX:
        raise wrong(path, "line 1: a number is far too long")
    sizes = _Sizes(*map(int, words))
    if max(sizes) > COLUMN_MAX:
        raise wrong(path, f"line 1: a number is greater than {COLUMN_MAX}")
    return sizes


def _split(path: Path, number: int, line: bytes) -> tuple[bytes, bytes]:
    """Return labels and pairs of a line."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise wrong(path, f"line {number} is not: label,label,... column:value column:value ...")
    return match["labels"] or b"", match["pairs"]


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield each line that is not empty, without comments and what ends it, and its number."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.rstrip(b"\r\n").partition(b"#")[0]
                # A line of one space is kept: it is a document without labels and features.
                if text:
                    yield number, text
    except OSError as error:
        raise wrong(path, f"cannot be read: {error.strerror or error}") from None
