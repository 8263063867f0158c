"""Queries within quotas and by groups are answered by shards as by one index."""

import gc
import weakref
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from divgrpc import Field, GroupBy, Index, Quota
from divgrpc.columns.quotas import as_quotas
from divgrpc.engine import Engine
from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import QueryParameters
from divgrpc.sharding import core, finding, gathering_engine, layouts
from divgrpc.sharding.finding import TooManyRowsError
from divgrpc.sharding.messages import divide, join
from divgrpc.sharding.rounds import Round
from divgrpc.types import HashFamily, IntArray, QueryResult
from support.data.divided_indexes import COUNTS, DIVISIONS, DividedIndex, check_call

_ROWS, _BRANDS, _DIMS = 900, 30, 12
_FAMILIES: tuple[HashFamily, ...] = ("lsh_div", "cells")
# The hash family of dense points, or sparse points with inverted lists.
_Form = HashFamily | Literal["lists"]
_FORMS: tuple[_Form, ...] = (*_FAMILIES, "lists")
_SELECTORS = ["nearest", "greedy", "mmr", "rerank", "max_sum", "dpp"]


@cache
def an_index(*, form: _Form = "lsh_div", texts: bool = False) -> Index:
    """Return an index of points around the centres of their brands, some with rare values."""
    rng = np.random.default_rng(0)
    brands = rng.integers(0, _BRANDS, _ROWS)
    centres = rng.standard_normal((_BRANDS, _DIMS))
    sources = rng.choice(["own", "web", "ads", ""], _ROWS, p=[0.006, 0.5, 0.4, 0.094])
    numbers = rng.permutation(10**6)[:_ROWS]
    points: Any = (centres[brands] + 0.3 * rng.standard_normal((_ROWS, _DIMS))).astype(np.float32)
    if form == "lists":
        points = _words_of(brands)
    return Index.build(
        points,
        ids=[f"item {number:x}" for number in numbers] if texts else numbers,
        hash_family="lsh_div" if form == "lists" else form,
        attributes={
            "brand": [f"b{brand}" for brand in brands],
            "source": [source or None for source in sources],
            "tags": [
                sorted({f"t{t}" for t in rng.integers(0, 8, row % 4)}) for row in range(_ROWS)
            ],
            "price": rng.uniform(0, 100, _ROWS),
            "year": brands % 5 + 2020,
            "sold": [bool(row % 7) for row in range(_ROWS)],
        },
    )


def _words_of(brands: IntArray) -> sparse.csr_array:
    """Return points with some of the words of their brands, and with other words."""
    rng = np.random.default_rng(3)
    shares = np.full((len(brands), 20 * _BRANDS), 0.01)
    for row, brand in enumerate(brands):
        shares[row, 20 * brand : 20 * brand + 20] = 0.4
    weights = rng.random(shares.shape) * (rng.random(shares.shape) < shares)
    return sparse.csr_array(weights.astype(np.float32))


@cache
def another_index() -> Index:
    """Return an index of fewer points, with the same attributes and other values."""
    rng = np.random.default_rng(7)
    rows = _ROWS // 2
    return Index.build(
        rng.standard_normal((rows, _DIMS)).astype(np.float32),
        attributes={
            "brand": [f"b{brand}" for brand in rng.integers(0, 50, rows)],
            "source": [["web", "own", None][row % 3] for row in range(rows)],
            "tags": [[f"t{row % 8}"] * (row % 2) for row in range(rows)],
            "price": rng.uniform(0, 400, rows),
            "year": rng.integers(2015, 2023, rows),
            "sold": [row % 3 == 0 for row in range(rows)],
        },
    )


@cache
def divided(index: Index, shards: int, division: str) -> DividedIndex:
    return DividedIndex(index.engine, shards, division)


_QUOTAS: list[Any] = [
    [Quota("brand", max_each=1)],
    [Quota("brand", min_each=1)],
    [Quota("tags", max_each=2)],
    [Quota("tags", rules={"t1": (3, None), None: (1, 2)})],
    [Quota("tags", max_each=0, rules={"t1": (0, 4), "t2": (0, 9)})],
    [Quota("source", max_each=0, rules={"ads": (0, 9), None: (0, 2)})],
    [Quota("source", rules={"own": (3, None), "nothing": (0, 1)}), Quota("year", max_each=3)],
    [Quota("source", rules={"web": (None, 0)}), Quota("sold", rules={True: (1, 3)})],
    [Quota("tags", max_each=1), Quota("year", max_each=1)],
    [Quota("price", max_each=1), Quota("year", rules={2021: (2, 5)})],
    [
        Quota("brand", max_each=2),
        Quota("source", rules={"own": (2, 3), None: (1, 1)}),
        Quota("tags", rules={"t1": (3, None)}),
    ],
    # Most of the nearest points have the same values.
    [Quota("source", max_each=3)],
    # No point has what these forbid.
    [Quota("brand", rules={"none": (None, 0)})],
    [Quota("brand", rules={None: (0, 0)}), Quota("year", max_each=2)],
    GroupBy("brand", groups=4, per_group=2),
    GroupBy("source", groups=4, per_group=3),
    GroupBy("year", groups=9, per_group=1),
]
_FILTERS = [None, Field("price") < 30, Field("brand").is_in(["b1", "b2"]), Field("price") > 200]
_OPTIONS: list[dict[str, Any]] = [
    {},
    {"diversity": "auto", "explain": True, "with_attributes": True},
    {"lose_at_most": 0.05, "with_report": True},
    {"diversity": 0.8, "hash_limit": 60, "candidates_limit": 25},
    {"hash_limit": 0, "candidates_limit": 40},
    {"duplicate_threshold": 0.995, "list_collapsed": True, "diversity": 0.2},
]


def words_of(quotas: Any, on_infeasible: str, k: int) -> dict[str, Any]:  # noqa: ANN401  # as callers give them
    if isinstance(quotas, GroupBy):
        return {"group_by": quotas, "on_infeasible": on_infeasible}
    return {"quotas": quotas, "on_infeasible": on_infeasible, "k": k}


@pytest.mark.parametrize("number", range(len(_QUOTAS)))
@pytest.mark.parametrize("form", _FORMS)
def test_each_quota_with_each_selector(form: _Form, number: int) -> None:
    index = an_index(form=form, texts=number % 2 == 0)
    pieces = divided(index, 4, "hash")
    row = index.engine.vectors_of(next(index.scroll()).ids[:1])
    for turn, selector in enumerate(_SELECTORS):
        on_infeasible = ["fail", "relax"][(turn + number + _FORMS.index(form)) % 2]
        words = words_of(_QUOTAS[number], on_infeasible, 10)
        words |= {"selector": selector, "search": ["exact", "scan", "tables"][turn % 3]}
        words |= [{}, {"candidates_limit": 40}][turn % 2]
        check_call(index, pieces, partial(Index.query, queries=row, **words))


@settings(max_examples=50)
@given(
    place=st.tuples(st.sampled_from(_FORMS), st.booleans()),
    division=st.tuples(st.sampled_from(COUNTS), st.sampled_from(sorted(DIVISIONS))),
    quotas=st.tuples(
        st.sampled_from(_QUOTAS),
        st.sampled_from(["fail", "relax"]),
        st.sampled_from([1, 5, 12, 40]),
        st.sampled_from(_OPTIONS),
    ),
    words=st.fixed_dictionaries(
        {
            "selector": st.sampled_from(_SELECTORS),
            "search": st.sampled_from(["exact", "scan", "scan_hamming", "tables", "auto"]),
            "filter": st.sampled_from(_FILTERS),
        }
    ),
    rows=st.tuples(st.integers(0, 30), st.sampled_from([1, 1, 3]), st.booleans()),
)
def test_any_quota_on_any_shards(
    place: tuple[_Form, bool],
    division: tuple[int, str],
    quotas: tuple[Any, str, int, dict[str, Any]],
    words: dict[str, Any],
    rows: tuple[int, int, bool],
) -> None:
    index = an_index(form=place[0], texts=place[1])
    ids = next(index.scroll()).ids[rows[0] : rows[0] + rows[1]].tolist()
    call: dict[str, Any] = {**words_of(*quotas[:3]), **quotas[3], **words}
    if rows[2]:
        call["like"] = ids
    else:
        call |= {"queries": index.engine.vectors_of(ids), "exclude_ids": ids[:1]}
    check_call(index, divided(index, *division), partial(Index.query, **call))


def test_values_of_points_by_id() -> None:
    """`Diversify` of stored points picks within quotas by these values."""
    quotas = as_quotas([Quota("tags", max_each=2), Quota("brand", max_each=1)])
    assert quotas is not None
    for texts in (False, True):
        index = an_index(texts=texts)
        ids = next(index.scroll()).ids[::50]
        call = partial(Engine.quota_values, quotas=quotas, ids=ids, k=3)
        values = divided(index, 4, "hash").answer(call), call(index.engine)
        for name in quotas.names:
            answer, whole = (part.columns[name] for part in values)
            assert answer.numbers.tolist() == whole.numbers.tolist()
            assert answer.ends.tolist() == whole.ends.tolist()


def test_all_rows_are_asked_about_together() -> None:
    index = an_index()
    pieces, rows = divided(index, 3, "hash"), index.engine.vectors_of(next(index.scroll()).ids[:20])
    words: dict[str, Any] = {"quotas": [Quota("source", max_each=4)], "k": 10}
    check_call(index, pieces, partial(Index.query, queries=rows[:1], **words))
    alone = pieces.steps
    check_call(index, pieces, partial(Index.query, queries=rows, **words))
    assert pieces.steps <= 2 * alone


def check_within(
    index: Index,
    pieces: DividedIndex,
    row: int = 0,
    **words: Any,  # noqa: ANN401  # of Index.query
) -> list[str]:
    """Compare the answer for the vector of a point; return the operations of the rounds."""
    vector = index.engine.vectors_of(next(index.scroll()).ids[row : row + 1])
    check_call(index, pieces, partial(Index.query, queries=vector, **words))
    return pieces.rounds


@pytest.mark.parametrize("texts", [False, True])
def test_values_of_candidates_come_with_them(texts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If they would take too many bytes, they come in a second round."""
    index = an_index(texts=texts)
    pieces = divided(index, 4, "hash")
    quotas = [Quota("tags", max_each=4), Quota("brand", max_each=3)]
    assert "get" not in check_within(index, pieces, quotas=quotas, k=6)
    monkeypatch.setattr(core, "VALUE_BYTES_MAX", 100)
    assert "get" in check_within(index, pieces, quotas=quotas, k=6)
    assert "get" in check_within(index, pieces, group_by=GroupBy("year", groups=2, per_group=3))


@cache
def random_brands() -> Index:
    """Return an index whose points have nothing in common with others of their brand."""
    rng = np.random.default_rng(8)
    return Index.build(
        rng.standard_normal((_ROWS, _DIMS)).astype(np.float32),
        attributes={"brand": rng.integers(0, _BRANDS, _ROWS)},
    )


def groups_of_brands(groups: int) -> dict[str, Any]:
    """Return words of a query; the groups are not among the candidates as a whole."""
    group_by = GroupBy("brand", groups, per_group=5)
    return {"group_by": group_by, "candidates_limit": 60, "search": "exact"}


def test_groups_are_filled_in_the_same_rounds() -> None:
    index = random_brands()
    for groups in (2, 5):
        pieces = DividedIndex(index.engine, 4)
        # Points are found, those of the groups are counted, and then found.
        assert check_within(index, pieces, **groups_of_brands(groups)) == ["find", "count"]
        assert pieces.steps == 3
        check_within(index, pieces, **groups_of_brands(groups))
        assert pieces.steps == 2


@pytest.mark.parametrize("count", [1, 3, 20])
def test_a_round_has_as_many_searches_as_a_router_takes(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = random_brands()
    pieces = DividedIndex(index.engine, 4)
    parameters = QueryParameters(k=5, candidates_limit=30, search="exact")
    rows = index.engine.vectors_of(next(index.scroll()).ids[:9])

    def search_each(engine: Engine) -> None:
        plan, searcher = engine.plan(parameters, dense=False, picks=False), engine.searcher
        candidates = plan.kernel.pool_limit
        monkeypatch.setattr(finding, "VECTOR_BYTES_MAX", count * candidates * 4 * _DIMS)
        searcher.for_each(
            range(9), lambda row: searcher.find_candidates(rows[row : row + 1], plan, None)
        )

    step = pieces.router.begin(search_each)
    assert isinstance(step, Round)
    assert {len(divide(message)) for message in step.messages.values()} == {min(count, 9)}


_FORBIDDEN = [Quota("source", rules={"web": (None, 0)}), Quota("year", max_each=3)]


@pytest.mark.parametrize("family", _FAMILIES)
def test_different_values_are_counted_once(
    family: HashFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of points that pass a filter are counted once for each filter."""
    index, pieces = an_index(form=family), DividedIndex(an_index(form=family).engine, 4)
    for condition in (None, Field("price") < 30, Field("price") < 60):
        words: dict[str, Any] = {"quotas": _FORBIDDEN, "k": 9, "filter": condition}
        assert "count" in check_within(index, pieces, **words)
        assert "count" not in check_within(index, pieces, 1, **words)
        words["exclude_ids"] = next(index.scroll()).ids[:3]
        for _ in range(2):
            assert "count" in check_within(index, pieces, **words)
    assert "count" not in check_within(index, pieces, 2, quotas=_FORBIDDEN, k=9)
    for quotas in ([Quota("brand", min_each=1)], [Quota("year", min_each=1)]):
        assert "count" in check_within(index, pieces, quotas=quotas, k=30)
    monkeypatch.setattr(gathering_engine, "_VALUE_BYTES_MAX", 10)
    pieces.router = pieces.new_router()
    for _ in range(2):
        assert "count" in check_within(index, pieces, quotas=_FORBIDDEN, k=9)


@settings(max_examples=15)
@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from([0, 1]), st.sampled_from(_QUOTAS), st.sampled_from(_FILTERS),
            st.integers(0, 9), st.sampled_from([0, 2_000, 16 << 20]),
        ),
        max_size=12,
    )
)  # fmt: skip
def test_what_was_counted_serves_no_other_index(
    calls: list[tuple[int, Any, Any, int, int]],
) -> None:
    """Routers of two indexes, whose points have other values, answer in turn."""
    indexes = an_index(), another_index()
    places = [DividedIndex(index.engine, 3) for index in indexes]
    with pytest.MonkeyPatch.context() as patch:
        for number, quotas, condition, row, most in calls:
            patch.setattr(gathering_engine, "_VALUE_BYTES_MAX", most)
            words = words_of(quotas, "relax", 8)
            check_within(indexes[number], places[number], row, filter=condition, **words)


def test_quotas_forbid_more_values_than_a_filter_has() -> None:
    rng = np.random.default_rng(3)
    tags = [[f"t{t}" for t in rng.integers(0, 13_000, 12)] for _ in range(2_000)]
    index = Index.build(
        rng.standard_normal((2_000, 8)).astype(np.float32), attributes={"tags": [[], *tags[1:]]}
    )
    pieces = DividedIndex(index.engine, 3)
    allowed: dict[str | None, tuple[int, int]] = dict.fromkeys(
        {t for part in tags[:40] for t in part}, (0, 3)
    )
    for rules in (allowed, allowed | {None: (0, 1)}):
        words: dict[str, Any] = {"quotas": [Quota("tags", max_each=0, rules=rules)], "k": 30}
        check_within(index, pieces, on_infeasible="relax", selector="nearest", **words)


def query_shards(pieces: DividedIndex, **words: Any) -> QueryResult:  # noqa: ANN401  # of Index.query
    return pieces.answer(lambda engine: Index(engine).query(**words))


@pytest.mark.parametrize("family", _FAMILIES)
def test_a_router_that_is_closed_keeps_nothing(family: HashFamily) -> None:
    """Not even until cycles are collected: files of a replaced index would take room meanwhile."""
    index, pieces = an_index(form=family), DividedIndex(an_index(form=family).engine, 3)
    ids = next(index.scroll()).ids[:2].tolist()
    cases: tuple[dict[str, Any], ...] = (
        {},
        {"filter": Field("price") < 30, "explain": True, "with_report": True},
        {"quotas": [Quota("brand", max_each=1)], "exclude_ids": ids},
        {"quotas": [Quota("source", rules={"web": (None, 0)})]},
        {"group_by": GroupBy("year", groups=2, per_group=3)},
        {"already_shown": ids},
        {"paged": True},
    )
    for words in cases:
        query_shards(pieces, queries=index.engine.vectors_of(ids[:1]), **words)
        query_shards(pieces, like=ids[:1], **words)
    engine = pieces.router._engine
    parts: list[Callable[[], object]] = [weakref.ref(engine), weakref.ref(engine.searcher)]
    gc.disable()
    try:
        del engine, pieces
        assert [part() for part in parts] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["quotas", "groups", "like", "pages"])
def test_rows_of_a_batch_are_refused_before_shards_send_too_much(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No shard is asked for points. One row alone may have as many candidates as any query."""
    index = an_index()
    pieces, ids = DividedIndex(index.engine, 3), next(index.scroll()).ids[:20]
    kinds: dict[str, dict[str, Any]] = {
        "quotas": {"quotas": [Quota("source", max_each=4)]},
        "groups": {"group_by": GroupBy("year", groups=2, per_group=3)},
        "like": {},
        "pages": {"already_shown": ids[5:6].tolist()},
    }
    words = kinds[kind] | {"search": "exact", "candidates_limit": 50}

    def call(rows: int) -> Callable[[Engine], QueryResult]:
        points = (
            {"like": ids[:rows]}
            if kind == "like"
            else {"queries": index.engine.vectors_of(ids[:rows])}
        )
        return lambda engine: Index(engine).query(**points, **words)

    one, several = pieces.answer(call(1)), pieces.answer(call(20))
    assert np.array_equal(one.ids[0], several.ids[0])

    def ask(name: str, shard: int, message: bytes) -> bytes:
        assert name != "find"
        return pieces.shards[shard].ask(name, message)

    monkeypatch.setattr(finding, "_BATCH_BYTES_MAX", 12 * 50 * 4 * _DIMS)
    pieces.answer(call(1))
    with pytest.raises(TooManyRowsError, match=r"at most \d rows"):
        pieces.router.answer(call(20), ask)


def test_errors_name_the_row_of_the_batch() -> None:
    index = an_index()
    rows = np.ones((3, _DIMS), np.float32)
    rows[2] = 0
    words: dict[str, Any] = {"quotas": [Quota("brand", max_each=1)], "k": 5}
    answer = check_call(
        index, divided(index, 2, "hash"), partial(Index.query, queries=rows, **words)
    )
    assert isinstance(answer, str)
    assert "row 2" in answer


def test_points_that_all_tie() -> None:
    """Only ids tell the points apart, and the signatures of points decide which are picked."""
    rng = np.random.default_rng(5)
    index = Index.build(
        np.ones((200, 8), np.float32),
        ids=rng.permutation(10**5)[:200],
        attributes={
            "tags": [[f"t{t}" for t in rng.permutation(6)[: row % 4]] for row in range(200)],
            "year": rng.integers(0, 5, 200),
        },
    )
    quotas = [Quota("tags", max_each=2), Quota("year", max_each=3, min_each=1)]
    for k in (5, 9, 14):
        for on_infeasible in ("fail", "relax"):
            words = words_of(quotas, on_infeasible, k)
            for shards, division in ((2, "hash"), (7, "on two")):
                pieces = divided(index, shards, division)
                call = partial(Index.query, queries=np.ones((1, 8), np.float32), **words)
                answer = check_call(index, pieces, call)
                assert on_infeasible == "fail" or isinstance(answer, QueryResult)


def test_attributes_that_do_not_exist_are_refused() -> None:
    shard = divided(an_index(), 2, "hash").shards[0]
    for number in (-1, 6):
        message = layouts.COUNT_REQUEST.pack({"attributes": np.array([number], np.int32)})
        with pytest.raises(InvalidArgumentError, match="attribute that does not exist"):
            shard.ask("count", join([message]))
    with pytest.raises(InvalidArgumentError, match="a filter or attributes"):
        shard.ask("count", join([layouts.COUNT_REQUEST.pack({})]))


def test_sparse_points_that_are_searched_again_are_counted_once() -> None:
    """One machine searches again with greater limits, where a router grows its pool."""
    rng = np.random.default_rng(2)
    stories = sparse.random_array((30, 80), density=0.2, rng=rng, format="csr", dtype=np.float32)
    points = sparse.csr_array(sparse.vstack([stories] * 20))
    points.data *= rng.uniform(0.99, 1.01, len(points.data)).astype(np.float32)
    brands = [f"b{number}" for number in rng.integers(0, 9, 600)]
    index = Index.build(points, attributes={"brand": brands})
    pieces = divided(index, 3, "hash")
    options: dict[str, Any] = {"k": 5, "search": "exact", "duplicate_threshold": 0.9}
    for quotas in ({"quotas": [Quota("brand", max_each=1)]}, {"group_by": GroupBy("brand", 4, 2)}):
        words = options | quotas
        if "group_by" in quotas:
            words.pop("k")
        for row in range(4):
            query = points[[row]]
            check_call(index, pieces, partial(Index.query, queries=query, **words))
            result = index.query(query, **words)
            assert result.stats.points_hashed.max() <= 600
