"""Slow, obvious twins of what the core does fast; the tests compare the two.

Written from the definitions, in float64 and plain Python, and never optimised: what cannot be
wrong here can be trusted against what is fast there. Two things are taken from an index and not
computed again, because the definitions leave them open: the hyperplanes it drew, and the codes it
stored (a point within rounding of a hyperplane may fall on either side).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from divgrpc.types import EffectiveParameters, Metric
from reference_kernels import (
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

# Cells whose centres are looked at, for each that is taken.
CHOICE = 2


@dataclass(frozen=True)
class Cells:
    """A partition: `members` holds each cell's rows.

    `centres` (C, m) say how often a centre has each of the first m hyperplanes, `squares` (C,) are
    their squared lengths; `bits` (C, B) and `terms` (2, C) are theirs as those of points are.
    """

    centres: Floats
    squares: Floats
    bits: Bits
    terms: Floats
    members: list[list[int]]


@dataclass(frozen=True)
class Points:
    """An index as the twins see it, dense whatever it is.

    `vectors` (n, d), unit rows under cosine; `ids` (n,); `hyperplanes` (d, code_bits), one per
    column; `thresholds` (code_bits,); `bits` (n, code_bits) the stored codes, by row. Table t's key
    is made of the `n_bits` bits from t * n_bits on. `terms` (2, n) make distances of scores, where
    codes alone do not; in cells a code is of what leads from the centre to the point.
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


# Vectors.


def unit(vectors: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the rows at length one."""
    rows = np.asarray(vectors, np.float64)
    return np.asarray(rows / np.sqrt((rows**2).sum(axis=-1, keepdims=True)))


def distance(a: Floats, b: Floats) -> float:
    """Return the squared distance."""
    return float(((a.astype(np.float64) - b.astype(np.float64)) ** 2).sum())


def dot(a: Floats, b: Floats) -> float:
    """Return the inner product."""
    return float(np.dot(a.astype(np.float64), b.astype(np.float64)))


def cosine(a: Floats, b: Floats) -> float:
    """Return the cosine, 0 where one of the two has no direction."""
    length = (dot(a, a) * dot(b, b)) ** 0.5
    return dot(a, b) / length if length > 0 else 0.0


# Metrics.


def far(points: Points, query: Floats, row: int) -> float:
    """Return how far a point is from the query: less is better, whatever the metric."""
    if points.metric == "inner_product":
        return -dot(query, points.vectors[row])
    return distance(query, points.vectors[row])


def score(points: Points, query: Floats, row: int) -> float:
    """Return the relevance in the metric's own direction."""
    if points.metric == "euclidean":
        return distance(query, points.vectors[row])
    return dot(query, points.vectors[row])


def apart(points: Points, row: int, other: int) -> float:
    """Return how different two points are."""
    a, b = points.vectors[row], points.vectors[other]
    return 1 - cosine(a, b) if points.metric == "inner_product" else distance(a, b)


def costs(points: Points, query: Floats, rows: Sequence[int]) -> dict[int, float]:
    """Return what taking each candidate costs: its distance, or of products the share.

    A product has no scale of its own, so 0 is the best of the candidates and 1 the worst.
    """
    distances = {row: far(points, query, row) for row in rows}
    if points.metric != "inner_product" or not rows:
        return distances
    low, high = min(distances.values()), max(distances.values())
    return {row: (d - low) / (high - low) if high > low else 0.0 for row, d in distances.items()}


# Searching: which points are hashed.


def draw(points: Points, rows: Iterable[int], count: int, seed: int) -> list[int]:
    """Return the `count` of the rows that the draw keeps."""
    return sorted(rows, key=lambda row: priority(seed, int(points.ids[row])))[:count]


def hashed_by_tables(
    points: Points, query: Floats, parameters: EffectiveParameters, *, at_least: int = 0
) -> tuple[list[int], int]:
    """Return the rows found in the first `n_probes` buckets, and how many were looked up.

    Where these hold fewer than `at_least` points, more are looked up.
    """
    query_margins = margins(query, points.hyperplanes, points.thresholds)[0]
    tables = [buckets(points.bits, t, points.n_bits) for t in range(points.n_tables)]
    limit, seed = parameters.hash_limit, parameters.seed
    found: list[int] = []
    looked_up = 0
    for table, bucket in probes(query_margins, points.n_tables, points.n_bits):
        if looked_up >= parameters.n_probes and len(found) >= at_least:
            break
        looked_up += 1
        new = [row for row in tables[table].get(bucket, []) if row not in found]
        if parameters.sampling == "nearest" and limit and len(found) + len(new) >= limit:
            return found + draw(points, new, limit - len(found), seed), looked_up
        found += new
    return (draw(points, found, limit, seed) if limit else found), looked_up


def scores(points: Points, query: Floats) -> list[int]:
    """Return every code's asymmetric score."""
    query_levels = levels(margins(query, points.hyperplanes, points.thresholds)[0])
    return [asymmetric_score(code, query_levels) for code in points.bits]


def lowest(
    points: Points, worse: Mapping[int, float] | Sequence[float], rows: Iterable[int], count: int
) -> list[int]:
    """Return the `count` rows of least value, ties by id."""
    return sorted(rows, key=lambda row: (worse[row], int(points.ids[row])))[:count]


def hashed_by_scan(points: Points, query: Floats, parameters: EffectiveParameters) -> list[int]:
    """Return the rows whose codes are best; ties at the last value as `sampling` says."""
    wanted = needed(parameters, len(points.vectors))
    stop, scored = reach(points.vectors, query, points.bounds, wanted)
    rows = range(stop)
    limit = parameters.hash_limit or stop
    if limit >= stop:
        return list(rows)
    if points.cells is not None:
        every = range(len(points.cells.centres))
        return best_in_cells(points, points.cells, every, query, parameters)
    if parameters.search == "scan_hamming":
        own = margins(query, points.hyperplanes, points.thresholds)[0] >= 0
        worse = [hamming(code, own) for code in points.bits]
    elif points.terms is not None:
        own_margins = margins(query, points.hyperplanes, points.thresholds)[0]
        guesses = estimates(own_margins, points.bits, points.terms, [0.0] * len(points.bits))
        guesses[:scored] = [far(points, query, row) for row in range(scored)]
        return lowest(points, guesses, rows, limit)
    else:
        worse = [-found for found in scores(points, query)]
    inside, tied = split(worse, rows, limit)
    if parameters.sampling == "uniform":
        return inside + draw(points, tied, limit - len(inside), parameters.seed)
    return inside + nearest_rows(points, query, tied)[: limit - len(inside)]


# Cells.


def away(points: Points, cells: Cells, cell: int, query_margins: Floats) -> float:
    """Return how far a cell's centre is, up to what all have alike."""
    centre = cells.centres[cell]
    product = dot(centre, query_margins[: len(centre)])
    return -product if points.metric == "inner_product" else cells.squares[cell] - 2 * product


def nearest_cells(points: Points, cells: Cells, query: Floats, wanted: int) -> list[int]:
    """Return the numbers of the `wanted` nearest cells, in order, of those that are looked at."""
    own = margins(query, points.hyperplanes, points.thresholds)[0]
    numbers, enough = list(range(len(cells.centres))), CHOICE * wanted
    if enough < len(numbers):
        guesses = estimates(own, cells.bits, cells.terms, [0.0] * len(numbers))
        numbers = sorted(numbers, key=lambda cell: (guesses[cell], cell))[:enough]
    return sorted(numbers, key=lambda cell: (away(points, cells, cell, own), cell))[:wanted]


def best_in_cells(
    points: Points,
    cells: Cells,
    taken: Sequence[int],
    query: Floats,
    parameters: EffectiveParameters,
) -> list[int]:
    """Return the rows with the least estimates, `hash_limit` of those in the cells."""
    own = margins(query, points.hyperplanes, points.thresholds)[0]
    rows = [row for cell in taken for row in cells.members[cell]]
    bases = [away(points, cells, cell, own) for cell in taken for _ in cells.members[cell]]
    assert points.terms is not None
    signs = parameters.search == "scan_hamming"
    guesses = estimates(own, points.bits[rows], points.terms[:, rows], bases, signs=signs)
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
    """Return the rows of the nearest `n_probes` cells, and how many cells were taken.

    Twice as many are taken until they hold `at_least` points. Of too many points those stay whose
    codes are best.
    """
    wanted = min(parameters.n_probes, len(cells.centres))
    while True:
        taken = nearest_cells(points, cells, query, wanted)
        found = [row for cell in taken for row in cells.members[cell]]
        if len(found) >= at_least or len(taken) == len(cells.centres):
            break
        wanted = min(2 * wanted, len(cells.centres))
    if not 0 < parameters.hash_limit < len(found):
        return found, len(taken)
    return best_in_cells(points, cells, taken, query, parameters), len(taken)


def nearest_rows(points: Points, query: Floats, rows: Iterable[int]) -> list[int]:
    """Return the rows by distance to the query, then by id."""
    return sorted(rows, key=lambda row: (far(points, query, row), int(points.ids[row])))


def hashed(
    points: Points, query: Floats, parameters: EffectiveParameters, *, at_least: int = 0
) -> tuple[list[int], int]:
    """Return the rows that the hash stage hands on, and how many buckets or cells were looked up.

    Tables that find too few give way to a scan.
    """
    if parameters.search == "exact":
        every = nearest_rows(points, query, range(len(points.vectors)))
        return every[: parameters.hash_limit or None], 0
    probed = 0
    if parameters.search == "tables":
        if points.cells is not None:
            return hashed_by_cells(points, points.cells, query, parameters, at_least=at_least)
        found, probed = hashed_by_tables(points, query, parameters, at_least=at_least)
        if len(found) >= at_least:
            return found, probed
    return hashed_by_scan(points, query, parameters), probed


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
    picked: Sequence[int],
    parameters: EffectiveParameters,
    *,
    k: int,
) -> float:
    """Return what a selector minimises, for one candidate row when these of `k` rows are picked."""
    relevance = 1 - parameters.diversity
    if parameters.selector == "mmr":
        least = min((apart(points, row, other) for other in picked), default=0.0)
        return relevance * cost - (1 - relevance) * least
    total = sum(apart(points, row, other) for other in picked)
    if parameters.variant == "corrected":
        return relevance * cost - (1 - relevance) * (total / len(picked) if picked else 0.0)
    if parameters.variant == "printed":
        return relevance * cost - total / (len(picked) + 1)
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
    """Return the picked rows and the value each had when it was picked.

    `candidates` is how many there were before near-copies were collapsed.
    """
    picked: list[tuple[int, float]] = []
    remaining, cost = nearest_rows(points, query, rows), costs(points, query, rows)
    k = min(parameters.k, candidates or len(remaining))
    while len(picked) < min(k, len(rows)):
        so_far = [row for row, _ in picked]
        values = [step_value(points, cost[r], r, so_far, parameters, k=k) for r in remaining]
        # The first of equals: `remaining` lies in the order of distance and id.
        best = values.index(min(values))
        picked.append((remaining.pop(best), values[best]))
    return picked


@dataclass(frozen=True)
class Answer:
    """What a query row gets: picks in order, the hashed points and the candidates it had."""

    ids: list[int]
    scores: list[float]
    selection_scores: list[float]
    hashed: list[int]
    candidates: list[int]
    probed: int
    collapsed: int = 0
    duplicates: int = 0


# Near-copies.


def copy_limit(points: Points, threshold: float) -> float:
    """Return how far apart near-copies are at most, as `apart` measures it."""
    if points.metric == "euclidean":
        return threshold
    return (1 - threshold) * (2 if points.metric == "cosine" else 1) + 1e-6


def keep_different(points: Points, near: Sequence[int], limit: float) -> list[int]:
    """Return the candidates, nearest first, that are within the limit of no kept one before."""
    kept: list[int] = []
    for row in near:
        if all(apart(points, row, other) > limit for other in kept):
            kept.append(row)
    return kept


def copies_of(
    points: Points, near: Sequence[int], picks: Sequence[int], limit: float
) -> dict[int, list[int]]:
    """Return the candidates that are near-copies of each pick; each is of the first it is like."""
    copies: dict[int, list[int]] = {pick: [] for pick in picks}
    for row in near:
        like = [pick for pick in picks if apart(points, row, pick) <= limit]
        if like and row not in copies:
            copies[like[0]].append(row)
    return copies


def select_different(
    points: Points, query: Floats, near: Sequence[int], parameters: EffectiveParameters
) -> tuple[list[tuple[int, float]], int, int, int]:
    """Return picks that differ with their values, the pool, its copies of them, and the rest.

    `near` is as far as the pool may grow. The rest are near-copies that fill up, nearest first.
    """
    from reference_selectors import select

    assert parameters.duplicate_threshold is not None
    limit = copy_limit(points, parameters.duplicate_threshold)
    plain = is_plain(parameters)
    pool = min(parameters.candidates_limit or len(near), len(near))
    while True:
        kept = keep_different(points, near[:pool], limit)
        if plain:
            picked = [(row, far(points, query, row)) for row in kept[: parameters.k]]
        elif parameters.selector in {"greedy", "mmr"}:
            picked = greedy(points, query, kept, parameters, candidates=pool)
        else:
            picked = select(points, query, kept, parameters)
        picks = [row for row, _ in picked]
        copies = sum(map(len, copies_of(points, near[:pool], picks, limit).values()))
        if pool == len(near) or 4 * copies < pool:
            break
        pool = min(2 * pool, len(near))
    rest = [row for row in near[:pool] if row not in picks][: parameters.k - len(picks)]
    picked += [(row, far(points, query, row)) for row in rest]
    return picked, pool, copies, len(rest)


def is_plain(parameters: EffectiveParameters) -> bool:
    """Tell whether relevance alone decides."""
    printed = parameters.selector == "greedy" and parameters.variant == "printed"
    return parameters.selector == "nearest" or (parameters.diversity == 0 and not printed)


def answer(
    points: Points, query: Floats, parameters: EffectiveParameters, *, at_least: int = 0
) -> Answer:
    """Answer one query row from end to end."""
    found, probed = hashed(points, query, parameters, at_least=at_least)
    seen = candidates(points, query, found, parameters)
    copies = duplicates = 0
    # Imported here because it goes by what stands above.
    from reference_selectors import select

    if parameters.duplicate_threshold is not None:
        widest = replace(parameters, candidates_limit=4 * parameters.candidates_limit)
        near = candidates(points, query, found, widest)
        picked, pool, copies, duplicates = select_different(points, query, near, parameters)
        seen = near[:pool]
    elif is_plain(parameters):
        picked = [(row, far(points, query, row)) for row in seen[: parameters.k]]
    else:
        picked = select(points, query, seen, parameters)
    return Answer(
        ids=[int(points.ids[row]) for row, _ in picked],
        scores=[score(points, query, row) for row, _ in picked],
        selection_scores=[-value for _, value in picked],
        hashed=found,
        candidates=seen,
        probed=probed,
        collapsed=copies,
        duplicates=duplicates,
    )


# How good a chosen set is.


def objective(query: Floats, chosen: Floats, diversity: float) -> float:
    """Return J: mean distance to the query against mean distance of pairs; lower is better."""
    to_query = [distance(query, x) for x in chosen]
    between = [distance(a, b) for a, b in combinations(chosen, 2)]
    apart = sum(between) / len(between) if between else 0.0
    return (1 - diversity) * sum(to_query) / len(to_query) - diversity * apart


def gap_closed(value: float, nearest: float, exhaustive: float) -> float:
    """Return 0 where J is that of plain nearest neighbours, 1 where of greedy over all points."""
    return (nearest - value) / (nearest - exhaustive)


# Dials that are chosen.


def loss(relevances: Sequence[float], places: Sequence[int]) -> float:
    """Return the share of the candidates' relevance that picks give up; 0 where all are equal.

    `relevances` are those of all candidates, nearest first; `places` are the picks among them.
    """
    nearest = sum(relevances[: len(places)]) / len(places)
    every = sum(relevances) / len(relevances)
    if nearest == every:
        return 0.0
    return (nearest - sum(relevances[place] for place in places) / len(places)) / (nearest - every)


def automatic_dial(relevances: Sequence[float], k: int, factor: float) -> float:
    """Return the dial, before it is rounded, by the share of the best one's lead that k keep."""
    every = sum(relevances) / len(relevances)
    kept = (sum(relevances[:k]) / k - every) / (relevances[0] - every)
    return factor * kept / (1 + factor * kept)
