"""Gain share: how much of what diversity can gain in h hashing keeps, and how much faster.

Hyperplane queries on sets with sub-topics, 50 a category. Everyone's dial and variant are chosen by
folds, the baseline's too, ours with the first of the hash seeds; h is the mean over all seeds. One
row is at default limits, one has limits by folds: the smallest of a quarter, half, all and twice
the default ones that reach the exhaustive greedy's h on the other folds, or what comes nearest.
Times are of one query at a time on one thread, in turns; *hash* is the part spent on projections.
The search is what Build chose, but never the exact one, which hashes nothing: then a scan. Cells
are looked up, whatever Build chose. On dense sets randomised KD-trees take part where OpenCV is
installed, with our default number of candidates and no limits to choose.
"""

import argparse
import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from itertools import product

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import gain_rows, gain_summary, sweeps, trees
from benchmarks.exhaustive import Everything
from benchmarks.families import add_families
from benchmarks.gain_rows import EVERYTHING, EXACT, Measured, Ready, Row
from benchmarks.shares import Choice
from benchmarks.sweeps import Setting
from benchmarks.tables import facts, show
from benchmarks.trees import Trees
from divgrpc.errors import UnsupportedError
from divgrpc.index import Index
from divgrpc.metrics import h_score, judge, normalised_entropy, precision, subtopic_recall
from divgrpc.types import HashFamily, IntArray, Search
from divgrpc.warmup import warm_kernels
from divgrpc_lab.data import topics


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    sets = list(topics.SETS)
    parser.add_argument("--sets", nargs="+", default=sets, choices=sets, help="(default all)")
    add_families(parser)
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
            rows += comparison.rows()
    show("Kept of the gain at default limits, with the 95 % interval; h where there is none\n")
    show(gain_summary.kept(rows) + "\n")
    show("Time of the fastest LSH family that keeps 0.9\n")
    show(gain_summary.costs(rows) + "\n")
    return {"data": described, "rows": [asdict(row) for row in rows]}


class _Comparison:
    """One set: everyone's answers, and the indexes of the first seed."""

    def __init__(self, data: topics.Topics, arguments: argparse.Namespace) -> None:
        self._data, self._told = data, arguments
        self._asked = data.queries(arguments.per_category)
        self._everything = Everything.of(data.points)
        self._indexes: dict[str, Index] = {}
        self._trees: dict[str, Trees] = {}
        # By k and contestant, one for each hash seed.
        self._measured: dict[tuple[int, str], list[Measured]] = {}
        # By k, contestant and part of the default limits.
        self._choices: dict[int, dict[str, dict[float, Choice]]] = {}

    def ask_everyone(self) -> None:
        """Let everyone answer: at every setting, then with the other seeds at what was chosen."""
        begun = time.monotonic()
        told = self._told
        everything = self._everything
        picks = sweeps.of_everything(everything, self._asked.queries, told.k, told.threads)
        for k, answers in picks.items():
            self._note(k, EVERYTHING, answers.items())
        for family in self._told.families:
            try:
                self._ask_first(family)
            except UnsupportedError as error:
                show(f"{family}: {error}")
        self._ask_trees()
        for k in self._told.k:
            self._choices[k] = gain_rows.dials(self._ready(k))
        for family in filter(self._indexes.get, self._told.families):
            self._ask_others(family)
        show(f"{len(self._asked.queries)} queries, {time.monotonic() - begun:.0f} s\n")

    def rows(self) -> list[Row]:
        """Time what was chosen, print and return the rows."""
        return [
            row
            for k in self._told.k
            for row in gain_rows.compare(self._ready(k), self._choices[k], self._told.timed)
        ]

    def _ready(self, k: int) -> Ready:
        measured = {name: each for (of, name), each in self._measured.items() if of == k}
        return Ready(
            self._data.name, k, self._asked, self._everything, self._indexes, measured, self._trees
        )

    def _ask_first(self, family: HashFamily) -> None:
        index = Index.build(self._data.points, hash_family=family)
        if not self._indexes:
            for k in self._told.k:
                self._answer(index, EXACT, k, "exact", sweeps.settings())
        self._indexes[family] = index
        wanted = [setting for part in sweeps.PARTS for setting in sweeps.settings(part)]
        for k in self._told.k:
            self._answer(index, family, k, sweeps.hashed(index, family), wanted)

    def _ask_trees(self) -> None:
        first = next(iter(self._indexes.values()))
        if first.info.points != "dense" or trees.missing():
            why = "cv2 is not installed" if trees.missing() else "points are sparse"
            show(f"no {trees.NAME}: {why}")
            return
        self._trees = Trees.over(first)
        for (name, each), k in product(self._trees.items(), self._told.k):
            found = [each.nearest(query[None], k) for query in self._asked.queries]
            answers = (
                (setting, np.array([each.pick(among, k, setting) for among in found]))
                for setting in sweeps.settings()
            )
            self._note(k, name, answers)

    def _ask_others(self, family: HashFamily) -> None:
        """Let the indexes of the other seeds answer at the settings chosen with the first."""
        became = Counter([str(self._indexes[family].info.parameters["hash_family"])])
        search = sweeps.hashed(self._indexes[family], family)
        for seed in range(1, self._told.seeds):
            index = Index.build(self._data.points, hash_family=family, seed=seed)
            became[str(index.info.parameters["hash_family"])] += 1
            for k, choices in self._choices.items():
                wanted = set().union(*(each.settings for each in choices[family].values()))
                self._answer(index, family, k, search, wanted)
        if family == "auto":
            show(f"auto became {', '.join(f'{name} ({n})' for name, n in became.items())}")

    def _answer(
        self, index: Index, name: str, k: int, search: Search, wanted: Iterable[Setting]
    ) -> None:
        queries, threads = self._asked.queries, self._told.threads
        answers = sweeps.of_index(index, queries, k, search, wanted=wanted, threads=threads)
        self._note(k, name, answers)

    def _note(self, k: int, name: str, answers: Iterable[tuple[Setting, IntArray]]) -> None:
        """Keep the measures of one hash seed's answers."""
        measured: Measured = {}
        for setting, ids in answers:
            judged = judge(ids, self._asked.asked, self._data.labels)
            kinds = (precision, subtopic_recall, normalised_entropy, h_score)
            measured[setting] = np.array([kind(judged) for kind in kinds])
        self._measured.setdefault((k, name), []).append(measured)
