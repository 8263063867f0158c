"""Hash functions are drawn and fitted to a sample of the points. All shards of an index share them.

Points are read by their row numbers, in the order in which they were uploaded. Only the mean of
`centred` reads all of them. So the functions do not depend on where the points are.

A margin of a point is its inner product with a hyperplane's normal, minus a threshold.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, read_only
from divgrpc.build_rows import BuildRows, block_rows, release_rows, take
from divgrpc.builder.progress import Report
from divgrpc.builder.row_encoder import CENTRE, CENTRE_MARGINS, CENTRES, COARSE, COARSE_STARTS
from divgrpc.hashing import codes, hyperplanes, partition
from divgrpc.hashing.count_sketch import CountSketch
from divgrpc.kernels.projection import embed
from divgrpc.parallel import on_all_cores, one_blas_thread
from divgrpc.parameters import BuildParameters
from divgrpc.search.arrays import pack_queries
from divgrpc.storage.writers import MemoryStore
from divgrpc.types import FloatArray
from divgrpc.vectors import Rows, SparseRows, draw_numbers

# Name of the array with the distances of cells (`_Fitting._store_reaches`).
REACHES: Final = "cell_reaches"
# The sample for the centre and the spread (`_spread`) has at most 2**22 values or 256 rows,
# whichever is more.
_SAMPLE_NUMBERS: Final = 1 << 22
_SAMPLE_ROWS_MIN: Final = 256
# The spread is measured with at most 8,192 rows of the sample. Each row is compared with about 256
# of these rows, the anchors.
_SPREAD_ROWS_MAX: Final = 1 << 13
_SPREAD_ANCHORS: Final = 256
# Number of points over which the distances of cells are averaged, and the rounding error of such a
# distance as a share of the mean squared length of the points.
_REACH_POINTS: Final = 256
_REACH_ERROR: Final = 1e-6
# The distances have very different scales if, for the cell of this rank, the standard deviation of
# the differences exceeds this multiple of their mean. It is about .3 to .6 for points of one scale,
# and 1.6 for points whose lengths differ by a factor of 100.
_REACH_CELL: Final = 16
_REACH_SPREAD_MAX: Final = 1.0


@dataclass(frozen=True, slots=True)
class HashFunctions:
    """What encodes points, and is the same for all points of an index.

    arrays: hyperplanes and their thresholds, the sketch, the centre, and the centres of the cells,
        by their names in an index.
    parameters: with all defaults filled in, for the number of all points.
    code_bits: the number of bits of a code.
    """

    arrays: dict[str, Array]
    parameters: BuildParameters
    code_bits: int

    @property
    def has_cells(self) -> bool:
        """Whether the functions find the cell of a point."""
        return self.parameters.hash_family == "cells"


def fit(points: BuildRows, request: BuildParameters, report: Report) -> HashFunctions:
    """Draw hash functions for `points` (n, d), and fit them to a sample of the points.

    points: float32, dense or sparse, already checked and scaled for the metric; all points of the
        index, in the order of the upload.
    report: called with the stage, the number of rows done, and n.

    Raises `InvalidArgumentError` for parameters that do not fit the points.
    """
    parameters = hyperplanes.fill_defaults(request, *points.shape)
    fitting = _Fitting(parameters, points, report)
    # With several threads, the last digits of matrix products would depend on their number.
    with one_blas_thread():
        fitting.draw(fit=request.n_components is None)
        if parameters.hash_family == "cells":
            fitting.learn_cells()
    return HashFunctions(fitting.arrays, fitting.parameters, fitting.bits)


class _Cells:
    """A learned partition, with its C centres expressed as combinations of hyperplane normals.

    Centre i is the sum of the first m normals, weighted by row i of `weights` (C, m) float32.
    `margins` (C, B) float32 are the inner products of the centres with all B normals. `squares`
    (C,) float32 are the squared lengths of the centres.
    """

    def __init__(self, cells: partition.Partition, planes: FloatArray) -> None:
        self.partition = cells
        planes64 = planes.astype(np.float64)
        products = planes64[:, : cells.width].T @ planes64
        # For orthogonal hyperplanes `gram` is the identity matrix.
        gram = products[:, : cells.width]
        weights = cells.centres @ np.linalg.pinv(gram, hermitian=True)
        self.weights = weights.astype(np.float32)
        self.margins = (weights @ products).astype(np.float32)
        self.squares = np.einsum("ij,ij->i", weights @ gram, weights).astype(np.float32)


class _Fitting:
    def __init__(self, parameters: BuildParameters, points: BuildRows, report: Report) -> None:
        self.arrays: dict[str, Array] = {}
        self.parameters = parameters
        self.bits = hyperplanes.code_bits(parameters)
        self._planes = self.bits // hyperplanes.code_depth(parameters)
        # The arrays are aligned as those of an index are.
        self._store = MemoryStore()
        self._points, self._report = points, report
        self._dims = points.shape[1]
        self._centre = np.zeros(self._dims, np.float32)
        self._sketch = CountSketch.draw(self._dims, parameters.seed)

    @property
    def _depth(self) -> int:
        return self.bits // self._planes

    @cached_property
    def _plane_count(self) -> int:
        """The number of nonzero normals; a normal of zeros does not affect codes."""
        return int(np.count_nonzero(self.arrays["hyperplanes"].any(axis=0)))

    def draw(self, *, fit: bool) -> None:
        """Draw the hyperplanes; if `fit`, also choose the number of components for cells."""
        self._report("components", 0, len(self._points))
        if self.parameters.centred:
            self._centre = _mean(self._points)
        if self.parameters.hash_family == "cells":
            self._fit_to_sample(fit=fit)
        planes = hyperplanes.draw_hyperplanes(
            self.parameters, self._points, self._centre, self._planes, self._sketch
        )
        self._put("hyperplanes", planes)
        self._put("thresholds", self._sketch.of_dense(self._centre) @ planes)
        if len(self._sketch.places):
            self._put("sketch", self._sketch.places)
        if self._centre.any():
            self._put(CENTRE, self._centre)
        release_rows(self._points)

    def _fit_to_sample(self, *, fit: bool) -> None:
        """Fit the centre and, if `fit`, the number of components to a sample of the points.

        If hashing is centred or the metric is inner_product, the centre stays as it is.
        """
        sample = _sample(self._points, self.parameters.seed)
        if not self.parameters.centred and self.parameters.metric != "inner_product":
            # Subtracting a centre changes no distance. Without the part that all points share, the
            # four bits of each projection of a query resolve differences more finely.
            self._centre = _mean_of_sample(sample)
        if fit and not isinstance(sample, SparseRows) and self._dims <= hyperplanes.GRAM_DIMS_MAX:
            n_components = codes.fitting_components(_spread(sample - self._centre), self.bits)
            self.parameters = replace(self.parameters, n_components=n_components)
            self._planes = self.bits // hyperplanes.code_depth(self.parameters)

    def learn_cells(self) -> None:
        """Learn a partition from the margins of a sample of the points."""
        rows = len(self._points)
        self._report("cells", 0, rows)
        dims = hyperplanes.dimensions_spanned(self.parameters, self._sketch.dims)
        width = min(dims, self._planes)
        rng = np.random.default_rng((self.parameters.seed, 2))
        count = partition.sample_size(rows, width)
        numbers = draw_numbers(rows, count, rng)
        block = block_rows(self._points)

        def project(start: int) -> FloatArray:
            return self._margins(take(self._points, numbers[start : start + block]))[:, :width]

        sample = np.concatenate(list(on_all_cores(project, range(0, count, block))))
        centres = partition.learn(sample, partition.cell_count(rows, width), rng)
        cells = _Cells(centres, self.arrays["hyperplanes"])
        self._store_centres(cells)
        if self.parameters.metric != "inner_product":
            self._store_reaches(cells, sample)
        release_rows(self._points)

    def _store_centres(self, cells: _Cells) -> None:
        """Store the centres, and their codes and scan terms, with which a query ranks the cells.

        Encoding also reads the partition and the margins of the centres.
        """
        self._put(CENTRE_MARGINS, cells.margins)
        self._put(COARSE, cells.partition.coarse)
        self._put(COARSE_STARTS, cells.partition.starts)
        self._put(CENTRES, cells.partition.centres)
        # Subtracting the mean of the centres does not change how a query ranks the centres.
        margins = cells.margins - cells.margins.mean(axis=0)
        shape = codes.tiles_shape(len(margins), self.bits)
        levels = codes.levels(margins, self._depth, self._plane_count)
        codes.encode(levels, self._create("cell_codes", np.uint8, shape), 0)
        stretch = self._stretches(margins, levels)
        product = self.parameters.metric == "inner_product"
        offsets, factors = (0 * stretch, stretch) if product else (cells.squares, 2 * stretch)
        self._put("cell_terms", codes.pack_terms(offsets, factors))
        self._put("cell_centres", cells.weights)
        self._put("cell_squares", cells.squares)

    def _store_reaches(self, cells: _Cells, sample: FloatArray) -> None:
        """Store how far the n-th nearest cell of a point is, for each n (`kernels.records.Cells`).

        `sample` (s, m) are margins of points. Nothing is stored if the distances of the points have
        very different scales, because an average then fits few of them. A rounding error is added,
        so that cells count as equally far if their distances differ by rounding alone.
        """
        margins = sample[:: -(-len(sample) // _REACH_POINTS)]
        distances = np.sort(cells.squares - 2 * (margins @ cells.weights.T), axis=1)
        differences = (distances - distances[:, :1]).astype(np.float64)
        spread = differences[:, min(_REACH_CELL, differences.shape[1]) - 1]
        if spread.std() > _REACH_SPREAD_MAX * spread.mean():
            return
        reaches = differences.mean(axis=0)
        projections = margins + self.arrays["thresholds"][: margins.shape[1]]
        reaches += _REACH_ERROR * np.square(projections).sum(axis=1).mean()
        self._put(REACHES, reaches.astype(np.float32))

    def _margins(self, block: Rows) -> FloatArray:
        rows, thresholds = self._sketch(block), self.arrays["thresholds"]
        planes = self.arrays["hyperplanes"]
        if isinstance(rows, SparseRows):
            # On ARM, scipy fuses multiplications with additions, which changes last digits.
            margins = np.empty((len(rows), len(thresholds)), np.float32)
            embed(pack_queries(rows), read_only(planes), read_only(-thresholds), margins)
            return margins
        margins = rows @ planes
        if thresholds.any():
            margins -= thresholds
        return margins

    def _stretches(self, margins: FloatArray, levels: FloatArray) -> npt.NDArray[np.floating]:
        dims = hyperplanes.dimensions_spanned(self.parameters, self._sketch.dims)
        return codes.stretches(margins, levels, dims / self._plane_count)

    def _create(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        self.arrays[name] = self._store.create(name, dtype, shape)
        return self.arrays[name]

    def _put(self, name: str, array: Array) -> None:
        self._create(name, array.dtype, array.shape)[...] = array


def centre_of(points: BuildRows, parameters: BuildParameters) -> FloatArray:
    """Return the centre (d,) that hashing subtracts from `points` (n, d), as Build computes it."""
    if parameters.centred:
        return _mean(points)
    if parameters.hash_family != "cells" or parameters.metric == "inner_product":
        return np.zeros(points.shape[1], np.float32)
    return _mean_of_sample(_sample(points, parameters.seed))


def _sample(points: BuildRows, seed: int) -> Rows:
    """Return the rows that the centre and the components are computed from."""
    rows, dims = points.shape
    count = min(rows, max(_SAMPLE_ROWS_MIN, _SAMPLE_NUMBERS // dims))
    return take(points, draw_numbers(rows, count, np.random.default_rng((seed, 3))))


def _mean_of_sample(sample: Rows) -> FloatArray:
    mean: FloatArray = (_sum(sample, sample.shape[1]) / len(sample)).astype(np.float32)
    return mean


def _mean(points: BuildRows) -> FloatArray:
    rows, dims = points.shape
    total, block = np.zeros(dims), block_rows(points)
    for start in range(0, rows, block):
        total += _sum(points[start : start + block], dims)
        release_rows(points)
    mean: FloatArray = (total / rows).astype(np.float32)
    return mean


def _spread(points: FloatArray) -> FloatArray:
    """Return the variance of differences between near points along each principal component, (d,).

    These differences stand for those between points and centres of cells, because the centres are
    not learned yet. `points` (n, d) are centred.
    """
    axes = np.linalg.eigh((points.T @ points).astype(np.float64))[1][:, ::-1]
    rows = points[:: -(-len(points) // _SPREAD_ROWS_MAX)] @ axes.astype(np.float32)
    anchors = rows[:: max(1, len(rows) // _SPREAD_ANCHORS)]
    nearest = (rows @ anchors.T - np.square(anchors).sum(axis=1) / 2).argmax(axis=1)
    squares = np.square(rows - anchors[nearest])
    distances = squares.sum(axis=1)
    # Leave out the half of the points that are farther from their anchor: many have no near anchor.
    return np.asarray(squares[distances <= np.median(distances)].mean(axis=0))


def _sum(rows: Rows, dims: int) -> npt.NDArray[np.float64]:
    """Return the sum of all rows, (d,)."""
    if isinstance(rows, SparseRows):
        return np.asarray(np.bincount(rows.indices, rows.values, dims), np.float64)
    return np.asarray(rows.sum(axis=0, dtype=np.float64))
