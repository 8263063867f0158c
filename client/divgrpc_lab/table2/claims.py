"""The paper's claims about Table 2 as contrasts of measured rows; see `divgrpc_lab.verdicts`.

Figures of rows are compared by their differences for each document and hash seed, and times by
their ratios. On the data sets, hashing methods are compared in the paper's literal mode
(`table2.methods`), once with ten bits and once with the number of bits and epsilon chosen by folds.
Folds choose for the best h, because the paper tunes all parameters for h. If a set has no
hierarchy, they choose for the best f.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final, TypeAlias

import numpy as np

from divgrpc.types import Mode
from divgrpc_lab.data.synthetic import LABELS
from divgrpc_lab.table2.bench import EPSILONS, AtEpsilon
from divgrpc_lab.table2.methods import (
    ALL_ITEMS,
    AT_FIVE,
    DEFAULT,
    HOME,
    HOME_BY_FOLDS,
    MODES,
    LabelRow,
)
from divgrpc_lab.table2.paper import PAPER_ROWS, impossible
from divgrpc_lab.table2.size import ENDS_EARLY, LabelTime
from divgrpc_lab.verdicts import Claim, Contrast, Verdict, judge

LSH_SDIV: Final = "LSH-SDiv"
LETTERS: Final = {
    AT_FIVE: "P@5",
    "recall": "R",
    "f_score": "f",
    "drank": "D",
    "h_score": "h",
}
_TIME: Final = "microseconds"
_RIVALS: Final = ("LEML", "MMR", "PCA-Hash", "LSH-Div")
# The other families of hash functions, which the paper says are slower.
_HASHED_RIVALS: Final = ("PCA-Hash", "LSH-Div")
_EXHAUSTIVE: Final = ("LEML", "MMR", "Greedy")
# The slower methods and their settings by name, with the speed-ups that the paper's text claims.
_SPEED_UPS: Final = {
    "LEML's product with every label": ("LEML", ALL_ITEMS, 20.0),
    "LEML's search that ends early": ("LEML", ENDS_EARLY, 20.0),
    "MMR over every label": ("MMR", ALL_ITEMS, 80.0),
}
# The three parts of the paper's figure over epsilon. In each, LSH-SDiv should have a greater value
# of the named figure than these methods.
_FIGURE: Final = (
    ("a", AT_FIVE, ("LSH-Div",)),
    ("b", "drank", ("LEML", "LSH-Div")),
    ("c", "h_score", ("LEML", "LSH-Div")),
)
_SAME: Final = (
    " Where there are as many components as dimensions, both draw hyperplanes from the same "
    "distribution, and with the same seed the same hyperplanes. There is nothing to test there."
)

# The mode and the setting of the hashing methods that a claim compares.
_Hashing: TypeAlias = tuple[Mode, str]
_LITERAL: Final[tuple[_Hashing, ...]] = tuple(product(MODES, (HOME, HOME_BY_FOLDS)))
_NO_HASHING: Final[_Hashing] = ("embedding", ALL_ITEMS)
# The default of `neighbour_vote` is left out, because it searches all documents without hashing.
_AT_SIZE: Final[tuple[_Hashing, ...]] = (
    *(("embedding", setting) for setting in (HOME, DEFAULT)),
    ("neighbour_vote", HOME),
)


def verdicts(
    rows: Sequence[LabelRow],
    curves: Sequence[AtEpsilon] = (),
    times: Sequence[LabelTime] = (),
) -> list[Verdict]:
    """Return the verdicts on the paper's claims, corrected together, in the paper's order."""
    claims = [
        *(_above(rows, AT_FIVE, LSH_SDIV, "LSH-Div", hashing) for hashing in _LITERAL),
        *(_above(rows, "drank", LSH_SDIV, "LEML", hashing) for hashing in _LITERAL),
        *(_above(rows, "h_score", LSH_SDIV, r, hashing) for r in _RIVALS for hashing in _LITERAL),
        _above(rows, AT_FIVE, "LEML", "Greedy", _NO_HASHING),
        *(
            _above(rows, name, "LEML", LSH_SDIV, hashing)
            for name in ("recall", "f_score")
            for hashing in _LITERAL
        ),
        *(
            _over_epsilon(curves, part, name, rival, mode)
            for part, name, rivals in _FIGURE
            for rival in rivals
            for mode in MODES
        ),
        *(_speed_up(times, name, hashing) for name in _SPEED_UPS for hashing in _AT_SIZE),
        *(_faster(rows, rival, hashing) for rival in _HASHED_RIVALS for hashing in _LITERAL),
        *(_faster_at_size(times, rival, mode) for rival in _HASHED_RIVALS for mode in MODES),
    ]
    return [*judge(claims), h_is_possible()]


def h_is_possible() -> Verdict:
    """Judge whether the paper's h can come from the same documents as its P and D."""
    wrong = impossible()
    sentences = "; ".join(
        f"{name} {row.h:.3f}, at most {row.most:.3f}" for name, row in PAPER_ROWS.items()
    )
    return Verdict(
        "the column h of Table 2 is of the same documents as its P and D",
        not wrong,
        f"The mean of h over documents is at most 2PD/(P+D) of the means, the harmonic mean being "
        f"concave. Printed: {sentences}. So P, R, D and time are compared here, not that h.",
    )


def _above(
    rows: Sequence[LabelRow], name: str, method: str, rival: str, hashing: _Hashing
) -> Claim:
    """Claim that `method` has a greater figure than `rival` on every data set."""
    pairs = list(_pairs(rows, method, rival, hashing))
    contrasts = [
        Contrast(place, row.values[name] - rival_row.values[name])
        for place, row, rival_row in pairs
        if not np.isnan(row.values[name]).all() and not _is_same(row, rival_row)
    ]
    where = "" if hashing == _NO_HASHING else f", {_text(hashing)}"
    more = _SAME if any(_is_same(row, rival_row) for _, row, rival_row in pairs) else ""
    text = f"{method} has a greater {LETTERS[name]} than {rival}{where}"
    return Claim(text, "The difference", contrasts, more)


def _text(hashing: _Hashing) -> str:
    mode, setting = hashing
    return f"{MODES[mode]}, {setting}"


def _is_same(row: LabelRow, rival_row: LabelRow) -> bool:
    """Whether both rows hash by the same hyperplanes, so that there is nothing to test."""
    return row.same_as_lsh_div and rival_row.case.method == "LSH-Div"


def _over_epsilon(
    curves: Sequence[AtEpsilon], part: str, name: str, rival: str, mode: Mode
) -> Claim:
    """Claim that LSH-SDiv has a greater mean of a figure over all epsilons than `rival`."""
    text = f"({part}) over ε, {LSH_SDIV} has a greater {LETTERS[name]} than {rival}, {MODES[mode]}"
    points = {(p.data, p.method, p.mode, p.epsilon): p.values[name] for p in curves}
    contrasts, words, more = [], [], ""
    for data in dict.fromkeys(point.data for point in curves):
        by_rival = "embedding" if rival == "LEML" else mode
        differences = [
            points[data, LSH_SDIV, mode, epsilon]
            - points[data, rival, by_rival, None if rival == "LEML" else epsilon]
            for epsilon in EPSILONS
        ]
        if np.isnan(differences).all():
            continue
        if not np.any(differences):
            more = _SAME
            continue
        contrasts.append(Contrast(data, np.mean(differences, axis=0)))
        means = ", ".join(f"{np.mean(values):+.3f}" for values in differences)
        words.append(f"{data} {means}")
    epsilons = ", ".join(f"{epsilon:g}" for epsilon in EPSILONS)
    figures = f" At ε of {epsilons}: {'; '.join(words)}." if words else ""
    return Claim(text, "The mean difference over ε", contrasts, figures + more)


def _speed_up(times: Sequence[LabelTime], name: str, hashing: _Hashing) -> Claim:
    """Claim that LSH-SDiv beats a method by the paper's speed-up, at the paper's size."""
    rival, setting, goal = _SPEED_UPS[name]
    faster = f"{LSH_SDIV} is more than {goal:g} times as fast as {name}"
    text = f"{faster}, {_text(hashing)}, at its size"
    return _of_times(times, text, (rival, "embedding", setting), hashing, goal)


def _faster_at_size(times: Sequence[LabelTime], rival: str, mode: Mode) -> Claim:
    """Claim that LSH-SDiv is faster than another family with home buckets, at the paper's size."""
    text = f"{LSH_SDIV} is faster than {rival}, {_text((mode, HOME))}, at its size"
    return _of_times(times, text, (rival, mode, HOME), (mode, HOME), 1.0)


def _of_times(
    times: Sequence[LabelTime],
    text: str,
    slow: tuple[str, Mode, str],
    hashing: _Hashing,
    goal: float,
) -> Claim:
    """Claim that LSH-SDiv is more than `goal` times as fast as the case `slow`."""
    effect = "Ratio of times"
    if not times or times[0].candidates < LABELS:
        return Claim(text, effect, [], f" A run of the whole form has {LABELS:,} labels.")
    by_case = {(time.method, time.mode, time.setting): time for time in times}
    first, second = by_case.get(slow), by_case.get((LSH_SDIV, *hashing))
    if first is None or second is None:
        return Claim(text, effect, [])
    if second.same_as_lsh_div and first.method == "LSH-Div":
        return Claim(text, effect, [], _SAME)
    count = min(first.documents, second.documents)
    ratios = first.microseconds[:, :count] / second.microseconds[:, :count]
    return Claim(text, effect, [Contrast("synthetic documents", np.log(ratios), goal=goal)])


def _faster(rows: Sequence[LabelRow], rival: str, hashing: _Hashing) -> Claim:
    """Claim that LSH-SDiv is faster than another family on every data set."""
    pairs = list(_pairs(rows, LSH_SDIV, rival, hashing))
    contrasts = [
        Contrast(place, np.log(rival_row.values[_TIME] / row.values[_TIME]), goal=1.0)
        for place, row, rival_row in pairs
        if not _is_same(row, rival_row)
    ]
    more = _SAME if any(_is_same(row, rival_row) for _, row, rival_row in pairs) else ""
    text = f"{LSH_SDIV} is faster than {rival}, {_text(hashing)}"
    return Claim(text, "Ratio of times", contrasts, more)


def _pairs(
    rows: Sequence[LabelRow], method: str, rival: str, hashing: _Hashing
) -> Iterator[tuple[str, LabelRow, LabelRow]]:
    """Yield each data set and the rows of two methods on it."""
    by_case = {(row.data, row.case.method, row.case.mode, row.case.setting): row for row in rows}
    for data in dict.fromkeys(row.data for row in rows):
        first, second = (
            by_case.get((data, name, *(_NO_HASHING if name in _EXHAUSTIVE else hashing)))
            for name in (method, rival)
        )
        if first is not None and second is not None:
            yield data, first, second
