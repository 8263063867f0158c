"""A restored index has the points, answers and numbers of the index that was copied."""

import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest

from divgrpc import Collection, Index
from divgrpc.backup import restore_snapshot, snapshots, write_snapshot
from divgrpc.backup.capture import capture
from divgrpc.errors import (
    BuildUnderWayError,
    IndexChangedError,
    IndexDamagedError,
    IndexExistsError,
    InvalidArgumentError,
)
from divgrpc.storage.build_locks import build_lock
from divgrpc.storage.generations import IndexFolder, indexes_to_recover
from divgrpc.types import Progress, QueryDefault
from support.data.damaged_indexes import (
    LAST,
    MODELS,
    QUERIES,
    check_state,
    every_kind,
    flip,
    stamps,
    write,
)
from support.data.written_points import (
    a_collection,
    as_kind,
    check_points,
    kind_of,
    same_answers,
    same_stats,
)

_GOLDEN: Final = Path(__file__).parents[2] / "golden"
_GOLDEN_FOLDERS: Final = sorted(pointer.parent for pointer in _GOLDEN.rglob("CURRENT"))


def check_same(first: Index, second: Index) -> None:
    """Check that two indexes give the same answers, and name the same state."""
    queries = as_kind(QUERIES, kind_of(first))
    searches: tuple[dict[str, Any], ...] = ({}, {"search": "exact"})
    for options in searches:
        answers = [index.query(queries, k=6, **options) for index in (first, second)]
        assert same_answers(*answers)
        assert same_stats(*answers)
        assert answers[0].generation == answers[1].generation
        assert answers[0].sequence == answers[1].sequence


@every_kind
def test_a_restored_index_equals_the_original(index: Path, tmp_path: Path) -> None:
    before = stamps(index)
    (entry,) = write_snapshot(index, tmp_path / "points.tar")
    assert stamps(index) == before
    assert (entry.name, entry.generation, entry.sequence) == ("points", 1, LAST)
    assert restore_snapshot(tmp_path / "points.tar", tmp_path / "other") == [entry]
    copy = tmp_path / "other" / "points"
    assert not indexes_to_recover(tmp_path / "other")
    check_same(Index.open(index), Index.open(copy))
    check_points(Index.open(copy), MODELS[LAST])
    check_state(copy, LAST)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["points"]


def test_the_copy_of_a_copy_has_the_same_bytes(index: Path, tmp_path: Path) -> None:
    write_snapshot(index, tmp_path / "first.tar")
    write_snapshot(index.parent, tmp_path / "second.tar")
    restore_snapshot(tmp_path / "first.tar", tmp_path / "other")
    write_snapshot(tmp_path / "other", tmp_path / "third.tar")
    texts = [(tmp_path / f"{name}.tar").read_bytes() for name in ("first", "second", "third")]
    assert texts[0] == texts[1] == texts[2]


def test_tar_reads_a_snapshot(index: Path, tmp_path: Path) -> None:
    (entry,) = write_snapshot(index, tmp_path / "points.tar")
    with tarfile.open(tmp_path / "points.tar") as archive:
        members = {member.name: member.size for member in archive}
        file = archive.extractfile("points/SNAPSHOT.json")
        assert file is not None
        description = json.load(file)
    assert description["sequence"] == LAST
    files = {f"points/{name}": size for name, size in description["files"]}
    assert sum(files.values()) == entry.bytes
    assert members.keys() == files.keys() | {"points/SNAPSHOT.json", "SHA256"}


def test_writes_after_the_snapshot_are_not_in_it(index: Path, tmp_path: Path) -> None:
    write_snapshot(index, tmp_path / "points.tar")
    with Collection.open(index) as collection:
        write(collection, LAST + 1)
        collection.compact()
    restore_snapshot(tmp_path / "points.tar", tmp_path / "other")
    check_state(tmp_path / "other" / "points", LAST)


def test_a_data_directory_with_several_indexes(index: Path, tmp_path: Path) -> None:
    a_collection(index.parent / "boots", MODELS[0], "lsh_div").close()
    reports: list[Progress] = []
    entries = write_snapshot(index.parent, tmp_path / "all.tar", on_progress=reports.append)
    assert [(entry.name, entry.sequence) for entry in entries] == [("boots", 0), ("points", LAST)]
    assert {report.stage for report in reports} == {"copying boots", "copying points"}
    reports.clear()
    other = tmp_path / "other"
    assert restore_snapshot(tmp_path / "all.tar", other, on_progress=reports.append) == entries
    assert {report.stage for report in reports} == {"restoring boots", "restoring points"}
    for name in ("boots", "points"):
        check_same(Index.open(index.parent / name), Index.open(other / name))


def test_an_index_of_the_same_name_is_replaced_only_if_asked(index: Path, tmp_path: Path) -> None:
    a_collection(index.parent / "boots", MODELS[0], "lsh_div").close()
    write_snapshot(index.parent, tmp_path / "all.tar")
    other = tmp_path / "other"
    with a_collection(other / "points", MODELS[0]) as collection:
        write(collection, 1)
        before = stamps(other / "points")
        with pytest.raises(IndexExistsError, match="'points' exists"):
            restore_snapshot(tmp_path / "all.tar", other)
        # Nothing is restored, not even the index that does not exist.
        assert stamps(other / "points") == before
        assert [path.name for path in other.iterdir()] == ["points"]
        boots, points = restore_snapshot(tmp_path / "all.tar", other, replace=True)
        # Numbers only grow.
        assert (boots.generation, points.generation) == (1, 2)
        with pytest.raises(IndexChangedError):
            write(collection, 2)
    assert Index.open(other / "points").info.generation == 2
    check_state(other / "points", LAST)


def test_a_later_generation_keeps_its_number(tmp_path: Path) -> None:
    path = tmp_path / "data" / "points"
    for _ in range(3):
        a_collection(path, MODELS[0], replace=True).close()
    write_snapshot(path, tmp_path / "points.tar")
    other = tmp_path / "other"
    a_collection(other / "points", MODELS[1]).close()
    (entry,) = restore_snapshot(tmp_path / "points.tar", other, replace=True)
    assert entry.generation == Index.open(other / "points").info.generation == 3
    assert sorted(path.name for path in (other / "points").iterdir()) == ["3", "CURRENT"]


@pytest.mark.parametrize("folder", _GOLDEN_FOLDERS, ids=lambda folder: "-".join(folder.parts[-2:]))
@pytest.mark.parametrize("is_replaced", [False, True])
def test_every_older_format_is_restored(folder: Path, tmp_path: Path, *, is_replaced: bool) -> None:
    shutil.copytree(folder, tmp_path / "data" / "golden")
    write_snapshot(tmp_path / "data", tmp_path / "golden.tar")
    if is_replaced:
        shutil.copytree(folder, tmp_path / "other" / "golden")
    (entry,) = restore_snapshot(tmp_path / "golden.tar", tmp_path / "other", replace=is_replaced)
    restored = tmp_path / "other" / "golden" / str(entry.generation)
    original = folder / (folder / "CURRENT").read_text().strip()
    assert (restored.name == original.name) != is_replaced
    for path in original.iterdir():
        if path.name != "manifest.json":
            assert (restored / path.name).read_bytes() == path.read_bytes()
    texts = [json.loads((path / "manifest.json").read_bytes()) for path in (original, restored)]
    for text in texts:
        assert text.pop("generation") > 0
        assert text.pop("crc32") > 0
    assert texts[0] == texts[1]
    generations = [IndexFolder(path.parent).open() for path in (original, restored)]
    assert generations[0].defaults == generations[1].defaults


@pytest.mark.parametrize("is_replaced", [False, True])
def test_default_parameters_are_restored(tmp_path: Path, *, is_replaced: bool) -> None:
    path = tmp_path / "data" / "points"
    index = a_collection(path, MODELS[0])
    default = QueryDefault(0.6, "mmr", "corrected", "exact", 40, 25)
    IndexFolder(path).set_defaults(index.engine.manifest, query=default)
    index.close()
    write_snapshot(path, tmp_path / "points.tar")
    target = path.parent if is_replaced else tmp_path / "other"
    restore_snapshot(tmp_path / "points.tar", target, replace=is_replaced)
    assert Index.open(target / "points").info.query_default == default


def test_a_damaged_index_is_not_copied(index: Path, tmp_path: Path) -> None:
    for file in sorted(path for path in index.rglob("*") if path.suffix in (".npy", ".wal")):
        data = file.read_bytes()
        flip(file)
        with pytest.raises(IndexDamagedError, match="index 'points': "):
            write_snapshot(index, tmp_path / "points.tar")
        assert [path.name for path in tmp_path.iterdir()] == ["data"]
        file.write_bytes(data)
    write_snapshot(index, tmp_path / "points.tar")


def test_arguments_are_checked(index: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "none", index / "1"):
        with pytest.raises(InvalidArgumentError, match="folder of an index, got"):
            write_snapshot(folder, tmp_path / "points.tar")
    write_snapshot(index, tmp_path / "points.tar")
    before = (tmp_path / "points.tar").read_bytes()
    with pytest.raises(InvalidArgumentError, match="file exists already") as refusal:
        write_snapshot(index, tmp_path / "points.tar")
    assert refusal.value.field == "file"
    assert (tmp_path / "points.tar").read_bytes() == before
    with pytest.raises(InvalidArgumentError, match="file cannot be read") as refusal:
        restore_snapshot(tmp_path / "none.tar", tmp_path / "other")
    assert refusal.value.field == "file"
    (index.parent / "boots" / "1").mkdir(parents=True)
    shutil.copy(index / "1" / "manifest.json", index.parent / "boots" / "1")
    with pytest.raises(IndexDamagedError, match="'boots' lacks the file CURRENT"):
        write_snapshot(index.parent, tmp_path / "all.tar")


def test_links_and_files_of_others_are_left_alone(index: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "points.tar.new").symlink_to(tmp_path / "victim")
    write_snapshot(index, tmp_path / "points.tar")
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "points.tar.new").is_symlink()
    assert (tmp_path / "points.tar").stat().st_mode & 0o777 == 0o600


def test_a_file_in_the_way_keeps_all_indexes_from_being_restored(
    index: Path, tmp_path: Path
) -> None:
    a_collection(index.parent / "boots", MODELS[0], "lsh_div").close()
    write_snapshot(index.parent, tmp_path / "all.tar")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "points").write_text("a file")
    with pytest.raises(InvalidArgumentError, match="a file named points"):
        restore_snapshot(tmp_path / "all.tar", tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["points"]


def test_the_folder_of_an_index_is_no_data_directory(index: Path, tmp_path: Path) -> None:
    write_snapshot(index, tmp_path / "points.tar")
    before = stamps(index)
    with pytest.raises(InvalidArgumentError, match="is the folder of an index") as refusal:
        restore_snapshot(tmp_path / "points.tar", index)
    assert refusal.value.field == "folder"
    assert stamps(index) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_root_restores_for_the_owner_of_the_data_directory(index: Path, tmp_path: Path) -> None:
    write_snapshot(index, tmp_path / "points.tar")
    other = tmp_path / "other"
    other.mkdir()
    os.chown(other, 12_345, 12_346)
    restore_snapshot(tmp_path / "points.tar", other)
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in other.rglob("*")}
    assert owners == {(12_345, 12_346)}


def test_a_build_keeps_others_from_restoring(index: Path, tmp_path: Path) -> None:
    write_snapshot(index, tmp_path / "points.tar")
    with build_lock(index), pytest.raises(BuildUnderWayError):
        restore_snapshot(tmp_path / "points.tar", index.parent, replace=True)
    check_state(index, LAST)


def test_a_full_disk_leaves_nothing(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(Exception, match="no room left to store the snapshot"):
        write_snapshot(index, tmp_path / "points.tar")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    write_snapshot(index, tmp_path / "points.tar")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(Exception, match="no room left"):
        restore_snapshot(tmp_path / "points.tar", tmp_path / "other")
    assert list((tmp_path / "other").iterdir()) == []


def test_what_a_killed_snapshot_has_left_is_removed(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next snapshot of this name removes it, but neither what is being written nor others."""
    left, other = tmp_path / ".points.tar.abcdefgh", tmp_path / ".points.tar.notes"
    for path in (left, other):
        path.write_bytes(b"part")
    drafts: list[list[str]] = []

    def capture_beside(folder: IndexFolder) -> Any:  # noqa: ANN401  # as `capture` returns it
        drafts.append(sorted(path.name for path in tmp_path.glob(".points.tar.*")))
        if len(drafts) == 1:
            write_snapshot(index, tmp_path / "points.tar")
        return capture(folder)

    monkeypatch.setattr(snapshots, "capture", capture_beside)
    write_snapshot(index, tmp_path / "points.tar")
    assert [len(names) for names in drafts] == [2, 3]
    assert left.name not in drafts[0]
    assert set(drafts[0]) < set(drafts[1])
    assert sorted(path.name for path in tmp_path.glob(".points.tar.*")) == [other.name]
