"""Times of all methods at the paper's size, on synthetic documents (`data.synthetic`).

In the mode `embedding` the planted model of the paper's rank is used, so nothing is trained, and
the documents are embedded beforehand. In the mode `neighbour_vote` the sparse documents are
indexed. Each method scores either all labels or documents, or those that hashing finds. Documents
are processed one at a time on one thread.
"""

import time
from collections.abc import Iterator
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from divgrpc import Index
from divgrpc.evaluation.label_running import evaluate_labels
from divgrpc.metrics import Values
from divgrpc.types import FloatArray, Mode
from divgrpc_lab.data.documents import Split
from divgrpc_lab.experiment import steps
from divgrpc_lab.table2.methods import (
    DEFAULT,
    EVERYTHING,
    FAMILIES,
    HOME,
    MODES,
    PAPERS,
    TOP_K,
    WITHOUT_HASHING,
    Case,
    build_options,
    tables_of,
)

# Name of the setting of an exact search that scores rows in descending order of norm and stops when
# no further row can be better.
ENDS_EARLY: Final = "exact, ends early"
_DIAL: Final = 0.3
# Number of documents for exhaustive methods, which are slow.
_SLOW_DOCUMENTS: Final = 20


class LabelTime(NamedTuple):
    """Time of each document in microseconds (nq,), P@5, and the share of candidates scored.

    `candidates` is the number of labels, or in the mode `neighbour_vote` of documents, that could
    be scored.
    """

    method: str
    mode: Mode
    setting: str
    candidates: int
    microseconds: Values
    precision: float
    scored: float

    @property
    def documents(self) -> int:
        """The number of test documents."""
        return len(self.microseconds)

    @property
    def median(self) -> float:
        """The median time in microseconds."""
        return float(np.median(self.microseconds))


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
        for family, setting in steps([*product(FAMILIES, (HOME, DEFAULT))], f"times, {mode}"):
            shape = PAPERS if setting == HOME else None
            hashing = build_options(family, shape, 0, rows.shape[1])
            with threadpool_limits(1):
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
    times = 1e6 * np.array(seconds)
    return LabelTime("LEML", "embedding", EVERYTHING, len(factors), times, hits / count, 1.0)


def _timed(index: Index, case: Case, tests: Any, truth: Any, candidates: int) -> LabelTime:
    slow = case.setting == EVERYTHING and case.selector != "nearest"
    rows = slice(_SLOW_DOCUMENTS if slow else None)
    axes: dict[str, Any] = {"thresholds": (None,), "diversities": (_DIAL,)}
    if case.setting == HOME:
        axes["n_probes"] = (tables_of(index, case.mode),)
    grid = case.grid(**axes)
    [row] = evaluate_labels(index, tests[rows], truth[rows], grid=grid, folds=0, per_document=True)
    setting = ENDS_EARLY if case.method == "LEML" else case.setting
    return LabelTime(
        case.method,
        case.mode,
        setting,
        candidates,
        row.values["microseconds"],
        row.precision_at[TOP_K - 1].value,
        row.scored / candidates,
    )
