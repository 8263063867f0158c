"""Invalid requests: the status of each error, and the field that it names."""

import math
from typing import Any

import grpc
import numpy as np
import pytest

from divgrpc.errors import InvalidArgumentError, UnfitIndexError
from divgrpc.parameters import LIMITS
from divgrpc.types import Mode
from divgrpc_client import Client
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import (
    diagnose_pb2,
    evaluate_labels_pb2,
    evaluate_pb2,
    predict_pb2,
    query_pb2,
    vectors_pb2,
)
from divgrpc_protos.v1.diverse_index_pb2 import DESCRIPTOR
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.checks.refusals import cases_of, failing, refused
from support.checks.status_details import Details, code_of_failure, failure
from support.data import labelled_documents
from support.data.served_index import DIMS, Served, place, random_points
from support.processes.running_server import RunningServer
from support.requests.raw_calls import stream, unary

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
ONE_ROW = encode_dense(np.ones((1, DIMS), np.float32))
# The points of an index with four labels, and two documents to label.
X = np.eye(5, dtype=np.float32)[np.arange(30) % 5]
TWO = X[:2]
FACTORS, MAP = np.ones((4, 2), np.float32), np.ones((5, 2), np.float32)


@pytest.fixture(scope="module", autouse=True)
def indexes(server: RunningServer, served_index: Served, evaluated_name: str) -> None:
    """Build the indexes that requests name. Three of them lack labels, a label model or both."""
    assert (served_index.name, evaluated_name) == ("served", "evaluated")
    labels = np.eye(4)[np.arange(30) % 4]
    place(server, "both", X, labels=labels, label_model=(FACTORS, MAP))
    place(server, "no-model", X, labels=labels)
    place(server, "no-sets", X, label_model=(FACTORS, MAP))
    place(server, "no-labels", X)
    documents = labelled_documents.documents()
    place(server, "documents", documents, **labelled_documents.everything())


def dense(**fields: Any) -> vectors_pb2.Vectors:  # noqa: ANN401  # a message's own types
    """Return a dense matrix with one row of ones; `fields` replace fields of the message."""
    matrix_fields = {"rows": 1, "cols": DIMS, "data": np.ones(DIMS, np.float32).tobytes(), **fields}
    return vectors_pb2.Vectors(dense=vectors_pb2.DenseMatrix(**matrix_fields))


# For each method, the message type and the fields of a valid request.
REQUESTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Diagnose": (diagnose_pb2.DiagnoseRequest, {"index": "served"}),
    "Query": (query_pb2.QueryRequest, {"index": "served", "queries": ONE_ROW}),
    "PredictLabels": (
        predict_pb2.PredictLabelsRequest,
        {"index": "both", "documents": encode_dense(TWO)},
    ),
    "Evaluate": (
        evaluate_pb2.EvaluateRequest,
        {
            "index": "evaluated",
            "queries": encode_dense(np.ones((2, DIMS))),
            "categories": [0, 1],
            "selectors": [query_pb2.SELECTOR_GREEDY],
            "folds": 2,
        },
    ),
    "EvaluateLabels": (
        evaluate_labels_pb2.EvaluateLabelsRequest,
        {
            "index": "documents",
            "documents": encode_dense(np.ones((2, labelled_documents.FEATURES))),
            "labels": {
                "label_count": labelled_documents.LABELS,
                "offsets": [0, 1, 3],
                "ids": [3, 0, 129],
            },
            "selectors": [query_pb2.SELECTOR_GREEDY],
            "folds": 2,
        },
    ),
}


def refusal(stub: DiverseIndexStub, method: str = "Query", **fields: Any) -> Details:  # noqa: ANN401  # a message's types
    """Return the details of a call that must fail; `fields` replace fields of a valid request."""
    kind, right = REQUESTS[method]
    request, call = kind(**right | fields), getattr(stub, method)
    if method.startswith(("Diagnose", "Evaluate")):
        return failure(list, call(request, timeout=30))
    return failure(call, request, timeout=30)


QUERIES = [
    *cases_of(
        k=(0, 10_001),
        diversity=(-0.01, 1.01, math.nan),
        lose_at_most=(-0.01, 1.01, math.nan),
        candidates_limit=(9,),
        hash_limit=(9,),
        n_probes=(0, 2**31),
        epsilon=(0.0,),
        max_distance=(-1.0, math.inf),
        **dict.fromkeys(("selector", "variant", "search", "sampling", "rounding"), (99,)),
        index=("", "../x", "x" * 300, "a\0b"),
        queries=(
            *(vectors_pb2.Vectors(), dense(rows=0, data=b""), encode_dense(np.ones((1, DIMS + 1)))),
            *(encode_dense(np.full((1, DIMS), value)) for value in (0, np.nan, np.inf)),
            encode_dense(np.ones((10_001, DIMS), np.float32)),
        ),
    ),
    ({"diversity_auto": True, "diversity": 0.3}, "diversity_auto"),
    ({"diversity_auto": True, "lose_at_most": 0.1}, "diversity_auto"),
    ({"diversity_auto": True, "selector": query_pb2.SELECTOR_NEAREST}, "diversity_auto"),
    ({"lose_at_most": 0.1, "diversity": 0.3}, "lose_at_most"),
    ({"lose_at_most": 0.1, "selector": query_pb2.SELECTOR_NEAREST}, "lose_at_most"),
    ({"lose_at_most": 0.1, "variant": query_pb2.VARIANT_PRINTED}, "lose_at_most"),
    ({"epsilon": 1.0, "hash_limit": 100}, "epsilon"),
    ({"queries": dense(cols=DIMS + 1)}, "queries.dense.data"),
    ({"queries": dense(data=b"short")}, "queries.dense.data"),
    ({"queries": dense(rows=2**32 - 1, cols=2**32 - 1)}, "queries.dense.data"),
    ({"queries": dense(values=[1.0] * DIMS)}, "queries.dense.values"),
    ({"queries": dense(data=b"", values=[1.0])}, "queries.dense.values"),
    ({"queries": dense(dtype=99)}, "queries.dense.dtype"),
]
PREDICTIONS = [
    *cases_of(
        top_k=(0, LIMITS["k_max"] + 1),
        threshold=(math.nan,),
        diversity=(1.01,),
        **dict.fromkeys(("selector", "search", "mode", "vote"), (99,)),
        neighbours=(0, LIMITS["neighbours_max"] + 1),
        hash_limit=(4,),
        candidates_limit=(4,),
        n_probes=(0, 2**31),
        index=("../both",),
        documents=(
            *(None, encode_dense(TWO[:0]), encode_dense(np.ones((1, 6)))),
            *(encode_dense(TWO * np.nan), encode_dense(TWO * 0)),
            encode_dense(np.ones((10_001, 5), np.float16)),
        ),
    ),
    ({"documents": {"dense": {"rows": 1, "cols": 5}}}, "documents.dense.data"),
]
AXES: dict[str, Any] = {
    "diversities": ([1.5],),
    "searches": ([77],),
    "n_probes": ([{"n_probes": 0}], [{}, {"n_probes": 2**31}]),
    "groups": ([4], [1, 2, 3]),
    "folds": (3, 1),
    "index": ("NO",),
}
EVALUATIONS = [
    *cases_of(
        **AXES,
        categories=(None, [0, 1, 2], [0, 9], [0, -1]),
        ks=([0],),
        selectors=([99], [0]),
        variants=([55],),
        roundings=([55],),
        limits=([{"hash_limit": 3}],),
        samplings=([9], [0]),
        epsilons=([{"epsilon": 0}], [{}, {"epsilon": math.nan}]),
        queries=(encode_dense(np.ones((2, DIMS + 1))), encode_dense(np.zeros((2, DIMS)))),
    ),
    ({"relevant": [{"ids": [3]}, {"ids": [6]}]}, "relevant"),
    ({"categories": None, "relevant": [{"ids": [3]}]}, "relevant"),
    ({"categories": None, "relevant": [{"ids": [3]}, {}]}, "relevant"),
    ({"categories": None, "relevant": [{"ids": [3]}, {"ids": [4]}]}, "relevant"),
    ({"selectors": []}, "grid"),
    ({"diversities": [0.5] * 1001}, "grid"),
    ({"epsilons": [{"epsilon": 1}], "limits": [{"hash_limit": 60}]}, "epsilons"),
    ({"groups": [5, 5], "set_default": True}, "groups"),
    ({"set_default": True, "n_probes": [{"n_probes": 3}]}, "set_default"),
    ({"set_default": True, "folds": 0}, "set_default"),
    ({"set_default": True, "ks": [2, 3]}, "set_default"),
    ({"categories": [0], "queries": encode_dense(np.zeros((0, DIMS)))}, "queries"),
]
LABEL_EVALUATIONS = [
    *cases_of(
        **AXES,
        top_ks=([0],),
        thresholds=([{"threshold": np.nan}],),
        modes=([99], [0]),
        vote=(9,),
        neighbours=(0,),
        limits=([{"hash_limit": 1}],),
        documents=(
            *(None, encode_dense(np.ones((2, labelled_documents.FEATURES + 1)))),
            *(encode_dense(np.zeros((rows, labelled_documents.FEATURES))) for rows in (0, 2)),
        ),
    ),
    ({"labels": {}}, "labels.offsets"),
    ({"labels": {"label_count": 130, "offsets": [0, 1], "ids": [3]}}, "labels.offsets"),
    ({"labels": {"label_count": 130, "offsets": [0, 1, 3], "ids": [3]}}, "labels.offsets"),
    ({"labels": {"label_count": 130, "offsets": [0, 1, 2], "ids": [3, 130]}}, "labels.ids"),
    ({"labels": {"label_count": 130, "offsets": [0, 0, 0]}}, "labels"),
    ({"labels": {"label_count": 131, "offsets": [0, 1, 2], "ids": [3, 4]}}, "labels"),
    ({"selectors": []}, "grid"),
    ({"diversities": [0.5] * 1001}, "grid"),
    ({"set_default": True, "folds": 0}, "set_default"),
    ({"set_default": True}, "set_default"),
    ({"set_default": True, "thresholds": [{"threshold": 0}], "top_ks": [2, 3]}, "set_default"),
    ({"documents": {"dense": {"rows": 2, "cols": 3}}}, "documents.dense.data"),
]
DIAGNOSES: list[tuple[dict[str, Any], str]] = [
    ({"index": "../x"}, "index"),
    ({"sample": 0}, "sample"),
    ({"sample": 10_001}, "sample"),
    ({"attributes": ["absent"]}, "attributes"),
    ({"attributes": ["a"] * 65}, "attributes"),
    ({"filter": {"must": [{}]}}, "filter"),
    ({"filter": {"must": [{"field": {"attribute": "absent", "exists": True}}]}}, "filter"),
    ({"filter": {"must": [{"has_id": {"ids": [-7]}}]}}, "filter"),
]
WRONG: dict[str, list[Any]] = {
    "Diagnose": DIAGNOSES,
    "Query": QUERIES,
    "PredictLabels": PREDICTIONS,
    "Evaluate": EVALUATIONS,
    "EvaluateLabels": LABEL_EVALUATIONS,
}


@pytest.mark.parametrize(
    ("method", "fields", "field"),
    [(method, *case) for method, cases in WRONG.items() for case in cases],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_request_names_its_field(
    stub: DiverseIndexStub, method: str, fields: dict[str, Any], field: str
) -> None:
    """INVALID_ARGUMENT comes before any event, and names the field as the .proto files spell it."""
    details = refusal(stub, method, **fields)
    assert (details.code, details.reason) == (INVALID, "INVALID_ARGUMENT")
    assert details.fields == (field,)
    assert details.domain == "divgrpc"
    assert details.metadata["request_id"]
    assert details.retry_after is None


@pytest.mark.parametrize("option", [{"diversity": 0.3}, {"lose_at_most": 0.1}])
def test_contradicting_diversities_are_refused(
    stub: DiverseIndexStub, option: dict[str, Any]
) -> None:
    """The message of the error uses the field names of the request."""
    sentence = "diversity, diversity_auto and lose_at_most are three ways to set the dial"
    assert sentence in refusal(stub, diversity_auto=True, **option).message


def test_an_answer_too_large_for_a_message(stub: DiverseIndexStub) -> None:
    """An answer that would exceed the message limit is refused before it is computed."""
    queries = encode_dense(np.ones((5_000, DIMS), np.float32))
    details = refusal(stub, queries=queries, k=1_000)
    assert (details.code, details.reason) == (RESOURCE_EXHAUSTED, "REPLY_TOO_LARGE")


def test_more_results_than_points_for_many_rows(
    server: RunningServer, stub: DiverseIndexStub
) -> None:
    """If there are fewer points than `k`, the size of an answer is estimated from the points."""
    place(server, "few", random_points(40))
    queries = encode_dense(random_points(1_000))
    request = query_pb2.QueryRequest(index="few", queries=queries, k=10_000)
    assert len(stub.Query(request, timeout=30).ids) == 40_000


@pytest.mark.parametrize("method", REQUESTS)
def test_an_unknown_index_is_not_found(stub: DiverseIndexStub, method: str) -> None:
    assert refusal(stub, method, index="nobody").code == NOT_FOUND


METHODS = DESCRIPTOR.services_by_name["DiverseIndex"].methods
PATHS = (
    *(f"divgrpc.v1.DiverseIndex/{method.name}" for method in METHODS),
    "grpc.health.v1.Health/Check",
    "grpc.health.v1.Health/Watch",
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)


@pytest.mark.parametrize("payload", [b"\xff\xff\xff", b"\x0a\xff", b"\x08" * 40_001])
@pytest.mark.parametrize("path", PATHS)
def test_a_malformed_message_is_refused(channel: grpc.Channel, path: str, payload: bytes) -> None:
    call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{path}")
    details = failure(list, call(iter([payload]), timeout=10))
    assert (details.code, details.reason) == (INVALID, "MALFORMED_MESSAGE")


@pytest.mark.parametrize("method", ["Query", "GetIndex", "DeleteIndex"])
def test_a_name_that_is_not_utf8_is_refused(channel: grpc.Channel, method: str) -> None:
    """Protobuf requires text to be UTF-8, so the message counts as malformed."""
    details = failure(unary(channel, method), b"\x0a\x02\xff\xfe", timeout=10)
    assert details.reason == "MALFORMED_MESSAGE"


def test_a_message_over_the_limit(channel: grpc.Channel) -> None:
    """The error gives the limit; gRPC itself refuses messages of four times this size."""
    most = LIMITS["message_bytes_max"]
    query = unary(channel, "Query")
    details = failure(query, bytes(most + 1), timeout=10)
    assert (details.code, details.reason) == (RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE")
    assert str(most) in details.message
    assert code_of_failure(query, bytes(4 * most + 1), timeout=10) == RESOURCE_EXHAUSTED
    answers = stream(channel, "QueryStream", iter([bytes(most + 1)]))
    assert failure(list, answers).reason == "MESSAGE_TOO_LARGE"


def test_an_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    assert code_of_failure(unary(channel, "Nothing"), b"", timeout=10) == UNIMPLEMENTED


def test_a_passed_deadline_is_deadline_exceeded(
    channel: grpc.Channel, served_index: Served
) -> None:
    request = query_pb2.QueryRequest(index=served_index.name, queries=ONE_ROW).SerializeToString()
    code = code_of_failure(unary(channel, "Query"), request, timeout=-1)
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED


def test_error_messages_show_no_paths_or_tracebacks(stub: DiverseIndexStub) -> None:
    for fields in ({"index": "nobody"}, {"index": "/etc/passwd"}, {"k": 0}):
        message = refusal(stub, **fields).message
        assert "/data" not in message
        assert "Traceback" not in message


@pytest.mark.parametrize("mode", ["embedding", "neighbour_vote"])
def test_a_bad_document_is_named_by_its_number(client: Client, mode: Mode) -> None:
    """If a batch is sent in several messages, all documents are checked before any prediction."""
    documents = np.tile(X, (40, 1))
    documents[777] = 0
    with pytest.raises(InvalidArgumentError, match="documents row 777 has no feature"):
        client.predict_labels("both", documents, mode=mode)
    documents[777] = np.inf
    with pytest.raises(InvalidArgumentError, match=r"documents row 777\b"):
        client.predict_labels("both", documents, mode=mode)


@pytest.mark.parametrize(
    ("index", "mode"),
    [
        ("no-model", "embedding"),
        ("no-sets", "neighbour_vote"),
        ("no-labels", "embedding"),
        ("no-labels", "neighbour_vote"),
    ],
)
@pytest.mark.parametrize("rows", [1, 3_000])
def test_an_index_without_labels_or_model(
    client: Client, index: str, mode: Mode, rows: int
) -> None:
    """The call is FAILED_PRECONDITION; a mode for which the index has what it needs works."""
    with failing(PRECONDITION, UnfitIndexError, field="mode"):
        client.predict_labels(index, np.tile(X, (100, 1))[:rows], mode=mode)
    if index != "no-labels":
        other_mode: Mode = "embedding" if mode == "neighbour_vote" else "neighbour_vote"
        assert client.predict_labels(index, X, mode=other_mode).counts.min() > 0


def test_label_names_count_in_the_size_of_an_answer(
    server: RunningServer, stub: DiverseIndexStub, client: Client
) -> None:
    """If label names make an answer too large, the call is refused before it is computed."""
    wide = np.ones((9_000, 2), np.float32)
    names = ["x" * LIMITS["label_name_bytes_max"]] * 9_000
    place(server, "wide-labels", X, label_model=(wide, MAP), label_names=names)
    for top_k in (9_000, 60):
        documents = encode_dense(np.tile(X, (3, 1)))
        details = refusal(
            stub, "PredictLabels", index="wide-labels", documents=documents, top_k=top_k
        )
        assert details.code == RESOURCE_EXHAUSTED
        assert details.reason == "REPLY_TOO_LARGE"
    # The client splits the batch into calls whose answers fit the message limit.
    result = client.predict_labels("wide-labels", np.tile(X, (3, 1)), top_k=60)
    assert result.names == (tuple(names[:60]),) * 90


def test_an_index_without_categories(server: RunningServer, client: Client) -> None:
    """Without the categories or sub-topics that it needs, Evaluate is FAILED_PRECONDITION."""
    place(server, "plain", random_points(90))
    queries, categories = random_points(9), np.arange(9)
    with failing(PRECONDITION, UnfitIndexError, field="categories"):
        list(client.evaluate("plain", queries, categories))
    relevant = [[number] for number in range(len(queries))]
    with refused("set_default", error=UnfitIndexError):
        list(client.evaluate("plain", queries, relevant=relevant, set_default=True))
