"""The definition of a benchmark, and the functions that run it.

    @benchmark("wire", rounds=Option(5, "turns of each program"))
    def wire(options: Options) -> Iterator[Output]:

The first line of the function's docstring is its title, and the rest explains what is measured. The
function yields three kinds of output. A dict is a row of the current table. A `Table` starts the
next table. A string is a note that is printed between tables.

In timed comparisons the contestants take turns (`take_turns`), so that a slow minute affects all of
them. They answer the queries one at a time, block by block. The first queries of a block warm the
caches and are not timed. The time of a block is the median over its queries. The time of a
contestant is the least time of all its blocks, which is the time on an undisturbed machine. A ratio
of times is computed within each block. The median over blocks is reported, with a bootstrap
interval over blocks.
"""

import argparse
import math
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, get_args

import numpy as np
from scipy.stats import bootstrap

from divgrpc.types import HashFamily, IntArray
from divgrpc.warmup import warm_kernels

_BLOCKS: Final = 8
_WARM_UP: Final = 5
_RESAMPLES: Final = 2_000
# A ratio of times gets an interval only if it has at least this many blocks.
_BLOCKS_MIN: Final = 3

Key = TypeVar("Key")
# A function from the number of a query to the row numbers of its k results.
Ask: TypeAlias = Callable[[int], IntArray]

# A row of a table: values by column name.
Row: TypeAlias = Mapping[str, Any]
Options: TypeAlias = argparse.Namespace


@dataclass
class Table:
    """A table: a title, facts about the measurement, and rows, whose keys are the columns."""

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    @property
    def columns(self) -> list[str]:
        """Column names in the order of their first occurrence."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def cells(self) -> list[list[str]]:
        """Return every row as text, in the order of the columns."""
        return [[text(row.get(name)) for name in self.columns] for row in self.rows]

    def draw(self) -> str:
        """Return the title, the facts and the Markdown table."""
        facts = [f"{name}: {value}" for name, value in self.facts.items()]
        head = [f"\n## {self.title}\n", *facts]
        if not self.rows:
            return "\n".join(head)
        if self.facts:
            head.append("")
        return "\n".join([*head, markdown(self.columns, self.cells())])


Output: TypeAlias = Row | Table | str
Rows: TypeAlias = Callable[[Options], Iterator[Output]]


class Option(NamedTuple):
    """An option of a benchmark.

    The type of an option is the type of its default. If the default is None or an empty list,
    `kind` is the type. If the default is a list, the option takes any number of values.
    """

    default: Any
    help: str = ""
    choices: Sequence[str] | None = None
    kind: type = str


FAMILIES: Final = Option(list(get_args(HashFamily)), "hash families", get_args(HashFamily))


@dataclass(frozen=True)
class Benchmark:
    """A function that measures, with its options; a `long` benchmark runs only if it is named."""

    rows: Rows
    options: Mapping[str, Option]
    long: bool

    @property
    def title(self) -> str:
        """The first line of the function's docstring."""
        return (self.rows.__doc__ or "").partition("\n")[0].rstrip(".")

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options on a parser."""
        for name, option in self.options.items():
            _add(parser, name, option)

    def parse(self, words: str = "") -> Options:
        """Parse a command line with the options of this benchmark."""
        parser = argparse.ArgumentParser()
        self.add_options(parser)
        return parser.parse_args(shlex.split(words))

    def measure(self, options: Options) -> list[Table]:
        """Run the benchmark, print each complete table, and return the tables that have rows."""
        warm_kernels()
        tables = [Table(self.title)]
        for output in self.rows(options):
            if isinstance(output, str):
                show(output)
            elif isinstance(output, Table):
                show(tables[-1].draw() if tables[-1].rows else "")
                tables.append(output)
            else:
                tables[-1].rows.append(output)
        show(tables[-1].draw() if tables[-1].rows else "")
        return [table for table in tables if table.rows]


# All benchmarks by name. Modules register theirs when they are imported.
RUNS: Final[dict[str, Benchmark]] = {}


def benchmark(name: str, *, long: bool = False, **options: Option) -> Callable[[Rows], Rows]:

    def register(rows: Rows) -> Rows:
        RUNS[name] = Benchmark(rows, options, long)
        return rows

    return register


def _add(parser: argparse.ArgumentParser, name: str, option: Option) -> None:
    flag, default = "--" + name.replace("_", "-"), option.default
    if default is False:
        parser.add_argument(flag, action="store_true", help=option.help)
        return
    values = default if isinstance(default, list) else [default]
    words = " ".join(str(value) for value in values if value not in (None, ""))
    choices = f", of {' '.join(option.choices)}" if option.choices else ""
    parser.add_argument(
        flag,
        default=default,
        type=option.kind if values in ([], [None]) else type(values[0]),
        nargs="*" if isinstance(default, list) else None,
        choices=option.choices,
        metavar=name.upper() if option.choices else None,
        help=f"{option.help}{choices} (default {words or 'none'})",
    )


def text(value: object) -> str:
    """Return the text of a table cell; None and NaN are empty, and floats are rounded."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(map(text, value))
    if isinstance(value, int):
        return f"{value:,}"
    return _number(float(value)) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    size = abs(value)
    if 0 < size < 0.001:
        return f"{value:.1e}"
    digits = 0 if size >= 100 else 2 if size >= 2 else 3
    return f"{value:,.{digits}f}"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns; all but the first are numbers."""
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return "| " + " | ".join((first, *rest)) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(columns), line(rule), *(line(row) for row in rows)])


def show(line: str = "") -> None:
    """Print a line at once, without buffering, because a run takes minutes."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Timed:
    """The answers (nq, k) of a contestant, and the median microseconds of each block."""

    rows: IntArray
    blocks: tuple[float, ...]

    @property
    def microseconds(self) -> float:
        """Median time of a query in the fastest block."""
        return min(self.blocks)

    def ratio(self, rival: "Timed") -> tuple[float, str]:
        """Return this contestant's time divided by the rival's, with the 95 % interval as text."""
        ratios = np.array(self.blocks) / np.array(rival.blocks)
        if len(ratios) < _BLOCKS_MIN:
            return float(np.median(ratios)), ""
        low, high = bootstrap(
            (ratios,), np.median, n_resamples=_RESAMPLES, method="percentile", rng=0
        ).confidence_interval
        return float(np.median(ratios)), f"{low:.2f} to {high:.2f}"


def take_turns(
    contestants: Mapping[Key, Ask], queries: int, k: int, patience: float = math.inf
) -> dict[Key, Timed]:
    """Let contestants answer in blocks; each has `patience` seconds per block, then rows are -1."""
    times: dict[Key, list[float]] = {name: [] for name in contestants}
    rows = {name: np.full((queries, k), -1) for name in contestants}
    for block in np.array_split(np.arange(queries), min(_BLOCKS, queries)):
        for name, ask in contestants.items():
            seconds: list[float] = []
            deadline = time.perf_counter() + patience
            for query in block[:_WARM_UP]:
                if time.perf_counter() < deadline:
                    ask(query)
            for query in block:
                if seconds and time.perf_counter() > deadline:
                    break
                begin = time.perf_counter()
                rows[name][query] = ask(query)
                seconds.append(time.perf_counter() - begin)
            times[name].append(statistics.median(seconds) * 1e6)
    return {name: Timed(rows[name], tuple(times[name])) for name in contestants}
