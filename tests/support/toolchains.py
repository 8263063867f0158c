"""Programs that other languages need: a test that misses one skips, and is counted by its name."""

import re
import shutil
from collections.abc import Iterable

import pytest

_MISSING = "missing toolchain"


def require(*programs: str) -> None:
    """Skip the test where one of some programs is not installed."""
    for program in programs:
        if shutil.which(program) is None:
            skip(program)


def skip(program: str, remedy: str = "") -> None:
    """Skip the test for want of a program."""
    pytest.skip(f"{_MISSING} {program}" + (f": {remedy}" if remedy else ""))


def summary(reasons: Iterable[str]) -> str:
    """Return how many of the skipped tests missed a program, and which programs they missed."""
    missing = [found[1] for r in reasons if (found := re.search(rf"{_MISSING} ([\w-]+)", r))]
    names = ", ".join(sorted(set(missing)))
    return f"{len(missing)} tests skipped for a missing toolchain" + (f": {names}" if names else "")
