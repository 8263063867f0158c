"""Routers ask at first for as many vectors as pools of near-copies have needed."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from divgrpc.index import Index
from divgrpc.parameters import QueryParameters
from divgrpc.sharding import gathering
from divgrpc.sharding.pool_growth import PoolGrowth
from divgrpc.sharding.rounds import Exchange, Round
from divgrpc.sharding.router import Request, Router
from divgrpc.types import FloatArray, QueryResult
from support.data.divided_indexes import DividedIndex, differences

ROWS, DIMS, COPIES = 60, 16, 20


@cache
def stories() -> FloatArray:
    """Return what the points of the index are near-copies of."""
    return np.random.default_rng(3).standard_normal((ROWS, DIMS)).astype(np.float32)


@cache
def crowded_index() -> Index:
    points = np.repeat(stories(), COPIES, axis=0)
    noise = np.random.default_rng(4).standard_normal(points.shape).astype(np.float32)
    return Index.build(points + np.float32(0.02) * noise)


def queries() -> FloatArray:
    return stories()[:30] + np.float32(0.05)


def answer(
    pieces: DividedIndex, routers: list[Router], request: Request
) -> tuple[QueryResult, list[str]]:
    """Return the answer, whose rounds these routers compute in turn, and the names of the rounds.

    A pool of workers has a router in each of them.
    """
    exchanges: list[Exchange] = []
    while isinstance(
        step := routers[len(exchanges) % len(routers)].go_on(request, exchanges), Round
    ):
        messages = step.messages.items()
        replies = {shard: pieces.shards[shard].ask(step.name, part) for shard, part in messages}
        exchanges.append(Exchange(step, replies))
    return step, [exchange.round.name for exchange in exchanges]


def request(rows: FloatArray, **options: Any) -> Request:  # noqa: ANN401  # of a query
    words: dict[str, Any] = {"k": 5, "candidates_limit": 30, "search": "scan"}
    return Request(rows, QueryParameters(**words | options))


def check(result: QueryResult, of: Request) -> None:
    assert differences(result, crowded_index().engine.answer(of.queries, of.parameters)) == []


@pytest.mark.parametrize("more", [{}, {"explain": True}, {"search": "tables"}], ids=str)
def test_pools_that_grow_cost_a_second_round_only_at_first(more: dict[str, Any]) -> None:
    pieces = DividedIndex(crowded_index().engine, 3)
    router = pieces.new_router()
    rounds = []
    for row in queries():
        one = request(row[np.newaxis], **more)
        result, names = answer(pieces, [router], one)
        check(result, one)
        rounds.append(names)
    assert "fetch" in rounds[0]
    assert {tuple(names) for names in rounds[-10:]} == {("find",)}
    # Others have not learned it from these.
    one = request(queries()[:1], keep_duplicates=True)
    assert answer(pieces, [router], one)[1] == ["find"]
    assert router._engine._gathering._growth.factor(plan_of(router, one)) == 1


def plan_of(router: Router, one: Request) -> Any:  # noqa: ANN401  # of a query
    return router._engine.plan(one.parameters, dense=True, passing=None)


def test_a_router_goes_on_with_what_another_one_has_asked() -> None:
    """One of them knows that pools grow. No shard is asked twice for the same points."""
    pieces = DividedIndex(crowded_index().engine, 3)
    wise, new = pieces.new_router(), pieces.new_router()
    for row in queries():
        answer(pieces, [wise], request(row[np.newaxis]))
    one = request(queries()[:4])
    result, names = answer(pieces, [wise, new], one)
    check(result, one)
    assert names == ["find"]
    new = pieces.new_router()
    result, names = answer(pieces, [new, wise, wise], one)
    check(result, one)
    assert names[0] == "find"
    assert {*names[1:]} == {"fetch"}


def test_large_batches_ask_for_no_further_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = DividedIndex(crowded_index().engine, 3)
    router = pieces.new_router()
    for row in queries():
        answer(pieces, [router], request(row[np.newaxis]))
    monkeypatch.setattr(gathering, "VECTOR_BYTES_MAX", 4 * DIMS * 150)
    one = request(queries()[:2])
    result, names = answer(pieces, [router], one)
    check(result, one)
    assert names[1:] == ["fetch"] * len(names[1:]) != []
    one = request(queries()[:1])
    assert answer(pieces, [router], one)[1] == ["find"]


def test_the_latest_queries_count_most() -> None:
    plan = plan_of(DividedIndex(crowded_index().engine, 2).new_router(), request(queries()))
    growth = PoolGrowth()
    assert growth.factor(plan) == 1
    for last, factor in ((30, 1), (60, 2), (120, 4), (30, 1)):
        for _ in range(40):
            growth.note(plan, 30, last)
        assert growth.factor(plan) == factor
