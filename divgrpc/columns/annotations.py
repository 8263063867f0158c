"""The annotations of points: label sets, categories and sub-topics.

Each part of a collection has them in arrays of the same names as a build:

    label_sets.indptr, .indices     the labels of every point, as compressed sparse rows
    categories, subtopics           a number for every point, -1 for none

A collection has the kinds of annotations that its build has.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.columns.filters import Flags
from divgrpc.columns.writer import RowStore
from divgrpc.types import IntArray

# The annotations of m rows, by the names of their arrays.
Annotations: TypeAlias = Mapping[str, Array]

INDPTR: Final = "label_sets.indptr"
INDICES: Final = "label_sets.indices"
_DTYPES: Final[Mapping[str, npt.DTypeLike]] = {
    INDPTR: np.int64,
    INDICES: np.int32,
    "categories": np.int32,
    "subtopics": np.int32,
}
# Maximum number of bytes of a label, or of the end of a label set, in a message; and of a category
# or a sub-topic, which takes the most if it is negative.
_LABEL_BYTES: Final = 5
_TOPIC_BYTES: Final = 10


def annotations_in(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return those of the arrays of some rows that hold annotations."""
    return {name: arrays[name] for name in _DTYPES if name in arrays}


def take(annotations: Annotations, rows: IntArray) -> dict[str, Array]:
    """Return the annotations of some rows, by their numbers (m,)."""
    result = {
        name: array[rows] for name, array in annotations.items() if name not in (INDPTR, INDICES)
    }
    if INDPTR in annotations:
        indptr = annotations[INDPTR]
        starts = indptr[rows]
        sizes = indptr[rows + 1] - starts
        ends = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        places = np.arange(ends[-1]) + np.repeat(starts - ends[:-1], sizes)
        result |= {INDPTR: ends, INDICES: annotations[INDICES][places]}
    return result


def spread(annotations: Annotations, flags: Flags) -> dict[str, Array]:
    """Return the annotations of the rows whose flag is set as those of all rows.

    The other rows have no annotations.
    """
    result = dict(annotations)
    for name in annotations.keys() - {INDICES}:
        is_ends = name == INDPTR
        whole = np.full(len(flags), 0 if is_ends else -1, _DTYPES[name])
        whole[flags] = np.diff(annotations[name]) if is_ends else annotations[name]
        result[name] = np.concatenate(([0], np.cumsum(whole))) if is_ends else whole
    return result


def bytes_of_rows(annotations: Annotations, rows: IntArray) -> IntArray:
    """Return an upper bound of the bytes that the annotations of each of `rows` take in a message.

    `rows` and the result have shape (m,). The labels themselves are not read.
    """
    topics = len(annotations.keys() - {INDPTR, INDICES})
    sizes = np.full(len(rows), _TOPIC_BYTES * topics, np.int64)
    if INDPTR in annotations:
        indptr = annotations[INDPTR]
        sizes += _LABEL_BYTES * (indptr[rows + 1] - indptr[rows] + 1)
    return sizes


def join(blocks: Sequence[Annotations]) -> dict[str, Array]:
    """Return the annotations of one or more blocks of rows as one block."""
    joined = {
        name: np.concatenate([block[name] for block in blocks])
        for name in blocks[0]
        if name != INDPTR
    }
    if INDPTR in blocks[0]:
        sizes = [np.diff(block[INDPTR]) for block in blocks]
        joined[INDPTR] = np.concatenate(([0], np.cumsum(np.concatenate(sizes), dtype=np.int64)))
    return joined


class AnnotationWriter:
    """Writes annotations into a store, one block of rows at a time.

    names: the names of the arrays.
    """

    def __init__(self, store: RowStore, names: Iterable[str]) -> None:
        """Begin the arrays; every block must have those of `names`, and may have others."""
        self._store = store
        self.names = [name for name in _DTYPES if name in names]
        self._labels = 0
        for name in self.names:
            store.begin(name, _DTYPES[name], ())
        if INDPTR in self.names:
            store.append(INDPTR, np.zeros(1, np.int64))

    def append(self, annotations: Annotations) -> None:
        """Write the annotations of the next rows."""
        for name in self.names:
            array = annotations[name]
            self._store.append(name, array[1:] + self._labels if name == INDPTR else array)
        self._labels += len(annotations.get(INDICES, ()))
