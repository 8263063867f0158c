"""Rows of an evaluation, for people as a table, for programs as JSON and CSV."""

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from rich.table import Table

from divgrpc.parameters import DEFAULT_VARIANT
from divgrpc.types import EffectiveParameters, EvaluateLabelRow, EvaluateRow
from divgrpc_client.formats import json_output, tables

# The paper's columns, and what they are called there.
SHOWN: Final = {
    "precision": "P",
    "subtopic_recall": "SR",
    "normalised_entropy": "D",
    "h_score": "h",
}
_PARAMETERS: Final = (
    "selector",
    "variant",
    "rounding",
    "k",
    "diversity",
    "hash_limit",
    "candidates_limit",
)


def show(rows: Sequence[EvaluateRow]) -> None:
    """Print a table of the settings, one of the choices, and the default that was set."""
    out = tables.console()
    settings = [row for row in rows if not row.by_fold]
    choices = [row for row in rows if row.by_fold]
    out.print(_table(settings, title=None))
    if choices:
        out.print("", _table(choices, title="Chosen by folds, and reported on queries held out"))
    out.print("* on the Pareto front of h against time", style="dim")
    for row in rows:
        short = f", {row.short:,} short of k" if row.short else ""
        if row.empty or row.short:
            out.print(f"row {row.number}: {row.empty:,} queries without a result{short}")
        if row.is_default:
            out.print(f"the default for Query is now {setting(row)} k {row.parameters.k}")


def _table(rows: Sequence[EvaluateRow], title: str | None) -> Table:
    heads = (">row", "setting", *(f">{head}" for head in SHOWN.values()), ">95 % of h")
    grid = tables.table(*heads, ">µs p50", ">p90", ">p99", "", title=title)
    for row in rows:
        h, times = row.metrics["h_score"], row.microseconds
        grid.add_row(
            str(row.number),
            f"{setting(row)} k {row.parameters.k}",
            *(figure(row.metrics[name].value) for name in SHOWN),
            f"{figure(h.low)}-{figure(h.high)}",
            *(f"{each:,.0f}" for each in (times.p50, times.p90, times.p99)),
            "*" if row.on_front else "",
        )
    return grid


def method(used: EffectiveParameters) -> str:
    """Return what picks the results: a selector, and what of it is not the default."""
    words: list[str] = [used.variant] * (used.variant != DEFAULT_VARIANT)
    words += [used.rounding] * (used.rounding != "exchange")
    return " ".join([used.selector, *words])


def stage(row: EvaluateRow | EvaluateLabelRow) -> str:
    """Return where candidates come from: the search asked for, and its limits."""
    used = row.parameters
    return f"{row.search} {_limit(used.hash_limit)}:{_limit(used.candidates_limit)}"


def setting(row: EvaluateRow) -> str:
    """Return a row's setting but for k: method, dial, search, limits."""
    used = row.parameters
    dial = f" {used.diversity:g}" if used.selector != "nearest" else ""
    return f"{method(used)}{dial} {stage(row)}"


def _limit(limit: int) -> str:
    return str(limit) if limit else "all"


def figure(value: float) -> str:
    """Return a metric with three digits, nothing where it does not apply."""
    return "" if math.isnan(value) else f"{value:.3f}"


def show_json(rows: Sequence[EvaluateRow] | Sequence[EvaluateLabelRow]) -> None:
    """Print all that is known of the rows; what does not apply is null."""
    json_output.show({"rows": [_plain(asdict(row)) for row in rows]})


def _plain(value: Any) -> Any:  # noqa: ANN401  # whatever a row holds
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show_csv(lines: Sequence[Mapping[str, object]]) -> None:
    """Print a line for each row, as `cells` gives it; what does not apply is empty."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for number, line in enumerate(lines):
        if number == 0:
            writer.writerow(line)
        writer.writerow("" if each != each else each for each in line.values())  # noqa: PLR0124  # NaN


def cells(row: EvaluateRow) -> dict[str, object]:
    """Return the cells of a line of CSV by their heads, every metric with its interval."""
    used: EffectiveParameters = row.parameters
    told: dict[str, object] = {
        "number": row.number,
        "generation": row.generation,
        "search": row.search,
    }
    told |= {name: getattr(used, name) for name in _PARAMETERS}
    for name, interval in row.metrics.items():
        told |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    told |= {"h_of_means": row.h_of_means}
    told |= {f"microseconds_{name}": each for name, each in row.microseconds._asdict().items()}
    plain = ("queries", "empty", "short", "on_front", "is_default")
    told |= {name: getattr(row, name) for name in plain}
    return told | {"by_fold": " ".join(map(str, row.by_fold))}
