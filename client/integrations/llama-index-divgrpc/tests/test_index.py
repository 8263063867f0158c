"""The store and the postprocessor within LlamaIndex's indexes, retrievers and pipelines."""

import asyncio
from collections.abc import Iterator

import pytest
from angles import Angles, node
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.retrievers import VectorIndexRetriever
from llama_index.core.schema import IndexNode, NodeWithScore
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import ExactMatchFilter, MetadataFilters

from llama_index.postprocessor.divgrpc import DivgrpcDiversifier
from llama_index.vector_stores.divgrpc import DivgrpcVectorStore


@pytest.fixture
def store(target: str) -> Iterator[DivgrpcVectorStore]:
    """Return a store without an index, for one test."""
    types = {"source": "keyword"}
    store = DivgrpcVectorStore(index="llama-index-test", target=target, attributes=types)
    yield store
    store.clear()
    store.close()


@pytest.fixture
def index(store: DivgrpcVectorStore) -> VectorStoreIndex:
    """Return an index over documents "0 text" to "80 text"."""
    documents = [
        Document(text=f"{10 * row} text", doc_id=f"d{row}", metadata={"source": "ab"[row % 2]})
        for row in range(9)
    ]
    for document in documents:
        document.excluded_embed_metadata_keys = ["source"]
    context = StorageContext.from_defaults(vector_store=store)
    return VectorStoreIndex.from_documents(documents, context, embed_model=Angles())


def texts(results: list[NodeWithScore]) -> list[str]:
    """Return the first words of nodes."""
    return [item.get_content().split()[0] for item in results]


def test_retrievers_filter_and_score(index: VectorStoreIndex) -> None:
    results = index.as_retriever(similarity_top_k=3).retrieve("1")
    assert texts(results) == ["0", "10", "20"]
    assert 1 >= results[0].score > results[1].score > results[2].score
    filters = MetadataFilters(filters=[ExactMatchFilter(key="source", value="b")])
    retriever = index.as_retriever(similarity_top_k=3, filters=filters)
    assert texts(retriever.retrieve("1")) == ["10", "30", "50"]
    assert texts(asyncio.run(retriever.aretrieve("1"))) == ["10", "30", "50"]
    retriever = index.as_retriever(similarity_top_k=3, doc_ids=["d7", "d8"])
    assert texts(retriever.retrieve("1")) == ["70", "80"]


def test_retrievers_differ_by_mode_and_options(index: VectorStoreIndex) -> None:
    nearest = texts(index.as_retriever(similarity_top_k=3).retrieve("1"))
    for options in (
        {"vector_store_query_mode": "mmr", "vector_store_kwargs": {"mmr_threshold": 0.1}},
        {"vector_store_kwargs": {"diversity": 0.9}},
    ):
        retriever = index.as_retriever(similarity_top_k=3, **options)
        diverse = texts(retriever.retrieve("1"))
        assert len(set(diverse)) == 3
        assert diverse != nearest
        assert texts(asyncio.run(retriever.aretrieve("1"))) == diverse
    options = {"vector_store_query_mode": "mmr", "vector_store_kwargs": {"mmr_threshold": 1}}
    retriever = index.as_retriever(similarity_top_k=3, **options)
    assert texts(retriever.retrieve("1")) == nearest


def test_documents_are_inserted_updated_and_deleted(index: VectorStoreIndex) -> None:
    retriever = index.as_retriever(similarity_top_k=2)
    index.insert(Document(text="2 new", doc_id="new"))
    assert texts(retriever.retrieve("0")) == ["0", "2"]
    index.update_ref_doc(Document(text="3 new", doc_id="new"))
    assert texts(retriever.retrieve("0")) == ["0", "3"]
    index.delete_ref_doc("new")
    index.delete_nodes([retriever.retrieve("0")[0].node_id])
    assert texts(retriever.retrieve("0")) == ["10", "20"]
    asyncio.run(index.adelete_ref_doc("d1"))
    asyncio.run(index.ainsert_nodes([node(4, "x")]))
    assert texts(retriever.retrieve("0")) == ["4", "20"]


def test_an_index_opens_a_store_that_exists(
    index: VectorStoreIndex, store: DivgrpcVectorStore
) -> None:
    assert index.index_id
    again = VectorStoreIndex.from_vector_store(store, embed_model=Angles())
    assert texts(again.as_retriever(similarity_top_k=1).retrieve("41")) == ["40"]


def test_an_index_that_embeds_in_an_event_loop(store: DivgrpcVectorStore) -> None:
    context = StorageContext.from_defaults(vector_store=store)
    nodes = [node(10 * row, str(row)) for row in range(9)]
    index = VectorStoreIndex(
        nodes, storage_context=context, embed_model=Angles(), use_async=True, insert_batch_size=2
    )
    assert texts(index.as_retriever(similarity_top_k=9).retrieve("0"))[-1] == "80"


def test_a_pipeline_replaces_documents_that_changed(store: DivgrpcVectorStore) -> None:
    pipeline = IngestionPipeline(
        transformations=[SentenceSplitter(), Angles()],
        vector_store=store,
        docstore=SimpleDocumentStore(),
        docstore_strategy=DocstoreStrategy.UPSERTS_AND_DELETE,
    )
    pipeline.run(documents=[Document(text="1 a", doc_id="a"), Document(text="2 b", doc_id="b")])
    assert sorted(item.get_content() for item in store.get_nodes()) == ["1 a", "2 b"]
    asyncio.run(pipeline.arun(documents=[Document(text="3 a", doc_id="a")]))
    assert [item.get_content() for item in store.get_nodes()] == ["3 a"]


def test_nodes_of_an_index_that_refer_to_objects(store: DivgrpcVectorStore) -> None:
    """`as_retriever` asks for nodes that the index keeps itself: those of images and objects."""
    context = StorageContext.from_defaults(vector_store=store)
    nodes = [node(10, "a"), IndexNode(id_="b", text="20 degrees", index_id="other")]
    index = VectorStoreIndex(nodes, storage_context=context, embed_model=Angles())
    assert texts(VectorIndexRetriever(index, similarity_top_k=9).retrieve("0")) == ["10", "20"]
    assert texts(index.as_retriever(similarity_top_k=9).retrieve("0")) == ["20"]


def test_a_query_engine_with_the_postprocessor(index: VectorStoreIndex, target: str) -> None:
    diversifier = DivgrpcDiversifier(
        embed_model=Angles(), top_n=3, target=target, options={"diversity": 0.9}
    )
    engine = index.as_query_engine(
        llm=MockLLM(), similarity_top_k=9, node_postprocessors=[diversifier]
    )
    picks = texts(engine.query("1").source_nodes)
    assert picks[0] == "0"
    assert len(picks) == 3
    assert picks != ["0", "10", "20"]
    assert texts(asyncio.run(engine.aquery("1")).source_nodes) == picks
