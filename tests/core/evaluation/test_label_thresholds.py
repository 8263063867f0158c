"""Score thresholds of labels: folds choose them, an index stores them, and calls override them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from divgrpc.errors import IndexDamagedError, InvalidArgumentError, UnfitIndexError
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.evaluation.label_running import QUANTILES, choose_threshold
from divgrpc.index import Index
from divgrpc.parameters import LIMITS
from divgrpc.parameters.predict import PredictParameters
from divgrpc.types import IntArray, Mode, QueryDefault
from support.checks.refusals import refused, wrong

RNG = np.random.default_rng(5)
X = RNG.random((40, 8)).astype("f4")
Y = sparse.csr_array((X @ RNG.standard_normal((8, 12)) > 0.6).astype("f4"))
FACTORS, MAP = RNG.standard_normal((12, 3)), RNG.standard_normal((8, 3))
# The hierarchy has two levels, so that the drank of different label sets differs.
EDGES = [(12 + label // 4, label) for label in range(12)] + [(15, 12), (15, 13), (15, 14)]
MODES: list[Mode] = ["embedding", "neighbour_vote"]


def built(**parameters: Any) -> Index:  # noqa: ANN401  # parameters of a build
    defaults = {"labels": Y, "label_model": (FACTORS, MAP), "hierarchy": EDGES}
    return Index.build(X, **(defaults | parameters))


def value(index: Index, labels: IntArray, row: int) -> float:
    """Return one document's h score, or its F score if the index has no hierarchy."""
    assert index.engine.labels is not None
    predictions = [int(label) for label in labels if label >= 0]
    true = set(np.flatnonzero(Y[[row]].toarray()[0]).tolist())
    right = sum(label in true for label in predictions)
    precision = right / max(1, len(predictions))
    if index.engine.labels.tree is None:
        recall_or_drank = right / max(1, len(true))
    else:
        recall_or_drank = float(index.engine.labels.tree.drank(labels[np.newaxis])[0])
    return (
        2 * precision * recall_or_drank / (precision + recall_or_drank)
        if precision + recall_or_drank
        else 0.0
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hierarchy", [EDGES, None])
def test_the_threshold_is_the_best_by_folds(mode: Mode, hierarchy: list[tuple[int, int]]) -> None:
    index, parameters = built(hierarchy=hierarchy), PredictParameters(mode=mode, diversity=0.2)
    thresholds = [-2.0, 0.0, 0.1, 0.3, 0.5, 1.5]
    choice = choose_threshold(index, X, Y, parameters, thresholds=thresholds[::-1], folds=4)

    def values(threshold: float | None) -> list[float]:
        result = index.predict_labels(X, mode=mode, diversity=0.2, threshold=threshold)
        return [value(index, labels, row) for row, labels in enumerate(result.labels)]

    value_table = np.array([values(threshold) for threshold in thresholds])
    folds = np.arange(len(X)) % 4
    by_fold = [int(np.argmax(value_table[:, folds != fold].mean(axis=1))) for fold in range(4)]
    assert choice.by_fold == tuple(thresholds[number] for number in by_fold)
    assert choice.threshold == thresholds[int(np.argmax(value_table.mean(axis=1)))]
    fold_values = [value_table[by_fold[fold], row] for row, fold in enumerate(folds)]
    assert choice.value == pytest.approx(np.mean(fold_values))
    assert choice.plain == pytest.approx(np.mean(values(None)))
    assert choice.measure == ("f_score" if hierarchy is None else "h_score")


@pytest.mark.parametrize("mode", MODES)
def test_quantiles_of_scores_are_tried_by_default(mode: Mode) -> None:
    """The chosen threshold is an observed score, and on average no worse than no threshold."""
    index, parameters = built(), PredictParameters(mode=mode)
    choice = choose_threshold(index, X, Y, parameters)
    scores = index.predict_labels(X, mode=mode).scores
    assert np.float32(choice.threshold) in scores
    labels = index.predict_labels(X, mode=mode, threshold=choice.threshold).labels
    assert np.mean([value(index, row, at) for at, row in enumerate(labels)]) >= choice.plain - 1e-9
    assert len({*choice.by_fold}) <= QUANTILES
    assert choose_threshold(built(), X, Y, parameters) == choice
    assert index.engine.defaults.thresholds == {}


def test_batches_of_documents_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = choose_threshold(built(), X, Y)
    monkeypatch.setitem(LIMITS, "query_rows_max", 7)
    assert choose_threshold(built(), sparse.csr_array(X), Y.toarray()) == whole


def test_a_stored_threshold_is_used_unless_a_call_gives_one(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    index = built(path=folder)
    choice = choose_threshold(index, X, Y, keep=True)
    index.set_threshold(0.4, "neighbour_vote")
    thresholds = {"embedding": choice.threshold, "neighbour_vote": 0.4}
    for reader in (index, Index.open(folder), Index.open(folder / "1")):
        assert reader.engine.defaults.thresholds == thresholds
        for mode in MODES:
            result = reader.predict_labels(X, mode=mode)
            assert result.parameters.threshold == thresholds[mode]
            expected = built().predict_labels(X, mode=mode, threshold=thresholds[mode])
            assert result.labels.tolist() == expected.labels.tolist()
            least = reader.predict_labels(X, mode=mode, threshold=-9.0)
            assert least.parameters.threshold == -9
    again = choose_threshold(index, X, Y)
    assert (again.threshold, again.plain) == (choice.threshold, choice.plain)


def test_query_default_and_thresholds_are_set_independently(tmp_path: Path) -> None:
    folder, default = tmp_path / "kept", QueryDefault(0.8, "mmr", "corrected", "exact")
    index = built(path=folder)
    second_index = Index.open(folder)
    index.set_threshold(0.5)
    second_index.set_default(default)
    assert Index.open(folder).engine.defaults.thresholds == {"embedding": 0.5}
    assert Index.open(folder).default == default
    index.set_threshold(None)
    assert index.default == default
    index.set_default(None)
    assert sorted(path.name for path in folder.iterdir()) == ["1", "CURRENT"]
    memory = built()
    memory.set_threshold(0.5)
    memory.set_default(default)
    assert memory.predict_labels(X).parameters.threshold == 0.5


def test_a_new_build_removes_stored_thresholds(tmp_path: Path) -> None:
    """A rebuilt index drops its thresholds, because scores of a new model have another scale."""
    built(path=tmp_path / "kept").set_threshold(0.5)
    assert built(path=tmp_path / "kept", replace=True).engine.defaults.thresholds == {}
    assert Index.open(tmp_path / "kept").engine.defaults.thresholds == {}


@pytest.mark.parametrize("thresholds", [{"votes": 0.5}, {"embedding": None}, [1], 3])
def test_malformed_stored_thresholds_are_damage(tmp_path: Path, thresholds: object) -> None:
    built(path=tmp_path / "kept").set_threshold(0.5)
    path = tmp_path / "kept" / "1.default.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"thresholds": thresholds}))
    with pytest.raises(IndexDamagedError):
        Index.open(tmp_path / "kept")


@wrong(
    labels=[Y[:, :5], Y[:7]],
    documents=[X[:, :3]],
    thresholds=[[]],
    threshold=[{"thresholds": [np.nan]}],
    folds=[1, 41],
)
def test_invalid_arguments_are_named(field: str, value: Any) -> None:  # noqa: ANN401
    arguments: dict[str, Any] = value if isinstance(value, dict) else {field: value}
    with refused(field):
        choose_threshold(built(), **({"documents": X, "labels": Y} | arguments))


def test_an_index_without_labels_has_no_threshold() -> None:
    with pytest.raises(UnfitIndexError):
        choose_threshold(Index.build(X), X, Y)
    with pytest.raises(UnfitIndexError):
        Index.build(X).set_threshold(0.5)
    with pytest.raises(InvalidArgumentError, match="threshold"):
        built().set_threshold(float("nan"))


@pytest.mark.parametrize("mode", MODES)
def test_a_threshold_of_minus_infinity_overrides_a_stored_one(mode: Mode) -> None:
    """Minus infinity means no threshold, as None does in a grid."""
    index = built()
    plain = index.predict_labels(X, mode=mode)
    index.set_threshold(0.5, mode)
    default_result = index.predict_labels(X, mode=mode)
    assert default_result.parameters.threshold == 0.5
    assert default_result.counts.sum() < plain.counts.sum()
    full_result = index.predict_labels(X, mode=mode, threshold=-np.inf)
    assert full_result.labels.tobytes() == plain.labels.tobytes()
    assert full_result.parameters == plain.parameters
    grid = LabelGrid(modes=(mode,), thresholds=(None, -np.inf, 0.5))
    assert {setting.threshold for setting in grid.settings()} == {None, 0.5}
    index.set_threshold(-np.inf, mode)
    assert index.engine.defaults.thresholds == {}
