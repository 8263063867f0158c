"""Attributes that a collection gets later change nothing else, whatever is written meanwhile."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc import Collection, Index
from divgrpc.doctor import check_folder
from divgrpc.errors import (
    BuildUnderWayError,
    InvalidArgumentError,
    StorageFullError,
    StorageInUseError,
    UnfitIndexError,
)
from divgrpc.storage import arrays
from divgrpc.storage.generations import staging
from divgrpc.types import HashFamily, Metric, Progress, QueryDefault
from divgrpc.types.filters import Field
from divgrpc.writes import backlog, renewal
from support.data.written_points import (
    DIMS,
    Id,
    Model,
    a_collection,
    check_exact,
    check_points,
    columns_of,
    drawn_names,
    drawn_points,
    same_answers,
    upsert,
)

pytestmark = pytest.mark.usefixtures("no_syncs")

ROWS = 200
POINTS = drawn_points(2 * ROWS, 21)
QUERIES = np.random.default_rng(22).normal(size=(3, DIMS)).astype(np.float32)
NAMES = drawn_names(2 * ROWS)
# Each pair of a family, a metric and a kind of names occurs.
every_pair = pytest.mark.parametrize(
    ("family", "metric", "names"),
    [
        ("cells", "cosine", "texts"),
        ("cells", "euclidean", "integers"),
        ("cells", "inner_product", "texts"),
        ("lsh_div", "cosine", "integers"),
        ("lsh_div", "euclidean", "texts"),
        ("lsh_div", "inner_product", "integers"),
    ],
)


@pytest.fixture(autouse=True)
def _no_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be merged in the background; let blocks be small."""
    monkeypatch.setattr(backlog, "_MERGED_ROWS_MIN", 10**9)
    monkeypatch.setattr(renewal, "_BLOCK_ROWS", 64)


def write(collection: Collection, model: Model, names: list[Any]) -> Model:
    """Write and delete points, with a merge between; return the points."""
    for first, last in ((30, 70), (150, 240)):
        points = dict(zip(names[first:last], POINTS[ROWS + first :], strict=False))
        upsert(collection, points, write_id=f"block {first}")
        gone = names[first : last - 20 : 3]
        collection.delete(gone)
        model = {name: point for name, point in (model | points).items() if name not in gone}
        if first == 30:
            collection.compact()
    return model


def answers_of(index: Index) -> list[Any]:
    has_cells = index.engine.manifest.parameters.hash_family == "cells"
    searches: Any = ["tables"] * has_cells + ["scan", "exact", "auto"]
    return [
        index.query(QUERIES, k=6, search=search, filter=condition, hash_limit=40, diversity=dial)
        for search in searches
        for condition in (None, Field("size") < 7)
        for dial in (0.0, 0.4)
    ]


def check_same(index: Index, expected: list[Any]) -> None:
    for result, truth in zip(answers_of(index), expected, strict=True):
        assert same_answers(result, truth)
        assert (result.points_passing, result.sequence) == (truth.points_passing, truth.sequence)


def with_values(model: Model, values: dict[Id, int | None]) -> Model:
    return {n: replace(p, added=(*p.added, values.get(n))) for n, p in model.items()}


@every_pair
def test_answers_and_points_stay_the_same(
    family: HashFamily, metric: Metric, names: str, tmp_path: Path
) -> None:
    path = tmp_path / "points"
    model: Model = dict(zip(NAMES[names][:ROWS], POINTS, strict=False))
    collection = a_collection(path, model, family, metric)
    model = write(collection, model, NAMES[names])
    collection.set_default(QueryDefault(0.7, "greedy", "corrected", "exact"))
    expected, before = answers_of(collection), collection.info
    # Values come in another order than the points, and not for all of them.
    ids = sorted(model, key=str)[::-2]
    values: dict[Id, int | None] = {name: 3 * place for place, name in enumerate(ids)}
    assert collection.add_attributes({"added0": list(values.values())}, ids=ids) is collection
    model = with_values(model, values)
    check_points(collection, model)
    check_same(collection, expected)
    assert collection.count(Field("added0") < 30) == 10
    after = collection.info
    assert (after.rows, after.generation) == (before.rows, before.generation + 1)
    assert after.query_default == before.query_default
    assert after.writes is not None
    assert (after.writes.sequence, after.writes.rows_dead) == (4, 0)
    # A write of before is not made again, and a new one may have the attribute.
    first = dict(zip(NAMES[names][30:70], POINTS[ROWS + 30 :], strict=False))
    assert upsert(collection, first, write_id="block 30") == 1
    assert collection.upsert(ids[:1], attributes={"added0": [77]}).sequence == 5
    model[ids[0]] = replace(model[ids[0]], added=(77,))
    collection.close()
    assert [report.verdict for report in check_folder(path)] == ["ok"]
    check_points(Index.open(path), model)
    with Collection.open(path) as again:
        check_points(again, model)
        again.set_default(None)
        check_exact(again, model, metric, QUERIES)
        assert [entry.name for entry in path.iterdir() if entry.is_dir()] == ["2"]


def test_points_that_are_written_meanwhile_have_their_values(tmp_path: Path) -> None:
    model: Model = dict(enumerate(POINTS[:60]))
    collection = a_collection(tmp_path / "points", model)
    upsert(collection, {5: POINTS[70]})
    collection.delete([50])
    stages: list[str] = []

    def change(progress: Progress) -> None:
        stages.append(progress.stage)
        if stages.count("copying") == 1 and progress.stage == "copying":
            upsert(collection, {7: POINTS[71], 900: POINTS[72]})
            collection.upsert([8], payloads=[b"new"])
            collection.delete([9, 10])
            upsert(collection, {10: POINTS[73]})
            collection.compact()
            upsert(collection, {50: POINTS[74]})

    values: dict[Id, int | None] = {name: 100 + name for name in (5, 7, 8, 9, 10, 11)}
    collection.add_attributes({"added0": list(values.values())}, ids=list(values), progress=change)
    assert list(dict.fromkeys(stages)) == ["receiving", "copying", "writing"]
    model |= {5: POINTS[70], 7: POINTS[71], 900: POINTS[72], 10: POINTS[73], 50: POINTS[74]}
    model[8] = replace(model[8], payload=b"new")
    del model[9]
    model = with_values(model, values)
    check_points(collection, model)
    collection.close()
    check_points(Index.open(tmp_path / "points"), model)


def test_other_threads_write_meanwhile(tmp_path: Path) -> None:
    model: Model = dict(enumerate(POINTS[:60]))
    collection = a_collection(tmp_path / "points", model)
    upsert(collection, {5: POINTS[70]})
    errors: list[Exception] = []

    def write_all(first: int) -> None:
        try:
            for name in range(first, first + 60):
                upsert(collection, {name: POINTS[name % ROWS]})
                assert collection.get([name])[0].id == name
                collection.delete([name - 1])
        except Exception as error:  # noqa: BLE001  # the test raises it
            errors.append(error)

    threads = [threading.Thread(target=write_all, args=(first,)) for first in (1_000, 2_000)]
    for thread in threads:
        thread.start()
    count = 0
    while any(thread.is_alive() for thread in threads) and count < 50:
        collection.add_attributes({f"added{count}": range(60)}, ids=range(60))
        count += 1
    for thread in threads:
        thread.join()
    assert errors == []
    assert count
    last: Model = {name: POINTS[name % ROWS] for name in (1_059, 2_059)}
    for name, point in (model | {5: POINTS[70]}).items():
        model[name] = replace(point, added=(name,) * count)
    model |= {name: replace(point, added=(None,) * count) for name, point in last.items()}
    check_points(collection, model)
    collection.close()


@pytest.mark.parametrize("family", ["cells", "lsh_div"])
def test_before_the_first_write_files_are_shared(family: HashFamily, tmp_path: Path) -> None:
    path = tmp_path / "points"
    model: Model = dict(enumerate(POINTS[:60]))
    collection = a_collection(path, model, family)
    expected = collection.query(QUERIES, k=5, search="tables")
    inode = (path / "1" / "vectors.npy").stat().st_ino
    stages: list[Progress] = []
    collection.add_attributes({"added0": range(60)}, progress=stages.append)
    assert {progress.stage for progress in stages} == {"receiving"}
    collection.add_attributes({"added1": [4]}, ids=7)
    assert (path / "3" / "vectors.npy").stat().st_ino == inode
    assert same_answers(collection.query(QUERIES, k=5, search="tables"), expected)
    model = {n: replace(p, added=(n, 4 if n == 7 else None)) for n, p in model.items()}
    check_points(collection, model)
    assert collection.info.writes is None
    upsert(collection, {3: POINTS[90]})
    check_points(collection, model | {3: replace(POINTS[90], added=(None, None))})
    collection.close()
    assert [report.verdict for report in check_folder(path)] == ["ok"]


def test_the_first_write_may_come_meanwhile(tmp_path: Path) -> None:
    model: Model = dict(enumerate(POINTS[:60]))
    with a_collection(tmp_path / "points", model) as collection:

        def write_first(progress: Progress) -> None:
            if progress.stage == "receiving" and not collection.sequence:
                upsert(collection, {3: POINTS[90], 99: POINTS[91]})

        collection.add_attributes({"added0": range(60)}, progress=write_first)
        assert collection.sequence == 1
        model = with_values(model | {3: POINTS[90], 99: POINTS[91]}, dict(enumerate(range(60))))
        check_points(collection, model)


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    """Return a collection with one write, which must stay as it is."""
    model: Model = dict(enumerate(POINTS[:60]))
    with closing(a_collection(tmp_path / "points", model)) as opened:
        upsert(opened, {5: POINTS[70]})
        yield opened
        assert (opened.generation, opened.sequence) == (1, 1)
        check_points(opened, model | {5: POINTS[70]})
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["points"]


@pytest.mark.parametrize(
    ("arguments", "field", "words"),
    [
        ({"attributes": {"a": range(60)}}, "ids", "must be given, because points were written"),
        ({"attributes": {"a": [1]}, "ids": [60]}, "ids", "has 60, which is no id"),
        ({"attributes": {"a": [1, 2]}, "ids": [6, 6]}, "ids", "must be unique, 6 occurs twice"),
        ({"attributes": {"a": [1]}, "ids": ["x"]}, "ids", "must be integers"),
        ({"attributes": {"size": [1]}, "ids": [6]}, "attributes.size", "exists in this index"),
        ({"attributes": {}, "ids": [6]}, "attributes", "at least one name"),
        ({"attributes": {"a": []}, "ids": []}, "attributes.a", "attribute_types must give"),
        ({"attributes": {"a": [1, 2]}, "ids": [6]}, "attributes.a", "per row, 1, got 2"),
    ],
)
def test_wrong_arguments_change_nothing(
    collection: Collection, arguments: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words) as fault:
        collection.add_attributes(**arguments)
    assert fault.value.field == field


def test_an_addition_that_fails_changes_nothing(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def stop(progress: Progress) -> None:
        if progress.stage == "copying":
            raise KeyError("enough")

    with monkeypatch.context() as patch:
        patch.setattr(arrays, "reserve", fail)
        with pytest.raises(StorageFullError):
            collection.add_attributes({"a": [1]}, ids=1)
    with staging(tmp_path / "points", replace=True), pytest.raises(BuildUnderWayError):
        collection.add_attributes({"a": [1]}, ids=1)
    with pytest.raises(KeyError):
        collection.add_attributes({"a": [1]}, ids=1, progress=stop)


def test_a_closed_collection_gets_no_attributes(tmp_path: Path) -> None:
    collection = a_collection(tmp_path / "points", dict(enumerate(POINTS[:8])))
    collection.close()
    with pytest.raises(StorageInUseError, match="closed"):
        collection.add_attributes({"a": [1]}, ids=1)


def test_all_attributes_of_a_point_must_have_room_in_a_message(tmp_path: Path) -> None:
    """A point may become too large when it is written meanwhile."""
    words = [f"{number:04}" + "x" * 1_000 for number in range(700)]
    path = tmp_path / "points"
    with Collection.build(np.eye(8), path=path, attributes={"words": [["a"]] * 8}) as collection:
        collection.upsert([1], attributes={"words": [["b"]]})

        def grow(progress: Progress) -> None:
            if progress.stage == "copying" and collection.sequence == 1:
                collection.upsert([1], attributes={"words": [words]})

        with pytest.raises(InvalidArgumentError, match="at most 1048576 bytes per row"):
            collection.add_attributes({"more": [words[::-1]]}, ids=[1], progress=grow)
        assert collection.get([1])[0].attributes == {"words": tuple(words)}
        with pytest.raises(InvalidArgumentError, match="at most 1048576 bytes per row"):
            collection.add_attributes({"more": [words[::-1]]}, ids=[1])
        collection.add_attributes({"more": [words]}, ids=[2])
        assert collection.get([2])[0].attributes == {"words": ("a",), "more": tuple(words)}


def test_an_index_without_points_gets_no_attributes(tmp_path: Path) -> None:
    model: Model = dict(enumerate(POINTS[:8]))
    with a_collection(tmp_path / "points", model) as collection:
        collection.delete(list(model)[1:])

        def delete_last(progress: Progress) -> None:
            if progress.stage == "receiving":
                collection.delete([0])

        with pytest.raises(UnfitIndexError, match="has no point with a vector: write one"):
            collection.add_attributes({"a": [1]}, ids=[0], progress=delete_last)
        collection.upsert([4], **columns_of(POINTS[4:5]))
        collection.add_attributes({"a": [1]}, ids=[4])
        assert collection.count(Field("a") == 1) == 1
