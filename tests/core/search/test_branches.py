"""Labels picked by `hierarchy` agree with the reference, and some requests are refused."""

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.errors import UnfitIndexError
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.evaluation.label_running import evaluate_labels
from divgrpc.index import Index
from divgrpc.labels import prediction
from divgrpc.metrics import LabelTree
from divgrpc.parameters.predict import PredictParameters
from divgrpc.search.branches import Branches
from divgrpc.types import LabelResult, Mode, Selector
from reference import labels as reference_labels
from reference.metrics import bfs_tree
from support.checks.refusals import refused
from support.data import labelled_documents

examples = settings(max_examples=150)
X = labelled_documents.documents()
DOCUMENTS = labelled_documents.documents(40, seed=1)
MODES: tuple[Mode, ...] = get_args(Mode)


@pytest.fixture(scope="module")
def index() -> Index:
    return Index.build(X, **labelled_documents.everything())


def columns(result: LabelResult) -> list[bytes]:
    arrays = (result.labels, result.scores, result.selection_scores, result.counts)
    return [array.tobytes() for array in arrays]


def branches_of(edges: list[tuple[int, int]], labels: int, roots: list[int] | None) -> Branches:
    """Return the branches of a hierarchy as an index stores them."""
    above, below = np.array(edges).reshape(-1, 2).T
    tree = LabelTree.of_edges(above, below, labels, roots)
    return Branches.of(tree.parents.astype(np.int32), tree.depths.astype(np.int32), labels)


def pick(
    tree: Branches, scores: list[tuple[int, float]], k: int, diversity: float
) -> list[tuple[int, float]]:
    """Pick labels for one document from its labels with scores, best first."""
    labels = np.array([[label for label, _ in scores]])
    score_array = np.array([[score for _, score in scores]], np.float32)
    picks = tree.pick(labels, score_array, np.array([len(scores)], np.uint32), k, diversity)
    count = int(picks.counts[0])
    assert picks.labels[0, count:].tolist() == [-1] * (k - count)
    assert np.isnan(picks.values[0, count:]).all()
    assert np.isnan(picks.scores[0, count:]).all()
    assert picks.scores[0, :count].tolist() == [
        np.float32(dict(scores)[label]) for label in picks.labels[0, :count]
    ]
    return list(zip(picks.labels[0, :count].tolist(), picks.values[0, :count], strict=True))


@examples
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-6, 0.05, 0.3, 0.7, 1.0]), st.booleans())
def test_picks_agree_with_the_reference(seed: int, diversity: float, several: bool) -> None:
    """The graphs have nodes with several parents, cycles, labels above labels, and equal scores."""
    rng = np.random.default_rng(seed)
    labels, nodes = int(rng.integers(1, 25)), 40
    # Most edges lead to a later node, and some lead back; a root may itself be a label.
    edges = [tuple(sorted(rng.choice(nodes, 2, replace=False).tolist())) for _ in range(60)]
    edges += [(child, parent) for parent, child in edges[:5]]
    order = rng.permutation(nodes)
    edges = [(int(order[a]), int(order[b])) for a, b in edges]
    # Nodes without an edge do not exist.
    present = set(np.ravel(edges).tolist())
    roots = [node for node in order.tolist() if node in present][: 1 + several]
    tree = branches_of(edges, labels, roots)
    parents = bfs_tree(edges, roots)
    candidate_labels = rng.permutation(labels)[: rng.integers(1, labels + 1)]
    label_scores = np.sort(rng.integers(0, 6, len(candidate_labels)).astype(np.float32))[::-1]
    scores = [
        (int(label), float(score))
        for label, score in zip(candidate_labels, label_scores, strict=True)
    ]
    k = int(rng.integers(1, 8))
    truth = reference_labels.pick_apart(scores, parents, labels, k, diversity)
    picks = pick(tree, scores, k, diversity)
    assert [label for label, _ in picks] == [label for label, _ in truth]
    assert [value for _, value in picks] == [np.float32(value) for _, value in truth]


@pytest.mark.parametrize("mode", MODES)
def test_at_diversity_0_hierarchy_gives_the_best_labels(index: Index, mode: Mode) -> None:
    plain = index.predict_labels(DOCUMENTS, mode=mode, diversity=0, selector="nearest")
    result = index.predict_labels(DOCUMENTS, mode=mode, diversity=0, selector="hierarchy")
    assert columns(result) == columns(plain)
    assert result.parameters.selector == "hierarchy"


@pytest.mark.parametrize("threshold", [None, 0.2])
@pytest.mark.parametrize("diversity", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("mode", MODES)
def test_predictions_are_picked_from_the_best_labels(
    index: Index, mode: Mode, diversity: float, threshold: float | None
) -> None:
    """The 50 best labels are ranked by product, or by the votes of diverse neighbours."""
    options: dict[str, Any] = {"mode": mode, "search": "exact", "threshold": threshold}
    dial = 0.0 if mode == "embedding" else diversity
    every = index.predict_labels(DOCUMENTS, top_k=50, diversity=dial, selector="greedy", **options)
    result = index.predict_labels(DOCUMENTS, diversity=diversity, selector="hierarchy", **options)
    parents = bfs_tree([tuple(edge) for edge in labelled_documents.edges().tolist()], [130, 131])
    for row, count in enumerate(every.counts):
        assert result.counts[row] == min(count, 5)
        if not count:
            continue
        pairs = zip(every.labels[row, :count].tolist(), every.scores[row].tolist(), strict=False)
        scores = list(pairs)
        truth = reference_labels.pick_apart(
            scores, parents, labelled_documents.LABELS, 5, diversity
        )
        picks = result.labels[row, : len(truth)].tolist()
        assert picks == [label for label, _ in truth]
        assert result.scores[row, : len(truth)].tolist() == [dict(scores)[label] for label in picks]


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_gives_the_predictions_of_its_documents(
    index: Index, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = columns(index.predict_labels(DOCUMENTS, mode=mode, diversity=0.4))
    alone = [
        columns(index.predict_labels(DOCUMENTS[[row]], mode=mode, diversity=0.4))
        for row in range(40)
    ]
    assert [b"".join(parts) for parts in zip(*alone, strict=True)] == whole
    monkeypatch.setattr(prediction, "CANDIDATES_AT_ONCE", 150)
    assert columns(index.predict_labels(DOCUMENTS, mode=mode, diversity=0.4)) == whole


@pytest.mark.parametrize("mode", MODES)
def test_a_greater_diversity_raises_drank(index: Index, mode: Mode) -> None:
    assert index.engine.labels is not None
    assert index.engine.labels.tree is not None
    drank = [
        index.engine.labels.tree.drank(
            index.predict_labels(DOCUMENTS, mode=mode, diversity=dial).labels
        ).mean()
        for dial in (0, None, 0.5, 1)
    ]
    assert drank == sorted(drank)
    # The default dial of `embedding` is so small that it may change no label of these documents.
    # Whether it does depends on how the processor rounds when the model is trained.
    assert drank[0] < drank[2]
    if mode == "neighbour_vote":
        assert drank[0] < drank[1]


def test_defaults_depend_on_mode_and_hierarchy(index: Index) -> None:
    bare = Index.build(
        X, labels=labelled_documents.labels_of(X), label_model=labelled_documents.factors()
    )
    cases: list[tuple[Index, Mode, str, float]] = [
        (index, "embedding", "hierarchy", 0.05),
        (index, "neighbour_vote", "hierarchy", 0.3),
        (bare, "embedding", "greedy", 0.0),
        (bare, "neighbour_vote", "greedy", 0.3),
    ]
    for case_index, mode, selector, diversity in cases:
        parameters = case_index.predict_labels(DOCUMENTS, mode=mode).parameters
        assert (parameters.selector, parameters.diversity) == (selector, diversity)
        parameters = case_index.predict_labels(
            DOCUMENTS, mode=mode, diversity=0.2, selector="mmr"
        ).parameters
        assert (parameters.selector, parameters.diversity) == ("mmr", 0.2)
    parameters = index.predict_labels(DOCUMENTS, selector="greedy").parameters
    assert (parameters.selector, parameters.diversity) == ("greedy", 0.0)
    assert PredictParameters().filled(hierarchy=True).diversity == 0.05


def test_top_k_above_the_number_of_labels_and_at_the_limits(index: Index) -> None:
    result = index.predict_labels(DOCUMENTS, top_k=200, diversity=0.5)
    assert result.counts.tolist() == [labelled_documents.LABELS] * 40
    assert [warning.code for warning in result.warnings] == ["FEWER_THAN_TOP_K_LABELS"]
    result = index.predict_labels(
        DOCUMENTS, top_k=7, candidates_limit=7, hash_limit=7, search="scan"
    )
    assert next(warning.code for warning in result.warnings) == "HASH_LIMIT_EQUALS_K"
    none = index.predict_labels(DOCUMENTS, threshold=1e9)
    assert none.counts.tolist() == [0] * 40


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("diversity", [0.0, 0.5, None])
def test_hierarchy_is_refused_without_a_hierarchy_and_for_queries(
    mode: Mode, diversity: float | None
) -> None:
    bare = Index.build(
        X, labels=labelled_documents.labels_of(X), label_model=labelled_documents.factors()
    )
    with refused("selector", "needs a hierarchy", error=UnfitIndexError):
        bare.predict_labels(DOCUMENTS, mode=mode, diversity=diversity, selector="hierarchy")
    grid = LabelGrid(modes=(mode,), selectors=("hierarchy",))
    with refused("selector", error=UnfitIndexError):
        evaluate_labels(bare, DOCUMENTS, labelled_documents.labels_of(DOCUMENTS), grid=grid)
    selector: Any = "hierarchy"
    with refused("selector"):
        bare.query(X[:1], selector=selector)
    assert "hierarchy" not in get_args(Selector)
