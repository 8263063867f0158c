"""What the paper says of Table 2, judged by rows: see `divgrpc_lab.verdicts`.

Two rows of one data set are compared by the mean over documents of the difference between them.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from divgrpc.metrics import mean_intervals
from divgrpc.types import Mode
from divgrpc_lab.table2.printed import PRINTED, impossible
from divgrpc_lab.table2.rows import (
    DEFAULT,
    EVERYTHING,
    FIGURES,
    MODES,
    PAPERS,
    LabelRow,
)
from divgrpc_lab.table2.times import TimedLabels
from divgrpc_lab.verdicts import Verdict, above, times_as_fast

OURS: Final = "LSH-SDiv"
_LETTERS: Final = dict(zip(FIGURES, ("P", "R", "f", "D", "h"), strict=True))
_RIVALS: Final = ("LEML", "MMR", "PCA-Hash", "LSH-Div")
# More than so many times as fast: what the text says.
_THAN_LEML, _THAN_MMR = 20.0, 80.0
_EXHAUSTIVE: Final = ("LEML", "MMR", "Greedy")
_SAME: Final = (
    " Where there are as many components as dimensions the hyperplanes of the two are drawn from "
    "the same distribution, and no difference is to be expected."
)


def everything(rows: Sequence[LabelRow], times: Sequence[TimedLabels] = ()) -> list[Verdict]:
    """Return the verdicts on all claims, in the order of the paper's."""
    return [
        *(_above(rows, "precision", OURS, "LSH-Div", mode) for mode in MODES),
        *(_above(rows, "drank", OURS, "LEML", mode) for mode in MODES),
        *(_above(rows, "h_score", OURS, rival, mode) for mode in MODES for rival in _RIVALS),
        _above(rows, "precision", "LEML", "Greedy", "embedding"),
        *(_above(rows, name, "LEML", OURS, m) for name in ("recall", "f_score") for m in MODES),
        *(_faster(rows, "LEML", _THAN_LEML, mode) for mode in MODES),
        *(_faster(rows, "MMR", _THAN_MMR, mode) for mode in MODES),
        *(_faster_at_size(times, "LEML", _THAN_LEML, mode) for mode in MODES),
        *(_faster_at_size(times, "MMR", _THAN_MMR, mode) for mode in MODES),
        h_is_possible(),
    ]


def h_is_possible() -> Verdict:
    """Say whether the paper's h can be the mean of what its P and D are means of."""
    wrong = impossible()
    sentences = "; ".join(
        f"{name} {row.h:.3f}, at most {row.most:.3f}" for name, row in PRINTED.items()
    )
    return Verdict(
        "the column h of Table 2 is of the same documents as its P and D",
        not wrong,
        f"The mean of h over documents is at most 2PD/(P+D) of the means, the harmonic mean being "
        f"concave. Printed: {sentences}. So P, R, D and time are compared here, not that h.",
    )


def _above(rows: Sequence[LabelRow], name: str, one: str, other: str, mode: Mode) -> Verdict:
    """Say whether a figure of one method is above another's, in all data sets and settings."""
    differences = []
    for first, second in _pairs(rows, one, other, mode):
        values = first.values[name] - second.values[name]
        if not np.isnan(values).all():
            differences += mean_intervals(values[:, np.newaxis])
    where = f", {MODES[mode]}" if OURS in (one, other) else ""
    same = other == "LSH-Div" and any(
        first.same_as_lsh_div for first, _ in _pairs(rows, one, other, mode)
    )
    return above(
        f"{_LETTERS[name]} of {one} is above that of {other}{where}",
        "The difference",
        differences,
        _SAME if same else "",
    )


def _faster(rows: Sequence[LabelRow], other: str, least: float, mode: Mode) -> Verdict:
    """Say whether the paper's setting is so many times as fast as a method: the slowest counts."""
    ratios = [
        slow.microseconds / fast.microseconds
        for fast, slow in _pairs(rows, OURS, other, mode)
        if fast.asking.setting == PAPERS
    ]
    claim = f"{OURS} is more than {least:g} times as fast as {other}, {MODES[mode]}"
    few = "few"
    if ratios:
        few = f"{min(row.among for row in rows):,} to {max(row.among for row in rows):,}"
    return times_as_fast(
        claim,
        ratios,
        least,
        f"; but these sets have {few} labels or documents where the paper has 259,000 and 603,000",
        strictly=True,
    )


def _faster_at_size(times: Sequence[TimedLabels], other: str, least: float, mode: Mode) -> Verdict:
    claim = f"{OURS} is more than {least:g} times as fast as {other}, {MODES[mode]}, at its size"
    taken = {
        (item.method, item.setting): item
        for item in times
        if item.mode == mode or item.method in _EXHAUSTIVE
    }
    slow = taken.get((other, EVERYTHING))
    ratios = {
        setting: slow.microseconds / taken[OURS, setting].microseconds
        for setting in (PAPERS, DEFAULT)
        if slow is not None and (OURS, setting) in taken
    }
    if not ratios:
        return Verdict(claim, None, "It was not measured.")
    sentences = ", ".join(f"{ratio:,.1f} times at {setting}" for setting, ratio in ratios.items())
    return Verdict(claim, bool(max(ratios.values()) > least), f"On documents made up: {sentences}.")


def _pairs(
    rows: Sequence[LabelRow], one: str, other: str, mode: Mode
) -> Iterator[tuple[LabelRow, LabelRow]]:
    """Yield a row of each method for every data set, at each setting that one of them has.

    Rows for which an exact search was taken are passed over: hashing had no part in them.
    """
    for data in dict.fromkeys(row.data for row in rows):
        at = {
            (row.asking.method, row.asking.setting): row
            for row in rows
            if row.data == data
            and (
                row.asking.method in _EXHAUSTIVE or (row.asking.mode, row.is_hashed) == (mode, True)
            )
        }
        for setting in (PAPERS, DEFAULT) if OURS in (one, other) else (EVERYTHING,):
            pair = [at.get((m, EVERYTHING if m in _EXHAUSTIVE else setting)) for m in (one, other)]
            if pair[0] is not None and pair[1] is not None:
                yield pair[0], pair[1]
