"""The parts of label evaluations that need no index: limits, tables of figures, result rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.evaluation.study import Resolution, Tally, Task, rows_max
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
from divgrpc.metrics.comparing import without_nan
from divgrpc.metrics.labelling import SparseLabels
from divgrpc.metrics.measures import harmonic_mean_of_means
from divgrpc.parameters import LIMITS
from divgrpc.parameters.predict import PredictParameters
from divgrpc.types import EvaluateLabelRow, Interval

LABEL_METRICS: Final = ("precision", "recall", "f_score", "ndcg", "drank", "h_score")
# Names of the figures of a document at a setting.
LABEL_COLUMNS: Final = (*LABEL_METRICS, "scored", "microseconds", "found")
# The first columns of a table of figures (see `Tally`). A column for each rank follows, with the
# label that was selected at this rank for each document.
WORK_COLUMNS: Final = ("drank", "scored", "microseconds")
# Maximum number of labels that an evaluation predicts at all settings together. The evaluation
# stores 8 bytes for each predicted label until it ends.
LABELS_MAX: Final = 10_000_000
# Maximum number of labels that an evaluation predicts at one setting. Judging a label takes 80
# bytes.
JUDGED_MAX: Final = 1_000_000
# Maximum sum of top_k over all settings, because a result row has four intervals for each rank.
RANKS_MAX: Final = 20_000
# Minimum number of points for `inverse_propensities`.
_POINTS_MIN: Final = 3
# Upper bounds of the size of a result row in a message. A rank takes four intervals. A document
# takes nine numbers, an offset, and a varint for each label. The headroom covers the rest.
_RANK_BYTES: Final = 160
_DOCUMENT_BYTES: Final = 80
_LABEL_BYTES: Final = 4
_HEADROOM_BYTES: Final = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTask(Task):
    """The options of an evaluation of labels, see `Task`.

    set_default: store the threshold of the best choice of each mode as the index's default. At
        least one setting must have a threshold.
    per_row: include `values` and `labels` in the result rows.
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
            raise invalid("set_default", "needs thresholds to choose from")

    def bounded(self) -> Self:
        """Return the task, or raise `InvalidArgumentError` if it is too large for one call."""
        super(LabelTask, self).bounded()  # as above
        for product, width, limit in (
            ("documents times top_k", max(self.widths()), JUDGED_MAX),
            ("settings times documents times top_k", sum(self.widths()), LABELS_MAX),
        ):
            if self.rows * width > limit:
                sentence = f"{product} must be at most {limit}, got {self.rows * width}"
                raise InvalidArgumentError("grid", sentence)
        return self


class LabelTally(Tally[EvaluateLabelRow]):
    """Tables of the figures of documents, one for each setting, and result rows from the tables.

    A table (3 + top_k, nq) has the `WORK_COLUMNS` and the predicted labels. `truth` is (nq, L).
    """

    table_columns = WORK_COLUMNS
    has_labels = True
    choice_fields = ("mode", "selector", "search", "top_k")

    def __init__(self, task: LabelTask, resolution: Resolution, truth: SparseLabels) -> None:
        super().__init__(task, resolution)
        self._truth = truth
        self._inverse: Values | None = None
        if resolution.counts is not None and resolution.points >= _POINTS_MIN:
            self._inverse = inverse_propensities(resolution.counts, resolution.points)

    def _columns(self, table: Values) -> dict[str, Values]:
        return self._judge(table)[1]

    def _judge(self, table: Values) -> tuple[JudgedLabels, dict[str, Values]]:
        """Return a table's judged labels, and its `LABEL_COLUMNS` by name, (nq,) each."""
        judgments = JudgedLabels.of(table[len(WORK_COLUMNS) :].T.astype(np.int64), self._truth)
        work = dict(zip(WORK_COLUMNS, table, strict=False))
        columns = measure_labels(judgments, lambda _: work["drank"]) | work
        if self.resolution.goal != "h_score":
            columns["h_score"] = np.full(table.shape[1], np.nan)
        columns["found"] = judgments.found.astype(np.float64)
        return judgments, {name: columns[name] for name in LABEL_COLUMNS}

    def _ratios(self, table: Values) -> tuple[Values, Values]:
        """Return dividends and divisors, (n, m) each, for the m metrics that have an interval.

        The columns are the `LABEL_METRICS`, then the metrics at ranks 1 to top_k.
        """
        judgments, columns = self._judge(table)
        means = [np.stack([columns[name] for name in LABEL_METRICS], axis=1)]
        means += [precision_at(judgments), recall_at(judgments), ndcg_at(judgments)]
        ratios = [without_nan(np.concatenate(means, axis=1))]
        if self._inverse is not None:
            ratios.append(propensity_gains(judgments, self._inverse))
        dividends, divisors = (np.concatenate(side, axis=1) for side in zip(*ratios, strict=True))
        return dividends, divisors

    def _row(self, setting: int, table: Values, intervals: list[Interval]) -> EvaluateLabelRow:
        judgments, columns = self._judge(table)
        top_k = self.settings[setting].top_k
        starts = range(len(LABEL_METRICS), len(intervals), top_k)
        parts = [tuple(intervals[start : start + top_k]) for start in starts]
        return EvaluateLabelRow(
            **self._row_fields(setting, columns),
            goal="h_score" if self.resolution.goal == "h_score" else "f_score",
            metrics=dict(zip(LABEL_METRICS, intervals, strict=False)),
            precision_at=parts[0],
            recall_at=parts[1],
            ndcg_at=parts[2],
            propensity_scored_at=parts[3] if len(parts) > 3 else (),
            coverage_at=tuple(coverage_at(judgments).tolist()),
            h_of_means=harmonic_mean_of_means(columns["precision"], columns["drank"]),
            documents=self.task.rows,
            scored=mean(columns["scored"]),
            labels=judgments.labels if self.task.per_row else None,
        )


def documents_per_message_max(top_k: int) -> int:
    """Return the maximum number of documents for which a result row always fits in a message.

    The result row has the values and the `top_k` labels of every document.
    """
    room = LIMITS["message_bytes_max"] - _HEADROOM_BYTES - _RANK_BYTES * top_k
    return room // (_DOCUMENT_BYTES + _LABEL_BYTES * top_k)


def documents_max(settings: Sequence[PredictParameters], *, per_row: bool) -> int:
    """Return the maximum number of documents in a call that measures all of `settings`.

    `per_row` says whether the result rows have the values and labels of every document.
    """
    top_ks = [setting.top_k for setting in settings]
    most = min(rows_max(len(settings)), JUDGED_MAX // max(top_ks), LABELS_MAX // sum(top_ks))
    return min(most, documents_per_message_max(max(top_ks))) if per_row else most
