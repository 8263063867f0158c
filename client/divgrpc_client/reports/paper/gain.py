"""How much of the gain in h hashing keeps, and how much faster: greedy beside what is exhaustive.

The *gain share* of a data set at one k is 1 for the best of the methods that saw all points and
were asked all queries, 0 for nearest neighbours without hashing. Everyone's dial is by folds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from divgrpc.metrics import gain_share_interval
from divgrpc.types import Interval
from divgrpc_client.reports.paper.claims import Verdict, by_cell, named, together
from divgrpc_client.reports.paper.rows import ALL, FOLDED, HASHED, ONE_EXACT, Row

# h that the best exhaustive method must gain for there to be a gain worth a share.
WORTH: Final = 0.02
ENOUGH: Final = 0.9
FAST: Final = 100.0


@dataclass(frozen=True, slots=True)
class Kept:
    """What hash + greedy, or one exact pass + greedy, keeps of the best exhaustive method's gain.

    `share` is None where there is no gain worth one; the ratios are times as fast as greedy over
    all points, and as one exact pass with the same selector.
    """

    row: Row
    nearest: float
    best: Row
    share: Interval | None
    than_greedy: float
    than_exact: float


def gain_shares(rows: Sequence[Row]) -> list[Kept]:
    """Return what greedy keeps in every data set and at every k, from one exact pass and hashed."""
    found = []
    for _, own in by_cell(r for r in rows if not r.few and not r.fixed):
        at = {(r.method, r.family, r.stage): r for r in own}
        nearest, greedy = (at[method, "NH", ALL] for method in ("NN", "Greedy"))
        exact = at["Greedy", "NH", ONE_EXACT]
        best = max((r for r in own if r.stage == ALL), key=lambda r: r.h.value)
        ends = (nearest.values["h_score"], best.values["h_score"])
        worth = best.h.value - nearest.h.value > WORTH
        for row in own:
            if row.method == "Greedy" and row.stage in (ONE_EXACT, HASHED, FOLDED):
                share = gain_share_interval(row.values["h_score"], *ends) if worth else None
                times = (each.microseconds / row.microseconds for each in (greedy, exact))
                found.append(Kept(row, nearest.h.value, best, share, *times))
    return found


def enough_is_kept(kept: Sequence[Kept]) -> Verdict:
    """Hash + greedy keeps 0.9 of the gain, wherever there is one: the best of its rows counts."""
    verdicts, told = [], []
    for (data, k), own in by_cell(each.row for each in kept):
        hashed = [e for e in kept if e.row in own and e.row.family != "NH" and e.share is not None]
        shares = [(e.share, e) for e in hashed if e.share is not None]
        if not shares:
            continue
        share, best = max(shares, key=lambda pair: pair[0].value)
        verdicts.append(share.value >= ENOUGH)
        told.append(
            f"{data}, {k}: {share.value:.2f} ({share.low:.2f} to {share.high:.2f}), "
            f"{named(best.row)}, {best.than_greedy:.0f} times as fast as greedy over all points"
        )
    sentence = f"{'; '.join(told)}." if told else "There is no gain to be had."
    return Verdict(f"hash + greedy keeps {ENOUGH:g} of the gain", together(verdicts), sentence)


def hundred_times(kept: Sequence[Kept]) -> Verdict:
    """Where it keeps enough it is 100 times as fast as greedy over all points.

    The fastest row that keeps 0.9, or h where there is no gain to be had, in every data set at
    every k. Greedy over all points is the server's own; the benchmark `gain` has faster ones, which
    go through memory in order or, of sparse points, add up columns.
    """
    verdicts, told = [], []
    for (data, k), own in by_cell(each.row for each in kept):
        able = [e for e in kept if e.row in own and e.row.family != "NH" and _able(e)]
        if not able:
            verdicts.append(False)
            told.append(f"{data}, {k}: none keeps enough")
            continue
        best = max(able, key=lambda e: e.than_greedy)
        verdicts.append(best.than_greedy >= FAST)
        told.append(
            f"{data}, {k}: {best.than_greedy:.0f} times, {best.than_exact:.1f} times one exact pass"
        )
    return Verdict(
        f"hash + greedy is {FAST:g} times as fast as the server's exhaustive greedy",
        together(verdicts),
        f"{'; '.join(told)}.",
    )


def _able(kept: Kept) -> bool:
    if kept.share is None:
        return kept.row.h.value >= kept.nearest
    return kept.share.value >= ENOUGH
