"""Costs and lengths of a caller's candidates are those of plain numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.arrays import read_only
from divgrpc.kernels.candidates import below_best, inverse_lengths

SCORES = st.lists(st.floats(-1e3, 1e3) | st.sampled_from([0.0, -0.0, 1e-40, 1e9]), max_size=20)


@given(scores=SCORES, offset=st.sampled_from([0.0, 1.7e9, -1e15]))
def test_costs_are_differences_from_the_best_score(scores: list[float], offset: float) -> None:
    numbers, costs = np.array(scores, np.float64) + offset, np.empty(len(scores), np.float32)
    assert below_best(numbers, 1e30, 1e-30, costs) == -1
    expected = numbers.max(initial=-np.inf) - numbers
    if 0 < expected.max(initial=0) < 1e-30:
        expected /= expected.max()
    assert costs.tolist() == expected.astype(np.float32).tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2e30, -2e30])
@pytest.mark.parametrize("place", [0, 3, 5])
def test_the_place_of_the_first_wrong_score_is_returned(bad: float, place: int) -> None:
    scores = np.arange(8.0)
    scores[[place, 6]] = bad
    assert below_best(scores, 1e30, 1e-30, np.empty(8, np.float32)) == place


@given(seed=st.integers(0, 2**32 - 1), dims=st.integers(1, 70))
def test_inverse_lengths_are_those_of_float64(seed: int, dims: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = (rng.standard_normal((9, dims)) * 10.0 ** rng.integers(-6, 7, (9, 1))).astype("f4")
    vectors[2] = 0
    inverses = np.empty(9, np.float32)
    assert inverse_lengths(read_only(vectors), np.float32(1e15), inverses) == -1
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    assert inverses[2] == 0
    is_long = np.arange(9) != 2
    np.testing.assert_allclose(inverses[is_long], 1 / lengths[is_long], rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 2e15])
def test_the_first_row_that_is_too_long_is_returned(bad: float) -> None:
    vectors = np.ones((6, 40), np.float32)
    vectors[4, 33] = vectors[5, 0] = bad
    assert inverse_lengths(read_only(vectors), np.float32(1e15), np.empty(6, np.float32)) == 4
