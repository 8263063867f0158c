"""Metrics of predicted labels.

A prediction is a list of labels, best first, -1 for none. A label that occurs twice counts at its
first place. `..._at` functions return a column for every k from 1 up and divide by k, empty places
included, as is usual in extreme classification. `set_...` functions measure the predicted set of
any size, for instance what a threshold leaves. A document without labels counts as 0, because every
label predicted for it is wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from divgrpc.errors import invalid
from divgrpc.metrics.judging import Mask, Values, as_lists, earlier_and_total, is_among
from divgrpc.metrics.measures import harmonic_mean
from divgrpc.types import IntArray

# The usual A and B of `inverse_propensities`. Jain, Prabhu and Varma (2016) use 0.5 and 0.4 for
# Wikipedia, 0.6 and 2.6 for Amazon.
PROPENSITY: Final = (0.55, 1.5)


class SparseLabels(Protocol):
    """Compressed sparse rows (n, L): document i has labels indices[indptr[i]:indptr[i + 1]]."""

    @property
    def indptr(self) -> npt.NDArray[Any]:
        """Ends of rows, (n + 1,), beginning with 0."""

    @property
    def indices(self) -> npt.NDArray[Any]:
        """The labels of all rows, row by row."""

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of documents and labels, n and L."""


class Truth(NamedTuple):
    """Compressed sparse rows of labels, from arrays in memory: see `SparseLabels`."""

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.uint32]
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class JudgedLabels:
    """Predicted labels of nq documents, k places each, with the true ones; made by `of`.

    labels: (nq, k) int64, -1 for none and for a label that occurs earlier in the row.
    right: (nq, k) bool, whether the document has the label.
    totals: (nq,) int64, the number of true labels of each document.
    rows, true: (t,) int64, document and label of every true label.
    label_count: L.
    """

    labels: IntArray
    right: Mask
    totals: IntArray
    rows: IntArray
    true: IntArray
    label_count: int

    @classmethod
    def of(cls, labels: npt.ArrayLike, truth: SparseLabels) -> Self:
        """Judge predicted `labels` (nq, k), -1 for none, by the true ones, `truth` (nq, L).

        Raises `InvalidArgumentError` with the field truth for another number of rows, and with the
        field labels for labels outside -1 to L - 1.
        """
        count, totals = truth.shape[1], np.diff(truth.indptr).astype(np.int64)
        lists = as_lists(np.asarray(labels), len(totals), "truth", "labels")
        if lists.size and not -1 <= lists.min() <= lists.max() < count:
            raise invalid("labels", f"must be from -1 to {count - 1}")
        distinct = np.where(earlier_and_total(lists)[0] == 0, lists, -1)
        rows = np.repeat(np.arange(len(totals)), totals)
        true = truth.indices.astype(np.int64)
        keys = np.arange(len(distinct))[:, None] * count + distinct
        right = (distinct >= 0) & is_among(np.sort(rows * count + true), keys)
        return cls(distinct, right, totals, rows, true, count)

    @property
    def found(self) -> IntArray:
        """The number of labels predicted for each document, (nq,) int64."""
        return np.asarray((self.labels >= 0).sum(axis=1))


def precision_at(judged: JudgedLabels) -> Values:
    """Return P@1 to P@k (nq, k), 0 to 1: right labels among the first j, over j."""
    return np.asarray(judged.right.cumsum(axis=1) / _ranks(judged))


def recall_at(judged: JudgedLabels) -> Values:
    """Return R@1 to R@k (nq, k), 0 to 1: right labels among the first j, over all true labels."""
    return np.asarray(judged.right.cumsum(axis=1) / np.maximum(judged.totals, 1)[:, None])


def ndcg_at(judged: JudgedLabels) -> Values:
    """Return nDCG@1 to nDCG@k (nq, k), 0 to 1: gain 1 and discount log2(1 + rank).

    The sum is divided by the sum of the best list.

    Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques" (TOIS 2002).
    """
    discounts = 1 / np.log2(1 + _ranks(judged))
    best = np.minimum(_ranks(judged), np.maximum(judged.totals, 1)[:, None]).astype(np.int64)
    gains = (judged.right * discounts).cumsum(axis=1)
    return np.asarray(gains / discounts.cumsum()[best - 1])


def inverse_propensities(
    label_counts: npt.ArrayLike, documents: int, a: float = PROPENSITY[0], b: float = PROPENSITY[1]
) -> Values:
    """Return the inverse propensity of each label, (L,) float64, above 1; rare labels have more.

    It is 1 + C (N_l + B)^-A with C = (log N - 1)(B + 1)^A. N = `documents` is the number of
    training documents, at least 3, N_l = `label_counts` (L,) of them have label l. Jain, Prabhu and
    Varma, "Extreme multi-label loss functions" (KDD 2016), section 4. Raises
    `InvalidArgumentError`, with the field documents, for fewer than three, because C must be above
    0.
    """
    if documents < 3:
        raise invalid("documents", f"must be at least 3, got {documents}")
    counts = np.asarray(label_counts, np.float64)
    return np.asarray(1 + (np.log(documents) - 1) * (b + 1) ** a * (counts + b) ** -a)


def propensity_scored_at(judged: JudgedLabels, inverse: Values) -> Values:
    """Return PSP@1 to PSP@k, (k,), 0 to 1: propensity-scored precision.

    `inverse` (L,) comes from `inverse_propensities`. As in published figures, the sum of the gains
    of all documents is divided by the sum of their best gains; this is not a mean of quotients.
    """
    total, best = (gains.sum(axis=0) for gains in propensity_gains(judged, inverse))
    return np.asarray(np.divide(total, best, out=np.zeros(len(best)), where=best > 0))


def propensity_gains(judged: JudgedLabels, inverse: Values) -> tuple[Values, Values]:
    """Return the gains of `propensity_scored_at` and the best gains, both (nq, k), at 1 to k.

    The gain of a document is the sum of `inverse` (L,) over its right labels.
    """
    gains = np.where(judged.right, inverse[judged.labels], 0.0)
    order = np.lexsort((-inverse[judged.true], judged.rows))
    starts = np.cumsum(judged.totals) - judged.totals
    places = np.arange(len(order)) - np.repeat(starts, judged.totals)
    within = places < gains.shape[1]
    best = np.zeros(gains.shape)
    best[judged.rows[within], places[within]] = inverse[judged.true[order]][within]
    return np.asarray(gains.cumsum(axis=1)), np.asarray(best.cumsum(axis=1))


def coverage_at(judged: JudgedLabels) -> Values:
    """Return coverage@1 to coverage@k, (k,), 0 to 1: right labels over labels that occur.

    A label counts once, for any number of documents.
    """
    k = judged.labels.shape[1]
    first = np.full(judged.label_count, k)
    rows, places = np.nonzero(judged.right)
    np.minimum.at(first, judged.labels[rows, places], places)
    hits = np.bincount(first, minlength=k + 1)[:k].cumsum()
    return np.asarray(hits / max(1, len(np.unique(judged.true))))


def set_precision(judged: JudgedLabels) -> Values:
    """Return right labels over predicted labels (nq,), 0 without predicted labels."""
    return np.asarray(judged.right.sum(axis=1) / np.maximum(judged.found, 1))


def set_recall(judged: JudgedLabels) -> Values:
    """Return right labels over true labels (nq,), 0 without true labels."""
    return recall_at(judged)[:, -1]


def set_f_score(judged: JudgedLabels) -> Values:
    """Return the harmonic mean of `set_precision` and `set_recall` (nq,): the paper's Table 2."""
    return harmonic_mean(set_precision(judged), set_recall(judged))


def measure_labels(
    judged: JudgedLabels, diversity: Callable[[IntArray], Values] | None = None
) -> dict[str, Values]:
    """Return the metrics of single documents by name, each (nq,): precision, recall, f_score, ndcg.

    `diversity` maps labels (nq, k) to numbers (nq,), as `LabelTree.drank` does. With it the result
    also has `drank`, of all predicted labels, right or wrong, and `h_score`, its harmonic mean with
    precision (the paper's section "Combining Accuracy and Diversity").
    """
    metrics = {
        "precision": set_precision(judged),
        "recall": set_recall(judged),
        "f_score": set_f_score(judged),
        "ndcg": ndcg_at(judged)[:, -1],
    }
    if diversity is not None:
        metrics["drank"] = diversity(judged.labels)
        metrics["h_score"] = harmonic_mean(metrics["precision"], metrics["drank"])
    return metrics


def _ranks(judged: JudgedLabels) -> Values:
    return np.arange(1, judged.labels.shape[1] + 1, dtype=np.float64)
