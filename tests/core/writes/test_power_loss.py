"""A loss of power loses no write that was synced, leaves none in part, and brings none back.

What a writer does to its files is recorded. Then folders are made that a loss of power at any
moment may leave, and are opened as a server opens them. One of them is what the next writer finds.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import numpy as np
import pytest

from divgrpc import Collection, Index
from divgrpc.doctor import check_folder
from divgrpc.storage import generations, published
from divgrpc.types import Durability, HashFamily, Points, Progress
from divgrpc.writes import backlog, committer
from divgrpc.writes.log import Log, LogWriter, frame
from divgrpc.writes.opening import open_index
from divgrpc.writes.replica import MergedReplica
from support.data.lost_power import Disk
from support.data.stamped_points import (
    IDS,
    Stamps,
    Write,
    after,
    check_answers,
    columns_of,
    is_optional,
    stamps_of,
    written_vectors_of,
)
from support.data.written_points import kind_of
from support.processes.crashing_writer import SMALL

# Lives of a collection, each of which ends with a loss of power. `make crash` runs many.
LIVES: Final = 3
BLOCKS: Final = -(-int(os.environ.get("DIVGRPC_CRASH_ROUNDS", "1")) // 100)
ACTIONS, FOLDERS = 25, 12


SHARED: Final = Path("/dev/shm")  # noqa: S108  # a folder below it has mode 0700


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files of the log be small; let nothing be merged in the background."""
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(backlog, "_MERGED_ROWS_MIN", 10**9)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder in memory, because files are made and removed all the time."""
    with TemporaryDirectory(dir=SHARED if SHARED.is_dir() else None) as path:
        yield Path(path)


class _Time:
    """Stands for the module `time` of the committer: a test decides when the log is synced."""

    def __init__(self) -> None:
        self._is_awake, self._is_asleep = threading.Semaphore(0), threading.Semaphore(0)

    monotonic = staticmethod(time.monotonic)

    def sleep(self, seconds: float) -> None:
        """Sleep until the test says so, if this is the thread that syncs the log."""
        if seconds == committer._INTERVAL_SECONDS:
            self._is_asleep.release()
            self._is_awake.acquire()

    def pass_interval(self) -> None:
        """Wake the thread that syncs the log, and wait until it has done so."""
        self._is_asleep.acquire()
        self._is_awake.release()
        self._is_asleep.acquire()
        self._is_asleep.release()

    def end(self) -> None:
        self._is_awake.release()


class _Addition(NamedTuple):
    """Attributes that points got later: their ids, and the last write that was made meanwhile."""

    ids: frozenset[int]
    last: int


class _Life:
    """A writer from its start to a loss of power.

    states: the stamps of the points after each write, by its number.
    additions: the attributes `added0`, `added1` and so on, whose values are the ids.
    floors: events, and the number of the last write that a later loss of power must not lose.
    """

    def __init__(
        self,
        root: Path,
        states: list[Stamps],
        additions: list[_Addition],
        seed: int,
        durability: Durability,
    ) -> None:
        self.root, self.states, self.durability = root, states, durability
        self.additions = additions
        self.disk = Disk(root)
        self.floors = [(0, len(states) - 1)]
        self._rng = np.random.default_rng(seed)
        self._stamp = 1_000 * seed
        self._time = _Time()

    def run(self, patch: pytest.MonkeyPatch) -> None:
        self.disk.record(patch)
        patch.setattr(committer, "time", self._time)
        recover(self.root)
        with Collection.open(self.root / "points", durability=self.durability) as collection:
            assert collection.sequence == len(self.states) - 1
            self.floors.append((self.disk.event, collection.sequence))
            for _ in range(ACTIONS):
                self._act(collection)
            self._time.end()

    def _act(self, collection: Collection) -> None:
        way = self._rng.random()
        if way < 0.75:
            self._write(collection)
        elif way < 0.87 and self.durability == "interval":
            self._time.pass_interval()
            self._synced(collection)
        elif way < 0.91:
            self._rewrite(collection, collection.compact)
        elif way < 0.94:
            self._rewrite(collection, partial(collection.compact, vacuum=True))
        elif way < 0.97 and self.states[-1]:
            self._add_attribute(collection)
        else:
            self._rewrite(collection, collection.retrain)

    def _add_attribute(self, collection: Collection) -> None:
        ids, name = list(self.states[-1]), f"added{len(self.additions)}"
        # A loss of power may come before the end, and what was written by then has the values.
        self.additions.append(_Addition(frozenset(ids), 2**62))

        def add(progress: Callable[[Progress], None]) -> bool:
            collection.add_attributes({name: ids}, ids=ids, progress=progress)
            return True

        self._rewrite(collection, add)
        self.additions[-1] = _Addition(frozenset(ids), len(self.states) - 1)

    def _rewrite(self, collection: Collection, method: Callable[..., bool]) -> None:
        """Merge, vacuum or retrain, and write meanwhile."""
        first = len(self.states)

        def report(_progress: Progress) -> None:
            if len(self.states) < first + 2:
                self._write(collection)

        method(report)
        self._synced(collection, but=len(self.states) - first)

    def _write(self, collection: Collection) -> None:
        self._stamp += 1
        count = int(self._rng.integers(1, 5))
        ids = self._rng.choice(IDS, count, replace=False).tolist()
        write = Write(bool(self._rng.random() < 0.3), ids, self._stamp)
        self.states.append(after(self.states[-1], write))
        assert make(collection, write) == len(self.states) - 1
        if self.durability == "sync":
            self._synced(collection)

    def _synced(self, collection: Collection, but: int = 0) -> None:
        """Note that all writes are on the disk, except some of the last ones."""
        self.floors.append((self.disk.event, collection.sequence - but))

    def floor_at(self, event: int) -> int:
        return max(sequence for time, sequence in self.floors if time <= event)


def make(collection: Collection, write: Write) -> int:
    """Make a write; return its number. It has a name, so it has a number in any case."""
    write_id = f"write {write.stamp}"
    if write.is_deletion:
        return collection.delete(write.ids, write_id=write_id).sequence
    columns = columns_of([write.stamp] * len(write.ids))
    kind, optional = kind_of(collection), is_optional(collection)
    vectors = written_vectors_of(write.ids, write.stamp, kind, is_optional=optional)
    return collection.upsert(write.ids, vectors, write_id=write_id, **columns).sequence


def recover(root: Path) -> None:
    """Do what a server does before it serves the indexes of a folder."""
    generations.sweep(root)
    for name in generations.indexes_to_recover(root):
        Collection.open(root / name).close()
    assert generations.indexes_to_recover(root) == []


def check_additions(index: Index, states: list[Stamps], additions: list[_Addition]) -> int:
    """Check the values of attributes that points got later; return the number of attributes."""
    names = [attribute.name for attribute in index.info.attributes]
    assert names == ["stamp", *(f"added{number}" for number in range(len(names) - 1))]
    stamps = states[index.engine.sequence]
    for record in index.get(list(stamps)):
        stamp = stamps[int(record.id)]
        written = next(n for n, state in enumerate(states) if state.get(int(record.id)) == stamp)
        for name, addition in zip(names[1:], additions, strict=False):
            has_value = record.id in addition.ids and written <= addition.last
            assert record.attributes[name] == (record.id if has_value else None)
    return len(names) - 1


def check(
    root: Path,
    states: list[Stamps],
    additions: list[_Addition],
    floor: int,
    *,
    at_length: bool,
    is_synced: bool,
) -> tuple[int, int]:
    """Check what a loss of power has left.

    Returns the number of the last write, and the number of attributes that were added.
    """
    path = root / "points"
    (report,) = check_folder(path)
    recover(root)
    worker = open_index(path)
    if isinstance(worker, MergedReplica):
        worker = worker.follow()
    index = Index(worker)
    sequence = worker.sequence
    assert report.sequence in (None, sequence)
    # If writes are synced, the doctor finds no damage.
    assert report.verdict in ("ok", "repairable") or not is_synced, report.findings
    assert floor <= sequence < len(states)
    assert stamps_of(index) == states[sequence]
    added = check_additions(index, states, additions)
    with Collection.open(path) as collection:
        assert (collection.sequence, stamps_of(collection)) == (sequence, states[sequence])
        write = Write(is_deletion=False, ids=[3], stamp=10**9 + sequence)
        assert make(collection, write) == make(collection, write) == sequence + 1
        stamps = after(states[sequence], write)
        assert stamps_of(collection) == stamps
        if at_length:
            check_answers(collection, stamps)
            assert stamps_of(Index.open(path)) == stamps
    return sequence, added


def build(path: Path, family: HashFamily, kind: Points, *, vectors_optional: bool) -> Stamps:
    ids = list(range(IDS))
    columns = columns_of([0] * IDS)
    Index.build(
        written_vectors_of(ids, 0, kind, is_optional=vectors_optional),
        ids=ids,
        vectors_optional=vectors_optional,
        path=path,
        metric="euclidean",
        hash_family=family,
        **columns,
    )
    return dict.fromkeys(ids, 0)


@pytest.mark.usefixtures("no_syncs")
@pytest.mark.parametrize(
    ("durability", "kind", "vectors_optional"),
    [
        ("sync", "dense", False),
        ("interval", "dense", True),
        ("process", "dense", False),
        ("sync", "sparse", True),
        ("process", "sparse", False),
    ],
)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_loss_of_power_keeps_what_was_synced(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    durability: Durability,
    kind: Points,
    vectors_optional: bool,
    block: int,
) -> None:
    rng = np.random.default_rng(block)
    root = folder / "start"
    root.mkdir()
    family: HashFamily = "cells" if block % 3 < 2 else "lsh_div"
    states = [build(root / "points", family, kind, vectors_optional=vectors_optional)]
    additions: list[_Addition] = []
    for number in range(LIVES):
        life = _Life(root, states, additions, LIVES * block + number + 1, durability)
        monkeypatch.setattr(published, "boot_number", partial(int, number + 2))
        with monkeypatch.context() as patch:
            life.run(patch)
        monkeypatch.setattr(published, "boot_number", partial(int, LIVES + 2))
        events = rng.integers(0, life.disk.event + 1, FOLDERS // 2).tolist()
        events = [*rng.choice(life.disk.renames or [0], FOLDERS // 2).tolist(), *events]
        for place, event in enumerate(events):
            seed = int(rng.integers(2**32))
            path = folder / f"{number}-{place}"
            life.disk.leave(path, event, np.random.default_rng(seed))
            sequence, added = check(
                path,
                states,
                additions,
                life.floor_at(event),
                at_length=place % 5 == 0,
                is_synced=durability == "sync",
            )
        # The next writer finds the last one of these folders, as it was left.
        root = folder / f"start-{number}"
        life.disk.leave(root, events[-1], np.random.default_rng(seed))
        states, additions = states[: sequence + 1], additions[:added]


def test_a_record_that_was_lost_does_not_come_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first loss of power takes a record and leaves the one behind it; a second one follows."""
    path = folder / "log"
    path.mkdir()
    first, lost, behind = (frame(n, n // 2, bytes([n]) * 40) for n in (1, 2, 3))
    (path / f"{1:020d}.wal").write_bytes(first + bytes(len(lost)) + behind + bytes(256))
    disk = Disk(path)
    with monkeypatch.context() as patch:
        disk.record(patch)
        writer = LogWriter(Log(path), 1)
        writer.append(b"2" * 40)
        writer.close()
    outcomes = set()
    for seed in range(1_000):
        rng = np.random.default_rng(seed)
        disk.leave(folder / f"{seed}", int(rng.integers(disk.event + 1)), rng)
        records = Log(folder / f"{seed}").read(0)
        outcomes.add(tuple(body[:1] for _, body in records))
    assert outcomes == {(b"\1",), (b"\1", b"2")}


class _EndedError(BaseException):
    """Stands for the end of a process."""


def build_until_the_name_is_synced(path: Path) -> None:
    """Replace an index, as a process does that ends before it syncs the new name."""

    def end(_path: Path) -> None:
        raise _EndedError

    points = np.full((3, 4), 2.0, np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generations, "sync_pointer", end)
        with pytest.raises(_EndedError):
            Index.build(points, path=path, replace=True)


@pytest.mark.parametrize("action", ["write", "sweep"])
def test_a_generation_whose_name_was_not_synced(
    folder: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """A writer of it and the removal of the generation before rely on its name."""
    root = folder / "start"
    Index.build(np.ones((3, 4), np.float32), path=root / "points")
    disk = Disk(root)
    with monkeypatch.context() as patch:
        disk.record(patch)
        build_until_the_name_is_synced(root / "points")
        if action == "write":
            with Collection.open(root / "points") as collection:
                collection.delete([0])
        else:
            generations.sweep(root)
    for seed in range(30):
        path = folder / f"{seed}"
        disk.leave(path, disk.event, np.random.default_rng(seed))
        recover(path)
        index = Index.open(path / "points")
        versions = [(2, 1)] if action == "write" else [(1, 0), (2, 0)]
        assert (index.generation, index.engine.sequence) in versions
