"""Predicted labels judged by the true ones: rows, choices, the front."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

import numpy as np

from divgrpc.evaluation.folds import Choice, choices_of, deal_folds
from divgrpc.evaluation.label_measuring import TAKEN
from divgrpc.evaluation.label_planning import LabelOutlook, LabelTask
from divgrpc.evaluation.tallying import DRAWS, columns_at_once, fronts, summary
from divgrpc.metrics import (
    JudgedLabels,
    Values,
    coverage_at,
    harmonic_mean,
    mean,
    measure_labels,
    ndcg_at,
    precision_at,
    propensity_gains,
    ratio_intervals,
    recall_at,
)
from divgrpc.metrics.labelling import SparseLabels
from divgrpc.types import EvaluateLabelRow, Interval, Mode

LABEL_METRICS: Final = ("precision", "recall", "f_score", "ndcg", "drank", "h_score")
# What is known of every document at a setting.
LABEL_COLUMNS: Final = (*LABEL_METRICS, "scored", "microseconds", "found")
# By their modes; None is none.
Thresholds = dict[Mode, float | None]


class LabelTally:
    """The table of an evaluation of labels; `truth` (nq, L) are the true ones."""

    def __init__(self, task: LabelTask, outlook: LabelOutlook, truth: SparseLabels) -> None:
        self._task = task
        self._outlook = outlook
        self._truth = truth
        self._inverse = outlook.inverse()
        self._settings = task.grid.settings()
        self._tables = [
            np.full((len(TAKEN) + each.top_k, task.documents), np.nan) for each in self._settings
        ]

    def add(self, setting: int, start: int, measured: Values) -> None:
        """Take what a piece measured of the documents from `start` on."""
        self._tables[setting][:, start : start + measured.shape[1]] = measured

    def rows(self) -> tuple[list[EvaluateLabelRow], Thresholds]:
        """Return a row for every setting, then one for every choice; and thresholds to be kept.

        Those are of the choices whose documents, each at its fold's setting, have the greatest mean
        of the goal, one for each mode; there are none where the task sets none.
        """
        rows = list(self._rows())
        if not self._task.set_default:
            return rows, {}
        best: dict[Mode, EvaluateLabelRow] = {}
        for row in (row for row in rows if row.by_fold):
            mode = row.parameters.mode
            if mode not in best or _reached(row) > _reached(best[mode]):
                best[mode] = row
        for row in best.values():
            rows[row.number] = replace(row, is_default=True)
        return rows, {mode: row.parameters.threshold for mode, row in best.items()}

    def _rows(self) -> Iterator[EvaluateLabelRow]:
        tables = self._tables
        columns = [self._measure(table)[1] for table in tables]
        goals = np.stack([each[self._outlook.goal] for each in columns])
        times = np.stack([each["microseconds"] for each in columns])
        front = fronts([each.top_k for each in self._settings], goals, times)
        choices = list(self._choices(goals)) if self._task.folds else []
        every = [*tables, *(_chosen(tables, choice) for choice in choices)]
        for number, intervals in enumerate(self._intervals(every)):
            own = number < len(tables)
            choice = None if own else choices[number - len(tables)]
            yield self._row(
                number, every[number], intervals, choice, on_front=own and bool(front[number])
            )

    def _choices(self, goals: Values) -> Iterable[Choice]:
        """Choose dial, limits and threshold of every mode, selector and search, at every top_k."""
        folds = deal_folds(np.zeros(goals.shape[1], np.int64), self._task.folds)
        kinds = [(each.mode, each.selector, each.search, each.top_k) for each in self._settings]
        return choices_of(kinds, goals, folds)

    def _intervals(self, tables: Sequence[Values]) -> Iterator[list[Interval]]:
        """Yield the intervals of every table's columns; all see the same draws of documents."""
        waiting: list[tuple[Values, Values]] = []
        most = columns_at_once(self._task.documents)
        for number, table in enumerate(tables):
            waiting.append(self._ratios(table))
            width = sum(gained.shape[1] for gained, _ in waiting)
            if width < most and number < len(tables) - 1:
                continue
            gained, possible = (np.concatenate(side, axis=1) for side in zip(*waiting, strict=True))
            found = chain.from_iterable(
                ratio_intervals(gained[:, own], possible[:, own], draws=DRAWS)
                for own in _columns(gained.shape[1], most)
            )
            yield from ([next(found) for _ in own.T] for own, _ in waiting)
            waiting.clear()

    def _measure(self, table: Values) -> tuple[JudgedLabels, dict[str, Values]]:
        """Return a table as it is judged, and `LABEL_COLUMNS` (nq,) of it."""
        judged = JudgedLabels.of(table[len(TAKEN) :].T.astype(np.int64), self._truth)
        drank, scored, times = table[: len(TAKEN)]
        measured = measure_labels(judged, lambda _: drank)
        if self._outlook.goal != "h_score":
            measured["h_score"] = np.full(len(drank), np.nan)
        more = {"scored": scored, "microseconds": times, "found": judged.found.astype(np.float64)}
        return judged, {name: (measured | more)[name] for name in LABEL_COLUMNS}

    def _ratios(self, table: Values) -> tuple[Values, Values]:
        """Return what is divided for a row (nq, m): `LABEL_METRICS`, then what is at 1 to top_k."""
        judged, measured = self._measure(table)
        means = [np.stack([measured[name] for name in LABEL_METRICS], axis=1)]
        means += [precision_at(judged), recall_at(judged), ndcg_at(judged)]
        values = np.concatenate(means, axis=1)
        applies = ~np.isnan(values)
        gained, possible = [np.where(applies, values, 0.0)], [applies.astype(np.float64)]
        if self._inverse is not None:
            worth, most = propensity_gains(judged, self._inverse)
            gained.append(worth)
            possible.append(most)
        return np.concatenate(gained, axis=1), np.concatenate(possible, axis=1)

    def _row(
        self,
        number: int,
        table: Values,
        intervals: list[Interval],
        choice: Choice | None,
        *,
        on_front: bool,
    ) -> EvaluateLabelRow:
        setting = number if choice is None else choice.overall
        judged, measured = self._measure(table)
        found, top_k = measured["found"], self._settings[setting].top_k
        starts = range(len(LABEL_METRICS), len(intervals), top_k)
        parts = [tuple(intervals[start : start + top_k]) for start in starts]
        means = np.array([[mean(measured[name])] for name in ("precision", "drank")])
        return EvaluateLabelRow(
            number=number,
            generation=self._outlook.generation,
            search=self._settings[setting].search,
            parameters=self._outlook.resolved[setting],
            goal=self._outlook.goal,
            metrics=dict(zip(LABEL_METRICS, intervals, strict=False)),
            precision_at=parts[0],
            recall_at=parts[1],
            ndcg_at=parts[2],
            propensity_scored_at=parts[3] if len(parts) > 3 else (),
            coverage_at=tuple(coverage_at(judged).tolist()),
            h_of_means=float(harmonic_mean(*means)[0]),
            microseconds=summary(measured["microseconds"]),
            documents=len(found),
            empty=int((found == 0).sum()),
            short=int((found < top_k).sum()),
            scored=mean(measured["scored"]),
            on_front=on_front,
            by_fold=() if choice is None else choice.by_fold,
            values=measured if self._task.per_document else {},
            labels=judged.labels if self._task.per_document else None,
        )


def _columns(count: int, most: int) -> Iterator[slice]:
    """Yield so many columns, at most some at once."""
    return (slice(start, start + most) for start in range(0, count, most))


def _reached(row: EvaluateLabelRow) -> float:
    return row.metrics[row.goal].value


def _chosen(tables: Sequence[Values], choice: Choice) -> Values:
    """Return the table of the documents, each at its setting."""
    table = np.empty_like(tables[choice.members[0]])
    for member in choice.members:
        own = choice.at == member
        table[:, own] = tables[member][:, own]
    return table
