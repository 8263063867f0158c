"""Random small instances of quotas, and their best selections by enumeration."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from divgrpc.types.quotas import Quota, QuotaRule

Value = str | None


@dataclass(frozen=True)
class Instance:
    """Points with values, quotas, and a number of results.

    values: for each quota, the values that each point counts for; None alone is a missing value.
    """

    quotas: tuple[Quota, ...]
    values: tuple[tuple[tuple[Value, ...], ...], ...]
    k: int

    @classmethod
    def draw(cls, rng: np.random.Generator) -> "Instance":
        """Draw an instance of up to 8 points, 5 results and 3 attributes."""
        points, quotas, columns = int(rng.integers(1, 9)), [], []
        for number in range(rng.integers(1, 4)):
            values = [f"v{value}" for value in range(rng.integers(1, 4))]
            columns.append(tuple(_draw_values(rng, values, points)))
            rules = {value: _draw_bounds(rng) for value in [*values, None] if rng.random() < 0.5}
            max_each = int(rng.integers(1, 4)) if rng.random() < 0.5 else None
            min_each = 1 if rng.random() < 0.1 else None
            name = f"a{number}"
            quotas.append(Quota(name, max_each=max_each, min_each=min_each, rules=rules))
        k = min(int(rng.integers(1, 6)), points)
        return cls(tuple(quotas), tuple(columns), k)

    @property
    def points(self) -> int:
        """The number of points."""
        return len(self.values[0])

    def columns(self, order: Iterable[int]) -> list[list[Any]]:
        """Return the values of each attribute as a caller gives them, for points in an order."""
        order = list(order)
        columns = []
        for values in self.values:
            lists: list[Any] = [[value for value in values[i] if value is not None] for i in order]
            if all(len(value) <= 1 for value in values):
                lists = [values[i][0] for i in order]
            columns.append(lists)
        return columns

    def shortfall(self, picks: Sequence[int]) -> int | None:
        """Return what picks lack of least bounds and of k; None if they exceed a bound."""
        total = self.k - len(picks)
        for quota, values in zip(self.quotas, self.values, strict=True):
            counts: Counter[Any] = Counter(value for pick in picks for value in values[pick])
            rules = {rule.value: rule for rule in quota.rules if isinstance(rule, QuotaRule)}
            present = {value for point in values for value in point}
            for value in present | set(rules):
                default = QuotaRule(value, quota.min_each, quota.max_each)
                rule = rules.get(value, default)
                if rule.max is not None and counts[value] > rule.max:
                    return None
                total += max(0, (rule.min or 0) - counts[value])
        return total

    def least_shortfall(self) -> int:
        """Return the least shortfall of all selections of at most k points, by trying all."""
        selections = (
            picks for size in range(self.k + 1) for picks in combinations(range(self.points), size)
        )
        shortfalls = (self.shortfall(picks) for picks in selections)
        return min(shortfall for shortfall in shortfalls if shortfall is not None)


def _draw_values(
    rng: np.random.Generator, values: list[str], points: int
) -> list[tuple[Value, ...]]:
    if rng.random() < 0.3:
        lists = [tuple(v for v in values if rng.random() < 0.4) for _ in range(points)]
        return [items or (None,) for items in lists]
    values_of_points = rng.integers(0, len(values), points)
    return [(None,) if rng.random() < 0.15 else (values[value],) for value in values_of_points]


def _draw_bounds(rng: np.random.Generator) -> tuple[int | None, int | None]:
    least = int(rng.integers(0, 3)) if rng.random() < 0.5 else None
    most = int(rng.integers(least or 0, 4)) if rng.random() < 0.7 else None
    return least, most
