"""The part of the engine that reads stored points: by id, or all in the order of their ids.

It also reads what evaluations need of stored points.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.columns.annotations import INDICES, INDPTR, annotations_in, bytes_of_rows, take
from divgrpc.columns.quotas import check_attributes
from divgrpc.columns.reader import RowReader, ValueNumbers
from divgrpc.errors import invalid
from divgrpc.metrics import (
    Labels,
    ListDistances,
    PointCategories,
    Topics,
    list_distances,
)
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.quotas.bounds import QuotaColumn
from divgrpc.search.arrays import Answers
from divgrpc.search.passing import PassingRows
from divgrpc.search.quota_candidates import QuotaValues
from divgrpc.search.quota_population import Population
from divgrpc.search.reports import report_of, with_texts
from divgrpc.search.searcher import Searcher
from divgrpc.storage.manifest import Manifest
from divgrpc.types import FloatArray, IntArray
from divgrpc.types.quotas import Quota, Quotas
from divgrpc.types.records import (
    AttributeValue,
    IdArray,
    Parts,
    PointLabels,
    Records,
    SparseVectors,
)
from divgrpc.vectors import Rows, RowsLike, SparseRows, query_rows

# Row numbers, or vectors.
RowsT = TypeVar("RowsT", IntArray, Rows)
ResultT = TypeVar("ResultT")
# Number of points that are tested at once for a page of the points that pass a filter.
_SCROLLED_ROWS: Final = 65_536


class StoredPoints:
    """The stored points of an index; `divgrpc.engine.Engine` sets the fields.

    manifest: description of the generation.
    generation, rows, dims: the generation number, the number of points, and their dimensions.
    sequence: number of the last write that is visible.
    """

    manifest: Manifest
    generation: int
    rows: int
    dims: int
    sequence: int
    _arrays: dict[str, Array]
    _searcher: Searcher
    _reader: RowReader
    _has_texts: bool
    # The points that exist; None if every row has one.
    _visible: PassingRows | None

    @property
    def _points(self) -> Rows:
        return self._searcher.points

    def numbers_of(self, ids: IntArray | list[str], field: str) -> IntArray:
        """Return the ids that `topics` has for ids of callers: row numbers if the ids are texts.

        Raises `InvalidArgumentError` with the field `field` for ids of another kind, and for a text
        that no point has.
        """
        if not self._has_texts and not isinstance(ids, list):
            return ids
        rows = self.rows_of_ids(ids, field)
        if len(unknown := np.flatnonzero(rows < 0)):
            raise invalid(field, f"has {ids[unknown[0]]!r}, which is no id of the index")
        return rows

    def rows_of(self, ids: IdArray) -> IntArray:
        """Return the row numbers of results, in an array of the shape of `ids`; -1 for padding."""
        if not self._has_texts:
            return self._reader.ids.rows_of_keys(ids.astype(np.int64))
        rows = np.full(ids.shape, -1)
        filled = ids != ""
        rows[filled] = self._reader.ids.rows_of(ids[filled])
        return rows

    def open_rows(self, searched: PassingRows | None) -> PassingRows | None:
        """Return the points that a searcher may return; None for all rows.

        searched: the points that pass a filter and that searches see; None without a filter.
        """
        return self._visible if searched is None else searched

    def rows_of_ids(self, ids: Sequence[int] | Sequence[str] | IdArray, field: str) -> IntArray:
        """Return the row (m,) of each id, -1 for an id that no point has.

        Raises `InvalidArgumentError` with the field `field` for ids of another kind.
        """
        return self._reader.ids.rows_of(ids, field)

    def rows_of_keys(self, keys: IntArray) -> IntArray:
        """Return the row (m,) of each key, -1 for a key that no point has.

        A key is an integer id, or stands for a text id.
        """
        return self._reader.ids.rows_of_keys(keys)

    def keys_of_results(self, ids: IntArray) -> IntArray:
        """Return the keys (m,) of results of a searcher, which are rows if ids are texts."""
        return self._reader.ids.keys_of_rows(ids) if self._has_texts else ids

    def rows_to_compare(self, rows: IntArray) -> IntArray:
        """Return the rows in the searcher of those of `rows` (m,) that have a vector."""
        flags = self._has_vector(rows)
        return rows if flags is None else rows[flags]

    @property
    def has_sparse_points(self) -> bool:
        """Whether the points are sparse."""
        return isinstance(self._searcher.points, SparseRows)

    def rows_like(self, ids: Sequence[int] | Sequence[str] | IdArray) -> IntArray:
        """Return the rows (nq,) of the points with these ids, for `answer_like`.

        Raises `InvalidArgumentError` with the field `like` for an id that no point has.
        """
        most = LIMITS["query_rows_max"]
        if not 1 <= len(ids) <= most:
            raise invalid("like", f"must be 1 to {most} ids, got {len(ids)}")
        rows = self.rows_of_ids(ids, "like")
        for place in np.flatnonzero(rows < 0)[:1].tolist():
            raise invalid("like", f"has {ids[place]!r}, which is no id of the index")
        return rows

    def answer_each(
        self,
        answer: Callable[[RowsT], ResultT],
        rows: RowsT,
        *,
        is_block: bool = False,  # noqa: ARG002  # an engine with shards reads it
    ) -> list[ResultT]:
        """Return the answer for each of some rows, which are passed on one at a time.

        is_block: whether there are no more rows than `rows_together` allows.
        """
        return [answer(rows[place : place + 1]) for place in range(len(rows))]

    def find(self, ids: Sequence[int] | Sequence[str] | IdArray) -> IntArray:
        """Return the rows of the points with these ids, in the order of `ids`, for `records`.

        Ids that no point has are left out. Raises `InvalidArgumentError` with the field `ids` for
        too many ids, and for ids of another kind than the index has.
        """
        if len(ids) > LIMITS["get_rows_max"]:
            raise invalid("ids", f"must be at most {LIMITS['get_rows_max']}, got {len(ids)}")
        rows = self.rows_of_ids(ids, "ids")
        return rows[rows >= 0]

    def vectors_of(self, ids: Sequence[int] | Sequence[str] | IdArray) -> Rows:
        """Return the vectors of the points with these ids, at most 10,000, in their order.

        Under cosine they have unit length. Raises `InvalidArgumentError` with the field `ids` for
        an id that no point has, and for a point without a vector.
        """
        most = LIMITS["get_rows_max"]
        if len(ids) > most:
            raise invalid("ids", f"must be at most {most}, got {len(ids)}")
        rows = self.rows_of_ids(ids, "ids")
        for place in np.flatnonzero(rows < 0)[:1].tolist():
            raise invalid("ids", f"has {ids[place]!r}, which is no id of the index")
        has_vector = self._has_vector(rows)
        if has_vector is not None:
            for place in np.flatnonzero(~has_vector)[:1].tolist():
                raise invalid("ids", f"has {ids[place]!r}, whose point has no vector")
        return self.vectors_at(rows)

    def vectors_at(self, rows: IntArray) -> Rows:
        """Return the vectors of the points in `rows` (m,), all of which have one."""
        vectors = self._vectors(rows)
        if isinstance(vectors, SparseVectors):
            return SparseRows(vectors.indptr, vectors.indices, vectors.values, vectors.dims)
        return vectors

    def quota_values(
        self, quotas: Quotas, ids: Sequence[int] | Sequence[str] | IdArray, k: int
    ) -> QuotaValues:
        """Return the values of the points with these ids for quotas on `k` picks.

        Every id has a point. Raises `InvalidArgumentError` for quotas that do not fit the
        attributes of the index.
        """
        quotas = check_attributes(quotas, self._reader.attributes, k)
        rows = self.rows_of_ids(ids, "ids")
        columns = {name: QuotaColumn(*self._numbers_at(name, rows)) for name in quotas.names}
        return QuotaValues(quotas, columns)

    def _numbers_at(self, name: str, rows: IntArray) -> ValueNumbers:
        """Return the values of an attribute for `rows` (m,), as numbers."""
        return self._reader.numbers(name, rows)

    def _numbers(self, name: str, rows: IntArray) -> ValueNumbers:
        """Return the values of an attribute for rows (m,) of the searcher, as numbers."""
        return self._numbers_at(name, rows)

    def _population(self, quotas: Sequence[Quota], every: PassingRows) -> Population:
        """Return the points in `every` with the values of the attributes of quotas."""
        return Population.of_rows(quotas, every, self._numbers, self._searcher.keys_of)

    def _without_forbidden(self, quotas: Quotas, every: PassingRows) -> PassingRows:
        """Return those of the points in `every`, at least one, without a forbidden value."""
        return self._population(quotas.quotas, every).without_forbidden(quotas)

    def following(
        self, key: int, count: int, passing: PassingRows | None = None
    ) -> tuple[IntArray, IntArray]:
        """Return the rows and the keys of the next `count` points in the order of their keys.

        key: the key after which the points begin; -1 for the first points. A key is an integer id,
            or the key of a text id.
        passing: the points that pass a filter; None stands for all points.

        Both arrays (m,) are empty after the last point.
        """
        if passing is None:
            return self._reader.ids.after(key, count)
        parts: list[tuple[IntArray, IntArray]] = [self._reader.ids.after(key, 0)]
        while count > 0:
            rows, keys = self._reader.ids.after(key, _SCROLLED_ROWS)
            if not len(rows):
                break
            kept, key = np.flatnonzero(passing.flags[rows])[:count], int(keys[-1])
            parts.append((rows[kept], keys[kept]))
            count -= len(kept)
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    def bytes_of_rows(self, rows: IntArray, parts: Parts) -> IntArray:
        """Return an upper bound of the bytes that the record of each row takes in a message."""
        sizes = self._reader.bytes_of_rows(rows, attributes=parts.attributes, payload=parts.payload)
        if parts.vectors:
            points = self._points
            if isinstance(points, SparseRows):
                sizes += 8 * (points.indptr[rows + 1] - points.indptr[rows]) + 8
            else:
                sizes += 4 * self.dims
        if parts.labels:
            sizes += self._annotation_bytes(rows)
        return sizes

    def records(self, rows: IntArray, parts: Parts) -> Records:
        """Return the points in `rows` (m,)."""
        vectors = self._vectors(rows) if parts.vectors else None
        has_vector = self._has_vector(rows) if parts.vectors else None
        if has_vector is not None and isinstance(vectors, np.ndarray):
            vectors[~has_vector] = np.nan
        annotations = self._annotations(rows) if parts.labels else {}
        return Records(
            ids=self._reader.ids.of_rows(rows),
            vectors=vectors,
            has_vector=has_vector,
            attributes=self._reader.values(rows) if parts.attributes else {},
            payloads=self._reader.payloads(rows) if parts.payload else (),
            generation=self.generation,
            sequence=self.sequence,
            labels=self._labels_in(annotations),
            categories=annotations.get("categories"),
            subtopics=annotations.get("subtopics"),
        )

    def _annotations(self, rows: IntArray) -> Mapping[str, Array]:
        """Return the label sets, categories and sub-topics of `rows` (m,), by array name."""
        return take(annotations_in(self._arrays), rows)

    def _annotation_bytes(self, rows: IntArray) -> IntArray:
        """Return an upper bound of the bytes that the annotations of each row take in a message."""
        return bytes_of_rows(annotations_in(self._arrays), rows)

    def _labels_in(self, annotations: Mapping[str, Array]) -> PointLabels | None:
        section = self.manifest.labels
        if section is None or INDPTR not in annotations:
            return None
        return PointLabels(annotations[INDPTR], annotations[INDICES], section.label_count)

    def attribute_values(
        self, rows: IntArray, names: Sequence[str]
    ) -> dict[str, tuple[AttributeValue, ...]]:
        """Return the values of some attributes for the points in `rows` (m,), by name."""
        if not names:
            return {}
        values = self._reader.values(rows)
        return {name: values[name] for name in names}

    def _has_vector(self, rows: IntArray) -> npt.NDArray[np.bool_] | None:  # noqa: ARG002  # see the docstring
        """Return whether each of `rows` (m,) has a vector; None if all have."""
        return None

    def _vectors(self, rows: IntArray) -> FloatArray | SparseVectors:
        points = self._points
        if isinstance(points, SparseRows):
            part = points[rows]
            return SparseVectors(part.indptr, part.indices, part.values, self.dims)
        return points[rows]

    @functools.cached_property
    def topics(self) -> Topics:
        """Categories and sub-topics of the points, for evaluations; empty if there are none."""
        columns = {name: self._arrays.get(name) for name in ("categories", "subtopics")}
        # Without stored ids, the id of a point is its row number.
        ids = self._searcher.ids if len(self._searcher.ids) else np.arange(self.rows)
        return Topics.of_categories(Labels.of(**columns, ids=ids))

    def topics_within(self, passing: PassingRows | None) -> Topics:
        """Return the topics of the categories of the points that pass; None stands for all."""
        return self.topics if passing is None else self.topics.within(passing.flags)

    def topics_with(self, topics: Topics, ids: IntArray) -> Topics:  # noqa: ARG002  # all are known
        """Return topics of `topics_within` such that they judge results with these ids (nq, k)."""
        return topics

    def categories_of(self, ids: IntArray) -> PointCategories:  # noqa: ARG002  # all are known
        """Return the categories and sub-topics of at least the points with these ids.

        ids: of any shape, as `numbers_of` and `answer_one_by_one` return them.
        """
        return self.topics.labels

    def flags_of(self, ids: IntArray, passing: PassingRows, field: str) -> npt.NDArray[np.bool_]:
        """Return whether the points with these ids (m,) pass; `ids` are as `numbers_of` returns.

        Raises `InvalidArgumentError` with the field `field` for an id that no point has.
        """
        return passing.flags[self.topics.labels.rows(ids, field)]

    def rows_together(
        self,
        parameters: QueryParameters,  # noqa: ARG002  # see the docstring
        queries: RowsLike,  # noqa: ARG002
        passing: PassingRows | None = None,  # noqa: ARG002
        *,
        as_points: bool = False,  # noqa: ARG002
    ) -> int:
        """Return how many of the query rows can be answered one by one in a call, at least 1.

        The arguments are those of `Engine.answer`. Shards send points for all rows at once.
        """
        return LIMITS["query_rows_max"]

    def run(self, call: Callable[[Self], ResultT]) -> ResultT:
        """Return the result of a call; a divided index runs it until all replies have come."""
        return call(self)

    def run_timed(self, call: Callable[[Self], ResultT]) -> tuple[ResultT, float]:
        """Do what `run` does; return the CPU time of other processes too, in seconds."""
        return call(self), 0.0

    def distances(self, queries: RowsLike, ids: IdArray) -> ListDistances:
        """Measure distances of results `ids` (nq, k) to their queries and to one another."""
        query_points = query_rows("queries", queries, self.dims, self._searcher.metric)
        # Evaluations pass the numbers of `answer_one_by_one`, which are rows if ids are texts.
        has_texts = ids.dtype.kind == "O"
        places = self.rows_of(ids) if has_texts else self.topics.labels.rows(ids.astype(np.int64))
        return self.distances_of_rows(query_points, places)

    def distances_of_rows(self, queries: Rows, places: IntArray) -> ListDistances:
        """Measure distances of results in the rows `places` (nq, k) as `distances` does.

        queries: rows that are prepared for the metric.
        """
        points, matrix = (
            rows.matrix if isinstance(rows, SparseRows) else rows
            for rows in (self._points, queries)
        )
        return list_distances(points, matrix, places, self._searcher.metric)

    def _columns_of(self, answers: Answers, parameters: QueryParameters) -> dict[str, Any]:
        """Return the columns of a result that have ids, and those that stored values fill."""
        copies, offsets = _concatenate(answers.copies)
        columns: dict[str, Any] = {
            "ids": self._ids_of(answers.ids),
            "collapsed_ids": self._ids_of(copies),
            "collapsed_offsets": offsets,
            "explanations": tuple(answers.explanations),
        }
        if self._has_texts:
            explanations = (with_texts(one, self._ids_of) for one in answers.explanations)
            columns["explanations"] = tuple(explanations)
        # Routers read nothing of points for columns that the index does not have.
        has_values = bool(self._reader.attributes)
        if parameters.with_report:
            columns["report"] = report_of(answers, self._attributes_of if has_values else None)
        if parameters.with_attributes:
            keys = answers.ids[answers.ids >= 0]
            columns["attributes"] = self._attributes_of(keys) if has_values else {}
        if parameters.with_payload:
            rows = self._rows_of_keys(answers.ids[answers.ids >= 0])
            columns["payloads"] = self._reader.payloads(rows) or (b"",) * len(rows)
        return columns

    def _ids_of(self, keys: IntArray) -> IdArray:
        return self._reader.ids.of_results(keys) if self._has_texts else keys

    def _rows_of_keys(self, keys: IntArray) -> IntArray:
        return keys if self._has_texts else self._reader.ids.rows_of_keys(keys)

    def _attributes_of(self, keys: IntArray) -> Mapping[str, tuple[AttributeValue, ...]]:
        return self._reader.values(self._rows_of_keys(keys))


def _concatenate(parts: list[IntArray]) -> tuple[IntArray, IntArray]:
    """Return the concatenated `parts`, and the offsets of the parts (len(parts) + 1,).

    If `parts` is empty, both arrays are empty.
    """
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if not any(map(len, parts)):
        # Most results stand for no near-copies.
        return np.empty(0, np.int64), np.zeros(len(parts) + 1, np.int64)
    return np.concatenate(parts), np.cumsum([0, *map(len, parts)], dtype=np.int64)
