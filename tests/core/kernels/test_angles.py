"""Greedy selection by bounds of sums of cosines, compared with exact sums."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.kernels import greedy, pairwise, records
from divgrpc.kernels.records import Int32s, Objective, Points
from divgrpc.types import FloatArray
from reference.index import clustered, kernel_points, selection_scratch
from reference.selectors import pick_by_sums

COUNT, DIMS = 190, 160
RULES = {"corrected": records.CORRECTED_RULE, "marginal": records.MARGINAL_RULE}


def drawn(seed: int, shape: str, scale: float) -> tuple[Points, Int32s, FloatArray]:
    """Draw points with inverse lengths, their rows in the order of their costs, and these costs.

    On a grid, many points are equal, many distances are too, and some points are zeros.
    """
    rng = np.random.default_rng(seed)
    vectors = clustered(COUNT, DIMS, seed, 0.1)
    if shape == "grid":
        vectors = np.round(vectors[:, :8] @ np.eye(8, DIMS, dtype=np.float32) / 2)
    elif shape == "near":
        vectors = vectors[:1] + np.float32(1e-3) * vectors
    vectors = (vectors * scale * 10 ** rng.uniform(-2, 2, (COUNT, 1))).astype(np.float32)
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    inverses = np.zeros(COUNT, np.float32)
    np.divide(1, lengths, out=inverses, where=lengths > 0, casting="same_kind")
    points = kernel_points(vectors, inverses=inverses)
    costs = rng.random(COUNT).astype(np.float32)
    if shape == "grid":
        costs = np.round(4 * costs) / np.float32(4)
    return points, rng.permutation(COUNT).astype(np.int32), np.sort(costs)


def objective(k: int, relevance: float, rule: int) -> Objective:
    return Objective(k, np.float32(relevance), rule, product=True, copy_limit=records.NO_COPIES)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.sampled_from([3, 10, 37]),
    relevance=st.sampled_from([0.5, 0.7, 0.99, 1.0]),
    rule=st.sampled_from(list(RULES)),
    shape=st.sampled_from(["clusters", "grid", "near"]),
    scale=st.sampled_from([1.0, 1e-12, 1e10]),
)
def test_greedy_picks_what_exact_sums_pick(
    *, seed: int, k: int, relevance: float, rule: str, shape: str, scale: float
) -> None:
    points, rows, costs = drawn(seed, shape, scale)
    assert greedy.angles_pay(points, COUNT, objective(k, relevance, RULES[rule]))
    assert greedy.angles_fit(points, rows, COUNT)
    far = np.array(
        [[pairwise.how_far(points, row, peer) for peer in rows] for row in rows], np.float32
    )

    def value(place: int, apart: np.floating, step: int) -> np.floating:
        share = np.float32(relevance)
        weight = np.float32(greedy.diversity_weight(RULES[rule], share, step, k))
        return np.float32(share * costs[place] - weight * apart)

    twin = pick_by_sums(far, range(COUNT), k, value)
    picks, gains = np.empty(k, np.int64), np.empty(k, np.float32)
    none, selection = np.empty(0, np.int8), selection_scratch(COUNT, points)
    counts = greedy.greedy(
        points, rows, costs, COUNT, objective(k, relevance, RULES[rule]), selection, False, none,
        picks, gains,
    )  # fmt: skip
    assert counts == (k, 0)
    assert picks.tolist() == [place for place, _ in twin]
    assert gains.tolist() == [-number for _, number in twin]


@pytest.mark.parametrize(
    ("k", "relevance", "rule"),
    [
        (2, 0.7, records.MARGINAL_RULE),
        (40, 0.7, records.MARGINAL_RULE),
        (10, 0.4, records.MARGINAL_RULE),
        (10, 0.7, records.PRINTED_RULE),
        (10, 0.7, records.MMR_RULE),
    ],
)
def test_angles_do_not_pay(k: int, relevance: float, rule: int) -> None:
    """Few picks or candidates, a low relevance, or another rule."""
    points, *_ = drawn(0, "clusters", 1.0)
    assert not greedy.angles_pay(points, COUNT, objective(k, relevance, rule))


def test_squares_of_long_inverse_lengths_do_not_fit() -> None:
    points, rows, _ = drawn(0, "clusters", 1e-18)
    assert not greedy.angles_fit(points, rows, COUNT)


def test_angles_do_not_pay_for_few_dimensions_for_squares_or_for_sparse_points() -> None:
    vectors, inverses = np.ones((2, DIMS), np.float32), np.ones(2, np.float32)
    ten = objective(10, 0.7, records.MARGINAL_RULE)
    assert greedy.angles_pay(kernel_points(vectors, inverses=inverses), COUNT, ten)
    for points in (
        kernel_points(vectors),
        kernel_points(vectors[:, :100], inverses=inverses),
        kernel_points(vectors, inverses=inverses, stored_sparse=True),
    ):
        assert not greedy.angles_pay(points, COUNT, ten)


@pytest.mark.parametrize("rest", [0, 1e-30, 4.5e-23, 1e-12, 1e-9, 1e-3, 1])
def test_a_centre_has_unit_length_or_is_zeros(rest: float) -> None:
    """Four directions that cancel out but for a rest."""
    vectors = np.zeros((4, DIMS), np.float32)
    vectors[:, :3] = [[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]
    vectors[:, 5] = rest
    centre = np.empty((1, DIMS), np.float32)
    greedy.find_centre(vectors, np.arange(4, dtype=np.int32), 4, centre)
    length = float(np.linalg.norm(centre.astype(np.float64)))
    assert length == (pytest.approx(1, rel=1e-5) if rest > 1e-10 else 0)


@pytest.mark.parametrize("centre", ["zeros", "opposite", "random"])
def test_any_centre_gives_the_same_picks(centre: str) -> None:
    points, rows, costs = drawn(3, "clusters", 1.0)
    ten, scratch = objective(10, 0.7, records.MARGINAL_RULE), selection_scratch(COUNT, points)
    expected, gains = np.empty(10, np.int64), np.empty(10, np.float32)
    none = np.empty(0, np.int8)
    greedy.greedy(points, rows, costs, COUNT, ten, scratch, False, none, expected, gains)
    direction = np.random.default_rng(0).standard_normal((1, DIMS)).astype(np.float32)
    if centre == "opposite":
        greedy.find_centre(points.vectors, rows, 10, direction)
        direction = -direction
    direction *= 0 if centre == "zeros" else 1 / np.linalg.norm(direction)
    greedy.cosines_from(points, rows, COUNT, direction, scratch.far)
    picks, values = np.empty(10, np.int64), np.empty(10, np.float32)
    greedy.pick_by_angles(points, rows, costs, COUNT, ten, scratch, direction, picks, values)
    assert picks.tolist() == expected.tolist()
    assert values.tobytes() == gains.tobytes()
