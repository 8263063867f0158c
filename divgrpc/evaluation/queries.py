"""Evaluations of queries: relevance, metrics of results, and rows of settings."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError, UnfitIndexError, invalid
from divgrpc.evaluation.folds import FOLDS
from divgrpc.evaluation.grid import Grid
from divgrpc.evaluation.study import Resolution, Study, Tally, Task
from divgrpc.metrics import Topics, Values, mean, measure, objective
from divgrpc.metrics.comparing import without_nan
from divgrpc.metrics.measures import MEASURES, harmonic_mean_of_means
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.types import EvaluateRow, IntArray, Interval, Progress, QueryDefault

if TYPE_CHECKING:
    from divgrpc.engine import Engine
    from divgrpc.index import Index

METRICS: Final = (*MEASURES, "query_distance", "ilad", "ilmd", "objective")
# The figures of a query at a setting: its metrics, its time, and how many results it has.
COLUMNS: Final = (*METRICS, "microseconds", "found")
# Least number of queries with an h to choose by folds: every fold needs one outside it.
LEAST_WITH_H: Final = 2

# Queries of an index: a dense (nq, d) array or sparse rows, which have a shape and slices.
Queries = Any


@dataclass(frozen=True, slots=True, eq=False)
class Relevance:
    """The relevant points of nq queries: by `categories` (nq,) int64, or by `relevant` ids."""

    categories: IntArray | None = None
    relevant: tuple[IntArray, ...] | None = None

    @classmethod
    def of(
        cls,
        categories: npt.ArrayLike | None,
        relevant: Sequence[npt.ArrayLike] | None,
        queries: int,
    ) -> "Relevance":
        """Check a caller's arguments; raises `InvalidArgumentError` with the field."""
        field = "categories" if relevant is None else "relevant"
        if (categories is None) == (relevant is None):
            raise InvalidArgumentError(field, "set either categories or relevant")
        if categories is not None:
            numbers = _whole(categories, field)
            entries, relevance = len(numbers), cls(categories=numbers)
        else:
            lists = tuple(_whole(ids, field) for ids in relevant or ())
            entries, relevance = len(lists), cls(relevant=lists)
        if entries != queries:
            raise invalid(field, "must have one entry for each query")
        return relevance

    def __getitem__(self, rows: slice) -> "Relevance":
        """Return the relevance for consecutive queries."""
        return Relevance(
            None if self.categories is None else self.categories[rows],
            None if self.relevant is None else self.relevant[rows],
        )

    def fold_keys(self) -> IntArray:
        """Return the numbers by which folds are dealt: the categories, or the same for all."""
        if self.categories is not None:
            return self.categories
        return np.zeros(len(self.relevant or ()), np.int64)

    def topics(self, index: "Engine") -> tuple[Topics, IntArray]:
        """Return topics and the name (nq,) of each query's topic.

        Raises `InvalidArgumentError`, with the field categories or relevant, for a category or an
        id that no point has.
        """
        if self.categories is not None:
            try:
                index.topics.numbers(self.categories)
            except InvalidArgumentError as error:
                raise InvalidArgumentError("categories", f"categories: {error}") from None
            return index.topics, self.categories
        topics = Topics.of_relevant(self.relevant or (), index.topics.labels)
        return topics, topics.names


class QueryTally(Tally[EvaluateRow]):
    """Tables of `COLUMNS` (len(COLUMNS), nq); `keys` (nq,) int64 are `Relevance.fold_keys`."""

    table_columns = COLUMNS
    choice_fields = ("selector", "variant", "rounding", "search", "k")

    def __init__(self, task: Task, resolution: Resolution, keys: IntArray) -> None:
        super().__init__(task, resolution)
        self._keys = keys

    def default(self, rows: Sequence[EvaluateRow]) -> QueryDefault:
        """Return the setting of the default choice among `rows`, the result of `rows()`."""
        (winner,) = (row.number for row in rows if row.is_default)
        setting = self.settings[self.choices[winner - len(self.settings)].overall]
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
                # The plain mean, to the last digit.
                name: interval._replace(value=mean(columns[name]))
                for name, interval in zip(METRICS, intervals, strict=True)
            },
            h_of_means=harmonic_mean_of_means(
                columns["precision"][with_d], columns["normalised_entropy"][with_d]
            ),
            queries=self.task.rows,
        )

    def _fold_keys(self, goals: Values) -> IntArray:
        # Queries without an h come first: the others are dealt in turn, so no fold has them all.
        return np.where(np.isnan(goals[0]), np.iinfo(np.int64).min, self._keys)


def evaluate(
    index: "Index",
    queries: Queries,
    categories: npt.ArrayLike | None = None,
    *,
    relevant: Sequence[npt.ArrayLike] | None = None,
    grid: Grid | None = None,
    folds: int = FOLDS,
    set_default: bool = False,
    per_query: bool = False,
    progress: Callable[[Progress], object] | None = None,
) -> Iterator[EvaluateRow]:
    """Measure every setting of `grid` on `queries` (nq, d), and yield a row for each.

    categories: (nq,) the category of each query; its points are relevant.
    relevant: instead of categories, the ids of the relevant points of each query.
    folds: number of folds by which settings are chosen, 2 to nq; 0 chooses none.
    set_default: make the best choice the index's default for Query.
    per_query: include the figures of every query in the rows.
    progress: called with a `Progress` after each block of queries.

    Rows of all settings come in the grid's order. A row follows for each choice: for every
    selector, search and k the diversity and the limits with the greatest mean h.

    Raises `InvalidArgumentError` with the field, and `UnfitIndexError` if the index lacks
    categories or sub-topics, both before any work.
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
    ).bounded()
    relevance = Relevance.of(categories, relevant, count)
    return study_queries(index.engine, queries, relevance, task).run(progress)


def study_queries(
    index: "Engine", queries: Queries, relevance: Relevance, task: Task
) -> Study[EvaluateRow]:
    """Return the study of a task on an index.

    Raises `InvalidArgumentError` with the field, and `UnfitIndexError` if the index lacks
    categories or sub-topics that the task needs.
    """
    resolution = _resolve(index, queries, relevance, task)
    tally = QueryTally(task, resolution, relevance.fold_keys())

    def measure_block(rows: slice, setting: QueryParameters) -> Values:
        return _measure(index, queries[rows], relevance[rows], setting)

    return Study(tally, measure_block, lambda rows: index.set_default(tally.default(rows)))


def _resolve(index: "Engine", queries: Queries, relevance: Relevance, task: Task) -> Resolution:
    """Check a task against an index; raises as `study_queries`."""
    if relevance.categories is not None and not len(index.topics.names):
        raise UnfitIndexError(
            "categories", "the index has no categories: set relevant, or build it with categories"
        )
    index.check_queries(queries)
    topics, names = relevance.topics(index)
    with_h = int((topics.depths(topics.numbers(names), 1)[:, 0] > 1).sum())
    chooses = bool(task.folds) and with_h >= LEAST_WITH_H
    if task.set_default and not chooses:
        raise UnfitIndexError(
            "set_default",
            "set_default needs at least two queries with two or more relevant sub-topics",
        )
    most = LIMITS["k_candidates_dims_max"]
    # The numbers that a comparison of all pairs of results reads.
    if max(task.widths()) ** 2 * index.widest_row > most:
        raise InvalidArgumentError(
            "ks", f"the greatest k, squared, times the numbers of a point must be at most {most}"
        )
    parameters = tuple(index.resolve(setting, queries) for setting in task.grid.settings())  # type: ignore[arg-type]  # of a `Grid`
    return Resolution(index.generation, parameters, chooses=chooses)


def _measure(
    index: "Engine", queries: Queries, relevance: Relevance, setting: QueryParameters
) -> Values:
    """Return the figures (len(COLUMNS), nq) of queries, each answered alone."""
    ids, microseconds = index.answer_one_by_one(queries, setting)
    topics, names = relevance.topics(index)
    judged = topics.judge(ids, names)
    distances = index.distances(queries, ids)
    columns = measure(judged) | {
        "query_distance": distances.to_query,
        "ilad": distances.mean,
        "ilmd": distances.least,
        "objective": objective(distances, setting.dial),
        "microseconds": microseconds,
        "found": judged.found,
    }
    return np.stack([np.asarray(columns[name], np.float64) for name in COLUMNS])


def _whole(numbers: npt.ArrayLike, field: str) -> IntArray:
    array = np.asarray(numbers)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise invalid(field, "must be whole numbers, in one dimension")
    return array.astype(np.int64)
