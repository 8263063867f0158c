"""Sums over rows in a fixed order, and the population count."""

import numba
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.kernels.vector_sums import (
    popcount,
    row_distance,
    row_distance_within,
    row_distances,
    row_dot,
    row_dots,
)
from reference.kernels import fixed_order_distance, fixed_order_dot

# numba compiles functions, and these are intrinsics.
distance = numba.njit(lambda left, i, right, j: row_distance(left, i, right, j))  # noqa: PLW0108
dot = numba.njit(lambda left, i, right, j: row_dot(left, i, right, j))  # noqa: PLW0108
three_dots = numba.njit(lambda left, right, j: row_dots(left, (2, 0, 2), right, j))
three_distances = numba.njit(lambda left, right, j: row_distances(left, (2, 0, 2), right, j))
distance_within = numba.njit(
    lambda left, right, limit: row_distance_within(left, 0, right, 0, limit)
)
count_bits = numba.njit(lambda word: popcount(word))  # noqa: PLW0108

LENGTHS = [*range(70), 79, 80, 81, 127, 128, 129, 191, 192, 255, 256, 257, 1000]


def matrix(rows: int, cols: int, seed: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)


@pytest.mark.parametrize("cols", LENGTHS)
def test_rows_are_summed_in_the_order_that_is_said(cols: int) -> None:
    """Sixteen lanes, four accumulators, folded in halves, the rest one by one: to the last bit."""
    left, right = matrix(3, cols, cols), matrix(4, cols, cols + 1)
    for i, j in ((0, 0), (2, 3), (1, 2)):
        assert dot(left, i, right, j) == fixed_order_dot(left[i], right[j])
        assert distance(left, i, right, j) == fixed_order_distance(left[i], right[j])


@pytest.mark.parametrize("cols", LENGTHS)
def test_several_rows_at_once_are_each_summed_alone(cols: int) -> None:
    """A row's sum does not depend on those beside it, to the last bit."""
    left, right = matrix(3, cols, cols), matrix(2, cols, cols + 1)
    first, other = dot(left, 2, right, 1), dot(left, 0, right, 1)
    assert three_dots(left, right, 1) == (first, other, first)
    first, other = distance(left, 2, right, 1), distance(left, 0, right, 1)
    assert three_distances(left, right, 1) == (first, other, first)


@pytest.mark.parametrize("cols", LENGTHS)
def test_a_distance_within_a_limit_is_the_whole_distance(cols: int) -> None:
    """At most the limit it is the distance to the last bit; beyond, something beyond the limit."""
    for seed in range(20):
        left, right = matrix(1, cols, seed), matrix(1, cols, seed + 100)
        # Large numbers first, last, or anywhere: where the sum exceeds the limit differs.
        left[0, :: seed + 1] *= 100
        whole = np.float32(distance(left, 0, right, 0))
        below = np.nextafter(whole, np.float32(-1))
        for limit in (whole, np.float32(2) * whole, np.float32(np.inf)):
            assert distance_within(left, right, limit) == whole
        for limit in (below, whole / np.float32(2), np.float32(0), np.float32(-1)):
            if limit < whole:
                assert distance_within(left, right, limit) > limit


@pytest.mark.parametrize("cols", LENGTHS)
def test_row_dot_is_a_dot_product(cols: int) -> None:
    """The sum is the inner product, as near as float32 can be."""
    left, right = matrix(1, cols, cols), matrix(1, cols, cols + 1)
    exact = float(left[0].astype(np.float64) @ right[0].astype(np.float64))
    size = float(np.abs(left[0].astype(np.float64)) @ np.abs(right[0].astype(np.float64)))
    assert abs(float(dot(left, 0, right, 0)) - exact) <= 2e-6 * size


@pytest.mark.parametrize("cols", [1, 15, 16, 17, 33, 64, 100])
def test_row_dot_is_the_same_wherever_the_row_lies(cols: int) -> None:
    """A row's place in memory, aligned or not, leaves no trace in the result."""
    row, query = matrix(1, cols, 1)[0], matrix(1, cols, 2)
    expected = dot(row[np.newaxis], 0, query, 0)
    for before in range(5):
        moved = np.zeros((before + 2) * cols + 3, np.float32)
        placed = moved[3:].reshape(before + 2, cols)
        placed[before] = row
        assert dot(placed, before, query, 0) == expected


@settings(deadline=None, derandomize=True)
@given(word=st.integers(0, 2**64 - 1))
def test_popcount_counts_the_set_bits(word: int) -> None:
    """Every word has as many set bits as its binary digits show."""
    assert count_bits(np.uint64(word)) == word.bit_count()
