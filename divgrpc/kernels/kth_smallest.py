"""The k-th least of many numbers, found by counting.

How many are at most a middle is counted, until just so many are as are wanted: no branch is there
to be guessed wrong, and counts are made of vectors, which makes it several times as fast as to part
the numbers around pivots. numpy's partition takes six seconds to compile.
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel
from divgrpc.kernels.vector_sums import bits_of, float_of


@allocating
def kth_least(values, k):
    """Return the element at `k` were `values` float32 sorted, 0 for the least; none is a nan.

    As integers the bits of floats are in the order of the floats, once those of negative ones are
    turned over.
    """
    keys = np.empty(values.shape[0], np.int32)
    for i in range(values.shape[0]):
        keys[i] = _turned(bits_of(values[i]))
    return float_of(_turned(kth_key(keys, k)))


@kernel
def kth_key(keys, k):
    """Return the same of integers."""
    number = keys.dtype.type
    low, high = keys[0], keys[0]
    for i in range(keys.shape[0]):
        low, high = min(low, keys[i]), max(high, keys[i])
    while low < high:
        # What two numbers have alike, and half of what they have not: their sum may be too long.
        middle = number((low & high) + ((low ^ high) >> number(1)))
        inside = 0
        for i in range(keys.shape[0]):
            inside += keys[i] <= middle
        if inside == k + 1:
            return _largest(keys, low, middle)
        if inside > k:
            high = middle
        else:
            low = number(middle + number(1))
    return low


@kernel
def _largest(keys, low, high):
    """Return the largest key that is at most `high`; one is, and is at least `low`."""
    largest = low
    for i in range(keys.shape[0]):
        largest = max(largest, keys[i] if keys[i] <= high else low)
    return largest


@kernel
def _turned(bits):
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))
