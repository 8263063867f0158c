"""Figures of a report as people read them, the same on a terminal and on a page."""

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from divgrpc_client.load.results import Report, figure
from divgrpc_client.load.thresholds import is_time

Line: TypeAlias = tuple[str, ...]

# Of the table of J and h: the four ways are those of `quality.LISTS`.
MEASURED_HEADS: Final = ("call", "", "answered", "exact", "nearest", "exhaustive", "gap closed")
SHOWN: Final = ("p50", "p90", "p99", "p99.9", "max", "mean")
# What two reports are compared by; of the last ones more is better.
COMPARED: Final = (
    "p50",
    "p90",
    "p99",
    "p99.9",
    "max",
    "errors",
    "rate",
    "quality",
    "gap_closed",
    "h",
)
_MORE_IS_BETTER: Final = ("rate", "quality", "gap_closed", "h")
# Two runs of one thing differ by less than this: of a time or rate in proportion, of a share by
# itself, as what is missing to one may have doubled.
_SAME: Final = 0.05
_SAME_SHARE: Final = 0.005
_SHARES: Final = ("errors", "quality", "gap_closed", "h")
_KIBI: Final = 1024


def ms(microseconds: float | None) -> str:
    """Return a time in milliseconds."""
    return "" if microseconds is None else f"{microseconds / 1e3:,.2f}"


def told(name: str, value: float | None) -> str:
    """Return a figure with its unit."""
    if value is None:
        return "not measured"
    if is_time(name):
        return f"{ms(value)} ms"
    return f"{value:,.1f} a second" if name == "rate" else f"{value:.2%}"


def summary(report: Report) -> str:
    """Say in a sentence or two what came of a run."""
    setting, latency = report["setting"], report["latency"]
    kind = f"{setting['loop'].capitalize()}"
    return (
        f"{kind}: {report['calls']:,} calls in {report['seconds']:,.1f} s, "
        f"{report['offered']:,.1f} a second offered, {report['rate']:,.1f} answered OK; "
        f"p50 {ms(latency['p50']) or '-'} ms, p99 {ms(latency['p99']) or '-'} ms; "
        f"{report['errors']:.2%} errors."
    )


def notes(report: Report) -> Iterator[str]:
    """Yield what must not be overlooked."""
    if report["void"]:
        yield f"VOID: the generator was the bottleneck. {'; '.join(report['void'])}."
    if report["interrupted"]:
        yield "Interrupted: these are the figures up to then."
    if report["setting"]["closed"]:
        yield (
            "Closed loop: every call waits for the one before it, so a server that stalls is asked "
            "less meanwhile, and these percentiles are not those that users would see."
        )
    search = report["search"]
    if search is not None:
        what = " and ".join(search["objectives"])
        found = f"Highest rate with {what}: {search['rate']:,.0f} calls a second"
        if not search["rate"]:
            found = f"No rate that was tried holds {what}"
        bound = ", where the generator was the bottleneck" if search["bound_by_generator"] else ""
        yield f"{found}{bound}. The other figures are those of that trial."


def latencies(report: Report) -> list[Line]:
    """Return the rows of the table of times: all calls, then each kind where there are several."""
    rows = [("latency, from when due", report["latency"])]
    if not report["setting"]["closed"]:
        rows.append(("service time, from when sent", report["service_time"]))
        rows.append(("lateness of sending", report["lateness"]))
    if len(report["by_call"]) > 1:
        rows += [(own["call"], own["latency"]) for own in report["by_call"]]
    return [(name, *(ms(times[p]) for p in SHOWN)) for name, times in rows]


def codes(report: Report) -> list[Line]:
    """Return the rows of the table of statuses, what was tried again apart."""
    total = max(report["calls"], 1)
    rows: list[Line] = [(name, f"{n:,}", f"{n / total:.2%}") for name, n in report["codes"].items()]
    return rows + [
        (f"tried again after {n}", f"{m:,}", "") for n, m in report["retried_codes"].items()
    ]


def server_use(report: Report) -> list[Line]:
    """Return the rows of the table of what the server used."""
    answered = report["rate"] * report["seconds"]
    return [
        (
            role,
            str(use["processes"]),
            f"{use['cpu_seconds'] / max(report['seconds'], 1e-9):.2f}",
            f"{use['cpu_seconds'] / answered * 1e6:,.0f}" if answered else "",
            f"{use['bytes_own'] / _KIBI**2:,.0f}",
            f"{use['bytes_resident'] / _KIBI**2:,.0f}",
        )
        for role, use in report["server_use"].items()
    ]


def thresholds(report: Report) -> list[Line]:
    """Return the rows of the table of thresholds."""
    return [
        (one["text"], told(_name(one["text"]), one["value"]), _outcome(one))
        for one in report["thresholds"]
    ]


def quality(report: Report) -> str:
    """Say how good answers were; empty where nobody asked."""
    found = report["quality"]
    if not found:
        return ""
    text = f"Quality: of {found['rows']:,} rows compared with exact search"
    if found["same_ids"] is not None:
        text += (
            f", {found['same_ids']:.2%} of the exact results were found, "
            f"{found['same_lists']:.2%} of the lists are equal"
        )
    no_answer = f"no answer came ({found['refusal']})"
    for name, why in (("replaced", "the index was replaced"), ("unanswered", no_answer)):
        text += f"; {found[name]:,} left out: {why}" if found[name] else ""
    if found.get("unmeasured"):
        text += f"; J of {found['unmeasured']:,} is not known: what it takes was not answered"
    return f"{text}."


def measured(report: Report) -> list[Line]:
    """Return the rows of the table of J and h: of what was found, and of three other ways."""
    return [
        (
            own["call"],
            name,
            *("" if value is None else f"{value:.4f}" for value in own[figure].values()),
            f"{own['gap_closed']:.1%}" if name == "J" and own["gap_closed"] is not None else "",
        )
        for own in (report["quality"] or {"measured": ()})["measured"]
        for name, figure in (("J", "objective"), ("h", "h"))
        if own[figure] is not None
    ]


def comparison(one: Report, other: Report) -> list[Line]:
    """Return the rows of a table of two reports: name, both, their ratio, and what that means."""
    rows: list[Line] = []
    for name in COMPARED:
        a, b = figure(one, name), figure(other, name)
        if a is None and b is None:
            continue
        if a is None or b is None:
            ratio, verdict = "", "only A has it" if b is None else "only B has it"
        else:
            ratio, verdict = f"{b / a:.3f}" if a else "", _verdict(name, a, b)
        rows.append((name, told(name, a), told(name, b), ratio, verdict))
    return rows


def differences(one: Report, other: Report) -> list[str]:
    """Say why two reports should not be compared; empty where nothing is against it."""
    found = []
    for letter, report in (("A", one), ("B", other)):
        if report["void"]:
            found.append(f"{letter} is void: {'; '.join(report['void'])}")
        if report["interrupted"]:
            found.append(f"{letter} was interrupted")
    found += [
        f"they differ in {name}"
        for name in ("loop", "schedule", "retries", "timeout", "mix")
        if one["setting"][name] != other["setting"][name]
    ]
    if one["environment"]["processor"] != other["environment"]["processor"]:
        found.append("they are of two machines")
    return found


def _outcome(judged: dict[str, Any]) -> str:
    if judged["held"]:
        return "held"
    return "MISSED: too many calls failed" if judged["too_many_errors"] else "MISSED"


def _name(text: str) -> str:
    return text.partition("<")[0].partition(">")[0].strip()


def _verdict(name: str, a: float, b: float) -> str:
    room = _SAME_SHARE if name in _SHARES else _SAME * max(abs(a), abs(b))
    if abs(b - a) <= room:
        return "same"
    return "better" if (b > a) == (name in _MORE_IS_BETTER) else "worse"
