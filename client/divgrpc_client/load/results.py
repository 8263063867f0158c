"""A run as figures: what was asked, what came of it, and whether it counts.

A report is plain JSON: times in microseconds, shares from 0 to 1, bytes. `FORMAT` grows when a
figure changes its meaning.
"""

import datetime as dt
import json
import math
import os
import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import divgrpc
from divgrpc.errors import InvalidArgumentError
from divgrpc_client.load.recordings import Recording, Times
from divgrpc_client.load.sessions import Session, Trialled
from divgrpc_client.load.thresholds import MEASURED, Threshold, is_time, percentile

Report: TypeAlias = dict[str, Any]

FORMAT: Final = 1
# A latency says nothing where more calls fail: what is refused at once would make any rate hold.
ERRORS_MOST: Final = 0.001
# A generator is the bottleneck where it is busy for so much of the time ...
_BUSY_MOST: Final = 0.95
# ... where so many of a hundred calls leave late by more than this and by more than that share of
# the latency they are part of ...
_LATE_PERCENTILE: Final = 99.0
_LATE_MOST: Final = 2_000.0
_LATE_SHARE: Final = 0.2
# ... or where it does not get round to this share of the calls that were due.
_SENT_LEAST: Final = 0.98


def void_reasons(trialled: Trialled) -> list[str]:
    """Say why a run tells of its generator and not of the server; empty where it does not.

    In a closed loop calls are never late, so the lag of the loop that makes them stands for it.
    """
    recording = trialled.recording
    reasons = []
    for place, busy in enumerate(_busy(recording)):
        if busy >= _BUSY_MOST:
            reasons.append(
                f"load generator {place + 1} was busy, or waited for a core, {busy:.0%} of the time"
            )
    told, times = ("the loop that made calls lagged", recording.lag)
    if not trialled.closed:
        told, times = ("calls were sent late", recording.lateness)
    late, latency = (t.percentile(_LATE_PERCENTILE) or 0.0 for t in (times, recording.latency))
    if late > _LATE_MOST and late > _LATE_SHARE * latency:
        reasons.append(f"{told}: p99 {late / 1e3:.1f} ms, of a latency of {latency / 1e3:.1f} ms")
    if not trialled.ended:
        reasons.append("a load generator was not done long after its last call was due")
    if not all_sent(trialled):
        due = trialled.schedule.calls
        reasons.append(f"{recording.codes.total:,} calls were made of {due:,.0f} that were due")
    if not recording.codes.total:
        reasons.append("not one call was counted")
    return reasons


def all_sent(trialled: Trialled) -> bool:
    """Tell whether a generator got round to what was due, but for what had no room in flight."""
    if trialled.closed or trialled.interrupted:
        return True
    # Of a random schedule the number itself varies; four standard deviations are no accident.
    due = trialled.schedule.calls
    astray = 4 * math.sqrt(due) if trialled.poisson else 1
    return trialled.recording.codes.total >= due * _SENT_LEAST - astray


def figure(report: Report, name: str) -> float | None:
    """Return the figure that a threshold names; None where it was not measured."""
    if is_time(name):
        prefix = "service_" if name.startswith("service_") else ""
        plain = name.removeprefix("service_")
        number = percentile(plain)
        if number is not None:
            return Times(report[f"{prefix}histogram"]).percentile(number)
        found: float | None = report["service_time" if prefix else "latency"][plain]
        return found
    quality = report["quality"] or {"same_ids": None, "measured": []}
    if name == "quality":
        return cast("float | None", quality["same_ids"])
    if name in MEASURED:
        values = [_measured(own, name) for own in quality["measured"]]
        return min((value for value in values if value is not None), default=None)
    return float(report[name])


def _measured(own: dict[str, Any], name: str) -> float | None:
    """Return a figure of one kind of call."""
    value = own[name]
    return cast("float | None", value["found"] if isinstance(value, dict) else value)


def judged(report: Report, thresholds: list[Threshold]) -> list[dict[str, object]]:
    """Return what became of each threshold.

    A latency does not hold where more calls failed than `ERRORS_MOST`, unless a threshold of its
    own says how many may: it is of calls that were answered, and those that failed may be the slow.
    """
    failing = report["errors"] > ERRORS_MOST and all(t.name != "errors" for t in thresholds)
    return [
        {
            "text": t.text,
            "value": value,
            "held": t.holds(value) and not void,
            "too_many_errors": void,
        }
        for t in thresholds
        for value, void in [(figure(report, t.name), failing and is_time(t.name))]
    ]


def build_report(session: Session, trialled: Trialled) -> Report:
    """Return the report of one trial; quality, thresholds and search are for others to add."""
    recording = trialled.recording
    # Answers that come after the end make rows of their own, which are no seconds of the run.
    seconds = recording.by_second()[: math.ceil(recording.seconds)]
    for row, use in zip(seconds, trialled.server, strict=False):
        row["server_cores"] = round(sum(use.cores.values()), 3)
        row["server_bytes"] = sum(use.bytes_own.values())
    return {
        "format": FORMAT,
        "what": "divgrpc load",
        "void": void_reasons(trialled),
        "interrupted": trialled.interrupted,
        "setting": _setting(session, trialled),
        "environment": environment(),
        "server": None if session.server is None else asdict(session.server),
        "seconds": round(recording.seconds, 3),
        **_counts(session, recording),
        "latency": recording.latency.figures(),
        "service_time": recording.service.figures(),
        "lateness": recording.lateness.figures(),
        "loop_lag": recording.lag.figures(),
        "generators_busy": [round(busy, 3) for busy in _busy(recording)],
        "by_second": seconds,
        "curve": recording.latency.curve(),
        "service_curve": recording.service.curve(),
        "histogram": recording.latency.encoded(),
        "service_histogram": recording.service.encoded(),
        "server_use": {role: asdict(use) for role, use in trialled.used.items()},
        "quality": None,
        "thresholds": [],
        "search": None,
    }


def _counts(session: Session, recording: Recording) -> dict[str, object]:
    kinds = list(zip(session.calls, recording.by_call, strict=True))
    return {
        "calls": recording.codes.total,
        "offered": recording.codes.total / recording.seconds if recording.seconds else 0.0,
        "rate": recording.rate,
        "rows_rate": sum(
            call.batch * count
            for call, count in zip(session.calls, recording.in_time_by_call, strict=True)
        )
        / max(recording.seconds, 1e-9),
        "errors": recording.codes.errors,
        "codes": recording.codes.named(),
        "retries": recording.retried.total,
        "retried_calls": recording.retried_calls,
        "retried_codes": recording.retried.named(),
        "by_call": [
            {
                "call": call.name,
                "calls": codes.total,
                "errors": codes.errors,
                "codes": codes.named(),
                "latency": times.figures(),
            }
            for call, (times, codes) in kinds
        ],
    }


def _busy(recording: Recording) -> list[float]:
    return [busy / recording.seconds if recording.seconds else 0.0 for busy in recording.busy]


def _setting(session: Session, trialled: Trialled) -> dict[str, object]:
    settings = asdict(session.settings)
    loop = f"open loop, {'Poisson' if session.settings.poisson else 'even'} arrivals"
    if trialled.closed:
        loop = f"closed loop, {trialled.closed} at a time"
    share = sum(call.share for call in session.calls)
    return {
        "target": session.target,
        "loop": loop,
        "closed": trialled.closed,
        "schedule": [asdict(step) for step in trialled.schedule.steps],
        **{name: settings[name] for name in settings if name not in ("poisson", "allow_remote")},
        "mix": [
            {
                "call": call.name,
                "method": call.method,
                "index": call.index,
                "batch": call.batch,
                "options": dict(call.options),
                "share": call.share / share,
                "messages": len(messages),
                "message_bytes": round(sum(map(len, messages)) / len(messages)),
            }
            for call, messages in zip(session.calls, session.messages, strict=True)
        ],
    }


def environment() -> dict[str, str]:
    """Return what a figure is worth nothing without: date, machine, versions of the caller."""
    with Path("/proc/cpuinfo").open() as told:
        models = (line.partition(":")[2].strip() for line in told if line.startswith("model name"))
        processor = next(models, "")
    return {
        "date": dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "divgrpc": divgrpc.__version__,
        "processor": processor,
        "cores": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
        "grpcio": version("grpcio"),
    }


def write_report(report: Report, path: Path) -> None:
    """Write a report as JSON; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def read_report(path: Path) -> Report:
    """Read one; raises `InvalidArgumentError` where the file is missing or is none."""
    try:
        report: Report = json.loads(path.read_text(encoding="utf-8"))
        known = report["what"] == "divgrpc load" and report["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise InvalidArgumentError(
            "compare", f"{path} is no report that divgrpc load --save has written"
        )
    return report
