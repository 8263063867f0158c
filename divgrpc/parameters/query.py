"""The parameters of a query: names, defaults, ranges, and their effective values for an index.

The core, the client and the server use the same class, so that each parameter has a single name and
is checked in a single place. Some defaults depend on the number of points, on what Build measured,
and on the limits on a query's work. Invalid values raise `InvalidArgumentError`, which names the
field.
"""

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypedDict

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.parameters.checks import FieldChecks, check_number, real, whole
from divgrpc.parameters.limits import LIMITS, SEED_MAX
from divgrpc.parameters.suggestions import with_suggestions
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
# The default dial (value of `diversity`). Compared with dial 0, it does not lower h, the harmonic
# mean of precision and diversity of topics. If the points have no near-copies, it loses at most 2 %
# of the mean relevance. `make bench ARGS="crowding"` measures both.
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
# If points spread in all directions, near-copies usually have at least this cosine (see
# `divgrpc.builder.near_copies`).
DEFAULT_DUPLICATE_COSINE: Final = 0.95
# The pool holds the candidates that a selector picks from. If many of them are near-copies, it may
# grow to this multiple of candidates_limit.
POOL_GROWTH: Final = 4
# The pool grows only while k times its size is at most this value, with which selection takes about
# 0.2 s.
POOL_WORK: Final = 1 << 20
# The default candidates_limit at dial 1, divided by the default at dial 0.
MOST_CANDIDATES_GROWTH: Final = 4.25
# If fewer than k candidates are distinct and no limit is set, the search is repeated with both
# default limits multiplied by SEARCH_GROWTH, at most SEARCHES_AGAIN times.
SEARCH_GROWTH: Final = 4
SEARCHES_AGAIN: Final = 2
# `lose_at_most` chooses from this many dials above 0: 1/32, 2/32, ... 1.
DIAL_STEPS: Final = 32
# The limit on work assumes that qp_relax makes this many passes over all candidates. For other
# selectors it assumes one pass per result.
RELAX_PASSES: Final = 100
# Minimum defaults of candidates_limit and hash_limit. Sparse points need more hashed points,
# because their codes are less precise. Predictions need fewer candidates, because they return few
# labels.
_LEAST_LIMITS: Final[Mapping[Sought, tuple[int, int]]] = {
    "dense": (200, 0),
    "sparse": (200, 1_000),
    "labels": (50, 400),
}
# Selectors for which all pairs of candidates are compared to find near-copies. Other selectors
# compare only their picks with nearer candidates, so they may have 8 times as many candidates.
_ALL_AT_ONCE: Final = ("rerank", "max_sum", "dpp", "qp_relax")
_COMPARED_BY_PICKS: Final = 8
# Selectors that `variant` has an effect on.
WITH_VARIANTS: Final = ("greedy", "qp_relax")


def check_one_dial(options: Mapping[str, Any]) -> None:
    """Raise `InvalidArgumentError` if a call sets both `diversity` and `lose_at_most`."""
    if options.get("lose_at_most") is not None and "diversity" in options:
        raise InvalidArgumentError("lose_at_most", _ONE_DIAL)


def named_over_default(
    options: Mapping[str, Any], default: QueryDefault | None
) -> Mapping[str, Any]:
    """Return the parameters of a call, completed by the index's defaults.

    A default limit below the `k` of the call is ignored. The default `diversity` is ignored if the
    call sets `lose_at_most`, and the default `hash_limit` if the call sets `epsilon`.
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
        # Compare only if k is a number. For any other k, QueryParameters raises the error.
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
    with_attributes: bool
    with_payload: bool
    explain: bool
    with_report: bool


# Fields that QueryParameters and EffectiveParameters have in common.
_SHARED_FIELDS: Final = [
    field.name
    for field in fields(EffectiveParameters)
    if field.name in QueryOptions.__annotations__
]


@with_suggestions
@dataclass(frozen=True, slots=True, kw_only=True)
class QueryParameters:
    """How a query is answered. None means the default that `resolve` fills in.

    The explanations appear in the help of the command line, of the clients and of `Index.query`.

    k: Number of results for each row, 1 to 10,000.
    diversity: Balance of nearness and diversity, 0 to 1. 0 returns the nearest points, 1 ignores
        nearness, and auto chooses a value for each query. The paper's lambda is 1 - diversity.
    selector: How to pick the k results from the candidates.
    variant: The version of the paper's Algorithm 1 that greedy follows. With qp_relax, printed
        weights distances by 1 instead of diversity.
    search: How to find the points that are scored exactly. auto takes the search that was cheapest
        at the target recall in Build's measurements.
    hash_limit: Maximum number of points to score exactly, at least k; 0 means no limit. Default:
        the greater of 4 max(200, 10 k) and 1.25 candidates_limit. If candidates_limit is set or
        points are sparse, the default is 4 candidates_limit. Build's tuning may raise the default.
    epsilon: Set hash_limit by the paper's rule, ceil(2 n^(1/(1+epsilon))) for n points; above 0.
    candidates_limit: Number of nearest points that the selector picks from, at least k; 0 means no
        limit. Default: max(200, 10 k), times min(4.25, max(1, 25 diversity^2)).
    max_distance: Maximum squared distance of a result from the query, 0 or more. Under cosine, the
        vectors are first scaled to unit length, so distances are 0 to 4. Not with inner_product.
    sampling: Which points to keep if the search finds more than hash_limit.
    seed: Seed of random draws; the same seed gives the same answer.
    rounding: How to turn the fractional solution of qp_relax into k results.
    n_probes: Number of buckets or cells to look up with the search tables, 1 or more. A query
        may read a quarter to twice as many cells, depending on their distances. Build tunes the
        default.
    duplicate_threshold: Collapse candidates that are at least this similar to a nearer candidate.
        The threshold is a minimum cosine, -1 to 1, or under euclidean a maximum squared distance.
        Build measures the default (`IndexInfo.duplicate_threshold`). At diversity 0 and with the
        selector nearest, nothing is collapsed by default.
    keep_duplicates: Do not collapse near-copies.
    list_collapsed: List the near-copies that were collapsed into each result.
    lose_at_most: For each query, use the greatest diversity that loses at most this share of
        relevance, 0 to 1. Replaces diversity.
    with_attributes: Return the attributes of each result.
    with_payload: Return the payload of each result.
    explain: Explain each result: its relevance, its penalty for nearness to earlier results, the
        more relevant points that it displaced, and the quota that refused a better point. Lists
        collapsed near-copies, too. Not with qp_relax.
    with_report: Report how diverse the results are, and what that costs in relevance.
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
    with_attributes: bool = False
    with_payload: bool = False
    explain: bool = False
    with_report: bool = False

    def __post_init__(self) -> None:
        _check_fields(self)
        self._check_dial()
        if self.explain and self.selector == "qp_relax":
            sentence = "does not go with selector qp_relax, which picks all results together"
            raise invalid("explain", sentence)
        for field in ("hash_limit", "candidates_limit"):
            value = getattr(self, field)
            if value is not None and 0 < value < self.k:
                raise invalid(field, f"must be 0 (no limit) or at least k = {self.k}, got {value}")
        if self.epsilon is not None and self.hash_limit is not None:
            raise invalid("epsilon", "gives hash_limit: set one of the two")
        if self.duplicate_threshold is not None:
            check_number(self, "duplicate_threshold")
            if self.keep_duplicates:
                sentence = "says what is collapsed, and keep_duplicates collapses nothing"
                raise invalid("duplicate_threshold", f"{sentence}: set one of the two")

    def _check_dial(self) -> None:
        if self.diversity == "auto":
            self._check_chosen("diversity")
        elif isinstance(self.diversity, str) or not 0 <= check_number(self, "diversity") <= 1:
            sentence = f'must be between 0 and 1, or "auto", got {self.diversity!r}'
            raise invalid("diversity", sentence)
        if self.lose_at_most is None:
            return
        if self.diversity == "auto":
            raise InvalidArgumentError("lose_at_most", _ONE_DIAL)
        self._check_chosen("lose_at_most")
        if self.variant == "printed" and self.selector in WITH_VARIANTS:
            sentence = "does not go with variant printed, which has no dial that loses nothing"
            raise invalid("lose_at_most", f"{sentence}: choose another variant")

    def _check_chosen(self, field: str) -> None:
        if self.selector == "nearest":
            option = "diversity auto" if field == "diversity" else field
            sentence = f"{option} does not go with selector nearest, which has no dial"
            raise InvalidArgumentError(field, sentence)

    @property
    def has_fixed_dial(self) -> bool:
        """Whether all rows of the query use `diversity` itself as their dial."""
        return self.diversity != "auto" and self.lose_at_most is None

    @property
    def dial(self) -> float:
        """The dial of all rows, or 0 if each row gets its own dial."""
        return 0.0 if self.diversity == "auto" or self.lose_at_most is not None else self.diversity

    def collapse_threshold(self, metric: Metric, default: float | None) -> float | None:
        """Return the threshold for near-copies, or None if no points are collapsed.

        The threshold is a minimum cosine from -1 to 1 or, under `euclidean`, a maximum squared
        distance. `default` is the threshold of the index. It applies if the query sets no
        threshold, except at diversity 0, with the selector `nearest` or with `keep_duplicates`.

        Raises `InvalidArgumentError` if the threshold does not fit the metric.
        """
        threshold = self.duplicate_threshold
        if threshold is None:
            is_plain = self.selector == "nearest" or (self.has_fixed_dial and self.diversity == 0)
            return None if is_plain or self.keep_duplicates else default
        kind, low, high = "cosine, -1 to 1", -1.0, 1.0
        if metric == "euclidean":
            kind, low, high = "squared distance, 0 or more", 0.0, math.inf
        if not low <= threshold <= high:
            sentence = f"must be a {kind}, since the metric is {metric}; got {threshold:g}"
            raise invalid("duplicate_threshold", sentence)
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
        """Return the effective parameters of the query for an index, with all defaults filled in.

        rows: number of points in the index.
        auto_search: the search that `auto` stands for.
        width: maximum number of stored values in a point.
        sought: kind of what the query finds, points or labels, which decides the default limits.
        nonzeros: number of stored values of all points, if they are sparse.
        probes: default and maximum of `n_probes`.
        duplicate_threshold: the result of `collapse_threshold`.

        Raises `InvalidArgumentError` if k times the number of candidates is above its limit, or if
        a threshold that the caller set would compare too many candidates.
        """
        candidates, hash_limit = self._limits(rows, width, sought)
        by_rule: Search = "exact" if hash_limit == 0 or hash_limit >= rows else auto_search
        search = by_rule if self.search == "auto" else self.search
        candidates_seen = min(candidates or rows, hash_limit or rows, rows)
        # Reduce `width` to a bound on the mean number of values in a sparse candidate, because
        # candidates cannot have more stored values in total than all points of the index.
        width = width if nonzeros is None else min(width, -(-nonzeros // candidates_seen))
        limit = self._limit(width, self.k)
        if self.k * candidates_seen > limit:
            unit = "dimensions" if nonzeros is None else "numbers each"
            bound = f"at most {limit} at {width} {unit}, got {self.k} times {candidates_seen}"
            sentence = f"k times the candidates must be {bound}"
            raise InvalidArgumentError("candidates_limit", sentence)
        values = {name: getattr(self, name) for name in _SHARED_FIELDS} | {
            "diversity": self.dial,
            "search": search,
            "list_collapsed": self.list_collapsed or self.explain,
            "hash_limit": hash_limit,
            "candidates_limit": candidates,
            "n_probes": min(self.n_probes or probes[0], probes[1]) if search == "tables" else 0,
            "duplicate_threshold": self._compared(duplicate_threshold, candidates_seen, width),
        }
        return EffectiveParameters(**values, diversity_auto=self.diversity == "auto")

    def most_compared(self, width: int) -> int:
        """Return the maximum number of candidates that may be searched for near-copies.

        `width` is the number of values in a candidate.
        """
        compares_all = self.selector in _ALL_AT_ONCE or self.lose_at_most is not None
        factor = 1 if compares_all else _COMPARED_BY_PICKS
        numbers = factor**2 * LIMITS["compared_numbers_max"]
        return min(factor * LIMITS["compared_candidates_max"], math.isqrt(numbers // max(1, width)))

    def _compared(self, threshold: float | None, candidates_seen: int, width: int) -> float | None:
        """Return the threshold for near-copies, or None if too many candidates must be compared.

        If the caller set the threshold, too many candidates raise `InvalidArgumentError` instead.
        """
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
        """Return candidates_limit and hash_limit with defaults filled in."""
        least_candidates, least_hash_limit = _LEAST_LIMITS[sought]
        most = self.most_candidates(width)
        if not self.keep_duplicates:
            most = min(most, self.most_compared(width))
        least = max(least_candidates, 10 * self.k)
        growth = 1.0 if sought == "labels" else self._candidates_growth
        candidates = min(math.ceil(growth * least), max(self.k, most))
        hash_limit = 4 * candidates
        if sought == "dense":
            # 1.25 scored points per candidate are enough, because codes of dense rows are precise,
            # and because it matters little which points become the last of many candidates.
            hash_limit = max(4 * least, 5 * candidates // 4)
        if self.candidates_limit is not None:
            candidates = self.candidates_limit
            hash_limit = 4 * (candidates or least)
        hash_limit = max(hash_limit, least_hash_limit)
        if self.hash_limit is not None:
            hash_limit = self.hash_limit
        if self.epsilon is not None:
            hash_limit = max(self.k, math.ceil(2 * rows ** (1 / (1 + self.epsilon))))
        return candidates, hash_limit

    @property
    def _candidates_growth(self) -> float:
        """The factor by which the dial multiplies the default number of candidates.

        At high dials a selector picks far points, so it needs more candidates. With this factor,
        `greedy` in the variant `marginal` at dial 0.5 closes 93 % of the gap in the paper's
        objective J between the nearest neighbours and greedy selection from all points. The factor
        is limited because more candidates would not fit in the CPU caches. With 1,000 rows of 256
        numbers, a step of the selection takes 1.5 times as long as with rows in the caches.
        """
        # With diversity "auto" the dial is chosen after the candidates are found.
        if self.selector == "nearest" or self.diversity == "auto":
            return 1.0
        return min(MOST_CANDIDATES_GROWTH, max(1.0, 25 * self.dial**2))

    def most_candidates(self, width: int, shown: int = 0) -> int:
        """Return the maximum number of candidates of this query.

        `width` is the maximum number of values in a candidate, and `shown` the number of points
        that were shown before.
        """
        picks = self.k + shown
        return max(1, self._limit(width, picks) // picks)

    @property
    def has_limit(self) -> bool:
        """Whether the query limits the number of points to score or of candidates."""
        return {self.hash_limit, self.epsilon, self.candidates_limit} != {None}

    @property
    def searches_again(self) -> int:
        """How often the search may be repeated with greater limits to find k distinct results."""
        return 0 if self.has_limit else SEARCHES_AGAIN

    def _limit(self, width: int, picks: int) -> int:
        """Return the limit of picks times candidates, if a candidate has `width` values."""
        limit, width = LIMITS["k_times_candidates_max"], max(1, width)
        if self.selector == "nearest":
            return limit
        if self.selector == "dpp":
            # For each candidate, a step of dpp reads one number per earlier pick.
            limit, width = LIMITS["dpp_k_times_candidates_max"], max(width, picks)
        if self.selector == "qp_relax":
            width *= -(-RELAX_PASSES // self.k)
        if self.lose_at_most is not None:
            # In the worst case the selector runs at all DIAL_STEPS dials.
            limit, width = limit // DIAL_STEPS, width * DIAL_STEPS
        return min(limit, LIMITS["k_candidates_dims_max"] // width)

    def warnings(self) -> tuple[WarningInfo, ...]:
        """Return a warning for each limit that equals k: the selector then has no choice.

        The selector `nearest` needs only k candidates, but more hashed points for a good recall.
        """
        if self.k not in (self.hash_limit, self.candidates_limit):
            return ()
        limits = ["hash_limit", "candidates_limit"][: 1 if self.selector == "nearest" else 2]
        return tuple(
            WarningInfo(
                f"{field.upper()}_EQUALS_K",
                f"{field} equals k, so the selector has nothing to choose from",
                field,
            )
            for field in limits
            if getattr(self, field) == self.k
        )
