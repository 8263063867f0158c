"""The verdicts on the paper's claims, tested on synthetic rows."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from divgrpc.parameters import QueryParameters
from divgrpc.types import Interval
from divgrpc_lab.table1 import claims
from divgrpc_lab.table1.bench import PCA, Coded, Growth, Spread, exponent
from divgrpc_lab.table1.methods import (
    ALL,
    BARE,
    FIGURES,
    FOLDED,
    HASHED,
    HIGH_DIAL,
    ONE_EXACT,
    TABLES,
    Case,
    Row,
    interval,
)
from divgrpc_lab.table1.paper import FAMILIES, KS, METHODS, printed

_CATEGORIES = np.repeat(np.arange(20), 2)
_FAMILY = "LSH-SDiv"
# Deviations of the means of categories, which the bootstrap draws from.
_NOISE = np.repeat(np.linspace(-0.02, 0.02, 20), 2)


_PARAMETERS = QueryParameters(diversity=0.3).resolve(1_000, "exact")


def row(
    method: str,
    family: str,
    stage: str,
    h: float,
    *,
    precision: float | None = None,
    microseconds: float = 100.0,
    dial: float | None = None,
) -> Row:
    """Return a row whose queries have `h`, or `precision`, plus some noise."""
    values = dict.fromkeys(FIGURES, h + _NOISE)
    if precision is not None:
        values["precision"] = precision + _NOISE
    return Row(
        data="synthetic",
        family=family,
        case=Case(method, stage, few=method == "QP-Rel", dial=dial),
        parameters=replace(_PARAMETERS, diversity=0.3 if dial is None else dial),
        values=values,
        categories=_CATEGORIES,
        h_seeds=(h,),
        short=0,
        microseconds=microseconds,
    )


def uneven(row: Row) -> Row:
    return replace(row, values={name: values[::-1].copy() for name, values in row.values.items()})


@pytest.mark.parametrize("method", METHODS)
def test_hashing_raises_h(method: str) -> None:
    """The claim holds if hashing raises h in every cell, and fails if it lowers h in one."""
    stage = ONE_EXACT if method == "Rerank" else ALL
    plain = row(method, "NH", stage, 0.7)
    better, worse = (row(method, "LSH-Div", TABLES, h) for h in (0.8, 0.6))
    assert claims.raises_h([plain, better], method, TABLES).holds is True
    assert claims.raises_h([plain, better, worse], method, TABLES).holds is False
    assert claims.raises_h([plain, uneven(better), uneven(plain)], method, TABLES).holds is True
    same = uneven(row(method, "LSH-SDiv", TABLES, 0.7))
    verdict = claims.raises_h([plain, better, same], method, TABLES)
    assert verdict.word == "cannot be told"
    assert "above zero in 1 of 2 cells, below in 0, too close to tell in 1" in verdict.sentence
    assert claims.raises_h([plain], method, TABLES).holds is None


def test_nearest_with_hashing_is_best() -> None:
    """The verdict compares the best row of NN with hashing to the paper's other methods."""
    nearest = row("NN", "LSH-Div", TABLES, 0.8)
    lower, higher = row("MMR", "NH", ALL, 0.7), row("Greedy", "LSH-SDiv", HASHED, 0.9)
    beyond = row("DPP", "NH", ALL, 0.95)
    assert claims.nearest_is_best([nearest, lower, beyond]).holds is True
    verdict = claims.nearest_is_best([nearest, lower, higher])
    assert verdict.holds is False
    assert "synthetic, 10: 0.800 against 0.900 (Greedy, LSH-SDiv, hashed)" in verdict.sentence
    assert claims.nearest_is_best([nearest, uneven(row("MMR", "NH", ALL, 0.8))]).holds is None


def test_greedy_collapses_without_a_limit() -> None:
    """The verdict compares precision with and without a hash limit, both at one fixed diversity."""

    def pair(precision: float) -> list[Row]:
        return [
            row("Greedy", "LSH-Div", TABLES, 0.8, precision=0.9, dial=HIGH_DIAL),
            row("Greedy", "LSH-Div", BARE, 0.5, precision=precision, dial=HIGH_DIAL),
        ]

    verdict = claims.greedy_collapses(pair(0.5))
    assert verdict.holds is True
    assert "P 0.50 without the limit, 0.90 with it" in verdict.sentence
    assert claims.greedy_collapses(pair(0.95)).holds is False
    with_limit, without = pair(0.9)
    assert claims.greedy_collapses([with_limit, uneven(without)]).holds is None
    assert claims.greedy_collapses([]).holds is None


def coded(family: str, n_bits: int, h: float, n_tables: int = 4) -> Coded:
    return Coded(n_bits, n_tables, row("Greedy", family, TABLES, h))


@pytest.mark.parametrize(("fewer", "holds"), [(6, True), (12, None), (24, False), (0, False)])
def test_fewer_bits_for_equal_h(fewer: int, holds: bool | None) -> None:
    """The claim compares the bits that each family needs to reach about the best h of LSH-Div."""
    div = [coded("LSH-Div", bits, h) for bits, h in ((6, 0.6), (12, 0.8), (24, 0.7))]
    sdiv = [coded("LSH-SDiv", bits, 0.81 if bits == fewer else 0.5) for bits in (6, 12, 24)]
    verdict = claims.fewer_bits([*div, *sdiv])
    assert verdict.holds is holds
    assert "0.790 is reached by LSH-Div surely with 48 bits" in verdict.sentence


@pytest.mark.parametrize(("h", "holds"), [(0.7, True), (0.9, False)])
def test_randomness_matters(h: float, holds: bool) -> None:
    """The verdict compares LSH-SDiv and PCA-Hash at equal bits and tables, and no other rows."""
    rows = [coded("LSH-SDiv", 6, 0.8), coded(PCA, 6, h), coded("LSH-SDiv", 12, 0.1)]
    assert claims.randomness_matters(rows).holds is holds


@pytest.mark.parametrize(
    ("counts", "word"),
    [
        ((50,) * 10, "is not rejected"),
        ((110, *(10,) * 9), "does not hold"),
        ((20,) * 10, "cannot be told"),
        ((0,) * 10, "cannot be told"),
    ],
)
def test_uniform_over_the_ball(counts: Sequence[int], word: str) -> None:
    """Only uneven counts reject uniformity, and with few draws the verdict stays open."""
    spread = Spread("synthetic", "uniform", 1_000, 10, tuple(counts))
    assert claims.uniform([spread]).word == word


def test_power_grows_with_draws_and_with_the_deviation() -> None:
    """If draws are uniform, the power of the test equals its significance level."""
    falling = np.linspace(1.36, 0.64, 10).tolist()
    assert claims.power(0, falling, 0.01) == 0
    assert claims.power(1_000, [1.0] * 10, 0.01) == pytest.approx(0.01, rel=1e-6)
    assert claims.power(50, falling, 0.01) < 0.2
    assert claims.power(500, falling, 0.01) > 0.8
    assert claims.power(100, [5.0] + [1.0] * 9, 0.01) > 0.9


def test_power_is_how_often_samples_are_rejected() -> None:
    """The power equals the share of simulated samples in which the test rejects uniformity."""
    density = np.linspace(1.4, 0.6, 10)
    counts = np.random.default_rng(0).multinomial(150, density / density.sum(), 4_000)
    rejected = np.mean([stats.chisquare(row).pvalue < 0.01 for row in counts])
    assert claims.power(150, density.tolist(), 0.01) == pytest.approx(rejected, abs=0.03)


def test_intervals_resample_categories() -> None:
    """Additional queries with the same values in each category do not narrow the interval."""
    alike = interval(np.repeat(np.linspace(0, 1, 20), 2), _CATEGORIES)
    twice = interval(np.repeat(np.linspace(0, 1, 20), 8), np.repeat(np.arange(20), 8))
    assert tuple(alike) == pytest.approx(tuple(twice))
    apart = interval(np.tile([0.0, 1.0], 20), _CATEGORIES)
    assert tuple(apart) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.parametrize(
    ("x", "holds"), [((0.5, 0.4, 0.6), True), ((1.2, 1.1, 1.3), False), ((0.9, 0.7, 1.1), None)]
)
def test_hashed_points_grow_slowly(x: tuple[float, float, float], holds: bool | None) -> None:
    growth = Growth("synthetic", (100, 200), (10.0, 14.0), (0.9, 0.85), (20, 29), Interval(*x))
    assert claims.grows_slowly([growth]).holds is holds
    assert claims.grows_slowly([growth._replace(recalls=(0.9, 0.7))]).holds is None


def test_exponent_is_that_of_a_power() -> None:
    """If each query hashes n**0.6 points times its own factor, the exponent is 0.6."""
    sizes = [100, 200, 400]
    points = np.array([[n**0.6 * q for n in sizes] for q in (1.0, 2.0, 3.0)])
    assert tuple(exponent(sizes, points)) == pytest.approx((0.6, 0.6, 0.6))


def test_faster_counts_the_slowest_case() -> None:
    """A claim about speed holds only if it holds in every case, so the slowest case decides."""
    plain = row("MMR", "NH", ALL, 0.7, microseconds=500.0)
    fast, slow = (row("MMR", "LSH-Div", HASHED, 0.7, microseconds=us) for us in (100.0, 250.0))
    assert claims.faster([plain, fast], "MMR").holds is True
    verdict = claims.faster([plain, fast, slow], "MMR")
    assert verdict.holds is False
    assert "from 2.0 to 5.0" in verdict.sentence
    assert claims.faster([], "MMR").holds is None
    greedy = row("Greedy", "NH", ALL, 0.7, microseconds=20_000.0)
    nearest = row("NN", "LSH-Div", HASHED, 0.7)
    assert claims.faster_than_greedy([greedy, nearest]).holds is True
    assert claims.faster_than_greedy([replace(greedy, microseconds=999.0), nearest]).holds is False


def exhaustive(h: float, greedy_h: float, microseconds: float = 100.0) -> list[Row]:
    """Return rows in which hashed greedy has h = `greedy_h` and exhaustive MMR has h = `h`."""
    return [
        row("NN", "NH", ALL, 0.7),
        row("MMR", "NH", ALL, h, microseconds=13_000.0),
        row("Greedy", "NH", ALL, 0.75, microseconds=12_000.0),
        row("Greedy", "NH", ONE_EXACT, 0.74, microseconds=1_000.0),
        row("Greedy", _FAMILY, FOLDED, greedy_h, microseconds=microseconds),
    ]


def targets(rows: Sequence[Row], family: str = _FAMILY) -> list[bool | None]:
    verdicts = claims.targets(list(claims.gains(rows)))
    return [verdict.holds for verdict in verdicts if f": {family}," in verdict.claim]


def test_gain_share_is_of_the_best_exhaustive_method() -> None:
    """MMR gains 0.1 of h over NN, and hashed greedy keeps 95 % of this gain.

    Hashed greedy is 120 times as fast as exhaustive greedy.
    """
    rows = exhaustive(0.8, 0.795)
    [hashed] = (item for item in claims.gains(rows) if item.stage == FOLDED)
    assert hashed.share is not None
    assert hashed.best_method == "MMR"
    assert hashed.share.value == pytest.approx(0.95)
    ratios = (hashed.times_best, hashed.times_greedy, hashed.times_exact_pass)
    assert ratios == pytest.approx((130, 120, 10))
    assert targets(rows) == [True, True]


def test_gain_and_speed_are_judged_separately() -> None:
    """Half of the gain misses the first target, and too small a speed-up misses the second."""
    assert targets(exhaustive(0.8, 0.75)) == [False, True]
    assert targets(exhaustive(0.8, 0.8, microseconds=200.0)) == [True, False]


def test_gain_is_judged_by_one_row_of_each_family() -> None:
    """A better row at other limits, or of another family, does not change a family's verdict."""
    others = [row("Greedy", _FAMILY, HASHED, 0.8), row("Greedy", "LSH-Div", FOLDED, 0.8)]
    rows = [*exhaustive(0.8, 0.75), *others]
    assert targets(rows)[0] is False
    assert targets(rows, "LSH-Div")[0] is True
    assert targets([])[0] is None


def test_a_small_gain_has_no_share() -> None:
    """If no method gains 0.02 of h, there is no share of a gain, and the verdict is open."""
    rows = [r for r in exhaustive(0.71, 0.70) if r.case != Case("Greedy", ALL)]
    rows.append(row("Greedy", "NH", ALL, 0.7))
    assert [item.share for item in claims.gains(rows)] == [None, None]
    assert targets(rows)[0] is None


def test_the_papers_h_is_at_most_the_harmonic_mean() -> None:
    """Up to rounding, no printed h exceeds the harmonic mean of P and D.

    Of 45 printed values, 14 are below the harmonic mean.
    """
    cells = printed()
    assert set(cells) == {(m, f, k) for m in METHODS for f in FAMILIES for k in KS}

    def harmonic(p: float, d: float) -> float:
        return 2 * p * d / (p + d)

    below = 0
    for cell in cells.values():
        p, d = cell.precision, cell.diversity
        assert cell.h - 0.005 <= harmonic(p + 0.005, d + 0.005)
        below += cell.h + 0.005 < harmonic(p - 0.005, d - 0.005)
    assert below == 14
    gaps = [harmonic(c.precision, c.diversity) - c.h for c in cells.values()]
    assert np.mean(gaps) == pytest.approx(0.0087, abs=5e-5)
    assert max(gaps) == pytest.approx(0.033, abs=5e-4)
