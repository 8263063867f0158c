"""Encodes the rows of an upsert as Build encodes points."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from divgrpc.arrays import Array
from divgrpc.builder.encoder import centre_of
from divgrpc.hashing import hyperplanes
from divgrpc.kernels.encode import encode_rows
from divgrpc.search.arrays import pack_queries
from divgrpc.search.searcher import Searcher
from divgrpc.storage.manifest import Manifest
from divgrpc.types import FloatArray
from divgrpc.vectors import Rows as Vectors

# Names of the arrays of a layout that hold the model.
CENTRE: Final = "model_centre"
CENTRE_MARGINS: Final = "model_centre_margins"


def model_arrays(
    arrays: Mapping[str, Array], manifest: Manifest, points: Vectors
) -> dict[str, Array]:
    """Return the arrays that encoding needs and that Build does not store, both float32.

    `CENTRE` (d,) is the centre of `points` (n, d). `CENTRE_MARGINS` (C, B) has the inner products
    of the centres of the cells with the normals of the hyperplanes; (0, B) without cells.

    They are computed once, with the first write to a generation, and kept, because another
    processor might round them differently.
    """
    planes = arrays["hyperplanes"].astype(np.float64)
    weights = arrays.get("cell_centres")
    margins = np.empty((0, planes.shape[1]), np.float32)
    if weights is not None:
        products = planes[:, : weights.shape[1]].T @ planes
        margins = (weights.astype(np.float64) @ products).astype(np.float32)
    return {CENTRE: centre_of(points, manifest.parameters), CENTRE_MARGINS: margins}


class RowEncoder:
    """Finds the cells of rows, and computes their codes and scan terms. For one thread."""

    def __init__(self, searcher: Searcher, arrays: Mapping[str, Array], manifest: Manifest) -> None:
        """Take a searcher of the collection and the arrays of its layout."""
        self._searcher = searcher
        parameters = manifest.parameters
        planes: Array = arrays["hyperplanes"]
        count = max(1, int(np.count_nonzero(planes.any(axis=0))))
        spanned = hyperplanes.dimensions_spanned(parameters, planes.shape[0])
        self._model = (
            arrays[CENTRE],
            arrays[CENTRE_MARGINS],
            count,
            spanned / count,
            parameters.metric == "inner_product",
        )
        sums, margins = planes.shape
        self._scratch = (np.zeros((1, sums), np.float32), np.zeros(margins, np.float32))
        self._code_bytes = manifest.code_bits // 8

    def encode(self, vectors: FloatArray) -> tuple[Array, Array, Array]:
        """Return cells (m,) int32, scan terms (m,) uint32 and codes (m, bits / 8) uint8.

        vectors: (m, d) float32, scaled for the metric. Without cells, all cells are -1.
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
