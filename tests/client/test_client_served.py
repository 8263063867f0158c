"""Both clients with a real server."""

import asyncio
from pathlib import Path

import grpc
import numpy as np
import pytest
import scipy.sparse
from grpc_health.v1 import health_pb2

from divgrpc.errors import IndexExistsError, IndexNotFoundError, InvalidArgumentError
from divgrpc.parameters import LIMITS
from divgrpc.types import QueryResult
from divgrpc_client import AsyncClient, Client, Progress, RpcError
from divgrpc_client.rpc.channels import SERVICE, SERVING, WATCH_REQUEST
from support.checks.refusals import failing
from support.processes.both_clients import Stack
from support.processes.running_server import RunningServer

ROWS, DIMS = 2000, 24


@pytest.fixture(params=["sync", "aio"])
def ask(request: pytest.FixtureRequest, server: RunningServer) -> Stack:
    """Return each of the two clients, connected to the session's server."""
    return Stack(server.target, is_async=request.param == "aio")


@pytest.fixture(scope="module")
def points() -> np.ndarray:
    return np.random.default_rng(8).normal(size=(ROWS, DIMS)).astype(np.float32)


@pytest.fixture(scope="module")
def index(client: Client, points: np.ndarray) -> str:
    """Return the name of an index of `points`, with ids that differ from row numbers."""
    client.build("clients", points, ids=np.arange(ROWS) * 3, replace=True)
    return "clients"


def test_a_memory_mapped_file_is_built_with_progress(
    ask: Stack, points: np.ndarray, tmp_path: Path
) -> None:
    """The index serves as soon as the build returns."""
    path = tmp_path / "points.npy"
    np.save(path, points.astype(np.float16))
    steps: list[Progress] = []
    vectors = np.load(path, mmap_mode="r")
    info = ask("build", "mapped", vectors, replace=True, progress=steps.append)
    assert (info.name, info.rows, info.dims) == ("mapped", ROWS, DIMS)
    assert steps[-1].rows_done == ROWS
    assert {step.rows_total for step in steps if step.rows_total} == {ROWS}
    result = ask("query", "mapped", points[:3], diversity=0, timeout=30)
    assert result.ids[:, 0].tolist() == [0, 1, 2]
    assert result.generation == info.generation
    assert ask("delete_index", "mapped", timeout=30) == info.generation


def test_streams_and_batches_return_the_bytes_of_single_queries(
    ask: Stack, index: str, points: np.ndarray
) -> None:
    options = {"k": 7, "diversity": 0.4, "seed": 5}
    batch = ask("query", index, points[:40], timeout=30, **options)
    results = ask("query_stream", index, points[:40], **options)
    assert batch.ids[:, 0].tolist() == [3 * row for row in range(40)]
    assert len(results) == 40
    for row, one in enumerate(results):
        assert one.ids.tobytes() == batch.ids[row].tobytes()
        assert one.scores.tobytes() == batch.scores[row].tobytes()
    alone = ask("query", index, points[0], timeout=30, **options)
    for name in ("ids", "scores", "selection_scores", "counts"):
        assert getattr(alone, name).tobytes() == getattr(results[0], name).tobytes()
    assert alone.parameters == batch.parameters


def test_large_batches(client: Client, index: str, points: np.ndarray) -> None:
    """A batch above the maximum number of rows returns the same results as smaller batches."""
    rows = LIMITS["query_rows_max"] + 5
    many = np.resize(points, (rows, DIMS))
    whole = client.query(index, many, k=2, timeout=60)
    assert whole.ids.shape == (rows, 2)
    last = client.query(index, many[-5:], k=2)
    for name in ("ids", "scores", "selection_scores", "counts"):
        assert getattr(last, name).tobytes() == getattr(whole, name)[-5:].tobytes()


def test_k_above_the_number_of_points(ask: Stack, index: str, points: np.ndarray) -> None:
    """If k exceeds the number of points, all points are returned, padded to k, with a warning."""
    result = ask("query", index, points[0], k=ROWS + 10, search="exact", hash_limit=0, timeout=30)
    assert result.ids.shape == (1, ROWS + 10)
    assert result.counts.tolist() == [ROWS]
    assert result.ids[0, ROWS:].tolist() == [-1] * 10
    assert np.isnan(result.scores[0, ROWS:]).all()
    assert "FEWER_THAN_K_POINTS" in {warning.code for warning in result.warnings}


def test_errors_have_the_classes_of_the_core(ask: Stack, index: str, points: np.ndarray) -> None:
    """Errors from the server have the core's classes, and also the status code."""
    with pytest.raises(IndexNotFoundError):
        ask("get_index", "nowhere", timeout=30)
    with failing(grpc.StatusCode.ALREADY_EXISTS, IndexExistsError):
        ask("build", index, points)
    with failing(grpc.StatusCode.INVALID_ARGUMENT, InvalidArgumentError, field="queries"):
        ask("query", index, points[0, :5], timeout=30)
    with pytest.raises(InvalidArgumentError, match="at least k = 10, got 5") as local:
        ask("query", index, points[0], k=10, candidates_limit=5)
    assert not isinstance(local.value, RpcError)


def test_bad_rows_are_named_during_the_upload(ask: Stack) -> None:
    """The error names the field and the row, and no index is left behind."""
    vectors = np.ones((60_000, 32), np.float32)
    vectors[40_000, 3] = np.nan
    with pytest.raises(RpcError, match="40000") as error_info:
        ask("build", "holed", vectors)
    assert error_info.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert error_info.value.field.startswith("vectors")
    with pytest.raises(IndexNotFoundError):
        ask("get_index", "holed", timeout=30)


def test_sparse_rows_in_any_order(ask: Stack, index: str) -> None:
    """Rows whose columns are not sorted are uploaded in several chunks and queried."""
    rng = np.random.default_rng(0)
    sorted_rows = scipy.sparse.random(9_000, 400, 0.1, "csr", np.float32, rng=rng)
    rows = sorted_rows[:, ::-1][:, ::-1].tocoo()
    info = ask("build", "sparse-rows", rows, replace=True, hash_family="lsh_div", timeout=60)
    assert (info.points, info.nonzeros) == ("sparse", sorted_rows.nnz)
    assert sorted_rows.data.nbytes * 2 > 2 * LIMITS["chunk_bytes"]
    result = ask("query", "sparse-rows", rows.tocsr()[:5], k=1, search="exact", timeout=30)
    assert result.ids[:, 0].tolist() == [0, 1, 2, 3, 4]
    dense = np.eye(3, DIMS, dtype=np.float32)
    of_dense = ask("query", index, dense, timeout=30)
    of_sparse = ask("query", index, scipy.sparse.csr_array(dense), timeout=30)
    assert of_sparse.ids.tolist() == of_dense.ids.tolist()


def test_waiting_until_ready(ask: Stack) -> None:
    ask("wait_until_ready", timeout=30)
    info = ask("server_info", timeout=30)
    assert info.kernels_ready
    assert info.limits["k_max"] == LIMITS["k_max"]
    assert (info.workers, info.durable) == (2, True)


def test_health_messages_are_what_the_package_makes() -> None:
    """The client uses fixed bytes, which equal messages of the package grpc.health.v1."""
    request = health_pb2.HealthCheckRequest(service=SERVICE)
    assert request.SerializeToString() == WATCH_REQUEST
    serving = health_pb2.HealthCheckResponse.SERVING
    assert health_pb2.HealthCheckResponse(status=serving).SerializeToString() == SERVING


async def _many(target: str, index: str, points: np.ndarray) -> list[QueryResult]:
    async with AsyncClient(target, timeout=30) as client:
        return await asyncio.gather(*(client.query(index, point) for point in points))


def test_many_calls_at_once(server: RunningServer, index: str, points: np.ndarray) -> None:
    results = asyncio.run(_many(server.target, index, points[:100]))
    assert [int(result.ids[0, 0]) for result in results] == [3 * row for row in range(100)]
