"""The share of the gain in h that hashing keeps, and its speed beside exhaustive methods.

The *gain share* of a data set at one k is 1 for the best of `EXHAUSTIVE` over all points, by the h
that is reported, and 0 for nearest neighbours without hashing. All dials are chosen by folds. The
project's targets are judged by one row for each family of hashes, named before the run: greedy,
hashed, limits by folds.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from divgrpc.metrics import gain_share_interval
from divgrpc.types import Interval
from divgrpc_lab.table1.claims import cells
from divgrpc_lab.table1.methods import (
    ALL,
    FAMILIES,
    FOLDED,
    HASHED,
    ONE_EXACT,
    Row,
    category_means,
)
from divgrpc_lab.verdicts import Verdict, in_all_cells

# Not QP-Rel, which is asked fewer queries.
EXHAUSTIVE: Final = ("Greedy", "MMR", "DPP")
# A gain in h below this has no meaningful share.
GAIN_MIN: Final = 0.02
SHARE_GOAL: Final = 0.9
SPEED_GOAL: Final = 100.0


class Gain(NamedTuple):
    """The gain of greedy after hashing or one exact pass, beside the best exhaustive method's.

    `share` is None where the best gains too little. The last three are how many times as fast it is
    as that best method, as greedy over all points, and as one exact pass with the same selector.
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
    """Yield the gains of greedy for every data set and k, after hashing and one exact pass."""
    for cell, group in cells(rows).items():
        plain = {(r.case.method, r.case.stage): r for r in group if r.family == "NH"}
        nearest, greedy = (plain[method, ALL] for method in ("NN", "Greedy"))
        exhaustive = (plain[m, ALL] for m in EXHAUSTIVE if (m, ALL) in plain)
        best = max(exhaustive, key=lambda row: row.h)
        rivals = (best, greedy, plain["Greedy", ONE_EXACT])
        for row in group:
            stage = row.case.stage
            if row.case.method == "Greedy" and stage in (ONE_EXACT, HASHED, FOLDED):
                own, low, high = (
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
                    gain_share_interval(own, low, high) if best.h - nearest.h > GAIN_MIN else None,
                    *speeds,
                )


def targets(measured: Sequence[Gain]) -> list[Verdict]:
    """Judge the project's two targets for each family."""
    return [
        judge([g for g in measured if (g.family, g.stage) == (family, FOLDED)], family)
        for judge in (keeps_the_gain, is_fast)
        for family in FAMILIES
    ]


def keeps_the_gain(judged: Sequence[Gain], family: str) -> Verdict:
    """Hash + greedy keeps 0.9 of the gain on the mean, wherever there is one."""
    sentences = [
        f"{g.data}, {g.k}: "
        + (
            f"{g.share.value:.2f} ({g.share.low:.2f} to {g.share.high:.2f}) of {g.best_method}"
            if g.share
            else "no gain"
        )
        for g in judged
    ]
    return Verdict(
        f"hash + greedy keeps {SHARE_GOAL:g} of the gain: {family}, limits by folds",
        in_all_cells([g.share.value >= SHARE_GOAL for g in judged if g.share]),
        f"Mean shares decide; their intervals stand beside. The gain is that of the best of "
        f"{', '.join(EXHAUSTIVE)} over all points over nearest neighbours, where it is above "
        f"{GAIN_MIN:g}. {'; '.join(sentences)}.",
    )


def is_fast(judged: Sequence[Gain], family: str) -> Verdict:
    """Hash + greedy is 100 times as fast as the method whose gain is shared, whatever it keeps.

    All methods over all points are the server's own. The benchmark `quality` has a faster greedy.
    """
    sentences = [
        f"{g.data}, {g.k}: {g.times_best:.0f} times {g.best_method} over all points, "
        f"{g.times_greedy:.0f} times greedy there, {g.times_exact_pass:.1f} times one exact pass"
        for g in judged
    ]
    return Verdict(
        f"hash + greedy is {SPEED_GOAL:g} times as fast as the best exhaustive method: {family}, "
        "limits by folds",
        in_all_cells([g.times_best >= SPEED_GOAL for g in judged]),
        f"This does not depend on the share of the gain. {'; '.join(sentences)}.",
    )
