"""Labels in a build are stored with the generation, described, and refused if they do not fit."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from divgrpc.builder.builder import IndexBuilder
from divgrpc.errors import IndexDamagedError, InvalidArgumentError
from divgrpc.evaluation.label_running import evaluate_labels
from divgrpc.index import Index
from divgrpc.labels import train
from divgrpc.metrics.hierarchy import LabelTree
from divgrpc.parameters import BuildParameters, LabelParameters
from divgrpc.parameters.predict import PredictParameters
from divgrpc.storage.manifest import Manifest
from divgrpc.storage.writers import MemoryStore
from divgrpc.types import Progress
from support.checks.refusals import refused, wrong

RNG = np.random.default_rng(3)
X = RNG.random((30, 8)).astype("f4")
Y = sparse.csr_array(RNG.random((30, 6)) < 0.4)
NAMES = ["a", "bé", "", "d", "e", "f"]
EDGES = [(6, 0), (6, 1), (7, 2), (7, 3), (8, 6), (8, 7), (6, 3)]
FACTORS, MAP = RNG.standard_normal((6, 3)), RNG.standard_normal((8, 3))


def leml(**parameters: Any) -> Index:  # noqa: ANN401  # parameters of a build
    defaults: dict[str, Any] = {"labels": Y, "label_names": NAMES, "hierarchy": EDGES}
    if parameters.get("label_model", "leml") == "leml":
        defaults |= {"label_model": "leml", "rank": 3, "regularisation": 1.0, "iterations": 2}
    return Index.build(X, **(defaults | parameters))


def test_a_generation_stores_its_labels(tmp_path: Path) -> None:
    stored_index = leml(path=tmp_path / "kept")
    reopened_index = Index.open(tmp_path / "kept")
    for mode in ("embedding", "neighbour_vote"):
        first, second, third = (
            index.predict_labels(X, mode=mode) for index in (leml(), stored_index, reopened_index)
        )
        assert first.labels.tobytes() == second.labels.tobytes() == third.labels.tobytes()
        assert first.scores.tobytes() == second.scores.tobytes() == third.scores.tobytes()
        assert first.names == third.names
    assert reopened_index.engine.manifest.labels == stored_index.engine.manifest.labels
    assert reopened_index.engine.manifest == Manifest.from_json(
        stored_index.engine.manifest.to_json()
    )


def test_a_generation_describes_its_labels() -> None:
    section = leml().engine.manifest.labels
    assert section is not None
    assert (section.label_count, section.rank, section.unit_rows) == (6, 3, True)
    assert section.parameters == LabelParameters(rank=3, regularisation=1.0, iterations=2)
    assert len(section.losses) == 2
    assert section.losses[1] < section.losses[0]
    assert section.index is not None
    assert (section.index.rows, section.index.dims) == (6, 3)
    assert section.index.parameters.metric == "inner_product"
    assert Index.build(X).engine.manifest.labels is None
    votes = Index.build(X, labels=Y).engine.manifest.labels
    assert votes is not None
    assert (votes.label_count, votes.rank, votes.index) == (6, 0, None)


def test_label_factors_are_hashed_like_the_points() -> None:
    section = leml(
        hash_family="lsh_sdiv", n_tables=4, n_bits=9, n_components=5
    ).engine.manifest.labels
    assert section is not None
    assert section.index is not None
    inner = section.index.parameters
    assert (inner.hash_family, inner.n_tables, inner.n_bits) == ("lsh_sdiv", 4, 9)
    assert inner.n_components == section.rank == 3


@pytest.mark.parametrize(
    ("parameters", "tables", "bits"),
    [({"n_tables": 2, "n_bits": 4}, 1, 3), ({"n_tables": 4}, 1, 3), ({"n_bits": 1}, 3, 1)],
)
def test_factors_have_fewer_components_than_points(
    parameters: dict[str, int], tables: int, bits: int
) -> None:
    """With pca_hash, fewer components allow fewer bits than the points have."""
    section = leml(hash_family="pca_hash", **parameters).engine.manifest.labels
    assert section is not None
    assert section.index is not None
    inner = section.index.parameters
    assert (inner.n_tables, inner.n_bits) == (tables, bits)


def test_the_hierarchy_is_stored_as_a_tree(tmp_path: Path) -> None:
    leml(path=tmp_path / "kept")
    labels = Index.open(tmp_path / "kept").engine.labels
    assert labels is not None
    assert labels.tree is not None
    parents, children = np.transpose(EDGES)
    truth = LabelTree.of_edges(parents, children, 6)
    lists = RNG.integers(-1, 6, (40, 4))
    assert labels.tree.drank(lists).tolist() == truth.drank(lists).tolist()
    codes = [warning.code for warning in leml().engine.manifest.warnings]
    assert "LABELS_OUTSIDE_HIERARCHY" in codes
    assert Index.build(X, labels=Y).engine.labels.tree is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "name",
    [
        *("label_sets.indices", "feature_map", "label_names.bytes"),
        *("label_index.vectors", "label_index.ids"),
    ],
)
def test_damage_to_labels_is_noticed(tmp_path: Path, name: str) -> None:
    leml(path=tmp_path / "kept")
    path = tmp_path / "kept" / "1" / f"{name}.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(IndexDamagedError):
        Index.open(tmp_path / "kept")
    path.unlink()
    with pytest.raises(IndexDamagedError):
        Index.open(tmp_path / "kept")


def test_training_reports_progress_and_can_be_cancelled(tmp_path: Path) -> None:
    steps: list[Progress] = []
    leml(progress=steps.append)
    stages = list(dict.fromkeys(step.stage for step in steps))
    assert (stages[0], stages[-1]) == ("receiving", "writing")
    assert stages.index("training labels") < stages.index("label hashing")

    def end(progress: Progress, at: str) -> None:
        if progress.stage == at:
            raise InterruptedError

    for at in ("training labels", "label tuning"):
        with pytest.raises(InterruptedError):
            leml(path=tmp_path / "root" / "gone", progress=partial(end, at=at))
        assert list((tmp_path / "root").iterdir()) == []


def test_labels_of_skipped_rows_are_skipped() -> None:
    rows = X.copy()
    rows[[0, 5]] = 0
    index = Index.build(rows, labels=Y, zero_vectors="skip")
    row_numbers = np.delete(np.arange(30), [0, 5])
    assert index.engine._arrays["label_sets.indices"].tolist() == Y[row_numbers].indices.tolist()
    result = index.predict_labels(rows[row_numbers], mode="neighbour_vote", neighbours=1, top_k=6)
    for row, labels in zip(row_numbers, result.labels, strict=True):
        truth = np.flatnonzero(Y[[row]].toarray()[0]).tolist()
        assert sorted(labels[labels >= 0].tolist()) == truth


def test_a_given_trained_model_equals_one_trained_by_the_build() -> None:
    inside, parameters = leml(), LabelParameters(rank=3, regularisation=1.0, iterations=2)
    # Normalising rows twice changes their last digits, which may flip singular vectors.
    model = train(inside.engine._arrays["vectors"], Y, parameters).model
    outside = Index.build(X, label_model=model)
    for name in ("feature_map", "label_offset", "label_index.vectors"):
        assert inside.engine._arrays[name].tobytes() == outside.engine._arrays[name].tobytes()


@wrong(
    labels=[Y[np.arange(29)], np.zeros((30, 6)), None, "many", np.full((30, 6), np.nan)],
    label_model=[
        *("best", 3, (FACTORS,), (FACTORS, MAP[:7]), (np.zeros((6, 3)), MAP)),
        {"label_model": (FACTORS[:5], MAP), "label_names": None},
    ],
    feature_map=[{"label_model": (FACTORS, MAP[:, :2])}],
    label_factors=[{"label_model": (np.full((6, 3), np.nan), MAP)}],
    label_names=[NAMES[:5], [1, 2, 3, 4, 5, 6], [*NAMES[:5], "\ud800"]],
    hierarchy=[
        *([(0, 1), (1, 0)], [0, 1, 2], [(-1, 0)], [(6, 7), (6, 8)], [(6, 2**40)]),
        {"roots": [99]},
    ],
    roots=[{"hierarchy": None, "roots": [0]}],
    rank=[7, 0, {"label_model": None, "rank": 3}],
    regularisation=[0.0],
    iterations=[0],
    inner_iterations=[{"label_model": (FACTORS, MAP), "inner_iterations": 10}],
    tolerance=[{"label_model": None, "labels": None, "tolerance": 0.1}],
)
def test_invalid_labels_are_refused_by_field(tmp_path: Path, field: str, value: Any) -> None:  # noqa: ANN401
    parameters = value if isinstance(value, dict) else {field: value}
    with refused(field):
        leml(path=tmp_path / "root" / "wrong", **parameters)
    assert not (tmp_path / "root").exists() or list((tmp_path / "root").iterdir()) == []


def test_labels_come_with_every_row_or_with_none() -> None:
    builder = IndexBuilder(MemoryStore(), BuildParameters())
    builder.append(X[:3], labels=Y[:3])
    with refused("labels", "every row or with none"):
        builder.append(X[3:5])
    with refused("labels", "must have 6 columns, one per label, got 5"):
        builder.append(X[3:5], labels=np.ones((2, 5)))


def test_zero_label_factors_cause_a_warning() -> None:
    factors = FACTORS.copy()
    factors[[1, 4]] = 0
    (warning,) = Index.build(X, label_model=(factors, MAP)).info.warnings
    assert (warning.code, warning.field) == ("ZERO_LABEL_FACTORS", "label_model")
    assert warning.message.startswith("2 of 6 labels")
    assert Index.build(X, label_model=(FACTORS, MAP)).info.warnings == ()
    rare = Y.toarray()
    rare[:, 2] = 0
    assert "ZERO_LABEL_FACTORS" in {warning.code for warning in leml(labels=rare).info.warnings}


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([(6, label) for label in range(6)], ""),
        ([(6, label) for label in range(5)], "1 of 6 labels are not reached"),
        (
            [(6, 7), (6, 8), (7, 9), (6, 30), *((8, label) for label in range(5))],
            "roots, and 2 nodes of the hierarchy are neither labels nor parents",
        ),
    ],
)
def test_hierarchy_nodes_without_labels_cause_a_warning(
    edges: list[tuple[int, int]], message: str
) -> None:
    warnings = [w for w in leml(hierarchy=edges).info.warnings if w.field == "hierarchy"]
    assert bool(warnings) == bool(message)
    assert not warnings or message in warnings[0].message


def test_a_document_too_long_when_embedded_is_refused_by_row() -> None:
    """The error names the row before any document is labelled, also in evaluations."""
    index = Index.build(X, labels=Y, label_model=(FACTORS, MAP * 1e10))
    documents = np.tile(np.abs(X) + 0.1, (20, 1))
    documents[301] *= 1e8
    truth = sparse.csr_array(np.tile(Y.toarray(), (20, 1)))
    with pytest.raises(InvalidArgumentError, match=r"documents row 301\b"):
        index.engine.check_documents(documents, PredictParameters())
    with pytest.raises(InvalidArgumentError, match=r"documents row 301\b"):
        index.predict_labels(documents)
    with pytest.raises(InvalidArgumentError, match=r"documents row 301\b"):
        evaluate_labels(index, documents, truth)
