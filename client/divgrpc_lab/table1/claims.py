"""The paper's claims about Table 1, judged by rows: see `divgrpc_lab.verdicts`.

Two methods are compared by the mean over queries of the difference between them. Its interval is of
bootstrap draws of whole categories, since the queries of one category are alike.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from scipy import stats

from divgrpc.types import Interval
from divgrpc_lab.table1.beside import BINS, PCA, Coded, Growth, Spread
from divgrpc_lab.table1.printed import METHODS
from divgrpc_lab.table1.rows import (
    ALL,
    BARE,
    FAMILIES,
    HASHED,
    ONE_EXACT,
    TABLES,
    Row,
    interval,
)
from divgrpc_lab.verdicts import Verdict, above, sign, times_as_fast, together

_NOT_REJECTED: Final = "is not rejected"
# Below it draws are said not to be uniform, shared among the data sets that are looked at.
_LEVEL: Final = 0.01
# How often the test must see that the density falls from 1.4 to 0.6 across the ball.
_POWER: Final = 0.8
_FALLING: Final = tuple(1.4 - 0.8 * (tenth + 0.5) / BINS for tenth in range(BINS))
# What the paper's two decimals cannot tell apart.
_EQUAL: Final = 0.01
# How far recall may vary with the size of the data for growth to mean something.
_RECALL_HELD: Final = 0.1
_PAPER_FASTER: Final = (4.0, 8.0)
_PAPER_THAN_GREEDY: Final = 100.0
_PAPER_QP: Final = 2_400.0


def everything(
    rows: Sequence[Row],
    coded: Sequence[Coded],
    spreads: Sequence[Spread],
    growths: Sequence[Growth],
) -> list[Verdict]:
    """Return the verdicts on all claims, in the order of the paper's."""
    return [
        *(raises_h(rows, method, stage) for stage in (TABLES, HASHED) for method in METHODS),
        nearest_is_best(rows),
        greedy_collapses(rows),
        fewer_bits(coded),
        randomness_matters(coded),
        *(uniform([s for s in spreads if s.sampling == name]) for name in ("uniform", "nearest")),
        grows_slowly(growths),
        *(faster(rows, method, *_PAPER_FASTER) for method in METHODS[:-1]),
        faster(rows, "QP-Rel", _PAPER_QP, _PAPER_QP),
        faster_than_greedy(rows),
    ]


def difference(one: Row, other: Row, name: str = "h_score") -> Interval:
    """Return how much more `one` has of a figure than `other`, of the same queries by category."""
    return interval(one.values[name] - other.values[name], one.categories)


def without_hashing(rows: Iterable[Row], like: Row) -> Row | None:
    """Return the same method without hashing: over all points, or over its own candidates."""
    results = {row.stage: row for row in rows if row.family == "NH" and _same(row, like)}
    return results.get(ALL) or results.get(ONE_EXACT)


def raises_h(rows: Sequence[Row], method: str, stage: str) -> Verdict:
    """Hashing raises h: of one method at one stage, with both families."""
    selected = [r for r in rows if (r.method, r.stage) == (method, stage) and not r.fixed]
    pairs = [
        (row, without_hashing(rows, row)) for row in selected if row.few == (method == "QP-Rel")
    ]
    results = [difference(row, other) for row, other in pairs if other is not None]
    return above(f"hashing raises h: {method}, {stage}", "h with hashing minus h without", results)


def nearest_is_best(rows: Sequence[Row]) -> Verdict:
    """Nearest neighbours with hashing alone have the greatest h of the paper's methods.

    The best of its rows beside the best of all other methods' rows, with hashing or without, of
    those that all queries were asked of, without QP-Rel; both are picked by the h that is reported.
    """
    results, sentences = [], []
    for (data, k), selected in by_cell(r for r in rows if not r.few and not r.fixed):
        hashed = [r for r in selected if r.method == "NN" and r.family != "NH"]
        others = [r for r in selected if r.method in METHODS[1:]]
        if hashed and others:
            best, rival = (max(item, key=lambda r: r.h.value) for item in (hashed, others))
            results.append(difference(best, rival))
            sentences.append(
                f"{data}, {k}: {best.h.value:.3f} against {rival.h.value:.3f} ({rival.name})"
            )
    return above(
        "NN with LSH alone is best",
        "Its best h minus the best of the other methods",
        results,
        " Both are picked by the h reported here; QP-Rel is asked fewer queries and left out. "
        f"{'; '.join(sentences)}.",
    )


def greedy_collapses(rows: Sequence[Row]) -> Verdict:
    """Greedy on hashed points loses precision without a limit on candidates, at one high dial."""
    fixed = [r for r in rows if r.method == "Greedy" and r.fixed]
    results, worst, drop = [], "", -np.inf
    for row in (r for r in fixed if r.stage == TABLES):
        bare = next(
            r for r in fixed if r.stage == BARE and r.family == row.family and _same(r, row)
        )
        results.append(difference(row, bare, "precision"))
        if results[-1].value > drop:
            drop = results[-1].value
            with_limit, without = (r.figures["precision"].value for r in (row, bare))
            worst = (
                f" The most on {row.data} at k = {row.k} ({row.family}): P {without:.2f} without "
                f"the limit, {with_limit:.2f} with it."
            )
    dial = f"at diversity {fixed[0].dial:g} " if fixed else ""
    return above(
        "greedy collapses on hashed points without a limit on candidates",
        f"P with the default limit minus P without {dial}".rstrip(),
        results,
        worst,
    )


def fewer_bits(coded: Sequence[Coded]) -> Verdict:
    """LSH-SDiv needs fewer bits and tables than LSH-Div to reach the same h.

    The same h is the best that LSH-Div reaches, picked by the h reported, less 0.01; what a code
    needs is tables times bits. Of the difference between a code and that best one, the interval
    decides: all above -0.01 it is reached, all below it is not, else it may be. LSH-SDiv needs
    fewer where it surely reaches it with fewer than LSH-Div may, and does not where it may reach it
    only with more than LSH-Div surely does.
    """
    verdicts, sentences = [], []
    for data, selected in _by_data(coded):
        div, sdiv = ([c for c in selected if c.row.family == name] for name in FAMILIES)
        best = max(div, key=lambda c: c.row.h.value)
        (div_sure, div_may), (sdiv_sure, sdiv_may) = (_least_bits(c, best) for c in (div, sdiv))
        verdicts.append(True if sdiv_sure < div_may else False if sdiv_may > div_sure else None)
        sentences.append(
            f"{data}: {best.row.h.value - _EQUAL:.3f} is reached by LSH-Div "
            f"{_needs(div_sure, div_may)}, by LSH-SDiv {_needs(sdiv_sure, sdiv_may)}, "
            f"{max(c.row.h.value for c in sdiv):.3f} at its best"
        )
    return Verdict(
        "LSH-SDiv needs fewer bits and tables than LSH-Div for equal h",
        together(verdicts),
        "Bits are tables times bits of a key, the method greedy, k = 10; equal is the best of "
        f"LSH-Div by the h reported here, less {_EQUAL:g}. {'; '.join(sentences)}.",
    )


def randomness_matters(coded: Sequence[Coded]) -> Verdict:
    """Random directions in the components (LSH-SDiv) beat the components (PCA-Hash)."""
    results = []
    for _, selected in _by_data(coded):
        at = {(c.row.family, c.n_bits, c.n_tables): c.row for c in selected}
        for family, bits, tables in at:
            if family == PCA:
                pair = at["LSH-SDiv", bits, tables], at[PCA, bits, tables]
                results.append(difference(*pair))
    what = "h of LSH-SDiv minus h of PCA-Hash at as many tables and bits"
    return above("randomness matters", what, results)


def uniform(spreads: Sequence[Spread]) -> Verdict:
    """Test that retrieved points are uniform over the ball: Pearson's chi-square over its tenths.

    The null is that a draw, one of a category and seed (see `beside.uniformity`), falls in every
    tenth alike and independently of the others; draws of several queries of a category count as
    one. Not to reject is no proof, and says nothing where a density that falls evenly from 1.4 to
    0.6 across the ball would be rejected in fewer than 0.8 of such samples.
    """
    verdicts, sentences = [], []
    level = _LEVEL / max(1, len(spreads))
    for spread in spreads:
        drawn = sum(spread.counts)
        draws = drawn // spread.queries
        p, chi_square = chi_square_test(spread.counts, spread.queries)
        seen = power(draws, _FALLING, level)
        verdicts.append(False if p < level else True if seen >= _POWER else None)
        near, far = (spread.counts[at] / max(1, drawn) for at in (0, -1))
        counted = f", counted as {draws:,}" if spread.queries > 1 else ""
        sentences.append(
            f"{spread.data}: {'' if p < level else 'not '}rejected, chi-square {chi_square:.0f} at "
            f"{BINS - 1} degrees, p {p:.3f}, {drawn:,} draws{counted}, power {seen:.2f}, "
            f"{near:.0%} of them in the nearest tenth of {spread.ball:,}, {far:.0%} in the farthest"
        )
    sampling = spreads[0].sampling if spreads else ""
    return Verdict(
        f'the retrieved points are uniform over the ball, sampling="{sampling}"',
        together(verdicts),
        f"{_listed(sentences)} Power is against a density that falls from 1.4 to 0.6 across the "
        f"ball; below {_POWER:g} not to reject says nothing, and above it is no proof.",
        _NOT_REJECTED,
    )


def chi_square_test(counts: Sequence[int], alike: int = 1) -> tuple[float, float]:
    """Return p and the chi-square of `counts` (bins,) of draws under an even distribution.

    Of each `alike` draws one is counted, as if the others said the same.
    """
    if sum(counts) < alike:
        return 1.0, 0.0
    test = stats.chisquare(np.asarray(counts) / alike)
    return float(test.pvalue), float(test.statistic)


def power(draws: int, density: Sequence[float], level: float) -> float:
    """Return how often the test rejects, at `level`, draws of a `density` (bins,).

    By the non-central chi-square distribution (Cohen, Statistical Power Analysis, 1988, ch. 7).
    """
    if not draws:
        return 0.0
    shares = np.asarray(density) / np.sum(density)
    degrees = len(shares) - 1
    effect = draws * float((((shares - 1 / len(shares)) ** 2) * len(shares)).sum())
    limit = stats.chi2.isf(level, degrees)
    # Without an effect the distribution is the central one, which scipy wants asked by name.
    rejected = stats.ncx2.sf(limit, degrees, effect) if effect else level
    return float(rejected)


def grows_slowly(growths: Sequence[Growth]) -> Verdict:
    """Hashed points grow as n^(1/(1+epsilon)) for some epsilon above 0: more slowly than n.

    It cannot be told where recall was not held: fewer points are then fewer of those wanted.
    """
    verdicts, sentences = [], []
    for item in growths:
        x = item.exponent
        held = max(item.recalls) - min(item.recalls) <= _RECALL_HELD
        below = sign(Interval(1 - x.value, 1 - x.high, 1 - x.low))
        verdicts.append(below if held and x.low > 0 else None)
        epsilon = f", epsilon {1 / x.value - 1:.2f}" if 0 < x.value < 1 else ""
        sentences.append(
            f"{item.data}: n^{x.value:.2f} ({x.low:.2f} to {x.high:.2f}){epsilon}, "
            f"{item.hashed[0]:,.0f} of {item.sizes[0]:,} to {item.hashed[-1]:,.0f} of "
            f"{item.sizes[-1]:,} points, recall "
            f"{min(item.recalls):.2f} to {max(item.recalls):.2f}, "
            f"hash_limit by epsilon = 1: {item.limits[0]:,} to {item.limits[-1]:,}"
        )
    return Verdict(
        "hashed points grow as n^(1/(1+epsilon)), more slowly than n",
        together(verdicts),
        f"{_listed(sentences)} Epsilon is what the exponent found makes it; the intervals are "
        "over queries alone: one hash seed was asked.",
    )


def faster(rows: Sequence[Row], method: str, low: float, high: float) -> Verdict:
    """Hashing makes a method so many times as fast as it is without: the slowest case counts."""
    few = method == "QP-Rel"
    selected = [r for r in rows if (r.method, r.stage, r.few) == (method, HASHED, few)]
    pairs = [(row, without_hashing(rows, row)) for row in selected]
    ratios = [o.microseconds / row.microseconds for row, o in pairs if o is not None]
    claimed = f"{low:,.0f}" if low == high else f"{low:g} to {high:g}"
    return times_as_fast(f"hashing makes {method} {claimed} times as fast", ratios, low)


def faster_than_greedy(rows: Sequence[Row]) -> Verdict:
    """NN with hashing is about 100 times as fast as the exhaustive greedy."""
    greedy = {(r.data, r.k): r.microseconds for r in rows if (r.method, r.stage) == ("Greedy", ALL)}
    selected = [r for r in rows if (r.method, r.stage) == ("NN", HASHED)]
    ratios = [greedy[r.data, r.k] / r.microseconds for r in selected if (r.data, r.k) in greedy]
    return times_as_fast(
        "NN with hashing is 100 times as fast as the server's exhaustive greedy",
        ratios,
        _PAPER_THAN_GREEDY,
    )


def by_cell(rows: Iterable[Row]) -> Iterable[tuple[tuple[str, int], list[Row]]]:
    """Return rows by data set and k."""
    results: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        results.setdefault((row.data, row.k), []).append(row)
    return results.items()


def _listed(sentences: Sequence[str]) -> str:
    return f"{'; '.join(sentences)}." if sentences else "It was not measured."


def _same(one: Row, other: Row) -> bool:
    return (one.data, one.method, one.k, one.few) == (other.data, other.method, other.k, other.few)


def _by_data(coded: Iterable[Coded]) -> Iterable[tuple[str, list[Coded]]]:
    results: dict[str, list[Coded]] = {}
    for item in coded:
        results.setdefault(item.row.data, []).append(item)
    return results.items()


def _least_bits(coded: Sequence[Coded], best: Coded) -> tuple[float, float]:
    """Return the fewest bits that surely reach the h of `best`, and that may; infinite if none."""
    differences = [(c.n_bits * c.n_tables, difference(c.row, best.row)) for c in coded]
    sure = (bits for bits, results in differences if results.low > -_EQUAL)
    may = (bits for bits, results in differences if results.high >= -_EQUAL)
    return min(sure, default=np.inf), min(may, default=np.inf)


def _needs(sure: float, may: float) -> str:
    """Say with how many bits an h is reached."""
    if may == np.inf:
        return "never"
    perhaps = f"perhaps with {may:g} bits" if may < sure else ""
    surely = f"surely with {sure:g} bits" if sure < np.inf else ""
    return ", ".join(filter(None, (perhaps, surely)))
