"""`DiverseNeighbors` answers as `Index` does, and passes the checks of scikit-learn."""

import pickle
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.neighbors import NearestNeighbors
from sklearn.utils.estimator_checks import check_estimator

from divgrpc import Index
from divgrpc.errors import InvalidArgumentError
from divgrpc.estimators import DiverseNeighbors, NotFittedError
from divgrpc.types import Metric, QueryResult
from support.checks.refusals import refused
from support.data.served_index import random_points

# Checks of scikit-learn that do not apply, with the reason.
_WORDS = "the check expects a sentence of scikit-learn's own validation"
NOT_APPLICABLE = {
    "check_complex_data": _WORDS,
    "check_estimators_empty_data_messages": _WORDS,
    "check_estimators_nan_inf": _WORDS,
    "check_dtype_object": "the check expects a TypeError, and an argument that is no matrix of "
    "numbers is a ValueError here",
}
ZEROS = dict.fromkeys(
    (
        "check_estimators_dtypes",
        "check_estimator_sparse_tag",
        "check_estimator_sparse_array",
        "check_estimator_sparse_matrix",
    ),
    "the points have rows of zeros, which cosine refuses",
)
POINTS = random_points(400)
QUERIES = random_points(20, seed=1)


class OneProbe(Index):
    """Looks up one bucket, unless a call names the search."""

    def query(self, *arguments: Any, **options: Any) -> QueryResult:  # noqa: ANN401  # any
        """Query with one probe."""
        probe = {"search": "tables", "n_probes": 1}
        return super().query(*arguments, **probe | options)  # type: ignore[arg-type]  # any option


@pytest.mark.parametrize(
    ("estimator", "reasons"),
    [
        (DiverseNeighbors(), NOT_APPLICABLE),
        (DiverseNeighbors(metric="inner_product", diversity=0.5), NOT_APPLICABLE),
        (DiverseNeighbors(metric="cosine"), NOT_APPLICABLE | ZEROS),
    ],
    ids=["euclidean", "inner product", "cosine"],
)
def test_scikit_learn_accepts_the_estimator(
    estimator: DiverseNeighbors, reasons: dict[str, str]
) -> None:
    """All checks pass, except those with a reason; they fail, so that no reason outlives its use.

    A skipped check needs an array library that is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the base class, and about what is skipped
        results = check_estimator(estimator, expected_failed_checks=reasons, on_fail=None)
    names: dict[str, set[str]] = {}
    for result in results:
        names.setdefault(result["status"], set()).add(result["check_name"])
    assert len(names["passed"]) >= 30
    assert names.get("failed", set()) == set()
    assert names["xfail"] == set(reasons)
    assert names.get("skipped", set()) <= {"check_array_api_input"}


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_diversity_0_is_nearest_neighbors_of_scikit_learn(metric: Metric) -> None:
    diverse = DiverseNeighbors(7, metric=metric, diversity=0).fit(POINTS)
    reference = NearestNeighbors(n_neighbors=7, metric=metric).fit(POINTS)
    for rows in (QUERIES, None):
        distances, places = diverse.kneighbors(rows)
        expected_distances, expected_places = reference.kneighbors(rows)
        assert places.tolist() == expected_places.tolist()
        np.testing.assert_allclose(distances, expected_distances, atol=2e-4)
        assert distances.dtype == np.float64
        assert places.dtype == np.int64


@pytest.mark.parametrize("metric", ["cosine", "euclidean", "inner_product"])
def test_answers_are_those_of_the_index(metric: Metric) -> None:
    """All parameters reach the index."""
    params: dict[str, Any] = {"diversity": 0.4, "selector": "mmr", "duplicate_threshold": 0.9}
    diverse = DiverseNeighbors(6, metric=metric, **params).fit(POINTS)
    result = Index.build(POINTS, metric=metric).query(QUERIES, k=6, **params)
    distances, places = diverse.kneighbors(QUERIES)
    assert places.tobytes() == result.ids.tobytes()
    scores = result.scores.astype(np.float64)
    expected = {"cosine": 1 - scores, "euclidean": np.sqrt(scores), "inner_product": -scores}
    assert distances.tobytes() == expected[metric].tobytes()
    assert diverse.kneighbors(QUERIES, return_distance=False).tobytes() == places.tobytes()
    diverse.set_params(duplicate_threshold=None, keep_duplicates=True, selector="greedy")
    result = diverse.index_.query(QUERIES, k=3, diversity=0.4, keep_duplicates=True)
    assert diverse.kneighbors(QUERIES, 3)[1].tobytes() == result.ids.tobytes()


def test_sparse_points() -> None:
    rows = sparse.random_array((300, 40), density=0.2, rng=np.random.default_rng(0))
    diverse = DiverseNeighbors(diversity=0).fit(rows)
    reference = NearestNeighbors(n_neighbors=5).fit(rows.toarray())
    distances, _ = diverse.kneighbors(rows.tocsr()[:50])
    expected, _ = reference.kneighbors(rows.toarray()[:50])
    np.testing.assert_allclose(distances, expected, atol=1e-3)


def test_more_rows_than_one_query_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    diverse = DiverseNeighbors().fit(POINTS)
    whole = [diverse.kneighbors(rows)[1].tobytes() for rows in (POINTS, None)]
    monkeypatch.setitem(diverse.kneighbors.__globals__["LIMITS"], "query_rows_max", 150)
    assert [diverse.kneighbors(rows)[1].tobytes() for rows in (POINTS, None)] == whole


def test_rows_are_full_even_if_hash_tables_find_too_few() -> None:
    points = random_points(8_000)
    diverse = DiverseNeighbors(50).fit(points)
    diverse.index_ = OneProbe(
        Index.build(points, metric="euclidean", hash_family="lsh_div", n_tables=1, n_bits=14).engine
    )
    assert diverse.index_.query(points[:20], k=50).counts.min() < 50
    for rows, count in ((points[:20], 20), (None, len(points))):
        places = diverse.kneighbors(rows, return_distance=False)
        assert places.shape == (count, 50)
        assert places.min() >= 0


def test_parameters_are_those_of_the_constructor() -> None:
    diverse = DiverseNeighbors(3, metric="cosine")
    params = diverse.get_params()
    assert params["n_neighbors"] == 3
    assert DiverseNeighbors(**params).get_params() == params
    assert repr(diverse) == "DiverseNeighbors(n_neighbors=3, metric='cosine')"
    assert diverse.set_params(n_neighbors=4, selector="dpp") is diverse
    assert (diverse.n_neighbors, diverse.selector) == (4, "dpp")
    copy = clone(diverse)
    assert copy is not diverse
    assert copy.get_params() == diverse.get_params()
    with refused("n_neighbours", "n_neighbors"):
        diverse.set_params(n_neighbours=4)


def test_a_subclass_may_have_further_parameters() -> None:
    class Titled(DiverseNeighbors):
        def __init__(self, n_neighbors: int = 5, *, title: str = "") -> None:
            super().__init__(n_neighbors)
            self.title = title

    estimator = Titled(2, title="x")
    assert estimator.get_params() == {"n_neighbors": 2, "title": "x"}
    assert repr(clone(estimator)) == "Titled(n_neighbors=2, title='x')"


def _copied(estimator: DiverseNeighbors) -> DiverseNeighbors:
    copy: DiverseNeighbors = pickle.loads(pickle.dumps(estimator))  # noqa: S301  # made here
    return copy


def test_a_pickle_gives_the_same_answers() -> None:
    diverse = DiverseNeighbors(metric="cosine", diversity=0.3)
    assert _copied(diverse).get_params() == diverse.get_params()
    diverse.fit(POINTS)
    restored = _copied(diverse)
    assert restored.get_params() == diverse.get_params()
    assert restored.n_features_in_ == POINTS.shape[1]
    for one, two in zip(restored.kneighbors(QUERIES), diverse.kneighbors(QUERIES), strict=True):
        assert one.tobytes() == two.tobytes()


def test_errors_name_the_parameters_of_the_estimator() -> None:
    diverse = DiverseNeighbors()
    for error in (NotFittedError, SklearnNotFittedError, ValueError, AttributeError):
        with pytest.raises(error, match="call fit first"):
            diverse.kneighbors(QUERIES)
    with refused("X", r"^X must be a matrix of rows, .*; X\[None\] is"):
        diverse.fit(POINTS[0])
    with refused("X", "^X row 3 has a value that is not finite"):
        diverse.fit(np.where(np.arange(400)[:, None] == 3, np.nan, POINTS))
    with refused("n_neighbors", "^n_neighbors must be"):
        DiverseNeighbors(0).fit(POINTS)
    with refused("diversity"):
        DiverseNeighbors(diversity=2).fit(POINTS)
    with refused("metric"):
        DiverseNeighbors(metric="manhattan").fit(POINTS)  # type: ignore[arg-type]  # the point
    diverse.fit(POINTS)
    with refused("X", "^X must have 24 columns, got 23"):
        diverse.kneighbors(QUERIES[:, :-1])
    with refused("X", "^X must be a matrix of rows"):
        diverse.kneighbors(QUERIES[0])
    assert diverse.kneighbors(QUERIES, 400)[1].shape == (20, 400)
    with refused("n_neighbors", "at most the number of points, 400; got 401"):
        diverse.kneighbors(QUERIES, 401)
    with refused("n_neighbors", "at most the number of other points, 399; got 400"):
        diverse.kneighbors(n_neighbors=400)
    with refused("X", "^X must have at least one row$"):
        diverse.kneighbors(POINTS[:0])
    with refused("X", "^X row 0 is all zeros, which has no direction$"):
        DiverseNeighbors(metric="cosine").fit(np.zeros((10, 2)))


def test_scikit_learn_is_not_needed() -> None:
    program = """
import sys
sys.modules["sklearn"] = None
import numpy as np
from divgrpc.estimators import DiverseNeighbors, NotFittedError
try:
    DiverseNeighbors().kneighbors()
except NotFittedError:
    pass
print(DiverseNeighbors(2).fit(np.eye(5)).kneighbors(return_distance=False).shape)
"""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert ran.stdout == "(5, 2)\n"


def test_errors_count_rows_over_all_blocks() -> None:
    points = np.random.default_rng(0).standard_normal((50, 3))
    estimator = DiverseNeighbors(metric="cosine").fit(points)
    queries = np.ones((10_500, 3))
    queries[10_200] = 0
    with pytest.raises(InvalidArgumentError, match="row 10200 is all zeros"):
        estimator.kneighbors(queries)
    with pytest.raises(InvalidArgumentError, match="at least one row"):
        estimator.kneighbors(np.empty((0, 3)))
