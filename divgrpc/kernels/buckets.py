"""Searches hash tables by query-directed probing of buckets (Lv et al., VLDB 2007).

The key of a point in a table is a range of bits of its code. A probe looks up one bucket of one
table. The key of this bucket is the query's key with some bits flipped. The cost of a probe is the
sum of the squared margins of the flipped bits. Probes of low cost are likely to find near points.
The home bucket of a table is the bucket of the query's own key, with no bit flipped.

The bits of each table are ranked by squared margin, smallest first. The flipped bits of a probe are
a mask: bit r of the mask is set if the bit of rank r is flipped. Probes of all tables are made in
one order: by cost, then by mask, then by table. So the home buckets come first, even if all margins
of a query are 0.

A heap generates the probes in this order. A mask whose highest rank is r has two children: one has
r + 1 instead of r (shift), the other has r + 1 in addition (expand). Each mask except the empty one
has exactly one parent, which is a smaller mask of no greater cost. The heap starts with the empty
mask of each table, so it yields every probe once and in order, until the heap is full and children
are dropped. The cost of a mask is summed from rank 0 upwards, so that rounding does not depend on
the path to the mask.
"""

import numpy as np

from divgrpc.kernels.jit import kernel
from divgrpc.kernels.projection import key_of
from divgrpc.kernels.top_k import keep_sample, mix


@kernel
def rank_bits(margins, n_tables, n_bits, ranks, squares):
    """Sort the bits of each table by squared margin, smallest first; ties go to the lower bit.

    `margins` is (B,) float32. The numbers of the bits within the key are written into `ranks` (T,
    n_bits) int32, and the squared margins of these bits into `squares` (T, n_bits) float32.
    """
    for table in range(n_tables):
        for bit in range(n_bits):
            margin = margins[table * n_bits + bit]
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
    """Return the start and end of the bucket of `key` in the table's rows; (0, 0) if none exists.

    `starts`, `keys`, `offsets`: fields of `Tables`.
    """
    first, last = starts[table], starts[table + 1]
    if first == last:
        return 0, 0
    number = key
    if keys.shape[0]:
        number = np.searchsorted(keys[first:last], np.uint32(key))
        if number == last - first or keys[first + number] != key:
            return 0, 0
    at = first + table + number
    return offsets[at], offsets[at + 1]


@kernel
def _comes_before(heap, i, j):
    if heap.costs[i] != heap.costs[j]:
        return heap.costs[i] < heap.costs[j]
    return (heap.masks[i], heap.tables[i]) < (heap.masks[j], heap.tables[j])


@kernel
def _swap(heap, i, j):
    costs, tables, masks, keys = heap.costs, heap.tables, heap.masks, heap.keys
    costs[i], costs[j] = costs[j], costs[i]
    tables[i], tables[j] = tables[j], tables[i]
    masks[i], masks[j] = masks[j], masks[i]
    keys[i], keys[j] = keys[j], keys[i]


@kernel
def _push(heap, size, table, mask, home_key, ranks, squares):
    """Add the probe of `home_key` with the bits of `mask` flipped to the heap; return its size."""
    cost, key = np.float32(0), home_key
    for rank in range(ranks.shape[1]):
        if (mask >> rank) & 1:
            cost += squares[table, rank]
            key ^= np.int64(1) << np.int64(ranks[table, rank])
    heap.costs[size], heap.tables[size], heap.masks[size], heap.keys[size] = cost, table, mask, key
    child = size
    while child > 0 and _comes_before(heap, child, (child - 1) // 2):
        _swap(heap, child, (child - 1) // 2)
        child = (child - 1) // 2
    return size + 1


@kernel
def _pop(heap, size):
    """Move the first entry to the position after the new end of the heap; return the new size."""
    size -= 1
    _swap(heap, 0, size)
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= size:
            return size
        if child + 1 < size and _comes_before(heap, child + 1, child):
            child += 1
        if not _comes_before(heap, child, parent):
            return size
        _swap(heap, child, parent)
        parent = child


@kernel
def find_in_tables(signs, margins, tables, plan, ids, passing, probes, rows):
    """Write the distinct points of the probed buckets into `rows`; return the numbers of both.

    `signs` (W, 1) uint64 and `margins` (B,) float32 belong to the query; `tables`: `Tables`;
    `plan`: `Plan`; `probes`: `ProbeScratch`; `passing`: `Passing`, without whose flags all points
    pass. At first `plan.n_probes` buckets are looked up.
    Further buckets are looked up until `plan.min_points` points are found or the heap is empty.

    If `plan.hash_limit` is 0, all points of these buckets are kept. If it is above 0 and
    `plan.uniform` is set, a seeded sample of all points of these buckets is kept. If it is above 0
    and `plan.uniform` is not set, whole buckets are taken until the limit is reached, and a seeded
    sample of the last bucket is kept.
    """
    limit, seed = plan.hash_limit, plan.seed
    enough = 0 if plan.uniform else limit
    before, count, n_probes = look_up_buckets(
        signs, margins, tables, plan, passing, probes, rows, enough
    )
    if enough and count >= enough:
        return keep_sample(rows, before, count, limit - before, ids, seed), n_probes
    if limit:
        count = keep_sample(rows, 0, count, limit, ids, seed)
    return count, n_probes


@kernel
def look_up_buckets(signs, margins, tables, plan, passing, probes, rows, enough):
    """Write the distinct points of the probed buckets into `rows`, in the order of the probes.

    If `enough` is above 0, no bucket is looked up after so many points are found. Returns the
    number of points before the last probe, the number of points, and the number of probes. Unless
    `probes.tags` is empty, it gets the number of the probe, counted from 0, that found each point.
    The other arguments are as for `find_in_tables`.
    """
    ranks, squares, home_keys = probes.ranks, probes.squares, probes.home_keys
    heap, visits, tags = probes.heap, probes.visits, probes.tags
    flags, n_tables, n_bits = passing.flags, ranks.shape[0], ranks.shape[1]
    rank_bits(margins, n_tables, n_bits, ranks, squares)
    probes.epoch[0] += np.uint32(1)
    if probes.epoch[0] == 0:
        # The epoch has overflowed.
        visits[:] = np.uint32(0)
        probes.epoch[0] = np.uint32(1)
    epoch = probes.epoch[0]
    size, before, count, n_probes = 0, 0, 0, 0
    for t in range(n_tables):
        home_keys[t] = key_of(signs, 0, t * n_bits, n_bits)
        size = _push(heap, size, t, 0, home_keys[t], ranks, squares)
    while size > 0 and (n_probes < plan.n_probes or count < plan.min_points):
        size = _pop(heap, size)
        table = np.int64(heap.tables[size])
        mask, key = heap.masks[size], heap.keys[size]
        first, last = bucket(table, key, tables.starts, tables.keys, tables.offsets)
        before = count
        for i in range(first, last):
            row = tables.rows[table, i]
            if visits[row] != epoch and (flags.shape[0] == 0 or flags[row]):
                visits[row] = epoch
                rows[count] = row
                count += 1
        if passing.heads.shape[0]:
            count = _take_later(tables, passing, table, key, visits, epoch, rows, count)
        if tags.shape[0]:
            for i in range(before, count):
                tags[i] = n_probes
        n_probes += 1
        if enough and count >= enough:
            break
        size = _push_children(heap, size, table, mask, home_keys[table], ranks, squares)
    return before, count, n_probes


@kernel
def _push_children(heap, size, table, mask, home_key, ranks, squares):
    largest = -1
    while (mask >> (largest + 1)) > 0:
        largest += 1
    if largest + 1 == ranks.shape[1] or size + 2 > heap.costs.shape[0]:
        return size
    next_bit = np.int64(1) << np.int64(largest + 1)
    if largest >= 0:
        shift = mask ^ (np.int64(1) << np.int64(largest)) | next_bit
        size = _push(heap, size, table, shift, home_key, ranks, squares)
    return _push(heap, size, table, mask | next_bit, home_key, ranks, squares)


@kernel
def _take_later(tables, passing, table, key, visits, epoch, rows, count):
    """Append the later rows with a key to `rows`, as a bucket's points; return their number."""
    links, flags = tables.links, passing.flags
    first = flags.shape[0] - links.shape[0]
    later = passing.heads[_chain_of(table, key, links, passing.heads)]
    while later >= 0:
        row = first + later
        if links[later, 2 * table] == key and visits[row] != epoch and flags[row]:
            visits[row] = epoch
            rows[count] = row
            count += 1
        later = links[later, 2 * table + 1]
    return count


@kernel
def _chain_of(table, key, links, heads):
    chains = 2 * heads.shape[0] // links.shape[1]
    return table * chains + np.int64(mix(np.uint64(key)) & np.uint64(chains - 1))


@kernel
def add_later(codes, first, n_bits, heads, links):
    """Add rows that were written later to the chains of all hash tables.

    Each table has the same number of chains, and a hash of a row's key decides in which one the row
    is. The newest row of a chain is its head.

    codes: (m, bits / 8) uint8, as `kernels.encode` packs them; of later rows first, first + 1, ...
    n_bits: number of bits of a key.
    heads: (T * C,) int32, the first row of each chain of each table, or -1; C is a power of 2.
    links: (L, 2 * T) int32, as in `Tables`.
    """
    for i in range(codes.shape[0]):
        for table in range(links.shape[1] // 2):
            key = 0
            for bit in range(n_bits):
                place = table * n_bits + bit
                key |= (np.int64(codes[i, place >> 3]) >> (place & 7) & 1) << bit
            chain = _chain_of(table, key, links, heads)
            links[first + i, 2 * table], links[first + i, 2 * table + 1] = key, heads[chain]
            heads[chain] = first + i
