"""The paper's Table 2 measured on real data: `divgrpc paper table2`.

Indexes with label models are built and asked in this process, one document at a time on one thread;
then the page says in words which of the paper's claims hold.
"""

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

import divgrpc
from divgrpc.errors import InvalidArgumentError
from divgrpc.types import Progress
from divgrpc_client.formats import tables
from divgrpc_client.reports.page import write_page
from divgrpc_lab.data.documents import DIGITS, SETS, Split, load
from divgrpc_lab.data.topics import DATA_VARIABLE
from divgrpc_lab.table1.bench import Clock
from divgrpc_lab.table2.bench import LabelBench, weight
from divgrpc_lab.table2.report import Report
from divgrpc_lab.table2.rows import FIGURES, MODES, LabelRow
from divgrpc_lab.table2.times import (
    SIZE,
    SMALL,
    label_times,
    made_up,
)

DOCUMENTS: Final = 1_000
# As many as show that everything works.
QUICK: Final = 25
_DOCUMENTS_LEAST: Final = 10


def chosen(names: Sequence[str] | None, folder: str | None) -> list[str]:
    """Return the names of the data sets; raises `InvalidArgumentError` for what is not there."""
    wanted = list(SETS) if names is None else list(names)
    folder = folder or os.environ.get(DATA_VARIABLE)
    for name in wanted:
        if name not in SETS:
            raise InvalidArgumentError("sets", f"sets must be of {', '.join(SETS)}, got {name!r}")
        if folder and not Path(folder, f"{name}.npz").is_file():
            raise InvalidArgumentError("data", f"there is no {name}.npz in {folder}")
    return wanted


def asked_documents(documents: int, *, quick: bool) -> int:
    """Return of how many documents labels are predicted; raises `InvalidArgumentError`."""
    if quick:
        return QUICK
    if documents < _DOCUMENTS_LEAST:
        raise InvalidArgumentError("documents", f"documents must be at least {_DOCUMENTS_LEAST}")
    return documents


def run(
    names: Sequence[str], folder: str | None, documents: int, out: Path, json_path: Path | None
) -> int:
    """Measure, print tables and verdicts, write the page and the JSON; returns the exit code.

    With as few documents as `QUICK` the set that is made up is a small one too. Without a name of a
    set that one is all that is measured.
    """
    console = tables.console()
    for path in filter(None, (out, json_path)):
        path.parent.mkdir(parents=True, exist_ok=True)  # before the work: it may not be ours
    sets = load(names, folder) if names else []
    if sets and sets[0].name == DIGITS:
        console.print(
            f"No data: neither --data nor {DATA_VARIABLE} names a folder, so this is measured on "
            f"{DIGITS}, which proves nothing about the paper's claims.",
            style="bold red",
        )
    bar: AbstractContextManager[Callable[[Progress], None] | None] = (
        tables.bar("documents") if sys.stderr.isatty() else nullcontext()
    )
    with bar as tell:
        size = SMALL if documents == QUICK else SIZE
        report = measure(sets, documents, tell or (lambda _: None), size)
    show(console, report)
    if json_path is not None:
        json_path.write_text(json.dumps(report.plain(), indent=1) + "\n", encoding="utf-8")
    from divgrpc_lab.table2.pages import page

    write_page(page(report), out)
    console.print(f"\nPage: {out}", soft_wrap=True)
    return 0


def measure(
    sets: Sequence[Split],
    documents: int,
    tell: Callable[[Progress], object],
    size: tuple[int, int, int, int, int] = SIZE,
) -> Report:
    """Measure data sets one after the other, then the times on a set that is made up.

    `size` is what `made_up` is told of it.
    """
    begun = time.monotonic()
    report = Report({"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")})
    counts = [min(documents, split.asked.shape[0]) for split in sets]
    clock = Clock(tell, sum(map(weight, counts)))
    for split in sets:
        bench = LabelBench(split, documents, clock)
        asked = f"{bench.documents:,} of the documents to test with"
        report.data.append({"name": bench.name, **split.described(), "asked": asked})
        report.rows += bench.rows()
        report.curves += bench.curves()
    clock.stage("times at the paper's size")
    report.times += label_times(made_up(*size))
    report.facts |= {
        "divgrpc": divgrpc.__version__,
        "Python": platform.python_version(),
        "machine": f"{platform.machine()}, one thread",
        "minutes": f"{(time.monotonic() - begun) / 60:.0f}",
    }
    return report


def show(console: Console, report: Report) -> None:
    """Print the tables and the verdicts."""
    for data in report.data:
        console.print(_table([row for row in report.rows if row.data == data["name"]]))
        console.print()
    for verdict in report.verdicts:
        console.print(f"{verdict.word.upper()}: {verdict.claim}", style="bold")
        console.print(f"  {verdict.sentence}\n")
    for each in report.times:
        things = "labels" if each.mode == "embedding" else "documents"
        console.print(
            f"{each.among:,} {things} made up, {each.method}, {MODES[each.mode]}, {each.setting}: "
            f"{each.microseconds:,.0f} µs, P@5 {each.precision:.3f}, {each.scored:.2%} scored"
        )
    console.print(", ".join(f"{name} {value}" for name, value in report.facts.items()), style="dim")


def _table(rows: Sequence[LabelRow]) -> Any:  # rich's table
    grid = tables.table(
        *("method", "mode", "setting", "search", ">dial", ">least score"),
        *(">P", ">R", ">f", ">D", ">h", ">scored", ">µs"),
        title=f"{rows[0].data}, {rows[0].documents:,} documents",
    )
    for row in rows:
        own = row.asking
        figures = (row.figures[name].value for name in FIGURES)
        grid.add_row(
            own.method + ("*" if row.same_as_lsh_div else ""),
            MODES[own.mode],
            own.setting,
            row.search,
            f"{row.dial:g}",
            "" if row.threshold is None else f"{row.threshold:g}",
            *("" if value != value else f"{value:.3f}" for value in figures),  # noqa: PLR0124  # NaN
            f"{row.scored / row.among:.0%}",
            f"{row.microseconds:,.0f}",
        )
    return grid
