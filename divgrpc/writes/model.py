"""Encodes the rows of an upsert as Build encodes points."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from divgrpc.arrays import Array, read_only
from divgrpc.builder.encoder import centre_of
from divgrpc.hashing import hyperplanes
from divgrpc.hashing.lists import FULL_COLUMNS, STEPS, WORK, roomy_steps, work_of
from divgrpc.kernels.encode import encode_rows
from divgrpc.kernels.sparse import dense_square
from divgrpc.search.arrays import pack_queries
from divgrpc.search.searcher import Searcher
from divgrpc.storage.manifest import Manifest
from divgrpc.vectors import Rows as Vectors
from divgrpc.vectors import SparseRows

# Names of arrays of a layout that hold the model.
CENTRE: Final = "model_centre"
CENTRE_MARGINS: Final = "model_centre_margins"
# All of them. Those of inverted lists are missing if points have none.
MODEL: Final = (CENTRE, CENTRE_MARGINS, STEPS, FULL_COLUMNS, WORK)


def model_arrays(
    arrays: Mapping[str, Array], manifest: Manifest, points: Vectors
) -> dict[str, Array]:
    """Return what later points have in common with those of Build, beside the hyperplanes.

    `CENTRE` (d,) float32 is the centre of `points` (n, d). `CENTRE_MARGINS` (C, B) float32 has the
    inner products of the centres of the cells with the normals of the hyperplanes; (0, B) without
    cells. `STEPS`, `FULL_COLUMNS` and `WORK` are as in `kernels.records.InvertedLists`.

    They are computed once, with the first write to a generation, and kept, because another
    processor might round them differently.
    """
    planes = arrays["hyperplanes"].astype(np.float64)
    weights = arrays.get("cell_centres")
    margins = np.empty((0, planes.shape[1]), np.float32)
    if weights is not None:
        products = planes[:, : weights.shape[1]].T @ planes
        margins = (weights.astype(np.float64) @ products).astype(np.float32)
    model = {CENTRE: centre_of(points, manifest.parameters), CENTRE_MARGINS: margins}
    if STEPS in arrays and isinstance(points, SparseRows):
        model |= {STEPS: roomy_steps(arrays[STEPS]), FULL_COLUMNS: arrays[FULL_COLUMNS]}
        model[WORK] = work_of(arrays["list_starts"], arrays[FULL_COLUMNS], points)
    return model


class RowEncoder:
    """Finds the cells of rows, and computes their codes and scan terms. For one thread."""

    def __init__(self, searcher: Searcher, arrays: Mapping[str, Array], manifest: Manifest) -> None:
        """Take a searcher of the collection and the arrays of its layout."""
        self._searcher = searcher
        parameters = manifest.parameters
        planes: Array = arrays["hyperplanes"]
        count = max(1, int(np.count_nonzero(planes.any(axis=0))))
        spanned = hyperplanes.dimensions_spanned(parameters, planes.shape[0])
        square = 0.0
        if manifest.points == "sparse":
            square = float(dense_square(read_only(arrays[CENTRE].reshape(1, -1)), 0))
        self._model = (
            arrays[CENTRE],
            square,
            arrays[CENTRE_MARGINS],
            count,
            spanned / count,
            parameters.metric == "inner_product",
        )
        sums, margins = planes.shape
        self._scratch = (np.zeros((1, sums), np.float32), np.zeros(margins, np.float32))
        self._code_bytes = manifest.code_bits // 8

    def encode(self, vectors: Vectors) -> tuple[Array, Array, Array]:
        """Return cells (m,) int32, scan terms (m,) uint32 and codes (m, bits / 8) uint8.

        vectors: (m, d), dense float32 or sparse, scaled for the metric. Without
            cells, all cells are -1.
        """
        count = len(vectors)
        encoded = (
            np.empty(count, np.int32),
            np.empty(count, np.uint32),
            np.zeros((count, self._code_bytes), np.uint8),
        )
        queries = pack_queries(vectors)
        encode_rows(self._searcher.register, queries, self._model, self._scratch, encoded)
        return encoded
