"""Exact distances of rows, and the bounds by which a search skips short rows."""

import numba
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.arrays import read_only
from divgrpc.kernels import exact as scoring
from divgrpc.kernels.records import Query
from divgrpc.kernels.vector_sums import (
    row_distance,
    row_distance_within,
    row_distances,
    row_dot,
    row_dots,
)
from divgrpc.types import FloatArray
from reference import definitions, kernels
from reference.index import kernel_points
from reference.kernels import fixed_order_distance, fixed_order_dot

seeds = st.integers(0, 2**32 - 1)
NO_IDS = np.empty(0, np.int64)

Rows = npt.NDArray[np.int32]
Distances = npt.NDArray[np.float32]


KINDS_OF_POINTS = ["dense", "sparse"]


def drawn(rows: int, dims: int, seed: int, *, longest: float = 100.0) -> FloatArray:
    """Draw rows of lengths from 1 to `longest`, with half of the entries zero and one zero row."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((rows, dims)) * np.geomspace(1, longest, rows)[:, np.newaxis]
    points[rng.random(points.shape) < 0.5] = 0
    points[rows // 2] = 0
    return points.astype(np.float32)


def exact(point: FloatArray, query: FloatArray, *, sparse: bool, product: bool) -> np.float32:
    """Return one distance, whose terms are added in the documented order."""
    if not sparse:
        if product:
            return -kernels.fixed_order_dot(point, query)
        return kernels.fixed_order_distance(point, query)
    (indices,) = np.nonzero(point)
    dot = kernels.sparse_dot(indices.astype(np.int32), point[indices], query)
    squares = [definitions.dot(point, point), definitions.dot(query, query)]
    return np.float32(-dot if product else max(0.0, sum(squares) - 2 * dot))


@pytest.mark.parametrize("product", [False, True])
@pytest.mark.parametrize("kind", KINDS_OF_POINTS)
@pytest.mark.parametrize("dims", [1, 2, 15, 16, 17, 31, 33, 256])
def test_score_rows_scores_the_given_rows_in_order(dims: int, kind: str, product: bool) -> None:
    """Distances are squared, products are negated, and the rest of the output is unchanged."""
    vectors, queries = drawn(30, dims, dims), drawn(3, dims, dims + 1, longest=5)
    points = kernel_points(vectors, stored_sparse=kind == "sparse")
    query = Query(queries, 2, definitions.dot(queries[2], queries[2]), product)
    order = np.random.default_rng(dims).permutation(30).astype(np.int32)
    every = np.full(30, 9, np.float32)
    scoring.score_all(points, query, every)
    for count in (0, 1, 4, 5, 30):
        distances = np.full(30, 9, np.float32)
        scoring.score_rows(points, query, order, count, distances)
        assert distances[:count].tolist() == every[order[:count]].tolist()
        assert (distances[count:] == 9).all()
    truth = [exact(row, queries[2], sparse=kind == "sparse", product=product) for row in vectors]
    # Squares are summed in float64 in no fixed order, so their last digits may differ.
    least = 1e-7 if kind == "sparse" else 0
    assert np.abs(every - truth).max() <= least * np.abs(truth).max()


@given(
    seed=seeds,
    count=st.sampled_from([1, 2, 255, 256, 257, 1500]),
    n_nearest=st.integers(1, 300),
    tail=st.sampled_from([0.0, 0.5, 2.0, 60.0]),
    is_falling=st.booleans(),
)
def test_score_longest_scores_all_rows_that_may_be_nearest(
    seed: int, count: int, n_nearest: int, tail: float, is_falling: bool
) -> None:
    rng = np.random.default_rng(seed)
    lengths = (1 + np.arange(count)) ** -tail
    vectors = np.rint(rng.standard_normal((count, 9)) * 3) * lengths[:, np.newaxis]
    vectors = vectors.astype(np.float32)
    if is_falling:
        order = np.argsort(-np.linalg.norm(vectors.astype(np.float64), axis=1), kind="stable")
        vectors = vectors[order]
    vectors.setflags(write=False)
    target = rng.standard_normal((2, 9)).astype(np.float32)
    # The last query is sometimes all zeros, so that all products tie.
    target[1] = 0 if seed % 7 == 0 else target[1]
    n_nearest = min(n_nearest, count)
    every, distances = np.full((2, count), np.nan, np.float32)
    points = kernel_points(vectors, stored_sparse=False)
    query = Query(target, 1, 0.0, product=True)
    scoring.score_all(points, query, every)
    bounds = kernels.length_bounds(vectors, scoring.BOUND_ROWS)
    bounds.setflags(write=False)
    n_scored = scoring.score_longest(vectors, query, bounds, n_nearest, distances)
    assert n_scored >= n_nearest
    assert distances[:n_scored].tolist() == every[:n_scored].tolist()
    if n_scored < count:
        assert every[n_scored:].min() > np.sort(every)[n_nearest - 1]


@given(
    seed=seeds,
    count=st.sampled_from([1, 255, 256, 257, 1500, 9000]),
    n_nearest=st.integers(1, 200),
    tail=st.sampled_from([0.0, 0.5, 2.0]),
)
def test_reach_excludes_only_rows_that_cannot_be_nearest(
    seed: int, count: int, n_nearest: int, tail: float
) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((count, 9)) * ((1 + np.arange(count)) ** -tail)[:, np.newaxis]
    order = np.argsort(-np.linalg.norm(vectors, axis=1), kind="stable")
    vectors = vectors[order].astype(np.float32)
    vectors.setflags(write=False)
    target, n_nearest = rng.standard_normal((1, 9)).astype(np.float32), min(n_nearest, count)
    bounds = kernels.length_bounds(vectors, scoring.BOUND_ROWS)
    bounds.setflags(write=False)
    distances = np.full(count, np.nan, np.float32)
    query = Query(target, 0, 0.0, product=True)
    stop, n_scored = scoring.reach(vectors, query, bounds, n_nearest, distances)
    if scoring.reach_pays(bounds, n_nearest, count):
        assert (stop, n_scored) == kernels.reach(vectors, target[0], bounds, n_nearest)
    every = -(vectors @ target[0])
    assert n_scored >= n_nearest
    assert distances[:n_scored] == pytest.approx(every[:n_scored], rel=1e-4, abs=1e-5)
    assert np.isnan(distances[n_scored:]).all()
    assert (every[stop:] > np.sort(every)[n_nearest - 1]).all()


@given(
    seed=seeds,
    rows=st.integers(1, 2_000),
    n_nearest=st.integers(1, 600),
    longest=st.sampled_from([1.0, 3.0, 1e3]),
    blocks=st.integers(1, 8),
)
def test_count_longest_ends_where_score_longest_does(
    seed: int, rows: int, n_nearest: int, longest: float, blocks: int
) -> None:
    """The points may come in parts of any whole number of blocks."""
    vectors = np.ascontiguousarray(drawn(rows, 5, seed, longest=longest)[::-1])
    queries, n_nearest = drawn(4, 5, seed + 1, longest=2), min(n_nearest, rows)
    bounds = kernels.length_bounds(vectors, scoring.BOUND_ROWS)
    state = (
        np.empty((4, 2 * n_nearest), np.float32), np.zeros(4, np.int64),
        np.full(4, np.inf, np.float32), np.zeros(4, np.int64),
    )  # fmt: skip
    step = blocks * scoring.BOUND_ROWS
    for first in range(0, rows, step):
        part = read_only(vectors[first : first + step])
        scratch = np.empty(len(part), np.float32)
        scoring.count_longest(
            part, first, read_only(queries), read_only(bounds), n_nearest, *state, scratch
        )
    expected = [
        scoring.score_longest(
            vectors, Query(queries, q, 0.0, True), bounds, n_nearest, np.empty(rows, np.float32)
        )
        for q in range(4)
    ]
    assert state[-1].tolist() == expected


def test_score_longest_stops_after_the_long_rows() -> None:
    vectors = np.full((2000, 4), 1e-3, np.float32)
    vectors[:10] = np.arange(10, 0, -1)[:, np.newaxis]
    vectors.setflags(write=False)
    bounds = kernels.length_bounds(vectors, scoring.BOUND_ROWS)
    bounds.setflags(write=False)
    query = Query(np.ones((1, 4), np.float32), 0, 0.0, product=True)
    distances = np.empty(2000, np.float32)
    assert scoring.score_longest(vectors, query, bounds, 5, distances) == scoring.BOUND_ROWS
    assert scoring.score_longest(vectors, query, bounds, 11, distances) == 2000


@pytest.mark.parametrize("length", [1.0, 1e3, 1e9])
def test_almost_equal_sparse_points_have_different_distances(length: float) -> None:
    """Distances from lengths and products are computed in float64 to keep small differences."""
    rng = np.random.default_rng(5)
    point = (length * rng.standard_normal((1, 40))).astype(np.float32)
    near = np.nextafter(point, np.float32(np.inf))
    vectors = np.concatenate((point, near, 1.0001 * point)).astype(np.float32)
    distances = np.empty(3, np.float32)
    square = definitions.dot(point[0], point[0])
    points = kernel_points(vectors, stored_sparse=True)
    scoring.score_all(points, Query(point, 0, square, product=False), distances)
    truth = [definitions.distance(row, point[0]) for row in vectors]
    assert np.abs(distances - truth).max() < 1e-14 * square
    assert distances[0] <= distances[1] < distances[2]


# These kernels are numba intrinsics, which only compiled functions can call.
distance = numba.njit(lambda left, i, right, j: row_distance(left, i, right, j))  # noqa: PLW0108
dot = numba.njit(lambda left, i, right, j: row_dot(left, i, right, j))  # noqa: PLW0108
three_dots = numba.njit(lambda left, right, j: row_dots(left, (2, 0, 2), right, j))
three_distances = numba.njit(lambda left, right, j: row_distances(left, (2, 0, 2), right, j))
distance_within = numba.njit(
    lambda left, right, limit: row_distance_within(left, 0, right, 0, limit)
)

LENGTHS = [*range(70), 79, 80, 81, 127, 128, 129, 191, 192, 255, 256, 257, 1000]


def matrix(rows: int, cols: int, seed: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)


@pytest.mark.parametrize("cols", LENGTHS)
def test_dense_sums_are_in_the_documented_order(cols: int) -> None:
    left, right = matrix(3, cols, cols), matrix(4, cols, cols + 1)
    for i, j in ((0, 0), (2, 3), (1, 2)):
        assert dot(left, i, right, j) == fixed_order_dot(left[i], right[j])
        assert distance(left, i, right, j) == fixed_order_distance(left[i], right[j])


@pytest.mark.parametrize("cols", LENGTHS)
def test_several_rows_at_once_are_summed_as_single_rows(cols: int) -> None:
    left, right = matrix(3, cols, cols), matrix(2, cols, cols + 1)
    value_2, value_0 = dot(left, 2, right, 1), dot(left, 0, right, 1)
    assert three_dots(left, right, 1) == (value_2, value_0, value_2)
    value_2, value_0 = distance(left, 2, right, 1), distance(left, 0, right, 1)
    assert three_distances(left, right, 1) == (value_2, value_0, value_2)


@pytest.mark.parametrize("cols", LENGTHS)
def test_a_distance_within_the_limit_is_exact(cols: int) -> None:
    """If a distance exceeds the limit, the kernel may return any value above the limit."""
    for seed in range(20):
        left, right = matrix(1, cols, seed), matrix(1, cols, seed + 100)
        # Large entries are at different places, so partial sums exceed the limit at different
        # places.
        left[0, :: seed + 1] *= 100
        whole = np.float32(distance(left, 0, right, 0))
        below = np.nextafter(whole, np.float32(-1))
        for limit in (whole, np.float32(2) * whole, np.float32(np.inf)):
            assert distance_within(left, right, limit) == whole
        for limit in (below, whole / np.float32(2), np.float32(0), np.float32(-1)):
            if limit < whole:
                assert distance_within(left, right, limit) > limit
