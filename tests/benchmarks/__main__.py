"""python -m benchmarks [RUN] [--json FILE] [--record FILE]: measure, print, keep.

Without a name of a run all are made but `large`, which takes an hour. `--help` after a name lists
that run's options. Figures are only as quiet as the machine: the record has its load average.
"""

import argparse
import json
import sys
from pathlib import Path

from benchmarks import (
    batches,
    build,
    crowding,
    default_h,
    dials,
    environment,
    evaluate,
    gain,
    label_dial,
    label_speed,
    labels,
    large,
    memory,
    metrics,
    overload,
    peers,
    quality,
    records,
    relaxing,
    selectors,
    service,
    sparse_query,
    start,
    training,
    wire,
)
from benchmarks.tables import DRAWN, facts, show

_RUNS = {
    "quality": quality,
    "gain": gain,
    "crowding": crowding,
    "default-h": default_h,
    "dials": dials,
    "metrics": metrics,
    "selectors": selectors,
    "relaxing": relaxing,
    "sparse-query": sparse_query,
    "batches": batches,
    "peers": peers,
    "wire": wire,
    "start": start,
    "service": service,
    "large": large,
    "overload": overload,
    "build": build,
    "memory": memory,
    "evaluate": evaluate,
    "labels": labels,
    "label-dial": label_dial,
    "label-speed": label_speed,
    "training": training,
}
_LONG = {"large"}
_RECORD_HELP = (
    "write the table that the run prints as a record; the second goes to FILE-2, and so on"
)


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything as JSON")
    parser.add_argument("--record", type=Path, metavar="FILE", help=_RECORD_HELP)
    names = parser.add_subparsers(dest="run", metavar="RUN")
    for name, run in _RUNS.items():
        summary = (run.__doc__ or "").splitlines()[0].rstrip(".")
        options = names.add_parser(name, help=summary, description=run.__doc__)
        options.add_argument(
            "--json", type=Path, metavar="FILE", default=argparse.SUPPRESS, help="as above"
        )
        options.add_argument(
            "--record", type=Path, metavar="FILE", default=argparse.SUPPRESS, help="as above"
        )
        run.add_arguments(options)
    arguments = parser.parse_args()
    if arguments.record and not arguments.run:
        parser.error("--record needs the name of a run")

    record = environment.record()
    show(facts(record))
    results: dict[str, object] = {"environment": record}
    for name in [arguments.run] if arguments.run else [name for name in _RUNS if name not in _LONG]:
        # Once more for the options of a run that was not named.
        told = arguments if arguments.run else parser.parse_args([name])
        results[name] = _RUNS[name].run(told)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    if arguments.record:
        title = (_RUNS[arguments.run].__doc__ or "").splitlines()[0].rstrip(".")
        records.write(arguments.record, title, sys.argv[1:], record, DRAWN)


if __name__ == "__main__":
    main()
