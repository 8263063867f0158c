"""The paper's Table 1 measured on real data: `make table1`.

It starts a server of its own on all cores, builds every index through the client, has Evaluate ask
the settings, and says in words which of the paper's claims hold. Nothing here knows the engine.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.client import Client
from divgrpc_client.formats import tables
from divgrpc_lab import experiment
from divgrpc_lab.data.topics import DIGITS, SETS, Topics, load
from divgrpc_lab.experiment import Clock, Tell
from divgrpc_lab.server_process import running_server
from divgrpc_lab.table1 import beside
from divgrpc_lab.table1.bench import Bench, Plan
from divgrpc_lab.table1.pages import page
from divgrpc_lab.table1.report import Report
from divgrpc_lab.table1.times import times

# As much as shows that everything works, in a minute or two.
QUICK: Final = Plan(5, few=3, seeds=2, code_seeds=1, codes=2, draws=6, sizes=2, made_up=(350, 300))
# A call of the client's that is not Build or Evaluate, and how long those may stand still: a query
# of an exhaustive method takes seconds where the machine has other work.
_TIMEOUT: Final = 60.0
_IDLE: Final = 600.0


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
    names: Sequence[str] | None,
    folder: str | None,
    asked: Plan,
    out: Path,
    json_path: Path | None,
) -> int:
    """Measure, print tables and verdicts, write the page and the JSON; returns the exit code."""
    sets = load(experiment.chosen(names, folder, SETS), folder)
    console = tables.console()
    experiment.make_room(out, json_path)
    if sets[0].name == DIGITS:
        console.print(
            f"No data: neither --data nor DIVGRPC_DATA names a folder, so this is measured on "
            f"{DIGITS.partition(' (')[0]}, which proves nothing about the paper's claims: up "
            "to 200 dimensions LSH-SDiv keeps all components and is LSH-Div.",
            style="bold red",
        )
    with experiment.watched("evaluations") as tell:
        report = measure(sets, asked, tell)
    experiment.finish(console, report, page(report), out, json_path)
    return 0


def measure(sets: Sequence[Topics], asked: Plan, tell: Tell) -> Report:
    """Measure data sets one after the other on a server of one's own."""
    cores = len(os.sched_getaffinity(0))
    report = Report()
    clock = Clock(tell, asked.calls * len(sets))
    with (
        running_server("--workers", str(cores)) as target,
        Client(target, timeout=_TIMEOUT, idle_timeout=_IDLE) as client,
    ):
        for data in sets:
            bench = Bench(client, data, asked, clock)
            few = f"{asked.few} a category for QP-Rel and what is beside the table"
            queries = f"{len(bench.asked.asked)}, {few}"
            report.data.append({"name": bench.name, **data.described(), "queries": queries})
            report.rows += bench.rows()
            report.coded += beside.bits_and_tables(bench)
            report.spreads += beside.uniformity(bench)
            report.growths.append(beside.growth(bench))
        clock.stage("times in the paper's size")
        report.times += times(client, *asked.made_up)
    report.facts.finish(
        f"{cores} cores, as many workers",
        **{"hash seeds": f"{asked.seeds}, of some methods 2 at most"},
    )
    return report
