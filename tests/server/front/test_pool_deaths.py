"""What happens to calls if workers die, send nothing or do not exist."""

import asyncio
import time
from contextlib import suppress

import pytest
from google.rpc import code_pb2, status_pb2

from divgrpc_protos.v1 import query_pb2
from divgrpc_server.codec.statuses import PoisonError
from divgrpc_server.front.pool import _LOSSES_MAX
from divgrpc_server.ipc import packets
from divgrpc_server.ipc.packets import Op, Outcome
from support.processes.pool_harness import Stage, answer, begin, on_stage, packet, settle


@on_stage()
async def test_calls_of_a_dead_worker_are_retried_one_by_one(stage: Stage) -> None:
    """A call that kills a second worker fails and is refused from then on."""
    first = stage.attach(1)
    calls = [stage.ask(b"call %d" % number) for number in range(3)]
    await packet(first)
    first.close()
    await settle()
    assert stage.reports == [1]
    second = stage.attach(2)
    (request,) = await packet(second)
    assert request.payload == b"call 0"
    fresh = stage.ask(b"fresh")
    answer(second, request)
    await calls[0]
    (guilty,) = await packet(second)
    assert guilty.payload == b"call 1"
    begin(second, guilty)
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


@on_stage()
async def test_a_suspect_is_to_blame_only_if_its_worker_had_begun(stage: Stage) -> None:
    """A worker may end because of a call of another front, before it begins with the suspect."""
    call = stage.ask(b"innocent")
    for serial in range(_LOSSES_MAX - 1):
        link = stage.attach(serial)
        (request,) = await packet(link)
        assert request.is_suspect == (serial > 0)
        link.close()
        await settle()
    link = stage.attach(9)
    answer(link, *await packet(link))
    assert (await call).outcome == Outcome.ANSWER


@on_stage()
async def test_a_front_that_has_stood_still_blames_nobody(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker closes its socket if its answers are not read; it has not ended."""
    monkeypatch.setattr(packets, "SEND_SECONDS", 0.6)
    call = stage.ask(b"innocent")
    link = stage.attach(1)
    await packet(link)
    link.close()
    await settle()
    link = stage.attach(2)
    begin(link, *await packet(link))
    link.close()
    time.sleep(0.7)  # nothing else runs, as in a process that is stopped
    await settle()
    link = stage.attach(3)
    answer(link, *await packet(link))
    assert (await call).outcome == Outcome.ANSWER


@on_stage()
async def test_a_call_ends_if_many_workers_end_before_it(stage: Stage) -> None:
    """Nobody knows the cause, so the request is not refused when it comes again."""
    call = stage.ask(b"innocent")
    for serial in range(_LOSSES_MAX):
        link = stage.attach(serial)
        await packet(link)
        link.close()
        await settle()
    reply = await call
    assert status_pb2.Status.FromString(reply.payload).code == code_pb2.UNAVAILABLE
    again = stage.ask(b"innocent")
    link = stage.attach(9)
    answer(link, *await packet(link))
    assert (await again).outcome == Outcome.ANSWER


@on_stage()
async def test_copies_of_a_guilty_call_are_not_tried_again(stage: Stage) -> None:
    """Neither those that wait, nor one whose worker ends later."""
    links = [stage.attach(1), stage.attach(2)]
    running = [stage.ask(b"guilty"), stage.ask(b"guilty")]
    for link in links:
        await packet(link)
    third = stage.attach(3)
    links[0].close()
    await settle()
    waiting = [stage.ask(b"guilty") for _ in range(8)]
    (suspect,) = await packet(third)
    begin(third, suspect)
    third.close()
    assert (await running[0]).outcome == Outcome.STATUS
    links[1].close()
    replies = await asyncio.gather(running[1], *waiting)
    codes = [status_pb2.Status.FromString(reply.payload).code for reply in replies]
    assert codes == [code_pb2.INTERNAL] * 9
    fourth = stage.attach(4)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(packet(fourth), 0.2)


@on_stage()
async def test_a_repaired_index_ends_the_quarantine(stage: Stage) -> None:
    """A query that ended two workers is tried again after its index has changed."""
    call = stage.ask(b"guilty")
    for serial in range(2):
        link = stage.attach(serial)
        begin(link, *await packet(link))
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


@on_stage()
async def test_a_worker_at_its_last_slice_is_not_idle(stage: Stage) -> None:
    """A suspect call goes only to idle workers, and a worker with a lent credit still computes."""
    links = [stage.attach(1), stage.attach(2)]
    batch = stage.ask(bytes(100_000))
    (batch_request,) = await packet(links[0])
    answer(links[0], small=0, loan=1)
    call = stage.ask(b"call")
    (call_request,) = await packet(links[1])
    batch.cancel()
    assert (await packet(links[0]))[0].op == Op.CANCEL
    links[1].close()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(packet(links[0]), 0.2)
    answer(links[0], small=0, large=1, loan=-1)
    (suspect,) = await packet(links[0])
    assert (suspect.payload, batch_request.id != suspect.id) == (call_request.payload, True)
    answer(links[0], suspect)
    await call


@on_stage()
async def test_a_death_makes_other_workers_check_the_index(stage: Stage) -> None:
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


@on_stage(worker_silence=60)
async def test_a_silent_worker_is_reported_once(stage: Stage) -> None:
    """A worker that has work and sends nothing is reported; a worker without work may be silent."""
    stage.attach(1)
    stage.attach(2)
    call = stage.ask(b"call")
    await settle()
    stage.age(40)
    assert stage.reports == []
    stage.age(40)
    stage.age(40)
    assert stage.reports == [1]
    assert not call.done()


@on_stage(worker_silence=60)
async def test_an_empty_packet_is_a_sign_of_life(stage: Stage) -> None:
    link = stage.attach(1)
    call = stage.ask(b"call")
    (request,) = await packet(link)
    for _ in range(10):
        stage.age(40)
        answer(link, small=0)
        await settle()
    assert stage.reports == []
    answer(link, request)
    await call


@on_stage(worker_silence=60)
async def test_silence_counts_from_the_query(stage: Stage) -> None:
    link = stage.attach(1)
    stage.age(100)
    call = stage.ask(b"call")
    requests = await packet(link)
    stage.age(40)
    assert stage.reports == []
    answer(link, *requests)
    await call


@on_stage(worker_silence=60)
async def test_silence_counts_from_the_prepare_request(stage: Stage) -> None:
    """A worker that was idle before PREPARE and sends empty packets since then is not reported."""
    link = stage.attach(1)
    stage.age(100)
    preparation = asyncio.ensure_future(stage.pool.prepare(b"name/folder"))
    (request,) = await packet(link)
    for _ in range(3):
        stage.age(40)
        answer(link, small=0)
        await settle()
    answer(link, request, small=0)
    await preparation
    assert stage.reports == []


@on_stage()
async def test_notes_that_fill_a_socket_do_not_end_a_worker(stage: Stage) -> None:
    """A worker without work may read nothing for a while; then it gets the last note and calls."""
    link = stage.attach(1)
    for _ in range(2_000):
        stage.pool.refresh("name")
    with suppress(BlockingIOError):
        while True:
            link.receive()
    (note,) = await packet(link)
    assert (note.op, note.payload) == (Op.REFRESH, b"name")
    call = stage.ask(b"call")
    answer(link, *await packet(link))
    await call


@on_stage(worker_wait=0.1)
async def test_a_call_without_workers_waits_for_a_limited_time(stage: Stage) -> None:
    """If a worker attaches in time, it answers the call; otherwise the call is UNAVAILABLE."""
    early = stage.ask(b"early")
    await settle()
    link = stage.attach(1)
    answer(link, *await packet(link))
    assert (await early).payload == b"ylrae"
    link.close()
    await settle()
    reply = await stage.ask(b"late")
    assert status_pb2.Status.FromString(reply.payload).code == code_pb2.UNAVAILABLE


@on_stage(is_writer=True, worker_wait=0.1)
async def test_a_write_waits_longer_for_the_writer_to_start(stage: Stage) -> None:
    write = stage.ask(b"write")
    await asyncio.sleep(0.6)
    stage.pool._tick()
    assert not write.done()
    link = stage.attach(1)
    answer(link, *await packet(link))
    assert (await write).payload == b"etirw"


@on_stage()
async def test_a_worker_that_tries_a_suspect_is_not_full(stage: Stage) -> None:
    """Calls that wait while a worker tries a suspect call do not change the pace."""
    first = stage.attach(1)
    suspect = stage.ask(b"suspect")
    await packet(first)
    first.close()
    await settle()
    second = stage.attach(2)
    await packet(second)
    waiting = stage.ask(b"waiting")
    await settle()
    assert stage.pool._admission._lines["small"].since is None
    assert not any(call.done() for call in (suspect, waiting))
