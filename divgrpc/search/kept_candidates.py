"""Candidates that the page before has found, kept in memory for the next page.

A later page begins with the same candidates as the page before, until its pool grows or a point is
written. A process keeps the candidates of recent pages, so that a late page need not search again.
A page whose candidates are not kept finds the same ones.
"""

import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

import numpy as np

from divgrpc.search.arrays import Answers, empty_answers
from divgrpc.search.kept_pages import PAGES_MAX, KeptPages
from divgrpc.search.passing import PassingRows
from divgrpc.search.plan import QueryPlan
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.searcher import Searcher
from divgrpc.search.shown_sums import Rows32
from divgrpc.types import FloatArray
from divgrpc.vectors import Rows

# Maximum number of bytes of the candidates that a process keeps.
BYTES_MAX: Final = 16 << 20


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """A search and its candidates, nearest first.

    passing: refers to the points that were searched, which `Searcher.find_candidates` takes.
    rows, distances: (m,) row numbers, and distances from the query.
    answer: the answer without results; its arrays do not change.
    """

    passing: weakref.ref[PassingRows] | None
    rows: Rows32
    distances: FloatArray
    answer: Answers

    def has_searched(self, passing: PassingRows | None) -> bool:
        """Whether these points were searched; another filter has another object."""
        if self.passing is None or passing is None:
            return self.passing is None and passing is None
        return self.passing() is passing

    @property
    def size(self) -> int:
        """Number of bytes of the arrays."""
        arrays = (self.rows, self.distances, *self.answer)
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))


class KeptCandidates(KeptPages[Hashable, _Search]):
    """The candidates of recent pages."""

    def __init__(self, bytes_max: int = BYTES_MAX, pages_max: int = PAGES_MAX) -> None:
        super().__init__(bytes_max, pages_max)

    def find(
        self,
        key: Hashable,
        searcher: Searcher,
        query: Rows,
        plan: QueryPlan,
        passing: PassingRows | None,
    ) -> tuple[CandidateSet, Answers]:
        """Do the same as `Searcher.find_candidates`, or return candidates that are kept.

        key: tells the searcher, the state of its points, the plan and the query, in few bytes.
        """
        search = self._get(key)
        if search is not None and search.has_searched(passing):
            answer = empty_answers(1, plan.parameters.k, plan.parameters)
            answer.put(0, search.answer)
            return searcher.restore_candidates(plan, search.rows, search.distances), answer
        candidates, answer = searcher.find_candidates(query, plan, passing)
        copy = empty_answers(1, plan.parameters.k, plan.parameters)
        copy.put(0, answer)
        # The next search of this thread overwrites the candidates. Flags of points are large, so
        # they are not kept.
        points = None if passing is None else weakref.ref(passing)
        self._keep(key, _Search(points, candidates.rows.copy(), candidates.costs.copy(), copy))
        return candidates, answer


# Those of this process.
KEPT: Final = KeptCandidates()
