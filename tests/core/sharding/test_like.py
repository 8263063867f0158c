"""Queries whose vectors are stored points are answered by shards as by one index."""

from functools import cache
from typing import Any

import pytest

from divgrpc.index import Index
from divgrpc.types import HashFamily, Metric, Points, Search
from divgrpc.types.filters import Field
from support.data.attributed_indexes import with_attributes
from support.data.divided_indexes import DividedIndex, check_call
from support.data.mixed_indexes import SEARCHES, an_index, every_index


@cache
def divided(index: Index, shards: int, division: str) -> DividedIndex:
    return DividedIndex(index.engine, shards, division)


def ids_of(index: Index) -> list[Any]:
    ids: list[Any] = next(index.scroll()).ids.tolist()
    return ids


@every_index
@pytest.mark.parametrize("search", ["exact", "scan", "tables", "auto"])
def test_points_like_others(
    family: HashFamily, metric: Metric, kind: Points, search: Search
) -> None:
    index = an_index(family, metric, kind)
    ids = ids_of(index)
    some = [*ids[::60], ids[60]]
    options: dict[str, Any] = {"k": 5, "search": search, "hash_limit": 60, "diversity": 0.4}
    for shards, division in ((1, "hash"), (4, "hash"), (7, "on two")):
        pieces = divided(index, shards, division)
        check_call(index, pieces, lambda index: index.query(like=some, **options))
        assert len(pieces.rounds) <= 5


@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("family", ["lsh_div", "cells"])
def test_points_like_others_that_pass(family: HashFamily, texts: bool) -> None:
    index = with_attributes(texts=texts, family=family)
    pieces, ids = divided(index, 4, "hash"), ids_of(index)
    condition = Field("brand") == "brand 3"
    for search in (*SEARCHES, "auto"):
        for more in ({}, {"explain": True, "with_report": True}, {"diversity": "auto"}):
            options: dict[str, Any] = {"k": 8, "search": search, "with_attributes": True, **more}
            for like in (ids[3], ids[:40:9]):
                check_call(
                    index,
                    pieces,
                    lambda index: index.query(
                        like=like,  # noqa: B023  # called at once
                        filter=condition,
                        exclude_ids=ids[:30],
                        **options,  # noqa: B023  # called at once
                    ),
                )


def test_all_rows_are_asked_about_together() -> None:
    index = an_index("lsh_div", "cosine", "dense")
    pieces, ids = divided(index, 4, "hash"), ids_of(index)
    check_call(index, pieces, lambda index: index.query(like=ids[:20], k=3))
    assert pieces.messages <= 5 * 4


@pytest.mark.parametrize("texts", [False, True])
def test_ids_without_a_point_are_refused(texts: bool) -> None:
    index = with_attributes(texts=texts)
    pieces, ids = divided(index, 3, "hash"), ids_of(index)
    for like in (["nothing"], [1, 2**62], [ids[0], "nothing"], [ids[0], 5], [], ids[:1] * 10_001):
        answer = check_call(index, pieces, lambda index: index.query(like=like))  # noqa: B023  # called at once
        assert isinstance(answer, str)
