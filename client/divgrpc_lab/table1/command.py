"""Start a server, measure the paper's Table 1 on it, judge the paper's claims, write a page.

  make table1 ARGS="--data FOLDER --json table1.json"
  make table1 ARGS="--data FOLDER --sets newsgroups20 --seeds 3"
  make table1 ARGS=--quick       a short run

Every index is built through the client, and Evaluate measures the settings. Without a folder of
data sets, the digits of scikit-learn are used.
"""

import argparse
import os
import time
from collections.abc import Sequence
from typing import Final

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.client import Client
from divgrpc_client.formats import tables
from divgrpc_lab import experiment
from divgrpc_lab.data.topics import DIGITS, SETS, Topics, load
from divgrpc_lab.server_process import running_server
from divgrpc_lab.table1 import claims
from divgrpc_lab.table1.bench import Bench, Plan, bits_and_tables, growth, times, uniformity
from divgrpc_lab.table1.page import Report, page
from divgrpc_lab.table1.paper import printed

# Plan of a run of one or two minutes, enough to show that everything works.
QUICK: Final = Plan(
    5, few=3, seeds=2, code_seeds=1, codes=1, draws=2, sizes=2, synthetic=(350, 300)
)
# An exhaustive method may take seconds per query on a busy machine.
_TIMEOUT_SECONDS: Final = 60.0
_IDLE_SECONDS: Final = 600.0


def add_options(verb: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    verb.add_argument(
        "--per-category", type=int, metavar="N", help="Queries of a category (default 50)."
    )
    verb.add_argument(
        "--seeds", type=int, metavar="N", help="Hash seeds to repeat with (default 5)."
    )
    experiment.add_options(verb, "table1")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the verdicts, write the page and the JSON, and return the exit code."""
    plan = plan_of(arguments)
    names = experiment.set_names(arguments, SETS)
    sets = load(names, arguments.data)
    console = tables.console()
    if sets[0].name == DIGITS:
        more = ": up to 200 dimensions LSH-SDiv keeps all components and is LSH-Div"
        experiment.warn_of_digits(console, more)
    report = measure(sets, plan)
    paper = [
        {"method": method, "family": family, "k": k, **cell._asdict()}
        for (method, family, k), cell in printed().items()
    ]
    figures = report._asdict() | {"paper": paper}
    experiment.finish(console, arguments, report.claims, page(report), figures)
    return 0


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Return the amount of work; raises `InvalidArgumentError` if it is too little."""
    values = {name: getattr(arguments, name) for name in ("per_category", "seeds")}
    values = {name: value for name, value in values.items() if value is not None}
    if arguments.quick:
        for name in values:
            option = name.replace("_", "-")
            raise InvalidArgumentError(name, f"--quick sets this option: leave --{option} out")
        return QUICK
    for name, least in (("per_category", QUICK.per_category), ("seeds", 1)):
        if values.get(name, least) < least:
            option = name.replace("_", "-")
            raise InvalidArgumentError(name, f"{option} must be at least {least}")
    return Plan(**values, few=min(Plan.few, values.get("per_category", Plan.few)))


def measure(sets: Sequence[Topics], plan: Plan) -> Report:
    """Measure the data sets on one server, then the times on synthetic data."""
    cores, begin = len(os.sched_getaffinity(0)), time.monotonic()
    data, rows, codes, spreads, growths = [], [], [], [], []  # type: ignore[var-annotated]
    with (
        running_server("--workers", str(cores)) as target,
        Client(target, timeout=_TIMEOUT_SECONDS, idle_timeout=_IDLE_SECONDS) as client,
    ):
        for points in sets:
            bench = Bench(client, points, plan)
            few = f"{plan.few} a category for QP-Rel and the claims beside the table"
            queries = f"{len(bench.queries.categories)}, {few}"
            data.append({"name": bench.name, **points.described(), "queries": queries})
            rows += bench.rows()
            codes += bits_and_tables(bench)
            spreads += uniformity(bench)
            growths.append(growth(bench))
        time_rows = list(times(client, *plan.synthetic))
    facts = experiment.facts(
        begin,
        f"{cores} cores, as many workers",
        **{"hash seeds": f"{plan.seeds}, of some methods 2 at most"},
    )
    shares = list(claims.gains(rows))
    verdicts = [*claims.targets(shares), *claims.paper_verdicts(rows, codes, spreads, growths)]
    return Report(facts, data, rows, shares, codes, spreads, growths, time_rows, verdicts)
