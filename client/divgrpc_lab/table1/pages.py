"""Table 1 as a page: our figures beside the paper's, and the claims in words."""

from collections.abc import Iterator, Sequence
from typing import Final

from divgrpc_client.reports.page import Body, Cell, Column, Note, Page, Section, Table
from divgrpc_client.reports.page import Row as Line
from divgrpc_lab.data.topics import DIGITS
from divgrpc_lab.table1 import claims
from divgrpc_lab.table1.beside import BINS, Growth, Spread
from divgrpc_lab.table1.claims import Verdict
from divgrpc_lab.table1.gain import EXHAUSTIVE, Kept
from divgrpc_lab.table1.printed import FAMILIES, KS, METHODS, Printed, printed
from divgrpc_lab.table1.report import Report
from divgrpc_lab.table1.rows import FIGURES, Row
from divgrpc_lab.table1.times import Timed

_LEAD: Final = (
    "Rows and columns are those of Table 1 of Diverse Yet Efficient Retrieval using Hash Functions "
    "(Rao, Jain, Jawahar, 2015), measured on other data and by another engine; the paper's own "
    "numbers, on ImageNet, stand below each method. Compare directions, not values."
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
    facts = [f"{name} {value}" for name, value in report.facts.items()]
    digits = [
        Note(
            f"Measured on {DIGITS}: it says nothing about the paper's claims. Up to 200 dimensions "
            "LSH-SDiv keeps all components and is LSH-Div."
        )
    ]
    warned = any(DIGITS in data["data"] for data in report.data)
    return Page(
        title="The paper's Table 1 on real data",
        lead=_LEAD,
        facts=facts,
        sections=[
            Section("Claims", [*(digits if warned else []), _verdicts(report.verdicts)]),
            *(_data(report, data) for data in report.data),
            Section("What hashing keeps of the gain", [_gains(report.kept)]),
            Section("Bits and tables", [_coded(report)]),
            Section("Over the ball", [_spreads(report.spreads)]),
            Section("Growth", [_growths(report.growths)]),
            Section("Times in the paper's size", [_times(report.times)]),
        ],
    )


def _verdicts(verdicts: Sequence[Verdict]) -> Table:
    columns = [Column("claim", numeric=False), Column("verdict", numeric=False, whole=True)]
    lines = [(v.claim, v.word, v.sentence) for v in verdicts]
    return Table(
        "Our own two targets, then what the paper claims, and what this run says of each.",
        [*columns, Column("by these numbers", numeric=False)],
        [Body(lines)],
    )


def _data(report: Report, data: dict[str, str]) -> Section:
    rows = [row for row in report.rows if row.data == data["name"]]
    columns = [Column("method, hash, points", numeric=False)]
    for k in KS:
        columns += [Column(name, f"k = {k}") for name in ("P", "SR", "D", "h", "time")]
    methods = dict.fromkeys(row.method for row in rows)
    bodies = [Body(list(_lines(rows, method)), title=method) for method in methods]
    told = "; ".join(f"{name}: {value}" for name, value in data.items() if name != "name")
    table = Table(f"Table 1 on {data['name']}.", columns, bodies)
    return Section(data["name"], [f"{told}.", _READING, table])


def _lines(rows: Sequence[Row], method: str) -> Iterator[Line]:
    """Yield a line for each row of a method, its figures at every k, then the paper's."""
    own = [row for row in rows if row.method == method]
    best = {k: max((r.h.value for r in own if r.k == k and not r.fixed), default=0.0) for k in KS}
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in own:
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
    return [precision, sr, d, h, Cell(_time(row.microseconds), detail=dial)]


def _printed(cell: Printed) -> list[Cell | str]:
    figures = (cell.precision, cell.subtopic_recall, cell.diversity, cell.h)
    return [*(f"{value:.2f}" for value in figures), _time(cell.seconds * 1e6)]


def _time(microseconds: float) -> str:
    if microseconds < 1e3:
        return f"{microseconds:.0f} µs"
    return f"{microseconds / 1e3:.2g} ms" if microseconds < 1e5 else f"{microseconds / 1e6:.3g} s"


def _gains(kept: Sequence[Kept]) -> Table:
    columns = [Column("set, k", numeric=False), Column("row", numeric=False)]
    columns += [Column(name) for name in ("h", "h nearest", "h best exhaustive", "share", "95 %")]
    columns += [
        Column(f"x {name}") for name in ("that one", "greedy over all points", "one exact pass")
    ]
    lines: list[Line] = []
    for each in kept:
        row, share = each.row, each.share
        lines.append(
            (
                f"{row.data}, {row.k}",
                claims.named(row),
                f"{row.h.value:.3f}",
                f"{each.nearest:.3f}",
                Cell(f"{each.best.h.value:.3f}", detail=each.best.method),
                "no gain" if share is None else f"{share.value:.2f}",
                "" if share is None else f"{share.low:.2f} to {share.high:.2f}",
                f"{each.than_best:.1f}",
                f"{each.than_greedy:.1f}",
                f"{each.than_exact:.1f}",
            )
        )
    caption = (
        f"Gain share: 1 is the best of {', '.join(EXHAUSTIVE)} over all points, picked by the h "
        "reported here, 0 nearest neighbours, with its interval over categories; times as fast "
        "as that best one, as greedy over all points, and as one exact pass with the same selector."
    )
    return Table(caption, columns, [Body(lines)])


def _coded(report: Report) -> Table:
    heads = ("tables", "bits of a key", "queries", "h", "95 %", "short of k")
    lines: list[Line] = [
        (
            f"{each.row.data}, {each.row.family}",
            str(each.n_tables),
            str(each.n_bits),
            str(each.row.queries),
            f"{each.row.h.value:.3f}",
            f"{each.row.h.low:.3f} to {each.row.h.high:.3f}",
            f"{each.row.short:,}",
        )
        for each in report.coded
    ]
    caption = (
        "Greedy over tables at k = 10, dial by folds; a list may be short of k, over all seeds."
    )
    columns = [Column("set, hash", numeric=False), *(Column(head) for head in heads)]
    return Table(caption, columns, [Body(lines)])


def _spreads(spreads: Sequence[Spread]) -> Table:
    """Draw a line for each data set and sampling: how many draws lie in each tenth."""
    columns = [Column("set, sampling", numeric=False), Column("points of the ball")]
    columns += [Column("seeds"), Column("draws")]
    columns += [Column(str(tenth + 1), "% of the draws in each tenth") for tenth in range(BINS)]
    lines: list[Line] = []
    for each in spreads:
        draws = max(1, sum(each.counts))
        shares = (f"{100 * count / draws:.0f}" for count in each.counts)
        told = (f"{each.ball:,}", str(each.seeds), f"{sum(each.counts):,}")
        lines.append((f"{each.data}, {each.sampling}", *told, *shares))
    caption = (
        "Retrieved points in the exact ball around a query, by tenths of the ball, the nearest "
        "first; uniform is 10 in each."
    )
    return Table(caption, columns, [Body(lines)])


def _growths(growths: Sequence[Growth]) -> Table:
    """Draw a line for each data set and size."""
    heads = ("points", "points hashed", "share", "recall", "hash_limit by epsilon = 1")
    columns = [Column("set", numeric=False), *map(Column, heads)]
    bodies = []
    for each in growths:
        x = each.exponent
        lines: list[Line] = [
            (
                each.data,
                f"{size:,}",
                f"{hashed:,.0f}",
                f"{hashed / size:.1%}",
                f"{recall:.2f}",
                limit,
            )
            for size, hashed, recall, limit in zip(
                each.sizes, each.hashed, each.recalls, map(str, each.limits), strict=True
            )
        ]
        bodies.append(Body(lines, f"n^{x.value:.2f} ({x.low:.2f} to {x.high:.2f})"))
    caption = (
        "Points hashed without a limit, probes tuned for one recall; the exponent's interval is "
        "over queries alone, with one hash seed."
    )
    return Table(caption, columns, bodies)


def _times(times: Sequence[Timed]) -> Table:
    """Draw a line for each method, with each kind of query side by side, and the paper's times."""
    columns = [Column("method, hash, points", numeric=False)]
    columns += [Column(f"k = {k}", kind) for kind in ("sparse", "dense", "the paper") for k in KS]
    paper = printed()
    lines: dict[tuple[str, str], list[Cell | str]] = {}
    for each in sorted(times, key=lambda each: (METHODS.index(each.method), each.kind != "sparse")):
        key = (each.method, each.family)
        line = lines.setdefault(key, [f"{each.method}, {each.family}, {each.stage}"])
        line.append(_time(each.microseconds))
    for key, line in lines.items():
        line += [_time(paper[*key, k].seconds * 1e6) for k in KS]
    points = times[0].points if times else "not measured"
    caption = f"Median times on made-up visual words, {points}; few queries, one thread."
    return Table(caption, columns, [Body(list(lines.values()))])
