"""A Haystack retriever of documents near an embedding that may differ from one another."""

from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.types import FilterPolicy, apply_filter_policy

from haystack_integrations.document_stores.divgrpc import DivgrpcDocumentStore


@component
class DivgrpcEmbeddingRetriever:
    """Retrieves documents of a `DivgrpcDocumentStore`.

    document_store: where to search.
    filters: conditions that documents must pass.
    top_k: maximum number of documents, at least 1.
    options: options of a query, such as {"diversity": 0.15} or {"selector": "mmr"}. The default
        diversity is 0, so that the nearest documents are returned.
    filter_policy: whether filters of a call replace those of the retriever or are added to them.
    """

    def __init__(
        self,
        document_store: DivgrpcDocumentStore,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        options: dict[str, Any] | None = None,
        filter_policy: str | FilterPolicy = FilterPolicy.REPLACE,
    ) -> None:
        if not isinstance(document_store, DivgrpcDocumentStore):
            raise TypeError("document_store must be a DivgrpcDocumentStore")
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}")
        self.document_store = document_store
        self.filters = filters
        self.top_k = top_k
        self.options = options
        self.filter_policy = (
            FilterPolicy.from_str(filter_policy)
            if isinstance(filter_policy, str)
            else filter_policy
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary from which `from_dict` makes the same retriever."""
        return default_to_dict(
            self,
            document_store=self.document_store.to_dict(),
            filters=self.filters,
            top_k=self.top_k,
            options=self.options,
            filter_policy=self.filter_policy.value,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "DivgrpcEmbeddingRetriever":
        """Return the retriever of a dictionary."""
        arguments = data["init_parameters"]
        if isinstance(arguments["document_store"], dict):
            arguments["document_store"] = DivgrpcDocumentStore.from_dict(
                arguments["document_store"]
            )
        retriever: DivgrpcEmbeddingRetriever = default_from_dict(cls, data)
        return retriever

    @component.output_types(documents=list[Document])
    def run(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> dict[str, list[Document]]:
        """Return documents near an embedding, with scores; greater scores are better."""
        arguments = self._merged(filters, top_k, options)
        return {"documents": self.document_store.embedding_retrieval(query_embedding, **arguments)}

    @component.output_types(documents=list[Document])
    async def run_async(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> dict[str, list[Document]]:
        """Return documents as `run` does."""
        arguments = self._merged(filters, top_k, options)
        documents = await self.document_store.embedding_retrieval_async(
            query_embedding, **arguments
        )
        return {"documents": documents}

    def _merged(
        self,
        filters: dict[str, Any] | None,
        top_k: int | None,
        options: dict[str, Any] | None,
    ) -> dict[str, Any]:
        return {
            "filters": apply_filter_policy(self.filter_policy, self.filters, filters),
            "top_k": self.top_k if top_k is None else top_k,
            "options": {**(self.options or {}), **(options or {})},
        }
