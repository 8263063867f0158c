"""Batches: the rows of a query, or documents to label, which a worker answers in slices.

A slice takes a few milliseconds, and between slices the worker can answer small queries. All slices
use the same index object, so all rows are answered by the same generation. The answers of the
slices, combined, equal the answer that the core gives to the whole batch.
"""

import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final, Generic

import numpy as np
from google.rpc import status_pb2

from divgrpc.engine import Engine
from divgrpc.pages import answer_continued
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.search.passing import PassingRows
from divgrpc.search.results import ResultT, joined
from divgrpc.types import LabelResult, LabelSelector, QueryResult
from divgrpc.vectors import Rows, SparseRows
from divgrpc_protos.v1 import predict_pb2, query_pb2
from divgrpc_server.codec import requests, results
from divgrpc_server.codec.statuses import OutOfMemoryError, explain
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request
from divgrpc_server.logging.logs import Logger

# The target duration of a slice in seconds. With shorter slices, batches would slow down more than
# small queries would speed up.
_SLICE_SECONDS: Final = 0.008
_FIRST_SLICE_ROWS: Final = 8
_SLICE_ROWS_MAX: Final = 256
# The minimum number of rows in a slice if the rows share one exact search. In an index of many
# points, an exact search for 8 rows takes only twice as long as a search for 1 row.
_SHARED_ROWS: Final = 8
# The maximum number of stored values in a slice of sparse rows. The time to hash a row grows with
# the number of its stored values.
_SLICE_NONZEROS_MAX: Final = 2**16


class Pace:
    """Chooses the sizes of slices, so that each takes a few milliseconds."""

    def __init__(self, queries: Rows, selector: LabelSelector | None) -> None:
        # The first row of the next slice.
        self.next_row = 0
        self._queries = queries
        # Start with one row for qp_relax, because a row may take a second. With other selectors a
        # row takes about a millisecond.
        self._rows = 1 if selector == "qp_relax" else _FIRST_SLICE_ROWS
        self._row_seconds = math.inf
        self._rows_min = 1

    def set_shared_rows(self, rows: int) -> None:
        """Set the minimum size of a slice to `rows`, at most 8.

        `rows` is the number of rows that can share one exact search.
        """
        self._rows_min = min(rows, _SHARED_ROWS)

    def stop(self) -> int:
        """Return the row after the next slice, which contains at least one row."""
        queries = self._queries
        end = min(len(queries), self.next_row + self._rows)
        if isinstance(queries, SparseRows):
            most = queries.indptr[self.next_row] + _SLICE_NONZEROS_MAX
            fits = int(np.searchsorted(queries.indptr, most, side="right")) - 1
            end = min(end, max(self.next_row + 1, fits))
        return end

    @property
    def ends_soon(self) -> bool:
        """Whether the next slice is the last and is expected to be short."""
        end = self.stop()
        is_short = (end - self.next_row) * self._row_seconds <= _SLICE_SECONDS
        return end == len(self._queries) and is_short

    @contextlib.contextmanager
    def step(self) -> Iterator[int]:
        """Yield `stop` for the caller to answer the slice, and measure the time it takes."""
        end, start = self.stop(), time.monotonic()
        yield end
        self._row_seconds = (time.monotonic() - start) / (end - self.next_row)
        rows = int(_SLICE_SECONDS / (self._row_seconds + 1e-9))
        self._rows = max(self._rows_min, min(_SLICE_ROWS_MAX, rows))
        self.next_row = end


class Batch(ABC, Generic[ResultT]):
    """The rows of one request; subclasses define what is computed for them.

    may_lack: whether the answer may lack the points of shards that are missing.
    """

    may_lack = False

    def __init__(
        self, request: Request, name: str, rows: Rows, selector: LabelSelector | None
    ) -> None:
        self.id = request.id
        self.deadline = request.deadline
        self.tag = request.tag
        self.exchanges = request.exchanges
        self.arrival_time = time.monotonic()
        self.name = name
        self.is_withdrawn = False
        self._op = request.op
        self._correlation_id = 0
        self._rows = rows
        self._index: Engine | None = None
        self._pace = Pace(rows, selector)
        self._slices: list[ResultT] = []

    def start(self, index: Engine) -> Reply | None:
        """Start to answer from `index`; return the reply if the rows fit in a single slice.

        Otherwise returns None, and `answer_slice` must be called. Raises the core's errors, and
        `ReplyTooLargeError`, if possible before any row is answered.
        """
        results_per_row = self._resolve(index)
        results.check_reply_size(len(self._rows), results_per_row)
        # Shards are asked for all rows at once, so there are no slices.
        if index.is_divided or self._pace.stop() == len(self._rows):
            return self._reply(self._answer(index, self._rows, 0))
        # Check all rows before any is answered, so that an invalid row is reported early and with
        # its number in the batch.
        self._check(index)
        self._index = index
        self._pace.set_shared_rows(self._count_shared_rows(index))
        return None

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self._rows)

    @property
    def ends_soon(self) -> bool:
        """Whether the next slice is the last and is expected to be short."""
        return self._pace.ends_soon

    def answer_slice(self) -> Reply | None:
        """Answer the next slice; return the reply to the whole batch after the last slice."""
        assert self._index is not None  # noqa: S101  # start comes first
        start = self._pace.next_row
        with self._pace.step() as end:
            self._slices.append(self._answer(self._index, self._rows[start:end], start))
        return self._reply(joined(self._slices)) if end == len(self._rows) else None

    def _reply(self, result: ResultT) -> Reply:
        payload = self._pack(result)
        if len(payload) > LIMITS["message_bytes_max"]:
            raise results.reply_too_large()
        return Reply(self.id, Outcome.ANSWER, payload)

    def pack_error(self, error: Exception, log: Logger) -> Reply:
        """Return the reply that carries an error."""
        return _pack_status(self.id, self._op, self._correlation_id, explain(error, self.tag, log))

    @abstractmethod
    def _resolve(self, index: Engine) -> int:
        """Fill in the defaults of `index`; return the maximum number of results per row."""

    @abstractmethod
    def _check(self, index: Engine) -> None:
        """Raise an error if a row is invalid."""

    @abstractmethod
    def _count_shared_rows(self, index: Engine) -> int:
        """Return how many rows can share one exact search, or 1 if each row has its own search."""

    @abstractmethod
    def _answer(self, index: Engine, rows: Rows, start: int) -> ResultT:
        """Answer the rows of one slice; `start` is the number of the first."""

    @abstractmethod
    def _pack(self, result: ResultT) -> bytes:
        """Return the result of the whole batch as a serialised response."""


class QueryBatch(Batch[QueryResult]):
    """The rows of a query, from a Query call or from a stream."""

    def __init__(self, request: Request, correlation_id: int, query: requests.Query) -> None:
        # Queries by id become vectors when the index is known.
        placeholder = np.empty((len(query.like), 0), np.float32)
        rows = placeholder if query.queries is None else query.queries
        super().__init__(request, query.name, rows, query.parameters.selector)
        self._query = query
        self._parameters = query.parameters
        self._passing: PassingRows | None = None
        self._quotas = query.quotas
        self.may_lack = query.may_lack
        # The rows of the points whose vectors are the queries.
        self._like = np.empty(0, np.int64)
        self._correlation_id = correlation_id

    @property
    def min_sequence(self) -> int:
        """The number of the write that the answer must show."""
        return self._query.min_sequence

    def _resolve(self, index: Engine) -> int:
        index.check_sequence(self.min_sequence)
        self._parameters = self._query.over(index.defaults.query)
        self._quotas = index.check_quotas(self._query.quotas, self._parameters)
        continuation = self._query.continuation
        if continuation is not None:
            continuation.check_quotas(self._quotas)
            field = "like" if self._query.like else "queries"
            continuation.check_rows(field, len(self._rows))
        self._passing = index.passing(self._query.filter, self._query.exclude_ids)
        if self._query.like:
            self._like = index.rows_like(self._query.like)
        return min(self._parameters.k, index.rows)

    def plain_rows(self) -> tuple[Rows, QueryParameters] | None:
        """Return the rows and the parameters of a query that was started.

        Returns None for a query with a filter, quotas, a page token or ids instead of vectors.
        """
        query = self._query
        is_plain = self._passing is None and self._quotas is None and query.continuation is None
        return None if query.like or not is_plain else (self._rows, self._parameters)

    def _check(self, index: Engine) -> None:
        if not self._query.like:
            index.check_queries(self._rows)

    def _count_shared_rows(self, index: Engine) -> int:
        if self._query.like or self._passing is not None or self._quotas is not None:
            return 1
        return index.exact_together(self._rows, self._parameters)

    def _answer(self, index: Engine, rows: Rows, start: int) -> QueryResult:
        continuation = self._query.continuation
        if continuation is not None:
            like = continuation.like[start : start + len(rows)]
            queries = None if self._query.like else rows
            return answer_continued(
                index, queries, self._parameters, self._passing, continuation._replace(like=like)
            )
        if self._query.like:
            points = self._like[start : start + len(rows)]
            return index.answer_like(points, self._parameters, self._passing, self._quotas)
        return index.answer(rows, self._parameters, self._passing, self._quotas)

    def _pack(self, result: QueryResult) -> bytes:
        payload = results.pack_result(result)
        if self._op == Op.STREAM:
            return results.pack_stream_answer(self._correlation_id, payload)
        return payload


class PredictionBatch(Batch[LabelResult]):
    """The documents of a PredictLabels call."""

    def __init__(self, request: Request, prediction: requests.Prediction) -> None:
        self._parameters = prediction.parameters
        self._filter = prediction.filter
        self._passing: PassingRows | None = None
        self.may_lack = prediction.allow_partial
        super().__init__(request, prediction.name, prediction.documents, self._parameters.selector)

    def _resolve(self, index: Engine) -> int:
        # Resolve the default threshold before the first slice, so that it is the same for all
        # slices.
        self._parameters = self._parameters.with_threshold(index.defaults.thresholds)
        self._passing = index.passing(self._filter)
        if index.labels is None:
            return 0
        self._parameters = self._parameters.filled(hierarchy=index.labels.has_hierarchy)
        return min(self._parameters.top_k, index.labels.count)

    def _check(self, index: Engine) -> None:
        index.check_documents(self._rows, self._parameters)

    def _count_shared_rows(self, index: Engine) -> int:
        if index.labels is None or self._passing is not None:
            return 1
        if self._parameters.mode == "embedding":
            return index.labels.exact_together(self._parameters)
        return index.exact_together(self._rows, self._parameters.query, as_points=True)

    def _answer(self, index: Engine, rows: Rows, start: int) -> LabelResult:
        del start
        return index.predict(rows, self._parameters, self._passing)

    def _pack(self, result: LabelResult) -> bytes:
        return results.pack_labels(result)


def parse(request: Request, log: Logger) -> QueryBatch | PredictionBatch | Reply:
    """Return the batch of a request, or a reply with an error if the request is invalid."""
    correlation_id, op = 0, request.op
    if op == Op.LOST:
        error = OutOfMemoryError("a worker has no descriptor left for the request")
        return _pack_status(request.id, op, 0, explain(error, request.tag, log))
    try:
        if op == Op.PREDICT:
            message = predict_pb2.PredictLabelsRequest.FromString(request.payload)
            return PredictionBatch(request, requests.parse_prediction(message))
        if op == Op.STREAM:
            # Until the message is parsed, its correlation id is unknown. An error is then reported
            # as for a unary call, which ends the stream.
            op = Op.QUERY
            item = query_pb2.QueryStreamRequest.FromString(request.payload)
            op, correlation_id = Op.STREAM, item.correlation_id
            query = requests.parse_query(item.query)
        else:
            query = requests.parse_query(query_pb2.QueryRequest.FromString(request.payload))
    except Exception as fault:  # noqa: BLE001  # becomes the status of the call
        return _pack_status(request.id, op, correlation_id, explain(fault, request.tag, log))
    return QueryBatch(request, correlation_id, query)


def _pack_status(number: int, op: int, correlation_id: int, status: status_pb2.Status) -> Reply:
    if op == Op.STREAM:
        answer = query_pb2.QueryStreamResponse(correlation_id=correlation_id, error=status)
        return Reply(number, Outcome.ANSWER, answer.SerializeToString())
    return Reply(number, Outcome.STATUS, status.SerializeToString())
