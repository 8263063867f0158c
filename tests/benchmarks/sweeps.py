"""What everyone answers at every setting: the raw material that dials and limits are chosen from.

The exhaustive greedy is run for all dials and both variants at once. Queries of a category pick the
same points again and again, so the products of a pick with all points are kept for a while; the
answers are those of the timed kernel, up to rounding.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from benchmarks.exhaustive import Everything
from divgrpc.index import Index
from divgrpc.kernels.jit import kernel
from divgrpc.parameters import QueryParameters
from divgrpc.types import FloatArray, IntArray, Search, Variant
from divgrpc.vectors import RowsLike

VARIANTS: Final[tuple[Variant, ...]] = ("corrected", "marginal")
# Besides 0, which is nearest neighbours whatever the variant.
DIALS: Final = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7)
# Of the default limits: from a quarter to twice as much.
PARTS: Final = (0.25, 0.5, 1.0, 2.0)
_KEPT_BYTES: Final = 2**31


@dataclass(frozen=True)
class Setting:
    """What may be chosen: the dial, the variant, and the part of the default limits."""

    diversity: float
    variant: Variant = "corrected"
    part: float = 1.0


def settings(part: float = 1.0) -> list[Setting]:
    """Return every dial and variant at some part of the default limits."""
    nearest = Setting(0.0, part=part)
    return [nearest, *(Setting(dial, variant, part) for variant in VARIANTS for dial in DIALS)]


def hashed(index: Index, family: str, queries: RowsLike | None = None) -> Search:
    """Return the search to ask for by hashing: `auto`, unless that would not be the family's own.

    Build may have chosen the exact search, which hashes nothing, or for an index of cells a scan,
    which does not look at them, for the kind that `queries` are of, dense or sparse. `auto` looks
    further where a search finds few points.
    """
    own = ("tables",) if family == "cells" else ("tables", "scan", "scan_hamming")
    if index.engine.resolve(QueryParameters(), queries).search in own:
        return "auto"
    return "tables" if family == "cells" else "scan"


def parameters(index: Index, k: int, search: Search, setting: Setting) -> QueryParameters:
    """Return the setting as parameters of a query: the default limits, or their part."""
    query = np.ones((1, index.dims), np.float32)
    default = index.query(query, k=k, search=search).parameters

    def limit(whole: int) -> int | None:
        return None if setting.part == 1 else max(k, math.ceil(setting.part * whole))

    return QueryParameters(
        k=k,
        search=search,
        diversity=setting.diversity,
        variant=setting.variant,
        candidates_limit=limit(default.candidates_limit),
        hash_limit=limit(default.hash_limit),
    )


def of_index(
    index: Index,
    queries: FloatArray,
    k: int,
    search: Search,
    *,
    wanted: Iterable[Setting],
    threads: int,
) -> Iterator[tuple[Setting, IntArray]]:
    """Yield the results (nq, k) of an index at every wanted setting."""
    blocks = np.array_split(queries, threads)
    with ThreadPoolExecutor(threads) as pool:
        for setting in wanted:
            told = parameters(index, k, search, setting)
            answered = pool.map(lambda rows, told=told: index.engine.answer(rows, told).ids, blocks)
            yield setting, np.concatenate(list(answered))


def of_everything(
    everything: Everything, queries: FloatArray, ks: Sequence[int], threads: int
) -> dict[int, dict[Setting, IntArray]]:
    """Return the results (nq, k) of the exhaustive greedy for every k at every setting."""
    kept = max(1, _KEPT_BYTES // int(4 * everything.points.shape[0]))
    column = lru_cache(kept)(everything.products_with)
    wanted = settings()
    picks = {k: {each: np.empty((len(queries), k), np.int64) for each in wanted} for k in ks}

    def answer(number: int) -> None:
        near = everything.products(queries[number])
        for setting in wanted:
            if setting.variant == "corrected":
                # Its steps do not depend on k: the picks of a smaller k come first.
                rows = _greedy(near, column, setting, max(ks))
                for k in ks:
                    picks[k][setting][number] = rows[:k]
            else:
                for k in ks:
                    picks[k][setting][number] = _greedy(near, column, setting, k)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(answer, range(len(queries))))
    return picks


def _greedy(
    near: FloatArray, column: Callable[[int], FloatArray], setting: Setting, k: int
) -> list[int]:
    """Pick k by the products (n,) of a query with all points, and the columns of its picks."""
    alike = np.zeros_like(near)
    last, picked = alike, []
    for step in range(k):
        picked.append(next_pick(near, alike, last, _weight(setting, step, k)))
        last = column(picked[-1])
    return picked


def _weight(setting: Setting, step: int, k: int) -> np.float32:
    """Return what a product with a pick weighs against one with the query."""
    if step == 0:
        return np.float32(0)
    odds = setting.diversity / (1 - setting.diversity)
    return np.float32(2 * odds / (k - 1) if setting.variant == "marginal" else odds / step)


@kernel
def next_pick(near: FloatArray, alike: FloatArray, last: FloatArray, weight: np.float32) -> int:
    """Add `last`, the products with the last pick, to `alike`, and return the next pick."""
    best, most = -1, np.float32(-np.inf)
    for row in range(near.shape[0]):
        alike[row] += last[row]
        value = near[row] - weight * alike[row]
        if value > most:
            best, most = row, value
    # Minus infinity from now on, or not a number: never the largest again.
    alike[best] = np.float32(np.inf)
    return best
