"""Reference implementations of the small kernels: sums, codes, probes and seeded draws.

The core adds up terms in one fixed order so that every machine computes the same bytes. This module
spells that order out as plainly as possible. `reference.definitions` answers queries with these
functions.
"""

import struct
from collections.abc import Iterable, Sequence
from math import acos, ceil, hypot, log, log1p, pi
from typing import Any

import numpy as np
import numpy.typing as npt

from divgrpc.types import EffectiveParameters

Floats = npt.NDArray[np.floating[Any]]
Singles = npt.NDArray[np.float32]
Bits = npt.NDArray[np.bool_]

WORD_BITS = 64
MASK = 2**64 - 1


# Inner products and distances, added up in the same fixed order as in the core.


def fixed_order_dot(a: Singles, b: Singles) -> np.float32:
    """Return the inner product of dense rows in float32."""
    return _fixed_order_sum(a * b)


def fixed_order_distance(a: Singles, b: Singles) -> np.float32:
    """Return the squared distance of dense rows in float32."""
    return _fixed_order_sum((a - b) * (a - b))


def _fixed_order_sum(terms: Singles) -> np.float32:
    """Add up terms in the core's order.

    Blocks of 16 terms go in turn to four accumulators of 16 lanes. The one to three blocks that may
    be left over go to the first one. Then the accumulators are added in pairs, and the lanes are
    folded in halves. The last terms, fewer than 16, are added one by one.
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


def sparse_dot(indices: npt.NDArray[np.int32], values: Singles, dense: Singles) -> float:
    """Return the inner product of a sparse row and a dense row in float64.

    Stored value i is added to sum i % 16, and the 16 sums are folded in halves. The values after
    the last whole group of 16 are then added one by one.
    """
    sums = np.zeros(16)
    products = [float(v) * float(dense[i]) for i, v in zip(indices, values, strict=True)]
    whole = len(products) // 16 * 16
    for i, product in enumerate(products[:whole]):
        sums[i % 16] += product
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    total = float(sums[0])
    for product in products[whole:]:
        total += product
    return total


def dense_square(row: Singles) -> float:
    """Return the squared length of a row; value j is added to sum j % 4, as in `kernels.sparse`."""
    sums = [0.0, 0.0, 0.0, 0.0]
    for j, number in enumerate(row.tolist()):
        sums[j % 4 if j < len(row) // 4 * 4 else 0] += number * number
    return (sums[0] + sums[1]) + (sums[2] + sums[3])


# Codes.


def sketch(rows: Floats, places: npt.NDArray[np.int32], sums: int) -> npt.NDArray[np.float64]:
    """Return the count sketch (n, sums) of rows (n, d).

    If places[j] is not negative, dimension j is added to sum places[j]. Otherwise it is subtracted
    from sum ~places[j].
    """
    sketches = np.zeros((len(rows), sums))
    for row, line in enumerate(rows):
        for place, value in zip(places.tolist(), line.tolist(), strict=True):
            if place >= 0:
                sketches[row, place] += value
            else:
                sketches[row, ~place] -= value
    return sketches


def margins(vectors: Floats, hyperplanes: Floats, thresholds: Floats) -> npt.NDArray[np.float64]:
    """Return (n, code_bits), the products of vectors and hyperplanes minus the thresholds."""
    products = np.atleast_2d(vectors).astype(np.float64) @ hyperplanes.astype(np.float64)
    return np.asarray(products - thresholds.astype(np.float64))


def pack(bits: Bits) -> npt.NDArray[np.uint64]:
    """Return bits (n, code_bits) as words (code_bits / 64, n); bit b is in word b // 64."""
    padded_bits = np.pad(bits, ((0, 0), (0, -bits.shape[1] % WORD_BITS)))
    words = np.packbits(padded_bits, axis=1, bitorder="little").view("<u8")
    return np.ascontiguousarray(words.T, np.uint64)


def unpack(words: npt.NDArray[np.uint64]) -> Bits:
    """Return packed words (w, n) as bits (n, 64 * w)."""
    rows = np.ascontiguousarray(words.T, "<u8").view(np.uint8)
    return np.unpackbits(rows, axis=1, bitorder="little").astype(np.bool_)


def tiles(bits: Bits) -> npt.NDArray[np.uint8]:
    """Return bits (n, code_bits) as tiles of 32 points.

    Byte 16 * g + j of a tile has bits 4 * g to 4 * g + 3 of point j of the tile in its lower half,
    and those of point j + 16 in its upper half.
    """
    count, width = bits.shape
    padded_bits = np.pad(bits, ((0, -count % 32), (0, -width % WORD_BITS)))
    result = np.zeros((len(padded_bits) // 32, 4 * padded_bits.shape[1]), np.uint8)
    for i, b in zip(*np.nonzero(padded_bits), strict=True):
        result[i // 32, b // 4 * 16 + i % 16] |= 1 << (b % 4 + 4 * (i % 32 // 16))
    return result


def bits_in_tiles(codes: npt.NDArray[np.uint8], points: int) -> Bits:
    """Return the bits (n, code_bits) of the first `points` points in tiles."""
    halves = np.stack((codes & 15, codes >> 4), axis=1).reshape(len(codes), 2, -1, 16)
    groups = halves.transpose(0, 1, 3, 2).reshape(32 * len(codes), -1, 1)
    bits = (groups >> np.arange(4, dtype=np.uint8)) & 1
    return bits.reshape(len(groups), -1)[:points].astype(np.bool_)


def look_up_tables(sizes: list[int]) -> list[list[int]]:
    """Return for each four levels the 16 sums of the levels of the set bits, plus 28."""
    return [
        [28 + sum(sizes[first + b] for b in range(4) if entry >> b & 1) for entry in range(16)]
        for first in range(0, len(sizes), 4)
    ]


def entry_sum(code: Bits, tables: list[list[int]]) -> int:
    """Return the sum of the table entries that a code selects, weighted by its levels.

    Every len(tables) groups of four bits belong to one level. A level has half the weight of the
    level before, and the last level has the weight 1.
    """
    total, depth = 0, len(code) // 4 // len(tables)
    for group in range(len(code) // 4):
        entry = sum(int(code[4 * group + b]) << b for b in range(4))
        weight = 2 ** (depth - 1 - group // len(tables))
        total += weight * tables[group % len(tables)][entry]
    return total


def hamming(a: Bits, b: Bits) -> int:
    """Return the number of bits in which two codes differ."""
    return int((a != b).sum())


def levels(query_margins: Floats) -> list[int]:
    """Return margins as integers from -7 to 7, halves rounded to even; the largest is 7 or -7."""
    most = max(abs(float(m)) for m in query_margins)
    return [round(7 * float(m) / most) if most > 0 else 0 for m in query_margins]


def unpack_terms(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
    """Return the two terms (2, n) packed in each word (n,).

    A term is the upper 16 bits of a float32. The first term is the upper half
    of the word.
    """
    both = [(int(word) & 0xFFFF0000, int(word) << 16 & 0xFFFF0000) for word in words]
    pairs = [struct.unpack(">2f", struct.pack(">2I", *pair)) for pair in both]
    return np.array(pairs, np.float32).reshape(-1, 2).T


def asymmetric_score(bits: Bits, query_levels: Sequence[int]) -> int:
    """Return the sum of the query's levels over the set bits of a code; larger is nearer.

    A code may have several times as many bits as there are levels. Then each run of
    len(query_levels) bits weighs half as much as the run before it, and the last run weighs 1.
    """
    runs = np.reshape(bits, (-1, len(query_levels))).astype(np.int64)
    weights = 2 ** np.arange(len(runs))[::-1]
    return int(weights @ runs @ np.array(query_levels))


def odd_levels(bits: Bits, margins: int) -> npt.NDArray[np.int64]:
    """Return codes (n, B) as odd integers (n, margins), each read from B / margins bits."""
    depth = bits.shape[1] // margins
    numbers = sum(
        bits[:, level * margins : (level + 1) * margins].astype(np.int64) << (depth - 1 - level)
        for level in range(depth)
    )
    return np.asarray(2 * numbers - (2**depth - 1))


def nearest_levels(point_margins: Floats, depth: int) -> npt.NDArray[np.int64]:
    """Return the odd integers of `depth` bits that approximate margins (n, B) best.

    An odd integer i stands for i * step / 2. The step is the root mean square of the point's
    margins times a constant that depends on `depth`.
    """
    steps = {1: np.inf, 2: 0.9957, 4: 0.3352}[depth] * np.sqrt((point_margins**2).mean(axis=1))
    odd = np.arange(1 - 2**depth, 2**depth, 2)
    if depth == 1:
        return np.where(point_margins >= 0, 1, -1)
    places = odd * steps[:, np.newaxis] / 2
    off = np.abs(point_margins[:, :, np.newaxis] - places[:, np.newaxis, :])
    return np.asarray(odd[off.argmin(axis=2)])


def estimates(
    query_margins: Floats, bits: Bits, terms: Floats, bases: Sequence[float], *, signs: bool = False
) -> list[float]:
    """Return the distances estimated from codes, minus a part that is the same for all points.

    `bits` (n, B) are the codes, and `terms` (2, n) are their offsets and factors. `bases` (n,) are
    the distances from the query to the points' centres. If `signs`, only the signs of the query's
    margins are used. The estimates are computed in float32 in the core's order of operations, so
    that ties are the same as in the core.
    """
    single_margins = np.asarray(query_margins, np.float32)
    unit = np.abs(single_margins).max() / np.float32(7)
    steps = levels(single_margins)
    if signs:
        size = np.abs(single_margins).sum()
        unit = np.float32((single_margins * single_margins).sum() / size if size > 0 else 0)
        steps = [1 if margin >= 0 else -1 for margin in single_margins]
    total = sum(steps) * (2 ** (bits.shape[1] // len(steps)) - 1)
    scores = []
    for code, offset, factor, base in zip(bits, terms[0], terms[1], bases, strict=True):
        product = np.float32(2 * asymmetric_score(code, steps) - total) * unit
        scores.append(float((np.float32(base) + offset) - product * factor))
    return scores


def split(worse: Sequence[int], rows: Iterable[int], limit: int) -> tuple[list[int], list[int]]:
    """Return the rows certain to be among the `limit` lowest, and the rows tied at the limit."""
    among = list(rows)
    boundary = sorted(worse[row] for row in among)[limit - 1]
    return (
        [row for row in among if worse[row] < boundary],
        [row for row in among if worse[row] == boundary],
    )


def scan_terms(point_margins: Floats, span: float) -> npt.NDArray[np.float64]:
    """Return the factor (n,) by which the hyperplanes' signs are multiplied to estimate each point.

    A point is approximated by this factor times sum_b sign_b p_b over its B hyperplanes p_b.
    `span` is the number of dimensions that the hyperplanes span, divided by B. If the
    hyperplanes are a rotation, the inner product of the approximation with the point is the point's
    squared length.
    """
    sizes = np.abs(point_margins).sum(axis=1)
    squares = (point_margins.astype(np.float64) ** 2).sum(axis=1)
    return np.array(
        [
            span * square / size if size > 0 else 0.0
            for square, size in zip(squares, sizes, strict=True)
        ]
    )


# Tables.


def key(bits: Bits, table: int, n_bits: int) -> int:
    """Return a code's key in a table; bit j of the key is bit table * n_bits + j of the code."""
    return sum(int(bits[table * n_bits + j]) << j for j in range(n_bits))


def buckets(bits: Bits, table: int, n_bits: int) -> dict[int, list[int]]:
    """Return the rows of each bucket of a table, by key."""
    rows_by_key: dict[int, list[int]] = {}
    for row, code in enumerate(bits):
        rows_by_key.setdefault(key(code, table, n_bits), []).append(row)
    return rows_by_key


def probes(query_margins: Floats, n_tables: int, n_bits: int) -> list[tuple[int, int]]:
    """Return the probes of all tables as (table, key), in the order in which they are looked up.

    A probe flips some bits of the query's key. Its score is the sum of the squared margins of the
    flipped bits. Probes of equal score are ordered by their masks and then by table. Bit r of a
    mask stands for the bit of the key with the r-th smallest margin.
    """
    home = query_margins >= 0
    every = []
    for table in range(n_tables):
        squares = query_margins[table * n_bits : (table + 1) * n_bits].astype(np.float64) ** 2
        order = np.argsort(squares, kind="stable").tolist()
        for mask in range(2**n_bits):
            bits = [order[r] for r in range(n_bits) if mask >> r & 1]
            score = sum(float(squares[j]) for j in bits)
            flips = sum(1 << j for j in bits)
            every.append((score, mask, table, key(home, table, n_bits) ^ flips))
    return [(table, bucket) for _, _, table, bucket in sorted(every)]


# Draws.


def splitmix64(state: int) -> int:
    """Return the output of the splitmix64 generator at this state."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def priority(seed: int, point_id: int) -> int:
    """Return a point's priority in a seeded draw; the points of lowest priority are kept."""
    return splitmix64(splitmix64(seed) ^ point_id)


# Theory.


def collision_probability(distance: float) -> float:
    """Return the probability that one bit of two unit vectors agrees (Eq. 5 of the paper)."""
    return 1 - acos(max(-1.0, min(1.0, 1 - distance / 2))) / pi


def tables_needed(distance: float, n_bits: int, failure_probability: float) -> int:
    """Return the least number of tables that find a point at this distance often enough.

    Together, the tables miss the point with at most the failure probability.
    """
    whole_key = collision_probability(distance) ** n_bits
    return 1 if whole_key >= 1 else ceil(log(failure_probability) / log1p(-whole_key))


def length_bounds(rows: npt.NDArray[np.float32], block: int) -> npt.NDArray[np.float32]:
    """Return for each block an upper bound of the lengths of all rows from the block to the end."""
    lengths = [hypot(*map(float, row)) for row in rows]
    longest = [max(lengths[start:]) for start in range(0, len(rows), block)]
    return np.nextafter(np.array(longest, np.float32), np.float32(np.inf))


def needed(parameters: EffectiveParameters, rows: int) -> int:
    """Return how many of the nearest rows an answer depends on, if there are `rows` rows."""
    collapses = parameters.duplicate_threshold is not None
    limits = (parameters.hash_limit, (4 if collapses else 1) * parameters.candidates_limit)
    most = min(limit or rows for limit in (*limits, rows))
    nearest = parameters.selector == "nearest" or parameters.diversity == 0
    return min(most, parameters.k) if nearest and not collapses else most


def reach(
    rows: npt.NDArray[np.float32],
    query: npt.NDArray[np.floating[Any]],
    bounds: npt.NDArray[np.float32] | None,
    count: int,
) -> tuple[int, int]:
    """Return how many leading rows hold the `count` largest products, and how many are scored.

    If skipping rows is not worthwhile, return the number of all rows and 0. This is the case if
    there are no bounds, if the middle bound is at least half the first bound, or if more than one
    row in 32 would be scored.
    """
    block, looked_at = 256, 8
    few = 32 * max(looked_at * count, block) <= len(rows)
    if bounds is None or not few or 2 * bounds[len(bounds) // 2] >= bounds[0]:
        return len(rows), 0
    score_count = min(len(rows), ceil(looked_at * count / block) * block)
    products = sorted(
        (rows[:score_count].astype(float) @ query.astype(float)).tolist(), reverse=True
    )
    stop = score_count
    while stop < len(rows) and bounds[stop // block] * hypot(*query) >= products[count - 1]:
        stop = min(stop + block, len(rows))
    return stop, score_count


def byte_values(
    rows: npt.NDArray[np.float32],
) -> tuple[list[float], list[list[int]], list[float]]:
    """Round each value to whole steps, at most 127, of its column.

    Returns the step of each column, the numbers of steps of each row, and the length of each row's
    rounding errors.
    """
    steps = [float(np.float32(max(abs(column))) / np.float32(127)) for column in rows.T]
    counts = [
        [round(float(value) / step) if step else 0 for value, step in zip(row, steps, strict=True)]
        for row in rows
    ]
    errors = [
        sum((float(row[j]) - counts[i][j] * step) ** 2 for j, step in enumerate(steps)) ** 0.5
        for i, row in enumerate(rows)
    ]
    return steps, counts, errors


def least_distances(
    rows: npt.NDArray[np.float32], query: npt.NDArray[np.float32], *, product: bool
) -> list[float]:
    """Return a lower bound of each row's distance from the query, from the rows' byte values."""
    steps, counts, errors = byte_values(rows)
    squares = [float(row.astype(float) @ row.astype(float)) for row in (*rows, query)]
    distances = []
    for i, error in enumerate(errors):
        dot = sum(float(query[j]) * step * counts[i][j] for j, step in enumerate(steps))
        dot += squares[-1] ** 0.5 * error
        distances.append(-dot if product else squares[i] + squares[-1] - 2 * dot)
    return distances
