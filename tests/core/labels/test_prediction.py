"""Prediction of labels in process: twins, limits and errors."""

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
# The lengths of factors differ widely; two factors are equal, and one is all zeros.
FACTORS = RNG.standard_normal((LABELS, RANK)) * (1 + np.arange(LABELS)[:, np.newaxis]) ** -0.7
FACTORS = RNG.permutation(FACTORS).astype("f4")
FACTORS[10] = FACTORS[20]
FACTORS[30] = 0
MAP = RNG.standard_normal((FEATURES, RANK)).astype("f4")
NAMES = [f"label {number} é" for number in range(LABELS)]


@cache
def index(family: HashFamily = "lsh_sdiv", metric: Metric = "cosine") -> Index:
    """Return an index of the documents with labels, names and factors."""
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
    """Return the index over the label factors as an `Index`."""
    section = built.engine.manifest.labels
    assert section is not None
    assert section.index is not None
    return Index(Engine(Generation(section.index, part_of(built.engine._arrays, INDEX))))


def columns(result: LabelResult) -> list[bytes]:
    """Return the bytes of a result."""
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
    """A document has the same bytes alone and in a batch."""
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


# `qp_relax` has no twin here: its tests compare it with a general solver.
@pytest.mark.parametrize("selector", sorted({*get_args(Selector)} - {"qp_relax"}))
@pytest.mark.parametrize("diversity", [0.0, 0.4, 1.0])
def test_predictions_agree_with_their_twin(selector: Selector, diversity: float) -> None:
    """An exact search predicts what loops over all labels select."""
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
def test_labels_are_searched_like_points(family: HashFamily, search: Search) -> None:
    """A prediction is a query of an index over the label factors."""
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
    """Label factors are stored by descending length, so few are scored."""
    lengths = np.linalg.norm(inner(index()).engine._arrays["vectors"], axis=1)
    assert (np.diff(lengths) <= 1e-6).all()
    # As points the long ones come last, so a search must see all.
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
def test_a_scan_ends_when_labels_are_too_short(hash_limit: int, candidates_limit: int) -> None:
    """It agrees with its twin, and scores few labels."""
    rng = np.random.default_rng(1)
    lengths = rng.permutation((1 + np.arange(4_000)) ** -0.8)
    built = Index.build(X, label_model=(rng.standard_normal((4_000, 6)) * lengths[:, None], MAP))
    assert built.engine.labels is not None
    points = points_of(inner(built))
    queries = embed(X[:3].copy(), MAP, np.zeros(RANK, "f4"), unit=False)
    limits = {"hash_limit": hash_limit, "candidates_limit": candidates_limit}
    for search, diversity in itertools.product(("scan", "scan_hamming", "exact"), (0.0, 0.3)):
        options: dict[str, Any] = {"search": search, "diversity": diversity, "top_k": 3, **limits}
        result = built.predict_labels(X[:3], **options)
        effective = built.engine.labels.resolve(PredictParameters(**options))
        for query, labels in zip(queries, result.labels, strict=True):
            assert labels.tolist() == near_copies.answer(points, query, effective).ids
        if hash_limit != 0 and search != "exact":
            assert result.stats.points_scored.max() < 1_000


def test_a_batch_agrees_with_single_documents() -> None:
    """Dense, sparse and single documents get the same bytes."""
    whole = columns(index().predict_labels(X, diversity=0.3))
    assert columns(index().predict_labels(sparse.csr_array(X), diversity=0.3)) == whole
    alone = [columns(index().predict_labels(row, diversity=0.3)) for row in X]
    assert [b"".join(parts) for parts in zip(*alone, strict=True)] == whole


def test_a_seed_fixes_the_model() -> None:
    """Two builds have equal arrays."""
    built = [
        Index.build(X, labels=Y, label_model="leml", rank=3, regularisation=1.0, iterations=2)
        for _ in range(2)
    ]
    first, second = (each.engine._arrays for each in built)
    assert set(first) == set(second)
    for name, array in first.items():
        assert array.tobytes() == second[name].tobytes(), name


def test_labels_may_be_sparse_or_dense() -> None:
    """Both give the same arrays."""
    dense = Index.build(X, labels=Y.toarray(), label_model="leml", rank=3, iterations=1)
    apart = Index.build(X, labels=Y, label_model="leml", rank=3, iterations=1)
    for name in ("label_sets.indptr", "label_sets.indices", "feature_map"):
        assert dense.engine._arrays[name].tobytes() == apart.engine._arrays[name].tobytes()


# Thresholds and limits.


def test_a_threshold_drops_labels_before_selection() -> None:
    """No label below it is returned, even if that leaves none."""
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


def test_top_k_above_the_number_of_labels() -> None:
    """All labels are returned, with a warning."""
    result = index().predict_labels(X[:2], top_k=LABELS + 5, candidates_limit=0, hash_limit=0)
    assert result.labels.shape == (2, LABELS + 5)
    assert result.counts.tolist() == [LABELS] * 2
    assert sorted(result.labels[0].tolist()) == [-1] * 5 + list(range(LABELS))
    assert [warning.code for warning in result.warnings] == ["FEWER_THAN_TOP_K_LABELS"]


def test_one_label_and_one_document() -> None:
    """The smallest index predicts in both modes."""
    built = Index.build(
        X[:1], labels=np.ones((1, 1)), label_model=(FACTORS[:1], MAP), label_names=[""]
    )
    modes: list[Mode] = ["embedding", "neighbour_vote"]
    for mode in modes:
        result = built.predict_labels(X[0], mode=mode, top_k=2)
        assert result.labels.tolist() == [[0, -1]]
        assert result.names == (("",),)


def test_equal_labels_are_in_order() -> None:
    """Of labels with equal factors the smaller comes first."""
    result = index().predict_labels(X, top_k=LABELS, diversity=0, candidates_limit=0, hash_limit=0)
    for row in result.labels.tolist():
        assert row.index(20) == row.index(10) + 1


def test_every_selector_takes_both_ends_of_diversity() -> None:
    """At 0 it returns the labels with the largest products, at 1 a full list."""
    queries = embed(X.copy(), MAP, np.zeros(RANK, "f4"), unit=False)
    best = np.argsort(-(queries @ FACTORS.T), axis=1, kind="stable")[:, :5]
    for selector in get_args(Selector):
        result = index().predict_labels(X, diversity=0, selector=selector, search="exact")
        assert result.labels.tolist() == best.tolist()
        assert index().predict_labels(X, diversity=1, selector=selector).counts.min() == 5


# Votes.


@pytest.mark.parametrize("vote", get_args(Vote))
@pytest.mark.parametrize("metric", ["cosine", "euclidean", "inner_product"])
def test_votes_agree_with_their_twin(vote: Vote, metric: Metric) -> None:
    """The hits of a query vote, weighted or not."""
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
    """Labels with a smaller share are left out."""
    result = index().predict_labels(X, mode="neighbour_vote", threshold=0.25)
    assert (result.scores[result.labels >= 0] >= 0.25).all()
    assert result.counts.sum() < index().predict_labels(X, mode="neighbour_vote").counts.sum()


# Refusals.


@pytest.mark.parametrize(
    ("field", "options"),
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
    """In both modes."""
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
    """The error names the field and the row."""
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        index().predict_labels(documents, mode=mode)
    assert caught.value.field == "documents"


def test_a_mode_needs_its_part_of_the_index() -> None:
    """Without it the mode is refused, and the other mode still predicts."""
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


def test_limits_without_a_choice_give_a_warning() -> None:
    """As in a query."""
    result = index().predict_labels(X, top_k=5, candidates_limit=5)
    assert [warning.code for warning in result.warnings] == ["CANDIDATES_LIMIT_EQUALS_K"]


def test_labels_do_not_change_queries() -> None:
    """An index without labels gives the same hits."""
    bare = Index.build(sparse.csr_array(X), ids=100 + np.arange(DOCUMENTS))
    parameters = QueryParameters(k=4, search="scan")
    assert (
        index().engine.answer(X, parameters).ids.tolist()
        == bare.engine.answer(X, parameters).ids.tolist()
    )


def test_scores_are_those_of_the_model() -> None:
    """For a trained model, which scales documents and adds a constant."""
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
