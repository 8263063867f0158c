"""Cells of the comparison with other libraries: sweeps, kept results, and who takes part."""

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.harness import cells, libraries
from benchmarks.harness import rivals as adapters
from benchmarks.harness.cells import CELLS, Cell, Point, Shelf
from benchmarks.harness.runner import RUNS, Output, Table
from benchmarks.runs import peers, rivals  # noqa: F401  # registers `peers`
from benchmarks.runs.contestants import Entry
from divgrpc.types import FloatArray, IntArray

POINTS = [
    Point(10, "a", (1.0,), 0.91, 5.0),
    Point(10, "b", (2.0,), 0.96, 9.0),
    Point(10, "a", (4.0,), 0.97, 8.0),
    Point(50, "a", (1.0,), 1.0, 1.0),
]
NAME = "hnswlib"
OPTIONS = (
    "--ks 2 --queries 5 --tuning 3 --diversity 0.3 --gap 0.5 --cell tiny"
    " --contestants 'divgrpc cells' hnswlib"
)


def test_the_fastest_point_with_the_recall_counts() -> None:
    assert cells.best(POINTS, 10, 0.9) == POINTS[0]
    assert cells.best(POINTS, 10, 0.95) == POINTS[2]
    assert cells.best(POINTS, 10, 0.99) is None
    assert cells.best([], 10, 0.9) is None


def test_a_sweep_ends_at_the_highest_recall() -> None:
    """Effort e finds e of 2 neighbours; absent results count as missed."""
    near = np.array([[3, 4], [5, 6]])
    queries = np.arange(2, dtype=np.float32)[:, None]

    def search(query: FloatArray, k: int, effort: tuple[float, ...]) -> IntArray:  # noqa: ARG001
        rows: IntArray = near[int(query[0])][: int(effort[0])]
        return rows

    ladders = [[(0.0,), (1.0,), (2.0,), (3.0,)]]
    points = list(cells.sweep(search, "c", ladders, queries, near))
    assert [point.recall for point in points] == [0.0, 0.5, 1.0]
    idle = [[(1.0,), (1.0,), (1.0,), (1.0,)]]
    assert len(list(cells.sweep(search, "c", idle, queries, near))) == 3


def test_results_are_kept_by_instructions_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf(tmp_path, "tiny", "s")
    assert shelf.read(NAME) is None
    shelf.write(NAME, "r", {"points": POINTS})
    record = shelf.read(NAME)
    assert record is not None
    assert record["points"] == POINTS
    assert dataclasses.replace(shelf, settings="t").read(NAME) is None
    monkeypatch.setenv("NUMBA_CPU_NAME", "haswell")
    assert shelf.read(NAME) is None


def entry(us: float, count: int, gap: float) -> Entry:
    return Entry("a", f"{us}", None, count, (), 0.3, gap, us, lambda _: np.empty(0, np.int64))


def test_the_fastest_entries_and_one_of_few_candidates_are_timed() -> None:
    fast, second = entry(1, 50, 0.98), entry(2, 75, 0.98)
    few, short, slow = entry(9, 25, 0.97), entry(0.1, 10, 0.96), entry(3, 200, 1.0)
    assert rivals._finalists([slow, fast, short, few, second], 0.97) == [fast, second, few]
    assert rivals._finalists([fast, second, slow], 0.97) == [fast, second]
    assert rivals._finalists([short, entry(1, 10, 0.5)], 0.97) == [short]


def test_the_three_fastest_go_on() -> None:
    record = {
        name: {"points": [Point(50, "", (), 0.96, us)]}
        for name, us in (("d", 4.0), ("a", 1.0), ("c", 3.0), ("b", 2.0))
    }
    record["weak"] = {"points": [Point(50, "", (), 0.5, 0.1)]}
    assert cells.three_fastest(record.items()) == ["a", "b", "c"]


def test_every_contestant_says_why_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "missing", lambda *names: list(names))
    assert {adapters.absence(name) for name in adapters.NAMES} == {"not installed"}
    monkeypatch.setattr(libraries, "missing", lambda *_: [])
    monkeypatch.setitem(sys.modules, "svs", None)
    assert adapters.absence("SVS").startswith("does not import")


def test_a_contestant_that_ends_its_process_is_named() -> None:
    assert cells.measure_apart(os.abort, [], 60) == "was ended by signal 6"


def _measure(words: str) -> list[Output]:
    return list(RUNS["peers"].rows(RUNS["peers"].parse(words)))


def test_a_second_call_measures_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def measure(work: Callable[..., None], words: list[rivals.Task], limit: float) -> str:  # noqa: ARG001
        calls.append(words[0].name)
        work(*words)
        return ""

    monkeypatch.setitem(CELLS, "tiny", Cell(400, 16))
    monkeypatch.setattr(cells, "measure_apart", measure)
    monkeypatch.setattr(libraries, "missing", lambda *names: list(names))
    words = f"{OPTIONS} --results {tmp_path}"
    skip, retrieval, row, *_ = _measure(words)
    assert skip == "hnswlib: not installed, skipped"
    assert isinstance(retrieval, Table)
    assert isinstance(row, dict)
    assert row["contestant"] == "divgrpc cells"
    assert row["2 at 0.9"] > 0
    assert calls == ["divgrpc cells"]
    _measure(words)
    assert calls == ["divgrpc cells"]
    _measure(f"{words} --again divgrpc")
    assert calls == ["divgrpc cells"] * 2


def test_a_table_warns_of_results_of_another_run() -> None:
    facts = {"yardstick": 1.0, "builds": [], "points": [], "diverse": [], "target": 0.9}
    one, two = ({"run": run, **facts} for run in ("1", "2"))
    assert _warning({"a": one, "b": one}) == ""
    assert "different runs" in _warning({"a": one, "b": two})


def _warning(record: dict[str, Any]) -> str:
    table = next(iter(rivals.report("tiny", record)))
    assert isinstance(table, Table)
    return table.facts.get("warning", "")
