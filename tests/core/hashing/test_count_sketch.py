"""The count sketch, which reduces wide rows to 4,096 sums before they are hashed."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from divgrpc.hashing import count_sketch
from divgrpc.hashing.count_sketch import SKETCH_DIMS_MIN, SKETCH_SUMS, CountSketch
from divgrpc.index import Index
from divgrpc.kernels import projection
from divgrpc.kernels.records import Queries
from divgrpc.search.arrays import pack_queries
from divgrpc.types import HashFamily, Metric, Search
from divgrpc.vectors import SparseRows
from reference import kernels
from reference.index import check_row, points_of
from support.checks.refusals import refused
from support.data.mixed_indexes import FAMILIES, METRICS

DIMS = SKETCH_DIMS_MIN + 800
SEARCHES: list[Search] = ["tables", "scan", "scan_hamming"]


def bags(rows: int, dims: int, seed: int) -> sparse.csr_array:
    """Draw bags of about 70 words from five topics, with lengths that differ by a factor of 10."""
    rng = np.random.default_rng(seed)
    noise = sparse.random_array((rows, dims), density=27 / dims, rng=rng, format="csr")
    topics = sparse.random_array((5, dims), density=45 / dims, rng=rng, format="csr")
    words = topics[rng.integers(0, 5, rows)] + noise
    lengths = sparse.diags_array(10 ** rng.uniform(0, 1, rows))
    return sparse.csr_array(lengths @ words).astype(np.float32)


def test_sketches_agree_with_the_reference() -> None:
    sketch, rows = CountSketch.draw(DIMS, 5), bags(4, DIMS, 1)
    truth = kernels.sketch(rows.toarray(), sketch.places, SKETCH_SUMS)
    of_sparse = sketch(SparseRows.of(rows))
    assert isinstance(of_sparse, SparseRows)
    assert np.abs(of_sparse.matrix.toarray() - truth).max() < 1e-5
    assert np.abs(sketch.of_dense(rows.toarray()) - truth).max() < 1e-5
    dense_sums, sparse_sums = np.full((2, 1, SKETCH_SUMS), np.nan, np.float32)
    for row, expected in enumerate(truth):
        for queries, sums in ((rows.toarray(), dense_sums), (SparseRows.of(rows), sparse_sums)):
            projection.sketch(Queries(*pack_queries(queries)), row, sketch.places, sums)
        assert np.abs(dense_sums[0] - expected).max() < 1e-5
        assert dense_sums.tobytes() == sparse_sums.tobytes()


def test_dimensions_are_spread_evenly_with_both_signs() -> None:
    places = CountSketch.draw(DIMS, 5).places
    sums = np.where(places >= 0, places, ~places)
    counts = np.bincount(sums, minlength=SKETCH_SUMS)
    assert counts.max() - counts.min() <= 1
    assert abs((places >= 0).mean() - 0.5) < 4 * 0.5 / math.sqrt(DIMS)
    assert (CountSketch.draw(DIMS, 5).places == places).all()
    assert (CountSketch.draw(DIMS, 6).places != places).mean() > 0.9


def test_narrow_rows_are_not_sketched() -> None:
    rows = np.ones((2, SKETCH_DIMS_MIN - 1), np.float32)
    sketch = CountSketch.draw(SKETCH_DIMS_MIN - 1, 0)
    assert sketch(rows) is rows
    assert sketch.dims == SKETCH_DIMS_MIN - 1
    plain = Index.build(rows)
    assert "sketch" not in plain.engine._arrays
    assert "sketch" not in [choice.parameter for choice in plain.info.choices]


def test_info_lists_the_sketch() -> None:
    index = Index.build(np.ones((2, SKETCH_DIMS_MIN), np.float32))
    assert index.engine._arrays["sketch"].shape == (SKETCH_DIMS_MIN,)
    sketch = next(choice for choice in index.info.choices if choice.parameter == "sketch")
    assert sketch.value == str(SKETCH_SUMS)
    assert "8,193 columns" in sketch.reason


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("family", FAMILIES)
def test_sketched_indexes_agree_with_the_reference(
    monkeypatch: pytest.MonkeyPatch, family: HashFamily, metric: Metric
) -> None:
    """300 dimensions are sketched to 128 sums; the reference compares all pairs of few points."""
    monkeypatch.setattr(count_sketch, "SKETCH_DIMS_MIN", 300)
    monkeypatch.setattr(count_sketch, "SKETCH_SUMS", 128)
    rows = bags(52, 300, 3)
    points, queries = rows[:50], rows[50:]
    for matrix in (points, points.toarray()):
        parameters: dict[str, Any] = {"metric": metric, "hash_family": family, "n_components": 20}
        index = Index.build(matrix, centred=metric == "euclidean", **parameters)
        assert index.engine._arrays["sketch"].shape == (300,)
        twin = points_of(index)
        if twin.cells is None:
            margins = kernels.margins(twin.vectors, twin.hyperplanes, twin.thresholds)
            near = np.abs(margins) < 1e-5 * np.linalg.norm(twin.vectors, axis=1)[:, np.newaxis]
            assert (twin.bits == (margins >= 0))[~near].all()
        for search in SEARCHES:
            for block in (queries, queries.toarray()):
                result = index.query(block, k=4, search=search, hash_limit=1_000)
                for row, query in enumerate(queries.toarray()):
                    check_row(twin, query, result, row)


def test_more_components_than_sums_are_refused() -> None:
    with refused("n_components", "4096"):
        Index.build(np.eye(3, SKETCH_DIMS_MIN, dtype=np.float32), n_components=SKETCH_SUMS + 1)
