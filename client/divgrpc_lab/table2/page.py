"""Makes the page of Table 2: our figures, the paper's, verdicts, and curves against epsilon."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

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
from divgrpc_lab.experiment import interval_text, records_table
from divgrpc_lab.table2.bench import AtEpsilon, LabelTime
from divgrpc_lab.table2.methods import FIGURES, MODES, TOP_K, LabelRow
from divgrpc_lab.table2.paper import PRINTED, impossible
from divgrpc_lab.verdicts import Verdict, verdict_table

_LEAD: Final = (
    "Rows and columns are those of Table 2 of Diverse Yet Efficient Retrieval using Hash Functions "
    "(Rao, Jain, Jawahar, 2015), measured on other and smaller data and by another engine; the "
    "paper's own numbers, on LSHTC3, stand beside. Compare directions, not values."
)
_READING: Final = (
    f"At most {TOP_K} labels are predicted. P, R, f and D (drank of all predicted labels) are "
    "means over documents, h is the mean of each document's h, with 95 % intervals; 2PD/(P+D) is "
    "of the means, and never below h. Folds choose the dial and the least score, never on the "
    "reported documents: by h, or by f without a hierarchy. Hashed rows are greedy. The paper's "
    "setting has 100 projections in all, ten tables of ten bits, 200 components at most, no "
    "limits; at the default, auto may come to an exact search where there is little to hash. "
    "Embedding searches label factors; votes are those of ten training documents. Times are "
    "medians of whole predictions, one at a time on one thread; below stands the search, and the "
    "share of labels or documents it scored."
)
_SAME: Final = (
    "* As many components as dimensions: the hyperplanes are drawn from the same distribution as "
    "LSH-Div's. So where the paper's LSH-SDiv finds other labels than its LSH-Div, it is likely to "
    "have hashed documents and let their labels vote."
)
_HEADS: Final = ("P", "R", "f", "D", "h", "2PD/(P+D)")


class Report(NamedTuple):
    """All measurements of a run: its facts, the facts of each data set, rows and verdicts."""

    facts: dict[str, str]
    data: list[dict[str, str]]
    rows: list[LabelRow]
    epsilon: list[AtEpsilon]
    times: list[LabelTime]
    claims: list[Verdict]


def page(report: Report) -> Page:
    """Return the page of a run."""
    claims: list[Note | Table] = [
        verdict_table(report.claims, "The paper's claims, and the verdicts of this run.")
    ]
    if any(data["name"] == DIGITS for data in report.data):
        claims.insert(0, Note(f"Measured on {DIGITS}: it says nothing about the paper's claims."))
    return Page(
        title="The paper's Table 2 on real data",
        lead=_LEAD,
        facts=[f"{name} {value}" for name, value in report.facts.items()],
        sections=[
            Section("Claims", claims),
            Section("The paper's column h", [_impossible(), _printed()]),
            Section("How to read the tables", [_READING, _SAME]),
            *(_data(report, data) for data in report.data),
            Section("Times at the paper's size", [_times(report.times)] if report.times else []),
        ],
    )


def _impossible() -> str:
    names = impossible()
    return (
        "The harmonic mean is concave: the mean of h over documents is at most 2PD/(P+D) of the "
        "mean P and the mean D, whatever the documents. All 45 cells of Table 1 keep to that. Of "
        f"Table 2's {len(PRINTED)} rows {len(names)} do not: {', '.join(names)}. So that h cannot "
        "be of the documents that P and D are of, perhaps of those alone for which a label was "
        "right. P, R, D and time are what can be compared."
    )


def _printed() -> Table:
    records = [
        {"the paper's": name, **dict(zip((*_HEADS, "time"), row.texts(), strict=True))}
        for name, row in PRINTED.items()
    ]
    return records_table("Table 2 as printed, and the most that h could be.", records)


def _data(report: Report, data: dict[str, str]) -> Section:
    rows = [row for row in report.rows if row.data == data["name"]]
    columns = [Column("mode, setting", numeric=False), *map(Column, (*_HEADS, "dial", "time"))]
    facts = "; ".join(f"{name}: {value}" for name, value in data.items() if name != "name")
    methods = dict.fromkeys(row.case.method for row in rows)
    bodies = [Body(list(_lines(rows, method)), title=method) for method in methods]
    table = Table(f"Table 2 on {data['name']}.", columns, bodies)
    points = [item for item in report.epsilon if item.data == data["name"]]
    return Section(data["name"], [f"{facts}.", table, *([_by_epsilon(points)] if points else [])])


def _lines(rows: Sequence[LabelRow], method: str) -> Iterator[Line]:
    """Yield a line for each row of a method, then the paper's line."""
    for row in rows:
        case, result, parameters = row.case, row.result, row.result.parameters
        if case.method != method:
            continue
        threshold = "" if parameters.threshold is None else f"score {parameters.threshold:g}"
        search = f"{parameters.search}, {result.scored / row.candidates:.0%}"
        yield [
            f"{MODES[case.mode]}, {case.setting}" + ("*" if row.same_as_lsh_div else ""),
            *(_figure(row, name) for name in FIGURES),
            "" if row.figure("h_score") is None else f"{result.h_of_means:.3f}",
            Cell(f"{parameters.diversity:g}" if parameters.diversity else "", detail=threshold),
            Cell(charts.time_words(row.microseconds), detail=search),
        ]
    if method in PRINTED:
        *figures, time = PRINTED[method].texts()
        yield ["the paper's own", *figures, "", time]


def _figure(row: LabelRow, name: str) -> Cell:
    interval = row.figure(name)
    return Cell("") if interval is None else Cell(f"{interval.value:.3f}", interval_text(interval))


def _by_epsilon(points: Sequence[AtEpsilon]) -> Figures:
    """Draw P, D and h against epsilon, with a horizontal line for the score over all labels."""
    cases = dict.fromkeys((item.method, item.mode) for item in points)
    epsilons = sorted({item.epsilon for item in points if item.epsilon is not None})
    figures = []
    for letter, name in (("P", "precision"), ("D", "drank"), ("h", "h_score")):
        values = {(p.method, p.mode, p.epsilon): float(getattr(p, name)) for p in points}
        curves = []
        for look, (method, mode) in enumerate(cases):
            level = values.get((method, mode, None))
            line = [(e, values.get((method, mode, e), level or 0.0)) for e in epsilons]
            title = method if level is not None else f"{method}, {MODES[mode]}"
            curves.append(Curve(title, line, look))
        title = f"{letter} against ε on {points[0].data}"
        figures.append(Figure(charts.lines(curves, "ε", letter, title, x_scale="log2"), title))
    return Figures(figures)


def _times(times: Sequence[LabelTime]) -> Table:
    records = [
        {"method": item.method, "mode": MODES[item.mode], "setting": item.setting}
        | {"to choose from": item.candidates, "documents": item.documents}
        | {"time": charts.time_words(item.microseconds), f"P@{TOP_K}": item.precision}
        | {"x LEML": times[0].microseconds / item.microseconds, "scored": f"{item.scored:.2%}"}
        for item in times
    ]
    return records_table("Median times on a synthetic set, and the share scored.", records)
