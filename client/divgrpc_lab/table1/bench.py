"""Measures Table 1 on one data set: builds indexes through the client and evaluates grids.

The module also measures the paper's claims outside the table: about bits and tables, the uniformity
of retrieved points, and the growth of the number of hashed points.
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
# Number of timed queries of each kind on the synthetic data, and the same for methods that take
# seconds per query.
_QUERIES, _SLOW_QUERIES = 14, 3
_TIMED_DIALS: Final = {"NN": 0.0, "Rerank": 0.15, "Greedy": 0.25, "MMR": 0.25, "QP-Rel": 0.03}


@dataclass(frozen=True)
class Plan:
    """The amount of work of a run.

    Each category has `per_category` queries, or `few` for slow methods. Methods are repeated with
    `seeds` hash seeds. `codes` is the number of pairs of bits and tables, which are tried with
    `code_seeds` seeds each. `draws` is the number of draws in the test of uniformity, one for each
    category and seed. `sizes` is the number of sizes of the growing data. `synthetic` has the
    numbers of images and words of the set that is only timed.
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
    """The median time of a query by one method, in microseconds; `kind` is dense or sparse."""

    points: str
    kind: str
    method: str
    family: str
    stage: str
    k: int
    queries: int
    microseconds: float


class Bench:
    """Measures one data set and its queries on a server."""

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
                    # The exact search does not hash, so `scan` is measured instead.
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
    """Build an index of `rows` (default: all), yield its description and finally delete it."""
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
    """Yield the times of every method on synthetic data with the paper's size and kind.

    Queries are sparse (held-out images) or dense (hyperplanes learned from these images). Only a
    few queries are timed, one at a time on one thread, and each method has one diversity. Without
    hashing, every method except Rerank considers all points, and Rerank considers its default
    number of candidates. The data is not suitable for measuring quality, see `visual_words`.
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
                    rows[: _SLOW_QUERIES if slow else _QUERIES] for rows in kinds[kind]
                )
                grid = Case(method, stage, dial=_TIMED_DIALS[method]).grid("scan")
                for row in client.evaluate(INDEX, queries, categories, folds=0, **grid):
                    case = (kind, method, family, stage, row.parameters.k, row.queries)
                    yield Timed(points, *case, row.microseconds.p50)


PCA: Final = "PCA-Hash"
# Pairs of the number of bits of a key and the number of tables. A code has as many bits as their
# product.
BITS_AND_TABLES: Final = ((6, 4), (12, 4), (6, 10), (12, 10))
# Maximum number of components that Build accepts. PCA-Hash uses one component for each bit.
_COMPONENTS_MAX: Final = 200
BINS: Final = 10
# Maximum number of points in an exact ball, and their maximum share of all points.
_BALL_POINTS, _BALL_SHARE = 1_000, 0.1
# Number of results of a query whose uniformity is tested.
_RESULTS: Final = 100
# The growing data sets have 1/16, 1/8, 1/4, 1/2 and all of the points.
_SIZE_DIVISORS: Final = (16, 8, 4, 2, 1)
_GROWTH_QUERIES: Final = 200
# Highest target recall that the default tables reach at every size within the number of probes that
# Build tries.
_GROWTH_RECALL: Final = 0.3
_DRAWS: Final = 2_000


class Coded(NamedTuple):
    """The row of greedy at k = 10 with a search through tables, for one code.

    `n_bits` is the number of bits of a key, and `n_tables` the number of tables.
    """

    n_bits: int
    n_tables: int
    row: Row


class Spread(NamedTuple):
    """The distribution of the ranks of retrieved points within the exact ball around a query.

    `counts` has the number of draws in each tenth of the ball, the nearest tenth first. One point
    is drawn for each category and each hash seed. `ball` is the number of points in the ball.
    """

    data: str
    sampling: Sampling
    ball: int
    seeds: int
    counts: tuple[int, ...]


class Growth(NamedTuple):
    """The number of points hashed per query, for data of growing size.

    There is no hash limit, and Build tunes the probes for the same recall at each size. For each of
    `sizes`, `hashed_points` is the mean number of points hashed, `recalls` the mean recall of the
    exact ten nearest points, and `limits` the hash limit that `epsilon` 1 gives. `exponent` is the
    slope of log hashed points over log size, with a 95 % interval. The interval covers only the
    variation over queries, because one hash seed is used.
    """

    data: str
    sizes: tuple[int, ...]
    hashed_points: tuple[float, ...]
    recalls: tuple[float, ...]
    limits: tuple[int, ...]
    exponent: Interval


def bits_and_tables(bench: Bench) -> Iterator[Coded]:
    """Measure greedy after tables of three hash families, at several numbers of bits and tables."""
    case, queries = Case("Greedy", TABLES), bench.few_queries
    grid = case.grid("tables") | {"ks": [10]}
    families: dict[str, HashFamily] = {**FAMILIES, PCA: "pca_hash"}
    for n_bits, n_tables in steps(BITS_AND_TABLES[: bench.plan.codes], f"{bench.name}, codes"):
        for name, family in families.items():
            if name == PCA and n_bits * n_tables > min(_COMPONENTS_MAX, bench.data.points.shape[1]):
                continue
            answers = []
            # PCA-Hash has no random draws.
            for seed in range(1 if name == PCA else bench.plan.code_seeds):
                options: dict[str, Any] = {"seed": seed, "n_bits": n_bits, "n_tables": n_tables}
                with built(bench.client, bench.data, hash_family=family, **options):
                    calls = bench.client.evaluate(INDEX, *queries, per_query=True, **grid)
                    answers.append(list(calls))
            [row] = rows_of(bench.name, name, case, answers, queries.categories)
            yield Coded(n_bits, n_tables, row)


def uniformity(bench: Bench) -> list[Spread]:
    """Draw retrieved points from the exact ball around queries, with both kinds of sampling.

    The ball of a query consists of the nearest points by an exact search. Points are retrieved by a
    search through tables of LSH-Div (selector nearest, k = hash_limit). One of the retrieved points
    inside the ball is drawn for the first query of each category and each hash seed. If the
    retrieved points are uniform over the ball, the draws are uniform too. Draws with different
    seeds are independent, and draws of different categories are nearly independent. The queries of
    one category are similar to each other, so only one of them is used.
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
                limits = {"hash_limit": _RESULTS, "candidates_limit": _RESULTS}
                retrieved_ids = ask(
                    k=_RESULTS, search="tables", sampling=sampling, seed=seed, **limits
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
    """Build indexes of growing parts of the points, and count the points hashed per query.

    Queries are points of the pool, because Build tunes the probes for queries that are similar to
    the indexed points.
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
    """Return the exponent x of hashed points ~ size^x, by least squares on logarithms of means.

    `points` (nq, sizes) has the number of points hashed for each query at each size. The 95 %
    interval comes from bootstrap draws of queries.
    """
    logs = np.log(np.asarray(sizes, np.float64))
    weights = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()

    def slope(means: Values) -> Values:
        return np.asarray(np.log(np.maximum(means, 1e-9)) @ weights)

    draws = np.random.default_rng(0).integers(len(points), size=(_DRAWS, len(points)))
    low, high = np.quantile(slope(points[draws].mean(axis=1)), (0.025, 0.975))
    return Interval(float(slope(points.mean(axis=0))), float(low), float(high))
