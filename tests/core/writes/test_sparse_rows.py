"""Sparse rows that are written: inverted lists, rounding, older formats, labels and wide rows."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from divgrpc import Collection, Index
from divgrpc.types import Metric, QueryResult
from divgrpc.types.records import SparseVector
from divgrpc.writes import backlog, layout, renewal
from reference.index import same_bytes
from support.data.written_points import same_answers, same_stats

pytestmark = pytest.mark.usefixtures("no_syncs")

GOLDEN = Path(__file__).parent.parent.parent / "golden"
ROWS, DIMS = 400, 300
METRICS: list[Metric] = ["cosine", "euclidean", "inner_product"]
EXACT: dict[str, Any] = {"search": "exact", "k": 4, "candidates_limit": 12}


@pytest.fixture(autouse=True)
def _no_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be merged in the background."""
    monkeypatch.setattr(backlog, "_MERGED_ROWS_MIN", 10**9)


def drawn(rows: int, seed: int, dims: int = DIMS) -> Any:  # noqa: ANN401  # a matrix of scipy
    """Draw bags of words: some words are in many rows, and most are rare."""
    rng = np.random.default_rng(seed)
    shares = 1 / (2 + 0.3 * np.arange(300))
    places = np.argwhere(rng.random((rows, 300)) < shares)
    values = rng.exponential(size=len(places)).astype(np.float32) + np.float32(0.1)
    columns = places[:, 1] * (dims // 300)
    # Each row has a value under any metric.
    first = (np.ones(rows, np.float32), (np.arange(rows), rng.integers(0, dims, rows)))
    matrix = sparse.coo_array((values, (places[:, 0], columns)), shape=(rows, dims))
    return sparse.csr_array(matrix + sparse.coo_array(first, shape=(rows, dims)))


QUERIES = drawn(5, 99)
# Words that few points store, so that lists pay.
QUERIES.data[QUERIES.indices < 20] = 0
QUERIES.eliminate_zeros()


def answers_of(index: Index) -> list[QueryResult]:
    return [
        index.query(QUERIES, **EXACT),
        index.query(QUERIES, **EXACT | {"exclude_ids": list(range(0, 60, 7))}),
        index.query(QUERIES.toarray(), **EXACT),
        index.query(QUERIES, k=4, search="scan", hash_limit=50),
        index.query(QUERIES, k=4),
    ]


def check_same(index: Index, expected: list[QueryResult]) -> None:
    for result, truth in zip(answers_of(index), expected, strict=True):
        assert same_bytes(result, truth)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("most", [ROWS - 100, ROWS + 50, 10**6])
def test_answers_do_not_depend_on_the_number_of_points_with_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: Metric, most: int
) -> None:
    points = drawn(2 * ROWS, 3)
    options: Any = {"metric": metric, "path": tmp_path / "points", "hash_family": "lsh_div"}
    for module in (layout, renewal):
        monkeypatch.setattr(module, "LISTED_POINTS_MAX", most)
    with Collection.build(points[:ROWS], **options) as collection:
        collection.upsert(range(ROWS - 50, ROWS + 150), points[ROWS : ROWS + 200])
        collection.delete(range(100, 300, 3))
        expected = answers_of(collection)
        assert expected[0].stats.points_scored.max() < len(collection)
        collection.compact()
        check_same(collection, expected)
        collection.compact(vacuum=True)
        check_same(collection, expected)
        check_same(Index.open(tmp_path / "points"), expected)
        lists = np.load(tmp_path / "points" / "2" / "full_values.npy", mmap_mode="r")
        assert lists.shape[1] == min(most, len(collection))


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    metric=st.sampled_from(METRICS),
    scale=st.sampled_from([1e-6, 1.0, 300.0, 1e9]),
)
def test_values_that_do_not_fit_the_steps_of_the_build(
    tmp_path_factory: pytest.TempPathFactory, seed: int, metric: Metric, scale: float
) -> None:
    """Later values are greater or smaller, and are in columns that no point of the build has."""
    path = tmp_path_factory.mktemp("scaled") / "points"
    before, after = drawn(120, seed), drawn(60, seed + 1)
    before.data[before.indices >= 200] = 0
    before.eliminate_zeros()
    before += sparse.csr_array((np.ones(120), (np.arange(120), np.arange(120))), before.shape)
    after *= np.float32(scale)
    options: Any = {"metric": metric, "hash_family": "lsh_div"}
    queries = drawn(4, seed + 2)
    with Collection.build(before, path=path, **options) as collection:
        collection.upsert(range(100, 160), after)
        rows = sparse.vstack([before[:100], after], format="csr")
        truth = Index.build(rows, **options).query(queries, keep_duplicates=True, **EXACT)
        for _ in range(2):
            result = collection.query(queries, keep_duplicates=True, **EXACT)
            assert same_answers(result, truth)
            collection.compact()


def test_rows_without_values(tmp_path: Path) -> None:
    empty = sparse.csr_array((2, DIMS), dtype=np.float32)
    options: Any = {"metric": "euclidean", "path": tmp_path / "points"}
    with Collection.build(drawn(50, 1), **options) as collection:
        collection.upsert([7, 70], empty)
        for _ in range(2):
            result = collection.query(empty[:1], k=2, search="exact", keep_duplicates=True)
            assert result.ids.tolist() == [[7, 70]]
            assert not result.scores.any()
            collection.compact()
        record = Index.open(tmp_path / "points").get(70, with_vectors=True)[0]
        assert isinstance(record.vector, SparseVector)
        assert len(record.vector.values) == 0
        collection.upsert([7], drawn(1, 2))
        collection.compact(vacuum=True)
        assert collection.query(empty[:1], k=1, search="exact").ids.tolist() == [[70]]


def test_wide_rows_are_written(tmp_path: Path) -> None:
    """Columns of a query are marked, and rows are sketched before they are hashed."""
    dims = 300 * 700
    points = drawn(300, 5, dims)
    with Collection.build(points[:200], path=tmp_path / "points") as collection:
        collection.upsert(range(150, 250), points[200:])
        rows = sparse.vstack([points[:150], points[200:]], format="csr")
        truth = Index.build(rows)
        for search in ("exact", "scan"):
            options: Any = {"k": 3, "search": search, "keep_duplicates": True, "hash_limit": 0}
            assert same_answers(
                collection.query(points[200:220], **options),
                truth.query(points[200:220], **options),
            )
        expected = collection.query(points[200:220], **EXACT)
        collection.compact()
        assert same_bytes(collection.query(points[200:220], **EXACT), expected)


def golden_sparse_indexes() -> list[Path]:
    """Return the folders of sparse indexes that earlier versions have written."""
    manifests = GOLDEN.rglob("manifest.json")
    sparse_ones = [m for m in manifests if json.loads(m.read_text()).get("points") == "sparse"]
    return sorted(manifest.parent.parent for manifest in sparse_ones)


@pytest.mark.parametrize("folder", golden_sparse_indexes(), ids=lambda path: path.name)
def test_an_older_index_of_sparse_points_can_be_written_to(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "points"
    shutil.copytree(folder, path)
    with Collection.open(path) as collection:
        rng = np.random.default_rng(4)
        shape = (40, collection.dims)
        points = sparse.random_array(shape, density=0.3, dtype=np.float32, rng=rng, format="csr")
        points += sparse.csr_array((np.ones(40), (np.arange(40), np.zeros(40))), shape)
        ids = [f"new {row}" for row in range(40)] if collection.info.id_kind == "string" else None
        names: Any = ids or range(10**6, 10**6 + 40)
        collection.upsert(names, points)
        collection.delete(names[:5])
        searches: Any = ["exact", "scan", "tables"]
        expected = [collection.query(points[:9], k=5, search=search) for search in searches]
        if collection.engine.manifest.parameters.metric != "inner_product":
            assert expected[0].ids[5:9, 0].tolist() == list(names[5:9])
        for vacuum in (False, True):
            collection.compact(vacuum=vacuum)
            for search, truth in zip(searches, expected, strict=True):
                result = collection.query(points[:9], k=5, search=search)
                assert same_answers(result, truth)
                assert same_stats(result, truth)
        collection.upsert(names[:2], points[:2])
    assert Index.open(path).count() == Index.open(folder).count() + 37


def test_sparse_documents_have_labels_and_topics(tmp_path: Path) -> None:
    points, rng = drawn(400, 8), np.random.default_rng(5)
    labels, categories = rng.random((400, 5)) < 0.3, rng.integers(0, 3, 400)
    votes: Any = {"mode": "neighbour_vote", "neighbours": 5, "top_k": 3, "search": "exact"}
    with Collection.build(
        points[:300],
        labels=labels[:300],
        categories=categories[:300],
        label_model="leml",
        rank=4,
        path=tmp_path / "points",
    ) as collection:
        columns: Any = {"labels": labels[250:], "categories": categories[250:]}
        collection.upsert(range(250, 400), points[250:], **columns)
        fresh = Index.build(points, labels=labels, categories=categories)
        truth = fresh.predict_labels(QUERIES, **votes)
        for step in ("written", "merged", "vacuumed", "retrained"):
            result = collection.predict_labels(QUERIES, **votes)
            assert result.labels.tobytes() == truth.labels.tobytes(), step
            assert result.scores.tobytes() == truth.scores.tobytes(), step
            topics = collection.engine.topics.labels
            ids, of_rows = collection.get(range(400)).ids, topics.rows(np.arange(400))
            assert ids.tolist() == list(range(400))
            assert (of_rows >= 0).all()
            if step == "written":
                collection.compact()
            elif step == "merged":
                assert collection.compact(vacuum=True)
            elif step == "vacuumed":
                assert collection.retrain()
        assert not collection.predict_labels(QUERIES, top_k=2).warnings


def test_distances_of_results_are_those_of_a_fresh_index(tmp_path: Path) -> None:
    points = drawn(260, 12)
    with Collection.build(points[:200], path=tmp_path / "points") as collection:
        collection.upsert(range(150, 260), points[150:])
        collection.delete([4, 9])
        fresh = Index.build(points)
        ids = collection.query(QUERIES, **EXACT).ids
        result = collection.engine.distances(QUERIES, ids)
        truth = fresh.engine.distances(QUERIES, ids)
        for name in ("to_query", "mean", "least"):
            np.testing.assert_allclose(
                getattr(result, name), getattr(truth, name), atol=1e-6, rtol=1e-6
            )
