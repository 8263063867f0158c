"""The parameters of a query: names, defaults, ranges, and what they resolve to for an index.

The core, the client and the server all make these objects, so each parameter has one name and is
checked in one place. Defaults depend on the number of points, on what Build measured, and on limits
of the work that one query may cause. Errors are `InvalidArgumentError` with the field named.
"""

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final, TypedDict

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.parameters.checks import FieldChecks, check_number, real, whole
from divgrpc.parameters.limits import LIMITS, SEED_MAX, most_compared
from divgrpc.parameters.suggestions import with_suggestions
from divgrpc.parameters.warning_rules import limits_equal_k
from divgrpc.types import (
    Auto,
    EffectiveParameters,
    Metric,
    QueryDefault,
    Rounding,
    Sampling,
    Search,
    Selector,
    Sought,
    Variant,
    WarningInfo,
)

DEFAULT_K: Final = 10
# It keeps h, and loses at most 2 % of mean relevance if there are no near-copies:
# `make bench ARGS="crowding"`.
DEFAULT_DIVERSITY: Final = 0.15
DEFAULT_VARIANT: Final[Variant] = "marginal"
_check_fields: Final = FieldChecks(
    k=whole(1, LIMITS["k_max"]),
    hash_limit=whole(0, LIMITS["rows_max"]),
    epsilon=real("above 0", lambda epsilon: epsilon > 0),
    candidates_limit=whole(0, LIMITS["rows_max"]),
    max_distance=real("0 or more", lambda distance: distance >= 0),
    seed=whole(0, SEED_MAX),
    n_probes=whole(1, LIMITS["rows_max"]),
    lose_at_most=real("between 0 and 1", lambda share: 0 <= share <= 1),
)
_ONE_DIAL: Final = "diversity and lose_at_most both set the dial: set one of the two"
CODE_BITS: Final = 256
# The cosine from which points are near-copies if points lie in all directions: see `near_copies`.
DEFAULT_DUPLICATE_COSINE: Final = 0.95
# If near-copies crowd the candidates, the pool grows to this multiple of candidates_limit.
POOL_GROWTH: Final = 4
# The pool grows only if k times its candidates is at most this, about 0.2 s of a selector.
POOL_WORK: Final = 1 << 20
# Factor by which the highest dial multiplies the default candidates_limit of dial 0.
MOST_CANDIDATES_GROWTH: Final = 4.25
# If fewer than k candidates differ, a query that names no limit is searched again with 4 x both
# limits, at most twice.
SEARCH_GROWTH: Final = 4
SEARCHES_AGAIN: Final = 2
# Number of dials above 0 that `lose_at_most` chooses from: 1/32, 2/32, ... 1.
DIAL_STEPS: Final = 32
# The work of qp_relax, as passes over all candidates. A pick of another selector is one pass.
RELAX_PASSES: Final = 100
# Least defaults of candidates_limit and hash_limit. Codes of sparse rows are less precise, so these
# need more hashed points; predictions ask for few labels.
_LEAST_LIMITS: Final[Mapping[Sought, tuple[int, int]]] = {
    "dense": (200, 0),
    "sparse": (200, 1_000),
    "labels": (50, 400),
}
# Selectors that compare all candidates with each other.
_ALL_AT_ONCE: Final = ("rerank", "max_sum", "dpp", "qp_relax")
_PRODUCT: Final = "k times the candidates"
# Fields that `resolve` computes. It copies all other fields of EffectiveParameters.
_COMPUTED_FIELDS: Final = (
    "diversity",
    "search",
    "hash_limit",
    "candidates_limit",
    "n_probes",
    "duplicate_threshold",
    "diversity_auto",
)
_COPIED_FIELDS: Final = tuple(
    f.name for f in fields(EffectiveParameters) if f.name not in _COMPUTED_FIELDS
)
_copied_values: Final = attrgetter(*_COPIED_FIELDS)
# The selectors that follow the variant as printed.
_WITH_PRINTED: Final = ("greedy", "qp_relax")


def check_one_dial(options: Mapping[str, Any]) -> None:
    """Raise `InvalidArgumentError` if the parameters of a call set the dial twice."""
    if options.get("lose_at_most") is not None and "diversity" in options:
        raise InvalidArgumentError("lose_at_most", _ONE_DIAL)


def named_over_default(
    options: Mapping[str, Any], default: QueryDefault | None
) -> Mapping[str, Any]:
    """Return the parameters of a call, and those of the index's default that it leaves out.

    A limit of the default is dropped if it is below the `k` of the call.
    """
    if default is None:
        return options
    values = {field.name: getattr(default, field.name) for field in fields(default)}
    if options.get("lose_at_most") is not None:
        del values["diversity"]
    if options.get("epsilon") is not None:
        values["hash_limit"] = None
    k = options.get("k", DEFAULT_K)
    for name in ("hash_limit", "candidates_limit"):
        limit = values[name]
        # QueryParameters refuses a k that is no number.
        if limit and isinstance(k, numbers.Real) and limit < k:
            values[name] = None
    return values | dict(options)


class QueryOptions(TypedDict, total=False):
    """The fields of `QueryParameters`, as keyword arguments."""

    k: int
    diversity: float | Auto
    selector: Selector
    variant: Variant
    search: Search
    hash_limit: int | None
    epsilon: float | None
    candidates_limit: int | None
    max_distance: float | None
    sampling: Sampling
    seed: int
    rounding: Rounding
    n_probes: int | None
    duplicate_threshold: float | None
    keep_duplicates: bool
    list_collapsed: bool
    lose_at_most: float | None


@with_suggestions
@dataclass(frozen=True, slots=True, kw_only=True)
class QueryParameters:
    """How a query is answered. None means the default that `resolve` fills in.

    The command line, the clients and `Index.query` take their explanations from here.

    k: Number of results for each row, 1 to 10,000.
    diversity: Balance of nearness and diversity, 0 to 1: 0 returns the nearest points, 1 ignores
        nearness; auto chooses for each query. The paper's lambda is 1 - diversity.
    selector: How to pick the k results from the candidates.
    variant: Which reading of the paper's Algorithm 1 greedy and qp_relax follow.
    search: How to find the points that are scored exactly. auto takes what Build measured to be the
        cheapest.
    hash_limit: Most points to score, at least k; 0 is no limit. Default: 4 max(200, 10 k) or 1.25
        candidates_limit, whichever is greater, and more if Build tuned so; 4 candidates_limit if
        that is set or points are sparse.
    epsilon: Set hash_limit to ceil(2 n^(1/(1+epsilon))), the paper's rule; above 0.
    candidates_limit: Number of nearest points that the selector sees, at least k; 0 is no limit.
        Default: max(200, 10 k), times 25 diversity^2 if that is above 1, at most times 4.25.
    max_distance: Drop points at a greater squared distance; not with inner_product. It is 0 or
        more; under cosine the distance is that of unit vectors, 0 to 4.
    sampling: Which points to keep if the search finds more than hash_limit.
    seed: Seed of random draws; the same seed gives the same answer.
    rounding: How to turn the shares of qp_relax into k results.
    n_probes: Number of buckets, or cells, to look up with the search tables, 1 or more. Default: as
        Build tuned it.
    duplicate_threshold: Collapse points at least this similar to a better one: a cosine, -1 to 1,
        or under euclidean a squared distance at most. Default: what Build measured
        (`IndexInfo.duplicate_threshold`); none for plain nearest neighbours.
    keep_duplicates: Do not collapse near-copies.
    list_collapsed: List the near-copies that each result stands for.
    lose_at_most: Take the most diverse answer that loses at most this share of relevance, 0 to 1;
        in place of diversity.
    """

    k: int = DEFAULT_K
    diversity: float | Auto = DEFAULT_DIVERSITY
    selector: Selector = "greedy"
    variant: Variant = DEFAULT_VARIANT
    search: Search = "auto"
    hash_limit: int | None = None
    epsilon: float | None = None
    candidates_limit: int | None = None
    max_distance: float | None = None
    sampling: Sampling = "uniform"
    seed: int = 0
    rounding: Rounding = "exchange"
    n_probes: int | None = None
    duplicate_threshold: float | None = None
    keep_duplicates: bool = False
    list_collapsed: bool = False
    lose_at_most: float | None = None

    def __post_init__(self) -> None:
        _check_fields(self)
        self._check_dial()
        for field in ("hash_limit", "candidates_limit"):
            value = getattr(self, field)
            if value is not None and 0 < value < self.k:
                raise invalid(field, f"must be 0 (no limit) or at least k = {self.k}, got {value}")
        if self.epsilon is not None and self.hash_limit is not None:
            raise invalid("epsilon", "gives hash_limit: set one of the two")
        if self.duplicate_threshold is None:
            return
        check_number(self, "duplicate_threshold")
        if self.keep_duplicates:
            raise invalid(
                "duplicate_threshold",
                "says what is collapsed, and keep_duplicates collapses nothing: set one of the two",
            )

    def _check_dial(self) -> None:
        if self.diversity == "auto":
            self._check_chosen("diversity")
        elif isinstance(self.diversity, str) or not 0 <= check_number(self, "diversity") <= 1:
            raise invalid(
                "diversity", f'must be between 0 and 1, or "auto", got {self.diversity!r}'
            )
        if self.lose_at_most is None:
            return
        if self.diversity == "auto":
            raise InvalidArgumentError("lose_at_most", _ONE_DIAL)
        self._check_chosen("lose_at_most")
        if self.variant == "printed" and self.selector in _WITH_PRINTED:
            raise invalid(
                "lose_at_most",
                "does not go with variant printed, which has no dial that loses"
                " nothing: choose another variant",
            )

    def _check_chosen(self, field: str) -> None:
        if self.selector == "nearest":
            option = "diversity auto" if field == "diversity" else field
            raise InvalidArgumentError(
                field, f"{option} does not go with selector nearest, which has no dial"
            )

    @property
    def has_fixed_dial(self) -> bool:
        """Whether all rows of the query have the dial `diversity`."""
        return self.diversity != "auto" and self.lose_at_most is None

    @property
    def dial(self) -> float:
        """The dial of all rows; 0 if every row has its own."""
        return 0.0 if self.diversity == "auto" or self.lose_at_most is not None else self.diversity

    def collapse_threshold(self, metric: Metric, default: float | None) -> float | None:
        """Return the similarity from which points are near-copies; None to collapse no points.

        The similarity is a cosine from -1 to 1 or, under `euclidean`, a squared distance of 0 or
        more. `default` is the threshold of the index; queries for diversity use it if they have
        none. Raises `InvalidArgumentError` if the threshold does not fit the metric.
        """
        threshold = self.duplicate_threshold
        if threshold is None:
            plain = self.selector == "nearest" or (self.has_fixed_dial and self.diversity == 0)
            return None if plain or self.keep_duplicates else default
        if metric == "euclidean":
            if threshold < 0:
                raise invalid(
                    "duplicate_threshold",
                    "must be a squared distance, 0 or more, since the metric is"
                    f" euclidean; got {threshold:g}",
                )
        elif not -1 <= threshold <= 1:
            raise invalid(
                "duplicate_threshold",
                f"must be a cosine, -1 to 1, since the metric is {metric}; got {threshold:g}",
            )
        return threshold

    def resolve(
        self,
        rows: int,
        auto_search: Search,
        width: int = 1,
        sought: Sought = "dense",
        nonzeros: int | None = None,
        *,
        probes: tuple[int, int] = (1, LIMITS["rows_max"]),
        duplicate_threshold: float | None = None,
    ) -> EffectiveParameters:
        """Fill in the defaults for an index of `rows` points of at most `width` numbers each.

        `nonzeros` is the number of stored numbers of all sparse points. `probes` are the default
        and the greatest number of probes. `duplicate_threshold` comes from `collapse_threshold`.
        Raises `InvalidArgumentError` if k times the candidates is above its limit.
        """
        candidates, hash_limit = self._limits(rows, width, sought)
        by_rule: Search = "exact" if hash_limit == 0 or hash_limit >= rows else auto_search
        search = by_rule if self.search == "auto" else self.search
        candidates_seen = min(candidates or rows, hash_limit or rows, rows)
        # Sparse candidates together hold no more numbers than all points do.
        width = width if nonzeros is None else min(width, -(-nonzeros // candidates_seen))
        limit = self._limit(width)
        if self.k * candidates_seen > limit:
            unit = "dimensions" if nonzeros is None else "numbers each"
            bound = f"at most {limit} at {width} {unit}, got {self.k} times {candidates_seen}"
            raise InvalidArgumentError("candidates_limit", f"{_PRODUCT} must be {bound}")
        return EffectiveParameters(
            **dict(zip(_COPIED_FIELDS, _copied_values(self), strict=True)),
            diversity=self.dial,
            search=search,
            hash_limit=hash_limit,
            candidates_limit=candidates,
            n_probes=min(self.n_probes or probes[0], probes[1]) if search == "tables" else 0,
            duplicate_threshold=self._compared(duplicate_threshold, candidates_seen, width),
            diversity_auto=self.diversity == "auto",
        )

    def most_compared(self, width: int) -> int:
        """Return the most candidates of `width` numbers each that are searched for near-copies."""
        lazily = self.selector not in _ALL_AT_ONCE and self.lose_at_most is None
        return most_compared(width, lazily=lazily)

    def _compared(self, threshold: float | None, candidates_seen: int, width: int) -> float | None:
        """Return the threshold; None if it is a default that takes too many comparisons."""
        most = self.most_compared(width)
        if threshold is None or candidates_seen <= most:
            return threshold
        if self.duplicate_threshold is None:
            return None
        sentence = (
            f"near-copies are looked for among at most {most} candidates here, "
            f"got {candidates_seen}: set candidates_limit, or keep_duplicates"
        )
        raise InvalidArgumentError("candidates_limit", sentence)

    def _limits(self, rows: int, width: int, sought: Sought) -> tuple[int, int]:
        """Return the limits of candidates and of hashed points, defaults filled in."""
        least_candidates, least_hash_limit = _LEAST_LIMITS[sought]
        most = self._limit(width) // self.k
        if not self.keep_duplicates:
            most = min(most, self.most_compared(width))
        least = max(least_candidates, 10 * self.k)
        growth = 1.0 if sought == "labels" else self._candidates_growth
        default_candidates = min(math.ceil(growth * least), max(self.k, most))
        candidates, default_hash_limit = default_candidates, 4 * default_candidates
        if sought == "dense":
            # The last of many candidates matter little, and codes of dense rows say enough.
            default_hash_limit = max(4 * least, 5 * default_candidates // 4)
        if self.candidates_limit is not None:
            candidates = self.candidates_limit
            default_hash_limit = 4 * (candidates or least)
        return candidates, self._hash_limit(rows, max(default_hash_limit, least_hash_limit))

    @property
    def _candidates_growth(self) -> float:
        """The factor by which the dial multiplies the default number of candidates.

        High dials pick far points, so they need more candidates. With this factor `greedy` in the
        variant marginal closes .93 of the gap in J at a dial of 0.5. More candidates would not fit
        the caches: with 1,000 rows of 256 numbers a step takes 1.5 times as long.
        """
        # With diversity "auto" the dial is unknown until the candidates are found.
        if self.selector == "nearest" or self.diversity == "auto":
            return 1.0
        return min(MOST_CANDIDATES_GROWTH, max(1.0, 25 * self.dial**2))

    def most_candidates(self, width: int) -> int:
        """Return the most candidates that this query may have, of at most `width` numbers each."""
        return max(1, self._limit(width) // self.k)

    @property
    def searches_again(self) -> int:
        """How often a search may be repeated with greater limits, for results that differ."""
        has_limit = {self.hash_limit, self.epsilon, self.candidates_limit} != {None}
        return 0 if has_limit else SEARCHES_AGAIN

    def _hash_limit(self, rows: int, default: int) -> int:
        """Return the hash limit of the query: by epsilon, by name, or the default."""
        if self.epsilon is not None:
            share: int = math.ceil(2 * rows ** (1 / (1 + self.epsilon)))
            return max(self.k, share)
        return default if self.hash_limit is None else self.hash_limit

    def _limit(self, width: int) -> int:
        """Return the limit of k times candidates, for candidates of `width` numbers each."""
        limit, width = LIMITS["k_times_candidates_max"], max(1, width)
        if self.selector == "nearest":
            return limit
        if self.selector == "dpp":
            # A step goes over a row of the factor for every pick before it.
            limit, width = LIMITS["dpp_k_times_candidates_max"], max(width, self.k)
        if self.selector == "qp_relax":
            width *= -(-RELAX_PASSES // self.k)
        if self.lose_at_most is not None:
            # The selector may pick at every dial that there is to choose from.
            limit, width = limit // DIAL_STEPS, width * DIAL_STEPS
        return min(limit, LIMITS["k_candidates_dims_max"] // width)

    def warnings(self) -> tuple[WarningInfo, ...]:
        """Return warnings about parameters that are valid but probably a mistake."""
        return limits_equal_k(self.k, self.hash_limit, self.candidates_limit)
