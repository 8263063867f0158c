"""Relevance in each metric's own direction, from the distances that kernels compare."""

import numpy as np

from divgrpc.kernels.jit import part

COSINE = 0
EUCLIDEAN = 1
INNER_PRODUCT = 2


@part
def relevance_of(distance, metric):
    """Return the relevance, float32: the cosine, the squared distance or the product."""
    if metric == COSINE:
        return np.float32(1) - distance / np.float32(2)
    # Plus zero makes a product of minus zero a plain one.
    return distance if metric == EUCLIDEAN else np.float32(0) - distance
