"""Sums that are kept from page to page save distances, and change no answer."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from core.search.test_pages import JOINABLE, METRICS, UNJOINABLE, build, points_of
from divgrpc import Index
from divgrpc.kernels import stepwise as kernels
from divgrpc.search import kept_candidates, stepwise
from divgrpc.search.kept_candidates import KeptCandidates
from divgrpc.search.shown_sums import KeptSums, Rows32, Sums
from divgrpc.types import FloatArray, Metric, QueryResult
from support.data.written_points import same_answers


def page_of(
    index: Index,
    query: FloatArray,
    token: str | None,
    **options: Any,  # noqa: ANN401  # of `query`
) -> QueryResult:
    return index.query(query, paged=True, page_token=token, **options)


@pytest.mark.parametrize("options", [*JOINABLE, *UNJOINABLE], ids=str)
@settings(max_examples=5, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    metric=st.sampled_from(METRICS),
    k=st.integers(4, 9),
    dials=st.sampled_from([{"diversity": 0.1}, {"diversity": 0.7}, {"lose_at_most": 0.3}]),
    is_sparse=st.booleans(),
    ties=st.booleans(),
    forgets=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_pages_are_the_same_without_kept_sums(
    options: dict[str, Any],
    seed: int,
    metric: Metric,
    k: int,
    dials: dict[str, float],
    *,
    is_sparse: bool,
    ties: bool,
    forgets: list[bool],
) -> None:
    """A process may have forgotten the page before, or never seen it."""
    points = points_of(seed, 600, ties=ties)
    index = build(sparse.csr_array(points) if is_sparse else points, metric)
    query = points_of(seed + 1, 1, ties=ties)
    options = options | {"k": k} | ({} if options.get("selector") == "nearest" else dials)
    # `lose_at_most` is refused where the selector has no dial for it.
    if options.get("variant") == "printed":
        options.pop("lose_at_most", None)
    token: str | None = None
    with pytest.MonkeyPatch.context() as patch:
        memory, candidates = KeptSums(), KeptCandidates()
        for forget in forgets:
            patch.setattr(stepwise, "KEPT", KeptSums())
            patch.setattr(kept_candidates, "KEPT", KeptCandidates())
            expected = page_of(index, query, token, **options)
            if forget:
                memory, candidates = KeptSums(), KeptCandidates()
            patch.setattr(stepwise, "KEPT", memory)
            patch.setattr(kept_candidates, "KEPT", candidates)
            page = page_of(index, query, token, **options)
            assert same_answers(page, expected)
            assert page.next_page_token == expected.next_page_token
            token = page.next_page_token
            if not token:
                return


def test_a_late_page_compares_candidates_with_its_own_picks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown, add_shown = [], kernels.add_shown

    def count(*arguments: Any) -> None:  # noqa: ANN401  # of the kernel
        _, rows, _, first, *_ = arguments
        shown.append(len(rows) - first)
        add_shown(*arguments)

    monkeypatch.setattr(kernels, "add_shown", count)
    index = build(points_of(3, 2_000, ties=False))
    query, token = points_of(4, 1, ties=False), ""
    for number in range(12):
        missed = 0
        if number == 6:
            # Another process answers a page, and this one goes on from the page before.
            missed = 10
            with monkeypatch.context() as patch:
                patch.setattr(stepwise, "KEPT", KeptSums())
                token = page_of(index, query, token, selector="mmr").next_page_token
        shown.clear()
        token = page_of(index, query, token or None, selector="mmr").next_page_token
        assert shown == [missed]


def rows_of(*numbers: int) -> Rows32:
    return np.array(numbers, np.int32)


def sums_of(shown: Rows32, size: int = 1) -> Sums:
    return Sums(shown, np.arange(size, dtype=np.int32), (np.arange(size),))


def test_the_longest_beginning_is_found() -> None:
    memory = KeptSums()
    short, long, other = sums_of(rows_of(4, 2)), sums_of(rows_of(4, 2, 9)), sums_of(rows_of(4, 7))
    for sums in (long, short, other):
        memory.keep("mmr", sums)
    assert memory.find("mmr", rows_of(4, 2, 9, 1)) is long
    assert memory.find("mmr", rows_of(4, 2, 9)) is long
    assert memory.find("mmr", rows_of(4, 2, 1)) is short
    assert memory.find("mmr", rows_of(2, 4)) is None
    assert memory.find("greedy", rows_of(4, 2, 9)) is None
    # The row number 513 begins with the same byte as 1.
    memory.keep("mmr", sums_of(rows_of(1)))
    assert memory.find("mmr", rows_of(513)) is None


def test_memory_is_limited() -> None:
    """The sums that were used least recently are forgotten."""
    memory = KeptSums(bytes_max=1_000, pages_max=5)
    for number in range(9):
        memory.keep("mmr", sums_of(rows_of(number)))
        memory.find("mmr", rows_of(0))
    assert len(memory) == 5
    assert memory.find("mmr", rows_of(0)) is not None
    assert memory.find("mmr", rows_of(4)) is None
    # 70 rows take 844 bytes, and 80 take 964.
    memory.keep("mmr", sums_of(rows_of(10), 70))
    memory.keep("mmr", sums_of(rows_of(11), 80))
    assert len(memory) == 1
    assert memory.find("mmr", rows_of(10)) is None
    memory.keep("mmr", sums_of(rows_of(12), 100))
    assert memory.find("mmr", rows_of(12)) is None
    assert memory.find("mmr", rows_of(11)) is not None
    # The same page is kept once.
    for _ in range(20):
        memory.keep("mmr", sums_of(rows_of(13)))
    assert len(memory) == 2
