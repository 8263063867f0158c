"""The selector `hierarchy`: picks labels by score, and by how many new branches they open."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.kernels import branches
from divgrpc.storage.arrays import Array, read_only
from divgrpc.types import CountArray, FloatArray, IntArray

# So many candidates are held at a time, over all documents: 16 MiB.
CANDIDATES_AT_ONCE: Final = 2**20


class PickedLabels(NamedTuple):
    """The picks of every row, (nq, k): -1 and NaN past `counts` (nq,)."""

    labels: IntArray
    scores: FloatArray
    values: FloatArray
    counts: CountArray


@dataclass(frozen=True, eq=False)
class Branches:
    """The hierarchy of `label_count` labels, as `divgrpc.metrics.LabelTree` has it.

    `parents` and `depths` (m,) int32, -1 for none; labels come first.
    """

    parents: npt.NDArray[np.int32]
    depths: npt.NDArray[np.int32]
    label_count: int

    @classmethod
    def of(cls, parents: Array, depths: Array, label_count: int) -> "Branches":
        """Take the arrays of an index."""
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
        """Pick `k` of each row's candidates `labels` (nq, m), best first.

        `counts` (nq,) says how many candidates a row has; `scores` (nq, m) are theirs.

        `diversity` from above 0 to 1 weighs the gain that `kernels.branching` defines. The sum of
        scaled scores and gains is monotone and submodular over labels that the hierarchy reaches,
        so the greedy reaches at least 1 - 1/e of the greatest sum (Nemhauser, Wolsey and Fisher
        1978), both counted from the first pick on.
        """
        shape, width = (len(labels), k), labels.shape[1]
        picks = (
            np.full(shape, -1),
            np.full(shape, np.nan, np.float32),
            np.full(shape, np.nan, np.float32),
        )
        branches.pick_apart(
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
