"""Selection one pick at a time, where something other than the selector decides what is allowed.

The selectors in `divgrpc.kernels` make all picks of a query in one call. `StepwiseSelection` makes
the same picks with the same values, one at a time, in three cases that those cannot serve:

- The picks before decide which candidates are allowed next.
- Points that were shown earlier count as picks, but are not picked again.
- The caller needs a pick before the next one is made.
"""

from collections.abc import Hashable
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
from divgrpc.search.shown_sums import KEPT, Rows32, Sums, places_in
from divgrpc.types import EffectiveParameters, IntArray, Metric

Flags = npt.NDArray[np.bool_]

# Sums over fewer points are computed faster than they are found.
_SHOWN_MIN: Final = 10
# What a rule sums: distances, only the least of them, or their square roots.
_SUM, _LEAST, _ROOTS = "sum", "least", "roots"


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
        owner: Hashable = None,
    ) -> None:
        """Start with the points that were shown earlier.

        candidates: (m,) candidates without near-copies, nearest first; their `costs` are their
            distances from the query.
        parameters: with a fixed dial. `k` is the number of results that the caller wants, at most
            the number of candidates with near-copies.
        shown: (s,) row numbers of the points that were shown, in the order in which they were
            picked. They may be among the candidates.
        owner: tells the points that row numbers belong to. What an earlier selection from the same
            points has kept by `keep_sums` need not be computed again. None if nothing is kept.
        """
        earlier = np.empty(0, np.int32) if shown is None else shown.astype(np.int32)
        self._count = len(candidates)
        self._selectable = np.ones(self._count, np.uint8)
        if len(earlier):
            self._selectable[places_in(np.sort(earlier), candidates.rows) >= 0] = 0
        self._everything = np.ones(self._count, np.uint8)
        self._shortlist = self._shortlist_of(parameters)
        rule = self._rule = _rule_of(candidates, earlier, parameters, metric)
        self._owner, self._rows = owner, rule.rows
        self._picks = list(range(self._count, self._count + len(earlier)))
        rule.add_shown(self._count + self._resume(earlier))

    def _resume(self, earlier: Rows32) -> int:
        """Take sums that were kept; return the number of points shown that they count."""
        if self._owner is None or len(earlier) < _SHOWN_MIN:
            return 0
        sums = KEPT.find((self._owner, self._rule.key), earlier)
        if sums is None or not self._rule.resume(sums):
            return 0
        return len(sums.shown)

    def keep_sums(self) -> None:
        """Keep what a selection with the same points shown, and the picks so far, begins with."""
        if self._owner is not None and len(self._picks) >= _SHOWN_MIN:
            sums = self._rule.sums(self._rows[self._picks])
            if sums is not None:
                KEPT.keep((self._owner, self._rule.key), sums)

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
        self._picks.append(place)
        self._rule.add(place)


class _Rule(Protocol):
    """The rule of a selector, and its sums over the picks.

    rows: row numbers of the candidates and of the points shown.
    """

    rows: Rows32

    @property
    def key(self) -> Hashable:
        """What the sums are, for `KeptSums`."""

    def best(self, selectable: Array, allowed: Array) -> tuple[int, float]:
        """Return the best candidate (position -1 if there is none) and its value."""

    def add(self, place: int) -> None:
        """Count the candidate or the shown point at a position as a pick."""

    def add_shown(self, first: int) -> None:
        """Count the points shown as picks, from a position on, in their order."""

    def sums(self, picks: Rows32) -> Sums | None:
        """Return the sums over all picks, which are these rows; None if there are none."""

    def resume(self, sums: Sums, /) -> bool:
        """Begin after the picks that `sums` counts, if these suffice; return whether they do."""


def _rule_of(
    candidates: CandidateSet, shown: Rows32, parameters: EffectiveParameters, metric: Metric
) -> _Rule:
    dial, selector = parameters.diversity, parameters.selector
    is_greedy = selector in {"greedy", "mmr"}
    is_printed = selector == "greedy" and parameters.variant == "printed"
    if selector == "nearest" or (np.float32(1 - dial) == 1 and not is_printed):
        return _Nearest(candidates, shown)
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

    key = "nearest"

    def __init__(self, candidates: CandidateSet, shown: Rows32) -> None:
        self._distances = candidates.costs
        self.rows = np.concatenate((candidates.rows, shown))

    def best(self, selectable: Array, allowed: Array) -> tuple[int, float]:
        place, value = stepwise.least_value(
            self._distances, self._distances, len(self._distances), np.float32(1), np.float32(0),
            selectable, allowed,
        )  # fmt: skip
        return place, -float(value)

    def add(self, place: int) -> None:
        """Do nothing, because picks do not matter."""

    def add_shown(self, first: int) -> None:
        """Do nothing, because points shown do not matter."""

    def sums(self, picks: Rows32) -> Sums | None:
        """Return None: there are no sums."""

    def resume(self, _: Sums) -> bool:
        """Return false: there are no sums."""
        return False


class _Picks:
    """The candidates and the points shown, and what the rules of several selectors need of them."""

    def __init__(self, candidates: CandidateSet, shown: Rows32) -> None:
        self.points, self.costs = candidates.points, candidates.costs
        self.scratch, self.count = candidates.scratch, len(candidates)
        self.rows = np.concatenate((candidates.rows, shown))
        self.far = np.empty(len(self.rows), np.float32)
        self.n_picks, self.n_shown = 0, len(shown)


class _Summed(_Picks):
    """A rule with one number for each candidate, which depends on its distances from the picks."""

    def __init__(self, candidates: CandidateSet, shown: Rows32, key: str) -> None:
        super().__init__(candidates, shown)
        self.key = key
        self.apart: Array = np.zeros(self.count, np.float64 if key == _ROOTS else np.float32)

    def add_shown(self, first: int) -> None:
        self._add_shown(self.rows, first, self.apart, is_empty=self.n_picks == 0)
        self.n_picks += len(self.rows) - first

    def _add_shown(self, rows: Rows32, first: int, apart: Array, *, is_empty: bool) -> None:
        """Count the points shown rows[first:] as picks, for the candidates that `apart` is of."""
        stepwise.add_shown(
            self.points, rows, len(apart), first, self.scratch, self.key == _ROOTS,
            self.key == _LEAST, is_empty, np.empty(len(rows), np.float32), apart,
        )  # fmt: skip

    def sums(self, picks: Rows32) -> Sums:
        rows = self.rows[: self.count]
        order = np.argsort(rows)
        return Sums(picks, rows[order], (self.apart[order],))

    def resume(self, sums: Sums) -> bool:
        """Take the sums of candidates that have some, and compute those of the others."""
        places = places_in(sums.rows, self.rows[: self.count])
        self.apart = sums.columns[0][places]
        self.n_picks, missing = len(sums.shown), np.flatnonzero(places < 0)
        if len(missing):
            apart = np.zeros(len(missing), self.apart.dtype)
            rows = np.concatenate((self.rows[missing], sums.shown))
            self._add_shown(rows, len(missing), apart, is_empty=True)
            self.apart[missing] = apart
        return True


class _Distances(_Summed):
    """The rules of `greedy` and `mmr`: the sum or minimum of the distances from the picks."""

    def __init__(
        self, candidates: CandidateSet, shown: Rows32, parameters: EffectiveParameters
    ) -> None:
        rule = rule_of(parameters)
        super().__init__(candidates, shown, _LEAST if rule == MMR_RULE else _SUM)
        self._relevance, self._rule = np.float32(1 - parameters.diversity), rule
        self._k = parameters.k + self.n_shown

    def best(self, selectable: Array, allowed: Array) -> tuple[int, float]:
        weight = diversity_weight(self._rule, self._relevance, self.n_picks, self._k)
        place, value = stepwise.least_value(
            self.costs, self.apart, self.count, self._relevance, np.float32(weight), selectable,
            allowed,
        )  # fmt: skip
        return place, -float(value)

    def add(self, place: int) -> None:
        least_counts = self.key == _LEAST and self.n_picks > 0
        stepwise.add_distances(
            self.points, self.rows, self.count, place, self.scratch, least_counts, self.far,
            self.apart,
        )  # fmt: skip
        self.n_picks += 1


class _Roots(_Summed):
    """The rules of `max_sum` and `rerank`: the sum of the square roots of the distances."""

    def __init__(self, candidates: CandidateSet, shown: Rows32, k: int, relevance: float) -> None:
        super().__init__(candidates, shown, _ROOTS)
        k = min(k, self.count) + self.n_shown
        self._half = 0.5 * relevance
        self._weight = 2.0 * (1.0 - relevance) / (k - 1) if k > 1 else 0.0

    def best(self, selectable: Array, allowed: Array) -> tuple[int, float]:
        place, value = stepwise.least_value(
            self.costs, self.apart, self.count, self._half, self._weight, selectable, allowed
        )
        return place, 0.0 - float(value)

    def add(self, place: int) -> None:
        stepwise.add_roots(
            self.points, self.rows, self.count, place, self.scratch, self.far, self.apart
        )
        self.n_picks += 1


class _Volume(_Picks):
    """The rule of `dpp`: the logarithm of the volume that a candidate adds."""

    # Columns of the Cholesky factor that are allocated at first.
    _COLUMNS_MIN: Final = 16

    def __init__(
        self,
        candidates: CandidateSet,
        shown: Rows32,
        parameters: EffectiveParameters,
        metric: Metric,
    ) -> None:
        super().__init__(candidates, shown)
        self._similarity = SIMILARITY[metric]
        self._unit = 1.0
        if self._similarity == max_sum_dpp.RATIONAL_QUADRATIC:
            self._unit = max_sum_dpp.mean_cost(self.costs, self.count)
        self.key = ("volume", self._unit)
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

    def add_shown(self, first: int) -> None:
        for place in range(first, len(self.rows)):
            self.add(place)

    def sums(self, picks: Rows32) -> Sums:
        # A point shown may be among the candidates. The last of its rows is the pivot.
        rows, last = np.unique(self.rows[::-1], return_index=True)
        places = len(self.rows) - 1 - last
        columns = (self._remainders, self._logs, self._factor[:, : self._n_pivots])
        return Sums(picks, rows, tuple(column[places] for column in columns))

    def resume(self, sums: Sums) -> bool:
        """Take the sums, if all candidates and all points shown have some."""
        places = places_in(sums.rows, self.rows)
        if (places < 0).any():
            return False
        remainders, logs, factor = sums.columns
        self._remainders, self._logs = remainders[places], logs[places]
        self._n_pivots, self.n_picks = factor.shape[1], len(sums.shown)
        if self._n_pivots > self._factor.shape[1]:
            self._factor = np.empty((len(self.rows), self._n_pivots + self._COLUMNS_MIN))
        self._factor[:, : self._n_pivots] = factor[places]
        return True
