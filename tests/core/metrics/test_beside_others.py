"""Metrics beside what ir_measures (trec_eval, ndeval), scikit-learn and scipy make of the lists."""

import ir_measures
import numpy as np
import numpy.typing as npt
import pytest
from ir_measures import AP, ERR_IA, RR, P, R, SetF, StRecall, Success, alpha_nDCG
from scipy import stats
from sklearn import metrics as sklearn_metrics

from divgrpc.metrics import Labels, judge, measure, normalised_entropy

K = 10
# Ours by theirs; ndeval's alpha of ERR-IA is a half, too.
PAIRS = {
    "precision": P @ K,
    "recall": R @ K,
    "f_score": SetF,
    "average_precision": AP @ K,
    "reciprocal_rank": RR,
    "one_call": Success @ K,
    "subtopic_recall": StRecall @ K,
    "alpha_ndcg": alpha_nDCG(alpha=0.5) @ K,
    "err_ia": ERR_IA @ K,
}
Numbers = npt.NDArray[np.int64]


def drawn(seed: int, n: int = 60, queries: int = 25) -> tuple[Numbers, Numbers, Labels]:
    """Draw whole lists, from mostly relevant to mostly wrong, and some that find nothing."""
    rng = np.random.default_rng(seed)
    labels = Labels.of(rng.integers(0, 3, n), rng.integers(0, 4, n))
    asked = rng.integers(0, 3, queries)
    lists = []
    for number, category in enumerate(asked):
        liking = np.where(labels.categories == category, 1.0, 0.02 + number / queries)
        liking[labels.categories == category] *= number > 2
        lists.append(rng.choice(n, K, replace=False, p=liking / liking.sum()))
    return np.array(lists), asked, labels


def theirs(ids: Numbers, asked: Numbers, labels: Labels) -> dict[str, list[float]]:
    """Ask ir_measures for everything that it has, query by query."""
    judgements = [
        ir_measures.Qrel(f"{q}", f"{i}", 1, f"{labels.subtopics[i]}")
        for q, category in enumerate(asked)
        for i in np.flatnonzero(labels.categories == category)
    ]
    run = [
        ir_measures.ScoredDoc(f"{q}", f"{i}", float(-rank))
        for q, own in enumerate(ids)
        for rank, i in enumerate(own)
        if i >= 0
    ]
    found = {name: [np.nan] * len(asked) for name in PAIRS}
    names = {measure: name for name, measure in PAIRS.items()}
    for value in ir_measures.iter_calc(names, judgements, run):
        found[names[value.measure]][int(value.query_id)] = value.value
    return found


@pytest.mark.parametrize("seed", range(4))
def test_ir_measures_has_the_same(seed: int) -> None:
    """trec_eval and ndeval find the same values for whole lists, to their float of 32 bits."""
    ids, asked, labels = drawn(seed)
    ours = measure(judge(ids, asked, labels))
    assert 0 in ours["precision"]
    for name, values in theirs(ids, asked, labels).items():
        np.testing.assert_allclose(ours[name], values, atol=1e-6, err_msg=name)


def test_short_lists_are_the_same() -> None:
    """Lists that end early are the same but for SetF, whose precision is over what was found."""
    ids, asked, labels = drawn(9)
    ids[:, 6:] = -1
    ours = measure(judge(ids, asked, labels))
    for name, values in theirs(ids, asked, labels).items():
        if name != "f_score":
            np.testing.assert_allclose(ours[name], values, atol=1e-6, err_msg=name)


def test_scikit_learn_has_the_same() -> None:
    """Precision, recall and f are those of a classifier that says yes to the k results.

    The average precision of a ranking of all points is that of its scores.
    """
    ids, asked, labels = drawn(5)
    ours = measure(judge(ids, asked, labels))
    ranking = np.argsort(np.random.default_rng(6).random((len(asked), 60)), axis=1)
    ranked = measure(judge(ranking, asked, labels))["average_precision"]
    for number, category in enumerate(asked):
        truth = labels.categories == category
        said = np.isin(np.arange(len(truth)), ids[number])
        p, r, f, _ = sklearn_metrics.precision_recall_fscore_support(
            truth, said, average="binary", zero_division=0
        )
        values = [ours[name][number] for name in ("precision", "recall", "f_score")]
        assert values == pytest.approx([p, r, f])
        scores = -np.argsort(ranking[number]).astype(np.float64)
        expected = sklearn_metrics.average_precision_score(truth, scores)
        assert ranked[number] == pytest.approx(expected)


def test_scipy_has_the_same_entropy() -> None:
    """D is scipy's entropy of the counts, to the base of how many sub-topics there are."""
    ids, asked, labels = drawn(7)
    found = normalised_entropy(judge(ids, asked, labels))
    for number, category in enumerate(asked):
        own = ids[number][labels.categories[ids[number]] == category]
        counts = np.bincount(labels.subtopics[own], minlength=4)
        expected = stats.entropy(counts, base=4) if len(own) else 0.0
        assert found[number] == pytest.approx(expected, abs=1e-12)
