"""A query's side of hashing: projections, its code, and its projections in four bits."""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.vector_sums import prefetch_row

# Hyperplanes' numbers asked for ahead, in dimensions: those of a sparse query lie anywhere.
_AHEAD = 8


@allocating
def project(queries, row, hyperplanes, projections):
    """Write the projections of one dense query onto every hyperplane into `projections` (B,).

    `queries` (nq, d) and `hyperplanes` (d, B) float32. A sum goes over dimensions, first to last,
    so each bit has one order of summation, whatever else is computed beside it. Zeros are passed
    over, as in a sparse query: they change no sum.
    """
    dims = hyperplanes.shape[0]
    indices, values = np.empty(dims, np.int32), np.empty(dims, np.float32)
    count = 0
    for j in range(dims):
        # Written whether it counts or not: a branch would be guessed wrong where zeros are many.
        indices[count], values[count] = j, queries[row, j]
        count += queries[row, j] != 0
    project_sparse(indices, values, 0, count, hyperplanes, projections)


@kernel
def project_sparse(indices, values, start, stop, hyperplanes, projections):
    """Write the same for a sparse query, stored values start to stop, in their order."""
    projections[:] = np.float32(0)
    i = start
    while i + 4 <= stop:
        for j in range(i + _AHEAD, min(i + _AHEAD + 4, stop)):
            prefetch_row(hyperplanes, indices[j])
        a, b = hyperplanes[indices[i]], hyperplanes[indices[i + 1]]
        c, d = hyperplanes[indices[i + 2]], hyperplanes[indices[i + 3]]
        w, x, y, z = values[i], values[i + 1], values[i + 2], values[i + 3]
        for bit in range(projections.shape[0]):
            projections[bit] = (
                ((projections[bit] + w * a[bit]) + x * b[bit]) + y * c[bit]
            ) + z * d[bit]
        i += 4
    while i < stop:
        plane = hyperplanes[indices[i]]
        for bit in range(projections.shape[0]):
            projections[bit] += values[i] * plane[bit]
        i += 1


@kernel
def embed(queries, feature_map, offset, embedded):
    """Write each query's product with a feature map (d, r) float32, plus `offset` (r,).

    `queries` as in `answering._answer`; `embedded` (nq, r) float32. A row comes to the same
    whatever it is asked with.
    """
    dense, indptr, indices, values = queries
    for row in range(embedded.shape[0]):
        found = embedded[row]
        if indptr.shape[0]:
            project_sparse(indices, values, indptr[row], indptr[row + 1], feature_map, found)
        else:
            project(dense, row, feature_map, found)
        for j in range(found.shape[0]):
            found[j] += offset[j]


@part
def sketch_dense(queries, row, places, sketched):
    """Write the count sketch of one dense query into row 0 of `sketched` (1, m) float32.

    `places` (d,) int32: dimension j is added to the sum places[j], or taken off the sum
    ~places[j] where that is negative; first dimension to last.
    """
    sketched[:] = np.float32(0)
    for j in range(places.shape[0]):
        _add_to_sum(places[j], queries[row, j], sketched)


@part
def sketch_sparse(indices, values, start, stop, places, sketched):
    """Write the same of a sparse query, stored values start to stop, in their order."""
    sketched[:] = np.float32(0)
    for i in range(start, stop):
        _add_to_sum(places[indices[i]], values[i], sketched)


@part
def _add_to_sum(place, value, sketched):
    if place >= 0:
        sketched[0, place] += value
    else:
        sketched[0, ~place] -= value


@kernel
def project_query(queries, query, hashing, sketched, projections):
    """Write the query's margin to every hyperplane; arguments as in `answering._answer`."""
    dense, indptr, indices, values = queries
    hyperplanes, thresholds, places = hashing[0], hashing[1], hashing[4]
    if places.shape[0]:
        if indptr.shape[0]:
            sketch_sparse(indices, values, indptr[query], indptr[query + 1], places, sketched)
        else:
            sketch_dense(dense, query, places, sketched)
        project(sketched, 0, hyperplanes, projections)
    elif indptr.shape[0]:
        start, stop = indptr[query], indptr[query + 1]
        project_sparse(indices, values, start, stop, hyperplanes, projections)
    else:
        project(dense, query, hyperplanes, projections)
    for b in range(thresholds.shape[0]):
        projections[b] -= thresholds[b]


@kernel
def sign_code(projections, code):
    """Write the signs of `projections` (64 W,) into `code` (W,) uint64: bit b % 64 of word b // 64.

    A margin of zero is a set bit.
    """
    for w in range(code.shape[0]):
        word = np.uint64(0)
        for b in range(64):
            if projections[64 * w + b] >= 0:
                word |= np.uint64(1) << np.uint64(b)
        code[w] = word


@kernel
def quantise(projections, planes):
    """Write `projections` (64 G,) in four bits each into `planes` (5, W) uint64.

    A margin becomes round(7 margin / largest), -7 to 7, in two's complement: plane p holds the bit
    of weight 2**p, the fourth one of weight -8. Codes have W words, W / G of them for the same
    margins, each with twice the weight of the one before: planes are repeated for them, and the
    last one holds the logarithms of the weights. Returns (unit, sum): a level times `unit` float32
    is about its margin, and `sum` is that of all levels times all weights.
    """
    largest = np.float32(0)
    for b in range(projections.shape[0]):
        largest = max(largest, abs(projections[b]))
    # Below this the scale would leave the range of float32, and every margin is as good as zero.
    scale = np.float32(7) / largest if largest > np.float32(1e-30) else np.float32(0)
    planes[:] = np.uint64(0)
    total = 0
    for b in range(projections.shape[0]):
        signed = int(np.rint(projections[b] * scale))
        total += signed
        level = signed & 15
        bit = np.uint64(1) << np.uint64(b & 63)
        for p in range(4):
            if (level >> p) & 1:
                planes[p, b >> 6] |= bit
    return largest / np.float32(7), total * _repeat(planes, projections.shape[0] // 64)


@kernel
def quantise_signs(projections, planes):
    """Write the signs of `projections` into `planes`, as levels of 1 and -1; as `quantise` does.

    The unit is the one at which signs have the projections' product with themselves.
    """
    planes[:] = np.uint64(0)
    total, size, square = 0, np.float32(0), np.float32(0)
    for b in range(projections.shape[0]):
        size += abs(projections[b])
        square += projections[b] * projections[b]
        bit = np.uint64(1) << np.uint64(b & 63)
        planes[0, b >> 6] |= bit
        if projections[b] >= 0:
            total += 1
        else:
            total -= 1
            for p in range(1, 4):
                planes[p, b >> 6] |= bit
    total *= _repeat(planes, projections.shape[0] // 64)
    return square / size if size > 0 else np.float32(0), total


@kernel
def _repeat(planes, groups):
    """Repeat the planes of the first words for all others; returns the sum of the weights."""
    words, weights = planes.shape[1], 0
    for w in range(words):
        for p in range(4):
            planes[p, w] = planes[p, w % groups]
        planes[4, w] = np.uint64(w // groups)
    for level in range(words // groups):
        weights += 1 << level
    return weights


@kernel
def key_of(words, row, start, bits):
    """Return bits `start` to `start + bits` of a code as a table's key, first bit lowest.

    `words` (W, n) uint64, word-major; `bits` is 1 to 24.
    """
    low = start & 63
    key = words[start >> 6, row] >> np.uint64(low)
    if low + bits > 64:
        key |= words[(start >> 6) + 1, row] << np.uint64(64 - low)
    return np.int64(key & ((np.uint64(1) << np.uint64(bits)) - np.uint64(1)))


@kernel
def table_keys(words, start, bits, keys):
    """Write every point's key for the table whose bits begin at `start` into `keys` (n,) uint32."""
    for row in range(keys.shape[0]):
        keys[row] = key_of(words, row, start, bits)


@kernel
def fill_table(keys, offsets, rows):
    """Sort points into buckets by counting.

    `keys` (n,) uint32 below the number of buckets; `offsets` (buckets + 1,) int32 gets where each
    bucket begins in `rows` (n,) int32; rows ascend within a bucket.
    """
    offsets[:] = 0
    for row in range(keys.shape[0]):
        offsets[keys[row] + 1] += 1
    for bucket in range(1, offsets.shape[0]):
        offsets[bucket] += offsets[bucket - 1]
    for row in range(keys.shape[0]):
        key = keys[row]
        rows[offsets[key]] = row
        offsets[key] += 1
    # Each entry now says where the next bucket begins: shift back by one.
    for bucket in range(offsets.shape[0] - 1, 0, -1):
        offsets[bucket] = offsets[bucket - 1]
    offsets[0] = 0
