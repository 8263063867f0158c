"""QueryStream: many queries on one call, answered as they are ready."""

import queue
from collections.abc import Iterator

import grpc
import numpy as np

from divgrpc.types import FloatArray
from divgrpc_client import Client
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import query_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.checks.status_details import details_of_status
from support.data.served_index import Served, random_points
from support.requests.raw_calls import stream


def question(number: int, name: str, rows: FloatArray) -> query_pb2.QueryStreamRequest:
    query = query_pb2.QueryRequest(index=name, queries=encode_dense(np.atleast_2d(rows)))
    return query_pb2.QueryStreamRequest(correlation_id=number, query=query)


def test_a_stream_returns_the_results_of_single_calls(client: Client, served_index: Served) -> None:
    results = list(client.query_stream(served_index.name, served_index.queries, in_flight=16))
    for query, result in zip(served_index.queries, results, strict=True):
        assert result.ids.tobytes() == client.query(served_index.name, query).ids.tobytes()


def test_more_messages_than_the_window_holds(stub: DiverseIndexStub, served_index: Served) -> None:
    count = 2_000
    messages = (question(n, served_index.name, served_index.queries[n % 64]) for n in range(count))
    answers = list(stub.QueryStream(messages, timeout=150))
    assert sorted(answer.correlation_id for answer in answers) == list(range(count))
    errors = [answer.error for answer in answers if not answer.HasField("response")]
    assert errors == []


def test_a_bad_query_does_not_end_a_stream(stub: DiverseIndexStub, served_index: Served) -> None:
    """The stream returns the query's error with all details, and answers the other queries."""
    good = question(1, served_index.name, served_index.queries[0])
    bad = question(2, "nobody", served_index.queries[0])
    wrong = question(3, served_index.name, served_index.queries[0])
    wrong.query.k = 0
    answers = {a.correlation_id: a for a in stub.QueryStream(iter([bad, wrong, good]), timeout=10)}
    assert len(answers[1].response.ids) == 10
    for number, code, reason in (
        (2, grpc.StatusCode.NOT_FOUND, "INDEX_NOT_FOUND"),
        (3, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
    ):
        details = details_of_status(code, answers[number].error)
        assert answers[number].error.code == code.value[0]
        assert details.reason == reason
        assert details.metadata["request_id"]


def test_large_and_small_messages_share_a_stream(
    stub: DiverseIndexStub, client: Client, served_index: Served
) -> None:
    batch = random_points(8_000, seed=8)
    messages = [question(0, served_index.name, batch)]
    messages += [question(n, served_index.name, served_index.queries[n]) for n in range(1, 33)]
    answers = list(stub.QueryStream(iter(messages), timeout=60))
    order = [answer.correlation_id for answer in answers]
    assert sorted(order) == list(range(33))
    assert order[-1] == 0
    whole = client.query(served_index.name, batch[:4_000], timeout=60)
    assert list(answers[-1].response.ids)[:40_000] == whole.ids.ravel().tolist()


def test_a_cancelled_stream_does_not_affect_other_calls(
    channel: grpc.Channel, client: Client, served_index: Served
) -> None:
    """Cancelling a stream ends its running queries, and calls outside it are answered."""
    steps: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def forever() -> Iterator[bytes]:
        while True:
            yield steps.get()

    call = stream(channel, "QueryStream", forever())
    for number in range(3):
        batch = random_points(5_000, seed=number)
        steps.put(question(number, served_index.name, batch).SerializeToString())
    steps.put(question(9, served_index.name, served_index.queries[0]).SerializeToString())
    assert query_pb2.QueryStreamResponse.FromString(next(call)).correlation_id == 9
    call.cancel()
    steps.put(b"")
    assert client.query(served_index.name, served_index.queries[0]).counts[0] == 10
