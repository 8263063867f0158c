"""A Haystack document store over an index of a divgrpc server."""

from collections.abc import Mapping
from typing import Any

from haystack import Document, default_from_dict, default_to_dict
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy

from divgrpc.errors import ConditionFailedError
from divgrpc_client.documents import DocumentIndex, StoredDocument, TypeLike
from haystack_integrations.document_stores.divgrpc import conversion
from haystack_integrations.document_stores.divgrpc.filters import where


class DivgrpcDocumentStore:
    """Documents in an index of a divgrpc server.

        store = DivgrpcDocumentStore("notes", attributes={"year": "integer"})
        store.write_documents([Document("A text", meta={"year": 2026}, embedding=[1.0, 0.0])])

    The index is built from the first documents that are written. Until then, reads return nothing.

    index: name of the index, 1 to 63 characters from a-z, 0-9, _ and -.
    target: the server's host:port.
    attributes: types of the metadata that filters may test: "keyword", "integer", "float" or
        "bool", in a list if a document may have several values, as in {"tags": ["keyword"]}. Other
        metadata are stored and returned, but a filter that names them raises `FilterError`.
    embedding_dim: number of dimensions, needed only if the first documents have no embeddings.
    metric: "cosine", "euclidean" or "inner_product", of a new index.
    build_options: further options of `Client.build`, for a new index.
    client_options: options of `Client` and `AsyncClient`, such as `timeout`.
    """

    def __init__(
        self,
        index: str = "haystack",
        target: str = "127.0.0.1:50051",
        *,
        attributes: Mapping[str, TypeLike] | None = None,
        embedding_dim: int | None = None,
        metric: str = "cosine",
        build_options: dict[str, Any] | None = None,
        client_options: dict[str, Any] | None = None,
    ) -> None:
        self._arguments: dict[str, Any] = {
            "index": index,
            "target": target,
            "attributes": attributes,
            "embedding_dim": embedding_dim,
            "metric": metric,
            "build_options": build_options,
            "client_options": client_options,
        }
        self._index = DocumentIndex(
            target,
            index,
            attributes=attributes,
            dims=embedding_dim,
            build_options={"metric": metric, "vectors_optional": True, **(build_options or {})},
            client_options=client_options,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary from which `from_dict` makes the same store."""
        return default_to_dict(self, **self._arguments)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "DivgrpcDocumentStore":
        """Return the store of a dictionary."""
        store: DivgrpcDocumentStore = default_from_dict(cls, data)
        return store

    def count_documents(self) -> int:
        """Return the number of documents."""
        return self._index.blocking.count()

    async def count_documents_async(self) -> int:
        """Return the number of documents."""
        return await self._index.asynchronous.count()

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Return the documents that pass a filter, with embeddings, in a fixed order."""
        found_documents = self._index.blocking.find(where(filters), with_vectors=True)
        return [conversion.restored(item) for item in found_documents]

    async def filter_documents_async(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Return documents as `filter_documents` does."""
        found_documents = await self._index.asynchronous.find(where(filters), with_vectors=True)
        return [conversion.restored(item) for item in found_documents]

    def write_documents(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Write documents, and return how many were written.

        policy: what to do with ids that exist. NONE and FAIL raise `DuplicateDocumentError` and
            write nothing; SKIP leaves the old document; OVERWRITE replaces it.

        Content and metadata of a document have at most 65,536 bytes as JSON.
        """
        rows = _checked(documents, policy)
        if policy is DuplicatePolicy.SKIP:
            old = {item.id for item in self._index.blocking.get(list(rows))}
            rows = {name: row for name, row in rows.items() if name not in old}
        try:
            return self._index.blocking.write(rows.values(), _MODES[policy])
        except ConditionFailedError as error:
            raise DuplicateDocumentError(str(error)) from error

    async def write_documents_async(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Write documents as `write_documents` does."""
        rows = _checked(documents, policy)
        if policy is DuplicatePolicy.SKIP:
            old = {item.id for item in await self._index.asynchronous.get(list(rows))}
            rows = {name: row for name, row in rows.items() if name not in old}
        try:
            return await self._index.asynchronous.write(rows.values(), _MODES[policy])
        except ConditionFailedError as error:
            raise DuplicateDocumentError(str(error)) from error

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete documents by their ids; ids that no document has are ignored."""
        self._index.blocking.delete(document_ids)

    async def delete_documents_async(self, document_ids: list[str]) -> None:
        """Delete documents as `delete_documents` does."""
        await self._index.asynchronous.delete(document_ids)

    def delete_all_documents(self, *, recreate_index: bool = False) -> None:
        """Delete all documents.

        recreate_index: also delete the index, so that the next write builds another.
        """
        if recreate_index:
            self._index.blocking.delete_index()
        else:
            self._index.blocking.delete_where(None)

    async def delete_all_documents_async(self, *, recreate_index: bool = False) -> None:
        """Delete all documents as `delete_all_documents` does."""
        if recreate_index:
            await self._index.asynchronous.delete_index()
        else:
            await self._index.asynchronous.delete_where(None)

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that pass a filter, and return their number."""
        return self._index.blocking.delete_where(where(filters))

    async def delete_by_filter_async(self, filters: dict[str, Any]) -> int:
        """Delete documents as `delete_by_filter` does."""
        return await self._index.asynchronous.delete_where(where(filters))

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Add metadata to the documents that pass a filter, and return their number."""
        documents = self._index.blocking.find(where(filters))
        return self._index.blocking.update_metadata(conversion.updated(documents, meta))

    async def update_by_filter_async(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Add metadata as `update_by_filter` does."""
        documents = await self._index.asynchronous.find(where(filters))
        return await self._index.asynchronous.update_metadata(conversion.updated(documents, meta))

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """Return the number of documents that pass a filter."""
        return self._index.blocking.count(where(filters))

    async def count_documents_by_filter_async(self, filters: dict[str, Any]) -> int:
        """Return the number of documents that pass a filter."""
        return await self._index.asynchronous.count(where(filters))

    def count_unique_metadata_by_filter(
        self, filters: dict[str, Any], metadata_fields: list[str]
    ) -> dict[str, int]:
        """Return how many values of each field the documents have that pass a filter."""
        documents = self._index.blocking.find(where(filters))
        return conversion.count_distinct(documents, metadata_fields)

    async def count_unique_metadata_by_filter_async(
        self, filters: dict[str, Any], metadata_fields: list[str]
    ) -> dict[str, int]:
        """Return how many values of each field the documents have that pass a filter."""
        documents = await self._index.asynchronous.find(where(filters))
        return conversion.count_distinct(documents, metadata_fields)

    def get_metadata_fields_info(self) -> dict[str, dict[str, str]]:
        """Return the type of each name in the metadata; reads all documents."""
        return conversion.fields_info(self._index.blocking.find())

    async def get_metadata_fields_info_async(self) -> dict[str, dict[str, str]]:
        """Return the type of each name in the metadata; reads all documents."""
        return conversion.fields_info(await self._index.asynchronous.find())

    def get_metadata_field_min_max(self, metadata_field: str) -> dict[str, Any]:
        """Return the least and the greatest value of a field; reads all documents."""
        documents = self._index.blocking.find()
        return conversion.min_max(conversion.values_of(documents, metadata_field))

    async def get_metadata_field_min_max_async(self, metadata_field: str) -> dict[str, Any]:
        """Return the least and the greatest value of a field; reads all documents."""
        documents = await self._index.asynchronous.find()
        return conversion.min_max(conversion.values_of(documents, metadata_field))

    def get_metadata_field_unique_values(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int = 10,
        filters: dict[str, Any] | None = None,
    ) -> tuple[list[Any], int]:
        """Return a page of the values of a field that contain a term, and the number of all.

        Reads all documents that pass `filters`.
        """
        documents = self._index.blocking.find(where(filters))
        values = conversion.values_of(documents, metadata_field)
        return conversion.page(values, search_term, from_, size)

    async def get_metadata_field_unique_values_async(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int = 10,
        filters: dict[str, Any] | None = None,
    ) -> tuple[list[Any], int]:
        """Return values as `get_metadata_field_unique_values` does."""
        documents = await self._index.asynchronous.find(where(filters))
        values = conversion.values_of(documents, metadata_field)
        return conversion.page(values, search_term, from_, size)

    def embedding_retrieval(
        self,
        query_embedding: list[float],
        *,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        options: Mapping[str, Any] | None = None,
    ) -> list[Document]:
        """Return up to `top_k` documents near an embedding, with scores, and without embeddings.

        options: options of `Client.query`, such as `diversity`, which is 0 by default.

        A score is the cosine or the inner product; under `euclidean` it is the negative squared
        distance, so that greater scores are better under each metric.
        """
        if top_k == 0:
            return []
        query = {"diversity": 0, "k": top_k, **(options or {})}
        hits = self._index.blocking.search(query_embedding, where(filters), **query)
        return [conversion.restored(hit.document, self._sign * hit.score) for hit in hits]

    async def embedding_retrieval_async(
        self,
        query_embedding: list[float],
        *,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        options: Mapping[str, Any] | None = None,
    ) -> list[Document]:
        """Return documents as `embedding_retrieval` does."""
        if top_k == 0:
            return []
        query = {"diversity": 0, "k": top_k, **(options or {})}
        hits = await self._index.asynchronous.search(query_embedding, where(filters), **query)
        return [conversion.restored(hit.document, self._sign * hit.score) for hit in hits]

    def close(self) -> None:
        """Close the connection to the server."""
        self._index.close()

    async def close_async(self) -> None:
        """Close all connections to the server, also for the running event loop."""
        await self._index.aclose()

    @property
    def _sign(self) -> int:
        return -1 if self._arguments["metric"] == "euclidean" else 1


_MODES: Mapping[DuplicatePolicy, Any] = {
    DuplicatePolicy.NONE: "insert_only",
    DuplicatePolicy.FAIL: "insert_only",
    DuplicatePolicy.SKIP: "upsert",
    DuplicatePolicy.OVERWRITE: "upsert",
}


def _checked(documents: list[Document], policy: DuplicatePolicy) -> dict[str, StoredDocument]:
    """Return the documents to write by their ids; raises `ValueError` if they are no documents."""
    if not isinstance(documents, list) or not all(isinstance(item, Document) for item in documents):
        raise ValueError("documents must be a list of haystack.Document")
    rows: dict[str, StoredDocument] = {}
    for document in documents:
        if document.id in rows and policy in (DuplicatePolicy.NONE, DuplicatePolicy.FAIL):
            raise DuplicateDocumentError(f"the id {document.id!r:.80} is there twice")
        if document.id not in rows or policy is DuplicatePolicy.OVERWRITE:
            rows[document.id] = conversion.stored(document)
    return rows
