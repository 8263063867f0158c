"""Benchmark of a router and its shards in one process."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.harness.datasets import Points, load
from benchmarks.harness.runner import (
    Ask,
    Option,
    Options,
    Output,
    Row,
    Table,
    benchmark,
    take_turns,
)
from divgrpc.index import Index
from divgrpc.parameters import QueryParameters
from divgrpc.sharding.rounds import Exchange, Round
from divgrpc.sharding.router import Request
from divgrpc.types import FloatArray, HashFamily, IntArray, Search
from support.data.divided_indexes import DividedIndex, differences

# A hash family, and the searches that are measured with it.
_SEARCHES: Final[tuple[tuple[HashFamily, tuple[Search, ...]], ...]] = (
    ("lsh_div", ("exact", "scan", "tables")),
    ("cells", ("tables",)),
)
_FLOAT32_BYTES: Final = 4
# The norm of the noise in a near-copy. Two of them then have a cosine of about 1 / (1 + .14 ** 2).
_NOISE: Final = 0.14


@benchmark(
    "sharded",
    points=Option("100000", "synthetic points, or real"),
    queries=Option(200, "queries asked"),
    shards=Option([4, 16], "numbers of shards"),
    candidates=Option(200, "candidates of the selector"),
    k=Option(10, "results"),
    copies=Option(1, "near-copies of each point, which replace other points"),
)
def sharded_answers(options: Options) -> Iterator[Output]:
    """Answers over shards: their rounds, bytes and time, compared with one index, in process.

    "Equal" is the number of answers that have the same bytes as those of the whole index. "Asked
    again" is the share of queries for which a shard had more points than its share, "rounds above
    1" the share of those that asked shards again for points or vectors. "Bytes" are those of all
    replies, divided by those of the vectors of the candidates.

    "Router" is the time of `begin` and `go_on`, divided by the time of a query that hashes, scores
    as many points as there are candidates, and selects, on an index of so many points. "Shard" is
    the time in which one shard answers its first message, divided by that of the whole index.
    """
    points = load(options.points, options.queries)
    if options.copies > 1:
        points = _crowd(points, options.copies)
    yield Table("Answers over shards", points.described())
    for family, searches in _SEARCHES:
        index = Index.build(points.base, hash_family=family)
        small = Index.build(points.base[: options.candidates], hash_family=family)
        whole = DividedIndex(index.engine, 1)
        for shards in options.shards:
            pieces = DividedIndex(index.engine, shards)
            for search in searches:
                comparison = _Comparison(index, small, whole, pieces)
                with threadpool_limits(1):
                    row = comparison.row(points, search, options)
                yield {"family": family, "search": search, "shards": shards, **row}


def _crowd(points: Points, copies: int) -> Points:
    """Return as many points, in groups of near-copies whose cosines are about .98."""
    stories, (rows, dims) = points.base[::copies], points.base.shape
    base = np.repeat(stories, copies, axis=0)[:rows]
    noise = np.random.default_rng(0).standard_normal(base.shape, np.float32)
    base += noise * np.float32(_NOISE / dims**0.5)
    base /= np.linalg.norm(base, axis=1, keepdims=True)
    return replace(points, name=f"{points.name} in groups of {copies} near-copies", base=base)


class _Comparison:
    """An index, an index of as many points as there are candidates, and the same on shards."""

    def __init__(
        self, index: Index, small: Index, whole: DividedIndex, pieces: DividedIndex
    ) -> None:
        self._index, self._small, self._whole, self._pieces = index, small, whole, pieces

    def row(self, points: Points, search: Search, options: Options) -> Row:
        """Return the row of a search."""
        limits = {"k": options.k, "candidates_limit": options.candidates, "diversity": 0.3}
        parameters = QueryParameters(search=search, **limits)
        requests = [Request(query[None], parameters) for query in points.queries]
        equal = again = twice = size = 0
        exchanges = []
        for request in requests:
            answer = self._pieces.answer(request)
            expected = self._index.engine.answer(request.queries, parameters)
            equal += not differences(answer, expected)
            again += "more" in self._pieces.rounds
            twice += len(self._pieces.rounds) > 1
            size += self._pieces.reply_bytes
            exchanges.append(self._exchanges(request))
        vectors = options.candidates * points.base.shape[1] * _FLOAT32_BYTES
        return {
            "equal": equal,
            "asked again": again / len(requests),
            "rounds above 1": twice / len(requests),
            "bytes": size / len(requests) / vectors,
            **self._times(requests, exchanges, limits),
        }

    def _exchanges(self, request: Request) -> list[Exchange]:
        exchanges: list[Exchange] = []
        while isinstance(step := self._pieces.router.go_on(request, exchanges), Round):
            replies = {
                shard: self._pieces.shards[shard].ask(step.name, message)
                for shard, message in step.messages.items()
            }
            exchanges.append(Exchange(step, replies))
        return exchanges

    def _times(
        self, requests: list[Request], exchanges: list[list[Exchange]], limits: dict[str, Any]
    ) -> Row:
        """Return the times of the router and of a shard, as ratios."""
        no_rows = np.zeros(limits["k"], np.int64)
        router = self._pieces.router
        # A scan without a limit hashes the query, and scores all points.
        all_points = QueryParameters(search="scan", hash_limit=0, **limits)

        def route(query: int) -> IntArray:
            router.begin(requests[query])
            router.go_on(requests[query], exchanges[query])
            return no_rows

        def select(query: int) -> IntArray:
            rows: FloatArray = requests[query].queries  # type: ignore[assignment]  # as made above
            self._small.engine.answer(rows, all_points)
            return no_rows

        def find(pieces: DividedIndex) -> Ask:
            steps = [pieces.router.begin(request) for request in requests]

            def ask(query: int) -> IntArray:
                step = steps[query]
                assert isinstance(step, Round)
                pieces.shards[0].ask(step.name, step.messages[0])
                return no_rows

            return ask

        asks: dict[str, Ask] = {"router": route, "select": select}
        asks |= {"shard": find(self._pieces), "whole": find(self._whole)}
        times = take_turns(asks, len(requests), limits["k"])
        return {
            "router us": times["router"].microseconds,
            "router": times["router"].ratio(times["select"])[0],
            "shard us": times["shard"].microseconds,
            "shard": times["shard"].ratio(times["whole"])[0],
        }
