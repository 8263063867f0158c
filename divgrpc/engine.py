"""All that an index can do, for the server, the evaluation and `divgrpc.Index`.

A query's story: its rows become unit vectors; `QueryParameters.resolve` fills in the defaults and
`auto`; the kernel in `divgrpc.kernels.query` hashes, finds, scores and selects, row by row; the
columns it writes become a `QueryResult`. Before that `divgrpc.kernels.batch` reads what the rows
of a batch share.
"""

import functools
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from divgrpc import compilation
from divgrpc.errors import InvalidArgumentError, UnfitIndexError
from divgrpc.labels.prediction import IndexedLabels, document_rows
from divgrpc.metrics import Labels, ListDistances, Topics, Values
from divgrpc.metrics.distances import list_distances_stepwise
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.parameters.predict import PredictParameters
from divgrpc.parameters.warning_rules import crowded, not_collapsed, too_few
from divgrpc.search.costs import SearchTable
from divgrpc.search.dials import reason_words
from divgrpc.search.plan import QueryPlan
from divgrpc.search.searcher import Searcher
from divgrpc.storage.generations import MANIFEST, Generation, IndexFolder, open_generation
from divgrpc.storage.identity import NO_LABELS, KeptIndex
from divgrpc.types import (
    EffectiveParameters,
    IntArray,
    LabelResult,
    QueryResult,
    QueryStats,
    WarningInfo,
)
from divgrpc.vectors import Rows, RowsLike, SparseRows, prepare, query_rows

# An index remembers the plans of so many kinds of calls.
_PLANS_KEPT: Final = 1_024


class Engine(KeptIndex):
    """One generation of an index, in memory or mapped from its folder; any thread may ask it."""

    def __init__(self, generation: Generation, name: str = "", folder: Path | None = None) -> None:
        """Take a generation; `folder` is the index's folder, None for an index in memory."""
        compilation.ensure()
        super().__init__(generation, name, folder)
        manifest = generation.manifest
        self._arrays = generation.arrays
        self._searcher = Searcher(generation.arrays, manifest.parameters, manifest.dims)
        self._plans: dict[tuple[QueryParameters, bool], QueryPlan] = {}
        kind = manifest.points
        self._table = SearchTable.of(manifest, kind, dense=kind == "dense")
        # For dense queries of sparse points `auto` may take another search.
        self._dense_table = SearchTable.of(manifest, kind, dense=True)
        self._dense_apart = kind == "sparse"
        # None where the index was built without labels.
        self.labels = IndexedLabels.of(manifest, generation.arrays)

    @classmethod
    def open(cls, path: Path | str) -> "Engine":
        """Open the current generation in an index's folder, or the generation in its own folder.

        Every checksum is compared. Raises `IndexNotFoundError`, `IndexDamagedError`,
        `OtherFormatError`.
        """
        folder = Path(path).absolute()
        if (folder / MANIFEST).exists():
            return cls(open_generation(folder), folder.parent.name, folder.parent)
        return cls(IndexFolder(folder).open(), folder.name, folder)

    def predict(self, documents: RowsLike, parameters: PredictParameters) -> LabelResult:
        """Do what `predict_labels` does, as `parameters` alone say: no threshold that is kept."""
        if self.labels is None:
            raise UnfitIndexError("mode", NO_LABELS)
        rows = document_rows(documents, self.dims)
        parameters = parameters.filled(hierarchy=self.labels.has_hierarchy)
        if parameters.mode == "embedding":
            prediction = self.labels.predict(rows, parameters)
        else:
            prepare("documents", rows, self._searcher.metric)
            # Documents are like points, in whatever form they come.
            plan = self._plan(parameters.query, dense=False)
            answers = self._searcher.answer(rows, plan)
            neighbours = self.topics.labels.rows(answers.ids)
            prediction = self.labels.vote(neighbours, answers, parameters, plan.parameters)
        return self.labels.result(prediction, parameters, self.generation)

    def check_documents(self, documents: RowsLike, parameters: PredictParameters) -> None:
        """Raise what `predict` would raise for these rows."""
        rows = document_rows(documents, self.dims)
        if parameters.mode == "neighbour_vote" or self.labels is None:
            prepare("documents", rows, self._searcher.metric)
        else:
            self.labels.check(rows)

    def check_queries(self, queries: RowsLike) -> None:
        """Raise what `answer` would raise for these rows."""
        query_rows("queries", queries, self.dims, self._searcher.metric)

    def answer(
        self, queries: RowsLike, parameters: QueryParameters, *, as_points: bool = False
    ) -> QueryResult:
        """Do what `query` does, with the parameters in one object.

        `as_points`: dense queries too are like points, and none are hyperplanes.
        """
        queries = query_rows("queries", queries, self.dims, self._searcher.metric)
        if not 1 <= len(queries) <= LIMITS["query_rows_max"]:
            raise InvalidArgumentError(
                "queries",
                f"queries must have 1 to {LIMITS['query_rows_max']} rows, got {len(queries)}",
            )
        dense = self._dense_apart and not (as_points or isinstance(queries, SparseRows))
        plan = self._plan(parameters, dense=dense)
        answers, effective = self._searcher.answer(queries, plan), plan.parameters
        warnings = parameters.warnings() + plan.warnings
        if dense and parameters.search == "auto" and effective.search != "exact":
            warnings += self._like_points(queries, parameters)
        warnings += too_few("k", effective.k, self.rows, answers.counts)
        stats = QueryStats(*answers.stats)
        if effective.duplicate_threshold is not None:
            warnings += crowded(effective.k, answers.counts, stats)
        copies, offsets = _end_to_end(answers.copies)
        return QueryResult(
            ids=answers.ids,
            scores=answers.scores,
            selection_scores=answers.selection_scores,
            counts=answers.counts,
            generation=self.generation,
            stats=stats,
            parameters=effective,
            warnings=warnings,
            duality_gaps=answers.gaps,
            collapsed_ids=copies,
            collapsed_offsets=offsets,
            diversities=answers.dials,
            dial_reasons=reason_words(answers.reasons),
        )

    def resolve(
        self, parameters: QueryParameters, queries: RowsLike | None = None
    ) -> EffectiveParameters:
        """Fill in the defaults for this index; raises what `answer` would raise for parameters.

        Only whether `queries` are dense or sparse matters; None stands for queries like points.
        """
        sparse = isinstance(queries, SparseRows) or hasattr(queries, "tocsr")
        return self._plan(parameters, dense=queries is not None and not sparse).parameters

    def exact_together(
        self, queries: RowsLike, parameters: QueryParameters, *, as_points: bool = False
    ) -> int:
        """Return how many rows `answer` searches together exactly at most, 1 for one by one."""
        sparse = isinstance(queries, SparseRows) or hasattr(queries, "tocsr")
        plan = self._plan(parameters, dense=not (as_points or sparse))
        return self._searcher.exact_together(plan, sparse=sparse)

    def _plan(self, parameters: QueryParameters, *, dense: bool) -> QueryPlan:
        """Return how to answer; the same few parameters come with nearly every call."""
        dense = dense and self._dense_apart
        plan = self._plans.get((parameters, dense))
        if plan is None:
            plan = self._planned(parameters, dense=dense)
            if len(self._plans) >= _PLANS_KEPT:
                self._plans.clear()
            self._plans[parameters, dense] = plan
        return plan

    def _like_points(self, queries: Rows, parameters: QueryParameters) -> tuple[WarningInfo, ...]:
        """Warn where dense rows may be points, and `auto` goes by recalls of hyperplanes."""
        searches = {
            self._plan(parameters, dense=dense).parameters.search for dense in (False, True)
        }
        if self._manifest.auto_search_dense is None or len(searches) == 1:
            return ()
        widest = self._manifest.widest_row
        if isinstance(queries, SparseRows):
            return ()
        if all(np.count_nonzero(query) > widest for query in queries):
            return ()
        sentence = (
            "dense queries are taken for hyperplanes, and some have no more numbers than points:"
            " send those sparse, or name a search"
        )
        return (WarningInfo("DENSE_QUERIES_LIKE_POINTS", sentence, "queries"),)

    @property
    def _mean_width(self) -> int:
        """How many numbers a point stores on average."""
        return -(-self._manifest.nonzeros // self._manifest.rows)

    def _planned(self, parameters: QueryParameters, *, dense: bool) -> QueryPlan:
        if parameters.max_distance is not None and self._searcher.metric == "inner_product":
            raise InvalidArgumentError(
                "max_distance", "max_distance has no meaning under metric inner_product"
            )
        manifest = self._manifest
        table = self._dense_table if dense else self._table
        threshold = parameters.collapse_threshold(
            self._searcher.metric, manifest.duplicate_threshold
        )
        effective = table.resolve(
            parameters,
            manifest.rows,
            manifest.widest_row,
            manifest.points,
            manifest.nonzeros if manifest.points == "sparse" else None,
            most_probes=self._searcher.max_probes,
            duplicate_threshold=threshold,
        )
        most_compared = parameters.most_compared(self._mean_width)
        plan = self._searcher.plan(
            effective,
            probe_on=parameters.search == "auto",
            pool_limit=min(parameters.most_candidates(self._mean_width), most_compared),
            retries=parameters.searches_again,
        )
        warnings = table.warnings(parameters, effective, manifest.rows)
        if threshold is not None and effective.duplicate_threshold is None:
            warnings += (not_collapsed("candidates_limit", most_compared),)
        return replace(plan, warnings=warnings)

    # For evaluations.

    def answer_one_by_one(
        self, queries: RowsLike, parameters: QueryParameters
    ) -> tuple[IntArray, Values]:
        """Return the ids (nq, k) of `answer`, and the microseconds (nq,) of each row.

        Rows are answered one by one. Their times cover search and selection.
        """
        queries = query_rows("queries", queries, self.dims, self._searcher.metric)
        plan = self._plan(parameters, dense=not isinstance(queries, SparseRows))
        ids = np.empty((len(queries), plan.parameters.k), np.int64)
        seconds = np.empty(len(queries))
        for number in range(len(queries)):
            begun = time.perf_counter()
            answers = self._searcher.answer(queries[number : number + 1], plan)
            seconds[number] = time.perf_counter() - begun
            ids[number] = answers.ids[0]
        return ids, seconds * 1e6

    @functools.cached_property
    def topics(self) -> Topics:
        """The categories of the points, to judge results by; none where they have none."""
        columns = {name: self._arrays.get(name) for name in ("categories", "subtopics")}
        # Where ids are not kept they are the numbers of the rows.
        ids = self._searcher.ids if len(self._searcher.ids) else np.arange(self.rows)
        return Topics.of_categories(Labels.of(**columns, ids=ids))

    def distances(self, queries: RowsLike, ids: IntArray) -> Generator[None, None, ListDistances]:
        """Measure how far results `ids` (nq, k) lie from their queries and from one another.

        It pauses every few milliseconds, and returns what `divgrpc.metrics.list_distances` does.
        """
        prepared = query_rows("queries", queries, self.dims, self._searcher.metric)
        points, matrix = (
            rows.matrix if isinstance(rows, SparseRows) else rows
            for rows in (self._searcher.points, prepared)
        )
        places = self.topics.labels.rows(ids)
        return list_distances_stepwise(points, matrix, places, self._searcher.metric)


def _end_to_end(parts: list[IntArray]) -> tuple[IntArray, IntArray]:
    """Return the numbers of all parts, and where each part begins and the last ends; or nothing."""
    if not parts:
        nothing = np.empty(0, np.int64)
        return nothing, nothing
    offsets = np.concatenate(([0], np.cumsum([len(part) for part in parts]))).astype(np.int64)
    return np.concatenate(parts), offsets
