"""Count sketch: where dimensions are very many, they become few before they are hashed.

Every dimension is added to one of 4,096 sums, or taken off it, by chance (Charikar, Chen &
Farach-Colton 2002; for bags of words Weinberger et al. 2009). Products stay what they were on the
average, and those of unit vectors vary by a standard deviation of at most sqrt(2 / 4,096), .022: a
fraction of what 256 bits leave open. A dense query is projected from 4,096 dimensions then, where
streaming a hyperplane over tens of thousands costs more than all else; stored points, scores and
selection know nothing of it.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc.types import FloatArray, IntArray
from divgrpc.vectors import Rows, SparseRows, joined, release_rows, take

# From so many dimensions on; what embeddings have is hashed as it is.
FROM_DIMS: Final = 8_193
SUMS: Final = 4_096
_TAKEN_AT_ONCE: Final = 256


def dims_after(dims: int) -> int:
    """Return how many columns rows of so many have once they are sketched, or left alone."""
    return SUMS if dims >= FROM_DIMS else dims


@dataclass(frozen=True, slots=True, eq=False)
class CountSketch:
    """Which sum each dimension goes to: `places` (d,) int32, s to be added to sum s, ~s taken off.

    `places` is empty where rows stay as they are; `dims` is how many columns they have afterwards.
    """

    places: npt.NDArray[np.int32]
    dims: int

    @classmethod
    def draw(cls, dims: int, seed: int) -> "CountSketch":
        """Deal dimensions out, as many to each sum, or leave them alone where they are few."""
        if dims_after(dims) == dims:
            return cls(np.empty(0, np.int32), dims)
        rng = np.random.default_rng((seed, 3))
        sums = (rng.permutation(dims) % SUMS).astype(np.int32)
        return cls(np.where(rng.random(dims) < 0.5, sums, ~sums), SUMS)

    def __call__(self, rows: Rows) -> Rows:
        """Return the sketch of rows (n, d): (n, dims), dense or sparse as they are."""
        if not len(self.places):
            return rows
        if isinstance(rows, SparseRows):
            # Columns are renamed, so that what it costs follows the stored numbers, not `d`.
            places = self.places[rows.indices]
            added = places >= 0
            values = np.where(added, rows.values, -rows.values)
            sums = np.where(added, places, ~places)
            shape = (len(rows), self.dims)
            return SparseRows.of(sparse.csr_array((values, sums, rows.indptr), shape=shape))
        return self.of_dense(rows)

    def of_some(self, rows: Rows, numbers: IntArray) -> Rows:
        """Return the sketch of some rows, ascending; few are held as they are at a time."""
        if not len(self.places):
            return take(rows, numbers)
        parts = []
        for start in range(0, max(1, len(numbers)), _TAKEN_AT_ONCE):
            parts.append(self(rows[numbers[start : start + _TAKEN_AT_ONCE]]))
            release_rows(rows)
        return joined(parts)

    def of_dense(self, rows: FloatArray) -> FloatArray:
        """Return the same of dense rows, or of one alone: (..., d) to (..., dims)."""
        return np.ascontiguousarray(rows @ self._matrix, np.float32) if len(self.places) else rows

    @property
    def _matrix(self) -> sparse.csr_array:
        """The same as a matrix (d, dims) with one 1 or -1 in each row."""
        added = self.places >= 0
        sums = np.where(added, self.places, ~self.places)
        values = np.where(added, np.float32(1), np.float32(-1))
        return sparse.csr_array(
            (values, sums, np.arange(len(sums) + 1)), shape=(len(sums), self.dims)
        )
