"""Texts with metadata in an index of a server: what adapters for other libraries stand on.

    from divgrpc_client.documents import DocumentIndex, StoredDocument
    index = DocumentIndex("localhost:50051", "notes", attributes={"year": "integer"})
    index.blocking.write([StoredDocument("a", "A text", {"year": 2026}, vector)])
    hits = index.blocking.search(vector, lambda metadata: metadata["year"] >= 2020)

A document is a point with a text as its id. Its payload is a JSON object with the text and all
metadata. Metadata of the names in `attributes` are attributes of the point too, so that filters
can test them. The index is built at the first write. This package may import the client, and the
parts of the core that the client may import.
"""

from divgrpc_client.documents.connection import DocumentIndex
from divgrpc_client.documents.documents import AsyncDocuments, DocumentHit, Documents
from divgrpc_client.documents.metadata import (
    Metadata,
    MetadataField,
    StoredDocument,
    TypeLike,
    Where,
)

__all__ = [
    "AsyncDocuments",
    "DocumentHit",
    "DocumentIndex",
    "Documents",
    "Metadata",
    "MetadataField",
    "StoredDocument",
    "TypeLike",
    "Where",
]
