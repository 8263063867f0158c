"""Runs load tests: starts processes, checks and sends calls, searches for the highest rate."""

import multiprocessing
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, Final, Self, TypeAlias, cast

import grpc

from divgrpc.errors import InvalidArgumentError, UnavailableError, invalid
from divgrpc_client.client import Client
from divgrpc_client.load.calls import BYTES_MAX, Call
from divgrpc_client.load.generator import STOP, Task, Trial
from divgrpc_client.load.quality import compare_with_exact, send
from divgrpc_client.load.record import Part, Run
from divgrpc_client.load.report import Report, build_report, judge, judge_rate
from divgrpc_client.load.schedule import Schedule, constant
from divgrpc_client.load.settings import Settings, check_target
from divgrpc_client.load.thresholds import Threshold, is_time, parse_threshold
from divgrpc_client.messages.responses import ServerInfo
from divgrpc_client.rpc.errors import RpcError

# Maximum number of replies kept for the comparison with exact search.
_REPLIES_MAX: Final = 500
_KINDS_MAX: Final = 1_000
_CHECK_SECONDS: Final = 60.0
# Time between sending a trial to the processes and its first call, so that every process has
# received the trial by then.
_LEAD_SECONDS: Final = 0.2
# A process that still runs this long after the deadline of its last call is killed.
_GRACE_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.1
_START_SECONDS: Final = 120.0
_EXIT_SECONDS: Final = 5.0
# Maximum time to wait for the rest of a message that a process has begun to send.
_MESSAGE_SECONDS: Final = 10
# The search ends when the lowest rate that failed is at most this many times the highest rate that
# held.
_RATE_RATIO: Final = 1.05
_TRIALS_MAX: Final = 24
# With fewer calls in a trial, its percentiles are meaningless.
_CALLS_MIN: Final = 20

Tell: TypeAlias = Callable[[Run], object]


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
    """Send the calls of a schedule and return the report, a dictionary ready for JSON.

    target: host:port of the server.
    calls: the kinds of calls to send.
    schedule: the rates of calls over time.
    settings: options of the run. Default: `Settings()`.
    closed: number of calls to keep in flight while the schedule lasts. The rates of the schedule
        are then ignored. 0 sends calls at the rates of the schedule.
    objectives: bounds for a search of the highest rate that meets them. Each trial of the search
        lasts as long as the schedule. The first trial has the first rate of the schedule.
    require: bounds on figures of the report, such as "p99<20ms". `thresholds` in the report tells
        whether each bound holds.
    tell: called once a second with the `Run` so far.

    Ctrl-C ends the run and returns the report so far. Raises `InvalidArgumentError` for an invalid
    call or threshold, `RpcError` if the server refuses a call of the mix or does not answer, and
    `UnavailableError` if a process of the run dies.
    """
    goals = [_objective(one) for one in objectives]
    bounds = [_threshold(one, "require") for one in require]
    if any(bound.name == "quality" for bound in bounds) and not (settings and settings.quality):
        raise InvalidArgumentError("quality", "require of quality needs quality, a share of calls")
    with Session(target, calls, settings) as session, _interruptible(session):
        if goals:
            run, trials = session.find_highest_rate(
                goals, schedule.steps[0].begin, schedule.seconds, tell
            )
            report = build_report(run, trials)
            report["objective"] = [goal.text for goal in goals]
        else:
            run = session.run(schedule, closed=closed, tell=tell)
            report = build_report(run)
        if session.settings.quality and not session.interrupted:
            answers = [
                (session.calls[kind].method, session.messages[kind][message], reply)
                for kind, message, reply in run.replies
            ]
            report["quality"] = compare_with_exact(target, answers, lambda: session.interrupted)
        report["thresholds"] = judge(report, run, bounds)
    return report


def _objective(objective: Threshold | str) -> Threshold:
    """Return a bound of a search: if it holds at one rate, it must hold at all lower rates."""
    goal = _threshold(objective, "objective")
    if goal.sign not in ("<", "<=") or not (is_time(goal.name) or goal.name == "errors"):
        raise invalid("objective", f"must be a greatest latency or share of errors: {goal.text!r}")
    return goal


def _threshold(threshold: Threshold | str, field: str) -> Threshold:
    return threshold if isinstance(threshold, Threshold) else parse_threshold(threshold, field)


class Session:
    """Context manager for the processes that send calls to one server, in one or more runs."""

    def __init__(
        self, target: str, calls: Sequence[Call], settings: Settings | None = None
    ) -> None:
        self.settings = settings or Settings()
        self.target = check_target(target, allow_remote=self.settings.allow_remote)
        if not 0 < len(calls) <= _KINDS_MAX:
            raise InvalidArgumentError(
                "mix", f"there must be 1 to {_KINDS_MAX} kinds of call, got {len(calls)}"
            )
        self.calls = list(calls)
        room = BYTES_MAX // len(calls)
        self.messages = [call.messages(self.settings.seed, room) for call in calls]
        self.server: ServerInfo | None = None
        self.interrupted = False
        self._stack = ExitStack()
        self._generators: list[Process] = []

    def __enter__(self) -> Self:
        methods = [call.method for call in self.calls]
        shares = [call.share for call in self.calls]
        with self._stack:
            for place in range(self.settings.processes):
                task = Task(self.target, methods, self.messages, shares, place, self.settings)
                process = Process(task)
                self._stack.callback(process.close)
                self._generators.append(process)
            # Wait for all processes to start, so that none of them starts the run late.
            for process in self._generators:
                receive(process.connection, _START_SECONDS)
            self._check()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def interrupt(self) -> None:
        """End the current run with the calls made so far; safe in a signal handler."""
        self.interrupted = True

    def run(self, schedule: Schedule, *, closed: int = 0, tell: Tell | None = None) -> Run:
        """Send the calls of a schedule, or keep `closed` calls in flight while it lasts."""
        settings = self.settings
        warm_up = settings.warm_up if closed or schedule.steps[0].begin else 0.0
        begin = time.monotonic() + _LEAD_SECONDS
        run = Run(
            *(self.target, self.calls, self.messages, settings, self.server, schedule, closed),
            begin=begin + warm_up,
            end=begin + warm_up + schedule.seconds,
        )
        for process in self._generators:
            process.connection.send(Trial(begin, schedule.after(warm_up), closed))
        self._collect(run, tell)
        return run

    def _collect(self, run: Run, tell: Tell | None) -> None:
        """Record the parts that processes send until all are done; kill overdue processes."""
        next_look = run.begin
        overdue = run.end + self.settings.timeout + _GRACE_SECONDS
        waiting = {process.connection: n for n, process in enumerate(self._generators)}
        while waiting:
            for ready in wait(list(waiting), _POLL_SECONDS):
                connection = cast(Connection, ready)
                part = receive(connection)
                if part is None:
                    del waiting[connection]
                else:
                    run.add(waiting[connection], part, time.monotonic())
                    del run.replies[_REPLIES_MAX:]
            now = time.monotonic()
            if self.interrupted and not run.interrupted:
                run.interrupt(now)
                for process in self._generators:
                    with suppress(OSError):
                        process.connection.send(STOP)
            if tell is not None and now >= next_look:
                next_look += 1.0
                tell(run)
            if now > overdue:
                for place in waiting.values():
                    self._generators[place].program.kill()
                run.ended = False
                return

    def find_highest_rate(
        self, objectives: Sequence[Threshold], begin: float, seconds: float, tell: Tell | None
    ) -> tuple[Run, list[dict[str, Any]]]:
        """Return a run and all trials of a search for the highest rate.

        The run is the one at the highest rate that held or, if no rate held, at the lowest rate.
        """
        runs: list[Run] = []
        trials: list[dict[str, Any]] = []

        def holds(rate: float) -> bool:
            if trials and self.interrupted:
                return False
            run = self.run(constant(rate, seconds), tell=tell)
            trials.append(judge_rate(run, rate, objectives))
            # Until a rate holds, the search goes down, and the latest run is kept. After that only
            # runs at rates that held are kept, and each has a higher rate than the one before.
            if trials[-1]["held"] or not any(trial["held"] for trial in trials):
                runs[:] = [run]
            return bool(trials[-1]["held"])

        search(holds, begin, _CALLS_MIN / seconds)
        (run,) = runs
        run.interrupted = self.interrupted
        return run, trials

    def _check(self) -> None:
        """Send one call of every kind, so that a refused kind is reported before the run."""
        with Client(self.target, timeout=_CHECK_SECONDS, retries=False) as client:
            try:
                self.server = client.server_info()
            except RpcError as error:
                # Other implementations of the API may lack GetServerInfo but can be load-tested
                # too.
                if error.code is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
        with grpc.insecure_channel(self.target) as channel:
            for call, messages in zip(self.calls, self.messages, strict=True):
                send(channel, self.target, call.method, messages[0])


def search(holds: Callable[[float], bool], begin: float, least: float = 1.0) -> None:
    """Call `holds` with different rates until the highest rate that holds is known within 5 %.

    The first rate is `begin`. No other rate below `least` is tried.
    """
    low, high, rate = 0.0, float("inf"), begin
    for _ in range(_TRIALS_MAX):
        if holds(rate):
            low = rate
        else:
            high = rate
        if high <= low * _RATE_RATIO:
            return
        rate = (low * high) ** 0.5 if low else high / 4
        if high == float("inf"):
            rate = 2 * low
        if rate < least:
            return


class Process:
    """The process of one load generator, and the connection to it."""

    def __init__(self, task: Task) -> None:
        self.connection, remote = multiprocessing.Pipe()
        limit_pauses(self.connection)
        with remote:
            number = remote.fileno()
            command = [sys.executable, "-m", "divgrpc_client.load", str(number)]
            self.program = subprocess.Popen(command, pass_fds=[number])  # noqa: S603  # our own program
        self.connection.send(task)

    def close(self) -> None:
        """Close the connection, which makes the process exit; kill it if it does not."""
        self.connection.close()
        try:
            self.program.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.program.kill()
            self.program.wait()


def limit_pauses(connection: Connection) -> None:
    """Limit the time that `recv` waits for the rest of a message."""
    with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        limit = struct.pack("ll", _MESSAGE_SECONDS, 0)
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def receive(connection: Connection, seconds: float | None = None) -> Part | None:
    """Return the next part, or None if the process is done; raises `UnavailableError`.

    `seconds` is the maximum time to wait for the message to begin, None for no maximum.
    """
    try:
        if not connection.poll(seconds):
            raise UnavailableError("a load generator did not start")
        part: Part | str = connection.recv()
    except BlockingIOError:
        raise UnavailableError("a load generator stopped in the middle of a message") from None
    except (EOFError, OSError):
        raise UnavailableError("a load generator died; its last words are above") from None
    return part if isinstance(part, Part) else None


@contextmanager
def _interruptible(session: Session) -> Iterator[None]:
    """Let the first Ctrl-C end the run early and a second one end the program."""
    if threading.current_thread() is not threading.main_thread():
        # Signals reach the main thread alone.
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(_number: int, _frame: FrameType | None) -> None:
        session.interrupt()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
