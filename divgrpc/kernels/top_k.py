"""Finds the k smallest of distances, integer keys, or seeded priorities.

Points are ordered in two ways. The nearest points have the smallest distances; ties go to the
smaller id. A seeded sample consists of the points with the smallest priorities. A priority depends
only on the seed and the id of a point, so the order of the rows does not change a sample.

The k-th smallest key is found by bisection over values. Each step counts the keys that are at most
a middle value, until the k-th smallest key is determined. Counting needs no branches and compiles
to vector instructions, which makes it several times as fast as partitioning around pivots. numpy's
`partition` would take numba six seconds to compile.
"""

import math

import numpy as np

from divgrpc.kernels.jit import allocating, kernel

# Ranges of up to this many rows are sorted by insertion sort.
_INSERTION_ROWS = 16
# `sort_nearest` divides longer ranges into buckets of this many rows on average.
_BUCKET_ROWS = 4
# Maximum number of rows in a range that is divided into buckets, so that its copy fits into caches.
_BUCKET_RANGE_ROWS_MAX = 1 << 14
# Number of rows in a group of `take_nearest`, which computes the minimum of each group.
_GROUP_ROWS = 16
# float32 represents all integers below this number exactly.
_WHOLE_BELOW = np.float32(1 << 24)


@allocating
def kth_least(values, k):
    """Return the element of `values` (m,) float32 that sorting would put at index `k`, 0 to m - 1.

    No value may be NaN. If all values are integers, as scores are, they are converted to int32,
    because bisection over small integers takes few steps. Otherwise the bits of the floats are read
    as int32, and `_sortable` maps them to integers that sort as the floats do.
    """
    keys, n_whole = np.empty(values.shape[0], np.int32), np.int32(0)
    if _whole_part(values[0]) == values[0]:
        for i in range(values.shape[0]):
            keys[i] = _whole_part(values[i])
            n_whole = np.int32(n_whole + (np.float32(keys[i]) == values[i]))
    if n_whole == values.shape[0]:
        return np.float32(kth_key(keys, k))
    for i in range(values.shape[0]):
        keys[i] = _sortable(np.float32(values[i]).view(np.int32))
    return np.int32(_sortable(kth_key(keys, k))).view(np.float32)


@kernel
def _whole_part(value):
    # Converting a float outside the range of int32 is undefined, so convert 0.5 instead.
    return np.int32(value if abs(value) < _WHOLE_BELOW else np.float32(0.5))


@kernel
def kth_key(keys, k):
    """Return the element of integer `keys` (m,) that sorting would put at index `k`, 0 to m - 1."""
    number = keys.dtype.type
    low, high = keys[0], keys[0]
    for i in range(keys.shape[0]):
        low, high = min(low, keys[i]), max(high, keys[i])
    while low < high:
        # This is the mean of low and high, rounded down. It is not computed from low + high,
        # because this sum could overflow.
        middle = number((low & high) + ((low ^ high) >> number(1)))
        # Count in 32 bits, because most keys have 32 bits. With a 64-bit count, a vector
        # instruction would process half as many keys.
        inside = np.int32(0)
        for i in range(keys.shape[0]):
            inside = np.int32(inside + (keys[i] <= middle))
        if inside == k + 1:
            return _largest_key(keys, low, middle)
        if inside > k:
            high = middle
        else:
            low = number(middle + number(1))
    return low


@kernel
def _largest_key(keys, low, high):
    """Return the largest key up to `high`; such a key must exist and be at least `low`."""
    largest = low
    for i in range(keys.shape[0]):
        largest = max(largest, keys[i] if keys[i] <= high else low)
    return largest


@kernel
def _sortable(bits):
    """Map the int32 bits of a float to an int32 that sorts as the float does, or back."""
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@kernel
def mix(word):
    """Return a hash of a uint64, different for each uint64 (SplitMix64, Steele et al. 2014)."""
    word += np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@kernel
def id_of(ids, row):
    """Return the id of a row; `ids` (n,) int64 is empty if ids are row numbers."""
    return ids[row] if ids.shape[0] else np.int64(row)


@allocating
def keep_sample(rows, start, stop, size, ids, seed):
    """Keep a seeded sample of `size` of rows[start:stop] int32, in order; return its end position.

    Different ids have different priorities, so the sample has exactly `size` rows, or all rows if
    there are fewer.
    """
    if stop - start <= size:
        return stop
    if size == 0:
        return start
    state = mix(np.uint64(seed))
    priorities = np.empty(stop - start, np.uint64)
    for i in range(start, stop):
        priorities[i - start] = mix(state ^ np.uint64(id_of(ids, rows[i])))
    largest = kth_key(priorities, size - 1)
    end = start
    for i in range(start, stop):
        if priorities[i - start] <= largest:
            rows[end] = rows[i]
            end += 1
    return end


@allocating
def take_nearest(distances, k, rows):
    """Write the positions of the `k` smallest of `distances` (n,) float32 into `rows` (n,) int32.

    More than `k` positions may be written: all distances that tie with the k-th smallest are
    included, and some larger distances may be. The distances at these positions are moved to
    the front of `distances`. Returns the number of rows written. `k` is 1 to n.
    """
    n = distances.shape[0]
    groups = (n + _GROUP_ROWS - 1) // _GROUP_ROWS
    limit = np.float32(np.inf)
    if k < groups:
        # `limit` is the k-th smallest minimum of the groups. So the minima of k groups, and at
        # least k rows, are within `limit`.
        minima = np.empty(groups, np.float32)
        for group in range(groups):
            least = distances[group * _GROUP_ROWS]
            for row in range(group * _GROUP_ROWS, min(n, (group + 1) * _GROUP_ROWS)):
                least = min(least, distances[row])
            minima[group] = least
        limit = kth_least(minima, k - 1)
    elif k < n:
        limit = kth_least(distances, k - 1)
    count = 0
    for row in range(n):
        if distances[row] <= limit:
            rows[count] = row
            distances[count] = distances[row]
            count += 1
    return count


@kernel
def keep_within(rows, distances, count, max_distance):
    """Keep those of rows[:count] within `max_distance` float32, in order; return their number."""
    end = 0
    for i in range(count):
        if distances[i] <= max_distance:
            rows[end], distances[end] = rows[i], distances[i]
            end += 1
    return end


@kernel
def _is_nearer(distance, row, other_distance, other_row, ids):
    if distance != other_distance:
        return distance < other_distance
    return id_of(ids, row) < id_of(ids, other_row)


@allocating
def sort_nearest(rows, distances, start, stop, k, ids):
    """Reorder rows[start:stop] and their distances so that the nearest `k` come first, in order.

    Ranges of up to _BUCKET_RANGE_ROWS_MAX rows are divided into buckets of equal ranges of
    distance, and only the buckets that contain the nearest `k` are sorted. Very short and longer
    ranges are sorted without buckets.
    """
    count, low, high = stop - start, np.float64(np.inf), -np.float64(np.inf)
    if _INSERTION_ROWS < count <= _BUCKET_RANGE_ROWS_MAX:
        for i in range(start, stop):
            low = min(low, np.float64(distances[i]))
            high = max(high, np.float64(distances[i]))
    if not low < high:
        _quicksort(rows, distances, start, stop, k, ids)
        return
    ends = np.zeros(count // _BUCKET_ROWS + 1, np.int32)
    _divide(rows, distances, start, stop, low, high, ends)
    begin = start
    for end in ends[:-1]:
        if begin >= start + k:
            break
        if end - begin <= _INSERTION_ROWS:
            _insertion_sort(rows, distances, begin, end, ids)
        else:
            _quicksort(rows, distances, begin, end, k - (begin - start), ids)
        begin = end


@allocating
def _divide(rows, distances, start, stop, low, high, ends):
    """Move rows[start:stop] into buckets of equal ranges of distance from `low` to `high` float64.

    `ends` (buckets + 1,) int32 must hold zeros before the call. The end of each bucket is written
    into `ends`, and the end of the last bucket is written a second time.
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
    # ends[b] is now the start of bucket b. As rows are added, it moves to the end of bucket b.
    for i in range(count):
        place = ends[buckets[i]]
        rows[place], distances[place] = rows_before[i], distances_before[i]
        ends[buckets[i]] += 1


@allocating
def _quicksort(rows, distances, start, stop, k, ids):
    """Do what `sort_nearest` does; partitions that hold none of the first `k` stay unsorted."""
    stack = np.empty((64, 2), np.int64)
    stack[0, 0], stack[0, 1] = start, stop
    depth = 1
    while depth > 0:
        depth -= 1
        low, high = stack[depth, 0], stack[depth, 1]
        while high - low > _INSERTION_ROWS:
            middle = _partition(rows, distances, low, high, ids)
            if middle - low < high - middle - 1:
                # The longer partition waits on the stack, whose depth is therefore at most log2 of
                # the number of rows.
                if middle + 1 < start + k:
                    stack[depth, 0], stack[depth, 1] = middle + 1, high
                    depth += 1
                high = middle
            else:
                if low < start + k:
                    if middle + 1 >= start + k:
                        high = middle
                        continue
                    stack[depth, 0], stack[depth, 1] = low, middle
                    depth += 1
                low = middle + 1
        _insertion_sort(rows, distances, low, high, ids)


@allocating
def order_of(costs, rows):
    """Write the order of ascending `costs` (n,) float32 into `rows` (n,) int32.

    Equal costs keep their order, and none may be nan. This is a radix sort: keys are sorted by
    their bytes, from the lowest to the highest. A key has a cost in its upper half and its row in
    the lower half.
    """
    count = costs.shape[0]
    keys, sorted_keys = np.empty(count, np.uint64), np.empty(count, np.uint64)
    ends = np.zeros((4, 256), np.int32)
    for i in range(count):
        # Adding 0 turns -0.0 into 0.0.
        bits = np.float32(costs[i] + np.float32(0)).view(np.int32)
        # As unsigned integers, these bits sort as the floats do.
        bits ^= (bits >> np.int32(31)) | np.int32(-0x80000000)
        key = np.uint64(np.uint32(bits))
        keys[i] = key << np.uint64(32) | np.uint64(i)
        for digit in range(4):
            ends[digit, key >> np.uint64(8 * digit) & np.uint64(255)] += 1
    for digit in range(4):
        total, shift = np.int32(0), np.uint64(32 + 8 * digit)
        for j in range(256):
            ends[digit, j], total = total, total + ends[digit, j]
        for i in range(count):
            byte = keys[i] >> shift & np.uint64(255)
            sorted_keys[ends[digit, byte]] = keys[i]
            ends[digit, byte] += 1
        keys, sorted_keys = sorted_keys, keys
    for i in range(count):
        rows[i] = np.int32(keys[i] & np.uint64(0xFFFFFFFF))


@kernel
def keep_ties(rows, distances, count, k):
    """Keep the nearest `k` of rows[:count] and all that tie with the k-th nearest, in their order.

    Returns the distance of the k-th nearest and the number of rows kept; entries after them are
    undefined. `k` is 1 to `count`.
    """
    limit, end = kth_least(distances[:count], k - 1), 0
    for i in range(count):
        # Write unconditionally, because a branch would often be mispredicted.
        rows[end], distances[end] = rows[i], distances[i]
        end += distances[i] <= limit
    return limit, end


@kernel
def move_to_front(rows, distances, start, stop, limit):
    """Move rows[start:stop] within `limit` float32 to the front of the range; return their end."""
    end = start
    for i in range(start, stop):
        # Swap unconditionally, because a branch would often be mispredicted.
        row, distance = rows[i], distances[i]
        rows[i], distances[i] = rows[end], distances[end]
        rows[end], distances[end] = row, distance
        end += distance <= limit
    return end


@kernel
def keep_nearest(rows, distances, count, k, ids):
    """Keep exactly the nearest `k` of rows[:count], in any order; ties go to the smaller id.

    Returns the distance of the k-th nearest; entries after the first `k` are undefined. `k` is 1 to
    `count`.
    """
    limit, end = keep_ties(rows, distances, count, k)
    if end > k:
        below = np.nextafter(limit, -np.float32(np.inf))
        tie_start = move_to_front(rows, distances, 0, end, below)
        sort_nearest(rows, distances, tie_start, end, k - tie_start, ids)
    return limit


@kernel
def take_in_order(rows, distances, count, k, ids):
    """Keep exactly the nearest `k` of rows[:count], sorted; entries after them are undefined."""
    if k < count:
        keep_nearest(rows, distances, count, k, ids)
    sort_nearest(rows, distances, 0, k, k, ids)


@kernel
def _partition(rows, distances, low, high, ids):
    """Partition rows[low:high] around the median of three rows; return the median's new position.

    The three rows are pseudo-random, because the first, middle and last rows may be extremes of
    every partition if points are stored in the order of an angle or of time.
    """
    middle, last = (low + high) // 2, high - 1
    for to in (low, middle, last):
        place = np.int64(mix(np.uint64(low ^ (high << 24) ^ to)) >> np.uint64(32)) % (high - low)
        _swap(rows, distances, to, low + place)
    for i, j in ((low, middle), (middle, last), (low, middle)):
        if _is_nearer(distances[j], rows[j], distances[i], rows[i], ids):
            _swap(rows, distances, i, j)
    _swap(rows, distances, middle, last)
    pivot_distance, pivot_row = distances[last], rows[last]
    store = low
    for i in range(low, last):
        if _is_nearer(distances[i], rows[i], pivot_distance, pivot_row, ids):
            _swap(rows, distances, i, store)
            store += 1
    _swap(rows, distances, store, last)
    return store


@kernel
def _swap(rows, distances, i, j):
    rows[i], rows[j] = rows[j], rows[i]
    distances[i], distances[j] = distances[j], distances[i]


@kernel
def _insertion_sort(rows, distances, low, high, ids):
    for i in range(low + 1, high):
        row, distance = rows[i], distances[i]
        at = i
        while at > low and _is_nearer(distance, row, distances[at - 1], rows[at - 1], ids):
            rows[at] = rows[at - 1]
            distances[at] = distances[at - 1]
            at -= 1
        rows[at] = row
        distances[at] = distance
