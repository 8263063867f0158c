"""Documents with their labels from files: the Extreme Classification format, and svmlight's.

Both have a document a line, `label,label,... feature:value feature:value ...`; one without labels
begins with a space, and empty lines are passed over. The Extreme Classification Repository's files
begin with a line of three numbers, documents, features and labels, and count both from 0;
svmlight's have no such line. The small sets of that repository come as one file and files of
splits, whose columns are alternative lists of the documents to take, counted from 1. Lines are read
one by one, so that what is wrong can be named by its line.
"""

import re
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.formats.files import read_vectors
from divgrpc_client.formats.sparse_files import COLUMN_MAX, IndexBase, canonical
from divgrpc_protos.arrays import Csr, Matrix, row_count

Labelled = tuple[Matrix, Matrix]

_HEADER: Final = re.compile(rb"\s*(\d+)\s+(\d+)\s+(\d+)\s*")
# Perhaps labels, perhaps the number of a query, and feature:value pairs.
_LINE: Final = re.compile(
    rb"(\d+(?:\s*,\s*\d+)*)?(?:(?:^|\s+)qid:\d+)?((?:(?:^|\s+)\d+:[^\s:_]+)*)\s*"
)
# What float32 and int64 hold.
_VALUE_MOST: Final = float(np.finfo(np.float32).max)
_DIGITS: Final = 19
_SHAPE: Final = "label,label,... feature:value feature:value ..."


class _Sizes(NamedTuple):
    """Documents, features and labels that a header announces; -1 where there is none."""

    documents: int = -1
    features: int = -1
    labels: int = -1


def read_labelled(
    path: Path,
    *,
    base: IndexBase = "auto",
    dims: int | None = None,
    label_count: int | None = None,
) -> tuple[Csr, Csr]:
    """Return documents (n, d) and labels (n, L) of a text file, with or without a header.

    Labels count from 0, and `base` says where features begin: auto is 0 with a header, and as for
    svmlight without one, 0 where the file has a feature 0 and else 1. `dims` and `label_count` are
    d and L, by default what the header says, else as many as the file shows. Features and labels
    need not ascend. Raises `InvalidArgumentError` naming the first line that is wrong.
    """
    documents, labels = _Rows("feature"), _Rows("label")
    sizes = _Sizes()
    for number, line in _lines(path):
        if number == 1 and (header := _HEADER.fullmatch(line)):
            if max(map(len, header.groups())) >= _DIGITS:
                raise _wrong(path, "line 1: a number is far too long")
            sizes = _Sizes(*map(int, header.groups()))
            if max(sizes) > COLUMN_MAX:
                raise _wrong(path, f"line 1: more than {COLUMN_MAX} of something are too many")
            base = "0" if base == "auto" else base
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise _wrong(path, f"line {number} is not: {_SHAPE}")
        own, pairs = found[1] or b"", found[2].replace(b":", b" ").split()
        try:
            values = [*map(float, pairs[1::2])]
            numbers = [int(label) for label in own.split(b",") if label]
            features, first = [*map(int, pairs[::2])], int(base == "1")
        except ValueError:
            raise _wrong(path, f"line {number}: a number is none, or far too long") from None
        if not all(abs(value) <= _VALUE_MOST for value in values):
            raise _wrong(path, f"line {number}: a value is not finite") from None
        labels.add(path, number, numbers, most=sizes.labels)
        documents.add(path, number, features, values, most=sizes.features, first=first)
    if sizes.documents not in (-1, documents.count):
        announced = f"{sizes.documents} documents"
        raise _wrong(path, f"line 1 announces {announced}, and there are {documents.count}")
    least = documents.least if base == "auto" else int(base)
    return (
        documents.matrix(path, "dims", dims, sizes.features, int(least > 0)),
        labels.matrix(path, "label_count", label_count, sizes.labels, 0),
    )


def read_split(path: Path, documents: int, column: int = 0) -> npt.NDArray[np.int64]:
    """Return the documents, from 0 up, that one column of a file of splits lists, counted from 1.

    Raises `InvalidArgumentError` naming the first line that has no such column, or in it no number
    from 1 to `documents`, or one that an earlier line has.
    """
    rows = array("q")
    seen = np.zeros(documents, np.int64)
    for number, line in _lines(path):
        words = line.split()
        if not words:
            continue
        if not 0 <= column < len(words):
            raise _wrong(path, f"line {number} has {len(words)} columns, and no column {column}")
        word = words[column]
        if not (word.isdigit() and len(word) < _DIGITS) or not 1 <= int(word) <= documents:
            raise _wrong(path, f"line {number} must have a number from 1 to {documents}")
        row = int(word) - 1
        if seen[row]:
            raise _wrong(path, f"line {number} has document {row + 1}, as line {seen[row]} has")
        seen[row] = number
        rows.append(row)
    return np.array(rows, np.int64)


def line_of(path: Path, document: int) -> tuple[int, list[int]]:
    """Return the number of the line of a document, counted from 0, and its features as they stand.

    The file is one that `read_labelled` has read.
    """
    lines = (
        (number, found)
        for number, line in _lines(path)
        if (found := _LINE.fullmatch(line)) and not (number == 1 and _HEADER.fullmatch(line))
    )
    number, found = next(islice(lines, document, None))
    return number, [int(pair.partition(b":")[0]) for pair in found[2].split()]


def read_pair(features: Path, labels: Path) -> Labelled:
    """Return documents and labels of two files, such as a pair of scipy's .npz.

    Raises `InvalidArgumentError` where a file cannot be read, or they do not have as many rows.
    """
    documents, truth = read_vectors(features), read_vectors(labels)
    if row_count(documents) != row_count(truth):
        rows = f"{row_count(truth)} rows, and {features} has {row_count(documents)}"
        raise InvalidArgumentError("labels", f"{labels} has {rows}")
    return documents, truth


class _Rows:
    """Sparse rows as they are read; `what` their columns are."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._ends, self._columns, self._values = array("q", [0]), array("q"), array("f")

    @property
    def count(self) -> int:
        return len(self._ends) - 1

    @property
    def least(self) -> int:
        """The least column there is, 1 where there is none."""
        return int(np.frombuffer(self._columns, np.int64).min(initial=1))

    def add(
        self,
        path: Path,
        number: int,
        columns: Sequence[int],
        values: Sequence[float] | None = None,
        *,
        most: int,
        first: int = 0,
    ) -> None:
        """Add a row; there are `most` columns, -1 for any number, from `first` up."""
        if len(set(columns)) < len(columns):
            raise _wrong(path, f"line {number}: a {self._what} comes twice")
        if min(columns, default=first) < first:
            raise _wrong(path, f"line {number}: {self._what}s are to begin at {first}")
        greatest = max(columns, default=-1)
        if greatest > COLUMN_MAX or greatest - first >= most >= 0:
            known = f"line 1 announces {most}" if most >= 0 else "it is too large"
            raise _wrong(path, f"line {number}: there is no {self._what} {greatest}, {known}")
        self._columns.extend(columns)
        self._values.extend([1.0] * len(columns) if values is None else values)
        self._ends.append(len(self._columns))

    def matrix(self, path: Path, field: str, told: int | None, announced: int, first: int) -> Csr:
        """Return the rows, of as many columns as were told, announced or seen."""
        indices = np.frombuffer(self._columns, np.int64) - first
        shown = int(indices.max()) + 1 if len(indices) else 0
        most = announced if announced >= 0 else shown
        if told is not None and told < most:
            raise InvalidArgumentError(field, f"{path} has {most} {self._what}s, more than {told}")
        ends, values = np.array(self._ends, np.int64), np.frombuffer(self._values, np.float32)
        return canonical(ends, indices, values, most if told is None else told)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield each line that is not empty, without comments and what ends it, and its number."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.rstrip(b"\r\n").partition(b"#")[0]
                # A space is a document without labels and without features.
                if text:
                    yield number, text
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror or error}") from None


def _wrong(path: Path, what: str) -> InvalidArgumentError:
    return InvalidArgumentError("file", f"{path} {what}")
