"""Builds an index whose points are divided among shards; no array has an entry for all points.

Rows are written to the folders of their shards as they arrive, with their ids, labels and columns.
The hash functions are fitted to a sample of all rows. Then each shard is encoded apart: it gets
codes, and tables or cells, for its points alone. So the limit of the number of rows holds for a
shard.

    <staging>/*.npy                 what all shards share
    <staging>/shards/<shard>/       the arrays of a shard
    <staging>/rows/<shard>.npy      the numbers of its rows in the order of the upload
"""

import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from divgrpc.arrays import Array, read_only
from divgrpc.build_rows import BuildRows, DividedRows, DividedSparseRows
from divgrpc.builder.encoder import (
    EncodeBlocks,
    Encoding,
    PointEncoder,
    encode_on_all_cores,
    hash_points,
)
from divgrpc.builder.hash_functions import HashFunctions, fit
from divgrpc.builder.nearest import FindNearest, find_nearest
from divgrpc.builder.progress import Report
from divgrpc.columns.ids import ID_TEXTS, ascends, hashes_of, keys_of_parts
from divgrpc.columns.writer import ColumnWriter, texts_in, write_order, write_value_order
from divgrpc.errors import LimitExceededError
from divgrpc.hashing.hyperplanes import fill_defaults
from divgrpc.parameters import LIMITS, BuildParameters
from divgrpc.search.arrays import points_of
from divgrpc.search.point_arrays import PointArrays
from divgrpc.sharding.cutting import ROW_NUMBERS
from divgrpc.sharding.files import finish_shards
from divgrpc.sharding.measuring import AskShards, ShardedSearcher
from divgrpc.sharding.placement import shard_of
from divgrpc.sharding.row_divider import RowDivider, ShardStaging
from divgrpc.sharding.staged_arrays import sync
from divgrpc.sharding.staged_shards import ShardFiles
from divgrpc.storage.arrays import full_disk_errors
from divgrpc.storage.generations import Staging
from divgrpc.storage.manifest import Manifest
from divgrpc.storage.shards import SHARDS
from divgrpc.storage.writers import put
from divgrpc.types import IntArray
from divgrpc.types.records import Attribute
from divgrpc.vectors import Rows, SparseRows

# Returns what encodes the points whose arrays are in a folder.
EncodeIn: TypeAlias = Callable[[Path], EncodeBlocks]


class Elsewhere(NamedTuple):
    """What works on the tuning of a build outside its process.

    ask: asks shards which points searches hash. find: finds nearest points.
    """

    ask: AskShards
    find: FindNearest


_Tuning: TypeAlias = AbstractContextManager[Elsewhere | None]
# Returns what `DividedEncoding.tuning` does. Takes the files of the shards, the names of the arrays
# that they share, the parameters with all defaults, and all points.
TuneIn: TypeAlias = Callable[
    [Sequence[ShardFiles], Collection[str], BuildParameters, BuildRows], _Tuning
]
_ROWS: Final = "rows"


@dataclass(frozen=True, slots=True)
class DividedEncoding(Encoding):
    """Encoded points that are divided among shards; `arrays` are those that all shards share.

    parts: the arrays of each shard.
    rows: the numbers of the rows of each shard, which ascend.
    tuning: has, in a block, what works on the tuning elsewhere; None if nothing does.
    """

    parts: Sequence[Mapping[str, Array]] = ()
    rows: Sequence[IntArray] = ()
    tuning: Callable[[], _Tuning] = nullcontext

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
    ) -> Iterator[tuple[ShardedSearcher, FindNearest]]:
        """See `Encoding`."""
        with self.tuning() as elsewhere:
            ask, find = elsewhere or (None, find_nearest)
            yield self.searcher(points, longest_first=longest_first, ask_elsewhere=ask), find


class _Ids:
    """The kind and the order of the ids of all rows.

    kind: "text", "integer", or "number" if they are the numbers of the rows. give_order: whether
    rows with greater numbers have greater ids.
    """

    def __init__(self, kind: Literal["text", "integer", "number"]) -> None:
        self.kind, self.give_order = kind, True
        self._last = -1

    @classmethod
    def of(cls, ids: IntArray | Sequence[bytes] | None) -> "_Ids":
        """Return the kind of the ids of some rows."""
        if ids is None:
            return cls("number")
        return cls("integer" if isinstance(ids, np.ndarray) else "text")

    def add(self, ids: IntArray) -> None:
        """Add the ids (m,), or the keys of text ids, of the next rows."""
        bounded = np.concatenate(([self._last], ids))
        self.give_order = self.give_order and ascends(bounded)
        self._last = int(bounded[-1])


class DividedBuild:
    """Divides the points of one build among shards; see `divgrpc.builder.point_writer.PointWriter`.

    encode_in: encodes the points of a shard.
    tune_in: lets others work on the tuning.
    """

    def __init__(self, stage: Staging, shards: int, attributes: Sequence[Attribute] = ()) -> None:
        """Take the staging folder, and the declarations of the attributes of the points."""
        self.encode_in: EncodeIn = lambda _folder: encode_on_all_cores
        self.tune_in: TuneIn = lambda *_: nullcontext()
        self.rows_max = shards * LIMITS["rows_max"]
        self._stage, self._attributes = stage, attributes
        self._row_count = 0
        with full_disk_errors():
            (stage.folder / SHARDS).mkdir()
            self._numbers = stage.scratch(_ROWS)
            stores = [stage.scratch(f"{SHARDS}/{shard}") for shard in range(shards)]
        self._parts = [ShardStaging(store) for store in stores]
        for shard in range(shards):
            self._numbers.begin(str(shard), np.int64, ())
        self._divider = RowDivider(stage.folder, self._parts, attributes)
        # The shards of the rows that the divider holds.
        self._homes: list[IntArray] = []
        self._ids = _Ids("number")
        stage.divide = self._finish

    @property
    def rows(self) -> RowDivider:
        """See `PointWriter`."""
        return self._divider

    def begin(self, dims: int, rows: int, *, sparse: bool) -> None:
        """See `PointWriter`."""
        self._dims, self._sparse = dims, sparse
        self._points = PointArrays(self._divider, dims, rows, sparse=sparse)

    def append(self, block: Rows, ids: IntArray | Sequence[bytes] | None) -> None:
        """See `PointWriter`.

        Raises `LimitExceededError` for too many points of one shard.
        """
        if not len(block):
            return  # all rows of the block were skipped
        rows_held = sum(map(len, self._homes))
        if self._divider.is_full(rows_held):
            self._write_held()
            rows_held = 0
        first = self._row_count + rows_held
        if not first:
            self._ids = _Ids.of(ids)
            if self._ids.kind != "integer":
                self._divider.begin("ids", np.int64, ())
        keys = np.arange(first, first + len(block)) if ids is None else ids
        if not isinstance(keys, np.ndarray):
            keys = hashes_of(keys)
        if self._ids.kind != "integer":
            self._divider.append("ids", keys)
        self._ids.add(keys)
        self._homes.append(shard_of(keys, len(self._parts)))
        self._points.append(block)

    def _write_held(self) -> None:
        """Write the rows that are held to their shards."""
        homes = np.concatenate([np.empty(0, np.int64), *self._homes])
        for shard, rows in enumerate(self._divider.write(homes)):
            self._numbers.append(str(shard), self._row_count + rows)
            part = self._parts[shard]
            part.row_count += len(rows)
            if part.row_count > LIMITS["rows_max"]:
                raise LimitExceededError(
                    f"shard {shard} has more than {LIMITS['rows_max']} rows: divide the index among"
                    " more shards"
                )
        self._row_count += len(homes)
        self._homes = []

    def finish(self, columns: ColumnWriter | None, report: Report) -> None:
        """See `PointWriter`."""
        self._write_held()
        report("sorting", 0, self._row_count)
        for shard, part in enumerate(self._parts):
            part.rows = self._numbers.read(str(shard))
        if columns is not None:
            columns.write_words(self._stage)
        if self._ids.kind == "text":
            self._resolve_keys()
        dtype = np.int32 if self._row_count <= LIMITS["rows_max"] else np.int64
        rows_done = 0
        for part in self._parts:
            write_order(part.store, part.read("ids"))
            for number in range(len(self._attributes)):
                write_value_order(part.store, number)
            if not self._ids.give_order:
                put(part.store, ROW_NUMBERS, part.rows.astype(dtype))
            part.finish()
            rows_done += len(part.rows)
            report("sorting", rows_done, self._row_count)

    def _resolve_keys(self) -> None:
        """Give text ids that have the same hash different keys; seldom are there any."""
        hashes = [part.read("ids") for part in self._parts]
        texts = [texts_in(part.store, ID_TEXTS) for part in self._parts]
        keys = keys_of_parts(hashes, lambda part, row: texts[part][row])
        if keys is not hashes:
            self._divider.replace("ids", keys)
            self._ids = _Ids("text")
            self._ids.add(self._divider.read("ids"))

    def read(self) -> BuildRows:
        """See `PointWriter`."""
        parts = [points_of(part.arrays(), self._dims) for part in self._parts]
        numbers = [part.rows for part in self._parts]
        if self._sparse:
            return DividedSparseRows([p for p in parts if isinstance(p, SparseRows)], numbers)
        return DividedRows([p for p in parts if not isinstance(p, SparseRows)], numbers)

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
        tuning = partial(self.tune_in, files, shared.keys(), parameters, points)
        return DividedEncoding(shared, parameters, bits, parts, rows, tuning)

    def _encode_part(self, part: ShardStaging, functions: HashFunctions, report: Report) -> None:
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
        received = self._divider.entries()
        if self._ids.kind == "number":
            # Numbers of rows, which an index that is whole does not store.
            del received["ids"]
        manifest = replace(manifest, arrays=manifest.arrays | received)
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
