"""A LlamaIndex vector store over an index of a divgrpc server."""

from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from pydantic import ConfigDict, Field, PrivateAttr

from divgrpc_client import Client
from divgrpc_client.documents import DocumentHit, DocumentIndex, TypeLike, Where
from llama_index.vector_stores.divgrpc.conversion import REF_DOC_ID, restored, stored
from llama_index.vector_stores.divgrpc.filters import where

# LlamaIndex's default of `mmr_threshold`.
_MMR_THRESHOLD = 0.5


class DivgrpcVectorStore(BasePydanticVectorStore):
    """Nodes in an index of a divgrpc server.

        store = DivgrpcVectorStore(index="notes", attributes={"year": "integer"})
        index = VectorStoreIndex.from_vector_store(store, embed_model=embed_model)
        index.insert(Document(text="A text", metadata={"year": 2026}))
        index.as_retriever(vector_store_query_mode="mmr").retrieve("a question")

    The index is built from the first nodes that are added. Until then, queries return nothing.

    index: name of the index, 1 to 63 characters from a-z, 0-9, _ and -.
    target: the server's host:port.
    attributes: types of the metadata that filters may test: "keyword", "integer", "float" or
        "bool", in a list if a node may have several values, as in {"tags": ["keyword"]}. Other
        metadata are stored and returned, but a filter that names them raises `ValueError`. The
        keyword "ref_doc_id", the id of a node's document, is declared always.
    metric: "cosine", "euclidean" or "inner_product", of a new index.
    build_options: further options of `Client.build`, for a new index.
    client_options: options of `Client` and `AsyncClient`, such as `timeout` and `credentials`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    stores_text: bool = True
    index: str = "llama-index"
    target: str = "127.0.0.1:50051"
    attributes: Mapping[str, Any] = Field(default_factory=dict)
    metric: str = "cosine"
    build_options: Mapping[str, Any] = Field(default_factory=dict)
    client_options: Mapping[str, Any] = Field(default_factory=dict)
    _index: DocumentIndex = PrivateAttr()

    def model_post_init(self, context: object, /) -> None:
        """Prepare connections, which are opened at the first call."""
        del context
        self._index = DocumentIndex(
            self.target,
            self.index,
            attributes={REF_DOC_ID: "keyword", **self.attributes},
            build_options={"metric": self.metric, **self.build_options},
            client_options=self.client_options,
        )

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which the store is saved."""
        return "DivgrpcVectorStore"

    @property
    def client(self) -> Client:
        """The client of the calls that block."""
        return self._index.blocking.client

    def add(self, nodes: Sequence[BaseNode]) -> list[str]:
        """Add nodes, or replace those of the same ids, and return the ids.

        The nodes need embeddings. Text, metadata and relationships of a node have at most 65,536
        bytes as JSON.
        """
        self._index.blocking.write([stored(node) for node in nodes])
        return [node.node_id for node in nodes]

    async def async_add(self, nodes: Sequence[BaseNode]) -> list[str]:
        """Add nodes as `add` does."""
        await self._index.asynchronous.write([stored(node) for node in nodes])
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str) -> None:
        """Delete the nodes of a document."""
        self._index.blocking.delete_where(where(None, doc_ids=[ref_doc_id]))

    async def adelete(self, ref_doc_id: str) -> None:
        """Delete nodes as `delete` does."""
        await self._index.asynchronous.delete_where(where(None, doc_ids=[ref_doc_id]))

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> None:
        """Delete the nodes that have one of the ids and pass the filter; one may be left out.

        Ids that no node has are ignored.
        """
        if _needs_filter(node_ids, filters):
            self._index.blocking.delete_where(where(filters, node_ids=node_ids))
        else:
            self._index.blocking.delete(node_ids or [])

    async def adelete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> None:
        """Delete nodes as `delete_nodes` does."""
        if _needs_filter(node_ids, filters):
            await self._index.asynchronous.delete_where(where(filters, node_ids=node_ids))
        else:
            await self._index.asynchronous.delete(node_ids or [])

    def clear(self) -> None:
        """Delete the index with all nodes; the next addition builds another."""
        self._index.blocking.delete_index()

    async def aclear(self) -> None:
        """Delete the index as `clear` does."""
        await self._index.asynchronous.delete_index()

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Return the nodes that have one of the ids and pass the filter, with embeddings.

        Without ids and filter, all nodes. With `node_ids` alone, nodes are in the order of the ids.
        Ids that no node has are left out.
        """
        if node_ids is not None and filters is None:
            documents = self._index.blocking.get(node_ids, with_vectors=True)
        else:
            selection = where(filters, node_ids=node_ids)
            documents = self._index.blocking.find(selection, with_vectors=True)
        return [restored(document) for document in documents]

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Return nodes as `get_nodes` does."""
        if node_ids is not None and filters is None:
            documents = await self._index.asynchronous.get(node_ids, with_vectors=True)
        else:
            selection = where(filters, node_ids=node_ids)
            documents = await self._index.asynchronous.find(selection, with_vectors=True)
        return [restored(document) for document in documents]

    def add_attributes(self, attributes: Mapping[str, TypeLike]) -> None:
        """Let filters test further metadata, of all nodes that are stored."""
        self._index.blocking.add_attributes(attributes)

    def query(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
        """Return up to `similarity_top_k` nodes near an embedding, with similarities.

        query: its `mode` is "default" or "mmr". Nodes are filtered during the search by `filters`,
            `doc_ids` and `node_ids`, so there are `similarity_top_k` results if so many pass.
        options: options of `Client.query`, such as `diversity`, which is 0 by default. Under "mmr",
            `mmr_threshold` is the weight of nearness, 0 to 1, by default 0.5, and `mmr_prefetch_k`
            the number of nearest nodes to choose from, by default that of divgrpc, at least 200.
            Near-copies are left out before the choice, unless `keep_duplicates` is true.

        A similarity is the cosine or the inner product; under `euclidean` it is the negative
        squared distance, so that greater ones are nearer under each metric.
        """
        arguments = _arguments(query, options)
        return self._result(self._index.blocking.search(query.query_embedding, **arguments))

    async def aquery(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
        """Return nodes as `query` does."""
        arguments = _arguments(query, options)
        hits = await self._index.asynchronous.search(query.query_embedding, **arguments)
        return self._result(hits)

    def close(self) -> None:
        """Close the connection to the server."""
        self._index.close()

    async def aclose(self) -> None:
        """Close the connections to the server, also that of the running event loop."""
        await self._index.aclose()

    def _result(self, hits: Sequence[DocumentHit]) -> VectorStoreQueryResult:
        sign = -1 if self.metric == "euclidean" else 1
        return VectorStoreQueryResult(
            nodes=[restored(hit.document) for hit in hits],
            similarities=[sign * hit.score for hit in hits],
            ids=[hit.document.id for hit in hits],
        )


def _needs_filter(node_ids: Sequence[str] | None, filters: MetadataFilters | None) -> bool:
    """Return whether nodes to delete are chosen by a filter; raises if all would be deleted."""
    if filters is not None and filters.filters:
        return True
    if node_ids is None:
        raise ValueError("delete_nodes needs node_ids or filters; clear deletes all nodes")
    return False


def _arguments(query: VectorStoreQuery, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a search."""
    if query.query_embedding is None:
        raise ValueError("query_embedding: a query needs one")
    # An index passes an empty list of ids if it stores no nodes itself.
    selection: Where = where(
        query.filters, node_ids=query.node_ids or None, doc_ids=query.doc_ids or None
    )
    arguments = {"where": selection, "k": query.similarity_top_k, "diversity": 0}
    if query.mode == VectorStoreQueryMode.MMR:
        return {**arguments, **_mmr_options(query, **options)}
    if query.mode != VectorStoreQueryMode.DEFAULT:
        mode = VectorStoreQueryMode(query.mode).value
        raise ValueError(f"mode: {mode!r} is not supported; use 'default' or 'mmr'")
    return {**arguments, **options}


def _mmr_options(
    query: VectorStoreQuery,
    *,
    mmr_threshold: float | None = None,
    mmr_prefetch_k: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    values = (query.mmr_threshold, mmr_threshold, _MMR_THRESHOLD)
    threshold = next(value for value in values if value is not None)
    if not 0 <= threshold <= 1:
        raise ValueError(f"mmr_threshold must be from 0 to 1, got {threshold}")
    if mmr_prefetch_k is not None:
        options = {"candidates_limit": max(query.similarity_top_k, mmr_prefetch_k), **options}
    return {"selector": "mmr", "diversity": 1 - threshold, **options}
