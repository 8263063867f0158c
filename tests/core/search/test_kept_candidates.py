"""Candidates that a process keeps from one page to the next."""

from typing import Any

import numpy as np
import pytest

from core.search.test_pages import build, points_of
from divgrpc import Collection, Field, Index
from divgrpc.search import kept_candidates
from divgrpc.search.kept_candidates import KeptCandidates
from divgrpc.search.searcher import Searcher

POINTS, QUERY = points_of(3, 2_000, ties=False), points_of(4, 1, ties=False)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count searches for candidates of a process that keeps nothing at first."""
    calls: list[int] = []
    find = Searcher.find_candidates

    def count(self: Searcher, *arguments: Any) -> Any:  # noqa: ANN401
        calls.append(1)
        return find(self, *arguments)

    monkeypatch.setattr(Searcher, "find_candidates", count)
    monkeypatch.setattr(kept_candidates, "KEPT", KeptCandidates())
    return calls


def test_pages_of_one_pool_search_once(searches: list[int]) -> None:
    index, token = build(POINTS), None
    for _ in range(8):
        token = index.query(QUERY, paged=True, page_token=token).next_page_token
    assert len(searches) == 1
    index.query(QUERY + 1, paged=True)
    assert len(searches) == 2


def test_other_parameters_filters_and_indexes_search_anew(searches: list[int]) -> None:
    attributes = {"even": np.arange(len(POINTS)) % 2 == 0}
    indexes = [Index.build(POINTS, attributes=attributes) for _ in range(2)]
    is_even = Field("even") == True  # noqa: E712  # a condition
    options: list[dict[str, Any]] = [{}, {"k": 5}, {"filter": is_even}, {"selector": "mmr"}]
    for index in indexes:
        for option in options:
            index.query(QUERY, paged=True, **option)
    assert len(searches) == len(indexes) * len(options)
    page = indexes[0].query(QUERY, paged=True, filter=is_even)
    assert len(searches) == len(indexes) * len(options)
    assert not (page.ids % 2).any()
    # Excluded ids are another set of points in each call.
    page = indexes[0].query(QUERY, paged=True, exclude_ids=page.ids[0].tolist())
    assert len(searches) == len(indexes) * len(options) + 1


def test_a_write_makes_a_page_search_anew(searches: list[int], tmp_path: Any) -> None:  # noqa: ANN401
    with Collection.build(POINTS[:500], path=tmp_path / "points") as collection:
        page = collection.query(QUERY, paged=True)
        assert len(searches) == 1
        collection.query(QUERY, paged=True)
        assert len(searches) == 1
        gone = page.ids[0].tolist()
        collection.delete(gone)
        again = collection.query(QUERY, paged=True)
        assert len(searches) == 2
        assert not {*gone} & {*again.ids[0].tolist()}


def test_candidates_that_exceed_the_memory_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    index = build(POINTS)
    for memory, expected in ((KeptCandidates(bytes_max=0), 0), (KeptCandidates(pages_max=3), 3)):
        monkeypatch.setattr(kept_candidates, "KEPT", memory)
        for number in range(6):
            index.query(QUERY + number, paged=True)
        assert len(memory) == expected
    # The candidates have 8 bytes each, and the answer has some.
    two = KeptCandidates(bytes_max=2 * 9 * 800)
    monkeypatch.setattr(kept_candidates, "KEPT", two)
    for number in range(6):
        index.query(QUERY + number, paged=True, candidates_limit=800)
    assert len(two) == 2
