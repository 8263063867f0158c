"""A repair keeps all valid records, names lost writes, and puts damaged files aside."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from divgrpc import Collection, Index
from divgrpc.doctor import Report, check_folder
from divgrpc.errors import ConditionFailedError, DivgrpcError, IndexDamagedError
from divgrpc.storage.arrays import HEADER_BYTES
from divgrpc.types import QueryDefault
from divgrpc.writes import layout
from divgrpc.writes.log import entries
from support.data.damaged_indexes import (
    DAMAGES,
    LAST,
    MERGED,
    MODELS,
    QUERIES,
    check_state,
    cut,
    every_kind,
    flip,
    stamps,
    write,
    written_index,
)
from support.data.small_index import die_while_building
from support.data.written_points import DIMS, a_collection, as_kind, kind_of, upsert


def repaired(index: Path, *, accept_loss: bool = False) -> Report:
    """Repair an index; check that the second check agrees with a check that changes nothing."""
    (report,) = check_folder(index, repair=True, accept_loss=accept_loss)
    (again,) = check_folder(index)
    assert again.findings == report.findings
    return report


def check_refused(index: Path) -> Report:
    """Check that a repair without `accept_loss` changes nothing, and return its report."""
    before = stamps(index)
    report = repaired(index)
    assert stamps(index) == before
    assert report.verdict == "damaged"
    assert report.repairs == ()
    return report


def check_refuses_to_open(index: Path, message: str) -> None:
    """Check that neither readers nor a writer open an index, and that they change no log."""
    before = stamps(index / "1" / "writes" / "log")
    for kind in (Index, Collection):
        with pytest.raises(IndexDamagedError, match=message):
            kind.open(index)
    assert stamps(index / "1" / "writes" / "log") == before


def log_file(index: Path) -> Path:
    return sorted((index / "1" / "writes" / "log").glob("*.wal"))[-1]


def offsets(file: Path) -> dict[int, tuple[int, int]]:
    """Return the first offset of each record of a log file, and the offset behind it."""
    begin, result = 0, {}
    for entry in entries(file.read_bytes(), int(file.stem)):
        result[entry.sequence] = (begin, entry.end)
        begin = entry.end
    return result


def flip_at(file: Path, offset: int) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 4
    file.write_bytes(data)


def files_aside(index: Path) -> list[str]:
    return sorted(str(p.relative_to(index)) for p in index.rglob("*.damaged"))


@every_kind
def test_files_of_merges_are_made_again_from_the_log(index: Path, tmp_path: Path) -> None:
    writes = index / "1" / "writes"
    queries = as_kind(QUERIES, kind_of(Index.open(index)))
    expected = Index.open(index).query(queries, k=5, search="tables")
    files = [*writes.rglob("layouts/*/*.npy"), *writes.rglob("parts/*/*.npy"), writes / "LAYOUT"]
    assert len(files) > 12
    # Every fourth file, and all hash tables.
    files = [f for number, f in enumerate(files) if not number % 4 or f.name.startswith("table_")]
    for number, file in enumerate(files):
        copy = tmp_path / "copies" / f"points{number}"
        shutil.copytree(index, copy)
        DAMAGES[[*DAMAGES][number % 3]](copy / file.relative_to(index))
        report = repaired(copy)
        assert report.repairs
        assert (report.verdict, report.sequence) == ("ok", LAST), file
        result = Index.open(copy).query(queries, k=5, search="tables")
        assert result.ids.tolist() == expected.ids.tolist()
        assert result.scores.tobytes() == expected.scores.tobytes()
        if not number:
            check_state(copy, LAST)


def test_a_log_of_more_rows_than_a_layout_has_room_is_merged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "_LATER_ROWS_MIN", 20)
    index = tmp_path / "points"
    with a_collection(index, MODELS[0]) as collection:
        for number in range(1, 30):
            names = range(10 * number, 10 * number + 10)
            points = {name: MODELS[0][name % 40] for name in names}
            upsert(collection, points)
        expected = len(collection)
    flip(next((index / "1" / "writes").rglob("codes.npy")))
    report = repaired(index)
    assert (report.verdict, report.points, report.sequence) == ("ok", expected, 29)
    with Collection.open(index) as collection:
        assert len(collection) == expected
        assert upsert(collection, {1: MODELS[0][1]}) == 30


def values_before(index: Path, row: int) -> int:
    """Return the number of values of the sparse rows before `row`."""
    with Collection.open(index) as collection:
        state = collection.committer.state
        assert state is not None
        return int(state.layout.arrays["indptr"][row])


@pytest.mark.parametrize("name", ["indices", "values"])
def test_sparse_rows_are_taken_from_the_log(tmp_path: Path, name: str) -> None:
    index = written_index(tmp_path / "data" / "points", "cells", "sparse")
    places = {row: HEADER_BYTES + 4 * values_before(index, row) for row in (41, 49, 50)}
    file = index / "1" / f"{name}.npy"
    flip_at(file, places[41])
    (finding,) = check_folder(index)[0].findings
    assert finding.file == f"points/1/{name}.npy"
    assert "in rows 40 to 47" in finding.problem
    assert repaired(index).verdict == "ok"
    flip_at(file, places[49])
    (report,) = check_folder(index)
    assert [f.problem for f in report.findings] == ["lacks vectors of 1 write of the log"]
    assert repaired(index).verdict == "ok"
    os.truncate(file, places[50])
    (report,) = check_folder(index)
    assert "is shorter than the layout needs" in report.findings[0].problem
    assert repaired(index).verdict == "ok"
    check_state(index, LAST)


def test_merged_vectors_are_taken_from_the_log(index: Path) -> None:
    vectors = index / "1" / "vectors.npy"
    flip_at(vectors, HEADER_BYTES + 4 * DIMS * 41)
    (finding,) = check_folder(index)[0].findings
    assert finding.file == "points/1/vectors.npy"
    assert "in rows 40 to 47" in finding.problem
    assert repaired(index).verdict == "ok"
    check_state(index, LAST)


def test_later_vectors_are_taken_from_the_log(index: Path) -> None:
    vectors = index / "1" / "vectors.npy"
    flip_at(vectors, HEADER_BYTES + 4 * DIMS * 49)
    (report,) = check_folder(index)
    assert [f.problem for f in report.findings] == ["lacks vectors of 1 write of the log"]
    assert repaired(index).verdict == "ok"
    os.truncate(vectors, HEADER_BYTES + 4 * DIMS * 50)
    (report,) = check_folder(index)
    assert "is shorter than the layout needs" in report.findings[0].problem
    assert repaired(index).verdict == "ok"
    check_state(index, LAST)


def test_sparse_rows_of_the_build_are_left_without_writes(tmp_path: Path) -> None:
    index = written_index(tmp_path / "data" / "points", "cells", "sparse")
    files = [index / "1" / f"{name}.npy" for name in ("indices", "values")]
    later = [file.read_bytes() for file in files]
    log_file(index).unlink()
    flip(index / "1" / "writes" / "LAYOUT")
    report = repaired(index, accept_loss=True)
    assert (report.verdict, report.points, report.sequence) == ("ok", len(MODELS[0]), None)
    for file, data in zip(files, later, strict=True):
        assert (index / "1" / "writes.damaged" / file.name).read_bytes() == data
        assert len(file.read_bytes()) < len(data)
    check_state(index, 0)


def test_a_layout_without_a_whole_log_falls_back_to_the_build(index_with_short_log: Path) -> None:
    index = index_with_short_log
    assert check_folder(index)[0].findings == ()
    flip(index / "1" / "writes" / "LAYOUT")
    (finding,) = check_refused(index).findings
    assert f"loses all writes, up to number {LAST}, since" in finding.meaning
    later_vectors = (index / "1" / "vectors.npy").read_bytes()
    report = repaired(index, accept_loss=True)
    assert (report.verdict, report.points, report.sequence) == ("ok", len(MODELS[0]), None)
    aside = index / "1" / "writes.damaged"
    assert (aside / "vectors.npy").read_bytes() == later_vectors
    assert {"LAYOUT", "layouts", "parts", "log"} <= {path.name for path in aside.iterdir()}
    assert [path.name for path in index.parent.iterdir()] == ["points"]
    check_state(index, 0)


def test_a_damaged_record_ends_the_log(index: Path) -> None:
    """Each flip of a record is harmless if it was merged, and loses later writes if it was not."""
    file = log_file(index)
    whole, places = file.read_bytes(), offsets(file)
    for number, (begin, end) in places.items():
        offset = begin + 3 * number if number % 2 else end - 30
        copy = index.parent / "copy"
        shutil.copytree(index, copy)
        flip_at(log_file(copy), offset)
        (report,) = check_folder(copy)
        (finding,) = report.findings
        assert finding.file.endswith(file.name)
        if number > MERGED:
            assert finding.severity == "lossy"
            several = f"writes {number} to {LAST} were"
            assert (f"write {number} was" if number == LAST else several) in finding.meaning
            message = f"damaged at record {number}"
            check_refuses_to_open(copy, message if number < LAST else f"lacks record {LAST}, a")
            if number < LAST:
                assert finding.problem == f"the log is damaged at record {number}"
                assert f" {number - 1 - MERGED} write" in finding.meaning
            check_refused(copy)
        else:
            assert finding.severity == "repairable"
        last = number - 1 if number > MERGED else LAST
        report = repaired(copy, accept_loss=True)
        assert (report.verdict, report.sequence) == ("ok", last)
        aside = copy / "1" / "writes" / "log" / f"{file.name}.damaged"
        assert aside.read_bytes() != whole
        assert len(aside.read_bytes()) == len(whole)
        if number in (2, 7, LAST):
            check_state(copy, last)
        shutil.rmtree(copy)


def test_the_meaning_of_a_damaged_record_has_the_counts(index: Path) -> None:
    file = log_file(index)
    begin, _ = offsets(file)[6]
    flip_at(file, begin + 30)
    (finding,) = check_folder(index)[0].findings
    assert finding.meaning == (
        "The index does not open. Between the last merge and the damage, the log has 2 writes (8"
        " points), which can be kept. Behind the damage it has 3 writes (11 points), which cannot"
        " be applied. PUBLISHED says that writes 6 to 9 were made: they are lost, unless a backup"
        " has them."
    )


def test_a_torn_record_is_cut(index: Path) -> None:
    file = log_file(index)
    _, end = offsets(file)[LAST]
    data = bytearray(file.read_bytes())
    data[end : end + 40] = b"\x01" * 40
    file.write_bytes(data)
    (finding,) = check_folder(index)[0].findings
    assert (finding.severity, finding.file) == ("repairable", f"points/1/writes/log/{file.name}")
    assert finding.problem == "record 10 was not written in full (40 bytes)"
    assert repaired(index).verdict == "ok"
    assert file.read_bytes()[end:] == bytes(len(data) - end)
    assert files_aside(index) == []
    check_state(index, LAST)


def test_a_missing_file_of_the_log_is_a_gap(index_with_short_log: Path) -> None:
    index = index_with_short_log
    first, second = sorted((index / "1" / "writes" / "log").glob("*.wal"))
    assert (int(first.stem), int(second.stem)) == (MERGED + 1, MERGED + 2)
    first.unlink()
    (finding,) = check_refused(index).findings
    assert finding.file == "points/1/writes/log"
    assert finding.problem == f"lacks the file with record {MERGED + 1}"
    report = repaired(index, accept_loss=True)
    assert (report.verdict, report.sequence) == ("ok", MERGED)
    assert files_aside(index) == [f"1/writes/log/{second.name}.damaged"]
    check_state(index, MERGED)


def test_the_end_of_the_log_is_missed(index_with_short_log: Path) -> None:
    index = index_with_short_log
    log_file(index).unlink()
    (finding,) = check_refused(index).findings
    assert f"writes {MERGED + 2} to {LAST} were made: they are lost" in finding.meaning
    check_refuses_to_open(index, f"lacks record {MERGED + 2}, a write that had returned; `divgrpc")
    report = repaired(index, accept_loss=True)
    assert (report.verdict, report.sequence) == ("ok", MERGED + 1)
    check_state(index, MERGED + 1)


def test_a_lost_layout_costs_points_without_a_vector(tmp_path: Path) -> None:
    """Neither the arrays of Build nor the log have them, unless they were written again."""
    path = tmp_path / "points"
    vectors = [None if row % 3 == 0 else np.full(4, row, np.float32) for row in range(30)]
    Index.build(vectors, path=path, vectors_optional=True)
    with Collection.open(path) as collection:
        collection.upsert([0, 1], [None, np.ones(4, np.float32)])
    (path / "1" / "writes" / "LAYOUT").unlink()
    (report,) = check_folder(path, repair=True)
    assert report.verdict == "damaged"
    assert "not the points without a vector that the last build had" in report.findings[0].meaning
    (report,) = check_folder(path, repair=True, accept_loss=True)
    assert report.verdict == "ok"
    with Collection.open(path) as collection:
        assert (len(collection), collection.sequence) == (21, 1)


def test_a_lost_layout_of_a_build_costs_points_without_a_vector(tmp_path: Path) -> None:
    """It is missed although nothing was written."""
    path = tmp_path / "points"
    vectors = [None if row % 3 == 0 else np.full(4, row, np.float32) for row in range(30)]
    Index.build(vectors, path=path, vectors_optional=True)
    (path / "1" / "writes" / "LAYOUT").unlink()
    check_refuses_to_open(path, "the layout of the writes is missing; `divgrpc doctor` says")
    (report,) = check_folder(path, repair=True)
    assert report.verdict == "damaged"
    assert "not the points without a vector that the last build had" in report.findings[0].meaning
    (report,) = check_folder(path, repair=True, accept_loss=True)
    assert report.verdict == "ok"
    assert len(Index.open(path)) == 20


def test_a_lost_layout_without_writes_costs_nothing(tmp_path: Path) -> None:
    """A first write makes it, also one that is refused."""
    path = tmp_path / "points"
    Index.build(np.eye(4, dtype=np.float32), path=path)
    with Collection.open(path) as collection, pytest.raises(ConditionFailedError):
        collection.upsert([0], np.eye(1, 4), mode="insert_only")
    (path / "1" / "writes" / "LAYOUT").unlink()
    (report,) = check_folder(path, repair=True)
    assert (report.verdict, report.points) == ("ok", 4)


def test_a_lost_layout_is_made_again(index: Path) -> None:
    (index / "1" / "writes" / "LAYOUT").unlink()
    (finding,) = check_folder(index)[0].findings
    assert finding.problem == "the layout is missing"
    check_refuses_to_open(index, "the layout of the writes is missing; `divgrpc doctor` says")
    assert repaired(index).verdict == "ok"
    check_state(index, LAST)


def test_the_log_after_a_vacuum_is_not_whole(index: Path) -> None:
    with Collection.open(index) as collection:
        collection.compact(vacuum=True)
        write(collection, LAST + 1)
    cut(next((index / "2" / "writes").rglob("ids.npy")))
    check_refused(index)
    report = repaired(index, accept_loss=True)
    assert (report.verdict, report.points) == ("ok", len(MODELS[LAST]))


def test_a_lost_pointer_is_written_again(index: Path) -> None:
    pointer = index / "CURRENT"
    for text in (None, "nonsense"):
        pointer.unlink()
        if text is not None:
            pointer.write_text(text)
        (report,) = check_folder(index.parent)
        assert (report.verdict, report.generation) == ("repairable", 1)
        (finding,) = report.findings
        assert finding.file == "points/CURRENT"
        report = repaired(index)
        assert (report.verdict, report.sequence) == ("ok", LAST)
    assert files_aside(index) == ["CURRENT.damaged"]
    check_state(index, LAST)


def test_an_older_generation_that_is_whole_is_used(index: Path) -> None:
    """A crash may leave the generation before the current one."""
    path = index.parent / "other"
    a_collection(path, MODELS[2]).close()
    Index.build(QUERIES, path=path, replace=True)
    shutil.copytree(index / "1", path / "1")
    flip(path / "2" / "vectors.npy")
    report = check_refused(path)
    assert report.generation == 1
    assert report.findings[0].file == "other/2/vectors.npy"
    report = repaired(path, accept_loss=True)
    assert (report.verdict, report.generation, report.sequence) == ("ok", 1, LAST)
    assert files_aside(path) == ["2.damaged", "CURRENT.damaged"]
    check_state(path, LAST)


def test_two_whole_generations_leave_the_choice_to_the_user(index: Path) -> None:
    shutil.copytree(index / "1", index / "2")
    (index / "CURRENT").unlink()
    report = check_refused(index)
    assert "Generations 1 and 2 are whole" in report.findings[0].meaning
    assert repaired(index, accept_loss=True).repairs == ()


def test_damage_of_a_build_is_not_repaired(index: Path) -> None:
    flip(index / "1" / "hyperplanes.npy")
    (index / "1" / "writes" / "layouts" / "9").mkdir()
    die_while_building(index)
    (index.parent / ".points.lock").unlink()
    before = stamps(index)
    report = repaired(index, accept_loss=True)
    assert stamps(index) == before
    assert report.verdict == "damaged"
    assert "The data that users stored is in other files" in report.findings[0].meaning
    with pytest.raises(DivgrpcError):
        Index.open(index)


def test_damaged_defaults_are_put_aside(index: Path) -> None:
    Index.open(index).set_default(QueryDefault(0.2, "greedy", "corrected", "exact"))
    flip(index / "1.default.json")
    check_refused(index)
    assert repaired(index, accept_loss=True).verdict == "ok"
    assert files_aside(index) == ["1.default.json.damaged"]
    assert Index.open(index).info.query_default is None
    check_state(index, LAST)


def test_leftovers_of_a_merge_are_removed(index: Path) -> None:
    writes = index / "1" / "writes"
    for name in ("layouts/9", "parts/9"):
        (writes / name).mkdir()
    (writes / "LAYOUT.new").write_bytes(b"x")
    (writes / "log" / "00000000000000000099.new").write_bytes(b"x")
    (writes / "PUBLISHED").unlink()
    (report,) = check_folder(index)
    assert report.verdict == "repairable"
    names = {Path(finding.file).name for finding in report.findings}
    assert names == {"9", "LAYOUT.new", "00000000000000000099.new", "PUBLISHED"}
    report = repaired(index)
    assert (report.verdict, report.points, len(report.repairs)) == ("ok", len(MODELS[LAST]), 1)
    check_state(index, LAST)
