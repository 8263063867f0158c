"""The paper's queries: hyperplanes that separate one category from the rest.

Such a query is a learned direction and is near no point. It is learned from a pool that holds no
indexed point.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from divgrpc.types import FloatArray

# An array, or any sparse matrix of scipy's, which has no types.
Rows: TypeAlias = Any

# LIBLINEAR's own default of 1,000 is not always enough for it to settle.
_ITERATIONS = 10_000


class HyperplaneQueries(NamedTuple):
    """Queries (nq, dims) float32, unit rows, and the category (nq,) that each asks for."""

    queries: FloatArray
    categories: npt.NDArray[np.int64]

    def first_places(self, per_category: int) -> npt.NDArray[np.int64]:
        """Return the places of the first queries of each category."""
        places = (np.flatnonzero(self.categories == item) for item in np.unique(self.categories))
        return np.concatenate([rows[:per_category] for rows in places])

    def first(self, per_category: int) -> "HyperplaneQueries":
        """Return the first queries of each category."""
        places = self.first_places(per_category)
        return HyperplaneQueries(self.queries[places], self.categories[places])


def hyperplane_queries(
    pool: Rows,
    categories: npt.NDArray[np.int64],
    per_category: int,
    seed: int,
    *,
    asked: npt.ArrayLike | None = None,
    penalty: float = 1.0,
    balanced: bool = False,
) -> HyperplaneQueries:
    """Train one query after another, each on a random half of `pool` (rows, dims).

    A query is the unit normal of a linear support vector machine, one category against the rest;
    its bias is dropped, since it changes no order. `asked` names the categories to train for, all
    if None; `penalty` is LIBLINEAR's C; `balanced` lets the category weigh as much as the rest.
    """
    from sklearn.preprocessing import normalize
    from sklearn.svm import LinearSVC

    random = np.random.default_rng(seed)
    unit = normalize(pool)
    targets = np.repeat(np.unique(categories if asked is None else asked), per_category)
    queries = np.empty((len(targets), unit.shape[1]), np.float32)
    machine = LinearSVC(
        C=penalty,
        class_weight="balanced" if balanced else None,
        dual="auto",
        max_iter=_ITERATIONS,
        random_state=0,
    )
    for query, category in zip(queries, targets, strict=True):
        half = random.permutation(unit.shape[0])[: unit.shape[0] // 2]
        normal = machine.fit(unit[half], categories[half] == category).coef_[0]
        query[:] = normal / np.linalg.norm(normal)
    return HyperplaneQueries(queries, targets)
