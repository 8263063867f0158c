"""Jobs of a long measurement: kept results, a run that goes on, and the printed progress."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from divgrpc_lab.work import Work


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
    assert lines[0].strip() == "1 of 3: a"
    assert lines[2].strip() == "3 of 3, 0 min left: ccc"
