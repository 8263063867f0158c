"""A bounded run of the simulator, and what it promises about itself."""

import importlib
import inspect
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from simulation import failpoints
from simulation.failpoints import OF_PROJECT, STORES, FailpointMap, modules, named_calls
from simulation.parts import PARTS
from simulation.scheduler import DeadlockError, Ended, Lock, Process, Scheduler

TESTS = Path(__file__).parents[1]
# Fewer than these were never reached in the runs of the suite.
FAILPOINTS_MIN = {"writes": 41, "serving": 20}


def simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """Run the simulator in a process of its own, whose sets of texts have another order."""
    environment = os.environ | {"PYTHONPATH": str(TESTS), "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "simulation", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize(("part", "seeds"), [("writes", 8), ("serving", 16)])
def test_seeds_find_nothing(part: str, seeds: int) -> None:
    arguments = ("--part", part, "--seeds", str(seeds), "--first", "1000", "--processes", "1")
    outcome = simulate(*arguments)
    assert outcome.returncode == 0, outcome.stdout[-8_000:] + outcome.stderr
    count = re.search(r"(\d+) of (\d+) failpoints reached", outcome.stdout)
    assert count is not None
    assert int(count[1]) >= FAILPOINTS_MIN[part]
    assert "without a failpoint" not in outcome.stdout


@pytest.mark.parametrize("part", PARTS)
def test_a_seed_has_the_same_history_twice(part: str) -> None:
    """Neither the order of sets nor earlier runs in the process change it."""
    runs = [simulate("--part", part, "--seed", "7", hash_seed=seed) for seed in ("1", "2")]
    assert runs[0].returncode == 0, runs[0].stdout + runs[0].stderr
    lines, lines_again = (run.stdout.splitlines()[:-1] for run in runs)
    assert len(lines) > 10
    assert lines == lines_again


@pytest.mark.parametrize("mutant", ["log-without-sync", "old-generation-served"])
def test_a_defect_is_found(mutant: str) -> None:
    """Writes that are not synced are lost with the power; an old generation answers too late."""
    outcome = simulate("--mutant", mutant, "--seeds", "200")
    assert outcome.returncode == 0, outcome.stdout[-4_000:] + outcome.stderr
    assert " fails: " in outcome.stdout


def test_defects_change_the_code_as_it_is() -> None:
    mutants = [mutant for part in PARTS.values() for mutant in part.mutants.values()]
    for mutant in mutants:
        source = inspect.getsource(importlib.import_module(mutant.module))
        changed = mutant.change(source)
        assert changed != source
        compile(changed, mutant.name, "exec")
    assert len(mutants) >= 40
    assert len({mutant.name for mutant in mutants}) == len(mutants)


def test_a_past_defect_is_found_where_its_fault_is() -> None:
    """The same seeds find nothing without it."""
    arguments = ("--mutant", "issue-5", "--seeds", "20", "--processes", "1")
    outcome = simulate(*arguments)
    assert outcome.returncode == 0, outcome.stdout[-4_000:] + outcome.stderr
    seed = re.search(r"--mutant issue-5 --seed (\d+)", outcome.stdout)
    assert seed is not None
    outcome = simulate("--mutant", "issue-5", "--fixed", "--seed", seed[1])
    assert outcome.returncode == 0, outcome.stdout[-4_000:] + outcome.stderr


def test_each_focus_has_a_failpoint() -> None:
    for part in PARTS.values():
        for mutant in part.mutants.values():
            focus = mutant.changes.get("focus")
            with mutant.applied():
                names = part.failpoints()
            if focus is not None:
                faults = {focus.draw(random.Random(seed), names) for seed in range(40)}
                assert {kind for _, kind, _ in faults} == set(focus.kinds)
                assert all(name.startswith(focus.place) for name, _, _ in faults)
                assert {count for _, _, count in faults} <= set(range(1, focus.count_max + 1))


def test_failpoints_are_all_places_that_change_the_disk() -> None:
    """The names of functions that change the disk occur nowhere else in these modules."""
    names = FailpointMap().names
    assert len(names) == len(set(names)) >= FAILPOINTS_MIN["writes"]
    assert set(STORES) < set(names)
    words = "fsync|fdatasync|rename|replace|unlink|link|p?write|f?truncate|utime|mkdir|chown"
    pattern = re.compile(
        rf"\bos\.(?:{words}|posix_fallocate)\(|(?<![.\w])(?:{'|'.join(OF_PROJECT)})\("
    )
    places = []
    for module in modules():
        lines = {line for line, _ in named_calls(module)}
        source = Path(module.__file__).read_text().splitlines()
        for number, line in enumerate(source, 1):
            if pattern.search(line) and not {number, number + 1, number + 2} & lines:
                places.append(f"{module.__name__.rpartition('.')[2]}: {line.strip()}")
    # These are inside of functions that are failpoints wherever they are called, or definitions.
    assert sorted(places) == [
        "arrays: def link_or_copy(source: Path, target: Path, entry: ArrayEntry) -> None:",
        "arrays: def sync_folder(path: Path) -> None:",
        "arrays: def write_synced(path: Path, text: str) -> None:",
        "arrays: os.fsync(descriptor)",
        "arrays: os.fsync(file.fileno())",
        "arrays: os.fsync(writer.fileno())",
        "arrays: os.link(source, target)",
        "point_files: def reserve(self, items: int) -> None:",
        "removal: def remove(entry: Path, root: Path | None = None) -> None:",
        'removal: os.rename(entry, root / RETIRED / f"{time.time_ns()}-{secrets.token_hex(8)}")',
        "sparse_rows: def remove(self, rows: IntArray) -> None:",
    ]


def test_calls_that_are_no_failpoints_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    names, exempt = set(FailpointMap().names), set(failpoints.NOT_OF_SYSTEM)
    monkeypatch.setattr(failpoints, "NOT_OF_SYSTEM", {})
    assert set(FailpointMap().names) - names == exempt


# The scheduler.


def histories(seed: int, body: Callable[[Scheduler, list[str], str], None]) -> list[str]:
    scheduler, lines = Scheduler(seed, 0.5), list[str]()
    process = Process("process")
    for name in "abc":
        scheduler.spawn(process, name, partial(body, scheduler, lines, name))
    scheduler.run()
    return lines


def count_up(scheduler: Scheduler, lines: list[str], name: str) -> None:
    for number in range(4):
        scheduler.pause()
        lines.append(f"{name}{number}")


def test_a_seed_orders_tasks() -> None:
    runs = [histories(seed, count_up) for seed in range(20)]
    assert runs == [histories(seed, count_up) for seed in range(20)]
    assert len(set(map(tuple, runs))) > 10


def test_sleep_lets_time_pass_at_once() -> None:
    def sleep(scheduler: Scheduler, lines: list[str], name: str) -> None:
        scheduler.sleep({"a": 3_000, "b": 1_000, "c": 2_000}[name])
        lines.append(f"{name} {scheduler.now:.0f}")

    assert histories(1, sleep) == ["b 1000", "c 2000", "a 3000"]


def test_a_lock_has_one_holder() -> None:
    scheduler, process, holders = Scheduler(2, 0.9), Process("process"), list[int]()
    lock, counts = Lock(scheduler), set[int]()

    def hold() -> None:
        with lock:
            holders.append(1)
            for _ in range(5):
                scheduler.pause()
                counts.add(len(holders))
            holders.pop()

    for _ in range(4):
        scheduler.spawn(process, "task", hold)
    scheduler.run()
    assert counts == {1}


def test_a_killed_process_ends_in_all_its_tasks() -> None:
    scheduler, process, other = Scheduler(3), Process("process"), Process("other")
    lines = list[str]()

    def wait() -> None:
        try:
            scheduler.wait_until(lambda: False)
        except Ended:
            lines.append("ended")
            raise

    def kill() -> None:
        scheduler.sleep(1)
        scheduler.kill(process)

    scheduler.spawn(process, "first", wait)
    scheduler.spawn(process, "second", wait)
    scheduler.spawn(other, "killer", kill)
    scheduler.run()
    assert lines == ["ended", "ended"]
    assert process.is_over


def test_a_deadlock_is_an_error() -> None:
    scheduler, process = Scheduler(4, 0.9), Process("process")
    first, second = Lock(scheduler), Lock(scheduler)

    def take(one: Lock, two: Lock) -> None:
        for _ in range(50):
            with one, two:
                scheduler.pause()

    scheduler.spawn(process, "task", lambda: take(first, second))
    scheduler.spawn(process, "task", lambda: take(second, first))
    with pytest.raises(DeadlockError, match="all tasks wait"):
        scheduler.run()
