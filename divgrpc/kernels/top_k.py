"""The nearest of all, and the nearest in order: less distance, then the lower id."""

import math

import numpy as np

from divgrpc.kernels.jit import allocating, kernel
from divgrpc.kernels.kth_smallest import kth_least
from divgrpc.kernels.sampling import id_of, mix

# Ranges up to this many are sorted by insertion.
_SHORT = 16
# Longer ranges are divided into buckets of so many on average, up to a length at which copies of
# the range would leave the caches.
_BUCKET = 4
_BUCKETED = 1 << 14
# Rows that share one minimum when the nearest of all are taken.
_GROUP = 16


@allocating
def take_nearest(distances, wanted, rows):
    """Write the places of the `wanted` least of `distances` (n,), and of what ties or comes near.

    Their distances move to the front with them. Returns how many there are: few more than
    `wanted`, which is 1 to n.
    """
    n = distances.shape[0]
    groups = (n + _GROUP - 1) // _GROUP
    limit = np.float32(np.inf)
    if wanted < groups:
        # So many groups hold a distance of at most the limit, hence so many rows do.
        least = np.empty(groups, np.float32)
        for group in range(groups):
            smallest = distances[group * _GROUP]
            for row in range(group * _GROUP, min(n, (group + 1) * _GROUP)):
                smallest = min(smallest, distances[row])
            least[group] = smallest
        limit = kth_least(least, wanted - 1)
    found = 0
    for row in range(n):
        if distances[row] <= limit:
            rows[found] = row
            distances[found] = distances[row]
            found += 1
    return found


@kernel
def within(rows, distances, count, max_distance):
    """Keep what is not farther than `max_distance`, in its order; returns how many."""
    kept = 0
    for i in range(count):
        if distances[i] <= max_distance:
            rows[kept] = rows[i]
            distances[kept] = distances[i]
            kept += 1
    return kept


@kernel
def _nearer(distance, row, other_distance, other_row, ids):
    if distance != other_distance:
        return distance < other_distance
    return id_of(ids, row) < id_of(ids, other_row)


@allocating
def sort_nearest(rows, distances, start, stop, wanted, ids):
    """Reorder rows[start:stop] so that its first `wanted` are the nearest, in order.

    The order is total: smaller distance, then smaller id. Distances are divided evenly into
    buckets, and the buckets that hold some of the first `wanted` are sorted.
    """
    count, low, high = stop - start, np.float64(np.inf), -np.float64(np.inf)
    if _SHORT < count <= _BUCKETED:
        for i in range(start, stop):
            low = min(low, np.float64(distances[i]))
            high = max(high, np.float64(distances[i]))
    if not low < high:
        _quicksort(rows, distances, start, stop, wanted, ids)
        return
    ends = np.zeros(count // _BUCKET + 1, np.int32)
    _divide(rows, distances, start, stop, low, high, ends)
    begin = start
    for end in ends[:-1]:
        if begin >= start + wanted:
            break
        if end - begin <= _SHORT:
            _sort_short(rows, distances, begin, end, ids)
        else:
            _quicksort(rows, distances, begin, end, wanted - (begin - start), ids)
        begin = end


@allocating
def _divide(rows, distances, start, stop, low, high, ends):
    """Move rows[start:stop] into buckets of equal width, of the distances `low` to `high` float64.

    `ends` (buckets + 1,) int32 of zeros gets where each bucket ends, and once more the last end.
    """
    count, n_buckets = stop - start, ends.shape[0] - 1
    scale = n_buckets / (high - low)
    buckets = np.empty(count, np.int32)
    for i in range(count):
        place = math.floor((np.float64(distances[start + i]) - low) * scale)
        buckets[i] = min(place, n_buckets - 1)
        ends[buckets[i] + 1] += 1
    ends[0] = start
    for i in range(n_buckets):
        ends[i + 1] += ends[i]
    rows_before, distances_before = rows[start:stop].copy(), distances[start:stop].copy()
    # Begins become ends as the buckets fill.
    for i in range(count):
        place = ends[buckets[i]]
        rows[place], distances[place] = rows_before[i], distances_before[i]
        ends[buckets[i]] += 1


@allocating
def _quicksort(rows, distances, start, stop, wanted, ids):
    """Do the same; the parts that hold none of the first `wanted` are left alone."""
    stack = np.empty((64, 2), np.int64)
    stack[0, 0], stack[0, 1] = start, stop
    depth = 1
    while depth > 0:
        depth -= 1
        low, high = stack[depth, 0], stack[depth, 1]
        while high - low > _SHORT:
            middle = _partition(rows, distances, low, high, ids)
            if middle - low < high - middle - 1:
                # The longer part waits, so that the stack stays as short as a logarithm.
                if middle + 1 < start + wanted:
                    stack[depth, 0], stack[depth, 1] = middle + 1, high
                    depth += 1
                high = middle
            else:
                if low < start + wanted:
                    if middle + 1 >= start + wanted:
                        high = middle
                        continue
                    stack[depth, 0], stack[depth, 1] = low, middle
                    depth += 1
                low = middle + 1
        _sort_short(rows, distances, low, high, ids)


@kernel
def keep_ties(rows, distances, count, wanted):
    """Leave the `wanted` nearest of rows[:count] at the front, and all that tie with the last.

    They keep their order; what is behind them is void. Returns the distance of the last, and how
    many they are; `wanted` is 1 to count.
    """
    limit, kept = kth_least(distances[:count], wanted - 1), 0
    for i in range(count):
        # Written whether it counts or not: a branch would be guessed wrong.
        rows[kept], distances[kept] = rows[i], distances[i]
        kept += distances[i] <= limit
    return limit, kept


@kernel
def keep_nearest(rows, distances, count, wanted, ids):
    """Leave the `wanted` nearest of rows[:count] at the front, in no order; ties go by id.

    What is behind them is void. Returns the distance of the last of them; `wanted` is 1 to count.
    """
    limit, kept = keep_ties(rows, distances, count, wanted)
    if kept > wanted:
        inside = 0
        for i in range(kept):
            if distances[i] < limit:
                _exchange(rows, distances, i, inside)
                inside += 1
        sort_nearest(rows, distances, inside, kept, wanted - inside, ids)
    return limit


@kernel
def take_in_order(rows, distances, count, wanted, ids):
    """Leave the `wanted` nearest of rows[:count] at the front, in order; what is behind is void."""
    if wanted < count:
        keep_nearest(rows, distances, count, wanted, ids)
    sort_nearest(rows, distances, 0, wanted, wanted, ids)


@kernel
def _partition(rows, distances, low, high, ids):
    """Split around the median of three points; returns where that one ends up.

    They come from places that look random: in the order of points that lie by angle or by time
    the first, the middle and the last are all extremes, part after part.
    """
    middle, last = (low + high) // 2, high - 1
    for to in (low, middle, last):
        place = np.int64(mix(np.uint64(low ^ (high << 24) ^ to)) >> np.uint64(32)) % (high - low)
        _exchange(rows, distances, to, low + place)
    for i, j in ((low, middle), (middle, last), (low, middle)):
        if _nearer(distances[j], rows[j], distances[i], rows[i], ids):
            _exchange(rows, distances, i, j)
    _exchange(rows, distances, middle, last)
    pivot_distance, pivot_row = distances[last], rows[last]
    store = low
    for i in range(low, last):
        if _nearer(distances[i], rows[i], pivot_distance, pivot_row, ids):
            _exchange(rows, distances, i, store)
            store += 1
    _exchange(rows, distances, store, last)
    return store


@kernel
def _exchange(rows, distances, i, j):
    rows[i], rows[j] = rows[j], rows[i]
    distances[i], distances[j] = distances[j], distances[i]


@kernel
def _sort_short(rows, distances, low, high, ids):
    for i in range(low + 1, high):
        row, distance = rows[i], distances[i]
        at = i
        while at > low and _nearer(distance, row, distances[at - 1], rows[at - 1], ids):
            rows[at] = rows[at - 1]
            distances[at] = distances[at - 1]
            at -= 1
        rows[at] = row
        distances[at] = distance
