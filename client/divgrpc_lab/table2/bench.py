"""Table 2 measured on one data set: indexes built and asked in this process, on one thread.

A label model is trained once, with what is not told chosen on rows held out of the training; the
other builds are told what it chose, and train the same one.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import divgrpc
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.evaluation.label_running import evaluate_labels
from divgrpc.types import EvaluateLabelRow, Mode
from divgrpc_lab.data.documents import Split
from divgrpc_lab.experiment import Clock
from divgrpc_lab.table2.rows import (
    BY_HIERARCHY,
    DEFAULT,
    FAMILIES,
    MODES,
    PAPERS,
    TOP_K,
    WITHOUT_HASHING,
    Asking,
    LabelRow,
    built_as,
    chosen,
    hashing,
)

EPSILONS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
# Of the figure against epsilon: fixed, so that epsilon alone changes.
EPSILON_DIAL: Final = 0.3
_HASHED: Final = ("LSH-Div", "LSH-SDiv")
_FIGURES: Final = ("precision", "drank", "h_score")


@dataclass(frozen=True, slots=True)
class AtEpsilon:
    """Means of P, D and h at a hash_limit by epsilon; `epsilon` None: every label scored."""

    data: str
    method: str
    mode: Mode
    epsilon: float | None
    hash_limit: int
    precision: float
    drank: float
    h_score: float


def weight(documents: int) -> float:
    """Return about how long a data set takes, in documents predicted."""
    hashed = [item for f in FAMILIES for s in (PAPERS, DEFAULT) for item in hashing(f, s)]
    points = 1 + len(_HASHED) * len(MODES) * len(EPSILONS)
    return documents * float(
        points + sum(asking.settings for asking in (*WITHOUT_HASHING, *BY_HIERARCHY, *hashed))
    )


class LabelBench:
    """One data set, `documents` of its test documents asked: a seeded draw where it has more."""

    def __init__(self, split: Split, documents: int, clock: Clock) -> None:
        self._split = kept = split.with_features()
        self.name = kept.name
        self._clock = clock
        rows = np.random.default_rng(0).permutation(kept.asked.shape[0])[:documents]
        self._asked, self._truth = kept.asked[np.sort(rows)], kept.truth[np.sort(rows)]
        self.documents = len(rows)
        self._trained: dict[str, Any] = {}
        self._curves: list[AtEpsilon] = []

    def rows(self) -> Iterator[LabelRow]:
        """Yield every row of the table."""
        index = self._built("LSH-SDiv", DEFAULT)
        for asking in WITHOUT_HASHING:
            yield self._row(index, asking)
        if self._split.hierarchy is not None:
            for asking in BY_HIERARCHY:
                yield self._row(index, asking)
            self._curves.append(self._at(index, "LEML", "embedding", None))
        for family in FAMILIES:
            for setting in (PAPERS, DEFAULT):
                index = self._built(family, setting)
                for asking in hashing(family, setting):
                    yield self._row(index, asking)
                if setting == PAPERS and family in _HASHED and self._split.hierarchy is not None:
                    self._curves += [
                        self._at(index, family, mode, epsilon)
                        for mode in MODES
                        for epsilon in EPSILONS
                    ]

    def curves(self) -> list[AtEpsilon]:
        """Return the points against epsilon, once `rows` is through; none without a hierarchy."""
        return self._curves

    def _built(self, family: str, setting: str) -> divgrpc.Index:
        split = self._split
        self._stage(f"building {family}, {setting}")
        options = self._trained | built_as(family, setting, split.documents.shape[1])
        if split.hierarchy is not None:
            options |= {"hierarchy": split.hierarchy, "roots": split.roots}
        index = divgrpc.Index.build(
            split.documents,
            labels=split.labels,
            label_model="leml",
            **options,
        )
        section = index.engine.manifest.labels
        if section is not None and section.parameters is not None:
            used = section.parameters
            self._trained = {n: getattr(used, n) for n in ("rank", "regularisation", "iterations")}
        return index

    def _row(self, index: divgrpc.Index, asking: Asking) -> LabelRow:
        results = self._ask(index, asking.method, asking.grid(), folds=5)
        section = index.engine.manifest.labels
        embedding = asking.mode == "embedding"
        inner = section.index if section is not None else None
        rank = section.rank if section is not None else 0
        among = inner.rows if embedding and inner is not None else index.rows
        same = (
            asking.method == "LSH-SDiv"
            and embedding
            and inner is not None
            and (inner.parameters.n_components or 0) >= rank
        )
        return chosen(self.name, asking, results, among, same_as_lsh_div=same)

    def _at(
        self, index: divgrpc.Index, method: str, mode: Mode, epsilon: float | None
    ) -> AtEpsilon:
        """Ask at one dial, without a threshold, through tables with a hash_limit by epsilon."""
        labels = self._split.labels.shape[1]
        among = labels if mode == "embedding" else index.rows
        limit = 0
        if epsilon is not None:
            limit = max(TOP_K, LabelGrid().neighbours, math.ceil(2 * among ** (1 / (1 + epsilon))))
        grid = {
            "modes": (mode,),
            "selectors": ("nearest" if epsilon is None else "greedy",),
            "searches": ("exact" if epsilon is None else "tables",),
            "limits": ((limit, 0),),
            "diversities": (EPSILON_DIAL,),
            "top_ks": (TOP_K,),
        }
        (row,) = self._ask(index, f"{method} at epsilon {epsilon}", grid, folds=0)
        figures = (row.metrics[name].value for name in _FIGURES)
        return AtEpsilon(self.name, method, mode, epsilon, limit, *figures)

    def _ask(
        self, index: divgrpc.Index, what: str, grid: dict[str, Any], folds: int
    ) -> list[EvaluateLabelRow]:
        self._stage(f"{what}, {MODES[grid['modes'][0]]}")
        asked = LabelGrid(**grid)
        results = evaluate_labels(
            index, self._asked, self._truth, grid=asked, folds=folds, per_document=folds > 0
        )
        rows = list(results)
        self._clock.add(self.documents * len(asked.settings()))
        return rows

    def _stage(self, words: str) -> None:
        self._clock.stage(f"{self.name}: {words}")
