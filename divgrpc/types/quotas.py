"""Quotas and groups: bounds on how many results of a query have each value of an attribute.

    [Quota("brand", max_each=2), Quota("source", rules={"own": (1, 3)})]

All objects of this module are immutable and hashable. `divgrpc.columns.quotas` checks them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from divgrpc.types.parameters import OnInfeasible
from divgrpc.types.records import Scalar


@dataclass(frozen=True, slots=True)
class QuotaRule:
    """Bounds on the number of results that have one value of an attribute.

    value: the value; None stands for a missing value.
    min, max: bounds from 0 to 10,000; None sets no bound.
    """

    value: Scalar | None
    min: int | None = None
    max: int | None = None


@dataclass(frozen=True, slots=True)
class Quota:
    """Bounds on the number of results that have each value of one attribute.

    A point with several values counts for each of them. A missing value is a value of its own.

    attribute: name of a declared attribute.
    max_each, min_each: bounds for each value without a rule; None sets no bound. `min_each` is
        about the values of the points that pass the filter.
    rules: bounds for single values, such as {"own": (1, 3)}: a least and a greatest number, None
        for no bound. The key None stands for a missing value. They are kept as `QuotaRule`s.
    """

    attribute: str
    max_each: int | None = field(default=None, kw_only=True)
    min_each: int | None = field(default=None, kw_only=True)
    rules: Mapping[Any, tuple[int | None, int | None]] | Iterable[QuotaRule] = field(
        default=(), kw_only=True
    )

    def __post_init__(self) -> None:
        rules = self.rules
        if isinstance(rules, Mapping):
            rules = tuple(_rule_of(value, bounds) for value, bounds in rules.items())
        # The checks of quotas refuse a value that is no collection.
        items = tuple(rules) if isinstance(rules, Iterable) else (rules,)
        object.__setattr__(self, "rules", items)


@dataclass(frozen=True, slots=True)
class GroupBy:
    """Results in groups that have the same value of an attribute.

    attribute: name of a declared attribute with at most one value per point. Points without a value
        are a group too.
    groups: greatest number of groups, 1 or more.
    per_group: greatest number of results in each group, 1 or more.
    """

    attribute: str
    groups: int
    per_group: int = 1


@dataclass(frozen=True, slots=True)
class QuotaShortfall:
    """A quota that an answer misses.

    row: number of the query row.
    attribute: name of the attribute; empty if the row has fewer than `k` results.
    value: the value that has too few results; None for a missing value.
    required, count: the least number of results that the quota asks for, and the number it got.
    """

    row: int
    attribute: str
    value: Scalar | None
    required: int
    count: int


@dataclass(frozen=True, slots=True)
class Quotas:
    """What the results of a query must meet, as `divgrpc.columns.quotas.as_quotas` has checked it.

    There is at least one quota, or groups, but not both.
    """

    quotas: tuple[Quota, ...]
    group_by: GroupBy | None = None
    on_infeasible: OnInfeasible = "fail"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the attributes."""
        if self.group_by is not None:
            return (self.group_by.attribute,)
        return tuple(quota.attribute for quota in self.quotas)


# What a caller may pass as quotas.
QuotasLike: TypeAlias = Quota | Iterable[Quota] | None
# What a caller may pass as `group_by`.
Groups: TypeAlias = GroupBy | None


def _rule_of(value: Any, bounds: Any) -> QuotaRule:  # noqa: ANN401  # checked with the quotas
    if isinstance(bounds, tuple | list) and len(bounds) == 2:
        return QuotaRule(value, *bounds)
    return QuotaRule(value, bounds)
