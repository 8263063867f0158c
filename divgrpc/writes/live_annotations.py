"""The annotations of a snapshot of a collection, which predictions and evaluations read."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from divgrpc.arrays import Array
from divgrpc.columns.annotations import (
    INDICES,
    INDPTR,
    Annotations,
    annotations_in,
    bytes_of_rows,
    join,
    take,
)
from divgrpc.columns.filters import Flags
from divgrpc.types import IntArray
from divgrpc.vectors import SparseRows
from divgrpc.writes.columns import Part, Parts

_LABEL_SETS: Final = (INDPTR, INDICES)


def annotations_of(
    parts: Parts, rows: IntArray, names: Sequence[str] | None = None
) -> dict[str, Array]:
    """Return the annotations of `rows` (m,) of a collection; with `names`, only these arrays."""

    def of_part(part: Part) -> Annotations:
        annotations = annotations_in(part.arrays)
        return annotations if names is None else {name: annotations[name] for name in names}

    groups = parts.groups(rows)
    if not groups:
        return take(of_part(next(iter(parts))), rows)
    joined = join([take(of_part(part), rows[group] - part.first) for part, group in groups])
    if len(groups) == 1:
        return joined
    return take(joined, np.argsort(np.concatenate([group for _, group in groups])))


def annotation_bytes(parts: Parts, rows: IntArray) -> IntArray:
    """Return what `bytes_of_rows` returns, for `rows` (m,) of a collection."""
    sizes = np.zeros(len(rows), np.int64)
    for part, group in parts.groups(rows):
        sizes[group] = bytes_of_rows(annotations_in(part.arrays), rows[group] - part.first)
    return sizes


class LiveLabelSets:
    """The label sets of the points of a snapshot."""

    def __init__(self, parts: Parts, alive: Flags, dims: int) -> None:
        """Take the parts of a snapshot.

        alive: for each row, and perhaps for further ones, whether its point exists.
        dims: number of labels.
        """
        self._parts, self._alive = parts, alive
        self.dims = dims

    def __getitem__(self, rows: IntArray) -> SparseRows:
        """Return the label sets of `rows` (m,), each label with the value 1."""
        sets = annotations_of(self._parts, rows, _LABEL_SETS)
        ones = np.ones(len(sets[INDICES]), np.float32)
        return SparseRows(sets[INDPTR], sets[INDICES], ones, self.dims)

    @property
    def point_counts(self) -> IntArray:
        """The number of points that have each label, (dims,) int64."""
        counts = np.zeros(self.dims, np.int64)
        for part in self._parts:
            alive = self._alive[part.first : part.first + part.rows]
            sizes = np.diff(part.arrays[INDPTR])
            indices = part.arrays[INDICES][np.repeat(alive, sizes)]
            counts += np.bincount(indices, minlength=self.dims)
        return counts


def numbers_of_rows(parts: Parts, name: str, alive: Flags) -> IntArray | None:
    """Return categories or sub-topics by row, in an array as long as `alive`.

    Rows without a point have -1. Returns None if the collection has no array `name`.
    """
    if name not in next(iter(parts)).arrays:
        return None
    numbers = np.full(len(alive), -1, np.int64)
    for part in parts:
        numbers[part.first : part.first + part.rows] = part.arrays[name]
    return np.where(alive, numbers, -1)
