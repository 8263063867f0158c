"""The methods of Table 1 as grids for Evaluate, and the rows of their results.

A stage defines the points that a method may choose from:

all points                all points with exact scores; the paper's NH
one exact pass            the exact nearest points, as many as the default candidates_limit
hashed                    points of the search that Build chose (scan if Build chose `exact`)
hashed, limits by folds   the same, with limits chosen together with the diversity
tables                    points of the paper's buckets, with the default limits
tables, no limits         all points of the paper's buckets; the paper's Algorithm 1
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from divgrpc.metrics import Values, mean, mean_intervals
from divgrpc.types import (
    EffectiveParameters,
    EvaluateRow,
    HashFamily,
    IntArray,
    Interval,
    Search,
)
from divgrpc_lab.table1.paper import KS

ALL: Final = "all points"
ONE_EXACT: Final = "one exact pass"
HASHED: Final = "hashed"
FOLDED: Final = "hashed, limits by folds"
TABLES: Final = "tables"
BARE: Final = "tables, no limits"

FAMILIES: Final[dict[str, HashFamily]] = {"LSH-Div": "lsh_div", "LSH-SDiv": "lsh_sdiv"}
# The paper's figures of a result list.
FIGURES: Final = ("precision", "subtopic_recall", "normalised_entropy", "h_score")
# Diversity at which greedy is compared with and without limits, high enough to pick far points.
HIGH_DIAL: Final = 0.7
# Number of hash seeds of a method that is not measured with every seed.
_SOME_SEEDS: Final = 2

_DIALS: Final = (0.1, 0.25, 0.5)
# The useful range of the diversity depends on the method, because each weighs different terms. See
# the selectors' table.
_METHODS: Final[dict[str, dict[str, Any]]] = {
    "NN": {"selectors": ["nearest"], "diversities": [0.0]},
    "Rerank": {"selectors": ["rerank"], "diversities": [0.05, 0.15, 0.7]},
    "Greedy": {"selectors": ["greedy"], "variants": ["corrected"], "diversities": _DIALS},
    "MMR": {"selectors": ["mmr"], "diversities": _DIALS},
    "QP-Rel": {"selectors": ["qp_relax"], "diversities": [0.01, 0.03, 0.1]},
    "Greedy, marginal": {
        "selectors": ["greedy"],
        "variants": ["marginal"],
        "diversities": [0.1, 0.2, 0.4],
    },
    "DPP": {"selectors": ["dpp"], "diversities": [0.3, 0.5, 0.8]},
    "Max-sum": {"selectors": ["max_sum"], "diversities": [0.05, 0.1, 0.25]},
}
_LIMITS: Final[dict[str, list[tuple[int | None, int | None]]]] = {
    ALL: [(0, 0)],
    BARE: [(0, 0)],
    FOLDED: [(400, 100), (800, 200), (3_200, 800)],
}
_SEARCHES: Final[dict[str, Search]] = {
    ALL: "exact",
    ONE_EXACT: "exact",
    TABLES: "tables",
    BARE: "tables",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One method at one stage.

    The diversity is `dial`. If it is None, the method's own diversities are tried.

    `few` says that the method is too slow for all queries. `every_seed` says that the method is
    measured with every hash seed, not only with the first two.
    """

    method: str
    stage: str
    few: bool = False
    every_seed: bool = True
    dial: float | None = None

    def seeds(self, count: int) -> int:
        """Return the number of hash seeds that the method is measured with, out of `count`."""
        return count if self.every_seed else min(count, _SOME_SEEDS)

    def grid(self, search: Search) -> dict[str, Any]:
        """Return the grid for Evaluate; `search` is used at the hashed stages."""
        dial = {} if self.dial is None else {"diversities": [self.dial]}
        return {
            **_METHODS[self.method],
            **dial,
            "searches": [_SEARCHES.get(self.stage, search)],
            "limits": _LIMITS.get(self.stage, [(None, None)]),
            "ks": list(KS),
            "keep_duplicates": True,  # the paper has no near-copies
        }


WITHOUT_HASHING: Final = (
    *(Case(method, ALL) for method in ("NN", "Greedy", "MMR", "DPP")),
    *(Case(method, ALL, few=True) for method in ("NN", "QP-Rel")),
    *(Case(method, ONE_EXACT) for method in _METHODS if method not in ("NN", "QP-Rel")),
    Case("QP-Rel", ONE_EXACT, few=True),
)
HASHING: Final = (
    *(Case(method, HASHED) for method in ("NN", "Rerank", "Greedy", "MMR")),
    Case("QP-Rel", HASHED, few=True),
    Case("Greedy", FOLDED),
    *(Case(method, TABLES) for method in ("NN", "Greedy")),
    *(Case(method, HASHED, every_seed=False) for method in ("Greedy, marginal", "DPP", "Max-sum")),
    *(Case(method, TABLES, every_seed=False) for method in ("Rerank", "MMR")),
    Case("QP-Rel", TABLES, few=True, every_seed=False),
    *(Case(method, BARE, every_seed=False) for method in ("NN", "Rerank", "Greedy", "MMR")),
    *(Case("Greedy", stage, every_seed=False, dial=HIGH_DIAL) for stage in (TABLES, BARE)),
)


@dataclass(frozen=True, eq=False)
class Row:
    """The result of a method at a stage with one hash family, at one k on one data set.

    `family` is "NH" without hashing. `parameters` are the best parameters over all queries with the
    first hash seed. `values` has the figures (nq,) of each query, averaged over the hash seeds.
    `categories` (nq,) has the category that each query asks for. `figures` has the means of
    `values`, with intervals over categories. `h_seeds` has the mean h of each seed. `short` counts
    the lists with fewer than k results over all seeds. `microseconds` is the median over seeds of
    the median over queries.
    """

    data: str
    family: str
    case: Case
    parameters: EffectiveParameters
    values: dict[str, Values]
    categories: IntArray
    h_seeds: tuple[float, ...]
    short: int
    microseconds: float
    figures: dict[str, Interval] = field(init=False)

    def __post_init__(self) -> None:
        figures = {name: interval(column, self.categories) for name, column in self.values.items()}
        object.__setattr__(self, "figures", figures)

    @property
    def cell(self) -> tuple[str, int]:
        """The data set and k."""
        return self.data, self.parameters.k

    @property
    def name(self) -> str:
        """The row within its cell, in words."""
        return f"{self.case.method}, {self.family}, {self.case.stage}"

    @property
    def h(self) -> float:
        """The mean h over queries."""
        return self.figures["h_score"].value


def interval(values: Values, categories: IntArray) -> Interval:
    """Return the mean of `values` (nq,) with its 95 % interval over categories (nq,).

    Queries of one category are learned from halves of the same pool and are similar to each other,
    so the bootstrap draws whole categories. With few categories the interval is too narrow.
    """
    return mean_intervals(category_means(values, categories)[:, None])[0]


def category_means(values: Values, categories: IntArray) -> Values:
    """Return the mean of `values` (nq,) in each category, in ascending order of categories."""
    return np.array([mean(values[categories == item]) for item in np.unique(categories)])


def rows_of(
    data: str,
    family: str,
    case: Case,
    answers: Sequence[Sequence[EvaluateRow]],
    categories: IntArray,
) -> list[Row]:
    """Return a row for each k, from the choices by folds.

    `answers` has the rows of one evaluation for each hash seed.
    """
    choices = [[row for row in rows if row.by_fold] for rows in answers]
    return [
        Row(
            data=data,
            family=family,
            case=case,
            parameters=seeds[0].parameters,
            values={name: np.mean([row.values[name] for row in seeds], axis=0) for name in FIGURES},
            categories=categories,
            h_seeds=tuple(mean(row.values["h_score"]) for row in seeds),
            short=sum(row.short for row in seeds),
            microseconds=float(np.median([row.microseconds.p50 for row in seeds])),
        )
        for seeds in zip(*choices, strict=True)
    ]
