"""Table 2 measured on one data set: indexes built and asked in this process, on one thread.

A label model is trained once and chooses its parameters on rows held out of the training. The other
builds get these parameters, and train the same model.
"""

import math
from collections.abc import Iterator
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np

from divgrpc import Index
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.evaluation.label_running import evaluate_labels
from divgrpc.types import Mode
from divgrpc_lab.data.documents import Split
from divgrpc_lab.experiment import steps
from divgrpc_lab.table2.methods import (
    BY_HIERARCHY,
    DEFAULT,
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
# The dial of the curves against epsilon: fixed, so that epsilon alone changes.
EPSILON_DIAL: Final = 0.3


class AtEpsilon(NamedTuple):
    """Means of P, D and h at a hash_limit by epsilon; `epsilon` None: every label scored."""

    data: str
    method: str
    mode: Mode
    epsilon: float | None
    hash_limit: int
    precision: float
    drank: float
    h_score: float


class LabelBench:
    """One data set and at most `documents` of its test documents, a seeded draw."""

    def __init__(self, split: Split, documents: int) -> None:
        self._split = split.with_features()
        self.name = split.name
        rows = np.random.default_rng(0).permutation(self._split.asked.shape[0])[:documents]
        rows.sort()
        self._asked, self._truth = self._split.asked[rows], self._split.truth[rows]
        self.documents = len(rows)
        self._model: dict[str, Any] = {}
        self.curves: list[AtEpsilon] = []

    def rows(self) -> Iterator[LabelRow]:
        """Yield every row of the table, and add points to `curves` where there is a hierarchy."""
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
            index, self._asked, self._truth, grid=case.grid(), folds=5, per_document=True
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
        """Ask at one dial, without a threshold, through tables with a hash_limit by epsilon."""
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
        [row] = evaluate_labels(index, self._asked, self._truth, grid=grid, folds=0)
        figures = (row.metrics[name].value for name in ("precision", "drank", "h_score"))
        return AtEpsilon(self.name, method, mode, epsilon, limit, *figures)
