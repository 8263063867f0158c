"""A learned partition: every point is in one cell, and the nearest cells are found."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.hashing import codes
from divgrpc.index import Index
from divgrpc.kernels import cells
from divgrpc.kernels.records import Cells, Scratch
from divgrpc.search.memory import Memory
from divgrpc.types import Metric
from reference import definitions, kernels
from reference.index import clustered

examples = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)
METRICS: list[Metric] = ["cosine", "euclidean", "inner_product"]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 32, 400])
@pytest.mark.parametrize("kind", ["many", "twice", "equal"])
def test_every_point_is_in_exactly_one_cell(metric: Metric, rows: int, kind: str) -> None:
    points = clustered(rows, 5, rows, duplicates=0.6 if kind == "twice" else 0)
    if kind == "equal":
        points[:] = points[0]
    arrays = Index.build(points, hash_family="cells", metric=metric).engine._arrays
    starts, places = arrays["cell_starts"], arrays["cell_rows"]
    assert sorted(places.tolist()) == list(range(rows))
    assert (starts[0], starts[-1], len(starts)) == (0, rows, len(arrays["cell_centres"]) + 1)
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        assert (np.diff(places[first:last]) > 0).all()
    if kind == "equal":
        assert np.count_nonzero(np.diff(starts)) == 1


def test_cells_use_the_same_hyperplanes_as_lsh_sdiv() -> None:
    """With cells only the codes differ, because they are relative to the centre of a cell."""
    points = clustered(500, 12, 3)
    parameters: dict[str, Any] = {"metric": "euclidean", "seed": 4, "n_components": 12}
    with_cells, without_cells = (
        Index.build(points, hash_family=family, **parameters).engine._arrays
        for family in ("cells", "lsh_sdiv")
    )
    # With four bits per margin, a code has a quarter as many hyperplanes as bits.
    planes = with_cells["hyperplanes"]
    assert planes.shape == (12, 64)
    assert with_cells["codes"].shape == without_cells["codes"].shape
    assert np.allclose(planes[:, :60], without_cells["hyperplanes"][:, :60], atol=1e-6)
    assert np.allclose(with_cells["thresholds"], points.mean(axis=0) @ planes, atol=1e-4)


@pytest.mark.parametrize("components", [65, 129, 257])
def test_n_components_may_exceed_the_hyperplanes_of_a_code(components: int) -> None:
    points = np.random.default_rng(0).standard_normal((400, 300)).astype(np.float32)
    index = Index.build(points, hash_family="cells", n_components=components)
    assert index.engine._arrays["codes"].shape == (13, 1024)
    assert index.engine._arrays["hyperplanes"].shape[1] == (128 if components == 65 else 256)
    result = index.query(points[:50], k=1, search="scan", selector="nearest", hash_limit=40)
    assert (result.ids[:, 0] == np.arange(50)).mean() > 0.9


def test_the_number_of_components_depends_on_the_variance_within_cells() -> None:
    rng = np.random.default_rng(0)
    points = rng.standard_normal((4_000, 128)).astype(np.float32)
    points[:, :10] += 20 * rng.standard_normal((100, 10))[rng.integers(0, 100, 4_000)]
    for metric in METRICS:
        index = Index.build(points, hash_family="cells", metric=metric)
        assert index.info.parameters["n_components"] == 128
    narrow = points * np.exp(-np.arange(128) / 10).astype(np.float32)
    assert Index.build(narrow, hash_family="cells").info.parameters["n_components"] == 64


class Places:
    """Random cells as the kernel reads them, and a query's projections."""

    def __init__(
        self, seed: int, *, count: int, width: int, points: int, reach: float = 0.0
    ) -> None:
        """Draw cells; with a `reach`, each further cell may be so much farther than the last."""
        rng = np.random.default_rng(seed)
        self.centres = rng.standard_normal((count, width)).astype(np.float32)
        self.cell_starts = np.concatenate(
            ([0], np.sort(rng.integers(0, points + 1, count - 1)), [points])
        ).astype(np.int64)
        self.projections = rng.standard_normal(64).astype(np.float32)
        squares = (self.centres * self.centres).sum(axis=1)
        # The codes and terms are arbitrary; other tests check that they estimate distances well.
        self.codes = np.zeros(codes.tiles_shape(count, 64), np.uint8)
        margins = rng.standard_normal((count, 64)).astype(np.float32)
        codes.encode(margins, self.codes, 0)
        self.terms = codes.pack_terms(squares, rng.random(count).astype(np.float32))
        self.reaches = (reach * np.arange(count if reach else 0)).astype(np.float32)
        self.arrays = Cells(
            self.codes,
            self.terms,
            self.centres,
            squares,
            self.reaches,
            self.cell_starts,
            rng.permutation(points).astype(np.int32),
            np.empty(0, np.int32),
            np.empty(0, np.int64),
        )

    def nearest(self, *, product: bool) -> list[int]:
        """Return all cells, nearest first."""
        query = self.projections[: self.centres.shape[1]]

        def away(cell: int) -> float:
            centre = self.centres[cell]
            return (
                -definitions.dot(centre, query) if product else definitions.distance(centre, query)
            )

        return sorted(range(len(self.centres)), key=lambda cell: (away(cell), cell))

    def scratch(self) -> Scratch:
        """Return working memory for the kernel, with the query's margins."""
        memory = Memory(1, (1, 64))
        memory.fit_scan(len(self.centres))
        memory.fit_cells(len(self.centres))
        memory.scratch.code.margins[:] = self.projections
        return memory.scratch

    def take(self, n_probes: int, *, product: bool) -> list[int]:
        """Return the cells that a query reads, in the order of the kernel."""
        memory = self.scratch()
        count = cells.take_cells(
            memory.code,
            self.arrays,
            memory.passing.cells,
            n_probes,
            product,
            memory.scan,
            memory.cells,
        )
        numbers: list[int] = memory.cells.numbers[:count].tolist()
        return numbers

    def choose(self, n_probes: int, at_least: int, *, product: bool) -> tuple[list[int], int]:
        """Run the kernel; return the cells that it takes and the number of points in them."""
        memory = self.scratch()
        count, points = cells.choose_cells(
            memory.code,
            self.arrays,
            memory.passing.cells,
            n_probes,
            at_least,
            product,
            memory.scan,
            memory.cells,
        )
        return memory.cells.numbers[:count].tolist(), points


drawn_places = st.builds(
    Places,
    seed=seeds,
    count=st.sampled_from([1, 2, 7, 40, 90]),
    width=st.sampled_from([1, 3, 17, 64]),
    points=st.sampled_from([1, 30, 400]),
)


@examples
@given(places=drawn_places, product=st.booleans())
def test_ranking_half_of_the_cells_or_more_is_exact(places: Places, product: bool) -> None:
    """Ranking then compares all centres; if all cells are wanted, they come in any order."""
    ranking = places.nearest(product=product)
    half = -(-len(ranking) // 2)
    if half < len(ranking):
        assert places.take(half, product=product) == ranking[:half]
    for more in (len(ranking), len(ranking) + 5):
        assert sorted(places.take(more, product=product)) == sorted(ranking)


@examples
@given(
    sizes=st.tuples(seeds, st.sampled_from([7, 40, 90]), st.sampled_from([1, 17, 64])),
    reach=st.sampled_from([0.0, 0.01, 0.3, 1.0, 9.0]),
    product=st.booleans(),
    n_probes=st.integers(1, 30),
)
def test_few_cells_agree_with_the_reference(
    sizes: tuple[int, int, int], reach: float, product: bool, n_probes: int
) -> None:
    seed, count, width = sizes
    places = Places(seed, count=count, width=width, points=30, reach=reach)
    ranking = places.take(n_probes, product=product)
    if reach and n_probes < count:
        assert -(-n_probes // 4) <= len(set(ranking)) == len(ranking) <= 2 * n_probes
    else:
        assert len(set(ranking)) == len(ranking) == min(n_probes, count)
    all_cells = places.nearest(product=product)
    if len(ranking) == len(all_cells):
        return
    assert ranking == [cell for cell in all_cells if cell in ranking]
    twin = definitions.Cells(
        centres=places.centres,
        squares=(places.centres**2).sum(axis=1),
        bits=kernels.bits_in_tiles(places.codes, len(places.centres)),
        terms=kernels.unpack_terms(places.terms),
        members=[],
        reaches=places.reaches,
    )
    size = len(places.projections)
    points = definitions.Points(
        vectors=np.empty((0, size)),
        ids=np.empty(0, np.int64),
        hyperplanes=np.eye(size),
        thresholds=np.zeros(size),
        bits=np.empty((0, size), np.bool_),
        n_tables=0,
        n_bits=0,
        metric="inner_product" if product else "cosine",
    )
    assert ranking == definitions.read_cells(points, twin, places.projections, n_probes)


@pytest.mark.parametrize("metric", METRICS)
def test_queries_read_different_numbers_of_cells(metric: Metric) -> None:
    """A reach is the mean distance of the n-th cell of a point beyond its nearest cell."""
    points = clustered(6_000, 32, 5)
    index = Index.build(points, hash_family="cells", metric=metric)
    arrays = index.engine._searcher._arrays
    options: dict[str, Any] = {"search": "tables", "n_probes": 12, "selector": "nearest"}
    probed = index.query(points[:400], **options).stats.buckets_probed
    if metric == "inner_product":
        assert "cell_reaches" not in arrays
        assert (probed == 12).all()
        return
    reaches = arrays["cell_reaches"]
    assert 0 < reaches[0] < 1e-4
    assert (np.diff(reaches) >= 0).all()
    assert probed.min() >= 3
    assert probed.max() <= 24
    assert 8 < probed.mean() < 16
    assert probed.std() > 1


def test_points_of_different_scales_get_no_reaches() -> None:
    points = clustered(6_000, 32, 5)
    scales = np.exp(np.random.default_rng(0).normal(0, 1.5, (6_000, 1)))
    for factor, has_reaches in ((1, True), (scales, False)):
        index = Index.build(points * factor, hash_family="cells", metric="euclidean")
        assert ("cell_reaches" in index.engine._arrays) == has_reaches
        probed = index.query(points[:50], search="tables", n_probes=9).stats.buckets_probed
        assert (probed == 9).all() != has_reaches


@pytest.mark.parametrize("shift", [0, 3, 10, 1_000])
def test_queries_far_from_the_points_read_enough_cells(shift: int) -> None:
    """Distances of cells differ more for such queries than for points."""
    rng = np.random.default_rng(1)
    centres = 2 * rng.standard_normal((200, 32))
    points = centres[rng.integers(0, 200, 12_000)] + 0.7 * rng.standard_normal((12_000, 32))
    index = Index.build(points, hash_family="cells", metric="euclidean")
    queries = points[::60] + 0.3 * rng.standard_normal((200, 32)) + shift
    options: dict[str, Any] = {"selector": "nearest", "k": 10, "keep_duplicates": True}
    exact = index.query(queries, search="exact", **options)
    result = index.query(queries, search="tables", n_probes=30, candidates_limit=50, **options)
    pairs = zip(result.ids, exact.ids, strict=True)
    recall = np.mean([np.isin(*pair).mean() for pair in pairs])
    assert recall > 0.93
    assert result.stats.buckets_probed.mean() > 20


@examples
@given(
    places=drawn_places,
    product=st.booleans(),
    n_probes=st.sampled_from([1, 3, 10**6]),
    share=st.floats(0, 1.2),
)
def test_cells_are_taken_until_they_hold_enough_points(
    places: Places, product: bool, n_probes: int, share: float
) -> None:
    total = int(places.cell_starts[-1])
    at_least = round(share * total)
    numbers, points = places.choose(n_probes, at_least, product=product)
    sizes = np.diff(places.cell_starts)
    assert points == sizes[numbers].sum()
    assert points >= at_least or len(numbers) == len(places.centres)
    cell_count = min(n_probes, len(places.centres))
    while sizes[places.take(cell_count, product=product)].sum() < at_least:
        if cell_count == len(places.centres):
            break
        cell_count = min(2 * cell_count, len(places.centres))
    assert numbers == places.take(cell_count, product=product)


def test_cells_at_equal_distance_are_ordered_by_number() -> None:
    places = Places(1, count=9, width=8, points=50)
    places.projections[:] = 0
    assert places.take(99, product=True) == list(range(len(places.centres)))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", ["gaussian", "far", "plain"])
def test_codes_in_cells_find_neighbours_far_from_the_origin(metric: Metric, kind: str) -> None:
    points = clustered(6_000, 32, 5) + (30 if kind == "far" else 0)
    queries = points[::300] + 0.1
    planes: Any = "gaussian" if kind == "gaussian" else "orthogonal"
    index = Index.build(points, hash_family="cells", metric=metric, hyperplanes=planes)
    options: dict[str, Any] = {"selector": "nearest", "k": 10}
    exact = index.query(queries, search="exact", **options)
    for search, limits in (
        ("scan", {"hash_limit": 300}),
        ("tables", {"hash_limit": 300, "n_probes": 60}),
    ):
        result = index.query(queries, search=search, **options, **limits)  # type: ignore[arg-type]
        pairs = zip(result.ids, exact.ids, strict=True)
        assert np.mean([np.isin(*pair).mean() for pair in pairs]) > 0.9, search
