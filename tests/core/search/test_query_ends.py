"""The ends of the dials, for every metric and kind of points."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from divgrpc.errors import InvalidArgumentError
from divgrpc.index import Index
from divgrpc.types import HashFamily, Metric, Points, Search
from reference import definitions
from reference.index import check_row, points_of, same_bytes
from support.mixed_indexes import (
    DIMS,
    FAMILIES,
    KINDS,
    METRICS,
    ROWS,
    SAMPLINGS,
    SEARCHES,
    SELECTIONS,
    an_index,
    check,
    drawn,
    queries,
    stored_as,
    twin_of,
)

LENGTHY: list[Metric] = ["euclidean", "inner_product"]
COLUMNS = ("ids", "scores", "selection_scores", "counts")


# Limits.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", METRICS)
def test_without_limits_greedy_goes_over_all_points(metric: Metric, kind: Points) -> None:
    """Exhaustive selection in process is the twin's greedy over every point, whatever is asked."""
    index, asked = an_index("lsh_div", metric, kind), queries(3, metric)[:2]
    for selector, variant in SELECTIONS[1:]:
        for search in ("auto", "exact"):
            options: dict[str, Any] = {"search": search, "hash_limit": 0, "candidates_limit": 0}
            result = index.query(
                asked, k=4, diversity=0.6, selector=selector, variant=variant, **options
            )
            assert (result.stats.candidates == ROWS).all()
            if search == "exact":
                check(index, asked, result)
                exhaustive = result.ids
        assert result.ids.tolist() == exhaustive.tolist()


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(("hash_limit", "candidates_limit"), [(0, 0), (0, 7), (7, 0), (7, 7)])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("family", ["lsh_sdiv", "cells"])
def test_limits_of_zero_and_of_k_do_what_they_say(
    family: HashFamily, metric: Metric, search: Search, hash_limit: int, candidates_limit: int
) -> None:
    """0 is no limit; equal to k leaves the selector no choice but the order."""
    for kind in KINDS:
        index, asked = an_index(family, metric, kind), queries(2, metric)
        result = index.query(
            asked,
            k=7,
            search=search,
            selector="nearest",
            hash_limit=hash_limit,
            candidates_limit=candidates_limit,
        )
        check(index, asked, result)
        codes = [warning.code for warning in result.warnings]
        assert ("HASH_LIMIT_EQUALS_K" in codes) == (hash_limit == 7)
        assert ("CANDIDATES_LIMIT_EQUALS_K" in codes) == (candidates_limit == 7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("family", FAMILIES)
def test_epsilon_is_a_hash_limit(family: HashFamily, metric: Metric, kind: Points) -> None:
    """Asked for by epsilon or by its number, an answer is the same."""
    index, asked = an_index(family, metric, kind), queries(5, metric)
    for search in SEARCHES:
        by_epsilon = index.query(asked, k=5, search=search, epsilon=1.0)
        by_number = index.query(asked, k=5, search=search, hash_limit=31)
        assert by_epsilon.parameters.hash_limit == 31
        for column in COLUMNS:
            a, b = getattr(by_epsilon, column), getattr(by_number, column)
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("family", FAMILIES)
def test_seeds_change_the_draw_and_nothing_else(
    family: HashFamily, metric: Metric, kind: Points, sampling: str
) -> None:
    """A seed decides which points stay where there are too many, as the twin's does."""
    index, asked = an_index(family, metric, kind), queries(4, metric)
    drawn_ids = set()
    for seed in (0, 2**64 - 1):
        options: dict[str, Any] = {"sampling": sampling, "seed": seed, "selector": "nearest"}
        result = index.query(asked, k=5, search="tables", hash_limit=12, **options)
        check(index, asked, result)
        drawn_ids.add(result.ids.tobytes())
    # Cells are looked into by code, and draw nobody.
    assert len(drawn_ids) == 2 or sampling == "nearest" or family == "cells"
    whole = {
        index.query(asked, k=5, search="tables", hash_limit=0, seed=seed).ids.tobytes()
        for seed in (0, 1, 2)
    }
    assert len(whole) == 1


# Probes.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("family", FAMILIES)
def test_probes_are_what_a_search_over_tables_looks_at(
    family: HashFamily, metric: Metric, kind: Points
) -> None:
    """From one bucket or cell to all there are, as the twin does; no other search minds."""
    index, asked = an_index(family, metric, kind), queries(3, metric)
    cells = len(index.engine._arrays.get("cell_centres", ()))
    buckets = (index.engine.manifest.parameters.n_tables or 0) * 2 ** (
        index.engine.manifest.parameters.n_bits or 0
    )
    options: dict[str, Any] = {"k": 9, "hash_limit": 0, "selector": "nearest"}
    for n_probes in (1, 2, 7, 4096, 2**31 - 1):
        result = index.query(asked, search="tables", n_probes=n_probes, **options)
        assert result.parameters.n_probes == min(n_probes, cells or 4096)
        assert (result.stats.buckets_probed == min(n_probes, cells or buckets)).all()
        check(index, asked, result)
    assert (result.stats.points_hashed == ROWS).all()
    # Dense queries of sparse points have probes of their own.
    points = stored_as(asked, kind)
    tuned = index.query(points, search="tables", **options)
    assert tuned.parameters.n_probes == index.info.n_probes
    same = index.query(points, search="tables", n_probes=index.info.n_probes, **options)
    assert same_bytes(tuned, same)
    for search in SEARCHES[1:]:
        idle = index.query(asked, search=search, n_probes=1, **options | {"hash_limit": 40})
        assert idle.parameters.n_probes == 0
        assert same_bytes(idle, index.query(asked, search=search, **options | {"hash_limit": 40}))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("family", FAMILIES[:3])
def test_more_probes_hash_what_fewer_do_and_more(family: HashFamily, metric: Metric) -> None:
    """Buckets come in one order, whatever their number."""
    index, asked = an_index(family, metric, "dense"), queries(5, metric)
    options: dict[str, Any] = {"k": ROWS, "hash_limit": 0, "candidates_limit": 0}
    before: list[set[int]] = [set()] * len(asked)
    for n_probes in (1, 2, 3, 5, 8, 21, 320):
        ids = index.query(asked, search="tables", n_probes=n_probes, **options).ids
        found = [set(row[row >= 0].tolist()) for row in ids]
        assert all(few <= more for few, more in zip(before, found, strict=True))
        before = found
    assert all(len(found) == ROWS for found in before)


# Distances.


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["lsh_sdiv", "cells"])
def test_max_distance_drops_what_is_farther(
    family: HashFamily, kind: Points, search: Search
) -> None:
    """In squared distances, which is also what a euclidean score is."""
    index, asked = an_index(family, "euclidean", kind), queries(6, "euclidean")
    exact = index.query(asked, k=50, search="exact", selector="nearest")
    for limit in (0.0, float(exact.scores[0, 20]) * 1.001, float(exact.scores[3, 5]) * 1.001, 1e9):
        result = index.query(asked, k=9, search=search, max_distance=limit, hash_limit=60)
        found = result.scores[result.ids >= 0]
        assert (found <= limit).all()
        if limit:
            check(index, asked, result)


@pytest.mark.parametrize("length", [1e-3, 1.0, 1e3, 1e9])
@pytest.mark.parametrize("points", KINDS)
@pytest.mark.parametrize("given", KINDS)
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_a_max_distance_of_zero_keeps_equal_points(
    metric: Metric, points: Points, given: Points, length: float
) -> None:
    """A point asked for by itself is at distance 0 of itself, however long it is."""
    rng = np.random.default_rng(4)
    vectors = (length * rng.standard_normal((60, 33))).astype(np.float32)
    vectors[rng.random(vectors.shape) < 0.4] = 0
    vectors[50:] = vectors[:10]
    index = Index.build(stored_as(vectors, points), metric=metric)
    result = index.query(stored_as(vectors, given), k=3, search="exact", max_distance=0)
    for row in range(60):
        same = np.flatnonzero((vectors == vectors[row]).all(axis=1)).tolist()
        assert sorted(result.ids[row, : result.counts[row]].tolist()) == same


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_has_no_greatest_distance(kind: Points) -> None:
    """Under the product max_distance is refused by its name."""
    with pytest.raises(InvalidArgumentError, match="max_distance") as caught:
        an_index("lsh_div", "inner_product", kind).query(np.ones(DIMS), max_distance=1)
    assert caught.value.field == "max_distance"


# The dial.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("search", [*SEARCHES, "auto"])
def test_without_diversity_every_selector_is_nearest_byte_for_byte(
    search: Search, metric: Metric, kind: Points
) -> None:
    """At 0 the selector makes no difference, but for the paper's own, which never rests."""
    for family in ("lsh_div", "cells"):
        index, asked = an_index(family, metric, kind), queries(9, metric)
        nearest = index.query(asked, k=20, diversity=0, selector="nearest", search=search)
        scores = nearest.scores if metric == "euclidean" else -nearest.scores
        assert (np.diff(scores, axis=1) >= 0)[np.isfinite(scores[:, 1:])].all()
        for selector, variant in SELECTIONS[1:]:
            other = index.query(
                asked, k=20, diversity=0, selector=selector, variant=variant, search=search
            )
            same = all(
                getattr(other, column).tobytes() == getattr(nearest, column).tobytes()
                for column in COLUMNS
            )
            assert same == (variant != "printed")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("k", [1, 2, 8])
def test_with_diversity_alone_the_query_only_begins(metric: Metric, kind: Points, k: int) -> None:
    """At 1 the first is the nearest, and the rest are the twin's, chosen for difference alone."""
    index, asked = an_index("lsh_div", metric, kind), queries(3, metric)
    nearest = index.query(asked, k=1, search="exact", selector="nearest")
    for selector, variant in SELECTIONS[1:]:
        result = index.query(
            asked, k=k, diversity=1, search="exact", selector=selector, variant=variant
        )
        if selector != "qp_relax":
            assert result.ids[:, 0].tolist() == nearest.ids[:, 0].tolist()
        twin = twin_of(index)
        for row, query in enumerate(asked):
            if k == 8:
                continue  # Zero vectors and points twice tie in ways that rounding decides.
            check_row(twin, query, result, row)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", METRICS)
def test_k_of_one_is_the_nearest(metric: Metric, kind: Points) -> None:
    """One result has no other to differ from, at any dial and by any selector."""
    index, asked = an_index("lsh_div", metric, kind), queries(6, metric)
    nearest = index.query(asked, k=1, search="exact", selector="nearest").ids.tolist()
    for selector, variant in SELECTIONS:
        for diversity in (0.0, 0.5, 1.0):
            options: dict[str, Any] = {"selector": selector, "variant": variant}
            found = index.query(asked, k=1, search="exact", diversity=diversity, **options)
            assert found.ids.tolist() == nearest


# Points of all kinds.


@cache
def with_zeros(metric: Metric, kind: Points) -> Index:
    points = drawn(60, DIMS, 7, metric)
    points[[3, 9, 30]] = 0
    return Index.build(stored_as(points, kind), metric=metric, n_tables=3, n_bits=4)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", LENGTHY)
def test_zero_vectors_are_points_like_others(metric: Metric, kind: Points, search: Search) -> None:
    """Where a metric sees no directions they may be indexed, asked for and found."""
    index, twin = with_zeros(metric, kind), points_of(with_zeros(metric, kind))
    asked = np.concatenate((np.zeros((1, DIMS), np.float32), queries(2, metric)))
    for given in KINDS:
        result = index.query(stored_as(asked, given), k=5, search=search, selector="nearest")
        for row, query in enumerate(asked):
            check_row(twin, query, result, row)
    exact = index.query(asked[:1], k=60, search="exact", selector="nearest")
    if metric == "euclidean":
        assert set(exact.ids[0, :3].tolist()) >= {3, 9}
        assert (exact.scores[0, :3] == 0).all()
    else:
        assert exact.ids[0].tolist() == list(range(60))
        assert not exact.scores.any()
        assert "-0" not in str(exact.scores)


@pytest.mark.parametrize("kind", KINDS)
def test_zero_vectors_have_no_cosine(kind: Points) -> None:
    """They are refused under cosine, or left out and counted."""
    points = drawn(60, DIMS, 7, "cosine")
    points[[3, 9]] = 0
    with pytest.raises(InvalidArgumentError, match="row 3 ") as caught:
        Index.build(stored_as(points, kind))
    assert caught.value.field == "vectors"
    index = Index.build(stored_as(points, kind), zero_vectors="skip")
    assert index.rows == 58
    assert [w.code for w in index.info.warnings] == ["ZERO_VECTORS_SKIPPED"]
    found = index.query(points[10], k=1, search="exact")
    assert found.ids.tolist() == [[10]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("family", FAMILIES)
def test_points_that_are_all_equal_go_by_id(
    family: HashFamily, metric: Metric, kind: Points
) -> None:
    """Nothing tells them apart: the lowest ids come first, whatever selects."""
    points = np.repeat(drawn(4, DIMS, 2, "cosine")[:1], 40, axis=0)
    ids = np.random.default_rng(1).permutation(40)
    given: dict[str, Any] = {} if family == "cells" else {"n_tables": 1, "n_bits": 2}
    index = Index.build(
        stored_as(points, kind), ids=ids, hash_family=family, metric=metric, **given
    )
    for selector, variant in SELECTIONS:
        for search in SEARCHES:
            options: dict[str, Any] = {"selector": selector, "variant": variant, "search": search}
            found = index.query(points[:1], k=6, hash_limit=0, **options)
            assert found.ids.tolist() == [[0, 1, 2, 3, 4, 5]]
            scanned = index.query(points[:1], k=6, hash_limit=10, sampling="nearest", **options)
            assert (scanned.counts == 6).all()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("stored", [0.01, 0.5])
def test_many_dimensions_are_asked_for_both_ways(metric: Metric, stored: float) -> None:
    """12,000 columns, rows of a few words and of many: dense and sparse queries, the twin's."""
    rng = np.random.default_rng(3)
    points = sparse.random_array((10, 12_000), density=stored, rng=rng, format="csr")
    points = points.astype(np.float32)
    index = Index.build(points, metric=metric, n_components=6)
    twin, dense = points_of(index), points[:2].toarray()
    for given in (points[:2], dense):
        for search in SEARCHES:
            result = index.query(given, k=2, search=search)
            for row in range(2):
                check_row(twin, dense[row], result, row)


def test_near_duplicates_among_sparse_points_keep_their_order() -> None:
    """Points a hundred-thousandth apart are told apart, and no cosine is above 1."""
    rng = np.random.default_rng(11)
    points = rng.standard_normal(128) + 1e-4 * rng.standard_normal((500, 128))
    asked = points[:20] + 1e-5 * rng.standard_normal((20, 128))
    for metric in METRICS[:2]:
        index = Index.build(sparse.csr_array(points), metric=metric)
        result = index.query(asked, search="exact", selector="nearest", hash_limit=0)
        twin = points_of(index)
        for query, ids in zip(asked, result.ids, strict=True):
            target = (definitions.unit(query) if metric == "cosine" else query).astype(np.float32)
            truth = definitions.nearest_rows(twin, target, range(500))[:10]
            assert len(set(truth) & set(ids.tolist())) >= 9
        if metric == "cosine":
            assert (result.scores <= 1).all()
