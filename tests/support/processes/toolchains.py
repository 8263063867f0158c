"""Programs and extras; tests that need a missing one are skipped and counted."""

import importlib.util
import re
import shutil
from collections.abc import Iterable

import pytest

_MISSING = "missing toolchain"


def require(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            skip(program)


def require_module(name: str) -> None:
    """Skip a test if the module of an extra is not installed."""
    if importlib.util.find_spec(name) is None:
        skip(name, f"pip install 'divgrpc[{name}]'")


def skip(program: str, remedy: str = "") -> None:
    pytest.skip(f"{_MISSING} {program}" + (f": {remedy}" if remedy else ""))


def summary(reasons: Iterable[str]) -> str:
    """Return how many tests were skipped for missing programs, and the names of the programs."""
    missing = [match[1] for r in reasons if (match := re.search(rf"{_MISSING} ([\w-]+)", r))]
    names = ", ".join(sorted(set(missing)))
    return f"{len(missing)} tests skipped for a missing toolchain" + (f": {names}" if names else "")
