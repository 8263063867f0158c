"""LangChain's InMemoryVectorStore, with its search by maximal marginal relevance."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Final

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore

from benchmarks.stores import CANDIDATES_PER_RESULT
from divgrpc.conformance import Answer, Feature, Points, Request


class _Vectors(Embeddings):  # type: ignore[misc]  # the library is in another environment
    """Embeds the id of a point as its vector."""

    def __init__(self, points: Points) -> None:
        self._vectors = dict(zip(points.ids, points.vectors.tolist(), strict=True))

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of some ids."""
        return [self._vectors[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of an id."""
        return self.embed_documents([text])[0]


class LangChainStore:
    """Searches by vector. Searches by maximal marginal relevance return no scores."""

    features: Final[tuple[Feature, ...]] = ("scores", "diversity", "filter")
    higher_is_nearer = True

    def __init__(self) -> None:
        self.name = f"langchain-core {version('langchain-core')}, InMemoryVectorStore"
        self._store: Any = None

    def build(self, points: Points) -> None:
        """Add a document for each point."""
        names, columns = list(points.attributes), zip(*points.attributes.values(), strict=True)
        documents = [
            Document(page_content=id_, metadata=dict(zip(names, values, strict=True)))
            for id_, values in zip(points.ids, columns, strict=True)
        ]
        self._store = InMemoryVectorStore(_Vectors(points))
        self._store.add_documents(documents, ids=list(points.ids))

    def query(self, request: Request) -> Answer:
        """Search with scores or, with a diversity, by maximal marginal relevance."""
        vector = request.vector.tolist()
        options = {"k": request.k, "filter": _passes(request)}
        if request.diversity is None:
            hits = self._store.similarity_search_with_score_by_vector(vector, **options)
            return Answer([hit.id for hit, _ in hits], [score for _, score in hits])
        documents = self._store.max_marginal_relevance_search_by_vector(
            vector,
            fetch_k=CANDIDATES_PER_RESULT * request.k,
            lambda_mult=1 - request.diversity,
            **options,
        )
        return Answer([document.id for document in documents])


def _passes(request: Request) -> Callable[[Any], bool] | None:
    if request.filter is None:
        return None
    conditions = request.filter.items()
    return lambda document: all(document.metadata[name] == value for name, value in conditions)
