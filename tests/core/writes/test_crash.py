"""Writers that are killed lose no write that was acknowledged, and leave none in part.

DIVGRPC_CRASH_ROUNDS sets the number of rounds, 50 by default; `make crash` runs more.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc import Collection, Index
from divgrpc.doctor import check_folder
from divgrpc.types import Durability, HashFamily, Points
from support.data.stamped_points import (
    IDS,
    Write,
    after,
    check_answers,
    columns_of,
    is_a_write,
    stamps_of,
    written_vectors_of,
)
from support.processes.crashing_writer import (
    SMALL,
    CrashingWriters,
    Round,
    make,
    skip_syncs,
)

# A test runs so many rounds, because its time is limited.
ROUNDS = 13
KINDS: list[Points] = ["dense", "sparse"]
# Tests of each kind of points.
BLOCKS = -(-int(os.environ.get("DIVGRPC_CRASH_ROUNDS", "50")) // (ROUNDS * len(KINDS)))
# The functions in which writers are killed, and how often a writer calls each, about.
CALLS = {"pwrite": 300, "fdatasync": 150, "fsync": 150, "rename": 12, "unlink": 12, "ftruncate": 1}
CALLS_OF_FIRST_WRITE = {"pwrite": 6, "rename": 3, "fsync": 24, "fdatasync": 3}
DURABILITIES: list[Durability] = ["sync", "process", "sync", "interval"]


class _Survivor:
    """A collection whose writers are killed, and what its points must be."""

    def __init__(
        self, path: Path, family: HashFamily, kind: Points = "dense", *, is_optional: bool = False
    ) -> None:
        self.path, self.stamps, self.sequence = path, dict.fromkeys(range(IDS), 0), 0
        Collection.build(
            written_vectors_of(list(range(IDS)), 0, kind, is_optional=is_optional),
            ids=list(range(IDS)),
            vectors_optional=is_optional,
            # Each array of a part takes a sync, so only half of the rounds have labels.
            **columns_of([0] * IDS, has_labels=kind == "sparse"),
            path=path,
            metric="euclidean",
            hash_family=family,
        ).close()

    def take(self, writes: list[tuple[Write, int | None]]) -> None:
        """Check the collection after the writes of a round; the last one may not have ended."""
        for write, sequence in writes:
            if sequence is not None:
                self.sequence += is_a_write(self.stamps, write)
                assert sequence == self.sequence
                self.stamps = after(self.stamps, write)
        assert None not in [sequence for _, sequence in writes[:-1]]
        (report,) = check_folder(self.path)
        # A crash leaves nothing that the doctor takes for damage.
        assert report.verdict in ("ok", "repairable"), report.findings
        beside = Index.open(self.path)
        with Collection.open(self.path) as collection:
            if report.sequence is not None:
                assert (report.sequence, report.points) == (collection.sequence, len(collection))
            if collection.sequence != self.sequence:
                write, sequence = writes[-1]
                assert sequence is None
                assert collection.sequence == self.sequence + 1
                self.stamps, self.sequence = after(self.stamps, write), self.sequence + 1
            assert stamps_of(collection) == stamps_of(beside) == self.stamps
            check_answers(collection, self.stamps)
            self._go_on(collection)

    def _go_on(self, collection: Collection) -> None:
        write = Write(is_deletion=False, ids=[3], stamp=10**9 + self.sequence)
        assert make(collection, write) == self.sequence + 1
        self.stamps, self.sequence = after(self.stamps, write), self.sequence + 1
        assert stamps_of(collection) == self.stamps


@pytest.fixture(scope="module")
def writers() -> Iterator[CrashingWriters]:
    with CrashingWriters() as started:
        yield started


@pytest.fixture(autouse=True)
def small_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what the tests themselves write be as small, and as fast, as what the writers do."""
    for owner, name, value in SMALL:
        monkeypatch.setattr(owner, name, value)
    skip_syncs(partial(monkeypatch.setattr, os))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_acknowledged_write_is_lost(
    writers: CrashingWriters, tmp_path: Path, block: int, kind: Points
) -> None:
    rng = np.random.default_rng(block)
    # Two blocks have both families for each kind of points.
    turn = block + KINDS.index(kind)
    family: HashFamily = "lsh_div" if turn % 3 == 1 else "cells"
    survivor = _Survivor(tmp_path / "points", family, kind, is_optional=turn % 2 == 1)
    names = list(CALLS)
    ended = killed = 0
    for number in range(ROUNDS):
        seed, path = block * ROUNDS + number + 1, str(survivor.path)
        # A crash of the process loses nothing with any durability.
        durability = DURABILITIES[number % len(DURABILITIES)]
        if number % 3 == 0:
            plan = Round(path, seed, durability=durability)
            writes = writers.run(plan, kill_after=int(rng.integers(1, 240)))
        else:
            call = names[rng.integers(len(names))]
            count = int(1 + rng.integers(CALLS[call]))
            when: Any = ["before", "after", "half"][rng.integers(3)]
            writes = writers.run(Round(path, seed, call, count, when, durability))
        ended += sum(sequence is not None for _, sequence in writes)
        killed += not writes or writes[-1][1] is None
        survivor.take(writes)
    # Enough writers were killed while they wrote, however fast the machine is.
    assert 8 * killed >= ROUNDS
    assert ended >= 5 * ROUNDS


@pytest.mark.parametrize(
    ("family", "kind"), [("cells", "dense"), ("lsh_div", "dense"), ("lsh_div", "sparse")]
)
def test_the_first_write_may_be_the_last(
    writers: CrashingWriters, tmp_path: Path, family: HashFamily, kind: Points
) -> None:
    """The first write makes the first layout, and the first file of the log."""
    first_writes = 0
    for call, count in CALLS_OF_FIRST_WRITE.items():
        for number in range(1, count + 1, 2):
            survivor = _Survivor(tmp_path / f"{call}-{number}", family, kind)
            writes = writers.run(Round(str(survivor.path), 1, call, number))
            survivor.take(writes)
            # The first syncs are those of the opening, before any write.
            first_writes += bool(writes) and writes[0][1] is None
    assert first_writes >= 10
