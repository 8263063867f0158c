"""The paper's queries: what separates one category from the rest, as a direction.

Such a query is no point and is near none, as a concept learned from examples is. The rows it is
learned from come from a pool that holds no indexed point.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.svm import LinearSVC

from divgrpc.types import FloatArray

# LIBLINEAR's own default of 1,000 is not always enough for it to settle.
_ITERATIONS = 10_000


class HyperplaneQueries(NamedTuple):
    """Queries (nq, dims) float32, unit rows, and the category (nq,) that each asks for."""

    queries: FloatArray
    asked: npt.NDArray[np.int64]


def hyperplane_queries(
    pool: FloatArray, categories: npt.NDArray[np.int64], per_category: int, seed: int
) -> HyperplaneQueries:
    """Train one query after another, each on a random half of `pool` (rows, dims).

    A query is the unit normal of a linear support vector machine, one category against the rest;
    its bias is dropped, since it changes no order.
    """
    random = np.random.default_rng(seed)
    unit = pool / np.linalg.norm(pool, axis=1, keepdims=True)
    asked = np.repeat(np.unique(categories), per_category)
    queries = np.empty((len(asked), pool.shape[1]), np.float32)
    for query, category in zip(queries, asked, strict=True):
        half = random.permutation(len(pool))[: len(pool) // 2]
        machine = LinearSVC(dual="auto", max_iter=_ITERATIONS, random_state=0)
        normal = machine.fit(unit[half], categories[half] == category).coef_[0]
        query[:] = normal / np.linalg.norm(normal)
    return HyperplaneQueries(queries, asked)
