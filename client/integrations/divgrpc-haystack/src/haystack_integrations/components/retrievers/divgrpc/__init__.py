"""A Haystack retriever of documents near an embedding that may differ from one another."""

from haystack_integrations.components.retrievers.divgrpc.embedding_retriever import (
    DivgrpcEmbeddingRetriever,
)

__all__ = ["DivgrpcEmbeddingRetriever"]
