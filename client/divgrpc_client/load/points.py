"""The points of an index, by which its results are measured: replies have ids and no vectors."""

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError
from divgrpc.metrics import Labels, Topics, h_score, list_distances, objective
from divgrpc.types import IntArray, Metric
from divgrpc_client.messages.vectors import VectorsLike, as_matrix
from divgrpc_protos.arrays import Csr, Matrix, picked, row_count


class Points:
    """What an index was built of: row i of `vectors` (n, d) has `ids[i]`, or the id i.

    `categories` and `subtopics` (n,) are whole numbers, below 0 for none. Raises
    `InvalidArgumentError`, with the field, where they do not fit.
    """

    def __init__(
        self,
        vectors: VectorsLike,
        *,
        ids: npt.ArrayLike | None = None,
        categories: npt.ArrayLike | None = None,
        subtopics: npt.ArrayLike | None = None,
    ) -> None:
        self.vectors = as_matrix("points", vectors)
        count = row_count(self.vectors)
        labels = Labels.of(categories, subtopics, np.arange(count) if ids is None else ids)
        if len(labels.ids) != count:
            raise InvalidArgumentError("ids", f"ids must be of {count} points")
        self._topics = Topics.of_categories(labels)

    @property
    def dims(self) -> int:
        """Return the dimensions of a point."""
        return self.vectors.cols if isinstance(self.vectors, Csr) else self.vectors.shape[1]

    def check(self, ids: IntArray, categories: IntArray | None = None) -> None:
        """Raise `InvalidArgumentError` for an id and for a category that no point has."""
        self._topics.labels.rows(ids, "points")
        if categories is not None:
            self._topics.numbers(categories)

    def objective(self, query: Matrix, ids: IntArray, diversity: float, metric: Metric) -> float:
        """Return J of one list `ids` (k,), -1 where a place is empty, for `query` (1, d).

        NaN where `divgrpc.metrics.objective` has it: for a short list and under `inner_product`.
        """
        rows = self._topics.labels.rows(ids)
        chosen = _dense(picked(self.vectors, np.maximum(rows, 0)))
        places = np.where(rows >= 0, np.arange(len(rows)), -1)[None]
        distances = list_distances(chosen, _dense(query), places, metric)
        return float(objective(distances, diversity)[0])

    def h(self, ids: IntArray, category: int) -> float:
        """Return h of one list (k,) of who asks for a category."""
        return float(h_score(self._topics.judge(ids[None], np.array([category])))[0])


def _dense(matrix: Matrix) -> npt.NDArray[np.floating]:
    """Return a few rows as an array."""
    if not isinstance(matrix, Csr):
        return np.asarray(matrix, np.float32)
    rows = np.zeros((row_count(matrix), matrix.cols), np.float32)
    rows[np.repeat(np.arange(len(rows)), np.diff(matrix.indptr)), matrix.indices] = matrix.data
    return rows
