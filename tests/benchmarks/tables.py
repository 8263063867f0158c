"""Plain tables for a terminal, in Markdown; a run can also write them as records."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Column heads, and rows of cells."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


# Every table of this process, in the order in which they were drawn.
DRAWN: list[Table] = []


def show(text: str = "") -> None:
    """Write a line now, not when a buffer is full: runs take minutes."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns line up; the first is words, the others numbers."""
    DRAWN.append(Table(tuple(heads), tuple(map(tuple, rows))))
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return "| " + " | ".join((first, *rest)) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(heads), line(rule), *(line(row) for row in rows)])


def facts(values: dict[str, str]) -> str:
    """Return names and values, one a line."""
    width = max(len(name) for name in values)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in values.items())


def optional(value: float | None, form: str) -> str:
    """Return a number in a form, or nothing where there is none."""
    return "" if value is None else format(value, form)
