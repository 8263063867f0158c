"""The parameters of a query: names, defaults, ranges and explanations.

The core, the client and the server all make these objects, so each parameter has one name and is
checked in one place. Errors are `InvalidArgumentError` with the field named.
"""

import numbers
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypedDict, get_args

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters.checks import check_choice, check_integer, check_number
from divgrpc.parameters.limits import LIMITS, SEED_MAX
from divgrpc.parameters.resolution import Resolution
from divgrpc.parameters.suggestions import with_suggestions
from divgrpc.types import Auto, QueryDefault, Rounding, Sampling, Search, Selector, Variant

DEFAULT_K: Final = 10
# It keeps h, and loses at most 2 % of mean relevance if there are no near-copies:
# `make bench ARGS="crowding"`.
DEFAULT_DIVERSITY: Final = 0.15
DEFAULT_VARIANT: Final[Variant] = "marginal"
_QUERY_CHOICES: Final = {
    "selector": get_args(Selector),
    "variant": get_args(Variant),
    "search": get_args(Search),
    "sampling": get_args(Sampling),
    "rounding": get_args(Rounding),
}
_ONE_DIAL: Final = "diversity and lose_at_most both set the dial: set one of the two"
# The selectors that follow the variant as printed.
_WITH_PRINTED: Final = ("greedy", "qp_relax")


def check_one_dial(named: Mapping[str, Any]) -> None:
    """Raise `InvalidArgumentError` if the parameters of a call set the dial twice."""
    if named.get("lose_at_most") is not None and "diversity" in named:
        raise InvalidArgumentError("lose_at_most", _ONE_DIAL)


def named_over_default(named: Mapping[str, Any], default: QueryDefault | None) -> Mapping[str, Any]:
    """Return the parameters of a call, and those of the index's default that it leaves out.

    A limit of the default is dropped if it is below the `k` of the call.
    """
    if default is None:
        return named
    values = {field.name: getattr(default, field.name) for field in fields(default)}
    if named.get("lose_at_most") is not None:
        del values["diversity"]
    if named.get("epsilon") is not None:
        values["hash_limit"] = None
    k = named.get("k", DEFAULT_K)
    for name in ("hash_limit", "candidates_limit"):
        limit = values[name]
        # QueryParameters refuses a k that is no number.
        if limit and isinstance(k, numbers.Real) and limit < k:
            values[name] = None
    return values | dict(named)


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
class QueryParameters(Resolution):
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
        check_integer(self, "k", 1, LIMITS["k_max"])
        for field, choices in _QUERY_CHOICES.items():
            check_choice(self, field, choices)
        self._check_dial()
        check_integer(self, "seed", 0, SEED_MAX)
        for field in ("hash_limit", "candidates_limit"):
            if getattr(self, field) is not None:
                self._check_limit(field)
        if self.n_probes is not None:
            check_integer(self, "n_probes", 1, LIMITS["rows_max"])
        if self.epsilon is not None:
            if self.hash_limit is not None:
                raise InvalidArgumentError(
                    "epsilon", "epsilon gives hash_limit: set one of the two"
                )
            if check_number(self, "epsilon") <= 0:
                raise InvalidArgumentError(
                    "epsilon", f"epsilon must be above 0, got {self.epsilon}"
                )
        if self.max_distance is not None and check_number(self, "max_distance") < 0:
            raise InvalidArgumentError(
                "max_distance", f"max_distance must be 0 or more, got {self.max_distance}"
            )
        self._check_duplicates()

    def _check_dial(self) -> None:
        if self.diversity == "auto":
            self._check_chosen("diversity")
        elif isinstance(self.diversity, str) or not 0 <= check_number(self, "diversity") <= 1:
            raise InvalidArgumentError(
                "diversity",
                f'diversity must be between 0 and 1, or "auto", got {self.diversity!r}',
            )
        if self.lose_at_most is None:
            return
        if not 0 <= check_number(self, "lose_at_most") <= 1:
            raise InvalidArgumentError(
                "lose_at_most", f"lose_at_most must be between 0 and 1, got {self.lose_at_most}"
            )
        if self.diversity == "auto":
            raise InvalidArgumentError("lose_at_most", _ONE_DIAL)
        self._check_chosen("lose_at_most")
        if self.variant == "printed" and self.selector in _WITH_PRINTED:
            raise InvalidArgumentError(
                "lose_at_most",
                "lose_at_most does not go with variant printed, which has no dial that loses"
                " nothing: choose another variant",
            )

    def _check_chosen(self, field: str) -> None:
        if self.selector == "nearest":
            option = "diversity auto" if field == "diversity" else field
            raise InvalidArgumentError(
                field, f"{option} does not go with selector nearest, which has no dial"
            )

    def _check_duplicates(self) -> None:
        for field in ("keep_duplicates", "list_collapsed"):
            value = getattr(self, field)
            if not isinstance(value, bool):
                raise InvalidArgumentError(field, f"{field} must be true or false, got {value!r}")
        if self.duplicate_threshold is None:
            return
        check_number(self, "duplicate_threshold")
        if self.keep_duplicates:
            raise InvalidArgumentError(
                "duplicate_threshold",
                "duplicate_threshold says what is collapsed, and keep_duplicates collapses nothing:"
                " set one of the two",
            )

    def _check_limit(self, field: str) -> None:
        value = check_integer(self, field, 0, LIMITS["rows_max"])
        if 0 < value < self.k:
            raise InvalidArgumentError(
                field, f"{field} must be 0 (no limit) or at least k = {self.k}, got {value}"
            )
