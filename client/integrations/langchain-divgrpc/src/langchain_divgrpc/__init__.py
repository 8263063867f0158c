"""divgrpc for LangChain: a vector store, and a compressor, whose results differ."""

from langchain_divgrpc.compressors import DivgrpcDiversifier
from langchain_divgrpc.vectorstores import DivgrpcVectorStore

__all__ = ["DivgrpcDiversifier", "DivgrpcVectorStore"]
