"""The benchmarks' own arithmetic: a wrong yardstick makes every figure wrong."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.preprocessing import normalize

from benchmarks import build, large
from benchmarks.exhaustive import Everything
from benchmarks.load import Load
from benchmarks.objective import best_dial, dials, mean_objective
from benchmarks.tables import table
from benchmarks.wire import Case, rows_of
from divgrpc.types import FloatArray, IntArray


@pytest.fixture(scope="module")
def base() -> FloatArray:
    """Return 40 unit rows of 7 dimensions, a length that no vector register divides."""
    rows = np.random.default_rng(5).standard_normal((40, 7)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def test_objective_of_missing_results_is_an_error(base: FloatArray) -> None:
    """A row with fewer than k results has no J."""
    assert mean_objective(base, base[:1], np.array([[3, 4]]), 0.3) < 2
    with pytest.raises(ValueError, match="k results"):
        mean_objective(base, base[:1], np.array([[3, -1]]), 0.3)


def test_dials_surround_their_target() -> None:
    """The target itself is tried, and dials on both sides, all inside (0, 1)."""
    tried = dials(0.3)
    assert any(dial == pytest.approx(0.3) for dial in tried)
    assert tried == sorted(tried)
    assert 0 < tried[0] < 0.2
    assert 0.5 < tried[-1] < 1


def test_best_dial_has_the_least_value() -> None:
    """The dial is chosen by J, the smaller of equals."""
    assert best_dial(0.5, lambda dial: abs(dial - 0.5)) == pytest.approx(0.5)
    assert best_dial(0.5, lambda _: 0.0) == dials(0.5)[0]


def stepwise(points: FloatArray, query: FloatArray, picked: IntArray, weights: list[float]) -> None:
    """Assert that each pick is the best of what is left, by distances in float64."""
    points = points.astype(np.float64)
    near = ((points - query) ** 2).sum(axis=1)
    for step, weight in enumerate(weights):
        before = points[picked[:step]]
        apart = ((points[:, None] - before[None]) ** 2).sum(axis=(1, 2))
        value = near - weight * apart
        value[picked[:step]] = np.inf
        assert value[picked[step]] <= value.min() + 1e-5


@pytest.mark.parametrize("diversity", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("kind", ["dense", "by rows", "by columns"])
def test_exhaustive_greedy_follows_its_rule(base: FloatArray, diversity: float, kind: str) -> None:
    """Each pick is the best by the variant's own weight, among all points that are left."""
    points = base[1:] if kind == "dense" else sparse.csr_array(base[1:] * (base[1:] > 0))
    odds, k = diversity / (1 - diversity), 6
    weights = {
        "marginal": [2 * odds / (k - 1)] * k,
        "corrected": [odds / max(1, step) for step in range(k)],
    }
    everything = Everything.of(normalize(points))
    dense = everything.points if kind == "dense" else everything.points.toarray()
    for variant in ("marginal", "corrected"):
        by_columns = kind == "by columns"
        picked = everything.greedy(base[0], k, diversity, variant, by_columns=by_columns)
        stepwise(dense, base[0], picked, weights[variant])


def test_tables_line_up() -> None:
    """Every line of a table is as long as the others, words left and numbers right."""
    drawn = table(("name", "n"), [("a", "1"), ("longer", "1,000")])
    assert drawn.splitlines() == [
        "| name   |     n |",
        "| ------ | ----: |",
        "| a      |     1 |",
        "| longer | 1,000 |",
    ]


def test_a_call_is_compared_with_echo_plus_query() -> None:
    """The floor is the least CPU of the echo and of the query; one call's p50 is the least seen."""
    latency = {50.0: 10.0, 99.0: 20.0}
    seen = {
        Case("cells", "query in process", 1): [
            Load(1, 1.0, {"worker": w}, latency) for w in (90.0, 60.0)
        ],
        Case("auto", "query in process", 1): [Load(1, 1.0, {"worker": 10.0}, latency)],
        Case("", "echo", 1): [Load(1, 1.0, {"front": w}, latency) for w in (40.0, 70.0)],
        Case("cells", "1 worker", 1): [
            Load(1, 1.0, {"front": 50.0, "worker": 75.0}, {50.0: 35.0}),
            Load(1, 1.0, {"front": 20.0, "worker": 75.0}, {50.0: 99.0}),
        ],
        Case("auto", "1 worker", 1): [Load(1, 1.0, {"front": 5.0, "worker": 70.0}, latency)],
        Case("cells", "1 worker, QueryStream", 1): [
            Load(1, 1.0, {"front": 20.0, "worker": 75.0}, {})
        ],
        Case("cells", "batch of 100 in process", 1): [Load(1, 1.0, {"worker": 90.0}, latency)],
        Case("cells", "1 worker, batch of 100", 4): [
            Load(1, 1.0, {"front": 9.0, "worker": 100.0}, latency)
        ],
    }
    rows = {(row.family, row.name): row for row in rows_of(seen)}
    assert rows["cells", "1 worker"].than_floor == pytest.approx(125 / 100)
    assert rows["cells", "1 worker"].p50_above_floor == pytest.approx(15)
    assert rows["auto", "1 worker"].than_floor == pytest.approx(75 / 50)
    assert rows["", "echo"].than_floor is None
    assert rows["cells", "1 worker, QueryStream"].than_floor is None
    assert rows["cells", "1 worker, batch of 100"].than_floor is None
    assert rows["cells", "1 worker, batch of 100"].of_in_process == pytest.approx(0.9)


def test_a_build_is_compared_by_its_best_rounds() -> None:
    """The quickest hashing and the quickest whole, which may be of two rounds."""
    builds = [
        build.Built("cells", whole, {"hashing": hashing})
        for whole, hashing in ((9.0, 4.0), (6.0, 5.0))
    ]
    rows = list(build.goals(builds, product=2.0, alone=3.0))
    assert [(row[1], row[2]) for row in rows] == [("0.50", ">= 0.75"), ("2.00", "<= 3")]


@pytest.mark.parametrize("needed", [1, 2, 5, 8, 13])
def test_faiss_gets_as_few_probes_as_reach_the_recall(needed: int) -> None:
    """Between the steps of its ladder too; its last step where none reaches it."""
    assert large.fewest(lambda probes: probes >= needed, [2, 4, 8]) == min(needed, 8)
