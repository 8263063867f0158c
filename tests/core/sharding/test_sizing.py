"""Sizes of a plan, compared with those of an index, and its times with a record."""

import json
import os
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from scipy.stats import binom

from divgrpc import Index
from divgrpc.errors import InvalidArgumentError, LimitExceededError
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.sharding import sizing
from divgrpc.sharding.copies import ShardCopies
from divgrpc.sharding.core import ShardCore
from divgrpc.sharding.files import divide_index
from divgrpc.sharding.finding import share_of
from divgrpc.sharding.router import Request
from support.data.divided_indexes import DividedIndex
from support.data.served_index import random_points

_RECORD: Final = Path(__file__).parents[3] / "docs" / "records" / "shard-costs.json"
_SHARDS: Final = 4
GB: Final = 10**9


def test_a_point_has_the_size_that_files_have(tmp_path: Path) -> None:
    points = random_points(40_000, dims=32, seed=1)
    Index.build(points, path=tmp_path / "points", hash_family="cells", ids=np.arange(len(points)))
    info = divide_index(tmp_path / "points", _SHARDS)
    size = sum(shard.bytes for shard in info.shards) / len(points)
    plan = sizing.plan(len(points), 32, GB)
    assert plan.point_bytes == pytest.approx(size, rel=0.02)
    shared = sum(path.stat().st_size for path in (tmp_path / "points/2/shared").glob("cell_*"))
    cells = plan.shard_bytes - sizing.SERVER_BYTES - 2 * len(points) * plan.point_bytes
    assert cells / 2 == pytest.approx(shared, rel=0.1)


def test_a_copy_has_the_planned_size_and_few_open_files(tmp_path: Path) -> None:
    points = random_points(40_000, dims=32, seed=1)
    attributes = {f"number{place}": np.arange(len(points)) for place in range(sizing.ATTRIBUTES)}
    options: dict[str, Any] = {"hash_family": "cells", "ids": np.arange(len(points))}
    Index.build(points, path=tmp_path / "points", **options)
    Index.build(points, path=tmp_path / "others", **options, attributes=attributes)
    for name in ("points", "others"):
        divide_index(tmp_path / name, _SHARDS)
    copies = ShardCopies(tmp_path / "copies", tmp_path, lambda *_: None)
    descriptors = len(os.listdir("/proc/self/fd"))
    cores = [ShardCore(copies.open(name, 2, 0)) for name in ("points", "others")]
    assert 2 < len(os.listdir("/proc/self/fd")) - descriptors < 2 * sizing.WORKER_FILES
    assert all(core.rows for core in cores)
    (copy,) = (tmp_path / "copies").glob("points.2.0.*")
    size = sum(path.stat().st_size for path in copy.rglob("*") if path.is_file())
    # A machine so small that it holds one of four shards.
    plan = sizing.plan(len(points), 32, 438 * 10**6)
    assert plan.shards == _SHARDS
    assert plan.cache_bytes / sizing.GENERATIONS == pytest.approx(size, rel=0.02)
    size = sum(path.stat().st_size for path in (tmp_path / "points" / "2").rglob("*.npy"))
    assert plan.disk_bytes / sizing.GENERATIONS == pytest.approx(size, rel=0.02)
    assert plan.worker_files == 2 * sizing.WORKER_FILES


@pytest.mark.parametrize("shards", [2, 4])
def test_replies_have_the_expected_size(shards: int) -> None:
    points = random_points(30_000, dims=64, seed=1)
    pieces = DividedIndex(Index.build(points[:-1]).engine, shards)
    answer = pieces.answer(Request(points[-1:], QueryParameters()))
    hashed = int(answer.stats.points_hashed[0])
    replies = sizing.query_bytes(64, shards) - shards * (1_200 + 4 * 64)
    replies += shards * 16 * (share_of(hashed, shards) - share_of(sizing.HASH_LIMIT, shards))
    assert replies == pytest.approx(pieces.reply_bytes, rel=0.05)


@pytest.mark.parametrize("shards", [2, 4, 16, 64, 256])
def test_few_queries_exceed_the_share_of_a_shard(shards: int) -> None:
    """Fewer than one in two hundred find so many of their best points on some shard."""
    for limit in (20, 200, 1_200, 100_000):
        share = share_of(limit, shards)
        # The number of shards times the chance that one of them has so many.
        assert shards * binom.sf(share - 1, limit, 1 / shards) < 0.005
        if limit / shards > 10:
            assert shards * binom.sf(share - 1, limit, 1 / shards) > 0.001


@pytest.mark.parametrize("limit", [1, 7, 10**9])
def test_one_shard_is_asked_for_all(limit: int) -> None:
    assert share_of(limit, 1) == limit
    assert share_of(1, 256) == 1


def test_shards_fit_their_machines() -> None:
    for rows, dims, size in ((10**9, 128, 256 * GB), (10**8, 768, 64 * GB), (10**7, 128, 4 * GB)):
        plan = sizing.plan(rows, dims, size, replicas=3)
        assert plan.shards > 1
        assert plan.shard_bytes <= sizing.USED_SHARE * size
        assert plan.points_per_shard * plan.shards >= rows
        # One shard less would not fit.
        fewer = plan.shard_bytes + 2 * plan.point_bytes * plan.points_per_shard / plan.shards
        assert fewer > 0.99 * sizing.USED_SHARE * size
        assert plan.machines == 3 * plan.shards + 1


def test_no_shard_has_more_points_than_an_index_may() -> None:
    most = LIMITS["rows_max"]
    assert sizing.plan(most, 16, 4_000 * GB).shards == 1
    plan = sizing.plan(4 * most + 1, 16, 4_000 * GB)
    assert (plan.shards, plan.points_per_shard <= most) == (5, True)


def test_one_machine_needs_no_shards() -> None:
    plan = sizing.plan(10**6, 128, 256 * GB, replicas=1)
    assert (plan.shards, plan.machines, plan.query_bytes) == (1, 1, 0)
    assert plan.p50_ms is plan.p99_ms is None


def test_what_cannot_be_planned_is_refused() -> None:
    for rows, dims, size, replicas in (
        (0, 4, GB, 1), (4, 0, GB, 1), (4, 4, GB, 0), (10**6, 128, 2**20, 1),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError):
            sizing.plan(rows, dims, size, replicas=replicas)
    with pytest.raises(LimitExceededError, match="256 at most"):
        sizing.plan(2 * 10**9, 256, 16 * GB)


def test_times_are_those_of_the_record() -> None:
    """The line through the medians of a query over several numbers of shards."""
    record = json.loads(_RECORD.read_text())
    rows = [dict(zip(record["columns"], row, strict=True)) for row in record["rows"]]
    shards, p50, p99 = (
        np.array([float(row[name].replace(",", "")) for row in rows])
        for name in ("shards", "p50 us", "p99 us")
    )
    slope, start = np.polyfit(shards, p50 / 1000, 1)
    assert len(rows) >= 3
    assert pytest.approx(slope, rel=0.1) == sizing.P50_MS_PER_SHARD
    assert pytest.approx(start, rel=0.1) == sizing.P50_MS
    assert pytest.approx(np.median(p99 / p50), rel=0.1) == sizing.P99_FACTOR
