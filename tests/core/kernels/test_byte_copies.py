"""Bounds of distances from copies in bytes, and the selectors that use them."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.kernels import byte_copies, byte_sums, greedy, max_sum_dpp, pairwise, records
from divgrpc.kernels.jit import kernel
from divgrpc.kernels.records import Int8s, Int32s, Objective, Points
from divgrpc.types import FloatArray, IntArray
from reference.index import clustered, kernel_points, selection_scratch
from reference.selectors import pick_by_sums

Int16s = npt.NDArray[np.int16]
examples = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)
RULES = {
    "corrected": records.CORRECTED_RULE,
    "printed": records.PRINTED_RULE,
    "marginal": records.MARGINAL_RULE,
}


@kernel
def dots_of_four(octets: Int8s, words: Int16s, dots: Int32s) -> None:
    for row in range(0, len(octets), byte_sums.GROUP_ROWS):
        byte_sums.four_byte_dots(octets, row, words, dots)


def bounds_of(
    points: Points, rows: Int32s, picks: IntArray, limit: np.floating = records.NO_COPIES
) -> list[FloatArray | None]:
    """Return the bounds of the distances from each pick, None where there are none."""
    copies, bounds = byte_copies.make_copies(points, len(rows)), list[FloatArray | None]()
    for step in range(len(picks)):
        far = np.empty(len(rows), np.float32)
        are_bounds = byte_copies.far_at_most(
            points.vectors, rows, len(rows), picks, step, limit, copies, far
        )
        bounds.append(far if are_bounds else None)
    return bounds


def distances_from(points: Points, rows: Int32s, place: int) -> FloatArray:
    return np.array([pairwise.how_far(points, row, rows[place]) for row in rows], np.float32)


def between(points: Points, rows: Int32s) -> FloatArray:
    return np.stack([distances_from(points, rows, place) for place in range(len(rows))])


@examples
@given(seed=seeds, width=st.sampled_from([32, 64, 256]), largest=st.sampled_from([3, 32_767]))
def test_products_of_bytes_are_exact(seed: int, width: int, largest: int) -> None:
    rng = np.random.default_rng(seed)
    octets = rng.integers(-128, 128, (8, width), np.int8)
    words, dots = rng.integers(-largest, largest + 1, width, np.int16), np.empty(8, np.int32)
    dots_of_four(octets, words, dots)
    assert (dots == octets.astype(np.int64) @ words).all()


@examples
@given(
    seed=seeds,
    dims=st.sampled_from([1, 5, 16, 31, 33, 64, 200, 300]),
    scale=st.sampled_from([1e-25, 1e-20, 1e-3, 1.0, 1e4, 1e9]),
    offset=st.sampled_from([0.0, 10.0, 1e4]),
    step=st.sampled_from([0, 1]),
)
def test_bounds_are_above_the_distances_but_not_far(
    seed: int, dims: int, scale: float, offset: float, step: int
) -> None:
    rng = np.random.default_rng(seed)
    vectors = (clustered(41, dims, seed, 0.2) + offset) * np.float32(scale)
    # One element of a candidate outweighs all others.
    vectors[7, dims // 2] += np.float32(100 * scale)
    points, rows = kernel_points(vectors.astype(np.float32)), rng.permutation(41).astype(np.int32)
    picks, limit = rng.integers(0, 41, 2), np.float32(rng.choice([-1.0, 0.0, dims / 2]) * scale**2)
    far = bounds_of(points, rows, picks, limit)[step]
    assert far is not None
    exact = distances_from(points, rows, picks[step])
    assert (far >= exact).all()
    assert (far[exact <= limit] == exact[exact <= limit]).all()
    assert ((far <= limit) == (exact <= limit)).all()
    squares = distances_from(points, rows, picks[0]).astype(np.float64)
    lengths = np.sqrt(squares)
    # A copy is wrong by at most half a step in each dimension.
    errors = np.abs(vectors[rows] - vectors[rows[picks[0]]]).max(axis=1) / 127 * dims**0.5
    room = 1.2 * errors * lengths[picks[step]] + 1e-4 * (squares + squares[picks[step]]) + 1e-29
    assert (far - exact <= (room if step else 0)).all()


def test_no_bounds_are_computed_if_sums_might_overflow() -> None:
    points = kernel_points(np.array([[0.0] * 32, [1e13] * 32, [3e38] * 32], np.float32))
    for rows in ([0, 1], [0, 2]):
        assert bounds_of(points, np.array(rows, np.int32), np.zeros(1, np.int64)) == [None]


def drawn(seed: int, count: int, dims: int, *, grid: bool) -> tuple[Points, Int32s, FloatArray]:
    """Draw points, their rows in the order of their costs, and these costs.

    On a grid, many points are equal, and so are many distances.
    """
    rng = np.random.default_rng(seed)
    vectors = clustered(count, dims, seed, 0.1)
    if grid:
        vectors = np.round(vectors[:, :8] @ np.eye(8, dims, dtype=np.float32))
    points = kernel_points(vectors.astype(np.float32))
    rows = rng.permutation(count).astype(np.int32)
    costs = distances_from(points, rows, 0)
    order = np.argsort(costs, kind="stable")
    return points, rows[order], costs[order]


@settings(max_examples=25, deadline=None)
@given(
    seed=seeds,
    k=st.sampled_from([10, 37]),
    relevance=st.sampled_from([0.0, 0.3, 0.7, 0.99, 1.0]),
    rule=st.sampled_from(list(RULES)),
    grid=st.booleans(),
    limit=st.sampled_from([-1.0, 0.0, 20.0]),
)
def test_greedy_picks_what_exact_sums_pick(
    *, seed: int, k: int, relevance: float, rule: str, grid: bool, limit: float
) -> None:
    points, rows, costs = drawn(seed, 190, 112, grid=grid)
    assert byte_copies.copies_pay(points, 190, k)
    far, limit32, share = between(points, rows), np.float32(limit), np.float32(relevance)
    originals: list[int] = []
    for place in range(190):
        if not (far[place, originals] <= limit32).any():
            originals.append(place)

    def value(place: int, apart: np.floating, step: int) -> np.floating:
        weight = np.float32(greedy.diversity_weight(RULES[rule], share, step, k))
        return np.float32(share * costs[place] - weight * apart)

    twin = pick_by_sums(far, originals, k, value)
    picks, gains = np.empty(k, np.int64), np.empty(k, np.float32)
    objective = Objective(k, share, RULES[rule], product=False, copy_limit=limit32)
    standing, selection = np.zeros(190, np.int8), selection_scratch(190, points)
    n_picks, n_copies = greedy.greedy(
        points, rows, costs, 190, objective, selection, False, standing, picks, gains
    )
    assert list(zip(picks[:n_picks], -gains[:n_picks], strict=True)) == twin
    rest = np.setdiff1d(np.arange(190), picks[:n_picks])
    near = (far[np.ix_(rest, picks[:n_picks])] <= limit32).any(axis=1)
    assert n_copies == near.sum()


@settings(max_examples=25, deadline=None)
@given(
    seed=seeds,
    k=st.sampled_from([10, 37]),
    relevance=st.sampled_from([0.0, 0.3, 0.7, 0.99]),
    grid=st.booleans(),
)
def test_max_sum_picks_what_exact_sums_pick(
    *, seed: int, k: int, relevance: float, grid: bool
) -> None:
    points, rows, squares = drawn(seed, 190, 112, grid=grid)
    assert byte_copies.copies_pay(points, 190, k)
    costs, weight = np.sqrt(squares), 2.0 * (1.0 - relevance) / (k - 1)

    def value(place: int, apart: np.floating, _: int) -> np.floating:
        return np.float64(0.5 * relevance * np.float64(costs[place]) - weight * apart)

    far = np.sqrt(between(points, rows).astype(np.float64))
    twin = pick_by_sums(far, range(190), k, value)
    picks, gains = np.empty(k, np.int64), np.empty(k, np.float32)
    selection = selection_scratch(190, points)
    max_sum_dpp.max_sum(points, rows, costs, 190, k, relevance, selection, picks, gains)
    assert picks.tolist() == [place for place, _ in twin]
    assert gains.tolist() == [np.float32(-number) for _, number in twin]


@pytest.mark.parametrize(
    ("count", "dims", "k"),
    [(190, 112, 4), (190, 5_000, 10), (40, 112, 10), (70_000, 256, 10)],
)
def test_copies_are_not_made_where_they_cost_too_much(count: int, dims: int, k: int) -> None:
    points = kernel_points(np.zeros((2, dims), np.float32))
    assert not byte_copies.copies_pay(points, count, k)


def test_copies_are_not_made_of_sparse_points_or_for_products() -> None:
    vectors = np.ones((2, 112), np.float32)
    assert byte_copies.copies_pay(kernel_points(vectors), 190, 10)
    inverses = np.ones(2, np.float32)
    assert not byte_copies.copies_pay(kernel_points(vectors, inverses=inverses), 190, 10)
    assert not byte_copies.copies_pay(kernel_points(vectors, stored_sparse=True), 190, 10)
