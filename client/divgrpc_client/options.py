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
from divgrpc.label_parameters import PredictParameters
from divgrpc.parameters import BuildParameters, LabelParameters, MetricWord, QueryParameters
from divgrpc.signatures import spell_out
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
from divgrpc_client.labelling import ModelLike
from divgrpc_client.vectors import VectorsLike

P = ParamSpec("P")
R = TypeVar("R")


class QueryOptions(TypedDict, total=False):
    """How a query is answered."""

    k: Annotated[int, "Return so many results for each row."]
    diversity: Annotated[
        float | Auto,
        "Trade nearness for diversity: 0 is plain neighbours, 1 the most; auto chooses for each "
        "query.",
    ]
    selector: Annotated[Selector, "Pick the k results from the candidates in this way."]
    variant: Annotated[Variant, "Follow this reading of the paper, for greedy and qp_relax."]
    search: Annotated[Search, "Find the points that are scored exactly in this way."]
    hash_limit: Annotated[int | None, "Score at most so many points; 0 is no limit."]
    epsilon: Annotated[float | None, "Set hash_limit to ceil(2 n^(1/(1+epsilon)))."]
    candidates_limit: Annotated[
        int | None, "Show the selector so many of the nearest points; 0 is no limit."
    ]
    max_distance: Annotated[
        float | None, "Drop points at a greater squared distance; not with inner_product."
    ]
    sampling: Annotated[Sampling, "Keep these where more points are found than hash_limit allows."]
    seed: Annotated[int, "Draw at random from this seed; the same seed gives the same answer."]
    rounding: Annotated[Rounding, "Turn the shares of qp_relax into k results in this way."]
    n_probes: Annotated[
        int | None,
        "Look at so many buckets, or cells, of tables; the default is as tuned by Build.",
    ]
    duplicate_threshold: Annotated[
        float | None,
        "Collapse points at least this similar to a better one: a cosine, or under euclidean a "
        "squared distance at most.",
    ]
    keep_duplicates: Annotated[bool, "Collapse no near-copies."]
    list_collapsed: Annotated[bool, "List the near-copies that each result stands for."]
    lose_at_most: Annotated[
        float | None,
        "Take the most diverse answer that loses at most this share of relevance; in place of "
        "diversity.",
    ]


class BuildOptions(TypedDict, total=False):
    """How an index is built."""

    metric: Annotated[
        MetricWord, "Measure nearness so; l2 is euclidean, ip and dot are inner_product."
    ]
    hash_family: Annotated[
        HashFamily, "Cut space into buckets or cells so; auto lets Build choose."
    ]
    hyperplanes: Annotated[Hyperplanes, "Draw random directions in this way."]
    centred: Annotated[bool, "Hash around the mean of the points; not with inner_product."]
    n_tables: Annotated[int | None, "Keep so many tables of buckets; not with cells."]
    n_bits: Annotated[int | None, "Give the key of a bucket so many bits; not with cells."]
    n_components: Annotated[
        int | None, "Draw directions, or learn cells, in so many principal components."
    ]
    target_recall: Annotated[float, "Find this share of the nearest for the candidates of a query."]
    zero_vectors: Annotated[ZeroVectors, "Refuse or leave out zero vectors, under cosine."]
    seed: Annotated[int, "Draw at random from this seed; the same seed gives the same arrays."]
    # Of the label model leml.
    rank: Annotated[
        int | None, "Give each label so many numbers; the default is chosen on rows held out."
    ]
    regularisation: Annotated[
        float | None, "Weigh the squares of the factors so; the default is chosen likewise."
    ]
    iterations: Annotated[
        int | None, "Train for so many iterations at most; the default is chosen likewise."
    ]
    inner_iterations: Annotated[
        int, "Take so many steps of conjugate gradients at most in each iteration."
    ]
    tolerance: Annotated[float, "End the training where the loss falls by a smaller share."]


class PredictOptions(TypedDict, total=False):
    """How labels are predicted."""

    top_k: Annotated[int, "Return so many labels for each document at most."]
    threshold: Annotated[
        float | None,
        "Leave out labels of a lower score, or share of the votes; -inf leaves out none; the "
        "default is what the index keeps.",
    ]
    diversity: Annotated[
        float | None,
        "Trade score for diversity: 0 is the best labels, 1 the most; the default is .3 for votes, "
        "else .05 by hierarchy or 0.",
    ]
    selector: Annotated[
        LabelSelector | None,
        "Pick labels in this way; the default is hierarchy where the index has one, else greedy.",
    ]
    search: Annotated[Search, "Find labels, or neighbours, in this way."]
    hash_limit: Annotated[int | None, "Score at most so many labels; 0 is no limit."]
    candidates_limit: Annotated[
        int | None, "Show the selector so many of the best labels; 0 is no limit."
    ]
    mode: Annotated[Mode, "Search among label factors, or let neighbours vote."]
    neighbours: Annotated[int, "Let so many neighbours vote, in neighbour_vote."]
    vote: Annotated[Vote, "Weigh the vote of a neighbour so, in neighbour_vote."]
    seed: Annotated[int, "Draw at random from this seed; the same seed gives the same answer."]


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
    ks: Annotated[Sequence[int], "Ask for so many results a query."]
    seed: Annotated[int, "Draw at random from this seed; the same seed gives the same answers."]
    keep_duplicates: Annotated[bool, "Collapse no near-copies."]


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
    top_ks: Annotated[Sequence[int], "Ask for so many labels a document."]
    neighbours: Annotated[int, "Let so many neighbours vote, in neighbour_vote."]
    vote: Annotated[Vote, "Weigh the vote of a neighbour so, in neighbour_vote."]
    seed: Annotated[int, "Draw at random from this seed; the same seed gives the same answers."]


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
