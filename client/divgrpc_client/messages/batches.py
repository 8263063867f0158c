"""Queries and documents on their way: batches cut into messages, and the queries of a stream.

No I/O: `next_request` of a `Batch` says what to send, and `accept` takes the answer. The answer to
a row does not depend on the rows beside it, so a batch may be cut anywhere. A result is of one
generation: if a new one is published between two requests, parts that an older one answered are
sent again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Final, Generic, Protocol, TypeVar

from google.rpc import status_pb2

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import DEFAULT_K, LIMITS
from divgrpc.parameters.predict import DEFAULT_TOP_K
from divgrpc.search.results import ResultT, joined
from divgrpc.types import LabelResult, QueryResult
from divgrpc_client.messages import arguments, requests, responses
from divgrpc_client.messages.options import PredictOptions, QueryOptions
from divgrpc_client.messages.vectors import VectorsLike, as_matrix, row_ends
from divgrpc_protos.arrays import row_count
from divgrpc_protos.v1 import predict_pb2, query_pb2

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
AnyT = TypeVar("AnyT")
RequestT_co = TypeVar("RequestT_co", covariant=True)
ResponseT_contra = TypeVar("ResponseT_contra", contravariant=True)
ResultT_co = TypeVar("ResultT_co", covariant=True)

# More than the bytes of a message beside its vectors or results.
_HEADROOM_BYTES: Final = 2**16
MESSAGE_BYTES: Final = LIMITS["message_bytes_max"] - _HEADROOM_BYTES
# Most bytes of a result in an answer: an id as a varint, and two floats. Most bytes of a row: an
# offset, six counts, a duality gap, a dial and its reason.
_RESULT_BYTES: Final = 9 + 4 + 4
_ROW_BYTES: Final = 5 + 6 * 5 + 4 + 8 + 1
# Most bytes of the name of a label: its text and its length.
_NAME_BYTES: Final = LIMITS["label_name_bytes_max"] + 3
# A batch fails if the index is replaced during each of so many rounds.
_ROUNDS_MAX: Final = 4


class Exchange(Protocol[RequestT_co, ResponseT_contra, ResultT_co]):
    """Requests that go one after the other, and the result of their answers."""

    def next_request(self) -> RequestT_co | None:
        """Return the next request, None after the last."""

    def accept(self, response: ResponseT_contra) -> None:
        """Take the answer to the last request."""

    def result(self) -> ResultT_co | None:
        """Return the result of all answers; None if they do not agree."""


class Single(Generic[RequestT, ResponseT, AnyT]):
    """One request, and what its answer is read as."""

    def __init__(self, request: RequestT, read: Callable[[ResponseT], AnyT]) -> None:
        self._request: RequestT | None = request
        self._read = read
        self._result: AnyT | None = None

    def next_request(self) -> RequestT | None:
        """Return the request once."""
        request, self._request = self._request, None
        return request

    def accept(self, response: ResponseT) -> None:
        """Read the answer."""
        self._result = self._read(response)

    def result(self) -> AnyT | None:
        """Return the result."""
        return self._result


class Batch(ABC, Generic[RequestT, ResponseT, ResultT]):
    """The rows of one call: which to send next, and the result once all are answered."""

    def __init__(self, field: str, rows: VectorsLike) -> None:
        self._matrix = as_matrix(field, rows, one_row=True)
        self._ends: list[int] = []
        self._parts: list[ResultT | None] = []
        self._part = 0
        self._rounds = 1

    def _cut(self, most_bytes: int) -> None:
        """Cut the rows into parts that fit a message, if the answer to a row has `most_bytes`."""
        rows: int = row_count(self._matrix)
        most: int = min(LIMITS["query_rows_max"], max(1, MESSAGE_BYTES // most_bytes))
        ends: list[int] = row_ends(self._matrix, MESSAGE_BYTES) or [0]
        self._ends = sorted({*ends, *range(most, rows, most)})
        self._parts = [None] * len(self._ends)

    @abstractmethod
    def _request(self, start: int, stop: int) -> RequestT:
        """Return the request for these rows."""

    @abstractmethod
    def _result(self, response: ResponseT) -> ResultT:
        """Return the result of an answer."""

    def next_request(self) -> RequestT | None:
        """Return the next request, None when one generation has answered every part."""
        while self._part < len(self._ends) and self._parts[self._part] is not None:
            self._part += 1
        if self._part == len(self._ends):
            return None
        start = self._ends[self._part - 1] if self._part else 0
        return self._request(start, self._ends[self._part])

    def accept(self, response: ResponseT) -> None:
        """Take the answer to the last request."""
        self._parts[self._part] = self._result(response)
        self._part += 1
        if self._part == len(self._ends) > 1 and self._rounds < _ROUNDS_MAX:
            self._drop_older()

    def _drop_older(self) -> None:
        newest = max(part.generation for part in self._parts if part is not None)
        for position, part in enumerate(self._parts):
            if part is not None and part.generation < newest:
                self._parts[position] = None
                self._part = 0
        self._rounds += 1

    def result(self) -> ResultT | None:
        """Return the joined result; None if the index was replaced in every round."""
        parts = [part for part in self._parts if part is not None]
        if len({part.generation for part in parts}) > 1:
            return None
        return joined(parts)


class QueryBatch(Batch[query_pb2.QueryRequest, query_pb2.QueryResponse, QueryResult]):
    """One call of `query`.

    Raises `InvalidArgumentError` for queries and options that cannot be sent.
    """

    def __init__(self, name: str, queries: VectorsLike, options: QueryOptions) -> None:
        super().__init__("queries", queries)
        self._fields = requests.query_fields(name, options)
        self._cut(_RESULT_BYTES * options.get("k", DEFAULT_K) + _ROW_BYTES)

    def _request(self, start: int, stop: int) -> query_pb2.QueryRequest:
        return requests.query(self._fields, self._matrix, start, stop)

    def _result(self, response: query_pb2.QueryResponse) -> QueryResult:
        return responses.query_result(response)


class PredictBatch(
    Batch[predict_pb2.PredictLabelsRequest, predict_pb2.PredictLabelsResponse, LabelResult]
):
    """One call of `predict_labels`; raises as `QueryBatch` does."""

    def __init__(self, name: str, documents: VectorsLike, options: PredictOptions) -> None:
        super().__init__("documents", documents)
        self._fields = requests.predict_fields(name, options)
        top_k = options.get("top_k", DEFAULT_TOP_K)
        self._cut((_RESULT_BYTES + _NAME_BYTES) * top_k + _ROW_BYTES)

    def _request(self, start: int, stop: int) -> predict_pb2.PredictLabelsRequest:
        return requests.predict(self._fields, self._matrix, start, stop)

    def _result(self, response: predict_pb2.PredictLabelsResponse) -> LabelResult:
        return responses.label_result(response)


class Pipeline:
    """One call of `query_stream`; raises as `QueryBatch` does.

    Queries are numbered as they are sent. Answers arrive as they are ready, and `accept` yields
    those whose turn has come. The clients limit how many queries are on their way, and so how many
    answers wait here.
    """

    def __init__(self, name: str, options: QueryOptions, in_flight: int) -> None:
        self.in_flight = arguments.count("in_flight", in_flight)
        self._fields = requests.query_fields(name, options)
        self._sent = 0
        self._turn = 0
        self._early: dict[int, query_pb2.QueryStreamResponse] = {}

    @property
    def due(self) -> bool:
        """True while the server owes an answer."""
        return self._sent > self._turn + len(self._early)

    @property
    def unanswered(self) -> int:
        """How many items were sent whose results were not yielded."""
        return self._sent - self._turn

    def request(self, queries: VectorsLike) -> query_pb2.QueryStreamRequest:
        """Return the message of the next item, which is one row or several.

        Raises `InvalidArgumentError` if the item is no matrix, or too large for one message.
        """
        matrix = as_matrix("queries", queries, one_row=True)
        rows = row_count(matrix)
        if row_ends(matrix, MESSAGE_BYTES)[:1] not in ([], [rows]):
            raise InvalidArgumentError(
                "queries", f"an item of a stream must fit one message, got {rows} rows; use query"
            )
        message = query_pb2.QueryStreamRequest(
            correlation_id=self._sent, query=requests.query(self._fields, matrix, 0, rows)
        )
        self._sent += 1
        return message

    def accept(
        self, response: query_pb2.QueryStreamResponse
    ) -> Iterator[QueryResult | status_pb2.Status]:
        """Take an answer, and yield every result or error whose turn has come."""
        self._early[response.correlation_id] = response
        while (ready := self._early.pop(self._turn, None)) is not None:
            self._turn += 1
            if ready.WhichOneof("outcome") == "response":
                yield responses.query_result(ready.response)
            else:
                yield ready.error
