"""One query inside a worker: parsed, answered in pieces, packed.

A batch of many rows is answered a few milliseconds at a time, so that a worker can see to small
queries in between. All pieces use the index object that the first one found, so every row of an
answer is of one generation, and the answer is the one that the core gives to the whole batch.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Final

import numpy as np
from google.rpc import status_pb2

from divgrpc.index import Index
from divgrpc.parameters import LIMITS
from divgrpc.types import QueryResult, QueryStats, Selector, WarningInfo
from divgrpc.vectors import Rows, SparseRows
from divgrpc_protos.v1 import query_pb2
from divgrpc_server import messages, requests
from divgrpc_server.frames import Op, Outcome, Reply, Request
from divgrpc_server.logs import Logger
from divgrpc_server.statuses import OutOfMemoryError, explain

_PIECE_SECONDS: Final = 0.004
_FIRST_PIECE_ROWS: Final = 8
_PIECE_ROWS_MAX: Final = 256
# What a sparse row costs to hash grows with its numbers, of which a few rows may have most.
_PIECE_NONZEROS_MAX: Final = 2**16


class Pace:
    """How many of some rows to answer at a time, so that it takes a few milliseconds."""

    def __init__(self, queries: Rows, selector: Selector) -> None:
        self._queries = queries
        self._next = 0
        # A row of these may take a second, of others a millisecond.
        self._rows = 1 if selector == "qp_relax" else _FIRST_PIECE_ROWS

    def stop(self) -> int:
        """Return the row after the next piece, which has at least one."""
        queries = self._queries
        end = min(len(queries), self._next + self._rows)
        if isinstance(queries, SparseRows):
            most = queries.indptr[self._next] + _PIECE_NONZEROS_MAX
            fits = int(np.searchsorted(queries.indptr, most, side="right")) - 1
            end = min(end, max(self._next + 1, fits))
        return end

    @contextlib.contextmanager
    def step(self) -> Iterator[int]:
        """Yield `stop` while those rows are answered, and learn how long it takes."""
        end, begun = self.stop(), time.monotonic()
        yield end
        row_seconds = (time.monotonic() - begun) / (end - self._next)
        self._rows = max(1, min(_PIECE_ROWS_MAX, int(_PIECE_SECONDS / (row_seconds + 1e-9))))
        self._next = end


class Job:
    """A query being answered; made by `parse`."""

    # Small packets wait for batches, with the front, where another worker can take them.
    holds_up: Final = True
    # It is of whatever generation serves, and nobody hears of it that was withdrawn.
    run: Final = 0
    generation: Final = 0
    dropped: Final = None

    def __init__(self, request: Request, correlation_id: int, query: requests.Query) -> None:
        self.id = request.id
        self.deadline = request.deadline
        self.tag = request.tag
        self.name = query.name
        self.withdrawn = False
        self._query = query
        self._parameters = query.parameters
        self._op = request.op
        self._correlation_id = correlation_id
        self._index: Index | None = None
        self._pace = Pace(query.queries, query.parameters.selector)
        self._pieces: list[QueryResult] = []

    def start(self, index: Index) -> Reply | None:
        """Answer from `index`; None where there are more rows than one piece, and `go_on` follows.

        Raises what the core raises, and `ReplyTooLargeError` before any work is done in vain.
        """
        queries = self._query.queries
        self._parameters = self._query.over(index.default)
        messages.check_reply_size(len(queries), min(self._parameters.k, index.rows))
        if self._pace.stop() == len(queries):
            return self._pack(index.answer(queries, self._parameters))
        # A bad row must be found before work is spent on the others, and be called by its number.
        index.check_queries(queries)
        self._index = index
        return None

    def go_on(self) -> Reply | None:
        """Answer the next few rows; returns the whole result after the last ones."""
        assert self._index is not None  # noqa: S101  # start comes first
        queries, done = self._query.queries, sum(len(piece.ids) for piece in self._pieces)
        with self._pace.step() as end:
            self._pieces.append(self._index.answer(queries[done:end], self._parameters))
        return self._pack(join(self._pieces)) if end == len(queries) else None

    def _pack(self, result: QueryResult) -> Reply:
        payload = messages.pack_result(result)
        if self._op == Op.STREAM:
            payload = messages.pack_stream_answer(self._correlation_id, payload)
        if len(payload) > LIMITS["message_bytes_max"]:
            raise messages.reply_too_large()
        return Reply(self.id, Outcome.ANSWER, payload)

    def pack_error(self, error: Exception, log: Logger) -> Reply:
        """Return the reply that carries an error."""
        status = explain(error, self.tag, log)
        return _pack_status(self.id, self._op, self._correlation_id, status)


def parse(request: Request, log: Logger) -> Job | Reply:
    """Return the job that a request asks for, or the reply that says what is wrong with it."""
    correlation_id = 0
    op = request.op
    if op == Op.LOST:
        error = OutOfMemoryError("a worker has no descriptor left for the request")
        return _pack_status(request.id, op, 0, explain(error, request.tag, log))
    try:
        if op == Op.STREAM:
            # A message that cannot be parsed has no correlation id: it ends the stream.
            op = Op.QUERY
            message = query_pb2.QueryStreamRequest.FromString(request.payload)
            op, correlation_id = Op.STREAM, message.correlation_id
            query = requests.parse_query(message.query)
        else:
            query = requests.parse_query(query_pb2.QueryRequest.FromString(request.payload))
    except Exception as error:  # noqa: BLE001  # the edge: whatever it is, one caller hears of it
        return _pack_status(request.id, op, correlation_id, explain(error, request.tag, log))
    return Job(request, correlation_id, query)


def _pack_status(number: int, op: int, correlation_id: int, status: status_pb2.Status) -> Reply:
    if op == Op.STREAM:
        answer = query_pb2.QueryStreamResponse(correlation_id=correlation_id, error=status)
        return Reply(number, Outcome.ANSWER, answer.SerializeToString())
    return Reply(number, Outcome.STATUS, status.SerializeToString())


def join(pieces: list[QueryResult]) -> QueryResult:
    """Return the result of the rows of all pieces, which are of one index and its parameters."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    counts = np.concatenate([piece.counts for piece in pieces])
    return QueryResult(
        ids=np.concatenate([piece.ids for piece in pieces]),
        scores=np.concatenate([piece.scores for piece in pieces]),
        selection_scores=np.concatenate([piece.selection_scores for piece in pieces]),
        counts=counts,
        generation=first.generation,
        stats=QueryStats(
            points_hashed=np.concatenate([piece.stats.points_hashed for piece in pieces]),
            buckets_probed=np.concatenate([piece.stats.buckets_probed for piece in pieces]),
            points_scored=np.concatenate([piece.stats.points_scored for piece in pieces]),
            candidates=np.concatenate([piece.stats.candidates for piece in pieces]),
        ),
        parameters=first.parameters,
        warnings=_join_warnings(pieces, counts),
        duality_gaps=np.concatenate([piece.duality_gaps for piece in pieces]),
    )


def _join_warnings(
    pieces: list[QueryResult], counts: "np.typing.NDArray[np.uint32]"
) -> tuple[WarningInfo, ...]:
    found = {warning.code: warning for piece in pieces for warning in piece.warnings}
    short = found.get("FEWER_THAN_K_FOUND")
    if short:
        # The one warning that counts rows: each piece counted its own.
        k = pieces[0].parameters.k
        sentence = (
            f"{np.count_nonzero(counts < k)} of {len(counts)} rows have fewer than {k} results"
        )
        found[short.code] = WarningInfo(short.code, sentence, short.field)
    return tuple(found.values())
