"""Equal points, parameters and seeds give equal indexes, and equal requests give equal bytes."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from scipy import sparse

from divgrpc import engine
from divgrpc.builder.builder import IndexBuilder
from divgrpc.engine import Engine
from divgrpc.index import Index
from divgrpc.labels.build_inputs import LabelInputs
from divgrpc.parameters import BuildParameters, LabelParameters, QueryParameters
from divgrpc.storage.generations import Generation, IndexFolder
from divgrpc.storage.writers import MemoryStore
from divgrpc.types import FloatArray, IntArray, Points, QueryResult, Search, Variant
from reference.index import dense, row_of, same_bytes
from support.checks.refusals import refused
from support.data.mixed_indexes import stored_as

ROWS, DIMS = 500, 31
SEARCHES: list[Search] = ["auto", "tables", "scan", "scan_hamming", "exact"]
VARIANTS: list[Variant] = ["corrected", "printed", "marginal"]


def normal(rows: int, seed: int, dims: int = DIMS) -> FloatArray:
    return np.random.default_rng(seed).standard_normal((rows, dims)).astype(np.float32)


@cache
def shared_index() -> Index:
    return Index.build(normal(ROWS, 1), n_tables=4, n_components=12)


def arrays_of(index: Index) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in index.engine._arrays.items()}


def test_threads_give_the_answers_of_one_thread() -> None:
    index, queries = shared_index(), normal(64, 3)
    requests = [(s, v, n) for s in SEARCHES for v in VARIANTS for n in (1, 3, 64)]

    def ask(request: tuple[Search, Variant, int]) -> QueryResult:
        search, variant, rows = request
        return index.query(queries[:rows], search=search, variant=variant, hash_limit=50, k=5)

    in_turn = [ask(request) for request in requests]
    with ThreadPoolExecutor(8) as pool:
        at_once = list(pool.map(ask, requests * 4))
    assert all(same_bytes(a, b) for a, b in zip(in_turn * 4, at_once, strict=True))


@pytest.mark.parametrize("kind", get_args(Points))
def test_arrays_of_the_caller_are_neither_changed_nor_kept(kind: Points) -> None:
    points, queries = stored_as(normal(50, 4), kind), stored_as(3 * normal(3, 5), kind)
    before = dense(points).tobytes(), dense(queries).tobytes()
    index = Index.build(points)
    first = index.query(queries)
    assert (dense(points).tobytes(), dense(queries).tobytes()) == before
    getattr(points, "data" if kind == "sparse" else "T")[:] = 1
    assert same_bytes(index.query(queries), first)


@pytest.mark.parametrize("kind", ["float64", "float16", "list", "fortran", "strided", "one row"])
def test_any_array_layout_gives_the_same_answer(kind: str) -> None:
    queries = normal(4, 6).astype(np.float16).astype(np.float32)
    wide = np.zeros((4, 3 * DIMS), np.float32)
    wide[:, ::3] = queries
    forms: dict[str, npt.ArrayLike] = {
        "float64": queries.astype(np.float64),
        "float16": queries.astype(np.float16),
        "list": queries.tolist(),
        "fortran": np.asfortranarray(queries),
        "strided": wide[:, ::3],
        "one row": queries,
    }
    expected = shared_index().query(queries)
    assert same_bytes(shared_index().query(forms[kind]), expected)
    alone = shared_index().query(queries[2])
    assert same_bytes(alone, row_of(expected, 2))


def test_the_length_of_a_query_does_not_matter_under_cosine() -> None:
    queries = normal(5, 7)
    assert same_bytes(shared_index().query(queries * 4096), shared_index().query(queries))


@pytest.mark.parametrize("has_labels", [False, True])
def test_indexes_in_memory_in_a_folder_and_reopened_are_equal(
    tmp_path: Path, has_labels: bool
) -> None:
    labels: dict[str, npt.ArrayLike] = {}
    if has_labels:
        labels = {"ids": np.arange(ROWS)[::-1] * 10**9, "categories": np.arange(ROWS) % 5}
    in_memory = Index.build(normal(ROWS, 1), **labels)  # type: ignore[arg-type]
    folder_index = Index.build(normal(ROWS, 1), path=tmp_path / "it", **labels)  # type: ignore[arg-type]
    open_index, generation = Index.open(tmp_path / "it"), Index.open(tmp_path / "it" / "1")
    for index in (folder_index, open_index, generation):
        assert arrays_of(index) == arrays_of(in_memory)
        assert index.info.name == "it"
        assert index.info.parameters == in_memory.info.parameters
        assert index.info.arrays == in_memory.info.arrays
        assert (index.rows, index.dims, index.generation) == (ROWS, DIMS, 1)
    assert open_index.info == folder_index.info == IndexFolder(tmp_path / "it").read_info()
    for search in SEARCHES[1:]:
        answers = [
            i.query(normal(9, 2), search=search) for i in (in_memory, folder_index, open_index)
        ]
        assert all(same_bytes(answer, answers[0]) for answer in answers)


@cache
def unequal_rows(kind: Points) -> tuple[Any, sparse.csr_array, Index]:
    """Return points with three zero rows, their labels, and the index without these rows."""
    points = np.where(normal(300, 1) > 0, normal(300, 1), 0)
    points[[0, 100, 299]] = 0
    labels = sparse.csr_array(np.random.default_rng(4).random((300, 6)) < 0.4)
    options: dict[str, Any] = {"label_model": "leml", "rank": 3, "iterations": 2}
    options |= {"regularisation": 1.0, "categories": np.arange(300) % 3, "zero_vectors": "skip"}
    rows = stored_as(points, kind)
    return rows, labels, Index.build(rows, labels=labels, **options)


@pytest.mark.parametrize("block", [1, 7, 299, 300])
@pytest.mark.parametrize("kind", get_args(Points))
def test_block_sizes_of_an_upload_change_nothing(kind: Points, block: int) -> None:
    points, labels, whole = unequal_rows(kind)
    assert whole.rows == 297
    label_parameters = LabelParameters(rank=3, regularisation=1.0, iterations=2)
    plan = LabelInputs(model="leml", parameters=label_parameters)
    builder = IndexBuilder(MemoryStore(), BuildParameters(zero_vectors="skip"), labels=plan)
    for at in range(0, 300, block):
        part = np.arange(at, min(300, at + block))
        builder.append(points[part], categories=part % 3, labels=labels[part])
    index = Index(Engine(builder.build()))
    assert arrays_of(index) == arrays_of(whole)
    result = index.query(points[[1, 298]], k=1, search="exact", selector="nearest")
    assert result.ids.tolist() == [[1], [298]]


def test_the_order_of_points_makes_no_difference() -> None:
    """Points in another order with the same ids give equal answers, because ties go by id."""
    points = normal(300, 1)
    points[200:] = points[100:200]
    ids = np.random.default_rng(2).permutation(10**5)[:300] * 10**13
    order = np.random.default_rng(3).permutation(300)
    one = Index.build(points, ids=ids, hash_family="lsh_div", n_tables=4)
    two = Index.build(points[order], ids=ids[order], hash_family="lsh_div", n_tables=4)
    for search in ("scan", "scan_hamming", "exact"):
        options = {"search": search, "hash_limit": 50, "candidates_limit": 30}
        a, b = (index.query(normal(30, 4), **options) for index in (one, two))  # type: ignore[arg-type]
        assert a.ids.tolist() == b.ids.tolist()
        assert a.scores.tobytes() == b.scores.tobytes()


def test_an_old_generation_answers_after_it_is_replaced_and_deleted(tmp_path: Path) -> None:
    folder, queries = tmp_path / "points", normal(5, 9)
    old = Index.build(normal(200, 1), path=folder)
    open_index, before = Index.open(folder), old.query(queries, search="tables")
    new = Index.build(normal(100, 2, dims=7), path=folder, replace=True)
    assert (old.generation, new.generation) == (1, 2)
    assert Index.open(folder).rows == 100
    IndexFolder(folder).delete()
    for index in (old, open_index):
        assert same_bytes(index.query(queries, search="tables"), before)
        assert index.query(queries).generation == 1
    assert new.query(normal(5, 9, dims=7)).generation == 2


def test_cached_plans_answer_like_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads use more parameter sets than the cache of plans holds; answers stay the same."""
    monkeypatch.setattr(engine, "_CACHED_PLANS_MAX", 3)
    ways = [
        QueryParameters(k=k, diversity=diversity, search=search, hash_limit=60)
        for k in (1, 5, 7)
        for diversity in (0.0, 0.4)
        for search in ("scan", "exact")
    ]
    points = normal(300, 0, dims=8)
    index = Index.build(points)
    generation = Generation(index.engine.manifest, index.engine._arrays)
    alone = [Engine(generation).answer(points[:4], way).ids for way in ways]

    def ask(number: int) -> tuple[int, IntArray]:
        way = number * 7 % len(ways)
        return way, index.engine.answer(points[:4], ways[way]).ids.astype(np.int64)

    with ThreadPoolExecutor(4) as pool:
        for way, ids in pool.map(ask, range(200)):
            assert ids.tolist() == alone[way].tolist()


def test_refused_parameters_are_not_cached() -> None:
    points = normal(300, 0, dims=8)
    index = Index.build(points, metric="inner_product")
    for _ in range(2):
        with refused("max_distance", "max_distance"):
            index.query(points[0], max_distance=1.0)
    assert len(index.query(points[0]).ids[0]) == 10


@pytest.mark.parametrize("search", ["scan", "exact", "tables"])
def test_answers_do_not_depend_on_the_order_of_points(search: Search) -> None:
    """Points in the order of falling length, in which a scan could skip the last, get no favour."""
    rng = np.random.default_rng(3)
    points = rng.standard_normal((20_000, 16)).astype(np.float32)
    points *= rng.lognormal(0, 1, (20_000, 1)).astype(np.float32)
    points = points[np.argsort(-np.linalg.norm(points, axis=1))]
    queries = rng.standard_normal((200, 16)).astype(np.float32)
    answers = []
    for order in (np.arange(20_000), rng.permutation(20_000)):
        index = Index.build(
            points[order], ids=order, metric="inner_product", hash_family="lsh_div", seed=1
        )
        options: dict[str, Any] = {"search": search, "hash_limit": 40, "candidates_limit": 20}
        answers.append(index.query(queries, k=10, keep_duplicates=True, **options))
    assert answers[0].ids.tolist() == answers[1].ids.tolist()
    assert answers[0].scores.tobytes() == answers[1].scores.tobytes()
