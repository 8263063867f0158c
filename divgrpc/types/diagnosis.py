"""The result of a diagnosis."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from divgrpc.types.evaluation import Interval
from divgrpc.types.parameters import Metric
from divgrpc.types.records import Scalar


class CopyShare(NamedTuple):
    """The near-copies of points at one threshold.

    threshold: two points are near-copies if their cosine is at least this number or, under
        `euclidean`, if their squared distance is at most this number.
    share: the share of points that have at least one near-copy, 0 to 1.
    copies: mean number of near-copies of a point.
    """

    threshold: float
    share: Interval
    copies: float


class ValueCopies(NamedTuple):
    """The near-copies of the points that have one value of an attribute.

    attribute: name of the attribute.
    value: the value; None stands for the points without a value.
    sampled: number of sampled points that have the value.
    shares: as in `Diagnosis`. The near-copies of a point may have other values.
    """

    attribute: str
    value: Scalar | None
    sampled: int
    shares: tuple[CopyShare, ...]


class DefaultEffect(NamedTuple):
    """What defaults of a query change, compared with the k nearest points.

    setting: the defaults that apply: `diversity` alone, `duplicate_threshold` alone, or `both`.
    different: mean number of results that are no near-copies of a result before them, at the
        default threshold.
    gain: how much farther apart the results are, as a share of the mean distance between two points
        of the collection.
    loss: the share of relevance that is given up. It is 0 for the nearest points, and 1 for random
        points.
    """

    setting: Literal["diversity", "duplicate_threshold", "both"]
    different: float
    gain: Interval
    loss: Interval


class Advice(NamedTuple):
    """Whether to use a default of Query.

    parameter: the parameter of Query.
    value: divgrpc's own default. Defaults of the index (`set_default`) are not measured.
    use: whether to leave it on. To turn it off, set `diversity=0` or `keep_duplicates=True`.
    reason: a sentence with the figures that the advice follows from.
    """

    parameter: Literal["diversity", "duplicate_threshold"]
    value: float
    use: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Whether points of a collection crowd, and what the defaults of Query do about it.

    generation, sequence: the generation and the number of the last write that were diagnosed.
    metric: metric of the index.
    rows: number of points that have a vector and pass the filter.
    sampled: number of points whose near-copies were counted among all these points.
    queries: number of sampled points that were also used as queries.
    k: maximum number of results of a query.
    results: mean number of results of a query; k, or fewer if there are fewer other points.
    different: mean number of nearest points that are no near-copies of nearer ones, at the default
        threshold.
    is_crowded: whether at least a twentieth of the nearest points are near-copies of nearer ones.
    shares: near-copies at several thresholds, the loosest first.
    default_threshold: the default of `duplicate_threshold`, which is one of the thresholds; None if
        Build measured none.
    by_value: near-copies of the points that have a value, for the attributes that the call names.
    effects: what each default changes.
    advice: whether to use each default.
    """

    generation: int
    sequence: int
    metric: Metric
    rows: int
    sampled: int
    queries: int
    k: int
    results: float
    different: float
    is_crowded: bool
    shares: tuple[CopyShare, ...]
    default_threshold: float | None
    by_value: tuple[ValueCopies, ...]
    effects: tuple[DefaultEffect, ...]
    advice: tuple[Advice, ...]
