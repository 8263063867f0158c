"""The doctor names each file that is damaged, and leaves all files as they are."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from divgrpc import Collection, Index
from divgrpc.doctor import Report, check_folder, files
from divgrpc.errors import BuildUnderWayError, InvalidArgumentError, StorageInUseError
from divgrpc.storage.generations import lock_root, staging
from divgrpc.types import QueryDefault
from support.data.damaged_indexes import DAMAGES, LAST, MODELS, every_kind, flip, stamps, write
from support.data.small_index import die_while_building
from support.data.written_points import a_collection

GOLDEN = Path(__file__).parent.parent.parent / "golden"


def check(index: Path) -> Report:
    """Check an index, and that the check changes no file."""
    before = stamps(index.parent)
    (report,) = check_folder(index)
    assert stamps(index.parent) == before
    return report


def golden_indexes() -> Iterator[Path]:
    yield from (pointer.parent for pointer in sorted(GOLDEN.rglob("CURRENT")))


def test_indexes_of_all_formats_are_ok(tmp_path: Path) -> None:
    for number, folder in enumerate(golden_indexes()):
        shutil.copytree(folder, tmp_path / f"{number}-{folder.name}")
    before = stamps(tmp_path)
    sizes: list[int] = []
    reports = check_folder(tmp_path, on_progress=lambda p: sizes.append(p.rows_total))
    assert len(reports) > 20
    assert sizes
    assert [(report.name, report.findings) for report in reports if report.findings] == []
    for report in reports:
        assert report.verdict == "ok"
        assert report.points == Index.open(tmp_path / report.name).rows
    assert stamps(tmp_path) == before


@every_kind
def test_an_index_with_writes_is_ok(index: Path) -> None:
    report = check(index)
    assert report == Report("points", 1, len(MODELS[LAST]), LAST)
    assert report.verdict == "ok"
    assert check_folder(index.parent) == [report]
    with Collection.open(index) as collection:
        collection.compact()
    assert check(index) == report


@every_kind
def test_an_index_after_a_vacuum_and_a_retraining_is_ok(index: Path) -> None:
    with Collection.open(index) as collection:
        collection.compact(vacuum=True)
    assert check(index) == Report("points", 2, len(MODELS[LAST]), LAST)
    with Collection.open(index) as collection:
        write(collection, LAST + 1)
    assert check(index) == Report("points", 2, len(MODELS[LAST + 1]), LAST + 1)
    with Collection.open(index) as collection:
        assert collection.retrain()
    assert check(index) == Report("points", 3, len(MODELS[LAST + 1]), LAST + 1)


def test_an_index_without_points_is_ok(index: Path) -> None:
    with Collection.open(index) as collection:
        collection.delete(list(MODELS[LAST]))
    assert check(index) == Report("points", 1, 0, LAST + 1)


def test_an_index_without_writes_is_ok(tmp_path: Path) -> None:
    a_collection(tmp_path / "points", MODELS[0]).close()
    assert check(tmp_path / "points") == Report("points", 1, len(MODELS[0]))


@every_kind
def test_each_damaged_file_is_named(index: Path) -> None:
    paths = [path for path in sorted(index.rglob("*")) if path.is_file()]
    kinds = {path.relative_to(index / "1").parts[0] for path in paths if path.parent != index}
    assert {"writes", "manifest.json"} <= kinds
    assert {"vectors.npy", "values.npy"} & kinds
    for file in paths:
        if file.name == "LOCK":
            continue
        whole = file.read_bytes()
        for damage, make in DAMAGES.items():
            # The first has a test of its own. The second removes only the end of a line.
            if (damage, file.name) in {("flip", "PUBLISHED"), ("cut", "CURRENT")}:
                continue
            make(file)
            (report,) = check_folder(index)
            names = {finding.file for finding in report.findings}
            # A finding about a log without files names its folder.
            expected = file.parent if (damage, file.suffix) == ("remove", ".wal") else file
            assert str(expected.relative_to(index.parent)) in names, (file, damage)
            assert report.verdict != "ok"
            file.write_bytes(whole)
    assert check(index).verdict == "ok"


@pytest.mark.parametrize("number", [*range(6), 7])
def test_each_number_of_the_last_writer_is_compared(index: Path, number: int) -> None:
    """The seventh number names the start of the system; another one makes the others void."""
    file = index / "1" / "writes" / "PUBLISHED"
    whole = file.read_bytes()
    for bit in (1, 2, 16):
        data = bytearray(whole)
        data[8 * number] ^= bit
        file.write_bytes(data)
        report = check(index)
        (finding,) = report.findings
        is_greater_sequence = number == 0 and int.from_bytes(data[:8], "little") > LAST
        if is_greater_sequence:
            assert (finding.severity, report.points) == ("lossy", len(MODELS[LAST]))
            assert "PUBLISHED says that there were more" in finding.problem
        else:
            assert (finding.file, finding.severity) == ("points/1/writes/PUBLISHED", "repairable")
    (report,) = check_folder(index, repair=True, accept_loss=True)
    assert (report.verdict, report.points) == ("ok", len(MODELS[LAST]))
    assert file.read_bytes() == whole


def test_damaged_defaults_are_named(index: Path) -> None:
    Index.open(index).set_default(QueryDefault(0.2, "greedy", "corrected", "exact"))
    assert check(index).verdict == "ok"
    flip(index / "1.default.json")
    (finding,) = check(index).findings
    assert (finding.file, finding.severity) == ("points/1.default.json", "lossy")


def test_a_disk_that_cannot_be_read_is_damage(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    log = next((index / "1" / "writes" / "log").iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(files, "checksum_in_file", fail)
        (report,) = check_folder(index)
    assert report.verdict == "damaged"
    assert {finding.problem for finding in report.findings} >= {"array codes cannot be read"}
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda p: fail() if p == log else read_bytes(p))
    (report,) = check_folder(index)
    (finding,) = report.findings
    assert finding.file == str(log.relative_to(index.parent))
    assert finding.problem == f"cannot be read ({os.strerror(errno.EIO)})"
    assert (finding.severity, report.points) == ("lossy", None)


@pytest.mark.parametrize("name", ["codes.npy", "LAYOUT", "1.default.json", "*.wal"])
def test_a_file_of_another_user_is_not_damage(
    index: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    Index.open(index).set_default(QueryDefault(0.2, "greedy", "corrected", "exact"))
    file = next(path for path in sorted(index.rglob(name)))
    open_file, read_bytes = Path.open, Path.read_bytes

    def fail_for_file(path: Path) -> Path:
        if path == file:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return path

    monkeypatch.setattr(Path, "open", lambda p, *a, **o: open_file(fail_for_file(p), *a, **o))
    monkeypatch.setattr(Path, "read_bytes", lambda p: read_bytes(fail_for_file(p)))
    (report,) = check_folder(index, repair=True, accept_loss=True)
    (finding,) = report.findings
    assert (report.verdict, report.repairs) == ("unchecked", ())
    assert finding.file == str((file.parent if name == "*.wal" else file).relative_to(index.parent))
    assert finding.meaning.endswith("Run the command as the user who wrote the index.")
    assert not finding.repair


def test_a_later_format_is_not_damage(index: Path) -> None:
    path = index / "1" / "manifest.json"
    path.write_text('{"format": "divgrpc-index", "format_version": 99}')
    report = check(index)
    assert report.verdict == "unchecked"
    assert "format 99" in report.findings[0].problem


def test_a_folder_in_use_is_refused(index: Path) -> None:
    root = index.parent
    for repair in (False, True):
        for folder in (root, index):
            with (
                lock_root(root),
                pytest.raises(StorageInUseError, match="server or `divgrpc doctor` uses this data"),
            ):
                check_folder(folder, repair=repair)
            with (
                Collection.open(index) as collection,
                pytest.raises(StorageInUseError, match="'points' is open for writing"),
            ):
                check_folder(folder, repair=repair)
            assert collection.sequence == LAST
            with (
                staging(index, replace=True),
                pytest.raises(BuildUnderWayError, match="build of index 'points'"),
            ):
                check_folder(folder, repair=repair)
    assert check(index).verdict == "ok"


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path, tmp_path / "absent", tmp_path / "notes.txt"):
        with pytest.raises(InvalidArgumentError, match="must be a data folder or the folder of"):
            check_folder(folder, repair=True)
    (tmp_path / ".lock").touch()
    assert check_folder(tmp_path, repair=True) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "empty", "notes.txt"]


def test_leftovers_of_a_killed_build_are_removed(index: Path) -> None:
    root = index.parent
    die_while_building(root / "first")
    die_while_building(index)
    (index / "7").mkdir()
    (index / "CURRENT.new").write_text("7\n")
    (index / "7.default.json").write_text("{}")
    first, report = check_folder(root)
    assert (first.name, first.verdict, report.verdict) == ("first", "repairable", "repairable")
    names = {finding.file.partition("staging-")[0] for finding in report.findings}
    expected = {".points.", ".points.lock", "points/7", "points/CURRENT.new"}
    assert names == expected | {"points/7.default.json"}
    assert all(finding.severity == "repairable" for finding in (*first.findings, *report.findings))
    first, report = check_folder(root, repair=True)
    assert (first.verdict, report.verdict) == ("ok", "ok")
    assert report.repairs
    names = {path.name for path in root.iterdir()}
    assert names == {"points", ".lock"}
    assert sorted(path.name for path in index.iterdir()) == ["1", "CURRENT"]
    assert check(index) == Report("points", 1, len(MODELS[LAST]), LAST)


def test_leftovers_of_an_interrupted_first_write_are_removed(tmp_path: Path) -> None:
    index = tmp_path / "points"
    a_collection(index, MODELS[0]).close()
    writes = index / "1" / "writes"
    for name in ("layouts/1", "parts", "log"):
        (writes / name).mkdir(parents=True)
    (writes / "LAYOUT.new").write_bytes(b"x")
    (writes / "log" / "00000000000000000001.new").write_bytes(b"x")
    report = check(index)
    assert report.verdict == "repairable"
    assert len(report.findings) == 3
    (report,) = check_folder(index, repair=True)
    assert report.verdict == "ok"
    assert [path.name for path in writes.rglob("*") if path.name.endswith(("1", ".new"))] == []
    with Collection.open(index) as collection:
        write(collection, 1)
    assert check(index) == Report("points", 1, len(MODELS[1]), 1)
