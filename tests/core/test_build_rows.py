"""Rows in several arrays, read like those of one."""

import numpy as np
import pytest
from scipy import sparse

from divgrpc.build_rows import (
    DividedRows,
    DividedSparseRows,
    block_rows,
    count_nonzeros,
    mean_width,
    release_rows,
    take,
)
from divgrpc.vectors import Rows, SparseRows

RNG = np.random.default_rng(3)
ROWS = RNG.standard_normal((50, 3), np.float32)

SLICES = (
    slice(None),
    slice(3, 9),
    slice(40, 99),
    slice(9, 3),
    slice(50, 50),
    slice(-2, None),
)


@pytest.fixture(params=[1, 2, 7, 60])
def divided(request: pytest.FixtureRequest) -> DividedRows:
    """Return the rows, divided at random, with an empty part where there are many."""
    homes = RNG.integers(request.param, size=len(ROWS))
    numbers = [np.flatnonzero(homes == part) for part in range(request.param)]
    return DividedRows([ROWS[rows] for rows in numbers], numbers)


def test_rows_are_read_in_their_order(divided: DividedRows) -> None:
    assert (len(divided), divided.shape, block_rows(divided)) == (50, (50, 3), 8_192)
    for rows in SLICES:
        assert divided[rows].tobytes() == ROWS[rows].tobytes()
    for numbers in ([], [0], [49, 0, 7, 7], RNG.permutation(50)):
        places = np.array(numbers, np.int64)
        assert divided[places].tobytes() == ROWS[places].tobytes()
    ascending = np.arange(0, 50, 4)
    np.testing.assert_array_equal(np.asarray(take(divided, ascending)), ROWS[ascending])
    release_rows(divided)
    assert divided[:].tobytes() == ROWS.tobytes()


@pytest.mark.parametrize("parts", [1, 2, 7, 60])
def test_sparse_rows_are_read_in_their_order(parts: int) -> None:
    matrix = sparse.random_array((50, 9), density=0.3, format="csr", dtype=np.float32, rng=RNG)
    whole = SparseRows.of(matrix)
    homes = RNG.integers(parts, size=len(whole))
    numbers = [np.flatnonzero(homes == part) for part in range(parts)]
    divided = DividedSparseRows([whole[rows] for rows in numbers], numbers)
    assert (len(divided), divided.shape, divided.dims) == (50, (50, 9), 9)
    assert count_nonzeros(divided) == len(whole.indices)
    assert divided.widest_row == np.diff(whole.indptr).max()
    assert (block_rows(divided), mean_width(divided)) == (block_rows(whole), mean_width(whole))
    places = [np.array(n, np.int64) for n in ([], [0], [49, 0, 7, 7], RNG.permutation(50))]
    for rows in SLICES:
        check_equal(divided[rows], whole[rows])
    for numbers_of_rows in places:
        check_equal(divided[numbers_of_rows], whole[numbers_of_rows])
    ascending = np.arange(0, 50, 4)
    check_equal(take(divided, ascending), whole[ascending])
    release_rows(divided)
    check_equal(divided[:], whole)


def check_equal(rows: Rows, expected: SparseRows) -> None:
    """Check that sparse rows have the same arrays."""
    assert isinstance(rows, SparseRows)
    assert rows.dims == expected.dims
    for name in ("indptr", "indices", "values"):
        assert getattr(rows, name).tolist() == getattr(expected, name).tolist()
        assert getattr(rows, name).dtype == getattr(expected, name).dtype


def test_numbers_may_exceed_int32() -> None:
    numbers = [np.array([0, 2**31 + 5]), np.array([7, 2**40])]
    divided = DividedRows([ROWS[:2], ROWS[2:4]], numbers)
    assert divided[np.array([2**40, 2**31 + 5])].tobytes() == ROWS[[3, 1]].tobytes()
