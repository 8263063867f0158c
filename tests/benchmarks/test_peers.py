"""What the figures of `peers` rest on: the points made, the truth about them, and who is chosen."""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks import choosing, finders, service, truth
from benchmarks.choosing import GREEDY, Row
from benchmarks.entries import Entry
from benchmarks.exhaustive import Everything
from benchmarks.finders import faiss_factories
from benchmarks.load import Load, Offered
from benchmarks.manifold import Manifold
from benchmarks.objective import mean_mmr
from divgrpc.types import FloatArray


@pytest.fixture(scope="module")
def base() -> FloatArray:
    """Return points enough for two blocks, the second of them not whole."""
    return Manifold.of(dims=16).points(70_000)


def entry(name: str, gap: float, roughly: float, h: float = 0.0) -> Entry:
    """Return an entry of which only these are looked at."""
    return Entry(name, "", "", 1, (), 0.3, gap, h, roughly, lambda _: np.empty(0, np.int64))


def row(name: str, microseconds: float, gap: float = 1.0, seconds: float = 1.0) -> Row:
    """Return a row of which only these are looked at."""
    return Row("J", 0.3, 0.97, name, "", 0.3, gap, None, microseconds, seconds, 10)


def test_made_points_do_not_depend_on_how_many(base: FloatArray, tmp_path: Path) -> None:
    """The first rows are the same bytes in memory and in a file, whatever their number."""
    manifold = Manifold.of(dims=16)
    few = manifold.points(20_000)
    np.testing.assert_array_equal(few, base[:20_000])
    np.testing.assert_array_equal(manifold.write(tmp_path / "rows.npy", 20_000), few)
    np.testing.assert_allclose(np.linalg.norm(few, axis=1), 1, rtol=1e-5)
    assert not np.array_equal(manifold.queries(100), few[:100])
    assert not np.array_equal(Manifold.of(seed=1, dims=16).points(100), few[:100])


def test_made_clusters_follow_a_power_law() -> None:
    """The n-th largest cluster has its share, n to the minus .8 of the first's."""
    drawn = Manifold.of(dims=16).clusters(np.random.default_rng(0))
    sizes = np.bincount(drawn, minlength=2_000)
    assert sizes[0] / sizes[:16].mean() == pytest.approx(3.6, rel=0.2)
    assert sizes[0] / sizes[1_000:].mean() == pytest.approx(340, rel=0.2)


def test_the_nearest_are_those_of_a_sort(base: FloatArray) -> None:
    """Blocks are joined by distance, and by row where that is the same."""
    points = np.concatenate((base, base[:5]))
    queries = base[[0, 3, 69_999]]
    rows, far = truth.nearest(points, queries, 7)
    expected = np.argsort(-(queries @ points.T), axis=1, kind="stable")[:, :7]
    np.testing.assert_array_equal(rows[:, 0], [0, 3, 69_999])
    np.testing.assert_allclose(
        far, 2 - 2 * np.take_along_axis(queries @ points.T, expected, 1), atol=1e-5
    )
    assert truth.nearest(points[:4], queries, 7)[0].shape == (3, 4)


def test_what_was_not_found_is_missed() -> None:
    """Few rows that are all among the nearest are not all of the nearest; none are nothing."""
    near = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4]])
    found = [np.array([2, 1]), np.empty(0, np.int64), np.array([4, 3, 2, 1])]
    assert truth.recall(found, near) == 0.5


@pytest.mark.parametrize("diversity", [0.1, 0.5, 0.9])
def test_many_queries_pick_as_one_does(base: FloatArray, diversity: float) -> None:
    """Greedy and MMR over all points, by products of matrices, pick what the kernels pick."""
    everything, queries = Everything.of(base), Manifold.of(dims=16).queries(3)
    at_once = truth.greedy(base, queries, 4, diversity), truth.mmr(base, queries, 4, diversity)
    for number, query in enumerate(queries):
        one = everything.greedy(query, 4, diversity), everything.mmr(query, 4, diversity)
        np.testing.assert_array_equal(np.array(one), [picks[number] for picks in at_once])


def test_mmr_is_measured_by_its_own_steps() -> None:
    """Near the query is gained, near the closest of those before is lost, and less is better."""
    base = np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32)
    query = np.array([[1, 0]], np.float32)
    expected = -((0.75 * (1 + 0 + 0.6)) - 0.25 * (0 + 0.8))
    assert mean_mmr(base, query, np.array([[0, 1, 2]]), 0.25) == pytest.approx(expected)


def test_the_fastest_that_close_the_gap_stand_for_their_kind() -> None:
    """Where none of a kind does, who closes most; what one side cannot, is not asked of anybody."""
    tried = [
        entry("ours", 0.98, 9),
        entry("ours", 0.97, 8),
        entry("ours", 0.99, 7),
        entry("ours", 0.5, 1),
        entry("a + b", 0.97, 5),
        entry("c + d", 0.9, 1),
        entry("c + d", 0.8, 0.5),
    ]
    wanted, chosen = choosing.finalists(tried, 0.97, 2)
    assert wanted == 0.97
    assert [each.roughly for each in chosen] == [7, 8, 5, 1]
    wanted, chosen = choosing.finalists(tried[:4] + tried[5:], 0.97, 1)
    assert wanted == 0.9
    assert [each.roughly for each in chosen] == [7, 1]


def test_ratios_are_against_who_closes_the_gap() -> None:
    """A faster rival that does not close the gap is none; who does not close it has no ratio."""
    rows = [
        row("auto", 10, seconds=2),
        row("cells", 1, gap=0.9),
        row("hnswlib + pyversity MSD", 30, seconds=40),
        row("hnswlib + pyversity MMR", 3, gap=0.9),
        row("faiss IVF + our greedy", 12),
        row("faiss PQ + our greedy", 15),
        row(GREEDY, 1000),
    ]
    [ratio] = choosing.ratios(choosing.best(rows), ["auto", "cells"])
    assert (ratio.name, ratio.best_faiss) == ("auto", "faiss IVF")
    assert (ratio.pyversity, ratio.faiss, ratio.greedy, ratio.building) == (3, 1.2, 100, 20)
    assert ratio.memory == 1
    assert ratio.exact is None


def test_a_front_holds_whom_nobody_beats() -> None:
    """Each side has its own, from the fastest on; what is slower and no better is left out."""
    tried = [entry("ours", 0.9, 2), entry("ours", 0.8, 1), entry("ours", 0.7, 3)]
    tried += [entry("a + b", 0.5, 4)]
    front = choosing.front(tried, "gap")
    assert [(each["side"], each["gap"]) for each in front] == [
        ("divgrpc", 0.8),
        ("divgrpc", 0.9),
        ("others", 0.5),
    ]
    assert choosing.front([entry("ours", 0.9, 2, h=float("nan"))], "h") == []


def test_kinds_of_faiss_fit_the_data() -> None:
    """Lists hold points enough to be learned, and a product's parts divide the dimensions."""
    kinds = {kind: told for kind, (told, _) in faiss_factories(1_000_000, 128).items()}
    assert kinds["faiss IVF"] == "IVF4096,Flat"
    assert kinds["faiss PQ"] == "PQ128x4fs,RFlat"
    assert kinds["faiss IVF-PQ"] == "IVF1024,PQ64x4fs,RFlat"
    small = {kind: told for kind, (told, _) in faiss_factories(1_000, 48).items()}
    assert small["faiss IVF"] == "IVF25,Flat"
    assert small["faiss IVF-PQ"] == "IVF25,PQ16x4fs,RFlat"


def test_a_service_is_shown_by_its_quietest_rounds() -> None:
    """CPU is of the round that used least, p99 of the open round that had the least."""

    def load(cpu: float, p99: float) -> Load:
        return Load(1, 10.0, {"front": cpu, "worker": 1.0}, {50.0: 1.0, 99.0: p99})

    def offered(p99: float, answered: int = 10, lateness: float = 0.0) -> Offered:
        return Offered(10.0, 1.0, Counter(OK=answered), {50: 1.0, 99: p99}, lateness)

    seen = [
        ([load(5, 1), load(3, 2)], [offered(9), offered(8)]),
        ([load(1, 1)], [offered(1)]),
        ([load(1, 1)], [offered(1, answered=9)]),
        ([load(1, 1)], [offered(1, lateness=50_000)]),
        ([load(7, 1)], [offered(16)]),
    ]
    gaps = {"a": 0.97, "short": 0.96, "late": 0.98, "void": 0.98, "by hand": 0.97}
    found = service.rows_of(seen, [entry(name, gap, 1.0) for name, gap in gaps.items()], 0.97)
    assert (found[0].cpu, found[0].p99) == (4, 8)
    assert [row.times for row in found] == [2, None, 4, 4, 1]
    assert [row.of_p99 for row in found] == [0.5, None, None, None, 1]


def test_a_service_without_others_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where hnswlib is not installed there is nothing to compare with, and no row."""
    monkeypatch.setattr(finders, "missing", lambda: ["hnswlib"])
    parser = argparse.ArgumentParser()
    service.add_arguments(parser)
    words = ["--points", "100", "--queries", "2", "--tuning", "2"]
    assert service.run(parser.parse_args(words))["rows"] == []
