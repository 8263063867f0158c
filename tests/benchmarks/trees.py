"""Randomised KD-trees, the paper's future work, as another way to candidates: OpenCV's (FLANN).

The method of Silpa-Anan and Hartley (2008) as in the library of Muja and Lowe: several trees that
split at dimensions drawn from those of greatest variance, searched together, the nearest branch
first, until so many points were looked at. The nearest of those go to the same selector as ours.
The library takes dense points alone, and is not part of the project's environment: `pip install
opencv-python-headless` lets it take part. scikit-learn's KDTree is exact and not randomised.
"""

import importlib.util
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from benchmarks.rivals import Ours
from benchmarks.sweeps import Setting
from divgrpc.index import Index
from divgrpc.kernels import records
from divgrpc.kernels.records import Points
from divgrpc.search.memory import Memory
from divgrpc.types import FloatArray, IntArray

NAME: Final = "KD-trees"
# The library's own default.
_TREES: Final = 4
_KD_TREE: Final = 1
_CANDIDATES: Final = 200
# Points looked at: our default limit of hashed points, and more.
CHECKS: Final = (800, 3_200)
_NONE: Final = np.empty(0, np.float32)
_RULES: Final = {"corrected": records.CORRECTED, "marginal": records.MARGINAL}


def missing() -> bool:
    """Tell whether the library is not installed."""
    return importlib.util.find_spec("cv2") is None


@dataclass(frozen=True, eq=False)
class Trees:
    """Trees over the unit rows of a dense index, searched with so many checks."""

    checks: int
    library: Any
    points: Points
    memory: Memory

    @classmethod
    def over(cls, index: Index) -> dict[str, Self]:
        """Build the trees once, and return them for every number of checks by name."""
        import cv2

        cv2.setNumThreads(1)
        cv2.setRNGSeed(0)
        searcher: Any = index.engine._searcher
        told = {"algorithm": _KD_TREE, "trees": _TREES}
        library = cv2.flann_Index(searcher.points, told)
        memory = Memory(index.dims, 4, (index.dims, 256))
        memory.fit_selection(_CANDIDATES, _CANDIDATES)
        kept = (searcher._index.points, memory)
        return {f"{NAME}, {checks:,} checks": cls(checks, library, *kept) for checks in CHECKS}

    def nearest(self, query: FloatArray, k: int) -> tuple[IntArray, FloatArray]:
        """Return candidates and squared distances for a query (1, d), by distance, then row."""
        told = {"checks": self.checks, "sorted": True}
        count = max(_CANDIDATES, 10 * k)
        rows, far = self.library.knnSearch(query, min(count, len(self.points.vectors)), params=told)
        found = rows[0] >= 0
        return rows[0][found], far[0][found]

    def pick(self, among: tuple[IntArray, FloatArray], k: int, setting: Setting) -> IntArray:
        """Return the k rows that our greedy picks of some candidates."""
        follower = Ours(self.points, self.memory, _RULES[setting.variant])
        return follower.pick(_NONE, among, k, setting.diversity)
