"""Files that were damaged, or that a loss of power left behind, are repaired or reported."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc import Collection, Index
from divgrpc.arrays import Array
from divgrpc.doctor import check_folder
from divgrpc.errors import IndexDamagedError
from divgrpc.storage import generations, published
from divgrpc.storage.arrays import HEADER_BYTES, ArrayEntry, open_array
from divgrpc.storage.generations import IndexFolder, extending, indexes_to_recover
from divgrpc.writes.log import Log
from support.data.written_points import (
    DIMS,
    Model,
    a_collection,
    check_exact,
    check_points,
    drawn_points,
    upsert,
)

pytestmark = pytest.mark.usefixtures("no_syncs")

POINTS = drawn_points(120, 9)
OLD: Model = dict(enumerate(POINTS[:40]))
MERGED: Model = dict(enumerate(POINTS[40:60], 100))
LATER: Model = dict(enumerate(POINTS[60:70], 200))
MODEL = OLD | MERGED | LATER
QUERIES = np.random.default_rng(4).normal(size=(2, DIMS)).astype(np.float32)
# Rows before and after the merge.
MERGED_ROW, LATER_ROW = 45, 62


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the folder of an index with merged writes and with later ones."""
    path = tmp_path / "points"
    with a_collection(path, OLD) as collection:
        upsert(collection, MERGED)
        collection.compact()
        upsert(collection, LATER)
    return path


def change(file: Path, offset: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(data)


def lose_vector(path: Path, row: int) -> None:
    """Zero the vector of a row, as if it had not reached the disk."""
    size = 4 * DIMS
    change(path / "1" / "vectors.npy", HEADER_BYTES + size * row, bytes(size))


def test_a_first_write_that_does_not_end_hides_no_later_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers look for writes when CURRENT changes: until it has, each write changes it."""
    path = tmp_path / "points"
    a_collection(path, OLD).close()
    folder = IndexFolder(path)
    stamp = folder.pointer_stamp()
    with Collection.open(path) as collection, monkeypatch.context() as patch:

        def interrupt(_: IndexFolder) -> None:
            raise KeyboardInterrupt

        patch.setattr(IndexFolder, "touch", interrupt)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                upsert(collection, {1: POINTS[50]})
    assert folder.pointer_stamp() == stamp
    # Its process may have been killed as well.
    with Collection.open(path) as collection:
        upsert(collection, {1: POINTS[50]})
        assert folder.pointer_stamp() != stamp
        stamp = folder.pointer_stamp()
        upsert(collection, {1: POINTS[50]})
    with Collection.open(path) as collection:
        upsert(collection, {1: POINTS[50]})
        assert folder.pointer_stamp() == stamp


def test_vectors_that_did_not_reach_the_disk_are_taken_from_the_log(path: Path) -> None:
    lose_vector(path, LATER_ROW)
    with pytest.raises(IndexDamagedError, match="vectors lacks rows of the log"):
        Index.open(path)
    with Collection.open(path) as collection:
        check_points(collection, MODEL)
        check_exact(collection, MODEL, "cosine", QUERIES)
    check_exact(Index.open(path), MODEL, "cosine", QUERIES)


def test_vectors_of_a_merge_have_a_checksum(path: Path) -> None:
    lose_vector(path, MERGED_ROW)
    for kind in (Index, Collection):
        with pytest.raises(IndexDamagedError, match="vectors does not match its checksum"):
            kind.open(path)


def test_a_vector_of_build_has_a_checksum(path: Path) -> None:
    lose_vector(path, 7)
    for kind in (Index, Collection):
        with pytest.raises(IndexDamagedError, match="vectors does not match its checksum"):
            kind.open(path)


def test_every_file_of_a_merge_has_a_checksum(path: Path) -> None:
    folder = path / "1" / "writes"
    files = [f for kind in ("layouts", "parts") for f in (folder / kind).rglob("*.npy")]
    files = [file for file in files if file.stat().st_size > HEADER_BYTES]
    assert {"alive", "ids", "codes", "cell_rows"} <= {file.stem for file in files}
    assert {file.parts[-3] for file in files} == {"layouts", "parts"}
    for file in [*files, folder / "LAYOUT"]:
        whole = file.read_bytes()
        change(file, len(whole) - 2, bytes([whole[-2] ^ 1]))
        for kind in (Index, Collection):
            with pytest.raises(IndexDamagedError):
                kind.open(path)
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(IndexDamagedError):
            Index.open(path)
        file.write_bytes(whole)
    check_points(Index.open(path), MODEL)


def test_a_damaged_log_is_reported(path: Path) -> None:
    with Collection.open(path) as collection:
        upsert(collection, {300: POINTS[99]})
    (file,) = (path / "1" / "writes" / "log").glob("*.wal")
    whole = file.read_bytes()
    used = len(whole.rstrip(b"\0"))
    change(file, used // 2, bytes([whole[used // 2] ^ 1]))
    for kind in (Index, Collection):
        with pytest.raises(IndexDamagedError, match="the log is damaged at record"):
            kind.open(path)


@pytest.fixture
def damaged_end(path: Path) -> Path:
    """Return the folder of an index whose last record of the log is damaged."""
    (file,) = (path / "1" / "writes" / "log").glob("*.wal")
    whole = file.read_bytes()
    last = len(whole.rstrip(b"\0")) - 1
    change(file, last, bytes([whole[last] ^ 1]))
    return path


def test_a_write_that_returned_is_missed(damaged_end: Path) -> None:
    """Without a loss of power, a damaged record at the end of the log is no torn one."""
    (file,) = (damaged_end / "1" / "writes" / "log").glob("*.wal")
    before = file.read_bytes()
    for kind in (Index, Collection):
        with pytest.raises(IndexDamagedError, match=r"lacks record 2, .* `divgrpc doctor`"):
            kind.open(damaged_end)
    assert file.read_bytes() == before


@pytest.mark.parametrize("boot", [published.boot_number() + 1, 1])
def test_a_loss_of_power_may_take_a_write_that_returned(
    damaged_end: Path, monkeypatch: pytest.MonkeyPatch, boot: int
) -> None:
    """So it may if the durability is not sync; where the boot has no number, nobody knows."""
    numbers = damaged_end / "1" / "writes" / "PUBLISHED"
    if boot == 1:
        numbers.write_bytes(numbers.read_bytes()[:-8] + boot.to_bytes(8, "little"))
    monkeypatch.setattr(published, "boot_number", lambda: boot)
    model = OLD | MERGED
    check_points(Index.open(damaged_end), model)
    with Collection.open(damaged_end) as collection:
        check_points(collection, model)
        assert upsert(collection, {400: POINTS[99]}) == 2
    check_points(Index.open(damaged_end), model | {400: POINTS[99]})


def test_a_writer_may_append_while_an_index_is_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writes of that time need not show, and are not missed."""
    read = Log.read
    with Collection.open(path) as collection:

        def late(log: Log, after: int) -> list[tuple[int, bytes]]:
            records = list(read(log, after))
            upsert(collection, {400: POINTS[99]})
            return records

        with monkeypatch.context() as patch:
            patch.setattr(Log, "read", late)
            check_points(Index.open(path), MODEL)


@pytest.mark.parametrize("trace", ["PUBLISHED", "log", "layouts"])
@pytest.mark.parametrize("is_same_boot", [True, False])
def test_a_missing_layout_is_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch, trace: str, is_same_boot: bool
) -> None:
    """Each of three traces proves that there was one; the first write leaves none before it."""
    writes = path / "1" / "writes"
    (writes / "LAYOUT").unlink()
    if trace != "PUBLISHED":
        (writes / "PUBLISHED").write_bytes(bytes(48))
    for name in {"log", "layouts"} - {trace}:
        shutil.rmtree(writes / name)
    if not is_same_boot:
        monkeypatch.setattr(published, "boot_number", lambda: 7)
    opens: list[Callable[[Path], object]] = [
        Index.open,
        Collection.open,
        lambda folder: IndexFolder(folder).read_info(),
        lambda folder: extending(folder).__enter__(),
    ]
    for open_index in opens:
        with pytest.raises(IndexDamagedError, match="layout of the writes is missing; `divgrpc"):
            open_index(path)
    assert indexes_to_recover(path.parent) == []
    (report,) = check_folder(path)
    assert {Path(finding.file).name for finding in report.findings} >= {"LAYOUT"}


def test_what_an_interrupted_first_write_has_left_is_no_write(tmp_path: Path) -> None:
    path = tmp_path / "points"
    a_collection(path, OLD).close()
    writes = path / "1" / "writes"
    assert (writes / "PUBLISHED").read_bytes() == bytes(64)
    for name in ("layouts/1", "parts", "log"):
        (writes / name).mkdir(parents=True)
    (writes / "LAYOUT.new").write_bytes(b"x")
    check_points(Index.open(path), OLD)
    assert IndexFolder(path).read_info().writes is None
    with Collection.open(path) as collection:
        check_points(collection, OLD)
        assert upsert(collection, MERGED) == 1
    check_points(Index.open(path), OLD | MERGED)


def test_an_index_opens_while_its_first_write_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "points"
    open_published = published.open_published
    with a_collection(path, OLD) as collection, monkeypatch.context() as patch:

        def write_and_open(folder: Path) -> published.Published | None:
            patch.undo()
            upsert(collection, MERGED)
            return open_published(folder)

        patch.setattr(published, "open_published", write_and_open)
        # The folder of a generation has no pointer that says that it has changed.
        check_points(Index.open(path / "1"), OLD | MERGED)


def test_a_log_that_lost_what_a_merge_has_goes_on(path: Path) -> None:
    """With the durability "process", a loss of power may take the whole log."""
    with Collection.open(path) as collection:
        collection.compact()
    for file in (path / "1" / "writes" / "log").glob("*.wal"):
        file.write_bytes(bytes(file.stat().st_size))
    model = dict(MODEL)
    for number in range(3):
        with Collection.open(path) as collection:
            check_points(collection, model)
            assert upsert(collection, {400: POINTS[number]}) == number + 3
            model[400] = POINTS[number]
        check_points(Index.open(path), model)


def test_what_an_interrupted_merge_has_left_is_removed(path: Path) -> None:
    folder = path / "1" / "writes"
    for name in ("layouts/9", "parts/9", "layouts/1"):
        (folder / name).mkdir()
        (folder / name / "codes.npy").write_bytes(b"x")
    (folder / "LAYOUT.new").write_bytes(b"x")
    (folder / "log" / "00000000000000000099.new").write_bytes(b"x")
    before = {"layouts": ["2"], "parts": ["2"]}
    with Collection.open(path) as collection:
        for name, numbers in before.items():
            assert os.listdir(folder / name) == numbers
        assert list((folder / "log").glob("*.new")) == []
        check_points(collection, MODEL)
        collection.compact()
        check_points(collection, MODEL)


def test_an_index_opens_while_its_first_write_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "points"
    a_collection(path, OLD).close()
    shutil.rmtree(path / "1" / "writes")

    def begin_and_open(file: Path, entry: ArrayEntry, **options: Any) -> Array:  # noqa: ANN401  # of `open_array`
        (path / "1" / "writes").mkdir(exist_ok=True)
        vectors = path / "1" / "vectors.npy"
        os.truncate(vectors, HEADER_BYTES + 4 * DIMS * 1_000)
        return open_array(file, entry, **options)

    monkeypatch.setattr(generations, "open_array", begin_and_open)
    check_points(Index.open(path), OLD)
