"""python -m benchmarks [RUN] [--json FILE] [--record FILE]: run benchmarks and print their tables.

Without the name of a run, all are made but the long ones. `--help` after a name lists the options
of that run.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks.harness import records, runner
from benchmarks.harness.tables import show

RUNS: Final = {
    "quality": "quality.gap",
    "crowding": "quality.crowding",
    "metrics": "quality.recall_by_metric",
    "labels": "quality.labels",
    "selectors": "speed.selectors",
    "batches": "speed.batches",
    "large": "rivals.large",
    "training": "speed.training",
    "peers": "rivals.peers",
    "service": "rivals.service",
    "wire": "server.wire",
    "start": "server.start",
    "overload": "server.overload",
    "build": "server.build",
    "memory": "server.memory",
    "evaluate": "server.evaluate",
    "chaos": "server.chaos",
    "core-mutations": "core_mutations",
}
_LONG: Final = {"large", "training", "chaos", "core-mutations"}
# Runs that earlier records name, and what to use instead.
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
    """Run what the command line names."""
    arguments = _parser().parse_args()
    if arguments.record and not arguments.run:
        raise SystemExit("--record needs the name of a run")
    environment = records.environment()
    for name, value in environment.items():
        show(f"{name:<20} {value}")
    results: dict[str, object] = {"environment": environment}
    for name in [arguments.run] if arguments.run else sorted(RUNS.keys() - _LONG):
        benchmark = runner.load(RUNS[name])
        options = arguments if arguments.run else runner.parse(benchmark)
        tables = runner.measure(benchmark, options)
        results[name] = [asdict(table) for table in tables]
        if arguments.record:
            title = runner.description(benchmark)[0]
            records.write(arguments.record, title, sys.argv[1:], environment, tables)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2, default=str) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, allow_abbrev=False
    )
    retired = {name: f"retired: use {instead}" for name, instead in RETIRED.items()}
    files = {
        "--json": "write all tables as JSON",
        "--record": "write each table as a record: FILE, FILE-2 and so on",
    }
    for flag, text in files.items():
        parser.add_argument(flag, type=Path, metavar="FILE", help=text)
    names = parser.add_subparsers(dest="run", metavar="RUN")
    for name, path in RUNS.items():
        benchmark = runner.load(path)
        title, text = runner.description(benchmark)
        options = names.add_parser(name, help=title, description=f"{title}. {text}")
        for flag in files:
            options.add_argument(flag, type=Path, metavar="FILE", default=argparse.SUPPRESS)
        runner.add_options(options, benchmark)
    parser.epilog = "; ".join(f"{name} is {text}" for name, text in retired.items())
    return parser


if __name__ == "__main__":
    main()
