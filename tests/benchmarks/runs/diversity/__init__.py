"""The benchmark of what divgrpc does for diversity beside a query: one module for each part.

A part is a module of this package. Its function `rows(small)` yields what the function of a
benchmark yields. If `small` is true, it uses the smallest sizes at which each table has its rows.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from benchmarks.harness.runner import Option, Options, Output, benchmark

PARTS: Final = tuple(sorted(module.name for module in iter_modules(__path__)))


@benchmark(
    "diversity",
    long=True,
    parts=Option(list(PARTS), "parts", PARTS),
    small=Option(False, "use the smallest sizes, which tests use"),
)
def diversity(options: Options) -> Iterator[Output]:
    """Parts of the service around diverse queries: what they cost and how good they are.

    Each part prints tables of its own, with the goals that it has.
    """
    for name in options.parts:
        rows: Callable[[bool], Iterator[Output]] = import_module(f"{__name__}.{name}").rows
        yield from rows(options.small)
