"""An engine whose points are on shards, and whose methods raise where replies are missing.

A row is the key of a point here: its integer id, or the key of its text id. A searcher numbers the
points that it has gathered.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from divgrpc.arrays import Array, read_only
from divgrpc.columns.annotations import INDPTR
from divgrpc.columns.ids import as_integers, encode_texts, is_texts
from divgrpc.columns.reader import RowReader
from divgrpc.engine import Engine
from divgrpc.errors import DivgrpcError, IndexDamagedError, invalid
from divgrpc.labels.prediction import LabelSets
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.search.arrays import Answers
from divgrpc.search.passing import PassingRows
from divgrpc.search.reports import ids_of
from divgrpc.sharding import checks, layouts
from divgrpc.sharding.finding import PassingSomewhere, Restriction, columns_of
from divgrpc.sharding.gathering import GatheringSearcher
from divgrpc.sharding.messages import Buffer, Layout
from divgrpc.sharding.part_points import PartPoints
from divgrpc.sharding.rounds import ShardFaultError, Transcript, UnansweredError
from divgrpc.storage.generations import Generation
from divgrpc.stored_points import RowsT
from divgrpc.types import FloatArray, IntArray, QueryResult
from divgrpc.types.filters import Filter
from divgrpc.types.records import IdArray, Parts, Records, SparseVectors
from divgrpc.vectors import SparseRows

_LABELS: Final = Parts(vectors=False, attributes=False, payload=False, labels=True)
# A router has no points.
_NO_POINTS: Final[dict[str, Array]] = {"ids": read_only(np.empty(0, np.int64))}
_UNREADABLE: Final = "shards have sent columns of points that cannot be read"
Ids: TypeAlias = Sequence[int] | Sequence[str] | IdArray


class GatheringEngine(Engine):
    """An engine whose points are on shards. One thread at a time may use it.

    Its methods raise `UnansweredError` where the transcript lacks replies of shards.
    """

    is_divided = True

    def __init__(
        self,
        generation: Generation,
        rows: Sequence[int],
        name: str = "",
        folder: Path | None = None,
    ) -> None:
        """Take what a router reads of a generation; see `Engine` for `name` and `folder`.

        rows: number of points of each shard.
        """
        self._shard_rows = rows
        whole = replace(generation, arrays=generation.arrays | _NO_POINTS)
        super().__init__(whole, name, folder)
        self._description = layouts.describe_reply(
            self.manifest.attributes, has_texts=self._has_texts, has_payloads=self._has_payloads
        )
        self._stored = layouts.get_reply(self._description, tuple(self.manifest.arrays))
        self._widths = {"vectors": self.dims, "sizes": 1 + len(Parts._fields)}
        # The sizes of points by their keys, as far as replies to the current call have them.
        self._sizes: dict[int, list[int]] = {}

    def _make_searcher(self, generation: Generation) -> GatheringSearcher:
        manifest = generation.manifest
        # A sparse value has a column too.
        value_bytes = 4 if manifest.points == "dense" else 8
        self._gathering = GatheringSearcher(
            generation.arrays, manifest.parameters, manifest.dims, self._shard_rows,
            tuple(manifest.arrays),
            row_bytes=value_bytes * -(-manifest.nonzeros // max(1, manifest.rows)),
        )  # fmt: skip
        return self._gathering

    @property
    def transcript(self) -> Transcript:
        """The replies that are known for the current call."""
        return self._gathering.transcript

    @transcript.setter
    def transcript(self, transcript: Transcript) -> None:
        """Begin a call, or begin it anew, with these replies."""
        self._gathering.transcript = transcript
        self._sizes = {}

    def passing(
        self,
        condition: Filter | None,
        exclude_ids: Ids = (),
    ) -> PassingRows | None:
        """Return the points that pass a filter and have none of `exclude_ids`.

        Raises `UnansweredError` if the shards have not yet counted them.
        """
        most = LIMITS["exclude_ids_max"]
        if len(exclude_ids) > most:
            raise invalid("exclude_ids", f"must be at most {most}, got {len(exclude_ids)}")
        excluded = self._plain_ids(exclude_ids, "exclude_ids")
        if condition is None and not excluded:
            return None
        filters = () if condition is None else (condition,)
        return self._count_points(Restriction(filters, excluded))

    def _count_points(self, restriction: Restriction) -> PassingSomewhere:
        """Return the points that meet a restriction; raises `UnansweredError`."""
        columns = restriction.columns
        message = layouts.COUNT_REQUEST.pack(columns)
        total, cells = 0, np.zeros(max(0, len(self.arrays.get("cell_starts", ())) - 1), np.int32)
        for shard, reply in self._ask_all("count", message).items():
            counts = checks.unpack(layouts.COUNT_REPLY, shard, reply, {})
            rows, most = counts["count"].tolist(), self._shard_rows[shard]
            in_cells = counts["cells"]
            if len(rows) != 1 or not 0 <= rows[0] <= most or in_cells.shape != cells.shape:
                raise ShardFaultError(shard, "message has an impossible count")
            if len(cells) and (in_cells.min() < 0 or in_cells.sum() != rows[0]):
                raise ShardFaultError(shard, "message has an impossible count of a cell")
            total, cells = total + rows[0], cells + in_cells
        return PassingSomewhere(restriction, total, cells, self._count_points)

    @property
    def _all_rows(self) -> PassingSomewhere:
        cells = np.diff(self.arrays.get("cell_starts", np.zeros(1, np.int64)))
        counts = cells.astype(np.int32)
        return PassingSomewhere(Restriction(), self.rows, counts, self._count_points)

    def _plain_ids(self, ids: Ids, field: str) -> list[int] | list[str]:
        """Return ids as integers or texts, checked as one index checks them."""
        if not len(ids):
            return []
        if not self._has_texts:
            integers: list[int] = as_integers(ids, field).tolist()
            return integers
        if not is_texts(ids):
            raise invalid(field, "must be texts, as the ids of this index are")
        return [text.decode() for text in encode_texts(ids, field)]

    def _ask_all(self, name: str, message: bytes) -> Mapping[int, Buffer]:
        """Return the replies of all shards that have points; raises `UnansweredError`."""
        shards = [shard for shard, rows in enumerate(self._shard_rows) if rows]
        replies = self.transcript.ask(name, dict.fromkeys(shards, message))
        self.transcript.check()
        assert replies is not None  # noqa: S101  # no reply is missing
        return replies

    def answer_each(self, answer: Callable[[RowsT], QueryResult], rows: RowsT) -> list[QueryResult]:
        """Return the answer for each of some rows; each round has the messages about all rows."""
        whole, results = self.transcript, []
        for place in range(len(rows)):
            self.transcript = part = whole.part()
            try:
                results.append(answer(rows[place : place + 1]))
            except UnansweredError:
                continue
            except DivgrpcError:
                # An earlier row may raise another error first.
                if whole.is_complete:
                    raise
                break
            finally:
                whole.add(part)
        self.transcript = whole
        whole.check()
        return results

    # Points by their ids, or in the order of their keys.

    def rows_of_ids(self, ids: Ids, field: str) -> IntArray:
        """Return the key (m,) of each id, -1 for an id that no point has."""
        plain = self._plain_ids(ids, field)
        columns: dict[str, Array] = {"parts": np.zeros(len(Parts._fields), np.uint8)}
        if self._has_texts:
            texts = [str(text).encode() for text in plain]
            columns["texts"] = np.frombuffer(b"".join(texts), np.uint8)
            columns["ends"] = np.cumsum([len(text) for text in texts], dtype=np.int64)
        else:
            columns["ids"] = np.array(plain, np.int64)
        keys = np.full(len(plain), -1)
        if len(plain):
            for reply in self._replies("get", columns, layouts.GET_REQUEST, self._stored):
                places = reply["places"]
                if len(places) and not 0 <= places.min() <= places.max() < len(keys):
                    raise IndexDamagedError(_UNREADABLE)
                keys[places] = reply["ids"]
                self._note(reply)
        return keys

    def following(
        self, key: int, count: int, passing: PassingRows | None = None
    ) -> tuple[IntArray, IntArray]:
        """Return the keys of the next points, twice, as `StoredPoints.following` returns rows."""
        columns: dict[str, Array] = {"after": np.array([key]), "count": np.array([count])}
        columns |= columns_of(passing)
        replies = self._replies("scroll", columns, layouts.SCROLL_REQUEST, layouts.SCROLL_REPLY)
        for reply in replies:
            self._note(reply)
        keys = np.sort(np.concatenate([reply["ids"] for reply in replies]))[:count]
        return keys, keys

    def _note(self, reply: Mapping[str, Array]) -> None:
        """Note the sizes of the points in a reply."""
        self._sizes.update(zip(reply["ids"].tolist(), reply["sizes"].tolist(), strict=True))

    def bytes_of_rows(self, rows: IntArray, parts: Parts) -> IntArray:
        """Return an upper bound of the bytes that the record of each point takes in a message.

        rows: (m,) keys that a method of this engine has returned.
        """
        sizes = np.array([self._sizes[key] for key in rows.tolist()], np.int64)
        totals: IntArray = sizes.reshape(-1, 1 + len(parts)) @ np.array([True, *parts])
        return totals

    def records(self, rows: IntArray, parts: Parts) -> Records:
        """Return the points with these keys (m,)."""
        columns: dict[str, Array] = {"parts": np.array(parts, np.uint8), "ids": np.unique(rows)}
        replies = self._replies("get", columns, layouts.GET_REQUEST, self._stored)
        arrays = self._joined(self._stored, replies)
        with _reading():
            points = PartPoints(self.manifest, arrays, len(arrays["ids"]))
            return points.records(_check_rows(rows, points.rows_of_keys(rows)), parts)

    def _vectors(self, rows: IntArray) -> FloatArray | SparseVectors:
        vectors = self.records(rows, Parts(vectors=True, attributes=False, payload=False)).vectors
        assert vectors is not None  # noqa: S101  # the parts have them
        return vectors

    def _replies(
        self, name: str, columns: Mapping[str, Array], request: Layout, reply: Layout
    ) -> list[dict[str, Array]]:
        """Return the columns of the replies of all shards; raises `UnansweredError`."""
        messages, widths = self._ask_all(name, request.pack(columns)), self._widths
        return [checks.unpack(reply, shard, part, widths) for shard, part in messages.items()]

    @property
    def label_sets(self) -> LabelSets | None:
        """The label sets of the points, by their keys; None without them."""
        if self.labels is None or INDPTR not in self.manifest.arrays:
            return None
        return _LabelSets(self, self.labels.count)

    def _voters(self, keys: IntArray) -> IntArray:
        return keys

    # What results have beside ids.

    def _columns_of(self, answers: Answers, parameters: QueryParameters) -> dict[str, Any]:
        """Return the columns of a result that have ids, and those that stored values fill."""
        keys = [answers.ids.ravel()]
        if self._has_texts:
            keys += answers.copies
            keys += [ids for one in answers.explanations for ids in ids_of(one)]
        keys += [answers.plain_ids.ravel()]
        has_columns = self._has_texts or parameters.with_payload
        has_values = parameters.with_attributes or parameters.with_report
        if has_columns or (has_values and self.manifest.attributes):
            self._reader = self._reader_of(np.concatenate(keys))
        with _reading():
            return super()._columns_of(answers, parameters)

    def _reader_of(self, keys: IntArray) -> RowReader:
        """Return a reader of the points with these keys; negative ones are padding."""
        columns = {"ids": np.unique(keys[keys >= 0])}
        replies = self._replies("describe", columns, layouts.DESCRIBE_REQUEST, self._description)
        arrays = self._joined(self._description, replies)
        return RowReader(arrays, len(arrays["ids"]), self.manifest.attributes)

    def _joined(self, layout: Layout, replies: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
        """Return the columns of the points in replies, beside the arrays of the router."""
        arrays = dict(self.arrays)
        for name, dtype, dimensions in layout.columns:
            parts = [reply[name] for reply in replies]
            if name in checks.STARTS:
                sizes = [np.diff(starts) for starts in parts]
                parts = [np.cumsum(np.concatenate((np.zeros(1, dtype), *sizes)))]
            elif name.endswith("ends"):
                starts = np.cumsum([0, *(int(ends[-1]) if len(ends) else 0 for ends in parts)])
                parts = [ends + start for ends, start in zip(parts, starts, strict=False)]
            elif dimensions > 1:
                # A matrix without rows loses its width in a message.
                parts = [part for part in parts if len(part)] or [np.empty((0, self.dims), dtype)]
            arrays[name] = np.concatenate(parts)
        return arrays

    def _ids_of(self, keys: IntArray) -> IdArray:
        if not self._has_texts:
            return keys
        return self._reader.ids.of_results(self._rows_of_keys(keys))

    def _rows_of_keys(self, keys: IntArray) -> IntArray:
        rows = np.where(keys < 0, -1, self._reader.ids.rows_of_keys(keys))
        return _check_rows(keys, rows)


class _LabelSets:
    """The label sets of points, which shards are asked for; `dims` is the number of labels."""

    def __init__(self, engine: GatheringEngine, dims: int) -> None:
        self._engine, self.dims = engine, dims

    def __getitem__(self, rows: IntArray) -> SparseRows:
        """Return the label sets of the points with these keys, each label with the value 1."""
        keys, places = np.unique(rows, return_inverse=True)
        labels = self._engine.records(keys, _LABELS).labels
        assert labels is not None  # noqa: S101  # the points have label sets
        ones = np.ones(len(labels.indices), np.float32)
        return SparseRows(labels.indptr, labels.indices, ones, self.dims)[places]


def _check_rows(keys: IntArray, rows: IntArray) -> IntArray:
    """Return the rows of points; raises `IndexDamagedError` if a point has none.

    Negative keys are padding.
    """
    if ((rows < 0) & (keys >= 0)).any():
        raise IndexDamagedError("the shards lack a point that one of them has found")
    return rows


@contextmanager
def _reading() -> Iterator[None]:
    """Raise `IndexDamagedError` for values of shards that cannot be read."""
    try:
        yield
    except (ValueError, IndexError, OverflowError) as error:
        raise IndexDamagedError(_UNREADABLE) from error
