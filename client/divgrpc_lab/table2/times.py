"""Times of Table 2 at the paper's size, on a synthetic set: see `labelled_documents`.

By embedding: the model is the planted one, of the paper's rank, so nothing is trained. What stands
for a document is given, so nothing of the time is embedding but one small product. Labels are
scored, all of them or those that hashing finds. By votes: the documents themselves are indexed, as
sparse as they are, and all of them are scored or those that hashing finds. Both one document at a
time on one thread, at one dial.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np
from threadpoolctl import threadpool_limits

import divgrpc
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.evaluation.label_running import evaluate_labels
from divgrpc.types import FloatArray, Mode
from divgrpc_lab.data.labelled_documents import (
    DOCUMENTS,
    FEATURES,
    LABELS,
    Csr,
    labelled_documents,
)
from divgrpc_lab.table2.rows import (
    DEFAULT,
    EVERYTHING,
    FAMILIES,
    MODES,
    PAPERS,
    TOP_K,
    WITHOUT_HASHING,
    Asking,
    built_as,
    hashing,
)

# Documents, features, labels, rank, and documents asked.
SIZE: Final = (DOCUMENTS, FEATURES, LABELS, 200, 200)
SMALL: Final = (300, 4_000, 500, 20, 30)
# Of an exact search that takes long rows first: what is left cannot be better.
ENDS_EARLY: Final = "exact, ends early"
_LEML: Final = "LEML"
_DIAL: Final = 0.3
_SLOW_DOCUMENTS: Final = 20


@dataclass(frozen=True, slots=True, eq=False)
class MadeUp:
    """The documents (n, d) and labels (n, L), what is asked, and the model that is planted.

    `asked` (nq, d) with its `truth` (nq, L), `embedded` (nq, r) and `label_factors` (L, r).
    """

    documents: Csr
    labels: Csr
    asked: Csr
    truth: Csr
    embedded: FloatArray
    label_factors: FloatArray


@dataclass(frozen=True, slots=True)
class TimedLabels:
    """The median time of a document, in microseconds, P@5, and the share of what is scored.

    `among` are the labels, or in the mode `neighbour_vote` the documents, that may be; `documents`
    were asked.
    """

    method: str
    mode: Mode
    setting: str
    among: int
    documents: int
    microseconds: float
    precision: float
    scored: float


def made_up(documents: int, features: int, labels: int, rank: int, asked: int) -> MadeUp:
    """Make up a set; at the paper's size some twenty seconds, and some gigabytes."""
    made = labelled_documents(documents, features, labels, asked)
    factors, feature_map = made.planted(rank)
    embedded = made.asked @ feature_map
    return MadeUp(made.documents, made.labels, made.asked, made.truth, embedded, factors)


def label_times(made: MadeUp) -> Iterator[TimedLabels]:
    """Yield the times of every method, by embedding and then by votes.

    An index of all documents takes most of a minute to build, and there is one at a time.
    """
    rank = made.label_factors.shape[1]
    model = (made.label_factors, np.eye(rank, dtype=np.float32))
    for mode in MODES:
        asked = [item for item in WITHOUT_HASHING if item.mode == mode]
        for family, setting in product(FAMILIES, (PAPERS, DEFAULT)):
            if mode == "embedding":
                options = built_as(family, setting, rank)
                index = divgrpc.Index.build(made.embedded, label_model=model, **options)
            else:
                options = built_as(family, setting, made.documents.shape[1])
                index = divgrpc.Index.build(made.documents, labels=made.labels, **options)
            asked += [item for item in hashing(family, setting) if item.mode == mode]
            for asking in asked:
                timed = _timed(index, made, asking)
                if asking.method == _LEML:
                    yield _every_label(made)
                    timed = replace(timed, setting=ENDS_EARLY)
                yield timed
            asked = []


def _every_label(made: MadeUp) -> TimedLabels:
    """Time what LEML itself does: a product with every label, and the best few of them."""
    seconds, right, count = [], 0.0, len(made.embedded)
    with threadpool_limits(1):
        for row in range(count):
            begun = time.perf_counter()
            products = made.label_factors @ made.embedded[row]
            best = np.argpartition(products, -TOP_K)[-TOP_K:]
            seconds.append(time.perf_counter() - begun)
            right += float(made.truth[[row]][:, best].sum()) / TOP_K
    among = len(made.label_factors)
    microseconds = float(np.median(seconds)) * 1e6
    return TimedLabels(
        _LEML, "embedding", EVERYTHING, among, count, microseconds, right / count, 1.0
    )


def _timed(index: divgrpc.Index, made: MadeUp, asking: Asking) -> TimedLabels:
    slow = asking.setting == EVERYTHING and asking.selector != "nearest"
    rows = slice(0, _SLOW_DOCUMENTS if slow else None)
    grid = asking.grid() | {"thresholds": (None,), "diversities": (_DIAL,)}
    by_embedding = asking.mode == "embedding"
    asked = made.embedded if by_embedding else made.asked
    (row,) = evaluate_labels(index, asked[rows], made.truth[rows], grid=LabelGrid(**grid), folds=0)
    among = made.labels.shape[1 if by_embedding else 0]
    return TimedLabels(
        asking.method,
        asking.mode,
        asking.setting,
        among,
        row.documents,
        row.microseconds.p50,
        row.precision_at[TOP_K - 1].value,
        row.scored / among,
    )
