"""Quality at what price: gap closed and time per query, beside exhaustive greedy and exact search.

One thread, one query at a time, in turns. The same answers give the time and J.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import datasets
from benchmarks.contestants import Contestant, Exhaustive, Ours, everyone
from benchmarks.families import FAMILIES
from benchmarks.objective import best_dial, mean_objective
from benchmarks.tables import show, table
from benchmarks.turns import take_turns
from divgrpc.index import Index
from divgrpc.metrics import gap_closed
from divgrpc.types import FloatArray, HashFamily, IntArray
from divgrpc.warmup import warm_kernels


@dataclass(frozen=True)
class Row:
    """One contestant at one target; times in microseconds, ratios as times faster."""

    diversity: float
    family: str
    search: str
    variant: str
    dial: float
    objective: float
    gap_closed: float
    microseconds: float
    than_exhaustive: float
    than_exact: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    parser.add_argument("--k", type=int, default=10, help="results per query (default 10)")
    parser.add_argument("--queries", type=int, default=400, help="queries reported (default 400)")
    parser.add_argument("--tuning", type=int, default=100, help="queries for dials (default 100)")
    parser.add_argument("--diversity", type=float, nargs="+", default=[0.1, 0.3, 0.5])


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print the tables, and return the rows for JSON."""
    points = datasets.load(arguments.queries, arguments.tuning)
    show(f"\n## Quality: k = {arguments.k} on {points.name}, defaults otherwise\n")
    warm_kernels()
    indexes = {family: Index.build(points.base, hash_family=family) for family in FAMILIES}
    rows: list[Row] = []
    with threadpool_limits(1):
        for diversity in arguments.diversity:
            rows += _at(points, indexes, arguments.k, diversity)
    show("All targets together: gap closed, and times at the middle one\n")
    show(_summary(rows))
    return {"data": points.described(), "k": arguments.k, "rows": [asdict(row) for row in rows]}


def _at(
    points: datasets.Points, indexes: Mapping[HashFamily, Index], k: int, diversity: float
) -> list[Row]:
    """Tune every dial for one target, let everyone answer, print and return the table."""
    baseline = Exhaustive(points.base, k)
    dials: dict[Contestant, float] = {baseline: diversity}
    dials.update({each: _tuned(each, points, diversity) for each in everyone(indexes, k)})
    askings = {each: partial(each.pick, points.queries, dial=dial) for each, dial in dials.items()}
    timed = take_turns(askings, len(points.queries), k)

    nearest = _objective(points, _nearest(points.base, points.queries, k), diversity)
    best = _objective(points, timed[baseline].rows, diversity)
    show(f"diversity {diversity}: J {nearest:.4f} of nearest neighbours, {best:.4f} exhaustive\n")
    exact = {each.variant: timed[each].microseconds for each in dials if each.search == "exact"}
    rows = []
    for each, dial in dials.items():
        value = _objective(points, timed[each].rows, diversity)
        taken = timed[each].microseconds
        rows.append(
            Row(
                diversity=diversity,
                family=each.family,
                search=each.search,
                variant=each.variant,
                dial=dial,
                objective=value,
                gap_closed=gap_closed(value, nearest, best),
                microseconds=taken,
                than_exhaustive=timed[baseline].microseconds / taken,
                than_exact=exact[each.variant] / taken,
            )
        )
    show(_drawn(rows) + "\n")
    return rows


def _tuned(each: Ours, points: datasets.Points, diversity: float) -> float:
    def value_at(dial: float) -> float:
        picks = [each.pick(points.tuning, i, dial) for i in range(len(points.tuning))]
        return mean_objective(points.base, points.tuning, np.array(picks), diversity)

    return best_dial(diversity, value_at)


def _objective(points: datasets.Points, rows: IntArray, diversity: float) -> float:
    return mean_objective(points.base, points.queries, rows, diversity)


def _nearest(base: FloatArray, queries: FloatArray, k: int) -> IntArray:
    return np.argsort(-(queries @ base.T), axis=1, kind="stable")[:, :k]


def _summary(rows: Sequence[Row]) -> str:
    """Draw one line per contestant."""
    targets = sorted({row.diversity for row in rows})
    middle = targets[len(targets) // 2]
    gaps = {(_name(row), row.diversity): f"{row.gap_closed:.3f}" for row in rows}
    return table(
        (
            "family, search, variant",
            *(f"gap at {target}" for target in targets),
            "us/query",
            "x exhaustive",
            "x exact",
        ),
        [
            (
                _name(row),
                *(gaps[_name(row), target] for target in targets),
                f"{row.microseconds:,.0f}",
                f"{row.than_exhaustive:.1f}",
                f"{row.than_exact:.1f}",
            )
            for row in rows
            if row.diversity == middle
        ],
    )


def _name(row: Row) -> str:
    return f"{row.family}, {row.search}, {row.variant}"


def _drawn(rows: Sequence[Row]) -> str:
    return table(
        (
            "family, search, variant",
            "dial",
            "J",
            "gap closed",
            "us/query",
            "x exhaustive",
            "x exact",
        ),
        [
            (
                _name(row),
                f"{row.dial:.3f}",
                f"{row.objective:.4f}",
                f"{row.gap_closed:.3f}",
                f"{row.microseconds:,.0f}",
                f"{row.than_exhaustive:.1f}",
                f"{row.than_exact:.1f}",
            )
            for row in rows
        ],
    )
