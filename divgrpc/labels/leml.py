"""LEML with squared loss solves alternately for a feature map V (d, r) and label factors H (L, r).

LEML is described in Yu, Jain, Kar and Dhillon, "Large-scale multi-label learning with missing
labels" (ICML 2014). This implementation assumes that no label is missing. For documents X (n, d)
and labels Y (n, L), training minimises

    F(V, H) = |X V Hᵀ - Y|² / 2 + regularisation (|V|² + |H|²) / 2

For a fixed V, the optimal H is found by one Cholesky factorisation of an r x r matrix, which serves
all labels. For a fixed H, conjugate gradients improve V. Rotating both factors does not change F.
The factors are rotated so that HᵀH is diagonal, with diagonal s. Then each column of V can be
solved separately; column j solves

    (s_j XᵀX + regularisation) v_j = Xᵀ Y h_j

Each of these systems is far better conditioned than one system of all columns. Solving a few
columns at a time limits the memory, and each column has its own step length. Neither the step for H
nor the step for V can increase F.

The columns of the initial H are the leading right singular vectors of XᵀY, found by randomised
subspace iteration (Halko, Martinsson and Tropp, "Finding structure with randomness", SIAM Review
2011). These columns are orthonormal, so the first feature map solves a ridge regression for the
labels projected onto these columns. After two iterations predictions for new documents hardly
improve; many more iterations overfit.
"""

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from divgrpc.kernels import leml
from divgrpc.labels.matrices import second_moments
from divgrpc.labels.products import Products
from divgrpc.parallel import on_all_cores
from divgrpc.types import FloatArray

# Called with the finished share of a stage, 0 to 1; may raise an error to end the training.
Tick = Callable[[float], None]
# An array with one float64 value for each column.
Sums: TypeAlias = npt.NDArray[np.float64]

# The initial subspace has 10 columns more than the rank, and is refined by 2 power iterations
# (Halko et al., section 4.5).
_OVERSAMPLED_COLUMNS: Final = 10
_POWER_ITERATIONS: Final = 2
# Conjugate gradients stop when the residual falls to this share (1 %) of the initial residual.
_RESIDUAL_SHARE: Final = 1e-2
# Conjugate gradients also stop when the residual falls to this share of the right-hand side, about
# the precision of float32.
_RIGHT_SIDE_SHARE: Final = 1e-6
# Rows in one dense product.
_BLOCK_ROWS: Final = 2**16
# Maximum number of values that one thread updates at a time.
_UPDATED_NUMBERS: Final = 2**20


def start(products: Products, rank: int, rng: np.random.Generator, tick: Tick) -> FloatArray:
    """Return the initial label factors (L, rank) float32.

    The columns are orthonormal, ordered by decreasing singular value. `rank` is at most n, d and L.
    """
    label_count, steps = products.shape[2], _POWER_ITERATIONS + 1
    width = min(label_count, rank + _OVERSAMPLED_COLUMNS)
    basis = np.linalg.qr(rng.standard_normal((label_count, width), np.float32))[0]
    for step in range(steps):
        image = _label_moments(products, basis, _part_of(tick, step, steps))
        if step < _POWER_ITERATIONS:
            basis = np.linalg.qr(image)[0]
    directions = np.linalg.eigh((basis.T @ image).astype(np.float64))[1][:, : -rank - 1 : -1]
    return np.ascontiguousarray(basis @ directions, np.float32)


def _part_of(tick: Tick, part: int, parts: int) -> Tick:
    """Return a tick for part number `part` of a stage that consists of `parts` equal parts."""
    return lambda share: tick((part + share) / parts)


def _label_moments(products: Products, basis: FloatArray, tick: Tick) -> FloatArray:
    """Return Yᵀ X Xᵀ Y B (L, m) for the `basis` B (L, m), computed a few columns at a time."""
    image = np.empty_like(basis)
    for columns in _column_blocks(products, basis.shape[1]):
        block = products.to_features(np.ascontiguousarray(basis[:, columns]))
        image[:, columns] = products.to_labels(block)
        tick(columns.stop / basis.shape[1])
    return image


class Alternation:
    """The state of one training: `label_factors` (L, r), `feature_map` (d, r) and `loss`.

    `loss` is the objective F at these two matrices. Before the first iteration it is infinite.
    """

    def __init__(
        self, products: Products, factors: FloatArray, regularisation: float, inner_iterations: int
    ) -> None:
        """Begin with the label `factors` (L, r) and a feature map of zeros; overwrite `factors`.

        `inner_iterations` is the maximum number of conjugate-gradient steps of one solve.
        """
        self._products = products
        self._regularisation = regularisation
        self._inner_iterations = inner_iterations
        self.label_factors = factors
        self.feature_map = np.zeros((products.shape[1], factors.shape[1]), np.float32)
        self.loss = np.inf

    def iterate(self, tick: Tick) -> float:
        """Solve for the feature map, then for the label factors; return the loss."""
        scales = self._separate_columns()
        blocks = list(_column_blocks(self._products, len(scales)))
        for number, columns in enumerate(blocks):
            share = _part_of(tick, number, len(blocks) + 1)
            self._solve_columns(columns, scales[columns], share)
        self._solve_labels()
        tick(1.0)
        return self.loss

    def _separate_columns(self) -> FloatArray:
        """Rotate both factors so that HᵀH is diagonal; return the diagonal (r,), descending."""
        scales, rotation = np.linalg.eigh(second_moments(self.label_factors))
        rotation = rotation[:, ::-1].astype(np.float32)
        for factors in (self.label_factors, self.feature_map):
            for rows in _row_blocks(factors):
                factors[rows] = factors[rows] @ rotation
        return np.asarray(np.maximum(scales[::-1], 0), np.float32)

    def _solve_columns(self, columns: slice, scales: FloatArray, tick: Tick) -> None:
        """Improve some columns of the feature map by conjugate gradients."""
        products, weight = self._products, np.float32(self._regularisation)

        def system(block: FloatArray) -> tuple[FloatArray, Sums]:
            image = products.moments(block)
            return image, _over_rows(block, leml.weigh, image, block, scales, weight)

        solution = np.ascontiguousarray(self.feature_map[:, columns])
        factors = np.ascontiguousarray(self.label_factors[:, columns])
        residual = products.to_features(factors)
        squares_min = _RIGHT_SIDE_SHARE**2 * _squares(residual).sum()
        if solution.any():
            residual -= system(solution)[0]
        direction, squares = residual.copy(), _squares(residual)
        squares_min = max(squares_min, _RESIDUAL_SHARE**2 * squares.sum())
        for step in range(self._inner_iterations):
            if squares.sum() <= squares_min:
                break
            image, curvature = system(direction)
            steps, previous = _ratio(squares, curvature), squares
            squares = _over_rows(
                solution, leml.descend, solution, residual, direction, image, steps
            )
            _over_rows(solution, leml.turn, direction, residual, _ratio(squares, previous))
            tick((step + 1) / self._inner_iterations)
        self.feature_map[:, columns] = solution

    def _solve_labels(self) -> None:
        """Set the label factors to the optimum for the feature map, and update the loss."""
        products, weight = self._products, self._regularisation
        moments = products.squares(self.feature_map)
        moments[np.diag_indices_from(moments)] += weight
        image = np.empty_like(self.label_factors)
        for columns in _column_blocks(products, image.shape[1]):
            block = np.ascontiguousarray(self.feature_map[:, columns])
            image[:, columns] = products.to_labels(block)
        # This uses numpy, because threads of scipy's BLAS would compete with those of numpy's BLAS.
        root = np.linalg.inv(np.linalg.cholesky(moments))
        label_squares = 0.0
        for rows in _row_blocks(image):
            halves = image[rows] @ root.T
            # Add up the inner product of the label factors and the image. The loss subtracts this
            # product.
            label_squares += float(np.vdot(halves, halves))
            self.label_factors[rows] = halves @ root
        squares = float(_squares(self.feature_map).sum())
        self.loss = (len(products.labels.values) - label_squares + weight * squares) / 2


def _column_blocks(products: Products, count: int) -> Iterator[slice]:
    """Yield slices that cover `count` columns; conjugate gradients keep four matrices of each."""
    width = products.column_count_max
    for first in range(0, count, width):
        yield slice(first, min(count, first + width))


def _row_blocks(rows: FloatArray) -> Iterator[slice]:
    """Yield slices that cover all rows, each at most `_BLOCK_ROWS` rows long."""
    for first in range(0, len(rows), _BLOCK_ROWS):
        yield slice(first, first + _BLOCK_ROWS)


def _squares(rows: FloatArray) -> Sums:
    """Return the sum of the squares of each column."""
    return _over_rows(rows, leml.column_squares, rows)


def _over_rows(factors: FloatArray, update: Callable[..., None], *arrays: object) -> Sums:
    """Run the kernel `update` on all rows of `arrays`, on all cores; return its sums (r,).

    `factors` (n, r) gives the number of rows n and the number of sums r.
    """
    count = factors.shape[1]
    height = max(1, _UPDATED_NUMBERS // count)
    starts = range(0, len(factors), height)
    sums = np.zeros((len(starts), count))

    def block(number: int) -> None:
        first_row = starts[number]
        update(*arrays, first_row, min(len(factors), first_row + height), sums[number])

    for _ in on_all_cores(block, range(len(starts))):
        pass
    return np.asarray(sums.sum(axis=0))


def _ratio(a: Sums, b: Sums) -> FloatArray:
    """Return a / b for each column, and 0 for columns with b <= 0."""
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0).astype(np.float32)
