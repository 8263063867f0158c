"""Answers do not depend on when rows were written or merged, nor on the process that answers."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from divgrpc import Collection, Index
from divgrpc.engine import Engine
from divgrpc.storage.generations import IndexFolder
from divgrpc.storage.published import Published
from divgrpc.types import HashFamily, LabelResult, Metric, Points, QueryResult, Vote
from divgrpc.types.filters import Exists, Field, HasId
from divgrpc.writes import backlog, layout, renewal
from divgrpc.writes.replica import Replica
from reference.index import same_bytes
from support.data.written_points import (
    DIMS,
    Model,
    a_collection,
    as_kind,
    check_exact,
    check_points,
    drawn_points,
    kind_of,
    upsert,
)

pytestmark = pytest.mark.usefixtures("no_syncs")

ROWS = 400
POINTS = drawn_points(2 * ROWS, 6)
QUERIES = np.random.default_rng(4).normal(size=(4, DIMS)).astype(np.float32)
OLD: Model = {10 * i: POINTS[i] for i in range(ROWS)}
# Half of the points that are written are new, and half replace a point.
NEW: Model = {10 * i + (5 if i % 2 else 0): POINTS[ROWS + i] for i in range(60)}
# Points of Build, points that were written later, and points that do not exist.
DELETED = [*range(500, 1_500, 30), 20, 15, 95, 45, 7]
MODEL: Model = {name: point for name, point in (OLD | NEW).items() if name not in DELETED}
CONDITIONS: Any = [
    None,
    Field("colour") == "red",
    (Field("size") < 7) & Exists("tags"),
    HasId((30, 35, 55, 2_000, 4)),
    Field("size") == 99,
]
SEARCHES = ["tables", "scan", "scan_hamming", "exact", "auto"]
# Each pair of a family, a metric and a kind of points occurs.
every_pair = pytest.mark.parametrize(
    ("family", "metric", "points"),
    [
        ("cells", "cosine", "dense"),
        ("cells", "euclidean", "sparse"),
        ("cells", "inner_product", "dense"),
        ("cells", "inner_product", "sparse"),
        ("lsh_div", "cosine", "sparse"),
        ("lsh_div", "euclidean", "dense"),
        ("lsh_div", "inner_product", "sparse"),
        ("lsh_sdiv", "euclidean", "dense"),
        ("pca_hash", "cosine", "dense"),
    ],
)
Answers = tuple[list[QueryResult], list[LabelResult]]


def answers_of(index: Index) -> Answers:
    """Return the answers of an index to queries of many kinds, and the labels that it predicts."""
    queries = as_kind(QUERIES, kind_of(index))
    results = []
    for search, condition in itertools.product(SEARCHES, CONDITIONS):
        options: Any = {"search": search, "filter": condition, "candidates_limit": 25}
        results += [
            index.query(queries, k=6, hash_limit=40, **options),
            index.query(queries, k=6, diversity=0.5, exclude_ids=[30, 55, 8, 60], **options),
            index.query(like=[35, 2_000], k=3, hash_limit=30, **options),
        ]
    for search in SEARCHES:
        options_of_all: Any = {"search": search, "k": 1_000, "keep_duplicates": True}
        results.append(index.query(queries[:1], hash_limit=0, **options_of_all))
    for sampling in ("uniform", "nearest"):
        options_of_few: Any = {"search": "tables", "sampling": sampling, "hash_limit": 20}
        results.append(index.query(queries, k=5, n_probes=2, candidates_limit=5, **options_of_few))
    if kind_of(index) == "sparse":
        for search in SEARCHES:
            dense_options: Any = {"search": search, "k": 6}
            results.append(index.query(queries.toarray(), **dense_options))
    votes = [
        index.predict_labels(queries, mode="neighbour_vote", vote=vote, filter=condition)
        for vote, condition in itertools.product(get_args(Vote), CONDITIONS[:4])
    ]
    return results, votes


def check_same(index: Index, expected: Answers) -> None:
    results, votes = answers_of(index)
    for result, truth in zip(results, expected[0], strict=True):
        assert same_bytes(result, truth)
        assert result.points_passing == truth.points_passing
    for prediction, truth_of_labels in zip(votes, expected[1], strict=True):
        for name in ("labels", "scores", "selection_scores", "counts"):
            column, true_column = getattr(prediction, name), getattr(truth_of_labels, name)
            assert column.tobytes() == true_column.tobytes()


@pytest.fixture(autouse=True)
def _no_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be merged in the background."""
    monkeypatch.setattr(backlog, "_MERGED_ROWS_MIN", 10**9)


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a layout have room for few rows, so that writes force merges."""
    monkeypatch.setattr(layout, "_LATER_ROWS_MIN", 10)
    monkeypatch.setattr(layout, "_LATER_ROWS_MAX", 10)


def write_at_once(collection: Collection) -> None:
    upsert(collection, NEW)
    collection.delete(DELETED)


def write_one_by_one(collection: Collection) -> None:
    """Write each point alone; delete some points before others are written."""
    for place, (name, point) in enumerate(NEW.items()):
        upsert(collection, {name: point})
        if place == 40:
            collection.delete([name for name in DELETED if name not in list(NEW)[40:]])
    for name in DELETED:
        collection.delete(name)


def write_twice(collection: Collection) -> None:
    """Write other points first, which are replaced or deleted."""
    names = [*NEW, *DELETED[:9], *range(10_000, 10_020)]
    upsert(collection, dict(zip(dict.fromkeys(names), POINTS, strict=False)))
    upsert(collection, {name: OLD[name] for name in DELETED if name in OLD})
    collection.delete(list(range(10_000, 10_020)))
    collection.compact()
    write_at_once(collection)


WAYS: list[Callable[[Collection], None]] = [write_at_once, write_one_by_one, write_twice]


@every_pair
def test_answers_depend_on_the_points_alone(
    family: HashFamily, metric: Metric, points: Points, tmp_path: Path
) -> None:
    expected: Answers = [], []
    for number, write in enumerate(WAYS):
        path = tmp_path / f"points{number}"
        collection = a_collection(path, OLD, family, metric, points)
        write(collection)
        check_points(collection, MODEL)
        expected = answers_of(collection) if not number else expected
        check_same(collection, expected)
        check_same(Index.open(path), expected)
        assert collection.compact()
        check_same(collection, expected)
        collection.close()
        check_same(Index.open(path), expected)
        with Collection.open(path) as again:
            check_same(again, expected)
            check_exact(again, MODEL, metric, QUERIES)


@every_pair
def test_writes_that_force_merges_change_no_answer(
    family: HashFamily,
    metric: Metric,
    points: Points,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    with a_collection(tmp_path / "roomy", OLD, family, metric, points) as collection:
        write_at_once(collection)
        expected = answers_of(collection)
    request.getfixturevalue("little_room")
    with a_collection(tmp_path / "full", OLD, family, metric, points) as collection:
        write_one_by_one(collection)
        assert len(list((tmp_path / "full" / "1" / "writes" / "parts").iterdir())) >= 2
        check_same(collection, expected)
        collection.compact()
        check_same(collection, expected)
    check_same(Index.open(tmp_path / "full"), expected)


class _Follower:
    """An index that another process may write to."""

    def __init__(self, path: Path) -> None:
        folder = IndexFolder(path)
        generation = folder.path / str(folder.current())
        self._replica = Replica(Engine(folder.open(), "points", path), generation)
        self._published = Published(generation / "writes")

    def index(self) -> Index:
        return Index(self._replica.snapshot(self._published))


@every_pair
def test_a_replica_answers_as_the_writer(
    family: HashFamily, metric: Metric, points: Points, tmp_path: Path
) -> None:
    with a_collection(tmp_path / "points", OLD, family, metric, points) as collection:
        upsert(collection, {3: POINTS[0]})
        follower = _Follower(tmp_path / "points")
        for number, name in enumerate(NEW):
            upsert(collection, {name: NEW[name]})
            if number % 7 == 0:
                collection.delete(DELETED[number % len(DELETED)])
            if number % 20 == 10:
                collection.compact()
            if number % 5 == 0:
                index = follower.index()
                assert index.engine.sequence == collection.sequence
                for condition in CONDITIONS[:2]:
                    options: Any = {"k": 8, "filter": condition, "hash_limit": 30}
                    truth = collection.query(as_kind(QUERIES, points), **options)
                    assert same_bytes(index.query(as_kind(QUERIES, points), **options), truth)
        before = follower.index()
        expected = answers_of(collection)
        check_same(before, expected)
        collection.delete(filter=Field("size") > 8)
        upsert(collection, {35: POINTS[1], 2_000: POINTS[2]})
        collection.compact()
        check_same(follower.index(), answers_of(collection))
        # What was read before does not change.
        check_same(before, expected)


@every_pair
def test_later_writes_do_not_change_what_was_read(
    family: HashFamily, metric: Metric, points: Points, tmp_path: Path
) -> None:
    with a_collection(tmp_path / "points", OLD, family, metric, points) as collection:
        write_at_once(collection)
        before = Index(collection.engine)
        expected = answers_of(before)
        for first in (60, 90):
            # Points of Build, written points and deleted points are written again, or deleted.
            names = [*list(MODEL)[:40], *list(NEW)[10:50], *DELETED[:20]]
            upsert(collection, dict(zip(names, POINTS[first:], strict=False)))
            check_points(before, MODEL)
            collection.delete(names[::3])
            check_points(before, MODEL)
        check_same(before, expected)
        # A filter that was not yet asked for.
        test = Field("colour") == "green", lambda point: point.colour == "green"
        check_exact(before, MODEL, metric, QUERIES, test)


@every_pair
def test_everything_is_deleted_and_written_again(
    family: HashFamily, metric: Metric, points: Points, tmp_path: Path
) -> None:
    few = dict(list(OLD.items())[:40])
    with a_collection(tmp_path / "points", few, family, metric, points) as collection:
        for _ in range(2):
            collection.delete(list(few))
            for _ in range(2):
                assert (len(collection), collection.info.rows) == (0, 0)
                queries = as_kind(QUERIES, points)
                result = collection.query(queries, k=3, diversity=0.3)
                assert result.counts.tolist() == [0] * len(QUERIES)
                assert collection.query(queries, k=3, exclude_ids=[0]).counts.max() == 0
                assert collection.query(queries, k=3, filter=CONDITIONS[1]).counts.max() == 0
                check_points(collection, {})
                collection.compact()
            upsert(collection, few)
            check_points(collection, few)
            check_exact(collection, few, metric, QUERIES)
            check_points(Index.open(tmp_path / "points"), few)


def test_a_cell_may_become_empty(tmp_path: Path) -> None:
    with a_collection(tmp_path / "points", OLD, "cells", "euclidean") as collection:
        arrays = collection.engine.arrays
        starts, rows = arrays["cell_starts"], arrays["cell_rows"]
        ids = arrays["ids"][rows[starts[1] : starts[3]]].tolist()
        queried = [name for name in (35, 2_000) if name in ids]
        ids = [name for name in ids if name not in queried]
        assert ids
        upsert(collection, {35: POINTS[3]})
        collection.delete(ids)
        left = {n: point for n, point in (OLD | {35: POINTS[3]}).items() if n not in ids}
        expected = answers_of(collection)
        collection.compact()
        check_same(collection, expected)
        check_exact(collection, left, "euclidean", QUERIES)
        upsert(collection, {name: OLD[name] for name in ids})
        check_exact(collection, OLD | {35: POINTS[3]}, "euclidean", QUERIES)
        expected = answers_of(collection)
        collection.compact()
        check_same(collection, expected)


@pytest.mark.parametrize("family", ["lsh_div", "lsh_sdiv"])
@pytest.mark.parametrize("action", ["write", "merge", "vacuum"])
def test_tables_that_an_earlier_version_left_out_are_made(
    family: HashFamily, action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions wrote no tables in a merge, nor in a vacuum."""
    with a_collection(tmp_path / "whole", OLD, family) as collection:
        write_at_once(collection)
        expected = answers_of(collection)
    path = tmp_path / "points"
    with monkeypatch.context() as patch:
        for module in (layout, renewal):
            patch.setattr(module, "create_tables", lambda *_: None)
        with a_collection(path, OLD, family) as collection:
            write_at_once(collection)
            if action != "write":
                collection.compact(vacuum=action == "vacuum")
    folder = path / str(IndexFolder(path).current())
    assert not list((folder / "writes" / "layouts").glob("*/table_rows.npy"))
    assert (folder / "table_rows.npy").exists() == (action != "vacuum")
    check_same(Index.open(path), expected)
    with Collection.open(path) as collection:
        check_same(collection, expected)
        upsert(collection, {3: POINTS[0]})
        collection.delete(3)
        check_same(collection, expected)
        collection.compact()
        check_same(collection, expected)
        assert len(list((folder / "writes" / "layouts").glob("*/table_rows.npy"))) == 1
    check_same(Index.open(path), expected)
