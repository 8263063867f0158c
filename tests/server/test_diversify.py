"""Diversify and DiversifyStream return what the core returns, and refuse what it refuses."""

import asyncio
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import grpc
import numpy as np
import pytest
from scipy.sparse import csr_array

from divgrpc import GroupBy, Quota, diversify
from divgrpc.diversifier import iterate_picks, prepare_candidates
from divgrpc.errors import ConditionFailedError, IndexNotFoundError, InvalidArgumentError
from divgrpc.index import Index
from divgrpc.parameters import DiversifyParameters
from divgrpc.types import Diversification, FloatArray, Metric, Pick, Selector
from divgrpc_client import AsyncClient, Client, RpcError
from divgrpc_protos.v1 import diversify_pb2, points_pb2, quotas_pb2, vectors_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.data.served_index import place, random_points
from support.processes.running_server import RunningServer

ROWS = 80
METRICS: tuple[Metric, ...] = get_args(Metric)
SELECTORS: tuple[Selector, ...] = get_args(Selector)
OPTIONS: list[dict[str, Any]] = [
    *({"selector": selector, "diversity": 0.4, "k": 7} for selector in SELECTORS),
    {"selector": "greedy", "variant": "printed", "diversity": 0},
    {"selector": "qp_relax", "rounding": "top_k"},
    {"diversity": "auto", "k": 9},
    {"lose_at_most": 0.2, "selector": "mmr"},
    {"duplicate_threshold": 0.9, "k": 12},
    {"duplicate_threshold": 0.9, "selector": "max_sum"},
    {},
]
ATTRIBUTES: dict[str, Any] = {
    "brand": [f"b{row % 9}" if row % 4 else None for row in range(ROWS)],
    "tags": [sorted({row % 3, row % 5}) for row in range(ROWS)],
}
QUOTAS: list[dict[str, Any]] = [
    {"quotas": Quota("brand", max_each=1), "k": 9},
    {"quotas": [Quota("brand", max_each=2), Quota("tags", rules={4: (3, 4)})], "selector": "mmr"},
    {"quotas": Quota("brand", rules={"no": (1, 2)}), "on_infeasible": "relax"},
    {"quotas": Quota("tags", max_each=1), "on_infeasible": "relax", "duplicate_threshold": 0.9},
    {"group_by": GroupBy("brand", 3, 2), "lose_at_most": 0.2},
    {"group_by": GroupBy("brand", 50, 20), "diversity": "auto"},
]


@pytest.fixture(scope="module")
def vectors() -> FloatArray:
    """Return vectors; a quarter are near-copies of others."""
    points = random_points(ROWS, seed=21)
    points[60:] = points[:20] + np.float32(0.01)
    return points


@pytest.fixture(scope="module")
def scores() -> FloatArray:
    return np.random.default_rng(4).standard_normal(ROWS, dtype=np.float32)


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with Client(server.target) as connection:
        yield connection


def check_same(result: Diversification, expected: Diversification) -> None:
    for name in ("places", "scores", "selection_scores", "collapsed_places", "collapsed_offsets"):
        column, core_column = getattr(result, name), getattr(expected, name)
        assert (column.dtype, column.tobytes()) == (core_column.dtype, core_column.tobytes())
    for name in ("diversity", "dial_reason", "duplicates", "duality_gap"):
        assert getattr(result, name) == getattr(expected, name)


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_the_wire_equals_the_core(
    client: Client, vectors: FloatArray, scores: FloatArray, options: dict[str, Any]
) -> None:
    for form in (vectors, csr_array(vectors)):
        check_same(client.diversify(form, scores, **options), diversify(form, scores, **options))


@pytest.mark.parametrize("metric", METRICS)
def test_scores_and_queries(client: Client, vectors: FloatArray, metric: Metric) -> None:
    query = random_points(1, seed=5)[0]
    threshold = 20.0 if metric == "euclidean" else 0.95
    for options in ({"query": query}, {"scores": np.arange(ROWS)}, {}):
        both: dict[str, Any] = {**options, "metric": metric, "duplicate_threshold": threshold}
        check_same(client.diversify(vectors, **both), diversify(vectors, **both))


def test_float16_takes_half_of_the_bytes(client: Client, scores: FloatArray) -> None:
    half = random_points(ROWS, seed=8).astype(np.float16)
    expected = diversify(half.astype(np.float32), scores)
    check_same(client.diversify(half, scores), expected)
    with pytest.raises(InvalidArgumentError, match="must fit one message") as error:
        client.diversify(np.zeros((1_025, 1_024), np.float32))
    assert error.value.field == "vectors"


def test_no_candidates(client: Client) -> None:
    check_same(client.diversify([]), diversify([]))
    assert list(client.diversify_stream([])) == []


@pytest.mark.parametrize("metric", METRICS)
def test_points_of_an_index(
    server: RunningServer, client: Client, vectors: FloatArray, scores: FloatArray, metric: Metric
) -> None:
    """Under cosine the index has the vectors at unit length, which changes a last bit at most."""
    name = f"diversified-{metric.replace('_', '-')}"
    ids = [f"p{row}" for row in range(ROWS)]
    index = place(server, name, vectors, metric=metric, ids=ids)
    order = np.random.default_rng(1).permutation(ROWS)
    chosen_ids = [ids[row] for row in order]
    stored = index.get(chosen_ids, with_vectors=True).vectors
    for options in ({}, {"selector": "mmr", "diversity": 0.5}, {"duplicate_threshold": 0.9}):
        result = client.diversify(name=name, ids=chosen_ids, scores=scores, **options)
        check_same(result, diversify(stored, scores, metric=metric, **options))
        stream = client.diversify_stream(name=name, ids=chosen_ids, scores=scores, **options)
        assert [pick.place for pick in stream] == result.places.tolist()


def test_points_with_integer_ids_and_sparse_vectors(
    server: RunningServer, client: Client, vectors: FloatArray, scores: FloatArray
) -> None:
    sparse = csr_array(vectors * (np.abs(vectors) > 0.5))
    place(server, "diversified-sparse", sparse, ids=np.arange(ROWS) * 3, metric="inner_product")
    result = client.diversify(
        name="diversified-sparse", ids=(np.arange(ROWS) * 3).tolist(), scores=scores
    )
    check_same(result, diversify(sparse, scores))


def check_same_quotas(result: Diversification, expected: Diversification) -> None:
    check_same(result, expected)
    assert [group.value for group in result.groups] == [g.value for g in expected.groups]
    assert result.group_offsets.tolist() == expected.group_offsets.tolist()
    assert result.quota_shortfalls == expected.quota_shortfalls


@pytest.mark.parametrize("options", QUOTAS, ids=repr)
def test_quotas_and_groups(
    server: RunningServer,
    client: Client,
    vectors: FloatArray,
    scores: FloatArray,
    options: dict[str, Any],
) -> None:
    expected = diversify(vectors, scores, attributes=ATTRIBUTES, **options)
    result = client.diversify(vectors, scores, attributes=ATTRIBUTES, **options)
    check_same_quotas(result, expected)
    place(server, "diversified-quotas", vectors, attributes=ATTRIBUTES, metric="inner_product")
    of_index = client.diversify(
        name="diversified-quotas", ids=np.arange(ROWS), scores=scores, **options
    )
    check_same_quotas(of_index, expected)


def test_quotas_that_no_picks_meet(client: Client, vectors: FloatArray) -> None:
    with pytest.raises(ConditionFailedError, match="brand = 'none' has 0 of at least 1") as error:
        client.diversify(
            vectors, attributes=ATTRIBUTES, quotas=Quota("brand", rules={"none": (1, None)})
        )
    assert error.value.field == "quotas"
    with pytest.raises(InvalidArgumentError, match="go with quotas"):
        client.diversify(vectors, attributes=ATTRIBUTES)


def test_points_without_a_vector_are_refused(tmp_path: Path) -> None:
    vectors: list[Any] = [*np.eye(3).tolist(), None]
    Index.build(vectors, vectors_optional=True, path=tmp_path / "partly")
    index = Index.open(tmp_path / "partly")
    with pytest.raises(InvalidArgumentError, match="has 3, whose point has no vector") as error:
        index.engine.vectors_of([0, 3])
    assert error.value.field == "ids"
    assert len(index.engine.vectors_of([0, 2])) == 2


@pytest.mark.parametrize("options", [o for o in OPTIONS if "lose_at_most" not in o], ids=repr)
def test_a_stream_has_the_picks_of_the_call(
    client: Client, vectors: FloatArray, scores: FloatArray, options: dict[str, Any]
) -> None:
    if options.get("selector") == "qp_relax":
        with pytest.raises(InvalidArgumentError, match="makes all picks together") as error:
            list(client.diversify_stream(vectors, scores, **options))
        assert error.value.field == "selector"
        return
    result = diversify(vectors, scores, **options)
    columns = (result.places, result.scores, result.selection_scores)
    expected = [Pick(*values) for values in zip(*(c.tolist() for c in columns), strict=True)]
    assert list(client.diversify_stream(vectors, scores, **options)) == expected


def test_a_stream_refuses_a_bound_on_the_loss(client: Client, vectors: FloatArray) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        list(client.diversify_stream(vectors, lose_at_most=0.1))
    assert error.value.field == "lose_at_most"


def test_a_stream_ends_before_its_deadline_with_the_best_prefix(client: Client) -> None:
    """So many picks take longer than the deadline allows, and the call ends with status OK."""
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((10_000, 200), dtype=np.float32).astype(np.float16)
    scores = rng.random(len(vectors))
    client.diversify(vectors[:10], scores[:10])
    options: dict[str, Any] = {"k": len(vectors), "selector": "max_sum", "diversity": 0.5}
    # The client raises an error for every other status, such as DEADLINE_EXCEEDED.
    picks = list(client.diversify_stream(vectors, scores, timeout=1.5, **options))
    assert 0 < len(picks) < len(vectors)
    full = vectors.astype(np.float32)
    prepared = prepare_candidates(full, scores, DiversifyParameters(**options))
    expected = iterate_picks(prepared, DiversifyParameters(**options))
    assert picks == list(islice(expected, len(picks)))


def test_a_caller_may_leave_a_stream(client: Client, vectors: FloatArray) -> None:
    stream = client.diversify_stream(vectors, k=ROWS)
    assert next(stream).place == 0
    stream.close()  # type: ignore[attr-defined]  # a generator
    assert len(client.diversify(vectors)) == 10


def test_the_asynchronous_client(
    server: RunningServer, vectors: FloatArray, scores: FloatArray
) -> None:
    async def call() -> tuple[Diversification, list[Pick]]:
        async with AsyncClient(server.target) as client:
            result = await client.diversify(vectors, scores, k=5)
            picks = [pick async for pick in client.diversify_stream(vectors, scores, k=5)]
            return result, picks

    result, picks = asyncio.run(call())
    check_same(result, diversify(vectors, scores, k=5))
    assert [pick.place for pick in picks] == result.places.tolist()


def dense(rows: int, cols: int = 2) -> vectors_pb2.Vectors:
    data = np.ones((rows, cols), np.float32).tobytes()
    return vectors_pb2.Vectors(dense=vectors_pb2.DenseMatrix(rows=rows, cols=cols, data=data))


def no_data(rows: int) -> vectors_pb2.Vectors:
    return vectors_pb2.Vectors(dense=vectors_pb2.DenseMatrix(rows=rows, cols=2))


BAD: list[tuple[str, dict[str, Any]]] = [
    ("vectors", {"vectors": None}),
    ("vectors", {"index": "diversified-cosine"}),
    ("vectors", {"ids": [1]}),
    ("vectors.dense.data", {"vectors": no_data(3)}),
    ("vectors", {"vectors": dense(2, 65_537)}),
    ("index", {"vectors": None, "index": "No Index"}),
    ("metric", {"vectors": None, "index": "diversified-cosine", "metric": 1}),
    ("query", {"vectors": None, "index": "diversified-cosine", "query": dense(1)}),
    ("ids", {"vectors": None, "index": "diversified-cosine", "string_ids": ["no such id"]}),
    ("ids", {"vectors": None, "index": "diversified-cosine", "ids": [7]}),
    ("ids", {"vectors": None, "index": "diversified-cosine", "ids": [1], "string_ids": ["a"]}),
    ("scores", {"scores": [1.0, 2.0]}),
    ("scores", {"scores": [1.0, 2.0, float("nan")]}),
    ("scores", {"scores": [1.0, 2.0, float("-inf")]}),
    ("query", {"query": dense(1), "scores": [1.0, 2.0, 3.0]}),
    ("query", {"query": dense(2)}),
    ("query", {"query": dense(1, 5)}),
    ("query.dense.data", {"query": no_data(1)}),
    ("k", {"k": 4}),
    ("k", {"k": 0}),
    ("diversity", {"diversity": 1.5}),
    ("diversity_auto", {"diversity_auto": True, "diversity": 0.2}),
    ("diversity_auto", {"diversity_auto": True, "selector": 1}),
    ("lose_at_most", {"lose_at_most": -1.0}),
    ("lose_at_most", {"lose_at_most": 0.5, "diversity": 0.5}),
    ("selector", {"selector": 99}),
    ("selector", {"selector": 8}),
    ("metric", {"metric": 99}),
    ("duplicate_threshold", {"duplicate_threshold": 2.0}),
    ("duplicate_threshold", {"duplicate_threshold": -1.0, "metric": 2}),
    ("attributes", {"attributes": [points_pb2.AttributeColumn(name="a", integers=[1, 2, 3])]}),
    ("quotas", {"quotas": [quotas_pb2.Quota(attribute="a", max_each=1)]}),
    ("group_by", {"group_by": quotas_pb2.GroupBy(attribute="a", groups=2)}),
    ("k", {"group_by": quotas_pb2.GroupBy(attribute="a", groups=2), "k": 3}),
]


@pytest.mark.parametrize(("field", "fields"), BAD, ids=repr)
def test_bad_requests_name_their_field(
    stub: DiverseIndexStub,
    server: RunningServer,
    vectors: FloatArray,
    field: str,
    fields: dict[str, Any],
) -> None:
    if fields.get("index") == "diversified-cosine":
        ids = [f"p{row}" for row in range(ROWS)]
        place(server, "diversified-cosine", vectors, ids=ids, metric="cosine")
    values = {"vectors": dense(3)} | fields
    if values["vectors"] is None:
        del values["vectors"]
    request = diversify_pb2.DiversifyRequest(**values)
    stream_request = diversify_pb2.DiversifyStreamRequest(request=request)
    for ask in (
        lambda: stub.Diversify(request, timeout=20),
        lambda: list(stub.DiversifyStream(stream_request, timeout=20)),
    ):
        with pytest.raises(grpc.RpcError) as error:
            ask()
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert violated_field(error.value) == field


@pytest.mark.parametrize(
    "column",
    [
        {"keywords": [0, 1, 2], "words": ["x", "y"]},
        {"keywords": [0, -2, 0], "words": ["x"]},
        {"integers": [1, 2], "ends": [1, 3, 2]},
        {"flags": [0, 1, 2]},
    ],
)
def test_impossible_values_of_attributes(stub: DiverseIndexStub, column: dict[str, Any]) -> None:
    request = diversify_pb2.DiversifyRequest(
        vectors=dense(3),
        quotas=[quotas_pb2.Quota(attribute="a", max_each=1)],
        attributes=[points_pb2.AttributeColumn(name="a", **column)],
    )
    with pytest.raises(grpc.RpcError) as error:
        stub.Diversify(request, timeout=20)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violated_field(error.value) == "attributes.a"


def violated_field(error: grpc.RpcError) -> str:
    from google.rpc import error_details_pb2
    from grpc_status import rpc_status

    status = rpc_status.from_call(error)
    assert status is not None
    bad = error_details_pb2.BadRequest()
    assert any(detail.Unpack(bad) for detail in status.details)
    return str(bad.field_violations[0].field)


def test_unknown_indexes(client: Client) -> None:
    with pytest.raises(IndexNotFoundError):
        client.diversify(name="diversified-nowhere", ids=[1])
    with pytest.raises(IndexNotFoundError):
        list(client.diversify_stream(name="diversified-nowhere", ids=[1]))


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("vectors", {}),
        ("vectors", {"vectors": np.eye(2), "name": "a", "ids": [1]}),
        ("vectors", {"vectors": [["a"]]}),
        ("query", {"vectors": np.eye(2), "scores": [1, 2], "query": [1, 0]}),
        ("scores", {"vectors": np.eye(2), "scores": ["a", "b"]}),
        ("scores", {"vectors": np.eye(2), "scores": [[1, 2]]}),
        ("index", {"name": "No Name", "ids": [1]}),
        ("selector", {"vectors": np.eye(2), "selector": "mrr"}),
        ("candidates_limit", {"vectors": np.eye(2), "candidates_limit": 2}),
    ],
)
def test_the_client_refuses_what_it_cannot_send(
    client: Client, field: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        client.diversify(**arguments)
    assert error.value.field == field


def test_a_deadline_in_the_past(client: Client, vectors: FloatArray) -> None:
    with pytest.raises(RpcError) as error:
        client.diversify(vectors, timeout=1e-6)
    assert error.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_quotas_of_missing_values_and_of_short_lists(client: Client) -> None:
    vectors, quota = np.eye(4), Quota("b", max_each=2)
    for columns in ({"b": [None] * 4}, {"b": list("aabb"), "other": [1, 2, 3, 4]}):
        options: dict[str, Any] = {"k": 2, "attributes": columns, "quotas": quota}
        places = client.diversify(vectors, **options).places
        assert places.tolist() == diversify(vectors, **options).places.tolist()
    assert len(client.diversify([], [], attributes={"b": []}, quotas=quota)) == 0
    assert len(client.diversify(vectors, attributes={"b": list("aabb")}, quotas=[])) == 4
    options = {"quotas": Quota("b", rules={"a": (4, None)}), "attributes": {"b": ["a"] * 3}}
    relaxed = client.diversify(vectors[:3], on_infeasible="relax", **options)
    assert [(lack.required, lack.count) for lack in relaxed.quota_shortfalls] == [(4, 3)]
