"""LEML with squared loss: label factors H (L, r) and a feature map V (d, r) by turns.

Yu, Jain, Kar and Dhillon, "Large-scale multi-label learning with missing labels" (ICML 2014), where
no label is missing: the least of

    F(V, H) = |X V Hᵀ - Y|² / 2 + regularisation (|V|² + |H|²) / 2

For a given V the best H solves one r x r system for all labels, by Cholesky. For a given H the
feature map is found by conjugate gradients. F is the same for V R and H R with any rotation R, and
with the one that makes HᵀH diagonal, s, the columns of V part: column j solves

    (s_j XᵀX + regularisation) v_j = Xᵀ Y h_j

a system with a far better condition than all of them as one; and a few columns at a time bound the
memory. Each column has a step length of its own. Neither solve can raise F.

The first H are the leading right singular vectors of XᵀY, by randomised subspace iteration on the
operator (Halko, Martinsson and Tropp 2011). They are orthonormal, so the first feature map is the
ridge regression to the labels projected on them, and an iteration or two are nearly as good as it
gets on documents to come; many more fit the ones at hand.
"""

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from divgrpc.kernels import leml
from divgrpc.labels.matrices import Products, second_moments
from divgrpc.parallel import on_all_cores
from divgrpc.types import FloatArray

# Told the share of a stage that is done; may raise to end it.
Tick = Callable[[float], None]
# One for each column, float64.
Sums: TypeAlias = npt.NDArray[np.float64]

_OVERSAMPLING: Final = 10
_POWER_ITERATIONS: Final = 2
# Conjugate gradients end at this share of the residual that they began with, ...
_REDUCTION: Final = 1e-2
# ... or of the right-hand side, where float32 has no more to give.
_ROUNDING: Final = 1e-6
# Numbers of a feature map that are solved for at a time: conjugate gradients keep four such blocks.
_BLOCK_FLOATS: Final = 2**26
_BLOCK_ROWS: Final = 2**16
# Numbers of an array that one thread updates at a time.
_UPDATED_FLOATS: Final = 2**20


def start(products: Products, rank: int, rng: np.random.Generator, tick: Tick) -> FloatArray:
    """Return the first label factors (L, rank): orthonormal, the most weighty first."""
    labels = products.shape[2]
    width = min(labels, rank + _OVERSAMPLING)
    basis = np.linalg.qr(rng.standard_normal((labels, width), np.float32))[0]
    for step in range(_POWER_ITERATIONS + 1):

        def told(share: float, before: int = step) -> None:
            tick((before + share) / (_POWER_ITERATIONS + 1))

        image = _label_moments(products, basis, told)
        if step < _POWER_ITERATIONS:
            basis = np.linalg.qr(image)[0]
    directions = np.linalg.eigh((basis.T @ image).astype(np.float64))[1][:, : -rank - 1 : -1]
    return np.ascontiguousarray(basis @ directions, np.float32)


def _label_moments(products: Products, basis: FloatArray, tick: Tick) -> FloatArray:
    """Return Yᵀ X Xᵀ Y B (L, m), a few columns at a time."""
    image = np.empty_like(basis)
    for columns in _column_blocks(products, basis.shape[1]):
        block = products.to_features(products.of_labels(np.ascontiguousarray(basis[:, columns])))
        image[:, columns] = products.to_labels(products.embed(block))
        tick(columns.stop / basis.shape[1])
    return image


class Alternation:
    """A training under way: `label_factors` (L, r), `feature_map` (d, r) and their `loss`, F."""

    def __init__(
        self, products: Products, factors: FloatArray, regularisation: float, inner_iterations: int
    ) -> None:
        """Begin with some label `factors` and a feature map of zeros."""
        self._products = products
        self._regularisation = regularisation
        self._inner_iterations = inner_iterations
        self.label_factors = factors
        self.feature_map = np.zeros((products.shape[1], factors.shape[1]), np.float32)
        self.loss = np.inf

    def iterate(self, tick: Tick) -> float:
        """Solve for the feature map, then for the label factors; returns the loss."""
        scales = self._part_columns()
        blocks = list(_column_blocks(self._products, len(scales)))
        for number, columns in enumerate(blocks):

            def told(share: float, before: int = number) -> None:
                tick((before + share) / (len(blocks) + 1))

            self._solve_columns(columns, scales[columns], told)
        self._solve_labels()
        tick(1.0)
        return self.loss

    def _part_columns(self) -> FloatArray:
        """Rotate both factors so that HᵀH is diagonal, and return the diagonal, falling."""
        scales, rotation = np.linalg.eigh(second_moments(self.label_factors))
        rotation = rotation[:, ::-1].astype(np.float32)
        for factors in (self.label_factors, self.feature_map):
            for rows in _row_blocks(factors):
                factors[rows] = factors[rows] @ rotation
        return np.asarray(np.maximum(scales[::-1], 0), np.float32)

    def _solve_columns(self, columns: slice, scales: FloatArray, tick: Tick) -> None:
        """Improve some columns of the feature map by conjugate gradients from where they are."""
        products, weight = self._products, np.float32(self._regularisation)

        def system(block: FloatArray) -> tuple[FloatArray, Sums]:
            image = products.moments(block)
            return image, _over_rows(block, leml.weigh, image, block, scales, weight)

        found = np.ascontiguousarray(self.feature_map[:, columns])
        factors = np.ascontiguousarray(self.label_factors[:, columns])
        residual = products.to_features(products.of_labels(factors))
        least = _ROUNDING**2 * _squares(residual).sum()
        if found.any():
            residual -= system(found)[0]
        direction, squares = residual.copy(), _squares(residual)
        least = max(least, _REDUCTION**2 * squares.sum())
        for step in range(self._inner_iterations):
            if squares.sum() <= least:
                break
            image, curvature = system(direction)
            lengths, before = _ratio(squares, curvature), squares
            squares = _over_rows(found, leml.descend, found, residual, direction, image, lengths)
            _over_rows(found, leml.turn, direction, residual, _ratio(squares, before))
            tick((step + 1) / self._inner_iterations)
        self.feature_map[:, columns] = found

    def _solve_labels(self) -> None:
        """Find the best label factors for this feature map, and the loss of the two."""
        products, weight = self._products, self._regularisation
        embedded = products.embed(self.feature_map)
        moments = second_moments(embedded)
        moments[np.diag_indices_from(moments)] += weight
        image = products.to_labels(embedded)
        # Not scipy's, whose threads get into the way of numpy's.
        root = np.linalg.inv(np.linalg.cholesky(moments))
        explained = 0.0
        for rows in _row_blocks(image):
            halves = image[rows] @ root.T
            # What labels explain of Y is their solution's product with their image.
            explained += float(np.vdot(halves, halves))
            self.label_factors[rows] = halves @ root
        squares = float(_squares(self.feature_map).sum())
        self.loss = (len(products.labels.values) - explained + weight * squares) / 2


def _column_blocks(products: Products, count: int) -> Iterator[slice]:
    """Yield slices of `count` columns whose feature maps fit the memory."""
    width = max(1, _BLOCK_FLOATS // max(1, *products.shape[:2]))
    for first in range(0, count, width):
        yield slice(first, min(count, first + width))


def _row_blocks(rows: FloatArray) -> Iterator[slice]:
    """Yield slices of rows that dense products take at a time."""
    for first in range(0, len(rows), _BLOCK_ROWS):
        yield slice(first, first + _BLOCK_ROWS)


def _squares(rows: FloatArray) -> Sums:
    """Return the sum of the squares of each column."""
    return _over_rows(rows, leml.column_squares, rows)


def _over_rows(like: FloatArray, update: Callable[..., None], *arrays: object) -> Sums:
    """Run a kernel over all rows on all cores, and return what it adds up for each column."""
    count = like.shape[1]
    height = max(1, _UPDATED_FLOATS // count)
    starts = range(0, len(like), height)
    sums = np.zeros((len(starts), count))

    def block(number: int) -> None:
        start_row = starts[number]
        update(*arrays, start_row, min(len(like), start_row + height), sums[number])

    for _ in on_all_cores(block, range(len(starts))):
        pass
    return np.asarray(sums.sum(axis=0))


def _ratio(a: Sums, b: Sums) -> FloatArray:
    """Divide, 0 where there is nothing left to divide."""
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0).astype(np.float32)
