"""A run on a terminal: a live table while it lasts, then what came of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.live import Live
from rich.table import Table

from divgrpc_client.formats.tables import console, table
from divgrpc_client.load import words
from divgrpc_client.load.results import Report
from divgrpc_client.load.sessions import Trialled
from divgrpc_client.load.words import ms

_SECONDS_SHOWN: Final = 12
_LATENCY_HEADS: Final = ("times in ms", *(f">{name}" for name in words.SHOWN))
_USE_HEADS: Final = (
    "server",
    ">processes",
    ">cores busy",
    ">CPU us a call",
    ">own MiB",
    ">resident MiB",
)


@contextmanager
def live() -> Iterator[Callable[[Trialled], None]]:
    """Show a trial on standard error while it lasts; yields what to call once a second."""
    with Live(console=console(stderr=True), transient=True, auto_refresh=False) as shown:

        def look(trialled: Trialled) -> None:
            shown.update(_now(trialled), refresh=True)

        yield look


def _now(trialled: Trialled) -> Table:
    recording = trialled.recording
    rows = recording.by_second()
    title = (
        f"{len(rows):,} of {trialled.schedule.seconds:,.0f} s, {recording.codes.total:,} calls, "
        f"{sum(recording.in_flight):,} in flight; Ctrl-C ends it with what it has"
    )
    heads = (">second", ">due", ">answered", ">failed", ">p50 ms", ">p99 ms", ">max ms", ">cores")
    grid = table(*heads, title=title)
    for number, row in list(enumerate(rows))[-_SECONDS_SHOWN:]:
        cores = trialled.server[number].cores if number < len(trialled.server) else {}
        grid.add_row(
            str(number),
            *(f"{row[name]:,}" for name in ("due", "answered", "failed")),
            *(ms(row[name]) for name in ("p50", "p99", "max")),
            f"{sum(cores.values()):.2f}" if cores else "",
        )
    return grid


def show(report: Report) -> None:
    """Print a report."""
    parts: list[object] = [words.summary(report), *words.notes(report)]
    parts.append(_table(_LATENCY_HEADS, words.latencies(report)))
    if set(report["codes"]) - {"OK"} or report["retries"]:
        parts.append(_table(("status", ">calls", ">share"), words.codes(report)))
    if report["server_use"]:
        parts.append(_table(_USE_HEADS, words.server_use(report)))
    if quality := words.quality(report):
        parts.append(quality)
    if measured := words.measured(report):
        call, name, *rest = words.MEASURED_HEADS
        parts.append(_table((call, name, *(f">{head}" for head in rest)), measured))
    if report["search"]:
        parts.append(_trials(report))
    if report["thresholds"]:
        heads = ("required", ">measured", "")
        parts.append(_table(heads, words.thresholds(report)))
    _print(parts)


def show_comparison(one: Report, other: Report) -> None:
    """Print two reports side by side."""
    parts: list[object] = [f"Note: {told}." for told in words.differences(one, other)]
    parts.append(_table(("", ">A", ">B", ">B / A", ""), words.comparison(one, other)))
    _print(parts)


def _trials(report: Report) -> Table:
    grid = table(">rate tried", ">answered", ">p50 ms", ">p99 ms", ">errors", "")
    for trial in sorted(report["search"]["trials"], key=lambda one: float(one["rate"])):
        latency = trial["latency"]
        grid.add_row(
            f"{trial['rate']:,.0f}",
            f"{trial['answered']:,.0f}",
            ms(latency["p50"]),
            ms(latency["p99"]),
            f"{trial['errors']:.2%}",
            "void" if trial["void"] else "held" if trial["held"] else "missed",
        )
    return grid


def _table(heads: tuple[str, ...], rows: list[words.Line]) -> Table:
    grid = table(*heads)
    for row in rows:
        grid.add_row(*row)
    return grid


def _print(parts: list[object]) -> None:
    out = console()
    for part in parts:
        out.print(part, markup=False)
        out.print()
