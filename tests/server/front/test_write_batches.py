"""The batches that a WriteStream sends to the writer; tests act as the writer."""

import asyncio
import time
from collections.abc import Iterable

import pytest
from google.rpc import code_pb2, status_pb2

from divgrpc.errors import UnavailableError
from divgrpc_protos.v1 import writes_pb2
from divgrpc_server.front import write_stream
from divgrpc_server.front.refusals import RefusedError
from divgrpc_server.front.write_stream import WriteStream
from divgrpc_server.front.writer import Writer
from divgrpc_server.ipc import packets
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request
from divgrpc_server.ipc.write_batches import Kind, WriteOutcome, pack_outcomes, unpack_messages
from support.processes.pool_harness import FOREVER, Stage, on_stage, packet, settle


class Stream:
    """A WriteStream of the messages 0, 1, and so on, and the answers that it has written."""

    def __init__(self, stage: Stage, count: int, *, window: int = 256, size: int = 0) -> None:
        self.messages = [message(number, size) for number in range(count)]
        self.answers: list[bytes] = []
        self.reads = 0
        self.may_write = asyncio.Event()
        self.may_write.set()
        self._unread = iter(self.messages)
        self.starts = 0
        self.stream = WriteStream(
            self._read,
            self._write,
            Writer(stage.pool, self._start),
            window=window,
            deadline=FOREVER,
            tag="tag",
            on_message=lambda _: None,
        )
        self.run = asyncio.ensure_future(self.stream.run())

    def _start(self) -> None:
        self.starts += 1

    async def _read(self) -> object:
        await asyncio.sleep(0)
        self.reads += 1
        return next(self._unread, None)

    async def _write(self, answer: bytes) -> None:
        await self.may_write.wait()
        self.answers.append(answer)


def message(number: int, size: int = 0) -> bytes:
    upsert = writes_pb2.UpsertRequest(index="x", payloads=[b"x" * size])
    request = writes_pb2.WriteStreamRequest(correlation_id=number, upsert=upsert)
    return request.SerializeToString()


def reply(link: packets.Link, request: Request, outcomes: Iterable[WriteOutcome]) -> None:
    """Answer a batch."""
    item = packets.pack_reply(Reply(request.id, Outcome.ANSWER, pack_outcomes(outcomes)))
    large = len(request.payload) > packets.SMALL_MAX
    link.send(packets.pack_credits(not large, large) + item)


async def next_batch(link: packets.Link) -> tuple[Request, list[bytes]]:
    (request,) = await packet(link)
    assert request.op == Op.WRITES
    return request, list(unpack_messages(request.payload))


async def second_batch(link: packets.Link, stream: Stream) -> tuple[Request, list[bytes]]:
    """Make the first write of a stream; return the batch of all others."""
    request, messages = await next_batch(link)
    await settle_long()
    reply(link, request, outcomes_of(messages))
    request, messages = await next_batch(link)
    assert messages == stream.messages[1:]
    return request, messages


def answers(messages: Iterable[bytes]) -> list[bytes]:
    """Return the answers of the writer of these tests: the first bytes of each message."""
    return [item[:6] for item in messages]


def outcomes_of(messages: Iterable[bytes]) -> list[WriteOutcome]:
    """Return the outcomes of messages that the writer of these tests has made."""
    return [WriteOutcome(Kind.ANSWER, answer) for answer in answers(messages)]


async def serve(link: packets.Link, sizes: list[int]) -> None:
    """Make all writes, and append the number of messages of each batch to `sizes`."""
    while True:
        for request in await packet(link):
            if request.op == Op.WRITES:
                messages = list(unpack_messages(request.payload))
                sizes.append(len(messages))
                reply(link, request, outcomes_of(messages))


def count_held(stage: Stage) -> tuple[int, int]:
    """Return the calls and the bytes that the front holds."""
    admission = stage.pool._admission
    # Each call is also counted by its kind.
    assert sum(line.held for line in admission._lines.values()) == admission._calls
    return admission._calls, admission._bytes


async def settle_long() -> None:
    for _ in range(200):
        await settle()


@on_stage()
async def test_messages_gather_while_the_writer_has_a_batch(stage: Stage) -> None:
    """The first message is sent at once, and all others together."""
    link = stage.attach(1)
    stream = Stream(stage, 50)
    first, messages = await next_batch(link)
    assert messages == stream.messages[:1]
    await settle_long()
    assert count_held(stage) == (50, sum(map(len, stream.messages)))
    reply(link, first, outcomes_of(messages))
    second, messages = await next_batch(link)
    assert messages == stream.messages[1:]
    reply(link, second, outcomes_of(messages))
    await stream.run
    assert stream.answers == answers(stream.messages)
    assert count_held(stage) == (0, 0)
    assert stream.starts == 0


@on_stage()
async def test_a_batch_has_about_a_mebibyte(stage: Stage) -> None:
    link = stage.attach(1)
    stream = Stream(stage, 10, size=300_000)
    sizes: list[int] = []
    while sum(sizes) < 10:
        request, messages = await next_batch(link)
        await settle_long()
        sizes.append(len(messages))
        reply(link, request, outcomes_of(messages))
    await stream.run
    assert sizes == [1, 4, 4, 1]
    assert stream.answers == answers(stream.messages)


@on_stage()
async def test_a_reader_that_does_not_read_stops_the_stream(stage: Stage) -> None:
    """No more messages are read than the window holds, until answers are taken."""
    link, sizes = stage.attach(1), list[int]()
    stream = Stream(stage, 100, window=8)
    stream.may_write.clear()
    writer = asyncio.ensure_future(serve(link, sizes))
    await settle_long()
    assert (stream.reads, stream.answers) == (8, [])
    stream.may_write.set()
    await stream.run
    writer.cancel()
    assert stream.answers == answers(stream.messages)
    assert max(sizes) <= 8


@on_stage(queue_bytes=4_000)
async def test_streams_hold_half_of_the_bytes_of_the_queue(stage: Stage) -> None:
    """Without a writer, streams wait with their next message, and unary calls have room."""
    streams = [Stream(stage, 30, size=300) for _ in range(3)]
    await settle_long()
    calls, size = count_held(stage)
    assert 0 < calls <= 7
    assert size <= 2_000
    assert streams[0].starts > 0
    unary = stage.ask(b"unary" * 100)
    await settle()
    assert not unary.done()
    link = stage.attach(1)
    writer = asyncio.ensure_future(serve(link, []))
    await asyncio.gather(*(stream.run for stream in streams))
    writer.cancel()
    for stream in streams:
        assert stream.answers == answers(stream.messages)
    unary.cancel()
    await settle()
    assert count_held(stage) == (0, 0)


@on_stage()
async def test_messages_that_are_put_off_are_sent_again_first(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their order stays the same, and answers wait for earlier answers."""
    monkeypatch.setattr(write_stream, "_PAUSE_SECONDS", 0.05)
    link = stage.attach(1)
    stream = Stream(stage, 6)
    request, messages = await second_batch(link, stream)
    start = time.monotonic()
    # The first and the third of this batch are writes to another index, which has room.
    outcomes = outcomes_of(messages)
    for place in (1, 3, 4):
        outcomes[place] = WriteOutcome(Kind.PUT_OFF)
    reply(link, request, outcomes)
    request, messages = await next_batch(link)
    assert time.monotonic() - start >= 0.05
    assert messages == [stream.messages[place] for place in (2, 4, 5)]
    assert stream.answers == answers(stream.messages[:2])
    reply(link, request, outcomes_of(messages))
    await stream.run
    assert stream.answers == answers(stream.messages)
    assert count_held(stage) == (0, 0)


@on_stage()
async def test_a_cancelled_stream_releases_what_it_holds(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if messages wait, are with the writer, or were put off."""
    monkeypatch.setattr(write_stream, "_PAUSE_SECONDS", 100)
    link = stage.attach(1)
    waiting, put_off = Stream(stage, 9), Stream(stage, 9)
    requests = [*await packet(link), *await packet(link)]
    reply(link, requests[1], [WriteOutcome(Kind.PUT_OFF)])
    await settle_long()
    assert count_held(stage)[0] == 18
    for stream in (waiting, put_off):
        stream.run.cancel()
    await settle_long()
    assert count_held(stage) == (0, 0)
    (cancel,) = await packet(link)
    assert (cancel.op, cancel.id) == (Op.CANCEL, requests[0].id)


@on_stage()
async def test_a_message_that_cannot_be_parsed_ends_the_stream(stage: Stage) -> None:
    """The answers before it are written, and nothing behind it is sent."""
    link = stage.attach(1)
    stream = Stream(stage, 6)
    request, messages = await second_batch(link, stream)
    status = status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message="malformed")
    malformed = WriteOutcome(Kind.STATUS, status.SerializeToString())
    reply(link, request, [*outcomes_of(messages[:2]), malformed])
    with pytest.raises(RefusedError):
        await stream.run
    assert stream.answers == answers(stream.messages[:3])
    assert count_held(stage) == (0, 0)


@on_stage()
async def test_a_drained_stream_answers_what_it_has_read(stage: Stage) -> None:
    stream = Stream(stage, 100, window=5)
    await settle_long()
    stream.stream.drain()
    writer = asyncio.ensure_future(serve(stage.attach(1), []))
    with pytest.raises(UnavailableError, match="going down"):
        await stream.run
    writer.cancel()
    assert stream.answers == answers(stream.messages[:5])


@on_stage()
async def test_the_death_of_the_writer_is_the_answer_to_its_messages(stage: Stage) -> None:
    """The writes may have been made, so they are not sent again; later ones are made."""
    stage.pool._is_writer = True
    link = stage.attach(1)
    stream = Stream(stage, 4)
    await next_batch(link)
    link.close()
    await settle_long()
    writer = asyncio.ensure_future(serve(stage.attach(2), []))
    await stream.run
    writer.cancel()
    first = writes_pb2.WriteStreamResponse.FromString(stream.answers[0])
    assert first.error.code == code_pb2.UNAVAILABLE
    assert "may or may not have made this write" in first.error.message
    assert stream.answers[1:] == answers(stream.messages[1:])
    assert count_held(stage) == (0, 0)
