"""The page of an evaluation: what settings reach, which to take, what their results look like.

    rows = list(client.evaluate("products", queries, categories))
    write_report(rows, Path("report.html"), index="products")

It needs rows alone, from `client.evaluate` or from `divgrpc.evaluation`. The caller adds date and
machine, so that the same rows give the same bytes.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from divgrpc.types import EvaluateRow
from divgrpc_client.formats.evaluation_tables import (
    HEADS,
    diversity,
    figure,
    limit,
    method,
    setting,
    stage,
)
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
    Part,
    ResultLists,
    Row,
    Section,
    Table,
    write_page,
)

_QUERIES_MIN: Final = 30
_WORDS: Final = (
    "P: share of the results that are relevant. SR: share of the category's sub-topics among them. "
    "D: how evenly the relevant results are spread over sub-topics, 0 to 1. h: harmonic mean of P "
    "and D for each query, then the mean. Times are those of one query at a time on one thread, "
    "measured in the worker, in microseconds (µs)."
)
_TRADE_OFF: Final = (
    "Up is more accurate, to the right is more diverse. Markers grow along a curve with the "
    "diversity asked for. Dotted lines join points of equal harmonic mean h, so charts whose axes "
    "show different ranges can be compared."
)
_LISTS: Final = (
    "Some of the queries, asked again: what each method finds, first to last, at its best "
    "diversity and search. Results known to be irrelevant are boxed."
)
_SETTINGS: Final = (
    "Every setting of the grid, on all queries. The best of them is chosen on the queries it is "
    "reported on, so its figures are a little too high; those of the choices are not."
)
_SETTING_COLUMNS: Final = (
    Column("method", numeric=False),
    Column("diversity"),
    Column("search", numeric=False),
    Column("hash limit"),
    Column("candidates"),
)


def write_report(
    rows: Iterable[EvaluateRow],
    path: Path,
    *,
    index: str = "",
    facts: Sequence[str] = (),
    lists: Sequence[ResultLists] = (),
) -> None:
    """Write the page of an evaluation's rows; makes the folder.

    `index` is its name; `facts` go into the line below the title (date, version, machine); `lists`
    are results to look at, such as `showing.side_by_side` returns.
    """
    write_page(report(list(rows), index=index, facts=facts, lists=lists), path)


def report(
    rows: Sequence[EvaluateRow],
    *,
    index: str = "",
    facts: Sequence[str] = (),
    lists: Sequence[ResultLists] = (),
) -> Page:
    """Return the page that `write_report` writes."""
    settings = [row for row in rows if not row.by_fold]
    choices = [row for row in rows if row.by_fold]
    sections = [Section("What was evaluated", _evaluated(rows, settings))]
    if settings:
        sections += [
            Section("Methods side by side", [_methods(choices or _best_of_each(settings))]),
            Section("Accuracy against diversity", [_TRADE_OFF, *_trade_offs(settings)]),
            Section("h against time", [_h_against_time(settings), _front(settings)]),
        ]
    if choices:
        sections.append(Section("What was chosen", _choices(choices, rows)))
    if lists:
        sections.append(Section("Results side by side", [_LISTS, *lists]))
    if settings:
        sections.append(Section("All settings", [_SETTINGS, _all_settings(settings)]))
    return Page(
        title=f"Diversity and its price: {index}" if index else "Diversity and its price",
        lead=_lead(choices or settings),
        facts=facts,
        sections=sections,
    )


def h(row: EvaluateRow) -> float:
    """Return a row's mean h, -1 where no query has one."""
    value = row.metrics["h_score"].value
    return -1.0 if math.isnan(value) else value


def _ks(rows: Sequence[EvaluateRow]) -> list[int]:
    return sorted({row.parameters.k for row in rows})


def _at_k(rows: Sequence[EvaluateRow], k: int) -> list[EvaluateRow]:
    return [row for row in rows if row.parameters.k == k]


def _best_of_each(rows: Sequence[EvaluateRow]) -> list[EvaluateRow]:
    """Return the setting with the greatest mean h for each method, search and k."""
    best: dict[tuple[str, str, int], EvaluateRow] = {}
    for row in rows:
        kind = (method(row), row.search, row.parameters.k)
        if kind not in best or h(row) > h(best[kind]):
            best[kind] = row
    return list(best.values())


def _lead(rows: Sequence[EvaluateRow]) -> str:
    """Say for each k what the best reaches, and what plain nearest neighbours do."""
    sentences = []
    for k in _ks(rows):
        known = [row for row in _at_k(rows, k) if h(row) >= 0]
        if not known:
            continue
        best = max(known, key=h)
        sentence = f"At k = {k}, {setting(best)}, reaches h {_interval(best)}"
        plain = [row for row in known if row.parameters.selector == "nearest"]
        if plain and best not in plain:
            other = max(plain, key=h)
            sentence += (
                f", plain nearest neighbours {_interval(other)}; the median query takes "
                f"{_time(best)} and {_time(other)} µs"
            )
        sentences.append(f"{sentence}.")
    return " ".join(sentences)


def _evaluated(rows: Sequence[EvaluateRow], settings: Sequence[EvaluateRow]) -> list[Part]:
    if not rows:
        return [Note("There are no rows: nothing was evaluated.")]
    first = rows[0]

    def values(of: Callable[[EvaluateRow], str]) -> str:
        return ", ".join(dict.fromkeys(filter(None, map(of, settings)))) or "none"

    grid = Table(
        f"{first.queries:,} queries of generation {first.generation} under {len(settings):,} "
        "settings",
        [Column("axis", numeric=False), Column("values", numeric=False)],
        [
            Body(
                [
                    ("methods", values(method)),
                    ("diversities", values(diversity)),
                    ("searches and limits", values(stage)),
                    ("k", values(lambda row: str(row.parameters.k))),
                ]
            )
        ],
    )
    return [grid, _WORDS, *(Note(text) for text in _warnings(rows, settings))]


def _warnings(rows: Sequence[EvaluateRow], settings: Sequence[EvaluateRow]) -> Iterable[str]:
    if rows[0].queries < _QUERIES_MIN:
        yield f"Only {rows[0].queries} queries: intervals from so few are too narrow."
    if all(h(row) < 0 for row in rows):
        yield "No query has an h: nothing relevant was found, or it has no sub-topics."
    if len(settings) == len(rows):
        yield "Nothing was chosen by folds, so the best settings are reported on the same queries."
    for outcome, count in (
        ("without a result", sum(row.empty > 0 for row in settings)),
        ("short of k", sum(row.short > 0 for row in settings)),
    ):
        if count:
            yield f"{count} of {len(settings)} settings left queries {outcome}: see the last table."


def _methods(rows: Sequence[EvaluateRow]) -> Table:
    """Lay rows out as the paper's Table 1: methods under each search, columns under each k."""
    ks = _ks(rows)
    columns = [Column("method", numeric=False)]
    columns += [Column(name, f"k = {k}") for k in ks for name in (*HEADS.values(), "µs p50")]
    by_kind = {(method(row), row.search, row.parameters.k): row for row in rows}
    best = {k: _best_texts(_at_k(rows, k)) for k in ks}
    bodies = []
    for search in dict.fromkeys(row.search for row in rows):
        lines: list[Row] = []
        for name in dict.fromkeys(method(row) for row in rows if row.search == search):
            line: list[Cell | str] = [name]
            for k in ks:
                line += _measures(by_kind.get((name, search, k)), best[k])
            lines.append(line)
        bodies.append(Body(lines, f"{search} search"))
    folds = "chosen by folds on other queries" if rows[0].by_fold else "best on these queries"
    caption = (
        f"Each method at the diversity and limits {folds}; in bold the best of each column. Below "
        "h stands its 95 % interval."
    )
    return Table(caption, columns, bodies)


def _measures(row: EvaluateRow | None, best: Sequence[str]) -> list[Cell | str]:
    if row is None:
        return [""] * len(best)
    pairs = zip(_texts(row), best, strict=True)
    cells = [Cell(text, best=text == mark and text != "") for text, mark in pairs]
    at = list(HEADS).index("h_score")
    cells[at] = replace(cells[at], detail=_range(row))
    return list(cells)


def _best_texts(rows: Sequence[EvaluateRow]) -> list[str]:
    """Return the best of each column of `_texts`; values equal in print are all best."""
    *shares, _ = zip(*map(_texts, rows), strict=True)
    fastest = min(rows, key=lambda row: row.microseconds.p50)
    return [*(max(column) for column in shares), _time(fastest)]


def _texts(row: EvaluateRow) -> list[str]:
    return [*(figure(row.metrics[name].value) for name in HEADS), _time(row)]


def _looks(rows: Sequence[EvaluateRow]) -> dict[str, int]:
    """Return a number for each method, the same in all charts."""
    return {name: number for number, name in enumerate(dict.fromkeys(map(method, rows)))}


def _trade_offs(rows: Sequence[EvaluateRow]) -> list[Figures]:
    """Draw P against D for each k, a chart for each search with its limits."""
    looks = _looks(rows)
    drawn = []
    for k in _ks(rows):
        figures = []
        for name in dict.fromkeys(map(stage, _at_k(rows, k))):
            some = [row for row in _at_k(rows, k) if stage(row) == name]
            curves = [_dial_curve(some, kind, look) for kind, look in looks.items()]
            title = f"Accuracy against diversity, k = {k}, {name}"
            shown = charts.trade_off([curve for curve in curves if curve.points], title)
            figures.append(Figure(shown, f"k = {k}, {name}"))
        drawn.append(Figures(figures))
    return drawn


def _dial_curve(rows: Sequence[EvaluateRow], name: str, look: int) -> Curve:
    """Return P against D of one method, in the order of the diversity; its name has the ends."""
    some = [row for row in rows if method(row) == name]
    some.sort(key=lambda row: row.parameters.diversity)
    ends = f" {diversity(some[0])} to {diversity(some[-1])}" if len(some) > 1 else ""
    points = [
        (row.metrics["normalised_entropy"].value, row.metrics["precision"].value) for row in some
    ]
    return Curve(name + ends, points, look)


def _h_against_time(rows: Sequence[EvaluateRow]) -> Figures:
    """Draw for each k every setting's h against its median time, and the Pareto front."""
    looks = _looks(rows)
    figures = []
    for k in _ks(rows):
        some = _at_k(rows, k)
        stages = list(dict.fromkeys(map(stage, some)))
        curves = [
            Curve(
                name,
                [_h_at_time(r) for r in some if (method(r), stage(r)) == (name, s)],
                look,
                n,
            )
            for name, look in looks.items()
            for n, s in enumerate(stages)
        ]
        front = [_h_at_time(row) for row in some if row.on_front]
        title = f"h against time, k = {k}"
        figures.append(Figure(charts.h_against_time(curves, stages, front, title), f"k = {k}"))
    return Figures(figures)


def _h_at_time(row: EvaluateRow) -> tuple[float, float]:
    return row.microseconds.p50, row.metrics["h_score"].value


def _front(rows: Sequence[EvaluateRow]) -> Table:
    """Return the settings on the Pareto front of each k, the fastest first."""
    columns = [*_SETTING_COLUMNS, Column("h"), Column("95 % of h"), Column("µs p50")]
    bodies = []
    for k in _ks(rows):
        front = [row for row in _at_k(rows, k) if row.on_front]
        front.sort(key=lambda row: row.microseconds.p50)
        lines = [
            (*_setting(row), figure(row.metrics["h_score"].value), _range(row), _time(row))
            for row in front
        ]
        bodies.append(Body(lines, f"k = {k}"))
    return Table("On the Pareto front: no other setting has more h in less time", columns, bodies)


def _choices(choices: Sequence[EvaluateRow], rows: Sequence[EvaluateRow]) -> list[Part]:
    settings = {row.number: row for row in rows}
    shown = ("precision", "subtopic_recall", "normalised_entropy")
    columns = [*_SETTING_COLUMNS, *map(Column, ("h", "95 % of h", "P", "SR", "D", "µs p50"))]
    columns.append(Column("diversity in each fold", numeric=False))
    bodies = []
    for k in _ks(choices):
        some = _at_k(choices, k)
        best = max(map(h, some))
        lines: list[Row] = [
            [
                *_setting(row),
                Cell(figure(row.metrics["h_score"].value), best=h(row) == best >= 0),
                _range(row),
                *(figure(row.metrics[name].value) for name in shown),
                _time(row),
                " ".join(f"{settings[n].parameters.diversity:g}" for n in row.by_fold),
            ]
            for row in some
        ]
        bodies.append(Body(lines, f"k = {k}"))
    parts: list[Part] = [
        "The queries are dealt into folds. Each fold is reported at the diversity and limits with "
        "the greatest mean h on the other folds, so no query takes part in choosing the setting "
        "it is reported at. The setting named is the best on all queries."
    ]
    parts += [
        f"{setting(row)} (k = {row.parameters.k}) is the index's default for Query now."
        for row in choices
        if row.is_default
    ]
    return [*parts, Table("Choices, with 95 % bootstrap intervals over queries", columns, bodies)]


def _all_settings(rows: Sequence[EvaluateRow]) -> Table:
    names = ("h", "95 % of h", *(n for n in HEADS.values() if n != "h"), "µs p50", "p90", "p99")
    columns = [*_SETTING_COLUMNS, *map(Column, ("row", *names, "empty", "short"))]
    columns.append(Column("front", numeric=False))
    bodies = []
    for k in _ks(rows):
        some = _at_k(rows, k)
        best = max(map(h, some))
        bodies.append(Body([_line(row, best=h(row) == best >= 0) for row in some], f"k = {k}"))
    caption = "empty: queries without a result. short: fewer than k results. front: Pareto front."
    return Table(caption, columns, bodies)


def _line(row: EvaluateRow, *, best: bool) -> list[Cell | str]:
    times = row.microseconds
    return [
        *_setting(row),
        str(row.number),
        Cell(figure(row.metrics["h_score"].value), best=best),
        _range(row),
        *(figure(row.metrics[name].value) for name in HEADS if name != "h_score"),
        *(f"{time:,.0f}" for time in (times.p50, times.p90, times.p99)),
        f"{row.empty:,}",
        f"{row.short:,}",
        "yes" if row.on_front else "",
    ]


def _setting(row: EvaluateRow) -> tuple[str, str, str, str, str]:
    """Return the cells of `_SETTING_COLUMNS`."""
    used = row.parameters
    limits = limit(used.hash_limit), limit(used.candidates_limit)
    return method(row), diversity(row), row.search, *limits


def _interval(row: EvaluateRow) -> str:
    return f"{figure(row.metrics['h_score'].value)} ({_range(row)})"


def _range(row: EvaluateRow) -> str:
    low, high = figure(row.metrics["h_score"].low), figure(row.metrics["h_score"].high)
    return f"{low}\N{EN DASH}{high}" if low else ""


def _time(row: EvaluateRow) -> str:
    return f"{row.microseconds.p50:,.0f}"
