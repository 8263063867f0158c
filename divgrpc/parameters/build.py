"""The parameters of a build, for hashing and for the training of a label model."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypedDict, cast

from divgrpc.errors import invalid
from divgrpc.parameters.checks import FieldChecks, real, whole
from divgrpc.parameters.limits import LIMITS, SEED_MAX
from divgrpc.parameters.suggestions import METRIC_ALIASES, with_suggestions
from divgrpc.types import HashFamily, Hyperplanes, Metric, ZeroVectors

# All names of metrics that callers may use, including aliases.
MetricWord: TypeAlias = Literal[Metric, "l2", "ip", "dot"]

_check_fields: Final = FieldChecks(
    n_tables=whole(1, LIMITS["n_tables_max"]),
    n_bits=whole(1, LIMITS["n_bits_max"]),
    n_components=whole(1, LIMITS["dims_max"]),
    target_recall=real("above 0 and at most 1", lambda share: 0 < share <= 1),
    seed=whole(0, SEED_MAX),
)
_check_label_fields: Final = FieldChecks(
    rank=whole(1, LIMITS["rank_max"]),
    regularisation=real(
        f"above 0 and at most {LIMITS['regularisation_max']}",
        lambda weight: 0 < weight <= LIMITS["regularisation_max"],
    ),
    iterations=whole(1, LIMITS["iterations_max"]),
    inner_iterations=whole(1, LIMITS["iterations_max"]),
    tolerance=real("from 0 to below 1", lambda share: 0 <= share < 1),
    seed=whole(0, SEED_MAX),
)


def as_metric(word: MetricWord) -> Metric:
    """Return the metric that an alias stands for; return any other value unchanged.

    `l2` means `euclidean`; `ip` and `dot` mean `inner_product`. An alias may be in upper or
    lower case.
    """
    # Look up strings only, because other values may not be hashable.
    metric = METRIC_ALIASES.get(word.lower(), word) if isinstance(word, str) else word
    return cast(Metric, metric)


class BuildOptions(TypedDict, total=False):
    """The fields of `BuildParameters` and `LabelParameters`, as keyword arguments."""

    metric: MetricWord
    hash_family: HashFamily
    hyperplanes: Hyperplanes
    centred: bool
    n_tables: int | None
    n_bits: int | None
    n_components: int | None
    target_recall: float
    zero_vectors: ZeroVectors
    seed: int
    vectors_optional: bool
    rank: int | None
    regularisation: float | None
    iterations: int | None
    inner_iterations: int
    tolerance: float


@with_suggestions
@dataclass(frozen=True, slots=True, kw_only=True)
class BuildParameters:
    """How an index is built. If a parameter is None, Build chooses a value that suits the points.

    metric: Distance measure; l2 means euclidean, ip and dot mean inner_product.
    hash_family: How to divide space into buckets or cells; auto lets Build choose.
    hyperplanes: How to draw random directions.
    centred: Subtract the mean of the points before hashing; not with inner_product.
    n_tables: Number of hash tables, 1 to 256; not with cells. Build chooses the default.
    n_bits: Number of bits in the key of a bucket, 1 to 24; not with cells. Build chooses the
        default.
    n_components: Number of principal components of the points that lsh_sdiv, pca_hash and cells
        use, at most the number of dimensions or, above 8,192 dimensions, 4,096. Build chooses the
        default.
    target_recall: Minimum share of the true nearest points that must be among a query's candidates
        with the search auto, above 0 and at most 1.
    zero_vectors: Whether to reject or to skip zero vectors under cosine.
    seed: Seed of random draws; the same seed gives the same arrays.
    vectors_optional: Whether points may lack a vector. They are stored and filtered, and no query
        finds them.
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
    vectors_optional: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", as_metric(self.metric))
        _check_fields(self)
        if self.centred and self.metric == "inner_product":
            raise invalid(
                "centred", "does not go with metric inner_product, which has a fixed origin"
            )
        for field in ("n_tables", "n_bits"):
            if self.hash_family == "cells" and getattr(self, field) is not None:
                raise invalid(field, "does not go with hash_family cells, which has no tables")


@with_suggestions
@dataclass(frozen=True, slots=True, kw_only=True)
class LabelParameters:
    """How the label model LEML is trained (Yu et al. 2014).

    If a parameter is None, Build chooses its value by predicting the labels of held-out rows.

    rank: Number of columns of the label factors, 1 to 4,096; the default is chosen on held-out
        rows.
    regularisation: Weight of the squared norms of the factors, above 0; the default is chosen on
        held-out rows.
    iterations: Maximum number of training iterations, 1 to 1,000; the default is chosen on held-out
        rows.
    inner_iterations: Maximum number of conjugate gradient steps in each iteration, 1 to 1,000.
    tolerance: Stop training when an iteration reduces the loss by less than this share, 0 to below
        1.
    seed: Seed of random draws; the same seed gives the same model.
    """

    rank: int | None = None
    regularisation: float | None = None
    iterations: int | None = None
    inner_iterations: int = 10
    tolerance: float = 1e-4
    seed: int = 0

    def __post_init__(self) -> None:
        _check_label_fields(self)
