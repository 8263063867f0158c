"""Tables of results: rows are dicts from column names to values, drawn in Markdown."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

# From column names to numbers, words, flags or None.
Row: TypeAlias = Mapping[str, Any]


@dataclass
class Table:
    """A title, facts about what was measured, and rows; a column is drawn if any row has it."""

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    @property
    def columns(self) -> list[str]:
        """Column names in the order in which rows first have them."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def cells(self) -> list[list[str]]:
        """Return every row as text, in the order of the columns."""
        return [[text(row.get(name)) for name in self.columns] for row in self.rows]

    def draw(self) -> str:
        """Return the title, the facts and the Markdown table."""
        facts = [f"{name}: {value}" for name, value in self.facts.items()]
        head = [f"\n## {self.title}\n", *facts]
        if not self.rows:
            return "\n".join(head)
        if self.facts:
            head.append("")
        return "\n".join([*head, markdown(self.columns, self.cells())])


def text(value: object) -> str:
    """Return a value as it stands in a table: numbers with three or four digits, "" for None.

    A list is the text of its values.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(map(text, value))
    if isinstance(value, int):
        return f"{value:,}"
    return _number(float(value)) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    size = abs(value)
    if 0 < size < 0.001:
        return f"{value:.1e}"
    digits = 0 if size >= 100 else 2 if size >= 2 else 3
    return f"{value:,.{digits}f}"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns line up: the first is words, the others numbers."""
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return "| " + " | ".join((first, *rest)) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(columns), line(rule), *(line(row) for row in rows)])


def show(line: str = "") -> None:
    """Write a line at once: a run takes minutes."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
