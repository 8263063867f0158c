"""Files that were damaged, or that a loss of power left behind, are repaired or reported."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc import Collection, Index
from divgrpc.arrays import Array
from divgrpc.errors import IndexDamagedError
from divgrpc.storage import generations
from divgrpc.storage.arrays import HEADER_BYTES, ArrayEntry, open_array
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
