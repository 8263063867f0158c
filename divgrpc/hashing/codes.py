"""From margins to codes: the bits of each margin, and the terms that turn codes into distances.

A code is a row of odd numbers around zero, one per margin: with a depth of 1 bit the signs +1 and
-1, with 2 or 4 bits 4 or 16 levels in even steps. For a given number of bits, few margins of many
bits are more precise than many margins of one bit, unless the omitted margins matter: that depends
on the variance of the points along their principal components.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.types import FloatArray

# Bits per margin, in the order in which they are preferred.
DEPTHS: Final = (4, 2, 1)
# Distance between the levels that quantise a standard normal variable with the least error (Max
# 1960), by depth; and the variance of that error relative to the variable's, without the part that
# scaling the code corrects.
_STEPS: Final = {2: 0.9957, 4: 0.3352}
_NOISES: Final = {1: math.pi / 2 - 1, 2: 0.1347, 4: 0.0117}


def fitting_components(variances: npt.NDArray[np.floating], bits: int) -> int:
    """Return how many principal components to hash in codes of `bits` bits.

    `variances` (d,) of the coded vectors (points less their centres) along all components,
    strongest first. With m components the product of two vectors has an error of sum v^2 over the
    omitted components, and one of the quantisation noise, which a rotation spreads evenly over m.
    The depth with the least sum of both is taken.
    """
    # Fourth powers of long vectors leave the range of float32.
    variances = np.asarray(variances, np.float64)
    error = {}
    for depth in DEPTHS:
        margins = bits // depth
        in_code, rest = variances[:margins].sum(), variances[margins:]
        error[depth] = _NOISES[depth] * in_code**2 / margins + (rest**2).sum()
    return min(len(variances), bits // min(error, key=error.__getitem__))


def levels(margins: FloatArray, depth: int, n_planes: int) -> FloatArray:
    """Return codes (m, B) float32 as odd numbers of 2^depth levels, with one step size per row.

    `n_planes` is the number of `margins` (m, B) that belong to planes other than zero.
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


def encode(codes: FloatArray, words: npt.NDArray[np.uint64], start: int) -> None:
    """Write a block of codes (m, B) into words[:, start : start + m].

    `words` (W, n) uint64, word-major. The lowest bits of all margins come first, so the last B / 64
    of the W words hold the signs; if a margin has one bit, `codes` may be the margins. Margins come
    from a library's matrix product: a point's code is stored and never computed again, so the order
    of that sum does not matter.
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
    margins: npt.NDArray[np.floating], codes: npt.NDArray[np.floating], span: float
) -> npt.NDArray[np.floating]:
    """Return the factors (m,) that turn products with codes into products with points.

    For a point with margins h and levels c, both (B,), the factor is `span` times sum h^2 / sum
    h c: exact for the point itself if hyperplanes are orthogonal (Gao and Long 2024, RaBitQ).
    `span` is the number of dimensions that the hyperplanes span, divided by their number.
    """
    sizes = np.einsum("ij,ij->i", margins, codes)
    squares = np.einsum("ij,ij->i", margins, margins)
    ratios: npt.NDArray[np.floating] = np.zeros_like(sizes)
    np.divide(squares, sizes, out=ratios, where=sizes > 0)
    return span * ratios


def pack_terms(offsets: FloatArray, factors: FloatArray) -> npt.NDArray[np.uint32]:
    """Return an offset and a factor per word, (m,) uint32, as `kernels.code_scan.estimate` reads.

    Of each the upper half of a float32 is kept, rounded: eight bits of precision, while a code has
    about four.
    """
    return (_rounded(offsets) & np.uint32(0xFFFF0000)) | (_rounded(factors) >> np.uint32(16))


def _rounded(values: FloatArray) -> npt.NDArray[np.uint32]:
    """Return float32 bits whose upper halves are the nearest to `values`; nan stays nan."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    upper = (bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(upper.view(np.float32)), upper, bits)
