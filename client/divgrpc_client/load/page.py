"""A run as one HTML page: what was asked, latency by percentile and by second, every table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from divgrpc_client.load import words
from divgrpc_client.load.results import Report
from divgrpc_client.reports import charts
from divgrpc_client.reports.charts import Curve
from divgrpc_client.reports.page import (
    Body,
    Column,
    Figure,
    Figures,
    Note,
    Page,
    Part,
    Section,
    Table,
    write_page,
)

_TIMES: Final = (
    "Latency is counted from when a call was due, so that calls that had to wait for a server that "
    "stalled are in it with their wait; service time from when it was sent. Both are of calls that "
    "were answered OK or missed their deadline."
)


def write_html(report: Report, path: Path) -> None:
    """Write the page of a report; makes the folder."""
    write_page(page(report), path)


def page(report: Report) -> Page:
    """Return the page of a report: the same report gives the same bytes."""
    environment, server = report["environment"], report["server"]
    facts = [
        environment["date"],
        f"divgrpc {environment['divgrpc']}",
        f"{environment['processor']}, {environment['cores']} cores",
    ]
    if server:
        facts.append(f"fronts: {server['fronts']}, workers: {server['workers']}")
    names = ", ".join(sorted({call["index"] for call in report["setting"]["mix"]}))
    return Page(
        title=f"Load on {names}",
        lead=words.summary(report),
        facts=facts,
        sections=[
            Section("What came of it", _outcome(report)),
            Section("Latency", _latency(report)),
            Section("By second", [_by_second(report)]),
            Section("What was asked", _asked(report)),
        ],
    )


def _outcome(report: Report) -> list[Part]:
    parts: list[Part] = [Note(note) for note in words.notes(report)]
    if report["thresholds"]:
        parts.append(_table("Required", ("", "measured", ""), words.thresholds(report)))
    parts.append(_table("How calls ended", ("status", "calls", "share"), words.codes(report)))
    if report["server_use"]:
        heads = ("process", "number", "cores busy", "CPU µs a call", "own MiB", "resident MiB")
        parts.append(_table("What the server used", heads, words.server_use(report)))
    if quality := words.quality(report):
        parts.append(quality)
    if measured := words.measured(report):
        parts.append(_table("J, lower is better, and h", words.MEASURED_HEADS, measured))
    return parts


def _latency(report: Report) -> list[Part]:
    curves = [
        Curve("from when due", _ms(report["curve"]), 0),
        Curve("from when sent", _ms(report["service_curve"]), 1),
    ]
    drawn = charts.lines(
        curves,
        "percentile",
        "latency, ms",
        "Latency by percentile",
        x_scale="percentile",
        log_y=True,
    )
    table = _table("Times in ms", ("", *words.SHOWN), words.latencies(report))
    return [_TIMES, Figure(drawn, "Latency by percentile; every step is one more nine."), table]


def _by_second(report: Report) -> Figures:
    rows = report["by_second"]

    def over(name: str, told: str, look: int, scale: float = 1.0) -> Curve:
        own = [(row["second"], row.get(name)) for row in rows]
        return Curve(told, [(s, v / scale) for s, v in own if v is not None], look)

    latency = [over(n, n, look, 1e3) for look, n in enumerate(("p50", "p90", "p99", "max"))]
    calls = [over("due", "due", 0), over("answered", "answered OK", 2), over("failed", "failed", 7)]
    drawn = [
        Figure(charts.lines(calls, "second", "calls", "Calls by second"), "Calls by second."),
        Figure(
            charts.lines(latency, "second", "latency, ms", "Latency by second", log_y=True),
            "Latency of the calls that were due in each second.",
        ),
    ]
    if any("server_cores" in row for row in rows):
        cores = [over("server_cores", "cores busy", 0)]
        memory = [over("server_bytes", "MiB of its own", 1, 2.0**20)]
        drawn += [
            Figure(
                charts.lines(cores, "second", "cores", "CPU of the server"), "CPU of the server."
            ),
            Figure(
                charts.lines(memory, "second", "MiB", "Memory of the server"), "Its own memory."
            ),
        ]
    return Figures(drawn)


def _asked(report: Report) -> list[Part]:
    setting = report["setting"]
    steps = ", then ".join(
        f"{step['begin']:g} to {step['end']:g} calls a second over {step['seconds']:g} s"
        for step in setting["schedule"]
    )
    mix = [
        (
            own["call"],
            f"{own['share']:.1%}",
            f"{own['messages']:,}",
            f"{own['message_bytes']:,}",
        )
        for own in setting["mix"]
    ]
    rest = ", ".join(
        f"{name.replace('_', ' ')} {setting[name]}"
        for name in ("warm_up", "processes", "channels", "timeout", "retries", "seed")
    )
    busy = ", ".join(f"{share:.0%}" for share in report["generators_busy"])
    return [
        f"{setting['loop'].capitalize()}, on {setting['target']}: {steps}; {rest}. "
        f"Load generators were busy {busy} of the time.",
        _table("The mix", ("call", "share", "different messages", "bytes of one"), mix),
    ]


def _ms(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(percent, value / 1e3) for percent, value in curve]


def _table(caption: str, heads: Sequence[str], rows: Sequence[words.Line]) -> Table:
    columns = [Column(name, numeric=bool(place)) for place, name in enumerate(heads)]
    return Table(caption, columns, [Body(rows)])
