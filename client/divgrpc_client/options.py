"""What a caller can set on a query, a build, an evaluation, a prediction: a table each.

The methods of both clients take these as keyword arguments, and the command line makes its options
from them. Names, types and meanings are the core's (`divgrpc.parameters`); what is left out is left
out on the wire too, so that the server's default holds. None is that, and refused for an option
whose default is a value.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Annotated, Any, Final, ParamSpec, TypedDict, TypeVar, get_args, get_type_hints

from divgrpc.evaluation import Grid
from divgrpc.evaluation.grid import Limits
from divgrpc.evaluation.label_grid import LabelGrid
from divgrpc.label_parameters import PredictParameters
from divgrpc.parameters import BuildParameters, LabelParameters, MetricWord, QueryParameters
from divgrpc.types import (
    HashFamily,
    Hyperplanes,
    Mode,
    Rounding,
    Sampling,
    Search,
    Selector,
    Variant,
    Vote,
    ZeroVectors,
)

P = ParamSpec("P")
R = TypeVar("R")


class QueryOptions(TypedDict, total=False):
    """How a query is answered."""

    k: Annotated[int, "how many results a row gets"]
    diversity: Annotated[float, "0: plain nearest neighbours; 1: diversity alone"]
    selector: Annotated[Selector, "what picks k of the candidates"]
    variant: Annotated[Variant, "which reading of the paper greedy and qp_relax follow"]
    search: Annotated[Search, "how points are found before they are scored exactly"]
    hash_limit: Annotated[int | None, "most points the hash stage hands on; 0: no limit"]
    epsilon: Annotated[float | None, "gives hash_limit as ceil(2 n^(1/(1+epsilon)))"]
    candidates_limit: Annotated[int | None, "nearest points the selector sees; 0: no limit"]
    max_distance: Annotated[
        float | None, "drops points at a greater squared distance; not with inner_product"
    ]
    sampling: Annotated[Sampling, "which points stay when the hash stage finds too many"]
    seed: Annotated[int, "of the draws; same seed, same answer"]
    rounding: Annotated[Rounding, "how qp_relax's shares become k results"]
    n_probes: Annotated[int | None, "buckets, or cells, that tables look at; default: as tuned"]
    duplicate_threshold: Annotated[
        float | None, "cosine from which on a point is a near-copy; euclidean: squared distance"
    ]
    keep_duplicates: Annotated[bool, "collapse no near-copies"]
    list_collapsed: Annotated[bool, "list the near-copies that each result stands for"]


class BuildOptions(TypedDict, total=False):
    """How an index is built."""

    metric: Annotated[MetricWord, "what nearness means, and what scores are"]
    hash_family: Annotated[HashFamily, "how space is cut into buckets or cells; auto chooses"]
    hyperplanes: Annotated[Hyperplanes, "how random directions are drawn"]
    centred: Annotated[bool, "hash around the mean of the points; not with inner_product"]
    n_tables: Annotated[int | None, "bucket tables; not with cells"]
    n_bits: Annotated[int | None, "bits of a table's key; not with cells"]
    n_components: Annotated[int | None, "principal components to draw directions or learn cells in"]
    target_recall: Annotated[float, "share of the true neighbours that probing is tuned for"]
    zero_vectors: Annotated[ZeroVectors, "what becomes of zero vectors under cosine"]
    seed: Annotated[int, "of every random choice; same seed, same arrays, not same timings"]
    # Of the label model leml.
    rank: Annotated[int | None, "numbers for a label; default: chosen on rows held out"]
    regularisation: Annotated[float | None, "weight of the factors' squares; default: chosen too"]
    iterations: Annotated[int | None, "of the training, at most; default: chosen too"]
    inner_iterations: Annotated[int, "steps of conjugate gradients in each of them, at most"]
    tolerance: Annotated[float, "training ends where the loss falls by a smaller share"]


class PredictOptions(TypedDict, total=False):
    """How labels are predicted."""

    top_k: Annotated[int, "how many labels a document gets at most"]
    threshold: Annotated[
        float | None, "the least score, or share of the votes; -inf: none; default: as kept"
    ]
    diversity: Annotated[float, "0: the best labels, or nearest neighbours; 1: diversity alone"]
    selector: Annotated[Selector, "what picks among the candidates"]
    search: Annotated[Search, "how labels, or neighbours, are found"]
    hash_limit: Annotated[int | None, "most labels the hash stage hands on; 0: no limit"]
    candidates_limit: Annotated[int | None, "best labels the selector sees; 0: no limit"]
    mode: Annotated[Mode, "search among label factors, or let neighbours vote"]
    neighbours: Annotated[int, "how many vote, in neighbour_vote"]
    vote: Annotated[Vote, "what a neighbour's vote weighs, in neighbour_vote"]
    seed: Annotated[int, "of the draws; same seed, same answer"]


class GridOptions(TypedDict, total=False):
    """Which settings an evaluation tries: every value of a list with every value of the others."""

    selectors: Annotated[Sequence[Selector], "what picks k of the candidates"]
    variants: Annotated[Sequence[Variant], "readings of the paper's Algorithm 1"]
    roundings: Annotated[Sequence[Rounding], "how qp_relax's shares become results"]
    searches: Annotated[Sequence[Search], "how points are found"]
    limits: Annotated[Sequence[Limits], "pairs of hash_limit and candidates_limit; 0: no limit"]
    diversities: Annotated[Sequence[float], "dials, 0 to 1"]
    ks: Annotated[Sequence[int], "how many results a query gets"]
    seed: Annotated[int, "of the draws; same seed, same answers"]


class LabelGridOptions(TypedDict, total=False):
    """The same of predicted labels; `neighbours`, `vote` and `seed` are those of all settings."""

    modes: Annotated[Sequence[Mode], "search among label factors, or let neighbours vote"]
    selectors: Annotated[Sequence[Selector], "what picks among the candidates"]
    searches: Annotated[Sequence[Search], "how labels, or neighbours, are found"]
    limits: Annotated[Sequence[Limits], "pairs of hash_limit and candidates_limit; 0: no limit"]
    thresholds: Annotated[Sequence[float | None], "least scores; none: no limit"]
    diversities: Annotated[Sequence[float], "dials, 0 to 1"]
    top_ks: Annotated[Sequence[int], "how many labels a document gets at most"]
    neighbours: Annotated[int, "how many vote, in neighbour_vote"]
    vote: Annotated[Vote, "what a neighbour's vote weighs, in neighbour_vote"]
    seed: Annotated[int, "of the draws; same seed, same answers"]


QUERY_DEFAULTS: Final[dict[str, object]] = {f.name: f.default for f in fields(QueryParameters)}
PREDICT_DEFAULTS: Final[dict[str, object]] = {f.name: f.default for f in fields(PredictParameters)}
# A label model is trained with the seed of the build.
BUILD_DEFAULTS: Final[dict[str, object]] = {
    f.name: f.default for f in (*fields(LabelParameters), *fields(BuildParameters))
}
GRID_DEFAULTS: Final[dict[str, Any]] = {f.name: f.default for f in fields(Grid)}
LABEL_GRID_DEFAULTS: Final[dict[str, Any]] = {f.name: f.default for f in fields(LabelGrid)}
_DEFAULTS: Final[dict[type, dict[str, object]]] = {
    QueryOptions: QUERY_DEFAULTS,
    PredictOptions: PREDICT_DEFAULTS,
    BuildOptions: BUILD_DEFAULTS,
    GridOptions: GRID_DEFAULTS,
    LabelGridOptions: LABEL_GRID_DEFAULTS,
}


def explained(table: type) -> dict[str, tuple[Any, str]]:
    """Return each option of a table with its type and its sentence."""
    hints = get_type_hints(table, include_extras=True)
    return {name: (get_args(hint)[0], get_args(hint)[1]) for name, hint in hints.items()}


def spelled_out(method: Callable[P, R]) -> Callable[P, R]:
    """Show `**options` as keyword parameters with defaults, for `help` and for tab completion.

    A type checker reads them from `Unpack` already; without this, a person sees only `**options`.
    """
    signature = inspect.signature(method)
    *named, options = signature.parameters.values()
    table = get_args(options.annotation)[0]
    spelled = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS[table][name], annotation=kind
        )
        for name, (kind, _) in explained(table).items()
    ]
    method.__signature__ = signature.replace(parameters=[*named, *spelled])  # type: ignore[attr-defined]  # inspect reads it
    sentences = "".join(f"\n  {name}: {said}" for name, (_, said) in explained(table).items())
    method.__doc__ = f"{inspect.cleandoc(method.__doc__ or '')}\n\nOptions:{sentences}"
    return method
