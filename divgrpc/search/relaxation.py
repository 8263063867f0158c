"""Solves the paper's Eq. 3, a convex relaxation of selection, and rounds the fractional solution.

Each candidate i has a share a_i from 0 to 1, and the shares sum to k. Given the costs c_i and the
distances d_ij, the problem is to minimise

    lambda * sum over i of a_i c_i - beta * sum over i, j of a_i a_j d_ij

where beta is 1 - lambda (the paper prints 1). The problem is convex because d is a squared
Euclidean distance, or 1 - cosine, which is half the squared Euclidean distance of unit vectors.

The gradient needs one pass over the candidates: the sum over j of a_j d_ij is k times the squared
distance of i from the weighted mean (half of this for 1 - cosine), plus a term that is equal for
all i. So no matrix of pairs is stored, and memory is proportional to the number of candidates. The
linear step of the Frank-Wolfe algorithm moves towards the k candidates of smallest gradient. The
decrease that this step predicts is the duality gap. No solution is better than the current solution
by more than the duality gap.

The solver is the fully corrective form of Frank-Wolfe (Jaggi 2013) on a small set of working
candidates. Between two passes, pairs of working candidates trade shares until no trade decreases
the objective by much. The amount of each trade is found by an exact line search. After each pass,
the other candidates that most violate optimality join the working candidates. Distances between
candidates are computed only for candidates that trade, from all working candidates.
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

# The solver stops when the duality gap divided by the range of the objective is at most this.
TOLERANCE: Final = 1e-3
# At the start there are this many working candidates, or 2 * k if 2 * k is more.
_WORKING_CANDIDATES: Final = 256
# At most this many candidates join after a pass, or at most k if k is more.
_JOINING_CANDIDATES: Final = 64
# Maximum number of float32 distances between working candidates in the cache (4 MiB).
_CACHED_DISTANCES: Final = 1 << 20
# Relative error of gradients and objectives, because distances are float32.
_FLOAT32_ERROR: Final = 1e-7
# The solver gives up when it has computed _WORK_MAX + _WORK_MAX_PER_CANDIDATE * m distances for m
# candidates.
_WORK_MAX: Final = 2e6
_WORK_MAX_PER_CANDIDATE: Final = 128.0
# Maximum number of rounds of exchanges in `exchange`.
_ROUNDS_MAX: Final = 8

Shares = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class CandidateSet:
    """The m candidates of one query, nearest first, and what kernels need to select from them.

    points: the points of the index.
    rows: (m,) int32 row numbers of the candidates in `points`.
    costs: (m,) float32 distances from the query, or costs computed from them.
    scratch: memory that kernels write into.
    """

    points: Points
    rows: npt.NDArray[np.int32]
    costs: FloatArray
    scratch: SelectionScratch

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, places: npt.NDArray[np.integer[Any]]) -> "CandidateSet":
        """Return the candidates at these positions."""
        return replace(self, rows=self.rows[places], costs=self.costs[places])

    def compact(self) -> "CandidateSet":
        """Drop the columns in which no sparse candidate stores a value, to shorten mean vectors.

        Dense candidates, and sparse ones that store at least as many values as there are columns,
        are returned unchanged.
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

    shares: (m,) float64 shares, whose sum is k.
    gap: the duality gap divided by the range of the objective, which extends from this solution
        to the worst selection of k candidates that the solver met.
    """

    shares: Shares
    gap: float


class _Problem:
    """The objective and the current solution."""

    def __init__(self, candidates: CandidateSet, k: int, relevance: float, beta: float) -> None:
        self.candidates, self.k, self.beta = candidates, k, beta
        self.prices = relevance * candidates.costs.astype(np.float64)
        # Start with the k nearest candidates.
        self.shares = np.zeros(len(candidates))
        self.shares[:k] = 1
        self._distances = np.empty(len(candidates), np.float32)
        self._marks = np.empty(len(candidates))

    def mean(self, shares: Shares) -> FloatArray:
        """Return the mean (1, d) of the candidates, weighted by `shares`."""
        points, rows = self.candidates.points, self.candidates.rows
        mean: FloatArray = qp.mean_of(points, rows, len(shares), shares, self.k)
        return mean

    def gradient(self, mean: FloatArray) -> Shares:
        """Return the gradient (m,), without the term that is equal for all candidates."""
        points, rows = self.candidates.points, self.candidates.rows
        angular = len(points.inverse_lengths) > 0
        square = sparse.dense_square(mean, 0) if len(points.indptr) else 0.0
        query = Query(mean, 0, square, angular)
        exact.score_rows(points, query, rows, len(rows), self._distances)
        reach = self.k * self._distances.astype(np.float64)
        if angular:
            inverses = points.inverse_lengths[rows]
            # A point of length 0 has distance 0 from itself and 1 from all other points.
            reach = np.where(inverses > 0, reach * inverses, -self.shares)
        return self.prices - 2 * self.beta * reach

    def _least(self, values: Shares, k: int) -> tuple[float, Shares]:
        """Return the sum of the k smallest values, and marks (m,): 1 for these, 0 for others."""
        total: float = qp.mark_least(values, k, self._distances, self._marks)
        return total, self._marks

    def gap(self, gradient: Shares) -> float:
        """Return the duality gap, not yet divided by the range."""
        total: float = qp.sum_of_products(self.shares, gradient)
        return total - self._least(gradient, self.k)[0]

    def rise(self, gradient: Shares, mean: FloatArray) -> float:
        """Return by how much the k candidates of greatest gradient increase the objective.

        The increase is measured from the current solution. If there is none, 0 is returned.
        """
        total, corner = self._least(-gradient, self.k)
        first: float = -total - qp.sum_of_products(self.shares, gradient)
        step_vector = (self.mean(corner) - mean)[0].astype(np.float64) * self.k
        half = 0.5 if len(self.candidates.points.inverse_lengths) else 1.0
        second: float = 2 * self.beta * half * qp.sum_of_products(step_vector, step_vector)
        return max(0.0, first + second)

    def joining(self, gradient: Shares, members: IntArray) -> IntArray:
        """Return the positions of the candidates to add to the working candidates `members`.

        These candidates have the smallest gradients outside `members`, and could lower the
        objective.
        """
        outside = gradient.copy()
        outside[members] = np.inf
        count = min(max(self.k, _JOINING_CANDIDATES), len(outside) - len(members))
        if not count:
            return np.empty(0, np.int64)
        _, marks = self._least(outside, count)
        return np.flatnonzero((marks > 0) & (outside < gradient[self.shares > 0].max()))


def relax(candidates: CandidateSet, k: int, relevance: float, beta: float) -> Relaxed:
    """Minimise the objective until the duality gap is at most `TOLERANCE`; k is 1 to m.

    The returned gap can be greater than `TOLERANCE` in two cases only: the solver reached its
    maximum work, which is 2 million distances plus 128 for each candidate, or the gap is within the
    rounding error of float32. If the range of the objective is within this error, the returned gap
    is 0.
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
    """Return the positions of the k largest shares, largest first; ties go to nearer candidates."""
    return np.argsort(-shares, kind="stable")[:k]


def exchange(candidates: CandidateSet, picks: IntArray, relevance: float, beta: float) -> IntArray:
    """Exchange one pick at a time while this decreases the objective, for at most eight rounds.

    `picks` and the result are positions of candidates. `relax` minimises the same objective; here
    picks have the share 1 and other candidates 0.
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
