"""The default threshold of near-copies, which a build measures."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import sparse

from core.kernels.test_collapse import DIMS, copies
from core.kernels.test_greedy import METRICS, Metrics
from divgrpc.builder.near_copies import near_copy_threshold
from divgrpc.index import Index
from divgrpc.parameters import BuildParameters
from divgrpc.types import FloatArray, Metric
from reference import definitions

Vectors = npt.NDArray[np.floating]


def mean_apart(vectors: Vectors) -> float:
    """Return the mean squared distance of pairs, each weighted by its squared distance."""
    rows = vectors.astype(np.float64)
    apart = np.array([((rows - row) ** 2).sum(axis=1) for row in rows])
    return float((apart**2).sum() / apart.sum()) if apart.any() else 0.0


def threshold(vectors: Vectors, metric: Metric) -> float:
    if metric == "cosine":
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return near_copy_threshold(
        vectors.astype(np.float32), BuildParameters(metric=metric), lambda *_: None
    )


def threshold_of_all(vectors: Vectors, metric: Metric) -> float:
    """Return the threshold by a slow implementation that samples nothing."""
    rows = vectors.astype(np.float64)
    if metric != "euclidean":
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    apart = [sorted(float(((row - neighbour) ** 2).sum()) for neighbour in rows) for row in rows]
    usual = float(f"{mean_apart(rows) / 20:.3g}")
    for step in range(60):
        limit = float(f"{2 * usual / 2 ** (step / 4):.3g}")
        near = [sum(far <= limit for far in distances) for distances in apart]
        wider = [sum(far <= 2 * limit for far in distances) for distances in apart]
        pairs = zip(near, wider, strict=True)
        points_with_gains = sum(
            wide_count > (1.1 * count if count > 60 else count) for count, wide_count in pairs
        )
        points_in_clusters = sum(count > 60 for count in near)
        points_with_copies = sum(count > 1 for count in near)
        if limit > usual and points_with_copies < 0.25 * len(rows):
            continue
        if points_with_gains <= 0.1 * len(rows) and points_in_clusters <= 0.75 * len(rows):
            break
    else:
        limit = 0.0
    return limit if metric == "euclidean" else 1 - limit / 2


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("seed", range(6))
def test_the_threshold_agrees_with_the_reference(metric: Metrics, seed: int) -> None:
    """The cases are copies, few dimensions, one large cluster, equal points and a cone."""
    rng = np.random.default_rng(seed)
    cases: tuple[Vectors, ...] = (
        copies(seed, 20, 6, metric=metric),
        rng.standard_normal((90, 1 + seed)),
        np.concatenate((copies(seed, 1, 1).repeat(101, axis=0), copies(seed, 9, 1))),
        np.ones((7, 3)),
        np.abs(copies(seed, 100, 1)) + 2,
    )
    for vectors in cases:
        expected = threshold_of_all(vectors, metric)
        assert threshold(vectors.astype(np.float32), metric) == pytest.approx(expected, abs=1e-6)


def test_sparse_and_dense_points_have_the_same_threshold() -> None:
    vectors = copies(1, 40, 5)
    dense_index, sparse_index = Index.build(vectors), Index.build(sparse.csr_array(vectors))
    assert dense_index.info.duplicate_threshold == sparse_index.info.duplicate_threshold


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("number", [3, 10, 30])
def test_the_threshold_separates_copies_from_other_points(metric: Metrics, number: int) -> None:
    items = definitions.unit(np.random.default_rng(number).standard_normal((60, DIMS)))
    jitter = np.random.default_rng(0).standard_normal((60 * number, DIMS)) * 0.02
    vectors = (3 * (items.repeat(number, axis=0) + jitter)).astype(np.float32)
    index = Index.build(vectors, metric=metric)
    result = index.query(vectors[::number], selector="greedy", list_collapsed=True)
    assert result.warnings == ()
    for row, (hits, first) in enumerate(zip(result, range(0, len(vectors), number), strict=True)):
        assert {int(hit.id) // number for hit in hits} >= {first // number}
        assert len({int(hit.id) // number for hit in hits}) == len(hits) == 10
        assert len(result.collapsed(row, 0)) == number - 1


def _healthy(name: str) -> FloatArray:
    rng = np.random.default_rng(11)
    points: dict[str, Any] = {
        "a map": lambda: rng.random((4_000, 2)) + 1,
        "8 dimensions": lambda: rng.standard_normal((4_000, 8)),
        "64 dimensions": lambda: rng.standard_normal((2_000, 64)),
        "10 tight clusters": lambda: (
            rng.standard_normal((10, 64)).repeat(300, axis=0)
            + 0.1 * rng.standard_normal((3_000, 64))
        ),
        "10 small clusters": lambda: (
            rng.uniform(-10, 10, (10, 8)).repeat(100, axis=0) + rng.standard_normal((1_000, 8))
        ),
        "many lengths": lambda: (
            rng.standard_normal((3_000, 32)) * np.exp(rng.standard_normal((3_000, 1)))
        ),
        "far outliers": lambda: (
            rng.standard_normal((4_000, 32)) * np.where(np.arange(4_000) < 40, 50, 1)[:, np.newaxis]
        ),
        "150 flowers": lambda: np.round(
            rng.normal([5.8, 3.1, 3.8, 1.2], [0.8, 0.4, 1.8, 0.8], (150, 4)), 1
        ),
    }
    vectors: FloatArray = points[name]().astype(np.float32)
    return vectors


_NAMES = [
    *("8 dimensions", "64 dimensions", "10 tight clusters", "10 small clusters"),
    *("many lengths", "far outliers", "150 flowers"),
]
_CASES = [(name, metric) for name in _NAMES for metric in METRICS]


# Under cosine, all points of a map lie close together, so 4,000 of them nearly coincide.
@pytest.mark.parametrize(("name", "metric"), [*_CASES, ("a map", "euclidean")])
def test_hardly_any_points_without_copies_are_collapsed(name: str, metric: Metrics) -> None:
    vectors = _healthy(name)
    index = Index.build(vectors, metric=metric)
    queries = vectors[:: max(1, len(vectors) // 60)]
    result = index.query(queries, search="exact")
    plain = index.query(queries, search="exact", keep_duplicates=True)
    assert result.warnings == ()
    assert np.median(result.stats.collapsed) <= 5
    if metric == "euclidean":
        assert result.scores.mean() <= 1.15 * plain.scores.mean()
    else:
        assert result.scores.mean() >= 0.99 * plain.scores.mean()


def test_queries_use_the_threshold_that_the_build_measured() -> None:
    """A query with keep_duplicates has no threshold, because it collapses nothing."""
    vectors = copies(2, 300, 1, metric="euclidean") * 100 + 7
    index = Index.build(vectors, metric="euclidean")
    result = index.query(vectors[:1])
    assert result.parameters.duplicate_threshold == index.info.duplicate_threshold
    assert replace(result.parameters, duplicate_threshold=None) == replace(
        index.query(vectors[:1], keep_duplicates=True).parameters
    )
