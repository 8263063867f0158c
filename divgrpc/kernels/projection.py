"""A query's side of hashing: projections, margins, its code, and its margins in four bits.

Every sum goes over dimensions from first to last, so each projection has one order of summation,
alone or in a batch, dense or sparse.
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.records import Queries
from divgrpc.kernels.vector_sums import prefetch_row

# Rows of the hyperplanes to prefetch: a sparse query reads rows anywhere in memory.
_PREFETCH_DIMS = 8
# Least absolute margin that is quantised: below it 7 / margin leaves the range of float32.
_MARGIN_MIN = np.float32(1e-30)


@allocating
def project(dense, row, hyperplanes, projections):
    """Write the projections of row `row` of `dense` onto all hyperplanes into `projections` (B,).

    `dense` (nq, d) and `hyperplanes` (d, B) float32. Zeros are skipped, as in a sparse query: they
    change no sum.
    """
    dims = hyperplanes.shape[0]
    indices, values = np.empty(dims, np.int32), np.empty(dims, np.float32)
    count = 0
    for j in range(dims):
        # Written unconditionally: with many zeros a branch would be mispredicted.
        indices[count], values[count] = j, dense[row, j]
        count += dense[row, j] != 0
    project_sparse(indices, values, 0, count, hyperplanes, projections)


@kernel
def project_sparse(indices, values, start, stop, hyperplanes, projections):
    """Write the projections of a sparse query, stored elements start to stop, in their order."""
    projections[:] = np.float32(0)
    i = start
    while i + 4 <= stop:
        for j in range(i + _PREFETCH_DIMS, min(i + _PREFETCH_DIMS + 4, stop)):
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
    """Write each query's product with `feature_map` (d, r) float32, plus `offset` (r,) float32.

    `queries`: a plain tuple of the fields of `Queries`; `embedded` (nq, r) float32.
    """
    queries = Queries(*queries)
    indptr = queries.indptr
    for row in range(embedded.shape[0]):
        image = embedded[row]
        if indptr.shape[0]:
            start, stop = indptr[row], indptr[row + 1]
            project_sparse(queries.indices, queries.values, start, stop, feature_map, image)
        else:
            project(queries.dense, row, feature_map, image)
        for j in range(image.shape[0]):
            image[j] += offset[j]


@part
def sketch_dense(dense, row, places, sums):
    """Write the count sketch of row `row` of `dense` into row 0 of `sums` (1, m) float32.

    `places` (d,) int32: dimension j is added to sum places[j], or subtracted from sum ~places[j] if
    that is negative; first dimension to last.
    """
    sums[:] = np.float32(0)
    for j in range(places.shape[0]):
        _add_to_sum(places[j], dense[row, j], sums)


@part
def sketch_sparse(indices, values, start, stop, places, sums):
    """Write the count sketch of a sparse query, stored elements start to stop, in their order."""
    sums[:] = np.float32(0)
    for i in range(start, stop):
        _add_to_sum(places[indices[i]], values[i], sums)


@part
def _add_to_sum(place, value, sums):
    if place >= 0:
        sums[0, place] += value
    else:
        sums[0, ~place] -= value


@kernel
def project_query(queries, query, hashing, sketch_sums, margins):
    """Write the margins (B,) float32 of query number `query`: projections less thresholds.

    `queries`: `Queries`; `hashing`: `Hashing`; `sketch_sums` (1, m) float32 is scratch memory.
    """
    indptr, indices, values = queries.indptr, queries.indices, queries.values
    hyperplanes, thresholds, places = hashing.hyperplanes, hashing.thresholds, hashing.sketch
    if places.shape[0]:
        if indptr.shape[0]:
            sketch_sparse(indices, values, indptr[query], indptr[query + 1], places, sketch_sums)
        else:
            sketch_dense(queries.dense, query, places, sketch_sums)
        project(sketch_sums, 0, hyperplanes, margins)
    elif indptr.shape[0]:
        project_sparse(indices, values, indptr[query], indptr[query + 1], hyperplanes, margins)
    else:
        project(queries.dense, query, hyperplanes, margins)
    for b in range(thresholds.shape[0]):
        margins[b] -= thresholds[b]


@kernel
def sign_code(margins, code):
    """Write the signs of `margins` (64 W,) into `code` (W,) uint64: bit b % 64 of word b // 64.

    A margin of zero sets the bit.
    """
    for w in range(code.shape[0]):
        word = np.uint64(0)
        for b in range(64):
            if margins[64 * w + b] >= 0:
                word |= np.uint64(1) << np.uint64(b)
        code[w] = word


@kernel
def quantise(margins, planes):
    """Write `margins` (64 G,) in four bits each into `planes` (5, W) uint64.

    A level is round(7 * margin / largest), -7 to 7, in two's complement: plane p holds the bit of
    weight 2**p, plane 3 the bit of weight -8. A code has W words, W / G words for the same margins,
    each with twice the weight of the one before: the planes repeat for them, and plane 4 holds the
    base 2 logarithms of the weights. Returns (unit, level_sum): a level times `unit` float32 is
    about its margin, `level_sum` is the sum of all levels times the sum of the weights.
    """
    largest = np.float32(0)
    for b in range(margins.shape[0]):
        largest = max(largest, abs(margins[b]))
    scale = np.float32(7) / largest if largest > _MARGIN_MIN else np.float32(0)
    planes[:] = np.uint64(0)
    total = 0
    for b in range(margins.shape[0]):
        level = int(np.rint(margins[b] * scale))
        total += level
        bits = level & 15
        bit = np.uint64(1) << np.uint64(b & 63)
        for p in range(4):
            if (bits >> p) & 1:
                planes[p, b >> 6] |= bit
    return largest / np.float32(7), total * _repeat_planes(planes, margins.shape[0] // 64)


@kernel
def quantise_signs(margins, planes):
    """Write the signs of `margins` into `planes` as levels of 1 and -1, as `quantise` does.

    The unit is that at which the signs have the margins' product with themselves.
    """
    planes[:] = np.uint64(0)
    total, size, square = 0, np.float32(0), np.float32(0)
    for b in range(margins.shape[0]):
        size += abs(margins[b])
        square += margins[b] * margins[b]
        bit = np.uint64(1) << np.uint64(b & 63)
        planes[0, b >> 6] |= bit
        if margins[b] >= 0:
            total += 1
        else:
            total -= 1
            for p in range(1, 4):
                planes[p, b >> 6] |= bit
    total *= _repeat_planes(planes, margins.shape[0] // 64)
    return square / size if size > 0 else np.float32(0), total


@kernel
def _repeat_planes(planes, groups):
    """Repeat the planes of the first `groups` words for all words; return the weights' sum."""
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
    """Return bits `start` to `start + bits - 1` of a code as a table's key, first bit lowest.

    `words` (W, n) uint64 are codes; `bits` is 1 to 24.
    """
    low = start & 63
    key = words[start >> 6, row] >> np.uint64(low)
    if low + bits > 64:
        key |= words[(start >> 6) + 1, row] << np.uint64(64 - low)
    return np.int64(key & ((np.uint64(1) << np.uint64(bits)) - np.uint64(1)))


@kernel
def table_keys(words, start, bits, keys):
    """Write all points' keys for the table whose bits begin at `start` into `keys` (n,) uint32."""
    for row in range(keys.shape[0]):
        keys[row] = key_of(words, row, start, bits)


@kernel
def fill_table(keys, offsets, rows):
    """Sort points into buckets by counting.

    `keys` (n,) uint32 are below the number of buckets; `offsets` (buckets + 1,) int32 gets the
    start of each bucket in `rows` (n,) int32; rows ascend within a bucket.
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
    # Each entry is now the start of the next bucket: shift them by one.
    for bucket in range(offsets.shape[0] - 1, 0, -1):
        offsets[bucket] = offsets[bucket - 1]
    offsets[0] = 0
