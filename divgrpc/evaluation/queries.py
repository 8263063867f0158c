"""Evaluations of queries: relevance, metrics of results, and rows of settings."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError, UnfitIndexError
from divgrpc.evaluation.folds import FOLDS
from divgrpc.evaluation.grid import Grid
from divgrpc.evaluation.study import Study
from divgrpc.evaluation.tally import Tally, harmonic_mean_of_means, summary, with_nan_left_out
from divgrpc.evaluation.task import Plan, Task
from divgrpc.metrics import ListDistances, Topics, Values, mean, measure, objective
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.types import (
    EffectiveParameters,
    EvaluateRow,
    IntArray,
    Interval,
    Progress,
    QueryDefault,
)

METRICS: Final = (
    "precision",
    "recall",
    "f_score",
    "average_precision",
    "reciprocal_rank",
    "one_call",
    "n_call",
    "majority_accuracy",
    "subtopic_recall",
    "normalised_entropy",
    "h_score",
    "alpha_ndcg",
    "err_ia",
    "query_distance",
    "ilad",
    "ilmd",
    "objective",
)
# The figures of a query at a setting: its metrics, its time, and how many results it has.
COLUMNS: Final = (*METRICS, "microseconds", "found")
# Least number of queries with an h to choose by folds: every fold needs one outside it.
LEAST_WITH_H: Final = 2

# A dense (nq, d) array, or sparse rows: what an index takes as queries, with a shape and slices.
Queries = Any


class Evaluable(Protocol):
    """What an evaluation of queries needs of `divgrpc.engine.Engine`."""

    @property
    def topics(self) -> Topics:
        """The categories of the points."""

    @property
    def generation(self) -> int:
        """The number of this build."""

    @property
    def widest_row(self) -> int:
        """How many numbers a point stores at most."""

    def check_queries(self, queries: Queries) -> None:
        """Raise what is wrong with queries."""

    def resolve(self, parameters: QueryParameters, queries: Queries) -> EffectiveParameters:
        """Fill in the defaults; dense queries may be searched otherwise than sparse ones."""

    def answer_one_by_one(
        self, queries: Queries, parameters: QueryParameters
    ) -> tuple[IntArray, Values]:
        """Return ids (nq, k) and microseconds (nq,)."""

    def distances(self, queries: Queries, ids: IntArray) -> ListDistances:
        """Measure the distances of result lists."""

    def set_default(self, default: QueryDefault | None) -> None:
        """Set what Query takes where its caller names nothing."""


class Indexed(Protocol):
    """What an evaluation of queries needs of `divgrpc.Index`."""

    @property
    def engine(self) -> Evaluable:
        """What answers."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """The relevant points of nq queries: by `categories` (nq,) int64, or by `relevant` ids."""

    categories: IntArray | None = None
    relevant: tuple[IntArray, ...] | None = None

    @classmethod
    def of(
        cls,
        categories: npt.ArrayLike | None,
        relevant: Sequence[npt.ArrayLike] | None,
        queries: int,
    ) -> "Asked":
        """Check a caller's arguments; raises `InvalidArgumentError` with the field."""
        if (categories is None) == (relevant is None):
            raise InvalidArgumentError(
                "categories" if relevant is None else "relevant",
                "set either categories or relevant",
            )
        lists = None if relevant is None else tuple(_whole(ids, "relevant") for ids in relevant)
        asked = cls(None if categories is None else _whole(categories, "categories"), lists)
        if len(asked.categories if lists is None else lists) != queries:  # type: ignore[arg-type]  # one of the two is there
            field = "categories" if lists is None else "relevant"
            raise InvalidArgumentError(field, f"{field} must have one entry for each query")
        return asked

    def __getitem__(self, rows: slice) -> "Asked":
        """Return what is relevant to consecutive queries."""
        if self.relevant is not None:
            return Asked(relevant=self.relevant[rows])
        assert self.categories is not None  # noqa: S101  # one of the two is there
        return Asked(self.categories[rows])

    def numbers(self) -> IntArray:
        """Return the numbers by which folds are dealt: the categories, or the same for all."""
        if self.categories is not None:
            return self.categories
        return np.zeros(len(self.relevant or ()), np.int64)

    def topics(self, index: Evaluable) -> tuple[Topics, IntArray]:
        """Return topics and the name (nq,) of each query's; raises what is wrong with them."""
        if self.categories is not None:
            try:
                index.topics.numbers(self.categories)
            except InvalidArgumentError as error:
                raise InvalidArgumentError("categories", f"categories: {error}") from None
            return index.topics, self.categories
        topics = Topics.of_relevant(self.relevant or (), index.topics.labels)
        return topics, topics.names


class QueryTally(Tally[EvaluateRow]):
    """Tables of `COLUMNS` (len(COLUMNS), nq); `numbers` (nq,) int64 are `Asked.numbers`."""

    def __init__(self, task: Task, plan: Plan, numbers: IntArray) -> None:
        super().__init__(task, plan)
        self._numbers = numbers

    def figures(self, row: EvaluateRow) -> Values:
        """Return the table behind a row that has `values`."""
        return np.stack([row.values[name] for name in COLUMNS])

    def default(self, rows: Sequence[EvaluateRow]) -> QueryDefault:
        """Return the setting of the choice that is the default; `rows` are those of `rows()`."""
        (winner,) = (row.number for row in rows if row.is_default)
        setting = self.settings[self.choices[winner - len(self.settings)].overall]
        return QueryDefault(
            diversity=setting.dial,
            selector=setting.selector,
            variant=setting.variant,
            search=setting.search,
            hash_limit=setting.hash_limit,
            candidates_limit=setting.candidates_limit,
            rounding=setting.rounding,
        )

    def _height(self, width: int) -> int:
        del width
        return len(COLUMNS)

    def _columns(self, table: Values) -> dict[str, Values]:
        return dict(zip(COLUMNS, table, strict=True))

    def _ratios(self, table: Values) -> tuple[Values, Values]:
        return with_nan_left_out(table[: len(METRICS)].T)

    def _row(self, setting: int, table: Values, intervals: list[Interval]) -> EvaluateRow:
        columns, k = self._columns(table), self.settings[setting].k
        with_d = ~np.isnan(columns["normalised_entropy"])
        return EvaluateRow(
            number=setting,
            generation=self.plan.generation,
            search=self.settings[setting].search,
            parameters=self.plan.resolved[setting],
            metrics={
                # The plain mean, to the last digit.
                name: interval._replace(value=mean(columns[name]))
                for name, interval in zip(METRICS, intervals, strict=True)
            },
            h_of_means=harmonic_mean_of_means(
                columns["precision"][with_d], columns["normalised_entropy"][with_d]
            ),
            microseconds=summary(columns["microseconds"]),
            queries=self.task.rows,
            empty=int((columns["found"] == 0).sum()),
            short=int((columns["found"] < k).sum()),
            values={name: column.copy() for name, column in columns.items()}
            if self.task.per_row
            else {},
        )

    def _kind(self, setting: QueryParameters) -> Hashable:
        return setting.selector, setting.variant, setting.rounding, setting.search, setting.k

    def _fold_keys(self, goals: Values) -> IntArray:
        # Queries without an h come first: the others are dealt in turn, so no fold has them all.
        return np.where(np.isnan(goals[0]), np.iinfo(np.int64).min, self._numbers)

    def _default_key(self, row: EvaluateRow) -> Hashable:
        del row
        return None


def evaluate(
    index: Indexed,
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
    """Try every setting of `grid` on `queries` (nq, d), and yield what each reached.

    The points of a query's category, `categories` (nq,), are relevant to it, or else the points
    whose ids `relevant` lists for it. Rows of all settings come in the grid's order. A row follows
    for each choice by `folds`: for every selector, search and k the diversity and the limits with
    the greatest mean h. With `set_default` the best choice becomes the index's default for Query.
    With `per_query` rows have the figures of every query. `progress` is called after each block of
    queries.

    Everything is checked before any work: raises `InvalidArgumentError` with the field, and
    `UnfitIndexError` where the index lacks categories or sub-topics.
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
    study = study_queries(index.engine, queries, Asked.of(categories, relevant, count), task)
    return study.run(progress or (lambda _: None))


def study_queries(
    index: Evaluable, queries: Queries, asked: Asked, task: Task
) -> Study[EvaluateRow]:
    """Return the study of a task on an index; raises the errors of `plan`."""
    tally = QueryTally(task, plan(index, queries, asked, task), asked.numbers())

    def measure_block(rows: slice, setting: QueryParameters) -> Values:
        return _measure(index, queries[rows], asked[rows], setting)

    return Study(tally, measure_block, lambda rows: index.set_default(tally.default(rows)))


def plan(index: Evaluable, queries: Queries, asked: Asked, task: Task) -> Plan:
    """Check a task against an index.

    Raises `InvalidArgumentError` with the field, and `UnfitIndexError` where the index lacks
    categories or sub-topics that the task needs.
    """
    if asked.categories is not None and not len(index.topics.names):
        raise UnfitIndexError(
            "categories", "the index has no categories: set relevant, or build it with categories"
        )
    index.check_queries(queries)
    topics, names = asked.topics(index)
    with_h = int((topics.depths(topics.numbers(names), 1)[:, 0] > 1).sum())
    chooses = bool(task.folds) and with_h >= LEAST_WITH_H
    if task.set_default and not chooses:
        raise UnfitIndexError(
            "set_default",
            "set_default needs at least two queries with two or more relevant sub-topics",
        )
    most = LIMITS["k_candidates_dims_max"]
    # What it takes to compare every result with every other.
    if max(task.widths()) ** 2 * index.widest_row > most:
        raise InvalidArgumentError(
            "ks", f"the greatest k, squared, times the numbers of a point must be at most {most}"
        )
    resolved = tuple(index.resolve(setting, queries) for setting in task.grid.settings())  # type: ignore[arg-type]  # of a `Grid`
    return Plan(index.generation, resolved, chooses=chooses)


def _measure(index: Evaluable, queries: Queries, asked: Asked, setting: QueryParameters) -> Values:
    """Return the figures (len(COLUMNS), nq) of queries, each answered alone."""
    ids, microseconds = index.answer_one_by_one(queries, setting)
    topics, names = asked.topics(index)
    judged = topics.judge(ids, names)
    away = index.distances(queries, ids)
    columns = measure(judged) | {
        "query_distance": away.to_query,
        "ilad": away.mean,
        "ilmd": away.least,
        "objective": objective(away, setting.dial),
        "microseconds": microseconds,
        "found": judged.found,
    }
    return np.stack([np.asarray(columns[name], np.float64) for name in COLUMNS])


def _whole(numbers: npt.ArrayLike, field: str) -> IntArray:
    array = np.asarray(numbers)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise InvalidArgumentError(field, f"{field} must be whole numbers, in one dimension")
    return array.astype(np.int64)
