"""Sparse rows of very many columns are answered like narrow ones, at the cost of stored values.

Only a few columns hold values, so that the reference implementations can leave out all other
columns.
"""

import tracemalloc
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from divgrpc.build_rows import block_rows, mean_width
from divgrpc.evaluation import evaluate
from divgrpc.evaluation.grid import Grid
from divgrpc.evaluation.label_running import neighbour_vote
from divgrpc.hashing import hyperplanes
from divgrpc.hashing.count_sketch import SKETCH_SUMS
from divgrpc.index import Index
from divgrpc.parameters import LIMITS
from divgrpc.search.memory import Memory
from divgrpc.search.relaxation import CandidateSet
from divgrpc.types import FloatArray, IntArray, Metric, Search, Selector, Variant
from divgrpc.vectors import SparseRows
from reference.index import same_bytes
from support.checks.refusals import refused
from support.data.labelled_documents import widened as at_columns
from support.data.mixed_indexes import METRICS, SELECTIONS, drawn, queries, stating

LONGEST = LIMITS["sparse_dims_max"]
# WIDE is thirty times as wide as the widest rows that are not sketched, but quick to build.
WIDE = 2**18
COLUMN_COUNT = 20
COLUMNS: IntArray = np.sort(
    np.concatenate(
        (
            [0, WIDE - 1],
            np.random.default_rng(8).choice(WIDE - 2, COLUMN_COUNT - 2, replace=False) + 1,
        )
    )
)
# The hash family needs neither components nor orthogonal blocks, which take long to compute.
RANDOM: Any = {"hash_family": "lsh_div", "hyperplanes": "gaussian"}
SEARCHES: list[Search] = ["tables", "scan", "scan_hamming", "exact"]


def widened(rows: FloatArray, width: int = WIDE) -> sparse.csr_array:
    """Return rows (n, COLUMN_COUNT) as sparse rows of many columns."""
    return at_columns(sparse.csr_array(rows), COLUMNS, width)


@cache
def wide_and_narrow(metric: Metric) -> tuple[Index, Index]:
    """Return an index of wide rows, and an index of the same rows without the empty columns."""
    points = drawn(240, COLUMN_COUNT, 1, metric)
    return (
        Index.build(widened(points), metric=metric, **RANDOM),
        Index.build(sparse.csr_array(points), metric=metric, **RANDOM),
    )


@cache
def longest_rows() -> Index:
    return Index.build(widened(drawn(240, COLUMN_COUNT, 1, "cosine"), LONGEST), **RANDOM)


def labelled(rows: int, seed: int) -> tuple[FloatArray, sparse.csr_array]:
    """Return documents (rows, COLUMN_COUNT) and labels that depend on them."""
    rng = np.random.default_rng(seed)
    documents = rng.random((rows, COLUMN_COUNT)) * (rng.random((rows, COLUMN_COUNT)) < 0.3)
    documents[:, 0] += 0.1
    scores = documents @ np.random.default_rng(2).standard_normal((COLUMN_COUNT, 9))
    return documents.astype(np.float32), sparse.csr_array(scores > 0.4)


def test_more_columns_than_the_maximum_are_refused() -> None:
    vector = sparse.csr_array(([1.0], [LONGEST], [0, 1]), (1, LONGEST + 1))
    with refused("vectors", f"sparse vectors .* 1 to {LONGEST}"):
        Index.build(vector)
    index = Index.build(sparse.csr_array(([2.0], [LONGEST - 1], [0, 1]), (1, LONGEST)), **RANDOM)
    assert (index.dims, index.rows) == (LONGEST, 1)
    for query in (
        sparse.csr_array(([3.0], [LONGEST - 1], [0, 1]), (1, LONGEST)),
        np.eye(1, LONGEST),
    ):
        result = index.query(query, k=1)
        assert result.scores.tolist() == [[query.sum() == 3]]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("selector", "variant"), SELECTIONS)
def test_empty_columns_change_no_answer(
    selector: Selector, variant: Variant, metric: Metric
) -> None:
    """`qp_relax` adds up its means over other columns, so its shares agree only nearly."""
    wide, narrow = wide_and_narrow(metric)
    query_rows = queries(5, metric)
    options: Any = {"k": 6, "selector": selector, "variant": variant, "search": "exact"}
    narrow_result = narrow.query(sparse.csr_array(query_rows), **options)
    wide_result = wide.query(widened(query_rows), **options)
    if selector == "qp_relax":
        assert wide_result.ids.tolist() == narrow_result.ids.tolist()
        assert np.allclose(wide_result.selection_scores, narrow_result.selection_scores, atol=1e-4)
        assert wide_result.scores.tobytes() == narrow_result.scores.tobytes()
    else:
        assert same_bytes(wide_result, narrow_result)
    again = wide.query(widened(query_rows[3:4]), **options)
    assert again.ids.tobytes() == wide_result.ids[3:4].tobytes()


@pytest.mark.parametrize(("selector", "variant"), SELECTIONS)
def test_a_query_allocates_less_than_one_wide_row(selector: Selector, variant: Variant) -> None:
    """The first query of a thread allocates its memory; the second allocates little."""
    query_rows = widened(queries(2, "cosine"), LONGEST)
    index = longest_rows()
    options: Any = {"k": 6, "selector": selector, "variant": variant}
    index.query(query_rows[:1], **options)
    tracemalloc.start()
    try:
        index.query(query_rows[1:], **options)
        assert tracemalloc.get_traced_memory()[1] < 4 * LONGEST / 3
    finally:
        tracemalloc.stop()


def test_relaxation_compacts_the_columns_of_candidates() -> None:
    """Means have only the columns that candidates use, unless candidates use all columns."""
    for index, columns in zip(wide_and_narrow("inner_product"), (COLUMN_COUNT, None), strict=True):
        searcher = index.engine._searcher
        points, rows = searcher._index.points, np.arange(200, dtype=np.int32)
        costs = np.zeros(200, np.float32)
        among = CandidateSet(points, rows, costs, Memory(1, (1, 64)).scratch.selection)
        compact = among.compact()
        assert (compact is among) == (columns is None)
        assert compact.points.vectors.shape == (0, COLUMN_COUNT)
        inverses = points.inverse_lengths[rows if columns else slice(None)]
        assert compact.points.inverse_lengths.tolist() == inverses.tolist()


def test_defaults_depend_on_stored_values_not_on_columns() -> None:
    wide, narrow = wide_and_narrow("cosine")
    assert wide.engine.widest_row == narrow.engine.widest_row <= COLUMN_COUNT
    for index in (wide, narrow):
        result = index.query(index.engine._searcher.points[:1], k=100)
        assert result.parameters.candidates_limit == 1_000
    points, topics = widened(drawn(30, COLUMN_COUNT, 1, "cosine")), np.arange(30) % 3
    index = Index.build(points, categories=topics, subtopics=np.arange(30) % 5, **RANDOM)
    rows = list(evaluate(index, points[:4], topics[:4], grid=Grid(ks=(100,)), folds=0))
    assert {row.queries for row in rows} == {4}
    full = stating(index, widest_row=LONGEST)
    with refused("ks", "squared"):
        next(evaluate(full, points[:4], topics[:4], grid=Grid(ks=(100,)), folds=0))


def test_a_label_model_of_wide_rows_is_that_of_the_used_columns(tmp_path: Path) -> None:
    """The feature map is zero in unused columns, also after the index is saved and opened again."""
    documents, labels = labelled(200, 0)
    parameters: Any = {"labels": labels, "rank": 4, "regularisation": 1.0, "iterations": 2} | RANDOM
    Index.build(widened(documents), label_model="leml", path=tmp_path / "wide", **parameters)
    index = Index.open(tmp_path / "wide")
    feature_map = index.engine._arrays["feature_map"]
    assert feature_map.shape == (WIDE, 4)
    assert np.array_equal(np.flatnonzero(feature_map.any(axis=1)), COLUMNS)
    new_documents, _ = labelled(30, 1)
    narrow = Index.build(sparse.csr_array(documents), label_model="leml", **parameters)
    for mode in ("embedding", "neighbour_vote"):
        wide_result = index.predict_labels(widened(new_documents), mode=mode, search="exact")
        narrow_result = narrow.predict_labels(
            sparse.csr_array(new_documents), mode=mode, search="exact"
        )
        assert (wide_result.labels == narrow_result.labels).mean() > 0.95
        assert np.allclose(np.sort(wide_result.scores), np.sort(narrow_result.scores), atol=1e-3)


def test_given_factors_of_wide_rows_predict_as_narrow_ones() -> None:
    documents, labels = labelled(100, 0)
    rng = np.random.default_rng(1)
    factors = rng.standard_normal((labels.shape[1], 3)).astype(np.float32)
    narrow_map = rng.standard_normal((COLUMN_COUNT, 3)).astype(np.float32)
    wide_map = np.zeros((WIDE, 3), np.float32)
    wide_map[COLUMNS] = narrow_map
    new_documents, _ = labelled(8, 1)
    wide = Index.build(widened(documents), labels=labels, label_model=(factors, wide_map), **RANDOM)
    thin = sparse.csr_array(documents)
    narrow = Index.build(thin, labels=labels, label_model=(factors, narrow_map), **RANDOM)
    wide_result = wide.predict_labels(widened(new_documents))
    narrow_result = narrow.predict_labels(sparse.csr_array(new_documents))
    assert wide_result.labels.tobytes() == narrow_result.labels.tobytes()
    assert wide_result.scores.tobytes() == narrow_result.scores.tobytes()
    wide_votes = neighbour_vote(wide, widened(new_documents), labels, top_k=3)
    narrow_votes = neighbour_vote(narrow, sparse.csr_array(new_documents), labels, top_k=3)
    assert wide_votes.labels.tobytes() == narrow_votes.labels.tobytes()
    assert wide_votes.scores.tobytes() == narrow_votes.scores.tobytes()
    short = wide_map[:-1]
    with refused("label_model", f"{WIDE} rows"):
        Index.build(widened(documents), label_model=(factors, short), **RANDOM)


@pytest.mark.parametrize(
    ("width", "block", "sample"), [(1, 8_192, 50_000), (200, 8_192, 20_971), (10_000, 838, 4_096)]
)
def test_blocks_and_samples_are_bounded_by_stored_values(
    width: int, block: int, sample: int
) -> None:
    """A block holds about 2^23 stored values, and a sample for components about 2^22."""
    count = 60_000
    indices = np.broadcast_to(np.int32(0), count * width)
    rows = SparseRows(np.arange(count + 1) * width, indices, np.empty(0, np.float32), WIDE)
    assert mean_width(rows) == width
    assert block_rows(rows) == block
    assert hyperplanes._sample_rows(rows, SKETCH_SUMS) == sample
