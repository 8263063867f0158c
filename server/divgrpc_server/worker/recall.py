"""Measures the recall of a share of the queries, while the worker has nothing else to do.

Theory of operation. The recall of a query is the share of its k nearest points that are among the
candidates that its search result. Its selector does not matter: the search is repeated with the
selector `nearest`, which takes the nearest of the same candidates, and compared with an exact
search.

An exact search may take long, so it is done in blocks of rows, and a block aims at
`_BLOCK_SECONDS`. The worker looks for requests before each block, so a sample delays a query by one
block at most. A worker spends at most `_TIME_SHARE_MAX` of its time on samples, and drops further
ones.
"""

import math
import random
import time
from dataclasses import replace
from typing import Final

import numpy as np

from divgrpc.engine import Engine
from divgrpc.parameters import QueryParameters
from divgrpc.types import QueryResult
from divgrpc.vectors import Rows
from divgrpc_server.logging.logs import Logger
from divgrpc_server.monitoring.page import Page

_BLOCK_SECONDS: Final = 0.004
# Stored values in the first block. Later blocks follow from the time that it took.
_FIRST_BLOCK_VALUES: Final = 2**17
_TIME_SHARE_MAX: Final = 0.05


class Sample:
    """One row of a query, whose recall is measured step by step."""

    def __init__(self, index: Engine, row: Rows, parameters: QueryParameters) -> None:
        """Take a query (1, d) of an index, and its parameters without open defaults."""
        self._index, self._row = index, row
        effective = index.resolve(parameters, row)
        self._plain = QueryParameters(
            k=parameters.k,
            selector="nearest",
            diversity=0.0,
            search=parameters.search,
            hash_limit=effective.hash_limit,
            candidates_limit=effective.candidates_limit,
            n_probes=parameters.n_probes,
            sampling=parameters.sampling,
            seed=parameters.seed,
            max_distance=parameters.max_distance,
            keep_duplicates=True,
        )
        self._exact = replace(
            self._plain,
            search="exact",
            hash_limit=0,
            candidates_limit=parameters.k,
            n_probes=None,
        )
        self._points = index.searched_rows(None)
        self._count = len(self._points.flags)
        self._next_row, self._block_rows = 0, max(1, _FIRST_BLOCK_VALUES // index.widest_row)
        # Scores, smaller ones nearer, and ids of the nearest points so far.
        self._nearest: list[tuple[float, object]] = []

    def step(self) -> float | None:
        """Search one more block; return the recall after the last one.

        Returns NaN if there is no nearest point.
        """
        start = time.monotonic()
        stop = min(self._count, self._next_row + self._block_rows)
        block = self._points.part(self._next_row, stop)
        if block.count:
            self._merge(self._index.answer(self._row, self._exact, block))
        self._next_row = stop
        seconds = time.monotonic() - start
        self._block_rows = max(1, int(self._block_rows * min(4.0, _BLOCK_SECONDS / seconds)))
        return self._recall() if stop == self._count else None

    def _merge(self, result: QueryResult) -> None:
        sign = 1.0 if self._index.metric == "euclidean" else -1.0
        count = int(result.counts[0])
        scores, ids = result.scores[0, :count].tolist(), result.ids[0, :count].tolist()
        self._nearest += zip((sign * score for score in scores), ids, strict=True)
        # The sort is stable, so of equal scores the smaller row wins, as in a search.
        self._nearest.sort(key=lambda pair: pair[0])
        del self._nearest[self._exact.k :]

    def _recall(self) -> float:
        nearest = {name for _, name in self._nearest}
        if not nearest:
            return math.nan
        result = self._index.answer(self._row, self._plain)
        ids = result.ids[0, : int(result.counts[0])].tolist()
        return len(nearest.intersection(ids)) / len(nearest)


class RecallSampler:
    """Takes queries of a worker, and measures one at a time."""

    def __init__(self, page: Page, share: float, log: Logger) -> None:
        """Take `share` of the queries, 0 to 1; results go to `page`."""
        self._page, self._share, self._log = page, share, log
        self._name = ""
        self._sample: Sample | None = None
        self._spent_seconds = self._next_time = 0.0

    def offer(self, name: str, index: Engine, rows: Rows, parameters: QueryParameters) -> None:
        """Take one of the rows of a query that was answered, if it is its turn."""
        if self._sample is not None or random.random() >= self._share:  # noqa: S311  # a sample
            return
        if time.monotonic() < self._next_time:
            return
        number = random.randrange(len(rows))  # noqa: S311  # a sample
        row = rows[number : number + 1]
        if isinstance(row, np.ndarray):
            row = row.copy()  # without the other rows of its message
        self._spent_seconds = 0.0
        self._name, self._sample = name, Sample(index, row, parameters)

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return self._sample is not None

    def step(self) -> None:
        """Measure for a few milliseconds; an error ends the sample alone."""
        if self._sample is None:
            return
        start = time.monotonic()
        try:
            recall = self._sample.step()
        except Exception as error:  # noqa: BLE001  # such as an index that was removed
            self._log.debug("a sample of recall failed", index=self._name, reason=str(error))
            recall = math.nan
        now = time.monotonic()
        self._spent_seconds += now - start
        if recall is None:
            return
        self._sample = None
        self._next_time = now + self._spent_seconds * (1 / _TIME_SHARE_MAX - 1)
        if not math.isnan(recall):
            page = self._page
            label = page.index_label(self._name)
            page.summarise(page.cell("divgrpc_sampled_recall", label), recall)
