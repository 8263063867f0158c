"""python -m simulation: run the write path under many seeds, and check what it has done.

A seed that fails is printed with its history, and --seed repeats it. With --mutant, the code has a
known defect, and the run succeeds if a seed finds it; --mutants does so for all defects. The exit
code is 0 if all is as it should be.
"""

import argparse
import os
import sys
import time
from typing import Final

from simulation.mutants import MUTANTS
from simulation.pool import Report, find_mutants, run_seeds

_SEEDS: Final = 1_000


def main() -> int:
    """Do what the arguments say, and return the exit code."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=_SEEDS, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="first seed (default 0)")
    parser.add_argument("--seed", type=int, help="run this seed alone, and print its history")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--mutant", help="run with this defect in the code")
    parser.add_argument("--mutants", action="store_true", help="look for each known defect")
    parser.add_argument(
        "--failpoints", action="store_true", help="print how often each was reached"
    )
    arguments = parser.parse_args()
    if arguments.mutants:
        return _find_all(arguments.seeds, arguments.processes)
    return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    """Run seeds; return whether one failed, or with a mutant whether none did."""
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.seed is not None:
        seeds = range(arguments.seed, arguments.seed + 1)
    start = time.monotonic()
    report = Report()
    mutant = MUTANTS[arguments.mutant] if arguments.mutant else None
    for outcome in run_seeds(seeds, arguments.processes, arguments.seconds, mutant):
        report.add(outcome)
        if outcome.failure or arguments.seed is not None:
            _show("\n".join(outcome.history))
        if outcome.failure:
            _show(f"seed {outcome.seed} fails: {outcome.failure}")
            _show(f"to repeat it: python -m simulation --seed {outcome.seed}")
            break
    report.show(_show, time.monotonic() - start, is_long=arguments.failpoints)
    return int(report.has_failed != bool(arguments.mutant))


def _find_all(seeds: int, processes: int) -> int:
    """Look for each defect, and print the seed that finds it; return 1 if one was not found."""
    misses = 0
    for mutant, outcome in find_mutants(list(MUTANTS.values()), seeds, processes):
        misses += not outcome.failure
        failure = "".join(outcome.failure.strip().splitlines()[-1:])
        result = f"seed {outcome.seed}: {failure}" if failure else "not found"
        _show(f"{mutant.name} ({mutant.reason}): {result[:300]}")
    count = len(MUTANTS) - misses
    _show(f"{count} of {len(MUTANTS)} defects were found within {seeds} seeds")
    return int(misses > 0)


def _show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
