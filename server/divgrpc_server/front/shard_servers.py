"""Asks the shard servers of a cluster, over gRPC.

Theory of operation. Each shard has the same points on several servers, its replicas. One of them is
asked. If it has not replied after the time that few calls take, the next one is asked too, and the
first reply counts; the slow one is avoided for a second. If it refuses the call or cannot be
reached, the next one is asked at once. If none is there, the call waits for a new topology, as long
as queries wait for a worker.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import grpc
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc import aio

from divgrpc.errors import IndexChangedError, UnavailableError
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.codec.statuses import (
    LateError,
    ReplyTooLargeError,
    ShardsMissingError,
    WorkersEndedError,
)
from divgrpc_server.config import Config
from divgrpc_server.front.jobs import RefusedError
from divgrpc_server.front.standard_services import DETAILS_KEY
from divgrpc_server.ipc.topology import Topology
from divgrpc_server.logging.logs import Logger

SERVICE: Final = shard_index_pb2.DESCRIPTOR.services_by_name["ShardIndex"].full_name
_METHOD: Final = f"/{SERVICE}/Ask"
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
_AVOID_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.25
_HEDGE_SECONDS_MIN: Final = 0.005
_HEDGE_SECONDS_FIRST: Final = 0.05
_DURATIONS: Final = 128
# One call in ten may be hedged, and at first as many as this.
_HEDGES_SHARE: Final = 0.1
_HEDGES_MAX: Final = 20.0
_SHARE_OF_QUICK: Final = 0.95
_CHANGED: Final = (
    "the index was replaced meanwhile, or shard servers have another data folder: ask again, and if"
    " that does not help, check that --data-dir of all shard servers is the folder of this server"
)
# Another replica may answer what one answers with one of these codes.
_ELSEWHERE: Final = (code_pb2.UNAVAILABLE, code_pb2.RESOURCE_EXHAUSTED, code_pb2.DATA_LOSS)


class _Failure(NamedTuple):
    """A call that failed, and whether another replica may do better."""

    error: Exception
    is_local: bool


class ShardServers:
    """The shard servers that the latest topology names."""

    def __init__(self, config: Config, secret: str, log: Logger) -> None:
        """Take the token of the cluster, `secret`."""
        self._metadata = (("authorization", f"Bearer {secret}"),)
        self._log = log
        self._wait_seconds = config.worker_wait
        self._topology = Topology(0, ())
        self._channels: dict[str, aio.Channel] = {}
        self._avoided_until: dict[str, float] = {}
        self._durations: deque[float] = deque(maxlen=_DURATIONS)
        self._hedge_seconds = config.hedge_ms / 1000 or _HEDGE_SECONDS_FIRST
        self._measures_hedge = not config.hedge_ms
        # How many calls may ask another replica because the first one is slow.
        self._hedges_left = _HEDGES_MAX
        # Servers whose fault was logged, and that have not replied since.
        self._faulty: set[str] = set()
        self._changed = asyncio.Event()
        self._credentials = _credentials(config)
        if config.shard_servers:
            self.follow(Topology(1, config.shard_places))

    def follow(self, topology: Topology) -> None:
        """Take a topology, unless it is older than the latest one."""
        if topology.version <= self._topology.version:
            return
        self._topology = topology
        addresses = {address for place in topology.places for address in place}
        for address in self._channels.keys() - addresses:
            channel = self._channels.pop(address)
            asyncio.get_running_loop().create_task(channel.close(grace=_AVOID_SECONDS))
        self._changed.set()
        self._changed = asyncio.Event()

    async def close(self) -> None:
        """Close all connections."""
        for channel in self._channels.values():
            await channel.close()

    async def ask(self, messages: dict[int, bytes], seconds: float) -> dict[int, bytes]:
        """Return the reply of each shard to its message; see `sharded_pool.Shards`."""
        end_time = time.monotonic() + min(seconds, _ASK_SECONDS_MAX)
        tasks = {
            shard: asyncio.create_task(self._ask_shard(shard, message, end_time))
            for shard, message in messages.items()
        }
        try:
            replies = await asyncio.gather(*tasks.values())
        except ShardsMissingError as error:
            await asyncio.wait(tasks.values(), timeout=_RETRY_SECONDS)
            failures = [task.exception() for task in tasks.values() if task.done()]
            missing = [e.shards for e in failures if isinstance(e, ShardsMissingError)]
            raise ShardsMissingError(sorted({*error.shards, *chain(*missing)})) from None
        finally:
            for task in tasks.values():
                task.cancel()
        return dict(zip(tasks, replies, strict=True))

    async def _ask_shard(self, shard: int, message: bytes, end_time: float) -> bytes:
        """Ask the replicas of a shard until one has replied."""
        wait_end = min(end_time, time.monotonic() + self._wait_seconds)
        while True:
            changed, version = self._changed, self._topology.version
            outcome = await self._ask_replicas(shard, message, end_time)
            if isinstance(outcome, bytes):
                return outcome
            if outcome is not None and not isinstance(outcome.error, UnavailableError):
                raise outcome.error
            left = wait_end - time.monotonic()
            if left <= 0:
                raise ShardsMissingError([shard])
            if version == self._topology.version:
                # A server that was killed is replaced in a moment.
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), min(left, _RETRY_SECONDS))

    async def _ask_replicas(
        self, shard: int, message: bytes, end_time: float
    ) -> bytes | _Failure | None:
        """Ask one replica after another; return a reply, or the last failure, None without any."""
        addresses = self._ordered(self._topology.replicas(shard))
        calls: dict[asyncio.Task[bytes | _Failure], str] = {}
        failure: _Failure | None = None
        try:
            while addresses or calls:
                if addresses:
                    address = addresses.pop(0)
                    call = self._call(address, message, end_time)
                    calls[asyncio.create_task(call)] = address
                # A server that is slow with all calls is no reason to ask others for all of them.
                may_hedge = addresses and self._hedges_left >= 1
                timeout = self._hedge_seconds if may_hedge else None
                completions, _ = await asyncio.wait(
                    calls, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                self._hedges_left -= not completions
                for task in completions:
                    outcome, address = task.result(), calls.pop(task)
                    if isinstance(outcome, bytes):
                        self._avoid(calls.values())
                        return outcome
                    failure = outcome
                    if not outcome.is_local:
                        return outcome
                    self._avoid([address])
        finally:
            for task in calls:
                task.cancel()
        return failure

    def _ordered(self, addresses: tuple[str, ...]) -> list[str]:
        """Return addresses, those to avoid last."""
        now = time.monotonic()
        return sorted(addresses, key=lambda address: self._avoided_until.get(address, 0) > now)

    def _avoid(self, addresses: Iterable[str]) -> None:
        end_time = time.monotonic() + _AVOID_SECONDS
        for address in addresses:
            self._avoided_until[address] = end_time

    async def _call(self, address: str, message: bytes, end_time: float) -> bytes | _Failure:
        """Call one server; return its reply or a failure."""
        start = time.monotonic()
        ask: aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel(address).unary_unary(_METHOD)
        seconds = max(0.0, end_time - start)
        try:
            reply: bytes = await ask(message, timeout=seconds, metadata=self._metadata)
        except aio.AioRpcError as error:
            return self._failure(error, address)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The channel was closed, because its address is no longer one of a shard server.
            return _Failure(UnavailableError("a shard server is gone"), True)
        self._faulty.discard(address)
        self._measure(time.monotonic() - start)
        return reply

    def _channel(self, address: str) -> aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            if self._credentials is None:
                channel = aio.insecure_channel(address, _OPTIONS)
            else:
                channel = aio.secure_channel(address, self._credentials, _OPTIONS)
            self._channels[address] = channel
        return channel

    def _measure(self, seconds: float) -> None:
        """Measure how long few calls take, unless the configuration says it."""
        self._durations.append(seconds)
        self._hedges_left = min(_HEDGES_MAX, self._hedges_left + _HEDGES_SHARE)
        if self._measures_hedge and len(self._durations) == _DURATIONS:
            place = int(_SHARE_OF_QUICK * _DURATIONS)
            self._hedge_seconds = max(_HEDGE_SECONDS_MIN, sorted(self._durations)[place])
            self._durations.clear()

    def _failure(self, error: aio.AioRpcError, address: str) -> _Failure:
        """Return what a call that failed means for the caller."""
        status = _status_of(error)
        if status.code in (code_pb2.ABORTED, code_pb2.NOT_FOUND):
            return _Failure(IndexChangedError(_CHANGED), False)
        if status.code in (code_pb2.DEADLINE_EXCEEDED, code_pb2.CANCELLED):
            return _Failure(LateError("a shard has not replied before the deadline"), False)
        if status.code in _ELSEWHERE:
            if status.details:
                is_local = _reason_of(status) != WorkersEndedError.reason
                return _Failure(RefusedError(status.SerializeToString()), is_local)
            if status.code == code_pb2.RESOURCE_EXHAUSTED:
                error_of_size = ReplyTooLargeError(
                    "the messages to a shard are too large; send fewer rows at a time"
                )
                return _Failure(error_of_size, False)
            # It is gRPC that says so: nothing listens there, or the connection was lost.
            if self._is_first_fault(address):
                self._log.warning("a shard server cannot be reached", address=address)
            return _Failure(UnavailableError("a shard server cannot be reached"), True)
        if status.code == code_pb2.INTERNAL and status.details:
            return _Failure(RefusedError(status.SerializeToString()), False)
        if self._is_first_fault(address):
            self._log.error(
                "a shard server refuses this server: have both the same version and token?",
                address=address, code=error.code().name, reason=status.message,
            )  # fmt: skip
        return _Failure(UnavailableError("a shard server refuses the messages of this one"), True)

    def _is_first_fault(self, address: str) -> bool:
        """Note a fault of a server; return whether it is the first one since the last reply."""
        is_first = address not in self._faulty
        self._faulty.add(address)
        return is_first


def _credentials(config: Config) -> grpc.ChannelCredentials | None:
    """Return how to connect to shard servers; None to connect without TLS.

    If this server has a certificate, it shows it to them.
    """
    if not config.cluster_ca:
        return None
    key = Path(config.tls_key).read_bytes() if config.tls_key else None
    chain = Path(config.tls_cert).read_bytes() if config.tls_cert else None
    return grpc.ssl_channel_credentials(Path(config.cluster_ca).read_bytes(), key, chain)


def _reason_of(status: status_pb2.Status) -> str:
    info = error_details_pb2.ErrorInfo()
    has_info = any(detail.Unpack(info) for detail in status.details)
    return str(info.reason) if has_info else ""


def _status_of(error: aio.AioRpcError) -> status_pb2.Status:
    """Return the status of a failed call; without details unless the server has sent some."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                break
    return status_pb2.Status(code=error.code().value[0], message=error.details() or "")
