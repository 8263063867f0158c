"""The pool by itself, with workers played by the other ends of its sockets."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from google.rpc import code_pb2, status_pb2

from divgrpc_protos.v1 import query_pb2
from divgrpc_server import frames, logs
from divgrpc_server.config import Config
from divgrpc_server.frames import Op, Outcome, Reply, Request
from divgrpc_server.pool import Pool
from divgrpc_server.statuses import PoisonError, QueueFullError

FOREVER = float("inf")
Player = Callable[[Pool, "Stage"], Awaitable[None]]


class Stage:
    """A pool and the workers that were attached to it."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  # as Config's
        self.config = Config(log_level="error", **options)
        self.reported: list[int] = []
        self.stamp = 1
        self.report_made = asyncio.Event()
        self._links: list[frames.Link] = []
        self.pool = Pool(
            self.config,
            logs.configure(self.config, "test"),
            report=self._report,
            changed=lambda: None,
            stamp=lambda _: self.stamp,
        )

    def attach(self, serial: int) -> frames.Link:
        """Attach a worker and return its end of the link."""
        ours, theirs = frames.pair()
        self.pool.attach(serial, frames.Link(ours))
        link = frames.Link(theirs)
        self._links.append(link)
        return link

    def close(self) -> None:
        """Hang up on everybody."""
        self.pool.close()
        for link in self._links:
            link.close()

    def _report(self, serial: int) -> None:
        self.reported.append(serial)
        self.report_made.set()

    def ask(self, payload: bytes) -> "asyncio.Task[Reply]":
        """Ask and return what will be the answer."""
        return asyncio.ensure_future(self.pool.answer(Op.QUERY, payload, FOREVER, "tag"))


def play(player: Callable[[Stage], Awaitable[None]], **options: Any) -> None:  # noqa: ANN401
    """Run a scene on a loop of its own."""

    async def scene() -> None:
        stage = Stage(**options)
        try:
            await asyncio.wait_for(player(stage), 20)
        finally:
            stage.close()

    asyncio.run(scene())


async def packet(link: frames.Link) -> list[Request]:
    """Wait for a packet and return its requests."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(link.fileno(), readable.set)
    await readable.wait()
    loop.remove_reader(link.fileno())
    return list(frames.unpack_requests(*link.receive()))


def answer(link: frames.Link, *requests: Request, small: int = 1, large: int = 0) -> None:
    """Answer requests with their own payload, backwards, and give credit back."""
    items = [
        frames.pack_reply(Reply(request.id, Outcome.ANSWER, request.payload[::-1][:100]))
        for request in requests
    ]
    link.send(frames.pack_credits(small, large) + b"".join(items))


async def settle() -> None:
    """Let everything that is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_calls_that_wait_travel_together() -> None:
    """Two packets go out at once; what comes meanwhile shares the next one."""

    async def scene(stage: Stage) -> None:
        link = stage.attach(1)
        calls = [stage.ask(b"ab%d" % number) for number in range(10)]
        first, second = await packet(link), await packet(link)
        assert (len(first), len(second)) == (1, 1)
        answer(link, *first)
        assert (await calls[0]).payload == b"0ba"
        third = await packet(link)
        assert len(third) == 8
        assert all(request.tag == "tag" for request in third)
        answer(link, *second)
        answer(link, *third)
        await asyncio.gather(*calls)

    play(scene)


def test_a_packet_holds_no_more_than_it_may() -> None:
    """Large small calls fill packets one by one; nothing is lost or cut."""

    async def scene(stage: Stage) -> None:
        link = stage.attach(1)
        calls = [stage.ask(bytes([number]) * 30_000) for number in range(9)]
        sizes = []
        while not all(call.done() for call in calls):
            requests = await packet(link)
            sizes.append(len(requests))
            answer(link, *requests)
            await settle()
        assert max(sizes) == 2
        assert sum(sizes) == 9

    play(scene)


def test_large_calls_have_a_lane_of_their_own() -> None:
    """One large call at a time goes to a worker, and small ones pass it."""

    async def scene(stage: Stage) -> None:
        link = stage.attach(1)
        large = [stage.ask(bytes([number]) * 100_000) for number in range(2)]
        small = stage.ask(b"small")
        (first,), (quick,) = await packet(link), await packet(link)
        assert len(first.payload) == 100_000
        assert quick.payload == b"small"
        answer(link, quick)
        await small
        answer(link, first, small=0, large=1)
        (second,) = await packet(link)
        assert second.payload == b"\1" * 100_000
        answer(link, second, small=0, large=1)
        await asyncio.gather(*large)

    play(scene)


def test_work_is_shared() -> None:
    """Calls go to the worker with the most room, and a line is split between those that come."""

    async def scene(stage: Stage) -> None:
        links = [stage.attach(1), stage.attach(2)]
        calls = [stage.ask(b"%d" % number) for number in range(12)]
        taken = [await packet(link) for link in links]
        assert [len(requests) for requests in taken] == [1, 1]
        taken += [await packet(link) for link in links]
        answer(links[0], *taken[0])
        await calls[0]
        shared = await packet(links[0])
        assert len(shared) == 4
        for call in calls:
            call.cancel()

    play(scene)


def test_a_withdrawn_call_leaves_the_line() -> None:
    """It is never sent if it waits, and its worker is told if it was sent."""

    async def scene(stage: Stage) -> None:
        link = stage.attach(1)
        calls = [stage.ask(b"%d" % number) for number in range(4)]
        (sent,), (other,) = await packet(link), await packet(link)
        calls[0].cancel()
        calls[2].cancel()
        (note,) = await packet(link)
        assert (note.op, note.id) == (Op.CANCEL, sent.id)
        answer(link, sent)
        (last,) = await packet(link)
        assert last.payload == b"3"
        answer(link, other, last)
        await asyncio.gather(calls[1], calls[3])

    play(scene)


def test_a_full_queue_refuses() -> None:
    """Calls and bytes are bounded; who is answered or leaves makes room."""

    async def scene(stage: Stage) -> None:
        link = stage.attach(1)
        calls = [stage.ask(b"x" * 300) for _ in range(3)]
        await settle()
        with pytest.raises(QueueFullError):
            await stage.ask(b"x" * 101)
        fits = stage.ask(b"x" * 99)
        await settle()
        with pytest.raises(QueueFullError):
            await stage.ask(b"")
        fits.cancel()
        answer(link, *await packet(link))
        await calls[0]
        again = [stage.ask(b"y"), stage.ask(b"z")]
        await settle()
        assert not any(call.done() for call in again)

    play(scene, queue_calls=4, queue_bytes=1000)


def test_what_a_dead_worker_left_is_tried_alone() -> None:
    """The innocent are answered; the guilty one fails, and is refused from then on."""

    async def scene(stage: Stage) -> None:
        first = stage.attach(1)
        calls = [stage.ask(b"call %d" % number) for number in range(3)]
        await packet(first)
        first.close()
        await settle()
        assert stage.reported == [1]
        second = stage.attach(2)
        (request,) = await packet(second)
        assert request.payload == b"call 0"
        fresh = stage.ask(b"fresh")
        answer(second, request)
        await calls[0]
        (guilty,) = await packet(second)
        assert guilty.payload == b"call 1"
        second.close()
        reply = await calls[1]
        assert reply.outcome == Outcome.STATUS
        assert status_pb2.Status.FromString(reply.payload).code == code_pb2.UNAVAILABLE
        with pytest.raises(PoisonError):
            await stage.ask(b"call 1")
        third = stage.attach(3)
        while not (calls[2].done() and fresh.done()):
            answer(third, *await packet(third))
            await settle()
        assert calls[2].result().outcome == Outcome.ANSWER

    play(scene)


def test_a_repaired_index_ends_the_quarantine() -> None:
    """A query that ended two workers is tried again once its index is another."""

    async def scene(stage: Stage) -> None:
        call = stage.ask(b"guilty")
        for serial in range(2):
            link = stage.attach(serial)
            await packet(link)
            link.close()
            await settle()
        assert (await call).outcome == Outcome.STATUS
        with pytest.raises(PoisonError):
            await stage.ask(b"guilty")
        stage.stamp += 1
        link = stage.attach(3)
        again = stage.ask(b"guilty")
        answer(link, *await packet(link))
        assert (await again).outcome == Outcome.ANSWER

    play(scene)


def test_a_death_has_the_index_looked_at() -> None:
    """Before a suspect is tried, every other worker compares the files of its index."""

    async def scene(stage: Stage) -> None:
        links = [stage.attach(1), stage.attach(2)]
        payload = query_pb2.QueryRequest(index="short").SerializeToString()
        call = stage.ask(payload)
        await packet(links[0])
        links[0].close()
        (note,) = await packet(links[1])
        assert (note.op, note.payload) == (Op.RECHECK, b"short")
        (suspect,) = await packet(links[1])
        assert suspect.payload == payload
        answer(links[1], suspect)
        await call

    play(scene)


def test_a_silent_worker_is_reported_once() -> None:
    """One that has work and says nothing hangs; one that has none may be silent."""

    async def scene(stage: Stage) -> None:
        stage.attach(1)
        stage.attach(2)
        call = stage.ask(b"call")
        await stage.report_made.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(call), 1)
        assert stage.reported == [1]
        call.cancel()

    play(scene, worker_silence=0.2)


def test_a_sign_of_life_is_enough() -> None:
    """An empty packet says that a worker is at work."""

    async def scene(stage: Stage) -> None:
        link = stage.attach(1)
        call = stage.ask(b"call")
        (request,) = await packet(link)
        for _ in range(10):
            answer(link, small=0)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(call), 0.1)
        assert stage.reported == []
        answer(link, request)
        await call

    play(scene, worker_silence=0.5)


def test_a_build_comes_to_a_worker_that_was_idle() -> None:
    """One that had nothing to do for long is not taken for silent when it is told to prepare."""

    async def scene(stage: Stage) -> None:
        link = stage.attach(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stage.report_made.wait(), 1)
        prepared = asyncio.ensure_future(stage.pool.prepare(b"name/folder"))
        (request,) = await packet(link)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(stage.report_made.wait(), 0.35)
            answer(link, small=0)
        answer(link, request, small=0)
        await prepared
        assert stage.reported == []

    play(scene, worker_silence=0.5)


def test_notes_that_fill_a_socket_do_not_end_a_worker() -> None:
    """One that reads nothing for a while, and has no work, gets calls again afterwards."""

    async def scene(stage: Stage) -> None:
        link = stage.attach(1)
        for _ in range(2_000):
            stage.pool.refresh("name")
        with suppress(BlockingIOError):
            while True:
                link.receive()
        call = stage.ask(b"call")
        answer(link, *await packet(link))
        await call

    play(scene)


def test_no_worker_at_all() -> None:
    """A call waits for the first worker, but not for ever."""

    async def scene(stage: Stage) -> None:
        early = stage.ask(b"early")
        await settle()
        link = stage.attach(1)
        answer(link, *await packet(link))
        assert (await early).payload == b"ylrae"
        link.close()
        await settle()
        reply = await stage.ask(b"late")
        assert status_pb2.Status.FromString(reply.payload).code == code_pb2.UNAVAILABLE

    play(scene, worker_wait=0.1)


def test_a_worker_that_reads_too_slowly() -> None:
    """What does not fit its socket waits here, and goes out when it is heard again."""

    async def scene(stage: Stage) -> None:
        ours, theirs = frames.pair()
        with theirs:
            stage.pool.attach(1, frames.Link(ours))
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_000)
            link = frames.Link(theirs)
            calls = [stage.ask(b"%d" % number * 3_000) for number in range(4)]
            await settle()
            sizes = []
            while not all(call.done() for call in calls):
                requests = await packet(link)
                sizes.append(len(requests))
                answer(link, *requests)
                await settle()
            assert sum(sizes) == len(calls)

    play(scene)


def test_a_generation_waits_for_every_worker() -> None:
    """Preparing it ends when each worker has opened it, or is gone; a refresh is only told."""

    async def scene(stage: Stage) -> None:
        links = [stage.attach(1), stage.attach(2)]
        prepared = asyncio.ensure_future(stage.pool.prepare(b"name/folder"))
        (request,) = await packet(links[0])
        assert (request.op, request.payload) == (Op.PREPARE, b"name/folder")
        answer(links[0], request, small=0)
        await settle()
        assert not prepared.done()
        links[1].close()
        await prepared
        stage.pool.refresh("name")
        (request,) = await packet(links[0])
        assert (request.op, request.payload) == (Op.REFRESH, b"name")

    play(scene)
