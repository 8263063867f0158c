"""Filters, excluded ids and queries by id over the wire give the answers of this process."""

from typing import Any

import grpc
import numpy as np
import pytest

from divgrpc import Field, HasId, Index
from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation import Grid, evaluate
from divgrpc.types import QueryResult
from divgrpc.types.filters import Condition, Filter
from divgrpc_client import Client
from divgrpc_client.messages.batches import query_batch
from divgrpc_client.messages.filters import pack_filter
from divgrpc_protos.v1 import filters_pb2, points_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from divgrpc_server.codec.filters import parse_filter
from reference.index import same_bytes
from support.checks.status_details import failure
from support.data.evaluation_rows import assert_same_rows
from support.processes.both_clients import Stack
from support.processes.running_server import RunningServer

ROWS, DIMS = 900, 12
VECTORS = np.random.default_rng(5).normal(size=(ROWS, DIMS)).astype(np.float32)
LABELS = np.eye(3)[np.arange(ROWS) % 3]
ATTRIBUTES: dict[str, Any] = {
    "brand": [None if row % 4 == 0 else f"b{row % 7}" for row in range(ROWS)],
    "count": [row if row % 5 else None for row in range(ROWS)],
    "price": np.arange(ROWS) / 8,
    "sold": [row % 2 == 0 for row in range(ROWS)],
    "tags": [["x", "y", "z"][: row % 4] for row in range(ROWS)],
}
CONDITIONS: list[Condition] = [
    Field("price") < 20,
    (Field("price") >= 10) & (Field("brand") == "b3"),
    Field("brand").is_in(["b1", "b2"]) | (Field("count") <= 30),
    ~Field("tags").exists(),
    Field("sold") != True,  # noqa: E712
    (Field("tags") == "z") & ~(Field("count") > 2.5) | HasId((5, 6, 899)),
    Filter(must=(HasId((7,)),), must_not=(Filter(should=(Field("sold") == True,)),)),  # noqa: E712
    HasId(()),
]


@pytest.fixture(params=["sync", "aio"])
def ask(request: pytest.FixtureRequest, server: RunningServer) -> Stack:
    """Return each of the two clients, connected to the session's server."""
    return Stack(server.target, is_async=request.param == "aio")


@pytest.fixture(scope="module")
def core() -> Index:
    return Index.build(VECTORS, attributes=ATTRIBUTES, labels=LABELS)


@pytest.fixture(scope="module")
def index(client: Client) -> str:
    client.build("filtered", VECTORS, attributes=ATTRIBUTES, labels=LABELS, replace=True)
    return "filtered"


@pytest.mark.parametrize("condition", CONDITIONS)
def test_answers_equal_those_in_process(
    ask: Stack, index: str, core: Index, condition: Condition
) -> None:
    options: dict[str, Any] = {"filter": condition, "k": 7}
    result: QueryResult = ask("query", index, VECTORS[:30], timeout=30, **options)
    expected = core.query(VECTORS[:30], **options)
    assert same_bytes(result, expected)
    assert result.points_passing == expected.points_passing == core.count(condition)
    assert result.warnings == expected.warnings
    assert ask("count", index, condition, timeout=30) == expected.points_passing
    streamed = ask("query_stream", index, [VECTORS[:3], VECTORS[3:9]], **options)
    for part, rows in zip(streamed, (slice(0, 3), slice(3, 9)), strict=True):
        assert part.ids.tolist() == expected.ids[rows].tolist()


def test_excluded_ids_and_queries_by_id(ask: Stack, index: str, core: Index) -> None:
    excluded = list(range(0, ROWS, 3))
    result = ask("query", index, VECTORS[:5], exclude_ids=excluded, k=5)
    assert same_bytes(result, core.query(VECTORS[:5], exclude_ids=excluded, k=5))
    # Thirty rows are answered in several slices.
    like = ask("query", index, like=range(30), filter=Field("price") < 20, k=5)
    expected = core.query(like=range(30), filter=Field("price") < 20, k=5)
    assert same_bytes(like, expected)
    assert like.points_passing == expected.points_passing
    assert ask("query", index, like=3, k=5).ids.shape == (1, 5)


def test_a_filter_of_voters(ask: Stack, index: str, core: Index) -> None:
    options: dict[str, Any] = {"mode": "neighbour_vote", "filter": Field("price") < 20}
    result = ask("predict_labels", index, VECTORS[:4], **options)
    expected = core.predict_labels(VECTORS[:4], **options)
    assert result.labels.tolist() == expected.labels.tolist()
    assert result.scores.tobytes() == expected.scores.tobytes()
    no_voter = ask("predict_labels", index, VECTORS[:4], mode="neighbour_vote", filter=HasId(()))
    assert no_voter.counts.tolist() == [0, 0, 0, 0]


def test_a_filtered_evaluation(client: Client, index: str, core: Index) -> None:
    relevant = [[row, row + 1, row + 300] for row in range(20)]
    settings: dict[str, Any] = {"selectors": ("greedy",), "diversities": (0.2, 0.6), "ks": (5,)}
    cheap = Field("price") < 20
    rows = list(client.evaluate(index, VECTORS[:20], relevant=relevant, filter=cheap, **settings))
    expected = list(
        evaluate(core, VECTORS[:20], relevant=relevant, filter=cheap, grid=Grid(**settings))
    )
    assert_same_rows(rows, expected)


def test_pages_of_points_that_pass(client: Client, index: str, core: Index) -> None:
    cheap = Field("price") < 20
    pages = list(client.scroll(index, cheap, page_size=50))
    expected = list(core.scroll(cheap, page_size=50))
    assert [page.ids.tolist() for page in pages] == [page.ids.tolist() for page in expected]
    assert len(pages) == 4


def test_text_ids(client: Client) -> None:
    names = [f"n{row}" for row in range(ROWS)]
    client.build("named", VECTORS, ids=names, replace=True)
    core = Index.build(VECTORS, ids=names)
    some = HasId(tuple(names[::2]))
    options: dict[str, Any] = {"filter": some, "exclude_ids": names[:10], "k": 5}
    result = client.query("named", like=names[20:23], timeout=30, **options)
    assert result.ids.tolist() == core.query(like=names[20:23], **options).ids.tolist()
    with pytest.raises(InvalidArgumentError, match="must be texts"):
        client.query("named", VECTORS[:1], filter=HasId((1,)))


def test_many_excluded_ids_leave_less_room_for_queries(client: Client, index: str) -> None:
    """Queries of 3.8 MB fit one message, but not beside 100,000 ids."""
    queries = np.tile(VECTORS, (90, 1))[:80_000]
    excluded = np.arange(10**9, 10**9 + 100_000)
    result = client.query(index, queries[:9_000], exclude_ids=excluded, k=1, timeout=60)
    assert len(result) == 9_000


@pytest.mark.parametrize(
    ("arguments", "field", "rule"),
    [
        ({"filter": Field("colour") == "red"}, "filter", "declares brand, count, price"),
        ({"filter": Field("price") == "red"}, "filter", "'price' with numbers, got 'red'"),
        ({"filter": Field("price") < "red"}, "filter", "numbers or times only"),
        ({"filter": Field("count") < 2**64}, "filter", "cannot compare with 18446744073709551616"),
        ({"filter": 3}, "filter", "must be conditions"),
        ({"exclude_ids": ["a"]}, "exclude_ids", "must be integers"),
        ({"exclude_ids": range(100_001)}, "exclude_ids", "at most 100000, got 100001"),
        ({"exclude_ids": ["x" * 250] * 10_000}, "exclude_ids", "must take at most"),
        ({"like": 3}, "like", "give one of the two"),
        ({"queries": None}, "queries", "or `like` with ids of points"),
        ({"queries": None, "like": []}, "like", "must be 1 to 10000 ids, got 0"),
        ({"queries": None, "like": 10_000}, "like", "which is no id of the index"),
        ({"queries": None, "like": range(10_001)}, "like", "at most 10000, got 10001"),
    ],
)
def test_a_wrong_call_names_the_field(
    ask: Stack, index: str, arguments: dict[str, Any], field: str, rule: str
) -> None:
    arguments = {"queries": VECTORS[:1]} | arguments
    with pytest.raises(InvalidArgumentError, match=rule) as raised:
        ask("query", index, arguments.pop("queries"), **arguments)
    assert raised.value.field == field


def nested(levels: int) -> filters_pb2.Filter:
    message = filters_pb2.Filter()
    for _ in range(levels):
        message = filters_pb2.Filter(must=[filters_pb2.Condition(filter=message)])
    return message


def field_condition(**test: object) -> filters_pb2.Filter:
    part: Any = {"field": {"attribute": "price", **test}}
    return filters_pb2.Filter(must=[filters_pb2.Condition(**part)])


BOTH_KINDS = filters_pb2.HasId(ids=[1], string_ids=["a"])


@pytest.mark.parametrize(
    ("condition", "rule"),
    [
        (filters_pb2.Filter(must=[filters_pb2.Condition()]), "a condition without a kind"),
        (field_condition(), "a condition on 'price' without a test"),
        (field_condition(exists=False), "on 'price' whose `exists` is false"),
        (field_condition(any_of={"values": [{}]}), "a value of 'price' without a kind"),
        (field_condition(range={"lt": {"keyword": "a"}}), "numbers or times only"),
        (field_condition(range={"lt": {"number": np.nan}}), "got nan"),
        (nested(40), "must be at most 8 levels deep"),
        (
            filters_pb2.Filter(must=[filters_pb2.Condition(has_id=BOTH_KINDS)]),
            "must be integers or texts, not both",
        ),
    ],
)
def test_a_wrong_message_is_refused(
    server: RunningServer, index: str, condition: filters_pb2.Filter, rule: str
) -> None:
    query = next(query_batch(index, VECTORS[:1], {}))
    query.filter.CopyFrom(condition)
    requests: list[tuple[str, Any]] = [
        ("Query", query),
        ("Count", points_pb2.CountRequest(index=index, filter=condition)),
        ("Scroll", points_pb2.ScrollRequest(index=index, filter=condition)),
    ]
    with grpc.insecure_channel(server.target) as channel:
        stub = DiverseIndexStub(channel)
        for method, request in requests:
            details = failure(getattr(stub, method), request, timeout=30)
            assert details.code is grpc.StatusCode.INVALID_ARGUMENT
            assert details.fields == ("filter",)
            assert rule in details.message


def test_a_filter_is_packed_and_parsed_without_loss() -> None:
    for condition in CONDITIONS:
        checked = condition if isinstance(condition, Filter) else Filter(must=(condition,))
        assert parse_filter(pack_filter(checked)) == checked
