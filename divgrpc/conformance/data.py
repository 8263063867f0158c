"""The points and queries of the checks: a crowded collection, the same in each run."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.conformance.protocol import Points
from divgrpc.types import FloatArray

# A store can search so few points exactly, so that its recall does not decide the other checks.
ITEMS: Final = 120
COPIES: Final = 4
_CLUSTERS: Final = 10
_DIMS: Final = 16
# Every so many points, a point has the same vector as the point after it.
_EXACT_COPIES_EVERY: Final = 40
# Number of points of each colour. Fewer points than a page has are black.
_COLOURS: Final = {"red": 290, "green": 130, "blue": 53, "black": 7}
COLOURS: Final = tuple(_COLOURS)
_BRANDS: Final = 12
_QUERIES: Final = 8


class Data(NamedTuple):
    """Points, and queries (m, d) of unit length near them."""

    points: Points
    queries: FloatArray


def make_data() -> Data:
    """Return 480 points with attributes, and 8 queries.

    The points are near-copies of 120 items, 4 of each item, some of them exact copies. Each item
    has a `brand`; the nearest brands are those of its cluster. Each point has a `colour`, and the
    `kind` that all points have.
    """
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((_CLUSTERS, _DIMS))
    clusters = rng.integers(0, _CLUSTERS, ITEMS)
    items = centres[clusters] + 0.5 * rng.standard_normal((ITEMS, _DIMS))
    count = ITEMS * COPIES
    vectors = np.repeat(items, COPIES, axis=0) + 0.05 * rng.standard_normal((count, _DIMS))
    vectors[::_EXACT_COPIES_EVERY] = vectors[1::_EXACT_COPIES_EVERY]
    brands = np.repeat(np.where(rng.random(ITEMS) < 0.7, clusters, _BRANDS - 1), COPIES)
    colours = rng.permutation(np.repeat(COLOURS, list(_COLOURS.values())))
    attributes = {
        "brand": [f"brand {number}" for number in brands],
        "colour": [str(colour) for colour in colours],
        "kind": ["point"] * count,
    }
    ids = [f"p{number:03d}" for number in range(count)]
    queries = centres[:_QUERIES] + 0.3 * rng.standard_normal((_QUERIES, _DIMS))
    return Data(Points(ids, _unit(vectors), attributes), _unit(queries))


def _unit(rows: npt.NDArray[np.float64]) -> FloatArray:
    unit: FloatArray = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit
