"""What PredictLabels can be told: the parameters, their defaults; loads nothing that computes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final, Self, get_args

from divgrpc.errors import UnfitIndexError
from divgrpc.parameters.checks import check_choice, check_integer, check_number
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


@with_suggestions
@dataclass(frozen=True, kw_only=True)
class PredictParameters:
    """How labels are predicted; None means a default that depends on the index.

    `top_k` labels at most, of at least the score `threshold`: None takes what is kept with the
    index (`Index.set_threshold`), if anything is, and minus infinity none, whatever is kept. In the
    mode `embedding` the other parameters are those of a query for labels; in `neighbour_vote` those
    of a query for so many `neighbours`, each of which has a `vote`, and the `top_k` labels of most
    votes are the answer.

    The selector `hierarchy` trades a label's score against its distance in the hierarchy from the
    labels picked before (`divgrpc.search.branches`). It needs an index that has a hierarchy, and is
    the default there. Elsewhere the default is `greedy`. In `neighbour_vote` it also finds the
    neighbours by `greedy`, at the same dial, and picks among the max(50, 10 * top_k) labels of most
    votes. The default of `diversity` is 0.3 in `neighbour_vote`; in `embedding` it is 0.05 with
    `hierarchy` and 0 with other selectors. At 0 the best labels are the answer, whatever the
    selector.
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
        check_integer(self, "top_k", 1, LIMITS["k_max"])
        if self.threshold is not None:
            check_number(self, "threshold", allowed=-math.inf)
        if self.diversity is not None:
            # Labels have no dial that is chosen for each document.
            check_number(self, "diversity")
        check_choice(self, "mode", get_args(Mode))
        check_integer(self, "neighbours", 1, LIMITS["neighbours_max"])
        check_choice(self, "vote", get_args(Vote))
        if self.selector is not None:
            check_choice(self, "selector", get_args(LabelSelector))
        _ = self.query

    @cached_property
    def query(self) -> QueryParameters:
        """How the labels, or the neighbours, are searched for.

        With the selector `hierarchy`: nearest labels, from which it picks, or greedy neighbours.
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
        """The diversity, 0 where none is named."""
        return _PLAIN_DIAL if self.diversity is None else self.diversity

    @property
    def by_hierarchy(self) -> bool:
        """Whether labels are picked by the hierarchy; at 0 the best labels are, by any selector."""
        return self.selector == "hierarchy" and self.dial > 0

    def filled(self, *, hierarchy: bool) -> "PredictParameters":
        """Return the same with selector and dial of an index that has a `hierarchy`, or has none.

        Raises `UnfitIndexError` for the selector `hierarchy` where there is none.
        """
        return _filled(self, hierarchy=hierarchy)

    def with_threshold(self, thresholds: Mapping[Mode, float]) -> Self:
        """Return the same with the threshold of its mode, where it has none of its own."""
        if self.threshold is not None or self.mode not in thresholds:
            return self
        return replace(self, threshold=thresholds[self.mode])

    def effective(self, query: EffectiveParameters) -> EffectiveLabelParameters:
        """Return the same with what its query came to."""
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
