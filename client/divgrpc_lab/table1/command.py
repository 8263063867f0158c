"""The paper's Table 1 measured on real data: `divgrpc paper table1`.

It starts a server of its own on all cores, builds every index through the client, has Evaluate ask
the settings, and says in words which of the paper's claims hold. Nothing here knows the engine.
"""

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
from divgrpc_client.client import Client
from divgrpc_client.formats import tables
from divgrpc_client.reports.page import write_page
from divgrpc_lab.data.topics import DATA_VARIABLE, DIGITS, SETS, Topics, load
from divgrpc_lab.server_process import running_server
from divgrpc_lab.table1 import beside as sides
from divgrpc_lab.table1.bench import Bench, Clock, Plan
from divgrpc_lab.table1.pages import page
from divgrpc_lab.table1.printed import KS, printed
from divgrpc_lab.table1.report import Report
from divgrpc_lab.table1.rows import BARE, FIGURES, HASHED, TABLES, Row
from divgrpc_lab.table1.times import times

# As much as shows that everything works, in a minute or two.
QUICK: Final = Plan(5, few=3, seeds=2, code_seeds=1, codes=2, draws=6, sizes=2, made_up=(350, 300))
# A call of the client's that is not Build or Evaluate, and how long those may stand still: a query
# of an exhaustive method takes seconds where the machine has other work.
_TIMEOUT: Final = 60.0
_IDLE: Final = 600.0
# Which stage of ours stands beside a hashed row of the paper's.
_BESIDE: Final = (HASHED, TABLES, BARE)


def chosen(names: Sequence[str] | None, folder: str | None) -> list[str]:
    """Return the names of the data sets; raises `InvalidArgumentError` for what is not there."""
    wanted = list(SETS) if names is None else list(names)
    folder = folder or os.environ.get(DATA_VARIABLE)
    for name in wanted:
        if name not in SETS:
            raise InvalidArgumentError("sets", f"sets must be of {', '.join(SETS)}, got {name!r}")
        if folder and not Path(folder, f"{name}.npz").is_file():
            raise InvalidArgumentError("data", f"there is no {name}.npz in {folder}")
    if names is not None and not folder:
        raise InvalidArgumentError("sets", f"sets need their folder: --data or {DATA_VARIABLE}")
    return wanted


def plan(per_category: int | None, seeds: int | None, *, quick: bool) -> Plan:
    """Return how much is asked; raises `InvalidArgumentError` for too little."""
    if quick:
        for name, value in (("per_category", per_category), ("seeds", seeds)):
            if value is not None:
                option = name.replace("_", "-")
                raise InvalidArgumentError(name, f"--quick has its own: leave --{option} out")
        return QUICK
    per_category = Plan.per_category if per_category is None else per_category
    seeds = Plan.seeds if seeds is None else seeds
    if per_category < QUICK.per_category:
        raise InvalidArgumentError(
            "per_category", f"per-category must be at least {QUICK.per_category}"
        )
    if seeds < 1:
        raise InvalidArgumentError("seeds", "seeds must be at least 1")
    return Plan(per_category=per_category, few=min(Plan.few, per_category), seeds=seeds)


def run(
    names: Sequence[str], folder: str | None, asked: Plan, out: Path, json_path: Path | None
) -> int:
    """Measure, print tables and verdicts, write the page and the JSON; returns the exit code."""
    console = tables.console()
    _make_room(out, json_path)
    sets = load(names, folder)
    if sets[0].name == DIGITS:
        console.print(
            f"No data: neither --data nor DIVGRPC_DATA names a folder, so this is measured on "
            f"{DIGITS.partition(' (')[0]}, which proves nothing about the paper's claims: up "
            "to 200 dimensions LSH-SDiv keeps all components and is LSH-Div.",
            style="bold red",
        )
    bar: AbstractContextManager[Callable[[Progress], None] | None] = (
        tables.bar("units of work") if sys.stderr.isatty() else nullcontext()
    )
    with bar as tell:
        report = measure(sets, asked, tell or (lambda _: None))
    return _tell(console, report, out, json_path)


def _make_room(*paths: Path | None) -> None:
    """Make the folders of files, before the work: they may not be ours."""
    for path in filter(None, paths):
        path.parent.mkdir(parents=True, exist_ok=True)


def _tell(console: Console, report: Report, out: Path, json_path: Path | None) -> int:
    show(console, report)
    if json_path is not None:
        report.write(json_path)
    write_page(page(report), out)
    console.print(f"\nPage: {out}", soft_wrap=True)
    return 0


def measure(sets: Sequence[Topics], asked: Plan, tell: Callable[[Progress], object]) -> Report:
    """Measure data sets one after the other on a server of one's own."""
    begun, cores = time.monotonic(), len(os.sched_getaffinity(0))
    report = Report({"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")})
    clock = Clock(tell, sum(asked.weight(len(data.asked)) for data in sets))
    with (
        running_server("--workers", str(cores)) as target,
        Client(target, timeout=_TIMEOUT, idle_timeout=_IDLE) as own,
    ):
        for data in sets:
            bench = Bench(own, data, asked, clock)
            few = f"{asked.few} a category for QP-Rel and what is beside the table"
            queries = f"{len(bench.asked.asked)}, {few}"
            report.data.append({"name": bench.name, **data.described(), "queries": queries})
            report.rows += bench.rows()
            report.coded += sides.bits_and_tables(bench)
            bench.add(0.5)
            report.spreads += sides.uniformity(bench)
            bench.add(0.3)
            report.growths.append(sides.growth(bench))
            bench.add(0.2)
        clock.stage("times in the paper's size")
        report.times += times(own, *asked.made_up)
    report.facts |= {
        "divgrpc": divgrpc.__version__,
        "Python": platform.python_version(),
        "machine": f"{platform.machine()}, {cores} cores, as many workers",
        "hash seeds": f"{asked.seeds}, of some methods 2 at most",
        "minutes": f"{(time.monotonic() - begun) / 60:.0f}",
    }
    return report


def show(console: Console, report: Report) -> None:
    """Print the tables and the verdicts."""
    for data in report.data:
        for k in KS:
            console.print(_table([r for r in report.rows if (r.data, r.k) == (data["name"], k)], k))
            console.print()
    for verdict in report.verdicts:
        console.print(f"{verdict.word.upper()}: {verdict.claim}", style="bold")
        console.print(f"  {verdict.sentence}\n")
    console.print(", ".join(f"{name} {value}" for name, value in report.facts.items()), style="dim")


def _table(rows: Sequence[Row], k: int) -> Any:  # rich's table
    grid = tables.table(
        *("method", "hash", "points", ">dial", ">P", ">SR", ">D", ">h", ">95 %", ">µs"),
        ">paper's h",
        title=f"{rows[0].data}, k = {k}",
    )
    paper = printed()
    for row in rows:
        beside = paper.get((row.method, row.family, row.k))
        shown = beside is not None and (row.family == "NH" or row.stage in _BESIDE)
        few = f" ({row.queries} queries)" if row.few else ""
        grid.add_row(
            row.method + few,
            row.family,
            row.stage,
            f"{row.dial:g}" + ("*" if row.fixed else ""),
            *(f"{row.figures[name].value:.2f}" for name in FIGURES[:-1]),
            f"{row.h.value:.3f}",
            f"{row.h.low:.3f}-{row.h.high:.3f}",
            f"{row.microseconds:,.0f}",
            f"{beside.h:.2f}" if beside is not None and shown else "",
        )
    return grid
