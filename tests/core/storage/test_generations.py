"""Generations of an index on disk: staged, published, replaced and swept."""

import contextlib
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

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
from divgrpc.storage.generations import (
    IndexFolder,
    indexes_without_pointer,
    list_indexes,
    lock_root,
    staging,
    sweep,
    write_pointer,
)
from support.data.small_index import (
    DIMS,
    ROWS,
    die_while_building,
    manifest,
    publish,
    vectors,
    write,
)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_published_generation_reads_back(folder: Path) -> None:
    assert (names_in(folder.parent), names_in(folder)) == (["digits"], ["1", "CURRENT"])
    generation = IndexFolder(folder).open()
    assert generation.arrays["vectors"].tolist() == vectors(1.0).tolist()
    assert generation.arrays["codes"].tolist() == [list(range(ROWS))]
    assert not any(array.flags.writeable for array in generation.arrays.values())
    file_array = np.load(folder / "1" / "vectors.npy", allow_pickle=False)
    assert file_array.tobytes() == vectors(1.0).tobytes()
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
    folder_place, pointer_place = (
        log.index(".digits.staging to 2"),
        log.index("CURRENT.new to CURRENT"),
    )
    assert {"vectors.npy", "codes.npy", "manifest.json", ".digits.staging"} == set(
        log[:folder_place]
    )
    assert log[folder_place + 1 : pointer_place] == ["digits", "CURRENT.new"]
    assert log[pointer_place + 1 :] == ["digits", folder.parent.name]


def test_disk_space_is_reserved_only_as_rows_arrive(tmp_path: Path) -> None:
    """Too many rows for the disk are refused at once, but space is reserved only as rows arrive."""
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
    array = IndexFolder(tmp_path / "digits").open().arrays["empty"]
    assert array.shape == (0, 4)
    assert array.dtype == np.int32
    assert not array.flags.writeable


def test_generation_numbers_increase(folder: Path) -> None:
    old = IndexFolder(folder).open()
    assert [publish(folder, float(n), replace=True) for n in range(2, 5)] == [2, 3, 4]
    assert names_in(folder) == ["4", "CURRENT"]
    assert old.arrays["vectors"].tolist() == vectors(1.0).tolist()
    assert IndexFolder(folder).open().arrays["vectors"].tolist() == vectors(4.0).tolist()


def test_the_pointer_stamp_changes_with_every_publish(folder: Path) -> None:
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


def test_an_existing_name_is_refused_without_replace(folder: Path) -> None:
    """The refused build leaves no lock behind."""
    with pytest.raises(IndexExistsError), staging(folder, replace=False):
        pytest.fail("the block must not be entered")
    with staging(folder, replace=True), pytest.raises(BuildUnderWayError):
        IndexFolder(folder).delete()
    assert IndexFolder(folder).read_info().generation == 1
    assert IndexFolder(folder).delete() == 1


@pytest.mark.parametrize("replace", [False, True])
def test_a_second_build_of_the_same_name_is_refused(tmp_path: Path, replace: bool) -> None:
    """Indexes of other names can be built meanwhile, and `sweep` skips names that are locked."""
    with staging(tmp_path / "digits", replace=False) as stage:
        write(stage)
        with pytest.raises(BuildUnderWayError), staging(tmp_path / "digits", replace=replace):
            pytest.fail("the block must not be entered")
        assert publish(tmp_path / "other") == 1
        assert sweep(tmp_path) == []
        assert stage.publish(manifest()).manifest.generation == 1


def test_a_root_folder_can_be_locked_once(tmp_path: Path) -> None:
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


def test_files_of_a_killed_build_are_removed(folder: Path) -> None:
    """The lock of a killed process is released, so `sweep` or the next build removes its files."""
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
def test_a_crash_before_the_pointer_moves_keeps_the_old_generation(
    folder: Path, pointer: bool
) -> None:
    """The next build uses the number of the unpublished generation again."""
    shutil.copytree(folder / "1", folder / "2")
    if pointer:
        (folder / "CURRENT.new").write_text("2")
    assert IndexFolder(folder).read_info().generation == 1
    assert sweep(folder.parent) == ["digits"]
    assert names_in(folder) == ["1", "CURRENT"]
    assert publish(folder, 2.0, replace=True) == 2


def test_a_first_build_that_crashed_before_the_pointer_is_no_index(folder: Path) -> None:
    """A folder without a pointer is not listed as an index and does not prevent a build."""
    (folder / "CURRENT").unlink()
    assert list_indexes(folder.parent) == []
    with pytest.raises(IndexNotFoundError):
        IndexFolder(folder).open()
    assert publish(folder, 2.0) == 2
    assert names_in(folder) == ["2", "CURRENT"]


def test_a_generation_outlives_its_pointer(folder: Path) -> None:
    """`sweep` cannot tell a lost pointer from a first build that crashed."""
    assert indexes_without_pointer(folder.parent) == []
    (folder / "CURRENT").rename(folder / "CURRENT.new")
    (folder.parent / "other" / "1").mkdir(parents=True)
    (folder.parent / "file").touch()
    assert sweep(folder.parent) == ["other"]
    assert names_in(folder.parent) == ["digits", "file"]
    assert names_in(folder) == ["1"]
    assert indexes_without_pointer(folder.parent) == ["digits"]
    write_pointer(folder, 1)
    assert IndexFolder(folder).open().arrays["vectors"].tolist() == vectors(1.0).tolist()
    assert indexes_without_pointer(folder.parent) == []


@pytest.mark.parametrize("call", ["rename", "rmtree"])
def test_an_interrupted_deletion_leaves_the_index_or_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def crash(*_arguments: object, **_options: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os if call == "rename" else shutil, call, crash)
        with pytest.raises(KeyboardInterrupt):
            IndexFolder(folder).delete()
    if call == "rename":
        assert IndexFolder(folder).open().arrays["vectors"].tolist() == vectors(1.0).tolist()
    else:
        assert IndexFolder(folder).pointer_stamp() is None
        assert sweep(folder.parent) == ["digits"]
        assert names_in(folder.parent) == []


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


def test_invalid_index_names_are_refused() -> None:
    for name in ("", ".", "..", "../x", "a/b", "A", "-a", "_a", "a" * 64, "a\n", "a b", "ä", "a\0"):
        with pytest.raises(InvalidArgumentError) as error_info:
            check_index_name(name)
        assert error_info.value.field == "index"
        assert len(str(error_info.value)) < 300
    for name in ("a", "0", "a-_9", "a" * 63):
        assert check_index_name(name) == name


def until(stop: threading.Event, act: Callable[[], object]) -> int:
    """Call a function repeatedly, at least once, and return the number of calls."""
    times = 0
    while not times or not stop.is_set():
        act()
        times += 1
    return times


def run_beside(work: Callable[[], object], *functions: Callable[[], object]) -> None:
    """Run `work` while threads repeat the other functions; raise any of their exceptions."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(functions)) as pool:
        futures = [pool.submit(until, stop, function) for function in functions]
        try:
            work()
        finally:
            stop.set()
        for future in futures:
            future.result()


def read_whole(folder: Path) -> tuple[int, float]:
    """Open an index, and return its generation and the value that all its vectors have."""
    generation = IndexFolder(folder).open()
    fill = float(generation.arrays["vectors"][0, 0])
    assert (generation.arrays["vectors"] == fill).all()
    return generation.manifest.generation, fill


def test_readers_never_see_a_half_published_generation(folder: Path) -> None:
    """An index opened during a replacement is entirely the old or entirely the new generation."""
    numbers: list[int] = []

    def read() -> None:
        number, fill = read_whole(folder)
        assert fill == number
        numbers.append(number)

    def replace() -> None:
        for number in range(2, 32):
            assert publish(folder, float(number), replace=True) == number

    run_beside(replace, read, read, lambda: IndexFolder(folder).read_info())
    assert set(numbers) <= set(range(1, 32))
    assert len(set(numbers)) > 1


def test_sweeping_disturbs_neither_builders_nor_readers(folder: Path) -> None:
    """`sweep` locks each name for a moment, so a build may be refused and is tried again."""

    def replace_often() -> None:
        generation = 1
        while generation < 21:
            with contextlib.suppress(BuildUnderWayError):
                generation = publish(folder, 1.0, replace=True)

    run_beside(
        replace_often,
        lambda: sweep(folder.parent),
        lambda: IndexFolder(folder).open(),
        lambda: list_indexes(folder.parent),
    )
    assert names_in(folder.parent) == ["digits"]
    assert IndexFolder(folder).read_info().generation == 21


def test_only_one_of_several_simultaneous_builds_succeeds(tmp_path: Path) -> None:
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


def test_readers_during_deletions_see_a_whole_index_or_none(folder: Path) -> None:
    def read() -> None:
        with contextlib.suppress(IndexNotFoundError):
            read_whole(folder)

    def delete_and_build() -> None:
        for number in range(60):
            IndexFolder(folder).delete()
            publish(folder, float(number))

    run_beside(delete_and_build, read, read, lambda: list_indexes(folder.parent))
