"""The worker process, which answers queries with compiled kernels and does not use gRPC.

Theory of operation. A single thread waits for messages from the supervisor and the fronts. In each
round it takes one packet from each front, in order of arrival. If this packet is large, it also
takes the next packet of the front. Before each round it reads all new packets, so that most
withdrawn requests are never started. A query of many rows becomes a batch. A batch is answered in
slices, one slice per round, so that it delays a small query by at most one slice. Answers are sent
at the end of their packet, or after a few milliseconds. While single queries arrive in quick
succession, the worker polls between them, because waking up takes longer than polling.

Invariants. Each request gets exactly one reply unless it is withdrawn. The credit of each packet is
returned exactly once. If a credit was lent for the packet, the lent credit is taken back at the
same time. A front with requests in this worker receives a packet at least once per second, because
otherwise it would consider the worker dead.
"""

import contextlib
import gc
import math
import os
import select
import socket
import time
from collections import deque
from typing import Final, NamedTuple, NoReturn, TypeAlias, cast

from divgrpc.engine import Engine
from divgrpc.sharding.core import ShardCore
from divgrpc.sharding.gathering_engine import GatheringEngine
from divgrpc.sharding.staged_build import StagedBuild
from divgrpc_server.codec.statuses import LateError, ReplicaBehindError, explain
from divgrpc_server.ipc import control, packets
from divgrpc_server.ipc.errors import FrameError
from divgrpc_server.ipc.job_frames import StagedGeneration
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request
from divgrpc_server.logging import logs
from divgrpc_server.monitoring.damage import DamageMeter
from divgrpc_server.worker import batches
from divgrpc_server.worker.batches import PredictionBatch, QueryBatch
from divgrpc_server.worker.diversifications import (
    DIVERSIFICATIONS,
    Picking,
    parse_diversification,
)
from divgrpc_server.worker.front_link import FrontLink, is_large_packet
from divgrpc_server.worker.index_cache import IndexCache
from divgrpc_server.worker.kernel_progress import warm
from divgrpc_server.worker.meter import QueryMeter
from divgrpc_server.worker.readings import READS, Reading, parse_reading
from divgrpc_server.worker.recall import RecallSampler
from divgrpc_server.worker.rounds import start_or_ask
from divgrpc_server.worker.shards import Ask, ShardCache, copies_of, parse_ask

_ALIVE_SECONDS: Final = 1.0
# The worker reads packets at most this many times before it answers. Fewer reads are enough to
# receive all packets that the credits of a front allow.
_READS_MAX: Final = 16
# During a packet, new packets are read at most this many seconds apart, so that the queries behind
# the current one can be withdrawn.
_READ_SECONDS: Final = 0.008
# A read-only server looks this often whether the other server has merged the write that a query
# must show. It says that it has not so many seconds before the deadline of the caller, and after so
# many seconds if there is no deadline. A shard server looks as often, and says as early that a
# shard is not open yet.
_MERGE_SECONDS: Final = 0.05
_ANSWER_SECONDS: Final = 0.1
_MERGE_WAIT_SECONDS_MAX: Final = 30.0
# The work of one request.
Work: TypeAlias = QueryBatch | PredictionBatch | Reading | Picking | Ask


class Task(NamedTuple):
    """A batch, the front that sent it, and whether its packet was large."""

    front: FrontLink
    batch: Work
    is_large: bool


class Worker:
    """Serves fronts until the supervisor closes the control channel."""

    def __init__(self, process: control.Process, log: logs.Logger) -> None:
        self._control = process.channel
        self._log = log
        self._fronts: dict[int, FrontLink] = {}
        self._tasks: deque[Task] = deque()
        # Tasks that wait until their index is open, by the name of the index.
        self._parked: dict[str, list[Task]] = {}
        # Requests of builds that wait until a generation is open, by the folder of the generation.
        self._preparing: dict[str, list[tuple[FrontLink, Request]]] = {}
        # Notes of fronts that wait until a suspect is answered, None while there is no suspect.
        self._notes_kept: list[tuple[FrontLink, Request]] | None = None
        self._awake_seconds = process.config.worker_awake
        self._meter = QueryMeter(process.page) if process.page is not None else None
        self._damage = DamageMeter(process.page)
        self._sampler: RecallSampler | None = None
        if process.page is not None and process.config.recall_sample:
            self._sampler = RecallSampler(process.page, process.config.recall_sample, log)
        # `_is_single` is whether the last packet had a single query. `_is_quick` is whether the
        # last packet arrived within the time that the worker stays awake.
        self._is_single = self._is_quick = False
        self._is_read_only = process.config.read_only
        # Queries that wait until the other server has merged a write, and when to look again.
        self._behind: list[Task] = []
        self._look_time = 0.0
        self._opened = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._indexes = self._open_indexes(process)
        self._poller = select.poll()
        self._poller.register(self._control, select.POLLIN)
        self._poller.register(self._opened, select.POLLIN)

    def _open_indexes(self, process: control.Process) -> IndexCache | ShardCache:
        """Return the indexes, or the shards of a shard server."""

        def wake() -> None:
            os.eventfd_write(self._opened, 1)

        def report(name: str, reason: str) -> None:
            self._log.error("an index is damaged", index=name, reason=reason)

        if process.config.role == "shard":
            return ShardCache(process.root, wake, report, copies_of(process, self._log))
        return IndexCache(
            process.root, wake, report,
            is_read_only=self._is_read_only, has_shards=process.config.shards > 1,
        )  # fmt: skip

    def prepare(self) -> None:
        """Open all indexes, if this server is read-only: it is not ready before."""
        if self._is_read_only:
            self._indexes.open_all()

    def run(self) -> None:
        """Answer queries until the control channel closes."""
        while self._take_in():
            self._look_for_merges()
            self._end_waits()
            for front in list(self._fronts.values()):
                # After a large packet, also serve the next packet. If the next packet is small, it
                # is answered before the slices of the large packet.
                while front.packets and not self._must_wait(front.packets[0]):
                    if not self._serve_packet(front, front.packets.popleft()):
                        break
            if self._tasks:
                self._serve_next()
        for front in self._fronts.values():
            front.link.close()

    def _take_in(self) -> bool:
        """Wait for messages and read them; return False if the control channel is closed."""
        for front in [front for front in self._fronts.values() if front.is_gone]:
            self._detach(front)
        ready = self._wait()
        for _ in range(_READS_MAX):
            for descriptor, _ in ready:
                if descriptor == self._control.fileno():
                    if not self._obey():
                        return False
                elif descriptor == self._opened:
                    os.eventfd_read(self._opened)
                    self._take_opened()
                else:
                    self._read(self._fronts[descriptor])
            ready = self._poller.poll(0)
            if not ready:
                break
        for front in self._fronts.values():
            if front.batches or self._has_slow_work():
                front.show_life()
        return True

    def _wait(self) -> list[tuple[int, int]]:
        """Return the descriptors that are ready to read.

        If the next query may arrive soon, poll for a while before going to sleep.
        """
        waiting = (front.packets[0] for front in self._fronts.values() if front.packets)
        if self._tasks or not all(map(self._must_wait, waiting)):
            return self._poller.poll(0)
        # While requests wait for other threads, fronts wait for signs of life.
        while self._sampler and self._sampler.has_work and not self._has_slow_work():
            if ready := self._poller.poll(0):
                return ready
            self._sampler.step()
        sleep_time = time.monotonic() + self._awake_seconds
        while self._is_quick and self._is_single and time.monotonic() < sleep_time:
            if ready := self._poller.poll(0):
                return ready
            os.sched_yield()
        seconds = _MERGE_SECONDS if self._behind or self._parked else _ALIVE_SECONDS
        must_wake = self._behind or self._has_slow_work()
        ready = self._poller.poll(seconds * 1000 if must_wake else None)
        self._is_quick = time.monotonic() < sleep_time
        return ready

    def _has_slow_work(self) -> bool:
        """Return whether other threads do work for requests."""
        return bool(self._parked or self._preparing)

    def _obey(self) -> bool:
        delivery = self._control.receive()
        if delivery is None:
            return False
        message, descriptor = delivery
        if descriptor >= 0:
            self._connect(message, packets.adopt(descriptor))
        return True

    def _take_sockets(self) -> None:
        """Take the sockets that have arrived, so that their fronts get signs of life."""
        waiter = select.poll()
        waiter.register(self._control, select.POLLIN)
        while waiter.poll(0) and self._obey():
            pass

    def _connect(self, message: control.Message, end: socket.socket) -> None:
        """Take a socket that came with a message of the supervisor."""
        if message.kind == "front":
            front = FrontLink(packets.Link(end))
            self._fronts[front.link.fileno()] = front
            self._poller.register(front.link.fileno(), select.POLLIN)

    def _detach(self, front: FrontLink) -> None:
        del self._fronts[front.link.fileno()]
        self._poller.unregister(front.link.fileno())
        front.link.close()
        self._indexes.forget_prepared()
        for batch in front.batches.values():
            batch.is_withdrawn = True

    def _read(self, front: FrontLink) -> None:
        # A suspect that was answered in this round has perhaps read its packets.
        with contextlib.suppress(BlockingIOError):
            self._read_packet(front)
        if front.is_gone:
            self._detach(front)

    def _read_packet(self, front: FrontLink) -> None:
        """Read a packet of a front, and do what it says unless it has queries."""
        try:
            for note in front.read():
                self._take_note(front, note)
        except (FrameError, UnicodeDecodeError):
            self._log.exception("fault")
            front.is_gone = True  # other fronts are served

    def _read_withdrawals(self, front: FrontLink) -> None:
        """Read the packets that a front has sent meanwhile."""
        with contextlib.suppress(BlockingIOError):
            while not front.is_gone:
                self._read_packet(front)

    def _take_note(self, front: FrontLink, note: Request) -> None:
        if note.op == Op.CANCEL:
            front.withdraw(note.id)
        elif self._notes_kept is not None:
            self._notes_kept.append((front, note))
        elif note.op == Op.PREPARE:
            generation = StagedGeneration.unpack(note.payload)
            waiting = self._preparing.setdefault(generation.folder, [])
            waiting.append((front, note))
            if len(waiting) == 1:
                self._indexes.prepare(generation.name, generation.folder)
        elif note.op == Op.REFRESH:
            self._refresh(note.payload.decode())
        elif note.op == Op.RECHECK:
            self._indexes.recheck(note.payload.decode())

    def _refresh(self, name: str) -> None:
        """Close the generations of an index that are not current."""
        self._indexes.refresh(name)
        self._damage.set(self._indexes.damaged)

    def _serve_packet(self, front: FrontLink, packet: list[Request]) -> bool:
        """Answer or start the requests of a packet; return whether the packet is large."""
        front.begin_packet()
        self._is_single = len(packet) == 1
        is_large = is_large_packet(packet)
        is_over = True
        for request in packet:
            if time.monotonic() > front.read_time + _READ_SECONDS:
                self._read_withdrawals(front)
            if front.is_gone:
                break
            if front.pending.pop(request.id, None) is None:
                continue  # withdrawn
            serve = self._serve_alone if request.is_suspect else self._serve_request
            is_over = serve(front, request, is_large=is_large)
        if not is_large:
            front.owed_small += 1
        elif is_over:
            front.owed_large += 1
        front.flush()
        return is_large

    def _serve_request(self, front: FrontLink, request: Request, *, is_large: bool) -> bool:
        """Answer a request, or queue it; return whether it is finished."""
        batch = _parse(request, self._log)
        if isinstance(batch, Reply):
            front.reply(batch)
            return True
        return self._begin(Task(front, batch, is_large))

    def _must_wait(self, packet: list[Request]) -> bool:
        """Return whether a packet is a suspect, and other threads do work for other requests."""
        return packet[0].is_suspect and self._has_slow_work()

    def _serve_alone(self, front: FrontLink, request: Request, *, is_large: bool) -> bool:
        """Answer a suspect, and do nothing else; return as `_serve_request` does.

        So the suspect is the cause if this process ends. Notes of fronts are kept until its end.
        """
        front.reply(Reply(request.id, Outcome.START, b""))
        front.flush()
        self._notes_kept = []
        is_over = self._serve_request(front, request, is_large=is_large)
        while request.id in front.batches and not front.is_gone:
            if self._tasks and self._tasks[-1].batch is front.batches[request.id]:
                task = self._tasks.pop()
                if not self._serve_slice(task):
                    self._tasks.append(task)
            elif self._await_opened(_READ_SECONDS):
                self._take_opened()
            self._end_waits()
            self._take_sockets()
            for other in list(self._fronts.values()):
                other.show_life()
                self._read_withdrawals(other)
        notes, self._notes_kept = self._notes_kept, None
        for other, note in notes:
            self._take_note(other, note)
        return is_over

    def _await_opened(self, seconds: float) -> bool:
        """Wait until a thread has opened an index, but no longer; return whether one has."""
        waiter = select.poll()
        waiter.register(self._opened, select.POLLIN)
        is_ready = bool(waiter.poll(seconds * 1000))
        if is_ready:
            os.eventfd_read(self._opened)
        return is_ready

    def _begin(self, task: Task) -> bool:
        """Answer a batch, or queue it; return whether it is finished."""
        front, batch, is_large = task
        try:
            _check_deadline(batch)
            index = self._indexes.find(batch.name) if batch.name else None
            queue = self._queue_for(batch, index)
            reply = self._start(batch, index) if queue is None else None
            if reply is not None:
                front.reply(reply)
                return True
        except Exception as error:  # noqa: BLE001  # becomes the status of the call
            front.reply(batch.pack_error(error, self._log))
            return True
        front.batches[batch.id] = batch
        if queue is not None:
            if queue is self._behind:
                # It may wait for long, so the front gets its credit back.
                front.owed_large += is_large
                task = task._replace(is_large=False)
            queue.append(task)
        else:
            front.sliced += 1
            self._tasks.append(task)
        return False

    def _queue_for(
        self, batch: Work, index: Engine | ShardCore | StagedBuild | None
    ) -> list[Task] | None:
        """Return the list in which a batch must wait; None if it can be started.

        Raises `ReplicaBehindError` for a batch that may not wait for a merge any longer.
        """
        if index is None:
            # Work without a name needs no index.
            return self._parked.setdefault(batch.name, []) if batch.name else None
        if not self._is_read_only or not isinstance(batch, QueryBatch):
            return None
        assert isinstance(index, Engine)  # noqa: S101  # a query is about an index
        if index.sequence >= batch.min_sequence:
            return None
        # A suspect, which must be alone, does not wait.
        if time.monotonic() >= _wait_end(batch) or self._notes_kept is not None:
            raise ReplicaBehindError(batch.min_sequence, index.sequence)
        return self._behind

    def _look_for_merges(self) -> None:
        """Continue the queries that waited for a merge, if there was one or their time is over."""
        if not self._behind or time.monotonic() < self._look_time:
            return
        self._look_time = time.monotonic() + _MERGE_SECONDS
        tasks, self._behind = self._behind, []
        self._resume(tasks)

    def _end_waits(self) -> None:
        """End the requests that wait for an index and whose callers have left, or soon will.

        Routers are told why their calls have waited for a shard, shortly before the deadline.
        """
        is_of_shards = isinstance(self._indexes, ShardCache)
        end_time = time.monotonic() + (_ANSWER_SECONDS if is_of_shards else 0.0)
        for name, tasks in self._parked.items():
            for task in [task for task in tasks if _is_pointless(task.batch, end_time)]:
                tasks.remove(task)
                if task.front.is_gone:
                    continue
                if not task.batch.is_withdrawn:
                    error = LateError(self._indexes.explain_wait(name))
                    task.front.reply(task.batch.pack_error(error, self._log))
                self._end(task)

    def _start(self, batch: Work, index: Engine | ShardCore | StagedBuild | None) -> Reply | None:
        """Start a batch; return its reply if it has one already."""
        if isinstance(batch, Ask):
            return batch.start(cast("ShardCore | StagedBuild", index))
        is_first = index is not None and not batch.exchanges
        if self._meter is not None and is_first and isinstance(batch, batches.Batch):
            self._meter.add(batch.name, batch.row_count)
        if isinstance(index, GatheringEngine):
            step = start_or_ask(batch, index)
            # Shards take longer than a worker stays awake, and may need this processor.
            self._is_single &= step is None or step.outcome != Outcome.ROUND
            return step
        reply = batch.start(cast(Engine, index))
        if self._sampler is not None and isinstance(index, Engine):
            self._offer_sample(batch, index)
        return reply

    def _offer_sample(self, batch: Work, index: Engine) -> None:
        """Let the recall of a query be measured later, when this worker is idle."""
        plain = batch.plain_rows() if isinstance(batch, QueryBatch) else None
        if plain is not None and self._sampler is not None:
            self._sampler.offer(batch.name, index, *plain)

    def _serve_next(self) -> None:
        """Answer a slice of the batch that has waited longest."""
        # No variable of `run` may keep a batch, which keeps its generation open.
        task = self._tasks.popleft()
        if not self._serve_slice(task):
            self._tasks.append(task)

    def _serve_slice(self, task: Task) -> bool:
        """Answer the next slice of a batch; return whether the batch is finished."""
        front, batch, is_large = task
        loan = 0
        try:
            if not batch.is_withdrawn:
                _check_deadline(batch)
                if is_large and batch.ends_soon:
                    # Lend a credit, so that the next batch arrives while this batch ends. Waiting
                    # for the next batch would cost a fifth of the throughput.
                    loan = front.loan = 1
                    front.flush()
                reply = batch.answer_slice()
                if reply is None or reply.outcome == Outcome.PART:
                    if reply is not None:
                        front.reply(reply)
                        front.flush()
                    return False
                front.reply(reply)
        except Exception as error:  # noqa: BLE001  # becomes the status of the call
            front.reply(batch.pack_error(error, self._log))
        front.sliced -= 1
        front.loan -= loan
        self._end(task)
        return True

    def _end(self, task: Task) -> None:
        front, batch, is_large = task
        del front.batches[batch.id]
        front.owed_large += is_large
        if not front.is_gone:
            front.flush()

    def _take_opened(self) -> None:
        """Continue the requests that waited for an index to open."""
        names = self._indexes.collect()
        self._damage.set(self._indexes.damaged)
        for name, folder in names:
            if folder:
                error = self._indexes.take_error(folder)
                for front, request in self._preparing.pop(folder):
                    front.reply(self._reply_of(request, error))
                    front.flush()
                    if front.is_gone:
                        self._indexes.forget_prepared()
                continue
            self._resume(self._parked.pop(name, []))

    def _reply_of(self, request: Request, error: Exception | None) -> Reply:
        """Return the reply to a request to prepare a generation."""
        if error is None:
            return Reply(request.id, Outcome.ANSWER, b"")
        status = explain(error, request.tag, self._log).SerializeToString()
        return Reply(request.id, Outcome.STATUS, status)

    def _resume(self, tasks: list[Task]) -> None:
        """Begin tasks that have waited."""
        for task in tasks:
            if task.front.is_gone:
                continue
            if task.batch.is_withdrawn or self._begin(task):
                self._end(task)


def _parse(request: Request, log: logs.Logger) -> Work | Reply:
    """Return the work of a request, or a reply with an error if the request is invalid."""
    if request.op in READS:
        return parse_reading(request, log)
    if request.op == Op.ASK:
        return parse_ask(request, log)
    if request.op in DIVERSIFICATIONS:
        return parse_diversification(request, log)
    return batches.parse(request, log)


def _check_deadline(batch: Work) -> None:
    if batch.deadline < time.monotonic():
        raise LateError("the deadline had passed before the query was begun")


def _is_pointless(batch: Work, end_time: float) -> bool:
    """Return whether nobody waits for the answer to a batch, or not until `end_time`."""
    return batch.is_withdrawn or batch.deadline < end_time


def _wait_end(batch: QueryBatch) -> float:
    """Return when a query must be answered that waits for a merge, in seconds of `monotonic`."""
    if batch.deadline == math.inf:
        return batch.arrival_time + _MERGE_WAIT_SECONDS_MAX
    return batch.deadline - _ANSWER_SECONDS


def run_process(role: str, kind: type[Worker]) -> NoReturn:
    """Run a process that the supervisor has started, until the control channel closes.

    role: name of the process in logs. kind: class of the process, `Worker` or derived from it.
    """
    process = control.enter()
    log = logs.configure(process.config, role, process.serial)
    with logs.edge(log):
        warm(process.channel, log)
        # Exclude the objects created so far from garbage collection, because they live as long as
        # the process.
        gc.collect()
        gc.freeze()
        worker = kind(process, log)
        worker.prepare()
        process.channel.send(control.Message("ready"))
        worker.run()
    # Skip a normal exit, because unloading the compiler is slow.
    os._exit(0)


def run_worker() -> NoReturn:
    """Run a worker until the control channel closes."""
    run_process("worker", Worker)
