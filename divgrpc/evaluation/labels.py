"""Evaluations of predicted labels, without an index: limits, tables, rows."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation.tally import Tally, harmonic_mean_of_means, summary, with_nan_left_out
from divgrpc.evaluation.task import Plan, Task, rows_max
from divgrpc.metrics import (
    JudgedLabels,
    Values,
    coverage_at,
    inverse_propensities,
    mean,
    measure_labels,
    ndcg_at,
    precision_at,
    propensity_gains,
    recall_at,
)
from divgrpc.metrics.labelling import SparseLabels
from divgrpc.parameters import LIMITS
from divgrpc.parameters.predict import PredictParameters
from divgrpc.types import EvaluateLabelRow, IntArray, Interval

LABEL_METRICS: Final = ("precision", "recall", "f_score", "ndcg", "drank", "h_score")
# The named figures of a document at a setting.
LABEL_COLUMNS: Final = (*LABEL_METRICS, "scored", "microseconds", "found")
# The columns of a table, before those of the labels in the order in which they were picked.
TAKEN: Final = ("drank", "scored", "microseconds")
# Most predicted labels of an evaluation, 8 bytes each until it ends; most of one setting, 80 bytes
# each while they are judged; and most ranks of all settings together, four intervals each.
LABELS_MAX: Final = 10_000_000
JUDGED_MAX: Final = 1_000_000
RANKS_MAX: Final = 20_000
# Least points of an index for which `inverse_propensities` is defined.
_POINTS_LEAST: Final = 3
# Bytes of a result row in a message: at every rank four intervals, of each document nine numbers
# and an offset, of each of its labels a varint, and the rest.
_RANK_BYTES: Final = 160
_DOCUMENT_BYTES: Final = 80
_LABEL_BYTES: Final = 4
_HEADROOM_BYTES: Final = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTask(Task):
    """The options of an evaluation of labels.

    `set_default` keeps the threshold of the best choice of each mode, so some setting must have a
    threshold. `per_row`: result rows have `values` and `labels`.
    """

    rows_field = "documents"
    width_field = "top_k"

    def __post_init__(self) -> None:
        super(LabelTask, self).__post_init__()  # a class with slots has no other way
        ranks = sum(self.widths())
        if ranks > RANKS_MAX:
            raise InvalidArgumentError(
                "grid", f"settings times top_k must be at most {RANKS_MAX}, got {ranks}"
            )
        if self.set_default and all(s.threshold is None for s in self.grid.settings()):  # type: ignore[union-attr]  # of a `LabelGrid`
            raise InvalidArgumentError("set_default", "set_default needs thresholds to choose from")

    def bounded(self) -> Self:
        """Return the task; raises `InvalidArgumentError` where it is too large for one call."""
        super(LabelTask, self).bounded()  # as above
        for what, width, most in (
            ("documents times top_k", max(self.widths()), JUDGED_MAX),
            ("settings times documents times top_k", sum(self.widths()), LABELS_MAX),
        ):
            if self.rows * width > most:
                raise InvalidArgumentError(
                    "grid", f"{what} must be at most {most}, got {self.rows * width}"
                )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelPlan(Plan):
    """A plan, and how frequent labels are.

    `counts` (L,) int64 of the `points` have each label, None where the index does not know.
    """

    points: int
    counts: IntArray | None

    def inverse(self) -> Values | None:
        """Return what `inverse_propensities` gives (L,), None where it cannot be known."""
        if self.counts is None or self.points < _POINTS_LEAST:
            return None
        return inverse_propensities(self.counts, self.points)


class LabelTally(Tally[EvaluateLabelRow]):
    """Tables of `TAKEN` and labels (3 + top_k, nq); `truth` (nq, L) are the true labels."""

    plan: LabelPlan

    def __init__(self, task: LabelTask, plan: LabelPlan, truth: SparseLabels) -> None:
        super().__init__(task, plan)
        self._truth = truth
        self._inverse = plan.inverse()

    def figures(self, row: EvaluateLabelRow) -> Values:
        """Return the table behind a row that has `values` and `labels`."""
        labels = () if row.labels is None else row.labels.T
        return np.stack([*(row.values[name] for name in TAKEN), *labels])

    def _height(self, width: int) -> int:
        return len(TAKEN) + width

    def _columns(self, table: Values) -> dict[str, Values]:
        return self._judged(table)[1]

    def _judged(self, table: Values) -> tuple[JudgedLabels, dict[str, Values]]:
        """Return a table's labels beside the true ones, and its `LABEL_COLUMNS` (nq,)."""
        judged = JudgedLabels.of(table[len(TAKEN) :].T.astype(np.int64), self._truth)
        drank, scored, times = table[: len(TAKEN)]
        columns = measure_labels(judged, lambda _: drank)
        if self.plan.goal != "h_score":
            columns["h_score"] = np.full(len(drank), np.nan)
        columns |= {
            "scored": scored,
            "microseconds": times,
            "found": judged.found.astype(np.float64),
        }
        return judged, {name: columns[name] for name in LABEL_COLUMNS}

    def _ratios(self, table: Values) -> tuple[Values, Values]:
        """Return the columns of `LABEL_METRICS`, then those at ranks from 1 to top_k."""
        judged, columns = self._judged(table)
        means = [np.stack([columns[name] for name in LABEL_METRICS], axis=1)]
        means += [precision_at(judged), recall_at(judged), ndcg_at(judged)]
        gained, possible = with_nan_left_out(np.concatenate(means, axis=1))
        if self._inverse is None:
            return gained, possible
        worth, most = propensity_gains(judged, self._inverse)
        return np.concatenate([gained, worth], axis=1), np.concatenate([possible, most], axis=1)

    def _row(self, setting: int, table: Values, intervals: list[Interval]) -> EvaluateLabelRow:
        judged, columns = self._judged(table)
        counts, top_k = columns["found"], self.settings[setting].top_k
        starts = range(len(LABEL_METRICS), len(intervals), top_k)
        parts = [tuple(intervals[start : start + top_k]) for start in starts]
        return EvaluateLabelRow(
            number=setting,
            generation=self.plan.generation,
            search=self.settings[setting].search,
            parameters=self.plan.resolved[setting],
            goal="h_score" if self.plan.goal == "h_score" else "f_score",
            metrics=dict(zip(LABEL_METRICS, intervals, strict=False)),
            precision_at=parts[0],
            recall_at=parts[1],
            ndcg_at=parts[2],
            propensity_scored_at=parts[3] if len(parts) > 3 else (),
            coverage_at=tuple(coverage_at(judged).tolist()),
            h_of_means=harmonic_mean_of_means(columns["precision"], columns["drank"]),
            microseconds=summary(columns["microseconds"]),
            documents=len(counts),
            empty=int((counts == 0).sum()),
            short=int((counts < top_k).sum()),
            scored=mean(columns["scored"]),
            values=columns if self.task.per_row else {},
            labels=judged.labels if self.task.per_row else None,
        )

    def _kind(self, setting: PredictParameters) -> Hashable:
        return setting.mode, setting.selector, setting.search, setting.top_k

    def _fold_keys(self, goals: Values) -> IntArray:
        return np.zeros(goals.shape[1], np.int64)

    def _default_key(self, row: EvaluateLabelRow) -> Hashable:
        return row.parameters.mode


def told_max(top_k: int) -> int:
    """Return the most documents of `top_k` labels each whose result row always fits a message."""
    room = LIMITS["message_bytes_max"] - _HEADROOM_BYTES - _RANK_BYTES * top_k
    return room // (_DOCUMENT_BYTES + _LABEL_BYTES * top_k)


def documents_max(settings: Sequence[PredictParameters], *, per_row: bool) -> int:
    """Return how many documents one call may have at all settings."""
    top_ks = [setting.top_k for setting in settings]
    most = min(rows_max(len(settings)), JUDGED_MAX // max(top_ks), LABELS_MAX // sum(top_ks))
    return min(most, told_max(max(top_ks))) if per_row else most
