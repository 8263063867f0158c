"""What PredictLabels can be told: the parameters, their defaults; loads nothing that computes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Self, get_args

from divgrpc.checks import check_choice, check_integer, check_number
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.suggestions import with_suggestions
from divgrpc.types import (
    EffectiveLabelParameters,
    EffectiveParameters,
    Mode,
    Search,
    Selector,
    Vote,
)

DEFAULT_TOP_K: Final = 5
DEFAULT_NEIGHBOURS: Final = 10


@with_suggestions
@dataclass(frozen=True, kw_only=True)
class PredictParameters:
    """How labels are predicted; None means the default that a query has.

    `top_k` labels at most, of at least the score `threshold`: None takes what is kept with the
    index (`Index.set_threshold`), if anything is, and minus infinity none, whatever is kept. In the
    mode `embedding` the other parameters are those of a query for labels; in `neighbour_vote` those
    of a query for so many `neighbours`, each of which has a `vote`, and the `top_k` labels of most
    votes are the answer.
    """

    top_k: int = DEFAULT_TOP_K
    threshold: float | None = None
    diversity: float = 0.3
    selector: Selector = "greedy"
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
        check_choice(self, "mode", get_args(Mode))
        check_integer(self, "neighbours", 1, LIMITS["neighbours_max"])
        check_choice(self, "vote", get_args(Vote))
        _ = self.query

    @cached_property
    def query(self) -> QueryParameters:
        """How the labels, or the neighbours, are asked for."""
        return QueryParameters(
            k=self.top_k if self.mode == "embedding" else self.neighbours,
            diversity=self.diversity,
            selector=self.selector,
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
            selector=query.selector,
            search=query.search,
            hash_limit=query.hash_limit,
            candidates_limit=query.candidates_limit,
            seed=query.seed,
        )
