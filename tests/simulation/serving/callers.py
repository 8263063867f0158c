"""Callers of a front: what they ask for, and what must hold for each answer."""

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from google.rpc import code_pb2, status_pb2
from grpc import aio

from divgrpc.errors import DivgrpcError
from divgrpc_protos.v1 import points_pb2, query_pb2, writes_pb2
from divgrpc_server.codec.statuses import QueueFullError, status_of
from divgrpc_server.front.jobs import Build, Jobs, Renewal
from divgrpc_server.front.pool import Pool
from divgrpc_server.front.query_stream import QueryStream
from divgrpc_server.front.refusals import RefusedError
from divgrpc_server.front.writer import Writer
from divgrpc_server.ipc.job_frames import Frame
from divgrpc_server.ipc.packets import Outcome
from simulation.serving.requests import (
    DATASETS,
    Kind,
    Request,
    bad_request,
    build_messages,
    good_request,
    in_stream,
    without_generation,
)
from simulation.serving.writes import draw_write

if TYPE_CHECKING:
    from simulation.serving.world import World

# A call that has no deadline is answered within this time, whatever happens.
_ANSWER_SECONDS: Final = 600.0
_QUARANTINE_SECONDS: Final = 60.0
_INDEX: Final = "points"
_WRITE_TRIES_MAX: Final = 200
# The longest time until the supervisor starts a writer again.
_WRITER_PAUSE_SECONDS: Final = 15.0
# A call fails when so many workers have ended that held it.
_LOSSES_MAX: Final = 5
_GOOD: Final[tuple[Kind, ...]] = ("query",) * 6 + ("batch", "batch", "get", "large")


@dataclass
class Call:
    """A request that a caller has made.

    floor, written: the generation and the write that the caller may rely on.
    pointer: says which generation was current when the call began.
    """

    request: Request
    start: float
    deadline: float
    floor: int
    written: int
    pointer: tuple[int, int]


class Callers:
    """The callers of one front."""

    def __init__(self, world: "World", pool: Pool, jobs: Jobs, writer: Writer, name: str) -> None:
        self._world, self._pool, self._jobs = world, pool, jobs
        self._writer, self._name = writer, name
        # Requests that have ended two workers, and when.
        self._condemned: dict[bytes, float] = {}
        # The numbers of requests that end or hang their worker.
        self._numbers: dict[bytes, int] = {}

    async def work(self) -> None:
        """Do actions until none is left."""
        world = self._world
        while world.actions:
            action = world.actions.popleft()
            world.busy_callers.add((self._name, action))
            try:
                await getattr(self, f"_{action[0]}")(action[1])
            except Exception as error:
                # The death of the process closes coroutines that wait.
                world.check(not world.network.process.is_alive, f"a caller fails with {error!r}")
                raise
            world.busy_callers.discard((self._name, action))
            await asyncio.sleep(world.rng.expovariate(1 / 0.02))

    # Actions. Each has a number of its own.

    async def _query(self, number: int) -> None:
        await self._ask(self._draw(number))

    async def _burst(self, number: int) -> None:
        """Make many calls at a time."""
        count = self._world.rng.choice((5, 20, 60))
        await asyncio.gather(*(self._ask(self._draw(number + i)) for i in range(count)))

    async def _poison(self, number: int) -> None:
        """Make calls that end or hang their worker, at the same time and again."""
        rng = self._world.rng
        request = bad_request(rng.choice(("poison", "poison", "hang")), number)
        self._numbers[request.payload] = number
        count = rng.choice((1, 1, 2, 3, 6))
        gap_seconds = rng.choice((0, 0, 0.01, 0.3))
        # A caller that leaves takes its call back, so that nobody is blamed if the worker ends.
        may_leave = rng.random() < 0.3
        # Each call may end one worker; then they are tried one by one, up to the first that does.
        self._world.deaths.causes_max[number] = math.inf if may_leave else count + 1
        neighbours = [good_request("query", number + i) for i in range(rng.choice((0, 3)))]

        async def ask(number: int) -> None:
            if number and gap_seconds:
                await asyncio.sleep(number * rng.expovariate(1 / gap_seconds))
            await self._ask(request, may_leave=may_leave)

        await asyncio.gather(*map(ask, range(count)), *(self._ask(other) for other in neighbours))
        await self._ask(request, may_leave=may_leave)

    async def _fatal(self, number: int) -> None:
        """Make calls for an index whose opening ends its worker."""
        count = self._world.rng.choice((1, 2))
        # Nobody knows the cause of the first death, and each call is tried once more.
        self._world.deaths.openings_max += 2 * count
        requests = [bad_request("fatal", 10 * number + i) for i in range(count)]
        await asyncio.gather(*(self._ask(request, may_leave=False) for request in requests))

    async def _stream(self, number: int) -> None:
        """Make a QueryStream call, some of whose queries have time limits or are withdrawn."""
        await Stream(self, number).run()

    async def _build(self, number: int) -> None:
        """Make a Build call, which may be cancelled."""
        world = self._world
        dataset = number % DATASETS
        messages = iter(build_messages(_INDEX, dataset))

        async def read() -> object:
            await asyncio.sleep(world.rng.expovariate(1 / 0.01))
            return next(messages, aio.EOF)

        async def write(_: bytes) -> None:
            await asyncio.sleep(0)

        job = Build(read, write)
        start = world.scheduler.now
        # Often while workers open the new generation.
        seconds = world.rng.choice((math.inf, math.inf, 0.1, 0.3, 0.6, 1.0, 2.0))
        try:
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                await self._jobs.relay(job, "build")
        except TimeoutError:
            world.note("a build is cancelled")
            return
        except (DivgrpcError, RefusedError) as error:
            world.note(f"a build fails: {error!r}")
            self._check_failed_job(error, "builder", start)
            return
        generation = job.info.generation
        world.note(f"a build of data set {dataset} returns generation {generation}")
        known = {version.generation: version.dataset for version in world.published}
        world.check(known.get(generation) == dataset, "a build returns another generation")
        world.generation_floor = max(world.generation_floor, generation)

    async def _write(self, number: int) -> None:
        """Make a write, again and again until it is made."""
        world, write = self._world, draw_write(number)
        payload = write.payload()
        for _ in range(_WRITE_TRIES_MAX):
            seconds = world.rng.choice((None, None, None, 0.05))
            try:
                async with asyncio.timeout(seconds):
                    reply = await self._writer.answer(write.op, payload, math.inf, "write")
            except (TimeoutError, QueueFullError):
                await asyncio.sleep(world.rng.expovariate(1 / 0.1))
                continue
            if reply.outcome == Outcome.ANSWER:
                world.note(f"write {number} is made")
                world.writes.acknowledge(write, reply.payload)
                return
            status = status_pb2.Status.FromString(reply.payload)
            world.note(f"write {number} ends with {status.code}: {status.message}")
            codes = (code_pb2.UNAVAILABLE, code_pb2.RESOURCE_EXHAUSTED, code_pb2.ABORTED)
            world.check(status.code in codes, f"a write ends with {status.code}: {status.message}")
            await asyncio.sleep(world.rng.expovariate(1 / 0.1))
        world.fail(f"write {number} is not made in {_WRITE_TRIES_MAX} tries")

    async def _renewal(self, number: int) -> None:
        """Merge, vacuum or retrain."""
        world, rng = self._world, self._world.rng
        frame = Frame.RETRAIN if rng.random() < 0.2 else Frame.COMPACT
        request: Any = writes_pb2.RetrainRequest(index=_INDEX)
        if frame == Frame.COMPACT:
            request = writes_pb2.CompactRequest(index=_INDEX, vacuum=rng.random() < 0.5)

        async def write(_: bytes) -> None:
            await asyncio.sleep(0)

        start, seconds = world.scheduler.now, rng.choice((None, None, 0.05))
        try:
            async with asyncio.timeout(seconds):
                await self._jobs.relay(Renewal(frame, request.SerializeToString(), write), "renew")
        except TimeoutError:
            world.note(f"renewal {number} is cancelled")
        except (DivgrpcError, RefusedError) as error:
            world.note(f"renewal {number} fails: {error!r}")
            self._check_failed_job(error, "writer", start)

    def _check_failed_job(self, error: Exception, role: str, start: float) -> None:
        """Check the error of a job that began at `start`; `role` is that of its process."""
        status = error.status if isinstance(error, RefusedError) else status_of(error, "")  # type: ignore[arg-type]
        codes = [code_pb2.ABORTED, code_pb2.RESOURCE_EXHAUSTED, code_pb2.UNAVAILABLE]
        self._world.check(status.code in codes, f"a job fails with {status.code}: {status.message}")
        if status.code == code_pb2.UNAVAILABLE:
            is_caused = self._has_cause(status.message, role, start)
            self._world.check(is_caused, f"a job fails without a cause: {status.message}")

    def _has_cause(self, message: str, role: str, start: float) -> bool:
        """Tell whether a fault explains that a job has no process, or has lost it."""
        world = self._world
        if "too busy" in message:
            return any(
                (fault.kind, fault.process) == ("full", self._name) and fault.time >= start
                for fault in world.faults.log
            )
        # The writer may have ended before.
        first_time = start - _WRITER_PAUSE_SECONDS if role == "writer" else start
        deaths = world.deaths.neighbours
        return any(name.startswith(role) and time >= first_time for name, time in deaths)

    def _draw(self, number: int) -> Request:
        rng = self._world.rng
        if rng.random() < 0.06:
            return bad_request(rng.choice(("unknown", "malformed")), number)
        return good_request(rng.choice(_GOOD), rng.randrange(24))

    # One unary call.

    async def _ask(self, request: Request, *, may_leave: bool = True) -> None:
        world = self._world
        now = world.scheduler.now
        seconds = world.rng.choice((math.inf, math.inf, 3.0, world.rng.expovariate(1 / 0.05)))
        leaves = min(
            seconds, world.rng.choice((math.inf,) * 4 + (world.rng.expovariate(1 / 0.01),))
        )
        if not may_leave:
            seconds = leaves = math.inf
        call = self.begin(request, now + seconds)
        try:
            async with asyncio.timeout(min(leaves, _ANSWER_SECONDS)):
                reply = await self._pool.answer(request.op, request.payload, call.deadline, "tag")
        except TimeoutError:
            world.check(leaves < _ANSWER_SECONDS, f"a call has no answer: {request.kind}")
        except DivgrpcError as error:
            self.check_status(call, status_of(error, ""), error)
        else:
            world.check(reply.outcome != Outcome.LOST, "a caller receives a lost reply")
            if reply.outcome == Outcome.STATUS:
                self.check_status(call, status_pb2.Status.FromString(reply.payload), None)
            else:
                self.check_answer(call, reply.payload)

    def begin(self, request: Request, deadline: float) -> Call:
        """Return a call that begins now."""
        world = self._world
        floor, written = world.generation_floor, world.writes.floor
        return Call(request, world.scheduler.now, deadline, floor, written, world.pointer())

    def check_answer(self, call: Call, payload: bytes) -> None:
        """Check the bytes of an answer."""
        world, request = self._world, call.request
        good = request.kind in _GOOD
        world.check(good, f"a request that is {request.kind} is answered")
        generation, answer = without_generation(request, payload)
        if world.options.writes:
            self._check_written(call, payload)
            return
        world.note(f"{request.kind} is answered by generation {generation}")
        world.check(generation >= call.floor, f"generation {generation} answers after {call.floor}")
        world.check(generation <= world.current, "an answer is from the future")
        dataset = {version.generation: version.dataset for version in world.published}[generation]
        is_equal = answer == world.answers.answer(dataset, request)
        world.check(is_equal, f"the answer to {request.kind} differs from the core's")
        world.generation_floor = max(world.generation_floor, generation)

    def _check_written(self, call: Call, payload: bytes) -> None:
        """Check an answer of an index that is written to: only what Get returns is compared."""
        if call.request.kind == "get":
            ids = tuple(points_pb2.GetRequest.FromString(call.request.payload).ids)
            self._world.writes.read(points_pb2.GetResponse.FromString(payload), ids, call.written)
        else:
            sequence = query_pb2.QueryResponse.FromString(payload).sequence
            text = f"a query shows write {sequence} and not {call.written}"
            self._world.check(sequence >= call.written, text)

    def check_status(self, call: Call, status: status_pb2.Status, error: Exception | None) -> None:
        """Check that a call may end with a status."""
        world, kind, now = self._world, call.request.kind, self._world.scheduler.now
        world.note(f"{kind} ends with {status.code}: {status.message}")
        if status.code == code_pb2.DEADLINE_EXCEEDED:
            world.check(now >= call.deadline, f"{kind} is late before its deadline")
        elif isinstance(error, QueueFullError):
            world.check(self._pool._admission._calls > 0, "an empty queue is full")
        elif "descriptor" in status.message or "memory" in status.message:
            is_caused = any(
                fault.kind in ("error", "lost") and fault.time >= call.start
                for fault in world.faults.log
            )
            world.check(is_caused, f"a descriptor is missing without a cause: {status.message}")
        elif status.code == code_pb2.UNAVAILABLE and "two workers" not in status.message:
            if kind in ("poison", "hang"):
                # Nobody was blamed, so it may end more workers when it comes again.
                world.deaths.causes_max.pop(self._numbers[call.request.payload], None)
            waited = now - call.start
            is_caused = waited >= world.options.config.worker_wait
            if "before they begin" in status.message:
                is_caused = world.deaths.ends >= _LOSSES_MAX
            world.check(is_caused, f"{status.message} at once")
        elif "two workers" in status.message:
            is_refusal = status.code == code_pb2.INTERNAL
            self._check_condemned(call, is_refusal=is_refusal)
        else:
            expected = {"malformed": code_pb2.INVALID_ARGUMENT, "unknown": code_pb2.NOT_FOUND}
            world.check(status.code == expected.get(kind), f"{kind} ends with {status}")

    def _check_condemned(self, call: Call, *, is_refusal: bool) -> None:
        """Check that a request has ended two workers, or that others ended by chance."""
        world, now, payload = self._world, self._world.scheduler.now, call.request.payload
        if is_refusal:
            time = self._condemned.get(payload, -math.inf)
            world.check(time > now - _QUARANTINE_SECONDS, "a request is refused without a cause")
            return
        self._condemned[payload] = now
        if payload in self._numbers:
            world.deaths.condemned[self._numbers[payload]] = now, call.pointer
        is_bad = call.request.kind in ("poison", "hang", "fatal")
        by_chance = any(call.start <= time <= now for time in world.deaths.workers)
        world.check(is_bad or by_chance, f"{call.request.kind} is blamed for two deaths")


class Stream:
    """One QueryStream call."""

    def __init__(self, callers: Callers, number: int) -> None:
        self._callers, self._number = callers, number
        self._world = callers._world
        self._rng = self._world.rng
        self._calls: dict[int, Call] = {}
        self._withdrawn: set[int] = set()
        self._messages = self._draw()
        self._answered: set[int] = set()

    def _draw(self) -> list[tuple[int, bytes, Request | None, float]]:
        messages: list[tuple[int, bytes, Request | None, float]] = []
        for number in range(self._rng.choice((1, 5, 30))):
            request = good_request(
                self._rng.choice(("query", "query", "query", "batch")), self._rng.randrange(24)
            )
            limit = self._rng.choice((None, None, None, 5, 200, 5_000))
            seconds = math.inf if limit is None else limit / 1_000
            messages.append((number, in_stream(request, number, limit), request, seconds))
            if self._rng.random() < 0.1:
                withdrawn = self._rng.randrange(number + 1)
                message = query_pb2.QueryStreamRequest(correlation_id=withdrawn, withdraw=True)
                messages.append((withdrawn, message.SerializeToString(), None, 0.0))
        return messages

    async def run(self) -> None:
        """Make the call; the caller may leave before its end."""
        world, rng = self._world, self._rng
        leaves = rng.choice((math.inf,) * 4 + (0.02,))
        stream = QueryStream(
            self._read,
            self._write,
            self._callers._pool,
            window=rng.choice((1, 4, 256)),
            deadline=math.inf,
            tag="stream",
            on_message=lambda _: None,
        )
        try:
            async with asyncio.timeout(min(leaves, _ANSWER_SECONDS)):
                await stream.run()
        except TimeoutError:
            world.check(leaves < _ANSWER_SECONDS, "a stream does not end")
            return
        missing = set(self._calls) - self._answered
        world.check(not missing, f"queries of a stream have no answer: {sorted(missing)}")

    async def _read(self) -> object:
        if self._rng.random() < 0.3:
            await asyncio.sleep(self._rng.expovariate(1 / 0.005))
        if not self._messages:
            return aio.EOF
        number, message, request, seconds = self._messages.pop(0)
        if request is None:
            self._withdrawn.add(number)
        else:
            deadline = self._world.scheduler.now + seconds
            self._calls[number] = self._callers.begin(request, deadline)
        return message

    async def _write(self, message: bytes) -> None:
        await asyncio.sleep(0 if self._rng.random() < 0.8 else self._rng.expovariate(1 / 0.01))
        answer = query_pb2.QueryStreamResponse.FromString(message)
        number = answer.correlation_id
        world, call = self._world, self._calls[number]
        world.check(number not in self._answered, "a query of a stream has two answers")
        self._answered.add(number)
        if not answer.HasField("error"):
            self._callers.check_answer(call, answer.response.SerializeToString())
        elif answer.error.code == code_pb2.CANCELLED:
            world.check(number in self._withdrawn, "a query is withdrawn that the caller wants")
        else:
            self._callers.check_status(call, answer.error, None)
