"""Merges the replies of shards to one question: checks them, selects candidates, copies vectors.

`read_messages` writes where the columns of each message are: a register (`kernels.registers`) of a
`FindReply`. `join_replies` checks these columns and copies those of one number per point into
`Merge`. `select_candidates` selects among the points of all shards. `gather_points` copies the
vectors of the candidates into the arrays of an index.

A shard may be damaged, so nothing that a reply says is trusted. Whatever the bytes of a reply are,
no kernel reads outside of it.
"""

import numpy as np

from divgrpc.kernels.code_scan import settle_ties
from divgrpc.kernels.jit import kernel
from divgrpc.kernels.records import FindReply, Merge, Message, Plan, PointRows
from divgrpc.kernels.registers import record_at
from divgrpc.kernels.top_k import keep_nearest, keep_sample, kth_key, sort_nearest

# How candidates are selected, and so what replies have.
BY_DISTANCE = 0  # the nearest points
BY_ESTIMATE = 1  # the nearest of the points with the smallest codes; ties go to the smaller id
BY_SCORE = 2  # the same, but codes are integers, and the plan says which of the tied points to take
BY_PROBE = 3  # the nearest of the points of the first probes; replies have tags
# The same, but a reply has tags only if its shard has probed more buckets than it was asked for:
# the search probes all of those. A reply without tags may have a sample of the points.
BY_EXTRA_PROBE = 4

# What may be wrong with a reply.
NO_FAULT = 0
BAD_NUMBERS = 1
BAD_COUNT = 2
BAD_COLUMNS = 3
BAD_VALUES = 4
BAD_NEAREST = 5
BAD_VECTORS = 6
NO_ROOM = 7

# Places of what is known of each reply.
ROWS_ASKED = 0
VECTORS_ASKED = 1
POINTS = 2
TOTAL = 3
SCORED = 4
PROBED = 5
KEPT = 6
IS_SHORT = 7  # 1 if a further point of the shard, which it did not send, may be kept too
SIZES = 8

_INFINITY_BITS = np.int32(0x7F800000)
_SIZE_MAX = 2**31
# float32 represents all integers up to this number exactly.
_WHOLE_MAX = np.float32(1 << 24)


@kernel
def read_messages(messages, columns, head, replies):
    """Write where the columns of messages are; return the number of a malformed one, or -1.

    messages: (S, 3) int64, registers of `Message`: an address, which is a multiple of 8, the number
        of words, and 1.
    columns: (c, 2) int64, for each column the bytes of an item and the number of dimensions.
    head: int64, what the first word must be.
    replies: (S, C, 3) int64, to be written: the address, the rows and the columns of each array.
    """
    for number in range(messages.shape[0]):
        message = record_at(messages[number : number + 1], Message)
        if not _read_message(messages[number, 0], message.words, columns, head, replies[number]):
            return number
    return -1


@kernel
def _read_message(address, words, columns, head, places):
    """Write where the columns of a message are; return whether it is as long as they take."""
    size, start, at = 8 * words.shape[0], 8, 1
    for column in range(columns.shape[0]):
        start += 8 * columns[column, 1]
    if start > size or size > _SIZE_MAX or words[0] != head:
        return False
    for column in range(columns.shape[0]):
        item_bytes, rows, width = columns[column, 0], words[at], np.int64(1)
        if columns[column, 1] == 2:
            width = words[at + 1]
        at += columns[column, 1]
        # The product of two numbers up to the size does not overflow.
        if rows < 0 or width < 0 or rows > size or width > size:
            return False
        if rows * width > (size - start) // item_bytes:
            return False
        places[column, 0], places[column, 1], places[column, 2] = address + start, rows, width
        start += (rows * width * item_bytes + 7) // 8 * 8
    return start == size


@kernel
def join_replies(replies, merge, rule, dims, is_sparse, has_inverse_lengths, sizes):
    """Check replies, and write their points into `Merge`.

    replies: (S, C, 3) int64, registers of `FindReply`.
    merge: the register of a `Merge`.
    rule: BY_DISTANCE to BY_EXTRA_PROBE.
    dims, is_sparse, has_inverse_lengths: what the vectors of the points must have.
    sizes: (S, SIZES) int64; ROWS_ASKED and VECTORS_ASKED are read, POINTS to PROBED are written.

    Returns the number of points and NO_FAULT, or the number of a faulty reply and its fault, or the
    number of points and NO_ROOM if `Merge` is too small.
    """
    merge, points, start = record_at(merge, Merge), 0, 0
    for number in range(replies.shape[0]):
        points += record_at(replies[number], FindReply).ids.shape[0]
    if points > merge.ids.shape[0]:
        return points, NO_ROOM
    for number in range(replies.shape[0]):
        reply = record_at(replies[number], FindReply)
        fault = _check_counts(reply, rule, sizes[number])
        if fault == NO_FAULT and not _is_orderly(reply, rule, sizes[number, PROBED]):
            fault = BAD_VALUES
        if fault == NO_FAULT and not _place_vectors(reply, number, start, merge):
            fault = BAD_NEAREST
        vectors = reply.nearest.shape[0]
        if fault == NO_FAULT and not _fits(reply, vectors, dims, is_sparse, has_inverse_lengths):
            fault = BAD_VECTORS
        if fault != NO_FAULT:
            return number, fault
        for i in range(reply.ids.shape[0]):
            merge.ids[start + i], merge.distances[start + i] = reply.ids[i], reply.distances[i]
        for i in range(reply.codes.shape[0]):
            merge.codes[start + i] = reply.codes[i]
        tags = reply.tags.shape[0]
        for i in range(reply.ids.shape[0]):
            merge.tags[start + i] = reply.tags[i] if tags else 0
        start += reply.ids.shape[0]
    return points, NO_FAULT


@kernel
def _check_counts(reply, rule, sizes):
    """Check the number of points of a reply, and write what it says into `sizes` (SIZES,)."""
    count, numbers = reply.ids.shape[0], reply.numbers
    if numbers.shape[0] != 3:
        return BAD_NUMBERS
    for i in range(3):
        if not 0 <= numbers[i] < _SIZE_MAX:
            return BAD_NUMBERS
    sizes[POINTS] = count
    sizes[TOTAL], sizes[SCORED], sizes[PROBED] = numbers[0], numbers[1], numbers[2]
    by_probe, most = rule in (BY_PROBE, BY_EXTRA_PROBE), sizes[TOTAL]
    # A reply of tables is limited only if it has no tags, and no number stands for no limit.
    if not (by_probe and (reply.tags.shape[0] or not sizes[ROWS_ASKED])):
        most = min(most, sizes[ROWS_ASKED])
    if count != most or reply.nearest.shape[0] != min(count, sizes[VECTORS_ASKED]):
        return BAD_COUNT
    codes = count if rule in (BY_ESTIMATE, BY_SCORE) else 0
    tags = count if rule == BY_PROBE or (by_probe and reply.tags.shape[0]) else 0
    lengths = reply.distances.shape[0], reply.codes.shape[0], reply.tags.shape[0]
    return NO_FAULT if lengths == (count, codes, tags) else BAD_COLUMNS


@kernel
def _is_finite(value):
    return (np.float32(value).view(np.int32) & _INFINITY_BITS) != _INFINITY_BITS


@kernel
def _is_orderly(reply, rule, n_probes):
    """Return whether ids, distances, codes and tags are possible, and tags ascend."""
    is_possible = True
    for i in range(reply.ids.shape[0]):
        is_possible &= reply.ids[i] >= 0 and _is_finite(reply.distances[i])
    for i in range(reply.codes.shape[0]):
        code = reply.codes[i]
        is_possible &= _is_finite(code)
        if rule == BY_SCORE:
            # Converting other numbers to int32 is undefined.
            whole = np.int32(code if abs(code) <= _WHOLE_MAX else np.float32(0.5))
            is_possible &= np.float32(whole) == code
    before = np.int32(0)
    for i in range(reply.tags.shape[0]):
        is_possible &= before <= reply.tags[i] < n_probes
        before = reply.tags[i]
    return is_possible


@kernel
def _place_vectors(reply, number, start, merge):
    """Write the owner of each point and the place of its vector; return whether places are right.

    They are if they are places of points, none of them twice.
    """
    count, owners, vectors = reply.ids.shape[0], merge.owners, merge.vectors
    for i in range(start, start + count):
        owners[i], vectors[i] = number, -1
    for i in range(reply.nearest.shape[0]):
        place = reply.nearest[i]
        if place < 0 or place >= count or vectors[start + place] >= 0:
            return False
        vectors[start + place] = i
    return True


@kernel
def _fits(reply, count, dims, is_sparse, has_inverse_lengths):
    """Return whether a reply has `count` vectors, and all that selectors read beside them."""
    inverse_lengths = count if has_inverse_lengths else 0
    if reply.inverse_lengths.shape[0] != inverse_lengths:
        return False
    indptr, values = reply.indptr, reply.values.shape[0]
    if not is_sparse:
        width = dims if count else reply.vectors.shape[1]
        return reply.vectors.shape == (count, width) and not indptr.shape[0] and not values
    if reply.vectors.shape[0] or reply.squares.shape[0] != count or indptr.shape[0] != count + 1:
        return False
    if indptr[0] != 0 or indptr[count] != values or reply.indices.shape[0] != values:
        return False
    ascends = True
    for i in range(count):
        ascends &= indptr[i] <= indptr[i + 1]
    return ascends


@kernel
def find_misfit(replies, counts, dims, is_sparse, has_inverse_lengths):
    """Return the number of a reply that does not have counts[i] vectors, or -1.

    replies: (S, C, 3) int64, registers of `FindReply`. Only their vectors are read.
    counts: (S,) int64.

    The other arguments are as for `join_replies`.
    """
    for number in range(replies.shape[0]):
        reply = record_at(replies[number], FindReply)
        if not _fits(reply, counts[number], dims, is_sparse, has_inverse_lengths):
            return number
    return -1


@kernel
def find_last_probe(merge, plan, size, n_unsent, enough):
    """Return the number of probes after which one index would stop; 2**31 - 1 if it goes on.

    merge: the register of a `Merge` with `size` points. plan: the fields of a `Plan`.
    n_unsent: number of further points of the first `plan.n_probes` buckets, which no reply has.
    enough: as for `buckets.look_up_buckets`.
    """
    tags, plan = record_at(merge, Merge).tags[:size], Plan(*plan)
    never = np.int64(2**31 - 1)
    stop = np.int64(max(1, plan.n_probes))
    least = plan.min_points - n_unsent
    if least > size:
        stop = never
    elif least > 0:
        stop = max(stop, np.int64(kth_key(tags, least - 1)) + 1)
    if 0 < enough <= size:
        stop = min(stop, np.int64(kth_key(tags, enough - 1)) + 1)
    return stop


@kernel
def select_candidates(merge, size, plan, rule, stop, limit, most, vectors, sizes, candidates):
    """Select the nearest `most` points, of those that the search may hash.

    merge: the register of a `Merge` with `size` points, as `join_replies` has written it.
    plan: the fields of a `Plan`; `hash_limit` is the maximum number of hashed points.
    rule: BY_DISTANCE to BY_EXTRA_PROBE.
    stop: number of probes of the search; only with BY_PROBE and BY_EXTRA_PROBE.
    limit: maximum number of points of all shards that are kept.
    vectors: number of candidates whose vectors are wanted. Only these are sorted, nearest first.
    sizes: (S, SIZES) int64, as in `join_replies`; KEPT is written, the number of points of a shard
        that are hashed or, with BY_DISTANCE, candidates, and so is IS_SHORT.
    candidates: plain tuple of arrays (m,) to be written: ids int64, distances float32, owners and
        vectors int32, as in `Merge`. They have room for `most` points.

    Returns the number of hashed points, of candidates, of wanted vectors that no reply has, of
    scored points, and of short shards.
    """
    merge, plan = record_at(merge, Merge), Plan(*plan)
    places, keys, n_scored, n_short = merge.places, merge.keys, 0, 0
    count = _hash_points(merge, plan, rule, stop, size)
    end = min(most, count)
    if rule != BY_DISTANCE:
        _count_kept(merge, count, sizes)
    if 0 < end < count:
        keep_nearest(places, keys, count, end, merge.ids)
    if rule == BY_DISTANCE:
        _count_kept(merge, end, sizes)
    vectors = min(vectors, end)
    sort_nearest(places, keys, 0, end, vectors, merge.ids)
    for number in range(sizes.shape[0]):
        n_scored += sizes[number, SCORED]
        points = sizes[number, POINTS]
        is_short = sizes[number, KEPT] == points and points < min(limit, sizes[number, TOTAL])
        sizes[number, IS_SHORT] = is_short
        n_short += is_short
    return count, end, _write_candidates(merge, end, vectors, candidates), n_scored, n_short


@kernel
def _hash_points(merge, plan, rule, stop, size):
    """Write the places and the distances of the points that are hashed; return their number."""
    places, keys = merge.places, merge.keys
    if rule in (BY_PROBE, BY_EXTRA_PROBE):
        count = _take_probes(merge, plan, stop, size)
    else:
        count = size
        for i in range(size):
            places[i] = i
    limit, tie_start = plan.hash_limit, count
    if rule in (BY_ESTIMATE, BY_SCORE) and size > limit:
        for i in range(size):
            keys[i] = merge.codes[i]
        tie_start, count = settle_ties(places, keys, size, rule == BY_ESTIMATE, plan, merge.ids)
    for i in range(count):
        keys[i] = merge.distances[places[i]]
    if rule == BY_SCORE and count > limit:
        sort_nearest(places, keys, tie_start, count, limit - tie_start, merge.ids)
        count = limit
    return count


@kernel
def _count_kept(merge, count, sizes):
    """Write how many of the first `count` selected points each reply has."""
    sizes[:, KEPT] = 0
    for i in range(count):
        sizes[merge.owners[merge.places[i]], KEPT] += 1


@kernel
def _take_probes(merge, plan, stop, size):
    """Write the places of the points of the first `stop` probes, within the limit of the plan."""
    places, tags, limit, count = merge.places, merge.tags, plan.hash_limit, 0
    for i in range(size):
        if tags[i] < stop - 1:
            places[count] = i
            count += 1
    before = count
    for i in range(size):
        if tags[i] == stop - 1:
            places[count] = i
            count += 1
    if limit == 0:
        return count
    # Whole buckets are taken until the limit, and a sample of the last one.
    first = 0 if plan.uniform else before
    return keep_sample(places, first, count, limit - first, merge.ids, plan.seed)


@kernel
def _write_candidates(merge, count, vectors, candidates):
    """Write the selected points; return how many of the first `vectors` have no vector."""
    ids, distances, owners, vector_places = candidates
    n_missing = 0
    for i in range(count):
        place = merge.places[i]
        ids[i], distances[i] = merge.ids[place], merge.keys[i]
        owners[i], vector_places[i] = merge.owners[place], merge.vectors[place]
        n_missing += i < vectors and vector_places[i] < 0
    return n_missing


@kernel
def gather_points(replies, ids, owners, vectors, points):
    """Copy the points of a query; return the place of a point with an impossible value, or -1.

    replies: (R, C, 3) int64, registers of `FindReply`, which `join_replies` or `find_misfit` has
        checked.
    ids: (m,) int64. owners, vectors: (m,) int32, the reply that has the vector of each point, and
        the place of the vector in it.
    points: the register of a `PointRows` with room for the points and their values.
    """
    points, nonzeros = record_at(points, PointRows), 0
    is_sparse = points.indptr.shape[0] > 0
    has_inverse_lengths = points.inverse_lengths.shape[0] > 0
    if is_sparse:
        points.indptr[0] = 0
    for i in range(ids.shape[0]):
        reply, place = record_at(replies[owners[i]], FindReply), vectors[i]
        points.ids[i] = ids[i]
        if is_sparse:
            nonzeros = _copy_sparse(reply, place, points, i, nonzeros)
            if nonzeros < 0:
                return i
        elif not _copy_values(reply.vectors, place, points.vectors, i):
            return i
        if has_inverse_lengths:
            points.inverse_lengths[i] = reply.inverse_lengths[place]
            if not _is_finite(points.inverse_lengths[i]):
                return i
    return -1


@kernel
def _copy_values(source, place, target, row):
    """Copy a row; return whether all values are finite."""
    largest = np.int32(0)
    for column in range(target.shape[1]):
        value = source[place, column]
        target[row, column] = value
        largest = max(largest, np.float32(value).view(np.int32) & _INFINITY_BITS)
    return largest < _INFINITY_BITS


@kernel
def _copy_sparse(reply, place, points, row, nonzeros):
    """Copy a sparse row; return the number of values so far, -1 if a value is impossible."""
    before, dims, is_possible = np.int32(-1), points.vectors.shape[1], True
    for at in range(reply.indptr[place], reply.indptr[place + 1]):
        column, value = reply.indices[at], reply.values[at]
        is_possible &= before < column < dims and _is_finite(value)
        before = column
        points.indices[nonzeros], points.values[nonzeros] = column, value
        nonzeros += 1
    points.indptr[row + 1] = nonzeros
    square = reply.squares[place]
    points.squares[row] = square
    return nonzeros if is_possible and 0 <= square < np.inf else -1
