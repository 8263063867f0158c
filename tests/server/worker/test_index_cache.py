"""The generations that a worker has open."""

import threading
from pathlib import Path

from divgrpc import Collection, Index
from divgrpc.engine import Engine
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


def found(cache: IndexCache, is_open: threading.Event) -> Engine:
    """Return the index when it is open."""
    is_open.clear()
    while (engine := cache.find("points")) is None:
        is_open.wait()
        cache.collect()
    return engine
