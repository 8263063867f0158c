"""Rows of an evaluation, of queries or of labels: a table for people, JSON and CSV for programs."""

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from rich.table import Table

from divgrpc.parameters import DEFAULT_VARIANT
from divgrpc.types import EffectiveParameters, EvaluateLabelRow, EvaluateRow
from divgrpc_client.formats import json_output, tables

Row: TypeAlias = EvaluateRow | EvaluateLabelRow

# The paper's columns, and what they are called there.
SHOWN: Final = {
    "precision": "P",
    "subtopic_recall": "SR",
    "normalised_entropy": "D",
    "h_score": "h",
}


@dataclass(frozen=True, slots=True)
class _Layout:
    """How rows of one kind are shown: metrics with their heads, parameters, and further columns.

    `unit` is what was evaluated; `lists` are metrics at each rank.
    """

    unit: str
    metrics: Mapping[str, str]
    parameters: Sequence[str]
    plain: Sequence[str]
    lists: Sequence[str] = ()


_QUERIES: Final = _Layout(
    unit="queries",
    metrics=SHOWN,
    parameters=(
        *("selector", "variant", "rounding", "k", "diversity"),
        *("hash_limit", "candidates_limit"),
    ),
    plain=("queries", "empty", "short", "on_front", "is_default"),
)
_LABELS: Final = _Layout(
    unit="documents",
    metrics={"precision": "P", "recall": "R", "f_score": "f", "drank": "D", "h_score": "h"},
    parameters=(
        *("mode", "selector", "top_k", "threshold", "diversity"),
        *("hash_limit", "candidates_limit", "neighbours", "vote"),
    ),
    plain=("documents", "empty", "short", "scored", "on_front", "is_default"),
    lists=("precision_at", "recall_at", "ndcg_at", "propensity_scored_at"),
)


def _layout(row: Row) -> _Layout:
    return _LABELS if isinstance(row, EvaluateLabelRow) else _QUERIES


def show(rows: Sequence[Row]) -> None:
    """Print a table of the settings, one of the choices, and the default that was set."""
    out = tables.console()
    layout = _layout(rows[0])
    settings = [row for row in rows if not row.by_fold]
    choices = [row for row in rows if row.by_fold]
    out.print(_table(layout, settings, title=None))
    if choices:
        title = f"Chosen by folds, and reported on {layout.unit} held out"
        out.print("", _table(layout, choices, title=title))
    goal = "f" if getattr(rows[0], "goal", "h_score") == "f_score" else "h"
    out.print(
        f"limits: hash_limit/candidates_limit. *: on the Pareto front of {goal} against time",
        style="dim",
    )
    for row in rows:
        # A threshold is meant to leave documents with fewer labels than top_k.
        is_short = row.short and layout is _QUERIES
        short = f", {row.short:,} short of k" if is_short else ""
        if row.empty or is_short:
            out.print(f"row {row.number}: {row.empty:,} {layout.unit} without a result{short}")
        if row.is_default:
            out.print(_default(row))


def _default(row: Row) -> str:
    if isinstance(row, EvaluateRow):
        return f"the default for Query is now {setting(row)}, k {row.parameters.k}"
    return f"the threshold of {row.parameters.mode} is now {_threshold(row)}"


def _table(layout: _Layout, rows: Sequence[Row], title: str | None) -> Table:
    names = ("mode",) if layout is _LABELS else ()
    sizes = (">top_k", ">threshold") if layout is _LABELS else (">k",)
    metrics = (f">{head}" for head in layout.metrics.values())
    extra = (">P@k", ">PSP@k") if layout is _LABELS else (">95 % of h",)
    grid = tables.table(
        *(">row", *names, "method", ">diversity", "search", ">limits", *sizes),
        *(*metrics, *extra, ">µs p50", ">p90", ">p99", ""),
        title=title,
    )
    for row in rows:
        used, times = row.parameters, row.microseconds
        if isinstance(row, EvaluateLabelRow):
            sized = [row.parameters.mode, str(row.parameters.top_k), _threshold(row)]
            last = (some[-1:] for some in (row.precision_at, row.propensity_scored_at))
            texts = ["".join(figure(interval.value) for interval in some) for some in last]
        else:
            h = row.metrics["h_score"]
            sized = [str(row.parameters.k)]
            texts = [f"{figure(h.low)}-{figure(h.high)}"]
        grid.add_row(
            *(str(row.number), *sized[: len(names)], method(row), diversity(row), row.search),
            f"{limit(used.hash_limit)}/{limit(used.candidates_limit)}",
            *(*sized[len(names) :], *(figure(row.metrics[n].value) for n in layout.metrics)),
            *(*texts, *(f"{time:,.0f}" for time in (times.p50, times.p90, times.p99))),
            "*" if row.on_front else "",
        )
    return grid


def method(row: Row) -> str:
    """Return what picks the results: a selector, and what of it is not the default."""
    used = row.parameters
    words: list[str] = []
    if isinstance(used, EffectiveParameters) and used.selector in ("greedy", "qp_relax"):
        words += [used.variant] * (used.variant != DEFAULT_VARIANT)
        words += [used.rounding] * (used.rounding != "exchange")
    return f"{used.selector} ({', '.join(words)})" if words else used.selector


def diversity(row: Row) -> str:
    """Return the diversity of a row; plain nearest neighbours have none."""
    used = row.parameters
    return f"{used.diversity:g}" if used.selector != "nearest" else ""


def limit(limit: int) -> str:
    """Return a limit of the search; 0 is no limit."""
    return str(limit) if limit else "none"


def stage(row: Row) -> str:
    """Return where candidates come from: the search asked for, and its limits."""
    used = row.parameters
    if not used.hash_limit and not used.candidates_limit:
        return f"{row.search} search without limits"
    return (
        f"{row.search} search, hash limit {limit(used.hash_limit)}, "
        f"candidates {limit(used.candidates_limit)}"
    )


def setting(row: Row) -> str:
    """Return a row's setting but for k: method, diversity, search, limits."""
    dial = f" at diversity {diversity(row)}" if diversity(row) else ""
    return f"{method(row)}{dial}, {stage(row)}"


def figure(value: float) -> str:
    """Return a metric with three digits, nothing where it does not apply."""
    return "" if math.isnan(value) else f"{value:.3f}"


def _threshold(row: EvaluateLabelRow) -> str:
    threshold = row.parameters.threshold
    return "none" if threshold is None else f"{threshold:g}"


def show_json(rows: Sequence[Row]) -> None:
    """Print all that is known of the rows; what does not apply is null."""
    json_output.show({"rows": [_plain(asdict(row)) for row in rows]})


def _plain(value: Any) -> Any:  # noqa: ANN401  # whatever a row holds
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show_csv(rows: Sequence[Row]) -> None:
    """Print a line for each row; what does not apply is empty."""
    lines = list(map(cells, rows))
    writer = csv.DictWriter(sys.stdout, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({n: "" if v is None or v != v else v for n, v in line.items()})  # noqa: PLR0124  # NaN


def cells(row: Row) -> dict[str, object]:
    """Return the cells of a line of CSV by their heads, every metric with its interval.

    Lists have a space between two numbers.
    """
    layout = _layout(row)
    line: dict[str, object] = {n: getattr(row, n) for n in ("number", "generation", "search")}
    line |= {name: getattr(row.parameters, name) for name in layout.parameters}
    for name, interval in row.metrics.items():
        line |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    for name in layout.lists:
        line[name] = " ".join(str(interval.value) for interval in getattr(row, name))
    if isinstance(row, EvaluateLabelRow):
        line["coverage_at"] = " ".join(map(str, row.coverage_at))
    line["h_of_means"] = row.h_of_means
    if isinstance(row, EvaluateLabelRow):
        line["goal"] = row.goal
    line |= {f"microseconds_{name}": time for name, time in row.microseconds._asdict().items()}
    line |= {name: getattr(row, name) for name in layout.plain}
    return line | {"by_fold": " ".join(map(str, row.by_fold))}
