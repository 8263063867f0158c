"""Claims in words, and what a run says of each: it holds, it does not hold, it cannot be decided.

Two rows are compared by the mean difference between them with its 95 % interval: the first is above
where all of the interval is above zero. A claim about many cells (data sets, k, families) holds if
it holds in every cell, and fails if the contrary is seen in one. One cell in forty is expected to
seem contrary by chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from rich.console import Console

from divgrpc.types import Interval
from divgrpc_client.reports.page import Body, Cell, Column, Table

_WORDS: Final = {True: "holds", False: "does not hold", None: "cannot be told"}
_COLOURS: Final[dict[bool | None, Literal["good", "bad", "open"]]] = {
    True: "good",
    False: "bad",
    None: "open",
}
_STYLES: Final = {True: "bold green", False: "bold red", None: "bold yellow"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the paper says, whether it `holds` (None: cannot be decided), and the sentence of why.

    `held` is the word where it holds.
    """

    claim: str
    holds: bool | None
    sentence: str
    held: str = _WORDS[True]

    @property
    def word(self) -> str:
        """The verdict in words."""
        return self.held if self.holds else _WORDS[self.holds]


def sign(difference: Interval) -> bool | None:
    """Tell whether all of an interval is above zero, or below; None where zero is inside."""
    if difference.low > 0:
        return True
    return False if difference.high < 0 else None


def together(verdicts: Sequence[bool | None]) -> bool | None:
    """Tell whether something holds in all cells: not if it fails in one."""
    if False in verdicts:
        return False
    return None if not verdicts or None in verdicts else True


def above(claim: str, what: str, differences: Sequence[Interval], more: str = "") -> Verdict:
    """Judge that differences, named `what`, are above zero in every cell."""
    if not differences:
        return Verdict(claim, None, f"{what} was not measured.{more}")
    signs = [sign(difference) for difference in differences]
    values = [difference.value for difference in differences]
    sentence = (
        f"{what} is above zero in {signs.count(True)} of {len(signs)} cells, below in "
        f"{signs.count(False)}, too close to tell in {signs.count(None)}, from {min(values):+.3f} "
        f"to {max(values):+.3f}.{more}"
    )
    return Verdict(claim, together(signs), sentence)


def times_as_fast(
    claim: str, ratios: Sequence[float], least: float, more: str = "", *, strictly: bool = False
) -> Verdict:
    """Judge that something is `least` times as fast in the slowest case."""
    if not ratios:
        return Verdict(claim, None, "It was not measured.")
    low = min(ratios)
    sentence = (
        f"{np.median(ratios):,.1f} times in the middle case, from {low:,.1f} to "
        f"{max(ratios):,.1f}{more}."
    )
    return Verdict(claim, bool(low > least if strictly else low >= least), sentence)


def verdict_table(verdicts: Sequence[Verdict], caption: str) -> Table:
    """Return the verdicts as a table of a page, in colour."""
    columns = [Column("claim", numeric=False), Column("verdict", numeric=False, whole=True)]
    lines = [(v.claim, Cell(v.word, verdict=_COLOURS[v.holds]), v.sentence) for v in verdicts]
    return Table(caption, [*columns, Column("evidence", numeric=False)], [Body(lines)])


def print_verdicts(out: Console, verdicts: Sequence[Verdict]) -> None:
    """Print the verdicts, in colour on a terminal."""
    for verdict in verdicts:
        out.print(f"{verdict.word.upper()}: {verdict.claim}", style=_STYLES[verdict.holds])
        out.print(f"  {verdict.sentence}\n")
