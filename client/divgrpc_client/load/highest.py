"""The highest rate that holds an objective: doubled while it holds, then closed in on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.load.recordings import Recording
from divgrpc_client.load.results import ERRORS_MOST, Report, all_sent, build_report, figure
from divgrpc_client.load.schedules import constant
from divgrpc_client.load.sessions import Session, Tell, Trialled
from divgrpc_client.load.thresholds import Threshold, is_time

# A rate is found when the next one that fails is at most so much higher.
_CLOSE_ENOUGH: Final = 1.05
_TRIALS_MAX: Final = 24
# Less say nothing of a percentile.
_CALLS_LEAST: Final = 20


@dataclass(frozen=True, slots=True)
class Tried:
    """A rate, and whether it held; `void` where the generator was the bottleneck."""

    rate: float
    held: bool
    void: bool = False


def check_objective(objective: Threshold) -> Threshold:
    """Return an objective; raises `InvalidArgumentError` where a search cannot close in on it.

    It must be measured in every trial, and what holds at a rate must hold at lower ones.
    """
    if objective.sign not in ("<", "<=") or not (
        is_time(objective.name) or objective.name == "errors"
    ):
        raise InvalidArgumentError(
            "objective",
            f"objective must be a greatest latency or share of errors: {objective.text!r}",
        )
    return objective


def search(try_rate: Callable[[float], Tried], begin: float, least: float = 1.0) -> list[Tried]:
    """Try rates from `begin` on until the highest that holds is known to a twentieth.

    None below `least` is tried but the first. A void trial bounds the search as one that fails
    does: nothing is known beyond it.
    """
    tried: list[Tried] = []
    low, high = 0.0, float("inf")
    rate = begin
    while len(tried) < _TRIALS_MAX and high > low * _CLOSE_ENOUGH:
        tried.append(try_rate(rate))
        if tried[-1].held:
            low = rate
        else:
            high = rate
        rate = _next(low, high)
        if rate < least:
            break
    return tried


def _next(low: float, high: float) -> float:
    if not low:
        return high / 4
    return 2 * low if high == float("inf") else (low * high) ** 0.5


def find_highest_rate(
    session: Session,
    objectives: list[Threshold],
    *,
    begin: float,
    seconds: float,
    tell: Tell | None = None,
) -> tuple[Report, Trialled]:
    """Return the report of the highest rate that held, or of the lowest tried, and its trial.

    The report's `search` has `rate` (0 where none held), every trial, and whether the generator
    set the bound. A trial that was interrupted ends the search.
    """
    trials: dict[float, Trialled] = {}

    def try_rate(rate: float) -> Tried:
        if any(trial.interrupted for trial in trials.values()):
            return Tried(rate, held=False)
        trials[rate] = session.run(constant(rate, seconds), tell=tell)
        return _judged(session, trials[rate], objectives, rate)

    tried = [one for one in search(try_rate, begin, _CALLS_LEAST / seconds) if one.rate in trials]
    held = [one.rate for one in tried if one.held]
    best = trials[max(held) if held else min(trials)]
    report = build_report(session, best)
    report["interrupted"] = any(trial.interrupted for trial in trials.values())
    failed = [one for one in tried if not one.held]
    void = bool(failed) and min(failed, key=lambda one: one.rate).void
    if held:
        # That rate held in spite of its generator, but is the server's highest only where it failed
        # and not the generator.
        bound = f"above {max(held):,.0f} calls a second, which held, the generator was"
        report["void"] = [bound] if void else []
    elif not void:
        report["void"] = []
    report["search"] = {
        "objectives": [objective.text for objective in objectives],
        "rate": max(held, default=0.0),
        "bound_by_generator": void,
        "trials": [_told(one, trials[one.rate].recording) for one in tried],
    }
    return report, best


def _told(tried: Tried, recording: Recording) -> dict[str, object]:
    return {
        "rate": tried.rate,
        "held": tried.held,
        "void": tried.void,
        "answered": recording.rate,
        "errors": recording.codes.errors,
        "latency": recording.latency.figures(),
    }


def _judged(session: Session, trial: Trialled, objectives: list[Threshold], rate: float) -> Tried:
    """Judge a trial; being sent late only makes a call slower, so a trial may hold all the same."""
    report = build_report(session, trial)
    held = (
        not trial.interrupted
        and all(objective.holds(figure(report, objective.name)) for objective in objectives)
        and trial.recording.codes.errors <= ERRORS_MOST
        and all_sent(trial)
    )
    return Tried(rate, held, void=not held and bool(report["void"]))
