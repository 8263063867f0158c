"""What a query can be told and its defaults; what a build can be told and the limits, by import.

Core, client and server all make these objects, so that a parameter is checked in one place and has
one name. Errors are `InvalidArgumentError` with the field named.
"""

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, get_args

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters.checks import check_choice, check_integer, check_number
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
# Of the settings that lose at most 2 % of mean relevance where nothing crowds, one that keeps h:
# `make bench ARGS="crowding"`.
DEFAULT_DIVERSITY: Final = 0.15
DEFAULT_VARIANT: Final[Variant] = "marginal"
CODE_BITS: Final = 256
# Points this similar are near-copies where points lie in all directions: see `near_copies`.
DEFAULT_DUPLICATE_COSINE: Final = 0.95
# So many times as many candidates as candidates_limit are looked at where near-copies crowd them.
POOL_GROWTH: Final = 4
# The most that k times the candidates may come to by that: a selector takes some .2 s for as many.
POOL_WORK: Final = 1 << 20
# The candidates of a high dial, as a multiple of those of a low one.
MOST_CANDIDATES_GROWTH: Final = 4.25
# Where fewer than k of those differ, a query that names no hash_limit searches again with so many
# times both limits, at most so often.
SEARCH_GROWTH: Final = 4
SEARCHES_AGAIN: Final = 2
# The fewest candidates and hashed points of a default, by what is sought. Codes of sparse rows say
# less, and of labels fewer are asked for.
_FEWEST: Final[Mapping[Sought, tuple[int, int]]] = {
    "dense": (200, 0),
    "sparse": (200, 1_000),
    "labels": (50, 400),
}
_QUERY_CHOICES: Final = {
    "selector": get_args(Selector),
    "variant": get_args(Variant),
    "search": get_args(Search),
    "sampling": get_args(Sampling),
    "rounding": get_args(Rounding),
}
# Dials that `lose_at_most` chooses from, 0 apart: 1/32, 2/32, ... 1.
DIAL_STEPS: Final = 32
_ONE_DIAL: Final = "diversity and lose_at_most both set the dial: set one of the two"
# Selectors that see all candidates at once.
_ALL_AT_ONCE: Final = ("rerank", "max_sum", "dpp", "qp_relax")
# The selectors that follow the variant as printed.
_WITH_PRINTED: Final = ("greedy", "qp_relax")
_PRODUCT: Final = "k times the candidates"
# Times that qp_relax may go over all candidates, as if it picked so many.
RELAX_PASSES: Final = 100


def check_one_dial(named: Mapping[str, Any]) -> None:
    """Raise where what a caller named says the dial twice."""
    if named.get("lose_at_most") is not None and "diversity" in named:
        raise InvalidArgumentError("lose_at_most", _ONE_DIAL)


def named_over_default(named: Mapping[str, Any], default: QueryDefault | None) -> Mapping[str, Any]:
    """Return what a query is told: what its caller named, else what the index has as default.

    A limit of the default gives way where the caller's own parameters leave no room for it.
    """
    if default is None:
        return named
    told = {field.name: getattr(default, field.name) for field in fields(default)}
    if named.get("lose_at_most") is not None:
        del told["diversity"]
    if named.get("epsilon") is not None:
        told["hash_limit"] = None
    k = named.get("k", DEFAULT_K)
    for name in ("hash_limit", "candidates_limit"):
        limit = told[name]
        # What k is wrong with is for the parameters to say.
        if limit and isinstance(k, numbers.Real) and limit < k:
            told[name] = None
    return told | dict(named)


@with_suggestions
@dataclass(frozen=True, slots=True, kw_only=True)
class QueryParameters:
    """How a query is answered; None means the default that `resolve` fills in.

    The .proto's `QueryRequest` says what each field does, in the same words.
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
            asked = "diversity auto" if field == "diversity" else field
            raise InvalidArgumentError(
                field, f"{asked} does not go with selector nearest, which has no dial"
            )

    @property
    def has_fixed_dial(self) -> bool:
        """Whether all query rows are answered at one dial, `diversity`."""
        return self.diversity != "auto" and self.lose_at_most is None

    @property
    def dial(self) -> float:
        """That dial, 0 where every row gets its own."""
        return 0.0 if self.diversity == "auto" or self.lose_at_most is not None else self.diversity

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

    def collapse_threshold(self, metric: Metric, default: float | None) -> float | None:
        """Return from which likeness on points are near-copies, None where none are collapsed.

        A cosine from -1 to 1 or, under `euclidean`, a squared distance of 0 or more. `default` is
        what a query takes that names nothing and asks for diversity. Raises `InvalidArgumentError`
        where the threshold is none of the metric's.
        """
        threshold = self.duplicate_threshold
        if threshold is None:
            plain = self.selector == "nearest" or (self.has_fixed_dial and self.diversity == 0)
            return None if plain or self.keep_duplicates else default
        if metric == "euclidean":
            if threshold < 0:
                raise InvalidArgumentError(
                    "duplicate_threshold",
                    "duplicate_threshold must be a squared distance, 0 or more, since the metric is"
                    f" euclidean; got {threshold:g}",
                )
        elif not -1 <= threshold <= 1:
            raise InvalidArgumentError(
                "duplicate_threshold",
                f"duplicate_threshold must be a cosine, -1 to 1, since the metric is {metric};"
                f" got {threshold:g}",
            )
        return threshold

    def _check_limit(self, field: str) -> None:
        value = check_integer(self, field, 0, LIMITS["rows_max"])
        if 0 < value < self.k:
            raise InvalidArgumentError(
                field, f"{field} must be 0 (no limit) or at least k = {self.k}, got {value}"
            )

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

        `nonzeros` counts the numbers that all points store, where they are sparse; `probes` are as
        many as Build tuned, and at most; `duplicate_threshold` is what `collapse_threshold` says.
        Raises `InvalidArgumentError` where k times the candidates is above its limit.
        """
        candidates, hashed = self._limits(rows, width, sought)
        by_rule: Search = "exact" if hashed == 0 or hashed >= rows else auto_search
        search = by_rule if self.search == "auto" else self.search
        seen = min(candidates or rows, hashed or rows, rows)
        # Sparse candidates together hold no more numbers than all points do.
        width = width if nonzeros is None else min(width, -(-nonzeros // seen))
        limit = self._limit(width)
        if self.k * seen > limit:
            unit = "dimensions" if nonzeros is None else "numbers each"
            bound = f"at most {limit} at {width} {unit}, got {self.k} times {seen}"
            raise InvalidArgumentError("candidates_limit", f"{_PRODUCT} must be {bound}")
        return EffectiveParameters(
            k=self.k,
            diversity=self.dial,
            selector=self.selector,
            variant=self.variant,
            search=search,
            hash_limit=hashed,
            candidates_limit=candidates,
            max_distance=self.max_distance,
            sampling=self.sampling,
            seed=self.seed,
            rounding=self.rounding,
            n_probes=min(self.n_probes or probes[0], probes[1]) if search == "tables" else 0,
            duplicate_threshold=self._compared(duplicate_threshold, seen, width),
            list_collapsed=self.list_collapsed,
            diversity_auto=self.diversity == "auto",
            lose_at_most=self.lose_at_most,
        )

    def most_compared(self, width: int) -> int:
        """Return among how many candidates of `width` numbers each near-copies are looked for."""
        lazily = self.selector not in _ALL_AT_ONCE and self.lose_at_most is None
        return most_compared(width, lazily=lazily)

    def _compared(self, threshold: float | None, seen: int, width: int) -> float | None:
        """Return the threshold, None where a default one would take too many comparisons."""
        most = self.most_compared(width)
        if threshold is None or seen <= most:
            return threshold
        if self.duplicate_threshold is None:
            return None
        sentence = f"near-copies are looked for among at most {most} candidates here, got {seen}:"
        sentence += " set candidates_limit, or keep_duplicates"
        raise InvalidArgumentError("candidates_limit", sentence)

    def _limits(self, rows: int, width: int, sought: Sought) -> tuple[int, int]:
        """Return the limits of candidates and of hashed points, defaults filled in."""
        fewest, fewest_hashed = _FEWEST[sought]
        most = self._limit(width) // self.k
        if not self.keep_duplicates:
            most = min(most, self.most_compared(width))
        least = max(fewest, 10 * self.k)
        growth = 1.0 if sought == "labels" else self._candidates_growth
        default_candidates = min(math.ceil(growth * least), max(self.k, most))
        candidates, default_hashed = default_candidates, 4 * default_candidates
        if sought == "dense":
            # The last of many candidates matter little, and codes of dense rows say enough.
            default_hashed = max(4 * least, 5 * default_candidates // 4)
        if self.candidates_limit is not None:
            candidates = self.candidates_limit
            default_hashed = 4 * (candidates or least)
        return candidates, self._hashed(rows, max(default_hashed, fewest_hashed))

    @property
    def _candidates_growth(self) -> float:
        """How many times as many candidates the dial asks for: far ones are picked at high dials.

        With so many `greedy` in the variant marginal closes .93 of the gap in J at a dial of 0.5.
        More leave the caches: at 1,000 rows of 256 numbers a step takes half as long again.
        """
        # A dial that each query gets from its candidates is chosen among as many as at a low one.
        if self.selector == "nearest" or self.diversity == "auto":
            return 1.0
        return min(MOST_CANDIDATES_GROWTH, max(1.0, 25 * self.dial**2))

    def most_candidates(self, width: int) -> int:
        """Return how many candidates of at most `width` numbers each this query may have."""
        return max(1, self._limit(width) // self.k)

    @property
    def searches_again(self) -> int:
        """How often a search may be repeated with greater limits, for results that differ."""
        named = {self.hash_limit, self.epsilon, self.candidates_limit} != {None}
        return 0 if named else SEARCHES_AGAIN

    def _hashed(self, rows: int, default: int) -> int:
        """Return the hash limit that is asked for, as it is or by epsilon."""
        if self.epsilon is not None:
            share: int = math.ceil(2 * rows ** (1 / (1 + self.epsilon)))
            return max(self.k, share)
        return default if self.hash_limit is None else self.hash_limit

    def _limit(self, width: int) -> int:
        """Return how much k times the candidates may be, where each holds so many numbers."""
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
        """Return what is legal and probably not meant."""
        return limits_equal_k(self.k, self.hash_limit, self.candidates_limit)
