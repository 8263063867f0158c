"""Divides a generation of one index among shards."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, read_only, spans
from divgrpc.columns.annotations import annotations_in, take
from divgrpc.columns.filters import order_of
from divgrpc.columns.ids import ID_ORDER, ID_TEXTS, ascends, hashes_of
from divgrpc.columns.reader import PAYLOAD, array_name
from divgrpc.columns.texts import BYTES, ENDS, Texts
from divgrpc.hashing.codes import copy_codes, tiles_shape
from divgrpc.hashing.lists import blocks_of, create_lists
from divgrpc.hashing.tables import create_tables
from divgrpc.search.arrays import points_of, with_points, with_tiles
from divgrpc.sharding.placement import shard_of
from divgrpc.storage.generations import Generation
from divgrpc.storage.manifest import Manifest
from divgrpc.storage.shards import is_shared
from divgrpc.types import IntArray
from divgrpc.types.records import Attribute
from divgrpc.vectors import SparseRows

# Arrays with an entry for each row.
BY_ROW: Final[Sequence[str]] = ("vectors", "inverse_lengths", "squares", "ids")
# The rows of the whole generation that a shard has, unless their ids ascend. Only
# `divgrpc.sharding.joining` reads them.
ROW_NUMBERS: Final = "row_numbers"


class Cut(NamedTuple):
    """A generation, divided.

    manifest: the manifest of the whole generation.
    shared: the arrays that the router and all shards have. `cell_starts` counts the points of all
        shards.
    parts: yields the generation of one shard after another. Its manifest has the number of its
        rows.
    """

    manifest: Manifest
    shared: dict[str, Array]
    parts: Iterator[Generation]


def cut(
    generation: Generation,
    shards: int,
    homes: IntArray | None = None,
    *,
    with_vectors: bool = True,
) -> Cut:
    """Divide a generation among shards.

    homes: (n,) the shard of each row. Default: as `homes_in` returns.
    with_vectors: whether parts have their dense vectors. Otherwise `vectors` has no rows.

    Points keep their codes. The labels of an index are not divided.
    """
    manifest, arrays = generation.manifest, with_tiles(generation.arrays)
    if homes is None:
        homes = homes_in(arrays, manifest.rows, shards)
    shared = {name: array for name, array in arrays.items() if is_shared(name)}
    has_order = rows_follow_ids(arrays)

    def parts() -> Iterator[Generation]:
        # One after another, because their arrays are copies.
        for shard in range(shards):
            rows = np.flatnonzero(homes == shard)
            part = _part(manifest, arrays, shared, rows, with_vectors=with_vectors)
            if not has_order:
                part.arrays[ROW_NUMBERS] = read_only(rows.astype(np.int32))
            yield part

    return Cut(manifest, shared, parts())


def homes_in(arrays: Mapping[str, Array], rows: int, shards: int) -> IntArray:
    """Return the shard (n,) of each of the `rows` points of an index with these arrays."""
    if ID_TEXTS + ENDS in arrays:
        return homes_of(Texts(arrays, ID_TEXTS).take(np.arange(rows)), shards)
    return homes_of(arrays["ids"] if "ids" in arrays else np.arange(rows), shards)


def homes_of(ids: IntArray | Sequence[bytes], shards: int) -> IntArray:
    """Return the shard (m,) of each of m ids, or of each text by its hash.

    So texts with the same hash are on the same shard, which tells them apart by their texts. Their
    keys are those of the whole index, so no two points of different shards have the same key.
    """
    if not isinstance(ids, np.ndarray):
        ids = hashes_of(ids)
    return shard_of(ids, shards)


def rows_follow_ids(arrays: Mapping[str, Array]) -> bool:
    """Return whether the ids of all points ascend, so that they give the order of the rows."""
    return "ids" not in arrays or ascends(arrays["ids"])


def _part(
    manifest: Manifest,
    arrays: Mapping[str, Array],
    shared: Mapping[str, Array],
    rows: IntArray,
    *,
    with_vectors: bool,
) -> Generation:
    """Return the generation of the points in `rows` (m,), in ascending order."""
    part = without_vectors(manifest.attributes, arrays, rows)
    if "vectors" in arrays:
        part["vectors"] = arrays["vectors"][rows if with_vectors else rows[:0]]
    for name in ("inverse_lengths", "squares"):
        if name in arrays:
            part[name] = arrays[name][rows]
    nonzeros = len(rows) * manifest.dims
    points = points_of(arrays, manifest.dims)
    if isinstance(points, SparseRows):
        points = points[rows]
        nonzeros = len(points.indices)
        part |= _sparse(points)
    part |= _codes(manifest, arrays, rows)
    whole = {**shared, **{name: read_only(array) for name, array in part.items()}}
    return Generation(replace(manifest, rows=len(rows), nonzeros=nonzeros), whole)


def without_vectors(
    attributes: Sequence[Attribute], arrays: Mapping[str, Array], rows: IntArray
) -> dict[str, Array]:
    """Return the ids, annotations and columns of the points in `rows` (m,), in ascending order.

    Points without stored ids have the numbers of their rows.
    """
    part = {"ids": arrays["ids"][rows] if "ids" in arrays else rows.astype(np.int64)}
    if not ascends(part["ids"]):
        part[ID_ORDER] = np.argsort(part["ids"])
    part |= take(annotations_in(arrays), rows)
    part |= columns_of_rows(attributes, arrays, rows)
    for number in range(len(attributes)):
        part[array_name(number, "order")] = order_of(part[array_name(number, "values")])
    return part


def _sparse(points: SparseRows) -> dict[str, Array]:
    """Return the arrays of sparse points, and of their inverted lists."""
    arrays: dict[str, Array] = with_points({}, points)

    def create(name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        arrays[name] = np.zeros(shape, dtype)
        return arrays[name]

    if len(points):
        create_lists(blocks_of(points), len(points), points.dims, create)
    return arrays


def _codes(manifest: Manifest, arrays: Mapping[str, Array], rows: IntArray) -> dict[str, Array]:
    """Return the codes of the points in `rows` (m,), and the tables or cells that hold them."""
    part: dict[str, Array] = {}
    places = rows.astype(np.int32)
    if "cell_rows" in arrays:
        # With cells, codes are in the order of places.
        new_rows = np.full(manifest.rows, -1, np.int32)
        new_rows[rows] = np.arange(len(rows), dtype=np.int32)
        numbers = new_rows[arrays["cell_rows"]]
        places = np.flatnonzero(numbers >= 0).astype(np.int32)
        part["cell_rows"] = numbers[places]
        part["cell_starts"] = np.searchsorted(places, arrays["cell_starts"]).astype(np.int64)
    codes = np.zeros(tiles_shape(len(rows), manifest.code_bits), np.uint8)
    copy_codes(arrays["codes"], places, codes)
    part["codes"] = codes
    if "scan_terms" in arrays:
        part["scan_terms"] = arrays["scan_terms"][places]
    if manifest.parameters.n_tables and len(rows):

        def create(name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
            part[name] = np.zeros(shape, dtype)
            return part[name]

        sizes = (manifest.parameters.n_tables or 0, manifest.parameters.n_bits or 0)
        create_tables(codes, np.ones(len(rows), np.bool_), sizes, create)
    return part


def columns_of_rows(
    attributes: Sequence[Attribute], arrays: Mapping[str, Array], rows: IntArray
) -> dict[str, Array]:
    """Return the text ids, attributes and payloads of the points in `rows` (m,).

    The arrays have the names of `divgrpc.columns.writer`. The words of an attribute are in `shared`
    of a `Cut`, so their numbers are the same on all shards.
    """
    part: dict[str, Array] = {}
    for name in (ID_TEXTS, PAYLOAD):
        if name + ENDS in arrays:
            part[name + BYTES], part[name + ENDS] = _take_spans(
                arrays[name + BYTES], arrays[name + ENDS], rows
            )
    return part | values_of_rows(attributes, arrays, rows, range(len(attributes)))


def values_of_rows(
    attributes: Sequence[Attribute],
    arrays: Mapping[str, Array],
    rows: npt.NDArray[np.integer[Any]],
    numbers: Iterable[int],
) -> dict[str, Array]:
    """Return the values of the attributes with some numbers, as `columns_of_rows` does."""
    part: dict[str, Array] = {}
    for number in numbers:
        attribute = attributes[number]
        values, ends = array_name(number, "values"), array_name(number, "ends")
        if attribute.multi:
            part[values], part[ends] = _take_spans(arrays[values], arrays[ends], rows)
        else:
            part[values] = arrays[values][rows]
    return part


def _take_spans(
    values: Array, ends: IntArray, rows: npt.NDArray[np.integer[Any]]
) -> tuple[Array, IntArray]:
    """Return the values of some rows, one row after another, and where each row ends."""
    starts = np.where(rows > 0, ends[rows - 1], 0)
    sizes = ends[rows] - starts
    return values[spans(starts, sizes)], np.cumsum(sizes, dtype=np.int64)
