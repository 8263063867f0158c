"""A pool that asks shards for the calls of its workers."""

import asyncio
import time
from collections.abc import Callable

import pytest
from google.rpc import code_pb2, status_pb2

from divgrpc.errors import IndexChangedError
from divgrpc_server.codec.statuses import (
    LateError,
    MissingPlace,
    PoisonError,
    ShardsMissingError,
    WorkersEndedError,
    status_of,
)
from divgrpc_server.front.refusals import RefusedError
from divgrpc_server.front.sharded_pool import ShardedPool
from divgrpc_server.ipc import packets, rounds
from divgrpc_server.ipc.job_frames import StagedGeneration
from divgrpc_server.ipc.packets import Outcome, Reply, Request
from divgrpc_server.logging import logs
from support.processes.pool_harness import Stage, answer, begin, on_stage, packet, settle

TAG = "tag"  # of the calls of a stage
MESSAGES = {0: b"to 0", 2: b"to 2"}


class Shards:
    """Shards that reply when a test lets them."""

    def __init__(self) -> None:
        self.requests: list[dict[int, bytes]] = []
        self.seconds: list[float] = []
        self.waits: list[bool] = []
        self.replies: asyncio.Queue[Exception | None] = asyncio.Queue()

    async def ask(
        self, messages: dict[int, bytes], seconds: float, *, waits: bool, **terms: object
    ) -> dict[int, bytes]:
        """Reply to each message with its reverse, or raise what the test says."""
        assert terms == {"tag": TAG}
        self.requests.append(messages)
        self.waits.append(waits)
        self.seconds.append(seconds)
        if (error := await self.replies.get()) is not None:
            raise error
        return {shard: message[::-1] for shard, message in messages.items()}

    async def prepare(self, generation: StagedGeneration) -> None:
        """Refuse, because no build is under way."""
        raise AssertionError(generation)

    @property
    def room_bytes(self) -> None:
        """Nobody counts memory."""

    async def await_engine(self) -> None:
        """Wait for nothing."""

    async def await_places(self) -> None:
        """Return, because all places have servers."""


def with_shards(stage: Stage) -> Shards:
    """Give a stage a pool that asks shards; return the shards."""
    shards = Shards()
    stage.pool.close()
    log = logs.configure(stage.config, "test")
    stage.pool = ShardedPool(
        stage.config, log, report=stage._report, on_change=lambda: None,
        stamp=lambda _: stage.stamp, shards=shards,
    )  # fmt: skip
    return shards


def ask_shards(
    link: packets.Link, request: Request, small: int = 1, large: int = 0, *, may_lack: bool = False
) -> None:
    """Answer a request with a round of messages."""
    packed = rounds.pack_round(MESSAGES, may_lack=may_lack)
    reply = Reply(request.id, Outcome.ROUND, packed)
    link.send(packets.pack_credits(small, large) + packets.pack_reply(reply))


def code_of(reply: Reply) -> int:
    assert reply.outcome == Outcome.STATUS
    code: int = status_pb2.Status.FromString(reply.payload).code
    return code


async def reply_after(error: Exception, stage: Stage) -> Reply:
    """Return the reply to `question`, after shards have failed with an error."""
    shards = with_shards(stage)
    link = stage.attach(1)
    call = stage.ask(b"question")
    (request,) = await packet(link)
    ask_shards(link, request)
    shards.replies.put_nowait(error)
    return await call


@on_stage(worker_awake=0.0)
async def test_a_call_goes_on_with_the_replies_of_shards(stage: Stage) -> None:
    """Any worker gets the request with all messages and replies so far."""
    shards = with_shards(stage)
    first = stage.attach(1)
    call = stage.ask(b"question", seconds=10)
    (request,) = await packet(first)
    assert request.exchanges == b""
    ask_shards(first, request)
    await settle()
    assert shards.requests == [MESSAGES]
    assert 7 < shards.seconds[0] < 8
    shards.replies.put_nowait(None)
    for number in (1, 2):
        (request,) = await packet(first)
        assert request.payload == b"question"
        both = [(0, b"to 0", b"0 ot"), (2, b"to 2", b"2 ot")]
        assert rounds.unpack_exchanges(request.exchanges) == both * number
        if number == 1:
            ask_shards(first, request)
            shards.replies.put_nowait(None)
    answer(first, request)
    assert (await call).payload == b"noitseuq"
    assert isinstance(stage.pool, ShardedPool)
    assert (stage.pool._asking, stage.pool._begins, stage.pool._rounds) == ({}, {}, {})
    assert stage.pool._admission._calls == 0


@on_stage(worker_awake=0.0)
async def test_a_call_that_may_lack_shards_begins_anew_without_them(stage: Stage) -> None:
    """Replies of the first beginning are dropped, and a replaced index changes nothing of it."""
    shards = with_shards(stage)
    link = stage.attach(1)
    call = stage.ask(b"question")
    errors = [
        ShardsMissingError([2]),
        IndexChangedError("replaced"),
        ShardsMissingError([0, 5]),
        ShardsMissingError([7]),
        ShardsMissingError([8]),
    ]
    missing = [[], [2], [2], [0, 2, 5], [0, 2, 5, 7], [0, 2, 5, 7, 8]]
    for expected, error in zip(missing, [*errors, ShardsMissingError([9])], strict=True):
        (request,) = await packet(link)
        named = rounds.unpack_exchanges(request.exchanges)
        assert [rounds.missing_in(one) for one in named] == ([tuple(expected)] if expected else [])
        ask_shards(link, request, may_lack=True)
        shards.replies.put_nowait(error)
    # Shards that are missing again and again are too many.
    reply = await call
    assert code_of(reply) == code_pb2.UNAVAILABLE
    assert shards.waits == [False] * 6
    assert isinstance(stage.pool, ShardedPool)
    assert stage.pool._losses == {}


@on_stage()
async def test_who_lacks_all_shards_learns_their_places(stage: Stage) -> None:
    """A worker only knows their numbers."""
    shards = with_shards(stage)
    link = stage.attach(1)
    call = stage.ask(b"question")
    for number in (0, 1):
        (request,) = await packet(link)
        ask_shards(link, request, may_lack=True)
        address = f"127.0.0.1:{number}"
        place = MissingPlace(number, 2, (address,), (f"{address} is unreachable",))
        shards.replies.put_nowait(ShardsMissingError([number], [place]))
    (request,) = await packet(link)
    status = status_of(ShardsMissingError([0, 1]), "")
    refusal = Reply(request.id, Outcome.STATUS, status.SerializeToString())
    link.send(packets.pack_credits(1, 0) + packets.pack_reply(refusal))
    refused = status_pb2.Status.FromString((await call).payload)
    assert (
        "places 0 and 1 of 2, counted from 0; 127.0.0.1:0 is unreachable; 127.0.0.1:1 is"
        in refused.message
    )


@on_stage()
async def test_a_call_that_may_not_lack_shards_waits_for_them(stage: Stage) -> None:
    shards = with_shards(stage)
    link = stage.attach(1)
    call = stage.ask(b"question")
    (request,) = await packet(link)
    ask_shards(link, request)
    shards.replies.put_nowait(ShardsMissingError([2]))
    assert code_of(await call) == code_pb2.UNAVAILABLE
    assert shards.waits == [True]


@on_stage()
async def test_a_large_continuation_spends_a_large_credit(stage: Stage) -> None:
    shards = with_shards(stage)
    link = stage.attach(1)
    call = stage.ask(b"question")
    (request,) = await packet(link)
    long_messages = {0: bytes(packets.PACKET_BYTES)}
    with packets.memory_file(rounds.pack_round(long_messages)) as memfd:
        reply = Reply(request.id, Outcome.ROUND, rounds.pack_round(long_messages))
        head = packets.pack_credits(1, 0) + packets.pack_reply(reply, in_memfd=True)
        link.send(head, memfd)
    shards.replies.put_nowait(None)
    (request,) = await packet(link)
    assert len(request.exchanges) > 2 * packets.PACKET_BYTES
    answer(link, request, small=0, large=1)
    assert (await call).outcome == Outcome.ANSWER
    assert stage.pool._workers[0].is_idle


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ShardsMissingError([2]), code_pb2.UNAVAILABLE),
        (LateError("late"), code_pb2.DEADLINE_EXCEEDED),
        (ValueError("a fault"), code_pb2.INTERNAL),
    ],
)
def test_an_error_of_shards_ends_the_call(error: Exception, code: int) -> None:
    @on_stage()
    async def scene(stage: Stage) -> None:
        assert code_of(await reply_after(error, stage)) == code
        assert stage.pool._admission._calls == 0

    run: Callable[[], None] = scene
    run()


@on_stage()
async def test_a_call_begins_anew_once_if_its_index_is_replaced(stage: Stage) -> None:
    shards = with_shards(stage)
    link = stage.attach(1)
    call = stage.ask(b"question")
    for number in range(2):
        (request,) = await packet(link)
        assert request.exchanges == b""
        ask_shards(link, request)
        await settle()
        assert len(shards.requests) == number + 1
        shards.replies.put_nowait(IndexChangedError("replaced"))
    assert code_of(await call) == code_pb2.ABORTED


@on_stage()
async def test_a_call_that_is_withdrawn_asks_no_more(stage: Stage) -> None:
    """Whether it waits for shards, or for a worker."""
    shards = with_shards(stage)
    link = stage.attach(1)
    call = stage.ask(b"question")
    (request,) = await packet(link)
    ask_shards(link, request)
    await settle()
    call.cancel()
    await settle()
    assert isinstance(stage.pool, ShardedPool)
    assert stage.pool._asking == {}
    assert stage.pool._admission._calls == 0
    later = stage.ask(b"later")
    answer(link, *await packet(link))
    assert (await later).payload == b"retal"
    assert len(shards.requests) == 1


@on_stage()
async def test_a_call_that_ends_two_workers_later_is_condemned(stage: Stage) -> None:
    """A worker may end in any round, and a suspect stays one through its rounds."""
    shards = with_shards(stage)
    first = stage.attach(1)
    call = stage.ask(b"question")
    (request,) = await packet(first)
    ask_shards(first, request)
    shards.replies.put_nowait(None)
    await packet(first)
    first.close()
    await settle()
    second = stage.attach(2)
    (request,) = await packet(second)
    assert request.is_suspect
    begin(second, request)
    ask_shards(second, request)
    shards.replies.put_nowait(None)
    (request,) = await packet(second)
    assert request.is_suspect
    begin(second, request)
    second.close()
    assert code_of(await call) == code_pb2.UNAVAILABLE


@on_stage()
async def test_a_request_that_ends_the_workers_of_shards_is_refused_next_time(stage: Stage) -> None:
    """The workers of no other replica end for it."""
    error = RefusedError(status_of(WorkersEndedError(), "").SerializeToString())
    assert code_of(await reply_after(error, stage)) == code_pb2.UNAVAILABLE
    with pytest.raises(PoisonError):
        await stage.ask(b"question")


@on_stage()
async def test_an_endless_call_ends(stage: Stage) -> None:
    shards = with_shards(stage)
    link = stage.attach(1)
    start = time.monotonic()
    call = stage.ask(b"question")
    while not call.done():
        shards.replies.put_nowait(None)
        reader = asyncio.ensure_future(packet(link))
        await asyncio.wait((reader, call), return_when=asyncio.FIRST_COMPLETED)
        if reader.done():
            (request,) = reader.result()
            is_large = request.size > packets.SMALL_MAX
            ask_shards(link, request, small=not is_large, large=is_large)
        else:
            reader.cancel()
    assert code_of(call.result()) == code_pb2.INTERNAL
    assert time.monotonic() - start < 20


@on_stage()
async def test_replies_that_take_too_much_memory_end_their_call(stage: Stage) -> None:
    """What other calls hold counts too; and nothing is held when they have ended."""
    shards = with_shards(stage)
    assert isinstance(stage.pool, ShardedPool)
    link = stage.attach(1)
    size = len(rounds.pack_exchanges(MESSAGES, MESSAGES))
    for most, elsewhere, reason in (
        (2 * size, size, ""),
        (2 * size, size + 1, "QUEUE_FULL"),
        (2 * size - 2, 0, "REPLY_TOO_LARGE"),  # a smaller part of the call would find room
    ):
        stage.pool._gathered_bytes_max, stage.pool._gathered_bytes = most, elsewhere
        call = stage.ask(b"")
        (request,) = await packet(link)
        ask_shards(link, request)
        shards.replies.put_nowait(None)
        if reason:
            assert RefusedError((await call).payload).reason == reason
        else:
            answer(link, *await packet(link))
            assert (await call).outcome == Outcome.ANSWER
        assert stage.pool._gathered_bytes == elsewhere
