"""Adapters of divgrpc itself, in process and over gRPC."""

from typing import Any, Final

import divgrpc
from divgrpc.conformance.protocol import Answer, Feature, Points, Request
from divgrpc.types import QueryResult
from divgrpc.types.filters import Field, Filter
from divgrpc.types.quotas import Quota

_FEATURES: Final[tuple[Feature, ...]] = (
    *("scores", "diversity", "diverse_scores", "filter", "pages", "max_each", "at_least"),
)


class IndexStore:
    """`divgrpc.Index` in memory, with its default parameters. It needs divgrpc[server]."""

    features = _FEATURES
    higher_is_nearer = True

    def __init__(self) -> None:
        self.name = f"divgrpc {divgrpc.__version__}, in process"
        self._build = divgrpc.Index.build
        self._index: Any = None

    def build(self, points: Points) -> None:
        """Build the index."""
        self._index = self._build(points.vectors, ids=points.ids, attributes=points.attributes)

    def query(self, request: Request) -> Answer:
        """Query the index."""
        return _answer(self._index.query(request.vector, **_options(request)))


class ServerStore:
    """An index of a divgrpc server, with its default parameters.

    client: a `divgrpc_client.Client` of the server.
    index: name of an index, which the checks build, and replace if it exists.
    """

    features = _FEATURES
    higher_is_nearer = True

    def __init__(self, client: Any, index: str) -> None:  # noqa: ANN401  # the core knows no client
        self.name = f"divgrpc {client.server_info().version}, over gRPC"
        self._client = client
        self._index = index
        self._is_built = False

    def build(self, points: Points) -> None:
        """Build the index on the server."""
        columns = {"ids": points.ids, "attributes": points.attributes}
        self._client.build(self._index, points.vectors, **columns, replace=True)
        self._is_built = True

    def delete(self) -> None:
        """Delete the index, if the checks have built it."""
        if self._is_built:
            self._client.delete_index(self._index)

    def query(self, request: Request) -> Answer:
        """Query the index on the server."""
        return _answer(self._client.query(self._index, request.vector, **_options(request)))


def _options(request: Request) -> dict[str, Any]:
    """Return the arguments of `query`, without those that the request does not have."""
    options: dict[str, Any] = {"k": request.k}
    if request.diversity is None:
        options["selector"] = "nearest"
    else:
        options["diversity"] = request.diversity
    if request.filter is not None:
        conditions = (Field(name) == value for name, value in request.filter.items())
        options["filter"] = Filter(must=tuple(conditions))
    limits, minimums = request.max_each or {}, request.at_least or {}
    options["quotas"] = [
        Quota(
            name,
            max_each=limits.get(name),
            rules={value: (n, limits.get(name)) for value, n in minimums.get(name, {}).items()},
        )
        for name in sorted({*limits, *minimums})
    ]
    if request.paged:
        options |= {"paged": True, "page_token": request.page}
    return options


def _answer(result: QueryResult) -> Answer:
    hits = result[0]
    ids, scores = [str(hit.id) for hit in hits], [hit.score for hit in hits]
    return Answer(ids, scores, result.next_page_token or None)
