"""Reads sparse rows from svmlight files and files of the Extreme Classification Repository.

Both formats have one row per line, `label,label,... column:value column:value ...`, with an
optional `qid:number` after the labels. Comments begin with #, and empty lines are skipped. svmlight
has one label per row and counts columns from 0 or 1. The repository's files begin with a line of
three numbers, the counts of rows, columns and labels. They number columns and labels from 0, and a
row without labels begins with a space. The repository's small sets come with files of splits. Each
column of such a file lists the rows of one split, counted from 1.

The files are read without scikit-learn, because a client need not have it. scikit-learn's reader is
faster, but its errors do not name the faulty line.
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
# Every number with fewer digits fits an int64.
_DIGITS_MAX: Final = 19


def read_svmlight(path: Path, *, base: IndexBase = "auto", dims: int | None = None) -> Csr:
    """Return the rows of an svmlight file without labels, `qid` and comments.

    `base` is the number of the first column. "auto" means 0 if column 0 occurs in the file, else 1.
    `dims` is the number of columns; by default the greatest column of the file is the last one.
    Raises `InvalidArgumentError` that names the first faulty line.
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
    """Return the labels (n,) of the rows of an svmlight file, which must be whole numbers."""
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
    path: Path, *, base: IndexBase = "auto", dims: int | None = None, label_count: int | None = None
) -> tuple[Csr, Csr]:
    """Return documents (n, d) and labels (n, L) of a text file, with or without a header.

    Labels are numbered from 0. `base` is the number of the first feature. "auto" means 0 if the
    file has a header, else the same as in `read_svmlight`. `dims` and `label_count` are d and L.
    Their defaults come from the header, or without one from the greatest numbers in the file.
    Raises `InvalidArgumentError` that names the first faulty line.
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
    """Return the documents that one column of a file of splits lists, numbered from 0.

    The file numbers documents from 1. Raises `InvalidArgumentError` that names the first line
    without such a column, with a number outside 1 to `documents`, or with a document that an
    earlier line has.
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
    """Return the line number of a document, and its features as written; documents count from 0.

    `read_labelled` must have accepted the file before.
    """
    lines = (
        (number, match)
        for number, line in _lines(path)
        if (match := _LINE.fullmatch(line)) and not (number == 1 and _HEADER.fullmatch(line))
    )
    number, match = next(islice(lines, document, None))
    return number, [int(pair.partition(b":")[0]) for pair in match["pairs"].split()]


def widened(rows: Matrix, dims: int) -> Matrix:
    """Widen rows from a text file to `dims` columns; the file may lack the last columns."""
    if isinstance(rows, Csr) and rows.cols < dims:
        return rows._replace(cols=dims)
    return rows


def canonical(indptr: npt.NDArray[np.int64], indices: Array, data: Array, cols: int) -> Csr:
    """Sort the entries of every row by column, and sum repeated entries.

    `indptr` has shape (n + 1,) and dtype int64. `indices` and `data` have shape (nnz,), with
    entries in any order within a row. `cols` is the number of columns.
    """
    row = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    if not ((np.diff(indices) > 0) | (np.diff(row) > 0)).all():
        order = np.lexsort((indices, row))
        indices, row, data = indices[order], row[order], data[order]
        starts = np.flatnonzero(np.r_[True, (np.diff(indices) > 0) | (np.diff(row) > 0)])
        indices, row, data = indices[starts], row[starts], np.add.reduceat(data, starts)
        indptr = np.searchsorted(row, np.arange(len(indptr))).astype(np.int64)
    with np.errstate(over="ignore"):  # overflows become infinities, which the server refuses
        return Csr(indptr, indices.astype(np.uint32), data.astype(np.float32), cols)


def wrong(path: Path, message: str) -> InvalidArgumentError:
    """Return the error for a faulty file."""
    return InvalidArgumentError("file", f"{path} {message}")


class _Rows:
    """Collects sparse rows while a file is read.

    `noun` is the word for a column in errors. `base` is the number of the first column. `count` is
    the number of columns in the file's header, -1 without a header.
    """

    def __init__(self, path: Path, noun: str, base: IndexBase) -> None:
        self.base, self.count = base, -1
        self._path, self._noun = path, noun
        self._ends, self._columns, self._values = array("q", [0]), array("q"), array("f")

    def __len__(self) -> int:
        return len(self._ends) - 1

    def add(self, number: int, columns: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add the row on line `number`."""
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
        """Return the rows as a matrix of `dims` columns.

        By default the header, or without one the greatest column, sets the number of columns.
        """
        columns = np.frombuffer(self._columns, np.int64)
        indices = columns - int(columns.min(initial=1) if self.base == "auto" else self.base)
        width = int(indices.max(initial=-1)) + 1
        cols = self.count if self.count >= 0 else width
        if dims is not None and dims < cols:
            flag = f"--{field}" if field == "dims" else field
            raise InvalidArgumentError(
                field, f"{self._path} has {cols} {self._noun}s, more than {flag} {dims}"
            )
        ends, values = np.array(self._ends, np.int64), np.frombuffer(self._values, np.float32)
        return canonical(ends, indices, values, cols if dims is None else dims)


def _sizes(path: Path, words: Sequence[bytes]) -> list[int]:
    """Return the numbers of rows, columns and labels in a header."""
    if max(map(len, words)) >= _DIGITS_MAX:
        raise wrong(path, "line 1: a number is far too long")
    sizes = [int(word) for word in words]
    if max(sizes) > COLUMN_MAX:
        raise wrong(path, f"line 1: a number is greater than {COLUMN_MAX}")
    return sizes


def _split(path: Path, number: int, line: bytes) -> tuple[bytes, list[bytes]]:
    """Return the labels of a line as text, and a flat list of alternating columns and values."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise wrong(path, f"line {number} is not: label,label,... column:value column:value ...")
    return match["labels"] or b"", match["pairs"].replace(b":", b" ").split()


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the text of each line, without its comment and its end.

    Lines without any text are left out.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.rstrip(b"\r\n").partition(b"#")[0]
                # A line of one space is not empty. It is a document without labels and features.
                if text:
                    yield number, text
    except OSError as error:
        raise wrong(path, f"cannot be read: {error.strerror or error}") from None
