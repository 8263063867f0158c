"""What an adapter has to provide, and what the checks exchange with it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from divgrpc.types import FloatArray

# What a store may support beside a plain search:
# scores: plain searches return scores.
# diversity: searches take a dial.
# diverse_scores: searches with a dial return scores.
# filter: searches take conditions on attributes.
# pages: searches return what the next page needs.
# max_each: searches limit the number of results with the same value of an attribute.
# at_least: searches return at least so many results with a value of an attribute.
Feature = Literal[
    "scores", "diversity", "diverse_scores", "filter", "pages", "max_each", "at_least"
]


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """The points that a store indexes.

    ids: n unique texts.
    vectors: (n, d) float32 of unit length, so that cosine, inner product and Euclidean distance
        have the same order.
    attributes: n texts by the name of the attribute.
    """

    ids: Sequence[str]
    vectors: FloatArray
    attributes: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One search. A field that needs a feature which the store lacks has its default.

    vector: (d,) float32 of unit length.
    k: number of results, 1 or more.
    diversity: None for a plain search of the nearest points, else a dial: 0 for the nearest points,
        1 for the most diverse ones.
    filter: values by attribute; only points that have all of these values may be returned.
    max_each: by attribute, the maximum number of results with the same value.
    at_least: by attribute and value, the minimum number of results with this value.
    paged: whether the request is for one of several pages.
    page: `next_page` of the page before; None for page 1.
    """

    vector: FloatArray
    k: int
    diversity: float | None = None
    filter: Mapping[str, str] | None = None
    max_each: Mapping[str, int] | None = None
    at_least: Mapping[str, Mapping[str, int]] | None = None
    paged: bool = False
    page: object = None


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The results of a search, in the order in which the store returns them.

    ids: at most k ids.
    scores: as many numbers as ids; None if the store returns no scores.
    next_page: what a request for the next page needs; None after the last page, and if the request
        was not `paged`.
    """

    ids: Sequence[str]
    scores: Sequence[float] | None = None
    next_page: object = None


class Store(Protocol):
    """An adapter of a store. The checks for features that it does not name do not run."""

    @property
    def name(self) -> str:
        """The name and version of the store, as reports show it."""

    @property
    def features(self) -> Collection[Feature]:
        """What the store supports."""

    @property
    def higher_is_nearer(self) -> bool:
        """Whether nearer points have higher scores, as the store documents it."""

    def build(self, points: Points) -> None:
        """Index these points, instead of all earlier ones."""

    def query(self, request: Request) -> Answer:
        """Answer a request."""
