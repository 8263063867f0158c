"""Quality under load: sampled answers measured beside exact, nearest and exhaustive ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from scipy import sparse

from divgrpc import metrics
from divgrpc.errors import InvalidArgumentError
from divgrpc.types import Metric
from divgrpc_client import Client
from divgrpc_client.load import Call, Points, Session, Settings, constant, read_mix, run_load, words
from divgrpc_client.load.page import page
from divgrpc_client.load.quality import compare_with_exact
from divgrpc_client.load.results import figure
from divgrpc_client.load.traffic import Method
from divgrpc_client.reports.page import render
from divgrpc_protos.v1 import query_pb2
from support.running_server import RunningServer
from support.scripted_server import ScriptedIndex, serving

RNG = np.random.default_rng(5)
BASE = RNG.standard_normal((200, 8), dtype=np.float32)
QUERIES = RNG.standard_normal((12, 8), dtype=np.float32)
IDS = 1000 - 3 * np.arange(200)
CATEGORIES, SUBTOPICS = np.arange(200) % 2, np.arange(200) % 7
ASKED = np.arange(12) % 2
SAMPLED = Settings(warm_up=0, quality=1, seed=3)
POINTS = Points(BASE, ids=IDS, categories=CATEGORIES, subtopics=SUBTOPICS)
MARGINAL = {"search": "exact", "variant": "marginal", "candidates_limit": 0, "diversity": 0.5}


@pytest.fixture(scope="module")
def target(server: RunningServer) -> Iterator[str]:
    """Serve an index whose ids are no row numbers."""
    with Client(server.target, timeout=60) as client:
        client.build(
            "measured", BASE, ids=IDS, categories=CATEGORIES, subtopics=SUBTOPICS, replace=True
        )
        yield server.target
        client.delete_index("measured")


def quality(target: str, call: Call) -> dict[str, Any]:
    """Return the quality of a short run of one kind of call."""
    found: dict[str, Any] = run_load(target, [call], constant(40, 1), SAMPLED)["quality"]
    return found


@pytest.mark.parametrize("method", ["Query", "QueryStream"])
def test_the_exhaustive_greedy_closes_the_gap(target: str, method: Method) -> None:
    """What is found by the very definition closes all of it, nearest neighbours none."""
    call = Call("measured", QUERIES, MARGINAL, method=method, batch=3, points=POINTS)
    found = quality(target, call)
    (own,) = found["measured"]
    assert found["rows"] == own["rows"] == 120
    assert found["same_lists"] == 1
    assert own["gap_closed"] == 1
    assert own["objective"]["found"] == own["objective"]["exhaustive"]
    assert own["objective"]["nearest"] > own["objective"]["exhaustive"]
    assert own["h"] is None
    plain = Call("measured", QUERIES, MARGINAL | {"candidates_limit": 10}, points=POINTS)
    (own,) = quality(target, plain)["measured"]
    assert own["gap_closed"] == pytest.approx(0, abs=1e-9)


def test_figures_are_those_of_the_metrics(target: str) -> None:
    """J and h of a run are the means of what divgrpc.metrics says of the same results."""
    call = Call("measured", QUERIES, {"diversity": 0.4}, points=POINTS, categories=ASKED)
    with Session(target, [call], SAMPLED) as session:
        replies = session.run(constant(40, 1)).recording.replies
        found = compare_with_exact(session, replies)
    with Client(target) as client:
        result = client.query("measured", QUERIES, diversity=0.4)
    labels = metrics.Labels.of(CATEGORIES, SUBTOPICS, IDS)
    distances = metrics.list_distances(BASE, QUERIES, labels.rows(result.ids))
    asked = call.drawn(SAMPLED.seed)[[message for _, message, _ in replies], 0]
    assert len(asked) == 40
    assert found is not None
    (own,) = found["measured"]
    objective = metrics.objective(distances, 0.4)[asked].mean()
    assert own["objective"]["found"] == pytest.approx(objective, rel=1e-5)
    h = metrics.h_score(metrics.judge(result.ids, ASKED, labels))[asked].mean()
    assert own["h"]["found"] == pytest.approx(h)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_j_of_sparse_rows_is_that_of_dense_ones(metric: Metric) -> None:
    """Only the rows of a list are made dense; a list with an empty place has no J."""
    numbers = np.where(RNG.random((30, 40)) < 0.2, RNG.random((30, 40)), 0).astype(np.float32)
    ids = np.array([3, 17, 4, 29])
    wanted = metrics.objective(metrics.list_distances(numbers, numbers[:1], ids[None], metric), 0.3)
    query = Points(sparse.csr_array(numbers[:1])).vectors
    found = Points(sparse.csr_array(numbers)).objective(query, ids, 0.3, metric)
    assert found == pytest.approx(float(wanted[0]), rel=1e-6)
    short = np.array([3, 17, 4, -1])
    assert np.isnan(Points(numbers).objective(numbers[:1], short, 0.3, metric))


def test_what_cannot_be_compared_is_left_out(script: ScriptedIndex) -> None:
    """A server that refuses to compare, or has another generation by now, costs no report."""
    rows = np.eye(6, dtype=np.float32)
    with serving(script) as target, Session(target, [Call("images", rows)], SAMPLED) as session:
        replies = session.run(constant(40, 1)).recording.replies[:10]
        script.failures = [grpc.StatusCode.RESOURCE_EXHAUSTED] * 4
        script.generations = [2, 2, 1]
        found = compare_with_exact(session, replies)
        assert compare_with_exact(session, []) is None
    assert found is not None
    assert (found["unanswered"], found["replaced"], found["rows"]) == (4, 2, 4)
    assert found["measured"] == []


def test_whoever_refuses_the_exhaustive_query_is_compared_all_the_same(
    script: ScriptedIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its recall is known, its J is not, and the summary says why."""
    answer = script.Query

    def refuse_exhaustive(
        request: query_pb2.QueryRequest, context: grpc.ServicerContext
    ) -> query_pb2.QueryResponse:
        if request.variant == query_pb2.VARIANT_MARGINAL:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too much work")
        return answer(request, context)

    monkeypatch.setattr(script, "Query", refuse_exhaustive)
    rows = np.eye(3, dtype=np.float32)
    call = Call("images", rows, points=Points(np.eye(40, 3, dtype=np.float32)))
    with serving(script) as target, Session(target, [call], SAMPLED) as session:
        replies = session.run(constant(40, 1)).recording.replies[:1]
        found = compare_with_exact(session, replies)
    assert found is not None
    assert (found["rows"], found["unanswered"], found["unmeasured"]) == (1, 0, 1)
    assert "J of 1 is not known: what it takes was not answered" in words.quality(
        {"quality": found}
    )


@pytest.mark.parametrize(
    ("points", "told"),
    [
        (Points(BASE[:, :5], ids=IDS), "5 dimensions"),
        (Points(BASE), "no labelled point"),
    ],
)
def test_points_of_another_index_are_refused(target: str, points: Points, told: str) -> None:
    """They are looked at before any load."""
    with pytest.raises(InvalidArgumentError, match=told):
        quality(target, Call("measured", QUERIES, points=points))


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        ({"points": POINTS, "method": "PredictLabels"}, "not labels"),
        ({"categories": ASKED}, "need points"),
        ({"points": POINTS, "categories": ASKED[:3]}, "one for each row"),
        ({"points": POINTS, "categories": ASKED + 9}, "no point has the category"),
    ],
)
def test_what_measures_nothing_is_refused(rest: dict[str, Any], told: str) -> None:
    """Where a call is made."""
    with pytest.raises(InvalidArgumentError, match=told):
        Call("measured", QUERIES, **rest)


def test_a_mix_names_its_points(tmp_path: Path) -> None:
    """Columns are arrays of the .npz or files beside the mix; rows choose the categories too."""
    np.savez(tmp_path / "base.npz", vectors=BASE, ids=IDS, kinds=CATEGORIES)
    np.save(tmp_path / "topics.npy", SUBTOPICS)
    np.save(tmp_path / "queries.npy", QUERIES)
    np.save(tmp_path / "asked.npy", ASKED)
    (tmp_path / "mix.toml").write_text(
        '[[call]]\nindex = "measured"\ndata = "queries.npy"\ncategories = "asked.npy"\n'
        'rows = "1:4"\nk = [5, 10]\n[call.points]\ndata = "base.npz"\nkey = "vectors"\n'
        'ids = "ids"\ncategories = "kinds"\nsubtopics = "topics.npy"\n'
    )
    one, other = read_mix(tmp_path / "mix.toml")
    assert one.points is other.points
    assert one.points is not None
    np.testing.assert_array_equal(one.categories, ASKED[1:4])
    assert one.points.h(IDS[:10], 1) == POINTS.h(IDS[:10], 1)
    assert "points" not in one.name


def test_measured_quality_is_shown_and_judged(target: str) -> None:
    """Thresholds hold the kind of call where a figure is least; the table has a row for each."""
    calls = [
        Call("measured", QUERIES, MARGINAL, points=POINTS, categories=ASKED),
        Call("measured", QUERIES, {"diversity": 0.5, "selector": "nearest"}, points=POINTS),
    ]
    report = run_load(
        target, calls, constant(40, 1), SAMPLED, require=["gap_closed>97%", "h>0", "gap_closed<=0"]
    )
    least = report["quality"]["measured"][1]["gap_closed"]
    assert figure(report, "gap_closed") == least < 0.1
    assert [one["held"] for one in report["thresholds"]] == [False, True, least <= 0]
    assert [(line[1], line[-1]) for line in words.measured(report)] == [
        ("J", "100.0%"),
        ("h", ""),
        ("J", f"{least:.1%}"),
    ]
    assert "J, lower is better, and h" in render(page(report))
    report["quality"] = None
    assert words.measured(report) == []
    assert figure(report, "h") is None
