"""What Table 1 asks of a server, as grids for Evaluate, and the rows that come back.

A stage says which points a method may choose from:

all points                everything, scored exactly: the paper's NH
one exact pass            the nearest of everything, as many as candidates_limit has by default
hashed                    what Build's own search finds (a scan where it chose `exact`), by default
hashed, limits by folds   the same, the limits chosen with the dial
tables                    the paper's buckets, limits by default
tables, no limits         the same, and the method sees all that the buckets hold: Algorithm 1
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from divgrpc.metrics import Values, mean, mean_intervals
from divgrpc.types import EvaluateRow, HashFamily, IntArray, Interval, Search
from divgrpc_lab.table1.printed import KS

ALL: Final = "all points"
ONE_EXACT: Final = "one exact pass"
HASHED: Final = "hashed"
FOLDED: Final = "hashed, limits by folds"
TABLES: Final = "tables"
BARE: Final = "tables, no limits"

FAMILIES: Final[dict[str, HashFamily]] = {"LSH-Div": "lsh_div", "LSH-SDiv": "lsh_sdiv"}
# Of the paper's figures for a result list.
FIGURES: Final = ("precision", "subtopic_recall", "normalised_entropy", "h_score")
# Of those that claims are judged by, query by query.
KEPT: Final = ("precision", "h_score")
_DIGITS: Final = 5
# What the greedy methods are asked at without limits: high enough for far points to be picked.
HIGH_DIAL: Final = 0.7

_DIALS: Final = (0.1, 0.25, 0.5)
# Where a dial lies that is worth trying depends on what a method weighs: see the selectors' table.
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
_EXACT: Final = (ALL, ONE_EXACT)


@dataclass(frozen=True, slots=True)
class Asking:
    """One method at one stage; `few`: too slow for all queries; `every_seed` of the hash or some.

    `dials` in place of the method's own.
    """

    method: str
    stage: str
    few: bool = False
    every_seed: bool = True
    dials: Sequence[float] | None = None

    def grid(self, search: Search) -> dict[str, Any]:
        """Return what Evaluate is told; `search` is what a hashed stage takes."""
        axes = dict(_METHODS[self.method])
        if self.dials is not None:
            axes["diversities"] = list(self.dials)
        if self.stage in _EXACT:
            search = "exact"
        elif self.stage in (TABLES, BARE):
            search = "tables"
        limits = _LIMITS.get(self.stage, [(None, None)])
        # The paper knows no near-copies.
        fixed = {"ks": list(KS), "keep_duplicates": True}
        return {**axes, "searches": [search], "limits": limits, **fixed}


WITHOUT_HASHING: Final = (
    *(Asking(method, ALL) for method in ("NN", "Greedy", "MMR", "DPP")),
    *(Asking(method, ALL, few=True) for method in ("NN", "QP-Rel")),
    *(Asking(m, ONE_EXACT) for m in _METHODS if m not in ("NN", "QP-Rel")),
    Asking("QP-Rel", ONE_EXACT, few=True),
)
HASHING: Final = (
    *(Asking(method, HASHED) for method in ("NN", "Rerank", "Greedy", "MMR")),
    Asking("QP-Rel", HASHED, few=True),
    Asking("Greedy", FOLDED),
    *(Asking(method, TABLES) for method in ("NN", "Greedy")),
    *(Asking(m, HASHED, every_seed=False) for m in ("Greedy, marginal", "DPP", "Max-sum")),
    *(Asking(method, TABLES, every_seed=False) for method in ("Rerank", "MMR")),
    Asking("QP-Rel", TABLES, few=True, every_seed=False),
    *(Asking(method, BARE, every_seed=False) for method in ("NN", "Rerank", "Greedy", "MMR")),
    *(Asking("Greedy", s, every_seed=False, dials=(HIGH_DIAL,)) for s in (TABLES, BARE)),
)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A method at a stage with one family of hashes, at one k of one data set.

    `family` is "NH" without hashing. `dial`, `hash_limit` and `candidates_limit` are those best for
    all queries with the first seed; `fixed` says that there was no choice of the dial. The figures
    have their 95 % intervals over categories (`interval`); with several hash seeds a query's figure
    is the mean over them, and `h_seeds` has each seed's mean h. `microseconds` is the median over
    queries, and over the seeds' medians. `values` has each query's P and h, by name, to 5 digits,
    and `categories` (nq,) which category it asks for.
    """

    data: str
    method: str
    family: str
    stage: str
    k: int
    search: Search
    dial: float
    fixed: bool
    hash_limit: int
    candidates_limit: int
    queries: int
    few: bool
    short: int
    figures: dict[str, Interval]
    h_seeds: tuple[float, ...]
    microseconds: float
    values: dict[str, Values]
    categories: IntArray

    @property
    def name(self) -> str:
        """The row within its data set and k, in words."""
        return f"{self.method}, {self.family}, {self.stage}"

    @property
    def h(self) -> Interval:
        """The mean over queries of each query's h."""
        return self.figures["h_score"]

    def plain(self) -> dict[str, Any]:
        """Return all but the categories for JSON, each figure under its name."""
        apart = ("figures", "categories")
        shown = {name: getattr(self, name) for name in self.__slots__ if name not in apart}
        return shown | self.figures


def interval(values: Values, categories: IntArray) -> Interval:
    """Return the mean of `values` (nq,) with its 95 % interval over categories (nq,).

    Queries of one category are learned from halves of one pool and are alike, so whole categories
    are drawn: it is a bootstrap over the categories' means, of as many queries each. With few
    categories it is too narrow.
    """
    return mean_intervals(by_category(values, categories)[:, None])[0]


def by_category(values: Values, categories: IntArray) -> Values:
    """Return the mean of `values` (nq,) in each category, in their order."""
    return np.array([mean(values[categories == item]) for item in np.unique(categories)])


def combined(
    data: str,
    family: str,
    asking: Asking,
    seeds: Sequence[list[EvaluateRow]],
    categories: IntArray,
) -> Row:
    """Make a row of what folds chose at one k with each hash seed, the first seed's first.

    `categories` (nq,) are those that the queries ask for.
    """
    first, *_ = chosen = [next(row for row in rows if row.by_fold) for rows in seeds]
    tables = {
        name: np.asarray(np.mean([row.values[name] for row in chosen], axis=0)).round(_DIGITS)
        for name in FIGURES
    }
    used = first.parameters
    return Row(
        data=data,
        method=asking.method,
        family=family,
        stage=asking.stage,
        k=used.k,
        search=used.search,
        dial=used.diversity,
        fixed=asking.dials is not None,
        hash_limit=used.hash_limit,
        candidates_limit=used.candidates_limit,
        queries=first.queries,
        few=asking.few,
        short=sum(row.short for row in chosen),
        figures={name: interval(values, categories) for name, values in tables.items()},
        h_seeds=tuple(mean(row.values["h_score"]) for row in chosen),
        microseconds=float(np.median([row.microseconds.p50 for row in chosen])),
        values={name: tables[name] for name in KEPT},
        categories=categories,
    )
