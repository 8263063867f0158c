"""Values of quotas as numbers, beside numpy."""

import numpy as np
import pytest

from divgrpc.kernels.quota_picks import number_values
from divgrpc.quotas.bounds import MISSING_NUMBER


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 200, 5_000])
@pytest.mark.parametrize("spread", [1, 3, 50, 1 << 40])
def test_numbers_of_values_are_those_of_numpy(count: int, spread: int) -> None:
    rng = np.random.default_rng(count + spread)
    numbers = rng.integers(-spread, spread, count)
    numbers[rng.random(count) < 0.1] = MISSING_NUMBER
    expected = np.unique(numbers, return_inverse=True, return_counts=True)
    for result, right in zip(number_values(numbers), expected, strict=True):
        assert result.tolist() == right.tolist()


def test_numbers_that_share_a_slot_stay_apart() -> None:
    # The upper half of the product with 0x9E3779B97F4A7C15 decides the slot of a number.
    inverse = pow(0x9E3779B97F4A7C15, -1, 1 << 64)
    numbers = np.array([slot * inverse % (1 << 64) for slot in range(100)] * 2, np.uint64)
    same_slot = numbers.view(np.int64)
    different, places, counts = number_values(same_slot)
    assert different.tolist() == sorted(same_slot[:100].tolist())
    assert (different[places] == same_slot).all()
    assert (counts == 2).all()
