"""Points without a vector are kept, and searches see nothing of them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from divgrpc import Collection, Field, Index
from divgrpc.arrays import Array
from divgrpc.columns import ids as id_module
from divgrpc.doctor import check_folder
from divgrpc.errors import InvalidArgumentError, UnfitIndexError, UnsupportedError
from divgrpc.evaluation import Grid, LabelGrid, evaluate
from divgrpc.evaluation.label_running import evaluate_labels, neighbour_vote
from divgrpc.hashing import tables
from divgrpc.kernels.look_ups import TILE_POINTS
from divgrpc.parameters import BuildParameters
from divgrpc.storage.generations import IndexFolder
from divgrpc.storage.writers import MemoryStore
from divgrpc.types import HashFamily, Metric, Points
from divgrpc.writes import backlog, layout, vectorless
from divgrpc.writes.vectorless import VectorlessPoints
from divgrpc_client.messages.vectors import PointVectors
from support.data.written_points import (
    DIMS,
    LABELS,
    Model,
    a_collection,
    as_kind,
    check_exact,
    check_points,
    columns_of,
    drawn_names,
    drawn_points,
    kind_of,
    passing,
    same_answers,
    upsert,
)

pytestmark = pytest.mark.usefixtures("no_syncs")

ROWS = 240
# Every third point has no vector.
LABELLED = [
    replace(point, vector=None if place % 3 == 2 else point.vector)
    for place, point in enumerate(drawn_points(2 * ROWS, 31))
]
POINTS = [replace(point, labels=None) for point in LABELLED]
QUERIES = np.random.default_rng(32).normal(size=(3, DIMS)).astype(np.float32)
NAMES = drawn_names(2 * ROWS)
# Each pair of a family, a metric, a kind of names and a kind of points occurs.
every_pair = pytest.mark.parametrize(
    ("family", "metric", "names", "points"),
    [
        ("cells", "cosine", "integers", "sparse"),
        ("cells", "euclidean", "integers", "dense"),
        ("cells", "inner_product", "texts", "sparse"),
        ("lsh_div", "cosine", "texts", "dense"),
        ("lsh_div", "euclidean", "texts", "sparse"),
        ("lsh_div", "inner_product", "integers", "dense"),
    ],
)


@pytest.fixture(autouse=True)
def _no_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be merged in the background; let blocks be small."""
    monkeypatch.setattr(backlog, "_MERGED_ROWS_MIN", 10**9)
    monkeypatch.setattr(vectorless, "_BLOCK_ROWS", 16)


def searchable(model: Model) -> Model:
    return passing(model, lambda point: point.vector is not None)


def answers_of(index: Index) -> list[Any]:
    has_cells = index.engine.manifest.parameters.hash_family == "cells"
    searches: Any = ["tables"] * has_cells + ["scan", "scan_hamming", "exact", "auto"]
    queries = as_kind(QUERIES, kind_of(index))
    return [
        index.query(queries, k=6, search=search, filter=condition, hash_limit=40, diversity=dial)
        for search in searches
        for condition in (None, Field("colour") == "red", Field("size") < 7)
        for dial in (0.0, 0.4)
    ]


def knowledge_of(index: Index) -> list[Any]:
    """Return what label models, votes, evaluations and diagnoses say of labelled points."""
    queries, engine = as_kind(QUERIES, kind_of(index)), index.engine
    votes = [
        index.predict_labels(queries, mode="neighbour_vote", filter=condition)
        for condition in (None, Field("colour") == "red")
    ]
    assert index.info.labels is not None
    models = [index.predict_labels(queries)] if index.info.labels.rank else []
    truth = np.eye(len(QUERIES), LABELS)
    label_grid = LabelGrid(modes=("neighbour_vote",))
    label_rows = list(evaluate_labels(index, queries, truth, grid=label_grid, folds=0))
    grid = Grid(searches=("exact",), ks=(5,), diversities=(0.0, 0.3), keep_duplicates=True)
    rows = evaluate(index, queries, categories=[0, 1, 2], grid=grid, folds=0)
    assert engine.label_counts is not None
    return [
        *[(vote.labels.tolist(), vote.scores.tobytes()) for vote in votes + models],
        *[[warning.code for warning in vote.warnings] for vote in votes + models],
        [repr(row.metrics) for row in rows],
        [repr((row.metrics, row.ndcg_at, row.propensity_scored_at)) for row in label_rows],
        engine.label_counts.tolist(),
        engine.topics.totals.tolist(),
        engine.has_stale_label_model,
        repr(replace(index.diagnose(sample=40), generation=0, sequence=0)),
    ]


def check_same(index: Index, expected: list[Any]) -> None:
    for result, truth in zip(answers_of(index), expected, strict=True):
        assert same_answers(result, truth)
        assert result.points_passing == truth.points_passing
        fields = ["points_hashed", "points_scored"]
        if kind_of(index) == "sparse" and result.parameters.search == "exact":
            # The first write changes how inverted lists round values.
            fields.remove("points_scored")
        for field in fields:
            assert np.array_equal(getattr(result.stats, field), getattr(truth.stats, field))


def check_both(whole: Collection, plain: Collection, model: Model) -> None:
    """Check that a collection has the points of a model, and knows what another one knows."""
    check_points(whole, model)
    check_same(whole, answers_of(plain))
    if whole.info.labels is not None:
        assert knowledge_of(whole) == knowledge_of(plain)


def write_and_check(whole: Collection, plain: Collection, model: Model, later: Model) -> None:
    """Write the points of `later`, then merge, vacuum and retrain; check both after each step."""
    check_both(whole, plain, model)
    upsert(whole, later)
    losers = [n for n, p in later.items() if p.vector is None and n in searchable(model)]
    if losers:
        plain.delete(losers)
    if searchable(later):
        upsert(plain, searchable(later))
    model |= later
    check_both(whole, plain, model)
    for collection in (whole, plain):
        collection.compact()
    check_both(whole, plain, model)
    assert whole.compact(vacuum=True)
    plain.compact(vacuum=True)
    check_both(whole, plain, model)
    assert whole.retrain()
    plain.retrain()
    check_both(whole, plain, model)


@every_pair
def test_answers_are_those_of_an_index_without_these_points(
    family: HashFamily, metric: Metric, names: str, points: Points, tmp_path: Path
) -> None:
    # Every other kind of collection has labels, categories and sub-topics.
    source = LABELLED if (names == "texts") == (points == "dense") else POINTS
    model: Model = dict(zip(NAMES[names][:ROWS], source, strict=False))
    later: Model = dict(zip(NAMES[names][100:300], source[ROWS + 1 :], strict=False))
    whole, plain = (
        a_collection(tmp_path / f"points{number}", part, family, metric, points)
        for number, part in enumerate((model, searchable(model)))
    )
    assert whole.info.search_costs == plain.info.search_costs
    check_same(Index.open(tmp_path / "points0"), answers_of(plain))
    assert (whole.sequence, whole.generation) == (0, 1)
    write_and_check(whole, plain, model, later)
    for collection in (whole, plain):
        collection.close()
    assert [report.verdict for report in check_folder(tmp_path / "points0")] == ["ok"]
    with Collection.open(tmp_path / "points0") as again:
        check_points(again, model)
        check_exact(again, model, metric, QUERIES)


@pytest.mark.parametrize("points", ["dense", "sparse"])
@pytest.mark.parametrize("size", [1, 40, ROWS])
def test_answers_are_the_same_for_each_split_of_build_and_writes(
    size: int, points: Points, tmp_path: Path
) -> None:
    """The first point has a vector, because Build needs one."""
    source: Model = dict(enumerate(LABELLED[:ROWS]))
    model: Model = dict(list(source.items())[:size])
    later: Model = dict(list(source.items())[size:])
    options: Any = {"vectors_optional": True}
    whole, plain = (
        a_collection(tmp_path / f"points{number}", part, "cells", "euclidean", points, **options)
        for number, part in enumerate((model, searchable(model)))
    )
    with whole, plain:
        for start in range(0, len(later), 50):
            part: Model = dict(list(later.items())[start : start + 50])
            upsert(whole, part)
            upsert(plain, searchable(part))
        check_both(whole, plain, source)
        # Points lose their vectors, and others get one.
        losers: Model = {n: replace(source[n], vector=None) for n in range(0, ROWS, 6)}
        winners: Model = {n: replace(source[n], vector=source[0].vector) for n in range(2, ROWS, 6)}
        write_and_check(whole, plain, source, losers | winners)


@pytest.mark.parametrize("points", ["dense", "sparse"])
def test_a_label_model_is_that_of_an_index_without_these_points(
    points: Points, tmp_path: Path
) -> None:
    model: Model = dict(enumerate(LABELLED[:120]))
    options: Any = {"label_model": "leml", "rank": 3, "vectors_optional": True}
    whole, plain = (
        a_collection(tmp_path / f"points{number}", part, "cells", "cosine", points, **options)
        for number, part in enumerate((model, searchable(model)))
    )
    with whole, plain:
        assert not whole.engine.has_stale_label_model
        upsert(whole, {2: replace(model[2], payload=b"new"), 500: LABELLED[2]})
        model |= {2: replace(model[2], payload=b"new"), 500: LABELLED[2]}
        assert not whole.engine.has_stale_label_model
        assert whole.compact(vacuum=True)
        assert not whole.engine.has_stale_label_model
        write_and_check(
            whole, plain, model, dict(zip(range(100, 140), LABELLED[200:], strict=False))
        )
        assert whole.info.labels is not None
        assert plain.info.labels is not None
        assert whole.info.labels.losses == plain.info.labels.losses


def test_a_point_gets_a_vector_and_loses_it(tmp_path: Path) -> None:
    model: Model = dict(enumerate(POINTS[:30]))
    with a_collection(tmp_path / "points", model) as collection:
        vector = np.ones((1, DIMS), np.float32)
        collection.upsert([2], vector, payloads=[b"2"])
        record = collection.get([2], with_vectors=True)[0]
        assert (record.payload, record.attributes["colour"]) == (b"2", None)
        assert record.vector is not None
        assert collection.query(vector, k=1).ids.tolist() == [[2]]
        collection.upsert([2], payloads=[b"3"])
        assert collection.query(vector, k=1).ids.tolist() == [[2]]
        collection.upsert([2], [None], payloads=[b"4"])
        assert collection.get([2], with_vectors=True)[0].vector is None
        collection.upsert([2], payloads=[b"5"])
        assert collection.get([2], with_vectors=True)[0].vector is None
        assert 2 not in collection.query(vector, k=40).ids
        first = collection.upsert([500], write_id="a")
        assert collection.upsert([500], write_id="a") == first
        assert collection.get([500], with_vectors=True)[0].vector is None
        collection.upsert_records(
            [
                {"id": 501, "size": 3},
                {"id": 502, "vector": vector[0], "size": 4},
                {"id": 503, "vector": None, "payload": "x"},
            ]
        )
        records = collection.get([501, 502, 503], with_vectors=True)
        assert [record.vector is not None for record in records] == [False, True, False]
        assert np.isnan(np.asarray(records.vectors)[[0, 2]]).all()
        assert records.attributes["size"] == (3, 4, None)


def test_an_index_all_of_whose_points_lack_vectors(tmp_path: Path) -> None:
    points: list[Any] = [None, None]
    for is_optional in (False, True):
        with pytest.raises(InvalidArgumentError) as fault:
            Collection.build(points, path=tmp_path / "none", vectors_optional=is_optional)
        assert fault.value.field == "vectors"
    assert list(tmp_path.iterdir()) == []
    model: Model = dict(enumerate(POINTS[:4]))
    with a_collection(tmp_path / "points", model) as collection:
        collection.delete([0, 1, 3])
        model = {2: model[2]}
        check_points(collection, model)
        assert collection.query(QUERIES, k=3).counts.tolist() == [0, 0, 0]
        assert not collection.compact(vacuum=True) or collection.generation == 1
        assert not collection.retrain()
        with pytest.raises(UnfitIndexError, match="no point with a vector"):
            collection.add_attributes({"a": [1]}, ids=[2])
        check_points(collection, model)
        upsert(collection, {7: POINTS[0]})
        assert collection.query(QUERIES, k=3).counts.tolist() == [1, 1, 1]
        assert collection.compact(vacuum=True)
        check_points(collection, model | {7: POINTS[0]})


def test_build_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "points"
    model: Model = dict(enumerate(POINTS[:30]))
    with a_collection(path, model) as collection:
        assert not collection.retrain()
        assert not collection.compact()
        assert not collection.compact(vacuum=True)
        assert (collection.generation, collection.sequence) == (1, 0)
        for info in (collection.info, Index.open(path).info, IndexFolder(path).read_info()):
            assert info.writes is None
            assert info.rows_without_vector == 10
        with pytest.raises(InvalidArgumentError, match="since Build or lack a vector") as fault:
            collection.add_attributes({"a": range(30)})
        assert fault.value.field == "ids"
        with pytest.raises(UnsupportedError, match="points without a vector, which Build keeps as"):
            Index.open(path).add_attributes({"a": range(30)}, ids=range(30))
        collection.upsert([2], payloads=[b"x"])
        for info in (collection.info, Index.open(path).info, IndexFolder(path).read_info()):
            assert info.writes is not None
            assert (info.writes.sequence, info.writes.rows_dead) == (1, 1)
        assert collection.retrain()


@pytest.mark.parametrize(
    ("vector", "words"),
    [([np.nan, 1.0], "row 3 has a value that is not finite"), ([0.0, 0.0], "row 3 is all zeros")],
)
def test_errors_count_points_without_a_vector(
    vector: list[float], words: str, tmp_path: Path
) -> None:
    vectors = [[1.0, 0.0], None, None, vector]
    with pytest.raises(InvalidArgumentError, match=words):
        Index.build(vectors, vectors_optional=True, path=tmp_path / "none")
    arguments: Any = {"vectors_optional": True, "path": tmp_path / "points"}
    with Collection.build(np.eye(2), **arguments) as collection:
        with pytest.raises(InvalidArgumentError, match=words):
            collection.upsert([5, 6, 7, 8], vectors)
        assert collection.sequence == 0


@pytest.mark.parametrize(
    ("vector", "words"),
    [
        ([1.0, 2.0, 3.0], "row 3 has 3 numbers, and row 0 has 2"),
        ([1.0, "x"], "row 3 has 'x', which is no number"),
    ],
)
def test_errors_about_shapes_count_points_without_a_vector(
    vector: list[Any], words: str, tmp_path: Path
) -> None:
    vectors: list[Any] = [[1.0, 0.0], None, None, vector]
    arguments: Any = {"vectors_optional": True, "path": tmp_path / "points"}
    with pytest.raises(InvalidArgumentError, match=words):
        Index.build(vectors, **arguments)
    with (
        Collection.build(np.eye(2), **arguments) as collection,
        pytest.raises(InvalidArgumentError, match=words),
    ):
        collection.upsert([5, 6, 7, 8], vectors)
    with pytest.raises(InvalidArgumentError, match=words):
        PointVectors.of("vectors", vectors)


@pytest.mark.parametrize("row", [2, 3])
def test_an_error_about_attributes_counts_all_points(row: int, tmp_path: Path) -> None:
    vectors = [[1.0, 0.0], None, None, [0.0, 1.0]]
    words: list[Any] = [["a"]] * 4
    words[row] = [f"{number:04}" + "x" * 1_000 for number in range(999)] + ["y" * 900] * 1
    words[row] = [word + "z" * 20 for word in words[row]]
    more = [[word[::-1] for word in texts] for texts in words]
    with pytest.raises(InvalidArgumentError, match=f"row {row} takes"):
        Index.build(
            vectors, attributes={"words": words, "more": more}, vectors_optional=True,
            path=tmp_path / "points",
        )  # fmt: skip


def test_rows_are_counted_over_all_blocks() -> None:
    points = VectorlessPoints(MemoryStore(), BuildParameters(), ())
    points.take(np.eye(3), None, {})
    with pytest.raises(InvalidArgumentError, match="row 4 has no vector"):
        points.take(np.eye(1, 3), np.array([True, False]), {})


def test_arrays_may_have_none(tmp_path: Path) -> None:
    column = np.array([np.array([1.0, 0.0]), None, None], dtype=object)
    payloads: Any = np.array([b"a", b"b", b"c"], dtype=object)
    with Collection.build(
        column, payloads=payloads, vectors_optional=True, path=tmp_path / "points"
    ) as collection:
        records = collection.get([0, 1, 2], with_vectors=True)
        assert records.has_vector is not None
        assert records.has_vector.tolist() == [True, False, False]
        assert records.payloads == (b"a", b"b", b"c")
        collection.upsert([1, 0, 3], column)
        assert collection.query([1.0, 0.0], k=4).ids.tolist() == [[1, -1, -1, -1]]


def test_attributes_that_come_later(tmp_path: Path) -> None:
    model: Model = dict(enumerate(POINTS[:30]))
    with a_collection(tmp_path / "points", model) as collection:
        collection.add_attributes({"added0": [7, 8]}, ids=[2, 3])
        added: dict[int, tuple[int | None, ...]] = {2: (7,), 3: (8,)}
        model = {n: replace(p, added=added.get(n, (None,))) for n, p in model.items()}
        check_points(collection, model)
        assert collection.count(Field("added0").exists()) == 2


@pytest.mark.parametrize(
    ("arguments", "field", "words"),
    [
        ({"vectors": [[1.0], None]}, "vectors", "row 1 has no vector: with vectors_optional"),
        ({"vectors": [[1.0], None], "vectors_optional": True}, "path", "need a folder"),
        ({"vectors": [[1.0], None], "labels": [[1]], "vectors_optional": True}, "labels",
         "one row per vector, 2, got 1"),
        ({"vectors": [[1.0], None], "categories": [1, None], "vectors_optional": True},
         "categories", "whole numbers, -1 for none, got None in row 1"),
    ],
)  # fmt: skip
def test_builds_that_are_refused(arguments: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words) as fault:
        Index.build(**arguments)
    assert fault.value.field == field


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["a", "b", "b", "d"], "must be unique, b occurs twice"),
        (["a", "b", "c", "c"], "must be unique, 'c' occurs twice"),
        (["a", "b", "a", "d"], "must be unique, a occurs twice"),
        ([1, 2, 2, 4], "must be unique, 2 occurs twice"),
        ([1, 2, 3, 3], "must be unique, 3 occurs twice"),
        ([1, 2, -3, 4], "must be at least 0, got -3"),
        ([1, 2, 3], "must have one entry per row, 4, got 3"),
        (["a", "b", 3, "d"], "must be all texts"),
    ],
)
def test_wrong_ids_are_refused(ids: list[Any], words: str, tmp_path: Path) -> None:
    vectors = [[1.0, 0.0], [0.0, 1.0], None, None]
    with pytest.raises(InvalidArgumentError, match=words) as fault:
        Index.build(vectors, ids=ids, vectors_optional=True, path=tmp_path / "points")
    assert fault.value.field == "ids"
    assert list(tmp_path.iterdir()) == []


def test_texts_with_equal_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text without a vector has the hash of one that has a vector."""
    monkeypatch.setattr(id_module, "hash_of", lambda text: 100 + len(text))
    monkeypatch.setattr("divgrpc.columns.writer.keys_of", id_module.keys_of)
    monkeypatch.setattr("divgrpc.writes.state.hash_of", id_module.hash_of)
    monkeypatch.setattr("divgrpc.writes.columns.hash_of", id_module.hash_of)
    names = ["a", "bb", "c", "d", "ee"]
    vectors = [[1.0, 0.0], [0.0, 1.0], None, None, None]
    index = Index.build(
        vectors, ids=names, payloads=names, vectors_optional=True, path=tmp_path / "points"
    )
    assert [record.payload.decode() for record in index.get(names)] == names


def test_tables_read_no_codes_that_do_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = tables.create_tables
    codes: list[tuple[int, int]] = []

    def create_tables(
        tiles: Array, alive: Array, sizes: tuple[int, int], store: Callable[..., Array]
    ) -> None:
        codes.append((len(alive), len(tiles) * TILE_POINTS))
        create(tiles, alive, sizes, store)

    monkeypatch.setattr(layout, "create_tables", create_tables)
    vectors = np.random.default_rng(1).standard_normal((100, 8)).astype(np.float32)
    with Collection.build(
        [*vectors, *[None] * 1_000], path=tmp_path / "points", hash_family="lsh_div",
        vectors_optional=True,
    ) as collection:  # fmt: skip
        collection.upsert([5_000], vectors[:1])
        collection.compact()
        collection.retrain()
    assert len(codes) >= 3
    assert all(read <= stored for read, stored in codes)


def test_votes_of_labels_by_row_need_all_vectors(tmp_path: Path) -> None:
    """Build puts points without a vector behind the others."""
    points: list[Any] = [[1.0, 0.0], None, [0.0, 1.0]]
    index = Index.build(points, vectors_optional=True, path=tmp_path / "points")
    with pytest.raises(UnfitIndexError, match="not in the order of the build: give the labels"):
        neighbour_vote(index, [[1.0, 0.0]], np.eye(3))


def test_a_matrix_of_several_rows_is_no_vector(tmp_path: Path) -> None:
    rows: Any = [sparse.csr_array(np.eye(2, dtype=np.float32)), None]
    options: Any = {"vectors_optional": True, "path": tmp_path / "points"}
    with pytest.raises(InvalidArgumentError, match="each vector that is not None, 1, got 2"):
        Collection.build(rows, **options)
    collection = Collection.build([rows[0][[0]], None], **options)
    with collection, pytest.raises(InvalidArgumentError, match="one row per id, 1, got 2"):
        collection.upsert([1, 2], rows)


def test_a_zero_vector_is_a_vector(tmp_path: Path) -> None:
    rows = sparse.csr_array(np.array([[1, 0, 2], [0, 0, 0], [0, 3, 0]], np.float32))
    vectors: Any = [rows[[0]], rows[[1]], None, rows[[2]]]
    with Collection.build(
        vectors, metric="euclidean", vectors_optional=True, path=tmp_path / "points"
    ) as collection:
        zero = sparse.csr_array((1, 3), dtype=np.float32)
        assert collection.query(zero, k=4, keep_duplicates=True).ids.tolist() == [[1, 0, 3, -1]]
        upserted: Any = [None, zero, zero]
        collection.upsert([1, 2, 4], upserted)
        assert collection.info.rows_without_vector == 1
        assert collection.info.nonzeros == 3
        assert IndexFolder(tmp_path / "points").read_info().rows_without_vector == 1
        result = collection.query(zero, k=5, keep_duplicates=True, search="exact")
        assert result.ids.tolist() == [[2, 4, 0, 3, -1]]
        records = collection.get([1, 2], with_vectors=True)
        assert records.has_vector is not None
        assert records.has_vector.tolist() == [False, True]
        assert records[0].vector is None
        assert records[1].vector is not None
        collection.upsert([1, 2, 0, 3, 4], [None] * 5)
        assert not collection.query(zero, k=3).counts.any()
        assert not collection.retrain()


def test_all_rows_have_the_same_kinds_of_labels() -> None:
    points = VectorlessPoints(MemoryStore(), BuildParameters(vectors_optional=True), ())
    rows: dict[str, Any] = {"ids": None, "columns": None, "payloads": None}
    points.take(np.eye(2), None, rows | {"labels": np.eye(2)})
    with pytest.raises(InvalidArgumentError, match="must come with every row") as fault:
        points.take(np.eye(2), None, rows)
    assert fault.value.field == "labels"
    with pytest.raises(InvalidArgumentError, match="must have 2 columns, one per label, got 3"):
        points.take(np.eye(2), None, rows | {"labels": np.eye(2, 3)})
    with pytest.raises(InvalidArgumentError, match="must come with every row") as fault:
        points.take(np.eye(2), None, rows | {"labels": np.eye(2), "categories": [1, 2]})
    assert fault.value.field == "categories"


@pytest.mark.parametrize("names", ["integers", "texts"])
def test_relevant_points_have_vectors(names: str, tmp_path: Path) -> None:
    ids = NAMES[names][:30]
    with a_collection(tmp_path / "points", dict(zip(ids, POINTS, strict=False))) as collection:
        grid = Grid(searches=("exact",), ks=(5,))
        relevant = [ids[:2], ids[:3], ids[4:5]]
        with pytest.raises(InvalidArgumentError, match="which is a point without a vec") as fault:
            evaluate(collection, QUERIES, relevant=relevant, grid=grid, folds=0)
        assert fault.value.field == "relevant"


def test_without_the_option_all_points_need_vectors(tmp_path: Path) -> None:
    model: Model = {n: p for n, p in enumerate(POINTS[:30]) if p.vector is not None}
    with a_collection(tmp_path / "points", model) as collection:
        vectors = [POINTS[0].vector, None]
        upserts: list[dict[str, Any]] = [{"ids": [1, 99]}, {"ids": [1, 99], "vectors": vectors}]
        for arguments in upserts:
            with pytest.raises(InvalidArgumentError, match="built with vectors_optional") as fault:
                collection.upsert(**arguments)
            assert fault.value.field == "vectors"
        with pytest.raises(InvalidArgumentError, match="row 0 has no vector") as fault:
            collection.upsert_records([{"id": 1}])
        assert fault.value.field == "vectors"
        check_points(collection, model)
        assert collection.info.parameters["vectors_optional"] is False


def test_like_and_evaluations(tmp_path: Path) -> None:
    model: Model = dict(enumerate(POINTS[:60]))
    with a_collection(tmp_path / "points", model) as collection:
        assert collection.query(like=[0, 1], k=3).counts.tolist() == [3, 3]
        with pytest.raises(InvalidArgumentError, match="has 2, which is a point without") as fault:
            collection.query(like=[0, 2], k=3)
        assert fault.value.field == "like"
        points = searchable(model)
        plain = Index.build(ids=list(points), **columns_of([*points.values()]))
        relevant = [[0, 1, 3], [4], [6, 7]]
        grid = Grid(searches=("exact",), ks=(5,), diversities=(0.0, 0.3), keep_duplicates=True)
        rows = [
            list(evaluate(index, QUERIES, relevant=relevant, grid=grid, folds=0))
            for index in (collection, plain)
        ]
        assert rows[0]
        assert [repr(row.metrics) for row in rows[0]] == [repr(row.metrics) for row in rows[1]]
