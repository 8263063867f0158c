"""A LangChain document compressor that keeps relevant documents that differ from one another."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from pydantic import ConfigDict, Field

from divgrpc_client import AsyncClient, Client


class DivgrpcDiversifier(BaseDocumentCompressor):
    """Picks `k` of the documents of any retriever, with the call Diversify of a divgrpc server.

        diversifier = DivgrpcDiversifier(embeddings=embeddings, k=4)
        diversifier.compress_documents(retriever.invoke(question), question)

    The documents need not be in divgrpc: their texts are embedded, and the vectors are sent.

    embeddings: the model that turns texts into vectors.
    k: maximum number of documents that are kept.
    target: the server's host:port.
    score_key: name of the metadata with the relevance of a document, greater for more relevant
        ones, such as scores of a reranker. Default: relevance is the nearness to the question.
    options: options of `Client.diversify`, such as `diversity`, `selector` and
        `duplicate_threshold`.
    client_options: options of `Client`, such as `timeout` and `credentials`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    embeddings: Embeddings
    k: int = 4
    target: str = "127.0.0.1:50051"
    score_key: str | None = None
    options: Mapping[str, Any] = Field(default_factory=dict)
    client_options: Mapping[str, Any] = Field(default_factory=dict)

    @cached_property
    def _client(self) -> Client:
        return Client(self.target, **self.client_options)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Return the documents that are kept, in the order of their selection."""
        del callbacks
        if not documents:
            return []
        vectors = self.embeddings.embed_documents([item.page_content for item in documents])
        question = None if self.score_key else self.embeddings.embed_query(query)
        result = self._client.diversify(vectors, **self._arguments(documents, question))
        return [documents[place] for place in result.places]

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Return documents as `compress_documents` does."""
        del callbacks
        if not documents:
            return []
        texts = [item.page_content for item in documents]
        vectors = await self.embeddings.aembed_documents(texts)
        question = None if self.score_key else await self.embeddings.aembed_query(query)
        async with AsyncClient(self.target, **self.client_options) as client:
            result = await client.diversify(vectors, **self._arguments(documents, question))
        return [documents[place] for place in result.places]

    def _arguments(
        self, documents: Sequence[Document], question: list[float] | None
    ) -> dict[str, Any]:
        arguments: dict[str, Any] = {"k": min(self.k, len(documents)), **self.options}
        if self.score_key is None:
            return {"query": question, **arguments}
        missing = [item.id for item in documents if self.score_key not in item.metadata]
        if missing:
            raise ValueError(f"score_key: {self.score_key!r} is not in the metadata of {missing}")
        return {"scores": [item.metadata[self.score_key] for item in documents], **arguments}
