"""Jobs of a long measurement: kept results, a run that goes on, and the printed progress."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from divgrpc_lab.work import Work, processes


class Killed(Exception):  # noqa: N818  # it stands for a signal
    """Stands for a kill in the middle of a run."""


def jobs_of(calls: list[str], killed_at: str = "") -> dict[str, Callable[[], object]]:
    """Return three jobs that note their calls; the one named `killed_at` fails."""

    def job(name: str) -> Callable[[], object]:
        def measure() -> object:
            calls.append(name)
            if name == killed_at:
                raise Killed
            values = np.random.default_rng(len(name)).random(3)
            return [{"values": values, "mean": values.mean(), "none": float("nan")}, (1, 2)]

        return measure

    return {name: job(name) for name in ("a", "bb", "ccc")}


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    """Only missing jobs are measured again, and all results are those of a run without a kill."""
    calls: list[str] = []
    with pytest.raises(Killed):
        Work(tmp_path, "facts").run(jobs_of(calls, killed_at="ccc"))
    results = Work(tmp_path, "facts").run(jobs_of(calls))
    assert calls == ["a", "bb", "ccc", "ccc"]
    again = Work(None, "facts").run(jobs_of([]))
    np.testing.assert_equal(results, again)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".gz"] * 3


def test_results_of_other_facts_are_not_used(tmp_path: Path) -> None:
    """A run with another plan or other data measures everything itself."""
    calls: list[str] = []
    for facts in ("facts", "others", "facts"):
        Work(tmp_path, facts).run(jobs_of(calls))
    assert calls == ["a", "bb", "ccc"] * 2


def test_without_a_folder_nothing_is_kept() -> None:
    calls: list[str] = []
    work = Work(None, "facts")
    work.run(jobs_of(calls))
    work.run(jobs_of(calls))
    assert len(calls) == 6


def test_progress_has_the_time_that_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    Work(None, "facts").run(jobs_of([]))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].strip() == "1 of 3, 0 min left: a"
    assert lines[2].strip() == "3 of 3, 0 min left: ccc"


def test_a_run_that_goes_on_says_what_was_measured_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = jobs_of([])
    Work(tmp_path, "facts").run({"a": jobs["a"]})
    Work(tmp_path, "facts").run(jobs)
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert lines[1:3] == ["1 of 3 were measured before", "2 of 3, 0 min left: bb"]


def test_threads_give_the_same_results(tmp_path: Path) -> None:
    """With an executor all jobs run, and every result is kept."""
    calls: list[str] = []
    with ThreadPoolExecutor(2) as executor:
        results = Work(tmp_path, "facts").run(jobs_of(calls), executor)
    assert sorted(calls) == ["a", "bb", "ccc"]
    np.testing.assert_equal(results, Work(None, "facts").run(jobs_of([])))
    assert list(results) == ["a", "bb", "ccc"]
    assert len(list(tmp_path.iterdir())) == 3


def test_an_error_drops_the_waiting_jobs(tmp_path: Path) -> None:
    """What ended before the error is kept, and what waited is not run."""
    calls: list[str] = []
    with ThreadPoolExecutor(1) as executor, pytest.raises(Killed):
        Work(tmp_path, "facts").run(jobs_of(calls, killed_at="bb") | slow_jobs(calls), executor)
    assert calls[:2] == ["a", "bb"]
    assert len(calls) < 2 + 50


def slow_jobs(calls: list[str]) -> dict[str, Callable[[], object]]:
    """Return 50 jobs of 20 milliseconds."""

    def wait() -> list[float]:
        calls.append("slow")
        time.sleep(0.02)
        return []

    return {f"slow {number}": wait for number in range(50)}


def test_processes_run_jobs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run in two other processes; on a single core there is no executor."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with processes() as executor:
        results = Work(None, "facts").run({"a": os.getpid, "b": os.getpid}, executor)
    assert os.getpid() not in results.values()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with processes() as executor:
        assert executor is None
