"""From vectors to codes, to quantised margins, and to the keys and buckets of tables."""

from math import floor, log2

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.errors import InvalidArgumentError
from divgrpc.hashing import codes as coding
from divgrpc.hashing import hyperplanes as core
from divgrpc.hashing.tables import build_table
from divgrpc.kernels import projection
from divgrpc.parameters import BuildParameters
from reference import definitions, kernels

DIMS = [1, 2, 15, 16, 17, 31, 33, 256]
seeds = st.integers(0, 2**32 - 1)


def normal(shape: tuple[int, ...], seed: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def random_bits(points: int, bits: int, seed: int) -> npt.NDArray[np.bool_]:
    return np.random.default_rng(seed).random((points, bits)) < 0.5


@given(seed=seeds, dims=st.sampled_from(DIMS), words=st.integers(1, 3), share=st.floats(0, 1))
def test_project_sparse_equals_projecting_the_dense_row(
    seed: int, dims: int, words: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    query, planes = normal((1, dims), seed), normal((dims, 64 * words), seed + 1)
    query[0, rng.random(dims) < share] = 0
    (indices,) = np.nonzero(query[0])
    values = np.concatenate((normal((2,), 1), query[0, indices], normal((1,), 2)))
    places = np.concatenate(([0, 0], indices, [dims - 1])).astype(np.int32)
    dense, sparse = np.empty(64 * words, np.float32), np.full(64 * words, 9, np.float32)
    projection.project(query, 0, planes, dense)
    projection.project_sparse(places, values, 2, 2 + len(indices), planes, sparse)
    assert sparse.tobytes() == dense.tobytes()


@pytest.mark.parametrize("words", [1, 2, 6])
@pytest.mark.parametrize("dims", DIMS)
def test_project_sums_dimensions_in_order(dims: int, words: int) -> None:
    """Every machine gets the same bytes, because terms are added in the order of dimensions."""
    queries, planes = normal((3, dims), 1), normal((dims, 64 * words), 2)
    out = np.empty(64 * words, np.float32)
    projection.project(queries, 1, planes, out)
    sums = np.zeros(64 * words, np.float32)
    for value, plane in zip(queries[1], planes, strict=True):
        sums += value * plane
    assert out.tobytes() == sums.tobytes()


@given(seed=seeds, words=st.integers(1, 6))
def test_sign_code_packs_the_signs_of_margins(seed: int, words: int) -> None:
    """Bit b of a code is bit b % 64 of word b // 64, and is set if margin b is not negative."""
    margins = normal((64 * words,), seed)
    margins[:: words + 1] = 0
    margins[1 :: words + 2] = -0.0
    code = np.empty(words, np.uint64)
    projection.sign_code(margins, code)
    assert code.tolist() == kernels.pack((margins >= 0)[np.newaxis])[:, 0].tolist()


@given(seed=seeds, dims=st.sampled_from(DIMS), points=st.sampled_from([1, 2, 65, 300]))
def test_encode_packs_the_signs_of_all_points(seed: int, dims: int, points: int) -> None:
    vectors = definitions.unit(normal((points, dims), seed)).astype(np.float32)
    planes, thresholds = normal((dims, 128), seed + 1), normal((128,), seed + 2)
    codes = np.full((2 + -(-points // 32), 4 * 128), 7, np.uint8)
    coding.encode(vectors @ planes - thresholds, codes[:-1], 32)
    margins = kernels.margins(vectors, planes, thresholds)
    bits = kernels.bits_in_tiles(codes[1:-1], points)
    assert (bits == (margins >= 0))[np.abs(margins) > 1e-5].all()
    assert (codes[[0, -1]] == 7).all()
    assert not kernels.bits_in_tiles(codes[1:-1], 32 * (len(codes) - 2))[points:].any()


@given(seed=seeds, words=st.integers(1, 6), kind=st.sampled_from(["normal", "zero", "equal"]))
def test_quantise_rounds_margins_to_fifteen_levels(seed: int, words: int, kind: str) -> None:
    """An entry is 28 plus the levels of the bits that are set; the largest level is 7 or -7."""
    margins = normal((64 * words,), seed)
    if kind != "normal":
        margins = np.sign(margins) * np.float32(0 if kind == "zero" else 0.25)
    tables = np.empty((16 * words, 16), np.uint8)
    unit, total = projection.quantise(margins, tables)
    levels = np.array(kernels.levels(margins))
    assert tables.tolist() == kernels.look_up_tables(levels.tolist())
    assert total == levels.sum()
    # Rounding to the nearest level loses at most half a level.
    assert np.abs(levels * unit - margins).max() <= 0.51 * unit


@given(seed=seeds, start=st.integers(0, 168), bits=st.integers(1, 24), points=st.integers(1, 70))
def test_table_keys_are_consecutive_bits_of_the_code(
    seed: int, start: int, bits: int, points: int
) -> None:
    codes = random_bits(points, 192, seed)
    words, keys = kernels.pack(codes), np.empty(points, np.uint32)
    projection.table_keys(words, start, bits, keys)
    expected = [kernels.key(code[start:], 0, bits) for code in codes]
    assert keys.tolist() == expected
    assert [projection.key_of(words, row, start, bits) for row in range(points)] == expected


@given(
    seed=seeds,
    n_bits=st.integers(1, 24),
    points=st.sampled_from([1, 2, 3, 50, 300]),
    table=st.integers(0, 3),
    has_equal_codes=st.booleans(),
    share_alive=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_tables_hold_every_point_in_its_bucket(  # noqa: PLR0917  # drawn by Hypothesis
    seed: int, n_bits: int, points: int, table: int, has_equal_codes: bool, share_alive: float
) -> None:
    """Short keys are positions of buckets; for long keys, a sorted list of keys is stored."""
    bits = random_bits(points, 128, seed)
    if has_equal_codes:
        bits[:] = bits[0]
    alive = np.random.default_rng(seed).random(points) < share_alive
    count = int(alive.sum())
    keys, offsets, rows = build_table(kernels.tiles(bits), alive, table, n_bits)
    has_keys = 2**n_bits > 4 * count
    assert (len(keys) > 0) == (has_keys and count > 0)
    bucket_keys = keys.tolist() if has_keys else range(2**n_bits)
    assert sorted(bucket_keys) == list(bucket_keys)
    assert len(offsets) == len(bucket_keys) + 1
    buckets = {
        key: rows[offsets[b] : offsets[b + 1]].tolist()
        for b, key in enumerate(bucket_keys)
        if offsets[b] < offsets[b + 1]
    }
    every_bucket = kernels.buckets(bits, table, n_bits).items()
    expected = {key: [row for row in points if alive[row]] for key, points in every_bucket}
    assert buckets == {key: points for key, points in expected.items() if points}
    assert offsets[0] == 0
    assert offsets[-1] == count


@pytest.mark.parametrize("rows", [1, 2, 511, 512, 1023, 1024, 10**6, 2**20, 2**25, 2**31 - 1])
def test_default_tables_and_bits_depend_on_the_number_of_points(rows: int) -> None:
    parameters = core.fill_defaults(BuildParameters(), rows, 256)
    assert parameters.n_bits == max(8, min(24, floor(log2(rows)) - 1))
    assert (parameters.n_tables, parameters.n_components) == (10, 200)
    assert core.fill_defaults(BuildParameters(), rows, 3).n_components == 3


@pytest.mark.parametrize(
    ("n_tables", "n_bits", "bits"),
    [(10, 8, 256), (1, 1, 256), (16, 16, 256), (11, 24, 320), (256, 24, 6144), (256, 2, 512)],
)
def test_codes_are_whole_words_that_hold_every_key(n_tables: int, n_bits: int, bits: int) -> None:
    assert core.code_bits(BuildParameters(n_tables=n_tables, n_bits=n_bits)) == bits


@pytest.mark.parametrize(("components", "bits"), [(1, 256), (256, 256), (257, 320), (700, 704)])
def test_codes_of_pca_hash_hold_every_component(components: int, bits: int) -> None:
    parameters = core.fill_defaults(
        BuildParameters(hash_family="pca_hash", n_components=components), 10_000, 1_000
    )
    assert core.code_bits(parameters) == bits


@pytest.mark.parametrize(
    ("rows", "dims", "n_tables", "n_bits"),
    [(50_000, 256, 10, 14), (50_000, 64, 4, 14), (50_000, 5, 1, 5), (10, 1, 1, 1)],
)
def test_pca_hash_uses_each_component_in_one_table_only(
    rows: int, dims: int, n_tables: int, n_bits: int
) -> None:
    """With too few components, first the number of tables is reduced, then the number of bits."""
    parameters = core.fill_defaults(BuildParameters(hash_family="pca_hash"), rows, dims)
    assert (parameters.n_tables, parameters.n_bits) == (n_tables, n_bits)
    with pytest.raises(InvalidArgumentError, match="n_tables"):
        core.fill_defaults(
            BuildParameters(hash_family="pca_hash", n_tables=41, n_bits=5), rows, 200
        )
