"""The page of an evaluation: what settings reach, which to take, what their results look like.

    rows = list(client.evaluate("products", queries, categories))
    write_report(rows, Path("report.html"), index="products")

It needs nothing but rows, from `client.evaluate` or from `divgrpc.evaluation`; dates and machines
are the caller's to tell, so that the same rows give the same bytes.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from divgrpc.types import EvaluateRow
from divgrpc_client.formats.evaluation_tables import SHOWN, figure, method, setting, stage
from divgrpc_client.reports import curves
from divgrpc_client.reports.page import (
    Body,
    Cell,
    Column,
    Note,
    Page,
    Part,
    ResultLists,
    Row,
    Section,
    Table,
    write_page,
)

_FEW_QUERIES: Final = 30
_WORDS: Final = (
    "P: share of the results that are relevant. SR: share of the category's sub-topics among them. "
    "D: how evenly the relevant results are spread over sub-topics, 0 to 1. h: harmonic mean of P "
    "and D for each query, then the mean. Times are those of one query at a time on one thread, "
    "measured in the worker, in microseconds (µs)."
)
_TRADE_OFF: Final = (
    "Up is more accurate, to the right is more diverse; along a curve the dial rises between the "
    "numbers at its ends. Dotted lines join points of equal harmonic mean, so that figures can be "
    "compared, whose axes show different parts."
)
_LISTS: Final = (
    "Some of the queries, asked again: what each method finds, first to last, at its best dial and "
    "search. What is known to be of no relevance is boxed."
)
_SETTINGS: Final = (
    "Every setting of the grid: method, diversity, search, hash_limit:candidates_limit. These are "
    "figures on all queries, so the best of them flatters itself a little; the choices do not."
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
    sections = [Section("What was asked", _asked(rows, settings))]
    if settings:
        sections += [
            Section("Methods side by side", _methods(choices or best_of_each(settings))),
            Section("Accuracy against diversity", [_TRADE_OFF, *curves.trade_off(settings)]),
            Section("h against time", [curves.h_against_time(settings), _front(settings)]),
        ]
    if choices:
        sections.append(Section("What was chosen", _choices(choices, rows)))
    if lists:
        sections.append(Section("Results side by side", [_LISTS, *lists]))
    if settings:
        sections.append(Section("All settings", [_SETTINGS, _settings(settings)]))
    return Page(
        title=f"Diversity and its price: {index}" if index else "Diversity and its price",
        lead=_lead(choices or settings),
        facts=facts,
        sections=sections,
    )


def best_of_each(rows: Sequence[EvaluateRow]) -> list[EvaluateRow]:
    """Return of each method, search and k the setting with the greatest mean h, in their order."""
    found: dict[tuple[str, str, int], EvaluateRow] = {}
    for row in rows:
        kind = (method(row.parameters), row.search, row.parameters.k)
        if kind not in found or h(row) > h(found[kind]):
            found[kind] = row
    return list(found.values())


def h(row: EvaluateRow) -> float:
    """Return a row's mean h, -1 where no query has one."""
    value = row.metrics["h_score"].value
    return -1.0 if math.isnan(value) else value


def _lead(rows: Sequence[EvaluateRow]) -> str:
    """Say for each k what the best reaches, and what plain nearest neighbours do."""
    sentences = []
    for k in curves.ks(rows):
        own = [row for row in rows if row.parameters.k == k and h(row) >= 0]
        if not own:
            continue
        best = max(own, key=h)
        sentence = f"At k = {k}, {setting(best)} reaches h {_interval(best)}"
        plain = [row for row in own if row.parameters.selector == "nearest"]
        if plain and best not in plain:
            other = max(plain, key=h)
            sentence += (
                f", plain nearest neighbours {_interval(other)}; the median query takes "
                f"{_time(best)} and {_time(other)} µs"
            )
        sentences.append(f"{sentence}.")
    return " ".join(sentences)


def _asked(rows: Sequence[EvaluateRow], settings: Sequence[EvaluateRow]) -> list[Part]:
    if not rows:
        return [Note("There are no rows: nothing was evaluated.")]
    first = rows[0]
    told = [
        f"{first.queries:,} queries of generation {first.generation} under "
        f"{len(settings):,} settings: "
        f"methods {_values(settings, lambda row: method(row.parameters))}; "
        f"searches with hash_limit:candidates_limit {_values(settings, stage)}; "
        f"diversities {_values(_dialled(settings), lambda row: f'{row.parameters.diversity:g}')}; "
        f"k {_values(settings, lambda row: str(row.parameters.k))}."
    ]
    return [*told, _WORDS, *(Note(text) for text in _warnings(rows, settings))]


def _dialled(rows: Sequence[EvaluateRow]) -> list[EvaluateRow]:
    return [row for row in rows if row.parameters.selector != "nearest"]


def _values(rows: Sequence[EvaluateRow], of: Callable[[EvaluateRow], str]) -> str:
    return ", ".join(dict.fromkeys(map(of, rows))) or "none"


def _warnings(rows: Sequence[EvaluateRow], settings: Sequence[EvaluateRow]) -> Iterable[str]:
    if rows[0].queries < _FEW_QUERIES:
        yield f"Only {rows[0].queries} queries: intervals from so few are too narrow."
    if all(h(row) < 0 for row in rows):
        yield "No query has an h: nothing relevant was found, or it has no sub-topics."
    if len(settings) == len(rows):
        yield "Nothing was chosen by folds, so the best settings are reported on the same queries."
    for told, count in (
        ("without a result", sum(row.empty > 0 for row in settings)),
        ("short of k", sum(row.short > 0 for row in settings)),
    ):
        if count:
            yield f"{count} of {len(settings)} settings left queries {told}: see the last table."


def _methods(rows: Sequence[EvaluateRow]) -> list[Part]:
    """Lay rows out as the paper's Table 1: methods under each search, columns under each k."""
    measures = [*SHOWN.values(), "µs p50"]
    columns = [Column("method", numeric=False)]
    columns += [Column(name, f"k = {k}") for k in curves.ks(rows) for name in measures]
    by_kind = {(method(r.parameters), r.search, r.parameters.k): r for r in rows}
    best = {k: _best([r for r in rows if r.parameters.k == k]) for k in curves.ks(rows)}
    bodies = []
    for search in dict.fromkeys(row.search for row in rows):
        names = dict.fromkeys(method(row.parameters) for row in rows if row.search == search)
        lines: list[Row] = []
        for name in names:
            line: list[Cell | str] = [name]
            for k, marked in best.items():
                line += _measures(by_kind.get((name, search, k)), marked)
            lines.append(line)
        bodies.append(Body(lines, f"search {search}"))
    folds = "chosen by folds on other queries" if rows[0].by_fold else "best on these queries"
    caption = (
        f"Each method at the dial and limits {folds}; in bold the best of each column. Below h "
        "stands its 95 % interval."
    )
    return [Table(caption, columns, bodies)]


def _measures(row: EvaluateRow | None, best: Sequence[str]) -> list[Cell | str]:
    if row is None:
        return [""] * len(best)
    texts = _texts(row)
    cells = [
        Cell(text, best=text == mark and text != "") for text, mark in zip(texts, best, strict=True)
    ]
    at = list(SHOWN).index("h_score")
    cells[at] = replace(cells[at], detail=_range(row))
    return list(cells)


def _best(rows: Sequence[EvaluateRow]) -> list[str]:
    """Return what the best of each column of `_texts` looks like; equals in print are all best."""
    *shares, _ = (
        [text for text in column if text] for column in zip(*map(_texts, rows), strict=True)
    )
    fastest = min(rows, key=lambda row: row.microseconds.p50)
    return [*(max(column, default="") for column in shares), _time(fastest)]


def _texts(row: EvaluateRow) -> list[str]:
    return [*(figure(row.metrics[name].value) for name in SHOWN), _time(row)]


def _front(rows: Sequence[EvaluateRow]) -> Table:
    """Return the settings on the Pareto front of each k, the fastest first."""
    columns = [Column("setting", numeric=False), Column("h"), Column("95 % of h"), Column("µs p50")]
    bodies = [
        Body(
            [
                (setting(row), figure(row.metrics["h_score"].value), _range(row), _time(row))
                for row in sorted(rows, key=lambda row: row.microseconds.p50)
                if row.on_front and row.parameters.k == k
            ],
            f"k = {k}",
        )
        for k in curves.ks(rows)
    ]
    return Table("On the Pareto front: no other setting has more h in less time", columns, bodies)


def _choices(choices: Sequence[EvaluateRow], rows: Sequence[EvaluateRow]) -> list[Part]:
    settings = {row.number: row for row in rows}
    names = ("h", "95 % of h", "P", "SR", "D", "µs p50")
    columns = [Column("for queries to come", numeric=False), *map(Column, names)]
    columns.append(Column("diversity in each fold", numeric=False))
    shown = ("precision", "subtopic_recall", "normalised_entropy")
    bodies = []
    for k in curves.ks(choices):
        own = [row for row in choices if row.parameters.k == k]
        best = max(map(h, own))
        lines: list[Row] = [
            [
                setting(row),
                Cell(figure(row.metrics["h_score"].value), best=h(row) == best >= 0),
                _range(row),
                *(figure(row.metrics[name].value) for name in shown),
                _time(row),
                " ".join(f"{settings[n].parameters.diversity:g}" for n in row.by_fold),
            ]
            for row in own
        ]
        bodies.append(Body(lines, f"k = {k}"))
    told: list[Part] = [
        "The queries are dealt into folds. Each fold is reported at the dial and limits with the "
        "greatest mean h on the others, so that no query has a say in the setting it is reported "
        "at; the setting named is the best on all queries."
    ]
    told += [
        f"{setting(row)} (k = {row.parameters.k}) is the index's default for Query now."
        for row in choices
        if row.is_default
    ]
    return [*told, Table("Choices, with 95 % bootstrap intervals over queries", columns, bodies)]


def _settings(rows: Sequence[EvaluateRow]) -> Table:
    names = ("h", "95 % of h", *(n for n in SHOWN.values() if n != "h"), "µs p50", "p90", "p99")
    columns = [Column("setting", numeric=False), Column("row"), *map(Column, names)]
    columns += [Column("empty"), Column("short"), Column("front", numeric=False)]
    bodies = []
    for k in curves.ks(rows):
        own = [row for row in rows if row.parameters.k == k]
        best = max(map(h, own))
        bodies.append(Body([_line(row, best=h(row) == best >= 0) for row in own], f"k = {k}"))
    caption = (
        "empty and short: how many queries got nothing, and fewer than k. front: on the front."
    )
    return Table(caption, columns, bodies)


def _line(row: EvaluateRow, *, best: bool) -> list[Cell | str]:
    times = row.microseconds
    return [
        setting(row),
        str(row.number),
        Cell(figure(row.metrics["h_score"].value), best=best),
        _range(row),
        *(figure(row.metrics[name].value) for name in SHOWN if name != "h_score"),
        *(f"{each:,.0f}" for each in (times.p50, times.p90, times.p99)),
        f"{row.empty:,}",
        f"{row.short:,}",
        "yes" if row.on_front else "",
    ]


def _interval(row: EvaluateRow) -> str:
    return f"{figure(row.metrics['h_score'].value)} ({_range(row)})"


def _range(row: EvaluateRow) -> str:
    low, high = figure(row.metrics["h_score"].low), figure(row.metrics["h_score"].high)
    return f"{low}\N{EN DASH}{high}" if low else ""


def _time(row: EvaluateRow) -> str:
    return f"{row.microseconds.p50:,.0f}"
