"""A batch of queries or documents, cut into requests that fit a message, and joined again.

No I/O: the clients ask `next_request` what to send and tell `accept` what came back. Rows are
answered alike whatever they travel with, so cutting changes nothing, save that a new generation may
be published between two requests. A result speaks of one generation, so the parts that an older one
answered are asked again.
"""

from abc import ABC, abstractmethod
from typing import Final, Generic, TypeVar, cast

from divgrpc.parameters import LIMITS
from divgrpc.search.results import ResultT, joined
from divgrpc.types import LabelResult, QueryResult
from divgrpc_client.messages import requests, responses
from divgrpc_client.messages.options import (
    PREDICT_DEFAULTS,
    QUERY_DEFAULTS,
    PredictOptions,
    QueryOptions,
)
from divgrpc_client.messages.vectors import VectorsLike, as_matrix, row_ends
from divgrpc_protos.arrays import row_count
from divgrpc_protos.v1 import predict_pb2, query_pb2

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

# What a message holds beside the vectors or the results is far below this.
_HEADROOM_BYTES: Final = 2**16
MESSAGE_BYTES: Final = LIMITS["message_bytes_max"] - _HEADROOM_BYTES
# The most that one result and one row can take in an answer: a varint id and two floats; an offset,
# six counts, a duality gap, a dial and its reason.
_RESULT_BYTES: Final = 9 + 4 + 4
_ROW_BYTES: Final = 5 + 6 * 5 + 4 + 8 + 1
# The name of a label, if there are names: its text, and its length.
_NAME_BYTES: Final = LIMITS["label_name_bytes_max"] + 3
# A name that is replaced faster than it can be asked has no one generation to speak of.
_ROUNDS_MAX: Final = 4


class Batch(ABC, Generic[RequestT, ResponseT, ResultT]):
    """Rows asked about in one call: which to ask next, and the result once all are answered."""

    def __init__(self, field: str, rows: VectorsLike) -> None:
        self._matrix = as_matrix(field, rows, one_row=True)
        self._ends: list[int] = []
        self._parts: list[ResultT | None] = []
        self._asked = 0
        self._rounds = 1

    def _cut(self, most_bytes: int) -> None:
        """Cut the rows to what messages hold, where a row's answer takes `most_bytes` at most."""
        rows: int = row_count(self._matrix)
        most: int = min(LIMITS["query_rows_max"], max(1, MESSAGE_BYTES // most_bytes))
        ends: list[int] = row_ends(self._matrix, MESSAGE_BYTES) or [0]
        self._ends = sorted({*ends, *range(most, rows, most)})
        self._parts = [None] * len(self._ends)

    @abstractmethod
    def _request(self, start: int, stop: int) -> RequestT:
        """Return the request that asks these rows."""

    @abstractmethod
    def _result(self, response: ResponseT) -> ResultT:
        """Return what the answer to one says."""

    def next_request(self) -> RequestT | None:
        """Return what to send now, None when every part is answered by one generation."""
        while self._asked < len(self._ends) and self._parts[self._asked] is not None:
            self._asked += 1
        if self._asked == len(self._ends):
            return None
        start = self._ends[self._asked - 1] if self._asked else 0
        return self._request(start, self._ends[self._asked])

    def accept(self, response: ResponseT) -> None:
        """Take the answer to the request that `next_request` gave last."""
        self._parts[self._asked] = self._result(response)
        self._asked += 1
        if self._asked == len(self._ends) > 1 and self._rounds < _ROUNDS_MAX:
            self._drop_older()

    def _drop_older(self) -> None:
        newest = max(part.generation for part in self._parts if part is not None)
        for position, part in enumerate(self._parts):
            if part is not None and part.generation < newest:
                self._parts[position] = None
                self._asked = 0
        self._rounds += 1

    def result(self) -> ResultT | None:
        """Return the joined result; None where the index changed too fast to give one."""
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
        # It is a number, since the fields are; a 0 is the server's to refuse.
        k = int(options.get("k") or cast(int, QUERY_DEFAULTS["k"]))
        self._cut(_RESULT_BYTES * k + _ROW_BYTES)

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
        top_k = int(options.get("top_k") or cast(int, PREDICT_DEFAULTS["top_k"]))
        self._cut((_RESULT_BYTES + _NAME_BYTES) * top_k + _ROW_BYTES)

    def _request(self, start: int, stop: int) -> predict_pb2.PredictLabelsRequest:
        return requests.predict(self._fields, self._matrix, start, stop)

    def _result(self, response: predict_pb2.PredictLabelsResponse) -> LabelResult:
        return responses.label_result(response)
