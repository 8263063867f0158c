"""Selection after points that were shown before: on a later page, or by the caller's account.

Points shown count as earlier picks, but are not picked again, and neither are their near-copies.
Whether a candidate is a near-copy of a nearer candidate is decided only when it is about to be
picked, where the selector allows this, because few candidates come so far.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from divgrpc.arrays import Array, read_only
from divgrpc.kernels import normalise, pairwise, records
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.selectors import Picks, mean_of, relevance
from divgrpc.search.stepwise import StepwiseSelection
from divgrpc.types import EffectiveParameters, IntArray, Metric
from divgrpc.vectors import Rows, SparseRows, concatenate_rows, lengths

# `lose_at_most` chooses from this many dials above 0.
_DIAL_STEPS: Final = 32
# Computed distances between equal directions are at most this.
_SAME_DIRECTION: Final = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """Points that were shown before.

    rows: (s,) row numbers of stored points, in the order in which they were shown.
    vectors: further points (t, d), scaled for the metric as stored points are; None if there are
        none. They were shown before the points in `rows`.
    owner: tells the points that row numbers belong to (`StepwiseSelection`).
    """

    rows: IntArray
    vectors: Rows | None = None
    owner: Hashable = None


def pick_after(
    candidates: CandidateSet,
    parameters: EffectiveParameters,
    metric: Metric,
    copy_limit: float,
    shown: Shown,
) -> tuple[Picks, bool]:
    """Pick up to k candidates, and return whether there is another one to pick.

    candidates: nearest first, with near-copies; `costs` are the distances from the query.
    parameters: with a fixed dial.
    copy_limit: maximum distance between near-copies; below 0, only exact copies of vectors that
        the caller gave are left out.
    """
    if not len(candidates):
        return Picks(np.empty(0, np.int64), np.empty(0, np.float32)), False
    parameters = replace(parameters, k=min(parameters.k, len(candidates)))
    selection = _Selection(candidates, parameters, metric, copy_limit, shown)
    places: list[int] = []
    values: list[float] = []
    while True:
        place, value = selection.best()
        if place < 0 or len(places) == parameters.k:
            selection.keep_sums()
            picks = Picks(np.array(places, np.int64), np.array(values, np.float32))
            return picks, place >= 0
        places.append(selection.pick(place))
        values.append(value)


def choose_dial(
    candidates: CandidateSet,
    parameters: EffectiveParameters,
    metric: Metric,
    copy_limit: float,
    shown: Shown,
) -> tuple[float, int]:
    """Return the dial that `lose_at_most` chooses, and a reason as in `Results.reasons`.

    It is the greatest dial, in steps of 1/32, at which the picks after the points shown lose no
    more than the bound. `selectors.select_within` defines the loss.
    """
    distances, bound = candidates.costs, parameters.lose_at_most
    assert bound is not None  # noqa: S101  # the caller checks
    kept = distances
    if copy_limit >= 0:
        kept = distances[different(candidates, copy_limit)]
    if len(kept) <= parameters.k:
        return 0.0, records.NO_CHOICE
    nearest = mean_of(relevance(kept[: parameters.k], metric))
    width = nearest - mean_of(relevance(kept, metric))
    reason = records.EQUAL_RELEVANCE if kept[0] == kept[-1] else records.LOSS_BOUND
    for step in range(_DIAL_STEPS, 0, -1):
        at_dial = replace(parameters, lose_at_most=None, diversity=step / _DIAL_STEPS)
        picks, _ = pick_after(candidates, at_dial, metric, copy_limit, shown)
        if not len(picks.places):
            # All candidates are near-copies of points that were shown.
            return 0.0, records.NO_CHOICE
        loss = nearest - mean_of(relevance(distances[picks.places], metric))
        if width == 0 or loss / width <= bound:
            if step == _DIAL_STEPS and reason == records.LOSS_BOUND:
                reason = records.WITHIN_BOUND
            return step / _DIAL_STEPS, reason
    return 0.0, reason


class _Selection:
    """A stepwise selection that passes over near-copies."""

    def __init__(
        self,
        candidates: CandidateSet,
        parameters: EffectiveParameters,
        metric: Metric,
        copy_limit: float,
        shown: Shown,
    ) -> None:
        self._limit = np.float32(copy_limit)
        self._standing = np.zeros(len(candidates), np.int8)
        self._originals: IntArray | None = None
        if copy_limit >= 0:
            candidates = self._narrow(candidates, parameters, metric)
        self._earlier = shown.rows.astype(np.int32)
        self._n_exact = 0
        if shown.vectors is not None:
            count, self._n_exact = len(candidates), len(shown.vectors)
            candidates = _joined(candidates, shown)
            total = count + self._n_exact + len(shown.rows)
            self._earlier = np.arange(count, total, dtype=np.int32)
        self._candidates = candidates
        self._exact_limit = np.float32(0 if metric == "euclidean" else _SAME_DIRECTION)
        self._allowed = np.ones(len(candidates), np.bool_)
        self._steps = StepwiseSelection(
            candidates,
            parameters,
            metric,
            self._earlier.astype(np.int64),
            shown.owner if shown.vectors is None else None,
        )

    def _narrow(
        self, candidates: CandidateSet, parameters: EffectiveParameters, metric: Metric
    ) -> CandidateSet:
        """Leave out near-copies as far as the rule of the selector depends on them.

        The shortlist of `rerank` and the unit of `dpp` under `euclidean` depend on all candidates.
        Under `inner_product`, costs are scaled by the last candidate that is no near-copy.
        """
        selector = parameters.selector
        if selector == "rerank" or (selector == "dpp" and metric == "euclidean"):
            self._originals = different(candidates, float(self._limit))
            return candidates.take(self._originals)
        last = len(candidates) - 1
        while metric == "inner_product" and not self._is_original(candidates, last):
            last -= 1
        return candidates.take(np.arange(last + 1)) if last + 1 < len(candidates) else candidates

    def _is_original(self, candidates: CandidateSet, place: int) -> bool:
        """Return whether a candidate is no near-copy of a nearer candidate."""
        return bool(
            pairwise.is_kept(
                candidates.points,
                candidates.rows,
                place,
                self._limit,
                self._standing,
                candidates.scratch,
            )
        )

    def _passes(self, place: int) -> bool:
        """Return whether a candidate is no near-copy of another candidate or of a point shown."""
        points, rows = self._candidates.points, self._candidates.rows
        exact = self._earlier[: self._n_exact]
        if self._limit < 0:
            return not pairwise.is_near_any(points, rows[place], exact, self._exact_limit)
        if pairwise.is_near_any(points, rows[place], self._earlier, self._limit):
            return False
        return self._originals is not None or self._is_original(self._candidates, place)

    def best(self) -> tuple[int, float]:
        """Return the position of the candidate to pick next, or -1, and the value of the pick."""
        while True:
            place, value = self._steps.best(self._allowed)
            if place < 0 or self._passes(place):
                return place, value
            self._allowed[place] = False

    def keep_sums(self) -> None:
        """Keep what the next page needs."""
        self._steps.keep_sums()

    def pick(self, place: int) -> int:
        """Pick a candidate; return its position among all candidates."""
        self._steps.pick(place)
        return place if self._originals is None else int(self._originals[place])


def different(candidates: CandidateSet, copy_limit: float) -> IntArray:
    """Return the positions of the candidates that are no near-copies of nearer ones."""
    places = np.empty(len(candidates), np.int64)
    count = pairwise.keep_different(
        candidates.points, candidates.rows, len(candidates), np.float32(copy_limit),
        candidates.scratch, places,
    )  # fmt: skip
    return places[:count]


def _joined(candidates: CandidateSet, shown: Shown) -> CandidateSet:
    """Return the candidates among points of their own, which also have the points shown.

    The points are the candidates, the vectors of the caller, and the rows shown, in this order.
    """
    points, rows = candidates.points, (candidates.rows, shown.rows.astype(np.int32))
    assert shown.vectors is not None  # noqa: S101  # the caller checks
    squares, inverses = points.squares, points.inverse_lengths
    joined: dict[str, Array] = {}
    if isinstance(shown.vectors, SparseRows):
        dims = points.vectors.shape[1]
        stored = SparseRows(points.indptr, points.indices, points.values, dims)
        matrix = concatenate_rows([stored[rows[0]], shown.vectors, stored[rows[1]]])
        assert isinstance(matrix, SparseRows)  # noqa: S101  # all parts are sparse
        joined = {"indptr": matrix.indptr, "indices": matrix.indices, "values": matrix.values}
        further = np.empty(len(shown.vectors))
        normalise.squares_sparse(
            read_only(shown.vectors.indptr), read_only(shown.vectors.values), further
        )
        joined["squares"] = np.concatenate((squares[rows[0]], further, squares[rows[1]]))
    else:
        vectors = points.vectors
        joined["vectors"] = np.concatenate((vectors[rows[0]], shown.vectors, vectors[rows[1]]))
    if len(inverses):
        sizes = lengths(shown.vectors)
        of_given32 = np.divide(1, sizes, out=np.zeros_like(sizes), where=sizes > 0)
        joined["inverse_lengths"] = np.concatenate(
            (inverses[rows[0]], of_given32, inverses[rows[1]])
        )
    changed = {name: read_only(np.ascontiguousarray(array)) for name, array in joined.items()}
    numbers = np.arange(len(candidates), dtype=np.int32)
    return replace(candidates, points=points._replace(**changed), rows=numbers)
