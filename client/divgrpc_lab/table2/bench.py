"""Measures Table 2 in this process, one document at a time on one thread.

For each data set, the first build trains a label model and chooses its parameters on held-out rows.
The other builds get these parameters and train the same model.

Times at the paper's size are measured on synthetic documents (`data.synthetic`). In the mode
`embedding` the planted model of the paper's rank is used, so nothing is trained, and the documents
are embedded beforehand. In the mode `neighbour_vote` the sparse documents are indexed. Each method
scores either all labels or documents, or those that hashing finds.
"""

import math
import time
from collections.abc import Iterator
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from divgrpc import Index
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.evaluation.label_running import evaluate_labels
from divgrpc.types import FloatArray, Mode
from divgrpc_lab.data.documents import Split
from divgrpc_lab.experiment import steps
from divgrpc_lab.table2.methods import (
    BY_HIERARCHY,
    DEFAULT,
    EVERYTHING,
    FAMILIES,
    MODES,
    PAPERS,
    TOP_K,
    WITHOUT_HASHING,
    Case,
    LabelRow,
    build_options,
)

EPSILONS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
# Diversity of the curves against epsilon. It is fixed so that only epsilon varies.
EPSILON_DIAL: Final = 0.3


class AtEpsilon(NamedTuple):
    """Means of P, D and h at the hash_limit of one epsilon.

    `epsilon` is None if all labels were scored.
    """

    data: str
    method: str
    mode: Mode
    epsilon: float | None
    hash_limit: int
    precision: float
    drank: float
    h_score: float


class LabelBench:
    """One data set and at most `documents` of its test documents, drawn with a fixed seed."""

    def __init__(self, split: Split, documents: int) -> None:
        self._split = split.with_features()
        self.name = split.name
        rows = np.random.default_rng(0).permutation(self._split.test_documents.shape[0])[:documents]
        rows.sort()
        self._documents, self._truth = self._split.test_documents[rows], self._split.truth[rows]
        self.documents = len(rows)
        self._model: dict[str, Any] = {}
        self.curves: list[AtEpsilon] = []

    def rows(self) -> Iterator[LabelRow]:
        """Yield every row of the table; if there is a hierarchy, also add points to `curves`."""
        has_hierarchy = self._split.hierarchy is not None
        index = self._built("LSH-SDiv", DEFAULT)
        for case in (*WITHOUT_HASHING, *(BY_HIERARCHY if has_hierarchy else ())):
            yield self._row(index, case)
        if has_hierarchy:
            self.curves.append(self._at(index, "LEML", "embedding", None))
        for family, setting in steps([*product(FAMILIES, (PAPERS, DEFAULT))], self.name):
            index = self._built(family, setting)
            for mode in MODES:
                yield self._row(index, Case(family, mode, setting))
            if setting == PAPERS and family != "PCA-Hash" and has_hierarchy:
                points = product(MODES, EPSILONS)
                self.curves += [self._at(index, family, *point) for point in points]

    def _built(self, family: str, setting: str) -> Index:
        split = self._split
        options = self._model | build_options(family, setting, split.documents.shape[1])
        if split.hierarchy is not None:
            options |= {"hierarchy": split.hierarchy, "roots": split.roots}
        index = Index.build(split.documents, labels=split.labels, label_model="leml", **options)
        section = index.engine.manifest.labels
        if section is not None and section.parameters is not None:
            names = ("rank", "regularisation", "iterations")
            self._model = {name: getattr(section.parameters, name) for name in names}
        return index

    def _row(self, index: Index, case: Case) -> LabelRow:
        rows = evaluate_labels(
            index, self._documents, self._truth, grid=case.grid(), folds=5, per_document=True
        )
        [result] = (row for row in rows if row.by_fold)
        section = index.engine.manifest.labels
        factors = section.index if section is not None and case.mode == "embedding" else None
        if section is None or factors is None:
            return LabelRow(self.name, case, result, index.rows)
        is_same = (
            case.method == "LSH-SDiv" and (factors.parameters.n_components or 0) >= section.rank
        )
        return LabelRow(self.name, case, result, factors.rows, is_same)

    def _at(self, index: Index, method: str, mode: Mode, epsilon: float | None) -> AtEpsilon:
        """Measure a search through tables with the hash_limit of an epsilon.

        There is no threshold, and the diversity is fixed. If `epsilon` is None, nearest neighbours
        by exact search are measured.
        """
        count = self._split.labels.shape[1] if mode == "embedding" else index.rows
        limit = 0
        if epsilon is not None:
            rule = math.ceil(2 * count ** (1 / (1 + epsilon)))
            limit = max(TOP_K, LabelGrid().neighbours, rule)
        grid = LabelGrid(
            modes=(mode,),
            selectors=("nearest" if epsilon is None else "greedy",),
            searches=("exact" if epsilon is None else "tables",),
            limits=((limit, 0),),
            diversities=(EPSILON_DIAL,),
            top_ks=(TOP_K,),
        )
        [row] = evaluate_labels(index, self._documents, self._truth, grid=grid, folds=0)
        figures = (row.metrics[name].value for name in ("precision", "drank", "h_score"))
        return AtEpsilon(self.name, method, mode, epsilon, limit, *figures)


# Name of the setting of an exact search that scores rows in descending order of norm and stops when
# no further row can be better.
ENDS_EARLY: Final = "exact, ends early"
_DIAL: Final = 0.3
# Number of documents for exhaustive methods, which are slow.
_SLOW_DOCUMENTS: Final = 20


class LabelTime(NamedTuple):
    """Median time per document in microseconds, P@5, and the share of candidates that was scored.

    `candidates` is the number of labels, or in the mode `neighbour_vote` of documents, that could
    be scored. `documents` is the number of test documents.
    """

    method: str
    mode: Mode
    setting: str
    candidates: int
    documents: int
    microseconds: float
    precision: float
    scored: float


def label_times(split: Split, embedded: FloatArray, factors: FloatArray) -> Iterator[LabelTime]:
    """Yield the times of every method in the mode `embedding`, then in `neighbour_vote`.

    `embedded` (nq, r) are the embedded test documents and `factors` (L, r) the label factors of the
    planted model. Building an index of all documents takes up to a minute. Only one index is in
    memory at a time.
    """
    yield _every_label(split, embedded, factors)
    model = (factors, np.eye(factors.shape[1], dtype=np.float32))
    sources: dict[Mode, tuple[Any, Any, dict[str, Any]]] = {
        "embedding": (embedded, embedded, {"label_model": model}),
        "neighbour_vote": (split.documents, split.test_documents, {"labels": split.labels}),
    }
    for mode in MODES:
        rows, tests, options = sources[mode]
        cases = [case for case in WITHOUT_HASHING if case.mode == mode]
        for family, setting in steps([*product(FAMILIES, (PAPERS, DEFAULT))], f"times, {mode}"):
            hashing = build_options(family, setting, rows.shape[1])
            index = Index.build(rows, **options, **hashing)
            candidates = split.labels.shape[1] if mode == "embedding" else index.rows
            for case in (*cases, Case(family, mode, setting)):
                yield _timed(index, case, tests, split.truth, candidates)
            cases = []


def _every_label(split: Split, embedded: FloatArray, factors: FloatArray) -> LabelTime:
    """Time LEML: the products of a document with all labels, and the selection of the best."""
    seconds, hits, count = [], 0.0, len(embedded)
    with threadpool_limits(1):
        for row in range(count):
            begin = time.perf_counter()
            products = factors @ embedded[row]
            best = np.argpartition(products, -TOP_K)[-TOP_K:]
            seconds.append(time.perf_counter() - begin)
            hits += float(split.truth[[row]][:, best].sum()) / TOP_K
    figures = (float(np.median(seconds)) * 1e6, hits / count, 1.0)
    return LabelTime("LEML", "embedding", EVERYTHING, len(factors), count, *figures)


def _timed(index: Index, case: Case, tests: Any, truth: Any, candidates: int) -> LabelTime:
    slow = case.setting == EVERYTHING and case.selector != "nearest"
    rows = slice(_SLOW_DOCUMENTS if slow else None)
    grid = case.grid(thresholds=(None,), diversities=(_DIAL,))
    [row] = evaluate_labels(index, tests[rows], truth[rows], grid=grid, folds=0)
    setting = ENDS_EARLY if case.method == "LEML" else case.setting
    figures = (row.microseconds.p50, row.precision_at[TOP_K - 1].value, row.scored / candidates)
    return LabelTime(case.method, case.mode, setting, candidates, row.documents, *figures)
