"""Pages of a query: no point twice, together one long list, and no page for a wrong token."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from divgrpc import Field, Index
from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.search import page_tokens
from divgrpc.types import FloatArray, Metric, QueryResult

METRICS: list[Metric] = ["cosine", "euclidean", "inner_product"]
# The selectors whose next pick does not depend on the number of results.
JOINABLE: list[dict[str, Any]] = [
    {"selector": "greedy", "variant": "corrected"},
    {"selector": "greedy", "variant": "printed"},
    {"selector": "mmr"},
    {"selector": "dpp"},
    {"selector": "nearest"},
]
UNJOINABLE: list[dict[str, Any]] = [{}, {"selector": "max_sum"}, {"selector": "rerank"}]
DIMS = 6


def points_of(seed: int, count: int, *, ties: bool) -> FloatArray:
    """Draw points; with ties, from a small lattice, so that distances and points are equal."""
    rng = np.random.default_rng(seed)
    if ties:
        return (rng.integers(-2, 3, (count, DIMS)) + 0.25).astype(np.float32)
    return rng.standard_normal((count, DIMS)).astype(np.float32)


def build(points: Any, metric: Metric = "cosine", **arguments: Any) -> Index:  # noqa: ANN401
    return Index.build(
        points, metric=metric, hash_family="lsh_div", n_tables=1, n_bits=2, **arguments
    )


def ids_of(pages: list[QueryResult]) -> list[Any]:
    return [hit.id for page in pages for hit in page[0]]


def codes(page: QueryResult) -> list[str]:
    return [warning.code for warning in page.warnings]


@pytest.mark.parametrize("options", JOINABLE, ids=str)
@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**16),
    metric=st.sampled_from(METRICS),
    k=st.integers(1, 5),
    dial=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    is_sparse=st.booleans(),
    ties=st.booleans(),
    copies=st.booleans(),
)
def test_pages_joined_equal_one_long_list(
    options: dict[str, Any],
    seed: int,
    metric: Metric,
    k: int,
    dial: float,
    *,
    is_sparse: bool,
    ties: bool,
    copies: bool,
) -> None:
    """They have the same points with the same scores and values, to the bit."""
    points = points_of(seed, 60, ties=ties)
    index = build(sparse.csr_array(points) if is_sparse else points, metric)
    query = points_of(seed + 1, 1, ties=ties)
    limits: dict[str, Any] = {"search": "exact", "hash_limit": 0, "candidates_limit": 50}
    if not copies:
        limits["keep_duplicates"] = True
    elif dial:
        limits["duplicate_threshold"] = 0.5 if metric == "euclidean" else 0.9
    options = options | limits | ({} if options["selector"] == "nearest" else {"diversity": dial})
    pages = list(islice(index.pages(query, k=k, **options), 4))
    long = index.query(query, k=4 * k, **options)
    different = int(long.counts[0] - long.stats.duplicates[0])
    for name in ("ids", "scores", "selection_scores"):
        rows = [getattr(page, name)[0, : page.counts[0]] for page in pages]
        assert np.concatenate(rows).tolist() == getattr(long, name)[0, :different].tolist()
    if different < 4 * k:
        assert pages[-1].next_page_token == ""


@pytest.mark.parametrize("options", [*JOINABLE, *UNJOINABLE], ids=str)
@pytest.mark.parametrize("metric", METRICS)
def test_pages_show_each_point_once(options: dict[str, Any], metric: Metric) -> None:
    points = points_of(1, 200, ties=False)
    index = build(points, metric)
    pages = list(index.pages(points[3] + 0.1, k=9, keep_duplicates=True, **options))
    assert sorted(ids_of(pages)) == list(range(200))
    assert [page.counts[0] for page in pages[:-1]] == [9] * (len(pages) - 1)
    assert pages[-1].next_page_token == ""
    assert [codes(page) for page in pages] == [[]] * len(pages)


def test_a_pool_doubles_when_half_of_it_was_shown() -> None:
    points = points_of(2, 3_000, ties=False)
    index = build(points)
    pages = list(index.pages(points[0] + 0.1, k=50, keep_duplicates=True))
    assert sorted(ids_of(pages)) == list(range(3_000))
    limits = [page.parameters.candidates_limit for page in pages]
    # The default of candidates_limit for k = 50 is 500.
    assert limits == [2_000] * 20 + [4_000] * 40
    assert [number for number, page in enumerate(pages) if "PAGE_POOL_GROWN" in codes(page)] == [20]


def test_limits_of_the_caller_end_the_pages() -> None:
    points = points_of(2, 500, ties=False)
    index = build(points)
    options: dict[str, Any] = {"candidates_limit": 40, "k": 9, "keep_duplicates": True}
    pages = list(index.pages(points[0] + 0.1, search="exact", **options))
    nearest = index.query(points[0] + 0.1, k=40, selector="nearest", search="exact")
    assert sorted(ids_of(pages)) == sorted(nearest.ids[0].tolist())
    assert {page.parameters.candidates_limit for page in pages} == {40}
    assert [codes(page) for page in pages] == [[]] * 5


def test_pages_have_no_near_copies() -> None:
    points = points_of(3, 40, ties=False)
    copies = np.concatenate((points, points * 1.001, points * 0.999))
    index = build(copies)
    query = points[0] + 0.1
    shown = ids_of(list(index.pages(query, k=4)))
    assert sorted(number % 40 for number in shown) == list(range(40))
    page = index.query(query, k=4, paged=True, list_collapsed=True)
    assert page.collapsed_offsets.tolist() == [0, 2, 4, 6, 8]
    assert page.stats.collapsed.tolist() == [8]
    copies_of = [page.collapsed(0, place) % 40 for place in range(4)]
    assert [group.tolist() for group in copies_of] == [[i % 40] * 2 for i in page.ids[0].tolist()]


def test_copies_of_points_that_left_the_pool_are_not_shown() -> None:
    """The threshold counts between a candidate and all points shown, wherever these are now."""
    points = points_of(3, 40, ties=False)
    index = build(np.concatenate((points, points * 1.001)))
    first = index.query(points[0], k=20, selector="nearest", duplicate_threshold=0.99)
    rest = index.query(
        points[0], k=50, already_shown=first.ids[0], selector="nearest", duplicate_threshold=0.99
    )
    assert {n % 40 for n in first.ids[0].tolist()}.isdisjoint(n % 40 for n in ids_of([rest]))
    assert rest.counts[0] == 20
    assert "FEWER_THAN_K_FOUND" in codes(rest)


@pytest.mark.parametrize("options", [*JOINABLE[:4], *UNJOINABLE], ids=str)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("is_sparse", [False, True])
def test_points_already_shown_count_as_earlier_picks(
    options: dict[str, Any], metric: Metric, *, is_sparse: bool
) -> None:
    points = points_of(5, 300, ties=False)
    index = build(sparse.csr_array(points) if is_sparse else points, metric)
    query = points[7] + 0.3
    limits: dict[str, Any] = {"k": 6, "search": "exact", "candidates_limit": 0, "hash_limit": 0}
    limits |= {"keep_duplicates": True, "diversity": 0.4, **options}
    first = index.query(query, **limits, paged=True)
    shown = first.ids[0].tolist()
    by_ids = index.query(query, **limits, already_shown=shown)
    assert not {*shown} & {*by_ids.ids[0].tolist()}
    plain = index.query(query, **limits, exclude_ids=shown)
    assert by_ids.ids.tolist() != plain.ids.tolist()
    # A shortlist, and costs that are scaled by the farthest or the mean candidate, depend on the
    # candidates, which here have the points shown.
    is_scaled = metric == "inner_product" or (metric == "euclidean" and "dpp" in options.values())
    is_scaled = is_scaled or "rerank" in options.values()
    vectors = points[shown]
    for shown_vectors in (vectors, sparse.csr_array(vectors), vectors.tolist()):
        by_vectors = index.query(query, **limits, already_shown=shown_vectors)
        assert not {*shown} & {*by_vectors.ids[0].tolist()}
        if not is_scaled:
            assert by_vectors.ids.tolist() == by_ids.ids.tolist()
            values = by_vectors.selection_scores, by_ids.selection_scores
            assert np.allclose(*values, rtol=1e-3, atol=1e-4)
    if options not in UNJOINABLE and not is_scaled:
        second = index.query(query, **limits, page_token=first.next_page_token)
        assert second.ids.tolist() == by_ids.ids.tolist()


def test_several_rows_may_have_points_already_shown() -> None:
    points = points_of(6, 200, ties=False)
    index = build(points)
    together = index.query(points[:4], k=3, already_shown=[0, 1, 9_999])
    for row in range(4):
        alone = index.query(points[row], k=3, already_shown=[0, 1, 9_999])
        assert together.ids[row].tolist() == alone.ids[0].tolist()
    assert not {0, 1} & {*together.ids.ravel().tolist()}
    assert codes(together) == ["ALREADY_SHOWN_UNKNOWN"]
    assert "1 of 3 ids" in together.warnings[0].message
    like = index.query(like=[0, 5], k=3, already_shown=[7])
    assert not {0, 7} & {*like.ids[0].tolist()}
    assert not {5, 7} & {*like.ids[1].tolist()}
    plain = index.query(points[:2], k=3, already_shown=[])
    assert plain.ids.tolist() == index.query(points[:2], k=3).ids.tolist()


@pytest.mark.parametrize("options", [*JOINABLE[2:4], *UNJOINABLE], ids=str)
@pytest.mark.parametrize("dial", [{"diversity": "auto"}, {"lose_at_most": 0.2}], ids=str)
def test_the_dial_of_page_1_is_pinned(options: dict[str, Any], dial: dict[str, Any]) -> None:
    points = points_of(8, 400, ties=False)
    index = build(points)
    limits: dict[str, Any] = {"candidates_limit": 100, "k": 5, **options, **dial}
    first, second, third = islice(index.pages(points[0] + 0.1, **limits), 3)
    plain = index.query(points[0] + 0.1, **limits)
    assert first.ids.tolist() == plain.ids.tolist()
    assert first.diversities.tolist() == plain.diversities.tolist()
    assert first.dial_reasons.tolist() == plain.dial_reasons.tolist()
    for page in (second, third):
        assert page.parameters == first.parameters
        assert page.diversities.tolist() == first.diversities.tolist()
        assert page.dial_reasons.tolist() == first.dial_reasons.tolist()


@pytest.mark.parametrize("options", [*JOINABLE[2:4], *UNJOINABLE], ids=str)
def test_a_loss_is_bounded_after_points_already_shown(options: dict[str, Any]) -> None:
    points = points_of(8, 400, ties=False)
    index = build(points)
    limits: dict[str, Any] = {"candidates_limit": 100, "k": 5, "keep_duplicates": True, **options}
    limits |= {"already_shown": [3, 4, 5], "search": "exact"}
    result = index.query(points[0] + 0.1, lose_at_most=0.2, **limits)
    nearest = index.query(points[0] + 0.1, diversity=0.0, **limits).scores.mean()
    whole = index.query(points[0] + 0.1, diversity=0.0, **limits | {"k": 100}).scores.mean()
    assert (nearest - result.scores.mean()) / (nearest - whole) <= 0.2
    assert 0 < result.diversities[0] < 1
    more = index.query(points[0] + 0.1, diversity=result.diversities[0] + 1 / 32, **limits)
    assert (nearest - more.scores.mean()) / (nearest - whole) > 0.2


def test_no_dial_is_chosen_if_all_candidates_are_near_copies_of_points_shown() -> None:
    points = np.array([[1, 0], [0.7, 0.7], [0, 1]], np.float32)
    words: dict[str, Any] = {"k": 1, "duplicate_threshold": 0.8, "already_shown": points}
    for selector in ("greedy", "mmr"):
        result = build(points).query(points[:1], selector=selector, lose_at_most=0.5, **words)
        assert result.counts.tolist() == [0]


def test_pages_obey_filters_and_ids() -> None:
    points = points_of(9, 300, ties=False)
    names = [f"p{number}" for number in range(300)]
    index = build(points, ids=names, attributes={"size": list(range(300))})
    options: dict[str, Any] = {"filter": Field("size") < 50, "exclude_ids": ["p7", "p8"]}
    pages = list(index.pages(like="p3", k=7, keep_duplicates=True, **options))
    expected = {f"p{number}" for number in range(50)} - {"p3", "p7", "p8"}
    assert len(ids_of(pages)) == len(expected)
    assert {*ids_of(pages)} == expected
    assert {page.points_passing for page in pages} == {47}
    fewer = list(index.pages(like="p3", already_shown=["p9"], keep_duplicates=True, **options))
    assert {*ids_of(fewer)} == expected - {"p9"}


def test_pages_of_nothing_end_at_once() -> None:
    index = build(points_of(1, 20, ties=False), attributes={"size": [1] * 20})
    query = np.ones(DIMS)
    assert list(index.pages(query, filter=Field("size") > 1)) == []
    page = index.query(query, filter=Field("size") > 1, paged=True)
    assert (page.counts.tolist(), page.next_page_token) == ([0], "")
    assert list(index.pages(query, max_distance=0.0)) == []
    [page] = index.pages(query, k=20, keep_duplicates=True)
    assert page.next_page_token == ""


def refused(index: Index, *arguments: Any, **options: Any) -> str:  # noqa: ANN401  # of `query`
    with pytest.raises(InvalidArgumentError) as error:
        index.query(*arguments, **options)
    return error.value.field


def test_a_token_belongs_to_one_request() -> None:
    points = points_of(11, 100, ties=False)
    index = build(points, attributes={"size": list(range(100))})
    query = points[0] + 0.1
    request: dict[str, Any] = {"k": 5, "filter": Field("size") < 90, "exclude_ids": [3]}
    token = index.query(query, **request, paged=True).next_page_token
    second = index.query(query, **request, page_token=token)
    same: list[dict[str, Any]] = [
        {"with_attributes": True},
        {"list_collapsed": True},
        {"with_payload": True},
        {"paged": True},
        {"exclude_ids": np.array([3])},
    ]
    for change in same:
        page = index.query(query, **request | change, page_token=token)
        assert page.ids.tolist() == second.ids.tolist()
    changes: list[dict[str, Any]] = [
        *({"k": 6}, {"diversity": 0.2}, {"selector": "mmr"}, {"variant": "printed"}, {"seed": 1}),
        *({"filter": Field("size") < 91}, {"filter": None}, {"exclude_ids": [4]}),
        *({"exclude_ids": None}, {"already_shown": [5]}, {"already_shown": points[:2]}),
        *({"max_distance": 3.0}, {"keep_duplicates": True}, {"candidates_limit": 50}),
    ]
    for change in changes:
        assert refused(index, query, **request | change, page_token=token) == "page_token"
    assert refused(index, query * 1.01 + 0.01, **request, page_token=token) == "page_token"
    assert refused(index, **request, like=0, page_token=token) == "page_token"
    other = build(points[::-1], attributes={"size": list(range(100))})
    assert refused(other, query, **request, page_token=token) == "page_token"


def test_wrong_continuations_are_refused() -> None:
    points = points_of(11, 50, ties=False)
    index = build(points)
    token = index.query(points[0], paged=True).next_page_token
    wrong_tokens: list[Any] = ["", "x", token[:-1], token + "A", b"abc", 7, token.lower()]
    for wrong in wrong_tokens:
        assert refused(index, points[0], page_token=wrong) == "page_token"
    assert refused(index, points[:2], paged=True) == "queries"
    assert refused(index, points[:2], page_token=token) == "queries"
    assert refused(index, like=[1, 2], paged=True) == "like"
    assert refused(index, points[0], paged="yes") == "paged"
    for arguments in ({"paged": True}, {"already_shown": [1]}):
        assert refused(index, points[0], selector="qp_relax", **arguments) == "selector"
    most = LIMITS["already_shown_max"]
    wrong_points: list[Any] = [
        *(points[:, :-1], ["a"], [1.5], list(range(most + 1)), np.ones((most + 1, DIMS))),
        *(np.full((1, DIMS), np.nan), np.zeros((1, DIMS)), object(), b"abc", [[[1.0] * DIMS]]),
    ]
    for shown in wrong_points:
        assert refused(index, points[0], already_shown=shown) == "already_shown"


def test_pages_end_at_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    points = points_of(12, 300, ties=False)
    index = build(points)
    options: dict[str, Any] = {"k": 20, "keep_duplicates": True}
    limits = {**LIMITS, "page_points_max": 100}
    with monkeypatch.context() as patch:
        patch.setattr("divgrpc.pages.LIMITS", limits)
        patch.setattr(page_tokens, "LIMITS", limits)
        pages = list(index.pages(points[0] + 0.1, **options))
    assert len(ids_of(pages)) == len({*ids_of(pages)}) == 100
    assert codes(pages[-1]) == ["PAGES_END_EARLY"]

    def most(parameters: QueryParameters, width: int, shown: int = 0) -> int:
        del width
        return 5_000 // (parameters.k + shown)

    with monkeypatch.context() as patch:
        patch.setattr(QueryParameters, "most_candidates", most)
        pages = list(index.pages(points[0] + 0.1, **options))
    assert codes(pages[-1]) == ["PAGES_END_EARLY"]
    assert len(ids_of(pages)) == len({*ids_of(pages)}) < 300


def test_a_query_without_pages_has_no_token() -> None:
    index = build(points_of(1, 20, ties=False))
    assert index.query(np.ones(DIMS)).next_page_token == ""
    assert index.query(np.ones(DIMS), already_shown=[1]).next_page_token == ""
