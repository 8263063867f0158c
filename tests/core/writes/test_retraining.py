"""A retraining makes the index that Build would make of the points, while writes go on."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc import Collection, Index
from divgrpc.builder import assembly
from divgrpc.builder.assembly import requested_parameters
from divgrpc.errors import BuildUnderWayError, StorageInUseError
from divgrpc.parameters import BuildParameters
from divgrpc.parameters.limits import LIMITS
from divgrpc.storage.generations import staging
from divgrpc.types import HashFamily, Metric, Points, Progress
from divgrpc.types.filters import Field
from divgrpc.writes import backlog, layout, renewal
from divgrpc.writes import log as log_module
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
    upsert,
)

pytestmark = pytest.mark.usefixtures("no_syncs")

ROWS = 300
POINTS = drawn_points(2 * ROWS, 21)
# Points of another place than the first ones, so that Build learns something else of them.
LATER = [
    replace(point, vector=tuple(number + 3 for number in point.vector))
    for point in drawn_points(2 * ROWS, 22)
]
QUERIES = np.random.default_rng(23).normal(1.5, 2, (4, DIMS)).astype(np.float32)
NAMES = drawn_names(2 * ROWS)
# Number of progress reports that make writes.
WRITES_MAX = 20
METRICS: tuple[Metric, ...] = ("cosine", "euclidean", "inner_product")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "_BLOCK_ROWS", 64)


def a_drifted_collection(
    path: Path, family: HashFamily, metric: Metric, names: list[Any], kind: Points = "dense"
) -> tuple[Collection, Model]:
    """Return a collection in which most points are later ones, and its model, by row."""
    model: Model = dict(zip(names[:ROWS], POINTS, strict=False))
    collection = a_collection(path, model, family, metric, kind)
    points = dict(zip(names[100:500], LATER, strict=False))
    upsert(collection, points, write_id="later")
    collection.delete(names[:40])
    rows = {name: point for name, point in model.items() if name not in points} | points
    return collection, {name: rows[name] for name in rows if name not in names[:40]}


def answers_of(index: Index) -> list[Any]:
    searches: Any = ["tables", "scan", "exact"]
    queries = as_kind(QUERIES, kind_of(index))
    return [
        index.query(queries, k=6, search=search, filter=condition, hash_limit=40, diversity=dial)
        for search in searches
        for condition in (None, Field("colour") == "red")
        for dial in (0.0, 0.4)
    ]


def check_same(index: Index, other: Index) -> None:
    for result, truth in zip(answers_of(index), answers_of(other), strict=True):
        assert same_answers(result, truth)


@pytest.mark.parametrize(
    ("family", "metric", "names", "points"),
    [
        *itertools.product(["cells"], METRICS, NAMES, ["dense"]),
        ("lsh_div", "cosine", "texts", "dense"),
        ("lsh_sdiv", "euclidean", "integers", "dense"),
        ("pca_hash", "inner_product", "texts", "dense"),
        ("lsh_div", "cosine", "texts", "sparse"),
        ("lsh_sdiv", "inner_product", "integers", "sparse"),
        ("cells", "euclidean", "integers", "sparse"),
    ],
)
def test_a_retraining_is_a_build_of_the_points(
    family: HashFamily, metric: Metric, names: str, points: Points, tmp_path: Path
) -> None:
    path = tmp_path / "points"
    collection, model = a_drifted_collection(path, family, metric, NAMES[names], points)
    before = collection.info
    assert collection.retrain()
    after = collection.info
    assert before.writes is not None
    assert after.writes is not None
    assert (after.writes.sequence, after.writes.rows_dead) == (before.writes.sequence, 0)
    assert (after.rows, after.generation) == (len(model), before.generation + 1)
    check_points(collection, model)
    fresh = a_collection(tmp_path / "fresh", model, family, metric, points)
    check_same(collection, fresh)
    assert collection.engine.manifest.choices == fresh.engine.manifest.choices
    collection.close()
    with Collection.open(path) as again:
        check_same(again, fresh)
        # The write that had this name is not made again.
        again_points = dict(zip(NAMES[names][100:500], LATER, strict=False))
        assert upsert(again, again_points, write_id="later") == 1
        later = {NAMES[names][7]: LATER[9], NAMES[names][200]: LATER[10]}
        for index in (again, fresh):
            upsert(index, later)
        check_same(again, fresh)
        check_same(Index.open(path), fresh)
    fresh.close()


def write(index: Collection, names: list[Any], number: int) -> None:
    """Make some writes, other ones for each number."""
    points = dict(zip(names[number * 7 : number * 7 + 5], POINTS[number:], strict=False))
    upsert(index, points)
    index.delete(names[500 - number])
    if number % 3 == 0:
        index.delete(filter=Field("size") == number)
    if number % 4 == 1:
        index.compact()


@pytest.mark.parametrize(
    "kind",
    [
        ("cells", "cosine", NAMES["texts"], "dense"),
        ("cells", "inner_product", NAMES["integers"], "dense"),
        ("lsh_sdiv", "euclidean", NAMES["texts"], "dense"),
        ("cells", "inner_product", NAMES["integers"], "sparse"),
        ("lsh_div", "cosine", NAMES["texts"], "sparse"),
    ],
)
@pytest.mark.parametrize("method", ["retrain", "vacuum"])
def test_writes_go_on(
    method: str, kind: tuple[HashFamily, Metric, list[Any], Points], tmp_path: Path
) -> None:
    """Each report of progress makes writes: some of points that are copied already."""
    collection, _ = a_drifted_collection(tmp_path / "a", *kind)
    twin, _ = a_drifted_collection(tmp_path / "b", *kind)
    names, queries = kind[2], as_kind(QUERIES, kind[3])
    numbers = itertools.count()
    calls: list[Callable[[Collection], object]] = []

    def write_more(_progress: Progress) -> None:
        number = next(numbers)
        if number >= WRITES_MAX:
            return
        write(collection, names, number)
        calls.append(lambda index: write(index, names, number))
        assert collection.query(queries, k=1).sequence == collection.sequence

    if method == "retrain":
        assert collection.retrain(write_more)
        twin.retrain()
    else:
        assert collection.compact(write_more, vacuum=True)
        twin.compact(vacuum=True)
    assert len(calls) >= 5
    for call in calls:
        call(twin)
    assert collection.sequence == twin.sequence
    check_same(collection, twin)
    collection.close()
    with Collection.open(tmp_path / "a") as again:
        assert again.generation == 2
        assert again.sequence == twin.sequence
        check_same(again, twin)
        check_same(Index.open(tmp_path / "a"), twin)
    twin.close()


@pytest.mark.parametrize("limit", ["rows", "bytes", "values"])
def test_merges_keep_the_records_that_a_new_generation_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(log_module, "FILE_BYTES", 2_000)
    monkeypatch.setattr(backlog, "_MERGED_ROWS_MIN", 10)
    kind: Points = "sparse" if limit == "values" else "dense"
    collection, model = a_drifted_collection(
        tmp_path / "a", "cells", "cosine", NAMES["integers"], kind
    )

    # The new generation has room for fewer rows, values or bytes than are written meanwhile.
    if limit == "rows":
        monkeypatch.setattr(layout, "_LATER_ROWS_MAX", 40)
    elif limit == "values":
        monkeypatch.setitem(LIMITS, "write_values_max", 20)
        monkeypatch.setattr(layout, "_later_values", lambda *_: 50)
    else:
        monkeypatch.setitem(LIMITS, "unmerged_bytes_max", 20_000)
    reports = itertools.count()

    def write_and_merge(_progress: Progress) -> None:
        for number in range(30 if next(reports) < 4 else 0):
            model[number] = LATER[number]
            upsert(collection, {number: LATER[number]})
        collection.compact()

    before = collection.sequence
    assert collection.retrain(write_and_merge)
    assert collection.sequence == before + 4 * 30
    # The generation before has merged them, so the new one has too (`WriteTarget.has_merged_like`).
    assert collection.committer._target.log_bytes <= LIMITS["unmerged_bytes_max"]
    check_points(collection, model)
    check_exact(collection, model, "cosine", QUERIES)
    upsert(collection, {5: LATER[8]})
    collection.compact()
    log = collection.committer._target.folder.log
    assert len(log.files()) == 1
    collection.close()


def test_nothing_to_retrain(tmp_path: Path) -> None:
    model: Model = dict(zip(NAMES["integers"][:40], POINTS, strict=False))
    with a_collection(tmp_path / "points", model) as collection:
        assert not collection.retrain()  # Build has trained it
        collection.delete([*model])
        assert not collection.retrain()  # there is nothing to learn from
        assert collection.generation == 1
        upsert(collection, {1: POINTS[50]})
        assert collection.retrain()
        assert collection.generation == 2
        check_points(collection, {1: POINTS[50]})


def test_a_second_renewal_and_a_closed_collection_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "points"
    collection, model = a_drifted_collection(path, "cells", "cosine", NAMES["integers"])

    def retrain_again(_progress: Progress) -> None:
        with pytest.raises(BuildUnderWayError):
            collection.retrain()
        with pytest.raises(BuildUnderWayError):
            collection.compact(vacuum=True)

    assert collection.retrain(retrain_again)
    with staging(path, replace=True), pytest.raises(BuildUnderWayError):
        collection.retrain()

    def close(_progress: Progress) -> None:
        collection.close()

    with pytest.raises(StorageInUseError, match="closed"):
        collection.retrain(close)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["points"]
    with Collection.open(path) as again:
        assert again.generation == 2
        check_points(again, model)


@pytest.mark.parametrize(
    "parameters",
    [
        BuildParameters(),
        BuildParameters(n_components=4, seed=3),
        BuildParameters(hash_family="lsh_div", n_tables=3, metric="euclidean"),
        BuildParameters(hash_family="lsh_sdiv", n_bits=9, centred=True),
        BuildParameters(hash_family="pca_hash", n_components=5),
        BuildParameters(hash_family="cells", target_recall=0.8),
    ],
)
@pytest.mark.parametrize("rows", [50, 2_500])
def test_the_request_of_a_build_is_found_again(
    parameters: BuildParameters, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "CELLS_ROWS_MIN", 1_000)
    points = np.random.default_rng(5).normal(size=(rows, DIMS)).astype(np.float32)
    manifest = Index.build(points, **_arguments(parameters)).engine.manifest
    request = requested_parameters(manifest)
    again = Index.build(points, **_arguments(request)).engine.manifest
    assert again == manifest
    if manifest.parameters.hash_family != "lsh_div":
        assert request == parameters


def _arguments(parameters: BuildParameters) -> dict[str, Any]:
    return {name: getattr(parameters, name) for name in BuildParameters.__dataclass_fields__}
