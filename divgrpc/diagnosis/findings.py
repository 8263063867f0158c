"""Computes the figures of a diagnosis from counts of near-copies and from answers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from divgrpc.diagnosis.advice import advise, crowds
from divgrpc.metrics import Values
from divgrpc.metrics.comparing import ratio_intervals
from divgrpc.parameters import DEFAULT_K
from divgrpc.types import AttributeValue, IntArray, Interval, Metric
from divgrpc.types.diagnosis import CopyShare, DefaultEffect, Diagnosis, ValueCopies
from divgrpc.types.records import Scalar
from divgrpc.vectors import Rows, SparseRows

if TYPE_CHECKING:
    from divgrpc.engine import Engine

# For each attribute, the values that the most sampled points have.
VALUES_MAX: Final = 20
# Half the width of a 95 % interval, in standard deviations of a normal distribution.
_DEVIATIONS: Final = 1.959964
_SETTINGS: Final[tuple[Literal["diversity", "duplicate_threshold", "both"], ...]] = (
    "diversity",
    "duplicate_threshold",
    "both",
)


@dataclass(frozen=True, slots=True, eq=False)
class Randomness:
    """Distances from random points, which the figures of results are compared with.

    between: mean distance between two random points, as selectors measure it.
    """

    between: float
    _metric: Metric
    _mean: Values
    _mean_square: float

    @classmethod
    def of(cls, vectors: Rows, metric: Metric) -> "Randomness":
        """Take sampled points (m, d) for random points."""
        angular = metric == "inner_product"
        mean, squares = _moments(vectors, unit=False)
        unit_mean, unit_squares = _moments(vectors, unit=True) if angular else (mean, squares)
        count = len(vectors)
        # The mean over all pairs of different points, from the mean over all pairs.
        spread = float(unit_squares.mean() - unit_mean @ unit_mean) * (1 if angular else 2)
        between = max(0.0, spread) * count / max(1, count - 1)
        return cls(between, metric, mean, float(squares.mean()))

    def from_queries(self, queries: Rows) -> Values:
        """Return the mean distance of random points from each query (q,).

        Under `inner_product`, a distance is minus the inner product.
        """
        products = np.asarray(_matrix(queries) @ self._mean, np.float64).ravel()
        if self._metric == "inner_product":
            return -products
        return np.asarray(squares_of(queries) + self._mean_square - 2 * products, np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """Near-copies of the m sampled points at t thresholds.

    thresholds: the thresholds, the loosest first.
    counts: (m, t) int64, the number of near-copies of each sampled point.
    rows: number of points among which they were counted.
    values: values of the sampled points by attribute.
    """

    thresholds: list[float]
    counts: IntArray
    rows: int
    values: Mapping[str, tuple[AttributeValue, ...]]

    def shares(self, counts: IntArray) -> tuple[CopyShare, ...]:
        """Return the shares of sampled points with the rows `counts` (s, t) of the counts."""
        # With all points counted, a share is exact. The points of one value are sampled alike.
        is_whole = len(self.counts) == self.rows
        left = 0.0 if is_whole else 1 - len(self.counts) / self.rows
        return tuple(
            CopyShare(threshold, share_interval(column > 0, left), float(column.mean()))
            for threshold, column in zip(self.thresholds, counts.T, strict=True)
        )

    def by_value(self) -> tuple[ValueCopies, ...]:
        """Return the shares of the points that have each value of the attributes."""
        copies = []
        for name, values in self.values.items():
            places: dict[Scalar | None, list[int]] = {}
            for place, value in enumerate(values):
                for one in (value or (None,)) if isinstance(value, tuple) else (value,):
                    places.setdefault(one, []).append(place)
            most = sorted(places.items(), key=lambda item: (-len(item[1]), str(item[0])))
            copies += [
                ValueCopies(name, value, len(members), self.shares(self.counts[members]))
                for value, members in most[:VALUES_MAX]
            ]
        return tuple(copies)


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """Figures of the answers to q queries at one setting, (q,) float64 each.

    counts: number of results.
    different: number of results that are no near-copies of results before them.
    to_query: mean distance of the results from the query; NaN without results.
    apart: mean distance between the results; NaN for fewer than two.
    """

    counts: Values
    different: Values
    to_query: Values
    apart: Values

    @classmethod
    def empty(cls, queries: int) -> "Answered":
        """Return figures that `put` fills in."""
        return cls(*(np.full(queries, np.nan) for _ in range(4)))

    def put(self, part: slice, *figures: Values | IntArray) -> None:
        """Store the figures of some queries, in the order of the fields."""
        fields = (self.counts, self.different, self.to_query, self.apart)
        for field, values in zip(fields, figures, strict=True):
            field[part] = values


def diagnosis_of(
    engine: "Engine",
    counted: Counted,
    answered: Mapping[str, Answered],
    random: Randomness,
    from_queries: Values,
) -> Diagnosis:
    """Return the diagnosis.

    answered: figures of the answers by setting.
    from_queries: (q,) mean distance of random points from each query.
    """
    plain, threshold = answered["plain"], engine.manifest.duplicate_threshold
    results = float(plain.counts.mean())
    effects = tuple(
        DefaultEffect(
            setting=name,
            different=float(answered[name].different.mean()),
            gain=_ratio(answered[name].apart - plain.apart, random.between),
            loss=_ratio(answered[name].to_query - plain.to_query, from_queries - plain.to_query),
        )
        for name in _SETTINGS
        if name in answered
    )
    different = float(plain.different.mean())
    return Diagnosis(
        generation=engine.generation,
        sequence=engine.sequence,
        metric=engine.metric,
        rows=counted.rows,
        sampled=len(counted.counts),
        queries=len(plain.counts),
        k=DEFAULT_K,
        results=results,
        different=different,
        is_crowded=crowds(results, different),
        shares=counted.shares(counted.counts),
        default_threshold=threshold,
        by_value=counted.by_value(),
        effects=effects,
        advice=advise(results, different, effects, threshold),
    )


def share_interval(flags: npt.NDArray[np.bool_], left: float) -> Interval:
    """Return the share of true `flags` (s,), with the 95 % interval of Wilson.

    left: the share of points that were not sampled. Without any, the interval is the share itself.
    """
    share = float(flags.mean())
    square = _DEVIATIONS**2 * left / len(flags)
    centre = (share + square / 2) / (1 + square)
    half = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


def _ratio(gained: Values, possible: Values | float) -> Interval:
    """Return the sum of `gained` (q,) as a share of the sum of `possible`, without NaN."""
    applies = ~np.isnan(gained)
    divisors = np.where(applies, possible, 0.0)
    if not divisors.any():
        return Interval(math.nan, math.nan, math.nan)
    gains = np.where(applies, gained, 0.0)
    return ratio_intervals(gains[:, np.newaxis], divisors[:, np.newaxis])[0]


def _moments(vectors: Rows, *, unit: bool) -> tuple[Values, Values]:
    """Return the mean (d,) of vectors (m, d), and their squared lengths (m,).

    unit: scale the vectors to unit length first; vectors of zeros stay as they are.
    """
    matrix, squares = _matrix(vectors).astype(np.float64), squares_of(vectors)
    weights = np.ones(len(squares))
    if unit:
        weights = np.divide(1.0, np.sqrt(squares), out=np.zeros_like(squares), where=squares > 0)
    mean = np.asarray(matrix.T @ weights, np.float64).ravel() / len(squares)
    return mean, squares * weights**2


def squares_of(vectors: Rows) -> Values:
    """Return the squared lengths (m,) of vectors (m, d)."""
    matrix = _matrix(vectors).astype(np.float64)
    product = matrix.multiply(matrix) if isinstance(vectors, SparseRows) else matrix * matrix
    return np.asarray(product.sum(axis=1), np.float64).ravel()


def _matrix(vectors: Rows) -> Any:  # noqa: ANN401  # an array, or a matrix of scipy
    return vectors.matrix if isinstance(vectors, SparseRows) else vectors
