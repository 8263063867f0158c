"""The kernels that encode rows agree with the formulas of Build and with simple loops."""

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from scipy import sparse

from divgrpc import Collection
from divgrpc.arrays import Array, read_only
from divgrpc.builder.hash_functions import centre_of
from divgrpc.builder.row_encoder import CENTRES, COARSE, COARSE_STARTS, RowEncoder
from divgrpc.hashing import codes, hyperplanes
from divgrpc.index import Index
from divgrpc.kernels import kmeans
from divgrpc.kernels.encode import pack, put_codes, take_codes
from divgrpc.kernels.overflow import add_places
from divgrpc.kernels.tiles import put_word, take_word
from divgrpc.search.arrays import points_of
from divgrpc.types import FloatArray, HashFamily, Metric
from divgrpc.vectors import SparseRows, as_rows, prepare
from divgrpc.writes.model import model_arrays
from reference import kernels

ROWS, DIMS = 250, 24
FAMILIES: list[HashFamily] = ["lsh_div", "lsh_sdiv", "pca_hash", "cells"]
METRICS: list[Metric] = ["cosine", "euclidean", "inner_product"]
every_index = pytest.mark.parametrize(
    ("family", "metric", "is_centred"),
    [
        (family, metric, is_centred)
        for family, metric, is_centred in itertools.product(FAMILIES, METRICS, [False, True])
        if not (is_centred and metric == "inner_product")
    ],
)
# Numbers of components of cells that give codes of four, two and one bits.
COMPONENTS = {4: 16, 2: 100, 1: 140}


def drawn(rows: int, dims: int, seed: int) -> FloatArray:
    rng = np.random.default_rng(seed)
    centres = 2 * rng.standard_normal((5, dims))
    points = centres[rng.integers(0, 5, rows)] + rng.standard_normal((rows, dims))
    return points.astype(np.float32)


@cache
def an_index(family: HashFamily, metric: Metric, *, dims: int = DIMS, **options: Any) -> Index:  # noqa: ANN401  # of `build`
    tables: dict[str, Any] = {"cells": {}, "pca_hash": {"n_tables": 2, "n_bits": 4}}
    return Index.build(
        drawn(ROWS, dims, 1),
        metric=metric,
        hash_family=family,
        **tables.get(family, {"n_tables": 3, "n_bits": 5}),
        **options,
    )


def encoder_of(index: Index) -> tuple[RowEncoder, dict[str, Array]]:
    engine = index.engine
    model = model_arrays(engine.arrays, engine.manifest, points_of(engine.arrays, index.dims))
    return RowEncoder(engine.arrays | model, engine.manifest.parameters), model


def rows_for(index: Index, count: int = 40) -> FloatArray:
    """Return points of the index, and more_rows, prepared for the metric."""
    metric: Metric = index.engine.manifest.parameters.metric
    more_rows = drawn(count, index.dims, 7)
    more_rows[::9] *= 30
    if metric != "cosine":
        more_rows[3] = 0
    rows = as_rows("vectors", more_rows, index.dims)
    prepare("vectors", rows, metric)
    assert isinstance(rows, np.ndarray)
    return np.concatenate([index.engine.arrays["vectors"][:count], rows])


def levels_of(packed: npt.NDArray[np.uint8], planes: int) -> npt.NDArray[np.int64]:
    """Return the levels (m, B) of codes (m, bits / 8): odd numbers."""
    bits = np.unpackbits(packed, axis=1, bitorder="little").astype(np.int64)
    depth = bits.shape[1] // planes
    numbers = sum(bits[:, i * planes : (i + 1) * planes] << (depth - 1 - i) for i in range(depth))
    return np.asarray(2 * numbers - (2**depth - 1))


def check_levels(
    packed: npt.NDArray[np.uint8],
    margins: npt.NDArray[np.float64],
    planes64: npt.NDArray[np.float64],
    error: npt.NDArray[np.float64],
) -> npt.NDArray[np.int64]:
    """Return the levels of codes, which are those of the margins within rounding errors."""
    depth = packed.shape[1] * 8 // planes64.shape[1]
    count = int(planes64.any(axis=0).sum())
    levels = levels_of(packed, margins.shape[1])
    exact = codes.levels(margins, depth, count)  # type: ignore[arg-type]  # float64
    differs = levels != exact
    # Levels may differ where a margin is on the border of two levels.
    unit = np.ones(len(margins))
    if depth > 1:
        unit = {2: 0.9957, 4: 0.3352}[depth] * np.sqrt((margins**2).sum(axis=1) / count)
    places = margins / np.where(unit > 0, unit, 1)[:, np.newaxis]
    near = np.abs(places - np.rint(places)) * unit[:, np.newaxis] < error[:, np.newaxis]
    assert not (differs & ~near & planes64.any(axis=0)).any()
    assert differs.mean() < 0.02 or not margins.any()
    return levels


def check_cells(
    index: Index,
    cells: npt.NDArray[np.int32],
    margins: npt.NDArray[np.float64],
    error: npt.NDArray[np.float64],
) -> None:
    """Check that cells are the nearest ones in the nearest coarse cells, within an error."""
    arrays = index.engine.arrays
    starts = arrays[COARSE_STARTS]
    tops = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    distances = {}
    for name in (COARSE, CENTRES):
        centres = arrays[name].astype(np.float64)
        distances[name] = (centres**2).sum(axis=1) - 2 * margins[:, : centres.shape[1]] @ centres.T
    for row, cell in enumerate(cells.tolist()):
        to_coarse, to_cells = distances[COARSE][row], distances[CENTRES][row]
        room = 20 * error[row]
        third = np.sort(to_coarse)[: kmeans.COARSE_CELLS][-1]
        assert to_coarse[tops[cell]] <= third + room
        # All cells that are surely searched are no nearer.
        searched = to_cells[(to_coarse <= third - room)[tops]]
        assert to_cells[cell] <= searched.min(initial=np.inf) + room


def check_encoding(index: Index, *, is_old: bool = False) -> None:
    """Compare cells, codes and terms with the formulas of the encoder, in float64.

    is_old: whether to encode as for an index of an earlier version, which lacks the partition.
    """
    parameters, arrays = index.engine.manifest.parameters, index.engine.arrays
    rows = rows_for(index)
    encoder, model = encoder_of(index)
    if is_old:
        old = {n: a for n, a in arrays.items() if n not in (COARSE, COARSE_STARTS, CENTRES)}
        encoder = RowEncoder(old, parameters)
    cells, terms, packed = encoder.encode(rows)
    planes64 = arrays["hyperplanes"].astype(np.float64)
    margins = rows.astype(np.float64) @ planes64 - arrays["thresholds"]
    # Rounding errors of a margin, as for any sum of float32 products.
    error = 1e-5 * (1 + np.linalg.norm(rows, axis=1))
    count = int(planes64.any(axis=0).sum())
    shift = np.zeros_like(margins)
    offsets = ((rows - model["model_centre"].astype(np.float64)) ** 2).sum(axis=1)
    assert (cells == -1).all() != (parameters.hash_family == "cells")
    if parameters.hash_family == "cells":
        weights = arrays["cell_centres"].astype(np.float64)
        width = weights.shape[1]
        distances = arrays["cell_squares"] - 2 * margins[:, :width] @ weights.T
        if is_old:
            distance = distances[np.arange(len(rows)), cells]
            assert (distance <= distances.min(axis=1) + 20 * error).all()
        else:
            check_cells(index, cells, margins, error)
        shift = (weights @ (planes64[:, :width].T @ planes64))[cells]
        products = np.einsum("ij,ij->i", margins[:, :width], weights[cells])
        offsets = np.maximum(offsets - 2 * products + arrays["cell_squares"][cells], 0)
        margins = margins - shift
    levels = check_levels(packed, margins, planes64, error)
    spanned = hyperplanes.dimensions_spanned(parameters, planes64.shape[0])
    stretch = codes.stretches(margins, levels.astype(np.float64), spanned / count)
    if parameters.metric == "inner_product":
        expected = np.stack([np.zeros_like(stretch), stretch])
    else:
        moved = offsets + 2 * stretch * (levels * shift).sum(axis=1)
        expected = np.stack([moved, 2 * stretch])
    # A term has eight bits of precision.
    room = 2**-8 * np.abs(expected) + 30 * error * (1 + np.linalg.norm(rows, axis=1))
    assert (np.abs(kernels.unpack_terms(terms) - expected) <= room).all()


@every_index
def test_rows_are_encoded_by_the_formulas_of_build(
    family: HashFamily, metric: Metric, *, is_centred: bool
) -> None:
    index = an_index(family, metric, centred=is_centred)
    check_encoding(index)
    if family == "cells":
        check_encoding(index, is_old=True)


@pytest.mark.parametrize("depth", [4, 2, 1])
@pytest.mark.parametrize("metric", METRICS)
def test_codes_of_every_depth(metric: Metric, depth: int) -> None:
    index = an_index("cells", metric, dims=150, n_components=COMPONENTS[depth])
    encoder, _ = encoder_of(index)
    planes = index.engine.arrays["hyperplanes"].shape[1]
    assert encoder.encode(rows_for(index))[2].shape[1] * 8 == depth * planes
    check_encoding(index)


def codes_of_build(index: Index) -> tuple[npt.NDArray[np.int32], Array, Array]:
    """Return the cells, scan terms and codes that Build stored, in the order of the rows.

    Without scan terms, the terms are empty.
    """
    arrays = index.engine.arrays
    places, cells = np.arange(index.rows, dtype=np.int32), np.full(index.rows, -1, np.int32)
    if "cell_rows" in arrays:
        places[arrays["cell_rows"]] = places.copy()
        sizes = np.diff(arrays["cell_starts"])
        cells = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)[places]
    packed = np.empty((index.rows, index.engine.manifest.code_bits // 8), np.uint8)
    take_codes(arrays["codes"], read_only(places), packed)
    terms = arrays["scan_terms"][places] if "scan_terms" in arrays else np.empty(0, np.uint32)
    return cells, terms, packed


def check_encoded_as_by_build(index: Index) -> None:
    """Check that all points get the cells, scan terms and codes of Build, alone and together."""
    vectors = points_of(index.engine.arrays, index.dims)
    encoder, _ = encoder_of(index)
    cells, terms, packed = codes_of_build(index)
    single_rows = [encoder.encode(vectors[row : row + 1]) for row in range(0, index.rows, 7)]
    singles = [np.concatenate(columns) for columns in zip(*single_rows, strict=True)]
    for encoded, step in ((encoder.encode(vectors), 1), (singles, 7)):
        np.testing.assert_array_equal(encoded[0], cells[::step])
        np.testing.assert_array_equal(encoded[2], packed[::step])
        if len(terms):
            np.testing.assert_array_equal(encoded[1], terms[::step])


@every_index
def test_points_of_build_are_encoded_as_build_encoded_them(
    family: HashFamily, metric: Metric, *, is_centred: bool
) -> None:
    check_encoded_as_by_build(an_index(family, metric, centred=is_centred))


@pytest.mark.parametrize("depth", [4, 2, 1])
@pytest.mark.parametrize("metric", METRICS)
def test_points_of_build_have_the_same_codes_at_every_depth(metric: Metric, depth: int) -> None:
    check_encoded_as_by_build(an_index("cells", metric, dims=150, n_components=COMPONENTS[depth]))


@pytest.mark.parametrize("dims", [1, 3, 16, 130])
def test_points_on_hyperplanes_are_encoded_as_by_build(dims: int) -> None:
    """A library that sums in another order would give such points other codes."""
    options: Any = {"hash_family": "lsh_div", "metric": "euclidean", "n_tables": 2, "n_bits": 4}
    rng = np.random.default_rng(dims)
    first = Index.build(drawn(ROWS, dims, 1), **options)
    planes = first.engine.arrays["hyperplanes"].astype(np.float64)
    points = np.concatenate([np.zeros((1, dims)), 100 * rng.standard_normal((2_000, dims))])
    for row, point in enumerate(points):
        normal = planes[:, row % planes.shape[1]]
        point -= normal * (point @ normal) / (normal @ normal)  # noqa: PLW2901  # changes `points`
    index = Index.build(points.astype(np.float32), **options)
    np.testing.assert_array_equal(index.engine.arrays["hyperplanes"], planes)
    check_encoded_as_by_build(index)
    vectors = index.engine.arrays["vectors"]
    by_library = np.packbits(vectors @ planes.astype(np.float32) >= 0, axis=1, bitorder="little")
    assert (by_library != codes_of_build(index)[2]).any() or dims < 16


@pytest.mark.parametrize("metric", METRICS)
def test_ties_of_cells_are_decided_as_by_build(metric: Metric) -> None:
    """Many points of a grid are as near to one centre as to another."""
    grid = np.stack(np.meshgrid(*[np.arange(1, 6)] * 4), axis=-1).reshape(-1, 4)
    points = np.repeat(grid, 2, axis=0).astype(np.float32)
    check_encoded_as_by_build(Index.build(points, hash_family="cells", metric=metric))


@pytest.mark.parametrize("family", FAMILIES)
def test_real_points_are_encoded_as_by_build(data_folder: Path, family: HashFamily) -> None:
    with np.load(data_folder / "cifar100_dense256.npz", allow_pickle=False) as file:
        images = file["x"][:10_000].astype(np.float32)
    for metric in METRICS[:2] if family == "cells" else METRICS[:1]:
        check_encoded_as_by_build(Index.build(images, hash_family=family, metric=metric))


@every_index
def test_points_that_are_deleted_and_written_again_have_the_codes_of_build(
    family: HashFamily, metric: Metric, *, is_centred: bool, tmp_path: Path
) -> None:
    points = drawn(ROWS, DIMS, 1)
    tables: Any = {"cells": {}, "pca_hash": {"n_tables": 2, "n_bits": 4}}.get(family, {"n_bits": 5})
    options: Any = {"metric": metric, "hash_family": family, "centred": is_centred} | tables
    index = Index.build(points, path=tmp_path / "points", **options)
    cells, terms, packed = codes_of_build(index)
    with Collection.open(tmp_path / "points", durability="process") as collection:
        collection.delete(np.arange(ROWS))
        collection.upsert(np.arange(ROWS), points)
        for is_merged in (False, True):
            if is_merged:
                collection.compact()
            state = collection.committer.state
            assert state is not None
            encoded = state.encoded(state.rows_of_keys(np.arange(ROWS)))
            np.testing.assert_array_equal(encoded[0], cells)
            np.testing.assert_array_equal(encoded[2], packed)
            if len(terms):
                np.testing.assert_array_equal(encoded[1], terms)


@every_index
def test_rows_are_encoded_alone_as_in_a_block(
    family: HashFamily, metric: Metric, *, is_centred: bool
) -> None:
    index = an_index(family, metric, centred=is_centred)
    rows = rows_for(index)
    encoder, _ = encoder_of(index)
    block = encoder.encode(rows)
    for size in (1, 7):
        parts = [encoder.encode(rows[i : i + size]) for i in range(0, len(rows), size)]
        for number, whole in enumerate(block):
            joined = np.concatenate([part[number] for part in parts])
            assert joined.tobytes() == whole.tobytes()
    backwards = encoder.encode(np.ascontiguousarray(rows[::-1]))
    for column, whole in zip(backwards, block, strict=True):
        assert np.ascontiguousarray(column[::-1]).tobytes() == whole.tobytes()


@pytest.mark.parametrize("family", ["lsh_div", "cells"])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dims", [300, 9_000])
def test_sparse_rows_are_encoded_as_dense_ones(
    family: HashFamily, metric: Metric, dims: int
) -> None:
    """Only sums of squares may be rounded otherwise. Rows of 9,000 dimensions are sketched."""
    rng = np.random.default_rng(3)
    points = sparse.random_array((ROWS, dims), density=0.1, dtype=np.float32, rng=rng)
    options: dict[str, Any] = {} if family == "cells" else {"n_tables": 2, "n_bits": 4}
    is_centred = metric != "inner_product"
    index = Index.build(points, metric=metric, hash_family=family, centred=is_centred, **options)
    encoder, _ = encoder_of(index)
    rows = as_rows("vectors", points, dims)
    prepare("vectors", rows, metric)
    assert isinstance(rows, SparseRows)
    check_encoded_as_by_build(index)
    cells, terms, packed = encoder.encode(rows)
    dense = np.ascontiguousarray(rows.matrix.toarray())
    of_dense = encoder.encode(dense)
    assert cells.tobytes() == of_dense[0].tobytes()
    assert packed.tobytes() == of_dense[2].tobytes()
    np.testing.assert_allclose(
        kernels.unpack_terms(terms), kernels.unpack_terms(of_dense[1]), rtol=2**-7, atol=1e-5
    )
    parts = [encoder.encode(rows[i : i + 7]) for i in range(0, ROWS, 7)]
    for number, whole in enumerate((cells, terms, packed)):
        assert np.concatenate([part[number] for part in parts]).tobytes() == whole.tobytes()


def test_the_centre_is_that_of_build(tmp_path: Path) -> None:
    points = drawn(ROWS, DIMS, 1)
    index = Index.build(points, metric="euclidean", hash_family="cells", path=tmp_path / "x")
    parameters = index.engine.manifest.parameters
    stored = Index.open(tmp_path / "x").engine.arrays["vectors"]
    np.testing.assert_array_equal(centre_of(stored, parameters), centre_of(points, parameters))
    np.testing.assert_allclose(centre_of(points, parameters), points.mean(axis=0), rtol=1e-4)


# Codes in tiles.


@pytest.mark.parametrize("words", [1, 2, 3])
def test_codes_are_put_where_words_are_put(words: int) -> None:
    rng = np.random.default_rng(words)
    for count in (1, 16, 31, 32, 33, 100):
        packed = rng.integers(0, 256, (count, 8 * words)).astype(np.uint8)
        by_word = np.zeros(codes.tiles_shape(count, 64 * words), np.uint8)
        for w in range(words):
            put_word(np.ascontiguousarray(packed.view("<u8")[:, w]), w, by_word, 0)
        tiles = np.zeros_like(by_word)
        order = rng.permutation(count).astype(np.int32)
        # Other codes are overwritten, and those of other places stay.
        put_codes(read_only(~packed), read_only(np.arange(count, dtype=np.int32)), tiles)
        for part in np.array_split(order, 3):
            put_codes(read_only(packed[part]), read_only(part), tiles)
        np.testing.assert_array_equal(tiles, by_word)
        result = np.empty_like(packed)
        take_codes(read_only(tiles), read_only(order), result)
        np.testing.assert_array_equal(result, packed[order])
        column = np.empty(count, np.uint64)
        for w in range(words):
            take_word(tiles, w, column)
            np.testing.assert_array_equal(column, packed.view("<u8")[:, w])


@given(arrays_of.arrays(np.uint32, (8, 2)))
def test_terms_are_packed_as_by_build(bits: npt.NDArray[np.uint32]) -> None:
    special = np.array(
        [0, 0x80000000, 0x7F7FFFFF, 0x7F7F8000, 0x7F7F7FFF, 0x7F800000, 0xFF800000, 0x7FC00000],
        np.uint32,
    )
    pairs = np.concatenate([bits, np.stack([special, special[::-1]], axis=1)]).view(np.float32)
    offsets, factors = (np.ascontiguousarray(column) for column in pairs.T)
    with np.errstate(all="ignore"):
        expected = codes.pack_terms(offsets, factors)
    for offset, factor, word in zip(offsets, factors, expected, strict=True):
        assert np.uint32(pack(offset, factor)) == word


# Places in overflow tiles.

TILE = 32


class _Overflow:
    """Overflow tiles of four cells behind two other tiles."""

    first_tile = 2

    def __init__(self, tiles: int) -> None:
        self.heads = np.full(4, -1, np.int32)
        self.nexts = np.full(tiles, -1, np.int32)
        self.counts, self.cells_of = np.zeros(tiles, np.int32), np.zeros(tiles, np.int32)
        self.cell_rows = np.full((self.first_tile + tiles) * TILE, 999, np.int32)
        self.used = np.zeros(1, np.int64)

    def add(self, cells: list[int], rows: list[int]) -> tuple[int, list[int]]:
        places = np.full(len(cells), -1, np.int32)
        fields = (
            self.heads, self.nexts, self.counts, self.cells_of, self.cell_rows, self.used
        )  # fmt: skip
        numbers = [read_only(np.array(column, np.int32)) for column in (cells, rows)]
        used = add_places(*numbers, self.first_tile, fields, places)
        return used, places.tolist()

    def rows_of(self, cell: int) -> list[list[int]]:
        """Return the rows in the tiles of a cell, its last tile first."""
        tiles, tile = [], int(self.heads[cell])
        while tile >= 0:
            assert self.cells_of[tile] == cell
            start = (self.first_tile + tile) * TILE
            tiles.append(self.cell_rows[start : start + self.counts[tile]].tolist())
            tile = int(self.nexts[tile])
        return tiles


def tiles_of(rows: list[int]) -> list[list[int]]:
    return [rows[i : i + TILE] for i in range(0, len(rows), TILE)][::-1]


@given(st.lists(st.lists(st.integers(0, 3), max_size=90), max_size=5))
def test_rows_get_places_in_tiles_of_their_cells(blocks: list[list[int]]) -> None:
    overflow, first = _Overflow(30), 100
    members: dict[int, list[int]] = {cell: [] for cell in range(4)}
    row_at: dict[int, int] = {}
    for block in blocks:
        rows = list(range(first, first + len(block)))
        used, places = overflow.add(block, rows)
        first += len(block)
        for cell, row, place in zip(block, rows, places, strict=True):
            members[cell].append(row)
            assert place not in row_at
            row_at[place] = row
        assert used == overflow.used[0] == sum(-(-len(m) // TILE) for m in members.values())
        for cell, rows_in_cell in members.items():
            assert overflow.rows_of(cell) == tiles_of(rows_in_cell)
    for place, row in enumerate(overflow.cell_rows.tolist()):
        assert row == row_at.get(place, 999)


def test_too_few_tiles_are_reported() -> None:
    overflow = _Overflow(2)
    assert overflow.add([0] * TILE, [*range(TILE)])[0] == 1
    assert overflow.add([1, 0], [50, 51]) == (-1, [(2 + 1) * TILE, -1])
    assert overflow.add([1], [52])[0] == 2
    assert overflow.rows_of(1) == [[50, 52]]
