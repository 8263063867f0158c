"""Hash families: how hyperplanes are drawn.

A code bit of x is the sign of x . p - t, for a hyperplane p and a threshold t (0, or the mean
point's projection if hashing is centred). In cells a margin may have more than one bit, see
`divgrpc.hashing.codes`. `lsh_div` draws directions at random (Charikar 2002; the paper's LSH-Div);
`lsh_sdiv` draws them inside the top principal components (its LSH-SDiv); `pca_hash` takes the
components themselves (Wang et al. 2006), one bit each; nothing in it is random, so it has no
collision probability. `cells` uses the hyperplanes of `lsh_sdiv` to rank points inside the cells of
a learned partition (`divgrpc.hashing.partition`), which has no collision probability either. Build
resolves `auto` to one of the others.

Gaussian directions are independent, as Eq. 5 and the lemma assume. Orthogonal directions come in
blocks of as many as there are dimensions (super-bit LSH, Ji et al. 2012): each bit alone has the
same collision probability, and the share of differing bits varies less around it.
"""

import contextlib
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import linalg

from divgrpc.errors import InvalidArgumentError
from divgrpc.hashing.codes import DEPTHS
from divgrpc.hashing.count_sketch import CountSketch, dims_after
from divgrpc.kernels import projection as kernels
from divgrpc.parameters import CODE_BITS, BuildParameters
from divgrpc.types import FloatArray
from divgrpc.vectors import Rows, SparseRows, mean_width

# Bits of a code word.
WORD_BITS: Final = 64
# Principal components by default, at most.
COMPONENTS_MAX: Final = 200
# Most rows that principal components are computed from: more rows do not change the signs.
_SAMPLE_ROWS: Final = 50_000
# Most numbers in those rows, dense and sparse, unless that leaves fewer than _SUFFICIENT_ROWS.
_SAMPLE_FLOATS: Final = 1 << 24
_SAMPLE_STORED: Final = 1 << 22
_SUFFICIENT_ROWS: Final = 4_096
# Dimensions up to which second moments are cheaper than subspace iteration.
GRAM_DIMS_MAX: Final = 2_048
# Points from which a scan of all codes takes longer than cells, if cells fit the points.
CELLS_ROWS_MIN: Final = 100_000
# Columns and iterations of the randomised subspace iteration beyond the components.
_OVERSAMPLING: Final = 16
_POWER_ITERATIONS: Final = 4
# Greatest range of the logarithms of Cholesky's diagonal at which it keeps enough digits.
_LOG_DIAGONAL_RANGE_MAX: Final = 13.0


def fill_defaults(parameters: BuildParameters, rows: int, dims: int) -> BuildParameters:
    """Return parameters with n_tables, n_bits and n_components set; `auto` becomes `lsh_div`.

    Raises `InvalidArgumentError` if there are fewer dimensions than requested components, or fewer
    components than `pca_hash` needs for its tables.
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
        # If all dimensions fit into a code, all are hashed.
        components = parameters.n_components or (dims if dims <= CODE_BITS else COMPONENTS_MAX)
        return replace(parameters, hash_family=family, n_components=components)
    n_tables, n_bits = 10, min(24, max(8, rows.bit_length() - 2))
    if family == "pca_hash":
        # A component is one bit of one table, and there are no others to draw.
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
    """Return the bits of a code: 256, or as many whole words as tables and components need.

    `parameters` are filled in.
    """
    bits = (parameters.n_tables or 0) * (parameters.n_bits or 0)
    if parameters.hash_family == "pca_hash":
        bits = parameters.n_components or 0
    return max(CODE_BITS, -(-bits // WORD_BITS) * WORD_BITS)


def code_depth(parameters: BuildParameters) -> int:
    """Return how many bits of a code each margin has: in cells as many as fit."""
    if parameters.hash_family != "cells":
        return 1
    components = parameters.n_components or 0
    return next((depth for depth in DEPTHS if components <= CODE_BITS // depth), 1)


def draw_hyperplanes(
    parameters: BuildParameters,
    vectors: Rows,
    centre: FloatArray,
    count: int,
    sketch: CountSketch | None = None,
) -> FloatArray:
    """Return hyperplanes (m, count) float32, each column a unit direction or zeros.

    Columns of zeros follow the last component of `pca_hash` and, in cells, the last complete
    rotation; their bits are the same for all points. Directions are in the space of the sketched
    `vectors` (n, d); without a sketch m is d. Families with components read the vectors, centred at
    `centre` (d,). `parameters` are filled in.
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
        # All components span the whole space, and a rotated random direction is random.
        directions = _directions(rng, dims, count, orthogonal=orthogonal)
    else:
        basis = _components(vectors, centre, components, rng, sketch)
        directions = basis @ _directions(rng, components, count, orthogonal=orthogonal)
    directions /= np.linalg.norm(directions, axis=0)
    if orthogonal and code_depth(parameters) > 1:
        # An incomplete block would weigh some directions more than others, which costs more recall
        # than the bits of that block give.
        directions[:, count // components * components :] = 0
    return np.ascontiguousarray(directions, np.float32)


def dimensions_spanned(parameters: BuildParameters, dims: int) -> int:
    """Return how many dimensions the hyperplanes span: all, or one per component."""
    return dims if parameters.hash_family == "lsh_div" else parameters.n_components or dims


def _deal(components: npt.NDArray[np.float64], n_tables: int, n_bits: int, bits: int) -> FloatArray:
    """Return (d, bits) float32: components dealt to the tables in turn, the rest, then zeros.

    Each table thus gets its share of the strong components.
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
    # Each block is uniform over all rotations (Stewart 1980).
    widths = [min(dims, count - at) for at in range(0, count, dims)]
    blocks = [_orthonormal(rng.standard_normal((dims, width))) for width in widths]
    return np.concatenate(blocks, axis=1)


def _orthonormal(columns: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the q of the factorisation columns = q r whose r has a positive diagonal.

    Tall matrices use Cholesky's factorisation twice (Yamamoto et al. 2015). It consists of matrix
    products; Householder's takes ten times as long on busy threads.
    """
    if len(columns) > GRAM_DIMS_MAX:
        q = columns
        with contextlib.suppress(np.linalg.LinAlgError):
            for _ in range(2):
                factor = np.linalg.cholesky(q.T @ q)
                if np.ptp(np.log(np.diag(factor))) > _LOG_DIAGONAL_RANGE_MAX:
                    raise np.linalg.LinAlgError
                q = linalg.solve_triangular(factor, q.T, lower=True).T
            return q
    q, r = np.linalg.qr(columns)
    # The signs of r remove the sign convention of the library.
    return np.asarray(q * np.where(np.diag(r) < 0, -1, 1))


def _components(
    vectors: Rows,
    centre: FloatArray,
    count: int,
    rng: np.random.Generator,
    sketch: CountSketch,
) -> npt.NDArray[np.float64]:
    """Return the principal components of sketched rows, from a sample if they are many."""
    sample = _sample_rows(vectors, sketch.dims)
    if len(vectors) > sample:
        rows = np.sort(rng.choice(len(vectors), sample, replace=False))
        vectors = sketch.of_some(vectors, rows)
    else:
        vectors = sketch(vectors)
    return principal_components(vectors, sketch.of_dense(centre), count, rng)


def principal_components(
    vectors: Rows, centre: FloatArray, count: int, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Return the top `count` right singular vectors around `centre`, (d, count) float64.

    Up to 2,048 dense dimensions they are eigenvectors of the second moments; otherwise they come
    from randomised subspace iteration (Halko, Martinsson and Tropp 2011), which keeps sparse rows
    sparse: the centre is subtracted from the products.
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


def _sample_rows(vectors: Rows, dims: int) -> int:
    """Return how many rows components are computed from, sketched to `dims` columns.

    They hold 2^24 numbers at most; 2^22 if they are sparse, since each takes many times longer.
    """
    most = _SAMPLE_FLOATS // dims
    if isinstance(vectors, SparseRows):
        most = _SAMPLE_STORED // mean_width(vectors)
    return max(min(dims, _SUFFICIENT_ROWS), min(_SAMPLE_ROWS, most))


def _image(vectors: Rows, centre: FloatArray, basis: FloatArray) -> npt.NDArray[np.floating]:
    return (vectors @ basis) - centre @ basis


def _leading(
    image: npt.NDArray[np.floating], basis: FloatArray | None, count: int
) -> npt.NDArray[np.float64]:
    """Return the `count` directions (d, count) of greatest variance.

    `image` (n, m): the points in the coordinates of `basis` (d, m), or the points if that is None.
    """
    moments = (image.T @ image).astype(np.float64)
    # eigh sorts in ascending order.
    directions = np.linalg.eigh(moments)[1][:, : -count - 1 : -1]
    if basis is not None:
        directions = basis @ directions
    # The sign of an eigenvector is arbitrary: make its largest entry positive.
    largest = np.abs(directions).argmax(axis=0)
    return np.asarray(directions * np.sign(directions[largest, np.arange(count)]))


def build_table(
    codes: npt.NDArray[np.uint64], table: int, n_bits: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return (keys, offsets, rows) of one table.

    If there are at most four times as many keys as points, buckets are numbered by key and `keys`
    is empty; otherwise `keys` uint32 holds the keys that occur, ascending. `offsets` int32 has one
    entry per bucket and one more; bucket b has rows[offsets[b]:offsets[b + 1]] int32, ascending.
    """
    points = codes.shape[1]
    point_keys = np.empty(points, np.uint32)
    kernels.table_keys(codes, table * n_bits, n_bits, point_keys)
    keys = np.empty(0, np.uint32)
    buckets = 1 << n_bits
    if buckets > 4 * points:
        keys, inverse = np.unique(point_keys, return_inverse=True)
        point_keys, buckets = inverse.astype(np.uint32), len(keys)
    offsets = np.empty(buckets + 1, np.int32)
    rows = np.empty(points, np.int32)
    kernels.fill_table(point_keys, offsets, rows)
    return keys, offsets, rows
