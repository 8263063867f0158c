"""Checks of the stored columns that shards send, which may be damaged."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from divgrpc.arrays import Array
from divgrpc.columns.annotations import INDICES, INDPTR
from divgrpc.columns.texts import BYTES, ENDS
from divgrpc.errors import InvalidArgumentError
from divgrpc.sharding import layouts
from divgrpc.sharding.messages import Buffer, Layout
from divgrpc.sharding.rounds import ShardFaultError
from divgrpc.types import IntArray

# Columns that say where the values of each point begin and where those of the last end, and the
# columns of these values.
STARTS: Final = {"indptr": ("indices", "values"), INDPTR: (INDICES,)}


def unpack(
    layout: Layout, shard: int, message: Buffer, widths: Mapping[str, int]
) -> dict[str, Array]:
    """Return the columns of a reply; raises `ShardFaultError` if they do not fit together.

    widths: the width of each matrix.

    A column has an entry for each of `ids`, or is empty because it was not asked for.
    """
    try:
        columns = layout.unpack(message)
    except InvalidArgumentError as error:
        raise ShardFaultError(shard, str(error)) from error
    name = _misfit(columns, widths) if "ids" in columns else ""
    if name:
        raise ShardFaultError(shard, f"message has a column {name} that does not fit the others")
    return columns


def check_stored(shard: int, reply: Mapping[str, Array], id_count: int = 0) -> None:
    """Raise `ShardFaultError` for a reply about stored points without their sizes or places.

    id_count: number of ids in the request, if the places of the points among them matter.
    """
    count, sizes = len(reply["ids"]), reply["sizes"]
    is_whole = len(sizes) == count and (not count or sizes.min() >= 0)
    if id_count and is_whole:
        places = reply["places"]
        is_whole = len(places) == count == len(np.unique(places))
        is_whole = is_whole and (not count or 0 <= places.min() <= places.max() < id_count)
    if not is_whole:
        raise ShardFaultError(shard, "message does not say which points it is about")


def unpack_points(
    shard: int, message: Buffer, ids: IntArray, widths: Mapping[str, int]
) -> dict[str, Array]:
    """Return the columns of a `FETCH_REPLY` about points; raises `ShardFaultError`."""
    columns = unpack(layouts.FETCH_REPLY, shard, message, widths)
    name, indices = _misfit({"ids": ids, **columns}, widths), columns["indices"]
    if not len(columns["indptr"]) and len(columns["vectors"]) != len(ids):
        name = "vectors"
    if len(indices) and not 0 <= indices.min() <= indices.max() < widths["vectors"]:
        name = "indices"
    if name:
        raise ShardFaultError(shard, f"message has a column {name} that does not fit the others")
    return columns


def check_counts(shard: int, reply: Mapping[str, Array], rows: int) -> None:
    """Raise `ShardFaultError` for an impossible `TOPICS_REPLY` of a shard with `rows` points."""
    categories, subtopics, counts = (reply[name] for name in ("categories", "subtopics", "counts"))
    fits = len(categories) == len(subtopics) == len(counts) <= rows
    if fits and len(counts):
        fits = categories.min() >= 0 and subtopics.min() >= -1
        fits = fits and counts.min() > 0 and counts.max() <= rows and counts.sum() <= rows
    if not fits:
        raise ShardFaultError(shard, "message has an impossible number of points of a category")


def check_categories(shard: int, reply: Mapping[str, Array], ids: IntArray) -> None:
    """Raise `ShardFaultError` for an impossible `CATEGORIES_REPLY` about the points with `ids`."""
    sizes = {len(column) for column in reply.values()}
    if len(sizes) > 1 or not np.isin(reply["ids"], ids).all():
        raise ShardFaultError(shard, "message has other points than it was asked for")


def check_labels(shard: int, reply: Mapping[str, Array], labels: int, rows: int) -> None:
    """Raise `ShardFaultError` for an impossible `LABELS_REPLY` of a shard with `rows` points.

    labels: number of labels of the index.
    """
    numbers, counts = reply["labels"], reply["counts"]
    fits = len(numbers) == len(counts) and bool((numbers[1:] > numbers[:-1]).all())
    if fits and len(counts):
        fits = 0 <= numbers[0] <= numbers[-1] < labels and 0 < counts.min() <= counts.max() <= rows
    if not fits:
        raise ShardFaultError(shard, "message has an impossible number of points with a label")


def _misfit(columns: Mapping[str, Array], widths: Mapping[str, int]) -> str:
    """Return the name of a column that does not fit the ids, or ""."""
    ids, inner = columns["ids"], set[str]()
    if len(ids) and ids.min() < 0:
        return "ids"
    for name, column in columns.items():
        if column.ndim > 1 and column.size and column.shape[1] != widths[name]:
            return name
        if name in STARTS:
            starts, values = column, STARTS[name]
            is_whole = len(column) == len(ids) + 1 and column[0] == 0
        elif name.endswith("ends"):
            starts, values = np.concatenate(([0], column)), (_values_of(name, columns),)
            is_whole = len(column) == len(ids)
        else:
            continue
        inner.update(values)
        if len(column) and not (is_whole and _are_starts(starts, columns, values)):
            return name
        if not len(column) and any(len(columns[part]) for part in values):
            return name
    sizes = {name: len(column) for name, column in columns.items() if name not in inner}
    outer = (name for name in sizes if name not in STARTS and sizes[name] not in {0, len(ids)})
    return next(outer, "")


def _values_of(ends: str, columns: Mapping[str, Array]) -> str:
    """Return the name of the column whose parts end at the column `ends`."""
    texts = ends.removesuffix(ENDS) + BYTES
    return texts if texts in columns else ends.removesuffix("ends") + "values"


def _are_starts(starts: IntArray, columns: Mapping[str, Array], values: tuple[str, ...]) -> bool:
    """Whether parts of some columns begin at these places, one after another."""
    ascends = bool((starts[1:] >= starts[:-1]).all())
    return ascends and all(starts[-1] == len(columns[name]) for name in values)
