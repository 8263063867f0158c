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


def test_a_published_generation_reads_back(folder: Path) -> None:
    generation = IndexFolder(folder).open()
    assert generation.arrays["vectors"].tolist() == vectors(1.0).tolist()
    assert generation.arrays["codes"].tolist() == [list(range(ROWS))]
    assert not any(array.flags.writeable for array in generation.arrays.values())
    expected = manifest().info("digits")
    info = IndexFolder(folder).read_info()
    assert (info.name, info.generation, info.rows, info.dims) == ("digits", 1, ROWS, DIMS)
    assert info.parameters == expected.parameters
    assert info.search_costs == expected.search_costs
    assert info.warnings == expected.warnings
    assert {(a.name, a.dtype, a.shape, a.bytes) for a in info.arrays} == {
        ("vectors", "float32", (ROWS, DIMS), 60),
        ("codes", "uint64", (1, ROWS), 40),
    }


def test_arrays_are_npy_files(folder: Path) -> None:
    loaded = np.load(folder / "1" / "vectors.npy", allow_pickle=False)
    assert loaded.tobytes() == vectors(1.0).tobytes()


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


def test_nothing_but_the_generation_and_the_pointer_is_left(folder: Path) -> None:
    assert sorted(p.name for p in folder.parent.iterdir()) == ["digits"]
    assert sorted(p.name for p in folder.iterdir()) == ["1", "CURRENT"]


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
    numbers = [publish(folder, float(n), replace=True) for n in range(2, 5)]
    assert numbers == [2, 3, 4]
    assert sorted(p.name for p in folder.iterdir()) == ["4", "CURRENT"]


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


def test_an_old_generation_stays_readable_after_it_is_replaced(folder: Path) -> None:
    """A mapping keeps its pages when the files behind it are gone."""
    old = IndexFolder(folder).open()
    publish(folder, 2.0, replace=True)
    assert old.arrays["vectors"].tolist() == vectors(1.0).tolist()
    assert IndexFolder(folder).open().arrays["vectors"].tolist() == vectors(2.0).tolist()


# Refusals.


def test_an_existing_name_is_refused_without_replace(folder: Path) -> None:
    with pytest.raises(IndexExistsError), staging(folder, replace=False):
        pytest.fail("the block must not be entered")
    assert IndexFolder(folder).read_info().generation == 1


@pytest.mark.parametrize("replace", [False, True])
def test_a_second_build_of_a_name_under_way_is_refused(tmp_path: Path, replace: bool) -> None:
    with staging(tmp_path / "digits", replace=False) as stage:
        write(stage)
        with pytest.raises(BuildUnderWayError), staging(tmp_path / "digits", replace=replace):
            pytest.fail("the block must not be entered")
        assert publish(tmp_path / "other") == 1
        assert stage.publish(manifest()).manifest.generation == 1


def test_deleting_during_a_build_is_refused(folder: Path) -> None:
    with staging(folder, replace=True), pytest.raises(BuildUnderWayError):
        IndexFolder(folder).delete()
    assert IndexFolder(folder).read_info().generation == 1


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


def interrupted(folder: Path, error: type[BaseException], *, replace: bool) -> None:
    with staging(folder, replace=replace) as stage:
        write(stage, 2.0)
        raise error


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_nothing_behind(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        interrupted(tmp_path / "root" / "digits", error, replace=False)
    assert list((tmp_path / "root").iterdir()) == []


def test_an_exception_leaves_the_previous_generation(folder: Path) -> None:
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(RuntimeError):
        interrupted(folder, RuntimeError, replace=True)
    assert sorted(folder.parent.rglob("*")) == before
    assert IndexFolder(folder).open().arrays["vectors"].tolist() == vectors(1.0).tolist()


def test_a_killed_build_is_swept(folder: Path) -> None:
    """What a dead builder leaves belongs to nobody: `sweep` removes it and frees the name."""
    before = sorted(folder.parent.rglob("*"))
    die_while_building(folder)
    die_while_building(folder.parent / "fresh")
    assert len(list(folder.parent.glob(".*.staging-*"))) == 2
    assert list_indexes(folder.parent) == ["digits"]
    assert sweep(folder.parent) == ["digits", "fresh"]
    assert sorted(folder.parent.rglob("*")) == before
    assert sweep(folder.parent) == []


def test_a_live_build_is_not_swept(tmp_path: Path) -> None:
    with staging(tmp_path / "digits", replace=False) as stage:
        write(stage)
        assert sweep(tmp_path) == []
        stage.publish(manifest())
    assert IndexFolder(tmp_path / "digits").read_info().rows == ROWS


def test_a_killed_build_does_not_block_the_next(folder: Path) -> None:
    die_while_building(folder)
    assert publish(folder, 2.0, replace=True) == 2
    assert sorted(p.name for p in folder.parent.iterdir()) == ["digits"]


def crash_after_rename(folder: Path) -> None:
    """Leave what a crash between the two renames of a publish leaves."""
    shutil.copytree(folder / "1", folder / "2")


def crash_before_pointer(folder: Path) -> None:
    """Leave what a crash in the middle of writing the pointer leaves."""
    crash_after_rename(folder)
    (folder / "CURRENT.new").write_text("2")


@pytest.mark.parametrize("crash", [crash_after_rename, crash_before_pointer])
def test_a_crash_before_the_pointer_moves_keeps_the_old(
    folder: Path, crash: Callable[[Path], None]
) -> None:
    """Until the pointer names it, a generation does not serve; the next build has its number."""
    crash(folder)
    assert IndexFolder(folder).read_info().generation == 1
    assert sweep(folder.parent) == ["digits"]
    assert sorted(p.name for p in folder.iterdir()) == ["1", "CURRENT"]
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
    assert sorted(p.name for p in folder.parent.iterdir()) == ["digits"]
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
    assert sorted(p.name for p in tmp_path.iterdir()) == ["digits"]


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


def test_the_lock_is_free_after_a_refusal(folder: Path) -> None:
    with pytest.raises(IndexExistsError), staging(folder, replace=False):
        pytest.fail("the block must not be entered")
    with staging(folder, replace=True):
        pass
    assert IndexFolder(folder).delete() == 1
