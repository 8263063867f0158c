"""The subject of a call (index, rows, k) for the access log, read from the request's bytes."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc_protos.arrays import Csr, encode_csr, encode_dense
from divgrpc_protos.v1 import evaluate_pb2, index_pb2, predict_pb2, query_pb2, vectors_pb2
from divgrpc_server.codec.subjects import StreamSubject, read
from divgrpc_server.ipc.subject_lines import NO_SUBJECT, Subject, subject

METHODS = ["Query", "PredictLabels", "Evaluate", "EvaluateLabels", "GetIndex", "DeleteIndex"]


def told(found: Subject) -> dict[str, object]:
    """Return the fields of a subject, after checking that its two formats agree."""
    parsed: dict[str, object] = json.loads("{" + found.in_json.removesuffix(", ") + "}")
    assert found.for_people == "".join(f" {name}={value}" for name, value in parsed.items())
    return parsed


def vectors(rows: int, sparse: bool) -> vectors_pb2.Vectors:
    if not sparse:
        return encode_dense(np.ones((rows, 2), np.float32))
    indptr = np.arange(rows + 1)
    return encode_csr(Csr(indptr, np.zeros(rows, np.uint32), np.ones(rows, np.float32), 2))


@given(rows=st.integers(0, 50), k=st.integers(0, 99), sparse=st.booleans())
def test_the_subject_of_a_query_has_index_rows_and_k(rows: int, k: int, sparse: bool) -> None:
    request = query_pb2.QueryRequest(index="images", queries=vectors(rows, sparse), k=k)
    found = read("Query", request.SerializeToString())
    assert told(found) == {"index": "images", "rows": rows, "k": k}


def test_a_query_that_sets_no_k_gets_the_default() -> None:
    """If a query does not set `k`, 10 is logged; if `k` or `top_k` is 0, 0 is logged."""
    rows = vectors(2, sparse=False)
    unset = query_pb2.QueryRequest(index="images", queries=rows).SerializeToString()
    assert told(read("Query", unset)) == {"index": "images", "rows": 2, "k": 10}
    zero = query_pb2.QueryRequest(index="images", queries=rows, k=0).SerializeToString()
    assert told(read("Query", zero)) == {"index": "images", "rows": 2, "k": 0}
    labels = predict_pb2.PredictLabelsRequest(index="images", documents=rows, top_k=0)
    assert told(read("PredictLabels", labels.SerializeToString()))["k"] == 0


def test_subjects_of_other_methods() -> None:
    rows = vectors(4, sparse=False)
    predicted = predict_pb2.PredictLabelsRequest(index="papers", documents=rows)
    found = read("PredictLabels", predicted.SerializeToString())
    assert told(found) == {"index": "papers", "rows": 4, "k": 5}
    evaluated = evaluate_pb2.EvaluateRequest(index="papers", queries=rows)
    assert told(read("Evaluate", evaluated.SerializeToString())) == {"index": "papers", "rows": 4}
    asked = index_pb2.GetIndexRequest(index="papers")
    assert told(read("GetIndex", asked.SerializeToString())) == {"index": "papers"}
    assert read("ListIndexes", b"") is NO_SUBJECT


INDEXES, COUNTS = st.sampled_from(["images", "papers"]), st.sampled_from([None, 0, 5, 10])


@given(st.lists(st.tuples(INDEXES, st.integers(0, 5), COUNTS), max_size=6))
def test_the_subject_of_a_stream_combines_its_queries(
    messages: list[tuple[str, int, int | None]],
) -> None:
    """It has the sum of rows, "*" for several indexes, and `k` if all queries agree on it."""
    stream = StreamSubject()
    for index, rows, k in messages:
        query = query_pb2.QueryRequest(index=index, queries=vectors(rows, sparse=False), k=k)
        stream.add(query_pb2.QueryStreamRequest(query=query).SerializeToString())
        stream.add(b"\xff")  # a malformed message, which does not count
    expected: dict[str, object] = {}
    if messages:
        indexes = {index for index, _, _ in messages}
        expected["index"] = "*" if len(indexes) > 1 else indexes.pop()
        expected["rows"] = sum(rows for _, rows, _ in messages)
    if len(numbers := {10 if k is None else k for _, _, k in messages}) == 1:
        expected["k"] = numbers.pop()
    assert told(stream.subject) == expected


@pytest.mark.parametrize("method", METHODS)
@given(st.binary(max_size=200))
def test_any_bytes_have_a_subject(method: str, request: bytes) -> None:
    """A malformed request has an empty subject, and its log line is still one line of JSON."""
    found = read(method, request)
    assert "\n" not in found.in_json + found.for_people
    told(found)


@given(st.text(max_size=80))
def test_a_name_cannot_forge_a_line(name: str) -> None:
    """A name is written to the log only if it is a valid index name."""
    found = subject(name, 1)
    assert found is NO_SUBJECT or told(found) == {"index": name, "rows": 1}


@pytest.mark.parametrize("name", ['x", "code": "OK', "x\nx", "x" * 64, ""])
def test_an_invalid_index_name_is_not_logged(name: str) -> None:
    assert subject(name, 1, 1) is NO_SUBJECT
