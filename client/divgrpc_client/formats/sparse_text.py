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
from typing import Any, Final, Literal

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


def read_svmlight(path: Path, *, base: IndexBase = "auto", dims: int | None = None) -> Csr:
    """Return the rows of an svmlight file; labels, `qid` and comments are passed over.

    `base` is the number of the first column; with auto a file that has a column 0 begins there, and
    any other at 1. `dims` is the number of columns, by default as many as the file shows. Raises
    `InvalidArgumentError` naming the first line that is wrong.
    """
    rows = _Rows(path, "column", base)
    for number, line in _lines(path):
        if line.strip():
            labels, words = _split(path, number, line)
            if not labels:
                raise wrong(path, f"line {number} is not: label column:value column:value ...")
            rows.add(number, words[::2], words[1::2])
    return rows.matrix("dims", dims)


def read_labels(path: Path) -> npt.NDArray[np.int64]:
    """Return the label of each row of an svmlight file; raises if one is no whole number."""
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
    documents, labels = _Rows(path, "feature", base), _Rows(path, "label", "0")
    size = None
    for number, line in _lines(path):
        if number == 1 and (header := _HEADER.fullmatch(line)):
            size, documents.count, labels.count = _sizes(path, header.groups())
            documents.base = "0" if base == "auto" else base
            continue
        label_text, words = _split(path, number, line)
        names = [name.strip() for name in label_text.split(b",") if name]
        if not all(name.isdigit() for name in names):
            raise wrong(path, f"line {number} is not: label,label,... feature:value ...")
        labels.add(number, names, [b"1"] * len(names))
        documents.add(number, words[::2], words[1::2])
    if size not in (None, len(documents)):
        raise wrong(path, f"line 1 announces {size} documents, and there are {len(documents)}")
    return documents.matrix("dims", dims), labels.matrix("label_count", label_count)


def read_split(path: Path, documents: int, column: int = 0) -> npt.NDArray[np.int64]:
    """Return the documents, from 0 up, that one column of a file of splits lists, counted from 1.

    Raises `InvalidArgumentError` naming the first line that has no such column, or in it no number
    from 1 to `documents`, or one that an earlier line has.
    """
    lines: dict[int, int] = {}
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
        if row in lines:
            raise wrong(path, f"line {number} has document {row + 1}, as line {lines[row]} has")
        lines[row] = number
    return np.array([*lines], np.int64)


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


def wrong(path: Path, message: str) -> InvalidArgumentError:
    """Return the error for a faulty file."""
    return InvalidArgumentError("file", f"{path} {message}")


class _Rows:
    """Sparse rows of a file as they are read.

    `noun` names a column; columns count from `base`. A header announces `count` columns.
    """

    def __init__(self, path: Path, noun: str, base: IndexBase) -> None:
        self.base, self.count = base, -1
        self._path, self._noun = path, noun
        self._ends, self._columns, self._values = array("q", [0]), array("q"), array("f")

    def __len__(self) -> int:
        return len(self._ends) - 1

    def add(self, number: int, columns: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add the row of a line."""
        at, noun, first = f"line {number}:", self._noun, int(self.base == "1")
        try:
            row, numbers = [*map(int, columns)], [*map(float, values)]
        except ValueError:
            raise wrong(self._path, f"{at} a number is malformed or far too long") from None
        if not all(abs(value) <= _FLOAT32_MAX for value in numbers):
            raise wrong(self._path, f"{at} a value is not finite")
        if len(set(row)) < len(row):
            raise wrong(self._path, f"{at} a {noun} comes twice")
        if min(row, default=first) < first:
            raise wrong(self._path, f"{at} {noun}s are to begin at {first}")
        greatest = max(row, default=-1)
        if greatest > COLUMN_MAX or greatest - first >= self.count >= 0:
            why = f"line 1 announces {self.count}" if self.count >= 0 else "it is too large"
            raise wrong(self._path, f"{at} there is no {noun} {greatest}, {why}")
        self._columns.extend(row)
        self._values.extend(numbers)
        self._ends.append(len(self._columns))

    def matrix(self, field: str, dims: int | None) -> Csr:
        """Return the rows, of `dims` columns, else as many as were announced or seen."""
        columns = np.frombuffer(self._columns, np.int64)
        indices = columns - int(columns.min(initial=1) if self.base == "auto" else self.base)
        width = int(indices.max(initial=-1)) + 1
        least = self.count if self.count >= 0 else width
        if dims is not None and dims < least:
            flag = f"--{field}" if field == "dims" else field
            raise InvalidArgumentError(
                field, f"{self._path} has {least} {self._noun}s, more than {flag} {dims}"
            )
        ends, values = np.array(self._ends, np.int64), np.frombuffer(self._values, np.float32)
        return canonical(ends, indices, values, least if dims is None else dims)


def _sizes(path: Path, words: Sequence[bytes]) -> list[int]:
    """Return the rows, columns and labels that a header announces."""
    if max(map(len, words)) >= _DIGITS_MAX:
        raise wrong(path, "line 1: a number is far too long")
    sizes = [int(word) for word in words]
    if max(sizes) > COLUMN_MAX:
        raise wrong(path, f"line 1: a number is greater than {COLUMN_MAX}")
    return sizes


def _split(path: Path, number: int, line: bytes) -> tuple[bytes, list[bytes]]:
    """Return the labels of a line, and its columns and values in turn."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise wrong(path, f"line {number} is not: label,label,... column:value column:value ...")
    return match["labels"] or b"", match["pairs"].replace(b":", b" ").split()


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield each line that is not empty, without comments and line ends, and its number."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.rstrip(b"\r\n").partition(b"#")[0]
                # A line of one space is kept: it is a document without labels and features.
                if text:
                    yield number, text
    except OSError as error:
        raise wrong(path, f"cannot be read: {error.strerror or error}") from None
