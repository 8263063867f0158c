"""Errors of the disk: no write that was acknowledged is lost, and earlier points are served."""

import errno
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from divgrpc import Collection, Index
from divgrpc.errors import IndexChangedError, StorageFullError
from divgrpc.storage import published
from divgrpc.writes import log as log_module
from divgrpc.writes import point_files
from support.data.written_points import (
    DIMS,
    Model,
    a_collection,
    check_exact,
    check_points,
    drawn_points,
    upsert,
)
from support.processes.running_server import eventually

POINTS = drawn_points(600, 3)
OLD: Model = dict(enumerate(POINTS[:40]))
QUERIES = np.random.default_rng(4).normal(size=(2, DIMS)).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "points"


def raising(number: int) -> Callable[..., None]:
    def fail(*_arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_failed_sync_leaves_the_answers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = a_collection(path, OLD)
    upsert(collection, {1: POINTS[50]})
    model = OLD | {1: POINTS[50]}
    with monkeypatch.context() as patch:
        patch.setattr(log_module, "sync_data", raising(errno.EIO))
        with pytest.raises(StorageFullError, match=os.strerror(errno.EIO)):
            upsert(collection, {2: POINTS[51], 900: POINTS[52]}, write_id="lost")
    for write in (
        lambda: upsert(collection, {3: POINTS[53]}),
        lambda: upsert(collection, {2: POINTS[51], 900: POINTS[52]}, write_id="lost"),
        lambda: collection.delete([1]),
        collection.compact,
    ):
        with pytest.raises(StorageFullError, match="read-only until it is opened again"):
            write()
    assert collection.sequence == 1
    check_points(collection, model)
    check_exact(collection, model, "cosine", QUERIES)
    collection.close()
    with Collection.open(path) as again:
        # Whether a failed write is on the disk is unknown, but it is there in full or not at all.
        later = model | {2: POINTS[51], 900: POINTS[52]}
        check_points(again, later if again.sequence == 2 else model)
        upsert(again, {3: POINTS[53]})


def test_a_failed_sync_in_the_background_ends_writes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_collection(path, OLD).close()
    with Collection.open(path, durability="interval") as collection:
        upsert(collection, {1: POINTS[50]})
        with monkeypatch.context() as patch:
            patch.setattr(log_module, "sync_data", raising(errno.EIO))
            upsert(collection, {2: POINTS[51]})
            eventually(lambda: collection.committer._target.log.error is not None)
        for _ in range(2):
            with pytest.raises(StorageFullError, match="read-only until it is opened again"):
                upsert(collection, {3: POINTS[52]})
        # Queries have seen the write before the sync failed.
        check_points(collection, OLD | {1: POINTS[50], 2: POINTS[51]})


def counting(numbers: Iterator[int], failing: int = 0) -> Callable[[int], None]:
    """Return a sync that takes a number for each call, and whose call of one number fails."""

    def sync(_descriptor: int) -> None:
        if next(numbers) == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    return sync


@pytest.mark.parametrize("method", ["merge", "vacuum", "retrain"])
@pytest.mark.usefixtures("no_syncs")
def test_any_sync_of_a_new_layout_may_fail(
    path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    collection, model, points = a_collection(path, OLD), dict(OLD), iter(POINTS)

    def write() -> None:
        """Write a new point, and replace one."""
        places = {100 + len(model): next(points), len(model) % 40: next(points)}
        upsert(collection, places)
        model.update(places)

    write()
    numbers = itertools.count(1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", counting(numbers))
        assert getattr(collection.committer, method)()
    syncs = next(numbers) - 1
    # The first ones, some of those of arrays, and the last ones.
    for number in [1, 2, *range(3, syncs - 6, 9), *range(syncs - 6, syncs + 1)]:
        write()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", counting(itertools.count(1), number))
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                getattr(collection.committer, method)()
        check_points(collection, model)
        check_points(Index.open(path), model)
        if collection.generation != Index.open(path).generation:
            # The new generation is current, and the writer has none.
            with pytest.raises(IndexChangedError, match="open it again"):
                write()
            collection.close()
            collection = Collection.open(path)
    write()
    assert getattr(collection.committer, method)()
    check_exact(collection, model, "cosine", QUERIES)
    collection.close()
    check_exact(Index.open(path), model, "cosine", QUERIES)


def test_a_full_disk_refuses_writes_for_a_while(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "FILE_BYTES", 2_000)
    with a_collection(path, OLD) as collection:
        model = dict(OLD)
        for number in range(100, 104):
            upsert(collection, {number: POINTS[number]})
            model[number] = POINTS[number]
        with monkeypatch.context() as patch:
            patch.setattr(log_module, "reserve", raising(errno.ENOSPC))
            for number in range(104, 200):
                try:
                    upsert(collection, {number: POINTS[number]})
                except StorageFullError:
                    break
                model[number] = POINTS[number]
            assert len(model) < 100
            # A record with fewer labels might still fit.
            with pytest.raises(StorageFullError, match="no room"):
                upsert(collection, {number: POINTS[number]})
            check_points(collection, model)
        with monkeypatch.context() as patch:
            patch.setattr(point_files, "reserve", raising(errno.ENOSPC))
            with pytest.raises(StorageFullError, match="no room"):
                collection.compact()
        check_exact(collection, model, "cosine", QUERIES)
        for number in range(300, 330):
            upsert(collection, {number: POINTS[number]})
            model[number] = POINTS[number]
        collection.compact()
        check_exact(collection, model, "cosine", QUERIES)
    with Collection.open(path) as again:
        check_points(again, model)


def test_the_first_write_may_find_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_collection(path, OLD) as collection:
        for module in (point_files, log_module):
            with monkeypatch.context() as patch:
                patch.setattr(module, "reserve", raising(errno.ENOSPC))
                with pytest.raises(StorageFullError, match="no room"):
                    upsert(collection, {1: POINTS[50]})
            check_points(collection, OLD)
            check_points(Index.open(path), OLD)
        upsert(collection, {1: POINTS[50]})
        check_points(collection, OLD | {1: POINTS[50]})


def test_a_full_disk_may_have_no_room_for_the_published_numbers(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_collection(path, OLD) as collection:
        upsert(collection, {1: POINTS[50]})
    with monkeypatch.context() as patch:
        patch.setattr(published, "reserve", raising(errno.ENOSPC))
        with pytest.raises(StorageFullError, match="no room"):
            Collection.open(path)
    Collection.open(path).close()


def test_an_interrupted_write_ends_all_writes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_collection(path, OLD) as collection:
        upsert(collection, {1: POINTS[50]})

        def interrupt(*_arguments: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("divgrpc.writes.state.State.apply", interrupt)
            with pytest.raises(KeyboardInterrupt):
                upsert(collection, {2: POINTS[51]})
        with pytest.raises(StorageFullError, match="read-only until it is opened again"):
            upsert(collection, {2: POINTS[51]})
        check_points(collection, OLD | {1: POINTS[50]})
    with Collection.open(path) as again:
        check_points(again, OLD | {1: POINTS[50], 2: POINTS[51]})


def test_a_small_file_system_fills_up(tmp_path: Path) -> None:
    """As for shared memory that is too small: the disk is full in the midst of all that it does."""
    program = [sys.executable, "-m", "support.processes.full_disk", str(tmp_path)]
    script = 'mount -t tmpfs -o size=3m none "$0" && exec "$@"'
    unshare = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, str(tmp_path)]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("needs unshare, and the right to mount a file system of its own")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    result = subprocess.run(
        [*unshare, *program], check=False, capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr[-4_000:]
