"""Writes the files of shards: divides the folder of a complete generation, and opens it again.

To change the number of shards, the generation is made whole again first. Its ids, vectors, labels
and columns are those that were received, which their checksums show, and its codes those of the
shards. So the new shards have the files that a division of the whole generation writes.
"""

import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from divgrpc.arrays import Array, release
from divgrpc.build_rows import block_rows
from divgrpc.columns.ids import ID_ORDER
from divgrpc.errors import IndexChangedError, LimitExceededError, UnsupportedError, invalid
from divgrpc.parameters.limits import LIMITS
from divgrpc.sharding.cutting import ROW_NUMBERS, cut, homes_in
from divgrpc.sharding.gathering_engine import GatheringEngine
from divgrpc.sharding.joining import join
from divgrpc.storage.arrays import ArrayEntry, ArrayFolder, open_array, sync_folder, write_synced
from divgrpc.storage.defaults import read_defaults
from divgrpc.storage.generations import (
    Generation,
    IndexFolder,
    extending,
    open_array_of,
    read_manifest,
    staging,
)
from divgrpc.storage.manifest import MANIFEST, Manifest, ShardEntry
from divgrpc.storage.meter import OnProgress
from divgrpc.storage.published import was_written
from divgrpc.storage.shards import (
    SHARDS,
    SHARED,
    is_order,
    is_received,
    is_shared,
    open_shard,
    open_shared,
    read_shard_manifest,
)
from divgrpc.types import IndexInfo, IntArray, Progress


def divide_index(
    path: Path | str, shards: int, *, on_progress: OnProgress | None = None
) -> IndexInfo:
    """Divide the points of an index among shards; return the description of its new generation.

    path: the folder of the index, which may be divided among another number of shards. shards: from
        1 to 256; 1 makes the index whole.

    All checksums are compared. Raises `InvalidArgumentError` with the field `shards`,
    `IndexNotFoundError`, `IndexDamagedError`, `IndexChangedError`, `LimitExceededError`,
    `BuildUnderWayError`, `StorageInUseError`, `StorageFullError`, and `UnsupportedError` if the
    index was written to, has this number of shards already, or was divided by an earlier version.
    """
    if not 1 <= shards <= LIMITS["shards_max"]:
        raise invalid("shards", f"must be between 1 and {LIMITS['shards_max']}, got {shards}")
    index = IndexFolder(path)
    folder = index.path / str(index.current())
    if was_written(folder):
        raise UnsupportedError(
            "index",
            f"index {index.name!r} was written to since it was built: export its points, and build"
            " it again; an export has no parameters, label model, names or hierarchy",
        )
    count = len(read_manifest(folder).shards)
    if shards == max(1, count):
        state = f"is divided among {count} shards" if count else "is whole"
        raise UnsupportedError("index", f"index {index.name!r} {state} already")
    generation = (_divide_again if count else _divide)(index, shards, on_progress)
    return generation.manifest.info(index.name, generation.defaults)


def _divide(index: IndexFolder, shards: int, on_progress: OnProgress | None) -> Generation:
    """Divide an index that is whole."""
    with extending(index.path) as (stage, current):
        folder = index.path / str(current.manifest.generation)
        for array, entry in current.manifest.arrays.items():
            # The files of shards get checksums of their own, which would hide damage for ever.
            open_array_of(folder, array, entry, verify=True)
        stage.share(current)
        stage.divide = partial(divide_folder, shards=shards, on_progress=on_progress)
        return stage.publish(current.manifest)


def _divide_again(index: IndexFolder, shards: int, on_progress: OnProgress | None) -> Generation:
    """Change the number of shards of an index; nobody can have written to it."""
    with staging(index.path, replace=True) as stage:
        folder = index.path / str(index.current())
        router_part = open_router_part(folder)
        if not router_part.manifest.shards:
            raise IndexChangedError("the index was replaced meanwhile: try again")
        whole = replace(router_part.manifest, shards=())
        if whole.rows > LIMITS["rows_max"]:
            raise LimitExceededError(
                f"the index has {whole.rows} points: an index of more than {LIMITS['rows_max']}"
                " cannot be made whole, and so not divided again: build it again"
            )
        parts = []
        for shard in range(len(router_part.manifest.shards)):
            parts.append(open_shard_part(folder, shard))
            if on_progress is not None:
                on_progress(Progress("reading", shard + 1, len(router_part.manifest.shards), None))
        shared = {name: entry for name, entry in whole.arrays.items() if is_shared(name)}
        stage.share(replace(router_part, manifest=replace(whole, arrays=shared)), SHARED)
        join(stage, whole, parts)
        stage.divide = partial(_check_and_divide, whole, shards, on_progress)
        return stage.publish(whole)


def _check_and_divide(
    whole: Manifest, shards: int, on_progress: OnProgress | None, folder: Path, manifest: Manifest
) -> Manifest:
    """Divide arrays that were joined, if they are those that were divided before.

    whole: the manifest before the division. folder, manifest: as `divide_folder`.

    Raises `UnsupportedError`.
    """
    # The bounds follow from all vectors, so an index on shards does not have them.
    both = (manifest.arrays.keys() | whole.arrays.keys()) - {"length_bounds"}
    names = [n for n in sorted(both) if not _agrees(n, whole.arrays.get(n), manifest.arrays.get(n))]
    if names:
        raise UnsupportedError(
            "index",
            f"the shards do not give the arrays {', '.join(names)} that were divided, perhaps by an"
            " earlier version: build the index again",
        )
    return manifest if shards == 1 else divide_folder(folder, manifest, shards, on_progress)


def _agrees(name: str, divided: ArrayEntry | None, joined: ArrayEntry | None) -> bool:
    """Return whether a joined array is as the manifest describes the one that was divided.

    An order, and what is made of codes, is described without a checksum (`_described`), because it
    never was whole.
    """
    if name == ID_ORDER:
        return True  # it follows from the ids, and seldom a shard alone has none
    if divided is None or joined is None or _is_of_all(name) or divided.crc32:
        return divided == joined
    return divided.dtype == joined.dtype


def divide_folder(
    folder: Path,
    manifest: Manifest,
    shards: int,
    on_progress: OnProgress | None = None,
) -> Manifest:
    """Divide the arrays of a generation, which nobody reads yet, among shards.

    folder: has the arrays of `manifest`, and no manifest.

    Dense vectors are copied in blocks. Needs memory for the other arrays of one shard. All files
    are synced to the disk. Returns the manifest with an entry for each shard. Raises
    `StorageFullError`.
    """
    arrays = {
        name: open_array_of(folder, name, entry, verify=False)
        for name, entry in manifest.arrays.items()
    }
    (folder / SHARDS).mkdir()
    homes = homes_in(arrays, manifest.rows, shards)
    pieces = cut(Generation(manifest, arrays), shards, homes, with_vectors=False)
    parts = []
    for shard, part in enumerate(pieces.parts):
        vectors = _vectors(arrays, np.flatnonzero(homes == shard))
        entries = _write(folder / SHARDS / str(shard), part, vectors)
        parts.append(ShardPart(part.manifest.rows, part.manifest.nonzeros, entries))
        if on_progress is not None:
            on_progress(Progress("dividing", shard + 1, shards, None))
    return finish_shards(folder, manifest, parts)


class ShardPart(NamedTuple):
    """A shard whose arrays are written: its numbers of points and values, and their entries."""

    rows: int
    nonzeros: int
    entries: Mapping[str, ArrayEntry]


def finish_shards(folder: Path, manifest: Manifest, parts: Sequence[ShardPart]) -> Manifest:
    """Write the manifests of shards, and remove the arrays that no server of an index reads.

    folder: has the arrays of `manifest`, and the folders of the shards. The manifest describes all
        arrays that the generation would have if it were whole, or only those that are not made of
        codes.

    All files are synced to the disk. Returns the manifest with an entry for each shard.
    """
    (folder / SHARED).mkdir()
    for name in manifest.arrays:
        path = folder / f"{name}.npy"
        if is_shared(name):
            os.rename(path, folder / SHARED / path.name)
        else:
            # Vectors may have been divided as they were received.
            path.unlink(missing_ok=True)
    shards = []
    for shard, part in enumerate(parts):
        # What all shards have in common is in the manifest of the whole generation.
        entries = dict(sorted(part.entries.items()))
        text = replace(
            manifest, rows=part.rows, nonzeros=part.nonzeros, arrays=entries, search_costs=(),
            search_costs_dense=(), choices=(), warnings=(), labels=None,
        ).to_json()  # fmt: skip
        home = folder / SHARDS / str(shard)
        write_synced(home / MANIFEST, text)
        sync_folder(home)
        size = sum(entry.bytes for entry in part.entries.values())
        shards.append(ShardEntry(part.rows, size, zlib.crc32(text.encode())))
    for name in (SHARED, SHARDS):
        sync_folder(folder / name)
    arrays = _described(manifest.arrays, [part.entries for part in parts])
    return replace(manifest, arrays=arrays, shards=tuple(shards))


def _described(
    whole: Mapping[str, ArrayEntry], parts: Sequence[Mapping[str, ArrayEntry]]
) -> dict[str, ArrayEntry]:
    """Return the entries of the arrays of a divided generation, in the order of their names.

    An array that a build receives or that shards share is described as if it were whole. Any other
    is described as the arrays of all shards one after another, without a checksum. If their rows
    have different shapes, only the total number of entries is given.
    """
    arrays = {name: entry for name, entry in whole.items() if _is_of_all(name)}
    names = {name for part in parts for name in part if not _is_of_all(name)}
    for name in names - arrays.keys() - {ROW_NUMBERS}:
        entries = [part[name] for part in parts if name in part]
        dtype, shape = entries[0].dtype, entries[0].shape
        if len({entry.shape[1:] for entry in entries}) == 1:
            shape = (sum(entry.shape[0] for entry in entries), *shape[1:])
        else:
            shape = (sum(math.prod(entry.shape) for entry in entries),)
        arrays[name] = ArrayEntry(dtype, shape, 0)
    return dict(sorted(arrays.items()))


def _is_of_all(name: str) -> bool:
    """Return whether the manifest of a divided generation has the checksum of all rows."""
    return is_shared(name) or (is_received(name) and not is_order(name))


def _vectors(arrays: Mapping[str, Array], rows: IntArray) -> Iterator[Array]:
    """Yield the dense vectors of `rows` (m,) in blocks; nothing of sparse points."""
    if "vectors" not in arrays:
        return
    vectors = arrays["vectors"]
    step = block_rows(vectors)
    for start in range(0, len(rows), step):
        yield vectors[rows[start : start + step]]
        release(vectors)


def _write(folder: Path, part: Generation, vectors: Iterator[Array]) -> dict[str, ArrayEntry]:
    """Write the arrays of a shard, whose dense vectors come in blocks; return their entries."""
    store = ArrayFolder(folder)
    for name, array in part.arrays.items():
        # Shards have points of their own in each cell.
        if name == "cell_starts" or not is_shared(name):
            store.begin(name, array.dtype, array.shape[1:])
            for block in vectors if name == "vectors" else (array,):
                store.append(name, block)
    return store.close()


def open_router_part(folder: Path, *, verify: bool = True) -> Generation:
    """Open what a router reads of the generation in `folder`.

    The arrays are those that all shards share. Raises `IndexDamagedError` and `OtherFormatError`.
    """
    manifest = read_manifest(folder)
    shared = open_shared(folder, manifest, verify=verify)
    return Generation(manifest, shared, read_defaults(folder, manifest))


def open_cells(folder: Path, whole: Manifest, shard: int) -> Generation:
    """Open what `partial.without` reads of a shard of the generation in `folder`.

    whole: the manifest of the whole generation. Raises `IndexDamagedError`.
    """
    manifest, arrays = read_shard_manifest(folder, whole, shard), {}
    if "cell_starts" in manifest.arrays:
        path = folder / SHARDS / str(shard) / "cell_starts.npy"
        arrays["cell_starts"] = open_array(path, manifest.arrays["cell_starts"], verify=True)
    return Generation(manifest, arrays)


def open_router_engine(folder: Path, home: Path | None = None) -> GatheringEngine:
    """Open what a router reads of the generation in `folder`; raises as `open_router_part`.

    home: the folder of the index, which a staged generation is not in yet. Default: the parent.
    """
    part, home = open_router_part(folder), home or folder.parent
    rows = [shard.rows for shard in part.manifest.shards]
    return GatheringEngine(part, rows, home.name, home)


def open_shard_part(folder: Path, shard: int, *, verify: bool = True) -> Generation:
    """Open the points of a shard of the generation in `folder`; raises as `open_router_part`."""
    manifest, arrays = open_shard(folder, read_manifest(folder), shard, verify=verify)
    return Generation(manifest, arrays)
