"""Pearson's chi-square of counts that should be alike, by simulation: right for few draws too.

Pearson, On the criterion that a given system of deviations is such that it can be reasonably
supposed to have arisen from random sampling, 1900.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from divgrpc.metrics import Values

_SIMULATED: Final = 20_000


def chi_square_test(counts: Sequence[int], alike: int = 1) -> tuple[float, float]:
    """Return p, at least 1 / 20,001, and the chi-square of `counts` (bins,) of draws.

    Of so many draws as are `alike` one is counted, as if the others said the same.
    """
    draws, bins = sum(counts) // alike, len(counts)
    if not draws:
        return 1.0, 0.0
    own = float(_chi_squares(np.asarray(counts, np.float64) / alike))
    simulated = _simulated(draws, np.full(bins, 1 / bins))
    return float((1 + (simulated >= own - 1e-9).sum()) / (1 + _SIMULATED)), own


def power(draws: int, density: Sequence[float], sure: float) -> float:
    """Return how often the test rejects, at p < `sure`, draws of a `density` (bins,)."""
    if not draws:
        return 0.0
    bins, shares = len(density), np.asarray(density) / np.sum(density)
    even = np.sort(_simulated(draws, np.full(bins, 1 / bins)))
    # Above it p is less than sure.
    least = even[-max(1, int(sure * (1 + _SIMULATED)))]
    return float((_simulated(draws, shares, seed=1) > least).mean())


def _simulated(draws: int, shares: Values, seed: int = 0) -> Values:
    """Return the chi-squares (simulated,) of samples."""
    random = np.random.default_rng(seed)
    return _chi_squares(random.multinomial(draws, shares, _SIMULATED).astype(np.float64))


def _chi_squares(counts: Values) -> Values:
    """Return the chi-square of each row of counts (..., bins), of the same even expectation."""
    expected = counts.mean(axis=-1, keepdims=True)
    return np.asarray((((counts - expected) ** 2) / expected).sum(axis=-1))
