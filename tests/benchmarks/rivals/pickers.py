"""Selectors that pick k of some candidates: our compiled ones and pyversity's.

All are at their best: unit rows, and where one can be told so, it is. Dials are set for J. MSD has
the gains of J at a known dial; MMR, which has not, is searched around the target.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from benchmarks.harness import others
from benchmarks.harness.truth import Neighbours
from divgrpc.index import Index
from divgrpc.kernels import greedy, records
from divgrpc.kernels.records import Objective, Points
from divgrpc.search.memory import Memory
from divgrpc.types import FloatArray, IntArray, Selector


@dataclass(frozen=True, eq=False)
class OurPicker:
    """Our compiled greedy or MMR, by a rule of the kernel, over the points of a dense index."""

    points: Points
    memory: Memory
    rule: int = records.MARGINAL

    @classmethod
    def over(cls, index: Index, rule: int = records.MARGINAL) -> "OurPicker":
        """Take the points of a dense index."""
        searcher: Any = index.engine._searcher
        return cls(searcher._index.points, Memory(index.dims, 4, (index.dims, 256)), rule)

    @property
    def selector(self) -> Selector:
        """The selector of a query."""
        return "mmr" if self.rule == records.MMR else "greedy"

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"our {self.selector}"

    def centre(self, diversity: float, k: int) -> float:  # noqa: ARG002  # as Pyversity's
        """Return the target: our dial is that of J."""
        return diversity

    def pick(self, query: FloatArray, candidates: Neighbours, k: int, dial: float) -> IntArray:  # noqa: ARG002
        """Return k of the rows (m,), in order; their squared distances (m,) are known."""
        rows, costs = candidates
        self.memory.fit_selection(len(rows), k)
        scratch = self.memory.scratch
        picked, gains = scratch.picked[:k], np.empty(k, np.float32)
        relevance, keep_all = np.float32(1 - dial), records.NO_COPIES
        objective = Objective(k, relevance, self.rule, product=False, copy_limit=keep_all)
        points = (self.points, rows.astype(np.int32), costs, len(rows))
        collapsed = np.empty(0, np.int8)
        greedy.greedy(*points, objective, scratch.selection, collapsed, picked, gains)
        chosen: IntArray = rows[picked].astype(np.int64)
        return chosen


@dataclass(frozen=True, eq=False)
class Pyversity:
    """pyversity's MSD or MMR."""

    base: FloatArray
    strategy: Literal["msd", "mmr"]

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"pyversity {self.strategy.upper()}"

    def centre(self, diversity: float, k: int) -> float:
        """Return MSD's dial for J, or the target for MMR."""
        return others.msd_dial(diversity, k) if self.strategy == "msd" else diversity

    def pick(self, query: FloatArray, candidates: Neighbours, k: int, dial: float) -> IntArray:  # noqa: ARG002
        """Return the k rows in order; relevance is known from the distances."""
        rows, costs = candidates
        places = others.pyversity(
            self.strategy, self.base[rows], (1 - costs / 2).astype(np.float32), k, dial
        )
        picked: IntArray = rows[places]
        return picked


Picker: TypeAlias = OurPicker | Pyversity
