"""One query, or documents to label, inside a worker: parsed, answered in pieces, packed.

A batch of many rows is answered a few milliseconds at a time, so that a worker can see to small
queries in between. All pieces use the index object that the first one found, so every row of an
answer is of one generation, and the answer is the one that the core gives to the whole batch.
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
from divgrpc.parameters import LIMITS
from divgrpc.search.results import ResultT, joined
from divgrpc.types import LabelResult, LabelSelector, QueryResult
from divgrpc.vectors import Rows, SparseRows
from divgrpc_protos.v1 import predict_pb2, query_pb2
from divgrpc_server.codec import requests, results
from divgrpc_server.codec.statuses import OutOfMemoryError, explain
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request
from divgrpc_server.logging.logs import Logger

# Target time of a piece. Shorter pieces slow a batch down more than they speed small queries up.
_PIECE_SECONDS: Final = 0.008
_FIRST_PIECE_ROWS: Final = 8
_PIECE_ROWS_MAX: Final = 256
# Least rows of a piece if rows share an exact search: over many points 8 take twice as long as 1.
_TOGETHER_ROWS: Final = 8
# Most stored numbers of a piece of sparse rows: the time to hash a row grows with its numbers.
_PIECE_NONZEROS_MAX: Final = 2**16


class Pace:
    """Sizes of pieces: the number of rows that can be answered in a few milliseconds."""

    def __init__(self, queries: Rows, selector: LabelSelector | None) -> None:
        self._queries = queries
        self._next = 0
        # A row of these may take a second, of others a millisecond.
        self._rows = 1 if selector == "qp_relax" else _FIRST_PIECE_ROWS
        self._row_seconds = math.inf
        self._least = 1

    def search_together(self, rows: int) -> None:
        """Answer at least `rows` rows per piece, up to 8, because they share one exact search."""
        self._least = min(rows, _TOGETHER_ROWS)

    def stop(self) -> int:
        """Return the row after the next piece, which has at least one."""
        queries = self._queries
        end = min(len(queries), self._next + self._rows)
        if isinstance(queries, SparseRows):
            most = queries.indptr[self._next] + _PIECE_NONZEROS_MAX
            fits = int(np.searchsorted(queries.indptr, most, side="right")) - 1
            end = min(end, max(self._next + 1, fits))
        return end

    @property
    def ends_soon(self) -> bool:
        """Whether the next piece is the last, and is expected to be short."""
        end = self.stop()
        short = (end - self._next) * self._row_seconds <= _PIECE_SECONDS
        return end == len(self._queries) and short

    @contextlib.contextmanager
    def step(self) -> Iterator[int]:
        """Yield `stop` while those rows are answered, and learn how long it takes."""
        end, start = self.stop(), time.monotonic()
        yield end
        self._row_seconds = (time.monotonic() - start) / (end - self._next)
        rows = int(_PIECE_SECONDS / (self._row_seconds + 1e-9))
        self._rows = max(self._least, min(_PIECE_ROWS_MAX, rows))
        self._next = end


class Job(ABC, Generic[ResultT]):
    """Rows being answered; made by `parse`. What is asked of an index is for the kinds of it."""

    def __init__(
        self, request: Request, name: str, rows: Rows, selector: LabelSelector | None
    ) -> None:
        self.id = request.id
        self.deadline = request.deadline
        self.tag = request.tag
        self.name = name
        self.withdrawn = False
        self._op = request.op
        self._rows = rows
        self._index: Engine | None = None
        self._pace = Pace(rows, selector)
        self._done = 0
        self._pieces: list[ResultT] = []

    def start(self, index: Engine) -> Reply | None:
        """Answer from `index`; None where there are more rows than one piece, and `go_on` follows.

        Raises what the core raises, and `ReplyTooLargeError` before any work is done in vain.
        """
        results.check_reply_size(len(self._rows), self._most(index))
        if self._pace.stop() == len(self._rows):
            return self._reply(self._answer(index, self._rows))
        # A bad row must be found before work is spent on the others, and be called by its number.
        self._check(index)
        self._index = index
        self._pace.search_together(self._together(index))
        return None

    @property
    def ends_soon(self) -> bool:
        """Whether `go_on` answers the last rows, soon if they are as those before."""
        return self._pace.ends_soon

    def go_on(self) -> Reply | None:
        """Answer the next few rows; returns the whole result after the last ones."""
        assert self._index is not None  # noqa: S101  # start comes first
        with self._pace.step() as end:
            self._pieces.append(self._answer(self._index, self._rows[self._done : end]))
        self._done = end
        return self._reply(joined(self._pieces)) if end == len(self._rows) else None

    def _reply(self, result: ResultT) -> Reply:
        payload = self._pack(result)
        if len(payload) > LIMITS["message_bytes_max"]:
            raise results.reply_too_large()
        return Reply(self.id, Outcome.ANSWER, payload)

    def pack_error(self, error: Exception, log: Logger) -> Reply:
        """Return the reply that carries an error."""
        return _pack_status(self.id, self._op, 0, explain(error, self.tag, log))

    @abstractmethod
    def _most(self, index: Engine) -> int:
        """Resolve what the job needs from `index`; return the most entries that a row may have."""

    @abstractmethod
    def _check(self, index: Engine) -> None:
        """Raise what is wrong with any row."""

    @abstractmethod
    def _together(self, index: Engine) -> int:
        """Return the most rows that can share one exact search; 1 if rows are searched singly."""

    @abstractmethod
    def _answer(self, index: Engine, rows: Rows) -> ResultT:
        """Answer some of the rows."""

    @abstractmethod
    def _pack(self, result: ResultT) -> bytes:
        """Return the whole result as the bytes of a response."""


class QueryJob(Job[QueryResult]):
    """A query, of a call of its own or of a stream."""

    def __init__(self, request: Request, correlation_id: int, query: requests.Query) -> None:
        super().__init__(request, query.name, query.queries, query.parameters.selector)
        self._query = query
        self._parameters = query.parameters
        self._correlation_id = correlation_id

    def pack_error(self, error: Exception, log: Logger) -> Reply:
        """Return the reply that carries an error."""
        return _pack_status(self.id, self._op, self._correlation_id, explain(error, self.tag, log))

    def _most(self, index: Engine) -> int:
        self._parameters = self._query.over(index.default)
        return min(self._parameters.k, index.rows)

    def _check(self, index: Engine) -> None:
        index.check_queries(self._rows)

    def _together(self, index: Engine) -> int:
        return index.exact_together(self._rows, self._parameters)

    def _answer(self, index: Engine, rows: Rows) -> QueryResult:
        return index.answer(rows, self._parameters)

    def _pack(self, result: QueryResult) -> bytes:
        payload = results.pack_result(result)
        if self._op == Op.STREAM:
            return results.pack_stream_answer(self._correlation_id, payload)
        return payload


class PredictJob(Job[LabelResult]):
    """Documents to label."""

    def __init__(self, request: Request, prediction: requests.Prediction) -> None:
        self._parameters = prediction.parameters
        super().__init__(request, prediction.name, prediction.documents, self._parameters.selector)

    def _most(self, index: Engine) -> int:
        # As it is now, for all pieces.
        self._parameters = self._parameters.with_threshold(index.defaults.thresholds)
        if index.labels is None:
            return 0
        self._parameters = self._parameters.filled(hierarchy=index.labels.has_hierarchy)
        return min(self._parameters.top_k, index.labels.count)

    def _check(self, index: Engine) -> None:
        index.check_documents(self._rows, self._parameters)

    def _together(self, index: Engine) -> int:
        if index.labels is None:
            return 1
        if self._parameters.mode == "embedding":
            return index.labels.exact_together(self._parameters)
        return index.exact_together(self._rows, self._parameters.query, as_points=True)

    def _answer(self, index: Engine, rows: Rows) -> LabelResult:
        return index.predict(rows, self._parameters)

    def _pack(self, result: LabelResult) -> bytes:
        return results.pack_labels(result)


def parse(request: Request, log: Logger) -> QueryJob | PredictJob | Reply:
    """Return the job that a request asks for, or the reply that says what is wrong with it."""
    correlation_id = 0
    op = request.op
    if op == Op.LOST:
        error = OutOfMemoryError("a worker has no descriptor left for the request")
        return _pack_status(request.id, op, 0, explain(error, request.tag, log))
    try:
        if op == Op.PREDICT:
            message = predict_pb2.PredictLabelsRequest.FromString(request.payload)
            return PredictJob(request, requests.parse_prediction(message))
        if op == Op.STREAM:
            # A message that cannot be parsed has no correlation id: it ends the stream.
            op = Op.QUERY
            item = query_pb2.QueryStreamRequest.FromString(request.payload)
            op, correlation_id = Op.STREAM, item.correlation_id
            query = requests.parse_query(item.query)
        else:
            query = requests.parse_query(query_pb2.QueryRequest.FromString(request.payload))
    except Exception as error:  # noqa: BLE001  # the edge: whatever it is, one caller hears of it
        return _pack_status(request.id, op, correlation_id, explain(error, request.tag, log))
    return QueryJob(request, correlation_id, query)


def _pack_status(number: int, op: int, correlation_id: int, status: status_pb2.Status) -> Reply:
    if op == Op.STREAM:
        answer = query_pb2.QueryStreamResponse(correlation_id=correlation_id, error=status)
        return Reply(number, Outcome.ANSWER, answer.SerializeToString())
    return Reply(number, Outcome.STATUS, status.SerializeToString())
