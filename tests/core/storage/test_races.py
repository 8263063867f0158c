"""Readers, builders and sweepers of one folder at once."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from divgrpc.errors import (
    BuildUnderWayError,
    IndexExistsError,
    IndexNotFoundError,
)
from divgrpc.storage.generations import IndexFolder, list_indexes, staging, sweep
from support.small_index import publish


def until(done: threading.Event, act: Callable[[], object]) -> int:
    """Do something again and again, at least once; returns how often."""
    times = 0
    while not times or not done.is_set():
        act()
        times += 1
    return times


def run_beside(work: Callable[[], object], *others: Callable[[], object]) -> None:
    """Do some work while others do theirs over and over; what any of them raises is raised."""
    done = threading.Event()
    with ThreadPoolExecutor(len(others)) as pool:
        running = [pool.submit(until, done, other) for other in others]
        try:
            work()
        finally:
            done.set()
        for future in running:
            future.result()


def test_readers_never_see_a_half_published_generation(folder: Path) -> None:
    """Opened at any moment of a replacement, an index is whole: the old one or the new one."""
    seen: list[int] = []

    def read() -> None:
        generation = IndexFolder(folder).open()
        fill = float(generation.arrays["vectors"][0, 0])
        assert (generation.arrays["vectors"] == fill).all()
        assert fill == generation.manifest.generation
        seen.append(generation.manifest.generation)

    def replace() -> None:
        for number in range(2, 32):
            assert publish(folder, float(number), replace=True) == number

    run_beside(replace, read, read, lambda: IndexFolder(folder).read_info())
    assert set(seen) <= set(range(1, 32))
    assert len(set(seen)) > 1


def test_sweeping_disturbs_neither_builders_nor_readers(folder: Path) -> None:
    """`sweep` takes the lock of each name, so a build that it meets is refused and comes back."""

    def replace_once() -> None:
        while True:
            try:
                publish(folder, 1.0, replace=True)
            except BuildUnderWayError:
                continue
            return

    def replace_often() -> None:
        for _ in range(20):
            replace_once()

    run_beside(
        replace_often,
        lambda: sweep(folder.parent),
        lambda: IndexFolder(folder).open(),
        lambda: list_indexes(folder.parent),
    )
    assert sorted(p.name for p in folder.parent.iterdir()) == ["digits"]
    assert IndexFolder(folder).read_info().generation == 21


def test_of_many_builders_at_once_one_wins(tmp_path: Path) -> None:
    """Of eight first builds of a name one publishes; the others are told why not."""
    start, outcomes = threading.Barrier(8), Counter[str]()

    def build() -> None:
        start.wait()
        try:
            publish(tmp_path / "digits")
            outcomes["built"] += 1
        except (BuildUnderWayError, IndexExistsError) as error:
            outcomes[type(error).__name__] += 1

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(build) for _ in range(8)]:
            future.result()
    assert outcomes["built"] == 1
    assert outcomes.total() == 8
    assert sorted(p.name for p in tmp_path.iterdir()) == ["digits"]


def test_a_deleted_index_is_not_found_at_any_moment(folder: Path) -> None:
    """A reader of an index that is deleted and built anew finds it whole or not at all."""

    def read() -> None:
        try:
            generation = IndexFolder(folder).open()
        except IndexNotFoundError:
            return
        fill = float(generation.arrays["vectors"][0, 0])
        assert (generation.arrays["vectors"] == fill).all()

    def delete_and_build() -> None:
        for number in range(60):
            IndexFolder(folder).delete()
            publish(folder, float(number))

    run_beside(delete_and_build, read, read, lambda: list_indexes(folder.parent))


def test_the_lock_is_free_after_a_refusal(folder: Path) -> None:
    """A build that was refused holds nothing that keeps the next one out."""
    with pytest.raises(IndexExistsError), staging(folder, replace=False):
        pytest.fail("the block must not be entered")
    with staging(folder, replace=True):
        pass
    assert IndexFolder(folder).delete() == 1
