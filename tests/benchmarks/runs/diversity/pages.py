"""Pages: repeats under live writes, what late pages cost, and sizes of tokens."""

import itertools
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
from divgrpc.search import kept_candidates, stepwise
from divgrpc.search.kept_candidates import KeptCandidates
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
    yield Table(
        f"Pages of {_K} to the end by readers one after another, with writes after each page",
        {"goals": "0 repeats, 0 missed"},
    )
    yield _live(manifold.points(200 if small else 2_000), manifold.queries(2 if small else 8))
    points, turns = (3_000, 12) if small else (200_000, 100)
    yield Table(
        f"Pages of {_K} of {points:,} points",
        {"goal": f"page {turns} in at most 4 times the time of page 1"},
    )
    index = Index.build(manifold.points(points), hash_family="cells")
    queries = manifold.queries(2 if small else 16)
    for name, options in _SELECTORS.items():
        yield {"selector": name, **_times(index, queries, turns, options)}


def _live(vectors: FloatArray, queries: FloatArray) -> dict[str, int]:
    """Let one reader after the other page to the end, while points are written and deleted."""
    rng, count = np.random.default_rng(0), len(vectors) // 2
    live, pages, shown, repeats, missed = list(range(count)), 0, 0, 0, 0
    selectors = itertools.cycle(_SELECTORS.values())
    with (
        tempfile.TemporaryDirectory() as folder,
        Collection.build(vectors[:count], path=Path(folder) / "live") as collection,
    ):
        for query, options in zip(queries, selectors, strict=False):
            stayed, ids, token = {*live}, list[int](), None
            while token != "":
                page = collection.query(
                    query, k=_K, paged=True, page_token=token, keep_duplicates=True, **options
                )
                ids += page.ids[0, : page.counts[0]].tolist()
                token, pages = page.next_page_token, pages + 1
                # A point that is deleted and written again may be on a page or not.
                gone = live[int(rng.integers(len(live)))]
                collection.delete(gone)
                collection.upsert(
                    [count + pages, gone], vectors[rng.integers(len(vectors), size=2)]
                )
                live.append(count + pages)
                stayed.discard(gone)
            shown += len(ids)
            repeats += len(ids) - len(set(ids))
            missed += len(stayed - set(ids))
    return {"pages": pages, "points shown": shown, "repeats": repeats, "missed": missed}


def _times(
    index: Index, queries: FloatArray, turns: int, options: dict[str, Any]
) -> dict[str, float | int]:
    """Measure the median times of the first and the last page, in milliseconds.

    A page is cold if the process keeps nothing of the pages before, as after a restart.
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
    sums = patch.object(stepwise, "KEPT", KeptSums())
    with sums, patch.object(kept_candidates, "KEPT", KeptCandidates()):
        start = time.perf_counter()
        index.query(query, k=_K, paged=True, page_token=token, **options)
        return 1e3 * (time.perf_counter() - start)
