"""A snapshot of an index that is written to, merged and replaced has one of its states."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from divgrpc import Collection, Index
from divgrpc.backup import capture as capture_module
from divgrpc.backup import restore_snapshot, write_snapshot
from divgrpc.backup.capture import _Opener
from divgrpc.errors import IndexChangedError, IndexDamagedError
from divgrpc.storage.layouts import LayoutInfo
from divgrpc.types import Durability
from support.data.damaged_indexes import LAST, MODELS, check_state, write
from support.data.written_points import a_collection

_ROWS, _DIMS = 64, 8


def vectors_after(sequence: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the vectors after a write: write s gave the point s % _ROWS a vector of s numbers."""
    writes = np.arange(_ROWS)
    writes = writes + _ROWS * ((sequence - writes) // _ROWS)
    return np.array([vector_of(max(0, number)) for number in writes.tolist()])


def vector_of(number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(number).normal(size=_DIMS).astype(np.float32)


@contextmanager
def writer_of(collection: Collection, *, merges: bool) -> Iterator[None]:
    """Write to a collection in a thread, and merge and vacuum it from time to time."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while not stop.is_set():
                number = collection.sequence + 1
                collection.upsert(number % _ROWS, vector_of(number))
                if merges and number % 40 == 0:
                    collection.compact()
        except BaseException as error:  # noqa: BLE001  # raised below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not errors


def check_vectors(path: Path, sequence: int) -> None:
    with Collection.open(path) as collection:
        assert collection.sequence == sequence
        records = collection.get(list(range(_ROWS)), with_vectors=True)
        stored = np.array([record.vector for record in records])
        np.testing.assert_array_equal(stored, vectors_after(sequence))
        assert collection.upsert(0, vector_of(0)).sequence == sequence + 1


@pytest.mark.parametrize("durability", get_args(Durability))
def test_snapshots_while_an_index_is_written_to(tmp_path: Path, durability: Durability) -> None:
    path = tmp_path / "data" / "points"
    start = np.array([vector_of(0)] * _ROWS)
    Index.build(start, path=path, metric="euclidean", hash_family="cells", target_recall=0.5)
    sequences: list[int] = []
    with (
        Collection.open(path, durability=durability) as collection,
        writer_of(collection, merges=True),
    ):
        while len(sequences) < 12 or sequences[-1] < 100:
            before = collection.sequence
            file = tmp_path / f"{len(sequences)}.tar"
            (entry,) = write_snapshot(path, file)
            # A write that has returned is in a snapshot that begins later.
            assert before <= entry.sequence <= collection.sequence
            sequences.append(entry.sequence)
    assert sequences == sorted(sequences)
    for number, sequence in enumerate(sequences[-12:]):
        file = tmp_path / f"{len(sequences) - 12 + number}.tar"
        restore_snapshot(file, tmp_path / f"other-{number}")
        check_vectors(tmp_path / f"other-{number}" / "points", sequence)


def merge(collection: Collection) -> None:
    write(collection, LAST + 1)
    collection.compact()


def vacuum(collection: Collection) -> None:
    collection.compact(vacuum=True)


@pytest.mark.parametrize(("change", "state"), [(merge, (1, LAST + 1)), (vacuum, (2, LAST))])
def test_a_change_between_the_first_and_the_last_opened_file(
    index: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Collection], None],
    state: tuple[int, int],
) -> None:
    """The capture starts again, and has the later state."""
    begin = _Opener._add_log
    numbers: list[int] = []

    def change_first(self: _Opener, info: LayoutInfo) -> int:
        numbers.append(info.number)
        if len(numbers) == 1:
            with Collection.open(index) as collection:
                change(collection)
        return begin(self, info)

    monkeypatch.setattr(_Opener, "_add_log", change_first)
    (entry,) = write_snapshot(index, tmp_path / "points.tar")
    assert (entry.generation, entry.sequence) == state
    assert len(numbers) == 2
    restore_snapshot(tmp_path / "points.tar", tmp_path / "other")
    check_state(tmp_path / "other" / "points", entry.sequence)


def test_endless_merges_end_the_capture(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = iter(range(1_000))
    read = capture_module._read_layout
    monkeypatch.setattr(
        capture_module,
        "_read_layout",
        lambda folder: (read(folder) or b"").replace(b"{", b"{" + b" " * next(texts), 1),
    )
    with pytest.raises(IndexChangedError, match="try again"):
        write_snapshot(index, tmp_path / "points.tar")


def test_a_write_that_has_returned_is_never_left_out(index: Path, tmp_path: Path) -> None:
    """If the log lacks a published write, the snapshot fails."""
    log = index / "1" / "writes" / "log"
    (file,) = log.glob("*.wal")
    data = file.read_bytes()
    end = len(data.rstrip(b"\0"))
    # The last record, with the zeros behind it.
    file.write_bytes(data[: end - 40] + bytes(len(data) - end + 40))
    with pytest.raises(IndexDamagedError, match="the log"):
        write_snapshot(index, tmp_path / "points.tar")


def test_an_index_that_was_never_merged(tmp_path: Path) -> None:
    path = tmp_path / "data" / "points"
    with a_collection(path, MODELS[0]) as collection:
        for number in (1, 2):
            write(collection, number)
        (entry,) = write_snapshot(path, tmp_path / "points.tar")
    assert entry.sequence == 2
    restore_snapshot(tmp_path / "points.tar", tmp_path / "other")
    check_state(tmp_path / "other" / "points", 2)
