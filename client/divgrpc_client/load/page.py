"""Writes the report of a run as one HTML page.

The page shows the outcome, latency and throughput by second, and the calls that were sent.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from divgrpc_client.load.report import Report
from divgrpc_client.load.text import notes, summary, tables
from divgrpc_client.reports import charts, page
from divgrpc_client.reports.charts import Curve
from divgrpc_client.reports.page import Column, Figure, Page, Section, Table

_CALLS_IN_LATENCY: Final = "Only calls that were answered OK or missed their deadline count."
_OPEN_TIMES: Final = (
    "Latency is counted from when a call was due, so latency includes the wait for a server that "
    f"stalled. {_CALLS_IN_LATENCY}"
)
_CLOSED_TIMES: Final = f"Latency is counted from when a call was sent. {_CALLS_IN_LATENCY}"
_VERDICTS: Final[dict[str, Literal["good", "bad", "open"]]] = {
    "held": "good",
    "missed": "bad",
    "missed: too many calls failed": "bad",
    "void": "open",
}


def write_html(report: Report, path: Path) -> None:
    """Write the page of a report, and create its folder if necessary."""
    page.write_page(page_of(report), path)


def page_of(report: Report) -> Page:
    """Return the page of a report; equal reports give equal pages."""
    environment, server = report["environment"], report["server"]
    facts = [environment["date"], f"divgrpc {environment['divgrpc']}"]
    facts.append(f"cores: {environment['cores']}")
    if server:
        facts.append(f"fronts: {server['fronts']}, workers: {server['workers']}")
    names = ", ".join(sorted({call["index"] for call in report["by_call"]}))
    warnings = [page.Note(text, bad=text.startswith("VOID")) for text in notes(report)]
    outcome = [_table(heads, rows) for heads, rows in tables(report)]
    return Page(
        title=f"Load on {names}",
        lead=summary(report),
        facts=facts,
        sections=[
            Section("Outcome", [*warnings, *outcome]),
            Section("Latency and throughput", _latency_and_throughput(report)),
            Section("What was sent", _sent(report)),
        ],
    )


def _latency_and_throughput(report: Report) -> list[page.Part]:
    closed = report["setting"]["closed"]
    start = "sent" if closed else "due"

    def line(name: str, label: str, look: int, scale: float = 1.0) -> Curve:
        values = [(row["second"], row[name]) for row in report["by_second"]]
        return Curve(label, [(s, v / scale) for s, v in values if v is not None], look)

    calls = [line("due", start, 0), line("answered", "answered OK", 2), line("failed", "failed", 7)]
    latency = [line("p50", "p50", 0, 1e3), line("p99", "p99", 2, 1e3)]
    by_second = charts.lines(latency, "second", "latency, ms", "Latency by second", log_y=True)
    figures = [
        Figure(by_second, f"Latency of the calls that were {start} in each second."),
        Figure(charts.lines(calls, "second", "calls", "Calls by second"), "Calls by second."),
    ]
    return [_CLOSED_TIMES if closed else _OPEN_TIMES, page.Figures(figures)]


def _sent(report: Report) -> list[Table]:
    busy = ", ".join(f"{share:.0%}" for share in report["generators_busy"])
    setting = report["setting"] | {"generators busy": busy}
    rows = [(name.replace("_", " "), str(value)) for name, value in setting.items()]
    mix = [(call["call"], f"{call['share']:.1%}") for call in report["by_call"]]
    return [_table(("setting", "value"), rows, numeric=False), _table(("call", "share"), mix)]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: bool = True) -> Table:
    columns = [Column(name, numeric=numeric and place > 0) for place, name in enumerate(heads)]
    cells = [[page.Cell(text, verdict=_VERDICTS.get(text, "")) for text in row] for row in rows]
    return Table("", columns, [page.Body(cells)])
