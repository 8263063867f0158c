"""Selecting and sorting the nearest rows."""

from time import perf_counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.kernels import top_k

seeds = st.integers(0, 2**32 - 1)
NO_IDS = np.empty(0, np.int64)

Rows = npt.NDArray[np.int32]
Distances = npt.NDArray[np.float32]


@given(seed=seeds, count=st.sampled_from([1, 2, 15, 16, 17, 300, 1000]), levels=st.integers(1, 200))
def test_take_nearest_takes_all_rows_up_to_the_last_wanted_distance(
    seed: int, count: int, levels: int
) -> None:
    """Rows come in ascending order; because of ties there may be more than `k`."""
    rng = np.random.default_rng(seed)
    distances = rng.integers(0, levels, count).astype(np.float32)
    for k in {1, min(count, 7), count}:
        row_distances, rows = distances.copy(), np.full(count, -1, np.int32)
        end = top_k.take_nearest(row_distances, k, rows)
        assert k <= end <= count
        last = np.sort(distances)[k - 1]
        nearest = rows[:end].tolist()
        assert set(np.flatnonzero(distances <= last).tolist()) <= set(nearest)
        assert nearest == sorted(set(nearest))
        assert row_distances[:end].tolist() == distances[nearest].tolist()


@given(seed=seeds, count=st.integers(0, 40), most=st.sampled_from([0.0, 1.5, 4.0, np.inf]))
def test_keep_within_keeps_rows_up_to_the_limit_in_order(
    seed: int, count: int, most: float
) -> None:
    rng = np.random.default_rng(seed)
    distances = (rng.integers(0, 9, 40) / 2).astype(np.float32)
    rows = rng.permutation(40).astype(np.int32)
    expected = [(r, d) for r, d in zip(rows.tolist()[:count], distances.tolist(), strict=False)]
    end = top_k.keep_within(rows, distances, count, np.float32(most))
    near = [(r, d) for r, d in expected if d <= most]
    assert list(zip(rows[:end].tolist(), distances[:end].tolist(), strict=True)) == near


def sort(
    distances: Distances, ids: npt.NDArray[np.int64], start: int, stop: int, k: int
) -> tuple[Rows, Distances]:
    rows, sorted_distances = np.arange(len(distances), dtype=np.int32), distances.copy()
    top_k.sort_nearest(rows, sorted_distances, start, stop, k, ids)
    return rows, sorted_distances


def check_sorted(
    distances: Distances, ids: npt.NDArray[np.int64], start: int, stop: int, k: int
) -> None:
    rows, after = sort(distances, ids, start, stop, k)
    names = ids if len(ids) else np.arange(len(distances))
    truth = sorted(range(start, stop), key=lambda row: (distances[row], names[row]))
    assert rows[start : start + k].tolist() == truth[:k]
    assert sorted(rows[start:stop].tolist()) == list(range(start, stop))
    assert after.tolist() == distances[rows].tolist()
    outside = [*range(start), *range(stop, len(distances))]
    assert rows[outside].tolist() == outside


@given(
    seed=seeds,
    size=st.sampled_from([0, 1, 2, 16, 17, 18, 33, 100, 1000]),
    values=st.sampled_from([1, 2, 10, 10**6]),
    given_ids=st.booleans(),
    data=st.data(),
)
def test_sort_nearest_sorts_the_wanted_rows_of_a_range(
    seed: int, size: int, values: int, given_ids: bool, data: st.DataObject
) -> None:
    """Distances are raised to a power, so that most are near 0 and a few are large."""
    rng = np.random.default_rng(seed)
    power = data.draw(st.sampled_from([1, 9]))
    distances = ((rng.integers(0, values, size) / values) ** power).astype(np.float32)
    ids = rng.permutation(3 * size)[:size].astype(np.int64) if given_ids else NO_IDS
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    check_sorted(distances, ids, start, stop, data.draw(st.integers(0, stop - start)))


def in_order(kind: str, size: int) -> Distances:
    up, down = range(size // 2), range(size - size // 2)
    orders: dict[str, list[int]] = {
        "ascending": list(range(size)),
        "descending": list(range(size, 0, -1)),
        "equal": [1] * size,
        "organ pipe": [*up, *reversed(down)],
        "valley": [*reversed(up), *down],
        "saw": [row % 17 for row in range(size)],
        "two values": [row % 2 for row in range(size)],
    }
    return np.array(orders[kind], np.float32)


KINDS = ["ascending", "descending", "equal", "organ pipe", "valley", "saw", "two values"]


@pytest.mark.parametrize(
    "extremes",
    [(-3e38, 3e38), (1.0, float(np.nextafter(np.float32(1), np.float32(2)))), (0, 1e-45)],
)
def test_sort_nearest_sorts_any_range(extremes: tuple[float, float]) -> None:
    rng = np.random.default_rng(5)
    distances = rng.choice(np.array(extremes, np.float32), 500)
    check_sorted(distances, rng.permutation(500).astype(np.int64), 0, 500, 300)


@pytest.mark.parametrize("kind", KINDS)
def test_ordered_input_is_sorted_but_not_in_quadratic_time(kind: str) -> None:
    """A quadratic quicksort would take hundreds of times as long as for shuffled points."""
    for k in (1, 10, 2999, 3000):
        for ids in (NO_IDS, np.arange(3000, 0, -1, dtype=np.int64)):
            check_sorted(in_order(kind, 3000), ids, 0, 3000, k)
    size = 100_000
    random_distances = np.random.default_rng(1).permutation(size).astype(np.float32)
    sort(random_distances, NO_IDS, 0, 1, 1)
    start = perf_counter()
    sort(random_distances, NO_IDS, 0, size, size)
    usual = perf_counter() - start
    distances = in_order(kind, size)
    start = perf_counter()
    sort(distances, NO_IDS, 0, size, size)
    assert perf_counter() - start < 40 * usual


@given(
    seed=seeds,
    count=st.sampled_from([1, 2, 9, 300]),
    levels=st.sampled_from([1, 3, 10**6]),
    share=st.floats(0, 1),
)
def test_keep_nearest_keeps_the_nearest_in_any_order(
    seed: int, count: int, levels: int, share: float
) -> None:
    """Of rows at equal distance, the rows with the lowest ids are kept."""
    rng = np.random.default_rng(seed)
    distances = rng.integers(0, levels, count).astype(np.float32)
    distances[rng.random(count) < 0.1] = np.inf
    rows, ids = rng.permutation(count).astype(np.int32), rng.permutation(count)
    k = max(1, round(share * count))
    for tie_ids in (ids, ids[:0]):
        places, place_distances = rows.copy(), distances.copy()
        limit = top_k.keep_nearest(places, place_distances, count, k, tie_ids)
        by_row = dict(zip(rows.tolist(), distances.tolist(), strict=True))
        name = tie_ids if len(tie_ids) else np.arange(count)
        best = sorted(by_row, key=lambda row: (by_row[row], name[row]))[:k]
        assert sorted(places[:k].tolist()) == sorted(best)
        pairs = zip(places[:k].tolist(), place_distances[:k].tolist(), strict=True)
        assert all(by_row[row] == distance for row, distance in pairs)
        assert limit == by_row[best[-1]]


@given(values=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3), min_size=1), data=st.data())
def test_kth_key_agrees_with_sorting(values: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(values) - 1))
    keys = np.array(values, np.uint64)
    assert top_k.kth_key(keys, k) == sorted(values)[k]
    assert keys.tolist() == values


@given(
    values=st.lists(
        st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0, -1.0]), min_size=1
    )
    | st.lists(st.integers(-(2**24), 2**24), min_size=1),
    data=st.data(),
)
def test_kth_least_agrees_with_sorting(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(values) - 1))
    assert top_k.kth_least(np.array(values, np.float32), k) == sorted(values)[k]


@given(seed=seeds, count=st.sampled_from([0, 1, 2, 300, 1000]), levels=st.sampled_from([2, 10**6]))
def test_order_of_is_a_stable_order(seed: int, count: int, levels: int) -> None:
    """Zeros of both signs are equal."""
    rng = np.random.default_rng(seed)
    costs = rng.integers(-levels, levels, count) * 10.0 ** rng.integers(-40, 30, count)
    numbers, rows = (costs * rng.choice([0, 1, -1], count)).astype("f4"), np.empty(count, np.int32)
    top_k.order_of(numbers, rows)
    assert rows.tolist() == np.argsort(numbers, kind="stable").tolist()
