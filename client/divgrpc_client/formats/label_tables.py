"""Rows of an evaluation of labels, as `evaluation_tables` has those of queries."""

from collections.abc import Sequence
from typing import Final

from rich.table import Table

from divgrpc.types import EvaluateLabelRow
from divgrpc_client.formats import tables
from divgrpc_client.formats.evaluation_tables import figure, stage

# The paper's columns, and what they are called there.
_SHOWN: Final = {"precision": "P", "recall": "R", "f_score": "f", "drank": "D", "h_score": "h"}
_PARAMETERS: Final = (
    "mode",
    "selector",
    "top_k",
    "threshold",
    "diversity",
    "hash_limit",
    "candidates_limit",
    "neighbours",
    "vote",
)
_AT: Final = ("precision_at", "recall_at", "ndcg_at", "propensity_scored_at")
_PLAIN: Final = ("documents", "empty", "short", "scored", "on_front", "is_default")


def show(rows: Sequence[EvaluateLabelRow]) -> None:
    """Print a table of the settings, one of the choices, and the thresholds that are kept."""
    out = tables.console()
    choices = [row for row in rows if row.by_fold]
    out.print(_table([row for row in rows if not row.by_fold], title=None))
    if choices:
        out.print("", _table(choices, title="Chosen by folds, and reported on documents held out"))
    goal = "f" if rows[0].goal == "f_score" else "h"
    out.print(f"* on the Pareto front of {goal} against time; P@k at the top_k", style="dim")
    for row in rows:
        if row.empty:
            out.print(f"row {row.number}: {row.empty:,} documents without a label")
        if row.is_default:
            kept = "none" if row.parameters.threshold is None else f"{row.parameters.threshold:g}"
            out.print(f"the threshold of {row.parameters.mode} is now {kept}")


def _table(rows: Sequence[EvaluateLabelRow], title: str | None) -> Table:
    heads = (">row", "setting", *(f">{head}" for head in _SHOWN.values()), ">P@1", ">P@k", ">PSP@k")
    grid = tables.table(*heads, ">µs p50", ">p99", "", title=title)
    for row in rows:
        lists = (row.precision_at[:1], row.precision_at[-1:], row.propensity_scored_at[-1:])
        grid.add_row(
            str(row.number),
            setting(row),
            *(figure(row.metrics[name].value) for name in _SHOWN),
            *("".join(figure(each.value) for each in some) for some in lists),
            *(f"{each:,.0f}" for each in (row.microseconds.p50, row.microseconds.p99)),
            "*" if row.on_front else "",
        )
    return grid


def setting(row: EvaluateLabelRow) -> str:
    """Return a row's setting: mode, selector, dial, search, limits, top_k, threshold."""
    used = row.parameters
    dial = f" {used.diversity:g}" if used.selector != "nearest" else ""
    least = "" if used.threshold is None else f" from {used.threshold:g}"
    return f"{used.mode} {used.selector}{dial} {stage(row)} top_k {used.top_k}{least}"


def cells(row: EvaluateLabelRow) -> dict[str, object]:
    """Return the cells of a line of CSV by their heads; lists have a space between two numbers."""
    told: dict[str, object] = {
        "number": row.number,
        "generation": row.generation,
        "search": row.search,
    }
    told |= {name: getattr(row.parameters, name) for name in _PARAMETERS}
    told["threshold"] = "" if row.parameters.threshold is None else row.parameters.threshold
    for name, interval in row.metrics.items():
        told |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    for name in _AT:
        told[name] = " ".join(str(each.value) for each in getattr(row, name))
    told["coverage_at"] = " ".join(map(str, row.coverage_at))
    told |= {"h_of_means": row.h_of_means, "goal": row.goal}
    told |= {f"microseconds_{name}": each for name, each in row.microseconds._asdict().items()}
    told |= {name: getattr(row, name) for name in _PLAIN}
    return told | {"by_fold": " ".join(map(str, row.by_fold))}
