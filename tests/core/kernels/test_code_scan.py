"""Scans of codes: scores, estimates, the selection of the best, and seeded draws."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.hashing.codes import pack_terms
from divgrpc.kernels import code_scan, projection, top_k
from divgrpc.kernels.records import Levels
from divgrpc.parameters import QueryParameters
from divgrpc.search.plan import QueryPlan
from divgrpc.types import FloatArray
from reference import kernels

examples = settings(max_examples=30)
seeds = st.integers(0, 2**32 - 1)
EDGES = [1, 2, 63, 64, 65, 127, 128, 1023, 1024, 1025, 2100]
Tiles = npt.NDArray[np.uint8]
NO_IDS = np.empty(0, np.int64)
NO_TERMS = np.empty(0, np.uint32)
NO_TERMS.setflags(write=False)


def random_bits(points: int, bits: int, seed: int) -> npt.NDArray[np.bool_]:
    return np.random.default_rng(seed).random((points, bits)) < 0.5


def group_minima(distances: FloatArray) -> list[float]:
    blocks = -(-len(distances) // code_scan.BLOCK_POINTS)
    full_blocks = np.full(blocks * code_scan.BLOCK_POINTS, np.inf, np.float32)
    full_blocks[: len(distances)] = distances
    minima: list[float] = (
        full_blocks.reshape(blocks, code_scan.GROUP_POINTS, code_scan.BLOCK_GROUPS)
        .min(axis=1)
        .ravel()
        .tolist()
    )
    return minima


def levels_of(margins: FloatArray, codes: Tiles, *, hamming: bool) -> Levels:
    tables = np.empty((len(margins) // 4, 16), np.uint8)
    levels: Levels = code_scan.levels_of(margins, hamming, hamming, codes, tables)
    # A kernel returns a float32 as a Python float.
    return levels._replace(unit=np.float32(levels.unit))


def codes_of(bits: npt.NDArray[np.bool_]) -> Tiles:
    """Return codes read-only as in an index: writable arrays would compile the kernels again."""
    codes = kernels.tiles(bits)
    codes.setflags(write=False)
    return codes


def scan(
    codes: Tiles,
    points: int,
    levels: Levels,
    terms: npt.NDArray[np.uint32] = NO_TERMS,
) -> tuple[FloatArray, FloatArray]:
    groups = -(-points // code_scan.BLOCK_POINTS) * code_scan.BLOCK_GROUPS
    distances, minima = np.full(points, 12345, np.float32), np.full(groups, 12345, np.float32)
    code_scan.scan_codes(codes, terms, levels, points, distances, minima)
    return distances, minima


@examples
@given(seed=seeds, words=st.integers(1, 9), points=st.sampled_from(EDGES), hamming=st.booleans())
def test_a_scan_sums_levels_or_counts_differing_bits(
    seed: int, words: int, points: int, *, hamming: bool
) -> None:
    bits = random_bits(points, 64 * words, seed)
    margins = np.random.default_rng(seed).standard_normal(64 * words).astype(np.float32)
    codes = codes_of(bits)
    distances, minima = scan(codes, points, levels_of(margins, codes, hamming=hamming))
    if hamming:
        assert distances.tolist() == [kernels.hamming(code, margins >= 0) for code in bits]
    else:
        sizes = kernels.levels(margins)
        assert (-distances).tolist() == [kernels.asymmetric_score(code, sizes) for code in bits]
    assert minima.tolist() == group_minima(distances)


@examples
@given(
    seed=seeds,
    words=st.integers(1, 5),
    depth=st.sampled_from([1, 2, 4]),
    points=st.sampled_from(EDGES),
    k=st.integers(1, 40),
)
def test_estimates_computed_in_a_scan_agree_with_those_from_scores(
    seed: int, words: int, depth: int, points: int, k: int
) -> None:
    rng = np.random.default_rng(seed)
    bits, margins = (
        random_bits(points, 64 * words * depth, seed),
        rng.standard_normal(64 * words).astype(np.float32),
    )
    codes, sizes = codes_of(bits), kernels.levels(margins)
    levels = levels_of(margins, codes, hamming=False)
    unit, total = levels.unit, levels.level_sum
    terms = pack_terms(*rng.random((2, points)).astype(np.float32))
    terms.setflags(write=False)
    scores = (-scan(codes, points, levels)[0]).astype(np.int32)
    assert scores[:9].tolist() == [kernels.asymmetric_score(code, sizes) for code in bits[:9]]
    apart = -scores.astype(np.float32)
    code_scan.estimate(unit, total, terms, 0, np.float32(0), apart)
    truth = [
        t - np.float32(np.float32(2 * s - total) * unit) * f
        for s, t, f in zip(scores, *kernels.unpack_terms(terms), strict=True)
    ]
    assert apart.tolist() == np.array(truth, np.float32).tolist()
    whole, minima = scan(codes, points, levels, terms)
    assert whole.tolist() == apart.tolist()
    assert minima.tolist() == group_minima(whole)
    k, rows = min(k, points), np.full(points, -1, np.int32)
    count = code_scan.take_least(whole, minima, points, k, rows)
    positions = rows[:count].tolist()
    assert count >= k
    assert len(set(positions)) == count
    assert whole[:count].tolist() == apart[positions].tolist()
    assert set(np.flatnonzero(apart <= np.sort(apart)[k - 1]).tolist()) <= set(positions)


@pytest.mark.parametrize("exact_count", [0, 1, 255, 1024, 1500])
@pytest.mark.parametrize("stop", [1500, 2100])
def test_known_distances_replace_estimates(exact_count: int, stop: int) -> None:
    rng = np.random.default_rng(exact_count)
    estimates = rng.random(2100).astype(np.float32)
    minima = np.empty(3 * code_scan.BLOCK_GROUPS, np.float32)
    distances = -rng.random(exact_count).astype(np.float32)
    expected = np.full(3 * code_scan.BLOCK_POINTS, np.inf, np.float32)
    expected[:stop] = estimates[:stop]

    def columns() -> FloatArray:
        least = expected.reshape(3, code_scan.GROUP_POINTS, code_scan.BLOCK_GROUPS).min(axis=1)
        return np.asarray(least.ravel())

    minima[:] = columns()
    expected[:exact_count] = distances
    code_scan.replace_estimates(distances, stop, estimates, minima)
    assert estimates[:stop].tolist() == expected[:stop].tolist()
    assert minima.tolist() == columns().tolist()


@pytest.mark.parametrize("words", [1, 4, 96])
@pytest.mark.parametrize("sign", [1, -1])
def test_extreme_scores_do_not_overflow(words: int, sign: int) -> None:
    bits = np.zeros((2, 64 * words), np.bool_)
    bits[0] = True
    margins = np.full(64 * words, sign, np.float32)
    codes = codes_of(bits)
    distances, _ = scan(codes, 2, levels_of(margins, codes, hamming=False))
    assert distances.tolist() == [-sign * 7 * 64 * words, 0]
    distances, _ = scan(codes, 2, levels_of(margins, codes, hamming=True))
    assert sorted(distances.tolist()) == [0, 64 * words]


def take(
    scores: npt.NDArray[np.int32], hash_limit: int, ids: npt.NDArray[np.int64], *, draw: bool
) -> tuple[list[int], list[int]]:
    """Return the rows above the boundary, and the rows that tie at it."""
    distances, rows = -scores.astype(np.float32), np.full(len(scores), -1, np.int32)
    minima = np.array(group_minima(distances), np.float32)
    count = code_scan.take_least(distances, minima, len(scores), hash_limit, rows)
    parameters = QueryParameters(seed=7, sampling="uniform" if draw else "nearest")
    limits = replace(parameters.resolve(10**6, "scan"), hash_limit=hash_limit)
    plan = QueryPlan.of(limits, "cosine", 10**6).kernel
    sure, count = code_scan.settle_ties(rows, distances, count, False, plan, ids)
    return rows[:sure].tolist(), rows[sure:count].tolist()


@examples
@given(
    seed=seeds,
    points=st.sampled_from(EDGES),
    spread=st.sampled_from([0, 1, 3, 40, 5000]),
    share=st.floats(0, 1),
    draw=st.booleans(),
)
def test_rows_split_into_certain_rows_and_ties(
    seed: int, points: int, spread: int, share: float, *, draw: bool
) -> None:
    """A draw fills up the certain rows with the ties of lowest priority."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(-spread, spread + 1, points).astype(np.int32)
    ids = rng.permutation(10 * points)[:points].astype(np.int64) if draw else NO_IDS
    hash_limit = max(1, round(share * points))
    boundary = sorted(scores.tolist(), reverse=True)[hash_limit - 1]
    sure, tie_rows = take(scores, hash_limit, ids, draw=draw)
    assert sorted(sure) == np.flatnonzero(scores > boundary).tolist()
    ties = np.flatnonzero(scores == boundary).tolist()
    if draw:
        lots = sorted(ties, key=lambda row: kernels.priority(7, int(ids[row])))
        ties = sorted(lots[: hash_limit - len(sure)])
    assert sorted(tie_rows) == ties


@given(word=st.integers(0, 2**64 - 1))
def test_mix_is_splitmix64(word: int) -> None:
    assert top_k.mix(np.uint64(word)) == kernels.splitmix64(word)


def kept(rows: list[int], size: int, ids: npt.NDArray[np.int64], seed: int) -> list[int]:
    array = np.array(rows, np.int32)
    end: int = top_k.keep_sample(array, 0, len(rows), size, ids, np.uint64(seed))
    stay: list[int] = array[:end].tolist()
    return stay


@examples
@given(
    points=st.integers(0, 200),
    size=st.integers(0, 220),
    seed=st.integers(0, 2**64 - 1),
    given_ids=st.booleans(),
)
def test_keep_sample_keeps_the_lowest_priorities(
    points: int, size: int, seed: int, given_ids: bool
) -> None:
    rng = np.random.default_rng(points)
    ids = rng.choice(2**62, points, replace=False) if given_ids else np.arange(points)
    lots = sorted(range(points), key=lambda row: kernels.priority(seed, int(ids[row])))
    stay = set(lots[:size])
    rows = rng.permutation(points).tolist()
    result = kept(rows, size, ids if given_ids else NO_IDS, seed)
    assert result == [row for row in rows if row in stay]


@examples
@given(seed=seeds, points=st.sampled_from([1, 63, 64, 65, 300]), start=st.sampled_from([0, 5]))
def test_keep_least_appends_estimates_up_to_the_limit(seed: int, points: int, start: int) -> None:
    rng = np.random.default_rng(seed)
    fresh = rng.integers(0, 9, points).astype(np.float32)
    fresh[rng.random(points) < 0.1] = np.inf
    names = rng.permutation(points).astype(np.int32)
    for limit in np.array([-1, 3, np.inf], np.float32):
        rows, estimates = np.full(points + 5, -7, np.int32), np.full(points + 5, -7, np.float32)
        count = code_scan.keep_least(fresh, names, limit, start, rows, estimates)
        inside = fresh <= limit
        assert count == start + inside.sum()
        assert rows[start:count].tolist() == names[inside].tolist()
        assert estimates[start:count].tolist() == fresh[inside].tolist()
        assert (rows[:start] == -7).all()


@examples
@given(seed=seeds, words=st.sampled_from([1, 4]), zeros=st.sampled_from([0.0, 0.5, 1.0]))
def test_quantise_signs_gives_levels_of_plus_or_minus_1(
    seed: int, words: int, zeros: float
) -> None:
    """Levels times the unit have the same product with the margins as the margins themselves."""
    rng = np.random.default_rng(seed)
    margins = rng.standard_normal(64 * words).astype(np.float32)
    margins[rng.random(len(margins)) < zeros] = 0
    tables = np.empty((16 * words, 16), np.uint8)
    unit, total = projection.quantise_signs(margins, tables)
    weights = np.where(margins >= 0, 1, -1)
    assert tables.tolist() == kernels.look_up_tables(weights.tolist())
    assert total == weights.sum()
    size = np.abs(margins).sum()
    assert np.isclose(unit, (margins**2).sum() / size if size else 0, rtol=1e-4)
