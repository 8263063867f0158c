"""Measure the paper's Table 2 without a server, judge its claims and write a page.

  make table2 ARGS="--data FOLDER --work WORK --json table2.json --records docs/records"
  make table2 ARGS="--data FOLDER --sets enron_hier --documents 300"
  make table2 ARGS=--quick       a short run

On the data sets, a process for each core measures one document at a time on one thread. If --sets
is given without names, only the times at the paper's size are measured. Without a folder of data
sets, the digits of scikit-learn are used. With --work FOLDER, a run that was killed goes on where
it stopped.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import divgrpc
from divgrpc_client.formats import tables
from divgrpc_lab import experiment
from divgrpc_lab.data import synthetic
from divgrpc_lab.data.documents import DIGITS, SETS, Split, load
from divgrpc_lab.table2 import claims
from divgrpc_lab.table2.bench import LabelBench, Plan
from divgrpc_lab.table2.bench import facts as label_facts
from divgrpc_lab.table2.methods import PAPERS, Shape
from divgrpc_lab.table2.page import Report, page
from divgrpc_lab.table2.paper import PAPER_ROWS
from divgrpc_lab.table2.records import records
from divgrpc_lab.table2.size import AtSize, label_times
from divgrpc_lab.work import Job, Work, processes

# A short run, which is enough to show that everything works.
QUICK: Final = Plan(documents=40, seeds=2, shapes=(Shape(5, 20), PAPERS), rounds=2)
_DOCUMENTS_MIN: Final = 10
# Size of the synthetic data set (documents, features, labels and test documents), and the rank of
# its model.
SIZE: Final = (synthetic.DOCUMENTS, synthetic.FEATURES, synthetic.LABELS, 200), 200
SMALL: Final = (300, 4_000, 500, 30), 20


def add_options(verb: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    verb.add_argument(
        "--documents",
        type=int,
        metavar="N",
        help=f"Documents to predict labels for in each set (default {Plan().documents}).",
    )
    text = f"Hash seeds to repeat with (default {Plan().seeds})."
    verb.add_argument("--seeds", type=int, metavar="N", help=text)
    experiment.add_options(verb, "table2")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the verdicts, write the page and the JSON, and return the exit code."""
    plan = plan_of(arguments)
    names = experiment.set_names(arguments, SETS)
    sets = load(names, arguments.data) if names else []
    console = tables.console()
    console.print(experiment.NOT_THE_PAPERS_DATA, style="bold")
    if sets and sets[0].name == DIGITS:
        experiment.warn_of_digits(console)
    size = SMALL if arguments.quick else SIZE
    report = measure(sets, plan, *size, folder=arguments.work)
    paper = [
        {"method": name, **row._asdict(), "most_h": row.most} for name, row in PAPER_ROWS.items()
    ]
    figures = report._asdict() | {"paper": paper}
    experiment.finish(
        console, arguments, report.claims, page(report), figures, records=records(report)
    )
    return 0


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Return the amount of work; raises `InvalidArgumentError` for options that do not fit."""
    values = experiment.plan_values(arguments, {"documents": _DOCUMENTS_MIN, "seeds": 1})
    return QUICK if arguments.quick else Plan(**values)


def measure(
    sets: Sequence[Split],
    plan: Plan,
    size: tuple[int, int, int, int],
    rank: int,
    *,
    folder: Path | None = None,
) -> Report:
    """Measure the data sets, then the times on a synthetic data set of `size`.

    Jobs of the data sets run in a process for each core. Nothing else runs while the times on the
    synthetic data set are measured. Finished measurements are kept in `folder`.
    """
    begin, version = time.monotonic(), divgrpc.__version__
    benches = [LabelBench(split, plan) for split in sets]
    work = Work(folder, (version, label_facts(plan)))
    with processes() as executor:
        models = work.run({bench.model_name: bench.model for bench in benches}, executor)
        jobs: dict[str, Job] = {}
        for bench in benches:
            jobs |= bench.jobs(models[bench.model_name])
        results = work.run(jobs, executor)
    rows = [row for bench in benches for row in bench.rows(results)]
    curves = [point for bench in benches for point in bench.curves(results)]
    at_size = AtSize(size, rank, plan.rounds)
    times = label_times(Work(folder, (version, at_size.facts())).run(at_size.jobs()))
    return Report(
        experiment.facts(begin, "one thread for each measurement", **plan.described()),
        [bench.described for bench in benches],
        rows,
        curves,
        times,
        claims.verdicts(rows, curves, times),
    )
