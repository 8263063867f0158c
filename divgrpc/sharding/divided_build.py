"""Builds an index whose points are divided among shards; no array has the codes of all points.

Dense vectors are written to the folders of their shards as they arrive. Ids, labels, columns and
sparse points are copied there when the upload is complete. The hash functions are fitted to a
sample of all rows. Then each shard is encoded apart: it gets codes, and tables or cells, for its
points alone. So the limit of the number of rows holds for a shard.

    <staging>/*.npy                 ids, labels and columns of all rows; what all shards share
    <staging>/shards/<shard>/       the arrays of a shard
    <staging>/rows/<shard>.npy      the numbers of its rows in the order of the upload
"""

import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from divgrpc.arrays import Array, read_only, release
from divgrpc.builder.encoder import (
    EncodeBlocks,
    Encoding,
    PointEncoder,
    encode_on_all_cores,
    hash_points,
)
from divgrpc.builder.hash_functions import HashFunctions, fit
from divgrpc.builder.progress import Report
from divgrpc.divided_rows import DividedRows
from divgrpc.errors import LimitExceededError
from divgrpc.hashing.hyperplanes import fill_defaults
from divgrpc.parameters import LIMITS, BuildParameters
from divgrpc.search.arrays import points_of
from divgrpc.search.point_arrays import PointArrays
from divgrpc.sharding.cutting import ROW_NUMBERS, homes_of, rows_follow_ids, without_vectors
from divgrpc.sharding.files import ShardPart, finish_shards
from divgrpc.sharding.measuring import AskShards, ShardedSearcher
from divgrpc.sharding.staged_arrays import sync
from divgrpc.sharding.staged_shards import ShardFiles, SyncArray
from divgrpc.storage.arrays import (
    ArrayEntry,
    ArrayFolder,
    check_room,
    checksum_of,
    full_disk_errors,
    open_array,
)
from divgrpc.storage.generations import Staging
from divgrpc.storage.manifest import Manifest
from divgrpc.storage.shards import SHARDS, is_received
from divgrpc.storage.writers import put
from divgrpc.types import FloatArray, IntArray
from divgrpc.types.records import Attribute
from divgrpc.vectors import BuildRows, Rows, SparseRows, block_rows, release_rows

# Returns what encodes the points whose arrays are in a folder.
EncodeIn: TypeAlias = Callable[[Path], EncodeBlocks]
Measuring: TypeAlias = AbstractContextManager[AskShards | None]
# Returns what `DividedEncoding.measuring` does. Takes the files of the shards, the names of the
# arrays that they share, the parameters with all defaults, and the shape (n, d) of all points.
MeasureIn: TypeAlias = Callable[
    [Sequence[ShardFiles], Collection[str], BuildParameters, tuple[int, int]], Measuring
]
_ROWS: Final = "rows"
_POINTS: Final = ("vectors", "indptr", "indices", "values")
# Rows are written when so many are held, or so many values of dense ones (4 MiB).
_HELD_ROWS: Final = 1 << 16
_HELD_VALUES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class DividedEncoding(Encoding):
    """Encoded points that are divided among shards; `arrays` are those that all shards share.

    parts: the arrays of each shard.
    rows: the numbers of the rows of each shard, which ascend.
    measuring: has, in a block, what asks shards elsewhere; None if there are none.
    """

    parts: Sequence[Mapping[str, Array]] = ()
    rows: Sequence[IntArray] = ()
    measuring: Callable[[], Measuring] = nullcontext

    def searcher(
        self,
        points: BuildRows,
        *,
        longest_first: bool = False,
        ask_elsewhere: AskShards | None = None,
    ) -> ShardedSearcher:
        """Return what searches the shards for tuning; `points` (n, d) are those of all shards."""
        assert not longest_first  # noqa: S101  # only label factors are sorted by length
        return ShardedSearcher(
            points, self.parts, self.rows, self.arrays, self.parameters,
            ask_elsewhere=ask_elsewhere,
        )  # fmt: skip

    @contextmanager
    def searching(
        self, points: BuildRows, *, longest_first: bool = False
    ) -> Iterator[ShardedSearcher]:
        """In the block, have what `searcher` returns; shards may answer elsewhere."""
        with self.measuring() as ask:
            yield self.searcher(points, longest_first=longest_first, ask_elsewhere=ask)


class _Part:
    """The files of a shard; `rows` (m,) are the numbers of its rows."""

    def __init__(self, store: ArrayFolder) -> None:
        self.store = store
        self.rows: IntArray = np.empty(0, np.int64)
        self.row_count = 0
        self.points: PointArrays | None = None
        self._entries: dict[str, ArrayEntry] = {}

    def finish(self) -> None:
        """Close the arrays that were written."""
        self._entries |= self.store.close()

    def arrays(self) -> dict[str, Array]:
        """Map the points, and what was made of them, from files.

        A mapping keeps a file open, so ids, labels and columns are left out.
        """
        folder = self.store.folder
        return {
            name: open_array(folder / f"{name}.npy", entry, verify=False)
            for name, entry in self._entries.items()
            if name in _POINTS or not is_received(name)
        }

    def files(self, sync_numbers: SyncArray) -> ShardFiles:
        """Return the files of the shard; `sync_numbers` syncs the numbers of its rows, its ids."""
        return ShardFiles(self.store.folder, self._entries, sync_numbers)

    def described(self, dims: int) -> ShardPart:
        """Return the description of the shard."""
        rows, entries = len(self.rows), self._entries
        nonzeros = entries["indices"].shape[0] if "indices" in entries else rows * dims
        return ShardPart(rows, nonzeros, entries)


class DividedBuild:
    """Divides the points of one build among shards; see `divgrpc.builder.point_writer.PointWriter`.

    encode_in: encodes the points of a shard.
    measure_in: measures searches of all shards, if they answer elsewhere.
    """

    def __init__(self, stage: Staging, shards: int, attributes: Sequence[Attribute] = ()) -> None:
        """Take the staging folder, and the declarations of the attributes of the points."""
        self.encode_in: EncodeIn = lambda _folder: encode_on_all_cores
        self.measure_in: MeasureIn = lambda *_: nullcontext()
        self.rows_max = shards * LIMITS["rows_max"]
        self._stage, self._attributes = stage, attributes
        self._row_count = self._checksum = 0
        with full_disk_errors():
            (stage.folder / SHARDS).mkdir()
            self._numbers = stage.scratch(_ROWS)
            self._parts = [_Part(stage.scratch(f"{SHARDS}/{shard}")) for shard in range(shards)]
        for shard in range(shards):
            self._numbers.begin(str(shard), np.int64, ())
        # Blocks whose rows are not written yet, because many small writes take long; with their
        # shards. Of sparse points they have no rows.
        self._held: list[tuple[FloatArray | None, IntArray]] = []
        self._rows_held = self._values_held = 0
        stage.divide = self._finish

    def begin(self, dims: int, rows: int, *, sparse: bool) -> None:
        """See `PointWriter`."""
        self._dims = dims
        self._sparse = PointArrays(self._stage, dims, rows, sparse=True) if sparse else None
        if sparse:
            return
        check_room(self._stage.folder, rows * dims * np.dtype(np.float32).itemsize)
        for part in self._parts:
            part.points = PointArrays(part.store, dims, rows // len(self._parts), sparse=False)

    def append(self, block: Rows, ids: IntArray | Sequence[bytes] | None) -> None:
        """See `PointWriter`.

        Raises `LimitExceededError` for too many points of one shard.
        """
        first = self._row_count + self._rows_held
        if ids is None:
            ids = np.arange(first, first + len(block))
        homes = homes_of(ids, len(self._parts))
        if isinstance(block, SparseRows):
            assert self._sparse is not None  # noqa: S101  # all blocks are of one kind
            self._sparse.append(block)
            self._held.append((None, homes))
        else:
            self._checksum = checksum_of(np.ascontiguousarray(block), self._checksum)
            self._held.append((block, homes))
            self._values_held += block.size
        self._rows_held += len(block)
        if self._values_held >= _HELD_VALUES or self._rows_held >= _HELD_ROWS:
            self._write_held()

    def _write_held(self) -> None:
        """Write the rows that are held to their shards."""
        homes = np.concatenate([np.empty(0, np.int64), *(homes for _, homes in self._held)])
        blocks = [block for block, _ in self._held if block is not None]
        rows = np.concatenate(blocks) if blocks else None
        order = np.argsort(homes, kind="stable")
        ends = np.cumsum(np.bincount(homes, minlength=len(self._parts))).tolist()
        for shard, (start, stop) in enumerate(pairwise([0, *ends])):
            here, part = order[start:stop], self._parts[shard]
            part.row_count += len(here)
            if part.row_count > LIMITS["rows_max"]:
                raise LimitExceededError(
                    f"shard {shard} has more than {LIMITS['rows_max']} rows: divide the index among"
                    " more shards"
                )
            self._numbers.append(str(shard), self._row_count + here)
            if rows is not None and part.points is not None:
                part.points.append(rows[here])
        self._row_count += len(homes)
        self._held, self._rows_held, self._values_held = [], 0, 0

    def read(self) -> BuildRows:
        """See `PointWriter`."""
        self._write_held()
        for shard, part in enumerate(self._parts):
            part.rows = self._numbers.read(str(shard))
        if self._sparse is not None:
            return self._sparse.read()
        vectors = [part.store.read("vectors") for part in self._parts]
        return DividedRows(vectors, [part.rows for part in self._parts])

    def encode(
        self,
        _store: object,
        request: BuildParameters,
        points: BuildRows,
        report: Report,
        _prefix: str,
    ) -> DividedEncoding:
        """Encode the points of each shard; see `PointWriter`."""
        # Refuse parameters that do not fit before the long work begins.
        fill_defaults(request, *points.shape)
        self._divide(points, report)
        functions = fit(points, request, report)
        shared = {name: read_only(array) for name, array in functions.arrays.items()}
        for name, array in shared.items():
            put(self._stage, name, array)
        report("hashing", 0, len(points))
        rows_done = 0
        for part in self._parts:
            self._encode_part(part, functions, _report_after(rows_done, len(points), report))
            rows_done += len(part.rows)
        parts = [part.arrays() for part in self._parts]
        if functions.has_cells:
            shared["cell_starts"] = np.sum([arrays["cell_starts"] for arrays in parts], axis=0)
            put(self._stage, "cell_starts", shared["cell_starts"])
        rows = [part.rows for part in self._parts]
        files = [
            part.files(partial(sync, self._numbers, str(shard)))
            for shard, part in enumerate(self._parts)
        ]
        parameters, bits = functions.parameters, functions.code_bits
        measuring = partial(self.measure_in, files, shared.keys(), parameters, points.shape)
        return DividedEncoding(shared, parameters, bits, parts, rows, measuring)

    def _divide(self, points: BuildRows, report: Report) -> None:
        """Copy everything but dense vectors to the folders of the shards."""
        report("dividing", 0, len(points))
        arrays = {name: self._stage.read(name) for name in self._stage.names}
        dtype = np.int32 if len(points) <= LIMITS["rows_max"] else np.int64
        has_order, rows_done = rows_follow_ids(arrays), 0
        for part in self._parts:
            rows = part.rows
            columns = without_vectors(self._attributes, arrays, rows)
            if not has_order:
                columns[ROW_NUMBERS] = rows.astype(dtype)
            for name, column in columns.items():
                part.store.begin(name, column.dtype, column.shape[1:])
                part.store.append(name, column)
            if isinstance(points, SparseRows):
                part.points = _copy_rows(part.store, points, rows)
            part.finish()
            for array in arrays.values():
                release(array)
            rows_done += len(rows)
            report("dividing", rows_done, len(points))

    def _encode_part(self, part: _Part, functions: HashFunctions, report: Report) -> None:
        """Write the codes of a shard, and the tables or cells that hold them."""
        points = points_of(part.arrays(), self._dims)
        encoder = PointEncoder(part.store, functions.parameters.metric, points, report)
        encoder.measure()
        encoder.begin_codes(functions)
        encode_blocks = self.encode_in(part.store.folder)
        blocks = hash_points(points, functions, encode_blocks, encoder.release, report)
        for block, encoded in blocks:
            encoder.put_codes(block.start, encoded)
        encoder.finish_codes()
        part.finish()

    def _finish(self, folder: Path, manifest: Manifest) -> Manifest:
        """Write the manifests of the shards, and remove the arrays of all rows."""
        parts = [part.described(self._dims) for part in self._parts]
        if self._sparse is None:
            shape = (self._row_count, self._dims)
            vectors = {"vectors": ArrayEntry("float32", shape, self._checksum)}
            manifest = replace(manifest, arrays=manifest.arrays | vectors)
        self._parts = []
        # A network file system keeps files that are mapped. Searchers of the shards, which map the
        # numbers of rows, are in reference cycles.
        gc.collect()
        self._numbers.discard()
        return finish_shards(folder, manifest, parts)


def _report_after(rows_before: int, rows_total: int, report: Report) -> Report:
    """Return what reports the encoding of a shard as that of all rows."""

    def report_part(stage: str, rows_done: int, rows: int) -> None:
        rows_done = rows_before + (rows_done if stage == "hashing" else rows)
        # A count of 0 would begin the stage again.
        if rows_done:
            report("hashing", rows_done, rows_total)

    return report_part


def _copy_rows(store: ArrayFolder, points: SparseRows, rows: IntArray) -> PointArrays:
    """Write the points with the numbers `rows` (m,) to a store."""
    copies = PointArrays(store, points.dims, len(rows), sparse=True)
    step = block_rows(points)
    for start in range(0, len(rows), step):
        copies.append(points[rows[start : start + step]])
        release_rows(points)
    return copies
