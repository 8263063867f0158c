"""Draws the hyperplanes of the hash families.

The margin of a point x is x . p - t, for a hyperplane with direction p and a threshold t. The
threshold is 0 or, if hashing is centred, the projection of the mean point. A bit of a code is the
sign of a margin; in the family `cells` a margin may have several bits (`divgrpc.hashing.codes`).

- `lsh_div` draws directions at random (Charikar 2002; the paper's LSH-Div).
- `lsh_sdiv` draws directions in the space of the top principal components (the paper's LSH-SDiv).
- `pca_hash` uses the components themselves as directions, one bit each (Wang et al. 2006). These
  directions are not random, so `pca_hash` has no collision probability.
- `cells` uses the hyperplanes of `lsh_sdiv` to rank the points in the cells of a learned partition
  (`divgrpc.hashing.partition`). `cells` has no collision probability either.
- `auto` is replaced by one of the other families in Build.

Gaussian directions are independent, as the paper's Eq. 5 and lemma assume. Orthogonal directions
are drawn in blocks of as many directions as there are dimensions (super-bit LSH, Ji et al. 2012).
Each bit has the same collision probability as with Gaussian directions, but the share of bits in
which two points differ varies less.
"""

import contextlib
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.build_rows import BuildRows, SparseBuildRows, mean_width
from divgrpc.errors import InvalidArgumentError
from divgrpc.hashing.codes import DEPTHS
from divgrpc.hashing.count_sketch import CountSketch, dims_after
from divgrpc.kernels.projection import WORD_BITS
from divgrpc.parameters import CODE_BITS, BuildParameters
from divgrpc.types import FloatArray
from divgrpc.vectors import Rows, SparseRows, draw_numbers

# The default number of principal components is at most this.
COMPONENTS_MAX: Final = 200
# Maximum number of rows that components are computed from; more change no sign of a margin.
_SAMPLE_ROWS: Final = 50_000
# Maximum number of values in the sampled rows, dense and sparse. At least min(dimensions,
# _SUFFICIENT_ROWS) rows are sampled nevertheless.
_SAMPLE_FLOATS: Final = 1 << 24
_SAMPLE_STORED: Final = 1 << 22
_SUFFICIENT_ROWS: Final = 4_096
# Up to this number of dimensions, second moments are cheaper than subspace iteration.
GRAM_DIMS_MAX: Final = 2_048
# `auto` tries the family `cells` with at least this many points. With fewer, the default query is
# no faster in cells than in a scan.
CELLS_ROWS_MIN: Final = 50_000
# Columns beyond the number of components, and iterations, of the randomised subspace iteration.
_OVERSAMPLING: Final = 16
_POWER_ITERATIONS: Final = 4
# Cholesky's factorisation is used only if the natural logarithms of its diagonal entries differ by
# at most this, because it is then accurate enough.
_LOG_DIAGONAL_RANGE_MAX: Final = 13.0


def fill_defaults(parameters: BuildParameters, rows: int, dims: int) -> BuildParameters:
    """Set n_tables, n_bits and n_components if they are not given; replace `auto` by `lsh_div`.

    Raises `InvalidArgumentError` if `n_components` is more than the hashed dimensions, or if
    `pca_hash` has fewer components than bits in its tables.
    """
    dims = dims_after(dims)
    if parameters.n_components is not None and parameters.n_components > dims:
        raise InvalidArgumentError(
            "n_components",
            f"n_components must be at most the number of dimensions that are hashed, {dims}, "
            f"got {parameters.n_components}",
        )
    family = "lsh_div" if parameters.hash_family == "auto" else parameters.hash_family
    components = parameters.n_components or min(dims, COMPONENTS_MAX)
    if family == "cells":
        # If a code has enough bits for all dimensions, all are hashed.
        components = parameters.n_components or (dims if dims <= CODE_BITS else COMPONENTS_MAX)
        return replace(parameters, hash_family=family, n_components=components)
    n_tables, n_bits = 10, min(24, max(8, rows.bit_length() - 2))
    if family == "pca_hash":
        # Each component is used for one bit of one table.
        n_bits = max(1, min(n_bits, components // (parameters.n_tables or 1)))
        n_tables = max(1, min(n_tables, components // (parameters.n_bits or n_bits)))
    n_tables, n_bits = parameters.n_tables or n_tables, parameters.n_bits or n_bits
    if family == "pca_hash" and n_tables * n_bits > components:
        raise InvalidArgumentError(
            "n_tables",
            f"n_tables times n_bits must be at most the {components} components of pca_hash, "
            f"got {n_tables * n_bits}",
        )
    return replace(
        parameters, hash_family=family, n_tables=n_tables, n_bits=n_bits, n_components=components
    )


def code_bits(parameters: BuildParameters) -> int:
    """Return the number of bits in a code: 256, or more if the tables or components need more.

    The number is a multiple of 64. All defaults of `parameters` must be filled in.
    """
    bits = (parameters.n_tables or 0) * (parameters.n_bits or 0)
    if parameters.hash_family == "pca_hash":
        bits = parameters.n_components or 0
    return max(CODE_BITS, -(-bits // WORD_BITS) * WORD_BITS)


def code_depth(parameters: BuildParameters) -> int:
    """Return the bits of each margin in a code: as many as fit in `cells`, otherwise 1."""
    if parameters.hash_family != "cells":
        return 1
    components = parameters.n_components or 0
    return next((depth for depth in DEPTHS if components <= CODE_BITS // depth), 1)


def draw_hyperplanes(
    parameters: BuildParameters,
    vectors: BuildRows,
    centre: FloatArray,
    count: int,
    sketch: CountSketch | None = None,
) -> FloatArray:
    """Return hyperplanes (m, count) float32; each column is a unit direction or zeros.

    The columns after the last component (`pca_hash`) or after the last complete rotation (`cells`)
    are zeros. Directions have the m dimensions of the sketch, or the d dimensions of `vectors` (n,
    d) without a sketch. Families that use principal components compute them from `vectors` minus
    `centre` (d,). All defaults of `parameters` must be filled in.
    """
    rng = np.random.default_rng(parameters.seed)
    sketch = sketch or CountSketch(np.empty(0, np.int32), vectors.shape[1])
    dims = sketch.dims
    components = parameters.n_components or dims
    if parameters.hash_family == "pca_hash":
        basis = _components(vectors, centre, components, rng, sketch)
        return _deal(basis, parameters.n_tables or 1, parameters.n_bits or 1, count)
    orthogonal = parameters.hyperplanes == "orthogonal"
    if parameters.hash_family == "lsh_div" or components >= dims:
        # The components span the whole space, so a random direction needs no components.
        directions = _directions(rng, dims, count, orthogonal=orthogonal)
    else:
        basis = _components(vectors, centre, components, rng, sketch)
        directions = basis @ _directions(rng, components, count, orthogonal=orthogonal)
    directions /= np.linalg.norm(directions, axis=0)
    if orthogonal and code_depth(parameters) > 1:
        # An incomplete block would give some directions more weight, which would lose more recall
        # than the bits of the block gain.
        directions[:, count // components * components :] = 0
    return np.ascontiguousarray(directions, np.float32)


def dimensions_spanned(parameters: BuildParameters, dims: int) -> int:
    """Return the number of dimensions that hyperplanes span: all, or the number of components."""
    return dims if parameters.hash_family == "lsh_div" else parameters.n_components or dims


def _deal(components: npt.NDArray[np.float64], n_tables: int, n_bits: int, bits: int) -> FloatArray:
    """Return hyperplanes (d, bits) float32 of `pca_hash`, with components dealt to tables in turn.

    Dealing gives each table its share of the components of greatest variance. The columns of the
    tables are followed by the components that no table uses, and then by zeros.
    """
    count = components.shape[1]
    in_tables = np.arange(n_tables * n_bits).reshape(n_bits, n_tables).T.ravel()
    order = np.concatenate((in_tables, np.arange(n_tables * n_bits, count)))
    hyperplanes = np.zeros((len(components), bits), np.float32)
    hyperplanes[:, :count] = components[:, order]
    return hyperplanes


def _directions(
    rng: np.random.Generator, dims: int, count: int, *, orthogonal: bool
) -> npt.NDArray[np.float64]:
    if not orthogonal:
        return rng.standard_normal((dims, count))
    # The distribution of each block is uniform over all rotations (Stewart 1980).
    widths = [min(dims, count - at) for at in range(0, count, dims)]
    blocks = [_orthonormal(rng.standard_normal((dims, width))) for width in widths]
    return np.concatenate(blocks, axis=1)


def _orthonormal(columns: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the factor q of columns = q r, where r has a positive diagonal.

    Tall matrices use Cholesky's factorisation twice (Yamamoto et al. 2015), because it consists of
    matrix products. Householder's method takes ten times as long when threads are busy.
    """
    if len(columns) > GRAM_DIMS_MAX:
        # Only builds need this module, and each worker would spend a tenth of its start on it.
        from scipy.linalg import solve_triangular

        q = columns
        with contextlib.suppress(np.linalg.LinAlgError):
            for _ in range(2):
                factor = np.linalg.cholesky(q.T @ q)
                if np.ptp(np.log(np.diag(factor))) > _LOG_DIAGONAL_RANGE_MAX:
                    raise np.linalg.LinAlgError
                q = solve_triangular(factor, q.T, lower=True).T
            return q
    q, r = np.linalg.qr(columns)
    # The library may return an r with negative diagonal entries.
    return np.asarray(q * np.where(np.diag(r) < 0, -1, 1))


def _components(
    vectors: BuildRows,
    centre: FloatArray,
    count: int,
    rng: np.random.Generator,
    sketch: CountSketch,
) -> npt.NDArray[np.float64]:
    """Return the principal components of the sketched rows, or of a sample of many rows."""
    sample = _sample_rows(vectors, sketch.dims)
    if len(vectors) > sample:
        sketched = sketch.of_some(vectors, draw_numbers(len(vectors), sample, rng))
    else:
        sketched = sketch(vectors[:])
    return principal_components(sketched, sketch.of_dense(centre), count, rng)


def principal_components(
    vectors: Rows, centre: FloatArray, count: int, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Return the first `count` right singular vectors of vectors - centre, (d, count) float64.

    For dense vectors of up to 2,048 dimensions, or if `count` is close to d, the singular vectors
    are computed as eigenvectors of the second moments. Otherwise they are computed by randomised
    subspace iteration (Halko, Martinsson and Tropp 2011). This iteration subtracts the centre from
    products instead of from the vectors, so sparse vectors stay sparse.
    """
    dims = vectors.shape[1]
    width = min(dims, count + _OVERSAMPLING)
    if not isinstance(vectors, SparseRows) and dims <= GRAM_DIMS_MAX:
        return _leading(vectors - centre if centre.any() else vectors, None, count)
    if dims <= width:
        axes = np.eye(dims, dtype=np.float32)
        return _leading(_image(vectors, centre, axes), None, count)
    basis = _orthonormal(rng.standard_normal((dims, width)))
    for _ in range(_POWER_ITERATIONS):
        image = _image(vectors, centre, basis.astype(np.float32))
        back = vectors.matrix.T @ image if isinstance(vectors, SparseRows) else vectors.T @ image
        back = back - np.outer(centre, image.sum(axis=0))
        basis = _orthonormal(back.astype(np.float64))
    narrow = basis.astype(np.float32)
    return _leading(_image(vectors, centre, narrow), narrow, count)


def _sample_rows(vectors: BuildRows, dims: int) -> int:
    """Return the number of rows to compute components from, for `dims` hashed dimensions.

    A sample of sparse rows has fewer values, because each stored value takes many times longer.
    """
    most = _SAMPLE_FLOATS // dims
    if isinstance(vectors, SparseBuildRows):
        most = _SAMPLE_STORED // mean_width(vectors)
    return max(min(dims, _SUFFICIENT_ROWS), min(_SAMPLE_ROWS, most))


def _image(vectors: Rows, centre: FloatArray, basis: FloatArray) -> npt.NDArray[np.floating]:
    return (vectors @ basis) - centre @ basis


def _leading(
    image: npt.NDArray[np.floating], basis: FloatArray | None, count: int
) -> npt.NDArray[np.float64]:
    """Return the `count` directions (d, count) of greatest variance.

    `image` (n, m) holds the points in the coordinates of `basis` (d, m). If `basis` is None,
    `image` holds the points in the original coordinates.
    """
    moments = (image.T @ image).astype(np.float64)
    # eigh sorts in ascending order.
    directions = np.linalg.eigh(moments)[1][:, : -count - 1 : -1]
    if basis is not None:
        directions = basis @ directions
    # The sign of an eigenvector is arbitrary. Make the entry of largest absolute value positive.
    largest = np.abs(directions).argmax(axis=0)
    return np.asarray(directions * np.sign(directions[largest, np.arange(count)]))
