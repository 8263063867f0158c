"""The points of a collection at one sequence number, which queries read."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from divgrpc.arrays import Array, read_only
from divgrpc.columns.filters import Flags
from divgrpc.engine import Engine
from divgrpc.errors import invalid
from divgrpc.hashing.lists import LATER_LISTS, WORK
from divgrpc.kernels.look_ups import TILE_POINTS
from divgrpc.metrics import Labels, Topics
from divgrpc.search.code_order import CodeOrder
from divgrpc.search.costs import SearchTable
from divgrpc.search.passing import PassingRows
from divgrpc.search.searcher import Searcher
from divgrpc.storage.generations import GROWING, Generation
from divgrpc.storage.layouts import LayoutInfo
from divgrpc.types import IndexInfo, IntArray, WritesInfo
from divgrpc.types.filters import Filter, HasId
from divgrpc.types.records import IdArray
from divgrpc.vectors import Rows
from divgrpc.writes.columns import LiveReader, Part
from divgrpc.writes.layout import ROW_ARRAYS, Layout, WritesFolder
from divgrpc.writes.live_annotations import (
    LiveLabelSets,
    annotation_bytes,
    annotations_of,
    numbers_of_rows,
)
from divgrpc.writes.state import State

# Arrays of a generation that stand for its points alone, and which writes do not keep up to date.
_OF_BUILD: Final = frozenset(("length_bounds", "id_order"))
# Arrays of the rows that were written since the merge.
_LATER: Final = frozenset(("overflow_nexts", "later_links", *LATER_LISTS))
# Ids of rows without a point, in evaluations, begin here.
_ABSENT_ID: Final = 2**62
# Maximum number of bytes of cached flags of the rows of a layout.
_CACHED_FLAGS_BYTES_MAX: Final = 64 << 20


class LayoutEngine:
    """The searcher and the flags of filters, which all snapshots of one layout share.

    `clean`: an engine for a snapshot in which every row has a point, and no row was written since
    the merge; it searches as fast as if nothing could be written.
    """

    def __init__(self, engine: Engine, generation: Generation, layout: Layout) -> None:
        """Take an engine of the generation and a layout of it."""
        self.engine, self.layout = engine, layout
        arrays = {n: a for n, a in generation.arrays.items() if n not in _OF_BUILD}
        arrays |= layout.arrays
        self.searcher = _searcher(arrays, engine)
        # If no row was added, the arrays of Build serve. Earlier versions left out hash tables
        # in a vacuum. With inverted lists, `WORK` may be about more points than Build has.
        self.clean = engine.searcher
        has_tables = not {"cell_rows", "table_rows"}.isdisjoint(generation.arrays)
        is_grown = layout.info.rows != generation.manifest.rows
        if is_grown or not has_tables or WORK in arrays:
            self.clean = _searcher(_without_room(arrays, layout.info), engine)
        self._flags: dict[str, dict[int, Flags]] = {}
        self._bytes = 0

    def cached(self, key: str, part: Part) -> Flags | None:
        """Return the flags of a part for a filter, if they are kept."""
        return self._flags.get(key, {}).get(part.first)

    def keep(self, key: str, part: Part, flags: Flags) -> None:
        """Keep the flags of a part of this layout for later snapshots."""
        if self._bytes + flags.nbytes > _CACHED_FLAGS_BYTES_MAX:
            self._flags, self._bytes = {}, 0
        self._flags.setdefault(key, {})[part.first] = flags
        self._bytes += flags.nbytes


def _without_room(arrays: Mapping[str, Array], info: LayoutInfo) -> dict[str, Array]:
    """Return the arrays of a layout without the room for later rows."""
    rows, (items, _) = info.rows, info.items
    places = int(arrays["cell_starts"][-1]) if "cell_starts" in arrays else rows
    lengths = dict.fromkeys(GROWING, items) | dict.fromkeys(("ids", *ROW_ARRAYS), rows)
    lengths["indptr"] = rows + 1
    lengths |= dict.fromkeys(("cell_rows", "scan_terms"), places)
    lengths["codes"] = -(-places // TILE_POINTS)
    whole = {name: array for name, array in arrays.items() if name not in _LATER}
    cut = {name: whole[name][:length] for name, length in lengths.items() if name in whole}
    return whole | cut


def _searcher(arrays: Mapping[str, Array], engine: Engine) -> Searcher:
    frozen = {name: read_only(array) for name, array in arrays.items()}
    return Searcher(frozen, engine.manifest.parameters, engine.dims)


class Snapshot(Engine):
    """The points of a collection at one sequence number. Thread-safe."""

    def __init__(self, shared: LayoutEngine, state: State) -> None:
        """Copy what later writes would change; no record may be applied meanwhile."""
        engine = shared.engine
        # A snapshot is made after each write, and shares what the writes do not change.
        self.__dict__.update(engine.__dict__)
        self._shared = shared
        self._rows_stored, self._rows_with_vector = state.rows, state.rows_with_vector
        self.sequence, self.rows = state.sequence, state.live
        self.widest_row, self.rows_searched = state.widest_row, state.searched
        nonzeros = max(1, state.nonzeros)
        self.manifest = replace(engine.manifest, rows=max(1, state.searched), nonzeros=nonzeros)
        self._order: CodeOrder | None = None
        self._visible: PassingRows | None = None
        if state.is_clean:
            self._searcher = shared.clean
            alive = np.zeros(shared.layout.info.capacity, np.bool_)
            alive[: state.rows] = True
        else:
            self._searcher = shared.searcher
            self._visible, self._order = state.visible()
            alive = self._visible.flags
        # The points that exist, if searches do not see all of them.
        self._present = state.present()
        if self._present is not None:
            alive = self._present.flags
        self._alive = alive
        self._parts = state.parts
        self._live_ids = state.ids(alive)
        attributes = engine.manifest.attributes
        self._reader = LiveReader(state.parts, self._live_ids, attributes)  # type: ignore[assignment]
        self._has_payloads = engine.manifest.has_payloads or state.has_payloads
        kind = engine.manifest.points
        self._table, self._dense_table = (
            SearchTable.of(self.manifest, kind, dense=dense) for dense in (kind == "dense", True)
        )
        self._plans, self._farther_plans, self._passing = {}, {}, {}
        self._unmerged, self._dead = state.rows_unmerged, state.rows - state.live
        self.__dict__.pop("_every_row", None)
        self.__dict__.pop("topics", None)

    @property
    def info(self) -> IndexInfo:
        """The description of the index."""
        folder, writes = self._folder, None
        if self.sequence:
            size = 0 if folder is None else WritesFolder(folder / str(self.generation)).log.bytes
            writes = WritesInfo(self.sequence, self._unmerged, self._dead, size)
        absent = self.rows - self.rows_searched
        return replace(super().info, rows=self.rows, rows_without_vector=absent, writes=writes)

    @property
    def _all_rows(self) -> PassingRows:
        return super()._all_rows if self._present is None else self._present

    def searched(self, passing: PassingRows | None) -> PassingRows | None:
        """Return the points that pass and that searches see."""
        if self._present is None or self._visible is None or passing is None:
            return passing
        return passing.within(self._visible)

    def _has_vector(self, rows: IntArray) -> Flags | None:
        """Return whether each of `rows` (m,) has a vector; None if all have."""
        if self._present is None or self._visible is None:
            return None
        flags = self._visible.flags[rows]
        return None if flags.all() else flags

    def rows_like(self, ids: Sequence[int] | Sequence[str] | IdArray) -> IntArray:
        """Return the rows of points whose vectors are queries."""
        rows = super().rows_like(ids)
        self._check_vectors(ids, rows, "like")
        return rows

    def numbers_of(self, ids: IntArray | list[str], field: str) -> IntArray:
        """Return the ids that `topics` has for ids of callers: row numbers if the ids are texts.

        Raises `InvalidArgumentError` with the field `field` for ids of another kind, for a text
        that no point has, and for a point without a vector.
        """
        numbers = super().numbers_of(ids, field)
        if self._present is not None:
            self._check_vectors(ids, self._live_ids.rows_of(ids, field), field)
        return numbers

    def _check_vectors(
        self, ids: Sequence[int] | Sequence[str] | IdArray, rows: IntArray, field: str
    ) -> None:
        """Raise `InvalidArgumentError` if a point with one of `ids` has no vector.

        rows: (m,) the rows of the points, -1 for an id that no point has.
        """
        has_vector = self._has_vector(rows)
        if has_vector is not None:
            for place in np.flatnonzero((rows >= 0) & ~has_vector)[:1].tolist():
                name = np.asarray(ids, object).tolist()[place]
                raise invalid(field, f"has {name!r}, which is a point without a vector")

    @property
    def _points(self) -> Rows:
        return self._searcher.points[: self._rows_stored]

    @functools.cached_property
    def _every_row(self) -> PassingRows:
        return PassingRows(self._alive[: self._rows_stored])

    @functools.cached_property
    def topics(self) -> Topics:
        """Ids, categories and sub-topics of the points, for evaluations."""
        # Evaluations see what searches see.
        alive = super()._all_rows.flags
        ids = np.arange(len(alive))
        if not self._has_texts:
            # Evaluations want an id for each row. No caller can name the rows without a point.
            ids = np.where(alive, self._live_ids.keys[: len(alive)], _ABSENT_ID + ids)
        columns = {
            name: numbers_of_rows(self._parts, name, alive) for name in ("categories", "subtopics")
        }
        return Topics.of_categories(Labels.of(**columns, ids=ids))

    @property
    def label_sets(self) -> LiveLabelSets | None:
        """The label sets of the points; None without them."""
        if self.labels is None or self.labels.sets is None:
            return None
        return LiveLabelSets(self._parts, self._alive, self.labels.count)

    def _annotations(self, rows: IntArray) -> Mapping[str, Array]:
        """Return the label sets, categories and sub-topics of `rows` (m,), by array name."""
        return annotations_of(self._parts, rows)

    def _annotation_bytes(self, rows: IntArray) -> IntArray:
        """Return an upper bound of the bytes that the annotations of each row take in a message."""
        return annotation_bytes(self._parts, rows)

    @property
    def label_counts(self) -> IntArray | None:
        """The number of points with a vector that have each label, (L,); None without labels."""
        if self.labels is None or self.labels.sets is None:
            return None
        # Evaluations see what searches see.
        alive = super()._all_rows.flags
        return LiveLabelSets(self._parts, alive, self.labels.count).point_counts

    @property
    def has_stale_label_model(self) -> bool:
        """Whether points were written or deleted since Build trained the label model."""
        if self.labels is None or not self.labels.is_trained:
            return False
        points = self._shared.engine.rows
        is_changed = not points == self._rows_with_vector == self.rows_searched
        return is_changed or super().has_stale_label_model

    def _passing_rows(self, condition: Filter) -> PassingRows:
        """Return the points that pass a filter."""
        key, flags = repr(condition), np.zeros(len(self._alive), np.bool_)
        merged = self._shared.layout.info.rows
        for part in self._parts:
            part_flags = self._shared.cached(key, part) if part.first < merged else None
            if part_flags is None:
                part_flags = part.flags(condition, self._live_ids)
                if part.first < merged and not _names_ids(condition):
                    self._shared.keep(key, part, part_flags)
            flags[part.first : part.first + part.rows] = part_flags
        flags &= self._alive
        if self._visible is None:
            return PassingRows(flags[: self._rows_stored])
        return PassingRows(flags, order=self._order)

    def _set_defaults(self, **changes: Any) -> None:  # noqa: ANN401  # fields of `Defaults`
        self._shared.engine._set_defaults(**changes)  # noqa: SLF001  # the same class
        self.defaults = self._shared.engine.defaults


def _names_ids(condition: object) -> bool:
    """Whether a filter depends on ids, which may move to other rows."""
    if isinstance(condition, Filter):
        return any(map(_names_ids, condition))
    return isinstance(condition, HasId)
