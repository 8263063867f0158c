"""Labels predicted in process: beside the twins, at every end, and refused where they must be."""

import itertools
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from divgrpc.engine import Engine
from divgrpc.errors import InvalidArgumentError, UnfitIndexError
from divgrpc.index import Index
from divgrpc.labels.prediction import INDEX, embed
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.parameters.predict import PredictParameters
from divgrpc.storage.generations import Generation
from divgrpc.storage.writers import part_of
from divgrpc.types import FloatArray, HashFamily, LabelResult, Metric, Mode, Search, Selector, Vote
from divgrpc.vectors import RowsLike, SparseRows
from reference import labels as reference_labels
from reference import near_copies
from reference.index import points_of

examples = settings(deadline=None, derandomize=True, max_examples=60)

DOCUMENTS, FEATURES, LABELS, RANK = 40, 12, 300, 6
RNG = np.random.default_rng(7)
X = (RNG.random((DOCUMENTS, FEATURES)) * (RNG.random((DOCUMENTS, FEATURES)) < 0.4)).astype("f4")
X[np.arange(DOCUMENTS), np.arange(DOCUMENTS) % FEATURES] += 1
Y = sparse.csr_array(RNG.random((DOCUMENTS, LABELS)) < 0.02)
# Lengths fall far; some factors come twice, and one is all zeros.
FACTORS = RNG.standard_normal((LABELS, RANK)) * (1 + np.arange(LABELS)[:, np.newaxis]) ** -0.7
FACTORS = RNG.permutation(FACTORS).astype("f4")
FACTORS[10] = FACTORS[20]
FACTORS[30] = 0
MAP = RNG.standard_normal((FEATURES, RANK)).astype("f4")
NAMES = [f"label {number} é" for number in range(LABELS)]


@cache
def index(family: HashFamily = "lsh_sdiv", metric: Metric = "cosine") -> Index:
    """Return an index of the documents with their labels and factors from elsewhere."""
    return Index.build(
        sparse.csr_array(X),
        ids=100 + np.arange(DOCUMENTS),
        hash_family=family,
        metric=metric,
        labels=Y,
        label_model=(FACTORS, MAP),
        label_names=NAMES,
    )


def inner(built: Index) -> Index:
    """Return the index over the label factors as one of its own."""
    section = built.engine.manifest.labels
    assert section is not None
    assert section.index is not None
    return Index(Engine(Generation(section.index, part_of(built.engine._arrays, INDEX))))


def columns(result: LabelResult) -> list[bytes]:
    """Return an answer's bytes."""
    stats = result.stats
    arrays = (
        *(result.labels, result.scores, result.selection_scores, result.counts),
        *(stats.points_hashed, stats.points_scored, stats.candidates, stats.buckets_probed),
    )
    return [array.tobytes() for array in arrays]


# Embedding.


@examples
@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
def test_embedded_documents_agree_with_their_twin(seed: int, unit: bool, stored: bool) -> None:
    """Alone or in company: the same bytes, and the sums of the definition."""
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((5, FEATURES)) * (rng.random((5, FEATURES)) < 0.5)).astype("f4")
    rows[:, 0] = 1
    offset = rng.standard_normal(RANK).astype("f4")
    given_rows = SparseRows.of(sparse.csr_array(rows)) if stored else rows.copy()
    result = embed(given_rows, MAP, offset, unit=unit)
    for number, row in enumerate(rows):
        truth = reference_labels.embed(row, MAP, offset, unit=unit)
        assert result[number] == pytest.approx(truth, rel=1e-5, abs=1e-5)
        one = rows[number : number + 1].copy()
        alone = SparseRows.of(sparse.csr_array(one)) if stored else one
        assert embed(alone, MAP, offset, unit=unit).tobytes() == result[number].tobytes()


# `qp_relax` has no twin among the loops: its own tests have a general solver beside it.
@pytest.mark.parametrize("selector", sorted({*get_args(Selector)} - {"qp_relax"}))
@pytest.mark.parametrize("diversity", [0.0, 0.4, 1.0])
def test_predictions_agree_with_loops(selector: Selector, diversity: float) -> None:
    """Every label scored, the best kept, one by one: what an exact search predicts."""
    parameters = PredictParameters(
        top_k=4, diversity=diversity, selector=selector, search="exact", candidates_limit=9
    )
    built = index()
    assert built.engine.labels is not None
    points, effective = points_of(inner(built)), built.engine.labels.resolve(parameters)
    result = built.engine.predict(X[:5], parameters)
    for row, document in enumerate(X[:5]):
        query = embed(document[np.newaxis].copy(), MAP, np.zeros(RANK, "f4"), unit=False)[0]
        truth = near_copies.answer(points, query, effective)
        assert result.labels[row].tolist() == truth.ids
        assert result.scores[row] == pytest.approx(truth.scores, rel=1e-4, abs=1e-5)
        assert result.scores[row] == pytest.approx(FACTORS[truth.ids] @ query, rel=1e-4, abs=1e-5)
        assert result.names[row] == tuple(NAMES[label] for label in truth.ids)


@pytest.mark.parametrize("family", get_args(HashFamily))
@pytest.mark.parametrize("search", get_args(Search))
def test_labels_are_searched_as_points_are(family: HashFamily, search: Search) -> None:
    """A prediction is the answer of an index over the label factors to the embedded document."""
    built = index(family)
    labels, options = inner(built), {"search": search, "hash_limit": 30, "candidates_limit": 12}
    result = built.predict_labels(X, top_k=3, seed=5, diversity=0.3, **options)  # type: ignore[arg-type]
    queries = embed(X.copy(), MAP, np.zeros(RANK, "f4"), unit=False)
    plain: dict[str, Any] = {"diversity": 0.3, "variant": "corrected", "keep_duplicates": True}
    truth = labels.query(queries, k=3, seed=5, **plain, **options)  # type: ignore[arg-type]
    assert result.labels.tolist() == truth.ids.tolist()
    assert result.scores.tobytes() == truth.scores.tobytes()
    assert result.selection_scores.tobytes() == truth.selection_scores.tobytes()
    assert result.stats.candidates.tolist() == truth.stats.candidates.tolist()
    assert result.parameters.search == truth.parameters.search


def test_an_exact_search_ends_early_and_finds_the_same() -> None:
    """Label factors lie by falling length: few are scored, and nothing of the answer changes."""
    lengths = np.linalg.norm(inner(index()).engine._arrays["vectors"], axis=1)
    assert (np.diff(lengths) <= 1e-6).all()
    # As points the long ones are the last, and all must be seen.
    many = np.concatenate((np.full((3_000, RANK), 1e-4, "f4"), FACTORS))
    long_tailed = Index.build(X, label_model=(many, MAP))
    plain = Index.build(many, metric="inner_product")
    queries = embed(X.copy(), MAP, np.zeros(RANK, "f4"), unit=False)
    for diversity in (0, 0.3):
        options: dict[str, Any] = {
            "search": "exact",
            "diversity": diversity,
            "candidates_limit": 20,
        }
        result = long_tailed.predict_labels(X, **options)
        truth = plain.query(queries, k=5, variant="corrected", keep_duplicates=True, **options)
        assert result.labels.tolist() == truth.ids.tolist()
        assert result.scores.tobytes() == truth.scores.tobytes()
        assert result.stats.points_scored.max() < 1_000
        assert truth.stats.points_scored.min() == len(many)


@pytest.mark.parametrize(("hash_limit", "candidates_limit"), [(40, 10), (0, 10), (40, 0), (700, 3)])
def test_a_scan_ends_where_labels_are_too_short(hash_limit: int, candidates_limit: int) -> None:
    """As the twin: of rows that may count, those whose codes are best, the longest known."""
    rng = np.random.default_rng(1)
    lengths = rng.permutation((1 + np.arange(9_000)) ** -0.8)
    built = Index.build(X, label_model=(rng.standard_normal((9_000, 6)) * lengths[:, None], MAP))
    assert built.engine.labels is not None
    points = points_of(inner(built))
    queries = embed(X[:8].copy(), MAP, np.zeros(RANK, "f4"), unit=False)
    limits = {"hash_limit": hash_limit, "candidates_limit": candidates_limit}
    for search, diversity in itertools.product(("scan", "scan_hamming", "exact"), (0.0, 0.3)):
        options: dict[str, Any] = {"search": search, "diversity": diversity, "top_k": 3, **limits}
        result = built.predict_labels(X[:8], **options)
        effective = built.engine.labels.resolve(PredictParameters(**options))
        for query, labels in zip(queries, result.labels, strict=True):
            assert labels.tolist() == near_copies.answer(points, query, effective).ids
        if hash_limit != 0 and search != "exact":
            assert result.stats.points_scored.max() < 1_000


def test_a_batch_gives_what_its_documents_give() -> None:
    """One at a time, together, dense, sparse or as one vector: the same bytes."""
    whole = columns(index().predict_labels(X, diversity=0.3))
    assert columns(index().predict_labels(sparse.csr_array(X), diversity=0.3)) == whole
    alone = [columns(index().predict_labels(row, diversity=0.3)) for row in X]
    assert [b"".join(parts) for parts in zip(*alone, strict=True)] == whole


def test_a_build_predicts_the_same_again() -> None:
    """The same data and seed give the same bytes, training included."""
    built = [
        Index.build(X, labels=Y, label_model="leml", rank=3, regularisation=1.0, iterations=2)
        for _ in range(2)
    ]
    first, second = (each.engine._arrays for each in built)
    assert set(first) == set(second)
    for name, array in first.items():
        assert array.tobytes() == second[name].tobytes(), name


def test_labels_may_come_in_parts() -> None:
    """Sparse or dense, whole or block by block, the labels of the points are the same."""
    dense = Index.build(X, labels=Y.toarray(), label_model="leml", rank=3, iterations=1)
    apart = Index.build(X, labels=Y, label_model="leml", rank=3, iterations=1)
    for name in ("label_sets.indptr", "label_sets.indices", "feature_map"):
        assert dense.engine._arrays[name].tobytes() == apart.engine._arrays[name].tobytes()


# Threshold, and ends.


def test_a_threshold_drops_labels_before_they_are_selected() -> None:
    """No label below it is returned, and where none reaches it there is none."""
    plain = index().predict_labels(X, top_k=5, diversity=0.5, search="exact")
    least = float(np.median(plain.scores))
    result = index().predict_labels(X, top_k=5, diversity=0.5, search="exact", threshold=least)
    assert (result.scores[result.labels >= 0] >= least).all()
    assert 0 < result.counts.sum() < plain.counts.sum()
    assert ((result.labels >= 0).sum(axis=1) == result.counts).all()
    assert [len(names) for names in result.names] == result.counts.tolist()
    assert result.warnings[0].code == "FEWER_THAN_TOP_K_FOUND"
    for beyond in (1e6, 1e300):
        none = index().predict_labels(X, threshold=beyond)
        assert none.counts.tolist() == [0] * DOCUMENTS
        assert np.isnan(none.scores).all()
    plain = index().predict_labels(X)
    for least in (-1e6, -1e300, -np.inf):
        every = index().predict_labels(X, threshold=least)
        assert every.labels.tobytes() == plain.labels.tobytes()


def test_more_labels_than_there_are() -> None:
    """All labels come, and a warning says why there are no more."""
    result = index().predict_labels(X[:2], top_k=LABELS + 5, candidates_limit=0, hash_limit=0)
    assert result.labels.shape == (2, LABELS + 5)
    assert result.counts.tolist() == [LABELS] * 2
    assert sorted(result.labels[0].tolist()) == [-1] * 5 + list(range(LABELS))
    assert [warning.code for warning in result.warnings] == ["FEWER_THAN_TOP_K_LABELS"]


def test_one_label_and_one_document() -> None:
    """The least that there can be is predicted, in both modes."""
    built = Index.build(
        X[:1], labels=np.ones((1, 1)), label_model=(FACTORS[:1], MAP), label_names=[""]
    )
    modes: list[Mode] = ["embedding", "neighbour_vote"]
    for mode in modes:
        result = built.predict_labels(X[0], mode=mode, top_k=2)
        assert result.labels.tolist() == [[0, -1]]
        assert result.names == (("",),)


def test_equal_labels_go_by_number() -> None:
    """Factors that come twice tie, and the smaller label is first."""
    result = index().predict_labels(X, top_k=LABELS, diversity=0, candidates_limit=0, hash_limit=0)
    for row in result.labels.tolist():
        assert row.index(20) == row.index(10) + 1


def test_every_dial_has_two_ends() -> None:
    """At diversity 0 every selector gives the labels of the largest products; at 1 it answers."""
    queries = embed(X.copy(), MAP, np.zeros(RANK, "f4"), unit=False)
    best = np.argsort(-(queries @ FACTORS.T), axis=1, kind="stable")[:, :5]
    for selector in get_args(Selector):
        result = index().predict_labels(X, diversity=0, selector=selector, search="exact")
        assert result.labels.tolist() == best.tolist()
        assert index().predict_labels(X, diversity=1, selector=selector).counts.min() == 5


# Votes.


@pytest.mark.parametrize("vote", get_args(Vote))
@pytest.mark.parametrize("metric", ["cosine", "euclidean", "inner_product"])
def test_neighbours_vote_as_their_twin_does(vote: Vote, metric: Metric) -> None:
    """The neighbours that Query finds have votes of their labels, weighed or counted."""
    built = index(metric=metric)
    options: dict[str, Any] = {"diversity": 0.2, "search": "exact"}
    result = built.predict_labels(
        X[:9], mode="neighbour_vote", neighbours=6, vote=vote, top_k=4, **options
    )
    answers = built.query(X[:9], k=6, variant="corrected", keep_duplicates=True, **options)
    sets = [set(Y.indices[Y.indptr[i] : Y.indptr[i + 1]].tolist()) for i in range(DOCUMENTS)]
    for row in range(9):
        weights = [1.0] * 6
        if vote == "weighted":
            scores = answers.scores[row].astype(float)
            weights = np.maximum(scores, 0).tolist()
            if metric == "euclidean":
                weights = (1 / (1 + scores / scores.mean())).tolist()
        votes = reference_labels.vote((answers.ids[row] - 100).tolist(), weights, sets)
        best = reference_labels.best(votes, 4)
        count = int(result.counts[row])
        assert count == len(best)
        shares = result.scores[row, :count]
        assert shares == pytest.approx([votes[label] for label in best], rel=1e-5)
        assert shares == pytest.approx(
            [votes[int(n)] for n in result.labels[row, :count]], rel=1e-5
        )
    assert result.parameters.neighbours == 6
    assert result.stats.points_scored.tolist() == answers.stats.points_scored.tolist()


def test_a_threshold_is_a_share_of_the_votes() -> None:
    """Labels of fewer votes are left out."""
    result = index().predict_labels(X, mode="neighbour_vote", threshold=0.25)
    assert (result.scores[result.labels >= 0] >= 0.25).all()
    assert result.counts.sum() < index().predict_labels(X, mode="neighbour_vote").counts.sum()


# Refusals.


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("top_k", {"top_k": 0}),
        ("top_k", {"top_k": LIMITS["k_max"] + 1}),
        ("top_k", {"top_k": True}),
        ("threshold", {"threshold": np.nan}),
        ("threshold", {"threshold": np.inf}),
        ("threshold", {"threshold": np.zeros(2)}),
        ("threshold", {"threshold": "1"}),
        ("diversity", {"diversity": 1.5}),
        ("mode", {"mode": "majority"}),
        ("vote", {"vote": "loud"}),
        ("neighbours", {"neighbours": 0}),
        ("neighbours", {"neighbours": LIMITS["neighbours_max"] + 1}),
        ("selector", {"selector": "best"}),
        ("search", {"search": "fast"}),
        ("hash_limit", {"hash_limit": 4}),
        ("candidates_limit", {"candidates_limit": 4}),
        ("candidates_limit", {"candidates_limit": -1}),
        ("seed", {"seed": -1}),
    ],
)
def test_a_wrong_parameter_is_named(field: str, options: dict[str, Any]) -> None:
    """Each is refused in both modes, before any document is looked at."""
    if "limit" in field:
        options = options | {"neighbours": 5}
    for mode in get_args(Mode):
        with pytest.raises(InvalidArgumentError) as caught:
            index().predict_labels(X, **({"mode": mode} | options))
        assert caught.value.field == field


@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (np.ones((2, FEATURES + 1)), "must have 12 columns, got 13"),
        (np.zeros((0, FEATURES)), "must have 1 to 10000 rows, got 0"),
        (np.zeros((1, FEATURES)), "row 0 has no feature"),
        (np.diag([1.0, 2.0, *[0.0] * (FEATURES - 2)]), "row 2 has no feature"),
        (sparse.csr_array(np.diag([1.0, 2.0, *[0.0] * (FEATURES - 2)])), "row 2 has no feature"),
        (np.full((1, FEATURES), np.inf), "row 0 has a value that is not finite"),
        ([["a"] * FEATURES], "must be a matrix of numbers"),
    ],
)
def test_wrong_documents_are_named(documents: RowsLike, message: str, mode: Mode) -> None:
    """Unknown features, no feature, no number: the field and the row are named."""
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        index().predict_labels(documents, mode=mode)
    assert caught.value.field == "documents"


def test_an_index_without_a_model_predicts_nothing() -> None:
    """What the mode needs must have been built; the other mode may well be there."""
    nothing = Index.build(X)
    votes = Index.build(X, labels=Y)
    model = Index.build(X, label_model=(FACTORS, MAP))
    cases: list[tuple[Index, Mode]] = [
        (nothing, "embedding"),
        (nothing, "neighbour_vote"),
        (votes, "embedding"),
        (model, "neighbour_vote"),
    ]
    for built, mode in cases:
        with pytest.raises(UnfitIndexError) as caught:
            built.predict_labels(X, mode=mode)
        assert caught.value.field == "mode"
    assert votes.predict_labels(X, mode="neighbour_vote").counts.max() > 0
    assert model.predict_labels(X).counts.min() == 5


def test_limits_that_leave_no_choice_are_warned_of() -> None:
    """As for a query."""
    result = index().predict_labels(X, top_k=5, candidates_limit=5)
    assert [warning.code for warning in result.warnings] == ["CANDIDATES_LIMIT_EQUALS_K"]


def test_queries_do_not_see_the_labels() -> None:
    """The points are found as if there were none."""
    bare = Index.build(sparse.csr_array(X), ids=100 + np.arange(DOCUMENTS))
    parameters = QueryParameters(k=4, search="scan")
    assert (
        index().engine.answer(X, parameters).ids.tolist()
        == bare.engine.answer(X, parameters).ids.tolist()
    )


def test_real_scores_are_those_of_the_model() -> None:
    """A trained model's own scores of every label come out, documents scaled, constant added."""
    built = Index.build(X, labels=Y, label_model="leml", rank=4, regularisation=0.5, iterations=3)
    arrays = built.engine._arrays
    factors: FloatArray = np.empty_like(arrays["label_index.vectors"])
    factors[arrays["label_index.ids"]] = arrays["label_index.vectors"]
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    scores = (unit @ arrays["feature_map"] + arrays["label_offset"]) @ factors.T
    result = built.predict_labels(X, diversity=0, search="exact")
    expected = np.take_along_axis(scores, result.labels, axis=1)
    assert result.scores == pytest.approx(expected, abs=1e-5)
    assert result.scores[:, 0] == pytest.approx(scores.max(axis=1), abs=1e-5)
