"""Judges claims about Table 1 by measured rows: the paper's claims and the project's targets.

Two methods are compared by the mean of their difference over queries. Its confidence interval comes
from bootstrap draws of whole categories, because the queries of one category are similar to each
other.

The *gain share* of a row is its h on a scale where nearest neighbours without hashing have 0 and
the best method of `EXHAUSTIVE` over all points has 1. The best method is that with the greatest
reported h. All diversities are chosen by folds. Each target is judged by a single row of each hash
family, which was fixed before the run: greedy on hashed points with limits chosen by folds.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from scipy import stats

from divgrpc.metrics import gain_share_interval
from divgrpc.types import Interval
from divgrpc_lab.table1.bench import BINS, PCA, Coded, Growth, Spread
from divgrpc_lab.table1.methods import (
    ALL,
    BARE,
    FAMILIES,
    FOLDED,
    HASHED,
    HIGH_DIAL,
    ONE_EXACT,
    TABLES,
    Case,
    Row,
    category_means,
    interval,
)
from divgrpc_lab.table1.paper import METHODS
from divgrpc_lab.verdicts import Verdict, above, in_all_cells, sign, times_as_fast

# Significance level of the test of uniformity, divided by the number of data sets (Bonferroni).
_LEVEL: Final = 0.01
# Minimum power of the test against a density that falls from 1.4 to 0.6 across the ball.
_POWER_MIN: Final = 0.8
_FALLING: Final = tuple(1.4 - 0.8 * (tenth + 0.5) / BINS for tenth in range(BINS))
# Differences in h below this are invisible in the two decimals that the paper prints.
_EQUAL: Final = 0.01
# Growth is meaningless if recall varies by more than this with the size of the data.
_RECALL_RANGE_MAX: Final = 0.1
# Speed-ups by hashing that the paper claims: for most methods, for QP-Rel, and for nearest
# neighbours with hashing over exhaustive greedy.
_SPEED_UPS: Final = ("4 to 8", 4.0), ("2,400", 2_400.0)
_OVER_GREEDY: Final = 100.0


def paper_verdicts(
    rows: Sequence[Row],
    codes: Sequence[Coded],
    spreads: Sequence[Spread],
    growths: Sequence[Growth],
) -> list[Verdict]:
    """Return the verdicts on the paper's claims, in the paper's order."""
    return [
        *(raises_h(rows, method, stage) for stage in (TABLES, HASHED) for method in METHODS),
        nearest_is_best(rows),
        greedy_collapses(rows),
        fewer_bits(codes),
        randomness_matters(codes),
        *(uniform([s for s in spreads if s.sampling == name]) for name in ("uniform", "nearest")),
        grows_slowly(growths),
        *(faster(rows, method) for method in METHODS),
        faster_than_greedy(rows),
    ]


def difference(one: Row, rival: Row, name: str = "h_score") -> Interval:
    """Return the mean difference of a figure between two rows, with its interval.

    The difference is the figure of `one` minus the figure of `rival`, averaged over queries. Both
    rows must have the same queries.
    """
    return interval(one.values[name] - rival.values[name], one.categories)


def pairs_without_hashing(
    rows: Sequence[Row], method: str, stage: str
) -> Iterator[tuple[Row, Row]]:
    """Yield pairs of a row at `stage` and the row of the same method without hashing.

    The second row is the one over all points or, if that was not measured, the one after one exact
    pass. Both rows have the same queries, which for QP-Rel are only a few.
    """
    few = method == "QP-Rel"
    plain = {
        (row.cell, row.case.stage): row
        for row in rows
        if row.family == "NH" and (row.case.method, row.case.few) == (method, few)
    }
    for row in rows:
        if row.case == Case(method, stage, few, row.case.every_seed):
            rival = plain.get((row.cell, ALL)) or plain.get((row.cell, ONE_EXACT))
            if rival is not None:
                yield row, rival


def raises_h(rows: Sequence[Row], method: str, stage: str) -> Verdict:
    """Judge whether hashing raises h, for one method at one stage with both hash families."""
    differences = [difference(*pair) for pair in pairs_without_hashing(rows, method, stage)]
    return above(
        f"hashing raises h: {method}, {stage}", "h with hashing minus h without", differences
    )


def nearest_is_best(rows: Sequence[Row]) -> Verdict:
    """Judge whether nearest neighbours with hashing have the greatest h of the paper's methods.

    The best row of nearest neighbours with hashing is compared with the best row of all other
    methods, with hashing or without. Methods that were measured with few queries are left out. Both
    rows are chosen by the reported h.
    """
    differences, sentences = [], []
    for (data, k), cell in cells(rows).items():
        nn_rows = [r for r in cell if r.case.method == "NN" and r.family != "NH"]
        rivals = [r for r in cell if r.case.method in METHODS[1:]]
        if nn_rows and rivals:
            best, rival = (max(group, key=_h) for group in (nn_rows, rivals))
            differences.append(difference(best, rival))
            sentences.append(f"{data}, {k}: {best.h:.3f} against {rival.h:.3f} ({rival.name})")
    return above(
        "NN with LSH alone is best",
        "Its best h minus the best of the other methods",
        differences,
        " Both are picked by the h reported here; QP-Rel is asked fewer queries and left out. "
        f"{'; '.join(sentences)}.",
    )


def greedy_collapses(rows: Sequence[Row]) -> Verdict:
    """Judge whether greedy on hashed points loses precision without a limit on candidates.

    The diversity is `HIGH_DIAL`.
    """
    by_stage = {(row.cell, row.family, row.case.stage): row for row in rows if row.case.dial}
    pairs = [
        (row, by_stage[cell, family, BARE])
        for (cell, family, stage), row in by_stage.items()
        if stage == TABLES
    ]
    differences = [difference(*pair, "precision") for pair in pairs]
    more = ""
    if pairs:
        row, bare = pairs[int(np.argmax([item.value for item in differences]))]
        with_limit, without = (r.figures["precision"].value for r in (row, bare))
        data, k = row.cell
        more = (
            f" The most on {data} at k = {k} ({row.family}): P {without:.2f} without the limit, "
            f"{with_limit:.2f} with it."
        )
    return above(
        "greedy collapses on hashed points without a limit on candidates",
        f"P with the default limit minus P without at diversity {HIGH_DIAL:g}",
        differences,
        more,
    )


def fewer_bits(codes: Sequence[Coded]) -> Verdict:
    """Judge whether LSH-SDiv needs fewer bits and tables than LSH-Div for the same h.

    The target is the greatest reported h of LSH-Div minus 0.01. Each code is compared with the best
    code of LSH-Div by the interval of their difference in h. A code surely reaches the target if
    the whole interval is above -0.01, and may reach it if only the upper end is. The bits of a code
    are its tables times the bits of a key.

    The claim holds if LSH-SDiv surely reaches the target with fewer bits than the fewest with which
    LSH-Div may reach it. The claim fails if LSH-SDiv may reach the target only with more bits than
    the fewest with which LSH-Div surely reaches it.
    """
    signs, sentences = [], []
    for data in dict.fromkeys(code.row.data for code in codes):
        div, sdiv = (
            [c for c in codes if (c.row.data, c.row.family) == (data, f)] for f in FAMILIES
        )
        best = max((code.row for code in div), key=_h)
        (div_sure, div_may), (sdiv_sure, sdiv_may) = (_fewest_bits(c, best) for c in (div, sdiv))
        signs.append(True if sdiv_sure < div_may else False if sdiv_may > div_sure else None)
        sentences.append(
            f"{data}: {best.h - _EQUAL:.3f} is reached by LSH-Div "
            f"{_bits_text(div_sure, div_may)}, by LSH-SDiv {_bits_text(sdiv_sure, sdiv_may)}, "
            f"{max(code.row.h for code in sdiv):.3f} at its best"
        )
    return Verdict(
        "LSH-SDiv needs fewer bits and tables than LSH-Div for equal h",
        in_all_cells(signs),
        "Bits are tables times bits of a key, the method greedy, k = 10; equal is the best of "
        f"LSH-Div by the h reported here, less {_EQUAL:g}. {'; '.join(sentences)}.",
    )


def randomness_matters(codes: Sequence[Coded]) -> Verdict:
    """Judge whether LSH-SDiv has a greater h than PCA-Hash.

    LSH-SDiv hashes by random directions in the space of the components, and PCA-Hash by the
    components.
    """
    rows = {(c.row.data, c.row.family, c.n_bits, c.n_tables): c.row for c in codes}
    differences = [
        difference(rows[data, "LSH-SDiv", bits, tables], row)
        for (data, family, bits, tables), row in rows.items()
        if family == PCA
    ]
    name = "h of LSH-SDiv minus h of PCA-Hash at as many tables and bits"
    return above("randomness matters", name, differences)


def uniform(spreads: Sequence[Spread]) -> Verdict:
    """Judge whether retrieved points are uniform over the ball, by Pearson's chi-square test.

    The null hypothesis is that draws are independent and fall in each tenth of the ball with equal
    probability. If it is not rejected, it is still not proven. The result is undecided if the power
    of the test is below 0.8, against a density that falls linearly from 1.4 to 0.6 across the ball.
    """
    signs, sentences = [], []
    level = _LEVEL / max(1, len(spreads))
    for spread in spreads:
        draws = max(1, sum(spread.counts))
        # Without draws, scipy returns NaN.
        test = stats.chisquare(spread.counts) if sum(spread.counts) else stats.chisquare([1, 1])
        test_power = power(sum(spread.counts), _FALLING, level)
        is_rejected = test.pvalue < level
        signs.append(False if is_rejected else True if test_power >= _POWER_MIN else None)
        sentences.append(
            f"{spread.data}: {'' if is_rejected else 'not '}rejected, chi-square "
            f"{test.statistic:.0f} at {BINS - 1} degrees, p {test.pvalue:.3f}, "
            f"{sum(spread.counts):,} draws, power {test_power:.2f}, {spread.counts[0] / draws:.0%} "
            f"of them in the nearest tenth of {spread.ball:,}, "
            f"{spread.counts[-1] / draws:.0%} in the farthest"
        )
    sampling = spreads[0].sampling if spreads else ""
    return Verdict(
        f'the retrieved points are uniform over the ball, sampling="{sampling}"',
        in_all_cells(signs),
        f"{_joined(sentences)} Power is against a density that falls from 1.4 to 0.6 across the "
        f"ball; below {_POWER_MIN:g} not to reject says nothing, and above it is no proof.",
        "is not rejected",
    )


def power(draws: int, density: Sequence[float], level: float) -> float:
    """Return the power of the chi-square test at `level`, for draws from `density` (bins,).

    It is computed by the non-central chi-square distribution (Cohen, Statistical Power Analysis,
    1988, ch. 7).
    """
    if not draws:
        return 0.0
    shares = np.asarray(density) / np.sum(density)
    degrees = len(shares) - 1
    effect = draws * float((((shares - 1 / len(shares)) ** 2) * len(shares)).sum())
    limit = stats.chi2.isf(level, degrees)
    # Without an effect the distribution is the central chi-square, whose tail beyond `limit` is
    # `level` by definition.
    tail = stats.ncx2.sf(limit, degrees, effect) if effect else level
    return float(tail)


def grows_slowly(growths: Sequence[Growth]) -> Verdict:
    """Judge whether hashed points grow as n^(1/(1+epsilon)) for some epsilon > 0, so slower than n.

    The claim is undecided if recall changes with the size, because fewer hashed points may then be
    due to lower recall.
    """
    signs, sentences = [], []
    for item in growths:
        x = item.exponent
        is_comparable = max(item.recalls) - min(item.recalls) <= _RECALL_RANGE_MAX and x.low > 0
        signs.append(sign(Interval(1 - x.value, 1 - x.high, 1 - x.low)) if is_comparable else None)
        epsilon = f", epsilon {1 / x.value - 1:.2f}" if 0 < x.value < 1 else ""
        sentences.append(
            f"{item.data}: n^{x.value:.2f} ({x.low:.2f} to {x.high:.2f}){epsilon}, "
            f"{item.hashed_points[0]:,.0f} of {item.sizes[0]:,} to {item.hashed_points[-1]:,.0f} "
            f"of {item.sizes[-1]:,} points, recall {min(item.recalls):.2f} to "
            f"{max(item.recalls):.2f}, "
            f"hash_limit by epsilon = 1: {item.limits[0]:,} to {item.limits[-1]:,}"
        )
    return Verdict(
        "hashed points grow as n^(1/(1+epsilon)), more slowly than n",
        in_all_cells(signs),
        f"{_joined(sentences)} Epsilon follows from the fitted exponent; the intervals are over "
        "queries alone: one hash seed was asked.",
    )


def faster(rows: Sequence[Row], method: str) -> Verdict:
    """Judge whether hashing makes a method as many times as fast as claimed, in the worst case."""
    words, goal = _SPEED_UPS[method == "QP-Rel"]
    pairs = pairs_without_hashing(rows, method, HASHED)
    ratios = [rival.microseconds / row.microseconds for row, rival in pairs]
    return times_as_fast(f"hashing makes {method} {words} times as fast", ratios, goal)


def faster_than_greedy(rows: Sequence[Row]) -> Verdict:
    """Judge whether NN with hashing is about 100 times as fast as the exhaustive greedy."""
    greedy = {row.cell: row.microseconds for row in rows if row.case == Case("Greedy", ALL)}
    ratios = [
        greedy[row.cell] / row.microseconds
        for row in rows
        if row.case == Case("NN", HASHED) and row.cell in greedy
    ]
    claim = "NN with hashing is 100 times as fast as the server's exhaustive greedy"
    return times_as_fast(claim, ratios, _OVER_GREEDY)


def cells(rows: Iterable[Row]) -> dict[tuple[str, int], list[Row]]:
    """Return rows by data set and k, without rows of few queries or of a fixed diversity."""
    groups: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        if not row.case.few and row.case.dial is None:
            groups[row.cell].append(row)
    return groups


def _h(row: Row) -> float:
    return row.h


def _joined(sentences: Sequence[str]) -> str:
    return f"{'; '.join(sentences)}." if sentences else "It was not measured."


def _fewest_bits(codes: Sequence[Coded], best: Row) -> tuple[float, float]:
    """Return the fewest bits that surely reach the h of `best`, and the fewest that may reach it.

    A number is infinite if no code reaches the h.
    """
    differences = [(code.n_bits * code.n_tables, difference(code.row, best)) for code in codes]
    sure = (bits for bits, item in differences if item.low > -_EQUAL)
    may = (bits for bits, item in differences if item.high >= -_EQUAL)
    return min(sure, default=np.inf), min(may, default=np.inf)


def _bits_text(sure: float, may: float) -> str:
    if may == np.inf:
        return "never"
    perhaps = f"perhaps with {may:g} bits" if may < sure else ""
    surely = f"surely with {sure:g} bits" if sure < np.inf else ""
    return ", ".join(filter(None, (perhaps, surely)))


# QP-Rel is missing because it was measured with fewer queries.
EXHAUSTIVE: Final = ("Greedy", "MMR", "DPP")
# Minimum gain in h for a meaningful share.
GAIN_MIN: Final = 0.02
SHARE_GOAL: Final = 0.9
SPEED_GOAL: Final = 100.0


class Gain(NamedTuple):
    """The gain of greedy after hashing or one exact pass, compared with the best exhaustive method.

    `share` is None if the gain of the best method is too small. `times_best`, `times_greedy` and
    `times_exact_pass` are speed-ups over the best method, over greedy on all points, and over
    greedy after one exact pass.
    """

    data: str
    k: int
    family: str
    stage: str
    h: float
    nearest_h: float
    best_method: str
    best_h: float
    share: Interval | None
    times_best: float
    times_greedy: float
    times_exact_pass: float


def gains(rows: Sequence[Row]) -> Iterator[Gain]:
    """Yield the gains of greedy after hashing and after one exact pass, by data set and k."""
    for cell, group in cells(rows).items():
        plain = {(r.case.method, r.case.stage): r for r in group if r.family == "NH"}
        nearest, greedy = (plain[method, ALL] for method in ("NN", "Greedy"))
        exhaustive = (plain[m, ALL] for m in EXHAUSTIVE if (m, ALL) in plain)
        best = max(exhaustive, key=lambda row: row.h)
        rivals = (best, greedy, plain["Greedy", ONE_EXACT])
        for row in group:
            stage = row.case.stage
            if row.case.method == "Greedy" and stage in (ONE_EXACT, HASHED, FOLDED):
                height, low, high = (
                    category_means(item.values["h_score"], item.categories)
                    for item in (row, nearest, best)
                )
                speeds = (rival.microseconds / row.microseconds for rival in rivals)
                yield Gain(
                    *cell,
                    row.family,
                    stage,
                    row.h,
                    nearest.h,
                    best.case.method,
                    best.h,
                    gain_share_interval(height, low, high)
                    if best.h - nearest.h > GAIN_MIN
                    else None,
                    *speeds,
                )


def targets(shares: Sequence[Gain]) -> list[Verdict]:
    """Judge the project's two targets for each family."""
    return [
        judge([g for g in shares if (g.family, g.stage) == (family, FOLDED)], family)
        for judge in (keeps_the_gain, is_fast)
        for family in FAMILIES
    ]


def keeps_the_gain(cases: Sequence[Gain], family: str) -> Verdict:
    """Judge whether hash + greedy keeps 0.9 of the gain in every cell with a gain.

    The mean share of the gain decides.
    """
    sentences = [
        f"{g.data}, {g.k}: "
        + (
            f"{g.share.value:.2f} ({g.share.low:.2f} to {g.share.high:.2f}) of {g.best_method}"
            if g.share
            else "no gain"
        )
        for g in cases
    ]
    return Verdict(
        f"hash + greedy keeps {SHARE_GOAL:g} of the gain: {family}, limits by folds",
        in_all_cells([g.share.value >= SHARE_GOAL for g in cases if g.share]),
        "Mean shares decide; their intervals stand beside. The gain is the h of the best of "
        f"{', '.join(EXHAUSTIVE)} over all points minus the h of nearest neighbours, where it is "
        f"above {GAIN_MIN:g}. {'; '.join(sentences)}.",
    )


def is_fast(cases: Sequence[Gain], family: str) -> Verdict:
    """Judge whether hash + greedy is 100 times as fast as the best exhaustive method.

    The share of the gain that hash + greedy keeps is not considered. The exhaustive methods are
    those of the server. The benchmark `quality` has a faster greedy over all points.
    """
    sentences = [
        f"{g.data}, {g.k}: {g.times_best:.0f} times {g.best_method} over all points, "
        f"{g.times_greedy:.0f} times greedy there, {g.times_exact_pass:.1f} times one exact pass"
        for g in cases
    ]
    return Verdict(
        f"hash + greedy is {SPEED_GOAL:g} times as fast as the best exhaustive method: {family}, "
        "limits by folds",
        in_all_cells([g.times_best >= SPEED_GOAL for g in cases]),
        f"This does not depend on the share of the gain. {'; '.join(sentences)}.",
    )
