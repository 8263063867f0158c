"""The rows of the crowding run: figures of answers, tables of them, and all sets in one table."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from benchmarks.crowding_truth import Truth
from benchmarks.tables import optional, table
from divgrpc import metrics
from divgrpc.types import IntArray

# The setting of the row that has the nearest distinct items.
BEST_ITEMS: Final = "best items"
# A gap is no gap where it is less than this share of J.
_WORTH: Final = 0.01


@dataclass(frozen=True)
class Row:
    """One setting on one kind of queries to one set; means over queries.

    `recall`: the share of the nearest `candidates_limit` points among the candidates, beside the
    `target_recall` of the index; `distinct`: distinct items in k places; `relevant_distinct`: those
    of them that belong to the topic asked for; `relevant`: the share of places with such a point;
    `relevance`: the mean cosine, with `of_best` its share of the best k distinct items' and
    `of_nearest` of plain neighbours'; `gap`: the part of the gap in J between plain neighbours and
    greedy over all points that is closed, None where it is under 1 % of J, with `gap_size` what
    there is to close and `difference` the J above plain neighbours'.
    """

    data: str
    crowded: bool
    kind: str
    family: str
    search: str
    setting: str
    parameters: dict[str, Any] = field(default_factory=dict)
    recall: float | None = None
    target_recall: float | None = None
    distinct: float = 0.0
    relevant_distinct: float = 0.0
    relevant: float = 0.0
    relevance: float = 0.0
    of_best: float = 0.0
    of_nearest: float = 0.0
    h: float = 0.0
    alpha_ndcg: float = 0.0
    diversity: float = 0.0
    objective: float = 0.0
    gap: float | None = None
    gap_size: float = 0.0
    difference: float = 0.0
    filled: float = 1.0
    microseconds: float | None = None
    than_nearest: float | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Who and how, without the set."""
        return f"{self.family}, {self.search}, {self.setting}"


def measured(truth: Truth, rows: IntArray, row: Row, diversity: float) -> Row:
    """Return the row with the figures of answers (nq, k), with J at that `diversity`."""
    asked = truth.queries.asked
    judged = metrics.judge(rows, asked, truth.crowd.labels)
    items = np.where(rows >= 0, truth.crowd.items[rows], -1)
    distances = truth.distances(rows)
    relevance, plain, best = (
        1 - metrics.mean(each.to_query) / 2 for each in (distances, truth.plain, truth.best)
    )
    values, low, high = (
        metrics.objective(each, diversity)
        for each in (distances, truth.plain, truth.greedy(diversity))
    )
    h = metrics.h_score(judged)
    size = float(np.nanmean(low - high))
    worth = size > _WORTH * abs(float(np.nanmean(high)))
    return replace(
        row,
        distinct=_distinct(items, rows >= 0),
        relevant_distinct=_distinct(items, judged.relevant),
        relevant=float(judged.relevant.mean()),
        relevance=relevance,
        of_best=relevance / best,
        of_nearest=relevance / plain,
        h=metrics.mean(h),
        alpha_ndcg=metrics.mean(metrics.alpha_ndcg(judged)),
        diversity=diversity,
        objective=metrics.mean(values),
        gap=metrics.gap_closed(values, low, high) if worth else None,
        gap_size=size,
        difference=float(np.nanmean(values - low)),
        filled=float((rows >= 0).mean()),
    )


def _distinct(items: IntArray, counted: np.typing.NDArray[np.bool_]) -> float:
    """Return the mean number of distinct items in the places of a list that count."""
    return float(
        np.mean([len(np.unique(row[own])) for row, own in zip(items, counted, strict=True)])
    )


def drawn(rows: Sequence[Row]) -> str:
    """Draw one line per row."""
    heads = (
        "family, search, setting",
        "recall",
        "distinct",
        "of topic",
        "relevant",
        "of best",
        "of nearest",
        "h",
        "gap closed",
        "us",
        "x nearest",
        "warnings",
    )
    return table(heads, [_cells(row) for row in rows])


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        optional(row.recall, ".3f"),
        f"{row.distinct:.2f}",
        f"{row.relevant_distinct:.2f}",
        f"{row.relevant:.3f}",
        f"{row.of_best:.3f}",
        f"{row.of_nearest:.3f}",
        f"{row.h:.3f}",
        f"{row.gap:.3f}" if row.gap is not None else f"({row.difference:+.4f})",
        optional(row.microseconds, ",.0f"),
        optional(row.than_nearest, ".2f"),
        ", ".join(row.warnings),
    )


def summary(rows: Sequence[Row]) -> str:
    """Draw one line per family, search and setting: means and worst figures over all sets."""
    by_name: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_name[row.name].append(row)
    heads = (
        "family, search, setting",
        "distinct: least",
        "documents",
        "of best: least",
        "relevant: least",
        "recall: least",
        "uncrowded, of nearest: mean",
        "least",
        "uncrowded, gap closed: mean",
        "least",
        "h",
        "x nearest",
    )
    return table(heads, [(name, *_over_sets(own)) for name, own in by_name.items()])


def _over_sets(rows: Sequence[Row]) -> tuple[str, ...]:
    crowded = [row for row in rows if row.crowded]
    apart = [row for row in rows if not row.crowded]
    documents = [row for row in crowded if row.kind == "documents"]
    return (
        _figure(min, [row.relevant_distinct for row in crowded], ".2f"),
        _figure(min, [row.relevant_distinct for row in documents], ".2f"),
        _figure(min, [row.of_best for row in crowded], ".3f"),
        _figure(min, [row.relevant for row in rows], ".3f"),
        _figure(min, [row.recall for row in rows], ".3f"),
        _figure(np.mean, [row.of_nearest for row in apart], ".3f"),
        _figure(min, [row.of_nearest for row in apart], ".3f"),
        # Where copies count as neighbours, J rewards what collapsing takes away.
        _figure(np.mean, [row.gap for row in apart], ".3f"),
        _figure(min, [row.gap for row in apart], ".3f"),
        _figure(np.mean, [row.h for row in rows], ".3f"),
        _figure(np.mean, [row.than_nearest for row in rows], ".2f"),
    )


def _figure(kind: Callable[[list[float]], Any], values: Sequence[float | None], form: str) -> str:
    real = [value for value in values if value is not None]
    return format(kind(real), form) if real else ""
