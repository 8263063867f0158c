"""The points that a query within quotas may return, and their values of some attributes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from divgrpc.columns.filters import Flags
from divgrpc.columns.reader import ValueNumbers
from divgrpc.quotas.bounds import Bounds, QuotaColumn
from divgrpc.search.passing import PassingRows
from divgrpc.types import IntArray
from divgrpc.types.filters import Condition, Exists, Filter, Match
from divgrpc.types.quotas import Quota, Quotas
from divgrpc.types.records import Scalar


@dataclass(frozen=True, slots=True, eq=False)
class Population:
    """Points with their values of the attributes of some quotas.

    columns: for each quota, the values of m points.
    keys: (m,) ids of these points, or keys of their text ids.
    counts: (m,) number of points that each of them stands for: all have the same values, and no
        lesser key.
    select: returns the points that those with flags (m,) stand for.
    """

    columns: tuple[QuotaColumn, ...]
    keys: IntArray
    counts: IntArray
    select: Callable[[Flags], PassingRows]

    @classmethod
    def of_rows(
        cls,
        quotas: Sequence[Quota],
        every: PassingRows,
        numbers: Callable[[str, IntArray], ValueNumbers],
        keys_of: Callable[[IntArray], IntArray],
    ) -> "Population":
        """Return the points in `every`, each of which stands for itself.

        numbers: returns the values of an attribute for given rows. keys_of: returns their keys.
        """
        rows = np.flatnonzero(every.flags)

        def select(flags: Flags) -> PassingRows:
            selection = np.zeros(len(every.flags), np.bool_)
            selection[rows[flags]] = True
            return PassingRows(selection, order=every.order)

        columns = tuple(QuotaColumn(*numbers(quota.attribute, rows)) for quota in quotas)
        return cls(columns, keys_of(rows), np.ones(len(rows), np.int64), select)

    def without_forbidden(self, quotas: Quotas) -> PassingRows:
        """Return the points that have no value that the quotas, those of `columns`, forbid."""
        arrays = Bounds.of(quotas.quotas, self.columns, 1).arrays
        is_forbidden = (arrays.highs == 0)[arrays.values]
        return self.select(~np.logical_or.reduceat(is_forbidden, arrays.starts[:-1]))


def condition_of(attribute: str, values: Sequence[Scalar | None]) -> Condition:
    """Return the condition that an attribute has one of some values, None for a missing value."""
    present = tuple(value for value in values if value is not None)
    if len(present) == len(values):
        return Match(attribute, present)
    missing = Filter(must_not=(Exists(attribute),))
    return Filter(should=(Match(attribute, present), missing)) if present else missing
