"""Pages over the wire are those of this process, and wrong ones end with a status and a field."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from scipy import sparse

from divgrpc import Collection, Field, Index
from divgrpc.errors import InvalidArgumentError
from divgrpc.types import QueryResult
from divgrpc_client import Client
from divgrpc_client.messages.vectors import encode
from divgrpc_protos.v1 import query_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.checks.status_details import failure
from support.data.written_points import same_answers
from support.processes.both_clients import Stack
from support.processes.running_server import RunningServer

ROWS, DIMS = 400, 8
VECTORS = np.random.default_rng(15).normal(size=(ROWS, DIMS)).astype(np.float32)
NAMES = [f"p{row}" for row in range(ROWS)]
SIZES = list(range(ROWS))
QUERY = VECTORS[0] + 0.1


@pytest.fixture(params=["sync", "aio"])
def ask(request: pytest.FixtureRequest, server: RunningServer) -> Stack:
    """Return each of the two clients, connected to the session's server."""
    return Stack(server.target, is_async=request.param == "aio")


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Index:
    path = tmp_path_factory.mktemp("pages") / "paged"
    return Index.build(VECTORS, ids=NAMES, attributes={"size": SIZES}, path=path)


@pytest.fixture(scope="module")
def index(client: Client) -> str:
    client.build("paged", VECTORS, ids=NAMES, attributes={"size": SIZES}, replace=True)
    return "paged"


OPTIONS: list[dict[str, Any]] = [
    {"k": 9},
    {"k": 7, "selector": "mmr", "filter": Field("size") < 100, "exclude_ids": ["p3"]},
    {"k": 5, "diversity": "auto", "selector": "dpp", "with_attributes": True},
    {"k": 5, "lose_at_most": 0.1, "already_shown": ["p1", "absent"]},
    {"k": 6, "already_shown": VECTORS[:3], "list_collapsed": True},
    {"k": 6, "already_shown": sparse.csr_array(VECTORS[:3])},
]


@pytest.mark.parametrize("options", OPTIONS, ids=range(len(OPTIONS)))
def test_pages_equal_those_in_process(
    ask: Stack, index: str, core: Index, options: dict[str, Any]
) -> None:
    """The tokens are the same too, so that either side continues the other."""
    pages: list[QueryResult] = ask("pages", index, QUERY, **options)
    expected = list(core.pages(QUERY, **options))
    assert len(pages) == len(expected)
    for page, other in zip(pages, expected, strict=True):
        assert same_answers(page, other)
        assert page.next_page_token == other.next_page_token
        assert page.warnings == other.warnings
    continued = ask("query", index, QUERY, page_token=expected[0].next_page_token, **options)
    assert same_answers(continued, expected[1])
    later = ask("pages", index, QUERY, page_token=pages[0].next_page_token, **options)
    assert [page.ids.tolist() for page in later] == [page.ids.tolist() for page in pages[1:]]


def test_pages_like_a_point(ask: Stack, index: str, core: Index) -> None:
    pages = ask("pages", index, like="p5", k=50)
    expected = list(core.pages(like="p5", k=50))
    assert [page.ids.tolist() for page in pages] == [page.ids.tolist() for page in expected]


def test_rows_of_a_batch_have_the_same_points_already_shown(
    ask: Stack, index: str, core: Index
) -> None:
    """The server answers a batch in slices."""
    result = ask("query", index, VECTORS[:40], k=3, already_shown=["p1", "absent"])
    expected = core.query(VECTORS[:40], k=3, already_shown=["p1", "absent"])
    assert same_answers(result, expected)
    assert result.warnings == expected.warnings
    like = ask("query", index, like=NAMES[:40], k=3, already_shown=["p1"])
    assert like.ids.tolist() == core.query(like=NAMES[:40], k=3, already_shown=["p1"]).ids.tolist()


def test_pages_go_on_while_points_are_written(ask: Stack, client: Client) -> None:
    name = "paged-live"
    client.build(name, VECTORS, replace=True)
    ids: list[int] = []
    token = None
    deleted: set[int] = set()
    for turn in range(100):
        page = ask("query", name, QUERY, k=9, paged=True, page_token=token, keep_duplicates=True)
        shown = page.ids[0, : page.counts[0]].tolist()
        ids += shown
        token = page.next_page_token
        if not token or len(shown) < 2:
            break
        deleted |= {shown[0], 399 - turn}
        client.delete(name, [shown[0], 399 - turn])
        client.upsert(name, [shown[1], 1_000 + turn], VECTORS[turn : turn + 2])
        if turn % 10 == 5:
            client.compact(name, vacuum=turn % 20 == 5)
    assert len(ids) == len({*ids})
    assert {*range(ROWS)} - deleted <= {*ids}
    assert "CURSOR_MOVED" in [warning.code for warning in page.warnings]


def test_pages_end_with_the_caller(ask: Stack, index: str) -> None:
    """A stream of pages raises errors of arguments at once, and has no page after the last."""
    with pytest.raises(InvalidArgumentError) as error:
        ask("pages", index, VECTORS[:2])
    assert error.value.field == "queries"
    assert ask("pages", index, QUERY, filter=Field("size") < 0) == []


@pytest.fixture
def stub(server: RunningServer) -> Iterator[DiverseIndexStub]:
    with grpc.insecure_channel(server.target) as channel:
        yield DiverseIndexStub(channel)


def request_of(name: str, rows: int = 1, **fields: Any) -> query_pb2.QueryRequest:  # noqa: ANN401
    """Return a request for page 1."""
    queries = encode(VECTORS, 0, rows)
    return query_pb2.QueryRequest(index=name, k=4, paged=True, queries=queries, **fields)


def field_of(stub: DiverseIndexStub, request: query_pb2.QueryRequest) -> str:
    """Return the field that the error for a request names."""
    details = failure(stub.Query, request)
    assert details.code is grpc.StatusCode.INVALID_ARGUMENT
    [field] = details.fields
    return field


def test_a_wrong_token_is_refused(stub: DiverseIndexStub, client: Client, index: str) -> None:
    token = stub.Query(request_of(index)).next_page_token
    assert len(stub.Query(request_of(index, page_token=token)).string_ids) == 4
    wrong_tokens = ["", "x", token[1:]]
    for place in range(0, len(token), 7):
        character = "B" if token[place] != "B" else "C"
        wrong_tokens.append(token[:place] + character + token[place + 1 :])
    for wrong in wrong_tokens:
        assert field_of(stub, request_of(index, page_token=wrong)) == "page_token"
    for fields in ({"seed": 3}, {"exclude_string_ids": ["p1"]}, {"n_probes": 3}):
        request = request_of(index, page_token=token, **fields)
        assert field_of(stub, request) == "page_token"
    client.build("paged-other", VECTORS, ids=NAMES, replace=True)
    assert field_of(stub, request_of("paged-other", page_token=token)) == "page_token"


def test_wrong_requests_name_their_field(stub: DiverseIndexStub, index: str) -> None:
    """The client refuses some of them itself, so they are sent without it."""
    assert field_of(stub, request_of(index, rows=2)) == "queries"
    relaxed = request_of(index, selector=query_pb2.SELECTOR_QP_RELAX)
    assert field_of(stub, relaxed) == "selector"
    narrow = encode(VECTORS[:, :2].copy(), 0, 1)
    wrong_points: list[dict[str, Any]] = [
        {"already_shown_ids": [1]},
        {"already_shown_string_ids": ["p1"] * 1_001},
        {"already_shown_string_ids": ["p1"], "already_shown": encode(VECTORS, 0, 1)},
        {"already_shown": narrow},
        {"already_shown": encode(np.tile(VECTORS, (3, 1)), 0, 1_001)},
    ]
    for fields in wrong_points:
        assert field_of(stub, request_of(index, **fields)) == "already_shown"
    malformed = request_of(index)
    malformed.already_shown.dense.rows = 5
    assert field_of(stub, malformed).startswith("already_shown")


def test_tokens_go_on_after_a_retraining(tmp_path: Path) -> None:
    with Collection.build(VECTORS, path=tmp_path / "live") as collection:
        first = collection.query(QUERY, k=20, paged=True, keep_duplicates=True)
        shown = first.ids[0].tolist()
        collection.delete(shown[:3])
        collection.upsert(shown[:2], VECTORS[shown[:2]])
        collection.retrain()
        pages = collection.pages(
            QUERY, k=20, keep_duplicates=True, page_token=first.next_page_token
        )
        second = next(pages)
        assert second.generation > first.generation
        [warning] = second.warnings
        assert warning.code == "CURSOR_MOVED"
        assert "; 1 of the points shown were deleted" in warning.message
        rest = [hit.id for page in (second, *pages) for hit in page[0]]
        assert sorted(shown + rest) == list(range(ROWS))
