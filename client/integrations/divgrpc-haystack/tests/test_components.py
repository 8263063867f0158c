"""The retriever and the ranker, and what the store does beyond the standard tests."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from haystack import Document
from haystack.dataclasses import ByteStream, SparseEmbedding
from haystack.errors import FilterError

from divgrpc_client import Client
from haystack_integrations.components.rankers.divgrpc import DivgrpcDiversityRanker
from haystack_integrations.components.retrievers.divgrpc import DivgrpcEmbeddingRetriever
from haystack_integrations.document_stores.divgrpc import DivgrpcDocumentStore

EMBEDDINGS = [
    [float(np.cos(angle)), float(np.sin(angle))] for angle in np.deg2rad([0, 1, 2, 30, 45, 80])
]
TYPES = {"row": "integer", "tags": ["keyword"]}


def ids(documents: list[Document]) -> str:
    """Return the ids of documents as one text."""
    return "".join(document.id for document in documents)


def documents() -> list[Document]:
    """Return documents "0" to "5" at growing angles."""
    return [
        Document(
            id=str(row),
            content=f"text {row}",
            meta={"row": row, "tags": ["even"] if row % 2 == 0 else []},
            embedding=embedding,
            score=1 - row / 10,
        )
        for row, embedding in enumerate(EMBEDDINGS)
    ]


@pytest.fixture(scope="module")
def store(target: str) -> Iterator[DivgrpcDocumentStore]:
    """Return a store with six documents, which no test writes to."""
    store = DivgrpcDocumentStore("components", target, attributes=TYPES)
    store.write_documents(documents())
    yield store
    store.delete_all_documents(recreate_index=True)
    store.close()


def test_retriever_returns_the_nearest_with_scores(store: DivgrpcDocumentStore) -> None:
    retriever = DivgrpcEmbeddingRetriever(store, top_k=3)
    results = retriever.run(EMBEDDINGS[0])["documents"]
    assert ids(results) == "012"
    cosines = np.array(EMBEDDINGS)[:3] @ EMBEDDINGS[0]
    np.testing.assert_allclose([document.score for document in results], cosines, atol=1e-6)
    again = asyncio.run(retriever.run_async(EMBEDDINGS[0]))["documents"]
    assert again == results
    assert retriever.run(EMBEDDINGS[0], top_k=0) == {"documents": []}


def test_retriever_returns_different_documents_if_asked(store: DivgrpcDocumentStore) -> None:
    retriever = DivgrpcEmbeddingRetriever(store, top_k=3, options={"diversity": 0.7})
    diverse = retriever.run(EMBEDDINGS[0])["documents"]
    assert set(ids(diverse)) != set("012")
    plain = retriever.run(EMBEDDINGS[0], options={"diversity": 0})["documents"]
    assert ids(plain) == "012"


def test_filters_of_retriever_and_call(store: DivgrpcDocumentStore) -> None:
    above = {"field": "meta.row", "operator": ">", "value": 1}
    even = {"field": "meta.tags", "operator": "==", "value": "even"}
    replaced = DivgrpcEmbeddingRetriever(store, filters=above)
    assert ids(replaced.run(EMBEDDINGS[0])["documents"]) == "2345"
    assert ids(replaced.run(EMBEDDINGS[0], filters=even)["documents"]) == "024"
    merged = DivgrpcEmbeddingRetriever(store, filters=above, filter_policy="merge")
    assert ids(merged.run(EMBEDDINGS[0], filters=even)["documents"]) == "24"
    with pytest.raises(FilterError, match="'page', but the index declares row, tags"):
        replaced.run(EMBEDDINGS[0], filters={"field": "page", "operator": "==", "value": 1})
    with pytest.raises(FilterError, match="cannot order values of 'tags'"):
        replaced.run(EMBEDDINGS[0], filters={"field": "tags", "operator": ">", "value": "a"})
    with pytest.raises(FilterError, match="'~' is none of"):
        replaced.run(EMBEDDINGS[0], filters={"field": "row", "operator": "~", "value": 1})


def test_scores_are_greater_for_nearer_documents_under_euclidean(target: str) -> None:
    store = DivgrpcDocumentStore("far", target, metric="euclidean")
    store.write_documents([Document(id="a", embedding=[0, 1]), Document(id="b", embedding=[0, 3])])
    results = store.embedding_retrieval([0, 0])
    assert [(document.id, document.score) for document in results] == [("a", -1), ("b", -9)]
    store.delete_all_documents(recreate_index=True)
    store.close()


def test_all_parts_of_a_document_come_back(target: str) -> None:
    store = DivgrpcDocumentStore("parts", target)
    document = Document(
        content="text",
        blob=ByteStream(b"\x00\xff", meta={"page": 1}, mime_type="image/png"),
        meta={"deep": {"list": [1, None, "x"]}},
        embedding=[0.6, 0.8],
        sparse_embedding=SparseEmbedding(indices=[3], values=[0.5]),
    )
    store.write_documents([document])
    (result,) = store.filter_documents()
    np.testing.assert_allclose(result.embedding, document.embedding, rtol=1e-6)
    assert {**result.to_dict(), "embedding": None} == {**document.to_dict(), "embedding": None}
    store.delete_all_documents(recreate_index=True)
    store.close()


def test_components_are_saved_and_restored(store: DivgrpcDocumentStore, target: str) -> None:
    retriever = DivgrpcEmbeddingRetriever(
        store, filters={"a": 1}, top_k=3, options={"diversity": 0.2}, filter_policy="merge"
    )
    again = DivgrpcEmbeddingRetriever.from_dict(retriever.to_dict())
    assert again.to_dict() == retriever.to_dict()
    assert again.document_store.count_documents() == 6
    again.document_store.close()
    assert DivgrpcDiversityRanker(3, target).run([])["documents"] == []


@pytest.mark.parametrize("with_query", [False, True])
@pytest.mark.parametrize("options", [{"diversity": 0}, {"diversity": 0.5}, {"selector": "dpp"}])
def test_ranker_keeps_what_diversify_picks(
    target: str, options: dict[str, object], with_query: bool
) -> None:
    ranker = DivgrpcDiversityRanker(top_k=3, target=target, options=options)
    query = EMBEDDINGS[0] if with_query else None
    relevance = {"query": query} if with_query else {"scores": [1 - row / 10 for row in range(6)]}
    with Client(target) as client:
        places = client.diversify(np.array(EMBEDDINGS), k=3, **relevance, **options).places
    expected = "".join(map(str, places))
    assert len(expected) == 3
    assert ids(ranker.run(documents(), query)["documents"]) == expected
    assert ids(asyncio.run(ranker.run_async(documents(), query))["documents"]) == expected


def test_ranker_needs_embeddings_and_relevance(target: str) -> None:
    ranker = DivgrpcDiversityRanker(target=target)
    with pytest.raises(ValueError, match="need embeddings, but \\['x'\\] have none"):
        ranker.run([Document(id="x", score=1.0)])
    with pytest.raises(ValueError, match="need scores"):
        ranker.run([Document(id="x", embedding=[1.0, 0.0])])
    with pytest.raises(ValueError, match="at least 1"):
        DivgrpcDiversityRanker(top_k=0)
