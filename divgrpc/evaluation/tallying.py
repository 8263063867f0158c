"""What pieces of work have measured, put together: rows, choices, the Pareto front."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.evaluation.folds import Choice, choices_of, deal_folds
from divgrpc.evaluation.measuring import COLUMNS, METRICS, H
from divgrpc.evaluation.planning import Plan, Task
from divgrpc.metrics import Values, harmonic_mean, mean, mean_intervals, pareto_front
from divgrpc.types import (
    EvaluateRow,
    IntArray,
    Interval,
    Microseconds,
    QueryDefault,
)

# Of the intervals: a hundredth of an interval's width, and a second where there are many rows.
DRAWS: Final = 2_000
_COLUMNS_MAX: Final = 1_024
# Of columns that are drawn together; they are copied a few times.
_NUMBERS_MAX: Final = 2**22
_TIMES: Final = COLUMNS.index("microseconds")
_FOUND: Final = COLUMNS.index("found")
_PRECISION: Final = METRICS.index("precision")
_ENTROPY: Final = METRICS.index("normalised_entropy")


class Tally:
    """The table of an evaluation; `numbers` (nq,) int64 are what `Asked.numbers` gives."""

    def __init__(self, task: Task, plan: Plan, numbers: IntArray) -> None:
        self._task = task
        self._plan = plan
        self._numbers = numbers
        self._settings = task.grid.settings()
        self._table = np.full((len(self._settings), len(COLUMNS), task.queries), np.nan)

    def add(self, setting: int, start: int, measured: Values) -> None:
        """Take what a piece measured of the queries from `start` on."""
        self._table[setting, :, start : start + measured.shape[1]] = measured

    def rows(self) -> tuple[list[EvaluateRow], QueryDefault | None]:
        """Return a row for every setting, then one for every choice; and the default to be set.

        The default is that of the choice whose queries, each at its fold's setting, have the
        greatest mean h; None where the task sets none.
        """
        choices = list(self._choices()) if self._plan.chooses else []
        queries = np.arange(self._task.queries)
        tables = [*self._table, *(self._table[each.at, :, queries].T for each in choices)]
        intervals = list(_intervals(tables))
        h, times = self._table[:, H], self._table[:, _TIMES]
        front = fronts([each.k for each in self._settings], h, times)
        rows = [
            self._row(number, number, table, intervals[number], on_front=bool(front[number]))
            for number, table in enumerate(self._table)
        ]
        if not self._task.set_default:
            winner = -1
        else:
            winner = int(np.argmax([mean(table[H]) for table in tables[len(rows) :]]))
        for number, choice in enumerate(choices):
            position = len(rows)
            rows.append(
                self._row(
                    position,
                    choice.overall,
                    tables[position],
                    intervals[position],
                    by_fold=choice.by_fold,
                    is_default=number == winner,
                )
            )
        return rows, self._default(choices[winner]) if winner >= 0 else None

    def _choices(self) -> Iterable[Choice]:
        """Choose dial and limits of every selector, reading, rounding and search, at every k."""
        h = self._table[:, H]
        # Queries without an h first: the others are dealt in turn, so that no fold has them all.
        order = np.where(np.isnan(h[0]), np.iinfo(np.int64).min, self._numbers)
        folds = deal_folds(order, self._task.folds)
        kinds = [(s.selector, s.variant, s.rounding, s.search, s.k) for s in self._settings]
        return choices_of(kinds, h, folds)

    def _default(self, choice: Choice) -> QueryDefault:
        setting = self._settings[choice.overall]
        return QueryDefault(
            diversity=setting.dial,
            selector=setting.selector,
            variant=setting.variant,
            search=setting.search,
            hash_limit=setting.hash_limit,
            candidates_limit=setting.candidates_limit,
            rounding=setting.rounding,
        )

    def _row(
        self,
        number: int,
        setting: int,
        table: Values,
        intervals: list[Interval],
        *,
        on_front: bool = False,
        by_fold: tuple[int, ...] = (),
        is_default: bool = False,
    ) -> EvaluateRow:
        found, times = table[_FOUND], table[_TIMES]
        with_d = ~np.isnan(table[_ENTROPY])
        means = np.array([[mean(table[own][with_d])] for own in (_PRECISION, _ENTROPY)])
        k = self._settings[setting].k
        return EvaluateRow(
            number=number,
            generation=self._plan.generation,
            search=self._settings[setting].search,
            parameters=self._plan.resolved[setting],
            metrics=dict(zip(METRICS, intervals, strict=True)),
            h_of_means=float(harmonic_mean(*means)[0]),
            microseconds=summary(times),
            queries=self._task.queries,
            empty=int((found == 0).sum()),
            short=int((found < k).sum()),
            on_front=on_front,
            by_fold=by_fold,
            is_default=is_default,
            values=dict(zip(COLUMNS, table.copy(), strict=True)) if self._task.per_query else {},
        )


def fronts(ks: Sequence[int], h: Values, times: Values) -> npt.NDArray[np.bool_]:
    """Return which of s settings no other of the same k beats, in mean h and in median time.

    `h` and `times` are (s, nq), s bool is returned.
    """
    means = np.array([mean(own) for own in h])
    medians = np.median(times, axis=1)
    front = np.zeros(len(ks), np.bool_)
    for k in set(ks):
        own = np.array([each == k for each in ks])
        front[own] = pareto_front(means[own], medians[own])
    return front


def columns_at_once(rows: int) -> int:
    """Return how many columns (rows,) have their intervals made together."""
    return max(1, min(_COLUMNS_MAX, _NUMBERS_MAX // rows))


def summary(times: Values) -> Microseconds:
    """Return what is told of the times (nq,) of queries."""
    return Microseconds(mean(times), *(float(each) for each in np.percentile(times, (50, 90, 99))))


def _intervals(tables: list[Values]) -> Iterable[list[Interval]]:
    """Return the intervals of every table's metrics; all tables see the same draws of queries."""
    at_once = max(1, columns_at_once(tables[0].shape[1]) // len(METRICS)) if tables else 1
    for start in range(0, len(tables), at_once):
        some = [table[: len(METRICS)] for table in tables[start : start + at_once]]
        found = mean_intervals(np.concatenate(some).T, draws=DRAWS)
        for number in range(len(some)):
            yield found[number * len(METRICS) : (number + 1) * len(METRICS)]
