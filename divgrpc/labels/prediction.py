"""From documents to labels: what `Index.predict_labels` asks of a generation's labels.

`embedding`: a document becomes r numbers, and the labels of the largest products with them are
found as any points are, by an index of its own over the label factors; then a selector picks.
`neighbour_vote`: documents that were built in are found, and vote (`divgrpc.labels.votes`). In both
modes the selector `hierarchy` picks among the best labels (`divgrpc.search.branches`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Self

import numpy as np

from divgrpc.arrays import Array, read_only
from divgrpc.errors import InvalidArgumentError, UnfitIndexError
from divgrpc.kernels import projection
from divgrpc.labels.model import prediction
from divgrpc.labels.votes import most_voted, weigh
from divgrpc.metrics.hierarchy import LabelTree
from divgrpc.parameters import LIMITS
from divgrpc.parameters.predict import PredictParameters
from divgrpc.parameters.warning_rules import too_few
from divgrpc.search.answers import Answers
from divgrpc.search.arrays import pack_queries
from divgrpc.search.branches import CANDIDATES_AT_ONCE, Branches, PickedLabels
from divgrpc.search.costs import SearchTable
from divgrpc.search.plan import QueryPlan
from divgrpc.search.searcher import Searcher
from divgrpc.storage.manifest import LabelSection, Manifest
from divgrpc.storage.writers import part_of
from divgrpc.types import (
    CountArray,
    EffectiveParameters,
    FloatArray,
    IntArray,
    LabelResult,
    Metric,
    QueryStats,
)
from divgrpc.vectors import Rows, RowsLike, SparseRows, as_rows, prepare

# Where the arrays of the index over label factors stand among those of a generation.
INDEX = "label_index."
# So that a check of many documents holds few of them.
_CHECKED_AT_ONCE: Final = 256
NO_LABELS: Final = "the index has no labels: give labels or a label_model to Build"
# Labels of most votes that the selector `hierarchy` sees: so many, or so many times top_k.
_VOTED_LEAST, _VOTED_PER_LABEL = 50, 10


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What was found for documents: columns as in `LabelResult`, and the query that found it."""

    labels: IntArray
    scores: FloatArray
    values: FloatArray
    counts: CountArray
    stats: CountArray
    query: EffectiveParameters


class IndexedLabels:
    """The labels of a generation: sets of its points, a model, names, a hierarchy; what it has."""

    def __init__(self, arrays: Mapping[str, Array], section: LabelSection, metric: Metric) -> None:
        """Take a generation's; `metric` is that of its points."""
        self._arrays = arrays
        self._section = section
        self._metric: Metric = metric

    @classmethod
    def of(cls, manifest: Manifest, arrays: Mapping[str, Array]) -> Self | None:
        """Return the labels of a generation, None where it has none."""
        if manifest.labels is None:
            return None
        return cls(arrays, manifest.labels, manifest.parameters.metric)

    @property
    def count(self) -> int:
        """How many labels there are, L."""
        return self._section.label_count

    @cached_property
    def tree(self) -> LabelTree | None:
        """The hierarchy, as a tree."""
        if not self.has_hierarchy:
            return None
        parents, depths = (self._arrays[f"label_tree.{name}"] for name in ("parents", "depths"))
        return LabelTree.of_tree(parents, depths, self.count)

    @property
    def has_hierarchy(self) -> bool:
        """Whether there is a hierarchy of the labels."""
        return "label_tree.parents" in self._arrays

    @cached_property
    def _branches(self) -> Branches:
        """The hierarchy as the selector takes it; only where there is one."""
        parents, depths = (self._arrays[f"label_tree.{name}"] for name in ("parents", "depths"))
        return Branches.of(parents, depths, self.count)

    @property
    def point_counts(self) -> IntArray | None:
        """How many points have each label, (L,) int64; None where their labels are not kept."""
        indices = self._arrays.get("label_sets.indices")
        return None if indices is None else np.bincount(indices, minlength=self.count)

    @cached_property
    def _sets(self) -> SparseRows:
        """The labels of every point (n, L)."""
        if "label_sets.indptr" not in self._arrays:
            raise UnfitIndexError("mode", "the index has no labels of its points to vote with")
        indptr, indices = (self._arrays[f"label_sets.{name}"] for name in ("indptr", "indices"))
        return SparseRows(indptr, indices, np.ones(len(indices), np.float32), self.count)

    @property
    def _index(self) -> Manifest:
        """What is known of the index over the label factors."""
        if self._section.index is None:
            raise UnfitIndexError("mode", "the index has no label model; Build makes or takes one")
        return self._section.index

    @cached_property
    def _searcher(self) -> Searcher:
        return Searcher(part_of(self._arrays, INDEX), self._index.parameters, self._index.dims)

    @cached_property
    def _table(self) -> SearchTable:
        return SearchTable.of(self._index, "labels", dense=True)

    def resolve(self, parameters: PredictParameters) -> EffectiveParameters:
        """Fill in the defaults of a search for labels; raises `UnfitIndexError` without a model."""
        index = self._index
        parameters = parameters.filled(hierarchy=self.has_hierarchy)
        wanted = self._table.resolve(
            parameters.query,
            index.rows,
            index.dims,
            "labels",
            most_probes=self._searcher.max_probes,
        )
        if parameters.least is None:
            return wanted
        # What is below it never comes before the selector. Distances are minus the products.
        return replace(wanted, max_distance=-parameters.least)

    def check(self, documents: Rows) -> None:
        """Raise what embedding these would raise, with their own numbers; they are written over."""
        _ = self._index
        for start in range(0, len(documents), _CHECKED_AT_ONCE):
            self._embedded(documents[start : start + _CHECKED_AT_ONCE], first_row=start)

    def _embedded(self, documents: Rows, *, first_row: int = 0) -> FloatArray:
        return embed(
            documents,
            self._arrays["feature_map"],
            self._arrays["label_offset"],
            unit=self._section.unit_rows,
            first_row=first_row,
        )

    def exact_together(self, parameters: PredictParameters) -> int:
        """Return for how many documents labels are searched together exactly at most, or 1."""
        plan = self._plan(self.resolve(parameters), parameters)
        return self._searcher.exact_together(plan, sparse=False)

    def _plan(self, wanted: EffectiveParameters, parameters: PredictParameters) -> QueryPlan:
        """Return how labels are searched for; the selector `hierarchy` takes all candidates."""
        if parameters.by_hierarchy:
            wanted = replace(wanted, k=min(wanted.candidates_limit or self.count, self.count))
        return self._searcher.plan(wanted, probe_on=parameters.search == "auto")

    def predict(self, documents: Rows, parameters: PredictParameters) -> Found:
        """Return the labels whose products with the embedded documents are selected.

        `parameters` are filled in.
        """
        wanted = self.resolve(parameters)
        plan = self._plan(wanted, parameters)
        embedded = self._embedded(documents)
        if not parameters.by_hierarchy:
            answers = self._searcher.answer(embedded, plan)
            return Found(
                answers.ids,
                answers.scores,
                answers.selection_scores,
                answers.counts,
                answers.stats,
                wanted,
            )
        picks, stats = [], []
        rows = max(1, CANDIDATES_AT_ONCE // plan.parameters.k)
        for start in range(0, len(embedded), rows):
            answers = self._searcher.answer(embedded[start : start + rows], plan)
            picks.append(self._pick(answers.ids, answers.scores, answers.counts, parameters))
            stats.append(answers.stats)
        labels, scores, values, counts = map(np.concatenate, zip(*picks, strict=True))
        return Found(labels, scores, values, counts, np.concatenate(stats, axis=1), wanted)

    def _pick(
        self,
        labels: IntArray,
        scores: FloatArray,
        counts: CountArray,
        parameters: PredictParameters,
    ) -> PickedLabels:
        """Pick among candidates by the hierarchy."""
        return self._branches.pick(labels, scores, counts, parameters.top_k, parameters.dial)

    def vote(
        self,
        neighbours: IntArray,
        answers: Answers,
        parameters: PredictParameters,
        query: EffectiveParameters,
    ) -> Found:
        """Return the labels of most votes of `neighbours` (nq, k), rows of points, -1 for none."""
        weights = np.ones(neighbours.shape, np.float32)
        if parameters.vote == "weighted":
            weights = weigh(answers.scores, answers.counts, self._metric)
        width = parameters.top_k
        if parameters.by_hierarchy:
            width = max(_VOTED_LEAST, _VOTED_PER_LABEL * width)
        labels, shares = most_voted(neighbours, weights, self._sets, min(width, self.count))
        voted = prediction(labels, shares, width, parameters.least)
        if parameters.by_hierarchy:
            picked = self._pick(voted.labels, voted.scores, voted.counts, parameters)
            return Found(*picked, answers.stats, query)
        return Found(voted.labels, voted.scores, voted.scores, voted.counts, answers.stats, query)

    def result(self, found: Found, parameters: PredictParameters, generation: int) -> LabelResult:
        """Return what was found with all that belongs to an answer."""
        warnings = parameters.query.warnings()
        warnings += too_few("top_k", parameters.top_k, self.count, found.counts)
        return LabelResult(
            labels=found.labels,
            scores=found.scores,
            selection_scores=found.values,
            counts=found.counts,
            generation=generation,
            stats=QueryStats(*found.stats),
            parameters=parameters.effective(found.query),
            warnings=warnings,
            names=tuple(self._names(found)),
        )

    def _names(self, found: Found) -> Iterator[tuple[str, ...]]:
        if "label_names.ends" not in self._arrays:
            return
        text, ends = self._arrays["label_names.bytes"], self._arrays["label_names.ends"]
        for labels, count in zip(found.labels, found.counts, strict=True):
            spans = ((ends[label - 1] if label else 0, ends[label]) for label in labels[:count])
            yield tuple(text[start:stop].tobytes().decode() for start, stop in spans)


def document_rows(documents: RowsLike, dims: int) -> Rows:
    """Return a copy of documents (nq, dims); raises `InvalidArgumentError` for `documents`.

    One without a feature is refused, as a vector without a direction is: every label would be as
    good.
    """
    rows = as_rows("documents", documents, dims)
    if not 1 <= len(rows) <= LIMITS["query_rows_max"]:
        raise InvalidArgumentError(
            "documents",
            f"documents must have 1 to {LIMITS['query_rows_max']} rows, got {len(rows)}",
        )
    if isinstance(rows, SparseRows):
        ends = np.concatenate(([0], np.cumsum(rows.values != 0)))
        empty = np.diff(ends[rows.indptr]) == 0
    else:
        empty = ~rows.any(axis=1)
    if empty.any():
        raise InvalidArgumentError(
            "documents", f"documents row {empty.argmax()} has no feature, all are zeros"
        )
    return rows


def embed(
    documents: Rows,
    feature_map: FloatArray,
    offset: FloatArray,
    *,
    unit: bool,
    first_row: int = 0,
) -> FloatArray:
    """Return what stands for each document (nq, d): (nq, r), the same whatever it is asked with.

    `documents` are written over. `unit`: they are scaled to unit length first. Raises
    `InvalidArgumentError`, with the field `documents`, for what is not finite, or too long once it
    is embedded; `first_row` is the number of the first there.
    """
    prepare("documents", documents, "cosine" if unit else "inner_product", first_row=first_row)
    embedded = np.empty((len(documents), len(offset)), np.float32)
    projection.embed(pack_queries(documents), read_only(feature_map), read_only(offset), embedded)
    prepare("documents", embedded, "inner_product", first_row=first_row)
    return embedded
