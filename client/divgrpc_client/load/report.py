"""A run as figures: what was sent, what came of it, and whether it counts.

A report is plain JSON: times in microseconds, shares from 0 to 1. `FORMAT` grows when a figure
changes its meaning.
"""

import datetime as dt
import json
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

import divgrpc
from divgrpc_client.load import recorder as recording
from divgrpc_client.load.mix import Call
from divgrpc_client.load.recorder import Recorder
from divgrpc_client.load.schedule import Schedule
from divgrpc_client.load.settings import Settings
from divgrpc_client.load.thresholds import Threshold, is_time, percent_of
from divgrpc_client.messages.responses import ServerInfo

Report: TypeAlias = dict[str, Any]

FORMAT: Final = 2
# With more errors a latency says nothing: refusals at once would let any rate hold.
_ERRORS_MAX: Final = 0.001
# A generator is the bottleneck when it is busy for this share of the time; ...
_BUSY_MAX: Final = 0.95
# ... when the 99th percentile of lateness is above this, and above this share of the latency; ...
_LATE_MICROSECONDS_MAX: Final = 2_000.0
_LATE_SHARE_MAX: Final = 0.2
# ... or when it sends less than this share of the calls that were due.
_SENT_SHARE_MIN: Final = 0.98


@dataclass(slots=True)
class Run:
    """One run: what was sent to which server, and what was recorded of it.

    `ended` is false where a process had to be killed.
    """

    target: str
    calls: Sequence[Call]
    messages: Sequence[Sequence[bytes]]
    settings: Settings
    server: ServerInfo | None
    schedule: Schedule
    closed: int
    recorder: Recorder
    interrupted: bool = False
    ended: bool = True


@dataclass(frozen=True, slots=True)
class Tried:
    """A rate of a search, and whether it held; `void` where the generator was the bottleneck."""

    rate: float
    run: Run
    held: bool
    void: bool


def void_reasons(run: Run) -> list[str]:
    """Say why a run measures its generator and not the server; empty where it does not.

    In a closed loop calls are never late, so the lag of the loop that sends them stands for it.
    """
    recorder = run.recorder
    samples = recorder.samples()
    reasons = [
        f"load generator {place + 1} was busy, or waited for a core, {busy:.0%} of the time"
        for place, busy in enumerate(_busy(recorder))
        if busy >= _BUSY_MAX
    ]
    what, times = "calls were sent late", _lateness(samples)
    if run.closed:
        what, times = "the loop that sent calls lagged", np.array(recorder.lags) * 1e6
    latencies = recording.latencies(samples)
    late, latency = (recording.percentile(t, 99.0) or 0.0 for t in (times, latencies))
    if late > _LATE_MICROSECONDS_MAX and late > _LATE_SHARE_MAX * latency:
        reasons.append(f"{what}: p99 {late / 1e3:.1f} ms, of a latency of {latency / 1e3:.1f} ms")
    if not run.ended:
        reasons.append("a load generator was not done long after its last call was due")
    if not _all_sent(run):
        due = run.schedule.calls
        reasons.append(f"{len(samples):,} calls were made of {due:,.0f} that were due")
    if not len(samples):
        reasons.append("not one call was counted")
    return reasons


def _all_sent(run: Run) -> bool:
    """Tell whether the generator got round to the calls that were due."""
    if run.closed or run.interrupted:
        return True
    # The number of a Poisson schedule varies itself: four standard deviations are no accident.
    due = run.schedule.calls
    deviation = 4 * math.sqrt(due) if run.settings.poisson else 1
    return len(run.recorder.samples()) >= due * _SENT_SHARE_MIN - deviation


def _lateness(samples: recording.Samples) -> recording.Times:
    return np.asarray((samples["sent"] - samples["due"]) * 1e6)


def _busy(recorder: Recorder) -> list[float]:
    return [busy / recorder.seconds if recorder.seconds else 0.0 for busy in recorder.busy]


def figure(report: Report, recorder: Recorder, name: str) -> float | None:
    """Return the figure that a threshold names; None where it was not measured."""
    if is_time(name):
        since = "sent" if name.startswith("service_") else "due"
        plain = name.removeprefix("service_")
        times = recording.latencies(recorder.samples(), since)
        percent = percent_of(plain)
        if percent is not None:
            return recording.percentile(times, percent)
        return recording.figures(times)[plain]
    if name == "quality":
        return report["quality"]["same_ids"] if report["quality"] else None
    return float(report[name])


def judge(
    report: Report, recorder: Recorder, thresholds: Sequence[Threshold]
) -> list[dict[str, object]]:
    """Return the outcome of each threshold.

    A latency does not hold where more calls failed than one in a thousand, unless a threshold says
    how many may: it is of the calls that were answered, and those that failed may be the slow ones.
    """
    failing = report["errors"] > _ERRORS_MAX and all(t.name != "errors" for t in thresholds)
    outcomes: list[dict[str, object]] = []
    for threshold in thresholds:
        value = figure(report, recorder, threshold.name)
        void = failing and is_time(threshold.name)
        held = threshold.holds(value) and not void
        outcomes.append(
            {"text": threshold.text, "value": value, "held": held, "too_many_errors": void}
        )
    return outcomes


def judge_rate(run: Run, rate: float, objectives: Sequence[Threshold]) -> Tried:
    """Judge a rate of a search; late sending only makes calls slower, so it may hold all the same.

    The errors may be one in a thousand at most, whatever the objectives.
    """
    report = build_report(run)
    held = (
        not run.interrupted
        and all(one.holds(figure(report, run.recorder, one.name)) for one in objectives)
        and report["errors"] <= _ERRORS_MAX
        and _all_sent(run)
    )
    return Tried(rate, run, held, void=not held and bool(report["void"]))


def build_report(run: Run, search: Sequence[Tried] = ()) -> Report:
    """Return the report of one run, which a search may have chosen; without quality, thresholds."""
    recorder = run.recorder
    samples = recorder.samples()
    timed = {
        "latency": recording.latencies(samples),
        "service_time": recording.latencies(samples, "sent"),
        "lateness": _lateness(samples),
        "loop_lag": np.array(recorder.lags) * 1e6,
    }
    report = {
        "format": FORMAT,
        "what": "divgrpc load",
        "void": void_reasons(run),
        "interrupted": run.interrupted or any(tried.run.interrupted for tried in search),
        "setting": _setting(run),
        "environment": environment(),
        "server": None if run.server is None else asdict(run.server),
        "seconds": round(recorder.seconds, 3),
        **_counts(run, samples),
        **{name: recording.figures(times) for name, times in timed.items()},
        "generators_busy": [round(busy, 3) for busy in _busy(recorder)],
        "by_second": recording.by_second(recorder),
        "curve": recording.curve(timed["latency"]),
        "service_curve": recording.curve(timed["service_time"]),
        "quality": None,
        "thresholds": [],
        "search": None,
    }
    if search:
        _add_search(report, search)
    return report


def _add_search(report: Report, search: Sequence[Tried]) -> None:
    """Add the trials of a search, and what bounded it: the server or the generator."""
    rates = [tried.rate for tried in search if tried.held]
    failed = [tried for tried in search if not tried.held]
    void = bool(failed) and min(failed, key=lambda tried: tried.rate).void
    if not void:
        report["void"] = []
    elif rates:
        # The rate held in spite of its generator, but the server may hold more.
        report["void"] = [
            f"above {max(rates):,.0f} calls a second, which held, the generator was the bottleneck"
        ]
    report["search"] = {
        "rate": max(rates, default=0.0),
        "bound_by_generator": void,
        "trials": [
            {
                "rate": tried.rate,
                "held": tried.held,
                "void": tried.void,
                "answered": tried.run.recorder.rate(),
                "errors": recording.errors(tried.run.recorder.samples()),
                "latency": recording.figures(recording.latencies(tried.run.recorder.samples())),
            }
            for tried in search
        ],
    }


def _counts(run: Run, samples: recording.Samples) -> dict[str, object]:
    recorder = run.recorder
    seconds = max(recorder.seconds, 1e-9)
    kinds = recorder.in_time()["kind"]
    rows = sum(call.batch * int((kinds == n).sum()) for n, call in enumerate(run.calls))
    by_kind = [(call, samples[samples["kind"] == n]) for n, call in enumerate(run.calls)]
    return {
        "calls": len(samples),
        "offered": len(samples) / seconds,
        "rate": recorder.rate(),
        "rows_rate": rows / seconds,
        "errors": recording.errors(samples),
        "codes": recording.codes(samples),
        "retries": recorder.retries,
        "by_call": [
            {
                "call": call.name,
                "calls": len(part),
                "errors": recording.errors(part),
                "codes": recording.codes(part),
                "latency": recording.figures(recording.latencies(part)),
            }
            for call, part in by_kind
        ],
    }


def _setting(run: Run) -> dict[str, object]:
    settings = asdict(run.settings)
    loop = f"open loop, {'Poisson' if run.settings.poisson else 'even'} arrivals"
    if run.closed:
        loop = f"closed loop, {run.closed} at a time"
    share = sum(call.share for call in run.calls)
    return {
        "target": run.target,
        "loop": loop,
        "closed": run.closed,
        "schedule": [asdict(step) for step in run.schedule.steps],
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
            for call, messages in zip(run.calls, run.messages, strict=True)
        ],
    }


def environment() -> dict[str, str]:
    """Return date, machine and versions, without which a figure means nothing."""
    with Path("/proc/cpuinfo").open() as lines:
        models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
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
