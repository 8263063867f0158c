"""Time limits and withdrawals of a QueryStream: each query has exactly one answer."""

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable

import grpc
import pytest
from google.rpc import code_pb2

from divgrpc_client import Client, RpcError, Withdrawal
from divgrpc_client.messages.stream_items import StreamItem
from divgrpc_protos.v1 import query_pb2
from divgrpc_server.front.query_stream import QueryStream
from divgrpc_server.ipc import packets
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request
from support.checks.status_details import details_of_status
from support.data.served_index import Served, random_points
from support.processes.pool_harness import FOREVER, Stage, on_stage, packet, settle

QueryMessage = query_pb2.QueryStreamRequest


def question(number: int, limit_ms: int | None = None) -> QueryMessage:
    query = query_pb2.QueryRequest(index="images")
    return QueryMessage(correlation_id=number, query=query, time_limit_ms=limit_ms)


def withdrawal(number: int) -> QueryMessage:
    return QueryMessage(correlation_id=number, withdraw=True)


class Caller:
    """A caller of a QueryStream, its answers, and the messages that count for the access line."""

    def __init__(self, stage: Stage, *, window: int = 256) -> None:
        self.answers: list[query_pb2.QueryStreamResponse] = []
        self.logged: list[bytes] = []
        self.is_reading = asyncio.Event()
        self.is_reading.set()
        self._steps: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.stream = QueryStream(
            self._steps.get,
            self._write,
            stage.pool,
            window=window,
            deadline=FOREVER,
            tag="tag",
            on_message=self.logged.append,
        )
        self.run = asyncio.ensure_future(self.stream.run())

    async def send(self, *requests: QueryMessage) -> None:
        """Send messages, and let the front read each of them."""
        for request in requests:
            self._steps.put_nowait(request.SerializeToString())
        for _ in requests:
            await settle()

    async def end(self) -> None:
        """End the requests, and wait for the end of the call."""
        self._steps.put_nowait(None)
        await self.run

    async def _write(self, message: bytes) -> None:
        await self.is_reading.wait()
        self.answers.append(query_pb2.QueryStreamResponse.FromString(message))

    @property
    def codes(self) -> list[tuple[int, int]]:
        """The correlation id and the status code of each answer, in order; 0 for a result."""
        return [(answer.correlation_id, answer.error.code) for answer in self.answers]


def reply(link: packets.Link, *requests: Request) -> None:
    """Answer requests as a worker does."""
    link.send(packets.pack_credits(1, 0) + b"".join(packed(request) for request in requests))


def packed(request: Request) -> bytes:
    number = QueryMessage.FromString(request.payload).correlation_id
    answer = query_pb2.QueryStreamResponse(
        correlation_id=number, response=query_pb2.QueryResponse()
    )
    return packets.pack_reply(Reply(request.id, Outcome.ANSWER, answer.SerializeToString()))


def drain(step: Callable[[], object]) -> None:
    """Repeat a step of a socket until it would wait."""
    with contextlib.suppress(BlockingIOError):
        while True:
            step()


@on_stage()
async def test_a_time_limit_ends_its_query_alone(stage: Stage) -> None:
    """The worker is told to drop the query, and an answer that it sends nevertheless is ignored."""
    link, caller = stage.attach(1), Caller(stage)
    await caller.send(question(1, 20), question(2), question(3, 60_000))
    [first, *_] = requests = [request for _ in range(2) for request in await packet(link)]
    assert first.deadline - time.monotonic() < 0.02
    await asyncio.sleep(0.05)
    [cancel] = await packet(link)
    assert (cancel.op, cancel.id) == (Op.CANCEL, first.id)
    [late] = caller.answers
    details = details_of_status(grpc.StatusCode.DEADLINE_EXCEEDED, late.error)
    assert (late.correlation_id, late.error.code) == (1, code_pb2.DEADLINE_EXCEEDED)
    assert details.reason == "LATE"
    assert "time limit" in details.message
    reply(link, *requests)
    await settle()
    reply(link, *await packet(link))
    await caller.end()
    assert caller.codes[1:] == [(2, 0), (3, 0)]


@on_stage()
async def test_a_withdrawn_query_has_an_error_and_no_result(stage: Stage) -> None:
    """A withdrawal reaches the worker, and the pool no longer holds the query."""
    link, caller = stage.attach(1), Caller(stage)
    await caller.send(question(1))
    [first] = await packet(link)
    await caller.send(withdrawal(1))
    [cancel] = await packet(link)
    assert (cancel.op, cancel.id) == (Op.CANCEL, first.id)
    reply(link, first)
    await caller.end()
    [answer] = caller.answers
    details = details_of_status(grpc.StatusCode.CANCELLED, answer.error)
    assert (answer.correlation_id, answer.error.code) == (1, code_pb2.CANCELLED)
    assert details.reason == "WITHDRAWN"
    assert details.metadata["request_id"]


@on_stage()
async def test_a_query_that_waits_is_not_sent_once_withdrawn(stage: Stage) -> None:
    caller = Caller(stage)
    await caller.send(question(1), question(2), withdrawal(1))
    link = stage.attach(1)
    requests = await packet(link)
    assert [QueryMessage.FromString(request.payload).correlation_id for request in requests] == [2]
    reply(link, *requests)
    await caller.end()
    assert caller.codes == [(1, code_pb2.CANCELLED), (2, 0)]


@on_stage()
async def test_withdrawals_of_unknown_and_finished_queries_are_ignored(stage: Stage) -> None:
    link, caller = stage.attach(1), Caller(stage)
    await caller.send(withdrawal(1), question(1))
    reply(link, *await packet(link))
    await settle()
    await caller.send(withdrawal(1), withdrawal(1), withdrawal(2**64 - 1))
    await caller.end()
    assert caller.codes == [(1, 0)]
    assert caller.logged == [question(1).SerializeToString()]


@on_stage()
async def test_queries_of_one_id_are_withdrawn_together(stage: Stage) -> None:
    caller = Caller(stage)
    await caller.send(question(7), question(7), question(8), withdrawal(7))
    assert caller.codes == [(7, code_pb2.CANCELLED)] * 2
    link = stage.attach(1)
    reply(link, *await packet(link))
    await caller.end()
    assert caller.codes[2:] == [(8, 0)]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (question(5, 0), "time_limit_ms"),
        (QueryMessage(correlation_id=5, query=question(5).query, withdraw=True), "withdraw"),
        (QueryMessage(correlation_id=5, time_limit_ms=9, withdraw=True), "withdraw"),
    ],
)
def test_a_wrong_message_names_its_field(message: QueryMessage, field: str) -> None:
    """The error is that of one query, and the stream goes on."""

    @on_stage()
    async def scene(stage: Stage) -> None:
        link, caller = stage.attach(1), Caller(stage)
        await caller.send(message, question(6, 2**32 - 1))
        reply(link, *await packet(link))
        await caller.end()
        assert caller.codes == [(5, code_pb2.INVALID_ARGUMENT), (6, 0)]
        details = details_of_status(grpc.StatusCode.INVALID_ARGUMENT, caller.answers[0].error)
        assert details.fields == (field,)

    scene()


@on_stage(queue_calls=2)
async def test_a_query_that_waits_for_room_ends_at_its_time_limit(stage: Stage) -> None:
    """The front's queue has room for one query of a stream, which no worker answers."""
    caller = Caller(stage)
    await caller.send(question(1), question(2, 20), question(3, 20))
    await asyncio.sleep(0.1)
    assert caller.codes == [(2, code_pb2.DEADLINE_EXCEEDED), (3, code_pb2.DEADLINE_EXCEEDED)]
    reply_to = stage.attach(1)
    reply(reply_to, *await packet(reply_to))
    await caller.end()
    assert caller.codes[2:] == [(1, 0)]


@on_stage()
async def test_a_withdrawal_is_read_though_the_window_is_full(stage: Stage) -> None:
    caller = Caller(stage, window=2)
    await caller.send(question(1), question(2), withdrawal(1), question(3), withdrawal(2))
    assert caller.codes == [(1, code_pb2.CANCELLED), (2, code_pb2.CANCELLED)]
    link = stage.attach(1)
    reply(link, *await packet(link))
    await caller.end()
    assert caller.codes[2:] == [(3, 0)]


@on_stage()
async def test_a_caller_that_reads_no_answers_gets_no_further(stage: Stage) -> None:
    """Queries that end at their time limit do not fill the memory of the front.

    Their answers may come in any order.
    """
    caller = Caller(stage, window=4)
    caller.is_reading.clear()
    numbers = itertools.count()
    for _ in range(30):
        await caller.send(*(question(next(numbers), 1) for _ in range(4)))
        await asyncio.sleep(0.005)
    assert 4 <= len(caller.logged) <= 12
    caller.is_reading.set()
    await caller.end()
    assert sorted(number for number, _ in caller.codes) == list(range(120))


@on_stage()
async def test_the_end_of_a_call_withdraws_all_queries(stage: Stage) -> None:
    """No timer and no call is left."""
    link, caller = stage.attach(1), Caller(stage)
    await caller.send(question(1, 60_000), question(2), question(2))
    requests = [request for _ in range(2) for request in await packet(link)]
    caller.run.cancel()
    await settle()
    notes = list(itertools.chain(*[await packet(link) for _ in requests]))
    assert {note.id for note in notes} == {request.id for request in requests}
    assert {note.op for note in notes} == {Op.CANCEL}
    assert stage.pool._admission._calls == 0
    assert caller.answers == []


@on_stage()
async def test_a_withdrawal_that_finds_no_room_is_sent_later(stage: Stage) -> None:
    """The socket of a busy worker is full when the caller withdraws its query."""
    link, caller = stage.attach(1), Caller(stage)
    await caller.send(question(1), question(2))
    [first] = await packet(link)
    drain(lambda: stage.pool._workers[0].link.send(b"\0" * 1024))
    await caller.send(withdrawal(1))
    assert caller.codes == [(1, code_pb2.CANCELLED)]
    drain(link.receive)
    link.send(packets.pack_credits(0, 0))
    await settle()
    [cancel] = await packet(link)
    assert (cancel.op, cancel.id) == (Op.CANCEL, first.id)


class Worker:
    """A worker that answers the queries it holds, or does not, as `draw` says."""

    def __init__(self, stage: Stage, serial: int) -> None:
        self.link = stage.attach(serial)
        self._queries: list[Request] = []
        self._owed = 0

    def work(self, draw: random.Random) -> None:
        """Read a packet, and perhaps answer all queries; also those that were withdrawn."""
        with contextlib.suppress(BlockingIOError):
            requests = list(packets.unpack_requests(*self.link.receive()))
            queries = [request for request in requests if request.op == Op.STREAM]
            self._queries += queries
            self._owed += bool(queries)
        if self._owed and draw.random() < 0.6:
            credit = packets.pack_credits(self._owed, 0)
            self.link.send(credit + b"".join(map(packed, self._queries)))
            self._queries, self._owed = [], 0


def test_each_query_has_exactly_one_answer() -> None:
    """Workers answer and die while queries pass their limits and are withdrawn, at random."""
    codes: set[int] = set()
    count = 60

    @on_stage(worker_wait=60)
    async def scene(stage: Stage, *, seed: int) -> None:
        draw = random.Random(seed)
        caller, serials = Caller(stage, window=draw.choice((3, 256))), itertools.count(1)
        workers = [Worker(stage, next(serials)) for _ in range(2)]
        for number in range(count):
            await caller.send(question(number, draw.choice((None, None, 1, 3, 10_000))))
            if draw.random() < 0.5:
                await caller.send(withdrawal(draw.randrange(number + 1)))
            draw.choice(workers).work(draw)
            await asyncio.sleep(draw.choice((0, 0, 0.002)))
            if draw.random() < 0.03:
                place = draw.randrange(2)
                workers[place].link.close()
                workers[place] = Worker(stage, next(serials))
        ending = asyncio.ensure_future(caller.end())
        while not ending.done():
            for worker in workers:
                worker.work(draw)
            await asyncio.sleep(0)
        await ending
        answers = Counter(answer.correlation_id for answer in caller.answers)
        assert answers == Counter(range(count))
        codes.update(code for _, code in caller.codes)

    for seed in range(10):
        scene(seed=seed)
    # A single run may lack one of them on a busy machine.
    assert codes >= {0, code_pb2.CANCELLED, code_pb2.DEADLINE_EXCEEDED}


def test_a_withdrawn_batch_frees_its_worker(client: Client, served_index: Served) -> None:
    """Batches that would keep all workers busy for many seconds do not delay the next batch."""
    batch = random_points(6_000, seed=8)
    start = time.monotonic()
    client.query(served_index.name, batch, timeout=120)
    batch_seconds = time.monotonic() - start
    start = time.monotonic()

    items: list[StreamItem] = [*[batch] * 20, *map(Withdrawal, range(20)), batch[:100]]
    errors: dict[int, RpcError] = {}
    name, on_error = served_index.name, errors.__setitem__
    [result] = client.query_stream(name, items, on_error=on_error, timeout=120)
    assert list(errors) == list(range(20))
    assert {error.reason for error in errors.values()} == {"WITHDRAWN"}
    assert len(result.ids) == 100
    assert time.monotonic() - start < 10 * batch_seconds
