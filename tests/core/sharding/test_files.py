"""The files of a generation that is divided among shards."""

from pathlib import Path

import pytest

from divgrpc import Index
from divgrpc.backup import restore_snapshot, write_snapshot
from divgrpc.builder.builder import IndexBuilder
from divgrpc.columns.values import columns_of
from divgrpc.doctor import check_folder
from divgrpc.errors import IndexDamagedError, UnsupportedError
from divgrpc.parameters import BuildParameters, QueryParameters
from divgrpc.sharding.core import ShardCore
from divgrpc.sharding.divided_build import DividedBuild
from divgrpc.sharding.files import open_router_part, open_shard_part
from divgrpc.sharding.router import Request, Router
from divgrpc.storage.generations import IndexFolder, staging
from divgrpc.storage.manifest import MANIFEST, Manifest
from divgrpc.storage.shards import array_files, check_shard
from divgrpc.types import HashFamily, QueryResult
from support.data.divided_indexes import differences, differing_arrays
from support.data.served_index import random_points

POINTS = random_points(300, dims=8, seed=4)
COLOURS = ["red", "green", "blue"] * 100
FAMILIES: list[HashFamily] = ["cells", "lsh_div"]


def build(path: Path, shards: int, family: HashFamily = "cells", count: int = len(POINTS)) -> Path:
    """Build an index of `count` points on shards, and return the folder of its generation."""
    columns = columns_of({"colour": COLOURS[:count]}, count, {})
    with staging(path, replace=False) as stage:
        division = DividedBuild(stage, shards, [*columns])
        parameters = BuildParameters(hash_family=family)
        builder = IndexBuilder(stage, parameters, attributes=columns, points=division)
        builder.append(POINTS[:count], columns=columns)
        builder.build()
    return path / "1"


def answer(folder: Path, parameters: QueryParameters) -> QueryResult:
    """Answer queries from the files of shards."""
    part = open_router_part(folder)
    shards = range(len(part.manifest.shards))
    cores = [ShardCore(open_shard_part(folder, shard)) for shard in shards]
    router = Router(part.manifest, part.arrays, [core.rows for core in cores])
    request = Request(POINTS[:5] + 0.1, parameters)
    return router.answer(request, lambda name, shard, message: cores[shard].ask(name, message))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("shards", "count"), [(2, 300), (5, 300), (40, 30)])
def test_files_of_shards_answer_as_the_whole_index(
    tmp_path: Path, family: HashFamily, shards: int, count: int
) -> None:
    """Also where there are more shards than points, so that some are empty."""
    folder = build(tmp_path / "points", shards, family, count)
    colours = COLOURS[:count]
    index = Index.build(POINTS[:count], hash_family=family, attributes={"colour": colours})
    parameters = QueryParameters(k=6, with_attributes=True)
    whole = index.engine.answer(POINTS[:5] + 0.1, parameters)
    assert differences(answer(folder, parameters), whole) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_a_build_on_shards_has_the_arrays_of_an_index_that_is_cut(
    tmp_path: Path, family: HashFamily
) -> None:
    folder = build(tmp_path / "points", 3, family)
    index = Index.build(POINTS, hash_family=family, attributes={"colour": COLOURS})
    assert differing_arrays(folder, index.engine) == []


def test_two_builds_of_the_same_points_write_the_same_bytes(tmp_path: Path) -> None:
    first, second = (build(tmp_path / name, 4) for name in ("one", "two"))
    paths = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert paths == sorted(path.relative_to(second) for path in second.rglob("*") if path.is_file())
    for path in paths:
        assert (first / path).read_bytes() == (second / path).read_bytes()


def test_an_index_on_shards_does_not_open_as_a_whole(tmp_path: Path) -> None:
    build(tmp_path / "points", 2)
    with pytest.raises(UnsupportedError, match="divided among 2 shards"):
        Index.open(tmp_path / "points")
    assert len(IndexFolder(tmp_path / "points").read_info().shards) == 2


def _open_all(folder: Path) -> None:
    for shard in range(2):
        open_shard_part(folder, shard)


def test_each_changed_byte_of_a_shard_is_noticed(tmp_path: Path) -> None:
    """By the server that opens it, before it maps a build, and by the doctor."""
    folder = build(tmp_path / "points", 2)
    manifest = Manifest.from_json((folder / MANIFEST).read_bytes())
    files = [path for path, entry in array_files(folder, manifest) if entry.bytes]
    files += [folder / "shards" / str(shard) / MANIFEST for shard in range(2)]
    (report,) = check_folder(tmp_path / "points")
    assert (report.verdict, report.points) == ("ok", len(POINTS))
    for path in files:
        data = path.read_bytes()
        place = len(data) - 1
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]))
        for check in (_open_all, _check_all):
            with pytest.raises(IndexDamagedError):
                check(folder)
        (report,) = check_folder(tmp_path / "points")
        assert report.verdict == "damaged"
        path.write_bytes(data)
    _check_all(folder)
    files[0].unlink()
    with pytest.raises(IndexDamagedError, match="is missing"):
        _check_all(folder)
    (report,) = check_folder(tmp_path / "points")
    assert report.verdict == "damaged"


def _check_all(folder: Path) -> None:
    for shard in range(2):
        check_shard(folder, Manifest.from_json((folder / MANIFEST).read_bytes()), shard)


def test_a_snapshot_has_all_shards(tmp_path: Path) -> None:
    """Restored beside an index of the same name, it gets another number."""
    folder = build(tmp_path / "data" / "points", 3)
    write_snapshot(tmp_path / "data", tmp_path / "snapshot")
    parameters = QueryParameters(k=4)
    (entry,) = restore_snapshot(tmp_path / "snapshot", tmp_path / "data", replace=True)
    assert entry.generation == 2
    (moved,) = restore_snapshot(tmp_path / "snapshot", tmp_path / "elsewhere")
    restored = tmp_path / "elsewhere" / "points" / str(moved.generation)
    with_number = answer(tmp_path / "data" / "points" / "2", parameters)
    assert set(differences(with_number, answer(restored, parameters))) == {"generation"}
    assert not folder.exists()
    (report,) = check_folder(tmp_path / "data" / "points")
    assert report.verdict == "ok"
