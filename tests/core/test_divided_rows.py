"""Rows in several arrays, read like those of one."""

import numpy as np
import pytest

from divgrpc.divided_rows import DividedRows
from divgrpc.vectors import block_rows, release_rows, take

RNG = np.random.default_rng(3)
ROWS = RNG.standard_normal((50, 3), np.float32)


@pytest.fixture(params=[1, 2, 7, 60])
def divided(request: pytest.FixtureRequest) -> DividedRows:
    """Return the rows, divided at random, with an empty part where there are many."""
    homes = RNG.integers(request.param, size=len(ROWS))
    numbers = [np.flatnonzero(homes == part) for part in range(request.param)]
    return DividedRows([ROWS[rows] for rows in numbers], numbers)


def test_rows_are_read_in_their_order(divided: DividedRows) -> None:
    assert (len(divided), divided.shape, block_rows(divided)) == (50, (50, 3), 8_192)
    for rows in (
        slice(None),
        slice(3, 9),
        slice(40, 99),
        slice(9, 3),
        slice(50, 50),
        slice(-2, None),
    ):
        assert divided[rows].tobytes() == ROWS[rows].tobytes()
    for numbers in ([], [0], [49, 0, 7, 7], RNG.permutation(50)):
        places = np.array(numbers, np.int64)
        assert divided[places].tobytes() == ROWS[places].tobytes()
    ascending = np.arange(0, 50, 4)
    np.testing.assert_array_equal(np.asarray(take(divided, ascending)), ROWS[ascending])
    release_rows(divided)
    assert divided[:].tobytes() == ROWS.tobytes()


def test_numbers_may_exceed_int32() -> None:
    numbers = [np.array([0, 2**31 + 5]), np.array([7, 2**40])]
    divided = DividedRows([ROWS[:2], ROWS[2:4]], numbers)
    assert divided[np.array([2**40, 2**31 + 5])].tobytes() == ROWS[[3, 1]].tobytes()
