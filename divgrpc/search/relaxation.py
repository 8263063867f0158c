"""The paper's Eq. 3: each candidate is taken by a share from 0 to 1, k shares in all; then rounded.

For shares a with sum k it minimises lambda * sum of a_i c_i - beta * sum over i, j of a_i a_j d_ij.
This is convex because the distances d are squared Euclidean (of unit vectors, halved, for
1 - cosine). beta is 1 - lambda; the paper prints 1.

One pass over the candidates gives the gradient: the sum of a_j d_ij is k times the squared distance
of i from the weighted mean, plus a term that all candidates share. So there is no matrix of pairs,
and memory grows with the number of candidates alone. The linear step of Frank and Wolfe over these
shares takes the k of least gradient. Its possible gain is the duality gap: no solution is better
than the current one by more.

Steps are taken among few working candidates: Frank and Wolfe's fully corrective form (Jaggi 2013).
Between two passes pairs of them trade shares, each by an exact line search, until few trades are
worth it; after a pass the candidates outside that violate optimality most join. Only the rows of
distances that trades read are computed, and few are kept.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import read_only
from divgrpc.kernels import exact, pairwise, qp, sparse
from divgrpc.kernels.records import Points, Query, SelectionScratch
from divgrpc.types import FloatArray, IntArray
from divgrpc.vectors import SparseRows

# Duality gap to reach, as a share of the objective's range.
TOLERANCE: Final = 1e-3
# Working candidates at the start, and the most that join after a pass; at least k of each.
_WORKING_CANDIDATES: Final = 256
_JOINING_CANDIDATES: Final = 64
# Cached distances between working candidates, float32: 4 MiB.
_CACHED_DISTANCES: Final = 1 << 20
# Relative error of gradients and objectives caused by float32 distances.
_FLOAT32_ERROR: Final = 1e-7
# Distances that may be computed before the gap is reached: a constant, and per candidate.
_WORK_MAX: Final = 2e6
_WORK_MAX_PER_CANDIDATE: Final = 128.0
# Most rounds of exchanges.
_ROUNDS_MAX: Final = 8

Shares = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class CandidateSet:
    """The candidates of one query, nearest first, and what kernels need to select from them.

    rows: (m,) int32 rows of `points`.
    costs: (m,) float32 distances from the query, or costs made from them.
    """

    points: Points
    rows: npt.NDArray[np.int32]
    costs: FloatArray
    scratch: SelectionScratch

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, places: npt.NDArray[np.integer[Any]]) -> "CandidateSet":
        """Return the candidates at some places."""
        return replace(self, rows=self.rows[places], costs=self.costs[places])

    def compact(self) -> "CandidateSet":
        """Return sparse candidates with the columns that they store, if those are fewer.

        Work that goes over columns, such as means, then depends on what candidates store.
        """
        points, dims = self.points, self.points.vectors.shape[1]
        indptr, inverses = points.indptr, points.inverse_lengths
        if not len(indptr) or (indptr[self.rows + 1] - indptr[self.rows]).sum() >= dims:
            return self
        rows = SparseRows(indptr, points.indices, points.values, dims)[self.rows]
        columns, indices = np.unique(rows.indices, return_inverse=True)
        compact = Points(
            vectors=read_only(np.empty((0, len(columns)), np.float32)),
            indptr=read_only(rows.indptr),
            indices=read_only(indices.astype(np.int32)),
            values=read_only(rows.values),
            squares=read_only(points.squares[self.rows]),
            inverse_lengths=read_only(inverses[self.rows] if len(inverses) else inverses),
        )
        return replace(self, points=compact, rows=np.arange(len(self.rows), dtype=np.int32))


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """A solution of Eq. 3.

    shares: (m,) float64 of sum k.
    gap: the duality gap as a share of the objective's range, which reaches from this solution to
        the worst selection of k that was met: at most the true range.
    """

    shares: Shares
    gap: float


class _Problem:
    """The objective, and its solution so far."""

    def __init__(self, candidates: CandidateSet, k: int, relevance: float, beta: float) -> None:
        self.candidates, self.k, self.beta = candidates, k, beta
        self.prices = relevance * candidates.costs.astype(np.float64)
        # The k nearest at first.
        self.shares = np.zeros(len(candidates))
        self.shares[:k] = 1
        self._distances = np.empty(len(candidates), np.float32)
        self._marks = np.empty(len(candidates))

    def mean(self, shares: Shares) -> FloatArray:
        """Return the weighted mean (1, d) of the candidates."""
        points, rows = self.candidates.points, self.candidates.rows
        mean: FloatArray = qp.mean_of(points, rows, len(shares), shares, self.k)
        return mean

    def gradient(self, mean: FloatArray) -> Shares:
        """Return the gradient (m,), less the term that all candidates share."""
        points, rows = self.candidates.points, self.candidates.rows
        angular = len(points.inverse_lengths) > 0
        square = sparse.dense_square(mean, 0) if len(points.indptr) else 0.0
        query = Query(mean, 0, square, angular)
        exact.score_rows(points, query, rows, len(rows), self._distances)
        reach = self.k * self._distances.astype(np.float64)
        if angular:
            inverses = points.inverse_lengths[rows]
            # A point of length 0 is at a right angle to all points but itself.
            reach = np.where(inverses > 0, reach * inverses, -self.shares)
        return self.prices - 2 * self.beta * reach

    def _least(self, values: Shares, k: int) -> tuple[float, Shares]:
        """Return the sum of the k least, and marks (m,), 1 for those and 0 for the others."""
        total: float = qp.mark_least(values, k, self._distances, self._marks)
        return total, self._marks

    def gap(self, gradient: Shares) -> float:
        """Return the duality gap."""
        total: float = qp.sum_of_products(self.shares, gradient)
        return total - self._least(gradient, self.k)[0]

    def rise(self, gradient: Shares, mean: FloatArray) -> float:
        """Return how much worse the k candidates of greatest gradient are; at least 0."""
        total, corner = self._least(-gradient, self.k)
        first: float = -total - qp.sum_of_products(self.shares, gradient)
        way = (self.mean(corner) - mean)[0].astype(np.float64) * self.k
        half = 0.5 if len(self.candidates.points.inverse_lengths) else 1.0
        second: float = 2 * self.beta * half * qp.sum_of_products(way, way)
        return max(0.0, first + second)

    def joining(self, gradient: Shares, members: IntArray) -> IntArray:
        """Return the places outside `members` that would gain most by a share."""
        outside = gradient.copy()
        outside[members] = np.inf
        count = min(max(self.k, _JOINING_CANDIDATES), len(outside) - len(members))
        if not count:
            return np.empty(0, np.int64)
        _, marks = self._least(outside, count)
        return np.flatnonzero((marks > 0) & (outside < gradient[self.shares > 0].max()))


def relax(candidates: CandidateSet, k: int, relevance: float, beta: float) -> Relaxed:
    """Minimise the objective for k of the candidates, 1 to all of them, to `TOLERANCE`.

    The gap is larger only if the work ran out (two million distances and 128 per candidate), and 0
    if the whole range is lost in float32 rounding.
    """
    problem, count = _Problem(candidates, k, relevance, beta), len(candidates)
    members = np.arange(min(count, max(2 * k, _WORKING_CANDIDATES)))
    cache = np.empty(max(_CACHED_DISTANCES, 2 * count), np.float32)
    work_max = _WORK_MAX + _WORK_MAX_PER_CANDIDATE * count
    rise = fall = work = 0.0
    while True:
        mean = problem.mean(problem.shares)
        gradient = problem.gradient(mean)
        if not work:
            rise = problem.rise(gradient, mean)
        span, error = rise + fall, _FLOAT32_ERROR * k * float(np.abs(gradient).max())
        target, gap = max(TOLERANCE * span, error), problem.gap(gradient)
        joining = problem.joining(gradient, members)
        if gap <= target or work > work_max:
            return Relaxed(problem.shares, max(gap, 0.0) / span if span > error else 0.0)
        members = np.concatenate((members, joining))
        rows, shares = candidates.rows[members], problem.shares[members]
        step_fall, step_work = qp.trade_shares(
            candidates.points, rows, len(members), beta, 0.5 * target / k, work_max - work,
            candidates.scratch, cache, gradient[members], shares,
        )  # fmt: skip
        problem.shares[members] = shares
        fall, work = fall + step_fall, work + step_work + count


def round_up(shares: Shares, k: int) -> IntArray:
    """Return the places of the k largest shares, largest first; of equal shares the nearer."""
    return np.argsort(-shares, kind="stable")[:k]


def exchange(candidates: CandidateSet, picks: IntArray, relevance: float, beta: float) -> IntArray:
    """Return a selection that no exchange of one of its places for another improves.

    The objective is the same as in `relax`, with shares of 0 and 1. There are eight rounds at most.
    """

    def far_from(place: int) -> Shares:
        rows, far = candidates.rows, np.empty(len(candidates), np.float32)
        pairwise.far_from(candidates.points, rows, len(rows), place, candidates.scratch, far)
        return far.astype(np.float64)

    picks, inside = picks.copy(), np.zeros(len(candidates), np.bool_)
    inside[picks] = True
    total, prices = np.zeros(len(candidates)), relevance * candidates.costs.astype(np.float64)
    for place in picks:
        total += far_from(place)
    for _ in range(_ROUNDS_MAX):
        before = picks.copy()
        for i, leaving in enumerate(before):
            away = far_from(leaving)
            values = np.where(inside, np.inf, prices - 2 * beta * (total - away))
            value = prices[leaving] - 2 * beta * total[leaving]
            best = int(values.argmin())
            if values[best] < value - _FLOAT32_ERROR * abs(value):
                total += far_from(best) - away
                inside[leaving], inside[best] = False, True
                picks[i] = best
        if (picks == before).all():
            break
    return picks
