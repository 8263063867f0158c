"""Runs the jobs of a long measurement, in parallel if an executor is given, and keeps results.

If a run is killed, a run with the same folder measures only the jobs that are missing. Results
pass through JSON, which keeps every digit of a float, so kept results equal new results.
"""

import gzip
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from divgrpc.platforms import end_with_parent
from divgrpc_client.formats import tables

Job: TypeAlias = Callable[[], Any]


class Work:
    """Runs jobs and keeps their results in `folder`; keeps none if `folder` is None.

    `facts` describes everything that the results depend on. Results of a run with other facts are
    not used.
    """

    def __init__(self, folder: Path | None, facts: object) -> None:
        self._folder = folder
        self._facts = repr(facts)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def run(self, jobs: Mapping[str, Job], executor: Executor | None = None) -> dict[str, Any]:
        """Run the jobs that have no kept result, show progress, and return all results by name.

        A result consists of lists, dictionaries, texts and numbers. With an `executor`, jobs run on
        its threads or processes, and each result is kept as soon as its job ends; the jobs must not
        depend on each other, and those for processes must be picklable. After an error, waiting
        jobs are dropped.
        """
        results = {name: self._kept(name) for name in jobs}
        missing = {name: jobs[name] for name, result in results.items() if result is None}
        show = _Progress(len(jobs), len(missing))
        for name, text in _measured(missing, executor):
            if self._folder is not None:
                self._keep(name, text)
            results[name] = json.loads(text)
            show.done(name)
        return results

    def _path(self, name: str) -> Path | None:
        if self._folder is None:
            return None
        key = hashlib.sha256(f"{self._facts}, {name}".encode()).hexdigest()
        return self._folder / f"{key[:24]}.json.gz"

    def _kept(self, name: str) -> Any:  # whatever the job returned
        path = self._path(name)
        if path is None or not path.is_file():
            return None
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return json.load(file)

    def _keep(self, name: str, text: str) -> None:
        """Write a temporary file and rename it, so that a kill never leaves half a result."""
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
            file.write(gzip.compress(text.encode()))
        path = self._path(name)
        if path is not None:
            Path(file.name).replace(path)


@contextmanager
def processes() -> Iterator[Executor | None]:
    """Yield an executor with a process for each core, or None if there is only one core.

    The processes are spawned, not forked, so no thread or lock is copied. On Linux, they end with
    this process even if it is killed.
    """
    cores = len(os.sched_getaffinity(0))
    if cores == 1:
        yield None
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, context, initializer=end_with_parent) as executor:
        yield executor


def _measured(jobs: Mapping[str, Job], executor: Executor | None) -> Iterator[tuple[str, str]]:
    """Yield the name and the JSON of each job as it ends."""
    if executor is None:
        yield from ((name, _text(job)) for name, job in jobs.items())
        return
    futures = {executor.submit(_text, job): name for name, job in jobs.items()}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        for future in futures:
            future.cancel()


def _text(job: Job) -> str:
    return json.dumps(job(), default=_plain)


class _Progress:
    """Prints each finished job on the error output, with an estimate of the remaining time."""

    def __init__(self, total: int, missing: int) -> None:
        self._total, self._missing, self._done = total, missing, 0
        self._console = tables.console(stderr=True)
        self._end = "\r" if sys.stderr.isatty() else "\n"
        self._begin = time.monotonic()
        if 0 < missing < total:
            self._print(f"{total - missing} of {total} were measured before")

    def done(self, name: str) -> None:
        """Count a job as finished."""
        self._done += 1
        jobs_left = self._missing - self._done
        minutes = (time.monotonic() - self._begin) / 60 / self._done * jobs_left
        self._print(f"{self._total - jobs_left} of {self._total}, {minutes:.0f} min left: {name}")

    def _print(self, text: str) -> None:
        is_line = self._end == "\n"
        self._console.print(text if is_line else f"{text:<80}", end=self._end, highlight=False)


def _plain(value: Any) -> Any:  # arrays and numbers of NumPy
    return value.tolist()
