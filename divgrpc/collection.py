"""The class `Collection`: an index that can be written to while it is searched."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from divgrpc.builder.attributes import AttributeValues
from divgrpc.columns.absence import split_vectors
from divgrpc.columns.filters import as_filter
from divgrpc.columns.ids import as_ids
from divgrpc.columns.values import arguments_of_records, columns_of
from divgrpc.engine import Engine
from divgrpc.errors import invalid
from divgrpc.index import Index
from divgrpc.storage.generations import IndexFolder
from divgrpc.types import Durability, Progress, WriteMode, WriteResult
from divgrpc.types.filters import FilterLike
from divgrpc.types.records import (
    AttributesLike,
    AttributeTypes,
    IdsOf,
    NumbersLike,
    PayloadsLike,
)
from divgrpc.vectors import LabelsLike, RowsLike
from divgrpc.writes.annotation_arguments import AnnotationArguments
from divgrpc.writes.committer import Committer
from divgrpc.writes.requests import Delete, Upsert, check_write_id, columns_from

# Number of records that `upsert_records` writes at once.
_RECORDS_AT_ONCE: Final = 1_000


class Collection(Index):
    """An index in a folder that can be written to while it is searched.

    Create one with `Collection.build(..., path=...)`, or open an index with `Collection.open`. It
    has all methods of `Index`. Any thread may query it and write to it; one process at a time may
    have it open. Close it with `close` or use it in a `with` statement.

    A write is visible to all queries that begin after it has returned. Each result has the number
    of the last write that it shows, its `sequence`.
    """

    def __init__(self, engine: Engine, *, durability: Durability = "sync") -> None:
        """Wrap an engine. Users call `Collection.build` or `Collection.open` instead."""
        folder = engine.folder
        if folder is None:
            raise invalid("path", "must be given: a collection is stored in a folder")
        self._committer = Committer(engine, folder, durability)
        super().__init__(engine)

    @classmethod
    def open(cls, path: Path | str, *, durability: Durability = "sync") -> Self:
        """Open an index from its folder, to write to it.

        path: the folder of an index, which `Index.build` or `Collection.build` has made.
        durability: when a write returns. With "sync", it is on the disk. With "interval", it is on
            the disk 50 ms later. With "process", it is there when the operating system writes it:
            it outlives the process, but not a loss of power.

        Raises `IndexNotFoundError`, `IndexDamagedError`, `OtherFormatError`,
        `StorageInUseError` if another process has it open for writing, and `IndexChangedError` if
        it is replaced meanwhile.
        """
        folder = Path(path).absolute()
        return cls(Engine(IndexFolder(folder).open(), folder.name, folder), durability=durability)

    @property
    def _engine(self) -> Engine:
        return self._committer.snapshot()

    @_engine.setter
    def _engine(self, engine: Engine) -> None:
        """Ignore the engine of `Index`: each write makes a new one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def committer(self) -> Committer:
        """The writer of the collection; its methods may change in any release."""
        return self._committer

    @property
    def sequence(self) -> int:
        """The number of the last write; 0 if nothing was written since Build."""
        return self._committer.sequence

    def upsert(
        self,
        ids: IdsOf,
        vectors: RowsLike | None = None,
        *,
        attributes: AttributesLike = None,
        payloads: PayloadsLike = None,
        labels: LabelsLike | None = None,
        categories: NumbersLike = None,
        subtopics: NumbersLike = None,
        mode: WriteMode = "upsert",
        if_sequence: int | None = None,
        write_id: str = "",
    ) -> WriteResult:
        """Insert points, or replace the points that have these ids.

        ids: one id or m ids, of the kind that the index has; all different, at most 10,000.
        vectors: (m, d) numbers, or a sparse matrix of scipy if the points of the index are sparse,
            with at most 4,194,304 values; (d,) numbers are the vector of one point. Without
            `vectors`, existing points keep their vectors, and also the attributes, payloads,
            labels, categories and sub-topics that are not given. If the index was built with
            `vectors_optional`, new points then have no vector, and None in a list or an array of
            vectors is a point without one.
        attributes: values by the name of a declared attribute, as for `Index.build`. With
            `vectors`, an attribute that is not given has no value.
        payloads: m bytes or texts; None for a point without a payload.
        labels: (m, L) label sets of an index that was built with some, as for `Index.build`: point
            i has label j if labels[i, j] is not 0; (L,) numbers are the labels of one point. The
            `PointLabels` that `get` and `scroll` return are label sets too. With `vectors`, points
            have no labels if none are given.
        categories, subtopics: m integers, -1 for none, of an index that was built with some. With
            `vectors`, points have none if none are given.
        mode: "insert_only" raises an error if a point exists, and "update_only" if one does not.
        if_sequence: write only if this is the number of the last write.
        write_id: a name of at most 128 bytes for this write. If the last 10,000 named writes have
            one with this name, it is not made again, and its result is returned. Raises
            `ConditionFailedError` if that was another write.

        Either all points are written or none. If points are written faster than they are merged,
        the call waits for a merge. Raises `InvalidArgumentError` with the name of the
        argument as its `field`, `ConditionFailedError`, `LimitExceededError` for more than 10,000
        points, 4,194,304 values of sparse points or 256 MiB, `StorageFullError`, and
        `IndexChangedError` if the index was built anew.
        """
        manifest = self._committer.manifest
        columns = columns_from(attributes, manifest, ids)
        present, has_vector = split_vectors(vectors)
        request = Upsert(
            ids,
            present,
            columns,
            payloads,
            mode,
            if_sequence,
            check_write_id(write_id),
            AnnotationArguments(labels, categories, subtopics),
            has_vector,
        )
        return self._committer.commit(request)

    def upsert_records(
        self,
        records: Iterable[Mapping[str, Any]],
        *,
        labels: LabelsLike | None = None,
        categories: NumbersLike = None,
        subtopics: NumbersLike = None,
        mode: WriteMode = "upsert",
    ) -> WriteResult:
        """Insert or replace points that are given one by one, and return the last result.

        records: mappings with the keys `id` and `vector`, and perhaps `payload`. All other keys are
            attributes. They are written 1,000 at a time, each thousand as a whole or not at all. If
            the index was built with `vectors_optional`, a record without `vector`, or with None, is
            a point without a vector.
        labels, categories, subtopics: as for `upsert`, with one row or number for each record.
        mode: as for `upsert`.

        The result has the number of all records. Raises the errors of `upsert`, and
        `InvalidArgumentError` with the field `id` for a record without one.
        """
        result, rows = WriteResult(self.generation, self.sequence, 0), 0
        annotations = AnnotationArguments(labels, categories, subtopics)
        if annotations.has_any:
            records = list(records)
            annotations = annotations.checked(len(records))
        source = iter(records)
        while block := list(islice(source, _RECORDS_AT_ONCE)):
            part = annotations.cut(rows, rows + len(block))
            result = self.upsert(**arguments_of_records(block), **part, mode=mode)
            rows += result.rows
        return replace(result, rows=rows)

    def delete(
        self,
        ids: IdsOf = None,
        *,
        filter: FilterLike = None,  # noqa: A002  # the word that users expect
        if_sequence: int | None = None,
        write_id: str = "",
    ) -> WriteResult:
        """Delete points by their ids, by a filter, or those that pass both.

        ids: one id or at most 100,000 ids. Ids that no point has are ignored.
        filter: conditions as in `query`.
        if_sequence, write_id: as for `upsert`.

        The result has the number of points that were deleted. Either all are deleted or none.
        Raises `InvalidArgumentError`, `ConditionFailedError`, `StorageFullError` and
        `IndexChangedError`.
        """
        condition = None if filter is None else as_filter(filter)
        if filter is not None and condition is None:
            raise invalid("filter", "must have a condition: the points that pass it are deleted")
        return self._committer.commit(Delete(ids, condition, if_sequence, check_write_id(write_id)))

    def add_attributes(
        self,
        attributes: Mapping[str, Any],
        *,
        ids: IdsOf = None,
        attribute_types: AttributeTypes = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Self:
        """Give the points further attributes, and return this collection.

        attributes: values by the name of an attribute that the index does not have, as for `build`.
        ids: ids of m points, whose m values `attributes` has. Other points have no value. Before
            the first write, `ids` may be left out, as with an `Index`, if all points have vectors.
        attribute_types: types of some attributes, as for `build`.
        progress: called with a `divgrpc.types.Progress` several times.

        The result is a new generation, and later writes may have the new attributes. Queries and
        writes go on meanwhile; before the first write, writes wait. Numbers of writes and answers
        stay the same. A point that is written while the call runs gets its value too. Deleted
        points are removed from the disk, which needs room for both generations.

        Raises `InvalidArgumentError` with the field `ids`, `attributes` or `attributes.NAME`,
        `UnfitIndexError` if no point has a vector, and the errors of `compact` with `vacuum`.
        """
        count = self.engine.rows if ids is None else len(as_ids(ids))
        columns = columns_of(attributes, count, attribute_types)

        def pass_on(values: AttributeValues) -> None:
            values.append_all(columns, count, ids)

        self._committer.add_attributes(columns, pass_on, progress)
        return self

    def compact(
        self, progress: Callable[[Progress], None] | None = None, *, vacuum: bool = False
    ) -> bool:
        """Merge all writes into the arrays that searches read, and return whether there were any.

        Merges happen by themselves in the background. Answers stay the same.

        progress: called with a `divgrpc.types.Progress` several times.
        vacuum: also remove deleted and replaced points from the disk. All points are copied into a
            new generation; queries and writes go on meanwhile. Numbers of writes and answers stay
            the same. The disk needs room for both generations.

        Raises `StorageFullError`, `IndexChangedError` if the index was built anew,
        `StorageInUseError` after `close`, and, with `vacuum`, `BuildUnderWayError` during a build.
        """
        if vacuum and self._committer.vacuum(progress):
            return True
        return self._committer.merge(progress)

    def retrain(self, progress: Callable[[Progress], None] | None = None) -> bool:
        """Build the index anew from its points, and return whether it was.

        Build fits hash functions, cells and searches to the points that it has. When most points
        are new, others may suit them better. The result is a new generation, as `build` with the
        same parameters would make it of these points. Queries and writes go on meanwhile, and
        numbers of writes stay the same. Deleted points are removed from the disk, which needs room
        for both generations. Nothing happens if nothing was written since Build, or if no point has
        a vector.

        progress: called with a `divgrpc.types.Progress` several times.

        Raises the errors of `compact` with `vacuum`, and `UnfitIndexError` if Build trained a label
        model and no point has a label.
        """
        return self._committer.retrain(progress)

    def close(self) -> None:
        """Wait for a merge that is under way, and let other processes write to the index."""
        self._committer.close()
