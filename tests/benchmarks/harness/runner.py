"""The one shape of a benchmark, and what runs it.

A benchmark is a module with

- a docstring, whose first line is its title and whose rest says what is measured,
- `OPTIONS`, from the names of its options to `Option`s,
- `rows(options)`, which yields rows of the current table as dicts, a `Table` where the next table
  begins, and a string for a note that is printed between tables.
"""

import argparse
import importlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast, get_args

from benchmarks.harness.tables import Row, Table, show
from divgrpc.types import HashFamily
from divgrpc.warmup import warm_kernels

Output: TypeAlias = Row | Table | str
Options: TypeAlias = argparse.Namespace


class Option(NamedTuple):
    """An option's default, whose type is that of the option; a list takes any number of words.

    `kind` is the type where the default is None or empty.
    """

    default: Any
    help: str = ""
    choices: Sequence[str] | None = None
    kind: type = str


class Benchmark(Protocol):
    """What the runner needs of a benchmark's module."""

    @property
    def OPTIONS(self) -> Mapping[str, Option]:  # noqa: N802  # a constant of the module
        """Options by name."""

    def rows(self, options: Options) -> Iterator[Output]:
        """Measure."""


FAMILIES: Final = Option(list(get_args(HashFamily)), "hash families", get_args(HashFamily))


def load(path: str) -> Benchmark:
    """Import a benchmark by its module below `benchmarks`."""
    return cast("Benchmark", importlib.import_module(f"benchmarks.{path}"))


def description(benchmark: Benchmark) -> list[str]:
    """Return the title of a benchmark, and the text below it."""
    title, _, rest = (benchmark.__doc__ or "").partition("\n")
    return [title.rstrip("."), rest.strip()]


def add_options(parser: argparse.ArgumentParser, benchmark: Benchmark) -> None:
    """Declare a benchmark's options on a parser."""
    for name, option in benchmark.OPTIONS.items():
        _add(parser, name, option)


def _add(parser: argparse.ArgumentParser, name: str, option: Option) -> None:
    flag, default = "--" + name.replace("_", "-"), option.default
    if default is False:
        parser.add_argument(flag, action="store_true", help=option.help)
        return
    first = default[0] if isinstance(default, list) and default else default
    words = " ".join(map(str, default)) if isinstance(default, list) else default
    parser.add_argument(
        flag,
        default=default,
        type=option.kind if first in (None, []) else type(first),
        nargs="*" if isinstance(default, list) else None,
        choices=option.choices,
        metavar=name.upper() if option.choices else None,
        help=f"{option.help}{f', of {chr(32).join(option.choices)}' if option.choices else ''}"
        f" (default {words if words not in (None, '') else 'none'})",
    )


def parse(benchmark: Benchmark, words: str = "") -> Options:
    """Return the options of a benchmark that a line of words names."""
    parser = argparse.ArgumentParser()
    add_options(parser, benchmark)
    return parser.parse_args(shlex.split(words))


def measure(benchmark: Benchmark, options: Options) -> list[Table]:
    """Run a benchmark, print each table when it is complete, and return those that have rows."""
    warm_kernels()
    tables = [Table(description(benchmark)[0])]
    for output in benchmark.rows(options):
        if isinstance(output, str):
            show(output)
        elif isinstance(output, Table):
            show(tables[-1].draw() if tables[-1].rows else "")
            tables.append(output)
        else:
            tables[-1].rows.append(output)
    show(tables[-1].draw() if tables[-1].rows else "")
    return [table for table in tables if table.rows]


FOLDER: Final = Option(None, "folder for large files, a temporary one otherwise", kind=Path)
