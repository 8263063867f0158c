"""Label evaluations in process agree with a reference that loops over `predict_labels`."""

import math
import statistics
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from divgrpc.errors import UnfitIndexError
from divgrpc.evaluation import labels as evaluation_of_labels
from divgrpc.evaluation.folds import deal_folds
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.evaluation.label_running import evaluate_labels
from divgrpc.evaluation.labels import (
    LABEL_COLUMNS,
    LABEL_METRICS,
    RANKS_MAX,
    documents_per_message_max,
)
from divgrpc.index import Index
from divgrpc.metrics import inverse_propensities
from divgrpc.parameters import LIMITS
from divgrpc.types import EvaluateLabelRow, LabelResult, Progress
from reference import metrics as reference
from support.checks.refusals import refused, wrong

POINTS, DOCUMENTS, FEATURES, LABELS, RANK = 60, 17, 10, 24, 5
RNG = np.random.default_rng(3)
X = (
    RNG.random((POINTS + DOCUMENTS, FEATURES)) * (RNG.random((POINTS + DOCUMENTS, FEATURES)) < 0.5)
).astype("f4")
X[:, 0] += 0.1
Y = (RNG.random((POINTS + DOCUMENTS, LABELS)) < 0.12).astype("f4")
# One document has no label, and one has all.
Y[POINTS], Y[POINTS + 1] = 0, 1
FACTORS = RNG.standard_normal((LABELS, RANK)).astype("f4")
MAP = RNG.standard_normal((FEATURES, RANK)).astype("f4")
EDGES = [(24, 25), (24, 26), (24, 27), *((25 + label % 3, label) for label in range(23))]
GRID = LabelGrid(
    modes=("embedding", "neighbour_vote"),
    selectors=("nearest", "greedy", "mmr", "hierarchy"),
    searches=("scan", "exact"),
    limits=((None, None), (20, 15)),
    thresholds=(None, 0.4),
    diversities=(0.2, 0.8),
    top_ks=(4,),
    neighbours=6,
    seed=2,
)


def built(**parameters: Any) -> Index:  # noqa: ANN401  # values of any type
    with_labels: dict[str, Any] = {
        "labels": Y[:POINTS],
        "label_model": (FACTORS, MAP),
        "hierarchy": EDGES,
    }
    return Index.build(X[:POINTS], **(with_labels | parameters))


@pytest.fixture(scope="module")
def index() -> Index:
    return built()


@pytest.fixture(scope="module")
def rows(index: Index) -> list[EvaluateLabelRow]:
    return evaluated(index, grid=GRID, per_document=True)


def evaluated(index: Index, **options: Any) -> list[EvaluateLabelRow]:  # noqa: ANN401  # values of any type
    return list(evaluate_labels(index, X[POINTS:], Y[POINTS:], **options))


def sets_of(result: LabelResult) -> list[list[int]]:
    pairs = zip(result.labels.tolist(), result.counts.tolist(), strict=True)
    return [labels[:count] for labels, count in pairs]


TRUTHS = [set(np.flatnonzero(row).tolist()) for row in Y[POINTS:]]


def twin(labels: list[int], truth: set[int]) -> dict[str, float]:
    hits = reference.label_hits(labels, truth)
    p, r = hits / len(labels) if labels else 0.0, hits / len(truth) if truth else 0.0
    drank = reference.drank(labels, EDGES, [24])
    return {
        "precision": p,
        "recall": r,
        "f_score": 2 * p * r / (p + r) if p + r else 0.0,
        "ndcg": reference.label_ndcg([*labels, -1, -1, -1, -1][:4], truth, 4),
        "drank": drank,
        "h_score": 2 * p * drank / (p + drank) if p + drank else 0.0,
    }


def test_rows_agree_with_the_reference(index: Index, rows: list[EvaluateLabelRow]) -> None:
    settings = GRID.settings()
    inverse = inverse_propensities(Y[:POINTS].sum(axis=0), POINTS)
    assert [row.number for row in rows] == list(range(len(rows)))
    for row, setting in zip(rows, settings, strict=False):
        result = index.predict_labels(X[POINTS:], **asdict(setting))
        predictions = sets_of(result)
        assert (row.search, row.by_fold, row.goal) == (setting.search, (), "h_score")
        assert row.parameters == result.parameters
        expected = [twin(*pair) for pair in zip(predictions, TRUTHS, strict=True)]
        assert tuple(row.values) == LABEL_COLUMNS
        for name in LABEL_METRICS:
            values = [metrics[name] for metrics in expected]
            np.testing.assert_allclose(row.values[name], values, atol=1e-12)
            assert row.metrics[name].value == pytest.approx(statistics.fmean(values))
        assert row.values["found"].tolist() == [len(labels) for labels in predictions]
        assert row.values["scored"].tolist() == result.stats.points_scored.tolist()
        assert (row.values["microseconds"] > 0).all()
        for k in range(1, 5):
            cut = [reference.cut(labels, k) for labels in predictions]
            hits = [reference.label_hits(*pair) for pair in zip(cut, TRUTHS, strict=True)]
            assert row.precision_at[k - 1].value == pytest.approx(statistics.fmean(hits) / k)
            recalls = [hit / max(1, len(truth)) for hit, truth in zip(hits, TRUTHS, strict=True)]
            assert row.recall_at[k - 1].value == pytest.approx(statistics.fmean(recalls))
            ndcg = [reference.label_ndcg(*e, k) for e in zip(predictions, TRUTHS, strict=True)]
            assert row.ndcg_at[k - 1].value == pytest.approx(statistics.fmean(ndcg))
            score = reference.propensity_scored(cut, TRUTHS, inverse, k)
            assert row.propensity_scored_at[k - 1].value == pytest.approx(score)
            assert row.coverage_at[k - 1] == pytest.approx(reference.coverage(cut, TRUTHS))


def test_figures_of_a_row_are_consistent(rows: list[EvaluateLabelRow]) -> None:
    for row in rows:
        curves = (row.precision_at, row.recall_at, row.ndcg_at, row.propensity_scored_at)
        assert [len(curve) for curve in curves] == [4] * 4
        for interval in (
            *row.metrics.values(),
            *(interval for curve in curves for interval in curve),
        ):
            assert interval.low - 1e-12 <= interval.value <= interval.high + 1e-12
        times, counts = row.values["microseconds"], row.values["found"]
        assert row.microseconds.p50 == pytest.approx(np.percentile(times, 50))
        assert row.microseconds.p50 <= row.microseconds.p90 <= row.microseconds.p99
        assert (row.documents, row.empty) == (DOCUMENTS, (counts == 0).sum())
        assert row.short == (counts < 4).sum()
        assert row.scored == pytest.approx(row.values["scored"].mean())
        p, d = (row.values[name].mean() for name in ("precision", "drank"))
        assert row.h_of_means == pytest.approx(2 * p * d / (p + d))
    assert any(row.short > row.empty for row in rows)
    assert any(row.on_front for row in rows)


def test_a_fold_is_reported_at_the_choice_of_the_other_folds(rows: list[EvaluateLabelRow]) -> None:
    """A choice consists of diversity, limits and threshold."""
    settings = GRID.settings()
    choices, folds = rows[len(settings) :], deal_folds(np.arange(DOCUMENTS))
    kinds = [(setting.mode, setting.selector, setting.search) for setting in settings]
    assert len(choices) == len(set(kinds)) == 16
    for choice in choices:
        parameters = choice.parameters
        members = [
            n
            for n, kind in enumerate(kinds)
            if kind == (parameters.mode, parameters.selector, choice.search)
        ]
        h = np.array([rows[number].values["h_score"] for number in members])
        for fold, row_number in enumerate(choice.by_fold):
            means = h[:, folds != fold].mean(axis=1)
            assert row_number == members[int(means.argmax())]
            mask = folds == fold
            for name in LABEL_COLUMNS:
                assert (choice.values[name][mask] == rows[row_number].values[name][mask]).all()
        assert parameters == rows[members[int(h.mean(axis=1).argmax())]].parameters
        assert not choice.on_front


def test_without_a_hierarchy_the_f_score_chooses() -> None:
    grid = LabelGrid(selectors=("greedy",), thresholds=(None, 0.3), diversities=(0.2, 0.9))
    results = evaluated(built(hierarchy=None), grid=grid, per_document=True)
    f = np.array([row.values["f_score"] for row in results[:4]])
    folds = deal_folds(np.arange(DOCUMENTS))
    assert results[4].by_fold == tuple(
        int(f[:, folds != fold].mean(axis=1).argmax()) for fold in range(5)
    )
    for row in results:
        assert row.goal == "f_score"
        assert all(math.isnan(row.metrics[name].value) for name in ("drank", "h_score"))
        assert math.isnan(row.h_of_means)
        assert row.metrics["f_score"].value >= 0


def test_factors_without_labels_have_no_propensities() -> None:
    (row,) = evaluated(
        built(labels=None), grid=LabelGrid(selectors=("nearest",)), folds=0, per_document=False
    )
    assert row.propensity_scored_at == ()
    assert row.values == {}
    assert len(row.precision_at) == 5


def test_a_second_evaluation_gives_the_same_figures(
    index: Index, rows: list[EvaluateLabelRow]
) -> None:
    """Sparse and dense documents and labels give the same figures, except for measured times."""
    documents, truth = sparse.csr_array(X[POINTS:]), sparse.csr_array(Y[POINTS:])
    again = list(evaluate_labels(index, documents, truth, grid=GRID))
    for dense_row, sparse_row in zip(rows, again[: len(GRID.settings())], strict=False):
        for name in ("metrics", "ndcg_at", "coverage_at", "parameters"):
            assert getattr(dense_row, name) == getattr(sparse_row, name)


@pytest.mark.parametrize("documents", [1, 2])
def test_one_or_two_documents_are_evaluated(index: Index, documents: int) -> None:
    span = slice(POINTS + 1, POINTS + 1 + documents)
    grid = LabelGrid(selectors=("nearest",), top_ks=(1, 100))
    folds = documents if documents > 1 else 0
    results = list(evaluate_labels(index, X[span], Y[span], grid=grid, folds=folds))
    assert len(results) == 2 + 2 * (folds > 0)
    assert [len(row.precision_at) for row in results[:2]] == [1, 100]
    assert results[1].short == documents


def test_progress_reaches_the_total(index: Index) -> None:
    steps: list[Progress] = []
    evaluated(index, grid=LabelGrid(selectors=("greedy",)), progress=steps.append)
    assert (steps[0].rows_done, steps[0].seconds_left) == (0, None)
    assert (steps[-1].rows_done, steps[-1].rows_total) == (5 * DOCUMENTS, 5 * DOCUMENTS)


@wrong(
    modes=[["votes"]],
    selectors=[["best"], ["hierarchy", None]],
    limits=[[(3, None)], [7]],
    thresholds=[[math.inf]],
    diversities=[[1.1], [], [None]],
    top_ks=[[0], 5],
    searches=["exact"],
)
def test_invalid_grids_are_refused(field: str, value: Any) -> None:  # noqa: ANN401  # what is wrong
    with refused(field):
        LabelGrid(**{field: value})


def test_each_setting_occurs_once() -> None:
    grid = LabelGrid(diversities=(0.1, 0.2), thresholds=(None, 0.5), top_ks=(5, 1))
    settings = [(s.top_k, s.selector, s.threshold, s.diversity) for s in grid.settings()]
    for_one = [("nearest", None, 0.0), ("nearest", 0.5, 0.0)]
    for_one += [("greedy", t, d) for t in (None, 0.5) for d in (0.1, 0.2)]
    assert settings == [(k, *setting) for k in (5, 1) for setting in for_one]


@wrong(
    documents=[
        X[POINTS:, :-1],
        np.zeros((DOCUMENTS, FEATURES)),
        np.full((DOCUMENTS, FEATURES), np.nan),
    ],
    labels=[Y[POINTS + 1 :], Y[POINTS:, :-1], np.zeros_like(Y[POINTS:])],
    folds=[1, DOCUMENTS + 1],
    grid=[LabelGrid(top_ks=(RANKS_MAX // 2,), diversities=(0.1, 0.2, 0.3))],
)
def test_invalid_arguments_are_refused_before_any_work(
    index: Index,
    field: str,
    value: Any,  # noqa: ANN401
) -> None:
    arguments: dict[str, Any] = {"documents": X[POINTS:], "labels": Y[POINTS:], field: value}
    with refused(field):
        evaluate_labels(index, **arguments)


@pytest.mark.parametrize(
    ("name", "most"), [("LABELS_MAX", 5 * DOCUMENTS), ("JUDGED_MAX", 5 * DOCUMENTS - 1)]
)
def test_work_above_the_limits_is_refused(
    index: Index, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    monkeypatch.setattr(evaluation_of_labels, name, most)
    with refused("grid"):
        evaluate_labels(index, X[POINTS:], Y[POINTS:])


def test_an_index_that_cannot_predict_is_refused() -> None:
    votes = LabelGrid(modes=("neighbour_vote",))
    for unfit, grid in (
        (Index.build(X[:POINTS]), None),
        (built(label_model=None), None),
        (built(labels=None), votes),
    ):
        with pytest.raises(UnfitIndexError):
            evaluate_labels(unfit, X[POINTS:], Y[POINTS:], grid=grid)


def test_the_best_threshold_of_each_mode_is_stored() -> None:
    """For each mode, the index stores the threshold of the choice with the greatest goal."""
    index = built()
    grid = replace(GRID, searches=("exact",))
    results = evaluated(index, grid=grid, set_default=True)
    plain = evaluated(built(), grid=grid)
    assert not any(row.is_default for row in plain)
    for mode in grid.modes:
        choices = [row for row in plain if row.by_fold and row.parameters.mode == mode]
        best = max(choices, key=lambda row: row.metrics["h_score"].value)
        (default_row,) = (row for row in results if row.is_default and row.parameters.mode == mode)
        assert default_row.number >= len(plain)
        assert default_row.parameters == best.parameters
        assert index.engine.defaults.thresholds.get(mode) == default_row.parameters.threshold


@pytest.mark.parametrize(
    "options",
    [{"folds": 0}, {"grid": replace(GRID, top_ks=(3, 4))}, {"grid": LabelGrid()}],
    ids=["no folds", "two top_ks", "no threshold"],
)
def test_set_default_needs_folds_one_top_k_and_thresholds(
    index: Index, options: dict[str, Any]
) -> None:
    with refused("set_default"):
        evaluated(index, **({"grid": GRID, "set_default": True} | options))


@pytest.mark.parametrize("top_k", [1, 5, 300])
def test_a_result_row_fits_in_a_message(top_k: int) -> None:
    """A row has 160 bytes for each rank, and for each document 80 bytes and 4 for each label."""
    count = documents_per_message_max(top_k)
    room = LIMITS["message_bytes_max"] - 2**16 - 160 * top_k
    assert count * (80 + 4 * top_k) <= room < (count + 1) * (80 + 4 * top_k)
