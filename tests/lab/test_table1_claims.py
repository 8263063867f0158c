"""The claims about Table 1 and their verdicts, tested on synthetic rows."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from divgrpc.parameters import QueryParameters
from divgrpc_lab.table1 import claims
from divgrpc_lab.table1.bench import BINS, Growth, Spread, exponents
from divgrpc_lab.table1.home import PCA, Coded
from divgrpc_lab.table1.methods import (
    ALL,
    BARE,
    FIGURES,
    HASH_BY_FOLDS,
    HASH_SEARCH,
    HIGH_DIAL,
    HOME,
    HOME_BY_FOLDS,
    ONE_EXACT,
    TIME,
    TUNED_BUCKETS,
    Case,
    Row,
)
from divgrpc_lab.table1.paper import FAMILIES, KS, METHODS, printed
from divgrpc_lab.verdicts import Claim, Verdict, judge

_CATEGORIES = np.repeat(np.arange(20), 2)
_FAMILY = "LSH-SDiv"
# Deviations of the means of categories.
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
    k: int = 10,
) -> Row:
    """Return a row whose queries have `h`, or `precision`, plus some noise."""
    values = dict.fromkeys(FIGURES, h + _NOISE)
    if precision is not None:
        values["precision"] = precision + _NOISE
    return Row(
        data="synthetic",
        family=family,
        case=Case(method, stage, dial=dial),
        parameters=replace(_PARAMETERS, k=k, diversity=0.3 if dial is None else dial),
        draws={name: column[None] for name, column in values.items()}
        | {TIME: np.full((1, 40), microseconds)},
        categories=_CATEGORIES,
        short=0,
        microseconds=microseconds,
    )


def uneven(row: Row) -> Row:
    return replace(row, draws={name: draws[:, ::-1].copy() for name, draws in row.draws.items()})


def judged(claim: Claim) -> Verdict:
    [verdict] = judge([claim])
    return verdict


@pytest.mark.parametrize("method", METHODS)
def test_hashing_raises_h(method: str) -> None:
    """The effect is the mean difference over queries, k and hash families."""
    stage = ONE_EXACT if method == "Rerank" else ALL
    plain = row(method, "NH", stage, 0.7)
    better, worse = (row(method, "LSH-Div", HOME_BY_FOLDS, h) for h in (0.8, 0.6))
    assert judged(claims.raises([plain, better], "h", method, HOME_BY_FOLDS)).holds is True
    assert judged(claims.raises([plain, worse], "h", method, HOME_BY_FOLDS)).holds is False
    both = judged(claims.raises([plain, uneven(better), uneven(worse)], "h", method, HOME_BY_FOLDS))
    assert both.holds is None
    assert both.effects[0].size.value == pytest.approx(0.0)
    same = uneven(row(method, "LSH-SDiv", HOME_BY_FOLDS, 0.7))
    verdict = judged(claims.raises([plain, same], "h", method, HOME_BY_FOLDS))
    assert verdict.word == "cannot be told"
    assert claims.raises([plain], "h", method, HOME_BY_FOLDS).contrasts == []


def test_hash_seeds_count_as_random() -> None:
    """If the seeds disagree, equal queries do not decide a claim; if they agree, they do."""
    plain = row("NN", "NH", ALL, 0.7)

    def hashed(*shifts: float) -> Row:
        draws = {name: draws + np.array(shifts)[:, None] for name, draws in plain.draws.items()}
        return replace(plain, draws=draws, family="LSH-Div", case=Case("NN", HASH_SEARCH))

    assert judged(claims.raises([plain, hashed(0.1, 0.11)], "h", "NN", HASH_SEARCH)).holds is True
    apart = judged(claims.raises([plain, hashed(0.4, -0.19)], "h", "NN", HASH_SEARCH))
    assert apart.holds is None
    assert apart.effects[0].size.value == pytest.approx(0.105)


def shifted(of: Row, *shifts: float) -> Row:
    """Return a row with a hash seed for each shift, by which all of its figures differ."""
    draws = {name: columns + np.array(shifts)[:, None] for name, columns in of.draws.items()}
    return replace(of, draws=draws)


_SHIFTS = pytest.mark.parametrize(("shifts", "holds"), [((0.1, 0.11), True), ((0.4, -0.19), None)])


@_SHIFTS
def test_hash_seeds_count_as_random_beside_the_best(
    shifts: tuple[float, float], holds: bool | None
) -> None:
    """A shift of all queries by a hash seed is not taken for an effect of nearest neighbours."""
    rows = [row("MMR", "NH", ALL, 0.7), shifted(row("NN", "LSH-Div", HASH_SEARCH, 0.7), *shifts)]
    assert judged(claims.nearest_is_best(rows)).holds is holds


@_SHIFTS
def test_hash_seeds_count_as_random_in_the_gain(
    shifts: tuple[float, float], holds: bool | None
) -> None:
    """A shift of all queries by a hash seed is not taken for a share of the gain."""
    rows = [
        *exhaustive(0.7, 0.745)[:-1],
        shifted(row("Greedy", _FAMILY, HASH_BY_FOLDS, 0.745), *shifts),
    ]
    [gain] = (item for item in claims.gains(rows) if item.stage == HASH_BY_FOLDS)
    assert judged(claims.keeps_the_gain([gain], _FAMILY)).holds is holds


def test_nearest_with_hashing_is_best() -> None:
    """The best row of NN with hashing is compared with the paper's other methods."""
    nearest = row("NN", "LSH-Div", HOME_BY_FOLDS, 0.8)
    lower, higher = row("MMR", "NH", ALL, 0.7), row("Greedy", "LSH-SDiv", HASH_SEARCH, 0.9)
    beyond = row("DPP", "NH", ALL, 0.95)
    assert judged(claims.nearest_is_best([nearest, lower, beyond])).holds is True
    verdict = judged(claims.nearest_is_best([nearest, lower, higher]))
    assert verdict.holds is False
    text = "synthetic, 10: NN, LSH-Div, home buckets by folds against Greedy, LSH-SDiv, hashed"
    assert text in verdict.sentence
    even = [nearest, uneven(row("MMR", "NH", ALL, 0.8))]
    assert judged(claims.nearest_is_best(even)).holds is None


def test_the_best_of_many_equal_rivals_is_not_picked_by_its_reported_h() -> None:
    """If all rows have the same true h, nearest neighbours are not found worse than the best."""
    random = np.random.default_rng(0)

    def noisy(method: str, family: str) -> Row:
        one = row(method, family, HASH_SEARCH, 0.7)
        h = 0.7 + np.repeat(0.2 * random.standard_normal(20), 2)
        return replace(one, draws=one.draws | {"h_score": h[None]})

    effects = []
    for _ in range(40):
        rows = [noisy("NN", "LSH-Div"), *(noisy("MMR", "LSH-Div") for _ in range(8))]
        effects.append(judged(claims.nearest_is_best(rows)).effects[0].size.value)
    assert abs(np.mean(effects)) < 3 * np.std(effects) / np.sqrt(40)


@pytest.mark.parametrize("method", ["Greedy", "Greedy, printed"])
def test_greedy_collapses_at_20_and_30(method: str) -> None:
    """The verdict compares precision with that of nearest neighbours, and not at k = 10."""

    def rows(precision: float, k: int = 20) -> list[Row]:
        return [
            row("NN", "LSH-Div", HOME_BY_FOLDS, 0.8, precision=0.9, k=k),
            row(method, "LSH-Div", HOME_BY_FOLDS, 0.8, precision=precision, k=k),
        ]

    assert judged(claims.greedy_collapses(rows(0.5), method)).holds is True
    assert judged(claims.greedy_collapses(rows(0.95), method)).holds is False
    assert claims.greedy_collapses(rows(0.5, k=10), method).contrasts == []


def test_limits_save_greedy() -> None:
    """The verdict compares precision with and without limits, both at one fixed diversity."""

    def pair(precision: float) -> list[Row]:
        return [
            row("Greedy", "LSH-Div", TUNED_BUCKETS, 0.8, precision=0.9, dial=HIGH_DIAL),
            row("Greedy", "LSH-Div", BARE, 0.5, precision=precision, dial=HIGH_DIAL),
        ]

    verdict = judged(claims.limits_save_greedy(pair(0.5)))
    assert verdict.holds is True
    assert verdict.effects[0].size.value == pytest.approx(0.4)
    assert judged(claims.limits_save_greedy(pair(0.95))).holds is False
    assert judged(claims.limits_save_greedy([])).holds is None


def coded(family: str, n_bits: int, h: float, n_tables: int = 4) -> Coded:
    return Coded(n_bits, n_tables, row("Greedy", family, HOME_BY_FOLDS, h))


@pytest.mark.parametrize(("h", "holds"), [(0.9, True), (0.7, False)])
@pytest.mark.parametrize(
    ("claim", "rival"), [(claims.fewer_bits, "LSH-Div"), (claims.randomness_matters, PCA)]
)
def test_families_are_compared_at_equal_bits_and_tables(
    claim: object, rival: str, h: float, holds: bool
) -> None:
    """Codes that only one of the two families has do not count."""
    codes = [coded("LSH-SDiv", 6, h), coded(rival, 6, 0.8), coded("LSH-SDiv", 12, 0.1)]
    assert callable(claim)
    verdict = judged(claim(codes))
    assert verdict.holds is holds
    assert verdict.effects[0].size.value == pytest.approx(h - 0.8)
    assert judged(claim([])).holds is None


def spread(density: Sequence[float], seeds: int = 25) -> Spread:
    """Return the counts of 200 retrieved points for each seed, drawn from `density` (BINS,)."""
    shares = np.asarray(density) / np.sum(density)
    counts = np.random.default_rng(0).multinomial(200, shares, seeds)
    return Spread("synthetic", HOME, 1_000, counts)


@pytest.mark.parametrize(
    ("density", "word"),
    [
        ([1.0] * BINS, "is not rejected"),
        (np.linspace(1.4, 0.6, BINS), "does not hold"),
        (np.linspace(0.6, 1.4, BINS), "does not hold"),
    ],
)
def test_uniform_over_the_ball(density: Sequence[float], word: str) -> None:
    """A density that falls or rises over the ball rejects the claim; nothing confirms it."""
    verdict = judged(claims.uniform([spread(density)]))
    assert verdict.word == word
    assert verdict.effects[0].groups == 25
    assert "in the nearest tenth of 1,000" in verdict.sentence


def test_uniform_needs_seeds_and_points() -> None:
    """With one seed there is no interval, and without points there is no value."""
    one = judged(claims.uniform([spread([1.0] * BINS, seeds=1)]))
    assert one.word == "not tested"
    assert "one group: no interval" in one.sentence
    none = Spread("synthetic", HOME, 1_000, np.zeros((3, BINS), np.int64))
    assert judged(claims.uniform([none])).word == "not tested"
    assert judged(claims.uniform([])).word == "not tested"


def growth(x: float, noise: float, recalls: tuple[float, float] = (0.9, 0.85)) -> Growth:
    """Return the growth of points ~ n^x, for which queries of a category have a common factor."""
    factors = 1 + noise * np.linspace(-1, 1, 20)[:, None] * np.array([-1, 1])
    points = np.repeat(factors * np.array([100.0, 200.0]) ** x, 2, axis=0)
    return Growth.of("synthetic", [100, 200], points, list(recalls), [20, 29], _CATEGORIES)


@pytest.mark.parametrize(("x", "noise", "holds"), [(0.5, 0, True), (1.2, 0, False), (0.9, 1, None)])
def test_hashed_points_grow_slowly(x: float, noise: float, holds: bool | None) -> None:
    """The exponent is compared with 1; sets whose recall changes are not tested."""
    assert judged(claims.grows_slowly([growth(x, noise)])).holds is holds
    verdict = judged(claims.grows_slowly([growth(x, noise, recalls=(0.9, 0.7))]))
    assert verdict.holds is None
    assert "synthetic: no value" in verdict.sentence


def test_exponent_is_that_of_a_power() -> None:
    """If each query hashes n**0.6 points times its own factor, the exponent is 0.6."""
    sizes = [100, 200, 400]
    points = np.array([[n**0.6 * q for n in sizes] for q in (1.0, 2.0, 3.0)])
    assert exponents(sizes, points) == pytest.approx([0.6] * 3)


def test_exponent_of_noisy_queries_has_the_jackknife_error() -> None:
    """The spread of the values gives about the standard error of a jackknife of the slope."""
    random, sizes = np.random.default_rng(3), [100, 200, 400]
    points = np.array(sizes) ** 0.7 * random.uniform(0.5, 1.5, (300, 3))
    values = exponents(sizes, points)

    def slope(rows: np.ndarray) -> float:
        return float(np.polyfit(np.log(sizes), np.log(rows.mean(axis=0)), 1)[0])

    left_out = np.array([slope(np.delete(points, q, axis=0)) for q in range(300)])
    error = np.sqrt(299 / 300 * ((left_out - left_out.mean()) ** 2).sum())
    assert values.mean() == pytest.approx(slope(points))
    assert values.std(ddof=1) / np.sqrt(300) == pytest.approx(error, rel=0.02)


def test_faster_compares_with_the_goal() -> None:
    """The effect is the geometric mean of the speed-ups of queries."""
    plain = row("MMR", "NH", ALL, 0.7, microseconds=900.0)
    fast, slow = (row("MMR", "LSH-Div", HASH_SEARCH, 0.7, microseconds=us) for us in (100.0, 400.0))
    assert judged(claims.faster([plain, fast], "MMR", HASH_SEARCH)).holds is True
    verdict = judged(claims.faster([plain, fast, slow], "MMR", HASH_SEARCH))
    assert "4.5 times" in verdict.sentence
    assert judged(claims.faster([plain, slow], "MMR", HASH_SEARCH)).holds is False
    assert judged(claims.faster([], "MMR", HASH_SEARCH)).holds is None
    greedy = row("Greedy", "NH", ALL, 0.7, microseconds=20_000.0)
    nearest = row("NN", "LSH-Div", HASH_SEARCH, 0.7)
    assert judged(claims.faster_than_greedy([greedy, nearest], HASH_SEARCH)).holds is True
    slow_nearest = row("NN", "LSH-Div", HASH_SEARCH, 0.7, microseconds=999.0)
    assert judged(claims.faster_than_greedy([greedy, slow_nearest], HASH_SEARCH)).holds is False


def test_differences_by_k_are_listed() -> None:
    """The changes by home buckets are listed for each k, with the chosen bits and tables."""
    plain, better = row("NN", "NH", ALL, 0.7), row("NN", "LSH-Div", HOME_BY_FOLDS, 0.8)
    [line] = claims.raised([plain, replace(better, code="10 bits x 10 tables")])
    assert line.difference.value == pytest.approx(0.1)
    assert line.hashing == "LSH-Div, home buckets by folds"
    assert line.bits_and_tables == "10 bits x 10 tables"


def exhaustive(h: float, greedy_h: float, microseconds: float = 100.0) -> list[Row]:
    """Return rows in which hashed greedy has h = `greedy_h` and exhaustive MMR has h = `h`."""
    return [
        row("NN", "NH", ALL, 0.7),
        row("MMR", "NH", ALL, h, microseconds=13_000.0),
        row("Greedy", "NH", ALL, 0.75, microseconds=12_000.0),
        row("Greedy", "NH", ONE_EXACT, 0.74, microseconds=1_000.0),
        row("Greedy", _FAMILY, HASH_BY_FOLDS, greedy_h, microseconds=microseconds),
    ]


def targets(rows: Sequence[Row], family: str = _FAMILY) -> list[bool | None]:
    verdicts = judge(claims.targets(list(claims.gains(rows))))
    return [verdict.holds for verdict in verdicts if f": {family}," in verdict.claim]


def test_gain_share_is_of_the_best_exhaustive_method() -> None:
    """MMR gains 0.1 of h over NN, and hashed greedy keeps 95 % of this gain.

    Hashed greedy is 120 times as fast as exhaustive greedy.
    """
    rows = exhaustive(0.8, 0.795)
    [gain] = (item for item in claims.gains(rows) if item.stage == HASH_BY_FOLDS)
    assert gain.share is not None
    assert gain.best_method == "MMR"
    assert gain.share.value == pytest.approx(0.95)
    ratios = (gain.times_best, gain.times_greedy, gain.times_exact_pass)
    assert ratios == pytest.approx((130, 120, 10))
    assert targets(rows) == [True, True]


def test_gain_and_speed_are_judged_separately() -> None:
    """Half of the gain misses the first target, and too small a speed-up misses the second."""
    assert targets(exhaustive(0.8, 0.75)) == [False, True]
    assert targets(exhaustive(0.8, 0.8, microseconds=200.0)) == [True, False]


def test_gain_is_judged_by_one_row_of_each_family() -> None:
    """A better row at other limits, or of another family, does not change a family's verdict."""
    other_rows = [
        row("Greedy", _FAMILY, HASH_SEARCH, 0.8),
        row("Greedy", "LSH-Div", HASH_BY_FOLDS, 0.8),
    ]
    rows = [*exhaustive(0.8, 0.75), *other_rows]
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
