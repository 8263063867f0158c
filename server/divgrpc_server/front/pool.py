"""Queries wait here for a worker; here a worker's death is made good.

Theory of operation. A call waits in one of three lines: small, large (its packet needs a memfd), or
suspects. Small calls that wait together travel together, so load makes packets larger, not more.
Credits (see `packets`) bound what a worker has before it; the rest waits here, where it can still
go to whichever worker is free, or be withdrawn.

A worker that dies leaves calls unanswered, and one of them may be the cause. All become suspects:
one worker is reserved, and each suspect is tried there with nothing beside it, so that a second
death names the guilty. That call fails and its fingerprint is remembered for a minute, in which it
is refused untried. The innocent only lose the time. Before that the others compare the lengths of
the index's files: where one was cut short, the answer is that and not another death.

Everything is bounded: calls and bytes held (see `admission`), the wait for a worker where none is
up, the silence of a worker that has work, and the memory of fingerprints. All of it runs on one
event loop.
"""

import asyncio
import itertools
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from divgrpc.errors import UnavailableError
from divgrpc_server.codec.statuses import OutOfMemoryError, PoisonError, explain
from divgrpc_server.config import Config
from divgrpc_server.front.admission import TO_ALL, Admission, Kind, kind_of
from divgrpc_server.front.quarantine import Quarantine, index_of
from divgrpc_server.front.worker_link import Call, Worker
from divgrpc_server.ipc import packets
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request
from divgrpc_server.logging.logs import Logger

_TICK_SECONDS: Final = 0.25
_TRIES: Final = 2


class Pool:
    """The workers of a front and the calls that wait for them.

    `report` is told the serial of a worker that hangs or hung up; `changed` is called when the
    number of workers changes; `stamp` gives of an index what changes with every generation.
    """

    def __init__(
        self,
        config: Config,
        log: Logger,
        *,
        report: Callable[[int], None],
        changed: Callable[[], None],
        stamp: Callable[[str], object],
    ) -> None:
        # The error of calls that waited for a worker in vain.
        self.no_worker = "no worker is up"
        self._config = config
        self._log = log
        self._report = report
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._workers: list[Worker] = []
        self._small: OrderedDict[int, Call] = OrderedDict()
        self._large: OrderedDict[int, Call] = OrderedDict()
        self._suspects: OrderedDict[int, Call] = OrderedDict()
        self._reserved: Worker | None = None
        self._quarantine = Quarantine(stamp)
        self._ids = itertools.count(1)
        self._admission = Admission(config)
        self._empty_since = time.monotonic()
        self._ticker = self._loop.call_later(_TICK_SECONDS, self._tick)

    @property
    def workers(self) -> int:
        """How many workers are up."""
        return len(self._workers)

    def attach(self, serial: int, link: packets.Link) -> None:
        """Take a worker into service."""
        worker = Worker(serial, link)
        self._workers.append(worker)
        self._loop.add_reader(link.fileno(), self._read, worker)
        self._changed()
        self._dispatch()

    def close(self) -> None:
        """Hang up on every worker."""
        self._ticker.cancel()
        for worker in self._workers:
            self._loop.remove_reader(worker.link.fileno())
            worker.link.close()
        self._workers.clear()

    async def answer(self, op: Op, payload: bytes, deadline: float, tag: str) -> Reply:
        """Return a worker's reply; raises as `submit` does."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        call = self.submit(op, payload, deadline, tag, partial(_settle, future))
        try:
            return await future
        finally:
            if future.cancelled():
                self.withdraw(call)

    def submit(
        self, op: Op, payload: bytes, deadline: float, tag: str, deliver: Callable[[Reply], None]
    ) -> Call:
        """Queue a request; `deliver` gets its reply unless the call is withdrawn.

        Raises `QueueFullError` and `PoisonError`.
        """
        self._admission.check(payload, deadline)
        if self._quarantine.holds(op, payload):
            raise PoisonError("this request ended two workers a moment ago and is not tried again")
        call = Call(Request(next(self._ids), deadline, op, tag, payload), deliver)
        self._admission.take(call.request)
        self._line(call)[call.request.id] = call
        self._dispatch()
        return call

    def _line(self, call: Call) -> OrderedDict[int, Call]:
        if call.deaths:
            return self._suspects
        return self._small if kind_of(call.request.payload) == "small" else self._large

    def withdraw(self, call: Call) -> None:
        """Forget a call that nobody waits for any more."""
        number = call.request.id
        for line in (self._small, self._large, self._suspects):
            if line.pop(number, None):
                self._admission.release(call.request)
                return
        worker = call.worker
        if worker is not None and number in worker.outstanding:
            del worker.outstanding[number]
            self._admission.release(call.request)
            cancel = Request(number, 0.0, Op.CANCEL, "", b"")
            self._send(worker, packets.pack_request(cancel))
            self._dispatch()

    async def ask_all(self, op: Op, payload: bytes, deadline: float, tag: str) -> Sequence[Reply]:
        """Ask every worker that is up, and return what those said that did not end meanwhile."""
        replies: list[asyncio.Future[Reply]] = []
        for worker in list(self._workers):
            future: asyncio.Future[Reply] = self._loop.create_future()
            request = Request(next(self._ids), deadline, op, tag, payload)
            if self._send_whole(worker, request):
                self._hand_over(worker, [Call(request, partial(_settle, future))])
                replies.append(future)
        results = await asyncio.gather(*replies)
        return [reply for reply in results if reply.outcome != Outcome.LOST]

    def refresh(self, index: str) -> None:
        """Tell every worker that an index has changed or is gone."""
        self._note(Op.REFRESH, index.encode())

    # Sending.

    def _note(self, op: Op, what: bytes) -> None:
        packet = packets.pack_request(Request(0, math.inf, op, "", what))
        for worker in self._workers:
            self._send(worker, packet)

    def _dispatch(self) -> None:
        if self._suspects or self._reserved:
            self._try_suspect()
        # A worker that a later line finds blocked passes for free in those before, until next time.
        self._admission.measure("small", full=self._deal("small", self._small))
        self._admission.measure("large", full=self._deal("large", self._large))

    def _deal(self, kind: Kind, line: OrderedDict[int, Call]) -> bool:
        """Send what waits while a worker has room; tells whether workers are up and none has."""
        while (worker := self._freest(kind)) and line:
            if kind == "small":
                self._send_small(worker)
            else:
                self._send_alone(worker, line.popitem(last=False)[1])
        return worker is None and any(other is not self._reserved for other in self._workers)

    def _freest(self, kind: Kind) -> Worker | None:
        free = [
            worker
            for worker in self._workers
            if worker.room(kind) > 0 and not worker.blocked and worker is not self._reserved
        ]
        if len(free) < 2:
            return free[0] if free else None
        # A credit that was lent is worth less: a batch is still under way there.
        return max(
            free, key=lambda worker: (worker.room(kind), -worker.lent, -len(worker.outstanding))
        )

    def _send_small(self, worker: Worker) -> None:
        # At most an equal share of the waiting calls, so that other workers can start on the rest.
        share = -(-len(self._small) // len(self._workers))
        items: list[bytes] = []
        calls: list[Call] = []
        size = 0
        for call in itertools.islice(self._small.values(), share):
            size += packets.request_bytes(call.request)
            if size > packets.PACKET_BYTES:
                break
            items.append(packets.pack_request(call.request))
            calls.append(call)
        worker.small -= 1
        self._hand_over(worker, calls)
        for call in calls:
            del self._small[call.request.id]
        if not self._send(worker, b"".join(items)):
            worker.small += 1
            self._take_back(worker, calls)

    def _send_alone(self, worker: Worker, call: Call) -> None:
        request = call.request
        self._hand_over(worker, [call])
        small = int(len(request.payload) <= packets.SMALL_MAX)
        spent = (small, 1 - small)
        self._earn(worker, -spent[0], -spent[1])
        try:
            sent = self._send_whole(worker, request)
        except OSError as error:
            self._earn(worker, *spent)
            del worker.outstanding[request.id]
            self._admission.release(call.request)
            call.deliver(_status(request, error, self._log))
            return
        if not sent:
            self._earn(worker, *spent)
            self._take_back(worker, [call])

    def _earn(self, worker: Worker, small: int, large: int) -> None:
        worker.small += small
        worker.large += large

    def _send_whole(self, worker: Worker, request: Request) -> bool:
        """Send a request in a packet of its own; raises OSError where it finds no memory file."""
        if len(request.payload) <= packets.SMALL_MAX:
            return self._send(worker, packets.pack_request(request))
        with packets.memory_file(request.payload) as memfd:
            return self._send(worker, packets.pack_request(request, in_memfd=True), memfd)

    def _hand_over(self, worker: Worker, calls: list[Call]) -> None:
        if worker.idle:
            worker.heard = time.monotonic()
        for call in calls:
            worker.outstanding[call.request.id] = call
            call.worker = worker

    def _take_back(self, worker: Worker, calls: list[Call]) -> None:
        """Put calls that could not be sent at the head of their line."""
        for call in reversed(calls):
            number = call.request.id
            del worker.outstanding[number]
            call.worker = None
            line = self._line(call)
            line[number] = call
            line.move_to_end(number, last=False)

    def _send(self, worker: Worker, packet: bytes, memfd: int = -1) -> bool:
        try:
            worker.link.send(packet, memfd)
        except OSError:
            # Full, until it is heard again, or `_tick` ends it; or closed, which `_read` sees next.
            worker.blocked = True
            return False
        return True

    # Hearing.

    def _read(self, worker: Worker) -> None:
        try:
            packet, memfd = worker.link.receive()
        except BlockingIOError:
            return
        if not packet:
            self._lose(worker)
            return
        worker.heard = time.monotonic()
        worker.blocked = False
        small, large, lent = packets.unpack_credits(packet)
        self._earn(worker, small, large)
        worker.lent += lent
        for reply in packets.unpack_replies(packet, memfd):
            call = worker.outstanding.pop(reply.id, None)
            if call is not None:
                self._admission.release(call.request, answered=True)
                call.deliver(reply if reply.outcome != Outcome.LOST else self._lost(call))
        self._dispatch()

    def _lost(self, call: Call) -> Reply:
        error = OutOfMemoryError("the server has no descriptor left to take the answer with")
        return _status(call.request, error, self._log)

    # Death, silence, and what follows.

    def _lose(self, worker: Worker) -> None:
        self._loop.remove_reader(worker.link.fileno())
        worker.link.close()
        self._workers.remove(worker)
        self._empty_since = time.monotonic()
        self._report(worker.serial)
        if self._reserved is worker:
            self._reserved = None
        self._recheck(worker.outstanding.values())
        for call in worker.outstanding.values():
            call.worker = None
            call.deaths += 1
            if call.request.op in TO_ALL:
                call.deliver(Reply(call.request.id, Outcome.LOST, b""))
            elif call.deaths < _TRIES:
                self._suspects[call.request.id] = call
            else:
                self._condemn(call)
        self._changed()
        self._dispatch()
        self._log.warning("worker lost", worker=worker.serial, calls=len(worker.outstanding))

    def _recheck(self, calls: Iterable[Call]) -> None:
        """Have the others look at the files of indexes that a worker may have died of."""
        for index in {index_of(call.request.op, call.request.payload) for call in calls} - {""}:
            self._note(Op.RECHECK, index.encode())

    def _try_suspect(self) -> None:
        reserved = self._reserved
        if reserved is None:
            free = (worker for worker in self._workers if not worker.blocked)
            reserved = min(free, key=lambda worker: len(worker.outstanding), default=None)
            self._reserved = reserved
        if reserved is None or not reserved.idle:
            return
        if self._suspects:
            _, call = self._suspects.popitem(last=False)
            self._send_alone(reserved, call)
        else:
            self._reserved = None

    def _condemn(self, call: Call) -> None:
        self._quarantine.add(call.request.op, call.request.payload)
        self._log.error("query ended two workers", request_id=call.request.tag)
        self._admission.release(call.request)
        error = UnavailableError("two workers ended while they answered this request")
        call.deliver(_status(call.request, error, self._log))

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(_TICK_SECONDS, self._tick)
        now = time.monotonic()
        for worker in self._workers:
            if worker.idle:
                worker.blocked = False  # notes alone had filled its socket, and get no answer
            silent = not worker.idle and now - worker.heard > self._config.worker_silence
            if silent and not worker.reported:
                worker.reported = True
                self._log.warning("worker is silent", worker=worker.serial)
                self._report(worker.serial)
        long_ago = now - self._config.worker_wait
        if not self._workers and self._empty_since <= long_ago:
            self._give_up(long_ago)
        self._dispatch()

    def _give_up(self, since: float) -> None:
        """End the calls that have waited since then while no worker is up."""
        for line in (self._suspects, self._large, self._small):
            for call in [call for call in line.values() if call.since <= since]:
                del line[call.request.id]
                self._admission.release(call.request)
                error = UnavailableError(self.no_worker)
                call.deliver(_status(call.request, error, self._log))


def _settle(future: "asyncio.Future[Reply]", reply: Reply) -> None:
    if not future.done():
        future.set_result(reply)


def _status(request: Request, error: Exception, log: Logger) -> Reply:
    status = explain(error, request.tag, log)
    return Reply(request.id, Outcome.STATUS, status.SerializeToString())
