"""A whole run: one trial or a search, then quality, then thresholds."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from divgrpc_client.load.highest import check_objective, find_highest_rate
from divgrpc_client.load.quality import compare_with_exact
from divgrpc_client.load.results import Report, build_report, judged
from divgrpc_client.load.schedules import Schedule
from divgrpc_client.load.sessions import Session, Settings, Tell
from divgrpc_client.load.thresholds import Threshold, parse_threshold
from divgrpc_client.load.traffic import Call


def run_load(
    target: str,
    calls: Sequence[Call],
    schedule: Schedule,
    settings: Settings | None = None,
    *,
    closed: int = 0,
    objectives: Sequence[Threshold | str] = (),
    require: Sequence[Threshold | str] = (),
    tell: Tell | None = None,
) -> Report:
    """Make the calls of a schedule and return the report.

    `closed`: so many loops instead, each calling when it was answered, for as long as the schedule
    lasts. `objectives`: find the highest rate that holds them instead, each rate for as long as the
    schedule lasts, from its first one on. `require`: what the report's `thresholds` judge. `tell`
    is called once a second. Ctrl-C ends it early with the report so far.

    Raises `InvalidArgumentError` for what cannot be asked, `RpcError` where the server refuses a
    call of the mix or is not there, `UnavailableError` where a process of the run dies.
    """
    wanted = [check_objective(_threshold(one, "objective")) for one in objectives]
    required = [_threshold(one, "require") for one in require]
    with Session(target, calls, settings) as session, _interruptible(session):
        if wanted:
            begin = schedule.steps[0].begin
            report, trialled = find_highest_rate(
                session, wanted, begin=begin, seconds=schedule.seconds, tell=tell
            )
        else:
            trialled = session.run(schedule, closed=closed, tell=tell)
            report = build_report(session, trialled)
        if session.settings.quality and not session.interrupted:
            report["quality"] = compare_with_exact(session, trialled.recording.replies)
        report["thresholds"] = judged(report, required)
    return report


def _threshold(given: Threshold | str, field: str) -> Threshold:
    return given if isinstance(given, Threshold) else parse_threshold(given, field)


@contextmanager
def _interruptible(session: Session) -> Iterator[None]:
    """Let the first Ctrl-C end the run early and a second one end the program."""
    if threading.current_thread() is not threading.main_thread():
        # Signals are heard in the main thread alone.
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def hear(_number: int, _frame: FrameType | None) -> None:
        session.interrupt()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
