"""The paper's Eq. 3: every candidate taken by a share from 0 to 1, k shares in all; then rounded.

Of shares a with sum k it minimises lambda * sum of a_i c_i - beta * sum over i, j of a_i a_j d_ij,
which is convex, because the distances d are squared Euclidean ones (of unit vectors, halved, for
1 - cosine). beta is 1 - lambda; the paper prints 1.

The gradient at all candidates is one pass over them: the sum of a_j d_ij is k times the squared
distance of i from the mean of the shares, and something that all have alike. So there is no matrix
of pairs, and memory grows with the candidates alone. The linear step of Frank and Wolfe over these
shares is to take the k of least gradient, and what it could gain is the duality gap: no solution
is better than this one by more.

Steps are taken among few working candidates: Frank and Wolfe's fully corrective form (Jaggi 2013).
Between two passes pairs of them trade shares, each by an exact line search, until hardly any trade
is worth it; after a pass those outside that violate most join. Only the rows of distances that
trades ask for are computed, and few are kept.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.kernels import exact, pairwise, qp, sparse
from divgrpc.storage.arrays import read_only
from divgrpc.types import FloatArray, IntArray
from divgrpc.vectors import SparseRows

# Of the objective's range: the duality gap to reach.
TOLERANCE: Final = 1e-3
# Working candidates to begin with, and how many may join after a pass; at least k of each.
_START: Final = 256
_JOINING: Final = 64
# Distances among working candidates that are kept: 4 MiB.
_KEPT: Final = 1 << 20
# Of gradients, what float32 distances leave unsure.
_ROUNDING: Final = 1e-7
# Rounds of exchanges at most.
_ROUNDS: Final = 8

Shares = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """What there is to choose from: rows and costs (m,), nearest first, and what kernels want.

    `points`, `inverses` and `scratch` are those of `kernels.selection.greedy`.
    """

    points: tuple[Any, ...]
    inverses: FloatArray
    rows: npt.NDArray[np.int32]
    costs: FloatArray
    scratch: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def priced(self, costs: FloatArray) -> "Candidates":
        """Return the same at other costs."""
        return Candidates(self.points, self.inverses, self.rows, costs, self.scratch)

    def of(self, places: npt.NDArray[np.integer[Any]]) -> "Candidates":
        """Return some of them."""
        return Candidates(
            self.points, self.inverses, self.rows[places], self.costs[places], self.scratch
        )

    def compact(self) -> "Candidates":
        """Return the same in columns of their own, where sparse rows leave most columns empty.

        What goes over columns, as means do, then costs what candidates store.
        """
        vectors, indptr, indices, values, squares = self.points
        dims = vectors.shape[1]
        if not len(indptr) or (indptr[self.rows + 1] - indptr[self.rows]).sum() >= dims:
            return self
        own = SparseRows(indptr, indices, values, dims)[self.rows]
        columns, renamed = np.unique(own.indices, return_inverse=True)
        none = np.empty((0, len(columns)), np.float32)
        kept = (none, own.indptr, renamed.astype(np.int32), own.values, squares[self.rows])
        inverses = self.inverses[self.rows] if len(self.inverses) else self.inverses
        rows = np.arange(len(self.rows), dtype=np.int32)
        points = tuple(map(read_only, kept))
        return Candidates(points, read_only(inverses), rows, self.costs, self.scratch)


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """A solution: `shares` (m,) float64 of sum k, and the duality gap as a share of the range.

    The range reaches from this solution to the worst selection of k that was met, so it is at most
    the true one.
    """

    shares: Shares
    gap: float


class _Problem:
    """The objective, and its solution so far."""

    def __init__(self, among: Candidates, k: int, relevance: float, beta: float) -> None:
        self.among, self.k, self.beta = among, k, beta
        self.prices = relevance * among.costs.astype(np.float64)
        # At first the k nearest.
        self.shares = np.zeros(len(among))
        self.shares[:k] = 1
        self.pool = np.empty(len(among), np.float32)
        self.chosen = np.empty(len(among))

    def mean(self, shares: Shares) -> FloatArray:
        found: FloatArray = qp.mean_of(
            self.among.points, self.among.inverses, self.among.rows, len(shares), shares, self.k
        )
        return found

    def gradient(self, mean: FloatArray) -> Shares:
        """Return the gradient (m,), but for what all have alike."""
        points, inverses = self.among.points, self.among.inverses
        angular = len(inverses) > 0
        square = sparse.dense_square(mean, 0) if len(points[1]) else 0.0
        exact.score_rows(
            points, mean, 0, square, angular, self.among.rows, len(self.among), self.pool
        )
        reach = self.k * self.pool.astype(np.float64)
        if angular:
            own = inverses[self.among.rows]
            # What has no direction is at a right angle to all but itself.
            reach = np.where(own > 0, reach * own, -self.shares)
        return self.prices - 2 * self.beta * reach

    def least(self, values: Shares, k: int) -> tuple[float, Shares]:
        """Return the sum of the k least, and which they are."""
        total: float = qp.take_least(values, k, self.pool, self.chosen)
        return total, self.chosen

    def gap(self, gradient: Shares) -> float:
        total: float = qp.sum_of_products(self.shares, gradient)
        return total - self.least(gradient, self.k)[0]

    def rise(self, gradient: Shares, mean: FloatArray) -> float:
        """Return how much worse the selection is that the gradient warns of most; at least 0."""
        total, corner = self.least(-gradient, self.k)
        first: float = -total - qp.sum_of_products(self.shares, gradient)
        way = (self.mean(corner) - mean)[0].astype(np.float64) * self.k
        half = 0.5 if len(self.among.inverses) else 1.0
        second: float = 2 * self.beta * half * qp.sum_of_products(way, way)
        return max(0.0, first + second)

    def joining(self, gradient: Shares, members: IntArray) -> IntArray:
        """Return those outside that would gain most by taking a share."""
        outside = gradient.copy()
        outside[members] = np.inf
        wanted = min(max(self.k, _JOINING), len(outside) - len(members))
        if not wanted:
            return np.empty(0, np.int64)
        _, chosen = self.least(outside, wanted)
        return np.flatnonzero((chosen > 0) & (outside < gradient[self.shares > 0].max()))


def relax(among: Candidates, k: int, relevance: float, beta: float) -> Relaxed:
    """Minimise the objective for k of the candidates, 1 to all of them, to `TOLERANCE`.

    The gap is larger only where the work ran out (two million distances and 128 a candidate), and 0
    where the whole range is lost in the rounding of float32.
    """
    problem, count = _Problem(among, k, relevance, beta), len(among)
    members = np.arange(min(count, max(2 * k, _START)))
    kept = np.empty(max(_KEPT, 2 * count), np.float32)
    most = 2e6 + 128.0 * count
    rise = fall = spent = 0.0
    while True:
        mean = problem.mean(problem.shares)
        gradient = problem.gradient(mean)
        if not spent:
            rise = problem.rise(gradient, mean)
        span, unsure = rise + fall, _ROUNDING * k * float(np.abs(gradient).max())
        wanted, gap = max(TOLERANCE * span, unsure), problem.gap(gradient)
        joining = problem.joining(gradient, members)
        if gap <= wanted or spent > most:
            return Relaxed(problem.shares, max(gap, 0.0) / span if span > unsure else 0.0)
        members = np.concatenate((members, joining))
        working, slopes, shares = among.of(members), gradient[members], problem.shares[members]
        lower, work = qp.settle(
            among.points, among.inverses, working.rows, len(members), beta, 0.5 * wanted / k,
            most - spent, among.scratch, kept, slopes, shares,
        )  # fmt: skip
        problem.shares[members] = shares
        fall, spent = fall + lower, spent + work + count


def round_up(shares: Shares, k: int) -> IntArray:
    """Return the places of the k largest shares, largest first, of equals the nearer."""
    return np.argsort(-shares, kind="stable")[:k]


def exchange(among: Candidates, chosen: IntArray, relevance: float, beta: float) -> IntArray:
    """Return a selection that no exchange of one of its places for another would better.

    The objective is that of `relax` with shares of 0 and 1. It ends early after eight rounds.
    """

    def far_from(place: int) -> Shares:
        far = np.empty(len(among), np.float32)
        pairwise.far_from(
            among.points, among.inverses, among.rows, len(among), place, among.scratch, far
        )
        return far.astype(np.float64)

    chosen, inside = chosen.copy(), np.zeros(len(among), np.bool_)
    inside[chosen] = True
    total, prices = np.zeros(len(among)), relevance * among.costs.astype(np.float64)
    for place in chosen:
        total += far_from(place)
    for _ in range(_ROUNDS):
        before = chosen.copy()
        for i, leaving in enumerate(before):
            away = far_from(leaving)
            values = np.where(inside, np.inf, prices - 2 * beta * (total - away))
            worth = prices[leaving] - 2 * beta * total[leaving]
            best = int(values.argmin())
            if values[best] < worth - _ROUNDING * abs(worth):
                total += far_from(best) - away
                inside[leaving], inside[best] = False, True
                chosen[i] = best
        if (chosen == before).all():
            break
    return chosen
