"""Measures Table 1 on one data set: builds indexes and evaluates settings through a client.

The module also measures two claims that are not in the table: retrieved points are uniform over the
ball around a query, and the number of hashed points grows slowly. The result of a job is stored as
JSON, so a long run can be continued; see `divgrpc_lab.work`. A job takes a client, because jobs run
on several servers at once.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation.folds import FOLDS
from divgrpc.metrics import Values, mean_intervals
from divgrpc.types import HashFamily, IndexInfo, IntArray, Interval, Search
from divgrpc_client.client import Client
from divgrpc_lab.data.synthetic import IMAGES, POOL, WORDS, visual_words
from divgrpc_lab.data.topics import Topics
from divgrpc_lab.table1 import home
from divgrpc_lab.table1.methods import (
    ALL,
    FAMILIES,
    HASH_SEARCH,
    HASHING,
    HOME,
    ONE_EXACT,
    WITHOUT_HASHING,
    Answer,
    Case,
    Row,
    rows_of,
)
from divgrpc_lab.table1.paper import METHODS

ClientJob: TypeAlias = Callable[[Client], Any]

INDEX: Final = "table1"
# Options of a build that is queried by exact searches alone.
CHEAP_BUILD: Final[dict[str, Any]] = {"hash_family": "lsh_div", "target_recall": 0.01}
# Number of timed queries of each kind on the synthetic data, and the same for methods that take
# seconds per query.
_QUERIES, _SLOW_QUERIES = 14, 3
TIMED_DIALS: Final = {"NN": 0.0, "Rerank": 0.15, "Greedy": 0.25, "MMR": 0.25, "QP-Rel": 0.03}


@dataclass(frozen=True)
class Plan:
    """The amount of work of a run.

    Each category has `per_category` queries. Methods with hashing are repeated with `seeds` hash
    seeds. `codes` are the numbers of bits and tables of the paper's literal mode (`home`).
    `ball_seeds` is the number of seeds in the test of uniformity. `sizes` is the number of sizes of
    the growing data. `synthetic` has the numbers of images and words of the set that is only timed.
    """

    per_category: int = 5
    seeds: int = 5
    codes: tuple[home.Code, ...] = home.codes(home.BITS, home.TABLES)
    ball_seeds: int = 25
    sizes: int = 5
    synthetic: tuple[int, int] = (IMAGES, WORDS)


class Timed(NamedTuple):
    """The median time of a method in microseconds; `kind` says if queries are dense or sparse."""

    points: str
    kind: str
    method: str
    family: str
    stage: str
    k: int
    queries: int
    microseconds: float


class Bench:
    """Measures one data set and its queries.

    `jobs` are the measurements by name. The other methods turn the results of jobs into rows.
    Raises `InvalidArgumentError` for data with fewer than two categories to ask for.
    """

    def __init__(self, data: Topics, plan: Plan) -> None:
        self.data, self.plan = data, plan
        self.name = data.name.partition(" (")[0]
        if len(data.query_categories) < 2:  # the fewest for folds and intervals
            text = f"{self.name} has fewer than two categories with sub-topics: no fold can choose"
            raise InvalidArgumentError("sets", text)
        self.queries = data.queries(plan.per_category)
        self.places = home.places(plan.codes, plan.seeds, data.points.shape[1])

    def jobs(self) -> dict[str, ClientJob]:
        """Return all measurements of this data set by name."""
        jobs: dict[str, ClientJob] = {
            self._name("NH", case.method, case.stage): partial(self._without_hashing, case)
            for case in WITHOUT_HASHING
        }
        for name, seed in product(FAMILIES, range(self.plan.seeds)):
            jobs[self._name(name, seed)] = partial(self._with_hashing, name, seed)
        for place in self.places:
            jobs[self._name(place)] = partial(self._home, place)
        for seed in range(self.plan.ball_seeds):
            jobs[self._name("ball", seed)] = partial(ball_counts, self, seed)
        jobs[self._name("growth")] = partial(growing, self)
        return jobs

    def rows(self, results: Mapping[str, Any]) -> Iterator[Row]:
        """Return every row of the table."""
        for case in WITHOUT_HASHING:
            answers = results[self._name("NH", case.method, case.stage)]
            yield from self._rows("NH", case, [answers])
        for name in FAMILIES:
            for number, case in enumerate(HASHING):
                answers = [
                    results[self._name(name, seed)][number] for seed in range(self.plan.seeds)
                ]
                yield from self._rows(name, case, answers)
        yield from home.rows(self.name, self._home_answers(results), self.queries.categories)

    def coded(self, results: Mapping[str, Any]) -> list[home.Coded]:
        """Return the rows of greedy for each family and code."""
        answers = self._home_answers(results)
        return home.coded_rows(self.name, answers, self.queries.categories)

    def spreads(self, results: Mapping[str, Any]) -> list["Spread"]:
        """Return the distribution of retrieved points over the ball, for each of `RETRIEVALS`."""
        seeds = [results[self._name("ball", seed)] for seed in range(self.plan.ball_seeds)]
        return [
            Spread(self.name, retrieval, ball_size(self.data), np.array([s[at] for s in seeds]))
            for at, retrieval in enumerate(RETRIEVALS)
        ]

    def growth(self, results: Mapping[str, Any]) -> "Growth":
        """Return the growth of the number of hashed points."""
        sizes, points, recalls, limits = results[self._name("growth")]
        groups = self.data.pool_categories[_growth_rows(self.data)]
        return Growth.of(self.name, sizes, np.array(points).T, recalls, limits, groups)

    def _name(self, *parts: object) -> str:
        """Return the name of a job; the checksum in it keeps `Work` from mixing data sets."""
        return ", ".join(map(str, (f"{self.name} ({self.data.sha256[:8]})", *parts)))

    def _home_answers(self, results: Mapping[str, Any]) -> dict[home.Place, list[list[Answer]]]:
        return {
            place: [[Answer(*item) for item in answers] for answers in results[self._name(place)]]
            for place in self.places
        }

    def _without_hashing(self, case: Case, client: Client) -> list[Answer]:
        with built(client, self.data, **CHEAP_BUILD):
            return self._evaluate(client, case, "exact")

    def _with_hashing(self, name: str, seed: int, client: Client) -> list[list[Answer]]:
        with built(client, self.data, hash_family=FAMILIES[name], seed=seed) as info:
            auto_search = info.auto_search_dense or info.auto_search
            # The exact search does not hash, so `scan` is measured instead.
            search: Search = "scan" if auto_search == "exact" else auto_search
            return [self._evaluate(client, case, search) for case in HASHING]

    def _home(self, place: home.Place, client: Client) -> list[list[Answer]]:
        with built(client, self.data, **place.options):
            return home.measure(client, INDEX, place, self.queries)

    def _evaluate(self, client: Client, case: Case, search: Search) -> list[Answer]:
        """Return the figures of the settings that folds choose, one answer for each k."""
        grid = case.grid(search)
        folds = min(FOLDS, len(np.unique(self.queries.categories)))
        rows = client.evaluate(INDEX, *self.queries, folds=folds, per_query=True, **grid)
        return [Answer.of(row) for row in rows if row.by_fold]

    def _rows(self, family: str, case: Case, seeds: list[list[Any]]) -> list[Row]:
        answers = [[Answer(*item) for item in items] for items in seeds]
        return rows_of(self.name, family, case, answers, self.queries.categories)


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


def times(client: Client, sizes: tuple[int, int] = (IMAGES, WORDS)) -> list[Timed]:
    """Return the times of every method on synthetic visual words of the paper's size.

    `sizes` are the numbers of images and of words.

    Queries are sparse (held-out images) or dense (hyperplanes learned from these images). Only a
    few queries are timed, one at a time on one thread, and each method has one diversity. Without
    hashing, every method except Rerank considers all points. Rerank considers the exact nearest
    points, as many as the default candidates_limit. The data is not suitable for measuring quality,
    see `visual_words`.
    """
    images, words = sizes
    data = visual_words(images, max(70, images * POOL // IMAGES), words)
    points = f"{images:,} x {words:,}, {data.points.nnz / images:,.0f} numbers a row"
    kinds = {"sparse": (data.pool, data.pool_categories), "dense": data.queries(2)}
    families: dict[str, HashFamily] = {"NH": "lsh_div", **FAMILIES}
    medians = []
    for family, hash_family in families.items():
        with built(client, data, hash_family=hash_family):
            for kind, method in product(kinds, METHODS):
                stage = HASH_SEARCH if family != "NH" else ONE_EXACT if method == "Rerank" else ALL
                slow = stage == ALL and method in ("QP-Rel", "Greedy", "MMR")
                queries, categories = (
                    rows[: _SLOW_QUERIES if slow else _QUERIES] for rows in kinds[kind]
                )
                grid = Case(method, stage, dial=TIMED_DIALS[method]).grid("scan")
                for row in client.evaluate(INDEX, queries, categories, folds=0, **grid):
                    case = (kind, method, family, stage, row.parameters.k, row.queries)
                    medians.append(Timed(points, *case, row.microseconds.p50))
    return medians


BINS: Final = 10
# The exact ball of a query has at most this many points, and at most this share of all points.
_BALL_POINTS, _BALL_SHARE = 1_000, 0.1
# Maximum number of points that a query retrieves from tuned buckets (`table1.methods`).
_POINTS_MAX: Final = 100
_NO_LIMITS: Final = {"hash_limit": 0, "candidates_limit": 0}
_LIMITS: Final = {"hash_limit": _POINTS_MAX, "candidates_limit": _POINTS_MAX, "k": _POINTS_MAX}
# The ways to retrieve points, with the options of the queries. The points of each are tested for
# uniformity. The first way is the paper's, and retrieves all points of the home buckets (see
# `table1.methods`).
_TUNED_BUCKETS: Final[dict[str, dict[str, Any]]] = {
    "100 random points of tuned buckets": _LIMITS | {"sampling": "uniform"},
    "100 nearest points of tuned buckets": _LIMITS | {"sampling": "nearest"},
}
RETRIEVALS: Final = {HOME: _NO_LIMITS | {"n_probes": home.PAPERS.n_tables}, **_TUNED_BUCKETS}
# The growing data sets have 1/16, 1/8, 1/4, 1/2 and all of the points.
_SIZE_DIVISORS: Final = (16, 8, 4, 2, 1)
_GROWTH_QUERIES: Final = 200
# Highest target recall that the default tables reach at every size within the number of probes that
# Build tries.
_GROWTH_RECALL: Final = 0.3


class Spread(NamedTuple):
    """The distribution of the ranks of retrieved points within the exact ball around a query.

    `retrieval` is one of `RETRIEVALS`. `ball` is the number of points in the ball. `counts` (seeds,
    BINS) has, for each hash seed, the number of points that all queries retrieved from each tenth
    of the ball, the nearest tenth first.
    """

    data: str
    retrieval: str
    ball: int
    counts: IntArray

    @property
    def places(self) -> Values:
        """The mean place (seeds,) of retrieved points in the ball, from 0 (nearest) to 1."""
        middles = (np.arange(BINS) + 0.5) / BINS
        totals = self.counts.sum(axis=1)
        with np.errstate(invalid="ignore"):
            return np.asarray(self.counts @ middles / totals)


class Growth(NamedTuple):
    """The number of points hashed per query, for data of growing size.

    There is no hash limit, and Build tunes the probes for the same recall at each size. For each of
    `sizes`, `hashed_points` is the mean number of points hashed, `recalls` the mean recall of the
    exact ten nearest points, and `limits` the hash limit that `epsilon` 1 gives. `exponent` is the
    slope of log hashed points over log size, with an interval by the categories of the queries. One
    hash seed is used. `slopes` (nq,) and `groups` (nq,) are the values and groups of the interval.
    """

    data: str
    sizes: tuple[int, ...]
    hashed_points: tuple[float, ...]
    recalls: tuple[float, ...]
    limits: tuple[int, ...]
    exponent: Interval
    slopes: Values
    groups: IntArray

    @classmethod
    def of(  # noqa: PLR0917  # one argument for each thing measured
        cls,
        data: str,
        sizes: list[int],
        points: Values,
        recalls: list[float],
        limits: list[int],
        groups: IntArray,
    ) -> "Growth":
        """Return the growth of the numbers of hashed points (nq, sizes)."""
        slopes = exponents(sizes, points)
        [exponent] = mean_intervals(slopes[:, np.newaxis], groups)
        means = tuple(points.mean(axis=0).tolist())
        return cls(
            data, tuple(sizes), means, tuple(recalls), tuple(limits), exponent, slopes, groups
        )


def ball_size(data: Topics) -> int:
    """Return the number of points in the ball around a query, a multiple of `BINS`."""
    points = data.points.shape[0]
    return BINS * max(1, int(min(_BALL_POINTS, points * _BALL_SHARE)) // BINS)


def ball_counts(bench: Bench, seed: int, client: Client) -> IntArray:
    """Return counts (retrievals, BINS) of points retrieved from tenths of the ball, for one seed.

    The ball of a query consists of the nearest points by an exact search. Points are retrieved from
    tables of LSH-Div. The counts are sums over the first query of each category. If the retrieved
    points are uniform over the ball, each tenth has the same expected count. Counts of different
    seeds are independent.
    """
    queries, ball = bench.queries.first(1).queries, ball_size(bench.data)
    counts = {}

    def ask(**options: Any) -> IntArray:
        options = {"k": ball} | options
        result = client.query(
            INDEX, queries, selector="nearest", keep_duplicates=True, timeout=60, **options
        )
        return result.ids.astype(np.int64)

    literal = home.Place("LSH-Div", seed, home.PAPERS).options
    service = {"hash_family": "lsh_div", "seed": seed}
    for build, names in ((literal, [HOME]), (service, _TUNED_BUCKETS)):
        with built(client, bench.data, **build):
            inside = ask(search="exact", **_NO_LIMITS)
            for name in names:
                hits = ask(search="tables", seed=seed, **RETRIEVALS[name])
                tenths = [
                    np.flatnonzero(np.isin(near, row)) * BINS // ball
                    for near, row in zip(inside, hits, strict=True)
                ]
                counts[name] = np.bincount(np.concatenate(tenths), minlength=BINS)
    return np.stack([counts[name] for name in RETRIEVALS])


def _growth_rows(data: Topics) -> IntArray:
    """Return random rows of the pool, which is sorted by category in some sets."""
    return np.random.default_rng(1).permutation(len(data.pool_categories))[:_GROWTH_QUERIES]


def growing(bench: Bench, client: Client) -> tuple[list[int], list[Values], list[float], list[int]]:
    """Build indexes of growing parts of the points, and count the points hashed per query.

    Queries are points of the pool, because Build tunes the probes for queries that are similar to
    the indexed points. Returns the sizes, the points hashed for each query (nq,) at each size, the
    recalls, and the hash limits that `epsilon` 1 gives.
    """
    data = bench.data
    order = np.random.default_rng(0).permutation(data.points.shape[0])
    queries = data.pool[_growth_rows(data)]
    options: dict[str, Any] = {"selector": "nearest", "k": 10, "timeout": 60}
    sizes, columns, recalls, limits = [], [], [], []
    for divisor in _SIZE_DIVISORS[-bench.plan.sizes :]:
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
    return sizes, columns, recalls, limits


def exponents(sizes: list[int], points: Values) -> Values:
    """Return values (nq,) whose mean is the exponent x of hashed points ~ size^x.

    `points` (nq, sizes) has the number of points hashed for each query at each size. The exponent
    is the least-squares slope of the logarithms of the means. The values are linear in the points
    of a query (the delta method), so that their spread gives the interval of the exponent.
    """
    logs = np.log(np.asarray(sizes, np.float64))
    weights = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
    means = np.maximum(points.mean(axis=0), 1e-9)
    return np.asarray(np.log(means) @ weights + (points / means - 1) @ weights)
