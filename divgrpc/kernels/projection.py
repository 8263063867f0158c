"""Hashes queries: computes projections, margins, codes, and tables of margins rounded to four bits.

A margin is a projection minus a threshold. Every sum adds dimensions in ascending order, so a query
has the same projections alone or in a batch, dense or sparse.
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.records import Queries
from divgrpc.kernels.vector_sums import prefetch_row

# A row of the hyperplanes is prefetched when the row this many places earlier is read, because a
# sparse query reads rows that are far apart in memory.
_PREFETCH_DIMS = 8
# Number of bits in a word of a code, and in a group that a scan looks up.
WORD_BITS = 64
GROUP_BITS = 4
# Entry of the tables of `quantise` for a sum of 0. The smallest sum is -28, and entries are not
# negative.
ENTRY_ZERO = 28
# If no absolute margin exceeds this, all margins are rounded to 0, because 7 / margin could
# overflow float32.
_MARGIN_MIN = np.float32(1e-30)


@allocating
def project(dense, row, hyperplanes, projections):
    """Write the projections of row `row` of `dense` onto all hyperplanes into `projections` (B,).

    `dense` (nq, d), `hyperplanes` (d, B) and `projections` are float32. Zeros are skipped, as in a
    sparse query, because they change no sum.
    """
    dims = hyperplanes.shape[0]
    indices, values = np.empty(dims, np.int32), np.empty(dims, np.float32)
    count = 0
    for j in range(dims):
        # Write unconditionally, because with many zeros a branch would often be mispredicted.
        indices[count], values[count] = j, dense[row, j]
        count += dense[row, j] != 0
    project_sparse(indices, values, 0, count, hyperplanes, projections)


@kernel
def project_sparse(indices, values, start, stop, hyperplanes, projections):
    """Write the projections of a sparse query, given as elements start to stop - 1.

    Elements are added in their stored order. The other arguments are as for `project`.
    """
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


@part
def _project_row(queries, row, hyperplanes, projections):
    """Write the projections of query `row` onto `hyperplanes` (d, B) into `projections` (B,)."""
    indptr = queries.indptr
    if indptr.shape[0]:
        start, stop = indptr[row], indptr[row + 1]
        project_sparse(queries.indices, queries.values, start, stop, hyperplanes, projections)
    else:
        project(queries.dense, row, hyperplanes, projections)


@kernel
def embed(queries, feature_map, offset, embedded):
    """Write the product of each query and `feature_map`, plus `offset`, into `embedded`.

    `queries` is a plain tuple of the fields of `Queries`. `feature_map` (d, r), `offset` (r,) and
    `embedded` (nq, r) are float32.
    """
    queries = Queries(*queries)
    for row in range(embedded.shape[0]):
        image = embedded[row]
        _project_row(queries, row, feature_map, image)
        for j in range(image.shape[0]):
            image[j] += offset[j]


@part
def sketch(queries, query, places, sums):
    """Write the count sketch of query number `query` of `Queries` into row 0 of `sums` (1, m).

    `places` (d,) int32: if places[j] is not negative, dimension j is added to sum places[j];
    otherwise it is subtracted from sum ~places[j]. Dimensions are added in ascending order, or in
    their stored order if the query is sparse. `sums` is float32.
    """
    indptr = queries.indptr
    sums[:] = np.float32(0)
    if indptr.shape[0]:
        for i in range(indptr[query], indptr[query + 1]):
            _add_to_sum(places[queries.indices[i]], queries.values[i], sums)
    else:
        for j in range(places.shape[0]):
            _add_to_sum(places[j], queries.dense[query, j], sums)


@part
def _add_to_sum(place, value, sums):
    if place >= 0:
        sums[0, place] += value
    else:
        sums[0, ~place] -= value


@kernel
def project_query(queries, query, hashing, sketch_sums, margins):
    """Write the projections of query number `query` minus the thresholds into `margins`.

    `queries`: `Queries`; `hashing`: `Hashing`; `sketch_sums` (1, m) float32 is scratch memory;
    `margins` (B,) float32.
    """
    if hashing.sketch.shape[0]:
        sketch(queries, query, hashing.sketch, sketch_sums)
        project(sketch_sums, 0, hashing.hyperplanes, margins)
    else:
        _project_row(queries, query, hashing.hyperplanes, margins)
    thresholds = hashing.thresholds
    for b in range(thresholds.shape[0]):
        margins[b] -= thresholds[b]


@kernel
def project_rows(dense, first, hashing, margins):
    """Write the margins of rows first to first + 3 of `dense` into `margins` (4, B).

    They have the same bits as those of `project_query`, but the hyperplanes are read once for all
    rows. A product with 0 changes no sum, so zeros need not be skipped. `hashing` has no sketch.
    """
    planes, thresholds = hashing.hyperplanes, hashing.thresholds
    m0, m1, m2, m3 = margins[0], margins[1], margins[2], margins[3]
    margins[:] = np.float32(0)
    j, dims = 0, planes.shape[0]
    while j + 4 <= dims:
        p, q, r, s = planes[j], planes[j + 1], planes[j + 2], planes[j + 3]
        a0, b0, c0, d0 = _four_of(dense, first, j)
        a1, b1, c1, d1 = _four_of(dense, first + 1, j)
        a2, b2, c2, d2 = _four_of(dense, first + 2, j)
        a3, b3, c3, d3 = _four_of(dense, first + 3, j)
        for b in range(m0.shape[0]):
            m0[b] = (((m0[b] + a0 * p[b]) + b0 * q[b]) + c0 * r[b]) + d0 * s[b]
            m1[b] = (((m1[b] + a1 * p[b]) + b1 * q[b]) + c1 * r[b]) + d1 * s[b]
            m2[b] = (((m2[b] + a2 * p[b]) + b2 * q[b]) + c2 * r[b]) + d2 * s[b]
            m3[b] = (((m3[b] + a3 * p[b]) + b3 * q[b]) + c3 * r[b]) + d3 * s[b]
        j += 4
    while j < dims:
        for i in range(4):
            for b in range(m0.shape[0]):
                margins[i, b] += dense[first + i, j] * planes[j, b]
        j += 1
    for i in range(4):
        for b in range(thresholds.shape[0]):
            margins[i, b] -= thresholds[b]


@part
def _four_of(dense, row, j):
    return dense[row, j], dense[row, j + 1], dense[row, j + 2], dense[row, j + 3]


@kernel
def sign_code(margins, code):
    """Write the signs of `margins` (64 * W,) float32 into `code` (W,) uint64.

    Bit b % 64 of word b // 64 is set if margin b is at least 0.
    """
    for w in range(code.shape[0]):
        word = np.uint64(0)
        for b in range(64):
            if margins[64 * w + b] >= 0:
                word |= np.uint64(1) << np.uint64(b)
        code[w] = word


@kernel
def quantise(margins, tables):
    """Round `margins` (4 * G,) float32 to four bits each, and write the tables of a scan.

    The level of a margin is round(7 * margin / largest absolute margin), -7 to 7. Entry e of row g
    of `tables` (G, 16) uint8 is ENTRY_ZERO plus the sum of the levels of those margins 4 * g + b
    for which bit b of e is set.

    Returns (unit, level_sum). The level of a margin times `unit` float32 is approximately the
    margin. `level_sum` is the sum of all levels.
    """
    largest = np.float32(0)
    for b in range(margins.shape[0]):
        largest = max(largest, abs(margins[b]))
    scale = np.float32(7) / largest if largest > _MARGIN_MIN else np.float32(0)
    total = 0
    for group in range(tables.shape[0]):
        table = tables[group]
        table[0] = ENTRY_ZERO
        for bit in range(GROUP_BITS):
            level = int(np.rint(margins[GROUP_BITS * group + bit] * scale))
            total += level
            _add_level(table, bit, level)
    return largest / np.float32(7), total


@kernel
def quantise_signs(margins, tables):
    """Do what `quantise` does with levels of 1 and -1, the signs of the margins.

    The unit is sum(margin**2) / sum(|margin|), so that the dot product of the margins with the
    scaled signs equals the dot product of the margins with themselves.
    """
    total, size, square = 0, np.float32(0), np.float32(0)
    for group in range(tables.shape[0]):
        table = tables[group]
        table[0] = ENTRY_ZERO
        for bit in range(GROUP_BITS):
            margin = margins[GROUP_BITS * group + bit]
            size += abs(margin)
            square += margin * margin
            level = 1 if margin >= 0 else -1
            total += level
            _add_level(table, bit, level)
    return square / size if size > 0 else np.float32(0), total


@part
def _add_level(table, bit, level):
    """Fill the entries of a table whose highest bit is `bit`, from the entries without this bit."""
    first = 1 << bit
    for entry in range(first):
        table[first + entry] = table[entry] + level


@kernel
def key_of(words, row, start, bits):
    """Return bits start to start + bits - 1 of the code of point `row`, the key in a hash table.

    `words` (W, n) uint64 are the codes; `bits` is 1 to 24. Bit `start` is the lowest bit of the
    key.
    """
    low = start & 63
    key = words[start >> 6, row] >> np.uint64(low)
    if low + bits > 64:
        key |= words[(start >> 6) + 1, row] << np.uint64(64 - low)
    return np.int64(key & ((np.uint64(1) << np.uint64(bits)) - np.uint64(1)))


@kernel
def table_keys(words, start, bits, keys):
    """Write `key_of` of every point into `keys` (n,) int32."""
    for row in range(keys.shape[0]):
        keys[row] = key_of(words, row, start, bits)
