"""The encoder computes the arrays that searches of some points use: codes, and tables or cells.

The encoder reads the points in blocks, and fills arrays in place in the store. A build on disk
therefore keeps only a few blocks of points for each core in private memory.

A code stores the margins of a point with a few bits each (`divgrpc.builder.hash_functions`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, read_only, release
from divgrpc.build_rows import (
    BuildRows,
    DividedRows,
    DividedSparseRows,
    block_rows,
    mean_width,
    release_rows,
)
from divgrpc.builder.hash_functions import REACHES, HashFunctions, fit
from divgrpc.builder.measured import MeasuredSearcher
from divgrpc.builder.nearest import FindNearest, find_nearest
from divgrpc.builder.progress import Report
from divgrpc.builder.row_encoder import RowEncoder
from divgrpc.hashing import codes, lists
from divgrpc.hashing.hyperplanes import fill_defaults
from divgrpc.hashing.length_bounds import length_bounds
from divgrpc.hashing.tables import create_tables
from divgrpc.kernels import normalise
from divgrpc.kernels.encode import put_codes
from divgrpc.kernels.inverted_lists import LISTED_POINTS_MAX
from divgrpc.kernels.look_ups import TILE_POINTS
from divgrpc.parallel import on_all_cores, one_blas_thread
from divgrpc.parameters import BuildParameters
from divgrpc.search.arrays import with_points
from divgrpc.search.searcher import Searcher
from divgrpc.storage.writers import ArrayStore, Store
from divgrpc.types import Metric
from divgrpc.vectors import Rows, SparseRows, lengths

# Maximum numbers of margins (_BLOCK_MARGINS) and values (_BLOCK_NUMBERS) in a block of one core.
# 2**19 margins (2 MiB) stay in the cache of the core until they are encoded.
_BLOCK_MARGINS: Final = 2**19
_BLOCK_NUMBERS: Final = 2**20
# The cells, scan terms and codes of some rows, as `RowEncoder.encode` returns them.
EncodedRows: TypeAlias = tuple[Array, Array, Array]
# Encodes blocks of rows of all points, whose first rows are multiples of `TILE_POINTS`; yields the
# blocks in any order, each with its encoded rows.
EncodeBlocks: TypeAlias = Callable[
    [HashFunctions, Rows, Sequence[range]], Iterable[tuple[range, EncodedRows]]
]


class EncodePoints(Protocol):
    """Encodes points as `encode_points` does."""

    def __call__(
        self,
        store: Store,
        request: BuildParameters,
        points: BuildRows,
        report: Report,
        prefix: str,
        /,
    ) -> "Encoding":
        """See `encode_points`."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """Encoded points: the arrays by name, the parameters with defaults, and the bits per code."""

    arrays: dict[str, Array]
    parameters: BuildParameters
    code_bits: int

    def searcher(self, points: BuildRows, *, longest_first: bool = False) -> MeasuredSearcher:
        """Return a searcher for the encoded `points` (n, d), whose longest may come first."""
        # Those have another encoding.
        assert not isinstance(points, DividedRows | DividedSparseRows)  # noqa: S101
        arrays = with_points(self.arrays, points)
        dims = points.shape[1]
        return Searcher(arrays, self.parameters, dims, longest_first=longest_first)

    @contextmanager
    def searching(
        self, points: BuildRows, *, longest_first: bool = False
    ) -> Iterator[tuple[MeasuredSearcher, FindNearest]]:
        """In the block, have what `searcher` returns, and what finds nearest points.

        Others may work for both meanwhile.
        """
        yield self.searcher(points, longest_first=longest_first), find_nearest


def rows_per_block(points: Rows, planes: int) -> int:
    """Return the maximum number of rows of a block that is encoded at once, whole tiles.

    planes: the number of hyperplanes.
    """
    rows_in_cache = min(_BLOCK_NUMBERS // mean_width(points), _BLOCK_MARGINS // planes)
    return max(1, min(block_rows(points), rows_in_cache) // TILE_POINTS) * TILE_POINTS


def encode_on_all_cores(
    functions: HashFunctions, points: Rows, blocks: Sequence[range]
) -> Iterator[tuple[range, EncodedRows]]:
    """Encode blocks on this machine; see `EncodeBlocks`."""
    encoder = RowEncoder(functions.arrays, functions.parameters)

    def encode(block: range) -> tuple[range, EncodedRows]:
        return block, encoder.encode(points[block.start : block.stop])

    yield from on_all_cores(encode, blocks)


def encode_points(
    store: ArrayStore,
    request: BuildParameters,
    points: BuildRows,
    report: Report,
    prefix: str = "",
) -> Encoding:
    """Compute all arrays that searches of `points` (n, d) use, and write them to `store`.

    `points` are float32, dense or sparse, already checked and scaled for the metric. `report` is
    called with the stage, the number of rows done, and n. Names of arrays in the store begin with
    `prefix`. Raises `InvalidArgumentError` for parameters that do not fit the points.
    """
    # `DividedBuild` encodes those.
    assert not isinstance(points, DividedRows | DividedSparseRows)  # noqa: S101
    # Refuse parameters that do not fit before the long work begins.
    fill_defaults(request, *points.shape)
    encoder = PointEncoder(store, request.metric, points, report, prefix)
    encoder.measure()
    encoder.store_length_bounds()
    functions = fit(points, request, report)
    encoder.store_functions(functions)
    encoder.begin_codes(functions)
    encoder.store_reaches(functions)
    blocks = hash_points(points, functions, encode_on_all_cores, encoder.release, report)
    for block, encoded in blocks:
        encoder.put_codes(block.start, encoded)
    encoder.finish_codes()
    return Encoding(encoder.arrays, functions.parameters, functions.code_bits)


def hash_points(
    points: Rows,
    functions: HashFunctions,
    encode_blocks: EncodeBlocks,
    release_pages: Callable[[], None],
    report: Report,
) -> Iterator[tuple[range, EncodedRows]]:
    """Yield blocks of `points` (n, d) in any order, each with its encoded rows.

    release_pages: drops the pages of the points, and of the arrays that the caller fills.
    """
    rows, step = len(points), rows_per_block(points, functions.arrays["hyperplanes"].shape[1])
    blocks = [range(start, min(start + step, rows)) for start in range(0, rows, step)]
    report("hashing", 0, rows)
    rows_done, rows_held, rows_held_max = 0, 0, block_rows(points)
    # Blocks already use all cores, so several BLAS threads per block would wait for each other.
    with one_blas_thread():
        for block, encoded in encode_blocks(functions, points, blocks):
            yield block, encoded
            rows_done += len(block)
            rows_held += len(block)
            # Release pages rarely: pages that other cores are reading must be mapped again after
            # each release.
            if rows_held >= rows_held_max and rows_done < rows:
                rows_held = 0
                release_pages()
                report("hashing", rows_done, rows)
    release_pages()
    report("hashing", rows, rows)


class PointEncoder:
    """Writes arrays of points to a store; `arrays` are those that it has written."""

    def __init__(
        self, store: ArrayStore, metric: Metric, points: Rows, report: Report, prefix: str = ""
    ) -> None:
        """Take the store for arrays of `points` (n, d), with names that begin with `prefix`.

        report: called with the stage, the number of rows done, and n.
        """
        self.arrays: dict[str, Array] = {}
        self._store, self._prefix = store, prefix
        self._metric, self._points, self._report = metric, points, report
        self._rows, self._dims = points.shape

    def measure(self) -> None:
        """Store squared lengths and inverted lists of sparse points.

        Under inner_product, also store the inverse length of each point.
        """
        if isinstance(self._points, SparseRows):
            squares = self._create("squares", np.float64, (self._rows,))
            normalise.squares_sparse(self._points.indptr, self._points.values, squares)
            if 0 < self._rows <= LISTED_POINTS_MAX:
                self._store_inverted_lists()
        if self._metric == "inner_product":
            inverses = self._create("inverse_lengths", np.float32, (self._rows,))
            for start, block in self._blocks():
                block_lengths = lengths(block)
                # For a point of length 0 the stored inverse length stays 0.
                part = inverses[start : start + len(block)]
                np.divide(1, block_lengths, out=part, where=block_lengths > 0)

    def _store_inverted_lists(self) -> None:
        """Store the points by column (`kernels.inverted_lists`)."""
        lists.create_lists(self._sparse_blocks, self._rows, self._dims, self._create)

    def store_length_bounds(self) -> None:
        """Store bounds of the lengths of dense points under inner_product."""
        if self._metric == "inner_product" and not isinstance(self._points, SparseRows):
            self._put("length_bounds", length_bounds(self._points))

    def store_functions(self, functions: HashFunctions) -> None:
        """Store the arrays of the hash functions, except the one that follows the codes."""
        for name, array in functions.arrays.items():
            if name != REACHES:
                self._put(name, array)

    def store_reaches(self, functions: HashFunctions) -> None:
        """Store the distances of cells, which a manifest names after the codes."""
        if REACHES in functions.arrays:
            self._put(REACHES, functions.arrays[REACHES])

    def begin_codes(self, functions: HashFunctions) -> None:
        """Create the arrays for the codes and scan terms of all rows.

        Scan terms are the numbers with which a scan estimates distances from codes
        (`codes.pack_terms`). Under cosine, scan terms are stored only with cells. With cells, a
        code encodes the difference between a point and its cell's centre.
        """
        self._functions = functions
        self._create("codes", np.uint8, codes.tiles_shape(self._rows, functions.code_bits))
        if functions.has_cells or self._metric != "cosine":
            self._create("scan_terms", np.uint32, (self._rows,))
        # The cell of each row.
        self._cells = np.empty(self._rows if functions.has_cells else 0, np.int32)

    def put_codes(self, first: int, encoded: EncodedRows) -> None:
        """Write the cells, scan terms and codes of rows, from the row `first` on."""
        cells, terms, packed = encoded
        rows = slice(first, first + len(packed))
        places = np.arange(rows.start, rows.stop, dtype=np.int32)
        put_codes(read_only(packed), read_only(places), self.arrays["codes"])
        if self._functions.has_cells:
            self._cells[rows] = cells
        if "scan_terms" in self.arrays:
            self.arrays["scan_terms"][rows] = terms

    def finish_codes(self) -> None:
        """Store the tables or cells that hold the codes."""
        if self._functions.has_cells:
            self._sort_by_cell()
        elif self._rows:
            self._fill_tables(self._functions.parameters)

    def _sort_by_cell(self) -> None:
        """Sort codes and scan terms by cell."""
        self._report("cells", self._rows, self._rows)
        order = np.argsort(self._cells, kind="stable").astype(np.int32)
        terms = self.arrays["scan_terms"]
        terms[:] = terms[order]
        codes.sort_codes(self.arrays["codes"], order)
        self.release()
        sizes = np.bincount(self._cells, minlength=len(self._functions.arrays["cell_centres"]))
        self._put("cell_starts", np.concatenate(([0], np.cumsum(sizes))).astype(np.int64))
        self._put("cell_rows", order)

    def _fill_tables(self, parameters: BuildParameters) -> None:
        """Build the hash tables: sort the rows of each table into buckets."""
        n_tables, n_bits = parameters.n_tables or 0, parameters.n_bits or 0

        def report(tables: int) -> None:
            self.release()
            self._report("tables", self._rows * tables // n_tables, self._rows)

        self._report("tables", 0, self._rows)
        alive = np.ones(self._rows, np.bool_)
        create_tables(self.arrays["codes"], alive, (n_tables, n_bits), self._create, report)

    def _blocks(self) -> Iterator[tuple[int, Rows]]:
        """Yield the first row number and the points of each block; release the pages afterwards."""
        rows = block_rows(self._points)
        for start in range(0, self._rows, rows):
            yield start, self._points[start : start + rows]
            self.release()

    def _sparse_blocks(self) -> Iterator[tuple[int, SparseRows]]:
        for start, block in self._blocks():
            if isinstance(block, SparseRows):
                yield start, block

    def release(self) -> None:
        """Drop the pages of the points and of the arrays from memory."""
        release_rows(self._points)
        for array in self.arrays.values():
            release(array)

    def _create(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        self.arrays[name] = self._store.create(self._prefix + name, dtype, shape)
        return self.arrays[name]

    def _put(self, name: str, array: Array) -> None:
        self._create(name, array.dtype, array.shape)[...] = array
