"""Makes the records of Table 1 that the site shows."""

from collections.abc import Iterator, Sequence
from itertools import product
from math import isnan
from typing import Final

from divgrpc.types import Interval
from divgrpc_lab.experiment import interval_text
from divgrpc_lab.records import Record, number, signed
from divgrpc_lab.table1.bench import Growth, Spread, Timed
from divgrpc_lab.table1.claims import Gain, Raised
from divgrpc_lab.table1.methods import (
    ALL,
    FAMILIES,
    HASH_BY_FOLDS,
    HASH_SEARCH,
    ONE_EXACT,
    TUNED_BUCKETS,
    Row,
)
from divgrpc_lab.table1.page import Report
from divgrpc_lab.table1.paper import FAMILIES as PAPERS
from divgrpc_lab.table1.paper import KS, METHODS, printed
from divgrpc_lab.verdicts import Effect, Verdict, p_text

_HASHING: Final = tuple(
    (family, stage) for stage in (HASH_SEARCH, TUNED_BUCKETS) for family in FAMILIES
)


def records(report: Report) -> Iterator[Record]:
    """Yield the records of a run."""
    yield _claims(report.claims)
    yield _h(report.rows)
    yield _home(report.home_buckets)
    yield _gain(report.gain)
    yield _uniformity(report.uniformity)
    yield _growth(report.growth)
    yield _times(report.times)


def _claims(verdicts: Sequence[Verdict]) -> Record:
    """Return a record with a row for each claim, and a column for each place of an effect."""
    places = list(dict.fromkeys(e.place for verdict in verdicts for e in verdict.effects))
    rows = []
    for verdict in verdicts:
        effects = {effect.place: _effect_text(effect) for effect in verdict.effects}
        rows.append([verdict.claim, verdict.word, *(effects.get(place, "") for place in places)])
    title = "Table 1: claims, effects with intervals by categories and hash seeds, and corrected p"
    return Record("table1-claims", title, ["claim", "verdict", *places], rows)


def _effect_text(effect: Effect) -> str:
    if isnan(effect.size.value):
        return "no value"
    form = "{:.3g}".format if effect.is_ratio else signed
    text = ("x " if effect.is_ratio else "") + form(effect.size.value)
    if effect.groups == 1:
        return f"{text}, one group"
    low, high = map(form, effect.size[1:])
    return f"{text} ({low} to {high}), p {p_text(effect.corrected_p)}"


def _h(rows: Sequence[Row]) -> Record:
    """Return h of every method on each data set, and then the h that the paper printed."""
    lines = []
    methods = dict.fromkeys((*METHODS, *(row.case.method for row in rows)))
    for data, method in product(dict.fromkeys(row.data for row in rows), methods):
        plain = ("NH", ONE_EXACT if method == "Rerank" else ALL)
        cells = {
            place: [number(r.h) for r in rows if _place(r) == (data, method, *place)]
            for place in (plain, *_HASHING)
        }
        lines.append([f"{data}, {method}", *map(" ".join, cells.values())])
    paper = printed()
    for method in METHODS:
        heights = [[number(paper[method, family, k].h, 2) for k in KS] for family in PAPERS]
        lines.append([f"the paper, {method}", *map(" ".join, heights), "", ""])
    heads = [family if stage == HASH_SEARCH else f"{family}, {stage}" for family, stage in _HASHING]
    columns = ["set, method", ALL, *heads]
    return Record("table1-h", "Table 1: h at k = 10, 20 and 30", columns, lines)


def _place(row: Row) -> tuple[str, str, str, str]:
    return row.data, row.case.method, row.family, row.case.stage if row.case.dial is None else ""


def _home(items: Sequence[Raised]) -> Record:
    """Return h with home buckets and how they change h, for each method, family and stage."""
    cells: dict[str, dict[str, list[str]]] = {}
    for item in items:
        line = cells.setdefault(f"{item.method}, {item.hashing}", {})
        text = f"{number(item.h)} ({signed(item.difference.value)})"
        line.setdefault(item.data, []).append(text)
    sets = list(dict.fromkeys(item.data for item in items))
    title = "Table 1: h with home buckets (minus h without hashing), k = 10, 20 and 30"
    lines = [
        [name, *(" ".join(line.get(data, ())) for data in sets)] for name, line in cells.items()
    ]
    return Record("table1-home", title, ["method, hash", *sets], lines)


def _gain(gains: Sequence[Gain]) -> Record:
    """Return the gain shares of greedy on hashed points, where there is a gain."""
    by_cell: dict[tuple[str, int], dict[str, Gain]] = {}
    for gain in gains:
        if gain.stage == HASH_BY_FOLDS and gain.share is not None:
            by_cell.setdefault((gain.data, gain.k), {})[gain.family] = gain
    lines = []
    for (data, k), line in by_cell.items():
        shares = [
            f"{number(g.share.value, 2)} ({interval_text(g.share)})" if g.share else ""
            for g in line.values()
        ]
        last = line["LSH-SDiv"]
        lines.append(
            [
                f"{data}, {k}",
                number(last.best_h - last.nearest_h),
                *shares,
                f"{last.times_best:.3g} ({last.best_method})",
                f"{last.times_greedy:.3g}",
                f"{last.times_exact_pass:.2g}",
            ]
        )
    columns = ["set, k", "gain", *FAMILIES, "LSH-SDiv: x the best exhaustive method"]
    columns += ["x greedy over all points", "x one exact pass"]
    return Record("table1-gain", "Table 1: gain share of greedy on hashed points", columns, lines)


def _uniformity(spreads: Sequence[Spread]) -> Record:
    """Return the share of retrieved points in the nearest and the farthest tenth of the ball."""
    lines = []
    for spread in spreads:
        counts = spread.counts.sum(axis=0)
        shares = [f"{share:.1%}" for share in (counts / max(counts.sum(), 1))[[0, -1]]]
        lines.append(
            [spread.data, spread.retrieval, f"{counts.sum():,}", str(len(spread.counts)), *shares]
        )
    columns = ["set", "points", "number", "seeds", "nearest tenth", "farthest tenth"]
    return Record(
        "table1-uniformity", "Table 1: retrieved points by their place in the ball", columns, lines
    )


def _growth(growths: Sequence[Growth]) -> Record:
    """Return the growth of the number of hashed points with the size of the data."""
    lines = [
        [
            item.data,
            _exponent_text(item.exponent),
            f"{item.hashed_points[0]:,.0f} to {item.hashed_points[-1]:,.0f}",
            f"{item.sizes[0]:,} to {item.sizes[-1]:,}",
            f"{number(min(item.recalls), 2)} to {number(max(item.recalls), 2)}",
        ]
        for item in growths
    ]
    columns = ["set", "growth", "hashed points", "of points", "recall"]
    return Record("table1-growth", "Table 1: points hashed without a limit", columns, lines)


def _exponent_text(exponent: Interval) -> str:
    """Return the exponent, without an interval if the queries are of one group."""
    interval = "" if isnan(exponent.low) else f" ({interval_text(exponent)})"
    return f"n^{exponent.value:.2f}{interval}"


def _times(times: Sequence[Timed]) -> Record:
    """Return the median times in milliseconds on data of the paper's size, at the least k."""
    times = [time for time in times if time.k == KS[0]]
    heads: dict[str, None] = {}
    cells: dict[str, list[str]] = {method: [] for method in METHODS}
    for time in sorted(
        times, key=lambda time: (time.family != "NH", time.family, time.kind != "sparse")
    ):
        heads[f"{time.family}, {time.kind}".replace("NH", ALL)] = None
        cells[time.method].append(f"{time.microseconds / 1000:.3g}")
    lines = [[method, *line] for method, line in cells.items()]
    title = "Table 1: milliseconds in the paper's size, k = 10"
    return Record("table1-time", title, ["method", *heads], lines)
