"""Pages, and queries after points that were shown, are answered by shards as by one index."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from divgrpc.engine import Engine
from divgrpc.index import Index
from divgrpc.storage.generations import Generation
from divgrpc.types import HashFamily, Metric, Points, QueryResult, Search
from divgrpc.types.filters import Field
from support.data.attributed_indexes import with_attributes
from support.data.divided_indexes import DividedIndex, check_call
from support.data.mixed_indexes import (
    METRICS,
    SELECTIONS,
    an_index,
    every_index,
    queries,
    stored_as,
)

_SHOWN = 12
_SEARCHES: list[Search] = ["exact", "scan", "tables"]
_DIALS: list[dict[str, Any]] = [
    {}, {"diversity": "auto", "explain": True}, {"lose_at_most": 0.05},
]  # fmt: skip


def named(index: Index) -> Index:
    """Return the index with a name, by which its page tokens tell it from others."""
    engine = index.engine
    return Index(Engine(Generation(engine.manifest, engine.arrays), "points"))


@cache
def pair(family: HashFamily, metric: Metric, kind: Points) -> tuple[Index, DividedIndex]:
    index = named(an_index(family, metric, kind))
    return index, DividedIndex(index.engine, 4)


@cache
def pair_with_attributes(*, texts: bool, family: HashFamily) -> tuple[Index, DividedIndex]:
    index = named(with_attributes(texts=texts, family=family))
    return index, DividedIndex(index.engine, 3)


def check_pages(index: Index, pieces: DividedIndex, count: int, **words: Any) -> None:  # noqa: ANN401  # of `Index.query`
    token: str | None = None
    for _ in range(count):
        call = partial(Index.query, paged=True, page_token=token, **words)
        page = check_call(index, pieces, call)
        if isinstance(page, str) or not page.next_page_token:
            return
        token = page.next_page_token


@every_index
def test_pages_of_each_selector(family: HashFamily, metric: Metric, kind: Points) -> None:
    """Dials alternate over selectors, and searches over metrics and selectors."""
    index, pieces = pair(family, metric, kind)
    for number, (selector, variant) in enumerate(SELECTIONS):
        if selector == "qp_relax":
            continue
        search = _SEARCHES[(number + METRICS.index(metric)) % 3]
        words: dict[str, Any] = {"k": 5, "search": search, "diversity": 0.35, "seed": number}
        words |= {"selector": selector, "variant": variant}
        words |= _DIALS[number % 3]
        if "lose_at_most" in words:
            words.pop("diversity")
        rows = stored_as(queries(number + 1, metric)[number:], kind)
        check_pages(index, pieces, 3, queries=rows, **words)


@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("family", ["lsh_div", "cells"])
def test_pages_to_the_end(family: HashFamily, texts: bool) -> None:
    index, pieces = pair_with_attributes(texts=texts, family=family)
    ids = next(index.scroll()).ids[:30].tolist()
    row = np.random.default_rng(2).standard_normal((1, 16)).astype(np.float32)
    words: dict[str, Any] = {"k": 9, "with_attributes": True, "with_payload": True}
    condition = Field("brand") == "brand 3"
    check_pages(index, pieces, 9, queries=row, filter=condition, exclude_ids=ids, **words)
    check_pages(index, pieces, 4, like=ids[3], already_shown=ids[4:9], **words)
    check_pages(index, pieces, 4, queries=row, candidates_limit=20, hash_limit=60, **words)


@every_index
def test_queries_after_points_shown(family: HashFamily, metric: Metric, kind: Points) -> None:
    index, pieces = pair(family, metric, kind)
    rows = stored_as(queries(3, metric), kind)
    records = next(index.scroll(page_size=_SHOWN, with_vectors=True))
    vectors: Any = stored_as(queries(6, metric)[4:], "dense")
    for selector, variant in SELECTIONS:
        if selector == "qp_relax":
            continue
        words: dict[str, Any] = {"k": 6, "selector": selector, "variant": variant}
        for number, shown in enumerate(([*records.ids.tolist(), 5, 2**61], vectors, [])):
            search = _SEARCHES[(number + METRICS.index(metric)) % 3]
            call = dict(words, search=search, already_shown=shown, diversity=0.5)
            check_call(index, pieces, lambda index: index.query(rows, **call))  # noqa: B023  # called at once


def test_tokens_of_others_are_refused() -> None:
    index, pieces = pair("lsh_div", "cosine", "dense")
    row = queries(2, "cosine")
    page = index.query(row[:1], k=4, paged=True)
    token = page.next_page_token
    calls: list[dict[str, Any]] = [
        {"page_token": token, "k": 5},
        {"page_token": token + "A"},
        {"page_token": ""},
        {"page_token": token, "like": [1]},
    ]
    for call in calls:
        words = {"queries": row[:1], "k": 4, **call}
        assert isinstance(
            check_call(index, pieces, lambda index: index.query(**words)),  # noqa: B023  # called at once
            str,
        )
    two_rows = check_call(index, pieces, lambda index: index.query(row, k=4, paged=True))
    assert isinstance(two_rows, str)


def test_a_token_of_another_generation() -> None:
    """Points that are gone are counted, and the others are not shown again."""
    index, pieces = pair("lsh_div", "cosine", "dense")
    ids = next(index.scroll()).ids[:60]
    ids[::3] = np.arange(20) + 2**40
    vectors = index.engine.vectors_of(next(index.scroll()).ids[:60])
    engine = Index.build(vectors, ids=ids, hash_family="lsh_div").engine
    manifest = replace(engine.manifest, generation=7)
    older = Index(Engine(Generation(manifest, engine.arrays), "points"))
    row = queries(1, "cosine")
    token = older.query(row, k=9, paged=True).next_page_token
    call = partial(Index.query, queries=row, k=9, page_token=token)
    page = check_call(index, pieces, call)
    assert isinstance(page, QueryResult)
    assert [warning.code for warning in page.warnings] == ["CURSOR_MOVED"]


def test_many_points_shown_need_more_room() -> None:
    """The points that are held stay when the buffers grow."""
    rng = np.random.default_rng(3)
    for kind in ("dense", "sparse"):
        vectors = stored_as(rng.standard_normal((3_000, 6)).astype(np.float32), kind)
        index = Index.build(vectors, ids=rng.permutation(10**5)[:3_000], hash_family="lsh_div")
        index = named(index)
        pieces = DividedIndex(index.engine, 3)
        shown = next(index.scroll()).ids[:1_000].tolist()
        words: dict[str, Any] = {"k": 20, "search": "exact", "candidates_limit": 900}
        words |= {"already_shown": shown, "diversity": 0.5}
        check_pages(index, pieces, 2, queries=stored_as(queries(1, "cosine")[:, :6], kind), **words)
