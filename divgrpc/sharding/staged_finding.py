"""Finds the points of a build that are nearest to queries, wherever its staging folder is.

While a builder tunes searches, it offers the points of all shards (`staged_arrays`). A message has
the queries, and names rows of the upload. They are searched in the blocks of
`divgrpc.builder.nearest`, so a reply has the bytes that the builder would compute.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import numpy as np

from divgrpc.arrays import Array
from divgrpc.build_rows import DividedRows, DividedSparseRows
from divgrpc.builder.nearest import NearestPoints, NearestSearch, NearPoints, blocks_of
from divgrpc.errors import invalid
from divgrpc.parallel import one_blas_thread
from divgrpc.sharding import staged_arrays
from divgrpc.sharding.layouts import STAGED_SEARCH, STAGED_SEARCH_REPLY
from divgrpc.sharding.messages import MESSAGE_FIELD, Buffer
from divgrpc.sharding.staged_arrays import StagedArrays, check_rows, columns_of
from divgrpc.sharding.staged_shards import ShardFiles
from divgrpc.storage.arrays import ArrayFolder
from divgrpc.types import FloatArray, IntArray, Metric
from divgrpc.vectors import Rows, SparseRows, as_rows

# The operation of `StagedBuild` that these points answer.
FIND: Final = "find_staged"
# The file that describes the offer.
OFFER: Final = "finding.json"
# Maximum numbers of blocks of a message, of its queries, and of the points for each of them.
BLOCKS_MAX: Final = 2
_QUERIES_MAX: Final = 1_024
_COUNT_MAX: Final = 10_000
_POINT_ARRAYS: Final = ("vectors", "indptr", "indices", "values")


def offered(
    stage: ArrayFolder,
    shards: Sequence[ShardFiles],
    shape: tuple[int, int],
    metric: Metric,
    step: int,
) -> AbstractContextManager[None]:
    """In the block, let others search points.

    stage: the staging folder. shards: the files of the points, which are finished.
    shape: (n, d) of all points. step: the number of rows of a block.

    Raises `StorageFullError`.
    """
    arrays = {}
    for number, (folder, entries, sync_numbers) in enumerate(shards):
        arrays[f"{number}.numbers"] = sync_numbers()
        for name in entries.keys() & {*_POINT_ARRAYS}:
            arrays[f"{number}.{name}"] = folder / f"{name}.npy", entries[name]
    document = {"shape": shape, "shards": len(shards), "metric": metric, "step": step}
    return staged_arrays.offered(stage.folder, OFFER, arrays, document)


def pack_search(
    folder: str,
    search: NearestSearch,
    rows: range,
    bounds: IntArray,
    least: FloatArray,
) -> bytes:
    """Return the message that asks for the points nearest to the queries of a search.

    folder: the name of the staging folder.
    bounds: (b + 1, s) int64, how many rows of each shard come before each of the b blocks of
        `rows`, and before the row after the last one.
    least: as `NearestSearch.in_block` takes it.
    """
    numbers = np.array([search.count, search.angular], np.int64)
    columns: dict[str, Array] = {"bounds": bounds, "numbers": numbers, "least": least}
    return STAGED_SEARCH.pack({**columns_of(folder, rows), **columns, **_pack(search.queries)})


def _pack(queries: Rows) -> dict[str, Array]:
    if not isinstance(queries, SparseRows):
        return {"dense": queries}
    return {"indptr": queries.indptr, "indices": queries.indices, "values": queries.values}


def unpack_points(
    reply: Buffer, search: NearestSearch, rows: range, least: FloatArray
) -> NearPoints:
    """Return the points in the reply to a message; raises `InvalidArgumentError`.

    least: as in the message.
    """
    columns = STAGED_SEARCH_REPLY.unpack(reply)
    part = NearPoints(columns["rows"].copy(), columns["gains"].copy(), columns["ends"].copy())
    sizes = np.diff(part.ends, prepend=0)
    if (
        len(part.ends) != len(search.queries)
        or not (len(part.rows) == len(part.gains) == part.ends[-1])
        or not ((sizes >= 0) & (sizes <= search.count)).all()
    ):
        raise invalid(MESSAGE_FIELD, "must have the end of the points of each query")
    is_within = (part.rows >= rows.start) & (part.rows < rows.stop)
    if not is_within.all() or np.isnan(part.gains).any():
        raise invalid(MESSAGE_FIELD, "has points other than those of the rows")
    # Each point once, and all that the search asks for if none may be left out.
    query_numbers = np.repeat(np.arange(len(sizes)), sizes)
    pairs = query_numbers * len(rows) + part.rows - rows.start
    lacks_any = (sizes < min(search.count, len(rows))) & np.isneginf(least)
    if lacks_any.any() or len(np.unique(pairs)) < len(pairs):
        raise invalid(MESSAGE_FIELD, "must have the nearest points of each query, each once")
    return part


class StagedFinding:
    """The points of all shards in a staging folder."""

    def __init__(self, folder: Path) -> None:
        """Open the points; raises `IndexNotFoundError` as `StagedArrays` does."""
        self._arrays = StagedArrays(folder, OFFER)
        document = self._arrays.document
        self._rows, self._dims = document["shape"]
        self._shards: int = document["shards"]
        self._metric: Metric = document["metric"]
        self._step: int = document["step"]

    def answer(self, message: Buffer) -> bytes:
        """Find the points that `pack_search` asks for.

        Raises `InvalidArgumentError` for a message that is malformed or does not fit the points,
        and `IndexNotFoundError` if the build is over.
        """
        columns = STAGED_SEARCH.unpack(message)
        rows = check_rows(columns["rows"], self._rows, BLOCKS_MAX * self._step)
        search = self._search(columns)
        blocks = blocks_of(rows, self._step)
        bounds = self._check_bounds(columns["bounds"], blocks)
        nearest = NearestPoints(search, columns["least"])
        for block, starts, stops in zip(blocks, bounds[:-1], bounds[1:], strict=True):
            points = self._read(block, starts.tolist(), stops.tolist())
            with one_blas_thread():
                least = nearest.least_from(block.start)
                nearest.add(search.in_block(points, block.start, least))
        return STAGED_SEARCH_REPLY.pack(nearest.unordered()._asdict())

    def _search(self, columns: dict[str, Array]) -> NearestSearch:
        """Return the search of a message; raises `InvalidArgumentError`."""
        dense, numbers = columns["dense"], columns["numbers"]
        queries: Rows = dense
        if not dense.size:
            arrays = columns["indptr"], columns["indices"], columns["values"]
            queries = SparseRows(*arrays, self._dims)
        queries = as_rows("queries", queries, self._dims)
        if not 1 <= len(queries) <= _QUERIES_MAX:
            raise invalid("queries", f"must have 1 to {_QUERIES_MAX} rows, got {len(queries)}")
        least = columns["least"]
        if len(least) != len(queries) or np.isnan(least).any():
            raise invalid("least", f"must have {len(queries)} numbers")
        if len(numbers) != 2 or not 1 <= numbers[0] <= _COUNT_MAX or numbers[1] not in (0, 1):
            raise invalid("numbers", f"must be 1 to {_COUNT_MAX}, and 0 or 1")
        return NearestSearch(queries, int(numbers[0]), self._metric, bool(numbers[1]))

    def _check_bounds(self, bounds: IntArray, blocks: Sequence[range]) -> IntArray:
        """Return the bounds in a message; raises `InvalidArgumentError`."""
        shape = len(blocks) + 1, self._shards
        if bounds.shape != shape:
            raise invalid("bounds", f"must be {shape[0]} x {shape[1]}, got {bounds.shape}")
        counts = np.array([self._arrays.entry(f"{n}.numbers").shape[0] for n in range(shape[1])])
        sizes = np.diff(bounds, axis=0)
        if (bounds < 0).any() or (bounds > counts).any() or (sizes < 0).any():
            raise invalid("bounds", "must ascend within the rows of each shard")
        if sizes.sum(axis=1).tolist() != [*map(len, blocks)]:
            raise invalid("bounds", "must have as many rows of all shards as the blocks")
        return bounds

    def _read(self, block: range, starts: list[int], stops: list[int]) -> Rows:
        """Return the rows of a block, given where they are on each shard."""
        parts, numbers = list[Rows](), list[IntArray]()
        for shard, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            numbers.append(self._arrays.read(f"{shard}.numbers", start, stop) - block.start)
            parts.append(self._arrays.read_rows(start, stop, self._dims, f"{shard}."))
        if np.sort(np.concatenate(numbers)).tolist() != [*range(len(block))]:
            raise invalid("bounds", "must match the numbers of the rows")
        sparse_parts = [part for part in parts if isinstance(part, SparseRows)]
        if sparse_parts:
            return DividedSparseRows(sparse_parts, numbers)[:]
        return DividedRows([part for part in parts if not isinstance(part, SparseRows)], numbers)[:]
