"""Evaluations of queries at many settings."""

from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from divgrpc.columns.filters import as_filter
from divgrpc.columns.ids import encode_texts, is_texts
from divgrpc.errors import InvalidArgumentError, UnfitIndexError, invalid
from divgrpc.evaluation.folds import FOLDS
from divgrpc.evaluation.grid import Grid, check_storable
from divgrpc.evaluation.study import Resolution, Runner, Study, Tally, Task
from divgrpc.metrics import Judged, Topics, Values, mean, measure, objective
from divgrpc.metrics.comparing import GROUPS_MIN, without_nan
from divgrpc.metrics.measures import MEASURES, harmonic_mean_of_means
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.types import EvaluateRow, IntArray, Interval, Progress, QueryDefault
from divgrpc.types.filters import Filter, FilterLike

if TYPE_CHECKING:
    from divgrpc.engine import Engine
    from divgrpc.index import Index
    from divgrpc.search.passing import PassingRows

METRICS: Final = (*MEASURES, "query_distance", "ilad", "ilmd", "objective")
# Names of the figures of a query at a setting: metrics, time and number of results.
COLUMNS: Final = (*METRICS, "microseconds", "found")
# A choice needs at least this many groups of queries with an h, because the queries outside of each
# fold must include a query with an h.
LEAST_WITH_H: Final = GROUPS_MIN

# Queries are a dense array (nq, d) or a sparse matrix (nq, d).
Queries = Any
ArrayT = TypeVar("ArrayT", IntArray, npt.NDArray[np.bool_])


@dataclass(frozen=True, slots=True, eq=False)
class Relevance:
    """The relevant points of nq queries, in one of two forms.

    categories: (nq,) int64, the category of each query. The points of this category are relevant.
    relevant: the ids of the relevant points of each query.
    """

    categories: IntArray | None = None
    relevant: tuple[IntArray | list[str], ...] | None = None

    @classmethod
    def of(
        cls,
        categories: npt.ArrayLike | None,
        relevant: Sequence[npt.ArrayLike] | None,
        queries: int,
    ) -> "Relevance":
        """Check `categories` and `relevant` of `evaluate`; exactly one of the two must be set.

        Raises `InvalidArgumentError` with the field categories or relevant.
        """
        field = "categories" if relevant is None else "relevant"
        if (categories is None) == (relevant is None):
            raise InvalidArgumentError(field, "set either categories or relevant")
        if categories is not None:
            numbers = _whole(categories, field)
            entries, relevance = len(numbers), cls(categories=numbers)
        else:
            lists = tuple(_ids(ids, field) for ids in relevant or ())
            entries, relevance = len(lists), cls(relevant=lists)
        if entries != queries:
            raise invalid(field, "must have one entry for each query")
        return relevance

    def __getitem__(self, rows: slice) -> "Relevance":
        """Return the relevance for a slice of the queries."""
        return Relevance(
            None if self.categories is None else self.categories[rows],
            None if self.relevant is None else self.relevant[rows],
        )

    def numbered(self, engine: "Engine") -> "Relevance":
        """Return the relevance with the numbers of `Engine.numbers_of` in place of ids.

        Raises `InvalidArgumentError` with the field relevant.
        """
        if self.relevant is None:
            return self
        texts = [ids for ids in self.relevant if isinstance(ids, list)]
        if len(texts) < len(self.relevant):
            lists = (engine.numbers_of(ids, "relevant") for ids in self.relevant)
            return Relevance(relevant=tuple(lists))
        # All together, because shards may have to be asked.
        numbers = engine.numbers_of([text for ids in texts for text in ids], "relevant")
        return Relevance(relevant=_split(numbers, texts))

    @property
    def numbers(self) -> IntArray:
        """The numbers of all relevant points, (m,), list after list."""
        return np.concatenate([np.empty(0, np.int64), *self._lists])

    @property
    def _lists(self) -> list[IntArray]:
        return [np.asarray(ids) for ids in self.relevant or ()]

    def within(self, engine: "Engine", passing: "PassingRows") -> "Relevance":
        """Return the relevance, which has numbers, without the points that do not pass a filter.

        Raises `InvalidArgumentError` with the field relevant if no point that passes is relevant to
        a query, or for an id that no point has.
        """
        if self.relevant is None:
            return self
        flags = _split(engine.flags_of(self.numbers, passing, "relevant"), self.relevant)
        for number, part in enumerate(flags):
            if not part.any():
                raise invalid("relevant", f"has no point for query {number} that passes the filter")
        lists = zip(self._lists, flags, strict=True)
        return Relevance(relevant=tuple(ids[part] for ids, part in lists))

    def topics(self, engine: "Engine", all_topics: Topics) -> tuple[Topics, IntArray]:
        """Return the topics, and the name of each query's topic (nq,).

        all_topics: the topics of the categories of the points that pass the filter.

        Raises `InvalidArgumentError`, with the field categories or relevant, for a category or an
        id that no point has.
        """
        if self.categories is not None:
            try:
                all_topics.numbers(self.categories)
            except InvalidArgumentError as error:
                raise InvalidArgumentError("categories", f"categories: {error}") from None
            return all_topics, self.categories
        topics = Topics.of_relevant(self._lists, engine.categories_of(self.numbers))
        return topics, topics.names

    def judge(self, engine: "Engine", all_topics: Topics, ids: IntArray) -> Judged:
        """Judge the results `ids` (nq, k) of the queries; `all_topics` are as for `topics`."""
        if self.categories is not None:
            return engine.topics_with(all_topics, ids).judge(ids, self.categories)
        labels = engine.categories_of(np.concatenate([ids.ravel(), self.numbers]))
        topics = Topics.of_relevant(self._lists, labels)
        return topics.judge(ids, topics.names)


def _split(values: ArrayT, lists: Sequence[Sized]) -> tuple[ArrayT, ...]:
    """Return the values for each of some lists; `values` has one for each entry of the lists."""
    ends = np.cumsum([len(one) for one in lists])
    return tuple(np.split(values, ends[:-1]))


def _ids(ids: npt.ArrayLike, field: str) -> IntArray | list[str]:
    """Return integer ids as an array, and text ids as a list."""
    if not is_texts(ids):
        return _whole(ids, field)
    return [text.decode() for text in encode_texts(ids, field)]  # type: ignore[arg-type]  # it has a first text


class QueryTally(Tally[EvaluateRow]):
    """Tables of the figures of queries, one for each setting, and result rows from the tables.

    A table is (len(COLUMNS), nq), as in `Tally`.
    """

    table_columns = COLUMNS
    choice_fields = ("selector", "variant", "rounding", "search", "k")

    def default(self) -> QueryDefault:
        """Return the winning setting, to be stored as the default; call `rows` first."""
        setting = self.settings[self.winners[0].overall]
        options = {field.name: getattr(setting, field.name) for field in fields(QueryDefault)}
        return QueryDefault(**options | {"diversity": setting.dial})

    def _columns(self, table: Values) -> dict[str, Values]:
        return dict(zip(COLUMNS, table, strict=True))

    def _ratios(self, table: Values) -> tuple[Values, Values]:
        return without_nan(table[: len(METRICS)].T)

    def _row(self, setting: int, table: Values, intervals: list[Interval]) -> EvaluateRow:
        columns = self._columns(table.copy())
        with_d = ~np.isnan(columns["normalised_entropy"])
        return EvaluateRow(
            **self._row_fields(setting, columns),
            metrics={
                # Replace each ratio by `mean`, because the ratio may differ from `mean` in the last
                # digit.
                name: interval._replace(value=mean(columns[name]))
                for name, interval in zip(METRICS, intervals, strict=True)
            },
            h_of_means=harmonic_mean_of_means(
                columns["precision"][with_d], columns["normalised_entropy"][with_d]
            ),
            queries=self.task.rows,
            epsilon=self.settings[setting].epsilon,
        )


def evaluate(
    index: "Index",
    queries: Queries,
    categories: npt.ArrayLike | None = None,
    *,
    relevant: Sequence[npt.ArrayLike] | None = None,
    groups: npt.ArrayLike | None = None,
    grid: Grid | None = None,
    folds: int = FOLDS,
    set_default: bool = False,
    per_query: bool = False,
    filter: FilterLike = None,  # noqa: A002  # the word that users expect
    progress: Callable[[Progress], object] | None = None,
) -> Iterator[EvaluateRow]:
    """Measure every setting of `grid` on `queries` (nq, d), and yield a row for each setting.

    queries: (nq, d), dense or sparse.
    categories: (nq,), the category of each query. The points of this category are relevant.
    relevant: the ids of the relevant points of each query, instead of `categories`.
    groups: (nq,) whole numbers, the group of each query. By default the group is the category or,
        with `relevant`, each query is its own group. Intervals and folds are over groups.
    grid: the settings to measure; by default those of `Grid()`.
    folds: number of cross-validation folds, 2 to nq, or 0 to choose no setting. There are never
        more folds than groups, and with one group no setting is chosen.
    set_default: make the best choice the index's default for Query, and yield a row for this
        choice.
    per_query: include the figures of every query in the rows.
    filter: conditions that all results must pass, as in `Index.query`. Points that do not pass are
        not relevant. Not with `set_default`, because a default applies to all queries.
    progress: called with a `Progress` at the start and after each block of queries.

    The rows of all settings come first, in the order of the grid. They are followed by a row for
    each choice. A choice is made for every combination of selector, variant, rounding, search and
    k. The choice is the diversity, limits, epsilon, n_probes and sampling with the greatest mean h.
    With `set_default`, a row for the best choice follows. Nested folds keep the figures of this row
    from being too high.

    Before any work, raises `InvalidArgumentError` with the field for an invalid argument. Raises
    `UnfitIndexError` if the index lacks the categories or, with `set_default`, if fewer than two
    groups have a query with two or more relevant sub-topics.
    """
    if hasattr(queries, "tocsr"):
        queries = queries.tocsr()
    elif not hasattr(queries, "indptr"):
        queries = np.atleast_2d(np.asarray(queries))
    count = int(queries.shape[0])
    task = Task(
        grid=Grid() if grid is None else grid,
        rows=count,
        folds=folds,
        set_default=set_default,
        per_row=per_query,
        groups=None if groups is None else np.asarray(groups),
    ).bounded()
    relevance = Relevance.of(categories, relevant, count)
    condition = as_filter(filter)
    return study_queries(index.engine, queries, relevance, task, condition).run(progress)


def study_queries(
    index: Runner,
    queries: Queries,
    relevance: Relevance,
    task: Task,
    condition: Filter | None = None,
) -> Study[EvaluateRow]:
    """Check a task, queries and their relevance against an index, and return the study.

    index: an engine or a `ShardRunner`.
    condition: a filter that `as_filter` has checked, or None.

    Raises `InvalidArgumentError` with the field, or `UnfitIndexError` if the index lacks
    categories or sub-topics that the task needs.
    """
    if task.groups is None and relevance.categories is not None:
        task = replace(task, groups=relevance.categories)
    if condition is not None and task.set_default:
        raise invalid("set_default", "does not go with a filter: a default is for all queries")
    scope, resolution = index.run(
        lambda engine: _prepare(engine, queries, relevance, task, condition)
    )
    tally = QueryTally(task, resolution)

    def measure_block(rows: slice, setting: QueryParameters) -> Values:
        return _measure(index, scope, queries[rows], rows, setting)

    def set_default(_: object) -> None:
        index.run(lambda engine: engine.set_default(tally.default()))

    return Study(tally, measure_block, set_default)


@dataclass(frozen=True, slots=True, eq=False)
class _Scope:
    """The points that an evaluation is about.

    passing: the points that pass the filter; None if there is no filter.
    topics: the topics of the categories of these points.
    relevance: the relevance, which has numbers.
    """

    passing: "PassingRows | None"
    topics: Topics
    relevance: Relevance


def _prepare(
    engine: "Engine",
    queries: Queries,
    relevance: Relevance,
    task: Task,
    condition: Filter | None,
) -> tuple[_Scope, Resolution]:
    """Check a task against an index, and return its scope and what it resolves to."""
    passing, relevance = engine.passing(condition), relevance.numbered(engine)
    if passing is not None:
        relevance = relevance.within(engine, passing)
    scope = _Scope(passing, _topics_of(engine, relevance, passing), relevance)
    engine.check_queries(queries)
    if task.set_default:
        check_storable(task.grid.settings())  # type: ignore[arg-type]  # of a `Grid`
    topics, names = relevance.topics(engine, scope.topics)
    with_h = topics.depths(topics.numbers(names), 1)[:, 0] > 1
    if task.set_default and len(np.unique(task.group_of_row[with_h])) < LEAST_WITH_H:
        raise UnfitIndexError(
            "set_default",
            "set_default needs two groups of queries with two or more relevant sub-topics",
        )
    limit = LIMITS["k_candidates_dims_max"]
    # Limit k * k * width: comparing all pairs of results of a query reads this many numbers.
    if max(task.widths()) ** 2 * engine.widest_row > limit:
        raise InvalidArgumentError(
            "ks", f"the greatest k, squared, times the numbers of a point must be at most {limit}"
        )
    settings: Sequence[Any] = task.grid.settings()
    return scope, Resolution(
        generation=engine.generation,
        parameters=tuple(engine.resolve(setting, queries, passing) for setting in settings),
        block_rows=tuple(engine.rows_together(setting, queries, passing) for setting in settings),
    )


def _topics_of(engine: "Engine", relevance: Relevance, passing: "PassingRows | None") -> Topics:
    """Return the topics of the categories of the points that pass, none with lists of ids.

    Raises `UnfitIndexError` if the index has no categories.
    """
    if relevance.categories is None:
        none = np.empty(0, np.int64)
        return Topics.of_counts(none, none, none)
    topics = engine.topics_within(passing)
    if not len(topics.names) and not len(engine.topics_within(None).names):
        raise UnfitIndexError(
            "categories", "the index has no categories: set relevant, or build it with categories"
        )
    return topics


def _measure(
    index: Runner, scope: _Scope, queries: Queries, rows: slice, setting: QueryParameters
) -> Values:
    """Answer one query at a time, and return the figures (len(COLUMNS), nq) of all queries.

    queries: those in `rows`.
    """
    relevance = scope.relevance[rows]
    (ids, microseconds), seconds = index.run_timed(
        lambda engine: engine.answer_one_by_one(queries, setting, scope.passing)
    )
    judgments = index.run(lambda engine: relevance.judge(engine, scope.topics, ids))
    distances = index.run(lambda engine: engine.distances(queries, ids))
    columns = measure(judgments) | {
        "query_distance": distances.to_query,
        "ilad": distances.mean,
        "ilmd": distances.least,
        "objective": objective(distances, setting.dial),
        "microseconds": microseconds + seconds * 1e6 / len(ids),
        "found": judgments.found,
    }
    return np.stack([np.asarray(columns[name], np.float64) for name in COLUMNS])


def _whole(numbers: npt.ArrayLike, field: str) -> IntArray:
    array = np.asarray(numbers)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise invalid(field, "must be whole numbers, in one dimension")
    return array.astype(np.int64)
