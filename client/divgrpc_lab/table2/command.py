"""The paper's Table 2 measured on real data: `make table2`.

Indexes with label models are built and asked in this process, one document at a time on one thread;
then the page says in words which of the paper's claims hold.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.formats import tables
from divgrpc_lab import experiment
from divgrpc_lab.data.documents import DIGITS, SETS, Split, load
from divgrpc_lab.data.topics import DATA_VARIABLE
from divgrpc_lab.experiment import Clock, Tell
from divgrpc_lab.table2.bench import LabelBench, weight
from divgrpc_lab.table2.pages import page
from divgrpc_lab.table2.report import Report
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


def asked_documents(documents: int, *, quick: bool) -> int:
    """Return of how many documents labels are predicted; raises `InvalidArgumentError`."""
    if quick:
        return QUICK
    if documents < _DOCUMENTS_LEAST:
        raise InvalidArgumentError("documents", f"documents must be at least {_DOCUMENTS_LEAST}")
    return documents


def run(
    names: Sequence[str] | None,
    folder: str | None,
    documents: int,
    out: Path,
    json_path: Path | None,
) -> int:
    """Measure, print tables and verdicts, write the page and the JSON; returns the exit code.

    With as few documents as `QUICK` the made-up set is small too. With no name of a set only that
    one is measured.
    """
    names = experiment.chosen(names, folder, SETS)
    sets = load(names, folder) if names else []
    console = tables.console()
    experiment.make_room(out, json_path)
    if sets and sets[0].name == DIGITS:
        console.print(
            f"No data: neither --data nor {DATA_VARIABLE} names a folder, so this is measured on "
            f"{DIGITS}, which proves nothing about the paper's claims.",
            style="bold red",
        )
    with experiment.watched("documents") as tell:
        report = measure(sets, documents, tell, SMALL if documents == QUICK else SIZE)
    experiment.finish(console, report, page(report), out, json_path)
    return 0


def measure(
    sets: Sequence[Split],
    documents: int,
    tell: Tell,
    size: tuple[int, int, int, int, int] = SIZE,
) -> Report:
    """Measure data sets one after the other, then the times on a set that is made up.

    `size` is what `made_up` is told of it.
    """
    report = Report()
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
    report.facts.finish("one thread")
    return report
