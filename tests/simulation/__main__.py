"""python -m simulation: run the write path under many seeds, and check what it has done.

A seed that fails is printed with its history, and --seed repeats it. With --mutant, the code has a
known defect, and the run succeeds if a seed finds it; --mutants does so for all defects. The exit
code is 0 if all is as it should be.
"""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from simulation.mutants import MUTANTS

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
    if arguments.mutant:
        # Before any import of the code under test.
        from simulation.mutation import install

        install(MUTANTS[arguments.mutant])
    from simulation.pool import Report, run_seeds

    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.seed is not None:
        seeds = range(arguments.seed, arguments.seed + 1)
    start = time.monotonic()
    report = Report()
    for outcome in run_seeds(seeds, arguments.processes, arguments.seconds):
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
    """Look for each defect in a process of its own; return 1 if one was not found."""
    with ThreadPoolExecutor(processes) as pool:
        outcomes = list(pool.map(lambda name: _find(name, seeds), MUTANTS))
    _show(f"{sum(outcomes)} of {len(outcomes)} defects were found within {seeds} seeds")
    return int(not all(outcomes))


def _find(name: str, seeds: int) -> bool:
    """Look for a defect, and print the seed that finds it; return whether there is one."""
    command = [sys.executable, "-m", "simulation", "--mutant", name, "--seeds", str(seeds)]
    outcome = subprocess.run(
        [*command, "--processes", "1"], capture_output=True, text=True, check=False
    )
    lines = [line for line in outcome.stdout.splitlines() if " fails: " in line]
    reason = f"{name} ({MUTANTS[name].reason})"
    _show(f"{reason}: {''.join(lines[-1:]) or f'not found {outcome.stderr[-2_000:]}'}")
    return not outcome.returncode


def _show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
