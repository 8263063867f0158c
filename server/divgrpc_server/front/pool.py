"""The worker pool: calls wait here for a worker, and are retried if their worker dies.

Theory of operation. A call waits in one of three queues, for small calls, for large calls (their
packets need a memfd) and for suspects. Small calls that wait together are sent in one packet, so
higher load makes packets larger rather than more frequent. Credits (see `packets`) limit the work
that a worker holds. All other calls wait in the queues, so that any free worker can take them and
so that callers can withdraw them.

When a worker dies, any of its unanswered calls may be the cause, so all of them become suspects.
The pool reserves one worker and sends it one suspect at a time. The worker says when it begins with
the suspect, and does nothing else until it has replied, not even for other fronts. So if it dies
meanwhile, the suspect is the cause, unless this front stood still: then its workers may have closed
their sockets. The call that is the cause fails, and its fingerprint is refused for a minute.
The other calls are only delayed; they fail if many workers die before they begin with them. Before
suspects are retried, the other workers check the lengths of the files of the index. If a file was
truncated, suspects for this index fail with an error about the file, so they do not kill a second
worker.

Everything is limited: the calls and bytes that the pool holds (see `admission`), the wait for a
worker if none is running, the time a busy worker may be silent, and the number of fingerprints. All
code runs on one event loop.
"""

import asyncio
import itertools
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, TypeAlias

from divgrpc.errors import UnavailableError
from divgrpc_server.codec import subjects
from divgrpc_server.codec.statuses import OutOfMemoryError, PoisonError, WorkersEndedError, explain
from divgrpc_server.config import Config
from divgrpc_server.front.admission import Admission, Kind, kind_of
from divgrpc_server.front.meter import PoolMeter
from divgrpc_server.front.quarantine import Quarantine
from divgrpc_server.ipc import packets
from divgrpc_server.ipc.errors import FrameError
from divgrpc_server.ipc.job_frames import StagedGeneration
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request
from divgrpc_server.ipc.tags import log_fields
from divgrpc_server.logging.logs import Logger

_TICK_SECONDS: Final = 0.25
# The writer starts at the first write, which may take long on a busy machine.
_WRITER_START_SECONDS: Final = 30.0
_TRIES: Final = 2
# A call fails when so many workers have died that held it, whether or not it was the cause.
_LOSSES_MAX: Final = 5
_CREDITS: Final[dict[Kind, int]] = {"small": packets.SMALL_CREDITS, "large": packets.LARGE_CREDITS}
_WRITER_ENDED: Final = (
    "the writer ended, and may or may not have made this write;"
    " a write with a write_id can be sent again"
)
POISON: Final = "this request ended two workers a moment ago and is not tried again"
# Members of `Op`, because a look-up in an enum takes a noticeable part of the time of admission.
_STREAM: Final = Op.STREAM
# Requests of this operation are sent to every worker. They are not queued, counted or retried.
_PREPARE: Final = Op.PREPARE
# Requests of this operation have messages that a stream has counted (`Pool.take`).
_WRITES: Final = Op.WRITES


# A shard by the name of its index and its number.
_Shard: TypeAlias = tuple[str, str]


class PoolCall:
    """A request in the pool, whether queued or sent to a worker; `size` is in bytes."""

    __slots__ = (
        *("deaths", "deliver", "has_begun", "kind", "losses", "queue_time", "request"),
        *("sent_time", "size", "worker"),
    )

    def __init__(self, request: Request, deliver: Callable[[Reply], None]) -> None:
        self.request = request
        self.deliver = deliver
        self.size = len(request.payload)
        self.kind = kind_of(self.size)
        self.queue_time = self.sent_time = time.monotonic()
        # Workers that have died while they held this call, and those for which it may be to blame.
        self.losses = self.deaths = 0
        # Whether a worker does nothing but this suspect.
        self.has_begun = False
        self.worker: WorkerLink | None = None


class WorkerLink:
    """A front's view of a worker: the calls that the worker holds and the credits left for it."""

    def __init__(self, serial: int, link: packets.Link) -> None:
        self.serial = serial
        self.link = link
        # The number of packets of each kind that may still be sent. It is negative while a lent
        # credit is spent, because the previous batch has not ended.
        self.credits = dict(_CREDITS)
        # `loan` is 1 while a credit is lent, that is, from before the last slice of a batch until
        # the batch ends. Otherwise it is 0.
        self.loan = 0
        self.outstanding: dict[int, PoolCall] = {}
        # Packets that get no reply, and that did not fit the socket's buffer: each once.
        self.unsent_notes: dict[bytes, None] = {}
        self.life_time = time.monotonic()
        self.is_blocked = False
        self.is_reported = False

    @property
    def is_idle(self) -> bool:
        """Whether the worker holds no calls of this front and has returned all of its credits."""
        return not self.outstanding and self.credits == _CREDITS

    def room(self, kind: Kind) -> int:
        """Return how many more packets of a kind the worker can accept."""
        return self.credits[kind] + (self.loan if kind == "large" else 0)


class Pool:
    """The workers of a front, and the calls that wait for them.

    report: called with the serial number of a worker that hangs or has closed its socket.
    on_change: called when the number of workers changes.
    stamp: returns, for the name of an index, a value that changes with every generation.
    is_writer: whether the only worker is the writer. Its requests are not tried twice, because the
        first try may have had an effect.
    writer: the pool of the writer, which is notified of changes of indexes too.
    meter: counts the times of requests; None to count nothing.
    trace: called in the task of a call with the times, in seconds of `time.monotonic`, at which its
        request was queued, sent and answered.
    """

    def __init__(
        self,
        config: Config,
        log: Logger,
        *,
        report: Callable[[int], None],
        on_change: Callable[[], None],
        stamp: Callable[[str], object],
        is_writer: bool = False,
        writer: "Pool | None" = None,
        meter: PoolMeter | None = None,
        trace: Callable[[float, float, float], None] | None = None,
    ) -> None:
        # The error message for calls that have waited as long as they may while no worker is
        # running.
        self.no_worker = "no worker is up"
        self._wait_seconds = max(config.worker_wait, _WRITER_START_SECONDS if is_writer else 0.0)
        self._config = config
        self._log, self._report = log, report
        self._is_writer, self._writer = is_writer, writer
        self._meter, self._trace = meter, trace
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._workers: list[WorkerLink] = []
        # The latest generation of each shard that workers were let open, packed.
        self._openings: dict[_Shard, bytes] = {}
        self._queues: dict[Kind, OrderedDict[int, PoolCall]] = {
            "small": OrderedDict(),
            "large": OrderedDict(),
        }
        self._suspects: OrderedDict[int, PoolCall] = OrderedDict()
        self._reserved: WorkerLink | None = None
        self._quarantine = Quarantine(stamp)
        self._ids = itertools.count(1)
        self._admission = Admission(config)
        self.wait_for_room = self._admission.wait_for_room
        self._empty_since = self._tick_time = time.monotonic()
        self._still_time = -math.inf  # when this front noticed that it had stood still
        self._ticker = self._loop.call_later(_TICK_SECONDS, self._tick)

    @property
    def workers(self) -> int:
        """The number of running workers."""
        return len(self._workers)

    def attach(self, serial: int, link: packets.Link) -> None:
        """Add a worker that is connected by `link`."""
        worker = WorkerLink(serial, link)
        self._workers.append(worker)
        self._loop.add_reader(link.fileno(), self._read, worker)
        self._on_change()
        self._dispatch()
        self._let_open_all(worker, iter([*self._openings.items()]))

    def close(self) -> None:
        """Close the sockets to all workers."""
        self._ticker.cancel()
        for worker in self._workers:
            self._loop.remove_reader(worker.link.fileno())
            worker.link.close()
        self._workers.clear()

    async def answer(self, op: Op, payload: bytes, deadline: float, tag: str) -> Reply:
        """Send a request and return the worker's reply; raises as `submit` does."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        call = self.submit(op, payload, deadline, tag, partial(_settle, future))
        try:
            reply = await future
        finally:
            if future.cancelled():
                self.withdraw(call)
        if self._trace is not None:
            self._trace(call.queue_time, call.sent_time, time.monotonic())
        return reply

    def submit(
        self, op: Op, payload: bytes, deadline: float, tag: str, deliver: Callable[[Reply], None]
    ) -> PoolCall:
        """Queue a request; `deliver` is called with the reply unless the call is withdrawn.

        Raises `PoisonError`, and `QueueFullError` for a unary call. A stream must call
        `wait_for_room` first.
        """
        is_stream, is_counted = op is _STREAM, op is not _WRITES
        if is_counted and not is_stream:
            self._admission.check(len(payload), deadline)
        if self._is_quarantined(op, payload):
            raise PoisonError(POISON)
        call = PoolCall(Request(next(self._ids), deadline, op, tag, payload), deliver)
        if is_counted:
            self._admission.take(call.size, is_stream=is_stream)
        self._queues[call.kind][call.request.id] = call
        self._dispatch()
        return call

    def _is_quarantined(self, op: int, payload: bytes) -> bool:
        """Return whether a request has ended two workers; a fingerprint takes a microsecond."""
        quarantine = self._quarantine
        return not quarantine.is_empty and quarantine.holds(subjects.fingerprint(op, payload))

    def take(self, size: int) -> None:
        """Count a message of a stream, in bytes, before it is submitted with others."""
        self._admission.take(size, is_stream=True)

    def release(self, size: int, *, is_answered: bool) -> None:
        """Stop counting such a message."""
        self._admission.release(size, is_stream=True, is_answered=is_answered)

    def withdraw(self, call: PoolCall) -> None:
        """Remove a call whose caller no longer waits."""
        number, worker = call.request.id, call.worker
        if self._queue_of(call).pop(number, None):
            self._release(call)
        elif worker is not None and number in worker.outstanding:
            del worker.outstanding[number]
            self._release(call)
            withdrawal = Request(number, 0.0, Op.CANCEL, "", b"")
            self._send_note(worker, packets.pack_request(withdrawal))
            self._dispatch()

    def _send_note(self, worker: WorkerLink, packet: bytes) -> None:
        """Send a packet that gets no reply; keep it for later if the socket has no room for it."""
        if not self._send(worker, packet):
            worker.unsent_notes[packet] = None

    def _send_unsent(self, worker: WorkerLink) -> None:
        """Try again to send the notes for which the socket had no room."""
        while worker.unsent_notes and self._send(worker, next(iter(worker.unsent_notes))):
            del worker.unsent_notes[next(iter(worker.unsent_notes))]

    async def prepare(self, generation: bytes) -> bytes:
        """Wait until every running worker has opened a generation, or has died.

        `generation` is a packed `StagedGeneration`. If no worker could open it, returns the status
        of one that says why, else b"".
        """
        name, folder = StagedGeneration.unpack(generation)
        if folder.startswith(f"{name}/"):
            self._openings[name, folder.rpartition("/")[2]] = generation
        replies: list[asyncio.Future[Reply]] = []
        for worker in self._workers:
            future: asyncio.Future[Reply] = self._loop.create_future()
            if self._let_open(worker, generation, partial(_settle, future)):
                replies.append(future)
        outcomes = await asyncio.gather(*replies)
        statuses = [reply.payload for reply in outcomes if reply.outcome != Outcome.LOST]
        return min(statuses, key=len, default=b"")

    def _let_open(
        self, worker: WorkerLink, generation: bytes, deliver: Callable[[Reply], None]
    ) -> bool:
        """Let a worker open a generation; return whether it will reply.

        It will not if its socket takes no packet, because it is full or the worker has died.
        """
        call = PoolCall(Request(next(self._ids), math.inf, _PREPARE, "", generation), deliver)
        is_sent = self._send_packet(worker, [call])
        if is_sent:
            self._hand_over(worker, [call])
        return is_sent

    def _let_open_all(self, worker: WorkerLink, shards: Iterator[tuple[_Shard, bytes]]) -> None:
        """Let a worker open what the others have open, one shard after another."""
        shard, generation = next(shards, (None, b""))

        def go_on(reply: Reply) -> None:
            if worker not in self._workers:
                return
            if reply.payload and shard is not None and self._openings.get(shard) == generation:
                # It was replaced or deleted, or else the next query says why it cannot be opened.
                del self._openings[shard]
            self._let_open_all(worker, shards)

        if shard is not None:
            self._let_open(worker, generation, go_on)

    def refresh(self, index: str) -> None:
        """Notify every worker and the writer that an index was replaced or deleted."""
        self._notify(Op.REFRESH, index)
        if self._writer is not None:
            self._writer.refresh(index)

    def _queue_of(self, call: PoolCall) -> OrderedDict[int, PoolCall]:
        return self._suspects if call.deaths else self._queues[call.kind]

    # Sending calls to workers.

    def _notify(self, op: Op, index: str) -> None:
        packet = packets.pack_request(Request(0, math.inf, op, "", index.encode()))
        for worker in self._workers:
            self._send_note(worker, packet)

    def _dispatch(self) -> None:
        if self._suspects or self._reserved:
            self._try_suspect()
        # When calls of the second kind are sent, a worker that was counted as free for the first
        # kind may prove to be blocked. The next dispatch corrects the count.
        for kind in self._queues:
            self._admission.measure(kind, full=self._deal(kind))

    def _deal(self, kind: Kind) -> bool:
        """Send queued calls of a kind to workers while they have credits.

        Returns whether the kind is full, which means that workers are running and none of them can
        accept another packet of the kind.
        """
        while (worker := self._freest(kind)) and self._queues[kind]:
            self._send_calls(worker, self._next_calls(kind))
        return worker is None and any(worker is not self._reserved for worker in self._workers)

    def _freest(self, kind: Kind) -> WorkerLink | None:
        free = [
            worker
            for worker in self._workers
            if worker.room(kind) > 0 and not worker.is_blocked and worker is not self._reserved
        ]
        if len(free) < 2:
            return free[0] if free else None
        # Prefer a worker that has not lent a credit, because a worker that has lent a credit is
        # still running a batch.
        return max(
            free, key=lambda worker: (worker.room(kind), -worker.loan, -len(worker.outstanding))
        )

    def _next_calls(self, kind: Kind) -> list[PoolCall]:
        """Return the calls of the next packet: one large call, or small calls that fit."""
        queue = self._queues[kind]
        # Take at most an equal share of the small calls, so that other workers can take the rest.
        share = -(-len(queue) // len(self._workers)) if kind == "small" else 1
        calls: list[PoolCall] = []
        size = 0
        for call in itertools.islice(queue.values(), share):
            size += packets.request_bytes(call.request)
            if calls and size > packets.PACKET_BYTES:
                break
            calls.append(call)
        return calls

    def _send_calls(self, worker: WorkerLink, calls: list[PoolCall]) -> None:
        """Send queued calls in one packet, which costs one credit.

        The calls stay queued if the socket's buffer is full.
        """
        try:
            if not self._send_packet(worker, calls):
                return
        except OSError as error:
            for call in calls:
                del self._queue_of(call)[call.request.id]
                self._fail(call, error)
            return
        for call in calls:
            del self._queue_of(call)[call.request.id]
        self._hand_over(worker, calls)
        worker.credits[calls[0].kind] -= 1

    def _send_packet(self, worker: WorkerLink, calls: list[PoolCall]) -> bool:
        """Send calls in a packet; return False if the socket's buffer is full.

        Raises OSError if no memory file can be created for a large call.
        """
        requests = [call.request for call in calls]
        if calls[0].kind == "small":
            return self._send(worker, b"".join(map(packets.pack_request, requests)))
        # All credits are back when the worker has read all large requests.
        all_read = worker.credits["large"] == _CREDITS["large"]
        with worker.link.memory_file(requests[0].body, all_read=all_read) as memfd:
            return self._send(worker, packets.pack_request(requests[0], in_memfd=True), memfd)

    def _hand_over(self, worker: WorkerLink, calls: list[PoolCall]) -> None:
        now = time.monotonic()
        if worker.is_idle:
            worker.life_time = now
        for call in calls:
            worker.outstanding[call.request.id] = call
            call.worker, call.sent_time = worker, now
            if self._meter is not None:
                self._meter.add_sent(now - call.queue_time)

    def _send(self, worker: WorkerLink, packet: bytes, memfd: int = -1) -> bool:
        try:
            worker.link.send(packet, memfd)
        except OSError:
            # The socket's buffer is full, or the socket is closed. `is_blocked` is cleared when the
            # worker sends a packet, or in `_tick`. `_read` handles a closed socket.
            worker.is_blocked = True
            return False
        return True

    # Replies from workers.

    def _read(self, worker: WorkerLink) -> None:
        try:
            packet, memfd = worker.link.receive()
        except BlockingIOError:
            return
        if not packet:
            self._lose(worker)
            return
        try:
            replies = packets.unpack_replies(packet, memfd)
            small, large, loan = packets.unpack_credits(packet)
        except FrameError:
            self._log.exception("fault")
            self._lose(worker)
            return
        worker.life_time = time.monotonic()
        worker.is_blocked = False
        self._send_unsent(worker)
        worker.credits["small"] += small
        worker.credits["large"] += large
        worker.loan += loan
        for reply in replies:
            self._take_reply(worker, reply)
        self._dispatch()

    def _take_reply(self, worker: WorkerLink, reply: Reply) -> None:
        if reply.outcome in (Outcome.PART, Outcome.START):
            if call := worker.outstanding.get(reply.id):
                if reply.outcome == Outcome.PART:
                    call.deliver(reply)
                else:
                    call.has_begun = True
            return
        call = worker.outstanding.pop(reply.id, None)
        if call is None:
            return
        self._release(call, is_answered=True)
        self._count_processing(worker, call)
        if reply.outcome != Outcome.LOST:
            call.deliver(reply)
        else:
            error = OutOfMemoryError("the server has no descriptor left to take an answer with")
            call.deliver(self._status(call, error))

    def _count_processing(self, worker: WorkerLink, call: PoolCall) -> None:
        """Count the time from sending a request to a worker until its last message."""
        if self._meter is not None:
            self._meter.add_answered(worker.life_time - call.sent_time)

    def _fail(self, call: PoolCall, error: Exception) -> None:
        """End a call that is no longer queued or held by a worker."""
        self._release(call)
        call.deliver(self._status(call, error))

    def _release(self, call: PoolCall, *, is_answered: bool = False) -> None:
        op = call.request.op
        if op is not _PREPARE and op is not _WRITES:
            self._admission.release(call.size, is_stream=op is _STREAM, is_answered=is_answered)

    def _status(self, call: PoolCall, error: Exception) -> Reply:
        status = explain(error, call.request.tag, self._log)
        return Reply(call.request.id, Outcome.STATUS, status.SerializeToString())

    # Workers that die or hang.

    def _lose(self, worker: WorkerLink) -> None:
        self._loop.remove_reader(worker.link.fileno())
        worker.link.close()
        self._workers.remove(worker)
        self._empty_since = time.monotonic()
        self._report(worker.serial)
        if self._reserved is worker:
            self._reserved = None
        self._recheck(worker.outstanding.values())
        self._notice_standstill()
        for call in worker.outstanding.values():
            call.worker = None
            call.losses += 1
            # A suspect that had not begun is not the cause.
            has_left = call.sent_time < self._still_time
            call.deaths += not call.deaths or (call.has_begun and not has_left)
            call.has_begun = False
            if call.request.op is _PREPARE:
                call.deliver(Reply(call.request.id, Outcome.LOST, b""))
            elif self._is_writer:
                self._fail(call, UnavailableError(_WRITER_ENDED))
            elif self._is_quarantined(call.request.op, call.request.payload):
                # The same request of another call ended two workers meanwhile.
                self._fail(call, PoisonError(POISON))
            elif call.deaths < _TRIES and call.losses >= _LOSSES_MAX:
                self._fail(call, UnavailableError("workers end before they begin with this call"))
            elif call.deaths < _TRIES:
                call.request = call.request._replace(is_suspect=True)
                self._suspects[call.request.id] = call
            else:
                self._condemn(call)
        self._on_change()
        self._dispatch()
        self._log.warning("worker lost", worker=worker.serial, calls=len(worker.outstanding))

    def _notice_standstill(self) -> None:
        """Note the time if this front has just stood still, so that workers may have left it."""
        now = time.monotonic()
        if now - self._tick_time > packets.SEND_SECONDS / 2:
            self._still_time = now

    def _recheck(self, calls: Iterable[PoolCall]) -> None:
        """Tell the other workers to check the files of the indexes that `calls` use."""
        requests = [call.request for call in calls]
        for index in {subjects.index_of(item.op, item.payload) for item in requests} - {""}:
            self._notify(Op.RECHECK, index)

    def _try_suspect(self) -> None:
        if self._reserved is None:
            free = (worker for worker in self._workers if not worker.is_blocked)
            self._reserved = min(free, key=lambda worker: len(worker.outstanding), default=None)
        if self._reserved is None or not self._reserved.is_idle:
            return
        if self._suspects:
            self._send_calls(self._reserved, [next(iter(self._suspects.values()))])
        else:
            self._reserved = None

    def _condemn(self, call: PoolCall) -> None:
        """Fail a call that has ended two workers, and calls with the same request that wait."""
        op, payload = call.request.op, call.request.payload
        fingerprint = subjects.fingerprint(op, payload)
        self._quarantine.add(fingerprint, subjects.index_of(op, payload))
        self._log.error("query ended two workers", **log_fields(call.request.tag))
        self._fail(call, WorkersEndedError())
        for queue in (self._suspects, *self._queues.values()):
            for other in list(queue.values()):
                request = other.request
                may_be_equal = (request.op, other.size) == (op, call.size)
                if may_be_equal and subjects.fingerprint(op, request.payload) == fingerprint:
                    del queue[request.id]
                    self._fail(other, PoisonError(POISON))

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(_TICK_SECONDS, self._tick)
        self._measure_queues()
        self._notice_standstill()
        now = self._tick_time = time.monotonic()
        for worker in self._workers:
            if worker.is_idle:
                worker.is_blocked = False  # its socket was full of requests that get no reply
                self._send_unsent(worker)
            is_silent = not worker.is_idle and now - worker.life_time > self._config.worker_silence
            if is_silent and not worker.is_reported:
                worker.is_reported = True
                self._log.warning("worker is silent", worker=worker.serial)
                self._report(worker.serial)
        limit = now - self._wait_seconds
        if not self._workers and self._empty_since <= limit:
            self._give_up(limit)
        self._dispatch()

    def _measure_queues(self) -> None:
        if self._meter is not None:
            waiting = [c for q in (self._suspects, *self._queues.values()) for c in q.values()]
            self._meter.set_queue(len(waiting), sum(call.size for call in waiting))

    def _give_up(self, limit: float) -> None:
        """Fail the calls that were queued before `limit`, in seconds of `time.monotonic`."""
        for queue in (self._suspects, *self._queues.values()):
            for call in [call for call in queue.values() if call.queue_time <= limit]:
                del queue[call.request.id]
                self._fail(call, UnavailableError(self.no_worker))


def _settle(future: "asyncio.Future[Reply]", reply: Reply) -> None:
    if not future.done():
        future.set_result(reply)
