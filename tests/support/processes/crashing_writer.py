"""Processes that write to a collection until they are killed, by a test or by themselves.

`CrashingWriters` starts a process that loads the kernels once, and forks a writer for each round. A
writer prints a line before each write and after it. `python -m` runs this module as that process.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from divgrpc import Collection
from divgrpc.types import Durability
from divgrpc.writes import backlog, layout
from divgrpc.writes import log as log_module
from support.data.stamped_points import IDS, Write, columns_of, is_optional, written_vectors_of
from support.data.written_points import kind_of

_WRITES_MAX = 120
_ROWS_MAX = 6


@dataclass(frozen=True)
class Round:
    """What a writer does.

    path: the folder of the index.
    seed: of the writes.
    call: the function of `os` in which the process kills itself, or "" if the test kills it.
    count: the number of the call in which it does.
    when: whether it is killed before the call, after it, or after half of what is to be written.
    durability: of the collection.
    """

    path: str
    seed: int
    call: str = ""
    count: int = 0
    when: Literal["before", "after", "half"] = "before"
    durability: Durability = "sync"


def _random_writes(seed: int) -> Iterator[Write]:
    rng = np.random.default_rng(seed)
    for number in range(_WRITES_MAX):
        count = int(rng.integers(1, _ROWS_MAX))
        ids = rng.choice(IDS, count, replace=False).tolist()
        yield Write(bool(rng.random() < 0.3), ids, 1_000 * seed + number)


def make(collection: Collection, write: Write) -> int:
    """Make a write; return its sequence number."""
    if write.is_deletion:
        return collection.delete(write.ids).sequence
    has_labels = collection.engine.label_sets is not None
    columns = columns_of([write.stamp] * len(write.ids), has_labels=has_labels)
    optional = is_optional(collection)
    vectors = written_vectors_of(write.ids, write.stamp, kind_of(collection), is_optional=optional)
    return collection.upsert(write.ids, vectors, **columns).sequence


# Constants by which files of the log are small, and merges frequent.
SMALL: list[tuple[Any, str, Any]] = [
    (log_module, "FILE_BYTES", 4_096),
    (layout, "_LATER_ROWS_MIN", 60),
    (layout, "_LATER_ROWS_MAX", 60),
    (layout, "_later_values", lambda *_: 240),
    (backlog, "_MERGED_ROWS_MIN", 25),
]


def _say(*words: object) -> None:
    os.write(1, f"{json.dumps(words)}\n".encode())


def _kill_at(plan: Round) -> None:
    """Let a function of `os` kill this process at a later call."""
    original: Callable[..., Any] = getattr(os, plan.call)
    numbers = itertools.count(1)

    def function(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401  # those of `original`
        is_last = next(numbers) == plan.count
        if is_last and plan.when == "half" and plan.call == "pwrite":
            descriptor, data, offset = arguments
            original(descriptor, data[: len(data) // 2], offset)
        elif is_last and plan.when == "after":
            original(*arguments, **options)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)

    setattr(os, plan.call, function)


def skip_syncs(function: Callable[[str, Callable[[int], None]], None]) -> None:
    """Let `function` set what `os.fsync` and `os.fdatasync` do: nothing.

    A killed process loses nothing that it wrote, synced or not. Tests of such crashes are as fast
    on a busy disk as on an idle one.
    """
    for name in ("fsync", "fdatasync"):
        function(name, lambda _: None)


def _run(plan: Round) -> None:
    """Write until this process is killed, or all is written."""
    _say("process", os.getpid())
    skip_syncs(partial(setattr, os))
    if plan.call:
        _kill_at(plan)
    collection = Collection.open(plan.path, durability=plan.durability)
    for number, write in enumerate(_random_writes(plan.seed)):
        _say("begin", asdict(write))
        _say("end", make(collection, write))
        if number % 30 == 29:
            collection.compact()
    # Exits without closing the collection.


def _serve() -> None:
    for module, name, value in SMALL:
        assert hasattr(module, name)
        setattr(module, name, value)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                _run(Round(**json.loads(line)))
            except BaseException as error:  # noqa: BLE001  # the test reports it
                _say("error", repr(error))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        _say("ended")


class CrashingWriters:
    """Runs rounds of writers, one after another."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        tests = Path(__file__).parents[2]
        environment = os.environ | {"PYTHONPATH": str(tests)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.processes.crashing_writer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(is_killed=kind is not None)

    def _end(self, is_killed: bool) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if is_killed:
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def run(self, plan: Round, kill_after: int | None = None) -> list[tuple[Write, int | None]]:
        """Return the writes of a round with their sequence numbers, None if it did not end.

        kill_after: number of lines after which the writer is killed; None if it kills itself.
        A round that fails, or ends by a time limit, leaves no writer to the next one.
        """
        try:
            return self._run(plan, kill_after)
        except BaseException:
            self._end(is_killed=True)
            self._start()
            raise

    def _run(self, plan: Round, kill_after: int | None) -> list[tuple[Write, int | None]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(plan)) + "\n")
        self._process.stdin.flush()
        writes: list[tuple[Write, int | None]] = []
        process = 0
        for number, line in enumerate(self._process.stdout):
            word, *values = json.loads(line)
            assert word != "error", values
            if word == "ended":
                break
            if word == "process":
                process = values[0]
            elif word == "begin":
                writes.append((Write(**values[0]), None))
            else:
                writes[-1] = (writes[-1][0], values[0])
            if number == kill_after:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        return writes


if __name__ == "__main__":
    _serve()
