"""Filters of points whose values of some attributes matter to quotas."""

from collections.abc import Sequence

import numpy as np

from divgrpc.quotas.bounds import Bounds, QuotaColumn
from divgrpc.search.quota_population import condition_of
from divgrpc.types.filters import Condition, Exists, Filter, Others
from divgrpc.types.quotas import Quota
from divgrpc.types.records import Scalar


def same_values(quotas: Sequence[Quota], columns: Sequence[QuotaColumn], place: int) -> Filter:
    """Return the filter of the points that have exactly the values of one point.

    columns: for each quota, all values of its attribute that any point has. place: the place of the
    point in them.
    """
    must: list[Condition] = []
    must_not: list[Condition] = []
    for quota, column in zip(quotas, columns, strict=True):
        numbers = column.take(np.array([place])).pairs()[1]
        values = [column.value_of(number) for number in numbers.tolist()]
        must += [condition_of(quota.attribute, [value]) for value in values]
        if column.is_multi and values != [None]:
            must_not.append(Others(quota.attribute, _present(values)))
    return Filter(tuple(must), (), tuple(must_not))


def no_forbidden(quotas: tuple[Quota, ...], columns: tuple[QuotaColumn, ...]) -> Filter:
    """Return the filter of the points without a value that quotas forbid.

    columns: for each quota, all values of its attribute that any point has.
    """
    bounds = Bounds.of(quotas, columns, 1)
    must: list[Condition] = []
    must_not: list[Condition] = []
    values = [bounds.value(place) for place in range(len(bounds.arrays.lows))]
    for number, (quota, column) in enumerate(zip(quotas, columns, strict=True)):
        places = [place for place, value in enumerate(values) if value.quota == number]
        forbidden = [values[p].value for p in places if not bounds.arrays.highs[p]]
        allowed = [values[p].value for p in places if bounds.arrays.highs[p]]
        # The fewer ones have rules of the caller, so that they fit a filter.
        if len(forbidden) <= len(allowed):
            must_not += [condition_of(quota.attribute, forbidden)] if forbidden else []
        elif not column.is_multi:
            must.append(condition_of(quota.attribute, allowed))
        else:
            must_not.append(Others(quota.attribute, _present(allowed)))
            must_not += [~Exists(quota.attribute)] if None in forbidden else []
    return Filter(tuple(must), (), tuple(must_not))


def _present(values: Sequence[Scalar | None]) -> tuple[Scalar, ...]:
    return tuple(value for value in values if value is not None)
