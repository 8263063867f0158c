"""Rows of an evaluation as figures: accuracy against diversity, h against time."""

from collections.abc import Sequence
from typing import Final

from divgrpc.types import EvaluateRow
from divgrpc_client.formats.evaluation_tables import method, stage
from divgrpc_client.reports import charts
from divgrpc_client.reports.charts import Curve
from divgrpc_client.reports.page import Figure, Figures

_TIME_LEAST: Final = 0.1


def trade_off(rows: Sequence[EvaluateRow]) -> list[Figures]:
    """Return for each k the curves of P against D, a figure for each search with its limits.

    A curve is of one method, along the dial, whose ends stand at the curve's. Choices by folds are
    left out: they are of many settings.
    """
    looks = _looks(rows)
    return [Figures(_panels(k, _of(rows, k), looks)) for k in ks(rows)]


def h_against_time(rows: Sequence[EvaluateRow]) -> Figures:
    """Return for each k every setting's h against its median time, and the Pareto front."""
    looks = _looks(rows)
    return Figures([_times(k, _of(rows, k), looks) for k in ks(rows)])


def ks(rows: Sequence[EvaluateRow]) -> list[int]:
    """Return every k there is, each once, in order."""
    return sorted({row.parameters.k for row in rows})


def _of(rows: Sequence[EvaluateRow], k: int) -> list[EvaluateRow]:
    return [row for row in rows if row.parameters.k == k and not row.by_fold]


def _looks(rows: Sequence[EvaluateRow]) -> dict[str, int]:
    """Return a number for each method, the same in all figures."""
    names = dict.fromkeys(method(row.parameters) for row in rows)
    return {name: number for number, name in enumerate(names)}


def _panels(k: int, rows: Sequence[EvaluateRow], looks: dict[str, int]) -> list[Figure]:
    by_stage = {name: [row for row in rows if stage(row) == name] for name in map(stage, rows)}
    return [
        Figure(
            charts.trade_off(_dials(some, looks), f"Accuracy against diversity, k = {k}, {name}"),
            f"k = {k}, {name}",
        )
        for name, some in by_stage.items()
    ]


def _dials(rows: Sequence[EvaluateRow], looks: dict[str, int]) -> list[Curve]:
    curves = []
    for name, look in looks.items():
        own = sorted(
            (row for row in rows if method(row.parameters) == name),
            key=lambda row: row.parameters.diversity,
        )
        if not own:
            continue
        first, last = (f"{row.parameters.diversity:g}" for row in (own[0], own[-1]))
        points = [
            (row.metrics["normalised_entropy"].value, row.metrics["precision"].value) for row in own
        ]
        curves.append(Curve(name, points, look, ends=(first, last) if first != last else ("", "")))
    return curves


def _times(k: int, rows: Sequence[EvaluateRow], looks: dict[str, int]) -> Figure:
    fills = list(dict.fromkeys(map(stage, rows)))
    curves = [
        Curve(
            name,
            [
                _h_at_time(row)
                for row in rows
                if (method(row.parameters), stage(row)) == (name, fill)
            ],
            look,
            number,
        )
        for name, look in looks.items()
        for number, fill in enumerate(fills)
    ]
    front = [_h_at_time(row) for row in rows if row.on_front]
    title = f"h against time, k = {k}"
    return Figure(charts.h_against_time(curves, fills, front, title), f"k = {k}")


def _h_at_time(row: EvaluateRow) -> tuple[float, float]:
    # A clock that stands still gives 0, which has no place on a log axis.
    return max(row.microseconds.p50, _TIME_LEAST), row.metrics["h_score"].value
