"""Attributes that an index gets later equal those of a build, and change nothing else."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from divgrpc import Field
from divgrpc.builder import attributes as adding
from divgrpc.collection import Collection
from divgrpc.errors import (
    BuildUnderWayError,
    DivgrpcError,
    IndexChangedError,
    IndexNotFoundError,
    InvalidArgumentError,
    StorageFullError,
    StorageInUseError,
    UnsupportedError,
)
from divgrpc.index import Index
from divgrpc.storage.arrays import HEADER_BYTES
from divgrpc.storage.generations import extending, staging
from divgrpc.types import Progress, QueryDefault
from divgrpc.types.records import Attribute

ROWS, DIMS = 300, 8
VECTORS = np.random.default_rng(6).normal(size=(ROWS, DIMS)).astype(np.float32)
NAMES = [f"n-{97 * row % ROWS}" for row in range(ROWS)]
NUMBERS = np.random.default_rng(7).permutation(ROWS) * 3
OLD: dict[str, Any] = {"brand": [f"b{row % 7}" for row in range(ROWS)]}
NEW: dict[str, Any] = {
    "season": [None if row % 5 == 0 else f"s{row % 4}" for row in range(ROWS)],
    "year": np.arange(ROWS) + 1_900,
    "price": [None if row % 6 == 0 else row / 4 for row in range(ROWS)],
    "new": [row % 2 == 0 for row in range(ROWS)],
    "tags": [["x", "y", "z"][: row % 4] for row in range(ROWS)],
}
BUILD: dict[str, Any] = {"hash_family": "lsh_div", "n_tables": 2}
BUILDS: dict[str, dict[str, Any]] = {
    "dense": {"vectors": VECTORS, "ids": NAMES, "payloads": NAMES},
    "numbers": {"vectors": VECTORS, "ids": NUMBERS, "attributes": OLD},
    "rows": {"vectors": VECTORS, "metric": "euclidean", "attributes": OLD},
    "sparse": {"vectors": sparse.csr_array(VECTORS * (np.abs(VECTORS) > 0.4)), "ids": NAMES},
    "labels": {
        "vectors": VECTORS,
        "ids": NAMES,
        "labels": np.eye(5)[np.arange(ROWS) % 5],
        "label_model": "leml",
        "rank": 2,
    },
}
QUERY: dict[str, Any] = {"k": 5, "with_attributes": True}


def ids_of(kind: str) -> list[Any]:
    ids: list[Any] = np.asarray(BUILDS[kind].get("ids", range(ROWS))).tolist()
    return ids


def with_new_attributes(build: dict[str, Any]) -> dict[str, Any]:
    return {**build, "attributes": build.get("attributes", {}) | NEW}


def assert_equal(index: Index, expected: Index) -> None:
    """Raise unless two indexes give the same answers and have the same points."""
    queries = VECTORS[:9]
    for options in ({}, {"filter": Field("year") < 2_000}, {"filter": Field("tags") == "y"}):
        result, whole = (i.query(queries, **QUERY, **options) for i in (index, expected))
        np.testing.assert_array_equal(result.ids, whole.ids)
        np.testing.assert_array_equal(result.scores, whole.scores)
        assert result.attributes == whole.attributes
    ids = index.query(queries, k=20).ids.ravel().tolist()
    records, stored = (i.get(ids, with_vectors=True) for i in (index, expected))
    assert [tuple(r)[2:] for r in records] == [tuple(r)[2:] for r in stored]
    assert index.info.attributes == expected.info.attributes
    if index.info.labels is not None:
        labels, stored_labels = (i.predict_labels(queries, top_k=2) for i in (index, expected))
        np.testing.assert_array_equal(labels.labels, stored_labels.labels)


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("kind", BUILDS)
def test_added_attributes_equal_built_ones(kind: str, in_files: bool, tmp_path: Path) -> None:
    build = BUILDS[kind]
    path = tmp_path / "index" if in_files else None
    index = Index.build(**build, **BUILD, path=path)
    expected = Index.build(**with_new_attributes(build), **BUILD)
    extended = index.add_attributes(NEW)
    assert extended.generation == 2
    assert_equal(extended, expected)
    # The index of before answers as before.
    assert "year" not in [a.name for a in index.info.attributes]
    assert len(index.query(VECTORS[:3], k=4).ids) == 3
    order = np.random.default_rng(1).permutation(ROWS).tolist()
    again = Index.build(**build, **BUILD).add_attributes(
        {name: [values[row] for row in order] for name, values in NEW.items()},
        ids=[ids_of(kind)[row] for row in order],
    )
    assert_equal(again, expected)
    if path is not None:
        assert_equal(Index.open(path), expected)


@pytest.mark.parametrize("block_rows", [7, 1_000])
def test_points_without_values_have_none(block_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adding, "_BLOCK_ROWS", block_rows)
    index = Index.build(VECTORS, ids=NAMES, **BUILD)
    rows = [200, 3, 77, 4, 8, 299, 0, 31, 32, 33, 34]
    values = {name: [column[row] for row in rows] for name, column in NEW.items()}
    extended = index.add_attributes(values, ids=[NAMES[row] for row in rows])
    records = extended.get(NAMES)
    for row, record in enumerate(records):
        for name in NEW:
            value = record.attributes[name]
            expected = NEW[name][row] if row in rows else None
            if name == "tags":
                expected = tuple(expected or ())
            assert value == expected, (row, name)
    assert extended.count(Field("year").exists()) == len(rows)


def test_attributes_can_be_added_again_and_again(tmp_path: Path) -> None:
    index = Index.build(VECTORS, path=tmp_path / "index", **BUILD)
    for name, values in NEW.items():
        index = index.add_attributes({name: values})
    one = index.add_attributes({"note": ["only here"]}, ids=7)
    assert one.get([7, 8]).attributes["note"] == ("only here", None)
    expected = Index.build(VECTORS, attributes=NEW, **BUILD)
    assert_equal(index, expected)
    assert [a.name for a in one.info.attributes] == [*NEW, "note"]
    assert sorted(p.name for p in (tmp_path / "index").iterdir()) == ["7", "CURRENT"]


def test_types_may_be_given() -> None:
    index = Index.build(VECTORS[:3], **BUILD)
    types: dict[str, Any] = {"a": "float", "b": "keyword"}
    extended = index.add_attributes({"a": [1, 2, 3], "b": [None] * 3}, attribute_types=types)
    assert extended.info.attributes == (Attribute("a", "float"), Attribute("b", "keyword"))


def test_defaults_are_kept(tmp_path: Path) -> None:
    default = QueryDefault(0.3, "mmr", "marginal", "tables")
    for path in (None, tmp_path / "index"):
        index = Index.build(VECTORS, labels=np.eye(ROWS)[:, :3], path=path, **BUILD)
        index.set_default(default)
        index.set_threshold(0.25, "neighbour_vote")
        extended = index.add_attributes(NEW)
        assert extended.default == default
        assert extended.info.labels is not None
        assert extended.info.labels.thresholds == {"neighbour_vote": 0.25}
        extended.set_default(None)
        assert extended.default is None
    assert Index.open(tmp_path / "index").default is None


def inodes(generation: Path) -> dict[str, int]:
    return {file.name: file.stat().st_ino for file in generation.glob("*.npy")}


def test_files_are_shared(tmp_path: Path) -> None:
    index = Index.build(VECTORS, path=tmp_path / "index", **BUILD)
    before = inodes(tmp_path / "index" / "1")
    index.add_attributes(NEW)
    after = inodes(tmp_path / "index" / "2")
    assert before.items() <= after.items()
    assert all(name.startswith("attribute.") for name in after.keys() - before.keys())


def refuse_links(*_: object) -> None:
    raise OSError(18, "Invalid cross-device link")


def test_files_are_copied_where_links_are_impossible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.build(VECTORS, path=tmp_path / "index", **BUILD)
    before = inodes(tmp_path / "index" / "1")
    monkeypatch.setattr(os, "link", refuse_links)
    index.add_attributes(NEW)
    after = inodes(tmp_path / "index" / "2")
    assert before.keys() <= after.keys()
    assert not set(before.values()) & set(after.values())
    assert_equal(Index.open(tmp_path / "index"), Index.build(VECTORS, attributes=NEW, **BUILD))


def test_a_full_disk_leaves_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "index"
    index = Index.build(VECTORS, path=path, **BUILD)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", refuse_links)
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageFullError):
        index.add_attributes(NEW)
    monkeypatch.undo()
    assert Index.open(path).generation == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["index"]
    assert index.add_attributes(NEW).generation == 2


def test_room_after_the_vectors_is_not_shared(tmp_path: Path) -> None:
    """A first write that a crash ended may leave the file of vectors longer than its array."""
    path = tmp_path / "index"
    index = Index.build(VECTORS, path=path, **BUILD)
    vectors = path / "1" / "vectors.npy"
    (path / "1" / "writes").mkdir()
    os.truncate(vectors, vectors.stat().st_size + 4_096)
    index.add_attributes(NEW)
    assert (path / "2" / "vectors.npy").stat().st_size == HEADER_BYTES + VECTORS.nbytes
    assert_equal(Index.open(path), Index.build(VECTORS, attributes=NEW, **BUILD))


def test_progress_is_reported_and_may_stop_it(tmp_path: Path) -> None:
    index = Index.build(VECTORS, path=tmp_path / "index", **BUILD)
    reports: list[Progress] = []
    extended = index.add_attributes(NEW, ids=range(ROWS), progress=reports.append)
    stages = list(dict.fromkeys(report.stage for report in reports))
    assert stages == ["receiving", "ordering", "sorting", "writing"]
    assert all(0 <= report.rows_done <= report.rows_total for report in reports)

    def stop(report: Progress) -> None:
        if report.stage == "sorting":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extended.add_attributes({"more": range(ROWS)}, progress=stop)
    assert Index.open(tmp_path / "index").generation == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["index"]


def written(path: Path) -> None:
    with Collection.open(path) as collection:
        collection.upsert([1], VECTORS[:1])


def rebuilt(path: Path) -> None:
    Index.build(VECTORS, path=path, replace=True, **BUILD)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            written,
            UnsupportedError,
            "written to since it was built, or has points without a vector, which Build keeps as"
            " writes: open it with Collection.open",
        ),
        (rebuilt, IndexChangedError, "was replaced meanwhile"),
    ],
)
def test_an_index_that_changed_is_refused(
    change: Callable[[Path], None], error: type[DivgrpcError], words: str, tmp_path: Path
) -> None:
    index = Index.build(VECTORS, path=tmp_path / "index", **BUILD)
    change(tmp_path / "index")
    with pytest.raises(error, match=words):
        index.add_attributes(NEW)


def test_an_index_in_use_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = Index.build(VECTORS, path=path, **BUILD)
    with staging(path, replace=True), pytest.raises(BuildUnderWayError):
        index.add_attributes(NEW)
    with (
        Collection.open(path),
        pytest.raises(StorageInUseError, match="open for writing: close it first"),
    ):
        index.add_attributes(NEW)
    extended = index.add_attributes(NEW)
    # Attributes that were added can be written like any others.
    with Collection.open(path) as collection:
        collection.upsert([1_000], VECTORS[:1], attributes={"year": [1]})
        assert collection.get([1_000]).attributes["year"] == (1,)
        with pytest.raises(UnsupportedError):
            extended.add_attributes({"more": [1]}, ids=1)
    assert extended.count(Field("year") == 1) == 0


def test_a_collection_of_the_old_generation_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = Index.build(VECTORS, path=path, **BUILD)
    old = Collection.open(path)
    old.close()
    index.add_attributes(NEW)
    with pytest.raises(StorageInUseError):
        old.upsert([1], VECTORS[:1])
    assert Index.open(path).generation == 2


def test_only_an_index_can_be_extended(tmp_path: Path) -> None:
    with pytest.raises(IndexNotFoundError), extending(tmp_path / "none"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "field", "words"),
    [
        ({"attributes": {}}, "attributes", "at least one name"),
        ({"attributes": {"brand": [1] * 3}}, "attributes.brand", "exists in this index"),
        ({"attributes": {"a b": [1] * 3}}, "attributes", "must have names"),
        ({"attributes": {"a": [1, 2]}}, "attributes.a", "one value per row, 3, got 2"),
        ({"attributes": {"a": [1, "x", 2]}}, "attributes.a", "values of one type"),
        ({"attributes": {"a": [None] * 3}}, "attributes.a", "attribute_types must give its type"),
        (
            {"attributes": {f"a{i}": [1] * 3 for i in range(64)}},
            "attributes",
            "at most 64 in all, the index has 1, and 64 more came",
        ),
        ({"attributes": {"a": [1, 2]}, "ids": ["x", "z"]}, "ids", "has 'z', which is no id"),
        ({"attributes": {"a": [1, 2]}, "ids": ["x", "x"]}, "ids", "'x' occurs twice"),
        ({"attributes": {"a": [1, 2]}, "ids": [1, 2]}, "ids", "must be texts"),
        ({"attributes": {"a": [1, 2]}, "ids": "x"}, "attributes.a", "per row, 1, got 2"),
        ({"attributes": {"a": [1, 2]}, "ids": 1.5}, "ids", "an id or a list of ids, got float"),
        (
            {"attributes": {"a": [1] * 3}, "attribute_types": {"b": "bool"}},
            "attribute_types",
            "not in attributes",
        ),
        ({"attributes": [1]}, "attributes", "the values of all rows by name"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], field: str, words: str) -> None:
    brands: dict[str, Any] = {"brand": ["a", "b", "c"]}
    index = Index.build(VECTORS[:3], ids=["x", "y", "w"], attributes=brands)
    with pytest.raises(InvalidArgumentError, match=words) as error_info:
        index.add_attributes(**arguments)
    assert error_info.value.field == field


def test_all_attributes_of_a_point_must_have_room_in_a_message() -> None:
    words = [[], [f"{i:04}" + "x" * 1_000 for i in range(1_000)], []]
    index = Index.build(VECTORS[:3], ids=["x", "y", "w"], attributes={"a": words})
    index.add_attributes({"b": words[::-1]}, ids=["w", "x", "y"])
    with pytest.raises(InvalidArgumentError, match="at most 1048576 bytes per row, row 2 takes"):
        index.add_attributes({"b": words[2:] + words[:2]}, ids=["w", "x", "y"])
    with pytest.raises(InvalidArgumentError, match="at most 1048576 bytes per row, row 1 takes"):
        index.add_attributes({"b": words, "c": [json.dumps(row) for row in range(3)]})


def columns_of_numbers(values: list[int]) -> tuple[dict[Attribute, Any], int]:
    from divgrpc.columns.values import columns_of

    return columns_of({"n": values}, len(values)), len(values)


def values_of(index: Index) -> adding.AttributeValues:
    from divgrpc.storage.generations import Generation
    from divgrpc.storage.writers import MemoryStore

    engine = index.engine
    generation = Generation(engine.manifest, engine.arrays, engine.defaults)
    return adding.values_for(MemoryStore(), generation, [Attribute("n", "integer")])


def test_blocks_must_fit_together() -> None:
    index = Index.build(VECTORS[:5], **BUILD)
    values = values_of(index)
    with pytest.raises(InvalidArgumentError, match="at least one point"):
        values.check_whole()
    values.append(*columns_of_numbers([1, 2]))
    with pytest.raises(InvalidArgumentError, match="with every row or with none"):
        values.append(*columns_of_numbers([1, 2]), ids=[1, 2])
    with pytest.raises(InvalidArgumentError, match="each of the 5 points of the index, got more"):
        values.append(*columns_of_numbers([3, 4, 5, 6]))
    with pytest.raises(InvalidArgumentError, match="each of the 5 points of the index, got 2"):
        values.check_whole()
    values = values_of(index)
    values.append(*columns_of_numbers([10, 30]), ids=[1, 3])
    with pytest.raises(InvalidArgumentError, match="3 occurs twice"):
        values.append(*columns_of_numbers([0, 0]), ids=[2, 3])
    with pytest.raises(InvalidArgumentError, match="one entry per value, 2, got 1"):
        values.append(*columns_of_numbers([0, 0]), ids=[2])
    with pytest.raises(InvalidArgumentError, match="has no 'other'"):
        values.append({Attribute("other", "integer"): columns_of_numbers([1])[0]}, 1, ids=[4])  # type: ignore[dict-item]
