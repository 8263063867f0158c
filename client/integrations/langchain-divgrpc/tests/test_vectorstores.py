"""What the store does beyond the standard tests: filters, scores, diversity and errors."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from angles import Angles
from langchain_core.documents import Document
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from divgrpc_client import Field
from langchain_divgrpc import DivgrpcVectorStore

YEARS = {"year": "integer", "source": "keyword", "tags": ["keyword"], "day": "integer"}


def ten_documents(target: str, index: str) -> Iterator[DivgrpcVectorStore]:
    """Yield a store with documents at angles of 0, 11, 24 ... 171 degrees, no two as far apart."""
    store = DivgrpcVectorStore(Angles(), index, target, attributes=YEARS)
    metadatas = [
        {
            "year": 2000 + row,
            "source": "ab"[row % 2],
            "tags": ["even"] if row % 2 == 0 else ["odd", "rare"],
            "day": f"2026-01-{row + 1:02}",
            "note": {"lines": [row]},
        }
        for row in range(10)
    ]
    texts = [f"{10 * row + row**2} degrees" for row in range(10)]
    store.add_texts(texts, metadatas, ids=list("0123456789"))
    yield store
    store.delete_index()
    store.close()


@pytest.fixture(scope="module")
def store(target: str) -> Iterator[DivgrpcVectorStore]:
    """Return a store that no test writes to."""
    yield from ten_documents(target, "angles")


@pytest.fixture
def own_store(target: str) -> Iterator[DivgrpcVectorStore]:
    """Return a store for one test."""
    yield from ten_documents(target, "own-angles")


def ids(documents: list[Document]) -> str:
    """Return the ids of documents as one text."""
    return "".join(document.id or "?" for document in documents)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (None, "0123456789"),
        ({}, "0123456789"),
        ({"year": 2003}, "3"),
        ({"year": {"$gte": 2003, "$lt": 2006}}, "345"),
        ({"year": {"$ne": 2003}, "source": "b"}, "1579"),
        ({"year": {"$in": [2001, 2002, 1990]}}, "12"),
        ({"year": {"$nin": [2001, 2002]}}, "03456789"),
        ({"year": {"$in": []}}, ""),
        ({"tags": "rare"}, "13579"),
        ({"year": None}, ""),
        ({"year": {"$exists": True}, "source": {"$exists": False}}, ""),
        ({"$or": [{"year": 2001}, {"source": "a", "year": {"$gt": 2006}}]}, "18"),
        ({"$and": [{"source": "a"}, {"year": {"$lte": 2002}}]}, "02"),
        ({"$not": {"source": "a", "year": {"$lt": 2008}}}, "135789"),
        ({"day": {"$gt": "2026-01-08"}}, "89"),
        (Field("year") > 2007, "89"),
        (lambda metadata: metadata["year"] > 2007, "89"),
    ],
)
def test_filters(store: DivgrpcVectorStore, conditions: object, expected: str) -> None:
    documents = store.similarity_search("0", k=10, filter=conditions)
    assert "".join(sorted(ids(documents))) == expected


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"note": 3}, "'note', but the index declares day, source, tags, year"),
        (Field("page") == 3, "'page', but the index declares"),
        ({"year": "2003"}, "'year' is of type integer, got '2003'"),
        ({"year": True}, "'year' is of type integer, got True"),
        ({"source": {"$gt": "a"}}, "cannot order values of 'source'"),
        ({"year": {"$near": 2003}}, r"\$near is not among"),
        ({"year": {}}, "needs an operator"),
        ({"year": {"$in": 2003}}, "needs a list"),
        ({"$or": []}, "needs a list"),
        ({"$or": [2003]}, "expected conditions"),
        ({"$nor": [{"year": 2003}]}, r"\$nor is none of"),
        ("year == 2003", "must be a condition"),
    ],
)
def test_filters_that_cannot_be_applied_are_refused(
    store: DivgrpcVectorStore, conditions: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        store.similarity_search("0", filter=conditions)


def test_a_filter_on_an_empty_store_must_be_valid_too(target: str) -> None:
    empty = DivgrpcVectorStore(Angles(), "empty", target, attributes={"year": "integer"})
    assert empty.similarity_search("0", filter={"year": 3}) == []
    with pytest.raises(ValueError, match="declares year"):
        empty.similarity_search("0", filter={"month": 3})
    empty.close()


def test_metadata_come_back_as_they_were(store: DivgrpcVectorStore) -> None:
    (document,) = store.get_by_ids(["3"])
    assert document.page_content == "39 degrees"
    assert document.metadata == {
        "year": 2003,
        "source": "b",
        "tags": ["odd", "rare"],
        "day": "2026-01-04",
        "note": {"lines": [3]},
    }


@pytest.mark.parametrize(
    ("metric", "scores"),
    [
        ("cosine", [1, np.cos(np.pi / 18), np.cos(np.pi / 9)]),
        ("inner_product", [1, np.cos(np.pi / 18), np.cos(np.pi / 9)]),
        ("euclidean", [0, 2 - 2 * np.cos(np.pi / 18), 2 - 2 * np.cos(np.pi / 9)]),
    ],
)
def test_scores_and_relevance_of_each_metric(target: str, metric: str, scores: list[float]) -> None:
    """Results are nearest first, and relevance falls from the first to the last."""
    store = DivgrpcVectorStore(Angles(), f"scores-{metric}", target, metric=metric)
    store.add_texts(["20", "0", "10"])
    hits = store.similarity_search_with_score("0", k=3)
    assert [document.page_content for document, _ in hits] == ["0", "10", "20"]
    np.testing.assert_allclose([score for _, score in hits], scores, atol=1e-6)
    relevant = store.similarity_search_with_relevance_scores("0", k=3)
    relevances = [relevance for _, relevance in relevant]
    assert 1 >= relevances[0] > relevances[1] > relevances[2] >= 0
    threshold = (relevances[1] + relevances[2]) / 2
    near = store.as_retriever(
        search_type="similarity_score_threshold",
        search_kwargs={"score_threshold": threshold, "k": 3},
    ).invoke("0")
    assert [document.page_content for document in near] == ["0", "10"]
    store.delete_index()
    store.close()


@pytest.mark.parametrize("lambda_mult", [0, 0.25, 0.5, 0.75, 1])
@pytest.mark.parametrize("fetch_k", [5, 10, None])
def test_mmr_picks_what_langchain_picks(
    store: DivgrpcVectorStore, lambda_mult: float, fetch_k: int | None
) -> None:
    """The expected documents are those of LangChain's function, over the same candidates."""
    query = "45"
    candidates = store.similarity_search(query, k=fetch_k or 10)
    vectors = Angles().embed_documents([document.page_content for document in candidates])
    places = maximal_marginal_relevance(
        np.array(Angles().embed_query(query)), vectors, lambda_mult=lambda_mult, k=4
    )
    expected = [candidates[place].id for place in places]
    options = {"k": 4, "lambda_mult": lambda_mult, "fetch_k": fetch_k, "keep_duplicates": True}
    documents = store.max_marginal_relevance_search(query, **options)
    assert [document.id for document in documents] == expected
    retriever = store.as_retriever(search_type="mmr", search_kwargs=options)
    assert ids(retriever.invoke(query)) == ids(documents)
    assert ids(asyncio.run(retriever.ainvoke(query))) == ids(documents)


def test_mmr_obeys_a_filter_and_fills_the_page(store: DivgrpcVectorStore) -> None:
    documents = store.max_marginal_relevance_search("171", k=4, fetch_k=4, filter={"source": "a"})
    assert {document.metadata["source"] for document in documents} == {"a"}
    assert len(documents) == 4


def test_near_copies_are_left_out_by_mmr(own_store: DivgrpcVectorStore) -> None:
    own_store.add_texts([f"{0.001 * row} copy" for row in range(8)])
    plain = own_store.similarity_search("0", k=5)
    diverse = own_store.max_marginal_relevance_search("0", k=5, lambda_mult=0.9)
    assert sum(document.page_content.endswith("copy") for document in plain) >= 4
    assert sum(document.page_content.endswith("copy") for document in diverse) <= 1


def test_options_of_a_query_pass_through(store: DivgrpcVectorStore) -> None:
    hits = store.similarity_search_with_score("0", k=3, diversity=1, exclude_ids=["0"])
    assert "0" not in [document.id for document, _ in hits]
    with pytest.raises(TypeError, match="fetch"):
        store.similarity_search("0", fetch=3)


@pytest.mark.usefixtures("store")
def test_a_store_of_the_same_name_finds_the_documents(target: str) -> None:
    again = DivgrpcVectorStore(Angles(), "angles", target)
    assert ids(again.similarity_search("0", k=2, filter={"year": {"$gt": 2003}})) == "45"
    again.close()
    other = DivgrpcVectorStore(Angles(), "angles", target, attributes={"year": "float"})
    with pytest.raises(ValueError, match="'year', but the index 'angles' exists"):
        other.add_texts(["5"])
    other.close()


def test_attributes_can_be_added(own_store: DivgrpcVectorStore) -> None:
    own_store.add_texts(["5 degrees"], [{"page": 7}], ids=["x"])
    own_store.add_attributes({"page": "integer"})
    assert ids(own_store.similarity_search("0", filter={"page": 7})) == "x"
    own_store.add_texts(["6 degrees"], [{"page": 8}], ids=["y"])
    assert ids(own_store.similarity_search("0", filter={"page": {"$gt": 7}})) == "y"


def test_deletion_by_filter_and_of_everything(own_store: DivgrpcVectorStore) -> None:
    own_store.delete(filter={"source": "a"})
    assert "".join(sorted(ids(own_store.similarity_search("0", k=10)))) == "13579"
    own_store.delete(list("13579"))
    assert own_store.similarity_search("0") == []
    own_store.add_texts(["5 degrees"], ids=["x"])
    assert ids(own_store.similarity_search("0")) == "x"
    with pytest.raises(ValueError, match="either ids or a filter"):
        own_store.delete()


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"year": "late"}, "document 'x': 'year' is of type integer, got 'late'"),
        ({"tags": ["a", 3]}, "document 'x': 'tags' is of type keyword, got 3"),
        ({"when": {1, 2}}, "document 'x' must be values that JSON can express"),
        ({"part": float("nan")}, "document 'x' must be values that JSON can express"),
    ],
)
def test_metadata_that_cannot_be_stored_are_refused(
    store: DivgrpcVectorStore, metadata: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        store.add_texts(["5 degrees"], [metadata], ids=["x"])
    assert store.get_by_ids(["x"]) == []


def test_texts_that_are_too_long_or_miscounted_are_refused(store: DivgrpcVectorStore) -> None:
    with pytest.raises(ValueError, match="65536"):
        store.add_texts(["5 " + "x" * 70_000])
    with pytest.raises(ValueError, match="2 texts, but 1 ids"):
        store.add_texts(["5", "6"], ids=["x"])
    with pytest.raises(ValueError, match="1 texts, but 2 metadatas"):
        store.add_texts(["5"], [{}, {}])
    assert store.add_texts([]) == []


def test_many_first_additions_at_a_time(target: str) -> None:
    """Each builds the index or waits for its build, and no document is lost."""
    store = DivgrpcVectorStore(Angles(), "crowd", target)

    async def add_all() -> None:
        await asyncio.gather(*(store.aadd_texts([f"{row}"], ids=[f"{row}"]) for row in range(8)))
        documents = await store.asimilarity_search("0", k=20)
        assert sorted(document.id or "" for document in documents) == list("01234567")
        await store.aclose()

    asyncio.run(add_all())
    assert asyncio.run(store.aget_by_ids(["7", "missing", "2"])) == store.get_by_ids(["7", "2"])
    store.delete_index()
    store.close()


def test_a_store_from_documents(target: str) -> None:
    documents = [Document("5", metadata={"year": 1}, id="x"), Document("9", metadata={"year": 2})]
    options = {"index": "from-documents", "target": target, "attributes": {"year": "integer"}}
    store = DivgrpcVectorStore.from_documents(documents, Angles(), **options)
    assert store.similarity_search("0", k=1, filter={"year": 1}) == documents[:1]
    retriever = store.as_retriever(search_kwargs={"k": 1, "filter": {"year": 2}})
    assert retriever.invoke("0")[0].page_content == "9"
    store.delete_index()
    store.close()
