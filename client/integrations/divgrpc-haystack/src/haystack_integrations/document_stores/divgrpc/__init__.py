"""A Haystack document store over an index of a divgrpc server."""

from haystack_integrations.document_stores.divgrpc.document_store import DivgrpcDocumentStore

__all__ = ["DivgrpcDocumentStore"]
