"""The processes of a run: the writer with its callers, readers, a builder, snapshots."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from divgrpc import Collection, Index
from divgrpc.backup import restore_snapshot, write_snapshot
from divgrpc.engine import Engine
from divgrpc.errors import (
    BuildUnderWayError,
    ConditionFailedError,
    DivgrpcError,
    IndexChangedError,
    IndexDamagedError,
    MergesBehindError,
    StorageInUseError,
)
from divgrpc.storage import generations
from divgrpc.storage.generations import IndexFolder
from divgrpc.types import Durability, WriteResult
from divgrpc.writes.committer import Committer
from divgrpc.writes.opening import open_engine, open_index
from divgrpc.writes.replica import MergedReplica
from simulation.history import Lineage, Op, Version
from simulation.scheduler import Ended, Process, Task
from simulation.world import INDEX, World
from support.data.stamped_points import (
    IDS,
    columns_of,
    is_optional,
    stamps_of,
    written_vectors_of,
)
from support.data.written_points import kind_of

# What the code under test may raise after an error of the disk.
_ERRORS: Final = (DivgrpcError, OSError)
# Share of the writes that a caller sends again, as if no answer had come.
_REPEATED_SHARE: Final = 0.15
_RESTARTS_MAX: Final = 40
# Processes that are killed, and the share of a loss of power where there may be one.
_VICTIMS: Final = ("writer", "builder")
_LOST_POWER_SHARE: Final = 0.3
_ATTEMPTS_MAX: Final = 30
_BACKOFF: Final = 1.3
# Seconds before a writer starts again, on average.
_REST_SECONDS_MAX: Final = 0.05


class ServedCollection(Collection):
    """A collection of a server's writer: it answers no queries, and no write waits for a merge."""

    def __init__(self, engine: Engine, *, durability: Durability = "sync") -> None:
        assert engine.folder is not None
        options = {"has_queries": False, "waits_for_merges": False}
        self._committer = Committer(engine, engine.folder, durability, **options)
        Index.__init__(self, engine)


def _is_over(runner: Process | Task) -> bool:
    return runner.is_over


def serve(world: World, _process: Process) -> None:
    """Recover the index, start readers and others, and a writer as long as there is work."""
    recover(world)
    options = world.options
    if options.has_intruder:
        world.process("intruder", partial(_intrude, world))
    for number in range(options.readers):
        world.process(f"reader {number}", partial(_read, world))
    if options.builds:
        world.process("builder", partial(_build, world))
    if options.kills:
        world.process("killer", partial(_kill, world))
    if options.snapshots:
        world.process("snapshots", partial(_copy, world))
    for _ in range(_RESTARTS_MAX):
        if not (world.ops or world.renewals):
            break
        process = world.process("writer", partial(_write_all, world))
        world.scheduler.wait_until(partial(_is_over, process))
        # The intruder may have the index open for many syncs, and longer if the system stops it.
        seconds = world.options.call_seconds + world.options.sync_seconds
        world.rest(min(seconds * _BACKOFF**world.failed_starts, max(seconds, _REST_SECONDS_MAX)))
    world.history.check(not world.ops, "the writer has not made all writes after many starts")
    if options.is_deleted_last:
        for other in world.processes[1:]:
            world.scheduler.wait_until(partial(_is_over, other))
        _delete(world)


def recover(world: World) -> None:
    """Do what a server does before it serves, in a process that may end."""

    def main(_process: Process) -> None:
        with generations.lock_root(world.root):
            generations.sweep(world.root)
            for name in generations.indexes_to_recover(world.root):
                Collection.open(world.root / name).close()

    for _ in range(_RESTARTS_MAX):
        process = world.process("recovery", partial(attempt, world, "recovery", main))
        world.scheduler.wait_until(partial(_is_over, process))
        if process.is_alive and not generations.indexes_to_recover(world.root):
            return
    world.history.check(False, "the index is not recovered after many starts")


def attempt(
    world: World, name: str, function: Callable[[Process], object], process: Process
) -> bool:
    """Call a function that may fail after an error of the disk; return whether it did not."""
    try:
        function(process)
    except _ERRORS as error:
        world.history.note(f"{name}: {type(error).__name__}: {error}")
        _check_error(world, name, error)
        return False
    return True


def _check_error(world: World, name: str, error: Exception) -> None:
    """Fail for damage, and for an error of the system where no fault has caused one."""
    is_caused = any(line.startswith(("error", "short")) for line in world.faults.log)
    text = f"{name} fails without a cause: {error!r}"
    is_expected = isinstance(error, DivgrpcError) and not isinstance(error, IndexDamagedError)
    world.history.check(is_expected or (isinstance(error, OSError) and is_caused), text)


def _delete(world: World) -> None:
    """Delete the index; if the process ends before it has, the index is whole or gone."""

    def main(_process: Process) -> None:
        IndexFolder(world.path).delete()
        world.history.note("the index is deleted")
        world.history.is_deleted = True

    world.history.is_deleted = None
    process = world.process("deletion", partial(attempt, world, "deletion", main))
    world.scheduler.wait_until(partial(_is_over, process))


# The writer and its callers.


def _write_all(world: World, process: Process) -> None:
    """Open the index for writing, and serve callers until the work is done or it must be opened."""
    attempt(world, "writer", partial(_serve_callers, world), process)
    # The threads of a process end with it.
    world.scheduler.kill(process)


def _serve_callers(world: World, process: Process) -> None:
    options, floor = world.options, world.history.latest
    kind = ServedCollection if options.is_served else Collection
    world.failed_starts += 1
    collection = kind.open(world.path, durability=options.durability)
    world.failed_starts = 0
    world.history.note(f"the writer opens {collection.generation}.{collection.sequence}")
    world.keep_opened(collection.generation)
    if not options.is_served:
        version = world.check_index(Index(collection.engine), floor, "the writer")
        world.history.see(version)
        world.keep_seen()
    tasks = [
        world.scheduler.spawn(process, f"caller {n}", partial(_call, world, collection))
        for n in range(options.clients)
    ]
    renewing = partial(_renew_all, world, collection)
    tasks += [
        world.scheduler.spawn(process, f"renewals {number}", renewing)
        for number in range(options.renewers)
    ]
    for task in tasks:
        world.scheduler.wait_until(partial(_is_over, task))
    if world.rng.random() < 0.7:
        collection.close()
        world.history.note("the writer closes")
        world.keep_synced(world.history.latest)


def _intrude(world: World, process: Process) -> None:
    """Try to write as a second process, which is refused while the first one has the index open."""

    def main(_process: Process) -> None:
        with Collection.open(world.path, durability=world.options.durability) as collection:
            world.history.note("the intruder opens the index")
            if world.ops:
                op = world.ops.popleft()
                if not _make(world, collection, op):
                    world.ops.appendleft(op)

    while world.ops:
        world.rest(3 * world.options.call_seconds)
        attempt(world, "intruder", main, process)


def _call(world: World, collection: Collection) -> None:
    """Make writes, one after another, and some of them again under their name."""
    while world.ops:
        op = world.ops.popleft()
        if not _make(world, collection, op):
            world.ops.appendleft(op)
            return
        if not op.is_repeated and not op.if_latest and world.rng.random() < _REPEATED_SHARE:
            op.is_repeated = True
            world.ops.insert(world.rng.randrange(len(world.ops) + 1), op)
        world.rest(world.options.call_seconds)


def _kill(world: World, process: Process) -> None:
    """Kill the writer or the builder at random times, or lose the power."""
    for _ in range(world.options.kills):
        world.rest(world.options.kill_seconds)
        if not world.ops:
            return
        victims = [p for p in world.processes if p.name in _VICTIMS and not p.is_over]
        if world.options.has_power and world.rng.random() < _LOST_POWER_SHARE:
            world.lose_power()
            world.scheduler.kill(process)
        elif victims:
            victim = world.rng.choice(victims)
            world.history.note(f"the {victim.name} is killed")
            world.scheduler.kill(victim)


def _make(world: World, collection: Collection, op: Op) -> bool:
    """Make a write; return whether the caller is done with it and need not open the index again."""
    history = world.history
    for attempt in range(_ATTEMPTS_MAX):
        floor = history.begin(op)
        try:
            result = send(collection, op, op.name)
        except Ended:
            history.abandon(op)
            world.ops.appendleft(op)
            raise
        except ConditionFailedError as error:
            history.refuse(op, error, floor)
            return True
        except _ERRORS as error:
            history.fail(op, error)
            _check_error(world, op.name, error)
            if isinstance(error, IndexChangedError | StorageInUseError) or "read-only" in str(
                error
            ):
                return False
            if not isinstance(error, MergesBehindError | BuildUnderWayError):
                return world.rng.random() < 0.5
            # Callers try again later and later, because a build may take long.
            world.rest(world.options.call_seconds * _BACKOFF**attempt)
        else:
            history.acknowledge(op, result, floor)
            world.keep_written(Version(result.generation, result.sequence))
            _check_own_write(world, collection, result)
            return True
    return False


def _check_own_write(world: World, collection: Collection, result: WriteResult) -> None:
    """Check what a query of the writer shows after a write, sometimes.

    It may show a generation that was replaced meanwhile, until the writer notices.
    """
    if not world.options.is_served and world.rng.random() < 0.2:
        floor = Version(result.generation, result.sequence)
        world.check_index(Index(collection.engine), floor, "a caller")


def send(collection: Collection, op: Op, name: str) -> WriteResult:
    """Make a write under a name."""
    write, sequence = op.write, collection.sequence if op.if_latest else None
    if write.is_deletion:
        return collection.delete(write.ids, if_sequence=sequence, write_id=name)
    vectors = written_vectors_of(
        write.ids, write.stamp, kind_of(collection), is_optional=is_optional(collection)
    )
    columns = columns_of([write.stamp] * len(write.ids))
    return collection.upsert(
        write.ids, vectors, mode=op.mode, if_sequence=sequence, write_id=name, **columns
    )


def _renew_all(world: World, collection: Collection) -> None:
    """Merge, vacuum and retrain, as often as the options say."""
    while world.renewals:
        world.rest(world.rng.choice((0.5, 4)) * world.options.call_seconds)
        if not world.renewals:
            return
        name = world.renewals.popleft()
        begin = world.history.latest
        try:
            is_done = _renew(world, collection, name)
        except _ERRORS as error:
            world.history.note(f"{name} fails: {type(error).__name__}: {error}")
            _check_error(world, name, error)
            if isinstance(error, IndexChangedError | StorageInUseError):
                return
        else:
            version = Version(collection.generation, begin.sequence)
            world.history.note(f"{name} returns {is_done}, {version}")
            if name in ("vacuum", "retrain", "add_attributes") or (name == "merge" and is_done):
                _note_renewal(world, begin, version)


def _renew(world: World, collection: Collection, name: str) -> bool:
    """Do one of the things that an operator may do; return whether there was anything to do."""
    if name == "add_attributes":
        ids = list(world.history.lineages[collection.generation].base)
        attribute = f"added{len(world.renewals)}"
        collection.add_attributes({attribute: ids}, ids=ids)
        return True
    if name == "set_default":
        manifest = collection.committer.manifest
        IndexFolder(world.path).set_defaults(manifest, thresholds={"embedding": 0.25})
        return True
    return bool(getattr(collection.committer, name)())


def _note_renewal(world: World, begin: Version, version: Version) -> None:
    """Note that what was seen before a merge or a new generation is durable after it."""
    lineages = world.history.lineages
    if lineages[begin.generation] is lineages[version.generation]:
        world.history.see(max(version, world.history.latest))
        world.keep(version)


# Readers.


def _read(world: World, process: Process) -> None:
    """Ask questions as a worker does, which opens the index again when CURRENT changes."""
    folder, index, opened = IndexFolder(world.path), None, None
    while world.ops or world.renewals:
        world.rest(world.options.call_seconds)
        floor = world.history.latest
        for _ in range(_ATTEMPTS_MAX):
            stamp = folder.pointer_stamp()
            if index is None or stamp != opened:
                index, opened = open_index(world.path), stamp
            try:
                engine = index.follow() if isinstance(index, MergedReplica) else index
                break
            except (IndexDamagedError, FileNotFoundError):
                if folder.pointer_stamp() == opened:
                    raise
        version = world.check_index(Index(engine), floor, process.name)
        world.history.see(version)
        world.keep_seen()


# Builders, and snapshots.


def _build(world: World, process: Process) -> None:
    """Replace all points by a new build."""
    for number in range(world.options.builds):
        # The last one may come after all writes.
        world.rest(world.rng.choice((0.5, 8, 40)) * world.options.call_seconds)
        stamp = 10**6 + number
        ids = list(range(0, IDS, 2))
        lineage = Lineage(dict.fromkeys(ids, stamp))
        world.building[world.scheduler.task] = lineage, None

        def build(_process: Process, stamp: int = stamp, ids: list[int] = ids) -> None:
            index = world.options.kind.build(world.path, stamp, ids, replace=True)
            version = Version(index.generation, 0)
            world.history.note(f"a build makes {version}")
            world.history.see(version)
            world.keep(version)

        attempt(world, "build", build, process)


def _copy(world: World, process: Process) -> None:
    """Make a snapshot while writes go on, restore it elsewhere, and compare the points."""
    for number in range(world.options.snapshots):
        world.rest(8 * world.options.call_seconds)
        copies = world.root.parent / f"{world.root.name}-copies-{number}"

        def copy(_process: Process, copies: Path = copies) -> None:
            floor = world.history.latest
            write_snapshot(world.root, copies.with_suffix(".tar"))
            (entry,) = restore_snapshot(copies.with_suffix(".tar"), copies)
            engine = open_engine(copies / INDEX)
            version = Version(engine.generation, engine.sequence)
            same = (entry.generation, entry.sequence) == version
            world.history.check(same, f"a snapshot of {entry} has {version}")
            world.check_index(Index(engine), floor, "a snapshot")
            # It takes the place of the index there, under the next number.
            (again,) = restore_snapshot(copies.with_suffix(".tar"), copies, replace=True)
            same = stamps_of(Index(open_engine(copies / INDEX))) == stamps_of(Index(engine))
            world.history.check(same, f"a snapshot of {entry} is restored as {again}")

        attempt(world, "snapshot", copy, process)
