"""Slow, obvious twins of what the core does fast; the tests compare the two.

Written from the definitions, in float64 and plain Python, and never optimised: what cannot be
wrong here can be trusted against what is fast there. Two things are taken from an index and not
computed again, because the definitions leave them open: the hyperplanes it drew, and the codes it
stored (a point within rounding of a hyperplane may fall on either side).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import acos, ceil, log, log1p, pi
from typing import Any

import numpy as np
import numpy.typing as npt

from divgrpc.types import EffectiveParameters

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]
Bits = npt.NDArray[np.bool_]

WORD_BITS = 64
MASK = 2**64 - 1


@dataclass(frozen=True)
class Points:
    """An index as the twins see it.

    `vectors` (n, d) unit rows; `ids` (n,); `hyperplanes` (d, code_bits), one per column;
    `thresholds` (code_bits,); `bits` (n, code_bits) the stored codes. Table t's key is made of the
    `n_bits` bits from t * n_bits on; a search over tables looks up `n_probes` buckets.
    """

    vectors: Floats
    ids: Ints
    hyperplanes: Floats
    thresholds: Floats
    bits: Bits
    n_tables: int
    n_bits: int
    n_probes: int


@dataclass(frozen=True)
class Answer:
    """What a query row gets: picks in order, the hashed points and the candidates it had."""

    ids: list[int]
    scores: list[float]
    selection_scores: list[float]
    hashed: list[int]
    candidates: list[int]


# Vectors.


def unit(vectors: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the rows at length one."""
    rows = np.asarray(vectors, np.float64)
    return np.asarray(rows / np.sqrt((rows**2).sum(axis=-1, keepdims=True)))


def distance(a: Floats, b: Floats) -> float:
    """Return the squared distance of two unit vectors."""
    return 2 - 2 * dot(a, b)


def dot(a: Floats, b: Floats) -> float:
    """Return the inner product."""
    return float(np.dot(a.astype(np.float64), b.astype(np.float64)))


def fixed_order_dot(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> np.float32:
    """Return the inner product in float32, summed in the one order that the core sums in."""
    return _fixed_order_sum(a * b)


def fixed_order_distance(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> np.float32:
    """Return the squared distance in float32, summed in the same order."""
    return _fixed_order_sum((a - b) * (a - b))


def _fixed_order_sum(terms: npt.NDArray[np.float32]) -> np.float32:
    """Add up as the core does.

    Terms go to four accumulators of 16 lanes in turn, what is left of 64 to the first; these are
    added in pairs, the lanes folded in halves, and what is left of 16 is added one by one.
    """
    sums = np.zeros((4, 16), np.float32)
    blocks = len(terms) // 16
    for block in range(blocks):
        accumulator = block % 4 if block < blocks // 4 * 4 else 0
        sums[accumulator] += terms[16 * block : 16 * block + 16]
    lanes = (sums[0] + sums[1]) + (sums[2] + sums[3])
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    total = lanes[0]
    for term in terms[16 * blocks :]:
        total += term
    return np.float32(total)


# Codes.


def margins(vectors: Floats, hyperplanes: Floats, thresholds: Floats) -> npt.NDArray[np.float64]:
    """Return how far each vector lies beyond each hyperplane, (n, code_bits)."""
    products = np.atleast_2d(vectors).astype(np.float64) @ hyperplanes.astype(np.float64)
    return np.asarray(products - thresholds.astype(np.float64))


def pack(bits: Bits) -> npt.NDArray[np.uint64]:
    """Return bits (n, code_bits) as words (code_bits / 64, n), bit b in word b // 64."""
    words = np.zeros((ceil(bits.shape[1] / WORD_BITS), len(bits)), np.uint64)
    for point, row in enumerate(bits):
        for b in np.flatnonzero(row).tolist():
            words[b // WORD_BITS, point] |= np.uint64(1 << (b % WORD_BITS))
    return words


def unpack(words: npt.NDArray[np.uint64]) -> Bits:
    """Return words (w, n) as bits (n, 64 * w)."""
    columns = [
        [bool(int(words[b // WORD_BITS, point]) >> (b % WORD_BITS) & 1) for point in range(n)]
        for n in (words.shape[1],)
        for b in range(WORD_BITS * words.shape[0])
    ]
    return np.array(columns, np.bool_).T


def hamming(a: Bits, b: Bits) -> int:
    """Return the number of bits in which two codes differ."""
    return int((a != b).sum())


def collision_probability(distance: float) -> float:
    """Return the chance that one bit of two unit vectors agrees (Eq. 5 of the paper)."""
    return 1 - acos(max(-1.0, min(1.0, 1 - distance / 2))) / pi


def tables_needed(distance: float, n_bits: int, failure_probability: float) -> int:
    """Return how many tables find a point at this distance, but for this chance of failure."""
    whole_key = collision_probability(distance) ** n_bits
    return 1 if whole_key >= 1 else ceil(log(failure_probability) / log1p(-whole_key))


# Tables.


def key(bits: Bits, table: int, n_bits: int) -> int:
    """Return a code's key in a table: its bit j is the code's bit table * n_bits + j."""
    return sum(int(bits[table * n_bits + j]) << j for j in range(n_bits))


def buckets(bits: Bits, table: int, n_bits: int) -> dict[int, list[int]]:
    """Return the rows of each bucket of a table, by key."""
    found: dict[int, list[int]] = {}
    for row, code in enumerate(bits):
        found.setdefault(key(code, table, n_bits), []).append(row)
    return found


def probes(query_margins: Floats, n_tables: int, n_bits: int) -> list[tuple[int, int]]:
    """Return all probes of all tables as (table, key), in the order of looking up.

    A probe flips a set of bits and scores the sum of their squared margins. Sets of equal score
    come in the order of their masks, bit r of which stands for the bit of r-th smallest margin,
    then of tables.
    """
    home = query_margins >= 0
    every = []
    for table in range(n_tables):
        squares = query_margins[table * n_bits : (table + 1) * n_bits].astype(np.float64) ** 2
        ranked = np.argsort(squares, kind="stable").tolist()
        for mask in range(2**n_bits):
            flipped = [ranked[r] for r in range(n_bits) if mask >> r & 1]
            score = sum(float(squares[j]) for j in flipped)
            flips = sum(1 << j for j in flipped)
            every.append((score, mask, table, key(home, table, n_bits) ^ flips))
    return [(table, bucket) for _, _, table, bucket in sorted(every)]


# Searching: which points are hashed.


def priority(seed: int, point_id: int) -> int:
    """Return a point's lot in a seeded draw; the lowest stay."""
    return splitmix64(splitmix64(seed) ^ point_id)


def splitmix64(state: int) -> int:
    """Return the output of the splitmix64 generator at this state."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


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
        if looked_up >= points.n_probes and len(found) >= at_least:
            break
        looked_up += 1
        new = [row for row in tables[table].get(bucket, []) if row not in found]
        if parameters.sampling == "nearest" and limit and len(found) + len(new) >= limit:
            return found + draw(points, new, limit - len(found), seed), looked_up
        found += new
    return (draw(points, found, limit, seed) if limit else found), looked_up


def levels(query_margins: Floats) -> list[int]:
    """Return the margins in 15 levels, -7 to 7: shares of the largest, halves to even."""
    most = max(abs(float(m)) for m in query_margins)
    return [round(7 * float(m) / most) if most > 0 else 0 for m in query_margins]


def asymmetric_score(bits: Bits, query_levels: Sequence[int]) -> int:
    """Return the sum of the query's levels over a code's set bits; larger is nearer."""
    return sum(level for bit, level in zip(bits, query_levels, strict=True) if bit)


def hashed_by_scan(points: Points, query: Floats, parameters: EffectiveParameters) -> list[int]:
    """Return the rows whose codes are best; ties at the last value as `sampling` says."""
    query_margins = margins(query, points.hyperplanes, points.thresholds)[0]
    rows = range(len(points.vectors))
    limit = parameters.hash_limit or len(rows)
    if parameters.search == "scan_hamming":
        worse = [hamming(points.bits[row], query_margins >= 0) for row in rows]
    else:
        query_levels = levels(query_margins)
        worse = [-asymmetric_score(points.bits[row], query_levels) for row in rows]
    if limit >= len(rows):
        return list(rows)
    boundary = sorted(worse)[limit - 1]
    inside = [row for row in rows if worse[row] < boundary]
    tied = [row for row in rows if worse[row] == boundary]
    if parameters.sampling == "uniform":
        return inside + draw(points, tied, limit - len(inside), parameters.seed)
    return inside + nearest_rows(points, query, tied)[: limit - len(inside)]


def nearest_rows(points: Points, query: Floats, rows: Iterable[int]) -> list[int]:
    """Return the rows by distance to the query, then by id."""
    return sorted(
        rows, key=lambda row: (distance(query, points.vectors[row]), int(points.ids[row]))
    )


def hashed(
    points: Points, query: Floats, parameters: EffectiveParameters, *, at_least: int = 0
) -> list[int]:
    """Return the rows that the hash stage hands on; tables that find too few give way to a scan."""
    if parameters.search == "exact":
        every = nearest_rows(points, query, range(len(points.vectors)))
        return every[: parameters.hash_limit or None]
    if parameters.search == "tables":
        found, _ = hashed_by_tables(points, query, parameters, at_least=at_least)
        if len(found) >= at_least:
            return found
    return hashed_by_scan(points, query, parameters)


def candidates(
    points: Points, query: Floats, rows: Iterable[int], parameters: EffectiveParameters
) -> list[int]:
    """Return the nearest of the hashed rows, by distance and then id."""
    most = parameters.max_distance
    near = [r for r in rows if most is None or distance(query, points.vectors[r]) <= most]
    return nearest_rows(points, query, near)[: parameters.candidates_limit or None]


# Selection.


def step_value(
    points: Points,
    query: Floats,
    row: int,
    picked: Sequence[int],
    parameters: EffectiveParameters,
    *,
    k: int,
) -> float:
    """Return what a selector minimises, for one candidate row when these of `k` rows are picked."""
    relevance = 1 - parameters.diversity
    far = distance(query, points.vectors[row])
    if parameters.selector == "mmr":
        least = min((distance(points.vectors[row], points.vectors[s]) for s in picked), default=0.0)
        return relevance * far - (1 - relevance) * least
    apart = sum(distance(points.vectors[row], points.vectors[s]) for s in picked)
    if parameters.variant == "corrected":
        return relevance * far - (1 - relevance) * (apart / len(picked) if picked else 0.0)
    if parameters.variant == "printed":
        return relevance * far - apart / (len(picked) + 1)
    pairs = 2 * (1 - relevance) / (k - 1) if k > 1 else 0.0
    return relevance * far - pairs * apart


def greedy(
    points: Points, query: Floats, rows: Sequence[int], parameters: EffectiveParameters
) -> list[tuple[int, float]]:
    """Return the picked rows and the value each had when it was picked."""
    picked: list[tuple[int, float]] = []
    remaining = nearest_rows(points, query, rows)
    k = min(parameters.k, len(remaining))
    while len(picked) < k:
        so_far = [row for row, _ in picked]
        values = [step_value(points, query, row, so_far, parameters, k=k) for row in remaining]
        # The first of equals: `remaining` lies in the order of distance and id.
        best = values.index(min(values))
        picked.append((remaining.pop(best), values[best]))
    return picked


def answer(
    points: Points, query: Floats, parameters: EffectiveParameters, *, at_least: int = 0
) -> Answer:
    """Answer one query row from end to end."""
    found = hashed(points, query, parameters, at_least=at_least)
    seen = candidates(points, query, found, parameters)
    if parameters.selector == "nearest":
        picked = [(row, distance(query, points.vectors[row])) for row in seen[: parameters.k]]
    else:
        picked = greedy(points, query, seen, parameters)
    return Answer(
        ids=[int(points.ids[row]) for row, _ in picked],
        scores=[dot(query, points.vectors[row]) for row, _ in picked],
        selection_scores=[-value for _, value in picked],
        hashed=found,
        candidates=seen,
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
