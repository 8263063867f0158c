"""Encodes points: finds the cell of a point, and computes its code and scan terms.

Build and Upsert use the same kernels. All sums have a fixed order, so a point has the same code on
every machine, alone or with others.

A margin of a point is its inner product with a hyperplane's normal, minus a threshold. With cells,
let q be a query, x a point, and c the centre of the cell of x. Let b be the code of x - c,
multiplied by the point's factor (`divgrpc.hashing.codes.stretches`). Then the products q b and c b
approximate q (x - c) and c (x - c). The squared distance |q - x|^2 equals
|q - c|^2 + |x - c|^2 - 2 (q - c)(x - c), which is about |q - c|^2 + (|x - c|^2 + 2 c b) - 2 q b.
The first scan term of x is the sum in parentheses. The second is the factor by which the inner
product of q and the code is multiplied. The inner product q x equals q c + q (x - c), which is
about q c + q b, so under inner_product the first scan term is 0.
"""

import math
from typing import NamedTuple

import numpy as np

from divgrpc.kernels.jit import kernel
from divgrpc.kernels.look_ups import GROUP_BYTES, TILE_POINTS
from divgrpc.kernels.projection import GROUP_BITS, project_query, project_rows
from divgrpc.kernels.records import Float32s, Hashing, Int64s, Queries
from divgrpc.kernels.vector_sums import row_dot

# Number of rows that are projected together.
ROWS_TOGETHER = 4
# The distance between the levels of a code of two or four bits, as a multiple of the root mean
# square of its margins (`divgrpc.hashing.codes`).
_STEP_OF_TWO_BITS = np.float32(0.9957)
_STEP_OF_FOUR_BITS = np.float32(0.3352)
# Bytes of a tile for each byte of a code: two groups.
CODE_BYTE_TILE_BYTES = 2 * GROUP_BYTES
# Largest finite float32 whose lower 16 bits are 0.
_UPPER_BITS = np.uint32(0xFFFF0000)
_HALF_UNIT = np.uint32(0x8000)


class Model(NamedTuple):
    """What codes depend on beside the hyperplanes; C cells, T coarse cells, B margins.

    centre: (d,) float32, the centre of the points.
    centre_square: float64, its squared length; used only for sparse points.
    planes: number of hyperplanes that are not zero.
    span: number of dimensions that the hyperplanes span, divided by `planes`.
    product: whether the metric is inner_product.
    weights, squares, centre_margins: (C, w), (C,) and (C, B) float32, the centres of the cells as
        combinations of the first w hyperplane normals, their squared lengths, and their inner
        products with the normals. (0, w), (0,) and (0, B) without cells.
    coarse, starts, centres: the partition (`divgrpc.hashing.partition`) with a column for each
        centre: (w, T) float32, (T + 1,) int64 and (w, C) float32. T and C are 0 here in indexes of
        earlier versions.
    coarse_halves, halves: (T,) and (C,) float32, half the squared lengths of `coarse` and
        `centres` (`half_squares`).
    """

    centre: Float32s
    centre_square: float
    planes: int
    span: float
    product: bool
    weights: Float32s
    squares: Float32s
    centre_margins: Float32s
    coarse: Float32s
    starts: Int64s
    centres: Float32s
    coarse_halves: Float32s
    halves: Float32s


@kernel
def encode_rows(hashing, model, queries, scratch, encoded):
    """Write the cells, scan terms and codes of the rows of `queries`.

    hashing, model, queries: plain tuples of the fields of `Hashing`, `Model` and `Queries`.
    scratch: sums (1, m), margins (ROWS_TOGETHER, B), gains (g,) and levels (B,), all float32; g is
        T or the maximum number of cells of a coarse cell.
    encoded: cells (n,) int32, terms (n,) uint32 and codes (n, bits / 8) uint8. Byte i of a code has
        group 2 i in its lower four bits and group 2 i + 1 in its upper four bits.
    """
    hashing, model, queries = Hashing(*hashing), Model(*model), Queries(*queries)
    sums, margins, gains, levels = scratch
    cells, terms, codes = encoded
    at_once = not queries.indptr.shape[0] and not hashing.sketch.shape[0]
    for first in range(0, cells.shape[0], ROWS_TOGETHER):
        count = min(ROWS_TOGETHER, cells.shape[0] - first)
        if at_once and count == ROWS_TOGETHER:
            project_rows(queries.dense, first, hashing, margins)
        else:
            for i in range(count):
                project_query(queries, first + i, hashing, sums, margins[i])
        for i in range(count):
            row = first + i
            cells[row] = _cell_of(model, margins[i], gains)
            terms[row] = _encode(model, queries, row, cells[row], margins[i], levels, codes[row])


@kernel
def _encode(model, queries, row, cell, margins, levels, code):
    """Write the code of a row of `queries`, and return its scan terms.

    `margins` (B,) are those of the row; they and `levels` (B,) are overwritten.
    """
    depth, offset = code.shape[0] * 8 // margins.shape[0], 0.0
    if cell >= 0:
        offset = _centred_square(model, queries, row) + model.squares[cell]
        for j in range(model.weights.shape[1]):
            offset -= 2.0 * margins[j] * model.weights[cell, j]
        offset = max(offset, 0.0)
        for b in range(margins.shape[0]):
            margins[b] -= model.centre_margins[cell, b]
    elif not model.product:
        offset = _centred_square(model, queries, row)
    _put_levels(margins, _step_of(margins, depth, model.planes), depth, levels)
    _put_code(levels, depth, code)
    product_sum, square, shift = 0.0, 0.0, 0.0
    for b in range(margins.shape[0]):
        level = np.float64(levels[b])
        product_sum += margins[b] * level
        square += margins[b] * margins[b]
        if cell >= 0:
            shift += level * model.centre_margins[cell, b]
    stretch = model.span * square / product_sum if product_sum > 0 else 0.0
    if model.product:
        return pack(np.float32(0), np.float32(stretch))
    return pack(np.float32(offset + 2 * stretch * shift), np.float32(2 * stretch))


@kernel
def _cell_of(model, margins, gains):
    """Return the cell of a point with `margins` (B,), -1 without cells.

    It is the nearest of the cells in the three nearest coarse cells, or in an index of an earlier
    version the nearest of all.
    """
    if not model.weights.shape[0]:
        return -1
    width = model.weights.shape[1]
    if not model.halves.shape[0]:
        return nearest_cell(model.weights, model.squares, margins[:width].reshape(1, width))
    n_coarse = model.coarse_halves.shape[0]
    _put_gains(margins, model.coarse, 0, n_coarse, model.coarse_halves, gains)
    infinity = np.float32(np.inf)
    first, second, third = 0, -1, -1
    a, b, c = -infinity, -infinity, -infinity
    for t in range(n_coarse):
        gain = gains[t]
        if gain > a:
            first, second, third, a, b, c = t, first, second, gain, a, b
        elif gain > b:
            second, third, b, c = t, second, gain, b
        elif gain > c:
            third, c = t, gain
    nearest, most = 0, -infinity
    for top in (first, second, third):
        if top < 0:
            continue
        start, stop = model.starts[top], model.starts[top + 1]
        _put_gains(margins, model.centres, start, stop, model.halves, gains)
        for cell in range(start, stop):
            gain = gains[cell - start]
            # Ties go to the lower number.
            if gain > most or (gain == most and cell < nearest):
                nearest, most = cell, gain
    return nearest


@kernel
def _put_gains(margins, columns, start, stop, halves, gains):
    """Write the gains (`kernels.kmeans`) of centres start to stop - 1 into `gains`.

    `columns` (w, c) float32 has a column for each centre, and `halves` (c,) half of its squared
    length. The products with the first w of `margins` are added in ascending order.
    """
    part = gains[: stop - start]
    part[:] = np.float32(0)
    j, width = 0, columns.shape[0]
    while j + 4 <= width:
        w, x, y, z = margins[j], margins[j + 1], margins[j + 2], margins[j + 3]
        p, q = columns[j, start:stop], columns[j + 1, start:stop]
        r, s = columns[j + 2, start:stop], columns[j + 3, start:stop]
        for i in range(part.shape[0]):
            part[i] = (((part[i] + w * p[i]) + x * q[i]) + y * r[i]) + z * s[i]
        j += 4
    while j < width:
        p = columns[j, start:stop]
        for i in range(part.shape[0]):
            part[i] += margins[j] * p[i]
        j += 1
    for i in range(part.shape[0]):
        part[i] -= halves[start + i]


@kernel
def nearest_cell(weights, squares, point):
    """Return the number of the cell whose centre is nearest to a point.

    weights, squares: as in `Model`.
    point: (1, w) float32, the first w margins of the point.

    Ties go to the lower number.
    """
    nearest, least = 0, np.float32(np.inf)
    for c in range(weights.shape[0]):
        distance = squares[c] - np.float32(2) * row_dot(weights, c, point, 0)
        if distance < least:
            nearest, least = c, distance
    return nearest


@kernel
def half_squares(centres, halves):
    """Write half the squared length of each of `centres` (c, w) into `halves` (c,) float32."""
    for c in range(centres.shape[0]):
        halves[c] = row_dot(centres, c, centres, c) / np.float32(2)


@kernel
def _centred_square(model, queries, row):
    """Return the squared distance of a row from the centre of the points, float64."""
    centre, square = model.centre, 0.0
    if queries.indptr.shape[0]:
        square = model.centre_square
        for i in range(queries.indptr[row], queries.indptr[row + 1]):
            value = np.float64(queries.values[i])
            square += value * (value - 2.0 * np.float64(centre[queries.indices[i]]))
        return max(square, 0.0)
    vector = queries.dense[row]
    for j in range(vector.shape[0]):
        difference = np.float64(vector[j]) - np.float64(centre[j])
        square += difference * difference
    return square


@kernel
def _step_of(margins, depth, planes):
    """Return the distance between the levels of a code, float32; 0 if all margins are 0."""
    if depth == 1:
        return np.float32(0)
    square = 0.0
    for b in range(margins.shape[0]):
        square += margins[b] * margins[b]
    length = np.float32(math.sqrt(square / planes))
    return (_STEP_OF_TWO_BITS if depth == 2 else _STEP_OF_FOUR_BITS) * length


@kernel
def _put_levels(margins, step, depth, levels):
    """Write the level of each margin, an odd number, into `levels` (B,) float32."""
    if depth == 1:
        for b in range(margins.shape[0]):
            levels[b] = np.float32(1) if margins[b] >= 0 else np.float32(-1)
        return
    half = np.float32(1 << (depth - 1))
    for b in range(margins.shape[0]):
        floor = np.floor(margins[b] / step) if step > 0 else np.float32(0)
        floor = min(max(floor, -half), half - np.float32(1))
        levels[b] = np.float32(2) * floor + np.float32(1)


@kernel
def _put_code(levels, depth, code):
    """Write a code: first the highest bits of all levels, and last the lowest ones."""
    width, most = levels.shape[0] >> 3, (1 << depth) - 1
    for byte in range(width):
        for plane in range(depth):
            bits = 0
            for i in range(8):
                number = (np.int64(levels[8 * byte + i]) + most) >> 1
                bits |= ((number >> (depth - 1 - plane)) & 1) << i
            code[plane * width + byte] = np.uint8(bits)


@kernel
def pack(offset, factor):
    """Pack two scan terms, float32, into a uint32 as `divgrpc.hashing.codes.pack_terms` does."""
    return (_rounded(offset) & _UPPER_BITS) | (_rounded(factor) >> np.uint32(16))


@kernel
def _rounded(value):
    bits = np.float32(value).view(np.uint32)
    upper = np.uint32(bits + _HALF_UNIT) & _UPPER_BITS
    return upper if np.isfinite(np.uint32(upper).view(np.float32)) else bits


@kernel
def put_codes(packed, places, tiles):
    """Store the codes `packed` (m, bits / 8) at `places` (m,) of `tiles` (`kernels.tiles`)."""
    for i in range(places.shape[0]):
        tile, lane = tiles[places[i] // TILE_POINTS], places[i] % TILE_POINTS
        shift = lane // GROUP_BYTES * GROUP_BITS
        for group in range(2 * packed.shape[1]):
            pair = np.int64(packed[i, group >> 1])
            half = (pair >> 4) if group & 1 else (pair & 15)
            at = group * GROUP_BYTES + lane % GROUP_BYTES
            # The other half of the byte belongs to another point, which a query may be reading.
            tile[at] = np.uint8((np.int64(tile[at]) & (240 >> shift)) | (half << shift))


@kernel
def take_codes(tiles, places, packed):
    """Write the codes at `places` (m,) of `tiles` into `packed` (m, bits / 8) uint8."""
    for i in range(places.shape[0]):
        tile, lane = tiles[places[i] // TILE_POINTS], places[i] % TILE_POINTS
        shift = lane // GROUP_BYTES * GROUP_BITS
        for byte in range(packed.shape[1]):
            at = 2 * byte * GROUP_BYTES + lane % GROUP_BYTES
            low = np.int64(tile[at]) >> shift & 15
            high = np.int64(tile[at + GROUP_BYTES]) >> shift & 15
            packed[i, byte] = np.uint8(low | high << 4)
