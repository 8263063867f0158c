"""python -m benchmarks.conformance [--record FILE]: check divgrpc and other stores.

It prints the report of each store of `divgrpc.conformance`. `make conformance` runs it in an
environment that has the stores.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from divgrpc.conformance import CHECKS, IndexStore, Report, Store, check_store
from divgrpc_lab.records import Record, write_records


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.conformance", description=__doc__, allow_abbrev=False
    )
    text = "write the outcomes as a record, and what failed as FILE-2"
    parser.add_argument("--record", type=Path, metavar="FILE", help=text)
    path = parser.parse_args().record
    reports = []
    for store in _stores():
        reports.append(check_store(store))
        sys.stdout.write(f"{reports[-1]}\n\n")
        sys.stdout.flush()
    if path is not None:
        tables = [outcomes(path.stem, reports), failures(f"{path.stem}-2", reports)]
        write_records(path.parent, tables, "make conformance", [])


def _stores() -> tuple[Store, ...]:
    # The environment of the tests has none of the other stores.
    from benchmarks.stores.chroma import ChromaStore
    from benchmarks.stores.langchain import LangChainStore
    from benchmarks.stores.qdrant import QdrantStore

    return IndexStore(), LangChainStore(), QdrantStore(), ChromaStore()


def outcomes(name: str, reports: Sequence[Report]) -> Record:
    """Return a table with a row for each check, and a column for each store."""
    columns = ["check", "what it requires", *(report.store for report in reports)]
    rows = [
        [check.name, check.title, *(report[check.name].outcome for report in reports)]
        for check in CHECKS.values()
    ]
    return Record(name, "Checks of divgrpc and of other stores", columns, rows)


def failures(name: str, reports: Sequence[Report]) -> Record:
    """Return a table with a row for each check that failed."""
    rows = [
        [report.store, result.name, result.detail]
        for report in reports
        for result in report.failures
    ]
    return Record(name, "Checks that failed", ["store", "check", "first case"], rows)


if __name__ == "__main__":
    main()
