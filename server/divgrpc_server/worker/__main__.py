"""The process that answers queries: numba, no gRPC.

Theory of operation. One thread waits for the supervisor and for the fronts. Packets are answered in
order, one of each front at a time, with a large one the small one behind it, and what has come
meanwhile is read in between, so that what was withdrawn is mostly known before it is begun. A query
of many rows becomes a batch and is answered in pieces, one piece per round, while packets go first:
a batch never holds up a small query for longer than a piece. Answers leave when their packet is
done, or when they have waited a moment for one another. Where queries come one by one and fast, a
worker stays awake between them: to be woken takes longer than to look.

What must hold: every request gets exactly one reply unless it was withdrawn; every packet's credit
goes back exactly once, and takes back what was lent on it; a front that has work here hears from us
at least once a second, or it takes us for dead.
"""

import gc
import os
import select
import time
from collections import deque
from typing import Final

from divgrpc_server.codec.statuses import LateError
from divgrpc_server.ipc import control, packets
from divgrpc_server.ipc.build_frames import Whole
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request
from divgrpc_server.logging import logs
from divgrpc_server.worker import batches
from divgrpc_server.worker.batches import PredictJob, QueryJob
from divgrpc_server.worker.index_cache import Shelf
from divgrpc_server.worker.kernel_progress import warm

# Answers are sent with the first that is finished so long after the last were, or with the packet's
# last one.
_GATHER_SECONDS: Final = 0.006
_SEND_SECONDS: Final = 10.0
_ALIVE_SECONDS: Final = 1.0
# Rounds of reading before what was read is served: more than a front has credits for, and notes.
_READS_MAX: Final = 16
# A front's batches here, above which its packets wait with it, where another worker can take them.
_BATCHES_MAX: Final = 1

Work = QueryJob | PredictJob


class Front:
    """A front as a worker sees it: what it asked, what it is owed, and the way back."""

    def __init__(self, link: packets.Link) -> None:
        self.link = link
        self.packets: deque[list[Request]] = deque()
        self.pending: dict[int, Request] = {}
        self.jobs: dict[int, Work] = {}
        self.batches = 0
        self.owed_small = 0
        self.owed_large = 0
        self.lent = 0
        self.gone = False
        self._items: list[bytes] = []
        self._size = 0
        self._sent = time.monotonic()

    def read(self) -> list[Request]:
        """Take in a packet; returns the requests that are not queries."""
        packet, memfd = self.link.receive()
        if not packet:
            self.gone = True
            return []
        requests = list(packets.unpack_requests(packet, memfd))
        if requests[0].op not in (Op.QUERY, Op.STREAM, Op.PREDICT, Op.LOST):
            return requests  # notes travel by themselves
        self.packets.append(requests)
        self.pending.update((request.id, request) for request in requests)
        return []

    def withdraw(self, number: int) -> None:
        """Forget a request that nobody waits for."""
        self.pending.pop(number, None)
        job = self.jobs.get(number)
        if job is not None:
            job.withdrawn = True

    def reply(self, reply: Reply) -> None:
        """Queue a reply; it leaves with the next `flush`, or alone if it is large."""
        if len(reply.payload) > packets.REPLY_MAX:
            self.flush()
            with packets.memory_file(reply.payload) as memfd:
                self._send(
                    packets.pack_credits(0, 0) + packets.pack_reply(reply, in_memfd=True), memfd
                )
            return
        item = packets.pack_reply(reply)
        if self._size + len(item) > packets.PACKET_BYTES - packets.CREDITS_BYTES:
            self.flush()
        self._items.append(item)
        self._size += len(item)
        if time.monotonic() - self._sent > _GATHER_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Send what is queued and give back what credit may be given."""
        small = self.owed_small if self.batches <= _BATCHES_MAX else 0
        large, self.owed_large = self.owed_large, 0
        lent, self.lent = self.lent, 0
        self.owed_small -= small
        if self._items or small or large or lent:
            items, self._items, self._size = self._items, [], 0
            self._send(packets.pack_credits(small, large, lent) + b"".join(items), -1)

    def show_life(self) -> None:
        """Let the front know that we are at work on what it asked."""
        if time.monotonic() - self._sent > _ALIVE_SECONDS:
            self._send(packets.pack_credits(0, 0), -1)

    def begin_packet(self) -> None:
        """Start the clock of the answers of one packet."""
        self._sent = time.monotonic()

    def _send(self, packet: bytes, memfd: int) -> None:
        self._sent = time.monotonic()
        try:
            self.link.send_waiting(packet, memfd, _SEND_SECONDS)
        except OSError:
            self.gone = True


class Worker:
    """Serves fronts until the supervisor hangs up."""

    def __init__(self, me: control.Self, log: logs.Logger) -> None:
        self._control = me.channel
        self._log = log
        self._fronts: dict[int, Front] = {}
        self._batches: deque[tuple[Front, Work, bool]] = deque()
        # What waits for an index to be opened, by its name: queries, and builds before they serve.
        self._parked: dict[str, list[tuple[Front, Work, bool]]] = {}
        self._preparing: dict[str, tuple[Front, Request]] = {}
        self._awake_seconds = me.config.worker_awake
        # Whether the last query came alone, and as soon as it is worth to stay awake for.
        self._alone = self._soon = False
        self._opened = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._shelf = Shelf(me.root, lambda: os.eventfd_write(self._opened, 1))
        self._poller = select.poll()
        self._poller.register(self._control, select.POLLIN)
        self._poller.register(self._opened, select.POLLIN)

    def run(self) -> None:
        """Answer until the control channel ends."""
        while self._take_in():
            for front in list(self._fronts.values()):
                # A small one behind a large one goes before the pieces that this may come to.
                while front.packets and self._serve_packet(front, front.packets.popleft()):
                    pass
            if self._batches:
                self._serve_piece(*self._batches.popleft())
        for front in self._fronts.values():
            front.link.close()

    def _take_in(self) -> bool:
        """Wait for something to do and read it; False at the end of the control channel."""
        for front in [front for front in self._fronts.values() if front.gone]:
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
            if front.jobs or self._preparing:
                front.show_life()
        return True

    def _wait(self) -> list[tuple[int, int]]:
        """Wait for something to read, awake at first where the next query may come at once."""
        patience = self._patience()
        if patience == 0:
            return self._poller.poll(0)
        asleep_from = time.monotonic() + self._awake_seconds
        while self._soon and self._alone and time.monotonic() < asleep_from:
            if ready := self._poller.poll(0):
                return ready
            os.sched_yield()
        ready = self._poller.poll(patience)
        self._soon = time.monotonic() < asleep_from
        return ready

    def _patience(self) -> float | None:
        """How long to wait, in milliseconds."""
        if self._batches or any(front.packets for front in self._fronts.values()):
            return 0
        return _ALIVE_SECONDS * 1000 if self._parked or self._preparing else None

    def _obey(self) -> bool:
        received = self._control.receive()
        if received is None:
            return False
        message, descriptor = received
        if message.kind == "front" and descriptor >= 0:
            front = Front(packets.Link(packets.adopt(descriptor)))
            self._fronts[front.link.fileno()] = front
            self._poller.register(front.link.fileno(), select.POLLIN)
        return True

    def _detach(self, front: Front) -> None:
        del self._fronts[front.link.fileno()]
        self._poller.unregister(front.link.fileno())
        front.link.close()
        self._shelf.forget_prepared()
        for job in front.jobs.values():
            job.withdrawn = True

    def _read(self, front: Front) -> None:
        for note in front.read():
            if note.op == Op.CANCEL:
                front.withdraw(note.id)
            elif note.op == Op.PREPARE:
                self._prepare(front, note)
            elif note.op == Op.REFRESH:
                self._shelf.refresh(note.payload.decode())
            elif note.op == Op.RECHECK:
                self._shelf.recheck(note.payload.decode())
        if front.gone:
            self._detach(front)

    # Queries.

    def _serve_packet(self, front: Front, packet: list[Request]) -> bool:
        """Answer or begin what a packet asks; tells whether it is a large one."""
        front.begin_packet()
        self._alone = len(packet) == 1
        first = packet[0]
        large = first.op == Op.LOST or len(first.payload) > packets.SMALL_MAX
        finished = True
        for request in packet:
            if front.pending.pop(request.id, None) is None:
                continue  # withdrawn
            parsed = batches.parse(request, self._log)
            if isinstance(parsed, Reply):
                front.reply(parsed)
            else:
                finished = self._begin(front, parsed, large)
        if not large:
            front.owed_small += 1
        elif finished:
            front.owed_large += 1
        front.flush()
        return large

    def _begin(self, front: Front, job: Work, large: bool) -> bool:
        """Answer a job, or put it where it waits; False where the answer is still to come."""
        try:
            self._check_time(job)
            index = self._shelf.find(job.name)
            reply = None if index is None else job.start(index)
            if reply is not None:
                front.reply(reply)
                return True
        except Exception as error:  # noqa: BLE001  # the edge: whatever it is, one caller hears of it
            front.reply(job.pack_error(error, self._log))
            return True
        front.jobs[job.id] = job
        if index is None:
            self._parked.setdefault(job.name, []).append((front, job, large))
        else:
            front.batches += 1
            self._batches.append((front, job, large))
        return False

    def _serve_piece(self, front: Front, job: Work, large: bool) -> None:
        lent = 0
        try:
            if not job.withdrawn:
                self._check_time(job)
                if large and job.ends_soon:
                    # The next batch comes while this one ends: to sleep would cost it a fifth.
                    lent = front.lent = 1
                    front.flush()
                reply = job.go_on()
                if reply is None:
                    self._batches.append((front, job, large))
                    return
                front.reply(reply)
        except Exception as error:  # noqa: BLE001  # the edge: whatever it is, one caller hears of it
            front.reply(job.pack_error(error, self._log))
        front.batches -= 1
        front.lent -= lent
        self._end_job(front, job, large)

    def _end_job(self, front: Front, job: Work, large: bool) -> None:
        del front.jobs[job.id]
        front.owed_large += large
        if not front.gone:
            front.flush()

    def _check_time(self, job: Work) -> None:
        if job.deadline < time.monotonic():
            raise LateError("the deadline had passed before the query was begun")

    # Indexes that come and go.

    def _prepare(self, front: Front, request: Request) -> None:
        whole = Whole.unpack(request.payload)
        self._preparing[whole.folder] = (front, request)
        self._shelf.prepare(whole.index, whole.folder)

    def _take_opened(self) -> None:
        """Go on with what waited for indexes to be opened."""
        for name, folder in self._shelf.collect():
            if folder:
                front, request = self._preparing.pop(folder)
                front.reply(Reply(request.id, Outcome.ANSWER, b""))
                front.flush()
                if front.gone:
                    self._shelf.forget_prepared()
            else:
                for waiting in self._parked.pop(name, []):
                    self._unpark(*waiting)

    def _unpark(self, front: Front, job: Work, large: bool) -> None:
        if front.gone:
            return
        if job.withdrawn:
            self._end_job(front, job, large)
            return
        del front.jobs[job.id]
        finished = self._begin(front, job, large)
        front.owed_large += large and finished
        front.flush()


def main() -> None:
    """Run a worker; started by the supervisor alone."""
    me = control.enter()
    log = logs.configure(me.config, "worker", me.serial)
    with logs.edge(log):
        warm(me.channel, log)
        # What is here now stays, and the collector need not look at it again.
        gc.collect()
        gc.freeze()
        me.channel.send(control.Message("ready"))
        Worker(me, log).run()
    # Nothing here needs an orderly end, and taking a compiler apart takes a while.
    os._exit(0)


if __name__ == "__main__":
    main()
