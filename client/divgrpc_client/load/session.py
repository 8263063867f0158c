"""Runs load tests: starts processes, checks and sends calls, searches for the highest rate."""

import math
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import Any, Final, Self, TypeAlias

import grpc

from divgrpc.errors import InvalidArgumentError, UnavailableError, invalid
from divgrpc_client.client import Client
from divgrpc_client.load.calls import BYTES_MAX, Call
from divgrpc_client.load.generator import Task
from divgrpc_client.load.record import Run, counted
from divgrpc_client.load.report import Report, build_report, judge, judge_rate
from divgrpc_client.load.schedule import Schedule, Step, constant
from divgrpc_client.load.settings import Settings
from divgrpc_client.load.thresholds import Threshold, parse_threshold
from divgrpc_client.messages.responses import ServerInfo
from divgrpc_client.rpc import sync_stack
from divgrpc_client.rpc.call import RpcCall
from divgrpc_client.rpc.channels import SERVICE, ChannelSettings
from divgrpc_client.rpc.errors import RpcError

_CHECK_SECONDS: Final = 60.0
# Time from the message with the start time to the start, so that all processes receive it before.
_LEAD_SECONDS: Final = 0.2
# A generator that needs longer to start is considered hung.
_START_SECONDS: Final = 60.0
# A generator may send its outcome this long after its last call has ended.
_SILENCE_SECONDS: Final = 30.0
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
    objectives: bounds for a search for the highest rate that meets them. Each trial of the search
        lasts as long as the schedule. The first trial has the first rate of the schedule, or its
        mean rate if it begins at 0.
    require: bounds on figures of the report, such as "p99<20ms". `thresholds` in the report tells
        whether each bound holds.
    tell: called with each `Run` that has ended, so with every trial of a search.

    Ctrl-C ends the run and returns the report so far. Raises `InvalidArgumentError` for an invalid
    call or threshold, `RpcError` if the server refuses a call of the mix or does not answer, and
    `UnavailableError` if a process of the run dies or hangs.
    """
    goals, bounds = _thresholds(objectives, "objective"), _thresholds(require, "require")
    for goal in goals:
        # The search assumes that a bound that holds at one rate holds at all lower rates.
        if goal.sign not in ("<", "<=") or goal.name == "rate":
            reason = f"must be a greatest latency or share of errors: {goal.text!r}"
            raise invalid("objective", reason)
    with Session(target, calls, settings) as session, _interruptible(session):
        if goals:
            rate = _first_rate(schedule)
            run, trials = session.find_highest_rate(goals, rate, schedule.seconds, tell)
            report = build_report(run, trials)
            report["search"]["objective"] = [goal.text for goal in goals]
        else:
            run = session.run(schedule, closed=closed, tell=tell)
            report = build_report(run)
    report["thresholds"] = judge(report, run, bounds)
    return report


def _thresholds(bounds: Sequence[Threshold | str], field: str) -> list[Threshold]:
    return [
        bound if isinstance(bound, Threshold) else parse_threshold(bound, field) for bound in bounds
    ]


class Session:
    """Sends calls to one server, in one or more runs.

    Raises `InvalidArgumentError` for a wrong call or target. A `with` statement first sends one
    call of every kind, and raises `RpcError` if the server refuses one.
    """

    def __init__(
        self, target: str, calls: Sequence[Call], settings: Settings | None = None
    ) -> None:
        self.settings = settings or Settings()
        self.target = target
        self._peer = self.settings.peer(target)
        if not calls:
            raise InvalidArgumentError("mix", "there must be at least one kind of call")
        self.calls = list(calls)
        room = BYTES_MAX // len(calls)
        self.messages = [call.messages(self.settings.seed, room) for call in calls]
        self.server: ServerInfo | None = None
        self._generators: list[Connection] = []
        self._interrupted_at = math.inf

    def __enter__(self) -> Self:
        """Send one call of every kind, so that a refused kind is reported before any load."""
        settings = self.settings
        with Client(
            self.target,
            timeout=_CHECK_SECONDS,
            retries=False,
            tls=settings.tls,
            token=settings.token,
            insecure=settings.insecure,
        ) as client:
            try:
                self.server = client.server_info()
            except RpcError as error:
                # Other servers of the API may lack GetServerInfo but can be load-tested too.
                if error.code is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
        plan = ChannelSettings(self._peer, 1, retries=False, credentials=None, options=())
        with sync_stack.connect(plan).channel as channel:
            for call, messages in zip(self.calls, self.messages, strict=True):
                rpc = RpcCall(call.method, self._peer, timeout=_CHECK_SECONDS, request_id=None)
                try:
                    rpc.start(channel.unary_unary(f"/{SERVICE}/{call.method}"), messages[0])
                except grpc.RpcError as error:
                    raise rpc.failed(error) from None
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: the processes of a run end with the run."""

    @property
    def interrupted(self) -> bool:
        """Whether `interrupt` was called."""
        return self._interrupted_at < math.inf

    def interrupt(self) -> None:
        """End the current run with the calls made so far; safe in a signal handler."""
        self._interrupted_at = min(self._interrupted_at, time.monotonic())
        for generator in self._generators:
            with suppress(OSError):
                generator.send(None)

    def run(self, schedule: Schedule, *, closed: int = 0, tell: Tell | None = None) -> Run:
        """Send the calls of a schedule, or keep `closed` calls in flight while it lasts.

        `tell` is called with the run when it has ended. Raises `UnavailableError` if a process of
        the run dies or hangs.
        """
        warm_up = self.settings.warm_up
        rate = _first_rate(schedule)
        whole = Schedule((Step(rate, rate, warm_up), *schedule.steps))
        kinds = [(call.method, call.share) for call in self.calls]
        parts = self._peer, kinds, self.messages, self.settings, whole, closed
        tasks = [Task(place, *parts) for place in range(self.settings.processes)]
        with ExitStack() as stack:
            generators = [stack.enter_context(_generator(task)) for task in tasks]
            # Wait for all processes to start, so that none of them starts the run late.
            _receive_all(generators, _START_SECONDS)
            begin = time.monotonic() + _LEAD_SECONDS
            for generator in generators:
                generator.send(begin)
            self._generators = generators
            if self.interrupted:
                self.interrupt()
            run_seconds = _LEAD_SECONDS + warm_up + schedule.seconds + self.settings.timeout
            outcomes = _receive_all(generators, run_seconds + _SILENCE_SECONDS)
            self._generators = []
        begin += warm_up
        end = max(begin, min(begin + schedule.seconds, self._interrupted_at))
        run = Run(
            *(self.target, self.calls, self.settings, self.server, schedule, closed, begin, end),
            interrupted=self.interrupted,
            busy=[busy for _, busy in outcomes],
            samples=counted([samples for samples, _ in outcomes], begin, end),
        )
        if tell is not None:
            tell(run)
        return run

    def find_highest_rate(
        self, objectives: Sequence[Threshold], begin: float, seconds: float, tell: Tell | None
    ) -> tuple[Run, list[dict[str, Any]]]:
        """Find the highest rate at which the objectives hold; the first trial has the rate `begin`.

        Each trial lasts `seconds`. The search ends when the rate is known to within 5 %. It ends
        earlier after `_TRIALS_MAX` trials, after an interrupt, or if the next trial would have too
        few calls. Return the outcomes of all trials, and the run at the highest rate that held. If
        no rate held, return the run at the lowest rate instead.
        """
        low, high, rate = 0.0, math.inf, begin
        trials: list[dict[str, Any]] = []
        while True:
            run = self.run(constant(rate, seconds), tell=tell)
            trials.append(judge_rate(run, rate, objectives))
            if trials[-1]["held"]:
                low = rate
            else:
                high = rate
            if trials[-1]["held"] or not low:
                best = run
            rate = 2 * low if high == math.inf else (low * high) ** 0.5 if low else high / 4
            # A search that still goes up from a low rate reaches rates with enough calls.
            has_few_calls = high < math.inf and rate < _CALLS_MIN / seconds
            is_known = high <= low * _RATE_RATIO or has_few_calls
            if is_known or self.interrupted or len(trials) == _TRIALS_MAX:
                best.interrupted = self.interrupted
                return best, trials


def _first_rate(schedule: Schedule) -> float:
    """Return the first rate of a schedule, or its mean rate if the schedule begins at 0."""
    return schedule.steps[0].begin or schedule.calls / (schedule.seconds or 1.0)


@contextmanager
def _generator(task: Task) -> Iterator[Connection]:
    """Start a process for a task, yield the connection to the process, and kill it at the end."""
    connection, remote = multiprocessing.Pipe()
    with remote:
        number = remote.fileno()
        command = [sys.executable, "-m", "divgrpc_client.load", str(number)]
        program = subprocess.Popen(command, pass_fds=[number])  # noqa: S603  # our own program
    try:
        with connection:
            connection.send(task)
            yield connection
    finally:
        program.kill()
        program.wait()


def _receive_all(generators: Sequence[Connection], seconds: float) -> list[Any]:
    """Return the next message of each generator, READY or the outcome of a run.

    Raises `UnavailableError` if one of them dies, or sends nothing for `seconds`.
    """
    messages: dict[Connection, Any] = {}
    deadline = time.monotonic() + seconds
    while len(messages) < len(generators):
        silent = [generator for generator in generators if generator not in messages]
        ready = wait(silent, max(0.0, deadline - time.monotonic()))
        if not ready:
            raise UnavailableError(f"a load generator has been silent for {seconds:.0f} s")
        for generator in (item for item in silent if item in ready):
            try:
                messages[generator] = generator.recv()
            except (EOFError, OSError):
                text = "a load generator died; its error messages are above"
                raise UnavailableError(text) from None
    return [messages[generator] for generator in generators]


@contextmanager
def _interruptible(session: Session) -> Iterator[None]:
    """Let the first Ctrl-C end the run early and a second one end the program."""

    def handle(*_: object) -> None:
        if session.interrupted:
            raise KeyboardInterrupt
        session.interrupt()

    # Only the main thread may set the handler of a signal.
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, handle) if is_main else None
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
