"""Makes the page of an evaluation: figures of all settings, the choices, and example results.

    rows = list(client.evaluate("products", queries, categories))
    write_report(rows, Path("report.html"), index="products")

The page needs only rows, from `client.evaluate` or from `divgrpc.evaluation`. It has no date or
machine unless the caller gives them, so equal rows give equal bytes.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Final

from divgrpc.types import EvaluateRow
from divgrpc_client.formats.evaluation_tables import (
    CELLS,
    DETAILS,
    TEXTS,
    diversity,
    h_range,
    method,
    setting,
    stage,
    varied,
)
from divgrpc_client.reports import charts, page
from divgrpc_client.reports.charts import Curve

_QUERIES_MIN: Final = 30
_WORDS: Final = (
    "P: share of the results that are relevant. SR: share of the category's sub-topics among them. "
    "D: how evenly the relevant results are spread over sub-topics, 0 to 1. h: mean over the "
    "queries of the harmonic mean of P and D. Times are of one query at a time on one thread, "
    "measured in the worker, in microseconds (µs)."
)
_TRADE_OFF: Final = (
    "Up is more accurate, to the right is more diverse. Markers grow along a curve with the "
    "requested diversity. Default limits follow k and the diversity. Dotted lines join points of "
    "equal harmonic mean h, so charts whose axes show different ranges can be compared."
)
_LISTS: Final = (
    "The results of each method for some of the queries, first to last, at its best diversity and "
    "search. Results known to be irrelevant are boxed."
)
_CHOICES: Final = (
    "The queries are dealt into folds. Each fold is reported at the diversity and limits with the "
    "greatest mean h on the other folds. So no query takes part in choosing the setting at which "
    "it is reported. The setting in the table is the best on all queries."
)
_SETTINGS: Final = (
    "Every setting of the grid, on all queries. The best setting is chosen on the queries on which "
    "it is reported, so its figures are a little too high. The figures of the choices are not."
)


def write_report(
    rows: Iterable[EvaluateRow],
    path: Path,
    *,
    index: str = "",
    facts: Sequence[str] = (),
    lists: Sequence[page.ResultLists] = (),
) -> None:
    """Write the page for the rows of an evaluation, and create its folder if necessary.

    `index` is the name of the index. `facts` are shown below the title, for example date, version
    and machine. `lists` has example results, such as those of `showing.side_by_side`.
    """
    page.write_page(report(list(rows), index=index, facts=facts, lists=lists), path)


def report(
    rows: Sequence[EvaluateRow],
    *,
    index: str = "",
    facts: Sequence[str] = (),
    lists: Sequence[page.ResultLists] = (),
) -> page.Page:
    """Return the page that `write_report` writes."""
    settings = [row for row in rows if not row.by_fold]
    choices = [row for row in rows if row.by_fold and not row.is_default]
    sections = [page.Section("What was evaluated", _evaluated(rows, settings))]
    if settings:
        best = best_of_each(settings, lambda row: (method(row), row.search, row.parameters.k))
        front = sorted((row for row in settings if row.on_front), key=lambda r: r.microseconds.p50)
        sections += [
            page.Section("Methods side by side", [_methods(choices or best)]),
            page.Section("Accuracy against diversity", [_TRADE_OFF, *_trade_offs(settings)]),
            page.Section(
                "h against time", [_h_against_time(settings), _table(*_FRONT, front, rows)]
            ),
        ]
    if choices:
        sections.append(page.Section("What was chosen", _choices(choices, rows)))
    if lists:
        sections.append(page.Section("Results side by side", [_LISTS, *lists]))
    if settings:
        sections.append(page.Section("All settings", [_SETTINGS, _table(*_ALL, settings, rows)]))
    return page.Page(
        title=f"Diversity and its price: {index}" if index else "Diversity and its price",
        lead=_lead(choices or settings),
        facts=facts,
        sections=sections,
    )


def h(row: EvaluateRow) -> float:
    """Return the mean h of a row, or -1 if no query has an h."""
    value = row.metrics["h_score"].value
    return -1.0 if math.isnan(value) else value


def _interval(row: EvaluateRow) -> str:
    return f"{CELLS['h'](row)} ({h_range(row) or 'one group: no interval'})"


_FOLDS: Final = "diversity in each fold"
_SETTING: Final = ("method", "diversity", "search", "hash limit", "candidates")
_FRONT: Final = (
    "On the Pareto front: no other setting has more h in the same time or less. Times within 10 % "
    "count as equal.",
    ("h", "95 % of h", "µs p50"),
)
_ALL: Final = (
    "empty: queries without a result. short: fewer than k results. front: Pareto front.",
    (
        *("row", "h", "95 % of h", "P", "SR", "D", "µs p50", "p90", "p99", "empty", "short"),
        "front",
    ),
)


def _table(
    caption: str,
    heads: Sequence[str],
    rows: Sequence[EvaluateRow],
    all_rows: Sequence[EvaluateRow],
    cells: Mapping[str, Callable[[EvaluateRow], str]] = CELLS,
) -> page.Table:
    """Return a table of rows, grouped by k, with the greatest h of each group marked.

    The columns of the setting come before `heads`. They include the details that vary between
    `all_rows`.
    """
    heads = (*_SETTING, *varied(all_rows), *heads)
    bodies = []
    for k, group in _by_k(rows):
        best = max(map(h, group))
        lines = [
            [
                page.Cell(cells[head](row), best=head == "h" and h(row) == best >= 0)
                for head in heads
            ]
            for row in group
        ]
        bodies.append(page.Body(lines, f"k = {k}"))
    return page.Table(
        caption, [page.Column(head, numeric=head not in (*TEXTS, _FOLDS)) for head in heads], bodies
    )


def _by_k(rows: Sequence[EvaluateRow]) -> list[tuple[int, list[EvaluateRow]]]:
    """Return pairs of k and its rows, in ascending order of k."""
    groups = groupby(sorted(rows, key=lambda row: row.parameters.k), lambda row: row.parameters.k)
    return [(k, list(group)) for k, group in groups]


def best_of_each(
    rows: Sequence[EvaluateRow], kind: Callable[[EvaluateRow], object]
) -> list[EvaluateRow]:
    """Return the row with the greatest mean h of each kind, and the first of equal rows."""
    best: dict[object, EvaluateRow] = {}
    for row in rows:
        if h(row) > h(best.setdefault(kind(row), row)):
            best[kind(row)] = row
    return list(best.values())


def _lead(rows: Sequence[EvaluateRow]) -> str:
    """Return a sentence for each k that compares the best setting with plain nearest neighbours."""
    sentences = []
    for k, group in _by_k([row for row in rows if h(row) >= 0]):
        best, time = max(group, key=h), CELLS["µs p50"]
        sentence = f"At k = {k}, {setting(best)}, reaches h {_interval(best)}"
        plain = [row for row in group if row.parameters.selector == "nearest"]
        if plain and best not in plain:
            nearest = max(plain, key=h)
            sentence += (
                f", plain nearest neighbours {_interval(nearest)}; the median query takes "
                f"{time(best)} and {time(nearest)} µs"
            )
        sentences.append(f"{sentence}.")
    return " ".join(sentences)


def _evaluated(rows: Sequence[EvaluateRow], settings: Sequence[EvaluateRow]) -> list[page.Part]:
    if not rows:
        return [page.Note("There are no rows: nothing was evaluated.")]
    first = rows[0]
    places = _places(settings)
    lines = []
    for name, text, mark in (
        ("methods", method, ", "),
        ("diversities", diversity, ", "),
        ("searches and limits", lambda row: places[row.number], "; "),
        ("k", lambda row: str(row.parameters.k), ", "),
    ):
        values = dict.fromkeys(filter(None, map(text, settings)))
        lines.append((name, mark.join(values) or "none"))
    grid = page.Table(
        f"{first.queries:,} queries of generation {first.generation} under {len(settings):,} "
        "settings",
        [page.Column("axis", numeric=False), page.Column("values", numeric=False)],
        [page.Body(lines)],
    )
    return [grid, _WORDS, *(page.Note(text) for text in _warnings(rows, settings))]


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


def _methods(rows: Sequence[EvaluateRow]) -> page.Table:
    """Return a table laid out like the paper's Table 1.

    Methods are grouped by search, and columns by k.
    """
    heads = ("P", "SR", "D", "h", "µs p50")
    groups = _by_k(rows)
    columns = [page.Column("method", numeric=False)]
    columns += [page.Column(head, f"k = {k}") for k, _ in groups for head in heads]
    cells = {}
    for k, group in groups:
        # Values are compared as printed, so all values that look equal to the best are marked.
        best = {head: max(CELLS[head](row) for row in group) for head in heads}
        best["µs p50"] = CELLS["µs p50"](min(group, key=lambda row: row.microseconds.p50))
        for row in group:
            texts = {head: CELLS[head](row) for head in heads}
            cells[method(row), row.search, k] = [
                page.Cell(text, h_range(row) if head == "h" else "", best=text == best[head] != "")
                for head, text in texts.items()
            ]
    bodies = []
    for search in dict.fromkeys(row.search for row in rows):
        lines = []
        for name in dict.fromkeys(method(row) for row in rows if row.search == search):
            parts = [cells.get((name, search, k), [page.Cell("")] * len(heads)) for k, _ in groups]
            lines.append([page.Cell(name), *chain.from_iterable(parts)])
        bodies.append(page.Body(lines, f"{search} search"))
    folds = "chosen by folds on other queries" if rows[0].by_fold else "best on these queries"
    caption = (
        f"Each method at the diversity and limits {folds}; in bold the best of each column. Below "
        "h stands its 95 % interval."
    )
    return page.Table(caption, columns, bodies)


def _choices(choices: Sequence[EvaluateRow], rows: Sequence[EvaluateRow]) -> list[page.Part]:
    settings = {row.number: row for row in rows}

    def in_folds(row: EvaluateRow) -> str:
        return " ".join(f"{settings[n].parameters.diversity:g}" for n in row.by_fold)

    defaults = [
        f"{setting(row)} (k = {row.parameters.k}) is the best choice. The index's default for Query"
        " has its method, diversity and search now, and of the limits those that the evaluation"
        f" named. Chosen anew for each fold on the other folds, it reaches h {_interval(row)}."
        for row in rows
        if row.is_default
    ]
    caption = "Choices, with 95 % intervals over groups of queries"
    heads = ("h", "95 % of h", "P", "SR", "D", "µs p50", _FOLDS)
    cells = {**CELLS, _FOLDS: in_folds}
    return [_CHOICES, *defaults, _table(caption, heads, choices, rows, cells)]


def _trade_offs(rows: Sequence[EvaluateRow]) -> list[page.Figures]:
    """Return charts of P against D: one for each k and each search with its limits."""
    looks, places = _looks(rows), _places(rows)
    drawings = []
    for k, group in _by_k(rows):
        figures = []
        for name in dict.fromkeys(places[row.number] for row in group):
            at_place = [row for row in group if places[row.number] == name]
            curves = [_dial_curve(at_place, kind, look) for kind, look in looks.items()]
            title = f"Accuracy against diversity, k = {k}, {name}"
            chart = charts.trade_off([curve for curve in curves if curve.points], title)
            figures.append(page.Figure(chart, f"k = {k}, {name}"))
        drawings.append(page.Figures(figures))
    return drawings


def _places(rows: Sequence[EvaluateRow]) -> dict[int, str]:
    """Return the search and limits of each setting by its number, for charts and the grid.

    Rows do not tell which limits are defaults. But for every method, diversity and k, a grid tries
    the same pairs of limits in the same order. So if the limits at one place in this order differ,
    they are defaults.
    """
    places: dict[tuple[str, ...], int] = {}
    columns: dict[tuple[str, int], list[EvaluateRow]] = {}
    for row in sorted(rows, key=lambda row: row.number):
        key = row.search, method(row), diversity(row), str(row.parameters.k)
        places[key] = places.get(key, -1) + 1
        columns.setdefault((row.search, places[key]), []).append(row)
    heads = varied(rows)
    return {
        row.number: (_place(column) or stage(row)) + _details(column, heads)
        for column in columns.values()
        for row in column
    }


def _details(rows: Sequence[EvaluateRow], heads: Sequence[str]) -> str:
    """Return the `DETAILS` of `heads` as text, without those that vary between `rows`."""
    texts = ((head, {DETAILS[head](row) for row in rows}) for head in heads)
    return "".join(f", {head} {text}" for head, (text, *rest) in texts if text and not rest)


def _place(rows: Sequence[EvaluateRow]) -> str:
    """Return the search and limits of rows if any of the limits is a default, else ""."""
    hash_limits = {CELLS["hash limit"](row) for row in rows}
    candidates = {CELLS["candidates"](row) for row in rows}
    if len(hash_limits) == len(candidates) == 1:
        return ""
    if len(hash_limits) > 1 and len(candidates) > 1:
        return f"{rows[0].search} search, default limits"
    first, second = ("default" if len(n) > 1 else "".join(n) for n in (hash_limits, candidates))
    return f"{rows[0].search} search, hash limit {first}, candidates {second}"


def _looks(rows: Sequence[EvaluateRow]) -> dict[str, int]:
    """Return a number for each method, which selects its colour and marker in all charts."""
    return {name: number for number, name in enumerate(dict.fromkeys(map(method, rows)))}


def _dial_curve(rows: Sequence[EvaluateRow], name: str, look: int) -> Curve:
    """Return the curve of P against D for one method, ordered by diversity.

    Its name includes the least and the greatest diversity.
    """
    by_dial = sorted(
        (row for row in rows if method(row) == name), key=lambda row: row.parameters.diversity
    )
    ends = f" {diversity(by_dial[0])} to {diversity(by_dial[-1])}" if len(by_dial) > 1 else ""
    metrics = [row.metrics for row in by_dial]
    points = [(m["normalised_entropy"].value, m["precision"].value) for m in metrics]
    return Curve(name + ends, points, look)


def _h_against_time(rows: Sequence[EvaluateRow]) -> page.Figures:
    """Return charts of h against the median time, one for each k, with the Pareto front marked."""
    figures, places = [], _places(rows)
    for k, group in _by_k(rows):
        points: dict[tuple[str, str], list[tuple[float, float]]] = {}
        front = []
        for row in group:
            point = row.microseconds.p50, row.metrics["h_score"].value
            points.setdefault((method(row), places[row.number]), []).append(point)
            front += [point] * row.on_front
        stages = list(dict.fromkeys(places[row.number] for row in group))
        curves = [
            Curve(name, points.get((name, place), []), look, fill)
            for name, look in _looks(rows).items()
            for fill, place in enumerate(stages)
        ]
        chart = charts.h_against_time(curves, stages, front, f"h against time, k = {k}")
        figures.append(page.Figure(chart, f"k = {k}"))
    return page.Figures(figures)
