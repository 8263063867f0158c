"""The worker pool of a server whose indexes may be divided among shards.

Theory of operation. A worker that lacks replies of shards ends its work on a call with a round of
messages (`ipc.rounds`). This pool lets the shards be asked, adds their replies to the request, and
queues the call again, for any worker. Meanwhile the call counts as held, so admission limits the
calls that wait for shards too.

If no server of some shards is up, and the caller has said that the answer may lack them, the call
begins anew without these shards.

Shards may say that their generation was replaced meanwhile. The call then begins anew once, with
the current generation. So no answer mixes two generations.
"""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, Final, Protocol

from divgrpc.errors import IndexChangedError
from divgrpc.sharding.layouts import VECTOR_BYTES_MAX
from divgrpc_server.codec import subjects
from divgrpc_server.codec.statuses import (
    PoisonError,
    QueueFullError,
    ReplyTooLargeError,
    ShardsMissingError,
    WorkersEndedError,
)
from divgrpc_server.front.admission import kind_of
from divgrpc_server.front.pool import POISON, Pool, PoolCall, WorkerLink
from divgrpc_server.front.refusals import RefusedError
from divgrpc_server.ipc import rounds
from divgrpc_server.ipc.job_frames import StagedGeneration
from divgrpc_server.ipc.packets import Outcome, Reply

# Shards may take this share of the time to the deadline; the rest is for merging and selecting.
_SHARDS_SHARE: Final = 0.8
_BEGINS_MAX: Final = 2
# How often a call may begin anew because further shards are missing.
_LOSSES_MAX: Final = 4
# Four calls with as many candidates as a call may have.
_GATHERED_BYTES_MIN: Final = 4 * 2 * VECTOR_BYTES_MAX
# A call of more rounds than any search needs would go on for ever.
_ROUNDS_MAX: Final = 64


class Shards(Protocol):
    """Asks shards."""

    def ask(
        self,
        messages: dict[int, bytes],
        seconds: float,
        *,
        tag: str,
        waits: bool,
        is_job: bool = False,
    ) -> Awaitable[dict[int, bytes]]:
        """Return the reply of each shard to its message.

        seconds: the time after which the replies are of no use any more.
        tag: of the call (`ipc.tags`), which shard servers log.
        waits: whether to wait for a server of a shard if none is up.
        is_job: whether a job asks. Its calls may take long, so they say nothing about the time
            after which a query asks another replica, and themselves do so after a second.

        Raises `ShardsMissingError`, `LateError`, `IndexChangedError` and what a shard answers.
        """

    def prepare(self, generation: StagedGeneration) -> Awaitable[None]:
        """Wait until all servers have opened their shards of a build, so that no query waits.

        Raises `RefusedError` if no server can open a shard.
        """

    @property
    def room_bytes(self) -> int | None:
        """The largest shard for which each place has memory, as `Topology` says."""

    def await_engine(self) -> Awaitable[None]:
        """Wait until the engine can be reached, for as long as queries wait for a worker.

        Returns at once if there is no engine. Raises `EngineUnreachableError`.
        """

    def await_places(self) -> Awaitable[None]:
        """Wait until each place has a server.

        Raises `PlacesMissingError`, or `UnavailableError` while servers are being started or have
        not been checked.
        """


class ShardedPool(Pool):
    """A pool that asks `shards`; the other arguments are those of `Pool`."""

    def __init__(self, *arguments: Any, shards: Shards, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        self._shards = shards
        # The task that asks shards for each call, by the id of its request.
        self._asking: dict[int, asyncio.Task[None]] = {}
        # How often a call has begun, and how many rounds it has had, by the id of its request.
        self._begins: dict[int, int] = {}
        self._rounds: dict[int, int] = {}
        # The errors after which a call has begun anew without missing shards.
        self._losses: dict[int, list[ShardsMissingError]] = {}
        # The bytes of all exchanges that calls hold, and their limit.
        self._gathered_bytes = 0
        self._gathered_bytes_max = max(self._config.queue_bytes, _GATHERED_BYTES_MIN)

    def close(self) -> None:
        """Close the sockets to all workers, and ask no more."""
        for task in self._asking.values():
            task.cancel()
        super().close()

    async def prepare(self, generation: bytes) -> bytes:
        """Wait until every worker has opened a generation, and every shard server its shards.

        Raises `RefusedError` if no server can open a shard.
        """
        status, _ = await asyncio.gather(
            super().prepare(generation), self._shards.prepare(StagedGeneration.unpack(generation))
        )
        return status

    def withdraw(self, call: PoolCall) -> None:
        """Remove a call whose caller no longer waits."""
        task = self._asking.pop(call.request.id, None)
        if task is None:
            super().withdraw(call)
            return
        task.cancel()
        self._release(call)

    def _release(self, call: PoolCall, *, is_answered: bool = False) -> None:
        self._begins.pop(call.request.id, None)
        self._rounds.pop(call.request.id, None)
        self._losses.pop(call.request.id, None)
        self._gathered_bytes -= len(call.request.exchanges)
        super()._release(call, is_answered=is_answered)

    def _take_reply(self, worker: WorkerLink, reply: Reply) -> None:
        if reply.outcome != Outcome.ROUND:
            super()._take_reply(worker, self._add_places(worker, reply))
            return
        call = worker.outstanding.pop(reply.id, None)
        if call is None:
            return  # it was withdrawn
        call.worker = None
        self._count_processing(worker, call)
        task = self._loop.create_task(self._ask(call, reply.payload))
        self._asking[call.request.id] = task

    def _add_places(self, worker: WorkerLink, reply: Reply) -> Reply:
        """Return a reply; if it says that shards are missing, with what is known of their servers.

        A worker only knows the numbers of the shards.
        """
        call, losses = worker.outstanding.get(reply.id), self._losses.get(reply.id)
        if call is None or not losses or reply.outcome != Outcome.STATUS:
            return reply
        if RefusedError(reply.payload).reason != ShardsMissingError.reason:
            return reply
        return self._status(call, ShardsMissingError.join(losses))

    async def _ask(self, call: PoolCall, packed: bytes) -> None:
        """Ask shards for a call, and queue it again with their replies."""
        request, may_lack = call.request, False
        try:
            self._count_round(request.id)
            messages, may_lack = rounds.unpack_round(packed)
            seconds = _SHARDS_SHARE * (request.deadline - time.monotonic())
            replies = await self._shards.ask(messages, seconds, tag=request.tag, waits=not may_lack)
        except Exception as error:  # noqa: BLE001  # becomes the status of the call
            if request.id in self._asking:  # else the call was withdrawn meanwhile
                self._take_error(call, error, may_lack=may_lack)
        else:
            if request.id in self._asking:
                self._take_replies(call, rounds.pack_exchanges(messages, replies))

    def _take_error(self, call: PoolCall, error: Exception, *, may_lack: bool) -> None:
        """End a call; or begin it anew, if its index was replaced or may lack missing shards."""
        number = call.request.id
        begins, losses = self._begins.get(number, 1), self._losses.get(number, [])
        if isinstance(error, IndexChangedError) and begins < _BEGINS_MAX:
            self._begins[number] = begins + 1
        elif isinstance(error, ShardsMissingError) and may_lack and len(losses) < _LOSSES_MAX:
            losses = self._losses[number] = [*losses, error]
        else:
            if isinstance(error, ShardsMissingError) and not may_lack:
                remedy = subjects.partial_remedy(call.request.op, call.request.payload)
                error = error.with_remedy(remedy)
            self._end(call, error)
            return
        missing = ShardsMissingError.join(losses).shards if losses else ()
        self._continue(call, rounds.pack_missing(missing) if missing else b"")

    def _take_replies(self, call: PoolCall, exchanges: bytes) -> None:
        if len(call.request.exchanges) + len(exchanges) > self._gathered_bytes_max // 2:
            # Such a call would find no room later either.
            rule = "shards send too much for the rows of this call; send fewer rows at a time"
            self._end(call, ReplyTooLargeError(rule))
        elif self._gathered_bytes + len(exchanges) > self._gathered_bytes_max:
            self._end(call, QueueFullError("calls hold too many replies of shards; try again"))
        else:
            self._continue(call, call.request.exchanges + exchanges)

    def _count_round(self, number: int) -> None:
        self._rounds[number] = self._rounds.get(number, 0) + 1
        assert self._rounds[number] <= _ROUNDS_MAX, "a call asks shards again and again"  # noqa: S101

    def _end(self, call: PoolCall, error: Exception) -> None:
        del self._asking[call.request.id]
        if isinstance(error, RefusedError):
            if error.reason == WorkersEndedError.reason:
                # The workers of all replicas would end too.
                op, payload = call.request.op, call.request.payload
                fingerprint = subjects.fingerprint(op, payload)
                self._quarantine.add(fingerprint, subjects.index_of(op, payload))
            self._release(call)
            call.deliver(Reply(call.request.id, Outcome.STATUS, error.status.SerializeToString()))
        else:
            self._fail(call, error)

    def _continue(self, call: PoolCall, exchanges: bytes) -> None:
        """Queue a call again, behind the calls that wait."""
        if self._is_quarantined(call.request.op, call.request.payload):
            # The same request of another call has ended two workers meanwhile.
            self._end(call, PoisonError(POISON))
            return
        del self._asking[call.request.id]
        self._gathered_bytes += len(exchanges) - len(call.request.exchanges)
        call.request = call.request._replace(exchanges=exchanges)
        call.kind, call.has_begun = kind_of(call.request.size), False
        self._queue_of(call)[call.request.id] = call
        self._dispatch()
