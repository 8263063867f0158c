"""Learning a partition from points, and assigning points to its cells."""

from collections.abc import Callable
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.hashing import partition as partitions
from divgrpc.kernels import kmeans
from divgrpc.types import FloatArray
from reference import definitions
from reference.index import clustered

examples = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)


@examples
@given(
    seed=seeds,
    rows=st.sampled_from([1, 2, 16, 17, 300]),
    width=st.sampled_from([1, 2, 9]),
    n_cells=st.sampled_from([1, 2, 5, 40, 300]),
    duplicates=st.sampled_from([0.0, 0.7]),
)
def test_the_number_of_cells_learned_is_bounded(
    seed: int, rows: int, width: int, n_cells: int, duplicates: float
) -> None:
    sample = clustered(rows, width, seed, duplicates)
    partition = partitions.learn(sample, min(n_cells, rows), np.random.default_rng(seed))
    assert partition.width == width
    assert partition.coarse.dtype == partition.centres.dtype == np.float32
    assert (partition.starts[0], partition.starts[-1]) == (0, len(partition.centres))
    assert (np.diff(partition.starts) >= 1).all()
    assert 1 <= len(partition.centres) <= max(n_cells + len(partition.coarse), 1)
    assert np.isfinite(partition.coarse).all()
    assert np.isfinite(partition.centres).all()
    assert (partition.assign(sample) < len(partition.centres)).all()


@examples
@given(seed=seeds, rows=st.sampled_from([1, 2, 16, 17, 300]), width=st.sampled_from([1, 9]))
def test_a_point_is_assigned_within_its_nearest_coarse_cells(
    seed: int, rows: int, width: int
) -> None:
    points = clustered(rows, width, seed, 0.2)
    partition = partitions.learn(points, max(1, rows // 4), np.random.default_rng(seed))
    cells = partition.assign(points)
    assert cells.dtype == np.int32
    for row, cell in enumerate(cells.tolist()):
        tops = [definitions.distance(points[row], centre) for centre in partition.coarse]
        edge = sorted(tops)[: kmeans.COARSE_CELLS][-1]
        near = [top for top, far in enumerate(tops) if far < edge + 1e-4]
        top = int(np.searchsorted(partition.starts, cell, side="right")) - 1
        assert top in near
        sure = [top for top in near if tops[top] < edge - 1e-4]
        inside = [
            c for top in sure for c in range(partition.starts[top], partition.starts[top + 1])
        ]
        best = min(
            (definitions.distance(points[row], partition.centres[c]) for c in inside), default=inf
        )
        assert definitions.distance(points[row], partition.centres[cell]) < best + 1e-4


def test_cells_reduce_the_variance_within_them() -> None:
    points = clustered(2000, 6, 1)
    partition = partitions.learn(points, 40, np.random.default_rng(0))
    within = ((points - partition.centres[partition.assign(points)]) ** 2).sum(axis=1).mean()
    assert within < 0.3 * ((points - points.mean(axis=0)) ** 2).sum(axis=1).mean()


@pytest.mark.parametrize(
    ("rows", "width", "expected"),
    [
        (1, 200, 1),
        (15, 200, 1),
        (32, 200, 2),
        (10_000, 200, 400),
        (50_000, 64, 500),
        (10**6, 256, 4000),
    ],
)
def test_the_number_of_cells_grows_with_the_root_of_the_points(
    rows: int, width: int, expected: int
) -> None:
    """A cell has sixteen points or more, and a hundred from 50,000 points on."""
    assert partitions.cell_count(rows, width) == expected
    assert 1 <= partitions.sample_size(rows, width) <= rows
    assert partitions.cell_count(2**31 - 1, 256) * 256 <= 2**22
    assert partitions.sample_size(2**31 - 1, 256) * 256 <= 2**24


def test_memory_for_products_with_centres_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, int]] = []

    def watched(kernel: Callable[..., None]) -> Callable[..., None]:
        def take(products: FloatArray, *rest: object) -> None:
            shapes.append(products.shape)
            kernel(products, *rest)

        return take

    for name in ("take_nearest", "take_nearest_of", "take_several"):
        monkeypatch.setattr(kmeans, name, watched(getattr(kmeans, name)))
    points = whole(np.random.default_rng(0), 300, 3)
    partition = partitions.learn(points, 40, np.random.default_rng(0))
    integer_partition = partitions.Partition(
        np.rint(partition.coarse), partition.starts, np.rint(partition.centres)
    )
    cells = integer_partition.assign(points)
    nearest = partitions._nearest(points, integer_partition.centres)
    shapes.clear()
    monkeypatch.setattr(partitions, "_PRODUCTS_AT_ONCE", 50)
    assert partitions._rows_at_once(40) == partitions._rows_at_once(100) == 1
    assert (integer_partition.assign(points) == cells).all()
    assert (partitions._nearest(points, integer_partition.centres) == nearest).all()
    assert shapes
    assert all(rows == 1 or centres * rows <= 50 for centres, rows in shapes)


def whole(rng: np.random.Generator, rows: int, width: int) -> FloatArray:
    """Draw small integers as float32, so that their sums are exact and many are equal."""
    return rng.integers(-3, 4, (rows, width)).astype(np.float32)


@examples
@given(
    seed=seeds, rows=st.integers(1, 40), width=st.sampled_from([1, 2, 17]), count=st.integers(1, 30)
)
def test_points_are_assigned_to_the_nearest_centre_and_summed(
    seed: int, rows: int, width: int, count: int
) -> None:
    rng = np.random.default_rng(seed)
    points, centres = whole(rng, rows, width), whole(rng, count, width)
    numbers = partitions._nearest(points, centres)
    for point, number in zip(points, numbers.tolist(), strict=True):
        distances = [definitions.distance(point, centre) for centre in centres]
        assert number == distances.index(min(distances))
    sums, sizes = np.full((count, width), 9, np.float32), np.full(count, 9, np.int64)
    kmeans.add_up(points, numbers, sums, sizes)
    for number in range(count):
        assert sums[number].tolist() == points[numbers == number].sum(axis=0).tolist()
        assert sizes[number] == (numbers == number).sum()


@examples
@given(seed=seeds, points=st.integers(0, 40), count=st.integers(0, 30))
def test_the_nearest_coarse_cells_are_ordered_and_grouped(
    seed: int, points: int, count: int
) -> None:
    """Equally near cells are ordered by number, and places without a centre hold -1."""
    rng = np.random.default_rng(seed)
    products, halves = whole(rng, count, points), whole(rng, count, 1)[:, 0]
    shape = (kmeans.COARSE_CELLS, points)
    numbers, gains = np.full(shape, -1, np.int32), np.full(shape, -np.inf, np.float32)
    kmeans.take_several(products, halves, numbers, gains)
    for point in range(points):
        every = (products[:, point] - halves).tolist()
        order = sorted(range(count), key=lambda c: (-every[c], c))[: kmeans.COARSE_CELLS]
        n_blanks = kmeans.COARSE_CELLS - len(order)
        assert numbers[:, point].tolist() == [*order, *[-1] * n_blanks]
        assert gains[:, point].tolist() == [*(every[c] for c in order), *[-np.inf] * n_blanks]
    starts, members = kmeans.group(numbers, count)
    assert (starts[0], starts[-1], len(starts)) == (0, len(members), count + 1)
    for number in range(count):
        cell_members = members[starts[number] : starts[number + 1]].tolist()
        assert cell_members == [
            point for place in numbers for point in np.flatnonzero(place == number)
        ]


@examples
@given(seed=seeds, points=st.integers(1, 20), count=st.integers(1, 9), size=st.integers(0, 9))
def test_points_move_only_to_a_nearer_centre(seed: int, points: int, count: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    few = np.sort(rng.choice(points, min(size, points), replace=False)).astype(np.int32)
    products, halves = whole(rng, count, len(few)), whole(rng, count, 1)[:, 0]
    numbers, gains = rng.integers(0, 5, points, np.int32), whole(rng, points, 1)[:, 0]
    expected = list(zip(numbers.tolist(), gains.tolist(), strict=True))
    for at, point in enumerate(few.tolist()):
        every = (products[:, at] - halves).tolist()
        if max(every) > expected[point][1]:
            expected[point] = (100 + every.index(max(every)), max(every))
    kmeans.take_nearest_of(products, halves, 100, few, numbers, gains)
    assert list(zip(numbers.tolist(), gains.tolist(), strict=True)) == expected
