"""Verdicts on claims: a claim holds, does not hold, or cannot be decided by a run.

Two rows are compared by their mean difference and its 95 % interval. The first row is above the
second if the whole interval is above zero. A claim about many cells (data sets, k, families) holds
if it holds in every cell, and fails if one cell contradicts it. If there is no difference, one cell
in forty contradicts a claim by chance.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from rich.console import Console

from divgrpc.types import Interval
from divgrpc_client.reports.page import Body, Cell, Column, Table

# For each verdict: its text, the kind of its cell on the page, and its style on a terminal.
_LOOKS: Final[dict[bool | None, tuple[str, Literal["good", "bad", "open"], str]]] = {
    True: ("holds", "good", "bold green"),
    False: ("does not hold", "bad", "bold red"),
    None: ("cannot be told", "open", "bold yellow"),
}


class Verdict(NamedTuple):
    """A claim, whether it `holds` (None if undecided), and a sentence with the evidence.

    `positive` is the text that is printed for a claim that holds.
    """

    claim: str
    holds: bool | None
    sentence: str
    positive: str = "holds"

    @property
    def word(self) -> str:
        """The verdict in words."""
        return self.positive if self.holds else _LOOKS[self.holds][0]


def sign(difference: Interval) -> bool | None:
    """Return True if an interval is above zero, False if it is below, None if it contains zero."""
    if difference.low > 0:
        return True
    return False if difference.high < 0 else None


def in_all_cells(signs: Sequence[bool | None]) -> bool | None:
    """Return True if a claim holds in all cells, False if it fails in any, else None."""
    if False in signs:
        return False
    return None if not signs or None in signs else True


def above(claim: str, name: str, differences: Sequence[Interval], more: str = "") -> Verdict:
    """Judge whether differences are above zero in every cell; `name` names them in the sentence."""
    if not differences:
        return Verdict(claim, None, f"{name} was not measured.{more}")
    signs = [sign(difference) for difference in differences]
    values = [difference.value for difference in differences]
    sentence = (
        f"{name} is above zero in {signs.count(True)} of {len(signs)} cells, below in "
        f"{signs.count(False)}, too close to tell in {signs.count(None)}, from {min(values):+.3f} "
        f"to {max(values):+.3f}.{more}"
    )
    return Verdict(claim, in_all_cells(signs), sentence)


def times_as_fast(claim: str, ratios: Sequence[float], goal: float, more: str = "") -> Verdict:
    """Judge whether the least of the speed-ups `ratios` is at least `goal`."""
    if not ratios:
        return Verdict(claim, None, "It was not measured.")
    sentence = (
        f"{np.median(ratios):,.1f} times in the middle case, from {min(ratios):,.1f} to "
        f"{max(ratios):,.1f}{more}."
    )
    return Verdict(claim, bool(min(ratios) >= goal), sentence)


def verdict_table(verdicts: Sequence[Verdict], caption: str) -> Table:
    """Return the verdicts as a table for a page, with coloured cells."""
    columns = [Column("claim", numeric=False), Column("verdict", numeric=False, whole=True)]
    lines = [(v.claim, Cell(v.word, verdict=_LOOKS[v.holds][1]), v.sentence) for v in verdicts]
    return Table(caption, [*columns, Column("evidence", numeric=False)], [Body(lines)])


def print_verdicts(out: Console, verdicts: Sequence[Verdict]) -> None:
    """Print the verdicts, in colour on a terminal."""
    for verdict in verdicts:
        out.print(f"{verdict.word.upper()}: {verdict.claim}", style=_LOOKS[verdict.holds][2])
        out.print(f"  {verdict.sentence}\n")
