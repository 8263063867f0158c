"""The local mode of Qdrant's client, which searches in this process, with its MMR."""

from importlib.metadata import version
from typing import Any, Final

from qdrant_client import QdrantClient, models

from benchmarks.stores import CANDIDATES_PER_RESULT
from divgrpc.conformance import Answer, Feature, Points, Request

_COLLECTION: Final = "points"


class QdrantStore:
    """Searches with `query_points`, and pages by `offset`."""

    features: Final[tuple[Feature, ...]] = (
        "scores",
        "diversity",
        "diverse_scores",
        "filter",
        "pages",
    )
    higher_is_nearer = True

    def __init__(self) -> None:
        self.name = f"qdrant-client {version('qdrant-client')}, local mode"
        self._client: Any = None

    def build(self, points: Points) -> None:
        """Insert the points, with their rows as ids and the texts in the payload."""
        self._client = QdrantClient(":memory:")
        params = models.VectorParams(size=points.vectors.shape[1], distance=models.Distance.COSINE)
        self._client.create_collection(_COLLECTION, vectors_config=params)
        names, columns = list(points.attributes), zip(*points.attributes.values(), strict=True)
        rows = zip(points.ids, points.vectors.tolist(), columns, strict=True)
        self._client.upsert(
            _COLLECTION,
            [
                models.PointStruct(
                    id=row,
                    vector=vector,
                    payload={"id": id_, **dict(zip(names, values, strict=True))},
                )
                for row, (id_, vector, values) in enumerate(rows)
            ],
        )

    def query(self, request: Request) -> Answer:
        """Search, with MMR if the request has a diversity."""
        vector = request.vector.tolist()
        query: Any = vector
        if request.diversity is not None:
            candidates = CANDIDATES_PER_RESULT * request.k
            mmr = models.Mmr(diversity=request.diversity, candidates_limit=candidates)
            query = models.NearestQuery(nearest=vector, mmr=mmr)
        start = request.page if isinstance(request.page, int) else 0
        hits = self._client.query_points(
            _COLLECTION,
            query=query,
            query_filter=_filter(request),
            limit=request.k,
            offset=start,
            with_payload=["id"],
        ).points
        ids, scores = [hit.payload["id"] for hit in hits], [hit.score for hit in hits]
        return Answer(ids, scores, start + request.k)


def _filter(request: Request) -> Any:  # noqa: ANN401  # the library is in another environment
    if request.filter is None:
        return None
    conditions = [
        models.FieldCondition(key=name, match=models.MatchValue(value=value))
        for name, value in request.filter.items()
    ]
    return models.Filter(must=conditions)
