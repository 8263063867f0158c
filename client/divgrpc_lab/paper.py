"""Measure both tables of the paper, and write one page with every claim and its verdict.

  make paper ARGS="--data FOLDER --work WORK --json paper.json --records docs/records"
  make paper ARGS=--quick        a short run

The command measures what `table1` and `table2` measure by default. Holm's method corrects the p
values of each table separately. With --work FOLDER, a killed run continues where it stopped, and
finished measurements of `table1` and `table2` in the same folder are reused. Without a folder of
data sets, the digits of scikit-learn are used.
"""

import argparse
from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

from divgrpc_client.formats import tables
from divgrpc_client.reports.page import Page, Section, Table
from divgrpc_lab import experiment
from divgrpc_lab.data import documents, topics
from divgrpc_lab.table1 import bench as table1_bench
from divgrpc_lab.table1 import command as table1
from divgrpc_lab.table1.records import records as table1_records
from divgrpc_lab.table2 import bench as table2_bench
from divgrpc_lab.table2 import command as table2
from divgrpc_lab.table2.records import records as table2_records
from divgrpc_lab.verdicts import LEVEL, Verdict, verdict_table

_LEAD: Final = (
    f"{experiment.NOT_THE_PAPERS_DATA} Every claim of Diverse Yet Efficient Retrieval using Hash "
    "Functions (Rao, Jain, Jawahar, 2015) about its Tables 1 and 2, with the verdict of this run."
)
_READING: Final = (
    'A claim is tested in every place of the column "where", usually a data set. The 95 % interval '
    "is by groups (categories of queries, or documents) and by hash seeds. Holm's method corrects "
    "the p values of each table on its own. So if no claim of a table had an effect, at most 5 % "
    f"of runs would decide a verdict of that table. A corrected p below {LEVEL:g} decides."
)
# Facts that are the same for both tables.
_SHARED_FACTS: Final = ("date", "divgrpc", "Python")


class TableClaims(NamedTuple):
    """The claims of one table with their verdicts, and the facts about its run and data sets."""

    table: str
    facts: dict[str, str]
    data: list[dict[str, str]]
    claims: list[Verdict]


def add_options(verb: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    experiment.add_options(verb, "paper", has_sets=False)


def run(arguments: argparse.Namespace) -> int:
    """Measure both tables, print all verdicts, write the page, and return the exit code."""
    image_sets = experiment.set_names(arguments, topics.SETS)
    document_sets = experiment.set_names(arguments, documents.SETS)
    images = topics.load(image_sets, arguments.data)
    collections = documents.load(document_sets, arguments.data)
    console = tables.console()
    console.print(experiment.NOT_THE_PAPERS_DATA, style="bold")
    if collections[0].name == documents.DIGITS:
        experiment.warn_of_digits(console)
    table1_plan = table1.QUICK if arguments.quick else table1_bench.Plan()
    table2_plan = table2.QUICK if arguments.quick else table2_bench.Plan()
    size = table2.SMALL if arguments.quick else table2.SIZE
    first = table1.measure(images, table1_plan, arguments.work)
    second = table2.measure(collections, table2_plan, *size, folder=arguments.work)
    parts = [
        TableClaims("Table 1", first.facts, first.data, first.claims),
        TableClaims("Table 2", second.facts, second.data, second.claims),
    ]
    experiment.finish(
        console,
        arguments,
        [*first.claims, *second.claims],
        page(parts),
        {"tables": parts},
        records=chain(table1_records(first), table2_records(second)),
    )
    return 0


def page(parts: Sequence[TableClaims]) -> Page:
    """Return the page with every claim."""
    return Page(
        title="The paper's claims on real data",
        sections=[
            Section("How to read the claims", [_READING]),
            *(Section(part.table, _content(part)) for part in parts),
        ],
        lead=_LEAD,
        facts=[
            *(f"{name} {parts[0].facts[name]}" for name in _SHARED_FACTS),
            *(f"hash seeds of {part.table} {part.facts['hash seeds']}" for part in parts),
        ],
    )


def _content(part: TableClaims) -> list[str | Table]:
    """Return the claims of a table, and below them the facts about its run and data sets."""
    records = [
        {name: value for name, value in data.items() if name != "sha256"} for data in part.data
    ]
    return [
        verdict_table(part.claims, f"The claims of {part.table}, corrected together."),
        experiment.records_table(f"The data sets of {part.table}.", records),
        "; ".join(f"{name}: {value}" for name, value in part.facts.items()) + ".",
    ]
