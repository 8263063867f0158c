"""A router over shards gives the answers of one index, byte for byte."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.columns.filters import as_filter
from divgrpc.errors import DivgrpcError, InvalidArgumentError, LimitExceededError
from divgrpc.index import Index
from divgrpc.parameters import QueryParameters
from divgrpc.sharding import core, finding
from divgrpc.sharding.finding import TooManyRowsError
from divgrpc.sharding.rounds import Exchange, Round
from divgrpc.sharding.router import Request
from divgrpc.types import HashFamily, Metric, Points, QueryResult, Search, Selector, Variant
from divgrpc.types.filters import Condition, Field, Filter, HasId
from support.data.attributed_indexes import with_attributes
from support.data.divided_indexes import COUNTS, DIVISIONS, DividedIndex, differences
from support.data.mixed_indexes import (
    FAMILIES,
    KINDS,
    METRICS,
    SAMPLINGS,
    SEARCHES,
    SELECTIONS,
    an_index,
    every_index,
    every_search,
    queries,
    stored_as,
    taking,
)

_LIMITS: list[dict[str, Any]] = [
    {},
    {"hash_limit": 40, "candidates_limit": 25},
    {"hash_limit": 0, "candidates_limit": 60},
    {"hash_limit": 300, "candidates_limit": 0, "max_distance": 1.0},
    {"epsilon": 0.5},
]
_MORE: list[dict[str, Any]] = [
    {},
    {"diversity": "auto", "explain": True, "with_report": True},
    {"lose_at_most": 0.05},
    {"duplicate_threshold": None},
    {"duplicate_threshold": 0.9, "list_collapsed": True},
    {"with_attributes": True},
]


@cache
def divided(index: Index, shards: int, division: str) -> DividedIndex:
    return DividedIndex(index.engine, shards, division)


def check(index: Index, pieces: DividedIndex, request: Request) -> None:
    """Compare an answer, or an error, with that of the whole index."""
    engine = index.engine

    def answer_whole() -> QueryResult:
        passing = engine.passing(request.condition, request.exclude_ids)
        return engine.answer(request.queries, request.parameters, passing)

    whole, answer = (outcome_of(call) for call in (answer_whole, lambda: pieces.answer(request)))
    if isinstance(whole, str) or isinstance(answer, str):
        assert answer == whole
    else:
        assert differences(answer, whole) == []


def outcome_of(answer: Callable[[], QueryResult]) -> QueryResult | str:
    try:
        return answer()
    except DivgrpcError as error:
        return f"{type(error).__name__}: {error}"


def test_an_index_without_attributes_has_none_to_return() -> None:
    index = an_index("lsh_div", "cosine", "dense")
    parameters = QueryParameters(k=3, with_attributes=True, with_report=True)
    check(index, divided(index, 2, "hash"), Request(queries(2, "cosine"), parameters))


@every_search
@every_index
def test_each_search_and_selector_on_four_shards(
    family: HashFamily, metric: Metric, kind: Points, search: Search
) -> None:
    index = an_index(family, metric, kind)
    pieces = divided(index, 4, "hash")
    for number, (selector, variant) in enumerate(SELECTIONS):
        options: dict[str, Any] = {"k": 6, "search": search, "diversity": 0.35, "seed": number}
        options |= {"selector": selector, "variant": variant, "sampling": SAMPLINGS[number % 2]}
        options |= _LIMITS[number % 3]
        form = stored_as(queries(3, metric), KINDS[number % 2])
        check(index, pieces, Request(form, QueryParameters(**options)))


# The first of the queries, their number, and the number of ids that are excluded.
_ROWS = (range(20), [1, 1, 4], [0, 1, 200, 240])
_OPTIONS = st.fixed_dictionaries(
    {
        "k": st.sampled_from([1, 7, 30, 500]),
        "sampling": st.sampled_from(SAMPLINGS),
        "n_probes": st.sampled_from([None, 1, 5, 60]),
        "seed": st.sampled_from([0, 3, 2**64 - 1]),
    }
)


@settings(max_examples=250)
@given(
    place=st.tuples(*(st.sampled_from(names) for names in (FAMILIES, METRICS, KINDS))),
    division=st.tuples(st.sampled_from(COUNTS), st.sampled_from(sorted(DIVISIONS))),
    searches=st.tuples(st.sampled_from([*SEARCHES, "auto"]), st.sampled_from(SEARCHES)),
    options=st.tuples(_OPTIONS, *(st.sampled_from(more) for more in (SELECTIONS, _LIMITS, _MORE))),
    rows=st.tuples(st.sampled_from(KINDS), *(st.sampled_from(numbers) for numbers in _ROWS)),
)
def test_any_query_on_any_shards(
    place: tuple[HashFamily, Metric, Points],
    division: tuple[int, str],
    searches: tuple[Any, Search],
    options: tuple[dict[str, Any], ...],
    rows: tuple[Points, int, int, int],
) -> None:
    search, auto = searches
    index = an_index(*place) if search != "auto" else taken(an_index(*place), auto)
    basics, (selector, variant), limits, more = options
    words = basics | limits | more | {"selector": selector, "variant": variant, "search": search}
    try:
        parameters = QueryParameters(**words)
    except InvalidArgumentError:
        # Some options do not go together.
        return
    kind, first, count, excluded = rows
    form = stored_as(queries(24, place[1])[first : first + count], kind)
    ids = index.engine.searcher.ids[:excluded]
    check(index, divided(index, *division), Request(form, parameters, None, ids))


@cache
def taken(index: Index, search: Search) -> Index:
    return taking(index, search)


_FILTERS: list[Condition | None] = [
    None,
    Field("brand") == "brand 3",
    (Field("price") < 0.2) & Field("tags").exists(),
    Field("tags").is_in(["blue", "green"]) | ~Field("new"),
    Field("price") > 2,
]


@pytest.mark.parametrize("family", ["lsh_div", "cells"])
@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("number", range(len(_FILTERS)))
def test_filters_and_stored_columns(family: HashFamily, texts: bool, number: int) -> None:
    index, condition = with_attributes(texts=texts, family=family), as_filter(_FILTERS[number])
    pieces = divided(index, 3, "hash")
    vectors = np.random.default_rng(2).standard_normal((2, 16)).astype(np.float32)
    ids = index.query(vectors, k=3).ids[0].tolist()
    for search in [*SEARCHES, "auto"]:
        for more in _MORE:
            options: dict[str, Any] = {"k": 9, "search": search, "hash_limit": 60} | more
            options |= {"with_attributes": True, "with_payload": True}
            parameters = QueryParameters(**options)
            check(index, pieces, Request(vectors, parameters, condition, ids))
            check(index, pieces, Request(vectors[:1], parameters, condition))


@pytest.mark.parametrize("family", ["lsh_div", "cells"])
def test_points_that_pass_a_filter_are_counted_once(
    family: HashFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are counted again without room for what was counted, and with excluded ids."""
    index = with_attributes(texts=False, family=family)
    first, second = (as_filter(condition) for condition in _FILTERS[1:3])
    pieces = DividedIndex(index.engine, 3)
    rows = np.random.default_rng(3).standard_normal((2, 16)).astype(np.float32)

    def is_counted(condition: Filter | None, row: int, ids: Sequence[int] = ()) -> bool:
        request = Request(rows[row : row + 1], QueryParameters(k=4), condition, ids)
        check(index, pieces, request)
        return "count" in pieces.rounds

    for condition in (first, second):
        assert is_counted(condition, 0)
        assert not is_counted(condition, 1)
        assert is_counted(condition, 0, [3])
    assert not is_counted(first, 0)
    monkeypatch.setattr(finding, "_COUNT_BYTES_MAX", 1)
    pieces.router = pieces.new_router()
    for condition in (as_filter(Field("price") > 0.5), first, second):
        assert is_counted(condition, 0)
        assert not is_counted(condition, 1)


def test_ids_that_pass() -> None:
    for texts in (False, True):
        index = with_attributes(texts=texts)
        ids = next(index.scroll()).ids[:50].tolist()
        condition = as_filter(HasId(tuple(ids)) & ~(Field("brand") == "brand 1"))
        request = Request(np.ones((1, 16), np.float32), QueryParameters(k=70), condition)
        check(index, divided(index, 4, "hash"), request)


@pytest.mark.parametrize("metric", METRICS)
def test_points_that_all_tie(metric: Metric) -> None:
    """Only ids and priorities tell the points apart."""
    rows = np.ones((300, 8), np.float32)
    ids = np.random.default_rng(4).permutation(10**5)[:300] * 9973
    for family in FAMILIES:
        index = Index.build(rows, ids=ids, metric=metric, hash_family=family)
        for search in SEARCHES:
            for sampling in SAMPLINGS:
                options: dict[str, Any] = {"k": 5, "search": search, "sampling": sampling}
                options |= {"hash_limit": 30, "candidates_limit": 12, "diversity": 0.5}
                parameters = QueryParameters(**options)
                for shards in (2, 7):
                    check(index, divided(index, shards, "hash"), Request(rows[:1], parameters))


def test_a_shard_with_more_than_its_share_is_asked_again() -> None:
    index = an_index("lsh_div", "cosine", "dense")
    pieces = divided(index, 4, "skewed")
    rows = queries(24, "cosine")
    for search in ("exact", "scan", "tables"):
        # Sixty buckets hold more than 90 points.
        parameters = QueryParameters(
            k=5, search=search, hash_limit=90, candidates_limit=80, n_probes=60
        )
        for row in range(len(rows)):
            check(index, pieces, Request(rows[row : row + 1], parameters))
            assert pieces.rounds[:2] == ["find", "more"]


def test_buckets_of_more_points_than_the_limit_are_sampled_by_the_shards() -> None:
    """A second round, which fetches vectors of the sample of all shards, is rare."""
    index = an_index("lsh_div", "cosine", "dense")
    pieces, rows = divided(index, 4, "hash"), queries(24, "cosine")
    count = 0
    for row in range(len(rows)):
        parameters = QueryParameters(
            k=5, search="tables", hash_limit=90, candidates_limit=20, n_probes=60, seed=row
        )
        check(index, pieces, Request(rows[row : row + 1], parameters))
        count += len(pieces.rounds) > 1
    assert count <= 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["lsh_div", "cells"])
def test_buckets_and_cells_without_points(family: HashFamily, kind: Points) -> None:
    """Most buckets of few points are empty."""
    index = Index.build(stored_as(queries(9, "euclidean"), kind), hash_family=family, seed=1)
    pieces = DividedIndex(index.engine, 3)
    rows = stored_as(-queries(24, "euclidean"), kind)
    for probes in (1, 2):
        parameters = QueryParameters(k=4, search="tables", n_probes=probes)
        check(index, pieces, Request(rows, parameters))


@pytest.mark.parametrize(("selector", "variant"), SELECTIONS)
def test_rows_ask_in_the_same_rounds(selector: Selector, variant: Variant) -> None:
    index = an_index("lsh_div", "cosine", "dense")
    pieces = divided(index, 3, "skewed")
    rows = queries(6, "cosine")
    for more in _MORE:
        options: dict[str, Any] = {"k": 5, "search": "scan", "hash_limit": 60, **more}
        try:
            parameters = QueryParameters(selector=selector, variant=variant, **options)
        except InvalidArgumentError:
            # Some options do not go together.
            continue
        singles = [rounds_of(pieces, Request(row[None], parameters)) for row in rows]
        assert rounds_of(pieces, Request(rows, parameters)) == max(singles)


@pytest.mark.parametrize("more", _MORE, ids=str)
def test_rows_that_near_copies_crowd_ask_in_the_same_rounds(more: dict[str, Any]) -> None:
    """Pools of all rows grow, whose vectors are fetched in a second round."""
    rng = np.random.default_rng(3)
    centres = rng.standard_normal((60, 16))
    points = np.repeat(centres, 20, axis=0) + 0.02 * rng.standard_normal((1_200, 16))
    index = Index.build(points.astype(np.float32))
    pieces = divided(index, 3, "hash")
    rows = (centres[:12] + 0.3 * rng.standard_normal((12, 16))).astype(np.float32)
    parameters = QueryParameters(k=5, candidates_limit=30, **more)
    singles = [rounds_of(pieces, Request(row[None], parameters)) for row in rows]
    assert rounds_of(pieces, Request(rows, parameters)) == max(singles)
    assert max(singles) > 1 or parameters.duplicate_threshold is None
    check(index, pieces, Request(rows, parameters))


def rounds_of(pieces: DividedIndex, request: Request) -> int:
    """Return how many rounds an answer takes of a router that has answered nothing yet."""
    exchanges, router = list[Exchange](), pieces.new_router()
    while isinstance(step := router.go_on(request, exchanges), Round):
        messages = step.messages.items()
        replies = {shard: pieces.shards[shard].ask(step.name, part) for shard, part in messages}
        exchanges.append(Exchange(step, replies))
    return len(exchanges)


def test_one_shard_is_never_asked_again() -> None:
    index = an_index("lsh_div", "cosine", "dense")
    pieces = divided(index, 1, "hash")
    for search in SEARCHES:
        parameters = QueryParameters(k=1, search=search, hash_limit=50, candidates_limit=20)
        check(index, pieces, Request(queries(1, "cosine"), parameters))
        assert pieces.rounds == ["find"]


def test_text_ids_come_with_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """If they would take too many bytes, or other columns are asked for, they come later."""
    index = with_attributes(texts=True)
    pieces = divided(index, 3, "hash")

    def rounds(**options: Any) -> list[str]:  # noqa: ANN401  # of a query
        check(index, pieces, Request(np.ones((2, 16), np.float32), QueryParameters(k=5, **options)))
        return pieces.rounds

    for options in ({}, {"diversity": 0.3}, {"search": "exact"}, {"duplicate_threshold": 0.99}):
        assert rounds(**options) == ["find"]
    for name in ("with_payload", "with_attributes", "with_report"):
        assert rounds(**{name: True}) == ["find", "describe"]
    monkeypatch.setattr(core, "VALUE_BYTES_MAX", 100)
    assert rounds() == ["find", "describe"]


@pytest.mark.parametrize("texts", [False, True])
def test_ids_of_another_kind_are_refused(texts: bool) -> None:
    index = with_attributes(texts=texts)
    rows, parameters = np.ones((1, 16), np.float32), QueryParameters(k=3)
    kinds: list[Any] = [[1], ["a"], np.array([3, 4]), [1.5], [2**63]]
    for ids in kinds:
        check(index, divided(index, 2, "hash"), Request(rows, parameters, None, ids))


@pytest.mark.parametrize("metric", METRICS)
def test_pools_that_near_copies_crowd(metric: Metric) -> None:
    """A pool grows, and the vectors of the further candidates are fetched."""
    rng = np.random.default_rng(7)
    points = np.repeat(rng.standard_normal((40, 12)), 50, axis=0)
    points += 1e-3 * rng.standard_normal(points.shape)
    index = Index.build(points.astype(np.float32), metric=metric, hash_family="lsh_div")
    pieces, has_grown = divided(index, 4, "hash"), False
    options: dict[str, Any] = {"k": 8, "candidates_limit": 60, "duplicate_threshold": 0.01}
    if metric != "euclidean":
        options["duplicate_threshold"] = 0.99
    for search in ("exact", "scan", "tables"):
        for more in ({}, {"diversity": "auto", "with_report": True}, {"explain": True}):
            parameters = QueryParameters(search=search, hash_limit=1_500, **options, **more)
            request = Request(points[::500].astype(np.float32), parameters)
            check(index, pieces, request)
            has_grown |= "fetch" in pieces.rounds
    assert has_grown


def test_candidates_beyond_the_memory_of_a_router_are_refused() -> None:
    rows = np.random.default_rng(0).standard_normal((2_100, 8_192)).astype(np.float32)
    index = Index.build(rows, hash_family="lsh_div", n_tables=1, n_bits=8)
    pieces = DividedIndex(index.engine, 2)
    options: dict[str, Any] = {"k": 5, "search": "exact", "hash_limit": 0, "candidates_limit": 0}
    with pytest.raises(LimitExceededError, match="candidates_limit must be at most 2,048"):
        pieces.answer(Request(rows[:1], QueryParameters(**options)))
    limited = QueryParameters(k=5, search="exact", candidates_limit=1_000)
    assert len(pieces.answer(Request(rows[:2], limited)).ids) == 2
    for selector in ("greedy", "dpp"):
        parameters = replace(limited, selector=selector)
        with pytest.raises(TooManyRowsError, match="queries must have at most 2 rows"):
            pieces.answer(Request(rows[:3], parameters))
