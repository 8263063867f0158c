"""python -m fuzzing.mutants: read changed inputs of targets, without atheris.

The inputs depend on the seed alone. By default these are frames between processes of a server. An
error that the reader may not raise ends the program with its traceback.
"""

import argparse
import random
import sys
import time

from fuzzing.targets import FRAMES, TARGETS, corpus_of
from support.requests.mutators import change_bytes


def run(name: str, count: int, seed: int) -> float:
    """Let a target read so many changed inputs; return the seconds of the slowest one.

    Raises the error of the reader if it is a defect.
    """
    target, draw, slowest = TARGETS[name], random.Random(f"{name}-{seed}"), 0.0
    pool = [*target.seeds, *corpus_of(name)]
    for _ in range(count):
        data = draw.choice(pool)
        for _ in range(draw.choice((1, 1, 2, 4))):
            data = change_bytes(draw, data)
        begin = time.monotonic()
        target.run(data)
        slowest = max(slowest, time.monotonic() - begin)
    return slowest


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzzing.mutants", description=__doc__)
    parser.add_argument("targets", nargs="*", default=FRAMES, help="(default: frames)")
    parser.add_argument("--count", type=int, default=40_000, help="of each target (default 40000)")
    parser.add_argument("--seed", type=int, default=0, help="(default 0)")
    arguments = parser.parse_args()
    for name in arguments.targets:
        slowest = run(name, arguments.count, arguments.seed)
        sys.stdout.write(f"{name}: {arguments.count:,} inputs, the slowest {slowest:.3f} s\n")


if __name__ == "__main__":
    main()
