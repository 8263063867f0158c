"""Known defects of the path of queries; a seed of the simulator must find each one.

A defect named issue-N is the reverse of a fix: the simulator or a user found it in the code.
"""

from typing import Final

from simulation.faults import Focus
from simulation.mutation import Mutant

_POOL: Final = "divgrpc_server.front.pool"
_WORKER: Final = "divgrpc_server.worker.process"
_SUPERVISOR: Final = "divgrpc_server.supervisor.supervisor"

_MUTANTS: Final = (
    Mutant(
        name="issue-16",
        module=_POOL,
        old="""
            call.deaths += not call.deaths or (call.has_begun and not has_left)
        """,
        new="""
            call.deaths += 1
        """,
        reason="a call is blamed for a worker that a call of another front has ended",
    ),
    Mutant(
        name="issue-17",
        module=_POOL,
        old="""
            elif self._is_quarantined(call.request.op, call.request.payload):
                # The same request of another call ended two workers meanwhile.
                self._fail(call, PoisonError(POISON))
        """,
        new="",
        reason="a copy of a request that has ended two workers is tried again",
    ),
    Mutant(
        name="issue-18",
        module=_SUPERVISOR,
        old="""
            if child.ready:
                self._failed_starts[child.role] = 0
        """,
        new="",
        reason="requests that end workers while the server starts end the server",
    ),
    Mutant(
        name="issue-19",
        module="divgrpc_server.worker.index_cache",
        old="""
            if is_awaited and isinstance(opening.outcome, Engine):
        """,
        new="""
            if isinstance(opening.outcome, Engine):
        """,
        reason="a worker keeps a generation whose build was cancelled while it was opened",
    ),
    Mutant(
        name="issue-20",
        module=_POOL,
        old="""
            if not self._send(worker, packet):
                worker.unsent_notes[packet] = None
        """,
        new="""
            self._send(worker, packet)
        """,
        reason="a worker that is not told of a change keeps an old generation open",
        # Few queries follow a build, so that a worker does not look at the index again.
        changes={
            "actions": 2,
            "builds": 4,
            "callers": 1,
            "fatal_calls": 0,
            "faults": [],
            "focus": Focus("front.pool:Pool._send:send", ("full",), 20),
            "kills": 0,
            "poison_share": 0,
            "renewals": 0,
            "stall_share": 0,
            "writes": 0,
        },
    ),
    Mutant(
        name="issue-21",
        module=_POOL,
        old="""
            call.deaths += not call.deaths or (call.has_begun and not has_left)
        """,
        new="""
            call.deaths += not call.deaths or call.has_begun
        """,
        reason="a suspect is blamed for a worker that has left a front which stood still",
    ),
    Mutant(
        name="issue-22",
        module=_WORKER,
        old="""
            while waiter.poll(0) and self._obey():
                pass
        """,
        new="",
        reason="a front that a worker has not taken yet reports the worker as silent",
        # A worker opens an index for longer than a front waits, and fronts are replaced meanwhile.
        changes={"open_seconds": 6.0, "poison_share": 0.2, "kills": 5, "kill_seconds": 0.5},
    ),
    Mutant(
        name="start-not-announced",
        module=_WORKER,
        old="""
            front.reply(Reply(request.id, Outcome.START, b""))
            front.flush()
        """,
        new="",
        reason="a request that ends workers is tried five times, because it is not to blame",
    ),
    Mutant(
        name="opening-not-announced",
        module=_WORKER,
        old="""
            front.reply(Reply(request.id, Outcome.START, b""))
            front.flush()
        """,
        new="""
            entry = self._indexes._entries.get(getattr(_parse(request, self._log), "name", ""))
            if entry is not None and entry.index is not None:
                front.reply(Reply(request.id, Outcome.START, b""))
                front.flush()
        """,
        reason="a request that ends workers while they open its index is not to blame",
    ),
    Mutant(
        name="suspect-not-alone",
        module=_WORKER,
        old="""
            while request.id in front.batches and not front.is_gone:
        """,
        new="""
            while False:
        """,
        reason="a suspect is blamed for what its worker does for other fronts",
    ),
    Mutant(
        name="suspect-does-not-wait",
        module=_WORKER,
        old="""
            return packet[0].is_suspect and self._has_slow_work()
        """,
        new="""
            return False
        """,
        reason="a suspect is blamed for an index that its worker opens for other requests",
    ),
    Mutant(
        name="waiting-copies-tried",
        module=_POOL,
        old="""
            if may_be_equal and subjects.fingerprint(op, request.payload) == fingerprint:
        """,
        new="""
            if False:
        """,
        reason="copies that wait when a request is condemned end more workers",
    ),
    Mutant(
        name="quarantine-forgotten",
        module=_POOL,
        old="""
            self._quarantine.add(fingerprint, subjects.index_of(op, payload))
        """,
        new="",
        reason="a request that has ended two workers is tried again when it comes again",
    ),
    Mutant(
        name="withdrawn-call-counted",
        module=_POOL,
        old="""
            if self._queue_of(call).pop(number, None):
                self._release(call)
        """,
        new="""
            if self._queue_of(call).pop(number, None):
                pass
        """,
        reason="calls that their callers withdraw fill the front for ever",
    ),
    Mutant(
        name="full-buffer-ignored",
        module=_POOL,
        old="""
            if not self._send_packet(worker, calls):
                return
        """,
        new="""
            self._send_packet(worker, calls)
        """,
        reason="calls that did not fit the buffer of a socket are lost",
    ),
    Mutant(
        name="credit-spent-for-nothing",
        module=_WORKER,
        old="""
            if not is_large:
                front.owed_small += 1
            elif is_over:
        """,
        new="""
            if not is_large:
                front.owed_small += packet[0].id % 16 > 0
            elif is_over:
        """,
        reason="a worker does not return some credits",
    ),
    Mutant(
        name="loan-kept",
        module=_WORKER,
        old="""
            front.sliced -= 1
            front.loan -= loan
        """,
        new="""
            front.sliced -= 1
        """,
        reason="a worker does not take back a credit that it has lent",
    ),
    Mutant(
        name="silence-ignored",
        module=_POOL,
        old="""
            if is_silent and not worker.is_reported:
        """,
        new="""
            if False:
        """,
        reason="a worker that hangs keeps its calls",
    ),
    Mutant(
        name="report-ignored",
        module=_SUPERVISOR,
        old="""
            elif message.kind == "lost" and worker is not None:
                worker.kill()
        """,
        new="""
            elif message.kind == "lost" and worker is not None:
                pass
        """,
        reason="a worker that a front reports goes on",
    ),
    Mutant(
        name="no-sign-of-life",
        module=_WORKER,
        old="""
            if front.batches or self._has_slow_work():
                front.show_life()
        """,
        new="""
            pass
        """,
        reason="a worker that opens an index seems to hang",
    ),
    Mutant(
        name="parked-call-kept",
        module=_WORKER,
        old="""
            if task.batch.is_withdrawn or self._begin(task):
                self._end(task)
        """,
        new="""
            if not task.batch.is_withdrawn:
                self._begin(task)
        """,
        reason="a worker keeps calls that have waited for their index",
    ),
    Mutant(
        name="old-generation-served",
        module="divgrpc_server.worker.index_cache",
        old="""
            if (stamp != entry.stamp or is_due) and stamp != entry.opening:
        """,
        new="""
            if (entry.index is None or is_due) and stamp != entry.opening:
        """,
        reason="a worker answers from a generation that was replaced",
    ),
    Mutant(
        name="writes-not-followed",
        module="divgrpc_server.worker.index_cache",
        old="""
            return entry.replica.follow()
        """,
        new="""
            return entry.replica.engine
        """,
        reason="a worker does not show writes that were acknowledged",
    ),
    Mutant(
        name="unanswered-write-retried",
        module=_POOL,
        old="""
            elif self._is_writer:
                self._fail(call, UnavailableError(_WRITER_ENDED))
        """,
        new="""
            elif self._is_writer:
                pass
        """,
        reason="a write has no answer if the writer ends",
    ),
    Mutant(
        name="prepared-generation-kept",
        module="divgrpc_server.front.jobs",
        old="""
            if self._staged is not None:
        """,
        new="""
            if self._staged is not None and self._job.info.name:
        """,
        reason="workers keep a generation whose build was cancelled",
    ),
    Mutant(
        name="builder-death-unnoticed",
        module="divgrpc_server.front.jobs",
        old="""
            raise UnavailableError(job.death)
        """,
        new="""
            return
        """,
        reason="a build whose builder ends seems to succeed",
    ),
    Mutant(
        name="stream-not-woken",
        module="divgrpc_server.front.admission",
        old="""
            if self._waiting:
                self._waiting[0].set()
        """,
        new="""
            pass
        """,
        reason="a stream that waits for room is not woken",
    ),
    Mutant(
        name="late-query-not-withdrawn",
        module="divgrpc_server.front.query_stream",
        old="""
            self._take_back(query)
            status = status_of(error, self._tag)
        """,
        new="""
            status = status_of(error, self._tag)
        """,
        reason="a query of a stream has two answers",
    ),
    Mutant(
        name="answers-swapped",
        module="divgrpc_server.worker.batches",
        old="""
            self._slices.append(self._answer(self._index, self._rows[start:end], start))
        """,
        new="""
            self._slices.insert(0, self._answer(self._index, self._rows[start:end], start))
        """,
        reason="the slices of a batch are answered in another order",
    ),
    Mutant(
        name="front-not-detached",
        module=_WORKER,
        old="""
            for front in [front for front in self._fronts.values() if front.is_gone]:
                self._detach(front)
        """,
        new="",
        reason="a worker keeps a front that has not read an answer for too long",
    ),
)
MUTANTS: Final = {mutant.name: mutant for mutant in _MUTANTS}
