"""python -m support.loads.kill_rounds: kill processes of a server under load, and check answers.

Callers write to an index, read, merge, vacuum and retrain it, build a second index anew, and
evaluate a third. In each round, a process is killed at a random moment of one of these calls, and
the round ends when all callers have got answers again. After a block of rounds:

- each acknowledged write is there, once, and each write that was not acknowledged is made once when
  it is sent again;
- the bytes of each answer are those of a model at the generation and sequence that it names;
- calls failed only if they depend on the process that was killed, and as UNAVAILABLE;
- no process, temporary file or file of an index is left over.

The seed gives the victims, the moments, the writes and the reads. When exactly a signal arrives
depends on the machine.
"""

import argparse
import itertools
import math
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np

from divgrpc.errors import ConditionFailedError, DivgrpcError, InvalidArgumentError
from divgrpc.types import HashFamily
from divgrpc_client import Client
from support.data.evaluation_rows import assert_same_rows
from support.data.served_index import random_points
from support.data.write_history import History, Version, Write
from support.data.written_points import TYPES, columns_of
from support.loads.builds import Builds
from support.loads.history import OLD, READS, Caller, check_history, random_write, send
from support.loads.killed_server import VICTIMS, KilledServer, await_process
from support.processes.running_server import eventually

BLOCK: Final = 40
MOMENTS: Final = ("write", "query", "merge", "vacuum", "retrain", "build", "evaluation")
# The calls that may fail while a process of a role is down.
_ALL: Final = frozenset(MOMENTS)
EXCUSED: Final = {
    "front": _ALL,
    "worker": frozenset[str](),
    "writer": frozenset(("write", "merge", "vacuum", "retrain")),
    "builder": frozenset(("build",)),
    "evaluator": frozenset[str](),
    "forkserver": frozenset[str](),
    "server": _ALL,
    "all": _ALL,
}
_JOBS: Final = ("merge", "vacuum", "retrain", "build", "evaluation")
# Jobs of a front that was killed may go on for so long, and keep out other jobs.
_ORPHAN_SECONDS: Final = 20.0
_WRITERS, _READERS = 2, 2
_WRITTEN, _EVALUATED = "written", "evaluated"
# Writes that failed and are sent again only after all rounds, not at once.
_ABANDONED_SHARE: Final = 0.3
_PAUSE_SECONDS: Final = 0.04
# Duration of a call of which none has ended yet.
_FIRST_SECONDS: Final = 0.2
_ROUND_SECONDS_MAX: Final = 100.0


@dataclass
class Kill:
    """A kill: the role, the time of the signal, and the time at which all calls succeeded again."""

    victim: str
    moment: str
    begin: float
    end: float = float("inf")


class Journal:
    """The calls of a block of rounds: which run, how long they take, and which were lost."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.lost: list[str] = []
        self.kills: list[Kill] = []
        self.succeeded_at: dict[str, float] = {}
        self._begun: Counter[str] = Counter()
        self._seconds: dict[str, deque[float]] = {kind: deque(maxlen=20) for kind in MOMENTS}
        self._condition = threading.Condition()

    def make(self, kind: str, name: str, caller: Caller, call: Callable[[], object]) -> bool:
        """Make a call; return whether it succeeded. `name` is that of the thread."""
        begin = time.monotonic()
        with self._condition:
            self._begun[kind] += 1
            self._condition.notify_all()
        try:
            call()
        except (grpc.RpcError, DivgrpcError) as error:
            code = error.code() if isinstance(error, grpc.RpcError) else getattr(error, "code", "?")
            excuse = self._excuse(kind, begin, error, code)
            with self._condition:
                self.calls[kind, excuse or "lost"] += 1
                if not excuse:
                    self.lost.append(f"{kind}: {code} {error}")
            caller.reconnect()
            return False
        with self._condition:
            self.calls[kind, "ok"] += 1
            self.succeeded_at[name] = begin
            self._seconds[kind].append(time.monotonic() - begin)
        return True

    def await_call(self, kind: str, seconds: float) -> None:
        """Wait until a call of this kind begins, at most so long."""
        with self._condition:
            count = self._begun[kind]
            self._condition.wait_for(lambda: self._begun[kind] > count, seconds)

    def usual_seconds(self, kind: str) -> float:
        """Return the median duration of the last calls of a kind."""
        with self._condition:
            return statistics.median(self._seconds[kind] or [_FIRST_SECONDS])

    def _excuse(self, kind: str, begin: float, error: Exception, code: Any) -> str:  # noqa: ANN401  # a code, or text
        kills = [kill for kill in self.kills if kill.end >= begin]
        if code is grpc.StatusCode.UNAVAILABLE:
            return next((kill.victim for kill in kills if kind in EXCUSED[kill.victim]), "")
        orphans = [kill for kill in self.kills if kill.end + _ORPHAN_SECONDS >= begin]
        is_kept_out = getattr(error, "reason", "") in ("BUILD_UNDER_WAY", "BUILDS_FULL")
        return "kept out" if kind in _JOBS and is_kept_out and orphans else ""


@dataclass
class Figures:
    """What several blocks of rounds counted."""

    rounds: Counter[tuple[str, str]] = field(default_factory=Counter)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    restarts: list[float] = field(default_factory=list)
    deaths: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    answers: int = 0
    faults: list[str] = field(default_factory=list)


class Block:
    """Rounds on one server with one history."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed = seed
        self.draw = random.Random(seed)
        durability = self.draw.choice(("process", "process", "interval", "sync"))
        self.server = KilledServer(folder, durability, self.draw)
        self.journal, self.history, self.builds = Journal(), History(OLD), Builds()
        self._rows: list[Any] = []
        self._end = threading.Event()
        self._abandoned: list[tuple[Write, str, Version]] = []
        self._callers = [
            Caller(self.server.target, self.history, _WRITTEN, 100 * seed + number, retries=False)
            for number in range(_WRITERS + _READERS + 2)
        ]
        self._jobs, self._merges = self._callers[-2:]
        self._threads = ThreadPoolExecutor(len(self._callers) + 1)
        self._set_up(self._jobs.client)

    def _set_up(self, client: Client) -> None:
        columns: Any = columns_of([*OLD.values()]) | {"attribute_types": TYPES}
        family: HashFamily = self.draw.choice(("cells", "lsh_div"))
        client.build(_WRITTEN, ids=list(OLD), metric="euclidean", hash_family=family, **columns)
        client.build(_EVALUATED, random_points(300), categories=np.arange(300) % 3)
        self.builds.build(client)
        self._evaluate()

    # Calls.

    def _write(self, caller: Caller, name: str) -> None:
        numbers = iter(range(1_000_000))
        while not self._end.is_set():
            write, floor = random_write(caller), self.history.latest
            write_id = f"{caller.seed}-{next(numbers)}"
            draft, is_repeated = (write, write_id, floor), False
            while not self._make_write(caller, name, draft, is_repeated=is_repeated):
                is_repeated = True
                if caller.rng.random() < _ABANDONED_SHARE:
                    self._abandoned.append(draft)
                    break
            time.sleep(_PAUSE_SECONDS)

    def _make_write(
        self, caller: Caller, name: str, draft: tuple[Write, str, Version], *, is_repeated: bool
    ) -> bool:
        write, write_id, floor = draft

        def call() -> None:
            try:
                result = send(caller, write, write_id)
            except (ConditionFailedError, InvalidArgumentError) as error:
                self.history.refuse(write, floor, _WRITERS + len(self._abandoned), error)
            else:
                self.history.add(write, floor, result, is_repeated=is_repeated)

        return self.journal.make("write", name, caller, call)

    def _read(self, caller: Caller, name: str) -> None:
        number = 0
        while not self._end.is_set():
            read = READS[number % len(READS)]
            ids = caller.rng.permutation(100)[:5].tolist()
            self.journal.make("query", name, caller, lambda: read(caller))  # noqa: B023  # at once
            self.journal.make("query", name, caller, lambda: self.builds.read(caller.client, ids))  # noqa: B023
            number += 1
            time.sleep(_PAUSE_SECONDS)

    def _merge(self, caller: Caller) -> None:
        while not self._end.wait(0.25):
            self._make("merge", caller)

    def _make(self, kind: str, caller: Caller) -> bool:
        client = caller.client
        calls: dict[str, Callable[[], object]] = {
            "merge": lambda: client.compact(_WRITTEN),
            "vacuum": lambda: client.compact(_WRITTEN, vacuum=True),
            "retrain": lambda: client.retrain(_WRITTEN),
            "build": lambda: self.builds.build(client),
            "evaluation": self._evaluate,
        }
        return self.journal.make(kind, kind, caller, calls[kind])

    def _evaluate(self) -> None:
        options: Any = {"diversities": (0.2, 0.8), "ks": (5,), "selectors": ("greedy",), "seed": 3}
        rows = list(
            self._jobs.client.evaluate(
                _EVALUATED, random_points(60, seed=8), np.arange(60) % 3, **options
            )
        )
        if self._rows:
            assert_same_rows(rows, self._rows)
        else:
            self._rows = rows

    # Rounds.

    def run(self, rounds: Iterable[tuple[str, str]], figures: Figures) -> None:
        """Make rounds, each a victim and a moment, and check everything afterwards."""
        try:
            tasks = self._begin()
            for number, (victim, moment) in enumerate(rounds):
                begin = time.monotonic()
                try:
                    is_killed = self._run_round(victim, moment, tasks)
                except Exception as error:
                    error.add_note(f"seed {self.seed}, round {number}: {victim} during {moment}")
                    raise
                figures.seconds.append(time.monotonic() - begin)
                figures.rounds[victim, moment] += is_killed
            self._end.set()
            for task in tasks:
                task.result()
            self._check(figures)
        finally:
            self._end.set()
            self.server.end()
            self._threads.shutdown(cancel_futures=True)
            for caller in self._callers:
                caller.close()

    def _begin(self) -> list[Future[None]]:
        writers = self._callers[:_WRITERS]
        readers = self._callers[_WRITERS : _WRITERS + _READERS]
        tasks = [
            self._threads.submit(self._write, caller, f"writer {number}")
            for number, caller in enumerate(writers)
        ]
        tasks += [
            self._threads.submit(self._read, caller, f"reader {number}")
            for number, caller in enumerate(readers)
        ]
        tasks.append(self._threads.submit(self._merge, self._merges))
        eventually(lambda: self.server.pids("writer"))
        return tasks

    def _run_round(self, victim: str, moment: str, tasks: list[Future[None]]) -> bool:
        """Make a round; return whether there was a process to kill at its moment."""
        self._await(lambda: self._is_ready_for(victim), tasks)
        job = None
        if moment in ("vacuum", "retrain", "build", "evaluation"):
            job = self._threads.submit(self._make, moment, self._jobs)
        else:
            self.journal.await_call(moment, 5)
        delay = min(self.draw.random() * 1.1 * self.journal.usual_seconds(moment), 3.0)
        if victim == "builder":
            # A builder exists during a build alone.
            await_process(self.server, victim, lambda: job is not None and job.done())
            delay /= 2
        time.sleep(delay)
        kill = Kill(victim, moment, time.monotonic())
        is_killed = self.server.kill(victim, lambda: self.journal.kills.append(kill))
        if is_killed:
            self._await(lambda: self._all_succeeded_after(kill), tasks)
        if job is not None:
            job.result(_ROUND_SECONDS_MAX)
        kill.end = time.monotonic()
        return is_killed

    def _is_ready_for(self, victim: str) -> bool:
        """Tell whether a process of a role may be killed: all that are configured are up."""
        if victim != "worker":
            return victim == "builder" or self.server.is_whole(victim)
        with suppress(DivgrpcError):
            info = self._merges.client.server_info()
            return self.server.is_whole(victim) and info.workers_ready == info.workers
        return False

    def _all_succeeded_after(self, kill: Kill) -> bool:
        """Tell whether each caller has got an answer to a call that began after a kill."""
        names = [f"writer {number}" for number in range(_WRITERS)]
        names += [f"reader {number}" for number in range(_READERS)]
        return all(self.journal.succeeded_at.get(name, 0) > kill.begin for name in names)

    def _await(self, condition: Callable[[], bool], tasks: list[Future[None]]) -> None:
        def is_over() -> bool:
            for task in tasks:
                if task.done():
                    task.result()
            return condition()

        eventually(is_over, _ROUND_SECONDS_MAX)

    # Checks.

    def _check(self, figures: Figures) -> None:
        caller = self._callers[0]
        for draft in self._abandoned:
            assert self._make_write(caller, "writer 0", draft, is_repeated=True)
        for read in READS:
            read(caller)
        # What is read at the end shows all writes.
        last = max(self.history.writes)
        assert {read.version.sequence for read in caller.reads[-len(READS) :]} == {last}
        reads = [read for caller in self._callers for read in caller.reads]
        check_history(self.history, reads)
        figures.answers += len(reads) + self.builds.check()
        figures.calls += self.journal.calls
        figures.faults += [f"seed {self.seed}: lost {text}" for text in self.journal.lost]
        figures.faults += [f"seed {self.seed}: {text}" for text in self.server.stop()]
        figures.restarts += self.server.restarts[1:]
        figures.deaths += self.server.deaths


def schedule(seed: int) -> Iterator[tuple[str, str]]:
    """Yield a victim and a moment for each round; each victim comes as often as any other one."""
    draw, alone = random.Random(seed), {"builder": "build", "evaluator": "evaluation"}
    moments: dict[str, list[str]] = {victim: [] for victim in VICTIMS}
    while True:
        for victim in draw.sample(VICTIMS, len(VICTIMS)):
            moments[victim] = moments[victim] or draw.sample(MOMENTS, len(MOMENTS))
            moment = moments[victim].pop()
            yield victim, alone.get(victim, moment)


def run(
    rounds: int,
    seed: int,
    *,
    seconds: float = math.inf,
    tell: Callable[[str], object] = lambda _: None,
) -> Figures:
    """Make rounds in blocks, and begin none `seconds` after the first one.

    tell: called with a sentence after each block. Raises `AssertionError` if an answer is wrong.
    """
    figures, pairs = Figures(), schedule(seed)
    begins: list[float] = []

    def is_timely(_pair: tuple[str, str]) -> bool:
        begins.append(time.monotonic())
        return begins[-1] <= begins[0] + seconds

    for number in range(0, rounds, BLOCK):
        faults_before = len(figures.faults)
        block_rounds = itertools.islice(pairs, min(BLOCK, rounds - number))
        with tempfile.TemporaryDirectory(prefix="divgrpc-kills-") as folder:
            Block(Path(folder), 10_000 * seed + number).run(
                itertools.takewhile(is_timely, block_rounds), figures
            )
        count = figures.rounds.total()
        tell(f"{count} rounds, {figures.answers:,} answers checked, {len(figures.faults)} faults")
        for fault in figures.faults[faults_before:]:
            tell(fault)
    return figures


def report(figures: Figures) -> str:
    victims = Counter[str]()
    for (victim, _), count in figures.rounds.items():
        victims[victim] += count
    lines = [f"{figures.rounds.total()} rounds: {dict(victims)}"]
    lines.append(f"{figures.answers:,} answers have the bytes of the model")
    for kind in MOMENTS:
        outcomes = {o: count for (k, o), count in sorted(figures.calls.items()) if k == kind}
        lines.append(f"{kind}: {outcomes}")
    for name in ("seconds", "restarts", "deaths"):
        if times := getattr(figures, name):
            middle, most = statistics.median(times), max(times)
            lines.append(f"{name}: {len(times)}, median {middle:.2f} s, at most {most:.2f} s")
    return "\n".join([*lines, *figures.faults, f"{len(figures.faults)} faults"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="make crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1_000, help="(default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="(default 0)")
    arguments = parser.parse_args()

    def tell(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    figures = run(arguments.rounds, arguments.seed, tell=tell)
    tell(report(figures))
    sys.exit(1 if figures.faults else 0)


if __name__ == "__main__":
    main()
