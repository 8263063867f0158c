"""What a caller can set on a query, a build, an evaluation, a prediction: a table each.

The methods of both clients take these as keyword arguments, and the command line makes its options
from them. Names, types and meanings are the core's (`divgrpc.parameters`); what is left out is left
out on the wire too, so that the server's default holds. None is that, and refused for an option
whose default is a value.
"""

import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Annotated, Any, Final, ParamSpec, TypedDict, TypeVar, get_args, get_type_hints

from divgrpc.evaluation import Grid
from divgrpc.evaluation.grid import Limits
from divgrpc.evaluation.label_grid import LabelGrid
from divgrpc.parameters import BuildParameters, LabelParameters, MetricWord, QueryParameters
from divgrpc.parameters.predict import PredictParameters
from divgrpc.parameters.signatures import spell_out
from divgrpc.types import (
    Auto,
    HashFamily,
    Hyperplanes,
    LabelSelector,
    Mode,
    Rounding,
    Sampling,
    Search,
    Selector,
    Variant,
    Vote,
    ZeroVectors,
)
from divgrpc_client.messages.labels import ModelLike
from divgrpc_client.messages.vectors import VectorsLike

P = ParamSpec("P")
R = TypeVar("R")


class QueryOptions(TypedDict, total=False):
    """How a query is answered."""

    k: Annotated[int, "Number of results for each row."]
    diversity: Annotated[
        float | Auto,
        "Balance of nearness and diversity: 0 returns the nearest points, 1 ignores nearness; auto "
        "chooses for each query.",
    ]
    selector: Annotated[Selector, "How to pick the k results from the candidates."]
    variant: Annotated[Variant, "Which reading of the paper greedy and qp_relax follow."]
    search: Annotated[Search, "How to find the points that are scored exactly."]
    hash_limit: Annotated[int | None, "Most points to score; 0 is no limit."]
    epsilon: Annotated[float | None, "Set hash_limit to ceil(2 n^(1/(1+epsilon)))."]
    candidates_limit: Annotated[
        int | None, "Number of nearest points that the selector sees; 0 is no limit."
    ]
    max_distance: Annotated[
        float | None, "Drop points at a greater squared distance; not with inner_product."
    ]
    sampling: Annotated[
        Sampling, "Which points to keep where the search finds more than hash_limit."
    ]
    seed: Annotated[int, "Seed of random draws; the same seed gives the same answer."]
    rounding: Annotated[Rounding, "How to turn the shares of qp_relax into k results."]
    n_probes: Annotated[
        int | None,
        "Number of buckets, or cells, to look up with the search tables; Build tunes the default.",
    ]
    duplicate_threshold: Annotated[
        float | None,
        "Collapse points at least this similar to a better one: a cosine, or under euclidean a "
        "squared distance at most; Build measures the default, which divgrpc info shows.",
    ]
    keep_duplicates: Annotated[bool, "Do not collapse near-copies."]
    list_collapsed: Annotated[bool, "List the near-copies that each result stands for."]
    lose_at_most: Annotated[
        float | None,
        "Take the most diverse answer that loses at most this share of relevance; in place of "
        "diversity.",
    ]


class BuildOptions(TypedDict, total=False):
    """How an index is built."""

    metric: Annotated[
        MetricWord, "Distance measure; l2 means euclidean, ip and dot mean inner_product."
    ]
    hash_family: Annotated[
        HashFamily, "How to cut space into buckets or cells; auto lets Build choose."
    ]
    hyperplanes: Annotated[Hyperplanes, "How to draw random directions."]
    centred: Annotated[bool, "Hash around the mean of the points; not with inner_product."]
    n_tables: Annotated[int | None, "Number of tables of buckets; not with cells."]
    n_bits: Annotated[int | None, "Number of bits in the key of a bucket; not with cells."]
    n_components: Annotated[
        int | None, "Number of principal components to draw directions or learn cells in."
    ]
    target_recall: Annotated[
        float, "Share of the nearest points that a query's candidates must hold."
    ]
    zero_vectors: Annotated[ZeroVectors, "Refuse or leave out zero vectors, under cosine."]
    seed: Annotated[int, "Seed of random draws; the same seed gives the same arrays."]
    # Of the label model leml.
    rank: Annotated[
        int | None, "How many numbers each label has; the default is chosen on rows held out."
    ]
    regularisation: Annotated[
        float | None, "Weight of the squares of the factors; the default is chosen likewise."
    ]
    iterations: Annotated[
        int | None, "Most iterations of the training; the default is chosen likewise."
    ]
    inner_iterations: Annotated[int, "Most steps of conjugate gradients in each iteration."]
    tolerance: Annotated[float, "End the training where the loss falls by a smaller share."]


class PredictOptions(TypedDict, total=False):
    """How labels are predicted."""

    top_k: Annotated[int, "Most labels for each document."]
    threshold: Annotated[
        float | None,
        "Leave out labels of a lower score, or share of the votes; -inf leaves out none; the "
        "default is what the index keeps.",
    ]
    diversity: Annotated[
        float | None,
        "Balance of score and diversity: 0 returns the best labels, 1 ignores scores; the default "
        "is .3 for votes, else .05 by hierarchy or 0.",
    ]
    selector: Annotated[
        LabelSelector | None,
        "How to pick labels; the default is hierarchy where the index has one, else greedy.",
    ]
    search: Annotated[Search, "How to find labels, or neighbours."]
    hash_limit: Annotated[int | None, "Most labels to score; 0 is no limit."]
    candidates_limit: Annotated[
        int | None, "Number of best labels that the selector sees; 0 is no limit."
    ]
    mode: Annotated[Mode, "Search among label factors, or let neighbours vote."]
    neighbours: Annotated[int, "Number of neighbours that vote, in neighbour_vote."]
    vote: Annotated[Vote, "How to weight neighbours' votes, in neighbour_vote."]
    seed: Annotated[int, "Seed of random draws; the same seed gives the same answer."]


class GridOptions(TypedDict, total=False):
    """Which settings an evaluation tries: every value of a list with every value of the others."""

    selectors: Annotated[Sequence[Selector], "Try these ways to pick k of the candidates."]
    variants: Annotated[Sequence[Variant], "Try these readings of the paper's Algorithm 1."]
    roundings: Annotated[Sequence[Rounding], "Try these ways to round the shares of qp_relax."]
    searches: Annotated[Sequence[Search], "Try these ways to find points."]
    limits: Annotated[
        Sequence[Limits], "Try these pairs of hash_limit and candidates_limit; 0 is no limit."
    ]
    diversities: Annotated[Sequence[float], "Try these dials, from 0 to 1."]
    ks: Annotated[Sequence[int], "Try these numbers of results a query."]
    seed: Annotated[int, "Seed of random draws; the same seed gives the same answers."]
    keep_duplicates: Annotated[bool, "Do not collapse near-copies."]


class LabelGridOptions(TypedDict, total=False):
    """The same of predicted labels; `neighbours`, `vote` and `seed` are those of all settings."""

    modes: Annotated[
        Sequence[Mode], "Try these: search among label factors, or let neighbours vote."
    ]
    selectors: Annotated[Sequence[LabelSelector], "Try these ways to pick from the candidates."]
    searches: Annotated[Sequence[Search], "Try these ways to find labels, or neighbours."]
    limits: Annotated[
        Sequence[Limits], "Try these pairs of hash_limit and candidates_limit; 0 is no limit."
    ]
    thresholds: Annotated[Sequence[float | None], "Try these least scores; none is no limit."]
    diversities: Annotated[Sequence[float], "Try these dials, from 0 to 1."]
    top_ks: Annotated[Sequence[int], "Try these numbers of labels a document."]
    neighbours: Annotated[int, "Number of neighbours that vote, in neighbour_vote."]
    vote: Annotated[Vote, "How to weight neighbours' votes, in neighbour_vote."]
    seed: Annotated[int, "Seed of random draws; the same seed gives the same answers."]


QUERY_DEFAULTS: Final[dict[str, object]] = {f.name: f.default for f in fields(QueryParameters)}
PREDICT_DEFAULTS: Final[dict[str, object]] = {f.name: f.default for f in fields(PredictParameters)}
# A label model is trained with the seed of the build.
BUILD_DEFAULTS: Final[dict[str, object]] = {
    f.name: f.default for f in (*fields(LabelParameters), *fields(BuildParameters))
}
GRID_DEFAULTS: Final[dict[str, Any]] = {f.name: f.default for f in fields(Grid)}
LABEL_GRID_DEFAULTS: Final[dict[str, Any]] = {f.name: f.default for f in fields(LabelGrid)}
# Names of annotations of methods beside the choices of `divgrpc.types`.
_NAMES: Final[dict[Any, str]] = {
    VectorsLike: "VectorsLike",
    ModelLike: "LabelModelLike",
    MetricWord: "Metric",
}
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
    *_, options = inspect.signature(method).parameters.values()
    table = get_args(options.annotation)[0]
    defaults, rows = _DEFAULTS[table], explained(table).items()
    spell_out(
        method,
        _NAMES,
        [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind
            )
            for name, (kind, _) in rows
        ],
    )
    lines = [_line(name, said, defaults[name]) for name, (_, said) in rows]
    method.__doc__ = "\n".join([inspect.cleandoc(method.__doc__ or ""), "", *lines])
    return method


def _line(name: str, sentence: str, default: object) -> str:
    """Return the paragraph of a docstring on an option and its default."""
    text = sentence if default is None else f"{sentence} Default: {default!r}."
    return textwrap.fill(f"{name}: {text}", width=96, subsequent_indent="    ")
