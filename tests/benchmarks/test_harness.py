"""Tests of the common measuring tools, on which the figures of all benchmarks depend."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from sklearn.preprocessing import normalize

from benchmarks.harness import programs, runner, truth
from benchmarks.harness.datasets import Manifold
from benchmarks.harness.runner import (
    Benchmark,
    Option,
    Options,
    Output,
    Table,
    Timed,
    benchmark,
    take_turns,
    text,
)
from divgrpc.types import FloatArray, IntArray


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Benchmark:
    """Register a benchmark that yields two tables, a note, and a table without rows."""
    monkeypatch.setattr(runner, "RUNS", {})

    @benchmark(
        "example",
        k=Option(10, "picks"),
        sets=Option(["a"], "sets", ("a", "b")),
        dials=Option([], "dials", kind=float),
        per_call=Option(False, "a flag"),
        folder=Option(None, kind=Path),
    )
    def rows(options: Options) -> Iterator[Output]:
        """Title of the example.

        What it measures.
        """
        yield {"name": "a", "us": 1234.5}
        yield "a note"
        yield Table("Second", {"fact": "1"})
        yield {"name": options.k, "share": 0.5}
        yield {"name": "x", "extra": None}
        yield Table("Empty")

    return runner.RUNS["example"]


@pytest.fixture(scope="module")
def base() -> FloatArray:
    """Return points for two blocks; the second is not full."""
    return Manifold.of(dims=16).points(70_000)


def test_options_are_declared_once(example: Benchmark) -> None:
    """An option has the type of its default, or `kind`; command-line names have hyphens."""
    defaults = {"k": 10, "sets": ["a"], "dials": [], "per_call": False, "folder": None}
    assert vars(example.parse()) == defaults
    words = "--k 3 --sets b a --dials 0.5 --per-call --folder x"
    options = example.parse(words)
    assert (options.k, options.sets, options.dials) == (3, ["b", "a"], [0.5])
    assert (options.per_call, options.folder) == (True, Path("x"))
    with pytest.raises(SystemExit):
        example.parse("--sets c")


def test_tables_are_printed_and_returned(
    example: Benchmark, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only tables with rows are printed; their columns are all keys that occur in a row."""
    tables = example.measure(example.parse())
    assert [table.title for table in tables] == ["Title of the example", "Second"]
    assert tables[1].columns == ["name", "share", "extra"]
    assert tables[1].cells() == [["10", "0.500", ""], ["x", "", ""]]
    output = capsys.readouterr().out
    assert "| a    | 1,234 |" in output
    assert "a note" in output
    assert "fact: 1" in output


def test_numbers_have_three_digits_or_four() -> None:
    values = [0.0, 1.0, 2.5, 12.345, 1234.5, 0.00012, float("nan"), True, 1000, [1, "a"]]
    texts = ["0.000", "1.000", "2.50", "12.35", "1,234", "1.2e-04", "", "yes", "1,000", "1 a"]
    assert [text(value) for value in values] == texts


def test_ratios_are_paired_by_block() -> None:
    """The ratio is the median of the ratios within blocks, and the interval includes it."""
    no_rows = np.empty((0, 1), np.int64)
    slow, fast = Timed(no_rows, (2.0, 40.0, 9.0)), Timed(no_rows, (1.0, 10.0, 3.0))
    ratio, interval = slow.ratio(fast)
    assert ratio == 3
    assert interval == "2.00 to 4.00"


def test_contestants_answer_every_query() -> None:
    """If a contestant exceeds its patience within a block, the rest of the block is -1."""
    asks = {"all": lambda query: np.array([query, query + 1])}
    measurement = take_turns(asks, 20, 2)["all"]
    assert measurement.rows.tolist() == [[query, query + 1] for query in range(20)]
    assert len(measurement.blocks) == 8
    assert (take_turns(asks, 20, 2, patience=0)["all"].rows[:, 0] >= 0).sum() == 8


def test_objective_of_missing_results_is_an_error() -> None:
    base = Manifold.of(dims=16).points(10)
    assert truth.mean_objective(base, base[:1], np.array([[3, 4]]), 0.3) < 2
    with pytest.raises(ValueError, match="k results"):
        truth.mean_objective(base, base[:1], np.array([[3, -1]]), 0.3)


def test_the_best_dial_has_the_least_value() -> None:
    """Dials on both sides of the target are tried; of equally good dials the smaller is taken."""
    dials = truth.dials(0.3)
    assert dials == sorted(dials)
    assert 0 < dials[0] < 0.2
    assert 0.5 < dials[-1] < 1
    assert truth.best_dial(0.5, lambda dial: abs(dial - 0.5)) == pytest.approx(0.5)
    assert truth.best_dial(0.5, lambda _: 0.0) == truth.dials(0.5)[0]


def stepwise(points: FloatArray, query: FloatArray, picks: IntArray, weight: float) -> None:
    """Assert that each pick is the best of the remaining points, by float64 distances."""
    points = points.astype(np.float64)
    near = ((points - query) ** 2).sum(axis=1)
    for step, pick in enumerate(picks):
        before = points[picks[:step]]
        value = near - weight * ((points[:, None] - before[None]) ** 2).sum(axis=(1, 2))
        value[picks[:step]] = np.inf
        assert value[pick] <= value.min() + 1e-5


@pytest.mark.parametrize("diversity", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("kind", ["one query", "many", "many, sparse"])
def test_exhaustive_greedy_follows_its_rule(diversity: float, kind: str) -> None:
    """Rows have 7 dimensions, which is not a multiple of the width of any vector register."""
    rows = normalize(np.random.default_rng(5).standard_normal((40, 7)).astype(np.float32))
    points = rows[1:] if kind != "many, sparse" else normalize(rows[1:] * (rows[1:] > 0))
    if kind == "one query":
        picks = truth.greedy_of_one(points, rows[0], 6, diversity)
    else:
        base = points if kind == "many" else sparse.csr_array(points)
        [picks] = truth.greedy(base, rows[:1], 6, diversity)
    stepwise(points, rows[0], picks, 2 * diversity / (1 - diversity) / 5)


@pytest.mark.parametrize("diversity", [0.1, 0.5, 0.9])
def test_many_queries_get_the_picks_of_single_queries(base: FloatArray, diversity: float) -> None:
    queries = Manifold.of(dims=16).queries(3)
    one_by_one = [truth.greedy_of_one(base, query, 4, diversity) for query in queries]
    np.testing.assert_array_equal(truth.greedy(base, queries, 4, diversity), one_by_one)


@pytest.mark.parametrize("diversity", [0.1, 0.5, 0.9])
def test_mmr_follows_its_rule(base: FloatArray, diversity: float) -> None:
    """Each pick has the best trade of nearness to the query and unlikeness to earlier picks."""
    [query] = Manifold.of(dims=16).queries(1)
    picks = truth.mmr_of_one(base, query, 4, diversity)
    for step, pick in enumerate(picks):
        closest = (base @ base[picks[:step]].T).max(axis=1) if step else np.zeros(len(base))
        value = (1 - diversity) * (base @ query) - diversity * closest
        value[picks[:step]] = -np.inf
        assert value[pick] >= value.max() - 1e-5


def test_mmr_is_measured_by_its_steps() -> None:
    """A step gains from nearness to the query and loses from nearness to an earlier pick."""
    base = np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32)
    query = np.array([[1, 0]], np.float32)
    expected = -((0.75 * (1 + 0 + 0.6)) - 0.25 * (0 + 0.8))
    assert truth.mean_mmr(base, query, np.array([[0, 1, 2]]), 0.25) == pytest.approx(expected)


def test_nearest_equals_a_full_sort(base: FloatArray) -> None:
    """Results of several blocks are merged by distance, and then by row."""
    points = np.concatenate((base, base[:5]))
    queries = base[[0, 3, 69_999]]
    rows, distances = truth.nearest(points, queries, 7)
    expected = np.argsort(-(queries @ points.T), axis=1, kind="stable")[:, :7]
    np.testing.assert_array_equal(rows[:, 0], [0, 3, 69_999])
    products = np.take_along_axis(queries @ points.T, expected, 1)
    np.testing.assert_allclose(distances, 2 - 2 * products, atol=1e-5)
    assert truth.nearest(points[:4], queries, 7)[0].shape == (3, 4)


def test_recall_counts_missing_rows() -> None:
    near = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4]])
    answers = [np.array([2, 1]), np.empty(0, np.int64), np.array([4, 3, 2, 1])]
    assert truth.recall(answers, near) == 0.5


def test_synthetic_points_do_not_depend_on_how_many(base: FloatArray, tmp_path: Path) -> None:
    manifold = Manifold.of(dims=16)
    few = manifold.points(20_000)
    np.testing.assert_array_equal(few, base[:20_000])
    np.testing.assert_array_equal(manifold.write(tmp_path / "rows.npy", 20_000), few)
    np.testing.assert_allclose(np.linalg.norm(few, axis=1), 1, rtol=1e-5)
    assert not np.array_equal(manifold.queries(100), few[:100])
    assert not np.array_equal(Manifold.of(seed=1, dims=16).points(100), few[:100])


def test_synthetic_clusters_follow_a_power_law() -> None:
    """The n-th largest cluster has n to the power of -0.8 times the share of the largest."""
    clusters = Manifold.of(dims=16).clusters(np.random.default_rng(0))
    sizes = np.bincount(clusters, minlength=2_000)
    assert sizes[0] / sizes[:16].mean() == pytest.approx(3.6, rel=0.2)
    assert sizes[0] / sizes[1_000:].mean() == pytest.approx(340, rel=0.2)


def test_mappings_are_measured_by_folder(tmp_path: Path) -> None:
    array = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.float32, (2**16,))
    array[:] = 1
    assert programs.mapped(os.getpid(), tmp_path)["Rss"] >= array.nbytes
    assert programs.mapped(os.getpid(), tmp_path / "b") == {"Size": 0, "Rss": 0, "Pss": 0}
    assert programs.held(os.getpid())["private"] > array.nbytes
