"""The synthetic data sets: sizes, planted structure and seeds; and learned queries."""

from pathlib import Path

import numpy as np
import pytest

from divgrpc.metrics import JudgedLabels, precision_at
from divgrpc_lab.data import topics
from divgrpc_lab.data.synthetic import (
    LabelledDocuments,
    labelled_documents,
    visual_words,
)
from divgrpc_lab.data.topics import hyperplane_queries


@pytest.fixture(scope="module")
def collection() -> LabelledDocuments:
    """Return documents in the style of LSHTC3, at 1/500 of its size, with 300 test documents."""
    return labelled_documents(1_508, 3_200, 518, 300, seed=3)


def test_documents_have_the_statistics_of_the_paper(collection: LabelledDocuments) -> None:
    """Rows have about 40 words and at least 4 labels. Most labels are rare."""
    assert collection.documents.shape == (1_508, 3_200)
    assert collection.labels.shape == (1_508, 518)
    assert (collection.test_documents.shape, collection.truth.shape) == ((300, 3_200), (300, 518))
    for rows in (collection.documents, collection.test_documents):
        assert rows.dtype == np.float32
        assert rows.has_canonical_format
        assert 38 < rows.nnz / rows.shape[0] < 42
        assert np.sqrt(rows.multiply(rows).sum(axis=1)) == pytest.approx(np.ones(rows.shape[0]))
    for labels in (collection.labels, collection.truth):
        assert labels.has_canonical_format
        assert set(labels.data) == {1}
        assert 4 <= np.diff(labels.indptr).min() < labels.nnz / labels.shape[0] < 5
    counts = np.sort(np.bincount(collection.labels.indices, minlength=518))
    assert counts[-1] > 20 * counts[259] > 0


def test_labels_of_a_document_share_a_topic(collection: LabelledDocuments) -> None:
    """Each document has one topic, and the labels of a topic have consecutive numbers."""
    assert np.array_equal(collection.topics, np.sort(collection.topics))
    assert set(collection.topics) == {0, 1, 2}
    topics = collection.topics[collection.labels.indices]
    starts = collection.labels.indptr[:-1]
    assert np.array_equal(np.minimum.reduceat(topics, starts), np.maximum.reduceat(topics, starts))


def test_words_belong_to_labels_topics_or_none(collection: LabelledDocuments) -> None:
    """A fifth of the words mean nothing; all other words of a document belong to its labels."""
    owners = collection.owners
    of_labels, of_topics = owners < 518, (owners >= 518) & (owners < 521)
    assert set(owners) == set(range(522))
    assert [of_labels.sum(), of_topics.sum()] == [2_080, 480]
    document = np.repeat(np.arange(1_508), np.diff(collection.documents.indptr))
    owner = owners[collection.documents.indices]
    assert np.all(collection.labels[document[owner < 518], owner[owner < 518]] == 1)


@pytest.mark.parametrize(("lengths", "least"), [("unit", 0.8), ("long tail", 0.4)])
def test_the_planted_model_finds_the_labels(
    collection: LabelledDocuments, lengths: str, least: float
) -> None:
    """The squared norm of a label's factor is the number of documents with the label."""
    factors, feature_map = collection.planted(200)
    assert (factors.shape, feature_map.shape) == ((518, 200), (3_200, 200))
    assert factors.dtype == feature_map.dtype == np.float32
    long = np.linalg.norm(factors, axis=1, keepdims=True)
    counts = np.bincount(collection.labels.indices, minlength=518)
    assert long[:, 0] ** 2 == pytest.approx(np.maximum(counts, 1), rel=1e-4)
    scores = (
        collection.test_documents
        @ feature_map
        @ (factors if lengths == "long tail" else factors / long).T
    )
    best = np.argsort(-scores, axis=1)[:, :5]
    assert precision_at(JudgedLabels.of(best, collection.truth)).mean(axis=0)[0] > least


def test_a_seed_fixes_every_byte(collection: LabelledDocuments) -> None:
    same_seed, next_seed = (
        labelled_documents(1_508, 3_200, 518, 300, seed=seed) for seed in (3, 4)
    )
    for part in ("documents", "labels", "test_documents", "truth"):
        for name in ("data", "indices", "indptr"):
            array, expected = (
                getattr(getattr(data, part), name) for data in (same_seed, collection)
            )
            assert array.tobytes() == expected.tobytes()
    assert collection.documents.indices.tobytes() != next_seed.documents.indices.tobytes()
    assert collection.planted(8)[1].tobytes() == same_seed.planted(8)[1].tobytes()


def test_the_smallest_data_set_can_be_made() -> None:
    """It has one document and one topic, and the document has all four labels of the topic."""
    data = labelled_documents(1, 16, 4, 1, seed=0)
    assert data.labels.indices.tolist() == [0, 1, 2, 3]
    assert data.documents.nnz > 0
    assert data.planted(1)[0].shape == (4, 1)


def test_visual_words_have_the_statistics_of_the_paper() -> None:
    """Queries find their own category more often than by chance (1/7)."""
    data = visual_words(700, 350, seed=3)
    assert (data.points.shape, data.pool.shape) == ((700, 48_000), (350, 48_000))
    for rows in (data.points, data.pool):
        assert rows.dtype == np.float32
        assert rows.nnz / rows.shape[0] >= 400
        assert rows.has_canonical_format
        assert np.sqrt(rows.multiply(rows).sum(axis=1)) == pytest.approx(np.ones(rows.shape[0]))
    categories, subtopics = data.labels.categories, data.labels.subtopics
    assert set(subtopics.tolist()) == set(range(35))
    assert np.array_equal(categories, subtopics // 5)
    assert data.query_categories.tolist() == list(range(7))
    learned_queries = hyperplane_queries(data.pool, data.pool_categories, 2, seed=0)
    shares = []
    for queries, query_categories in ((data.pool.toarray(), data.pool_categories), learned_queries):
        top = np.argsort(-(data.points @ queries.T), axis=0)[:10]
        shares.append((categories[top] == query_categories).mean())
    assert 0.2 < shares[0] <= shares[1]


def test_learned_queries_are_reused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Queries ask for every category with two sub-topics; a second call reads them from a file."""
    monkeypatch.delenv("DIVGRPC_DATA", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    [digits] = topics.load(["whatever"])
    first = digits.queries(2)
    monkeypatch.delattr(topics, "hyperplane_queries")
    again = digits.queries(2)
    np.testing.assert_array_equal(first.queries, again.queries)
    np.testing.assert_array_equal(first.categories, [0, 0, 1, 1])
    np.testing.assert_allclose(np.linalg.norm(first.queries, axis=1), 1, rtol=1e-5)
