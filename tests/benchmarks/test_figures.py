"""Tests of the arithmetic of single benchmarks: comparisons and goals."""

import ast
import signal
from pathlib import Path

import numpy as np
import pytest

from benchmarks import core_mutations
from benchmarks.harness.libraries import faiss_factories
from benchmarks.harness.load import Load
from benchmarks.harness.runner import RUNS
from benchmarks.runs import builds, growth, peers, selectors, service
from benchmarks.runs.contestants import Build, Entry, finalists
from benchmarks.runs.wire import Case, rows_of
from divgrpc.index import Index
from divgrpc.parameters import QueryParameters
from divgrpc.types import IntArray
from divgrpc_client.load import Report

INDEX = Index.build(np.eye(4))


def entry(name: str, gap: float, microseconds: float = 1.0, seconds: float = 0.0) -> Entry:
    """Return an entry with the given figures; if `seconds` is 0, it has no build."""

    def ask(_: int) -> IntArray:
        return np.empty(0, np.int64)

    source = Build(name, "", INDEX, seconds, 10) if seconds else None
    return Entry(name, "", source, 1, (), 0.3, gap, microseconds, ask)


def test_a_batch_with_other_answers_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors, "_batch", lambda *_: np.full(6, -1))
    index = Index.build(np.random.default_rng(0).standard_normal((50, 4)))
    with pytest.raises(RuntimeError, match="other answers"):
        selectors.compare(index, QueryParameters(k=3), np.ones((2, 4), np.float32), 2, 1)


def test_a_call_is_compared_with_echo_plus_query() -> None:
    """The floor is the least CPU of the echo plus the least CPU of the query in process."""

    def load(p50: float | None = 10.0, **cpu: float) -> Load:
        return Load(1, 1.0, cpu, {} if p50 is None else {50: p50, 99: 20.0})

    loads = {
        Case("cells", "query in process", 1): [load(worker=90.0), load(worker=60.0)],
        Case("auto", "query in process", 1): [load(worker=10.0)],
        Case("", "echo", 1): [load(front=40.0), load(front=70.0)],
        Case("cells", "1 worker", 1): [
            load(35.0, front=50.0, worker=75.0),
            load(99.0, front=20.0, worker=75.0),
        ],
        Case("auto", "1 worker", 1): [load(front=5.0, worker=70.0)],
        Case("cells", "1 worker, QueryStream", 1): [load(None, front=20.0, worker=75.0)],
        Case("cells", "batch of 100 in process", 1): [load(worker=90.0)],
        Case("cells", "1 worker, batch of 100", 4): [load(front=9.0, worker=100.0)],
    }
    rows = {row["family, program"]: row for row in rows_of(loads)}
    assert rows["cells, 1 worker"]["x floor"] == pytest.approx(125 / 100)
    assert rows["cells, 1 worker"]["p50 above floor"] == pytest.approx(15)
    assert rows["auto, 1 worker"]["x floor"] == pytest.approx(75 / 50)
    for name in ("echo", "cells, 1 worker, QueryStream", "cells, 1 worker, batch of 100"):
        assert rows[name]["x floor"] is None
    assert rows["cells, 1 worker, batch of 100"]["of in process"] == pytest.approx(0.9)


def test_a_build_is_compared_by_its_best_rounds() -> None:
    """The fastest hashing and the fastest whole build may be from different rounds."""
    rounds = [{"hashing": 4.0, "rest": 5.0}, {"hashing": 5.0, "rest": 1.0}]
    row = builds.row_of("cells", rounds, 1.0, product=2.0, file=3.0)
    assert (row["hashing, of the product's rate"], row["whole, times the file"]) == (0.5, 2)
    assert row["rest"] == 1


def test_finalists_are_the_fastest_that_close_the_gap() -> None:
    """If no entry of a name closes the share, the best is timed; both sides must close it."""
    single_entries = [entry("ours", 0.98, 9), entry("ours", 0.97, 8), entry("ours", 0.99, 7)]
    single_entries.append(entry("ours", 0.5, 1))
    weak = [entry("c + d", 0.9, 1), entry("c + d", 0.8, 0.5)]
    share, selection = finalists([*single_entries, entry("a + b", 0.97, 5), *weak], 0.97, 2)
    assert share == 0.97
    assert [item.microseconds for item in selection] == [7, 8, 5, 1]
    share, selection = finalists([*single_entries, *weak], 0.97, 1)
    assert share == 0.9
    assert [item.microseconds for item in selection] == [7, 1]


def test_ratios_compare_entries_that_close_the_gap() -> None:
    """Entries that do not close the gap are not compared, even if they are faster."""
    entries = [
        entry("auto", 1, 10, seconds=2),
        entry("cells", 0.9, 1, seconds=1),
        entry("hnswlib + pyversity MSD", 1, 30, seconds=40),
        entry("hnswlib + pyversity MMR", 0.9, 3, seconds=1),
        entry("faiss IVF + our greedy", 1, 12, seconds=1),
        entry("faiss PQ + our greedy", 1, 15, seconds=1),
        entry(peers.GREEDY, 1, 1000),
    ]
    [row] = peers.compare(peers.best_of_each(entries, 0.97), 0.97)
    assert (row["ours"], row["best faiss"]) == ("auto", "faiss IVF")
    assert (row["x hnswlib + pyversity"], row["x best faiss + ours"]) == (3, 1.2)
    assert (row["x greedy over all"], row["x hnswlib in building"]) == (100, 20)
    assert row["of its bytes"] == 1
    assert row["x exact pass"] is None


def test_faiss_factories_fit_the_data() -> None:
    """Inverted lists get enough points for training, and the number of parts divides dimensions."""
    kinds = {kind: config for kind, (config, _) in faiss_factories(1_000_000, 128).items()}
    assert kinds["faiss IVF"] == "IVF4096,Flat"
    assert kinds["faiss IVF-PQ"] == "IVF1024,PQ64x4fs,RFlat"
    assert faiss_factories(1_000, 48)["faiss IVF-PQ"][0] == "IVF25,PQ16x4fs,RFlat"


def test_a_service_is_shown_by_its_quietest_rounds() -> None:
    """CPU is from the round with the least CPU, and p99 from the open loop with the least p99."""

    def load(cpu: float, p99: float) -> Load:
        return Load(1, 10.0, {"front": cpu, "worker": 1.0}, {50.0: 1.0, 99.0: p99})

    def offered(p99: float, answers: int = 10, void: str = "") -> Report:
        latency = {"p50": 1.0, "p99": p99}
        return {"offered": 10.0, "rate": answers, "latency": latency, "void": void}

    loops = [
        ([load(5, 1), load(3, 2)], [offered(9), offered(8)]),
        ([load(1, 1)], [offered(1)]),
        ([load(1, 1)], [offered(1, answers=9)]),
        ([load(1, 1)], [offered(1, void="late")]),
        ([load(7, 1)], [offered(16)]),
    ]
    gaps = {"a": 0.97, "short": 0.96, "late": 0.98, "void": 0.98, "by hand": 0.97}
    entries = [entry(name, gap) for name, gap in gaps.items()]
    rows = list(service.rows_of(loops, entries, 0.97))
    assert (rows[0]["CPU us"], rows[0]["p99 us"]) == (4, 8)
    assert [row["times per CPU"] for row in rows] == [2, None, 4, 4, 1]
    assert [row["of its p99"] for row in rows] == [0.5, None, None, None, 1]


SOURCE = '''"""A docstring has no mutants."""

LIMIT: int = 3


def f(x: int, é: str = "é") -> bool:
    """Nor has this."""
    if x + 1 not in (LIMIT, 2) and (x
            < 4):
        return True
    return (x) // (2) == 1.5
'''


def test_mutants_change_one_place(tmp_path: Path) -> None:
    (tmp_path / "divgrpc").mkdir()
    (tmp_path / "divgrpc/a.py").write_text(SOURCE)
    places = [
        place
        for statement in core_mutations.statements_of("divgrpc/a.py", tmp_path)
        for place in statement
    ]
    source = SOURCE.encode()
    changes = {(p.line, source[p.begin : p.end].decode(), p.new) for p in places}
    assert changes == {
        *((3, "3", "4"), (9, "4", "5"), (10, "True", "False")),
        *((8, "+", "-"), (8, "1", "2"), (8, "not in", "in"), (8, "2", "3")),
        *((8, "and", "or"), (8, "<", "<=")),
        *((11, "//", "*"), (11, "2", "3"), (11, "==", "!="), (11, "1.5", "2.5")),
    }
    for place in places:
        assert ast.dump(ast.parse(place.apply(source))) != ast.dump(ast.parse(SOURCE))
    draws = [core_mutations.draw(tmp_path, [], 3, seed) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert len({mutant.line for mutant in draws[0]}) == 3


def test_mutants_are_tested_by_the_mirrored_folder(tmp_path: Path) -> None:
    """A file directly in the core's folder is tested by the files directly in `tests/core`."""
    for folder in ("tests/core/search", "divgrpc/search"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "tests/core/test_engine.py").touch()
    tests_of = core_mutations.tests_of
    assert tests_of("divgrpc/search/a.py", tmp_path) == ["tests/core/search"]
    assert tests_of("divgrpc/engine.py", tmp_path) == ["tests/core/test_engine.py"]


def _noticed(clone: Path, test: str) -> list[bool]:
    for path, source in (("divgrpc/a.py", "A = 1"), ("tests/core/test_a.py", test)):
        (clone / path).parent.mkdir(parents=True)
        (clone / path).write_text(source)
    options = RUNS["core-mutations"].parse(f"--clone {clone}")
    rows = core_mutations.core_mutations(options)
    return [row["noticed"] for row in rows if isinstance(row, dict)]


@pytest.mark.parametrize("code", [1, 2, 3, 4, -signal.SIGKILL])
def test_a_mutant_is_noticed_however_its_tests_fail(tmp_path: Path, code: int) -> None:
    exits = f"os.kill(os.getpid(), {-code})" if code < 0 else f"os._exit({code})"
    assert _noticed(tmp_path, f"import os\n{exits}") == [True]


def test_a_mutant_is_not_noticed_if_its_tests_pass(tmp_path: Path) -> None:
    assert _noticed(tmp_path, "def test(): pass") == [False]


def test_a_mutant_without_tests_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="there are no tests"):
        _noticed(tmp_path, "")


@pytest.mark.parametrize("seed", range(5))
def test_growth_recovers_known_costs(seed: int) -> None:
    """From exact totals, the fit finds the cost of each unit, also of units that cost nothing."""
    random = np.random.default_rng(seed)
    work = random.uniform(1, 2, (12, 4)) * [1, 100, 10_000, 300]
    costs = np.array([40_000, 0, 6, 90.0])
    np.testing.assert_allclose(growth.fit(work, work @ costs), costs, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("limit", [1, 2, 3, 31, 32, 33, 99, 100, 150])
def test_growth_finds_the_least_number_that_reaches(limit: int) -> None:
    assert growth.least(lambda number: number >= limit, 100) == min(limit, 100)
