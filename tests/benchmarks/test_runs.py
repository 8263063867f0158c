"""Each run from end to end, as small as it goes, and the choices that its figures rest on."""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from benchmarks import (
    build,
    evaluate,
    finders,
    footprint,
    gain,
    label_speed,
    labels,
    large,
    memory,
    metrics,
    overload,
    peers,
    relaxing,
    selectors,
    shares,
    sparse_query,
    start,
    sweeps,
    training,
    trees,
)
from benchmarks.exhaustive import Everything
from benchmarks.shares import Choice, choose, choose_limits
from benchmarks.sweeps import Setting
from divgrpc.evaluation import FOLDS
from divgrpc.index import Index
from divgrpc.metrics import Values
from divgrpc.search.memory import Memory
from divgrpc.types import FloatArray
from divgrpc_lab.data import topics


def told(run: object, *words: str) -> argparse.Namespace:
    """Return what a run's own parser makes of some words."""
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)  # type: ignore[attr-defined]  # a module
    return parser.parse_args(words)


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the runs find no data sets, and keep what they learn in a folder of the test."""
    monkeypatch.delenv("DIVGRPC_DATA", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def measured(h: Mapping[Setting, list[float]]) -> dict[Setting, Values]:
    """Return measures that are all h."""
    return {setting: np.array([values] * 4, np.float64) for setting, values in h.items()}


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize("absent", [True, False])
def test_gain_runs_small(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, absent: bool
) -> None:
    """Two families, two seeds and one k: rows for everyone, those of a family twice."""
    gone = absent or trees.missing()
    monkeypatch.setattr(trees, "missing", lambda: gone)
    words = "--families lsh_div cells --k 5 --per-category 5 --seeds 2 --timed 4 --threads 2"
    result = gain.run(told(gain, *words.split()))
    rows = result["rows"]
    assert isinstance(rows, list)
    names = [(row["name"], row["by_folds"]) for row in rows]
    assert names == [
        ("nearest", False),
        ("all points", False),
        ("exact pass", False),
        *((f"KD-trees, {checks:,} checks", False) for checks in trees.CHECKS if not gone),
        ("lsh_div", False),
        ("lsh_div", True),
        ("cells", False),
        ("cells", True),
    ]
    assert rows[1]["share"][0] == 1
    assert all(row["microseconds"] > 0 for row in rows[1:])
    told_us = capsys.readouterr().out
    assert "cells, tables" in told_us
    assert ("no KD-trees: cv2 is not installed" in told_us) == gone


def test_what_trees_find_goes_to_our_selector() -> None:
    """With a stand-in that finds the nearest, the picks are those of an exact query."""
    points = np.random.default_rng(0).standard_normal((500, 9)).astype(np.float32)
    index = Index.build(points)
    rows: FloatArray = np.asarray(index.engine._searcher.points)

    class Library:
        def knnSearch(self, query: FloatArray, count: int, params: object) -> object:  # noqa: N802, ARG002  # OpenCV's
            far = ((rows - query) ** 2).sum(axis=1)
            order = np.lexsort((np.arange(500), far))[:count].astype(np.int32)
            return order[None], far[order][None]

    memory = Memory(9, 4, (9, 256))
    each = trees.Trees(800, Library(), index.engine._searcher._index.points, memory)
    query = rows[:1]
    for variant in sweeps.VARIANTS:
        picked = each.pick(each.nearest(query, 5), 5, Setting(0.4, variant))
        wanted = index.query(query, k=5, diversity=0.4, variant=variant, search="exact")
        assert picked.tolist() == wanted.ids[0].tolist()


def test_relaxing_runs_small(capsys: pytest.CaptureFixture[str]) -> None:
    """Two sizes, both kinds of queries: every gap within its tolerance, every pass counted."""
    words = "--images 300 600 --words 300 --k 2 --diversity 0.3 0.9"
    result = relaxing.run(told(relaxing, *words.split()))
    rows = result["rows"]
    assert isinstance(rows, list)
    assert [(row["images"], row["queries"]) for row in rows] == [
        (300, "sparse"),
        (300, "dense"),
        (600, "sparse"),
        (600, "dense"),
    ]
    assert all(row["gap"] <= 1e-3 and row["passes"] >= 1 for row in rows)
    assert "bytes an image" in capsys.readouterr().out


def test_sparse_query_runs_small(capsys: pytest.CaptureFixture[str]) -> None:
    """Both kinds of queries, exact candidates and all limits of two families; a goal of each."""
    words = "--images 600 --words 400 --families lsh_sdiv auto --queries 7 --k 3"
    rows = sparse_query.run(told(sparse_query, *words.split()))["rows"]
    assert isinstance(rows, list)
    limits = len(sparse_query.LIMITS)
    names = ["exact candidates", *["lsh_sdiv"] * limits, *["auto"] * limits]
    assert [(row["kind"], row["family"]) for row in rows] == [
        (kind, name) for kind in ("sparse", "dense") for name in names
    ]
    for row in rows:
        assert 0 <= row["found"] <= 1
        if row["search"] == "exact":
            assert row["found"] == 1
    assert rows[0]["kept"] == 1
    printed = capsys.readouterr().out
    assert "sparse, auto: ms at J kept >= 0.97" in printed
    assert "dense: ms of the product" in printed


@pytest.mark.usefixtures("digits")
def test_labels_run_small(capsys: pytest.CaptureFixture[str]) -> None:
    """Ridge, LEML twice and three kinds of votes, each with its diversity; rivals not there."""
    rows = labels.run(told(labels, "--rivals", sys.executable))["rows"]
    assert isinstance(rows, list)
    assert len(rows) == 6
    assert all(row["precisions"][0] > 90 and 0 < row["h"] < 1 for row in rows)
    shown = capsys.readouterr().out
    assert "digits, LEML" in shown
    assert "PECOS XR-Linear on digits: ModuleNotFoundError" in shown


def test_training_runs_small(capsys: pytest.CaptureFixture[str]) -> None:
    """The start and two iterations, each with its products; labels beside the most frequent."""
    words = "--share 0.002 --rank 8 --iterations 2"
    result = training.run(told(training, *words.split()))
    stages = result["stages"]
    assert isinstance(stages, list)
    assert [stage["loss"] is None for stage in stages] == [True, False, False]
    assert all(0 < stage["products"] < stage["seconds"] for stage in stages)
    reached, popular = result["precisions"], result["precisions_of_popular"]
    assert isinstance(reached, list)
    assert isinstance(popular, list)
    assert reached[0] > popular[0]
    assert "peak memory" in capsys.readouterr().out


def test_label_speed_runs_small(capsys: pytest.CaptureFixture[str]) -> None:
    """Products, every search and a batch, on factors of both kinds; an exact search finds all."""
    rows = label_speed.run(told(label_speed, "--labels=3000", "--rank=16", "--documents=12"))[
        "rows"
    ]
    assert isinstance(rows, list)
    assert len(rows) == 2 * (2 + len(label_speed.SEARCHES))
    assert all(row["overlap"] == 1 for row in rows if "exact" in row["name"])
    assert all(0 < row["scored"] <= 1 for row in rows)
    assert "sgemv" in capsys.readouterr().out


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize("absent", [[], ["hnswlib", "faiss", "pyversity", "langchain_core"]])
def test_peers_run_small(monkeypatch: pytest.MonkeyPatch, absent: list[str]) -> None:
    """Everyone's fastest is there, on real and on made points, and a run without others ends."""
    gone = absent or finders.missing()
    monkeypatch.setattr(finders, "missing", lambda: gone)
    monkeypatch.setattr(peers, "_BUILDS", 1)
    words = "--points real 1000 --k 5 --queries 6 --tuning 3 --diversity 0.3 --gap 0.7 --links 8"
    fewer = ["--families", "lsh_div", "auto", "--ef-construction", "50", "--faiss", "faiss IVF-PQ"]
    sets = peers.run(told(peers, *words.split(), *fewer))["sets"]
    assert isinstance(sets, list)
    for each in sets:
        names = {row["name"] for row in each["rows"]}
        assert {"lsh_div", "auto", "exact pass", "greedy over all points"} <= names
        assert ("faiss IVF-PQ + our greedy" in names) == ("faiss" not in gone)
        ratios = {row["name"]: row for row in each["ratios"] if row["objective"] == "J"}
        assert all(row["gap"] >= 0.7 and row["greedy"] > 0 for row in ratios.values())
        assert (ratios["lsh_div"]["faiss"] is None) == ("faiss" in gone)


@pytest.mark.parametrize("absent", [[], ["faiss"]])
def test_large_runs_small(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, absent: list[str]
) -> None:
    """Every search of every size has a row, and cost grows with the number of points."""
    gone = absent or finders.missing()
    monkeypatch.setattr(finders, "missing", lambda: gone)
    monkeypatch.setattr(large, "_REFERENCE", 1_000)
    words = "--points 1000 4000 --families lsh_div auto --queries 5 --recall 0.5"
    result = large.run(told(large, *words.split(), "--folder", str(tmp_path)))
    rows, slopes = result["rows"], result["exponents"]
    assert isinstance(rows, list)
    assert isinstance(slopes, dict)
    names = {row["name"] for row in rows if row["points"] == 4_000}
    assert {"lsh_div, tables", "lsh_div, scan", "auto, auto"} <= names
    assert len(names) == 3 + ("faiss" not in gone)
    assert all(row["on_top"] > 0 for row in rows)
    assert all(row["recall"] >= 0.5 for row in rows if "tables" not in row["name"])
    assert "auto, the faster" in slopes
    assert list(tmp_path.iterdir()) == []


def test_exponents_are_of_what_reaches_the_recall() -> None:
    """Cost like the root of n has one half; what misses the recall at a size has none."""

    def row(name: str, points: int, cost: float, *, reached: bool = True) -> large.Row:
        return large.Row(points, name, 1, 1, 0.95, reached, cost, 1.0, 1.0, 1, 0.1)

    rows = [row("auto, auto", n, n**0.5) for n in (10**4, 10**5, 10**6)]
    rows += [row("cells, scan", n, n, reached=n < 10**6) for n in (10**4, 10**5, 10**6)]
    rows += [row("cells, tables", n, n**0.25) for n in (10**4, 10**5, 10**6)]
    slopes = large.exponents(rows)
    assert slopes["auto, auto"] == pytest.approx(0.5)
    assert slopes["cells, tables"] == slopes["cells, the faster"] == pytest.approx(0.25)
    assert "cells, scan" not in slopes


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize("absent", [[], ["pyversity", "langchain_core"]])
def test_selectors_run_small(monkeypatch: pytest.MonkeyPatch, absent: list[str]) -> None:
    """Every selector has a row, MMR picks what rivals pick, and a run without them ends well."""
    gone = absent or selectors.missing()
    monkeypatch.setattr(selectors, "missing", lambda: gone)
    words = "--k 5 --queries 10 --candidates 20 40"
    result = selectors.run(told(selectors, *words.split()))
    rows = result["rows"]
    assert isinstance(rows, list)
    names = {"greedy", "greedy, marginal", "mmr", "rerank", "max_sum", "dpp", "qp_relax"}
    assert {row["selector"] for row in rows if row["candidates"] == 20} == names
    assert all(row["microseconds"] > 0 for row in rows)
    rivals_of_mmr = [row for row in rows if row["selector"] == "mmr" and row["rival"]]
    assert all(row["same"] == 1 for row in rivals_of_mmr)
    assert bool(rivals_of_mmr) == ("pyversity" not in gone)


def test_memory_runs_small() -> None:
    """An upload is watched, and workers that share an index hold one copy of it."""
    result = memory.run(told(memory, "--rows", "20000", "--dims", "16", "--workers", "2"))
    upload, sharing = result["upload"], result["sharing"]
    assert isinstance(upload, dict)
    assert isinstance(sharing, dict)
    assert upload["samples"] > 2
    # Of what processes share, a share is unbacked and nothing private.
    assert 0 < upload["unbacked"] <= 1.05 * upload["private"]
    assert sharing["pss"] <= 1.05 * sharing["copy"]


def test_what_a_process_maps_is_told_by_folder(tmp_path: Path) -> None:
    """Mappings count where their file lies in the folder, and nowhere else."""
    array = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.float32, (2**16,))
    array[:] = 1
    assert footprint.mapped(os.getpid(), tmp_path)["Rss"] >= array.nbytes
    assert footprint.mapped(os.getpid(), tmp_path / "b") == {"Size": 0, "Rss": 0, "Pss": 0}
    assert footprint.held(os.getpid()).private > array.nbytes


@pytest.mark.usefixtures("digits")
def test_queries_are_learned_once() -> None:
    """What was learned is read again, and asks for every category with two sub-topics."""
    [digits] = topics.load(["whatever"])
    first, again = digits.queries(2), digits.queries(2)
    np.testing.assert_array_equal(first.queries, again.queries)
    np.testing.assert_array_equal(first.asked, [0, 0, 1, 1])
    np.testing.assert_allclose(np.linalg.norm(first.queries, axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_sweep_answers_as_the_timed_kernel(kind: str) -> None:
    """Every setting of the sweep picks what the exhaustive greedy picks."""
    rows = np.abs(np.random.default_rng(0).standard_normal((60, 9))).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    points = rows[2:] if kind == "dense" else sparse.csr_array(rows[2:])
    everything = Everything.of(points)
    for k, answers in sweeps.of_everything(everything, rows[:2], (3, 5), 2).items():
        for setting, picks in answers.items():
            for query, picked in zip(rows[:2], picks, strict=True):
                expected = everything.greedy(query, k, setting.diversity, setting.variant)
                np.testing.assert_array_equal(picked, expected)


def test_a_fold_is_reported_at_what_serves_the_others() -> None:
    """A setting that is good for one fold alone is not taken for that fold."""
    folds = np.arange(FOLDS)
    steady, spiky = Setting(0.1), Setting(0.2)
    h = measured({steady: [0.5] * FOLDS, spiky: [9.0, *[0.0] * (FOLDS - 1)]})
    choice = choose(h, folds)
    assert choice.by_fold == (steady, *[spiky] * (FOLDS - 1))
    values = choice.values([h, h], folds)
    assert values[3].tolist() == [0.5, *[0.0] * (FOLDS - 1)]


def test_the_smallest_limits_that_are_enough_are_taken() -> None:
    """Smaller limits win where they keep enough over all seeds, else those that keep most."""
    folds = np.arange(FOLDS)
    whole, half = Setting(0.1, part=1.0), Setting(0.2, part=0.5)
    by_part = {each.part: Choice((each,) * FOLDS, each) for each in (whole, half)}
    lucky = measured({whole: [1.0] * FOLDS, half: [1.0] * FOLDS})
    plain = measured({whole: [1.0] * FOLDS, half: [0.9] * FOLDS})
    for least, expected in ((0.95, half), (0.97, whole), (1.1, whole)):
        choice = choose_limits(by_part, [lucky, plain], folds, np.full(FOLDS, least))
        assert choice.settings == {expected}


def test_enough_is_all_of_the_gain() -> None:
    """Limits by folds must keep what the exhaustive greedy gains."""
    assert shares.enough(np.zeros(3), np.ones(3)).tolist() == [shares.KEPT] * 3


@pytest.mark.usefixtures("digits")
def test_metrics_runs_small() -> None:
    """Every family under every metric; where all points are hashed, all are found."""
    rows = metrics.run(told(metrics, "--queries", "3"))["rows"]
    assert isinstance(rows, list)
    assert len(rows) == 15
    assert all(row["recall"]["scan"] == 1 for row in rows if row["family"] == "lsh_div")


@pytest.mark.usefixtures("digits")
def test_evaluate_runs_small() -> None:
    """A row for each number of workers, whose share is of the time that queries took."""
    words = "--workers 1 --queries 40 --dials 2 --rounds 1"
    rows = evaluate.run(told(evaluate, *words.split()))["rows"]
    assert isinstance(rows, list)
    assert [row["workers"] for row in rows] == [1]
    assert rows[0]["seconds"] > 0
    assert rows[0]["ratio"] == pytest.approx(rows[0]["seconds"] / rows[0]["query_seconds"])


def test_starts_are_judged_by_their_kind() -> None:
    """Warm ones within two seconds, whatever number of indexes; a cold one within twenty."""
    many = start.MANY.format(7, "cells")
    seen = {start.WARM: [1.0, 3.0, 1.5], many: [2.5], start.COLD: [19.0]}
    rows = list(start.rows_of(seen))
    assert [(row.name, row.least, row.median, row.target) for row in rows] == [
        (start.WARM, 1.0, 1.5, 2.0),
        (many, 2.5, 2.5, 2.0),
        (start.COLD, 19.0, 19.0, 20.0),
    ]


@pytest.mark.usefixtures("digits")
def test_overload_end_to_end() -> None:
    """Every rate has its row, all calls are accounted for, and beside them others were answered."""
    words = ("--times", "0.5", "1", "--seconds", "0.3", "--rounds", "1", "--rows", "100")
    found = overload.run(told(overload, *words))
    for case in ("workers", "front", "pending"):
        rows = found[case]
        assert isinstance(rows, list)
        assert [row["times_capacity"] for row in rows] == [0.5, 1]
        assert all(row["goodput"] > 0 for row in rows)
        assert all(row["health"] > 0 and row["admin"] > 0 for row in rows)


@pytest.mark.usefixtures("digits")
def test_build_end_to_end() -> None:
    """The caller hears of every stage that is timed."""
    words = "--points 20000 --dims 8 --rounds 1 --families lsh_div auto"
    builds = build.run(told(build, *words.split()))["builds"]
    assert isinstance(builds, list)
    assert [each["family"] for each in builds] == ["lsh_div", "auto"]
    for each in builds:
        assert "hashing" in each["stages"]
        assert each["whole"] == pytest.approx(sum(each["stages"].values()))
