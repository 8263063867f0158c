"""The common part of evaluations of queries and of documents.

The modules `queries` and `label_running` check a task against an index and create a `Study`. The
study divides the work into blocks. A block is a range of queries or documents at one setting.
Several threads can measure blocks at the same time, because kernels release the GIL. The figures of
each block are stored in a `Tally`, which makes the result rows at the end.

If an evaluation is too large for one request, the client splits the evaluation into several
requests, and stores the figures of the responses in a tally of its own. Because clients import this
module, it must not import any dependency but numpy.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.evaluation.folds import FOLDS, Choice, choices_of, deal_folds, winners_of
from divgrpc.evaluation.grid import Grid, LabelGrid
from divgrpc.metrics import Values, mean, pareto_front, ratio_intervals
from divgrpc.metrics.comparing import GROUPS_MIN, check_groups
from divgrpc.parameters import LIMITS
from divgrpc.types import EvaluateLabelRow, EvaluateRow, IntArray, Interval, Microseconds, Progress

if TYPE_CHECKING:
    from divgrpc.engine import Engine

STAGE: Final = "evaluating"
# Target duration of a block in seconds. With longer blocks, threads would end at different times,
# and progress would be rarer. Shorter blocks would have more overhead.
_BLOCK_SECONDS: Final = 0.1
# Number of rows in a block while the time of a row at its setting is not yet known.
_FIRST_ROWS: Final = 16
_BLOCK_ROWS_MAX: Final = 512
# Maximum number of results in a block, which are in memory at the same time.
_BLOCK_RESULTS_MAX: Final = 2**15
# Two median times within this share of each other count as equal. On a quiet machine, the median
# times of one setting differ by some 3 % between evaluations.
TIME_TOLERANCE: Final = 0.1

RowT = TypeVar("RowT", bound=EvaluateRow | EvaluateLabelRow)
ResultT = TypeVar("ResultT")


class Runner(Protocol):
    """An index to evaluate: an engine or a `divgrpc.sharding.runner.ShardRunner`.

    Several threads may use it at the same time.
    """

    def run(self, call: "Callable[[Engine], ResultT]") -> ResultT:
        """Return the result of `call`, which may run several times, on different engines."""

    def run_timed(self, call: "Callable[[Engine], ResultT]") -> tuple[ResultT, float]:
        """Return what `run` returns, and the CPU time of other processes in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The options of an evaluation.

    grid: the settings to measure.
    rows: number of queries or documents.
    folds: number of cross-validation folds, 2 to `rows`, or 0 to choose no setting. There are
        never more folds than groups, and with one group no setting is chosen.
    set_default: make the best choice the index's default. This needs folds and a single k.
    per_row: include `values` in the result rows.
    groups: (rows,) int64, the group of each row. Rows of one group, such as a category, are alike.
        So intervals count groups instead of rows, and folds keep a group together. None makes each
        row a group.

    Raises `InvalidArgumentError` with the field.
    """

    grid: Grid | LabelGrid
    rows: int
    folds: int = FOLDS
    set_default: bool = False
    per_row: bool = False
    groups: IntArray | None = None

    # Names that requests and errors use. `rows_field` is the name of the queries or documents.
    # `width_field` is the name of the parameter that sets the number of results for each of them.
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
        if self.groups is not None:
            check_groups(np.asarray(self.groups), rows)
        if self.set_default and not folds:
            raise invalid("set_default", "needs folds to choose by")
        if self.set_default and len(set(self.widths())) > 1:
            raise invalid(
                "set_default", f"needs one {self.width_field}: several cannot be compared"
            )
        if self.set_default and len(np.unique(self.group_of_row)) < GROUPS_MIN:
            raise invalid(
                "groups", "must be two groups at least for set_default, to choose by folds"
            )

    @property
    def group_of_row(self) -> IntArray:
        """The group of each row, (rows,) int64."""
        return np.arange(self.rows) if self.groups is None else np.asarray(self.groups, np.int64)

    def widths(self) -> list[int]:
        """Return for each setting the maximum number of results for a row, k or top_k."""
        return [int(getattr(setting, self.width_field)) for setting in self.grid.settings()]

    def bounded(self) -> Self:
        """Return the task, or raise `InvalidArgumentError` if it is too large for one call."""
        field, rows, settings = self.rows_field, self.rows, len(self.grid.settings())
        limit = LIMITS["query_rows_max"]
        if rows > limit:
            raise invalid(field, f"must have 1 to {limit} rows, got {rows}")
        limit = LIMITS["evaluate_queries_max"]
        if settings * rows > limit:
            bound = f"must be at most {limit}, got {settings} times {rows}"
            raise InvalidArgumentError("grid", f"settings times {field} {bound}")
        return self


def rows_max(settings: int) -> int:
    """Return the maximum number of queries or documents in a call with `settings` settings."""
    return min(LIMITS["query_rows_max"], LIMITS["evaluate_queries_max"] // settings)


@dataclass(frozen=True, slots=True)
class Resolution:
    """The properties of a task that depend on the index.

    generation: generation of the index.
    parameters: effective parameters of each setting.
    goal: name of the metric that choices maximise.
    points: number of points in the index, 0 in an evaluation of queries.
    counts: (L,) int64, the number of points that have each label, for an evaluation of labels. None
        if the points of the index have no labels.
    block_rows: for each setting, the maximum number of queries or documents in a block.
    """

    generation: int
    parameters: tuple[Any, ...]
    goal: str = "h_score"
    points: int = 0
    counts: IntArray | None = None
    block_rows: tuple[int, ...] = ()


class Tally(ABC, Generic[RowT]):
    """Tables of figures, one for each setting, and result rows from the tables.

    A table is an array (columns, n) for n queries or documents: each column of figures is a row of
    the array. A subclass defines the columns.
    """

    # Names of the columns of a table. If `has_labels`, a column for each predicted label follows.
    table_columns: ClassVar[tuple[str, ...]]
    has_labels: ClassVar[bool] = False
    # Settings with equal values of these fields are of one kind. One setting of each kind is
    # chosen.
    choice_fields: ClassVar[tuple[str, ...]]

    def __init__(self, task: Task, resolution: Resolution) -> None:
        self.task = task
        self.resolution = resolution
        self.settings: Sequence[Any] = task.grid.settings()
        self.choices: list[Choice] = []
        self.winners: list[Choice] = []
        heights = (
            len(self.table_columns) + (width if self.has_labels else 0) for width in task.widths()
        )
        self._tables = [np.full((height, task.rows), np.nan) for height in heights]

    def add(self, setting: int, start: int, figures: Values) -> None:
        """Store the figures (columns, m) of rows `start` to `start` + m - 1 at a setting."""
        self._tables[setting][:, start : start + figures.shape[1]] = figures

    def figures(self, row: RowT) -> Values:
        """Return the table (columns, n) from which a result row with `values` was made."""
        labels = getattr(row, "labels", None)
        columns = [row.values[name] for name in self.table_columns]
        return np.stack(columns if labels is None else [*columns, *labels.T])

    def rows(self) -> list[RowT]:
        """Return a row for every setting, then one for every choice, then one for every winner."""
        goals, times = self._goals_and_times()
        front = fronts(self.task.widths(), goals, times)
        self._choose(goals)
        choices = [*self.choices, *self.winners]
        settings = [*range(len(self._tables)), *(choice.overall for choice in choices)]
        tables = [*self._tables, *(_chosen_table(self._tables, choice) for choice in choices)]
        groups = self.task.groups
        intervals = (ratio_intervals(*self._ratios(table), groups) for table in tables)
        rows = [
            replace(self._row(*parts), number=number)
            for number, parts in enumerate(zip(settings, tables, intervals, strict=True))
        ]
        for number in np.flatnonzero(front).tolist():
            rows[number] = replace(rows[number], on_front=True)
        for number, choice in enumerate(choices, len(self._tables)):
            is_default = number >= len(rows) - len(self.winners)
            rows[number] = replace(rows[number], by_fold=choice.by_fold, is_default=is_default)
        return rows

    def _choose(self, goals: Values) -> None:
        """Make a choice among the settings of each kind, and find the winners for the defaults.

        A winner is the best of several choices. An evaluation of queries has one winner. An
        evaluation of labels has one for each mode, because each mode has its own default threshold.
        """
        folds = self._folds(~np.isnan(goals[0]))
        if folds is None:
            return
        kinds = list(map(attrgetter(*self.choice_fields), self.settings))
        self.choices = list(choices_of(kinds, goals, folds))
        if self.task.set_default:
            modes = [getattr(setting, "mode", None) for setting in self.settings]
            self.winners = list(winners_of(kinds, modes, goals, folds))

    def _folds(self, with_goal: npt.NDArray[np.bool_]) -> IntArray | None:
        """Return the fold (n,) of each row, or None if no setting is chosen.

        `with_goal` (n,) says to which rows the goal applies. A choice needs two groups with such
        rows, because the rows outside of each fold must include such a row.
        """
        groups = self.task.group_of_row
        count = len(np.unique(groups[with_goal]))
        if not self.task.folds or count < GROUPS_MIN:
            return None
        return deal_folds(groups, min(self.task.folds, count), with_goal)

    def _goals_and_times(self) -> tuple[Values, Values]:
        """Return the goal and the microseconds of every row at every setting, (s, n) each."""
        pairs = []
        for table in self._tables:
            columns = self._columns(table)
            pairs.append((columns[self.resolution.goal], columns["microseconds"]))
        goals, times = (np.stack(side) for side in zip(*pairs, strict=True))
        return goals, times

    def _row_fields(self, setting: int, columns: dict[str, Values]) -> dict[str, Any]:
        """Return the fields that result rows of queries and of labels have in common.

        `columns` are the figures of a table by name, (n,) each.
        """
        width = getattr(self.settings[setting], self.task.width_field)
        times = columns["microseconds"]
        return {
            "number": setting,
            "generation": self.resolution.generation,
            "search": self.settings[setting].search,
            "parameters": self.resolution.parameters[setting],
            "microseconds": Microseconds(mean(times), *np.percentile(times, (50, 90, 99)).tolist()),
            "empty": int((columns["found"] == 0).sum()),
            "short": int((columns["found"] < width).sum()),
            "values": columns if self.task.per_row else {},
        }

    @abstractmethod
    def _columns(self, table: Values) -> dict[str, Values]:
        """Return the goal, `microseconds` and other figures of a table by name, (n,) each."""

    @abstractmethod
    def _ratios(self, table: Values) -> tuple[Values, Values]:
        """Return dividends and divisors, (n, m) each, for the m metrics that have an interval."""

    @abstractmethod
    def _row(self, setting: int, table: Values, intervals: list[Interval]) -> RowT:
        """Return the result row of a table, with defaults for the fields that `rows` sets."""


class Study(Generic[RowT]):
    """A checked evaluation on an open index.

    Several threads may call `work` at the same time. `measure` returns the figures (columns, m) of
    a slice of m rows at a setting. `store_default` takes the result rows, and stores what the
    winners chose as defaults of the index.
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
        # Seconds per row at each setting, measured by the last block that ended.
        self._row_seconds: dict[int, float] = {}

    @property
    def resolution(self) -> Resolution:
        """The properties of the task that depend on the index."""
        return self._tally.resolution

    @property
    def progress(self) -> Progress:
        """The progress of the study. A query or document counts once per setting."""
        count, seconds = self._rows_done, time.monotonic() - self._start_seconds
        seconds_left = seconds * (self._total - count) / count if count else None
        return Progress(STAGE, count, self._total, seconds_left)

    def work(self) -> Iterator[None]:
        """Measure blocks until no block is left, and yield after each block.

        After an error no thread starts another block.
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
        """Return a row for every setting, then a row for every choice.

        If the task has `set_default`, a row for each winner follows, and the defaults are stored.
        """
        rows = self._tally.rows()
        if self._tally.task.set_default:
            self._store_default(rows)
        return rows

    def run(self, on_progress: Callable[[Progress], object] | None) -> Iterator[RowT]:
        """Measure all blocks on this thread, and yield the result rows."""
        report = on_progress or (lambda _: None)
        report(self.progress)
        for _ in self.work():
            report(self.progress)
        yield from self.rows()

    def _next(self) -> tuple[int, slice] | None:
        """Return the setting and the rows of the next block, or None if no block is left."""
        with self._lock:
            if self._setting == len(self._widths):
                return None
            setting, start = self._setting, self._start
            row_seconds = self._row_seconds.get(setting)
            size = _FIRST_ROWS if row_seconds is None else int(_BLOCK_SECONDS / row_seconds)
            most = min(_BLOCK_ROWS_MAX, _BLOCK_RESULTS_MAX // self._widths[setting])
            most = min(most, self.resolution.block_rows[setting])
            stop = min(start + max(1, min(size, most)), self._tally.task.rows)
            is_last = stop == self._tally.task.rows
            self._setting, self._start = (setting + 1, 0) if is_last else (setting, stop)
            return setting, slice(start, stop)


def fronts(ks: Sequence[int], h: Values, times: Values) -> npt.NDArray[np.bool_]:
    """Return a mask (s,) of the settings on the Pareto front of mean h and median time.

    `h` and `times` (s, n) are the figures of n queries at each of s settings. Only settings of the
    same k are compared. Times within `TIME_TOLERANCE` count as equal.
    """
    means = np.array([mean(column) for column in h])
    medians = np.median(times, axis=1)
    front = np.zeros(len(ks), np.bool_)
    for k in set(ks):
        members = np.array([value == k for value in ks])
        front[members] = pareto_front(means[members], medians[members], TIME_TOLERANCE)
    return front


def _chosen_table(tables: Sequence[Values], choice: Choice) -> Values:
    """Return a table in which each query or document has the figures at the choice for its fold."""
    table = np.empty_like(tables[choice.members[0]])
    for member in choice.members:
        at_member = choice.at == member
        table[:, at_member] = tables[member][:, at_member]
    return table
