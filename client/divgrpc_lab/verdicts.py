"""Verdicts on claims: a claim holds, does not hold, depends on the data, or cannot be told.

A claim is tested by a contrast in each place, which is usually a data set. A contrast has a number
for each query. The mean of these numbers is above zero if the claim is true. The mean has an
interval and a two-sided t test by groups of queries, because the queries of one group resemble each
other. The p values of all contrasts of a table are corrected together by Holm's method. So if no
claim has an effect, the probability that any of them is decided is at most 5 %.

A mean is decided if its corrected p is below 0.05. A claim holds if the means of all its contrasts
are decided and above zero. It depends on the data if one decided mean is above zero and another
below. It does not hold if a decided mean is below zero and no decided mean is above. Otherwise it
cannot be told.

The verdict is "not tested" if no contrast of the claim has a p value, for example because all
queries are in one group. A claim that all means are zero is never confirmed: it "does not hold" or
"is not rejected".
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from rich.console import Console

from divgrpc.metrics import Values, holm
from divgrpc.types import IntArray, Interval
from divgrpc_client.reports.page import Body, Cell, Column, Table
from divgrpc_lab.draws import mean_over_draws

LEVEL: Final = 0.05
# For each verdict: its text, the kind of its cell on the page, and its style on a terminal.
_LOOKS: Final[dict[bool | None, tuple[str, Literal["good", "bad", "open"], str]]] = {
    True: ("holds", "good", "bold green"),
    False: ("does not hold", "bad", "bold red"),
    None: ("cannot be told", "open", "bold yellow"),
}


class Contrast(NamedTuple):
    """The values of a test in one place, and the `groups` (m,) of the values.

    The values are (m,) or, for several draws of the hash functions, (draws, m); see
    `divgrpc_lab.draws`. Values of the same group may depend on each other. If `groups` is None, all
    values are independent. With a `goal`, the values are logarithms of ratios, and the ratio is
    tested against the goal.
    """

    place: str
    values: Values
    groups: IntArray | None = None
    goal: float | None = None


class Claim(NamedTuple):
    """A claim that is true if the means of all `contrasts` are above zero, or above their goals.

    `effect` says what a mean is, and `more` follows the sentence with the evidence. If `is_null`,
    the claim says that all means are zero. A test can reject such a claim but cannot confirm it.
    """

    text: str
    effect: str
    contrasts: Sequence[Contrast]
    more: str = ""
    is_null: bool = False


class Effect(NamedTuple):
    """The size of an effect in one place, with a p value before and after Holm's correction.

    `groups` is the number of groups. With fewer than two groups, the ends of the interval and both
    p values are NaN. If `is_ratio`, the size is a ratio. `side` is True if the mean is decided and
    above zero or its goal, False if it is decided and not above, and None if it is not decided.
    """

    place: str
    size: Interval
    groups: int
    p: float
    corrected_p: float
    is_ratio: bool
    side: bool | None

    @property
    def text(self) -> str:
        """The size, its interval and the corrected p value in words."""
        if np.isnan(self.size.value):
            return f"{self.place}: no value"
        form = "{:,.3g} times".format if self.is_ratio else "{:+.3f}".format
        value = f"{self.place}: {form(self.size.value)}"
        if self.groups == 1:
            return f"{value}, one group: no interval"
        low, high = map(form, self.size[1:])
        return f"{value} ({low} to {high}; p {p_text(self.corrected_p)})"


class Verdict(NamedTuple):
    """A claim, whether it `holds` (None if undecided), and a sentence with the evidence.

    `open_word` is the text that is printed for an undecided claim. `effects` has the sizes of the
    effects that were tested.
    """

    claim: str
    holds: bool | None
    sentence: str
    open_word: str = _LOOKS[None][0]
    effects: tuple[Effect, ...] = ()

    @property
    def word(self) -> str:
        """The verdict in words."""
        return self.open_word if self.holds is None else _LOOKS[self.holds][0]


def judge(claims: Sequence[Claim]) -> list[Verdict]:
    """Judge all claims of a table together, so that Holm's method corrects all their tests."""
    tests = [_tested(contrast) for claim in claims for contrast in claim.contrasts]
    p_values = np.array([test[-1] for test in tests])
    corrected_p = np.full(len(tests), np.nan)
    is_tested = ~np.isnan(p_values)
    corrected_p[is_tested] = holm(p_values[is_tested])
    effects = iter([_effect(*parts) for parts in zip(tests, corrected_p.tolist(), strict=True)])
    return [_verdict(claim, tuple(next(effects) for _ in claim.contrasts)) for claim in claims]


def _tested(contrast: Contrast) -> tuple[Contrast, Interval, int, float]:
    """Return the contrast, the interval of its mean, its number of groups, and its p value."""
    values = np.atleast_2d(contrast.values)
    applies = ~np.isnan(values).any(axis=0)
    values = values[:, applies]
    groups = np.arange(values.shape[1]) if contrast.groups is None else contrast.groups[applies]
    count = len(np.unique(groups))
    if not count:
        return contrast, Interval(np.nan, np.nan, np.nan), 0, np.nan
    size = mean_over_draws(values, groups).size
    p = mean_over_draws(values - np.log(contrast.goal or 1.0), groups).p
    return contrast, size, count, p


def _effect(test: tuple[Contrast, Interval, int, float], corrected_p: float) -> Effect:
    contrast, size, groups, p = test
    is_ratio = contrast.goal is not None
    above = size.value > np.log(contrast.goal or 1.0)
    if is_ratio:
        size = Interval(*np.exp(size).tolist())
    side = bool(above) if corrected_p < LEVEL else None
    return Effect(contrast.place, size, groups, p, corrected_p, is_ratio, side)


def _verdict(claim: Claim, effects: tuple[Effect, ...]) -> Verdict:
    sides = {effect.side for effect in effects}
    word = _LOOKS[None][0]
    if all(np.isnan(effect.p) for effect in effects):
        holds, word = None, "not tested"
    elif claim.is_null:
        holds, word = False if sides - {None} else None, "is not rejected"
    elif sides >= {True, False}:
        holds, word = None, "depends on the data"
    else:
        holds = False if False in sides else True if sides == {True} else None
    evidence = "; ".join(effect.text for effect in effects) or "not measured"
    return Verdict(claim.text, holds, f"{claim.effect}: {evidence}.{claim.more}", word, effects)


def p_text(p: float) -> str:
    """Return a p value with two significant digits, or "none" if there was no test."""
    if np.isnan(p):
        return "none"
    return "below 1e-6" if p < 1e-6 else f"{p:.2g}"  # as printed


def verdict_table(verdicts: Sequence[Verdict], caption: str) -> Table:
    """Return the verdicts as a table for a page, with a line for each effect of a claim."""
    columns = [
        Column("claim", numeric=False),
        Column("verdict", numeric=False, whole=True),
        Column("where", numeric=False),
        *map(Column, ("effect", "95 % interval", "groups", "p", "corrected p")),
        Column("evidence", numeric=False),
    ]
    bodies = [Body([*_lines(verdict)]) for verdict in verdicts]
    return Table(caption, columns, bodies)


def _lines(verdict: Verdict) -> Iterable[list[Cell | str]]:
    """Yield a line for each effect, or one line for a claim without effects."""
    begin: list[Cell | str] = [
        verdict.claim,
        Cell(verdict.word, verdict=_LOOKS[verdict.holds][1]),
    ]
    end = verdict.sentence
    if not verdict.effects:
        yield [*begin, *[""] * 6, end]
    for effect in verdict.effects:
        p_values = (p_text(effect.p), p_text(effect.corrected_p))
        yield [*begin, effect.place, *_cell_texts(effect), *p_values, end]
        begin, end = ["", ""], ""


def _cell_texts(effect: Effect) -> tuple[str, str, str]:
    """Return the size of an effect, its interval and its number of groups in words."""
    groups = str(effect.groups)
    if np.isnan(effect.size.value):
        return "no value", "", groups
    form = "{:,.3g} times".format if effect.is_ratio else "{:+.3f}".format
    value, low, high = map(form, effect.size)
    interval = f"{low} to {high}" if effect.groups > 1 else "one group: no interval"
    return value, interval, groups


def print_verdicts(out: Console, verdicts: Sequence[Verdict]) -> None:
    """Print the verdicts, in colour on a terminal."""
    for verdict in verdicts:
        out.print(f"{verdict.word.upper()}: {verdict.claim}", style=_LOOKS[verdict.holds][2])
        out.print(f"  {verdict.sentence}\n")
