"""Seeded draws that depend on the seed and on ids, never on the order of rows or on a generator.

Every id has a priority per seed; the points with the smallest priorities stay. The same points
stay wherever they are stored, and in whatever company.
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel
from divgrpc.kernels.kth_smallest import kth_key


@kernel
def mix(word):
    """Return a uint64 scrambled one to one (the finaliser of SplitMix64, Steele et al. 2014)."""
    word += np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@kernel
def id_of(ids, row):
    """Return the id of a row; `ids` (n,) int64, or empty where ids are the rows themselves."""
    return ids[row] if ids.shape[0] else np.int64(row)


@allocating
def keep_sample(rows, start, stop, wanted, ids, seed):
    """Keep `wanted` of rows[start:stop], those of smallest priority, in their order.

    Returns the end of what stays. Priorities are one to one with ids, so the number is exact.
    """
    if stop - start <= wanted:
        return stop
    if wanted == 0:
        return start
    state = mix(np.uint64(seed))
    priorities = np.empty(stop - start, np.uint64)
    for i in range(start, stop):
        priorities[i - start] = mix(state ^ np.uint64(id_of(ids, rows[i])))
    largest = kth_key(priorities, wanted - 1)
    end = start
    for i in range(start, stop):
        if priorities[i - start] <= largest:
            rows[end] = rows[i]
            end += 1
    return end
