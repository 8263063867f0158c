"""How a pool distributes calls: packets, separate credits for large calls, and bounds."""

import asyncio
import socket

import pytest

from divgrpc_server.codec.statuses import QueueFullError
from divgrpc_server.ipc import packets
from divgrpc_server.ipc.packets import Op, Outcome, Reply
from support.processes.pool_harness import Stage, answer, on_stage, packet, settle


@on_stage()
async def test_waiting_calls_share_a_packet(stage: Stage) -> None:
    """The first two packets are sent at once. Calls that arrive later share the third packet."""
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


@on_stage()
async def test_a_packet_stays_within_its_size(stage: Stage) -> None:
    """A packet holds at most two calls of 30 kB, and every call is answered."""
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


@on_stage()
async def test_a_large_call_goes_to_an_idle_worker(stage: Stage) -> None:
    """A worker that has lent a credit gets a large call only if all other workers have a batch."""
    links = [stage.attach(1), stage.attach(2)]
    calls = [stage.ask(bytes(100_000))]
    await packet(links[0])
    answer(links[0], small=0, loan=1)
    await settle()
    # Small calls, however many, weigh less than a batch when the pool compares workers.
    calls.append(stage.ask(b"small"))
    await packet(links[1])
    calls[0].cancel()
    await packet(links[0])
    calls.append(stage.ask(bytes(100_001)))
    (second,) = await packet(links[1])
    assert len(second.payload) == 100_001
    calls.append(stage.ask(bytes(100_002)))
    (third,) = await packet(links[0])
    assert len(third.payload) == 100_002


@on_stage()
async def test_a_large_call_does_not_overwrite_one_that_was_not_read(stage: Stage) -> None:
    """A worker that has lent a credit may not have read the call before."""
    link = stage.attach(1)
    payloads = [bytes([number]) * 100_000 for number in range(3)]
    calls = [stage.ask(payloads[0])]
    (first,) = await packet(link)
    answer(link, first, small=0, large=1)
    await calls[0]
    calls += [stage.ask(payloads[1]), stage.ask(payloads[2])]
    await settle()
    answer(link, small=0, loan=1)
    await settle()
    received = [await packet(link), await packet(link)]
    assert [[request.payload for request in one] for one in received] == [[p] for p in payloads[1:]]
    answer(link, *received[0], *received[1], small=0, large=2, loan=-1)
    await asyncio.gather(*calls)


@pytest.mark.parametrize("is_spent", [True, False])
@on_stage()
async def test_a_lent_credit_is_taken_back(stage: Stage, *, is_spent: bool) -> None:
    """After a loan the worker gets one batch at a time again, whether or not it used the credit."""
    link = stage.attach(1)
    calls = [stage.ask(bytes(100_000))]
    (under_way,) = await packet(link)
    answer(link, small=0, loan=1)
    if is_spent:
        calls.append(stage.ask(bytes(100_001)))
        await packet(link)
    answer(link, under_way, small=0, large=1, loan=-1)
    await calls[0]
    calls += [stage.ask(bytes(100_002 + number)) for number in range(2 - is_spent)]
    if not is_spent:
        assert len((await packet(link))[0].payload) == 100_002
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(packet(link), 0.2)


@on_stage()
async def test_small_calls_overtake_large_calls(stage: Stage) -> None:
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


@on_stage()
async def test_waiting_calls_are_divided_among_workers(stage: Stage) -> None:
    """Calls go to the worker with the most free credits, and waiting calls are split evenly."""
    links = [stage.attach(1), stage.attach(2)]
    calls = [stage.ask(b"%d" % number) for number in range(12)]
    request_lists = [await packet(link) for link in links]
    assert [len(requests) for requests in request_lists] == [1, 1]
    request_lists += [await packet(link) for link in links]
    answer(links[0], *request_lists[0])
    await calls[0]
    shared = await packet(links[0])
    assert len(shared) == 4


@on_stage()
async def test_a_cancelled_call_leaves_the_queue(stage: Stage) -> None:
    """A call that still waits is never sent; for a call that was sent, the worker gets a CANCEL."""
    link = stage.attach(1)
    calls = [stage.ask(b"%d" % number) for number in range(4)]
    (first,), (second,) = await packet(link), await packet(link)
    calls[0].cancel()
    calls[2].cancel()
    (note,) = await packet(link)
    assert (note.op, note.id) == (Op.CANCEL, first.id)
    answer(link, first)
    (last,) = await packet(link)
    assert last.payload == b"3"
    answer(link, second, last)
    await asyncio.gather(calls[1], calls[3])


@on_stage(queue_calls=4, queue_bytes=1000)
async def test_a_full_queue_refuses_calls(stage: Stage) -> None:
    """The queue bounds calls and bytes; a call that is answered or cancelled frees its place."""
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


@on_stage()
async def test_a_call_that_would_be_late_is_refused_while_workers_are_full(stage: Stage) -> None:
    """A large call does not change the pace of small calls; the death of a worker resets it."""
    link = stage.attach(1)
    calls = [stage.ask(b"x" * 100_000), *(stage.ask(b"%d" % number) for number in range(4))]
    await packet(link)
    (first,), (second,) = await packet(link), await packet(link)
    await asyncio.sleep(0.06)
    answer(link, first)
    await calls[1]
    with pytest.raises(QueueFullError, match="before the deadline"):
        await stage.ask(b"late", seconds=0.01)
    third = await packet(link)
    answer(link, second, *third, small=2)
    await asyncio.gather(*calls[2:])
    early = stage.ask(b"early", seconds=0.01)
    assert [request.payload for request in await packet(link)] == [b"early"]
    link.close()
    await settle()
    calls += [early, stage.ask(b"later", seconds=0.01)]
    await settle()
    assert not any(call.done() for call in (calls[0], *calls[-2:]))


@on_stage()
async def test_large_calls_have_their_own_pace(stage: Stage) -> None:
    """A large call that would wait too long is refused, while a small call is accepted."""
    link = stage.attach(1)
    calls = [stage.ask(bytes(100_000)) for _ in range(3)]
    first = await packet(link)
    await asyncio.sleep(0.06)
    answer(link, *first, small=0, large=1)
    await calls[0]
    with pytest.raises(QueueFullError, match="before the deadline"):
        await stage.ask(bytes(100_000), seconds=0.01)
    small = stage.ask(b"small", seconds=0.01)
    await settle()
    assert not small.done()


@on_stage(queue_calls=2)
async def test_requests_to_all_workers_do_not_count_in_the_queue(stage: Stage) -> None:
    link = stage.attach(1)
    for _ in range(5):
        preparation = asyncio.ensure_future(stage.pool.prepare(b"x/y"))
        answer(link, *await packet(link), small=0)
        await preparation
    calls = [stage.ask(b"x") for _ in range(2)]
    with pytest.raises(QueueFullError):
        await stage.ask(b"x")
    assert not any(call.done() for call in calls)


@on_stage()
async def test_packets_wait_while_a_socket_is_full(stage: Stage) -> None:
    front_end, worker_end = packets.pair()
    with worker_end:
        stage.pool.attach(1, packets.Link(front_end))
        # The socket's buffer holds one packet of this size, while the credits allow two.
        front_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_000)
        link = packets.Link(worker_end)
        calls = [stage.ask(b"%d" % number * 7_000) for number in range(2)]
        await settle()
        first = await packet(link)
        with pytest.raises(BlockingIOError):
            link.receive()
        answer(link, *first)
        sizes = [len(first)]
        while not all(call.done() for call in calls):
            requests = await packet(link)
            sizes.append(len(requests))
            answer(link, *requests)
            await settle()
        assert sum(sizes) == len(calls)


@on_stage()
async def test_preparing_waits_for_every_worker(stage: Stage) -> None:
    """PREPARE ends when each worker has opened the generation or died. REFRESH expects no reply."""
    links = [stage.attach(1), stage.attach(2)]
    preparation = asyncio.ensure_future(stage.pool.prepare(b"name/folder"))
    (request,) = await packet(links[0])
    assert (request.op, request.payload) == (Op.PREPARE, b"name/folder")
    answer(links[0], request, small=0)
    await settle()
    assert not preparation.done()
    links[1].close()
    await preparation
    stage.pool.refresh("name")
    (request,) = await packet(links[0])
    assert (request.op, request.payload) == (Op.REFRESH, b"name")


@on_stage()
async def test_a_worker_that_dies_while_it_opens_a_generation_has_not_opened_it(
    stage: Stage,
) -> None:
    """What the others say about it counts."""
    links = [stage.attach(1), stage.attach(2)]
    preparation = asyncio.ensure_future(stage.pool.prepare(b"name/folder"))
    (request,) = await packet(links[0])
    status = packets.pack_reply(Reply(request.id, Outcome.STATUS, b"damaged"))
    links[0].send(packets.pack_credits(0, 0) + status)
    links[1].close()
    assert await preparation == b"damaged"


@on_stage()
async def test_a_new_worker_opens_the_shards_that_others_have_open(stage: Stage) -> None:
    """One after another, also after one that is gone; and neither builds nor old generations."""
    first = stage.attach(1)
    shards = [b"gone/gone/1/shards/1", b"points/points/3/shards/0", b"points/points/3/shards/1"]
    old = b"points/points/2/shards/0"
    for generation in (shards[0], old, *shards[1:], b"points/.points.staging-0"):
        preparation = asyncio.ensure_future(stage.pool.prepare(generation))
        answer(first, *await packet(first), small=0)
        await preparation
    # All servers of a data folder look at it at moments of their own.
    stage.pool.refresh("points")
    for serial, count in ((2, 3), (3, 2)):
        link = stage.attach(serial)
        for shard in shards[-count:]:
            (request,) = await packet(link)
            assert (request.op, request.payload) == (Op.PREPARE, shard)
            with pytest.raises(BlockingIOError):
                link.receive()
            status = b"not found" if shard == shards[0] else b""
            reply = packets.pack_reply(Reply(request.id, Outcome.ANSWER, status))
            link.send(packets.pack_credits(0, 0) + reply)
            await settle()
        with pytest.raises(BlockingIOError):
            link.receive()
