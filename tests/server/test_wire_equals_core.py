"""The wire gives what the core gives, byte for byte."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc import Index
from divgrpc.types import QueryResult
from divgrpc_client import Client
from divgrpc_protos.v1 import query_pb2, vectors_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from running import RunningServer
from served import Served, random_points

FAMILIES = ("lsh_div", "lsh_sdiv", "pca_hash")
SEARCHES = ("auto", "tables", "scan", "scan_hamming", "exact")
SELECTIONS = (
    {"selector": "nearest"},
    {"selector": "greedy", "variant": "corrected"},
    {"selector": "greedy", "variant": "printed"},
    {"selector": "greedy", "variant": "marginal"},
    {"selector": "mmr"},
)


@pytest.fixture(scope="module", params=FAMILIES)
def both(request: pytest.FixtureRequest, server: RunningServer, client: Client) -> Any:  # noqa: ANN401
    """Build an index over the wire, and open its folder in this process."""
    family = request.param
    name = f"equal-{family.replace('_', '-')}"
    client.build(name, random_points(seed=3), hash_family=family, ids=np.arange(1500) * 7)
    return name, Index.open(server.folder / "data" / name)


def assert_same(wire: QueryResult, core: QueryResult) -> None:
    """Compare everything that a result holds, numbers by their bytes."""
    for name in ("ids", "scores", "selection_scores", "counts"):
        ours, theirs = getattr(wire, name), getattr(core, name)
        assert ours.dtype == theirs.dtype, name
        assert ours.tobytes() == theirs.tobytes(), name
    for name in ("points_hashed", "buckets_probed", "points_scored", "candidates"):
        assert np.array_equal(getattr(wire.stats, name), getattr(core.stats, name)), name
    assert wire.generation == core.generation
    assert wire.parameters == core.parameters
    assert wire.warnings == core.warnings


@pytest.mark.parametrize("selection", SELECTIONS, ids=lambda chosen: "-".join(chosen.values()))
@pytest.mark.parametrize("search", SEARCHES)
def test_the_wire_gives_what_the_core_gives(
    both: tuple[str, Index], client: Client, search: str, selection: dict[str, Any]
) -> None:
    """Alone and in batches of 1 to 64 rows, every way of searching and selecting is the core's."""
    name, index = both
    queries = random_points(64, seed=4)
    options = {"k": 7, "search": search, "seed": 11, "hash_limit": 300, **selection}
    core = index.query(queries, **options)
    assert_same(client.query(name, queries, **options), core)
    for size in (1, 2, 8, 9, 33):
        assert_same(
            client.query(name, queries[:size], **options), index.query(queries[:size], **options)
        )
    row = client.query(name, queries[40], **options)
    assert row.ids.tobytes() == core.ids[40:41].tobytes()
    assert row.scores.tobytes() == core.scores[40:41].tobytes()


@pytest.mark.parametrize(
    "options",
    [
        {"k": 1},
        {"diversity": 0.0},
        {"diversity": 1.0},
        {"candidates_limit": 10},
        {"max_distance": 0.4, "k": 20},
        {"epsilon": 0.5},
        {"sampling": "nearest", "hash_limit": 50, "search": "tables"},
        {"hash_limit": 0, "candidates_limit": 0},
        {"k": 2000},
        {"seed": 2**64 - 1, "hash_limit": 40, "search": "tables"},
    ],
    ids=str,
)
def test_every_option_travels(
    both: tuple[str, Index], client: Client, options: dict[str, Any]
) -> None:
    """Options, short rows and warnings arrive as the core has them, however a batch is cut."""
    name, index = both
    queries = random_points(20, seed=5)
    assert_same(client.query(name, queries, **options), index.query(queries, **options))


def test_half_precision_queries_are_widened(both: tuple[str, Index], client: Client) -> None:
    """A float16 query is answered as the float32 numbers it stands for."""
    name, index = both
    queries = random_points(3, seed=6).astype(np.float16)
    assert_same(client.query(name, queries), index.query(queries.astype(np.float32)))


def test_a_large_batch_is_one_answer(server: RunningServer, client: Client, served: Served) -> None:
    """A batch that travels by memory file and is cut into pieces is what the core answers."""
    index = Index.open(Path(server.folder, "data", served.name))
    queries = random_points(3000, seed=7)
    assert queries.nbytes > 4 * 65536
    assert_same(client.query(served.name, queries), index.query(queries))


def test_plain_numbers_are_enough(stub: DiverseIndexStub, served: Served) -> None:
    """Query works with nothing but the generated stub and `values`, as from another language."""
    rows, cols = served.queries[:2].shape
    matrix = vectors_pb2.DenseMatrix(
        rows=rows, cols=cols, values=served.queries[:2].ravel().tolist()
    )
    request = query_pb2.QueryRequest(
        index=served.name, queries=vectors_pb2.Vectors(dense=matrix), k=3
    )
    response = stub.Query(request, timeout=10)
    assert list(response.offsets) == [0, 3, 6]
    assert len(response.ids) == len(response.scores) == len(response.selection_scores) == 6
    nearest = served.points[response.ids[0]]
    cosine = nearest @ served.queries[0]
    cosine /= np.linalg.norm(nearest) * np.linalg.norm(served.queries[0])
    assert response.scores[0] == pytest.approx(cosine, abs=1e-5)
    assert response.parameters.k == 3
    assert response.generation == 1
