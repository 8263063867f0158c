"""One run: the processes of a server, and the code with sockets, time and threads replaced."""

import asyncio
import io
import itertools
import math
import os
import random
import secrets
import select
import socket
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest

from divgrpc import engine as engines
from divgrpc import parallel
from divgrpc.parameters import INDEX_NAME
from divgrpc.storage import generations, published
from divgrpc.storage.generations import POINTER, IndexFolder, open_generation
from divgrpc.writes import committer, log, opening, replica, target
from divgrpc_server.config import Config
from divgrpc_server.front import admission, pool, quarantine, query_stream
from divgrpc_server.ipc import control, job_calls, job_frames, packets, progress
from divgrpc_server.supervisor import supervisor
from divgrpc_server.worker import batches, front_link, index_cache
from divgrpc_server.worker import process as worker_process
from divgrpc_server.writer import collections, renewals
from divgrpc_server.writer import process as writer_process
from simulation.failpoints import FailpointMap
from simulation.faults import Faults as FaultsOfDisk
from simulation.faults import Focus
from simulation.history import ViolationError
from simulation.scheduler import Executor, Process, Scheduler, clock, threads, wait
from simulation.serving import loop
from simulation.serving.faults import Fault, Faults, Kind
from simulation.serving.network import Channel, End, Event, Network, Poller, frames
from simulation.serving.requests import (
    DATASET_IDS,
    FATAL_INDEX,
    HANG,
    POISON,
    Answers,
    Version,
)
from simulation.serving.state import is_renewing, why_front_not_idle, why_worker_not_idle
from simulation.serving.writes import WriteHistory
from simulation.system import System
from support.processes.crashing_writer import SMALL

INDEX: Final = "points"
_STAT: Final = os.stat
_SPIN_SECONDS: Final = 5e-5
# Longer than the silence after which a worker is replaced.
_HANG_SECONDS: Final = 60.0
# A little less than the time for which a request that has ended two workers is refused.
_REFUSAL_SECONDS: Final = 59.0


Action = tuple[str, int]
Stamp = tuple[int, int]


@dataclass
class Options:
    """What a seed decides.

    share, stall_share: as of the scheduler.
    row_seconds: seconds that a worker takes for a row of a query.
    open_seconds, start_seconds: seconds to open a generation and to start a process, on average.
    callers, actions: of each front, and what each of them does.
    kills, kill_seconds: how often a process is killed, and the seconds between kills on average.
    builds: how many builds there are.
    writes, renewals: how many writes there are, and merges, vacuums and retrainings.
    fatal_calls: how often callers ask for an index whose opening ends its worker.
    focus: where there is one more fault; no seed draws one, but a past defect may have one.
    """

    config: Config
    share: float
    stall_share: float
    row_seconds: float
    open_seconds: float
    start_seconds: float
    buffer_bytes: int
    callers: int
    actions: int
    poison_share: float
    kills: int
    kill_seconds: float
    builds: int
    writes: int
    renewals: int
    faults: list[Fault] = field(default_factory=list)
    fatal_calls: int = 0
    focus: Focus[Kind] | None = None


@dataclass
class Deaths:
    """The processes that have ended or hang.

    workers: when workers were killed by chance, not by a request.
    neighbours: the names of other processes that were killed, and when.
    causes: how many workers each request has ended, by its number, and how many it may end.
    condemned: requests that are known to have ended two workers: since when, and of which index.
    openings: how many workers have ended while they opened an index, and how many may.
    hanging: the workers that hang.
    """

    workers: list[float] = field(default_factory=list)
    neighbours: list[tuple[str, float]] = field(default_factory=list)
    causes: Counter[int] = field(default_factory=Counter)
    causes_max: dict[int, float] = field(default_factory=dict)
    condemned: dict[int, tuple[float, Stamp]] = field(default_factory=dict)
    openings: int = 0
    openings_max: int = 0
    hanging: set[Process] = field(default_factory=set)

    @property
    def ends(self) -> int:
        """How many workers have ended."""
        return len(self.workers) + self.causes.total() + self.openings


class Log:
    """Stands for the logger: an error that the code did not expect fails the run."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def _note(self, text: str, **fields: object) -> None:
        # Differs from run to run, or is long.
        shown = {name: value for name, value in fields.items() if name not in ("exc_info", "pid")}
        self._world.note(f"log: {text} {shown}")

    debug = info = warning = error = _note

    def exception(self, text: str, **fields: object) -> None:
        """Fail: the code under test has caught an error that it did not expect."""
        self._world.fail(f"a fault is logged: {text} {fields}", show_cause=True)


class World:
    """What the processes of a run share.

    published: the versions of the index, in the order in which they became current.
    stamps: the stamps of its pointer that were seen; each new one ends the quarantine of requests.
    generation_floor: the greatest generation that a caller has seen or was told of.
    """

    def __init__(
        self,
        seed: int,
        options: Options,
        root: Path,
        *,
        answers: Answers,
        actions: list[Action],
        places: FailpointMap,
    ) -> None:
        self.options, self.root = options, root
        self.rng = random.Random(f"serving {seed}")
        self.scheduler = Scheduler(seed, options.share, options.stall_share, 0.01)
        self.faults = Faults(self.scheduler, options.faults)
        self.network = Network(self.scheduler, self.faults, options.buffer_bytes)
        self.log: Any = Log(self)
        self.lines: list[str] = []
        self.published: list[Version] = []
        self.stamps: set[Stamp | None] = set()
        self.generation_floor = 0
        self.answers, self._places = answers, places
        self.writes = WriteHistory(self.check)
        self.actions = deque(actions)
        # Actions that a caller has begun, with the name of its front.
        self.busy_callers: set[tuple[str, Action]] = set()
        self.workers: dict[Process, worker_process.Worker] = {}
        self.writers: dict[Process, writer_process.Writer] = {}
        self.fronts: dict[Process, Any] = {}
        self.children: dict[Process, Any] = {}
        self.supervisor: Any = None
        self.supervisor_loop: Any = None
        # Starts a child of the supervisor.
        self.new_child: Callable[..., object]
        self.deaths = Deaths()
        self.is_quiet = False
        self.front_starts = 0
        self.faults.on_kill = self.note_kill

    # The history.

    def note(self, text: str) -> None:
        """Add a line to the history."""
        task = self.scheduler.task
        name = task.process.name if task else "-"
        self.lines.append(f"{self.scheduler.now:.6f} {name}: {text}")

    def fail(self, text: str, *, show_cause: bool = False) -> None:
        """End the run: something that must hold does not."""
        error = ViolationError(text)
        if show_cause:
            import sys
            import traceback

            self.note(traceback.format_exc() if sys.exc_info()[0] else "")
        self.scheduler.fail(error)

    def check(self, holds: bool, text: str) -> None:  # as of `assert`
        """Fail unless something holds."""
        if not holds:
            self.fail(text)

    @property
    def current(self) -> int:
        """The current generation."""
        return self.published[-1].generation

    def note_kill(self, process: Process) -> None:
        """Note that a process is killed by chance, with the calls of its callers."""
        if process.name.startswith("worker "):
            self.deaths.workers.append(self.scheduler.now)
        else:
            self.deaths.neighbours.append((process.name, self.scheduler.now))
        front = self.fronts.get(process)
        if front is not None:
            # Somebody must make its writes, which have names.
            lost = [action for name, action in self.busy_callers if name == process.name]
            self.actions.extend(sorted(action for action in lost if action[0] == "write"))
            self.busy_callers = {c for c in self.busy_callers if c[0] != process.name}

    def check_report(self, serial: int, *, is_silent: bool) -> None:
        """Check that a worker that a front reports has ended or hangs.

        is_silent: whether the worker is connected to the front. A worker closes the socket to a
            front that has stood still.
        """
        has_stopped = self.network.process.name in self.stopped_fronts()
        for process, child in self.children.items():
            is_fine = process in self.deaths.hanging or not process.is_alive or process.is_over
            is_fine |= has_stopped and not is_silent
            self.check(is_fine or child.serial != serial, "a worker is reported that works")

    def check_fronts(self) -> None:
        """Check that a worker that waits has left fronts that have ended or stand still."""
        process = self.network.process
        worker = self.workers.get(process) or self.writers.get(process)
        # A suspect is answered before anything else is done.
        if worker is not None and worker._notes_kept is None:
            is_left = any(front.is_gone for front in worker._fronts.values())
            self.check(not is_left, "a worker waits for a front that took no answer")

    def stamp(self, name: str) -> tuple[int, int] | None:
        """Return the stamp of an index, as a front does."""
        return IndexFolder(self.root / name).pointer_stamp() if INDEX_NAME.fullmatch(name) else None

    def stopped_fronts(self) -> list[str]:
        """Return the names of the fronts that have stood still for long."""
        return [fault.process for fault in self.faults.log if fault.kind == "stop"]

    def pointer(self) -> Stamp:
        """Return a value that changes with the current generation; no other task runs meanwhile."""
        status = _STAT(self.root / INDEX / POINTER)
        return status.st_ino, status.st_mtime_ns

    def why_not_idle(self) -> str:
        """Return what keeps the server from being idle; "" if it is."""
        config = self.options.config
        if len(self.fronts) != config.fronts or len(self.workers) != config.workers:
            return f"{len(self.fronts)} fronts and {len(self.workers)} workers run"
        if len(self.children) > config.fronts + config.workers + len(self.writers):
            return "a builder runs"
        reasons = [why_front_not_idle(front.pool, config.workers) for front in self.fronts.values()]
        reasons += ["a front waits for a job" for f in self.fronts.values() if f.jobs._requests]
        reasons += ["the writer renews" for writer in self.writers.values() if is_renewing(writer)]
        writers = len(self.writers)
        reasons += [why_front_not_idle(f.writer_pool, writers) for f in self.fronts.values()]
        processes = (*self.workers.values(), *self.writers.values())
        reasons += [why_worker_not_idle(worker, config.fronts) for worker in processes]
        return next(filter(None, reasons), "")

    def check_folder(self) -> None:
        """Check that there is one generation, and nothing that a build has left."""
        left = [path.name for path in generations.leftovers(self.root / INDEX)]
        self.check(not left, f"builds leave {left}")
        if self.options.writes:
            self.writes.check_all()
        numbers = generations.generation_numbers(self.root / INDEX)
        self.check(list(numbers) == [self.current], f"generations {numbers}, not {self.current}")

    # Processes.

    def process(self, name: str, main: Callable[[Process], object]) -> Process:
        """Start a process."""
        process = Process(name)
        self.scheduler.spawn(process, "main", partial(main, process))
        return process

    def identity(self, serial: int, end: End) -> control.Process:
        """Return what a child process knows about itself."""
        channel: Any = Channel(end)
        return control.Process(channel, self.options.config, self.root, serial)

    def rest(self, mean_seconds: float) -> None:
        """Wait for a random time."""
        self.scheduler.sleep(self.rng.expovariate(1 / mean_seconds))

    # What the code under test calls.

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Replace sockets, clock and threads until `patch` is undone."""
        times = clock(self.scheduler, 1.7e9)
        for module in (
            pool,
            quarantine,
            query_stream,
            worker_process,
            front_link,
            batches,
            index_cache,
            progress,
        ):
            patch.setattr(module, "time", times)
        defaults: Any = admission.Admission.__init__.__kwdefaults__
        patch.setitem(defaults, "clock", times.monotonic)
        masks = {name: getattr(select, name) for name in ("POLLIN", "POLLOUT", "POLLRDHUP")}
        for module, check in (
            (worker_process, self.check_fronts),
            (job_calls, lambda: None),
            (progress, lambda: None),
        ):
            poll = partial(Poller, self.network, check)
            patch.setattr(module, "select", SimpleNamespace(poll=poll, **masks))
        for module in (index_cache, job_calls):
            patch.setattr(module, "threading", threads(self.scheduler))
        self._patch_descriptors(patch)
        self._patch_engine(patch)
        if self.options.writes:
            self._patch_writes(patch, times)

    def _patch_writes(self, patch: pytest.MonkeyPatch, times: Any) -> None:  # noqa: ANN401  # of `clock`
        """Replace what the writer uses, and let a killed process change no file."""
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda _: None)
        system = System(self.scheduler, FaultsOfDisk(self.scheduler, []), self._places, self.root)
        free_locks = self.scheduler.on_kill

        def end(process: Process) -> None:
            free_locks(process)
            self.network.close_all(process)

        self.scheduler.on_kill = end
        system.patch(patch)
        for module, name, value in SMALL:
            patch.setattr(module, name, value)
        for module in (committer, log, collections, renewals):
            patch.setattr(module, "threading", threads(self.scheduler))
        for module in (committer, generations, collections, writer_process):
            patch.setattr(module, "time", times)
        for module in (target, replica):
            patch.setattr(module, "Published", published.Published)
        patch.setattr(published, "boot_number", lambda: 1)
        patch.setattr(writer_process, "ThreadPoolExecutor", lambda _: Executor(self.scheduler))
        patch.setattr(writer_process, "wait", partial(wait, self.scheduler))

    def _patch_descriptors(self, patch: pytest.MonkeyPatch) -> None:
        network = self.network
        patch.setattr(
            worker_process,
            "os",
            SimpleNamespace(
                eventfd=lambda *_: Event(network).number,
                eventfd_write=self._write_event,
                eventfd_read=self._read_event,
                sched_yield=lambda: self.scheduler.sleep(_SPIN_SECONDS),
                EFD_CLOEXEC=0,
                EFD_NONBLOCK=0,
            ),
        )
        patch.setattr(packets, "adopt", network.adopt)
        patch.setattr(packets, "Link", lambda end: end)
        patch.setattr(
            job_calls, "socket", SimpleNamespace(socketpair=self._own_pair, socket=socket.socket)
        )
        patch.setattr(
            job_calls, "os", SimpleNamespace(_exit=lambda _: self.scheduler.kill(network.process))
        )
        create = os.memfd_create

        def memfd_create(*arguments: Any) -> int:  # noqa: ANN401  # as of `os.memfd_create`
            if self.faults.call("memfd_create") == "error":
                raise OSError(24, "Too many open files")
            return create(*arguments)

        patch.setattr(os, "memfd_create", memfd_create)
        for name, function in frames(network).items():
            patch.setattr(job_frames, name, function)
        patch.setattr(job_frames, "send_async", loop.send_async)
        patch.setattr(job_frames, "receive_async", loop.receive_async)

    def _own_pair(self) -> tuple[End, End]:
        ends = self.network.pair()
        for end in ends:
            end.owner = self.network.process
        return ends

    def _write_event(self, number: int, count: int) -> None:
        event = self.network.things.get(number)
        if isinstance(event, Event):
            event.count += count

    def _read_event(self, number: int) -> None:
        event = self.network.things[number]
        assert isinstance(event, Event)
        event.count = 0

    def _patch_engine(self, patch: pytest.MonkeyPatch) -> None:
        """Let answers and openings take time, some requests end their worker, and note builds."""
        answer = engines.Engine.answer
        stamp, make_current = IndexFolder.pointer_stamp, generations.Staging._make_current

        def timed_answer(self_: Any, rows: Any, *arguments: Any) -> Any:  # noqa: ANN401  # as of `answer`
            self._work_on(rows)
            return answer(self_, rows, *arguments)

        def paused_stamp(self_: IndexFolder) -> tuple[int, int] | None:
            if self.scheduler.task is not None:
                self.scheduler.pause()
            value = stamp(self_)
            if self_.name == INDEX:
                self.stamps.add(value)
            return value

        def noted_generation(self_: Any, folder: Path, number: int) -> Path:  # noqa: ANN401  # a Staging
            dataset = 0
            if not self.options.writes:
                ids = open_generation(folder, verify=False).arrays["ids"]
                dataset = int(np.asarray(ids)[0]) // DATASET_IDS
            final = make_current(self_, folder, number)
            self.published.append(Version(number, dataset))
            self.note(f"generation {number} is current")
            self.scheduler.pause()
            return final

        patch.setattr(engines.Engine, "answer", timed_answer)
        patch.setattr(IndexFolder, "pointer_stamp", paused_stamp)
        patch.setattr(generations.Staging, "_make_current", noted_generation)
        patch.setattr(parallel, "_thread", SimpleNamespace(busy=True))
        self._patch_openings(patch)
        self._patch_supervisor(patch)

    def _patch_openings(self, patch: pytest.MonkeyPatch) -> None:
        """Let openings of indexes and of new generations take time, and some end their worker."""

        def timed_index(path: Path, **options: Any) -> Any:  # noqa: ANN401  # as of `open_index`
            self.rest(self.options.open_seconds / 2)
            if path.name == FATAL_INDEX:
                self._end_opening()
            index = opening.open_index(path, **options)
            # Its files may be removed meanwhile.
            self.rest(self.options.open_seconds / 2)
            return index

        def timed_generation(path: Path, *, verify: bool = True) -> Any:  # noqa: ANN401  # as of `open_generation`
            if not verify:
                return open_generation(path, verify=False)
            self.rest(self.options.open_seconds / 2)
            generation = open_generation(path)
            self.rest(self.options.open_seconds / 2)
            return generation

        patch.setattr(index_cache, "open_index", timed_index)
        patch.setattr(index_cache, "open_generation", timed_generation)

    def _end_opening(self) -> None:
        """End a worker that opens an index."""
        deaths = self.deaths
        deaths.openings += 1
        count_max = deaths.openings_max + len(self.stopped_fronts())
        is_fine = deaths.openings <= count_max
        self.check(is_fine, f"openings end {deaths.openings} workers, not {count_max}")
        self.note("an opening ends its worker")
        self.scheduler.kill(self.network.process)

    def _patch_supervisor(self, patch: pytest.MonkeyPatch) -> None:
        """Let the supervisor start simulated processes."""

        async def call(function: Callable[..., object], *arguments: object) -> None:
            function(*arguments)

        patch.setattr(supervisor, "Child", partial(self.new_child, self))
        patch.setattr(supervisor, "adopt_orphans", lambda: False)
        patch.setattr(supervisor, "reap_orphans", lambda _: None)
        patch.setattr(supervisor, "sys", SimpleNamespace(stdout=io.StringIO()))
        patch.setattr(asyncio, "to_thread", call)
        patch.setattr(packets, "pair", self.network.pair)
        patch.setattr(job_frames, "pair", partial(self.network.pair, is_stream=True))
        numbers = itertools.count()
        patch.setattr(secrets, "token_hex", lambda _: f"{next(numbers):016}")

    def _work_on(self, rows: Any) -> None:  # noqa: ANN401  # Rows
        """Take the time of a slice of a query in a worker."""
        task = self.scheduler.task
        if task is None or task.process not in self.workers:
            return
        self.scheduler.sleep(len(rows) * self.options.row_seconds)
        last = rows[-1]
        if last[0] in (POISON, HANG):
            self._count_cause(int(last[1]), self.workers[task.process])
        if last[0] == POISON:
            self.note(f"request {last[1]:.0f} ends its worker")
            self.scheduler.kill(task.process)
        if last[0] == HANG:
            self.deaths.hanging.add(task.process)
            self.note(f"request {last[1]:.0f} hangs")
            self.scheduler.sleep(_HANG_SECONDS)

    def _count_cause(self, number: int, worker: worker_process.Worker) -> None:
        """Note that a request ends its worker, and check that it may."""
        deaths = self.deaths
        deaths.causes[number] += 1
        restarts = max(0, self.front_starts - self.options.config.fronts)
        # The first write changes the stamp too.
        changes = len(self.stamps) + restarts
        # A front that has stood still blames nobody.
        stops = len(self.stopped_fronts())
        count_max = deaths.causes_max.get(number, math.inf) * changes + stops
        is_fine = deaths.causes[number] <= count_max
        self.check(is_fine, f"request {number} ends {deaths.causes[number]} workers")
        time, pointer = deaths.condemned.get(number, (-math.inf, None))
        is_refused = self.scheduler.now < time + _REFUSAL_SECONDS and pointer == self.pointer()
        is_suspect = worker._notes_kept is not None
        self.check(not (is_suspect and is_refused), f"request {number} is tried once more")
