"""What a build and a query can be told, the defaults, and the limits: one table each.

Core, client and server all make these objects, so that a parameter is checked in one place and has
one name. Errors are `InvalidArgumentError` with the field named.
"""

import math
import numbers
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from divgrpc.checks import check_choice, check_integer, check_number
from divgrpc.errors import InvalidArgumentError
from divgrpc.suggestions import METRIC_ALIASES, with_suggestions
from divgrpc.types import (
    Auto,
    CountArray,
    EffectiveParameters,
    HashFamily,
    Hyperplanes,
    Metric,
    QueryDefault,
    QueryStats,
    Rounding,
    Sampling,
    Search,
    Selector,
    Sought,
    Variant,
    WarningInfo,
    ZeroVectors,
)

# What a caller may call a metric.
MetricWord: TypeAlias = Literal[Metric, "l2", "ip", "dot"]

INDEX_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
SEED_MAX: Final = 2**64 - 1

# Every limit a request can run into; GetServerInfo publishes this table.
LIMITS: Final = {
    "k_max": 10_000,
    "k_times_candidates_max": 100_000_000,
    # What dpp keeps: so many numbers of eight bytes.
    "dpp_k_times_candidates_max": 10_000_000,
    # Times the dimensions: what a selector computes for one query row, some seconds at most.
    "k_candidates_dims_max": 2**35,
    # Of dense rows, and of sparse ones, which cost what they store.
    "dims_max": 65_536,
    "sparse_dims_max": 2**22,
    "rows_max": 2**31 - 1,
    "query_rows_max": 10_000,
    "n_tables_max": 256,
    "n_bits_max": 24,
    "message_bytes_max": 4 * 2**20,
    "chunk_bytes": 2**20,
    "page_size_max": 1_000,
    "grid_settings_max": 1_000,
    # Of one evaluation: settings times queries, each some 150 bytes until the end.
    "evaluate_queries_max": 1_000_000,
    # Of label models.
    "rank_max": 4_096,
    "neighbours_max": 1_000,
    "iterations_max": 1_000,
    "regularisation_max": 10**12,
    "labels_max": 2**22,
    # Numbers of each of two factors, brought or trained.
    "label_factor_numbers_max": 2**30,
    "label_name_bytes_max": 1_024,
    # All names together.
    "label_names_bytes_max": 2**28,
    "hierarchy_edges_max": 2**24,
    "hierarchy_nodes_max": 2**24,
}

DEFAULT_K: Final = 10
# Of the settings that lose at most 2 % of mean relevance where nothing crowds, one that keeps h:
# `make bench ARGS="crowding"`.
DEFAULT_DIVERSITY: Final = 0.15
DEFAULT_VARIANT: Final[Variant] = "marginal"
CODE_BITS: Final = 256
# Points at least this similar are near-copies where points lie in all directions, unless a query
# names a threshold. `divgrpc.assembling` measures what that is for other points.
DEFAULT_DUPLICATE_COSINE: Final = 0.95
# So many times as many candidates as candidates_limit are looked at where near-copies crowd them.
POOL_GROWTH: Final = 4
# The candidates of a high dial, as a multiple of those of a low one.
MOST_CANDIDATES_GROWTH: Final = 5.0
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
ONE_DIAL: Final = (
    "diversity, diversity auto and lose_at_most are three ways to say the dial: set one of them"
)
# The selectors that follow the variant as printed.
_WITH_PRINTED: Final = ("greedy", "qp_relax")
# Times that qp_relax may go over all candidates, as if it picked so many.
RELAX_PASSES: Final = 100


def check_index_name(name: str) -> str:
    """Return `name` if it may name an index, else raise."""
    if not INDEX_NAME.fullmatch(name):
        raise InvalidArgumentError(
            "index",
            "index must be 1 to 63 of a-z, 0-9, _ and -, and begin with a letter or digit, "
            f"got {name[:80]!r}",
        )
    return name


def as_metric(word: MetricWord) -> Metric:
    """Return our word for a metric: l2 is euclidean, ip and dot are inner_product."""
    # What is no text at all may not be hashable.
    ours = METRIC_ALIASES.get(word, word) if isinstance(word, str) else word
    return cast(Metric, ours)


@with_suggestions
@dataclass(frozen=True, slots=True, kw_only=True)
class BuildParameters:
    """How an index is built; None means that Build chooses by the number of points and dimensions.

    The .proto's `BuildParameters` says what each field does, in the same words. `metric` also takes
    the words of `as_metric`.
    """

    metric: Metric = "cosine"
    hash_family: HashFamily = "auto"
    hyperplanes: Hyperplanes = "orthogonal"
    centred: bool = False
    n_tables: int | None = None
    n_bits: int | None = None
    n_components: int | None = None
    target_recall: float = 0.9
    zero_vectors: ZeroVectors = "reject"
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", as_metric(self.metric))
        check_choice(self, "metric", get_args(Metric))
        check_choice(self, "hash_family", get_args(HashFamily))
        check_choice(self, "hyperplanes", get_args(Hyperplanes))
        check_choice(self, "zero_vectors", get_args(ZeroVectors))
        if not isinstance(self.centred, bool):
            raise InvalidArgumentError(
                "centred", f"centred must be true or false, got {self.centred!r}"
            )
        if self.n_tables is not None:
            check_integer(self, "n_tables", 1, LIMITS["n_tables_max"])
        if self.n_bits is not None:
            check_integer(self, "n_bits", 1, LIMITS["n_bits_max"])
        if self.n_components is not None:
            check_integer(self, "n_components", 1, LIMITS["dims_max"])
        check_integer(self, "seed", 0, SEED_MAX)
        self._check_together()
        if not 0 < check_number(self, "target_recall") <= 1:
            raise InvalidArgumentError(
                "target_recall",
                f"target_recall must be above 0 and at most 1, got {self.target_recall}",
            )

    def _check_together(self) -> None:
        if self.centred and self.metric == "inner_product":
            raise InvalidArgumentError(
                "centred", "centred does not go with metric inner_product, which has a fixed origin"
            )
        for field in ("n_tables", "n_bits"):
            if self.hash_family == "cells" and getattr(self, field) is not None:
                raise InvalidArgumentError(
                    field, f"{field} does not go with hash_family cells, which has no tables"
                )


@with_suggestions
@dataclass(frozen=True, slots=True, kw_only=True)
class LabelParameters:
    """How a label model is trained; None means chosen on rows held out of the training.

    `rank` r: numbers that stand for a document or a label; `regularisation`: the weight of the
    squares of both factors; `iterations`: how often each factor is solved for, at most;
    `inner_iterations`: steps of conjugate gradients each time, at most; `tolerance`: training ends
    where an iteration lowers the loss by less than this share of it.
    """

    rank: int | None = None
    regularisation: float | None = None
    iterations: int | None = None
    inner_iterations: int = 10
    tolerance: float = 1e-4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rank is not None:
            check_integer(self, "rank", 1, LIMITS["rank_max"])
        most = LIMITS["regularisation_max"]
        if self.regularisation is not None and not (
            0 < check_number(self, "regularisation") <= most
        ):
            raise InvalidArgumentError(
                "regularisation",
                f"regularisation must be above 0 and at most {most}, got {self.regularisation}",
            )
        if self.iterations is not None:
            check_integer(self, "iterations", 1, LIMITS["iterations_max"])
        check_integer(self, "inner_iterations", 1, LIMITS["iterations_max"])
        if not 0 <= check_number(self, "tolerance") < 1:
            raise InvalidArgumentError(
                "tolerance", f"tolerance must be from 0 to below 1, got {self.tolerance}"
            )
        check_integer(self, "seed", 0, SEED_MAX)


def check_one_dial(named: Mapping[str, Any]) -> None:
    """Raise where what a caller named says the dial twice."""
    if named.get("lose_at_most") is not None and "diversity" in named:
        raise InvalidArgumentError("lose_at_most", ONE_DIAL)


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
            raise InvalidArgumentError("lose_at_most", ONE_DIAL)
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
                    "duplicate_threshold must be a squared distance under metric euclidean, 0 or"
                    f" more, got {threshold}",
                )
        elif not -1 <= threshold <= 1:
            raise InvalidArgumentError(
                "duplicate_threshold",
                f"duplicate_threshold must be a cosine under metric {metric}, between -1 and 1,"
                f" got {threshold}",
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
        fewest, fewest_hashed = _FEWEST[sought]
        most = self._limit(width) // self.k
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
        hashed = self._hashed(rows, max(default_hashed, fewest_hashed))
        by_rule: Search = "exact" if hashed == 0 or hashed >= rows else auto_search
        search = by_rule if self.search == "auto" else self.search
        seen = min(candidates or rows, hashed or rows, rows)
        # Sparse candidates together hold no more numbers than all points do.
        width = width if nonzeros is None else min(width, -(-nonzeros // seen))
        limit = self._limit(width)
        if self.k * seen > limit:
            each = f"{width} dimensions" if nonzeros is None else f"{width} numbers each"
            told = f"at most {limit} at {each}, got {self.k} times {seen}"
            raise InvalidArgumentError("candidates_limit", f"k times the candidates must be {told}")
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
            duplicate_threshold=duplicate_threshold,
            list_collapsed=self.list_collapsed,
            diversity_auto=self.diversity == "auto",
            lose_at_most=self.lose_at_most,
        )

    @property
    def _candidates_growth(self) -> float:
        """How many times as many candidates the dial asks for: far ones are picked at high dials.

        With so many `greedy` in the variant marginal closes .93 of the gap in J at a dial of 0.5;
        more would take more than twice as long as a default query.
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
        return SEARCHES_AGAIN if self.hash_limit is None and self.epsilon is None else 0

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
        """Return what is legal and probably not meant: limits that leave nothing to choose from."""
        # Nearly every call has none.
        if self.k not in (self.hash_limit, self.candidates_limit):
            return ()
        return tuple(
            WarningInfo(
                f"{field.upper()}_EQUALS_K",
                f"{field} equals k, so the selector has nothing to choose from",
                field,
            )
            for field, value in (
                ("hash_limit", self.hash_limit),
                ("candidates_limit", self.candidates_limit),
            )
            if value == self.k
        )


def too_few(
    field: str, wanted: int, there: int, counts: npt.NDArray[np.uint32]
) -> tuple[WarningInfo, ...]:
    """Return what is said where fewer were found than `wanted`, the value of `field`.

    The index has as many as are `there`; `counts` (nq,) were found.
    """
    # Of a row or two numpy would take longer; nearly every call has enough.
    short = [count for count in counts.tolist() if count < wanted]
    if not short:
        return ()
    upper, things = field.upper(), "labels" if field == "top_k" else "points"
    if wanted > there:
        sentence = f"{field} is {wanted} and the index has {there} {things}"
        return (WarningInfo(f"FEWER_THAN_{upper}_{things.upper()}", sentence, field),)
    sentence = f"{len(short)} of {len(counts)} rows have fewer than {wanted} results"
    return (WarningInfo(f"FEWER_THAN_{upper}_FOUND", sentence, field),)


def crowded(k: int, counts: CountArray, stats: QueryStats) -> tuple[WarningInfo, ...]:
    """Return what is said where near-copies fill up, as fewer than `k` candidates differ.

    `counts` (nq,) results were found; where they are fewer than `k`, nothing was left out for a
    near-copy.
    """
    duplicates = stats.duplicates.tolist()
    # Nearly every call has none.
    if not any(duplicates):
        return ()
    rows = sum(
        copies > 0 and count == k for copies, count in zip(duplicates, counts.tolist(), strict=True)
    )
    if not rows:
        return ()
    sentence = (
        f"{rows} of {len(duplicates)} rows have fewer than k = {k} results that differ, and"
        " near-copies fill them up; a larger candidates_limit and hash_limit look further"
    )
    return (WarningInfo("CANDIDATES_CROWDED", sentence, "candidates_limit"),)
