"""Label votes of neighbours agree with the reference, in corner cases and on real documents."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from benchmarks.harness.datasets import documents, precisions
from divgrpc.evaluation.label_running import neighbour_vote
from divgrpc.index import Index
from divgrpc.labels.prediction import most_voted
from divgrpc.parameters import QueryParameters
from divgrpc.types import FloatArray, IntArray, Metric
from divgrpc.vectors import SparseRows
from reference import labels as reference
from support.checks.refusals import refused, wrong

examples = settings(max_examples=200)
EXACT = QueryParameters(k=3, search="exact", diversity=0)


def rows_of(sets: list[set[int]], count: int) -> SparseRows:
    matrix = np.zeros((len(sets), count), np.float32)
    for row, labels in enumerate(sets):
        matrix[row, sorted(labels)] = 1
    return SparseRows.of(sparse.csr_array(matrix))


@given(
    st.lists(st.sets(st.integers(0, 5)), min_size=6, max_size=6),
    st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.25, 0.5, 1.0])), max_size=4),
        min_size=1,
        max_size=4,
    ),
)
@examples
def test_votes_agree_with_the_reference(
    sets: list[set[int]], lists: list[list[tuple[int, float]]]
) -> None:
    neighbours: IntArray = np.full((len(lists), 4), -1)
    weights = np.zeros((len(lists), 4), np.float32)
    for row, pairs in enumerate(lists):
        for place, (neighbour, weight) in enumerate(pairs):
            neighbours[row, place], weights[row, place] = neighbour, weight
    labels, shares = most_voted(neighbours, weights, rows_of(sets, 6), 3)
    for row, pairs in enumerate(lists):
        votes = reference.vote([n for n, _ in pairs], [w for _, w in pairs], sets)
        best = reference.best(votes, 3)
        assert labels[row].tolist() == best + [-1] * (3 - len(best))
        assert shares[row, : len(best)].tolist() == pytest.approx([votes[b] for b in best])


@pytest.fixture(scope="module")
def points() -> FloatArray:
    """Return eight points on a quarter of a circle."""
    angles = np.linspace(0, np.pi / 2, 8)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


SETS = [{0}, {0}, {0, 1}, {1}, {2}, {2}, set(), {3}]


def test_votes_are_weighted_by_nearness(points: FloatArray) -> None:
    """A neighbour's weight is its cosine, or falls with its squared distance; shares sum to 1."""
    labels = rows_of(SETS, 4)
    cosines = points[0] @ points[:3].T
    result = neighbour_vote(Index.build(points), points[:1], labels, parameters=EXACT)
    assert result.labels.tolist() == [[0, 1, -1, -1, -1]]
    assert result.scores[0, 0] == 1
    assert result.scores[0, 1] == pytest.approx(cosines[2] / cosines.sum())
    plain = neighbour_vote(
        Index.build(points), points[:1], labels, parameters=EXACT, weighted=False, threshold=0.5
    )
    assert plain.labels.tolist() == [[0, -1, -1, -1, -1]]
    squares = ((points[0] - points[:3]) ** 2).sum(axis=1)
    weights = 1 / (1 + squares / squares.mean())
    index = Index.build(points, metric="euclidean")
    far = neighbour_vote(index, points[:1], labels, parameters=EXACT)
    assert far.scores[0, 1] == pytest.approx(weights[2] / weights.sum(), rel=1e-5)


@pytest.mark.parametrize("metric", ["cosine", "inner_product"])
def test_a_neighbour_of_negative_product_has_no_vote(metric: Metric) -> None:
    index = Index.build(np.array([[-1.0, 0]]), metric=metric)
    result = neighbour_vote(index, np.array([[1.0, 0]]), np.ones((1, 2)), parameters=EXACT)
    assert result.counts.tolist() == [0]


def test_labels_belong_to_rows_not_to_ids(points: FloatArray) -> None:
    index = Index.build(points, ids=np.arange(8)[::-1] * 10)
    plain = Index.build(points)
    votes_with_ids, plain_votes = (
        neighbour_vote(i, points, rows_of(SETS, 4)) for i in (index, plain)
    )
    assert np.array_equal(votes_with_ids.labels, plain_votes.labels)
    alone = [neighbour_vote(plain, point, rows_of(SETS, 4)).scores[0] for point in points]
    assert np.array_equal(alone, plain_votes.scores, equal_nan=True)


@wrong(
    documents=[np.zeros((1, 2)), np.ones((1, 3)), np.empty((0, 2))],
    labels=[np.ones((7, 3))],
    top_k=[0],
)
def test_invalid_documents_and_labels_are_refused(
    points: FloatArray,
    field: str,
    value: Any,  # noqa: ANN401
) -> None:
    arguments: dict[str, Any] = {
        "documents": np.ones((1, 2)),
        "labels": np.ones((8, 3)),
        field: value,
    }
    with refused(field):
        neighbour_vote(Index.build(points), **arguments)


@pytest.mark.parametrize(
    ("name", "least"), [("bibtex", [57.4, 33.9, 24.8]), ("delicious", [60.6, 55.4, 51.2])]
)
def test_ten_neighbours_reach_the_recorded_precision(
    data_folder: Path, name: str, least: list[float]
) -> None:
    """Exact weighted votes reach another program's P@1, P@3 and P@5; hashed ones nearly."""
    split = documents.read(data_folder, name)
    mask = np.diff(split.documents.indptr) > 0
    index = Index.build(split.documents[mask])
    parameters = QueryParameters(k=10, search="exact", diversity=0)
    labels = split.labels[mask]
    exact = neighbour_vote(index, split.test_documents, labels, parameters=parameters)
    exact_precisions = precisions(split, exact.labels)
    assert all(
        precision >= bound
        for precision, bound in zip(exact_precisions.values(), least, strict=True)
    ), exact_precisions
    hash_parameters = QueryParameters(k=10, diversity=0)
    also = neighbour_vote(index, split.test_documents, labels, parameters=hash_parameters)
    assert precisions(split, also.labels)["P@5"] >= 0.98 * exact_precisions["P@5"]
