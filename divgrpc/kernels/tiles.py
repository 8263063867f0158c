"""Stores codes in tiles, the order in which `divgrpc.kernels.look_ups` reads them.

A tile has the codes of TILE_POINTS consecutive points. Codes of B bits make an array of shape
(ceil(n / TILE_POINTS), 4 * B) uint8. Group g of a code is its bits 4 * g to 4 * g + 3. Byte
16 * g + j of a tile holds group g of point j of the tile in its lower four bits, and group g of
point j + 16 in its upper four bits. The codes after the last point are 0. If a code has several
bits for each margin, the first bits of a code are the signs of all margins, and the last bits are
the lowest bits. So a scan reads a tile from its first byte to its last.

Word w of a code is its bits 64 * w to 64 * w + 63.
"""

import numpy as np

from divgrpc.kernels.jit import kernel
from divgrpc.kernels.look_ups import GROUP_BYTES, TILE_POINTS

# Number of groups in a word, and of bytes of a word in a tile.
_WORD_GROUPS = 16
_WORD_BYTES = _WORD_GROUPS * GROUP_BYTES


@kernel
def put_word(words, w, codes, start):
    """Store word `w` of the codes of points start to start + m - 1.

    `words` (m,) uint64; `codes` (tiles, 4 * B) uint8; `start` must be a multiple of TILE_POINTS.
    Unless they are the last points, m must be a multiple too.
    """
    count, first = words.shape[0], w * _WORD_BYTES
    for tile in range((count + TILE_POINTS - 1) // TILE_POINTS):
        octets = codes[start // TILE_POINTS + tile, first : first + _WORD_BYTES]
        for j in range(GROUP_BYTES):
            i = tile * TILE_POINTS + j
            low = words[i] if i < count else np.uint64(0)
            high = words[i + GROUP_BYTES] if i + GROUP_BYTES < count else np.uint64(0)
            for group in range(_WORD_GROUPS):
                shift = np.uint64(4 * group)
                pair = (low >> shift & np.uint64(15)) | (
                    high >> shift & np.uint64(15)
                ) << np.uint64(4)
                octets[group * GROUP_BYTES + j] = pair


@kernel
def take_word(codes, w, words):
    """Write word `w` of the codes of the first n points into `words` (n,) uint64."""
    for i in range(words.shape[0]):
        octets = codes[i // TILE_POINTS]
        place = w * _WORD_BYTES + i % GROUP_BYTES
        half = np.uint64(i % TILE_POINTS // GROUP_BYTES * 4)
        word = np.uint64(0)
        for group in range(_WORD_GROUPS):
            pair = np.uint64(octets[place + group * GROUP_BYTES])
            word |= (pair >> half & np.uint64(15)) << np.uint64(4 * group)
        words[i] = word
