"""Rows of an evaluation, of queries or of labels: a table for people, JSON and CSV for programs."""

import csv
import math
import sys
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from rich.table import Table

from divgrpc.parameters import DEFAULT_VARIANT
from divgrpc.types import EffectiveParameters, EvaluateLabelRow, EvaluateRow
from divgrpc_client.formats import json_output, tables

Row: TypeAlias = EvaluateRow | EvaluateLabelRow

# Metrics of each kind of row, and their heads; those of queries are the paper's.
HEADS: Final = {
    "precision": "P",
    "subtopic_recall": "SR",
    "normalised_entropy": "D",
    "h_score": "h",
}
_LABEL_HEADS: Final = {
    "precision": "P",
    "recall": "R",
    "f_score": "f",
    "drank": "D",
    "h_score": "h",
}


def show(rows: Sequence[Row]) -> None:
    """Print a table of the settings, one of the choices, and the default that was set."""
    out = tables.console()
    unit = "documents" if isinstance(rows[0], EvaluateLabelRow) else "queries"
    settings = [row for row in rows if not row.by_fold]
    choices = [row for row in rows if row.by_fold]
    out.print(_table(settings))
    if choices:
        out.print("", _table(choices, f"Chosen by folds, and reported on {unit} held out"))
    goal = "f" if getattr(rows[0], "goal", "h_score") == "f_score" else "h"
    out.print(
        f"limits: hash_limit/candidates_limit. *: on the Pareto front of {goal} against time",
        style="dim",
    )
    for row in rows:
        # A threshold is meant to leave documents with fewer labels than top_k.
        is_short = row.short and isinstance(row, EvaluateRow)
        short = f", {row.short:,} short of k" if is_short else ""
        if row.empty or is_short:
            out.print(f"row {row.number}: {row.empty:,} {unit} without a result{short}")
        if row.is_default and isinstance(row, EvaluateRow):
            out.print(f"the default for Query is now {setting(row)}, k {row.parameters.k}")
        elif row.is_default:
            mode = row.parameters.mode  # type: ignore[union-attr]  # a row of labels
            out.print(f"the threshold of {mode} is now {_threshold(row)}")


def _table(rows: Sequence[Row], title: str | None = None) -> Table:
    of_labels = isinstance(rows[0], EvaluateLabelRow) if rows else False
    heads = _LABEL_HEADS if of_labels else HEADS
    grid = tables.table(
        *(">row", *(["mode"] if of_labels else []), "method", ">diversity", "search", ">limits"),
        *((">top_k", ">threshold") if of_labels else (">k",)),
        *(f">{head}" for head in heads.values()),
        *((">P@k", ">PSP@k") if of_labels else (">95 % of h",)),
        *(">µs p50", ">p90", ">p99", ""),
        title=title,
    )
    for row in rows:
        parameters, times = row.parameters, row.microseconds
        mode: list[str] = []
        if isinstance(row, EvaluateLabelRow):
            mode = [row.parameters.mode]
            sizes = [str(row.parameters.top_k), _threshold(row)]
            last = (ranks[-1:] for ranks in (row.precision_at, row.propensity_scored_at))
            extra = ["".join(figure(interval.value) for interval in ranks) for ranks in last]
        else:
            h = row.metrics["h_score"]
            sizes, extra = [str(row.parameters.k)], [f"{figure(h.low)}-{figure(h.high)}"]
        grid.add_row(
            *(str(row.number), *mode, method(row), diversity(row), row.search),
            f"{limit(parameters.hash_limit)}/{limit(parameters.candidates_limit)}",
            *(*sizes, *(figure(row.metrics[name].value) for name in heads), *extra),
            *(f"{time:,.0f}" for time in (times.p50, times.p90, times.p99)),
            "*" if row.on_front else "",
        )
    return grid


def method(row: Row) -> str:
    """Return what picks the results: a selector, and its settings other than the default."""
    parameters = row.parameters
    words: list[str] = []
    if isinstance(parameters, EffectiveParameters) and parameters.selector in (
        "greedy",
        "qp_relax",
    ):
        words += [parameters.variant] * (parameters.variant != DEFAULT_VARIANT)
        words += [parameters.rounding] * (parameters.rounding != "exchange")
    return f"{parameters.selector} ({', '.join(words)})" if words else parameters.selector


def diversity(row: Row) -> str:
    """Return the diversity of a row; plain nearest neighbours have none."""
    parameters = row.parameters
    return f"{parameters.diversity:g}" if parameters.selector != "nearest" else ""


def limit(limit: int) -> str:
    """Return a limit of the search; 0 is no limit."""
    return str(limit) if limit else "none"


def stage(row: Row) -> str:
    """Return where candidates come from: the requested search, and its limits."""
    parameters = row.parameters
    if not parameters.hash_limit and not parameters.candidates_limit:
        return f"{row.search} search without limits"
    return (
        f"{row.search} search, hash limit {limit(parameters.hash_limit)}, "
        f"candidates {limit(parameters.candidates_limit)}"
    )


def setting(row: Row) -> str:
    """Return a row's setting but for k: method, diversity, search, limits."""
    dial = f" at diversity {diversity(row)}" if diversity(row) else ""
    return f"{method(row)}{dial}, {stage(row)}"


def figure(value: float) -> str:
    """Return a metric with three digits, nothing if it does not apply."""
    return "" if math.isnan(value) else f"{value:.3f}"


def _threshold(row: Row) -> str:
    threshold = getattr(row.parameters, "threshold", None)
    return "none" if threshold is None else f"{threshold:g}"


def show_json(rows: Sequence[Row]) -> None:
    """Print all that is known of the rows; a figure that does not apply is null."""
    json_output.show({"rows": rows})


def show_csv(rows: Sequence[Row]) -> None:
    """Print a line for each row; a figure that does not apply is empty."""
    lines = [_cells(json_output.plain(row)) for row in rows]
    writer = csv.DictWriter(sys.stdout, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)


def _cells(row: dict[str, Any]) -> dict[str, object]:
    """Return the cells of a line by their heads; every metric has its interval.

    Lists have a space between two numbers. Values of single queries or documents are left out.
    """
    cells = {name: row.pop(name) for name in ("number", "generation", "search")}
    cells |= {n: value for n, value in row.pop("parameters").items() if n not in cells}
    for name, interval in row.pop("metrics").items():
        cells |= {
            name: interval["value"],
            f"{name}_low": interval["low"],
            f"{name}_high": interval["high"],
        }
    cells |= {f"microseconds_{name}": time for name, time in row.pop("microseconds").items()}
    for name, value in row.items():
        if name in ("values", "labels"):
            continue
        if isinstance(value, list):
            items = (item["value"] if isinstance(item, dict) else item for item in value)
            value = " ".join(map(str, items))  # noqa: PLW2901  # as a cell has it
        cells[name] = value
    return cells
