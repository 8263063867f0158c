"""The selector `hierarchy` picks labels of high score on different branches of a hierarchy."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, read_only
from divgrpc.kernels import branches
from divgrpc.types import CountArray, FloatArray, IntArray

# Documents are handled in parts with at most this many candidate labels (16 MiB) in memory.
CANDIDATES_AT_ONCE: Final = 2**20


class PickedLabels(NamedTuple):
    """The labels picked for nq documents.

    `labels`, `scores` and `values` are (nq, k); a value is what the selector maximised at a pick.
    `counts` is (nq,). Row i has counts[i] picks. The entries after the picks are -1 in `labels`,
    and nan in `scores` and `values`.
    """

    labels: IntArray
    scores: FloatArray
    values: FloatArray
    counts: CountArray


@dataclass(frozen=True, eq=False)
class Branches:
    """The hierarchy of `label_count` labels, as in `divgrpc.metrics.LabelTree`.

    parents, depths: (m,) int32 parent and depth of each node, labels first, then inner nodes. The
        parent of a root is -1. If a node has no path to a root, its parent and its depth are -1.
    """

    parents: npt.NDArray[np.int32]
    depths: npt.NDArray[np.int32]
    label_count: int

    @classmethod
    def of(cls, parents: Array, depths: Array, label_count: int) -> "Branches":
        """Return the hierarchy with the arrays of an index."""
        return cls(
            read_only(np.asarray(parents, np.int32)),
            read_only(np.asarray(depths, np.int32)),
            label_count,
        )

    @cached_property
    def height(self) -> int:
        """The depth of the deepest label."""
        return int(self.depths[: self.label_count].max(initial=0))

    def pick(
        self, labels: IntArray, scores: FloatArray, counts: CountArray, k: int, diversity: float
    ) -> PickedLabels:
        """Pick `k` candidate labels for each row.

        `labels` and `scores` (nq, m) are the candidates, best first; `counts` (nq,) is the number
        of candidates of each row. `diversity`, above 0 and at most 1, weights the gain defined in
        `kernels.branches`. The sum of scaled scores and gains is monotone and submodular over
        labels with a path to a root. So the greedy selection reaches at least 1 - 1/e of the
        greatest possible sum with the same first pick (Nemhauser, Wolsey and Fisher 1978).
        """
        shape, width = (len(labels), k), labels.shape[1]
        picks = (
            np.full(shape, -1),
            np.full(shape, np.nan, np.float32),
            np.full(shape, np.nan, np.float32),
        )
        branches.pick_labels(
            np.ascontiguousarray(labels),
            np.ascontiguousarray(scores),
            counts,
            (self.parents, self.depths),
            self.height,
            k,
            float(diversity),
            (np.empty(width, np.int32), np.empty(width, np.int32)),
            picks,
        )
        return PickedLabels(*picks, np.minimum(counts, k).astype(np.uint32))
