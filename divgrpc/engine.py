"""The engine answers calls on one generation, for the server, evaluations and `divgrpc.Index`.

A query takes these steps:

1. `divgrpc.vectors` checks the query rows and scales them for the metric.
2. `SearchTable.resolve` fills in default parameters and replaces `auto` by a search.
3. `divgrpc.kernels.batch` searches for many rows at once if that is faster.
4. For each row, the kernel in `divgrpc.kernels.query` finds and scores candidates. The kernel also
   runs the selectors `nearest`, `greedy` and `mmr`. `divgrpc.search.selectors` runs the others.
5. The engine puts the output arrays into a `QueryResult`.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from divgrpc import compilation
from divgrpc.arrays import Array
from divgrpc.columns.filters import FilterReader
from divgrpc.columns.quotas import check_attributes as check_quotas
from divgrpc.columns.reader import RowReader
from divgrpc.errors import ConditionFailedError, InvalidArgumentError, invalid
from divgrpc.labelled_points import LabelledPoints
from divgrpc.labels.prediction import IndexedLabels
from divgrpc.metrics import Values
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.parameters.predict import PredictParameters
from divgrpc.parameters.warning_rules import (
    absent_columns,
    crowded,
    not_collapsed,
    too_few,
)
from divgrpc.platforms import thread_seconds
from divgrpc.search.arrays import Answers, no_answers
from divgrpc.search.costs import SearchTable
from divgrpc.search.dials import reason_words
from divgrpc.search.passing import PassingRows
from divgrpc.search.plan import QueryPlan
from divgrpc.search.quota_search import (
    QuotaSearch,
    QuotaSource,
    may_drop_forbidden,
    quota_warnings,
)
from divgrpc.search.results import joined
from divgrpc.search.searcher import Searcher
from divgrpc.storage.defaults import updated
from divgrpc.storage.generations import Generation, IndexFolder
from divgrpc.types import (
    EffectiveParameters,
    IndexInfo,
    IntArray,
    Metric,
    Mode,
    QueryDefault,
    QueryResult,
    QueryStats,
    WarningInfo,
)
from divgrpc.types.filters import Condition, Filter, Match
from divgrpc.types.quotas import Quotas
from divgrpc.types.records import IdArray
from divgrpc.vectors import Rows, RowsLike, SparseRows, query_rows

# Maximum number of cached plans. Calls with different parameters use different plans.
_CACHED_PLANS_MAX: Final = 1_024
# Queries with quotas pick farther points, which codes find less surely. So by default they hash
# more points, by this factor.
_QUOTA_HASH_RATIO: Final = 2
# Maximum number of bytes of the cached rows that pass filters, for one engine.
_CACHED_ROWS_BYTES_MAX: Final = 64 << 20


class Engine(LabelledPoints):
    """One generation of an index, in memory or memory-mapped from its folder. Thread-safe.

    manifest: description of the generation.
    generation, rows, dims: the generation number, the number of points, and their dimensions.
    widest_row: maximum number of values that a point stores; `dims` for dense points.
    defaults: values of parameters that calls leave out. `set_default` and `set_threshold` set them.
    labels: the object that predicts labels; None if the index has no labels.
    is_divided: whether the points are on shards, which are asked for them.
    """

    is_divided = False

    def __init__(self, generation: Generation, name: str = "", folder: Path | None = None) -> None:
        """Serve `generation`; `folder` is the folder of the index, None for an index in memory."""
        compilation.ensure()
        self.manifest = manifest = generation.manifest
        self.generation, self.rows, self.dims = manifest.generation, manifest.rows, manifest.dims
        # Number of points that have a vector.
        self.rows_searched = self.rows
        self.widest_row = manifest.widest_row
        self.defaults = generation.defaults
        self._name, self._folder = name, folder
        self._arrays = generation.arrays
        self._searcher = self._make_searcher(generation)
        self._reader = RowReader(generation.arrays, self.rows, manifest.attributes)
        self._has_texts = manifest.id_kind == "string"
        self._has_payloads = manifest.has_payloads
        # Number of the last write that is visible.
        self.sequence = 0
        self._filters = FilterReader(
            generation.arrays, self.rows, self._reader.ids, manifest.attributes
        )
        self._visible = None
        self._passing: dict[str, PassingRows] = {}
        self._plans: dict[tuple[object, ...], QueryPlan] = {}
        self._farther_plans: dict[tuple[object, ...], QueryPlan] = {}
        kind = manifest.points
        self._table = SearchTable.of(manifest, kind, dense=kind == "dense")
        # For sparse points, `auto` may choose different searches for dense and for sparse queries.
        self._dense_table = SearchTable.of(manifest, kind, dense=True)
        self.labels = None
        if manifest.labels is not None:
            metric = manifest.parameters.metric
            self.labels = IndexedLabels(generation.arrays, manifest.labels, metric)

    def _make_searcher(self, generation: Generation) -> Searcher:
        manifest = generation.manifest
        return Searcher(generation.arrays, manifest.parameters, manifest.dims)

    @property
    def name(self) -> str:
        """The name of the index; empty if the index is in memory."""
        return self._name

    @property
    def folder(self) -> Path | None:
        """The folder of the index; None if the index is in memory."""
        return self._folder

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays of the generation."""
        return self._arrays

    @property
    def searcher(self) -> Searcher:
        """The searcher of the generation."""
        return self._searcher

    @property
    def metric(self) -> Metric:
        """The metric of the index."""
        return self._searcher.metric

    @property
    def info(self) -> IndexInfo:
        """The description of the index."""
        return self.manifest.info(self._name, self.defaults)

    def set_default(self, default: QueryDefault | None) -> None:
        """Set the default parameters of `query`, as `divgrpc.Index.set_default` does."""
        self._set_defaults(query=default)

    def set_threshold(self, threshold: float | None, mode: Mode = "embedding") -> None:
        """Set the default threshold of a mode, as `divgrpc.Index.set_threshold` does."""
        self.labels_or_error()
        parameters = PredictParameters(mode=mode, threshold=threshold)
        self._set_defaults(thresholds={mode: parameters.least})

    def _set_defaults(self, **changes: Any) -> None:  # noqa: ANN401  # fields of `Defaults`
        if self._folder is None:
            self.defaults = updated(self.defaults, changes)
        else:
            self.defaults = IndexFolder(self._folder).set_defaults(self.manifest, **changes)

    def check_sequence(self, least: int) -> None:
        """Raise `ConditionFailedError` unless the write of the number `least` is visible."""
        if self.sequence < least:
            latest = self.sequence
            raise ConditionFailedError(
                "min_sequence", f"min_sequence is {least}, but the last write is {latest}"
            )

    def passing(
        self,
        condition: Filter | None,
        exclude_ids: Sequence[int] | Sequence[str] | IdArray = (),
    ) -> PassingRows | None:
        """Return the points that pass a filter and have none of `exclude_ids`.

        condition: a filter that `divgrpc.columns.filters.as_filter` has checked, or None.
        exclude_ids: at most 100,000 ids. Ids that no point has are ignored.

        Returns None if there is nothing to test. Raises `InvalidArgumentError` with the field
        `filter` or `exclude_ids`.
        """
        rows = None if condition is None else self._rows_that_pass(condition)
        if len(exclude_ids):
            most = LIMITS["exclude_ids_max"]
            if len(exclude_ids) > most:
                raise invalid("exclude_ids", f"must be at most {most}, got {len(exclude_ids)}")
            excluded = self._reader.ids.rows_of(exclude_ids, "exclude_ids")
            if rows is None:
                rows = self._all_rows
            rows = rows.without(excluded[excluded >= 0])
        return rows

    def without(self, passing: PassingRows | None, rows: IntArray) -> PassingRows:
        """Return the points of `passing` except those in `rows` (m,); None stands for all."""
        return (self._all_rows if passing is None else passing).without(rows)

    @property
    def _all_rows(self) -> PassingRows:
        return self._every_row if self._visible is None else self._visible

    @functools.cached_property
    def _every_row(self) -> PassingRows:
        return PassingRows(np.ones(self.rows, np.bool_))

    def _rows_that_pass(self, condition: Filter) -> PassingRows:
        """Return the points that pass a filter, cached because many calls repeat a filter."""
        # A text, because equal filters may have values of different types: True equals 1.
        key = repr(condition)
        rows = self._passing.get(key)
        if rows is None:
            rows = self._passing_rows(condition)
            kept = [cached.bytes_max for cached in list(self._passing.values())]
            if sum(kept) + rows.bytes_max > _CACHED_ROWS_BYTES_MAX:
                self._passing.clear()
            self._passing[key] = rows
        return rows

    def _passing_rows(self, condition: Filter) -> PassingRows:
        """Return the points that pass a filter."""
        return PassingRows(self._filters.flags(condition))

    def check_queries(self, queries: RowsLike) -> None:
        """Raise the errors that `answer` would raise for the values of `queries`."""
        query_rows("queries", queries, self.dims, self._searcher.metric)

    def answer(
        self,
        queries: RowsLike,
        parameters: QueryParameters,
        passing: PassingRows | None = None,
        quotas: Quotas | None = None,
        *,
        as_points: bool = False,
    ) -> QueryResult:
        """Answer `queries` as `Index.query` does, with all parameters in one object.

        passing: the points that a query may return; None stands for all points.
        quotas: what the results must meet, as `divgrpc.columns.quotas.as_quotas` has checked it.

        On an index of sparse points, `auto` takes the search for dense queries from measurements
        with normals of hyperplanes or, if `as_points`, with points.
        """
        queries = query_rows("queries", queries, self.dims, self._searcher.metric)
        if not 1 <= len(queries) <= LIMITS["query_rows_max"]:
            raise invalid(
                "queries", f"must have 1 to {LIMITS['query_rows_max']} rows, got {len(queries)}"
            )
        dense = not (as_points or isinstance(queries, SparseRows))
        passing = self.searched(passing)
        plan = self.plan(parameters, dense=dense, passing=_count(passing), picks=quotas is None)
        columns: dict[str, Any] = {}
        if quotas is None:
            answers = self._search(queries, plan, passing)
        else:
            answers, columns = self._answer_within(quotas, queries, plan, passing, parameters)
        warnings = plan.warnings + quota_warnings(columns)
        if dense and parameters.search == "auto" and plan.parameters.search != "exact":
            warnings += self._warn_like_points(queries, parameters)
        result = self.result(answers, plan.parameters, parameters, warnings, _count(passing))
        return replace(result, **columns) if columns else result

    def check_quotas(self, quotas: Quotas | None, parameters: QueryParameters) -> Quotas | None:
        """Return quotas in the form that `answer` takes.

        Raises `InvalidArgumentError` for quotas that do not fit the attributes of the index or the
        parameters of the query.
        """
        if quotas is None:
            return None
        if parameters.selector == "qp_relax":
            sentence = "qp_relax picks all results at once, and does not go with quotas or groups"
            raise InvalidArgumentError("selector", f"{sentence}: choose another selector")
        checked = check_quotas(quotas, self._reader.attributes, parameters.k)
        if parameters.max_distance is None:
            return checked
        multi = {attribute.name for attribute in self._reader.attributes if attribute.multi}
        if len(checked.names) > 1 or checked.names[0] in multi:
            # Whether several values can be met is decided over all points, near and far.
            rule = "goes with one quota, on an attribute with one value per point"
            raise invalid("max_distance", f"{rule}: leave it out, or set one quota")
        return checked

    def _answer_within(
        self,
        quotas: Quotas,
        queries: Rows,
        plan: QueryPlan,
        passing: PassingRows | None,
        parameters: QueryParameters,
    ) -> tuple[Answers, dict[str, Any]]:
        """Answer within quotas; return the answers, and further fields of the result."""
        passing = self._visible if passing is None else passing
        every = self._all_rows if passing is None else passing
        dense, k = not isinstance(queries, SparseRows), min(plan.parameters.k, every.count)
        if may_drop_forbidden(quotas) and every.count:
            # Searches that find forbidden points might find no others.
            every = passing = self._without_forbidden(quotas, every)
            if every.count:
                plan = self.plan(parameters, dense=dense, passing=every.count, picks=False)

        def plan_of(rows: PassingRows) -> QueryPlan:
            return self.plan(parameters, dense=dense, passing=rows.count, picks=False)

        source = QuotaSource(
            searcher=self._searcher,
            plan=plan,
            passing=passing,
            every=every,
            numbers=self._numbers,
            narrow=lambda condition: self._narrow(condition, passing),
            population=lambda rules: self._population(rules, every),
            plan_of=plan_of,
            farther=lambda: self._farther_plan(plan, passing),
        )
        return QuotaSearch(source, quotas, k).answer(queries)

    def _narrow(self, condition: Condition, passing: PassingRows | None) -> PassingRows:
        """Return the points in `passing`, None for all, that pass a condition too."""
        whole = Filter(must=(condition,))
        if isinstance(condition, Match) and len(condition.values) == 1:
            # Many queries have a quota on the same value.
            rows = self._rows_that_pass(whole)
        else:
            rows = self._passing_rows(whole)
        return rows if passing is None else rows.within(passing)

    def result(
        self,
        answers: Answers,
        effective: EffectiveParameters,
        parameters: QueryParameters,
        warnings: tuple[WarningInfo, ...],
        passing: int | None,
    ) -> QueryResult:
        """Return answers as a result; `passing` is the number of points that pass a filter."""
        available = self.rows_searched if passing is None else passing
        warnings += too_few(
            "k", effective.k, available, answers.counts, filtered=passing is not None
        )
        stats = QueryStats(*answers.stats)
        if effective.duplicate_threshold is not None:
            warnings += crowded(effective.k, answers.counts, stats)
        return QueryResult(
            scores=answers.scores,
            selection_scores=answers.selection_scores,
            counts=answers.counts,
            generation=self.generation,
            sequence=self.sequence,
            stats=stats,
            parameters=effective,
            warnings=warnings,
            duality_gaps=answers.gaps,
            diversities=answers.dials,
            dial_reasons=reason_words(answers.reasons),
            points_passing=passing,
            **self._columns_of(answers, parameters),
        )

    def answer_like(
        self,
        rows: IntArray,
        parameters: QueryParameters,
        passing: PassingRows | None = None,
        quotas: Quotas | None = None,
    ) -> QueryResult:
        """Answer with the vectors of the points in `rows` (nq,) as queries.

        A query does not return its own point.
        """
        visible = self.searched_rows(passing)

        def answer_one(row: IntArray) -> QueryResult:
            others_pass = visible.without(row)
            return self.answer(
                self.vectors_at(row), parameters, others_pass, quotas, as_points=True
            )

        return joined(self.answer_each(answer_one, rows))

    def searched_rows(self, passing: PassingRows | None) -> PassingRows:
        """Return the points in `passing`, None for all, that have a vector."""
        visible = self.searched(self._all_rows if passing is None else passing)
        assert visible is not None  # noqa: S101  # the argument is not None
        return visible

    def searched(self, passing: PassingRows | None) -> PassingRows | None:
        """Return the points that pass and that searches see."""
        return passing

    def _search(self, queries: Rows, plan: QueryPlan, passing: PassingRows | None) -> Answers:
        passing = self.open_rows(passing)
        if passing is not None and not passing.count:
            return no_answers(len(queries), plan.parameters)
        return self._searcher.answer(queries, plan, passing)

    def resolve(
        self,
        parameters: QueryParameters,
        queries: RowsLike | None = None,
        passing: PassingRows | None = None,
    ) -> EffectiveParameters:
        """Return `parameters` with every default of this index filled in.

        Of `queries`, it matters only whether they are dense or sparse. None stands for queries of
        the same kind as the points. Raises the errors that `answer` would raise for `parameters`.
        """
        sparse = queries is None or _is_sparse(queries)
        passing = self.searched(passing)
        return self.plan(parameters, dense=not sparse, passing=_count(passing)).parameters

    def exact_together(
        self, queries: RowsLike, parameters: QueryParameters, *, as_points: bool = False
    ) -> int:
        """Return how many query rows can share one exact search; 1 if no rows can share one."""
        sparse = _is_sparse(queries)
        plan = self.plan(parameters, dense=not (as_points or sparse))
        return self._searcher.exact_together(plan, sparse=sparse)

    def plan(
        self,
        parameters: QueryParameters,
        *,
        dense: bool,
        passing: int | None = None,
        picks: bool = True,
    ) -> QueryPlan:
        """Return the plan for `parameters`, cached because most calls repeat their parameters.

        `passing`: number of points that pass the filter of the queries; None without a filter.
        `picks`: whether searches pick results; otherwise they only find candidates.
        """
        dense = dense and self.manifest.points == "sparse"
        key = (parameters, dense, passing, picks)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._make_plan(parameters, dense=dense, passing=passing, picks=picks)
            if len(self._plans) >= _CACHED_PLANS_MAX:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def _farther_plan(self, plan: QueryPlan, passing: PassingRows | None) -> QueryPlan:
        """Return the plan for queries with quotas that look farther than `plan`, cached."""
        key = (plan.parameters, _count(passing))
        farther = self._farther_plans.get(key)
        if farther is None:
            rows = max(1, self.rows_searched)
            farther = self._searcher.farther(plan, passing=_count(passing), rows=rows)
            if len(self._farther_plans) >= _CACHED_PLANS_MAX:
                self._farther_plans.clear()
            self._farther_plans[key] = farther
        return farther

    def _warn_like_points(
        self, queries: Rows, parameters: QueryParameters
    ) -> tuple[WarningInfo, ...]:
        """Warn if `auto` treats dense queries as hyperplanes although one may be a point."""
        if self.manifest.auto_search_dense is None or isinstance(queries, SparseRows):
            return ()
        plans = [self.plan(parameters, dense=dense) for dense in (False, True)]
        if plans[0].parameters.search == plans[1].parameters.search:
            return ()
        if all(np.count_nonzero(query) > self.widest_row for query in queries):
            return ()
        sentence = (
            "dense queries are taken for hyperplanes, and some have no more numbers than points:"
            " send those sparse, or name a search"
        )
        return (WarningInfo("DENSE_QUERIES_LIKE_POINTS", sentence, "queries"),)

    def _make_plan(
        self, parameters: QueryParameters, *, dense: bool, passing: int | None, picks: bool
    ) -> QueryPlan:
        if parameters.max_distance is not None and self._searcher.metric == "inner_product":
            raise invalid("max_distance", "has no meaning under metric inner_product")
        manifest, rows = self.manifest, self._rows_open(passing)
        mean_width = -(-manifest.nonzeros // max(1, self.rows_searched))
        table = self._dense_table if dense else self._table
        threshold = parameters.collapse_threshold(
            self._searcher.metric, manifest.duplicate_threshold
        )
        effective = self._resolve(parameters, threshold, dense=dense, rows=rows)
        if not picks and not parameters.has_limit:
            wider = replace(
                parameters,
                hash_limit=_QUOTA_HASH_RATIO * effective.hash_limit,
                candidates_limit=effective.candidates_limit,
            )
            effective = self._resolve(wider, threshold, dense=dense, rows=rows)
        most_compared = parameters.most_compared(mean_width)
        plan = self._searcher.plan(
            effective,
            # Few points of the probed buckets or cells may pass a filter.
            probe_on=parameters.search == "auto" or passing is not None,
            pool_limit=min(parameters.most_candidates(mean_width), most_compared),
            retries=parameters.searches_again,
            passing=None if passing is None else rows,
            rows=max(1, self.rows_searched),
            picks=picks,
        )
        warnings = parameters.warnings() + table.warnings(parameters, effective, rows)
        if threshold is not None and effective.duplicate_threshold is None:
            warnings += (not_collapsed(most_compared),)
        warnings += absent_columns(
            no_attributes=parameters.with_attributes and not manifest.attributes,
            no_payloads=parameters.with_payload and not self._has_payloads,
        )
        return replace(plan, warnings=warnings)

    def _rows_open(self, passing: int | None) -> int:
        # The limits of a query on no point matter to nobody, but must be valid.
        return max(1, self.rows_searched if passing is None else passing)

    def _resolve(
        self, parameters: QueryParameters, threshold: float | None, *, dense: bool, rows: int
    ) -> EffectiveParameters:
        """Fill in the defaults of parameters for `rows` points that a query may return."""
        manifest = self.manifest
        return (self._dense_table if dense else self._table).resolve(
            parameters,
            rows,
            self.widest_row,
            manifest.points,
            manifest.nonzeros if manifest.points == "sparse" else None,
            most_probes=self._searcher.max_probes,
            duplicate_threshold=threshold,
        )

    def plan_candidates(
        self,
        parameters: QueryParameters,
        threshold: float | None,
        *,
        dense: bool,
        passing: int | None = None,
    ) -> QueryPlan:
        """Return the plan that finds candidates and leaves the picks to the caller.

        parameters: have both limits, so the number of candidates is fixed.
        threshold: the threshold of near-copies, None if nothing is collapsed.
        dense, passing: as for `_plan`.
        """
        dense, rows = dense and self.manifest.points == "sparse", self._rows_open(passing)
        effective = self._resolve(parameters, None, dense=dense, rows=rows)
        return self._searcher.plan(
            replace(effective, duplicate_threshold=threshold),
            probe_on=parameters.search == "auto" or passing is not None,
            pool_limit=0,
            passing=None if passing is None else rows,
            rows=max(1, self.rows_searched),
            picks=False,
        )

    def answer_one_by_one(
        self,
        queries: RowsLike,
        parameters: QueryParameters,
        passing: PassingRows | None = None,
    ) -> tuple[IntArray, Values]:
        """Answer one row at a time, and measure the time of each row, for evaluations.

        Returns the ids (nq, k) int64 that `answer` would return. Also returns the CPU time (nq,)
        float64 of this thread for the search and selection of each row, in microseconds.
        """
        queries = query_rows("queries", queries, self.dims, self._searcher.metric)
        dense = not isinstance(queries, SparseRows)
        passing = self.searched(passing)
        plan = self.plan(parameters, dense=dense, passing=_count(passing))

        def answer_one(query: Rows) -> tuple[IntArray, float]:
            start = thread_seconds()
            ids = self._search(query, plan, passing).ids[0]
            return ids, thread_seconds() - start

        outcomes = self.answer_each(answer_one, queries, is_block=True)
        ids, seconds = zip(*outcomes, strict=True)
        return np.stack(ids), np.array(seconds) * 1e6


def _count(passing: PassingRows | None) -> int | None:
    return None if passing is None else passing.count


def _is_sparse(queries: RowsLike | None) -> bool:
    return isinstance(queries, SparseRows) or hasattr(queries, "tocsr")
