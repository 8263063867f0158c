"""Lets shard servers open shards before queries ask for them.

Theory of operation. Before a build is published, all servers open their shards of it. When a server
joins or comes back, it opens its shards of all indexes, one after another. All servers do so with
an index that `divgrpc reshard` or a server on another machine has changed. Meanwhile the other
replicas are asked first. A shard that no server has opened is opened by the first query, which
waits.
"""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from google.rpc import code_pb2
from grpc import aio

from divgrpc.errors import DivgrpcError
from divgrpc.storage.generations import IndexFolder, list_indexes, read_manifest
from divgrpc.storage.mounts import check_mounted
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.front.refusals import RefusedError
from divgrpc_server.front.shard_states import ShardStates, is_channel_closed
from divgrpc_server.front.shard_statuses import describe_call, status_of_call
from divgrpc_server.ipc.job_frames import StagedGeneration
from divgrpc_server.logging.logs import Logger

_LOOK_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.25
# A server may have to copy a large shard.
_OPEN_SECONDS_MAX: Final = 3_600.0
# Codes of a server that cannot open a shard: it lacks descriptors or memory, or a file is damaged.
_CANNOT_OPEN: Final = (code_pb2.RESOURCE_EXHAUSTED, code_pb2.DATA_LOSS)
_REASON: Final = "it opens shards"


class _Shard(NamedTuple):
    """A shard of a generation in the data folder."""

    generation: StagedGeneration
    number: int


class _Division(NamedTuple):
    """The shards of the current generation of an index; none if it is whole.

    stamp: a value that changes with the generation.
    """

    stamp: object
    shards: tuple[_Shard, ...]


class _Opened(NamedTuple):
    """The shards that a server has opened, and how often it was lost before."""

    losses: int
    shards: set[_Shard]


class ShardOpenings:
    """Lets servers open their shards."""

    def __init__(
        self,
        send: Callable[[str, bytes, float], Awaitable[None]],
        replicas: Callable[[int], Sequence[str]],
        states: ShardStates,
        wait_seconds: float,
        log: Logger,
    ) -> None:
        """Take what sends a `PrepareRequest` to an address, and waits for so many seconds.

        replicas: returns the addresses of the servers that have a shard. wait_seconds: how long to
            wait for a server that does not reply to health checks.
        """
        self._send, self._replicas, self._states = send, replicas, states
        self._wait_seconds, self._log = wait_seconds, log
        # A server copies one shard after another.
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        # The shards that each server has opened, or could not open, since it was last lost.
        self._opened: dict[str, _Opened] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def prepare(self, generation: StagedGeneration, shards: int) -> None:
        """Let all servers open their shards of a build.

        A server that cannot be reached opens them later. Raises `RefusedError` if no server of a
        shard can open it.
        """
        tasks = {
            (shard, address): asyncio.create_task(self._open(address, _Shard(generation, shard)))
            for shard in range(shards)
            for address in self._replicas(shard)
        }
        try:
            await asyncio.gather(*tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()
        for shard in range(shards):
            outcomes = [task.result() for (number, _), task in tasks.items() if number == shard]
            refusals = [outcome for outcome in outcomes if isinstance(outcome, RefusedError)]
            if refusals and all(outcomes):
                raise refusals[0]

    async def keep(self, root: Path) -> NoReturn:
        """Let servers open their shards of the indexes in the folder `root`, for ever."""
        divisions: dict[str, _Division] = {}
        try:
            while True:
                # The workers of this server say what is wrong with the folder.
                with suppress(OSError):
                    divisions = await asyncio.to_thread(_read_divisions, root, divisions)
                self._begin([shard for division in divisions.values() for shard in division.shards])
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            for task in self._tasks.values():
                task.cancel()

    def _begin(self, shards: Sequence[_Shard]) -> None:
        """Begin to open shards on the servers that run and have not opened them."""
        duties: dict[str, set[_Shard]] = defaultdict(set)
        for shard in shards:
            for address in filter(self._states.is_running, self._replicas(shard.number)):
                duties[address].add(shard)
        for address, (losses, _) in [*self._opened.items()]:
            # A server that comes back has nothing open.
            if address not in duties or losses != self._states.loss_count(address):
                del self._opened[address]
                self._tasks.pop(address).cancel()
        for address in [*self._turns]:
            if address not in duties and not self._turns[address].locked():
                del self._turns[address]
        for address, duty in duties.items():
            losses = self._states.loss_count(address)
            opened = self._opened.setdefault(address, _Opened(losses, set())).shards
            opened &= duty
            task = self._tasks.get(address)
            if task is not None and not task.done():
                # Until after the next look.
                self._states.avoid([address], _REASON, 2 * _LOOK_SECONDS)
            elif duty != opened:
                self._tasks[address] = asyncio.create_task(self._open_all(address, duty - opened))

    async def _open_all(self, address: str, shards: set[_Shard]) -> None:
        opened = self._opened[address].shards
        for shard in sorted(shards):
            damage = _damage_in(await self._open(address, shard))
            if damage is not None:
                self._states.note_opening(address, shard.generation.name, shard.number, damage)
            opened.add(shard)

    async def _open(self, address: str, shard: _Shard) -> str | RefusedError:
        """Let a server open a shard; return why it cannot, or has not, "" if it has."""
        async with self._turns[address]:
            outcome: str | RefusedError = self._states.describe_fault(address)
            if self._states.may_reply(address):
                outcome = await self._open_in_time(address, shard)
        if outcome:
            self._log.warning(
                "a shard server has not opened a shard before its first query",
                index=shard.generation.name, shard=shard.number, address=address,
                reason=str(outcome),
            )  # fmt: skip
        return outcome

    async def _open_in_time(self, address: str, shard: _Shard) -> str | RefusedError:
        """Let a server open a shard, for as long as it may reply; return as `_open` does."""
        (name, folder), number = shard
        message = shard_index_pb2.PrepareRequest(index=name, folder=folder, shard=number)
        call = asyncio.create_task(self._ask(address, message.SerializeToString()))
        loss_time = math.inf
        try:
            while time.monotonic() - (loss_time := self._states.loss_time([address], loss_time)) < (
                self._wait_seconds
            ):
                await asyncio.wait([call], timeout=_RETRY_SECONDS)
                if call.done():
                    return call.result()
            return self._states.describe_fault(address)
        finally:
            call.cancel()

    async def _ask(self, address: str, message: bytes) -> str | RefusedError:
        """Send a message to a server; return as `_open` does."""
        try:
            await self._send(address, message, _OPEN_SECONDS_MAX)
        except aio.AioRpcError as error:
            status = status_of_call(error)
            if status.details and status.code in _CANNOT_OPEN:
                status.message = f"the shard server {address} cannot open it: {status.message}"
                return RefusedError(status.SerializeToString())
            return "" if status.code == code_pb2.NOT_FOUND else describe_call(error)
        except asyncio.CancelledError:
            if not is_channel_closed():
                raise
            return "the server is gone"
        return ""


def _damage_in(outcome: str | RefusedError) -> str | None:
    """Return the damage that keeps a server from opening a shard, "" if it has opened it.

    outcome: as `ShardOpenings._open` returns it. Returns None if it says neither.
    """
    if isinstance(outcome, RefusedError):
        return outcome.status.message if outcome.status.code == code_pb2.DATA_LOSS else None
    return None if outcome else ""


def _read_divisions(root: Path, before: Mapping[str, _Division]) -> dict[str, _Division]:
    """Return the shards of each index, given those of a moment ago."""
    divisions = {}
    for name in list_indexes(check_mounted(root)):
        index, known = IndexFolder(root / name), before.get(name)
        # Queries report what is damaged. What was deleted meanwhile is not there the next time.
        with suppress(DivgrpcError):
            try:
                stamp = index.pointer_stamp()
                divisions[name] = known if known and known.stamp == stamp else _read(index, stamp)
            except OSError:
                # It cannot be read for now, which concerns no other index.
                divisions |= {name: known} if known else {}
    return divisions


def _read(index: IndexFolder, stamp: object) -> _Division:
    number = index.current()
    count = len(read_manifest(index.path / str(number)).shards)
    generation = StagedGeneration(index.name, f"{index.name}/{number}")
    return _Division(stamp, tuple(_Shard(generation, shard) for shard in range(count)))
