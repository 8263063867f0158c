"""How large pools of candidates grow because near-copies crowd them, as a router has seen it.

A router asks at first for the vectors of the candidates that a pool begins with. If near-copies
crowd it, the vectors of further candidates must be fetched in a second round. In a collection of
near-copies most pools grow, so a router asks for as many vectors as the pools of the latest queries
had in the end. Answers do not depend on it.
"""

import math
from typing import Final

from divgrpc.search.plan import QueryPlan

# The weight of the latest query.
_WEIGHT: Final = 0.1
# Maximum number of kinds of queries whose pools are told apart.
_KINDS_MAX: Final = 64


class PoolGrowth:
    """The sizes of pools, relative to those that they began with, by the kind of query."""

    def __init__(self) -> None:
        # The mean number of times that a pool is doubled.
        self._doublings: dict[tuple[int, float], float] = {}

    def factor(self, plan: QueryPlan) -> int:
        """Return how many times as many vectors as a pool begins with to ask for: a power of 2."""
        return 1 << round(self._doublings.get(_kind_of(plan), 0.0))

    def note(self, plan: QueryPlan, first: int, last: int) -> None:
        """Note that the pool of a query began with `first` candidates and ended with `last`."""
        kind = _kind_of(plan)
        if len(self._doublings) >= _KINDS_MAX and kind not in self._doublings:
            self._doublings.clear()
        mean = self._doublings.get(kind, 0.0)
        self._doublings[kind] = mean + _WEIGHT * (math.log2(max(1, last / first)) - mean)


def _kind_of(plan: QueryPlan) -> tuple[int, float]:
    return plan.kernel.candidates_limit, float(plan.copy_limit)
