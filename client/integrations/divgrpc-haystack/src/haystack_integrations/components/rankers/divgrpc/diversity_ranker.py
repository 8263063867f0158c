"""A Haystack ranker that keeps relevant documents that differ from one another."""

from typing import Any

import numpy as np
from haystack import Document, component

from divgrpc_client import AsyncClient, Client


@component
class DivgrpcDiversityRanker:
    """Picks `top_k` documents of any retriever or ranker, with the call Diversify of a server.

    The documents need embeddings, and need not be in divgrpc. Relevance is the `score` of the
    documents or, where a call has `query_embedding`, the nearness to it.

    top_k: maximum number of documents, at least 1.
    target: the server's host:port.
    options: options of `Client.diversify`, such as `diversity`, `selector` and
        `duplicate_threshold`.
    client_options: options of `Client` and `AsyncClient`, such as `timeout`.
    """

    def __init__(
        self,
        top_k: int = 10,
        target: str = "127.0.0.1:50051",
        options: dict[str, Any] | None = None,
        client_options: dict[str, Any] | None = None,
    ) -> None:
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}")
        self.top_k = top_k
        self.target = target
        self.options = options
        self.client_options = client_options

    @component.output_types(documents=list[Document])
    def run(
        self,
        documents: list[Document],
        query_embedding: list[float] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """Return the documents that are kept, in the order of their selection."""
        if not documents:
            return {"documents": []}
        arguments = self._arguments(documents, query_embedding, top_k)
        with Client(self.target, **(self.client_options or {})) as client:
            places = client.diversify(**arguments).places
        return {"documents": [documents[place] for place in places]}

    @component.output_types(documents=list[Document])
    async def run_async(
        self,
        documents: list[Document],
        query_embedding: list[float] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """Return documents as `run` does."""
        if not documents:
            return {"documents": []}
        arguments = self._arguments(documents, query_embedding, top_k)
        async with AsyncClient(self.target, **(self.client_options or {})) as client:
            places = (await client.diversify(**arguments)).places
        return {"documents": [documents[place] for place in places]}

    def _arguments(
        self,
        documents: list[Document],
        query_embedding: list[float] | None,
        top_k: int | None,
    ) -> dict[str, Any]:
        bare = [item.id for item in documents if item.embedding is None]
        if bare:
            raise ValueError(f"documents need embeddings, but {bare[:3]} have none")
        scores = [item.score for item in documents]
        if query_embedding is None and None in scores:
            raise ValueError("documents need scores, or the call a query_embedding")
        relevance = (
            {"query": query_embedding} if query_embedding is not None else {"scores": scores}
        )
        return {
            "vectors": np.array([item.embedding for item in documents], np.float32),
            "k": min(self.top_k if top_k is None else top_k, len(documents)),
            **relevance,
            **(self.options or {}),
        }
