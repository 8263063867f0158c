"""Options of the clients' methods: keyword arguments with defaults and explanations.

The options are the fields of the core's dataclasses. An option that is left out is not sent, so the
server's default applies. None has the same meaning if the default of the option is None, and is
refused otherwise. The command line makes its options from the same tables.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from typing import Any, Final, ParamSpec, TypeAlias, TypedDict, TypeVar, get_args, get_type_hints

from divgrpc.evaluation import Grid
from divgrpc.evaluation.grid import LabelGrid, Limits
from divgrpc.parameters import (
    BuildOptions,
    BuildParameters,
    DiversifyOptions,
    DiversifyParameters,
    LabelParameters,
    MetricWord,
    PredictOptions,
    PredictParameters,
    QueryOptions,
    QueryParameters,
)
from divgrpc.parameters.signatures import (
    defaults_of,
    explanations_of,
    paragraph,
    spell_out,
    spell_out_options,
)
from divgrpc.types import (
    LabelSelector,
    Mode,
    Progress,
    Rounding,
    Sampling,
    Search,
    Selector,
    Variant,
    Vote,
)
from divgrpc.types.filters import FilterLike
from divgrpc.types.quotas import Groups, QuotasLike
from divgrpc.types.records import (
    AttributesLike,
    AttributeTypes,
    IdsLike,
    IdsOf,
    NumbersLike,
    PayloadsLike,
    ShownLike,
)
from divgrpc_client.messages.labels import LabelsLike, ModelLike
from divgrpc_client.messages.stream_items import OnError, StreamItem
from divgrpc_client.messages.vectors import QueryLike, VectorsLike

__all__ = [
    "BuildOptions",
    "DiversifyOptions",
    "GridOptions",
    "LabelGridOptions",
    "PredictOptions",
    "QueryOptions",
]

# A function that is called with the progress of a build or an evaluation.
OnProgress: TypeAlias = Callable[[Progress], object] | None

P = ParamSpec("P")
R = TypeVar("R")


class GridOptions(TypedDict, total=False):
    """The settings that an evaluation tries: all combinations of the values in these lists.

    selectors: Try these ways to pick k of the candidates.
    variants: Try these readings of the paper's Algorithm 1.
    roundings: Try these ways to round the shares of qp_relax.
    searches: Try these ways to find points.
    limits: Try these pairs of hash_limit and candidates_limit; 0 is no limit. Default: one pair,
        the defaults of a single call.
    epsilons: Try these values of epsilon, which set hash_limit by the paper's rule.
    n_probes: Try these numbers of buckets or cells to look up if the search is tables.
    samplings: Try these ways to keep points if the search finds more than hash_limit.
    diversities: Try these diversities, from 0 to 1.
    ks: Try these numbers of results per query.
    seed: Seed of random draws; the same seed gives the same answers.
    keep_duplicates: Do not collapse near-copies.
    """

    selectors: Sequence[Selector]
    variants: Sequence[Variant]
    roundings: Sequence[Rounding]
    searches: Sequence[Search]
    limits: Sequence[Limits]
    epsilons: Sequence[float | None]
    n_probes: Sequence[int | None]
    samplings: Sequence[Sampling]
    diversities: Sequence[float]
    ks: Sequence[int]
    seed: int
    keep_duplicates: bool


class LabelGridOptions(TypedDict, total=False):
    """The settings that an evaluation of predictions tries, like `GridOptions` for queries.

    modes: Try these modes: embedding searches label factors, neighbour_vote lets neighbours vote.
    selectors: Try these ways to pick from the candidates.
    searches: Try these ways to find labels, or neighbours.
    limits: Try these pairs of hash_limit and candidates_limit; 0 is no limit. Default: one pair,
        the defaults of a single call.
    n_probes: Try these numbers of buckets or cells to look up if the search is tables.
    thresholds: Try these minimum scores; none means no minimum.
    diversities: Try these diversities, from 0 to 1.
    top_ks: Try these numbers of labels per document.
    neighbours: Number of neighbours that vote, in neighbour_vote.
    vote: How to weight neighbours' votes, in neighbour_vote.
    seed: Seed of random draws; the same seed gives the same answers.
    """

    modes: Sequence[Mode]
    selectors: Sequence[LabelSelector]
    searches: Sequence[Search]
    limits: Sequence[Limits]
    n_probes: Sequence[int | None]
    thresholds: Sequence[float | None]
    diversities: Sequence[float]
    top_ks: Sequence[int]
    neighbours: int
    vote: Vote
    seed: int


# Sources of the defaults and explanations of each table of options. `BuildParameters` comes last so
# that its `seed` replaces the one in `LabelParameters`: a label model has the seed of the build.
_TABLES: Final[dict[type, tuple[type, ...]]] = {
    QueryOptions: (QueryParameters,),
    DiversifyOptions: (DiversifyParameters,),
    PredictOptions: (PredictParameters,),
    BuildOptions: (LabelParameters, BuildParameters),
    GridOptions: (Grid, GridOptions),
    LabelGridOptions: (LabelGrid, LabelGridOptions),
}
QUERY_DEFAULTS: Final = defaults_of(QueryParameters)
PREDICT_DEFAULTS: Final = defaults_of(PredictParameters)
BUILD_DEFAULTS: Final = defaults_of(LabelParameters, BuildParameters)

# Explanations of parameters that many methods have, for methods whose docstrings lack them.
_OF_CALLS: Final = {
    "name": "the index.",
    "timeout": "seconds for the whole call. Default: the client's timeout; writes have 30 seconds, "
    "and Build, QueryStream and evaluations no deadline.",
    "request_id": "printable ASCII that the server's log shows with this call.",
}
# Names that signatures show for types, in addition to the names in `divgrpc.types`.
_NAMES: Final[dict[Any, str]] = {
    # The first type that fits gives the name, so a union with None comes before its type.
    QueryLike: "QueryLike",
    Groups: "Groups",
    VectorsLike: "VectorsLike",
    StreamItem: "StreamItem",
    OnError: "OnError",
    LabelsLike: "LabelsLike",
    IdsLike: "IdsLike",
    IdsOf: "IdsLike",
    ShownLike: "ShownLike",
    FilterLike: "FilterLike",
    QuotasLike: "QuotasLike",
    AttributesLike: "AttributesLike",
    PayloadsLike: "PayloadsLike",
    AttributeTypes: "AttributeTypes",
    NumbersLike: "NumbersLike",
    OnProgress: "OnProgress",
    ModelLike: "LabelModelLike",
    MetricWord: "Metric",
}


def explained(table: type) -> dict[str, tuple[Any, str, object]]:
    """Return the type, the explanation and the default of each option of a table."""
    sources = _TABLES[table]
    texts, defaults = explanations_of(*sources), defaults_of(*filter(is_dataclass, sources))
    hints = get_type_hints(table)
    return {name: (hint, texts.get(name, ""), defaults[name]) for name, hint in hints.items()}


def spelled_out(method: Callable[P, R]) -> Callable[P, R]:
    """Give a method a signature with its `**options` spelled out, for `help` and completion.

    Explanations of the parameters in `_OF_CALLS` are added to the docstring if it lacks them.
    """
    parameters = inspect.signature(method).parameters
    missing = (name for name in _OF_CALLS if name in parameters.keys() - explanations_of(method))
    lines = [paragraph(name, _OF_CALLS[name]) for name in missing]
    method.__doc__ = "\n".join([inspect.cleandoc(method.__doc__ or ""), "", *lines])
    *_, options = parameters.values()
    if options.kind is not options.VAR_KEYWORD:
        spell_out(method, _NAMES)
        return method
    return spell_out_options(method, _TABLES[get_args(options.annotation)[0]], _NAMES)
