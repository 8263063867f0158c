"""Runs of seeds: what a seed decides, the lives of the index, and the outcome."""

import random
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from divgrpc import Collection, Index
from divgrpc.doctor import check_folder
from divgrpc.storage import generations
from divgrpc.writes.opening import open_engine
from simulation.actors import attempt, send, serve
from simulation.failpoints import FailpointMap
from simulation.faults import draw_errors, draw_errors_of_syncs, draw_faults, draw_focused
from simulation.history import Op, Version, ViolationError
from simulation.mutation import Changes
from simulation.promises import POINTER_RENAME, doubtful_events
from simulation.repairs import check_repair
from simulation.scheduler import DeadlockError, Process
from simulation.world import INDEX, KINDS, Options, World
from support.data.stamped_points import IDS, Write, after, check_answers, stamps_of

_LIVES_MAX: Final = 4
_SEEDS_PER_BAD_DISK: Final = 4
_BAD_SYNCS_SHARE: Final = 0.3
_RENEWALS: Final = (
    *("merge", "merge", "merge", "vacuum", "vacuum", "retrain", "add_attributes", "set_default"),
)
# Folders that a loss of power may leave, for each one.
_LEFT_FOLDERS: Final = 2
# Folders that a loss of power might have left at other moments of a life.
_OTHER_FOLDERS: Final = 3
_DOUBTFUL_FOLDERS: Final = 4


@dataclass
class Outcome:
    """The outcome of a run.

    failure: why the run failed; "" if it did not.
    history: what happened.
    counts: how often each failpoint was reached.
    faults: the faults that happened.
    """

    seed: int
    failure: str = ""
    history: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    unnamed: set[str] = field(default_factory=set)
    seconds: float = 0.0


def make_templates(folder: Path) -> None:
    """Build an index of each kind, which runs copy."""
    for kind in KINDS:
        kind.build(folder / kind.name / INDEX, 0, list(range(IDS)))


def draw_options(seed: int, names: list[str]) -> Options:
    """Return what a seed decides."""
    rng = random.Random(f"options {seed}")
    has_power = rng.random() < 0.5
    call_seconds = rng.choice((0.0001, 0.001, 0.01))
    snapshots = int(rng.random() < 0.15)
    # The doctor gets faults of its own.
    prefixes = ("doctor.",) if snapshots else ("doctor.", "backup.")
    names = [name for name in names if not name.startswith(prefixes)]
    has_bad_disk = seed % _SEEDS_PER_BAD_DISK == _SEEDS_PER_BAD_DISK - 1
    errors = draw_errors(rng, names) if has_bad_disk else []
    if has_power and rng.random() < _BAD_SYNCS_SHARE:
        errors += draw_errors_of_syncs(rng)
    return Options(
        kind=rng.choice(KINDS),
        durability=rng.choice(("sync", "sync", "interval", "process")),
        is_served=rng.random() < 0.4,
        has_power=has_power,
        share=rng.choice((0.02, 0.1, 0.4)),
        stall_share=rng.choice((0, 0, 0.002, 0.01)),
        slow_share=rng.choice((0, 0.1, 0.5)),
        call_seconds=call_seconds,
        sync_seconds=rng.choice((1.03, 4.03)) * call_seconds,
        kills=rng.choice((0, 0, 2, 8)),
        kill_seconds=rng.choice((5, 20)) * call_seconds,
        clients=rng.randint(1, 3),
        readers=rng.choice((0, 1, 1, 2)),
        writes=rng.randint(8, 24),
        renewals=rng.choices(_RENEWALS, k=rng.randint(0, 3)),
        renewers=rng.randint(1, 2),
        builds=rng.choice((0, 0, 0, 0, 1, 3)),
        snapshots=snapshots,
        has_intruder=rng.random() < 0.15,
        rows_max=rng.choice((1, 1, 4)),
        has_deletions=rng.random() < 0.7,
        is_deleted_last=rng.random() < 0.1,
        is_damaged_last=rng.random() < 0.35,
        log_bytes=rng.choice((512, 2_048, 8_192)),
        merged_rows=rng.choice((6, 25, 10**9)),
        faults=errors + draw_faults(rng, names, power=has_power),
    )


def _draw_ops(rng: random.Random, options: Options) -> list[Op]:
    ops = []
    for stamp in range(1, options.writes + 1):
        ids = rng.sample(range(IDS), rng.randint(1, options.rows_max))
        write = Write(options.has_deletions and rng.random() < 0.3, ids, stamp)
        mode: Any = rng.choice(("upsert",) * 6 + ("insert_only", "update_only"))
        ops.append(Op(write, "upsert" if write.is_deletion else mode, rng.random() < 0.1))
    return ops


def run_seed(
    seed: int,
    templates: Path,
    folder: Path,
    failpoints: FailpointMap,
    changes: Changes,
) -> Outcome:
    """Run a seed in an empty folder.

    changes: options that replace those of the seed.
    """
    outcome = Outcome(seed)
    start = time.process_time()
    options = replace(draw_options(seed, failpoints.names), **changes)
    if options.focus is not None:
        # A source of its own, so that no other draw differs.
        fault = draw_focused(random.Random(f"focus {seed}"), failpoints.names, options.focus)
        options = replace(options, faults=[*options.faults, fault])
    shutil.copytree(templates / options.kind.name, folder / "life-0")
    world = World(seed, options, folder / "life-0", failpoints)
    world.ops.extend(_draw_ops(world.rng, options))
    world.ops_by_name = {op.name: op for op in world.ops}
    world.history.note(str(options))
    try:
        _live(world, folder)
    except (Exception, ViolationError, DeadlockError) as error:  # noqa: BLE001  # it is reported
        lines = traceback.format_exception(error)
        is_violation = isinstance(error, ViolationError)
        outcome.failure = str(error) if is_violation else "".join(lines[-12:])
    world.history.note(f"ends after {world.scheduler.pauses} pauses")
    # The name of the folder differs from run to run.
    outcome.history = [line.replace(str(folder), "") for line in world.history.lines]
    outcome.counts, outcome.faults = world.system.counts, world.faults.log
    outcome.unnamed = world.system.unnamed
    outcome.seconds = time.process_time() - start
    return outcome


def _live(world: World, folder: Path) -> None:
    """Let the index live until its processes have done their work, or most lives are over."""
    for number in range(_LIVES_MAX):
        with pytest.MonkeyPatch.context() as patch:
            world.patch(patch)
            world.lost_event = None
            world.processes.clear()
            world.process("server", partial(serve, world))
            world.scheduler.run()
            _check_other_folders(world, folder, number)
            if world.lost_event is None:
                _without_faults(world, partial(_check_end, world))
                if world.options.is_damaged_last and generations.list_indexes(world.root):
                    check_repair(world, partial(_attempt, world))
                return
            if not _lose_power(world, folder, number + 1):
                return


def _attempt(world: World, name: str, function: Callable[[Process], object]) -> bool:
    """Run a process that may end at a fault or fail after it; return whether it did not."""
    outcomes: list[bool] = []
    world.process(name, lambda process: outcomes.append(attempt(world, name, function, process)))
    world.scheduler.run()
    return outcomes == [True]


def _without_faults(world: World, check: Callable[[], object]) -> None:
    """Call a function in a process, while no fault happens."""
    waiting, world.faults.waiting = world.faults.waiting, []
    world.process("check", lambda _: check())
    world.scheduler.run()
    world.faults.waiting = waiting


def _is_gone(world: World, root: Path) -> bool:
    """Check that the index is there, unless it was deleted; tell whether it is gone."""
    is_gone = not generations.list_indexes(root)
    world.history.check(not is_gone or world.history.is_deleted is not False, "the index is lost")
    is_back = not is_gone and world.history.is_deleted is True
    world.history.check(not is_back, "the index is there again after its deletion")
    return is_gone


def _check_end(world: World) -> None:
    """Check what is there after all processes have ended, none of them by a loss of power."""
    floor = world.history.latest
    generations.sweep(world.root)
    if _is_gone(world, world.root):
        return
    world.check_index(Index(open_engine(world.path)), floor, "a reader at the end")
    with Collection.open(world.path) as collection:
        world.check_index(Index(collection.engine), floor, "a writer at the end")
        if world.rng.random() < 0.2:
            check_answers(collection, stamps_of(collection))
    (report,) = check_folder(world.path)
    damage = f"the doctor finds {report.findings}"
    world.history.check(report.verdict in ("ok", "repairable"), damage)


def _lose_power(world: World, folder: Path, life: int) -> bool:
    """Check folders that the loss of power may leave; return whether the index is in the last one.

    The last one is what the next life has.
    """
    assert world.disk is not None
    assert world.lost_event is not None
    world.boot += 1
    for number in range(_LEFT_FOLDERS):
        is_other = number < _LEFT_FOLDERS - 1
        path = folder / f"life-{life}{'-other' * is_other}"
        version = _check_left(world, path, world.lost_event, is_over=is_other)
    world.root = path
    if version is None:
        return False
    world.history.is_deleted = False
    world.history.truncate(version)
    return True


def _check_other_folders(world: World, folder: Path, life: int) -> None:
    if world.disk is None:
        return
    rng, disk = world.rng, world.disk
    world.boot += 1
    doubts = doubtful_events(world)
    if doubts:
        world.history.note(f"doubts about {len(doubts)} moments")
    for share in sorted({share for _, share in doubts}):
        events = [event for event, other in doubts if other == share]
        # Without chance, all folders are the same.
        for number in range(_DOUBTFUL_FOLDERS if 0 < share < 1 else 1):
            path = folder / f"left-{life}-doubtful-{share}-{number}"
            _check_left(world, path, rng.choice(events), share)
    for number in range(_OTHER_FOLDERS):
        # Defects show most often at the moment of a promise, and around a rename.
        events = [rng.randint(0, disk.event), rng.choice(world.floors)[0]]
        events += [rng.choice(world.appends)] if world.appends else []
        if world.renames:
            pointer = world.renames.get(POINTER_RENAME)
            events.append(rng.choice(world.renames[rng.choice(sorted(world.renames))]))
            events.append(rng.choice(pointer) + rng.randint(0, 2) if pointer else events[-1])
        event = min(rng.choice(events), disk.event)
        _check_left(world, folder / f"left-{life}-{number}", event)
    world.boot -= 1


def _check_left(
    world: World, path: Path, event: int, share: float | None = None, *, is_over: bool = True
) -> Version | None:
    """Check a folder that a loss of power may leave; return the version of the index in it.

    share: as in `Disk.leave`.
    is_over: whether nobody uses the folder later.
    """
    assert world.disk is not None
    world.disk.leave(path, event, np.random.default_rng(world.rng.randrange(2**32)), share)
    versions: list[Version | None] = []
    _without_faults(world, lambda: versions.append(_check_recovered(world, path, event)))
    if is_over and versions[0] is not None:
        _without_faults(world, partial(_check_repetition, world, path, versions[0]))
    return versions[0]


def _check_recovered(world: World, path: Path, event: int) -> Version | None:
    """Recover the index in a folder that a loss of power may leave, and return its version.

    If it was being deleted, there may be none.
    """
    if world.history.is_deleted is not False and not generations.list_indexes(path):
        return None
    (report,) = check_folder(path / INDEX)
    damage = f"after a loss of power, the doctor finds {report.findings}"
    is_synced = world.options.durability == "sync"
    world.history.check(report.verdict in ("ok", "repairable") or not is_synced, damage)
    generations.sweep(path)
    for name in generations.indexes_to_recover(path):
        Collection.open(path / name).close()
    index = Index(open_engine(path / INDEX))
    version = Version(index.engine.generation, index.engine.sequence)
    reader = f"after event {event}, a reader"
    stamps = stamps_of(index)
    world.history.check_answer(version, stamps, world.floor_at(event), reader)
    return version


def _check_repetition(world: World, path: Path, version: Version) -> None:
    """Make the first write again that a loss of power has removed, and recover the index again.

    No record of the log that was not kept may follow it.
    """
    op = world.history.lineages[version.generation].ops.get(version.sequence + 1)
    with Collection.open(path / INDEX) as collection:
        stamps = stamps_of(collection)
        if op is None or op.is_refused(stamps):
            return
        # The history does not have it: the record is as long, but has another name.
        send(collection, op, op.name.title())
    with Collection.open(path / INDEX) as collection:
        again = Version(collection.generation, collection.sequence)
        is_next = again == version._replace(sequence=version.sequence + 1)
        world.history.check(is_next, f"a write after {version} is {again} after a recovery")
        is_same = stamps_of(collection) == after(stamps, op.write)
        world.history.check(is_same, f"a write after {version} changes other points")
