"""Results of queries, predictions and builds, and the description of an index."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from divgrpc.types.hits import LabelHitRows, PointHitRows
from divgrpc.types.words import (
    CountArray,
    EffectiveLabelParameters,
    EffectiveParameters,
    FloatArray,
    IntArray,
    Mode,
    Points,
    QueryStats,
    Rounding,
    Search,
    Selector,
    Variant,
)


@dataclass(frozen=True, slots=True)
class WarningInfo:
    """A warning about a result that is correct but may be unexpected.

    `code` is stable, for programs. `message` is a sentence for people. `field` is the parameter
    that the warning concerns, or empty.
    """

    code: str
    message: str
    field: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QueryResult(PointHitRows):
    """Results of a batch of queries, in the order of selection.

    `result[0]` and iteration give rows of `divgrpc.types.hits.Hit` without padding. Columns are
    padded: `ids` (nq, k) int64 with -1, `scores` and `selection_scores` (nq, k) float32 with NaN.
    `counts` (nq,) uint32 is the number of results in each row.

    A score is the cosine, the inner product, or the squared Euclidean distance, which is smaller
    for nearer points. A selection score is the value that the selector maximised when it selected
    the point. `duality_gaps` (nq,) float32 is an upper bound on the distance of the shares of
    `qp_relax` from their optimum, as a share of the range of the objective. It is empty for other
    selectors.

    With `list_collapsed`, `collapsed_ids` (m,) int64 are the near-copies that results stand for.
    Those of place j in row i are `collapsed_ids[offsets[i * k + j]:offsets[i * k + j + 1]]`, with
    offsets = `collapsed_offsets` (nq * k + 1,) int64. Both are empty without `list_collapsed`.

    `diversities` (nq,) float64 are the dials that were chosen, and `dial_reasons` (nq,) the reasons
    for them. Both are empty if the query set the dial.

    With `lose_at_most` the reason is `loss_bound` if a greater dial loses more than the bound,
    `within_bound` if the greatest dial loses no more, and `equal_relevance` if all candidates are
    equally relevant. With `diversity="auto"` it is `fall_off`: the dial follows from how relevance
    falls off among the candidates. With either it is `no_choice`, and the dial is 0, if there are
    no more than k candidates.
    """

    ids: IntArray
    scores: FloatArray
    selection_scores: FloatArray
    counts: CountArray
    generation: int
    stats: QueryStats
    parameters: EffectiveParameters
    warnings: tuple[WarningInfo, ...] = ()
    duality_gaps: FloatArray = field(default_factory=lambda: np.empty(0, np.float32))
    collapsed_ids: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    collapsed_offsets: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    diversities: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    dial_reasons: npt.NDArray[np.str_] = field(default_factory=lambda: np.empty(0, np.str_))

    def collapsed(self, row: int, place: int) -> IntArray:
        """Return the ids (m,) of the near-copies that one result stands for, nearest first.

        `row` is the number of the query, `place` that of the result in its row, both from 0 up. The
        array is empty unless the query had `list_collapsed`.
        """
        if not len(self.collapsed_offsets):
            return self.collapsed_ids
        entry = row * self.ids.shape[1] + place
        return self.collapsed_ids[self.collapsed_offsets[entry] : self.collapsed_offsets[entry + 1]]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LabelResult(LabelHitRows):
    """Labels of a batch of documents, in the order of selection.

    `result[0]` and iteration give rows of `divgrpc.types.hits.LabelHit` without padding. Columns
    are padded: `labels` (nq, top_k) int64 with -1, `scores` and `selection_scores` (nq, top_k)
    float32 with NaN. `counts` (nq,) uint32 is the number of labels of each document.

    A score is the inner product of the label with the embedded document, or the share of the votes.
    A selection score is the value that the selector maximised. In `neighbour_vote` it equals the
    score, unless the selector is `hierarchy`. `names` has the names of each document's labels, and
    is empty if the index has none. `stats` count the search for labels or for neighbours.
    """

    labels: IntArray
    scores: FloatArray
    selection_scores: FloatArray
    counts: CountArray
    generation: int
    stats: QueryStats
    parameters: EffectiveLabelParameters
    warnings: tuple[WarningInfo, ...] = ()
    names: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """One array of an index; `bytes` is the size of its data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class PoolCost:
    """The cost of one kind of search, as Build measured it for a number of `candidates`.

    `hash_limit` is the default for this number of candidates. `n_probes` is the number of buckets
    or cells looked up, 0 for a search without them. `recall` is the share of the true nearest
    `candidates` among the hashed points: the lower end of a one-sided 95 % interval, over queries
    that took no part in tuning. The other fields are means per query: `points_scored` exactly,
    `codes_read`, `lists_read` (buckets or cells), and `entries_read` of inverted lists or buckets.
    """

    candidates: int
    hash_limit: int
    n_probes: int
    recall: float
    points_scored: float
    codes_read: float
    lists_read: float
    entries_read: float


@dataclass(frozen=True, slots=True)
class SearchCost:
    """The cost of one kind of search, as Build measured it.

    `recall` and `microseconds` are for a query with default parameters. `pools` has a `PoolCost`
    for each of a few numbers of candidates. `microseconds` are computed from counted work, not from
    a clock. An index of an earlier release has no `pools`: then `microseconds` are a median time,
    and `recall` is for the ten nearest points.
    """

    search: Search
    recall: float
    microseconds: float
    pools: tuple[PoolCost, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of Build: the parameter, its value, and the reason in words."""

    parameter: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class QueryDefault:
    """The parameters of Query for callers that leave them out; Evaluate can set them.

    A limit of None means the default of `divgrpc.parameters.QueryParameters`.
    """

    diversity: float
    selector: Selector
    variant: Variant
    search: Search
    hash_limit: int | None = None
    candidates_limit: int | None = None
    rounding: Rounding = "exchange"


@dataclass(frozen=True, slots=True)
class LabelInfo:
    """The labels of an index, and its label model.

    `rank` is the number of columns of the label factors, 0 without a model. `has_label_sets` is
    true if the points have labels, so that neighbours can vote. `parameters` are those of the
    training by name, and `losses` the loss after each iteration; None and empty if the model was
    not trained by Build. `auto_search` and `search_costs` describe the search for labels.
    `thresholds` are the defaults of PredictLabels by mode, as in `Defaults`.
    """

    label_count: int
    rank: int
    has_label_sets: bool
    has_names: bool
    has_hierarchy: bool
    parameters: dict[str, object] | None = None
    losses: tuple[float, ...] = ()
    auto_search: Search | None = None
    search_costs: tuple[SearchCost, ...] = ()
    thresholds: Mapping[Mode, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Defaults:
    """The parameters that calls to one generation take when the caller leaves them out.

    `query` is for Query. `thresholds` are the least scores of PredictLabels by mode, because the
    scores of the modes differ. A new generation has neither.
    """

    query: QueryDefault | None = None
    thresholds: Mapping[Mode, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class IndexInfo:
    """The description of an index: its parameters, and what Build chose and measured.

    `repr` shows the most important fields. `parameters` are the fields of
    `divgrpc.parameters.BuildParameters` by name, with every default filled in. `choices` are the
    values that Build chose. `code_bits` is the number of bits in a hash code. `n_probes` is the
    default of queries. `nonzeros` is the number of stored numbers, rows * dims if points are dense.
    `query_default` is None until a caller sets it, and `labels` is None in an index without labels.

    `auto_search` is the search that `auto` takes, chosen by `search_costs`. For dense queries of
    sparse points it is `auto_search_dense`, chosen by `search_costs_dense`. That is None under
    `euclidean`, or if there are too few points to make such queries. `duplicate_threshold` is the
    default of queries: a cosine, or under `euclidean` a squared distance. If it is None, queries
    collapse no near-copies by default.
    """

    name: str
    generation: int
    rows: int
    dims: int
    parameters: dict[str, object]
    code_bits: int
    n_probes: int
    auto_search: Search
    search_costs: tuple[SearchCost, ...]
    has_categories: bool
    has_subtopics: bool
    arrays: tuple[ArrayInfo, ...]
    points: Points = "dense"
    nonzeros: int = 0
    choices: tuple[Choice, ...] = ()
    warnings: tuple[WarningInfo, ...] = ()
    query_default: QueryDefault | None = None
    labels: LabelInfo | None = None
    auto_search_dense: Search | None = None
    search_costs_dense: tuple[SearchCost, ...] = ()
    duplicate_threshold: float | None = None

    @property
    def summary(self) -> str:
        """The name, generation, size, metric and hash family, in one line."""
        name = f"{self.name!r}, " if self.name else ""
        kind = f"{self.points} " if self.points == "sparse" else ""
        return (
            f"{name}generation {self.generation}, {self.rows:,} {kind}points x {self.dims:,} dims, "
            f"{self.parameters.get('metric')}, {self.parameters.get('hash_family')}"
        )

    def __repr__(self) -> str:
        threshold = self.duplicate_threshold
        default = "none by default" if threshold is None else f"{threshold:.9g}"
        size = sum(array.bytes for array in self.arrays)
        return (
            f"IndexInfo: {self.summary}\n"
            f"  auto search {self.auto_search}, duplicate_threshold {default}, "
            f"{size:,} bytes in {len(self.arrays)} arrays"
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a stage; `rows_total` is 0 and `seconds_left` is None if unknown.

    Rows are the points of a build. In an evaluation each query counts once per setting.
    """

    stage: str
    rows_done: int
    rows_total: int
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LabelPrediction:
    """Labels of a batch of documents, best first.

    `labels` (nq, top_k) int64 are padded with -1, `scores` (nq, top_k) float32 with NaN. `counts`
    (nq,) uint32 is the number of labels of each document.
    """

    labels: IntArray
    scores: FloatArray
    counts: CountArray


@dataclass(frozen=True, slots=True)
class TrainingProgress(Progress):
    """The progress of a training, in which each document counts once per iteration.

    `loss` is the loss after the last iteration, None during the first.
    """

    loss: float | None = None
