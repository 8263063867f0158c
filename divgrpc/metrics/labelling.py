"""Metrics of predicted labels.

A prediction is a list of labels, best first, padded with -1. A label counts only at its first
place.

The `..._at` functions return a metric of the first j places for every j from 1 to k. Empty places
count as wrong labels, as is usual in extreme classification. The `set_...` functions measure all
predicted labels as a set, which may have any size, for instance after a threshold was applied.

For a document without true labels every predicted label is wrong. So the metrics of this document
are 0, except the diversity of its predicted labels.
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

# Default parameters A and B of `inverse_propensities`. Most publications use these values. Jain,
# Prabhu and Varma (2016) use 0.5 and 0.4 for Wikipedia, and 0.6 and 2.6 for Amazon.
PROPENSITY: Final = (0.55, 1.5)


class SparseLabels(Protocol):
    """Labels of n documents in compressed sparse row format (n, L), for instance a scipy matrix.

    The labels of document i are `indices[indptr[i]:indptr[i + 1]]`.
    """

    @property
    def indptr(self) -> npt.NDArray[Any]:
        """Row pointers, (n + 1,), from 0 to the number of all labels."""

    @property
    def indices(self) -> npt.NDArray[Any]:
        """The label numbers of all documents, one document after the other."""

    @property
    def shape(self) -> tuple[int, int]:
        """The number of documents n and the number of labels L."""


class Truth(NamedTuple):
    """An implementation of `SparseLabels` that holds three values."""

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.uint32]
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class JudgedLabels:
    """Predicted and true labels of nq documents, k places each; call `of` to create one.

    labels: (nq, k) int64, -1 for an empty place and for a label that occurs earlier in the row.
    right: (nq, k) bool, whether the document has the predicted label.
    totals: (nq,) int64, the number of true labels of each document.
    rows, true: (t,) int64, the document and the label of each of the t true labels.
    label_count: L, the number of labels that exist.
    """

    labels: IntArray
    right: Mask
    totals: IntArray
    rows: IntArray
    true: IntArray
    label_count: int

    @classmethod
    def of(cls, labels: npt.ArrayLike, truth: SparseLabels) -> Self:
        """Compare predicted labels with true labels.

        labels: (nq, k) predicted labels, padded with -1.
        truth: (nq, L) true labels.

        Raises `InvalidArgumentError`, with the field truth if the numbers of rows differ, and with
        the field labels for labels outside -1 to L - 1.
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
    """Return P@1 to P@k (nq, k), 0 to 1.

    P@j is the number of right labels among the first j, divided by j.
    """
    return np.asarray(judged.right.cumsum(axis=1) / _ranks(judged))


def recall_at(judged: JudgedLabels) -> Values:
    """Return R@1 to R@k (nq, k), 0 to 1.

    R@j is the number of right labels among the first j, divided by the number of true labels.
    """
    return np.asarray(judged.right.cumsum(axis=1) / np.maximum(judged.totals, 1)[:, None])


def ndcg_at(judged: JudgedLabels) -> Values:
    """Return nDCG@1 to nDCG@k (nq, k), 0 to 1.

    A right label has a gain of 1, divided by log2(1 + rank). The sum of the gains of the first j
    labels is divided by the sum for the best possible j labels.

    Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques" (TOIS 2002).
    """
    discounts = 1 / np.log2(1 + _ranks(judged))
    best = np.minimum(_ranks(judged), np.maximum(judged.totals, 1)[:, None]).astype(np.int64)
    gains = (judged.right * discounts).cumsum(axis=1)
    return np.asarray(gains / discounts.cumsum()[best - 1])


def inverse_propensities(
    label_counts: npt.ArrayLike, documents: int, a: float = PROPENSITY[0], b: float = PROPENSITY[1]
) -> Values:
    """Return the inverse propensity of each label, (L,) float64, above 1.

    Rare labels have high inverse propensities. The inverse propensity of label l is 1 + C (N_l +
    B)^-A with C = (log N - 1)(B + 1)^A. See Jain, Prabhu and Varma, "Extreme multi-label loss
    functions" (KDD 2016), section 4.

    label_counts: (L,) N_l, the number of training documents that have label l.
    documents: N, the number of training documents.
    a, b: A and B.

    Raises `InvalidArgumentError`, with the field documents, if `documents` is below 3, because C
    would not be positive.
    """
    if documents < 3:
        raise invalid("documents", f"must be at least 3, got {documents}")
    counts = np.asarray(label_counts, np.float64)
    return np.asarray(1 + (np.log(documents) - 1) * (b + 1) ** a * (counts + b) ** -a)


def propensity_scored_at(judged: JudgedLabels, inverse: Values) -> Values:
    """Return the propensity-scored precisions PSP@1 to PSP@k, (k,), 0 to 1.

    `inverse` (L,) comes from `inverse_propensities`. As in published figures, the gains of all
    documents are summed and divided by the sum of their best possible gains. The result differs
    from the mean of the documents' own ratios.
    """
    total, best = (gains.sum(axis=0) for gains in propensity_gains(judged, inverse))
    return np.asarray(np.divide(total, best, out=np.zeros(len(best)), where=best > 0))


def propensity_gains(judged: JudgedLabels, inverse: Values) -> tuple[Values, Values]:
    """Return the gains and best possible gains for `propensity_scored_at`, (nq, k) each.

    Column j - 1 of the gains is the sum of `inverse` (L,) over the right labels among the first j
    labels predicted for the document. Column j - 1 of the best possible gains is the sum of
    `inverse` over the j true labels with the greatest `inverse`.
    """
    gains = np.where(judged.right, inverse[judged.labels], 0.0)
    order = np.lexsort((-inverse[judged.true], judged.rows))
    starts = np.cumsum(judged.totals) - judged.totals
    places = np.arange(len(order)) - np.repeat(starts, judged.totals)
    mask = places < gains.shape[1]
    best = np.zeros(gains.shape)
    best[judged.rows[mask], places[mask]] = inverse[judged.true[order]][mask]
    return np.asarray(gains.cumsum(axis=1)), np.asarray(best.cumsum(axis=1))


def coverage_at(judged: JudgedLabels) -> Values:
    """Return coverage@1 to coverage@k, (k,), 0 to 1.

    Only labels that some document truly has are counted. Coverage@j is the share of these labels
    that are among the first j predicted labels of at least one document that has them.
    """
    k = judged.labels.shape[1]
    first = np.full(judged.label_count, k)
    rows, places = np.nonzero(judged.right)
    np.minimum.at(first, judged.labels[rows, places], places)
    hits = np.bincount(first, minlength=k + 1)[:k].cumsum()
    return np.asarray(hits / max(1, len(np.unique(judged.true))))


def set_precision(judged: JudgedLabels) -> Values:
    """Return the share of predicted labels that are right (nq,), 0 if no label is predicted."""
    return np.asarray(judged.right.sum(axis=1) / np.maximum(judged.found, 1))


def set_recall(judged: JudgedLabels) -> Values:
    """Return the share of true labels that are predicted (nq,), 0 if there are no true labels."""
    return recall_at(judged)[:, -1]


def set_f_score(judged: JudgedLabels) -> Values:
    """Return the harmonic mean of `set_precision` and `set_recall` (nq,).

    The paper's Table 2 reports this metric.
    """
    return harmonic_mean(set_precision(judged), set_recall(judged))


def measure_labels(
    judged: JudgedLabels, diversity: Callable[[IntArray], Values] | None = None
) -> dict[str, Values]:
    """Return the metrics of each document by name: precision, recall, f_score and ndcg, (nq,) each.

    `diversity` is a function of labels (nq, k) that returns (nq,), such as `LabelTree.drank`. If
    `diversity` is set, the result also has `drank` and `h_score`. `drank` is the value of
    `diversity` for all predicted labels, right or wrong. `h_score` is the harmonic mean of
    precision and `drank` (the paper's section "Combining Accuracy and Diversity").
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


def _ranks(judgments: JudgedLabels) -> Values:
    return np.arange(1, judgments.labels.shape[1] + 1, dtype=np.float64)
