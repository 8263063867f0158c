"""Makes the page of Table 1 with our figures, the paper's figures and the verdicts on claims."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from divgrpc_client.reports.charts import time_words
from divgrpc_client.reports.page import Body, Cell, Column, Note, Page, Section, Table
from divgrpc_client.reports.page import Row as Line
from divgrpc_lab.data.topics import DIGITS
from divgrpc_lab.experiment import NOT_THE_PAPERS_DATA, interval_text, records_table
from divgrpc_lab.table1.bench import Growth, Spread, Timed
from divgrpc_lab.table1.claims import EXHAUSTIVE, Gain, Raised
from divgrpc_lab.table1.home import Coded
from divgrpc_lab.table1.methods import FIGURES, Case, Row
from divgrpc_lab.table1.paper import FAMILIES, KS, METHODS, Printed, printed
from divgrpc_lab.verdicts import LEVEL, Verdict, verdict_table

_LEAD: Final = (
    f"{NOT_THE_PAPERS_DATA} Rows and columns are those of Table 1 of Diverse Yet Efficient "
    "Retrieval using Hash Functions (Rao, Jain, Jawahar, 2015). The paper's own numbers stand "
    "below each method."
)
_CLAIMS: Final = (
    "The project's own two targets, then the paper's claims. An effect is a mean over queries, k "
    "and hash families. Its interval and its t test are by categories and hash seeds, or by hash "
    "seeds alone for the claims about the ball. Holm's method corrects p for all lines. A "
    f"corrected p below {LEVEL:g} decides."
)
_READING: Final = (
    "P, SR and D are means over queries. h is the mean of each query's h, with its 95 % "
    "interval by categories and, after ±, half the range of the means of several hash seeds. "
    "Queries of one category are alike, since they are learned from halves of one pool, so a "
    "category lies wholly in one fold. Folds choose the dial (the diversity) among three, and for "
    "home buckets by folds also bits, tables and epsilon, by queries of other categories. The dial "
    "shown is the best for all queries with the first seed; * marks a fixed dial. Times are a "
    "worker's times of one query at a time on one thread: the median over queries, then over hash "
    "seeds. Short lists have fewer than k results; missing results count as wrong. Greedy "
    "over all points is the server's own; the benchmark `quality` has a faster one."
)


_HOME: Final = (
    "What home buckets, the paper's own tables, change: h with them minus h of the same method and "
    "queries without hashing. Intervals are by categories and not corrected for the number of "
    "lines."
)
_GAINS: Final = (
    "Gain share: 0 is the h of nearest neighbours, and 1 the h of the best of "
    f"{', '.join(EXHAUSTIVE)} over all points, as folds choose it. Its interval is by categories. "
    "The last columns say how many times as fast the row is as that best method, as greedy over "
    "all points, and as greedy after one exact pass."
)
_SPREADS: Final = (
    "Retrieved points in each tenth of the exact ball around a query, the nearest tenth first, "
    "summed over hash seeds. If points were uniform, each tenth would have as many."
)
_GROWTHS: Final = (
    "Points hashed per query without a limit, for each size of the data, with probes tuned for the "
    "same recall. Limits are the hash_limit at epsilon = 1. One hash seed."
)


class Report(NamedTuple):
    """All measurements of a run: its facts, the facts of each data set, rows and verdicts."""

    facts: dict[str, str]
    data: list[dict[str, str]]
    rows: list[Row]
    home_buckets: list[Raised]
    gain: list[Gain]
    bits_and_tables: list[Coded]
    uniformity: list[Spread]
    growth: list[Growth]
    times: list[Timed]
    claims: list[Verdict]


def page(report: Report) -> Page:
    """Return the page of a run."""
    claims: list[Note | Table] = [verdict_table(report.claims, _CLAIMS)]
    if any(DIGITS in data["data"] for data in report.data):
        text = (
            f"Measured on {DIGITS}: it says nothing about the paper's claims. Up to 200 dimensions "
            "LSH-SDiv keeps all components and is LSH-Div."
        )
        claims.insert(0, Note(text))
    return Page(
        title="The paper's Table 1 on real data",
        lead=_LEAD,
        facts=[f"{name} {value}" for name, value in report.facts.items()],
        sections=[
            Section("Claims", claims),
            *(_data(report, data) for data in report.data),
            Section("The paper's own tables", [records_table(_HOME, report.home_buckets)]),
            Section("The gain that hashing keeps", [_gains(report.gain)]),
            Section("Bits and tables", [_codes(report.bits_and_tables)]),
            Section("Over the ball", [_spreads(report.uniformity)]),
            Section("Growth", [_growths(report.growth)]),
            Section("Times in the paper's size", [_times(report.times)]),
        ],
    )


def _data(report: Report, data: dict[str, str]) -> Section:
    rows = [row for row in report.rows if row.data == data["name"]]
    columns = [Column("method, hash, points", numeric=False)]
    for k in KS:
        columns += [Column(name, f"k = {k}") for name in ("P", "SR", "D", "h", "time")]
    methods = dict.fromkeys(row.case.method for row in rows)
    bodies = [Body(list(_lines(rows, method)), title=method) for method in methods]
    facts = "; ".join(f"{name}: {value}" for name, value in data.items() if name != "name")
    table = Table(f"Table 1 on {data['name']}.", columns, bodies)
    return Section(data["name"], [f"{facts}.", _READING, table])


def _lines(rows: Sequence[Row], method: str) -> Iterator[Line]:
    """Yield a line for each row of a method, with figures at every k, then the paper's lines."""
    group = [row for row in rows if row.case.method == method]
    lines: dict[tuple[str, Case], list[Cell | str]] = {}
    for row in group:
        rivals = (r.h for r in group if r.cell == row.cell and r.case.dial is None)
        name = f"{row.family}, {row.case.stage}"
        line = lines.setdefault((row.family, row.case), [name])
        line += _figures(row, best=row.case.dial is None and row.h >= max(rivals))
    yield from lines.values()
    if method in METHODS:
        paper = printed()
        for family in FAMILIES:
            cells = (_printed(paper[method, family, k]) for k in KS)
            yield [f"the paper's {family}", *(text for cell in cells for text in cell)]


def _figures(row: Row, *, best: bool) -> list[Cell | str]:
    p, sr, d = (f"{row.figures[name].value:.2f}" for name in FIGURES[:-1])
    interval = interval_text(row.figures["h_score"])
    if len(row.h_seeds) > 1:
        interval += f" ±{(max(row.h_seeds) - min(row.h_seeds)) / 2:.3f}".replace("±0", "±")
    dial = row.parameters.diversity
    dial_text = f"dial {dial:g}" + ("*" if row.case.dial else "") if dial else ""
    if row.code:
        limit = row.parameters.hash_limit
        limit_text = f"{limit:,} points" if limit else ""
        dial_text = ", ".join(filter(None, (dial_text, row.code, limit_text)))
    share = row.short / (len(row.categories) * len(row.h_seeds))
    precision = Cell(p, detail=f"{share:.0%} short" if row.short else "")
    h = Cell(f"{row.h:.3f}", detail=interval, best=best)
    return [precision, sr, d, h, Cell(time_words(row.microseconds), detail=dial_text)]


def _printed(cell: Printed) -> list[str]:
    figures = (cell.precision, cell.subtopic_recall, cell.diversity, cell.h)
    return [*(f"{value:.2f}" for value in figures), time_words(cell.seconds * 1e6)]


def _gains(gains: Sequence[Gain]) -> Table:
    records = [
        {"data": g.data, "k": g.k, "hash, points": f"{g.family}, {g.stage}", "h": g.h}
        | {"nearest": g.nearest_h, "best": f"{g.best_h:.3f} ({g.best_method})"}
        | {"gain share": g.share or "no gain", "x best": g.times_best}
        | {"x greedy": g.times_greedy, "x exact pass": g.times_exact_pass}
        for g in gains
    ]
    return records_table(_GAINS, records)


def _spreads(spreads: Sequence[Spread]) -> Table:
    records = [
        {"data": s.data, "points": s.retrieval, "ball": s.ball, "seeds": len(s.counts)}
        | {"counts": tuple(s.counts.sum(axis=0).tolist())}
        for s in spreads
    ]
    return records_table(_SPREADS, records)


def _growths(growths: Sequence[Growth]) -> Table:
    omissions = ("slopes", "groups")
    records = [
        {name: item for name, item in growth._asdict().items() if name not in omissions}
        for growth in growths
    ]
    return records_table(_GROWTHS, records)


def _codes(codes: Sequence[Coded]) -> Table:
    return records_table(
        "Greedy over home buckets at k = 10, dial and epsilon by folds; a list may be short of k.",
        [
            {"set": row.data, "hash": row.family, "tables": n_tables, "bits of a key": n_bits}
            | {"queries": len(row.categories), "h": row.figures["h_score"], "short": row.short}
            for n_bits, n_tables, row in codes
        ],
    )


def _times(times: Sequence[Timed]) -> Table:
    """Return a table of the times of each method with both kinds of queries and in the paper."""
    paper = printed()
    lines: dict[tuple[str, str], dict[str, object]] = {}
    for time in sorted(times, key=lambda time: (METHODS.index(time.method), time.kind != "sparse")):
        name = f"{time.method}, {time.family}, {time.stage}"
        line = lines.setdefault((time.method, time.family), {"method, hash, points": name})
        line[f"{time.kind}, k = {time.k}"] = time_words(time.microseconds)
    for key, line in lines.items():
        line |= {f"the paper, k = {k}": time_words(paper[*key, k].seconds * 1e6) for k in KS}
    points = times[0].points if times else "not measured"
    caption = f"Median times on synthetic visual words, {points}; few queries, one thread."
    return records_table(caption, list(lines.values()))
