"""Extreme values of the query parameters, for every metric and kind of points."""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from divgrpc.index import Index
from divgrpc.types import FloatArray, HashFamily, Metric, Points, Search
from reference import definitions
from reference.index import check_row, clustered, points_of, same_bytes
from support.checks.refusals import refused
from support.data.mixed_indexes import (
    DIMS,
    KINDS,
    METRICS,
    ROWS,
    SAMPLINGS,
    SEARCHES,
    SELECTIONS,
    an_index,
    check,
    drawn,
    every_index,
    every_kind,
    every_metric,
    every_search,
    queries,
    stored_as,
    taking,
)

LENGTHY: list[Metric] = ["euclidean", "inner_product"]
COLUMNS = ("ids", "scores", "selection_scores", "counts")


@every_kind
@every_metric
def test_without_limits_every_point_is_a_candidate(metric: Metric, kind: Points) -> None:
    index, query_rows = an_index("lsh_div", metric, kind), queries(3, metric)[:2]
    for selector, variant in SELECTIONS[1:]:
        options: dict[str, Any] = {"selector": selector, "variant": variant, "diversity": 0.6}
        options |= {"k": 4, "hash_limit": 0, "candidates_limit": 0}
        result = index.query(query_rows, search="auto", **options)
        exhaustive = index.query(query_rows, search="exact", **options)
        assert (result.stats.candidates == ROWS).all()
        assert (exhaustive.stats.candidates == ROWS).all()
        check(index, query_rows, exhaustive)
        assert result.ids.tolist() == exhaustive.ids.tolist()


@every_search
@pytest.mark.parametrize(("hash_limit", "candidates_limit"), [(0, 0), (0, 7), (7, 0), (7, 7)])
@every_metric
@pytest.mark.parametrize("family", ["lsh_sdiv", "cells"])
def test_limits_of_zero_and_of_k(
    family: HashFamily, metric: Metric, search: Search, hash_limit: int, candidates_limit: int
) -> None:
    """A hash limit of k causes a warning, but the selector `nearest` needs only k candidates."""
    for kind in KINDS:
        index, query_rows = an_index(family, metric, kind), queries(2, metric)
        limits: dict[str, Any] = {"hash_limit": hash_limit, "candidates_limit": candidates_limit}
        result = index.query(query_rows, k=7, search=search, selector="nearest", **limits)
        check(index, query_rows, result)
        codes = [warning.code for warning in result.warnings]
        assert ("HASH_LIMIT_EQUALS_K" in codes) == (hash_limit == 7)
        assert "CANDIDATES_LIMIT_EQUALS_K" not in codes


@pytest.mark.parametrize("sampling", SAMPLINGS)
@every_index
def test_seeds_change_only_the_uniform_draw(
    family: HashFamily, metric: Metric, kind: Points, sampling: str
) -> None:
    index, query_rows = an_index(family, metric, kind), queries(4, metric)
    drawn_ids = set()
    for seed in (0, 2**64 - 1):
        options: dict[str, Any] = {"sampling": sampling, "seed": seed, "selector": "nearest"}
        result = index.query(query_rows, k=5, search="tables", hash_limit=12, **options)
        check(index, query_rows, result)
        drawn_ids.add(result.ids.tobytes())
    # Only a draw depends on the seed, and cells choose their points by code.
    assert len(drawn_ids) == 2 or sampling == "nearest" or family == "cells"
    whole = {
        index.query(query_rows, k=5, search="tables", hash_limit=0, seed=seed).ids.tobytes()
        for seed in (0, 1, 2)
    }
    assert len(whole) == 1


@every_index
def test_n_probes_sets_the_number_of_buckets_or_cells_probed(
    family: HashFamily, metric: Metric, kind: Points
) -> None:
    index, query_rows = an_index(family, metric, kind), queries(3, metric)
    cells = len(index.engine._arrays.get("cell_centres", ()))
    buckets = (index.engine.manifest.parameters.n_tables or 0) * 2 ** (
        index.engine.manifest.parameters.n_bits or 0
    )
    options: dict[str, Any] = {"k": 9, "hash_limit": 0, "selector": "nearest"}
    for n_probes in (1, 2, 7, 4096, 2**31 - 1):
        result = index.query(query_rows, search="tables", n_probes=n_probes, **options)
        assert result.parameters.n_probes == min(n_probes, cells or 4096)
        probed = result.stats.buckets_probed
        if "cell_reaches" in index.engine._arrays and n_probes < cells:
            # A query reads more or fewer cells, depending on how far they are.
            assert (-(-n_probes // 4) <= probed).all()
            assert (probed <= 2 * n_probes).all()
        else:
            assert (probed == min(n_probes, cells or buckets)).all()
        check(index, query_rows, result)
    assert (result.stats.points_hashed == ROWS).all()
    # The number of probes was tuned separately for dense queries of sparse points.
    points = stored_as(query_rows, kind)
    default_result = index.query(points, search="tables", **options)
    assert default_result.parameters.n_probes == index.info.n_probes
    same = index.query(points, search="tables", n_probes=index.info.n_probes, **options)
    assert same_bytes(default_result, same)
    for search in SEARCHES[1:]:
        idle = index.query(query_rows, search=search, n_probes=1, **options | {"hash_limit": 40})
        assert idle.parameters.n_probes == 0
        assert same_bytes(
            idle, index.query(query_rows, search=search, **options | {"hash_limit": 40})
        )


@every_search
@every_kind
@pytest.mark.parametrize("family", ["lsh_sdiv", "cells"])
def test_max_distance_drops_farther_points(
    family: HashFamily, kind: Points, search: Search
) -> None:
    index, query_rows = an_index(family, "euclidean", kind), queries(6, "euclidean")
    exact = index.query(query_rows, k=50, search="exact", selector="nearest")
    for limit in (0.0, float(exact.scores[0, 20]) * 1.001, float(exact.scores[3, 5]) * 1.001, 1e9):
        result = index.query(query_rows, k=9, search=search, max_distance=limit, hash_limit=60)
        scores = result.scores[result.ids >= 0]
        assert (scores <= limit).all()
        if limit:
            check(index, query_rows, result)


@pytest.mark.parametrize("length", [1e-3, 1.0, 1e3, 1e9])
@pytest.mark.parametrize("points", KINDS)
@pytest.mark.parametrize("query_kind", KINDS)
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_a_max_distance_of_zero_keeps_equal_points(
    metric: Metric, points: Points, query_kind: Points, length: float
) -> None:
    rng = np.random.default_rng(4)
    vectors = (length * rng.standard_normal((60, 33))).astype(np.float32)
    vectors[rng.random(vectors.shape) < 0.4] = 0
    vectors[50:] = vectors[:10]
    index = Index.build(stored_as(vectors, points), metric=metric)
    result = index.query(stored_as(vectors, query_kind), k=3, search="exact", max_distance=0)
    for row in range(60):
        same = np.flatnonzero((vectors == vectors[row]).all(axis=1)).tolist()
        assert sorted(result.ids[row, : result.counts[row]].tolist()) == same


@every_kind
@every_metric
@pytest.mark.parametrize("search", [*SEARCHES, "auto"])
def test_at_diversity_0_every_selector_gives_the_nearest(
    search: Search, metric: Metric, kind: Points
) -> None:
    """Only the variant `printed` diversifies even at diversity 0."""
    for family in ("lsh_div", "cells"):
        index, query_rows = an_index(family, metric, kind), queries(9, metric)
        nearest = index.query(query_rows, k=20, diversity=0, selector="nearest", search=search)
        scores = nearest.scores if metric == "euclidean" else -nearest.scores
        assert (np.diff(scores, axis=1) >= 0)[np.isfinite(scores[:, 1:])].all()
        for selector, variant in SELECTIONS[1:]:
            result = index.query(
                query_rows, k=20, diversity=0, selector=selector, variant=variant, search=search
            )
            same = all(
                getattr(result, column).tobytes() == getattr(nearest, column).tobytes()
                for column in COLUMNS
            )
            assert same == (variant != "printed")


@cache
def with_zeros(metric: Metric, kind: Points) -> Index:
    points = drawn(60, DIMS, 7, metric)
    points[[3, 9, 30]] = 0
    return Index.build(stored_as(points, kind), metric=metric, n_tables=3, n_bits=4)


@every_search
@every_kind
@pytest.mark.parametrize("metric", LENGTHY)
def test_zero_vectors_are_found_under_euclidean_and_inner_product(
    metric: Metric, kind: Points, search: Search
) -> None:
    index, twin = with_zeros(metric, kind), points_of(with_zeros(metric, kind))
    query_rows = np.concatenate((np.zeros((1, DIMS), np.float32), queries(2, metric)))
    for query_kind in KINDS:
        result = index.query(
            stored_as(query_rows, query_kind), k=5, search=search, selector="nearest"
        )
        for row, query in enumerate(query_rows):
            check_row(twin, query, result, row)
    exact = index.query(query_rows[:1], k=60, search="exact", selector="nearest")
    if metric == "euclidean":
        assert set(exact.ids[0, :3].tolist()) >= {3, 9}
        assert (exact.scores[0, :3] == 0).all()
    else:
        assert exact.ids[0].tolist() == list(range(60))
        assert not exact.scores.any()
        assert "-0" not in str(exact.scores)


@every_index
def test_equal_points_are_returned_in_order_of_ids(
    family: HashFamily, metric: Metric, kind: Points
) -> None:
    points = np.repeat(drawn(4, DIMS, 2, "cosine")[:1], 40, axis=0)
    ids = np.random.default_rng(1).permutation(40)
    build_options: dict[str, Any] = {} if family == "cells" else {"n_tables": 1, "n_bits": 2}
    index = Index.build(
        stored_as(points, kind), ids=ids, hash_family=family, metric=metric, **build_options
    )
    for selector, variant in SELECTIONS:
        for search in SEARCHES:
            options: dict[str, Any] = {"selector": selector, "variant": variant, "search": search}
            result = index.query(points[:1], k=6, hash_limit=0, **options)
            assert result.ids.tolist() == [[0, 1, 2, 3, 4, 5]]
            scan_result = index.query(points[:1], k=6, hash_limit=10, sampling="nearest", **options)
            assert (scan_result.counts == 6).all()


@every_kind
@pytest.mark.parametrize("metric", METRICS[:2])
def test_near_duplicates_are_ranked_accurately(metric: Metric, kind: Points) -> None:
    """Points that differ by one part in 10,000 are ranked correctly, and no cosine exceeds 1."""
    rng = np.random.default_rng(11)
    points = rng.standard_normal(128) + 1e-4 * rng.standard_normal((500, 128))
    query_rows = points[:20] + 1e-5 * rng.standard_normal((20, 128))
    index = Index.build(stored_as(points.astype(np.float32), kind), metric=metric)
    result = index.query(query_rows, search="exact", selector="nearest", hash_limit=0)
    twin = points_of(index)
    for query, ids in zip(query_rows, result.ids, strict=True):
        target = (definitions.unit(query) if metric == "cosine" else query).astype(np.float32)
        truth = definitions.nearest_rows(twin, target, range(500))[:10]
        assert len(set(truth) & set(ids.tolist())) >= 9
    if metric == "cosine":
        assert (result.scores <= 1).all()


def normal(rows: int = 20, dims: int = 4) -> FloatArray:
    return np.random.default_rng(0).standard_normal((rows, dims)).astype(np.float32)


@pytest.mark.parametrize(
    ("queries", "pattern"),
    [
        (np.where(np.arange(20)[:, np.newaxis] == 5, 0, normal()), "row 5 .*zero"),
        (np.zeros(4), "row 0 .*zero"),
        (normal(dims=5), "4 columns, got 5"),
        (normal(1)[0, :3], "4 columns, got 3"),
        (np.empty((0, 4)), "1 to 10000 rows"),
        (np.empty(0), "columns"),
        (np.ones((10_001, 4)), "1 to 10000 rows"),
        (np.ones((1, 1, 4)), "axes"),
        ("abcd", "numbers"),
        (None, "must be given"),
        ([[1, 2, 3, "x"]], "numbers"),
        (3.5, "columns|axes"),
    ],
)
def test_wrong_queries_are_refused(queries: npt.ArrayLike, pattern: str) -> None:
    index = Index.build(normal(50))
    with refused("queries", pattern):
        index.query(queries)


@pytest.mark.parametrize("rows", [1, 5])
def test_columns_have_the_documented_dtypes_and_shapes(rows: int) -> None:
    result = an_index("lsh_div", "cosine", "dense").query(queries(rows, "cosine"), k=4)
    for column, dtype, shape in (
        (result.ids, np.int64, (rows, 4)),
        (result.scores, np.float32, (rows, 4)),
        (result.selection_scores, np.float32, (rows, 4)),
        (result.counts, np.uint32, (rows,)),
        (result.stats.points_hashed, np.uint32, (rows,)),
        (result.stats.buckets_probed, np.uint32, (rows,)),
        (result.stats.points_scored, np.uint32, (rows,)),
        (result.stats.candidates, np.uint32, (rows,)),
    ):
        assert column.dtype == dtype
        assert column.shape == shape
    assert result.generation == 1
    # The index has 240 points, fewer than the default hash limit, so the search is exact.
    assert (result.parameters.search, result.parameters.candidates_limit) == ("exact", 200)


def test_auto_scans_if_all_probes_find_too_few_points() -> None:
    """Probing stops when its memory is full, and then all codes are scanned."""
    points = clustered(3000, DIMS, 6, 0.1)
    index = taking(Index.build(points, n_tables=1, n_bits=24), "tables")
    far = -points[:4]
    few = index.query(far, k=300, search="tables", candidates_limit=400)
    assert (few.counts < 300).any()
    auto_result = index.query(far, k=300, candidates_limit=400)
    scan_result = index.query(far, k=300, candidates_limit=400, search="scan")
    assert auto_result.ids.tolist() == scan_result.ids.tolist()
    assert (auto_result.stats.buckets_probed > few.stats.buckets_probed).all()


@pytest.mark.parametrize(
    "build_options",
    [
        {"n_tables": 256, "n_bits": 24},
        {"n_tables": 1, "n_bits": 1},
        {"n_tables": 7, "n_bits": 23},
        {"n_components": 1},
        {"n_components": 1, "hyperplanes": "gaussian", "centred": True},
        {"target_recall": 1.0, "n_bits": 3},
        {"target_recall": 1e-9, "centred": True},
    ],
)
@pytest.mark.parametrize("points", ["many", "equal", "opposite"])
def test_extreme_build_parameters(build_options: dict[str, Any], points: str) -> None:
    vectors = clustered(50, 6, 2, 0.1)
    if points != "many":
        vectors[:] = vectors[0]
        vectors[::2] *= -1 if points == "opposite" else 2
    index, query_rows = Index.build(vectors, **build_options), clustered(50, 6, 2, 0.1)[:2]
    for search in ("scan", "scan_hamming", "exact"):
        result = index.query(query_rows, k=5, search=search, hash_limit=20, candidates_limit=10)
        for row, query in enumerate(query_rows):
            check_row(points_of(index), query, result, row)
    table_result = index.query(query_rows, k=50, search="tables", hash_limit=0, candidates_limit=0)
    exact_result = index.query(query_rows, k=50, search="exact", hash_limit=0, candidates_limit=0)
    for row in range(2):
        ids = table_result.ids[row, : table_result.counts[row]].tolist()
        assert len(set(ids)) == len(ids)
        assert set(ids) <= set(exact_result.ids[row].tolist())
