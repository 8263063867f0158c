"""Builds the report of a run: the calls sent, the outcome, and whether the run is valid.

A report is plain JSON. Latencies and lateness are in microseconds, other times in seconds. Shares
are from 0 to 1. `FORMAT` is increased whenever a figure changes its meaning.
"""

import datetime as dt
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeAlias

import divgrpc
from divgrpc_client.load import record
from divgrpc_client.load.record import Run
from divgrpc_client.load.thresholds import Threshold, is_time, percent_of

Report: TypeAlias = dict[str, Any]

FORMAT: Final = 3
# Maximum share of errors at which a latency is meaningful. A server that refuses most calls at once
# would otherwise pass at any rate.
_ERRORS_MAX: Final = 0.001
# A generator is the bottleneck if it is busy for at least this share of the time.
_BUSY_MAX: Final = 0.95
# A generator is also the bottleneck if the 99th percentile of lateness is above this time and
# above this share of the 99th percentile of latency.
_LATE_MICROSECONDS_MAX: Final = 2_000.0
_LATE_SHARE_MAX: Final = 0.2


def build_report(run: Run, trials: Sequence[dict[str, Any]] = ()) -> Report:
    """Return the report of a run; `trials` are given if a search chose the run.

    The caller fills in `thresholds` and the `objective` of a search.
    """
    report = {
        "format": FORMAT,
        "what": "divgrpc load",
        "void": void_reasons(run),
        "interrupted": run.interrupted,
        "setting": _setting(run),
        "environment": {
            "date": dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "divgrpc": divgrpc.__version__,
            "cores": len(os.sched_getaffinity(0)),
        },
        "server": None if run.server is None else asdict(run.server),
        "seconds": round(run.seconds, 3),
        "offered": len(run.samples) / max(run.seconds, 1e-9),
        "rate": run.rate(),
        **record.summary(run.samples),
        "by_call": _by_call(run),
        "lateness": record.figures(record.lateness(run.samples)),
        "generators_busy": [round(busy, 3) for busy in run.busy],
        "by_second": record.by_second(run),
        "thresholds": [],
        "search": None,
    }
    if trials:
        rates = [trial["rate"] for trial in trials if trial["held"]]
        report["search"] = {"objective": [], "rate": max(rates, default=0.0), "trials": [*trials]}
        # The lowest rate that failed limits the result, so `void` tells whether this rate failed
        # because of the generator. If a rate held, the other figures are of the trial at the
        # highest such rate.
        failures = sorted((t for t in trials if not t["held"]), key=lambda t: float(t["rate"]))
        report["void"] = [
            f"at {trial['rate']:,.0f} calls a second, {reason}"
            for trial in failures[:1]
            for reason in trial["void"]
        ]
    return report


def _by_call(run: Run) -> list[dict[str, Any]]:
    total, kinds = sum(call.share for call in run.calls), run.samples["kind"]
    return [
        {
            "call": call.name,
            "index": call.index,
            "share": call.share / total,
            **record.summary(run.samples[kinds == number]),
        }
        for number, call in enumerate(run.calls)
    ]


def void_reasons(run: Run) -> list[str]:
    """Return the reasons why a run measured its generator and not the server, if any."""
    reasons = [
        f"load generator {place + 1} was busy, or waited for a core, {busy:.0%} of the time"
        for place, busy in enumerate(run.busy)
        if busy >= _BUSY_MAX
    ]
    late = record.percentile(record.lateness(run.samples), 99.0) or 0.0
    latency = record.percentile(record.latencies(run.samples), 99.0) or 0.0
    if late > _LATE_MICROSECONDS_MAX and late > _LATE_SHARE_MAX * latency:
        text = f"p99 {late / 1e3:.1f} ms, of a latency of {latency / 1e3:.1f} ms"
        reasons.append(f"calls were sent late: {text}")
    count, due = len(run.samples), run.schedule.calls
    if not run.all_sent():
        reasons.append(f"{count:,} calls were made of {due:,.0f} that were due")
    # A run that is interrupted during its warm-up says nothing about its generator either.
    if run.interrupted and not count:
        return []
    return reasons if count else [*reasons, "not one call was counted"]


def judge(report: Report, run: Run, thresholds: Sequence[Threshold]) -> list[dict[str, object]]:
    """Return the outcome of each threshold.

    If more than one call in a thousand failed, no bound on a latency holds, unless one of the
    thresholds bounds the errors. Latencies leave out refused calls, which might have been slow if
    the server had answered them.
    """
    has_failures = report["errors"] > _ERRORS_MAX
    too_many_errors = has_failures and all(t.name != "errors" for t in thresholds)
    outcomes: list[dict[str, object]] = []
    for threshold in thresholds:
        value = figure(report, run, threshold.name)
        void = too_many_errors and is_time(threshold.name)
        holds = threshold.holds(value) and not void
        outcomes.append(
            {"text": threshold.text, "value": value, "held": holds, "too_many_errors": void}
        )
    return outcomes


def figure(report: Report, run: Run, name: str) -> float | None:
    """Return the figure called `name`, or None if there were no calls to measure it."""
    percent = percent_of(name)
    if percent is not None:
        return record.percentile(record.latencies(run.samples), percent)
    return report["latency"]["mean"] if name == "mean" else float(report[name])


def judge_rate(run: Run, rate: float, objectives: Sequence[Threshold]) -> dict[str, Any]:
    """Judge one rate of a search; `void` has the reasons if it failed because of the generator.

    A rate may hold even if the generator was late, because lateness only increases latencies. No
    rate holds if more than one call in a thousand failed, whatever the objectives are.
    """
    summary = record.summary(run.samples)
    holds = (
        not run.interrupted
        and all(bound.holds(figure(summary, run, bound.name)) for bound in objectives)
        and summary["errors"] <= _ERRORS_MAX
        and run.all_sent()
    )
    void = [] if holds else void_reasons(run)
    return {"rate": rate, "held": holds, "void": void, "answered": run.rate(), **summary}


def _setting(run: Run) -> dict[str, object]:
    loop = f"open loop, {'Poisson' if run.settings.poisson else 'even'} arrivals"
    if run.closed:
        loop = f"closed loop, {run.closed} at a time"
    names = ("warm_up", "timeout", "processes", "channels", "max_in_flight", "seed")
    return {
        "target": run.target,
        "loop": loop,
        "closed": run.closed,
        "schedule": str(run.schedule),
        **{name: getattr(run.settings, name) for name in names},
    }


def write_report(report: Report, path: Path) -> None:
    """Write a report as JSON, and create its folder if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
