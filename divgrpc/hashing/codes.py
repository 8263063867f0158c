"""From margins to codes: the bits of each margin, and the terms that turn codes into distances.

A code is a row of odd numbers around zero, one per margin: signs, +1 and -1, of one bit each, or
with a depth of 2 or 4 bits 4 or 16 levels in even steps. As many bits tell more of few margins than
of many, unless what the others would have told is lost: what points hold in how many of their
principal components decides.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.types import FloatArray

# Bits per margin, most first.
DEPTHS: Final = (4, 2, 1)
# Of a normal variable of deviation 1: between levels, where its error is least (Max 1960), and the
# square of that error, of what the code's own length does not tell, over the variable's.
_STEPS: Final = {2: 0.9957, 4: 0.3352}
_NOISES: Final = {1: math.pi / 2 - 1, 2: 0.1347, 4: 0.0117}


def fitting_components(variances: npt.NDArray[np.floating], bits: int) -> int:
    """Return how many principal components to hash in codes of `bits` bits.

    `variances` (d,) along all components, strongest first, of what is coded: the ways from centres
    to points. With m components a product of two ways is off by what the others hold of it, sum
    v^2, and by the noise of the levels, which a rotation spreads evenly over m; the depth with the
    least of both is taken.
    """
    # Squares of squares of far points leave the range of float32.
    variances = np.asarray(variances, np.float64)
    error = {}
    for depth in DEPTHS:
        margins = bits // depth
        held, rest = variances[:margins].sum(), variances[margins:]
        error[depth] = _NOISES[depth] * held**2 / margins + (rest**2).sum()
    return min(len(variances), bits // min(error, key=error.__getitem__))


def levels(margins: FloatArray, depth: int, used: int) -> FloatArray:
    """Return codes (m, B) as odd numbers: 2^depth of them, the same steps for all of a row.

    `used` is how many of the margins (m, B) are not of planes of zeros.
    """
    if depth == 1:
        return np.copysign(np.float32(1), margins)
    half = 1 << (depth - 1)
    lengths = np.sqrt(np.einsum("ij,ij->i", margins, margins) / used)
    scales = np.zeros_like(lengths)
    np.divide(1 / _STEPS[depth], lengths, out=scales, where=lengths > 0)
    steps = np.floor(margins * scales[:, np.newaxis])
    np.clip(steps, -half, half - 1, out=steps)
    return np.asarray(2 * steps + 1)


def encode(codes: FloatArray, words: npt.NDArray[np.uint64], start: int) -> None:
    """Write a block of codes (m, B) into words[:, start : start + m].

    `words` (W, n) uint64, word-major. The lowest bits of all margins come first, so that of W words
    the B / 64 last hold the signs; where those are all the bits there are, `codes` may be the
    margins. They come of one matrix product: a point's code is stored and never computed again, so
    how the product is summed does not matter.
    """
    part = words[:, start : start + len(codes)]
    groups = codes.shape[1] // 64
    depth = len(words) // groups
    if depth == 1:
        part[:] = _packed(codes >= 0)
        return
    numbers = ((codes + (2**depth - 1)) / 2).astype(np.uint8)
    for level in range(depth):
        part[level * groups : (level + 1) * groups] = _packed((numbers >> level) & 1)


def _packed(bits: npt.NDArray[np.bool_] | npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    words: npt.NDArray[np.uint64] = np.packbits(bits, axis=1, bitorder="little").view("<u8")
    return words.T


def stretches(
    margins: npt.NDArray[np.floating], codes: npt.NDArray[np.floating], spanned: float
) -> npt.NDArray[np.floating]:
    """Return how far points lie along their codes, (m,), of `margins` and `codes` (m, B).

    A point is nearly its code, on each of the hyperplanes, times sum h^2 / sum h c of its margins h
    and levels c, and `spanned`: exact for the point itself where hyperplanes are orthogonal
    (Gao & Long 2024, RaBitQ). So a product with the code, times that, estimates one with the point,
    length included. `spanned` is how many dimensions the hyperplanes lie in, over how many they
    are.
    """
    sizes = np.einsum("ij,ij->i", margins, codes)
    squares = np.einsum("ij,ij->i", margins, margins)
    ratios: npt.NDArray[np.floating] = np.zeros_like(sizes)
    np.divide(squares, sizes, out=ratios, where=sizes > 0)
    return spanned * ratios


def pack_terms(offsets: FloatArray, factors: FloatArray) -> npt.NDArray[np.uint32]:
    """Return two terms in one word each, (m,): see `kernels.scanning.estimate`.

    Of either (m,) the upper half of a float32 is kept, rounded: eight bits of precision, where a
    code is right to some four.
    """
    return (_rounded(offsets) & np.uint32(0xFFFF0000)) | (_rounded(factors) >> np.uint32(16))


def _rounded(values: FloatArray) -> npt.NDArray[np.uint32]:
    """Return float32 bits whose upper halves are the nearest to `values`; no number stays none."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(rounded.view(np.float32)), rounded, bits)
