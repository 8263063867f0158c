"""Hyperplanes that a build learns from points, and the search that `auto` chooses with them.

A build of sparse points uses the learned hyperplanes instead of dense queries when it measures its
searches.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from divgrpc.builder import class_hyperplanes as module
from divgrpc.builder.class_hyperplanes import (
    QUERIES_MAX,
    class_hyperplanes,
    group_means,
    inner_products,
    normals,
)
from divgrpc.evaluation import evaluate
from divgrpc.evaluation.grid import Grid
from divgrpc.evaluation.label_running import neighbour_vote
from divgrpc.index import Index
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.search.results import joined
from divgrpc.storage.manifest import Manifest
from divgrpc.types import FloatArray, IntArray
from divgrpc.vectors import SparseRows
from reference import labels as reference
from support.data.mixed_indexes import stating, without_pools

CLASSES, DIMS = 4, 40


def labelled(rows: int, seed: int = 0) -> tuple[FloatArray, IntArray]:
    """Return unit points (rows, DIMS), large in column c for category c, and their categories."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, CLASSES, rows)
    points = rng.random((rows, DIMS)) * (rng.random((rows, DIMS)) < 0.1)
    points[np.arange(rows), classes] += 1
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points.astype(np.float32), classes


def sparse_rows(points: FloatArray) -> SparseRows:
    return SparseRows.of(sparse.csr_array(points))


@given(rows=st.integers(1, 60), seed=st.integers(0, 2**32))
def test_normals_are_those_of_ridge_regression(rows: int, seed: int) -> None:
    points, classes = labelled(rows, seed)
    targets = np.where(classes[:, np.newaxis] == np.arange(CLASSES), 1.0, -1.0)
    hyperplanes = normals(sparse_rows(points), (points @ points.T).astype(np.float64), targets)
    assert hyperplanes.dtype == np.float32
    for normal, column in zip(hyperplanes, targets.T, strict=True):
        np.testing.assert_allclose(normal, reference.ridge_normal(points, column), atol=1e-4)


def test_a_learned_hyperplane_separates_a_category() -> None:
    points, classes = labelled(3_000)
    hyperplanes = class_hyperplanes(sparse_rows(points), classes, 0)
    assert hyperplanes.shape == (8 * CLASSES, DIMS)
    categories = {
        int(np.bincount(classes[np.argsort(-points @ normal)[:50]]).argmax())
        for normal in hyperplanes
    }
    assert categories == set(range(CLASSES))
    for normal in hyperplanes:
        products = points @ normal
        category_products = products[classes == classes[products.argmax()]]
        other_products = products[classes != classes[products.argmax()]]
        assert np.quantile(category_products, 0.05) > np.quantile(other_products, 0.95)


@pytest.mark.parametrize("learn", [class_hyperplanes, group_means])
def test_learning_with_a_seed_is_reproducible(
    learn: Callable[..., FloatArray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SAMPLE_ROWS_MAX", 300)
    points, classes = labelled(500)
    arguments = (sparse_rows(points), classes)[: 2 if learn is class_hyperplanes else 1]
    first, second, third = (learn(*arguments, seed) for seed in (3, 3, 4))
    assert first.tobytes() == second.tobytes() != third.tobytes()


@pytest.mark.parametrize(
    "classes",
    [
        np.full(300, -1),
        np.full(300, 7),
        np.arange(300),
        *(np.repeat([3, 5], [n, 300 - n]) for n in (5, 295)),
    ],
    ids=["none", "one", "each its own", "few", "few others"],
)
def test_no_hyperplanes_are_learned_without_two_large_categories(classes: IntArray) -> None:
    points, _ = labelled(300)
    assert class_hyperplanes(sparse_rows(points), classes, 0).shape == (0, DIMS)


def test_the_sample_is_bounded_by_stored_values(monkeypatch: pytest.MonkeyPatch) -> None:
    points, classes = labelled(1_000)
    monkeypatch.setattr(module, "_SAMPLE_NUMBERS_MAX", 500)
    sizes: list[int] = []

    def noted(sample: SparseRows) -> Any:  # noqa: ANN401
        sizes.append(len(sample.values))
        return inner_products(sample)

    monkeypatch.setattr(module, "inner_products", noted)
    assert len(class_hyperplanes(sparse_rows(points), classes, 0))
    assert 0 < sizes[0] < 700


def test_zero_rows_are_ignored() -> None:
    points, classes = labelled(300)
    empty = sparse_rows(np.zeros_like(points))
    assert class_hyperplanes(empty, classes, 0).shape == group_means(empty, 0).shape == (0, DIMS)
    points[::2] = 0
    hyperplanes = class_hyperplanes(sparse_rows(points), classes, 0)
    np.testing.assert_allclose(np.linalg.norm(hyperplanes, axis=1), 1, rtol=1e-6)
    # A group of fewer than ten points has no mean.
    assert QUERIES_MAX // 2 < len(group_means(sparse_rows(points), 0)) <= QUERIES_MAX


@pytest.mark.parametrize("length", [1e-35, 1e-22, 1e15])
def test_the_scale_of_points_changes_no_hyperplane(length: float) -> None:
    points, classes = labelled(300)
    rows, scaled_rows = sparse_rows(points), sparse_rows(points * np.float32(length))
    for hyperplanes, expected in (
        (class_hyperplanes(scaled_rows, classes, 0), class_hyperplanes(rows, classes, 0)),
        (group_means(scaled_rows, 0), group_means(rows, 0)),
    ):
        np.testing.assert_allclose(hyperplanes, expected, atol=1e-4)


@given(rows=st.integers(1, 50), share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_inner_products_agree_with_dense_rows(rows: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((rows, DIMS)) * (
        rng.random((rows, DIMS)) < share * rng.random(DIMS)
    )
    products = inner_products(sparse_rows(points.astype(np.float32)))
    np.testing.assert_allclose(products, points @ points.T, atol=1e-4)


def test_hyperplanes_of_many_categories_and_many_columns() -> None:
    points, _ = labelled(1_000)
    classes = np.arange(1_000) % 90
    assert len(class_hyperplanes(sparse_rows(points), classes, 0)) == QUERIES_MAX
    columns = LIMITS["sparse_dims_max"]
    wide = sparse.csr_array(points)
    wide = sparse.csr_array((wide.data, wide.indices, wide.indptr), (1_000, columns))
    rows = SparseRows.of(wide)
    assert class_hyperplanes(rows, classes, 0).shape == group_means(rows, 0).shape == (4, columns)


def test_group_means_are_means_of_similar_points() -> None:
    points, classes = labelled(3_000)
    means = group_means(sparse_rows(points), 0)
    assert means.shape == (QUERIES_MAX, DIMS)
    np.testing.assert_allclose(np.linalg.norm(means, axis=1), 1, rtol=1e-6)
    assert (means >= 0).all()
    # If a group's mean mixed all four categories evenly, the largest share would be about 0.25.
    nearest = np.argsort(-(means @ points.T), axis=1)[:, :50]
    shares = [np.bincount(classes[row]).max() / 50 for row in nearest]
    assert np.mean(shares) > 0.8


def made(**parameters: Any) -> Index:  # noqa: ANN401  # parameters of Index.build
    points, classes = labelled(1_000)
    return Index.build(sparse.csr_array(points), **{"categories": classes, **parameters})


@cache
def usual() -> Index:
    """Return a shared index of sparse points with categories, which tests must not change."""
    return made()


def test_a_build_with_categories_measures_hyperplane_queries() -> None:
    info = usual().info
    assert info.auto_search_dense in {"exact", "scan", "tables"}
    assert [cost.search for cost in info.search_costs_dense] == [
        cost.search for cost in info.search_costs
    ]
    (choice,) = (entry for entry in info.choices if entry.parameter == "search_dense")
    assert choice.value == info.auto_search_dense
    assert "hyperplanes" in choice.reason
    assert made(metric="inner_product").info.auto_search_dense
    points, classes = labelled(1_000)
    dense = Index.build(points, categories=classes)
    for index in (made(metric="euclidean"), dense):
        assert index.info.auto_search_dense is None
        assert index.info.search_costs_dense == ()


def test_a_build_without_categories_measures_group_means() -> None:
    info = made(categories=None).info
    assert info.auto_search_dense in {"exact", "scan", "tables"}
    (choice,) = (entry for entry in info.choices if entry.parameter == "search_dense")
    assert choice.reason.startswith(f"by {QUERIES_MAX} means of points from broad groups: ")
    points, _ = labelled(39)
    small_info = Index.build(sparse.csr_array(points)).info
    assert small_info.auto_search_dense is None
    assert small_info.search_costs_dense == ()


def test_dense_queries_use_the_search_measured_for_them() -> None:
    index = usual()
    dual_index = without_pools(index, auto_search="tables", auto_search_dense="scan")
    points, _ = labelled(5, seed=1)
    assert dual_index.query(points, hash_limit=100).parameters.search == "scan"
    assert dual_index.query(sparse.csr_array(points), hash_limit=100).parameters.search == "tables"
    parameters = QueryParameters(hash_limit=100)
    assert dual_index.engine.resolve(parameters).search == "tables"
    nearest = QueryParameters(hash_limit=100, selector="nearest")
    by_form = [
        dual_index.engine.answer_one_by_one(form(points), nearest)[0]
        for form in (np.array, sparse.csr_array)
    ]
    for ids, search in zip(by_form, ("scan", "tables"), strict=True):
        expected = dual_index.query(points, hash_limit=100, selector="nearest", search=search)  # type: ignore[arg-type]
        assert ids.tolist() == expected.ids.tolist()
    assert by_form[0].tolist() != by_form[1].tolist()
    grid = Grid(selectors=("nearest",), limits=((100, 50),))
    for form, search in (
        (np.array, "scan"),
        (np.ndarray.tolist, "scan"),
        (sparse.csr_array, "tables"),
    ):
        queries = form(points)
        assert dual_index.engine.resolve(parameters, queries).search == search
        rows = evaluate(dual_index, queries, np.arange(5) % CLASSES, grid=grid, folds=0)
        assert [row.parameters.search for row in rows] == [search]
    alone = stating(dual_index, auto_search_dense=None)
    assert alone.query(points, hash_limit=100).parameters.search == "tables"


def test_dense_queries_that_look_like_points_cause_a_warning() -> None:
    """The warning appears only if `auto` chooses different searches for points and hyperplanes."""
    index = usual()
    dual_index = without_pools(index, auto_search="exact", auto_search_dense="scan")
    points, _ = labelled(5, seed=1)

    def codes(index: Index, queries: Any, **options: Any) -> list[str]:  # noqa: ANN401
        return [
            warning.code for warning in index.query(queries, hash_limit=100, **options).warnings
        ]

    expected = ["DENSE_QUERIES_LIKE_POINTS"]
    assert codes(dual_index, points) == expected
    assert codes(dual_index, np.vstack([points, np.ones((1, DIMS))])) == expected
    assert codes(dual_index, np.ones((2, DIMS))) == []
    widest = np.arange(DIMS) < index.engine.widest_row
    assert codes(dual_index, widest[np.newaxis].astype(np.float32)) == expected
    parameters: dict[str, Any] = {"k": 60, "hash_limit": 100, "max_distance": 0.5}
    parameters["keep_duplicates"] = True
    few_result = dual_index.query(np.vstack([points, points]), **parameters)
    parts = [dual_index.query(points, **parameters) for _ in range(2)]
    assert [warning.code for warning in joined(parts).warnings] == [
        warning.code for warning in few_result.warnings
    ]
    assert [warning.code for warning in few_result.warnings] == [*expected, "FEWER_THAN_K_FOUND"]
    assert codes(dual_index, sparse.csr_array(points)) == []
    assert codes(dual_index, points, search="scan") == []
    assert (
        dual_index.query(points).parameters.search == "exact"
    )  # the default hash limit includes nearly all points
    assert dual_index.query(points).warnings == ()
    alike = stating(dual_index, auto_search_dense="exact")
    assert codes(alike, points) == []


def test_dense_documents_are_searched_like_points() -> None:
    points, classes = labelled(1_000)
    index = made(labels=sparse.csr_array(np.eye(CLASSES)[classes]))
    dual_index = without_pools(index, auto_search="tables", auto_search_dense="scan")
    for documents in (points[:5], sparse.csr_array(points[:5])):
        result = dual_index.predict_labels(documents, mode="neighbour_vote", hash_limit=100)
        assert result.parameters.search == "tables"
    parameters = QueryParameters(k=10, hash_limit=100, selector="nearest")
    votes = [
        neighbour_vote(
            dual_index, form(points[:50]), np.eye(1_000), top_k=10, parameters=parameters
        )
        for form in (np.array, sparse.csr_array)
    ]
    assert votes[0].labels.tobytes() == votes[1].labels.tobytes()


def test_a_manifest_stores_the_search_of_dense_queries() -> None:
    """A manifest without the fields of dense queries, as earlier versions wrote it, still opens."""
    manifest = usual().engine.manifest
    text = manifest.to_json()
    assert Manifest.from_json(text) == manifest
    document = json.loads(text)
    for name in ("auto_search_dense", "search_costs_dense", "crc32", "format", "format_version"):
        del document[name]
    older = Manifest.from_document(document)
    assert older == replace(manifest, auto_search_dense=None, search_costs_dense=())
