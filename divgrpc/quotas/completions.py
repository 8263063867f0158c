"""Exact feasibility of quotas on several attributes, by integer programming over signatures.

The signature of a point is the set of bounded values that it counts for. Points of one signature
are interchangeable, so a selection is a number of points of each signature.
"""

from typing import Final, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import spans
from divgrpc.errors import LimitExceededError
from divgrpc.kernels.quota_picks import QuotaBounds
from divgrpc.types import IntArray

# Maximum number of entries of the matrix with which exchanges are tried.
_EXCHANGE_ENTRIES_MAX: Final = 1 << 22
# Maximum effort of the integer programmes of one query: nodes of search trees times variables. It
# does not depend on how fast a machine is, so that the same query always gets the same answer.
_EFFORT_MAX: Final = 40_000
# Nodes that each programme may take, whatever the effort of others was.
_NODES_MIN: Final = 50
# Time limit of one programme in seconds. It ends programmes whose first node takes so long, with an
# error.
_PROGRAMME_SECONDS: Final = 20.0
# Status of a solver that has proved its result, and of one that has proved that there is none.
_PROVED, _IMPOSSIBLE = 0, 2


class Effort:
    """What is left of the effort that one query may take.

    left: nodes of search trees times variables.
    """

    def __init__(self) -> None:
        self.left = _EFFORT_MAX

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0


class Signatures(NamedTuple):
    """The signatures of m points.

    of_points: (m,) number of the signature of each point, in the order of first appearance.
    firsts: (s,) the first point of each signature.
    counts: (s,) number of points of each signature.
    """

    of_points: IntArray
    firsts: IntArray
    counts: IntArray

    @classmethod
    def of(cls, bounds: QuotaBounds, counts: IntArray | None = None) -> "Signatures":
        """Return the signatures of the points that have these bounds.

        counts: (m,) number of points that each point stands for. Default: 1.
        """
        # The numbers of a point are hashed and the hashes summed. Of n different sums, two are
        # equal with a probability of n * n / 2**65.
        sums = np.concatenate(([np.uint64(0)], np.cumsum(_hashes(bounds.values), dtype=np.uint64)))
        keys = sums[bounds.starts[1:]] - sums[bounds.starts[:-1]]
        _, firsts, places = np.unique(keys, return_index=True, return_inverse=True)
        order = np.argsort(firsts)
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        of_points = ranks[places.ravel()]
        return cls(of_points, firsts[order], np.bincount(of_points, counts).astype(np.int64))


def _hashes(numbers: IntArray) -> npt.NDArray[np.uint64]:
    """Return hashes of numbers, by the finaliser of splitmix64."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashes: npt.NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return hashes


class Programme:
    """The selections of k points that meet bounds, as numbers of points of each signature.

    Methods raise `LimitExceededError` if they cannot decide with the effort that is left.
    """

    def __init__(self, bounds: QuotaBounds, signatures: Signatures, k: int, effort: Effort) -> None:
        self._counts, self._k, self._effort = signatures.counts, k, effort
        self._lows, self._highs = bounds.lows, bounds.highs
        starts, stops = bounds.starts[signatures.firsts], bounds.starts[signatures.firsts + 1]
        widths = stops - starts
        # Pairs of a signature and a value that it counts for.
        values = bounds.values[spans(starts, widths)]
        self._pairs = np.repeat(np.arange(len(widths)), widths), values

    def complete(self, picks: IntArray) -> IntArray | None:
        """Return a selection that has at least `picks` (s,) points of each signature, or None."""
        return self._solve(picks, relaxed=False)

    def relax(self) -> tuple[IntArray, IntArray]:
        """Return the selection of least total shortfall, and the least bounds (n,) that it meets.

        The shortfall is what results lack of the least bounds and of k. Greatest bounds are met.
        """
        selection = self._solve(np.zeros(len(self._counts), np.int64), relaxed=True)
        assert selection is not None  # noqa: S101  # no point at all is a selection
        selection = selection[: len(self._counts)]
        signatures, values = self._pairs
        sums = np.bincount(values, weights=selection[signatures], minlength=len(self._lows))
        return selection, np.minimum(self._lows, sums.astype(np.int64))

    def exchange(self, selection: IntArray, picks: IntArray, signature: int) -> IntArray | None:
        """Return `selection` with a point of `signature` in place of another one, but no pick.

        Returns None if no single exchange meets the bounds.
        """
        shape = len(self._counts), len(self._lows)
        if shape[0] * shape[1] > _EXCHANGE_ENTRIES_MAX:
            return None
        matrix = np.zeros(shape, np.int64)
        matrix[self._pairs] = 1
        sums = selection @ matrix + matrix[signature] - matrix
        fits = ((sums >= self._lows) & (sums <= self._highs)).all(axis=1) & (selection > picks)
        if not fits.any():
            return None
        exchanged = selection.copy()
        exchanged[signature] += 1
        exchanged[np.argmax(fits)] -= 1
        return exchanged

    def _solve(self, picks: IntArray, *, relaxed: bool) -> IntArray | None:
        # The solver takes a fifth of a second to import.
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        count, values = len(self._counts), len(self._lows)
        signatures, numbers = self._pairs
        rows = np.concatenate((numbers, np.full(count, values)))
        columns = np.concatenate((signatures, np.arange(count)))
        shape, highest = (values + 1, count), self._counts
        if relaxed:
            # The further variables are what each value, and the answer as a whole, lacks.
            shape, highest = (values + 1, count + values + 1), np.append(highest, self._lows)
            highest = np.append(highest, self._k)
        sums = csr_array((np.ones(len(rows)), (rows, columns)), shape)
        constraints = [LinearConstraint(sums, -np.inf, np.append(self._highs, self._k))]
        if relaxed:
            rows = np.concatenate((rows, np.arange(values + 1)))
            columns = np.concatenate((columns, count + np.arange(values + 1)))
            sums = csr_array((np.ones(len(rows)), (rows, columns)), shape)
        constraints.append(LinearConstraint(sums, np.append(self._lows, self._k), np.inf))
        lowest = np.append(picks, np.zeros(len(highest) - count))
        nodes = max(_NODES_MIN, self._effort.left // len(highest))
        result = milp(
            np.repeat([0.0, 1.0], [count, len(highest) - count]),
            constraints=constraints,
            bounds=Bounds(lowest, highest),
            integrality=np.ones(len(highest)),
            options={"node_limit": nodes, "time_limit": _PROGRAMME_SECONDS},
        )
        self._effort.left -= (1 + (result.mip_node_count or 0)) * len(highest)
        if result.status == _IMPOSSIBLE:
            return None
        # Every selection within the bounds is a completion, but not every one lacks the least.
        if result.x is None or (relaxed and result.status != _PROVED):
            _give_up()
        selection: IntArray = np.rint(result.x).astype(np.int64)
        return selection


def _give_up() -> NoReturn:
    raise LimitExceededError(
        "it takes too long to decide whether results can meet these quotas: set quotas on fewer"
        " attributes, or on attributes with fewer values"
    )
