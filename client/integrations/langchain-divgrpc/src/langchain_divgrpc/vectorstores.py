"""A LangChain vector store over an index of a divgrpc server."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Self
from uuid import uuid4

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from divgrpc_client.documents import DocumentHit, DocumentIndex, StoredDocument, TypeLike
from langchain_divgrpc.filters import FilterLike, where


class DivgrpcVectorStore(VectorStore):
    """Documents in an index of a divgrpc server.

        store = DivgrpcVectorStore(embeddings, "notes", attributes={"year": "integer"})
        store.add_texts(["A text"], [{"year": 2026}])
        store.similarity_search("a question", k=4, filter={"year": {"$gte": 2020}})
        store.max_marginal_relevance_search("a question", k=4, lambda_mult=0.7)

    The index is built from the first documents that are added. Until then, searches return nothing.
    Searches also take the options of `divgrpc_client.Client.query`, such as `diversity`.

    embedding: the model that turns texts into vectors.
    index: name of the index, 1 to 63 characters from a-z, 0-9, _ and -.
    target: the server's host:port.
    attributes: types of the metadata that filters may test: "keyword", "integer", "float" or
        "bool", in a list if a document may have several values, as in {"tags": ["keyword"]}. Other
        metadata are stored and returned, but a filter that names them raises `ValueError`.
    metric: "cosine", "euclidean" or "inner_product", of a new index.
    build_options: further options of `Client.build`, for a new index.
    client_options: options of `Client` and `AsyncClient`, such as `timeout` and `credentials`.
    """

    def __init__(
        self,
        embedding: Embeddings,
        index: str = "langchain",
        target: str = "127.0.0.1:50051",
        *,
        attributes: Mapping[str, TypeLike] | None = None,
        metric: str = "cosine",
        build_options: Mapping[str, Any] | None = None,
        client_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._embedding = embedding
        self._metric = metric
        self._index = DocumentIndex(
            target,
            index,
            attributes=attributes,
            build_options={"metric": metric, **(build_options or {})},
            client_options=client_options,
        )

    @property
    def embeddings(self) -> Embeddings:
        """The model that turns texts into vectors."""
        return self._embedding

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
    ) -> list[str]:
        """Add texts, or replace those of the same ids, and return the ids.

        metadatas: one per text, of values that JSON can express.
        ids: texts of at most 256 bytes. None in place of an id makes a new one.

        Text and metadata of a document have at most 65,536 bytes as JSON.
        """
        contents = list(texts)
        vectors = self._embedding.embed_documents(contents) if contents else []
        documents = _documents(contents, vectors, metadatas, ids)
        self._index.blocking.write(documents)
        return [document.id for document in documents]

    async def aadd_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
    ) -> list[str]:
        """Add texts as `add_texts` does."""
        contents = list(texts)
        vectors = await self._embedding.aembed_documents(contents) if contents else []
        documents = _documents(contents, vectors, metadatas, ids)
        await self._index.asynchronous.write(documents)
        return [document.id for document in documents]

    def delete(
        self,
        ids: list[str] | None = None,
        *,
        filter: FilterLike = None,  # noqa: A002  # the word of LangChain
    ) -> bool:
        """Delete documents by their ids, or those that pass a filter, and return True.

        Ids that no document has are ignored. The index remains, even without documents.
        """
        if (ids is None) == (filter is None):
            raise ValueError("delete needs either ids or a filter")
        if ids is None:
            self._index.blocking.delete_where(where(filter))
        else:
            self._index.blocking.delete(ids)
        return True

    async def adelete(
        self,
        ids: list[str] | None = None,
        *,
        filter: FilterLike = None,  # noqa: A002  # the word of LangChain
    ) -> bool:
        """Delete documents as `delete` does."""
        if (ids is None) == (filter is None):
            raise ValueError("delete needs either ids or a filter")
        if ids is None:
            await self._index.asynchronous.delete_where(where(filter))
        else:
            await self._index.asynchronous.delete(ids)
        return True

    def delete_index(self) -> None:
        """Delete the index with all documents; the next addition builds another."""
        self._index.blocking.delete_index()

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return documents in the order of their ids; ids that no document has are left out."""
        return [_document(stored) for stored in self._index.blocking.get(ids)]

    async def aget_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return documents as `get_by_ids` does."""
        return [_document(stored) for stored in await self._index.asynchronous.get(ids)]

    def add_attributes(self, attributes: Mapping[str, TypeLike]) -> None:
        """Let filters test further metadata, of all documents that are stored."""
        self._index.blocking.add_attributes(attributes)

    def similarity_search_with_score_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        *,
        filter: FilterLike = None,  # noqa: A002  # the word of LangChain
        **options: Any,
    ) -> list[tuple[Document, float]]:
        """Return the `k` nearest documents with their scores, nearest first.

        filter: conditions such as {"source": "a.pdf", "year": {"$gte": 2020}}, or a condition of
            divgrpc. Documents are filtered during the search, so there are `k` results if `k`
            documents pass.
        options: options of a query, such as `diversity`, 0 by default.

        A score is the cosine or the inner product, greater for nearer documents. Under `euclidean`
        it is the squared distance, smaller for nearer documents.
        """
        options = {"diversity": 0, "k": k, **options}
        return _scored(self._index.blocking.search(embedding, where(filter), **options))

    async def asimilarity_search_with_score_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        *,
        filter: FilterLike = None,  # noqa: A002  # the word of LangChain
        **options: Any,
    ) -> list[tuple[Document, float]]:
        """Search as `similarity_search_with_score_by_vector` does."""
        options = {"diversity": 0, "k": k, **options}
        return _scored(await self._index.asynchronous.search(embedding, where(filter), **options))

    def similarity_search_with_score(
        self, query: str, k: int = 4, **options: Any
    ) -> list[tuple[Document, float]]:
        """Return the `k` nearest documents with their scores, as the method for vectors does."""
        vector = self._embedding.embed_query(query)
        return self.similarity_search_with_score_by_vector(vector, k, **options)

    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, **options: Any
    ) -> list[tuple[Document, float]]:
        """Search as `similarity_search_with_score` does."""
        vector = await self._embedding.aembed_query(query)
        return await self.asimilarity_search_with_score_by_vector(vector, k, **options)

    def similarity_search(self, query: str, k: int = 4, **options: Any) -> list[Document]:
        """Return the `k` nearest documents; options as in `similarity_search_with_score`."""
        return _unscored(self.similarity_search_with_score(query, k, **options))

    async def asimilarity_search(self, query: str, k: int = 4, **options: Any) -> list[Document]:
        """Search as `similarity_search` does."""
        return _unscored(await self.asimilarity_search_with_score(query, k, **options))

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, **options: Any
    ) -> list[Document]:
        """Return the `k` documents nearest to a vector."""
        return _unscored(self.similarity_search_with_score_by_vector(embedding, k, **options))

    async def asimilarity_search_by_vector(
        self, embedding: list[float], k: int = 4, **options: Any
    ) -> list[Document]:
        """Search as `similarity_search_by_vector` does."""
        hits = await self.asimilarity_search_with_score_by_vector(embedding, k, **options)
        return _unscored(hits)

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int | None = None,
        lambda_mult: float = 0.5,
        **options: Any,
    ) -> list[Document]:
        """Return `k` documents that are near a vector and differ from one another.

        fetch_k: number of nearest documents to choose from, at least `k`. Default: the limit of
            divgrpc, at least 200.
        lambda_mult: 1 returns the nearest documents, 0 ignores nearness.
        options: `filter`, and options of a query. Near-copies are left out before the choice,
            unless `keep_duplicates` is true.
        """
        options = {**_mmr_options(k, fetch_k, lambda_mult), **options}
        return self.similarity_search_by_vector(embedding, **options)

    async def amax_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int | None = None,
        lambda_mult: float = 0.5,
        **options: Any,
    ) -> list[Document]:
        """Search as `max_marginal_relevance_search_by_vector` does."""
        options = {**_mmr_options(k, fetch_k, lambda_mult), **options}
        return await self.asimilarity_search_by_vector(embedding, **options)

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int | None = None,
        lambda_mult: float = 0.5,
        **options: Any,
    ) -> list[Document]:
        """Search with the vector of a text; see `max_marginal_relevance_search_by_vector`."""
        vector = self._embedding.embed_query(query)
        return self.max_marginal_relevance_search_by_vector(
            vector, k, fetch_k, lambda_mult, **options
        )

    async def amax_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int | None = None,
        lambda_mult: float = 0.5,
        **options: Any,
    ) -> list[Document]:
        """Search as `max_marginal_relevance_search` does."""
        vector = await self._embedding.aembed_query(query)
        return await self.amax_marginal_relevance_search_by_vector(
            vector, k, fetch_k, lambda_mult, **options
        )

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **options: Any,
    ) -> Self:
        """Return a store with the options of the class, to which texts have been added."""
        store = cls(embedding, **options)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    async def afrom_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **options: Any,
    ) -> Self:
        """Return a store as `from_texts` does."""
        store = cls(embedding, **options)
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store

    def close(self) -> None:
        """Close the connection to the server."""
        self._index.close()

    async def aclose(self) -> None:
        """Close all connections to the server, also for the running event loop."""
        await self._index.aclose()

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        """Return the function from a score to a relevance of 0 to 1, greater for nearer."""
        return _RELEVANCE[self._metric]


_RELEVANCE: Mapping[str, Callable[[float], float]] = {
    "cosine": lambda cosine: min(1.0, max(0.0, (1 + cosine) / 2)),
    "euclidean": lambda squared: 1 / (1 + math.sqrt(max(0.0, squared))),
    "inner_product": lambda product: 0.5 + math.atan(product) / math.pi,
}


def _mmr_options(k: int, fetch_k: int | None, lambda_mult: float) -> dict[str, Any]:
    options = {"k": k, "selector": "mmr", "diversity": 1 - lambda_mult}
    if fetch_k is not None:
        options["candidates_limit"] = max(k, fetch_k)
    return options


def _documents(
    texts: Sequence[str],
    vectors: Sequence[Sequence[float]],
    metadatas: Sequence[dict[str, Any]] | None,
    ids: Sequence[str | None] | None,
) -> list[StoredDocument]:
    for name, values in (("metadatas", metadatas), ("ids", ids)):
        if values is not None and len(values) != len(texts):
            raise ValueError(f"there are {len(texts)} texts, but {len(values)} {name}")
    return [
        StoredDocument(document_id or str(uuid4()), text, metadata or {}, vector)
        for text, vector, metadata, document_id in zip(
            texts, vectors, metadatas or repeat(None), ids or repeat(None), strict=False
        )
    ]


def _document(stored: StoredDocument) -> Document:
    return Document(id=stored.id, page_content=stored.text or "", metadata=dict(stored.metadata))


def _scored(hits: Sequence[DocumentHit]) -> list[tuple[Document, float]]:
    return [(_document(hit.document), hit.score) for hit in hits]


def _unscored(hits: Sequence[tuple[Document, float]]) -> list[Document]:
    return [document for document, _ in hits]
