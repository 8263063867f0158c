"""A vacuum removes the rows of deleted points, and changes nothing else."""

import errno
import gc
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc import Collection, Index
from divgrpc.engine import Engine
from divgrpc.errors import (
    BuildUnderWayError,
    IndexChangedError,
    StorageFullError,
)
from divgrpc.storage import arrays
from divgrpc.storage.generations import Generation, IndexFolder, staging
from divgrpc.types import HashFamily, Metric, Points, Progress, QueryDefault
from divgrpc.types.filters import Field
from divgrpc.writes import backlog, committer, opening, renewal
from divgrpc.writes.replica import Replica
from divgrpc.writes.target import WriteTarget
from support.data.written_points import (
    DIMS,
    Model,
    a_collection,
    as_kind,
    check_exact,
    check_points,
    drawn_names,
    drawn_points,
    kind_of,
    same_answers,
    same_stats,
    upsert,
)

pytestmark = pytest.mark.usefixtures("no_syncs")

ROWS = 300
POINTS = drawn_points(2 * ROWS, 16)
QUERIES = np.random.default_rng(14).normal(size=(4, DIMS)).astype(np.float32)
NAMES = drawn_names(2 * ROWS)
# Each pair of a family, a metric, a kind of names and a kind of points occurs.
every_pair = pytest.mark.parametrize(
    ("family", "metric", "names", "points"),
    [
        ("cells", "cosine", "texts", "dense"),
        ("cells", "euclidean", "integers", "dense"),
        ("cells", "inner_product", "texts", "sparse"),
        ("cells", "inner_product", "integers", "dense"),
        ("lsh_div", "cosine", "integers", "sparse"),
        ("lsh_div", "euclidean", "texts", "sparse"),
        ("lsh_div", "euclidean", "integers", "dense"),
        ("lsh_div", "inner_product", "integers", "dense"),
    ],
)


@pytest.fixture(autouse=True)
def _no_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be merged in the background; let blocks be small."""
    monkeypatch.setattr(backlog, "_MERGED_ROWS_MIN", 10**9)
    monkeypatch.setattr(renewal, "_BLOCK_ROWS", 64)


def a_written_collection(
    path: Path, family: HashFamily, metric: Metric, names: list[Any], kind: Points = "dense"
) -> tuple[Collection, Model]:
    """Return a collection with points of Build, of a merge and of later writes, and its model."""
    model: Model = dict(zip(names[:ROWS], POINTS, strict=False))
    collection = a_collection(path, model, family, metric, kind)
    for first, last in ((40, 90), (250, 340)):
        points = dict(zip(names[first:last], POINTS[ROWS + first :], strict=False))
        upsert(collection, points, write_id=f"block {first}")
        gone = names[first : last - 20 : 3] + names[first // 2 : first : 4]
        collection.delete(gone)
        model = {name: point for name, point in (model | points).items() if name not in gone}
        if first == 40:
            collection.compact()
    return collection, model


def answers_of(index: Index) -> list[Any]:
    searches: Any = ["tables", "scan", "exact", "auto"]
    queries = as_kind(QUERIES, kind_of(index))
    return [
        index.query(queries, k=6, search=search, filter=condition, hash_limit=40, diversity=dial)
        for search in searches
        for condition in (None, Field("colour") == "red", Field("size") < 7)
        for dial in (0.0, 0.4)
    ]


def check_same(index: Index, expected: list[Any]) -> None:
    for result, truth in zip(answers_of(index), expected, strict=True):
        assert same_answers(result, truth)
        assert same_stats(result, truth)
        assert result.points_passing == truth.points_passing
        assert result.sequence == truth.sequence


@every_pair
def test_a_vacuum_changes_no_answer(
    family: HashFamily, metric: Metric, names: str, points: Points, tmp_path: Path
) -> None:
    path = tmp_path / "points"
    collection, model = a_written_collection(path, family, metric, NAMES[names], points)
    expected, before = answers_of(collection), collection.info
    assert before.writes is not None
    assert before.writes.rows_dead > 0
    assert collection.compact(vacuum=True)
    after = collection.info
    assert after.writes is not None
    assert (after.writes.sequence, after.writes.rows_dead) == (before.writes.sequence, 0)
    assert (after.rows, after.generation) == (before.rows, before.generation + 1)
    assert not collection.compact(vacuum=True)
    assert [folder.name for folder in path.iterdir() if folder.is_dir()] == ["2"]
    check_points(collection, model)
    check_same(collection, expected)
    check_same(Index.open(path), expected)
    collection.close()
    with Collection.open(path) as again:
        check_points(again, model)
        check_same(again, expected)
        check_exact(again, model, metric, QUERIES)


@every_pair
def test_writes_after_a_vacuum_are_those_without_it(
    family: HashFamily, metric: Metric, names: str, points: Points, tmp_path: Path
) -> None:
    collections = [
        a_written_collection(tmp_path / f"{number}", family, metric, NAMES[names], points)[0]
        for number in range(2)
    ]
    collections[0].compact(vacuum=True)
    later = dict(zip(NAMES[names][20:420:5], POINTS, strict=False))
    for collection in collections:
        # A write of before the vacuum is not made again.
        first = dict(zip(NAMES[names][40:90], POINTS[ROWS + 40 :], strict=False))
        assert upsert(collection, first, write_id="block 40") == 1
        upsert(collection, later)
        collection.delete(filter=Field("colour") == "green")
        upsert(collection, {NAMES[names][3]: POINTS[8]}, if_sequence=6)
    expected = answers_of(collections[1])
    check_same(collections[0], expected)
    assert collections[0].compact(vacuum=True)
    check_same(collections[0], expected)
    for collection in collections:
        collection.close()


def test_other_threads_write_during_vacuums(tmp_path: Path) -> None:
    names = NAMES["integers"]
    collection, model = a_written_collection(tmp_path / "points", "cells", "cosine", names)
    errors: list[Exception] = []

    def write(first: int) -> None:
        try:
            for name in range(first, first + 60):
                upsert(collection, {name: POINTS[name % ROWS]})
                assert collection.get([name])[0].id == name
                collection.delete([name - 1])
        except Exception as error:  # noqa: BLE001  # the test raises it
            errors.append(error)

    threads = [threading.Thread(target=write, args=(first,)) for first in (100_000, 200_000)]
    for thread in threads:
        thread.start()
    vacuums = 0
    while any(thread.is_alive() for thread in threads):
        vacuums += collection.compact(vacuum=True)
    for thread in threads:
        thread.join()
    assert errors == []
    assert vacuums
    check_points(collection, model | {name: POINTS[name % ROWS] for name in (100_059, 200_059)})
    # The first deletion of each thread finds no point.
    assert collection.sequence == 4 + 2 * (60 + 59)
    collection.close()


def test_nothing_to_remove_is_no_vacuum(tmp_path: Path) -> None:
    model: Model = dict(zip(NAMES["integers"][:40], POINTS, strict=False))
    with a_collection(tmp_path / "points", model) as collection:
        assert not collection.compact(vacuum=True)
        upsert(collection, {1: POINTS[50]})
        assert collection.compact(vacuum=True)  # a merge
        assert collection.generation == 1
        collection.delete([*model, 1])
        collection.compact(vacuum=True)
        # A generation has at least one point.
        assert (collection.generation, len(collection)) == (1, 0)
        upsert(collection, {1: POINTS[50]})
        assert collection.compact(vacuum=True)
        assert collection.generation == 2
        check_points(collection, {1: POINTS[50]})


def test_defaults_stay(tmp_path: Path) -> None:
    collection, _ = a_written_collection(tmp_path / "points", "cells", "cosine", NAMES["integers"])
    collection.set_default(QueryDefault(0.7, "greedy", "corrected", "exact"))
    collection.compact(vacuum=True)
    assert collection.query(QUERIES, k=3).parameters.diversity == 0.7
    collection.close()
    assert Index.open(tmp_path / "points").query(QUERIES, k=3).parameters.diversity == 0.7
    assert [path.name for path in tmp_path.iterdir()] == ["points"]


def test_a_failed_vacuum_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "points"
    collection, model = a_written_collection(path, "cells", "cosine", NAMES["integers"])
    expected = answers_of(collection)

    def fail(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(arrays, "reserve", fail)
        with pytest.raises(StorageFullError):
            collection.compact(vacuum=True)
    with staging(path, replace=True), pytest.raises(BuildUnderWayError):
        collection.compact(vacuum=True)
    check_points(collection, model)
    check_same(collection, expected)
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["points"]
    stages: list[Progress] = []
    assert collection.compact(stages.append, vacuum=True)
    assert (stages[-1].stage, stages[-1].rows_done) == ("writing", len(model))
    check_same(collection, expected)
    collection.close()


def test_queries_during_a_vacuum_see_all_writes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection, _ = a_written_collection(tmp_path / "points", "cells", "cosine", NAMES["integers"])
    collection.query(QUERIES, k=1)
    last = upsert(collection, {7: POINTS[0]})
    sequences: list[int] = []
    succeed = committer.Committer._succeed

    def query_and_succeed(self: committer.Committer, successor: WriteTarget, number: int) -> None:
        sequences.append(collection.query(QUERIES, k=1).sequence)
        succeed(self, successor, number)

    monkeypatch.setattr(committer.Committer, "_succeed", query_and_succeed)
    collection.compact(vacuum=True)
    assert sequences == [last]
    collection.close()


def test_an_index_that_is_opened_during_a_vacuum_has_all_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "points"
    collection, model = a_written_collection(path, "cells", "cosine", NAMES["integers"])
    vacuums: list[bool] = []

    def engine_after_vacuum(generation: Generation, name: str, folder: Path) -> Engine:
        if not vacuums:
            vacuums.append(collection.compact(vacuum=True))
        return Engine(generation, name, folder)

    monkeypatch.setattr(opening, "Engine", engine_after_vacuum)
    index = Index.open(path)
    assert vacuums == [True]
    assert index.generation == 2
    check_points(index, model)
    collection.close()


def test_a_collection_that_is_opened_during_a_vacuum_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "points"
    collection, model = a_written_collection(path, "cells", "cosine", NAMES["integers"])
    engine = Engine(IndexFolder(path).open(), path.name, path)
    collection.compact(vacuum=True)
    collection.close()
    for _ in range(2):
        with pytest.raises(IndexChangedError, match="was replaced"):
            committer.Committer(engine, path)
        # The files of the old generation may not all be removed yet.
        shutil.copytree(path / "2", path / "1", dirs_exist_ok=True)
        (path / "1" / "writes" / "LAYOUT").unlink()
    with Collection.open(path) as again:
        check_points(again, model)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_a_vacuum_releases_the_removed_files(tmp_path: Path) -> None:
    """The disk has room for them again at once, not when garbage is collected."""
    path = tmp_path / "points"
    collection, model = a_written_collection(path, "cells", "cosine", NAMES["integers"])
    gc.collect()
    gc.disable()
    try:
        collection.query(QUERIES, k=1)
        collection.compact(vacuum=True)
        maps = Path("/proc/self/maps").read_text().splitlines()
    finally:
        gc.enable()
    assert [line for line in maps if f"{path}/1/" in line] == []
    check_points(collection, model)
    collection.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_reader_closes_the_log_of_a_generation_that_it_leaves(tmp_path: Path) -> None:
    """Otherwise workers would run out of descriptors, and the disk out of room."""
    path = tmp_path / "points"
    collection, model = a_written_collection(path, "cells", "cosine", NAMES["integers"])
    reader = opening.open_index(path)
    assert isinstance(reader, Replica)
    reader.follow()
    upsert(collection, {next(iter(model)): POINTS[0]})
    assert reader.follow().sequence == collection.sequence
    collection.close()

    def logs() -> list[Path]:
        files = [entry.resolve() for entry in Path("/proc/self/fd").iterdir()]
        return [file for file in files if path in file.parents and file.suffix == ".wal"]

    assert len(logs()) == 1
    del reader
    assert not logs()


def test_a_vacuum_that_cannot_open_the_new_generation_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "points"
    collection, model = a_written_collection(path, "cells", "cosine", NAMES["integers"])
    last = upsert(collection, {7: POINTS[0]})

    def fail(*_arguments: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(committer.Committer, "_succeed", fail)
        with pytest.raises(OSError, match="open files"):
            collection.compact(vacuum=True)
    assert not collection.committer.is_current
    with pytest.raises(IndexChangedError, match="open it again"):
        collection.delete([7])
    assert collection.query(QUERIES, k=1).sequence == last
    with Collection.open(path) as again:
        assert (again.generation, again.sequence) == (2, last)
        check_points(again, model | {7: POINTS[0]})
    collection.close()
