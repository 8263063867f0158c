"""The methods of Table 1 as grids for Evaluate, and the rows of their results.

A stage defines the points that a method may choose from:

all points                all points with exact scores; the paper's NH
one exact pass            the exact nearest points, as many as the default candidates_limit
hashed                    points of the search that Build chose (scan if Build chose `exact`)
hashed, limits by folds   the same, with limits chosen together with the diversity
tuned buckets             points of the buckets that Build tuned, with the default limits
tuned buckets, no limits  all points of the buckets that Build tuned
home buckets, 10 x 10     all points of the query's bucket in each of 10 tables of 10 bits; the
                          paper's Algorithm 1
home buckets by folds     the same; bits, tables and epsilon are chosen with the diversity

The last two stages are the paper's own. The buckets that Build tunes have longer keys, and a query
looks up hundreds of them.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, NamedTuple

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
HASH_SEARCH: Final = "hashed"
HASH_BY_FOLDS: Final = "hashed, limits by folds"
TUNED_BUCKETS: Final = "tuned buckets"
BARE: Final = "tuned buckets, no limits"
HOME: Final = "home buckets, 10 x 10"
HOME_BY_FOLDS: Final = "home buckets by folds"

FAMILIES: Final[dict[str, HashFamily]] = {"LSH-Div": "lsh_div", "LSH-SDiv": "lsh_sdiv"}
# The paper's figures of a result list.
FIGURES: Final = ("precision", "subtopic_recall", "normalised_entropy", "h_score")
TIME: Final = "microseconds"
# Diversity at which greedy is compared with and without limits, high enough to pick far points.
HIGH_DIAL: Final = 0.7

_DIALS: Final = (0.1, 0.25, 0.5)
_QP_DIALS: Final = (0.01, 0.03, 0.1)
# The useful range of the diversity depends on the method, because each method weighs other terms.
_METHODS: Final[dict[str, dict[str, Any]]] = {
    "NN": {"selectors": ["nearest"], "diversities": [0.0]},
    "Rerank": {"selectors": ["rerank"], "diversities": [0.05, 0.15, 0.7]},
    "Greedy": {"selectors": ["greedy"], "variants": ["corrected"], "diversities": _DIALS},
    "MMR": {"selectors": ["mmr"], "diversities": _DIALS},
    "QP-Rel": {"selectors": ["qp_relax"], "diversities": _QP_DIALS},
    "QP-Rel, top k": {
        "selectors": ["qp_relax"],
        "roundings": ["top_k"],
        "diversities": _QP_DIALS,
    },
    "Greedy, printed": {
        "selectors": ["greedy"],
        "variants": ["printed"],
        "diversities": [0.0, 0.1, 0.3],
    },
    "Greedy, marginal": {
        "selectors": ["greedy"],
        "variants": ["marginal"],
        "diversities": [0.1, 0.2, 0.4],
    },
    "DPP": {"selectors": ["dpp"], "diversities": [0.3, 0.5, 0.8]},
    "Max-sum": {"selectors": ["max_sum"], "diversities": [0.05, 0.1, 0.25]},
}
_QP: Final = ("QP-Rel", "QP-Rel, top k")
_LIMITS: Final[dict[str, list[tuple[int | None, int | None]]]] = {
    ALL: [(0, 0)],
    BARE: [(0, 0)],
    HOME: [(0, 0)],
    HASH_BY_FOLDS: [(400, 100), (800, 200), (3_200, 800)],
}
_SEARCHES: Final[dict[str, Search]] = {
    ALL: "exact",
    ONE_EXACT: "exact",
    TUNED_BUCKETS: "tables",
    BARE: "tables",
    HOME: "tables",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One method at one stage.

    The diversity is `dial`. If it is None, the method's own diversities are tried.
    """

    method: str
    stage: str
    dial: float | None = None

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
    *(Case(method, ALL) for method in _METHODS if method not in ("Rerank", "Max-sum")),
    *(Case(method, ONE_EXACT) for method in _METHODS if method != "NN"),
)
HASHING: Final = (
    *(Case(method, HASH_SEARCH) for method in _METHODS),
    Case("Greedy", HASH_BY_FOLDS),
    *(Case(method, TUNED_BUCKETS) for method in ("NN", "Rerank", "Greedy", "MMR", "QP-Rel")),
    *(Case(method, BARE) for method in ("NN", "Rerank", "Greedy", "MMR")),
    *(Case("Greedy", stage, dial=HIGH_DIAL) for stage in (TUNED_BUCKETS, BARE)),
)
# The methods of the paper's literal mode.
HOME_METHODS: Final = ("NN", "Rerank", "Greedy", "Greedy, printed", "MMR", *_QP)


class Answer(NamedTuple):
    """The figures of one setting, or of a choice among settings, in a form for JSON.

    `values` has the figures (nq,) of each query, `short` the number of lists with fewer than k
    results, and `microseconds` the median time.
    """

    parameters: dict[str, Any]
    values: dict[str, Any]
    short: int
    microseconds: float

    @classmethod
    def of(cls, row: EvaluateRow) -> "Answer":
        """Return the figures of a row that has the values of every query."""
        values = {name: row.values[name] for name in (*FIGURES, TIME)}
        return cls(asdict(row.parameters), values, row.short, row.microseconds.p50)

    @property
    def k(self) -> int:
        """The number of results that were asked for."""
        return int(self.parameters["k"])


@dataclass(frozen=True, eq=False)
class Row:
    """The result of a method at a stage with one hash family, at one k on one data set.

    `family` is "NH" without hashing. `parameters` are the best parameters over all queries with the
    first hash seed. In the paper's literal mode, `code` gives the numbers of bits and tables;
    otherwise it is empty. `draws` (seeds, nq) has the figures and the time of each query for each
    hash seed. `values` (nq,) has the means over the seeds. `categories` (nq,) has the category that
    each query asks for. `figures` has the means of `values`, with intervals by categories.
    `h_seeds` has the mean h of each seed. `short` counts the lists with fewer than k results over
    all seeds. `microseconds` is the median over seeds of the median over queries.
    """

    data: str
    family: str
    case: Case
    parameters: EffectiveParameters
    draws: dict[str, Values]
    categories: IntArray
    short: int
    microseconds: float
    code: str = ""
    values: dict[str, Values] = field(init=False)
    h_seeds: tuple[float, ...] = field(init=False)
    figures: dict[str, Interval] = field(init=False)

    def __post_init__(self) -> None:
        values = {name: draws.mean(axis=0) for name, draws in self.draws.items()}
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "h_seeds", tuple(map(mean, self.draws["h_score"])))
        columns = np.stack([values[name] for name in FIGURES], axis=1)
        intervals = mean_intervals(columns, self.categories)
        object.__setattr__(self, "figures", dict(zip(FIGURES, intervals, strict=True)))

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

    def shown(self) -> dict[str, Any]:
        """Return the figures without those of each hash seed and query."""
        names = (item.name for item in fields(self) if item.name not in {"draws", "values"})
        return {name: getattr(self, name) for name in names}


def rows_of(  # noqa: PLR0917  # one argument for each field of a row
    data: str,
    family: str,
    case: Case,
    seeds: Sequence[Sequence[Answer]],
    categories: IntArray,
    code: str = "",
) -> list[Row]:
    """Return a row for each k. `seeds` has the answers, one for each k, of each hash seed."""
    rows = []
    for answers in zip(*seeds, strict=True):
        columns = {
            name: np.array([answer.values[name] for answer in answers], np.float64)
            for name in (*FIGURES, TIME)
        }
        rows.append(
            Row(
                data=data,
                family=family,
                case=case,
                parameters=EffectiveParameters(**answers[0].parameters),
                draws=columns,
                categories=categories,
                short=sum(answer.short for answer in answers),
                microseconds=float(np.median([answer.microseconds for answer in answers])),
                code=code,
            )
        )
    return rows


def common_draws(rows: Sequence[Row], name: str) -> tuple[Values, IntArray]:
    """Return a figure (rows, seeds, nq) of the seeds that all rows have, and the categories (nq,).

    A row of a single seed, such as one without hashing, counts as equal for all seeds.
    """
    seeds = min((len(row.h_seeds) for row in rows if len(row.h_seeds) > 1), default=1)
    shape = seeds, len(rows[0].categories)
    draws = [np.broadcast_to(row.draws[name][:seeds], shape) for row in rows]
    return np.stack(draws), rows[0].categories
