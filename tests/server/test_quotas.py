"""Quotas and groups over gRPC are those of this process, with both clients and in streams."""

from typing import Any

import numpy as np
import pytest

from divgrpc import GroupBy, Index, Quota
from divgrpc.errors import ConditionFailedError, InvalidArgumentError
from divgrpc.types import QueryResult
from divgrpc_client import Client
from divgrpc_protos.v1 import filters_pb2, query_pb2, quotas_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from reference.index import same_bytes
from support.checks.status_details import failure
from support.processes.both_clients import Stack
from support.processes.running_server import RunningServer

ROWS, DIMS = 900, 12
VECTORS = np.random.default_rng(6).normal(size=(ROWS, DIMS)).astype(np.float32)
ATTRIBUTES: dict[str, Any] = {
    "brand": [None if row % 40 == 0 else f"b{row % 7}" for row in range(ROWS)],
    "year": [2000 + row % 9 for row in range(ROWS)],
    "price": [None if row % 8 == 0 else row % 4 / 2 for row in range(ROWS)],
    "sold": [row % 50 == 0 for row in range(ROWS)],
    "tags": [["x", "y", "z"][: row % 4] for row in range(ROWS)],
}
RULE = quotas_pb2.QuotaRule(value=filters_pb2.Value(keyword="b1"), min=1)
QUERIES: list[dict[str, Any]] = [
    {"quotas": [Quota("brand", max_each=2)]},
    {"quotas": [Quota("sold", rules={True: (3, 4)}), Quota("tags", rules={"z": (1, 2)})]},
    {"quotas": [Quota("year", min_each=1)], "k": 12},
    {"quotas": [Quota("price", rules={0.5: (2, None), None: (2, 2)})]},
    {"quotas": [Quota("brand", rules={"no": (3, 9)}, max_each=1)], "on_infeasible": "relax"},
    {"group_by": GroupBy("brand", 4, 3)},
    {"group_by": GroupBy("year", 3)},
    {"group_by": GroupBy("price", 5, 2)},
    {"group_by": GroupBy("sold", 2, 2)},
]


@pytest.fixture(params=["sync", "aio"])
def ask(request: pytest.FixtureRequest, server: RunningServer) -> Stack:
    """Return each of the two clients, connected to the session's server."""
    return Stack(server.target, is_async=request.param == "aio")


@pytest.fixture(scope="module")
def core() -> Index:
    return Index.build(VECTORS, attributes=ATTRIBUTES)


@pytest.fixture(scope="module")
def index(client: Client) -> str:
    client.build("quotas", VECTORS, attributes=ATTRIBUTES, replace=True)
    return "quotas"


def assert_same_groups(result: QueryResult, expected: QueryResult) -> None:
    assert [result.groups(row) for row in range(len(result))] == [
        expected.groups(row) for row in range(len(expected))
    ]
    assert result.quota_shortfalls == expected.quota_shortfalls
    assert result.warnings == expected.warnings


@pytest.mark.parametrize("options", QUERIES)
def test_answers_equal_those_in_process(
    ask: Stack, index: str, core: Index, options: dict[str, Any]
) -> None:
    result: QueryResult = ask("query", index, VECTORS[:20], timeout=30, **options)
    expected = core.query(VECTORS[:20], **options)
    assert same_bytes(result, expected)
    assert_same_groups(result, expected)
    streamed = ask("query_stream", index, [VECTORS[:3], VECTORS[3:9]], **options)
    for part, rows in zip(streamed, (slice(0, 3), slice(3, 9)), strict=True):
        assert part.ids.tolist() == expected.ids[rows].tolist()
        assert_same_groups(part, core.query(VECTORS[rows], **options))


@pytest.mark.parametrize(
    ("options", "field", "kind"),
    [
        ({"quotas": [Quota("brand", rules={"no": (1, None)})]}, "quotas", ConditionFailedError),
        ({"quotas": [Quota("colour", max_each=1)]}, "quotas", InvalidArgumentError),
        ({"quotas": [Quota("brand", max_each=-1)]}, "quotas", InvalidArgumentError),
        ({"group_by": GroupBy("tags", 3)}, "group_by", InvalidArgumentError),
        ({"quotas": [Quota("brand", max_each=2)], "paged": True}, "quotas", InvalidArgumentError),
        ({"group_by": GroupBy("year", 3), "k": 5}, "k", InvalidArgumentError),
        (
            {"group_by": GroupBy("year", 2), "selector": "qp_relax"},
            "selector",
            InvalidArgumentError,
        ),
    ],
)
def test_errors_name_the_field(  # noqa: PLR0917  # parameters of the test, and fixtures
    client: Client,
    index: str,
    core: Index,
    options: dict[str, Any],
    field: str,
    kind: Any,  # noqa: ANN401  # a class of errors
) -> None:
    with pytest.raises(kind) as expected:
        core.query(VECTORS[0], **options)
    with pytest.raises(kind) as raised:
        client.query(index, VECTORS[0], timeout=30, **options)
    assert raised.value.field == expected.value.field == field
    assert str(expected.value) in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"on_infeasible": 9}, "on_infeasible", "no value 9"),
        ({"quotas": [quotas_pb2.Quota(attribute="brand")]}, "quotas", "max_each, min_each"),
        ({"group_by": quotas_pb2.GroupBy(attribute="brand")}, "group_by", "from 1"),
        (
            {
                "quotas": [
                    quotas_pb2.Quota(
                        attribute="brand",
                        rules=[quotas_pb2.QuotaRule(value=filters_pb2.Value(), min=1)],
                    )
                ]
            },
            "quotas",
            "without a kind",
        ),
        (
            {
                "quotas": [
                    quotas_pb2.Quota(
                        attribute="brand",
                        rules=[quotas_pb2.QuotaRule(value=filters_pb2.Value(keyword="b1"), min=1)]
                        * 2,
                    )
                ]
            },
            "quotas",
            "twice",
        ),
    ],
)
def test_requests_that_no_client_sends(
    stub: DiverseIndexStub, index: str, fields: dict[str, Any], field: str, words: str
) -> None:
    request = query_pb2.QueryRequest(index=index, like_ids=[1], **fields)
    error = failure(stub.Query, request, timeout=30)
    assert words in error.message
    assert error.fields == (field,)
