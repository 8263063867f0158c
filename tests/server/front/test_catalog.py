"""What a front reports of an index whose files are damaged."""

import asyncio
import dataclasses
import errno
import re
import shutil
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from divgrpc import Index
from divgrpc.errors import DivgrpcError, IndexDamagedError
from divgrpc.parameters import LIMITS
from divgrpc.sharding.files import divide_index
from divgrpc.storage.generations import IndexFolder
from divgrpc.types import IndexInfo
from divgrpc.types.shards import ReplicaInfo
from divgrpc_protos.v1 import index_pb2
from divgrpc_server.codec.statuses import EngineUnreachableError, OutOfMemoryError
from divgrpc_server.config import Config
from divgrpc_server.front.catalog import Catalog, limits
from divgrpc_server.security.tokens import QUOTAS
from support.checks.documentation import pages
from support.data.served_index import random_points

GET_INDEX_REQUEST = index_pb2.GetIndexRequest(index="bad").SerializeToString()


@pytest.mark.parametrize("file", ["1/manifest.json", "CURRENT"])
def test_one_bad_index_hides_no_other(tmp_path: Path, file: str) -> None:
    """An index with a folder in the place of a file is listed with a warning, but DATA_LOSS."""
    Index.build(random_points(50), path=tmp_path / "sound")
    shutil.copytree(tmp_path / "sound", tmp_path / "bad")
    (tmp_path / "bad" / file).unlink()
    (tmp_path / "bad" / file).mkdir()
    catalog = Catalog(Config(), tmp_path, cast("Any", None), lambda: True, lambda: (1, 1))
    answer = asyncio.run(catalog.list_indexes(b"", lambda _: True))
    descriptions = index_pb2.ListIndexesResponse.FromString(answer).indexes
    assert [(info.name, info.rows) for info in descriptions] == [("bad", 0), ("sound", 50)]
    assert descriptions[0].warnings[0].code == "INDEX_DAMAGED"
    with pytest.raises(IndexDamagedError):
        asyncio.run(catalog.get_index(GET_INDEX_REQUEST))


def test_an_index_whose_queries_fail_differs_from_one_that_lacks_a_replica(tmp_path: Path) -> None:
    for name in ("points", "others"):
        Index.build(random_points(50), path=tmp_path / name)
        divide_index(tmp_path / name, 2)
    # Two points leave most shards empty, which are not asked.
    Index.build(random_points(2), path=tmp_path / "few")
    rows = [shard.rows for shard in divide_index(tmp_path / "few", 8).shards]
    lost_shards = {("points", 1), ("few", rows.index(0))}
    up, down = ReplicaInfo("a:1", "avoided", "slow"), ReplicaInfo("a:2", "unreachable", "gone")

    def replicas(name: str, shard: int) -> list[ReplicaInfo]:
        return [down, down] if (name, shard) in lost_shards else [up, down]

    catalog = Catalog(
        Config(), tmp_path, cast("Any", None), lambda: True, lambda: (1, 1),
        replicas=replicas,
    )  # fmt: skip
    answer = asyncio.run(catalog.list_indexes(b"", lambda _: True))
    infos = [*index_pb2.ListIndexesResponse.FromString(answer).indexes]
    for name in ("few", "others", "points"):
        request = index_pb2.GetIndexRequest(index=name).SerializeToString()
        response = index_pb2.GetIndexResponse.FromString(asyncio.run(catalog.get_index(request)))
        infos.append(response.index)
    states = [(one.name, one.degraded, [*one.missing_shards]) for one in infos]
    expected = [("few", True, []), ("others", True, []), ("points", True, [1])]
    assert states == expected * 2
    assert [len(one.shards[0].replicas) for one in infos] == [0] * 3 + [2] * 3


def test_an_index_stays_while_the_engine_cannot_be_reached(tmp_path: Path) -> None:
    Index.build(random_points(50), path=tmp_path / "points")
    request = index_pb2.DeleteIndexRequest(index="points").SerializeToString()
    await_engine = AsyncMock(side_effect=EngineUnreachableError("the head is gone"))
    catalog = Catalog(
        Config(), tmp_path, Mock(), lambda: True, lambda: (1, 1),
        await_engine=await_engine,
    )  # fmt: skip
    with pytest.raises(EngineUnreachableError):
        asyncio.run(catalog.delete_index(request))
    assert IndexFolder(tmp_path / "points").current() == 1
    await_engine.side_effect = None
    asyncio.run(catalog.delete_index(request))
    assert not (tmp_path / "points" / "CURRENT").exists()


def test_the_list_of_indexes_has_the_reasons_of_faulty_servers(tmp_path: Path) -> None:
    """Once for all shards of a server that cannot answer for one reason."""
    Index.build(random_points(50), path=tmp_path / "points")
    divide_index(tmp_path / "points", 3)
    damage = ReplicaInfo("a:1", "faulty", "array vectors does not match")
    refusal = ReplicaInfo("a:2", "faulty", "the token is wrong")
    replicas = [[damage], [ReplicaInfo("a:1", "serving"), refusal], [refusal]]
    catalog = Catalog(
        Config(), tmp_path, cast("Any", None), lambda: True, lambda: (1, 1),
        replicas=lambda _, shard: replicas[shard],
    )  # fmt: skip
    answer = asyncio.run(catalog.list_indexes(b"", lambda _: True))
    (info,) = index_pb2.ListIndexesResponse.FromString(answer).indexes
    assert [*info.missing_shards] == [0, 2]
    assert {(warning.code, warning.field) for warning in info.warnings} == {("SHARD_FAULTY", "")}
    assert [warning.message for warning in info.warnings] == [
        "shard 0 is faulty at a:1: array vectors does not match",
        "shards 1, 2 are faulty at a:2: the token is wrong",
    ]


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (PermissionError(), IndexDamagedError),
        (OverflowError(), IndexDamagedError),
        (RecursionError(), IndexDamagedError),
        (OSError(errno.EMFILE, ""), OutOfMemoryError),
        (MemoryError(), OutOfMemoryError),
    ],
)
def test_any_error_of_reading_an_index_is_reported(
    error: Exception, meaning: type[DivgrpcError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error means that the index is damaged, unless memory or descriptors have run out."""

    def fail(*_: object) -> IndexInfo:
        raise error

    monkeypatch.setattr(IndexFolder, "read_info", fail)
    monkeypatch.setattr("divgrpc_server.front.catalog.list_indexes", lambda _: ["bad"])
    catalog = Catalog(Config(), Path("/nowhere"), cast("Any", None), lambda: True, lambda: (1, 1))
    with pytest.raises(meaning):
        asyncio.run(catalog.get_index(GET_INDEX_REQUEST))
    answer = asyncio.run(catalog.list_indexes(b"", lambda _: True))
    (info,) = index_pb2.ListIndexesResponse.FromString(answer).indexes
    assert (info.name, info.warnings[0].code) == ("bad", meaning.reason)


# The limit that GetServerInfo has for each option with a number, and how many of its units are one
# unit of the option.
PUBLISHED = {
    "max_builds": ("builds_max", 1),
    "queue_calls": ("queue_calls_max", 1),
    "queue_bytes": ("queue_bytes_max", 1),
    "pending_calls": ("pending_calls_max", 1),
    "stream_window": ("stream_window", 1),
    "upload_idle": ("upload_idle_ms", 1_000),
    "worker_wait": ("worker_wait_ms", 1_000),
    "grace": ("grace_ms", 1_000),
}
# Options that limit no caller.
NO_LIMITS = {
    *("workers", "fronts", "worker_silence", "worker_awake", "recall_sample", "retain"),
    *("shards", "replicas", "hedge_ms", "engine_wait", "shard_memory"),
}


def test_every_limit_is_published() -> None:
    """A new option with a number must be a limit that callers see, or be named above."""
    numbers = {f.name for f in dataclasses.fields(Config) if f.type in (int, float)}
    assert numbers == PUBLISHED.keys() | NO_LIMITS
    changes: dict[str, Any] = {name: 7 + place for place, name in enumerate(PUBLISHED)}
    config = Config(**changes)
    values = limits(config, {"calls": 3})
    for name, (limit, unit) in PUBLISHED.items():
        assert values.pop(limit) == getattr(config, name) * unit
    assert values.pop("token_calls") == 3
    assert LIMITS.items() <= values.items()
    fixed = {"evaluations_max", "received_bytes_max", "handshake_ms", "connection_idle_ms"}
    assert values.keys() == LIMITS.keys() | fixed


def test_the_page_has_the_limits_of_the_server() -> None:
    page = pages()["guide/configuration.md"].partition("## Limits that callers see")[2]
    section = page.partition("\n## ")[0]
    names = set(re.findall(r"`([a-z_]+)`", section))
    quotas = {f"token_{name}" for name in QUOTAS}
    assert names == limits(Config(), {}).keys() - LIMITS.keys() | quotas
