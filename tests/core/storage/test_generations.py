"""Generations on disk: staged, published, replaced, swept."""

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from divgrpc.errors import (
    BuildUnderWayError,
    IndexExistsError,
    IndexNotFoundError,
    InvalidArgumentError,
    StorageFullError,
    StorageInUseError,
)
from divgrpc.parameters import check_index_name
from divgrpc.storage.generations import IndexFolder, list_indexes, lock_root, staging, sweep
from support.small_index import DIMS, ROWS, die_while_building, manifest, publish, vectors, write

# Publishing.


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_published_generation_reads_back(folder: Path) -> None:
    """What was written is what is read; arrays are files for numpy, and cannot be changed."""
    assert (names_in(folder.parent), names_in(folder)) == (["digits"], ["1", "CURRENT"])
    generation = IndexFolder(folder).open()
    assert generation.arrays["vectors"].tolist() == vectors(1.0).tolist()
    assert generation.arrays["codes"].tolist() == [list(range(ROWS))]
    assert not any(array.flags.writeable for array in generation.arrays.values())
    loaded = np.load(folder / "1" / "vectors.npy", allow_pickle=False)
    assert loaded.tobytes() == vectors(1.0).tobytes()
    expected, info = manifest().info("digits"), IndexFolder(folder).read_info()
    assert (info.name, info.generation, info.rows, info.dims) == ("digits", 1, ROWS, DIMS)
    for name in ("parameters", "search_costs", "warnings"):
        assert getattr(info, name) == getattr(expected, name)
    assert {(a.name, a.dtype, a.shape, a.bytes) for a in info.arrays} == {
        ("vectors", "float32", (ROWS, DIMS), 60),
        ("codes", "uint64", (1, ROWS), 40),
    }


def test_a_generation_is_synced_before_it_serves(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays, manifest and folder are on disk before the rename, the pointer before its own."""
    log: list[str] = []
    sync, rename = os.fsync, os.rename

    def note_sync(descriptor: int) -> None:
        log.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name.split("-")[0])
        sync(descriptor)

    def note_rename(old: Path, new: Path) -> None:
        log.append(f"{Path(old).name.split('-')[0]} to {Path(new).name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "rename", note_rename)
    publish(folder, 2.0, replace=True)
    whole, pointed = log.index(".digits.staging to 2"), log.index("CURRENT.new to CURRENT")
    assert {"vectors.npy", "codes.npy", "manifest.json", ".digits.staging"} == set(log[:whole])
    assert log[whole + 1 : pointed] == ["digits", "CURRENT.new"]
    assert log[pointed + 1 :] == ["digits", folder.parent.name]


def test_rows_that_are_announced_and_never_sent_cost_nothing(tmp_path: Path) -> None:
    """Room is made as rows arrive; more than there can be is refused at once."""
    with staging(tmp_path / "root" / "digits", replace=False) as stage:
        stage.begin("vectors", np.float32, (DIMS,), rows=10_000_000)
        stage.append("vectors", vectors(1.0))
        (file,) = (tmp_path / "root").glob(".digits.staging-*/vectors.npy")
        assert file.stat().st_blocks * 512 < 2**27
        with pytest.raises(StorageFullError):
            stage.begin("codes", np.uint64, (1,), rows=2**55)


def test_an_array_without_elements_reads_back(tmp_path: Path) -> None:
    with staging(tmp_path / "digits", replace=False) as stage:
        write(stage)
        stage.begin("empty", np.int32, (4,))
        stage.publish(manifest())
    opened = IndexFolder(tmp_path / "digits").open().arrays["empty"]
    assert opened.shape == (0, 4)
    assert opened.dtype == np.int32
    assert not opened.flags.writeable


def test_generations_grow(folder: Path) -> None:
    """The old one's files go, and whoever has mapped them keeps their pages."""
    old = IndexFolder(folder).open()
    assert [publish(folder, float(n), replace=True) for n in range(2, 5)] == [2, 3, 4]
    assert names_in(folder) == ["4", "CURRENT"]
    assert old.arrays["vectors"].tolist() == vectors(1.0).tolist()
    assert IndexFolder(folder).open().arrays["vectors"].tolist() == vectors(4.0).tolist()


def test_the_stamp_changes_with_every_publish(folder: Path) -> None:
    """A reader that compares stamps notices every new generation, and the end of the index."""
    index, stamps = IndexFolder(folder), []
    stamps.append(index.pointer_stamp())
    for n in range(5):
        publish(folder, float(n), replace=True)
        stamps.append(index.pointer_stamp())
        assert index.pointer_stamp() == stamps[-1]
    index.delete()
    stamps.append(index.pointer_stamp())
    assert len(set(stamps)) == len(stamps)
    assert stamps[-1] is None


# Refusals.


def test_an_existing_name_is_refused_without_replace(folder: Path) -> None:
    """And holds nothing that keeps the next build out."""
    with pytest.raises(IndexExistsError), staging(folder, replace=False):
        pytest.fail("the block must not be entered")
    with staging(folder, replace=True), pytest.raises(BuildUnderWayError):
        IndexFolder(folder).delete()
    assert IndexFolder(folder).read_info().generation == 1
    assert IndexFolder(folder).delete() == 1


@pytest.mark.parametrize("replace", [False, True])
def test_a_second_build_of_a_name_under_way_is_refused(tmp_path: Path, replace: bool) -> None:
    """Another name is free, and `sweep` leaves alone whatever somebody holds the lock of."""
    with staging(tmp_path / "digits", replace=False) as stage:
        write(stage)
        with pytest.raises(BuildUnderWayError), staging(tmp_path / "digits", replace=replace):
            pytest.fail("the block must not be entered")
        assert publish(tmp_path / "other") == 1
        assert sweep(tmp_path) == []
        assert stage.publish(manifest()).manifest.generation == 1


def test_a_root_has_one_owner(tmp_path: Path) -> None:
    with (
        lock_root(tmp_path / "root"),
        pytest.raises(StorageInUseError),
        lock_root(tmp_path / "root"),
    ):
        pytest.fail("the block must not be entered")
    with lock_root(tmp_path / "root"):
        assert list_indexes(tmp_path / "root") == []


@pytest.mark.parametrize("how", ["missing", "a file"])
def test_an_unknown_index_is_not_found(tmp_path: Path, how: str) -> None:
    if how == "a file":
        (tmp_path / "digits").write_text("no index")
    index = IndexFolder(tmp_path / "digits")
    for ask in (index.read_info, index.open, index.delete):
        with pytest.raises(IndexNotFoundError):
            ask()
    assert index.pointer_stamp() is None


# Exceptions and crashes.


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("name", ["digits", "fresh"])
def test_an_exception_leaves_nothing_behind(
    folder: Path, name: str, error: type[BaseException]
) -> None:
    def fail() -> None:
        with staging(folder.parent / name, replace=True) as stage:
            write(stage, 2.0)
            raise error

    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(error):
        fail()
    assert sorted(folder.parent.rglob("*")) == before
    assert IndexFolder(folder).open().arrays["vectors"].tolist() == vectors(1.0).tolist()


def test_a_killed_build_is_swept(folder: Path) -> None:
    """By `sweep`, or by the next build, as the lock dies with its holder."""
    before = sorted(folder.parent.rglob("*"))
    die_while_building(folder)
    die_while_building(folder.parent / "fresh")
    assert len(list(folder.parent.glob(".*.staging-*"))) == 2
    assert list_indexes(folder.parent) == ["digits"]
    assert sweep(folder.parent) == ["digits", "fresh"]
    assert sorted(folder.parent.rglob("*")) == before
    assert sweep(folder.parent) == []
    die_while_building(folder)
    assert publish(folder, 2.0, replace=True) == 2
    assert names_in(folder.parent) == ["digits"]


@pytest.mark.parametrize("pointer", [False, True])
def test_a_crash_before_the_pointer_moves_keeps_the_old(folder: Path, pointer: bool) -> None:
    """Between the renames of a publish, or while the pointer is written; the number is free."""
    shutil.copytree(folder / "1", folder / "2")
    if pointer:
        (folder / "CURRENT.new").write_text("2")
    assert IndexFolder(folder).read_info().generation == 1
    assert sweep(folder.parent) == ["digits"]
    assert names_in(folder) == ["1", "CURRENT"]
    assert publish(folder, 2.0, replace=True) == 2


def test_a_first_build_that_crashed_before_the_pointer_is_no_index(folder: Path) -> None:
    """A folder without a pointer is neither listed nor in the way."""
    (folder / "CURRENT").unlink()
    assert list_indexes(folder.parent) == []
    with pytest.raises(IndexNotFoundError):
        IndexFolder(folder).open()
    assert publish(folder, 2.0) == 1


def test_delete_removes_everything(folder: Path) -> None:
    publish(folder, 2.0, replace=True)
    old = IndexFolder(folder).open()
    assert IndexFolder(folder).delete() == 2
    assert list(folder.parent.iterdir()) == []
    assert old.arrays["vectors"].tolist() == vectors(2.0).tolist()


def test_indexes_are_listed_by_name(tmp_path: Path) -> None:
    for name in ("b", "a-1", "a"):
        publish(tmp_path / name)
    (tmp_path / "Not-A-Name").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    assert list_indexes(tmp_path) == ["a", "a-1", "b"]


def test_names_outside_the_pattern_are_refused() -> None:
    for name in ("", ".", "..", "../x", "a/b", "A", "-a", "_a", "a" * 64, "a\n", "a b", "ä", "a\0"):
        with pytest.raises(InvalidArgumentError) as caught:
            check_index_name(name)
        assert caught.value.field == "index"
        assert len(str(caught.value)) < 300
    for name in ("a", "0", "a-_9", "a" * 63):
        assert check_index_name(name) == name


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
    assert names_in(folder.parent) == ["digits"]
    assert IndexFolder(folder).read_info().generation == 21


def test_of_many_builders_at_once_one_wins(tmp_path: Path) -> None:
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
    assert names_in(tmp_path) == ["digits"]


def test_a_deleted_index_is_not_found_at_any_moment(folder: Path) -> None:
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
