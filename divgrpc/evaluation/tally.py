"""The table of an evaluation: figures of every row at every setting, and what comes of them."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from divgrpc.evaluation.folds import Choice, choices_of, deal_folds
from divgrpc.evaluation.task import Plan, Task
from divgrpc.metrics import Values, harmonic_mean, mean, pareto_front, ratio_intervals
from divgrpc.types import EvaluateLabelRow, EvaluateRow, IntArray, Interval, Microseconds

# Bootstrap draws: an interval's ends move by a hundredth of its width, and many rows take seconds.
DRAWS: Final = 2_000
_COLUMNS_MAX: Final = 1_024
# Numbers of the columns that are drawn together, which are copied a few times.
_NUMBERS_MAX: Final = 2**22

RowT = TypeVar("RowT", bound=EvaluateRow | EvaluateLabelRow)


class Tally(ABC, Generic[RowT]):
    """Figures of every row at every setting; a subclass says what the columns of a table are."""

    def __init__(self, task: Task, plan: Plan) -> None:
        self.task = task
        self.plan = plan
        self.settings: Sequence[Any] = task.grid.settings()
        self.choices: list[Choice] = []
        self._tables = [
            np.full((self._height(width), task.rows), np.nan) for width in task.widths()
        ]

    def add(self, setting: int, start: int, measured: Values) -> None:
        """Take the figures (columns, n) of the rows from `start` on."""
        self._tables[setting][:, start : start + measured.shape[1]] = measured

    def rows(self) -> list[RowT]:
        """Return a row for every setting, then one for every choice."""
        named = map(self._columns, self._tables)
        both = [(columns[self.plan.goal], columns["microseconds"]) for columns in named]
        goals, times = (np.stack(side) for side in zip(*both, strict=True))
        front = fronts(self.task.widths(), goals, times)
        if self.plan.chooses:
            folds = deal_folds(self._fold_keys(goals), self.task.folds)
            self.choices = list(choices_of([self._kind(s) for s in self.settings], goals, folds))
        tables = [*self._tables, *(_chosen(self._tables, choice) for choice in self.choices)]
        at_once = columns_at_once(self.task.rows)
        rows: list[RowT] = []
        for table, intervals in zip(
            tables, _intervals(map(self._ratios, tables), at_once), strict=True
        ):
            number = len(rows)
            chosen = number - len(self._tables)
            choice = self.choices[chosen] if chosen >= 0 else None
            row = self._row(number if choice is None else choice.overall, table, intervals)
            rows.append(
                replace(
                    row,
                    number=number,
                    on_front=choice is None and bool(front[number]),
                    by_fold=() if choice is None else choice.by_fold,
                )
            )
        for number in self._winners(rows) if self.task.set_default else ():
            rows[number] = replace(rows[number], is_default=True)
        return rows

    def _winners(self, rows: list[RowT]) -> Iterable[int]:
        """Return the number of the choice with the greatest goal for each kind of default."""
        best: dict[Hashable, int] = {}
        for number in range(len(self._tables), len(rows)):
            key = self._default_key(rows[number])
            if key not in best or self._reached(rows[number]) > self._reached(rows[best[key]]):
                best[key] = number
        return best.values()

    def _reached(self, row: RowT) -> float:
        return row.metrics[self.plan.goal].value

    @abstractmethod
    def _height(self, width: int) -> int:
        """Return how many columns a table has for `width` results."""

    @abstractmethod
    def figures(self, row: RowT) -> Values:
        """Return the table (columns, n) behind a row that has `values`."""

    @abstractmethod
    def _columns(self, table: Values) -> dict[str, Values]:
        """Return the named figures (n,) of a table, the goal and the microseconds among them."""

    @abstractmethod
    def _ratios(self, table: Values) -> tuple[Values, Values]:
        """Return what a row's intervals divide, (n, m) each: gained, and possible."""

    @abstractmethod
    def _row(self, setting: int, table: Values, intervals: list[Interval]) -> RowT:
        """Return the row of a table, without what a choice changes."""

    @abstractmethod
    def _kind(self, setting: Any) -> Hashable:  # noqa: ANN401  # QueryParameters or PredictParameters
        """Return what settings have in common among which one is chosen."""

    @abstractmethod
    def _fold_keys(self, goals: Values) -> IntArray:
        """Return the numbers (n,) by which folds are dealt."""

    @abstractmethod
    def _default_key(self, row: RowT) -> Hashable:
        """Return which default a choice would set."""


def with_nan_left_out(values: Values) -> tuple[Values, Values]:
    """Return what `ratio_intervals` divides for the means of columns (n, m), NaN left out."""
    applies = ~np.isnan(values)
    return np.where(applies, values, 0.0), applies.astype(np.float64)


def harmonic_mean_of_means(first: Values, second: Values) -> float:
    """Return the harmonic mean of the means of two columns."""
    return float(harmonic_mean(np.array([mean(first)]), np.array([mean(second)]))[0])


def fronts(ks: Sequence[int], h: Values, times: Values) -> npt.NDArray[np.bool_]:
    """Return which of s settings no other of the same k beats, in mean h and in median time.

    `h` and `times` are (s, n), s bool is returned.
    """
    means = np.array([mean(column) for column in h])
    medians = np.median(times, axis=1)
    front = np.zeros(len(ks), np.bool_)
    for k in set(ks):
        members = np.array([value == k for value in ks])
        front[members] = pareto_front(means[members], medians[members])
    return front


def columns_at_once(rows: int) -> int:
    """Return how many columns (rows,) have their intervals made together."""
    return max(1, min(_COLUMNS_MAX, _NUMBERS_MAX // rows))


def summary(times: Values) -> Microseconds:
    """Return the mean and the percentiles of the times (n,) of rows."""
    return Microseconds(
        mean(times), *(float(value) for value in np.percentile(times, (50, 90, 99)))
    )


def _intervals(ratios: Iterable[tuple[Values, Values]], at_once: int) -> Iterator[list[Interval]]:
    """Yield the intervals of every table's columns; all tables see the same draws of rows."""
    waiting: list[tuple[Values, Values]] = []
    width = 0
    for gained, possible in ratios:
        if waiting and width + gained.shape[1] > at_once:
            yield from _intervals_of(waiting, at_once)
            waiting, width = [], 0
        waiting.append((gained, possible))
        width += gained.shape[1]
    yield from _intervals_of(waiting, at_once)


def _intervals_of(tables: list[tuple[Values, Values]], at_once: int) -> Iterator[list[Interval]]:
    gained, possible = (np.concatenate(side, axis=1) for side in zip(*tables, strict=True))
    intervals = iter(
        [
            interval
            for start in range(0, gained.shape[1], at_once)
            for interval in ratio_intervals(
                gained[:, start : start + at_once],
                possible[:, start : start + at_once],
                draws=DRAWS,
            )
        ]
    )
    for table, _ in tables:
        yield [next(intervals) for _ in range(table.shape[1])]


def _chosen(tables: Sequence[Values], choice: Choice) -> Values:
    """Return the table of the rows, each at the setting that its fold is reported at."""
    table = np.empty_like(tables[choice.members[0]])
    for member in choice.members:
        at_member = choice.at == member
        table[:, at_member] = tables[member][:, at_member]
    return table
