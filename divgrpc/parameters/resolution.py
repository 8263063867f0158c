"""Parameters of a query with every default filled in, for an index of a given size.

`QueryParameters` inherits these methods. Defaults depend on the number of points, on what Build
measured, and on limits of the work that one query may cause.
"""

import math
from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Final

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters.limits import LIMITS, most_compared
from divgrpc.parameters.warning_rules import limits_equal_k
from divgrpc.types import (
    Auto,
    EffectiveParameters,
    Metric,
    Search,
    Selector,
    Sought,
    WarningInfo,
)

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
_FEWEST: Final[Mapping[Sought, tuple[int, int]]] = {
    "dense": (200, 0),
    "sparse": (200, 1_000),
    "labels": (50, 400),
}
# Selectors that compare all candidates with each other.
_ALL_AT_ONCE: Final = ("rerank", "max_sum", "dpp", "qp_relax")
_PRODUCT: Final = "k times the candidates"
# What `resolve` computes. It copies all other fields of EffectiveParameters.
_COMPUTED: Final = (
    "diversity",
    "search",
    "hash_limit",
    "candidates_limit",
    "n_probes",
    "duplicate_threshold",
    "diversity_auto",
)
_COPIED: Final = tuple(f.name for f in fields(EffectiveParameters) if f.name not in _COMPUTED)
_copied_values: Final = attrgetter(*_COPIED)


class Resolution:
    """Defaults and bounds of a query; the fields are those of `QueryParameters`."""

    __slots__ = ()

    k: int
    diversity: float | Auto
    selector: Selector
    search: Search
    hash_limit: int | None
    epsilon: float | None
    candidates_limit: int | None
    n_probes: int | None
    duplicate_threshold: float | None
    keep_duplicates: bool
    lose_at_most: float | None

    @property
    def has_fixed_dial(self) -> bool:
        """Whether all query rows are answered at one dial, `diversity`."""
        return self.diversity != "auto" and self.lose_at_most is None

    @property
    def dial(self) -> float:
        """That dial, 0 where every row gets its own."""
        return 0.0 if self.diversity == "auto" or self.lose_at_most is not None else self.diversity

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
        candidates_seen = min(candidates or rows, hashed or rows, rows)
        # Sparse candidates together hold no more numbers than all points do.
        width = width if nonzeros is None else min(width, -(-nonzeros // candidates_seen))
        limit = self._limit(width)
        if self.k * candidates_seen > limit:
            unit = "dimensions" if nonzeros is None else "numbers each"
            bound = f"at most {limit} at {width} {unit}, got {self.k} times {candidates_seen}"
            raise InvalidArgumentError("candidates_limit", f"{_PRODUCT} must be {bound}")
        return EffectiveParameters(
            **dict(zip(_COPIED, _copied_values(self), strict=True)),
            diversity=self.dial,
            search=search,
            hash_limit=hashed,
            candidates_limit=candidates,
            n_probes=min(self.n_probes or probes[0], probes[1]) if search == "tables" else 0,
            duplicate_threshold=self._compared(duplicate_threshold, candidates_seen, width),
            diversity_auto=self.diversity == "auto",
        )

    def most_compared(self, width: int) -> int:
        """Return among how many candidates of `width` numbers each near-copies are looked for."""
        lazily = self.selector not in _ALL_AT_ONCE and self.lose_at_most is None
        return most_compared(width, lazily=lazily)

    def _compared(self, threshold: float | None, candidates_seen: int, width: int) -> float | None:
        """Return the threshold, None where a default one would take too many comparisons."""
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
        named = {self.hash_limit, self.epsilon, self.candidates_limit} != {None}
        return 0 if named else SEARCHES_AGAIN

    def _hashed(self, rows: int, default: int) -> int:
        """Return the hash limit that is asked for, as it is or by epsilon."""
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
