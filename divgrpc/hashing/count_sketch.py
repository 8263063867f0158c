"""The count sketch reduces many dimensions to 4,096 before points and queries are hashed.

Each dimension is added to, or subtracted from, one of 4,096 sums, chosen at random (Charikar, Chen
and Farach-Colton 2002; for bags of words Weinberger et al. 2009). The dot product of two sketches
is an unbiased estimate of the dot product of the two vectors. For unit vectors, its standard
deviation is at most sqrt(2 / 4,096) = 0.022, a fraction of the error of codes of 256 bits.

Without the sketch, projecting a dense query of tens of thousands of dimensions would take longer
than the rest of the query. The sketch is used for hashing only: stored points, scores and selection
have all dimensions.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc.build_rows import BuildRows, release_rows, take
from divgrpc.types import FloatArray, IntArray
from divgrpc.vectors import Rows, SparseRows, concatenate_rows

# Rows with at least this many dimensions are sketched. Embeddings have fewer dimensions.
SKETCH_DIMS_MIN: Final = 8_193
# Number of dimensions of a sketch.
SKETCH_SUMS: Final = 4_096
# Number of rows that are copied at a time from memory-mapped arrays.
_ROWS_AT_ONCE: Final = 256


def dims_after(dims: int) -> int:
    """Return the number of hashed dimensions of rows with `dims` columns."""
    return SKETCH_SUMS if dims >= SKETCH_DIMS_MIN else dims


@dataclass(frozen=True, slots=True, eq=False)
class CountSketch:
    """A count sketch, given by the sum that each dimension is added to or subtracted from.

    places: (d,) int32. If places[j] is s >= 0, dimension j is added to sum s; if it is ~s < 0,
        dimension j is subtracted from sum s. Empty if rows are not sketched.
    dims: number of dimensions after sketching.
    """

    places: npt.NDArray[np.int32]
    dims: int

    @classmethod
    def draw(cls, dims: int, seed: int) -> "CountSketch":
        """Draw a sketch for `dims` dimensions; below SKETCH_DIMS_MIN, rows stay unchanged.

        The numbers of dimensions of any two sums differ by at most one.
        """
        if dims_after(dims) == dims:
            return cls(np.empty(0, np.int32), dims)
        rng = np.random.default_rng((seed, 3))
        sums = (rng.permutation(dims) % SKETCH_SUMS).astype(np.int32)
        return cls(np.where(rng.random(dims) < 0.5, sums, ~sums), SKETCH_SUMS)

    def __call__(self, rows: Rows) -> Rows:
        """Return the sketch (n, dims) of rows (n, d), dense or sparse as the rows are."""
        if not len(self.places):
            return rows
        if isinstance(rows, SparseRows):
            # Renumber the columns, which takes time in proportion to the stored elements, not to d.
            sums, signs = self._sums_and_signs(self.places[rows.indices])
            shape = (len(rows), self.dims)
            elements = (rows.values * signs, sums, rows.indptr)
            return SparseRows.of(sparse.csr_array(elements, shape=shape))
        return self.of_dense(rows)

    def of_some(self, rows: BuildRows, numbers: IntArray) -> Rows:
        """Return the sketch of the rows with the row numbers `numbers`, copying few rows at a time.

        `numbers` must be ascending.
        """
        if not len(self.places):
            return take(rows, numbers)
        parts = []
        for start in range(0, max(1, len(numbers)), _ROWS_AT_ONCE):
            parts.append(self(rows[numbers[start : start + _ROWS_AT_ONCE]]))
            release_rows(rows)
        return concatenate_rows(parts)

    def of_dense(self, rows: FloatArray) -> FloatArray:
        """Return the sketch (..., dims) of dense rows or of one vector (..., d)."""
        return np.ascontiguousarray(rows @ self._matrix, np.float32) if len(self.places) else rows

    @staticmethod
    def _sums_and_signs(places: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], FloatArray]:
        """Return for each of `places` the number of the sum, and 1 (add) or -1 (subtract)."""
        adds = places >= 0
        return np.where(adds, places, ~places), np.where(adds, np.float32(1), np.float32(-1))

    @property
    def _matrix(self) -> sparse.csr_array:
        """The sketch as a matrix (d, dims) with one 1 or -1 in each row."""
        sums, signs = self._sums_and_signs(self.places)
        elements = (signs, sums, np.arange(len(sums) + 1))
        return sparse.csr_array(elements, shape=(len(sums), self.dims))
