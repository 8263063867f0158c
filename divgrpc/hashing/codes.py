"""Conversion of margins to codes, and the terms with which codes estimate distances.

A code has one odd number, called a level, for each margin. The depth is the number of bits of a
level. A depth of 1 gives the two levels +1 and -1. Depths of 2 and 4 give 4 and 16 levels, evenly
spaced around 0. For the same number of bits in a code, few margins of great depth are more precise
than many margins of depth 1, unless the variances of the margins left out matter.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, read_only
from divgrpc.kernels.encode import CODE_BYTE_TILE_BYTES, put_codes, take_codes
from divgrpc.kernels.look_ups import GROUP_BYTES, TILE_POINTS
from divgrpc.kernels.projection import GROUP_BITS, WORD_BITS
from divgrpc.kernels.tiles import put_word, take_word
from divgrpc.types import FloatArray

# Possible numbers of bits for each margin, in order of preference.
DEPTHS: Final = (4, 2, 1)
# For each depth, the distance between levels that quantises a standard normal variable with the
# smallest error (Max 1960), and the variance of this error, without the part that scaling the code
# corrects.
_STEPS: Final = {2: 0.9957, 4: 0.3352}
_NOISES: Final = {1: math.pi / 2 - 1, 2: 0.1347, 4: 0.0117}
# Number of codes that are copied at once.
_COPIED_CODES: Final = 65_536


def fitting_components(variances: npt.NDArray[np.floating], bits: int) -> int:
    """Return the number of principal components to hash in codes of `bits` bits.

    `variances` (d,) are the variances of the vectors to be coded (points minus their centres) along
    all components, greatest first. If m components are hashed, the dot product of two vectors has
    two errors: the sum of the squared variances of the other components, and the quantisation
    noise, which a rotation distributes evenly over the m components. The depth for which the sum of
    both is smallest gives m.
    """
    # Use float64, because fourth powers of long vectors could overflow float32.
    variances = np.asarray(variances, np.float64)
    error = {}
    for depth in DEPTHS:
        margins = bits // depth
        in_code, rest = variances[:margins].sum(), variances[margins:]
        error[depth] = _NOISES[depth] * in_code**2 / margins + (rest**2).sum()
    return min(len(variances), bits // min(error, key=error.__getitem__))


def levels(margins: FloatArray, depth: int, n_planes: int) -> FloatArray:
    """Return codes (m, B) float32 of odd numbers with 2^depth levels.

    The step between levels is proportional to the length of each row of `margins` (m, B).
    `n_planes` is the number of columns whose hyperplane is not zero.
    """
    if depth == 1:
        return np.copysign(np.float32(1), margins)
    half = 1 << (depth - 1)
    lengths = np.sqrt(np.einsum("ij,ij->i", margins, margins) / n_planes)
    scales = np.zeros_like(lengths)
    np.divide(1 / _STEPS[depth], lengths, out=scales, where=lengths > 0)
    steps = np.floor(margins * scales[:, np.newaxis])
    np.clip(steps, -half, half - 1, out=steps)
    return np.asarray(2 * steps + 1)


def encode(codes: FloatArray, tiles: npt.NDArray[np.uint8], start: int) -> None:
    """Store a block of codes (m, B) as the codes of points start to start + m - 1.

    `tiles` (ceil(n / TILE_POINTS), 4 * bits) uint8 are the codes of all points (`kernels.tiles`).
    The first B bits of a code are the signs of all margins, and the last B bits are their lowest
    bits. At depth 1, `codes` may be the margins themselves. `start` is a multiple of TILE_POINTS;
    so is m, unless the block ends with the last point.
    """
    depth = tiles.shape[1] // (4 * codes.shape[1])
    if depth == 1:
        _put(codes >= 0, tiles, start, 0)
        return
    numbers = ((codes + (2**depth - 1)) / 2).astype(np.uint8)
    for level in range(depth):
        _put((numbers >> (depth - 1 - level)) & 1, tiles, start, level)


def _put(
    bits: npt.NDArray[np.bool_] | npt.NDArray[np.uint8],
    tiles: npt.NDArray[np.uint8],
    start: int,
    level: int,
) -> None:
    """Store bits (m, B) as level `level` of a block of codes."""
    words: npt.NDArray[np.uint64] = np.packbits(bits, axis=1, bitorder="little").view("<u8")
    first = level * words.shape[1]
    for w, column in enumerate(np.ascontiguousarray(words.T)):
        put_word(column, first + w, tiles, start)


def tiles_shape(points: int, bits: int) -> tuple[int, int]:
    """Return the shape of the array that stores codes of `bits` bits for `points` points."""
    return -(-points // TILE_POINTS), bits // GROUP_BITS * GROUP_BYTES


def tiles_of(words: npt.NDArray[np.uint64], margins: int) -> npt.NDArray[np.uint8]:
    """Return codes of `margins` margins, stored as in formats before 7, in tiles.

    Column i of `words` (W, n) uint64 is the code of point i. In these formats the first bits of a
    code were the lowest bits of all margins. The result is as in `encode`.
    """
    tiles = np.empty(tiles_shape(words.shape[1], WORD_BITS * len(words)), np.uint8)
    groups = margins // WORD_BITS
    levels = words.reshape(-1, groups, words.shape[1])[::-1]
    for w, column in enumerate(levels.reshape(words.shape)):
        put_word(column, w, tiles, 0)
    return tiles


def sort_codes(tiles: npt.NDArray[np.uint8], order: npt.NDArray[np.int32]) -> None:
    """Move the code of point order[i] to place i, for all places, word by word."""
    words = np.empty(len(order), np.uint64)
    for w in range(tiles.shape[1] // (WORD_BITS // GROUP_BITS * GROUP_BYTES)):
        take_word(read_only(tiles), w, words)
        put_word(words[order], w, tiles, 0)


def stretches(
    margins: npt.NDArray[np.floating], codes: npt.NDArray[np.floating], span: float
) -> npt.NDArray[np.floating]:
    """Return the factors (m,) that convert dot products with codes to dot products with points.

    For a point with margins h and code c, both (B,), the factor is span * sum(h^2) / sum(h * c).
    With this factor and orthogonal hyperplanes, the estimated dot product of the point with itself
    is exact (Gao and Long 2024, RaBitQ). `span` is the number of dimensions that the hyperplanes
    span, divided by the number of hyperplanes.
    """
    sizes = np.einsum("ij,ij->i", margins, codes)
    squares = np.einsum("ij,ij->i", margins, margins)
    ratios: npt.NDArray[np.floating] = np.zeros_like(sizes)
    np.divide(squares, sizes, out=ratios, where=sizes > 0)
    return span * ratios


def pack_terms(offsets: FloatArray, factors: FloatArray) -> npt.NDArray[np.uint32]:
    """Pack the offset and the factor of each point into a uint32 for `kernels.code_scan.estimate`.

    Both are rounded to the upper 16 bits of a float32, which have eight bits of precision; a code
    has only about four. All arrays are (m,).
    """
    return (_rounded(offsets) & np.uint32(0xFFFF0000)) | (_rounded(factors) >> np.uint32(16))


def _rounded(values: FloatArray) -> npt.NDArray[np.uint32]:
    """Return the bits of `values` as float32, rounded to the upper 16 bits; nan stays nan.

    The caller must ignore the lower 16 bits of the result.
    """
    bits = np.asarray(values, np.float32).view(np.uint32)
    upper = (bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(upper.view(np.float32)), upper, bits)


def copy_codes(
    codes: Array,
    places: npt.NDArray[np.int32],
    new_codes: Array,
    new_places: npt.NDArray[np.int32] | None = None,
) -> None:
    """Copy the codes at `places` (m,) of tiles (t, bytes) to `new_places` (m,) of other tiles.

    new_places: by default the first m places.
    """
    packed = np.empty(
        (min(len(places), _COPIED_CODES), codes.shape[1] // CODE_BYTE_TILE_BYTES), np.uint8
    )
    if new_places is None:
        new_places = np.arange(len(places), dtype=np.int32)
    for start in range(0, len(places), _COPIED_CODES):
        block = places[start : start + _COPIED_CODES]
        packed_block = packed[: len(block)]
        take_codes(read_only(codes), read_only(block), packed_block)
        new_block = new_places[start : start + len(block)]
        put_codes(read_only(packed_block), read_only(new_block), new_codes)
