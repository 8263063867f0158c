"""Judges the paper's claims about Table 2 by measured rows; see `divgrpc_lab.verdicts`.

Two rows of one data set are compared by the mean of their difference over documents.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from divgrpc.metrics import mean_intervals
from divgrpc.types import Mode
from divgrpc_lab.table2.bench import LabelTime
from divgrpc_lab.table2.methods import DEFAULT, EVERYTHING, FIGURES, MODES, PAPERS, LabelRow
from divgrpc_lab.table2.paper import PRINTED, impossible
from divgrpc_lab.verdicts import Verdict, above, times_as_fast

# The method of the paper, which the claims compare with others.
_METHOD: Final = "LSH-SDiv"
_LETTERS: Final = dict(zip(FIGURES, ("P", "R", "f", "D", "h"), strict=True))
_RIVALS: Final = ("LEML", "MMR", "PCA-Hash", "LSH-Div")
# Speed-ups that the paper's text claims to exceed.
_SPEED_UPS: Final = {"LEML": 20.0, "MMR": 80.0}
_EXHAUSTIVE: Final = ("LEML", "MMR", "Greedy")
_SAME: Final = (
    " Where there are as many components as dimensions the hyperplanes of the two are drawn from "
    "the same distribution, and no difference is to be expected."
)


def verdicts(rows: Sequence[LabelRow], times: Sequence[LabelTime] = ()) -> list[Verdict]:
    """Return the verdicts on the paper's claims, in the paper's order."""
    return [
        *(_above(rows, "precision", _METHOD, "LSH-Div", mode) for mode in MODES),
        *(_above(rows, "drank", _METHOD, "LEML", mode) for mode in MODES),
        *(_above(rows, "h_score", _METHOD, rival, mode) for mode in MODES for rival in _RIVALS),
        _above(rows, "precision", "LEML", "Greedy", "embedding"),
        *(_above(rows, name, "LEML", _METHOD, m) for name in ("recall", "f_score") for m in MODES),
        *(_faster(rows, rival, mode) for rival in _SPEED_UPS for mode in MODES),
        *(_faster_at_size(times, rival, mode) for rival in _SPEED_UPS for mode in MODES),
        h_is_possible(),
    ]


def h_is_possible() -> Verdict:
    """Judge whether the paper's h can come from the same documents as its P and D."""
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


def _above(rows: Sequence[LabelRow], name: str, method: str, rival: str, mode: Mode) -> Verdict:
    """Judge whether `method` has a greater figure than `rival` in all data sets and settings."""
    pairs, differences = list(_pairs(rows, method, rival, mode)), []
    for row, slow in pairs:
        values = row.result.values[name] - slow.result.values[name]
        if not np.isnan(values).all():
            differences += mean_intervals(values[:, np.newaxis])
    where = f", {MODES[mode]}" if _METHOD in (method, rival) else ""
    is_same = rival == "LSH-Div" and any(row.same_as_lsh_div for row, _ in pairs)
    letter = _LETTERS[name]
    claim = f"{letter} of {method} is above {letter} of {rival}{where}"
    return above(claim, "The difference", differences, _SAME if is_same else "")


def _faster(rows: Sequence[LabelRow], rival: str, mode: Mode) -> Verdict:
    """Judge whether LSH-SDiv in the paper's setting is as fast as claimed in the worst case."""
    goal = _SPEED_UPS[rival]
    ratios = [
        slow.microseconds / row.microseconds
        for row, slow in _pairs(rows, _METHOD, rival, mode)
        if row.case.setting == PAPERS
    ]
    counts = [row.candidates for row in rows]
    size = f"{min(counts):,} to {max(counts):,}" if counts else "few"
    return times_as_fast(
        f"{_METHOD} is more than {goal:g} times as fast as {rival}, {MODES[mode]}",
        ratios,
        goal,
        f"; but these sets have {size} labels or documents where the paper has 259,000 and 603,000",
    )


def _faster_at_size(times: Sequence[LabelTime], rival: str, mode: Mode) -> Verdict:
    goal = _SPEED_UPS[rival]
    claim = f"{_METHOD} is more than {goal:g} times as fast as {rival}, {MODES[mode]}, at its size"
    by_case = {(time.method, time.mode, time.setting): time.microseconds for time in times}
    slow = by_case.get((rival, "embedding", EVERYTHING))
    ratios = {
        setting: slow / by_case[_METHOD, mode, setting]
        for setting in (PAPERS, DEFAULT)
        if slow is not None and (_METHOD, mode, setting) in by_case
    }
    if not ratios:
        return Verdict(claim, None, "It was not measured.")
    sentences = ", ".join(f"{ratio:,.1f} times at {setting}" for setting, ratio in ratios.items())
    return Verdict(claim, max(ratios.values()) > goal, f"On synthetic documents: {sentences}.")


def _pairs(
    rows: Sequence[LabelRow], method: str, rival: str, mode: Mode
) -> Iterator[tuple[LabelRow, LabelRow]]:
    """Yield pairs of rows of two methods, for every data set and each setting that they have.

    Rows of a hashing method are left out if the search was exact, because nothing was hashed.
    """
    by_case = {
        (row.data, row.case.method, row.case.setting): row
        for row in rows
        if row.case.method in _EXHAUSTIVE or (row.case.mode == mode and row.is_hashed)
    }
    settings = (PAPERS, DEFAULT) if _METHOD in (method, rival) else (EVERYTHING,)
    for data in dict.fromkeys(row.data for row in rows):
        for setting in settings:
            first, second = (
                by_case.get((data, name, EVERYTHING if name in _EXHAUSTIVE else setting))
                for name in (method, rival)
            )
            if first is not None and second is not None:
                yield first, second
