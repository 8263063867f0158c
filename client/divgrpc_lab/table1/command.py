"""Measure the paper's Table 1 on one server per core, judge its claims and write a page.

  make table1 ARGS="--data FOLDER --work WORK --json table1.json"
  make table1 ARGS="--data FOLDER --sets newsgroups20 --seeds 3"
  make table1 ARGS="--data FOLDER --bits 8 10 12 --tables 5 10 20"
  make table1 ARGS=--quick       a short run

Every index is built through the client, and Evaluate measures the settings. With --work, a run that
was killed goes on where it stopped. Without a folder of data sets, the digits of scikit-learn are
used.
"""

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import divgrpc
from divgrpc.errors import InvalidArgumentError
from divgrpc_client.client import Client
from divgrpc_client.formats import tables
from divgrpc_lab import experiment
from divgrpc_lab.data.topics import DIGITS, SETS, Topics, load
from divgrpc_lab.server_process import running_server
from divgrpc_lab.table1 import claims, home
from divgrpc_lab.table1.bench import (
    RETRIEVALS,
    TIMED_DIALS,
    Bench,
    ClientJob,
    Plan,
    Timed,
    times,
)
from divgrpc_lab.table1.methods import HASHING, WITHOUT_HASHING
from divgrpc_lab.table1.page import Report, page
from divgrpc_lab.table1.paper import printed
from divgrpc_lab.table1.records import records
from divgrpc_lab.verdicts import judge
from divgrpc_lab.work import Work

# Plan of a short run, which still measures every row and judges every claim.
QUICK: Final = Plan(
    per_category=2,
    seeds=1,
    codes=home.codes((6,), (10,)),
    ball_seeds=10,
    sizes=2,
    synthetic=(350, 300),
)
# Default of --builds. The study of each data set in the whole form needs up to 131.
_BUILDS_MAX: Final = 500
# An exhaustive method may take seconds per query on a busy machine.
_TIMEOUT_SECONDS: Final = 60.0
_IDLE_SECONDS: Final = 600.0


def add_options(verb: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    verb.add_argument(
        "--per-category", type=int, metavar="N", help="Queries of a category (default 5)."
    )
    verb.add_argument(
        "--seeds", type=int, metavar="N", help="Hash seeds to repeat with (default 5)."
    )
    verb.add_argument(
        "--bits", type=int, nargs="+", metavar="N", help="Bits of a key to try (default 6 8 10 12)."
    )
    verb.add_argument(
        "--tables", type=int, nargs="+", metavar="N", help="Tables to try (default 5 10 20)."
    )
    verb.add_argument(
        "--builds",
        type=int,
        metavar="N",
        default=_BUILDS_MAX,
        help=f"Refuse a study of bits and tables that needs more builds (default {_BUILDS_MAX}).",
    )
    experiment.add_options(verb, "table1")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the verdicts, write the page and the JSON, and return the exit code."""
    plan = plan_of(arguments)
    names = experiment.set_names(arguments, SETS)
    if not names:
        raise InvalidArgumentError("sets", "name a set after --sets, or leave --sets out for all")
    sets = load(names, arguments.data)
    studies = [home.places(plan.codes, plan.seeds, data.points.shape[1]) for data in sets]
    home.check_builds(sum(map(len, studies)), arguments.builds)
    console = tables.console()
    console.print(experiment.NOT_THE_PAPERS_DATA, style="bold")
    if sets[0].name == DIGITS:
        more = ": up to 200 dimensions LSH-SDiv keeps all components and is LSH-Div"
        experiment.warn_of_digits(console, more)
    report = measure(sets, plan, arguments.work)
    experiment.finish(
        console, arguments, report.claims, page(report), _figures(report), records=records(report)
    )
    return 0


def _figures(report: Report) -> dict[str, Any]:
    """Return all figures for the JSON."""
    paper = [
        {"method": method, "family": family, "k": k, **cell._asdict()}
        for (method, family, k), cell in printed().items()
    ]
    codes = [
        {"bits": c.n_bits, "tables": c.n_tables} | c.row.shown() for c in report.bits_and_tables
    ]
    return report._asdict() | {
        "rows": [row.shown() for row in report.rows],
        "gain": [gain.shown() for gain in report.gain],
        "bits_and_tables": codes,
        "paper": paper,
    }


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Return the amount of work; raises `InvalidArgumentError` for options that do not fit."""
    minima = {"per_category": QUICK.per_category, "seeds": 1}
    values = experiment.plan_values(arguments, minima, ("bits", "tables"))
    if arguments.quick:
        return QUICK
    bits, numbers = values.pop("bits", None), values.pop("tables", None)
    plan = Plan(**values)
    if bits is None and numbers is None:
        return plan
    return replace(plan, codes=home.codes(bits or home.BITS, numbers or home.TABLES))


def measure(sets: Sequence[Topics], plan: Plan, folder: Path | None = None) -> Report:
    """Measure the data sets on one server per core, then the times on synthetic data.

    Nothing else runs while the times are measured. Finished measurements are kept in `folder`.
    """
    cores, begin = len(os.sched_getaffinity(0)), time.monotonic()
    benches = [Bench(points, plan) for points in sets]
    jobs = {name: job for bench in benches for name, job in bench.jobs().items()}
    work = Work(folder, facts_of(plan))
    with ExitStack() as stack:
        idle: SimpleQueue[Client] = SimpleQueue()
        for _ in range(cores):
            target = stack.enter_context(running_server("--workers", "1"))
            client = Client(target, timeout=_TIMEOUT_SECONDS, idle_timeout=_IDLE_SECONDS)
            idle.put(stack.enter_context(client))
        executor = stack.enter_context(ThreadPoolExecutor(cores))
        on_servers = {name: partial(_on_server, idle, job) for name, job in jobs.items()}
        results = work.run(on_servers, executor)
        results |= work.run(
            {"times": partial(_on_server, idle, partial(times, sizes=plan.synthetic))}
        )
    run_facts = experiment.facts(
        begin,
        f"{cores} cores, as many servers",
        **{"hash seeds": str(plan.seeds)},
    )
    return report_of(benches, results, run_facts)


def facts_of(plan: Plan) -> tuple[object, ...]:
    """Return all that the results of jobs depend on, except the data and names of the jobs.

    The number of seeds is left out, so a later run may add seeds to the kept results.
    """
    grids = [case.grid("auto") for case in (*WITHOUT_HASHING, *HASHING, *home.CASES)]
    places = [place.options for place in home.places(plan.codes, 1, 1)]
    plan = replace(plan, seeds=1)
    return divgrpc.__version__, plan, grids, home.EPSILONS, places, RETRIEVALS, TIMED_DIALS


def _on_server(idle: "SimpleQueue[Client]", job: ClientJob) -> Any:
    """Run a job on an idle server."""
    client = idle.get()
    try:
        return job(client)
    finally:
        idle.put(client)


def report_of(
    benches: Sequence[Bench], results: Mapping[str, Any], facts: dict[str, str]
) -> Report:
    """Return the report of the results of all jobs."""
    data, rows, codes, spreads, growths = [], [], [], [], []  # type: ignore[var-annotated]
    for bench in benches:
        queries = str(len(bench.queries.categories))
        data.append({"name": bench.name, **bench.data.described(), "queries": queries})
        rows += bench.rows(results)
        codes += bench.coded(results)
        spreads += bench.spreads(results)
        growths.append(bench.growth(results))
    shares = list(claims.gains(rows))
    verdicts = judge([*claims.targets(shares), *claims.paper_claims(rows, codes, spreads, growths)])
    return Report(
        facts=facts,
        data=data,
        rows=rows,
        home_buckets=list(claims.raised(rows)),
        gain=shares,
        bits_and_tables=codes,
        uniformity=spreads,
        growth=growths,
        times=[Timed(*item) for item in results["times"]],
        claims=verdicts,
    )
