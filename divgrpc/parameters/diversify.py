"""The parameters of a diversification of candidates that the caller has."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypedDict

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.parameters.build import MetricWord, as_metric
from divgrpc.parameters.checks import FieldChecks, whole
from divgrpc.parameters.limits import LIMITS
from divgrpc.parameters.query import (
    DEFAULT_DIVERSITY,
    DEFAULT_K,
    DEFAULT_VARIANT,
    QueryParameters,
    check_one_dial,
)
from divgrpc.parameters.suggestions import refuse_unknown, with_suggestions
from divgrpc.types import Auto, EffectiveParameters, Metric, Rounding, Selector, Variant

# Arguments of `diversify` that are no parameters.
_ARGUMENTS: Final = (
    *("vectors", "scores", "query", "attributes", "quotas", "group_by", "on_infeasible"),
)
_check_fields: Final = FieldChecks(k=whole(1, LIMITS["k_max"]))


class DiversifyOptions(TypedDict, total=False):
    """The fields of `DiversifyParameters`, as keyword arguments."""

    k: int | None
    diversity: float | Auto
    selector: Selector
    variant: Variant
    rounding: Rounding
    metric: MetricWord
    duplicate_threshold: float | None
    lose_at_most: float | None


@with_suggestions
@dataclass(frozen=True, slots=True, kw_only=True)
class DiversifyParameters:
    """How candidates are picked.

    k: Number of results, at most the number of candidates. The default is 10, or all candidates if
        there are fewer.
    diversity: Balance of relevance and diversity, 0 to 1. 0 returns the most relevant candidates, 1
        ignores relevance, and auto chooses a value from the scores. The paper's lambda is 1 -
        diversity.
    selector: How to pick the results.
    variant: The version of the paper's Algorithm 1 that greedy follows. With qp_relax, printed
        weights distances by 1 instead of diversity.
    rounding: How to turn the fractional solution of qp_relax into k results.
    metric: How to compare candidates with each other. With scores, inner_product means the same as
        cosine.
    duplicate_threshold: Collapse candidates that are at least this similar to a more relevant
        candidate. The threshold is a minimum cosine, -1 to 1, or under euclidean a maximum squared
        distance. The default collapses nothing.
    lose_at_most: Use the greatest diversity that loses at most this share of relevance, 0 to 1.
        Replaces diversity.
    """

    k: int | None = None
    diversity: float | Auto = DEFAULT_DIVERSITY
    selector: Selector = "greedy"
    variant: Variant = DEFAULT_VARIANT
    rounding: Rounding = "exchange"
    metric: Metric = "cosine"
    duplicate_threshold: float | None = None
    lose_at_most: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", as_metric(self.metric))
        _check_fields(self)
        query = self._query(self.k or DEFAULT_K)
        for name in ("diversity", "duplicate_threshold", "lose_at_most"):
            # The checks of a query have made plain Python numbers of these.
            object.__setattr__(self, name, getattr(query, name))
        query.collapse_threshold(self.metric, None)

    @property
    def fixed_dial(self) -> float | None:
        """The dial, or None if it is chosen from the scores."""
        return None if self.diversity == "auto" or self.lose_at_most is not None else self.diversity

    @property
    def k_or_default(self) -> int:
        """The number of picks that the caller wants; there may be fewer candidates."""
        return DEFAULT_K if self.k is None else self.k

    def number_of_picks(self, candidates: int) -> int:
        """Return `k`, or its default for a number of candidates."""
        return min(DEFAULT_K, candidates) if self.k is None else self.k

    def _query(self, k: int) -> QueryParameters:
        return QueryParameters(
            k=k,
            diversity=self.diversity,
            selector=self.selector,
            variant=self.variant,
            rounding=self.rounding,
            duplicate_threshold=self.duplicate_threshold,
            keep_duplicates=self.duplicate_threshold is None,
            lose_at_most=self.lose_at_most,
            search="exact",
            hash_limit=0,
            candidates_limit=0,
        )

    def resolve(self, candidates: int, width: int) -> EffectiveParameters:
        """Return the parameters of a query that has these candidates, at least one.

        candidates: their number. width: maximum number of values that a candidate stores.

        Raises `InvalidArgumentError` with the field `k` or `vectors`.
        """
        return _resolve(self, candidates, width)


def diversify_parameters(
    options: DiversifyOptions, arguments: tuple[str, ...] = ()
) -> DiversifyParameters:
    """Return the checked parameters of a call of `diversify`; raises `InvalidArgumentError`.

    arguments: further arguments of the call, which an error about an unknown option may suggest.
    """
    known = DiversifyOptions.__annotations__
    refuse_unknown("diversify", options, known, (*_ARGUMENTS, *arguments))
    check_one_dial(options)
    return DiversifyParameters(**options)  # type: ignore[arg-type]  # aliases of metrics


# Cached because most callers have the same number of candidates in each call.
@lru_cache(maxsize=1024)
def _resolve(parameters: DiversifyParameters, candidates: int, width: int) -> EffectiveParameters:
    k = parameters.number_of_picks(candidates)
    if k > candidates:
        raise invalid("k", f"must be at most the number of candidates, {candidates}, got {k}")
    query = parameters._query(k)  # noqa: SLF001  # a function of this module
    threshold = query.collapse_threshold(parameters.metric, None)
    try:
        return query.resolve(candidates, "exact", width, duplicate_threshold=threshold)
    except InvalidArgumentError as error:
        if error.field != "candidates_limit":
            raise
        text = str(error).removesuffix(": set candidates_limit, or keep_duplicates")
        raise InvalidArgumentError("vectors", f"too many vectors: {text}") from None
