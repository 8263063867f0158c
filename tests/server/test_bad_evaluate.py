"""Evaluate refuses what is wrong with its field, before any work."""

from typing import Any

import grpc
import numpy as np
import pytest

from divgrpc.errors import IndexNotFoundError, InvalidArgumentError, UnfitIndexError
from divgrpc_client import Client, RpcError
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import evaluate_pb2, query_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.served_index import DIMS, random_points
from support.status_details import details_of

BAD: list[tuple[str, dict[str, Any]]] = [
    ("categories", {}),
    ("categories", {"categories": [0, 1, 2]}),
    ("categories", {"categories": [0, 9]}),
    ("categories", {"categories": [0, -1]}),
    ("relevant", {"categories": [0, 1], "relevant": [{"ids": [3]}, {"ids": [6]}]}),
    ("relevant", {"relevant": [{"ids": [3]}]}),
    ("relevant", {"relevant": [{"ids": [3]}, {}]}),
    ("relevant", {"relevant": [{"ids": [3]}, {"ids": [4]}]}),
    ("grid", {"categories": [0, 1], "selectors": []}),
    ("grid", {"categories": [0, 1], "diversities": [0.5] * 1001}),
    ("ks", {"categories": [0, 1], "ks": [0]}),
    ("diversities", {"categories": [0, 1], "diversities": [1.5]}),
    ("selectors", {"categories": [0, 1], "selectors": [99]}),
    ("selectors", {"categories": [0, 1], "selectors": [0]}),
    ("searches", {"categories": [0, 1], "searches": [77]}),
    ("variants", {"categories": [0, 1], "variants": [55]}),
    ("roundings", {"categories": [0, 1], "roundings": [55]}),
    ("limits", {"categories": [0, 1], "limits": [{"hash_limit": 3}]}),
    ("folds", {"categories": [0, 1], "folds": 3}),
    ("folds", {"categories": [0, 1], "folds": 1}),
    ("set_default", {"categories": [0, 1], "set_default": True, "folds": 0}),
    ("set_default", {"categories": [0, 1], "set_default": True, "ks": [2, 3]}),
    ("queries", {"categories": [0, 1], "queries": encode_dense(np.ones((2, DIMS + 1)))}),
    ("queries", {"categories": [0, 1], "queries": encode_dense(np.zeros((2, DIMS)))}),
    ("queries", {"categories": [0], "queries": encode_dense(np.zeros((0, DIMS)))}),
    ("index", {"categories": [0, 1], "index": "NO"}),
]


@pytest.mark.parametrize(("field", "given"), BAD)
def test_what_is_wrong_is_named(
    stub: DiverseIndexStub, evaluated: str, field: str, given: dict[str, Any]
) -> None:
    """INVALID_ARGUMENT with the field, and before any message."""
    told: dict[str, Any] = {
        "index": evaluated,
        "queries": encode_dense(np.ones((2, DIMS))),
        "selectors": [query_pb2.SELECTOR_GREEDY],
        "folds": 2,
    }
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Evaluate(evaluate_pb2.EvaluateRequest(**told | given), timeout=30))
    details = details_of(caught.value)
    assert (details.code, details.fields) == (grpc.StatusCode.INVALID_ARGUMENT, (field,))


def test_what_an_index_lacks(client: Client) -> None:
    """FAILED_PRECONDITION: categories, sub-topics to choose by; NOT_FOUND: the index."""
    client.build("plain", random_points(90), replace=True)
    queries, asked = random_points(9), np.arange(9)
    with pytest.raises(UnfitIndexError) as unfit:
        list(client.evaluate("plain", queries, asked))
    assert isinstance(unfit.value, RpcError)
    assert unfit.value.code == grpc.StatusCode.FAILED_PRECONDITION
    assert unfit.value.field == "categories"
    relevant = [[number] for number in range(len(queries))]
    with pytest.raises(UnfitIndexError) as unfit:
        list(client.evaluate("plain", queries, relevant=relevant, set_default=True))
    assert unfit.value.field == "set_default"
    with pytest.raises(IndexNotFoundError):
        list(client.evaluate("nobody", queries, asked))


def test_the_client_refuses_what_the_wire_cannot_carry(client: Client, evaluated: str) -> None:
    """Empty axes would be defaults on the wire; a message has its size."""
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
