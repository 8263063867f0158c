"""Whole queries through an index, against the twin's answer from end to end."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from divgrpc.engine import Engine
from divgrpc.index import Index
from divgrpc.storage.generations import Generation
from divgrpc.types import (
    FloatArray,
    HashFamily,
    Sampling,
    Search,
    Selector,
    Variant,
)
from reference import definitions
from reference.index import check_row, points_of, same_bytes

ROWS, DIMS = 240, 20
FAMILIES: list[HashFamily] = ["lsh_div", "lsh_sdiv", "pca_hash"]
SEARCHES: list[Search] = ["tables", "scan", "scan_hamming", "exact"]
SELECTIONS: list[tuple[Selector, Variant]] = [
    ("nearest", "corrected"),
    ("greedy", "corrected"),
    ("greedy", "printed"),
    ("greedy", "marginal"),
    ("mmr", "corrected"),
]
SAMPLINGS: list[Sampling] = ["uniform", "nearest"]


def clustered(rows: int, dims: int, seed: int) -> FloatArray:
    """Draw points around a few centres, a tenth of them twice."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((6, dims))
    points = centres[rng.integers(0, 6, rows)] + 0.7 * rng.standard_normal((rows, dims))
    again = rng.random(rows) < 0.1
    points[again] = points[rng.integers(0, rows, again.sum())]
    return points.astype(np.float32)


@cache
def an_index(family: HashFamily) -> Index:
    ids = np.random.default_rng(5).permutation(10**6)[:ROWS]
    # pca_hash has one bit per component and no more.
    n_tables, n_bits = (2, 4) if family == "pca_hash" else (5, 6)
    return Index.build(
        clustered(ROWS, DIMS, 1),
        ids=ids,
        hash_family=family,
        hyperplanes="gaussian",
        n_tables=n_tables,
        n_bits=n_bits,
        n_components=8,
        target_recall=0.4,
        seed=3,
    )


@cache
def twin_of(index: Index) -> definitions.Points:
    return points_of(index)


def queries(count: int, dims: int = DIMS) -> FloatArray:
    """Return queries of all kinds: near the points, far from them, and points themselves."""
    rng = np.random.default_rng(9)
    points = clustered(ROWS, dims, 1)
    near = points[:count] + 0.3 * rng.standard_normal((count, dims)).astype(np.float32)
    near[1::3] = rng.standard_normal(near[1::3].shape)
    near[2::3] = points[: len(near[2::3])]
    return near


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("selector", "variant"), SELECTIONS)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("family", FAMILIES)
def test_gaussian_hyperplanes_give_the_twins_answer(
    family: HashFamily, search: Search, selector: Selector, variant: Variant, sampling: Sampling
) -> None:
    """Ids, scores and counts of every search, selector and sampling."""
    index, asked = an_index(family), queries(3)
    result = index.query(
        asked,
        k=6,
        diversity=0.35,
        selector=selector,
        variant=variant,
        search=search,
        hash_limit=40,
        candidates_limit=25,
        sampling=sampling,
        seed=11,
    )
    for row, query in enumerate(asked):
        check_row(twin_of(index), query, result, row)


@pytest.mark.parametrize("dims", [1, 2, 15, 16, 17, 31, 33, 256])
@pytest.mark.parametrize("rows", [1, 9])
def test_all_dimensions_count(rows: int, dims: int) -> None:
    """However many of them do not fill a register, with k above all points."""
    rng = np.random.default_rng(rows * dims)
    index = Index.build(rng.standard_normal((rows, dims)), n_bits=4, n_tables=3)
    asked = rng.standard_normal((2, dims)).astype(np.float32)
    for search in SEARCHES:
        result = index.query(asked, k=12, search=search, diversity=0.4)
        for row, query in enumerate(asked):
            check_row(points_of(index), query, result, row)
        codes = [w.code for w in result.warnings if w.code != "TARGET_RECALL_MISSED"]
        assert codes == ["FEWER_THAN_K_POINTS"]
    complete = index.query(asked, k=12)
    assert (complete.counts == rows).all()
    assert sorted(complete.ids[0, :rows].tolist()) == list(range(rows))


def test_nearest_ignores_the_dial() -> None:
    """Plain nearest neighbours are the same at every diversity and in every variant."""
    index, asked = an_index("lsh_sdiv"), queries(5)
    plain = index.query(asked, selector="nearest", diversity=0)
    for diversity, variant in ((0.5, "printed"), (1.0, "marginal")):
        other = index.query(asked, selector="nearest", diversity=diversity, variant=variant)  # type: ignore[arg-type]
        assert other.ids.tolist() == plain.ids.tolist()
        assert other.selection_scores.tobytes() == plain.selection_scores.tobytes()


@pytest.mark.parametrize("rows", [1, 5])
def test_columns_have_the_types_and_shapes_they_say(rows: int) -> None:
    """Ids int64, scores float32, counts and statistics uint32; one row per query, k columns."""
    result = an_index("lsh_div").query(queries(rows), k=4)
    for column, dtype, shape in (
        (result.ids, np.int64, (rows, 4)),
        (result.scores, np.float32, (rows, 4)),
        (result.selection_scores, np.float32, (rows, 4)),
        (result.counts, np.uint32, (rows,)),
        (result.stats.points_hashed, np.uint32, (rows,)),
        (result.stats.buckets_probed, np.uint32, (rows,)),
        (result.stats.points_scored, np.uint32, (rows,)),
        (result.stats.candidates, np.uint32, (rows,)),
    ):
        assert column.dtype == dtype
        assert column.shape == shape
    assert result.generation == 1
    # The index has 240 points: the default limit is above that.
    assert (result.parameters.search, result.parameters.candidates_limit) == ("exact", 200)


def test_near_duplicates_keep_their_order() -> None:
    """Points a hundred-thousandth apart are told apart, and no score is above 1."""
    rng = np.random.default_rng(11)
    points = rng.standard_normal(128) + 1e-4 * rng.standard_normal((2_000, 128))
    index = Index.build(points)
    asked = points[:20] + 1e-5 * rng.standard_normal((20, 128))
    result = index.query(asked, search="exact", selector="nearest", hash_limit=0)
    stored = index.engine._arrays["vectors"].astype(np.float64)
    unit = definitions.unit(asked).astype(np.float32).astype(np.float64)
    for query, ids in zip(unit, result.ids, strict=True):
        truth = np.argsort(((stored - query) ** 2).sum(axis=1))[:10]
        assert len(set(truth.tolist()) & set(ids.tolist())) >= 9
    assert (result.scores <= 1).all()


def taking(index: Index, search: Search) -> Index:
    """Return the index with this as what Build found to be best."""
    # Without what was measured for each number of candidates.
    manifest = replace(index.engine.manifest, auto_search=search, search_costs=())
    return Index(Engine(Generation(manifest, index.engine._arrays), "digits"))


def test_auto_finds_enough_where_tables_alone_do_not() -> None:
    """Where the tuned buckets hold too few points, auto looks into more, in the same order.

    Enough is as many as the selector may see.
    """
    index = taking(an_index("lsh_div"), "tables")
    far = -queries(6)
    limits: dict[str, Any] = {"hash_limit": 100, "candidates_limit": 80, "keep_duplicates": True}
    few = index.query(far, k=60, search="tables", **limits)
    assert (few.counts < 60).any()
    assert [w.code for w in few.warnings] == ["FEWER_THAN_K_FOUND"]
    enough = index.query(far, k=60, hash_limit=100, candidates_limit=80)
    assert enough.parameters.search == "tables"
    assert (enough.counts == 60).all()
    assert (enough.stats.points_hashed >= 80).all()
    assert enough.warnings == ()
    for row, query in enumerate(far):
        check_row(points_of(index), query, enough, row, at_least=80)


def test_auto_scans_where_all_that_may_be_probed_holds_too_few() -> None:
    """Probing ends where its room does; then all codes are read, and there is an answer."""
    points = clustered(3000, DIMS, 6)
    index = taking(Index.build(points, n_tables=1, n_bits=24), "tables")
    far = -points[:4]
    few = index.query(far, k=300, search="tables", candidates_limit=400)
    assert (few.counts < 300).any()
    enough = index.query(far, k=300, candidates_limit=400)
    scanned = index.query(far, k=300, candidates_limit=400, search="scan")
    assert enough.ids.tolist() == scanned.ids.tolist()
    assert (enough.stats.buckets_probed > few.stats.buckets_probed).all()


@pytest.mark.parametrize("search", ["tables", "scan", "exact"])
def test_auto_is_the_search_that_build_chose(search: Search) -> None:
    """What Build stored is what auto does, to the last bit."""
    index = taking(an_index("lsh_sdiv"), search)
    asked = queries(5)
    auto = index.query(asked, k=4, hash_limit=60, candidates_limit=4)
    assert auto.parameters.search == search
    assert same_bytes(
        auto, index.query(asked, k=4, hash_limit=60, candidates_limit=4, search=search)
    )


@pytest.mark.parametrize(
    "given",
    [
        {"n_tables": 256, "n_bits": 24},
        {"n_tables": 1, "n_bits": 1},
        {"n_tables": 7, "n_bits": 23},
        {"n_components": 1},
        {"n_components": 1, "hyperplanes": "gaussian", "centred": True},
        {"target_recall": 1.0, "n_bits": 3},
        {"target_recall": 1e-9, "centred": True},
    ],
)
@pytest.mark.parametrize("points", ["many", "equal", "opposite"])
def test_the_ends_of_the_build_parameters(given: dict[str, Any], points: str) -> None:
    """From one bit to 6,144, around one component or one place: answers are the twin's."""
    vectors = clustered(50, 6, 2)
    if points != "many":
        vectors[:] = vectors[0]
        vectors[::2] *= -1 if points == "opposite" else 2
    index, asked = Index.build(vectors, **given), clustered(50, 6, 2)[:2]
    for search in ("scan", "scan_hamming", "exact"):
        result = index.query(asked, k=5, search=search, hash_limit=20, candidates_limit=10)
        for row, query in enumerate(asked):
            check_row(points_of(index), query, result, row)
    found = index.query(asked, k=50, search="tables", hash_limit=0, candidates_limit=0)
    everything = index.query(asked, k=50, search="exact", hash_limit=0, candidates_limit=0)
    for row in range(2):
        picked = found.ids[row, : found.counts[row]].tolist()
        assert len(set(picked)) == len(picked)
        assert set(picked) <= set(everything.ids[row].tolist())
