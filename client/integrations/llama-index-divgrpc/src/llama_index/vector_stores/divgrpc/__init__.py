"""A LlamaIndex vector store over an index of a divgrpc server."""

from llama_index.vector_stores.divgrpc.vector_store import DivgrpcVectorStore

__all__ = ["DivgrpcVectorStore"]
