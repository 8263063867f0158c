"""Ids, attributes and payloads over the wire: the same as in an `Index` in this process."""

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest
from scipy import sparse

from divgrpc import Index
from divgrpc.errors import IndexNotFoundError, InvalidArgumentError
from divgrpc.evaluation import Grid, evaluate
from divgrpc.types.records import Attribute, Record, Records, SparseVectors
from divgrpc_client import AsyncClient, Client, RpcError
from divgrpc_protos.v1 import index_pb2, points_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.checks.status_details import failure
from support.processes.both_clients import Stack
from support.processes.running_server import RunningServer

ROWS, DIMS = 900, 12
VECTORS = np.random.default_rng(5).normal(size=(ROWS, DIMS)).astype(np.float32)
NAMES = [f"point {row} \N{SNOWMAN}" for row in range(ROWS)]
COLUMNS: dict[str, Any] = {
    "attributes": {
        "brand": [None if row % 4 == 0 else f"b{row % 7}" for row in range(ROWS)],
        "count": [row if row % 5 else None for row in range(ROWS)],
        "price": np.where(np.arange(ROWS) % 6, np.arange(ROWS) / 8, np.nan),
        "sold": [row % 2 == 0 for row in range(ROWS)],
        "tags": [["x", "y", "z"][: row % 4] for row in range(ROWS)],
        "sizes": [list(range(row % 3)) for row in range(ROWS)],
        "nothing": [None] * ROWS,
    },
    "attribute_types": {"nothing": "integer"},
    "payloads": [json.dumps({"row": row}) if row % 3 else None for row in range(ROWS)],
}
ALL: dict[str, Any] = {"with_attributes": True, "with_payload": True}


@pytest.fixture(params=["sync", "aio"])
def ask(request: pytest.FixtureRequest, server: RunningServer) -> Stack:
    """Return each of the two clients, connected to the session's server."""
    return Stack(server.target, is_async=request.param == "aio")


@pytest.fixture(scope="module")
def core() -> Index:
    return Index.build(VECTORS, ids=NAMES, **COLUMNS)


@pytest.fixture(scope="module")
def index(client: Client) -> str:
    """Build an index with text ids, attributes and payloads, in chunks of a few rows."""
    client.build("points", VECTORS, ids=NAMES, replace=True, **COLUMNS)
    return "points"


def all_of(records: Records) -> list[Any]:
    return [(r.id, dict(r.attributes), r.payload) for r in records]


def test_results_equal_those_in_process(ask: Stack, index: str, core: Index) -> None:
    for options in ({}, ALL, {"with_payload": True}, {"with_attributes": True}):
        result = ask("query", index, VECTORS[:30], k=7, timeout=30, **options)
        expected = core.query(VECTORS[:30], k=7, **options)
        assert list(result) == list(expected)
        assert result.ids.dtype == object
        assert (result.attributes, result.payloads) == (expected.attributes, expected.payloads)


def test_collapsed_near_copies_have_texts(ask: Stack, client: Client) -> None:
    vectors = np.repeat(VECTORS[:40], 3, axis=0)
    names = [f"{row}-{copy}" for row in range(40) for copy in range(3)]
    client.build("copied", vectors, ids=names, replace=True)
    result = ask("query", "copied", vectors[:1], k=2, list_collapsed=True, timeout=30)
    copies = [str(result.ids[0, 0]), *result.collapsed(0, 0).tolist()]
    assert sorted(copies) == ["0-0", "0-1", "0-2"]


def test_get_equals_that_in_process(ask: Stack, index: str, core: Index) -> None:
    names = [NAMES[800], "absent", NAMES[0], NAMES[0]]
    records = ask("get", index, names, with_vectors=True, timeout=30)
    expected = core.get(names, with_vectors=True)
    assert all_of(records) == all_of(expected)
    assert isinstance(records.vectors, np.ndarray)
    assert isinstance(expected.vectors, np.ndarray)
    assert records.vectors.tobytes() == expected.vectors.tobytes()
    assert records.generation == ask("get_index", index, timeout=30).generation
    bare = ask("get", index, NAMES[5], with_attributes=False, with_payload=False, timeout=30)
    assert bare[0] == Record(NAMES[5], None, {}, b"")


def test_scroll_yields_every_point(
    ask: Stack, index: str, core: Index, server: RunningServer
) -> None:
    if ask.is_async:

        async def scroll() -> list[Records]:
            async with AsyncClient(server.target) as aio:
                return [page async for page in aio.scroll(index, page_size=400)]

        pages = asyncio.run(scroll())
    else:
        with Client(server.target) as client:
            pages = list(client.scroll(index, page_size=400))
    assert [len(page) for page in pages] == [400, 400, 100]
    expected = [record for page in core.scroll() for record in all_of(page)]
    assert [record for page in pages for record in all_of(page)] == expected
    assert ask("count", index, timeout=30) == ROWS


def test_pages_fit_a_message(client: Client) -> None:
    """150 payloads of 60 kB are 9 MB, so a page has fewer points than it may have."""
    payloads = [bytes([row]) * 60_000 for row in range(150)]
    client.build("heavy", VECTORS[:150], payloads=payloads, replace=True)
    pages = list(client.scroll("heavy"))
    assert len(pages) > 2
    assert [i for page in pages for i in page.ids.tolist()] == list(range(150))
    assert [payload for page in pages for payload in page.payloads] == payloads
    with pytest.raises(RpcError) as error_info:
        client.get("heavy", list(range(150)))
    assert error_info.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "ask for fewer points" in str(error_info.value)


def test_a_batch_whose_answer_does_not_fit_is_halved(ask: Stack, client: Client) -> None:
    """40 results with payloads of 60 kB each would be 9.6 MB."""
    payloads = [bytes([row]) * 60_000 for row in range(100)]
    client.build("batched", VECTORS[:100], payloads=payloads, replace=True)
    result = ask("query", "batched", VECTORS[:40], k=4, with_payload=True, timeout=60)
    assert [hit.payload for hits in result for hit in hits] == [
        payloads[i] for i in result.ids.ravel()
    ]
    with pytest.raises(RpcError, match="ask for fewer rows at a time or a smaller k"):
        ask("query", "batched", VECTORS[0], k=100, with_payload=True, timeout=60)


def test_a_get_of_too_much_is_refused_at_once(client: Client) -> None:
    client.build("weighty", VECTORS[:4], payloads=[b"x" * 65_536] * 4, replace=True)
    with pytest.raises(RpcError, match="ask for fewer points"):
        client.get("weighty", [0] * 10_000, timeout=2)
    assert client.query("weighty", VECTORS[0], k=1, timeout=2).ids.tolist() == [[0]]


def test_pages_of_wide_vectors_are_short(client: Client) -> None:
    wide = np.random.default_rng(1).normal(size=(60, 65_536)).astype(np.float32)
    client.build("wide-points", wide, replace=True)
    pages = list(client.scroll("wide-points", with_vectors=True))
    assert [len(page) for page in pages] == [15, 15, 15, 15]
    assert [i for page in pages for i in page.ids.tolist()] == list(range(60))


def test_integer_ids_stay_numbers(client: Client) -> None:
    client.build("numbered", VECTORS, ids=np.arange(ROWS)[::-1] * 3, replace=True)
    assert client.get("numbered", [6, 3, 4]).ids.tolist() == [6, 3]
    assert client.get("numbered", 6).ids.dtype == np.int64
    (page,) = client.scroll("numbered")
    assert page.ids.tolist() == list(range(0, 3 * ROWS, 3))
    assert page.attributes == {}
    assert page.payloads == ()
    assert client.get_index("numbered").id_kind == "int64"


def test_info_describes_the_columns(client: Client, index: str, core: Index) -> None:
    info = client.get_index(index)
    assert (info.id_kind, info.has_payloads) == ("string", True)
    assert info.attributes == core.info.attributes
    assert Attribute("tags", "keyword", multi=True) in info.attributes


def test_sparse_vectors_come_back(client: Client) -> None:
    matrix = sparse.csr_array(np.where(VECTORS[:60] > 0.5, VECTORS[:60], 0))
    matrix = sparse.csr_array(matrix[np.diff(matrix.indptr) > 0])
    client.build("sparse-points", matrix, metric="inner_product", replace=True)
    vectors = client.get("sparse-points", [3, 0], with_vectors=True).vectors
    assert isinstance(vectors, SparseVectors)
    dense = sparse.csr_array((vectors.values, vectors.indices, vectors.indptr), shape=(2, DIMS))
    np.testing.assert_array_equal(dense.toarray(), matrix[[3, 0]].toarray())


def test_relevant_points_have_text_ids(client: Client) -> None:
    subtopics = np.arange(60) % 3
    client.build("judged", VECTORS[:60], ids=NAMES[:60], subtopics=subtopics, replace=True)
    core = Index.build(VECTORS[:60], ids=NAMES[:60], subtopics=subtopics)
    relevant = [NAMES[row : row + 4] for row in range(10)]
    options: dict[str, Any] = {"ks": [5], "diversities": [0.2]}
    rows = list(client.evaluate("judged", VECTORS[60:70], relevant=relevant, **options))
    expected = evaluate(core, VECTORS[60:70], grid=Grid(**options), relevant=relevant)
    assert [row.metrics for row in rows] == [row.metrics for row in expected]
    with pytest.raises(InvalidArgumentError, match="is no id of the index"):
        list(client.evaluate("judged", VECTORS[60:70], relevant=[["absent"]] * 10, **options))


def test_a_small_build_takes_columns(stub: DiverseIndexStub, client: Client) -> None:
    """A client in any language can send a whole index in one message."""
    request = index_pb2.BuildOnceRequest(index="once-named", replace=True)
    request.vectors.dense.rows, request.vectors.dense.cols = 2, 2
    request.vectors.dense.values.extend([1, 0, 0, 1])
    request.string_ids.extend(["a", "b"])
    request.payloads.extend([b"x", b""])
    request.declarations.add(name="tags", type=points_pb2.ATTRIBUTE_TYPE_KEYWORD, multi=True)
    request.declarations.add(name="n", type=points_pb2.ATTRIBUTE_TYPE_INTEGER)
    request.attributes.add(name="tags", keywords=[0, 1], words=["u", "v"], ends=[2, 2])
    stub.BuildOnce(request, timeout=60)
    records = client.get("once-named", ["b", "a"])
    assert all_of(records) == [
        ("b", {"tags": (), "n": None}, b""),
        ("a", {"tags": ("u", "v"), "n": None}, b"x"),
    ]


def _chunks(fields: dict[str, Any]) -> Iterator[index_pb2.BuildRequest]:
    """Yield an upload of two rows with the declared attributes `a` (bool) and `m` (multi)."""
    header = index_pb2.BuildHeader(index="refused-points")
    header.declarations.add(name="a", type=points_pb2.ATTRIBUTE_TYPE_BOOL)
    header.declarations.add(name="m", type=points_pb2.ATTRIBUTE_TYPE_KEYWORD, multi=True)
    yield index_pb2.BuildRequest(header=header)
    chunk = index_pb2.BuildChunk(**fields)
    chunk.vectors.dense.rows, chunk.vectors.dense.cols = 2, 1
    chunk.vectors.dense.values.extend([1, 2])
    yield index_pb2.BuildRequest(chunk=chunk)
    yield index_pb2.BuildRequest(commit=index_pb2.BuildCommit(rows=2))


def _column(**fields: object) -> dict[str, Any]:
    return {"attributes": [points_pb2.AttributeColumn(**fields)]}  # type: ignore[arg-type]  # fields of the message


def _check_refusal(call: Callable[[], object], field: str, words: str = "") -> None:
    """Check that a call ends with INVALID_ARGUMENT, and what its error says."""
    details = failure(call)
    assert details.code is grpc.StatusCode.INVALID_ARGUMENT
    assert details.fields == (field,)
    assert words in details.message


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"ids": [1, 2], "string_ids": ["a", "b"]}, "string_ids", "not come together"),
        ({"string_ids": ["a"]}, "ids", "one entry per row, 2, got 1"),
        ({"string_ids": ["a", "a"]}, "ids", "'a' occurs twice"),
        ({"string_ids": ["a", ""]}, "ids", "1 to 256 bytes"),
        ({"payloads": [b"a"]}, "payloads", "one entry per row, 2, got 1"),
        (_column(name="b", flags=[1, 0]), "attributes", "declares a, m"),
        (_column(name="a", flags=[1]), "attributes.a", "one value per row, 2, got 1"),
        (_column(name="a", flags=[1, 2]), "attributes.a", "from -1 to 1"),
        (_column(name="a", flags=[1, 300]), "attributes.a", "from -1 to 1"),
        (_column(name="a", integers=[1, 0]), "attributes.a", "values in flags, got integers"),
        (_column(name="a", flags=[1], integers=[1]), "attributes.a", "values in one field"),
        (_column(name="a", flags=[1, 0], ends=[1, 2]), "attributes.a", "declared as multi"),
        (_column(name="m", keywords=[0], words=["x"], ends=[1, 0]), "attributes.m", "ends that"),
        (_column(name="m", keywords=[1], words=["x"], ends=[1, 1]), "attributes.m", "from 0 to 0"),
        ({"attributes": [points_pb2.AttributeColumn(name="a", flags=[1, 0])] * 2}, "attributes.a",
         "once in a chunk"),
    ],
)  # fmt: skip
def test_wrong_chunks_are_refused(
    stub: DiverseIndexStub, fields: dict[str, Any], field: str, words: str
) -> None:
    _check_refusal(lambda: list(stub.Build(_chunks(fields), timeout=60)), field, words)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ([points_pb2.Attribute(name="a")], "must have a type"),
        ([points_pb2.Attribute(name="a b", type=points_pb2.ATTRIBUTE_TYPE_BOOL)], "have names"),
        ([points_pb2.Attribute(name="a", type=points_pb2.ATTRIBUTE_TYPE_BOOL)] * 2, "'a' twice"),
    ],
)
def test_wrong_declarations_are_refused(
    stub: DiverseIndexStub, declared: list[points_pb2.Attribute], words: str
) -> None:
    header = index_pb2.BuildHeader(index="refused-points", declarations=declared)
    upload = iter([index_pb2.BuildRequest(header=header)])
    _check_refusal(lambda: list(stub.Build(upload, timeout=60)), "declarations", words)


def test_wrong_requests_are_refused(stub: DiverseIndexStub, client: Client, index: str) -> None:
    client.build("by-number", VECTORS[:5], replace=True)
    for request, field in (
        (points_pb2.GetRequest(index=index, ids=[1]), "ids"),
        (points_pb2.GetRequest(index="by-number", string_ids=["a"]), "string_ids"),
        (points_pb2.GetRequest(index="by-number", ids=range(10_001)), "ids"),
    ):
        _check_refusal(partial(stub.Get, request, timeout=30), field)
    for token in ("x", "-1", "9" * 19, "9" * 30, "\N{SNOWMAN}"):
        scroll = points_pb2.ScrollRequest(index=index, page_token=token)
        _check_refusal(partial(stub.Scroll, scroll, timeout=30), "page_token")
    calls: tuple[Callable[[], object], ...] = (
        lambda: client.get("nowhere", [1]),
        lambda: client.count("nowhere"),
        lambda: list(client.scroll("nowhere")),
    )
    for call in calls:
        with pytest.raises(IndexNotFoundError):
            call()


@pytest.mark.parametrize(
    ("method", "arguments", "field"),
    [
        ("get", {"ids": ["a", 1]}, "ids"),
        ("get", {"ids": [0.5]}, "ids"),
        ("get", {"ids": [1], "with_vectors": 1}, "with_vectors"),
        ("scroll", {"page_size": 0}, "page_size"),
        ("build", {"vectors": VECTORS[:2], "ids": ["a"]}, "ids"),
        ("build", {"vectors": VECTORS[:2], "attributes": {"a": [1]}}, "attributes.a"),
        ("build", {"vectors": VECTORS[:2], "payloads": [b"a"]}, "payloads"),
    ],
)
def test_wrong_arguments_are_not_sent(
    client: Client, method: str, arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgumentError) as error_info:
        getattr(client, method)("any", **arguments)
    assert error_info.value.field == field


def test_a_page_after_the_last_is_empty(stub: DiverseIndexStub, client: Client) -> None:
    """The index may have been replaced by a smaller one between two pages."""
    client.build("shrunk", VECTORS[:5], replace=True)
    request = points_pb2.ScrollRequest(index="shrunk", page_token="77")  # noqa: S106  # no password
    answer = stub.Scroll(request, timeout=30)
    assert (len(answer.points.ids), answer.next_page_token) == (0, "")
