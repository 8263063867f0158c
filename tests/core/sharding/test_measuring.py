"""Tuning points on shards gives the same numbers as tuning a whole index."""

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from divgrpc.builder.assembly import _tune_for_dense
from divgrpc.builder.nearest import find_nearest
from divgrpc.builder.tuning import Tuning, tune
from divgrpc.index import Index
from divgrpc.kernels import replies
from divgrpc.parameters import QueryParameters
from divgrpc.search.plan import QueryPlan
from divgrpc.search.searcher import Searcher
from divgrpc.sharding.best_points import BestPoints, FoundPoints
from divgrpc.sharding.cutting import cut
from divgrpc.sharding.layouts import MEASURED_QUERIES_MAX
from divgrpc.sharding.measuring import ShardedSearcher
from divgrpc.storage.generations import Generation
from divgrpc.types import FloatArray, HashFamily, Metric, Points, Search
from support.data.divided_indexes import DIVISIONS
from support.data.mixed_indexes import FAMILIES, KINDS, METRICS, drawn, stored_as

ROWS = 1_500
# With "on two", all but two shards are empty; with "skewed", one has nearly all points.
DIVIDED = [(1, "hash"), (2, "direction"), (3, "hash"), (7, "on two"), (7, "skewed")]
TABLES: dict[str, dict[str, Any]] = {"cells": {}, "pca_hash": {"n_tables": 2, "n_bits": 4}}


def _report(_rows: int, _total: int) -> None:
    """Ignore progress."""


def points_of(metric: Metric, kind: Points, *, longest_first: bool) -> FloatArray:
    points = drawn(ROWS, 20 if kind == "dense" else 150, 2, metric)
    if kind == "sparse":
        # So few values that exact searches read inverted lists.
        points[:, 1:][np.random.default_rng(3).random((ROWS, 149)) < 0.9] = 0
    if longest_first:
        points = points[np.argsort(-np.linalg.norm(points, axis=1))]
    return points


@cache
def built(
    family: HashFamily, metric: Metric, kind: Points, *, longest_first: bool = False
) -> Index:
    """Build an index whose row numbers are its ids, so that its manifest says what was tuned."""
    points = points_of(metric, kind, longest_first=longest_first)
    options = TABLES.get(family, {"n_tables": 5, "n_bits": 6})
    return Index.build(
        stored_as(points, kind), metric=metric, hash_family=family, n_components=8,
        target_recall=0.9, seed=3, **options,
    )  # fmt: skip


def searchers(index: Index, shards: int, division: str) -> tuple[Searcher, ShardedSearcher]:
    """Return searchers of the whole index, and of its parts."""
    engine, parameters = index.engine, index.engine.manifest.parameters
    arrays = {name: array for name, array in engine.arrays.items() if name != "ids"}
    whole = Searcher(arrays, parameters, engine.dims)
    homes = DIVISIONS[division](engine, shards)
    pieces = cut(Generation(engine.manifest, engine.arrays), shards, homes)
    parts = [part.arrays for part in pieces.parts]
    numbers = [np.flatnonzero(homes == shard) for shard in range(shards)]
    return whole, ShardedSearcher(whole.points, parts, numbers, pieces.shared, parameters)


def check_as_built(index: Index, shards: int, division: str) -> Tuning:
    _, divided = searchers(index, shards, division)
    manifest = index.engine.manifest
    tuning = tune(divided, manifest.parameters, _report)
    assert tuning.search_costs == manifest.search_costs
    assert (tuning.n_probes, tuning.auto_search) == (manifest.n_probes, manifest.auto_search)
    return tuning


CASES = [*itertools.product(FAMILIES, METRICS, KINDS)]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_shards_are_tuned_as_one_index(number: int) -> None:
    check_as_built(built(*CASES[number]), *DIVIDED[1 + number % 4])


@pytest.mark.parametrize("kind", KINDS)
def test_every_division_is_tuned_as_one_index(kind: Points) -> None:
    for shards, division in DIVIDED:
        tuning = check_as_built(built("lsh_div", "cosine", kind), shards, division)
        exact = next(cost for cost in tuning.search_costs if cost.search == "exact")
        assert (exact.pools[0].entries_read > 0) == (kind == "sparse")
        assert (exact.pools[0].points_scored < ROWS) == (kind == "sparse")


@pytest.mark.parametrize("family", ["lsh_sdiv", "cells"])
@pytest.mark.parametrize("kind", KINDS)
def test_exact_searches_end_early_where_they_do_in_one_index(
    family: HashFamily, kind: Points
) -> None:
    index = built(family, "inner_product", kind, longest_first=True)
    tuning = check_as_built(index, 3, "hash")
    exact = next(cost for cost in tuning.search_costs if cost.search == "exact")
    assert exact.pools[0].points_scored < ROWS


@pytest.mark.parametrize("family", FAMILIES)
def test_queries_that_are_given_tune_shards_as_one_index(family: HashFamily) -> None:
    index = built(family, "euclidean", "dense")
    whole, divided = searchers(index, 3, "skewed")
    queries, parameters = drawn(60, 20, 8, "euclidean"), index.engine.manifest.parameters
    expected = tune(whole, parameters, _report, queries=queries)
    assert tune(divided, parameters, _report, queries=queries) == expected


@pytest.mark.parametrize("family", ["lsh_div", "cells"])
def test_dense_queries_tune_sparse_points_on_shards(family: HashFamily) -> None:
    index = built(family, "cosine", "sparse")
    _, divided = searchers(index, 3, "hash")
    manifest = index.engine.manifest
    tuning, _ = _tune_for_dense(divided, manifest.parameters, None, _report, find_nearest)
    assert tuning is not None
    assert tuning.search_costs == manifest.search_costs_dense
    assert tuning.auto_search == manifest.auto_search_dense


@pytest.mark.parametrize("search", ["tables", "scan", "scan_hamming", "exact"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_limit_hashes_the_same_points(family: HashFamily, search: Search) -> None:
    whole, divided = searchers(built(family, "euclidean", "dense"), 7, "skewed")
    # One more than a message may have.
    queries = drawn(MEASURED_QUERIES_MAX + 1, 20, 9, "euclidean")
    for limit, probes, seed in itertools.product((0, 1, 7, 300, ROWS), (1, 40), (0, 2**64 - 5)):
        query = QueryParameters(
            k=1, search=search, hash_limit=limit, n_probes=min(probes, whole.max_probes), seed=seed
        )
        effective = query.resolve(ROWS, "exact", probes=(1, whole.max_probes))
        pairs = zip(
            divided.hashed(queries, effective), whole.hashed(queries, effective), strict=True
        )
        for ids, expected in pairs:
            assert np.sort(ids).tolist() == np.sort(expected).tolist()


def test_row_numbers_of_all_shards_may_exceed_32_bits() -> None:
    whole, divided = searchers(built("cells", "cosine", "dense"), 3, "hash")
    divided._numbers = [numbers + 2**33 for numbers in divided._numbers]
    queries = drawn(4, 20, 9, "cosine")
    for limit in (0, 50):
        query = QueryParameters(k=1, search="tables", hash_limit=limit, n_probes=9)
        effective = query.resolve(ROWS, "exact", probes=(1, whole.max_probes))
        for ids, expected in zip(
            divided.hashed(queries, effective), whole.hashed(queries, effective), strict=True
        ):
            assert (np.sort(ids) - 2**33).tolist() == np.sort(expected).tolist()


def test_both_searchers_know_the_same_of_the_points() -> None:
    for kind in KINDS:
        whole, divided = searchers(built("lsh_div", "cosine", kind), 2, "hash")
        for name in ("metric", "nonzeros", "scores_longest", "max_probes", "least_probes"):
            assert getattr(divided, name) == getattr(whole, name)
        divided.release()


def test_few_points_are_tuned_as_one_index() -> None:
    index = Index.build(sparse.csr_array(np.eye(3, 5, dtype=np.float32)), hash_family="lsh_div")
    check_as_built(index, 7, "hash")


@given(st.data())
def test_the_best_points_of_parts_are_kept(data: st.DataObject) -> None:
    """Ties go to the smaller id, and a part whose points are all kept may lack some."""
    sizes = data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=4))
    codes = np.array(
        data.draw(st.lists(st.integers(-3, 3), min_size=sum(sizes), max_size=sum(sizes))),
        np.float32,
    )
    ids = np.array(data.draw(st.permutations(range(len(codes)))), np.int64) << 33
    limit, most = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 8))
    ends = np.cumsum(sizes)[:-1]
    parts = [*map(FoundPoints, np.split(ids, ends), np.split(codes, ends))]
    parameters = QueryParameters(k=1, search="scan", hash_limit=limit).resolve(100, "scan")
    plan = QueryPlan.of_hashed(parameters, "euclidean")
    best_ids, short = BestPoints().keep(plan, replies.BY_ESTIMATE, parts, most)
    expected = ids[np.lexsort((ids, codes))][:limit]
    assert sorted(best_ids.tolist()) == sorted(expected.tolist())
    assert short == [
        number
        for number, part in enumerate(parts)
        if len(part.ids) == most < limit and set(part.ids.tolist()) <= set(best_ids.tolist())
    ]
