"""Distances estimated from codes, and codes and components of sparse points."""

from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from divgrpc.hashing import codes as coding
from divgrpc.hashing import hyperplanes as core
from divgrpc.hashing.count_sketch import SKETCH_SUMS
from divgrpc.index import Index
from divgrpc.kernels import code_scan, projection
from divgrpc.types import FloatArray, HashFamily, Hyperplanes, Metric, Points
from divgrpc.vectors import SparseRows
from reference import definitions, kernels
from reference.index import points_of
from support.data.mixed_indexes import stored_as

seeds = st.integers(0, 2**32 - 1)
LENGTHY: list[Metric] = ["euclidean", "inner_product"]
FAMILIES: list[HashFamily] = ["lsh_div", "lsh_sdiv", "pca_hash", "cells"]
Doubles = npt.NDArray[np.float64]


def drawn(rows: int, dims: int, seed: int, share: float = 1.0) -> FloatArray:
    """Draw points with a share of nonzero entries, whose lengths differ by a factor of 100."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((rows, dims)) * 10 ** rng.uniform(0, 2, (rows, 1))
    points[rng.random(points.shape) >= share] = 0
    return points.astype(np.float32)


def rotation(dims: int, seed: int) -> Doubles:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((dims, dims)))[0]


def estimated(
    query: FloatArray, points: FloatArray, planes: Doubles, factor: float, depth: int = 1
) -> Doubles:
    """Pass a query and points through projection, encoding, scan and estimate."""
    count, dims = planes.shape[1], planes.shape[0]
    margins, words = points @ planes.astype(np.float32), depth * count // 64
    shape = coding.tiles_shape(len(points), 64 * words)
    codes, levels = np.zeros(shape, np.uint8), coding.levels(margins, depth, count)
    coding.encode(levels, codes, 0)
    stretches = coding.stretches(margins, levels, dims / count)
    terms = coding.pack_terms(np.zeros(len(points), np.float32), factor * stretches)
    # Arrays are read-only as in an index, because writable arrays would compile the kernels again.
    codes.setflags(write=False)
    terms.setflags(write=False)
    query_margins = np.empty(count, np.float32)
    projection.project(query[np.newaxis], 0, planes.astype(np.float32), query_margins)
    query_levels = code_scan.levels_of(
        query_margins, False, False, codes, np.empty((len(query_margins) // 4, 16), np.uint8)
    )
    query_levels = query_levels._replace(unit=np.float32(query_levels.unit))
    estimates = np.full(len(points), np.nan, np.float32)
    for at in range(0, len(points), code_scan.BLOCK_POINTS):
        run = estimates[at : at + code_scan.BLOCK_POINTS]
        stop = at + len(run)
        code_scan.block_distances(codes, terms, query_levels, at, stop, np.float32(0), run)
    return estimates.astype(np.float64)


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("dims", [64, 256])
def test_the_error_of_an_estimated_product_is_bounded(dims: int, depth: int) -> None:
    """The error comes from the parts of point and query that are orthogonal to the code (RaBitQ).

    The cosine c between a code and its point is about 0.80 with one bit, 0.94 with two and 0.99
    with four. Relative to the product of both lengths, the error therefore has a standard deviation
    of sqrt(1 / c^2 - 1) / sqrt(d). All errors must stay below five standard deviations plus the
    query's quantisation error.
    """
    points, query = drawn(3000, dims, 1), drawn(1, dims, 2)[0]
    estimates = -estimated(query, points, rotation(dims, 3), 1, depth)
    truth = points.astype(np.float64) @ query
    lengths = np.linalg.norm(points, axis=1) * np.linalg.norm(query)
    off = (estimates - truth) / lengths
    sigma = coding._NOISES[depth] ** 0.5 / dims**0.5
    step = np.abs(query @ rotation(dims, 3)).max() / 7
    level = step / 12**0.5 / np.linalg.norm(query)
    assert np.abs(off).max() < 5 * sigma + 0.02
    assert abs(off.mean()) < 5 * sigma / len(points) ** 0.5 + 0.01
    assert 0.7 * sigma < off.std() < 1.3 * np.hypot(sigma, level)


def test_estimates_read_terms_from_the_given_start() -> None:
    rng = np.random.default_rng(4)
    terms = coding.pack_terms(*rng.standard_normal((2, 50)).astype(np.float32))
    scores = rng.integers(-900, 900, 20).astype(np.int32)
    estimates = -scores.astype(np.float32)
    base = np.float32(1.7)
    code_scan.estimate(np.float32(0.37), 41, terms, 30, base, estimates)
    products = (2 * scores - 41).astype(np.float32) * np.float32(0.37)
    offsets, factors = kernels.unpack_terms(terms)[:, 30:]
    assert estimates.tolist() == ((base + offsets) - products * factors).tolist()


def test_a_product_of_zero_keeps_the_sign_of_an_offset_of_zero() -> None:
    terms = coding.pack_terms(np.full(1, -0.0, np.float32), np.ones(1, np.float32))
    estimates = np.zeros(1, np.float32)
    code_scan.estimate(np.float32(1), 0, terms, 0, np.float32(-0.0), estimates)
    assert np.signbit(estimates).all()


def test_an_estimate_that_is_nan_becomes_infinite() -> None:
    huge = np.full(3, np.inf, np.float32)
    offsets = np.array([np.inf, np.inf, np.nan], np.float32)
    terms = coding.pack_terms(offsets, huge)
    one = np.float32(1)
    estimates = np.full(3, -one)
    code_scan.estimate(one, 0, terms, 0, one, estimates)
    assert estimates.tolist() == [np.inf] * 3


@given(seed=seeds, scale=st.sampled_from([1e-30, 1, 1e30]))
def test_packed_terms_have_eight_significant_bits(seed: int, scale: float) -> None:
    """Rounding to nearest leaves a relative error of at most 1/256."""
    drawn_terms = (np.random.default_rng(seed).standard_normal((2, 40)) * scale).astype(np.float32)
    terms = coding.pack_terms(*drawn_terms)
    assert terms.dtype == np.uint32
    off = np.abs(kernels.unpack_terms(terms) - drawn_terms)
    # Subnormal floats have fewer digits.
    assert (off <= np.abs(drawn_terms) / 255 + 1e-38).all()


@pytest.mark.parametrize("metric", LENGTHY)
@pytest.mark.parametrize("family", ["lsh_div", "lsh_sdiv", "pca_hash"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("is_centred", [False, True])
def test_terms_of_an_index_agree_with_the_reference(
    metric: Metric, family: HashFamily, kind: Points, is_centred: bool
) -> None:
    if is_centred and metric == "inner_product":
        return
    points = drawn(120, 30, 5, 0.4)
    points[7] = 0
    parameters: dict[str, Any] = {"metric": metric, "hash_family": family, "n_components": 9}
    index = Index.build(stored_as(points, kind), centred=is_centred, **parameters)
    twin = points_of(index)
    assert twin.terms is not None
    span = 30 if family == "lsh_div" else 9
    planes = 9 if family == "pca_hash" else 256
    margins = kernels.margins(points, twin.hyperplanes, twin.thresholds)
    margins[np.abs(margins) < 1e-6] = 0
    factor = 2 if metric == "euclidean" else 1
    stretches = factor * kernels.scan_terms(margins, span / planes)
    assert np.abs(twin.terms[1] - stretches).max() < stretches.max() / 250
    centre = points.mean(axis=0, dtype=np.float64) if is_centred else np.zeros(30)
    offsets = [definitions.distance(point, centre) for point in points]
    if metric == "inner_product":
        offsets = [0.0] * 120
    assert np.abs(twin.terms[0] - offsets).max() <= max(offsets) / 250
    assert "scan_terms" not in Index.build(points[8:], n_components=9).engine._arrays


def check_levels(code: npt.NDArray[np.int64], cut: Doubles, rounding: float) -> None:
    """Check that each level of a code (B,) is the nearest to its margin, up to rounding."""
    steps = cut / max(0.3352 * np.sqrt((cut**2).mean()), 1e-30)
    between = np.abs(steps - np.rint(steps)) * np.linalg.norm(cut)
    clear = between > 1e-3 * np.linalg.norm(cut) + rounding
    assert (code == kernels.nearest_levels(cut[None], 4)[0])[clear].all()


@pytest.mark.parametrize("metric", get_args(Metric))
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("components", [9, 30])
@pytest.mark.parametrize("hyperplanes", get_args(Hyperplanes))
def test_codes_in_cells_encode_the_difference_from_the_centre(
    metric: Metric, kind: Points, components: int, hyperplanes: Hyperplanes
) -> None:
    points = drawn(200, 30, 5, 0.4) + 20 * (kind == "dense")
    points[points.any(axis=1) == 0, 0] = 1
    options: dict[str, Any] = {"metric": metric, "hash_family": "cells", "n_components": components}
    index = Index.build(stored_as(points, kind), hyperplanes=hyperplanes, **options)
    twin = points_of(index)
    assert twin.cells is not None
    assert twin.terms is not None
    planes, width = twin.hyperplanes.astype(np.float64), twin.cells.centres.shape[1]
    # Hyperplanes are made in whole blocks of a rotation, so columns after the last block are zero.
    column_count = np.count_nonzero(planes.any(axis=0))
    assert column_count == (64 if hyperplanes == "gaussian" else 64 // components * components)
    # Codes are relative to a centre: the origin for inner products, else the mean of all points.
    mean = twin.vectors.mean(axis=0, dtype=np.float64) * (metric != "inner_product")
    for centre, square, members in zip(
        twin.cells.centres, twin.cells.squares, twin.cells.members, strict=True
    ):
        place = planes[:, :width] @ centre
        assert abs(square - place @ place) < 1e-4 * (place @ place + mean @ mean)
        for row in members:
            point = twin.vectors[row] - mean
            way, cut = point - place, (point - place) @ planes
            code = kernels.odd_levels(twin.bits[[row]], len(cut))[0]
            check_levels(
                code[:column_count], cut[:column_count], 1e-4 * float(np.linalg.norm(place))
            )
            stretch = components / column_count * (cut**2).sum() / max((cut * code).sum(), 1e-30)
            shift = stretch * (code * (place @ planes)).sum()
            expected = (way @ way + 2 * shift, 2 * stretch)
            if metric == "inner_product":
                expected = (0, stretch)
            # Tolerance for rounding errors and for the signs of differences close to zero.
            magnitudes = np.array([place @ place, np.linalg.norm(place)])
            room = np.abs(expected) / 200 + 3e-6 * magnitudes
            assert (np.abs(twin.terms[:, row] - expected) <= room).all()


@pytest.mark.parametrize("metric", get_args(Metric))
def test_errors_of_estimates_in_cells_are_bounded(metric: Metric) -> None:
    """The bound depends only on the points' differences from the centre of their cell (RaBitQ)."""
    points, queries = drawn(2000, 64, 1) + 50, drawn(5, 64, 2) + 50
    twin = points_of(Index.build(points, metric=metric, hash_family="cells"))
    assert twin.cells is not None
    assert twin.terms is not None
    # Points of 64 dimensions are hashed with four bits per margin.
    sigma = coding._NOISES[4] ** 0.5 / 64**0.5
    for vector in queries:
        query = definitions.unit(vector) if metric == "cosine" else vector.astype(np.float64)
        margins = kernels.margins(query, twin.hyperplanes, twin.thresholds)[0]
        level = np.abs(margins).max() / 7
        mean = twin.vectors.mean(axis=0, dtype=np.float64) * (metric != "inner_product")
        for cell, (centre, members) in enumerate(
            zip(twin.cells.centres[:9], twin.cells.members[:9], strict=True)
        ):
            place = twin.hyperplanes[:, : len(centre)].astype(np.float64) @ centre
            bases = [definitions.away(twin, twin.cells, cell, margins)] * len(members)
            bits, terms = twin.bits[members], twin.terms[:, members]
            estimates = kernels.estimates(margins, bits, terms, bases)
            for row, guess in zip(members, estimates, strict=True):
                way = twin.vectors[row] - mean - place
                start = place * (metric != "inner_product")
                far = np.linalg.norm(query - mean - start) * np.linalg.norm(way)
                truth, times = -(query @ twin.vectors[row]), 1
                if metric != "inner_product":
                    own_square = ((query - mean) ** 2).sum()
                    truth, times = ((query - twin.vectors[row]) ** 2).sum() - own_square, 2
                query_error = level * 64**0.5 * np.linalg.norm(way)
                rounding = (abs(truth) + place @ place + way @ way) / 100
                assert abs(guess - truth) < times * (5 * sigma * far + query_error) + rounding


@pytest.mark.parametrize("metric", get_args(Metric))
@pytest.mark.parametrize("family", ["lsh_div", "lsh_sdiv", "pca_hash"])
@pytest.mark.parametrize("is_centred", [False, True])
def test_sparse_points_have_the_codes_of_dense_ones(
    metric: Metric, family: HashFamily, is_centred: bool
) -> None:
    if is_centred and metric == "inner_product":
        return
    points = drawn(150, 40, 6, 0.3)
    points[points.any(axis=1) == 0, 0] = 1
    parameters: dict[str, Any] = {"metric": metric, "hash_family": family, "n_components": 8}
    index = Index.build(sparse.csr_array(points), centred=is_centred, **parameters)
    twin = points_of(index)
    margins = kernels.margins(twin.vectors, twin.hyperplanes, twin.thresholds)
    near = np.abs(margins) < 1e-5 * np.linalg.norm(twin.vectors, axis=1)[:, np.newaxis]
    assert (twin.bits == (margins >= 0))[~near].all()
    # An unused hyperplane is all zeros, so every point is within rounding of it.
    assert near.mean() < (0.97 if family == "pca_hash" else 0.01)
    of_dense = Index.build(points, centred=is_centred, **parameters)
    if family == "lsh_div":
        assert (points_of(of_dense).bits == twin.bits).mean() > 0.9999
    shape = of_dense.engine._arrays["hyperplanes"].shape
    assert index.engine._arrays["hyperplanes"].shape == shape


@pytest.mark.parametrize("is_centred", [False, True])
@pytest.mark.parametrize("dims", [12, 60, 300])
def test_components_of_sparse_and_dense_points_agree(dims: int, is_centred: bool) -> None:
    """The axes agree up to their sign, and the subspace is the same, with and without a sketch."""
    rng = np.random.default_rng(7)
    # Points mix noise and four topics of a few words; the strongest topic is eight times the
    # weakest.
    topics = np.zeros((4, dims))
    topics[np.arange(12) % 4, np.arange(12)] = 1 + rng.random(12)
    mixture = ((0.5 + rng.standard_normal((800, 4))) * 2.0 ** np.arange(4)) @ topics
    stray = rng.random(mixture.shape) < 0.05
    mixture[stray] += 0.1 * rng.standard_normal(stray.sum())
    points = mixture.astype(np.float32)
    centre = points.mean(axis=0) if is_centred else np.zeros(dims, np.float32)
    of_dense = core.principal_components(points, centre, 4, np.random.default_rng(1))
    rows = SparseRows.of(sparse.csr_array(points))
    of_sparse = core.principal_components(rows, centre, 4, np.random.default_rng(1))
    truth = np.linalg.svd(points.astype(np.float64) - centre, full_matrices=False)[2][:4].T
    for basis in (of_dense, of_sparse):
        assert np.abs(basis.T @ basis - np.eye(4)).max() < 1e-5
        assert np.linalg.svd(basis.T @ truth)[1].min() > 0.999
    axes = np.abs((of_dense * of_sparse).sum(axis=0))
    assert axes.min() > 0.99


@pytest.mark.parametrize("hyperplanes", get_args(Hyperplanes))
def test_components_of_sparse_points_are_computed_without_densifying(
    hyperplanes: Hyperplanes,
) -> None:
    rng = np.random.default_rng(8)
    points = sparse.random_array((300, 60_000), density=0.001, rng=rng, format="csr")
    index = Index.build(points.astype(np.float32), n_components=5, hyperplanes=hyperplanes)
    assert index.engine._arrays["hyperplanes"].shape == (SKETCH_SUMS, 256)
    assert index.info.nonzeros == len(index.engine._arrays["values"]) <= points.nnz
    sizes = {array.name: array.bytes for array in index.info.arrays}
    assert "vectors" not in sizes
    result = index.query(points[:9], k=1, search="scan", selector="nearest")
    assert result.ids[:, 0].tolist() == list(range(9))


depths = st.sampled_from(coding.DEPTHS)


@given(seed=seeds, depth=depths, rows=st.sampled_from([1, 9]), groups=st.integers(1, 2))
def test_codes_are_the_levels_nearest_to_the_margins(
    seed: int, depth: int, rows: int, groups: int
) -> None:
    """The step between levels depends on the root mean square of a row's margins."""
    rng = np.random.default_rng(seed)
    margins = (rng.standard_normal((rows, 64 * groups)) * 10 ** rng.uniform(-3, 3)).astype("f4")
    codes = coding.levels(margins, depth, margins.shape[1])
    nearest = kernels.nearest_levels(margins.astype(np.float64), depth)
    # At most one margin is so close to the middle between two levels that rounding decides.
    assert (codes == nearest).mean() > 0.999 or (codes != nearest).sum() <= 1
    shape = coding.tiles_shape(rows, 64 * groups * depth)
    tiles = np.full((shape[0] + 2, shape[1]), 7, np.uint8)
    coding.encode(codes, tiles[:-1], 32)
    bits = kernels.bits_in_tiles(tiles[1:-1], rows)
    assert kernels.odd_levels(bits, 64 * groups).tolist() == codes.tolist()
    assert (tiles[[0, -1]] == 7).all()


@pytest.mark.parametrize("depth", coding.DEPTHS)
def test_a_zero_row_has_the_code_of_the_lowest_positive_level(depth: int) -> None:
    assert (coding.levels(np.zeros((2, 64), np.float32), depth, 64) == 1).all()


@pytest.mark.parametrize("depth", coding.DEPTHS)
def test_the_noise_constants_are_those_of_normal_margins(depth: int) -> None:
    """The constant is 1 / c^2 - 1, where c is the cosine of normal margins and their code."""
    margins = np.random.default_rng(1).standard_normal((300, 256)).astype(np.float32)

    def noise(codes: np.ndarray) -> float:
        dots = (margins * codes).sum(axis=1)
        return float((((codes**2).sum(axis=1) * (margins**2).sum(axis=1)) / dots**2 - 1).mean())

    best_noise = noise(coding.levels(margins, depth, margins.shape[1]))
    assert abs(best_noise / coding._NOISES[depth] - 1) < 0.04
    for factor in (0.8, 1.25) if depth > 1 else ():
        half = 1 << (depth - 1)
        steps = np.floor(margins / (coding._STEPS[depth] * factor))
        assert noise(2 * np.clip(steps, -half, half - 1) + 1) > best_noise


@pytest.mark.parametrize(
    ("decay", "dims", "bits", "components"),
    [
        (0.0, 16, 256, 16),
        (0.0, 64, 256, 64),
        (0.0, 128, 256, 128),
        (0.0, 100, 256, 100),
        (0.1, 256, 256, 64),
        (3.0, 1000, 256, 64),
    ],
)
def test_few_components_are_hashed_if_they_hold_nearly_all_variance(
    decay: float, dims: int, bits: int, components: int
) -> None:
    assert coding.fitting_components(np.exp(-decay * np.arange(dims)), bits) == components


def test_points_without_variance_are_hashed() -> None:
    assert coding.fitting_components(np.zeros(300), 256) == 64
