"""What picks k of some candidates: our own compiled selectors, pyversity's and LangChain's.

All are at their best: unit rows, and where one lets itself be told so, it is. Dials are set for J:
pyversity's maximal sum of distances (MSD) has the marginal gain of J for its own where its dial is
2 (1 - L) / (2 (1 - L) + L (k - 1)); MMR, which has not, is tried around 1 - L.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from benchmarks.finders import Found
from divgrpc.index import Index
from divgrpc.kernels import greedy, records
from divgrpc.kernels.records import Objective, Points
from divgrpc.search.memory import Memory
from divgrpc.types import FloatArray, IntArray, Selector

Strategy = Literal["msd", "mmr"]


class Follower(Protocol):
    """Picks k of the candidates that something found."""

    @property
    def name(self) -> str:
        """Whose it is, and which."""

    def centre(self, diversity: float, k: int) -> float:
        """Return the dial to search around for a target of J."""

    def pick(self, query: FloatArray, found: Found, k: int, dial: float) -> IntArray:
        """Return the k rows (k,) in the order in which they were picked."""


@dataclass(frozen=True, eq=False)
class Ours:
    """Our compiled greedy, by the rule `records.MARGINAL`, or our MMR."""

    points: Points
    memory: Memory
    rule: int = records.MARGINAL

    @classmethod
    def over(cls, index: Index, rule: int = records.MARGINAL) -> "Ours":
        """Take the points of a dense index."""
        searcher: Any = index.engine._searcher
        return cls(searcher._index.points, Memory(index.dims, 4, (index.dims, 256)), rule)

    @property
    def selector(self) -> Selector:
        """What a query asks for."""
        return "mmr" if self.rule == records.MMR else "greedy"

    @property
    def name(self) -> str:
        """Which of ours."""
        return f"our {self.selector}"

    def centre(self, diversity: float, k: int) -> float:  # noqa: ARG002  # the protocol's
        """Our dial is that of J."""
        return diversity

    def pick(self, query: FloatArray, found: Found, k: int, dial: float) -> IntArray:  # noqa: ARG002
        """Return the k rows in order."""
        rows, costs = found
        self.memory.fit_selection(len(rows), k)
        picked, gains = self.memory.scratch.picked[:k], np.empty(k, np.float32)
        relevance, keep_all = np.float32(1 - dial), records.NO_COPIES
        objective = Objective(k, relevance, self.rule, product=False, copy_limit=keep_all)
        standing, selection = np.empty(0, np.int8), self.memory.scratch.selection
        candidates = (self.points, rows.astype(np.int32), costs, len(rows))
        greedy.greedy(*candidates, objective, selection, standing, picked, gains)
        chosen: IntArray = rows[picked].astype(np.int64)
        return chosen


@dataclass(frozen=True, eq=False)
class Pyversity:
    """pyversity's MSD or MMR, told that rows are of unit length."""

    base: FloatArray
    strategy: Strategy

    @property
    def name(self) -> str:
        """Which of pyversity's."""
        return f"pyversity {self.strategy.upper()}"

    def centre(self, diversity: float, k: int) -> float:
        """MSD's dial for J, or MMR's own."""
        return centre(self.strategy, diversity, k)

    def pick(self, query: FloatArray, found: Found, k: int, dial: float) -> IntArray:  # noqa: ARG002
        """Return the k rows in order; relevance is known from the distances."""
        import pyversity

        rows, costs = found
        chosen = pyversity.diversify(
            embeddings=self.base[rows],
            scores=1 - costs / 2,
            k=k,
            strategy=pyversity.Strategy(self.strategy),
            diversity=dial,
            normalize=False,
        )
        picked: IntArray = rows[chosen.indices]
        return picked


@dataclass(frozen=True, eq=False)
class LangChain:
    """LangChain's MMR, which computes the relevance itself."""

    base: FloatArray
    name: str = "LangChain MMR"

    def centre(self, diversity: float, k: int) -> float:  # noqa: ARG002  # the protocol's
        """MMR's own dial."""
        return diversity

    def pick(self, query: FloatArray, found: Found, k: int, dial: float) -> IntArray:
        """Return the k rows in order."""
        from langchain_core.vectorstores.utils import maximal_marginal_relevance

        rows = found[0]
        chosen = maximal_marginal_relevance(query, list(self.base[rows]), 1 - dial, k)
        picked: IntArray = rows[chosen]
        return picked


def centre(strategy: Strategy, diversity: float, k: int) -> float:
    """Return the dial of one of pyversity's strategies to search around for a target of J."""
    if strategy == "mmr":
        return diversity
    return 2 * diversity / (2 * diversity + (1 - diversity) * (k - 1))
