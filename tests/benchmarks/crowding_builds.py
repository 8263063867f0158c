"""Builds of the same points while every core is busy: what becomes of `auto`, and what it goes by.

No clock decides, so that all builds should come to the same.
"""

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.tables import table
from divgrpc.index import Index
from support.crowded_points import Crowd

# Busy processes for each core.
_EACH: Final = 2


@dataclass(frozen=True)
class Builds:
    """So many builds of one set; `autos` and `costs`: how many different ones came of them."""

    data: str
    builds: int
    auto: str
    autos: int
    costs: int
    least_seconds: float
    most_seconds: float


def build_again(crowd: Crowd, builds: int) -> Builds:
    """Build an index of the points again and again, beside processes that keep the cores busy."""
    autos: list[str] = []
    costs: list[str] = []
    seconds: list[float] = []
    with _busy():
        for _ in range(builds):
            begun = time.perf_counter()
            info = Index.build(crowd.points).info
            seconds.append(time.perf_counter() - begun)
            searches = [info.auto_search, info.auto_search_dense]
            autos.append(
                ", ".join(map(str, [info.parameters["hash_family"], *filter(None, searches)]))
            )
            costs.append(repr((info.n_probes, info.search_costs, info.search_costs_dense)))
    return Builds(
        crowd.name,
        builds,
        autos[0],
        len(set(autos)),
        len(set(costs)),
        min(seconds),
        max(seconds),
    )


@contextmanager
def _busy() -> Iterator[None]:
    """Keep every core busy with more than one process."""
    start = multiprocessing.get_context("spawn")
    count = _EACH * len(os.sched_getaffinity(0))
    processes = [start.Process(target=_spin, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _spin() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        sum(range(100_000))


def drawn(found: Sequence[Builds]) -> str:
    """Draw one line per set."""
    return table(
        (
            "set, what auto became",
            "builds",
            "different autos",
            "different costs",
            "seconds: least",
            "most",
        ),
        [
            (
                f"{each.data}: {each.auto}",
                f"{each.builds}",
                f"{each.autos}",
                f"{each.costs}",
                f"{each.least_seconds:.1f}",
                f"{each.most_seconds:.1f}",
            )
            for each in found
        ],
    )
