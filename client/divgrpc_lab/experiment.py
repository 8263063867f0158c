"""What the runs of both tables share: data sets named and checked, progress, facts, files."""

import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.console import Console

import divgrpc
from divgrpc.errors import InvalidArgumentError
from divgrpc.types import Interval, Progress
from divgrpc_client.formats import tables
from divgrpc_client.reports.page import Body, Cell, Column, Page, Table, write_page
from divgrpc_lab.data.topics import DATA_VARIABLE
from divgrpc_lab.verdicts import Verdict, print_verdicts

Tell = Callable[[Progress], object]


def chosen(names: Sequence[str] | None, folder: str | None, known: Collection[str]) -> list[str]:
    """Return the names of data sets, all `known` ones for None.

    Raises `InvalidArgumentError` for an unknown name and for a set that the folder lacks.
    """
    folder = folder or os.environ.get(DATA_VARIABLE)
    sets = list(known) if names is None else list(names)
    for name in sets:
        if name not in known:
            raise InvalidArgumentError("sets", f"sets must be of {', '.join(known)}, got {name!r}")
        if folder and not Path(folder, f"{name}.npz").is_file():
            raise InvalidArgumentError("data", f"there is no {name}.npz in {folder}")
    if names and not folder:
        raise InvalidArgumentError("sets", f"sets need their folder: --data or {DATA_VARIABLE}")
    return sets


class Clock:
    """Reports how far a run has come, in units of work."""

    def __init__(self, tell: Tell, total: float) -> None:
        self._tell, self._total, self._done = tell, total, 0.0
        self._begin = time.monotonic()

    def stage(self, words: str) -> None:
        """Say what is done now."""
        spent = time.monotonic() - self._begin
        left = spent * (self._total - self._done) / self._done if self._done else None
        self._tell(Progress(words, int(self._done), int(self._total), left))

    def add(self, weight: float) -> None:
        """Count work as done."""
        self._done += weight


@dataclass
class Facts:
    """What a figure means nothing without: date, versions, machine, minutes."""

    values: dict[str, str] = field(
        default_factory=lambda: {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}
    )
    _begin: float = field(default_factory=time.monotonic)

    def finish(self, machine: str, **more: str) -> None:
        """Add the facts known at the end of a run."""
        self.values |= {
            "divgrpc": divgrpc.__version__,
            "Python": platform.python_version(),
            "machine": f"{platform.machine()}, {machine}",
            **more,
            "minutes": f"{(time.monotonic() - self._begin) / 60:.0f}",
        }

    def listed(self) -> list[str]:
        """Return each fact as words."""
        return [f"{name} {value}" for name, value in self.values.items()]


class Report(Protocol):
    """What a run has found."""

    facts: Facts

    @property
    def verdicts(self) -> list[Verdict]:
        """What the run says of each claim."""

    def plain(self) -> dict[str, Any]:
        """Return it for JSON."""


@contextmanager
def watched(unit: str) -> Iterator[Tell]:
    """Show progress on a terminal; yields what to call with each step."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with tables.bar(unit) as tell:
        yield tell


def make_room(*paths: Path | None) -> None:
    """Make the folders of files before the work: they may not be ours to write."""
    for path in filter(None, paths):
        path.parent.mkdir(parents=True, exist_ok=True)


def finish(out: Console, report: Report, page: Page, path: Path, json_path: Path | None) -> None:
    """Print the verdicts, write the page, and the JSON where a path is given."""
    print_verdicts(out, report.verdicts)
    out.print(", ".join(report.facts.listed()), style="dim")
    if json_path is not None:
        text = json.dumps(plain(report.plain()), allow_nan=False)
        json_path.write_text(text + "\n", encoding="utf-8")
    write_page(page, path)
    out.print(f"\nPage: {path}", soft_wrap=True)


def plain(value: Any) -> Any:
    """Return a value as JSON holds it: null for NaN, a string for infinity, lists for arrays."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if is_dataclass(value) and not isinstance(value, type):
        value = {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def records_table(caption: str, records: Sequence[Mapping[str, object]]) -> Table:
    """Return records as a table: their keys are the heads, numbers stand in three digits."""
    heads = list(dict.fromkeys(head for record in records for head in record))
    rows = [[_cell(record.get(head, "")) for head in heads] for record in records]
    columns = [
        Column(head, numeric=place > 0 and all(_is_number(row[place]) for row in rows))
        for place, head in enumerate(heads)
    ]
    return Table(caption, columns, [Body(rows)])


def _is_number(cell: Cell) -> bool:
    return not cell.text or cell.text.lstrip("-+")[:1].isdigit()


def _cell(value: object) -> Cell:
    if isinstance(value, Interval):
        return Cell(f"{value.value:.3f}", detail=f"{value.low:.3f} to {value.high:.3f}")
    if isinstance(value, float):
        return Cell(f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}")
    return Cell(f"{value:,}" if isinstance(value, int) else str(value))
