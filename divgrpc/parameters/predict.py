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
# Default dials (values of `diversity`). At these dials no precision P@k in the benchmark
# `label-dial` is more than 1 % lower than at dial 0. In the mode `embedding`, the default is
# `_HIERARCHY_DIAL` with the selector `hierarchy`, and `_PLAIN_DIAL` with any other selector. In the
# mode `neighbour_vote`, the default is `_VOTE_DIAL`, because diverse neighbours raise P@k.
_HIERARCHY_DIAL: Final = 0.05
_PLAIN_DIAL: Final = 0.0
_VOTE_DIAL: Final = 0.3

_check_fields: Final = FieldChecks(
    top_k=whole(1, LIMITS["k_max"]), neighbours=whole(1, LIMITS["neighbours_max"])
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
    n_probes: int | None


@with_suggestions
@dataclass(frozen=True, kw_only=True)
class PredictParameters:
    """How labels are predicted. None stands for a default, which may depend on the index.

    In the mode `embedding` the search finds labels in the same way as a query finds points. In the
    mode `neighbour_vote` a query finds the `neighbours` of the document. Each neighbour votes for
    its labels, and the labels with the most votes are the candidates.

    The selector `hierarchy` balances a label's score against its distance in the hierarchy from the
    labels picked before (`divgrpc.search.branches`). In the mode `neighbour_vote` with this
    selector, `greedy` selects the neighbours at the same diversity, and `hierarchy` picks among the
    max(50, 10 * top_k) labels with the most votes. At diversity 0 every selector returns the best
    labels.

    top_k: Maximum number of labels for each document, 1 to 10,000.
    threshold: Minimum score of a label, or minimum share of the votes; -inf means no minimum. The
        default is stored in the index (`Index.set_threshold`).
    diversity: Balance of score and diversity, 0 to 1. 0 returns the best labels, 1 ignores scores.
        The default is 0.3 in the mode neighbour_vote. In the mode embedding it is 0.05 with the
        selector hierarchy, and 0 with other selectors.
    selector: How to pick labels; the default is hierarchy if the index has one, else greedy.
    search: How to find labels, or neighbours in the mode neighbour_vote.
    hash_limit: Maximum number of labels to score exactly, at least top_k; 0 means no limit. In the
        mode neighbour_vote, it counts points and is at least neighbours.
    candidates_limit: Number of best labels that the selector picks from, at least top_k; 0 means no
        limit. In the mode neighbour_vote, it counts points and is at least neighbours.
    mode: How to find candidate labels, by their factors or by votes of neighbours.
    neighbours: Number of neighbours that vote in the mode neighbour_vote, 1 to 1,000.
    vote: How to weight votes in the mode neighbour_vote.
    seed: Seed of random draws; the same seed gives the same answer.
    n_probes: Number of buckets or cells to look up with the search tables, 1 or more. Build tunes
        the default.
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
    n_probes: int | None = None

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.threshold is not None:
            check_number(self, "threshold", exception=-math.inf)
        if self.diversity is not None:
            # Unlike queries, predictions have no diversity "auto".
            check_number(self, "diversity")
        _ = self.query

    @cached_property
    def query(self) -> QueryParameters:
        """The query that finds labels, or neighbours in the mode `neighbour_vote`.

        For the selector `hierarchy`, it finds the nearest labels, or selects neighbours by
        `greedy`.
        """
        by_embedding = self.mode == "embedding"
        selector = self.selector or "greedy"
        if selector == "hierarchy":
            selector = "nearest" if by_embedding else "greedy"
        return QueryParameters(
            k=self.top_k if by_embedding else self.neighbours,
            diversity=self.dial,
            selector=selector,
            # The paper's Table 2 follows this variant of Algorithm 1.
            variant="corrected",
            search=self.search,
            hash_limit=self.hash_limit,
            candidates_limit=self.candidates_limit,
            n_probes=self.n_probes,
            seed=self.seed,
            keep_duplicates=True,
        )

    @property
    def least(self) -> float | None:
        """The minimum score of a label, None for no minimum."""
        return None if self.threshold == -math.inf else self.threshold

    @property
    def dial(self) -> float:
        """The diversity, or 0 if it is None."""
        return _PLAIN_DIAL if self.diversity is None else self.diversity

    @property
    def by_hierarchy(self) -> bool:
        """Whether the hierarchy affects which labels are picked; it does not at diversity 0."""
        return self.selector == "hierarchy" and self.dial > 0

    def filled(self, *, hierarchy: bool) -> "PredictParameters":
        """Return the parameters with the default selector and the default diversity filled in.

        `hierarchy` says whether the index has a hierarchy of labels. Raises `UnfitIndexError` if
        the selector needs a hierarchy and the index has none.
        """
        return _filled(self, hierarchy=hierarchy)

    def with_threshold(self, thresholds: Mapping[Mode, float]) -> Self:
        """Return the parameters; if they have no threshold, fill in the default of their mode.

        `thresholds` are the default thresholds of an index by mode.
        """
        if self.threshold is not None or self.mode not in thresholds:
            return self
        return replace(self, threshold=thresholds[self.mode])

    def effective(self, query: EffectiveParameters) -> EffectiveLabelParameters:
        """Return the effective parameters of a prediction.

        `query` are the effective parameters of the query that found the labels or neighbours.
        """
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
            n_probes=query.n_probes,
        )


# The results are cached, because most calls repeat the same few parameters.
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
