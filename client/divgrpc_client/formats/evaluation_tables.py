"""Shows the rows of an evaluation of queries or labels as a table or as CSV."""

import csv
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from rich.table import Table

from divgrpc.parameters import DEFAULT_VARIANT
from divgrpc.types import EffectiveParameters, EvaluateLabelRow, EvaluateRow
from divgrpc_client.formats import json_output, tables

Row: TypeAlias = EvaluateRow | EvaluateLabelRow


def method(row: Row) -> str:
    """Return the selector of a row, with its variant and rounding if they are not the default."""
    parameters, selector = row.parameters, row.parameters.selector
    words: list[str] = []
    if isinstance(parameters, EffectiveParameters) and selector in ("greedy", "qp_relax"):
        words += [parameters.variant] * (parameters.variant != DEFAULT_VARIANT)
        words += [parameters.rounding] * (parameters.rounding != "exchange")
    return f"{selector} ({', '.join(words)})" if words else selector


def diversity(row: Row) -> str:
    """Return the diversity of a row; it is empty for plain nearest neighbours."""
    parameters = row.parameters
    return f"{parameters.diversity:g}" if parameters.selector != "nearest" else ""


def limit(limit: int) -> str:
    """Return a limit of the search as text; 0 means no limit."""
    return str(limit) if limit else "none"


def stage(row: Row) -> str:
    """Return the requested search and its limits."""
    hash_limit, candidates = row.parameters.hash_limit, row.parameters.candidates_limit
    if not hash_limit and not candidates:
        return f"{row.search} search without limits"
    return f"{row.search} search, hash limit {limit(hash_limit)}, candidates {limit(candidates)}"


def _number(value: float | None, absent: str) -> str:
    return absent if value is None else f"{value:g}"


# Parameters of the search whose values a table shows only if they differ between its rows.
DETAILS: Final[Mapping[str, Callable[[Row], str]]] = {
    "epsilon": lambda row: _number(getattr(row, "epsilon", None), ""),
    "probes": lambda row: str(row.parameters.n_probes or ""),
    "sampling": lambda row: getattr(row.parameters, "sampling", ""),
}


def varied(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the headings of those `DETAILS` whose values differ between `rows`."""
    values = {head: {text(row) for row in rows} for head, text in DETAILS.items()}
    # An empty text does not count as a value, because some searches never probe.
    values["probes"].discard("")
    return tuple(head for head, texts in values.items() if len(texts) > 1)


def setting(row: Row) -> str:
    """Return a row's setting without k: its method, diversity, search and limits."""
    dial = f" at diversity {diversity(row)}" if diversity(row) else ""
    return f"{method(row)}{dial}, {stage(row)}"


def figure(value: float) -> str:
    """Return a metric with three decimals, or an empty string if it does not apply."""
    return "" if math.isnan(value) else f"{value:.3f}"


def h_range(row: Row) -> str:
    """Return the 95 % interval of h, or an empty string if it does not apply."""
    low, high = figure(row.metrics["h_score"].low), figure(row.metrics["h_score"].high)
    return f"{low}\N{EN DASH}{high}" if low else ""


def _is_of_one_group(row: Row) -> bool:
    """Whether the metric that choices maximise applies to one group only and has no interval."""
    goal = row.metrics[getattr(row, "goal", "h_score")]
    return not math.isnan(goal.value) and math.isnan(goal.low)


def _threshold(row: Row) -> str:
    return _number(getattr(row.parameters, "threshold", None), "none")


def _metric(*names: str) -> Callable[[Row], str]:
    """Return a function that formats the first metric of `names` that a row has."""
    return lambda row: figure(next(row.metrics[n].value for n in names if n in row.metrics))


def _parameter(name: str) -> Callable[[Row], str]:
    return lambda row: str(getattr(row.parameters, name))


def _at_k(name: str) -> Callable[[Row], str]:
    """Return a function that formats the last figure of a list; an empty list gives ""."""
    return lambda row: "".join(figure(interval.value) for interval in getattr(row, name)[-1:])


# Functions that format the cells of each column, by column head. Metrics have the paper's names.
CELLS: Final[Mapping[str, Callable[[Row], str]]] = {
    "row": lambda row: str(row.number),
    "mode": _parameter("mode"),
    "method": method,
    "diversity": diversity,
    "search": lambda row: row.search,
    "hash limit": lambda row: limit(row.parameters.hash_limit),
    "candidates": lambda row: limit(row.parameters.candidates_limit),
    "limits": lambda row: (
        f"{limit(row.parameters.hash_limit)}/{limit(row.parameters.candidates_limit)}"
    ),
    "k": _parameter("k"),
    "top_k": _parameter("top_k"),
    "threshold": _threshold,
    "P": _metric("precision"),
    "SR": _metric("subtopic_recall"),
    "R": _metric("recall"),
    "f": _metric("f_score"),
    "D": _metric("normalised_entropy", "drank"),
    "h": _metric("h_score"),
    "95 % of h": h_range,
    "P@k": _at_k("precision_at"),
    "PSP@k": _at_k("propensity_scored_at"),
    "µs p50": lambda row: f"{row.microseconds.p50:,.0f}",
    "p90": lambda row: f"{row.microseconds.p90:,.0f}",
    "p99": lambda row: f"{row.microseconds.p99:,.0f}",
    "empty": lambda row: f"{row.empty:,}",
    "short": lambda row: f"{row.short:,}",
    **DETAILS,
    "front": lambda row: "*" if row.on_front else "",
}
# Headings of left-aligned columns.
TEXTS: Final = ("mode", "method", "search", "limits", "sampling", "front")
_TIMES: Final = ("µs p50", "p90", "p99", "front")
_QUERY_HEADS: Final = (
    *("row", "method", "diversity", "search", "limits", "k"),
    *("P", "SR", "D", "h", "95 % of h", *_TIMES),
)
_LABEL_HEADS: Final = (
    *("row", "mode", "method", "diversity", "search", "limits", "top_k", "threshold"),
    *("P", "R", "f", "D", "h", "P@k", "PSP@k", *_TIMES),
)
# CSV columns in their order, for rows of both kinds. A list has a number for each rank or fold.
_CSV_PARAMETERS: Final = (
    *("mode", "selector", "variant", "rounding", "k", "top_k", "threshold", "diversity"),
    *("hash_limit", "candidates_limit", "neighbours", "vote"),
)
_CSV_FIELDS: Final = (
    *("precision_at", "recall_at", "ndcg_at", "propensity_scored_at", "coverage_at", "h_of_means"),
    *("goal", "microseconds", "queries", "documents", "empty", "short", "scored", "on_front"),
    *("is_default", "by_fold"),
)


def show(rows: Sequence[Row]) -> None:
    """Print tables of the settings, of the choices and of the defaults that were set."""
    out = tables.console()
    unit = "documents" if isinstance(rows[0], EvaluateLabelRow) else "queries"
    settings = [row for row in rows if not row.by_fold]
    choices = [row for row in rows if row.by_fold and not row.is_default]
    defaults = [row for row in rows if row.is_default]
    details = varied(rows)
    out.print(_table(settings, details))
    if choices:
        out.print("", _table(choices, details, f"Chosen by folds, and reported on {unit} held out"))
    if defaults:
        title = "The best choice, now the default, chosen anew for each fold on the other folds"
        out.print("", _table(defaults, details, title))
    goal = "f" if getattr(rows[0], "goal", "h_score") == "f_score" else "h"
    out.print(
        f"limits: hash_limit/candidates_limit. *: on the Pareto front of {goal} against time",
        style="dim",
    )
    if any(map(_is_of_one_group, rows)):
        out.print(f"one group of {unit} with {goal}: no interval, and nothing is chosen by folds")
    for row in rows:
        # Short results of predictions are not reported, because a threshold is meant to leave
        # documents with fewer labels than top_k.
        is_short = row.short and isinstance(row, EvaluateRow)
        short = f", {row.short:,} short of k" if is_short else ""
        if row.empty or is_short:
            out.print(f"row {row.number}: {row.empty:,} {unit} without a result{short}")
        if row.is_default and isinstance(row, EvaluateLabelRow):
            out.print(f"the threshold of {CELLS['mode'](row)} is now {_threshold(row)}")


def _table(rows: Sequence[Row], details: Sequence[str], title: str | None = None) -> Table:
    is_of_labels = any(isinstance(row, EvaluateLabelRow) for row in rows)
    heads = list(_LABEL_HEADS if is_of_labels else _QUERY_HEADS)
    after_limits = heads.index("limits") + 1
    heads[after_limits:after_limits] = details
    names = (head if head in TEXTS else f">{head}" for head in heads)
    grid = tables.table(*("" if name == "front" else name for name in names), title=title)
    for row in rows:
        grid.add_row(*(CELLS[head](row) for head in heads))
    return grid


# Parameters that add something to an answer, and change no figure.
_COMMENTS: Final = ("explain", "with_report")


def show_csv(rows: Sequence[Row]) -> None:
    """Print the rows as CSV; a cell is empty if its figure does not apply."""
    lines = list(map(_cells, rows))
    writer = csv.DictWriter(sys.stdout, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)


def _cells(row: Row) -> dict[str, object]:
    """Return the cells of a CSV line by column name; each metric is followed by its interval.

    The values of single queries or documents are omitted. The parameters of `_CSV_PARAMETERS` come
    before the metrics, and other parameters at the end, so that columns of earlier releases keep
    their places.
    """
    fields = json_output.plain(row)
    parameters = fields["parameters"]
    cells = {name: fields[name] for name in ("number", "generation", "search")}
    cells |= {name: parameters[name] for name in _CSV_PARAMETERS if name in parameters}
    for name, interval in fields["metrics"].items():
        bounds = {f"{name}_{end}": interval[end] for end in ("low", "high")}
        cells |= {name: interval["value"], **bounds}
    for name in _CSV_FIELDS:
        if name == "microseconds":
            cells |= {f"{name}_{part}": time for part, time in fields[name].items()}
        elif name in fields:
            value = fields[name]
            cells[name] = _joined(value) if isinstance(value, list) else value
    left_out = {*cells, *_COMMENTS}
    cells |= {name: value for name, value in parameters.items() if name not in left_out}
    return cells | {name: fields[name] for name in ("epsilon",) if name in fields}


def _joined(items: Sequence[object]) -> str:
    """Join numbers by spaces; a figure that does not apply is nan."""
    numbers = (item["value"] if isinstance(item, dict) else item for item in items)
    return " ".join("nan" if number is None else str(number) for number in numbers)
