"""What a front reads from the bytes of a request: its subject, its index and its fingerprint."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc_protos.arrays import Csr, encode_csr, encode_dense
from divgrpc_protos.v1 import (
    evaluate_pb2,
    index_pb2,
    predict_pb2,
    query_pb2,
    vectors_pb2,
    writes_pb2,
)
from divgrpc_server.codec import subjects
from divgrpc_server.codec.subjects import (
    NO_SUBJECT,
    IncomingMessage,
    StreamSubject,
    Subject,
    fingerprint,
    index_of,
    partial_remedy,
)
from divgrpc_server.ipc.packets import Op
from divgrpc_server.security import requests

METHODS = [
    "Query",
    "PredictLabels",
    "Evaluate",
    "EvaluateLabels",
    "GetIndex",
    "DeleteIndex",
    "Delete",
]


def read(method: str, payload: bytes, response: bytes | None = None) -> Subject:
    return subjects.read(IncomingMessage(method, payload), response)


def test_a_message_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate and the access line read the same object; bytes that are no message are None."""
    payload = query_pb2.QueryRequest(index="images").SerializeToString()
    received = IncomingMessage("Query", payload)
    assert requests.read(received).index == "images"
    monkeypatch.setattr(subjects, "_KINDS", {})
    assert subjects.read(received).name == "images"
    assert IncomingMessage("Query", payload).message is None
    monkeypatch.undo()
    broken = IncomingMessage("Query", b"\xff")
    assert (broken.message, requests.read(broken), subjects.read(broken)) == (
        None,
        requests.Request(),
        NO_SUBJECT,
    )


def vectors(rows: int, sparse: bool) -> vectors_pb2.Vectors:
    if not sparse:
        return encode_dense(np.ones((rows, 2), np.float32))
    indptr = np.arange(rows + 1)
    return encode_csr(Csr(indptr, np.zeros(rows, np.uint32), np.ones(rows, np.float32), 2))


@given(rows=st.integers(0, 50), k=st.integers(0, 99), sparse=st.booleans())
def test_the_subject_of_a_query_has_index_rows_and_k(rows: int, k: int, sparse: bool) -> None:
    request = query_pb2.QueryRequest(index="images", queries=vectors(rows, sparse), k=k)
    assert read("Query", request.SerializeToString()) == ("images", rows, k)


def test_a_query_that_sets_no_k_gets_the_default() -> None:
    """If a query does not set `k`, 10 is logged; if `k` or `top_k` is 0, 0 is logged."""
    rows = vectors(2, sparse=False)
    unset = query_pb2.QueryRequest(index="images", queries=rows).SerializeToString()
    assert read("Query", unset) == ("images", 2, 10)
    zero = query_pb2.QueryRequest(index="images", queries=rows, k=0).SerializeToString()
    assert read("Query", zero) == ("images", 2, 0)
    labels = predict_pb2.PredictLabelsRequest(index="images", documents=rows, top_k=0)
    assert read("PredictLabels", labels.SerializeToString()).k == 0


def test_subjects_of_other_methods() -> None:
    rows = vectors(4, sparse=False)
    predict_request = predict_pb2.PredictLabelsRequest(index="papers", documents=rows)
    assert read("PredictLabels", predict_request.SerializeToString()) == ("papers", 4, 5)
    evaluate_request = evaluate_pb2.EvaluateRequest(index="papers", queries=rows)
    assert read("Evaluate", evaluate_request.SerializeToString()) == ("papers", 4, None)
    get_index_request = index_pb2.GetIndexRequest(index="papers")
    assert read("GetIndex", get_index_request.SerializeToString()) == ("papers", None, None)
    assert read("ListIndexes", b"") is NO_SUBJECT


def test_the_rows_of_a_write_are_its_points() -> None:
    """A deletion has the points that were deleted or, if it failed, its ids."""
    for ids in ({"ids": [1, 2]}, {"string_ids": ["a", "b"]}):
        upsert = writes_pb2.UpsertRequest(index="shoes", **ids).SerializeToString()
        assert read("Upsert", upsert) == ("shoes", 2, None)
        delete = writes_pb2.DeleteRequest(index="shoes", **ids).SerializeToString()
        assert read("Delete", delete) == ("shoes", 2, None)
        for rows in (0, 7):
            response = writes_pb2.DeleteResponse(rows=rows).SerializeToString()
            assert read("Delete", delete, response) == ("shoes", rows, None)
    by_filter = writes_pb2.DeleteRequest(index="shoes").SerializeToString()
    assert read("Delete", by_filter) == ("shoes", None, None)


INDEXES, COUNTS = st.sampled_from(["images", "papers"]), st.sampled_from([None, 0, 5, 10])


@given(st.lists(st.tuples(INDEXES, st.integers(0, 5), COUNTS), max_size=6))
def test_the_subject_of_a_stream_combines_its_queries(
    messages: list[tuple[str, int, int | None]],
) -> None:
    """It has the sum of rows, "*" for several indexes, and `k` if all queries agree on it."""
    stream = StreamSubject("QueryStream")
    for index, rows, k in messages:
        query = query_pb2.QueryRequest(index=index, queries=vectors(rows, sparse=False), k=k)
        stream.add(query_pb2.QueryStreamRequest(query=query).SerializeToString())
        stream.add(b"\xff")  # a malformed message, which does not count
    indexes = {index for index, _, _ in messages}
    numbers = {10 if k is None else k for _, _, k in messages}
    expected = (
        "*" if len(indexes) > 1 else "".join(indexes),
        sum(rows for _, rows, _ in messages),
        numbers.pop() if len(numbers) == 1 else None,
    )
    assert stream.subject == expected


@given(st.lists(st.tuples(INDEXES, st.integers(0, 5), st.booleans()), max_size=6))
def test_the_subject_of_a_stream_combines_its_writes(writes: list[tuple[str, int, bool]]) -> None:
    stream = StreamSubject("WriteStream")
    for index, rows, is_deletion in writes:
        message = writes_pb2.WriteStreamRequest()
        write = message.delete if is_deletion else message.upsert
        write.index = index
        write.ids.extend(range(rows))
        stream.add(message.SerializeToString())
        stream.add(b"\xff")
    indexes = {index for index, _, _ in writes}
    name = "*" if len(indexes) > 1 else "".join(indexes)
    assert stream.subject == (name, sum(rows for _, rows, _ in writes), None)


@pytest.mark.parametrize("method", METHODS)
@given(st.binary(max_size=200))
def test_any_bytes_have_a_subject(method: str, request: bytes) -> None:
    """Reading raises nothing, whatever the bytes are."""
    assert isinstance(read(method, request), Subject)


def query(k: int) -> query_pb2.QueryRequest:
    """Return a query for the index `images`."""
    return query_pb2.QueryRequest(index="images", k=k)


def stream_message(number: int, k: int) -> bytes:
    """Return a QueryStream message with the query that `query` returns."""
    message = query_pb2.QueryStreamRequest(correlation_id=number, query=query(k))
    return message.SerializeToString()


def test_a_fingerprint_does_not_depend_on_the_correlation_id() -> None:
    """A query has one fingerprint on all streams, under all correlation ids, and in Query calls."""
    expected = fingerprint(Op.QUERY, query(3).SerializeToString())
    assert fingerprint(Op.STREAM, stream_message(1, 3)) == expected
    assert fingerprint(Op.STREAM, stream_message(2, 3)) == expected
    assert fingerprint(Op.STREAM, stream_message(1, 4)) != expected
    assert fingerprint(Op.QUERY, query(4).SerializeToString()) != expected


def test_the_index_of_a_query_is_found() -> None:
    """Queries, queries of streams and predictions name an index; malformed bytes name none."""
    prediction = predict_pb2.PredictLabelsRequest(index="papers", top_k=3).SerializeToString()
    assert index_of(Op.QUERY, query(3).SerializeToString()) == "images"
    assert index_of(Op.STREAM, stream_message(1, 3)) == "images"
    assert index_of(Op.PREDICT, prediction) == "papers"
    for op in (Op.QUERY, Op.STREAM, Op.PREDICT):
        assert index_of(op, b"\xff") == ""
    assert fingerprint(Op.STREAM, b"\xff") == fingerprint(Op.QUERY, b"\xff")
    # The messages of two methods may have the same bytes.
    assert fingerprint(Op.COUNT, b"") != fingerprint(Op.SCROLL, b"")


def test_a_query_that_names_points_gets_a_remedy_for_missing_shards() -> None:
    """In streams too. The other requests need none, or are no queries."""
    query = query_pb2.QueryRequest(allow_partial=True, already_shown_string_ids=["a"])
    message = query_pb2.QueryStreamRequest(query=query).SerializeToString()
    assert "with already_shown, " in partial_remedy(Op.STREAM, message)
    payload = query.SerializeToString()
    assert partial_remedy(Op.QUERY, payload) == partial_remedy(Op.STREAM, message)
    plain = query_pb2.QueryRequest(allow_partial=True).SerializeToString()
    whole = query_pb2.QueryRequest(like_ids=[1]).SerializeToString()
    for op, request in (
        (Op.QUERY, plain),
        (Op.QUERY, whole),
        (Op.QUERY, b"\xff"),
        (Op.GET, payload),
    ):
        assert partial_remedy(op, request) == ""
