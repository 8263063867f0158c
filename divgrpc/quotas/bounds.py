"""The bounds of quotas in the form that kernels read, for given candidates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import spans
from divgrpc.kernels.quota_picks import QuotaBounds, number_values
from divgrpc.types import IntArray
from divgrpc.types.quotas import GroupBy, Quota
from divgrpc.types.records import Scalar

# The number of a missing value in a `QuotaColumn`.
MISSING_NUMBER: Final = np.iinfo(np.int64).min
_NO_ENDS: Final = np.empty(0, np.int64)
_SINGLE: Final = np.ones(1, np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class QuotaColumn:
    """The values of one attribute for m points, as numbers.

    numbers: (m,) int64, MISSING_NUMBER for a missing value. If points may have several values, the
        numbers of all points, one point after another.
    ends: (m,) end of each point's part of `numbers`; empty if each point has one value or none.
    value_of: returns the value that a number stands for, None for MISSING_NUMBER.
    """

    numbers: IntArray
    ends: IntArray
    value_of: Callable[[int], Scalar | None]

    @classmethod
    def of(cls, values: Sequence[Any]) -> "QuotaColumn":
        """Make a column of values; a point with several values has a list, tuple or set of them."""
        places: dict[tuple[type, Any], int] = {}
        known: list[Scalar] = []

        def number_of(value: Any) -> int:  # noqa: ANN401  # any scalar
            if value is None or value != value:  # noqa: PLR0124  # NaN
                return int(MISSING_NUMBER)
            place = places.setdefault(
                (bool if isinstance(value, bool) else object, value), len(known)
            )
            if place == len(known):
                known.append(value)
            return place

        def value_of(number: int) -> Scalar | None:
            return None if number == MISSING_NUMBER else known[number]

        if not any(isinstance(value, list | tuple | set | frozenset) for value in values):
            numbers = np.array([number_of(value) for value in values], np.int64)
            return cls(numbers, _NO_ENDS, value_of)
        lists = [
            list(dict.fromkeys(value)) if isinstance(value, list | tuple | set | frozenset)
            else [value] * (value is not None)
            for value in values
        ]  # fmt: skip
        flat = [number_of(item) for items in lists for item in items]
        ends = np.cumsum([len(items) for items in lists], dtype=np.int64)
        return cls(np.array(flat, np.int64), ends, value_of)

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.ends) if self.is_multi else len(self.numbers)

    @property
    def is_multi(self) -> bool:
        """Whether points may have several values."""
        return len(self.ends) > 0

    def take(self, places: npt.NDArray[np.integer[Any]]) -> "QuotaColumn":
        """Return the values of the points at these places (p,)."""
        if not self.is_multi:
            return replace(self, numbers=self.numbers[places])
        starts = np.where(places > 0, self.ends[places - 1], 0)
        widths = self.ends[places] - starts
        return QuotaColumn(self.numbers[spans(starts, widths)], np.cumsum(widths), self.value_of)

    def joined(self, other: "QuotaColumn") -> "QuotaColumn":
        """Return the values of these points and of others, whose numbers mean the same."""
        numbers, ends = np.concatenate((self.numbers, other.numbers)), self.ends
        if self.is_multi:
            ends = np.concatenate((ends, len(self.numbers) + other.ends))
        return QuotaColumn(numbers, ends, self.value_of)

    def pairs(self) -> tuple[IntArray, IntArray]:
        """Return pairs of a point and a number that it has; a missing value is a number too."""
        if not self.is_multi:
            return np.arange(len(self.numbers)), self.numbers
        widths = np.diff(self.ends, prepend=0)
        points = np.repeat(np.arange(len(widths)), np.maximum(widths, 1))
        numbers = np.full(len(points), MISSING_NUMBER)
        numbers[np.repeat(widths > 0, np.maximum(widths, 1))] = self.numbers
        order = np.lexsort((numbers, points))
        points, numbers = points[order], numbers[order]
        # A point may have a value twice.
        new = np.ones(len(points), np.bool_)
        new[1:] = (points[1:] != points[:-1]) | (numbers[1:] != numbers[:-1])
        return points[new], numbers[new]


class BoundValue(NamedTuple):
    """A value that a quota bounds: the place of the quota, the value and its number.

    The number is None for a value that no candidate has.
    """

    quota: int
    value: Scalar | None
    number: int | None


class Bounds(NamedTuple):
    """The bounds of quotas on the values of m candidates.

    arrays: the form that kernels read.
    quotas: the quotas.
    columns: their columns.
    numbers: for each quota, the numbers of the values that candidates have, ascending.
    first: for each quota, the first of the values in `arrays`. These are the values of `numbers`,
        and then those that no candidate has.
    absent: for each quota, the values with a least number of results that no candidate has.
    available: (n,) number of candidates that count for each value.
    """

    arrays: QuotaBounds
    quotas: tuple[Quota, ...]
    columns: tuple[QuotaColumn, ...]
    numbers: tuple[IntArray, ...]
    first: tuple[int, ...]
    absent: tuple[tuple[Scalar | None, ...], ...]
    available: IntArray

    @property
    def is_matroid(self) -> bool:
        """Whether the bounds of single values decide alone whether picks can be completed."""
        return len(self.quotas) == 1 and not self.columns[0].is_multi

    @property
    def has_lows(self) -> bool:
        """Whether a value may have a least number of results."""
        return any(quota.min_each or quota.rules for quota in self.quotas)

    def counts_of(self, places: IntArray) -> IntArray:
        """Return how many of the candidates at these places count for each value, (n,)."""
        arrays, size = self.arrays, len(self.arrays.lows)
        if len(arrays.single) == 1 and arrays.single[0]:
            return np.bincount(arrays.values[places], minlength=size)
        flags = np.zeros(len(arrays.starts) - 1, np.bool_)
        flags[places] = True
        return np.bincount(arrays.values[np.repeat(flags, np.diff(arrays.starts))], minlength=size)

    def take(self, places: IntArray) -> "Bounds":
        """Return the bounds for the candidates at these places (p,)."""
        arrays = self.arrays
        widths = np.diff(arrays.starts)[places]
        starts = np.concatenate(([0], np.cumsum(widths)))
        values = arrays.values[spans(arrays.starts[places], widths)]
        columns = tuple(column.take(places) for column in self.columns)
        return self._replace(
            arrays=arrays._replace(starts=starts, values=values),
            columns=columns,
            available=np.bincount(values, minlength=len(arrays.lows)),
        )

    def value(self, place: int) -> BoundValue:
        """Return the value at a place of `arrays.lows`."""
        quota = max(q for q, first in enumerate(self.first) if first <= place)
        offset = place - self.first[quota]
        numbers = self.numbers[quota]
        if offset < len(numbers):
            number = int(numbers[offset])
            return BoundValue(quota, self.columns[quota].value_of(number), number)
        return BoundValue(quota, self.absent[quota][offset - len(numbers)], None)

    @classmethod
    def of(
        cls,
        quotas: tuple[Quota, ...],
        columns: tuple[QuotaColumn, ...],
        k: int,
        group_by: GroupBy | None = None,
    ) -> "Bounds":
        """Return the bounds for candidates with these columns, one for each quota.

        `k`: number of results. `group_by`: groups whose attribute is the one of the only quota.
        """
        parts = [_part(*pair, k) for pair in zip(quotas, columns, strict=True)]
        groups = 0 if group_by is None else group_by.groups
        if len(parts) == 1 and not columns[0].is_multi:
            return cls._of_one(quotas, columns, parts[0], groups)
        sizes = [len(part.lows) for part in parts]
        first = [0, *np.cumsum(sizes).tolist()]
        points = np.concatenate([part.points for part in parts])
        values = np.concatenate([p.values + f for p, f in zip(parts, first, strict=False)])
        if len(parts) > 1:
            order = np.argsort(points, kind="stable")
            points, values = points[order], values[order]
        starts = np.searchsorted(points, np.arange(len(columns[0]) + 1))
        available = np.concatenate([part.available for part in parts])
        arrays = QuotaBounds(
            starts=starts.astype(np.int64),
            values=values.astype(np.int64),
            lows=np.concatenate([part.lows for part in parts]),
            highs=np.concatenate([part.highs for part in parts]),
            attributes=np.repeat(np.arange(len(parts)), sizes),
            single=np.array([not column.is_multi for column in columns], np.uint8),
            groups=groups,
        )
        numbers, absent = tuple(p.numbers for p in parts), tuple(p.absent for p in parts)
        return cls(arrays, quotas, columns, numbers, tuple(first[:-1]), absent, available)

    @classmethod
    def _of_one(
        cls, quotas: tuple[Quota, ...], columns: tuple[QuotaColumn, ...], part: "_Part", groups: int
    ) -> "Bounds":
        """Return the bounds of one quota on points that count for one value each, in less time."""
        arrays = QuotaBounds(
            starts=np.arange(len(part.values) + 1),
            values=part.values,
            lows=part.lows,
            highs=part.highs,
            attributes=np.zeros(len(part.lows), np.int64),
            single=_SINGLE,
            groups=groups,
        )
        return cls(arrays, quotas, columns, (part.numbers,), (0,), (part.absent,), part.available)


class _Part(NamedTuple):
    """The bounds of one quota; see `Bounds` and `QuotaBounds`."""

    points: IntArray
    values: IntArray
    lows: IntArray
    highs: IntArray
    numbers: IntArray
    absent: tuple[Scalar | None, ...]
    available: IntArray


def _part(quota: Quota, column: QuotaColumn, k: int) -> _Part:
    points, of_points = column.pairs()
    numbers, values, available = number_values(of_points)
    lows = np.full(len(numbers), quota.min_each or 0)
    highs = np.full(len(numbers), k if quota.max_each is None else quota.max_each)
    absent: list[Scalar | None] = []
    absent_lows: list[int] = []
    if quota.rules:
        places = {key_of(column.value_of(int(n))): place for place, n in enumerate(numbers)}
        for rule in quota.rules:
            place = places.get(key_of(rule.value))
            if place is not None:
                lows[place] = rule.min or 0
                highs[place] = k if rule.max is None else rule.max
            elif rule.min:
                absent.append(rule.value)
                absent_lows.append(rule.min)
        lows = np.concatenate((lows, np.array(absent_lows, np.int64)))
        highs = np.concatenate((highs, np.full(len(absent), k)))
        available = np.concatenate((available, np.zeros(len(absent), np.int64)))
    return _Part(points, values, lows, highs, numbers, tuple(absent), available)


def key_of(value: Scalar | None) -> tuple[bool, Scalar | None]:
    """Return a key by which values are equal if an attribute cannot tell them apart: 1 equals 1.0.

    True does not equal 1.
    """
    return isinstance(value, bool), value
