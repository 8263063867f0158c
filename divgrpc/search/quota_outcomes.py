"""What picks within quotas lack, and the groups that they are in."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from divgrpc.columns.quotas import rules_of
from divgrpc.errors import ConditionFailedError
from divgrpc.parameters import LIMITS
from divgrpc.quotas.bounds import Bounds, QuotaColumn, key_of
from divgrpc.search.quota_selection import QuotaPicks
from divgrpc.types.quotas import Quota, QuotaRule, QuotaShortfall
from divgrpc.types.records import Scalar

# Maximum number of shortfalls that a message shows.
_SHORTFALLS_SHOWN: Final = 8


class GroupColumns(NamedTuple):
    """The groups of the results of one query.

    values: value of each group, in the order of first picks. sizes: number of results of each.
    """

    values: tuple[Scalar | None, ...]
    sizes: tuple[int, ...]


def with_all_values(quota: Quota, column: QuotaColumn) -> Quota:
    """Return a quota that has a rule for each value in a column if it has a least number for each.

    Of more values than an answer can have results, there are rules for so many alone, because these
    make the quota impossible to meet.
    """
    if not quota.min_each:
        return quota
    numbers = np.unique(column.pairs()[1])[: LIMITS["k_max"] + 1]
    with_rule = {key_of(rule.value) for rule in quota.rules}
    values = [
        value for value in map(column.value_of, numbers.tolist()) if key_of(value) not in with_rule
    ]
    further = (QuotaRule(value, quota.min_each, quota.max_each) for value in values)
    return replace(quota, rules=(*quota.rules, *further))


def in_groups(bounds: Bounds, picks: QuotaPicks) -> tuple[QuotaPicks, GroupColumns]:
    """Return picks, at least one, in the order of their groups, and the groups."""
    values = bounds.arrays.values[picks.places]
    _, firsts, group = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(firsts[group], kind="stable")
    sizes = np.bincount(group)[np.argsort(firsts)]
    names = tuple(bounds.value(int(values[first])).value for first in np.sort(firsts))
    ordered = replace(
        picks, places=picks.places[order], values=picks.values[order], order=np.argsort(order)
    )
    return ordered, GroupColumns(names, tuple(sizes.tolist()))


def shortfalls_of_nothing(quotas: Sequence[Quota], k: int) -> list[QuotaShortfall]:
    """Return what an answer without results lacks of k and of least bounds, with the row 0."""
    lacks = [QuotaShortfall(0, "", None, k, 0)] if k else []
    for quota in quotas:
        lacks += [
            QuotaShortfall(0, quota.attribute, rule.value, rule.min, 0)
            for rule in rules_of(quota)
            if rule.min
        ]
    return lacks


def shortfalls_of(bounds: Bounds, picks: QuotaPicks, k: int) -> list[QuotaShortfall]:
    """Return what picks lack of k and of least bounds, with the row 0."""
    shortfalls = []
    if len(picks.places) < k:
        shortfalls.append(QuotaShortfall(0, "", None, k, len(picks.places)))
    counts, lows = bounds.counts_of(picks.places), bounds.arrays.lows
    for place in np.flatnonzero(counts < lows).tolist():
        value = bounds.value(place)
        name, count = bounds.quotas[value.quota].attribute, int(counts[place])
        shortfalls.append(QuotaShortfall(0, name, value.value, int(lows[place]), count))
    return shortfalls


def infeasible(shortfalls: Sequence[QuotaShortfall]) -> ConditionFailedError:
    """Return the error for quotas that nothing meets."""
    words = "; ".join(map(_describe, shortfalls[:_SHORTFALLS_SHOWN]))
    remedy = "change the quotas, or set on_infeasible to relax"
    return ConditionFailedError("quotas", f"no results meet the quotas: {words}; {remedy}")


def _describe(lack: QuotaShortfall) -> str:
    """Return a shortfall in words."""
    if not lack.attribute:
        return f"{lack.count} of {lack.required} results are possible"
    value = "no value" if lack.value is None else f"{lack.value!r:.80}"
    return f"{lack.attribute} = {value} has {lack.count} of at least {lack.required}"
