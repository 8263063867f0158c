"""How an index remembers what calls ask for."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from divgrpc import engine
from divgrpc.errors import InvalidArgumentError
from divgrpc.index import Index
from divgrpc.parameters import QueryParameters
from divgrpc.types import FloatArray, IntArray


@pytest.fixture(scope="module")
def points() -> FloatArray:
    return np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)


def test_what_is_remembered_answers_as_what_is_new(
    points: FloatArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many threads ask in more ways than an index remembers: each gets its own answer."""
    monkeypatch.setattr(engine, "_CACHED_PLANS_MAX", 3)
    ways = [
        QueryParameters(k=k, diversity=diversity, search=search, hash_limit=60)
        for k in (1, 5, 7)
        for diversity in (0.0, 0.4)
        for search in ("scan", "exact")
    ]
    alone = [Index.build(points).engine.answer(points[:4], way).ids for way in ways]
    index = Index.build(points)

    def ask(number: int) -> tuple[int, IntArray]:
        way = number * 7 % len(ways)
        return way, index.engine.answer(points[:4], ways[way]).ids

    with ThreadPoolExecutor(4) as pool:
        for way, ids in pool.map(ask, range(200)):
            assert ids.tolist() == alone[way].tolist()


def test_a_refusal_is_not_remembered_as_a_way(points: FloatArray) -> None:
    """It comes again for the same parameters, and to nobody else."""
    index = Index.build(points, metric="inner_product")
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="max_distance"):
            index.query(points[0], max_distance=1.0)
    assert len(index.query(points[0]).ids[0]) == 10
