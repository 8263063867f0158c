"""One run of the simulator: an index, its processes, and the code with its system replaced."""

import io
import itertools
import random
import secrets
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from divgrpc import Index, parallel
from divgrpc.backup import snapshots
from divgrpc.builder import progress
from divgrpc.storage import arrays, generations, published
from divgrpc.types import Durability, HashFamily, Points
from divgrpc.writes import backlog, committer, log, replica, target
from divgrpc.writes.renewal import Renewal
from simulation.failpoints import FailpointMap
from simulation.faults import Fault, Faults, Focus
from simulation.faults import Kind as FaultKind
from simulation.history import History, Lineage, Op, Version
from simulation.scheduler import Process, Scheduler, clock, threads
from simulation.system import System
from support.data.lost_power import Disk
from support.data.stamped_points import (
    IDS,
    columns_of,
    stamps_of,
    vectors_of,
    written_vectors_of,
)
from support.data.written_points import kind_of
from support.processes.crashing_writer import SMALL

# Seconds of the wall clock at the start of a run.
_START_SECONDS: Final = 1.7e9
INDEX: Final = "points"
# An array is synced whenever so many bytes were appended.
_SYNC_BYTES: Final = 512


@dataclass(frozen=True)
class Kind:
    """A kind of points, and the family of hash functions that finds them."""

    points: Points
    family: HashFamily
    is_optional: bool

    @property
    def name(self) -> str:
        """The name of the folder with an index of this kind."""
        return f"{self.points}-{self.family}-{self.is_optional}"

    def build(self, path: Path, stamp: int, ids: list[int], *, replace: bool = False) -> Index:
        """Build an index of points that all have one stamp."""
        return Index.build(
            written_vectors_of(ids, stamp, self.points, is_optional=self.is_optional),
            ids=ids,
            vectors_optional=self.is_optional,
            path=path,
            metric="euclidean",
            hash_family=self.family,
            replace=replace,
            **columns_of([stamp] * len(ids)),
        )


KINDS: Final = (
    Kind("dense", "cells", is_optional=False),
    Kind("dense", "lsh_div", is_optional=True),
    Kind("sparse", "cells", is_optional=False),
)


@dataclass
class Options:
    """What happens in a run, beside the faults.

    stall_share: the probability that a thread is stopped at a pause, for as long as a few calls.
    slow_share: the probability that a sync takes about as long as callers wait between calls.
    call_seconds: seconds between the calls of one caller, on average.
    sync_seconds: seconds between the syncs of the durability "interval".
    kills: how often a process is killed or the power is lost, beside the faults.
    kill_seconds: seconds between kills, on average.
    renewers: tasks that merge and renew.
    focus: where there is one more fault; no seed draws one, but a past defect may have one.
    """

    kind: Kind
    durability: Durability
    is_served: bool
    has_power: bool
    share: float
    stall_share: float
    slow_share: float
    call_seconds: float
    sync_seconds: float
    kills: int
    kill_seconds: float
    clients: int
    readers: int
    writes: int
    renewals: list[str]
    renewers: int
    builds: int
    snapshots: int
    has_intruder: bool
    rows_max: int
    has_deletions: bool
    is_deleted_last: bool
    is_damaged_last: bool
    log_bytes: int
    merged_rows: int
    faults: list[Fault]
    focus: Focus[FaultKind] | None = None


class World:
    """What the processes of a run share.

    root: the folder of the data; a loss of power leaves another one.
    ops: the writes that nobody has made yet.
    renewals: the merges, vacuums and retrainings that nobody has made yet.
    """

    def __init__(self, seed: int, options: Options, root: Path, failpoints: FailpointMap) -> None:
        self.options, self.root = options, root
        self.rng = random.Random(f"world {seed}")
        stall_seconds = 3 * options.call_seconds
        self.scheduler = Scheduler(seed, options.share, options.stall_share, stall_seconds)
        self.faults = Faults(self.scheduler, options.faults)
        self.faults.lose_power = self.lose_power
        self.system = System(self.scheduler, self.faults, failpoints, root.parent)
        self.system.slow_syncs = options.slow_share, options.call_seconds
        self.history = History(dict.fromkeys(range(IDS), 0), self.scheduler.fail)
        self.history.clock = lambda: self.scheduler.now
        self.ops = deque[Op]()
        self.ops_by_name: dict[str, Op] = {}
        self.renewals = deque(options.renewals)
        self.processes: list[Process] = []
        self.disk: Disk | None = None
        # Events of the disk, with the version that was durable from then on.
        self.floors: list[tuple[int, Version]] = []
        # Events of the disk, with the number that a write was about to get.
        self.proposals: list[tuple[int, Version]] = []
        # Events of the disk right after an append to the log, and after the removal of a folder.
        self.appends: list[int] = []
        self.removals: list[int] = []
        # Events of renames, by their failpoint.
        self.renames: dict[str, list[int]] = {}
        # How often a writer has not opened the index since the last one that has.
        self.failed_starts = 0
        self.boot = 2
        self.lost_event: int | None = None
        self.building: dict[object, tuple[Lineage, int | None]] = {}
        # The process that has opened the log last, or has appended to it. Others have an older one.
        self._log_owner: Process | None = None
        self._synced: dict[Process, Version] = {}

    @property
    def path(self) -> Path:
        """The folder of the index."""
        return self.root / INDEX

    def process(self, name: str, main: Callable[[Process], object]) -> Process:
        """Start a process."""
        process = Process(name)
        self.processes.append(process)
        self.scheduler.spawn(process, "main", partial(main, process))
        return process

    def lose_power(self) -> None:
        """End all processes; the one that calls ends last."""
        assert self.disk is not None
        self.lost_event = self.disk.event
        task = self.scheduler.task
        assert task is not None
        self.history.note("the power is lost")
        for process in self.processes:
            if process is not task.process and not process.is_over:
                self.scheduler.kill(process)

    def rest(self, mean_seconds: float) -> None:
        """Wait for a random time."""
        self.scheduler.sleep(self.rng.expovariate(1 / mean_seconds))

    # What is durable.

    def keep(self, version: Version) -> None:
        """Note a version that no later loss of power may lose."""
        self.history.durable = max(self.history.durable, version)
        if self.disk is not None:
            self.floors.append((self.disk.event, self.history.durable))

    def keep_written(self, version: Version) -> None:
        """Note what is durable when a write returns."""
        if self.options.durability == "sync":
            self.keep(version)

    def keep_opened(self, generation: int) -> None:
        """Note that a generation is durable, because a writer has opened it."""
        self._own_log()
        lineages, durable = self.history.lineages, self.history.durable
        is_same = lineages[generation] is lineages[durable.generation]
        self.keep(Version(generation, durable.sequence if is_same else 0))

    def _own_log(self) -> None:
        task = self.scheduler.task
        self._log_owner = None if task is None else task.process

    def keep_seen(self) -> None:
        """Note what is durable when a query shows it.

        It may show a new generation just before the name of this is on the disk.
        """
        if self.history.latest.generation == self.history.durable.generation:
            self.keep_written(self.history.latest)

    def keep_synced(self, version: Version) -> None:
        """Note what the log has on the disk, unless a sync has failed.

        A reader may have seen a newer generation than the one of the log.
        """
        has_failed = any("LogWriter.sync" in line for line in self.faults.log)
        if not has_failed and version.generation == self.history.durable.generation:
            self.keep(version)

    def floor_at(self, event: int) -> Version:
        """Return the version that was durable at an event of the disk."""
        return max(version for time, version in self.floors if time <= event)

    def _note_change(self, name: str, call: str) -> None:
        assert self.disk is not None
        if call == "rename":
            self.renames.setdefault(name, []).append(self.disk.renames[-1])
        else:
            self.removals.append(self.disk.event)

    def _sleep(self, seconds: float) -> None:
        """Sleep; the thread that syncs the log has synced what was there when it woke up.

        The thread of a process whose log another one has taken over syncs nothing.
        """
        task = self.scheduler.task
        is_regular = seconds == self.options.sync_seconds
        if is_regular and task is not None and task.process in self._synced:
            self.keep_synced(self._synced[task.process])
        self.scheduler.sleep(seconds)
        if is_regular and task is not None:
            self._synced.pop(task.process, None)
            if task.process is self._log_owner:
                self._synced[task.process] = self.history.latest

    # What the code under test calls.

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Replace disk, clock, threads and chance until `patch` is undone."""
        if self.options.has_power:
            self.disk = Disk(self.root)
            self.floors, self.proposals = [(0, self.history.durable)], []
            self.appends, self.removals, self.renames = [], [], {}
            self.system.on_change = self._note_change
            self.disk.record(patch)
        else:
            for name in ("fsync", "fdatasync"):
                patch.setattr(f"os.{name}", lambda _: None)
        self.system.patch(patch)
        for module, name, value in SMALL:
            patch.setattr(module, name, value)
        patch.setattr(arrays, "_SYNC_BYTES", _SYNC_BYTES)
        patch.setattr(log, "FILE_BYTES", self.options.log_bytes)
        patch.setattr(backlog, "_MERGED_ROWS_MIN", self.options.merged_rows)
        patch.setattr(committer, "_INTERVAL_SECONDS", self.options.sync_seconds)
        for module in (committer, log):
            patch.setattr(module, "threading", threads(self.scheduler))
        times = clock(self.scheduler, _START_SECONDS)
        times.sleep = self._sleep
        for module in (committer, generations, progress):
            patch.setattr(module, "time", times)
        for module in (target, replica):
            patch.setattr(module, "Published", published.Published)
        patch.setattr(published, "boot_number", lambda: self.boot)
        patch.setattr(parallel, "_thread", SimpleNamespace(busy=True))
        numbers = itertools.count()
        names = (f"{number:08}" for number in itertools.count())
        patch.setattr(secrets, "token_hex", lambda _: f"{next(numbers):016}")
        patch.setattr(tempfile, "_name_sequence", names)
        # This module calls the function `open`; other modules open files by the method of a path.
        patch.setattr(snapshots, "open", io.open, raising=False)
        self._observe(patch)

    def _observe(self, patch: pytest.MonkeyPatch) -> None:
        """Note which write gets which number, and what a generation consists of."""
        history, ops = self.history, self.ops_by_name
        write, make_current = target.WriteTarget.write, generations.Staging._make_current
        publish = Renewal.publish

        def noted_write(self_: target.WriteTarget, request: Any) -> tuple[int, int]:  # noqa: ANN401  # a request
            state = self_.state
            self._own_log()
            if request.write_id not in state.requests and request.write_id in ops:
                generation = self_.engine.generation
                op = ops[request.write_id]
                history.propose(generation, state.sequence + 1, op)
                if self.disk is not None:
                    number = Version(generation, state.sequence + 1)
                    self.proposals.append((self.disk.event, number))
            result = write(self_, request)
            if self.disk is not None:
                self.appends.append(self.disk.event)
            return result

        def noted_renewal(self_: Renewal, *arguments: Any) -> Any:  # noqa: ANN401  # of `publish`
            number = self_.generation.manifest.generation
            model = history.models[number] if self_.keeps_model else None
            self.building[self_.stage] = history.lineages[number], model
            return publish(self_, *arguments)

        def noted_generation(self_: Any, folder: Path, number: int) -> Path:  # noqa: ANN401  # a Staging
            if self_._target == self.path:
                task = self.scheduler.task
                current = generations.IndexFolder(self.path).current()
                extension = history.lineages[current], history.models[current]
                building = self.building.get(self_) or self.building.get(task)
                lineage, model = building or extension
                history.lineages[number] = lineage
                history.models[number] = number if model is None else model
            return make_current(self_, folder, number)

        patch.setattr(target.WriteTarget, "write", noted_write)
        patch.setattr(Renewal, "publish", noted_renewal)
        patch.setattr(generations.Staging, "_make_current", noted_generation)

    # Answers.

    def check_index(self, index: Index, floor: Version, reader: str) -> Version:
        """Check all points of an index, and the bytes of answers; return its version."""
        version = Version(index.engine.generation, index.engine.sequence)
        stamps = stamps_of(index)
        self.history.check_answer(version, stamps, floor, reader)
        self._check_bytes(index, version)
        return version

    def _check_bytes(self, index: Index, version: Version) -> None:
        queries = vectors_of([90, 91], 5, kind_of(index))
        options: Any = {"k": 5, "keep_duplicates": True, "selector": "nearest"}
        model = self.history.models[version.generation]
        for key, search in (
            (("exact",), {"search": "exact"}),
            (("tables", model), {"search": "tables", "n_probes": 2, "hash_limit": 0}),
        ):
            result = index.query(queries, **options | search)
            digest = result.ids.tobytes() + result.scores.tobytes() + result.counts.tobytes()
            self.history.check_digest(version.generation, (*key, version.sequence), digest)
