"""An index that is built on shards has the files of a whole index that is divided."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from divgrpc import Index
from divgrpc import index as index_module
from divgrpc.arrays import Array
from divgrpc.builder import builder as builder_module
from divgrpc.builder.builder import IndexBuilder
from divgrpc.columns import ids as id_module
from divgrpc.errors import InvalidArgumentError, LimitExceededError, StorageFullError
from divgrpc.parameters import LIMITS, BuildParameters
from divgrpc.sharding import row_divider
from divgrpc.sharding.divided_build import DividedBuild
from divgrpc.sharding.files import divide_folder, divide_index, open_shard_part
from divgrpc.storage.arrays import ArrayFile
from divgrpc.storage.generations import Staging, staging
from divgrpc.storage.shards import is_shared
from divgrpc.types import IntArray, Progress
from support.data.divided_indexes import differing_arrays
from support.data.index_kinds import IDS, KINDS, POINTS, TEXTS

WHOLE = Index.build(POINTS, ids=IDS, hash_family="lsh_div")


class _BuiltError(Exception):
    """Ends `Index.build`, which cannot open an index on shards."""


class _Builder(IndexBuilder):
    """Divides what it builds among shards."""

    shards = 1
    is_whole_first = False

    def __init__(self, store: Any, parameters: BuildParameters, **options: Any) -> None:  # noqa: ANN401  # as `IndexBuilder`
        assert isinstance(store, Staging)
        if self.is_whole_first:
            store.divide = partial(divide_folder, shards=self.shards)
        else:
            options["points"] = DividedBuild(store, self.shards, [*options["attributes"]])
        super().__init__(store, parameters, **options)

    def build(self) -> NoReturn:
        super().build()
        raise _BuiltError


def files_of(path: Path) -> dict[Path, bytes]:
    return {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def build_both(
    path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], shards: int
) -> None:
    """Build an index that is divided afterwards, and one that is built on shards, in blocks."""
    monkeypatch.setattr(index_module, "IndexBuilder", _Builder)
    monkeypatch.setattr(_Builder, "shards", shards)
    monkeypatch.setattr(builder_module, "_BLOCK_ROWS", 90)
    monkeypatch.setattr(row_divider, "_HELD_ROWS", 200)
    for name in ("divided", "built"):
        monkeypatch.setattr(_Builder, "is_whole_first", name == "divided")
        with pytest.raises(_BuiltError):
            Index.build(**{"vectors": POINTS, **options}, path=path / name)


def check_files(path: Path) -> None:
    """Check that both indexes have the same files, byte for byte."""
    expected, files = (files_of(path / name) for name in ("divided", "built"))
    assert files.keys() == expected.keys()
    assert [name for name in expected if files[name] != expected[name]] == []


@pytest.mark.parametrize("shards", [2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_shards_that_are_built_apart_have_the_files_of_a_division(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, shards: int
) -> None:
    build_both(tmp_path, monkeypatch, KINDS[kind], shards)
    check_files(tmp_path)


def test_texts_with_the_same_hash_have_the_keys_of_a_whole_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a key that is free in a shard may be one of another shard."""
    hash_of = id_module.hash_of
    monkeypatch.setattr(id_module, "hash_of", lambda text: hash_of(text) & 1023)
    assert len({id_module.hash_of(text.encode()) for text in TEXTS}) < len(TEXTS)
    build_both(tmp_path, monkeypatch, {"ids": TEXTS}, shards=3)
    check_files(tmp_path)
    divide_index(tmp_path / "built", 1)
    points = Index.open(tmp_path / "built").get(TEXTS[:300:7], with_vectors=True)
    assert [record.id for record in points] == TEXTS[:300:7]


@pytest.mark.parametrize("ids", [IDS, TEXTS])
def test_an_id_that_occurs_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: IntArray | list[str]
) -> None:
    """Both points are on the same shard."""
    repeated = [*ids[:-1], ids[3]]
    monkeypatch.setattr(index_module, "IndexBuilder", _Builder)
    monkeypatch.setattr(_Builder, "shards", 5)
    with pytest.raises(InvalidArgumentError, match=f"must be unique, '?{ids[3]}'? occurs twice"):
        Index.build(POINTS, ids=repeated, path=tmp_path / "points")
    assert [path.name for path in tmp_path.iterdir() if "points" in path.name] == []


def build(path: Path, shards: int, **options: Any) -> list[Progress]:  # noqa: ANN401  # of `IndexBuilder`
    """Build an index on shards; return the progress."""
    steps: list[Progress] = []
    with staging(path, replace=False) as stage:
        points = DividedBuild(stage, shards)
        parameters = BuildParameters(hash_family="lsh_div")
        builder = IndexBuilder(
            stage, parameters, points=points, on_progress=steps.append, **options
        )
        builder.append_all(POINTS, ids=IDS)
        builder.build()
    return steps


def test_the_limit_of_rows_holds_for_a_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index may have more, whose row numbers then take 64 bits."""
    most = len(POINTS) * 2 // 3
    monkeypatch.setitem(LIMITS, "rows_max", most)
    build(tmp_path / "points", 2)
    part = open_shard_part(tmp_path / "points" / "1", 0)
    assert part.arrays["row_numbers"].dtype == np.int64
    assert differing_arrays(tmp_path / "points" / "1", WHOLE.engine) == [
        "0/row_numbers",
        "1/row_numbers",
    ]
    monkeypatch.setitem(LIMITS, "rows_max", len(POINTS) // 2)
    with pytest.raises(LimitExceededError, match=r"shard . has more than 350 rows: divide"):
        build(tmp_path / "others", 2)
    with pytest.raises(LimitExceededError, match="an index holds at most 350 rows"):
        build(tmp_path / "others", 1)
    assert [path.name for path in tmp_path.iterdir() if "others" in path.name] == []


def test_rows_that_cannot_fit_are_refused_at_the_first_one(tmp_path: Path) -> None:
    """All shards together must fit."""
    with staging(tmp_path / "points", replace=False) as stage:
        points = DividedBuild(stage, 200)
        free = shutil.disk_usage(tmp_path).free
        rows = free // POINTS[0].nbytes + 10**6
        builder = IndexBuilder(stage, BuildParameters(), points=points, expected_rows=rows)
        with pytest.raises(StorageFullError):
            builder.append(POINTS[:1])


@pytest.mark.parametrize("kind", ["texts", "labels", "sparse"])
def test_nothing_is_written_for_all_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Points, ids, labels and columns are in the folders of shards alone, as codes are."""
    files: set[str] = set()

    def look(progress: Progress) -> None:
        if progress.stage == "tuning" and not _Builder.is_whole_first:
            (folder,) = tmp_path.glob(".*.staging-*")
            files.update(path.stem for path in folder.glob("*.npy"))

    build_both(tmp_path, monkeypatch, {**KINDS[kind], "progress": look}, shards=2)
    assert {"hyperplanes", "thresholds"} <= files
    assert {name for name in files if not is_shared(name)} == set()


def test_progress_counts_the_rows_of_all_shards(tmp_path: Path) -> None:
    steps = build(tmp_path / "points", 3)
    stages = [*dict.fromkeys(step.stage for step in steps)]
    assert stages == ["receiving", "sorting", "components", "hashing", "tuning", "writing"]
    for stage in ("sorting", "hashing"):
        counts = [step.rows_done for step in steps if step.stage == stage]
        assert counts == sorted(counts)
        assert (counts[0], counts[-1]) == (0, len(POINTS))
        assert {step.rows_total for step in steps if step.stage == stage} == {len(POINTS)}


def test_a_disk_that_is_full_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the build finds it."""
    written, failing = 0, -1
    append = ArrayFile.append

    def append_or_fail(file: ArrayFile, block: Array) -> None:
        nonlocal written
        written += 1
        if written == failing:
            raise StorageFullError("no room left to store the index")
        append(file, block)

    monkeypatch.setattr(ArrayFile, "append", append_or_fail)
    build(tmp_path / "points", 2)
    count = written
    for number in (1, 2, count // 2, count - 1):
        written, failing = 0, number
        with pytest.raises(StorageFullError):
            build(tmp_path / "others", 2)
        assert [path.name for path in tmp_path.iterdir() if "others" in path.name] == []
