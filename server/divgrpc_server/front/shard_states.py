"""What a front knows of the state of shard servers.

Theory of operation. Each server is asked for its health once a second, so its state is known before
a call meets it, and without calls. Health says nothing about the token, so a server that becomes
healthy is sent a message that names no index. What calls meet is noted too: a server that refuses
calls is at fault, whatever it says about its health, until it replies to one. The call that it has
refused is repeated now and then, because others may wait for that.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, get_args

from google.protobuf.message import DecodeError
from grpc import aio
from grpc_health.v1 import health_pb2

from divgrpc.types.shards import ReplicaInfo, ReplicaState
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.codec.statuses import MissingPlace, ShardsMissingError
from divgrpc_server.front.meter import ShardMeter
from divgrpc_server.front.shard_statuses import advice_on
from divgrpc_server.front.standard_services import HEALTH
from divgrpc_server.ipc.topology import Topology
from divgrpc_server.logging.logs import Logger

_CHECK: Final = f"/{HEALTH}/Check"
_CHECK_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 1.0
_AVOID_SECONDS: Final = 1.0
# After these a refused call is repeated; the pause is doubled each time.
_RETRY_SECONDS: Final = 1.0
_RETRY_SECONDS_MAX: Final = 30.0
_SLOW: Final = "another replica has replied sooner"
_OTHER_FILES: Final = (
    "it does not have the shards of the index that another replica has: its --data-dir must be the"
    " folder of the server that clients call"
)
_MISMATCH_SECONDS: Final = 3.0
_STATES: Final[tuple[ReplicaState, ...]] = get_args(ReplicaState)


class _Fault(NamedTuple):
    """Why a server does not serve."""

    state: ReplicaState
    reason: str


class _Refusal(NamedTuple):
    """A message that a server has refused, why, when to repeat it, and the pause after that."""

    message: bytes
    reason: str
    due_time: float
    pause_seconds: float


# A message about no index, which a server answers if it lets this one in.
_NO_INDEX: Final = b""
# Maximum number of reasons of one server that are logged until it replies.
_REASONS_MAX: Final = 3
_NOT_CHECKED: Final = _Fault("starting", "its health is not known yet")
_NO_WORKER: Final = _Fault("starting", "its health service says that it does not serve")
_NOT_STARTED: Final = ReplicaInfo("", "starting", "the server is being started")


class ShardStates:
    """The states of the servers that the latest topology names."""

    def __init__(
        self,
        replicas: int,
        channel: Callable[[str], aio.Channel],
        probe: Callable[[str, bytes], Awaitable[str | None]],
        meter: ShardMeter,
        log: Logger,
        *,
        preference: int,
    ) -> None:
        """Take how many servers each place should have, 0 for those of the topology.

        channel: returns the connection to an address.
        probe: sends a message to an address, and returns why the server refuses it, "" if it
            answers, perhaps with an error, and None if that is not known.
        preference: as `ShardServers` takes it.
        """
        self._replicas, self._channel, self._probe = replicas, channel, probe
        self._meter, self._log, self._preference = meter, log, preference
        self._topology = Topology(0, ())
        # The last addresses of each place that has had any.
        self._last_addresses: dict[int, tuple[str, ...]] = {}
        self._faults: dict[str, _Fault] = {}
        self._refusals: dict[str, _Refusal] = {}
        # The reasons that the log has for each server since it has last replied.
        self._logged: dict[str, set[str]] = {}
        # The damage of shards on a server: by address, index and shard.
        self._damage: dict[tuple[str, str, int], str] = {}
        # How often each server could not be reached.
        self._losses: Counter[str] = Counter()
        # The number of calls that each server has now, and when it has last replied to one.
        self._calls: Counter[str] = Counter()
        self._reply_times: dict[str, float] = {}
        # Since when a server has not had a shard that another replica has answered about: by
        # address, index and shard.
        self._mismatches: dict[tuple[str, str, int], float] = {}
        # Servers to ask last: until when, and why.
        self._avoided: dict[str, tuple[float, str]] = {}
        self._changed = asyncio.Event()

    def follow(self, topology: Topology) -> None:
        """Take a new topology."""
        addresses = {address for place in topology.places for address in place}
        self._faults |= dict.fromkeys(addresses - self._addresses, _NOT_CHECKED)
        self._topology = topology
        self._last_addresses |= {n: place for n, place in enumerate(topology.places) if place}
        known = self._faults.keys() | self._avoided.keys() | self._losses.keys()
        known |= self._logged.keys() | self._reply_times.keys()
        self._calls = +self._calls
        for address in known - addresses:
            self._faults.pop(address, None)
            self._refusals.pop(address, None)
            self._avoided.pop(address, None)
            self._losses.pop(address, None)
            self._logged.pop(address, None)
            self._reply_times.pop(address, None)
        mismatches = self._mismatches.items()
        self._mismatches = {key: since for key, since in mismatches if key[0] in addresses}
        self._damage = {key: text for key, text in self._damage.items() if key[0] in addresses}
        self._changed.set()

    @property
    def _addresses(self) -> set[str]:
        return {address for place in self._topology.places for address in place}

    async def keep(self) -> None:
        """Ask all servers for their health, again and again."""
        while True:
            self._changed.clear()
            await asyncio.gather(*map(self._check, self._addresses))
            await asyncio.gather(*map(self._retry, [*self._refusals]))
            self._count()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _PAUSE_SECONDS)

    async def _check(self, address: str) -> None:
        """Ask a server for its health."""
        check: aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel(address).unary_unary(
            _CHECK
        )
        try:
            reply = await check(b"", timeout=_CHECK_SECONDS)
            status = health_pb2.HealthCheckResponse.FromString(reply).status
        except (aio.AioRpcError, DecodeError) as error:
            text, advice = "not understood", ""
            if isinstance(error, aio.AioRpcError):
                text, advice = error.code().name, advice_on(error)
            reason = advice or f"it does not reply to health checks: {text}"
            self.note_fault(address, "unreachable", reason)
        except asyncio.CancelledError:
            if not is_channel_closed():
                raise
        else:
            fault = self._faults.get(address)
            if status != health_pb2.HealthCheckResponse.SERVING:
                self._faults[address] = _NO_WORKER
            elif fault is not None and fault.state != "faulty":
                await self._end_fault(address, fault)

    async def _end_fault(self, address: str, fault: _Fault) -> None:
        """Note that a server is healthy, which may still refuse calls."""
        refusal = self._refusals.get(address)
        if refusal is not None:
            self._faults[address] = _Fault("faulty", refusal.reason)
            return
        reason = await self._probe(address, _NO_INDEX)
        if self._faults.get(address) is not fault:
            return  # a call has met the server meanwhile
        if reason:
            self.note_refusal(address, _NO_INDEX, reason)
            return
        del self._faults[address]
        if reason is not None:
            self._note_end(address)

    def _note_end(self, address: str) -> None:
        """Log that a server replies again, if its fault was logged."""
        if address in self._logged:
            self._logged.pop(address, None)
            place = self._place_of(address)
            self._log.info("a shard server replies again", place=place, address=address)

    def _place_of(self, address: str) -> int | None:
        """Return the number of the place of a server, None if it is in no topology any more."""
        places = enumerate(self._topology.places)
        return next((number for number, place in places if address in place), None)

    async def _retry(self, address: str) -> None:
        """Repeat the call that a server has refused, if that is due and nothing else is wrong."""
        fault, refusal = self._faults.get(address), self._refusals.get(address)
        now = time.monotonic()
        if refusal is None or now < refusal.due_time:
            return
        if fault is None or fault.state != "faulty":
            return
        pause = refusal.pause_seconds
        longer = min(_RETRY_SECONDS_MAX, 2 * pause)
        self._refusals[address] = refusal._replace(due_time=now + pause, pause_seconds=longer)
        reason = await self._probe(address, refusal.message)
        if reason == "" and self._faults.get(address) is fault:
            self.note_reply(address, None)

    def _count(self) -> None:
        """Count the servers by state, and the places where none answers calls."""
        counts: dict[str, int] = dict.fromkeys(_STATES, 0)
        places = [self._at(place) for place in self._topology.places]
        for replica in (replica for place in places for replica in place):
            counts[replica.state] += 1
        missing = sum(not any(map(self.is_running, place)) for place in self._topology.places)
        self._meter.set_states(counts, missing)
        self._meter.set_damaged({index for _, index, _ in self._damage})

    def note_reply(self, address: str, message: bytes | None) -> None:
        """Note that a server has replied to the message of a call.

        message: None if it is about no shard.
        """
        self._reply_times[address] = time.monotonic()
        self._faults.pop(address, None)
        self._refusals.pop(address, None)
        if (self._damage or self._mismatches) and message is not None:
            subject = _subject(address, message)
            self._damage.pop(subject, None)
            self._mismatches.pop(subject, None)
        if not any(key[0] == address for key in self._mismatches):
            self._note_end(address)

    def note_fault(self, address: str, state: ReplicaState, reason: str) -> None:
        """Note why a server does not serve, and log each reason once until it replies."""
        self._faults[address] = _Fault(state, reason)
        self._losses[address] += state == "unreachable"
        reasons = self._logged.setdefault(address, set())
        if reason not in reasons and len(reasons) < _REASONS_MAX:
            reasons.add(reason)
            event = "a shard server cannot be reached"
            if state == "faulty":
                event = "a shard server refuses this server: have both the same version and token?"
            self._log.warning(event, place=self._place_of(address), address=address, reason=reason)

    def note_refusal(self, address: str, message: bytes, reason: str) -> None:
        """Note that a server refuses a message."""
        due_time = time.monotonic() + _RETRY_SECONDS
        refusal = _Refusal(message, reason, due_time, 2 * _RETRY_SECONDS)
        self._refusals.setdefault(address, refusal)
        self.note_fault(address, "faulty", reason)

    def note_damage(self, address: str, message: bytes, reason: str) -> str:
        """Note that files of the shard that a message is about are damaged on a server.

        Returns what to tell the caller.
        """
        subject = _subject(address, message)
        self._damage[subject] = reason
        return f"shard {subject[2]} is damaged at {address}: {reason}; divgrpc doctor says more"

    def note_opening(self, address: str, index: str, shard: int, damage: str) -> None:
        """Note that a server has opened a shard of an index, or which damage it has found."""
        if damage:
            self._damage[address, index, shard] = damage
        else:
            self._damage.pop((address, index, shard), None)

    def note_other_files(self, address: str, message: bytes) -> None:
        """Note a server without the shard that another replica has answered a message about.

        The index may have been replaced meanwhile, so the log has it if that lasts.
        """
        subject = _subject(address, message)
        self._mismatches.setdefault(subject, time.monotonic())
        self.avoid([address], _OTHER_FILES)
        reasons = self._logged.setdefault(address, set())
        if self._has_other_files(subject) and _OTHER_FILES not in reasons:
            reasons.add(_OTHER_FILES)
            self._log.warning(
                "a shard server has other files than another replica",
                place=self._place_of(address), address=address, index=subject[1],
                shard=subject[2], reason=_OTHER_FILES,
            )  # fmt: skip

    def _has_other_files(self, subject: tuple[str, str, int]) -> bool:
        """Whether a server has lacked a shard for a while that another replica has."""
        return time.monotonic() - self._mismatches.get(subject, math.inf) >= _MISMATCH_SECONDS

    def avoid(
        self, addresses: Iterable[str], reason: str = _SLOW, seconds: float = _AVOID_SECONDS
    ) -> None:
        """Ask these servers last, for some seconds."""
        end_time = time.monotonic() + seconds
        for address in addresses:
            self._avoided[address] = end_time, reason

    def is_reachable(self, address: str) -> bool:
        """Whether a server may reply to a call."""
        fault = self._faults.get(address)
        return fault is None or fault.state != "unreachable"

    def loss_count(self, address: str) -> int:
        """Return a number that grows whenever a server cannot be reached."""
        return self._losses[address]

    def loss_time(self, addresses: Iterable[str], before: float) -> float:
        """Return since when none of these servers may reply, infinity if one may.

        before: what this has returned a moment ago.
        """
        return math.inf if any(map(self.may_reply, addresses)) else min(before, time.monotonic())

    def may_reply(self, address: str) -> bool:
        """Whether a server may reply to a call soon: it is reachable, and a worker is up."""
        return self.is_reachable(address) and self._faults.get(address) is not _NO_WORKER

    def is_running(self, address: str) -> bool:
        """Whether a server is known to run: it answers checks and calls, and a worker is up."""
        return address not in self._faults

    def is_unknown(self, address: str) -> bool:
        """Whether a server was neither checked nor asked since it is in the topology."""
        return self._faults.get(address) is _NOT_CHECKED

    def describe_fault(self, address: str) -> str:
        """Return the state of a server and the reason in words."""
        replica = self._describe(address, is_alone=True)
        return f"{address} is {replica.state}: {replica.reason or 'it passes its health checks'}"

    def missing_error(self, shard: int) -> ShardsMissingError:
        """Return the error that no server of a shard replies, with what is known of them."""
        place_count = len(self._topology.places)
        if not place_count:
            return ShardsMissingError([shard])
        number = shard % place_count
        addresses = self._topology.replicas(shard)
        faults = tuple(map(self.describe_fault, addresses))
        if not addresses:
            addresses = self._last_addresses.get(number, ())
            where = f"; the last was at {' and '.join(addresses)}" if addresses else ""
            faults = (f"no server is at place {number} now{where}",)
        return ShardsMissingError([shard], [MissingPlace(number, place_count, addresses, faults)])

    def _is_avoided(self, address: str) -> bool:
        end_time, _ = self._avoided.get(address, (0.0, ""))
        return end_time > time.monotonic()

    def count_call(self, address: str, call: asyncio.Task[Any]) -> None:
        """Count a call of a server while it lasts."""
        self._calls[address] += 1
        call.add_done_callback(lambda _: self._calls.subtract((address,)))

    def last_reply_time(self, addresses: Iterable[str], before: float) -> float:
        """Return when one of these servers has last replied to a call, at least `before`."""
        return max([before, *(self._reply_times.get(address, before) for address in addresses)])

    def ordered(self, addresses: Sequence[str]) -> list[str]:
        """Return addresses: those that may fail last, and those with fewer calls first."""

        def rank(address: str) -> tuple[bool, bool, int]:
            is_lost = not self.is_reachable(address)
            return is_lost, self._is_avoided(address), self._calls[address]

        first = self._preference % max(1, len(addresses))
        return sorted([*addresses[first:], *addresses[:first]], key=rank)

    def replicas(self, index: str, shard: int) -> list[ReplicaInfo]:
        """Describe the servers that have a shard of an index."""
        replicas = self._at(self._topology.replicas(shard))
        return [self._with_damage(replica, index, shard) for replica in replicas]

    def _at(self, place: Sequence[str]) -> list[ReplicaInfo]:
        """Describe the servers at a place."""
        absent = max(0, self._replicas - len(place))
        replicas = [self._describe(address, is_alone=len(place) == 1) for address in place]
        return replicas + [_NOT_STARTED] * absent

    def _describe(self, address: str, *, is_alone: bool) -> ReplicaInfo:
        fault = self._faults.get(address)
        if fault is None and self._is_avoided(address) and not is_alone:
            fault = _Fault("avoided", self._avoided[address][1])
        return ReplicaInfo(address, *(fault or _Fault("serving", "")))

    def _with_damage(self, replica: ReplicaInfo, index: str, shard: int) -> ReplicaInfo:
        subject = replica.address, index, shard
        damage = self._damage.get(subject)
        if damage is None and self._has_other_files(subject):
            damage = _OTHER_FILES
        return replica if damage is None else ReplicaInfo(replica.address, "faulty", damage)


def is_channel_closed() -> bool:
    """Return whether a call was cancelled with its channel, and not with the task that awaits it.

    A channel is closed when its address is no longer one of a shard server.
    """
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


def _subject(address: str, message: bytes) -> tuple[str, str, int]:
    """Return the address with the index and the shard that a message is about."""
    request = shard_index_pb2.AskRequest.FromString(message)
    return address, request.index, request.shard
