"""Label sets of points on several shards."""

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from divgrpc.types import IntArray
from divgrpc.types.records import Parts, Records
from divgrpc.vectors import SparseRows

# Returns what shards have of the points with some keys; see `GatheringEngine.records`.
ReadRecords: TypeAlias = Callable[[IntArray, Parts], Records]

_LABELS: Final = Parts(vectors=False, attributes=False, payload=False, labels=True)


class GatheredLabels:
    """The label sets of points, which shards are asked for; `dims` is the number of labels."""

    def __init__(self, read: ReadRecords, dims: int) -> None:
        self._read, self.dims = read, dims

    def __getitem__(self, rows: IntArray) -> SparseRows:
        """Return the label sets of the points with these keys, each label with the value 1."""
        keys, places = np.unique(rows, return_inverse=True)
        labels = self._read(keys, _LABELS).labels
        assert labels is not None  # noqa: S101  # the points have label sets
        ones = np.ones(len(labels.indices), np.float32)
        return SparseRows(labels.indptr, labels.indices, ones, self.dims)[places]
