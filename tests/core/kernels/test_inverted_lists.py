"""Inverted lists, which hold the points with a value in a column, and exact searches with them."""

import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from divgrpc.arrays import Array, read_only
from divgrpc.builder import encoder
from divgrpc.engine import Engine
from divgrpc.hashing import lists
from divgrpc.index import Index
from divgrpc.kernels import exact, inverted_lists, normalise
from divgrpc.kernels.records import (
    Candidates,
    InvertedLists,
    LaterLists,
    ListScratch,
    Points,
    Query,
    SelectionScratch,
)
from divgrpc.kernels.registers import record_of, slots_of
from divgrpc.kernels.sparse import sparse_square
from divgrpc.kernels.sparse import spread as spread_out
from divgrpc.storage.generations import Generation
from divgrpc.types import FloatArray, Metric
from divgrpc.vectors import SparseRows
from reference import kernels

# Thresholds by metric for which some of the nearest points are near-copies and most are not.
NEAR: dict[Metric, float] = {"cosine": 0.3, "euclidean": 12.0, "inner_product": 0.2}
# The rows that pass a filter, without a filter.
ALL_PASS = np.empty(0, np.int32)
seeds = st.integers(0, 2**32 - 1)
counts = st.sampled_from([1, 2, 5, 40, 300])
shares = st.sampled_from([0.0, 0.2, 1.0])


def drawn(seed: int, count: int, dims: int, spread: float) -> FloatArray:
    """Draw bags of words, the first word in nearly all rows, with a zero row and a repeated row."""
    rng = np.random.default_rng(seed)
    words = rng.random((count, dims)) < 1 / (1 + 0.3 * np.arange(dims))
    rows = words * rng.standard_normal((count, dims)) * 10 ** (spread * rng.random((count, 1)))
    rows[count // 2] = 0
    rows[-1] = rows[0]
    return rows.astype(np.float32)


def parts(rows: FloatArray) -> tuple[Any, ...]:
    matrix = sparse.csr_array(rows)
    arrays = (
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.int32),
        matrix.data.astype(np.float32),
    )
    for array in arrays:
        array.setflags(write=False)
    return arrays


def listed(rows: FloatArray, share: float, count: int | None = None) -> InvertedLists:
    """Return the lists of rows that arrive one by one.

    A column that more than `share` of the rows store is full. Only the first `count` rows have
    lists.
    """
    arrays: dict[str, Array] = {}

    def create(name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        arrays[name] = np.zeros(shape, dtype)
        return arrays[name]

    def blocks() -> Iterator[tuple[int, SparseRows]]:
        for row in range(len(rows)):
            indptr, indices, values = parts(rows[row : row + 1])
            yield row, SparseRows(indptr, indices, values, rows.shape[1])

    with mock.patch.object(lists, "FULL_COLUMN_SHARE", share):
        lists.create_lists(blocks, len(rows), rows.shape[1], create)
    if count is not None:
        columns = arrays["list_steps"], arrays["full_columns"]
        lists.list_points(lambda: itertools.islice(blocks(), count), count, *columns, create)
    return record_of(InvertedLists, {name: read_only(arrays[name]) for name in arrays}, {})


def partly_listed(
    rows: FloatArray, share: float, n_listed: int, n_later: int | None, unknown: FloatArray
) -> InvertedLists:
    """Return lists of the first rows, and later lists of the last `n_later` rows and of `unknown`.

    If `n_later` is None, there are no later lists.
    """
    n_listed = min(n_listed, len(rows))
    partly = listed(rows, share, n_listed)
    if n_later is None:
        return partly
    first = max(n_listed, len(rows) - n_later)
    written = np.concatenate((rows[first:], unknown))
    return partly._replace(later=later_lists_of(written, first, partly))


def without_lists(whole: InvertedLists, rows: npt.NDArray[np.int32]) -> InvertedLists:
    """Return what is known of `rows` (m,) alone, none of which has lists."""
    return whole._replace(
        full_lengths=read_only(whole.full_lengths[rows]),
        errors=read_only(whole.errors[rows]),
        starts=read_only(np.zeros_like(whole.starts)),
        full_values=read_only(np.zeros((len(whole.full_values), 0), np.int8)),
    )


def later_lists_of(written: FloatArray, first: int, whole: InvertedLists) -> LaterLists:
    """Return the later lists of rows that were written in two parts; `first` is their first row."""
    dims = written.shape[1]
    arrays = {lists.STEPS: whole.steps, lists.FULL_COLUMNS: whole.full_columns}
    room = len(written), int(np.count_nonzero(written))
    arrays |= lists.room_for_later_lists(first, *room, whole.full_columns)
    later = lists.LaterListWriter(arrays)
    for start, stop in itertools.pairwise((0, len(written) // 3, len(written))):
        indptr, indices, values = parts(written[start:stop])
        part = SparseRows(indptr, indices, values, dims)
        later.add(part, first + start)
    return LaterLists(*(read_only(arrays[name]) for name in lists.LATER_LISTS))


@given(seed=seeds, count=counts, dims=st.integers(1, 30), share=shares)
def test_lists_hold_the_bytes_of_all_values(seed: int, count: int, dims: int, share: float) -> None:
    rows = drawn(seed, count, dims, 2)
    columns = listed(rows, share)
    steps, numbers, errors = kernels.byte_values(rows)
    assert columns.steps.tolist() == steps
    for column in range(dims):
        expected = np.array(numbers)[:, column]
        holders = np.flatnonzero(rows[:, column])
        span = slice(columns.starts[column], columns.starts[column + 1])
        if len(holders) > share * count:
            assert columns.full_values[columns.full_columns[column]].tolist() == expected.tolist()
            assert span.start == span.stop
        else:
            assert columns.full_columns[column] == -1
            assert columns.rows[span].tolist() == holders.tolist()
            assert columns.values[span].tolist() == expected[holders].tolist()
    assert (columns.errors >= errors).all()
    assert columns.errors == pytest.approx(errors, rel=1e-5, abs=1e-40)
    in_full = np.where(columns.full_columns >= 0, rows.astype(float), 0)
    lengths = np.sqrt((in_full**2).sum(axis=1))
    assert (columns.full_lengths >= lengths).all()
    assert columns.full_lengths == pytest.approx(lengths, rel=1e-5, abs=1e-40)


@given(
    seed=seeds,
    count=counts,
    dims=st.integers(1, 30),
    spread=st.sampled_from([0.0, 2.0, 30.0, -30.0]),
    share=shares,
    n_nearest=st.integers(1, 20) | st.integers(1, 300),
    product=st.booleans(),
    has_marks=st.booleans(),
    scale=st.sampled_from([0.0, 1.0, 1e15]),
)
def test_lists_exclude_none_of_the_nearest(  # noqa: PLR0917  # one for each property that varies
    seed: int,
    count: int,
    dims: int,
    spread: float,
    share: float,
    n_nearest: int,
    product: bool,
    has_marks: bool,
    scale: float,
) -> None:
    rows, n_nearest = drawn(seed, count, dims, spread), min(n_nearest, count)
    target = drawn(seed + 1, 4, dims, 0)[:1] * np.float32(scale)
    squares = np.empty(count)
    normalise.squares_sparse(*(parts(rows)[i] for i in (0, 2)), squares)
    arrays = (target[:0], *parts(rows), squares, np.empty(0, np.float32))
    points = Points(*arrays)
    _, columns, values = parts(target)
    marks = np.zeros(-(-dims // 64) if has_marks else 0, np.uint64)
    selection = SelectionScratch(target[0], target[0], np.zeros((1, dims), np.float32), marks)
    spread_out(columns, values, 0, len(columns), selection)
    square = sparse_square(columns, values, 0, len(columns), dims)
    query = Query(selection.dense, 0, square, product)
    by_column = listed(rows, share)
    scratch = record_of(ListScratch, None, {"n": count})
    estimates = np.empty(count, np.float32)
    n_listed = inverted_lists.bound_distances(
        points, by_column, columns, values, query, n_nearest, ALL_PASS, marks,
        Candidates(np.empty(count, np.int32), estimates), scratch,
    )  # fmt: skip
    assert n_nearest <= n_listed <= count
    assert n_listed == count or n_listed <= count // inverted_lists.FEW_RATIO
    truth = np.empty(count, np.float32)
    exact.score_all(points, query, truth)
    near = np.flatnonzero(truth <= np.sort(truth)[n_nearest - 1])
    listed_rows, bounds = scratch.rows[:n_listed], scratch.bounds[:n_listed]
    assert (np.diff(listed_rows) > 0).all()
    assert set(near.tolist()) <= set(listed_rows.tolist())
    assert (bounds <= truth[listed_rows]).all()
    assert (bounds <= estimates[:n_listed]).all()
    twin = np.array(kernels.least_distances(rows, target[0], product=product))
    long = float(np.abs(rows).sum(axis=1).max() + np.abs(target).sum()) ** 2
    finite = np.isfinite(bounds)
    differences = np.abs(bounds[finite] - twin[listed_rows][finite])
    assert (differences <= 1e-4 * long + 1e-40).all()
    near_rows, far = np.full(count, -1, np.int32), np.full(count, np.nan, np.float32)
    n_scored = inverted_lists.score_listed(
        points, by_column, columns, values, query, n_nearest, ALL_PASS, selection,
        Candidates(near_rows, far), scratch,
    )  # fmt: skip
    assert n_nearest <= n_scored <= count
    assert len(set(near_rows[:n_scored].tolist())) == n_scored
    assert far[:n_scored].tobytes() == truth[near_rows[:n_scored]].tobytes()
    assert set(near.tolist()) <= set(near_rows[:n_scored].tolist())


@given(
    seed=seeds,
    count=counts,
    share=shares,
    n_listed=st.integers(0, 300),
    n_later=st.none() | st.integers(0, 300),
    n_unknown=st.integers(0, 20),
    n_nearest=st.integers(1, 40),
    passing_share=st.sampled_from([0.1, 0.7, 0.9, 0.99, 1.0]),
    product=st.booleans(),
    has_marks=st.booleans(),
)
def test_points_without_lists_have_the_same_bounds(  # noqa: PLR0917  # one for each property
    seed: int,
    count: int,
    share: float,
    n_listed: int,
    n_later: int | None,
    n_unknown: int,
    n_nearest: int,
    passing_share: float,
    product: bool,
    has_marks: bool,
) -> None:
    """Nor does the result depend on rows that do not pass a filter, or that a search cannot know.

    `n_later` rows are in later lists, and `n_unknown` rows too, which were written meanwhile.
    """
    dims, rng = 30, np.random.default_rng(seed)
    rows, target = drawn(seed, count, dims, 1), drawn(seed + 1, 4, dims, 0)[:1]
    _, columns, values = parts(target)
    marks = np.zeros(1 if has_marks else 0, np.uint64)
    selection = SelectionScratch(target[0], target[0], np.zeros((1, dims), np.float32), marks)
    spread_out(columns, values, 0, len(columns), selection)
    square = sparse_square(columns, values, 0, len(columns), dims)
    query = Query(selection.dense, 0, square, product)
    passing = np.flatnonzero(rng.random(count) < passing_share).astype(np.int32)
    passing = passing if len(passing) else np.arange(count, dtype=np.int32)
    n_nearest = min(n_nearest, len(passing))

    def search(
        vectors: FloatArray, by_column: InvertedLists, passing: npt.NDArray[np.int32]
    ) -> tuple[Any, ...]:
        squares = np.empty(len(vectors))
        normalise.squares_sparse(*(parts(vectors)[i] for i in (0, 2)), squares)
        arrays = (target[:0], *parts(vectors), squares, np.empty(0, np.float32))
        points = Points(*arrays)
        scratch = record_of(ListScratch, None, {"n": len(vectors)})
        near, far = np.empty(len(vectors), np.int32), np.empty(len(vectors), np.float32)
        arguments = (points, by_column, columns, values, query, n_nearest, passing)
        n_bounded = inverted_lists.bound_distances(
            *arguments, marks, Candidates(near, far), scratch
        )
        bounds = scratch.bounds[:n_bounded].tobytes() + far[:n_bounded].tobytes()
        bounded = scratch.rows[:n_bounded].copy()
        n_scored = inverted_lists.score_listed(
            *arguments, selection, Candidates(near, far), scratch
        )
        return bounded, bounds, near[:n_scored], far[:n_scored].tobytes()

    whole = listed(rows, share)
    bounded, bounds, near, far = search(rows, whole, passing)
    unknown = drawn(seed + 2, n_unknown, dims, 1) if n_unknown else rows[:0]
    later = search(rows, partly_listed(rows, share, n_listed, n_later, unknown), passing)
    assert [bounded.tolist(), bounds, near.tolist(), far] == [
        later[0].tolist(), later[1], later[2].tolist(), later[3]
    ]  # fmt: skip
    few = search(rows[passing], without_lists(whole, passing), ALL_PASS)
    assert [bounded.tolist(), bounds, near.tolist(), far] == [
        passing[few[0]].tolist(), few[1], passing[few[2]].tolist(), few[3]
    ]  # fmt: skip


def test_later_lists_have_room_for_more_rows_than_16_bits_can_count() -> None:
    """A layout has room for a little more than 65,536 later rows."""
    count, first = 65_600, 3
    arrays: dict[str, Array] = {lists.STEPS: np.full(1, 1 / 127, np.float32)}
    arrays[lists.FULL_COLUMNS] = np.full(1, -1, np.int32)
    arrays |= lists.room_for_later_lists(first, count, count, arrays[lists.FULL_COLUMNS])
    ones = np.ones(count, np.float32)
    rows = SparseRows(np.arange(count + 1), np.zeros(count, np.int32), ones, 1)
    lists.LaterListWriter(arrays).add(rows, first)
    entries = arrays["later_rows"]
    assert entries[entries > 0].tolist() == list(range(1, count + 1))


@pytest.mark.parametrize(
    ("weight", "product", "expected"), [(0.05, False, 4), (0.05, True, 4), (50, False, 400)]
)
def test_full_columns_are_added_for_few_points_unless_they_matter(
    weight: float, product: bool, expected: int
) -> None:
    """Nearly all points store the first two columns, and two points store each other column."""
    rng = np.random.default_rng(8)
    count, dims = 400, 202
    rows = np.zeros((count, dims), np.float32)
    signs = rng.choice([-1, 1], (count - 1, 2))
    rows[1:, :2] = weight * signs * rng.uniform(0.5, 1, (count - 1, 2))
    rows[np.arange(count), 2 + np.arange(count) // 2] = 1
    squares = np.square(rows.astype(float)).sum(axis=1)
    target = rows[100:101] + rows[300:301]
    _, columns, values = parts(target)
    square = sparse_square(columns, values, 0, len(columns), dims)
    scratch, estimates = record_of(ListScratch, None, {"n": count}), np.empty(count, np.float32)
    arrays = (target[:0], *parts(rows), squares, np.empty(0, np.float32))
    n_listed = inverted_lists.bound_distances(
        Points(*arrays),
        listed(rows, 0.15),
        columns,
        values,
        Query(target, 0, square, product),
        4,
        ALL_PASS,
        np.empty(0, np.uint64),
        Candidates(np.empty(count, np.int32), estimates),
        scratch,
    )
    assert n_listed == expected
    if expected == 4:
        assert scratch.rows[:4].tolist() == [100, 101, 300, 301]


@pytest.mark.parametrize("metric", ["cosine", "euclidean", "inner_product"])
@pytest.mark.parametrize("selector", ["nearest", "greedy"])
@pytest.mark.parametrize("collapse", [False, True])
def test_exact_search_by_lists_equals_search_over_all_rows(
    metric: Metric, selector: str, collapse: bool
) -> None:
    rows = drawn(3, 2_000, 400, 0.5)[: 2_000 // 2]
    index = Index.build(sparse.csr_array(rows), metric=metric)
    queries = sparse.csr_array(drawn(4, 8, 400, 0)[:3] * (np.arange(400) > 20))
    options: dict[str, Any] = {"search": "exact", "selector": selector, "k": 5}
    if collapse:
        # The pool may grow to four times candidates_limit, the largest number that lists serve.
        options |= {"duplicate_threshold": NEAR[metric], "candidates_limit": 8}
    else:
        options |= {"keep_duplicates": True, "candidates_limit": 30}
    by_lists = index.query(queries, **options)
    names = {slot.name for slot in slots_of(InvertedLists)}
    arrays = {name: array for name, array in index.engine._arrays.items() if name not in names}
    by_rows = Index(Engine(Generation(index.engine.manifest, arrays))).query(queries, **options)
    assert by_lists.ids.tobytes() == by_rows.ids.tobytes()
    assert by_lists.scores.tobytes() == by_rows.scores.tobytes()
    assert by_lists.selection_scores.tobytes() == by_rows.selection_scores.tobytes()
    assert (by_rows.stats.points_scored == 1_000).all()
    assert (by_lists.stats.points_scored < 1_000).all()
    # An index of an earlier version has lists of float32 values.
    former = arrays | {"posting_rows": read_only(np.empty(0, np.int32))}
    converted = Index(Engine(Generation(index.engine.manifest, former))).query(queries, **options)
    assert converted.ids.tobytes() == by_rows.ids.tobytes()
    assert (converted.stats.points_scored == by_lists.stats.points_scored).all()
    for column in ("candidates", "collapsed", "duplicates"):
        list_counts, row_counts = getattr(by_lists.stats, column), getattr(by_rows.stats, column)
        assert list_counts.tolist() == row_counts.tolist()
    assert by_lists.stats.collapsed.any() == collapse


def test_queries_with_common_columns_scan_all_rows() -> None:
    rows = drawn(5, 1_000, 50, 0)
    index = Index.build(sparse.csr_array(rows[:500]))
    result = index.query(sparse.csr_array(np.ones((1, 50))), search="exact", candidates_limit=30)
    assert result.stats.points_scored.tolist() == [500]


def test_points_in_several_runs_have_several_lists() -> None:
    count = 2 * inverted_lists.RUN_POINTS + 500
    rng = np.random.default_rng(7)
    columns = rng.integers(0, 60, (count, 3)) * [1, 1, 0] + [0, 60, 130]
    columns[::7, 2] += 1
    values = rng.standard_normal(columns.shape).astype(np.float32)
    indptr = np.arange(0, 3 * count + 1, 3)
    rows = sparse.csr_array((values.ravel(), columns.ravel(), indptr), (count, 140))
    index = Index.build(rows, hash_family="lsh_sdiv", target_recall=0.5)
    numbers = [3, inverted_lists.RUN_POINTS - 1, inverted_lists.RUN_POINTS, count - 1]
    targets = rows[numbers]
    targets.data[2::3] = 0
    result = index.query(targets, k=5, search="exact", selector="nearest", candidates_limit=20)
    assert (result.stats.points_scored < count / 10).all()
    lengths = np.sqrt(rows.multiply(rows).sum(axis=1)) * np.sqrt(
        targets.multiply(targets).sum(axis=1)
    ).reshape(-1, 1)
    cosines = (targets @ rows.T).toarray() / lengths
    assert result.scores == pytest.approx(-np.sort(-cosines, axis=1)[:, :5], abs=1e-5)


def test_no_lists_are_stored_above_the_maximum_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sparse.csr_array(drawn(6, 300, 60, 0)[:100])
    assert "list_rows" in Index.build(rows).engine._arrays
    monkeypatch.setattr(encoder, "LISTED_POINTS_MAX", 99)
    index = Index.build(rows)
    assert not {slot.name for slot in slots_of(InvertedLists)} & index.engine._arrays.keys()
    result = index.query(rows[:2], search="exact", candidates_limit=10)
    assert result.ids[:, 0].tolist() == [0, 1]
    assert result.stats.points_scored.tolist() == [100, 100]
