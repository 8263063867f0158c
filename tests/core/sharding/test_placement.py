"""The shard of each point."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.columns import ids as id_module
from divgrpc.index import Index
from divgrpc.kernels import top_k
from divgrpc.sharding.placement import mix, priorities, shard_of
from divgrpc.types.filters import HasId
from support.data.divided_indexes import DividedIndex, check_call, record_differences


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_mix_is_that_of_the_kernels(words: list[int]) -> None:
    expected = [int(top_k.mix(np.uint64(word))) for word in words]
    assert mix(np.array(words, np.uint64)).tolist() == expected


@given(st.integers(0, 2**64 - 1), st.integers(1, 30))
def test_priorities_give_the_sample_of_the_kernels(seed: int, size: int) -> None:
    ids = np.random.default_rng(1).permutation(10**4)[:60].astype(np.int64) * 7919
    rows = np.arange(60, dtype=np.int32)
    ids.flags.writeable = False
    end = top_k.keep_sample(rows, 0, 60, size, ids, np.uint64(seed))
    order = np.argsort(priorities(seed, ids))
    assert sorted(rows[:end].tolist()) == sorted(order[:size].tolist())


def test_a_point_keeps_its_shard() -> None:
    """Files of shards outlive a release."""
    ids = np.array([0, 1, 2, 3, 2**62, 2**63 - 1])
    assert shard_of(ids, 4).tolist() == shard_of(ids[::-1], 4)[::-1].tolist()
    assert shard_of(ids, 16).tolist() == SHARDS_OF_SIXTEEN


SHARDS_OF_SIXTEEN = [5, 1, 7, 10, 4, 7]


def test_shards_are_of_about_the_same_size() -> None:
    ids = np.arange(100_000)
    for shards in (2, 5, 16):
        sizes = np.bincount(shard_of(ids, shards), minlength=shards)
        # Five standard deviations of a binomial distribution.
        assert abs(sizes - 100_000 / shards).max() < 5 * (100_000 / shards) ** 0.5


@pytest.mark.parametrize("shards", [2, 5])
def test_texts_with_the_same_hash_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    hash_of = id_module.hash_of
    # Many texts have the hash of another text.
    monkeypatch.setattr(id_module, "hash_of", lambda text: hash_of(text) & 127)
    ids = [f"point {number}" for number in range(60)]
    rows = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)
    index = Index.build(rows, ids=ids)
    pieces = DividedIndex(index.engine, shards)
    absent = [f"absent {number}" for number in range(20)]
    records = pieces.answer(lambda engine: Index(engine).get([*ids, *absent]))
    assert record_differences(records, index.get([*ids, *absent])) == []
    for text in [*ids, *absent]:
        cases: list[dict[str, Any]] = [{"filter": HasId((text,))}, {"exclude_ids": [text]}]
        for options in cases:
            check_call(index, pieces, partial(Index.query, queries=rows[:1], k=3, **options))
