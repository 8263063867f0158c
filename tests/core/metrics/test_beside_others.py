"""Metrics agree with ir_measures (trec_eval, ndeval), scikit-learn and scipy."""

import ir_measures
import numpy as np
import numpy.typing as npt
import pytest
from ir_measures import AP, ERR_IA, RR, P, R, SetF, StRecall, Success, alpha_nDCG
from scipy import stats
from sklearn import metrics as sklearn_metrics

from divgrpc.metrics import PointCategories, judge, measure, normalised_entropy

K = 10
# Names here and measures there. The alpha of ERR-IA is 0.5 in ndeval too.
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


def draw_lists(
    seed: int, n: int = 60, queries: int = 25
) -> tuple[Numbers, Numbers, PointCategories]:
    """Draw full lists, from mostly relevant to mostly wrong, some without a relevant result."""
    rng = np.random.default_rng(seed)
    labels = PointCategories.of(rng.integers(0, 3, n), rng.integers(0, 4, n))
    query_categories = rng.integers(0, 3, queries)
    lists = []
    for number, category in enumerate(query_categories):
        liking = np.where(labels.categories == category, 1.0, 0.02 + number / queries)
        liking[labels.categories == category] *= number > 2
        lists.append(rng.choice(n, K, replace=False, p=liking / liking.sum()))
    return np.array(lists), query_categories, labels


def ir_measures_of(
    ids: Numbers, query_categories: Numbers, labels: PointCategories
) -> dict[str, list[float]]:
    """Return the values of ir_measures by name, query by query."""
    judgements = [
        ir_measures.Qrel(f"{q}", f"{i}", 1, f"{labels.subtopics[i]}")
        for q, category in enumerate(query_categories)
        for i in np.flatnonzero(labels.categories == category)
    ]
    run = [
        ir_measures.ScoredDoc(f"{q}", f"{i}", float(-rank))
        for q, own in enumerate(ids)
        for rank, i in enumerate(own)
        if i >= 0
    ]
    values_by_name = {name: [np.nan] * len(query_categories) for name in PAIRS}
    names = {measure: name for name, measure in PAIRS.items()}
    for value in ir_measures.iter_calc(names, judgements, run):
        values_by_name[names[value.measure]][int(value.query_id)] = value.value
    return values_by_name


@pytest.mark.parametrize("seed", range(4))
def test_ir_measures_agrees(seed: int) -> None:
    """trec_eval and ndeval give the same values for full lists, in float32."""
    ids, query_categories, labels = draw_lists(seed)
    ours = measure(judge(ids, query_categories, labels))
    assert 0 in ours["precision"]
    for name, values in ir_measures_of(ids, query_categories, labels).items():
        np.testing.assert_allclose(ours[name], values, atol=1e-6, err_msg=name)


def test_ir_measures_agrees_on_short_lists() -> None:
    """Except for SetF, whose precision is over the results of a short list."""
    ids, query_categories, labels = draw_lists(9)
    ids[:, 6:] = -1
    ours = measure(judge(ids, query_categories, labels))
    for name, values in ir_measures_of(ids, query_categories, labels).items():
        if name != "f_score":
            np.testing.assert_allclose(ours[name], values, atol=1e-6, err_msg=name)


def test_scikit_learn_agrees() -> None:
    """Precision, recall and f are those of a classifier that accepts the k results.

    Average precision is that of a ranking of all points.
    """
    ids, query_categories, labels = draw_lists(5)
    ours = measure(judge(ids, query_categories, labels))
    ranking = np.argsort(np.random.default_rng(6).random((len(query_categories), 60)), axis=1)
    ranked = measure(judge(ranking, query_categories, labels))["average_precision"]
    for number, category in enumerate(query_categories):
        truth = labels.categories == category
        predicted = np.isin(np.arange(len(truth)), ids[number])
        p, r, f, _ = sklearn_metrics.precision_recall_fscore_support(
            truth, predicted, average="binary", zero_division=0
        )
        values = [ours[name][number] for name in ("precision", "recall", "f_score")]
        assert values == pytest.approx([p, r, f])
        scores = -np.argsort(ranking[number]).astype(np.float64)
        expected = sklearn_metrics.average_precision_score(truth, scores)
        assert ranked[number] == pytest.approx(expected)


def test_scipy_agrees_on_entropy() -> None:
    """D is the entropy of the counts to the base m, the number of sub-topics."""
    ids, query_categories, labels = draw_lists(7)
    values_by_name = normalised_entropy(judge(ids, query_categories, labels))
    for number, category in enumerate(query_categories):
        own = ids[number][labels.categories[ids[number]] == category]
        counts = np.bincount(labels.subtopics[own], minlength=4)
        expected = stats.entropy(counts, base=4) if len(own) else 0.0
        assert values_by_name[number] == pytest.approx(expected, abs=1e-12)
