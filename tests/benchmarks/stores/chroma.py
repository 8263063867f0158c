"""Chroma in process, whose collections search by distance."""

from importlib.metadata import version
from typing import Any, Final

import chromadb

from divgrpc.conformance import Answer, Feature, Points, Request

_COLLECTION: Final = "points"


class ChromaStore:
    """Searches with `query`, which has no dial and no pages. Scores are distances."""

    features: Final[tuple[Feature, ...]] = ("scores", "filter")
    higher_is_nearer = False

    def __init__(self) -> None:
        self.name = f"chromadb {version('chromadb')}, in process"
        settings = chromadb.Settings(anonymized_telemetry=False)
        self._client = chromadb.EphemeralClient(settings)
        self._collection: Any = None

    def build(self, points: Points) -> None:
        """Add the points to a new collection, without an embedding function."""
        if self._collection is not None:
            self._client.delete_collection(_COLLECTION)
        self._collection = self._client.create_collection(
            _COLLECTION,
            configuration={"hnsw": {"space": "cosine"}},
            embedding_function=None,
        )
        names, columns = list(points.attributes), zip(*points.attributes.values(), strict=True)
        self._collection.add(
            ids=list(points.ids),
            embeddings=points.vectors,
            metadatas=[dict(zip(names, values, strict=True)) for values in columns],
        )

    def query(self, request: Request) -> Answer:
        """Search by a vector."""
        answer = self._collection.query(
            query_embeddings=[request.vector.tolist()],
            n_results=request.k,
            where=_where(request),
            include=["distances"],
        )
        return Answer(answer["ids"][0], answer["distances"][0])


def _where(request: Request) -> dict[str, Any] | None:
    conditions = [{name: value} for name, value in (request.filter or {}).items()]
    if not conditions:
        return None
    return conditions[0] if len(conditions) == 1 else {"$and": conditions}
