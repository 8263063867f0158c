"""Tests of the benchmark of near-copies: its exact results, its figures, and a small run."""

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from benchmarks.harness.runner import RUNS, Row
from benchmarks.runs import crowding
from benchmarks.runs.crowding import OFF, Recalls, Setting, Truth, figures
from divgrpc.index import Index
from divgrpc.metrics import Labels
from support.data import crowded_points
from support.data.crowded_points import STORIES, Crowd, Queries

SEVEN = np.full(3 * STORIES, 7)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_truth_equals_plain_loops(kind: str) -> None:
    """Nearest rows and nearest distinct items equal those of a sort of all points."""
    dense = np.random.default_rng(1).random((90, 12), np.float32)
    points = dense if kind == "dense" else sparse.csr_array(dense)
    queries = Queries(dense[:6] + 0.5, np.zeros(6, np.int64))
    items = np.arange(90) // 3
    crowd = Crowd(kind, points, items, Labels.of(items % 3, items), {"topics": queries}, "")
    truth = Truth.of(crowd, "topics", crowd.queries["topics"], 4, 9)
    for query, rows, distinct in zip(
        crowd.queries["topics"].rows, truth.nearest, truth.distinct, strict=True
    ):
        near = dense @ query
        order = np.argsort(-near, kind="stable")
        assert near[rows] == pytest.approx(near[order[:9]], abs=1e-6)
        first = {crowd.items[row]: row for row in order[::-1]}
        best = sorted(first.values(), key=lambda row: -near[row])[:4]
        assert crowd.items[distinct].tolist() == crowd.items[best].tolist()
        assert near[distinct] == pytest.approx(near[best], abs=1e-6)


def test_recall_counts_exact_copies_as_nearest() -> None:
    """A point as near as the last nearest point counts as found; a missing place does not."""
    points = np.array([[1, 0], [1, 0], [0.8, 0.6], [0, 1]], np.float32)
    crowd = crowd_of(points, [0, 0, 1, 2])
    truth = Truth.of(crowd, "documents", crowd.queries["documents"], 2, 2)
    assert truth.recall(np.array([[0, 1]])) == 1
    assert truth.recall(np.array([[1, 3]])) == 0.5
    assert truth.recall(np.array([[1, -1]])) == 0.5


def crowd_of(points: np.ndarray, items: list[int]) -> Crowd:
    """Return four points and a query at the first point; the last has another category."""
    labels = Labels.of([0, 0, 0, 1], items)
    queries = {"documents": Queries(points[:1], np.array([0]))}
    return Crowd("four", points, np.array(items), labels, queries, "")


def test_figures_of_an_answer() -> None:
    """The answer has two copies of an item and a point of another topic."""
    points = np.array([[1, 0], [1, 0], [0.8, 0.6], [0, 1]], np.float32)
    crowd = crowd_of(points, [0, 0, 1, 2])
    truth = Truth.of(crowd, "documents", crowd.queries["documents"], 3, 4)
    row = figures(truth, np.array([[0, 1, 3]]), 0.5)
    assert (row["distinct"], row["of topic"]) == (2, 1)
    assert row["relevant"] == pytest.approx(2 / 3)
    assert row["of best"] == pytest.approx((2 / 3) / (1.8 / 3))
    assert row["of nearest"] == pytest.approx((2 / 3) / (2.8 / 3))
    # J is half the mean squared distance to the query, minus half that between pairs of results.
    assert row["J"] == pytest.approx(0.5 * (2 / 3) - 0.5 * (4 / 3))


def test_settings_become_query_parameters() -> None:
    words = "--selectors greedy:marginal --dials 0.2 --candidates 400 --duplicate-thresholds off"
    options = RUNS["crowding"].parse(words)
    plain, defaults, greedy = crowding.settings_of(options, "scan")
    assert plain == Setting("nearest", 0.0, search="scan")
    assert defaults.parameters == {"search": "scan"}
    assert greedy.parameters == {
        "selector": "greedy",
        "variant": "marginal",
        "diversity": 0.2,
        "candidates_limit": 400,
        "search": "scan",
        "keep_duplicates": True,
    }
    assert greedy.name == f"greedy:marginal 0.2 of 400 collapse {OFF}"
    assert Setting(threshold="0.9").parameters == {"duplicate_threshold": 0.9}
    assert Setting().parameters == {}


def test_recall_of_candidates_depends_on_the_search() -> None:
    """The recall is 1 for an exact search, and lower for a search that hashes few points."""
    crowd = crowded_points.made("seven", SEVEN, 20)
    index = Index.build(crowd.points, hash_family="lsh_div")
    truth = Truth.of(crowd, "documents", crowd.queries["documents"], 5, 100)
    recalls = Recalls(index, truth)
    rows = truth.queries.rows
    exact = index.query(rows, k=5, search="exact").parameters
    few = index.query(rows, k=5, search="tables", hash_limit=60, candidates_limit=60).parameters
    assert recalls.of(exact) == 1
    assert recalls.of(few) < 1


@pytest.mark.parametrize("half", ["choose", "report"])
def test_runs_small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, half: str) -> None:
    """A small run on synthetic and real sets has a row for every setting, and the goals."""
    monkeypatch.delenv("DIVGRPC_DATA", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    words = f"--sets made-3 cifar --points 600 --shares 50 --queries 8 --half {half} --timed 2 "
    words += "--searches defaults --selectors dpp"
    run = RUNS["crowding"]
    *tables, goals = run.measure(run.parse(words))
    assert [table.title.split(": ")[1] for table in tables] == 2 * list(crowded_points.KINDS)
    for table in tables:
        names = {row["family, search, setting"].split(", ")[-1] for row in table.rows}
        assert names == {"nearest", "defaults", "dpp 0.3", "best items"}
        for row in table.rows:
            assert 1 <= row["distinct"] <= 10
            assert row.get("x nearest") is None or row["x nearest"] > 0
    assert "distinct items" in {row["defaults"] for row in goals.rows}


def test_a_goal_is_judged_by_the_worst_default_row() -> None:
    def row(data: str, setting: str, search: str = "defaults", **values: float) -> Row:
        return {
            "family, search, setting": f"defaults, {search}, {setting}",
            "set": data,
            "kind": "topics",
            "crowded": data == "crowded",
            "of topic": 8.0,
            "recall": 0.8,
            "target recall": 0.9,
            "gap closed": None,
            **{name.replace("_", " "): value for name, value in values.items()},
        }

    best = {"family, search, setting": "truth, exact, best items", "of topic": 10}
    greedy = "greedy:marginal 0.3 collapse off"
    rows = [
        row("crowded", "defaults", distinct=9.5, of_best=0.9, recall=0.95),
        row("apart", "defaults", of_nearest=0.99),
        row("apart", "nearest", of_nearest=0.1, recall=0.92),
        {**row("crowded", ""), **best},
        row("crowded", greedy, gap_closed=0.9),
        row("crowded", greedy, "exact", gap_closed=1.0),
    ]
    goals = {goal["defaults"]: goal for goal in crowding.goals(rows)}
    worst = {name: (goal["worst"], goal["reached"], goal["cases"]) for name, goal in goals.items()}
    assert worst == {
        "distinct items": (9.5, 1, 1),
        "items of the topic, as a share of the best items'": (0.8, 0, 1),
        "mean cosine of best": (0.9, 0, 1),
        "mean cosine of nearest, uncrowded": (0.99, 1, 1),
        "recall of candidates less target_recall": (pytest.approx(-0.1), 2, 4),
        "gap closed by marginal 0.3, nothing collapsed": (0.9, 0, 1),
        "gap closed by greedy, as a share of exact's": (0.9, 0, 1),
    }
    assert goals["mean cosine of nearest, uncrowded"]["worst at"] == "apart, topics"
