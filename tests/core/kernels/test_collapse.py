"""Near-copies among candidates: which are kept, how the pool grows, how answers are filled up."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from core.kernels.test_greedy import CODES, METRICS, RULES, Case, Metrics, Rule, parameters
from divgrpc.index import Index
from divgrpc.kernels import exact, greedy, pairwise
from divgrpc.kernels.records import Candidates, Objective, Pool
from divgrpc.parameters import QueryParameters
from divgrpc.search.results import joined
from divgrpc.types import EffectiveParameters, FloatArray, QueryResult, Selector
from reference import definitions
from reference import near_copies as reference_collapse
from reference.index import check_row, points_of, same_bytes, selection_scratch
from support.checks.refusals import refused

examples = settings(max_examples=40)
seeds = st.integers(0, 2**32 - 1)
DIMS = 24
SELECTORS: list[Selector] = ["nearest", "greedy", "mmr", "rerank", "dpp", "max_sum"]


def copies(
    seed: int, items: int, most: int, *, metric: Metrics = "cosine", dims: int = DIMS
) -> FloatArray:
    """Draw items, each with 1 to `most` copies, exact or with a cosine of about 0.999."""
    rng = np.random.default_rng(seed)
    centres = definitions.unit(rng.standard_normal((items, dims)))
    rows = np.repeat(centres, rng.integers(1, most + 1, items), axis=0)
    jitter = rng.standard_normal(rows.shape) * (rng.random((len(rows), 1)) < 0.7)
    rows = definitions.unit(rows + 0.005 * jitter)[rng.permutation(len(rows))]
    if metric != "cosine":
        rows *= 3
    return rows.astype(np.float32)


def limit_of(metric: Metrics) -> float:
    """Return a distance limit that no pair of rows of `copies` comes close to."""
    return {"cosine": 0.02, "euclidean": 0.18, "inner_product": 0.01}[metric]


def threshold_of(metric: Metrics) -> float:
    """Return the distance limit as a value of the parameter `duplicate_threshold`."""
    return limit_of(metric) if metric == "euclidean" else 0.99


@examples
@given(
    seed=seeds,
    items=st.integers(1, 12),
    metric=st.sampled_from(METRICS),
    dims=st.sampled_from([DIMS, 200]),
    data=st.data(),
)
def test_kept_candidates_agree_with_the_reference(
    seed: int, items: int, metric: Metrics, dims: int, data: st.DataObject
) -> None:
    vectors = copies(seed, items, 6, metric=metric, dims=dims)
    query = np.asarray(definitions.unit(np.random.default_rng(seed).standard_normal(dims)))
    case = Case(vectors, query.astype(np.float32), metric, data.draw(st.booleans()))
    near = definitions.nearest_rows(case.points(), case.query, range(len(vectors)))
    truth = reference_collapse.keep_different(case.points(), near, limit_of(metric))
    points = case.stored()
    rows, limit = np.array(near, np.int32), np.float32(limit_of(metric))
    places = np.empty(len(rows), np.int64)
    arguments = (points, rows)
    scratch = selection_scratch(len(rows), points, has_marks=data.draw(st.booleans()))
    count = pairwise.keep_different(*arguments, len(rows), limit, scratch, places)
    assert rows[places[:count]].tolist() == truth
    standing = np.zeros(len(rows), np.int8)
    for place in data.draw(st.permutations(range(len(rows)))):
        stays = pairwise.is_kept(*arguments, place, limit, standing, scratch)
        assert stays == (near[place] in truth)


@examples
@given(
    seed=seeds,
    items=st.integers(1, 12),
    rule=st.sampled_from(RULES),
    metric=st.sampled_from(METRICS),
    data=st.data(),
)
def test_each_pick_is_the_best_of_the_kept_candidates(
    seed: int, items: int, rule: Rule, metric: Metrics, data: st.DataObject
) -> None:
    k, pool = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 30))
    diversity = data.draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    vectors = copies(seed, items, 6, metric=metric)
    query = np.asarray(definitions.unit(np.random.default_rng(seed).standard_normal(DIMS)))
    case, limit = Case(vectors, query.astype(np.float32), metric), limit_of(metric)
    points = case.points()
    near = definitions.nearest_rows(points, case.query, range(len(vectors)))
    query_parameters = parameters(k, diversity, rule)
    (picks, values), counts = pick(case, near, query_parameters, min(pool, len(near)))
    duplicate_count, copy_count, pool_size = counts
    distinct_rows = reference_collapse.keep_different(points, near[:pool_size], limit)
    distinct_picks = picks[: len(picks) - duplicate_count]
    assert set(distinct_picks) <= set(distinct_rows)
    assert len(distinct_picks) == min(k, len(distinct_rows))
    copies_by_pick = reference_collapse.copies_of(points, near[:pool_size], distinct_picks, limit)
    assert copy_count == sum(map(len, copies_by_pick.values()))
    # The pool is doubled while at least a quarter of its candidates are copies of picks.
    assert pool_size == len(near) or 4 * copy_count < pool_size
    rest = [row for row in near[:pool_size] if row not in distinct_picks]
    assert picks[len(distinct_picks) :] == rest[: k - len(distinct_picks)]
    costs = definitions.costs(points, case.query, distinct_rows)
    if diversity == 0 and rule != "printed":
        costs = {row: definitions.far(points, case.query, row) for row in distinct_rows}
    for step, row in enumerate(distinct_picks):
        before = distinct_picks[:step]
        steps = {
            r: definitions.step_value(
                points, costs[r], r, before, query_parameters, k=min(k, pool_size)
            )
            for r in distinct_rows
            if r not in before
        }
        assert abs(steps[row] + values[step]) < 10 * case.room * (1 + step)
        assert steps[row] <= min(steps.values()) + 10 * case.room * (1 + step)


def pick(
    case: Case, near: list[int], query_parameters: EffectiveParameters, pool: int
) -> tuple[tuple[list[int], list[float]], tuple[int, int, int]]:
    points, k = case.stored(), query_parameters.k
    rows = np.array(near, np.int32)
    distances = np.empty(len(rows), np.float32)
    query = case.kernel_query()
    exact.score_rows(points, query, rows, len(rows), distances)
    picks, gains = np.full(k, -1, np.int64), np.full(k, np.nan, np.float32)
    ids = np.empty(0, np.int64)
    ids.setflags(write=False)
    objective = Objective(
        k,
        np.float32(1 - query_parameters.diversity),
        CODES["mmr" if query_parameters.selector == "mmr" else query_parameters.variant],
        query.product,
        np.float32(limit_of(case.metric)),
    )
    pick_count, duplicate_count, copy_count, pool_size = greedy.pick(
        points,
        ids,
        Candidates(rows, distances),
        np.empty(len(rows), np.float32),
        Pool(pool, len(rows), len(rows)),
        objective,
        selection_scratch(len(rows), points),
        picks,
        gains,
    )
    counts = (duplicate_count, copy_count, pool_size)
    return (rows[picks[:pick_count]].tolist(), gains[:pick_count].tolist()), counts


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("metric", METRICS)
def test_queries_agree_with_the_reference(metric: Metrics, kind: str) -> None:
    vectors = copies(3, 30, 9, metric=metric)
    rows = sparse.csr_array(vectors) if kind == "sparse" else vectors
    index = Index.build(rows, metric=metric, hash_family="lsh_div")
    points, queries = points_of(index), copies(4, 4, 1, metric=metric)
    options: dict[str, Any] = {"k": 6, "diversity": 0.4, "search": "exact", "candidates_limit": 10}
    options["duplicate_threshold"] = threshold_of(metric)
    for selector in SELECTORS:
        for hash_limit in (40, 0):
            result = index.query(queries, selector=selector, hash_limit=hash_limit, **options)
            for number, query in enumerate(queries):
                check_row(points, query, result, number)


def an_index(items: int = 40, most: int = 9) -> tuple[Index, FloatArray]:
    vectors = copies(7, items, most)
    return Index.build(vectors, hash_family="lsh_div"), vectors


def test_plain_neighbours_keep_duplicates_by_default() -> None:
    index, vectors = an_index()
    plain = index.query(vectors[:9], selector="nearest", keep_duplicates=True)
    for options in ({"diversity": 0}, {"selector": "nearest"}):
        assert index.query(vectors[:9], **options).ids.tolist() == plain.ids.tolist()
        assert index.query(vectors[:9], **options).parameters.duplicate_threshold is None
        distinct_result = index.query(vectors[:9], **options, duplicate_threshold=0.99)
        assert distinct_result.ids.tolist() != plain.ids.tolist()
        assert distinct_result.ids[:, 0].tolist() == plain.ids[:, 0].tolist()
    full_result = index.query(vectors[:9], keep_duplicates=True)
    assert not full_result.stats.collapsed.any()
    assert not full_result.stats.duplicates.any()


def items_of(vectors: FloatArray, ids: npt.NDArray[np.int64]) -> int:
    cosines = vectors[ids] @ vectors[ids].T
    return len(ids) - int((np.triu(cosines, 1) > 0.99).any(axis=0).sum())


@pytest.mark.parametrize("selector", [*SELECTORS[1:], "qp_relax"])
def test_each_item_with_ten_copies_is_returned_once(selector: Selector) -> None:
    index, vectors = an_index(60, 10)
    result = index.query(vectors[:20], selector=selector)
    assert all(items_of(vectors, ids) == 10 for ids in result.ids)
    assert not result.stats.duplicates.any()
    assert "CANDIDATES_CROWDED" not in {warning.code for warning in result.warnings}


@pytest.mark.parametrize("selector", SELECTORS)
def test_near_copies_fill_up_short_answers_with_a_warning(selector: Selector) -> None:
    index, vectors = an_index(4, 9)
    result = index.query(vectors[:3], selector=selector, duplicate_threshold=0.99)
    assert (result.counts == min(10, len(vectors))).all()
    assert (result.stats.duplicates == result.counts - 4).all()
    assert all(items_of(vectors, ids[:4]) == 4 for ids in result.ids)
    (warning,) = (w for w in result.warnings if w.code == "CANDIDATES_CROWDED")
    assert "3 of 3 rows" in warning.message


def test_collapsed_ids_are_the_copies_of_their_result() -> None:
    index, vectors = an_index(30, 9)
    queries = vectors[:5]
    result = index.query(queries, k=6, list_collapsed=True)
    plain = index.query(queries, k=6)
    assert result.ids.tolist() == plain.ids.tolist()
    assert len(result.collapsed_offsets) == result.ids.size + 1
    for row, ids in enumerate(result.ids):
        copies_by_place = [result.collapsed(row, place) for place in range(6)]
        assert sum(map(len, copies_by_place)) == result.stats.collapsed[row]
        all_copies = set(np.concatenate(copies_by_place).tolist())
        assert sum(map(len, copies_by_place)) == len(all_copies - set(ids))
        for place, copy_ids in enumerate(copies_by_place):
            assert (vectors[copy_ids] @ vectors[ids[place]] > 0.95).all()
    assert len(plain.collapsed(0, 0)) == 0


def test_a_batch_gives_the_answers_of_its_rows() -> None:
    index, vectors = an_index()
    for options in ({}, {"list_collapsed": True}, {"selector": "dpp"}):
        whole = index.query(vectors[:9], **options)
        alone: list[QueryResult] = [index.query(row, **options) for row in vectors[:9]]
        assert same_bytes(whole, joined(alone))


@pytest.mark.parametrize(
    ("metric", "values", "match"),
    [
        ("cosine", [1.0001, -1.5], "a cosine"),
        ("inner_product", [1.0001, -1.5], "a cosine"),
        ("euclidean", [-0.1], "squared distance"),
        ("cosine", [float("nan"), float("inf"), "near", True], None),
    ],
)
def test_a_wrong_duplicate_threshold_is_refused(
    metric: Metrics, values: list[Any], match: str | None
) -> None:
    index = Index.build(copies(1, 9, 2), metric=metric)
    for value in values:
        with refused("duplicate_threshold", match):
            index.query(copies(1, 1, 1), duplicate_threshold=value)
    with refused("duplicate_threshold", "one of the two"):
        index.query(copies(1, 1, 1), duplicate_threshold=0.9, keep_duplicates=True)


def test_a_search_is_repeated_until_k_results_differ() -> None:
    """A query is repeated at most twice, and not if the request gives a hash_limit."""
    rng = np.random.default_rng(5)
    centre = definitions.unit(rng.standard_normal((1, DIMS)))
    crowd = definitions.unit(
        np.repeat(centre, 3_000, axis=0) + 0.005 * rng.standard_normal((3_000, DIMS))
    )
    neighbours = definitions.unit(centre + 0.8 * definitions.unit(rng.standard_normal((40, DIMS))))
    vectors = np.concatenate((crowd, neighbours)).astype(np.float32)
    index = Index.build(vectors, hash_family="lsh_div", target_recall=0.5)
    queries = vectors[[0, 3_001]]
    options: dict[str, Any] = {"search": "exact", "duplicate_threshold": 0.95}
    result = index.query(queries, **options)
    points = points_of(index)
    wide = replace(result.parameters, hash_limit=4 * 800, candidates_limit=4 * 200)
    check_row(points, queries[0], result, 0, parameters=wide)
    assert not result.stats.duplicates.any()
    assert (result.ids[0, 1:] >= 3_000).all()
    (warning,) = result.warnings
    assert warning.code == "CANDIDATES_CROWDED"
    assert "half of the candidates of 2 of 2 rows" in warning.message
    single_search = index.query(queries, **options, hash_limit=800)
    assert single_search.stats.duplicates[0] == 9
    assert [warning.code for warning in single_search.warnings] == ["CANDIDATES_CROWDED"]
    batch = index.query(queries, **options, list_collapsed=True)
    assert batch.ids.tolist() == result.ids.tolist()
    assert len(batch.collapsed(0, 0)) == 2_999


@pytest.mark.parametrize("selector", ["greedy", "dpp"])
def test_a_repeated_search_respects_the_maximum_of_candidates(selector: Selector) -> None:
    rng = np.random.default_rng(7)
    crowd = np.repeat(rng.standard_normal((1, DIMS)), 24_000, axis=0)
    crowd += 0.001 * rng.standard_normal(crowd.shape)
    vectors = np.concatenate((crowd, rng.standard_normal((6_000, DIMS)))).astype(np.float32)
    index = Index.build(vectors, n_tables=2)
    options: dict[str, Any] = {"selector": selector, "k": 50, "diversity": 0.9}
    most = QueryParameters(selector=selector).most_compared(DIMS)
    result = index.query(vectors[:1], **options, duplicate_threshold=0.99)
    assert result.stats.candidates[0] <= most
    full_search = index.query(vectors[:1], **options, candidates_limit=0, hash_limit=0)
    assert full_search.parameters.duplicate_threshold is None
    assert [warning.code for warning in full_search.warnings] == ["NEAR_COPIES_KEPT"]
    with refused("candidates_limit", f"at most {most} candidates"):
        index.query(
            vectors[:1], **options, candidates_limit=0, hash_limit=0, duplicate_threshold=0.99
        )
