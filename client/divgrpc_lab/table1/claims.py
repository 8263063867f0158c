"""The claims about Table 1 as contrasts: the paper's claims and the project's targets.

A contrast compares rows of one data set query by query, averaged over k and over the hash families.
`divgrpc_lab.verdicts` tests all contrasts of the table together.

The *gain share* of a row is a scaled h: nearest neighbours without hashing have 0, and the best
method of `EXHAUSTIVE` over all points has 1. Folds choose this method and all diversities. Each
target is judged by one method of each hash family, which was fixed before the run: greedy on hashed
points with limits chosen by folds.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from divgrpc.evaluation.folds import FOLDS, choose_by_folds, deal_folds
from divgrpc.metrics import Values, gain_share_interval
from divgrpc.types import IntArray, Interval
from divgrpc_lab.draws import mean_over_draws
from divgrpc_lab.table1.bench import RETRIEVALS, Growth, Spread
from divgrpc_lab.table1.home import PCA, Coded
from divgrpc_lab.table1.methods import (
    ALL,
    BARE,
    FAMILIES,
    HASH_BY_FOLDS,
    HASH_SEARCH,
    HIGH_DIAL,
    HOME,
    HOME_BY_FOLDS,
    ONE_EXACT,
    TIME,
    TUNED_BUCKETS,
    Row,
    common_draws,
)
from divgrpc_lab.table1.paper import KS, METHODS
from divgrpc_lab.verdicts import Claim, Contrast

# Growth is meaningless if recall varies by more than this with the size of the data.
_RECALL_RANGE_MAX: Final = 0.1
# Speed-ups by hashing that the paper claims: for most methods, for QP-Rel, and for nearest
# neighbours with hashing over exhaustive greedy.
_SPEED_UPS: Final = ("4 to 8", 4.0), ("2,400", 2_400.0)
_OVER_GREEDY: Final = 100.0
# Stages at which claims about speed are judged: the paper's own, tuned for h, and the service's.
_SPEED_STAGES: Final = (HOME_BY_FOLDS, HASH_SEARCH)
# The paper's names of the figures that hashing raises.
_FIGURES: Final = {"h": "h_score", "D": "normalised_entropy"}

Pair = tuple[Row, Row]


def paper_claims(
    rows: Sequence[Row],
    codes: Sequence[Coded],
    spreads: Sequence[Spread],
    growths: Sequence[Growth],
) -> list[Claim]:
    """Return the paper's claims, in the paper's order."""
    return [
        *(
            raises(rows, figure, method, stage)
            for figure in ("h", "D")
            for stage in (HOME, *_SPEED_STAGES)
            for method in METHODS
        ),
        nearest_is_best(rows),
        nearest_is_best(rows, HOME),
        *(greedy_collapses(rows, method) for method in ("Greedy", "Greedy, printed")),
        limits_save_greedy(rows),
        fewer_bits(codes),
        randomness_matters(codes),
        *(uniform([s for s in spreads if s.retrieval == name]) for name in RETRIEVALS),
        grows_slowly(growths),
        *(faster(rows, method, stage) for stage in _SPEED_STAGES for method in METHODS),
        *(faster_than_greedy(rows, stage) for stage in _SPEED_STAGES),
    ]


def pairs_without_hashing(rows: Sequence[Row], method: str, stage: str) -> Iterator[Pair]:
    """Yield each row of `method` at `stage`, paired with the row of its cell without hashing.

    A cell is a data set and a k. The row without hashing is the one over all points or, if that was
    not measured, the one after one exact pass.
    """
    plain = {
        (row.cell, row.case.stage): row
        for row in rows
        if row.family == "NH" and row.case.method == method
    }
    for row in rows:
        if (row.case.method, row.case.stage) == (method, stage):
            rival = plain.get((row.cell, ALL)) or plain.get((row.cell, ONE_EXACT))
            if rival is not None:
                yield row, rival


def differences(pairs: Iterable[Pair], name: str = "h_score") -> list[Contrast]:
    """Return a contrast for each data set: a figure of the first rows minus that of the second."""
    return _contrasts(pairs, name, lambda one, rival: one - rival)


def speed_ups(pairs: Iterable[Pair], goal: float) -> list[Contrast]:
    """Return a contrast for each data set: the second rows' times divided by the first rows'."""
    contrasts = _contrasts(pairs, TIME, lambda one, rival: np.log(rival) - np.log(one))
    return [contrast._replace(goal=goal) for contrast in contrasts]


def _contrasts(
    pairs: Iterable[Pair], name: str, contrast: Callable[[Values, Values], Values]
) -> list[Contrast]:
    """Return contrasts of pairs of rows, averaged over the pairs of a data set.

    The values of a contrast are (seeds, nq), so that hash seeds and queries both count as random.
    """
    by_set: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_set[pair[0].data].append(pair)
    contrasts = []
    for data, members in by_set.items():
        values, groups = common_draws([row for pair in members for row in pair], name)
        contrasts.append(Contrast(data, contrast(values[::2], values[1::2]).mean(axis=0), groups))
    return contrasts


def raises(rows: Sequence[Row], figure: str, method: str, stage: str) -> Claim:
    """Return the claim that hashing raises "h" or "D", for one method at one stage."""
    pairs = pairs_without_hashing(rows, method, stage)
    return Claim(
        f"hashing raises {figure}: {method}, {stage}",
        f"{figure} with hashing minus {figure} without",
        differences(pairs, _FIGURES[figure]),
    )


def nearest_is_best(rows: Sequence[Row], stage: str = "") -> Claim:
    """Return the claim that nearest neighbours with hashing have the greatest h.

    The rivals are the paper's other methods, with or without hashing. If `stage` is given, only
    rows at this stage are compared. Folds choose the best row of nearest neighbours and the best
    rival, using queries other than the reported ones.
    """
    values: dict[str, list[Contrast]] = defaultdict(list)
    names: list[str] = []
    for (data, k), members in _cells(rows).items():
        cell = [r for r in members if stage in ("", r.case.stage)]
        nearest = [r for r in cell if r.case.method == "NN" and r.family != "NH"]
        rivals = [r for r in cell if r.case.method in METHODS[1:] and r.case.dial is None]
        if nearest and rivals:
            height, groups = common_draws([*nearest, *rivals], "h_score")
            best, nearest_h = _best_by_folds(height[: len(nearest)], groups)
            rival, rival_h = _best_by_folds(height[len(nearest) :], groups)
            values[data].append(Contrast(data, nearest_h - rival_h, groups))
            names.append(f"{data}, {k}: {nearest[best].name} against {rivals[rival].name}")
    contrasts = [
        Contrast(data, np.mean([c.values for c in parts], axis=0), parts[0].groups)
        for data, parts in values.items()
    ]
    more = f" The best rows over all queries are {'; '.join(names)}." if names else ""
    return Claim(
        f"NN with LSH alone is best{f', {stage}' if stage else ''}",
        "its best h minus the best h of the others",
        contrasts,
        more,
    )


def greedy_collapses(rows: Sequence[Row], method: str) -> Claim:
    """Return the claim that greedy on hashed points is less precise than nearest neighbours.

    `method` is "Greedy" or, with the gain as the paper prints it, "Greedy, printed". The paper's P
    of greedy at k = 20 and 30 is far below the P of all other methods.
    """
    by_row = {
        (row.cell, row.family, row.case.method): row
        for row in rows
        if row.case.stage == HOME_BY_FOLDS and row.parameters.k in KS[1:]
    }
    pairs = [
        (row, by_row[cell, family, method])
        for (cell, family, rival), row in by_row.items()
        if rival == "NN" and (cell, family, method) in by_row
    ]
    return Claim(
        f"{method} collapses on hashed points: at k = 20 and 30 it has a lower P than NN, "
        f"{HOME_BY_FOLDS}",
        f"P of NN minus P of {method}",
        differences(pairs, "precision"),
    )


def limits_save_greedy(rows: Sequence[Row]) -> Claim:
    """Return the claim that greedy on hashed points loses precision without limits.

    The diversity is `HIGH_DIAL`.
    """
    by_stage = {(row.cell, row.family, row.case.stage): row for row in rows if row.case.dial}
    pairs = [
        (row, by_stage[cell, family, BARE])
        for (cell, family, stage), row in by_stage.items()
        if stage == TUNED_BUCKETS
    ]
    return Claim(
        "greedy on hashed points loses precision without a limit on candidates",
        f"P with the default limits minus P without at diversity {HIGH_DIAL:g}, {TUNED_BUCKETS}",
        differences(pairs, "precision"),
    )


def fewer_bits(codes: Sequence[Coded]) -> Claim:
    """Return the claim that LSH-SDiv needs fewer bits and tables than LSH-Div for the same h.

    If so, LSH-SDiv has a greater h with as many bits and tables. The contrast tests this.
    """
    return Claim(
        "LSH-SDiv needs fewer bits and tables than LSH-Div",
        "h of LSH-SDiv minus h of LSH-Div with as many bits and tables, greedy, k = 10",
        differences(_same_codes(codes, "LSH-SDiv", "LSH-Div")),
    )


def randomness_matters(codes: Sequence[Coded]) -> Claim:
    """Return the claim that LSH-SDiv has a greater h than PCA-Hash.

    LSH-SDiv hashes by random directions in the space of the components, and PCA-Hash by the
    components.
    """
    return Claim(
        "randomness matters: LSH-SDiv is above PCA-Hash",
        "h of LSH-SDiv minus h of PCA-Hash with as many bits and tables, greedy, k = 10",
        differences(_same_codes(codes, "LSH-SDiv", PCA)),
    )


def _same_codes(codes: Sequence[Coded], family: str, rival: str) -> Iterator[Pair]:
    rows = {(c.row.data, c.row.family, c.n_bits, c.n_tables): c.row for c in codes}
    for (data, name, n_bits, n_tables), row in rows.items():
        rival_row = rows.get((data, rival, n_bits, n_tables))
        if name == family and rival_row is not None:
            yield row, rival_row


def uniform(spreads: Sequence[Spread]) -> Claim:
    """Return the claim that retrieved points are uniform over the ball.

    All retrieved points in the ball count. Hash seeds are independent, so they are the units of the
    test. The paper's claim is the null hypothesis, which a test can reject but not confirm.
    """
    shares = [
        f"{s.data}: {share[0]:.1%} of {total:,} points in the nearest tenth of {s.ball:,}, "
        f"{share[-1]:.1%} in the farthest, {len(s.counts)} seeds"
        for s in spreads
        if (total := s.counts.sum())
        for share in [s.counts.sum(axis=0) / total]
    ]
    retrieval = spreads[0].retrieval if spreads else ""
    return Claim(
        f"the retrieved points are uniform over the ball: {retrieval}",
        "0.5 minus the mean place in the ball, from 0 at its nearest point to 1 at its farthest",
        [Contrast(spread.data, 0.5 - spread.places) for spread in spreads],
        f" {'; '.join(shares)}." if shares else "",
        is_null=True,
    )


def grows_slowly(growths: Sequence[Growth]) -> Claim:
    """Return the claim that hashed points grow as n^(1/(1+epsilon)), so more slowly than n.

    A set in which recall varies too much with the size is not tested, because fewer hashed points
    may then be due to lower recall.
    """
    contrasts, sentences = [], []
    for item in growths:
        x = item.exponent
        is_comparable = max(item.recalls) - min(item.recalls) <= _RECALL_RANGE_MAX
        values = 1 - item.slopes if is_comparable else np.full(len(item.slopes), np.nan)
        contrasts.append(Contrast(item.data, values, item.groups))
        epsilon = f", epsilon {1 / x.value - 1:.2f}" if 0 < x.value < 1 else ""
        sentences.append(
            f"{item.data}: n^{x.value:.2f}{epsilon}, "
            f"{item.hashed_points[0]:,.0f} of {item.sizes[0]:,} to {item.hashed_points[-1]:,.0f} "
            f"of {item.sizes[-1]:,} points, recall {min(item.recalls):.2f} to "
            f"{max(item.recalls):.2f}, "
            f"hash_limit by epsilon = 1: {item.limits[0]:,} to {item.limits[-1]:,}"
        )
    more = f" {'; '.join(sentences)}. One hash seed was used." if sentences else ""
    return Claim(
        "hashed points grow as n^(1/(1+epsilon)), more slowly than n",
        "1 minus the exponent",
        contrasts,
        more,
    )


def faster(rows: Sequence[Row], method: str, stage: str) -> Claim:
    """Return the claim that hashing makes a method as many times as fast as the paper says."""
    words, goal = _SPEED_UPS[method == "QP-Rel"]
    contrasts = speed_ups(pairs_without_hashing(rows, method, stage), goal)
    return Claim(f"hashing makes {method} {words} times as fast, {stage}", "speed-up", contrasts)


def faster_than_greedy(rows: Sequence[Row], stage: str) -> Claim:
    """Return the claim that NN with hashing is 100 times as fast as the exhaustive greedy."""
    greedy = {row.cell: row for row in rows if (row.case.method, row.case.stage) == ("Greedy", ALL)}
    pairs = [
        (row, greedy[row.cell])
        for row in rows
        if (row.case.method, row.case.stage) == ("NN", stage) and row.cell in greedy
    ]
    claim = f"NN with hashing is 100 times as fast as the server's exhaustive greedy, {stage}"
    return Claim(claim, "speed-up", speed_ups(pairs, _OVER_GREEDY))


class Raised(NamedTuple):
    """The mean h with and without hashing at one k, and the difference with its interval."""

    data: str
    k: int
    method: str
    hashing: str
    h: float
    without_hashing: float
    difference: Interval
    bits_and_tables: str


def raised(rows: Sequence[Row]) -> Iterator[Raised]:
    """Yield the change of h by home buckets for each stage, method, data set, family and k."""
    for stage in (HOME, HOME_BY_FOLDS):
        for method in dict.fromkeys(row.case.method for row in rows):
            for row, rival in pairs_without_hashing(rows, method, stage):
                (row_h, rival_h), groups = common_draws([row, rival], "h_score")
                change = mean_over_draws(row_h - rival_h, groups).size
                means = float(row_h.mean()), float(rival_h.mean())
                hashing = f"{row.family}, {stage}"
                yield Raised(*row.cell, method, hashing, *means, change, row.code)


def _cells(rows: Iterable[Row]) -> dict[tuple[str, int], list[Row]]:
    """Return rows by data set and k, without rows of a fixed diversity."""
    groups: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        if row.case.dial is None:
            groups[row.cell].append(row)
    return groups


def _best_by_folds(h: Values, groups: IntArray) -> tuple[int, Values]:
    """Return the number of the best row, and the h (seeds, nq) of the rows that folds choose.

    `h` is (rows, seeds, nq). The best row is that of all queries. The row of a fold is the best one
    on the other folds. Both are the best by the mean over seeds. With one group there is no choice,
    and the first row is taken.
    """
    count = len(np.unique(groups))
    if count == 1:
        return 0, h[0]
    folds = deal_folds(groups, min(FOLDS, count))
    choice = choose_by_folds(h.mean(axis=1), folds)
    draws = [choice.reported(h[:, seed], folds) for seed in range(h.shape[1])]
    return choice.overall, np.stack(draws)


# The methods that pick from all points one by one. QP-Rel solves a relaxed problem instead.
EXHAUSTIVE: Final = ("Greedy", "MMR", "DPP", "Greedy, marginal")
# Minimum gain in h for a meaningful share.
GAIN_MIN: Final = 0.02
SHARE_GOAL: Final = 0.9
SPEED_GOAL: Final = 100.0


class Gain(NamedTuple):
    """The gain of greedy after hashing or one exact pass, compared with the best exhaustive method.

    `share` is None if the gain of the best method is too small. `times_best`, `times_greedy` and
    `times_exact_pass` are speed-ups over the best method, over greedy on all points, and over
    greedy after one exact pass. `margin` (seeds, nq) is the gain minus 0.9 times the gain of the
    best method, and `row` and `best` are the compared rows.
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
    margin: Values
    row: Row
    best: Row

    def shown(self) -> dict[str, object]:
        """Return the figures without the compared rows."""
        omissions = ("margin", "row", "best")
        return {name: item for name, item in self._asdict().items() if name not in omissions}


def gains(rows: Sequence[Row]) -> Iterator[Gain]:
    """Yield the gains of greedy after hashing and after one exact pass, by data set and k."""
    for cell, group in _cells(rows).items():
        plain = {(r.case.method, r.case.stage): r for r in group if r.family == "NH"}
        nearest, greedy = (plain[method, ALL] for method in ("NN", "Greedy"))
        exhaustive = [plain[m, ALL] for m in EXHAUSTIVE if (m, ALL) in plain]
        h, groups = common_draws(exhaustive, "h_score")
        number, [high] = _best_by_folds(h, groups)
        best, low = exhaustive[number], nearest.values["h_score"]
        rivals = (best, greedy, plain["Greedy", ONE_EXACT])
        has_gain = np.nanmean(high) - np.nanmean(low) > GAIN_MIN
        for row in group:
            stage, height = row.case.stage, row.values["h_score"]
            if row.case.method == "Greedy" and stage in (ONE_EXACT, HASH_SEARCH, HASH_BY_FOLDS):
                speeds = [rival.microseconds / row.microseconds for rival in rivals]
                yield Gain(
                    *cell,
                    family=row.family,
                    stage=stage,
                    h=row.h,
                    nearest_h=nearest.h,
                    best_method=best.case.method,
                    best_h=float(np.nanmean(high)),
                    share=gain_share_interval(height, low, high, groups) if has_gain else None,
                    times_best=speeds[0],
                    times_greedy=speeds[1],
                    times_exact_pass=speeds[2],
                    margin=row.draws["h_score"] - low - SHARE_GOAL * (high - low),
                    row=row,
                    best=best,
                )


def targets(shares: Sequence[Gain]) -> list[Claim]:
    """Return the project's two targets for each family."""
    return [
        claim([g for g in shares if (g.family, g.stage) == (family, HASH_BY_FOLDS)], family)
        for claim in (keeps_the_gain, is_fast)
        for family in FAMILIES
    ]


def keeps_the_gain(cases: Sequence[Gain], family: str) -> Claim:
    """Return the target that hash + greedy keeps 0.9 of the gain, where there is a gain."""
    sentences = [
        f"{g.data}, {g.k}: " + (f"{g.share.value:.2f} of {g.best_method}" if g.share else "no gain")
        for g in cases
    ]
    contrasts = [
        Contrast(data, np.mean([g.margin for g in members], axis=0), members[0].row.categories)
        for data in dict.fromkeys(g.data for g in cases)
        if (members := [g for g in cases if g.data == data and g.share])
    ]
    return Claim(
        f"hash + greedy keeps {SHARE_GOAL:g} of the gain: {family}, limits by folds",
        f"gain in h minus {SHARE_GOAL:g} of the gain of the best of {', '.join(EXHAUSTIVE)} over "
        "all points",
        contrasts,
        f" Shares where the gain is above {GAIN_MIN:g}: {'; '.join(sentences)}.",
    )


def is_fast(cases: Sequence[Gain], family: str) -> Claim:
    """Return the target that hash + greedy is 100 times as fast as the best exhaustive method.

    The share of the gain that hash + greedy keeps is not considered. The exhaustive methods are
    those of the server. The benchmark `quality` has a faster greedy over all points.
    """
    sentences = [
        f"{g.data}, {g.k}: {g.times_best:.0f} times {g.best_method} over all points, "
        f"{g.times_greedy:.0f} times greedy there, {g.times_exact_pass:.1f} times one exact pass"
        for g in cases
    ]
    return Claim(
        f"hash + greedy is {SPEED_GOAL:g} times as fast as the best exhaustive method: {family}, "
        "limits by folds",
        "speed-up",
        speed_ups([(g.row, g.best) for g in cases], SPEED_GOAL),
        f" {'; '.join(sentences)}.",
    )
