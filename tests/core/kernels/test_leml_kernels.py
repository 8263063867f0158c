"""What LEML's training spends its time in: to the last bit what it says, whatever the blocks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from divgrpc.kernels import leml as factoring
from divgrpc.labels import leml, matrices
from divgrpc.labels.matrices import multiply
from divgrpc.types import FloatArray
from divgrpc.vectors import SparseRows
from reference import labels as reference

examples = settings(deadline=None, derandomize=True, max_examples=60)
sizes, seeds = st.integers(0, 30), st.integers(0, 2**32 - 1)


def drawn(seed: int, count: int, rows: int, columns: int) -> list[FloatArray]:
    """Draw matrices of normal numbers, and after them one row."""
    rng = np.random.default_rng(seed)
    shapes = [(rows, columns)] * count + [(columns,)]
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


@given(sizes, st.integers(1, 20), st.integers(1, 12), seeds, st.integers(1, 9))
@examples
def test_sparse_product_is_summed_in_order(m: int, d: int, r: int, seed: int, block: int) -> None:
    """Value by value in float32, on any number of threads; rows without a value are zeros."""
    rng = np.random.default_rng(seed)
    rows = SparseRows.of(sparse.random_array((m, d), density=0.3, rng=rng, format="csr"))
    columns = rng.standard_normal((d, r), np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrices, "_BLOCK_VALUES", block)
        found = multiply(rows, columns)
    wanted = reference.sparse_product(rows.indptr, rows.indices, rows.values, columns)
    assert found.tobytes() == wanted.tobytes()
    assert np.allclose(found, rows.matrix @ columns, atol=1e-5)


@given(sizes, st.integers(1, 12), seeds)
@examples
def test_steps_are_what_they_say(rows: int, columns: int, seed: int) -> None:
    """Each changes what it says, as numpy would, and adds up columns in float64."""
    found, residual, direction, image, scales = drawn(seed, 4, rows, columns)
    weight = np.float32(0.7)
    sums = np.zeros(columns)
    wanted = scales * image + weight * direction
    factoring.weigh(image, direction, scales, weight, 0, rows, sums)
    assert np.array_equal(image, wanted)
    assert np.array_equal(sums, reference.column_sums(image, direction))

    sums[:] = 0
    further, rest = found + scales * direction, residual - scales * image
    factoring.descend(found, residual, direction, image, scales, 0, rows, sums)
    assert np.array_equal(found, further)
    assert np.array_equal(residual, rest)
    assert np.array_equal(sums, reference.column_sums(rest, rest))

    turned = scales * direction + residual
    factoring.turn(direction, residual, scales, 0, rows, sums)
    assert np.array_equal(direction, turned)


@given(sizes, st.integers(1, 12), seeds, st.integers(1, 40))
@examples
def test_squares_are_added_up_over_blocks(rows: int, columns: int, seed: int, block: int) -> None:
    """Block by block the sums are those of all rows, and no row is left out."""
    matrix, _ = drawn(seed, 1, rows, columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leml, "_UPDATED_NUMBERS", block)
        found = leml._squares(matrix)
    assert found == pytest.approx(reference.column_sums(matrix, matrix), rel=1e-12)


def test_rows_outside_the_range_are_left_alone() -> None:
    """Threads write their own rows."""
    found, residual, direction, image, scales = drawn(1, 4, 9, 3)
    before = found.copy()
    sums = np.zeros(3)
    factoring.descend(found, residual, direction, image, scales, 2, 5, sums)
    factoring.turn(direction, residual, scales, 4, 4, sums)
    assert np.array_equal(np.delete(found, range(2, 5), axis=0), np.delete(before, range(2, 5), 0))
    assert not np.array_equal(found[2:5], before[2:5])
