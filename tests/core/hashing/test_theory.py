"""Statistical guarantees of random hyperplanes hold for the implementation.

Statistical tests use fixed seeds. Each is designed so that a correct implementation would fail for
one in a million choices of seeds; `CHANCE` is that probability, divided among a test's comparisons.
"""

from functools import cache
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from divgrpc.hashing.hyperplanes import draw_hyperplanes, principal_components
from divgrpc.index import Index
from divgrpc.parameters import BuildParameters
from divgrpc.types import FloatArray, HashFamily, Hyperplanes
from reference import definitions
from reference.kernels import collision_probability, tables_needed

CHANCE = 1e-6
DIMS, COMPONENTS = 24, 8
DISTANCES = [0.05, 0.3, 1.0, 2.0, 3.0, 3.9]
Doubles = npt.NDArray[np.float64]


@cache
def spectrum_points() -> FloatArray:
    """Draw points whose variance differs by direction, so that they have principal components."""
    rng = np.random.default_rng(1)
    points = rng.standard_normal((400, DIMS)) * np.linspace(2, 0.2, DIMS)
    rotation = np.linalg.qr(rng.standard_normal((DIMS, DIMS)))[0]
    return definitions.unit(points @ rotation).astype(np.float32)


def drawn(
    family: HashFamily, hyperplanes: Hyperplanes, bits: int, seed: int = 0
) -> npt.NDArray[np.float64]:
    """Return hyperplanes (d, bits) of a family for `spectrum_points`."""
    parameters = BuildParameters(
        hash_family=family, hyperplanes=hyperplanes, n_components=COMPONENTS, seed=seed
    )
    return draw_hyperplanes(parameters, spectrum_points(), np.zeros(DIMS, np.float32), bits).astype(
        np.float64
    )


@cache
def components() -> Doubles:
    """Return an orthonormal basis (d, c) of the top principal components."""
    points = spectrum_points().astype(np.float64)
    return np.asarray(np.linalg.svd(points, full_matrices=False)[2][:COMPONENTS].T)


def pair(distance: float, basis: Doubles) -> tuple[Doubles, Doubles]:
    """Return two unit vectors whose projections onto `basis` have this squared distance."""
    rng = np.random.default_rng(2)
    first, perpendicular = np.linalg.qr(rng.standard_normal((basis.shape[1], 2)))[0].T
    cosine = 1 - distance / 2
    second = cosine * first + sqrt(1 - cosine**2) * perpendicular
    outside = rng.standard_normal((2, DIMS))
    outside -= outside @ basis @ basis.T
    return (
        definitions.unit(basis @ first + 0.3 * outside[0]),
        definitions.unit(basis @ second + 0.3 * outside[1]),
    )


def whole_space(family: HashFamily) -> Doubles:
    return np.eye(DIMS) if family == "lsh_div" else components()


def differing(planes: Doubles, a: Doubles, b: Doubles) -> npt.NDArray[np.bool_]:
    return np.not_equal(a @ planes >= 0, b @ planes >= 0)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("family", ["lsh_div", "lsh_sdiv"])
def test_gaussian_bits_agree_with_the_probability_of_eq_5(
    family: HashFamily, distance: float
) -> None:
    """For lsh_sdiv, Eq. 5 applies to the distance between projections onto the components."""
    bits = 20_000
    a, b = pair(distance, whole_space(family))
    agreements = bits - int(differing(drawn(family, "gaussian", bits), a, b).sum())
    law = stats.binom(bits, collision_probability(distance))
    chance = CHANCE / len(DISTANCES) / 4
    assert law.ppf(chance) <= agreements <= law.isf(chance)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("family", ["lsh_div", "lsh_sdiv"])
def test_orthogonal_bits_agree_with_the_probability_of_eq_5(
    family: HashFamily, distance: float
) -> None:
    """Bits of one block are dependent, so the test estimates its error from whole blocks."""
    block = DIMS if family == "lsh_div" else COMPONENTS
    blocks = 20_000 // block
    a, b = pair(distance, whole_space(family))
    differ = differing(drawn(family, "orthogonal", blocks * block), a, b)
    shares = 1 - differ.reshape(blocks, block).mean(axis=1)
    error = stats.sem(shares) * stats.norm.isf(CHANCE / len(DISTANCES) / 4)
    assert abs(shares.mean() - collision_probability(distance)) <= error


@pytest.mark.parametrize("hyperplanes", ["orthogonal", "gaussian"])
@pytest.mark.parametrize("family", ["lsh_div", "lsh_sdiv"])
def test_hyperplanes_are_unit_vectors_in_the_span_of_their_family(
    family: HashFamily, hyperplanes: Hyperplanes
) -> None:
    planes = drawn(family, hyperplanes, 256)
    assert np.abs(np.linalg.norm(planes, axis=0) - 1).max() < 1e-6
    basis = whole_space(family)
    assert np.abs(planes - basis @ (basis.T @ planes)).max() < 1e-4


def test_pca_hash_deals_components_to_tables_in_turn() -> None:
    vectors, rng = spectrum_points(), np.random.default_rng(0)
    parameters = BuildParameters(hash_family="pca_hash", n_tables=2, n_bits=3, n_components=8)
    centre = np.zeros(DIMS, np.float32)
    planes = draw_hyperplanes(parameters, vectors, centre, 256)
    top = principal_components(vectors, centre, 8, rng)
    assert np.abs(planes[:, :8] - top[:, [0, 2, 4, 1, 3, 5, 6, 7]]).max() < 1e-6
    assert not planes[:, 8:].any()


@pytest.mark.parametrize("family", ["lsh_div", "lsh_sdiv"])
def test_orthogonal_hyperplanes_are_orthogonal_in_blocks(family: HashFamily) -> None:
    planes, size = drawn(family, "orthogonal", 256), len(whole_space(family).T)
    for at in range(0, 256, size):
        block = planes[:, at : at + size]
        assert np.abs(block.T @ block - np.eye(block.shape[1])).max() < 1e-5


@pytest.mark.parametrize("hyperplanes", ["orthogonal", "gaussian"])
def test_a_direction_is_as_likely_as_its_opposite(hyperplanes: Hyperplanes) -> None:
    draws = 400
    bits = np.array(
        [drawn("lsh_div", hyperplanes, DIMS, seed)[[0, 7]] >= 0 for seed in range(draws)]
    )
    law, chance = stats.binom(draws, 0.5), CHANCE / DIMS / 8
    set_bits = bits.sum(axis=0)
    assert set_bits.min() >= law.ppf(chance)
    assert set_bits.max() <= law.isf(chance)


def test_centred_hashing_takes_components_around_the_mean() -> None:
    points = definitions.unit(spectrum_points() + 3 * np.eye(DIMS)[0]).astype(np.float32)
    index = Index.build(points, hash_family="lsh_sdiv", n_components=3, centred=True)
    residuals = points - points.mean(axis=0, dtype=np.float64)
    basis = np.linalg.svd(residuals, full_matrices=False)[2][:3].T
    planes = index.engine._arrays["hyperplanes"].astype(np.float64)
    assert np.abs(planes - basis @ (basis.T @ planes)).max() < 1e-4


def test_randomised_components_of_many_dimensions_are_the_true_ones() -> None:
    """Above 2,048 dimensions a randomised method computes the components."""
    rng = np.random.default_rng(3)
    basis = np.linalg.qr(rng.standard_normal((2100, 5)))[0]
    points = rng.standard_normal((300, 5)) * [5, 4, 3, 2, 1] @ basis.T
    points += 0.001 * rng.standard_normal(points.shape)
    planes = draw_hyperplanes(
        BuildParameters(n_components=5),
        definitions.unit(points).astype(np.float32),
        np.zeros(2100, np.float32),
        64,
    ).astype(np.float64)
    assert np.abs(planes - basis @ (basis.T @ planes)).max() < 1e-2


def equidistant(points: int, distance: float) -> tuple[Doubles, Doubles]:
    """Return a query and points (m, d), all at this squared distance from it."""
    rng = np.random.default_rng(4)
    query = definitions.unit(rng.standard_normal((1, DIMS)))[0]
    aside = rng.standard_normal((points, DIMS))
    aside = definitions.unit(aside - np.outer(aside @ query, query))
    cosine = 1 - distance / 2
    return query, cosine * query + sqrt(1 - cosine**2) * aside


@pytest.mark.parametrize("distance", [1.0, 2.0, 3.0])
def test_orthogonal_hyperplanes_have_less_variance(distance: float) -> None:
    """An F test compares the variances of the Hamming distance over draws of one block."""
    draws, (a, b) = 1500, pair(distance, np.eye(DIMS))
    kinds: tuple[Hyperplanes, ...] = ("gaussian", "orthogonal")
    variances = {}
    for kind in kinds:
        counts = [differing(drawn("lsh_div", kind, DIMS, s), a, b).sum() for s in range(draws)]
        variances[kind] = np.var(counts, ddof=1)
    ratio = variances["orthogonal"] / variances["gaussian"]
    assert ratio < stats.f(draws - 1, draws - 1).ppf(CHANCE)


def test_every_point_within_r_is_found_with_probability_one_minus_delta() -> None:
    """A point at distance r itself is missed exactly as often as theory predicts."""
    radius, n_bits, delta, builds = 0.5, 6, 0.1, 80
    n_tables = tables_needed(radius, n_bits, delta)
    query, border = equidistant(15, radius)
    _, nearer = equidistant(15, radius / 3)
    far = definitions.unit(np.random.default_rng(5).standard_normal((70, DIMS)))
    misses = np.zeros(30)
    parameters: dict[str, Any] = {"hash_family": "lsh_div", "hyperplanes": "gaussian"}
    parameters |= {"n_tables": n_tables, "n_bits": n_bits, "target_recall": 1e-9}
    for seed in range(builds):
        index = Index.build(np.concatenate([border, nearer, far]), seed=seed, **parameters)
        # The tuner probes at least the home bucket of each table.
        assert index.info.n_probes == n_tables
        result = index.query(
            query, k=100, search="tables", selector="nearest", hash_limit=0, candidates_limit=0
        )
        misses += ~np.isin(np.arange(30), result.ids)
    law = stats.binom(builds, delta)
    assert misses.max() <= law.isf(CHANCE / 30)
    expected = (1 - collision_probability(radius) ** n_bits) ** n_tables
    exact = stats.binom(builds, expected)
    chance = CHANCE / 15 / 2
    assert (misses[:15] >= exact.ppf(chance)).all()
    assert (misses[:15] <= exact.isf(chance)).all()
