"""Contestants of a timed comparison take turns, so that a slow minute falls on all of them.

Queries are asked one at a time, block by block. The first queries of a block warm the caches and
are not timed. A time is the median of a block, the least of all blocks: what the machine does
undisturbed. A ratio is the median over blocks of the ratio within a block, with a bootstrap
interval over blocks.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import numpy as np

from divgrpc.types import IntArray

_BLOCKS: Final = 8
_WARM_UP: Final = 5
_RESAMPLES: Final = 2_000
# With fewer blocks there is no interval.
_LEAST_BLOCKS: Final = 3

Key = TypeVar("Key")
# From the number of a query to the rows of its k picks.
Ask: TypeAlias = Callable[[int], IntArray]


@dataclass(frozen=True)
class Timed:
    """The answers of one contestant, (nq, k) rows, and the median microseconds of each block."""

    rows: IntArray
    blocks: tuple[float, ...]

    @property
    def microseconds(self) -> float:
        """Time of a query."""
        return min(self.blocks)

    def ratio(self, other: "Timed") -> tuple[float, str]:
        """Return how many times as long this takes as the other, and the 95 % interval as text."""
        ratios = np.array(self.blocks) / np.array(other.blocks)
        if len(ratios) < _LEAST_BLOCKS:
            return float(np.median(ratios)), ""
        draws = np.random.default_rng(0).choice(ratios, (_RESAMPLES, len(ratios)))
        low, high = np.percentile(np.median(draws, axis=1), (2.5, 97.5))
        return float(np.median(ratios)), f"{low:.2f} to {high:.2f}"


def take_turns(
    contestants: Mapping[Key, Ask], queries: int, k: int, patience: float = math.inf
) -> dict[Key, Timed]:
    """Ask each contestant every query, block by block.

    A contestant stops within a block after `patience` seconds: its remaining rows are -1.
    """
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
                started = time.perf_counter()
                rows[name][query] = ask(query)
                seconds.append(time.perf_counter() - started)
            times[name].append(statistics.median(seconds) * 1e6)
    return {name: Timed(rows[name], tuple(times[name])) for name in contestants}
