"""Benchmark of queries with quotas, groups and filters over shards in one process."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.harness.datasets import Points, load
from benchmarks.harness.runner import Option, Options, Output, Row, Table, benchmark, take_turns
from divgrpc import Field, GroupBy, Index, Quota
from divgrpc.types import IntArray, QueryResult
from support.data.divided_indexes import DividedIndex, differences, outcomes

_SOURCES, _BRANDS, _PRICES, _SHOPS = 5, 1_000, 100, 40
# Exponent of the distribution of shops: 40 % of the points have the largest, and 14 % the next.
_ZIPF: Final = 1.5
_SOURCE: Final = Quota("source", max_each=4)
_BRAND: Final = Quota("brand", max_each=1)
_CHEAP: Final = Field("price") < 0.1 * _PRICES
_GROUPS: Final = GroupBy("brand", groups=5, per_group=2)
# A query, and its words beside the vector.
_QUERIES: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "quota on 5 sources": {"quotas": _SOURCE},
    "quota on 1,000 brands": {"quotas": _BRAND},
    "both quotas": {"quotas": [_SOURCE, _BRAND]},
    "three of a source": {"quotas": [_BRAND, Quota("source", rules={"1": (3, None)})]},
    "none of a source": {"quotas": Quota("source", rules={"1": (None, 0)})},
    "groups": {"group_by": _GROUPS},
    "two of a shop": {"quotas": Quota("shop", max_each=2)},
    "groups of shops": {"group_by": GroupBy("shop", groups=5, per_group=2)},
    "filter": {"filter": _CHEAP},
    "filter and both quotas": {"filter": _CHEAP, "quotas": [_SOURCE, _BRAND]},
    "filter and groups": {"filter": _CHEAP, "group_by": _GROUPS},
}


@benchmark(
    "sharded_quotas",
    points=Option("100000", "synthetic points, or real"),
    queries=Option(100, "queries asked"),
    shards=Option(4, "number of shards"),
    family=Option("cells", "hash family"),
)
def sharded_quotas(options: Options) -> Iterator[Output]:
    """Quotas, groups and filters over shards, compared with one index, in process.

    Points have a source, a brand, a price and a shop, drawn at random, the shop with Zipf's
    probabilities. The filter passes a tenth of them.

    The first half of the queries is asked once. "Equal" is the share of their answers that have the
    same bytes as those of the whole index, and "rounds" how often shards are asked for one, by a
    router that has asked no such query before; "kB" are the replies. The other half is timed.
    "Ratio" is the time of the router and of all shards, one after another, divided by that of the
    whole index; "of plain" is this ratio divided by the one of a plain query.
    """
    points = load(options.points, options.queries)
    rng, rows = np.random.default_rng(0), len(points.base)
    index = Index.build(
        points.base,
        hash_family=options.family,
        attributes={
            "source": [str(number) for number in rng.integers(0, _SOURCES, rows)],
            "brand": [str(number) for number in rng.integers(0, _BRANDS, rows)],
            "price": rng.uniform(0, _PRICES, rows),
            "shop": [str(number % _SHOPS) for number in rng.zipf(_ZIPF, rows)],
        },
    )
    yield Table(f"Quotas, groups and filters over {options.shards} shards", points.described())
    pieces = DividedIndex(index.engine, options.shards)
    plain = 0.0
    with threadpool_limits(1):
        for name, words in _QUERIES.items():
            row = _row(index, pieces, points, words)
            plain = plain or row["ratio"]
            yield {"query": name, **row, "of plain": row["ratio"] / plain}


def _row(index: Index, pieces: DividedIndex, points: Points, words: dict[str, Any]) -> Row:
    """Return the row of a kind of query."""
    more: dict[str, Any] = {} if "group_by" in words else {"k": 10}
    calls: list[Callable[[Index], QueryResult]] = [
        partial(Index.query, queries=query[None], **words, **more) for query in points.queries
    ]
    half = len(calls) // 2
    equal = rounds = size = 0
    for call in calls[:half]:
        answer, whole = outcomes(index, pieces, call)
        assert not isinstance(answer, str) and not isinstance(whole, str)  # noqa: PT018
        equal += not differences(answer, whole)
        rounds += pieces.steps
        size += pieces.reply_bytes
    no_rows = np.zeros(1, np.int64)

    def ask_shards(query: int) -> IntArray:
        call = calls[half + query]
        pieces.answer(lambda engine: call(Index(engine)))
        return no_rows

    def ask_whole(query: int) -> IntArray:
        calls[half + query](index)
        return no_rows

    times = take_turns({"shards": ask_shards, "whole": ask_whole}, len(calls) - half, 1)
    ratio, interval = times["shards"].ratio(times["whole"])
    return {
        "equal": equal / half,
        "rounds": rounds / half,
        "kB": size / half / 1000,
        "whole us": times["whole"].microseconds,
        "shards us": times["shards"].microseconds,
        "ratio": ratio,
        "interval": interval,
    }
