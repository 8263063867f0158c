"""Queries for each hash family, metric, search, selector, sampling and kind of vectors."""

import itertools
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.index import Index
from divgrpc.types import HashFamily, Hyperplanes, Metric, Points, Search
from reference.index import check_row, points_of, row_of, same_bytes
from support.data.mixed_indexes import (
    DIMS,
    FAMILIES,
    KINDS,
    METRICS,
    SAMPLINGS,
    SEARCHES,
    SELECTIONS,
    an_index,
    check,
    drawn,
    every_index,
    every_search,
    queries,
    stored_as,
    taking,
    twin_of,
)


@every_search
@every_index
@pytest.mark.parametrize("is_shifted", [False, True])
def test_queries_agree_with_the_reference(
    family: HashFamily, metric: Metric, kind: Points, search: Search, is_shifted: bool
) -> None:
    """Samplings and kinds of queries alternate over metrics, kinds of points and selectors."""
    index, query_rows = an_index(family, metric, kind, is_shifted=is_shifted), queries(3, metric)
    if is_shifted and metric != "inner_product":
        mean = twin_of(index).vectors.mean(axis=0, dtype=np.float64)
        expected = mean @ index.engine._arrays["hyperplanes"].astype(np.float64)
        off = np.abs(index.engine._arrays["thresholds"] - expected)
        assert off.max() < 1e-6 * (1 + np.abs(mean).max())
    options: dict[str, Any] = {"k": 6, "hash_limit": 40, "candidates_limit": 25, "seed": 11}
    options |= {"search": search, "diversity": 0.35}
    for number, (selector, variant) in enumerate(SELECTIONS):
        options["sampling"] = SAMPLINGS[(number + METRICS.index(metric)) % 2]
        form = stored_as(query_rows, KINDS[(number + KINDS.index(kind)) % 2])
        check(index, query_rows, index.query(form, selector=selector, variant=variant, **options))


@pytest.mark.parametrize("search", [*SEARCHES, "auto"])
@every_index
def test_dense_and_sparse_queries_give_the_same_answer(
    family: HashFamily, metric: Metric, kind: Points, search: Search
) -> None:
    """Answers are bitwise equal. Under cosine, this needs queries whose unit rows are exact."""
    index, query_rows = an_index(family, metric, kind), queries(9, metric)
    if metric == "cosine":
        # Sixteen entries of +0.25 or -0.25 have length exactly one, in any order of summation.
        rng = np.random.default_rng(2)
        query_rows = np.where(np.arange(DIMS) < 16, rng.choice([-0.25, 0.25], (9, DIMS)), 0)
        query_rows = query_rows.astype(np.float32)
    for selector, variant in SELECTIONS:
        options: dict[str, Any] = {"k": 7, "search": search, "hash_limit": 50, "selector": selector}
        if search == "tables":
            # The number of probes is tuned for each kind of query.
            options["n_probes"] = index.info.n_probes
        dense, sparse = (
            index.query(stored_as(query_rows, query_kind), variant=variant, **options)
            for query_kind in ("dense", "sparse")
        )
        if dense.parameters == sparse.parameters:
            if kind == "sparse" and dense.parameters.search == "exact":
                # Only sparse queries read inverted lists, which may show that a point need not be
                # scored.
                counts = dense.stats.points_scored
                assert (counts == index.rows).all()
                assert (sparse.stats.points_scored <= counts).all()
                sparse = replace(sparse, stats=replace(sparse.stats, points_scored=counts))
            assert same_bytes(dense, sparse)
            continue
        # Inverted lists speed up only sparse queries of sparse points, so `auto` may choose another
        # search for them than for dense queries. Only `search` and `n_probes` may differ.
        assert (search, kind) == ("auto", "sparse")
        search_fields = {name: getattr(dense.parameters, name) for name in ("search", "n_probes")}
        assert replace(sparse.parameters, **search_fields) == dense.parameters


@settings(max_examples=80)
@given(
    rows=st.sampled_from([1, 2, 9, 17]),
    dims=st.sampled_from([1, 2, 15, 16, 17, 31, 33, 256]),
    family=st.sampled_from([*FAMILIES, "auto"]),
    metric=st.sampled_from(METRICS),
    kind=st.sampled_from(KINDS),
)
def test_small_indexes_agree_with_the_reference(
    rows: int, dims: int, family: HashFamily, metric: Metric, kind: Points
) -> None:
    """The query requests more results than there are points, and rows do not fill a register."""
    points = drawn(rows, dims, rows, metric)
    if metric == "cosine":
        points[:, 0] += points.any(axis=1) == 0
    index = Index.build(stored_as(points, kind), hash_family=family, metric=metric)
    assert index.info.parameters["hash_family"] != "auto"
    query_rows = drawn(2, dims, 9, "cosine")
    for search in SEARCHES:
        result = index.query(query_rows, k=30, search=search, diversity=0.4)
        for row, query in enumerate(query_rows):
            check_row(points_of(index), query, result, row)
        # The buckets of so few points are nearly empty, so tables may miss the target. Cells do
        # not, because all of them are probed.
        codes = [w.code for w in result.warnings]
        may_miss = search == "tables" and index.info.parameters["hash_family"] != "cells"
        assert codes == ["TARGET_RECALL_MISSED"] * may_miss * (len(codes) - 1) + codes[-1:]
        assert codes[-1] == "FEWER_THAN_K_POINTS"
    complete = index.query(query_rows, k=30)
    assert (complete.counts == rows).all()
    assert sorted(complete.ids[0, :rows].tolist()) == list(range(rows))


@every_index
def test_a_batch_gives_the_answers_of_single_queries(
    family: HashFamily, metric: Metric, kind: Points
) -> None:
    index, query_rows = an_index(family, metric, kind), queries(40, metric)
    options: dict[str, Any] = {"k": 5, "hash_limit": 50, "candidates_limit": 40}
    for search, form in itertools.product([*SEARCHES, "auto"], KINDS):
        rows = stored_as(query_rows, form)
        alone = [index.query(rows[[row]], search=search, **options) for row in range(12)]
        for size in (1, 3, 12, 17, 40):
            order = np.random.default_rng(size).permutation(40)[:size]
            whole = index.query(rows[order], search=search, **options)
            assert same_bytes(whole, index.query(rows[order], search=search, **options))
            for at, row in enumerate(order):
                if row < 12:
                    assert same_bytes(alone[row], row_of(whole, at))


@every_index
def test_the_same_seed_builds_the_same_index(
    family: HashFamily, metric: Metric, kind: Points
) -> None:
    """Kinds of hyperplanes alternate over metrics and kinds of points."""
    choices: tuple[Hyperplanes, ...] = get_args(Hyperplanes)
    hyperplanes = choices[(METRICS.index(metric) + KINDS.index(kind)) % len(choices)]
    points = stored_as(drawn(300, 10, 2, metric), kind)
    options: dict[str, Any] = {"metric": metric, "hash_family": family, "hyperplanes": hyperplanes}
    options["centred"] = hyperplanes == "gaussian" and metric != "inner_product"

    def arrays(seed: int) -> dict[str, bytes]:
        index = Index.build(points, n_components=7, seed=seed, **options)
        return {name: array.tobytes() for name, array in index.engine._arrays.items()}

    first, second = arrays(5), arrays(2**64 - 1)
    assert arrays(5) == first
    assert second.get("vectors") == first.get("vectors")
    if family != "pca_hash":
        assert second["hyperplanes"] != first["hyperplanes"]


@every_index
def test_auto_probes_further_if_too_few_points_are_found(
    family: HashFamily, metric: Metric, kind: Points
) -> None:
    index = taking(an_index(family, metric, kind), "tables")
    far = -queries(3, metric)
    limits: dict[str, Any] = {"hash_limit": 220, "candidates_limit": 180}
    options: dict[str, Any] = {"k": 150, "n_probes": 1, **limits}
    few = index.query(far, search="tables", selector="nearest", **options)
    assert (few.counts < 150).any()
    assert [w.code for w in few.warnings] == ["FEWER_THAN_K_FOUND"]
    auto_result = index.query(far, selector="nearest", **options)
    assert auto_result.parameters.search == "tables"
    assert (auto_result.counts == 150).all()
    assert (auto_result.stats.points_hashed >= 180).all()
    assert auto_result.warnings == ()
    check(index, far, auto_result, at_least=180)
