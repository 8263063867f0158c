"""How good predicted labels are: right, ranked well, rare ones too.

A prediction is a list of labels, best first, -1 where there is none; a label that comes twice
counts at its first place. There are two ways to count. `..._at` has a column for every k from 1 up
and divides by k, places not filled included, as everyone in extreme classification does. `set_...`
are of the set that was predicted, however large: what a threshold left. A document that has no
label counts, as 0: what is predicted for it is wrong, and these data sets have some.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError
from divgrpc.metrics.judging import Mask, Values, earlier_and_total, is_among, lists
from divgrpc.metrics.relevance import harmonic_mean
from divgrpc.types import IntArray

# The usual A and B; Wikipedia's are .5 and .4, Amazon's .6 and 2.6 (Jain, Prabhu & Varma 2016).
PROPENSITY: Final = (0.55, 1.5)


class SparseLabels(Protocol):
    """Compressed sparse rows (n, L): row i has the labels indices[indptr[i]:indptr[i + 1]]."""

    @property
    def indptr(self) -> npt.NDArray[Any]:
        """Where rows begin and end, (n + 1,)."""

    @property
    def indices(self) -> npt.NDArray[Any]:
        """The labels of one row after the other."""

    @property
    def shape(self) -> tuple[int, int]:
        """Documents and labels."""


class Truth(NamedTuple):
    """Such rows, of arrays that are there."""

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.uint32]
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class JudgedLabels:
    """Predicted labels of nq documents, k places each, beside the true ones; `of` makes them.

    `labels` (nq, k) int64, -1 for none and for what came before in the row; `right` (nq, k) bool;
    `totals` (nq,) int64: labels that a document has; `rows` and `true` (t,) int64: document and
    label of each of them; `label_count` L.
    """

    labels: IntArray
    right: Mask
    totals: IntArray
    rows: IntArray
    true: IntArray
    label_count: int

    @classmethod
    def of(cls, labels: npt.ArrayLike, truth: SparseLabels) -> Self:
        """Judge `labels` (nq, k) by the `truth` (nq, L).

        Raises `InvalidArgumentError` where the two have different rows, and for a label below -1 or
        above L - 1.
        """
        count, totals = truth.shape[1], np.diff(truth.indptr).astype(np.int64)
        predicted = lists(np.asarray(labels), len(totals), "truth", "labels")
        if predicted.size and not -1 <= predicted.min() <= predicted.max() < count:
            raise InvalidArgumentError("labels", f"labels must be from -1 to {count - 1}")
        own = np.where(earlier_and_total(predicted)[0] == 0, predicted, -1)
        rows = np.repeat(np.arange(len(totals)), totals)
        true = truth.indices.astype(np.int64)
        keys = np.sort(rows * count + true)
        right = (own >= 0) & is_among(keys, np.arange(len(own))[:, None] * count + own)
        return cls(own, right, totals, rows, true, count)

    @property
    def found(self) -> IntArray:
        """How many labels each document was given, (nq,)."""
        return np.asarray((self.labels >= 0).sum(axis=1))


def precision_at(judged: JudgedLabels) -> Values:
    """Return P@1 to P@k (nq, k): right labels among the first j, over j."""
    return np.asarray(judged.right.cumsum(axis=1) / _ranks(judged))


def recall_at(judged: JudgedLabels) -> Values:
    """Return R@1 to R@k (nq, k): right labels among the first j, over all that the document has."""
    return np.asarray(judged.right.cumsum(axis=1) / np.maximum(judged.totals, 1)[:, None])


def ndcg_at(judged: JudgedLabels) -> Values:
    """Return nDCG@1 to nDCG@k (nq, k): gain 1, discount log2(1 + rank), over the best list's.

    Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques" (TOIS 2002).
    """
    discounts = 1 / np.log2(1 + _ranks(judged))
    best = np.minimum(_ranks(judged), np.maximum(judged.totals, 1)[:, None]).astype(np.int64)
    gained = (judged.right * discounts).cumsum(axis=1)
    return np.asarray(gained / discounts.cumsum()[best - 1])


def inverse_propensities(
    label_counts: npt.ArrayLike, documents: int, a: float = PROPENSITY[0], b: float = PROPENSITY[1]
) -> Values:
    """Return what finding each label is worth, (L,) float64, above 1: the rarer the more.

    `label_counts` (L,) is how many of the `documents` of the training have each label. 1 + C (N_l +
    B)^-A with C = (log N - 1)(B + 1)^A: Jain, Prabhu and Varma, "Extreme multi-label loss
    functions" (KDD 2016), section 4. Raises `InvalidArgumentError` for fewer than three documents,
    where C would not be above 0.
    """
    if documents < 3:
        raise InvalidArgumentError("documents", f"documents must be at least 3, got {documents}")
    counts = np.asarray(label_counts, np.float64)
    return np.asarray(1 + (np.log(documents) - 1) * (b + 1) ** a * (counts + b) ** -a)


def propensity_scored_at(judged: JudgedLabels, inverse: Values) -> Values:
    """Return PSP@1 to PSP@k, (k,): what right labels are worth, over the most there is to get.

    `inverse` (L,) is what `inverse_propensities` gives. Sums over all documents are divided, not
    means taken: so do the tools whose figures are published.
    """
    gained, most = (each.sum(axis=0) for each in propensity_gains(judged, inverse))
    return np.asarray(np.divide(gained, most, out=np.zeros(len(most)), where=most > 0))


def propensity_gains(judged: JudgedLabels, inverse: Values) -> tuple[Values, Values]:
    """Return what is divided there: of each document what it gained at 1 to k, and the most.

    Both are (nq, k).
    """
    gained = np.where(judged.right, inverse[judged.labels], 0.0)
    order = np.lexsort((-inverse[judged.true], judged.rows))
    starts = np.cumsum(judged.totals) - judged.totals
    place = np.arange(len(order)) - np.repeat(starts, judged.totals)
    within = place < gained.shape[1]
    best = np.zeros(gained.shape)
    best[judged.rows[within], place[within]] = inverse[judged.true[order]][within]
    return np.asarray(gained.cumsum(axis=1)), np.asarray(best.cumsum(axis=1))


def coverage_at(judged: JudgedLabels) -> Values:
    """Return coverage@1 to coverage@k, (k,): labels found right somewhere, over all that occur.

    How much of the variety of labels is ever shown: a label counts once, whoever has it.
    """
    k = judged.labels.shape[1]
    first = np.full(judged.label_count, k)
    rows, places = np.nonzero(judged.right)
    np.minimum.at(first, judged.labels[rows, places], places)
    seen = np.bincount(first, minlength=k + 1)[:k].cumsum()
    return np.asarray(seen / max(1, len(np.unique(judged.true))))


def set_precision(judged: JudgedLabels) -> Values:
    """Return right labels over those predicted (nq,), 0 where none is."""
    return np.asarray(judged.right.sum(axis=1) / np.maximum(judged.found, 1))


def set_recall(judged: JudgedLabels) -> Values:
    """Return right labels over those that the document has (nq,), 0 where it has none."""
    return recall_at(judged)[:, -1]


def set_f_score(judged: JudgedLabels) -> Values:
    """Return the harmonic mean of the two (nq,); Table 2 has the mean of this over documents."""
    return harmonic_mean(set_precision(judged), set_recall(judged))


def measure_labels(
    judged: JudgedLabels, diversity: Callable[[IntArray], Values] | None = None
) -> dict[str, Values]:
    """Return what is of one document each, by name, (nq,): precision, recall, f_score, ndcg.

    With a `diversity`, such as `LabelTree.drank`, also `drank` of all that was predicted, right or
    not, and `h_score`, its harmonic mean with precision ("Combining Accuracy and Diversity").
    """
    measured = {
        "precision": set_precision(judged),
        "recall": set_recall(judged),
        "f_score": set_f_score(judged),
        "ndcg": ndcg_at(judged)[:, -1],
    }
    if diversity is not None:
        measured["drank"] = diversity(judged.labels)
        measured["h_score"] = harmonic_mean(measured["precision"], measured["drank"])
    return measured


def _ranks(judged: JudgedLabels) -> Values:
    return np.arange(1, judged.labels.shape[1] + 1, dtype=np.float64)
