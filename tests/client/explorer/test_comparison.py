"""Plain and diverse lists, and the reasons for their results."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from divgrpc.metrics import list_distances
from divgrpc.types import Explanation, FloatArray, Metric, Refusal
from divgrpc.types.hits import Hit
from divgrpc.types.records import AttributeValue, Record, SparseVector
from divgrpc_client.explorer.comparison import Comparison, PointDistances, distinct_values


def _hits(*ids: int) -> list[Hit]:
    return [Hit(point, 1 - place / 10, place + 1, 0.0) for place, point in enumerate(ids)]


def _records(vectors: dict[int, list[float]]) -> list[Record]:
    return [Record(i, np.array(vector, "f4"), {}, b"") for i, vector in vectors.items()]


# The points 1 and 2 are near-copies; 3 is near to both, and 4 and 5 are near to each other.
POINTS = _records({1: [1, 0], 2: [1, 0.01], 3: [0.9, 0.3], 4: [0, 1], 5: [-0.1, 1]})


def _comparison() -> Comparison:
    ranks: dict[int | str, int] = {point: rank for rank, point in enumerate([1, 2, 3, 4], 1)}
    copies = [[2], [], []]
    distances = PointDistances(POINTS, "cosine")
    return Comparison(_hits(1, 2, 3), _hits(1, 4, 5), copies, ranks, distances)


def test_plain_results_have_the_reason_why_they_are_left_out() -> None:
    assert _comparison().plain_reasons() == [
        ("both", "Also no. 1 of the diverse results."),
        ("left", "Left out: a near-copy of no. 1."),
        ("left", "Left out: nearest to no. 1 (cosine 0.95)."),
    ]


def test_diverse_results_have_their_rank_and_the_nearest_result_before_them() -> None:
    assert _comparison().diverse_reasons() == [
        ("both", "Also no. 1 of the nearest."),
        ("new", "New: no. 4 by nearness. Nearest earlier result: no. 1 (cosine 0.00)."),
        (
            "new",
            "New: not among the nearest 4. Nearest earlier result: no. 2 (cosine 1.00).",
        ),
    ]


def _floats(*values: float) -> FloatArray:
    return np.array(values, np.float32)


# The diverse results are 3, 4 and 5. The result 4 displaced 1, and 5 is a near-copy of a result.
EXPLANATION = Explanation(
    plain_ranks=np.array([1, 9, 12]),
    pick_numbers=np.arange(3),
    relevance_terms=_floats(-0.0, -0.25, -0.5),
    penalties=_floats(0, -0.125, 0),
    caused_by=np.array([-1, 3, -1]),
    distances=_floats(math.nan, 1.4, math.nan),
    held_back=np.array([-1, -1, -1]),
    cost_offset=0.0,
    cost_width=1.0,
    list_size=3,
    displaced_ids=np.array([1]),
    displaced_scores=_floats(0.9),
    displaced_plain_ranks=np.array([2]),
    displaced_by=np.array([1]),
    displaced_relevance_terms=_floats(-0.1),
    displaced_penalties=_floats(-0.01),
    displaced_caused_by=np.array([3]),
    displaced_distances=_floats(0.1),
)


def _explained(explanation: Explanation, duplicate_threshold: float | None = None) -> Comparison:
    ranks: dict[int | str, int] = {3: 1, 4: 9, 5: 12}
    return Comparison(
        *(_hits(3, 1, 2), _hits(3, 4, 5), [[], [], []], ranks),
        *(PointDistances(POINTS, "cosine"), explanation, duplicate_threshold),
    )


def test_explained_results_have_both_terms_and_the_result_that_causes_the_penalty() -> None:
    assert _explained(EXPLANATION).diverse_reasons() == [
        ("both", "Also no. 1 of the nearest. Relevance 0, penalty 0."),
        (
            "new",
            "New: no. 9 by nearness. Relevance -0.25, penalty -0.125. "
            "Nearest earlier result: no. 1 (cosine 0.30).",
        ),
        ("new", "New: no. 12 by nearness. A near-copy that fills up the list."),
    ]


def test_explained_plain_results_have_the_result_that_displaced_them() -> None:
    displaced = ("left", "Left out: displaced by no. 2; nearest to no. 1 (cosine 0.95).")
    assert _explained(EXPLANATION, 0.99).plain_reasons() == [
        ("both", "Also no. 1 of the diverse results."),
        displaced,
        ("left", "Left out: a near-copy of no. 2 of the nearest, also left out."),
    ]
    for threshold in (None, 1.0):
        reasons = _explained(EXPLANATION, threshold).plain_reasons()
        assert reasons[1:] == [displaced, ("left", "Left out: nearest to no. 1 (cosine 0.95).")]
    alone = replace(EXPLANATION, displaced_distances=_floats(math.nan))
    assert _explained(alone).plain_reasons()[1] == ("left", "Left out: displaced by no. 2.")


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (Refusal(0, "max", "brand", "b1"), "brand = b1 was full"),
        (Refusal(0, "max", "brand", None), "the group without brand was full"),
        (Refusal(0, "min", "year", 3), "the remaining places were needed for year = 3"),
        (Refusal(0, "groups", "brand", "b"), "brand = b would have been one group too many"),
        (Refusal(0, "quotas", "", None), "no further results would have met all quotas"),
    ],
)
def test_points_that_a_quota_refused_have_its_rule(refusal: Refusal, words: str) -> None:
    explanation = replace(
        EXPLANATION,
        plain_ranks=np.array([1, 0, 12]),
        held_back=np.array([-1, 0, -1]),
        refusals=(refusal,),
    )
    comparison = replace(_explained(explanation), plain_ranks={3: 1, 4: 0, 5: 12})
    assert comparison.plain_reasons()[1] == ("left", f"Left out: {words} when no. 2 was picked.")
    assert comparison.diverse_reasons()[1] == (
        "new",
        "New: only a search for the quota has found it. Relevance -0.25, penalty -0.125. "
        f"Nearest earlier result: no. 1 (cosine 0.30). Point 1 is better, but {words}.",
    )


@pytest.mark.parametrize(
    ("metric", "threshold", "least"),
    [("cosine", 0.9, 0.2), ("inner_product", 0.9, 0.1), ("euclidean", 0.3, 0.3)],
)
def test_near_copies_are_at_the_threshold_or_nearer(
    metric: Metric, threshold: float, least: float
) -> None:
    distances = PointDistances([], metric)
    assert distances.are_copies(least, threshold)
    assert not distances.are_copies(least + 0.01, threshold)
    assert not distances.are_copies(0.0, None)


def test_points_that_are_gone_have_no_distances() -> None:
    distances = PointDistances(POINTS[:1], "cosine")
    comparison = Comparison(_hits(1, 3), _hits(1, 4), [[], []], {1: 1}, distances)
    assert comparison.plain_reasons()[1] == ("left", "Left out.")
    assert comparison.diverse_reasons()[1] == ("new", "New: not among the nearest 1.")
    assert comparison.figures(comparison.diverse) == {
        "score": pytest.approx(0.95),
        "distance": None,
        "least": None,
    }
    assert comparison.figures([]) == {"score": None, "distance": None, "least": None}
    vectorless = PointDistances([Record(1, None, {}, b"")], "cosine")
    assert vectorless.nearest(1, [1]) is None


def test_a_rank_that_contradicts_the_plain_list_is_not_shown() -> None:
    distances = PointDistances([], "cosine")
    comparison = Comparison(_hits(1, 2), _hits(3), [[]], {1: 1, 3: 2, 2: 3}, distances)
    assert comparison.diverse_reasons() == [("new", "New.")]


@pytest.mark.parametrize("metric", ["cosine", "euclidean", "inner_product"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_distances_equal_those_of_the_metrics(metric: Metric, is_sparse: bool) -> None:
    """Sparse points have more columns than one block of products."""
    rng = np.random.default_rng(0)
    matrix = sp.random(7, 9_000, density=0.3, random_state=rng, format="csr", dtype=np.float32)
    if is_sparse:
        vectors = [SparseVector(row.indices, row.data) for row in map(matrix.getrow, range(7))]
        records = [Record(i, vector, {}, b"") for i, vector in enumerate(vectors)]
    else:
        records = [Record(i, vector, {}, b"") for i, vector in enumerate(matrix.toarray())]
    rows = np.array([[4, 1, 6, 2]])
    measures = list_distances(matrix.toarray(), matrix[:1].toarray(), rows, metric)
    mean, least = PointDistances(records, metric).mean_and_least(rows[0].tolist())
    assert (mean, least) == pytest.approx((measures.mean[0], measures.least[0]), rel=1e-6)
    pairs = [
        list_distances(matrix.toarray(), matrix[:1].toarray(), np.array([[4, other]]), metric)
        for other in (1, 6, 2)
    ]
    nearest = PointDistances(records, metric).nearest(4, [1, 6, 2])
    assert nearest is not None
    assert nearest[1] == pytest.approx(min(pair.mean[0] for pair in pairs), rel=1e-6)


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("cosine", "cosine 0.50"),
        ("inner_product", "cosine 0.00"),
        ("euclidean", "squared distance 1"),
    ],
)
def test_distances_in_words(metric: Metric, words: str) -> None:
    assert PointDistances([], metric).words(1.0) == words


def test_values_are_counted_once() -> None:
    records: list[dict[str, AttributeValue]] = [
        {"a": "x", "b": ("p", "q")},
        {"a": None, "b": ()},
        {"a": "x", "b": ("q",)},
    ]
    assert distinct_values(records, ["a", "b"]) == {"a": 1, "b": 2}
    assert distinct_values([], ["a"]) == {"a": 0}
