"""Prediction of labels in process agrees with the reference, and respects limits."""

import itertools
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import sparse

from divgrpc.engine import Engine
from divgrpc.errors import UnfitIndexError
from divgrpc.index import Index
from divgrpc.labels import LabelModel, model, train
from divgrpc.labels.model import as_documents, best_labels
from divgrpc.labels.prediction import INDEX, embed
from divgrpc.parameters import LIMITS
from divgrpc.parameters.predict import PredictParameters
from divgrpc.storage.generations import Generation
from divgrpc.storage.writers import part_of
from divgrpc.types import FloatArray, HashFamily, LabelResult, Metric, Mode, Search, Selector, Vote
from divgrpc.vectors import RowsLike, SparseRows
from reference import kernels, near_copies
from reference import labels as reference
from reference.index import points_of
from support.checks.refusals import refused, wrong

examples = settings(max_examples=60)

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
SETS = [set(row.nonzero()[0].tolist()) for row in Y.toarray()]


@cache
def index(family: HashFamily = "lsh_sdiv", metric: Metric = "cosine") -> Index:
    return Index.build(
        sparse.csr_array(X),
        ids=100 + np.arange(DOCUMENTS),
        hash_family=family,
        metric=metric,
        labels=Y,
        label_model=(FACTORS, MAP),
        label_names=NAMES,
    )


def inner(document_index: Index) -> Index:
    """Return the index over the label factors as an `Index`."""
    section = document_index.engine.manifest.labels
    assert section is not None
    assert section.index is not None
    return Index(Engine(Generation(section.index, part_of(document_index.engine._arrays, INDEX))))


def columns(result: LabelResult) -> list[bytes]:
    stats = result.stats
    arrays = (
        *(result.labels, result.scores, result.selection_scores, result.counts),
        *(stats.points_hashed, stats.points_scored, stats.candidates, stats.buckets_probed),
    )
    return [array.tobytes() for array in arrays]


@examples
@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
def test_embedded_documents_agree_with_the_reference(
    seed: int, unit: bool, is_sparse: bool
) -> None:
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((5, FEATURES)) * (rng.random((5, FEATURES)) < 0.5)).astype("f4")
    rows[:, 0] = 1
    offset = rng.standard_normal(RANK).astype("f4")
    given_rows = SparseRows.of(sparse.csr_array(rows)) if is_sparse else rows.copy()
    result = embed(given_rows, MAP, offset, unit=unit)
    for number, row in enumerate(rows):
        truth = reference.embed(row, MAP, offset, unit=unit)
        assert result[number] == pytest.approx(truth, rel=1e-5, abs=1e-5)
        single_row = rows[number : number + 1].copy()
        alone = SparseRows.of(sparse.csr_array(single_row)) if is_sparse else single_row
        assert embed(alone, MAP, offset, unit=unit).tobytes() == result[number].tobytes()


# `qp_relax` has no reference implementation; its tests compare it with a general solver.
@pytest.mark.parametrize("selector", sorted({*get_args(Selector)} - {"qp_relax"}))
@pytest.mark.parametrize("diversity", [0.0, 0.4, 1.0])
def test_predictions_agree_with_the_reference(selector: Selector, diversity: float) -> None:
    parameters = PredictParameters(
        top_k=4, diversity=diversity, selector=selector, search="exact", candidates_limit=9
    )
    document_index = index()
    assert document_index.engine.labels is not None
    points, effective = (
        points_of(inner(document_index)),
        document_index.engine.labels.resolve(parameters),
    )
    result = document_index.engine.predict(X[:5], parameters)
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
    document_index = index(family)
    options: dict[str, Any] = {"search": search, "hash_limit": 30, "candidates_limit": 12}
    options |= {"seed": 5, "diversity": 0.3}
    queries = embed(X.copy(), MAP, np.zeros(RANK, "f4"), unit=False)
    plain: dict[str, Any] = {"variant": "corrected", "keep_duplicates": True}
    for selector in ("greedy", "qp_relax"):
        result = document_index.predict_labels(X, top_k=3, selector=selector, **options)
        truth = inner(document_index).query(queries, k=3, selector=selector, **plain, **options)
        assert result.labels.tolist() == truth.ids.tolist()
        assert result.scores.tobytes() == truth.scores.tobytes()
        assert result.selection_scores.tobytes() == truth.selection_scores.tobytes()
        assert result.stats.candidates.tolist() == truth.stats.candidates.tolist()
        assert result.parameters.search == truth.parameters.search


@pytest.mark.parametrize(("hash_limit", "candidates_limit"), [(40, 10), (0, 10), (40, 0), (700, 3)])
def test_a_search_ends_when_labels_are_too_short(hash_limit: int, candidates_limit: int) -> None:
    """A search agrees with the reference although it scores few labels, the longest first."""
    rng = np.random.default_rng(1)
    lengths = rng.permutation((1 + np.arange(4_000)) ** -0.8)
    document_index = Index.build(
        X, label_model=(rng.standard_normal((4_000, 6)) * lengths[:, None], MAP)
    )
    assert document_index.engine.labels is not None
    points = points_of(inner(document_index))
    queries = embed(X[:3].copy(), MAP, np.zeros(RANK, "f4"), unit=False)
    limits = {"hash_limit": hash_limit, "candidates_limit": candidates_limit}
    for search, diversity in itertools.product(("scan", "scan_hamming", "exact"), (0.0, 0.3)):
        options: dict[str, Any] = {"search": search, "diversity": diversity, "top_k": 3, **limits}
        result = document_index.predict_labels(X[:3], **options)
        effective = document_index.engine.labels.resolve(PredictParameters(**options))
        for query, labels in zip(queries, result.labels, strict=True):
            assert labels.tolist() == near_copies.answer(points, query, effective).ids
        if candidates_limit if search == "exact" else hash_limit:
            assert result.stats.points_scored.max() < 1_000


def test_a_batch_agrees_with_single_documents() -> None:
    whole = columns(index().predict_labels(X, diversity=0.3))
    assert columns(index().predict_labels(sparse.csr_array(X), diversity=0.3)) == whole
    alone = [columns(index().predict_labels(row, diversity=0.3)) for row in X]
    assert [b"".join(parts) for parts in zip(*alone, strict=True)] == whole


def test_training_with_a_seed_builds_the_same_index() -> None:
    parameters: dict[str, Any] = {"label_model": "leml", "rank": 3, "regularisation": 1.0}
    first, *repeats = (
        Index.build(X, labels=labels, iterations=2, **parameters).engine._arrays
        for labels in (Y, Y, Y.toarray())
    )
    for arrays in repeats:
        assert {name: array.tobytes() for name, array in arrays.items()} == {
            name: array.tobytes() for name, array in first.items()
        }
    bare = Index.build(sparse.csr_array(X), ids=100 + np.arange(DOCUMENTS))
    result, plain = (target_index.query(X, k=4, search="scan") for target_index in (index(), bare))
    assert result.ids.tolist() == plain.ids.tolist()


def test_a_threshold_drops_labels_before_selection() -> None:
    plain = index().predict_labels(X, top_k=5, diversity=0.5, search="exact")
    least = float(np.median(plain.scores))
    result = index().predict_labels(X, top_k=5, diversity=0.5, search="exact", threshold=least)
    assert (result.scores[result.labels >= 0] >= least).all()
    assert 0 < result.counts.sum() < plain.counts.sum()
    assert ((result.labels >= 0).sum(axis=1) == result.counts).all()
    assert [len(names) for names in result.names] == result.counts.tolist()
    assert result.warnings[0].code == "FEWER_THAN_TOP_K_FOUND"
    for beyond in (1e6, 1e300):
        empty_result = index().predict_labels(X, threshold=beyond)
        assert empty_result.counts.tolist() == [0] * DOCUMENTS
        assert np.isnan(empty_result.scores).all()
    votes = index().predict_labels(X, mode="neighbour_vote", threshold=0.25)
    assert (votes.scores[votes.labels >= 0] >= 0.25).all()
    assert votes.counts.sum() < index().predict_labels(X, mode="neighbour_vote").counts.sum()
    plain = index().predict_labels(X)
    for least in (-1e6, -1e300, -np.inf):
        full_result = index().predict_labels(X, threshold=least)
        assert full_result.labels.tobytes() == plain.labels.tobytes()


def test_top_k_above_the_number_of_labels() -> None:
    result = index().predict_labels(X[:2], top_k=LABELS + 5, candidates_limit=0, hash_limit=0)
    assert result.labels.shape == (2, LABELS + 5)
    assert result.counts.tolist() == [LABELS] * 2
    assert sorted(result.labels[0].tolist()) == [-1] * 5 + list(range(LABELS))
    assert [warning.code for warning in result.warnings] == ["FEWER_THAN_TOP_K_LABELS"]
    result = index().predict_labels(X, top_k=5, candidates_limit=5)
    assert [warning.code for warning in result.warnings] == ["CANDIDATES_LIMIT_EQUALS_K"]
    # Labels 10 and 20 have equal factors, so the smaller number comes first.
    result = index().predict_labels(X, top_k=LABELS, diversity=0, candidates_limit=0, hash_limit=0)
    assert all(row.index(20) == row.index(10) + 1 for row in result.labels.tolist())


def test_one_label_and_one_document() -> None:
    document_index = Index.build(
        X[:1], labels=np.ones((1, 1)), label_model=(FACTORS[:1], MAP), label_names=[""]
    )
    modes: list[Mode] = ["embedding", "neighbour_vote"]
    for mode in modes:
        result = document_index.predict_labels(X[0], mode=mode, top_k=2)
        assert result.labels.tolist() == [[0, -1]]
        assert result.names == (("",),)


@pytest.mark.parametrize("vote", get_args(Vote))
@pytest.mark.parametrize("metric", ["cosine", "euclidean", "inner_product"])
def test_votes_agree_with_the_reference(vote: Vote, metric: Metric) -> None:
    document_index = index(metric=metric)
    options: dict[str, Any] = {"diversity": 0.2, "search": "exact"}
    result = document_index.predict_labels(
        X[:9], mode="neighbour_vote", neighbours=6, vote=vote, top_k=4, **options
    )
    answers = document_index.query(X[:9], k=6, variant="corrected", keep_duplicates=True, **options)
    for row in range(9):
        weights = [1.0] * 6
        if vote == "weighted":
            scores = answers.scores[row].astype(float)
            weights = np.maximum(scores, 0).tolist()
            if metric == "euclidean":
                weights = (1 / (1 + scores / scores.mean())).tolist()
        votes = reference.vote((answers.ids[row] - 100).tolist(), weights, SETS)
        best = reference.best(votes, 4)
        count = int(result.counts[row])
        assert count == len(best)
        shares = result.scores[row, :count]
        assert shares == pytest.approx([votes[label] for label in best], rel=1e-5)
        assert shares == pytest.approx(
            [votes[int(n)] for n in result.labels[row, :count]], rel=1e-5
        )
    assert result.parameters.neighbours == 6
    assert result.stats.points_scored.tolist() == answers.stats.points_scored.tolist()


# Home buckets.

FAMILIES: list[HashFamily] = ["lsh_div", "lsh_sdiv", "pca_hash"]


def at_home(target_index: Index, vector: FloatArray) -> list[int]:
    """Return the rows of the index that are in the bucket of `vector` in one of the tables."""
    points = points_of(target_index)
    (margins,) = kernels.margins(vector, points.hyperplanes, points.thresholds)
    # The sign of such a margin may depend on rounding.
    assume(np.abs(margins).min() > 1e-5 * np.linalg.norm(vector))
    rows: set[int] = set()
    for table in range(points.n_tables):
        bucket_key = kernels.key(margins >= 0, table, points.n_bits)
        rows.update(kernels.buckets(points.bits, table, points.n_bits).get(bucket_key, []))
    return sorted(rows)


def home_buckets(target_index: Index) -> dict[str, Any]:
    """Return the options of a search that finds exactly the points in the home buckets."""
    n_tables = target_index.engine.manifest.parameters.n_tables
    return {"search": "tables", "n_probes": n_tables, "hash_limit": 0, "candidates_limit": 0}


def one_document(seed: int) -> FloatArray:
    rng = np.random.default_rng(seed)
    document = rng.random((1, FEATURES)) * (rng.random((1, FEATURES)) < 0.6)
    document[0, seed % FEATURES] += 0.5
    return document.astype(np.float32)


@examples
@given(st.integers(0, 2**32 - 1), st.sampled_from(FAMILIES))
def test_one_probe_for_each_table_finds_the_labels_of_home_buckets(
    seed: int, family: HashFamily
) -> None:
    """Algorithm 2 of the paper looks up the bucket of the document in each table."""
    document_index, document = index(family), one_document(seed)
    labels = inner(document_index)
    embedding = embed(document.copy(), MAP, np.zeros(RANK, np.float32), unit=False)
    home = points_of(labels).ids[at_home(labels, embedding[0])]
    options = home_buckets(labels)
    result = document_index.predict_labels(document, top_k=LABELS, diversity=0, **options)
    assert sorted(result.labels[0, : result.counts[0]].tolist()) == sorted(home.tolist())
    assert result.stats.buckets_probed.tolist() == [options["n_probes"]]
    assert result.parameters.n_probes == options["n_probes"]


@examples
@given(st.integers(0, 2**32 - 1), st.sampled_from(FAMILIES))
def test_one_probe_for_each_table_lets_home_buckets_vote(seed: int, family: HashFamily) -> None:
    document_index, document = index(family), one_document(seed)
    home = at_home(document_index, document[0] / np.linalg.norm(document))
    options = home_buckets(document_index)
    options |= {"mode": "neighbour_vote", "vote": "plain", "neighbours": DOCUMENTS}
    result = document_index.predict_labels(document, top_k=LABELS, diversity=0, **options)
    votes = reference.vote(home, [1.0] * len(home), SETS) if home else {}
    shares = dict(zip(result.labels[0].tolist(), result.scores[0].tolist(), strict=True))
    shares.pop(-1, None)
    assert shares == pytest.approx({label: share for label, share in votes.items() if share})


def test_probes_have_an_effect_with_tables_only() -> None:
    """By default there are as many probes as Build tuned, and without tables there are none."""
    document_index = index()
    for mode in get_args(Mode):
        answers = [
            document_index.predict_labels(
                X, mode=mode, search=search, n_probes=n_probes, hash_limit=50
            )
            for search in ("scan", "exact")
            for n_probes in (None, 1, 99)
        ]
        assert {answer.parameters.n_probes for answer in answers} == {0}
        assert len({answer.scores.tobytes() for answer in answers[:3]}) == 1
        assert len({answer.scores.tobytes() for answer in answers[3:]}) == 1
        probes = document_index.predict_labels(X, mode=mode, search="tables").parameters.n_probes
        assert probes > 0
        again = document_index.predict_labels(X, mode=mode, search="tables", n_probes=probes)
        assert columns(again) == columns(
            document_index.predict_labels(X, mode=mode, search="tables")
        )


@pytest.mark.parametrize("mode", get_args(Mode))
@wrong(
    top_k=[0, LIMITS["k_max"] + 1, True],
    threshold=[np.nan, np.inf, np.zeros(2), "1"],
    diversity=[1.5],
    mode=["majority"],
    vote=["loud"],
    neighbours=[0, LIMITS["neighbours_max"] + 1],
    selector=["best"],
    search=["fast"],
    hash_limit=[4],
    candidates_limit=[4, -1],
    n_probes=[0, -1, 2.5, True, "ten", 2**31],
    seed=[-1],
)
def test_invalid_parameters_are_refused(mode: Mode, field: str, value: Any) -> None:  # noqa: ANN401
    neighbours: dict[str, Any] = {"neighbours": 5} if "limit" in field else {}
    with refused(field):
        index().predict_labels(X, **({"mode": mode, field: value} | neighbours))


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
def test_invalid_documents_are_refused(documents: RowsLike, message: str, mode: Mode) -> None:
    with refused("documents", message):
        index().predict_labels(documents, mode=mode)


def test_a_mode_is_refused_without_labels_or_model() -> None:
    bare_index = Index.build(X)
    votes = Index.build(X, labels=Y)
    model = Index.build(X, label_model=(FACTORS, MAP))
    cases: list[tuple[Index, Mode]] = [
        (bare_index, "embedding"),
        (bare_index, "neighbour_vote"),
        (votes, "embedding"),
        (model, "neighbour_vote"),
    ]
    for target_index, mode in cases:
        with refused("mode", error=UnfitIndexError):
            target_index.predict_labels(X, mode=mode)
    assert votes.predict_labels(X, mode="neighbour_vote").counts.max() > 0
    assert model.predict_labels(X).counts.min() == 5


examples = settings(max_examples=200)


def factors(count: int = 7, dims: int = 4, rank: int = 3) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(1)
    return (
        rng.standard_normal((count, rank), dtype=np.float32),
        rng.standard_normal((dims, rank), dtype=np.float32),
    )


@given(
    st.lists(st.lists(st.integers(-2, 2), min_size=6, max_size=6), max_size=4), st.integers(1, 6)
)
@examples
def test_best_labels_agree_with_the_reference(rows: list[list[int]], count: int) -> None:
    scores = np.array(rows, np.float32).reshape(-1, 6)
    labels, best = best_labels(scores, count)
    expected = [reference.best(dict(enumerate(row)), count) for row in rows]
    assert labels.tolist() == expected
    assert np.array_equal(best, np.take_along_axis(scores, labels, axis=1))


def test_predict_returns_the_labels_of_largest_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores are the entries of X V H', for sparse and dense rows in any number of blocks."""
    label_factors, feature_map = factors()
    label_model = LabelModel.of_factors(label_factors, feature_map)
    documents = np.random.default_rng(2).standard_normal((5, 4)).astype(np.float32)
    scores = documents @ feature_map @ label_factors.T
    expected = np.argsort(-scores, axis=1)[:, :3]
    whole = label_model.predict(documents, top_k=3)
    assert np.array_equal(whole.labels, expected)
    assert np.allclose(whole.scores, np.take_along_axis(scores, expected, axis=1), atol=1e-5)
    monkeypatch.setattr(model, "_BLOCK_SCORES", 1)
    for given_rows in (documents, sparse.csr_array(documents)):
        assert np.array_equal(label_model.predict(given_rows, top_k=3).labels, expected)


def test_lists_have_top_k_places() -> None:
    label_model = LabelModel.of_factors([[1.0], [3.0], [2.0]], [[1.0]])
    all_there = label_model.predict([[2.0]], top_k=5)
    assert all_there.labels.tolist() == [[1, 2, 0, -1, -1]]
    assert all_there.counts.tolist() == [3]
    assert np.isnan(all_there.scores[0, 3:]).all()
    short_result = label_model.predict([[2.0], [0.0]], top_k=2, threshold=5.0)
    assert short_result.labels.tolist() == [[1, -1], [-1, -1]]
    assert short_result.counts.tolist() == [1, 0]


def test_a_trained_model_ignores_the_length_of_documents() -> None:
    """A document without features gets the labels that the offset alone predicts."""
    rng = np.random.default_rng(3)
    documents = rng.random((60, 8))
    label_model = train(documents, rng.random((60, 5)) < 0.4).model
    long = label_model.predict(documents * 100)
    assert np.array_equal(long.labels, label_model.predict(documents).labels)
    zero_result = label_model.predict(np.zeros((1, 8)))
    assert zero_result.scores[0, 0] == pytest.approx(
        (label_model.label_factors @ label_model.offset).max()
    )


def test_documents_get_unit_length_and_a_constant() -> None:
    given_rows = np.array([[3.0, 0, 4], [0, 0, 0]])
    expected = np.array([[0.6, 0, 0.8, 1], [0, 0, 0, 1]])
    for rows in (given_rows, sparse.csr_array(given_rows)):
        document_rows = as_documents(rows)
        dense = (
            document_rows.matrix.toarray()
            if isinstance(document_rows, SparseRows)
            else document_rows
        )
        assert np.allclose(dense, expected)


@pytest.mark.parametrize(
    ("label_factors", "feature_map", "field"),
    [
        ([[1.0, 2.0]], [[1.0]], "feature_map"),
        ([[np.nan]], [[1.0]], "label_factors"),
        (np.empty((0, 2)), [[1.0, 2.0]], "label_factors"),
        ([[1.0]], "wrong", "feature_map"),
    ],
)
def test_wrong_factors_are_refused(label_factors: Any, feature_map: Any, field: str) -> None:  # noqa: ANN401  # whatever a caller gives
    with refused(field):
        LabelModel.of_factors(label_factors, feature_map)


@pytest.mark.parametrize("unit_rows", [False, True])
def test_wrong_requests_are_refused(*, unit_rows: bool) -> None:
    label_model = LabelModel.of_factors(*factors(), unit_rows=unit_rows)
    for documents in (np.ones((1, 5)), np.full((1, 4), np.inf)):
        with refused("documents"):
            label_model.predict(documents, top_k=3)
    for top_k in (0, True):
        with refused("top_k"):
            label_model.predict(np.ones((1, 4)), top_k=top_k)
