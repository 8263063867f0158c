"""Table 1 as a page: our figures beside the paper's, and the claims in words."""

from collections.abc import Iterator, Sequence
from typing import Final

from divgrpc_client.reports.charts import time_words
from divgrpc_client.reports.page import Body, Cell, Column, Note, Page, Section, Table
from divgrpc_client.reports.page import Row as Line
from divgrpc_lab.data.topics import DIGITS
from divgrpc_lab.experiment import records_table
from divgrpc_lab.table1.beside import Coded, Growth, Spread
from divgrpc_lab.table1.gain import EXHAUSTIVE, Kept
from divgrpc_lab.table1.printed import FAMILIES, KS, METHODS, Printed, printed
from divgrpc_lab.table1.report import Report
from divgrpc_lab.table1.rows import FIGURES, Row
from divgrpc_lab.table1.times import Timed
from divgrpc_lab.verdicts import verdict_table

_LEAD: Final = (
    "Rows and columns are those of Table 1 of Diverse Yet Efficient Retrieval using Hash Functions "
    "(Rao, Jain, Jawahar, 2015), measured on other data and by another engine; the paper's own "
    "numbers, on ImageNet, stand below each method. Compare directions, not values."
)
_CLAIMS: Final = (
    "The project's own two targets, then what the paper claims, and what this run says of each."
)
_READING: Final = (
    "P, SR and D are means over queries, h the mean of each query's h, with its 95 % interval and, "
    "after ±, half the range of the means of several hash seeds. Queries of one category are "
    "learned from halves of one pool and are alike, so intervals are of draws of whole categories; "
    "where those are few they are too narrow. The dial is chosen among three by five folds, never "
    "on the reported queries, but on others of the same categories, since folds are dealt within "
    "them. The figures are pooled over the folds, each at its own dial; the dial beside them is "
    "the one best for all queries with the first seed, and * marks one that was fixed. Times are "
    "medians over queries of what a worker took, one query at a time on one thread, and of several "
    "hash seeds the median of those. Short are lists of fewer "
    "than k results; what is missing counts as wrong. Greedy over all points is the server's own; "
    "the project's benchmark `gain` has faster ones."
)


def page(report: Report) -> Page:
    """Return the page of a run."""
    warning = [
        Note(
            f"Measured on {DIGITS}: it says nothing about the paper's claims. Up to 200 dimensions "
            "LSH-SDiv keeps all components and is LSH-Div."
        )
        for _ in range(any(DIGITS in data["data"] for data in report.data))
    ]
    return Page(
        title="The paper's Table 1 on real data",
        lead=_LEAD,
        facts=report.facts.listed(),
        sections=[
            Section("Claims", [*warning, verdict_table(report.verdicts, _CLAIMS)]),
            *(_data(report, data) for data in report.data),
            Section("What hashing keeps of the gain", [_gains(report.kept)]),
            Section("Bits and tables", [_coded(report.coded)]),
            Section("Over the ball", [_spreads(report.spreads)]),
            Section("Growth", [_growths(report.growths)]),
            Section("Times in the paper's size", [_times(report.times)]),
        ],
    )


def _data(report: Report, data: dict[str, str]) -> Section:
    rows = [row for row in report.rows if row.data == data["name"]]
    columns = [Column("method, hash, points", numeric=False)]
    for k in KS:
        columns += [Column(name, f"k = {k}") for name in ("P", "SR", "D", "h", "time")]
    methods = dict.fromkeys(row.method for row in rows)
    bodies = [Body(list(_lines(rows, method)), title=method) for method in methods]
    facts = "; ".join(f"{name}: {value}" for name, value in data.items() if name != "name")
    table = Table(f"Table 1 on {data['name']}.", columns, bodies)
    return Section(data["name"], [f"{facts}.", _READING, table])


def _lines(rows: Sequence[Row], method: str) -> Iterator[Line]:
    """Yield a line for each row of a method, its figures at every k, then the paper's."""
    some = [row for row in rows if row.method == method]
    best = {k: max((r.h.value for r in some if r.k == k and not r.fixed), default=0.0) for k in KS}
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in some:
        groups.setdefault((row.family, row.stage, row.few, row.fixed), []).append(row)
    for group in groups.values():
        first = group[0]
        queries = f", {first.queries} queries" if first.few else ""
        line: list[Cell | str] = [Cell(f"{first.family}, {first.stage}{queries}")]
        for row in group:
            line += _figures(row, best=row.h.value >= best[row.k] and not row.fixed)
        yield line
    if method in METHODS:
        paper = printed()
        for family in FAMILIES:
            line = [f"the paper's {family}"]
            for k in KS:
                line += _printed(paper[method, family, k])
            yield line


def _figures(row: Row, *, best: bool) -> list[Cell | str]:
    p, sr, d = (f"{row.figures[name].value:.2f}" for name in FIGURES[:-1])
    # Without leading zeros: three such columns must fit a page.
    interval = "–".join(f"{end:.3f}".removeprefix("0") for end in row.h[1:])  # noqa: RUF001  # a range
    if len(row.h_seeds) > 1:
        interval += f" ±{(max(row.h_seeds) - min(row.h_seeds)) / 2:.3f}".replace("±0", "±")
    dial = f"dial {row.dial:g}" + ("*" if row.fixed else "") if row.dial else ""
    share = row.short / (row.queries * len(row.h_seeds))
    precision = Cell(p, detail=f"{share:.0%} short" if row.short else "")
    h = Cell(f"{row.h.value:.3f}", detail=interval, best=best)
    return [precision, sr, d, h, Cell(time_words(row.microseconds), detail=dial)]


def _printed(cell: Printed) -> list[Cell | str]:
    figures = (cell.precision, cell.subtopic_recall, cell.diversity, cell.h)
    return [*(f"{value:.2f}" for value in figures), time_words(cell.seconds * 1e6)]


def _gains(kept: Sequence[Kept]) -> Table:
    return records_table(
        f"Gain share: 1 is the best of {', '.join(EXHAUSTIVE)} over all points, picked by the h "
        "reported here, 0 nearest neighbours, with its interval over categories; times as fast as "
        "that best one, as greedy over all points, as one exact pass with the same selector.",
        [
            {"set": item.row.data, "k": item.row.k, "row": item.row.name, "h": item.row.h.value}
            | {"nearest": item.nearest, "best": item.best.h.value, "best method": item.best.method}
            | {"gain share": "no gain" if item.share is None else item.share}
            | {"x best": item.than_best, "x greedy": item.than_greedy, "x exact": item.than_exact}
            for item in kept
        ],
    )


def _coded(coded: Sequence[Coded]) -> Table:
    return records_table(
        "Greedy over tables at k = 10, dial by folds; a list may be short of k, over all seeds.",
        [
            {"set": item.row.data, "hash": item.row.family, "tables": item.n_tables}
            | {"bits of a key": item.n_bits, "queries": item.row.queries, "h": item.row.h}
            | {"short of k": item.row.short}
            for item in coded
        ],
    )


def _spreads(spreads: Sequence[Spread]) -> Table:
    return records_table(
        "Retrieved points in the exact ball around a query, by tenths of the ball, the nearest "
        "first, in % of the draws; uniform is 10 in each.",
        [
            {"set": item.data, "sampling": item.sampling, "points of the ball": item.ball}
            | {"seeds": item.seeds, "draws": sum(item.counts)}
            | {str(n): 100 * c / max(1, sum(item.counts)) for n, c in enumerate(item.counts, 1)}
            for item in spreads
        ],
    )


def _growths(growths: Sequence[Growth]) -> Table:
    return records_table(
        "Points hashed without a limit, probes tuned for one recall; the exponent's interval is "
        "over queries alone, with one hash seed.",
        [
            {"set": item.data, "exponent": item.exponent, "points": size, "points hashed": hashed}
            | {"recall": recall, "hash_limit by epsilon = 1": limit}
            for item in growths
            for size, hashed, recall, limit in zip(
                item.sizes, item.hashed, item.recalls, item.limits, strict=True
            )
        ],
    )


def _times(times: Sequence[Timed]) -> Table:
    """Show a line for each method with both kinds of query, and the paper's times."""
    paper = printed()
    lines: dict[tuple[str, str], dict[str, object]] = {}
    ordered = sorted(times, key=lambda time: (METHODS.index(time.method), time.kind != "sparse"))
    for time in ordered:
        name = f"{time.method}, {time.family}, {time.stage}"
        line = lines.setdefault((time.method, time.family), {"method, hash, points": name})
        line[f"{time.kind}, k = {time.k}"] = time_words(time.microseconds)
    for key, line in lines.items():
        line |= {f"the paper, k = {k}": time_words(paper[*key, k].seconds * 1e6) for k in KS}
    points = times[0].points if times else "not measured"
    caption = f"Median times on made-up visual words, {points}; few queries, one thread."
    return records_table(caption, list(lines.values()))
