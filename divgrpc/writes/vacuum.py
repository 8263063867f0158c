"""Makes a generation of the points that exist, without the rows of deleted ones.

A row whose point was deleted or replaced keeps its vector until a vacuum. The new generation has
the rows of the other points, in the order that they had, with the same codes and the same cells.
So answers stay the same. It also has a layout with the number of the last write and the names of
writes, so that the next write continues as if no vacuum had happened.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from divgrpc.arrays import Array, read_only
from divgrpc.columns.reader import PAYLOAD, array_name
from divgrpc.columns.texts import ENDS, Texts
from divgrpc.columns.values import Column, rows_of_column
from divgrpc.columns.writer import ColumnWriter, write_order
from divgrpc.kernels.encode import put_codes
from divgrpc.kernels.look_ups import TILE_POINTS
from divgrpc.storage.generations import Generation, Staging, open_generation
from divgrpc.storage.published import WRITES, Published
from divgrpc.types import FloatArray, IntArray, Progress
from divgrpc.types.records import Attribute
from divgrpc.writes.columns import Part, Parts
from divgrpc.writes.layout import Source, WritesFolder
from divgrpc.writes.state import State

# Arrays of Build that do not depend on single points.
_MODEL: Final = (
    "hyperplanes",
    "thresholds",
    "cell_codes",
    "cell_terms",
    "cell_centres",
    "cell_squares",
    "cell_reaches",
)
_BLOCK_ROWS: Final = 65_536


@dataclass(frozen=True, slots=True)
class Vacuum:
    """Writes the points of a collection into the store of a new generation.

    state: the collection; no record may be applied meanwhile.
    stage: the store.
    """

    state: State
    stage: Staging

    def publish(self, on_progress: Callable[[Progress], None] | None = None) -> Generation:
        """Make the new generation the current one; raises `StorageFullError`."""
        state, old = self.state, self.state.generation
        rows = np.flatnonzero(state.alive)
        self._write_rows(rows, on_progress)
        self._write_codes(rows)
        for name in _MODEL:
            if name in old.arrays:
                array = state.layout.arrays.get(name, old.arrays[name])
                self.stage.create(name, array.dtype, array.shape)[...] = array
        self.stage.on_whole = self._add_layout
        self.stage.keep_defaults(old.manifest)
        nonzeros = len(rows) * old.manifest.dims
        try:
            return self.stage.publish(replace(old.manifest, rows=len(rows), nonzeros=nonzeros))
        finally:
            # A cycle of references would keep the removed files mapped, and so on the disk.
            self.stage.on_whole = None

    def _write_rows(self, rows: IntArray, on_progress: Callable[[Progress], None] | None) -> None:
        """Write vectors, ids, attributes and payloads."""
        state, stage, manifest = self.state, self.stage, self.state.generation.manifest
        vectors: FloatArray = state.layout.arrays["vectors"]
        has_texts = manifest.id_kind == "string"
        has_payloads = any(PAYLOAD + ENDS in part.arrays for part in state.parts)
        stage.begin("vectors", np.float32, (manifest.dims,), len(rows))
        writer = ColumnWriter(
            stage, manifest.attributes, has_texts=has_texts, has_payloads=has_payloads
        )
        count = 0
        for part, block in _blocks(state.parts, rows):
            stage.append("vectors", vectors[block])
            places = block - part.first
            texts = part.texts.take(places) if has_texts else ()
            payloads = part.reader.payloads(places) or (b"",) * len(places)
            columns = {
                attribute: rows_of_column(attribute, _column(part, number, attribute), places)
                for number, attribute in enumerate(manifest.attributes)
            }
            writer.append(slice(None), texts, columns, payloads if has_payloads else ())
            count += len(block)
            if on_progress is not None:
                on_progress(Progress("vacuuming", count, len(rows)))
        writer.finish(with_keys=False)
        keys = state.keys_of(rows)
        stage.create("ids", np.int64, keys.shape)[:] = keys
        write_order(stage, keys)

    def _write_codes(self, rows: IntArray) -> None:
        """Write codes and scan terms, by cell if there are cells, and inverse lengths."""
        state, stage = self.state, self.stage
        arrays = state.layout.arrays
        if "inverse_lengths" in arrays:
            inverse_lengths = stage.create("inverse_lengths", np.float32, rows.shape)
            inverse_lengths[:] = arrays["inverse_lengths"][rows]
        order = np.arange(len(rows))
        if "cell_rows" in arrays:
            cells, _, _ = state.encoded(rows)
            order = np.argsort(cells, kind="stable")
            sizes = np.bincount(cells, minlength=len(arrays["cell_starts"]) - 1)
            starts = stage.create("cell_starts", np.int64, (len(sizes) + 1,))
            starts[:] = np.concatenate(([0], np.cumsum(sizes)))
            stage.create("cell_rows", np.int32, order.shape)[:] = order
        tiles = -(-len(rows) // TILE_POINTS)
        codes = stage.create("codes", np.uint8, (tiles, arrays["codes"].shape[1]))
        terms: Array | None = None
        if "scan_terms" in arrays:
            terms = stage.create("scan_terms", np.uint32, rows.shape)
        for start in range(0, len(rows), _BLOCK_ROWS):
            block = rows[order[start : start + _BLOCK_ROWS]]
            _, block_terms, packed = state.encoded(block)
            places = np.arange(start, start + len(block), dtype=np.int32)
            put_codes(read_only(packed), read_only(places), codes)
            if terms is not None:
                terms[places] = block_terms

    def _add_layout(self, folder: Path) -> None:
        """Write the first layout of the new generation, which is complete in `folder`."""
        generation = open_generation(folder, verify=False)
        vectors: FloatArray = generation.arrays["vectors"]
        before = self.state.source()
        source = replace(
            Source.of_build(generation, vectors),
            sequence=before.sequence,
            # The centre of the points has changed, but codes are relative to the old one.
            model=before.model,
            displaced=before.displaced,
            requests=before.requests,
        )
        (folder / WRITES).mkdir()
        info = WritesFolder(folder).merge(generation, source)
        Published(folder / WRITES, writable=True).publish(
            source.sequence, layout=info.number, live=info.live, rows=info.rows, unmerged=0
        )


def _blocks(parts: Parts, rows: IntArray) -> Iterator[tuple[Part, IntArray]]:
    """Yield ascending `rows` in blocks, each with the part that holds it."""
    for part in parts:
        start, stop = np.searchsorted(rows, (part.first, part.first + part.rows)).tolist()
        for first in range(start, stop, _BLOCK_ROWS):
            yield part, rows[first : min(stop, first + _BLOCK_ROWS)]


def _column(part: Part, number: int, attribute: Attribute) -> Column:
    """Return the values of an attribute of all rows of a part."""
    ends = np.empty(0, np.int64)
    words: tuple[str, ...] = ()
    if attribute.multi:
        ends = part.arrays[array_name(number, "ends")]
    if attribute.type == "keyword":
        texts = Texts(part.arrays, array_name(number, "words"))
        words = tuple(texts[place].decode() for place in range(len(texts)))
    return Column(part.arrays[array_name(number, "values")], ends, words)
