"""Splits batches of queries or documents into messages, and orders the answers of a stream.

This module does no I/O. An exchange is a generator that yields requests, receives their answers and
returns a result. A batch may be cut between any two rows, because the answer to a row does not
depend on the other rows. All parts of a result must come from one generation (one build) of the
index. If a new generation is published between two requests, the parts that an older generation
answered are sent again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, Final, Generic, TypeAlias, TypeVar

from google.protobuf.message import Message
from google.rpc import status_pb2

from divgrpc.errors import DivgrpcError, InvalidArgumentError, invalid
from divgrpc.parameters import DEFAULT_K, LIMITS
from divgrpc.parameters.predict import DEFAULT_TOP_K
from divgrpc.search.results import ResultT, joined
from divgrpc.types import IndexInfo, LabelResult, QueryResult
from divgrpc.types.records import IdsOf
from divgrpc_client.messages import arguments, filters, requests, responses
from divgrpc_client.messages.options import PredictOptions, QueryOptions
from divgrpc_client.messages.stream_items import StreamItem, Withdrawal
from divgrpc_client.messages.vectors import VectorsLike, as_matrix, row_ends
from divgrpc_protos.arrays import Matrix, row_count
from divgrpc_protos.records import from_message
from divgrpc_protos.v1 import index_pb2, predict_pb2, query_pb2

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
AnyT = TypeVar("AnyT")
ItemT = TypeVar("ItemT")
# A generator of requests that are sent one at a time. Its result is None if no single generation
# answered all of them.
Exchange: TypeAlias = Generator[RequestT, ResponseT, AnyT | None]

# Upper bound of the bytes of a message without its vectors or results.
_HEADROOM_BYTES: Final = 2**16
MESSAGE_BYTES: Final = LIMITS["message_bytes_max"] - _HEADROOM_BYTES
# Maximum sizes in an answer. A result has an id as a varint and two floats. A row also has an
# offset, six counts, a duality gap, a diversity and its reason.
_RESULT_BYTES: Final = 9 + 4 + 4
_ROW_BYTES: Final = 5 + 6 * 5 + 4 + 8 + 1
# Maximum size of the name of a label: its text and its length.
_NAME_BYTES: Final = LIMITS["label_name_bytes_max"] + 3
# The reason of the error for an answer that does not fit a message.
_REPLY_TOO_LARGE: Final = "REPLY_TOO_LARGE"
_NO_FIELDS: Final[Mapping[str, Any]] = {}
# A batch fails if the index is replaced during each of this many rounds.
_ROUNDS_MAX: Final = 4


def single(request: RequestT, read: Callable[[Any], AnyT]) -> Exchange[RequestT, Any, AnyT]:
    """Send one request and return its answer, converted by `read`."""
    return read((yield request))


def pages() -> Exchange[
    index_pb2.ListIndexesRequest, index_pb2.ListIndexesResponse, tuple[IndexInfo, ...]
]:
    """Request every page of the list of indexes and return all indexes."""
    indexes: list[IndexInfo] = []
    token = ""
    while True:
        response = yield index_pb2.ListIndexesRequest(page_token=token)
        indexes.extend(from_message(index, IndexInfo) for index in response.indexes)
        token = response.next_page_token
        if not token:
            return tuple(indexes)


def query_batch(
    name: str,
    queries: VectorsLike | None,
    options: QueryOptions,
    restriction: Mapping[str, Any] = _NO_FIELDS,
    like: IdsOf = None,
) -> Exchange[query_pb2.QueryRequest, query_pb2.QueryResponse, QueryResult]:
    """Return the exchange for a call of `query`.

    restriction: fields from `filters.query_filter_fields`.
    like: ids of points whose vectors are the queries, instead of `queries`.

    Raises `InvalidArgumentError` for queries and options that cannot be sent.
    """
    fields = {**requests.query_fields(name, options), **restriction}
    row_bytes = _RESULT_BYTES * int(options.get("k", DEFAULT_K)) + _ROW_BYTES
    room = _room(query_pb2.QueryRequest(**fields))
    if like is not None:
        if queries is not None:
            raise invalid("like", "stands for the queries: give one of the two")
        id_field, ids = filters.like_ids(like)
        _check_pages(restriction, "like", len(ids))
        rows_max = min(len(ids), max(1, MESSAGE_BYTES // row_bytes))
        ends = [*range(rows_max, len(ids), rows_max), len(ids)]
        make_like = partial(requests.query_like, fields, id_field, ids)
        return _in_parts(ends, make_like, responses.query_result)
    if queries is None:
        raise invalid("queries", "must be given, or `like` with ids of points")
    matrix = as_matrix("queries", queries, one_row=True)
    _check_pages(restriction, "queries", row_count(matrix))
    make = partial(requests.query, fields, matrix)
    return _in_parts(_ends(matrix, row_bytes, room), make, responses.query_result)


def predict_batch(
    name: str,
    documents: VectorsLike,
    options: PredictOptions,
    restriction: Mapping[str, Any] = _NO_FIELDS,
) -> Exchange[predict_pb2.PredictLabelsRequest, predict_pb2.PredictLabelsResponse, LabelResult]:
    """Return the exchange for a call of `predict_labels`; raises like `query_batch`."""
    matrix = as_matrix("documents", documents, one_row=True)
    fields = {**requests.predict_fields(name, options), **restriction}
    top_k = int(options.get("top_k", DEFAULT_TOP_K))
    row_bytes = (_RESULT_BYTES + _NAME_BYTES) * top_k + _ROW_BYTES
    make = partial(requests.predict, fields, matrix)
    room = _room(predict_pb2.PredictLabelsRequest(**fields))
    return _in_parts(_ends(matrix, row_bytes, room), make, responses.label_result)


def _check_pages(restriction: Mapping[str, Any], field: str, rows: int) -> None:
    """Raise `InvalidArgumentError` if a request of several rows has pages."""
    if rows != 1 and not restriction.keys().isdisjoint(("paged", "page_token")):
        raise invalid(field, f"must be one row, because pages are about one, got {rows}")


def _room(message: Message) -> int:
    """Return the bytes that a message has for vectors, beside a filter and lists of ids.

    Raises `InvalidArgumentError` if these take more than half of a message.
    """
    size = message.ByteSize()
    if size > MESSAGE_BYTES // 2:
        texts = len(getattr(message, "exclude_string_ids", ())) > 0
        field = "exclude_ids" if texts else "filter"
        if getattr(message, "already_shown", None) is not None and message.HasField(
            "already_shown"
        ):
            field = "already_shown"
        raise invalid(field, f"must take at most {MESSAGE_BYTES // 2} bytes, got {size}")
    return MESSAGE_BYTES - size


def _ends(matrix: Matrix, row_bytes: int, room: int) -> list[int]:
    """Cut a matrix into parts such that each request and each answer fits a message.

    Return the number of the row after each part. `row_bytes` is the maximum size of the answer to
    one row, and `room` the bytes that a request has for vectors.
    """
    rows = row_count(matrix)
    rows_max = min(LIMITS["query_rows_max"], max(1, MESSAGE_BYTES // row_bytes))
    return sorted({*(row_ends(matrix, room) or [0]), *range(rows_max, rows, rows_max)})


def _in_parts(
    ends: list[int], make: Callable[[int, int], RequestT], read: Callable[[ResponseT], ResultT]
) -> Exchange[RequestT, ResponseT, ResultT]:
    """Request all parts, and repeat those that an older generation answered.

    A part is halved if its answer does not fit a message, as text ids, attributes and payloads may
    be of any size. Returns the joined result if one generation has answered all parts, or None if
    the index is replaced in every round.
    """
    parts: dict[tuple[int, int], ResultT] = {}
    todo = list(pairwise([0, *ends]))
    for _ in range(_ROUNDS_MAX):
        while todo:
            start, stop = todo.pop(0)
            try:
                parts[start, stop] = read((yield make(start, stop)))
            except DivgrpcError as error:
                middle = (start + stop) // 2
                if error.reason != _REPLY_TOO_LARGE or middle == start:
                    raise
                todo[:0] = [(start, middle), (middle, stop)]
        newest = max(part.generation for part in parts.values())
        todo = [rows for rows, part in parts.items() if part.generation != newest]
        if not todo:
            return joined([parts[rows] for rows in sorted(parts)])
        for rows in todo:
            del parts[rows]
    return None


class Pipeline(ABC, Generic[ItemT, RequestT, AnyT]):
    """The state of one call that sends a stream of items and receives an answer to each.

    Items are numbered in the order in which they are sent. Answers may arrive in any order, and
    `accept` yields them in the order of the items. Answers that arrive early are stored here. Their
    number is bounded, because the clients limit the number of items in flight.
    """

    def __init__(self, in_flight: int) -> None:
        """Create the state; raises `InvalidArgumentError` unless `in_flight` is at least 1."""
        self.in_flight = arguments.count("in_flight", in_flight)
        self._sent = 0
        self._turn = 0
        self._early: dict[int, Any] = {}

    @abstractmethod
    def message(self, number: int, item: ItemT) -> RequestT:
        """Return the message for an item; raises `InvalidArgumentError`."""

    def withdrawal_of(self, _: object) -> RequestT | None:
        """Return the message for an item that withdraws another one; None for any other item."""
        return None

    @abstractmethod
    def result(self, answer: Any) -> AnyT:  # noqa: ANN401  # a message with a correlation_id
        """Return the result in an answer that is not an error."""

    @property
    def due(self) -> bool:
        """True while the server owes an answer."""
        return self._sent > self._turn + len(self._early)

    @property
    def unanswered(self) -> int:
        """Number of items that were sent but whose results were not yielded yet."""
        return self._sent - self._turn

    def request(self, item: ItemT) -> RequestT:
        """Return the message for the next item; raises as `message` does."""
        message = self.message(self._sent, item)
        self._sent += 1
        return message

    def accept(self, response: Any) -> Iterator[AnyT | status_pb2.Status]:  # noqa: ANN401
        """Accept an answer, and yield the results and errors that are now next in order."""
        self._early[response.correlation_id] = response
        while (answer := self._early.pop(self._turn, None)) is not None:
            self._turn += 1
            is_error = answer.WhichOneof("outcome") == "error"
            yield answer.error if is_error else self.result(answer)


class QueryPipeline(Pipeline[StreamItem, query_pb2.QueryStreamRequest, QueryResult]):
    """The state of one call of `query_stream`; it raises the same errors as `query_batch`."""

    def __init__(
        self,
        name: str,
        options: QueryOptions,
        restriction: Mapping[str, Any],
        in_flight: int,
        time_limit: float | None,
    ) -> None:
        super().__init__(in_flight)
        self._fields = {**requests.query_fields(name, options), **restriction}
        self._room = _room(query_pb2.QueryRequest(**self._fields))
        self._time_limit_ms = None if time_limit is None else arguments.time_limit_ms(time_limit)

    def withdrawal_of(self, item: object) -> query_pb2.QueryStreamRequest | None:
        """Return the message for a withdrawal.

        Raises `InvalidArgumentError` if no query of this number was sent.
        """
        if not isinstance(item, Withdrawal):
            return None
        number = arguments.not_negative("number", item.number)
        if number >= self._sent:
            raise invalid(
                "number",
                f"must be the number of one of the {self._sent} queries sent so far, got {number}",
            )
        return query_pb2.QueryStreamRequest(correlation_id=number, withdraw=True)

    def message(self, number: int, item: StreamItem) -> query_pb2.QueryStreamRequest:
        """Return the message for one or more rows.

        Raises `InvalidArgumentError` if the item is not a matrix or is too large for one message.
        """
        assert not isinstance(item, Withdrawal)  # noqa: S101  # `withdrawal_of` takes it
        matrix = as_matrix("queries", item, one_row=True)
        rows = row_count(matrix)
        if row_ends(matrix, self._room)[:1] not in ([], [rows]):
            raise InvalidArgumentError(
                "queries", f"an item of a stream must fit one message, got {rows} rows; use query"
            )
        return query_pb2.QueryStreamRequest(
            correlation_id=number,
            query=requests.query(self._fields, matrix, 0, rows),
            time_limit_ms=self._time_limit_ms,
        )

    def result(self, answer: query_pb2.QueryStreamResponse) -> QueryResult:
        """Return the result of a query."""
        return responses.query_result(answer.response)
