"""Search through bucket tables: query-directed probing (Lv et al., VLDB 2007).

Theory of operation. A table's key is a run of bits of the code. A probe is a table and a set of
its bits to flip in the query's key; its score is the sum of the squared margins of those bits, so
that cheap probes are the likely ones. The bits of a table are ranked by margin, and a set is a bit
mask over ranks. All tables share one order: score, then mask, then table. So the home buckets, with
nothing flipped, come first, even for a query whose margins are all zero.

The order is generated, not sorted. From a set whose largest rank is r come two others: r moved to
r + 1 (shift), and r + 1 added (expand). Each set has one parent and never comes before it, neither
by score nor by mask, so a heap over all tables, begun with each table's empty set, gives every set
once and in order. A score is summed anew from rank 0 up for each set: were it carried along, its
rounding would depend on the path.
"""

import numpy as np

from divgrpc.kernels.jit import kernel
from divgrpc.kernels.projection import key_of
from divgrpc.kernels.sampling import keep_sample


@kernel
def rank_bits(projections, n_tables, n_bits, ranks, squares):
    """Order each table's bits by margin, smallest first, ties by bit.

    `projections` (B,) float32; `ranks` (T, n_bits) int32 gets bit numbers within the key, `squares`
    (T, n_bits) float32 their squared margins.
    """
    for table in range(n_tables):
        for bit in range(n_bits):
            margin = projections[table * n_bits + bit]
            square = margin * margin
            at = bit
            while at > 0 and squares[table, at - 1] > square:
                squares[table, at] = squares[table, at - 1]
                ranks[table, at] = ranks[table, at - 1]
                at -= 1
            squares[table, at] = square
            ranks[table, at] = bit


@kernel
def bucket(table, key, starts, keys, offsets):
    """Return where a bucket begins and ends among its table's rows; (0, 0) where there is none.

    `starts` (T + 1,) int64 counts buckets before each table. Where `keys` is empty the key is the
    bucket's number, else it is found among keys[starts[table]:starts[table + 1]], ascending.
    `offsets` holds, table after table, one entry per bucket and one more.
    """
    first, last = starts[table], starts[table + 1]
    number = key
    if keys.shape[0]:
        number = np.searchsorted(keys[first:last], np.uint32(key))
        if number == last - first or keys[first + number] != key:
            return 0, 0
    at = first + table + number
    return offsets[at], offsets[at + 1]


@kernel
def _before(i, j, scores, tables, masks):
    if scores[i] != scores[j]:
        return scores[i] < scores[j]
    if masks[i] != masks[j]:
        return masks[i] < masks[j]
    return tables[i] < tables[j]


@kernel
def _swap(i, j, scores, tables, masks, keys):
    scores[i], scores[j] = scores[j], scores[i]
    tables[i], tables[j] = tables[j], tables[i]
    masks[i], masks[j] = masks[j], masks[i]
    keys[i], keys[j] = keys[j], keys[i]


@kernel
def _push(heap, size, table, mask, home, ranks, squares):
    """Add a set of flipped bits to the heap; returns the new size."""
    scores, tables, masks, keys = heap
    score, key = np.float32(0), home
    for rank in range(ranks.shape[1]):
        if (mask >> rank) & 1:
            score += squares[table, rank]
            key ^= np.int64(1) << np.int64(ranks[table, rank])
    scores[size], tables[size], masks[size], keys[size] = score, table, mask, key
    child = size
    while child > 0 and _before(child, (child - 1) // 2, scores, tables, masks):
        _swap(child, (child - 1) // 2, scores, tables, masks, keys)
        child = (child - 1) // 2
    return size + 1


@kernel
def _pop(heap, size):
    """Remove the first of the heap and leave it behind the end; returns the new size."""
    scores, tables, masks, keys = heap
    size -= 1
    _swap(0, size, scores, tables, masks, keys)
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= size:
            return size
        if child + 1 < size and _before(child + 1, child, scores, tables, masks):
            child += 1
        if not _before(child, parent, scores, tables, masks):
            return size
        _swap(child, parent, scores, tables, masks, keys)
        parent = child


@kernel
def find_tables(
    code, projections, tables, n_probes, at_least, limit, uniform, ids, seed, scratch, rows
):
    """Write the distinct points of the probed buckets into `rows`; returns (count, probes).

    `code` (W, 1) uint64 and `projections` (B,) are the query's. `tables` is (starts, keys, offsets,
    entries), entries (T, n) int32. `n_probes` buckets are looked up, and more until `at_least`
    points are found, as far as the heap has room. `limit` 0 means none. With `uniform` all those
    buckets' points are found first and a seeded sample of `limit` stays; else whole buckets are
    taken until `limit` is reached, and of the last one a seeded sample. `scratch` is (ranks,
    squares, home (T,), heap, seen (n,) uint32, epoch (1,) uint32): a point is seen where its entry
    is the epoch.
    """
    starts, keys, offsets, entries = tables
    ranks, squares, home, heap, seen, epoch = scratch
    n_tables, n_bits = ranks.shape
    rank_bits(projections, n_tables, n_bits, ranks, squares)
    _next_epoch(seen, epoch)
    size, count, probes = 0, 0, 0
    for table in range(n_tables):
        home[table] = key_of(code, 0, table * n_bits, n_bits)
        size = _push(heap, size, table, 0, home[table], ranks, squares)
    room = heap[0].shape[0]
    while size > 0 and (probes < n_probes or count < at_least):
        size = _pop(heap, size)
        owner = np.int64(heap[1][size])
        mask, key = heap[2][size], heap[3][size]
        first, last = bucket(owner, key, starts, keys, offsets)
        before = count
        for i in range(first, last):
            row = entries[owner, i]
            if seen[row] != epoch[0]:
                seen[row] = epoch[0]
                rows[count] = row
                count += 1
        probes += 1
        if limit and not uniform and count >= limit:
            return keep_sample(rows, before, count, limit - before, ids, seed), probes
        size = _push_children(heap, size, room, owner, mask, home[owner], ranks, squares)
    if limit:
        count = keep_sample(rows, 0, count, limit, ids, seed)
    return count, probes


@kernel
def _push_children(heap, size, room, table, mask, home, ranks, squares):
    n_bits = ranks.shape[1]
    largest = -1
    while (mask >> (largest + 1)) > 0:
        largest += 1
    if largest + 1 == n_bits or size + 2 > room:
        return size
    following = np.int64(1) << np.int64(largest + 1)
    if largest >= 0:
        moved = mask ^ (np.int64(1) << np.int64(largest)) | following
        size = _push(heap, size, table, moved, home, ranks, squares)
    return _push(heap, size, table, mask | following, home, ranks, squares)


@kernel
def _next_epoch(seen, epoch):
    epoch[0] += np.uint32(1)
    if epoch[0] == 0:
        seen[:] = np.uint32(0)
        epoch[0] = np.uint32(1)
