"""python -m benchmarks [RUN] [--record FILE [--note TEXT]]: run benchmarks and print their tables.

Each benchmark prints its tables. Without RUN, all benchmarks run except the long ones. `--help`
after a name lists the options of that benchmark.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from benchmarks import core_mutations  # noqa: F401  # registers its run
from benchmarks.harness import records
from benchmarks.harness.runner import RUNS, show

_IN_PROCESS: Final = (
    "crowding",
    "labels",
    "scans",
    "sparse",
    "filters",
    "selectors",
    "large",
    "growth",
    "peers",
    "diversity",
    "sharded",
    "sharded_quotas",
    "divided_builds",
    "divided_training",
)
_SERVER_RUNS: Final = (
    "service",
    "wire",
    "builds",
    "evaluate",
    "writes",
    "write_streams",
    "monitoring",
    "overload",
    "replicas",
    "served_shards",
    "shard_costs",
    "security",
)
for _module in (*_IN_PROCESS, *_SERVER_RUNS):
    import_module(f"benchmarks.runs.{_module}")


def main() -> None:
    arguments = _parser().parse_args()
    if arguments.record and not arguments.run:
        raise SystemExit("--record needs the name of a run")
    if arguments.note and not arguments.record:
        raise SystemExit("--note needs --record")
    environment = records.environment()
    for name, value in environment.items():
        show(f"{name:<20} {value}")
    names = [name for name in sorted(RUNS) if not RUNS[name].long]
    for name in [arguments.run] if arguments.run else names:
        run = RUNS[name]
        tables = run.measure(arguments if arguments.run else run.parse())
        if arguments.record:
            load = f"load average before the run {environment['load average before']}"
            notes = [load, *arguments.note]
            records.write(arguments.record, run.title, sys.argv[1:], tables, notes=notes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, allow_abbrev=False
    )
    words = "write each table as a record: FILE, FILE-2 and so on"
    record: dict[str, Any] = {"type": Path, "metavar": "FILE", "help": words}
    words = "fact about the run for its records, such as a busy machine; may be repeated"
    note: dict[str, Any] = {"action": "append", "metavar": "TEXT", "help": words}
    parser.add_argument("--record", **record)
    parser.add_argument("--note", default=[], **note)
    names = parser.add_subparsers(dest="run", metavar="RUN")
    for name, run in RUNS.items():
        options = names.add_parser(name, help=run.title, description=run.rows.__doc__)
        options.add_argument("--record", default=argparse.SUPPRESS, **record)
        options.add_argument("--note", default=argparse.SUPPRESS, **note)
        run.add_options(options)
    return parser


if __name__ == "__main__":
    main()
