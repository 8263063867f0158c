"""The generations that a worker has open."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from divgrpc import Collection, Index
from divgrpc.arrays import Array
from divgrpc.builder.builder import IndexBuilder
from divgrpc.engine import Engine
from divgrpc.errors import IndexDamagedError, IndexNotFoundError
from divgrpc.parameters import BuildParameters, QueryParameters
from divgrpc.sharding.files import divide_folder
from divgrpc.sharding.gathering_engine import GatheringEngine
from divgrpc.storage import generations, published
from divgrpc.storage.arrays import ArrayEntry, open_array
from divgrpc.storage.generations import IndexFolder, staging
from divgrpc.types import QueryDefault
from divgrpc.writes import layout, point_files
from divgrpc.writes.opening import open_index
from divgrpc.writes.replica import Replica
from divgrpc_server.worker import index_cache
from divgrpc_server.worker.index_cache import IndexCache
from divgrpc_server.worker.rounds import _without
from support.data.served_index import random_points
from support.processes.running_server import eventually

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


def test_a_prepared_generation_may_lack_shards(tmp_path: Path) -> None:
    """It is opened in the staging folder of its build, and read there no more once it is asked."""
    is_open = threading.Event()
    with staging(tmp_path / "points", replace=False) as stage:
        stage.divide = lambda folder, manifest: divide_folder(folder, manifest, 2)
        builder = IndexBuilder(stage, BuildParameters())
        builder.append(POINTS)
        builder.build()
    staged = tmp_path / ".points.building"
    (tmp_path / "points" / "1").rename(staged)
    cache = IndexCache(tmp_path, is_open.set, has_shards=True)
    cache.prepare("points", staged.name)
    is_open.wait()
    cache.collect()
    staged.rename(tmp_path / "points" / "1")
    engine = found(cache, is_open)
    assert isinstance(engine, GatheringEngine)
    rest = _without(engine, [1])
    assert rest.missing == (1,)
    assert rest.coverage == engine.manifest.shards[0].rows / len(POINTS)


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
        monkeypatch.setattr(point_files, "checksum_of", read.append)
        assert found(cache, is_open).rows == 50
        assert not read


@pytest.mark.parametrize("change", ["vacuum", "delete"])
def test_a_generation_may_go_while_its_writes_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    is_open, path = threading.Event(), tmp_path / "points"
    cache, follow, calls = IndexCache(tmp_path, is_open.set), Replica.follow, itertools.count()
    with Collection.build(POINTS[:50], path=path) as collection:
        collection.upsert([50], POINTS[50:51])
        assert found(cache, is_open).rows == 51
        # The worker has to open the layout of this merge, and a vacuum has something to do.
        collection.delete([0])
        collection.compact()

        def change_first(replica: Replica) -> Engine:
            if next(calls) == 0:
                if change == "vacuum":
                    assert collection.compact(vacuum=True)
                else:
                    collection.close()
                    IndexFolder(path).delete()
            return follow(replica)

        monkeypatch.setattr(Replica, "follow", change_first)
        if change == "vacuum":
            engine = found(cache, is_open)
            assert (engine.generation, engine.rows) == (2, 50)
        else:
            with pytest.raises(IndexNotFoundError):
                found(cache, is_open)


def test_a_layout_that_is_missing_is_damage(tmp_path: Path) -> None:
    """The generation is current, so there is no other one to read."""
    is_open, path = threading.Event(), tmp_path / "points"
    cache = IndexCache(tmp_path, is_open.set)
    with Collection.build(POINTS[:50], path=path) as collection:
        collection.upsert([50], POINTS[50:51])
        assert found(cache, is_open).rows == 51
        collection.upsert([51], POINTS[51:52])
        collection.compact()
        (path / "1" / "writes" / published.LAYOUT).unlink()
        with pytest.raises(IndexDamagedError, match="the layout is missing"):
            found(cache, is_open)


def test_damage_counts_until_the_index_is_open(tmp_path: Path) -> None:
    is_open, path = threading.Event(), tmp_path / "points"
    cache = IndexCache(tmp_path, is_open.set)
    Index.build(POINTS, path=path)
    (path / "1" / "codes.npy").write_bytes(b"")
    assert cache.damaged == set()
    with pytest.raises(IndexDamagedError):
        found(cache, is_open)
    assert cache.damaged == {"points"}
    Index.build(POINTS, path=path, replace=True)
    assert found(cache, is_open).rows == len(POINTS)
    assert cache.damaged == set()


def jumps_back() -> Iterator[int]:
    return itertools.count(2 * 10**18, -(10**15))


def jumps_to_and_fro() -> Iterator[int]:
    return itertools.cycle((10**18, 2 * 10**18, 10**15))


def stands_still() -> Iterator[int]:
    return itertools.repeat(10**18)


@pytest.mark.parametrize("clock", [jumps_back, jumps_to_and_fro, stands_still])
def test_a_worker_sees_each_change_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Callable[[], Iterator[int]]
) -> None:
    times = clock()
    monkeypatch.setattr(time, "time_ns", lambda: next(times))
    monkeypatch.setattr(time, "time", lambda: next(times) / 1e9)
    is_open, path = threading.Event(), tmp_path / "points"
    cache = IndexCache(tmp_path, is_open.set)
    for generation in (1, 2):
        Index.build(POINTS[:50], path=path, replace=True, hash_family="cells")
        assert found(cache, is_open).generation == generation
    with Collection.open(path, durability="interval") as collection:
        first = collection.upsert([50], POINTS[50:51], write_id="first")
        assert found(cache, is_open).rows == 51
        for diversity in (0.5, 0.7):
            collection.set_default(QueryDefault(diversity, "greedy", "corrected", "exact"))
            assert found(cache, is_open).defaults == collection.engine.defaults
        collection.delete([0])
        assert found(cache, is_open).rows == 50
        for change in (
            collection.compact,
            partial(collection.compact, vacuum=True),
            collection.retrain,
        ):
            collection.upsert([51], POINTS[51:52])
            assert change()
            collection.upsert([52], POINTS[52:53])
            engine = found(cache, is_open)
            assert (engine.generation, engine.sequence) == (
                collection.generation,
                collection.sequence,
            )
        again = collection.upsert([50], POINTS[50:51], write_id="first")
        assert (again.sequence, again.rows) == (first.sequence, first.rows)
        log = collection.committer._target.log
        eventually(lambda: log._is_synced)
    with Collection.open(path) as collection:
        assert (collection.sequence, len(collection)) == (engine.sequence, engine.rows)


def found(cache: IndexCache, is_open: threading.Event) -> Engine:
    """Return the index when it is open."""
    is_open.clear()
    while (engine := cache.find("points")) is None:
        is_open.wait()
        cache.collect()
    return engine


# Read-only servers.


def test_a_replica_answers_from_the_former_generation_until_the_new_one_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the former one are gone by then, and new layouts of it do not matter."""
    is_open, path, may_open = threading.Event(), tmp_path / "points", threading.Event()
    cache = IndexCache(tmp_path, is_open.set, is_read_only=True)
    with Collection.build(POINTS[:50], path=path) as collection:
        collection.upsert([50], POINTS[50:51])
        collection.compact()
        assert found(cache, is_open).rows == 51
        collection.delete([0])
        assert found(cache, is_open).rows == 51
        collection.compact()
        assert found(cache, is_open).rows == 50

        def open_later(path: Path, **options: Any) -> object:  # noqa: ANN401  # those of `open_index`
            may_open.wait()
            return open_index(path, **options)

        monkeypatch.setattr(index_cache, "open_index", open_later)
        collection.delete([1])
        assert collection.compact(vacuum=True)
        is_open.clear()
        for _ in range(2):
            engine = cache.find("points")
            assert engine is not None
            assert (engine.generation, engine.rows) == (1, 50)
            assert len(engine.answer(POINTS[:1], QueryParameters(k=3)).ids[0]) == 3
        may_open.set()
        is_open.wait()
        cache.collect()
        engine = found(cache, is_open)
        assert (engine.generation, engine.sequence, engine.rows) == (2, 3, 49)


def test_a_replica_meets_files_that_go_while_it_opens_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens the next generation instead, and reports nothing."""
    path, calls, damage = tmp_path / "points", itertools.count(), list[tuple[str, str]]()
    Index.build(POINTS[:50], path=path)
    open_named = generations.open_array_of

    def open_after_a_build(folder: Path, name: str, entry: ArrayEntry, *, verify: bool) -> Array:
        if verify and next(calls) == 2:
            Index.build(POINTS[:40], path=path, replace=True)
        return open_named(folder, name, entry, verify=verify)

    monkeypatch.setattr(generations, "open_array_of", open_after_a_build)
    cache = IndexCache(tmp_path, lambda: None, lambda *pair: damage.append(pair), is_read_only=True)
    cache.open_all()
    engine = cache.find("points")
    assert engine is not None
    assert (engine.generation, engine.rows, damage) == (2, 40, [])


def test_a_replica_finds_a_layout_again_that_a_merge_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_open, path, calls = threading.Event(), tmp_path / "points", itertools.count()
    cache = IndexCache(tmp_path, is_open.set, is_read_only=True)
    with Collection.build(POINTS[:50], path=path) as collection:
        collection.delete([0])
        collection.compact()
        assert found(cache, is_open).rows == 49
        collection.delete([1])
        collection.compact()

        def open_after_a_merge(
            path: Path, entry: ArrayEntry, *, verify: bool, mode: Literal["r", "c"] = "r"
        ) -> Array:
            if next(calls) == 2:
                monkeypatch.setattr(layout, "open_array", open_array)
                collection.delete([2])
                collection.compact()
            return open_array(path, entry, verify=verify, mode=mode)

        monkeypatch.setattr(layout, "open_array", open_after_a_merge)
        engine = found(cache, is_open)
        assert (engine.rows, engine.sequence) == (47, 3)
