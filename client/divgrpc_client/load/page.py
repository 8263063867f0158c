"""Writes the report of a run as one HTML page.

The page shows the outcome, latency by percentile and by second, and the calls that were sent.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from divgrpc_client.load.report import Report
from divgrpc_client.load.text import notes, objective, summary, tables
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
    Section,
    Table,
    write_page,
)

_TIMES: Final = (
    "Latency is counted from when a call was due, so calls that waited for a server that stalled "
    "are in it with their wait; service time from when it was sent. Both are of calls that were "
    "answered OK or missed their deadline."
)
_VERDICTS: Final[dict[str, Literal["good", "bad", "open"]]] = {
    "held": "good",
    "missed": "bad",
    "missed: too many calls failed": "bad",
    "void": "open",
}


def write_html(report: Report, path: Path) -> None:
    """Write the page of a report, and create its folder if necessary."""
    write_page(page(report), path)


def page(report: Report) -> Page:
    """Return the page of a report; equal reports give equal pages."""
    environment, server = report["environment"], report["server"]
    facts = [
        environment["date"],
        f"divgrpc {environment['divgrpc']}",
        f"{environment['processor']}, {environment['cores']} cores",
    ]
    if server:
        facts.append(f"fronts: {server['fronts']}, workers: {server['workers']}")
    names = ", ".join(sorted({call["index"] for call in report["setting"]["mix"]}))
    outcome: list[Part] = [Note(text, bad=text.startswith("VOID")) for text in notes(report)]
    outcome += [_table(heads, rows) for heads, rows in tables(report)]
    return Page(
        title=f"Load on {names}",
        lead=summary(report),
        facts=facts,
        sections=[
            Section("Outcome", outcome),
            Section("Latency and throughput", [_TIMES, _figures(report)]),
            Section("What was sent", _sent(report)),
        ],
    )


def _figures(report: Report) -> Figures:
    def line(name: str, label: str, look: int, scale: float = 1.0) -> Curve:
        values = [(row["second"], row[name]) for row in report["by_second"]]
        return Curve(label, [(s, v / scale) for s, v in values if v is not None], look)

    by_percentile = [
        Curve(label, [(percent, us / 1e3) for percent, us in report[name]], look)
        for look, (name, label) in enumerate(
            (("curve", "from when due"), ("service_curve", "from when sent"))
        )
    ]
    calls = [line("due", "due", 0), line("answered", "answered OK", 2), line("failed", "failed", 7)]
    latency = [line(n, n, look, 1e3) for look, n in enumerate(("p50", "p90", "p99", "max"))]
    ms = "latency, ms"
    title = "Latency by percentile"
    drawing = charts.lines(by_percentile, "percentile", ms, title, x_scale="percentile", log_y=True)
    return Figures(
        [
            Figure(drawing, "Latency by percentile: every step to the right is one more nine."),
            Figure(charts.lines(calls, "second", "calls", "Calls by second"), "Calls by second."),
            Figure(
                charts.lines(latency, "second", ms, "Latency by second", log_y=True),
                "Latency of the calls that were due in each second.",
            ),
        ]
    )


def _sent(report: Report) -> list[Part]:
    setting = report["setting"]
    steps = ", then ".join(
        f"{step['begin']:g} to {step['end']:g} calls a second over {step['seconds']:g} s"
        for step in setting["schedule"]
    )
    names = ("target", "loop", "warm_up", "timeout", "processes", "channels", "retries", "seed")
    settings = [(name.replace("_", " "), str(setting[name])) for name in names]
    settings.insert(2, ("schedule", steps))
    if report["objective"]:
        settings.insert(3, ("objective", objective(report)))
    busy = ", ".join(f"{share:.0%}" for share in report["generators_busy"])
    mix = [
        (
            call["call"],
            f"{call['share']:.1%}",
            *(f"{call[n]:,}" for n in ("messages", "message_bytes")),
        )
        for call in setting["mix"]
    ]
    columns = [Column("setting", numeric=False), Column("value", numeric=False)]
    return [
        Table("Settings", columns, [Body([*settings, ("generators busy", busy)])]),
        _table(("call", "share", "different messages", "bytes of one"), mix),
    ]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    columns = [Column(name, numeric=place > 0) for place, name in enumerate(heads)]
    cells = [[Cell(text, verdict=_VERDICTS.get(text, "")) for text in row] for row in rows]
    return Table("", columns, [Body(cells)])
