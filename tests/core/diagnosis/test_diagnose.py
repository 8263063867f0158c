"""Diagnoses: counts against the slow reference, effects against queries, and the ends."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from core.kernels.test_collapse import copies
from core.kernels.test_greedy import METRICS, Case, Metrics
from divgrpc import Collection, Field, Index
from divgrpc.diagnosis.survey import COSINES
from divgrpc.errors import UnfitIndexError
from divgrpc.kernels.copy_counts import count_different
from divgrpc.metrics import Values
from divgrpc.types import Diagnosis, FloatArray, IdArray, Progress
from reference import near_copies
from support.checks.refusals import refused

examples = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)


def crowd(items: int, versions: int, *, dims: int = 16, seed: int = 0) -> FloatArray:
    """Return `versions` near-copies of each of `items` random points, with a cosine of .998."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((items, dims))
    rows = np.repeat(centres, versions, axis=0)
    return (rows + 0.04 * rng.standard_normal(rows.shape)).astype(np.float32)


def figures(diagnosis: Diagnosis) -> str:
    """Return all figures as text, in which NaN equals NaN."""
    return repr(diagnosis)


@examples
@given(
    seed=seeds,
    items=st.integers(1, 15),
    metric=st.sampled_from(METRICS),
    is_sparse=st.booleans(),
    has_filter=st.booleans(),
    dims=st.sampled_from([3, 24, 90]),
)
def test_counts_agree_with_the_reference(
    seed: int, items: int, metric: Metrics, dims: int, *, is_sparse: bool, has_filter: bool
) -> None:
    vectors = copies(seed, items, 6, metric=metric, dims=dims)
    is_new = np.random.default_rng(seed).random(len(vectors)) < 0.7
    is_new[0] = True
    index = Index.build(
        sparse.csr_array(vectors) if is_sparse else vectors,
        metric=metric,
        attributes={"is_new": is_new},
    )
    rows = [row for row in range(len(vectors)) if is_new[row] or not has_filter]
    diagnosis = index.diagnose(filter=Field("is_new").is_in([True]) if has_filter else None)
    assert (diagnosis.rows, diagnosis.sampled) == (len(rows), len(rows))
    assert index.info.duplicate_threshold in [share.threshold for share in diagnosis.shares]
    points = Case(vectors, vectors[0], metric).points()
    error = 1e-5 * (9 if metric == "euclidean" else 1)
    for share in diagnosis.shares:
        limit = near_copies.copy_limit(points, share.threshold)
        counts = np.array(
            [near_copies.count_copies(points, rows, row, limit, error) for row in rows]
        )
        least, most = counts.mean(axis=0)
        assert least - 1e-9 <= share.copies <= most + 1e-9
        least, most = (counts > 0).mean(axis=0)
        assert least - 1e-9 <= share.share.value <= most + 1e-9
        assert share.share.low == pytest.approx(share.share.value)


@examples
@given(seed=seeds, metric=st.sampled_from(METRICS), is_sparse=st.booleans(), k=st.integers(1, 8))
def test_different_points_agree_with_the_reference(
    seed: int, metric: Metrics, is_sparse: bool, k: int
) -> None:
    vectors = copies(seed, 6, 4, metric=metric)
    rng = np.random.default_rng(seed)
    lists = np.stack([rng.permutation(len(vectors))[:6] for _ in range(5)])
    lists = lists[:, :k]
    lists[0, rng.integers(0, lists.shape[1]) :] = -1
    stored = sparse.csr_array(vectors) if is_sparse else vectors
    points = Index.build(stored, metric=metric).engine.searcher.point_records
    case = Case(vectors, vectors[0], metric).points()
    limit = {"cosine": 0.02, "euclidean": 0.18, "inner_product": 0.01}[metric]
    counts = np.empty(len(lists), np.int64)
    count_different(points, lists, np.float32(limit), counts)
    truth = [near_copies.keep_different(case, row[row >= 0].tolist(), limit) for row in lists]
    assert counts.tolist() == list(map(len, truth))


def test_shares_of_a_crowded_collection() -> None:
    """Thresholds ascend; every point has four near-copies; collapsing is of use."""
    diagnosis = Index.build(crowd(200, 5)).diagnose()
    cosines = [share.threshold for share in diagnosis.shares]
    assert cosines == sorted(cosines)
    assert set(COSINES) < set(cosines)
    by_threshold = {share.threshold: share for share in diagnosis.shares}
    assert by_threshold[0.99].share == (1.0, 1.0, 1.0)
    assert by_threshold[0.99].copies == pytest.approx(4)
    assert diagnosis.is_crowded
    assert diagnosis.different == pytest.approx(3, abs=0.5)
    advice = {item.parameter: item for item in diagnosis.advice}
    assert advice["duplicate_threshold"].use
    assert advice["duplicate_threshold"].value == diagnosis.default_threshold
    effects = {effect.setting: effect for effect in diagnosis.effects}
    assert effects["duplicate_threshold"].different == 10
    assert effects["duplicate_threshold"].gain.value > 0.1
    assert 0 < effects["duplicate_threshold"].loss.value < 1


def test_shares_of_points_that_do_not_crowd() -> None:
    diagnosis = Index.build(crowd(1_000, 1)).diagnose()
    assert not diagnosis.is_crowded
    advice = {item.parameter: item for item in diagnosis.advice}
    assert not advice["duplicate_threshold"].use
    assert "changes little" in advice["duplicate_threshold"].reason


def test_effects_are_those_of_queries() -> None:
    """The figures of each setting follow from the answers to queries with stored points."""
    points = crowd(150, 3, dims=8)
    index = Index.build(points, metric="euclidean")
    diagnosis = index.diagnose(sample=200, seed=3)
    rng = np.random.default_rng((3, 6))
    queries = rng.permutation(len(points))[:200].tolist()
    plain = index.query(like=queries, diversity=0)
    sampled = points[queries].astype(np.float64)
    between = np.square(sampled[:, None] - sampled[None]).sum(axis=2)
    spread = between.sum() / (len(queries) * (len(queries) - 1))
    settings_by_name: dict[str, dict[str, Any]] = {
        "diversity": {"keep_duplicates": True},
        "duplicate_threshold": {
            "diversity": 0,
            "duplicate_threshold": index.info.duplicate_threshold,
        },
        "both": {},
    }
    assert [effect.setting for effect in diagnosis.effects] == list(settings_by_name)
    for effect in diagnosis.effects:
        result = index.query(like=queries, **settings_by_name[effect.setting])
        apart = [_apart(points, ids) for ids in (result.ids, plain.ids)]
        assert effect.gain.value == pytest.approx((apart[0] - apart[1]).mean() / spread, rel=1e-4)
        near = [r.scores.astype(np.float64).mean(axis=1) for r in (result, plain)]
        given_up = (near[0] - near[1]).sum() / (between.mean(axis=1) - near[1]).sum()
        assert effect.loss.value == pytest.approx(given_up, rel=1e-4)


def _apart(points: FloatArray, ids: IdArray) -> Values:
    """Return the mean squared distance between the results of each query."""
    lists = points[ids.astype(int)].astype(np.float64)
    squares = np.square(lists[:, :, None] - lists[:, None]).sum(axis=3)
    k = lists.shape[1]
    return np.asarray(squares.sum(axis=(1, 2)) / (k * (k - 1)))


def test_shares_by_value() -> None:
    """The copies are all of one brand, and a missing value is a value."""
    copied, alone = crowd(40, 5), crowd(200, 1, seed=1)
    brands = ["copied"] * 200 + [None] * 50 + ["alone"] * 150
    tags = [["a", "b"], ["b"], []] * 133 + [["a"]]
    index = Index.build(np.concatenate([copied, alone]), attributes={"brand": brands, "tags": tags})
    diagnosis = index.diagnose(attributes=["brand", "tags"])
    rows = {(row.attribute, row.value): row for row in diagnosis.by_value}
    assert [key for key in rows if key[0] == "brand"] == [
        ("brand", "copied"),
        ("brand", "alone"),
        ("brand", None),
    ]
    at = next(n for n, share in enumerate(diagnosis.shares) if share.threshold == 0.99)
    assert rows["brand", "copied"].shares[at].share.value == 1
    assert rows["brand", "alone"].shares[at].share.value == 0
    assert rows["tags", "b"].sampled == 266
    assert rows["tags", "a"].sampled == 134
    assert rows["tags", None].sampled == 133
    total = sum(row.sampled for row in diagnosis.by_value if row.attribute == "brand")
    assert total == diagnosis.sampled == 400
    assert index.diagnose(attributes="brand").by_value == diagnosis.by_value[:3]


def test_a_sample_has_the_same_figures_for_the_same_seed() -> None:
    index = Index.build(crowd(300, 2))
    diagnosis = index.diagnose(sample=100, seed=1)
    assert (diagnosis.sampled, diagnosis.queries) == (100, 100)
    assert diagnosis.shares[0].share.low < diagnosis.shares[0].share.value
    assert figures(diagnosis) == figures(index.diagnose(sample=100, seed=1))
    assert figures(diagnosis) != figures(index.diagnose(sample=100, seed=2))


def test_intervals_hold_for_small_samples() -> None:
    """Of 100 samples, nearly all have an interval with the true share in it."""
    index = Index.build(np.concatenate([crowd(60, 2), crowd(200, 1, seed=1)]))
    truth = index.diagnose().shares[-1].share.value
    assert 0.2 < truth < 0.8
    intervals = [index.diagnose(sample=80, seed=seed).shares[-1].share for seed in range(100)]
    assert sum(share.low <= truth <= share.high for share in intervals) >= 90


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("is_sparse", [False, True])
def test_one_point_and_copies_of_one_point(metric: Metrics, is_sparse: bool) -> None:
    one = np.ones((1, 4), np.float32)
    for count in (1, 2, 30):
        rows = np.repeat(one, count, axis=0)
        index = Index.build(sparse.csr_array(rows) if is_sparse else rows, metric=metric)
        diagnosis = index.diagnose()
        assert [share.copies for share in diagnosis.shares] == [count - 1] * len(diagnosis.shares)
        assert [share.share.value for share in diagnosis.shares] == [count > 1] * len(
            diagnosis.shares
        )
        assert diagnosis.results == min(10, count - 1)
        assert diagnosis.is_crowded == (count > 2)
        assert [item.use for item in diagnosis.advice] == [False, count > 2]


def test_fewer_points_than_k() -> None:
    diagnosis = Index.build(crowd(4, 1)).diagnose()
    assert (diagnosis.k, diagnosis.results, diagnosis.queries) == (10, 3, 4)


def test_points_that_build_skips_do_not_count() -> None:
    rows = crowd(20, 2)
    rows[:5] = 0
    diagnosis = Index.build(rows, zero_vectors="skip").diagnose()
    assert diagnosis.rows == diagnosis.sampled == 35


@pytest.mark.parametrize("metric", ["euclidean", "inner_product"])
def test_zero_vectors_of_other_metrics(metric: Metrics) -> None:
    """Under euclidean they are copies of each other; without a direction they are of nothing."""
    rows = np.eye(8, dtype=np.float32) * 3
    rows[:3] = 0
    for points in (rows, sparse.csr_array(rows)):
        diagnosis = Index.build(points, metric=metric).diagnose()
        assert diagnosis.shares[-1].copies * 8 == (6 if metric == "euclidean" else 0)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_collection_after_writes(tmp_path: Path, is_sparse: bool) -> None:
    """The figures are those of an index of the points that are left; absent points do not count."""
    rows = crowd(60, 2)
    stored = sparse.csr_array(rows) if is_sparse else rows
    options: dict[str, Any] = {} if is_sparse else {"vectors_optional": True}
    with Collection.build(stored, path=tmp_path / "shoes", **options) as collection:
        collection.delete([0, 2, 4])
        collection.upsert([1, 200], stored[[7, 8]])
        if not is_sparse:
            collection.upsert([300, 301])
        diagnosis = collection.diagnose()
        left = np.concatenate([rows[[3]], rows[5:], rows[[7, 8]]])
        assert (diagnosis.rows, diagnosis.sequence) == (len(left), collection.sequence)
        anew = Index.build(sparse.csr_array(left) if is_sparse else left).diagnose()
        for share, other in zip(diagnosis.shares, anew.shares, strict=True):
            if share.threshold in COSINES:
                assert share == other
        before = figures(diagnosis)
        collection.compact()
        assert figures(collection.diagnose()) == before


def test_progress_ends_at_the_total() -> None:
    reports: list[Progress] = []
    Index.build(crowd(100, 3)).diagnose(progress=reports.append)
    stages = list(dict.fromkeys(report.stage for report in reports))
    assert stages == ["counting near-copies", "answering queries"]
    assert reports[0].rows_done == 0
    assert reports[-1].rows_done == reports[-1].rows_total == 4 * 256


def test_bad_arguments_name_the_field(tmp_path: Path) -> None:
    index = Index.build(crowd(10, 2), attributes={"brand": ["a"] * 20})
    for options, field in (
        ({"attributes": ["colour"]}, "attributes"),
        ({"attributes": ["brand", "brand"]}, "attributes"),
        ({"attributes": [3]}, "attributes"),
        ({"sample": 0}, "sample"),
        ({"sample": 10_001}, "sample"),
        ({"sample": 2.5}, "sample"),
        ({"seed": -1}, "seed"),
        ({"filter": Field("colour") == "red"}, "filter"),
        ({"filter": Field("brand") == "b"}, "filter"),
    ):
        arguments: dict[str, Any] = options
        with refused(field):
            index.diagnose(**arguments)
    with Collection.build(crowd(2, 1), path=tmp_path / "empty") as collection:
        collection.delete([0, 1])
        with refused("index", "no point has a vector", error=UnfitIndexError):
            collection.diagnose()
