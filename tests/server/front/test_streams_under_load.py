"""Streams while the front has too much to do: they wait, where unary calls are refused."""

import asyncio
import time

import pytest

from divgrpc.errors import UnavailableError
from divgrpc_server.codec.statuses import QueueFullError
from divgrpc_server.config import Config
from divgrpc_server.front.admission import Admission
from divgrpc_server.front.query_stream import QueryStream
from divgrpc_server.ipc import packets
from divgrpc_server.ipc.packets import Op, Request
from support.processes.pool_harness import FOREVER, Stage, answer, on_stage, packet, settle


class Stream:
    """A QueryStream of the messages 0, 1, and so on, and the answers that it has written.

    Spaces before the number make each message at least `size` bytes long.
    """

    def __init__(
        self, stage: Stage, count: int, *, seconds: float = FOREVER, size: int = 0
    ) -> None:
        self.messages = [(b"%d" % number).rjust(size) for number in range(count)]
        self.answers: list[bytes] = []
        self._unread = iter(self.messages)
        self.stream = QueryStream(
            self._read,
            self._write,
            stage.pool,
            window=256,
            deadline=time.monotonic() + seconds,
            tag="tag",
            on_message=lambda _: None,
        )
        self.run = asyncio.ensure_future(self.stream.run())

    async def _read(self) -> object:
        await asyncio.sleep(0)
        return next(self._unread, None)

    async def _write(self, message: bytes) -> None:
        self.answers.append(message)


async def work(link: packets.Link, request_lists: list[list[Request]]) -> None:
    """Answer all packets, and append the requests of each to `request_lists`."""
    while True:
        requests = [request for request in await packet(link) if request.op != Op.CANCEL]
        if requests:
            request_lists.append(requests)
            answer(link, *requests)


@on_stage()
async def test_a_stream_is_not_refused_for_its_deadline(stage: Stage) -> None:
    """At a measured pace that refuses a unary call, the queries of a stream are accepted."""
    link = stage.attach(1)
    calls = [stage.ask(b"%d" % number) for number in range(4)]
    first, second = await packet(link), await packet(link)
    await asyncio.sleep(0.06)  # the window of a measurement; a longer one makes the pace slower
    answer(link, *first)
    await calls[0]
    with pytest.raises(QueueFullError, match="before the deadline"):
        await stage.ask(b"late", seconds=0.01)
    stream = Stream(stage, 8, seconds=0.01)
    await settle()
    answer(link, *second)
    worker = asyncio.ensure_future(work(link, []))
    await stream.run
    worker.cancel()
    assert sorted(stream.answers) == stream.messages


@on_stage(queue_calls=8)
async def test_streams_fill_half_of_the_queue(stage: Stage) -> None:
    """Streams wait for room, all their queries are answered, and unary calls still have places."""
    streams = [Stream(stage, 20) for _ in range(3)]
    for _ in range(20):
        await settle()
    calls = [stage.ask(b"unary") for _ in range(4)]
    await settle()
    assert not any(call.done() for call in calls)
    with pytest.raises(QueueFullError):
        await stage.ask(b"")
    request_lists: list[list[Request]] = []
    worker = asyncio.ensure_future(work(stage.attach(1), request_lists))
    await asyncio.gather(*calls, *(stream.run for stream in streams))
    worker.cancel()
    assert (
        max(sum(request.op == Op.STREAM for request in requests) for requests in request_lists) <= 4
    )
    for stream in streams:
        assert sorted(stream.answers) == sorted(message[::-1] for message in stream.messages)


@on_stage(queue_calls=1, queue_bytes=1)
async def test_one_query_of_a_stream_always_has_room(stage: Stage) -> None:
    """A stream goes on query by query if the queue is shorter, or smaller, than its messages."""
    stream = Stream(stage, 12)
    request_lists: list[list[Request]] = []
    worker = asyncio.ensure_future(work(stage.attach(1), request_lists))
    await stream.run
    worker.cancel()
    assert stream.answers == [message[::-1] for message in stream.messages]
    assert all(len(requests) == 1 for requests in request_lists)


def test_a_cancelled_stream_passes_its_turn_on() -> None:
    """A stream that ends at the moment it is woken does not keep others waiting."""

    async def scene() -> None:
        admission = Admission(Config(queue_calls=2))
        admission.take(1, is_stream=True)
        first, second = (asyncio.ensure_future(admission.wait_for_room(1)) for _ in range(2))
        await settle()
        admission.release(1, is_stream=True)
        first.cancel()
        await asyncio.wait_for(second, 10)
        assert first.cancelled()

    asyncio.run(scene())


@on_stage(queue_calls=2)
async def test_a_drained_stream_answers_the_query_that_waits(stage: Stage) -> None:
    """A query that was read before the drain is answered, and later ones are not read."""
    stream = Stream(stage, 9)
    await settle()
    stream.stream.drain()
    await settle()
    worker = asyncio.ensure_future(work(stage.attach(1), []))
    with pytest.raises(UnavailableError, match="going down"):
        await stream.run
    worker.cancel()
    assert stream.answers == stream.messages[:2]


@on_stage(queue_bytes=80)
async def test_streams_fill_half_of_the_bytes_of_the_queue(stage: Stage) -> None:
    """Long queries of streams leave room for unary calls, as many short queries do."""
    streams = [Stream(stage, 20, size=10) for _ in range(3)]
    for _ in range(20):
        await settle()
    calls = [stage.ask(b"unary ca%d" % number) for number in range(4)]
    await settle()
    assert not any(call.done() for call in calls)
    worker = asyncio.ensure_future(work(stage.attach(1), []))
    await asyncio.gather(*calls, *(stream.run for stream in streams))
    worker.cancel()


def test_a_long_query_is_not_overtaken() -> None:
    """The stream that waits longest has the first turn, even if later queries would fit before."""

    async def scene() -> None:
        admission = Admission(Config(queue_bytes=20))
        for _ in range(2):
            admission.take(4, is_stream=True)
        long, short = (asyncio.ensure_future(admission.wait_for_room(size)) for size in (10, 1))
        await settle()
        admission.release(4, is_stream=True)
        late = asyncio.ensure_future(admission.wait_for_room(1))
        await settle()
        assert not any(turn.done() for turn in (long, short, late))
        admission.release(4, is_stream=True)
        await asyncio.wait_for(asyncio.gather(long, short, late), 10)

    asyncio.run(scene())
