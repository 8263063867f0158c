"""A query reads copies of the codes that pass a filter, with the answers it has without copies."""

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.arrays import Array
from divgrpc.collection import Collection
from divgrpc.engine import Engine
from divgrpc.index import Index
from divgrpc.kernels import records
from divgrpc.search import packed_cells
from divgrpc.search.code_order import CodeOrder
from divgrpc.search.packed_cells import PackedCells
from divgrpc.search.passing import PassingRows
from divgrpc.types import Metric, Points, Search
from divgrpc.types.filters import Field, Filter, HasId
from divgrpc.vectors import RowsLike
from reference.index import same_bytes
from support.data.mixed_indexes import (
    METRICS,
    ROWS,
    SELECTIONS,
    an_index,
    drawn,
    every_kind,
    every_metric,
    queries,
    stored_as,
)

# Copies of 240 points pay from the second query on.
_REPEATED = 3


def copies_of(engine: Engine) -> list[PackedCells]:
    """Return the copies that the cached filters of an engine have."""
    copies = [passing._packed for passing in engine._passing.values()]
    return [copy for copy in copies if copy is not None]


def answers_before_and_after(index: Index, query: RowsLike, options: dict[str, Any]) -> None:
    """Check that a query has one answer, at first without and then with a copy of codes."""
    index.engine._passing.clear()
    first = index.query(query, **options)
    assert not copies_of(index.engine)
    for _ in range(_REPEATED):
        assert same_bytes(first, index.query(query, **options))
    assert copies_of(index.engine)


@every_metric
@every_kind
def test_a_copy_changes_no_answer(metric: Metric, kind: Points) -> None:
    index = an_index("cells", metric, kind)
    for number, vector in enumerate(queries(4, metric)):
        query = stored_as(vector[np.newaxis], kind)
        for seed, share in enumerate((0.7, 0.4, 0.1)):
            rows = np.random.default_rng(seed).permutation(ROWS)[: int(share * ROWS)]
            ids = index.engine._searcher.ids
            passing = Filter(must=(HasId(tuple((ids[rows] if len(ids) else rows).tolist())),))
            for search in ("tables", "scan", "scan_hamming"):
                selector, variant = SELECTIONS[(number + seed) % len(SELECTIONS)]
                options = {
                    "filter": passing, "search": search, "k": 5, "selector": selector,
                    "variant": variant, "candidates_limit": 12, "hash_limit": 15,
                }  # fmt: skip
                if search == "tables":
                    options |= {"hash_limit": (20, 9, 0)[seed], "n_probes": 2}
                answers_before_and_after(index, query, options)


@pytest.mark.parametrize("metric", METRICS)
def test_points_left_out_of_a_copy_are_not_found(metric: Metric) -> None:
    vectors = drawn(400, 20, 5, metric)
    colours = np.random.default_rng(2).integers(0, 3, 400)
    index = Index.build(
        vectors, metric=metric, hash_family="cells", attributes={"colour": colours}, seed=3
    )
    red = Field("colour") == 0
    members = np.flatnonzero(colours == 0)
    options: dict[str, Any] = {"filter": red, "k": 6, "search": "tables", "n_probes": 3}
    options |= {"hash_limit": 30, "keep_duplicates": True}
    for start in range(0, len(members), 7):
        excluded = members[start : start + 7].tolist()
        excluding = {"exclude_ids": [*excluded, 10_000]}
        answers_before_and_after(index, vectors[:1], options | excluding)
        result = index.query(vectors[:1], exclude_ids=excluded, **options)
        assert not set(excluded) & set(result.ids[0].tolist())
    for row in members[:5].tolist():
        index.engine._passing.clear()
        first = index.query(like=[row], **options)
        for _ in range(_REPEATED):
            assert same_bytes(first, index.query(like=[row], **options))
        assert copies_of(index.engine)


@pytest.mark.parametrize("search", ["tables", "scan", "exact"])
def test_points_that_are_left_out_for_several_reasons_are_not_found(search: Search) -> None:
    """A query leaves out the points of `exclude_ids`, those shown before, and those of `like`."""
    vectors = drawn(400, 20, 5, "euclidean")
    colours = np.random.default_rng(2).integers(0, 3, 400)
    index = Index.build(
        vectors, metric="euclidean", hash_family="cells", attributes={"colour": colours}, seed=3
    )
    options: dict[str, Any] = {"filter": Field("colour") == 0, "k": 6, "search": search}
    options["hash_limit"] = 30
    for _ in range(_REPEATED):
        index.query(vectors[:5], **options)
    assert bool(copies_of(index.engine)) == (search != "exact")
    first, second, third = np.flatnonzero(colours == 0)[:3].tolist()
    for row, extras in ((first, [second]), (second, [third]), (third, [first, second])):
        shown = index.query(
            vectors[row : row + 1], exclude_ids=[row], already_shown=extras, **options
        )
        alike = index.query(like=[row], exclude_ids=extras, **options)
        for result in (shown, alike):
            assert not {row, *extras} & {*result.ids[0].tolist()}


@given(st.lists(st.booleans(), min_size=2, max_size=60), st.data())
def test_a_copy_has_the_points_of_each_cell(flags: list[bool], data: st.DataObject) -> None:
    index = an_index("cells", "euclidean", "dense").engine._searcher
    whole = np.zeros(ROWS, np.bool_)
    whole[: len(flags)] = flags
    passing = PassingRows(whole)
    copy = passing.packed(index._index, index._order, 100)
    assert copy is not None
    rows = np.flatnonzero(whole)
    removed = (
        np.array(data.draw(st.lists(st.sampled_from(rows.tolist()), unique=True)), np.int64)
        if len(rows)
        else rows
    )
    # Some of them are removed first, and the others from the rest.
    half = len(removed) // 2
    fewer = passing.without(removed[:half]).without(removed[half:])
    copy = fewer.packed(index._index, index._order, 100)
    assert copy is not None
    cells, members = index._index.cells, copy._index.cells
    shown = copy.passing.flags if len(copy.passing.flags) else np.ones(len(rows))
    assert copy.passing.total == [len(rows) - len(removed)]
    for cell in range(len(cells.starts) - 1):
        places = slice(cells.starts[cell], cells.starts[cell + 1])
        expected = [row for row in cells.rows[places].tolist() if fewer.flags[row]]
        places = slice(members.starts[cell], members.starts[cell + 1])
        actual = members.rows[places][shown[places] == 1].tolist()
        assert actual == sorted(expected)
        assert copy.passing.cells[cell] == len(expected)


def test_threads_share_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that another one replaced would be freed while a kernel reads it."""
    searcher = an_index("cells", "euclidean", "dense").engine._searcher
    copy_slowly = PackedCells.of

    def of(index: records.Index, rows: Array, order: CodeOrder) -> PackedCells | None:
        time.sleep(0.05)
        return copy_slowly(index, rows, order)

    monkeypatch.setattr(PackedCells, "of", of)
    passing = PassingRows(np.arange(ROWS) % 3 == 0)
    fewer = passing.without(np.array([3]))
    for rows in (passing, fewer):
        barrier = threading.Barrier(4)

        def copy(_: int, rows: PassingRows = rows, barrier: threading.Barrier = barrier) -> int:
            barrier.wait()
            return id(rows.packed(searcher._index, searcher._order, 100))

        with ThreadPoolExecutor(4) as threads:
            assert len(set(threads.map(copy, range(4)))) == 1


def test_copies_have_a_limit_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = packed_cells._Memory()
    monkeypatch.setattr(packed_cells, "_MEMORY", memory)
    index, (query,) = an_index("cells", "cosine", "dense"), queries(1, "cosine")
    ids = index.engine._searcher.ids.tolist()
    index.engine._passing.clear()
    monkeypatch.setattr(packed_cells, "_COPIES_BYTES_MAX", 3 * 4_096)
    options: dict[str, Any] = {"search": "tables", "hash_limit": 10, "k": 3, "n_probes": 2}
    for first in range(8):
        passing = HasId(tuple(ids[first:60]))
        answers = [index.query(query, filter=passing, **options) for _ in range(_REPEATED)]
        assert all(same_bytes(answers[0], answer) for answer in answers)
    assert 0 < len(copies_of(index.engine)) < 8
    assert 0 < memory._bytes <= 3 * 4_096
    index.engine._passing.clear()
    gc.collect()
    assert memory._bytes == 0


def test_most_points_are_not_copied() -> None:
    index, (query,) = an_index("cells", "cosine", "dense"), queries(1, "cosine")
    ids = index.engine._searcher.ids.tolist()
    index.engine._passing.clear()
    for _ in range(_REPEATED):
        index.query(query, filter=HasId(tuple(ids[10:])), search="tables", hash_limit=20)
    assert not copies_of(index.engine)


def test_later_points_are_copied_too(tmp_path: Path) -> None:
    vectors = drawn(600, 20, 9, "euclidean")
    numbers = np.arange(600) % 5
    with Collection.build(
        vectors[:400], path=tmp_path / "index", metric="euclidean", hash_family="cells",
        attributes={"number": numbers[:400]}, seed=1,
    ) as collection:  # fmt: skip
        collection.upsert(
            np.arange(400, 600), vectors[400:], attributes={"number": numbers[400:].tolist()}
        )
        collection.delete(range(0, 600, 7))
        for number in range(5):
            for query in vectors[:3]:
                options: dict[str, Any] = {"search": "tables", "hash_limit": 25, "n_probes": 4}
                options |= {"filter": Field("number") == number, "k": 4}
                answers_before_and_after(collection, query, options)
                answer = collection.query(query, **options)
                assert all(row % 5 == number and row % 7 for row in answer.ids[0].tolist())
