"""Documents in an index that the first write builds: the part that integrations share."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from divgrpc.errors import ConditionFailedError, InvalidArgumentError
from divgrpc_client import Client, Field
from divgrpc_client.documents import Documents, Metadata, StoredDocument, Where
from divgrpc_client.documents.connection import DocumentIndex
from divgrpc_client.documents.documents import AsyncDocuments
from divgrpc_client.documents.metadata import declare
from support.processes.running_server import RunningServer

TYPES: dict[str, Any] = {
    "year": "integer",
    "price": "float",
    "brand": "keyword",
    "tags": ["keyword"],
    "sold": "bool",
}
VECTORS = np.random.default_rng(0).standard_normal((10, 4))


def document(row: int, **metadata: object) -> StoredDocument:
    return StoredDocument(f"d{row}", f"text {row}", {"row": row, **metadata}, VECTORS[row])


def new_index(server: RunningServer, name: str) -> Iterator[Documents]:
    """Yield the documents of an index that does not exist yet."""
    index = DocumentIndex(
        server.target,
        name,
        attributes=TYPES,
        dims=4,
        build_options={"vectors_optional": True},
        client_options={"timeout": 30},
    )
    yield index.blocking
    index.blocking.delete_index()
    index.close()


@pytest.fixture
def documents(server: RunningServer) -> Iterator[Documents]:
    """Return documents for one test."""
    yield from new_index(server, "documents")


@pytest.fixture(scope="module")
def five_documents(server: RunningServer) -> Iterator[Documents]:
    """Return five documents, for tests that do not write to them."""
    for stored in new_index(server, "five-documents"):
        stored.write(
            document(
                row,
                year=2000 + row,
                price=row,
                brand="ab"[row % 2],
                sold=row % 2 == 0,
                tags=["even", "number"] if row % 2 == 0 else "odd",
            )
            for row in range(1, 5)
        )
        stored.write([document(5)])
        yield stored


def names(results: list[StoredDocument]) -> list[str]:
    return sorted(result.id for result in results)


def test_an_index_that_does_not_exist_is_an_empty_one(documents: Documents) -> None:
    assert documents.info() is None
    assert documents.search(VECTORS[0]) == []
    assert documents.find(Field("year") > 3) == documents.get(["d1"]) == []
    assert documents.count() == documents.delete(["d1"]) == documents.delete_where(None) == 0
    assert documents.write([]) == 0
    assert documents.info() is None


def test_documents_come_back_as_they_were(documents: Documents) -> None:
    metadata = {"year": 2026, "tags": ["a", "b"], "more": {"deep": [1, None]}}
    extra = StoredDocument("e", None, metadata, VECTORS[0], {"kind": "note"})
    assert documents.write([extra, document(1)]) == 2
    (stored,) = documents.get(["e"], with_vectors=True)
    assert (stored.text, stored.metadata, stored.extra) == (None, metadata, {"kind": "note"})
    unit = VECTORS[0] / np.linalg.norm(VECTORS[0])
    np.testing.assert_allclose(np.asarray(stored.vector), unit, rtol=1e-6)
    (hit,) = documents.search(VECTORS[0], k=1, diversity=0)
    assert hit.document.id == "e"
    assert hit.score == pytest.approx(1)


def test_documents_larger_than_one_answer_are_read_by_their_ids(documents: Documents) -> None:
    rows = [StoredDocument(f"d{row}", "x" * 60_000, {}, VECTORS[row % 10]) for row in range(150)]
    for part in (rows[:60], rows[60:120], rows[120:]):
        documents.write(part)
    ids = [f"d{row}" for row in range(149, -1, -1)]
    assert [item.id for item in documents.get([*ids, "missing"], with_vectors=True)] == ids


def test_the_last_of_equal_ids_is_written(documents: Documents) -> None:
    assert documents.write([document(1), document(2), StoredDocument("d1", "new", {}, VECTORS[3])])
    assert documents.count() == 2
    assert documents.get(["d1"])[0].text == "new"
    with pytest.raises(ConditionFailedError):
        documents.write([document(3), document(2)], "insert_only")
    assert documents.count() == 2


@pytest.mark.parametrize("first_has_vector", [False, True])
def test_documents_without_vectors(documents: Documents, first_has_vector: bool) -> None:
    """Even if no document has one yet, and no other point remains in the index."""
    bare = StoredDocument("bare", "text", {"year": 1})
    documents.write([bare, document(2)] if first_has_vector else [bare])
    documents.write([document(1)])
    expected = ["bare", "d1", "d2"] if first_has_vector else ["bare", "d1"]
    assert names(documents.find()) == expected
    assert [hit.document.id for hit in documents.search(VECTORS[1], diversity=0)] == [
        name for name in ("d1", "d2") if name in expected
    ]
    assert documents.count(Field("year") == 1) == 1


def test_first_documents_without_vectors_need_dims(server: RunningServer) -> None:
    index = DocumentIndex(server.target, "no-dims")
    with pytest.raises(InvalidArgumentError, match="vectors must be in the first documents"):
        index.blocking.write([StoredDocument("bare", "text")])
    assert index.blocking.info() is None
    index.close()


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (lambda metadata: metadata["year"] == 2003, [3]),
        (lambda metadata: metadata["year"] != None, [1, 2, 3, 4]),  # noqa: E711  # a condition
        (lambda metadata: metadata["year"] == None, [5]),  # noqa: E711  # a condition
        (lambda metadata: metadata["year"] >= "2003-01-01", []),
        (lambda metadata: metadata["year"].is_in([2001, None]), [1, 5]),
        (lambda metadata: metadata["price"] < 3, [1, 2]),
        (lambda metadata: metadata["brand"].exists() & (metadata["sold"] == True), [2, 4]),  # noqa: E712  # a condition
        (lambda metadata: metadata["tags"] == "even", [2, 4]),
        (Field("price") <= 3, [1, 2, 3]),
        (lambda _: None, [1, 2, 3, 4, 5]),
    ],
)
def test_filters(five_documents: Documents, where: Where, expected: list[int]) -> None:
    ids = [f"d{row}" for row in expected]
    assert names(five_documents.find(where)) == ids
    assert five_documents.count(where) == len(ids)
    hits = five_documents.search(VECTORS[0], where, k=10, diversity=0)
    assert sorted(hit.document.id for hit in hits) == ids


def test_documents_are_deleted_by_a_filter(documents: Documents) -> None:
    documents.write([document(row, year=row) for row in range(4)])
    assert documents.delete_where(Field("year") < 2) == 2
    assert names(documents.find()) == ["d2", "d3"]
    assert documents.delete_where(None) == 2
    assert documents.search(VECTORS[0]) == []
    documents.write([document(7)])
    assert names(documents.find()) == ["d7"]


def test_times_are_integers() -> None:
    metadata = Metadata(declare({"day": "integer"}))
    days = ["1970-01-02", "1970-01-02T00:00:00+00:00", "1970-01-02T01:00+01:00", 86_400_000_000]
    rows = [StoredDocument("a", None, {"day": day}) for day in days]
    assert metadata.columns(rows) == {"day": [86_400_000_000] * 4}
    assert (metadata["day"] > "1970-01-02") == (Field("day") > 86_400_000_000)
    for text in ("1970", "1970-13-01", "late"):
        with pytest.raises(InvalidArgumentError, match="'day' is of type integer"):
            metadata["day"] > text  # noqa: B015  # raises


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("year", value) for value in (2003.5, "x", True, [2003])),
        *(("price", value) for value in ("3", False)),
        *(("brand", value) for value in (3, ["a"])),
        *(("tags", value) for value in (3, ["a", 3], [["a"]])),
        *(("sold", value) for value in (1, "yes")),
    ],
)
def test_values_of_another_type_are_refused(name: str, value: object) -> None:
    metadata = Metadata(declare(TYPES))
    with pytest.raises(InvalidArgumentError, match=f"document 'd1': '{name}' is of type"):
        metadata.columns([document(1, **{name: value})])


@pytest.mark.parametrize(
    "types", [{"a": "text"}, {"a": []}, {"a": ["float", "bool"]}, {"a-b": "bool"}]
)
def test_types_that_do_not_exist_are_refused(types: Any) -> None:  # noqa: ANN401  # wrong types
    with pytest.raises(InvalidArgumentError, match="attributes must have"):
        declare(types)


def test_update_of_metadata_keeps_vectors(documents: Documents) -> None:
    documents.write([document(1, year=2001), document(2, year=2002)])
    (old,) = documents.find(Field("year") == 2001)
    documents.update_metadata([StoredDocument(old.id, old.text, {"year": 1999})])
    assert names(documents.find(Field("year") < 2000)) == ["d1"]
    assert documents.search(VECTORS[1], k=1, diversity=0)[0].document.metadata == {"year": 1999}


def test_attributes_that_were_added_elsewhere_are_known(
    documents: Documents, server: RunningServer
) -> None:
    documents.write([document(1, page=7), document(2, page=8)])
    with pytest.raises(InvalidArgumentError, match="'page', but the index declares"):
        documents.find(Field("page") == 7)
    other = DocumentIndex(server.target, "documents")
    other.blocking.add_attributes({"page": "integer"})
    other.close()
    assert names(documents.find(Field("page") == 7)) == ["d1"]
    documents.write([document(3, page=7)])
    assert names(documents.find(Field("page") == 7)) == ["d1", "d3"]


def test_vectors_of_different_lengths_are_refused(documents: Documents) -> None:
    rows = [document(1), StoredDocument("x", None, {}, [1.0, 2.0])]
    with pytest.raises(InvalidArgumentError, match="number of dimensions, got 2 and 4"):
        documents.write(rows)
    assert documents.find() == []


def test_an_index_of_another_metric_is_refused(server: RunningServer) -> None:
    """Scores of another metric would be taken for those of the metric that was named."""
    options: list[dict[str, Any]] = [{"metric": "euclidean"}, {"metric": "cosine"}, {}]
    euclidean, cosine, unnamed = (
        DocumentIndex(server.target, "metrics", build_options=option) for option in options
    )
    assert cosine.blocking.search(VECTORS[1]) == []
    euclidean.blocking.write([document(1)])
    assert len(euclidean.blocking.search(VECTORS[1])) == len(unnamed.blocking.search(VECTORS[1]))
    message = "metric is 'cosine', but the index 'metrics' has 'euclidean'"
    with pytest.raises(InvalidArgumentError, match=message):
        cosine.blocking.search(VECTORS[1])
    with pytest.raises(InvalidArgumentError, match=message):
        cosine.blocking.write([document(2)])
    euclidean.blocking.delete_index()
    cosine.blocking.write([document(2)])
    assert cosine.blocking.search(VECTORS[2])[0].document.id == "d2"
    cosine.blocking.delete_index()
    for index in (euclidean, cosine, unnamed):
        index.close()


def test_other_points_are_no_documents(client: Client, server: RunningServer) -> None:
    client.build("no-documents", VECTORS, ids=[f"d{row}" for row in range(10)], replace=True)
    index = DocumentIndex(server.target, "no-documents")
    with pytest.raises(InvalidArgumentError, match="'d3' is no document"):
        index.blocking.get(["d3"])
    index.close()
    client.delete_index("no-documents")


def test_an_index_that_has_grown_is_retrained(
    documents: Documents, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by another process, which finds an index that searches exactly."""
    monkeypatch.setattr("divgrpc_client.documents.documents._RETRAIN_ROWS", 6)
    generations = []
    for rows in (range(1), range(1, 5), range(5, 7), range(7, 10)):
        documents.write([document(row) for row in rows])
        generations.append(client.get_index("documents").generation)
    assert generations[0] == generations[1] < generations[2] == generations[3]
    assert documents.count() == 10


def test_event_loops_have_clients_of_their_own(server: RunningServer) -> None:
    index = DocumentIndex(server.target, "loops", client_options={"timeout": 30})

    async def write_and_count(row: int) -> int:
        await index.asynchronous.write([document(row)])
        assert isinstance(index.asynchronous, AsyncDocuments)
        return await index.asynchronous.count()

    assert [asyncio.run(write_and_count(row)) for row in range(3)] == [1, 2, 3]
    assert names(index.blocking.find()) == ["d0", "d1", "d2"]

    async def end() -> None:
        await index.asynchronous.delete_index()
        await index.aclose()

    asyncio.run(end())


def test_writers_that_build_at_the_same_time_lose_nothing(server: RunningServer) -> None:
    index = DocumentIndex(server.target, "writers", client_options={"timeout": 30})

    async def write_all() -> int:
        writes = (index.asynchronous.write([document(row)]) for row in range(6))
        await asyncio.gather(*writes)
        count = await index.asynchronous.count()
        await index.asynchronous.delete_index()
        await index.aclose()
        return count

    assert asyncio.run(write_all()) == 6
