"""One shard: answers the messages of a router from the arrays of its points."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.columns.filters import FilterReader
from divgrpc.columns.reader import RowReader
from divgrpc.errors import LimitExceededError, UnsupportedError, invalid
from divgrpc.kernels import records
from divgrpc.kernels.registers import slots_of
from divgrpc.parameters import BuildParameters
from divgrpc.search.passing import PassingRows
from divgrpc.sharding import conditions, layouts, questions
from divgrpc.sharding.cutting import columns_of_rows
from divgrpc.sharding.hashed_points import PointHasher
from divgrpc.sharding.hashed_query import HashedQuery
from divgrpc.sharding.layouts import (
    ALL,
    CELLS_BY_CODE,
    SCAN,
    TABLES,
    VALUE_BYTES_MAX,
    VECTOR_BYTES_MAX,
)
from divgrpc.sharding.limited_cache import LimitedCache
from divgrpc.sharding.messages import Buffer, divide, join
from divgrpc.sharding.part_points import PartPoints
from divgrpc.sharding.searcher import NO_POINTS, ShardHits, ShardSearcher, nearest_places
from divgrpc.storage.generations import Generation
from divgrpc.storage.manifest import Manifest
from divgrpc.types import IntArray
from divgrpc.vectors import Rows, SparseRows

# Names of the arrays that the operation "measure" reads beside ids.
CODE_ARRAYS: Final = frozenset(
    slot.name
    for record in (records.Hashing, records.Tables, records.Cells)
    for slot in slots_of(record)
)
# Maximum number of bytes of filters and of the rows that pass them, which are kept.
_FILTER_BYTES_MAX: Final = 64 << 20
# Points that pass a filter are counted one by one, instead of by flags of all points, if there are
# so many times as many points.
_FEW_RATIO: Final = 8
# A sparse value and its column.
_VALUE_BYTES: Final = 8


class ShardCore:
    """Answers messages from the points of one shard. One thread at a time may use it."""

    def __init__(self, generation: Generation) -> None:
        """Serve a part of a generation, as `divgrpc.sharding.cutting.cut` makes it."""
        manifest = generation.manifest
        self.rows, self._dims = manifest.rows, manifest.dims
        self._arrays = generation.arrays
        self._n_cells = len(self._arrays.get("cell_centres", ()))
        self._searcher = ShardSearcher(
            generation.arrays, manifest.parameters, manifest.dims, self.rows
        )
        self._hasher = PointHasher(self._searcher, generation.arrays, self.rows)
        self._reader = RowReader(generation.arrays, self.rows, manifest.attributes)
        self._filters = FilterReader(
            generation.arrays, self.rows, self._reader.ids, manifest.attributes
        )
        self._stored = PartPoints(manifest, generation.arrays, self.rows)
        self._passing: LimitedCache[PassingRows] = LimitedCache(_FILTER_BYTES_MAX)
        # The last restriction, and the points that meet it.
        self._last: tuple[tuple[bytes, bytes], PassingRows | None] | None = None
        self._description = layouts.describe_reply(
            manifest.attributes,
            has_texts=manifest.id_kind == "string",
            has_payloads=manifest.has_payloads,
        )
        self._counts = layouts.count_reply(self._description)
        self._values = layouts.values_reply(self._description)

    @classmethod
    def of_codes(
        cls, arrays: Mapping[str, Array], parameters: BuildParameters, dims: int
    ) -> "ShardCore":
        """Return a shard that answers the operation "measure" only.

        arrays: those of `CODE_ARRAYS` that the points have, and `ids` (m,) int64 of all points,
            which ascend.
        """
        manifest = Manifest(
            generation=0, rows=len(arrays["ids"]), dims=dims, points="dense", nonzeros=0,
            widest_row=dims, parameters=parameters, code_bits=0, n_probes=1, auto_search="exact",
            search_costs=(), choices=(), warnings=(), arrays={},
        )  # fmt: skip
        return cls(Generation(manifest, dict(arrays)))

    def ask(self, name: str, message: Buffer) -> bytes:
        """Answer one or more messages that `messages.join` has joined, with as many replies.

        Raises `UnsupportedError` for an unknown name, and `InvalidArgumentError` for a message that
        is malformed or does not fit the shard.
        """
        operations = self._operations
        answer = operations.get(name)
        if answer is None:
            known = ", ".join(operations)
            raise UnsupportedError("name", f"must be one of {known}, got {name!r:.80}")
        return join([answer(part) for part in divide(message)])

    @property
    def _operations(self) -> dict[str, Callable[[Buffer], bytes]]:
        # If the shard kept its own methods, its files would stay mapped until garbage is collected.
        return {
            "find": self._find,
            # The same for a shard that is asked again.
            "more": self._find,
            "fetch": self._fetch,
            "count": self._count,
            "describe": self._describe,
            "get": self._stored.get,
            "scroll": self._scroll,
            "topics": self._topics,
            "categories": self._categories,
            "labels": self._labels,
            "measure": self._hasher.answer,
        }

    def _find(self, message: Buffer) -> bytes:
        request = layouts.FIND_REQUEST.unpack(message)
        numbers = request["numbers"].tolist()
        questions.check_numbers(numbers)
        questions.check_arrays(request, self._n_cells)
        query = self._query(request)
        passing = self._rows_that_pass(request)
        hits = self._search(request, numbers, query, passing)
        ids = self._searcher.keys_of(hits.rows)
        vectors = min(numbers[layouts.VECTORS], len(ids))
        nearest = nearest_places(ids, hits.distances, vectors)
        columns: dict[str, Array] = {
            "numbers": np.array([hits.total, len(ids), hits.n_probes], np.int64),
            "ids": ids,
            "codes": hits.codes,
            "distances": hits.distances,
            "tags": hits.tags,
            "nearest": nearest,
        }
        rows = hits.rows[nearest]
        reply = layouts.FIND_REPLY.pack(columns | self._vectors(rows))
        if not len(request["attributes"]):
            return reply
        values = {"ids": ids[nearest], **self._stored.values_at(rows, request["attributes"])}
        size = sum(column.nbytes for column in values.values())
        return join([reply, self._values.pack(values if size <= VALUE_BYTES_MAX else {})])

    def _search(
        self,
        request: Mapping[str, Array],
        numbers: list[int],
        query: Rows,
        passing: PassingRows | None,
    ) -> ShardHits:
        """Find points as a request with these numbers says."""
        how, most = numbers[layouts.HOW], numbers[layouts.ROWS]
        if how != ALL:
            questions.check_search(self._arrays, self.rows, how, len(request["margins"]))
        if not (self.rows if passing is None else passing.count):
            # Kernels need a point that may be hits.
            return NO_POINTS
        if how == ALL:
            return self._searcher.nearest(query, passing, most)
        hashed = HashedQuery(query, request["margins"], request["cells"], request["bases"], -1, {})
        hamming = bool(numbers[layouts.HAMMING])
        if how == SCAN:
            return self._searcher.by_scan(
                hashed, passing, most, hamming=hamming, uniform=bool(numbers[layouts.UNIFORM]),
                seed=numbers[layouts.SEED],
            )  # fmt: skip
        if how == TABLES:
            return self._searcher.in_tables(
                hashed, passing, numbers[layouts.PROBES], least=numbers[layouts.MIN_POINTS],
                enough=numbers[layouts.ENOUGH], most=most, seed=numbers[layouts.SEED],
            )  # fmt: skip
        by_code = how == CELLS_BY_CODE
        return self._searcher.in_cells(hashed, passing, most, by_code=by_code, hamming=hamming)

    def _query(self, request: Mapping[str, Array]) -> Rows:
        """Return the query of a request, one row."""
        dense, indices, values = (request[name] for name in ("dense", "indices", "values"))
        if len(dense):
            if len(dense) != self._dims:
                raise invalid("message", f"must have {self._dims} numbers, got {len(dense)}")
            # Kernels are compiled for writable queries, and a message is read-only.
            row: Rows = dense.reshape(1, -1).copy()
            return row
        # Differences of columns could overflow.
        fits = len(indices) == len(values) and (indices[1:] > indices[:-1]).all()
        if not fits or (len(indices) and (indices[0] < 0 or indices[-1] >= self._dims)):
            raise invalid("message", "must have ascending columns of the index")
        indptr = np.array([0, len(indices)], np.int64)
        return SparseRows(indptr, indices.copy(), values.copy(), self._dims)

    def _rows_that_pass(self, request: Mapping[str, Array]) -> PassingRows | None:
        """Return the points that meet the restriction of a request, kept for the next one."""
        condition, excluded = request["filter"].tobytes(), request["exclude"]
        key = condition, excluded.tobytes()
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        passing = self._rows_that_pass_all(condition)
        if len(excluded):
            every = PassingRows(np.ones(self.rows, np.bool_)) if passing is None else passing
            removed = self._reader.ids.rows_of_keys(excluded)
            passing = every.without(removed[removed >= 0])
        self._last = key, passing
        return passing

    def _rows_that_pass_all(self, condition: bytes) -> PassingRows | None:
        """Return the points that pass filters, kept because many requests repeat them."""
        passing = self._passing.get(condition)
        if passing is not None:
            return passing
        filters = conditions.decode(condition)
        if len(filters) == 1:
            passing = PassingRows(self._filters.flags(filters[0]))
        for part in filters if passing is None else ():
            rows = self._rows_that_pass_all(conditions.encode([part]))
            assert rows is not None  # noqa: S101  # there is a filter
            passing = rows if passing is None else rows.within(passing)
        if passing is not None:
            self._passing.put(condition, passing, len(condition) + passing.bytes_max)
        return passing

    def _vectors(self, rows: npt.NDArray[np.int32]) -> dict[str, Array]:
        """Return the vectors of points and what selectors read beside them."""
        points, records = self._searcher.points, self._searcher.point_records
        columns: dict[str, Array] = {}
        _check_bytes(points, rows)
        if isinstance(points, SparseRows):
            part = points[rows]
            columns |= {"indptr": part.indptr, "indices": part.indices, "values": part.values}
            columns["squares"] = records.squares[rows]
        else:
            columns["vectors"] = points[rows]
        if len(records.inverse_lengths):
            columns["inverse_lengths"] = records.inverse_lengths[rows]
        return columns

    def _fetch(self, message: Buffer) -> bytes:
        ids: IntArray = layouts.FETCH_REQUEST.unpack(message)["ids"]
        rows = self._rows_of(ids)
        if (rows < 0).any():
            raise invalid("message", "has an id that no point of the shard has")
        return layouts.FETCH_REPLY.pack(self._vectors(rows.astype(np.int32)))

    def _rows_of(self, ids: IntArray) -> IntArray:
        """Return the row of each id, -1 for an id that no point of the shard has."""
        if len(np.unique(ids)) < len(ids):
            raise invalid("message", "has an id twice")
        return self._reader.ids.rows_of_keys(ids)

    def _count(self, message: Buffer) -> bytes:
        request = layouts.COUNT_REQUEST.unpack(message)
        attributes, passing = request["attributes"], self._rows_that_pass(request)
        if passing is None:
            if not len(attributes):
                raise invalid("message", "must have a filter or attributes")
            passing = PassingRows(np.ones(self.rows, np.bool_))
        columns: dict[str, Array] = {
            "count": np.array([passing.count], np.int64),
            "cells": self._count_cells(passing),
        }
        if len(attributes) and passing.count:
            columns |= self._stored.values_of(passing, attributes)
        return self._counts.pack(columns)

    def _count_cells(self, passing: PassingRows) -> Array:
        """Return the number (C,) of points in each cell; empty without cells."""
        order = self._searcher.order
        if _FEW_RATIO * passing.count > self.rows:
            return passing.by_code(order).cells
        return order.count(passing.by_row.rows)

    def _scroll(self, message: Buffer) -> bytes:
        passing = self._rows_that_pass(layouts.SCROLL_REQUEST.unpack(message))
        return self._stored.scroll(message, passing)

    def _topics(self, message: Buffer) -> bytes:
        passing = self._rows_that_pass(layouts.TOPICS_REQUEST.unpack(message))
        return self._stored.count_topics(passing)

    def _categories(self, message: Buffer) -> bytes:
        request = layouts.CATEGORIES_REQUEST.unpack(message)
        rows, passing = self._rows_of(request["ids"]), self._rows_that_pass(request)
        rows = rows[rows >= 0]
        return self._stored.categories_at(rows if passing is None else rows[passing.flags[rows]])

    def _labels(self, message: Buffer) -> bytes:
        passing = self._rows_that_pass(layouts.LABELS_REQUEST.unpack(message))
        return self._stored.count_labels(passing)

    def _describe(self, message: Buffer) -> bytes:
        ids: IntArray = layouts.DESCRIBE_REQUEST.unpack(message)["ids"]
        rows = self._rows_of(ids)
        is_here = rows >= 0
        columns = columns_of_rows(self._reader.attributes, self._arrays, rows[is_here])
        return self._description.pack(columns | {"ids": ids[is_here]})


def _check_bytes(points: Rows, rows: npt.NDArray[np.int32]) -> None:
    """Raise an error if the vectors of points take too many bytes.

    A router knows how many bytes dense points take, but not which sparse ones are longer than most.
    """
    if not isinstance(points, SparseRows):
        if len(rows) * points[:1].nbytes > VECTOR_BYTES_MAX:
            raise invalid("message", f"asks for {len(rows)} points, which are too many")
        return
    values = int((points.indptr[rows + 1] - points.indptr[rows]).sum())
    if values * _VALUE_BYTES > VECTOR_BYTES_MAX:
        raise LimitExceededError(
            f"candidates_limit must be smaller on several shards: the vectors of {len(rows):,}"
            f" candidates on one shard take more than {VECTOR_BYTES_MAX >> 20} MiB"
        )
