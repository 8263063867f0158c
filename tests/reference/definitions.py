"""Slow reference implementations of the core's queries, with which tests compare the core.

They follow the definitions in float64 and plain Python without any optimisation, so that a reader
can verify them. They take two things from an index because the definitions leave them open. The
first is the random hyperplanes. The second is the stored codes, because rounding may put a point
close to a hyperplane on either side.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from divgrpc.types import EffectiveParameters, Metric
from reference.kernels import (
    asymmetric_score,
    buckets,
    estimates,
    hamming,
    levels,
    margins,
    needed,
    priority,
    probes,
    reach,
    split,
)

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]
Bits = npt.NDArray[np.bool_]

# To choose some cells, the exact distances of CHOICE times as many centres are compared. A query
# that may read up to MOST_CELLS times its probes compares 1.5 times as many centres, and reads at
# least one cell for LEAST_CELLS probes.
CHOICE = 2
MOST_CELLS = 2
LEAST_CELLS = 4


@dataclass(frozen=True)
class Cells:
    """The cells of a partition.

    `members` holds the rows of each cell. `centres` (C, m) are the centres in the coordinates of
    the first m hyperplanes, and `squares` (C,) are the squared lengths of the centres. `bits` (C,
    B) and `terms` (2, C) are the codes and terms of the centres. `reaches` (C,), or none, are the
    mean distances of the first, second, and each further cell beyond the nearest.
    """

    centres: Floats
    squares: Floats
    bits: Bits
    terms: Floats
    members: list[list[int]]
    reaches: Floats


@dataclass(frozen=True, eq=False)
class Points:
    """An index as the reference implementations take it, always dense.

    `vectors` (n, d) are the rows, of unit length under cosine, and `ids` (n,) their ids.
    `hyperplanes` (d, code_bits) has one hyperplane per column, with `thresholds` (code_bits,).
    `bits` (n, code_bits) are the stored codes in the order of rows. The key of table t consists of
    `n_bits` bits of the code, starting at bit t * n_bits. `terms` (2, n) turn scores of codes into
    distances, if the index has them. With `cells`, a code describes the difference between a point
    and the centre of its cell. `has_lists`: whether exact search has inverted lists. `differences`
    caches how different pairs of points are.
    """

    vectors: Floats
    ids: Ints
    hyperplanes: Floats
    thresholds: Floats
    bits: Bits
    n_tables: int
    n_bits: int
    metric: Metric = "cosine"
    terms: Floats | None = None
    cells: Cells | None = None
    bounds: npt.NDArray[np.float32] | None = None
    has_lists: bool = False
    differences: dict[tuple[int, int], float] = field(default_factory=dict)


# Vectors.


def unit(vectors: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the rows scaled to length one."""
    rows = np.asarray(vectors, np.float64)
    return np.asarray(rows / np.sqrt((rows**2).sum(axis=-1, keepdims=True)))


def distance(a: Floats, b: Floats) -> float:
    """Return the squared distance."""
    return float(((a.astype(np.float64) - b.astype(np.float64)) ** 2).sum())


def dot(a: Floats, b: Floats) -> float:
    """Return the inner product."""
    return float(np.dot(a.astype(np.float64), b.astype(np.float64)))


def cosine(a: Floats, b: Floats) -> float:
    """Return the cosine; 0 if either vector is zero."""
    length = (dot(a, a) * dot(b, b)) ** 0.5
    return dot(a, b) / length if length > 0 else 0.0


# Metrics.


def far(points: Points, query: Floats, row: int) -> float:
    """Return the distance of a point from the query; lower is better under every metric."""
    if points.metric == "inner_product":
        return -dot(query, points.vectors[row])
    return distance(query, points.vectors[row])


def score(points: Points, query: Floats, row: int) -> float:
    """Return a point's score: the distance if the metric is euclidean, else the inner product."""
    if points.metric == "euclidean":
        return distance(query, points.vectors[row])
    return dot(query, points.vectors[row])


def apart(points: Points, row: int, other_row: int) -> float:
    """Return how different two points are under the metric of the index."""
    pair = (row, other_row) if row < other_row else (other_row, row)
    if pair not in points.differences:
        a, b = points.vectors[row], points.vectors[other_row]
        product = points.metric == "inner_product"
        points.differences[pair] = 1 - cosine(a, b) if product else distance(a, b)
    return points.differences[pair]


def costs(points: Points, query: Floats, rows: Sequence[int]) -> dict[int, float]:
    """Return the cost of taking each candidate.

    The cost is the distance. The inner product has no fixed scale, so costs under it are mapped
    linearly: the best candidate costs 0 and the worst 1.
    """
    distances = {row: far(points, query, row) for row in rows}
    if points.metric != "inner_product" or not rows:
        return distances
    low, high = min(distances.values()), max(distances.values())
    return {row: (d - low) / (high - low) if high > low else 0.0 for row, d in distances.items()}


# Searching: which points are hashed.


def draw(points: Points, rows: Iterable[int], count: int, seed: int) -> list[int]:
    """Return the `count` rows that the seeded draw keeps."""
    return sorted(rows, key=lambda row: priority(seed, int(points.ids[row])))[:count]


def hashed_by_tables(
    points: Points, query: Floats, parameters: EffectiveParameters, *, at_least: int = 0
) -> tuple[list[int], int]:
    """Return the rows in the first `n_probes` buckets, and how many buckets were looked up.

    If the first `n_probes` buckets hold fewer than `at_least` points, further buckets are looked
    up.
    """
    query_margins = margins(query, points.hyperplanes, points.thresholds)[0]
    tables = [buckets(points.bits, t, points.n_bits) for t in range(points.n_tables)]
    limit, seed = parameters.hash_limit, parameters.seed
    rows: list[int] = []
    looked_up = 0
    for table, bucket in probes(query_margins, points.n_tables, points.n_bits):
        if looked_up >= parameters.n_probes and len(rows) >= at_least:
            break
        looked_up += 1
        new = [row for row in tables[table].get(bucket, []) if row not in rows]
        if parameters.sampling == "nearest" and limit and len(rows) + len(new) >= limit:
            return rows + draw(points, new, limit - len(rows), seed), looked_up
        rows += new
    return (draw(points, rows, limit, seed) if limit else rows), looked_up


def scores(points: Points, query: Floats) -> list[int]:
    """Return the asymmetric score of every code."""
    query_levels = levels(margins(query, points.hyperplanes, points.thresholds)[0])
    return [asymmetric_score(code, query_levels) for code in points.bits]


def lowest(
    points: Points, worse: Mapping[int, float] | Sequence[float], rows: Iterable[int], count: int
) -> list[int]:
    """Return the `count` rows of lowest value; ties go by id."""
    return sorted(rows, key=lambda row: (worse[row], int(points.ids[row])))[:count]


def hashed_by_scan(points: Points, query: Floats, parameters: EffectiveParameters) -> list[int]:
    """Return the rows with the best codes; `sampling` decides between ties at the hash limit."""
    count = needed(parameters, len(points.vectors))
    stop, score_count = reach(points.vectors, query, points.bounds, count)
    rows = range(stop)
    limit = parameters.hash_limit or stop
    if limit >= stop:
        return list(rows)
    if points.cells is not None:
        every = range(len(points.cells.centres))
        return best_in_cells(points, points.cells, every, query, parameters)
    if parameters.search == "scan_hamming":
        query_bits = margins(query, points.hyperplanes, points.thresholds)[0] >= 0
        worse = [hamming(code, query_bits) for code in points.bits]
    elif points.terms is not None:
        query_margins = margins(query, points.hyperplanes, points.thresholds)[0]
        guesses = estimates(query_margins, points.bits, points.terms, [0.0] * len(points.bits))
        guesses[:score_count] = [far(points, query, row) for row in range(score_count)]
        return lowest(points, guesses, rows, limit)
    else:
        worse = [-value for value in scores(points, query)]
    inside, ties = split(worse, rows, limit)
    if parameters.sampling == "uniform":
        return inside + draw(points, ties, limit - len(inside), parameters.seed)
    return inside + nearest_rows(points, query, ties)[: limit - len(inside)]


# Cells.


def away(points: Points, cells: Cells, cell: int, query_margins: Floats) -> float:
    """Return the distance of a cell's centre, minus a part that is the same for all cells."""
    centre = cells.centres[cell]
    product = dot(centre, query_margins[: len(centre)])
    return -product if points.metric == "inner_product" else cells.squares[cell] - 2 * product


def nearest_cells(points: Points, cells: Cells, query: Floats, count: int, limit: int) -> list[int]:
    """Return the `count` nearest cells, nearest first.

    Only the `limit` cells with the nearest estimated centres are compared exactly.
    """
    query_margins = margins(query, points.hyperplanes, points.thresholds)[0]
    numbers = list(range(len(cells.centres)))
    if limit < len(numbers):
        guesses = estimates(query_margins, cells.bits, cells.terms, [0.0] * len(numbers))
        numbers = sorted(numbers, key=lambda cell: (guesses[cell], cell))[:limit]
    numbers.sort(key=lambda cell: (away(points, cells, cell, query_margins), cell))
    return numbers[:count]


def read_cells(points: Points, cells: Cells, query: Floats, n_probes: int) -> list[int]:
    """Return the cells that a query reads: those within the reach of `n_probes` probes."""
    total = len(cells.centres)
    if n_probes >= total or not len(cells.reaches):
        return nearest_cells(points, cells, query, n_probes, CHOICE * n_probes)
    most = min(total, MOST_CELLS * n_probes)
    numbers = nearest_cells(points, cells, query, most, 3 * most // 2)
    query_margins = margins(query, points.hyperplanes, points.thresholds)[0]
    distances = [np.float32(away(points, cells, cell, query_margins)) for cell in numbers]
    # The squared distance of the query from the nearest cell, in the coordinates of the centres.
    square = distances[0] + sum(np.square(query_margins[: cells.centres.shape[1]]))
    stretch = max(1.0, square / cells.reaches[-1]) ** 0.5 if cells.reaches[-1] > 0 else 1.0
    limit = distances[0] + np.float32(cells.reaches[n_probes - 1]) * np.float32(stretch)
    least = math.ceil(n_probes / LEAST_CELLS)
    return [
        cell
        for place, (cell, distance) in enumerate(zip(numbers, distances, strict=True))
        if place < least or distance <= limit
    ]


def best_in_cells(
    points: Points,
    cells: Cells,
    numbers: Sequence[int],
    query: Floats,
    parameters: EffectiveParameters,
) -> list[int]:
    """Return the `hash_limit` rows with the lowest estimates in the cells of these numbers."""
    query_margins = margins(query, points.hyperplanes, points.thresholds)[0]
    rows = [row for cell in numbers for row in cells.members[cell]]
    bases = [
        away(points, cells, cell, query_margins) for cell in numbers for _ in cells.members[cell]
    ]
    assert points.terms is not None
    signs = parameters.search == "scan_hamming"
    guesses = estimates(query_margins, points.bits[rows], points.terms[:, rows], bases, signs=signs)
    by_row = dict(zip(rows, guesses, strict=True))
    return lowest(points, by_row, rows, parameters.hash_limit)


def hashed_by_cells(
    points: Points,
    cells: Cells,
    query: Floats,
    parameters: EffectiveParameters,
    *,
    at_least: int = 0,
) -> tuple[list[int], int]:
    """Return the rows of the cells that a query reads, and how many cells it read.

    The number of probes is doubled until the cells hold `at_least` points. If the cells hold more
    than `hash_limit` points, the points with the lowest estimates stay.
    """
    count = min(parameters.n_probes, len(cells.centres))
    while True:
        numbers = read_cells(points, cells, query, count)
        rows = [row for cell in numbers for row in cells.members[cell]]
        if len(rows) >= at_least or len(numbers) == len(cells.centres):
            break
        count = min(2 * count, len(cells.centres))
    if not 0 < parameters.hash_limit < len(rows):
        return rows, len(numbers)
    return best_in_cells(points, cells, numbers, query, parameters), len(numbers)


def nearest_rows(points: Points, query: Floats, rows: Iterable[int]) -> list[int]:
    """Return the rows ordered by distance to the query, then by id."""
    return sorted(rows, key=lambda row: (far(points, query, row), int(points.ids[row])))


def hashed(
    points: Points, query: Floats, parameters: EffectiveParameters, *, at_least: int = 0
) -> tuple[list[int], int]:
    """Return the rows that the hash stage passes on, and how many buckets or cells it looked up.

    If the tables find fewer than `at_least` rows, all codes are scanned instead.
    """
    if parameters.search == "exact":
        every = nearest_rows(points, query, range(len(points.vectors)))
        return every[: parameters.hash_limit or None], 0
    probe_count = 0
    if parameters.search == "tables":
        if points.cells is not None:
            return hashed_by_cells(points, points.cells, query, parameters, at_least=at_least)
        rows, probe_count = hashed_by_tables(points, query, parameters, at_least=at_least)
        if len(rows) >= at_least:
            return rows, probe_count
    return hashed_by_scan(points, query, parameters), probe_count


def candidates(
    points: Points, query: Floats, rows: Iterable[int], parameters: EffectiveParameters
) -> list[int]:
    """Return the nearest of the hashed rows, by distance and then id."""
    most = parameters.max_distance
    near = [r for r in rows if most is None or far(points, query, r) <= most]
    return nearest_rows(points, query, near)[: parameters.candidates_limit or None]


# Selection.


def step_value(
    points: Points,
    cost: float,
    row: int,
    picks: Sequence[int],
    parameters: EffectiveParameters,
    *,
    k: int,
) -> float:
    """Return the value that a selector minimises, for one candidate row.

    `picks` are the rows picked so far, and `k` rows are picked in total.
    """
    relevance = 1 - parameters.diversity
    if parameters.selector == "mmr":
        least = min((apart(points, row, pick) for pick in picks), default=0.0)
        return relevance * cost - (1 - relevance) * least
    total = sum(apart(points, row, pick) for pick in picks)
    if parameters.variant == "corrected":
        return relevance * cost - (1 - relevance) * (total / len(picks) if picks else 0.0)
    if parameters.variant == "printed":
        return relevance * cost - total / (len(picks) + 1)
    pairs = 2 * (1 - relevance) / (k - 1) if k > 1 else 0.0
    return relevance * cost - pairs * total


def greedy(
    points: Points,
    query: Floats,
    rows: Sequence[int],
    parameters: EffectiveParameters,
    *,
    candidates: int | None = None,
) -> list[tuple[int, float]]:
    """Return the picked rows, each with the value that it had when it was picked.

    `candidates` is the number of candidates before near-copies were collapsed.
    """
    picks: list[tuple[int, float]] = []
    remaining, cost = nearest_rows(points, query, rows), costs(points, query, rows)
    k = min(parameters.k, candidates or len(remaining))
    while len(picks) < min(k, len(rows)):
        so_far = [row for row, _ in picks]
        values = [step_value(points, cost[r], r, so_far, parameters, k=k) for r in remaining]
        # `index` finds the first of equal values, which is the nearest, because `remaining` is
        # ordered by distance and id.
        best = values.index(min(values))
        picks.append((remaining.pop(best), values[best]))
    return picks
