"""Prediction of labels for documents, for `Index.predict_labels`.

In the mode `embedding`, the feature map turns a document into a vector of r values. The label
factors are indexed like points. A search of this label index finds the labels whose factors have
the largest inner products with the vector, and a selector picks among these labels.

In the mode `neighbour_vote`, a query finds points near the document, its neighbours. Each neighbour
votes for its own labels. The score of a label is its share of the votes. A label that all
neighbours have gets the score 1.

In both modes, the selector `hierarchy` picks among the best labels (`divgrpc.search.branches`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Final, Protocol

import numpy as np

from divgrpc.arrays import Array, read_only
from divgrpc.errors import UnfitIndexError, invalid
from divgrpc.kernels import projection
from divgrpc.labels.model import best_of_pairs, prediction
from divgrpc.metrics.hierarchy import LabelTree
from divgrpc.parameters import LIMITS
from divgrpc.parameters.predict import PredictParameters
from divgrpc.parameters.warning_rules import too_few
from divgrpc.search.arrays import Answers, empty_answers, pack_queries
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
    WarningInfo,
)
from divgrpc.vectors import Rows, RowsLike, SparseRows, any_number, as_rows, prepare

# Names of the arrays of the label index begin with this prefix.
INDEX: Final = "label_index."
# Number of documents that `check` embeds at a time.
_CHECKED_ROWS: Final = 256
# In the mode `neighbour_vote`, the selector `hierarchy` picks among the 50 or the 10 * top_k labels
# with the most votes, whichever number is greater.
_VOTED_LABELS_MIN: Final = 50
_VOTED_PER_LABEL: Final = 10


class LabelSets(Protocol):
    """The label sets of points."""

    @property
    def dims(self) -> int:
        """The number of labels."""

    def __getitem__(self, rows: IntArray) -> SparseRows:
        """Return the label sets of the points in `rows` (m,), each label with the value 1."""


class IndexedLabels:
    """The labels of one build of an index: label sets of the points, a model, names, a hierarchy.

    Each of these four parts may be missing.
    """

    def __init__(self, arrays: Mapping[str, Array], section: LabelSection, metric: Metric) -> None:
        """Take the arrays and the label section of a build, and the `metric` of its points."""
        self._arrays = arrays
        self._section = section
        self._metric: Metric = metric

    @property
    def count(self) -> int:
        """The number of labels, L."""
        return self._section.label_count

    @cached_property
    def tree(self) -> LabelTree | None:
        """The hierarchy as a tree, or None if the index has no hierarchy."""
        return LabelTree.of_tree(*self._tree_arrays(), self.count) if self.has_hierarchy else None

    @property
    def has_hierarchy(self) -> bool:
        """Whether the labels have a hierarchy."""
        return "label_tree.parents" in self._arrays

    @cached_property
    def _branches(self) -> Branches:
        """The hierarchy for the selector `hierarchy`; raises KeyError if the index has none."""
        return Branches.of(*self._tree_arrays(), self.count)

    def _tree_arrays(self) -> tuple[Array, Array]:
        return self._arrays["label_tree.parents"], self._arrays["label_tree.depths"]

    @cached_property
    def sets(self) -> SparseRows | None:
        """The label sets of the points of the build (n, L); None without them."""
        if "label_sets.indptr" not in self._arrays:
            return None
        indptr, indices = (self._arrays[f"label_sets.{name}"] for name in ("indptr", "indices"))
        return SparseRows(indptr, indices, np.ones(len(indices), np.float32), self.count)

    @property
    def is_trained(self) -> bool:
        """Whether the index has a label model that Build trained on its points."""
        return self._section.parameters is not None

    @property
    def _index(self) -> Manifest:
        """The manifest of the label index; raises `UnfitIndexError` without a label model."""
        if self._section.index is None:
            raise UnfitIndexError(
                "mode",
                "the index has no label model; Build makes or takes one, and mode neighbour_vote"
                " needs label sets alone",
            )
        return self._section.index

    @cached_property
    def _searcher(self) -> Searcher:
        arrays, inner = part_of(self._arrays, INDEX), self._index
        return Searcher(arrays, inner.parameters, inner.dims, longest_first=True)

    @cached_property
    def _table(self) -> SearchTable:
        return SearchTable.of(self._index, "labels", dense=True)

    def resolve(self, parameters: PredictParameters) -> EffectiveParameters:
        """Return the parameters of the search for labels, with all defaults filled in.

        Raises `UnfitIndexError` without a label model.
        """
        index = self._index
        parameters = parameters.filled(hierarchy=self.has_hierarchy)
        effective = self._table.resolve(
            parameters.query,
            index.rows,
            index.dims,
            "labels",
            most_probes=self._searcher.max_probes,
        )
        if parameters.least is None:
            return effective
        # The distance limit excludes labels with a score below the threshold, so that they are not
        # passed to the selector. A score is an inner product, and a distance is minus the score.
        return replace(effective, max_distance=-parameters.least)

    def check(self, documents: Rows) -> None:
        """Raise the errors that embedding `documents` (nq, d) raises; overwrite `documents`."""
        _ = self._index  # raises without a model
        for start in range(0, len(documents), _CHECKED_ROWS):
            self._embed(documents[start : start + _CHECKED_ROWS], first_row=start)

    def _embed(self, documents: Rows, *, first_row: int = 0) -> FloatArray:
        return embed(
            documents,
            self._arrays["feature_map"],
            self._arrays["label_offset"],
            unit=self._section.unit_rows,
            first_row=first_row,
        )

    def exact_together(self, parameters: PredictParameters) -> int:
        """Return the maximum number of documents that one exact search answers together."""
        plan = self._plan(self.resolve(parameters), parameters)
        return self._searcher.exact_together(plan, sparse=False)

    def _plan(self, effective: EffectiveParameters, parameters: PredictParameters) -> QueryPlan:
        """Plan the search for labels, which returns all candidates for the selector `hierarchy`."""
        if parameters.by_hierarchy:
            candidates = effective.candidates_limit or self.count
            effective = replace(effective, k=min(candidates, self.count))
        return self._searcher.plan(effective, probe_on=parameters.search == "auto")

    def predict(
        self, documents: Rows, parameters: PredictParameters
    ) -> tuple[Answers, EffectiveParameters]:
        """Predict labels for `documents` (nq, d) in the mode `embedding`.

        The ids of the answers are labels. The caller has filled in the defaults of `parameters`.
        `documents` are overwritten.
        """
        effective = self.resolve(parameters)
        plan = self._plan(effective, parameters)
        embedded = self._embed(documents)
        if not parameters.by_hierarchy:
            return self._searcher.answer(embedded, plan), effective
        result = empty_answers(len(embedded), parameters.top_k)
        rows = max(1, CANDIDATES_AT_ONCE // plan.parameters.k)
        for start in range(0, len(embedded), rows):
            block = slice(start, start + rows)
            answers = self._searcher.answer(embedded[block], plan)
            picks = self._branches.pick(
                answers.ids, answers.scores, answers.counts, parameters.top_k, parameters.dial
            )
            result.ids[block], result.scores[block] = picks.labels, picks.scores
            result.selection_scores[block], result.counts[block] = picks.values, picks.counts
            result.stats[:, block] = answers.stats
        return result, effective

    def vote(
        self,
        neighbours: IntArray,
        sets: LabelSets | None,
        answers: Answers,
        parameters: PredictParameters,
    ) -> Answers:
        """Return `answers` with the labels that get the most votes from `neighbours` (nq, k).

        `neighbours` are row numbers of points, and -1 where a document has fewer than k neighbours.
        `sets` are the label sets of the points. `answers` hold the scores of the neighbours and the
        statistics of the search for them. Raises `UnfitIndexError` if `sets` is None.
        """
        if sets is None:
            raise UnfitIndexError("mode", "the index has no labels of its points to vote with")
        weights = np.ones(neighbours.shape, np.float32)
        if parameters.vote == "weighted":
            weights = weigh(answers.scores, answers.counts, self._metric)
        width = parameters.top_k
        if parameters.by_hierarchy:
            width = max(_VOTED_LABELS_MIN, _VOTED_PER_LABEL * width)
        labels, shares = most_voted(neighbours, weights, sets, min(width, self.count))
        votes = prediction(labels, shares, width, parameters.least)
        picks = PickedLabels(votes.labels, votes.scores, votes.scores, votes.counts)
        if parameters.by_hierarchy:
            picks = self._branches.pick(
                votes.labels, votes.scores, votes.counts, parameters.top_k, parameters.dial
            )
        ids, scores, values, counts = picks
        return answers._replace(ids=ids, scores=scores, selection_scores=values, counts=counts)

    def result(
        self,
        answers: Answers,
        query: EffectiveParameters,
        parameters: PredictParameters,
        generation: int,
        warnings: tuple[WarningInfo, ...] = (),
    ) -> LabelResult:
        """Return a `LabelResult` with names, statistics, parameters and warnings.

        The ids of `answers` are labels. `query` holds the parameters of the search for neighbours,
        or for labels in the mode `embedding`. `warnings` are added to those that follow from these.
        """
        warnings += parameters.query.warnings()
        warnings += too_few("top_k", parameters.top_k, self.count, answers.counts)
        return LabelResult(
            labels=answers.ids,
            scores=answers.scores,
            selection_scores=answers.selection_scores,
            counts=answers.counts,
            generation=generation,
            stats=QueryStats(*answers.stats),
            parameters=parameters.effective(query),
            warnings=warnings,
            names=tuple(self._names(answers)),
        )

    def _names(self, answers: Answers) -> Iterator[tuple[str, ...]]:
        if "label_names.ends" not in self._arrays:
            return
        text, ends = self._arrays["label_names.bytes"], self._arrays["label_names.ends"]
        for labels, count in zip(answers.ids, answers.counts, strict=True):
            spans = ((ends[label - 1] if label else 0, ends[label]) for label in labels[:count])
            yield tuple(text[start:stop].tobytes().decode() for start, stop in spans)


def weigh(scores: FloatArray, counts: CountArray, metric: Metric) -> FloatArray:
    """Return weights (nq, k) float32 of the votes of neighbours with `scores` (nq, k).

    Row i has counts[i] neighbours. The remaining entries of the row get the weight 0. Under
    euclidean, a neighbour at the squared distance c has the weight 1 / (1 + c/s), where s is the
    mean of c over the neighbours. Under cosine and inner_product, the weight of a neighbour is its
    cosine or inner product with the document, or 0 if this value is negative.
    """
    valid = np.arange(scores.shape[1]) < counts[:, None]
    scores = np.where(valid, scores, 0)
    if metric != "euclidean":
        return np.asarray(np.maximum(scores, 0))
    scale = scores.sum(axis=1, keepdims=True, dtype=np.float64) / np.maximum(counts, 1)[:, None]
    weights = 1 / (1 + scores / np.where(scale > 0, scale, 1))
    return np.asarray(np.where(valid, weights, 0), np.float32)


def most_voted(
    neighbours: IntArray, weights: FloatArray, labels: LabelSets, count: int
) -> tuple[IntArray, FloatArray]:
    """Return the labels with the most votes and their shares (m, count), largest share first.

    `neighbours` (m, k) are row numbers of `labels`, or -1 if a row has fewer than k
    neighbours. `weights` (m, k) are the weights of the votes of the neighbours. Labels with equal
    shares are ordered by label number. If a row has votes for fewer than `count` labels, the
    remaining labels are -1, and their shares NaN.
    """
    valid = neighbours >= 0
    totals = np.where(valid, weights, 0).sum(axis=1, dtype=np.float64)
    # Read only the labels of the voters; a sparse product would process all rows and labels.
    votes = labels[neighbours[valid]]
    sizes = np.diff(votes.indptr)
    voters = np.repeat(np.nonzero(valid)[0], sizes)
    pairs, places = np.unique(voters * labels.dims + votes.indices, return_inverse=True)
    sums = np.bincount(places, np.repeat(weights[valid], sizes) * votes.values, len(pairs))
    has_votes = sums > 0
    rows, numbers = np.divmod(pairs[has_votes], labels.dims)
    shares = sums[has_votes] / totals[rows]
    return best_of_pairs(rows, numbers, shares, len(neighbours), count)


def document_rows(documents: RowsLike, dims: int) -> Rows:
    """Copy `documents` (nq, `dims`), dense or sparse, to float32.

    Raises `InvalidArgumentError` with the field documents for a wrong number of columns, for a
    number of rows outside the limits, and for a document of zeros, which has no features.
    """
    rows = as_rows("documents", documents, dims)
    if not 1 <= len(rows) <= LIMITS["query_rows_max"]:
        raise invalid(
            "documents", f"must have 1 to {LIMITS['query_rows_max']} rows, got {len(rows)}"
        )
    empty = ~any_number(rows)
    if empty.any():
        raise invalid("documents", f"row {empty.argmax()} has no feature, all are zeros")
    return rows


def embed(
    documents: Rows, feature_map: FloatArray, offset: FloatArray, *, unit: bool, first_row: int = 0
) -> FloatArray:
    """Return Vᵀx + offset (nq, r) float32 for `documents` (nq, d), which are overwritten.

    The embedding of one document does not depend on the other documents. `feature_map` V is (d, r)
    and `offset` is (r,). If `unit` is true, documents are scaled to unit length first. Raises
    `InvalidArgumentError` with the field documents for values that are not finite and for embedded
    documents that are too long. Error messages number the rows from `first_row`.
    """
    numbers = range(first_row, first_row + len(documents))
    prepare("documents", documents, "cosine" if unit else "inner_product", row_numbers=numbers)
    embedded = np.empty((len(documents), len(offset)), np.float32)
    projection.embed(pack_queries(documents), read_only(feature_map), read_only(offset), embedded)
    prepare("documents", embedded, "inner_product", row_numbers=numbers)
    return embedded
