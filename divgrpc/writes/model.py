"""What the encoding of later rows needs beside the hyperplanes."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from divgrpc.arrays import Array
from divgrpc.builder.hash_functions import centre_of
from divgrpc.builder.row_encoder import CENTRE, CENTRE_MARGINS
from divgrpc.hashing.lists import FULL_COLUMNS, STEPS, WORK, roomy_steps, work_of
from divgrpc.storage.manifest import Manifest
from divgrpc.vectors import Rows as Vectors
from divgrpc.vectors import SparseRows

# Names of arrays of a layout that hold the model. Those of inverted lists are missing if points
# have none.
MODEL: Final = (CENTRE, CENTRE_MARGINS, STEPS, FULL_COLUMNS, WORK)


def model_arrays(
    arrays: Mapping[str, Array], manifest: Manifest, points: Vectors
) -> dict[str, Array]:
    """Return what later points have in common with those of Build, beside the hyperplanes.

    `CENTRE` (d,) float32 is the centre of `points` (n, d). `CENTRE_MARGINS` (C, B) float32 has the
    inner products of the centres of the cells with the normals of the hyperplanes; (0, B) without
    cells. `STEPS`, `FULL_COLUMNS` and `WORK` are as in `kernels.records.InvertedLists`.

    Build stores the first two. For an index of an earlier version, they are computed once, with the
    first write to a generation, and kept, because another processor might round them differently.
    """
    planes = arrays["hyperplanes"].astype(np.float64)
    weights, margins = arrays.get("cell_centres"), arrays.get(CENTRE_MARGINS)
    if margins is None and weights is not None:
        products = planes[:, : weights.shape[1]].T @ planes
        margins = (weights.astype(np.float64) @ products).astype(np.float32)
    if margins is None:
        margins = np.empty((0, planes.shape[1]), np.float32)
    centre = arrays[CENTRE] if CENTRE in arrays else centre_of(points, manifest.parameters)
    model = {CENTRE: centre, CENTRE_MARGINS: margins}
    if STEPS in arrays and isinstance(points, SparseRows):
        model |= {STEPS: roomy_steps(arrays), FULL_COLUMNS: arrays[FULL_COLUMNS]}
        model[WORK] = work_of(arrays["list_starts"], arrays[FULL_COLUMNS], points)
    return model
