"""Sparse points that are written over the wire give the states that they give in process."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from scipy import sparse

from divgrpc import Collection, Field
from divgrpc.errors import InvalidArgumentError
from divgrpc.types import QueryResult
from divgrpc.types.records import SparseVectors
from divgrpc.vectors import as_rows
from divgrpc_client import Client, Delete, Upsert
from reference.index import same_bytes
from support.checks.refusals import failing
from support.data.served_index import place, twin
from support.processes.both_clients import Stack
from support.processes.running_server import RunningServer

ROWS, DIMS = 500, 900
_RNG = np.random.default_rng(8)
POINTS = sparse.random_array(
    (ROWS + 200, DIMS), density=0.02, format="csr", dtype=np.float32, rng=_RNG
)
QUERIES = sparse.random_array((6, DIMS), density=0.02, format="csr", dtype=np.float32, rng=_RNG)
_NUMBERS = itertools.count()


@pytest.fixture
def name(server: RunningServer) -> str:
    """Build an index of sparse points into the server's folder."""
    name = f"sparse-written-{next(_NUMBERS)}"
    place(server, name, POINTS[:ROWS], attributes={"price": np.arange(ROWS) / 8})
    return name


def check_same_state(client: Client, name: str, collection: Collection) -> None:
    """Compare answers, records and the description with those in process."""
    for options in (
        {"k": 5, "search": "exact", "candidates_limit": 20},
        {"k": 5, "search": "scan", "hash_limit": 50},
        {"k": 5, "filter": Field("price") < 30},
    ):
        arguments: Any = options
        for queries in (QUERIES, QUERIES.toarray()):
            wire: QueryResult = client.query(name, queries, **arguments)
            core = collection.query(queries, **arguments)
            assert same_bytes(wire, core)
            assert (wire.generation, wire.sequence) == (core.generation, core.sequence)
    pages = list(client.scroll(name, with_vectors=True, page_size=100))
    core_pages = collection.scroll(with_vectors=True, page_size=100)
    for page, core_page in zip(pages, core_pages, strict=True):
        assert page.ids.tolist() == core_page.ids.tolist()
        for column in ("indptr", "indices", "values"):
            wire_column, core_column = (getattr(p.vectors, column) for p in (page, core_page))
            assert np.array_equal(wire_column, core_column)
    info, core_info = client.get_index(name), collection.info
    assert (info.rows, info.nonzeros, info.writes) == (
        core_info.rows, core_info.nonzeros, core_info.writes
    )  # fmt: skip
    sizes = [len(page.vectors.indices) for page in pages if isinstance(page.vectors, SparseVectors)]
    assert info.nonzeros == sum(sizes)


@pytest.fixture(params=["sync", "aio"])
def ask(request: pytest.FixtureRequest, server: RunningServer) -> Stack:
    """Return each of the two clients, connected to the session's server."""
    return Stack(server.target, is_async=request.param == "aio")


def test_sparse_writes_equal_those_in_process(
    ask: Stack, client: Client, server: RunningServer, name: str, tmp_path: Path
) -> None:
    with twin(server, name, tmp_path) as collection:
        ids = [5, 10**12, ROWS]
        new: Any = {"attributes": {"price": [1, None, 2.5]}}
        assert ask("upsert", name, ids, POINTS[ROWS : ROWS + 3], **new) == collection.upsert(
            ids, POINTS[ROWS : ROWS + 3], **new
        )
        check_same_state(client, name, collection)
        records = [{"id": 7 + row, "vector": POINTS[[ROWS + row]]} for row in range(40)]
        assert ask("upsert_records", name, records) == collection.upsert_records(records)
        writes = [
            Upsert([600 + row], POINTS[[ROWS + 100 + row]], write_id=f"row {row}")
            for row in range(30)
        ]
        for item in writes:
            collection.upsert(item.ids, item.vectors, write_id=item.write_id or "")
        collection.delete([1, 2])
        assert len(ask("write_stream", name, [*writes, Delete([1, 2])])) == 31
        check_same_state(client, name, collection)
        changes: Any = {"attributes": {"price": [3.5]}}
        assert ask("upsert", name, [5], **changes) == collection.upsert([5], **changes)
        for is_vacuum in (False, True):
            assert ask("compact", name, vacuum=is_vacuum) == collection.compact(vacuum=is_vacuum)
            check_same_state(client, name, collection)
        assert ask("retrain", name) == collection.retrain()
        check_same_state(client, name, collection)
        assert ask("delete", name, filter=Field("price") < 10).rows > 0
        collection.delete(filter=Field("price") < 10)
        check_same_state(client, name, collection)


def test_sparse_vectors_must_fit_the_index(ask: Stack, client: Client, name: str) -> None:
    no_values = sparse.csr_array((1, DIMS), dtype=np.float32)
    for vectors in (POINTS[:1].toarray(), POINTS[:1, :5], POINTS[:1] * np.nan, no_values):
        with failing(grpc.StatusCode.INVALID_ARGUMENT, InvalidArgumentError, field="vectors"):
            ask("upsert", name, [1], vectors)
    rows = [POINTS[[0]], POINTS[[1]][:, :5]]
    writes: list[Callable[[], object]] = [
        lambda: ask("upsert", name, [1, 2], rows),
        lambda: as_rows("vectors", rows, None),
    ]
    for write in writes:
        with pytest.raises(InvalidArgumentError, match="the same number of columns") as fault:
            write()
        assert fault.value.field == "vectors"
    assert client.query(name, QUERIES, k=1).sequence == 0
