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
from divgrpc.vectors import SparseRows, block_rows, mean_width
from reference.index import same_bytes
from support.checks.refusals import refused
from support.data.labelled_documents import widened as at_columns
from support.data.mixed_indexes import METRICS, SELECTIONS, drawn, queries, stating

LONGEST = LIMITS["sparse_dims_max"]
# WIDE is thirty times as wide as the widest rows that are not sketched, but quick to build.
WIDE = 2**18
USED = 20
COLUMNS: IntArray = np.sort(
    np.concatenate(
        ([0, WIDE - 1], np.random.default_rng(8).choice(WIDE - 2, USED - 2, replace=False) + 1)
    )
)
# The hash family needs neither components nor orthogonal blocks, which take long to compute.
RANDOM: Any = {"hash_family": "lsh_div", "hyperplanes": "gaussian"}
SEARCHES: list[Search] = ["tables", "scan", "scan_hamming", "exact"]


def widened(rows: FloatArray, width: int = WIDE) -> sparse.csr_array:
    """Return rows (n, USED) as sparse rows of many columns."""
    return at_columns(sparse.csr_array(rows), COLUMNS, width)


@cache
def both(metric: Metric) -> tuple[Index, Index]:
    """Return an index of wide rows, and an index of the same rows without the empty columns."""
    points = drawn(240, USED, 1, metric)
    return (
        Index.build(widened(points), metric=metric, **RANDOM),
        Index.build(sparse.csr_array(points), metric=metric, **RANDOM),
    )


@cache
def longest_rows() -> Index:
    return Index.build(widened(drawn(240, USED, 1, "cosine"), LONGEST), **RANDOM)


def labelled(rows: int, seed: int) -> tuple[FloatArray, sparse.csr_array]:
    """Return documents (rows, USED) and labels that depend on them."""
    rng = np.random.default_rng(seed)
    documents = rng.random((rows, USED)) * (rng.random((rows, USED)) < 0.3)
    documents[:, 0] += 0.1
    scores = documents @ np.random.default_rng(2).standard_normal((USED, 9))
    return documents.astype(np.float32), sparse.csr_array(scores > 0.4)


def test_more_columns_than_the_maximum_are_refused() -> None:
    one = sparse.csr_array(([1.0], [LONGEST], [0, 1]), (1, LONGEST + 1))
    with refused("vectors", f"sparse vectors .* 1 to {LONGEST}"):
        Index.build(one)
    index = Index.build(sparse.csr_array(([2.0], [LONGEST - 1], [0, 1]), (1, LONGEST)), **RANDOM)
    assert (index.dims, index.rows) == (LONGEST, 1)
    for query in (
        sparse.csr_array(([3.0], [LONGEST - 1], [0, 1]), (1, LONGEST)),
        np.eye(1, LONGEST),
    ):
        found = index.query(query, k=1)
        assert found.scores.tolist() == [[query.sum() == 3]]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("selector", "variant"), SELECTIONS)
def test_empty_columns_change_no_answer(
    selector: Selector, variant: Variant, metric: Metric
) -> None:
    """`qp_relax` adds up its means over other columns, so its shares agree only nearly."""
    wide, narrow = both(metric)
    asked = queries(5, metric)
    told: Any = {"k": 6, "selector": selector, "variant": variant, "search": "exact"}
    theirs = narrow.query(sparse.csr_array(asked), **told)
    ours = wide.query(widened(asked), **told)
    if selector == "qp_relax":
        assert ours.ids.tolist() == theirs.ids.tolist()
        assert np.allclose(ours.selection_scores, theirs.selection_scores, atol=1e-4)
        assert ours.scores.tobytes() == theirs.scores.tobytes()
    else:
        assert same_bytes(ours, theirs)
    again = wide.query(widened(asked[3:4]), **told)
    assert again.ids.tobytes() == ours.ids[3:4].tobytes()


@pytest.mark.parametrize(("selector", "variant"), SELECTIONS)
def test_a_query_allocates_less_than_one_wide_row(selector: Selector, variant: Variant) -> None:
    """The first query of a thread allocates its memory; the second allocates little."""
    asked = widened(queries(2, "cosine"), LONGEST)
    index = longest_rows()
    told: Any = {"k": 6, "selector": selector, "variant": variant}
    index.query(asked[:1], **told)
    tracemalloc.start()
    try:
        index.query(asked[1:], **told)
        assert tracemalloc.get_traced_memory()[1] < 4 * LONGEST / 3
    finally:
        tracemalloc.stop()


def test_relaxation_compacts_the_columns_of_candidates() -> None:
    """Means have only the columns that candidates use, unless candidates use all columns."""
    for index, columns in zip(both("inner_product"), (USED, None), strict=True):
        searcher = index.engine._searcher
        points, rows = searcher._index.points, np.arange(200, dtype=np.int32)
        costs = np.zeros(200, np.float32)
        among = CandidateSet(points, rows, costs, Memory(1, 1, (1, 64)).scratch.selection)
        compact = among.compact()
        assert (compact is among) == (columns is None)
        assert compact.points.vectors.shape == (0, USED)
        inverses = points.inverse_lengths[rows if columns else slice(None)]
        assert compact.points.inverse_lengths.tolist() == inverses.tolist()


def test_defaults_depend_on_stored_values_not_on_columns() -> None:
    wide, narrow = both("cosine")
    assert wide.engine.widest_row == narrow.engine.widest_row <= USED
    for index in (wide, narrow):
        result = index.query(index.engine._searcher.points[:1], k=100)
        assert result.parameters.candidates_limit == 1_000
    points, topics = widened(drawn(30, USED, 1, "cosine")), np.arange(30) % 3
    index = Index.build(points, categories=topics, subtopics=np.arange(30) % 5, **RANDOM)
    rows = list(evaluate(index, points[:4], topics[:4], grid=Grid(ks=(100,)), folds=0))
    assert {row.queries for row in rows} == {4}
    full = stating(index, widest_row=LONGEST)
    with refused("ks", "squared"):
        next(evaluate(full, points[:4], topics[:4], grid=Grid(ks=(100,)), folds=0))


def test_a_label_model_of_wide_rows_is_that_of_the_used_columns(tmp_path: Path) -> None:
    """The feature map is zero in unused columns, also after the index is saved and opened again."""
    documents, labels = labelled(200, 0)
    told: Any = {"labels": labels, "rank": 4, "regularisation": 1.0, "iterations": 2} | RANDOM
    Index.build(widened(documents), label_model="leml", path=tmp_path / "wide", **told)
    index = Index.open(tmp_path / "wide")
    feature_map = index.engine._arrays["feature_map"]
    assert feature_map.shape == (WIDE, 4)
    assert np.array_equal(np.flatnonzero(feature_map.any(axis=1)), COLUMNS)
    asked, _ = labelled(30, 1)
    few = Index.build(sparse.csr_array(documents), label_model="leml", **told)
    for mode in ("embedding", "neighbour_vote"):
        ours = index.predict_labels(widened(asked), mode=mode, search="exact")
        theirs = few.predict_labels(sparse.csr_array(asked), mode=mode, search="exact")
        assert (ours.labels == theirs.labels).mean() > 0.95
        assert np.allclose(np.sort(ours.scores), np.sort(theirs.scores), atol=1e-3)


def test_given_factors_of_wide_rows_predict_as_narrow_ones() -> None:
    documents, labels = labelled(100, 0)
    rng = np.random.default_rng(1)
    factors = rng.standard_normal((labels.shape[1], 3)).astype(np.float32)
    narrow_map = rng.standard_normal((USED, 3)).astype(np.float32)
    wide_map = np.zeros((WIDE, 3), np.float32)
    wide_map[COLUMNS] = narrow_map
    asked, _ = labelled(8, 1)
    wide = Index.build(widened(documents), labels=labels, label_model=(factors, wide_map), **RANDOM)
    thin = sparse.csr_array(documents)
    narrow = Index.build(thin, labels=labels, label_model=(factors, narrow_map), **RANDOM)
    ours = wide.predict_labels(widened(asked))
    theirs = narrow.predict_labels(sparse.csr_array(asked))
    assert ours.labels.tobytes() == theirs.labels.tobytes()
    assert ours.scores.tobytes() == theirs.scores.tobytes()
    voted = neighbour_vote(wide, widened(asked), labels, top_k=3)
    votes = neighbour_vote(narrow, sparse.csr_array(asked), labels, top_k=3)
    assert voted.labels.tobytes() == votes.labels.tobytes()
    assert voted.scores.tobytes() == votes.scores.tobytes()
    short = wide_map[:-1]
    with refused("label_model", f"{WIDE} rows"):
        Index.build(widened(documents), label_model=(factors, short), **RANDOM)


@pytest.mark.parametrize(
    ("stored", "block", "sample"), [(1, 8_192, 50_000), (200, 8_192, 20_971), (10_000, 838, 4_096)]
)
def test_blocks_and_samples_are_bounded_by_stored_values(
    stored: int, block: int, sample: int
) -> None:
    """A block holds about 2^23 stored values, and a sample for components about 2^22."""
    count = 60_000
    none = np.broadcast_to(np.int32(0), count * stored)
    rows = SparseRows(np.arange(count + 1) * stored, none, np.empty(0, np.float32), WIDE)
    assert mean_width(rows) == stored
    assert block_rows(rows) == block
    assert hyperplanes._sample_rows(rows, SKETCH_SUMS) == sample
