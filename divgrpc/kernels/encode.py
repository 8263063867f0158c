"""Encodes single points: finds the cell of a point, and computes its code and scan terms.

Build encodes blocks of points with matrix products, whose order of summation is not fixed. These
kernels add in a fixed order, so a point has the same code on every machine, alone or with others.
`divgrpc.builder.encoder` has the formulas.
"""

import math
from typing import NamedTuple

import numpy as np

from divgrpc.kernels.jit import kernel
from divgrpc.kernels.look_ups import GROUP_BYTES, TILE_POINTS
from divgrpc.kernels.projection import GROUP_BITS, project_query
from divgrpc.kernels.records import Float32s, Index, Queries
from divgrpc.kernels.registers import record_at
from divgrpc.kernels.vector_sums import row_dot

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
    """What codes depend on beside the arrays of an `Index`.

    centre: (d,) float32, the centre of the points.
    centre_square: float64, its squared length; used only for sparse points.
    centre_margins: (C, B) float32 inner products of the centres of the cells with the normals of
        the hyperplanes; (0, B) without cells.
    planes: number of hyperplanes that are not zero.
    span: number of dimensions that the hyperplanes span, divided by `planes`.
    product: whether the metric is inner_product.
    """

    centre: Float32s
    centre_square: float
    centre_margins: Float32s
    planes: int
    span: float
    product: bool


@kernel
def encode_rows(index, queries, model, scratch, encoded):
    """Write the cells, scan terms and codes of the rows of `queries`, a plain tuple of `Queries`.

    index: register of an `Index`.
    model: plain tuple of the fields of `Model`.
    scratch: sums (1, m) and margins (B,), both float32.
    encoded: cells (n,) int32, terms (n,) uint32 and codes (n, bits / 8) uint8. Byte i of a code has
        group 2 i in its lower four bits and group 2 i + 1 in its upper four bits.
    """
    index, queries = record_at(index, Index), Queries(*queries)
    centre, centre_square, centre_margins, planes, span, product = model
    sums, margins = scratch
    cells, terms, codes = encoded
    depth = codes.shape[1] * 8 // margins.shape[0]
    centres = index.cells.centres
    for row in range(cells.shape[0]):
        project_query(queries, row, index.hashing, sums, margins)
        offset, cell = 0.0, -1
        if centres.shape[0]:
            cell = nearest_cell(index.cells, margins)
            offset = _centred_square(queries, row, centre, centre_square)
            offset += index.cells.squares[cell]
            for j in range(centres.shape[1]):
                offset -= 2.0 * margins[j] * centres[cell, j]
            offset = max(offset, 0.0)
            for b in range(margins.shape[0]):
                margins[b] -= centre_margins[cell, b]
        elif not product:
            offset = _centred_square(queries, row, centre, centre_square)
        step = _step_of(margins, depth, planes)
        product_sum, square, shift = 0.0, 0.0, 0.0
        for b in range(margins.shape[0]):
            level = _level_of(margins[b], step, depth)
            _put_level(codes[row], b, level, depth, margins.shape[0])
            product_sum += margins[b] * level
            square += margins[b] * margins[b]
            if cell >= 0:
                shift += level * centre_margins[cell, b]
        stretch = span * square / product_sum if product_sum > 0 else 0.0
        cells[row] = cell
        if product:
            terms[row] = pack(np.float32(0), np.float32(stretch))
        else:
            terms[row] = pack(np.float32(offset + 2 * stretch * shift), np.float32(2 * stretch))


@kernel
def nearest_cell(cells, margins):
    """Return the number of the cell whose centre is nearest to a point with `margins` (B,).

    `cells`: `Cells`. Ties go to the lower number.
    """
    width = cells.centres.shape[1]
    point, nearest, least = margins[:width].reshape(1, width), 0, np.float32(np.inf)
    for c in range(cells.centres.shape[0]):
        distance = cells.squares[c] - np.float32(2) * row_dot(cells.centres, c, point, 0)
        if distance < least:
            nearest, least = c, distance
    return nearest


@kernel
def _centred_square(queries, row, centre, centre_square):
    square = 0.0
    if queries.indptr.shape[0]:
        square = centre_square
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
def _level_of(margin, step, depth):
    """Return the level of a margin, an odd number, as float64."""
    if depth == 1:
        return 1.0 if margin >= 0 else -1.0
    half = 1 << (depth - 1)
    floor = math.floor(margin / step) if step > 0 else 0.0
    return 2.0 * min(max(floor, -half), half - 1) + 1.0


@kernel
def _put_level(code, b, level, depth, planes):
    """Store the level of margin `b` in a code whose bytes are 0 where nothing was stored."""
    number = (int(level) + (1 << depth) - 1) >> 1
    for plane in range(depth):
        bit = (number >> (depth - 1 - plane)) & 1
        place = plane * planes + b
        code[place >> 3] = np.uint8(np.int64(code[place >> 3]) | bit << (place & 7))


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
