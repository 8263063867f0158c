"""The types that the core and the client share.

This package contains dataclasses of results, rows of hits, and `Literal` types of the values that
parameters accept. Nearly every value corresponds to an enum value in the .proto files. For example,
``"lsh_sdiv"`` is ``HASH_FAMILY_LSH_SDIV``.

The package may import numpy. It may not import any other package of divgrpc.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from divgrpc.types.diagnosis import (
    Advice,
    CopyShare,
    DefaultEffect,
    Diagnosis,
    ValueCopies,
)
from divgrpc.types.diversification import Diversification, Pick, PlaceGroup
from divgrpc.types.evaluation import EvaluateLabelRow, EvaluateRow, Interval, Microseconds
from divgrpc.types.explanations import Explanation, Refusal, Report
from divgrpc.types.hits import HitGroup, LabelHitRows, PointHitRows, rows_of
from divgrpc.types.parameters import (
    Auto,
    CountArray,
    DialReason,
    Durability,
    EffectiveLabelParameters,
    EffectiveParameters,
    FloatArray,
    HashFamily,
    Hyperplanes,
    IntArray,
    LabelSelector,
    Metric,
    Mode,
    OnInfeasible,
    Points,
    RefusalRule,
    Rounding,
    Sampling,
    Search,
    Selector,
    Sought,
    Variant,
    Vote,
    WriteMode,
    ZeroVectors,
)
from divgrpc.types.quotas import QuotaShortfall
from divgrpc.types.records import Attribute, AttributeValue, IdArray, IdKind, Scalar
from divgrpc.types.shards import ReplicaInfo, ReplicaState, ShardInfo
from divgrpc.types.writes import WriteResult, WritesInfo

__all__ = [
    "Advice",
    "ArrayInfo",
    "Attribute",
    "AttributeValue",
    "Auto",
    "Choice",
    "CopyShare",
    "CountArray",
    "DefaultEffect",
    "Defaults",
    "Diagnosis",
    "DialReason",
    "Diversification",
    "Durability",
    "EffectiveLabelParameters",
    "EffectiveParameters",
    "EvaluateLabelRow",
    "EvaluateRow",
    "Explanation",
    "FloatArray",
    "HashFamily",
    "Hyperplanes",
    "IdArray",
    "IdKind",
    "IndexInfo",
    "IntArray",
    "Interval",
    "LabelInfo",
    "LabelPrediction",
    "LabelResult",
    "LabelSelector",
    "Metric",
    "Microseconds",
    "Mode",
    "OnInfeasible",
    "Pick",
    "PlaceGroup",
    "Points",
    "PoolCost",
    "Progress",
    "QueryDefault",
    "QueryResult",
    "QueryStats",
    "Refusal",
    "RefusalRule",
    "ReplicaInfo",
    "ReplicaState",
    "Report",
    "Rounding",
    "Sampling",
    "Search",
    "SearchCost",
    "Selector",
    "ShardInfo",
    "Sought",
    "TrainingProgress",
    "ValueCopies",
    "Variant",
    "Vote",
    "WarningInfo",
    "WriteMode",
    "WriteResult",
    "WritesInfo",
    "ZeroVectors",
    "rows_of",
]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QueryStats:
    """Counts of the work for each row of a query; every array is (nq,) uint32.

    points_hashed: distinct points that the hash stage passed on to exact scoring. In the search
        `exact`, which has no hash stage, all points up to `parameters.hash_limit` count.
    buckets_probed: buckets or cells that were looked up.
    points_scored: points that were scored exactly.
    candidates: points that the selector picked from. If the results are the nearest points, and no
        near-copies are collapsed, these are at most k. If many candidates are near-copies, the
        number may be up to four times `parameters.candidates_limit`.
    collapsed: candidates that are near-copies of a result.
    duplicates: near-copies among the results, which fill up the results if fewer than k candidates
        are distinct.

    If a row has fewer than k distinct candidates, its search may be repeated with greater limits.
    In this case `candidates` may exceed four times `parameters.candidates_limit`. `points_hashed`,
    `buckets_probed` and `points_scored` count the last search only. They do not count the further
    searches that quotas need.
    """

    points_hashed: CountArray
    buckets_probed: CountArray
    points_scored: CountArray
    candidates: CountArray
    collapsed: CountArray
    duplicates: CountArray

    def __repr__(self) -> str:
        title = f"QueryStats: {rows_of(len(self.candidates))}"
        if not len(self.candidates):
            return title
        ranges = [f"{column.name} {_range(getattr(self, column.name))}" for column in fields(self)]
        return f"{title}; {', '.join(ranges)}"


@dataclass(frozen=True, slots=True)
class WarningInfo:
    """A warning about a result that is correct but may be unexpected.

    code: stable code for programs.
    message: sentence for people.
    field: name of the parameter that the warning concerns, or empty.
    """

    code: str
    message: str
    field: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QueryResult(PointHitRows):
    """Results of a batch of queries, in the order of selection.

    `result[i]` is row i as a tuple of `divgrpc.types.hits.Hit` without padding; iteration yields
    rows.

    The columns are padded arrays. `ids` (nq, k) int64 is padded with -1. If the index has string
    ids, `ids` has the dtype object, and is padded with "". `scores` and `selection_scores` (nq, k)
    float32 are padded with NaN. `counts` (nq,) uint32 is the number of results in each row. If the
    query had `with_attributes` or `with_payload`, `attributes` (values by the name of the
    attribute) and `payloads` have one item per result, without padding.

    A score is the cosine, the inner product, or the squared Euclidean distance, which is smaller
    for nearer points. A selection score is the value that the selector maximised when it selected
    the point.

    `duality_gaps` (nq,) float32 is only set for the selector `qp_relax`. A duality gap is an upper
    bound on the difference in objective between the fractional solution of `qp_relax` and the
    optimum, as a share of the range of the objective.

    `points_passing` is the number of points that pass the filter of the query, or None if the query
    has no filter.

    `generation` and `sequence` say what was searched: a build of the index, and the last write that
    is visible. `sequence` is 0 if nothing was written.

    `next_page_token` is the `page_token` of the next page. It is empty after the last page, and if
    the query had neither `paged` nor a `page_token`.

    `collapsed_ids` (m,) int64 and `collapsed_offsets` (nq * k + 1,) int64 are only set if the query
    had `list_collapsed`. The method `collapsed` returns the near-copies that were collapsed into
    the result at place j of row i. With p = i * k + j, these are
    `collapsed_ids[collapsed_offsets[p] : collapsed_offsets[p + 1]]`. If the index has string ids,
    `collapsed_ids` has the dtype object.

    `explanations` has an `Explanation` for each row if the query had `explain`, and `report` is a
    `Report` on all rows if it had `with_report`.

    `diversities` (nq,) float64 and `dial_reasons` (nq,) are only set if the query had
    `diversity="auto"` or `lose_at_most`. `diversities` are the dials that were chosen for the rows,
    and `dial_reasons` are the reasons:

    - `no_choice`: there are no more than k candidates, so the dial is 0.
    - `fall_off`: under `diversity="auto"`, the dial follows from how fast the relevance of the
      candidates falls off.
    - `loss_bound`: under `lose_at_most`, a greater dial would lose more than the bound.
    - `within_bound`: under `lose_at_most`, even the greatest dial loses no more than the bound.
    - `equal_relevance`: under `lose_at_most`, all candidates are equally relevant.

    `group_values`, `group_offsets` and `group_counts` are only set if the query had `group_by`. Row
    i has `group_counts[i]` groups, in the order of their first picks. Counted over all rows, group
    g has the value `group_values[g]`, and the results `group_offsets[g]` to
    `group_offsets[g + 1]` - 1, counted over all rows without padding. The method `groups` returns
    the groups of a row.

    `coverage` is the share of the points that was searched. It is below 1 if the query had
    `allow_partial` and no server of `missing_shards` was up.

    `quota_shortfalls` says which quotas the results miss, if the query had
    `on_infeasible="relax"`.
    """

    ids: IdArray
    scores: FloatArray
    selection_scores: FloatArray
    counts: CountArray
    generation: int
    stats: QueryStats
    parameters: EffectiveParameters
    warnings: tuple[WarningInfo, ...] = ()
    duality_gaps: FloatArray = field(default_factory=lambda: np.empty(0, np.float32))
    collapsed_ids: IdArray = field(default_factory=lambda: np.empty(0, np.int64))
    collapsed_offsets: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    diversities: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    dial_reasons: npt.NDArray[np.str_] = field(default_factory=lambda: np.empty(0, np.str_))
    attributes: Mapping[str, tuple[AttributeValue, ...]] = field(default_factory=dict)
    payloads: tuple[bytes, ...] = ()
    points_passing: int | None = None
    sequence: int = 0
    next_page_token: str = ""
    explanations: tuple[Explanation, ...] = ()
    report: Report | None = None
    group_values: tuple[Scalar | None, ...] = ()
    group_offsets: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    group_counts: CountArray = field(default_factory=lambda: np.empty(0, np.uint32))
    quota_shortfalls: tuple[QuotaShortfall, ...] = ()
    coverage: float = 1.0
    missing_shards: tuple[int, ...] = ()

    def groups(self, row: int) -> tuple[HitGroup, ...]:
        """Return the groups of a row, in the order of their first picks.

        `row` is the number of the query, from 0 up. Empty unless the query had `group_by`.
        """
        if not len(self.group_counts):
            return ()
        hits, first = self[row], int(self.group_counts[:row].sum())
        groups = range(first, first + int(self.group_counts[row]))
        offsets = (self.group_offsets - self.group_offsets[first]).tolist()
        return tuple(
            HitGroup(self.group_values[g], hits[offsets[g] : offsets[g + 1]]) for g in groups
        )

    def collapsed(self, row: int, place: int) -> IdArray:
        """Return the ids (m,) of the near-copies that were collapsed into a result, nearest first.

        `row` is the number of the query, and `place` is the number of the result in the row, both
        from 0 up. The array is empty unless the query had `list_collapsed`.
        """
        if not len(self.collapsed_offsets):
            return self.collapsed_ids
        entry = row * self.ids.shape[1] + place
        return self.collapsed_ids[self.collapsed_offsets[entry] : self.collapsed_offsets[entry + 1]]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LabelResult(LabelHitRows):
    """Labels of a batch of documents, in the order of selection.

    `result[i]` is row i as a tuple of `divgrpc.types.hits.LabelHit` without padding, and iteration
    yields these rows.

    The columns are padded arrays. `labels` (nq, top_k) int64 is padded with -1. `scores` and
    `selection_scores` (nq, top_k) float32 are padded with NaN. `counts` (nq,) uint32 is the number
    of labels of each document.

    In the mode `embedding`, a score is the inner product of the label's factor and the embedded
    document. In the mode `neighbour_vote`, a score is the label's share of the votes. A selection
    score is the value that the selector maximised. In `neighbour_vote` it equals the score, unless
    the selector is `hierarchy`.

    `names` has the names of each document's labels, and is empty if the index has no label names.
    `stats` counts the work of the search for labels, or for neighbours in `neighbour_vote`.
    `sequence` is the number of the last write that the result shows, 0 if nothing was written.
    `coverage` and `missing_shards` say among which points neighbours were searched, as in
    `QueryResult`.
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
    sequence: int = 0
    coverage: float = 1.0
    missing_shards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """One array of an index; `bytes` is the size of the array's data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class PoolCost:
    """The cost of one kind of search for a given number of candidates, as Build measured it.

    candidates: number of candidates.
    hash_limit: default limit on scored points for this number of candidates.
    n_probes: number of buckets or cells that are looked up, 0 for a search without them.
    recall: fraction of the nearest `candidates` points that are among the hashed points. The value
        is the lower end of a one-sided 95 % interval over queries that were not used in tuning.
    points_scored: mean number of points per query that are scored exactly.
    codes_read: mean number of codes per query that are read.
    lists_read: mean number of buckets or cells per query that are read.
    entries_read: mean number of entries of buckets or inverted lists per query that are read.
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

    `recall` and `microseconds` are for a query with default parameters. `microseconds` is an
    estimate from counts of the work, not a measured time. `pools` has a `PoolCost` for each of
    several numbers of candidates.

    Indexes of early releases have no `pools`. In these indexes, `microseconds` is a measured median
    time, and `recall` is the share of the ten true nearest points that are found.
    """

    search: Search
    recall: float
    microseconds: float
    pools: tuple[PoolCost, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """A value that Build chose for a parameter or for the search, and the reason as a text."""

    parameter: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class QueryDefault:
    """The defaults of an index for parameters of Query. Evaluate and `Index.set_default` set them.

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

    label_count: number of labels.
    rank: number of columns of the label factors, 0 if the index has no model.
    has_label_sets: whether the points have labels, so that neighbours can vote.
    has_names: whether the labels have names.
    has_hierarchy: whether the labels have a hierarchy.
    parameters: parameters of the training by name, None if Build did not train the model.
    losses: loss after each iteration, empty if Build did not train the model.
    auto_search: search for labels that `auto` takes, None if the index has no model.
    search_costs: cost of each kind of search for labels.
    thresholds: default thresholds of PredictLabels by mode, as in `Defaults`.
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
    """The defaults that a generation of an index has for parameters of calls.

    A new generation has no defaults until a caller sets them.

    query: defaults of Query.
    thresholds: default thresholds of PredictLabels by mode. Each mode has its own threshold,
        because the scores of different modes are not comparable.
    """

    query: QueryDefault | None = None
    thresholds: Mapping[Mode, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class IndexInfo:
    """The description of an index: its parameters, and what Build chose and measured.

    `repr` shows the most important fields only.

    name: name of the index, empty if it is not stored.
    generation: number of the build, from 1 up.
    rows, dims: number of points and of dimensions.
    parameters: the fields of `divgrpc.parameters.BuildParameters` by name, with all defaults
        filled in.
    code_bits: number of bits in a hash code.
    n_probes: default `n_probes` of queries.
    auto_search: search that `auto` takes, chosen by `search_costs`.
    search_costs: cost of each kind of search.
    has_categories, has_subtopics: whether the points have categories, and whether they have
        sub-topics.
    arrays: the stored arrays.
    points: whether points are dense or sparse.
    nonzeros: number of stored values, which is rows * dims if points are dense.
    choices: values that Build chose, with reasons.
    warnings: warnings of Build and, without a `field`, those of a server about the index.
    query_default: defaults of Query, None unless a caller set them.
    labels: None if the index has no labels.
    auto_search_dense: search that `auto` takes for dense queries of sparse points, chosen by
        `search_costs_dense`. None under `euclidean`, for dense points, and if the index has too
        few points to generate dense queries.
    duplicate_threshold: default `duplicate_threshold` of queries: a squared distance under
        `euclidean`, else a cosine. None means that queries do not collapse near-copies by default.
    id_kind, attributes: the kind of the ids, and the declared attributes of the points.
    has_payloads: whether points have payloads.
    writes: the writes to this generation, None if there were none.
    rows_without_vector: number of points without a vector, which `rows` counts and `nonzeros` does
        not.
    shards: the shards among which the points are divided; empty if the index is whole.
    degraded: whether a replica of a shard cannot answer; known only to a server with `--shards`.
    missing_shards: the shards that have points, and no replica that can answer: queries fail
        unless they allow partial answers.
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
    id_kind: IdKind = "int64"
    attributes: tuple[Attribute, ...] = ()
    has_payloads: bool = False
    writes: WritesInfo | None = None
    rows_without_vector: int = 0
    shards: tuple[ShardInfo, ...] = ()
    degraded: bool = False
    missing_shards: tuple[int, ...] = ()

    @property
    def summary(self) -> str:
        """The name, generation, size, metric and hash family, in one line."""
        name = f"{self.name!r}, " if self.name else ""
        kind = f"{self.points} " if self.points == "sparse" else ""
        absent = self.rows_without_vector
        kind += f"({absent:,} without a vector) " if absent else ""
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
    """The progress of a stage of a long call.

    Rows are the points of a build. In an evaluation, each query or document counts once per
    setting. `rows_total` is 0 if it is unknown, and `seconds_left` is None if it is unknown.
    """

    stage: str
    rows_done: int
    rows_total: int
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LabelPrediction:
    """Labels of a batch of documents, best first.

    labels: (nq, top_k) int64, padded with -1.
    scores: (nq, top_k) float32, padded with NaN.
    counts: (nq,) uint32, the number of labels of each document.
    """

    labels: IntArray
    scores: FloatArray
    counts: CountArray


@dataclass(frozen=True, slots=True)
class TrainingProgress(Progress):
    """The progress of the training of a label model. Each document counts once per iteration.

    `loss` is the loss after the last iteration that ended, None during the first iteration.
    """

    loss: float | None = None


def _range(counts: CountArray) -> str:
    """Return the minimum and the maximum count as text, or a single number if they are equal."""
    least, most = int(counts.min()), int(counts.max())
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
