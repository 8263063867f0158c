"""Haystack's standard tests of document stores: base and extended, and asynchronous."""

from collections.abc import Iterator

import numpy as np
import pytest
from haystack import Document
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.testing import document_store as sync_tests
from haystack.testing import document_store_async as async_tests

from haystack_integrations.document_stores.divgrpc import DivgrpcDocumentStore

ATTRIBUTES = {
    "name": "keyword",
    "page": "keyword",
    "chapter": "keyword",
    "number": "integer",
    "date": "integer",
    "no_embedding": "bool",
    "category": "keyword",
    "status": "keyword",
    "year": "integer",
    "updated": "bool",
    "extra_field": "keyword",
    "featured": "bool",
}


class Base:
    """The fixture, and a comparison that allows for the order and the unit length of embeddings."""

    @pytest.fixture
    def document_store(self, target: str) -> Iterator[DivgrpcDocumentStore]:
        """Return a store without documents, and delete its documents afterwards.

        The first test finds no index, and later ones an index whose documents were deleted.
        """
        store = DivgrpcDocumentStore("standard", target, attributes=ATTRIBUTES, embedding_dim=768)
        yield store
        store.delete_all_documents()
        store.close()

    @staticmethod
    def assert_documents_are_equal(received: list[Document], expected: list[Document]) -> None:
        """Compare everything but the order of documents and the length of embeddings."""
        assert [plain(item) for item in by_id(received)] == [
            plain(item) for item in by_id(expected)
        ]
        for one, other in zip(by_id(received), by_id(expected), strict=True):
            if one.embedding is not None:
                unit = np.array(other.embedding) / np.linalg.norm(other.embedding)
                np.testing.assert_allclose(one.embedding, unit, atol=1e-6)


def by_id(documents: list[Document]) -> list[Document]:
    """Return documents in the order of their ids."""
    return sorted(documents, key=lambda document: document.id)


def plain(document: Document) -> dict[str, object]:
    """Return the fields of a document, with a mark in place of an embedding."""
    return {**document.to_dict(flatten=False), "embedding": document.embedding is not None}


class TestSync(Base, sync_tests.DocumentStoreBaseExtendedTests):
    """All base and extended tests."""

    def test_write_documents(self, document_store: DivgrpcDocumentStore) -> None:
        """Without a policy, ids that exist are refused."""
        document = Document(content="test doc")
        assert document_store.write_documents([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([document], policy=DuplicatePolicy.NONE)


class TestFurtherSync(
    Base,
    sync_tests.CountDocumentsByFilterTest,
    sync_tests.CountUniqueMetadataByFilterTest,
    sync_tests.GetMetadataFieldsInfoTest,
    sync_tests.GetMetadataFieldMinMaxTest,
    sync_tests.GetMetadataFieldUniqueValuesTest,
):
    """The tests of methods that Haystack's interface of stores does not demand."""


ASYNC_TESTS = tuple(
    tests
    for name, tests in vars(async_tests).items()
    if name.endswith("AsyncTest") and isinstance(tests, type)
)


class TestAsync(Base, *ASYNC_TESTS):
    """All asynchronous tests."""

    async def test_write_documents_async(self, document_store: DivgrpcDocumentStore) -> None:
        """Without a policy, ids that exist are refused."""
        document = Document(content="test doc")
        assert await document_store.write_documents_async([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            await document_store.write_documents_async([document])
