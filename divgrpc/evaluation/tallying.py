"""What pieces of work have measured, put together: rows, choices, the Pareto front."""

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.evaluation.folds import Chosen, choose_by_folds, deal_folds
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
_DRAWS: Final = 2_000
_COLUMNS_AT_ONCE: Final = 1_024
_TIMES: Final = COLUMNS.index("microseconds")
_FOUND: Final = COLUMNS.index("found")
_PRECISION: Final = METRICS.index("precision")
_ENTROPY: Final = METRICS.index("normalised_entropy")


class _Choice(NamedTuple):
    """A choice by folds among `members`, numbers of settings, and what its queries reached."""

    members: list[int]
    chosen: Chosen
    table: Values


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
        tables = [*self._table, *(choice.table for choice in choices)]
        intervals = list(_intervals(tables))
        front = self._front()
        rows = [
            self._row(number, number, table, intervals[number], on_front=bool(front[number]))
            for number, table in enumerate(self._table)
        ]
        if not self._task.set_default:
            winner = -1
        else:
            winner = int(np.argmax([mean(choice.table[H]) for choice in choices]))
        for number, choice in enumerate(choices):
            position = len(rows)
            rows.append(
                self._row(
                    position,
                    choice.members[choice.chosen.overall],
                    choice.table,
                    intervals[position],
                    by_fold=tuple(choice.members[own] for own in choice.chosen.by_fold),
                    is_default=number == winner,
                )
            )
        return rows, self._default(choices[winner]) if winner >= 0 else None

    def _choices(self) -> Iterable[_Choice]:
        """Choose dial and limits of every selector, reading, rounding and search, at every k."""
        h = self._table[:, H]
        # Queries without an h first: the others are dealt in turn, so that no fold has them all.
        order = np.where(np.isnan(h[0]), np.iinfo(np.int64).min, self._numbers)
        folds = deal_folds(order, self._task.folds)
        kinds: dict[tuple[object, ...], list[int]] = {}
        for number, each in enumerate(self._settings):
            kind = (each.selector, each.variant, each.rounding, each.search, each.k)
            kinds.setdefault(kind, []).append(number)
        queries = np.arange(len(folds))
        for members in kinds.values():
            chosen = choose_by_folds(h[members], folds)
            at = np.asarray(members)[chosen.by_fold[folds]]
            yield _Choice(members, chosen, self._table[at, :, queries].T)

    def _front(self) -> npt.NDArray[np.bool_]:
        """Return which settings no other of the same k beats, in h and in median time."""
        ks = np.array([each.k for each in self._settings])
        h = np.array([mean(table[H]) for table in self._table])
        times = np.median(self._table[:, _TIMES], axis=1)
        front = np.zeros(len(ks), np.bool_)
        for k in np.unique(ks):
            front[ks == k] = pareto_front(h[ks == k], times[ks == k])
        return front

    def _default(self, choice: _Choice) -> QueryDefault:
        setting = self._settings[choice.members[choice.chosen.overall]]
        return QueryDefault(
            diversity=setting.diversity,
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
            microseconds=Microseconds(
                mean(times), *(float(each) for each in np.percentile(times, (50, 90, 99)))
            ),
            queries=self._task.queries,
            empty=int((found == 0).sum()),
            short=int((found < k).sum()),
            on_front=on_front,
            by_fold=by_fold,
            is_default=is_default,
            values=dict(zip(COLUMNS, table.copy(), strict=True)) if self._task.per_query else {},
        )


def _intervals(tables: list[Values]) -> Iterable[list[Interval]]:
    """Return the intervals of every table's metrics; all tables see the same draws of queries."""
    at_once = max(1, _COLUMNS_AT_ONCE // len(METRICS))
    for start in range(0, len(tables), at_once):
        some = [table[: len(METRICS)] for table in tables[start : start + at_once]]
        found = mean_intervals(np.concatenate(some).T, draws=_DRAWS)
        for number in range(len(some)):
            yield found[number * len(METRICS) : (number + 1) * len(METRICS)]
