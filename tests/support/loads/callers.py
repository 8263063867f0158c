"""Callers that query an index on shards, and compare each answer with that of one index."""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from typing import Any, Final

import numpy as np

from divgrpc import Index
from divgrpc.errors import DivgrpcError
from divgrpc.types import FloatArray, Progress, QueryResult
from divgrpc_client import Client, RpcError
from support.data.divided_indexes import differences

INDEX: Final = "digits"
_DEADLINE_SECONDS: Final = 30.0
_STEADY_SECONDS: Final = 2.0


class Callers:
    """Callers that query without a pause, one with `allow_partial` and one without."""

    def __init__(
        self, connect: Callable[..., Client], queries: np.ndarray, whole: list[QueryResult]
    ) -> None:
        """Take what makes a client with options, the queries, and the answers of one index."""
        self._connect, self._queries, self._whole = connect, queries, whole
        self._is_over, self._lock = Event(), Lock()
        self._counts: Counter[str] = Counter()
        self._slowest_seconds = 0.0
        self._errors: set[str] = set()

    def check(self, title: str, act: Callable[[], None], *, may_lack: bool = False) -> bool:
        """Call `act` under load, say what callers saw, and return whether it is what they may see.

        may_lack: whether shards may be missing. Then queries are refused with SHARDS_MISSING, or
            answered in part where the caller allows it.
        """
        with ThreadPoolExecutor(2) as pool:
            tasks = [pool.submit(self._ask, allow_partial=partial) for partial in (False, True)]
            try:
                time.sleep(_STEADY_SECONDS)
                act()
                time.sleep(_STEADY_SECONDS)
            finally:
                self._is_over.set()
            for task in tasks:
                task.result()
        counts = self._counts
        words = ", ".join(f"{counts[word]} {word}" for word in ("lost", "wrong", "partial"))
        refused = f", {counts['refused']} refused" if may_lack else ""
        say(
            f"{title}: {counts.total()} queries, {words}{refused},"
            f" slowest {self._slowest_seconds:.2f} s, load average {os.getloadavg()[0]:.1f}"
        )
        for error in sorted(self._errors):
            say(f"    {error}")
        lacks = counts["refused"] + counts["partial"]
        return not (counts["lost"] or counts["wrong"] or (lacks and not may_lack))

    def _ask(self, *, allow_partial: bool) -> None:
        position = len(self._queries) // 2 * allow_partial
        with self._connect(timeout=_DEADLINE_SECONDS, retries=False) as client:
            while not self._is_over.is_set():
                position = (position + 1) % len(self._queries)
                start = time.monotonic()
                outcome = self._outcome(client, position, allow_partial=allow_partial)
                seconds = time.monotonic() - start
                with self._lock:
                    self._counts[outcome] += 1
                    self._slowest_seconds = max(self._slowest_seconds, seconds)

    def _outcome(self, client: Client, position: int, *, allow_partial: bool) -> str:
        query = self._queries[position]
        try:
            answer = client.query(INDEX, query, k=10, allow_partial=allow_partial)
        except DivgrpcError as error:
            with self._lock:
                self._errors.add(getattr(error, "detail", str(error))[:120])
            is_refused = isinstance(error, RpcError) and error.reason == "SHARDS_MISSING"
            return "refused" if is_refused else "lost"
        if answer.missing_shards:
            return "partial" if allow_partial and answer.coverage < 1 else "wrong"
        return "equal" if _are_equal(answer, self._whole[position]) else "wrong"


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _stages() -> Callable[[Progress], None]:
    """Return what prints each stage of a build once."""
    stages: set[str] = set()

    def show(progress: Progress) -> None:
        if progress.stage not in stages:
            stages.add(progress.stage)
            say(f"    {progress.stage}")

    return show


def build(
    client: Client,
    name: str,
    points: FloatArray,
    queries: FloatArray,
    progress: Callable[[Progress], None] | None = None,
    **options: Any,  # noqa: ANN401  # as Client.build's
) -> tuple[list[QueryResult], bool]:
    """Build an index on shards; return the answers of one index, and whether all are the same.

    progress: is called with the progress of the build; by default, its stages are printed.
    """
    say(f"building {name}: {len(points):,} points, {points.shape[1]} dimensions")
    client.build(name, points, progress=progress or _stages(), **options)
    index = Index.build(points, **options)
    whole = [index.query(query, k=10) for query in queries]
    answers = [client.query(name, query, k=10) for query in queries]
    equal = sum(map(_are_equal, answers, whole))
    say(f"    {equal} of {len(queries)} answers have the bytes of one index")
    return whole, equal == len(queries)


def _are_equal(answer: QueryResult, whole: QueryResult) -> bool:
    """Return whether an answer has the bytes of one index."""
    return not {*differences(answer, whole)} - {"dial_reasons"}
