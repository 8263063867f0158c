"""Claims in words, and what a run says of each: it holds, it does not hold, it is undecided.

Two rows are compared by the mean difference between them with its 95 % interval: the first is above
where the whole interval is above zero. A claim about many cells (data sets, k, families) holds if
it holds in every cell, and fails if one cell contradicts it. By chance one cell in forty does.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from rich.console import Console

from divgrpc.types import Interval
from divgrpc_client.reports.page import Body, Cell, Column, Table

# A word, the colour of a cell on the page, and the style on a terminal.
_LOOKS: Final[dict[bool | None, tuple[str, Literal["good", "bad", "open"], str]]] = {
    True: ("holds", "good", "bold green"),
    False: ("does not hold", "bad", "bold red"),
    None: ("cannot be told", "open", "bold yellow"),
}


class Verdict(NamedTuple):
    """A claim, whether it `holds` (None: cannot be decided), and a sentence with the evidence.

    `positive` is the word for a claim that holds.
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
    """Tell whether an interval lies above zero (True), below (False), or around it (None)."""
    if difference.low > 0:
        return True
    return False if difference.high < 0 else None


def in_all_cells(signs: Sequence[bool | None]) -> bool | None:
    """Tell whether a claim holds in all cells: not if it fails in one."""
    if False in signs:
        return False
    return None if not signs or None in signs else True


def above(claim: str, name: str, differences: Sequence[Interval], more: str = "") -> Verdict:
    """Judge whether differences, called `name`, are above zero in every cell."""
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
    """Judge whether the slowest case is at least `goal` times as fast."""
    if not ratios:
        return Verdict(claim, None, "It was not measured.")
    sentence = (
        f"{np.median(ratios):,.1f} times in the middle case, from {min(ratios):,.1f} to "
        f"{max(ratios):,.1f}{more}."
    )
    return Verdict(claim, bool(min(ratios) >= goal), sentence)


def verdict_table(verdicts: Sequence[Verdict], caption: str) -> Table:
    """Return the verdicts as a table of a page, in colour."""
    columns = [Column("claim", numeric=False), Column("verdict", numeric=False, whole=True)]
    lines = [(v.claim, Cell(v.word, verdict=_LOOKS[v.holds][1]), v.sentence) for v in verdicts]
    return Table(caption, [*columns, Column("evidence", numeric=False)], [Body(lines)])


def print_verdicts(out: Console, verdicts: Sequence[Verdict]) -> None:
    """Print the verdicts, in colour on a terminal."""
    for verdict in verdicts:
        out.print(f"{verdict.word.upper()}: {verdict.claim}", style=_LOOKS[verdict.holds][2])
        out.print(f"  {verdict.sentence}\n")
