"""Makes the page of Table 2: our figures, the paper's, verdicts, and figures against epsilon."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from divgrpc.metrics import Values
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
from divgrpc_lab.draws import mean_over_draws
from divgrpc_lab.experiment import NOT_THE_PAPERS_DATA, interval_text, records_table
from divgrpc_lab.table2.bench import AtEpsilon
from divgrpc_lab.table2.methods import AT_FIVE, FIGURES, HOME_BY_FOLDS, MODES, TOP_K, LabelRow
from divgrpc_lab.table2.paper import PAPER_ROWS, impossible
from divgrpc_lab.table2.size import LabelTime
from divgrpc_lab.verdicts import Verdict, verdict_table

_LEAD: Final = (
    f"{NOT_THE_PAPERS_DATA} Rows and columns are those of Table 2 of Diverse Yet Efficient "
    "Retrieval using Hash Functions (Rao, Jain, Jawahar, 2015), which has 754,000 documents and "
    "259,000 labels."
)
_READING: Final = (
    f"P@5 is of {TOP_K} labels without a threshold; a missing label counts as wrong. P, R, f and D "
    "are of the labels above a threshold, so their rows have different numbers of labels. D is "
    "drank of all predicted labels, wrong ones included, unlike D of images. h is the mean of each "
    "document's h; 2PD/(P+D) is of the means, and never below h. Intervals are 95 % over documents "
    "and hash seeds; below P@5 stands the range of the seeds. Folds choose the dial, the threshold "
    "and in one setting the number of bits and ε, never on the reported documents: by h, or by f "
    "without a hierarchy. Hashed rows are greedy. The settings with home buckets are the paper's "
    "literal mode: 100 independent Gaussian projections, 200 components at most, one bucket of "
    "each table. The selector sees every retrieved point, unless folds choose an ε that limits "
    "them. Claims are judged by the two settings with home buckets. On sets this small, folds "
    "choose few bits, which score half of the labels or more, because h does not count time. "
    "Embedding searches label factors; votes are those of ten training documents. Scored is the "
    "share of all labels, or documents, whose score was computed. Times are medians of whole "
    "predictions, one at a time on one thread, in processor time. Other measurements run beside "
    "them on other cores, so a ratio of times near 1 says little."
)
_SAME: Final = (
    "* As many components as dimensions: the hyperplanes are drawn from the same distribution as "
    "LSH-Div's. So where the paper's LSH-SDiv finds other labels than its LSH-Div, it is likely to "
    "have hashed documents and let their labels vote."
)
_HEADS: Final = ("P", "R", "f", "D", "h", "2PD/(P+D)")
_CURVES: Final = ((AT_FIVE, "P@5"), ("drank", "D"), ("h_score", "h"))


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
        f"the {len(PAPER_ROWS)} rows of Table 2, {len(names)} do not: {', '.join(names)}. So the "
        "printed h is not of the same documents as P and D. It may be of those documents alone for "
        "which a label was right. P, R, D and time can be compared, and h cannot."
    )


def _printed() -> Table:
    records = [
        {"the paper's": name, **dict(zip((*_HEADS, "time"), row.texts(), strict=True))}
        for name, row in PAPER_ROWS.items()
    ]
    return records_table("Table 2 as printed, and the most that h could be.", records)


def _data(report: Report, data: dict[str, str]) -> Section:
    rows = [row for row in report.rows if row.data == data["name"]]
    heads = ("P@5", *_HEADS, "dial", "scored", "time")
    columns = [Column("mode, setting", numeric=False), *map(Column, heads)]
    facts = "; ".join(f"{name}: {value}" for name, value in data.items() if name != "name")
    methods = dict.fromkeys(row.case.method for row in rows)
    bodies = [Body(list(_lines(rows, method)), title=method) for method in methods]
    table = Table(f"Table 2 on {data['name']}.", columns, bodies)
    points = [item for item in report.epsilon if item.data == data["name"]]
    return Section(data["name"], [f"{facts}.", table, _by_epsilon(points), _epsilons(points)])


def _lines(rows: Sequence[LabelRow], method: str) -> Iterator[Line]:
    """Yield a line for each row of a method, then the paper's line."""
    for row in rows:
        if row.case.method != method:
            continue
        best = row.answers[0]
        threshold = "" if best.threshold is None else f"score {best.threshold:g}"
        yield [
            f"{MODES[row.case.mode]}, {row.case.setting}" + ("*" if row.same_as_lsh_div else ""),
            _at_five(row),
            *(_figure(row, name) for name in FIGURES),
            _of_means(row),
            Cell(f"{best.diversity:g}" if best.diversity else "", detail=threshold),
            Cell(f"{row.scored:.1%}", detail=_searched(row)),
            charts.time_words(row.microseconds),
        ]
    if method in PAPER_ROWS:
        *figures, time = PAPER_ROWS[method].texts()
        yield ["the paper's own", "", *figures, "", "", time]


def _searched(row: LabelRow) -> str:
    """Return the search of the best setting, with its shape and limit where folds chose them."""
    best = row.answers[0]
    words = f"{best.search} {best.shape}".strip()
    is_limited = row.case.setting == HOME_BY_FOLDS and best.hash_limit > 0
    return f"{words}, limit {best.hash_limit:,}" if is_limited else words


def _at_five(row: LabelRow) -> Cell:
    cell = _figure(row, AT_FIVE)
    spread = row.spread(AT_FIVE)
    if spread is None or len(row.answers) == 1:
        return cell
    low, high = (f"{end:.3f}".removeprefix("0") for end in spread)
    return Cell(cell.text, f"{cell.detail}; {len(row.answers)} seeds {low}–{high}")  # noqa: RUF001  # a range


def _of_means(row: LabelRow) -> str:
    precision, drank = row.figure("precision"), row.figure("drank")
    if precision is None or drank is None:
        return ""
    total = precision.value + drank.value
    return f"{2 * precision.value * drank.value / total if total else 0:.3f}"


def _figure(row: LabelRow, name: str) -> Cell:
    interval = row.figure(name)
    return Cell("") if interval is None else Cell(f"{interval.value:.3f}", interval_text(interval))


def _by_epsilon(points: Sequence[AtEpsilon]) -> Figures:
    """Draw P@5, D and h against epsilon, with a horizontal line for the score over all labels."""
    cases = dict.fromkeys((item.method, item.mode) for item in points)
    epsilons = sorted({item.epsilon for item in points if item.epsilon is not None})
    figures = []
    for name, letter in _CURVES:
        values = {(p.method, p.mode, p.epsilon): float(p.values[name].mean()) for p in points}
        if np.isnan(list(values.values())).all():
            continue
        curves = []
        for look, (method, mode) in enumerate(cases):
            level = values.get((method, mode, None))
            line = [(e, values.get((method, mode, e), level or 0.0)) for e in epsilons]
            title = method if level is not None else f"{method}, {MODES[mode]}"
            curves.append(Curve(title, line, look))
        title = f"{letter} against ε on {points[0].data}"
        figures.append(Figure(charts.lines(curves, "ε", letter, title, x_scale="log2"), title))
    return Figures(figures)


def _epsilons(points: Sequence[AtEpsilon]) -> Table:
    """Return the numbers of the figures against epsilon, with intervals."""
    columns = [Column("method", numeric=False), Column("ε"), Column("hash limit")]
    lines: list[list[Cell | str]] = []
    for point in points:
        name = point.method if point.epsilon is None else f"{point.method}, {MODES[point.mode]}"
        epsilon = "" if point.epsilon is None else f"{point.epsilon:g}"
        cells = [_cell(point.values[name]) for name, _ in _CURVES]
        lines.append([name, epsilon, f"{point.hash_limit:,}" if epsilon else "", *cells])
    heads = [Column(letter) for _, letter in _CURVES]
    return Table("The numbers of these figures.", [*columns, *heads], [Body(lines)])


def _cell(values: Values) -> Cell:
    if np.isnan(values).all():
        return Cell("")
    interval = mean_over_draws(values).size
    return Cell(f"{interval.value:.3f}", interval_text(interval))


def _times(times: Sequence[LabelTime]) -> Table:
    records = [
        {"method": item.method, "mode": MODES[item.mode], "setting": item.setting}
        | {"to choose from": item.candidates, "documents": item.documents}
        | {"time": charts.time_words(item.median), f"P@{TOP_K}": item.precision}
        | {"x every label": times[0].median / item.median}
        | {"x ends early": times[1].median / item.median, "scored": f"{item.scored:.2%}"}
        for item in times
    ]
    return records_table("Median times on a synthetic set, and the share scored.", records)
