"""Queries over the wire return the same bytes as queries of an `Index` in this process."""

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.sparse import csr_array

from divgrpc import Index
from divgrpc.types import FloatArray, QueryResult, Selector
from divgrpc_client import Client
from support.data.served_index import DIMS, Served, place, random_points
from support.processes.running_server import RunningServer

FAMILIES = ("lsh_div", "lsh_sdiv", "pca_hash", "cells", "auto")
METRICS = ("cosine", "euclidean", "inner_product")
SEARCHES = ("auto", "tables", "scan", "scan_hamming", "exact")
SELECTIONS = (
    {"selector": "nearest"},
    {"selector": "greedy", "variant": "corrected"},
    {"selector": "greedy", "variant": "printed"},
    {"selector": "greedy", "variant": "marginal"},
    {"selector": "mmr"},
    {"selector": "rerank"},
    {"selector": "max_sum"},
    {"selector": "dpp"},
    {"selector": "qp_relax"},
    {"selector": "qp_relax", "variant": "printed", "rounding": "top_k"},
)
FEW = 600


class Both(NamedTuple):
    """An index, its name on the server, and the same queries as a dense and as a sparse array."""

    name: str
    core: Index
    queries: tuple[FloatArray, csr_array]


def spread(rows: int, *, dims: int = DIMS, seed: int = 0) -> FloatArray:
    """Return points whose norms differ by a factor of up to 100, to test inner products."""
    scale = 10 ** np.random.default_rng(seed).uniform(-1, 1, (rows, 1))
    return (random_points(rows, dims=dims, seed=seed) * scale).astype(np.float32)


def thinned(points: FloatArray, share: float = 0.1) -> FloatArray:
    mask = np.random.default_rng(len(points)).random(points.shape) < share
    mask[:, 0] = True
    return np.where(mask, points, 0).astype(np.float32)


@pytest.fixture(scope="module", params=["lsh_sdiv", "cells"])
def both(request: pytest.FixtureRequest, server: RunningServer) -> Both:
    """Build a dense index of a hash family, with ids that differ from row numbers."""
    name = f"equal-{request.param.replace('_', '-')}"
    ids = np.arange(1500) * 7
    index = place(server, name, random_points(seed=3), hash_family=request.param, ids=ids)
    queries = random_points(64, seed=4)
    return Both(name, index, (queries, csr_array(queries)))


@pytest.fixture(
    scope="module",
    params=[
        # Each hash family with each metric; dense and sparse points alternate.
        (family, metric, ("dense", "sparse")[(number + column) % 2])
        for number, family in enumerate(FAMILIES)
        for column, metric in enumerate(METRICS)
    ],
    ids="-".join,
)
def kind(request: pytest.FixtureRequest, server: RunningServer) -> Both:
    """Build an index of a hash family and a metric, of dense or sparse points."""
    family, metric, points = request.param
    dims = DIMS if points == "dense" else 200
    vectors, queries = spread(FEW, dims=dims, seed=1), spread(12, dims=dims, seed=2)
    options: dict[str, Any] = {"hash_family": family, "metric": metric, "target_recall": 0.5}
    options["categories"] = np.arange(FEW) % 3
    if points == "sparse":
        vectors, queries = csr_array(thinned(vectors)), thinned(queries)
    index = place(server, "kind", vectors, **options)
    assert index.info.points == points
    return Both("kind", index, (queries, csr_array(queries)))


def assert_same(wire: QueryResult, core: QueryResult) -> None:
    """Compare all fields of two results; arrays must have the same bytes."""
    for name in ("ids", "scores", "selection_scores", "counts", "duality_gaps", "diversities"):
        array, expected_array = getattr(wire, name), getattr(core, name)
        assert array.dtype == expected_array.dtype, name
        assert array.tobytes() == expected_array.tobytes(), name
    for name in ("points_hashed", "buckets_probed", "points_scored", "candidates"):
        assert np.array_equal(getattr(wire.stats, name), getattr(core.stats, name)), name
    assert wire.dial_reasons.tolist() == core.dial_reasons.tolist()
    assert wire.generation == core.generation
    assert wire.parameters == core.parameters
    assert wire.warnings == core.warnings


@pytest.mark.parametrize("search", SEARCHES)
def test_every_kind_of_index_equals_the_core(kind: Both, client: Client, search: str) -> None:
    """All searches and selectors are compared, with dense and with sparse queries."""
    limits = {"k": 6, "candidates_limit": 40, "hash_limit": 200}
    for queries, selection in itertools.product(kind.queries, SELECTIONS):
        options: dict[str, Any] = {"search": search, "seed": 5, **limits, **selection}
        expected = kind.core.query(queries, **options)
        assert_same(client.query(kind.name, queries, **options), expected)
        row = client.query(kind.name, queries[10:11], **options)
        assert row.ids.tobytes() == expected.ids[10:11].tobytes()
        assert row.scores.tobytes() == expected.scores[10:11].tobytes()


@pytest.mark.parametrize("selector", ["greedy", "mmr", "dpp"])
@pytest.mark.parametrize("dial", [{"diversity": "auto"}, {"lose_at_most": 0.05}], ids=str)
def test_chosen_diversities_equal_the_core(
    both: Both, client: Client, selector: Selector, dial: dict[str, Any]
) -> None:
    """Each row's diversity and the reason for it are compared, in a batch and in a single row."""
    for queries in both.queries:
        expected = both.core.query(queries, k=6, selector=selector, **dial)
        assert len(set(expected.diversities.tolist())) > 1
        assert_same(client.query(both.name, queries, k=6, selector=selector, **dial), expected)
        row = client.query(both.name, queries[10:11], k=6, selector=selector, **dial)
        assert row.diversities.tolist() == expected.diversities[10:11].tolist()


def test_every_kind_of_index_describes_itself(kind: Both, client: Client) -> None:
    """GetIndex returns what `Index.info` returns, including the choices that Build made."""
    info = kind.core.info
    assert client.get_index(kind.name) == info
    assert info.choices
    apart = info.points == "sparse" and info.parameters["metric"] != "euclidean"
    assert (info.auto_search_dense is not None) == apart


@pytest.mark.parametrize(
    "selection", SELECTIONS, ids=lambda selection_: "-".join(selection_.values())
)
@pytest.mark.parametrize("search", SEARCHES)
def test_batches_of_any_size_equal_the_core(
    both: Both, client: Client, search: str, selection: dict[str, Any]
) -> None:
    """All searches and selectors are compared, for one row and for batches of 1 to 64 rows."""
    name, index, (queries, _) = both
    options = {"k": 7, "search": search, "seed": 11, "hash_limit": 300, **selection}
    core = index.query(queries, **options)
    assert_same(client.query(name, queries, **options), core)
    for size in (1, 2, 8, 9, 33):
        some = queries[:size]
        assert_same(client.query(name, some, **options), index.query(some, **options))
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
        {"n_probes": 1, "search": "tables"},
        {"n_probes": 2**31 - 1, "search": "tables"},
    ],
    ids=str,
)
def test_every_option_equals_the_core(both: Both, client: Client, options: dict[str, Any]) -> None:
    """Warnings, and results with fewer than `k` points, are equal too."""
    name, index, _ = both
    queries = random_points(12, seed=5)
    assert_same(client.query(name, queries, **options), index.query(queries, **options))


def test_a_large_batch_is_one_answer(
    server: RunningServer, client: Client, served_index: Served
) -> None:
    """The batch travels in a memory file and is answered in slices, with the core's result."""
    index = Index.open(Path(server.folder, "data", served_index.name))
    queries = random_points(3000, seed=7)
    assert queries.nbytes > 4 * 65536
    assert_same(client.query(served_index.name, queries), index.query(queries))
