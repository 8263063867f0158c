"""python -m benchmarks [RUN] [--json FILE] [--record FILE [--note TEXT]]: run benchmarks.

Each benchmark prints its tables. Without the name of a run, all benchmarks run except the long
ones. `--help` after a name lists the options of that run.
"""

import argparse
import json
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Final

from benchmarks import core_mutations  # noqa: F401  # registers its run
from benchmarks.harness import records
from benchmarks.harness.runner import RUNS, show

_MODULES: Final = (
    *("crowding", "labels", "selectors"),
    *("large", "peers", "service"),
    *("wire", "builds", "evaluate"),
)
for _module in _MODULES:
    import_module(f"benchmarks.runs.{_module}")
# Names of former runs that appear in older records, each with what replaces it.
RETIRED: Final = {
    "gain": "make table1",
    "sparse-query": "make table1",
    "label-dial": "make table2",
    "label-speed": 'make table2 ARGS="--sets"',
    "default-h": 'make bench ARGS="crowding --shares 0 --kinds hyperplanes"',
    "dials": "the commit of its records",
    "relaxing": "the commit of its record",
}


def main() -> None:
    arguments = _parser().parse_args()
    if arguments.record and not arguments.run:
        raise SystemExit("--record needs the name of a run")
    if arguments.note and not arguments.record:
        raise SystemExit("--note needs --record")
    environment = records.environment()
    for name, value in environment.items():
        show(f"{name:<20} {value}")
    results: dict[str, object] = {"environment": environment}
    names = [name for name in sorted(RUNS) if not RUNS[name].long]
    for name in [arguments.run] if arguments.run else names:
        run = RUNS[name]
        tables = run.measure(arguments if arguments.run else run.parse())
        results[name] = [asdict(table) for table in tables]
        if arguments.record:
            facts = (run.title, sys.argv[1:], environment, tables)
            records.write(arguments.record, *facts, notes=arguments.note)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2, default=str) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, allow_abbrev=False
    )
    files = {
        "--json": "write all tables as JSON",
        "--record": "write each table as a record: FILE, FILE-2 and so on",
    }
    for flag, text in files.items():
        parser.add_argument(flag, type=Path, metavar="FILE", help=text)
    note = "fact about the run for its records, such as a busy machine; may be repeated"
    parser.add_argument("--note", action="append", metavar="TEXT", default=[], help=note)
    names = parser.add_subparsers(dest="run", metavar="RUN")
    for name, run in RUNS.items():
        options = names.add_parser(name, help=run.title, description=run.rows.__doc__)
        for flag in files:
            options.add_argument(flag, type=Path, metavar="FILE", default=argparse.SUPPRESS)
        options.add_argument("--note", action="append", metavar="TEXT", default=argparse.SUPPRESS)
        run.add_options(options)
    parser.epilog = "; ".join(f"{name} is retired: use {use}" for name, use in RETIRED.items())
    return parser


if __name__ == "__main__":
    main()
