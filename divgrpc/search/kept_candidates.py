"""Candidates that the page before has found, kept in memory for the next page.

A later page begins with the same candidates as the page before, until its pool grows or a point is
written. A process keeps the candidates of recent pages, so that a late page need not search again.
A page whose candidates are not kept finds the same ones.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from divgrpc.search.arrays import Answers, empty_answers
from divgrpc.search.passing import PassingRows
from divgrpc.search.plan import QueryPlan
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.searcher import Searcher
from divgrpc.search.shown_sums import Rows32
from divgrpc.types import FloatArray
from divgrpc.vectors import Rows

# Maximum number of bytes, and of pages, whose candidates a process keeps.
BYTES_MAX: Final = 16 << 20
PAGES_MAX: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """The candidates of one search, nearest first.

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
        """Number of bytes of the candidates."""
        return self.rows.nbytes + self.distances.nbytes


class KeptCandidates:
    """The candidates of recent pages, within a limit of memory. Thread-safe."""

    def __init__(self, bytes_max: int = BYTES_MAX, pages_max: int = PAGES_MAX) -> None:
        self._bytes_max, self._pages_max = bytes_max, pages_max
        self._pages: OrderedDict[Hashable, _Found] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._pages)

    def find(
        self,
        key: Hashable,
        searcher: Searcher,
        query: Rows,
        plan: QueryPlan,
        passing: PassingRows | None,
    ) -> tuple[CandidateSet, Answers]:
        """Do the same as `Searcher.find_candidates`, or return candidates that are kept.

        key: tells the searcher, the state of its points, the plan and the query.
        """
        with self._lock:
            found = self._pages.get(key)
            if found is not None:
                self._pages.move_to_end(key)
        if found is not None and found.has_searched(passing):
            answer = empty_answers(1, plan.parameters.k, plan.parameters)
            answer.put(0, found.answer)
            return searcher.candidates_again(plan, found.rows, found.distances), answer
        candidates, answer = searcher.find_candidates(query, plan, passing)
        kept = empty_answers(1, plan.parameters.k, plan.parameters)
        kept.put(0, answer)
        # The next search of this thread overwrites the candidates. Flags of points are large, so
        # they are not kept.
        points = None if passing is None else weakref.ref(passing)
        self._keep(key, _Found(points, candidates.rows.copy(), candidates.costs.copy(), kept))
        return candidates, answer

    def _keep(self, key: Hashable, found: _Found) -> None:
        """Keep candidates, and forget those that were used least recently."""
        if found.size > self._bytes_max:
            return
        with self._lock:
            if key in self._pages:
                self._bytes -= self._pages.pop(key).size
            self._pages[key] = found
            self._bytes += found.size
            while self._bytes > self._bytes_max or len(self._pages) > self._pages_max:
                _, oldest = self._pages.popitem(last=False)
                self._bytes -= oldest.size


# Those of this process.
KEPT: Final = KeptCandidates()
