"""Generations on disk: staged, published, checked, replaced, swept."""

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from divgrpc.errors import (
    BuildUnderWayError,
    IndexDamagedError,
    IndexExistsError,
    IndexNotFoundError,
    InvalidArgumentError,
    NewerFormatError,
    StorageInUseError,
)
from divgrpc.manifest import FORMAT_VERSION, Manifest
from divgrpc.parameters import BuildParameters
from divgrpc.storage import IndexFolder, Staging, list_indexes, lock_root, staging, sweep
from divgrpc.types import SearchCost, WarningInfo

ROWS, DIMS = 5, 3


def manifest() -> Manifest:
    """Describe a small index; number and arrays are filled in by publishing."""
    return Manifest(
        generation=0,
        rows=ROWS,
        dims=DIMS,
        points="dense",
        parameters=BuildParameters(n_tables=2, n_bits=8, n_components=3, seed=2**64 - 1),
        code_bits=64,
        n_probes=4,
        auto_search="scan",
        search_costs=(SearchCost("scan", 0.5, 1.25), SearchCost("exact", 1.0, 2.0)),
        warnings=(WarningInfo("CODE", "A sentence.", "field"),),
        arrays={},
    )


def vectors(fill: float) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.full((ROWS, DIMS), fill, np.float32)


def write(stage: Staging, fill: float = 1.0) -> None:
    """Write one array by appending and one in place."""
    stage.begin("vectors", np.float32, (DIMS,), rows=100)
    stage.append("vectors", vectors(fill)[:2])
    stage.append("vectors", vectors(fill)[2:])
    stage.create("codes", np.uint64, (1, ROWS))[:] = np.arange(ROWS, dtype=np.uint64)


def publish(folder: Path, fill: float = 1.0, *, replace: bool = False) -> int:
    with staging(folder, replace=replace) as stage:
        write(stage, fill)
        return stage.publish(manifest()).manifest.generation


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a published index."""
    path = tmp_path / "root" / "digits"
    publish(path)
    return path


def hold_lock(path: Path) -> None:
    """Die in the middle of a build."""
    with staging(path, replace=True) as stage:
        write(stage)
        os.kill(os.getpid(), signal.SIGKILL)


def die_while_building(path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=hold_lock, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


# Publishing.


def test_a_published_generation_reads_back(folder: Path) -> None:
    """What was written is what is read, from manifest to arrays, read-only."""
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
    """Any tool that reads .npy opens an array of an index."""
    loaded = np.load(folder / "1" / "vectors.npy", allow_pickle=False)
    assert loaded.tobytes() == vectors(1.0).tobytes()


def test_nothing_but_the_generation_and_the_pointer_is_left(folder: Path) -> None:
    """A build leaves neither staging nor lock behind."""
    assert sorted(p.name for p in folder.parent.iterdir()) == ["digits"]
    assert sorted(p.name for p in folder.iterdir()) == ["1", "CURRENT"]


def test_an_array_without_elements_reads_back(tmp_path: Path) -> None:
    """An array of no rows is stored and mapped like any other."""
    with staging(tmp_path / "digits", replace=False) as stage:
        write(stage)
        stage.begin("empty", np.int32, (4,))
        stage.publish(manifest())
    opened = IndexFolder(tmp_path / "digits").open().arrays["empty"]
    assert opened.shape == (0, 4)
    assert opened.dtype == np.int32


def test_generations_grow(folder: Path) -> None:
    """Each replacement has the next number, and the old one's files go."""
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
    """Building over an index takes the word for it."""
    with pytest.raises(IndexExistsError), staging(folder, replace=False):
        pytest.fail("the block must not be entered")
    assert IndexFolder(folder).read_info().generation == 1


@pytest.mark.parametrize("replace", [False, True])
def test_a_second_build_of_a_name_under_way_is_refused(tmp_path: Path, replace: bool) -> None:
    """One build of a name at a time; another name is free."""
    with staging(tmp_path / "digits", replace=False) as stage:
        write(stage)
        with pytest.raises(BuildUnderWayError), staging(tmp_path / "digits", replace=replace):
            pytest.fail("the block must not be entered")
        assert publish(tmp_path / "other") == 1
        assert stage.publish(manifest()).manifest.generation == 1


def test_deleting_during_a_build_is_refused(folder: Path) -> None:
    """The build that is under way decides what becomes of the name."""
    with staging(folder, replace=True), pytest.raises(BuildUnderWayError):
        IndexFolder(folder).delete()
    assert IndexFolder(folder).read_info().generation == 1


def test_a_root_has_one_owner(tmp_path: Path) -> None:
    """A second server of the same folder is told so, and may have it when the first is gone."""
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
    """Asking for what is not there says so, whatever stands in its place."""
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
    """A build that ends early is as if it had never begun."""
    with pytest.raises(error):
        interrupted(tmp_path / "root" / "digits", error, replace=False)
    assert list((tmp_path / "root").iterdir()) == []


def test_an_exception_leaves_the_previous_generation(folder: Path) -> None:
    """A replacement that ends early changes nothing."""
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
    """`sweep` leaves alone whatever somebody holds the lock of."""
    with staging(tmp_path / "digits", replace=False) as stage:
        write(stage)
        assert sweep(tmp_path) == []
        stage.publish(manifest())
    assert IndexFolder(tmp_path / "digits").read_info().rows == ROWS


def test_a_killed_build_does_not_block_the_next(folder: Path) -> None:
    """The lock dies with its holder; the next build sweeps and publishes."""
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
    """Deleting returns the last generation and leaves no trace; readers keep what they map."""
    publish(folder, 2.0, replace=True)
    old = IndexFolder(folder).open()
    assert IndexFolder(folder).delete() == 2
    assert list(folder.parent.iterdir()) == []
    assert old.arrays["vectors"].tolist() == vectors(2.0).tolist()


def test_indexes_are_listed_by_name(tmp_path: Path) -> None:
    """Only indexes are listed, in the order of their names."""
    for name in ("b", "a-1", "a"):
        publish(tmp_path / name)
    (tmp_path / "Not-A-Name").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    assert list_indexes(tmp_path) == ["a", "a-1", "b"]


# Damage.


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def refused(folder: Path) -> None:
    with pytest.raises(IndexDamagedError) as caught:
        IndexFolder(folder).open()
    assert str(folder.parent) not in str(caught.value)


@pytest.mark.parametrize("name", ["vectors", "codes"])
def test_a_flipped_bit_in_an_array_is_noticed(folder: Path, name: str) -> None:
    """Every byte of an array file, header and data, is checked when an index is opened."""
    path = folder / "1" / f"{name}.npy"
    whole = path.read_bytes()
    for position in range(len(whole)):
        flip(path, position, bit=position % 8)
        refused(folder)
        path.write_bytes(whole)
    IndexFolder(folder).open()


def test_a_flipped_bit_in_the_manifest_is_noticed(folder: Path) -> None:
    """Every byte of a manifest is checked, digits included, which still parse."""
    path = folder / "1" / "manifest.json"
    whole = path.read_bytes()
    truth = json.loads(whole)
    for position in range(len(whole)):
        flip(path, position, bit=position % 7)
        with contextlib.suppress(ValueError):
            if json.loads(path.read_bytes()) == truth:
                continue  # between two words; nothing is said differently
        with pytest.raises((IndexDamagedError, NewerFormatError)):
            IndexFolder(folder).open()
    path.write_bytes(whole)
    IndexFolder(folder).open()


@pytest.mark.parametrize("name", ["vectors.npy", "codes.npy", "manifest.json"])
@pytest.mark.parametrize("length", [0, 7, 64, -2])
def test_a_truncated_file_is_noticed(folder: Path, name: str, length: int) -> None:
    """A file that is short, by one byte or to nothing, is damage and no crash."""
    path = folder / "1" / name
    path.write_bytes(path.read_bytes()[:length])
    refused(folder)


@pytest.mark.parametrize("name", ["vectors.npy", "codes.npy", "manifest.json", "."])
def test_a_missing_file_is_noticed(folder: Path, name: str) -> None:
    """A generation that the pointer names and that is not whole is damage."""
    target = folder / "1" / name
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    refused(folder)


@pytest.mark.parametrize("text", ["", "one", "1.5", "-1", "../other", "1\n2\n", "\ufffd", "9"])
def test_a_damaged_pointer_is_noticed(folder: Path, text: str) -> None:
    """A pointer that names no generation is damage, whatever it says."""
    (folder / "CURRENT").write_text(text)
    refused(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"format": 1}', "\x00"])
def test_a_manifest_of_anything_else_is_damage(folder: Path, text: str) -> None:
    """What is not a manifest is said to be damaged."""
    (folder / "1" / "manifest.json").write_text(text)
    refused(folder)


def test_a_newer_format_is_named(folder: Path) -> None:
    """An index of a later version is not damaged: it is newer than this version reads."""
    path = folder / "1" / "manifest.json"
    later = {"format": "divgrpc-index", "format_version": FORMAT_VERSION + 1, "new": "things"}
    path.write_text(json.dumps(later))
    with pytest.raises(NewerFormatError, match=f"up to {FORMAT_VERSION}"):
        IndexFolder(folder).read_info()
    with pytest.raises(NewerFormatError):
        IndexFolder(folder).open()


def test_a_damaged_index_can_be_replaced_and_deleted(folder: Path) -> None:
    """Damage is no dead end: a new build takes the place, or the index goes."""
    flip(folder / "1" / "vectors.npy", -1)
    (folder / "1" / "manifest.json").write_text("{")
    assert publish(folder, 2.0, replace=True) == 2
    assert IndexFolder(folder).open().arrays["vectors"].tolist() == vectors(2.0).tolist()
    (folder / "CURRENT").write_text("nothing")
    assert publish(folder, 3.0, replace=True) == 3
    (folder / "3" / "manifest.json").unlink()
    assert IndexFolder(folder).delete() == 3
    assert list(folder.parent.iterdir()) == []


def test_names_outside_the_pattern_are_refused() -> None:
    """An index's name is what its folder may be called and nothing that leads elsewhere."""
    from divgrpc.parameters import check_index_name

    for name in ("", ".", "..", "../x", "a/b", "A", "-a", "_a", "a" * 64, "a\n", "a b", "ä", "a\0"):
        with pytest.raises(InvalidArgumentError) as caught:
            check_index_name(name)
        assert caught.value.field == "index"
        assert len(str(caught.value)) < 300
    for name in ("a", "0", "a-_9", "a" * 63):
        assert check_index_name(name) == name
