"""Formats the figures of a report for both the terminal and the HTML page."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from divgrpc_client.formats.tables import console, table
from divgrpc_client.load.report import Report
from divgrpc_client.load.thresholds import is_time, parse_threshold

_TIMES: Final = ("p50", "p90", "p99", "p99.9", "max", "mean")


def summary(report: Report) -> str:
    """Return a sentence that sums up a run."""
    latency, loop = report["latency"], report["setting"]["loop"]
    return (
        f"{loop[0].upper()}{loop[1:]}: {report['calls']:,} calls in "
        f"{report['seconds']:,.1f} s, {report['offered']:,.1f} a second offered, "
        f"{report['rate']:,.1f} answered OK; p50 {_ms(latency['p50']) or '-'} ms, "
        f"p99 {_ms(latency['p99']) or '-'} ms; {report['errors']:.2%} errors."
    )


def notes(report: Report) -> Iterator[str]:
    """Yield remarks on a void or interrupted run, a closed loop, and the outcome of a search."""
    if report["void"]:
        yield f"VOID: the generator was the bottleneck: {'; '.join(report['void'])}."
    if report["interrupted"]:
        calls = "these are the figures up to then" if report["calls"] else "no call was counted yet"
        yield f"Interrupted: {calls}."
    if report["setting"]["closed"]:
        yield (
            "Closed loop: every call waits for the one before it, so a server that stalls gets "
            "fewer calls meanwhile. These percentiles are not those that users would see."
        )
    if search := report["search"]:
        rate, trial = f"{search['rate']:,.0f} calls a second", "that trial"
        if not search["rate"]:
            rate, trial = "none that was tried", "the trial at the lowest rate"
        bounds = " and ".join(search["objective"])
        yield f"Highest rate with {bounds}: {rate}. The other figures are those of {trial}."


def tables(report: Report) -> Iterator[tuple[Sequence[str], list[Sequence[str]]]]:
    """Yield the heads and the rows of each table of a report; the first column holds names."""
    if report["setting"]["closed"]:
        times = [("latency, from when sent", report["latency"])]
    else:
        times = [("latency, from when due", report["latency"])]
        times.append(("lateness of sending", report["lateness"]))
    if len(report["by_call"]) > 1:
        times += [(entry["call"], entry["latency"]) for entry in report["by_call"]]
    yield ("times in ms", *_TIMES), [(name, *(_ms(row[p]) for p in _TIMES)) for name, row in times]
    if report["search"]:
        trials = sorted(report["search"]["trials"], key=lambda trial: float(trial["rate"]))
        heads = ("rate tried", "answered", "p50 ms", "p99 ms", "errors", "verdict")
        yield heads, [*map(_trial, trials)]
    if set(report["codes"]) - {"OK"}:
        codes, total = report["codes"].items(), report["calls"]
        yield (
            ("status", "calls", "share"),
            [(name, f"{count:,}", f"{count / total:.2%}") for name, count in codes],
        )
    if report["thresholds"]:
        yield ("required", "measured", "verdict"), [*map(_outcome, report["thresholds"])]


def _ms(microseconds: float | None) -> str:
    return "" if microseconds is None else f"{microseconds / 1e3:,.2f}"


def _trial(trial: dict[str, Any]) -> Sequence[str]:
    return (
        *(f"{trial['rate']:,.0f}", f"{trial['answered']:,.0f}"),
        *(_ms(trial["latency"]["p50"]), _ms(trial["latency"]["p99"])),
        f"{trial['errors']:.2%}",
        "void" if trial["void"] else "held" if trial["held"] else "missed",
    )


def _outcome(outcome: dict[str, Any]) -> Sequence[str]:
    """Return three cells: the text of a threshold, the measured figure and the verdict."""
    name, value = parse_threshold(outcome["text"]).name, outcome["value"]
    if value is None:
        figure = "not measured"
    elif is_time(name):
        figure = f"{_ms(value)} ms"
    else:
        figure = f"{value:,.1f} a second" if name == "rate" else f"{value:.2%}"
    verdict = "held" if outcome["held"] else "missed"
    if outcome["too_many_errors"]:
        verdict = "missed: too many calls failed"
    return outcome["text"], figure, verdict


def show(report: Report) -> None:
    """Print a report."""
    out = console()
    for text in (summary(report), *notes(report)):
        out.print(text, "", sep="\n", markup=False)
    for heads, rows in tables(report):
        grid = table(heads[0], *(f">{head}" for head in heads[1:]))
        for row in rows:
            grid.add_row(*row)
        out.print(grid, "")
