"""Points without a vector are kept, and searches see nothing of them."""

import itertools
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
from divgrpc.evaluation import Grid, evaluate
from divgrpc.hashing import tables
from divgrpc.kernels.look_ups import TILE_POINTS
from divgrpc.parameters import BuildParameters
from divgrpc.storage.generations import IndexFolder
from divgrpc.storage.writers import MemoryStore
from divgrpc.types import HashFamily, Metric
from divgrpc.writes import backlog, layout, vectorless
from divgrpc.writes.vectorless import VectorlessPoints
from support.data.written_points import (
    DIMS,
    Model,
    a_collection,
    check_exact,
    check_points,
    columns_of,
    drawn_names,
    drawn_points,
    passing,
    same_answers,
    upsert,
)

pytestmark = pytest.mark.usefixtures("no_syncs")

ROWS = 240
# Every third point has no vector.
POINTS = [
    replace(point, labels=None, vector=None if place % 3 == 2 else point.vector)
    for place, point in enumerate(drawn_points(2 * ROWS, 31))
]
QUERIES = np.random.default_rng(32).normal(size=(3, DIMS)).astype(np.float32)
NAMES = drawn_names(2 * ROWS)
every_kind = pytest.mark.parametrize(
    ("family", "metric", "names"),
    [
        *itertools.product(
            ["cells", "lsh_div"], ["cosine", "euclidean", "inner_product"], ["integers", "texts"]
        )
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
    searches: Any = ["tables"] * has_cells + ["scan", "exact", "auto"]
    return [
        index.query(QUERIES, k=6, search=search, filter=condition, hash_limit=40, diversity=dial)
        for search in searches
        for condition in (None, Field("colour") == "red", Field("size") < 7)
        for dial in (0.0, 0.4)
    ]


def check_same(index: Index, expected: list[Any]) -> None:
    for result, truth in zip(answers_of(index), expected, strict=True):
        assert same_answers(result, truth)
        assert result.points_passing == truth.points_passing
        for field in ("points_hashed", "points_scored"):
            assert np.array_equal(getattr(result.stats, field), getattr(truth.stats, field))


@every_kind
def test_answers_are_those_of_an_index_without_these_points(
    family: HashFamily, metric: Metric, names: str, tmp_path: Path
) -> None:
    model: Model = dict(zip(NAMES[names][:ROWS], POINTS, strict=False))
    later: Model = dict(zip(NAMES[names][100:300], POINTS[ROWS + 1 :], strict=False))
    collections = []
    for number, part in enumerate((model, searchable(model))):
        collection = a_collection(tmp_path / f"points{number}", part, family, metric)
        collections.append(collection)
    whole, plain = collections
    assert whole.info.search_costs == plain.info.search_costs
    check_points(whole, model)
    check_same(whole, answers_of(plain))
    check_same(Index.open(tmp_path / "points0"), answers_of(plain))
    assert (whole.sequence, whole.generation) == (0, 1)
    upsert(whole, later)
    plain.delete([n for n, p in later.items() if p.vector is None and n in searchable(model)])
    upsert(plain, searchable(later))
    model |= later
    check_points(whole, model)
    check_same(whole, answers_of(plain))
    for collection in collections:
        collection.compact()
    check_points(whole, model)
    check_same(whole, answers_of(plain))
    assert whole.compact(vacuum=True)
    plain.compact(vacuum=True)
    check_points(whole, model)
    check_same(whole, answers_of(plain))
    assert whole.retrain()
    plain.retrain()
    check_points(whole, model)
    check_same(whole, answers_of(plain))
    for collection in collections:
        collection.close()
    assert [report.verdict for report in check_folder(tmp_path / "points0")] == ["ok"]
    with Collection.open(tmp_path / "points0") as again:
        check_points(again, model)
        check_exact(again, model, metric, QUERIES)


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
        with pytest.raises(UnsupportedError, match="or has points without a vector"):
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
        ({"vectors": sparse.eye_array(2).tocsr(), "vectors_optional": True}, "vectors_optional",
         "is for dense vectors"),
        ({"vectors": np.eye(2), "labels": np.eye(2), "vectors_optional": True},
         "vectors_optional", "does not go with labels"),
        ({"vectors": np.eye(2), "categories": [1, 2], "vectors_optional": True},
         "vectors_optional", "does not go with categories"),
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


def test_sparse_rows_are_refused(tmp_path: Path) -> None:
    row = sparse.csr_array(np.eye(1, 5, dtype=np.float32))
    for rows in ([row, row], [row, None]):
        with pytest.raises(InvalidArgumentError, match="is for dense vectors"):
            Collection.build(rows, path=tmp_path / "points", vectors_optional=True)


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
