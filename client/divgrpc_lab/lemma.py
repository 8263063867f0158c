"""Measures the paper's lemma, and the retrieval that the lemma should justify.

The lemma bounds the difference between p = arccos(cosine) / pi and the share of bits in which a
point differs from the query. The paper states the lemma for all points at one distance, and proves
it for one point. For m points together, log(2 / delta) must become log(2m / delta).

Algorithm 1 does not compare shares of bits. It requires equal keys. So near and far points are
counted in the home buckets of an index, which are the query's own bucket in each table. The counts
are compared with the numbers that Eq. 5 predicts and with the paper's n^(1/(1+epsilon)).
"""

import math
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from divgrpc import Index
from divgrpc.metrics import Values
from divgrpc.types import FloatArray, IntArray
from divgrpc_client.reports import charts
from divgrpc_client.reports.charts import Chart, Curve

DELTA: Final = 0.05
# Numbers of bits l of the lemma, points at one distance, and draws of l hyperplanes.
LEMMA_BITS: Final = (16, 64, 256, 1024)
LEMMA_POINTS: Final = 100
_LEMMA_DRAWS: Final = 200
# Bits of a key. Every query has near points at distance r = 0.5, and far points at (1 + epsilon) r.
KEY_BITS: Final = (4, 8, 12, 16, 20)
TABLES: Final = 10
EPSILON: Final = 1.0
RADII: Final = (0.5, (1 + EPSILON) * 0.5)
QUERIES: Final = 20
NEAR, FAR = 20, 100
_SEEDS: Final = 2
_DIMS: Final = 32


class Deviation(NamedTuple):
    """Deviations of the share of differing bits from p at l bits, and their bounds.

    95 % of the deviations of single points are at most `of_one`. In 95 % of the draws the worst of
    all points deviates by at most `of_all`. `within` is the share of draws in which all points are
    within the printed bound, which is meant for one point.
    """

    bits: int
    of_one: float
    bound_of_one: float
    of_all: float
    bound_of_all: float
    within: float


class Retrieved(NamedTuple):
    """Mean numbers of points in home buckets, over queries and seeds, for keys of `bits` bits.

    `near` and `far` are the numbers of the query's own near and far points. Eq. 5 predicts
    `near_expected` and `far_expected` for them. `points` is the number of all retrieved points.
    """

    bits: int
    near: float
    near_expected: float
    far: float
    far_expected: float
    points: float


def share_of_bits(distance: float) -> float:
    """Return p (Eq. 5), the probability that two unit vectors at a distance differ in a bit."""
    return math.acos(1 - distance**2 / 2) / math.pi


def deviations(seed: int = 0) -> list[Deviation]:
    """Measure the lemma on unit vectors at distance 1 from a query, where p is 1/3."""
    random = np.random.default_rng(seed)
    query = random.standard_normal((1, _DIMS))
    query /= np.linalg.norm(query)
    points = _around(random, query, 1.0, LEMMA_POINTS)
    p, items = share_of_bits(1.0), []
    for bits in LEMMA_BITS:
        samples = np.array(
            [_deviations(random, query, points, bits, p) for _ in range(_LEMMA_DRAWS)]
        )
        bound_of_one, bound_of_all = (_hoeffding(bits, count) for count in (1, LEMMA_POINTS))
        of_one, of_all = (
            np.quantile(samples, 1 - DELTA),
            np.quantile(samples.max(axis=1), 1 - DELTA),
        )
        within = float((samples.max(axis=1) <= bound_of_one).mean())
        items.append(
            Deviation(bits, float(of_one), bound_of_one, float(of_all), bound_of_all, within)
        )
    return items


class Shells(NamedTuple):
    """Unit queries (nq, d), and points (n, d) at two distances from the queries.

    `owners` (n,) int64 has the number of the query that each point lies around, and `is_near` (n,)
    bool says whether the point is at the smaller distance.
    """

    queries: FloatArray
    points: FloatArray
    owners: IntArray
    is_near: npt.NDArray[np.bool_]

    @classmethod
    def draw(cls, random: np.random.Generator) -> Self:
        """Draw random queries with points around each."""
        queries = random.standard_normal((QUERIES, _DIMS)).astype(np.float32)
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
        parts = [_around(random, queries, *shell) for shell in zip(RADII, (NEAR, FAR), strict=True)]
        owners = [np.repeat(np.arange(QUERIES), count) for count in (NEAR, FAR)]
        points = np.concatenate(parts).astype(np.float32)
        return cls(queries, points, np.concatenate(owners), np.arange(len(points)) < len(parts[0]))


def retrieved(seed: int = 0) -> list[Retrieved]:
    """Return the mean numbers of points in the home buckets of a query, for each `KEY_BITS`."""
    shells = Shells.draw(np.random.default_rng(seed))
    items = []
    for bits in KEY_BITS:
        counts = [_counts(shells, bits, number) for number in range(_SEEDS)]
        near, far, points = np.mean(counts, axis=(0, 2)).tolist()
        chances = [1 - (1 - (1 - share_of_bits(r)) ** bits) ** TABLES for r in RADII]
        items.append(Retrieved(bits, near, NEAR * chances[0], far, FAR * chances[1], points))
    return items


def rule(points: int) -> float:
    """Return n^(1/(1+epsilon)); the paper says that the number of matches is proportional to it."""
    return float(points ** (1 / (1 + EPSILON)))


def draw_deviations(items: list[Deviation]) -> Chart:
    """Draw the deviations and both bounds against the number of bits."""
    curves = [
        Curve(name, [(item.bits, getattr(item, field)) for item in items], look)
        for look, (name, field) in enumerate(
            (
                ("one point, measured", "of_one"),
                ("one point, the lemma's bound", "bound_of_one"),
                (f"the worst of {LEMMA_POINTS}, measured", "of_all"),
                (f"all {LEMMA_POINTS}, bound with log(2m/δ)", "bound_of_all"),
            )
        )
    ]
    title = "Deviation of the share of differing bits from p, exceeded in 5 % of draws"
    return charts.lines(curves, "bits l", "deviation", title, x_scale="log2")


def draw_retrieved(items: list[Retrieved]) -> Chart:
    """Draw the shares of near and far points in home buckets, and the shares by Eq. 5."""
    curves = [
        Curve(name, [(item.bits, getattr(item, field) / count) for item in items], look)
        for look, (name, field, count) in enumerate(
            (
                ("near, measured", "near", NEAR),
                ("near, by Eq. 5", "near_expected", NEAR),
                ("far, measured", "far", FAR),
                ("far, by Eq. 5", "far_expected", FAR),
            )
        )
    ]
    title = f"Near and far points in the home buckets of {TABLES} tables"
    return charts.lines(curves, "bits of a key", "share retrieved", title)


def _hoeffding(bits: int, points: int) -> float:
    return math.sqrt(math.log(2 * points / DELTA) / (2 * bits))


def _around(
    random: np.random.Generator, queries: npt.NDArray[Any], distance: float, count: int
) -> Values:
    """Return `count` unit vectors at `distance` from each of the unit `queries` (nq, d)."""
    centres = np.repeat(queries, count, axis=0)
    directions = random.standard_normal(centres.shape)
    directions -= (directions * centres).sum(axis=1, keepdims=True) * centres
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    cosine = 1 - distance**2 / 2
    return np.asarray(cosine * centres + math.sqrt(1 - cosine**2) * directions)


def _deviations(
    random: np.random.Generator, query: Values, points: Values, bits: int, p: float
) -> Values:
    """Return the deviations (m,) of the shares of differing bits from p in one draw."""
    planes = random.standard_normal((_DIMS, bits))
    differs = (points @ planes >= 0) != (query @ planes >= 0)
    return np.asarray(abs(differs.mean(axis=1) - p))


def _counts(shells: Shells, bits: int, seed: int) -> Values:
    """Return the numbers (3, nq) of retrieved near points, far points and all points."""
    index = Index.build(
        shells.points,
        hash_family="lsh_div",
        hyperplanes="gaussian",
        n_bits=bits,
        n_tables=TABLES,
        seed=seed,
    )
    result = index.query(
        shells.queries,
        k=len(shells.points),
        selector="nearest",
        search="tables",
        n_probes=TABLES,
        hash_limit=0,
        candidates_limit=0,
    )
    is_found = result.ids >= 0
    is_own = is_found & (shells.owners[result.ids] == np.arange(QUERIES)[:, None])
    near = (is_own & shells.is_near[result.ids]).sum(axis=1)
    return np.array([near, is_own.sum(axis=1) - near, is_found.sum(axis=1)], np.float64)
