"""Pieces of evaluations in the pool: few at a time, beside everything else."""

import asyncio
from functools import partial

from divgrpc_protos.v1 import evaluate_labels_pb2, evaluate_pb2
from divgrpc_server.codec.evaluate import Head
from divgrpc_server.front.quarantine import Quarantine, index_of
from divgrpc_server.front.worker_link import PIECES_MAX, Call
from divgrpc_server.ipc.packets import Op, Outcome, Reply
from support.pool_harness import FOREVER, Stage, answer, packet, play, settle


def piece(stage: Stage, number: int, heard: list[Reply]) -> Call:
    """Submit a piece."""
    payload = b"piece %d" % number
    return stage.pool.submit(Op.PIECE, payload, FOREVER, "tag", heard.append)


def test_a_worker_has_two_pieces_at_most() -> None:
    """The third goes out when the first is answered; no credit has a part in it."""

    async def scene(stage: Stage) -> None:
        links, heard = [stage.attach(1), stage.attach(2)], list[Reply]()
        for number in range(2 * PIECES_MAX + 1):
            piece(stage, number, heard)
        taken = [[*await packet(link), *await packet(link)] for link in links]
        assert [len(each) for each in taken] == [PIECES_MAX] * 2
        answer(links[1], taken[1][0], small=0)
        (last,) = await packet(links[1])
        assert last.payload == b"piece 4"
        assert len(heard) == 1
        call = stage.ask(b"small")
        (small,) = await packet(links[0])
        assert small.payload == b"small"
        answer(links[0], small)
        await call

    play(scene)


def test_a_piece_that_was_withdrawn_keeps_its_place() -> None:
    """Until the worker has let go of it, which it says by an answer that nobody hears."""

    async def scene(stage: Stage) -> None:
        link, heard = stage.attach(1), list[Reply]()
        calls = [piece(stage, number, heard) for number in range(PIECES_MAX + 2)]
        first, second = [*await packet(link), *await packet(link)]
        stage.pool.withdraw(calls[0])
        stage.pool.withdraw(calls[2])
        (note,) = await packet(link)
        assert (note.op, note.id) == (Op.CANCEL, first.id)
        answer(link, first, small=0)
        (next_one,) = await packet(link)
        assert next_one.payload == b"piece 3"
        answer(link, second, next_one, small=0)
        await settle()
        assert len(heard) == 2

    play(scene)


def test_pieces_of_the_dead_are_tried_alone() -> None:
    """As queries are; one that ends two workers ends its evaluation."""

    async def scene(stage: Stage) -> None:
        first, heard = stage.attach(1), list[Reply]()
        for number in range(2):
            piece(stage, number, heard)
        await packet(first)
        first.close()
        await settle()
        for serial in (2, 3):
            link = stage.attach(serial)
            (request,) = await packet(link)
            assert request.payload == b"piece %d" % (serial - 2)
            if serial == 2:
                link.close()
                await settle()
            else:
                answer(link, request, small=0)
        await settle()
        assert [reply.outcome for reply in heard] == [Outcome.STATUS, Outcome.ANSWER]

    play(scene)


def test_pieces_count_for_no_queue() -> None:
    """A full queue refuses calls, not the pieces of what is under way."""

    async def scene(stage: Stage) -> None:
        heard = list[Reply]()
        calls = [piece(stage, number, heard) for number in range(3)]
        assert len({call.request.id for call in calls}) == 3

    play(scene, queue_calls=1)


def test_everyone_is_asked() -> None:
    """`ask_all` hears every worker but those that end meanwhile; large payloads travel too."""

    async def scene(stage: Stage) -> None:
        links = [stage.attach(serial) for serial in range(3)]
        ask = partial(stage.pool.ask_all, Op.PLAN, b"x" * 100_000, FOREVER, "tag")
        asked = asyncio.ensure_future(ask())
        requests = [(await packet(link))[0] for link in links]
        assert {len(request.payload) for request in requests} == {100_000}
        answer(links[0], requests[0], small=0)
        links[1].close()
        answer(links[2], requests[2], small=0)
        assert len(await asked) == 2

    play(scene)


def test_a_piece_is_known_again() -> None:
    """Whatever run it is of, the same work has the same fingerprint."""
    request = evaluate_pb2.EvaluateRequest(index="one", ks=[3])
    held = Quarantine(lambda _: None)
    held.add(Op.PIECE, Head(1, 5).pack(request))
    assert held.holds(Op.PIECE, Head(2, 5).pack(request))
    assert index_of(Op.PIECE, Head(2, 5).pack(request)) == "one"
    request.ks.append(4)
    assert not held.holds(Op.PIECE, Head(1, 5).pack(request))


def test_whose_piece_it_was_is_told_of_labels_too() -> None:
    """The index is looked at again where a worker died of either kind; nonsense is nobody's."""
    request = evaluate_labels_pb2.EvaluateLabelsRequest(index="two")
    assert index_of(Op.PIECE, Head(1, 5).pack(request)) == "two"
    assert index_of(Op.PIECE, b"") == ""
