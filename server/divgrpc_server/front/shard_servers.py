"""Asks the shard servers of a cluster, over gRPC.

Theory of operation. Each shard has the same points on several servers, its replicas. The one with
the fewest calls is asked. If it has not replied after the time that few calls take, the next one is
asked too, and the first reply counts; the slow one is avoided for a second. If it refuses the call
or cannot be reached, the next one is asked at once. If none is there, the call waits for a new
topology, as long as queries wait for a worker.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from itertools import chain, filterfalse
from pathlib import Path
from typing import Final, NamedTuple

from google.rpc import code_pb2, status_pb2
from grpc import aio

from divgrpc.errors import IndexChangedError, LimitExceededError, UnavailableError
from divgrpc.types.shards import ReplicaInfo
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.codec.statuses import (
    EngineUnreachableError,
    LateError,
    PlacesMissingError,
    QueueFullError,
    ReplyTooLargeError,
    ShardsMissingError,
    WorkersEndedError,
)
from divgrpc_server.config import Config
from divgrpc_server.front.hedge_budget import HedgeBudget
from divgrpc_server.front.meter import ShardMeter
from divgrpc_server.front.refusals import RefusedError
from divgrpc_server.front.shard_credentials import ShardCredentials
from divgrpc_server.front.shard_openings import ShardOpenings
from divgrpc_server.front.shard_states import ShardStates, is_channel_closed
from divgrpc_server.front.shard_statuses import (
    ELSEWHERE,
    advice_on,
    describe_call,
    is_answer,
    is_unreachable,
    refusal_in,
    status_of_call,
)
from divgrpc_server.ipc import control
from divgrpc_server.ipc.job_frames import StagedGeneration
from divgrpc_server.ipc.tags import metadata_of
from divgrpc_server.ipc.topology import Topology
from divgrpc_server.logging.logs import Logger
from divgrpc_server.security.cluster import ClusterTokens

SERVICE: Final = shard_index_pb2.DESCRIPTOR.services_by_name["ShardIndex"].full_name
_METHOD: Final = f"/{SERVICE}/Ask"
_PREPARE: Final = f"/{SERVICE}/Prepare"
_OPTIONS: Final = (
    # A shard sends the vectors of many candidates.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A server whose machine is gone is noticed after 15 seconds. Servers permit a ping each ten.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
# A call without a deadline must end too.
_ASK_SECONDS_MAX: Final = 60.0
# How long a connection to a server that has left has to end.
_CLOSE_SECONDS: Final = 1.0
_FILES_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.25
_HEDGE_SECONDS_MIN: Final = 0.005
_HEDGE_SECONDS_FIRST: Final = 0.05
_DURATIONS: Final = 128
_SILENCE_SECONDS: Final = 1.0
# A call that meets a server without a reply to any call for so long, and for twice the time after
# which calls are hedged, may be hedged anyway. A server that is slow with all calls is no reason to
# ask others for all of them.
_QUIET_SECONDS_MIN: Final = 0.5
_QUIET_FACTOR: Final = 2.0
_SHARE_OF_QUICK: Final = 0.95
# Reasons of errors that any replica would give.
_EVERYWHERE: Final = (WorkersEndedError.reason, LimitExceededError.reason)
_UNANSWERED: Final = "it has not answered the latest call"
_CHANGED: Final = (
    "the index was replaced meanwhile, or shard servers have another data folder: ask again, and if"
    " that does not help, check that --data-dir of all shard servers is the folder of this server"
)


class _Failure(NamedTuple):
    """A call that failed, and whether another replica may do better."""

    error: Exception
    is_local: bool


_SILENCE: Final = _Failure(UnavailableError("no replica replies to health checks"), is_local=True)


class _Terms(NamedTuple):
    """How to ask: until when, with which metadata, and `waits` and `is_job` of `Shards.ask`."""

    end_time: float
    metadata: tuple[tuple[str, str], ...]
    waits: bool
    is_job: bool

    @property
    def is_about_shard(self) -> bool:
        """Whether the message is about a shard of an index, and not about points of a build."""
        return self.waits or not self.is_job


class ShardServers:
    """The shard servers that the latest topology names."""

    def __init__(
        self,
        config: Config,
        cluster: ClusterTokens,
        log: Logger,
        meter: ShardMeter,
        preference: int = 0,
    ) -> None:
        """Take the tokens of the cluster.

        preference: of replicas with as many calls, the one with this number, modulo how many there
            are, is asked first. Processes with different numbers share the load.
        """
        self._log = log
        self._cluster, self._metadata = cluster, _metadata_with(cluster)
        self._meter = meter
        self._wait_seconds = config.worker_wait
        self._place_count = len(config.shard_places) or config.shards
        self._shard_count = config.shards
        # Whether all shard servers have been started; nobody here starts those of others.
        self._is_started = not config.starts_shard_servers
        # Why the engine does not place servers, "" if it does, or if there is none.
        self._engine_fault = ""
        self._topology = Topology(0, ())
        self._channels: dict[str, aio.Channel] = {}
        replicas = config.replicas if config.starts_shard_servers else 0
        views = self._channel, self._probe, meter, log
        self._states = ShardStates(replicas, *views, preference=preference)
        self._openings = ShardOpenings(
            self._send_preparation, self._addresses_of, self._states,
            config.worker_wait, log,
        )  # fmt: skip
        self._durations: deque[float] = deque(maxlen=_DURATIONS)
        self._hedge_seconds = config.hedge_ms / 1000 or _HEDGE_SECONDS_FIRST
        self._measures_hedge = not config.hedge_ms
        # Calls of jobs take seconds, and must not use up what those of queries need.
        self._hedges, self._job_hedges = HedgeBudget(), HedgeBudget()
        self._changed = asyncio.Event()
        self._credentials = ShardCredentials(config, log) if config.cluster_ca else None
        # Connections that are no longer used, which end with their calls.
        self._closings: set[asyncio.Task[None]] = set()
        self._options = _options_with(config.cluster_name)
        if config.shard_servers:
            self.follow(Topology(1, config.shard_places))

    def handle(self, message: control.Message) -> None:
        """Handle what the supervisor says about the engine."""
        if message.kind == "topology":
            topology = Topology.unpack(message.text)
            self._engine_fault = topology.fault
            self.follow(topology)
        else:
            self._is_started = bool(message.number)
            if not self._is_started:
                self._engine_fault = "the process that starts shard servers has ended"
        self._meter.set_engine(is_unreachable=bool(self._engine_fault))
        self._note_change()

    def follow(self, topology: Topology) -> None:
        """Take a topology, unless it is older than the latest one."""
        if topology.version <= self._topology.version:
            return
        self._topology = topology
        addresses = {address for place in topology.places for address in place}
        for address in self._channels.keys() - addresses:
            self._close(address, _CLOSE_SECONDS)
        self._states.follow(topology)
        self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def keep(self, root: Path) -> None:
        """Keep the states of the servers, the certificates, the token and the open shards current.

        root: the folder of the indexes.
        """
        async with asyncio.TaskGroup() as group:
            for work in (self._states.keep(), self._follow_files(), self._openings.keep(root)):
                group.create_task(work)

    async def _follow_files(self) -> None:
        """Send a new token; connect anew with new certificates, without an end to calls."""
        while True:
            await asyncio.sleep(_FILES_SECONDS)
            if self._cluster.refresh():
                self._metadata = _metadata_with(self._cluster)
            if self._credentials is not None and self._credentials.refresh():
                for address in [*self._channels]:
                    self._close(address, _ASK_SECONDS_MAX)

    def _close(self, address: str, grace_seconds: float) -> None:
        """Use a connection no more; its calls have some time to end."""
        close = self._channels.pop(address).close(grace=grace_seconds)
        task = asyncio.get_running_loop().create_task(close)
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    def replicas(self, index: str, shard: int) -> list[ReplicaInfo]:
        """Describe the servers that have a shard of an index."""
        return self._states.replicas(index, shard)

    async def close(self) -> None:
        """Close all connections."""
        for task in self._closings:
            task.cancel()
        for channel in self._channels.values():
            await channel.close()

    @property
    def room_bytes(self) -> int | None:
        """The largest shard for which each place has memory, as `Topology` says."""
        return self._topology.room_bytes

    async def await_engine(self) -> None:
        """Wait until the engine can be reached; see `sharded_pool.Shards`."""
        end_time = time.monotonic() + self._wait_seconds
        while self._engine_fault:
            left = end_time - time.monotonic()
            if left <= 0:
                raise EngineUnreachableError(self._engine_fault)
            await self._await_change(self._changed, left)

    async def await_places(self) -> None:
        """Wait until each place has a server, for as long as queries wait for a worker.

        Raises `PlacesMissingError`, or `UnavailableError` while servers are being started or have
        not been checked.
        """
        end_time = time.monotonic() + self._wait_seconds
        while missing := [*filterfalse(self._has_server, range(self._place_count))]:
            left = end_time - time.monotonic()
            if left <= 0:
                if not self._is_started:
                    raise UnavailableError("the engine is starting shard servers; retry")
                servers = [*chain.from_iterable(map(self._topology.replicas, missing))]
                if any(map(self._states.is_unknown, servers)):
                    raise UnavailableError("shard servers are being checked; retry")
                faults = [*map(self._states.describe_fault, servers)]
                raise PlacesMissingError(missing, self._place_count, faults)
            await self._await_change(self._changed, left)

    def _has_server(self, place: int) -> bool:
        return any(map(self._states.is_running, self._topology.replicas(place)))

    async def _await_change(self, changed: asyncio.Event, seconds: float) -> None:
        """Wait for a new topology, for as long as a server needs to be replaced, or `seconds`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), min(seconds, _RETRY_SECONDS))

    async def prepare(self, generation: StagedGeneration) -> None:
        """Let all servers open their shards of a build; see `sharded_pool.Shards`."""
        await self._openings.prepare(generation, self._shard_count)

    def _addresses_of(self, shard: int) -> tuple[str, ...]:
        return self._topology.replicas(shard)

    async def _send_preparation(self, address: str, message: bytes, seconds: float) -> None:
        prepare: aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel(address).unary_unary(
            _PREPARE
        )
        await prepare(message, timeout=seconds, metadata=self._metadata)

    async def ask(
        self,
        messages: dict[int, bytes],
        seconds: float,
        *,
        tag: str = "",
        waits: bool = True,
        is_job: bool = False,
    ) -> dict[int, bytes]:
        """Return the reply of each shard to its message; see `sharded_pool.Shards`."""
        start_time = time.monotonic()
        end_time = start_time + min(seconds, _ASK_SECONDS_MAX)
        terms = _Terms(end_time, (*self._metadata, *metadata_of(tag)), waits, is_job)
        tasks = {
            shard: asyncio.create_task(self._ask_shard(shard, message, terms))
            for shard, message in messages.items()
        }
        try:
            replies = await asyncio.gather(*tasks.values())
        except ShardsMissingError as error:
            await asyncio.wait(tasks.values(), timeout=_RETRY_SECONDS)
            failures = [error, *(task.exception() for task in tasks.values() if task.done())]
            missing = [e for e in failures if isinstance(e, ShardsMissingError)]
            raise ShardsMissingError.join(missing) from None
        finally:
            for task in tasks.values():
                task.cancel()
            if not is_job:
                self._meter.add_round(time.monotonic() - start_time)
        return dict(zip(tasks, replies, strict=True))

    async def _ask_shard(self, shard: int, message: bytes, terms: _Terms) -> bytes:
        """Ask the replicas of a shard until one has replied."""
        waits = terms.waits
        wait_seconds = self._wait_seconds if waits else 0.0
        wait_end = min(terms.end_time, time.monotonic() + wait_seconds)
        while True:
            changed, version = self._changed, self._topology.version
            outcome = await self._ask_replicas(shard, message, terms, wait_seconds)
            if isinstance(outcome, bytes):
                return outcome
            if outcome is not None and isinstance(outcome.error, LateError):
                if waits:
                    text = f"shard {shard} has not replied in time"
                    raise LateError(": ".join(filter(None, (text, str(outcome.error)))))
                raise self._states.missing_error(shard)
            is_lost = outcome is None or isinstance(outcome.error, UnavailableError)
            if outcome is not None and not is_lost and (waits or not _cannot_answer(outcome.error)):
                raise outcome.error
            left = wait_end - time.monotonic()
            if left <= 0:
                raise self._states.missing_error(shard)
            if version == self._topology.version:
                # A server that was killed is replaced in a moment.
                await self._await_change(changed, left)

    async def _ask_replicas(
        self, shard: int, message: bytes, terms: _Terms, wait_seconds: float
    ) -> bytes | _Failure | None:
        """Ask one replica after another; return a reply, or the last failure, None without any.

        wait_seconds: how long to wait for silent replicas that fail their health checks.
        """
        addresses = self._ordered(shard, terms)
        calls: dict[asyncio.Task[bytes | _Failure], str] = {}
        failures: dict[str, _Failure] = {}
        is_due, loss_time = True, math.inf
        quiet_time = math.inf if terms.is_job else time.monotonic()
        try:
            while addresses or calls:
                if addresses and is_due:
                    address = addresses.pop(0)
                    calls[self._begin_call(address, message, terms)] = address
                may_hedge = addresses and not terms.is_job
                timeout = self._hedge_timeout if may_hedge else _SILENCE_SECONDS
                completions, _ = await asyncio.wait(
                    calls, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                if not (completions or addresses):
                    loss_time = self._states.loss_time(calls.values(), loss_time)
                    if time.monotonic() - loss_time >= wait_seconds:
                        return _SILENCE
                    addresses = self._others(shard, calls.values(), terms)
                is_due = bool(completions)
                if addresses and not is_due:
                    is_due = self._take_hedge(calls.values(), quiet_time, terms)
                for task in completions:
                    outcome, address = task.result(), calls.pop(task)
                    if isinstance(outcome, bytes):
                        self._note_answer(calls.values(), failures, message)
                        return outcome
                    failures[address] = outcome
                    if not outcome.is_local:
                        return _choose(failures)
                    self._states.avoid([address], _UNANSWERED)
        finally:
            for task in calls:
                task.cancel()
        return _choose(failures) if failures else None

    def _begin_call(
        self, address: str, message: bytes, terms: _Terms
    ) -> "asyncio.Task[bytes | _Failure]":
        call = asyncio.create_task(self._call(address, message, terms))
        self._states.count_call(address, call)
        return call

    def _note_answer(
        self, slow: Iterable[str], failures: Mapping[str, _Failure], message: bytes
    ) -> None:
        """Note that a replica has answered before slow servers, and what others have not."""
        self._states.avoid(slow)
        for address, failure in failures.items():
            if isinstance(failure.error, IndexChangedError):
                self._states.note_other_files(address, message)

    def _ordered(self, shard: int, terms: _Terms) -> list[str]:
        """Return the replicas to ask, one after another."""
        addresses = self._states.ordered(self._topology.replicas(shard))
        return addresses if terms.waits else [*filter(self._states.may_reply, addresses)]

    def _others(self, shard: int, busy: Iterable[str], terms: _Terms) -> list[str]:
        """Return the replicas that are not being asked; others may come back meanwhile."""
        return [*filterfalse({*busy}.__contains__, self._ordered(shard, terms))]

    @property
    def _hedge_timeout(self) -> float:
        """The seconds to wait for a reply until another replica may be asked."""
        return self._hedge_seconds if self._hedges.left >= 1 else self._quiet_seconds

    @property
    def _quiet_seconds(self) -> float:
        """The seconds without a reply after which a server counts as silent."""
        return max(_QUIET_SECONDS_MIN, _QUIET_FACTOR * self._hedge_seconds)

    def _take_hedge(self, waiting: Collection[str], quiet_time: float, terms: _Terms) -> bool:
        """Take a hedge from the budget; return whether to ask another replica.

        waiting: the servers that have not replied yet. quiet_time: when the call began, infinity if
            its servers may be silent.
        """
        budget = self._budget_of(terms)
        budget.refill()
        last_time = self._states.last_reply_time(waiting, quiet_time)
        if budget.left >= 1 or time.monotonic() - last_time >= self._quiet_seconds:
            budget.take()
            self._meter.add_hedge()
            return True
        return not any(map(self._states.is_reachable, waiting))

    def _budget_of(self, terms: _Terms) -> HedgeBudget:
        return self._job_hedges if terms.is_job else self._hedges

    async def _call(self, address: str, message: bytes, terms: _Terms) -> bytes | _Failure:
        """Call one server; return its reply or a failure."""
        start = time.monotonic()
        ask: aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel(address).unary_unary(_METHOD)
        seconds = max(0.0, terms.end_time - start)
        try:
            reply: bytes = await ask(message, timeout=seconds, metadata=terms.metadata)
        except aio.AioRpcError as error:
            failure = self._failure(error, address, message, terms)
            self._meter.add_call(_outcome_of(failure.error))
            return failure
        except asyncio.CancelledError:
            if not is_channel_closed():
                self._meter.add_call("withdrawn")
                seconds = time.monotonic() - start
                if seconds >= self._hedge_seconds and not terms.is_job:
                    # Another replica was quicker. Without such calls, only quick ones would count.
                    self._measure(seconds)
                raise
            return _Failure(UnavailableError("a shard server is gone"), True)
        self._states.note_reply(address, message if terms.is_about_shard else None)
        self._meter.add_call("replied")
        self._budget_of(terms).add_reply()
        if not terms.is_job:
            self._measure(time.monotonic() - start)
        return reply

    async def _probe(self, address: str, message: bytes) -> str | None:
        """Send a message to a server; see `ShardStates`."""
        ask: aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel(address).unary_unary(_METHOD)
        try:
            await ask(message, timeout=_SILENCE_SECONDS, metadata=self._metadata)
        except aio.AioRpcError as error:
            if is_unreachable(error):
                reason = advice_on(error) or error.details() or ""
                self._states.note_fault(address, "unreachable", reason)
            return refusal_in(error)
        except asyncio.CancelledError:
            if not is_channel_closed():
                raise
            return None
        return ""

    def _channel(self, address: str) -> aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            if self._credentials is None:
                channel = aio.insecure_channel(address, _OPTIONS)
            else:
                channel = aio.secure_channel(address, self._credentials.value, self._options)
            self._channels[address] = channel
        return channel

    def _measure(self, seconds: float) -> None:
        """Measure how long few calls take, unless the configuration says it."""
        self._durations.append(seconds)
        if self._measures_hedge and len(self._durations) == _DURATIONS:
            place = int(_SHARE_OF_QUICK * _DURATIONS)
            seconds = max(_HEDGE_SECONDS_MIN, sorted(self._durations)[place])
            self._hedge_seconds = min(seconds, _SILENCE_SECONDS)
            self._durations.clear()

    def _failure_of_grpc(
        self, error: aio.AioRpcError, status: status_pb2.Status, address: str
    ) -> _Failure:
        """Return what a status of gRPC itself means, which has no details."""
        if status.code == code_pb2.CANCELLED:
            # The server has more calls than it may have, or ends.
            return _Failure(QueueFullError("a shard server has too much to do; try again"), True)
        if status.code == code_pb2.RESOURCE_EXHAUSTED:
            rule = "the messages to a shard are too large; send fewer rows at a time"
            return _Failure(ReplyTooLargeError(rule), False)
        # Nothing listens there, or the connection was lost.
        self._states.note_fault(address, "unreachable", advice_on(error) or status.message)
        return _Failure(UnavailableError("a shard server cannot be reached"), True)

    def _failure(
        self, error: aio.AioRpcError, address: str, message: bytes, terms: _Terms
    ) -> _Failure:
        """Return what a call that failed means for the caller."""
        status = status_of_call(error)
        if status.code == code_pb2.NOT_FOUND and not terms.is_about_shard:
            # Another replica may see the files of the build.
            return _Failure(RefusedError(status.SerializeToString()), True)
        if status.code in (code_pb2.ABORTED, code_pb2.NOT_FOUND):
            # Another replica may have the folder of the index, and this one not.
            self._states.note_reply(address, None)
            return _Failure(IndexChangedError(_CHANGED), True)
        if status.code == code_pb2.DEADLINE_EXCEEDED:
            if status.details:  # the server says why
                return _Failure(LateError(status.message), True)
            missing = UnavailableError("a shard server fails its health checks")
            return _Failure(LateError("") if self._states.may_reply(address) else missing, False)
        if status.code in ELSEWHERE and status.details:
            if status.code == code_pb2.DATA_LOSS:
                status.message = self._states.note_damage(address, message, status.message)
            refusal = RefusedError(status.SerializeToString())
            return _Failure(refusal, refusal.reason not in _EVERYWHERE)
        if status.code in (code_pb2.CANCELLED, *ELSEWHERE):
            return self._failure_of_grpc(error, status, address)
        if is_answer(status):
            self._states.note_reply(address, None)
            return _Failure(RefusedError(status.SerializeToString()), False)
        self._states.note_refusal(address, message, describe_call(error))
        return _Failure(UnavailableError("a shard server refuses the messages of this one"), True)


def _options_with(name: str) -> tuple[tuple[str, str | int], ...]:
    """Return the options of connections to servers whose certificates all have a name, if any."""
    return (*_OPTIONS, ("grpc.ssl_target_name_override", name)) if name else _OPTIONS


def _metadata_with(cluster: ClusterTokens) -> tuple[tuple[str, str], ...]:
    """Return the metadata of all calls."""
    return (("authorization", cluster.header),)


def _choose(failures: Mapping[str, _Failure]) -> _Failure:
    """Return the failure of a call to tell, given those of the replicas, the latest one last.

    A server that has said why it is late, that the index has changed, or that files are damaged,
    says more than those that do not reply or refuse.
    """
    first, *later = failures.values()
    for latest in later:
        is_vague = latest.is_local or isinstance(latest.error, LateError | UnavailableError)
        if not (is_vague and _says_much(first.error)):
            first = latest
    return first


def _says_much(error: Exception) -> bool:
    is_damage = isinstance(error, RefusedError) and error.status.code == code_pb2.DATA_LOSS
    return is_damage or isinstance(error, LateError | IndexChangedError)


def _outcome_of(error: Exception) -> str:
    """Return how a call ended, as metrics name it."""
    if isinstance(error, UnavailableError):
        return "unreachable"
    return "late" if isinstance(error, LateError) else "failed"


def _cannot_answer(error: Exception) -> bool:
    """Return whether an answer says that its server has no worker or has damaged files."""
    codes = (code_pb2.UNAVAILABLE, code_pb2.DATA_LOSS)
    return isinstance(error, RefusedError) and error.status.code in codes
