"""Wrong predictions: the status of each error, and the field that it names."""

import math
from typing import Any

import grpc
import numpy as np
import pytest

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import LIMITS
from divgrpc.types import Mode
from divgrpc_client import Client
from divgrpc_client.rpc.errors import RpcError
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import predict_pb2, vectors_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.status_details import Details, details_of

INVALID = grpc.StatusCode.INVALID_ARGUMENT
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
ROWS, DIMS = 30, 5
X = np.eye(DIMS, dtype=np.float32)[np.arange(ROWS) % DIMS]
Y = np.eye(4)[np.arange(ROWS) % 4]
FACTORS, MAP = np.ones((4, 2), np.float32), np.ones((DIMS, 2), np.float32)
THREE = np.ones((3, DIMS), np.float32)


@pytest.fixture(scope="module", autouse=True)
def indexes(client: Client) -> None:
    """Build an index with labels and a model, one with each of the two, and one with neither."""
    client.build("both", X, labels=Y, label_model=(FACTORS, MAP), replace=True)
    client.build("no-model", X, labels=Y, replace=True)
    client.build("no-sets", X, label_model=(FACTORS, MAP), replace=True)
    client.build("no-labels", X, replace=True)


def refused(stub: DiverseIndexStub, **fields: Any) -> Details:  # noqa: ANN401  # a message's types
    """Return the details of a prediction that must fail."""
    documents = encode_dense(X[:2])
    request = predict_pb2.PredictLabelsRequest(
        **{"index": "both", "documents": documents, **fields}
    )
    with pytest.raises(grpc.RpcError) as caught:
        stub.PredictLabels(request, timeout=30)
    return details_of(caught.value)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
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
        ({"index": "../both"}, "index"),
        ({"documents": None}, "documents"),
        ({"documents": encode_dense(X[:0])}, "documents"),
        ({"documents": encode_dense(np.ones((1, DIMS + 1)))}, "documents"),
        ({"documents": encode_dense(X[:2] * np.nan)}, "documents"),
        ({"documents": encode_dense(X[:2] * 0)}, "documents"),
        ({"documents": encode_dense(np.ones((10_001, DIMS), np.float16))}, "documents"),
        (
            {"documents": vectors_pb2.Vectors(dense=vectors_pb2.DenseMatrix(rows=1, cols=DIMS))},
            "documents.dense.data",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_prediction_names_its_field(
    stub: DiverseIndexStub, fields: dict[str, Any], field: str
) -> None:
    """INVALID_ARGUMENT, and the field as the contract spells it."""
    details = refused(stub, **fields)
    assert details.code == INVALID
    assert details.fields == (field,)


@pytest.mark.parametrize("mode", ["embedding", "neighbour_vote"])
def test_a_bad_document_is_called_by_its_number(client: Client, mode: Mode) -> None:
    """However large the batch: before any work is done."""
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
def test_an_index_that_lacks_what_is_asked_for(
    client: Client, index: str, mode: Mode, rows: int
) -> None:
    """FAILED_PRECONDITION, with the mode to blame; the other mode answers where it can."""
    with pytest.raises(RpcError) as caught:
        client.predict_labels(index, np.tile(X, (100, 1))[:rows], mode=mode)
    assert caught.value.code == PRECONDITION
    assert [field for field, _ in caught.value.field_violations] == ["mode"]
    if index != "no-labels":
        other: Mode = "embedding" if mode == "neighbour_vote" else "neighbour_vote"
        assert client.predict_labels(index, X, mode=other).counts.min() > 0


def test_an_index_that_is_not_there(client: Client) -> None:
    """NOT_FOUND."""
    with pytest.raises(RpcError) as caught:
        client.predict_labels("nobody", X[:1])
    assert caught.value.code == grpc.StatusCode.NOT_FOUND


def test_an_answer_too_large_for_a_message(stub: DiverseIndexStub, client: Client) -> None:
    """RESOURCE_EXHAUSTED says so before any work is done; names are counted when they are there."""
    wide = np.ones((9_000, 2), np.float32)
    names = ["x" * LIMITS["label_name_bytes_max"]] * 9_000
    client.build("wide-labels", X, label_model=(wide, MAP), label_names=names, replace=True)
    for top_k in (9_000, 60):
        documents = encode_dense(np.tile(X, (3, 1)))
        details = refused(stub, index="wide-labels", documents=documents, top_k=top_k)
        assert details.code == EXHAUSTED
        assert details.reason == "REPLY_TOO_LARGE"
    # The client cuts the batch to what a message holds.
    found = client.predict_labels("wide-labels", np.tile(X, (3, 1)), top_k=60)
    assert found.names == (tuple(names[:60]),) * 90
