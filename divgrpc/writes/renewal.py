"""Makes a generation of the points that exist, without the rows of deleted ones.

A row whose point was deleted or replaced keeps its vector until then. The new generation has the
rows of the other points, in the order that they had. A vacuum gives them the codes and the cells
that they had, so answers stay the same; so does an addition of attributes. A retraining computes
all that Build computes of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from divgrpc.builder.assembly import assemble, requested_parameters
from divgrpc.builder.progress import Report, StageReport
from divgrpc.builder.row_encoder import (
    CENTRE,
    CENTRE_MARGINS,
    CENTRES,
    COARSE,
    COARSE_STARTS,
)
from divgrpc.columns.annotations import AnnotationWriter, annotations_in, take
from divgrpc.columns.reader import PAYLOAD
from divgrpc.columns.texts import ENDS
from divgrpc.columns.values import rows_of_column
from divgrpc.columns.writer import ColumnWriter, write_order
from divgrpc.hashing.codes import copy_codes
from divgrpc.hashing.lists import FULL_COLUMNS, STEPS, blocks_of, list_points
from divgrpc.hashing.partition import order_by_cell
from divgrpc.hashing.tables import create_tables
from divgrpc.kernels.inverted_lists import LISTED_POINTS_MAX
from divgrpc.kernels.look_ups import TILE_POINTS
from divgrpc.search.arrays import points_of
from divgrpc.search.point_arrays import PointArrays
from divgrpc.storage.generations import Generation, Staging, open_generation
from divgrpc.storage.manifest import Manifest
from divgrpc.types import IntArray, Progress
from divgrpc.types.records import Attribute
from divgrpc.vectors import Rows as Vectors
from divgrpc.vectors import SparseRows
from divgrpc.writes.additions import Addition
from divgrpc.writes.columns import Part, Parts
from divgrpc.writes.label_renewal import copy_labels, retrain_labels
from divgrpc.writes.layout import ROW_ARRAYS, Layout, Source
from divgrpc.writes.records import Rows, rows_of_columns
from divgrpc.writes.state import State
from divgrpc.writes.tables import table_sizes
from divgrpc.writes.vectorless import VectorlessRows, column_of

# Arrays of Build that do not depend on single points.
_MODEL: Final = (
    "hyperplanes",
    "sketch",
    "thresholds",
    "cell_codes",
    "cell_terms",
    "cell_centres",
    "cell_squares",
    "cell_reaches",
    CENTRE,
    CENTRE_MARGINS,
    COARSE,
    COARSE_STARTS,
    CENTRES,
)
_BLOCK_ROWS: Final = 65_536


@dataclass(frozen=True, slots=True)
class Renewal:
    """Writes the points of a collection into the store of a new generation.

    generation, layout: the old generation, and the layout that has the codes of `source`.
    source: the rows; records may be applied to the collection meanwhile.
    stage: the store.
    keeps_model: whether codes and cells stay as they are, as in a vacuum.
    addition: attributes that the points get; None if they get none.
    """

    generation: Generation
    layout: Layout
    source: Source
    stage: Staging
    keeps_model: bool
    addition: Addition | None = None

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """The attributes of the new generation."""
        added = () if self.addition is None else self.addition.attributes
        return self.generation.manifest.attributes + added

    def publish(
        self, on_progress: Callable[[Progress], None], on_whole: Callable[[Path], None]
    ) -> Generation:
        """Make the new generation the current one; raises `StorageFullError`.

        on_whole: called with the folder of the new generation before that.
        """
        old, stage = self.generation.manifest, self.stage
        report = StageReport(on_progress)
        rows = np.flatnonzero(self.source.searchable)
        points = self._write_rows(rows, report)
        if self.keeps_model:
            self._write_codes(rows)
            if isinstance(points, SparseRows):
                self._write_lists(rows, points)
            self._write_model()
            manifest = self._manifest_of(points)
        else:
            manifest = self._retrain(points, report, on_progress)
        report("writing", len(rows), len(rows))
        stage.keep_defaults(old)
        stage.on_whole = on_whole
        try:
            return stage.publish(manifest)
        finally:
            # A cycle of references would keep the removed files mapped, and so on the disk.
            stage.on_whole = None

    def open_generation(self, folder: Path) -> Generation:
        """Open the new generation, which is complete in `folder`, with the defaults of the old."""
        return replace(open_generation(folder, verify=False), defaults=self.stage.defaults)

    def first_source(self, generation: Generation) -> Source:
        """Return the rows of the new generation, with what earlier writes have left.

        So the next write continues as if the generation had not changed.
        """
        before = self.source
        # The centre of the points has changed, but codes that are kept are relative to the old one.
        model = before.model if self.keeps_model else None
        source = replace(
            Source.of_build(generation, model),
            sequence=before.sequence,
            displaced=before.displaced,
            requests=before.requests,
        )
        return self._vectorless().behind(source, generation)

    def _vectorless(self) -> VectorlessRows:
        """Return the rows of points without a vector."""
        rows = np.flatnonzero(self.source.alive & ~self.source.searchable)

        def blocks() -> Iterator[Rows]:
            return (block for _, block in self._blocks(rows))

        return VectorlessRows(self.source.arrays["ids"][rows], blocks)

    def change(self, encode: Callable[[Rows], Rows]) -> Callable[[Rows], Rows] | None:
        """Return how later rows differ in the new generation, which encodes them with `encode`."""
        if self.addition is not None:
            return self.addition.extend
        return None if self.keeps_model else encode

    def _retrain(
        self, points: Vectors, report: Report, on_progress: Callable[[Progress], None]
    ) -> Manifest:
        """Compute what Build computes of points; return the manifest."""
        old, stage = self.generation.manifest, self.stage
        categories = stage.read("categories") if "categories" in old.arrays else None
        trained = assemble(
            stage, requested_parameters(old), points, report=report, categories=categories
        )
        labels, warnings = retrain_labels(stage, self.generation, points, report, on_progress)
        return replace(
            trained,
            attributes=old.attributes,
            id_kind=old.id_kind,
            labels=labels,
            warnings=warnings,
        )

    def _manifest_of(self, points: Vectors) -> Manifest:
        """Return the manifest of the generation if the model is kept."""
        old = self.generation.manifest
        is_changed = not len(points) == old.rows == self.source.rows_with_vector
        manifest = replace(
            old,
            rows=len(points),
            nonzeros=len(points) * old.dims,
            attributes=self.attributes,
            labels=copy_labels(self.stage, self.generation, is_changed=is_changed),
        )
        if isinstance(points, SparseRows):
            widths = np.diff(self.source.arrays["indptr"][: len(self.source.alive) + 1])
            # The widest row may have no point, but what a query may ask for must stay the same.
            widest_row = max(old.widest_row, int(widths.max()))
            manifest = replace(manifest, nonzeros=len(points.indices), widest_row=widest_row)
        return manifest

    def _write_rows(self, rows: IntArray, report: Report) -> Vectors:
        """Write vectors, ids, attributes, payloads and annotations; return the vectors."""
        source, stage, manifest = self.source, self.stage, self.generation.manifest
        vectors = points_of(self.layout.arrays, manifest.dims)
        has_texts = manifest.id_kind == "string"
        has_payloads = any(PAYLOAD + ENDS in part.arrays for part in source.parts)
        is_sparse = manifest.points == "sparse"
        points = PointArrays(stage, manifest.dims, len(rows), sparse=is_sparse)
        writer = ColumnWriter(
            stage, self.attributes, has_texts=has_texts, has_payloads=has_payloads
        )
        annotation_writer = AnnotationWriter(stage, manifest.arrays)
        count = 0
        report("copying", 0, len(rows))
        for numbers, block in self._blocks(rows):
            points.append(vectors[numbers])
            payloads = block.payloads if has_payloads else ()
            writer.append(slice(None), block.texts, block.columns, payloads)
            annotation_writer.append(block.annotations)
            count += len(block)
            report("copying", count, len(rows))
        writer.finish(stage, with_keys=False)
        keys = source.arrays["ids"][rows]
        stage.create("ids", np.int64, keys.shape)[:] = keys
        write_order(stage, keys)
        return points.read()

    def _blocks(self, rows: IntArray) -> Iterator[tuple[IntArray, Rows]]:
        """Yield ascending `rows` in blocks: their numbers and their columns."""
        manifest, source = self.generation.manifest, self.source
        for part, block in _blocks(source.parts, rows):
            places, keys = block - part.first, source.arrays["ids"][block]
            texts = part.texts.take(places) if manifest.id_kind == "string" else ()
            payloads = part.reader.payloads(places) or (b"",) * len(places)
            columns = {
                attribute: rows_of_column(
                    attribute, column_of(part.arrays, number, attribute), places
                )
                for number, attribute in enumerate(manifest.attributes)
            }
            if self.addition is not None:
                columns |= self.addition.columns(keys)
            annotations = take(annotations_in(part.arrays), places)
            yield block, rows_of_columns(keys, texts, columns, payloads, annotations)

    def _write_model(self) -> None:
        """Write the arrays of Build that do not depend on single points."""
        for name in _MODEL:
            if name in self.generation.arrays:
                array = self.layout.arrays.get(name, self.generation.arrays[name])
                self.stage.create(name, array.dtype, array.shape)[...] = array

    def _write_codes(self, rows: IntArray) -> None:
        """Write codes and scan terms, by cell or with hash tables, and numbers of single rows."""
        source, stage, arrays = self.source, self.stage, self.source.arrays
        for name in ROW_ARRAYS:
            if name in arrays and name != "indptr":
                stage.create(name, arrays[name].dtype, rows.shape)[:] = arrays[name][rows]
        order = np.arange(len(rows))
        if len(source.cells):
            cells = len(self.generation.arrays["cell_centres"])
            order, starts = order_by_cell(source.cells[rows], cells)
            stage.create("cell_starts", np.int64, starts.shape)[:] = starts
            stage.create("cell_rows", np.int32, order.shape)[:] = order
        old_places = source.places[rows[order]]
        if "scan_terms" in arrays:
            stage.create("scan_terms", np.uint32, rows.shape)[:] = arrays["scan_terms"][old_places]
        codes, tiles = arrays["codes"], -(-len(rows) // TILE_POINTS)
        new_codes = stage.create("codes", np.uint8, (tiles, codes.shape[1]))
        copy_codes(codes, old_places, new_codes)
        if not len(source.cells):
            sizes = table_sizes(self.generation.manifest.parameters)
            create_tables(new_codes, np.ones(len(rows), np.bool_), sizes, stage.create)

    def _write_lists(self, rows: IntArray, points: SparseRows) -> None:
        """Write inverted lists of sparse points, if the collection has some."""
        model = self.source.model
        if STEPS in model:
            columns = model[STEPS], model[FULL_COLUMNS]
            for name, array in zip((STEPS, FULL_COLUMNS), columns, strict=True):
                self.stage.create(name, array.dtype, array.shape)[...] = array
            count = min(len(rows), LISTED_POINTS_MAX)
            list_points(blocks_of(points[:count]), count, *columns, self.stage.create)


def vacuum_of(state: State, stage: Staging) -> Renewal | None:
    """Return a vacuum of the rows of a state; None if no row or every row has a point.

    A generation has at least one point with a vector.
    """
    if state.live == state.rows or not state.searched:
        return None
    return Renewal(state.generation, state.layout, state.source(), stage, keeps_model=True)


def retraining_of(state: State, stage: Staging) -> Renewal | None:
    """Return a retraining with the points of a state.

    None if no point has a vector, or if nothing was written since Build.
    """
    if not (state.sequence and state.searched):
        return None
    return Renewal(state.generation, state.layout, state.source(), stage, keeps_model=False)


def extension_of(state: State, stage: Staging, addition: Addition) -> Renewal | None:
    """Return what adds attributes to the points of a state; None if no point has a vector."""
    if not state.searched:
        return None
    generation, layout, source = state.generation, state.layout, state.source()
    return Renewal(generation, layout, source, stage, keeps_model=True, addition=addition)


def _blocks(parts: Parts, rows: IntArray) -> Iterator[tuple[Part, IntArray]]:
    """Yield ascending `rows` in blocks, each with the part that holds it."""
    for part in parts:
        start, stop = np.searchsorted(rows, (part.first, part.first + part.rows)).tolist()
        for first in range(start, stop, _BLOCK_ROWS):
            yield part, rows[first : min(stop, first + _BLOCK_ROWS)]
