"""Selection within quotas, for every selector that picks one candidate at a time."""

from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.errors import LimitExceededError
from divgrpc.kernels import pairwise, quota_picks
from divgrpc.kernels.dials import DIAL_STEPS
from divgrpc.kernels.quota_picks import Follow, QuotaBounds, QuotaState
from divgrpc.kernels.records import EQUAL_RELEVANCE, LOSS_BOUND, NO_CHOICE, WITHIN_BOUND
from divgrpc.quotas.bounds import Bounds
from divgrpc.quotas.completions import Effort, Programme, Signatures
from divgrpc.search.dials import rule_of, weights_of
from divgrpc.search.later_picks import different
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.selectors import (
    ONE_BY_ONE,
    SIMILARITY,
    Picks,
    distance_shares,
    mean_of,
    relevance,
)
from divgrpc.types import EffectiveParameters, FloatArray, IntArray, Metric

# Maximum number of integer programmes for one query. Then the completion at hand is followed.
_PROGRAMMES_MAX: Final = 20
_NO_NUMBERS: Final = np.empty(0, np.int64)
_NO_FOLLOW: Final = Follow(_NO_NUMBERS, _NO_NUMBERS, np.empty(0, np.uint8))


@dataclass(frozen=True, slots=True, eq=False)
class QuotaPicks(Picks):
    """Picks within quotas.

    copies, fillers: number of near-copies of picks, and of near-copies among the picks.
    lows: the least bounds that the picks had to meet.
    target: number of picks that were to be made.
    contenders: places of the candidates that were considered, None for all.
    order: the place among the results of each pick, None if it is the number of the pick.
    """

    copies: int = 0
    fillers: int = 0
    lows: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    target: int = 0
    contenders: IntArray | None = None
    order: IntArray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class QuotaSelection:
    """Selects from the candidates of one query within quotas.

    It is independent of an index: the candidates may be any rows, and their values come as columns.

    candidates: (m,) candidates whose `costs` are their distances from the query, nearest first.
    bounds: the bounds for these candidates.
    parameters: their `selector` is not `qp_relax`.
    limit: maximum distance between near-copies; below 0, all candidates are kept.
    base: number of the nearest candidates that give a selector its scale of distances.
    standing: (m,) standing of candidates as in `pairwise`, as far as it is known; empty if all
        candidates are kept.
    is_exact: whether picks that the rule of the selector alone does not complete are picked anew
        with a programme, so that they meet the bounds if any candidates do.
    effort: what is left for programmes.
    """

    candidates: CandidateSet
    bounds: Bounds
    parameters: EffectiveParameters
    metric: Metric
    limit: np.float32
    base: int
    standing: npt.NDArray[np.int8]
    is_exact: bool = True
    effort: Effort = field(default_factory=Effort)

    @classmethod
    def of(
        cls,
        candidates: CandidateSet,
        bounds: Bounds,
        parameters: EffectiveParameters,
        metric: Metric,
        *,
        copy_limit: float = -1.0,
        base: int | None = None,
        is_exact: bool = True,
        effort: Effort | None = None,
    ) -> "QuotaSelection":
        """Prepare a selection; see the fields. `base`: None stands for all candidates."""
        limit, count = np.float32(copy_limit), len(candidates)
        standing = np.zeros(count if limit >= 0 else 0, np.int8)
        if limit >= 0 and parameters.selector in ONE_BY_ONE:
            standing[:] = pairwise.COPY
            standing[different(candidates, copy_limit)] = pairwise.ORIGINAL
        base = count if base is None else base
        return cls(
            candidates, bounds, parameters, metric, limit, base, standing, is_exact,
            Effort() if effort is None else effort,
        )  # fmt: skip

    def select(self, k: int) -> QuotaPicks:
        """Pick up to k candidates; the picks meet the bounds if any k candidates do.

        Otherwise greatest bounds are met, and what the picks lack of least bounds and of k is as
        little as it can be.
        """
        if self.parameters.lose_at_most is not None:
            return self._select_within_loss(k)
        return self.select_at(self.parameters, k)

    def _select_within_loss(self, k: int) -> QuotaPicks:
        """Pick at the greatest dial, in steps of 1/32, whose loss is at most `lose_at_most`.

        `selectors.select_within` defines the loss. The nearest picks are those within the quotas.
        """
        bound, distances = self.parameters.lose_at_most, self.candidates.costs
        assert bound is not None  # noqa: S101  # the caller checks
        parameters = replace(self.parameters, lose_at_most=None, diversity=0.0)
        nearest, kept = self.select_at(parameters, k), distances
        if self.limit >= 0:
            kept = distances[different(self.candidates, float(self.limit))]
        if len(kept) <= k or not len(nearest.places):
            return replace(nearest, reason=NO_CHOICE)
        gains = relevance(distances, self.metric)
        best = mean_of(gains[nearest.places])
        width, picks = best - mean_of(relevance(kept, self.metric)), nearest
        for step in range(DIAL_STEPS, 0, -1):
            at_dial = self.select_at(replace(parameters, diversity=step / DIAL_STEPS), k)
            loss = best - mean_of(gains[at_dial.places])
            if width == 0 or loss / width <= bound:
                picks = replace(at_dial, dial=step / DIAL_STEPS)
                break
        reason = WITHIN_BOUND if picks.dial == 1 else LOSS_BOUND
        return replace(picks, reason=EQUAL_RELEVANCE if kept[0] == kept[-1] else reason)

    def select_at(self, parameters: EffectiveParameters, k: int) -> QuotaPicks:
        """Pick up to k candidates with the selector and the dial of `parameters`."""
        if parameters.selector == "rerank" and parameters.diversity > 0:
            return self._rerank(parameters, k)
        bounds, arrays = self.bounds, self.bounds.arrays
        if bounds.has_lows:
            available = np.minimum(bounds.available, arrays.highs)
            arrays = arrays._replace(lows=np.minimum(arrays.lows, available))
        run = _Run(self, parameters, arrays, k)
        is_complete = run.finish(_NO_FOLLOW) or bounds.is_matroid or bool(arrays.groups)
        if self.is_exact and not is_complete:
            run = self._select_exactly(parameters, k)
        return run.picks

    def _select_exactly(self, parameters: EffectiveParameters, k: int) -> "_Run":
        """Pick candidates that a selection within the bounds, found by a programme, completes."""
        arrays, signatures = self.bounds.arrays, Signatures.of(self.bounds.arrays)
        programme = Programme(arrays, signatures, k, self.effort)
        selection = programme.complete(np.zeros(len(signatures.counts), np.int64))
        if selection is None:
            selection, lows = programme.relax()
            arrays, k = arrays._replace(lows=lows), int(selection.sum())
            programme = Programme(arrays, signatures, k, self.effort)
        run = _Run(self, parameters, arrays, k)
        follow = Follow(signatures.of_points, selection, np.zeros(len(selection), np.uint8))
        attempts = 0
        while not run.finish(follow):
            signature = int(signatures.of_points[run.asked])
            picks = np.bincount(signatures.of_points[run.places], minlength=len(selection))
            more_picks = picks.copy()
            more_picks[signature] += 1
            other = programme.exchange(picks + follow.room, picks, signature)
            if other is None and attempts < _PROGRAMMES_MAX and not self.effort.is_spent:
                attempts += 1
                other = _complete(programme, more_picks)
            if other is None:
                follow.verdicts[signature] = quota_picks.REFUSED
            else:
                follow.room[:] = other - picks
        return run

    def start(self, parameters: EffectiveParameters, k: int) -> "_Start":
        """Return what the kernel needs for a dial."""
        candidates, selector = self.candidates, parameters.selector
        distances, results = candidates.costs, min(parameters.k, len(candidates))
        lam = np.float32(1 - parameters.diversity)
        # The same number as in other kernels, which differs from the dial in its last digits.
        weight = 1.0 - (1 - parameters.diversity)
        is_printed = selector == "greedy" and parameters.variant == "printed"
        if selector == "nearest" or (lam == 1 and not is_printed):
            return _Start(distances, np.zeros(k, np.float32), np.float32(1), quota_picks.BY_SUM)
        costs = self._shares() if self.metric == "inner_product" else distances
        if selector == "max_sum":
            half = np.float64(0.5 * (1 - parameters.diversity))
            roots = costs if self.metric == "inner_product" else np.sqrt(costs)
            weights = np.full(k, 2.0 * weight / max(1, results - 1))
            return _Start(roots.astype(np.float64), weights, half, quota_picks.BY_ROOTS)
        if selector == "dpp":
            unit, similarity = 1.0, SIMILARITY[self.metric]
            if self.metric == "euclidean":
                kept = costs[: self.base]
                if len(self.standing):
                    kept = kept[self.standing[: self.base] != pairwise.COPY]
                total = float(np.cumsum(kept.astype(np.float64))[-1])
                unit = total / len(kept) if total > 0 else 1.0
            return _Start(
                costs.astype(np.float64) / unit, np.full(k, weight),
                np.float64(1 - parameters.diversity), quota_picks.BY_VOLUME, unit=unit,
                similarity=similarity,
            )  # fmt: skip
        rule = rule_of(parameters)
        how = quota_picks.BY_LEAST if selector == "mmr" else quota_picks.BY_SUM
        return _Start(costs, weights_of(rule, lam, 0, k, results), lam, how)

    def _shares(self) -> FloatArray:
        """Scale distances linearly to 1 at the farthest candidate of the base that is kept."""
        last, distances = self.base - 1, self.candidates.costs
        while len(self.standing) and not pairwise.is_kept(
            self.candidates.points, self.candidates.rows, last, self.limit, self.standing,
            self.candidates.scratch,
        ):  # fmt: skip
            last -= 1
        return distance_shares(distances, last)

    def _rerank(self, parameters: EffectiveParameters, k: int) -> QuotaPicks:
        """Pick from the shortlist of `rerank` and the nearest candidates within the quotas.

        Groups that this opens are filled from all candidates.
        """
        originals = np.arange(len(self.candidates))
        if len(self.standing):
            originals = np.flatnonzero(self.standing != pairwise.COPY)
        in_base = int(np.searchsorted(originals, self.base))
        results = min(parameters.k, in_base)
        length = results + int(parameters.diversity * (in_base - results))
        nearest = self.select_at(replace(parameters, selector="nearest"), k)
        places = np.union1d(originals[:length], nearest.places)
        picks = self._pick_among(places, parameters, k)
        if self.bounds.arrays.groups:
            values = self.bounds.arrays.values
            of_groups = np.flatnonzero(np.isin(values, values[picks.places]))
            picks = self._pick_among(of_groups, parameters, k)
        if self.limit < 0:
            return picks
        # The shortlist has no near-copies, so they are counted among all candidates.
        copies = count_copies(self.candidates, picks.places, float(self.limit))
        return replace(picks, copies=copies)

    def _pick_among(self, places: IntArray, parameters: EffectiveParameters, k: int) -> QuotaPicks:
        """Pick the candidates at some places that differ most."""
        part = replace(
            self,
            candidates=self.candidates.take(places),
            bounds=self.bounds.take(places),
            standing=self.standing[places] if len(self.standing) else self.standing,
            base=len(places),
        )
        picks = part.select_at(replace(parameters, selector="max_sum", diversity=1.0), k)
        return replace(picks, places=places[picks.places], contenders=places)


@dataclass(frozen=True, slots=True, eq=False)
class _Start:
    """Arguments of `quota_picks.pick_within` that depend on the selector and the dial."""

    costs: Any
    weights: Any
    relevance: Any
    how: int
    unit: float = 1.0
    similarity: int = 0


def count_copies(candidates: CandidateSet, places: IntArray, limit: float) -> int:
    """Return how many candidates are near-copies, at most `limit` apart, of those at `places`."""
    copies = pairwise.assign_copies(
        candidates.points, candidates.rows, len(candidates), places, len(places),
        np.float32(limit), np.empty(len(candidates), np.int64),
    )  # fmt: skip
    return int(copies)


def _complete(programme: Programme, picks: IntArray) -> IntArray | None:
    """Return a completion of picks; None if there is none, or the effort for it is spent."""
    try:
        return programme.complete(picks)
    except LimitExceededError:
        return None


class _Run:
    """One selection, which may stop to ask about a candidate."""

    def __init__(
        self,
        selection: QuotaSelection,
        parameters: EffectiveParameters,
        arrays: QuotaBounds,
        k: int,
    ) -> None:
        self._selection, self._arrays = selection, arrays
        self._start = start = selection.start(parameters, k)
        count, values, attributes = (
            len(selection.candidates), len(arrays.lows), len(arrays.single),
        )  # fmt: skip
        by_volume = start.how == quota_picks.BY_VOLUME
        self._state = QuotaState(
            picks=np.zeros(k, np.int64),
            gains=np.zeros(k, np.float32),
            apart=np.zeros(count, start.weights.dtype),
            closed=np.zeros(count, np.uint8),
            standing=selection.standing.copy(),
            counts=np.zeros(values, np.int64),
            tight=np.zeros(values, np.uint8),
            needs=np.zeros(attributes, np.int64),
            opened=np.zeros(1, np.int64),
            progress=np.zeros(quota_picks.PROGRESS_SIZE, np.int64),
            factor=np.zeros((count, k) if by_volume else (0, 0)),
            remainders=np.ones(count if by_volume else 0),
        )
        closed = self._state.closed[: len(selection.standing)]
        closed[selection.standing == pairwise.COPY] = 1

    @property
    def places(self) -> IntArray:
        """The picks so far."""
        return self._state.picks[: self._state.progress[quota_picks.PICKS]]

    @property
    def asked(self) -> int:
        """The candidate that the kernel asked about."""
        return int(self._state.progress[quota_picks.ASKED])

    @property
    def picks(self) -> QuotaPicks:
        """The picks."""
        progress, count = self._state.progress, len(self.places)
        return QuotaPicks(
            self.places,
            self._state.gains[:count],
            copies=int(progress[quota_picks.COPIES]),
            fillers=int(progress[quota_picks.FILLERS]),
            lows=self._arrays.lows,
            target=len(self._state.picks),
        )

    def finish(self, follow: Follow) -> bool:
        """Go on until the picks are complete, or the kernel asks; return whether they are.

        Without candidates to follow, the picks are incomplete if none is possible.
        """
        candidates, state, start = self._selection.candidates, self._state, self._start
        if not len(candidates) or not len(state.picks):
            return True
        asks = quota_picks.pick_within(
            candidates.points, candidates.rows, start.costs, candidates.costs, start.weights,
            start.relevance, start.how, start.similarity, start.unit, self._selection.limit,
            self._arrays, follow, candidates.scratch, state,
        )  # fmt: skip
        if len(follow.signatures):
            return not asks
        is_full = state.progress[quota_picks.PICKS] == len(state.picks)
        return bool(is_full and (state.counts >= self._arrays.lows).all())
