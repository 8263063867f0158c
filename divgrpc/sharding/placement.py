"""The shard of each point."""

from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.types import IntArray

# Unlike the seeds of samples, so that the points of a shard are no sample of their own.
_SEED: Final = 0x5348415244  # "SHARD"
_INCREMENT: Final = np.uint64(0x9E3779B97F4A7C15)
_FACTORS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return a hash of each of `words` (m,), the same as `kernels.top_k.mix`."""
    with np.errstate(over="ignore"):
        words = words + _INCREMENT
        words = (words ^ (words >> np.uint64(30))) * _FACTORS[0]
        words = (words ^ (words >> np.uint64(27))) * _FACTORS[1]
    mixed: npt.NDArray[np.uint64] = words ^ (words >> np.uint64(31))
    return mixed


def priorities(seed: int, ids: IntArray) -> npt.NDArray[np.uint64]:
    """Return the priority (m,) of each id (m,) in a sample; the smallest are taken first."""
    (state,) = mix(np.array([seed], np.uint64))
    return mix(state ^ ids.astype(np.uint64))


def shard_of(ids: IntArray, shards: int) -> IntArray:
    """Return the shard (m,) of each id (m,), from 0 to `shards` - 1.

    Text ids are placed by their hashes (`divgrpc.columns.ids.hash_of`).
    """
    return (priorities(_SEED, ids) % np.uint64(shards)).astype(np.int64)
