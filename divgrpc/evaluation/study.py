"""Evaluations of queries and of documents: measured block by block, then made into rows.

Theory of operation. `queries` and `label_running` check a task against an index and make a `Study`.
Its work is a list of blocks, and a block is some consecutive rows at one setting. Any number of
threads may take blocks; kernels release the interpreter's lock. Each block fills its part of a
`Tally`, and the tally makes the result rows at the end. A client that had to cut an evaluation into
several messages fills a tally with the figures of the answers, so this module needs only numpy.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.evaluation.folds import FOLDS, Choice, choices_of, deal_folds
from divgrpc.evaluation.grid import Grid, LabelGrid
from divgrpc.metrics import Values, mean, pareto_front, ratio_intervals
from divgrpc.parameters import LIMITS
from divgrpc.types import EvaluateLabelRow, EvaluateRow, IntArray, Interval, Microseconds, Progress

STAGE: Final = "evaluating"
# A block is long enough that its overhead is small, and short enough that progress moves and all
# threads end at about the same time.
_BLOCK_SECONDS: Final = 0.1
_FIRST_ROWS: Final = 16
_BLOCK_ROWS_MAX: Final = 512
# Results of a block, all of which are measured at once.
_BLOCK_RESULTS_MAX: Final = 2**15
# Bootstrap draws: an interval's ends move by 1 % of its width, and many rows take seconds.
DRAWS: Final = 2_000
# Columns whose intervals are computed together: at most 1,024, and at most 2**22 numbers.
_COLUMNS_MAX: Final = 1_024
_NUMBERS_MAX: Final = 2**22

RowT = TypeVar("RowT", bound=EvaluateRow | EvaluateLabelRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The options of an evaluation of `rows` queries or documents.

    With `folds` of 0 nothing is chosen. With `set_default` the best choice becomes the index's
    default; this needs folds and a single k. With `per_row` result rows have `values`. Raises
    `InvalidArgumentError` with the field.
    """

    grid: Grid | LabelGrid
    rows: int
    folds: int = FOLDS
    set_default: bool = False
    per_row: bool = False

    # Names of the rows, and of the parameter for the number of results, in requests and errors.
    rows_field: ClassVar[str] = "queries"
    width_field: ClassVar[str] = "k"

    def __post_init__(self) -> None:
        field, rows, folds = self.rows_field, self.rows, self.folds
        if not rows:
            raise invalid(field, "must have at least one row")
        is_whole = isinstance(folds, int | np.integer) and not isinstance(folds, bool)
        if not is_whole or (folds != 0 and not 2 <= folds <= rows):
            raise invalid(
                "folds", f"must be 0 or between 2 and the number of {field} {rows}, got {folds}"
            )
        if self.set_default and not folds:
            raise invalid("set_default", "needs folds to choose by")
        if self.set_default and len(set(self.widths())) > 1:
            raise invalid(
                "set_default", f"needs one {self.width_field}: several cannot be compared"
            )

    def widths(self) -> list[int]:
        """Return how many results a row has at each setting."""
        return [int(getattr(setting, self.width_field)) for setting in self.grid.settings()]

    def bounded(self) -> Self:
        """Return the task; raises `InvalidArgumentError` if it is too large for one call."""
        field, rows, settings = self.rows_field, self.rows, len(self.grid.settings())
        most = LIMITS["query_rows_max"]
        if rows > most:
            raise invalid(field, f"must have 1 to {most} rows, got {rows}")
        most = LIMITS["evaluate_queries_max"]
        if settings * rows > most:
            raise InvalidArgumentError(
                "grid",
                f"settings times {field} must be at most {most}, got {settings} times {rows}",
            )
        return self


def rows_max(settings: int) -> int:
    """Return the most queries or documents that one call with `settings` settings may have."""
    return min(LIMITS["query_rows_max"], LIMITS["evaluate_queries_max"] // settings)


@dataclass(frozen=True, slots=True)
class Resolution:
    """A task checked against an index: its generation, and the parameters of each setting.

    `goal` is the metric that choices maximise. `chooses`: enough rows have a goal to choose by.
    """

    generation: int
    parameters: tuple[Any, ...]
    goal: str = "h_score"
    chooses: bool = True


class Tally(ABC, Generic[RowT]):
    """Tables of figures, one for each setting; a subclass defines their columns."""

    # Names of the columns of a table. If `has_labels`, a column for each result follows them.
    table_columns: ClassVar[tuple[str, ...]]
    has_labels: ClassVar[bool] = False
    # One choice is made among the settings that have the same values of these parameters.
    choice_fields: ClassVar[tuple[str, ...]]

    def __init__(self, task: Task, resolution: Resolution) -> None:
        self.task = task
        self.resolution = resolution
        self.settings: Sequence[Any] = task.grid.settings()
        self.choices: list[Choice] = []
        heights = (
            len(self.table_columns) + (width if self.has_labels else 0) for width in task.widths()
        )
        self._tables = [np.full((height, task.rows), np.nan) for height in heights]

    def add(self, setting: int, start: int, figures: Values) -> None:
        """Store the figures (columns, n) of the rows from `start` on."""
        self._tables[setting][:, start : start + figures.shape[1]] = figures

    def figures(self, row: RowT) -> Values:
        """Return the table (columns, n) behind a row that has `values`."""
        labels = getattr(row, "labels", None)
        columns = [row.values[name] for name in self.table_columns]
        return np.stack(columns if labels is None else [*columns, *labels.T])

    def rows(self) -> list[RowT]:
        """Return a row for every setting, then one for every choice."""
        goals, times = self._goals_and_times()
        front = fronts(self.task.widths(), goals, times)
        if self.resolution.chooses:
            folds = deal_folds(self._fold_keys(goals), self.task.folds)
            kinds = list(map(attrgetter(*self.choice_fields), self.settings))
            self.choices = list(choices_of(kinds, goals, folds))
        settings = [*range(len(self._tables)), *(choice.overall for choice in self.choices)]
        tables = [*self._tables, *(_chosen_table(self._tables, choice) for choice in self.choices)]
        intervals = _intervals(map(self._ratios, tables), columns_at_once(self.task.rows))
        rows = [
            replace(self._row(*parts), number=number)
            for number, parts in enumerate(zip(settings, tables, intervals, strict=True))
        ]
        for number in np.flatnonzero(front).tolist():
            rows[number] = replace(rows[number], on_front=True)
        for number, choice in enumerate(self.choices, len(self._tables)):
            rows[number] = replace(rows[number], by_fold=choice.by_fold)
        for number in self._winners(rows) if self.task.set_default else ():
            rows[number] = replace(rows[number], is_default=True)
        return rows

    def _goals_and_times(self) -> tuple[Values, Values]:
        """Return the goal and the microseconds of every row at every setting, (s, nq) each."""
        pairs = []
        for table in self._tables:
            columns = self._columns(table)
            pairs.append((columns[self.resolution.goal], columns["microseconds"]))
        goals, times = (np.stack(side) for side in zip(*pairs, strict=True))
        return goals, times

    def _winners(self, rows: list[RowT]) -> Iterable[int]:
        """Return the number of the choice with the greatest goal; of labels one for each mode."""
        best: dict[Hashable, int] = {}
        for number in range(len(self._tables), len(rows)):
            mode = getattr(rows[number].parameters, "mode", None)
            if mode not in best or self._goal(rows[number]) > self._goal(rows[best[mode]]):
                best[mode] = number
        return best.values()

    def _goal(self, row: RowT) -> float:
        return row.metrics[self.resolution.goal].value

    def _row_fields(self, setting: int, columns: dict[str, Values]) -> dict[str, Any]:
        """Return the fields that both kinds of rows have; `columns` are named figures (n,)."""
        width = getattr(self.settings[setting], self.task.width_field)
        return {
            "number": setting,
            "generation": self.resolution.generation,
            "search": self.settings[setting].search,
            "parameters": self.resolution.parameters[setting],
            "microseconds": _summary(columns["microseconds"]),
            "empty": int((columns["found"] == 0).sum()),
            "short": int((columns["found"] < width).sum()),
            "values": columns if self.task.per_row else {},
        }

    @abstractmethod
    def _columns(self, table: Values) -> dict[str, Values]:
        """Return the named figures (n,) of a table, the goal and the microseconds among them."""

    @abstractmethod
    def _ratios(self, table: Values) -> tuple[Values, Values]:
        """Return the dividends and the divisors of a row's intervals, (n, m) each."""

    @abstractmethod
    def _row(self, setting: int, table: Values, intervals: list[Interval]) -> RowT:
        """Return the result row of a table, without the fields that only choices have."""

    @abstractmethod
    def _fold_keys(self, goals: Values) -> IntArray:
        """Return the numbers (n,) by which folds are dealt."""


class Study(Generic[RowT]):
    """A checked evaluation on an open index; any number of threads may call `work`.

    `measure` returns the figures (columns, n) of a slice of rows at a setting. `store_default`
    makes the chosen settings the index's default.
    """

    def __init__(
        self,
        tally: Tally[RowT],
        measure: Callable[[slice, Any], Values],
        store_default: Callable[[list[RowT]], object],
    ) -> None:
        self._tally = tally
        self._measure = measure
        self._store_default = store_default
        self._widths = tally.task.widths()
        self._total = len(self._widths) * tally.task.rows
        self._start_seconds = time.monotonic()
        self._lock = threading.Lock()
        self._setting = self._start = self._rows_done = 0
        # Seconds of a row at each setting, once a block has shown it.
        self._row_seconds: dict[int, float] = {}

    @property
    def resolution(self) -> Resolution:
        """The task as the index resolves it."""
        return self._tally.resolution

    @property
    def progress(self) -> Progress:
        """How far the study has come; a row counts once at each setting."""
        count, seconds = self._rows_done, time.monotonic() - self._start_seconds
        seconds_left = seconds * (self._total - count) / count if count else None
        return Progress(STAGE, count, self._total, seconds_left)

    def work(self) -> Iterator[None]:
        """Measure one block after the other until none is left; pauses after each.

        An error ends the work of all threads.
        """
        while (block := self._next()) is not None:
            setting, rows = block
            start, count = time.monotonic(), rows.stop - rows.start
            try:
                figures = self._measure(rows, self._tally.settings[setting])
            except BaseException:
                with self._lock:
                    self._setting = len(self._widths)
                raise
            self._tally.add(setting, rows.start, figures)
            with self._lock:
                self._row_seconds[setting] = (time.monotonic() - start) / count
                self._rows_done += count
            yield

    def rows(self) -> list[RowT]:
        """Return a row for every setting, then one for every choice; sets the default if asked."""
        rows = self._tally.rows()
        if self._tally.task.set_default:
            self._store_default(rows)
        return rows

    def run(self, on_progress: Callable[[Progress], object] | None) -> Iterator[RowT]:
        """Do all of it on this thread: measure, and yield the rows."""
        report = on_progress or (lambda _: None)
        report(self.progress)
        for _ in self.work():
            report(self.progress)
        yield from self.rows()

    def _next(self) -> tuple[int, slice] | None:
        """Take the next block: its setting and its rows."""
        with self._lock:
            if self._setting == len(self._widths):
                return None
            setting, start = self._setting, self._start
            row_seconds = self._row_seconds.get(setting)
            size = _FIRST_ROWS if row_seconds is None else int(_BLOCK_SECONDS / row_seconds)
            most = min(_BLOCK_ROWS_MAX, _BLOCK_RESULTS_MAX // self._widths[setting])
            stop = min(start + max(1, min(size, most)), self._tally.task.rows)
            is_last = stop == self._tally.task.rows
            self._setting, self._start = (setting + 1, 0) if is_last else (setting, stop)
            return setting, slice(start, stop)


def fronts(ks: Sequence[int], h: Values, times: Values) -> npt.NDArray[np.bool_]:
    """Return (s,) bool: the settings that none of the same k beats in mean h and median time.

    `h` and `times` are (s, n).
    """
    means = np.array([mean(column) for column in h])
    medians = np.median(times, axis=1)
    front = np.zeros(len(ks), np.bool_)
    for k in set(ks):
        members = np.array([value == k for value in ks])
        front[members] = pareto_front(means[members], medians[members])
    return front


def columns_at_once(rows: int) -> int:
    """Return how many columns (rows,) have their intervals computed together."""
    return max(1, min(_COLUMNS_MAX, _NUMBERS_MAX // rows))


def _summary(times: Values) -> Microseconds:
    """Return the mean and the percentiles of the times (n,) of rows."""
    return Microseconds(
        mean(times), *(float(value) for value in np.percentile(times, (50, 90, 99)))
    )


def _intervals(ratios: Iterable[tuple[Values, Values]], at_once: int) -> Iterator[list[Interval]]:
    """Yield the intervals of every table's columns; all tables see the same draws of rows."""
    group: list[tuple[Values, Values]] = []
    width = 0
    for ratio in ratios:
        columns = ratio[0].shape[1]
        if group and width + columns > at_once:
            yield from _group_intervals(group, at_once)
            group, width = [], 0
        group.append(ratio)
        width += columns
    yield from _group_intervals(group, at_once)


def _group_intervals(group: list[tuple[Values, Values]], at_once: int) -> Iterator[list[Interval]]:
    dividends, divisors = (np.concatenate(side, axis=1) for side in zip(*group, strict=True))
    intervals: list[Interval] = []
    for start in range(0, dividends.shape[1], at_once):
        part = slice(start, start + at_once)
        intervals += ratio_intervals(dividends[:, part], divisors[:, part], draws=DRAWS)
    start = 0
    for table, _ in group:
        yield intervals[start : start + table.shape[1]]
        start += table.shape[1]


def _chosen_table(tables: Sequence[Values], choice: Choice) -> Values:
    """Return the table of the rows, each at the setting that its fold is reported at."""
    table = np.empty_like(tables[choice.members[0]])
    for member in choice.members:
        at_member = choice.at == member
        table[:, at_member] = tables[member][:, at_member]
    return table
