"""Builds the report of a run: the calls sent, the outcome, and whether the run is valid.

A report is plain JSON. Times are in microseconds, and shares are from 0 to 1. `FORMAT` is increased
whenever a figure changes its meaning.
"""

import datetime as dt
import json
import math
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

import divgrpc
from divgrpc_client.load import record
from divgrpc_client.load.record import Run
from divgrpc_client.load.thresholds import Threshold, is_time, percent_of

Report: TypeAlias = dict[str, Any]

FORMAT: Final = 2
# Maximum share of errors at which a latency is meaningful. A server that refuses most calls at once
# would otherwise pass at any rate.
_ERRORS_MAX: Final = 0.001
# A generator is the bottleneck if it is busy for at least this share of the time.
_BUSY_MAX: Final = 0.95
# A generator is also the bottleneck if the 99th percentile of lateness is above this time and
# above this share of the 99th percentile of latency.
_LATE_MICROSECONDS_MAX: Final = 2_000.0
_LATE_SHARE_MAX: Final = 0.2
# A generator is also the bottleneck if it sends less than this share of the calls that were due.
_SENT_SHARE_MIN: Final = 0.98


def void_reasons(run: Run) -> list[str]:
    """Return the reasons why a run measured its generator and not the server, if any.

    In a closed loop, calls have no due time and are never late. There the lag of the event loop is
    judged instead.
    """
    samples = run.samples()
    reasons = [
        f"load generator {place + 1} was busy, or waited for a core, {busy:.0%} of the time"
        for place, busy in enumerate(_busy(run))
        if busy >= _BUSY_MAX
    ]
    subject, times = "calls were sent late", record.lateness(samples)
    if run.closed:
        subject, times = "the loop that sent calls lagged", np.array(run.lags) * 1e6
    late = record.percentile(times, 99.0) or 0.0
    latency = record.percentile(record.latencies(samples), 99.0) or 0.0
    if late > _LATE_MICROSECONDS_MAX and late > _LATE_SHARE_MAX * latency:
        reasons.append(
            f"{subject}: p99 {late / 1e3:.1f} ms, of a latency of {latency / 1e3:.1f} ms"
        )
    if not run.ended:
        reasons.append("a load generator was not done long after its last call was due")
    if not _all_sent(run):
        due = run.schedule.calls
        reasons.append(f"{len(samples):,} calls were made of {due:,.0f} that were due")
    if not len(samples):
        reasons.append("not one call was counted")
    return reasons


def _all_sent(run: Run) -> bool:
    """Tell whether the generator made (almost) all calls that were due."""
    if run.closed or run.interrupted:
        return True
    # The number of calls in a Poisson schedule is random. Fewer calls than four standard deviations
    # below the mean are practically impossible by chance.
    due = run.schedule.calls
    deviation = 4 * math.sqrt(due) if run.settings.poisson else 1
    return len(run.samples()) >= due * _SENT_SHARE_MIN - deviation


def _busy(run: Run) -> list[float]:
    return [busy / run.seconds if run.seconds else 0.0 for busy in run.busy]


def figure(report: Report, run: Run, name: str) -> float | None:
    """Return the figure called `name`, or None if it was not measured."""
    if is_time(name):
        times = record.latencies(run.samples(), "sent" if name.startswith("service_") else "due")
        percent = percent_of(name)
        if percent is None:
            return record.figures(times)["mean"]
        return record.percentile(times, percent)
    if name == "quality":
        return report["quality"]["same_ids"] if report["quality"] else None
    return float(report[name])


def judge(report: Report, run: Run, thresholds: Sequence[Threshold]) -> list[dict[str, object]]:
    """Return the outcome of each threshold.

    If more than one call in a thousand failed, no bound on a latency holds, unless one of the
    thresholds bounds the errors. Latencies leave out refused calls, and these may have been the
    slow ones.
    """
    failing = report["errors"] > _ERRORS_MAX and all(t.name != "errors" for t in thresholds)
    outcomes: list[dict[str, object]] = []
    for threshold in thresholds:
        value = figure(report, run, threshold.name)
        void = failing and is_time(threshold.name)
        holds = threshold.holds(value) and not void
        outcomes.append(
            {"text": threshold.text, "value": value, "held": holds, "too_many_errors": void}
        )
    return outcomes


def judge_rate(run: Run, rate: float, objectives: Sequence[Threshold]) -> dict[str, Any]:
    """Judge one rate of a search; `void` means that the rate failed because of the generator.

    A rate may hold even if the generator was late, because lateness only increases latencies. No
    rate holds if more than one call in a thousand failed, whatever the objectives are.
    """
    summary = record.summary(run.samples())
    holds = (
        not run.interrupted
        and all(one.holds(figure(summary, run, one.name)) for one in objectives)
        and summary["errors"] <= _ERRORS_MAX
        and _all_sent(run)
    )
    void = not holds and bool(void_reasons(run))
    return {"rate": rate, "held": holds, "void": void, "answered": run.rate(), **summary}


def build_report(run: Run, trials: Sequence[dict[str, Any]] = ()) -> Report:
    """Return the report of a run; `trials` are given if a search chose the run.

    The caller fills in `quality`, `thresholds` and `objective`.
    """
    samples = run.samples()
    latencies, service_times = record.latencies(samples), record.latencies(samples, "sent")
    seconds = max(run.seconds, 1e-9)
    kinds = run.in_time()["kind"]
    rows = sum(call.batch * int((kinds == n).sum()) for n, call in enumerate(run.calls))
    report = {
        "format": FORMAT,
        "what": "divgrpc load",
        "void": void_reasons(run),
        "interrupted": run.interrupted,
        "setting": _setting(run),
        "environment": environment(),
        "server": None if run.server is None else asdict(run.server),
        "seconds": round(run.seconds, 3),
        "offered": len(samples) / seconds,
        "rate": run.rate(),
        "rows_rate": rows / seconds,
        "retries": run.retries,
        **record.summary(samples),
        "by_call": [
            {"call": call.name, **record.summary(samples[samples["kind"] == n])}
            for n, call in enumerate(run.calls)
        ],
        "service_time": record.figures(service_times),
        "lateness": record.figures(record.lateness(samples)),
        "loop_lag": record.figures(np.array(run.lags) * 1e6),
        "generators_busy": [round(busy, 3) for busy in _busy(run)],
        "by_second": record.by_second(run),
        "curve": record.curve(latencies),
        "service_curve": record.curve(service_times),
        "quality": None,
        "thresholds": [],
        "search": None,
        "objective": [],
    }
    if trials:
        _add_search(report, trials)
    return report


def _add_search(report: Report, trials: Sequence[dict[str, Any]]) -> None:
    rate = max((trial["rate"] for trial in trials if trial["held"]), default=0.0)
    failures = [trial for trial in trials if not trial["held"]]
    # The lowest rate that failed ended the search, because of either the server or the generator.
    void = bool(failures) and min(failures, key=lambda trial: float(trial["rate"]))["void"]
    report["search"] = {"rate": rate, "bound_by_generator": void, "trials": list(trials)}
    if not void:
        report["void"] = []
    elif rate:
        # This rate held, but the generator limited the search, so the server may hold a higher
        # rate.
        report["void"] = [
            f"above {rate:,.0f} calls a second, which held, the generator was the bottleneck"
        ]


def _setting(run: Run) -> dict[str, object]:
    settings = asdict(run.settings)
    loop = f"open loop, {'Poisson' if settings.pop('poisson') else 'even'} arrivals"
    if run.closed:
        loop = f"closed loop, {run.closed} at a time"
    del settings["allow_remote"]
    total = sum(call.share for call in run.calls)
    return {
        "target": run.target,
        "loop": loop,
        "closed": run.closed,
        "schedule": [asdict(step) for step in run.schedule.steps],
        **settings,
        "mix": [
            {
                "call": call.name,
                "method": call.method,
                "index": call.index,
                "batch": call.batch,
                "options": dict(call.options),
                "share": call.share / total,
                "messages": len(messages),
                "message_bytes": round(sum(map(len, messages)) / len(messages)),
            }
            for call, messages in zip(run.calls, run.messages, strict=True)
        ],
    }


def environment() -> dict[str, str]:
    """Return the date, the machine and the versions of a run."""
    models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "date": dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "divgrpc": divgrpc.__version__,
        "processor": next(iter(models), ""),
        "cores": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
        "grpcio": version("grpcio"),
    }


def write_report(report: Report, path: Path) -> None:
    """Write a report as JSON, and create its folder if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
