"""Makes the records of Table 2 that the site shows."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from divgrpc_client.reports import charts
from divgrpc_lab.records import Record, number
from divgrpc_lab.table2.bench import CURVES, AtEpsilon
from divgrpc_lab.table2.claims import LETTERS
from divgrpc_lab.table2.methods import (
    AT_FIVE,
    HOME,
    HOME_BY_FOLDS,
    MODES,
    TOP_K,
    TUNED_PROBES,
    Case,
    LabelRow,
)
from divgrpc_lab.table2.page import Report
from divgrpc_lab.table2.size import LabelTime
from divgrpc_lab.verdicts import Verdict

# Names of settings that are shorter than those of the report.
_SETTINGS: Final = {
    HOME: "10 x 10, home",
    HOME_BY_FOLDS: "by folds, home",
    TUNED_PROBES: "10 x 10, tuned probes",
}
_FIGURES: Final = ("f_score", "drank", "h_score")


def records(report: Report) -> Iterator[Record]:
    """Yield the records of a run; the tables of data sets need at least one set."""
    if report.rows:
        yield _rows(report.rows)
        yield _claims(report.claims)
        yield _epsilon(report.epsilon)
    yield _times(report.times)


def _rows(rows: Sequence[LabelRow]) -> Record:
    """Return a row for each case, and a column for each data set."""
    by_place = {(row.case, row.data): row for row in rows}
    sets = list(dict.fromkeys(row.data for row in rows))
    figures = {data: [n for n in _FIGURES if _applies(rows, data, n)] for data in sets}
    columns = ["method, mode, setting"]
    for data in sets:
        letters = [LETTERS[name] for name in figures[data]]
        columns.append(f"{data}: {'; '.join(['P@5 (seeds)', *letters, 'scored'])}")
    lines = [
        [_name(case), *(_row_text(by_place.get((case, data)), figures[data]) for data in sets)]
        for case in dict.fromkeys(row.case for row in rows)
    ]
    return Record("table2", "Table 2", columns, lines)


def _applies(rows: Sequence[LabelRow], data: str, name: str) -> bool:
    """Whether a figure applies to a data set; D and h need a hierarchy."""
    return any(row.data == data and row.figure(name) is not None for row in rows)


def _name(case: Case) -> str:
    return ", ".join((case.method, MODES[case.mode], _SETTINGS.get(case.setting, case.setting)))


def _row_text(row: LabelRow | None, figures: Sequence[str]) -> str:
    if row is None:
        return ""
    at_five = number(float(row.values[AT_FIVE].mean()))
    spread = row.spread(AT_FIVE)
    if spread is not None and len(row.answers) > 1:
        at_five += f" ({'–'.join(map(number, spread))})"  # noqa: RUF001  # a range
    means = [number(float(np.nanmean(row.values[name]))) for name in figures]
    return "; ".join([at_five, *means, f"{row.scored:.1%}"])


def _claims(verdicts: Sequence[Verdict]) -> Record:
    """Return a row for each claim, with all its effects in one cell."""
    lines = [
        [v.claim, v.word, "; ".join(effect.text for effect in v.effects) or v.sentence]
        for v in verdicts
    ]
    columns = ["claim", "verdict", "effect (95 % interval; corrected p)"]
    return Record("table2-claims", "Claims about Table 2", columns, lines)


def _epsilon(points: Sequence[AtEpsilon]) -> Record:
    """Return a row for each method and epsilon, and a column for each data set."""
    by_place = {(p.method, p.mode, p.epsilon, p.data): p for p in points}
    sets = list(dict.fromkeys(point.data for point in points))
    figures = {
        data: [
            name
            for name in CURVES
            if not all(np.isnan(p.values[name]).all() for p in points if p.data == data)
        ]
        for data in sets
    }
    columns = ["method", "ε"]
    columns += [f"{data}: {'; '.join(LETTERS[n] for n in figures[data])}" for data in sets]
    lines = []
    for method, mode, epsilon in dict.fromkeys((p.method, p.mode, p.epsilon) for p in points):
        name = method if epsilon is None else f"{method}, {MODES[mode]}"
        cells = [
            "; ".join(number(float(np.nanmean(point.values[n]))) for n in figures[data])
            for data in sets
            if (point := by_place[method, mode, epsilon, data])
        ]
        lines.append([name, "" if epsilon is None else f"{epsilon:g}", *cells])
    return Record("table2-epsilon", "Figures against ε", columns, lines)


def _times(times: Sequence[LabelTime]) -> Record:
    """Return the times on the synthetic set, and how many times as long both LEMLs take."""
    lines = [
        [
            f"{item.method}, {MODES[item.mode]}, {item.setting}",
            charts.time_words(item.median),
            number(item.precision),
            f"{item.scored:.2%}",
            *(f"{leml.median / item.median:.3g}" for leml in times[:2]),
        ]
        for item in times
    ]
    columns = ["method, mode, setting", "time", f"P@{TOP_K}", "scored"]
    columns += ["x every label", "x ends early"]
    return Record("table2-size", "Table 2 in the paper's size", columns, lines)
