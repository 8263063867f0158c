"""Pages: repeats under live writes, what late pages cost, and sizes of tokens."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from benchmarks.harness.datasets import Manifold
from benchmarks.harness.runner import Output, Table
from divgrpc import Collection, Index
from divgrpc.search import stepwise
from divgrpc.search.shown_sums import KeptSums
from divgrpc.types import FloatArray

_K: Final = 10
_SELECTORS: Final[dict[str, dict[str, Any]]] = {
    "greedy, marginal": {},
    "greedy, corrected": {"variant": "corrected"},
    "mmr": {"selector": "mmr"},
    "max_sum": {"selector": "max_sum"},
    "dpp": {"selector": "dpp"},
    "nearest": {"selector": "nearest"},
}


def rows(small: bool) -> Iterator[Output]:  # as all parts have it
    """Yield the tables of this part."""
    manifold = Manifold.of()
    pages = 20 if small else 1_000
    yield Table(
        f"Pages of {_K} to the end, with writes after each of the first {pages:,}",
        {"goals": "0 repeats, 0 missed"},
    )
    yield _live(manifold.points(600 if small else 18_400), manifold.queries(1), pages)
    points, turns = (3_000, 12) if small else (200_000, 100)
    yield Table(
        f"Pages of {_K} of {points:,} points",
        {"goal": f"page {turns} in at most 4 times the time of page 1"},
    )
    index = Index.build(manifold.points(points), hash_family="cells")
    queries = manifold.queries(2 if small else 16)
    for name, options in _SELECTORS.items():
        yield {"selector": name, **_times(index, queries, turns, options)}


def _live(vectors: FloatArray, query: FloatArray, pages: int) -> dict[str, int]:
    """Page while points are written and deleted."""
    rng, count = np.random.default_rng(0), len(vectors) // 2
    stayed, ids = list(range(count)), list[int]()
    token, turns = None, 0
    with (
        tempfile.TemporaryDirectory() as folder,
        Collection.build(vectors[:count], path=Path(folder) / "live") as collection,
    ):
        while token != "":
            page = collection.query(query, k=_K, paged=True, page_token=token, keep_duplicates=True)
            ids += page.ids[0, : page.counts[0]].tolist()
            token, turns = page.next_page_token, turns + 1
            if turns <= pages:
                # A point that is deleted and written again may be on a page or not.
                gone = stayed.pop(int(rng.integers(len(stayed))))
                collection.delete(gone)
                sources = rng.integers(len(vectors), size=2)
                collection.upsert([count + turns, gone], vectors[sources])
    return {
        "pages": turns,
        "points shown": len(ids),
        "repeats": len(ids) - len(set(ids)),
        "missed": len(set(stayed) - set(ids)),
    }


def _times(
    index: Index, queries: FloatArray, turns: int, options: dict[str, Any]
) -> dict[str, float | int]:
    """Measure the median times of the first and the last page, in milliseconds.

    A page is cold if the process keeps no sums of the pages before, as after a restart.
    """
    cold: list[float] = []
    times: list[list[float]] = []
    sizes: list[int] = []
    for row in range(len(queries)):
        token = None
        times.append([])
        for turn in range(turns):
            start = time.perf_counter()
            page = index.query(queries[row], k=_K, paged=True, page_token=token, **options)
            times[-1].append(1e3 * (time.perf_counter() - start))
            token = page.next_page_token
            if turn == 9:
                sizes.append(len(token))
            if turn == turns - 2:
                cold.append(_cold(index, queries[row], token, options))
    first, last = (median(row[place] for row in times) for place in (0, turns - 1))
    return {
        "page 1, ms": first,
        f"page {turns}, ms": last,
        "ratio": last / first,
        f"page {turns}, cold, ms": median(cold),
        "bytes of a token after 10 pages": max(sizes),
    }


def _cold(index: Index, query: FloatArray, token: str, options: dict[str, Any]) -> float:
    """Return the time in milliseconds of a page after pages that are not kept."""
    with patch.object(stepwise, "KEPT", KeptSums()):
        start = time.perf_counter()
        index.query(query, k=_K, paged=True, page_token=token, **options)
        return 1e3 * (time.perf_counter() - start)
