"""Answers without some shards are those of an index that has the other points alone."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.engine import Engine
from divgrpc.errors import InvalidArgumentError
from divgrpc.index import Index
from divgrpc.parameters import QueryParameters
from divgrpc.sharding.cutting import cut
from divgrpc.sharding.gathering_engine import GatheringEngine
from divgrpc.sharding.router import Request
from divgrpc.storage.generations import Generation
from divgrpc.types import HashFamily, Metric, Points, QueryResult
from support.data.divided_indexes import DIVISIONS, DividedIndex, differences
from support.data.mixed_indexes import (
    FAMILIES,
    KINDS,
    METRICS,
    SEARCHES,
    an_index,
    queries,
    stored_as,
)


class PartialIndex:
    """A divided index without some shards, and an engine of the points of the others."""

    def __init__(self, index: Index, shards: int, division: str, missing: set[int]) -> None:
        self._pieces = DividedIndex(index.engine, shards, division)
        self._missing = missing
        whole = Generation(index.engine.manifest, index.engine.arrays)
        homes = DIVISIONS[division](index.engine, shards)
        is_missing = np.isin(homes, list(missing))
        self._parts = dict(enumerate(cut(whole, shards, homes).parts))
        self.rest: Engine | None = None
        if not is_missing.all():
            self.rest = Engine(next(cut(whole, 2, is_missing.astype(np.int64)).parts))

    def answer(self, request: Request) -> QueryResult:
        """Answer a query from the shards that are there."""

        def call(engine: Engine) -> QueryResult:
            assert isinstance(engine, GatheringEngine)
            part = engine.without_shards(sorted(self._missing), self._parts.__getitem__)
            part.transcript = engine.transcript
            return request(part)

        return self._pieces.answer(call)


@settings(max_examples=100)
@given(
    place=st.tuples(*(st.sampled_from(names) for names in (FAMILIES, METRICS, KINDS))),
    division=st.sampled_from(sorted(DIVISIONS)),
    missing=st.sets(st.integers(0, 3), min_size=1, max_size=3),
    words=st.fixed_dictionaries(
        {
            "k": st.sampled_from([1, 7, 30]),
            "search": st.sampled_from([*SEARCHES, "auto"]),
            "selector": st.sampled_from(["nearest", "greedy", "mmr"]),
            "sampling": st.sampled_from(["uniform", "nearest"]),
            "hash_limit": st.sampled_from([None, 0, 40]),
        }
    ),
    excluded=st.sampled_from([0, 1, 60]),
)
def test_any_query_without_some_shards(
    place: tuple[HashFamily, Metric, Points],
    division: str,
    missing: set[int],
    words: dict[str, Any],
    excluded: int,
) -> None:
    index = an_index(*place)
    partial = PartialIndex(index, 4, division, missing)
    if partial.rest is None:
        return
    try:
        parameters = QueryParameters(**words)
    except InvalidArgumentError:
        return
    rows = stored_as(queries(2, place[1]), place[2])
    ids = [] if not excluded else list(range(excluded))
    request = Request(rows, parameters, exclude_ids=ids)
    try:
        whole = request(partial.rest)
    except InvalidArgumentError as error:
        with pytest.raises(InvalidArgumentError, match=str(error).split(":", maxsplit=1)[0]):
            partial.answer(request)
        return
    answer = partial.answer(request)
    assert set(differences(answer, whole)) <= {"coverage", "missing_shards"}
    assert answer.missing_shards == tuple(sorted(missing))
    assert answer.coverage == partial.rest.rows / index.engine.rows
