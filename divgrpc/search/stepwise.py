"""Selection one pick at a time, where something other than the selector decides what is allowed.

The selectors in `divgrpc.kernels` make all picks of a query in one call. `StepwiseSelection` makes
the same picks with the same values, one at a time, in three cases that those cannot serve:

- The picks before decide which candidates are allowed next.
- Points that were shown earlier count as picks, but are not picked again.
- The caller needs a pick before the next one is made.
"""

from dataclasses import replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.kernels import max_sum_dpp, stepwise
from divgrpc.kernels.greedy import diversity_weight
from divgrpc.kernels.records import MMR_RULE
from divgrpc.search.dials import rule_of
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.selectors import SIMILARITY, distance_shares
from divgrpc.types import EffectiveParameters, IntArray, Metric

Flags = npt.NDArray[np.bool_]


class StepwiseSelection:
    """Picks candidates one at a time by the rule of any selector but `qp_relax`.

    The formulas are those of `divgrpc.search.selectors` and `divgrpc.kernels.greedy`. Points that
    were shown earlier are penalised as earlier picks are. In the formulas of `marginal` and
    `max_sum`, k is then the number of points shown and of results together.
    """

    def __init__(
        self,
        candidates: CandidateSet,
        parameters: EffectiveParameters,
        metric: Metric,
        shown: IntArray | None = None,
    ) -> None:
        """Start with the points that were shown earlier.

        candidates: (m,) candidates without near-copies, nearest first; their `costs` are their
            distances from the query.
        parameters: with a fixed dial. `k` is the number of results that the caller wants, at most
            the number of candidates with near-copies.
        shown: (s,) row numbers of the points that were shown, in the order in which they were
            picked. They may be among the candidates.
        """
        earlier = np.empty(0, np.int32) if shown is None else shown.astype(np.int32)
        self._count = len(candidates)
        self._selectable = np.ones(self._count, np.uint8)
        self._selectable[np.isin(candidates.rows, earlier)] = 0
        self._everything = np.ones(self._count, np.uint8)
        self._shortlist = self._shortlist_of(parameters)
        self._rule = _rule_of(candidates, earlier, parameters, metric)
        for place in range(self._count, self._count + len(earlier)):
            self._rule.add(place)

    def _shortlist_of(self, parameters: EffectiveParameters) -> Array | None:
        """Return flags (m,) of the candidates that `rerank` picks from; None for all."""
        k = min(parameters.k, self._count)
        length = k + int(parameters.diversity * (self._count - k))
        if parameters.selector != "rerank" or length == self._count:
            return None
        flags = np.zeros(self._count, np.uint8)
        flags[:length] = 1
        return flags

    @property
    def selectable(self) -> Flags:
        """Whether each candidate (m,) is neither picked nor shown."""
        return self._selectable.view(np.bool_)

    def best(self, allowed: Flags | None = None) -> tuple[int, float]:
        """Return the position of the candidate to pick next, and the value of the pick.

        allowed: whether each candidate (m,) may be picked; None if all may.

        Returns the position -1 if no selectable candidate is allowed. `rerank` picks outside its
        shortlist only if no candidate of it is allowed.
        """
        flags = self._everything if allowed is None else allowed.view(np.uint8)
        if self._shortlist is not None:
            place, value = self._rule.best(self._selectable, flags & self._shortlist)
            if place >= 0:
                return place, value
        return self._rule.best(self._selectable, flags)

    def pick(self, place: int) -> None:
        """Pick the candidate at a position."""
        self._selectable[place] = 0
        self._rule.add(place)


class _Rule(Protocol):
    """The rule of a selector, and its sums over the picks."""

    def best(self, selectable: Array, allowed: Array) -> tuple[int, float]:
        """Return the best candidate (position -1 if there is none) and its value."""

    def add(self, place: int) -> None:
        """Count the candidate or the shown point at a position as a pick."""


def _rule_of(
    candidates: CandidateSet, shown: npt.NDArray[np.int32], parameters: EffectiveParameters,
    metric: Metric,
) -> _Rule:  # fmt: skip
    dial, selector = parameters.diversity, parameters.selector
    is_greedy = selector in {"greedy", "mmr"}
    is_printed = selector == "greedy" and parameters.variant == "printed"
    if selector == "nearest" or (np.float32(1 - dial) == 1 and not is_printed):
        return _Nearest(candidates)
    if metric == "inner_product":
        candidates = replace(candidates, costs=distance_shares(candidates.costs))
    if is_greedy:
        return _Distances(candidates, shown, parameters)
    if selector == "dpp":
        return _Volume(candidates, shown, parameters, metric)
    relevance = 0.0 if selector == "rerank" else 1 - dial
    if metric != "inner_product":
        candidates = replace(candidates, costs=np.sqrt(candidates.costs))
    return _Roots(candidates, shown, parameters.k, relevance)


class _Nearest:
    """Picks the nearest candidate."""

    def __init__(self, candidates: CandidateSet) -> None:
        self._distances = candidates.costs

    def best(self, selectable: Array, allowed: Array) -> tuple[int, float]:
        place, value = stepwise.least_value(
            self._distances, self._distances, len(self._distances), np.float32(1), np.float32(0),
            selectable, allowed,
        )  # fmt: skip
        return place, -float(value)

    def add(self, place: int) -> None:
        """Do nothing, because picks do not matter."""


class _Picks:
    """The candidates and the points shown, and what the rules of several selectors need of them."""

    def __init__(self, candidates: CandidateSet, shown: npt.NDArray[np.int32]) -> None:
        self.points, self.costs = candidates.points, candidates.costs
        self.scratch, self.count = candidates.scratch, len(candidates)
        self.rows = np.concatenate((candidates.rows, shown))
        self.far = np.empty(len(self.rows), np.float32)
        self.n_picks, self.n_shown = 0, len(shown)


class _Distances(_Picks):
    """The rules of `greedy` and `mmr`: the sum or minimum of the distances from the picks."""

    def __init__(
        self,
        candidates: CandidateSet,
        shown: npt.NDArray[np.int32],
        parameters: EffectiveParameters,
    ) -> None:
        super().__init__(candidates, shown)
        self._apart = np.zeros(self.count, np.float32)
        self._relevance, self._rule = np.float32(1 - parameters.diversity), rule_of(parameters)
        self._k = parameters.k + self.n_shown

    def best(self, selectable: Array, allowed: Array) -> tuple[int, float]:
        weight = diversity_weight(self._rule, self._relevance, self.n_picks, self._k)
        place, value = stepwise.least_value(
            self.costs, self._apart, self.count, self._relevance, np.float32(weight), selectable,
            allowed,
        )  # fmt: skip
        return place, -float(value)

    def add(self, place: int) -> None:
        least_counts = self._rule == MMR_RULE and self.n_picks > 0
        stepwise.add_distances(
            self.points, self.rows, self.count, place, self.scratch, least_counts, self.far,
            self._apart,
        )  # fmt: skip
        self.n_picks += 1


class _Roots(_Picks):
    """The rules of `max_sum` and `rerank`: the sum of the square roots of the distances."""

    def __init__(
        self, candidates: CandidateSet, shown: npt.NDArray[np.int32], k: int, relevance: float
    ) -> None:
        super().__init__(candidates, shown)
        self._sums = np.zeros(self.count, np.float64)
        k = min(k, self.count) + self.n_shown
        self._half = 0.5 * relevance
        self._weight = 2.0 * (1.0 - relevance) / (k - 1) if k > 1 else 0.0

    def best(self, selectable: Array, allowed: Array) -> tuple[int, float]:
        place, value = stepwise.least_value(
            self.costs, self._sums, self.count, self._half, self._weight, selectable, allowed
        )
        return place, 0.0 - float(value)

    def add(self, place: int) -> None:
        stepwise.add_roots(
            self.points, self.rows, self.count, place, self.scratch, self.far, self._sums
        )
        self.n_picks += 1


class _Volume(_Picks):
    """The rule of `dpp`: the logarithm of the volume that a candidate adds."""

    # Columns of the Cholesky factor that are allocated at first.
    _COLUMNS_MIN: Final = 16

    def __init__(
        self,
        candidates: CandidateSet,
        shown: npt.NDArray[np.int32],
        parameters: EffectiveParameters,
        metric: Metric,
    ) -> None:
        super().__init__(candidates, shown)
        self._similarity = SIMILARITY[metric]
        self._unit = 1.0
        if self._similarity == max_sum_dpp.RATIONAL_QUADRATIC:
            self._unit = max_sum_dpp.mean_cost(self.costs, self.count)
        relevance = 1 - parameters.diversity
        self._prices = relevance * (self.costs.astype(np.float64) / self._unit)
        self._weight = 1.0 - relevance
        self._remainders = np.ones(len(self.rows))
        self._logs = np.zeros(len(self.rows))
        columns = max(self._COLUMNS_MIN, min(parameters.k, self.count) + self.n_shown)
        self._factor = np.empty((len(self.rows), columns))
        self._n_pivots = 0

    def best(self, selectable: Array, allowed: Array) -> tuple[int, float]:
        place, value = stepwise.least_value(
            self._prices, self._logs, self.count, 1.0, self._weight, selectable, allowed
        )
        return place, 0.0 - float(value)

    def add(self, place: int) -> None:
        if self._n_pivots == self._factor.shape[1]:
            self._factor = np.hstack((self._factor, np.empty_like(self._factor)))
        self._n_pivots = stepwise.add_pivot(
            self.points, self.rows, place, self._unit, self._similarity, self._factor,
            self._n_pivots, self._remainders, self._logs,
        )  # fmt: skip
        self.n_picks += 1
