"""Table 1 measured on one data set: indexes built by the client, grids asked of Evaluate.

Beside the table the paper makes claims about bits and tables, uniformity over the ball, and growth.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np

from divgrpc.metrics import Values
from divgrpc.types import EvaluateRow, HashFamily, IndexInfo, IntArray, Interval, Sampling, Search
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
    TABLES,
    WITHOUT_HASHING,
    Case,
    Row,
    rows_of,
)
from divgrpc_lab.table1.paper import METHODS

INDEX: Final = "table1"
# Timed queries of each kind in the paper's size, and of methods that take seconds.
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


PCA: Final = "PCA-Hash"
# Bits of a key, and tables; a code needs their product.
BITS_AND_TABLES: Final = ((6, 4), (12, 4), (6, 10), (12, 10))
# Most components that Build accepts; PCA-Hash uses one for each bit.
_COMPONENTS_MAX: Final = 200
BINS: Final = 10
# Most points in an exact ball around a query, and its greatest share of all points.
_BALL_POINTS, _BALL_SHARE = 1_000, 0.1
_RETRIEVED: Final = 100
# Growing data are these parts of all points: 1/16 to 1.
_SIZE_DIVISORS: Final = (16, 8, 4, 2, 1)
_GROWTH_QUERIES: Final = 200
# The most that the default tables reach at every size with as many probes as Build tries.
_GROWTH_RECALL: Final = 0.3
_DRAWS: Final = 2_000


class Coded(NamedTuple):
    """The row of greedy over tables at k = 10, with its bits of a key and its tables."""

    n_bits: int
    n_tables: int
    row: Row


class Spread(NamedTuple):
    """The places of retrieved points in the exact ball around a query.

    `counts` has the draws of each tenth of the ball, the nearest first: one draw for each category
    and each seed of the hash.
    """

    data: str
    sampling: Sampling
    ball: int
    seeds: int
    counts: tuple[int, ...]


class Growth(NamedTuple):
    """Points hashed without a limit, for data of growing size, probes tuned for one recall.

    By size: `hashed_points`, `recalls` (of the true ten nearest, of points like those indexed) and
    `limits`, what `epsilon` 1 allows. `exponent` is the slope of log hashed points over log size,
    with its 95 % interval over queries alone: one seed of the hash is asked.
    """

    data: str
    sizes: tuple[int, ...]
    hashed_points: tuple[float, ...]
    recalls: tuple[float, ...]
    limits: tuple[int, ...]
    exponent: Interval


def bits_and_tables(bench: Bench) -> Iterator[Coded]:
    """Ask greedy over tables of three families, at several numbers of bits and tables."""
    case, queries = Case("Greedy", TABLES), bench.few_queries
    grid = case.grid("tables") | {"ks": [10]}
    families: dict[str, HashFamily] = {**FAMILIES, PCA: "pca_hash"}
    for n_bits, n_tables in steps(BITS_AND_TABLES[: bench.plan.codes], f"{bench.name}, codes"):
        for name, family in families.items():
            if name == PCA and n_bits * n_tables > min(_COMPONENTS_MAX, bench.data.points.shape[1]):
                continue
            answers = []
            # PCA-Hash draws nothing.
            for seed in range(1 if name == PCA else bench.plan.code_seeds):
                options: dict[str, Any] = {"seed": seed, "n_bits": n_bits, "n_tables": n_tables}
                with built(bench.client, bench.data, hash_family=family, **options):
                    calls = bench.client.evaluate(INDEX, *queries, per_query=True, **grid)
                    answers.append(list(calls))
            [row] = rows_of(bench.name, name, case, answers, queries.categories)
            yield Coded(n_bits, n_tables, row)


def uniformity(bench: Bench) -> list[Spread]:
    """Draw retrieved points of the exact ball, with both ways of sampling.

    The ball of a query is its nearest points by an exact search. Points are retrieved by a search
    through tables of LSH-Div (selector nearest, k = hash_limit), and one of those inside the ball
    is drawn for the first query of each category and each seed of the hash. If retrieved points
    were uniform over the ball, so would be these draws. Draws with different seeds are independent,
    and draws of different categories nearly so; queries of one category are alike, so only one of
    them counts.
    """
    queries = bench.queries.first(1)
    samplings: tuple[Sampling, ...] = ("uniform", "nearest")
    counts = {sampling: np.zeros(BINS, np.int64) for sampling in samplings}
    points = bench.data.points.shape[0]
    ball = BINS * max(1, int(min(_BALL_POINTS, points * _BALL_SHARE)) // BINS)
    draw = np.random.default_rng(0)
    seeds = -(-bench.plan.draws // len(queries.categories))

    def ask(**options: Any) -> IntArray:
        result = bench.client.query(
            INDEX, queries.queries, selector="nearest", timeout=60, **options
        )
        return result.ids

    inside: IntArray | None = None
    for seed in steps(range(seeds), f"{bench.name}, uniformity"):
        with built(bench.client, bench.data, hash_family="lsh_div", seed=seed):
            if inside is None:
                inside = ask(k=ball, search="exact", hash_limit=0, candidates_limit=0)
            for sampling in samplings:
                limits = {"hash_limit": _RETRIEVED, "candidates_limit": _RETRIEVED}
                retrieved_ids = ask(
                    k=_RETRIEVED, search="tables", sampling=sampling, seed=seed, **limits
                )
                for ids, hits in zip(inside, retrieved_ids, strict=True):
                    ranks = np.flatnonzero(np.isin(ids, hits))
                    if len(ranks):
                        counts[sampling][draw.choice(ranks) * BINS // ball] += 1
    return [
        Spread(bench.name, sampling, ball, seeds, tuple(counts[sampling].tolist()))
        for sampling in samplings
    ]


def growth(bench: Bench) -> Growth:
    """Build indexes of growing parts of the points, and count the points hashed by a query.

    Queries are points of the pool, because Build tunes probes for points like those indexed.
    """
    data, client = bench.data, bench.client
    order = np.random.default_rng(0).permutation(data.points.shape[0])
    queries = data.pool[:_GROWTH_QUERIES]
    options: dict[str, Any] = {"selector": "nearest", "k": 10, "timeout": 60}
    sizes, columns, recalls, limits = [], [], [], []
    for divisor in steps(_SIZE_DIVISORS[-bench.plan.sizes :], f"{bench.name}, growth"):
        rows = np.sort(order[: len(order) // divisor])
        with built(client, data, rows, hash_family="lsh_div", target_recall=_GROWTH_RECALL):
            exact = client.query(INDEX, queries, search="exact", **options)
            result = client.query(INDEX, queries, search="tables", hash_limit=0, **options)
            by_rule = client.query(INDEX, queries[:1], epsilon=1.0, **options)
        pairs = zip(exact.ids, result.ids, strict=True)
        recalls.append(float(np.mean([np.isin(near, hits).mean() for near, hits in pairs])))
        sizes.append(len(rows))
        columns.append(result.stats.points_hashed.astype(np.float64))
        limits.append(by_rule.parameters.hash_limit)
    points = np.stack(columns, axis=1)
    means = tuple(points.mean(axis=0).tolist())
    slope = exponent(sizes, points)
    return Growth(bench.name, tuple(sizes), means, tuple(recalls), tuple(limits), slope)


def exponent(sizes: Sequence[int], points: Values) -> Interval:
    """Return x of hashed ~ n^x by least squares on logarithms of means over queries.

    `hashed` (nq, sizes) counts points; the 95 % interval is of bootstrap draws of queries.
    """
    logs = np.log(np.asarray(sizes, np.float64))
    weights = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()

    def slope(means: Values) -> Values:
        return np.asarray(np.log(np.maximum(means, 1e-9)) @ weights)

    draws = np.random.default_rng(0).integers(len(points), size=(_DRAWS, len(points)))
    low, high = np.quantile(slope(points[draws].mean(axis=1)), (0.025, 0.975))
    return Interval(float(slope(points.mean(axis=0))), float(low), float(high))
