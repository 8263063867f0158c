"""Queries with a filter find what the reference finds among the points that pass."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from divgrpc.errors import InvalidArgumentError
from divgrpc.index import Index
from divgrpc.types import EffectiveParameters, HashFamily, Metric, Points, QueryResult, Search
from divgrpc.types.filters import Exists, Field, Filter, HasId
from reference import definitions
from reference.index import check_row, clustered, points_of, same_bytes
from support.data.mixed_indexes import (
    ROWS,
    SAMPLINGS,
    an_index,
    every_index,
    every_search,
    queries,
    stored_as,
    twin_of,
)

Rows = npt.NDArray[np.int64]


def restricted(points: definitions.Points, rows: Rows) -> definitions.Points:
    """Return an index of some rows only, without the cells that have none of them."""
    places = {row: place for place, row in enumerate(rows.tolist())}
    cells = points.cells
    if cells is not None:
        members = [[places[r] for r in cell if r in places] for cell in cells.members]
        numbers = [number for number, cell in enumerate(members) if cell]
        cells = definitions.Cells(
            centres=cells.centres[numbers],
            squares=cells.squares[numbers],
            bits=cells.bits[numbers],
            terms=cells.terms[:, numbers],
            members=[members[number] for number in numbers],
            reaches=cells.reaches,
        )
    return replace(
        points,
        vectors=points.vectors[rows],
        ids=points.ids[rows],
        bits=points.bits[rows],
        terms=None if points.terms is None else points.terms[:, rows],
        cells=cells,
        differences={},
    )


def rows_that_pass(index: Index, share: float, *, one_region: bool) -> Rows:
    """Return about `share` of the rows, at random or those nearest to the first point."""
    count = max(1, round(share * index.rows))
    vectors = twin_of(index).vectors.astype(np.float64)
    keys = ((vectors - vectors[0]) ** 2).sum(axis=1)
    if not one_region:
        keys = np.random.default_rng(17).random(index.rows)
    return np.sort(np.argsort(keys, kind="stable")[:count])


def of_rows(index: Index, rows: Rows) -> Filter:
    ids = twin_of(index).ids[rows].tolist()
    return Filter(must=(HasId(tuple(ids)),))


def enough(points: definitions.Points, parameters: EffectiveParameters) -> int:
    """Return how many points a search with a filter must find before it ends."""
    passing = len(points.vectors)
    candidates = parameters.candidates_limit or parameters.k
    return min(candidates, parameters.hash_limit or passing, passing)


def enough_in_cells(index: Index, parameters: EffectiveParameters, passing: int) -> int:
    """Return how many points that pass the cells of a query must hold."""
    cells = twin_of(index).cells
    if cells is None:
        return 0
    return int(0.7 * parameters.n_probes * passing / len(cells.centres))


@every_search
@every_index
def test_filtered_queries_agree_with_the_reference(
    family: HashFamily, metric: Metric, kind: Points, search: Search
) -> None:
    index, vectors = an_index(family, metric, kind), queries(3, metric)
    form = stored_as(vectors, "sparse" if kind == "dense" else kind)
    cases = [(1.0, False), (0.5, False), (0.5, True), (0.2, False), (0.1, True), (0.004, False)]
    for number, (share, one_region) in enumerate(cases):
        rows = rows_that_pass(index, share, one_region=one_region)
        result = index.query(
            form if number % 2 else vectors,
            filter=of_rows(index, rows),
            k=6,
            search=search,
            hash_limit=(40, 0)[number == 4],
            candidates_limit=25,
            diversity=(0.35, 0.0)[number % 2],
            sampling=SAMPLINGS[number % 2],
            n_probes=3 if search == "tables" else None,
            seed=11,
        )
        assert result.points_passing == len(rows)
        twin = restricted(twin_of(index), rows)
        least = max(
            enough(twin, result.parameters), enough_in_cells(index, result.parameters, len(rows))
        )
        for row, vector in enumerate(vectors):
            check_row(twin, vector, result, row, at_least=least)


@every_index
def test_auto_returns_all_that_pass_if_these_are_few(
    family: HashFamily, metric: Metric, kind: Points
) -> None:
    index, vectors = an_index(family, metric, kind), queries(3, metric)
    for count in (1, 5, 10):
        rows = rows_that_pass(index, count / ROWS, one_region=count == 5)
        result = index.query(vectors, filter=of_rows(index, rows), k=10, keep_duplicates=True)
        expected = sorted(twin_of(index).ids[rows].tolist())
        for row in range(len(vectors)):
            assert sorted(hit.id for hit in result[row]) == expected
        if count < 10:
            (warning,) = result.warnings
            assert warning.code == "FEWER_THAN_K_POINTS"
            assert warning.message == f"k is 10 and {count} points pass the filter"


def test_no_point_passes() -> None:
    index, vectors = an_index("cells", "cosine", "dense"), queries(2, "cosine")
    for options in ({}, {"diversity": "auto"}, {"list_collapsed": True}, {"selector": "qp_relax"}):
        settings: Any = options
        result = index.query(vectors, filter=HasId(()), **settings)
        assert result.points_passing == 0
        assert result.counts.tolist() == [0, 0]
        assert (result.ids == -1).all()
        assert np.isnan(result.scores).all()
        assert [list(hits) for hits in result] == [[], []]


def test_a_query_without_a_filter_is_not_changed_by_one_before_it() -> None:
    for family in ("cells", "lsh_div"):
        index, vectors = an_index(family, "euclidean", "dense"), queries(3, "euclidean")
        for search in ("auto", "scan", "tables", "exact"):
            options: Any = {"search": search, "k": 5, "hash_limit": 40}
            before = index.query(vectors, **options)
            index.query(vectors, filter=of_rows(index, np.arange(0, 240, 2)), **options)
            assert same_bytes(before, index.query(vectors, **options))
            assert before.points_passing is None


def test_excluded_ids_are_a_filter() -> None:
    index, vectors = an_index("cells", "cosine", "dense"), queries(3, "cosine")
    ids = twin_of(index).ids
    excluded = ids[::3]
    by_filter = index.query(vectors, filter=~HasId(tuple(excluded.tolist())))
    assert same_bytes(by_filter, index.query(vectors, exclude_ids=excluded))
    few = index.query(vectors, exclude_ids=[*ids[:-2].tolist(), 10**9], k=3)
    assert {hit.id for hit in few[0]} == set(ids[-2:].tolist())
    both = index.query(vectors, filter=HasId((int(ids[3]), int(ids[4]))), exclude_ids=int(ids[3]))
    assert [hit.id for hit in both[0]] == [ids[4]]
    assert same_bytes(index.query(vectors, exclude_ids=[]), index.query(vectors))


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_query_by_id_is_one_by_vector_without_the_point(kind: Points) -> None:
    index = an_index("cells", "euclidean", kind)
    twin = twin_of(index)
    ids = twin.ids[[4, 9]].tolist()
    like = index.query(like=ids, k=5)
    for place, row in enumerate((4, 9)):
        vector = stored_as(twin.vectors[row : row + 1], kind)
        alone = index.query(vector, exclude_ids=ids[place], k=5)
        assert like.ids[place].tolist() == alone.ids[0].tolist()
        assert like.scores[place].tobytes() == alone.scores[0].tobytes()
        assert ids[place] not in like.ids[place]
    filtered = index.query(like=ids[0], filter=of_rows(index, np.arange(0, 20)), k=5)
    assert set(filtered.ids[0].tolist()) <= set(twin.ids[:20].tolist())
    assert ids[0] not in filtered.ids


@pytest.mark.parametrize(
    ("options", "field", "rule"),
    [
        ({}, "queries", "must be given, or `like`"),
        ({"queries": np.ones((1, 20)), "like": 3}, "like", "give one of the two"),
        ({"like": 1_000_001}, "like", "has 1000001, which is no id of the index"),
        ({"like": []}, "like", "must be 1 to 10000 ids, got 0"),
        ({"like": "a"}, "like", "must be integers"),
        ({"like": b"a"}, "like", "must be an id or a list of ids"),
        ({"queries": np.ones((1, 20)), "exclude_ids": ["a"]}, "exclude_ids", "must be integers"),
        (
            {"queries": np.ones((1, 20)), "exclude_ids": range(100_001)},
            "exclude_ids",
            "must be at most 100000, got 100001",
        ),
        ({"queries": np.ones((1, 20)), "filter": Exists("a")}, "filter", "declares none"),
        ({"queries": np.ones((1, 20)), "filter": 3}, "filter", "must be conditions"),
    ],
)
def test_a_wrong_call_names_the_field(options: dict[str, Any], field: str, rule: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rule) as raised:
        an_index("cells", "cosine", "dense").query(**options)
    assert raised.value.field == field


def priced() -> Index:
    points = clustered(500, 8, 3)
    return Index.build(points, attributes={"price": np.arange(500), "brand": ["a", "b"] * 250})


def test_attributes_filter_queries_counts_and_scrolls() -> None:
    index = priced()
    cheap = (Field("price") < 20) & (Field("brand") == "b")
    expected = list(range(1, 20, 2))
    assert index.count(cheap) == 10
    assert index.count() == index.count({}) == 500
    pages = list(index.scroll(cheap, page_size=4))
    assert [len(page) for page in pages] == [4, 4, 2]
    assert [record.id for page in pages for record in page] == expected
    result = index.query(np.ones(8), filter=cheap, k=10, keep_duplicates=True, with_attributes=True)
    assert sorted(hit.id for hit in result[0]) == expected
    assert result.attributes["brand"] == ("b",) * 10
    conditions = [
        {"key": "price", "range": {"lt": 20}},
        {"key": "brand", "match": {"value": "b"}},
    ]
    qdrant = {"must": conditions}
    assert same_bytes(
        result,
        index.query(np.ones(8), filter=qdrant, k=10, keep_duplicates=True, with_attributes=True),
    )


def test_a_cached_filter_is_not_one_with_values_of_another_type() -> None:
    index = Index.build(clustered(50, 8, 3), attributes={"sold": [True, False] * 25})
    assert index.count(Field("sold") == True) == 25  # noqa: E712
    with pytest.raises(InvalidArgumentError, match="with true or false, got 1"):
        index.count(Field("sold") == 1)


def test_cached_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    index = priced()
    monkeypatch.setattr("divgrpc.engine._CACHED_ROWS_BYTES_MAX", 10_000)
    for bound in range(1, 40):
        assert index.count(Field("price") < bound) == bound
    cached = index.engine._passing
    assert 1 <= len(cached) < 10
    assert sum(rows.bytes_max for rows in cached.values()) <= 10_000


@pytest.mark.parametrize("family", ["lsh_div", "cells"])
@pytest.mark.parametrize("search", ["scan", "scan_hamming"])
def test_scans_skip_blocks_without_a_point_that_passes(family: HashFamily, search: Search) -> None:
    """A block has 1,024 codes."""
    index = Index.build(clustered(3_300, 8, 4, duplicates=0.2), hash_family=family, seed=1)
    vectors, twin = clustered(3, 8, 5), points_of(index)
    for rows in (np.arange(2_100, 2_500), np.arange(0, 3_300, 30), np.arange(1_000, 3_300)):
        condition = HasId(tuple(rows.tolist()))
        result = index.query(
            vectors, filter=condition, search=search, k=5, hash_limit=90, candidates_limit=60
        )
        of_rows_alone = restricted(twin, rows)
        for row, vector in enumerate(vectors):
            check_row(of_rows_alone, vector, result, row)


@pytest.mark.parametrize("search", ["scan", "scan_hamming", "tables", "exact", "auto"])
def test_a_limit_above_the_points_that_pass_has_memory_for_all(search: Search) -> None:
    """A search through cells has memory for 4,096 points at first."""
    index = Index.build(clustered(9_000, 8, 6), hash_family="cells", seed=1)
    vectors, rows = clustered(4, 8, 7), np.arange(0, 9_000)[:8_000]
    options: Any = {"filter": HasId(tuple(rows.tolist())), "k": 9, "keep_duplicates": True}
    truth = index.query(vectors, search="exact", hash_limit=0, candidates_limit=0, **options)
    limits: Any = {"hash_limit": 8_500, "candidates_limit": 8_500, "n_probes": 10_000}

    def ask() -> tuple[QueryResult, int]:
        answer = index.query(vectors, search=search, **limits, **options)
        return answer, len(index.engine._searcher._local.memory.scratch.candidates.rows)

    # The memory of a new thread is as small as its first query permits.
    with ThreadPoolExecutor(1) as pool:
        answer, room = pool.submit(ask).result()
    assert room >= len(rows)
    assert answer.ids.tolist() == truth.ids.tolist()
    assert (answer.stats.points_scored == len(rows)).all()
