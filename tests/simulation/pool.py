"""Processes that run seeds side by side, and the sum of what they did."""

import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Final

from divgrpc import parallel
from simulation.mutation import Changes, Mutant
from simulation.parts import PARTS, Part
from simulation.runs import Outcome

# A run takes some tenths of a second where it has a processor. After this time it hangs, which is a
# failure.
_RUN_SECONDS: Final = 600
_SHARED: Final = Path("/dev/shm")  # noqa: S108  # a folder below it has mode 0700
# Runs that load the kernels before processes are forked.
_FIRST_RUNS: Final = (-1, -2, -3, -4)
_HOUR_SECONDS: Final = 3_600


class Report:
    """The sum of many runs of a part."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.counts: Counter[str] = Counter()
        self.unnamed: set[str] = set()
        self.runs = self.faults = 0
        self.cpu_seconds = 0.0
        self.has_failed = False

    def add(self, outcome: Outcome) -> None:
        """Add a run."""
        self.runs += 1
        self.faults += len(outcome.faults)
        self.cpu_seconds += outcome.seconds
        self.counts.update(outcome.counts)
        self.unnamed |= outcome.unnamed
        self.has_failed |= bool(outcome.failure)

    def show(self, show: Callable[[str], None], seconds: float, *, is_long: bool) -> None:
        """Print the sum."""
        names = self.part.failpoints()
        reached = [name for name in names if self.counts[name]]
        if is_long:
            show("\n".join(f"{self.counts[name]:8} {name}" for name in names))
        if self.unnamed:
            show(f"calls without a failpoint: {', '.join(sorted(self.unnamed))}")
        rate = self.runs / seconds * _HOUR_SECONDS
        show(
            f"{self.part.name}: {self.runs} seeds in {seconds:.0f} s, {rate:,.0f} an hour, each"
            f" with {self.cpu_seconds / max(1, self.runs):.2f} s of CPU time; {self.faults} faults;"
            f" {len(reached)} of {len(names)} failpoints reached"
        )


def run_seeds(
    part: Part,
    seeds: Iterable[int],
    processes: int,
    seconds: float,
    mutant: Mutant | None = None,
) -> Iterator[Outcome]:
    """Run seeds of a part in several processes, and yield their outcomes as they come.

    seconds: no seed begins when so much time has passed.
    mutant: a defect that the code has.
    """
    with _warm_folder(part) as folder, mutant.applied() if mutant else nullcontext():
        runner = _Runner(folder, part, mutant.changes if mutant else {})
        end_time = time.monotonic() + seconds
        yield from _run_in_processes(runner, iter(seeds), processes, end_time)


def find_mutants(part: Part, seeds: int, processes: int) -> Iterator[tuple[Mutant, Outcome]]:
    """Run seeds with each defect of a part until one fails; yield the last outcome of each."""
    mutants = part.mutants.values()
    with _warm_folder(part) as folder:
        pool = ProcessPoolExecutor(processes, multiprocessing.get_context("fork"))
        futures = {
            pool.submit(_find, part.name, mutant, folder, seeds): mutant for mutant in mutants
        }
        for future in as_completed(futures):
            yield futures[future], future.result()
        pool.shutdown()


def _find(part: str, mutant: Mutant, folder: Path, seeds: int) -> Outcome:
    with mutant.applied():
        runner = _Runner(folder, PARTS[part], mutant.changes)
        for seed in range(seeds):
            outcome = runner(seed)
            if outcome.failure:
                break
    return outcome


@contextmanager
def _warm_folder(part: Part) -> Iterator[Path]:
    """Make a folder with the indexes of a part, and load all that its runs need."""
    # A process that is forked must have no threads; and one thread computes what the seed says.
    parallel._thread = SimpleNamespace(busy=True)  # type: ignore[assignment]  # all that is read
    folder = Path(tempfile.mkdtemp(dir=_SHARED if _SHARED.is_dir() else None))
    try:
        part.make_templates(folder / "templates")
        for seed in _FIRST_RUNS:
            _Runner(folder, part, {})(seed)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Runner:
    """Runs one seed; an object of this class is copied to each process."""

    def __init__(self, folder: Path, part: Part, changes: Changes) -> None:
        self._folder, self._run = folder, part.prepare(changes)

    def __call__(self, seed: int) -> Outcome:
        """Run a seed in a new folder, and remove it."""
        path = self._folder / f"seed-{seed}-{os.getpid()}"
        path.mkdir()
        try:
            return self._run(seed, self._folder / "templates", path)
        finally:
            shutil.rmtree(path, ignore_errors=True)


_runner: _Runner


def _run(seed: int) -> Outcome:
    # A run that hangs ends its process, which the pool reports.
    signal.alarm(_RUN_SECONDS)
    outcome = _runner(seed)
    signal.alarm(0)
    return outcome


def _run_in_processes(
    runner: _Runner, seeds: Iterator[int], processes: int, end_time: float
) -> Iterator[Outcome]:
    global _runner  # noqa: PLW0603  # forked processes inherit it
    _runner = runner
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(processes, context)
    running: dict[Future[Outcome], int] = {}
    try:
        while True:
            while len(running) < processes and time.monotonic() < end_time:
                seed = next(seeds, None)
                if seed is None:
                    break
                running[pool.submit(_run, seed)] = seed
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                seed = running.pop(future)
                try:
                    yield future.result()
                except BrokenProcessPool:
                    suspects = ", ".join(map(str, [seed, *running.values()]))
                    yield Outcome(seed, f"a process ended or hung, in one of the seeds {suspects}")
                    return
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
