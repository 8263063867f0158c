"""Gain share: how much of what diversity can gain in h hashing keeps, and how much faster.

Hyperplane queries on sets with sub-topics, 50 a category. Everyone's dial, variant and limits are
chosen by folds, the baseline's too. A row at default limits, and one at the smallest part of them
that keeps 0.95 of the gain on the other folds; h is the mean over the hash seeds. Times are of one
query at a time on one thread, in turns; *hash* is the part spent on projections.
"""

import argparse
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import gain_rows, sweeps, topics
from benchmarks.exhaustive import Everything
from benchmarks.gain_rows import EVERYTHING, EXACT, Ready, Row
from benchmarks.sweeps import Setting
from benchmarks.tables import facts, show
from divgrpc.errors import UnsupportedError
from divgrpc.index import Index, warm_kernels
from divgrpc.types import HashFamily, IntArray, Search
from divgrpc_client.reports.measures import Quality

FAMILIES: Final[tuple[HashFamily, ...]] = ("lsh_div", "lsh_sdiv", "pca_hash", "cells", "auto")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    sets = list(topics.SETS)
    parser.add_argument("--sets", nargs="+", default=sets, choices=sets, help="(default all)")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--k", type=int, nargs="+", default=[10, 20, 30])
    parser.add_argument("--per-category", type=int, default=50, help="queries (default 50)")
    parser.add_argument("--seeds", type=int, default=5, help="of the hash (default 5)")
    parser.add_argument("--timed", type=int, default=120, help="queries timed (default 120)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of what is not timed")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print a table for each set and k, and return the rows for JSON."""
    warm_kernels()
    described: list[dict[str, str]] = []
    rows: list[Row] = []
    for data in topics.load(arguments.sets):
        show(f"\n## Gain share: {data.name}\n")
        described.append(data.described())
        show(facts(described[-1]) + "\n")
        with threadpool_limits(1):
            comparison = _Comparison(data, arguments)
            comparison.ask_everyone()
            for k in arguments.k:
                rows += gain_rows.compare(data.name, k, comparison.ready(k), arguments.timed)
    return {"data": described, "rows": [asdict(row) for row in rows]}


class _Comparison:
    """One set: everyone's answers at every setting, and the indexes of the first seed."""

    def __init__(self, data: topics.Topics, arguments: argparse.Namespace) -> None:
        self._data, self._told = data, arguments
        self._asked = data.queries(arguments.per_category)
        self._everything = Everything.of(data.points)
        self._indexes: dict[str, Index] = {}
        self._measured: dict[tuple[int, str], gain_rows.Measured] = {}

    def ask_everyone(self) -> None:
        """Let everyone answer every query at every setting."""
        begun = time.monotonic()
        queries, threads = self._asked.queries, self._told.threads
        for k in self._told.k:
            self._note(k, EVERYTHING, sweeps.of_everything(self._everything, queries, k, threads))
        for family in self._told.families:
            try:
                chosen = self._ask(family)
            except UnsupportedError as error:
                show(f"{family}: {error}")
            else:
                if family == "auto":
                    show(f"auto chose {', '.join(f'{name} ({n})' for name, n in chosen.items())}")
        show(f"{len(queries)} queries, {time.monotonic() - begun:.0f} s\n")

    def ready(self, k: int) -> Ready:
        """Return what the rows of one k are made from."""
        measured = {name: each for (of, name), each in self._measured.items() if of == k}
        return Ready(self._asked, self._everything, self._indexes, measured)

    def _ask(self, family: HashFamily) -> Counter[str]:
        """Let the indexes of a family answer, one per seed; returns what Build made of its name."""
        chosen: Counter[str] = Counter()
        for seed in range(self._told.seeds):
            index = Index.build(self._data.points, hash_family=family, seed=seed)
            chosen[str(index.info.parameters["hash_family"])] += 1
            if not self._indexes:
                self._answer(index, EXACT, "exact", sweeps.PARTS[:1])
            self._indexes.setdefault(family, index)
            self._answer(index, family, "auto", sweeps.PARTS)
        return chosen

    def _answer(self, index: Index, name: str, search: Search, parts: Sequence[float]) -> None:
        queries, threads = self._asked.queries, self._told.threads
        for k in self._told.k:
            answers = sweeps.of_index(index, queries, k, search, parts=parts, threads=threads)
            self._note(k, name, answers)

    def _note(self, k: int, name: str, answers: Iterator[tuple[Setting, IntArray]]) -> None:
        """Add the measures of one hash seed's answers to those of the seeds before."""
        labels = self._data.labels
        every = np.arange(len(labels.categories))
        seeds = 1 if name in (EVERYTHING, EXACT) else self._told.seeds
        measured = self._measured.setdefault((k, name), {})
        for setting, ids in answers:
            found = Quality.of(ids, self._asked.asked, labels, every)
            values = np.array([found.precision, found.subtopic_recall, found.diversity, found.h])
            measured[setting] = measured.get(setting, np.zeros_like(values)) + values / seeds
