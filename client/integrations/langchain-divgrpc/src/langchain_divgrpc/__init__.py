"""divgrpc for LangChain: a vector store whose results differ from one another."""

from langchain_divgrpc.vectorstores import DivgrpcVectorStore

__all__ = ["DivgrpcVectorStore"]
