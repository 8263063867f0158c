"""python -m simulation: run the paths of writes and of queries under many seeds, and check them.

A seed that fails is printed with its history, and --seed repeats it. With --mutant, the code has a
known defect, and the run succeeds if a seed finds it; --mutants does so for all defects. With
--fixed as well, seeds have the options of the defect but not the defect, and must find nothing. The
exit code is 0 if all is as it should be.
"""

import argparse
import os
import sys
import time
from typing import Final

from simulation.parts import PARTS, Part
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
    parser.add_argument("--fixed", action="store_true", help="run without this defect")
    parser.add_argument("--mutants", action="store_true", help="look for each known defect")
    parser.add_argument(
        "--failpoints", action="store_true", help="print how often each was reached"
    )
    parser.add_argument(
        "--part", choices=(*PARTS, "all"), default="all", help="what to run (default all)"
    )
    arguments = parser.parse_args()
    names = list(PARTS) if arguments.part == "all" else [arguments.part]
    if arguments.mutant:
        names = [name for name in names if arguments.mutant in PARTS[name].mutants]
        if not names:
            parser.error(f"there is no defect {arguments.mutant!r}")
    run = _find_all if arguments.mutants else _run
    return max(run(PARTS[name], arguments) for name in names)


def _run(part: Part, arguments: argparse.Namespace) -> int:
    """Run seeds; return whether one failed, or with a mutant whether none did."""
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.seed is not None:
        seeds = range(arguments.seed, arguments.seed + 1)
    start = time.monotonic()
    report = Report(part)
    mutant = part.mutants[arguments.mutant] if arguments.mutant else None
    is_fixed = mutant is not None and arguments.fixed
    if mutant is not None and is_fixed:
        mutant = mutant.fixed
    for outcome in run_seeds(part, seeds, arguments.processes, arguments.seconds, mutant):
        report.add(outcome)
        if outcome.failure or arguments.seed is not None:
            _show("\n".join(outcome.history))
        if outcome.failure:
            _show(f"seed {outcome.seed} fails: {outcome.failure}")
            options = f"{f' --mutant {arguments.mutant}' if mutant else ''}{' --fixed' * is_fixed}"
            place = f"--part {part.name}{options} --seed {outcome.seed}"
            _show(f"to repeat it: python -m simulation {place}")
            break
    report.show(_show, time.monotonic() - start, is_long=arguments.failpoints)
    return int(report.has_failed != (mutant is not None and not is_fixed))


def _find_all(part: Part, arguments: argparse.Namespace) -> int:
    """Look for each defect, and print the seed that finds it; return 1 if one was not found."""
    misses = 0
    for mutant, outcome in find_mutants(part, arguments.seeds, arguments.processes):
        misses += not outcome.failure
        failure = "".join(outcome.failure.strip().splitlines()[-1:])
        result = f"seed {outcome.seed}: {failure}" if failure else "not found"
        _show(f"{mutant.name} ({mutant.reason}): {result[:300]}")
    count, seeds = len(part.mutants), arguments.seeds
    _show(f"{part.name}: {seeds} seeds have shown {count - misses} of {count} defects")
    return int(misses > 0)


def _show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
