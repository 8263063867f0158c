"""Results of queries, predictions and builds, and what is known of an index; numpy alone."""

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
    """Something a caller will want to know about an answer that is still right.

    `code` is stable and for machines, `message` a sentence for people, `field` the parameter it
    speaks of, or empty.
    """

    code: str
    message: str
    field: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QueryResult(PointHitRows):
    """Results of a batch of queries, in the order in which they were picked.

    `result[0]` and iteration give rows of `divgrpc.types.hits.Hit` without padding. The columns
    have it: `ids` (nq, k) int64, -1 where fewer than k were found; `scores` and `selection_scores`
    (nq, k) float32, NaN there; `counts` (nq,) uint32, how many each row has. A score is the
    relevance in the metric's own direction: the cosine, the product, or the squared Euclidean
    distance, which is smaller for nearer points. A selection score is what the selector saw in the
    point when it picked it, higher is better. `duality_gaps` is empty but for the selector
    `qp_relax`: (nq,) float32, how far each row's shares may be from the best, as a share of the
    objective's range.

    `collapsed_ids` (m,) int64 are the near-copies that results stand for, where `list_collapsed`
    asked for them, and `collapsed_offsets` (nq * k + 1,) int64 say which result: place j of row i
    owns the entries from offsets[i * k + j] up to the next. Both are empty where nobody asked.

    `diversities` (nq,) float64 are the dials that were chosen, and `dial_reasons` (nq,) say why, in
    a word each; both are empty where the query named a dial. With `lose_at_most`: `loss_bound`, a
    greater dial loses more; `within_bound`, the greatest dial loses no more; `equal_relevance`, the
    candidates are all as relevant, so that there is nothing to lose. With `diversity="auto"`:
    `fall_off`, by how relevance falls among the candidates. With either: `no_choice`, there are no
    more candidates than k, and the dial is 0.
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
        """Return the ids of the near-copies that a result stands for, nearest first.

        Empty unless the query was asked with `list_collapsed`.
        """
        if not len(self.collapsed_offsets):
            return self.collapsed_ids
        entry = row * self.ids.shape[1] + place
        return self.collapsed_ids[self.collapsed_offsets[entry] : self.collapsed_offsets[entry + 1]]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LabelResult(LabelHitRows):
    """Labels of a batch of documents, in the order in which they were picked.

    `result[0]` and iteration give rows of `divgrpc.types.hits.LabelHit` without padding. The
    columns have it: `labels` (nq, top_k) int64, -1 where there are fewer; `scores` and
    `selection_scores` (nq, top_k) float32, NaN there; `counts` (nq,) uint32, how many each document
    has. A score is the product of the label with the embedded document, or its share of the votes;
    a selection score what the selector saw in the label when it picked it. In a vote it is the
    share too, unless the selector is `hierarchy`, which picks labels there as well. `names` has
    those of each document's labels, and is empty where the index has no names. `stats` are of the
    search for labels, or for neighbours.
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
    """One array of an index."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class PoolCost:
    """What Build measured of one way to search, for queries that ask for so many candidates.

    `hash_limit`: points that a query for so many hashes at most, unless it names a limit.
    `n_probes`: buckets or cells looked up, 0 where the search has none. `recall`: share of the true
    nearest `candidates` among the hashed points, the lower end of its 95 % interval over queries
    that chose nothing. What a query reads on the average: `points_scored` vectors, `codes_read`,
    `lists_read` buckets or cells, `entries_read` of posting lists or buckets.
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
    """What Build measured of one way to search.

    `recall` and `microseconds` are for a default query. `pools` has a `PoolCost` for each of a few
    numbers of candidates. `microseconds` come from counted work, not from a clock. In an index
    without `pools` they are a median time, and `recall` is for the ten nearest.
    """

    search: Search
    recall: float
    microseconds: float
    pools: tuple[PoolCost, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing that Build chose: the parameter, what it became, and a sentence that says why."""

    parameter: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class QueryDefault:
    """What Query takes on an index where its caller names nothing; Evaluate can set it.

    A limit of None is the rule's: as `divgrpc.parameters.QueryParameters` has it.
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
    """The labels of an index as they stand; `rank` is 0 without a model, and `auto_search` None.

    `has_label_sets`: the points have labels, so that neighbours can vote. `parameters`, by their
    names, are what the model was trained with, None where it was brought; `losses` what the loss
    was after each iteration. `auto_search` and `search_costs` are of the search for labels.
    `thresholds` are the least scores that are kept with the generation, as `Defaults` has them.
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
    """What a generation is asked with where the caller names nothing: None and nothing at first.

    `query` is for Query. `thresholds` are the least scores of PredictLabels, for the modes that
    have one: a product and a share of votes are not alike.
    """

    query: QueryDefault | None = None
    thresholds: Mapping[Mode, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class IndexInfo:
    """An index as it stands: what it was asked to be, and what Build made of it.

    `repr` shows the most important of it; `parameters`, `choices`, `search_costs` and `arrays` have
    the rest.

    `parameters` is a `divgrpc.parameters.BuildParameters` with every default filled in, given as a
    mapping of its field names. `nonzeros` counts stored numbers, rows * dims if points are dense.
    `query_default` is None until Evaluate has set one on this generation, `labels` where the index
    was built without. `auto_search_dense` is what `auto` resolves to for dense queries of sparse
    points, by `search_costs_dense`; None under `euclidean` and where points are too few to make
    such queries of, and all queries take `auto_search`. `duplicate_threshold` is the cosine, or
    under `euclidean` the squared distance, from which on points are near-copies where a query does
    not say; None where none are.
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
        """A line with the name, the generation, the points, the metric and the hash family."""
        name = f"{self.name!r}, " if self.name else ""
        kind = f"{self.points} " if self.points == "sparse" else ""
        return (
            f"{name}generation {self.generation}, {self.rows:,} {kind}points x {self.dims:,} dims, "
            f"{self.parameters.get('metric')}, {self.parameters.get('hash_family')}"
        )

    def __repr__(self) -> str:
        threshold = self.duplicate_threshold
        near = "none by default" if threshold is None else f"{threshold:.9g}"
        size = sum(array.bytes for array in self.arrays)
        return (
            f"IndexInfo: {self.summary}\n"
            f"  auto search {self.auto_search}, duplicate_threshold {near}, "
            f"{size:,} bytes in {len(self.arrays)} arrays"
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage has come; `rows_total` 0 and `seconds_left` None: unknown.

    Rows are those of a build's points, or the queries of an evaluation, each once for a setting.
    """

    stage: str
    rows_done: int
    rows_total: int
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LabelPrediction:
    """Labels of a batch of documents, best first.

    `labels` (nq, top_k) int64, -1 where there are fewer; `scores` (nq, top_k) float32, NaN there;
    `counts` (nq,) uint32, how many each document has.
    """

    labels: IntArray
    scores: FloatArray
    counts: CountArray


@dataclass(frozen=True, slots=True)
class TrainingProgress(Progress):
    """The same of a training: rows are documents, each once for an iteration.

    `loss` is what the last iteration came to; None before the first has ended.
    """

    loss: float | None = None
