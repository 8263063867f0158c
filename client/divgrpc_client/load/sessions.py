"""Trials on one server: processes started, calls checked and made, the server watched."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self, TypeAlias, cast

import grpc

from divgrpc.errors import InvalidArgumentError
from divgrpc.types import Metric
from divgrpc_client.client import Client
from divgrpc_client.load.fleet import LEAD_SECONDS, Fleet
from divgrpc_client.load.orders import Sent, Task, Trial
from divgrpc_client.load.recordings import Recording
from divgrpc_client.load.schedules import Schedule
from divgrpc_client.load.targets import check_target, port_of
from divgrpc_client.load.traffic import BYTES_MAX, Call
from divgrpc_client.load.watching import ServerWatch, Use
from divgrpc_client.messages import arguments
from divgrpc_client.messages.responses import ServerInfo
from divgrpc_client.rpc.call import Call as Connected
from divgrpc_client.rpc.channels import SERVICE
from divgrpc_client.rpc.errors import RpcError
from divgrpc_protos.arrays import take
from divgrpc_protos.v1 import query_pb2

# Replies that are kept to be compared with exact ones.
_REPLIES_MAX: Final = 500
# Far fewer than a sample has numbers for; a process keeps messages of every kind.
_KINDS_MAX: Final = 1_000
_CHECK_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How calls are made.

    `poisson`: at random, not evenly; `warm_up`: seconds before anything is counted; `processes`
    make the calls, each over `channels` connections; `timeout`: seconds a call has, attempts after
    UNAVAILABLE, up to `retries`, included; `max_in_flight`: of all processes, what is due beyond it
    is not sent; `quality`: the share of answers that is compared with exact search afterwards.
    """

    poisson: bool = False
    warm_up: float = 2.0
    processes: int = 1
    channels: int = 4
    timeout: float = 10.0
    retries: int = 0
    max_in_flight: int = 10_000
    quality: float = 0.0
    seed: int = 0
    allow_remote: bool = False

    def __post_init__(self) -> None:
        for name in ("processes", "channels", "max_in_flight"):
            arguments.count(name, getattr(self, name))
        arguments.duration("timeout", self.timeout)
        for name, value, most in (
            ("warm_up", self.warm_up, 3600),
            ("timeout", self.timeout, 3600),
            ("retries", self.retries, 10),
            ("quality", self.quality, 1),
            ("seed", self.seed, 2**63),
        ):
            if not 0 <= value <= most:
                raise InvalidArgumentError(name, f"{name} must be 0 to {most}, got {value!r}")
        if not isinstance(self.retries, int):
            raise InvalidArgumentError(
                "retries", f"retries must be a whole number, got {self.retries!r}"
            )


@dataclass(frozen=True, slots=True)
class Second:
    """What a server used in a second: cores busy and bytes of its own, by role."""

    cores: dict[str, float]
    bytes_own: dict[str, int]


@dataclass(slots=True)
class Trialled:
    """What one trial gave; `server` by second, `used` of it between its ends, by role."""

    schedule: Schedule
    closed: int
    recording: Recording
    poisson: bool = False
    interrupted: bool = False
    ended: bool = True
    server: list[Second] = field(default_factory=list)
    used: dict[str, Use] = field(default_factory=dict)


Tell: TypeAlias = Callable[[Trialled], object]


class Session:
    """Processes that make calls, for one trial or many: a context manager.

    Raises `InvalidArgumentError` for a target that may be another machine, `RpcError` where the
    server refuses a call of the mix or cannot be reached.
    """

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
        self.metrics: dict[str, Metric] = {}
        self._interrupted = False
        self._fleet = Fleet([self._task(place) for place in range(self.settings.processes)])
        self._watch: ServerWatch | None = None

    def __enter__(self) -> Self:
        self._fleet.__enter__()
        try:
            self._check()
        except BaseException:
            self._fleet.__exit__(None, None, None)
            raise
        port = port_of(self.target)
        self._watch = None if port is None else ServerWatch.at(port)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._fleet.__exit__(kind, error, trace)

    @property
    def interrupted(self) -> bool:
        """Whether the end was asked for."""
        return self._interrupted

    def interrupt(self) -> None:
        """Let the trial under way end now, with what it has; safe in a signal handler."""
        self._interrupted = True

    def run(self, schedule: Schedule, *, closed: int = 0, tell: Tell | None = None) -> Trialled:
        """Make the calls of a schedule, or of so many `closed` loops for as long as it lasts."""
        settings = self.settings
        begin = time.monotonic() + LEAD_SECONDS
        counted = begin + (settings.warm_up if closed or schedule.steps[0].begin else 0.0)
        recording = Recording(
            counted,
            counted + schedule.seconds,
            calls=len(self.calls),
            processes=settings.processes,
            timeout=settings.timeout,
        )
        trialled = Trialled(schedule, closed, recording, settings.poisson)
        trial = Trial(
            begin=begin,
            schedule=schedule.after(counted - begin),
            poisson=settings.poisson,
            closed=closed,
            sample_every=round(1 / settings.quality) if settings.quality else 0,
        )
        observer = _Observer(self._watch, trialled, counted, tell)

        def hear(place: int, sent: Sent) -> None:
            recording.add(place, sent, time.monotonic())
            del recording.replies[_REPLIES_MAX:]

        def tick() -> None:
            if self._interrupted and not trialled.interrupted:
                trialled.interrupted = True
                recording.end_at(time.monotonic())
                self._fleet.stop()
            observer.look()

        trialled.ended = self._fleet.run(trial, hear, tick)
        observer.finish()
        return trialled

    def _task(self, place: int) -> Task:
        settings = self.settings
        return Task(
            target=self.target,
            methods=[call.method for call in self.calls],
            messages=self.messages,
            shares=[call.share for call in self.calls],
            place=place,
            processes=settings.processes,
            channels=settings.channels,
            timeout=settings.timeout,
            retries=settings.retries,
            max_in_flight=-(-settings.max_in_flight // settings.processes),
            seed=settings.seed,
        )

    def _check(self) -> None:
        """See that the server takes every kind of call, before it gets thousands of them."""
        with Client(self.target, timeout=_CHECK_SECONDS, retries=False) as client:
            try:
                self.server = client.server_info()
            except RpcError as error:
                # A server of somebody else's may be loaded too.
                if error.code is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
            if self.settings.quality:
                for call in self.calls:
                    self._check_points(client, call)
        with grpc.insecure_channel(self.target) as channel:
            for call, messages in zip(self.calls, self.messages, strict=True):
                ask_raw(channel, self.target, call.method, messages[0])

    def _check_points(self, client: Client, call: Call) -> None:
        """See that what a call's results are to be measured by is what the server has."""
        if call.points is None:
            return
        index = client.get_index(call.index)
        if index.dims != call.points.dims:
            raise InvalidArgumentError(
                "points", f"points have {call.points.dims} dimensions, {call.index} {index.dims}"
            )
        call.points.check(client.query(call.index, take(call.vectors, 0, 1)).ids[0])
        self.metrics[call.index] = cast(Metric, index.parameters["metric"])


def ask_raw(channel: grpc.Channel, target: str, method: str, request: bytes) -> bytes:
    """Make one call with a message as it is; raises `RpcError`."""
    call = Connected(method, target, timeout=_CHECK_SECONDS, request_id=None)
    path = f"/{SERVICE}/{method}"
    try:
        if method != "QueryStream":
            unary: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
            return unary(request, timeout=call.seconds_left())
        stream: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(path)
        (reply,) = stream(iter([request]), timeout=call.seconds_left())
    except grpc.RpcError as error:
        raise call.failed(error) from None
    told = query_pb2.QueryStreamResponse.FromString(reply)
    if told.HasField("error"):
        raise call.refused(told.error)
    return reply


class _Observer:
    """Looks at the server once a second, and lets somebody look at the trial."""

    def __init__(
        self, watch: ServerWatch | None, trialled: Trialled, begin: float, tell: Tell | None
    ) -> None:
        self._watch, self._trialled, self._tell = watch, trialled, tell
        self._next = begin
        self._begun: dict[str, Use] = {}
        self._before: tuple[float, dict[str, Use]] | None = None

    def look(self) -> None:
        """Do so if it is time."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next += 1.0
        self._use(now)
        if self._tell is not None:
            self._tell(self._trialled)

    def finish(self) -> None:
        """Look once more: a trial may be shorter than a second."""
        self._use(time.monotonic())

    def _use(self, now: float) -> None:
        use = self._watch.use() if self._watch is not None else {}
        if self._before is None:
            self._begun = use
        else:
            then, before = self._before
            past = max(now - then, 1e-9)
            self._trialled.server.append(
                Second(
                    {
                        role: round((own.cpu_seconds - _cpu(before, role)) / past, 3)
                        for role, own in use.items()
                    },
                    {role: own.bytes_own for role, own in use.items()},
                )
            )
        self._before = now, use
        self._trialled.used = {
            role: Use(
                own.processes,
                own.cpu_seconds - _cpu(self._begun, role),
                own.bytes_own,
                own.bytes_resident,
            )
            for role, own in use.items()
        }


def _cpu(use: dict[str, Use], role: str) -> float:
    return use[role].cpu_seconds if role in use else 0.0
