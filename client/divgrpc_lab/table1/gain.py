"""How much of the gain in h hashing keeps, and how much faster: greedy beside what is exhaustive.

The *gain share* of a data set at one k is 1 for the best of what is exhaustive, `EXHAUSTIVE` over
all points, by the h that is reported; 0 for nearest neighbours without hashing. Everyone's dial is
by folds. Our targets are judged by one row for each family of hashes, named before the run: greedy,
hashed, limits by folds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from divgrpc.metrics import gain_share_interval
from divgrpc.types import Interval
from divgrpc_lab.table1.claims import by_cell
from divgrpc_lab.table1.rows import (
    ALL,
    FOLDED,
    HASHED,
    ONE_EXACT,
    Row,
    by_category,
)
from divgrpc_lab.verdicts import Verdict, together

# QP-Rel is left out: it is asked fewer queries.
EXHAUSTIVE: Final = ("Greedy", "MMR", "DPP")
# h that the best exhaustive method must gain for there to be a gain worth a share.
WORTH: Final = 0.02
ENOUGH: Final = 0.9
FAST: Final = 100.0


@dataclass(frozen=True, slots=True)
class Kept:
    """What hash + greedy, or one exact pass + greedy, keeps of the best exhaustive method's gain.

    `share` is None where there is no gain worth one; the ratios are times as fast as that best
    method, as greedy over all points, and as one exact pass with the same selector.
    """

    row: Row
    nearest: float
    best: Row
    share: Interval | None
    than_best: float
    than_greedy: float
    than_exact: float

    def plain(self) -> dict[str, Any]:
        """Return it for JSON, rows by their names."""
        row, best = self.row, self.best
        cell = {"data": row.data, "k": row.k, "row": row.name, "h": row.h.value}
        against = {"nearest": self.nearest, "best": best.name, "best_h": best.h.value}
        names = ("share", "than_best", "than_greedy", "than_exact")
        return cell | against | {name: getattr(self, name) for name in names}


def gain_shares(rows: Sequence[Row]) -> list[Kept]:
    """Return what greedy keeps in every data set and at every k, from one exact pass and hashed."""
    results = []
    for _, selected in by_cell(r for r in rows if not r.few and not r.fixed):
        at = {(r.method, r.family, r.stage): r for r in selected}
        nearest, greedy = (at[method, "NH", ALL] for method in ("NN", "Greedy"))
        exact = at["Greedy", "NH", ONE_EXACT]
        over_all = (r for r in selected if r.stage == ALL and r.method in EXHAUSTIVE)
        best = max(over_all, key=lambda r: r.h.value)
        worth = best.h.value - nearest.h.value > WORTH
        for row in selected:
            if row.method == "Greedy" and row.stage in (ONE_EXACT, HASHED, FOLDED):
                share = _share(row, nearest, best) if worth else None
                against = (best, greedy, exact)
                times = (item.microseconds / row.microseconds for item in against)
                results.append(Kept(row, nearest.h.value, best, share, *times))
    return results


def enough_is_kept(kept: Sequence[Kept], family: str) -> Verdict:
    """Hash + greedy, limits by folds, keeps 0.9 of the gain on the mean, wherever there is one."""
    verdicts, sentences = [], []
    for item in _judged(kept, family):
        cell, share = f"{item.row.data}, {item.row.k}", item.share
        if share is None:
            sentences.append(f"{cell}: no gain")
            continue
        verdicts.append(share.value >= ENOUGH)
        sentences.append(
            f"{cell}: {share.value:.2f} ({share.low:.2f} to {share.high:.2f}) of {item.best.method}"
        )
    return Verdict(
        f"hash + greedy keeps {ENOUGH:g} of the gain: {family}, limits by folds",
        together(verdicts),
        f"Mean shares decide, their intervals stand beside. The gain is that of the best of "
        f"{', '.join(EXHAUSTIVE)} over all points over nearest neighbours, where it is above "
        f"{WORTH:g}. {'; '.join(sentences)}.",
    )


def hundred_times(kept: Sequence[Kept], family: str) -> Verdict:
    """Hash + greedy, limits by folds, is 100 times as fast as the method whose gain is shared.

    In every data set at every k, whatever it keeps there. All methods over all points are the
    server's own; the benchmark `gain` has faster greedy ones, which go through memory in order or,
    of sparse points, add up columns.
    """
    judged = _judged(kept, family)
    sentences = [
        f"{e.row.data}, {e.row.k}: {e.than_best:.0f} times {e.best.method} over all points, "
        f"{e.than_greedy:.0f} times greedy there, {e.than_exact:.1f} times one exact pass"
        for e in judged
    ]
    return Verdict(
        f"hash + greedy is {FAST:g} times as fast as the best exhaustive method: {family}, limits "
        "by folds",
        together([item.than_best >= FAST for item in judged]),
        f"Whatever it keeps there. {'; '.join(sentences)}.",
    )


def _judged(kept: Sequence[Kept], family: str) -> list[Kept]:
    return [item for item in kept if (item.row.family, item.row.stage) == (family, FOLDED)]


def _share(row: Row, nearest: Row, best: Row) -> Interval:
    """Return the gain share with its interval over categories."""
    selected, least, most = (
        by_category(item.values["h_score"], item.categories) for item in (row, nearest, best)
    )
    return gain_share_interval(selected, least, most)
