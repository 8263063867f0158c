"""The store keeps the contract of `BasePydanticVectorStore`."""

import asyncio
import pickle
import random
from collections.abc import Iterator

import numpy as np
import pytest
from angles import Angles, node
from llama_index.core.schema import (
    BaseNode,
    Document,
    ImageNode,
    IndexNode,
    MediaResource,
    MetadataMode,
    Node,
    NodeRelationship,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores import (
    MetadataFilter,
    MetadataFilters,
    SimpleVectorStore,
    VectorStoreQuery,
)
from llama_index.core.vector_stores.types import VectorStoreQueryMode

from divgrpc_client.documents import DocumentIndex, StoredDocument
from llama_index.vector_stores.divgrpc import DivgrpcVectorStore

TYPES = {"year": "integer", "source": "keyword"}


@pytest.fixture
def empty(target: str) -> Iterator[DivgrpcVectorStore]:
    """Return a store without an index, for one test."""
    store = DivgrpcVectorStore(index="llama-own", target=target, attributes=TYPES)
    yield store
    store.clear()
    store.close()


def ten_nodes() -> list[TextNode]:
    """Return nodes at angles of 0, 11, 24 ... 171 degrees, no two as far apart."""
    return [
        node(10 * row + row**2, str(row), f"d{row % 3}", year=2000 + row, source="ab"[row % 2])
        for row in range(10)
    ]


@pytest.fixture
def own_store(empty: DivgrpcVectorStore) -> DivgrpcVectorStore:
    """Return a store with ten nodes, for one test."""
    empty.add(ten_nodes())
    return empty


@pytest.fixture(scope="module")
def store(target: str) -> Iterator[DivgrpcVectorStore]:
    """Return a store with ten nodes, which no test writes to."""
    store = DivgrpcVectorStore(index="llama-angles", target=target, attributes=TYPES)
    store.add(ten_nodes())
    yield store
    store.clear()
    store.close()


def query(angle: float, k: int = 3, mode: str = "default", **fields: object) -> VectorStoreQuery:
    """Return a query at an angle."""
    vector = Angles().get_query_embedding(str(angle))
    return VectorStoreQuery(vector, k, mode=VectorStoreQueryMode(mode), **fields)


def where(key: str, value: object, operator: str = "==") -> MetadataFilters:
    """Return a filter of one comparison."""
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])


def ids(nodes: list[BaseNode]) -> str:
    """Return the ids of nodes as one text, in ascending order."""
    return "".join(sorted(item.node_id for item in nodes))


def test_a_query_returns_nodes_ids_and_similarities(store: DivgrpcVectorStore) -> None:
    result = store.query(query(12, 4))
    assert result.ids == ["1", "0", "2", "3"]
    assert [item.node_id for item in result.nodes] == result.ids
    cosines = np.cos(np.deg2rad([1, 12, 12, 27]))
    np.testing.assert_allclose(result.similarities, cosines, atol=1e-6)
    assert result.nodes[0].get_content() == "11 degrees"
    assert result.nodes[0].metadata == {"year": 2001, "source": "b"}
    assert result.nodes[0].ref_doc_id == "d1"
    assert len(store.query(query(0, 100)).ids) == 10


@pytest.mark.parametrize(
    ("metric", "similarities"),
    [
        ("cosine", [1, np.cos(np.pi / 18), np.cos(np.pi / 9)]),
        ("inner_product", [1, np.cos(np.pi / 18), np.cos(np.pi / 9)]),
        ("euclidean", [0, 2 * np.cos(np.pi / 18) - 2, 2 * np.cos(np.pi / 9) - 2]),
    ],
)
def test_greater_similarities_are_nearer_under_each_metric(
    target: str, metric: str, similarities: list[float]
) -> None:
    store = DivgrpcVectorStore(index=f"llama-{metric}", target=target, metric=metric)
    store.add([node(20, "c"), node(0, "a"), node(10, "b")])
    result = store.query(query(0))
    assert result.ids == ["a", "b", "c"]
    np.testing.assert_allclose(result.similarities, similarities, atol=1e-6)
    store.clear()
    store.close()


def test_a_store_without_an_index_or_without_nodes_is_empty(empty: DivgrpcVectorStore) -> None:
    for _ in range(2):
        result = empty.query(query(0, filters=where("year", 3)))
        assert (result.nodes, result.similarities, result.ids) == ([], [], [])
        assert asyncio.run(empty.aquery(query(0, mode="mmr"))).ids == []
        assert empty.get_nodes() == empty.get_nodes(["a"]) == []
        empty.delete("document")
        empty.delete_nodes(["a"])
        empty.delete_nodes(filters=where("year", 3))
        assert empty.add([]) == []
        empty.add([node(0, "a")])  # in the second round the index is there, without nodes
        empty.delete_nodes(["a"])


def mmr(vectors: np.ndarray, question: np.ndarray, k: int, threshold: float) -> list[int]:
    """Return the rows that maximal marginal relevance picks one after another."""
    similarities, nearness = vectors @ vectors.T, vectors @ question
    picks: list[int] = []
    while len(picks) < k:
        overlap = similarities[:, picks].max(1) if picks else np.zeros(len(vectors))
        values = threshold * nearness - (1 - threshold) * overlap
        values[picks] = -np.inf
        picks.append(int(values.argmax()))
    return picks


@pytest.mark.parametrize("threshold", [0, 0.25, 0.5, 0.75, 1, None])
@pytest.mark.parametrize("in_query", [False, True])
@pytest.mark.parametrize("prefetch", [5, None])
def test_mmr_picks_what_its_definition_picks(
    store: DivgrpcVectorStore, threshold: float | None, in_query: bool, prefetch: int | None
) -> None:
    """Each pick is compared with all picks before it, and a threshold of 0 is not the default."""
    question = query(45, 4, "mmr", mmr_threshold=threshold if in_query else None)
    options = {} if in_query else {"mmr_threshold": threshold}
    candidates = store.get_nodes(store.query(query(45, prefetch or 10)).ids)
    vectors = np.array([item.embedding for item in candidates])
    weight = 0.5 if threshold is None else threshold
    places = mmr(vectors, np.array(question.query_embedding), 4, weight)
    options |= {"mmr_prefetch_k": prefetch, "keep_duplicates": True}
    result = store.query(question, **options)
    assert result.ids == [candidates[place].node_id for place in places]
    assert asyncio.run(store.aquery(question, **options)).ids == result.ids
    cosines = vectors[places] @ question.query_embedding
    np.testing.assert_allclose(result.similarities, cosines, atol=1e-6)


def test_mmr_leaves_out_near_copies_and_obeys_a_filter(own_store: DivgrpcVectorStore) -> None:
    own_store.add([node(0.001 * row, f"copy {row}") for row in range(8)])
    plain = own_store.query(query(0, 5))
    diverse = own_store.query(query(0, 5, "mmr"), mmr_threshold=0.9)
    assert sum(name.startswith("copy") for name in plain.ids) >= 4
    assert sum(name.startswith("copy") for name in diverse.ids) <= 1
    question = query(171, 4, "mmr", filters=where("source", "a"))
    result = own_store.query(question, mmr_prefetch_k=4)
    assert [item.metadata["source"] for item in result.nodes] == ["a"] * 4


def test_options_of_a_query_pass_through(store: DivgrpcVectorStore) -> None:
    diverse = store.query(query(0, 3), diversity=1, exclude_ids=["0"])
    assert "0" not in diverse.ids
    assert diverse.ids != store.query(query(0, 3), exclude_ids=["0"]).ids
    with pytest.raises(TypeError, match="fetch"):
        store.query(query(0), fetch=3)
    with pytest.raises(TypeError, match="mmr_threshold"):
        store.query(query(0), mmr_threshold=0.5)


@pytest.mark.parametrize("mode", list(VectorStoreQueryMode))
def test_a_mode_works_or_is_refused(store: DivgrpcVectorStore, mode: str) -> None:
    if mode in ("default", "mmr"):
        assert len(store.query(query(0, mode=mode)).ids) == 3
    else:
        with pytest.raises(ValueError, match=f"mode: '{mode.value}' is not supported"):
            store.query(query(0, mode=mode))


def test_queries_that_make_no_sense_are_refused(store: DivgrpcVectorStore) -> None:
    with pytest.raises(ValueError, match="query_embedding"):
        store.query(VectorStoreQuery(query_str="words"))
    with pytest.raises(ValueError, match="mmr_threshold must be from 0 to 1"):
        store.query(query(0, mode="mmr"), mmr_threshold=1.5)
    with pytest.raises(ValueError, match="must have 2 columns, got 3"):
        store.query(VectorStoreQuery([1.0, 0.0, 0.0]))
    with pytest.raises(ValueError, match="k must be"):
        store.query(query(0, 0))


@pytest.mark.parametrize(
    "original",
    [
        TextNode(
            text="1 text",
            metadata={"year": 2001, "deep": {"list": [1, None, "ä"]}, "ref_doc_id": "own"},
            excluded_embed_metadata_keys=["year"],
            excluded_llm_metadata_keys=["deep"],
            text_template="{content} / {metadata_str}",
            start_char_idx=3,
            end_char_idx=9,
            relationships={
                NodeRelationship.SOURCE: RelatedNodeInfo(node_id="d", metadata={"a": 1}),
                NodeRelationship.NEXT: RelatedNodeInfo(node_id="n"),
            },
        ),
        TextNode(text=""),
        IndexNode(text="1 index", index_id="other"),
        ImageNode(text="1 picture", image="aGVsbG8=", image_mimetype="image/png"),
        Node(
            text_resource=MediaResource(text="1 caption"),
            image_resource=MediaResource(url="http://localhost/a.png", mimetype="image/png"),
        ),
        Node(image_resource=MediaResource(path="a.png")),
    ],
    ids=lambda original: original.class_name(),
)
def test_all_of_a_node_comes_back(empty: DivgrpcVectorStore, original: BaseNode) -> None:
    original.embedding = [0.6, 0.8]
    assert empty.add([original]) == [original.node_id]
    (again,) = empty.get_nodes()
    np.testing.assert_allclose(again.embedding, [0.6, 0.8], rtol=1e-6)
    again.embedding = [0.6, 0.8]
    assert type(again) is type(original)
    assert again.to_dict() == original.to_dict()
    assert again.get_content(MetadataMode.LLM) == original.get_content(MetadataMode.LLM)
    assert again.hash == original.hash
    (result,) = empty.query(query(0)).nodes
    assert result.to_dict() == {**original.to_dict(), "embedding": None}


def test_a_document_comes_back_as_a_text_node(empty: DivgrpcVectorStore) -> None:
    document = Document(text="1 document", doc_id="x", metadata={"a": 1}, embedding=[1.0, 0.0])
    empty.add([document])
    (again,) = empty.get_nodes(["x"])
    assert (again.get_content(), again.metadata, again.node_id) == ("1 document", {"a": 1}, "x")


def test_metadata_of_new_names_are_stored_and_declared_later(
    own_store: DivgrpcVectorStore,
) -> None:
    own_store.add([node(5, "x", page=7, section="intro")])
    assert own_store.get_nodes(["x"])[0].metadata == {"page": 7, "section": "intro"}
    with pytest.raises(ValueError, match="'page', but the index declares ref_doc_id, source, year"):
        own_store.get_nodes(filters=where("page", 7))
    own_store.add_attributes({"page": "integer"})
    own_store.add([node(6, "y", page=8)])
    assert ids(own_store.get_nodes(filters=where("page", 7, ">="))) == "xy"
    again = DivgrpcVectorStore(index="llama-own", target=own_store.target)
    assert ids(again.get_nodes(filters=where("page", 8))) == "y"
    again.close()


def test_documents_of_another_integration_are_nodes(target: str) -> None:
    """Before nodes are written, the index needs the attribute with the ids of their documents."""
    other = DocumentIndex(target, "llama-other", build_options={"metric": "cosine"})
    other.blocking.write([StoredDocument("a", "A text", {"page": 7}, [1.0, 0.0])])
    store = DivgrpcVectorStore(index="llama-other", target=target)
    (result,) = store.query(query(0)).nodes
    assert (result.node_id, result.text, result.metadata) == ("a", "A text", {"page": 7})
    with pytest.raises(ValueError, match="'ref_doc_id', but the index 'llama-other' exists"):
        store.add([node(1, "b", "d")])
    store.add_attributes({"ref_doc_id": "keyword"})
    store.add([node(1, "b", "d")])
    assert ids(store.get_nodes()) == "ab"
    assert [item.text for item in other.blocking.get(["b"])] == ["1 degrees"]
    store.delete("d")
    assert ids(store.get_nodes()) == "a"
    euclidean = DivgrpcVectorStore(index="llama-other", target=target, metric="euclidean")
    with pytest.raises(ValueError, match="metric is 'euclidean', but the index 'llama-other' has"):
        euclidean.query(query(0))
    store.clear()
    for connection in (store, euclidean, other):
        connection.close()


def test_nodes_are_read_by_ids_and_filters(store: DivgrpcVectorStore) -> None:
    assert [item.node_id for item in store.get_nodes(["7", "missing", "2"])] == ["7", "2"]
    assert ids(store.get_nodes(["7", "2"], where("source", "a"))) == "2"
    assert ids(store.get_nodes(filters=where("year", 2007, ">"))) == "89"
    assert ids(store.get_nodes()) == "0123456789"
    assert store.get_nodes([]) == []
    nodes = asyncio.run(store.aget_nodes(["7", "2"]))
    assert [item.node_id for item in nodes] == ["7", "2"]
    assert ids(asyncio.run(store.aget_nodes(["7", "2"], where("source", "a")))) == "2"


def test_nodes_are_deleted_by_ids_filters_and_documents(own_store: DivgrpcVectorStore) -> None:
    own_store.delete("d1")
    assert ids(own_store.get_nodes()) == "0235689"
    asyncio.run(own_store.adelete("d2"))
    assert ids(own_store.get_nodes()) == "0369"
    own_store.delete_nodes(["0", "3", "missing"], where("source", "a"))
    assert ids(own_store.get_nodes()) == "369"
    own_store.delete_nodes([])
    asyncio.run(own_store.adelete_nodes(filters=where("year", 2009)))
    asyncio.run(own_store.adelete_nodes(["3"]))
    assert ids(own_store.get_nodes()) == "6"
    for filters in (None, MetadataFilters(filters=[])):
        with pytest.raises(ValueError, match="clear deletes all nodes"):
            own_store.delete_nodes(filters=filters)
    own_store.clear()
    assert own_store.get_nodes() == []
    own_store.add([TextNode(id_="x", embedding=[1.0, 2.0, 3.0])])  # of other dimensions
    assert ids(own_store.get_nodes()) == "x"
    asyncio.run(own_store.aclear())
    assert own_store.get_nodes() == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (node(5, "x", year="late"), "document 'x': 'year' is of type integer, got 'late'"),
        (node(5, "x", part=object()), "Unable to serialize unknown type"),
        (node(5, "x", text="5" * 70_000), "65536"),
        (TextNode(id_="x", text="5"), "embedding not set"),
        (TextNode(id_="x", text="5", embedding=[1.0, 2.0, 3.0]), "the same number of dimensions"),
        (node(5, "x" * 257), "256"),
    ],
)
def test_nodes_that_cannot_be_stored_are_refused(
    store: DivgrpcVectorStore, wrong: TextNode, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        store.add([node(6, "y"), wrong])
    assert len(store.get_nodes()) == 10


def test_a_store_does_what_the_simple_store_does(empty: DivgrpcVectorStore) -> None:
    """Additions, replacements, deletions and queries in random order, beside SimpleVectorStore."""
    rng, simple = random.Random(0), SimpleVectorStore()
    places: dict[str, float] = {}
    for step in range(150):
        action = rng.choice(["add", "add", "delete", "delete_nodes", "filter", "query"])
        name, document = f"n{rng.randrange(25)}", f"d{rng.randrange(6)}"
        filters = where("year", rng.randrange(5), rng.choice([">", "<=", "!="]))
        if action == "add":
            angle = step + rng.random()
            item = node(angle, name, document, year=rng.choice([*range(5), None]))
            assert empty.add([item]) == simple.add([item])
            places[name] = angle
        elif action == "delete":
            empty.delete(document)
            simple.delete(document)
        elif action == "delete_nodes":
            empty.delete_nodes([name], filters if step % 2 else None)
            simple.delete_nodes([name], filters if step % 2 else None)
        else:
            question = query(rng.uniform(0, 150), 5, filters=filters if step % 2 else None)
            result, expected = empty.query(question), simple.query(question)
            assert result.ids == expected.ids
            np.testing.assert_allclose(result.similarities, expected.similarities, atol=1e-6)
    assert len(empty.get_nodes()) == len(simple.data.embedding_dict) > 5


def test_one_store_in_several_event_loops_and_many_first_additions(
    empty: DivgrpcVectorStore,
) -> None:
    """Each addition builds the index or waits for its build, and no node is lost."""

    async def add_all() -> None:
        await asyncio.gather(*(empty.async_add([node(row, str(row))]) for row in range(8)))
        results = await asyncio.gather(*(empty.aquery(query(row, 1)) for row in range(8)))
        assert [result.ids for result in results] == [[str(row)] for row in range(8)]
        await empty.aclose()

    asyncio.run(add_all())
    asyncio.run(empty.adelete_nodes(["1"]))
    assert ids(asyncio.run(empty.aget_nodes())) == ids(empty.get_nodes()) == "0234567"


def test_a_store_is_saved_and_restored(store: DivgrpcVectorStore) -> None:
    for again in (
        DivgrpcVectorStore.from_dict(store.to_dict()),
        DivgrpcVectorStore.from_json(store.to_json()),
        pickle.loads(pickle.dumps(store)),  # noqa: S301  # of this test
    ):
        assert again.to_dict() == store.to_dict()
        assert ids(again.get_nodes(filters=where("year", 2001))) == "1"
        again.close()
    with pytest.raises(ValueError, match="atributes"):
        DivgrpcVectorStore(atributes={"year": "integer"})
    assert store.client.get_index("llama-angles").rows == 10
