"""Count sketch: reduces very many dimensions to 4,096 before they are hashed.

Each dimension is added to a random one of 4,096 sums, or subtracted from it (Charikar, Chen and
Farach-Colton 2002; for bags of words Weinberger et al. 2009). Products are unbiased. Products of
unit vectors have a standard deviation of at most sqrt(2 / 4,096), .022: a fraction of the error of
256 bits. A dense query is then projected from 4,096 dimensions; reading hyperplanes over tens of
thousands would cost more than the rest of the query. Only hashing uses the sketch: stored points,
scores and selection do not.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc.types import FloatArray, IntArray
from divgrpc.vectors import Rows, SparseRows, concatenate_rows, release_rows, take

# Dimensions from which rows are sketched; embeddings have fewer.
SKETCH_DIMS_MIN: Final = 8_193
# Dimensions of a sketch.
SKETCH_SUMS: Final = 4_096
# Rows copied at a time from mapped arrays.
_ROWS_AT_ONCE: Final = 256


def dims_after(dims: int) -> int:
    """Return the number of hashed dimensions of rows with `dims` columns."""
    return SKETCH_SUMS if dims >= SKETCH_DIMS_MIN else dims


@dataclass(frozen=True, slots=True, eq=False)
class CountSketch:
    """The sum that each dimension goes to.

    places: (d,) int32, s to be added to sum s, ~s to be subtracted from it; empty if rows are not
        sketched.
    dims: number of columns after the sketch.
    """

    places: npt.NDArray[np.int32]
    dims: int

    @classmethod
    def draw(cls, dims: int, seed: int) -> "CountSketch":
        """Draw a sketch with as many dimensions in each sum, or none if dimensions are few."""
        if dims_after(dims) == dims:
            return cls(np.empty(0, np.int32), dims)
        rng = np.random.default_rng((seed, 3))
        sums = (rng.permutation(dims) % SKETCH_SUMS).astype(np.int32)
        return cls(np.where(rng.random(dims) < 0.5, sums, ~sums), SKETCH_SUMS)

    def __call__(self, rows: Rows) -> Rows:
        """Return the sketch of rows (n, d): (n, dims), dense or sparse as they are."""
        if not len(self.places):
            return rows
        if isinstance(rows, SparseRows):
            # Renaming columns costs time in proportion to stored elements, not to `d`.
            sums, signs = self._sums_and_signs(self.places[rows.indices])
            shape = (len(rows), self.dims)
            elements = (rows.values * signs, sums, rows.indptr)
            return SparseRows.of(sparse.csr_array(elements, shape=shape))
        return self.of_dense(rows)

    def of_some(self, rows: Rows, numbers: IntArray) -> Rows:
        """Return the sketch of the rows with some ascending `numbers`, copying few at a time."""
        if not len(self.places):
            return take(rows, numbers)
        parts = []
        for start in range(0, max(1, len(numbers)), _ROWS_AT_ONCE):
            parts.append(self(rows[numbers[start : start + _ROWS_AT_ONCE]]))
            release_rows(rows)
        return concatenate_rows(parts)

    def of_dense(self, rows: FloatArray) -> FloatArray:
        """Return the sketch of dense rows, or of one vector: (..., d) to (..., dims)."""
        return np.ascontiguousarray(rows @ self._matrix, np.float32) if len(self.places) else rows

    @staticmethod
    def _sums_and_signs(places: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], FloatArray]:
        """Return the sums of some places, and 1 or -1 for addition or subtraction."""
        adds = places >= 0
        return np.where(adds, places, ~places), np.where(adds, np.float32(1), np.float32(-1))

    @property
    def _matrix(self) -> sparse.csr_array:
        """The sketch as a matrix (d, dims) with one 1 or -1 in each row."""
        sums, signs = self._sums_and_signs(self.places)
        elements = (signs, sums, np.arange(len(sums) + 1))
        return sparse.csr_array(elements, shape=(len(sums), self.dims))
