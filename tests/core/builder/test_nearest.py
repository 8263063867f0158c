"""The nearest points of several queries, compared with a definition."""

from copy import copy
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from divgrpc.build_rows import DividedRows, DividedSparseRows
from divgrpc.builder import nearest as nearest_module
from divgrpc.builder.nearest import NearestPoints, NearestSearch, NearPoints, find_nearest
from divgrpc.types import FloatArray, Metric
from divgrpc.vectors import Rows, SparseRows

METRICS: list[Metric] = ["cosine", "inner_product", "euclidean"]
KINDS = ["dense", "sparse", "crossed"]


def expected_rows(
    search: NearestSearch, points: FloatArray, queries: FloatArray
) -> list[list[int]]:
    """Return the row numbers of the nearest points of each query, by the definition."""
    results = []
    for query in queries.tolist():
        gains: list[Fraction] = []
        for point in points.tolist():
            pairs = [(Fraction(a), Fraction(b)) for a, b in zip(query, point, strict=True)]
            product = sum((a * b for a, b in pairs), Fraction(0))
            square = sum((b * b for _, b in pairs), Fraction(0))
            gain = product - square / 2 if search.metric == "euclidean" else product
            if search.angular and search.metric == "inner_product":
                # The order of cosines is that of their squares, with their signs.
                gain = product * abs(product) / square if square else Fraction(0)
            gains.append(gain)
        order = sorted(range(len(points)), key=lambda row: (-gains[row], row))
        results.append(order[: search.count])
    return results


@given(data=st.data())
def test_they_are_the_first_by_gain_and_row_number(data: st.DataObject) -> None:
    """Small whole numbers have exact products, and many ties."""
    rows, metric = data.draw(st.integers(1, 30)), data.draw(st.sampled_from(METRICS))
    # Lengths, which are square roots, are whole numbers in one dimension.
    dims = 1 if metric == "euclidean" else data.draw(st.integers(1, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    points = rng.integers(-2, 3, (rows, dims)).astype(np.float32)
    # The mean of the queries, which rounding must not change, is a whole number.
    half = rng.integers(-2, 3, (2, dims)).astype(np.float32)
    queries = np.concatenate((half, -half))
    count, kind = data.draw(st.integers(1, rows)), data.draw(st.sampled_from(KINDS))
    given_points: Rows = points
    given_queries: Rows = queries
    if kind != "dense":
        given_points = SparseRows.of(sparse.csr_array(points))
    if kind == "sparse":
        given_queries = SparseRows.of(sparse.csr_array(queries))
    search = NearestSearch(given_queries, count, metric)
    with pytest.MonkeyPatch.context() as patch:
        block = data.draw(st.integers(1, 9))
        patch.setattr(nearest_module, "block_rows", lambda _: block)
        steps: list[tuple[int, int]] = []
        result, gains = find_nearest(search, given_points, lambda *step: steps.append(step))
    assert result.tolist() == expected_rows(search, points, queries)
    assert (np.diff(gains, axis=1) <= 0).all()
    assert steps[-1] == (rows, rows)


@given(seed=st.integers(0, 99))
def test_the_nearest_by_angle_have_the_largest_cosines(seed: int) -> None:
    """A point of length zero has the cosine 0."""
    rng = np.random.default_rng(seed)
    # Each length and each product is a whole number.
    directions = np.array([[3, 4], [4, 3], [-3, 4], [0, 5], [0, 0], [8, 6]], np.float32)
    points = directions[rng.integers(0, 6, 20)] * 2.0 ** rng.integers(-2, 3, (20, 1))
    points = points.astype(np.float32)
    queries = rng.integers(-2, 3, (3, 2)).astype(np.float32)
    search = NearestSearch(queries, 7, "inner_product", angular=True)
    result, _ = find_nearest(search, points, lambda *_: None)
    assert result.tolist() == expected_rows(search, points, queries)


@given(data=st.data())
def test_the_order_of_blocks_does_not_matter(data: st.DataObject) -> None:
    """A block may be searched while any of the blocks before it are known."""
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    points = rng.integers(-3, 4, (60, 2)).astype(np.float32)
    search = NearestSearch(rng.integers(-3, 4, (5, 2)).astype(np.float32), 4, "inner_product")
    expected, _ = find_nearest(search, points, lambda *_: None)
    bounds = sorted({0, 60, *data.draw(st.lists(st.integers(0, 60), max_size=12))})
    blocks = data.draw(st.permutations([range(*pair) for pair in pairwise(bounds)]))
    nearest = NearestPoints(search)
    states = [copy(nearest)]
    for block in blocks:
        # What was known at some time before.
        least = data.draw(st.sampled_from(states)).least_from(block.start)
        part = search.in_block(points[block.start : block.stop], block.start, least)
        nearest.add(part)
        states.append(copy(nearest))
    assert nearest.sorted()[0].tolist() == expected.tolist()


def test_divided_points_have_the_same_nearest_points() -> None:
    """Dense and sparse points, divided at random."""
    rng = np.random.default_rng(3)
    points = rng.standard_normal((500, 6)).astype(np.float32)
    homes = rng.integers(0, 3, 500)
    numbers = [np.flatnonzero(homes == home) for home in range(3)]
    whole = SparseRows.of(sparse.csr_array(points))
    for metric in METRICS:
        search = NearestSearch(points[:9].copy(), 20, metric)
        for one, divided in (
            (points, DividedRows([points[part] for part in numbers], numbers)),
            (whole, DividedSparseRows([whole[part] for part in numbers], numbers)),
        ):
            results = [find_nearest(search, rows, lambda *_: None) for rows in (one, divided)]
            assert results[0][0].tolist() == results[1][0].tolist()
            assert results[0][1].tobytes() == results[1][1].tobytes()


def test_few_points_of_ties_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most pairs of sparse vectors have the gain 0."""
    monkeypatch.setattr(nearest_module, "block_rows", lambda _: 10)
    sizes: list[int] = []
    add = NearestPoints.add

    def count(nearest: NearestPoints, part: NearPoints) -> None:
        sizes.append(len(part.rows))
        add(nearest, part)

    monkeypatch.setattr(NearestPoints, "add", count)
    search = NearestSearch(np.ones((1, 2), np.float32), 5, "inner_product")
    result, _ = find_nearest(search, np.zeros((3_000, 2), np.float32), lambda *_: None)
    assert result.tolist() == [[0, 1, 2, 3, 4]]
    # Each block is added as such, and as a part of the whole.
    assert sum(sizes) < 3_000


def test_points_far_from_the_origin_are_told_apart() -> None:
    """Their squares alone have no digits for small distances."""
    points = np.array([[30_000.0 + step / 4, -30_000.0] for step in range(40)], np.float32)
    search = NearestSearch(points[[3, 30]], 3, "euclidean")
    result, _ = find_nearest(search, points, lambda *_: None)
    assert [{*rows} for rows in result.tolist()] == [{2, 3, 4}, {29, 30, 31}]


def test_products_that_are_not_numbers_come_last() -> None:
    points = np.full((6, 2), 3e38, np.float32)
    points[4:] = 1
    search = NearestSearch(np.array([[3e38, -3e38]], np.float32), 3, "inner_product")
    with np.errstate(over="ignore", invalid="ignore"):
        result, gains = find_nearest(search, points, lambda *_: None)
    assert result.tolist() == [[4, 5, 0]]
    assert gains.tolist() == [[0, 0, -np.inf]]
