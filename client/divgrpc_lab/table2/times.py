"""Times of Table 2 at the paper's size, on a synthetic set: see `labelled_documents`.

By embedding: the model is the planted one, of the paper's rank, so nothing is trained, and the
documents are embedded beforehand. All labels are scored, or those that hashing finds. By votes: the
sparse documents themselves are indexed, and all of them are scored, or those that hashing finds.
One document at a time on one thread, at one dial.
"""

import time
from collections.abc import Iterator
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from divgrpc import Index
from divgrpc.evaluation.label_running import evaluate_labels
from divgrpc.types import FloatArray, Mode
from divgrpc_lab.data.documents import Split
from divgrpc_lab.experiment import steps
from divgrpc_lab.table2.methods import (
    DEFAULT,
    EVERYTHING,
    FAMILIES,
    MODES,
    PAPERS,
    TOP_K,
    WITHOUT_HASHING,
    Case,
    build_options,
)

# The setting of an exact search that takes long rows first and ends when no row can be better.
ENDS_EARLY: Final = "exact, ends early"
_DIAL: Final = 0.3
# Documents of exhaustive methods, which are slow.
_SLOW_DOCUMENTS: Final = 20


class LabelTime(NamedTuple):
    """The median time of a document, in microseconds, P@5, and the share that was scored.

    `candidates` counts the labels, or in the mode `neighbour_vote` the documents, that could be
    scored; `documents` were asked.
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
    """Yield the times of every method, by embedding and then by votes.

    `embedded` (nq, r) are the test documents and `factors` (L, r) the labels of the planted model.
    An index of all documents takes most of a minute to build; there is one index at a time.
    """
    yield _every_label(split, embedded, factors)
    model = (factors, np.eye(factors.shape[1], dtype=np.float32))
    documents: dict[Mode, tuple[Any, Any, dict[str, Any]]] = {
        "embedding": (embedded, embedded, {"label_model": model}),
        "neighbour_vote": (split.documents, split.asked, {"labels": split.labels}),
    }
    for mode in MODES:
        indexed, asked, options = documents[mode]
        cases = [case for case in WITHOUT_HASHING if case.mode == mode]
        for family, setting in steps([*product(FAMILIES, (PAPERS, DEFAULT))], f"times, {mode}"):
            built = build_options(family, setting, indexed.shape[1])
            index = Index.build(indexed, **options, **built)
            candidates = split.labels.shape[1] if mode == "embedding" else index.rows
            for case in (*cases, Case(family, mode, setting)):
                yield _timed(index, case, asked, split.truth, candidates)
            cases = []


def _every_label(split: Split, embedded: FloatArray, factors: FloatArray) -> LabelTime:
    """Time LEML itself: a product with every label, and the best few of them."""
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


def _timed(index: Index, case: Case, asked: Any, truth: Any, candidates: int) -> LabelTime:
    slow = case.setting == EVERYTHING and case.selector != "nearest"
    rows = slice(_SLOW_DOCUMENTS if slow else None)
    grid = case.grid(thresholds=(None,), diversities=(_DIAL,))
    [row] = evaluate_labels(index, asked[rows], truth[rows], grid=grid, folds=0)
    setting = ENDS_EARLY if case.method == "LEML" else case.setting
    figures = (row.microseconds.p50, row.precision_at[TOP_K - 1].value, row.scored / candidates)
    return LabelTime(case.method, case.mode, setting, candidates, row.documents, *figures)
