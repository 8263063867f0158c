"""What the paper claims beside its table: bits and tables, uniformity over the ball, growth."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from divgrpc.metrics import Values
from divgrpc.types import FloatArray, HashFamily, IntArray, Interval, Sampling
from divgrpc_lab.data.topics import Points
from divgrpc_lab.table1.bench import INDEX, Bench, some_of
from divgrpc_lab.table1.rows import FAMILIES, TABLES, Asking, Row, combined

PCA: Final = "PCA-Hash"
# Bits of a key, and tables; their product is what a code needs.
BITS_AND_TABLES: Final = ((6, 4), (12, 4), (6, 10), (12, 10))
# Most components that Build accepts; PCA-Hash uses one bit for each.
_COMPONENTS: Final = 200
BINS: Final = 10
# Most points in an exact ball around a query, and its greatest share of all points.
_BALL: Final = 1_000
_BALL_SHARE: Final = 0.1
_RETRIEVED: Final = 100
_SIZES: Final = (16, 8, 4, 2, 1)
_GROWTH_QUERIES: Final = 200
# What Build can tune the default tables for at every size: more probes than it tries are no answer.
_GROWTH_RECALL: Final = 0.3
_EPSILON: Final = 1.0
_DRAWS: Final = 2_000


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """What greedy over tables reaches at k = 10 with so many bits and tables; dial by folds."""

    n_bits: int
    n_tables: int
    row: Row


@dataclass(frozen=True, slots=True)
class Spread:
    """Where in the exact ball around a query retrieved points lie.

    `counts` are of draws by tenths of the ball, the nearest first: with each seed of the hash one
    draw for each of so many `queries` of a category, whose draws are alike.
    """

    data: str
    sampling: Sampling
    ball: int
    seeds: int
    counts: tuple[int, ...]
    queries: int = 1


@dataclass(frozen=True, slots=True)
class Growth:
    """Points hashed without a limit, for data of growing size, probes tuned for one recall.

    `hashed`, `recalls` (of the true ten nearest, of points like those indexed) and `limits`, what
    `epsilon` 1 allows, are by size; `exponent` is the slope of hashed points over size, both
    logarithms, with its 95 % interval over queries alone: one seed of the hash is asked.
    """

    data: str
    sizes: tuple[int, ...]
    hashed: tuple[float, ...]
    recalls: tuple[float, ...]
    limits: tuple[int, ...]
    exponent: Interval


def bits_and_tables(bench: Bench) -> list[Coded]:
    """Ask greedy over tables of three families, at several numbers of bits and tables."""
    asking = Asking("Greedy", TABLES)
    grid = asking.grid("tables") | {"ks": [10]}
    asked = some_of(bench.asked, bench.plan.few)
    families: dict[str, HashFamily] = {**FAMILIES, PCA: "pca_hash"}
    results = []
    for n_bits, n_tables in BITS_AND_TABLES[: bench.plan.codes]:
        for name, family in families.items():
            if name == PCA and n_bits * n_tables > min(_COMPONENTS, bench.data.points.shape[1]):
                continue
            rows: list[list[Any]] = []
            # Components are what they are: PCA-Hash has nothing to draw.
            for seed in range(1 if name == PCA else bench.plan.code_seeds):
                with bench.built(hash_family=family, seed=seed, n_bits=n_bits, n_tables=n_tables):
                    bench.stage(f"{name}, {n_tables} tables of {n_bits} bits")
                    answer = bench.client.evaluate(INDEX, *asked, per_query=True, **grid)
                    rows.append(list(answer))
            row = combined(bench.name, name, asking, rows, asked.asked)
            results.append(Coded(n_bits, n_tables, row))
    return results


def uniformity(bench: Bench) -> list[Spread]:
    """Draw retrieved points of the exact ball, with both ways of sampling.

    The ball of a query are its nearest N points by an exact search. Retrieved are the hashed points
    of a search through tables of LSH-Div (the selector nearest, k = hash_limit); of those inside
    the ball one is drawn for the first query of each category and each seed of the hash. Were
    retrieved points uniform over the ball, so would be these draws, whatever else the hash does:
    draws of one query with different seeds are independent. Those of different categories with one
    seed share its hyperplanes and are nearly so; what shares its buckets, points of one query and
    seed or of queries of one category, which are alike, is never counted together.
    """
    asked = some_of(bench.asked, 1)
    samplings: tuple[Sampling, ...] = ("uniform", "nearest")
    counts = {sampling: np.zeros(BINS, np.int64) for sampling in samplings}
    ball = BINS * max(1, min(_BALL, int(bench.data.points.shape[0] * _BALL_SHARE)) // BINS)
    draw = np.random.default_rng(0)
    inside: IntArray | None = None
    seeds = -(-bench.plan.draws // len(asked.asked))
    for seed in range(seeds):
        with bench.built(hash_family="lsh_div", seed=seed):
            bench.stage(f"uniformity, seed {seed}")
            if inside is None:
                inside = _ids(
                    bench, asked.queries, k=ball, search="exact", hash_limit=0, candidates_limit=0
                )
            for sampling in samplings:
                retrieved = _ids(
                    bench,
                    asked.queries,
                    k=_RETRIEVED,
                    search="tables",
                    sampling=sampling,
                    seed=seed,
                    hash_limit=_RETRIEVED,
                    candidates_limit=_RETRIEVED,
                )
                for ids, picked in zip(inside, retrieved, strict=True):
                    ranks = np.flatnonzero(np.isin(ids, picked))
                    if len(ranks):
                        counts[sampling][draw.choice(ranks) * BINS // ball] += 1
    return [
        Spread(bench.name, name, ball, seeds, tuple(picked.tolist()))
        for name, picked in counts.items()
    ]


def _ids(bench: Bench, queries: FloatArray, **options: Any) -> IntArray:
    options["selector"] = "nearest"
    return bench.client.query(INDEX, queries, timeout=60, **options).ids


def growth(bench: Bench) -> Growth:
    """Build indexes of growing parts of the points, and count what a query finds in their tables.

    Queries are points of the pool: what Build tunes probes for is points like those indexed.
    """
    order = np.random.default_rng(0).permutation(bench.data.points.shape[0])
    queries: Points = bench.data.pool[: min(_GROWTH_QUERIES, bench.data.pool.shape[0])]
    sizes, columns, recalls, limits = [], [], [], []
    for part in _SIZES[-bench.plan.sizes :]:
        rows = np.sort(order[: len(order) // part])
        with bench.built(rows, hash_family="lsh_div", target_recall=_GROWTH_RECALL):
            bench.stage(f"growth, {len(rows):,} points")
            options: dict[str, Any] = {"selector": "nearest", "k": 10, "timeout": 60}
            exact = bench.client.query(INDEX, queries, search="exact", **options)
            results = bench.client.query(INDEX, queries, search="tables", hash_limit=0, **options)
            by_rule = bench.client.query(INDEX, queries[:1], epsilon=_EPSILON, **options)
        pairs = zip(exact.ids, results.ids, strict=True)
        recalls.append(float(np.mean([np.isin(true, picked).mean() for true, picked in pairs])))
        sizes.append(len(rows))
        columns.append(results.stats.points_hashed.astype(np.float64))
        limits.append(by_rule.parameters.hash_limit)
    hashed = np.stack(columns, axis=1)
    return Growth(
        data=bench.name,
        sizes=tuple(sizes),
        hashed=tuple(hashed.mean(axis=0).tolist()),
        recalls=tuple(recalls),
        limits=tuple(limits),
        exponent=exponent(sizes, hashed),
    )


def exponent(sizes: Sequence[int], hashed: Values) -> Interval:
    """Return x of hashed ~ n^x by least squares on logarithms of means over queries.

    `hashed` (nq, sizes) counts points; the 95 % interval is of bootstrap draws of queries.
    """
    logs = np.log(np.asarray(sizes, np.float64))
    weights = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()

    def slope(means: Values) -> Values:
        return np.asarray(np.log(np.maximum(means, 1e-9)) @ weights)

    draws = np.random.default_rng(0).integers(len(hashed), size=(_DRAWS, len(hashed)))
    low, high = np.quantile(slope(hashed[draws].mean(axis=1)), (0.025, 0.975))
    return Interval(float(slope(hashed.mean(axis=0))), float(low), float(high))
