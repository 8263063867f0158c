"""Codes of one, two and four bits per margin, and how many components are hashed in them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.hashing import codes as coding
from reference import kernels

examples = settings(deadline=None, derandomize=True, max_examples=60)
seeds = st.integers(0, 2**32 - 1)
depths = st.sampled_from(coding.DEPTHS)


@examples
@given(seed=seeds, depth=depths, rows=st.sampled_from([1, 9]), groups=st.integers(1, 2))
def test_codes_are_the_levels_nearest_to_the_margins(
    seed: int, depth: int, rows: int, groups: int
) -> None:
    """In steps that follow the length of the row; what is written reads as the same numbers."""
    rng = np.random.default_rng(seed)
    margins = (rng.standard_normal((rows, 64 * groups)) * 10 ** rng.uniform(-3, 3)).astype("f4")
    codes = coding.levels(margins, depth, margins.shape[1])
    nearest = kernels.nearest_levels(margins.astype(np.float64), depth)
    # One that rounding puts on the other side of the middle between two levels.
    assert (codes == nearest).mean() > 0.999 or (codes != nearest).sum() <= 1
    words = np.full((depth * groups, rows + 3), 7, np.uint64)
    coding.encode(codes, words, 2)
    bits = kernels.unpack(words[:, 2:-1])
    assert kernels.odd_levels(bits, 64 * groups).tolist() == codes.tolist()
    assert (words[:, :2] == 7).all()
    assert (words[:, -1] == 7).all()


@pytest.mark.parametrize("depth", coding.DEPTHS)
def test_a_row_of_zeros_has_a_code(depth: int) -> None:
    """A margin of zero is on the side of a set sign, as everywhere."""
    assert (coding.levels(np.zeros((2, 64), np.float32), depth, 64) == 1).all()


@pytest.mark.parametrize("depth", coding.DEPTHS)
def test_the_noise_of_levels_is_that_of_normal_margins(depth: int) -> None:
    """1 / c^2 - 1 of the cosine c between margins and codes; no other step does better by much."""
    margins = np.random.default_rng(1).standard_normal((300, 256)).astype(np.float32)

    def noise(codes: np.ndarray) -> float:
        dots = (margins * codes).sum(axis=1)
        return float((((codes**2).sum(axis=1) * (margins**2).sum(axis=1)) / dots**2 - 1).mean())

    own = noise(coding.levels(margins, depth, margins.shape[1]))
    assert abs(own / coding._NOISES[depth] - 1) < 0.04
    for other in (0.8, 1.25) if depth > 1 else ():
        half = 1 << (depth - 1)
        steps = np.floor(margins / (coding._STEPS[depth] * other))
        assert noise(2 * np.clip(steps, -half, half - 1) + 1) > own


@pytest.mark.parametrize(
    ("falling", "dims", "bits", "components"),
    [
        (0.0, 16, 256, 16),
        (0.0, 64, 256, 64),
        (0.0, 128, 256, 128),
        (0.0, 100, 256, 100),
        (0.1, 256, 256, 64),
        (3.0, 1000, 256, 64),
    ],
)
def test_as_few_components_are_hashed_as_hold_nearly_all(
    falling: float, dims: int, bits: int, components: int
) -> None:
    """All of them where they are alike and have room; few where the strongest hold nearly all."""
    assert coding.fitting_components(np.exp(-falling * np.arange(dims)), bits) == components


def test_points_that_do_not_vary_are_hashed_all_the_same() -> None:
    """Whatever is chosen for them."""
    assert coding.fitting_components(np.zeros(300), 256) == 64
