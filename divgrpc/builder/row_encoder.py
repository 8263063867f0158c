"""Encodes rows, for Build and for later writes."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from divgrpc.arrays import Array, read_only
from divgrpc.hashing import hyperplanes
from divgrpc.kernels.encode import ROWS_TOGETHER, Model, encode_rows, half_squares
from divgrpc.kernels.records import Hashing
from divgrpc.kernels.registers import record_of
from divgrpc.kernels.sparse import dense_square
from divgrpc.parameters import BuildParameters
from divgrpc.search.arrays import pack_queries
from divgrpc.vectors import Rows

# Names of the arrays that only encoding reads. Indexes of earlier versions lack them.
CENTRE: Final = "model_centre"
CENTRE_MARGINS: Final = "model_centre_margins"
COARSE: Final = "model_coarse"
COARSE_STARTS: Final = "model_coarse_starts"
CENTRES: Final = "model_centres"


class RowEncoder:
    """Finds the cells of rows, and computes their codes and scan terms. For several threads."""

    def __init__(self, arrays: Mapping[str, Array], parameters: BuildParameters) -> None:
        """Take the arrays of an index or of a build; without `CENTRE`, the centre is 0."""
        hashing = record_of(Hashing, {n: read_only(a) for n, a in arrays.items()}, {})
        # Codes and terms of points would be of many types.
        empty = record_of(Hashing, {}, {})
        self._hashing = tuple(hashing._replace(codes=empty.codes, terms=empty.terms))
        planes = hashing.hyperplanes
        self._sums, self._margins = planes.shape
        self._code_bytes = hyperplanes.code_bits(parameters) // 8
        count = max(1, int(np.count_nonzero(planes.any(axis=0))))
        spanned = hyperplanes.dimensions_spanned(parameters, self._sums)
        none = np.empty((0, self._margins), np.float32)
        weights = arrays.get("cell_centres", none)
        coarse, centres = (arrays.get(name, weights[:0]) for name in (COARSE, CENTRES))
        # A sketch has an entry for each dimension.
        dims = len(hashing.sketch) or self._sums
        centre = arrays.get(CENTRE, np.zeros(dims, np.float32))
        starts = arrays.get(COARSE_STARTS, np.zeros(1, np.int64))
        self._gains = max(len(coarse), int(np.diff(starts).max(initial=0)))
        model = Model(
            centre=centre,
            centre_square=float(dense_square(read_only(centre.reshape(1, -1)), 0)),
            planes=count,
            span=spanned / count,
            product=parameters.metric == "inner_product",
            weights=weights,
            squares=arrays.get("cell_squares", none[:, 0]),
            centre_margins=arrays.get(CENTRE_MARGINS, none),
            coarse=np.ascontiguousarray(coarse.T),
            starts=starts,
            centres=np.ascontiguousarray(centres.T),
            coarse_halves=_halves(coarse),
            halves=_halves(centres),
        )
        self._model = tuple(read_only(a) if isinstance(a, np.ndarray) else a for a in model)

    def encode(self, rows: Rows) -> tuple[Array, Array, Array]:
        """Return cells (m,) int32, scan terms (m,) uint32 and codes (m, bits / 8) uint8.

        rows: (m, d) float32, dense or sparse, scaled for the metric.

        Without cells, all cells are -1.
        """
        count = len(rows)
        scratch = (
            np.zeros((1, self._sums), np.float32),
            np.zeros((ROWS_TOGETHER, self._margins), np.float32),
            np.empty(self._gains, np.float32),
            np.empty(self._margins, np.float32),
        )
        encoded = (
            np.empty(count, np.int32),
            np.empty(count, np.uint32),
            np.empty((count, self._code_bytes), np.uint8),
        )
        queries = tuple(map(read_only, pack_queries(rows)))
        encode_rows(self._hashing, self._model, queries, scratch, encoded)
        return encoded


def _halves(centres: Array) -> Array:
    halves = np.empty(len(centres), np.float32)
    half_squares(read_only(np.ascontiguousarray(centres)), halves)
    return halves
