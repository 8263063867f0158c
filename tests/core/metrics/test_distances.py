"""Distances of result lists, and the objective J, agree with a slow reference."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from divgrpc.errors import InvalidArgumentError
from divgrpc.metrics import distances, list_distances, objective
from divgrpc.types import FloatArray, Metric
from reference import metrics as reference

METRICS: list[Metric] = ["cosine", "euclidean", "inner_product"]


@pytest.fixture(scope="module")
def base() -> FloatArray:
    rows = np.random.default_rng(5).standard_normal((40, 7)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


@given(
    seed=st.integers(0, 2**32 - 1),
    metric=st.sampled_from(METRICS),
    has_sparse_points=st.booleans(),
    has_sparse_queries=st.booleans(),
    k=st.integers(1, 8),
    diversity=st.sampled_from([0, 0.3, 1]),
)
def test_distances_agree_with_the_reference(
    seed: int,
    metric: Metric,
    has_sparse_points: bool,
    has_sparse_queries: bool,
    *,
    k: int,
    diversity: float,
) -> None:
    """Inputs have duplicates, zeros, lengths that differ by a factor of 100 and empty places."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((9, 5)) * rng.choice([0.1, 1, 10], (9, 1))
    points *= rng.random(points.shape) < 0.7
    points[1] = points[0]
    queries = rng.standard_normal((3, 5))
    rows = rng.integers(-1, 9, (3, k))
    matrix = sparse.csr_array(points) if has_sparse_points else points
    query_rows = sparse.csr_array(queries) if has_sparse_queries else queries
    result = list_distances(matrix, query_rows, rows, metric)
    for number, (query, hits) in enumerate(zip(queries, rows, strict=True)):
        values = (result.to_query[number], result.mean[number], result.least[number])
        expected = reference.list_distances(points, query, hits, metric)
        np.testing.assert_allclose(values, expected, atol=1e-9)
        assert not result.least[number] < 0
        near, apart = expected[0], expected[1] if k > 1 else 0.0
        value = (1 - diversity) * near - diversity * apart if min(hits) >= 0 else math.nan
        np.testing.assert_allclose(objective(result, diversity)[number], value, atol=1e-9)
        assert result.found[number] == (hits >= 0).sum()


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_block_and_step_sizes_change_no_distance(
    kind: str, base: FloatArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    rows, queries = rng.integers(-1, 40, (30, 17)), rng.standard_normal((30, 7))
    points = base if kind == "dense" else sparse.csr_array(base)
    whole = list_distances(points, queries, rows)
    monkeypatch.setattr(distances, "_BLOCK_NUMBERS", 20)
    monkeypatch.setattr(distances, "_BLOCK_SPARSE_ROWS", 3)
    monkeypatch.setattr(distances, "_STEP_MULTIPLICATIONS", 250)
    monkeypatch.setattr(distances, "_STEP_SPARSE_PRODUCTS", 40)
    parts = list_distances(points, queries, rows)
    for name in ("to_query", "mean", "least", "found"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-12)


def test_empty_places_after_the_last_result_cost_nothing(base: FloatArray) -> None:
    """All pairs of places of these lists would take 80 GB."""
    rows = np.full((2, 100_000), -1)
    rows[:, :4] = [[3, 1, 4, -1], [5, -1, 9, 2]]
    result, short = (list_distances(base, base[:2], lists) for lists in (rows, rows[:, :4]))
    assert (result.k, short.k) == (100_000, 4)
    for name in ("to_query", "mean", "least", "found"):
        assert getattr(result, name).tobytes() == getattr(short, name).tobytes()
    assert np.isnan(objective(result, 0.5)).all()


def test_undefined_objectives_and_distances_are_nan(base: FloatArray) -> None:
    result = list_distances(base, base[:2], np.array([[3, -1, 4], [1, 2, 3]]))
    assert np.isnan(objective(result, 0.3)).tolist() == [True, False]
    assert result.mean[0] == result.least[0] > 0
    result = list_distances(base, base[:1], np.array([[3]]))
    assert objective(result, 0.3) == pytest.approx(0.7 * result.to_query)
    assert np.isnan([result.mean, result.least]).all()
    result = list_distances(base, base[:1], np.array([[-1, -1]]))
    assert np.isnan([result.to_query, result.mean, result.least]).all()
    assert list_distances(base, base[:0], np.empty((0, 2), np.int64)).mean.shape == (0,)
    result = list_distances(base, base[:1], np.array([[3, 4]]), "inner_product")
    assert np.isnan(objective(result, 0.3)).all()
    assert 0 <= result.mean[0] <= 2


def test_wrong_diversities_and_shapes_are_refused(base: FloatArray) -> None:
    result = list_distances(base, base[:1], np.array([[3, 4]]))
    for diversity in (-0.1, 1.1, math.nan):
        with pytest.raises(InvalidArgumentError, match="diversity"):
            objective(result, diversity)
    for rows in (np.array([1, 2]), np.empty((1, 0), int), np.ones((2, 2), int)):
        with pytest.raises(InvalidArgumentError, match="rows must be"):
            list_distances(base, base[:1], rows)
