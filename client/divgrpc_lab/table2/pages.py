"""Table 2 as a page: our figures beside the paper's, the claims in words, curves by epsilon."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from divgrpc.types import Interval
from divgrpc_client.reports import charts
from divgrpc_client.reports.charts import Curve
from divgrpc_client.reports.page import (
    Body,
    Cell,
    Column,
    Figure,
    Figures,
    Note,
    Page,
    Section,
    Table,
)
from divgrpc_client.reports.page import Row as Line
from divgrpc_lab.data.documents import DIGITS
from divgrpc_lab.experiment import records_table
from divgrpc_lab.table2.bench import AtEpsilon
from divgrpc_lab.table2.printed import PRINTED, impossible
from divgrpc_lab.table2.report import Report
from divgrpc_lab.table2.rows import FIGURES, MODES, TOP_K, LabelRow
from divgrpc_lab.table2.times import TimedLabels
from divgrpc_lab.verdicts import verdict_table

_LEAD: Final = (
    "Rows and columns are those of Table 2 of Diverse Yet Efficient Retrieval using Hash Functions "
    "(Rao, Jain, Jawahar, 2015), measured on other and smaller data and by another engine; the "
    "paper's own numbers, on LSHTC3, stand beside. Compare directions, not values."
)
_READING: Final = (
    f"At most {TOP_K} labels are predicted. P, R, f and D (drank of all that was predicted) are "
    "means over documents, h the mean of each document's h, with 95 % intervals; 2PD/(P+D) is of "
    "the means, and never below h. Dial and least score are chosen by five folds, "
    "never on the reported documents: by h, or by f where there is no hierarchy. Hashed rows are "
    "greedy. The paper's setting is 100 projections in all, ten tables of ten bits, 200 components "
    "at most, no limits; at the default, auto may come to an exact search where there is little to "
    "hash. Embedding looks for labels among label factors; votes are those of ten documents that "
    "were trained on. Times are medians of one prediction at a time on one "
    "thread, all of it; below stands the search, and the share of labels or documents it scored."
)
_SAME: Final = (
    "* As many components as dimensions: the hyperplanes are drawn from the same distribution as "
    "LSH-Div's. So where the paper's LSH-SDiv finds other labels than its LSH-Div, it is likely to "
    "have hashed documents and let their labels vote."
)
_CLAIMS: Final = "What the paper claims, and what this run says of it."
_HEADS: Final = ("P", "R", "f", "D", "h", "2PD/(P+D)")


def page(report: Report) -> Page:
    """Return the page of a run."""
    parts: list[Note | Table] = [verdict_table(report.verdicts, _CLAIMS)]
    if any(data["name"] == DIGITS for data in report.data):
        parts.insert(0, Note(f"Measured on {DIGITS}: it says nothing about the paper's claims."))
    return Page(
        title="The paper's Table 2 on real data",
        lead=_LEAD,
        facts=report.facts.listed(),
        sections=[
            Section("Claims", parts),
            Section("The paper's column h", [_why_not_h(), _printed()]),
            Section("How to read the tables", [_READING, _SAME]),
            *(_data(report, data) for data in report.data),
            Section("Times at the paper's size", [_times(report.times)] if report.times else []),
        ],
    )


def _why_not_h() -> str:
    names = impossible()
    return (
        "The harmonic mean is concave: the mean of h over documents is at most 2PD/(P+D) of the "
        "mean P and the mean D, whatever the documents. All 45 cells of Table 1 keep to that. Of "
        f"Table 2's {len(PRINTED)} rows {len(names)} do not: {', '.join(names)}. So that h cannot "
        "be of the documents that P and D are of, perhaps of those alone for which a label was "
        "right. P, R, D and time are what can be compared."
    )


def _printed() -> Table:
    return records_table(
        "Table 2 as printed, and the most that h could be.",
        [
            {
                "the paper's": name,
                **dict(zip(_HEADS, map("{:.3f}".format, (*row[:5], row.most)), strict=True)),
                "time": f"{row.milliseconds} ms",
            }
            for name, row in PRINTED.items()
        ],
    )


def _data(report: Report, data: dict[str, str]) -> Section:
    rows = [row for row in report.rows if row.data == data["name"]]
    columns = [Column("mode, setting", numeric=False), *map(Column, (*_HEADS, "dial", "time"))]
    facts = "; ".join(f"{name}: {value}" for name, value in data.items() if name != "name")
    methods = dict.fromkeys(row.asking.method for row in rows)
    table = Table(
        f"Table 2 on {data['name']}.",
        columns,
        [Body(list(_lines(rows, method)), title=method) for method in methods],
    )
    curves = [item for item in report.curves if item.data == data["name"]]
    return Section(data["name"], [f"{facts}.", table, *([_by_epsilon(curves)] if curves else [])])


def _lines(rows: Sequence[LabelRow], method: str) -> Iterator[Line]:
    """Yield a line for each row of a method, then the paper's."""
    for row in rows:
        asking = row.asking
        if asking.method != method:
            continue
        intervals = (row.figures[name] for name in FIGURES)
        dial = f"{row.dial:g}" if row.dial else ""
        least = "" if row.threshold is None else f"score {row.threshold:g}"
        taken = f"{row.search}, {row.scored / row.among:.0%}"
        yield [
            f"{MODES[asking.mode]}, {asking.setting}" + ("*" if row.same_as_lsh_div else ""),
            *map(_figure, intervals),
            _figure(Interval(row.h_of_means, math.nan, math.nan)),
            Cell(dial, detail=least),
            Cell(charts.time_words(row.microseconds), detail=taken),
        ]
    paper = PRINTED.get(method)
    if paper is not None:
        figures = (f"{value:.3f}" for value in (*paper[:5], paper.most))
        yield ["the paper's own", *figures, "", f"{paper.milliseconds} ms"]


def _figure(interval: Interval) -> Cell:
    value, *ends = interval
    if math.isnan(value):
        return Cell("")
    # Without leading zeros: the columns must fit a page.
    shown = "–".join(f"{end:.3f}".removeprefix("0") for end in ends)  # noqa: RUF001  # a range
    return Cell(f"{value:.3f}", detail="" if math.isnan(ends[0]) else shown)


def _by_epsilon(points: Sequence[AtEpsilon]) -> Figures:
    """Draw P, D and h against epsilon, with what scoring every label gives as a level line."""
    names = dict.fromkeys((item.method, item.mode) for item in points)
    epsilons = sorted({item.epsilon for item in points if item.epsilon is not None})
    figures = []
    for letter, figure in (("P", "precision"), ("D", "drank"), ("h", "h_score")):
        curves = []
        for look, (method, mode) in enumerate(names):
            selected = [item for item in points if (item.method, item.mode) == (method, mode)]
            values = {item.epsilon: float(getattr(item, figure)) for item in selected}
            level = None in values
            name = method if level else f"{method}, {MODES[mode]}"
            line = [(e, values[None] if level else values[e]) for e in epsilons]
            curves.append(Curve(name, line, look))
        title = f"{letter} against ε on {points[0].data}"
        figures.append(Figure(charts.lines(curves, "ε", letter, title, x_scale="log2"), title))
    return Figures(figures)


def _times(times: Sequence[TimedLabels]) -> Table:
    base = times[0].microseconds
    sizes = {item.mode: f"{item.among:,}" for item in times}
    among = " and ".join(
        f"{size} {'labels' if mode == 'embedding' else 'documents'}" for mode, size in sizes.items()
    )
    return records_table(
        f"Median times on a made-up set, to choose from {among}, and the share scored.",
        [
            {"method": item.method, "mode": MODES[item.mode], "setting": item.setting}
            | {"documents": item.documents, "time": charts.time_words(item.microseconds)}
            | {"x LEML": base / item.microseconds, f"P@{TOP_K}": item.precision}
            | {"scored": f"{item.scored:.2%}"}
            for item in times
        ],
    )
