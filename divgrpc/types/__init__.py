"""Results and choices that the core and the client share.

Lives here: dataclasses of results, choices of parameters as `Literal` types, and rows of hits. May
import numpy. May not import any other package of divgrpc. Each choice is a value of an enum in the
.proto files: ``"lsh_sdiv"`` is ``HASH_FAMILY_LSH_SDIV``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.types.hits import LabelHitRows, PointHitRows

Points = Literal["dense", "sparse"]
Sought = Literal["dense", "sparse", "labels"]
Metric = Literal["cosine", "euclidean", "inner_product"]
HashFamily = Literal["lsh_div", "lsh_sdiv", "pca_hash", "cells", "auto"]
Hyperplanes = Literal["orthogonal", "gaussian"]
ZeroVectors = Literal["reject", "skip"]
Search = Literal["auto", "tables", "scan", "scan_hamming", "exact"]
Selector = Literal["nearest", "greedy", "mmr", "rerank", "qp_relax", "dpp", "max_sum"]
# Selectors of labels. `hierarchy` needs an index with a hierarchy.
LabelSelector = Literal[Selector, "hierarchy"]
Variant = Literal["corrected", "printed", "marginal"]
Sampling = Literal["uniform", "nearest"]
Rounding = Literal["exchange", "top_k"]
Mode = Literal["embedding", "neighbour_vote"]
Vote = Literal["weighted", "plain"]
Auto = Literal["auto"]
# Reasons for a dial that was chosen: see `QueryResult`.
DialReason = Literal["loss_bound", "within_bound", "fall_off", "no_choice", "equal_relevance"]
FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
CountArray = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class EffectiveParameters:
    """The parameters that answered a query: defaults filled in, `auto` resolved.

    A `hash_limit` or `candidates_limit` of 0 means no limit, and so does a `max_distance` of None.
    `n_probes` is 0 for a search without buckets or cells. A `duplicate_threshold` of None means
    that near-copies are not collapsed. With `diversity_auto` or `lose_at_most` each row has its own
    dial in `QueryResult.diversities`, and `diversity` is 0.
    """

    k: int
    diversity: float
    selector: Selector
    variant: Variant
    search: Search
    hash_limit: int
    candidates_limit: int
    max_distance: float | None
    sampling: Sampling
    seed: int
    rounding: Rounding
    n_probes: int
    duplicate_threshold: float | None = None
    list_collapsed: bool = False
    diversity_auto: bool = False
    lose_at_most: float | None = None

    @property
    def has_fixed_dial(self) -> bool:
        """Whether all rows have the dial `diversity`."""
        return not self.diversity_auto and self.lose_at_most is None


@dataclass(frozen=True, slots=True)
class EffectiveLabelParameters:
    """The parameters that predicted labels: defaults filled in, `auto` resolved.

    `search` and the limits are those of the search for labels, or in the mode `neighbour_vote` for
    neighbours. `neighbours` is 0 in the mode `embedding`. A limit of 0 means no limit, and a
    `threshold` of None means no threshold.
    """

    top_k: int
    threshold: float | None
    mode: Mode
    neighbours: int
    vote: Vote
    diversity: float
    selector: LabelSelector
    search: Search
    hash_limit: int
    candidates_limit: int
    seed: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QueryStats:
    """Counts of the work for each row of a query; every array is (nq,) uint32.

    `points_hashed` are the distinct points that hashing found, `buckets_probed` the buckets or
    cells looked up, and `points_scored` the points scored exactly. `candidates` are the points that
    the selector chose from. If they are crowded with near-copies, there may be four times
    `parameters.candidates_limit` of them.

    A row whose candidates are crowded may also be searched again with greater limits. `candidates`
    may then be still more, and the first three arrays count the last search only.

    `collapsed` candidates are near-copies of a result. `duplicates` of them are results
    nevertheless, because fewer than k candidates differ.
    """

    points_hashed: CountArray
    buckets_probed: CountArray
    points_scored: CountArray
    candidates: CountArray
    collapsed: CountArray
    duplicates: CountArray

    def __repr__(self) -> str:
        rows = len(self.candidates)
        title = f"QueryStats: {rows:,} {'row' if rows == 1 else 'rows'}"
        if not rows:
            return title
        ranges = [f"{column.name} {_range(getattr(self, column.name))}" for column in fields(self)]
        return f"{title}; {', '.join(ranges)}"


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


class Interval(NamedTuple):
    """A mean and its 95 % interval, NaN if the metric applies to no query."""

    value: float
    low: float
    high: float


class Microseconds(NamedTuple):
    """Times of single queries on one thread: the mean and three percentiles, in microseconds."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, eq=False)
class EvaluateRow:
    """The results of one setting, or of a choice among settings by cross-validation.

    `number` counts the rows of an evaluation from 0 up. `generation` is the one that answered.
    `search` is the requested search, and `parameters.search` the one that `auto` resolved to.
    `queries` is the number of queries; `empty` of them got no results, and `short` fewer than k.

    `metrics` are means over the queries to which they apply. Their names are those of
    `divgrpc.metrics.measure` and, from `divgrpc.metrics.list_distances`, `query_distance`, `ilad`,
    `ilmd` and `objective`. `h_of_means` is the harmonic mean of mean precision and mean
    normalised entropy, which is at least the mean h. `on_front` is true if no other setting with
    this k has a greater h in a shorter median time.

    A choice has `by_fold`: for each fold of the queries, the number of the row with the greatest
    mean h on the other folds, which is used for this fold. Its `parameters` are the best on all
    queries. `is_default` is true if they are now the default of the index.

    `values` are the metrics of every query, on request: (nq,) float64 each, NaN where a metric does
    not apply.
    """

    number: int
    generation: int
    search: Search
    parameters: EffectiveParameters
    metrics: dict[str, Interval]
    h_of_means: float
    microseconds: Microseconds
    queries: int
    empty: int
    short: int
    on_front: bool = False
    by_fold: tuple[int, ...] = ()
    is_default: bool = False
    values: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class EvaluateLabelRow:
    """The label predictions of one setting, or of a choice among settings by cross-validation.

    `number`, `generation`, `search`, `on_front` and `by_fold` are as in `EvaluateRow`, with `goal`
    in place of h: `h_score` if the index has a hierarchy, else `f_score`. `documents` is the number
    of documents; `empty` of them got no label, and `short` fewer than top_k. `scored` is the mean
    number of labels or neighbours that were scored exactly.

    `metrics` are means over the documents of the values of `divgrpc.metrics.measure_labels`;
    `drank` and `h_score` are NaN without a hierarchy. `precision_at`, `recall_at` and `ndcg_at` are
    means over the documents for k from 1 to top_k. `propensity_scored_at` is a ratio of sums, empty
    if the index does not store labels of points. `coverage_at` has no interval, because a document
    drawn twice covers no further label.

    `is_default` is true if the threshold of this choice is now the default of the index for its
    mode. On request `values` are the metrics of every document, (nq,) float64 each, and `labels`
    (nq, top_k) int64 its predictions in the order of selection, -1 for none.
    """

    number: int
    generation: int
    search: Search
    parameters: EffectiveLabelParameters
    goal: Literal["h_score", "f_score"]
    metrics: dict[str, Interval]
    precision_at: tuple[Interval, ...]
    recall_at: tuple[Interval, ...]
    ndcg_at: tuple[Interval, ...]
    propensity_scored_at: tuple[Interval, ...]
    coverage_at: tuple[float, ...]
    h_of_means: float
    microseconds: Microseconds
    documents: int
    empty: int
    short: int
    scored: float
    on_front: bool = False
    by_fold: tuple[int, ...] = ()
    is_default: bool = False
    values: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    labels: IntArray | None = None


def _range(counts: CountArray) -> str:
    """Return the least and the greatest count, or the one value if all are equal."""
    least, most = int(counts.min()), int(counts.max())
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
