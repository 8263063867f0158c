"""From points to everything that finds them: hyperplanes, codes, tables or cells.

Points pass through memory in blocks; what comes of them is created in the store and filled in
place, so that a staged build holds a few blocks of private memory for each core, whatever its size.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from divgrpc.hashing import codes as coding
from divgrpc.hashing import hyperplanes as hashing
from divgrpc.hashing import partition as cells
from divgrpc.hashing.count_sketch import CountSketch
from divgrpc.kernels import inverted_lists, normalise
from divgrpc.kernels.exact import BOUND_ROWS
from divgrpc.parallel import on_all_cores
from divgrpc.parameters import BuildParameters
from divgrpc.storage.arrays import Array, release
from divgrpc.storage.writers import Arrays
from divgrpc.types import FloatArray
from divgrpc.vectors import Rows, SparseRows, block_rows, lengths, mean_width, release_rows, take

Report = Callable[[str, int, int], None]
# Numbers that a core has at a time: 2 MiB of projections are still cached when they become signs.
_MARGINS_AT_ONCE: Final = 2**19
_NUMBERS_AT_ONCE: Final = 2**20
_FEW_DIMS: Final = 512  # one BLAS thread is enough
# Sizes of the sample that gives the mean and the spread of the points.
_SOME_NUMBERS: Final = 1 << 22
_SOME_LEAST: Final = 256
_OTHERS: Final = 256
_LOOKED_AT: Final = 1 << 13
# More sparse points get no inverted lists, which take nearly as much memory as the points.
LISTED_MOST: Final = 2**18
# The share of the points from which on a column that they hold is common.
COMMON: Final = 0.6


@dataclass(frozen=True, slots=True)
class Encoded:
    """The arrays made of the points, by name, and the parameters with every default filled in."""

    arrays: dict[str, Array]
    parameters: BuildParameters
    code_bits: int


def encode_points(store: Arrays, asked: BuildParameters, points: Rows, report: Report) -> Encoded:
    """Make all arrays but the points and their labels; `report` gets stage, rows done, rows."""
    rows, dims = points.shape
    parameters = hashing.fill_defaults(asked, rows, dims)
    encoder = _Encoder(store, parameters, points, report)
    encoder.measure()
    encoder.draw(fit=asked.n_components is None)
    if parameters.hash_family == "cells":
        encoder.hash_into_cells()
    else:
        encoder.hash()
        encoder.fill_tables()
    return Encoded(encoder.arrays, encoder.parameters, encoder.bits)


class _Cells:
    """A partition, and what leads to its centres; hashing puts each row's cell into `numbers` (n,).

    A centre is the sum of the first hyperplanes times `weights` (C, m); `margins` (C, B) are its
    own on all of them, `squares` (C,) its squared length.
    """

    def __init__(self, partition: cells.Partition, hyperplanes: FloatArray, rows: int) -> None:
        self.partition = partition
        planes = hyperplanes.astype(np.float64)
        turned = planes[:, : partition.width].T @ planes
        # The identity for orthogonal hyperplanes, but not for others.
        gram = turned[:, : partition.width]
        weights = partition.centres @ np.linalg.pinv(gram, hermitian=True)
        self.weights = weights.astype(np.float32)
        self.margins = (weights @ turned).astype(np.float32)
        self.squares = np.einsum("ij,ij->i", weights @ gram, weights).astype(np.float32)
        self.numbers = np.empty(rows, np.int32)


class _Encoder:
    def __init__(
        self, store: Arrays, parameters: BuildParameters, points: Rows, report: Report
    ) -> None:
        self.arrays: dict[str, Array] = {}
        self.parameters = parameters
        self.bits = hashing.code_bits(parameters)
        self._planes = self.bits // hashing.code_depth(parameters)
        self._store = store
        self._points = points
        self._rows, self._dims = points.shape
        self._report = report
        self._centre = np.zeros(self._dims, np.float32)
        self._sketch = CountSketch.draw(self._dims, parameters.seed)

    @property
    def _depth(self) -> int:
        return self.bits // self._planes

    @cached_property
    def _used(self) -> int:
        """How many hyperplanes are not of zeros, which hash nothing."""
        return int(np.count_nonzero(self.arrays["hyperplanes"].any(axis=0)))

    def measure(self) -> None:
        """Keep what sparse points and products are compared with: squared and inverse lengths."""
        if isinstance(self._points, SparseRows):
            squares = self._create("squares", np.float64, (self._rows,))
            normalise.squares_sparse(self._points.indptr, self._points.values, squares)
            if self._rows <= LISTED_MOST:
                self._list_holders()
        if self.parameters.metric == "inner_product":
            inverses = self._create("inverse_lengths", np.float32, (self._rows,))
            for start, block in self._blocks():
                long = lengths(block)
                # A point of length zero has no direction, and is as far from all as can be told.
                part = inverses[start : start + len(block)]
                np.divide(1, long, out=part, where=long > 0)
            if not isinstance(self._points, SparseRows):
                self._bound_lengths(self._points)

    def _list_holders(self) -> None:
        """List the points that hold each rare column: see `kernels.postings.score_listed`."""
        holders = np.zeros(self._dims, np.int64)
        for _, block in self._sparse_blocks():
            inverted_lists.count_holders(block.indices, holders)
        common = holders > COMMON * self._rows
        starts = np.concatenate(([0], np.cumsum(np.where(common, 0, holders))))
        self._put("posting_starts", starts)
        rows = self._create("posting_rows", np.int32, (int(starts[-1]),))
        values = self._create("posting_values", np.float32, (int(starts[-1]),))
        common_lengths = self._create("common_lengths", np.float32, (self._rows,))
        ends = np.where(common, -1, starts[:-1])
        for start, block in self._sparse_blocks():
            part = common_lengths[start : start + len(block)]
            inverted_lists.fill_lists(
                block.indptr, block.indices, block.values, start, ends, rows, values, part
            )

    def _bound_lengths(self, points: FloatArray) -> None:
        """Keep how long rows are at most from one place on: see `kernels.scoring.score_longest`."""
        longest = []
        for start in range(0, self._rows, BOUND_ROWS):
            block = points[start : start + BOUND_ROWS].astype(np.float64)
            longest.append(np.einsum("ij,ij->i", block, block).max() ** 0.5)
            release_rows(points)
        falling = np.maximum.accumulate(longest[::-1])[::-1].astype(np.float32)
        self._put("length_bounds", np.nextafter(falling, np.float32(np.inf)))

    def draw(self, *, fit: bool) -> None:
        """Draw the hyperplanes; with `fit` those of cells lie in as many components as fit best."""
        self._report("components", 0, self._rows)
        if self.parameters.centred:
            self._centre = self._mean()
        if self.parameters.hash_family == "cells":
            self._look_at_some(fit=fit)
        # In few dimensions, and on sparse rows, threads of BLAS would mostly wait for one another.
        little = isinstance(self._points, SparseRows) or self._dims <= _FEW_DIMS
        threads = 1 if little else None
        with threadpool_limits(threads, user_api="blas"):
            hyperplanes = hashing.draw_hyperplanes(
                self.parameters, self._points, self._centre, self._planes, self._sketch
            )
        self._put("hyperplanes", hyperplanes)
        self._put("thresholds", self._sketch.of_dense(self._centre) @ hyperplanes)
        if len(self._sketch.places):
            self._put("sketch", self._sketch.places)
        self._release()

    def _look_at_some(self, *, fit: bool) -> None:
        """Take the centre of some points, and with `fit` the number of components, for cells."""
        count = min(self._rows, max(_SOME_LEAST, _SOME_NUMBERS // self._dims))
        rng = np.random.default_rng((self.parameters.seed, 3))
        some = take(self._points, np.sort(rng.choice(self._rows, count, replace=False)))
        if not self.parameters.centred and self.parameters.metric != "inner_product":
            # Distances are the same from wherever margins are measured, and a query's four bits are
            # spent on what tells points apart.
            self._centre = (_sum(some, self._dims) / count).astype(np.float32)
        if fit and not isinstance(some, SparseRows) and self._dims <= hashing.GRAM_DIMS:
            fitting = coding.fitting_components(_spread(some - self._centre), self.bits)
            self.parameters = replace(self.parameters, n_components=fitting)
            self._planes = self.bits // hashing.code_depth(self.parameters)

    def hash(self, found: "_Cells | None" = None) -> None:
        """Write codes and scan terms, row by row, and which of the cells each row is in.

        In a cell, codes are of what leads from its centre to the point.
        """
        self._create("codes", np.uint64, (self.bits // hashing.WORD, self._rows))
        if found or self.parameters.metric != "cosine":
            self._create("scan_terms", np.uint32, (self._rows,))
        numbers = _NUMBERS_AT_ONCE // mean_width(self._points)
        at_once = max(1, min(block_rows(self._points), numbers, _MARGINS_AT_ONCE // self._planes))
        starts = range(0, self._rows, at_once)

        def hash_some(start: int) -> None:
            self._hash_some(start, self._points[start : start + at_once], found)

        self._report("hashing", 0, self._rows)
        held, most = 0, block_rows(self._points)
        # A library's threads wait for one another more than these do.
        with threadpool_limits(1, user_api="blas"):
            for start, _ in zip(starts, on_all_cores(hash_some, starts), strict=True):
                held += at_once
                # Pages that other cores are at work on come back: not after every few rows.
                if held >= most and start + at_once < self._rows:
                    held = 0
                    self._release()
                    self._report("hashing", start + at_once, self._rows)
        self._release()
        self._report("hashing", self._rows, self._rows)

    def _hash_some(self, first: int, rows: Rows, found: "_Cells | None") -> None:
        """Write codes and terms of rows from `first` on, and the cells that they are in."""
        margins = self._margins(rows)
        stop, terms = first + len(rows), self.arrays.get("scan_terms")
        if found and terms is not None:
            numbers = found.partition.assign(margins[:, : found.partition.width])
            found.numbers[first:stop] = numbers
            codes, terms[first:stop] = self._cell_terms(rows, margins, found, numbers)
            coding.encode(codes, self.arrays["codes"], first)
            return
        if terms is not None:
            terms[first:stop] = self._terms(rows, margins)
        coding.encode(margins, self.arrays["codes"], first)

    def hash_into_cells(self) -> None:
        """Learn a partition, then hash, and bring codes into the order of the cells."""
        self._report("cells", 0, self._rows)
        width = min(hashing.dimensions_spanned(self.parameters, self._sketch.dims), self._planes)
        rng = np.random.default_rng((self.parameters.seed, 2))
        count = cells.sample_size(self._rows, width)
        chosen = np.sort(rng.choice(self._rows, count, replace=False))
        at_once = block_rows(self._points)

        def project(start: int) -> FloatArray:
            return self._margins(take(self._points, chosen[start : start + at_once]))[:, :width]

        with threadpool_limits(1, user_api="blas"):
            sample = np.concatenate(list(on_all_cores(project, range(0, count, at_once))))
            partition = cells.learn(sample, cells.cell_count(self._rows, width), rng)
        found = _Cells(partition, self.arrays["hyperplanes"], self._rows)
        self.hash(found)
        self._report("cells", self._rows, self._rows)
        order = np.argsort(found.numbers, kind="stable").astype(np.int32)
        for line in (self.arrays["scan_terms"], *self.arrays["codes"]):
            line[:] = line[order]
        self._release()
        sizes = np.bincount(found.numbers, minlength=len(partition.centres))
        self._put_centres(found)
        self._put("cell_starts", np.concatenate(([0], np.cumsum(sizes))).astype(np.int64))
        self._put("cell_rows", order)

    def _put_centres(self, found: _Cells) -> None:
        """Put what ranks cells: the centres, and codes and terms of what leads to them."""
        # What all centres have alike changes no order of theirs.
        margins = found.margins - found.margins.mean(axis=0)
        codes = self._create("cell_codes", np.uint64, (self.bits // hashing.WORD, len(margins)))
        found_codes = coding.levels(margins, self._depth, self._used)
        coding.encode(found_codes, codes, 0)
        stretch = self._stretches(margins, found_codes)
        product = self.parameters.metric == "inner_product"
        offsets, factors = (0 * stretch, stretch) if product else (found.squares, 2 * stretch)
        self._put("cell_terms", coding.pack_terms(offsets, factors))
        self._put("cell_centres", found.weights)
        self._put("cell_squares", found.squares)

    def fill_tables(self) -> None:
        """Sort the rows of every table into buckets."""
        n_tables, n_bits = self.parameters.n_tables or 0, self.parameters.n_bits or 0
        entries = self._create("table_rows", np.int32, (n_tables, self._rows))
        keys, offsets, starts = [], [], [0]
        self._report("tables", 0, self._rows)
        for table in range(n_tables):
            table_keys, table_offsets, entries[table] = hashing.build_table(
                self.arrays["codes"], table, n_bits
            )
            keys.append(table_keys)
            offsets.append(table_offsets)
            starts.append(starts[-1] + len(table_offsets) - 1)
            self._release()
            self._report("tables", self._rows * (table + 1) // n_tables, self._rows)
        self._put_joined("table_keys", keys)
        self._put_joined("table_offsets", offsets)
        self._put("table_starts", np.array(starts, np.int64))

    def _blocks(self) -> Iterator[tuple[int, Rows]]:
        """Yield where blocks begin and their rows; no more than a block of pages is held."""
        at_once = block_rows(self._points)
        for start in range(0, self._rows, at_once):
            yield start, self._points[start : start + at_once]
            self._release()

    def _sparse_blocks(self) -> Iterator[tuple[int, SparseRows]]:
        for start, block in self._blocks():
            if isinstance(block, SparseRows):
                yield start, block

    def _release(self) -> None:
        release_rows(self._points)
        for array in self.arrays.values():
            release(array)

    def _margins(self, block: Rows) -> FloatArray:
        projected: FloatArray = self._sketch(block) @ self.arrays["hyperplanes"]
        thresholds = self.arrays["thresholds"]
        if thresholds.any():
            projected -= thresholds
        return projected

    def _stretches(self, margins: FloatArray, codes: FloatArray) -> npt.NDArray[np.floating]:
        spanned = hashing.dimensions_spanned(self.parameters, self._sketch.dims) / self._used
        return coding.stretches(margins, codes, spanned)

    def _terms(self, block: Rows, margins: FloatArray) -> npt.NDArray[np.uint32]:
        stretch = self._stretches(margins, coding.levels(margins, 1, self._used))
        if self.parameters.metric == "inner_product":
            return coding.pack_terms(np.zeros(len(block), np.float32), stretch)
        return coding.pack_terms(self._centred_squares(block), 2 * stretch)

    def _cell_terms(
        self, block: Rows, margins: FloatArray, found: _Cells, numbers: npt.NDArray[np.int32]
    ) -> tuple[FloatArray, npt.NDArray[np.uint32]]:
        """Take the centres of the rows' cells off `margins` (m, B) in place; return codes, terms.

        With a centre c and a stretched code b, a distance |q - x|^2 is
        |q - c|^2 + |x - c|^2 - 2 (q - c)(x - c), where (q - c) b stands for the last product: what
        has no query in it is the first term. A product q x is q c + q (x - c), of which q b stands
        for the last: c may be much longer than q.
        """
        weights, centre_margins = found.weights[numbers], found.margins[numbers]
        along = np.einsum("ij,ij->i", margins[:, : weights.shape[1]], weights)
        margins -= centre_margins
        codes = coding.levels(margins, self._depth, self._used)
        stretch = self._stretches(margins, codes)
        if self.parameters.metric == "inner_product":
            return codes, coding.pack_terms(np.zeros(len(block), np.float32), stretch)
        shift = stretch * np.einsum("ij,ij->i", codes, centre_margins)
        apart = self._centred_squares(block) - 2 * along + found.squares[numbers]
        return codes, coding.pack_terms(np.maximum(apart, 0) + 2 * shift, 2 * stretch)

    def _centred_squares(self, block: Rows) -> FloatArray:
        """Return the squared distance of each row from the centre."""
        centre = self._centre
        if not isinstance(block, SparseRows):
            return np.asarray(np.square(lengths(block - centre if centre.any() else block)))
        squares = np.square(lengths(block)) - 2 * (block @ centre) + centre @ centre
        return np.asarray(np.maximum(squares, 0))

    def _mean(self) -> FloatArray:
        total = np.zeros(self._dims)
        for _, block in self._blocks():
            total += _sum(block, self._dims)
        mean: FloatArray = (total / self._rows).astype(np.float32)
        return mean

    def _create(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        self.arrays[name] = self._store.create(name, dtype, shape)
        return self.arrays[name]

    def _put(self, name: str, array: Array) -> None:
        self._create(name, array.dtype, array.shape)[...] = array

    def _put_joined(self, name: str, parts: list[Array]) -> None:
        """Put one-dimensional arrays end to end; joined in memory they would be there twice."""
        whole = self._create(name, parts[0].dtype, (sum(map(len, parts)),))
        start = 0
        for part in parts:
            whole[start : start + len(part)] = part
            start += len(part)


def _spread(points: FloatArray) -> FloatArray:
    """Return how much ways to points from others near them vary, (d,), by principal component.

    They stand for the ways from centres of cells, which there are none of yet.
    """
    axes = np.linalg.eigh((points.T @ points).astype(np.float64))[1][:, ::-1]
    turned = points[:: -(-len(points) // _LOOKED_AT)] @ axes.astype(np.float32)
    others = turned[:: max(1, len(turned) // _OTHERS)]
    near = (turned @ others.T - np.square(others).sum(axis=1) / 2).argmax(axis=1)
    ways = np.square(turned - others[near])
    far = ways.sum(axis=1)
    # Some lie where none of the others do.
    return np.asarray(ways[far <= np.median(far)].mean(axis=0))


def _sum(rows: Rows, dims: int) -> npt.NDArray[np.float64]:
    """Return the sum of rows, (d,)."""
    if isinstance(rows, SparseRows):
        return np.asarray(np.bincount(rows.indices, rows.values, dims), np.float64)
    return np.asarray(rows.sum(axis=0, dtype=np.float64))
