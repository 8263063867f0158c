"""The parameters of a build: of the points, of their hashes and of a label model."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters.checks import check_choice, check_integer, check_number
from divgrpc.parameters.limits import LIMITS, SEED_MAX
from divgrpc.parameters.suggestions import METRIC_ALIASES, with_suggestions
from divgrpc.types import HashFamily, Hyperplanes, Metric, ZeroVectors

# What a caller may call a metric.
MetricWord: TypeAlias = Literal[Metric, "l2", "ip", "dot"]


def as_metric(word: MetricWord) -> Metric:
    """Return our word for a metric: l2 is euclidean, ip and dot are inner_product, in any case."""
    # What is no text at all may not be hashable.
    ours = METRIC_ALIASES.get(word.lower(), word) if isinstance(word, str) else word
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
