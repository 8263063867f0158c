"""Table 1 measured on one data set: indexes built by the client, grids asked of Evaluate."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, NamedTuple

from divgrpc.types import EvaluateRow, HashFamily, IndexInfo, IntArray, Search
from divgrpc_client.client import Client
from divgrpc_lab.data.synthetic import IMAGES, POOL, WORDS, visual_words
from divgrpc_lab.data.topics import Topics
from divgrpc_lab.experiment import steps
from divgrpc_lab.table1.methods import (
    ALL,
    FAMILIES,
    HASHED,
    HASHING,
    ONE_EXACT,
    WITHOUT_HASHING,
    Case,
    Row,
    rows_of,
)
from divgrpc_lab.table1.paper import METHODS

INDEX: Final = "table1"
# Queries of each kind that are timed in the paper's size, and those of methods that take seconds.
_TIMED, _TIMED_SLOW = 14, 3
_TIMED_DIALS: Final = {"NN": 0.0, "Rerank": 0.15, "Greedy": 0.25, "MMR": 0.25, "QP-Rel": 0.03}


@dataclass(frozen=True)
class Plan:
    """The amount of work: queries of a category, queries of slow methods, and hash seeds.

    `codes` pairs of bits and tables are tried with `code_seeds`. The test of uniformity has
    `draws`, one for each category and seed. `sizes` counts the sizes of growing data, and
    `synthetic` has the images and words of the set that is only timed.
    """

    per_category: int = 50
    few: int = 10
    seeds: int = 5
    code_seeds: int = 2
    codes: int = 4
    draws: int = 500
    sizes: int = 5
    synthetic: tuple[int, int] = (IMAGES, WORDS)


class Timed(NamedTuple):
    """The median time of a method's queries, dense or sparse, in microseconds."""

    points: str
    kind: str
    method: str
    family: str
    stage: str
    k: int
    queries: int
    microseconds: float


class Bench:
    """One data set and its queries, to be built and asked on a server."""

    def __init__(self, client: Client, data: Topics, plan: Plan) -> None:
        self.client, self.data, self.plan = client, data, plan
        self.name = data.name.partition(" (")[0]
        self.queries = data.queries(plan.per_category)
        self.few_queries = self.queries.first(plan.few)

    def rows(self) -> Iterator[Row]:
        """Measure every row of the table."""
        with built(self.client, self.data, hash_family="lsh_sdiv"):
            for case in steps(WITHOUT_HASHING, f"{self.name}, all points"):
                yield from self._rows("NH", case, [self._evaluate(case, "exact")])
        for name, family in FAMILIES.items():
            answers: dict[Case, list[list[EvaluateRow]]] = defaultdict(list)
            for seed in range(self.plan.seeds):
                cases = [case for case in HASHING if seed < case.seeds(self.plan.seeds)]
                with built(self.client, self.data, hash_family=family, seed=seed) as info:
                    auto_search = info.auto_search_dense or info.auto_search
                    # The exact search hashes nothing.
                    search: Search = "scan" if auto_search == "exact" else auto_search
                    for case in steps(cases, f"{self.name}, {name}, seed {seed}"):
                        answers[case].append(self._evaluate(case, search))
            for case, seeds in answers.items():
                yield from self._rows(name, case, seeds)

    def _evaluate(self, case: Case, search: Search) -> list[EvaluateRow]:
        queries = self.few_queries if case.few else self.queries
        grid = case.grid(search)
        return list(self.client.evaluate(INDEX, *queries, per_query=True, **grid))

    def _rows(self, family: str, case: Case, answers: list[list[EvaluateRow]]) -> list[Row]:
        queries = self.few_queries if case.few else self.queries
        return rows_of(self.name, family, case, answers, queries.categories)


@contextmanager
def built(
    client: Client, data: Topics, rows: IntArray | None = None, **options: Any
) -> Iterator[IndexInfo]:
    """Build an index of some rows or of all, and delete it at the end."""
    part = slice(None) if rows is None else rows
    yield client.build(
        INDEX,
        data.points[part],
        categories=data.labels.categories[part],
        subtopics=data.labels.subtopics[part],
        replace=True,
        **options,
    )
    client.delete_index(INDEX)


def times(client: Client, images: int = IMAGES, words: int = WORDS) -> Iterator[Timed]:
    """Yield the times of every method on a synthetic set of the paper's size and kind.

    Queries are sparse (held-out images) or dense (hyperplanes learned from them), few, one at a
    time on one thread, at one dial for each method. Without hashing a method sees all points, but
    Rerank has its default candidates. The set says nothing of quality: see `visual_words`.
    """
    data = visual_words(images, max(70, images * POOL // IMAGES), words)
    points = f"{images:,} x {words:,}, {data.points.nnz / images:,.0f} numbers a row"
    kinds = {"sparse": (data.pool, data.pool_categories), "dense": data.queries(2)}
    families: dict[str, HashFamily] = {"NH": "lsh_div", **FAMILIES}
    for family, hash_family in families.items():
        with built(client, data, hash_family=hash_family):
            for kind, method in steps([*product(kinds, METHODS)], f"times, {family}"):
                stage = HASHED if family != "NH" else ONE_EXACT if method == "Rerank" else ALL
                slow = stage == ALL and method in ("QP-Rel", "Greedy", "MMR")
                queries, categories = (
                    rows[: _TIMED_SLOW if slow else _TIMED] for rows in kinds[kind]
                )
                grid = Case(method, stage, dial=_TIMED_DIALS[method]).grid("scan")
                for row in client.evaluate(INDEX, queries, categories, folds=0, **grid):
                    case = (kind, method, family, stage, row.parameters.k, row.queries)
                    yield Timed(points, *case, row.microseconds.p50)
