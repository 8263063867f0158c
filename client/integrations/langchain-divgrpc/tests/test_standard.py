"""LangChain's standard tests of vector stores."""

from collections.abc import Iterator

import pytest
from langchain_tests.integration_tests import VectorStoreIntegrationTests

from langchain_divgrpc import DivgrpcVectorStore


class TestDivgrpcVectorStore(VectorStoreIntegrationTests):
    """All standard tests, with a new index for each."""

    @pytest.fixture
    def vectorstore(self, target: str) -> Iterator[DivgrpcVectorStore]:
        """Return a store without documents, and delete its index afterwards."""
        store = DivgrpcVectorStore(self.get_embeddings(), "standard", target)
        yield store
        store.delete_index()
        store.close()
