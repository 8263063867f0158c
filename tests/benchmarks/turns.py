"""Who takes part in a timed comparison takes turns, so that a slow minute falls on all of them.

One query at a time, block by block; the first queries of a block warm the caches and are not timed.
A time is the median of a block, the least of all blocks: what the machine does undisturbed.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from divgrpc.types import IntArray

_BLOCKS = 8
_WARM_UP = 5

Key = TypeVar("Key")
# From the number of a query to the rows of its k picks.
Asking = Callable[[int], IntArray]


@dataclass(frozen=True)
class Timed:
    """What one contestant answered, (nq, k) rows, and how long a query took."""

    rows: IntArray
    microseconds: float


def take_turns(
    askings: Mapping[Key, Asking], queries: int, k: int, patience: float = math.inf
) -> dict[Key, Timed]:
    """Ask everyone every one of so many queries, block by block.

    Who has spent so many seconds of `patience` on a block goes no further in it: its rows are -1.
    """
    seconds: dict[Key, list[float]] = {each: [] for each in askings}
    rows = {each: np.full((queries, k), -1) for each in askings}
    for block in np.array_split(np.arange(queries), min(_BLOCKS, queries)):
        for each, ask in askings.items():
            times: list[float] = []
            over = time.perf_counter() + patience
            for query in block[:_WARM_UP]:
                if time.perf_counter() < over:
                    ask(query)
            for query in block:
                if times and time.perf_counter() > over:
                    break
                begun = time.perf_counter()
                rows[each][query] = ask(query)
                times.append(time.perf_counter() - begun)
            seconds[each].append(statistics.median(times))
    return {each: Timed(rows[each], min(seconds[each]) * 1e6) for each in askings}
