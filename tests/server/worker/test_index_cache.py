"""The generations that a worker has open."""

import threading
from pathlib import Path

import pytest

from divgrpc import Collection, Index
from divgrpc.engine import Engine
from divgrpc.storage import published
from divgrpc.writes import layout
from divgrpc_server.worker.index_cache import IndexCache
from support.data.served_index import random_points

POINTS = random_points(60, dims=8, seed=1)


def test_a_prepared_generation_may_have_been_written_to(tmp_path: Path) -> None:
    """A worker may be busy from the end of a build until after the first write."""
    is_open = threading.Event()
    cache = IndexCache(tmp_path, is_open.set)
    Index.build(POINTS[:50], path=tmp_path / "points")
    cache.prepare("points", "points/1")
    is_open.wait()
    cache.collect()
    with Collection.open(tmp_path / "points") as collection:
        collection.upsert([50], POINTS[50:51])
        assert found(cache, is_open).rows == 51
        collection.upsert([51], POINTS[51:52])
        assert found(cache, is_open).rows == 52


@pytest.mark.parametrize("numbers", [b"", bytes(48)])
def test_a_loss_of_power_may_leave_old_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: bytes
) -> None:
    """The log was synced, and the file with the number of the last write was not."""
    is_open = threading.Event()
    path = tmp_path / "points"
    with Collection.build(POINTS[:50], path=path) as collection:
        collection.upsert([50], POINTS[50:51])
    (path / "1" / "writes" / published.PUBLISHED).write_bytes(numbers)
    monkeypatch.setattr(published, "boot_number", lambda: 7)
    cache = IndexCache(tmp_path, is_open.set)
    for _ in range(2):
        engine = found(cache, is_open)
        assert (engine.rows, engine.sequence) == (51, 1)
    with Collection.open(path) as collection:
        collection.upsert([51], POINTS[51:52])
        engine = found(cache, is_open)
        assert (engine.rows, engine.sequence) == (52, 2)


def test_queries_after_a_merge_do_not_wait_for_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_open = threading.Event()
    cache = IndexCache(tmp_path, is_open.set)
    with Collection.build(POINTS[:50], path=tmp_path / "points") as collection:
        collection.upsert([50], POINTS[50:51])
        collection.compact()
        assert found(cache, is_open).rows == 51
        collection.delete([0])
        collection.compact()
        read: list[object] = []
        monkeypatch.setattr(layout, "checksum_of", read.append)
        assert found(cache, is_open).rows == 50
        assert not read


def found(cache: IndexCache, is_open: threading.Event) -> Engine:
    """Return the index when it is open."""
    is_open.clear()
    while (engine := cache.find("points")) is None:
        is_open.wait()
        cache.collect()
    return engine
