"""The parameters of a prediction of labels: names, defaults, ranges and explanations."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final, Self, TypedDict

from divgrpc.errors import UnfitIndexError
from divgrpc.parameters.checks import FieldChecks, check_number, whole
from divgrpc.parameters.limits import LIMITS
from divgrpc.parameters.query import QueryParameters
from divgrpc.parameters.suggestions import with_suggestions
from divgrpc.types import (
    EffectiveLabelParameters,
    EffectiveParameters,
    LabelSelector,
    Mode,
    Search,
    Vote,
)

DEFAULT_TOP_K: Final = 5
DEFAULT_NEIGHBOURS: Final = 10
# The dials at which no P@k of the benchmark `label-dial` falls by more than 1 % of what it is at 0:
# for labels found by embedding, with the selector `hierarchy` and with any other; and for votes,
# where diverse neighbours raise P@k.
_HIERARCHY_DIAL: Final = 0.05
_PLAIN_DIAL: Final = 0.0
_VOTE_DIAL: Final = 0.3

_check_fields: Final = FieldChecks(
    top_k=whole(1, LIMITS["k_max"]),
    neighbours=whole(1, LIMITS["neighbours_max"]),
)


class PredictOptions(TypedDict, total=False):
    """The fields of `PredictParameters`, as keyword arguments."""

    top_k: int
    threshold: float | None
    diversity: float | None
    selector: LabelSelector | None
    search: Search
    hash_limit: int | None
    candidates_limit: int | None
    mode: Mode
    neighbours: int
    vote: Vote
    seed: int


@with_suggestions
@dataclass(frozen=True, kw_only=True)
class PredictParameters:
    """How labels are predicted. None means a default that depends on the index.

    In the mode `embedding` labels are found as a query finds points. In `neighbour_vote` a query
    finds `neighbours`, each votes for its labels, and the labels of most votes are the candidates.

    The selector `hierarchy` trades a label's score against its distance in the hierarchy from the
    labels picked before (`divgrpc.search.branches`). In `neighbour_vote` it finds the neighbours by
    `greedy`, at the same dial, and picks among the max(50, 10 * top_k) labels of most votes. At
    diversity 0 the best labels are the answer, whatever the selector.

    top_k: Most labels for each document, 1 to 10,000.
    threshold: Leave out labels of a lower score, or share of the votes; -inf leaves out none; the
        default is what the index keeps (`Index.set_threshold`).
    diversity: Balance of score and diversity, 0 to 1: 0 returns the best labels, 1 ignores scores;
        the default is .3 for votes, else .05 by hierarchy or 0.
    selector: How to pick labels; the default is hierarchy if the index has one, else greedy.
    search: How to find labels, or neighbours.
    hash_limit: Most labels to score, at least top_k; 0 is no limit.
    candidates_limit: Number of best labels that the selector sees, at least top_k; 0 is no limit.
    mode: Search among label factors, or let neighbours vote.
    neighbours: Number of neighbours that vote, in neighbour_vote, 1 to 1,000.
    vote: How to weight neighbours' votes, in neighbour_vote.
    seed: Seed of random draws; the same seed gives the same answer.
    """

    top_k: int = DEFAULT_TOP_K
    threshold: float | None = None
    diversity: float | None = None
    selector: LabelSelector | None = None
    search: Search = "auto"
    hash_limit: int | None = None
    candidates_limit: int | None = None
    mode: Mode = "embedding"
    neighbours: int = DEFAULT_NEIGHBOURS
    vote: Vote = "weighted"
    seed: int = 0

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.threshold is not None:
            check_number(self, "threshold", exception=-math.inf)
        if self.diversity is not None:
            # Labels have no dial that is chosen for each document.
            check_number(self, "diversity")
        _ = self.query

    @cached_property
    def query(self) -> QueryParameters:
        """The query that finds the labels, or the neighbours.

        The selector `hierarchy` picks from the nearest labels, or labels of `greedy` neighbours.
        """
        by_embedding = self.mode == "embedding"
        selector = self.selector or "greedy"
        if selector == "hierarchy":
            selector = "nearest" if by_embedding else "greedy"
        return QueryParameters(
            k=self.top_k if by_embedding else self.neighbours,
            diversity=self.dial,
            selector=selector,
            # Algorithm 1 as the paper's Table 2 has it.
            variant="corrected",
            search=self.search,
            hash_limit=self.hash_limit,
            candidates_limit=self.candidates_limit,
            seed=self.seed,
            keep_duplicates=True,
        )

    @property
    def least(self) -> float | None:
        """The least score, None for none."""
        return None if self.threshold == -math.inf else self.threshold

    @property
    def dial(self) -> float:
        """The diversity, by default 0."""
        return _PLAIN_DIAL if self.diversity is None else self.diversity

    @property
    def by_hierarchy(self) -> bool:
        """Whether labels are picked by the hierarchy; at 0 the best labels are, by any selector."""
        return self.selector == "hierarchy" and self.dial > 0

    def filled(self, *, hierarchy: bool) -> "PredictParameters":
        """Return the parameters with the default selector and dial of an index filled in.

        `hierarchy` says whether the index has a hierarchy of labels. Raises `UnfitIndexError` if
        the selector needs one.
        """
        return _filled(self, hierarchy=hierarchy)

    def with_threshold(self, thresholds: Mapping[Mode, float]) -> Self:
        """Return the parameters with the default threshold of their mode, unless they have one."""
        if self.threshold is not None or self.mode not in thresholds:
            return self
        return replace(self, threshold=thresholds[self.mode])

    def effective(self, query: EffectiveParameters) -> EffectiveLabelParameters:
        """Return the effective parameters of a prediction, given those of its query."""
        return EffectiveLabelParameters(
            top_k=self.top_k,
            threshold=self.least,
            mode=self.mode,
            neighbours=0 if self.mode == "embedding" else self.neighbours,
            vote=self.vote,
            diversity=query.diversity,
            selector=self.selector or query.selector,
            search=query.search,
            hash_limit=query.hash_limit,
            candidates_limit=query.candidates_limit,
            seed=query.seed,
        )


# The same few parameters come with nearly every call.
@lru_cache(maxsize=1024)
def _filled(parameters: PredictParameters, *, hierarchy: bool) -> PredictParameters:
    if parameters.selector == "hierarchy" and not hierarchy:
        raise UnfitIndexError(
            "selector", "selector hierarchy needs a hierarchy of the labels; Build takes one"
        )
    selector = parameters.selector or ("hierarchy" if hierarchy else "greedy")
    diversity = parameters.diversity
    if diversity is None and parameters.mode == "neighbour_vote":
        diversity = _VOTE_DIAL
    elif diversity is None:
        diversity = _HIERARCHY_DIAL if selector == "hierarchy" else _PLAIN_DIAL
    return replace(parameters, selector=selector, diversity=diversity)
