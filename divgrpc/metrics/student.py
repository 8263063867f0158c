"""Student's t distribution, without scipy because clients use this package without it."""

import math
from functools import lru_cache
from typing import Final

_LEVEL: Final = 0.05
_PRECISION: Final = 1e-15
# Maximum number of terms of the continued fraction. About sqrt(degrees) terms are needed.
_TERMS_MAX: Final = 100_000


def two_sided_p(t: float, degrees: float) -> float:
    """Return the probability that |T| is at least |t|, for T with `degrees` degrees of freedom.

    `degrees` is 1 or more and need not be whole. The result is NaN if t is NaN.

    Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), 26.7.1 and 26.5.8.
    """
    if math.isnan(t):
        return math.nan
    square = t * t
    outer = degrees / (degrees + square)
    if not outer:
        return 0.0
    inner = square / (degrees + square)
    if not inner:
        return 1.0
    a, b = degrees / 2, 0.5
    front = math.exp(
        math.lgamma(a + b)
        - math.lgamma(a)
        - math.lgamma(b)
        + a * -math.log1p(square / degrees)
        + b * math.log(inner)
    )
    # The continued fraction converges quickly on one side of the mean of the beta distribution.
    if outer < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, outer) / a
    return 1.0 - front * _fraction(b, a, inner) / b


@lru_cache(maxsize=4096)
def critical_t(degrees: float) -> float:
    """Return the t above 0 whose `two_sided_p` is 0.05; NaN if `degrees` is NaN."""
    if math.isnan(degrees):
        return math.nan
    low, high = 0.0, 2.0
    while two_sided_p(high, degrees) > _LEVEL:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if two_sided_p(middle, degrees) > _LEVEL else (low, middle)
    return high


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function at `x`, by Lentz's method."""
    product = ratio = 1 / (1 - (a + b) * x / (a + 1))
    upper = 1.0
    for m in range(1, _TERMS_MAX):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = product
        for term in (even, odd):
            ratio = 1 / (1 + term * ratio)
            upper = 1 + term / upper
            product *= ratio * upper
        if abs(product - before) < _PRECISION * abs(product):
            break
    return product
