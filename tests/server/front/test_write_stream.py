"""WriteStream: many writes on one call, made in their order, with the results of unary calls."""

import asyncio
import itertools
import math
import queue
import time
from collections.abc import Iterable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import code_pb2, status_pb2

from divgrpc import Field
from divgrpc.errors import ConditionFailedError
from divgrpc.types import WriteResult
from divgrpc_client import Client, Delete, Upsert
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import filters_pb2, points_pb2, writes_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from divgrpc_protos.v1.writes_pb2 import (
    DeleteRequest,
    UpsertRequest,
    WriteStreamRequest,
    WriteStreamResponse,
)
from divgrpc_server.front.write_stream import WriteStream
from divgrpc_server.ipc.packets import Outcome, Reply
from reference.index import same_bytes
from support.checks.status_details import code_of_failure, details_of_status, failure
from support.data.served_index import place, random_points
from support.processes.both_clients import Stack
from support.processes.running_server import RunningServer
from support.requests.raw_calls import stream

ROWS, DIMS = 300, 10
POINTS = random_points(ROWS + 100, dims=DIMS, seed=11)
INVALID = grpc.StatusCode.INVALID_ARGUMENT
_NUMBERS = itertools.count()


@pytest.fixture
def names(server: RunningServer) -> tuple[str, str]:
    """Build two equal indexes into the server's folder."""
    names = (f"streamed-{next(_NUMBERS)}", f"streamed-{next(_NUMBERS)}")
    for name in names:
        attributes = {"price": np.arange(ROWS) / 4}
        place(server, name, POINTS[:ROWS], hash_family="cells", attributes=attributes)
    return names


def upsert(number: int, rows: int = 1, **fields: Any) -> UpsertRequest:  # noqa: ANN401
    """Return an upsert of points from `number` on."""
    vectors = encode_dense(POINTS[number % ROWS : number % ROWS + rows])
    return UpsertRequest(ids=range(number, number + rows), vectors=vectors, **fields)


def under_price(price: float) -> filters_pb2.Filter:
    value = filters_pb2.Value(number=price)
    test = filters_pb2.FieldCondition(attribute="price", range=filters_pb2.Range(lt=value))
    return filters_pb2.Filter(must=[filters_pb2.Condition(field=test)])


def some_writes() -> list[UpsertRequest | DeleteRequest]:
    """Return writes of every kind, some of which fail."""
    price = points_pb2.AttributeColumn(name="price", numbers=[7.0])
    unknown = points_pb2.AttributeColumn(name="weight", numbers=[7.0])
    return [
        upsert(ROWS, 3),
        upsert(5, attributes=[price], write_id="named"),
        upsert(6, attributes=[unknown]),
        DeleteRequest(ids=[ROWS + 1, 7, 9_999]),
        upsert(5, attributes=[price], write_id="named"),
        upsert(8, write_id="named"),
        UpsertRequest(ids=[12], attributes=[price], mode=writes_pb2.WRITE_MODE_UPDATE_ONLY),
        UpsertRequest(ids=[77_777], mode=writes_pb2.WRITE_MODE_UPDATE_ONLY),
        DeleteRequest(filter=under_price(2.0)),
        upsert(20, if_sequence=5),
        upsert(21, if_sequence=5),
        DeleteRequest(ids=[123_456]),
        DeleteRequest(),
        upsert(22, 2, payloads=[b"one"]),
        upsert(22, 40, payloads=[b"x" * 5_000] * 40),  # a large message
        upsert(23),
        DeleteRequest(ids=[23], write_id="a deletion"),
    ]


def messages(
    name: str, writes: Iterable[UpsertRequest | DeleteRequest]
) -> Iterator[WriteStreamRequest]:
    """Yield messages for writes to an index, with numbers from 100 on."""
    for number, write in enumerate(writes, 100):
        write.index = name
        if isinstance(write, UpsertRequest):
            yield WriteStreamRequest(correlation_id=number, upsert=write)
        else:
            yield WriteStreamRequest(correlation_id=number, delete=write)


def without_id(status: status_pb2.Status) -> tuple[object, ...]:
    details = details_of_status(grpc.StatusCode.UNKNOWN, status)
    return status.code, details[1:4], details.fields, details.retry_after


def unary_outcome(stub: DiverseIndexStub, write: UpsertRequest | DeleteRequest) -> object:
    """Make a write on a call of its own; return the bytes of the response, or the status."""
    try:
        if isinstance(write, UpsertRequest):
            return stub.Upsert(write, timeout=60).SerializeToString()
        return stub.Delete(write, timeout=60).SerializeToString()
    except grpc.RpcError as error:
        trailers: Any = error.trailing_metadata()
        details = dict(trailers)["grpc-status-details-bin"]
        return without_id(status_pb2.Status.FromString(details))


def test_a_stream_makes_the_writes_of_single_calls(
    stub: DiverseIndexStub, client: Client, names: tuple[str, str]
) -> None:
    """Results have the same bytes, errors the same details, and points are the same after it."""
    one, other = names
    expected: list[object] = []
    for write in some_writes():
        write.index = one
        expected.append(unary_outcome(stub, write))
    answers = list(stub.WriteStream(messages(other, some_writes()), timeout=60))
    assert [answer.correlation_id for answer in answers] == [*range(100, 100 + len(expected))]
    outcomes: list[object] = []
    for answer, write in zip(answers, some_writes(), strict=True):
        kind = answer.WhichOneof("outcome")
        if kind == "error":
            outcomes.append(without_id(answer.error))
        else:
            assert kind == ("upsert" if isinstance(write, UpsertRequest) else "delete")
            outcomes.append(getattr(answer, kind).SerializeToString())
    assert outcomes == expected
    assert sum(isinstance(outcome, tuple) for outcome in outcomes) == 6
    for options in ({"k": 9}, {"k": 5, "filter": Field("price") < 40}):
        arguments: Any = options
        results = [client.query(name, POINTS[:30], **arguments) for name in names]
        assert same_bytes(*results)
        assert results[0].sequence == results[1].sequence > 0
    pages = [list(client.scroll(name, with_vectors=True)) for name in names]
    for page, other_page in zip(*pages, strict=True):
        assert page.ids.tolist() == other_page.ids.tolist()
        assert page.attributes == other_page.attributes
        assert page.payloads == other_page.payloads


def test_more_messages_than_the_window_holds(
    stub: DiverseIndexStub, client: Client, names: tuple[str, str]
) -> None:
    """Writes are made in order: of several to one point, the last one stays."""
    count = 1_500
    writes = (upsert(ROWS + n % 7, payloads=[b"%d" % n]) for n in range(count))
    answers = list(stub.WriteStream(messages(names[0], writes), timeout=150))
    assert [answer.upsert.sequence for answer in answers] == [*range(1, count + 1)]
    payloads = client.get(names[0], [*range(ROWS, ROWS + 7)], with_payload=True).payloads
    assert {int(payload) for payload in payloads} == set(range(count - 7, count))


def test_one_stream_writes_to_several_indexes(
    stub: DiverseIndexStub, names: tuple[str, str]
) -> None:
    pairs = [next(messages(names[n % 2], [upsert(ROWS + n)])) for n in range(20)]
    pairs.append(next(messages("nobody", [upsert(1)])))
    pairs.append(next(messages("NO NAME", [upsert(1)])))
    pairs.append(WriteStreamRequest(correlation_id=7))
    answers = list(stub.WriteStream(iter(pairs), timeout=60))
    sequences = [answer.upsert.sequence for answer in answers[:20]]
    assert sequences == [n // 2 + 1 for n in range(20)]
    details = [details_of_status(INVALID, answer.error) for answer in answers[20:]]
    assert [d.reason for d in details] == ["INDEX_NOT_FOUND", *["INVALID_ARGUMENT"] * 2]
    assert [d.fields for d in details] == [(), ("index",), ("write",)]
    assert answers[-1].correlation_id == 7


def test_a_message_that_cannot_be_parsed_ends_a_stream(
    channel: grpc.Channel, client: Client, names: tuple[str, str]
) -> None:
    """The writes before it are made and answered, and those behind it are not made."""
    parts = [
        m.SerializeToString() for m in messages(names[0], [upsert(ROWS + n) for n in range(8)])
    ]
    answers = stream(channel, "WriteStream", iter([*parts[:4], b"\xff", *parts[4:]]))
    for number in range(100, 104):
        assert writes_pb2.WriteStreamResponse.FromString(next(answers)).correlation_id == number
    details = failure(next, answers)
    assert (details.code, details.reason) == (INVALID, "MALFORMED_MESSAGE")
    assert client.count(names[0]) == ROWS + 4
    assert client.upsert(names[0], [1], POINTS[:1]).sequence == 5


class Steps:
    """A stream whose messages are sent one by one, and which stays open."""

    def __init__(self, stub: DiverseIndexStub, seconds: float) -> None:
        self._queue: queue.SimpleQueue[WriteStreamRequest | None] = queue.SimpleQueue()
        self.call = stub.WriteStream(iter(self._queue.get, None), timeout=seconds)

    def send(self, name: str, write: UpsertRequest) -> None:
        """Send a write to an index."""
        self._queue.put(next(messages(name, [write])))

    def end(self) -> None:
        """End the requests, so that the thread that sends them ends."""
        self._queue.put(None)


def test_a_cancelled_stream_leaves_a_server_that_goes_on(
    stub: DiverseIndexStub, client: Client, names: tuple[str, str]
) -> None:
    """Each write that was sent is made or not, as a whole, and other writes go on."""
    steps = Steps(stub, 60)
    steps.send(names[0], upsert(ROWS, 5))
    assert next(steps.call).upsert.rows == 5
    for number in range(40):
        steps.send(names[0], upsert(1_000 + 10 * number, 10))
    steps.call.cancel()
    steps.end()
    sequence = client.upsert(names[0], [1], POINTS[:1]).sequence
    count = client.count(names[0]) - ROWS - 5
    assert count % 10 == 0
    assert sequence == count // 10 + 2


def test_a_stream_ends_at_its_deadline(
    stub: DiverseIndexStub, client: Client, names: tuple[str, str]
) -> None:
    # The first write starts the writer, which may take longer than the stream may last.
    client.upsert(names[1], [1], POINTS[:1])
    start = time.monotonic()
    steps = Steps(stub, 2)
    steps.send(names[0], upsert(ROWS))
    assert next(steps.call).upsert.sequence == 1
    assert code_of_failure(next, steps.call) == grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - start < 20
    steps.end()
    assert client.upsert(names[0], [1], POINTS[:1]).sequence == 2


# The clients.


@pytest.fixture(params=["sync", "aio"])
def ask(request: pytest.FixtureRequest, server: RunningServer) -> Stack:
    return Stack(server.target, is_async=request.param == "aio")


def test_a_client_gets_a_result_for_each_write(
    ask: Stack, client: Client, names: tuple[str, str]
) -> None:
    prices = {"price": [3.5, None]}
    writes = [
        Upsert([1, ROWS], POINTS[:2], attributes=prices, payloads=["a", None]),
        Upsert(5, attributes={"price": [9]}, mode="update_only"),
        Delete([2, 3, 9_999]),
        Delete(filter=Field("price") > 70, if_sequence=3),
        Delete([]),
    ]
    expected = [
        client.upsert(names[0], [1, ROWS], POINTS[:2], attributes=prices, payloads=["a", None]),
        client.upsert(names[0], 5, attributes={"price": [9]}, mode="update_only"),
        client.delete(names[0], [2, 3, 9_999]),
        client.delete(names[0], filter=Field("price") > 70, if_sequence=3),
    ]
    assert ask("write_stream", names[1], writes) == [*expected, WriteResult(1, 4, 0)]
    results = [client.query(name, POINTS[:9], k=6) for name in names]
    assert same_bytes(*results)


def test_a_stream_may_be_sent_again(ask: Stack, client: Client, names: tuple[str, str]) -> None:
    """Writes with names are made once."""
    writes = [Upsert(ROWS + n, POINTS[n : n + 1], write_id=f"write {n}") for n in range(30)]
    first = ask("write_stream", names[0], writes[:20])
    assert ask("write_stream", names[0], writes)[:20] == first
    assert client.count(names[0]) == ROWS + 30
    assert client.get_index(names[0]).writes.sequence == 30  # type: ignore[union-attr]  # written


def test_an_error_comes_in_the_place_of_its_write(
    ask: Stack, client: Client, names: tuple[str, str]
) -> None:
    """The stream of a client then ends. Later writes that were sent may have been made."""
    writes = [
        Upsert(ROWS, POINTS[:1]),
        Upsert(77_777, mode="update_only"),
        *(Delete(n) for n in range(3)),
    ]
    results: list[WriteResult] = []
    with pytest.raises(ConditionFailedError, match="there is no point with id 77777") as fault:
        ask("write_stream", names[0], writes, on_result=results.append)
    assert fault.value.field == "ids"
    assert results == [WriteResult(1, 1, 1)]
    assert client.get(names[0], [ROWS, 77_777]).ids.tolist() == [ROWS]
    assert client.count(names[0]) in range(ROWS + 1 - 3, ROWS + 2)


class _BrokenWriter:
    """Stands for a writer whose reply is `payload`."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.released = 0

    async def wait_for_room(self, _: int) -> None:
        """Have room at once."""

    def take(self, size: int) -> None:
        """Take room."""
        self.released -= size

    def release(self, size: int, **_: bool) -> None:
        """Release room."""
        self.released += size

    def submit(self, *arguments: Any) -> None:  # noqa: ANN401  # those of `Writer`
        """Reply soon."""
        deliver, reply = arguments[-1], Reply(0, Outcome.ANSWER, self._payload)
        asyncio.get_running_loop().call_soon(deliver, reply)


@pytest.mark.parametrize(
    "payload", [b"", b"\x00", b"\x07\x00\x00\x00\x00", b"\x00\xff\x00\x00\x00a"]
)
def test_a_reply_that_cannot_be_read_leaves_no_write_without_an_answer(payload: bytes) -> None:
    requests = [WriteStreamRequest(correlation_id=number) for number in (1, 2)]
    unread, answers = [request.SerializeToString() for request in requests], []

    async def read() -> bytes | None:
        return unread.pop(0) if unread else None

    async def write(answer: bytes) -> None:
        answers.append(WriteStreamResponse.FromString(answer))

    writer: Any = _BrokenWriter(payload)
    settings: Any = {"window": 8, "deadline": math.inf, "tag": "tag", "on_message": id}
    asyncio.run(WriteStream(read, write, writer, **settings).run())
    assert [answer.correlation_id for answer in answers] == [1, 2]
    assert {answer.error.code for answer in answers} == {code_pb2.UNAVAILABLE}
    assert writer.released == 0
