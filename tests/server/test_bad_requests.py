"""Invalid requests: the status of each error, and the field that it names."""

import math
from typing import Any

import grpc
import numpy as np
import pytest

from divgrpc.errors import IndexNotFoundError, InvalidArgumentError, UnfitIndexError
from divgrpc.parameters import LIMITS
from divgrpc.types import Mode
from divgrpc_client import Client, RpcError
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import evaluate_labels_pb2, evaluate_pb2, predict_pb2, query_pb2, vectors_pb2
from divgrpc_protos.v1.diverse_index_pb2 import DESCRIPTOR
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.checks.refusals import refused
from support.checks.status_details import Details, details_of
from support.data import labelled_documents
from support.data.served_index import DIMS, Served, place, random_points
from support.processes.running_server import RunningServer
from support.requests.raw_calls import stream, unary

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
ONE_ROW = encode_dense(np.ones((1, DIMS), np.float32))
# The points of an index with four labels, and two documents to label.
X = np.eye(5, dtype=np.float32)[np.arange(30) % 5]
TWO = X[:2]
FACTORS, MAP = np.ones((4, 2), np.float32), np.ones((5, 2), np.float32)


@pytest.fixture(scope="module", autouse=True)
def indexes(server: RunningServer, served: Served, evaluated: str) -> None:
    """Build the indexes that requests name. Three of them lack labels, a label model or both."""
    assert (served.name, evaluated) == ("served", "evaluated")
    labels = np.eye(4)[np.arange(30) % 4]
    place(server, "both", X, labels=labels, label_model=(FACTORS, MAP))
    place(server, "no-model", X, labels=labels)
    place(server, "no-sets", X, label_model=(FACTORS, MAP))
    place(server, "no-labels", X)
    documents = labelled_documents.documents()
    place(server, "documents", documents, **labelled_documents.everything())


def dense(**fields: Any) -> vectors_pb2.Vectors:  # noqa: ANN401  # a message's own types
    """Return a dense matrix with one row of ones; `fields` replace fields of the message."""
    given = {"rows": 1, "cols": DIMS, "data": np.ones(DIMS, np.float32).tobytes(), **fields}
    return vectors_pb2.Vectors(dense=vectors_pb2.DenseMatrix(**given))


# For each method, the message type and the fields of a valid request.
REQUESTS: dict[str, tuple[Any, dict[str, Any]]] = {
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
    with pytest.raises(grpc.RpcError) as caught:
        # If a call streams its answers, the error is raised when the first answer is read.
        list(getattr(stub, method)(kind(**right | fields), timeout=30) or ())
    return details_of(caught.value)


QUERIES: list[tuple[dict[str, Any], str]] = [
    ({"k": 0}, "k"),
    ({"k": 10_001}, "k"),
    ({"diversity": -0.01}, "diversity"),
    ({"diversity": 1.01}, "diversity"),
    ({"diversity": math.nan}, "diversity"),
    ({"diversity_auto": True, "diversity": 0.3}, "diversity_auto"),
    ({"diversity_auto": True, "lose_at_most": 0.1}, "diversity_auto"),
    ({"diversity_auto": True, "selector": query_pb2.SELECTOR_NEAREST}, "diversity_auto"),
    ({"lose_at_most": 0.1, "diversity": 0.3}, "lose_at_most"),
    ({"lose_at_most": 0.1, "selector": query_pb2.SELECTOR_NEAREST}, "lose_at_most"),
    ({"lose_at_most": 0.1, "variant": query_pb2.VARIANT_PRINTED}, "lose_at_most"),
    ({"lose_at_most": -0.01}, "lose_at_most"),
    ({"lose_at_most": 1.01}, "lose_at_most"),
    ({"lose_at_most": math.nan}, "lose_at_most"),
    ({"candidates_limit": 9}, "candidates_limit"),
    ({"hash_limit": 9}, "hash_limit"),
    ({"n_probes": 0}, "n_probes"),
    ({"n_probes": 2**31}, "n_probes"),
    ({"epsilon": 0.0}, "epsilon"),
    ({"epsilon": 1.0, "hash_limit": 100}, "epsilon"),
    ({"max_distance": -1.0}, "max_distance"),
    ({"max_distance": math.inf}, "max_distance"),
    ({"selector": 99}, "selector"),
    ({"variant": 99}, "variant"),
    ({"search": 99}, "search"),
    ({"sampling": 99}, "sampling"),
    ({"rounding": 99}, "rounding"),
    ({"index": ""}, "index"),
    ({"index": "../x"}, "index"),
    ({"index": "x" * 300}, "index"),
    ({"index": "a\0b"}, "index"),
    ({"queries": vectors_pb2.Vectors()}, "queries"),
    ({"queries": dense(rows=0, data=b"")}, "queries"),
    ({"queries": dense(cols=DIMS + 1)}, "queries.dense.data"),
    ({"queries": dense(data=b"short")}, "queries.dense.data"),
    ({"queries": dense(rows=2**32 - 1, cols=2**32 - 1)}, "queries.dense.data"),
    ({"queries": dense(values=[1.0] * DIMS)}, "queries.dense.values"),
    ({"queries": dense(data=b"", values=[1.0])}, "queries.dense.values"),
    ({"queries": dense(dtype=99)}, "queries.dense.dtype"),
    ({"queries": encode_dense(np.ones((1, DIMS + 1), np.float32))}, "queries"),
    ({"queries": encode_dense(np.zeros((1, DIMS), np.float32))}, "queries"),
    ({"queries": encode_dense(np.full((1, DIMS), np.nan, np.float32))}, "queries"),
    ({"queries": encode_dense(np.full((1, DIMS), np.inf, np.float32))}, "queries"),
]
PREDICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"top_k": 0}, "top_k"),
    ({"top_k": LIMITS["k_max"] + 1}, "top_k"),
    ({"threshold": math.nan}, "threshold"),
    ({"diversity": 1.01}, "diversity"),
    ({"selector": 99}, "selector"),
    ({"search": 99}, "search"),
    ({"mode": 99}, "mode"),
    ({"vote": 99}, "vote"),
    ({"neighbours": 0}, "neighbours"),
    ({"neighbours": LIMITS["neighbours_max"] + 1}, "neighbours"),
    ({"hash_limit": 4}, "hash_limit"),
    ({"candidates_limit": 4}, "candidates_limit"),
    ({"n_probes": 0}, "n_probes"),
    ({"n_probes": 2**31}, "n_probes"),
    ({"index": "../both"}, "index"),
    ({"documents": None}, "documents"),
    ({"documents": encode_dense(TWO[:0])}, "documents"),
    ({"documents": encode_dense(np.ones((1, 6)))}, "documents"),
    ({"documents": encode_dense(TWO * np.nan)}, "documents"),
    ({"documents": encode_dense(TWO * 0)}, "documents"),
    ({"documents": encode_dense(np.ones((10_001, 5), np.float16))}, "documents"),
    (
        {"documents": vectors_pb2.Vectors(dense=vectors_pb2.DenseMatrix(rows=1, cols=5))},
        "documents.dense.data",
    ),
]
EVALUATIONS: list[tuple[dict[str, Any], str]] = [
    ({}, "categories"),
    ({"categories": [0, 1, 2]}, "categories"),
    ({"categories": [0, 9]}, "categories"),
    ({"categories": [0, -1]}, "categories"),
    ({"categories": [0, 1], "relevant": [{"ids": [3]}, {"ids": [6]}]}, "relevant"),
    ({"relevant": [{"ids": [3]}]}, "relevant"),
    ({"relevant": [{"ids": [3]}, {}]}, "relevant"),
    ({"relevant": [{"ids": [3]}, {"ids": [4]}]}, "relevant"),
    ({"categories": [0, 1], "selectors": []}, "grid"),
    ({"categories": [0, 1], "diversities": [0.5] * 1001}, "grid"),
    ({"categories": [0, 1], "ks": [0]}, "ks"),
    ({"categories": [0, 1], "diversities": [1.5]}, "diversities"),
    ({"categories": [0, 1], "selectors": [99]}, "selectors"),
    ({"categories": [0, 1], "selectors": [0]}, "selectors"),
    ({"categories": [0, 1], "searches": [77]}, "searches"),
    ({"categories": [0, 1], "variants": [55]}, "variants"),
    ({"categories": [0, 1], "roundings": [55]}, "roundings"),
    ({"categories": [0, 1], "limits": [{"hash_limit": 3}]}, "limits"),
    ({"categories": [0, 1], "n_probes": [{"n_probes": 0}]}, "n_probes"),
    ({"categories": [0, 1], "n_probes": [{}, {"n_probes": 2**31}]}, "n_probes"),
    ({"categories": [0, 1], "samplings": [9]}, "samplings"),
    ({"categories": [0, 1], "samplings": [0]}, "samplings"),
    ({"categories": [0, 1], "epsilons": [{"epsilon": 0}]}, "epsilons"),
    ({"categories": [0, 1], "epsilons": [{}, {"epsilon": math.nan}]}, "epsilons"),
    (
        {"categories": [0, 1], "epsilons": [{"epsilon": 1}], "limits": [{"hash_limit": 60}]},
        "epsilons",
    ),
    ({"categories": [0, 1], "set_default": True, "n_probes": [{"n_probes": 3}]}, "set_default"),
    ({"categories": [0, 1], "groups": [4]}, "groups"),
    ({"categories": [0, 1], "groups": [1, 2, 3]}, "groups"),
    ({"categories": [0, 1], "groups": [5, 5], "set_default": True}, "groups"),
    ({"categories": [0, 1], "folds": 3}, "folds"),
    ({"categories": [0, 1], "folds": 1}, "folds"),
    ({"categories": [0, 1], "set_default": True, "folds": 0}, "set_default"),
    ({"categories": [0, 1], "set_default": True, "ks": [2, 3]}, "set_default"),
    ({"categories": [0, 1], "queries": encode_dense(np.ones((2, DIMS + 1)))}, "queries"),
    ({"categories": [0, 1], "queries": encode_dense(np.zeros((2, DIMS)))}, "queries"),
    ({"categories": [0], "queries": encode_dense(np.zeros((0, DIMS)))}, "queries"),
    ({"categories": [0, 1], "index": "NO"}, "index"),
]
LABEL_EVALUATIONS: list[tuple[dict[str, Any], str]] = [
    ({"labels": {}}, "labels.offsets"),
    ({"labels": {"label_count": 130, "offsets": [0, 1], "ids": [3]}}, "labels.offsets"),
    ({"labels": {"label_count": 130, "offsets": [0, 1, 3], "ids": [3]}}, "labels.offsets"),
    ({"labels": {"label_count": 130, "offsets": [0, 1, 2], "ids": [3, 130]}}, "labels.ids"),
    ({"labels": {"label_count": 130, "offsets": [0, 0, 0]}}, "labels"),
    ({"labels": {"label_count": 131, "offsets": [0, 1, 2], "ids": [3, 4]}}, "labels"),
    ({"selectors": []}, "grid"),
    ({"diversities": [0.5] * 1001}, "grid"),
    ({"top_ks": [0]}, "top_ks"),
    ({"diversities": [1.5]}, "diversities"),
    ({"thresholds": [{"threshold": np.nan}]}, "thresholds"),
    ({"modes": [99]}, "modes"),
    ({"modes": [0]}, "modes"),
    ({"searches": [77]}, "searches"),
    ({"vote": 9}, "vote"),
    ({"neighbours": 0}, "neighbours"),
    ({"limits": [{"hash_limit": 1}]}, "limits"),
    ({"n_probes": [{"n_probes": 0}]}, "n_probes"),
    ({"n_probes": [{}, {"n_probes": 2**31}]}, "n_probes"),
    ({"groups": [4]}, "groups"),
    ({"groups": [1, 2, 3]}, "groups"),
    ({"folds": 3}, "folds"),
    ({"folds": 1}, "folds"),
    ({"set_default": True, "folds": 0}, "set_default"),
    ({"set_default": True}, "set_default"),
    ({"set_default": True, "thresholds": [{"threshold": 0}], "top_ks": [2, 3]}, "set_default"),
    ({"documents": encode_dense(np.ones((2, labelled_documents.FEATURES + 1)))}, "documents"),
    ({"documents": encode_dense(np.zeros((2, labelled_documents.FEATURES)))}, "documents"),
    ({"documents": encode_dense(np.zeros((0, labelled_documents.FEATURES)))}, "documents"),
    ({"documents": None}, "documents"),
    ({"documents": {"dense": {"rows": 2, "cols": 3}}}, "documents.dense.data"),
    ({"index": "NO"}, "index"),
]
WRONG = {
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


@pytest.mark.parametrize("other", [{"diversity": 0.3}, {"lose_at_most": 0.1}])
def test_contradicting_diversities_are_refused(
    stub: DiverseIndexStub, other: dict[str, Any]
) -> None:
    """The message of the error uses the field names of the request."""
    sentence = "diversity, diversity_auto and lose_at_most are three ways to set the dial"
    assert sentence in refusal(stub, diversity_auto=True, **other).message


def test_a_bad_row_is_named_by_its_number(client: Client, served: Served) -> None:
    """The worker cuts the batch into slices, but the error gives the row's number in the batch."""
    queries = np.repeat(served.queries[:1], 200, axis=0)
    queries[137, 3] = np.nan
    with pytest.raises(InvalidArgumentError, match="row 137"):
        client.query(served.name, queries)


def test_a_query_may_have_10000_rows_at_most(stub: DiverseIndexStub) -> None:
    queries = encode_dense(np.ones((10_001, DIMS), np.float32))
    assert refusal(stub, queries=queries).fields == ("queries",)


def test_an_answer_too_large_for_a_message(stub: DiverseIndexStub) -> None:
    """An answer that would exceed the message limit is refused before it is computed."""
    queries = encode_dense(np.ones((5_000, DIMS), np.float32))
    details = refusal(stub, queries=queries, k=1_000)
    assert (details.code, details.reason) == (EXHAUSTED, "REPLY_TOO_LARGE")


def test_more_results_than_points(client: Client, served: Served) -> None:
    """If `k` exceeds the number of points, all points are returned with a warning."""
    result = client.query(served.name, served.queries[0], k=5_000)
    assert result.counts.tolist() == [len(served.points)]
    assert [warning.code for warning in result.warnings] == ["FEWER_THAN_K_POINTS"]


def test_more_results_than_points_for_many_rows(
    server: RunningServer, stub: DiverseIndexStub
) -> None:
    """If there are fewer points than `k`, the size of an answer is estimated from the points."""
    place(server, "few", random_points(40))
    queries = encode_dense(random_points(1_000))
    request = query_pb2.QueryRequest(index="few", queries=queries, k=10_000)
    assert len(stub.Query(request, timeout=30).ids) == 40_000


@pytest.mark.parametrize("method", REQUESTS)
def test_an_unknown_index_is_not_found(stub: DiverseIndexStub, client: Client, method: str) -> None:
    """Querying an unknown index raises the core's `IndexNotFoundError` in the client."""
    assert (
        refusal(
            stub, method, **({"categories": [0, 1]} if method == "Evaluate" else {}), index="nobody"
        ).code
        == NOT_FOUND
    )
    with pytest.raises(IndexNotFoundError) as caught:
        client.query("nobody", np.ones(DIMS))
    assert isinstance(caught.value, RpcError)
    assert caught.value.code == NOT_FOUND


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
    """Every method ends as INVALID_ARGUMENT."""
    call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{path}")
    with pytest.raises(grpc.RpcError) as caught:
        list(call(iter([payload]), timeout=10))
    details = details_of(caught.value)
    assert (details.code, details.reason) == (INVALID, "MALFORMED_MESSAGE")


@pytest.mark.parametrize("method", ["Query", "GetIndex", "DeleteIndex"])
def test_a_name_that_is_not_utf8_is_refused(channel: grpc.Channel, method: str) -> None:
    """Protobuf requires text to be UTF-8, so the message counts as malformed."""
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, method)(b"\x0a\x02\xff\xfe", timeout=10)
    assert details_of(caught.value).reason == "MALFORMED_MESSAGE"


def test_a_message_over_the_limit(channel: grpc.Channel) -> None:
    """The message of RESOURCE_EXHAUSTED gives the server's limit.

    gRPC itself refuses messages of four times this limit.
    """
    most = LIMITS["message_bytes_max"]
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "Query")(bytes(most + 1), timeout=10)
    details = details_of(caught.value)
    assert (details.code, details.reason) == (EXHAUSTED, "MESSAGE_TOO_LARGE")
    assert str(most) in details.message
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "Query")(bytes(4 * most + 1), timeout=10)
    assert caught.value.code() == EXHAUSTED
    with pytest.raises(grpc.RpcError) as caught:
        list(stream(channel, "QueryStream", iter([bytes(most + 1)])))
    assert details_of(caught.value).reason == "MESSAGE_TOO_LARGE"


def test_an_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "Nothing")(b"", timeout=10)
    assert caught.value.code() == UNIMPLEMENTED


def test_a_passed_deadline_is_deadline_exceeded(channel: grpc.Channel, served: Served) -> None:
    request = query_pb2.QueryRequest(index=served.name, queries=ONE_ROW)
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "Query")(request.SerializeToString(), timeout=-1)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


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
    """The call is FAILED_PRECONDITION and names `mode`.

    The other mode works if the index has what it needs.
    """
    with pytest.raises(RpcError) as caught:
        client.predict_labels(index, np.tile(X, (100, 1))[:rows], mode=mode)
    assert caught.value.code == PRECONDITION
    assert [field for field, _ in caught.value.field_violations] == ["mode"]
    if index != "no-labels":
        other: Mode = "embedding" if mode == "neighbour_vote" else "neighbour_vote"
        assert client.predict_labels(index, X, mode=other).counts.min() > 0


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
        assert details.code == EXHAUSTED
        assert details.reason == "REPLY_TOO_LARGE"
    # The client splits the batch into calls whose answers fit the message limit.
    found = client.predict_labels("wide-labels", np.tile(X, (3, 1)), top_k=60)
    assert found.names == (tuple(names[:60]),) * 90


def test_an_index_without_categories(server: RunningServer, client: Client) -> None:
    """Without the categories or sub-topics that it needs, Evaluate is FAILED_PRECONDITION."""
    place(server, "plain", random_points(90))
    queries, asked = random_points(9), np.arange(9)
    with pytest.raises(UnfitIndexError) as unfit:
        list(client.evaluate("plain", queries, asked))
    assert isinstance(unfit.value, RpcError)
    assert unfit.value.code == grpc.StatusCode.FAILED_PRECONDITION
    assert unfit.value.field == "categories"
    relevant = [[number] for number in range(len(queries))]
    with refused("set_default", error=UnfitIndexError):
        list(client.evaluate("plain", queries, relevant=relevant, set_default=True))
    with pytest.raises(IndexNotFoundError):
        list(client.evaluate("nobody", queries, asked))


def test_the_client_refuses_invalid_axes(client: Client, evaluated: str) -> None:
    """For example, the client refuses an empty axis; the server would take it for the default."""
    one = np.ones((5, DIMS))
    for axis, values in (
        ("ks", []),
        ("selectors", "greedy"),
        ("selectors", ["nearby"]),
        ("diversities", [None]),
        ("limits", [(1, 2, 3)]),
        ("limits", [("a", 2)]),
        ("ks", [True]),
        ("folds", "many"),
        ("seed", -1),
    ):
        told: dict[str, Any] = {axis: values}
        with pytest.raises(InvalidArgumentError) as refused:
            client.evaluate(evaluated, one, [0] * 5, **told)
        assert not isinstance(refused.value, RpcError)
        assert refused.value.field == axis
    with pytest.raises(TypeError, match="hash_limits"):
        client.evaluate(evaluated, one, [0] * 5, hash_limits=[3])  # type: ignore[call-arg]
